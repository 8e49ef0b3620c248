/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass as a graph, in the form that cuDNN's fused engines require: K and V are declared transposed; scores
 * are recomputed and converted to probabilities by LSE; causal masks and windows come after LSE is subtracted; the form
 * of the dQ sum determines whether runs are deterministic. The derivative of the program, or the user's bprop, is
 * between dP and dS.
 *
 * If rows or keys do not fill cuDNN's tiles, values beyond the last row or key overflow and make all results NaN,
 * unless a mask covers them. The graph then declares lengths (equal to those of the problem), and masks by them in the
 * form that cuDNN recognizes as padding.
 */
#include "attention.h"

#include "../../../base/invariant.h"
#include "../../../lower/exact_zero.h"

#include <math.h>
#include <string.h>

/* rows and keys of a tile of cuDNN's backward kernels */
enum { BACKWARD_ROWS = 64, BACKWARD_KEYS = 128 };
/* Maximum number of operations that read a tensor with one value per row, in addition to LSE and the sums of dO O, in
 * kernels for sm_90; dLSE counts as one. Other devices and 8-bit operands support none: cuDNN offers an engine for such
 * a graph, but compiling it fails. */
enum { BACKWARD_VECTORS = 2 };

/* Returns the tensor of a gradient: the caller's memory, or the workspace if the gradient is not requested or is added
 * to existing values. */
static int32_t backward_output(fxa__dnn_attention *a, fxa_slot slot, uint32_t flag, uint32_t add) {
    return fxa__dnn_output(a, slot, (a->p->in.flags & flag) != 0, (a->p->in.flags & add) != 0);
}

/* Returns LSE or dLSE as a tensor in a layout that cuDNN reads. */
static int32_t backward_row(fxa__dnn_attention *a, fxa_slot slot, double fill) {
    if (fxa__dnn_row_is_direct(&a->p->in, slot)) return fxa__dnn_row(a, slot);
    int32_t t = fxa__dnn_dense(a, slot);
    (void)fxa__dnn_step_copy(a, slot, t, false, FXA_GPU_COPY, fill);
    return t;
}

/* Returns the sum of dO O over the head dim, one value per row. cuDNN requires this sum in memory, except for 8-bit
 * operands. */
static int32_t backward_sums(fxa__dnn_attention *a, int32_t dout, int32_t o) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t full[4] = {p->b, p->hq, p->sq, p->d_v}, row[4] = {p->b, p->hq, p->sq, 1};
    int32_t product = fxa__dnn_virtual(g, full, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, dout, o, product, CUDNN_DATA_FLOAT);
    int32_t sum = fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, fxa__dnn_virtual(g, row, CUDNN_DATA_FLOAT));
    if (fxa__dnn_is_fp8(p)) return fxa__dnn_fp8_sums(a, sum);
    int32_t out = fxa__dnn_scratch(g, row, CUDNN_DATA_FLOAT);
    return fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, sum, fxa__dnn_float(g, 1), out, CUDNN_DATA_FLOAT);
}

static void backward_lengths(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    a->len_q = fxa__dnn_length(&a->g, p->b, p->sq);
    a->len_k = fxa__dnn_length(&a->g, p->b, p->sk);
}

/* Returns true if the derivative, or the user's bprop, may read the tensor of the new score (the output of the score
 * program) or generate coordinates from this tensor. A bprop reads the original score, which is the new score if the
 * program returns the score unchanged. The derivative of such a program is dscore, except with the operation
 * with_grad. */
static bool backward_reads_score(const fxa__dnn_attention *a) {
    const fxa_program *p = a->program;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    bool bare = p->nodes[score].op == FXA_OP_INPUT;
    if (a->own.program) return bare;
    if (bare && p->nodes[fxa__program_output(p, FXA__OUT_DSCORE)].op != FXA_OP_INPUT) return true;
    for (int32_t i = score + 1; i < p->n_nodes; i++)
        for (int j = 0; j < p->nodes[i].n_args; j++)
            if (p->nodes[i].arg[j] == score) return true;
    return false;
}

