/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of modules that were exported with symbolic shapes (jax.export). The problem of such a module has placeholders
 * for the sizes; each execution reads the sizes from its buffers and gets the plan of these sizes from the library's
 * cache. Only on the host: on a device the workspace's size is part of the module.
 */
#include "jax_call.h"
#include "jax_state.h"

#include <string.h>

typedef struct follow_copy {
    fxa_problem problem;
    fxa_capture captures[FXA_MAX_TENSORS], bprop_captures[FXA_MAX_TENSORS];
} follow_copy;

/* Makes a captured tensor and its gradient dense, for any sizes: old strides do not fit new sizes. */
static void capture_free(fxa_capture *capture) {
    capture->strided = capture->grad_strided = 0;
    memset(capture->stride, 0, sizeof capture->stride);
    memset(capture->grad_stride, 0, sizeof capture->grad_stride);
}

static void capture_follow(fxa_capture *captures, size_t n, int64_t i, const fxa__xla_buffer *buffer) {
    if (i < (int64_t)n && buffer->rank <= FXA_MAX_RANK) {
        memcpy(captures[i].size, buffer->size, (size_t)buffer->rank * sizeof *buffer->size);
    }
}

/* Sets the problem's sizes from a buffer [B,S,H,D] or [B,H,S,D]. Returns false if the buffer has another rank. */
static bool operand_follow(fxa_problem *p, int64_t slot, fxa_layout layout, const fxa__xla_buffer *buffer) {
    int s = layout == FXA_LAYOUT_BSHD ? 1 : 2;
    const int64_t *size = buffer->size;
    if (buffer->rank != 4) {
        return false;
    }
    if (slot == FXA_SLOT_Q) {
        p->b = size[0];
        p->sq = size[s];
        p->hq = size[3 - s];
        p->d_qk = size[3];
    } else if (slot == FXA_SLOT_K) {
        p->sk = size[s];
        p->hkv = size[3 - s];
    } else {
        p->d_v = size[3] ? size[3] : FXA_D_V_ZERO;
    }
    return true;
}

static bool buffer_follow(follow_copy *c, int64_t role, fxa_layout layout, const fxa__xla_buffer *buffer) {
    fxa_problem *p = &c->problem;
    if (role == FXA_SLOT_Q || role == FXA_SLOT_K || role == FXA_SLOT_V) {
        return operand_follow(p, role, layout, buffer);
    }
    if (role >= FXA__JAX_TENSORS && role < FXA__JAX_BPROP_TENSORS) {
        capture_follow(c->captures, p->n_captures, role - FXA__JAX_TENSORS, buffer);
    } else if (role >= FXA__JAX_BPROP_TENSORS && role < FXA__JAX_ROLES) {
        capture_follow(c->bprop_captures, p->n_bprop_captures, role - FXA__JAX_BPROP_TENSORS, buffer);
    }
    return true;
}

/* Copies the captures and replaces all strides of the problem, which belong to its old sizes, by dense layouts. */
static void layouts_set(follow_copy *c, fxa_layout layout) {
    fxa_problem *p = &c->problem;
    fxa_operand *floats[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    fxa_operand *rows[] = {&p->lse, &p->row_max, &p->dlse, &p->sinks, &p->dsinks};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *floats[i] = (fxa_operand){floats[i]->dtype, layout, {0}};
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *rows[i] = (fxa_operand){rows[i]->dtype, FXA_LAYOUT_BHSD, {0}};
    }
    for (size_t i = 0; i < p->n_captures; i++) {
        c->captures[i] = p->captures[i];
        capture_free(&c->captures[i]);
    }
    for (size_t i = 0; i < p->n_bprop_captures; i++) {
        c->bprop_captures[i] = p->bprop_captures[i];
        capture_free(&c->bprop_captures[i]);
    }
    p->captures = p->n_captures ? c->captures : NULL;
    p->bprop_captures = p->n_bprop_captures ? c->bprop_captures : NULL;
}

fxa_status fxa__jax_follow(fxa__jax_call *call, int64_t layout, const int64_t *roles) {
    follow_copy copy;
    fxa_plan *made = NULL;
    bool fits = layout == FXA_LAYOUT_BSHD || layout == FXA_LAYOUT_BHSD;
    memset(&copy, 0, sizeof copy);
    copy.problem.struct_size = sizeof copy.problem;
    fxa__jax.fxa_plan_problem(call->plan, &copy.problem);
    layouts_set(&copy, (fxa_layout)layout);
    for (int64_t i = 0; i < call->frame->operands.count && fits; i++) {
        fits = buffer_follow(&copy, roles[i], (fxa_layout)layout, call->frame->operands.values[i]);
    }
    if (!fits) {
        call->err = (fxa_error){.status = FXA_E_ARGUMENT, .text = "sizes cannot be read off buffers of this layout"};
        return FXA_E_ARGUMENT;
    }
    fxa_status status = fxa__jax_plan_of(&copy.problem, &made, &call->err);
    if (!status) {
        fxa__jax.fxa_plan_destroy(call->plan);
        call->plan = made;
    }
    return status;
}
