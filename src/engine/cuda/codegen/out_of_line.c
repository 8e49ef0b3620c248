/* SPDX-License-Identifier: Apache-2.0
 *
 * Collects the nodes that each function of the generated text needs, and decides which functions kernels call instead
 * of inlining them, because inlined ones would compile too slowly.
 */
#include "passes.h"

#include "../../../base/invariant.h"

enum { CALL_LIMIT_FORWARD = 100, CALL_LIMIT_BACKWARD = 160, CALL_SHARED = 8 };

/* Makes values of level `from` or later (levels: per run, per head, per row, ...) local variables of the functions that
 * read these values. Values of earlier levels stay members of Program. */
static void call_localize(fxa__emit *e, fxa__emit_level from) {
    for (int32_t i = 0; i < e->p->n_nodes; i++)
        if (e->level[i] >= from) e->hoisted[i] = 0;
}

/* Gives the functions of emitter x and those of emitter y common members of Program: values that are equal in a run or
 * head, and base addresses of loads, one per head. */
static void call_share(fxa__emit *x, fxa__emit *y) {
    for (int32_t i = 0; i < x->p->n_nodes; i++) {
        if (x->base[i] && ((x->used[i] && !x->given[i]) || (y->base[i] && y->used[i] && !y->given[i]))) x->base[i] = 2;
        if (x->level[i] > FXA__EMIT_HEAD) continue;
        x->used[i] |= y->used[i];
        x->hoisted[i] = y->hoisted[i] = x->hoisted[i] | y->hoisted[i];
    }
}

/* Copies to the emitter e which ints are >= 0 and which indices are inside their tensors, and marks the loads whose
 * address can be computed as an offset from a base address per head. */
static void call_pass_bounds(const cuda_work *w, fxa__emit *e) {
    for (int32_t i = 0; i < e->p->n_nodes; i++) {
        e->nonnegative[i] = e->p->nodes[i].type == FXA_INT && w->bounds[i].lo >= 0;
        e->in_bounds[i] = w->in_bounds[i];
        e->base[i] = fxa__lower_emit_can_use_base(e, i);
    }
}

/* Makes functions of a pair (q, k) read a node by the expression as_float, if the node is a float, or as_int, if it is
 * an int. node = -1: does nothing. */
static void call_replace(cuda_work *w, int32_t node, const char *as_float, const char *as_int) {
    if (node < 0) return;
    FXA__ASSERT(!w->emit.pairs.given[node]); /* the node has no such expression yet */
    w->emit.pairs.given[node] = w->c->program->nodes[node].type == FXA_FLOAT ? as_float : as_int;
}

/* Makes functions of a pair (q, k) compute the nodes of w->tiles from the members that tile() computes, except nodes
 * that call_replace() has given an expression. */
static void call_replace_tiles(cuda_work *w) {
    const cuda_tile *tiles = w->tiles;
    for (int32_t i = 0; i < w->c->program->n_nodes; i++)
        if (tiles[i].kind && !w->emit.pairs.given[i]) w->emit.pairs.given[i] = tiles[i].text;
}

bool fxa__cuda_is_tiled(const cuda_work *w, int32_t node) {
    return w->tiles[node].kind && w->emit.pairs.used[node] && w->emit.pairs.given[node] == w->tiles[node].text;
}

/* Marks as needed the nodes that the expressions of w->tiles read. Visits the last node first, because an expression
 * may read earlier nodes that are in w->tiles too. */
static void call_require_tiles(cuda_work *w) {
    for (int32_t i = w->c->program->n_nodes - 1; i >= 0; i--) {
        const cuda_tile *x = &w->tiles[i];
        if (!fxa__cuda_is_tiled(w, i)) continue;
        FXA__ASSERT(x->left >= 0 && x->left <= i && x->right <= i && x->row <= i);
        if (x->row >= 0) fxa__lower_emit_require(&w->emit.pairs, x->row, w->emit.pairs.used[i]);
        fxa__lower_emit_require(&w->emit.tile, x->left, CUDA_TILE);
        if (x->right >= 0) fxa__lower_emit_require(&w->emit.tile, x->right, CUDA_TILE);
    }
}

/* Marks as needed the nodes that value(), user_backward(), mask() and uniform_mask() return. */
static void call_require_pairs(cuda_work *w) {
    const fxa_program *p = w->c->program;
    if (w->c->switches.softcap) {
        w->emit.pairs.given[w->c->computed.gain >= 0 ? w->c->computed.value : w->c->computed.softcap] = "score";
        fxa__lower_emit_require(&w->emit.pairs, w->c->computed.softcap_factor, CUDA_VALUE);
    }
    if (w->c->switches.value) fxa__lower_emit_require(&w->emit.pairs, w->c->computed.value, CUDA_VALUE);
    if (w->c->switches.derivative || w->c->switches.user_backward)
        fxa__lower_emit_require(&w->emit.pairs, fxa__program_output(p, FXA__OUT_DSCORE), CUDA_DERIVATIVE);
    if (w->c->switches.mask) fxa__lower_emit_require(&w->emit.pairs, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < w->n_conjuncts; i++)
        fxa__lower_emit_require(&w->emit.pairs, w->conjuncts[i], CUDA_UNIFORM_MASK);
}

