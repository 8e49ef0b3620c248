/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis against brute force: never wrong for any program, exact where range.c says so.
 */
#include "t.h"

#include "program/range.h"
#include "support/brute.h"
#include "support/fail_alloc.h"
#include "support/gen.h"

static const double range_scores[] = {0.25, -3e30, NAN};

static fxa_program *range_parse(fxa_context *ctx, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

static const char *range_name(fxa_tile t) { return t == FXA_TILE_EMPTY ? "EMPTY" : t == FXA_TILE_FULL ? "FULL" : "MIXED"; }

static void range_show(const fxa_program *p, const fxa_box *box) {
    static char text[1 << 16];
    size_t needed;
    fxa_error err;
    if (fxa_program_print(p, text, sizeof text, &needed, &err) != FXA_OK) text[0] = 0;
    printf("%s    over", text);
    for (int i = FXA_INPUT_B; i <= FXA_INPUT_K_LEN; i++)
        printf(" %s %d..%d", fxa__input_name((uint32_t)i), (int)box->lo[i], (int)box->hi[i]);
    printf("\n");
}

/* ---- Cases by hand ------------------------------------------------------------------------------------------------ */

typedef struct range_case {
    const char *mask;
    int32_t q0, q1, k0, k1; /* b 1, h 2, q_len 100, k_len 120 */
    fxa_tile want;
} range_case;

#define E FXA_TILE_EMPTY
#define M FXA_TILE_MIXED
#define F FXA_TILE_FULL
static const range_case range_cases[] = {
    {"true", 0, 9, 0, 9, F},
    {"false", 0, 9, 0, 9, E},
    {"k <= q", 0, 9, 10, 19, E},
    {"k <= q", 0, 9, 9, 19, M},
    {"k <= q", 9, 19, 0, 9, F},
    {"q - k >= 0 && q - k < 64", 128, 255, 0, 64, E},
    {"q - k >= 0 && q - k < 64", 128, 255, 0, 65, M},
    {"q - k >= 0 && q - k < 64", 120, 127, 64, 120, F},
    {"0 <= q - k && k <= 3 && q - k <= -1", 0, 9, 0, 9, E}, /* bounds on one form meet across another */
    {"k <= q || q < k", 0, 99, 0, 99, F},
    {"k < q || q < k || q + 5 == k + 5", 0, 99, 0, 99, F},
    {"(k <= q) ^ (q < k)", 0, 99, 0, 99, F},
    {"(k <= q) == (q >= k)", 0, 99, 0, 99, F},
    {"!(q - k >= 3 && q - k <= 2)", 0, 99, 0, 99, F},
    {"where(q >= k, q - k >= 0, q - k < 0)", 0, 99, 0, 99, F},
    {"abs(q - k) < 8", 0, 7, 0, 7, F},
    {"abs(q - k) < 8", 0, 7, 15, 20, E},
    {"abs(q - k) < 8 && q - k > 7", 0, 99, 0, 99, E},
    {"q // 64 == k // 64", 0, 63, 0, 63, F},
    {"q // 64 == k // 64", 0, 63, 64, 127, E},
    {"q // 64 == k // 64", 0, 64, 64, 127, M},
    {"q // 64 == (q + 64) // 64 - 1", 0, 999, 0, 9, F},
    {"q // 64 <= (q + 32) // 64", 0, 999, 0, 9, F},
    {"q // 6 == q // 2 // 3", 0, 999, 0, 9, F},
    {"(q - k) // 8 == 0 && q - k >= 8", 0, 99, 0, 99, E}, /* a quotient and its form meet */
    {"(q * 2) % 2 == 0", 0, 99, 0, 99, F},
    {"(q * 6 + 3) % 4 == 2", 0, 99, 0, 99, E},
    {"2 * q == 2 * k + 1", 0, 99, 0, 99, E},
    {"2 * q == 3 * k + 1", 0, 1, 0, 0, E},
    {"2 * q - 3 * k == 4", 0, 1, 0, 1, E}, /* 0 2 -3 -1 */
    {"(q - k) % 2 == 0", 5, 5, 3, 3, F},
    {"(q - k) % 7 == 3", 5, 6, 0, 1, E}, /* 4 5 6 */
    {"(q - k) % 7 == 3", 5, 6, 0, 2, M},
    {"q % 64 == k % 64", 60, 70, 75, 80, E}, /* 60..63 0..6 against 11..16 */
    {"(5 * q) % 64 == 3", 0, 8, 0, 0, E},
    {"abs(q % 8 - k % 8) <= 1 && abs(q // 8 - k // 8) <= 1", 0, 7, 16, 23, E},
    {"q & 7 < 8", 0, 999, 0, 9, F},
    {"(q & ~7) == q - q % 8", 0, 999, 0, 9, F},
    {"q >> 3 == k >> 3", 8, 15, 8, 15, F},
    {"(q << 3) % 8 == 0", 0, 999, 0, 9, F},
    {"q * k >= 0", 0, 99, 0, 99, F},
    {"min(q, k) <= q", 0, 99, 0, 99, M}, /* sound, and no more is promised */
    {"max(q, q + 1) == q + 1", 0, 99, 0, 99, F},
    {"clamp(q, 0, 50) == q", 0, 50, 0, 9, F},
    {"q // 0 == 0 && k % 0 == 0", 0, 9, 0, 9, F},
    {"q // -8 == -(q // 8)", 8, 8, 0, 0, F},
    {"q % -8 <= 0", 0, 99, 0, 9, F},
    {"q + b < 100 && h == 2 && k < k_len", 0, 98, 0, 119, F},
    {"k <= q + k_len - q_len", 0, 0, 0, 20, F},
    {"k <= q + k_len - q_len", 0, 0, 21, 30, E},
    {"q - k >= 0 && q - k + k_len < 120", 0, 99, 0, 99, E}, /* single values fold: the same form */
    {"q + 2147483647 < 0", 1, 99, 0, 9, F}, /* wraps everywhere */
    {"q + 2147483647 < 0", 0, 99, 0, 9, M},
    {"(q + 2147483647) - 2147483647 == q", -9, 99, 0, 9, F},
    {"q * 65536 * 65536 == 0", 0, 99, 0, 9, F},
    {"float(q) - float(k) < 64.0", 0, 63, 0, 63, F},
    {"float(q) >= float(k)", 0, 63, 64, 70, E},
    {"tanh(q / 7) < 1.1", 0, 63, 0, 63, F},
    {"score < 1 || score >= 1", 0, 9, 0, 9, M}, /* NaN is neither */
    {"score != score || score == score", 0, 9, 0, 9, M},
    {"sqrt(q - 5) >= 0", 0, 3, 0, 9, M},
    {"int(float(q) * 0.5) <= 20", 0, 30, 0, 9, F},
};

TEST(cases) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t i = 0; i < sizeof range_cases / sizeof *range_cases; i++) {
        const range_case *c = &range_cases[i];
        char text[256];
        snprintf(text, sizeof text, "mask = %s", c->mask);
        fxa_program *p = range_parse(ctx, text);
        if (!p) continue;
        fxa_box box = brute_box(1, 2, c->q0, c->q1, c->k0, c->k1, 100, 120);
        fxa_tile got = fxa_program_classify(p, &box, NULL, NULL), truth = brute_class(p, &box, NULL, NULL, range_scores, 3);
        if (got != c->want) T_FAIL("%s: %s, not %s\n", c->mask, range_name(got), range_name(c->want));
        if (got != FXA_TILE_MIXED && got != truth) T_FAIL("%s: %s is wrong\n", c->mask, range_name(got));
        fxa_program_destroy(p);
    }
    fxa_context_destroy(ctx);
}
#undef E
#undef M
#undef F

