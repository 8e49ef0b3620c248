/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts a mask into a formula over rows of bits, which processes 64 keys at a time. The leaves of a formula:
 *
 *   range   a comparison that is true for a contiguous range of columns; costs a few operations per row
 *   test    a bool that is the same for all columns of a row; costs a few operations per row
 *   part    any other bool; its instructions run for a row only if they read other values than in the previous row
 *
 * For example, if a mask combines a window with a table of blocks, the table is read only for the first row of each
 * block, although the window moves with each row.
 *
 * Operands that depend on a common value per (query, key) pair stay in one part, so that the value is computed once. A
 * bool for which the formula has no capacity left becomes one part.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"

typedef struct formula_state {
    fxa__tape_graph *g;
    /* [program nodes] how each operand of the operator that is being split depends on the node: two bits FORMULA_x per
     * operand; 0 = not at all */
    uint8_t *seen;
    /* number of operators that may still be added to the formula, a SELECT counting as two; at first
     * TAPE_FORMULA_SPLITS */
    int32_t splits;
} formula_state;

static bool formula_is_logic(const fxa__tape_node *n, uint8_t *kind) {
    if (n->type != FXA_BOOL || n->level != TAPE_FULL) return false;
    switch (n->op) {
    case FXA__TAPE_NOT_BOOL: *kind = TAPE_BITS_NOT; return true;
    case FXA_OP_AND: *kind = TAPE_BITS_AND; return true;
    case FXA_OP_OR: *kind = TAPE_BITS_OR; return true;
    case FXA_OP_XOR: *kind = TAPE_BITS_XOR; return true;
    case FXA_OP_SELECT: *kind = TAPE_BITS_SELECT; return true;
    default: return false;
    }
}

/* ---- Values that two operands share ------------------------------------------------------------------------------ */

/* How an operand depends on a node. LOGIC: only through logical operations, so the node may become an operation of the
 * formula. VALUE: the node is computed for every (query, key) pair, because this node or one that reads it is not a
 * logical operation. */
enum { FORMULA_LOGIC = 1, FORMULA_VALUE = 2 };

static bool formula_is_cheap(const fxa__tape_graph *g, int32_t node) {
    fxa__tape_node range;
    bool negated;
    return fxa__tape_graph_range(g, node, &range, &negated);
}

/* Marks the nodes that operand `node` depends on. `shift` selects the operand's bits in `seen`. Operands of level FULL
 * have lower indices than the nodes that read them, so one pass is enough. */
static void formula_mark(formula_state *f, int32_t node, int shift) {
    const fxa__tape_graph *g = f->g;
    f->seen[node] |= (uint8_t)(FORMULA_LOGIC << shift);
    for (int32_t i = node; i >= 0; i--) {
        uint8_t how = f->seen[i] >> shift & (FORMULA_LOGIC | FORMULA_VALUE), kind;
        const fxa__tape_node *n = &g->nodes[i];
        if (!how || n->level != TAPE_FULL) continue;
        bool logic = formula_is_logic(n, &kind);
        if (how == FORMULA_LOGIC && !logic && formula_is_cheap(g, i)) continue;
        if (!logic) f->seen[i] |= (uint8_t)(FORMULA_VALUE << shift);
        for (int k = 0; k < n->n_args; k++)
            if (g->nodes[n->arg[k]].level == TAPE_FULL)
                f->seen[n->arg[k]] |=
                    (uint8_t)((f->seen[i] >> shift & FORMULA_VALUE ? FORMULA_VALUE : FORMULA_LOGIC) << shift);
    }
}

/* Returns true if two operands of n depend on a common value that is computed for every (query, key) pair
 * (FORMULA_VALUE). */
static bool formula_shares(formula_state *f, const fxa__tape_node *n) {
    bool shared = false;
    for (int32_t i = 0; i < f->g->program->n_nodes; i++) f->seen[i] = 0;
    for (int k = 0; k < n->n_args; k++) formula_mark(f, n->arg[k], 2 * k);
    for (int32_t i = 0; i < f->g->program->n_nodes; i++) {
        int values = 0;
        for (int k = 0; k < n->n_args; k++) values += f->seen[i] >> 2 * k & FORMULA_VALUE ? 1 : 0;
        shared = shared || values > 1;
    }
    return shared;
}

/* ---- Terms ------------------------------------------------------------------------------------------------------- */

static void formula_add(formula_state *f, uint8_t kind, int32_t leaf) {
    fxa__tape_graph *g = f->g;
    if (FXA__HOLDS(g->n_terms < TAPE_FORMULA_TERMS))
        g->terms[g->n_terms++] = (fxa__tape_term){kind, leaf};
    else
        g->failed = true;
}

