/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the last reader of each value, after which its register is free, and the value that is computed directly into
 * the caller's row.
 */
#include "tape_code.h"

/* Sets `is_out` of a result's node if nothing else reads the node: its value is then computed last, directly into the
 * caller's row `out`. All other nodes have read the caller's rows before, so `out` may be one of these rows. */
static void last_use_find_out(fxa__tape_graph *g) {
    for (size_t r = 0; r < g->n_roots; r++) {
        const fxa__tape_root *root = &g->roots[r];
        if (root->kind != FXA__OUT_SCORE && root->kind != FXA__OUT_DSCORE) continue;
        fxa__tape_node *n = &g->nodes[root->node];
        bool guard = root->kind == FXA__OUT_DSCORE && !n->zero;
        n->is_out = n->level == TAPE_FULL && n->uses == 1 && !fxa__tape_is_leaf(n) && !guard;
    }
}

void fxa__tape_graph_find_last(fxa__tape_graph *g) {
    last_use_find_out(g);
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].last = -1;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const fxa__tape_node *n = &g->nodes[i];
        for (int k = 0; n->needed && k < n->n_args; k++) {
            fxa__tape_node *x = &g->nodes[n->arg[k]];
            bool later = n->level == TAPE_FULL && x->value && !n->value; /* the derivative reads x */
            if (x->level != n->level || n->is_out || later)
                x->last = TAPE_PINNED;
            else if (x->last < (int32_t)i)
                x->last = (int32_t)i;
        }
    }
    for (size_t r = 0; r < g->n_roots; r++) {
        const fxa__tape_root *root = &g->roots[r];
        if (root->node >= 0) g->nodes[root->node].last = TAPE_PINNED;
        for (int k = 0; root->access >= 0 && k < g->nodes[root->access].n_args; k++)
            g->nodes[g->nodes[root->access].arg[k]].last = TAPE_PINNED;
    }
}
