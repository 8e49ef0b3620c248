/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of forms with arbitrary 32-bit coefficients over a few coordinates: sums whose terms exceed 61 bits
 * and cancel, quotients by large numbers, differences of those. What does not fit is given up; a result is never wrong,
 * and single points are always decided. Random, compared with brute force.
 */
#include "t.h"

#include "support/oracle/brute.h"

typedef struct far_make {
    fxa_builder *b;
    t_rng *rng;
    bool edge;       /* products with coordinates at the ends of the ints are just below 2^61 */
    int32_t last[3]; /* reused numbers, so that terms cancel */
} far_make;

/* Returns mostly powers of two and their neighbours. */
static int32_t far_draw(t_rng *rng) {
    int64_t x = ((int64_t)1 << t_int(rng, 0, 31)) + t_int(rng, -2, 2) * t_int(rng, 0, 1);
    if (t_int(rng, 0, 9) == 0) x = t_int(rng, INT32_MIN, INT32_MAX);
    if (t_int(rng, 0, 1)) x = -x;
    return (int32_t)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x);
}

static fxa_value far_number(far_make *m) {
    int32_t *last = &m->last[t_int(m->rng, 0, 2)];
    if (m->edge)
        return fxa_builder_int(m->b, (int32_t)(t_int(m->rng, 1 << 28, 1 << 30) * (t_int(m->rng, 0, 2) ? 1 : -1)));
    if (*last == 0 || t_int(m->rng, 0, 2) == 0) *last = far_draw(m->rng);
    int64_t x = t_int(m->rng, 0, 2) ? *last : -(int64_t)*last;
    return fxa_builder_int(m->b, (int32_t)(x > INT32_MAX ? INT32_MIN : x));
}

static fxa_value far_form(far_make *m, int depth);

/* Returns a coordinate, or a rounded value that is not affine. */
static fxa_value far_atom(far_make *m, int depth) {
    static const fxa_op round[] = {FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_FLOORDIV, FXA_OP_SHR, FXA_OP_AND};
    int64_t kind = t_int(m->rng, 0, 5);
    if (depth <= 0 || kind < 3) return fxa_builder_input(m->b, (fxa_input)t_int(m->rng, FXA_INPUT_H, FXA_INPUT_K_LEN));
    fxa_value x = far_form(m, depth - 1);
    if (kind == 3) return fxa_builder_op1(m->b, FXA_OP_ABS, x);
    fxa_value y = far_number(m);
    return fxa_builder_op2(m->b, round[t_int(m->rng, 0, 4)], x, y);
}

/* Returns a sum of up to seven multiples of terms, one more than a form has. */
static fxa_value far_form(far_make *m, int depth) {
    fxa_value sum = t_int(m->rng, 0, 1) ? far_number(m) : fxa_builder_int(m->b, 0);
    int64_t terms = t_int(m->rng, 0, 9) ? t_int(m->rng, 1, 4) : 7;
    for (int64_t i = 0; i < terms; i++) {
        fxa_value x = far_atom(m, depth);
        if (t_int(m->rng, 0, 3)) x = fxa_builder_op2(m->b, FXA_OP_MUL, x, far_number(m));
        sum = fxa_builder_op2(m->b, t_int(m->rng, 0, 1) ? FXA_OP_ADD : FXA_OP_SUB, sum, x);
    }
    return sum;
}

static fxa_value far_mask(far_make *m) {
    static const fxa_op compare[] = {FXA_OP_EQ, FXA_OP_NE, FXA_OP_LT, FXA_OP_LE};
    static const fxa_op other[] = {FXA_OP_MIN, FXA_OP_MAX, FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_AND};
    fxa_value x = far_form(m, (int)t_int(m->rng, 0, 2)), y = far_form(m, (int)t_int(m->rng, 0, 2));
    int64_t kind = t_int(m->rng, 0, 6);
    if (kind < 2) x = fxa_builder_op2(m->b, other[kind], x, y);
    if (kind >= 2 && kind < 5) x = fxa_builder_op2(m->b, other[kind], x, far_number(m));
    if (kind == 6) {
        fxa_value d = far_number(m);
        x = fxa_builder_op2(m->b, FXA_OP_FLOORDIV, x, d);
        y = fxa_builder_op2(m->b, FXA_OP_FLOORDIV, y, d);
        return fxa_builder_op2(m->b, FXA_OP_LE, fxa_builder_op2(m->b, FXA_OP_SUB, x, y), far_number(m));
    }
    if (t_int(m->rng, 0, 3) == 0) y = far_number(m);
    return fxa_builder_op2(m->b, compare[t_int(m->rng, 0, 3)], x, y);
}

/* Returns a box of one to three values per axis, often at the ends of the int range. */
static fxa_tile_bounds far_box(t_rng *rng, bool edge) {
    fxa_tile_bounds box = {{0}, {0}};
    for (int i = FXA_INPUT_H; i <= FXA_INPUT_K_LEN; i++) {
        int64_t n = t_int(rng, 1, 3), place = edge ? 1 : t_int(rng, 0, 4), lo = t_int(rng, -3, 3);
        if (edge) n = 2;
        if (place == 1) lo = (int64_t)INT32_MAX + 1 - n - t_int(rng, 0, 2);
        if (place == 2) lo = INT32_MIN + t_int(rng, 0, 2);
        if (place == 3) lo = far_draw(rng);
        if (lo > INT32_MAX - n) lo = INT32_MAX - n;
        box.lo[i] = (int32_t)lo;
        box.hi[i] = (int32_t)(lo + n - 1);
    }
    return box;
}

static void far_check(const fxa_program *p, const fxa_tile_bounds *box, bool point, int *decided) {
    fxa_tile_class got = fxa_program_classify(p, box, NULL, NULL),
                   truth = brute_class(p, box, NULL, NULL, brute_scores, 1);
    *decided += got != FXA_TILE_MIXED;
    if (got == truth || (got == FXA_TILE_MIXED && !point)) return;
    T_FAIL("%s, truly %s\n", brute_name(got), brute_name(truth));
    brute_show(p, box);
}

CONTEXT_TEST(forms_of_any_size) {
    t_rng rng = {t_seed()};
    int decided = 0, points = 0, boxes = 0;
    for (int i = 0; i < t_scaled(6000) && t_failures < 10; i++) {
        fxa_builder *b = NULL;
        t_program *p = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        far_make m = {.b = b, .rng = &rng, .edge = i % 2};
        fxa_builder_set_mask(b, far_mask(&m));
        T_OK(fxa_builder_finish(b, &p, &err));
        fxa_builder_destroy(b);
        for (int j = 0; j < 3; j++, boxes++) {
            fxa_tile_bounds box = far_box(&rng, m.edge), point = box;
            far_check(p, &box, false, &decided);
            for (int k = FXA_INPUT_H; k <= FXA_INPUT_K_LEN; k++)
                point.lo[k] = point.hi[k] = (int32_t)t_int(&rng, box.lo[k], box.hi[k]);
            far_check(p, &point, true, &points);
        }
    }
    printf("  decided %d of %d\n", decided, boxes);
    T_INT(points, boxes);
}

T_MAIN
