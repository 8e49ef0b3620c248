/* SPDX-License-Identifier: Apache-2.0
 *
 * Searches for out-of-bounds indices of loads before a run. With FXA_BOUNDS_CHECK a run fails at the first such index;
 * fxa_bounds_check counts all of them. Only loads whose elements the result needs are considered (docs/program.md).
 */
#ifndef FXA_PROBLEM_INDEX_CHECK_H
#define FXA_PROBLEM_INDEX_CHECK_H

#include "bound_args.h"

/* An out-of-bounds index: the index of a load on one axis, at one pair (b, h, q, k counted from 0 in the tensors). */
typedef struct fxa__miss {
    bool bprop; /* true = the load is in the user-written backward program */
    /* tensor: index of the tensor in the program. axis: axis of the tensor. index: the index that is out of bounds. */
    int32_t tensor, axis, index;
    int64_t size; /* size of the axis */
    int64_t b, h, q, k;
    /* Number of pairs with this index. A program that does not read the head has the same indices in all heads, so only
     * one head is searched, and each of its pairs counts for all heads. The same holds for batch entries. */
    uint64_t weight;
} fxa__miss;

/* Is called for each out-of-bounds index that a search finds. Returns false to end the search. */
typedef bool (*fxa__miss_fn)(void *user, const fxa__miss *miss);

/* A search for out-of-bounds indices. */
typedef struct fxa__index_walk {
    fxa__miss_fn found;
    void *user;
    uint64_t budget;  /* maximum number of node evaluations of the search; UINT64_MAX = no limit */
    uint64_t samples; /* number of random pairs to evaluate (the problem must have a pair); 0 = all pairs */
    bool gave_up;     /* result: true = the search ended early, because the budget was used up */
    /* result: number of random pairs that were evaluated; less than `samples` if most of the drawn pairs are outside
     * the lengths of their sequences */
    uint64_t sampled;
} fxa__index_walk;

/* Returns the bytes of memory that fxa__index_walk_all needs, a multiple of 8. */
size_t fxa__index_size(const fxa__problem *p);
/* Sets *proven to true if every index that the result needs is in bounds in all runs, for any values of params and
 * tensors (index_prove.c). The strides of *p are explicit; `program` is the score program with built-in masks. */
fxa_status fxa__index_prove(fxa__host *host, const fxa_problem *p, const fxa_program *program, bool *proven,
                            fxa_error *err);
/* Returns the bytes that the check of FXA_BOUNDS_CHECK needs in front of the engine's workspace, a multiple of
 * FXA_WORKSPACE_ALIGN. Returns 0 if the flag is not set or all indices are proven in bounds. */
size_t fxa__index_workspace(const fxa__problem *p);
/* Calls walk->found for every out-of-bounds index of a run. `memory` has fxa__index_size bytes. If slot Q or K is NULL,
 * all scores are taken as 0. */
void fxa__index_walk_all(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa__index_walk *walk);
/* Returns FXA_E_BINDING if a load of the run has an out-of-bounds index. The message has the index, the tensor, the
 * axis and its size, and b, h, q and k, where the index is out of bounds. Otherwise returns FXA_OK. */
fxa_status fxa__index_refuse(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa_error *err);

#endif
