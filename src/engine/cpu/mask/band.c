/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the bounds of q - k that a mask implies. They come from the conjuncts of the mask (lower/conjunct.h) that bound
 * q - k by constants. Causal masks and windows consist of such conjuncts only, whether flags or a program text define
 * them, so their tiles need no range analysis.
 *
 * Conjuncts assume coordinates and lengths in 0..2^30 - 1; classify.c checks this before it uses a band.
 */
#include "../code.h"

#include "../../../base/num.h"
#include "../../../lower/conjunct.h"

/* Adds the bound of q - k that a conjunct of the mask implies to the band. Returns false if the conjunct does not bound
 * q - k by a constant. */
static bool band_take(const fxa__part *part, fxa__cpu_band *band) {
    if ((part->kind != FXA__PART_CAUSAL && part->kind != FXA__PART_WINDOW) || part->bound >= 0) return false;
    int64_t *bound = (part->kind == FXA__PART_CAUSAL ? band->right : band->left) + part->aligned;
    *bound = fxa__min_i64(*bound, part->c);
    return true;
}

/* Marks of a node.
 *   VARIES   its value depends on the row or the key
 *   DARK     range analysis cannot bound its value, which depends on elements, selected by row or key, of a float
 *            tensor or of a tensor of rank > 1
 *   NEEDED   the mask depends on it */
enum { BAND_VARIES = 1, BAND_DARK = 2, BAND_NEEDED = 4 };

/* Returns the marks of node n, given those of its operands. */
static uint8_t band_mark_node(const fxa__node *n, const uint8_t *marks) {
    bool varies = (fxa__node_input(n) & (FXA__OF_ROW | FXA__OF_KEY)) != 0;
    /* an AND or OR is dark only if both operands are dark, because one operand may determine the result */
    bool either = n->type == FXA_BOOL && (n->op == FXA_OP_AND || n->op == FXA_OP_OR);
    int dark = either ? -1 : 0;
    for (int i = 0; i < n->n_args; i++) {
        varies = varies || (marks[n->arg[i]] & BAND_VARIES);
        dark += (marks[n->arg[i]] & BAND_DARK) != 0;
    }
    if (n->op == FXA_OP_LOAD) dark = varies && (n->n_args != 1 || n->type == FXA_FLOAT);
    return (uint8_t)((varies ? BAND_VARIES : 0) | (dark > 0 ? BAND_DARK : 0));
}

static void band_conjuncts(const fxa__conjuncts *c, const uint8_t *marks, fxa__cpu_band *out) {
    for (size_t i = 0; i < c->n; i++) {
        if (band_take(&c->parts[i], out)) continue;
        out->exact = false;
        out->dark = out->dark && (marks[c->parts[i].node] & BAND_DARK);
    }
}

/* Marks the nodes that the mask depends on, counts them, and collects the inputs that they read. */
static void band_needed(const fxa_program *program, int32_t mask, uint8_t *marks, fxa__cpu_band *out) {
    marks[mask] |= BAND_NEEDED;
    for (int32_t i = mask; i >= 0; i--) {
        const fxa__node *n = &program->nodes[i];
        if (!(marks[i] & BAND_NEEDED)) continue;
        out->nodes++;
        if (n->op == FXA_OP_INPUT) out->reads |= 1u << n->imm;
        for (int j = 0; j < n->n_args; j++) marks[n->arg[j]] |= BAND_NEEDED;
    }
}

bool fxa__cpu_band_find(fxa__host *host, const fxa_program *program, fxa__cpu_band *out) {
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    size_t size = (size_t)mask + 1;
    *out = (fxa__cpu_band){{INT64_MAX, INT64_MAX}, {INT64_MAX, INT64_MAX}, .exact = true, .dark = true};
    fxa__conjuncts conjuncts;
    uint8_t *marks = fxa__alloc(host, size);
    bool ok = fxa__lower_conjuncts(host, program, &conjuncts) && marks;
    if (ok) {
        for (int32_t i = 0; i <= mask; i++) marks[i] = band_mark_node(&program->nodes[i], marks);
        band_conjuncts(&conjuncts, marks, out);
        band_needed(program, mask, marks, out);
    }
    fxa__lower_conjuncts_free(host, &conjuncts);
    fxa__free(host, marks, size);
    return ok;
}
