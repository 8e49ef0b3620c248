/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies small tiles by evaluating each pair, where range analysis leaves them mixed (tiles.c). This requires that
 * the mask does not read the score, that all params and tensors are given, and that lengths, positions and coordinates
 * are known before a run.
 */
#include "tiles.h"

/* Returns true if coordinates are known before a run and the mask does not read the score. */
static bool look_is_fixed(const fxa__tile_grid *g) {
    const fxa_problem *p = &g->p->in;
    fxa_properties properties;
    fxa_program_properties(g->program, &properties);
    return !(p->flags & (FXA_PADDING | FXA_VARLEN | FXA_Q_START)) && !fxa__map_is_open(&p->map_b) &&
           !fxa__map_is_open(&p->map_h) && !fxa__map_is_open(&p->map_q) && !fxa__map_is_open(&p->map_k) &&
           !(properties.mask_depends >> FXA_INPUT_SCORE & 1u);
}

/* Sets everything that pairs have in common (all but q and k). Returns false if values are missing or invalid. */
static bool look_bind(const fxa__tile_grid *g, fxa__tile_look *look) {
    static const fxa__bind none;
    const double in[FXA_INPUT_COUNT] = {0};
    fxa_error err;
    for (int32_t i = 0; i < g->program->n_tensors; i++) {
        if (!g->tensors || !g->tensors[i].view) return false;
        look->views[i] = *g->tensors[i].view;
    }
    if (fxa__env_bind(g->program, in, g->params, look->views, &look->env, &err) != FXA_OK) return false;
    look->seq = fxa__seq_get(g->p, &none, g->b);
    look->env.coord[FXA_INPUT_B] = fxa__coord(g->p, &none, FXA_INPUT_B, g->b);
    look->env.coord[FXA_INPUT_H] = fxa__coord(g->p, &none, FXA_INPUT_H, g->h);
    look->env.coord[FXA_INPUT_Q_LEN] = look->seq.q_len_seen;
    look->env.coord[FXA_INPUT_K_LEN] = look->seq.k_len_seen;
    look->env.coord[FXA_INPUT_HEADS] = look->seq.heads_seen;
    return true;
}

fxa_status fxa__tile_look_open(const fxa__tile_grid *g, fxa__tile_look *look, fxa_error *err) {
    fxa__host *host = g->p->host;
    size_t nodes = (size_t)g->program->n_nodes, tensors = (size_t)g->program->n_tensors;
    *look = (fxa__tile_look){.vals = NULL};
    if (g->tile_q > FXA__TILE_LOOK / g->tile_k || !look_is_fixed(g)) return FXA_OK;
    look->vals = fxa__alloc_array(host, nodes, sizeof *look->vals);
    if (tensors) look->views = fxa__alloc_array(host, tensors, sizeof *look->views);
    if (!look->vals || (tensors && !look->views)) return fxa__fail_memory(err, "the pairs of a tile");
    if (!look_bind(g, look)) fxa__tile_look_close(g, look);
    return FXA_OK;
}

void fxa__tile_look_close(const fxa__tile_grid *g, fxa__tile_look *look) {
    fxa__free(g->p->host, look->vals, (size_t)g->program->n_nodes * sizeof *look->vals);
    fxa__free(g->p->host, look->views, (size_t)g->program->n_tensors * sizeof *look->views);
    look->vals = NULL;
    look->views = NULL;
}

/* Returns true if the mask keeps the pair. Subtracts one evaluation from g->left. */
static bool look_at_pair(const fxa__tile_grid *g, int64_t q, int64_t k) {
    static const fxa__bind none;
    fxa__tile_look *look = g->look;
    --*g->left;
    look->env.coord[FXA_INPUT_Q] = fxa__row_coord(g->p, &none, &look->seq, q);
    look->env.coord[FXA_INPUT_K] = fxa__coord(g->p, &none, FXA_INPUT_K, k);
    look->env.coord[FXA_INPUT_Q_ROW] = (int32_t)q;
    look->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
    fxa__program_eval(g->program, &look->env, look->vals);
    return look->vals[fxa__program_output(g->program, FXA__OUT_MASK)].i != 0;
}

/* Starts at the last row: most masks keep more of the past, so both kinds of pairs are found early. */
fxa_tile_class fxa__tile_look_at(const fxa__tile_grid *g, fxa__slice q, fxa__slice k) {
    bool seen[2] = {false, false};
    if (!g->look->vals) return FXA_TILE_MIXED;
    for (int64_t i = q.last; i >= q.first; i--)
        for (int64_t j = k.first; j <= k.last; j++) {
            if (*g->left < 1) {
                *g->left = -1;
                return FXA_TILE_MIXED;
            }
            seen[look_at_pair(g, i, j)] = true;
            if (seen[0] && seen[1]) return FXA_TILE_MIXED;
        }
    return seen[1] ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

bool fxa__tile_look_pairs(const fxa__tile_grid *g, fxa__slice q, fxa__slice k, uint64_t times, fxa_tile_counts *out) {
    int64_t pairs = (q.last - q.first + 1) * (k.last - k.first + 1);
    uint64_t left = 0;
    if (!g->look->vals || g->tile_q * g->tile_k != 1 || pairs > FXA__TILE_LOOK || pairs > *g->left) return false;
    for (int64_t i = q.first; i <= q.last; i++)
        for (int64_t j = k.first; j <= k.last; j++) left += look_at_pair(g, i, j);
    out->full += left * times;
    out->empty += ((uint64_t)pairs - left) * times;
    return true;
}
