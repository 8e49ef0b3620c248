/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, lift: float constants as params, so that programs which differ in numbers only (1,000 values of a
 * temperature) are one program to an engine that compiles: one build, other arguments. For engines of devices, where a
 * build takes a second; a tape of the cpu engine is made in microseconds.
 *
 * Lifted are all finite floats but 0, 1, -1, 2, -2, 0.5, which code is made smaller by, and exponents of a power,
 * whose value decides how it is computed. Numbers that are equal share a param. How params are numbered follows from
 * the shape of the program, not from the values.
 */
#ifndef FXA_LOWER_LIFT_H
#define FXA_LOWER_LIFT_H

#include "../program/program.h"

typedef struct fxa__lifted {
    fxa_program *program; /* of the same kind, with hidden params beside those that it had; tensors keep their slots */
    int32_t n_hidden;
    int32_t from[FXA_MAX_PARAMS]; /* by param of `program`: the slot that it had before; -1: a hidden one */
    double value[FXA_MAX_PARAMS]; /* of hidden ones */
} fxa__lifted;

/* Results are those of p, bit by bit, where the hidden params have their values. A program has FXA_MAX_PARAMS params at
 * most: constants that find no room stay. p may be of any kind; the caller destroys out->program. */
fxa_status fxa__lower_lift(fxa__host *host, const fxa_program *p, fxa__lifted *out, fxa_error *err);
/* The same, where constants also stay whose byte in kept[n_nodes] is set. */
fxa_status fxa__lower_lift_but(fxa__host *host, const fxa_program *p, const uint8_t *kept, fxa__lifted *out,
                               fxa_error *err);
/* The same of `most` constants; those that the first outputs need come first. */
fxa_status fxa__lower_lift_some(fxa__host *host, const fxa_program *p, int32_t most, fxa__lifted *out, fxa_error *err);
/* All params of the lifted program: those given to p, and the hidden ones. values has room for FXA_MAX_PARAMS. */
void fxa__lower_lift_params(const fxa__lifted *lifted, const double *given, double *values);

#endif
