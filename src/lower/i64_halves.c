/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits comparisons of i64 elements into comparisons of their 32-bit halves (i64_halves.h), in one pass in node order.
 * The two half loads of an i64 load are added at its first comparison and shared by later comparisons.
 */
#include "i64_halves.h"

#include "../base/invariant.h"

enum {
    HALVES = 2,          /* halves of an i64 */
    HALVES_MAX_ADDED = 6 /* maximum number of nodes added for a comparison: two halves of two loads, two comparisons */
};

typedef struct halves_work {
    const fxa_program *p;
    fxa__node *nodes; /* [n] nodes of the new program */
    int32_t n;
    int32_t *map;  /* [nodes of p] index of the new node that replaces a node of p */
    int32_t *half; /* [nodes of p][HALVES] index of the node that loads a half of an i64; -1 = none yet */
} halves_work;

/* Appends a node to the new program; returns its index. */
static int32_t halves_add(halves_work *w, const fxa__node *n) {
    w->nodes[w->n] = *n;
    return w->n++;
}

/* Returns the node that loads half `which` of an i64 load; adds the node if it does not exist yet. */
static int32_t halves_load(halves_work *w, int32_t load, int which) {
    int32_t *at = &w->half[HALVES * load + which];
    FXA__ASSERT(w->p->nodes[load].op == FXA_OP_LOAD && which >= 0 && which < HALVES);
    if (*at >= 0) return *at;
    fxa__node n = w->nodes[w->map[load]];
    n.half = (uint8_t)(which + 1);
    return *at = halves_add(w, &n);
}

/* Adds one comparison per half and returns the node that combines both comparisons and replaces the comparison n. */
static fxa__node halves_compare(halves_work *w, const fxa__node *n) {
    fxa__node all = {.op = n->op == FXA_OP_EQ ? FXA_OP_AND : FXA_OP_OR, .type = FXA_BOOL, .n_args = HALVES};
    for (int which = 0; which < HALVES; which++) {
        fxa__node one = *n;
        for (int i = 0; i < 2; i++) one.arg[i] = halves_load(w, n->arg[i], which);
        all.arg[which] = halves_add(w, &one);
    }
    return all;
}

static void halves_sweep(halves_work *w) {
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        fxa__node n = w->p->nodes[i];
        if (fxa__node_compares_wide(w->p, &n))
            n = halves_compare(w, &n);
        else
            for (int k = 0; k < n.n_args; k++) {
                FXA__ASSERT(n.arg[k] >= 0 && n.arg[k] < i); /* operands come before the nodes that use them */
                n.arg[k] = w->map[n.arg[k]];
            }
        w->map[i] = halves_add(w, &n);
        for (int which = 0; which < HALVES; which++) w->half[HALVES * i + which] = -1;
    }
}

static void halves_outputs(const halves_work *w, fxa__output *outputs) {
    for (int32_t i = 0; i < w->p->n_outputs; i++) {
        outputs[i] = w->p->outputs[i];
        outputs[i].value = w->map[outputs[i].value];
        for (int32_t k = 0; k < outputs[i].n_index; k++) outputs[i].index[k] = w->map[outputs[i].index[k]];
    }
}

/* Returns the number of i64 comparisons in p. */
static size_t halves_count(const fxa_program *p) {
    size_t n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) n += fxa__node_compares_wide(p, &p->nodes[i]);
    return n;
}

bool fxa__lower_i64_halves(fxa__host *host, const fxa_program *p, fxa__i64_halves *out) {
    size_t n = (size_t)p->n_nodes, compared = halves_count(p);
    *out = (fxa__i64_halves){.program = p, .capacity = n + HALVES_MAX_ADDED * compared};
    if (compared == 0) return true;
    halves_work w = {.p = p};
    out->nodes = w.nodes = fxa__alloc_array(host, out->capacity, sizeof *w.nodes);
    out->outputs = fxa__alloc_array(host, (size_t)p->n_outputs, sizeof *out->outputs);
    out->own.n_outputs = p->n_outputs;
    w.map = fxa__alloc_array(host, n, sizeof *w.map);
    w.half = fxa__alloc_array(host, HALVES * n, sizeof *w.half);
    bool ok = out->nodes && out->outputs && w.map && w.half;
    if (ok) {
        halves_sweep(&w);
        FXA__ASSERT((size_t)w.n <= out->capacity);
        halves_outputs(&w, out->outputs);
        out->own.host = p->host, out->own.kind = p->kind;
        out->own.n_nodes = w.n, out->own.n_params = p->n_params, out->own.n_tensors = p->n_tensors;
        out->own.nodes = out->nodes, out->own.outputs = out->outputs;
        out->own.params = p->params, out->own.tensors = p->tensors;
        out->program = &out->own;
    }
    fxa__free(host, w.map, n * sizeof *w.map);
    fxa__free(host, w.half, HALVES * n * sizeof *w.half);
    return ok;
}

void fxa__lower_i64_halves_free(fxa__host *host, fxa__i64_halves *halves) {
    fxa__free(host, halves->nodes, halves->capacity * sizeof *halves->nodes);
    fxa__free(host, halves->outputs, (size_t)halves->own.n_outputs * sizeof *halves->outputs);
    halves->nodes = NULL;
    halves->outputs = NULL;
}
