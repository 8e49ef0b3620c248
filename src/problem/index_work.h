/* SPDX-License-Identifier: Apache-2.0
 *
 * State of a search for out-of-bounds indices, shared by index_check.c, which chooses the pairs, and index_pair.c,
 * which evaluates one pair.
 */
#ifndef FXA_PROBLEM_INDEX_WORK_H
#define FXA_PROBLEM_INDEX_WORK_H

#include "geometry.h"
#include "index_check.h"

typedef struct fxa__index_work {
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__index_walk *walk;
    /* program that is checked: the score program, or the user-written backward program (bprop) */
    const fxa_program *program;
    bool bprop; /* true = `program` is the user-written backward program */
    /* inputs, params and tensors of the score program and of the user-written backward program */
    fxa__env env, bprop_env;
    /* Ranges of the values of captured tensors: `ranges` for the tensors of `program`, `mask_ranges` for the tensors of
     * the score program, whose mask reads them. */
    fxa_tensor_range ranges[FXA_MAX_TENSORS], mask_ranges[FXA_MAX_TENSORS];
    fxa__val *vals; /* [n_nodes] values of a program's nodes at one pair */
    int32_t *loads; /* [n_loads] load nodes of `program` */
    int32_t n_loads;
    uint8_t *state; /* [n_nodes] INDEX_x bits of the nodes at one pair (index_pair.c) */
    /* true = the derivative of the score is computed: a backward pass without a user-written backward program */
    bool derives;
    bool by_score;   /* true = the score may decide which loads the result needs */
    bool mask_loads; /* true = the mask depends on a load from a tensor of rank 1 or more */
    fxa__seq seq;
    int64_t b, h;
    /* weight: number of pairs that each evaluated pair counts for, see fxa__miss.weight.
     * evaluated: number of node evaluations so far. */
    uint64_t weight, evaluated;
    bool stopped; /* true = the search has ended early */
} fxa__index_work;

/* Evaluates the program at row q and key k of w->b and w->h, and calls walk->found for each out-of-bounds index of a
 * load that the result needs. Sets w->stopped if walk->found returns false. */
void fxa__index_pair(fxa__index_work *w, int64_t q, int64_t k);

#endif
