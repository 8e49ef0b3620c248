/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies how gradients of captured tensors and params are summed (grad_class.h).
 */
#include "grad_class.h"

enum { GRAD_PAIR = FXA__OF_ROW | FXA__OF_KEY };
enum { GRAD_SCORE = 1 << FXA_INPUT_SCORE | 1 << FXA_INPUT_DSCORE, GRAD_HEADS = 1 << FXA_INPUT_B | 1 << FXA_INPUT_H };

/* Returns true if a set of inputs contains an input that varies with the row and an input that varies with the key. */
static bool grad_is_of_pair(uint32_t inputs) { return (inputs & FXA__OF_ROW) && (inputs & FXA__OF_KEY); }

/* Returns the class of a gradient from two sets: g->index, the inputs on which its indices depend, and g->separators,
 * the inputs that are used directly as an index. diagonal: all indices depend on q and k through q - k only. */
static fxa__grad_kind grad_kind(const fxa__grad *g, bool diagonal) {
    if (g->index & GRAD_SCORE) return FXA__GRAD_SCATTER;
    if (grad_is_of_pair(g->index)) {
        if (grad_is_of_pair(g->separators)) return FXA__GRAD_DENSE;
        return diagonal ? FXA__GRAD_DIAGONAL : FXA__GRAD_SCATTER;
    }
    if (g->index & FXA__OF_ROW) return FXA__GRAD_ROW;
    if (g->index & FXA__OF_KEY) return FXA__GRAD_KEY;
    return g->index & GRAD_HEADS ? FXA__GRAD_HEAD : FXA__GRAD_ONE;
}

fxa__grad fxa__lower_grad(const fxa_program *d, int32_t output, const fxa__depend *sets) {
    const fxa__output *out = &d->outputs[output];
    fxa__grad g = {.value = sets[out->value].inputs};
    bool diagonal = true; /* true: each index depends on q - k, or on neither q nor k */
    for (int32_t j = 0; j < out->n_index; j++) {
        const fxa__depend *index = &sets[out->index[j]];
        g.index |= index->inputs;
        g.separators |= fxa__node_input(&d->nodes[out->index[j]]);
        diagonal = diagonal && (index->diagonal || !(index->inputs & GRAD_PAIR));
    }
    g.kind = grad_kind(&g, diagonal);
    return g;
}

const char *fxa__lower_grad_name(fxa__grad_kind kind) {
    static const char *const names[FXA__GRAD_KINDS] = {"one", "head", "row", "key", "dense", "diagonal", "scatter"};
    return names[kind];
}

/* Returns the first output from i on that adds to the gradient of `tensor`; -1 if none. */
static int32_t grad_next(const fxa_program *d, int32_t tensor, int32_t i) {
    for (; i < d->n_outputs; i++)
        if (d->outputs[i].kind == FXA__OUT_DLOAD && d->outputs[i].slot == tensor) return i;
    return -1;
}

uint32_t fxa__lower_grad_separators(const fxa_program *d, int32_t tensor) {
    int32_t first = grad_next(d, tensor, 0);
    uint32_t separators = first < 0 ? UINT32_MAX : 0;
    for (int32_t j = 0; first >= 0 && j < d->outputs[first].n_index; j++) {
        int32_t index = d->outputs[first].index[j];
        bool everywhere = true; /* true: index j is one node in all outputs that add to the gradient of `tensor` */
        for (int32_t i = first; i >= 0; i = grad_next(d, tensor, i + 1))
            everywhere = everywhere && d->outputs[i].index[j] == index;
        if (everywhere) separators |= fxa__node_input(&d->nodes[index]);
    }
    return separators;
}

bool fxa__lower_grad_is_injective(const fxa_program *d, int32_t tensor, uint32_t *inputs) {
    int32_t only = grad_next(d, tensor, 0);
    *inputs = 0;
    if (only < 0 || grad_next(d, tensor, only + 1) >= 0) return false;
    for (int32_t j = 0; j < d->outputs[only].n_index; j++) {
        uint32_t input = fxa__node_input(&d->nodes[d->outputs[only].index[j]]);
        if (!input || (*inputs & input)) return false;
        *inputs |= input;
    }
    return true;
}
