/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout kernels of the cpu engine, in every instruction set of this machine: decisions equal base/philox.h pair by
 * pair, for consecutive keys from any coordinate and for other keys, and dropped values become 0, whatever they were.
 * Operands end at an inaccessible page. Missing instruction sets are skipped by name.
 */
#include "t.h"
#include "base/philox.h"
#include "engine/cpu/cpu.h"
#include "support/memory/guard.h"
#include "support/fixtures/set_tests.h"

/* Returns a coordinate near 0, 2^20 or an end of int32, or any coordinate. */
static int32_t draw_coordinate(t_rng *rng) {
    static const int64_t about[] = {0, 0, INT32_MAX, INT32_MIN, 1 << 20};
    int64_t which = t_int(rng, 0, 7), x = which < 5 ? about[which] + t_int(rng, -150, 150) : t_int(rng, 0, UINT32_MAX);
    return (int32_t)(uint32_t)(uint64_t)x;
}

static fxa__cpu_dropout_row draw_row(t_rng *rng) {
    static const uint32_t thresholds[] = {0, 1, 1u << 31, UINT32_MAX};
    uint32_t any = (uint32_t)t_next(rng);
    int64_t which = t_int(rng, 0, 7);
    return (fxa__cpu_dropout_row){.seed = t_next(rng),
                                  .threshold = which < 4 ? thresholds[which] : any,
                                  .b = draw_coordinate(rng),
                                  .h = draw_coordinate(rng),
                                  .q = draw_coordinate(rng)};
}

/* Draws the coordinates of n keys; `run`: consecutive ones. */
static void draw_keys(t_rng *rng, int32_t *k, int64_t n, bool run) {
    uint32_t at = (uint32_t)draw_coordinate(rng), step = (uint32_t)t_int(rng, 0, 6);
    int64_t gap = t_int(rng, 0, n), how = run ? 0 : t_int(rng, 0, 3);
    for (int64_t i = 0; i < n; i++) {
        k[i] = (int32_t)at;
        at += how == 1 ? step : 1u;
        if (how == 2 && i == gap) at += (uint32_t)t_next(rng);
        if (how == 3) at = (uint32_t)draw_coordinate(rng);
    }
}

/* Returns the random word that decides about a pair. As a threshold, this word just keeps the pair. */
static uint32_t word_of(const fxa__cpu_dropout_row *row, int32_t k) {
    uint32_t counter[4] = {(uint32_t)k >> 2, (uint32_t)row->q, (uint32_t)row->h, (uint32_t)row->b}, word[4];
    fxa__philox(counter, row->seed, word);
    return word[(uint32_t)k & 3u];
}

static void check_keep(const fxa__cpu_kernels *kernels, t_rng *rng, int64_t n, bool run) {
    guard keys = guard_open((size_t)n * sizeof(int32_t));
    guard room = guard_open((size_t)(n + FXA__CPU_KEEP_CAPACITY) * sizeof(int32_t));
    int32_t *k = (int32_t *)(void *)keys.data, *all = (int32_t *)(void *)room.data;
    fxa__cpu_dropout_row row = draw_row(rng);
    draw_keys(rng, k, n, run);
    if (n > 0 && t_int(rng, 0, 2) == 0) row.threshold = word_of(&row, k[t_int(rng, 0, n - 1)]);
    const int32_t *keep = kernels->row_keep(all, &row, k, n, run);
    T_CHECK(keep >= all && keep <= all + FXA__CPU_KEEP_CAPACITY);
    for (int64_t i = 0; i < n; i++)
        if (keep[i] != -(int32_t)fxa__dropout_keep(row.seed, row.threshold, row.b, row.h, row.q, k[i])) {
            T_FAIL("%s: key %" PRId64 " of %" PRId64 ", coordinate %d after %d, %s: %d\n", kernels->isa, i, n, k[i],
                   k[0], run ? "consecutive" : "any", keep[i]);
            break;
        }
    guard_close(&keys);
    guard_close(&room);
}

static void check_drop(const fxa__cpu_kernels *kernels, t_rng *rng, int64_t n) {
    guard row = guard_open((size_t)n * kernels->real_size), keep = guard_open((size_t)n * sizeof(int32_t));
    int32_t *kept = (int32_t *)(void *)keep.data;
    float *f32 = (float *)(void *)row.data;
    double *f64 = (double *)(void *)row.data, factor = 1 / 0.9, want[100];
    bool narrow = kernels->real_size == sizeof(float);
    T_REQUIRE(n <= 100);
    for (int64_t i = 0; i < n; i++) {
        double x = t_int(rng, 0, 4) ? t_real(rng, -2, 2) : t_int(rng, 0, 1) ? NAN : -INFINITY;
        kept[i] = -(int32_t)t_int(rng, 0, 1);
        if (narrow)
            f32[i] = (float)x;
        else
            f64[i] = x;
        want[i] = !kept[i] ? 0 : narrow ? (double)((float)x * (float)factor) : x * factor;
    }
    kernels->row_drop(row.data, kept, factor, n);
    for (int64_t i = 0; i < n; i++) T_SAME(narrow ? (double)f32[i] : f64[i], want[i]);
    guard_close(&row);
    guard_close(&keep);
}

static void check_set(const fxa__cpu_kernels *kernels) {
    t_rng rng = {t_seed()};
    for (int round = t_scaled(4); round > 0; round--)
        for (int64_t n = 0; n < 200; n++) {
            check_keep(kernels, &rng, n, true);
            check_keep(kernels, &rng, n, false);
            if (n <= 100) check_drop(kernels, &rng, n);
        }
}

SET_TESTS(drop_f32, sizeof(float), check_set)
SET_TESTS(drop_f64, sizeof(double), check_set)

/* The share of dropped pairs is right, and decisions for neighbouring keys are independent. */
TEST(a_tenth_is_dropped) {
    enum { N = 1000, ROWS = 200 };
    static int32_t k[N], room[N + FXA__CPU_KEEP_CAPACITY];
    bool usable = false;
    const fxa__cpu_kernels *kernels;
    for (int i = 0; i < N; i++) k[i] = i;
    for (size_t i = 0; (kernels = fxa__cpu_set(i, sizeof(float), &usable)) != NULL; i++) {
        double dropped = 0, both = 0;
        fxa__cpu_dropout_row row = {.seed = t_seed(), .threshold = fxa__dropout_threshold(0.1)};
        for (row.q = 0; usable && row.q < ROWS; row.q++) {
            const int32_t *keep = kernels->row_keep(room, &row, k, N, true);
            for (int j = 0; j < N; j++) dropped += !keep[j], both += j > 0 && !keep[j] && !keep[j - 1];
        }
        if (!usable) continue;
        T_NEAR(dropped / (N * ROWS), 0.1, 5 * sqrt(0.1 * 0.9 / (N * ROWS)));
        T_NEAR(both / (N * ROWS), 0.01, 5 * sqrt(0.01 * 1.2 / (N * ROWS)));
    }
}

T_MAIN
