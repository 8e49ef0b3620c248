/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies small tiles that range analysis cannot decide (tiles.c) by evaluating each pair. The evaluation requires
 * that the mask does not read the score, that all params and tensors are given, and that lengths, positions and
 * coordinates are known before a run.
 */
#include "tiles.h"

#include "../base/invariant.h"

/* Returns true if coordinates are known before a run and the mask does not read the score. */
static bool bruteforce_is_possible(const fxa__tile_grid *g) {
    const fxa_problem *p = &g->p->in;
    fxa_properties properties;
    fxa_program_properties(g->program, &properties);
    return !(p->flags & (FXA_PADDING | FXA_VARLEN | FXA_Q_START)) && !fxa__map_is_dynamic(&p->map_b) &&
           !fxa__map_is_dynamic(&p->map_h) && !fxa__map_is_dynamic(&p->map_q) && !fxa__map_is_dynamic(&p->map_k) &&
           !(properties.mask_depends >> FXA_INPUT_SCORE & 1u);
}

/* Sets all values of pairs->env that are the same for every pair of a row and a key: the params, the tensors and the
 * inputs except the coordinates of row and key. Returns false if values are missing or invalid. */
static bool bruteforce_set_env(const fxa__tile_grid *g, fxa__tile_bruteforce *pairs) {
    static const fxa__bound_args none;
    const double in[FXA_INPUT_COUNT] = {0};
    fxa_error err;
    for (int32_t i = 0; i < g->program->n_tensors; i++) {
        if (!g->tensors || !g->tensors[i].view) return false;
        pairs->views[i] = *g->tensors[i].view;
    }
    if (fxa__env_bind(g->program, in, g->params, pairs->views, &pairs->env, &err) != FXA_OK) return false;
    pairs->seq = fxa__seq_get(g->p, &none, g->b);
    pairs->env.coord[FXA_INPUT_B] = fxa__coord(g->p, &none, FXA_INPUT_B, g->b);
    pairs->env.coord[FXA_INPUT_H] = fxa__coord(g->p, &none, FXA_INPUT_H, g->h);
    pairs->env.coord[FXA_INPUT_Q_LEN] = pairs->seq.q_len_seen;
    pairs->env.coord[FXA_INPUT_K_LEN] = pairs->seq.k_len_seen;
    pairs->env.coord[FXA_INPUT_HEADS] = pairs->seq.heads_seen;
    return true;
}

fxa_status fxa__tile_bruteforce_open(const fxa__tile_grid *g, fxa__tile_bruteforce *pairs, fxa_error *err) {
    fxa__host *host = g->p->host;
    size_t nodes = (size_t)g->program->n_nodes, tensors = (size_t)g->program->n_tensors;
    *pairs = (fxa__tile_bruteforce){.vals = NULL};
    if (g->tile_q > FXA__TILE_MAX_PAIRS / g->tile_k || !bruteforce_is_possible(g)) return FXA_OK;
    pairs->vals = fxa__alloc_array(host, nodes, sizeof *pairs->vals);
    if (tensors) pairs->views = fxa__alloc_array(host, tensors, sizeof *pairs->views);
    if (!pairs->vals || (tensors && !pairs->views)) return fxa__fail_memory(err, "the pairs of a tile");
    if (!bruteforce_set_env(g, pairs)) fxa__tile_bruteforce_close(g, pairs);
    return FXA_OK;
}

void fxa__tile_bruteforce_close(const fxa__tile_grid *g, fxa__tile_bruteforce *pairs) {
    fxa__free(g->p->host, pairs->vals, (size_t)g->program->n_nodes * sizeof *pairs->vals);
    fxa__free(g->p->host, pairs->views, (size_t)g->program->n_tensors * sizeof *pairs->views);
    pairs->vals = NULL;
    pairs->views = NULL;
}

/* Returns true if the mask is true for the pair. Subtracts one evaluation from g->budget. */
static bool bruteforce_pair(const fxa__tile_grid *g, int64_t q, int64_t k) {
    static const fxa__bound_args none;
    fxa__tile_bruteforce *pairs = g->pairs;
    FXA__ASSERT(q >= 0 && q < g->p->in.sq && k >= 0 && k < g->p->in.sk);
    --*g->budget;
    pairs->env.coord[FXA_INPUT_Q] = fxa__row_coord(g->p, &none, &pairs->seq, q);
    pairs->env.coord[FXA_INPUT_K] = fxa__coord(g->p, &none, FXA_INPUT_K, k);
    pairs->env.coord[FXA_INPUT_Q_ROW] = (int32_t)q;
    pairs->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
    fxa__program_eval(g->program, &pairs->env, pairs->vals);
    return pairs->vals[fxa__program_output(g->program, FXA__OUT_MASK)].i != 0;
}

/* The search starts at the last row, which attends to the most keys under most masks: the sooner it finds an attended
 * and a masked pair, the sooner the tile is known to be mixed. */
fxa_tile_class fxa__tile_bruteforce_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k) {
    bool seen[2] = {false, false};
    if (!g->pairs->vals) return FXA_TILE_MIXED;
    for (int64_t i = q.last; i >= q.first; i--)
        for (int64_t j = k.first; j <= k.last; j++) {
            if (*g->budget < 1) {
                *g->budget = -1;
                return FXA_TILE_MIXED;
            }
            seen[bruteforce_pair(g, i, j)] = true;
            if (seen[0] && seen[1]) return FXA_TILE_MIXED;
        }
    return seen[1] ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

bool fxa__tile_bruteforce_count(const fxa__tile_grid *g, fxa__slice q, fxa__slice k, uint64_t times,
                                fxa_tile_counts *out) {
    int64_t pairs = (q.last - q.first + 1) * (k.last - k.first + 1);
    uint64_t n_full = 0;
    if (!g->pairs->vals || g->tile_q * g->tile_k != 1 || pairs > FXA__TILE_MAX_PAIRS || pairs > *g->budget)
        return false;
    for (int64_t i = q.first; i <= q.last; i++)
        for (int64_t j = k.first; j <= k.last; j++) n_full += bruteforce_pair(g, i, j);
    out->full += n_full * times;
    out->empty += ((uint64_t)pairs - n_full) * times;
    return true;
}
