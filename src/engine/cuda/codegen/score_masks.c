/* SPDX-License-Identifier: Apache-2.0
 *
 * Two passes that move conditions between score and mask:
 * 1. `c ? x : -inf` in the score becomes the condition c of the mask, by which kernels skip tiles.
 * 2. A condition of the mask that reads the score becomes `c ? x : -inf` in the score: kernels skip tiles before they
 *    compute scores, and evaluate the mask after they overwrite scores, so the mask cannot read them.
 * Both forms give every pair (q, k) the same weight and the same gradients.
 */
#include "passes.h"

#include "../../../base/invariant.h"

#include <math.h>

static bool scoremask_reads(const uint16_t *reads, int32_t node) { return reads[node] >> FXA_INPUT_SCORE & 1; }

/* Returns true if a node is an `and` of conditions, at least one of which reads the score. */
static bool scoremask_is_join(const fxa_program *p, const uint16_t *reads, int32_t node) {
    const fxa__node *n = &p->nodes[node];
    return n->op == FXA_OP_AND && n->type == FXA_BOOL && scoremask_reads(reads, node);
}

/* Marks in parts[node of p] the conditions of the mask, a conjunction, and the `and` operations that join them. */
static void scoremask_mark(const fxa_program *p, const uint16_t *reads, int32_t mask, bool *parts) {
    parts[mask] = true;
    for (int32_t i = mask; i >= 0; i--)
        for (int k = 0; parts[i] && scoremask_is_join(p, reads, i) && k < 2; k++) parts[p->nodes[i].arg[k]] = true;
}

/* Returns the conjunction of the mask's conditions (marked in `parts`) that read the score, if `wanted` is true, or of
 * those that do not read it, if `wanted` is false; -1 = there are none. */
static fxa_value scoremask_join(fxa_builder *b, const fxa_program *p, const uint16_t *reads, const bool *parts,
                                const fxa_value *map, bool wanted) {
    fxa_value all = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!parts[i] || scoremask_is_join(p, reads, i) || scoremask_reads(reads, i) != wanted) continue;
        all = all < 0 ? map[i] : fxa_builder_op2(b, FXA_OP_AND, all, map[i]);
    }
    return all;
}

static void scoremask_build(fxa_builder *b, const fxa_program *p, const uint16_t *reads, bool *parts, fxa_value *map) {
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
    if (!fxa__builder_import(b, p, map)) return;
    scoremask_mark(p, reads, mask, parts);
    fxa_value there = scoremask_join(b, p, reads, parts, map, true),
              rest = scoremask_join(b, p, reads, parts, map, false);
    FXA__ASSERT(there >= 0 || fxa__builder_failed(b));
    fxa_value none = fxa_builder_float(b, -INFINITY);
    fxa_builder_set_score(b, fxa_builder_op(b, FXA_OP_SELECT, (const fxa_value[]){there, map[score], none}, 3));
    fxa_builder_set_mask(b, rest < 0 ? fxa_builder_bool(b, 1) : rest);
}

/* Sets *out to a program like p whose mask does not read the score. If the mask of p does not read the score, *out is p
 * with one more reference. */
static fxa_status scoremask_move(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err) {
    size_t n = (size_t)p->n_nodes;
    fxa_builder *b = NULL;
    uint16_t *reads = fxa__alloc_array(host, n, sizeof *reads);
    fxa_value *map = fxa__alloc_array(host, n, sizeof *map);
    bool *parts = fxa__alloc(host, n);
    fxa_status status = reads && map && parts ? FXA_OK : fxa__fail_memory(err, "a mask that reads the score");
    *out = NULL;
    if (status == FXA_OK) fxa__program_inputs(p, reads);
    if (status == FXA_OK && !(reads[fxa__program_output(p, FXA__OUT_MASK)] >> FXA_INPUT_SCORE & 1)) {
        fxa_program_retain(p);
        *out = p;
    } else if (status == FXA_OK) {
        status = fxa__builder_new(host, FXA_PROGRAM_SCORE, &b, err);
        if (status == FXA_OK) scoremask_build(b, p, reads, parts, map);
        if (status == FXA_OK) status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(host, reads, n * sizeof *reads);
    fxa__free(host, map, n * sizeof *map);
    fxa__free(host, parts, n);
    return status;
}

/* Replaces config.program by the program that was made from it. */
static void scoremask_replace(cuda_work *w, fxa_program *made) {
    fxa_program_destroy(w->config.program);
    w->config.program = made;
}

fxa_status fxa__cuda_lift_score_masks(cuda_work *w, fxa_error *err) {
    fxa_program *made = NULL;
    FXA_TRY(fxa__program_extract_masks(w->host, w->config.program, &made, err));
    scoremask_replace(w, made);
    return FXA_OK;
}

fxa_status fxa__cuda_move_mask_to_score(cuda_work *w, fxa_error *err) {
    fxa_program *made = NULL;
    FXA_TRY(scoremask_move(w->host, w->config.program, &made, err));
    scoremask_replace(w, made);
    return FXA_OK;
}