/* ---- Random programs ---------------------------------------------------------------------------------------------------- */

/* A box of at most a few hundred pairs: small lengths, at different places of the int range. */
static fxa_box range_random_box(t_rng *rng) {
    fxa_box box = {{0}, {0}};
    int place = (int)t_int(rng, 0, 9);
    for (int i = FXA_INPUT_B; i <= FXA_INPUT_K_LEN; i++) {
        bool main = i == FXA_INPUT_Q || i == FXA_INPUT_K;
        int64_t n = main ? t_int(rng, 1, t_int(rng, 0, 2) ? 12 : 40) : t_int(rng, 0, 5) ? 1 : 2;
        int64_t lo = t_int(rng, 0, 60);
        if (place == 0) lo = t_int(rng, -40, 10);
        if (place == 1) lo = INT32_MAX - t_int(rng, 0, 30) - n + 1;
        if (place == 2) lo = INT32_MIN + t_int(rng, 0, 30);
        if (place == 3) lo = t_int(rng, 0, 3) ? t_int(rng, 0, 9) : t_int(rng, INT32_MIN, INT32_MAX - n);
        if (place == 4) n = 1;
        box.lo[i] = (int32_t)lo;
        box.hi[i] = (int32_t)(lo + n - 1);
    }
    return box;
}

typedef struct range_make {
    fxa_builder *b;
    t_rng *rng;
} range_make;

static fxa_value range_int_const(range_make *m) {
    static const int32_t odd[] = {0, 1, -1, 2, 7, 8, 64, 63, -3, 31, 32, INT32_MAX, INT32_MIN, 65536, -64};
    if (t_int(m->rng, 0, 3) == 0) return fxa_builder_int(m->b, odd[t_int(m->rng, 0, 14)]);
    return fxa_builder_int(m->b, (int32_t)t_int(m->rng, -20, 70));
}

static fxa_value range_any_int(range_make *m, int depth);

