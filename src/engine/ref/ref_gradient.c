/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward of the score program, pair by pair. The gradient of the scaled score comes from the user-written backward
 * program if there is one, else from the derivative of the score program. Gradients of captured tensors and params
 * always come from this derivative; they are summed densely in f64 over all pairs and stored once.
 */
#include "ref.h"

#include "../../base/dtype.h"

#include <string.h>

/* Returns true if the gradient of a captured tensor or param is requested. */
static bool ref_has_sums(const fxa__ref *r) {
    for (int32_t t = 0; t < r->p->program->n_tensors; t++)
        if (r->dtensor[t].sum) return true;
    return r->p->in.param_grads != 0;
}

/* Executes `grad tensor[index] += value`. Does nothing if the index is out of bounds, because the load then returned
 * 0. */
static void ref_add_load(fxa__ref *r, const fxa__output *out, double value) {
    const fxa__ref_sum *target = &r->dtensor[out->slot];
    int32_t index[FXA_MAX_RANK] = {0};
    int64_t offset;
    for (int32_t i = 0; i < out->n_index; i++) index[i] = r->vals[out->index[i]].i;
    if (target->sum && fxa__view_offset(&target->view, index, &offset)) target->sum[offset] += value;
}

/* Evaluates the derivative program and adds the values of its `grad` statements to the sums. Returns the program's
 * output dscore. */
static double ref_derivative(fxa__ref *r) {
    const fxa_program *d = r->derivative;
    fxa__program_eval(d, &r->env, r->vals);
    for (int32_t i = 0; i < d->n_outputs; i++) {
        const fxa__output *out = &d->outputs[i];
        double value = r->vals[out->value].f;
        if (out->kind == FXA__OUT_DPARAM) r->dparams[out->slot] += value;
        if (out->kind == FXA__OUT_DLOAD) ref_add_load(r, out, value);
    }
    return r->vals[fxa__program_output(d, FXA__OUT_DSCORE)].f;
}

/* Evaluates the user-written backward program. Returns the program's output dscore. */
static double ref_bprop(fxa__ref *r) {
    const fxa_program *bprop = r->p->bprop;
    fxa__env env = r->env;
    env.params = r->bound->bprop_params;
    env.tensors = r->bound->bprop_tensors;
    fxa__program_eval(bprop, &env, r->vals);
    return r->vals[fxa__program_output(bprop, FXA__OUT_DSCORE)].f;
}

double fxa__ref_program_backward(fxa__ref *r, double dnew) {
    r->env.dscore = dnew;
    if (!r->p->in.bprop) return ref_derivative(r);
    if (ref_has_sums(r)) ref_derivative(r);
    return ref_bprop(r);
}

/* Returns the number of elements of a view. */
static int64_t ref_view_count(const fxa_view *view) {
    int64_t n = 1;
    for (int32_t i = 0; i < view->rank; i++) n *= view->size[i];
    return n;
}

void fxa__ref_clear_sums(fxa__ref *r) {
    const fxa_program *program = r->p->program;
    for (int32_t i = 0; i < program->n_params; i++) r->dparams[i] = 0;
    for (int32_t t = 0; t < program->n_tensors; t++)
        for (int64_t i = 0; r->dtensor[t].sum && i < ref_view_count(&r->dtensor[t].view); i++) r->dtensor[t].sum[i] = 0;
}

/* Returns the offset in `view` of element i in row-major order. */
static int64_t ref_element_offset(const fxa_view *view, int64_t i) {
    int64_t offset = 0;
    for (int32_t axis = view->rank - 1; axis >= 0; axis--) {
        offset += i % view->size[axis] * view->stride[axis];
        i /= view->size[axis];
    }
    return offset;
}

/* Stores the gradient of one captured tensor in `data`; with `add`, adds the gradient to the stored values. */
static void ref_store_tensor(const fxa__ref_sum *from, const fxa_view *to, void *data, bool add) {
    int64_t n = ref_view_count(&from->view);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = ref_element_offset(to, i);
        double old = add ? fxa__load_f64(data, to->dtype, at) : 0;
        fxa__store_f64(data, to->dtype, at, old + from->sum[i]);
    }
}

void fxa__ref_store_sums(const fxa__ref *r) {
    const fxa_problem *p = &r->p->in;
    for (int32_t t = 0; t < r->p->program->n_tensors; t++) {
        const fxa_view *to = &r->bound->dtensors[t];
        void *data = (void *)(uintptr_t)to->data; /* drops const: fxa_view::data is const, also for outputs */
        if (r->dtensor[t].sum) ref_store_tensor(&r->dtensor[t], to, data, p->flags & FXA_ACCUMULATE_DTENSORS);
    }
    for (int32_t i = 0; i < r->p->program->n_params; i++)
        if (p->param_grads >> i & 1)
            r->bound->dparams[i] = (p->flags & FXA_ACCUMULATE_DPARAMS ? r->bound->dparams[i] : 0) + r->dparams[i];
}
