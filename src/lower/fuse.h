/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, fuse: fuses a score program and its derivative into one program with the outputs of both: new score, mask,
 * derivative by the score, gradients. A backward pass that recomputes scores evaluates the fused program, so that
 * subexpressions of both value and derivative (the tanh of a soft cap) are evaluated once. The cpu engine uses the
 * fused program if that saves a transcendental function.
 */
#ifndef FXA_LOWER_FUSE_H
#define FXA_LOWER_FUSE_H

#include "../program/program.h"

/* Makes a program of kind FXA__PROGRAM_FUSED with the outputs SCORE and MASK of `program` and the outputs DSCORE and
 * gradients of `derivative`. If with_dscore is false (problems with a user-written backward), DSCORE is the input
 * dscore itself. Every output has the same bits as in its own program. Both programs must declare the same params and
 * tensors, whose indices are unchanged. The caller destroys *out. */
fxa_status fxa__lower_fuse(fxa__host *host, const fxa_program *program, const fxa_program *derivative, bool with_dscore,
                           fxa_program **out, fxa_error *err);

/* Returns true if the score and the backward outputs of a fused program share an expensive function of the score, such
 * as tanh, exp or pow: an operation whose result is not always exact (column `exact` of ops.def). Returns false if
 * memory ran out. */
bool fxa__lower_fused_shares_function(fxa__host *host, const fxa_program *fused);

#endif
