/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that are computed once per tile. The q and k of a pair are those of the tile's first pair plus offsets, which
 * are constants in unrolled loops. An int that is affine in q and k is therefore an int of the tile plus a constant,
 * and a comparison of two such ints compares an int of the tile with a constant: one instruction per pair (q, k).
 */
#include "passes.h"

#include "../../../base/invariant.h"

#include <stdio.h>
#include <string.h>

enum { TILE_OVERHANG = 1024 }; /* upper bound of the rows and keys by which a tile extends past the last one */

/* ---- Bounds of ints ---------------------------------------------------------------------------------------------- */

#define TILE_RULE(ID, value) [FXA_OP_##ID] = fxa__ints_##ID,
typedef fxa__interval (*tile_rule)(fxa__interval a, fxa__interval b);
static const tile_rule tile_rules[FXA_OP_COUNT] = {FXA__INT_RULES(TILE_RULE)};

static fxa__interval tile_of_load(const fxa_program *p, const fxa__node *n) {
    switch (p->tensors[n->imm].dtype) {
    case FXA_B8: return fxa__interval_make(0, 1);
    case FXA_U8: return fxa__interval_make(0, UINT8_MAX);
    case FXA_I8: return fxa__interval_make(INT8_MIN, INT8_MAX);
    case FXA_I16: return fxa__interval_make(INT16_MIN, INT16_MAX);
    default: return fxa__interval_any();
    }
}

static fxa__interval tile_bounds(const fxa_program *p, const fxa__node *n, const fxa__interval *bounds) {
    if (n->type == FXA_BOOL) return fxa__interval_make(0, 1);
    if (n->type != FXA_INT) return fxa__interval_any();
    const fxa__interval x = n->n_args > 0 ? bounds[n->arg[0]] : fxa__interval_any();
    const fxa__interval y = n->n_args > 1 ? bounds[n->arg[1]] : x;
    switch (n->op) {
    case FXA_OP_CONST: return fxa__interval_make(n->imm, n->imm);
    case FXA_OP_INPUT: return fxa__interval_make(0, FXA__CUDA_LENGTH + TILE_OVERHANG);
    case FXA_OP_LOAD: return tile_of_load(p, n);
    case FXA_OP_SELECT: return fxa__interval_select(x, y, bounds[n->arg[2]]);
    case FXA_OP_CLAMP: return fxa__ints_MIN(fxa__ints_MAX(x, y), bounds[n->arg[2]]);
    case FXA_OP_INT: return p->nodes[n->arg[0]].type == FXA_BOOL ? fxa__interval_make(0, 1) : fxa__interval_any();
    default: return tile_rules[n->op] ? tile_rules[n->op](x, y) : fxa__interval_any();
    }
}

void fxa__cuda_int_bounds(const fxa_program *p, fxa__interval *out) {
    for (int32_t i = 0; i < p->n_nodes; i++) out[i] = tile_bounds(p, &p->nodes[i], out);
}

/* ---- Affine ints ------------------------------------------------------------------------------------------------- */

enum { TILE_COEF = 1 << 16, TILE_VARYING = 1 << FXA_INPUT_Q | 1 << FXA_INPUT_K };

/* Returns true if an int node is affine in q and k: its value is a multiple of q, plus a multiple of k, plus an int
 * that is equal for all pairs of a tile. */
static bool tile_is_affine(const cuda_work *w, int32_t node) {
    const fxa__linear *f = &w->affine[node];
    uint32_t others = TILE_VARYING | 1u << FXA_INPUT_SCORE | 1u << FXA_INPUT_DSCORE;
    if (w->c->program->nodes[node].type != FXA_INT || (f->nonaffine & FXA__NONAFFINE_READS & others)) return false;
    for (int i = FXA_INPUT_Q; i <= FXA_INPUT_K; i++)
        if (f->coef[i] > TILE_COEF || f->coef[i] < -TILE_COEF) return false;
    return true;
}

static bool tile_varies(const fxa__linear *f) { return f->coef[FXA_INPUT_Q] || f->coef[FXA_INPUT_K]; }

/* Returns true if the affine form of an int holds without modulo 2^32: the int does not depend on q and k, or none of
 * its operations overflows. */
static bool tile_is_exact(const cuda_work *w, int32_t node) {
    const fxa__interval any = fxa__interval_any(), *s = &w->bounds[node];
    return !tile_varies(&w->affine[node]) || s->lo != any.lo || s->hi != any.hi;
}

/* ---- Expressions of pairs ---------------------------------------------------------------------------------------- */

static size_t tile_term(char *text, size_t size, int32_t coef, const char *offset, bool first) {
    if (coef == 0) return 0;
    if (coef == 1 || coef == -1)
        return (size_t)snprintf(text, size, "%s%s", coef < 0 ? (first ? "-" : " - ") : (first ? "" : " + "), offset);
    return (size_t)snprintf(text, size, "%s%d * %s", first ? "" : " + ", (int)coef, offset);
}

/* Writes q * p.q_off + k * p.k_off. */
static void tile_offset(char text[64], int32_t q, int32_t k) {
    size_t n = tile_term(text, 64, q, "p.q_off", true);
    n += tile_term(text + n, 64 - n, k, "p.k_off", n == 0);
    FXA__ASSERT(n < 64);
    if (n == 0) (void)snprintf(text, 64, "0");
}

