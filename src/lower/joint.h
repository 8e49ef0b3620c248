/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, joint: the new score, the mask, its derivative by the score and all gradients as one program, for backward
 * passes that compute scores again: what value and derivative have in common (the tanh of a soft cap) is one node. The
 * cpu engine's backward is made of it where that saves a function.
 */
#ifndef FXA_LOWER_JOINT_H
#define FXA_LOWER_JOINT_H

#include "../program/program.h"

/* A program of kind FXA__PROGRAM_JOINT: SCORE and MASK of `program`, and of `derivative` DSCORE (the input itself where
 * a user's bprop takes its place: with_dscore false) and the gradients. Every output has the bits that it has in its
 * own program. derivative is that of `program`, or of one that it was made from: they declare the same params and
 * tensors, whose slots stay what they are. */
fxa_status fxa__lower_joint(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                            bool with_dscore, fxa_program **out, fxa_error *err);

/* Whether some function of the score whose value C libraries round (tanh, exp, a power: what is worth keeping) is
 * needed by the value of a joint program and by its derivative or gradients. False too when memory ran out. */
bool fxa__lower_joint_shares(fxa__host *host, const fxa_program *joint);

#endif
