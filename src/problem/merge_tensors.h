/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of fxa_merge, and the merge of full tensors in host memory (merge.c). src/plan/merge_device.c handles
 * device memory.
 */
#ifndef FXA_PROBLEM_MERGE_TENSORS_H
#define FXA_PROBLEM_MERGE_TENSORS_H

#include "problem_private.h"

/* Order of the regions: O_a and LSE_a, which are written, then O_b and LSE_b. */
enum { FXA__MERGE_WRITTEN = 2, FXA__MERGE_TENSORS = 4 };

/* Reads, checks and resolves the caller's arguments. No memory that they point to is read. */
fxa_status fxa__merge_args_read(const fxa_merge_args *args, fxa_merge_args *out, fxa__region region[FXA__MERGE_TENSORS],
                                fxa_error *err);
/* Merges the two sides; all pointers are host memory. */
void fxa__merge_tensors(const fxa_merge_args *a);

#endif
