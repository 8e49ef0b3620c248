/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves masks out of scores, because engines skip tiles that the mask excludes. Three forms are rewritten:
 *
 *     score = c ? x : -inf    becomes  score = x, mask = c       if c does not depend on the score
 *     score = c ? -inf : x    becomes  score = x, mask = !c      if c does not depend on the score
 *     score = -inf            becomes  mask = false
 *
 * Nested selects are removed from the outermost to the innermost. Weights and gradients do not change. Engines use the
 * rewritten program; hash and text of the user's program do not change.
 */
#include "program.h"

#include <math.h>

/* Returns true if a float node is the constant -inf. */
static bool extract_is_minus_inf(const fxa_program *p, int32_t node) {
    return p->nodes[node].op == FXA_OP_CONST && p->nodes[node].f == -INFINITY;
}

int fxa__program_masked_branch(const fxa_program *p, int32_t node) {
    const fxa__node *n = &p->nodes[node];
    if (n->op != FXA_OP_SELECT) return 0;
    return extract_is_minus_inf(p, n->arg[2]) ? 1 : extract_is_minus_inf(p, n->arg[1]) ? 2 : 0;
}

/* If argument 1 or 2 of select `node` is -inf and the condition does not depend on the score, returns the number of the
 * other argument; else 0. */
static int extract_branch(const fxa_program *p, int32_t node, const uint16_t *reads) {
    int branch = fxa__program_masked_branch(p, node);
    return branch && !(reads[p->nodes[node].arg[0]] >> FXA_INPUT_SCORE & 1) ? branch : 0;
}

/* Builds the program with the extracted masks in b. map[n_nodes] is scratch memory. */
static void extract_build(fxa_builder *b, const fxa_program *p, const uint16_t *reads, fxa_value *map) {
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
    if (!fxa__builder_import(b, p, map)) return;
    fxa_value mask = map[fxa__program_output(p, FXA__OUT_MASK)];
    for (int branch; (branch = extract_branch(p, score, reads)) != 0; score = p->nodes[score].arg[branch]) {
        fxa_value c = map[p->nodes[score].arg[0]];
        if (branch == 2) c = fxa_builder_op1(b, FXA_OP_NOT, c);
        mask = fxa_builder_op2(b, FXA_OP_AND, mask, c);
    }
    if (extract_is_minus_inf(p, score)) mask = fxa_builder_bool(b, 0);
    fxa_builder_set_score(b, extract_is_minus_inf(p, score) ? fxa_builder_input(b, FXA_INPUT_SCORE) : map[score]);
    fxa_builder_set_mask(b, mask);
}

fxa_status fxa__program_extract_masks(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err) {
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    size_t n = (size_t)p->n_nodes;
    fxa_builder *b = NULL;
    fxa_value *map = NULL;
    uint16_t *reads = fxa__alloc_array(host, n, sizeof *reads);
    fxa_status status = reads ? FXA_OK : fxa__fail_memory(err, "the mask of a program");
    *out = NULL;
    if (status != FXA_OK) goto done;
    fxa__program_inputs(p, reads);
    if (!extract_branch(p, score, reads) && !extract_is_minus_inf(p, score)) {
        fxa_program_retain(p);
        *out = p;
        goto done;
    }
    map = fxa__alloc_array(host, n, sizeof *map);
    status = map ? fxa__builder_new(host, FXA_PROGRAM_SCORE, &b, err) : fxa__fail_memory(err, "the mask of a program");
    if (status != FXA_OK) goto done;
    extract_build(b, p, reads, map);
    status = fxa_builder_finish(b, out, err);
done:
    fxa_builder_destroy(b);
    fxa__free(host, map, n * sizeof *map);
    fxa__free(host, reads, n * sizeof *reads);
    return status;
}
