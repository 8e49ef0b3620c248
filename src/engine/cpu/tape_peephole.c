/* SPDX-License-Identifier: Apache-2.0
 *
 * Several nodes as one operation, for float tapes: a value that only one operation uses need not be stored. Products that
 * are added to round once instead of twice. What is left without users is dropped by the next count.
 */
#include "tape_code.h"

/* The node of an argument, when it is of this operation, of the user's level and used by nothing else. */
static const fxa__tape_node *peephole_inner(const fxa__tape_graph *g, const fxa__tape_node *n, int k, uint32_t op) {
    const fxa__tape_node *x = &g->nodes[n->arg[k]];
    return x->op == op && x->type == FXA_FLOAT && x->level == n->level && x->uses == 1 ? x : NULL;
}

static bool peephole_is_one(const fxa__tape_graph *g, int level, int32_t node) {
    return !fxa__tape_is_row(level, g->nodes[node].level);
}

/* a * b joined with c as one operation; the first factor is a row. */
static void peephole_join(const fxa__tape_graph *g, fxa__tape_node *n, uint32_t op, const fxa__tape_node *product, int32_t c) {
    bool swap = peephole_is_one(g, n->level, product->arg[0]);
    n->op = (uint8_t)op;
    n->n_args = 3;
    n->arg[0] = product->arg[swap];
    n->arg[1] = product->arg[!swap];
    n->arg[2] = c;
}

/* x * y + c, x * y - c, c - x * y */
static void peephole_fma(const fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *a = peephole_inner(g, n, 0, FXA_OP_MUL), *b = peephole_inner(g, n, 1, FXA_OP_MUL);
    if (n->op == FXA_OP_ADD && a) peephole_join(g, n, FXA__TAPE_FMA, a, n->arg[1]);
    else if (n->op == FXA_OP_ADD && b) peephole_join(g, n, FXA__TAPE_FMA, b, n->arg[0]);
    else if (n->op == FXA_OP_SUB && a) peephole_join(g, n, FXA__TAPE_FMS, a, n->arg[1]);
    else if (n->op == FXA_OP_SUB && b) peephole_join(g, n, FXA__TAPE_FNMA, b, n->arg[0]);
}

/* z * tanh(x * y), z * tanh(x / y), with y and z one value each */
static void peephole_tanh(const fxa__tape_graph *g, fxa__tape_node *n) {
    for (int k = 0; k < 2; k++) {
        const fxa__tape_node *tanh = peephole_inner(g, n, k, FXA_OP_TANH);
        if (!tanh || !peephole_is_one(g, n->level, n->arg[!k])) continue;
        const fxa__tape_node *mul = peephole_inner(g, tanh, 0, FXA_OP_MUL), *div = peephole_inner(g, tanh, 0, FXA_OP_DIV);
        const fxa__tape_node *inner = mul ? mul : div;
        if (!inner) continue;
        bool swap = mul && peephole_is_one(g, n->level, mul->arg[0]);
        if (!peephole_is_one(g, n->level, inner->arg[!swap])) continue;
        int32_t scale = n->arg[!k];
        n->op = mul ? FXA__TAPE_TANH_MUL : FXA__TAPE_TANH_DIV;
        n->n_args = 3;
        n->arg[0] = inner->arg[swap];
        n->arg[1] = inner->arg[!swap];
        n->arg[2] = scale;
        return;
    }
}

void fxa__tape_peephole(fxa__tape_graph *g) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        fxa__tape_node *n = &g->nodes[i];
        if (!n->needed || n->type != FXA_FLOAT) continue;
        if (n->op == FXA_OP_ADD || n->op == FXA_OP_SUB) peephole_fma(g, n);
        else if (n->op == FXA_OP_MUL) peephole_tanh(g, n);
    }
    fxa__tape_graph_count(g);
}
