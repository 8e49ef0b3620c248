/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, parameterize: turns float constants into params that the user does not see (hidden params), so that
 * programs which differ in constants only (1,000 values of a temperature) share one compiled kernel with different
 * arguments. Only the GPU engines do this: GPU engines need about a second to compile a kernel, while the cpu engine
 * compiles a program in microseconds.
 *
 * All finite floats become params except 0, 1, -1, 2, -2 and 0.5, with which code is smaller, and exponents of pow,
 * whose value selects the code. Equal constants share a param. The numbering of params depends on the shape of the
 * program, not on the values.
 */
#ifndef FXA_LOWER_PARAMETERIZE_H
#define FXA_LOWER_PARAMETERIZE_H

#include "../program/program.h"

typedef struct fxa__parameterized {
    /* the new program: kind and tensors as in the original, and one more param for each distinct replaced constant */
    fxa_program *program;
    int32_t n_hidden;
    /* [params of `program`] index of the param in the original program; -1 = a hidden param, which replaces a
     * constant */
    int32_t from[FXA_MAX_PARAMS];
    /* [params of `program`] the constant that a hidden param replaces; unused for other params */
    double value[FXA_MAX_PARAMS];
} fxa__parameterized;

/* Turns the constants of p, a program of any kind, into new params, the hidden params. A run that gives each hidden
 * param its value from out->value has the same results as p, bit for bit. Once the program has FXA_MAX_PARAMS params,
 * further constants stay constants. The caller destroys out->program. */
fxa_status fxa__lower_parameterize(fxa__host *host, const fxa_program *p, fxa__parameterized *out, fxa_error *err);
/* Like fxa__lower_parameterize, but constants whose byte in kept[n_nodes] is 1 stay constants. */
fxa_status fxa__lower_parameterize_except(fxa__host *host, const fxa_program *p, const uint8_t *kept,
                                          fxa__parameterized *out, fxa_error *err);
/* Like fxa__lower_parameterize, but at most max_params constants become params. If the program has more constants,
 * the constants of its first outputs become params, and the others stay constants. */
fxa_status fxa__lower_parameterize_at_most(fxa__host *host, const fxa_program *p, int32_t max_params,
                                           fxa__parameterized *out, fxa_error *err);
/* Writes values[FXA_MAX_PARAMS], the values of the new program's params: those of the original params come from
 * given[], those of the hidden params from program->value. */
void fxa__lower_parameterized_values(const fxa__parameterized *program, const double *given, double *values);

#endif
