/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalars of a score program in problems with 8-bit Q, K and V. cuDNN's 8-bit kernels identify their scales by the
 * order in which scalars [1,1,1,1] appear among the operations of a graph: in any graph, the kernels multiply the
 * scores by the first three scalars after Q K^T, as the last operations before the softmax; the next scalar is the
 * scale of P, and so on. A scalar of the program would be mistaken for one of these; on a device, every program with a
 * scalar gave wrong results.
 *
 * The first three scalars are therefore 1. The descales, the scale and all scalars of the program are tensors [1,H,1,1]
 * in memory, which a run writes first, one value per head; cuDNN reads such tensors correctly. With one head, the
 * tensor is [1,1,Sq,1] with stride 0, which backward does not support.
 */
#include "attention.h"

#include "../../../base/invariant.h"
#include "../../../problem/scales.h"

#include <string.h>

static const int64_t fp8_scalar_dim[4] = {1, 1, 1, 1};

/* bits of 1.0f, which a run writes */
enum { FP8_SCALAR_ONE = 0x3f800000 };

bool fxa__dnn_fp8_has_scalars(fxa__dnn_attention *a) {
    const fxa_program *p = a->program;
    bool bare = p->nodes[fxa__program_output(p, FXA__OUT_SCORE)].op == FXA_OP_INPUT;
    return fxa__dnn_is_fp8(&a->p->in) && !(bare && fxa__dnn_mask_is_banded(a));
}

/* Returns a tensor in the workspace for a scalar, with a shape that cuDNN reads correctly. */
static int32_t fp8_scalar_new(fxa__dnn_attention *a, uint8_t type) {
    const int64_t dim[4] = {1, a->p->in.hq, 1, 1};
    int32_t t = fxa__dnn_scratch(&a->g, dim, type);
    if (a->g.status != FXA_OK || a->p->in.hq > 1) return t;
    if (a->p->in.pass == FXA_BACKWARD)
        return fxa__dnn_refuse(&a->g, "hq is 1: of 8 bits cuDNN's backward takes no number of a program for one head");
    a->g.tensors[t].dim[2] = a->p->in.sq, a->g.tensors[t].stride[2] = 0;
    return t;
}

/* Adds a helper kernel that copies one scalar to the element of each head. */
static fxa__dnn_step *fp8_scalar_copy(fxa__dnn_attention *a) {
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_COPY, false, a->p->in.hq);
    FxaGpuCopy *c = &step->args.copy;
    c->rows.size[0] = c->rows.size[2] = c->rows.size[3] = 1, c->rows.size[1] = a->p->in.hq;
    return step;
}

/* Returns s multiplied by a scale of the caller, or by 1 in runs that do not pass the scale. */
static int32_t fp8_descale(fxa__dnn_attention *a, int32_t s, fxa_slot slot) {
    if (fxa__scale_use_of(&a->p->in, slot) < FXA__SCALE_READ) return s;
    int32_t t = fp8_scalar_new(a, CUDNN_DATA_FLOAT);
    if (a->g.status != FXA_OK) return 0;
    a->g.tensors[t].fill = FP8_SCALAR_ONE;
    fxa__dnn_step *step = fp8_scalar_copy(a);
    step->optional = true, step->args.copy.from.type = FXA_F32;
    fxa__dnn_step_point(step, &step->args.copy.from.data, FXA__DNN_SLOT, (int32_t)slot, 0);
    fxa__dnn_step_tensor(step, &step->args.copy.to, &a->g, t);
    return fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, s, t);
}

int32_t fxa__dnn_fp8_scores_descale(fxa__dnn_attention *a, int32_t s) {
    for (int i = 0; i < 3; i++) {
        int32_t one = fxa__dnn_scratch(&a->g, fp8_scalar_dim, CUDNN_DATA_FLOAT);
        if (a->g.status == FXA_OK) a->g.tensors[one].fill = FP8_SCALAR_ONE;
        s = fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, s, one);
    }
    a->first = a->g.n_ops;
    return fp8_descale(a, fp8_descale(a, s, FXA_SLOT_DESCALE_Q), FXA_SLOT_DESCALE_K);
}

/* Returns the tensor in memory that replaces the scalar `number`: a run writes a scalar that is passed by value, and a
 * helper kernel copies a scalar in memory. Returns other tensors unchanged. */
