/* SPDX-License-Identifier: Apache-2.0
 *
 * Search for out-of-bounds indices of loads before a run. With FXA_BOUNDS_CHECK a run fails at the first such index;
 * fxa_bounds_check counts all. Only loads that the result needs are considered; docs/program.md defines which.
 */
#ifndef FXA_PROBLEM_INDEX_CHECK_H
#define FXA_PROBLEM_INDEX_CHECK_H

#include "bound_args.h"

/* An out-of-bounds index: one axis of one load at one pair (local b, h, q, k). */
typedef struct fxa__miss {
    bool bprop; /* the load is in the user-written backward program */
    int32_t tensor, axis, index;
    int64_t size;
    int64_t b, h, q, k;
    /* Number of pairs that this one represents: where the program reads neither batch entry nor head, the indices are
     * the same in all of them. */
    uint64_t weight;
} fxa__miss;

/* Receives one out-of-bounds index. Returns false to end the walk. */
typedef bool (*fxa__miss_fn)(void *user, const fxa__miss *miss);

typedef struct fxa__index_walk {
    fxa__miss_fn found;
    void *user;
    uint64_t budget;  /* maximum number of node evaluations over all pairs and boxes; UINT64_MAX = no limit */
    uint64_t samples; /* 0 = all pairs; else the number of random pairs to evaluate (the problem must have a pair) */
    bool gave_up;     /* result: true = the walk ended because the budget was used up */
    /* result: number of random pairs evaluated; less than `samples` if most (q, k) exceed the sequence lengths */
    uint64_t sampled;
} fxa__index_walk;

size_t fxa__index_size(const fxa__problem *p); /* returns the bytes of memory that a walk needs, a multiple of 8 */
/* Sets *proven to true if every index that the result needs is in bounds in all runs, for any values of params and
 * tensors (index_prove.c). p is resolved; `program` is the program that the problem runs. */
fxa_status fxa__index_prove(fxa__host *host, const fxa_problem *p, const fxa_program *program, bool *proven,
                            fxa_error *err);
/* Returns the bytes that FXA_BOUNDS_CHECK needs in front of the engine's workspace, a multiple of FXA_WORKSPACE_ALIGN;
 * 0 if the flag is not set or all indices are proven in bounds. */
size_t fxa__index_workspace(const fxa__problem *p);
/* Calls walk->found for every out-of-bounds index of a run. `memory` has fxa__index_size bytes. If slot Q or K is NULL,
 * scores count as 0. */
void fxa__index_walk_all(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa__index_walk *walk);
/* Returns FXA_E_BINDING if an index is out of bounds, with tensor, axis, index, size and pair of the first one; else
 * FXA_OK. */
fxa_status fxa__index_refuse(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa_error *err);

#endif
