/* SPDX-License-Identifier: Apache-2.0
 *
 * Choice of the nodes of a printed program that get a let, and of the names of lets.
 */
#include "print_lets.h"

#include <string.h>

enum { PRINT_MAX_DEPTH = 24 };

bool fxa__print_is_cast(const fxa_program *p, int32_t n) {
    const fxa__node *x = &p->nodes[n];
    return x->op == FXA_OP_FLOAT || (x->op == FXA_OP_INT && p->nodes[x->arg[0]].type == FXA_BOOL);
}

bool fxa__print_is_leaf(const fxa_program *p, int32_t n) {
    const fxa__node *x = &p->nodes[n];
    if (x->op == FXA_OP_CONST || x->op == FXA_OP_INPUT || x->op == FXA_OP_PARAM) return true;
    if (x->op != FXA_OP_LOAD) return false;
    for (int i = 0; i < x->n_args; i++) {
        uint8_t op = p->nodes[x->arg[i]].op;
        if (op != FXA_OP_CONST && op != FXA_OP_INPUT && op != FXA_OP_PARAM) return false;
    }
    return true;
}

/* Counts the uses of every node. The uses of a cast count as uses of the operand too, because a cast gets no let for
 * being used more than once. */
static void print_count_uses(const fxa_program *p, fxa__print_mark *mark) {
    for (int32_t i = 0; i < p->n_outputs; i++) {
        mark[p->outputs[i].value].uses++;
        for (int32_t j = 0; j < p->outputs[i].n_index; j++) mark[p->outputs[i].index[j]].uses++;
    }
    for (int32_t n = p->n_nodes - 1; n >= 0; n--)
        for (int i = 0; i < p->nodes[n].n_args; i++)
            mark[p->nodes[n].arg[i]].uses += fxa__print_is_cast(p, n) ? mark[n].uses : 1;
}

void fxa__print_mark_nodes(const fxa_program *p, fxa__print_mark *mark) {
    int32_t lets = 0;
    print_count_uses(p, mark);
    for (int32_t n = 0; n < p->n_nodes; n++) {
        const fxa__node *x = &p->nodes[n];
        fxa__print_mark *m = &mark[n];
        uint8_t deepest = 0;
        m->reads_score = x->op == FXA_OP_INPUT && x->imm == FXA_INPUT_SCORE;
        for (int i = 0; i < x->n_args; i++) {
            const fxa__print_mark *a = &mark[x->arg[i]];
            if (a->reads_score) m->reads_score = true;
            if (a->let < 0 && a->depth > deepest) deepest = a->depth;
        }
        m->depth = (uint8_t)(deepest + 1);
        bool shared = m->uses > 1 && !fxa__print_is_leaf(p, n) && !fxa__print_is_cast(p, n);
        m->let = shared || m->depth > PRINT_MAX_DEPTH ? lets++ : -1;
    }
}

/* Returns true if a param or tensor has the name prefix + digits. */
static bool print_prefix_taken(const fxa_program *p, const char *prefix) {
    size_t n = strlen(prefix);
    for (int32_t i = 0; i < p->n_params + p->n_tensors; i++) {
        const char *name = i < p->n_params ? p->params[i].name : p->tensors[i - p->n_params].name;
        if (strncmp(name, prefix, n) == 0 && name[n] && strspn(name + n, "0123456789") == strlen(name + n)) return true;
    }
    return false;
}

void fxa__print_choose_prefix(const fxa_program *p, char prefix[FXA__PRINT_PREFIX]) {
    _Static_assert(7 * (FXA__PRINT_PREFIX - 1) > FXA_MAX_PARAMS + FXA_MAX_TENSORS, "each name takes one at most");
    for (size_t i = 0;; i++) {
        prefix[0] = "tuvwxyz"[i % 7];
        memset(prefix + 1, '_', i / 7);
        if (!print_prefix_taken(p, prefix)) return;
    }
}
