/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes program.cuh; common/score.cuh describes what it defines. Values that neither rows nor keys change are members,
 * which head() computes. All other values are computed in the function that needs them, as functions of the pair: the
 * compiler shares what pairs of unrolled loops have in common. codegen/write_tile_functions.c writes the static
 * functions, codegen/write_gradients.c the gradients of params and captured tensors.
 */
#include "passes.h"

#include "../../../lower/emit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct cuda_text {
    const cuda_work *work;
    fxa__cuda_program *c;
    fxa__writer *w;
    fxa__emit pairs;              /* value, derivative, mask: with the operands of pairs */
    fxa__emit grads;              /* partials and scatter, whose pairs have only q and k */
    fxa__emit tiles;              /* values of the first pair of a tile */
    fxa__emit wholes;             /* the mask if it compares 64-bit elements */
    int32_t rest[CUDA_CONJUNCTS]; /* [n_rest] conditions of uniform_mask() */
    int n_rest;                   /* -1 = no uniform_mask() */
} cuda_text;

static const char cudatext_pair[] = "        const int q = p.q, k = p.k;\n";

enum { CUDA_APART_FORWARD = 100, CUDA_APART_BACKWARD = 160, CUDA_APART_SHARED = 8 };

static void cudatext_put(cuda_text *t, const char *text) { fxa__write_bytes(t->w, text, strlen(text)); }

static void cudatext_switch(cuda_text *t, const char *name, int value) {
    if (value) fxa__write_format(t->w, "#define PROG_%s %d\n", name, value);
}

/* ---- Statements -------------------------------------------------------------------------------------------------- */

