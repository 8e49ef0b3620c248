/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the functions of program.cuh for gradients of params and captured tensors. partials() returns the terms that a
 * pair adds to sums. scatter() adds a pair's term to an element of a gradient; sum_place() and diagonal_place() return
 * the index of the element to which a sum over all pairs of (b, h), or along a diagonal, is added. Gradients are
 * contiguous arrays of f32 or FxaExact here; host/captured_grads.c stores them in the caller's type and strides.
 */
#include "passes.h"

#include "../../../lower/emit.h"
#include "../../../lower/grad_class.h"

#include <string.h>

static void targets_put(fxa__writer *w, const char *text) { fxa__write_bytes(w, text, strlen(text)); }

/* Writes the variables "at", the index of an element in a contiguous array, and "inside", true if the element is in the
 * array. */
static void targets_element(const fxa__emit *e, const fxa__output *out, fxa__writer *w) {
    targets_put(w, "            long long at = 0;\n            const int inside = 1");
    for (int32_t d = 0; d < out->n_index; d++) {
        fxa__write_format(w, " & fxa__at(a.tensor[%d].size[%d], 1ll", (int)out->slot, (int)d);
        for (int32_t i = d + 1; i < out->n_index; i++)
            fxa__write_format(w, " * a.tensor[%d].size[%d]", (int)out->slot, (int)i);
        targets_put(w, ", ");
        fxa__lower_emit_value(e, out->index[d], w);
        targets_put(w, ", &at)");
    }
    targets_put(w, ";\n");
}

/* ---- Gradients of pairs ------------------------------------------------------------------------------------------ */

