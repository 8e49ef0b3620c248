/* SPDX-License-Identifier: Apache-2.0
 *
 * Collects the nodes that each function of the text needs, and decides which functions are called instead of inlined,
 * because the compiler would need too long for them.
 */
#include "passes.h"

enum { CALL_LIMIT_FORWARD = 100, CALL_LIMIT_BACKWARD = 160, CALL_SHARED = 8 };

/* Makes values of heads members; values of rows and keys are computed with the pair. */
static void call_localize(fxa__emit *e, fxa__emit_level from) {
    for (int32_t i = 0; i < e->p->n_nodes; i++)
        if (e->level[i] >= from) e->hoisted[i] = 0;
}

/* Makes two emits use the same members. */
static void call_share(fxa__emit *x, fxa__emit *y) {
    for (int32_t i = 0; i < x->p->n_nodes; i++) {
        if (x->base[i] && ((x->used[i] && !x->given[i]) || (y->base[i] && y->used[i] && !y->given[i]))) x->base[i] = 2;
        if (x->level[i] > FXA__EMIT_HEAD) continue;
        x->used[i] |= y->used[i];
        x->hoisted[i] = y->hoisted[i] = x->hoisted[i] | y->hoisted[i];
    }
}

/* Passes bounds of ints, and which loads have base addresses, to an emit. */
static void call_known(const cuda_work *w, fxa__emit *e) {
    for (int32_t i = 0; i < e->p->n_nodes; i++) {
        e->nonnegative[i] = e->p->nodes[i].type == FXA_INT && w->bounds[i].lo >= 0;
        e->in_bounds[i] = w->in_bounds[i];
        e->base[i] = fxa__lower_emit_can_use_base(e, i);
    }
}

static void call_give(cuda_work *w, int32_t node, const char *as_float, const char *as_int) {
    if (node < 0) return;
    w->pairs.given[node] = w->c->program->nodes[node].type == FXA_FLOAT ? as_float : as_int;
}

/* Makes pairs read ints and comparisons from the tile, unless they are operands already. */
static void call_give_tiles(cuda_work *w) {
    const cuda_tile *tiles = w->tiles;
    for (int32_t i = 0; i < w->c->program->n_nodes; i++)
        if (tiles[i].kind && !w->pairs.given[i]) w->pairs.given[i] = tiles[i].text;
}

bool fxa__cuda_is_tiled(const cuda_work *w, int32_t node) {
    return w->tiles[node].kind && w->pairs.used[node] && w->pairs.given[node] == w->tiles[node].text;
}

/* Requires what the texts of tile values read, which emit does not see. Last nodes first: they may read others. */
static void call_want_tiles(cuda_work *w) {
    for (int32_t i = w->c->program->n_nodes - 1; i >= 0; i--) {
        const cuda_tile *x = &w->tiles[i];
        if (!fxa__cuda_is_tiled(w, i)) continue;
        if (x->row >= 0) fxa__lower_emit_require(&w->pairs, x->row, w->pairs.used[i]);
        fxa__lower_emit_require(&w->tiles_emit, x->left, CUDA_TILE);
        if (x->right >= 0) fxa__lower_emit_require(&w->tiles_emit, x->right, CUDA_TILE);
    }
}

static void call_want_pairs(cuda_work *w) {
    const fxa_program *p = w->c->program;
    if (w->c->switches.softcap) {
        w->pairs.given[w->c->computed.gain >= 0 ? w->c->computed.value : w->c->computed.softcap] = "score";
        fxa__lower_emit_require(&w->pairs, w->c->computed.softcap_factor, CUDA_VALUE);
    }
    if (w->c->switches.value) fxa__lower_emit_require(&w->pairs, w->c->computed.value, CUDA_VALUE);
    if (w->c->switches.derivative || w->c->switches.user_backward)
        fxa__lower_emit_require(&w->pairs, fxa__program_output(p, FXA__OUT_DSCORE), CUDA_DERIVATIVE);
    if (w->c->switches.mask) fxa__lower_emit_require(&w->pairs, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < w->n_conjuncts; i++) fxa__lower_emit_require(&w->pairs, w->conjuncts[i], CUDA_UNIFORM_MASK);
}

/* Returns true if pairs load 64-bit elements and tile_class() alone reads operands: the backward of sm90 lacks
 * registers for both. */
bool fxa__cuda_only_ranges_read_operands(const cuda_work *w) { return w->i64_operands && w->backward; }

