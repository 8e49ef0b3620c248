/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation in f64, which defines the meaning of a program. The arithmetic of an operation is the expression in its
 * row of ops.def; constant folding (simplify.c) calls the same functions. A load out of bounds gives 0. One rule is not
 * in ops.def: == and != of two i64 loads compare the 64-bit elements, not the values saturated to 32 bits.
 */
#include "program.h"

#include "../base/dtype.h"
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"

#define NA 0

/* Defines eval_floats_ID, eval_ints_ID and eval_bools_ID for each row of ops.def. clang-format would join the last line
 * of the macro with the #include below. */
/* clang-format off */
#define OF(type, of, ID, meaning)                                                                                      \
    static type eval_##of##_##ID(type a, type b, type c) {                                                             \
        (void)a, (void)b, (void)c;                                                                                     \
        return (type)(meaning);                                                                                        \
    }
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about)                            \
    OF(double, floats, ID, f64)                                                                                        \
    OF(int32_t, ints, ID, i32)                                                                                         \
    OF(int32_t, bools, ID, b1)
#include "ops.def"

#undef NA
#undef OF

typedef struct eval_row {
    double (*floats)(double a, double b, double c);
    int32_t (*ints)(int32_t a, int32_t b, int32_t c), (*bools)(int32_t a, int32_t b, int32_t c);
} eval_row;

static const eval_row eval_rows[FXA_OP_COUNT] = {
#define OP(code, ID, ...) [code] = {eval_floats_##ID, eval_ints_##ID, eval_bools_##ID},
#include "ops.def"
};
/* clang-format on */

fxa__val fxa__op_eval(uint32_t op, uint32_t result_type, uint32_t type, const fxa__val *x) {
    fxa__val zero = {.f = 0}, y = zero;
    const eval_row *row = &eval_rows[op];
    int arity = fxa__op_info_get(op)->arity;
    FXA__ASSERT(arity > 0 && row->floats);
    fxa__val a = x[0], b = arity > 1 ? x[1] : zero, c = arity > 2 ? x[2] : zero;
    if (type == FXA_FLOAT) {
        /* Operand 0 of a select is a bool also if the select is of floats, so its value is in a.i. */
        double r = row->floats(op == FXA_OP_SELECT ? (double)a.i : a.f, b.f, c.f);
        if (result_type == FXA_FLOAT)
            y.f = r;
        else
            y.i = (int32_t)r; /* no rounding: if the result is an int or bool, r is a 32-bit integer */
        return y;
    }
    int32_t r = type == FXA_INT ? row->ints(a.i, b.i, c.i) : row->bools(a.i, b.i, c.i);
    if (result_type == FXA_FLOAT)
        y.f = r;
    else
        y.i = r;
    return y;
}

bool fxa__view_offset(const fxa_view *view, const int32_t *index, int64_t *offset) {
    int64_t at = 0;
    for (int32_t d = 0; d < view->rank; d++) {
        int64_t size = view->size[d], i = index[d] < 0 ? index[d] + size : index[d], step;
        if (i < 0 || i >= size) return false;
        if (!fxa__mul_i64(i, view->stride[d], &step) || !fxa__add_i64(at, step, &at)) return false;
    }
    *offset = at;
    return true;
}

/* Sets *at to the offset in `view` of the element that a load reads. Returns false if the load is out of bounds. */
static bool eval_place(const fxa_view *view, const fxa__node *load, const fxa__val *vals, int64_t *at) {
    int32_t index[FXA_MAX_RANK];
    for (int i = 0; i < load->n_args; i++) index[i] = vals[load->arg[i]].i;
    return view->data && fxa__view_offset(view, index, at);
}

/* Returns the value of a load; 0 if an index is out of bounds. */
static fxa__val eval_load(const fxa_view *view, const fxa__node *n, const fxa__val *vals) {
    fxa__val y = {.f = 0};
    int64_t at;
    bool inside = eval_place(view, n, vals, &at);
    if (n->type == FXA_FLOAT)
        y.f = inside ? fxa__load_f64(view->data, view->dtype, at) : 0;
    else
        y.i = inside ? fxa__load_i32(view->data, view->dtype, at) : 0;
    return y;
}

/* Returns the value of == or != of two i64 loads. The elements are read again as 64 bits, because `vals` has only
 * 32. */
static fxa__val eval_compare_wide(const fxa_program *p, const fxa__env *env, const fxa__node *n, const fxa__val *vals) {
    int64_t x[2], at;
    for (int k = 0; k < 2; k++) {
        const fxa__node *load = &p->nodes[n->arg[k]];
        const fxa_view *view = &env->tensors[load->imm];
        x[k] = eval_place(view, load, vals, &at) ? fxa__load_i64(view->data, at) : 0;
    }
    return (fxa__val){.i = (x[0] == x[1]) == (n->op == FXA_OP_EQ)};
}

/* Returns the value of an input. */
static fxa__val eval_input(const fxa__env *env, int32_t input) {
    fxa__val y = {.f = 0};
    if (input == FXA_INPUT_SCORE)
        y.f = env->score;
    else if (input == FXA_INPUT_DSCORE)
        y.f = env->dscore;
    else
        y.i = env->coord[input];
    return y;
}

/* Returns the value of a constant or param of type `type`: f for a float, else i. */
static fxa__val eval_number(uint32_t type, double f, int32_t i) {
    fxa__val y = {.f = 0};
    if (type == FXA_FLOAT)
        y.f = f;
    else
        y.i = i;
    return y;
}

