/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that hold for every engine, with every instruction set, in every float dtype, for few rows and for many
 * (engines use different code for them). RULE(name) { ... } is a test that runs for each of these. A rule is written
 * once for all dtypes: its values are doubles that are stored in the dtype for the call only, and random values are
 * representable in the dtype.
 */
#ifndef FXA_TESTS_RULES_H
#define FXA_TESTS_RULES_H

#include "support/fixtures/attn_data.h"
#include "support/fixtures/isa.h"
#include "t.h"

enum { WIDTH = 2, RULES_MAX = 128 };
static const char *rules_engine;
static fxa_dtype rules_dtype;
static int rows, keys;

/* Problem of a rule, with one head. Programs may use one tensor `t` of rank 1 with `keys` elements, and one param
 * `x`. */
typedef struct rules {
    fxa_context *ctx;
    attn_data a; /* storage and problem */
    double q[RULES_MAX * WIDTH], k[RULES_MAX * WIDTH], v[RULES_MAX * WIDTH], dout[RULES_MAX * WIDTH], dlse[RULES_MAX];
    double o[RULES_MAX * WIDTH], lse[RULES_MAX], max[RULES_MAX], sink;
    double own_t[RULES_MAX], own_x; /* tensor and param of the user-written backward program */
    double dq[RULES_MAX * WIDTH], dk[RULES_MAX * WIDTH], dv[RULES_MAX * WIDTH], dsink;
    double t[RULES_MAX], dt[RULES_MAX], x, dx;
} rules;

static void (*rules_rule)(void);
static const char *rules_name;

/* Runs the rule for one engine, with each size. how: further description for messages. */
static void rules_each_size(const char *how) {
    static const int sizes[][2] = {{3, 4}, {40, 70}};
    static char label[256];
    static int runs;
    for (int d = FXA_F64; d <= FXA_BF16; d++)
        for (int i = 0; i < 2; i++) {
            if (!t_some(runs++)) continue;
            rules_dtype = (fxa_dtype)d, rows = sizes[i][0], keys = sizes[i][1];
            snprintf(label, sizeof label, "%s (%s%s%s, %s, %d rows)", rules_name, rules_engine, *how ? " " : "", how,
                     fxa_dtype_name(rules_dtype), rows);
            t_now = label;
            rules_rule();
        }
    t_now = rules_name;
}

/* Runs the rule for every engine, and for cpu with each instruction set that the machine has. */
static void rules_each(void (*rule)(void)) {
    rules_rule = rule, rules_name = t_now;
    for (size_t e = 0; (rules_engine = engine_here(e)); e++) {
        if (strcmp(rules_engine, "cpu") == 0)
            isa_each(rules_each_size);
        else
            rules_each_size("");
    }
}
/* ---- Storage ----------------------------------------------------------------------------------------------------- */

static fxa_dtype rules_row_dtype(void) { return rules_dtype == FXA_F64 ? FXA_F64 : FXA_F32; }
/* Returns x rounded to the dtype of LSE and row maximum. */
__attribute__((unused)) static double rules_row_value(double x) { return attn_round(rules_row_dtype(), x); }

static double *rules_slot(rules *r, fxa_slot slot) {
    double *const of[] = {r->q,    r->k,  r->v,  r->o,  r->lse,   r->max,   r->dout,
                          r->dlse, r->dq, r->dk, r->dv, &r->sink, &r->dsink};
    return of[slot];
}

/* Returns the tolerance for a sum of about `rows` terms: a unit for each, plus the rounding of the compared value. */
__attribute__((unused)) static double rules_allowed(double want) {
    double unit = rules_dtype == FXA_F64 ? 0x1p-53 : 0x1p-24;
    double stored = rules_dtype == FXA_F16 ? 0x1p-10 : rules_dtype == FXA_BF16 ? 0x1p-7 : 0;
    return ((8 + rows) * unit + stored) * (1 + fabs(want));
}
#define R_NEAR(got, want) T_NEAR(got, want, rules_allowed(want))

static void rules_start(rules *r) {
    attn_spec s = {.b = 1, .hq = 1, .sq = rows, .sk = keys, .d = WIDTH, .dtype = rules_dtype};
    static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DO, FXA_SLOT_DLSE};
    t_rng rng = {t_seed()};
    fxa_error err;
    memset(r, 0, sizeof *r);
    T_OK(fxa_context_create(NULL, &r->ctx, &err));
    T_OK(attn_data_make(&r->a, r->ctx, &s, t_seed(), &err));
    for (int i = 0; i < 5; i++)
        for (int64_t j = 0; j < attn_tensor_places(&r->a.t[inputs[i]]); j++)
            rules_slot(r, inputs[i])[j] = attn_get(&r->a.t[inputs[i]], j);
    for (int j = 0; j < keys; j++) r->t[j] = t_real(&rng, -1, 1);
}

