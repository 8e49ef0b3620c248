/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass as a graph, operation by operation as cuDNN's fused engines expect it: K is declared turned, softmax
 * is written out, its statistics are there even where nobody wants them, and P has the dtype of V. Each of these, left
 * out, finds no engine. Also what both passes share.
 */
#include "cudnn_attention.h"

#include "../../lower/joint.h"

#include <string.h>

/* ---- What both passes share -------------------------------------------------------------------------------------- */

int fxa__dnn_data_type(uint32_t dtype) { return dtype == FXA_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16; }

typedef struct dnn_slot {
    const fxa_operand *operand;
    int64_t heads, rows, features;
} dnn_slot;

static dnn_slot dnn_slot_of(const fxa_problem *p, fxa_slot slot) {
    switch (slot) {
    case FXA_SLOT_Q: return (dnn_slot){&p->q, p->hq, p->sq, p->d};
    case FXA_SLOT_DQ: return (dnn_slot){&p->dq, p->hq, p->sq, p->d};
    case FXA_SLOT_K: return (dnn_slot){&p->k, p->hkv, p->sk, p->d};
    case FXA_SLOT_DK: return (dnn_slot){&p->dk, p->hkv, p->sk, p->d};
    case FXA_SLOT_V: return (dnn_slot){&p->v, p->hkv, p->sk, p->dv};
    case FXA_SLOT_DV: return (dnn_slot){&p->dv_grad, p->hkv, p->sk, p->dv};
    case FXA_SLOT_DO: return (dnn_slot){&p->dout, p->hq, p->sq, p->dv};
    default: return (dnn_slot){&p->o, p->hq, p->sq, p->dv};
    }
}

int32_t fxa__dnn_operand(fxa__dnn_graph *g, const fxa_problem *p, fxa_slot slot, bool turned) {
    const dnn_slot s = dnn_slot_of(p, slot);
    fxa__dnn_tensor t = {.dim = {p->b, s.heads, s.rows, s.features},
                         .type = (uint8_t)fxa__dnn_data_type(s.operand->dtype),
                         .source = FXA__DNN_SLOT,
                         .index = (int32_t)slot};
    memcpy(t.stride, s.operand->stride, sizeof t.stride);
    if (turned) {
        t.dim[2] = s.features, t.dim[3] = s.rows;
        t.stride[2] = s.operand->stride[3], t.stride[3] = s.operand->stride[2];
    }
    return fxa__dnn_add(g, &t);
}

int32_t fxa__dnn_scores(fxa__dnn_attention *a, int32_t q, int32_t k) {
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sq, p->sk};
    const fxa__dnn_tensor scale = {
        .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}, .type = CUDNN_DATA_FLOAT, .source = FXA__DNN_SCALE};
    int32_t s = fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
    if (a->g.status == FXA_OK) a->g.tensors[s].score = true;
    s = fxa__dnn_matmul(&a->g, q, k, s, a->len_q, a->len_k, -1);
    a->scaled = fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, s, fxa__dnn_add(&a->g, &scale));
    fxa__dnn_score_start(&a->score, a->scaled, -1, a->scaled);
    int32_t node = fxa__program_output(a->program, FXA__OUT_SCORE);
    s = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, node));
    if (a->g.status == FXA_OK && !a->g.tensors[s].score)
        return fxa__dnn_refuse(&a->g,
                               "the new score does not depend on the score: cuDNN knows no attention without Q K^T");
    return s;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static int32_t forward_row(fxa__dnn_attention *a) {
    const int64_t dim[4] = {a->p->in.b, a->p->in.hq, a->p->in.sq, 1};
    return fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
}

/* LSE, in memory where it is wanted: dense, as cudnn_support.c has seen to. */
static int32_t forward_statistics(fxa__dnn_attention *a) {
    int32_t t = forward_row(a);
    if (a->g.status == FXA_OK && (a->p->in.flags & FXA_WANT_LSE)) {
        a->g.tensors[t].source = FXA__DNN_SLOT;
        a->g.tensors[t].index = FXA_SLOT_LSE;
    }
    return t;
}