/* Requires the head-level values that nodes marked with `bits` need. */
static void cudatext_inside(cuda_text *t, const fxa__emit *e, uint32_t bits) {
    for (int level = FXA__EMIT_ROW; level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(e, (fxa__emit_level)level, bits, t->w);
}

/* Makes values of heads members; values of rows and keys are computed with the pair. */
static void cudatext_localize(fxa__emit *e, fxa__emit_level from) {
    for (int32_t i = 0; i < e->p->n_nodes; i++)
        if (e->level[i] >= from) e->hoisted[i] = 0;
}

/* Makes two emits use the same members. */
static void cudatext_share(fxa__emit *x, fxa__emit *y) {
    for (int32_t i = 0; i < x->p->n_nodes; i++) {
        if (x->base[i] && ((x->used[i] && !x->given[i]) || (y->base[i] && y->used[i] && !y->given[i]))) x->base[i] = 2;
        if (x->level[i] > FXA__EMIT_HEAD) continue;
        x->used[i] |= y->used[i];
        x->hoisted[i] = y->hoisted[i] = x->hoisted[i] | y->hoisted[i];
    }
}

/* Passes bounds of ints, and which loads have base addresses, to an emit. */
static void cudatext_known(const cuda_text *t, fxa__emit *e) {
    for (int32_t i = 0; i < e->p->n_nodes; i++) {
        e->nonnegative[i] = e->p->nodes[i].type == FXA_INT && t->work->bounds[i].lo >= 0;
        e->in_bounds[i] = t->work->in_bounds[i];
        e->base[i] = fxa__lower_emit_can_use_base(e, i);
    }
}

static void cudatext_give(cuda_text *t, int32_t node, const char *as_float, const char *as_int) {
    if (node < 0) return;
    t->pairs.given[node] = t->c->program->nodes[node].type == FXA_FLOAT ? as_float : as_int;
}

/* Makes pairs read ints and comparisons from the tile, unless they are operands already. */
static void cudatext_give_tiles(cuda_text *t) {
    const cuda_tile *tiles = t->work->tiles;
    for (int32_t i = 0; i < t->c->program->n_nodes; i++)
        if (tiles[i].kind && !t->pairs.given[i]) t->pairs.given[i] = tiles[i].text;
}

static bool cudatext_is_tiled(const cuda_text *t, int32_t node) {
    return t->work->tiles[node].kind && t->pairs.used[node] && t->pairs.given[node] == t->work->tiles[node].text;
}

/* Requires what the texts of tile values read, which emit does not see. Last nodes first: they may read others. */
static void cudatext_want_tiles(cuda_text *t) {
    for (int32_t i = t->c->program->n_nodes - 1; i >= 0; i--) {
        const cuda_tile *x = &t->work->tiles[i];
        if (!cudatext_is_tiled(t, i)) continue;
        if (x->row >= 0) fxa__lower_emit_require(&t->pairs, x->row, t->pairs.used[i]);
        fxa__lower_emit_require(&t->tiles, x->left, CUDA_TILE);
        if (x->right >= 0) fxa__lower_emit_require(&t->tiles, x->right, CUDA_TILE);
    }
}

static void cudatext_want_pairs(cuda_text *t) {
    const fxa_program *p = t->c->program;
    if (t->c->computed.softcap >= 0) {
        t->pairs.given[t->c->computed.gain >= 0 ? t->c->computed.value : t->c->computed.softcap] = "score";
        fxa__lower_emit_require(&t->pairs, t->c->computed.softcap_factor, CUDA_VALUE);
    }
    if (t->c->switches.value) fxa__lower_emit_require(&t->pairs, t->c->computed.value, CUDA_VALUE);
    if (t->c->switches.derivative || t->c->switches.user_backward)
        fxa__lower_emit_require(&t->pairs, fxa__program_output(p, FXA__OUT_DSCORE), CUDA_SLOPE);
    if (t->c->switches.mask) fxa__lower_emit_require(&t->pairs, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < t->n_rest; i++) fxa__lower_emit_require(&t->pairs, t->rest[i], CUDA_SAME);
}

/* Returns true if pairs load 64-bit elements and tile_class() alone reads operands: the backward of sm90 lacks
 * registers for both. */
static bool cudatext_ranges_alone(const cuda_text *t) { return t->work->i64_operands && t->work->backward; }

static bool cudatext_open(cuda_text *t) {
    const fxa_program *p = t->c->program;
    fxa__emit *emits[] = {&t->pairs, &t->grads, &t->tiles, &t->wholes};
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        ok = fxa__lower_emit_open(t->work->host, p, FXA__CUDA_F32, 0, emits[i]) && ok;
        if (ok) cudatext_known(t, emits[i]);
        if (ok) fxa__cuda_param_names_use(t->work, emits[i], true);
    }
    if (!ok) return false;
    if (!cudatext_ranges_alone(t)) {
        cudatext_give(t, t->c->operands.q, "__int_as_float(p.q_word)", "p.q_word");
        cudatext_give(t, t->c->operands.k, "__int_as_float(p.k_word)", "p.k_word");
    }
    cudatext_give(t, t->c->operands.dense, "p.dense", "");
    cudatext_give(t, t->c->operands.diagonal, "p.diagonal", "");
    cudatext_give_tiles(t);
    if (t->work->rounded >= 0) t->pairs.unfused[t->work->rounded] = 1;
    t->n_rest = t->c->switches.mask && !t->work->i64_operands ? fxa__cuda_document_mask(t->work, t->rest) : -1;
    cudatext_want_pairs(t);
    cudatext_want_tiles(t);
    for (int32_t i = 0; i < p->n_outputs; i++) {
        bool sum = false;
        for (int32_t j = 0; j < t->c->switches.grad_sums; j++) sum = sum || t->c->gradients.sums[j] == i;
        if (!sum && !fxa__cuda_is_scattered(t->work, i)) continue;
        fxa__lower_emit_require(&t->grads, p->outputs[i].value, CUDA_GRADS);
        for (int32_t d = 0; !sum && d < p->outputs[i].n_index; d++)
            fxa__lower_emit_require(&t->grads, p->outputs[i].index[d], CUDA_GRADS);
    }
    for (int32_t i = 0; i < p->n_nodes; i++) t->wholes.base[i] = 0; /* base addresses would occupy registers */
    if (t->work->i64_operands && !t->work->backward)
        fxa__lower_emit_require(&t->wholes, fxa__program_output(p, FXA__OUT_MASK), CUDA_MASK);
    for (int i = 0; i < 4; i++) cudatext_localize(emits[i], FXA__EMIT_ROW);
    for (int i = 0; i < 2; i++) /* twice: the last ones need members too */
        for (int k = 1; k < 4; k++) cudatext_share(&t->pairs, emits[k]);
    return true;
}

/* ---- Functions of pairs ------------------------------------------------------------------------------------------ */

/* Writes members for params in device memory: their declarations, or the code that sets them. */
static void cudatext_scalars(cuda_text *t, bool fill) {
    const fxa_program *p = t->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (n->op != FXA_OP_PARAM || !t->pairs.given[i]) continue;
        if (!(t->pairs.used[i] | t->grads.used[i] | t->tiles.used[i])) continue;
        if (fill)
            fxa__write_format(t->w, "        %s = %s;\n", t->work->names.scalar[n->imm].member,
                              t->work->names.scalar[n->imm].call);
        else
            fxa__write_format(t->w, "    %s %s;\n", n->type == FXA_FLOAT ? "float" : "int",
                              t->work->names.scalar[n->imm].member);
    }
}

