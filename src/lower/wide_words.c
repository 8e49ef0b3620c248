/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits comparisons of i64 elements into comparisons of their 32-bit halves; see wide_words.h. One pass in node order;
 * the two half loads of a load are added at its first comparison and shared by later ones.
 */
#include "wide_words.h"

/* Halves of an i64; nodes that a comparison adds at most: two halves of two loads, and two comparisons. */
enum { WORDS = 2, WORDS_MAX_ADDED = 6 };

typedef struct words_work {
    const fxa_program *p;
    fxa__node *nodes;
    int32_t n;
    int32_t *map;  /* [nodes of p] the node that replaces it */
    int32_t *word; /* [nodes of p][WORDS] the load of that half; -1 = none yet */
} words_work;

static int32_t words_add(words_work *w, const fxa__node *n) {
    w->nodes[w->n] = *n;
    return w->n++;
}

/* Returns the node that loads half `which` of an i64 load, which is added if it is new. */
static int32_t words_load(words_work *w, int32_t load, int which) {
    int32_t *at = &w->word[WORDS * load + which];
    if (*at >= 0) return *at;
    fxa__node n = w->nodes[w->map[load]];
    n.word = (uint8_t)(which + 1);
    return *at = words_add(w, &n);
}

/* Returns the node that replaces the comparison n; its operands, one comparison per half, are added. */
static fxa__node words_compare(words_work *w, const fxa__node *n) {
    fxa__node all = {.op = n->op == FXA_OP_EQ ? FXA_OP_AND : FXA_OP_OR, .type = FXA_BOOL, .n_args = WORDS};
    for (int which = 0; which < WORDS; which++) {
        fxa__node one = *n;
        for (int i = 0; i < 2; i++) one.arg[i] = words_load(w, n->arg[i], which);
        all.arg[which] = words_add(w, &one);
    }
    return all;
}

static void words_sweep(words_work *w) {
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        fxa__node n = w->p->nodes[i];
        if (fxa__node_compares_wide(w->p, &n))
            n = words_compare(w, &n);
        else
            for (int k = 0; k < n.n_args; k++) n.arg[k] = w->map[n.arg[k]];
        w->map[i] = words_add(w, &n);
        for (int which = 0; which < WORDS; which++) w->word[WORDS * i + which] = -1;
    }
}

static void words_outputs(const words_work *w, fxa__output *outputs) {
    for (int32_t i = 0; i < w->p->n_outputs; i++) {
        outputs[i] = w->p->outputs[i];
        outputs[i].value = w->map[outputs[i].value];
        for (int32_t k = 0; k < outputs[i].n_index; k++) outputs[i].index[k] = w->map[outputs[i].index[k]];
    }
}

/* Returns the number of i64 comparisons. */
static size_t words_count(const fxa_program *p) {
    size_t n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) n += fxa__node_compares_wide(p, &p->nodes[i]);
    return n;
}

bool fxa__lower_wide_words(fxa__host *host, const fxa_program *p, fxa__wide_words *out) {
    size_t n = (size_t)p->n_nodes, compared = words_count(p);
    *out = (fxa__wide_words){.program = p, .capacity = n + WORDS_MAX_ADDED * compared};
    if (compared == 0) return true;
    words_work w = {.p = p};
    out->nodes = w.nodes = fxa__alloc_array(host, out->capacity, sizeof *w.nodes);
    out->outputs = fxa__alloc_array(host, (size_t)p->n_outputs, sizeof *out->outputs);
    out->own.n_outputs = p->n_outputs;
    w.map = fxa__alloc_array(host, n, sizeof *w.map);
    w.word = fxa__alloc_array(host, WORDS * n, sizeof *w.word);
    bool ok = out->nodes && out->outputs && w.map && w.word;
    if (ok) {
        words_sweep(&w);
        words_outputs(&w, out->outputs);
        out->own.host = p->host, out->own.kind = p->kind;
        out->own.n_nodes = w.n, out->own.n_params = p->n_params, out->own.n_tensors = p->n_tensors;
        out->own.nodes = out->nodes, out->own.outputs = out->outputs;
        out->own.params = p->params, out->own.tensors = p->tensors;
        out->program = &out->own;
    }
    fxa__free(host, w.map, n * sizeof *w.map);
    fxa__free(host, w.word, WORDS * n * sizeof *w.word);
    return ok;
}

void fxa__lower_wide_words_free(fxa__host *host, fxa__wide_words *words) {
    fxa__free(host, words->nodes, words->capacity * sizeof *words->nodes);
    fxa__free(host, words->outputs, (size_t)words->own.n_outputs * sizeof *words->outputs);
    words->nodes = NULL;
    words->outputs = NULL;
}
