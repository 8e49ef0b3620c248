/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass as a graph, operation by operation, in the form that cuDNN's fused engines require: for a graph of
 * another form, cuDNN finds no engine. K is declared transposed, the softmax consists of single operations, its
 * statistics are computed even if they are not requested, and P has the dtype of V. The first part of the file has
 * operations that both passes share.
 */
#include "attention.h"

#include <math.h>
#include <string.h>

/* ---- Operations that both passes share --------------------------------------------------------------------------- */

/* cuDNN recognizes a mask of the form q < q_len && k < k_len as padding only if the masked tensor has no other use. */
int32_t fxa__dnn_mask_lengths(fxa__dnn_attention *a, int32_t s) {
    fxa__dnn_graph *g = &a->g;
    if (a->len_q < 0) return s;
    int32_t q = fxa__dnn_index(g, s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(g, s, 3, CUDNN_DATA_INT32);
    int32_t row = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_LT, q, a->len_q, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t key = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_LT, k, a->len_k, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t m = fxa__dnn_op2(g, CUDNN_POINTWISE_LOGICAL_AND, row, key, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(g, s, fxa__dnn_float(g, -INFINITY), m);
}

int32_t fxa__dnn_scores(fxa__dnn_attention *a, int32_t q, int32_t k) {
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sq, p->sk};
    int32_t s = fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
    if (a->g.status == FXA_OK) a->g.tensors[s].score = true;
    s = fxa__dnn_matmul(&a->g, q, k, s, a->len_q, a->len_k, -1);
    a->scale = fxa__dnn_scale(&a->score);
    a->has_scalars = fxa__dnn_fp8_has_scalars(a);
    if (fxa__dnn_is_fp8(p)) s = fxa__dnn_fp8_scores(a, s);
    const bool scale = !a->has_scalars && a->score.folded < 0;
    a->scaled = fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, s, scale ? a->scale : fxa__dnn_qk_factor(&a->score));
    fxa__dnn_score_start(&a->score, a->scaled, -1, a->scaled);
    int32_t node = fxa__program_output(a->program, FXA__OUT_SCORE);
    s = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, node));
    /* If a scale <= 0 directly precedes the softmax, cuDNN gives NaN (run_check_scale in run.c). The sign of a scale in
     * device memory is unknown, so an addition of -0.0 separates the scale from the softmax. */
    bool unknown = p->pass == FXA_FORWARD && (p->flags & FXA_SCALARS_IN_MEMORY);
    if (unknown && s == a->scaled) s = fxa__dnn_float2(&a->g, CUDNN_POINTWISE_ADD, s, fxa__dnn_float(&a->g, -0.0));
    if (a->g.status == FXA_OK && !a->g.tensors[s].score)
        return fxa__dnn_refuse(&a->g,
                               "the new score does not depend on the score: cuDNN has no attention without Q K^T");
    return s;
}

/* ---- The forward pass -------------------------------------------------------------------------------------------- */

/* Returns a new virtual tensor with one float per query row. */
static int32_t forward_row(fxa__dnn_attention *a) {
    const int64_t dim[4] = {a->p->in.b, a->p->in.hq, a->p->in.sq, 1};
    return fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
}

/* Returns true if cuDNN writes the maximum and the sum of each row to the workspace, and a helper kernel computes LSE
 * and the row maximum from these: if the row maximum is requested, or LSE in f64 without any feature of `other`.
 * Otherwise cuDNN writes LSE, in f32, which is converted if f64 is requested. */
static bool forward_has_parts(const fxa_problem *p) {
    bool other = p->flags & (FXA_ACCUMULATE_O | FXA_PADDING | FXA_VARLEN | FXA_PAGED | FXA_SINKS | FXA_SINK_ZERO);
    bool wide = (p->flags & FXA_RETURN_LSE) && p->lse.dtype == FXA_F64 && !other;
    return (p->flags & FXA_RETURN_ROW_MAX) || wide;
}

/* Adds the step that computes LSE and row maxima from the maximum and the sum of each row. */
static void forward_parts(fxa__dnn_attention *a, int32_t most, int32_t sum) {
    const fxa_problem *p = &a->p->in;
    if (p->flags & FXA_ACCUMULATE_O) a->joined = fxa__dnn_dense(a, FXA_SLOT_LSE);
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_STATISTICS, true, p->b * p->hq * p->sq);
    FxaGpuStatistics *s = &step->args.statistics;
    fxa__dnn_step_rows(a, step, &s->rows, FXA_SLOT_LSE);
    fxa__dnn_step_tensor(step, &s->most, &a->g, most);
    fxa__dnn_step_tensor(step, &s->sum, &a->g, sum);
    s->past = (p->flags & (FXA_PADDING | FXA_VARLEN)) == FXA_PADDING;
    if (p->flags & FXA_ACCUMULATE_O)
        fxa__dnn_step_tensor(step, &s->lse, &a->g, a->joined);
    else if (p->flags & FXA_RETURN_LSE)
        fxa__dnn_step_slot(a, step, &s->lse, FXA_SLOT_LSE);
    if (p->flags & FXA_RETURN_ROW_MAX) fxa__dnn_step_slot(a, step, &s->max, FXA_SLOT_ROW_MAX);
}