static bool call_open(cuda_work *w) {
    const fxa_program *p = w->c->program;
    fxa__emit *emits[] = {&w->pairs, &w->grads, &w->tiles_emit, &w->wholes};
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        ok = fxa__lower_emit_open(w->host, p, FXA__CUDA_F32, 0, emits[i]) && ok;
        if (ok) call_known(w, emits[i]);
        if (ok) fxa__cuda_param_names_use(w, emits[i], true);
    }
    if (!ok) return false;
    if (!fxa__cuda_only_ranges_read_operands(w)) {
        call_give(w, w->c->operands.q, "__int_as_float(p.q_word)", "p.q_word");
        call_give(w, w->c->operands.k, "__int_as_float(p.k_word)", "p.k_word");
    }
    call_give(w, w->c->operands.dense, "p.dense", "");
    call_give(w, w->c->operands.diagonal, "p.diagonal", "");
    call_give_tiles(w);
    if (w->rounded >= 0) w->pairs.unfused[w->rounded] = 1;
    call_want_pairs(w);
    call_want_tiles(w);
    for (int32_t i = 0; i < p->n_outputs; i++) {
        bool sum = false;
        for (int32_t j = 0; j < w->c->switches.grad_sums; j++) sum = sum || w->c->gradients.sums[j] == i;
        if (!sum && !fxa__cuda_is_scattered(w, i)) continue;
        fxa__lower_emit_require(&w->grads, p->outputs[i].value, CUDA_GRADIENTS);
        for (int32_t d = 0; !sum && d < p->outputs[i].n_index; d++)
            fxa__lower_emit_require(&w->grads, p->outputs[i].index[d], CUDA_GRADIENTS);
    }
    for (int32_t i = 0; i < p->n_nodes; i++) w->wholes.base[i] = 0; /* base addresses would occupy registers */
    if (w->i64_operands && !w->backward)
        fxa__lower_emit_require(&w->wholes, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < 4; i++) call_localize(emits[i], FXA__EMIT_ROW);
    for (int i = 0; i < 2; i++) /* twice: the last ones need members too */
        for (int k = 1; k < 4; k++) call_share(&w->pairs, emits[k]);
    return true;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static int call_words(const cuda_work *w) {
    int32_t words[] = {w->c->operands.q, w->c->operands.k};
    int most = 0;
    for (int i = 0; i < 2; i++) {
        if (words[i] < 0 || !w->pairs.used[words[i]]) continue;
        int here = w->pairs.used[words[i]] & (CUDA_VALUE | CUDA_DERIVATIVE) ? 2 : 1;
        most = here > most ? here : most;
    }
    return most;
}

/* Returns bits of the functions that kernels call; see common/out_of_line.cuh. The limits correspond to five seconds of
 * compilation: a thread has 64 pairs, three times in a forward, and 32, twice in a backward. Values of rows and keys
 * are shared by pairs, except in gradients, where the compiler computes them for every pair. */
static int call_bits(const cuda_work *w) {
    int limit = w->backward ? CALL_LIMIT_BACKWARD : CALL_LIMIT_FORWARD;
    uint32_t values = w->c->switches.user_backward ? CUDA_VALUE : CUDA_VALUE | CUDA_DERIVATIVE;
    int32_t value = fxa__lower_emit_weight(&w->pairs, values, CALL_SHARED);
    int32_t own = w->c->switches.user_backward ? fxa__lower_emit_weight(&w->pairs, CUDA_DERIVATIVE, CALL_SHARED) : 0;
    int32_t mask = fxa__lower_emit_weight(&w->pairs, CUDA_MASK, CALL_SHARED);
    int32_t grads = fxa__lower_emit_weight(&w->grads, CUDA_GRADIENTS, 1) + own;
    return (value > limit) | (mask > limit) << 1 | (grads > limit) << 2;
}

fxa_status fxa__cuda_choose_out_of_line(cuda_work *w, fxa_error *err) {
    struct FxaTraits *s = &w->c->switches;
    if (!call_open(w)) return fxa__fail_memory(err, "the text of a program for CUDA kernels");
    int operands = call_words(w);
    s->operands = fxa__cuda_only_ranges_read_operands(w) ? 0 : operands;
    s->pack_operands = operands > 0;
    s->uniform_operands = w->n_conjuncts >= 0;
    s->out_of_line = call_bits(w);
    return FXA_OK;
}
