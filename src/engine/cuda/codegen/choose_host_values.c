/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which floats the host computes for a run, and where FxaArgs.f[] has each: nodes that depend on params alone
 * and that other nodes read, the unit (the uniform factor of the score), and the constants of softcap().
 * codegen/host_values.c computes these floats.
 */
#include "passes.h"

#include "../../../base/invariant.h"

/* State of a node. HOST_OPEN: undecided; HOST_CHOSEN: read from f[]; HOST_EXCLUDED: computed by the functions that read
 * the node. */
enum { HOST_OPEN, HOST_CHOSEN, HOST_EXCLUDED };

/* Returns true if the host computes a node: the host can compute it, and it is neither a param nor a constant. */
static bool host_is_filled(const cuda_work *w, int32_t node) {
    uint8_t op = w->c->program->nodes[node].op;
    return fxa__cuda_is_run(w, node) && op != FXA_OP_PARAM && op != FXA_OP_CONST &&
           fxa__cuda_is_host_value(w->c->program, node);
}

/* Returns true if the forward computes the node too: value() or mask() needs the node. */
static bool host_is_forward(const cuda_work *w, int32_t node) { return w->need[node] & (CUDA_VALUE | CUDA_MASK); }

/* Chooses floats that depend on params alone and that are operands of a node that depends on other values too.
 * forward: true = only operands of nodes that value() or mask() needs. */
static void host_read(cuda_work *w, uint8_t *state, bool forward) {
    fxa__cuda_program *c = w->c;
    const fxa_program *p = c->program;
    for (int32_t i = 0; i < p->n_nodes && c->computed.n < FXA__CUDA_HOST_VALUES; i++) {
        if (fxa__cuda_is_run(w, i) || (forward && !host_is_forward(w, i))) continue;
        for (int k = 0; k < p->nodes[i].n_args && c->computed.n < FXA__CUDA_HOST_VALUES; k++) {
            int32_t x = p->nodes[i].arg[k];
            if (state[x] != HOST_OPEN || !host_is_filled(w, x)) continue;
            state[x] = HOST_CHOSEN;
            FXA__ASSERT(!w->inputs[x].inputs && !w->inputs[x].tensors);
            c->computed.node[c->computed.n++] = x;
        }
    }
}

/* Excludes the operands of nodes that the kernel of the forward computes although they depend on params alone: it
 * computes the operands too, so the backward must not read them from f[], whose bits may differ. */
static void host_exclude(const cuda_work *w, uint8_t *state) {
    const fxa_program *p = w->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!fxa__cuda_is_run(w, i) || !host_is_forward(w, i) || state[i] == HOST_CHOSEN) continue;
        for (int k = 0; k < p->nodes[i].n_args; k++)
            if (state[p->nodes[i].arg[k]] != HOST_CHOSEN) state[p->nodes[i].arg[k]] = HOST_EXCLUDED;
    }
}

/* If value() = c * tanh, sets computed.gain to c: softcap() then multiplies by c, and the bound of |value()| is 1, that
 * of the tanh. Only a c that may be <= 0, infinite or NaN is in value(); any other c is computed.factor. */
static void host_gain(fxa__cuda_program *c) {
    const fxa_program *p = c->program;
    const fxa__node *n = &p->nodes[c->computed.value];
    for (int k = 0; c->computed.factor < 0 && n->op == FXA_OP_MUL && k < 2; k++)
        if (n->arg[k] == c->computed.softcap && fxa__cuda_is_host_value(p, n->arg[1 - k]))
            c->computed.gain = n->arg[1 - k];
    if (c->computed.gain >= 0) c->bounds.value = c->switches.bounded = 1;
}

/* Sets the indices in f[] of the unit (factor of the score that depends on params alone) and of the constants of
 * softcap(). They follow the values of computed.node[]. */
static void host_places(cuda_work *w) {
    fxa__cuda_computed *to = &w->c->computed;
    int32_t next = to->at + to->n;
    if (to->factor >= 0 && fxa__cuda_is_host_value(w->c->program, to->factor)) to->unit_at = next++;
    if (to->softcap < 0) return;
    if (!w->backward) host_gain(w->c);
    if (to->gain >= 0) to->unit_at = next, next += 2;
    to->softcap_at = next;
    FXA__ASSERT(next + 1 + FXA_CUDA_SOFTCAP_TERMS + 3 <= FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES);
    w->c->switches.softcap_has_unit =
        !w->backward && (to->gain >= 0 || (to->value == to->softcap && (to->unit_at >= 0 || to->factor < 0)));
}

/* Chooses no host value if params are in device memory. The backward chooses the same values for score and mask as the
 * forward, so that both compute the same bits. */
fxa_status fxa__cuda_choose_host_values(cuda_work *w, fxa_error *err) {
    fxa__cuda_computed *to = &w->c->computed;
    const fxa_program *p = w->c->program;
    uint8_t *state = fxa__alloc(w->host, (size_t)p->n_nodes);
    if (!state) return fxa__fail_memory(err, "the text of a program for CUDA kernels");
    to->unit_at = to->softcap_at = to->gain = -1;
    for (int32_t i = 0; i < p->n_params; i++) to->at += p->params[i].type == FXA_FLOAT;
    FXA__ASSERT(to->at <= FXA_CUDA_SCALARS);
    if (!w->config.scalars_in_memory) {
        host_read(w, state, true);
        host_exclude(w, state);
        host_read(w, state, false);
        host_places(w);
    }
    fxa__free(w->host, state, (size_t)p->n_nodes);
    fxa__cuda_param_names_make(w, &w->names);
    return FXA_OK;
}
