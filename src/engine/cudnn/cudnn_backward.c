/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass as a graph, as cuDNN's fused engines expect it: K and V are declared turned, scores are computed
 * again and made probabilities by LSE, causal and window masks come after it is taken off, and the way that dQ is
 * summed decides whether runs repeat their bits. The derivative of the program stands between dP and dS.
 *
 * Where rows or keys do not fill cuDNN's tiles, what lies beyond the last overflows and makes everything NaN, unless a
 * mask reaches it: then lengths are declared, which are all of the problem's, and masked by as padding is spelled.
 */
#include "cudnn_attention.h"

#include <math.h>
#include <string.h>

/* Rows and keys of a tile of cuDNN's backward kernels. */
enum { BACKWARD_ROWS = 64, BACKWARD_KEYS = 128 };
/* Operations with a tensor that has a value per row which kernels for sm_90 take beside their own two; others: none. */
enum { BACKWARD_VECTORS = 2 };

/* A gradient: memory of the caller, or of the workspace where it is not wanted. */
static int32_t backward_output(fxa__dnn_attention *a, fxa_slot slot, uint32_t flag) {
    int32_t t = fxa__dnn_operand(&a->g, &a->p->in, slot, false);
    if (a->g.status != FXA_OK || (a->p->in.flags & flag)) return t;
    int64_t dim[4];
    memcpy(dim, a->g.tensors[t].dim, sizeof dim);
    return fxa__dnn_scratch(&a->g, dim, (uint8_t)fxa__dnn_data_type(a->p->in.q.dtype));
}

static int32_t backward_statistics(fxa__dnn_attention *a) {
    const int64_t dim[4] = {a->p->in.b, a->p->in.hq, a->p->in.sq, 1};
    int32_t t = fxa__dnn_virtual(&a->g, dim, CUDNN_DATA_FLOAT);
    if (a->g.status != FXA_OK) return 0;
    a->g.tensors[t].source = FXA__DNN_SLOT;
    a->g.tensors[t].index = FXA_SLOT_LSE;
    return t;
}

/* The sum of dO O over features, of each row: in memory, as cuDNN wants it. */
static int32_t backward_sums(fxa__dnn_attention *a, int32_t dout, int32_t o) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t full[4] = {p->b, p->hq, p->sq, p->dv}, row[4] = {p->b, p->hq, p->sq, 1};
    int32_t product = fxa__dnn_virtual(g, full, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, dout, o, product, CUDNN_DATA_FLOAT);
    int32_t sum = fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, fxa__dnn_virtual(g, row, CUDNN_DATA_FLOAT));
    return fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, sum, fxa__dnn_float(g, 1),
                             fxa__dnn_scratch(g, row, CUDNN_DATA_FLOAT), CUDNN_DATA_FLOAT);
}

static void backward_lengths(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    a->len_q = fxa__dnn_length(&a->g, p->b, p->sq);
    a->len_k = fxa__dnn_length(&a->g, p->b, p->sk);
}

/* Whether the derivative reads the new score. */
static bool backward_reads_score(const fxa_program *p) {
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    for (int32_t i = score + 1; i < p->n_nodes; i++)
        for (int j = 0; j < p->nodes[i].n_args; j++)
            if (p->nodes[i].arg[j] == score) return true;
    return false;
}

/* cuDNN knows the spelling of padding only where what is masked has no other use. */
static int32_t backward_pad(fxa__dnn_attention *a, int32_t s) {
    fxa__dnn_graph *g = &a->g;
    if (a->len_q < 0) return s;
    if (backward_reads_score(a->program)) s = fxa__dnn_float2(g, CUDNN_POINTWISE_IDENTITY, s, -1);
    int32_t q = fxa__dnn_index(g, s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(g, s, 3, CUDNN_DATA_INT32);
    int32_t row = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_LT, q, a->len_q, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t key = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_LT, k, a->len_k, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t m = fxa__dnn_op2(g, CUDNN_POINTWISE_LOGICAL_AND, row, key, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(g, s, fxa__dnn_float(g, -INFINITY), m);
}

/* x of [B,Hq,Sq,Sk] as [B,Hq,Sk,Sq] in storage. */
static int32_t backward_turn(fxa__dnn_attention *a, int32_t x) {
    const fxa_problem *p = &a->p->in;
    const fxa__dnn_tensor t = {.dim = {p->b, p->hq, p->sk, p->sq},
                               .stride = {p->hq * p->sq * p->sk, p->sq * p->sk, 1, p->sk},
                               .type = (uint8_t)fxa__dnn_data_type(p->q.dtype),
                               .source = FXA__DNN_VIRTUAL};
    return fxa__dnn_reshape(&a->g, x, fxa__dnn_add(&a->g, &t));
}

/* dK or dV: the product of weights with rows, summed over the query heads of a key head. Those of single heads are
 * rounded to 16 bits before they are summed: kept as floats, cuDNN takes the graph and sums something else. */
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

/* dQ: summed into floats by whoever comes, or in a fixed order from all of dS kept in memory. */
static void backward_by_rows(fxa__dnn_attention *a, int32_t ds, int32_t k, int32_t dq) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sq, p->d};
    fxa__dnn_tensor view = {.dim = {p->b, p->hkv, p->sk, p->d},
                            .type = (uint8_t)fxa__dnn_data_type(p->k.dtype),
                            .source = FXA__DNN_VIRTUAL};
    memcpy(view.stride, p->k.stride, sizeof view.stride);
    int32_t keys = fxa__dnn_reshape(g, k, fxa__dnn_add(g, &view));
    if (p->flags & FXA_DETERMINISTIC) {
        (void)fxa__dnn_matmul(g, ds, keys, dq, a->len_q, -1, a->len_k);
        return;
    }
    int32_t sum = fxa__dnn_scratch(g, dim, CUDNN_DATA_FLOAT);
    (void)fxa__dnn_matmul(g, ds, keys, sum, a->len_q, -1, a->len_k);
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_IDENTITY, sum, -1, dq, CUDNN_DATA_FLOAT);
}