void fxa__program_eval(const fxa_program *p, const fxa__env *env, fxa__val *vals) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        fxa__val x[3];
        switch (n->op) {
        case FXA_OP_CONST: vals[i] = eval_number(n->type, n->f, n->imm); break;
        case FXA_OP_INPUT: vals[i] = eval_input(env, n->imm); break;
        case FXA_OP_PARAM: vals[i] = eval_number(n->type, env->params[n->imm], fxa__toint(env->params[n->imm])); break;
        case FXA_OP_LOAD: vals[i] = eval_load(&env->tensors[n->imm], n, vals); break;
        default:
            if (fxa__node_compares_wide(p, n)) {
                vals[i] = eval_compare_wide(p, env, n, vals);
                break;
            }
            for (int k = 0; k < n->n_args; k++) x[k] = vals[n->arg[k]];
            vals[i] = fxa__op_eval(n->op, n->type, p->nodes[n->arg[n->op == FXA_OP_SELECT]].type, x);
        }
    }
}

/* ---- The public call: one query and key, all arguments checked --------------------------------------------------- */

static bool eval_is_int32(double x) { return x == trunc(x) && x >= INT32_MIN && x <= INT32_MAX; }

/* Checks that a view has the declared dtype and rank, valid sizes, and data unless it is empty. */
static fxa_status eval_check_tensor(const fxa__decl *decl, const fxa_view *view, fxa_error *err) {
    bool empty = false;
    if (view->dtype != decl->dtype || view->rank != decl->rank)
        return fxa__fail(err, FXA_E_BINDING, "tensor '%s' is %s[%d] in the program, got %s[%d]", decl->name,
                         fxa_dtype_name((fxa_dtype)decl->dtype), decl->rank, fxa_dtype_name(view->dtype),
                         (int)view->rank);
    for (int d = 0; d < decl->rank; d++) {
        if (view->size[d] < 0)
            return fxa__fail(err, FXA_E_BINDING, "size %d of tensor '%s' is %lld; 0 or more is accepted", d, decl->name,
                             (long long)view->size[d]);
        if (view->size[d] == 0) empty = true;
    }
    if (!view->data && !empty) return fxa__fail(err, FXA_E_BINDING, "tensor '%s' has elements but no data", decl->name);
    return FXA_OK;
}

/* Returns the inputs to read from the caller's array (bit i: fxa_input i): all inputs before FXA_INPUT_HEADS, and each
 * later input that the program reads. The array of a caller compiled with an older header may end at
 * FXA_INPUT_HEADS. */
static uint32_t eval_inputs(const fxa_program *p) {
    uint32_t reads = (1u << FXA_INPUT_HEADS) - 1;
    for (int32_t i = 0; i < p->n_nodes; i++) reads |= fxa__node_input(&p->nodes[i]);
    return reads;
}

fxa_status fxa__env_bind(const fxa_program *p, const double *in, const double *params, const fxa_view *tensors,
                         fxa__env *env, fxa_error *err) {
    if ((p->n_params && !params) || (p->n_tensors && !tensors))
        return fxa__fail(err, FXA_E_BINDING, "the program has %d param%s and %d tensor%s, but their values are NULL",
                         (int)p->n_params, p->n_params == 1 ? "" : "s", (int)p->n_tensors,
                         p->n_tensors == 1 ? "" : "s");
    *env = (fxa__env){.score = in[FXA_INPUT_SCORE], .dscore = in[FXA_INPUT_DSCORE]};
    env->params = params;
    env->tensors = tensors;
    uint32_t reads = eval_inputs(p);
    for (uint32_t i = 0; i < FXA_INPUT_COUNT; i++) {
        if (fxa__input_type(i) != FXA_INT || !(reads >> i & 1)) continue;
        if (!eval_is_int32(in[i]))
            return fxa__fail(err, FXA_E_BINDING, "'%s' is %g; a whole number of 32 bits is accepted",
                             fxa__input_name(i), in[i]);
        env->coord[i] = (int32_t)in[i];
    }
    for (int32_t i = 0; i < p->n_params; i++)
        if (p->params[i].type == FXA_INT && !eval_is_int32(params[i]))
            return fxa__fail(err, FXA_E_BINDING, "param '%s' is an int, got %g; a whole number of 32 bits is accepted",
                             p->params[i].name, params[i]);
    for (int32_t i = 0; i < p->n_tensors; i++) FXA_TRY(eval_check_tensor(&p->tensors[i], &tensors[i], err));
    return FXA_OK;
}

fxa_status fxa_program_eval(const fxa_program *program, const double in[FXA_INPUT_COUNT], const double *params,
                            const fxa_view *tensors, double *value, int *mask, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!program || !in) return fxa__fail(err, FXA_E_ARGUMENT, "the %s NULL", program ? "inputs are" : "program is");
    fxa__env env;
    FXA_TRY(fxa__env_bind(program, in, params, tensors, &env, err));
    size_t n = (size_t)program->n_nodes;
    fxa__val *vals = fxa__alloc_array(program->host, n, sizeof *vals);
    if (!vals) return fxa__fail_memory(err, "the values of a program");
    fxa__program_eval(program, &env, vals);
    bool scores = program->kind == FXA_PROGRAM_SCORE;
    if (value) *value = vals[fxa__program_output(program, scores ? FXA__OUT_SCORE : FXA__OUT_DSCORE)].f;
    if (mask) *mask = scores ? vals[fxa__program_output(program, FXA__OUT_MASK)].i : 1;
    fxa__free(program->host, vals, n * sizeof *vals);
    return fxa__ok(err);
}