static void cudatext_head(cuda_text *t) {
    for (int level = FXA__EMIT_RUN; level <= FXA__EMIT_HEAD; level++)
        fxa__lower_emit_hoisted(&t->pairs, (fxa__emit_level)level, t->w);
    cudatext_scalars(t, false);
    cudatext_put(t, "    FXA_INLINE void head(const FxaArgs &a, int b, int h, int q_len, int k_len)\n    {\n"
                    "        const int heads = a.heads;\n");
    cudatext_scalars(t, true);
    for (int level = FXA__EMIT_RUN; level <= FXA__EMIT_HEAD; level++)
        fxa__lower_emit_nodes(&t->pairs, (fxa__emit_level)level, 0xff, t->w);
    fxa__lower_emit_bases(&t->pairs, t->w);
    cudatext_put(t, "    }\n");
}

static void cudatext_tile_member(cuda_text *t, int32_t node) {
    const cuda_tile *x = &t->work->tiles[node];
    fxa__write_format(t->w, "        t%d = ", (int)node);
    if (x->kind == CUDA_TILE_APART) cudatext_put(t, "fxa__apart(");
    if (x->kind == CUDA_TILE_SAME) cudatext_put(t, "fxa__shift(");
    if (x->kind == CUDA_TILE_FLOAT) cudatext_put(t, "(float)");
    fxa__lower_emit_value(&t->tiles, x->left, t->w);
    if (x->right >= 0) {
        cudatext_put(t, x->kind == CUDA_TILE_SAME ? ", fxa__wrap32(-(long long)" : ", ");
        fxa__lower_emit_value(&t->tiles, x->right, t->w);
        cudatext_put(t, x->kind == CUDA_TILE_SAME ? "))" : ")");
    }
    cudatext_put(t, ";\n");
}

static void cudatext_tile(cuda_text *t) {
    int32_t n = t->c->program->n_nodes, count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!cudatext_is_tiled(t, i)) continue;
        fxa__write_format(t->w, "    %s t%d;\n", t->work->tiles[i].kind == CUDA_TILE_FLOAT ? "float" : "int", (int)i);
        count++;
    }
    if (!count) return;
    cudatext_put(t, "    FXA_INLINE void tile(const FxaArgs &a, int q, int k)\n    {\n");
    cudatext_inside(t, &t->tiles, CUDA_TILE);
    for (int32_t i = 0; i < n; i++)
        if (cudatext_is_tiled(t, i)) cudatext_tile_member(t, i);
    cudatext_put(t, "    }\n");
}

static void cudatext_return(cuda_text *t, const fxa__emit *e, int32_t node) {
    cudatext_put(t, "        return ");
    fxa__lower_emit_value(e, node, t->w);
    cudatext_put(t, ";\n    }\n");
}

static void cudatext_value(cuda_text *t) {
    int32_t slope = fxa__program_output(t->c->program, FXA__OUT_DSCORE);
    if (t->c->switches.value) {
        cudatext_put(t, "    FXA_INLINE float value(const FxaArgs &a, float score, const Pair &p) const\n    {\n");
        cudatext_put(t, cudatext_pair);
        cudatext_inside(t, &t->pairs, CUDA_VALUE);
        cudatext_return(t, &t->pairs, t->c->computed.value);
    }
    if (!t->c->switches.derivative) return;
    cudatext_put(
        t, "    FXA_INLINE float value(const FxaArgs &a, float score, const Pair &p, float &slope) const\n    {\n");
    cudatext_put(t, cudatext_pair);
    cudatext_inside(t, &t->pairs, CUDA_VALUE | CUDA_SLOPE);
    cudatext_put(t, "        slope = ");
    fxa__lower_emit_value(&t->pairs, slope, t->w);
    cudatext_put(t, ";\n");
    if (t->c->switches.value)
        cudatext_return(t, &t->pairs, t->c->computed.value);
    else
        cudatext_put(t, "        return score;\n    }\n");
}

static void cudatext_own(cuda_text *t) {
    if (!t->c->switches.user_backward) return;
    cudatext_put(t, "    FXA_INLINE float user_backward(const FxaArgs &a, float score, const Pair &p, float dscore) "
                    "const\n    {\n");
    cudatext_put(t, cudatext_pair);
    cudatext_inside(t, &t->pairs, CUDA_SLOPE);
    cudatext_return(t, &t->pairs, fxa__program_output(t->c->program, FXA__OUT_DSCORE));
}