/* Masks a score by lengths. cuDNN recognizes this mask as padding only if the masked tensor has no other use, so a
 * tensor with other uses is copied first. */
static int32_t backward_pad(fxa__dnn_attention *a, int32_t s) {
    if (a->len_q >= 0 && backward_reads_score(a)) s = fxa__dnn_float2(&a->g, CUDNN_POINTWISE_IDENTITY, s, -1);
    return fxa__dnn_mask_lengths(a, s);
}

/* Returns x, [B,Hq,Sq,Sk], transposed to [B,Hq,Sk,Sq] in the dtype of Q; 8-bit values keep their dtype. */
static int32_t backward_turn(fxa__dnn_attention *a, int32_t x) {
    const fxa_problem *p = &a->p->in;
    if (a->g.status != FXA_OK) return 0;
    FXA__ASSERT(a->g.tensors[x].dim[2] == p->sq && a->g.tensors[x].dim[3] == p->sk); /* not transposed already */
    const fxa__dnn_tensor t = {.dim = {p->b, p->hq, p->sk, p->sq},
                               .stride = {p->hq * p->sq * p->sk, p->sq * p->sk, 1, p->sk},
                               .type =
                                   fxa__dnn_is_fp8(p) ? a->g.tensors[x].type : (uint8_t)fxa__dnn_data_type(p->q.dtype),
                               .source = FXA__DNN_VIRTUAL};
    return fxa__dnn_reshape(&a->g, x, fxa__dnn_add(&a->g, &t));
}

/* Adds dK or dV to the graph: the product of transposed weights (dS or P) with rows (of Q or dO), summed over the query
 * heads of a KV head. Gradients of single heads are rounded to 16 bits before they are summed, because cuDNN accepts
 * f32 but sums it wrongly. */
static void backward_by_keys(fxa__dnn_attention *a, int32_t weights, int32_t rows, int32_t out, int64_t features) {
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sk, features};
    int32_t turned = backward_turn(a, weights);
    if (p->hq == p->hkv) {
        (void)fxa__dnn_matmul(&a->g, turned, rows, out, a->len_k, -1, a->len_q);
        return;
    }
    int32_t heads = fxa__dnn_virtual(&a->g, dim, (uint8_t)fxa__dnn_data_type(p->q.dtype));
    (void)fxa__dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD,
                          fxa__dnn_matmul(&a->g, turned, rows, heads, a->len_k, -1, a->len_q), out);
}

/* Like backward_by_keys, for 8-bit operands: values are f32 until the result is scaled. */
static void backward_by_keys_fp8(fxa__dnn_attention *a, int32_t weights, int32_t rows, fxa_slot slot, int32_t out,
                                 int64_t features) {
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sk, features}, kept[4] = {p->b, p->hkv, p->sk, features};
    int32_t x = fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_matmul(&a->g, backward_turn(a, weights), rows, x, a->len_k, -1, a->len_q);
    if (p->hq != p->hkv)
        x = fxa__dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, x, fxa__dnn_virtual(&a->g, kept, CUDNN_DATA_FLOAT));
    fxa__dnn_fp8_result(a, slot, x, out);
}

/* Adds dQ to the graph. If dQ has 16 bits, cuDNN adds it up atomically in f32. In deterministic runs and with gradients
 * of captured tensors, it instead adds in a fixed order, from the entire dS in memory. */
