/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks that read the score. Kernels ask a mask once the score is gone, and tiles are skipped before there is one: so
 * those conditions of a mask become a part of the score, `c ? x : -inf`, which gives every pair the same weight and the
 * same gradients. Conditions that do not read the score stay in the mask. It is the other way round of
 * fxa__program_lift_masks.
 */
#include "cuda.h"

#include <math.h>

/* Conditions that must all hold, those that read the score or the others, as one; -1: there are none. */
static fxa_value scored_join(fxa_builder *b, const fxa_program *p, int32_t node, const uint16_t *reads,
                             const fxa_value *map, bool wanted) {
    const fxa__node *n = &p->nodes[node];
    if (n->op == FXA_OP_AND && n->type == FXA_BOOL && (reads[node] >> FXA_INPUT_SCORE & 1)) {
        fxa_value x = scored_join(b, p, n->arg[0], reads, map, wanted);
        fxa_value y = scored_join(b, p, n->arg[1], reads, map, wanted);
        return x < 0 ? y : y < 0 ? x : fxa_builder_op2(b, FXA_OP_AND, x, y);
    }
    return (reads[node] >> FXA_INPUT_SCORE & 1) == wanted ? map[node] : -1;
}

static void scored_build(fxa_builder *b, const fxa_program *p, const uint16_t *reads, fxa_value *map) {
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
    if (!fxa__builder_import(b, p, map)) return;
    fxa_value there = scored_join(b, p, mask, reads, map, true), rest = scored_join(b, p, mask, reads, map, false);
    fxa_value none = fxa_builder_float(b, -INFINITY);
    fxa_builder_set_score(b, fxa_builder_op(b, FXA_OP_SELECT, (const fxa_value[]){there, map[score], none}, 3));
    fxa_builder_set_mask(b, rest < 0 ? fxa_builder_bool(b, 1) : rest);
}

fxa_status fxa__cu_scored(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err) {
    size_t n = (size_t)p->n_nodes;
    fxa_builder *b = NULL;
    uint16_t *reads = fxa__alloc_array(host, n, sizeof *reads);
    fxa_value *map = fxa__alloc_array(host, n, sizeof *map);
    fxa_status status = reads && map ? FXA_OK : fxa__fail_memory(err, "a mask that reads the score");
    *out = NULL;
    if (status == FXA_OK) fxa__program_inputs(p, reads);
    if (status == FXA_OK && !(reads[fxa__program_output(p, FXA__OUT_MASK)] >> FXA_INPUT_SCORE & 1)) {
        fxa_program_retain(p);
        *out = p;
    } else if (status == FXA_OK) {
        status = fxa__builder_new(host, FXA_PROGRAM_SCORE, &b, err);
        if (status == FXA_OK) scored_build(b, p, reads, map);
        if (status == FXA_OK) status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(host, reads, n * sizeof *reads);
    fxa__free(host, map, n * sizeof *map);
    return status;
}