void fxa__dnn_forward(fxa__dnn_attention *a) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    int32_t q = fxa__dnn_operand(g, p, FXA_SLOT_Q, false), k = fxa__dnn_operand(g, p, FXA_SLOT_K, true);
    int32_t v = fxa__dnn_operand(g, p, FXA_SLOT_V, false), o = fxa__dnn_operand(g, p, FXA_SLOT_O, false);
    int32_t s = fxa__dnn_scores(a, q, k);
    s = fxa__dnn_mask_bands(a, fxa__dnn_mask_others(a, s));
    int32_t most = fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, forward_row(a));
    int32_t e = fxa__dnn_float2(g, CUDNN_POINTWISE_EXP, fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, s, most), -1);
    int32_t sum = fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, forward_row(a));
    int32_t log = fxa__dnn_float2(g, CUDNN_POINTWISE_LOG, sum, -1);
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_ADD, most, log, forward_statistics(a), CUDNN_DATA_FLOAT);
    int32_t weights = fxa__dnn_like(g, e, (uint8_t)fxa__dnn_data_type(p->v.dtype));
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_DIV, e, sum, weights, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_matmul(g, weights, v, o, -1, -1, -1);
}

/* ---- A problem --------------------------------------------------------------------------------------------------- */

static fxa_status attention_program(fxa__dnn_attention *a, fxa_error *err) {
    const fxa__problem *p = a->p;
    FXA_TRY(fxa__program_lift_masks(p->host, p->program, &a->lifted, err));
    if (p->in.pass == FXA_FORWARD) {
        a->program = a->lifted;
        fxa_program_retain(a->program);
        return FXA_OK;
    }
    fxa_program *derivative = NULL;
    FXA_TRY(fxa_program_derivative(a->lifted, &derivative, err));
    fxa_status status = fxa__lower_joint(p->host, a->lifted, derivative, true, &a->program, err);
    fxa_program_destroy(derivative);
    return status;
}

static fxa_status attention_analyse(fxa__dnn_attention *a, fxa_error *err) {
    fxa__host *host = a->p->host;
    if (a->program->n_nodes > FXA__DNN_MAX_NODES) {
        (void)fxa__dnn_refuse(&a->g, "the program has %d nodes, with its derivative: this engine takes %d",
                              (int)a->program->n_nodes, FXA__DNN_MAX_NODES);
        return FXA_OK;
    }
    a->depend = fxa__alloc_array(host, (size_t)a->program->n_nodes, sizeof *a->depend);
    if (!a->depend || !fxa__lower_conjuncts(host, a->program, &a->mask))
        return fxa__fail_memory(err, "the graph of a program");
    fxa__lower_depend(a->program, NULL, a->depend);
    for (int32_t i = 0; i < a->program->n_nodes; i++) a->score.load[i] = -1;
    a->score.g = &a->g, a->score.p = a->p, a->score.program = a->program, a->score.depend = a->depend;
    return FXA_OK;
}

/* One query row finds another engine of cuDNN, which counts keys wrongly past the 128th. */
static void attention_check_rows(fxa__dnn_attention *a) {
    bool counts = a->score.indexed || a->banded;
    if (a->p->in.sq == 1 && a->p->in.sk > 128 && counts)
        (void)fxa__dnn_refuse(&a->g, "sq is 1 and sk %lld: for one row cuDNN counts keys wrongly past 128",
                              (long long)a->p->in.sk);
}

fxa_status fxa__dnn_attention_make(const fxa__problem *p, fxa__dnn_level level, fxa__dnn_attention *a, fxa_error *err) {
    memset(a, 0, sizeof *a);
    a->p = p;
    a->level = level;
    a->g.host = p->host;
    a->len_q = a->len_k = -1;
    if (fxa__dnn_supports(&a->g, p, level)) {
        FXA_TRY(attention_program(a, err));
        FXA_TRY(attention_analyse(a, err));
        if (p->in.pass == FXA_FORWARD)
            fxa__dnn_forward(a);
        else
            fxa__dnn_backward(a);
        attention_check_rows(a);
        fxa__dnn_rules_check(&a->g);
    }
    if (a->g.status == FXA_E_MEMORY) return fxa__fail_memory(err, "a graph for cuDNN");
    return a->g.status == FXA_OK ? fxa__ok(err) : fxa__fail(err, a->g.status, "%s", a->g.reason);
}

void fxa__dnn_attention_free(fxa__dnn_attention *a) {
    fxa__dnn_graph_free(&a->g);
    if (a->program) {
        fxa__free(a->g.host, a->depend, (size_t)a->program->n_nodes * sizeof *a->depend);
        fxa__lower_conjuncts_free(a->g.host, &a->mask);
    }
    fxa_program_destroy(a->program);
    fxa_program_destroy(a->lifted);
    memset(a, 0, sizeof *a);
}