static void backward_by_rows(fxa__dnn_attention *a, int32_t ds, int32_t k, int32_t dq) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sq, p->d_qk};
    fxa__dnn_tensor view = {.dim = {p->b, p->hkv, p->sk, p->d_qk},
                            .type = (uint8_t)fxa__dnn_data_type(p->k.dtype),
                            .source = FXA__DNN_VIRTUAL};
    if (g->status != FXA_OK) return;
    memcpy(view.stride, g->tensors[k].stride, sizeof view.stride);
    view.stride[2] = g->tensors[k].stride[3], view.stride[3] = g->tensors[k].stride[2];
    view.ragged = g->tensors[k].ragged;
    int32_t keys = fxa__dnn_reshape(g, k, fxa__dnn_add(g, &view));
    if (fxa__dnn_is_fp8(p)) {
        int32_t x = fxa__dnn_virtual(g, dim, CUDNN_DATA_FLOAT);
        fxa__dnn_fp8_result(a, FXA_SLOT_DQ, fxa__dnn_matmul(g, ds, keys, x, a->len_q, -1, a->len_k), dq);
        return;
    }
    if ((p->flags & FXA_DETERMINISTIC) || fxa__dnn_bias_of(p) >= 0) {
        (void)fxa__dnn_matmul(g, ds, keys, dq, a->len_q, -1, a->len_k);
        return;
    }
    int32_t sum = fxa__dnn_scratch(g, dim, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_matmul(g, ds, keys, sum, a->len_q, -1, a->len_k);
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_IDENTITY, sum, -1, dq, CUDNN_DATA_FLOAT);
}

/* Starts the user's bprop in place of the derivative. Returns true if the bprop certainly returns 0 where dscore is
 * 0. */
static bool backward_start_own(fxa__dnn_attention *a, int32_t node, int32_t dscore) {
    fxa__dnn_score *s = &a->own;
    /* s->needed receives a flag per node: true = 0 wherever dscore is 0; its own use begins when nodes are added to the
     * graph */
    fxa__lower_exact_zero(s->program, s->needed);
    bool keeps_zero = s->needed[node];
    fxa__dnn_score_start(s, a->scaled, dscore, a->scaled);
    /* the bprop reads the coordinates that the score program has added to the graph */
    memcpy(s->axis, a->score.axis, sizeof s->axis);
    memcpy(s->table, a->score.table, sizeof s->table);
    fxa__dnn_reuse_made(&a->score, s);
    return keeps_zero;
}

/* Returns the gradient of Q K^T: dscore through the derivative or the bprop, multiplied by the scale. A (q, k) pair
 * with dscore 0, such as a masked pair, must have gradient 0. If the program may return a nonzero value for such a
 * pair, a select sets the gradient to 0. The select is also added if the program does not read dscore (the derivative
 * of floor(score) is 0), because cuDNN has no backward engine for a graph that ignores dscore. */
static int32_t backward_score(fxa__dnn_attention *a, int32_t dscore) {
    fxa__dnn_graph *g = &a->g;
    fxa__dnn_score *s = a->own.program ? &a->own : &a->score;
    int32_t node = fxa__program_output(s->program, FXA__OUT_DSCORE);
    FXA__ASSERT(node >= 0); /* a fused program, or the caller's bprop, has the output dscore */
    bool plain = (s->depend[node].inputs & 1u << FXA_INPUT_DSCORE) != 0;
    size_t first = g->n_ops;
    a->score.dscore = dscore;
    if (s->own && !backward_start_own(a, node, dscore)) plain = false;
    int32_t ds = fxa__dnn_as_virtual(s, fxa__dnn_score_node(s, node));
    if (!plain) {
        int32_t some =
            fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_NEQ, dscore, fxa__dnn_float(g, 0), CUDNN_DATA_INT32, CUDNN_DATA_FLOAT);
        ds = fxa__dnn_select(g, ds, fxa__dnn_float(g, 0), some);
    }
    fxa__dnn_fp8_derivative_move(a, first, dscore);
    return fxa__dnn_float2(g, CUDNN_POINTWISE_MUL, ds, a->scale);
}

/* Returns P from recomputed scores. Sets *kept to a copy of a->score, which maps program nodes to the graph tensors
 * that are already made; the derivative reuses these tensors. */