static void targets_inside(const fxa__emit *grads, fxa__writer *w) {
    targets_put(w, "        const int q = p.q, k = p.k;\n");
    for (int level = FXA__EMIT_ROW; level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(grads, (fxa__emit_level)level, CUDA_GRADIENTS, w);
}

static void targets_partials(const fxa__cuda_program *c, const fxa__emit *grads, fxa__writer *w) {
    if (!c->switches.grad_sums) return;
    fxa__write_format(w,
                      "    FXA_INLINE void partials(const FxaArgs &a, float score, const Pair &p, float (&g)[%d]) "
                      "const\n    {\n",
                      (int)c->switches.grad_sums);
    targets_inside(grads, w);
    for (int32_t i = 0; i < c->switches.grad_sums; i++) {
        fxa__write_format(w, "        g[%d] = ", (int)i);
        fxa__lower_emit_value(grads, c->program->outputs[c->gradients.sums[i]].value, w);
        targets_put(w, ";\n");
    }
    targets_put(w, "    }\n");
}

/* Returns the name of the set of lanes of a warp that add to the same element of a gradient; NULL = unknown. */
static const char *targets_lanes(const cuda_work *k, int32_t output) {
    fxa__grad_kind kind = fxa__lower_grad(k->c->program, output, k->inputs).kind;
    if (kind <= FXA__GRAD_HEAD) return "ALL_LANES";
    return kind == FXA__GRAD_ROW ? "KEY_LANES" : kind == FXA__GRAD_KEY ? "QUERY_LANES" : NULL;
}

/* Writes the addition of a pair's term to one element of a tensor's gradient, if its indices are inside. Gradients of
 * params are sums (partials()), so scatter() adds none. */
static void targets_add(const cuda_work *k, const fxa__emit *grads, int32_t output, fxa__writer *w) {
    const fxa__output *out = &k->c->program->outputs[output];
    const char *lanes = targets_lanes(k, output);
    targets_put(w, "        {\n");
    targets_element(grads, out, w);
    targets_put(w, "            float x = ds == 0.f ? 0.f : ds * (");
    fxa__lower_emit_value(grads, out->value, w);
    targets_put(w, ");\n            if (");
    if (lanes)
        fxa__write_format(w, "sum_lanes<%s>(x)", lanes);
    else
        targets_put(w, "x != 0.f");
    fxa__write_format(w, " & inside) %s[%d] + at, x);\n        }\n",
                      k->c->switches.grad_exact >> out->slot & 1 ? "exact_add((FxaExact *)a.grad_tensor"
                                                                 : "atomicAdd(a.grad_tensor",
                      (int)out->slot);
}

static void targets_scatter(const cuda_work *k, const fxa__emit *grads, fxa__writer *w) {
    if (!k->c->switches.grad_scatter) return;
    targets_put(
        w, "    FXA_INLINE void scatter(const FxaArgs &a, int b, int h, float score, const Pair &p, float ds) const"
           "\n    {\n");
    targets_inside(grads, w);
    for (int32_t i = 0; i < k->c->program->n_outputs; i++)
        if (fxa__cuda_is_scattered(k, i)) targets_add(k, grads, i, w);
    targets_put(w, "    }\n");
}

void fxa__cuda_gradients_write(const cuda_work *k) {
    targets_partials(k->c, &k->emit.gradients, &k->c->text);
    targets_scatter(k, &k->emit.gradients, &k->c->text);
}

/* ---- Target indices of sums -------------------------------------------------------------------------------------- */

/* Writes statements that return the index of the element to which gradient `out` is added, -1 = outside of the tensor.
 * Returns false if memory ran out. */
static bool targets_return(const cuda_work *k, const fxa__output *out, fxa__emit_level most, fxa__writer *w) {
    fxa__emit e;
    bool ok = fxa__lower_emit_open(k->host, k->c->program, FXA__CUDA_F32, 0, &e);
    if (ok) {
        fxa__cuda_param_names_use(k, &e, false);
        for (int32_t d = 0; d < out->n_index; d++) fxa__lower_emit_require(&e, out->index[d], CUDA_VALUE);
        for (int32_t i = 0; i < e.p->n_nodes; i++) e.hoisted[i] = 0;
        for (int level = FXA__EMIT_RUN; level <= (int)most; level++)
            fxa__lower_emit_nodes(&e, (fxa__emit_level)level, CUDA_VALUE, w);
        targets_element(&e, out, w);
        targets_put(w, "            return inside ? at : -1;\n");
    }
    fxa__lower_emit_close(&e);
    return ok;
}

static const char targets_lengths[] =
    "        const int q_len = q_length(a, b), k_len = k_length(a, b), heads = a.heads;\n";

static bool targets_sums(const cuda_work *k, fxa__writer *w) {
    const fxa__cuda_program *c = k->c;
    bool ok = true;
    if (!c->switches.grad_sums) return true;
    targets_put(w, "    static FXA_INLINE long long sum_place(const FxaArgs &a, int b, int h, int i)\n    {\n");
    targets_put(w, targets_lengths);
    for (int32_t i = 0; i < c->switches.grad_sums && ok; i++) {
        const fxa__output *out = &c->program->outputs[c->gradients.sums[i]];
        if (out->kind != FXA__OUT_DLOAD) continue;
        fxa__write_format(w, "        if (i == %d) {\n", (int)i);
        ok = targets_return(k, out, FXA__EMIT_HEAD, w);
        targets_put(w, "        }\n");
    }
    targets_put(w, "        return -1;\n    }\n");
    return ok;
}

/* Writes diagonal_place(). All pairs of a diagonal add to one element; the statements use the diagonal's first pair. */
static bool targets_diagonal(const cuda_work *k, fxa__writer *w) {
    const fxa__cuda_program *c = k->c;
    if (!c->switches.grad_diagonal) return true;
    const fxa__node *load = &c->program->nodes[c->operands.diagonal];
    fxa__output out = {.kind = FXA__OUT_DLOAD, .slot = load->imm, .n_index = load->n_args};
    for (int d = 0; d < load->n_args; d++) out.index[d] = load->arg[d];
    targets_put(w, "    static FXA_INLINE long long diagonal_place(const FxaArgs &a, int b, int h, int d)\n    {\n");
    targets_put(w, targets_lengths);
    targets_put(w, "        const int q = max(d, 0), k = max(-d, 0);\n");
    bool ok = targets_return(k, &out, FXA__EMIT_PAIR, w);
    targets_put(w, "    }\n");
    return ok;
}

bool fxa__cuda_target_indices_write(const cuda_work *k) {
    return targets_sums(k, &k->c->text) && targets_diagonal(k, &k->c->text);
}