static int32_t fp8_scalar_move(fxa__dnn_attention *a, int32_t number) {
    if (number < 0 || a->g.status != FXA_OK) return number;
    fxa__dnn_tensor t = a->g.tensors[number];
    bool one = t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3] == 1 && t.source != FXA__DNN_VIRTUAL;
    if (!one || t.per_head) return number;
    int32_t room = fp8_scalar_new(a, t.type);
    if (a->g.status != FXA_OK) return number;
    if (!fxa__dnn_is_by_value(&t)) {
        fxa__dnn_step *step = fp8_scalar_copy(a);
        fxa__dnn_step_tensor(step, &step->args.copy.from, &a->g, number);
        fxa__dnn_step_tensor(step, &step->args.copy.to, &a->g, room);
        return room;
    }
    fxa__dnn_tensor *to = &a->g.tensors[number];
    /* `to` takes over the memory and the shape of `room`, and keeps its other members */
    FXA__ASSERT(a->g.tensors[room].source == FXA__DNN_SCRATCH && !to->ragged);
    memcpy(to->dim, a->g.tensors[room].dim, sizeof to->dim);
    memcpy(to->stride, a->g.tensors[room].stride, sizeof to->stride);
    to->offset = a->g.tensors[room].offset, to->per_head = true;
    return number;
}

/* Returns true for operations whose results were correct on a device: in backward, sums, products and selects of the
 * score, and all operations on other values. With other operations on the score, such as tanh, dS has errors above its
 * bound. */
static bool fp8_is_plain(const fxa__dnn_attention *a, const fxa__dnn_op *op) {
    bool plain = op->mode == CUDNN_POINTWISE_ADD || op->mode == CUDNN_POINTWISE_SUB ||
                 op->mode == CUDNN_POINTWISE_MUL || op->mode == CUDNN_POINTWISE_BINARY_SELECT;
    return plain || a->p->in.pass == FXA_FORWARD || !a->g.tensors[op->y].score;
}

void fxa__dnn_fp8_scalars_move(fxa__dnn_attention *a, size_t first) {
    for (size_t i = first; a->has_scalars && i < a->g.n_ops && a->g.status == FXA_OK; i++)
        if (!fp8_is_plain(a, &a->g.ops[i]))
            (void)fxa__dnn_refuse(&a->g,
                                  "of 8 bits cuDNN's backward was seen right with sums and products of the score");
    for (size_t i = first; a->has_scalars && i < a->g.n_ops && a->g.status == FXA_OK; i++) {
        const fxa__dnn_op op = a->g.ops[i];
        int32_t x = fp8_scalar_move(a, op.x), b = fp8_scalar_move(a, op.b), t = fp8_scalar_move(a, op.t);
        a->g.ops[i].x = x, a->g.ops[i].b = b, a->g.ops[i].t = t;
    }
}

/* Returns true if the derivative reads tensor t as an input other than dscore and scalars. */
static bool fp8_reads_more(const fxa__dnn_attention *a, size_t first, int32_t t, int32_t dscore) {
    if (t < 0 || t == dscore || a->g.tensors[t].per_head || fxa__dnn_is_by_value(&a->g.tensors[t])) return false;
    for (size_t i = first; i < a->g.n_ops; i++)
        if (a->g.ops[i].y == t) return false;
    return true;
}

/* Returns true for a captured tensor with one value per (q, k) pair that all batch entries and heads share; such
 * tensors had correct results on a device. */
static bool fp8_is_pair_tensor(const fxa__dnn_attention *a, const fxa__dnn_tensor *t) {
    return t->dim[0] == 1 && t->dim[1] == 1 && t->dim[2] == a->p->in.sq && t->dim[3] == a->p->in.sk;
}

void fxa__dnn_fp8_derivative_move(fxa__dnn_attention *a, size_t first, int32_t dscore) {
    bool more = false;
    if (!fxa__dnn_is_fp8(&a->p->in) || a->g.status != FXA_OK) return;
    for (size_t i = first; i < a->g.n_ops; i++) {
        const fxa__dnn_op *op = &a->g.ops[i];
        more = more || fp8_reads_more(a, first, op->x, dscore) || fp8_reads_more(a, first, op->b, dscore) ||
               fp8_reads_more(a, first, op->t, dscore);
    }
    if (more)
        (void)fxa__dnn_refuse(&a->g, "the derivative of the program is no number: of 8 bits cuDNN's backward computes "
                                     "something else with any other");
    for (size_t i = 0; i < a->g.n_tensors && a->g.status == FXA_OK; i++) {
        const fxa__dnn_tensor *t = &a->g.tensors[i];
        if ((fxa__dnn_is_captured(t) || t->read) && !fp8_is_pair_tensor(a, t))
            (void)fxa__dnn_refuse(&a->g, "in the backward pass of 8 bits captured tensors were tried as t[q, k] alone");
    }
    fxa__dnn_fp8_scalars_move(a, first);
}