/* Writes softcap(), the tanh that value() reads in place of the score. */
static void cudatext_bend(cuda_text *t) {
    if (t->c->computed.softcap < 0) return;
    cudatext_put(t, "#define PROG_SOFTCAP 1\n    FXA_INLINE float softcap(const FxaArgs &a, float score) const\n    {\n"
                    "        return score_tanh(__fmul_rn(score, ");
    fxa__lower_emit_value(&t->pairs, t->c->computed.softcap_factor, t->w);
    if (!t->c->switches.softcap_has_unit)
        cudatext_put(t, "));\n    }\n");
    else if (t->c->computed.unit_at >= 0)
        fxa__write_format(t->w, ")) * a.f[%d];\n    }\n", (int)t->c->computed.unit_at);
    else
        cudatext_put(t, ")) * LOG2E;\n    }\n");
    if (t->c->switches.softcap_has_unit) cudatext_put(t, "#define PROG_SOFTCAP_HAS_UNIT 1\n");
    cudatext_put(t, "#if !FXA_FAST_MATH\n#define PROG_SOFTCAP_SERIES 1\n");
    fxa__write_format(t->w,
                      "    FXA_INLINE float series_limit(const FxaArgs &a) const { return a.f[%d]; }\n"
                      "    FXA_INLINE float softcap_series(const FxaArgs &a, float score) const\n    {\n"
                      "        return score_softcap_series(score, a.f + %d);\n    }\n",
                      (int)t->c->computed.softcap_at, (int)t->c->computed.softcap_at + 1);
    int at = (int)t->c->computed.softcap_at + 1 + FXA_CUDA_SOFTCAP_TERMS;
    fxa__write_format(t->w,
                      "    FXA_INLINE float exp_limit(const FxaArgs &a) const { return a.f[%d]; }\n"
                      "    FXA_INLINE SoftcapExp softcap_exp(const FxaArgs &a) const\n    {\n        return {a.f[%d], ",
                      at, at + 1);
    if (t->c->switches.softcap_has_unit)
        fxa__write_format(t->w, "a.f[%d], softcap_unit(a)};\n    }\n#endif\n", at + 2);
    else
        cudatext_put(t, "-0.5f, 1.f};\n    }\n#endif\n");
}

static void cudatext_mask_same(cuda_text *t) {
    if (t->n_rest < 0) return;
    cudatext_put(t, "    FXA_INLINE bool uniform_mask(const FxaArgs &a, const Pair &p) const\n    {\n");
    cudatext_put(t, cudatext_pair);
    cudatext_inside(t, &t->pairs, CUDA_SAME);
    cudatext_put(t, "        return 1");
    for (int i = 0; i < t->n_rest; i++) {
        cudatext_put(t, " & ");
        fxa__lower_emit_value(&t->pairs, t->rest[i], t->w);
    }
    cudatext_put(t, ";\n    }\n");
}

/* Writes the mask for 64-bit elements: unequal operands are unequal elements; equal operands are equal elements unless
 * they are INT32_MIN or INT32_MAX. */
static void cudatext_mask_whole(cuda_text *t) {
    cudatext_put(t, "#define fxa__get_whole fxa__rare_whole\n"
                    "    FXA_INLINE bool mask_whole(const FxaArgs &a, const Pair &p) const\n    {\n");
    cudatext_put(t, cudatext_pair);
    cudatext_inside(t, &t->wholes, CUDA_MASK);
    cudatext_return(t, &t->wholes, fxa__program_output(t->c->program, FXA__OUT_MASK));
    cudatext_put(t, "#undef fxa__get_whole\n");
}