static void rules_end(rules *r) {
    attn_data_free(&r->a);
    fxa_context_destroy(r->ctx);
}

/* Tests that run for every engine, dtype and size: with data of their own, with data r, with data r and `other`. */
#define RULE_ALONE(name)                                                                                               \
    static void rule_##name(void);                                                                                     \
    TEST(name) { rules_each(rule_##name); }                                                                            \
    static void rule_##name(void)
#define RULE(name)                                                                                                     \
    static void rule_of_##name(rules *r);                                                                              \
    RULE_ALONE(name) {                                                                                                 \
        rules r;                                                                                                       \
        rules_start(&r);                                                                                               \
        rule_of_##name(&r);                                                                                            \
        rules_end(&r);                                                                                                 \
    }                                                                                                                  \
    static void rule_of_##name(rules *r)
#define RULE_PAIR(name, other)                                                                                         \
    static void rule_of_##name(rules *r, rules *other);                                                                \
    RULE_ALONE(name) {                                                                                                 \
        rules r, other;                                                                                                \
        rules_start(&r);                                                                                               \
        rules_start(&other);                                                                                           \
        rule_of_##name(&r, &other);                                                                                    \
        rules_end(&r);                                                                                                 \
        rules_end(&other);                                                                                             \
    }                                                                                                                  \
    static void rule_of_##name(rules *r, rules *other)

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Copies values to storage (`in`) or from storage. */
static void rules_copy(attn_tensor *t, double *values, bool in) {
    for (int64_t i = 0; i < attn_tensor_places(t); i++)
        if (in)
            attn_set(t, i, values[i]);
        else
            values[i] = attn_get(t, i);
}
static void rules_move(rules *r, bool in) {
    for (fxa_slot slot = FXA_SLOT_Q; slot <= FXA_SLOT_DSINKS; slot++)
        rules_copy(&r->a.t[slot], rules_slot(r, slot), in);
    if (r->a.n_tensors) rules_copy(&r->a.tensor[0], r->t, in), rules_copy(&r->a.dtensor[0], r->dt, in);
    if (r->a.n_bprop_tensors) rules_copy(&r->a.bprop_tensor[0], r->own_t, in);
    if (r->a.n_params) rules_copy(&r->a.dparam, &r->dx, in);
}

/* Runs one pass with the program. A backward pass computes every gradient. */
static void rules_pass(rules *r, fxa_pass pass, const char *text, const char *bprop_text) {
    attn_spec s = {.text = text, .bprop_text = bprop_text, .tensor = {{keys}}, .bprop_tensor = {{keys}}};
    uint64_t rng = t_seed();
    fxa_error err;
    T_OK(attn_data_program(&r->a, r->ctx, &s, &rng, &err));
    r->a.problem.flags |= FXA_RETURN_LSE | FXA_RETURN_ROW_MAX;
    r->a.backward_flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_READ_DLSE;
    if (r->a.problem.flags & FXA_SINKS) r->a.backward_flags |= FXA_GRAD_SINKS;
    r->a.params[0] = r->x, r->a.bprop_params[0] = r->own_x;
    rules_move(r, true);
    T_OK(attn_data_run(&r->a, r->ctx, rules_engine, pass, &err));
    rules_move(r, false);
}

static void rules_forward(rules *r, const char *text) { rules_pass(r, FXA_FORWARD, text, NULL); }
static void rules_both(rules *r, const char *text) {
    rules_pass(r, FXA_FORWARD, text, NULL);
    rules_pass(r, FXA_BACKWARD, text, NULL);
}

/* ---- What results are -------------------------------------------------------------------------------------------- */

__attribute__((unused)) static bool rules_all_finite(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabs(x[i]) < INFINITY)) return false;
    return true;
}
__attribute__((unused)) static bool rules_all_nan(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] == x[i]) return false;
    return true;
}
__attribute__((unused)) static bool rules_all_zero(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] != 0) return false;
    return true;
}
__attribute__((unused)) static bool rules_gradients_are_finite(const rules *r) {
    return rules_all_finite(r->dq, rows * WIDTH) && rules_all_finite(r->dk, keys * WIDTH) &&
           rules_all_finite(r->dv, keys * WIDTH) && rules_all_finite(r->dt, keys) && rules_all_finite(&r->dx, 1);
}

#endif
