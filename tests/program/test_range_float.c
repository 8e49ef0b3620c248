/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of float comparisons: a decided class holds for engines that compute in f64 and in f32, with and
 * without FMA. Expressions are kept as a list of steps and evaluated here in both widths.
 */
#include "t.h"

#include "program/program.h"
#include "support/oracle/brute.h"

enum { STEPS = 24 };
typedef struct float_step {
    fxa_op op; /* CONST, INPUT (q or k as a float) or an operation on a stack */
    int input;
    double c;
} float_step;
typedef struct float_tape {
    float_step step[STEPS];
    int n;
} float_tape;

static const fxa_op float_ops2[] = {FXA_OP_ADD, FXA_OP_SUB, FXA_OP_MUL, FXA_OP_DIV, FXA_OP_MIN, FXA_OP_MAX};
static const fxa_op float_ops1[] = {FXA_OP_NEG,  FXA_OP_ABS,     FXA_OP_SQRT, FXA_OP_EXP,
                                    FXA_OP_TANH, FXA_OP_SIGMOID, FXA_OP_LOG,  FXA_OP_FLOOR};

/* Random steps that leave one value. */
static void float_tape_make(t_rng *rng, float_tape *t) {
    int depth = 0;
    t->n = 0;
    while (t->n < STEPS - 4 && (depth != 1 || t_int(rng, 0, 6))) {
        float_step *s = &t->step[t->n++];
        int64_t kind = depth == 0 ? 0 : t_int(rng, 0, depth > 1 ? 3 : 2);
        if (kind == 0 || (kind == 1 && depth < 3)) {
            bool input = t_int(rng, 0, 2) != 0;
            *s = (float_step){.op = input ? FXA_OP_INPUT : FXA_OP_CONST};
            s->input = t_int(rng, 0, 1) ? FXA_INPUT_Q : FXA_INPUT_K;
            s->c = t_int(rng, 0, 1) ? (double)t_int(rng, -8, 8) : t_real(rng, -4, 4);
            depth++;
        } else if (depth > 1) {
            s->op = float_ops2[t_int(rng, 0, 5)];
            depth--;
        } else
            s->op = float_ops1[t_int(rng, 0, 7)];
        if (depth >= 3) {
            t->step[t->n++].op = FXA_OP_ADD;
            depth--;
        }
    }
    while (depth-- > 1) t->step[t->n++].op = FXA_OP_MUL;
}

static double float_op(fxa_op op, double a, double b) {
    switch (op) {
    case FXA_OP_ADD: return a + b;
    case FXA_OP_SUB: return a - b;
    case FXA_OP_MUL: return a * b;
    case FXA_OP_DIV: return a / b;
    case FXA_OP_MIN: return a != a || b != b ? NAN : fmin(a, b);
    case FXA_OP_MAX: return a != a || b != b ? NAN : fmax(a, b);
    case FXA_OP_NEG: return -a;
    case FXA_OP_ABS: return fabs(a);
    case FXA_OP_SQRT: return sqrt(a);
    case FXA_OP_EXP: return exp(a);
    case FXA_OP_TANH: return tanh(a);
    case FXA_OP_SIGMOID: return 1 / (1 + exp(-a));
    case FXA_OP_LOG: return log(a);
    default: return floor(a);
    }
}

/* Evaluates in f64 or f32. For f32 an operation is done in f64 and rounded once more; `off` moves the results of
 * functions by that many steps of 2^-24, as less accurate instructions would. Parts independent of q and k are folded
 * by the builder in f64 and rounded once; *moves is true if the expression depends on q or k. */
static double float_eval(const float_tape *t, int32_t q, int32_t k, bool f32, int off, bool *moves) {
    double stack[STEPS] = {0};
    bool moving[STEPS] = {false};
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const float_step *s = &t->step[i];
        double x = s->op == FXA_OP_CONST ? s->c : s->input == FXA_INPUT_Q ? q : k;
        bool move = s->op == FXA_OP_INPUT, leaf = move || s->op == FXA_OP_CONST;
        if (!leaf) {
            bool two = (s->op >= FXA_OP_ADD && s->op <= FXA_OP_DIV) || s->op == FXA_OP_MIN || s->op == FXA_OP_MAX;
            n -= two ? 2 : 1;
            move = moving[n] || (two && moving[n + 1]);
            double a = stack[n], b = two ? stack[n + 1] : 0;
            x = f32 && move ? float_op(s->op, (float)a, (float)b) : float_op(s->op, a, b);
            if (move && s->op >= FXA_OP_SQRT && s->op < FXA_OP_FLOOR) x *= 1 + off * 0x1p-24;
        }
        moving[n] = move;
        stack[n++] = f32 && move ? (double)(float)x : x;
    }
    *moves = moving[0];
    return stack[0];
}

