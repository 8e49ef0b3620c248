/* SPDX-License-Identifier: Apache-2.0
 *
 * State of a search for out-of-bounds indices, shared by index_check.c (which pairs) and index_pair.c (one pair).
 */
#ifndef FXA_PROBLEM_INDEX_WORK_H
#define FXA_PROBLEM_INDEX_WORK_H

#include "geometry.h"
#include "index_check.h"

typedef struct fxa__index_work {
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__index_walk *walk;
    const fxa_program *program; /* program that is checked: the score program or bprop */
    bool bprop;                 /* true = `program` is bprop */
    fxa__env env, bprop_env;    /* inputs, params and tensors of the score program and of bprop */
    /* Ranges of the values of captured tensors: `ranges` of the tensors of `program`, `mask_ranges` of those of the
     * score program, for its mask. */
    fxa_tensor_range ranges[FXA_MAX_TENSORS], mask_ranges[FXA_MAX_TENSORS];
    fxa__val *vals; /* [n_nodes] values of a program's nodes at one pair */
    int32_t *loads; /* [n_loads] load nodes of `program` */
    int32_t n_loads;
    uint8_t *state;  /* [n_nodes] INDEX_x bits of the nodes at one pair (index_pair.c) */
    bool derives;    /* true = the derivative of the score is computed: backward pass without bprop */
    bool by_score;   /* true = which loads are needed may depend on the score */
    bool mask_loads; /* true if the mask needs a load */
    fxa__seq seq;
    int64_t b, h;
    uint64_t weight, evaluated; /* pairs that one evaluated pair represents, see fxa__miss; node evaluations so far */
    bool stopped;               /* true = the walk has ended early */
} fxa__index_work;

/* Evaluates the program at row q and key k of w->b and w->h, and calls walk->found for each out-of-bounds index of a
 * load that the result needs; sets w->stopped if the caller ends the walk. */
void fxa__index_pair(fxa__index_work *w, int64_t q, int64_t k);

#endif
