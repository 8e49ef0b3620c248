/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that every engine keeps, with every instruction set, in every float dtype, for few rows and for many (engines
 * work differently on them).
 * RULE(name) { ... } is a test that runs for each of these. Values are kept as doubles and stored in the dtype for the
 * call alone, so rules are written once; those that are drawn are values of the dtype.
 */
#ifndef FXA_TESTS_RULES_H
#define FXA_TESTS_RULES_H

#include "attn_case.h"
#include "base/dtype.h"
#include "isa.h"
#include "t.h"

enum { WIDTH = 2, RULES_MOST = 128 };
static const char *rules_engine;
static fxa_dtype rules_dtype;
static int rows, keys;

/* One head. Programs may use one tensor `t` of rank 1 with `keys` elements, and one param `x`. */
typedef struct rules {
    fxa_context *ctx;
    fxa_problem p;
    fxa_args args;
    double q[RULES_MOST * WIDTH], k[RULES_MOST * WIDTH], v[RULES_MOST * WIDTH], dout[RULES_MOST * WIDTH],
        dlse[RULES_MOST];
    double o[RULES_MOST * WIDTH], lse[RULES_MOST], max[RULES_MOST], sink;
    double own_t[RULES_MOST], own_x; /* of a user's backward program */
    double dq[RULES_MOST * WIDTH], dk[RULES_MOST * WIDTH], dv[RULES_MOST * WIDTH], dsink;
    double t[RULES_MOST], dt[RULES_MOST], x, dx;
    unsigned char store[FXA_SLOT_DSINK + 1][RULES_MOST * WIDTH * sizeof(double)];
} rules;

static void (*rules_rule)(void);
static const char *rules_name;

/* The rule for one engine, `how` telling more of it. */
static void rules_each_size(const char *how) {
    static const int sizes[][2] = {{3, 4}, {40, 70}};
    static char label[256];
    for (int d = FXA_F64; d <= FXA_BF16; d++)
        for (int i = 0; i < 2; i++) {
            rules_dtype = (fxa_dtype)d, rows = sizes[i][0], keys = sizes[i][1];
            snprintf(label, sizeof label, "%s (%s%s%s, %s, %d rows)", rules_name, rules_engine, *how ? " " : "", how,
                     fxa_dtype_name(rules_dtype), rows);
            t_now = label;
            rules_rule();
        }
    t_now = rules_name;
}

/* For every engine, the cpu engine with each instruction set of the machine. */
static void rules_each(void (*rule)(void)) {
    const char *only = getenv("FXA_TEST_ENGINE");
    rules_rule = rule, rules_name = t_now;
    for (size_t e = 0; (rules_engine = fxa_engine_name(e)); e++) {
        if (only && *only && strcmp(only, rules_engine) != 0) continue;
        if (strcmp(rules_engine, "cpu") == 0)
            isa_each(rules_each_size);
        else
            rules_each_size("");
    }
}
#define RULE(name)                                                                                                     \
    static void rule_##name(void);                                                                                     \
    TEST(name) { rules_each(rule_##name); }                                                                            \
    static void rule_##name(void)

/* ---- Storage ----------------------------------------------------------------------------------------------------- */

static fxa_dtype rules_row_dtype(void) { return rules_dtype == FXA_F64 ? FXA_F64 : FXA_F32; }
static fxa_dtype rules_slot_dtype(fxa_slot slot) {
    bool row = slot == FXA_SLOT_LSE || slot == FXA_SLOT_MAX_ROW || slot == FXA_SLOT_DLSE || slot >= FXA_SLOT_SINK;
    return row ? rules_row_dtype() : rules_dtype;
}
/* What a row of LSE, maximum, ... would hold. */
__attribute__((unused)) static double rules_row_value(double x) { return attn_round(rules_row_dtype(), x); }

static double *rules_slot(rules *r, fxa_slot slot) {
    double *const of[] = {r->q,    r->k,  r->v,  r->o,  r->lse,   r->max,   r->dout,
                          r->dlse, r->dq, r->dk, r->dv, &r->sink, &r->dsink};
    return of[slot];
}
static int rules_slot_count(fxa_slot slot) {
    if (slot >= FXA_SLOT_SINK) return 1;
    return slot == FXA_SLOT_LSE || slot == FXA_SLOT_MAX_ROW || slot == FXA_SLOT_DLSE ? RULES_MOST : RULES_MOST * WIDTH;
}

/* Results of sums of `rows` or so terms, off by a unit each, and by the rounding of what is compared. */
__attribute__((unused)) static double rules_allowed(double want) {
    double unit = rules_dtype == FXA_F64 ? 0x1p-53 : 0x1p-24;
    double stored = rules_dtype == FXA_F16 ? 0x1p-10 : rules_dtype == FXA_BF16 ? 0x1p-7 : 0;
    return ((8 + rows) * unit + stored) * (1 + fabs(want));
}
#define R_NEAR(got, want) T_NEAR(got, want, rules_allowed(want))

static void rules_start(rules *r) {
    t_rng rng = {t_seed()};
    static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DO, FXA_SLOT_DLSE};
    fxa_error err;
    memset(r, 0, sizeof *r);
    T_OK(fxa_context_create(NULL, &r->ctx, &err));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < rules_slot_count(inputs[i]); j++)
            rules_slot(r, inputs[i])[j] = attn_round(rules_slot_dtype(inputs[i]), t_real(&rng, -1, 1));
    for (int j = 0; j < keys; j++) r->t[j] = t_real(&rng, -1, 1);
    r->p = (fxa_problem)FXA_PROBLEM_INIT;
    r->p.b = r->p.hq = 1, r->p.sq = rows, r->p.sk = keys, r->p.d = WIDTH;
    r->p.q.dtype = (uint32_t)rules_dtype;
    r->p.engine = rules_engine;
    r->args = (fxa_args)FXA_ARGS_INIT;
}