static fxa_value float_build(fxa_builder *b, const float_tape *t) {
    fxa_value stack[STEPS];
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const float_step *s = &t->step[i];
        fxa_value x;
        if (s->op == FXA_OP_CONST)
            x = fxa_builder_float(b, s->c);
        else if (s->op == FXA_OP_INPUT)
            x = fxa_builder_op1(b, FXA_OP_FLOAT, fxa_builder_input(b, (fxa_input)s->input));
        else if (s->op == FXA_OP_NEG || s->op == FXA_OP_ABS || s->op >= FXA_OP_SQRT)
            x = fxa_builder_op1(b, s->op, stack[--n]);
        else {
            n -= 2;
            x = fxa_builder_op2(b, s->op, stack[n], stack[n + 1]);
        }
        stack[n++] = x;
    }
    return stack[0];
}

/* Compares an expression with its own value at a point of the box, or a value near it: the hardest case. */
CONTEXT_TEST(both_widths) {
    t_rng rng = {t_seed()};
    int decided = 0;
    for (int i = 0; i < t_scaled(6000) && t_failures < 5; i++) {
        float_tape t;
        float_tape_make(&rng, &t);
        int32_t q0 = (int32_t)t_int(&rng, -9, 50), k0 = (int32_t)t_int(&rng, -9, 50);
        int64_t keys = t_int(&rng, 0, 6);
        fxa_tile_bounds box = brute_box(0, 0, q0, q0 + t_int(&rng, 0, 6), k0, k0 + keys, 9, 9);
        int32_t q = (int32_t)t_int(&rng, q0, box.hi[FXA_INPUT_Q]), k = (int32_t)t_int(&rng, k0, box.hi[FXA_INPUT_K]);
        bool strict = t_int(&rng, 0, 1) != 0, moves;
        double limit = float_eval(&t, q, k, t_int(&rng, 0, 1) != 0, 0, &moves);
        if (!moves) continue;
        if (t_int(&rng, 0, 1)) limit *= 1 + (double)t_int(&rng, -3, 3) * 0x1p-22;
        if (t_int(&rng, 0, 2) == 0) limit += t_real(&rng, -3, 3);

        fxa_builder *b = NULL;
        t_program *p = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        fxa_value x = float_build(b, &t), y = fxa_builder_float(b, limit);
        fxa_builder_set_mask(b, fxa_builder_op2(b, strict ? FXA_OP_LT : FXA_OP_LE, x, y));
        T_OK(fxa_builder_finish(b, &p, &err));
        fxa_builder_destroy(b);
        T_REQUIRE(p != NULL);
        fxa_tile_class got = fxa_program_classify(p, &box, NULL, NULL);
        decided += got != FXA_TILE_MIXED;
        for (q = q0; got != FXA_TILE_MIXED && q <= box.hi[FXA_INPUT_Q]; q++)
            for (k = k0; k <= box.hi[FXA_INPUT_K]; k++)
                for (int way = 0; way < 4; way++) { /* f64; f32; f32 with functions slightly high and low */
                    double v = float_eval(&t, q, k, way > 0, way == 2 ? 64 : way == 3 ? -64 : 0, &moves);
                    double edge = way > 0 ? (double)(float)limit : limit;
                    bool mask = strict ? v < edge : v <= edge;
                    if (mask == (got == FXA_TILE_FULL)) continue;
                    T_FAIL("%s, but %.9g against %.9g in way %d at q %d k %d\n", brute_name(got), v, edge, way, q, k);
                    brute_show(p, &box);
                    way = 4, k = q = INT16_MAX;
                }
    }
    printf("  decided %d\n", decided);
    T_CHECK(decided > t_scaled(6000) / 10);
}

T_MAIN