static fxa_value range_any_bool(range_make *m, int depth) {
    static const fxa_op cmp[] = {FXA_OP_EQ, FXA_OP_NE, FXA_OP_LT, FXA_OP_LE, FXA_OP_GT, FXA_OP_GE};
    static const fxa_op logic[] = {FXA_OP_AND, FXA_OP_OR, FXA_OP_XOR};
    int64_t kind = depth <= 0 ? 0 : t_int(m->rng, 0, 6);
    if (kind == 1) return fxa_builder_op1(m->b, FXA_OP_NOT, range_any_bool(m, depth - 1));
    if (kind == 2) {
        fxa_value c = range_any_bool(m, depth - 1), x = range_any_bool(m, depth - 1);
        return fxa_builder_op3(m->b, FXA_OP_SELECT, c, x, range_any_bool(m, depth - 1));
    }
    if (kind >= 3) {
        fxa_value x = range_any_bool(m, depth - 1);
        return fxa_builder_op2(m->b, logic[t_int(m->rng, 0, 2)], x, range_any_bool(m, depth - 1));
    }
    fxa_value x = range_any_int(m, (int)t_int(m->rng, 0, 3)), y;
    y = t_int(m->rng, 0, 1) ? range_int_const(m) : range_any_int(m, (int)t_int(m->rng, 0, 3));
    return fxa_builder_op2(m->b, cmp[t_int(m->rng, 0, 5)], x, y);
}

static fxa_value range_any_int(range_make *m, int depth) {
    static const fxa_op op1[] = {FXA_OP_NEG, FXA_OP_ABS, FXA_OP_NOT};
    static const fxa_op op2[] = {FXA_OP_ADD, FXA_OP_SUB, FXA_OP_MUL, FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_MIN,
                                 FXA_OP_MAX, FXA_OP_AND, FXA_OP_OR,  FXA_OP_XOR,      FXA_OP_SHL, FXA_OP_SHR};
    if (depth <= 0) {
        if (t_int(m->rng, 0, 4) == 0) return range_int_const(m);
        return fxa_builder_input(m->b, (fxa_input)(t_int(m->rng, 0, 3) ? t_int(m->rng, 3, 4) : t_int(m->rng, 1, 6)));
    }
    fxa_value x = range_any_int(m, depth - 1);
    int64_t kind = t_int(m->rng, 0, 11);
    if (kind == 0) return fxa_builder_op1(m->b, op1[t_int(m->rng, 0, 2)], x);
    if (kind == 1) {
        fxa_value c = range_any_bool(m, 0);
        return fxa_builder_op3(m->b, FXA_OP_SELECT, c, x, range_any_int(m, depth - 1));
    }
    if (kind == 2) return fxa_builder_op3(m->b, FXA_OP_CLAMP, x, range_int_const(m), range_any_int(m, depth - 1));
    if (kind < 7) return fxa_builder_op2(m->b, op2[t_int(m->rng, 0, 11)], x, range_int_const(m));
    return fxa_builder_op2(m->b, op2[t_int(m->rng, 0, kind < 10 ? 1 : 11)], x, range_any_int(m, depth - 1));
}

static fxa_program *range_finish(fxa_builder *b, fxa_value mask) {
    fxa_program *p = NULL;
    fxa_error err;
    fxa_builder_set_mask(b, mask);
    if (fxa_builder_finish(b, &p, &err) != FXA_OK) T_FAIL("%s\n", err.text);
    fxa_builder_destroy(b);
    return p;
}

/* Ints of every kind, bools of every kind, anywhere in the int range: never wrong, and right at single points. */
TEST(random_ints) {
    fxa_context *ctx = NULL;
    fxa_error err;
    t_rng rng = {t_seed()};
    int decided = 0, decidable = 0;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(6000); i++) {
        fxa_builder *b = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        range_make m = {b, &rng};
        fxa_program *p = range_finish(b, range_any_bool(&m, (int)t_int(&rng, 0, 3)));
        T_REQUIRE(p != NULL);
        for (int j = 0; j < 3; j++) {
            fxa_box box = range_random_box(&rng), point = box;
            fxa_tile got = fxa_program_classify(p, &box, NULL, NULL), truth = brute_class(p, &box, NULL, NULL, range_scores, 1);
            decidable += truth != FXA_TILE_MIXED;
            decided += got != FXA_TILE_MIXED;
            if (got != FXA_TILE_MIXED && got != truth) {
                T_FAIL("%s, truly %s\n", range_name(got), range_name(truth));
                range_show(p, &box);
            }
            for (int k = FXA_INPUT_B; k <= FXA_INPUT_K_LEN; k++)
                point.lo[k] = point.hi[k] = (int32_t)t_int(&rng, box.lo[k], box.hi[k]);
            got = fxa_program_classify(p, &point, NULL, NULL);
            if (got != brute_class(p, &point, NULL, NULL, range_scores, 1)) {
                T_FAIL("%s at a point\n", range_name(got));
                range_show(p, &point);
            }
        }
        fxa_program_destroy(p);
        if (t_failures > 10) break;
    }
    printf("  decided %d of %d\n", decided, decidable);
    T_CHECK(decided > decidable * 8 / 10);
    fxa_context_destroy(ctx);
}