static void cudatext_mask(cuda_text *t) {
    if (!t->c->switches.mask) return;
    bool whole = t->work->i64_operands && !t->work->backward;
    if (whole) cudatext_mask_whole(t);
    /* The mask never reads the score: codegen/score_masks.c moved such conditions. */
    cudatext_put(t, "    FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const\n    {\n");
    if (whole)
        cudatext_put(t,
                     "        if (p.q_word == 2147483647 || p.q_word == -2147483647 - 1) return mask_whole(a, p);\n");
    cudatext_put(t, cudatext_pair);
    cudatext_inside(t, &t->pairs, CUDA_MASK);
    cudatext_return(t, &t->pairs, fxa__program_output(t->c->program, FXA__OUT_MASK));
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static int cudatext_words(const cuda_text *t) {
    int32_t words[] = {t->c->operands.q, t->c->operands.k};
    int most = 0;
    for (int i = 0; i < 2; i++) {
        if (words[i] < 0 || !t->pairs.used[words[i]]) continue;
        int here = t->pairs.used[words[i]] & (CUDA_VALUE | CUDA_SLOPE) ? 2 : 1;
        most = here > most ? here : most;
    }
    return most;
}

/* Returns the bound as an integer; 0 = none. At most 16: exp2 of the score times the unit then stays inside f32 for
 * units up to 4. Kernels leave range for the rounding of a bound. */
static int cudatext_bound(double bound) { return !(bound <= 16) ? 0 : bound <= 1.01 ? 1 : (int)ceil(bound * 0.99); }

/* Returns bits of the functions that kernels call; see common/out_of_line.cuh. The limits correspond to five seconds of
 * compilation: a thread has 64 pairs, three times in a forward, and 32, twice in a backward. Values of rows and keys
 * are shared by pairs, except in gradients, where the compiler computes them for every pair. */
static int cudatext_apart(const cuda_text *t) {
    int limit = t->work->backward ? CUDA_APART_BACKWARD : CUDA_APART_FORWARD;
    uint32_t values = t->c->switches.user_backward ? CUDA_VALUE : CUDA_VALUE | CUDA_SLOPE;
    int32_t value = fxa__lower_emit_weight(&t->pairs, values, CUDA_APART_SHARED);
    int32_t own = t->c->switches.user_backward ? fxa__lower_emit_weight(&t->pairs, CUDA_SLOPE, CUDA_APART_SHARED) : 0;
    int32_t mask = fxa__lower_emit_weight(&t->pairs, CUDA_MASK, CUDA_APART_SHARED);
    int32_t grads = fxa__lower_emit_weight(&t->grads, CUDA_GRADS, 1) + own;
    return (value > limit) | (mask > limit) << 1 | (grads > limit) << 2;
}

static void cudatext_switches(cuda_text *t) {
    fxa__cuda_program *c = t->c;
    fxa__cuda_switches *s = &c->switches;
    int operands = cudatext_words(t);
    s->bounded = s->value ? cudatext_bound(c->bounds.value) : 0;
    s->operands = cudatext_ranges_alone(t) ? 0 : operands;
    s->pack_operands = operands > 0;
    s->uniform_operands = t->n_rest >= 0;
    s->out_of_line = cudatext_apart(t);
    s->grad_diagonal_exact = c->gradients.deterministic && s->grad_diagonal;
    cudatext_put(t, "#define FXA__OPS_F32\n#include \"program_ops.h\"\n#include \"interval_rules.h\"\n");
    cudatext_switch(t, "VALUE", s->value);
    cudatext_switch(t, "DERIVATIVE", s->derivative);
    cudatext_switch(t, "USER_BACKWARD", s->user_backward);
    cudatext_switch(t, "MASK", s->mask);
    cudatext_switch(t, "BOUNDED", s->bounded);
    cudatext_switch(t, "DIAGONAL", c->operands.diagonal >= 0);
    cudatext_switch(t, "DENSE", c->operands.dense >= 0);
    cudatext_switch(t, "OPERANDS", s->operands);
    cudatext_switch(t, "PACK_OPERANDS", s->pack_operands);
    cudatext_switch(t, "UNIFORM_OPERANDS", s->uniform_operands);
    cudatext_switch(t, "GRAD_DIAGONAL", s->grad_diagonal);
    cudatext_switch(t, "GRAD_DENSE", s->grad_dense);
    cudatext_switch(t, "GRAD_SUMS", s->grad_sums);
    cudatext_switch(t, "GRAD_SCATTER", s->grad_scatter);
    cudatext_switch(t, "GRAD_EXACT", (int)s->grad_exact);
    cudatext_switch(t, "OUT_OF_LINE", s->out_of_line);
    cudatext_switch(t, "GRAD_DIAGONAL_EXACT", s->grad_diagonal_exact);
}

bool fxa__cuda_program_write(const cuda_work *w) {
    cuda_text t = {.work = w, .c = w->c, .w = &w->c->text};
    bool ok = cudatext_open(&t);
    if (ok) {
        cudatext_switches(&t);
        cudatext_put(&t, "struct Program : ProgramBase {\n");
        cudatext_head(&t);
        cudatext_tile(&t);
        cudatext_value(&t);
        cudatext_own(&t);
        cudatext_bend(&t);
        cudatext_mask(&t);
        cudatext_mask_same(&t);
        fxa__cuda_gradients_write(w, &t.grads);
        ok = fxa__cuda_tile_functions_write(w) && fxa__cuda_target_indices_write(w);
        cudatext_put(&t, "};\n");
    }
    fxa__lower_emit_close(&t.pairs);
    fxa__lower_emit_close(&t.grads);
    fxa__lower_emit_close(&t.tiles);
    fxa__lower_emit_close(&t.wholes);
    return ok;
}
