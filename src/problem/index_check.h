/* SPDX-License-Identifier: Apache-2.0
 *
 * Search for out-of-bounds indices before a run. FXA_BOUNDS_CHECK refuses the first one; fxa_bounds_check counts them.
 * Only loads that the result needs are considered; docs/program.md defines them.
 */
#ifndef FXA_PROBLEM_INDEX_CHECK_H
#define FXA_PROBLEM_INDEX_CHECK_H

#include "bound_args.h"

/* An out-of-bounds index: one axis of one load at one pair (local b, h, q, k). */
typedef struct fxa__miss {
    bool bprop; /* the load is in the user's backward program */
    int32_t tensor, axis, index;
    int64_t size;
    int64_t b, h, q, k;
    uint64_t weight; /* number of equal pairs in batch entries and heads that the program does not read */
} fxa__miss;

/* Receives one miss. Returns false to end the walk. */
typedef bool (*fxa__miss_fn)(void *user, const fxa__miss *miss);

typedef struct fxa__index_walk {
    fxa__miss_fn found;
    void *user;
    uint64_t budget;  /* limit of node evaluations over all pairs and boxes, or UINT64_MAX */
    uint64_t samples; /* 0 = all pairs; else the number of random pairs to evaluate (the problem must have a pair) */
    bool gave_up;     /* set: the budget ended the walk */
    /* Set: number of samples evaluated. Less than `samples` if most (q, k) exceed the sequence lengths. */
    uint64_t sampled;
} fxa__index_walk;

size_t fxa__index_size(const fxa__problem *p); /* Returns the bytes of memory that a walk needs, a multiple of 8. */
/* index_prove.c. Sets *proven if every index that the result needs is in bounds in all runs, for any values of params
 * and tensors. p is resolved and `program` is its final program. */
fxa_status fxa__index_prove(fxa__host *host, const fxa_problem *p, const fxa_program *program, bool *proven,
                            fxa_error *err);
/* Returns the bytes that FXA_BOUNDS_CHECK needs in front of the engine's workspace, a multiple of FXA_WORKSPACE_ALIGN.
 * 0 without the flag, and if all indices are proven in bounds. */
size_t fxa__index_workspace(const fxa__problem *p);
/* Calls walk->found for every miss of a run. Boxes of pairs that range analysis proves in bounds are skipped. `memory`
 * has fxa__index_size bytes. If the slots Q or K are NULL the score counts as 0. */
void fxa__index_walk_all(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa__index_walk *walk);
/* Returns FXA_E_BINDING with tensor, axis, index, size and pair of the first miss, or FXA_OK if there is none. */
fxa_status fxa__index_refuse(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa_error *err);

#endif