static void formula_leaf(formula_state *f, int32_t node) {
    fxa__tape_graph *g = f->g;
    fxa__tape_node range;
    bool negated = false, is_range = fxa__tape_graph_range(g, node, &range, &negated);
    uint8_t kind = is_range                                   ? TAPE_BITS_RANGE
                   : fxa__tape_has_keys(g->nodes[node].level) ? TAPE_BITS_PART
                                                              : TAPE_BITS_TEST;
    formula_add(f, kind, (int32_t)g->n_roots);
    if (is_range)
        fxa__tape_graph_root(g, FXA__OUT_MASK, -1, -1, fxa__tape_graph_add(g, &range));
    else
        fxa__tape_graph_root(g, FXA__OUT_MASK, -1, node, -1);
    if (is_range && negated) formula_add(f, TAPE_BITS_NOT, -1);
}

/* Appends the terms of the bool `node` to the formula, in postfix order: a stack whose elements are rows of bits (one
 * bit per key) evaluates them. held: height of the stack before these terms. The recursion is at most
 * TAPE_FORMULA_SPLITS calls deep, because each call that recurses reduces f->splits. */
static void formula_build(formula_state *f, int32_t node, int held) {
    const fxa__tape_node n = f->g->nodes[node];
    uint8_t kind;
    int32_t cost = n.n_args > 1 ? n.n_args - 1 : 1;
    if (f->g->failed) return;
    if (!formula_is_logic(&n, &kind) || f->splits < cost || held + n.n_args > TAPE_FORMULA_ROWS ||
        formula_shares(f, &n)) {
        formula_leaf(f, node);
        return;
    }
    f->splits -= cost;
    for (int k = 0; k < n.n_args; k++) formula_build(f, n.arg[k], held + k);
    formula_add(f, kind, -1);
}

void fxa__tape_formula_make(fxa__tape_graph *g, int32_t node) {
    size_t size = (size_t)g->program->n_nodes;
    formula_state f = {.g = g, .splits = TAPE_FORMULA_SPLITS};
    f.seen = fxa__alloc(g->host, size);
    if (f.seen)
        formula_build(&f, node, 0);
    else
        g->failed = true;
    fxa__free(g->host, f.seen, size);
}

/* ---- ROW values that a part of the formula reads ----------------------------------------------------------------- */

/* Adds the operand at `place` to fxa__tape.watched for the formula's last part, if the operand is a ROW value (one per
 * row of the tile) and is not there yet. A part is computed again only for rows in which a watched value changes.
 * Returns false if memory is exhausted. */
static bool formula_watch_place(fxa__tape *t, int32_t place) {
    const fxa__tape_part *part = &t->parts[t->n_parts - 1];
    if (place < 0 || t->level[TAPE_FULL].places[place].space != TAPE_ROW) return true;
    for (size_t i = part->watched; i < t->n_watched; i++)
        if (t->watched[i] == place) return true;
    if (!fxa__grow(t->host, &t->watched, &t->watched_capacity, t->n_watched + 1, sizeof *t->watched)) return false;
    t->watched[t->n_watched++] = place;
    return true;
}

/* Adds the ROW values (one per row of the tile) that a tensor access reads to fxa__tape.watched for the formula's last
 * part. A part is computed again only for rows in which a watched value changes. Returns false if out of memory. */
static bool formula_watch_access(fxa__tape *t, const fxa__tape_access *access) {
    bool ok = formula_watch_place(t, access->lo) && formula_watch_place(t, access->hi) &&
              formula_watch_place(t, access->shift);
    for (int i = 0; i < access->rank; i++) ok = ok && formula_watch_place(t, access->index[i]);
    return ok;
}

bool fxa__tape_formula_watch(fxa__tape *t) {
    const fxa__tape_level *full = &t->level[TAPE_FULL];
    fxa__tape_part *part = &t->parts[t->n_parts - 1];
    bool ok = true;
    for (size_t i = part->ins; ok && i < full->n_ins; i++) {
        const fxa__tape_ins *ins = &full->ins[i];
        if (ins->op == FXA__TAPE_LOAD) {
            ok = formula_watch_access(t, &t->accesses[ins->aux]);
            continue;
        }
        const fxa__tape_info *info = &fxa__tape_infos[ins->op];
        ok = (info->a == '_' || formula_watch_place(t, ins->a)) && (info->b == '_' || formula_watch_place(t, ins->b)) &&
             (info->c == '_' || formula_watch_place(t, ins->c));
    }
    part->n_ins = full->n_ins - part->ins;
    part->n_watched = t->n_watched - part->watched;
    return ok;
}