bool fxa__cuda_only_ranges_read_operands(const cuda_work *w) { return w->i64_operands && w->backward; }

/* Opens the emitters of the text's functions, and marks the nodes that each function needs. Returns false if memory ran
 * out. */
static bool call_open(cuda_work *w) {
    const fxa_program *p = w->c->program;
    fxa__emit *emits[] = {&w->emit.pairs, &w->emit.gradients, &w->emit.tile, &w->emit.mask64};
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        ok = fxa__lower_emit_open(w->host, p, FXA__CUDA_F32, 0, emits[i]) && ok;
        if (ok) call_pass_bounds(w, emits[i]);
        if (ok) fxa__cuda_param_names_use(w, emits[i], true);
    }
    if (!ok) return false;
    if (!fxa__cuda_only_ranges_read_operands(w)) {
        call_replace(w, w->c->operands.q, "__int_as_float(p.q_word)", "p.q_word");
        call_replace(w, w->c->operands.k, "__int_as_float(p.k_word)", "p.k_word");
    }
    call_replace(w, w->c->operands.dense, "p.dense", "");
    call_replace(w, w->c->operands.diagonal, "p.diagonal", "");
    call_replace_tiles(w);
    if (w->rounded >= 0) w->emit.pairs.unfused[w->rounded] = 1;
    call_require_pairs(w);
    call_require_tiles(w);
    for (int32_t i = 0; i < p->n_outputs; i++) {
        bool sum = false;
        for (int32_t j = 0; j < w->c->switches.grad_sums; j++) sum = sum || w->c->gradients.sums[j] == i;
        if (!sum && !fxa__cuda_is_scattered(w, i)) continue;
        fxa__lower_emit_require(&w->emit.gradients, p->outputs[i].value, CUDA_GRADIENTS);
        for (int32_t d = 0; !sum && d < p->outputs[i].n_index; d++)
            fxa__lower_emit_require(&w->emit.gradients, p->outputs[i].index[d], CUDA_GRADIENTS);
    }
    /* mask_whole() is rarely called, so its loads use no base addresses, which would occupy registers. */
    for (int32_t i = 0; i < p->n_nodes; i++) w->emit.mask64.base[i] = 0;
    if (w->i64_operands && !w->backward)
        fxa__lower_emit_require(&w->emit.mask64, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < 4; i++) call_localize(emits[i], FXA__EMIT_ROW);
    /* Two rounds: in the first, emits[1] is shared before emits[2] and emits[3] add members to `pairs`. */
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 4; k++) call_share(&w->emit.pairs, emits[k]);
    return true;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Returns which functions read q_word or k_word, the captured values per query and key: 0 = none, 1 = only mask(), 2 =
 * also value() or user_backward(). */
static int call_operands(const cuda_work *w) {
    int32_t operands[] = {w->c->operands.q, w->c->operands.k};
    int max_user = 0;
    for (int i = 0; i < 2; i++) {
        if (operands[i] < 0 || !w->emit.pairs.used[operands[i]]) continue;
        int here = w->emit.pairs.used[operands[i]] & (CUDA_VALUE | CUDA_DERIVATIVE) ? 2 : 1;
        max_user = here > max_user ? here : max_user;
    }
    return max_user;
}

/* Returns PROG_OUT_OF_LINE, the bits of the functions that kernels call. Compiling inlined copies of a function over
 * the limit would take more than five seconds: a forward has 3 * 64 copies, a backward 2 * 32. A statement that depends
 * on q or k alone counts 1 / CALL_SHARED, as so many pairs (q, k) share it; in functions of gradients it counts 1. */
static int call_bits(const cuda_work *w) {
    int limit = w->backward ? CALL_LIMIT_BACKWARD : CALL_LIMIT_FORWARD;
    uint32_t values = w->c->switches.user_backward ? CUDA_VALUE : CUDA_VALUE | CUDA_DERIVATIVE;
    int32_t value = fxa__lower_emit_weight(&w->emit.pairs, values, CALL_SHARED);
    int32_t own =
        w->c->switches.user_backward ? fxa__lower_emit_weight(&w->emit.pairs, CUDA_DERIVATIVE, CALL_SHARED) : 0;
    int32_t mask = fxa__lower_emit_weight(&w->emit.pairs, CUDA_MASK, CALL_SHARED);
    int32_t grads = fxa__lower_emit_weight(&w->emit.gradients, CUDA_GRADIENTS, 1) + own;
    return (value > limit) | (mask > limit) << 1 | (grads > limit) << 2;
}

fxa_status fxa__cuda_choose_out_of_line(cuda_work *w, fxa_error *err) {
    struct FxaTraits *s = &w->c->switches;
    if (!call_open(w)) return fxa__fail_memory(err, "the text of a program for CUDA kernels");
    int operands = call_operands(w);
    FXA__ASSERT(w->n_conjuncts < 0 || operands > 0); /* uniform_mask() requires row and key operands */
    s->operands = fxa__cuda_only_ranges_read_operands(w) ? 0 : operands;
    s->pack_operands = operands > 0;
    s->uniform_operands = w->n_conjuncts >= 0;
    s->out_of_line = call_bits(w);
    return FXA_OK;
}
