/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the functions of program.cuh for gradients of params and captured tensors:
 * - partials() returns the terms of a pair (q, k) for gradients that are sums over all pairs of a head.
 * - scatter() adds the term of a pair to an element of a gradient.
 * - sum_place() and diagonal_place() return the index of the element to which the sum over all pairs of a head, or over
 *   those of equal q - k, is added.
 * These functions see gradients as contiguous arrays of f32 or FxaExact; host/captured_grads.c stores the arrays in the
 * caller's type and strides.
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../lower/grad_class.h"

/* Writes the variables "at", the index of an element in a contiguous array, and "inside", true if the element is in the
 * array. */
static void targets_element(const cuda_work *w, const fxa__emit *e, const fxa__output *out) {
    fxa__writer *text = &w->c->text;
    fxa__cuda_put(w, "            long long at = 0;\n            const int inside = 1");
    for (int32_t d = 0; d < out->n_index; d++) {
        fxa__write_format(text, " & fxa__at(a.tensor[%d].size[%d], 1ll", (int)out->slot, (int)d);
        for (int32_t i = d + 1; i < out->n_index; i++)
            fxa__write_format(text, " * a.tensor[%d].size[%d]", (int)out->slot, (int)i);
        fxa__cuda_put(w, ", ");
        fxa__lower_emit_value(e, out->index[d], text);
        fxa__cuda_put(w, ", &at)");
    }
    fxa__cuda_put(w, ";\n");
}

/* ---- Gradients of pairs ------------------------------------------------------------------------------------------ */

static void targets_partials(const cuda_work *w) {
    const fxa__cuda_program *c = w->c;
    if (!c->switches.grad_sums) return;
    fxa__write_format(&w->c->text,
                      "    FXA_INLINE void partials(const FxaArgs &a, float score, const Pair &p, float (&g)[%d]) "
                      "const\n    {\n",
                      (int)c->switches.grad_sums);
    fxa__cuda_pair_write(w, &w->emit.gradients, CUDA_GRADIENTS);
    for (int32_t i = 0; i < c->switches.grad_sums; i++) {
        fxa__write_format(&w->c->text, "        g[%d] = ", (int)i);
        fxa__lower_emit_value(&w->emit.gradients, c->program->outputs[c->gradients.sums[i]].value, &w->c->text);
        fxa__cuda_put(w, ";\n");
    }
    fxa__cuda_put(w, "    }\n");
}

/* Returns the name of the set of lanes of a warp that add to the same element of a gradient; NULL = unknown. */
static const char *targets_lanes(const cuda_work *w, int32_t output) {
    fxa__grad_kind kind = fxa__lower_grad(w->c->program, output, w->inputs).kind;
    if (kind <= FXA__GRAD_HEAD) return "ALL_LANES";
    return kind == FXA__GRAD_ROW ? "KEY_LANES" : kind == FXA__GRAD_KEY ? "QUERY_LANES" : NULL;
}

/* Writes the addition of a pair's term to one element of a captured tensor's gradient, if the element is inside the
 * tensor. Gradients of params are not scattered: they are sums (partials()). */
static void targets_add(const cuda_work *w, int32_t output) {
    const fxa__output *out = &w->c->program->outputs[output];
    const char *lanes = targets_lanes(w, output);
    FXA__ASSERT(out->kind == FXA__OUT_DLOAD && out->slot < FXA_CUDA_TENSORS);
    fxa__cuda_put(w, "        {\n");
    targets_element(w, &w->emit.gradients, out);
    fxa__cuda_put(w, "            float x = ds == 0.f ? 0.f : ds * (");
    fxa__lower_emit_value(&w->emit.gradients, out->value, &w->c->text);
    fxa__cuda_put(w, ");\n            if (");
    if (lanes)
        fxa__write_format(&w->c->text, "sum_lanes<%s>(x)", lanes);
    else
        fxa__cuda_put(w, "x != 0.f");
    fxa__write_format(&w->c->text, " & inside) %s[%d] + at, x);\n        }\n",
                      w->c->switches.grad_exact >> out->slot & 1 ? "exact_add((FxaExact *)a.grad_tensor"
                                                                 : "atomicAdd(a.grad_tensor",
                      (int)out->slot);
}

static void targets_scatter(const cuda_work *w) {
    if (!w->c->switches.grad_scatter) return;
    fxa__cuda_put(
        w, "    FXA_INLINE void scatter(const FxaArgs &a, int b, int h, float score, const Pair &p, float ds) const"
           "\n    {\n");
    fxa__cuda_pair_write(w, &w->emit.gradients, CUDA_GRADIENTS);
    for (int32_t i = 0; i < w->c->program->n_outputs; i++)
        if (fxa__cuda_is_scattered(w, i)) targets_add(w, i);
    fxa__cuda_put(w, "    }\n");
}

void fxa__cuda_gradients_write(const cuda_work *w) {
    targets_partials(w);
    targets_scatter(w);
}

/* ---- Target indices of sums -------------------------------------------------------------------------------------- */

/* Writes statements that return the index of the element to which gradient `out` is added, or -1 if the element is
 * outside of the tensor. Returns false if memory ran out. */
static bool targets_return(const cuda_work *w, const fxa__output *out, fxa__emit_level max_level) {
    fxa__emit e;
    bool ok = fxa__cuda_static_write(w, out->index, out->n_index, max_level, &e);
    if (ok) targets_element(w, &e, out);
    if (ok) fxa__cuda_put(w, "            return inside ? at : -1;\n");
    fxa__lower_emit_close(&e);
    return ok;
}

static bool targets_sums(const cuda_work *w) {
    const fxa__cuda_program *c = w->c;
    bool ok = true;
    if (!c->switches.grad_sums) return true;
    fxa__cuda_put(w, "    static FXA_INLINE long long sum_place(const FxaArgs &a, int b, int h, int i)\n    {\n");
    fxa__cuda_lengths_write(w, false);
    for (int32_t i = 0; i < c->switches.grad_sums && ok; i++) {
        const fxa__output *out = &c->program->outputs[c->gradients.sums[i]];
        if (out->kind != FXA__OUT_DLOAD) continue;
        fxa__write_format(&w->c->text, "        if (i == %d) {\n", (int)i);
        ok = targets_return(w, out, FXA__EMIT_HEAD);
        fxa__cuda_put(w, "        }\n");
    }
    fxa__cuda_put(w, "        return -1;\n    }\n");
    return ok;
}

/* Writes diagonal_place(), which returns the index of the element to which all pairs (q, k) with q - k = d add: the
 * statements compute it for the first pair of the diagonal d. */
static bool targets_diagonal(const cuda_work *w) {
    if (!w->c->switches.grad_diagonal) return true;
    const fxa__node *load = &w->c->program->nodes[w->c->operands.diagonal];
    FXA__ASSERT(load->op == FXA_OP_LOAD);
    fxa__output out = {.kind = FXA__OUT_DLOAD, .slot = load->imm, .n_index = load->n_args};
    for (int d = 0; d < load->n_args; d++) out.index[d] = load->arg[d];
    fxa__cuda_put(w, "    static FXA_INLINE long long diagonal_place(const FxaArgs &a, int b, int h, int d)\n    {\n");
    fxa__cuda_lengths_write(w, true);
    bool ok = targets_return(w, &out, FXA__EMIT_PAIR);
    fxa__cuda_put(w, "    }\n");
    return ok;
}

bool fxa__cuda_target_indices_write(const cuda_work *w) { return targets_sums(w) && targets_diagonal(w); }
