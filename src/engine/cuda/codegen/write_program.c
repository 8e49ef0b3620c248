/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes program.cuh; common/program_interface.cuh describes what it defines. Values that depend on neither row nor key
 * are members of Program, which head() computes. Every other value is computed from the pair (q, k), in each function
 * that needs it; the compiler merges equal computations of the pairs of an unrolled loop.
 * codegen/write_tile_functions.c writes the static functions, codegen/write_gradients.c the gradients of params and
 * captured tensors.
 */
#include "passes.h"

#include "../../../base/invariant.h"

#include <string.h>

void fxa__cuda_put(const cuda_work *w, const char *text) { fxa__write_bytes(&w->c->text, text, strlen(text)); }

void fxa__cuda_lengths_write(const cuda_work *w, bool diagonal) {
    fxa__cuda_put(w, "        const int q_len = q_length(a, b), k_len = k_length(a, b), heads = a.heads;\n");
    if (diagonal) fxa__cuda_put(w, "        const int q = max(d, 0), k = max(-d, 0);\n");
}

bool fxa__cuda_static_write(const cuda_work *w, const int32_t *nodes, int32_t n, fxa__emit_level max_level,
                            fxa__emit *e) {
    if (!fxa__lower_emit_open(w->host, w->c->program, FXA__CUDA_F32, 0, e)) return false;
    fxa__cuda_param_names_use(w, e, false);
    for (int32_t i = 0; i < n; i++) fxa__lower_emit_require(e, nodes[i], CUDA_VALUE);
    for (int32_t i = 0; i < e->p->n_nodes; i++) e->hoisted[i] = 0; /* static functions have no members */
    for (int level = FXA__EMIT_RUN; level <= (int)max_level; level++)
        fxa__lower_emit_nodes(e, (fxa__emit_level)level, CUDA_VALUE, &w->c->text);
    return true;
}

/* ---- Statements -------------------------------------------------------------------------------------------------- */

/* Writes the statements that compute values dependent on q or k for the functions in `bits` (CUDA_VALUE, ...). Other
 * values are members of Program. */
static void write_statements(const cuda_work *w, const fxa__emit *e, uint32_t bits) {
    for (int level = FXA__EMIT_ROW; level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(e, (fxa__emit_level)level, bits, &w->c->text);
}

void fxa__cuda_pair_write(const cuda_work *w, const fxa__emit *e, uint32_t bits) {
    fxa__cuda_put(w, "        const int q = p.q, k = p.k;\n");
    write_statements(w, e, bits);
}

/* ---- Functions of pairs ------------------------------------------------------------------------------------------ */

/* Writes the members of Program that hold params in device memory. fill: false = writes the declarations of these
 * members, true = the statements that set these members. */
static void write_scalars(cuda_work *w, bool fill) {
    const fxa_program *p = w->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (n->op != FXA_OP_PARAM || !w->emit.pairs.given[i]) continue;
        if (!(w->emit.pairs.used[i] | w->emit.gradients.used[i] | w->emit.tile.used[i])) continue;
        if (fill)
            fxa__write_format(&w->c->text, "        %s = %s;\n", w->names.scalar[n->imm].member,
                              w->names.scalar[n->imm].call);
        else
            fxa__write_format(&w->c->text, "    %s %s;\n", n->type == FXA_FLOAT ? "float" : "int",
                              w->names.scalar[n->imm].member);
    }
}

/* Writes the members of Program whose values depend on the run or head alone, and head(), which computes them. */
static void write_head(cuda_work *w) {
    for (int level = FXA__EMIT_RUN; level <= FXA__EMIT_HEAD; level++)
        fxa__lower_emit_hoisted(&w->emit.pairs, (fxa__emit_level)level, &w->c->text);
    write_scalars(w, false);
    fxa__cuda_put(w, "    FXA_INLINE void head(const FxaArgs &a, int b, int h, int q_len, int k_len)\n    {\n"
                     "        const int heads = a.heads;\n");
    write_scalars(w, true);
    for (int level = FXA__EMIT_RUN; level <= FXA__EMIT_HEAD; level++)
        fxa__lower_emit_nodes(&w->emit.pairs, (fxa__emit_level)level, 0xff, &w->c->text);
    fxa__lower_emit_bases(&w->emit.pairs, &w->c->text);
    fxa__cuda_put(w, "    }\n");
}

