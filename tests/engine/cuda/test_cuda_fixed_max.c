/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixed maximum of the Hopper forward kernel, on the host (docs/cuda-kernels.md, Numbers): rows are computed tile
 * by tile in f32 as a consumer warpgroup does, with the decisions of src/engine/cuda/kernels/common/fixed_max.cuh, and
 * compared with f64. Every row must be right, recomputed or not; cases state whether recomputation is required. So a
 * bound that is too wide fails here, without a GPU. Non-finite V is tested for all 16-bit values.
 */
#include "base/dtype.h"
#include "t.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { FROZEN_F16 = FXA_F16 }; /* number of the dtype, saved because the kernels define a macro of this name */
#define FXA_INLINE static inline
#define FXA_F16 0
#define FXA_CUDA_COMMON_STORAGE_CUH /* skips common/storage.cuh, which the functions below replace */
typedef uint32_t u32;
typedef uint16_t u16, Result;
#define POS_INF INFINITY
#define NEG_INF (-INFINITY)

static unsigned char frozen_tile[64]; /* shared memory */

static int load_shared(u32 at) {
    int x;
    memcpy(&x, frozen_tile + at, sizeof x);
    return x;
}

static void store_shared(u32 at, int x) { memcpy(frozen_tile + at, &x, sizeof x); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include "engine/cuda/kernels/common/nonfinite.cuh"
#pragma GCC diagnostic pop

enum { FROZEN_TILE = 64, FROZEN_TILES = 8, FROZEN_KEYS = FROZEN_TILE * FROZEN_TILES };

/* ---- A row ------------------------------------------------------------------------------------------------------- */

typedef struct frozen_row {
    const float *score, *value; /* [keys] scores, which are multiplied by `unit`, and values */
    float unit;
    bool f16, sink, bounded;
    float most, sum, o; /* row maximum before `unit`; sums of exponentials and of their products with V */
    float bias;
} frozen_row;

static float frozen_stored(float x, bool f16) {
    unsigned char bytes[8];
    const uint32_t dtype = f16 ? (uint32_t)FROZEN_F16 : (uint32_t)FXA_BF16;
    fxa__store_f64(bytes, dtype, 0, (double)x);
    return (float)fxa__load_f64(bytes, dtype, 0);
}

static float frozen_exp2(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y; /* the hardware's exp2 flushes subnormal results to 0 */
}

static float frozen_finite_or_zero(float x) { return x == NEG_INF ? 0 : x; }

/* Raises the row maximum to that of a tile if it has grown by more than the lazy rescaling threshold, as
 * ForwardSoftmax::raise_max does. */
static void frozen_raise(frozen_row *r, int tile) {
    float top = r->most;
    for (int i = 0; i < FROZEN_TILE; i++) top = fmaxf(top, r->score[tile * FROZEN_TILE + i]);
    if (tile > 0 && !((top - r->most) * r->unit > fixed_max_threshold(r->f16))) return;
    float fade = frozen_exp2((r->most - frozen_finite_or_zero(top)) * r->unit);
    r->sum *= fade, r->o *= fade, r->most = top;
}

/* One pass over the tiles of a row. masked: number of tiles before the maximum is fixed. safe: the recompute pass, in
 * which the maximum is never fixed and scores are subtracted from it before scaling. */
static void frozen_visit(frozen_row *r, int masked, bool safe) {
    r->most = NEG_INF, r->sum = r->o = 0, r->bias = safe ? fixed_max_bias(r->f16) : 0;
    if (r->bounded && !safe) r->most = 0;
    for (int tile = 0; tile < FROZEN_TILES; tile++) {
        if ((safe || tile < masked) && !(r->bounded && !safe)) frozen_raise(r, tile);
        const float most = frozen_finite_or_zero(r->most), shift = safe ? r->bias : most * r->unit;
        for (int i = 0; i < FROZEN_TILE; i++) {
            const float s = r->score[tile * FROZEN_TILE + i];
            const float p = frozen_exp2(fmaf(safe ? s - most : s, r->unit, -shift));
            r->sum += p;
            r->o += frozen_stored(p, r->f16) * r->value[tile * FROZEN_TILE + i];
        }
    }
}

/* Computes a row; returns true if it was recomputed. bound: largest value of a bounded program. */
static bool frozen_compute(frozen_row *r, int masked, float bound) {
    frozen_visit(r, masked, false);
    const bool guessed = r->bounded ? !(bound * r->unit < 64) : masked < FROZEN_TILES && r->most == NEG_INF;
    const float top = frozen_finite_or_zero(r->most) * r->unit;
    if (!is_fixed_max_wrong(r->f16, top, r->sum, guessed, r->sink) && isfinite(r->o)) return false;
    frozen_visit(r, FROZEN_TILES, true);
    return true;
}

/* ---- What is right ----------------------------------------------------------------------------------------------- */

/* Compares O and log2 of the sum of exponentials with f64. P is rounded to storage, and exponents are rounded
 * products. */
static void frozen_check(const frozen_row *r, const char *what, bool again) {
    double most = -INFINITY, sum = 0, o = 0, size = 0, far = 0, all = 0;
    for (int i = 0; i < FROZEN_KEYS; i++) most = fmax(most, (double)r->score[i] * (double)r->unit);
    for (int i = 0; i < FROZEN_KEYS && most > -INFINITY; i++) {
        const double x = (double)r->score[i] * (double)r->unit - most, p = exp2(x), v = (double)r->value[i];
        sum += p, o += p * v, size += p * fabs(v), all += fabs(v);
        if (p > 0) far += p * fabs(x) * fabs(v);
    }
    if (sum == 0) {
        if (r->sum != 0 || r->o != 0) T_FAIL("%s: a row of nothing has the sum %g\n", what, (double)r->sum);
        return;
    }
    const double narrow = r->f16 ? 0x1p-11 : 0x1p-8;
    const double allowed =
        (narrow * size + 0x1p-20 * (far + size * fmin(fabs(most), 0x1p20)) + (r->f16 ? 0x1p-23 * all : 0x1p-94 * all)) /
        sum;
    const double got = (double)r->o / (double)r->sum, is = o / sum;
    const double lse =
        (double)frozen_finite_or_zero(r->most) * (double)r->unit + (double)r->bias + log2((double)r->sum);
    if (!(fabs(got - is) <= allowed))
        T_FAIL("%s%s: O is %.9g instead of %.9g, allowed %.3g\n", what, again ? ", again" : "", got, is, allowed);
    if (!(fabs(lse - (most + log2(sum))) <= 1e-4 + 0x1p-20 * fabs(most)))
        T_FAIL("%s%s: LSE is %.9g instead of %.9g\n", what, again ? ", again" : "", lse, most + log2(sum));
}

/* ---- Rows that force a recompute pass ---------------------------------------------------------------------------- */

enum { SAME, STEPS, RISE, SINGLE, LATE, HUGE_ONES, PENALTY, DOWNHILL, FROZEN_KINDS };

typedef struct frozen_case {
    const char *what;
    int kind;
    float by, unit;
    bool f16, large, sink, again;
} frozen_case;

#define LARGEST 1e38f
static const frozen_case frozen_cases[] = {
    {"all alike", SAME, 0, 1, false, false, false, false},
    {"all alike, f16", SAME, 0, 1, true, false, false, false},
    {"steps below the lag", STEPS, 7, 1, false, false, false, false},
    {"steps above the lag", STEPS, 8.1f, 1, false, false, false, false},
    {"steps past the limit", STEPS, 20, 1, false, false, false, true},
    {"steps, f16", STEPS, 1, 1, true, false, false, false},
    {"steps past the limit, f16", STEPS, 4, 1, true, false, false, true},
    {"just below the limit", RISE, 62, 1, false, false, false, false},
    {"just above the limit", RISE, 66, 1, false, false, false, true},
    {"just below the limit, f16", RISE, 13.5f, 1, true, false, false, false},
    {"just above the limit, f16", RISE, 15.5f, 1, true, false, false, true},
    {"beside a sink", RISE, 30, 1, false, false, true, true},
    {"one key of all", SINGLE, 1500, 1, false, false, false, true},
    {"one key of all, f16", SINGLE, 1500, 1, true, false, false, true},
    {"nothing, then low scores", LATE, -433, 1, false, false, false, true},
    {"nothing, then scores that vanish in part", LATE, -125, 1, false, false, false, true},
    {"nothing, then scores near 0", LATE, -20, 1, false, false, false, false},
    {"nothing, then low scores, f16", LATE, -433, 1, true, false, false, true},
    {"nothing, then scores that f16 loses", LATE, -20, 1, true, false, false, true},
    {"1e30", HUGE_ONES, 1e30f, 1.4426950f, false, false, false, true},
    {"1e30, f16", HUGE_ONES, 1e30f, 1.4426950f, true, false, false, true},
    {"-1e9 alone", PENALTY, -1e9f, 1.4426950f, false, false, false, true},
    {"-3.39e38 alone", PENALTY, -3.3895e38f, 1.4426950f, false, false, false, true},
    {"-3.39e38 alone, f16", PENALTY, -3.3895e38f, 1.4426950f, true, false, false, true},
    {"large V", SAME, 0, 1, false, true, false, true},
    {"large V and a rise", RISE, 30, 1, false, true, false, true},
    {"the largest first", DOWNHILL, -30, 1, false, false, false, false},
};

static float frozen_score(const frozen_case *c, int i) {
    const int tile = i / FROZEN_TILE;
    switch (c->kind) {
    case STEPS: return (float)tile * c->by;
    case RISE: return i == 300 ? c->by : 0;
    case SINGLE: return i == 300 ? c->by : 0;
    case LATE: return tile < 3 ? NEG_INF : c->by;
    case HUGE_ONES: return i % 3 ? -c->by : c->by;
    case PENALTY: return c->by;
    case DOWNHILL: return (float)tile * c->by;
    default: return 0;
    }
}

TEST(rows_that_force_it) {
    static float score[FROZEN_KEYS], value[FROZEN_KEYS];
    int64_t again = 0;
    for (size_t n = 0; n < sizeof frozen_cases / sizeof *frozen_cases; n++) {
        const frozen_case *c = &frozen_cases[n];
        t_rng rng = {7 + n};
        for (int i = 0; i < FROZEN_KEYS; i++) {
            score[i] = frozen_score(c, i);
            value[i] = c->large ? LARGEST : (float)t_int(&rng, -64, 64) / 16;
        }
        for (int masked = 1; masked <= 2; masked++) {
            frozen_row r = {.score = score, .value = value, .unit = c->unit, .f16 = c->f16, .sink = c->sink};
            bool redone = frozen_compute(&r, masked, 0);
            frozen_check(&r, c->what, redone);
            if (redone != c->again) T_FAIL("%s: %s\n", c->what, redone ? "was computed again" : "was kept");
            again += redone;
        }
    }
    T_CHECK(again > 20);
}

/* Random rows with scores of all magnitudes, with and without a bound: rows that are not recomputed must be right. */
TEST(random_rows) {
    static float score[FROZEN_KEYS], value[FROZEN_KEYS];
    static const float heights[] = {0.1f, 1, 4, 10, 30, 60, 90, 200, 1e4f, 1e7f, 1e12f, 1e30f};
    int64_t redone[2] = {0, 0};
    t_rng rng = {41};
    for (int n = 0; n < t_scaled(4000); n++) {
        const bool bounded = t_int(&rng, 0, 3) == 0;
        const float height = heights[t_int(&rng, 0, bounded ? 6 : 11)], tilt = (float)t_int(&rng, -3, 3);
        const float level = (float)t_int(&rng, 0, 3) * height;
        for (int i = 0; i < FROZEN_KEYS; i++) {
            const float noise = (float)t_int(&rng, -1000, 1000) / 1000;
            score[i] = bounded ? noise : height * (noise + tilt * (float)i / (float)FROZEN_KEYS) - level;
            if (!bounded && t_int(&rng, 0, 9) == 0) score[i] = NEG_INF;
            value[i] = (float)t_int(&rng, -64, 64) / 16 * (n % 7 ? 1.f : 2e37f);
        }
        for (int i = 0; !bounded && n % 5 == 0 && i < 200; i++) score[i] = NEG_INF;
        frozen_row r = {.score = score, .value = value, .unit = bounded ? height : 1, .bounded = bounded};
        r.f16 = !bounded && n % 7 && t_int(&rng, 0, 1);
        bool again = frozen_compute(&r, (int)t_int(&rng, 1, FROZEN_TILES), 1);
        frozen_check(&r, bounded ? "a bounded row" : r.f16 ? "a row of f16" : "a row", again);
        redone[again]++;
    }
    T_CHECK(redone[0] > t_scaled(4000) / 4 && redone[1] > t_scaled(4000) / 20);
}

/* ---- Values that are not finite ---------------------------------------------------------------------------------- */

TEST(values_that_are_not_finite) {
    for (u32 x = 0; x < 65536; x++) {
        const float v = (float)fxa__load_f64((u16[]){(u16)x}, FXA_BF16, 0);
        T_INT(changed_half(x, VALUES_FINITE), isfinite(v) ? x : 0);
        T_INT(changed_half(x, VALUES_POS_INF), !isfinite(v) && v != NEG_INF ? HALF_ONE : 0);
        T_INT(changed_half(x, VALUES_NEG_INF), !isfinite(v) && v != POS_INF ? HALF_ONE : 0);
    }
    store_shared(8, 0x7f800001); /* a NaN with the bits of +inf above a small number */
    T_CHECK(change_values(0, 64, VALUES_FINITE, 0, 2) && load_shared(8) == 1);
    T_CHECK(!change_values(0, 64, VALUES_FINITE, 0, 1));
    u16 o[3] = {0, 0, 0};
    put_mark(&o[0], VALUES_POS_INF), put_mark(&o[1], VALUES_POS_INF), put_mark(&o[1], VALUES_NEG_INF),
        put_mark(&o[2], VALUES_NEG_INF);
    T_INT(o[0], HALF_INF);
    T_INT(o[1], HALF_NAN);
    T_INT(o[2], HALF_INF | HALF_SIGN);
}

T_MAIN