static void rules_end(rules *r) { fxa_context_destroy(r->ctx); }

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Into storage, the call, and back. */
static void rules_call(rules *r, fxa_problem *p, fxa_args *args, uint32_t slots) {
    fxa_error err;
    for (fxa_slot slot = FXA_SLOT_Q; slot <= FXA_SLOT_DSINK; slot++) {
        if (!(slots >> slot & 1)) continue;
        args->slot[slot] = r->store[slot];
        for (int i = 0; i < rules_slot_count(slot); i++)
            fxa__store_f64(r->store[slot], rules_slot_dtype(slot), i, rules_slot(r, slot)[i]);
    }
    T_OK(fxa_attention(r->ctx, p, args, &err));
    for (fxa_slot slot = FXA_SLOT_Q; slot <= FXA_SLOT_DSINK; slot++)
        for (int i = 0; (slots >> slot & 1) && i < rules_slot_count(slot); i++)
            rules_slot(r, slot)[i] = fxa__load_f64(r->store[slot], rules_slot_dtype(slot), i);
}

#define RULES_BIT(slot) (1u << FXA_SLOT_##slot)
/* One pass with the program. Backward asks for every gradient there is. */
static void rules_pass(rules *r, fxa_pass pass, const char *text, const char *bprop_text) {
    fxa_error err;
    fxa_program *program = NULL, *bprop = NULL;
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text bprop_part = {"bprop", bprop_text, SIZE_MAX};
    fxa_capture capture = {.size = {keys}, .grad = pass == FXA_BACKWARD}, own_capture = {.size = {keys}};
    const void *tensors[] = {r->t}, *own_tensors[] = {r->own_t};
    void *dtensors[] = {r->dt};
    uint32_t slots = RULES_BIT(Q) | RULES_BIT(K) | RULES_BIT(V) | RULES_BIT(O) | RULES_BIT(LSE);
    config.kind = FXA_PROGRAM_BPROP, config.texts = &bprop_part, config.n_texts = 1;
    T_OK(fxa_program_parse(r->ctx, text, SIZE_MAX, &program, &err));
    if (bprop_text) T_OK(fxa_program_parse_texts(r->ctx, &config, &bprop, &err));
    fxa_problem p = r->p;
    fxa_args args = r->args;
    p.pass = (uint32_t)pass, p.program = program, p.bprop = bprop;
    p.captures = &capture, p.n_captures = args.n_tensors = fxa_program_tensor_count(program);
    args.params = &r->x, args.n_params = fxa_program_param_count(program), args.tensors = tensors;
    if (bprop) {
        p.bprop_captures = &own_capture, p.n_bprop_captures = args.n_bprop_tensors = fxa_program_tensor_count(bprop);
        args.bprop_params = &r->own_x, args.n_bprop_params = fxa_program_param_count(bprop);
        args.bprop_tensors = own_tensors;
    }
    if (p.flags & FXA_SINK) slots |= RULES_BIT(SINK);
    if (pass == FXA_FORWARD) {
        p.flags |= FXA_WANT_LSE | FXA_WANT_MAX;
        slots |= RULES_BIT(MAX_ROW);
    } else {
        p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_LSE | (p.flags & FXA_SINK ? FXA_GRAD_SINK : 0u);
        p.param_grads = args.n_params ? 1 : 0;
        slots |= RULES_BIT(DO) | RULES_BIT(DLSE) | RULES_BIT(DQ) | RULES_BIT(DK) | RULES_BIT(DV);
        if (p.flags & FXA_SINK) slots |= RULES_BIT(DSINK);
        args.dtensors = dtensors, args.n_dtensors = args.n_tensors;
        args.dparams = &r->dx, args.n_dparams = args.n_params;
    }
    rules_call(r, &p, &args, slots);
    fxa_program_destroy(program);
    fxa_program_destroy(bprop);
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