/* Writes the statement of tile() that sets t<node>, a member of Program. */
static void write_tile_member(cuda_work *w, int32_t node) {
    const cuda_tile *x = &w->tiles[node];
    FXA__ASSERT(x->left >= 0 && (x->right >= 0) == (x->kind == CUDA_TILE_DIFFERENCE || x->kind == CUDA_TILE_EQUAL));
    fxa__write_format(&w->c->text, "        t%d = ", (int)node);
    if (x->kind == CUDA_TILE_DIFFERENCE) fxa__cuda_put(w, "fxa__apart(");
    if (x->kind == CUDA_TILE_EQUAL) fxa__cuda_put(w, "fxa__shift(");
    if (x->kind == CUDA_TILE_FLOAT) fxa__cuda_put(w, "(float)");
    fxa__lower_emit_value(&w->emit.tile, x->left, &w->c->text);
    if (x->right >= 0) {
        fxa__cuda_put(w, x->kind == CUDA_TILE_EQUAL ? ", fxa__wrap32(-(long long)" : ", ");
        fxa__lower_emit_value(&w->emit.tile, x->right, &w->c->text);
        fxa__cuda_put(w, x->kind == CUDA_TILE_EQUAL ? "))" : ")");
    }
    fxa__cuda_put(w, ";\n");
}

/* Writes the members t<node> that functions of a pair (q, k) read, and tile(), which computes them once per tile. */
static void write_tile(cuda_work *w) {
    int32_t n = w->c->program->n_nodes, count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!fxa__cuda_is_tiled(w, i)) continue;
        fxa__write_format(&w->c->text, "    %s t%d;\n", w->tiles[i].kind == CUDA_TILE_FLOAT ? "float" : "int", (int)i);
        count++;
    }
    if (!count) return;
    fxa__cuda_put(w, "    FXA_INLINE void tile(const FxaArgs &a, int q, int k)\n    {\n");
    write_statements(w, &w->emit.tile, CUDA_TILE);
    for (int32_t i = 0; i < n; i++)
        if (fxa__cuda_is_tiled(w, i)) write_tile_member(w, i);
    fxa__cuda_put(w, "    }\n");
}

/* Writes the return statement and the end of a function that returns a node. */
static void write_return(cuda_work *w, const fxa__emit *e, int32_t node) {
    fxa__cuda_put(w, "        return ");
    fxa__lower_emit_value(e, node, &w->c->text);
    fxa__cuda_put(w, ";\n    }\n");
}

/* Writes value(), and the overload that also returns the derivative. */
static void write_value(cuda_work *w) {
    int32_t derivative = fxa__program_output(w->c->program, FXA__OUT_DSCORE);
    if (w->c->switches.value) {
        fxa__cuda_put(w, "    FXA_INLINE float value(const FxaArgs &a, float score, const Pair &p) const\n    {\n");
        fxa__cuda_pair_write(w, &w->emit.pairs, CUDA_VALUE);
        write_return(w, &w->emit.pairs, w->c->computed.value);
    }
    if (!w->c->switches.derivative) return;
    fxa__cuda_put(
        w, "    FXA_INLINE float value(const FxaArgs &a, float score, const Pair &p, float &slope) const\n    {\n");
    fxa__cuda_pair_write(w, &w->emit.pairs, CUDA_VALUE | CUDA_DERIVATIVE);
    fxa__cuda_put(w, "        slope = ");
    fxa__lower_emit_value(&w->emit.pairs, derivative, &w->c->text);
    fxa__cuda_put(w, ";\n");
    if (w->c->switches.value)
        write_return(w, &w->emit.pairs, w->c->computed.value);
    else
        fxa__cuda_put(w, "        return score;\n    }\n");
}

static void write_user_backward(cuda_work *w) {
    if (!w->c->switches.user_backward) return;
    fxa__cuda_put(w, "    FXA_INLINE float user_backward(const FxaArgs &a, float score, const Pair &p, float dscore) "
                     "const\n    {\n");
    fxa__cuda_pair_write(w, &w->emit.pairs, CUDA_DERIVATIVE);
    write_return(w, &w->emit.pairs, fxa__program_output(w->c->program, FXA__OUT_DSCORE));
}

/* Writes softcap(), the tanh that value() reads in place of the score. */
static void write_softcap(cuda_work *w) {
    if (!w->c->switches.softcap) return;
    FXA__ASSERT(w->c->computed.softcap_at >= 0 && w->c->computed.softcap_factor >= 0);
    fxa__cuda_put(w,
                  "#define PROG_SOFTCAP 1\n    FXA_INLINE float softcap(const FxaArgs &a, float score) const\n    {\n"
                  "        return score_tanh(__fmul_rn(score, ");
    fxa__lower_emit_value(&w->emit.pairs, w->c->computed.softcap_factor, &w->c->text);
    if (!w->c->switches.softcap_has_unit)
        fxa__cuda_put(w, "));\n    }\n");
    else if (w->c->computed.unit_at >= 0)
        fxa__write_format(&w->c->text, ")) * a.f[%d];\n    }\n", (int)w->c->computed.unit_at);
    else
        fxa__cuda_put(w, ")) * LOG2E;\n    }\n");
    if (w->c->switches.softcap_has_unit) fxa__cuda_put(w, "#define PROG_SOFTCAP_HAS_UNIT 1\n");
    fxa__cuda_put(w, "#if !FXA_FAST_MATH\n#define PROG_SOFTCAP_SERIES 1\n");
    fxa__write_format(&w->c->text,
                      "    FXA_INLINE float series_limit(const FxaArgs &a) const { return a.f[%d]; }\n"
                      "    FXA_INLINE float softcap_series(const FxaArgs &a, float score) const\n    {\n"
                      "        return score_softcap_series(score, a.f + %d);\n    }\n",
                      (int)w->c->computed.softcap_at, (int)w->c->computed.softcap_at + 1);
    int at = (int)w->c->computed.softcap_at + 1 + FXA_CUDA_SOFTCAP_TERMS;
    fxa__write_format(&w->c->text,
                      "    FXA_INLINE float exp_limit(const FxaArgs &a) const { return a.f[%d]; }\n"
                      "    FXA_INLINE SoftcapExp softcap_exp(const FxaArgs &a) const\n    {\n        return {a.f[%d], ",
                      at, at + 1);
    if (w->c->switches.softcap_has_unit)
        fxa__write_format(&w->c->text, "a.f[%d], softcap_unit(a)};\n    }\n#endif\n", at + 2);
    else
        fxa__cuda_put(w, "-0.5f, 1.f};\n    }\n#endif\n");
}

