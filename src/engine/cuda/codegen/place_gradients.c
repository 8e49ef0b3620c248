/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides how the terms of each requested gradient of a param or captured tensor are added:
 * - dS summed over the pairs (q, k) of equal q - k, if a captured tensor is the diagonal row, a table over q - k
 * - dS stored as it is, for the dense tensor, which has an element per pair (q, k)
 * - one sum over all pairs of a head
 * - by scatter(), pair by pair
 * Also decides which sums are FxaExact, whose bits do not depend on the order of additions.
 */
#include "passes.h"

#include "../../../base/invariant.h"

bool fxa__cuda_is_number(const fxa_program *p, int32_t node, double x) {
    return p->nodes[node].op == FXA_OP_CONST && p->nodes[node].type == FXA_FLOAT && p->nodes[node].f == x;
}

/* Returns true if an output is the gradient of the element that node `load` reads, and the new score's derivative by
 * this element is 1: kernels then sum or store dS itself. Returns false for the diagonal row if there is a user
 * backward: kernels then have no dS to sum along diagonals, but the result of user_backward(). */
static bool grads_is_load(const cuda_work *w, const fxa__output *out, int32_t load) {
    const fxa_program *p = w->c->program;
    if (w->c->switches.user_backward && load == w->c->operands.diagonal) return false;
    if (load < 0 || w->c->switches.derivative || p->nodes[load].op != FXA_OP_LOAD || out->kind != FXA__OUT_DLOAD)
        return false;
    if (p->nodes[load].imm != out->slot || !fxa__cuda_is_number(p, out->value, 1)) return false;
    for (int32_t d = 0; d < out->n_index; d++)
        if (p->nodes[load].arg[d] != out->index[d]) return false;
    return true;
}

/* Returns true if `out` is a gradient that the caller requests and that is not always 0. Requests are bits of the
 * params and tensors of the caller's program, whose indices in the rewritten program differ. */
static bool grads_is_wanted(const cuda_work *w, const fxa__output *out) {
    const fxa__cuda_program *c = w->c;
    if (fxa__cuda_is_number(c->program, out->value, 0)) return false;
    if (out->kind == FXA__OUT_DLOAD) {
        int32_t tensor = fxa__cuda_caller_tensor(c, out->slot);
        return tensor >= 0 && (w->config.grad_tensors >> tensor & 1);
    }
    return out->kind == FXA__OUT_DPARAM && c->params[out->slot].source >= 0 &&
           (w->config.grad_params >> c->params[out->slot].source & 1);
}

/* Returns true if requested gradients read the score, which kernels pass to them only with PROG_DERIVATIVE. Even if the
 * derivative by the score is 1, a gradient may read the score in a comparison, in an index, or in an operation through
 * which no derivative passes (floor, with_grad). */
bool fxa__cuda_gradients_read_score(const cuda_work *w) {
    const fxa_program *p = w->c->program;
    uint32_t inputs = 0;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        if (!grads_is_wanted(w, out)) continue;
        inputs |= w->inputs[out->value].inputs;
        for (int32_t d = 0; d < out->n_index; d++) inputs |= w->inputs[out->index[d]].inputs;
    }
    return inputs & 1u << FXA_INPUT_SCORE;
}

/* Decides for each requested gradient how it is summed. Of the gradients that are one sum per head, those beyond the
 * first FXA_CUDA_SUMS are added pair by pair by scatter(). */
static void grads_choose_sums(cuda_work *w) {
    fxa__cuda_program *c = w->c;
    for (int32_t i = 0; i < c->program->n_outputs; i++) {
        const fxa__output *out = &c->program->outputs[i];
        w->wanted[i] = grads_is_wanted(w, out);
        if (!w->wanted[i]) continue;
        fxa__grad grad = fxa__lower_grad(c->program, i, w->inputs);
        if (grads_is_load(w, out, c->operands.diagonal))
            c->switches.grad_diagonal = true;
        else if (grads_is_load(w, out, c->operands.dense))
            c->switches.grad_dense = true;
        else if (grad.kind <= FXA__GRAD_HEAD && c->switches.grad_sums < FXA_CUDA_SUMS)
            c->gradients.sums[c->switches.grad_sums++] = i;
        else
            c->switches.grad_scatter = true;
        FXA__ASSERT(fxa__cuda_is_scattered(w, i) <= c->switches.grad_scatter); /* scatter() exists if needed */
    }
}

/* Chooses the tensors whose gradients are summed in FxaExact: those with one sum per head; and, if results must be
 * deterministic, those in which several pairs (q, k) may add to the same element, in any order. */
static void grads_choose_exact(cuda_work *w) {
    fxa__cuda_program *c = w->c;
    const uint32_t pair = 1u << FXA_INPUT_B | 1u << FXA_INPUT_H | 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    for (int32_t i = 0; i < c->program->n_outputs; i++) {
        const fxa__output *out = &c->program->outputs[i];
        uint32_t own = 0;
        if (!w->wanted[i] || out->kind != FXA__OUT_DLOAD || grads_is_load(w, out, c->operands.dense)) continue;
        bool scattered = fxa__cuda_is_scattered(w, i), sum = !scattered && !grads_is_load(w, out, c->operands.diagonal);
        bool is_separate =
            scattered && fxa__lower_grad_is_injective(c->program, out->slot, &own) && (own & pair) == pair;
        if (sum || (c->gradients.deterministic && !is_separate)) c->switches.grad_exact |= 1 << out->slot;
    }
}

bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output) {
    const fxa__cuda_program *c = w->c;
    const fxa__output *out = &c->program->outputs[output];
    for (int32_t i = 0; i < c->switches.grad_sums; i++)
        if (c->gradients.sums[i] == output) return false;
    return w->wanted[output] && !grads_is_load(w, out, c->operands.diagonal) &&
           !grads_is_load(w, out, c->operands.dense);
}

fxa_status fxa__cuda_place_gradients(cuda_work *w, fxa_error *err) {
    (void)err;
    w->c->gradients.deterministic = w->config.deterministic;
    grads_choose_sums(w);
    grads_choose_exact(w);
    FXA__ASSERT(w->c->switches.grad_exact >> w->c->program->n_tensors == 0);
    w->c->switches.grad_diagonal_exact = w->config.deterministic && w->c->switches.grad_diagonal;
    return FXA_OK;
}
