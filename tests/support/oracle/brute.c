/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies boxes of pairs by evaluating every pair (brute.h).
 */
#include "brute.h"

#include "program/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const double brute_scores[BRUTE_SCORES] = {0.25, -3e30, NAN};

fxa_tile_class brute_class(const fxa_program *p, const fxa_tile_bounds *box, const double *params,
                           const fxa_view *tensors, const double *scores, int n_scores) {
    fxa__val *vals = malloc((size_t)p->n_nodes * sizeof *vals);
    if (!vals) abort();
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
    bool seen[2] = {false, false};
    int64_t at[FXA_INPUT_COUNT];
    for (int i = 0; i < FXA_INPUT_COUNT; i++) at[i] = box->lo[i];
    for (bool more = true; more && !(seen[0] && seen[1]);) {
        fxa__env env = {.params = params, .tensors = tensors};
        for (int i = 0; i < FXA_INPUT_COUNT; i++) env.coord[i] = (int32_t)at[i];
        for (int s = 0; s < n_scores; s++) {
            env.score = scores[s];
            fxa__program_eval(p, &env, vals);
            seen[vals[mask].i != 0] = true;
        }
        int i = 0;
        for (; i < FXA_INPUT_COUNT && (fxa__input_type((uint32_t)i) != FXA_INT || ++at[i] > box->hi[i]); i++)
            at[i] = box->lo[i];
        more = i < FXA_INPUT_COUNT;
    }
    free(vals);
    return seen[0] && seen[1] ? FXA_TILE_MIXED : seen[1] ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

fxa_tile_bounds brute_box(int32_t b, int32_t h, int64_t q0, int64_t q1, int64_t k0, int64_t k1, int32_t q_len,
                          int32_t k_len) {
    fxa_tile_bounds box = {{0, b, h, (int32_t)q0, (int32_t)k0, q_len, k_len, 0, 8},
                           {0, b, h, (int32_t)q1, (int32_t)k1, q_len, k_len, 0, 8}};
    return box;
}

const char *brute_name(fxa_tile_class t) {
    return t == FXA_TILE_EMPTY ? "EMPTY" : t == FXA_TILE_FULL ? "FULL" : "MIXED";
}

void brute_show(const fxa_program *p, const fxa_tile_bounds *box) {
    static char text[1 << 16];
    size_t needed;
    fxa_error err;
    if (fxa_program_print(p, text, sizeof text, &needed, &err) != FXA_OK) text[0] = 0;
    printf("%s    over", text);
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        printf(" %s %d..%d", fxa__input_name((uint32_t)i), (int)box->lo[i], (int)box->hi[i]);
    printf("\n");
}