static void tile_sum(const cuda_work *w, int32_t node, cuda_tile *t) {
    const fxa__linear *f = &w->affine[node];
    char offset[64];
    tile_offset(offset, f->coef[FXA_INPUT_Q], f->coef[FXA_INPUT_K]);
    *t = (cuda_tile){.kind = CUDA_TILE_SUM, .left = node, .right = -1, .row = -1};
    (void)snprintf(t->text, sizeof t->text, "fxa__shift(t%d, %s)", (int)node, offset);
}

/* For the conversion of an affine int to float: makes functions of a pair (q, k) add two floats, the int at the tile's
 * first pair and the difference from there. The sum is exact while both floats are below 2^24. */
static void tile_float(const cuda_work *w, int32_t node, cuda_tile *t) {
    int32_t of = w->c->program->nodes[node].arg[0];
    const fxa__linear *f = &w->affine[of];
    char offset[64];
    if (!tile_is_affine(w, of) || !tile_varies(f) || !tile_is_exact(w, of)) return;
    tile_offset(offset, f->coef[FXA_INPUT_Q], f->coef[FXA_INPUT_K]);
    *t = (cuda_tile){.kind = CUDA_TILE_FLOAT, .left = of, .right = -1, .row = -1};
    (void)snprintf(t->text, sizeof t->text, "__fadd_rn(t%d, (float)(%s))", (int)node, offset);
}

/* For the comparison row < k + c (or <=, or with the two sides swapped), where `row` does not depend on k and c is
 * equal for all pairs of a tile: makes functions of a pair (q, k) compare row - (k0 + c) with k - k0, where k0 is the
 * tile's first key. */
static void tile_by_row(const cuda_work *w, int32_t node, cuda_tile *t) {
    const fxa__node *n = &w->c->program->nodes[node];
    const char *op = n->op == FXA_OP_LT ? "<" : "<=";
    for (int k = 0; k < 2; k++) {
        int32_t row = n->arg[k], key = n->arg[1 - k];
        const fxa__linear *x = &w->affine[row], *y = &w->affine[key];
        if (x->coef[FXA_INPUT_K] || y->coef[FXA_INPUT_Q] || y->coef[FXA_INPUT_K] != 1) continue;
        if (!tile_is_exact(w, key)) continue;
        *t = (cuda_tile){.kind = CUDA_TILE_SUM, .left = key, .right = -1, .row = row};
        if (k == 0)
            (void)snprintf(t->text, sizeof t->text, "fxa__apart(v%d, t%d) %s p.k_off", (int)row, (int)node, op);
        else
            (void)snprintf(t->text, sizeof t->text, "p.k_off %s fxa__apart(v%d, t%d)", op, (int)row, (int)node);
        return;
    }
}

static void tile_compare(const cuda_work *w, int32_t node, cuda_tile *t) {
    const fxa__node *n = &w->c->program->nodes[node];
    const fxa__linear *x = &w->affine[n->arg[0]], *y = &w->affine[n->arg[1]];
    bool equal = n->op == FXA_OP_EQ || n->op == FXA_OP_NE;
    char offset[64];
    if (!tile_is_affine(w, n->arg[0]) || !tile_is_affine(w, n->arg[1]) || !(tile_varies(x) || tile_varies(y))) return;
    if (!equal && !(tile_is_exact(w, n->arg[0]) && tile_is_exact(w, n->arg[1]))) {
        if (!w->backward) tile_by_row(w, node, t);
        return;
    }
    tile_offset(offset, x->coef[FXA_INPUT_Q] - y->coef[FXA_INPUT_Q], x->coef[FXA_INPUT_K] - y->coef[FXA_INPUT_K]);
    *t = (cuda_tile){
        .kind = equal ? CUDA_TILE_EQUAL : CUDA_TILE_DIFFERENCE, .left = n->arg[1], .right = n->arg[0], .row = -1};
    (void)snprintf(t->text, sizeof t->text, "(%s) %s t%d", offset,
                   n->op == FXA_OP_EQ   ? "=="
                   : n->op == FXA_OP_NE ? "!="
                   : n->op == FXA_OP_LT ? "<"
                                        : "<=",
                   (int)node);
}

void fxa__cuda_tile_values(const cuda_work *w, cuda_tile *out) {
    const fxa_program *p = w->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        out[i] = (cuda_tile){.kind = CUDA_TILE_NONE};
        if (!w->need[i]) continue;
        if (n->op >= FXA_OP_EQ && n->op <= FXA_OP_LE && p->nodes[n->arg[0]].type == FXA_INT &&
            !fxa__node_compares_wide(p, n))
            tile_compare(w, i, &out[i]);
        else if (n->op == FXA_OP_FLOAT && p->nodes[n->arg[0]].type == FXA_INT)
            tile_float(w, i, &out[i]);
        else if (n->n_args > 0 && n->op != FXA_OP_LOAD && tile_is_affine(w, i) && tile_varies(&w->affine[i]))
            tile_sum(w, i, &out[i]);
        FXA__ASSERT(strlen(out[i].text) + 1 < sizeof out[i].text); /* snprintf has not cut the text */
    }
}