/* ---- What must be exact -------------------------------------------------------------------------------------------------- */

/* c + sum of small multiples of the coordinates in `which`. */
static fxa_value range_affine(range_make *m, unsigned which, bool unit) {
    fxa_value x = fxa_builder_int(m->b, (int32_t)t_int(m->rng, -30, 30));
    for (int i = FXA_INPUT_B; i <= FXA_INPUT_K_LEN; i++) {
        int32_t coef = (int32_t)(unit ? 2 * t_int(m->rng, 0, 1) - 1 : t_int(m->rng, -5, 5));
        if (!(which >> i & 1u)) continue;
        fxa_value y = fxa_builder_op2(m->b, FXA_OP_MUL, fxa_builder_input(m->b, (fxa_input)i), fxa_builder_int(m->b, coef));
        x = fxa_builder_op2(m->b, FXA_OP_ADD, x, y);
    }
    return x;
}

static fxa_op range_any_compare(t_rng *rng) {
    static const fxa_op cmp[] = {FXA_OP_EQ, FXA_OP_NE, FXA_OP_LT, FXA_OP_LE, FXA_OP_GT, FXA_OP_GE};
    return cmp[t_int(rng, 0, 5)];
}

static fxa_value range_number(range_make *m, int64_t lo, int64_t hi) { return fxa_builder_int(m->b, (int32_t)t_int(m->rng, lo, hi)); }

enum { ON_Q = 1 << FXA_INPUT_Q, ON_K = 1 << FXA_INPUT_K, ON_ALL = 0x7e };

/* One mask of a class that range.c promises to decide exactly. */
static fxa_value range_exact_mask(range_make *m, int kind) {
    fxa_builder *b = m->b;
    fxa_op cmp = range_any_compare(m->rng), round = t_int(m->rng, 0, 1) ? FXA_OP_FLOORDIV : FXA_OP_MOD;
    fxa_value x, y, div = range_number(m, 1, 24), div2 = range_number(m, 1, 24);
    switch (kind) {
    case 0: /* affine against affine, two coordinates move */
        x = range_affine(m, ON_Q | ON_K, false);
        return fxa_builder_op2(b, cmp, x, range_affine(m, ON_Q | ON_K, false));
    case 1: /* the same with all six, steps of one */
        x = range_affine(m, ON_ALL & (unsigned)t_next(m->rng), true);
        return fxa_builder_op2(b, cmp, x, range_number(m, -60, 60));
    case 2: /* quotient or remainder of an affine form, then anything affine, against a number */
        x = fxa_builder_op2(b, round, range_affine(m, ON_Q | ON_K, true), div);
        x = fxa_builder_op2(b, FXA_OP_MUL, x, range_number(m, -3, 3));
        return fxa_builder_op2(b, cmp, x, range_number(m, -40, 40));
    case 3: /* quotients or remainders of different coordinates against each other */
        x = fxa_builder_op2(b, round, range_affine(m, ON_Q, true), div);
        y = fxa_builder_op2(b, round, range_affine(m, ON_K, true), t_int(m->rng, 0, 1) ? div : div2);
        return fxa_builder_op2(b, cmp, x, y);
    case 4: /* one coordinate on both sides */
        x = fxa_builder_op2(b, round, range_affine(m, ON_Q, false), div);
        y = fxa_builder_op2(b, t_int(m->rng, 0, 1) ? FXA_OP_MOD : FXA_OP_ADD, range_affine(m, ON_Q, false), div2);
        return fxa_builder_op2(b, cmp, x, y);
    default: /* quotient of a quotient, absolute value of a difference of blocks */
        x = fxa_builder_op2(b, FXA_OP_FLOORDIV, range_affine(m, ON_Q, true), div);
        y = fxa_builder_op2(b, FXA_OP_FLOORDIV, range_affine(m, ON_K, true), div);
        x = fxa_builder_op1(b, FXA_OP_ABS, fxa_builder_op2(b, FXA_OP_SUB, x, y));
        return fxa_builder_op2(b, cmp, x, range_number(m, 0, 5));
    }
}

