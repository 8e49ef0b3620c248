/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of fxa_merge, and the merge of entire tensors in host memory (merge.c). src/plan/merge_device.c merges in
 * device memory.
 */
#ifndef FXA_PROBLEM_MERGE_TENSORS_H
#define FXA_PROBLEM_MERGE_TENSORS_H

#include "problem_private.h"

/* Order of the regions: O_a and LSE_a, which are written, then O_b and LSE_b. */
enum { FXA__MERGE_WRITTEN = 2, FXA__MERGE_TENSORS = 4 };

/* Reads, checks and resolves the caller's arguments. The tensors are not read. */
fxa_status fxa__merge_args_read(const fxa_merge_args *args, fxa_merge_args *out, fxa__region region[FXA__MERGE_TENSORS],
                                fxa_error *err);
/* Merges partial results a and b of resolved arguments; all pointers are host memory. */
void fxa__merge_tensors(const fxa_merge_args *a);

#endif