/* Returns the tensor of LSE: virtual, in the caller's memory, or in the workspace. From the workspace, a helper kernel
 * copies LSE or merges it with the existing LSE. */
static int32_t forward_statistics(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    if (!(p->flags & (FXA_RETURN_LSE | FXA_ACCUMULATE_O))) return forward_row(a);
    if (p->flags & FXA_ACCUMULATE_O) return a->joined = fxa__dnn_dense(a, FXA_SLOT_LSE);
    bool direct = fxa__dnn_row_is_direct(p, FXA_SLOT_LSE);
    int32_t t = direct ? fxa__dnn_row(a, FXA_SLOT_LSE) : fxa__dnn_dense(a, FXA_SLOT_LSE);
    if (!direct) (void)fxa__dnn_step_copy(a, FXA_SLOT_LSE, t, true, FXA_GPU_COPY, -INFINITY);
    if (direct && a->own_lengths) fxa__dnn_fill(a, FXA_SLOT_LSE, -INFINITY);
    return t;
}

/* Adds the helper kernel that merges O and LSE of this run, in the workspace, with the existing O and LSE. */
static void forward_join(fxa__dnn_attention *a, int32_t o) {
    const fxa_problem *p = &a->p->in;
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_JOIN, true, p->b * p->hq * p->sq);
    FxaGpuJoin *j = &step->args.join;
    fxa__dnn_step_rows(a, step, &j->rows, FXA_SLOT_O);
    fxa__dnn_step_tensor(step, &j->o, &a->g, o);
    fxa__dnn_step_tensor(step, &j->lse, &a->g, a->joined);
    fxa__dnn_step_slot(a, step, &j->into, FXA_SLOT_O);
    fxa__dnn_step_slot(a, step, &j->into_lse, FXA_SLOT_LSE);
}

/* Returns a tensor [1,H,1,1] of f32 in the workspace with the scores of the sinks. Elements are 0 if the problem has a
 * zero sink. */
static int32_t forward_sinks(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {1, p->hq, 1, 1};
    int32_t t = fxa__dnn_scratch(&a->g, dim, CUDNN_DATA_FLOAT);
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_COPY, false, p->hq);
    FxaGpuCopy *c = &step->args.copy;
    c->rows.size[0] = c->rows.size[2] = c->rows.size[3] = 1, c->rows.size[1] = p->hq;
    fxa__dnn_step_tensor(step, &c->to, &a->g, t);
    c->from.stride[1] = p->sinks.stride[1], c->from.type = (int32_t)p->sinks.dtype;
    if (p->flags & FXA_SINKS) fxa__dnn_step_point(step, &c->from.data, FXA__DNN_SLOT, FXA_SLOT_SINKS, 0);
    return t; /* for FXA_SINK_ZERO, the step's source pointer is NULL, so the helper kernel writes zeroes */
}

/* Returns the sum of the exponentials of each row, its sink included. Sets *e to the exponentials of the scores minus
 * the row maximum. */
static int32_t forward_sum(fxa__dnn_attention *a, int32_t s, int32_t sink, int32_t most, int32_t *e, int32_t sum) {
    fxa__dnn_graph *g = &a->g;
    *e = fxa__dnn_float2(g, CUDNN_POINTWISE_EXP, fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, s, most), -1);
    if (sink < 0) return fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, *e, sum);
    int32_t other = fxa__dnn_op2_into(g, CUDNN_POINTWISE_SUB, sink, most, forward_row(a), CUDNN_DATA_FLOAT);
    other = fxa__dnn_float2(g, CUDNN_POINTWISE_EXP, other, -1);
    int32_t keys = fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, *e, forward_row(a));
    return fxa__dnn_op2_into(g, CUDNN_POINTWISE_ADD, keys, other, sum, CUDNN_DATA_FLOAT);
}

