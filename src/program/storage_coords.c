/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces storage coordinates by logical ones: q_row by q and k_row by k, in problems where both are equal (no
 * position offsets). The library then derives masks, ranges, gradient classes and kernels from a program that reads
 * only q and k. The user's program itself, with its hash and text, does not change.
 */
#include "build.h"

static void storage_outputs(fxa_builder *b, const fxa_program *p, const fxa_value *map) {
    if (p->kind == FXA_PROGRAM_SCORE) {
        fxa_builder_set_score(b, map[fxa__program_output(p, FXA__OUT_SCORE)]);
        fxa_builder_set_mask(b, map[fxa__program_output(p, FXA__OUT_MASK)]);
    } else
        fxa_builder_set_dscore(b, map[fxa__program_output(p, FXA__OUT_DSCORE)]);
}

/* Returns the input q or k that replaces n if n is one of `inputs` (q_row, k_row); -1 if n stays. */
static fxa_value storage_given(fxa_builder *b, const fxa__node *n, uint32_t inputs) {
    if (!(fxa__node_input(n) & inputs)) return -1;
    return fxa_builder_input(b, n->imm == FXA_INPUT_Q_ROW ? FXA_INPUT_Q : FXA_INPUT_K);
}

uint32_t fxa__program_storage_inputs(const fxa_program *p) {
    uint32_t reads = 0;
    for (int32_t i = 0; p && i < p->n_nodes; i++) reads |= fxa__node_input(&p->nodes[i]);
    return reads & (1u << FXA_INPUT_Q_ROW | 1u << FXA_INPUT_K_ROW);
}

fxa_status fxa__program_without_storage_inputs(fxa__host *host, fxa_program *p, uint32_t inputs, fxa_program **out,
                                               fxa_error *err) {
    size_t n = p ? (size_t)p->n_nodes : 0;
    fxa_builder *b = NULL;
    *out = p;
    if (!(fxa__program_storage_inputs(p) & inputs)) {
        if (p) fxa_program_retain(p);
        return FXA_OK;
    }
    *out = NULL;
    fxa_value *map = fxa__alloc_array(host, 2 * n, sizeof *map), *given = map + n;
    if (!map) return fxa__fail_memory(err, "a program with its coordinates");
    fxa_status status = fxa__builder_new(host, (fxa_program_kind)p->kind, &b, err);
    if (status == FXA_OK) {
        fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
        for (size_t i = 0; i < n; i++) given[i] = storage_given(b, &p->nodes[i], inputs);
        if (fxa__builder_import_with(b, p, given, map)) storage_outputs(b, p, map);
        status = fxa_builder_finish(b, out, err);
    }
    fxa_builder_destroy(b);
    fxa__free(host, map, 2 * n * sizeof *map);
    return status;
}