/* Bounds on q - k, in several spellings, joined anyhow. */
static fxa_value range_one_form_mask(range_make *m, int depth) {
    static const fxa_op order[] = {FXA_OP_LT, FXA_OP_LE, FXA_OP_GT, FXA_OP_GE};
    static const fxa_op logic[] = {FXA_OP_AND, FXA_OP_OR, FXA_OP_XOR};
    fxa_builder *b = m->b;
    if (depth > 0) {
        fxa_value x = range_one_form_mask(m, depth - 1), y = range_one_form_mask(m, depth - 1);
        if (t_int(m->rng, 0, 3) == 0) x = fxa_builder_op1(b, FXA_OP_NOT, x);
        return fxa_builder_op2(b, logic[t_int(m->rng, 0, 2)], x, y);
    }
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K), c = range_number(m, -25, 25);
    fxa_op cmp = order[t_int(m->rng, 0, 3)];
    switch (t_int(m->rng, 0, 3)) {
    case 0: return fxa_builder_op2(b, cmp, fxa_builder_op2(b, FXA_OP_SUB, q, k), c);
    case 1: return fxa_builder_op2(b, cmp, k, fxa_builder_op2(b, FXA_OP_ADD, q, c));
    case 2: return fxa_builder_op2(b, cmp, fxa_builder_op2(b, FXA_OP_SUB, k, c), q);
    default: {
        fxa_value x = fxa_builder_op2(b, FXA_OP_MUL, fxa_builder_op2(b, FXA_OP_SUB, q, k), fxa_builder_int(b, -3));
        return fxa_builder_op2(b, cmp, c, x);
    }
    }
}

/* q and k move, the others are single values; nothing wraps. */
static fxa_box range_plain_box(t_rng *rng, bool all) {
    fxa_box box = {{0}, {0}};
    for (int i = FXA_INPUT_B; i <= FXA_INPUT_K_LEN; i++) {
        bool main = i == FXA_INPUT_Q || i == FXA_INPUT_K;
        int64_t lo = t_int(rng, -20, 60), n = main ? t_int(rng, 1, 30) : all ? t_int(rng, 1, 2) : 1;
        box.lo[i] = (int32_t)lo;
        box.hi[i] = (int32_t)(lo + n - 1);
    }
    return box;
}

static void range_check_exact(const fxa_program *p, const fxa_box *box, const char *what) {
    fxa_tile got = fxa_program_classify(p, box, NULL, NULL), truth = brute_class(p, box, NULL, NULL, range_scores, 1);
    if (got == truth) return;
    T_FAIL("%s: %s, truly %s\n", what, range_name(got), range_name(truth));
    range_show(p, box);
}

TEST(exact) {
    static const char *const what[] = {"affine", "all coordinates", "rounded", "rounded twice", "one coordinate", "blocks", "bounds"};
    fxa_context *ctx = NULL;
    fxa_error err;
    t_rng rng = {t_seed() + 1};
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(7000) && t_failures < 10; i++) {
        fxa_builder *b = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        range_make m = {b, &rng};
        int kind = i % 7;
        fxa_program *p = range_finish(b, kind == 6 ? range_one_form_mask(&m, (int)t_int(&rng, 0, 2)) : range_exact_mask(&m, kind));
        T_REQUIRE(p != NULL);
        for (int j = 0; j < 4; j++) {
            fxa_box box = range_plain_box(&rng, kind == 1);
            range_check_exact(p, &box, what[kind]);
        }
        fxa_program_destroy(p);
    }
    fxa_context_destroy(ctx);
}

/* The generator's affine masks: several coordinates and roundings joined by logic, where parts decide nearly always. */
TEST(random_affine) {
    fxa_context *ctx = NULL;
    fxa_error err;
    t_rng rng = {t_seed() + 2};
    int decided = 0, decidable = 0;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(4000) && t_failures < 10; i++) {
        uint8_t tape[96];
        for (size_t j = 0; j < sizeof tape; j++) tape[j] = (uint8_t)t_next(&rng);
        fxa_program *p = gen_program(ctx, tape, sizeof tape, GEN_AFFINE_MASK);
        T_REQUIRE(p != NULL);
        for (int j = 0; j < 3; j++) {
            fxa_box box = range_plain_box(&rng, j == 0);
            fxa_tile got = fxa_program_classify(p, &box, NULL, NULL), truth = brute_class(p, &box, NULL, NULL, range_scores, 1);
            decided += got != FXA_TILE_MIXED;
            decidable += truth != FXA_TILE_MIXED;
            if (got != FXA_TILE_MIXED && got != truth) {
                T_FAIL("%s, truly %s\n", range_name(got), range_name(truth));
                range_show(p, &box);
            }
        }
        fxa_program_destroy(p);
    }
    printf("  decided %d of %d\n", decided, decidable);
    T_CHECK(decided >= decidable * 95 / 100);
    fxa_context_destroy(ctx);
}

/* ---- Params and tensors --------------------------------------------------------------------------------------------------- */

