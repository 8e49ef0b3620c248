/* SPDX-License-Identifier: Apache-2.0
 *
 * Penalties: a score that a condition free of the score lowers so far that a mask is meant. `c ? score : -1e9`,
 * `score + (c ? 0 : -1e9)`, `score - 1e9 * float(c)`, `score + (c ? 0 : -inf)`. None is a mask (docs/numerics.md: a row
 * that is lowered whole attends to all of its keys; added -inf is NaN beside +inf), and no engine skips what they rule
 * out. Facts tell of them, so that people hear it. `c ? score : -inf` is a mask (lift_mask.c) and no penalty.
 *
 * Numbers are followed from the score down, through what adds, chooses or scales by a constant, with the sign that they
 * come up with. Every node is visited once: operands come before what uses them.
 */
#include "program.h"

#include <math.h>
#include <string.h>

#define PENALTY_MOST (-10000.0) /* what other systems add for a mask in f16, the least of all that they do */

enum { PENALTY_SMALL = 4096 };
/* How a value comes up in the score. INSIDE: under something else than selects. */
enum { PENALTY_AS_IS = 1, PENALTY_NEGATED = 2, PENALTY_INSIDE = 4 };

typedef struct penalty_walk {
    const fxa_program *p;
    const uint16_t *depends;
    uint8_t *reach;  /* by node */
    uint32_t *found; /* properties */
} penalty_walk;

static uint8_t penalty_flip(uint8_t reach) {
    return (uint8_t)(PENALTY_INSIDE | (reach & PENALTY_AS_IS ? PENALTY_NEGATED : 0) |
                     (reach & PENALTY_NEGATED ? PENALTY_AS_IS : 0));
}

static bool penalty_is_free(const penalty_walk *w, int32_t node) { return !(w->depends[node] >> FXA_INPUT_SCORE & 1u); }

/* Notes a constant that, coming up so, is a number no score has. */
static void penalty_note(const penalty_walk *w, int32_t node, uint8_t reach) {
    const fxa__node *n = &w->p->nodes[node];
    double x = n->type == FXA_FLOAT ? n->f : n->imm;
    bool low = (reach & PENALTY_AS_IS && x <= PENALTY_MOST) || (reach & PENALTY_NEGATED && -x <= PENALTY_MOST);
    if (n->op != FXA_OP_CONST || !low || (isinf(x) && !(reach & PENALTY_INSIDE))) return;
    *w->found |= FXA_PROPERTY_LARGE_NEGATIVE | (isfinite(x) ? FXA_PROPERTY_FINITE_LARGE_NEGATIVE : 0);
}

/* x times or by a constant, which may turn the sign; -1e9 * float(c). */
static void penalty_scale(const penalty_walk *w, const fxa__node *n, uint8_t reach) {
    for (int i = 0; i < 2; i++) {
        const fxa__node *number = &w->p->nodes[n->arg[i]], *x = &w->p->nodes[n->arg[1 - i]];
        if (number->op != FXA_OP_CONST || number->type != FXA_FLOAT || (n->op == FXA_OP_DIV && i == 0)) continue;
        w->reach[n->arg[1 - i]] |= number->f < 0 ? penalty_flip(reach) : (uint8_t)(reach | PENALTY_INSIDE);
        if (n->op == FXA_OP_MUL && x->op == FXA_OP_FLOAT && w->p->nodes[x->arg[0]].type == FXA_BOOL &&
            penalty_is_free(w, x->arg[0]))
            penalty_note(w, n->arg[i], reach);
    }
}

/* max(c ? x : -inf, -1e9): the mask is there, and the number is what it becomes. */
static void penalty_clamp(const penalty_walk *w, const fxa__node *n, uint8_t reach) {
    for (int i = 0; n->op == FXA_OP_MAX && i < 2; i++)
        if (fxa__program_masked_branch(w->p, n->arg[i]) && penalty_is_free(w, w->p->nodes[n->arg[i]].arg[0]))
            penalty_note(w, n->arg[1 - i], (uint8_t)(reach & ~PENALTY_NEGATED));
}

/* Notes what the node is, and passes reach on to its operands. */
static void penalty_visit(const penalty_walk *w, int32_t node) {
    const fxa__node *n = &w->p->nodes[node];
    uint8_t reach = w->reach[node], inside = reach | PENALTY_INSIDE;
    switch (n->op) {
    case FXA_OP_SELECT:
        for (int i = 1; i <= 2; i++) {
            if (penalty_is_free(w, n->arg[0])) penalty_note(w, n->arg[i], reach);
            w->reach[n->arg[i]] |= reach;
        }
        break;
    case FXA_OP_MUL:
    case FXA_OP_DIV: penalty_scale(w, n, reach); break;
    case FXA_OP_NEG: w->reach[n->arg[0]] |= penalty_flip(reach); break;
    case FXA_OP_FLOAT: w->reach[n->arg[0]] |= reach; break; /* of ints */
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MIN:
    case FXA_OP_MAX:
        w->reach[n->arg[0]] |= inside;
        w->reach[n->arg[1]] |= n->op == FXA_OP_SUB ? penalty_flip(reach) : inside;
        penalty_clamp(w, n, inside);
        break;
    default: break;
    }
}

uint32_t fxa__program_penalties(const fxa_program *p, int32_t score, const uint16_t *depends) {
    uint8_t small[PENALTY_SMALL] = {0};
    uint32_t found = 0;
    size_t n = (size_t)score + 1;
    penalty_walk w = {p, depends, small, &found};
    if (n > PENALTY_SMALL) w.reach = fxa__alloc_array(p->host, n, sizeof *w.reach);
    if (w.reach == NULL) return 0;
    if (w.reach != small) memset(w.reach, 0, n);
    w.reach[score] = PENALTY_AS_IS;
    for (int32_t i = score; i >= 0; i--)
        if (w.reach[i]) penalty_visit(&w, i);
    if (w.reach != small) fxa__free(p->host, w.reach, n);
    return found;
}