static int32_t backward_weights(fxa__dnn_attention *a, int32_t q, int32_t k, fxa__dnn_score *kept) {
    fxa__dnn_graph *g = &a->g;
    int32_t s = fxa__dnn_scores(a, q, k);
    *kept = a->score;
    s = fxa__dnn_mask_others(a, s);
    fxa__dnn_fp8_scalars_move(a, a->first);
    s = backward_pad(a, s);
    s = fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, s, backward_row(a, FXA_SLOT_LSE, -INFINITY));
    return fxa__dnn_float2(g, CUDNN_POINTWISE_EXP, fxa__dnn_mask_bands(a, s), -1);
}

/* Adds the helper kernel that computes the gradient of the sinks from the row sums of dO O in memory. */
static void backward_sinks(fxa__dnn_attention *a, int32_t sums, int32_t dlse) {
    const fxa_problem *p = &a->p->in;
    if (!(p->flags & FXA_GRAD_SINKS)) return;
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_SINK, true, p->hq);
    FxaGpuSink *s = &step->args.sink;
    fxa__dnn_step_rows(a, step, &s->rows, FXA_SLOT_LSE);
    s->sink.stride[1] = p->sinks.stride[1], s->sink.type = (int32_t)p->sinks.dtype;
    s->dsink.stride[1] = p->dsinks.stride[1], s->dsink.type = (int32_t)p->dsinks.dtype;
    s->zero = !(p->flags & FXA_SINKS), s->add = (p->flags & FXA_ACCUMULATE_DSINKS) != 0;
    if (!s->zero) fxa__dnn_step_point(step, &s->sink.data, FXA__DNN_SLOT, FXA_SLOT_SINKS, 0);
    fxa__dnn_step_point(step, &s->dsink.data, FXA__DNN_SLOT, FXA_SLOT_DSINKS, 0);
    fxa__dnn_step_slot(a, step, &s->lse, FXA_SLOT_LSE);
    if (dlse >= 0) fxa__dnn_step_slot(a, step, &s->dlse, FXA_SLOT_DLSE);
    fxa__dnn_step_tensor(step, &s->delta, &a->g, sums);
    fxa__dnn_step_slot(a, step, &s->o, FXA_SLOT_O);
    fxa__dnn_step_slot(a, step, &s->dout, FXA_SLOT_DO);
    s->features = p->d_v;
}

/* Adds the operations of the backward pass to the graph. */
static void backward_write(fxa__dnn_attention *a, fxa__dnn_score *kept) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t pairs[4] = {p->b, p->hq, p->sq, p->sk};
    int32_t q = fxa__dnn_operand(a, FXA_SLOT_Q, false), k = fxa__dnn_operand(a, FXA_SLOT_K, true);
    int32_t v = fxa__dnn_operand(a, FXA_SLOT_V, true), o = fxa__dnn_operand(a, FXA_SLOT_O, false);
    int32_t dout = fxa__dnn_operand(a, FXA_SLOT_DO, false);
    int32_t sums = backward_sums(a, dout, o);
    int32_t weights = backward_weights(a, q, k, kept);
    int32_t dv = backward_output(a, FXA_SLOT_DV, FXA_GRAD_V, FXA_ACCUMULATE_DV);
    bool fp8 = fxa__dnn_is_fp8(p);
    if (fp8)
        backward_by_keys_fp8(a, fxa__dnn_fp8_weights(a, weights), dout, FXA_SLOT_DV, dv, p->d_v);
    else
        backward_by_keys(a, weights, dout, dv, p->d_v);
    int32_t dp = fxa__dnn_matmul(g, dout, v, fxa__dnn_virtual(g, pairs, CUDNN_DATA_FLOAT), a->len_q, a->len_k, -1);
    if (fp8) dp = fxa__dnn_fp8_dp(a, dp);
    int32_t dlse = p->flags & FXA_READ_DLSE ? backward_row(a, FXA_SLOT_DLSE, 0) : -1;
    dp = fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, dp, sums);
    if (dlse >= 0) dp = fxa__dnn_float2(g, CUDNN_POINTWISE_ADD, dp, dlse);
    dp = fxa__dnn_float2(g, CUDNN_POINTWISE_MUL, dp, weights);
    backward_sinks(a, sums, dlse);
    kept->indexed = a->score.indexed; /* the mask, added after `kept` was copied, may have read coordinates too */
    a->score = *kept;
    fxa__dnn_bias(a, dp);
    int32_t ds = backward_score(a, dp), dk = backward_output(a, FXA_SLOT_DK, FXA_GRAD_K, FXA_ACCUMULATE_DK);
    if (fp8)
        backward_by_keys_fp8(a, ds = fxa__dnn_fp8_ds(a, ds), q, FXA_SLOT_DK, dk, p->d_qk);
    else
        backward_by_keys(a, ds, q, dk, p->d_qk);
    backward_by_rows(a, ds, k, backward_output(a, FXA_SLOT_DQ, FXA_GRAD_Q, FXA_ACCUMULATE_DQ));
}