TEST(params) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    fxa_program *p = range_parse(ctx, "param w : int\nparam x : float\nmask = q - k < w && float(q) < x");
    T_REQUIRE(p != NULL);
    fxa_box box = brute_box(0, 0, 10, 19, 0, 9, 100, 100);
    double full[2] = {20, 19.5}, empty[2] = {1, 1e9}, border[2] = {20, 19}, odd[2] = {20.5, 30}, none[2] = {20, NAN};
    T_INT(fxa_program_classify(p, &box, full, NULL), FXA_TILE_FULL);
    T_INT(fxa_program_classify(p, &box, empty, NULL), FXA_TILE_EMPTY);
    T_INT(fxa_program_classify(p, &box, border, NULL), FXA_TILE_MIXED);
    T_INT(fxa_program_classify(p, &box, odd, NULL), FXA_TILE_MIXED); /* no int: unknown */
    T_INT(fxa_program_classify(p, &box, none, NULL), FXA_TILE_EMPTY); /* nothing is less than NaN */
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_MIXED);
    double close[2] = {20, 19 * (1 + 1e-7)}; /* one f32 step: left undecided */
    T_INT(fxa_program_classify(p, &box, close, NULL), FXA_TILE_MIXED);
    fxa_program_destroy(p);
    p = range_parse(ctx, "param w : int\nmask = q + w - w == q && k - w < k - w + 1 || w == w + 1");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_MIXED); /* k - w + 1 may wrap */
    fxa_program_destroy(p);
    p = range_parse(ctx, "param w : int\nmask = q + w - k == w + q - k");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_FULL); /* unknown, but the same */
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
}

static fxa_view range_view(const int32_t *data, int64_t n) {
    return (fxa_view){.data = data, .dtype = FXA_I32, .rank = 1, .size = {n}, .stride = {1}};
}

TEST(scan) {
    const int32_t up[] = {-3, -3, 0, 7}, mixed[] = {1, 9, 2};
    fxa_view view = range_view(up, 4), other = range_view(mixed, 3), none = range_view(NULL, 0), back = range_view(up + 3, 4);
    fxa_tensor_range r = fxa_tensor_scan(&view);
    T_CHECK(r.known && r.nondecreasing && r.lo == -3 && r.hi == 7 && r.view == &view);
    r = fxa_tensor_scan(&other);
    T_CHECK(r.known && !r.nondecreasing && r.lo == 1 && r.hi == 9);
    r = fxa_tensor_scan(&none);
    T_CHECK(r.known && r.nondecreasing && r.lo == 0 && r.hi == 0); /* every load reads 0 */
    back.stride[0] = -1;
    r = fxa_tensor_scan(&back);
    T_CHECK(r.known && !r.nondecreasing && r.lo == -3 && r.hi == 7);
    const int64_t wide[] = {INT64_MIN, 5, INT64_MAX};
    fxa_view big = {.data = wide, .dtype = FXA_I64, .rank = 1, .size = {3}, .stride = {1}};
    r = fxa_tensor_scan(&big);
    T_CHECK(r.known && r.nondecreasing && r.lo == INT32_MIN && r.hi == INT32_MAX);
    const float real[] = {1, 2};
    fxa_view floats = {.data = real, .dtype = FXA_F32, .rank = 1, .size = {2}, .stride = {1}};
    r = fxa_tensor_scan(&floats);
    T_CHECK(!r.known && !r.nondecreasing);
    fxa_view square = {.data = up, .dtype = FXA_I32, .rank = 2, .size = {2, 2}, .stride = {2, 1}};
    r = fxa_tensor_scan(&square);
    T_CHECK(!r.known && !r.nondecreasing);
    T_CHECK(!fxa_tensor_scan(NULL).known);
}

/* Documents: exact classes where the ids ascend, from two elements an axis. */
TEST(documents) {
    fxa_context *ctx = NULL;
    fxa_error err;
    enum { N = 96, TILE = 8 };
    int32_t doc[N];
    for (int i = 0; i < N; i++) doc[i] = i / 20;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    fxa_program *p = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] == doc[k] && k <= q");
    fxa_program *same = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q + 1 + 1] == doc[q + 2]");
    T_REQUIRE(p != NULL && same != NULL);
    fxa_view view = range_view(doc, N);
    fxa_tensor_range known = fxa_tensor_scan(&view), range = {.known = 1, .lo = 1, .hi = 3};
    for (int q = 0; q < N; q += TILE)
        for (int k = 0; k < N; k += TILE) {
            fxa_box box = brute_box(0, 0, q, q + TILE - 1, k, k + TILE - 1, N, N);
            T_INT(fxa_program_classify(p, &box, NULL, &known), brute_class(p, &box, NULL, &view, range_scores, 1));
            T_INT(fxa_program_classify(same, &box, NULL, NULL), FXA_TILE_FULL);
        }
    fxa_box box = brute_box(0, 0, 50, 60, 10, 20, N, N);
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    fxa_program_destroy(p);
    fxa_program_destroy(same);

    /* A range without a view: an index may lie outside, and 0 joins. */
    p = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] >= 1");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    range.view = &view; /* inside: it does not */
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_FULL);
    box.hi[FXA_INPUT_Q] = N;
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    box.lo[FXA_INPUT_Q] = -N;
    box.hi[FXA_INPUT_Q] = -1;
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_FULL);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
}