static void write_uniform_mask(cuda_work *w) {
    if (w->n_conjuncts < 0) return;
    fxa__cuda_put(w, "    FXA_INLINE bool uniform_mask(const FxaArgs &a, const Pair &p) const\n    {\n");
    fxa__cuda_pair_write(w, &w->emit.pairs, CUDA_UNIFORM_MASK);
    fxa__cuda_put(w, "        return 1");
    for (int i = 0; i < w->n_conjuncts; i++) {
        fxa__cuda_put(w, " & ");
        fxa__lower_emit_value(&w->emit.pairs, w->conjuncts[i], &w->c->text);
    }
    fxa__cuda_put(w, ";\n    }\n");
}

/* Writes mask_whole(), the mask that compares entire 64-bit elements. mask() compares elements saturated to 32 bits,
 * and calls mask_whole() if the saturated element of the query is INT32_MIN or INT32_MAX: any other saturated element
 * equals another one only if the 64-bit elements are equal too. */
static void write_mask64(cuda_work *w) {
    fxa__cuda_put(w, "#define fxa__get_whole fxa__rare_whole\n"
                     "    FXA_INLINE bool mask_whole(const FxaArgs &a, const Pair &p) const\n    {\n");
    fxa__cuda_pair_write(w, &w->emit.mask64, CUDA_MASK);
    write_return(w, &w->emit.mask64, fxa__program_output(w->c->program, FXA__OUT_MASK));
    fxa__cuda_put(w, "#undef fxa__get_whole\n");
}

static void write_mask(cuda_work *w) {
    if (!w->c->switches.mask) return;
    bool is_64_bit = w->i64_operands && !w->backward;
    if (is_64_bit) write_mask64(w);
    /* The mask never reads the score: codegen/score_masks.c moves conditions that read the score out of the mask. */
    fxa__cuda_put(w, "    FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const\n    {\n");
    if (is_64_bit)
        fxa__cuda_put(w,
                      "        if (p.q_word == 2147483647 || p.q_word == -2147483647 - 1) return mask_whole(a, p);\n");
    fxa__cuda_pair_write(w, &w->emit.pairs, CUDA_MASK);
    write_return(w, &w->emit.pairs, fxa__program_output(w->c->program, FXA__OUT_MASK));
}

/* ---- The pass ---------------------------------------------------------------------------------------------------- */

/* Writes the switches (PROG_ macros) that differ from their defaults, except those of the soft cap, which
 * write_softcap() writes. */
static void write_switches(cuda_work *w) {
    struct FxaTraits here = w->c->switches;
    here.softcap = here.softcap_series = here.softcap_has_unit = 0;
    fxa__cuda_put(w, "#define FXA__OPS_F32\n#include \"program_ops.h\"\n#include \"interval_rules.h\"\n");
#define WRITE_SWITCH(member, macro, otherwise, meaning)                                                                \
    if (here.member != (otherwise)) fxa__write_format(&w->c->text, "#define %s %d\n", #macro, here.member);
    FXA_SWITCHES(WRITE_SWITCH)
#undef WRITE_SWITCH
}

fxa_status fxa__cuda_write_text(cuda_work *w, fxa_error *err) {
    write_switches(w);
    fxa__cuda_put(w, "struct Program : ProgramBase {\n");
    write_head(w);
    write_tile(w);
    write_value(w);
    write_user_backward(w);
    write_softcap(w);
    write_mask(w);
    write_uniform_mask(w);
    fxa__cuda_gradients_write(w);
    bool ok = fxa__cuda_tile_functions_write(w) && fxa__cuda_target_indices_write(w);
    fxa__cuda_put(w, "};\n");
    return ok && !w->c->text.failed ? FXA_OK : fxa__fail_memory(err, "the text of a program for CUDA kernels");
}
