/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_program_eval_bounds: all results of a program at one pair of query and key, with error bounds from eval_error.c.
 * The command `fxattn check` compares engines and derivatives with these results.
 */
#include "../base/float_state.h"
#include "eval_error.h"

#include <math.h>

_Static_assert((int)FXA_RESULT_SCORE == (int)FXA__OUT_SCORE && (int)FXA_RESULT_MASK == (int)FXA__OUT_MASK &&
                   (int)FXA_RESULT_DSCORE == (int)FXA__OUT_DSCORE && (int)FXA_RESULT_DPARAM == (int)FXA__OUT_DPARAM &&
                   (int)FXA_RESULT_DTENSOR == (int)FXA__OUT_DLOAD,
               "terms are outputs");

/* Returns the value and error bound of one output. The bound of the gradient of a tensor element is infinite if
 * rounding may change an index of the element. */
static fxa_bounded_result bounds_result(const fxa_program *p, const fxa__output *out, const fxa__env *env,
                                        const fxa__val *vals, const double *error) {
    bool is_float = p->nodes[out->value].type == FXA_FLOAT;
    fxa_bounded_result term = {.kind = out->kind, .slot = out->slot, .offset = -1};
    int32_t index[FXA_MAX_RANK];
    term.value = is_float ? vals[out->value].f : vals[out->value].i;
    term.error = error[out->value];
    if (out->kind != FXA__OUT_DLOAD) return term;
    for (int32_t i = 0; i < out->n_index; i++) {
        index[i] = vals[out->index[i]].i;
        if (error[out->index[i]] != 0) term.error = INFINITY;
    }
    if (!fxa__view_offset(&env->tensors[out->slot], index, &term.offset)) term.offset = -1;
    return term;
}

/* Checks the arguments of fxa_program_eval_bounds. */
static fxa_status bounds_check_args(const fxa_program *program, const double *in, fxa_dtype arithmetic,
                                    const fxa_bounded_result *terms, const size_t *count, fxa_error *err) {
    if (!program || !in) return fxa__fail(err, FXA_E_ARGUMENT, "the %s NULL", program ? "inputs are" : "program is");
    if (!count) return fxa__fail(err, FXA_E_ARGUMENT, "count is NULL");
    if (arithmetic != FXA_F32 && arithmetic != FXA_F64)
        return fxa__fail(err, FXA_E_ARGUMENT, "the arithmetic is %s; f32 and f64 are accepted",
                         fxa_dtype_name(arithmetic));
    if (!terms && *count)
        return fxa__fail(err, FXA_E_ARGUMENT,
                         "terms is NULL and *count is %zu; with 0 the call returns the number of terms", *count);
    return FXA_OK;
}

fxa_status fxa_program_eval_bounds(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                   const double error[FXA_INPUT_COUNT], fxa_dtype arithmetic, const double *params,
                                   const fxa_view *tensors, fxa_bounded_result *terms, size_t *count, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    fxa__env env;
    FXA_TRY(bounds_check_args(program, in, arithmetic, terms, count, err));
    FXA_TRY(fxa__env_bind(program, in, params, tensors, &env, err));
    size_t n = (size_t)program->n_nodes, capacity = *count, bytes = sizeof(double) + sizeof(fxa__val);
    double *errors = fxa__alloc_array(program->host, n, bytes);
    if (!errors) return fxa__fail_memory(err, "the values of a program");
    fxa__val *vals = (fxa__val *)(void *)(errors + n);
    fxa__arithmetic a = fxa__arithmetic_of(arithmetic == FXA_F64);
    fxa__program_eval(program, &env, vals);
    fxa__program_error(program, &a, error ? error[FXA_INPUT_SCORE] : 0, error ? error[FXA_INPUT_DSCORE] : 0, vals,
                       errors);
    *count = (size_t)program->n_outputs;
    for (size_t i = 0; i < *count && i < capacity; i++)
        terms[i] = bounds_result(program, &program->outputs[i], &env, vals, errors);
    fxa__free(program->host, errors, n * bytes);
    return fxa__ok(err);
}