/* Everything a program can hold, over tensors with and without knowledge: never wrong. */
enum { RANGE_SIDE = 5 };

typedef struct range_data {
    double params[FXA_MAX_PARAMS];
    fxa_view views[FXA_MAX_TENSORS];
    fxa_tensor_range known[FXA_MAX_TENSORS];
    uint8_t bytes[FXA_MAX_TENSORS][RANGE_SIDE * RANGE_SIDE * RANGE_SIDE * RANGE_SIDE * RANGE_SIDE * 8];
} range_data;

static void range_fill(range_data *d, const fxa_program *p, t_rng *rng) {
    for (size_t i = 0; i < fxa_program_param_count(p); i++) {
        bool is_int = fxa_program_param(p, i).type == FXA_INT;
        d->params[i] = is_int ? (double)t_int(rng, -9, 70) : t_real(rng, -4, 40);
    }
    for (size_t i = 0; i < fxa_program_tensor_count(p); i++) {
        fxa_tensor_info t = fxa_program_tensor(p, i);
        fxa_view *v = &d->views[i];
        *v = (fxa_view){.data = d->bytes[i], .dtype = t.dtype, .rank = t.rank};
        int64_t step = 1, sum = t_int(rng, -3, 3);
        for (int j = 0; j < t.rank; j++) v->size[j] = t_int(rng, 0, 20) ? t_int(rng, 1, RANGE_SIDE) : 0, v->stride[j] = step, step *= RANGE_SIDE;
        if (t.rank == 1 && t_int(rng, 0, 1)) v->size[0] = RANGE_SIDE * RANGE_SIDE;
        bool sorted = t_int(rng, 0, 1) != 0;
        for (int64_t j = 0; j < (t.rank == 1 ? RANGE_SIDE * RANGE_SIDE : step); j++) {
            int64_t x = sum = sorted ? sum + (t_int(rng, 0, 2) == 0) : t_int(rng, -3, 9);
            switch (t.dtype) {
            case FXA_F64: ((double *)(void *)d->bytes[i])[j] = t_real(rng, -9, 9); break;
            case FXA_F32: ((float *)(void *)d->bytes[i])[j] = (float)t_real(rng, -9, 9); break;
            case FXA_F16:
            case FXA_BF16: ((uint16_t *)(void *)d->bytes[i])[j] = (uint16_t)t_next(rng); break;
            case FXA_I64: ((int64_t *)(void *)d->bytes[i])[j] = t_int(rng, 0, 9) ? x : x << 40; break;
            case FXA_I32: ((int32_t *)(void *)d->bytes[i])[j] = (int32_t)x; break;
            case FXA_I16: ((int16_t *)(void *)d->bytes[i])[j] = (int16_t)x; break;
            case FXA_B8: d->bytes[i][j] = x > 0; break;
            default: d->bytes[i][j] = (uint8_t)x; break;
            }
        }
        d->known[i] = fxa_tensor_scan(v);
        if (t_int(rng, 0, 2) == 0) d->known[i].view = NULL;
        if (t_int(rng, 0, 5) == 0) d->known[i] = (fxa_tensor_range){.view = v};
    }
}

TEST(random_everything) {
    fxa_context *ctx = NULL;
    fxa_error err;
    t_rng rng = {t_seed() + 3};
    range_data *d = calloc(1, sizeof *d);
    int decided = 0, decidable = 0;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(3000) && t_failures < 10; i++) {
        uint8_t tape[160];
        size_t n = (size_t)t_int(&rng, 16, (int64_t)sizeof tape);
        for (size_t j = 0; j < n; j++) tape[j] = (uint8_t)t_next(&rng);
        fxa_program *p = gen_program(ctx, tape, n, 0);
        T_REQUIRE(p != NULL);
        range_fill(d, p, &rng);
        for (int j = 0; j < 3; j++) {
            fxa_box box = range_random_box(&rng);
            bool params = t_int(&rng, 0, 3) != 0, tensors = t_int(&rng, 0, 3) != 0;
            fxa_tile got = fxa_program_classify(p, &box, params ? d->params : NULL, tensors ? d->known : NULL);
            fxa_tile truth = brute_class(p, &box, d->params, d->views, range_scores, 3);
            decided += got != FXA_TILE_MIXED;
            decidable += truth != FXA_TILE_MIXED;
            if (got != FXA_TILE_MIXED && got != truth) {
                T_FAIL("%s, truly %s\n", range_name(got), range_name(truth));
                range_show(p, &box);
            }
        }
        fxa_program_destroy(p);
    }
    printf("  decided %d of %d\n", decided, decidable);
    T_CHECK(decided > decidable / 2);
    free(d);
    fxa_context_destroy(ctx);
}

