/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of fxa_merge, and the merge of entire tensors in host memory (merge_tensors.c).
 * src/plan/merge_device.c merges tensors in device memory.
 */
#ifndef FXA_PROBLEM_MERGE_TENSORS_H
#define FXA_PROBLEM_MERGE_TENSORS_H

#include "problem_private.h"

/* The regions of fxa_merge are in the order O_a, LSE_a, O_b, LSE_b; the first two are written. */
enum { FXA__MERGE_WRITTEN = 2, FXA__MERGE_TENSORS = 4 };

/* Reads and checks the caller's arguments, and makes all strides in *out explicit. The elements of the tensors are not
 * read. */
fxa_status fxa__merge_args_read(const fxa_merge_args *args, fxa_merge_args *out, fxa__region region[FXA__MERGE_TENSORS],
                                fxa_error *err);
/* Merges the partial results a and b. The arguments come from fxa__merge_args_read; all pointers are host memory. */
void fxa__merge_tensors(const fxa_merge_args *a);

#endif