/* The derivative by the score of what the program makes of it, times the scale. */
static int32_t backward_score(fxa__dnn_attention *a, int32_t dscore) {
    int32_t node = fxa__program_output(a->program, FXA__OUT_DSCORE);
    if (!(a->depend[node].inputs & 1u << FXA_INPUT_DSCORE))
        return fxa__dnn_refuse(&a->g, "the gradient by the score is the same for every output: cuDNN has no such pass");
    a->score.dscore = dscore;
    int32_t ds = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, node));
    const fxa__dnn_tensor scale = {
        .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}, .type = CUDNN_DATA_FLOAT, .source = FXA__DNN_SCALE};
    return fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, ds, fxa__dnn_add(&a->g, &scale));
}

/* P, from scores that are made again; what the program computed on the way is kept for its derivative. */
static int32_t backward_weights(fxa__dnn_attention *a, int32_t q, int32_t k, fxa__dnn_score *kept) {
    fxa__dnn_graph *g = &a->g;
    int32_t s = fxa__dnn_scores(a, q, k);
    *kept = a->score;
    s = backward_pad(a, fxa__dnn_mask_others(a, s));
    s = fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, s, backward_statistics(a));
    return fxa__dnn_float2(g, CUDNN_POINTWISE_EXP, fxa__dnn_mask_bands(a, s), -1);
}

static void backward_write(fxa__dnn_attention *a, fxa__dnn_score *kept) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t pairs[4] = {p->b, p->hq, p->sq, p->sk};
    int32_t q = fxa__dnn_operand(g, p, FXA_SLOT_Q, false), k = fxa__dnn_operand(g, p, FXA_SLOT_K, true);
    int32_t v = fxa__dnn_operand(g, p, FXA_SLOT_V, true), o = fxa__dnn_operand(g, p, FXA_SLOT_O, false);
    int32_t dout = fxa__dnn_operand(g, p, FXA_SLOT_DO, false);
    int32_t sums = backward_sums(a, dout, o);
    int32_t weights = backward_weights(a, q, k, kept);
    backward_by_keys(a, weights, dout, backward_output(a, FXA_SLOT_DV, FXA_GRAD_V), p->dv);
    int32_t dp = fxa__dnn_matmul(g, dout, v, fxa__dnn_virtual(g, pairs, CUDNN_DATA_FLOAT), a->len_q, a->len_k, -1);
    dp = fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, dp, sums);
    dp = fxa__dnn_float2(g, CUDNN_POINTWISE_MUL, dp, weights);
    a->score = *kept;
    int32_t ds = backward_score(a, dp);
    backward_by_keys(a, ds, q, backward_output(a, FXA_SLOT_DK, FXA_GRAD_K), p->d);
    backward_by_rows(a, ds, k, backward_output(a, FXA_SLOT_DQ, FXA_GRAD_Q));
}

static void backward_count_vectors(fxa__dnn_attention *a) {
    int vectors = 0, most = a->level.arch / 10 == 9 ? BACKWARD_VECTORS : 0;
    for (size_t i = 0; i < a->g.n_ops && a->g.status == FXA_OK; i++) {
        const fxa__dnn_tensor *t = a->g.ops[i].b >= 0 ? &a->g.tensors[a->g.ops[i].b] : NULL;
        vectors += t && t->source == FXA__DNN_TENSOR && t->dim[2] > 1 && t->dim[3] == 1;
    }
    if (vectors > most)
        (void)fxa__dnn_refuse(&a->g,
                              "the program uses captured values per row %d times: on sm_%d cuDNN's backward takes %d",
                              vectors, (int)a->level.arch, most);
}

void fxa__dnn_backward(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    if (p->sq % BACKWARD_ROWS || p->sk % BACKWARD_KEYS) backward_lengths(a);
    fxa__dnn_score *kept = fxa__alloc(a->g.host, sizeof *kept);
    if (!kept) {
        a->g.status = FXA_E_MEMORY;
        return;
    }
    backward_write(a, kept);
    backward_count_vectors(a);
    fxa__free(a->g.host, kept, sizeof *kept);
}