/* ---- Int ranges of single nodes ------------------------------------------------------------------------------------------- */

TEST(int_range) {
    fxa_context *ctx = NULL;
    fxa_error err;
    t_rng rng = {t_seed() + 4};
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(1000) && t_failures < 10; i++) {
        fxa_builder *b = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        range_make m = {b, &rng};
        fxa_program *p = range_finish(b, range_any_bool(&m, 2));
        T_REQUIRE(p != NULL);
        fxa_box box = range_random_box(&rng);
        fxa__val *vals = malloc((size_t)p->n_nodes * sizeof *vals);
        fxa__env env = {0};
        for (int j = 0; j < 20; j++) {
            for (int k = FXA_INPUT_B; k <= FXA_INPUT_K_LEN; k++) env.coord[k] = (int32_t)t_int(&rng, box.lo[k], box.hi[k]);
            fxa__program_eval(p, &env, vals);
            for (int32_t node = 0; node < p->n_nodes; node++) {
                int64_t lo, hi;
                bool known = fxa__program_int_range(p, node, &box, NULL, NULL, &lo, &hi);
                T_CHECK(known == (p->nodes[node].type != FXA_FLOAT));
                if (known && (vals[node].i < lo || vals[node].i > hi)) {
                    T_FAIL("%d is not in %lld..%lld\n", vals[node].i, (long long)lo, (long long)hi);
                    range_show(p, &box);
                }
            }
        }
        free(vals);
        fxa_program_destroy(p);
    }
    fxa_context_destroy(ctx);
}

/* ---- Limits ----------------------------------------------------------------------------------------------------------------- */

/* A hundred bounds on as many forms, and a program that does not fit on the stack: right, and MIXED without memory. */
TEST(large) {
    fail_alloc alloc = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&alloc);
    T_REQUIRE(ctx != NULL);
    for (int n = 1; n <= 400; n = n < 20 ? n + 1 : n * 2) {
        fxa_builder *b = NULL;
        fxa_program *p;
        fxa_error err;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K), mask = fxa_builder_bool(b, 1);
        for (int i = 1; i <= n; i++) { /* q * i - k * (i + 1) <= 0, true where q <= k; the last one is q > k */
            fxa_value x = fxa_builder_op2(b, FXA_OP_MUL, q, fxa_builder_int(b, i));
            x = fxa_builder_op2(b, FXA_OP_SUB, x, fxa_builder_op2(b, FXA_OP_MUL, k, fxa_builder_int(b, i + 1)));
            mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_LE, x, fxa_builder_int(b, 0)));
        }
        mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_LT, k, q));
        p = range_finish(b, mask);
        T_REQUIRE(p != NULL);
        fxa_box below = brute_box(0, 0, 10, 20, 30, 40, 50, 50), above = brute_box(0, 0, 41, 50, 30, 40, 50, 50);
        size_t before = alloc.calls;
        T_INT(fxa_program_classify(p, &below, NULL, NULL), FXA_TILE_EMPTY);
        fxa_tile got = fxa_program_classify(p, &above, NULL, NULL), truth = brute_class(p, &above, NULL, NULL, range_scores, 1);
        T_CHECK(got == FXA_TILE_MIXED || got == truth);
        T_INT(alloc.calls != before, fxa_program_node_count(p) - 1 > FXA__SMALL_NODES); /* less the score */
        if (alloc.calls != before) {
            fail_alloc_arm(&alloc, 1, true);
            T_INT(fxa_program_classify(p, &below, NULL, NULL), FXA_TILE_MIXED);
            fail_alloc_arm(&alloc, 0, false);
        }
        fxa_program_destroy(p);
    }
    fxa_context_destroy(ctx);
    T_INT(alloc.blocks, 0);
    T_INT(alloc.mistakes, 0);
}

TEST(odd_calls) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    fxa_program *p = range_parse(ctx, "mask = k <= q"), *d = NULL;
    T_REQUIRE(p != NULL);
    fxa_box box = brute_box(0, 0, 5, 4, 0, 9, 9, 9); /* no q at all */
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_EMPTY);
    T_INT(fxa_program_classify(NULL, &box, NULL, NULL), FXA_TILE_FULL);
    T_INT(fxa_program_classify(p, NULL, NULL, NULL), FXA_TILE_MIXED);
    fxa_box all = {{0, 0, 0, INT32_MIN, INT32_MIN, 0, 0, 0}, {0, 0, 0, INT32_MAX, INT32_MAX, 0, 0, 0}};
    T_INT(fxa_program_classify(p, &all, NULL, NULL), FXA_TILE_MIXED);
    T_OK(fxa_program_derivative(p, &d, &err));
    T_INT(fxa_program_classify(d, &all, NULL, NULL), FXA_TILE_FULL); /* has no mask */
    fxa_program_destroy(p);
    fxa_program_destroy(d);
    fxa_context_destroy(ctx);
}

T_MAIN