/* Adds the softmax of the scores s to the graph, and the product of the softmax with v, whose result is o. */
static void forward_softmax(fxa__dnn_attention *a, int32_t s, int32_t v, int32_t o) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    bool parts = forward_has_parts(p), sinks = p->flags & (FXA_SINKS | FXA_SINK_ZERO);
    int32_t e, sink = sinks ? forward_sinks(a) : -1;
    int32_t most = parts ? fxa__dnn_dense(a, FXA_SLOT_ROW_MAX) : forward_row(a);
    int32_t sum = parts ? fxa__dnn_dense(a, FXA_SLOT_LSE) : forward_row(a);
    (void)fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, sinks ? forward_row(a) : most);
    if (sinks && g->status == FXA_OK)
        (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_MAX, g->ops[g->n_ops - 1].y, sink, most, CUDNN_DATA_FLOAT);
    (void)forward_sum(a, s, sink, most, &e, sum);
    if (parts) {
        forward_parts(a, most, sum);
    } else {
        int32_t lse = forward_statistics(a);
        (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_ADD, most, fxa__dnn_float2(g, CUDNN_POINTWISE_LOG, sum, -1), lse,
                                CUDNN_DATA_FLOAT);
    }
    if (fxa__dnn_is_fp8(p)) {
        fxa__dnn_fp8_output(a, e, sum, v, o);
        return;
    }
    int32_t weights = fxa__dnn_like(g, e, (uint8_t)fxa__dnn_data_type(p->v.dtype));
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_DIV, e, sum, weights, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_matmul(g, weights, v, o, a->len_q, -1, a->len_k);
}

/* Returns K or V, stored as pages [n_pages,H,page,D], gathered through a page table [B,1,pages of a batch entry,1]. */
static int32_t forward_pages(fxa__dnn_attention *a, fxa_slot slot, int32_t table) {
    const fxa_problem *p = &a->p->in;
    bool keys = slot == FXA_SLOT_K;
    const fxa_operand *o = keys ? &p->k : &p->v;
    int64_t d = keys ? p->d_qk : p->d_v;
    fxa__dnn_tensor pages = {.dim = {p->n_pages, p->hkv, p->page_size, d},
                             .type = (uint8_t)fxa__dnn_data_type(o->dtype),
                             .source = FXA__DNN_SLOT,
                             .index = (int32_t)slot};
    fxa__dnn_tensor all = {.dim = {p->b, p->hkv, p->sk, d},
                           .stride = {p->hkv * p->sk * d, p->sk * d, d, 1},
                           .type = pages.type,
                           .source = FXA__DNN_VIRTUAL};
    memcpy(pages.stride, o->stride, sizeof pages.stride);
    if (keys) all.dim[2] = d, all.dim[3] = p->sk, all.stride[2] = 1, all.stride[3] = d;
    int32_t x = fxa__dnn_add(&a->g, &pages);
    return fxa__dnn_load_pages(&a->g, x, table, a->len_k, fxa__dnn_add(&a->g, &all));
}

/* Returns the tensor of the page table. */
static int32_t forward_table(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    int64_t n = (p->sk + p->page_size - 1) / p->page_size;
    const fxa__dnn_tensor t = {.dim = {p->b, 1, n, 1},
                               .stride = {n, n, 1, 1},
                               .type = CUDNN_DATA_INT32,
                               .source = FXA__DNN_SLOT,
                               .index = FXA_SLOT_PAGES};
    return fxa__dnn_add(&a->g, &t);
}

void fxa__dnn_forward(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    bool whole = (p->page_size & (p->page_size - 1)) == 0; /* cuDNN requires that the page size is a power of two */
    /* if sq > 1, pages are gathered into the workspace first */
    bool paged = (p->flags & FXA_PAGED) && p->sq == 1 && whole;
    int32_t table = paged ? forward_table(a) : -1, q = fxa__dnn_operand(a, FXA_SLOT_Q, false);
    int32_t k = paged ? forward_pages(a, FXA_SLOT_K, table) : fxa__dnn_operand(a, FXA_SLOT_K, true);
    int32_t v = paged ? forward_pages(a, FXA_SLOT_V, table) : fxa__dnn_operand(a, FXA_SLOT_V, false);
    bool joins = p->flags & FXA_ACCUMULATE_O;
    int32_t o = joins ? fxa__dnn_dense(a, FXA_SLOT_O) : fxa__dnn_output(a, FXA_SLOT_O, true, false);
    int32_t s = fxa__dnn_scores(a, q, k);
    s = fxa__dnn_mask_others(a, s);
    fxa__dnn_fp8_scalars_move(a, a->first);
    s = fxa__dnn_mask_lengths(a, s);
    forward_softmax(a, fxa__dnn_mask_bands(a, s), v, o);
    if (joins) forward_join(a, o);
    if (fxa__dnn_is_fp8(p)) fxa__dnn_fp8_check(a);
}
