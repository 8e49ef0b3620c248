/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of a derivative program at single pairs, summed per param and per element of each tensor.
 */
#ifndef FXA_TESTS_SUPPORT_GRADS_H
#define FXA_TESTS_SUPPORT_GRADS_H

#include "program/program.h"

#include <stdlib.h>

#define GRADS_MAX_ELEMENTS 64

typedef struct grads {
    double score;
    double param[FXA_MAX_PARAMS];
    double tensor[8][GRADS_MAX_ELEMENTS]; /* [tensor][row-major index] sums */
} grads;

/* Returns the row-major index of an element; -1 = out of bounds. A negative index counts from the end. */
__attribute__((unused)) static int64_t grads_element(const fxa_view *view, const int32_t *index) {
    int64_t at = 0;
    for (int32_t i = 0; i < view->rank; i++) {
        int64_t x = index[i] < 0 ? index[i] + view->size[i] : index[i];
        if (x < 0 || x >= view->size[i]) return -1;
        at = at * view->size[i] + x;
    }
    return at;
}

__attribute__((unused)) static grads grads_eval(const fxa_program *derivative, const fxa__env *env) {
    grads g = {0};
    fxa__val *vals = malloc((size_t)derivative->n_nodes * sizeof *vals);
    if (!vals) abort();
    fxa__program_eval(derivative, env, vals);
    for (int32_t i = 0; i < derivative->n_outputs; i++) {
        const fxa__output *out = &derivative->outputs[i];
        double x = vals[out->value].f;
        if (out->kind == FXA__OUT_DSCORE) g.score += x;
        if (out->kind == FXA__OUT_DPARAM) g.param[out->slot] += x;
        if (out->kind != FXA__OUT_DLOAD) continue;
        int32_t index[FXA_MAX_RANK];
        for (int32_t j = 0; j < out->n_index; j++) index[j] = vals[out->index[j]].i;
        int64_t at = grads_element(&env->tensors[out->slot], index);
        if (at >= 0) g.tensor[out->slot][at] += x;
    }
    free(vals);
    return g;
}

#endif
