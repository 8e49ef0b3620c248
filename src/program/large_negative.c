/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects large-negative masks: scores that add or select a large negative number in place of a mask, under a
 * condition c that does not depend on the score:
 *
 *     c ? score : -1e9        score + (c ? 0 : -1e9)        score - 1e9 * float(c)        score + (c ? 0 : -inf)
 *
 * Such a condition is not a mask: a row whose keys all have the large negative number attends to all of them, and -inf
 * added to +inf is NaN (docs/numerics.md). Engines therefore cannot skip tiles. The result of the search, FXA_PROPERTY_
 * bits of the program, serves for warnings. `c ? score : -inf` is a mask (extract_mask.c) and is not reported.
 *
 * The search goes from the score to its operands through sums, selects and products with constants, and tracks the sign
 * with which a value enters the score. Every node is visited once, users before operands.
 */
#include "program.h"

#include <math.h>
#include <string.h>

/* constants of at most this value count as large-negative masks; libraries use -10000 in f16, -1e9 in f32 */
#define NEGATIVE_MAX (-10000.0)

enum { NEGATIVE_SMALL = 4096 }; /* maximum nodes of a program that is searched without an allocation */
/* Bits that describe how a value enters the score.
 *   AS_IS     with its own sign
 *   NEGATED   with the opposite sign
 *   INSIDE    through an operation other than select and float() */
enum { NEGATIVE_AS_IS = 1, NEGATIVE_NEGATED = 2, NEGATIVE_INSIDE = 4 };

typedef struct negative_walk {
    const fxa_program *p;
    const uint16_t *depends;
    uint8_t *reach;  /* [nodes] NEGATIVE_ bits; 0 = the node does not enter the score */
    uint32_t *found; /* FXA_PROPERTY_ bits found so far */
} negative_walk;

/* Returns the NEGATIVE_ bits of a negation's operand; `reach`: the bits of the negation. */
static uint8_t negative_flip(uint8_t reach) {
    return (uint8_t)(NEGATIVE_INSIDE | (reach & NEGATIVE_AS_IS ? NEGATIVE_NEGATED : 0) |
                     (reach & NEGATIVE_NEGATED ? NEGATIVE_AS_IS : 0));
}

/* Returns true if the node does not depend on the score. */
static bool negative_is_free(const negative_walk *w, int32_t node) {
    return !(w->depends[node] >> FXA_INPUT_SCORE & 1u);
}

/* If the node is a constant that enters the score as a large negative number, adds FXA_PROPERTY_LARGE_NEGATIVE to
 * *w->found, and for a finite number also FXA_PROPERTY_FINITE_LARGE_NEGATIVE. */
static void negative_note(const negative_walk *w, int32_t node, uint8_t reach) {
    const fxa__node *n = &w->p->nodes[node];
    double x = n->type == FXA_FLOAT ? n->f : n->imm;
    bool low = (reach & NEGATIVE_AS_IS && x <= NEGATIVE_MAX) || (reach & NEGATIVE_NEGATED && -x <= NEGATIVE_MAX);
    if (n->op != FXA_OP_CONST || !low || (isinf(x) && !(reach & NEGATIVE_INSIDE))) return;
    *w->found |= FXA_PROPERTY_LARGE_NEGATIVE | (isfinite(x) ? FXA_PROPERTY_FINITE_LARGE_NEGATIVE : 0);
}

/* Handles a product with a constant, or a quotient by a constant, such as -1e9 * float(condition): passes the NEGATIVE_
 * bits of n to the other operand; a negative constant flips the sign. */
static void negative_scale(const negative_walk *w, const fxa__node *n, uint8_t reach) {
    for (int i = 0; i < 2; i++) {
        const fxa__node *number = &w->p->nodes[n->arg[i]], *x = &w->p->nodes[n->arg[1 - i]];
        if (number->op != FXA_OP_CONST || number->type != FXA_FLOAT || (n->op == FXA_OP_DIV && i == 0)) continue;
        w->reach[n->arg[1 - i]] |= number->f < 0 ? negative_flip(reach) : (uint8_t)(reach | NEGATIVE_INSIDE);
        if (n->op == FXA_OP_MUL && x->op == FXA_OP_FLOAT && w->p->nodes[x->arg[0]].type == FXA_BOOL &&
            negative_is_free(w, x->arg[0]))
            negative_note(w, n->arg[i], reach);
    }
}

/* Detects max(c ? x : -inf, -1e9), where -1e9 replaces the -inf of the mask. */
static void negative_clamp(const negative_walk *w, const fxa__node *n, uint8_t reach) {
    for (int i = 0; n->op == FXA_OP_MAX && i < 2; i++)
        if (fxa__program_masked_branch(w->p, n->arg[i]) && negative_is_free(w, w->p->nodes[n->arg[i]].arg[0]))
            negative_note(w, n->arg[1 - i], (uint8_t)(reach & ~NEGATIVE_NEGATED));
}

/* Passes a node's NEGATIVE_ bits on to its operands, and records operands that are large negative constants. */
static void negative_visit(const negative_walk *w, int32_t node) {
    const fxa__node *n = &w->p->nodes[node];
    uint8_t reach = w->reach[node], inside = reach | NEGATIVE_INSIDE;
    switch (n->op) {
    case FXA_OP_SELECT:
        for (int i = 1; i <= 2; i++) {
            if (negative_is_free(w, n->arg[0])) negative_note(w, n->arg[i], reach);
            w->reach[n->arg[i]] |= reach;
        }
        break;
    case FXA_OP_MUL:
    case FXA_OP_DIV: negative_scale(w, n, reach); break;
    case FXA_OP_NEG: w->reach[n->arg[0]] |= negative_flip(reach); break;
    case FXA_OP_FLOAT: w->reach[n->arg[0]] |= reach; break; /* float(int) */
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MIN:
    case FXA_OP_MAX:
        w->reach[n->arg[0]] |= inside;
        w->reach[n->arg[1]] |= n->op == FXA_OP_SUB ? negative_flip(reach) : inside;
        negative_clamp(w, n, inside);
        break;
    default: break;
    }
}

uint32_t fxa__program_large_negative(const fxa_program *p, int32_t score, const uint16_t *depends) {
    uint8_t small[NEGATIVE_SMALL] = {0};
    uint32_t found = 0;
    size_t n = (size_t)score + 1;
    negative_walk w = {p, depends, small, &found};
    if (n > NEGATIVE_SMALL) w.reach = fxa__alloc_array(p->host, n, sizeof *w.reach);
    if (w.reach == NULL) return 0;
    if (w.reach != small) memset(w.reach, 0, n);
    w.reach[score] = NEGATIVE_AS_IS;
    for (int32_t i = score; i >= 0; i--)
        if (w.reach[i]) negative_visit(&w, i);
    if (w.reach != small) fxa__free(p->host, w.reach, n);
    return found;
}
