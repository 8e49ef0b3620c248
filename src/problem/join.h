/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of fxa_merge, checked, and the join of whole tensors on the host (merge.c). Which memory they lie in is
 * for src/plan/join_device.c to know.
 */
#ifndef FXA_PROBLEM_JOIN_H
#define FXA_PROBLEM_JOIN_H

#include "problem_private.h"

/* In the order O_a, LSE_a, which are written, O_b, LSE_b. */
enum { FXA__JOIN_WRITTEN = 2, FXA__JOIN_SIDES = 4 };

/* Reads and resolves a caller's arguments; nothing that they point to is looked at. */
fxa_status fxa__join_read(const fxa_merge_args *args, fxa_merge_args *out, fxa__region region[FXA__JOIN_SIDES],
                          fxa_error *err);
/* Joins, where all pointers are the host's. */
void fxa__join_rows(const fxa_merge_args *a);

#endif
