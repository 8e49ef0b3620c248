/* SPDX-License-Identifier: Apache-2.0
 *
 * Indices outside their tensors, found before a run: behind FXA_BOUNDS_CHECK, which refuses the first, and behind
 * fxa_bounds_check, which counts them. docs/program.md says which loads count: those that the result needs.
 */
#ifndef FXA_PROBLEM_INDEX_CHECK_H
#define FXA_PROBLEM_INDEX_CHECK_H

#include "bind.h"

/* One index of one load at one pair (local b, h, q, k). */
typedef struct fxa__miss {
    bool bprop; /* of the user's backward program */
    int32_t tensor, axis, index;
    int64_t size;
    int64_t b, h, q, k;
    uint64_t weight; /* so many pairs are like it: batch entries and heads that the program does not see */
} fxa__miss;

/* False ends the walk. */
typedef bool (*fxa__miss_fn)(void *user, const fxa__miss *miss);

typedef struct fxa__index_walk {
    fxa__miss_fn found;
    void *user;
    uint64_t budget;  /* nodes to look at, over all pairs and boxes, or UINT64_MAX */
    uint64_t samples; /* not 0: so many pairs drawn at random instead of all; there is at least one */
    bool gave_up;     /* set: the budget ended it */
    uint64_t sampled; /* set: how many of the samples were found, less where most places have no pair */
} fxa__index_walk;

size_t fxa__index_size(const fxa__problem *p); /* bytes of memory for a walk, a multiple of 8 */
/* Sets *proven if no run of the problem (resolved; `program` is what runs) can have an index outside its tensor where
 * the result needs the element, whatever params and tensors hold. (index_prove.c) */
fxa_status fxa__index_prove(fxa__host *host, const fxa_problem *p, const fxa_program *program, bool *proven,
                            fxa_error *err);
/* What FXA_BOUNDS_CHECK needs of it in front of the workspace, a multiple of FXA_WORKSPACE_ALIGN; 0 without it, and
 * where the problem's indices are inside. */
size_t fxa__index_room(const fxa__problem *p);
/* Tells all misses of a run. Boxes of pairs that range analysis proves to be inside are not looked at. Q or K NULL in
 * the bind: the score counts as 0. */
void fxa__index_walk_all(const fxa__problem *p, const fxa__bind *bind, void *memory, fxa__index_walk *walk);
/* E_BINDING with tensor, axis, index, size and pair of the first miss. */
fxa_status fxa__index_refuse(const fxa__problem *p, const fxa__bind *bind, void *memory, fxa_error *err);

#endif