/* Counts operands of the graph that have one value per query row, and refuses more than cuDNN supports. Operands with
 * one value per batch entry count too: with several rows, they are expanded to rows (score/captured_loads.c). */
static void backward_count_vectors(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    bool some = a->level.arch / 10 == 9 && !fxa__dnn_is_fp8(p), dlse = p->flags & FXA_READ_DLSE;
    int vectors = 0, most = some ? BACKWARD_VECTORS - dlse : 0;
    for (size_t i = 0; i < a->g.n_ops && a->g.status == FXA_OK; i++) {
        const fxa__dnn_tensor *t = a->g.ops[i].b >= 0 ? &a->g.tensors[a->g.ops[i].b] : NULL;
        bool ours = t && (fxa__dnn_is_captured(t) || t->read);
        vectors += ours && t->dim[3] == 1 && (t->dim[2] > 1 || t->dim[0] > 1);
    }
    if (vectors > most)
        (void)fxa__dnn_refuse(&a->g,
                              "values of rows or entries (t[q], t[b], positions, coordinate maps) are used %d time%s: "
                              "on sm_%d cuDNN's backward of %s takes %d%s",
                              vectors, vectors == 1 ? "" : "s", (int)a->level.arch,
                              fxa_dtype_name((fxa_dtype)p->q.dtype), most, dlse ? " beside dLSE" : "");
}

/* Refuses gradients whose batch entries start at other offsets than those of the operand (dQ and Q, for example):
 * before 9.19, cuDNN writes gradients at the operand's offsets. */
static void backward_check_offsets(fxa__dnn_attention *a) {
    static const fxa_slot slots[3] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V};
    static const fxa_slot grads[3] = {FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    if (!a->own_lengths || a->level.version >= 91900) return;
    for (int i = 0; i < 3 && a->g.status == FXA_OK; i++)
        if (!fxa__dnn_has_equal_offsets(a, slots[i], grads[i]))
            (void)fxa__dnn_refuse(&a->g,
                                  "before cuDNN 9.19 a gradient beside lengths of entries is to lie as %s does, to be "
                                  "wanted, and, packed, not to be added to what is there",
                                  fxa_slot_name(slots[i]));
}

void fxa__dnn_backward(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    if (!a->own_lengths && (p->sq % BACKWARD_ROWS || p->sk % BACKWARD_KEYS)) backward_lengths(a);
    fxa__dnn_score *kept = fxa__alloc(a->g.host, sizeof *kept);
    if (!kept) {
        a->g.status = FXA_E_MEMORY;
        return;
    }
    backward_write(a, kept);
    backward_check_offsets(a);
    backward_count_vectors(a);
    fxa__free(a->g.host, kept, sizeof *kept);
}
