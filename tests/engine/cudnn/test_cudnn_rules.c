/* SPDX-License-Identifier: Apache-2.0
 *
 * The final check of a graph before cuDNN (graph/graph_checks.c), for forms that the lowering never emits: a device
 * accepted each of these forms and computed it wrongly. Needs no cuDNN.
 */
#include "cudnn_rules_fixture.h"

static int32_t wrong_mask(wrong_graph *w, int32_t s, int mode, uint8_t type) {
    int32_t q = fxa__dnn_index(&w->g, s, 2, type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_FLOAT : type);
    int32_t k = fxa__dnn_index(&w->g, s, 3, type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_FLOAT : type);
    int32_t m = fxa__dnn_op2(&w->g, mode, mode == CUDNN_POINTWISE_CMP_GT ? k : q,
                             mode == CUDNN_POINTWISE_CMP_GT ? q : k, type, type);
    return fxa__dnn_select(&w->g, s, fxa__dnn_float(&w->g, -INFINITY), m);
}

static int32_t wrong_nothing(wrong_graph *w) {
    int32_t s = wrong_mask(w, w->s, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN);
    s = wrong_mask(w, s, CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN);
    s = wrong_mask(w, s, CUDNN_POINTWISE_CMP_LE, CUDNN_DATA_INT32);
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, s, wrong_index(w));
}

static int32_t wrong_unused(wrong_graph *w) {
    (void)fxa__dnn_index(&w->g, w->s, 1, CUDNN_DATA_INT32);
    return w->s;
}

static int32_t wrong_first(wrong_graph *w) {
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, wrong_memory(w), w->s);
}

static int32_t wrong_sum(wrong_graph *w) { return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, wrong_index(w), w->s); }

static int32_t wrong_less(wrong_graph *w) { return wrong_mask(w, w->s, CUDNN_POINTWISE_CMP_LT, CUDNN_DATA_INT32); }
static int32_t wrong_order(wrong_graph *w) { return wrong_mask(w, w->s, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_INT32); }

static int32_t wrong_cast(wrong_graph *w) {
    return fxa__dnn_op2(&w->g, CUDNN_POINTWISE_IDENTITY, w->s, -1, CUDNN_DATA_INT32, CUDNN_DATA_FLOAT);
}

static int32_t wrong_causal(wrong_graph *w) {
    int32_t s = wrong_mask(w, w->s, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN);
    return wrong_mask(w, s, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN);
}

static int32_t wrong_window(wrong_graph *w) {
    int32_t s = wrong_mask(w, w->s, CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN);
    return wrong_mask(w, s, CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN);
}

static int32_t wrong_heads(wrong_graph *w) {
    const int64_t one[4] = {1, 1, 8, 8};
    int32_t sum = fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_ADD, w->s, fxa__dnn_virtual(&w->g, one, CUDNN_DATA_FLOAT));
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, sum, fxa__dnn_float(&w->g, 1));
}

/* Adds the mask q < length && k < length, with both lengths in memory of the workspace. product: the mask is that of a
 * product with these lengths. */
static int32_t wrong_lengths(wrong_graph *w, bool product) {
    int32_t length = fxa__dnn_length(&w->g, 1, 5), s = w->s;
    if (product)
        s = fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT), length, length, -1);
    int32_t q = fxa__dnn_index(&w->g, s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(&w->g, s, 3, CUDNN_DATA_INT32);
    int32_t row = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_CMP_LT, q, length, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t key = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_CMP_LT, k, length, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t m = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_LOGICAL_AND, row, key, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(&w->g, s, fxa__dnn_float(&w->g, -INFINITY), m);
}

static int32_t wrong_padding(wrong_graph *w) { return wrong_lengths(w, false); }
static int32_t wrong_not_padding(wrong_graph *w) { return wrong_lengths(w, true); }

static int32_t wrong_join(wrong_graph *w) {
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_FLOAT), k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_FLOAT);
    int32_t row = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_CMP_GE, q, k, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t key = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_CMP_GT, k, q, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    int32_t m = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_LOGICAL_OR, row, key, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(&w->g, w->s, fxa__dnn_float(&w->g, -INFINITY), m);
}

static int32_t wrong_bound(wrong_graph *w) {
    const int64_t one[4] = {1, 1, 1, 1};
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_FLOAT), k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_FLOAT);
    k = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, k, fxa__dnn_scratch(&w->g, one, CUDNN_DATA_FLOAT));
    int32_t m = fxa__dnn_op2(&w->g, CUDNN_POINTWISE_CMP_GT, k, q, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(&w->g, w->s, fxa__dnn_float(&w->g, -INFINITY), m);
}

static int32_t wrong_bools(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_BOOLEAN); }

static int32_t wrong_entries(wrong_graph *w) {
    const int64_t dim[4] = {2, 1, 1, 1};
    return wrong_reads(w, dim, CUDNN_DATA_FLOAT);
}

static int32_t wrong_keys(wrong_graph *w, bool backward) {
    const int64_t dim[4] = {1, 1, 1, 8};
    int32_t s = wrong_reads(w, dim, CUDNN_DATA_FLOAT);
    return backward ? fxa__dnn_reshape(&w->g, s, fxa__dnn_like(&w->g, s, CUDNN_DATA_FLOAT)) : s;
}

static int32_t wrong_keys_back(wrong_graph *w) { return wrong_keys(w, true); }
static int32_t wrong_keys_forward(wrong_graph *w) { return wrong_keys(w, false); }

/* Adds products of 8 rows and keys; in a backward pass some operands are transposed. */
static int32_t wrong_product(wrong_graph *w, bool backward) {
    int32_t s = fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT), -1, -1, -1);
    return backward ? fxa__dnn_reshape(&w->g, s, fxa__dnn_like(&w->g, s, CUDNN_DATA_FLOAT)) : s;
}

static int32_t wrong_tiles(wrong_graph *w) { return wrong_product(w, true); }
static int32_t wrong_not_tiles(wrong_graph *w) { return wrong_product(w, false); }

static int32_t wrong_maximum(wrong_graph *w, bool log) {
    const int64_t row[4] = {1, 2, 8, 1};
    int32_t most =
        fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_MAX, w->s, fxa__dnn_scratch(&w->g, row, CUDNN_DATA_FLOAT));
    int32_t sum = fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_ADD, w->s, fxa__dnn_virtual(&w->g, row, CUDNN_DATA_FLOAT));
    if (log) sum = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_LOG, sum, -1);
    (void)most;
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_SUB, w->s, sum);
}

static int32_t wrong_both(wrong_graph *w) { return wrong_maximum(w, true); }
static int32_t wrong_not_both(wrong_graph *w) { return wrong_maximum(w, false); }

static int32_t wrong_per_head(wrong_graph *w) {
    const int64_t dim[4] = {1, 2, 1, 1};
    int32_t t = fxa__dnn_scratch(&w->g, dim, CUDNN_DATA_FLOAT);
    w->g.tensors[t].stride[1] = 3;
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, w->s, t);
}

/* Adds the gradient of a tensor, next to a product stored as `type`, which may be summed in any order. */
static int32_t wrong_bias_beside(wrong_graph *w, uint8_t type) {
    fxa__dnn_tensor t = w->g.tensors[w->s];
    t.type = CUDNN_DATA_BFLOAT16, t.source = FXA__DNN_DTENSOR, t.dim[1] = 1;
    (void)fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_ADD, w->s, fxa__dnn_add(&w->g, &t));
    (void)fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_scratch(&w->g, wrong_dim, type), -1, -1, -1);
    return w->s;
}
static int32_t wrong_bias(wrong_graph *w) { return wrong_bias_beside(w, CUDNN_DATA_FLOAT); }
static int32_t wrong_not_bias(wrong_graph *w) { return wrong_bias_beside(w, CUDNN_DATA_BFLOAT16); }

static const wrong_form wrong_forms[] = {
    {"a right one", wrong_nothing, NULL},
    {"an unused index", wrong_unused, "nobody uses"},
    {"memory first", wrong_first, "first operand"},
    {"an index plus the score", wrong_sum, "adds the score"},
    {"q < k", wrong_less, "< or >"},
    {"q >= k of ints", wrong_order, "two indices by >="},
    {"a cast to int", wrong_cast, "casts"},
    {"two causal masks", wrong_causal, "second of its kind"},
    {"two windows", wrong_window, "second of its kind"},
    {"heads of floats", wrong_heads, "sums heads of floats"},
    {"padding without lengths", wrong_padding, "lengths that no product has"},
    {"padding with lengths", wrong_not_padding, NULL},
    {"masks of cuDNN's own, joined", wrong_join, "joins masks"},
    {"a window by memory", wrong_bound, "bound in memory"},
    {"a tensor of bools", wrong_bools, "ends the process"},
    {"one value per entry", wrong_entries, "one value per batch entry"},
    {"one value per key, backward", wrong_keys_back, "one value per key"},
    {"one value per key, forward", wrong_keys_forward, NULL},
    {"8 rows and keys, backward", wrong_tiles, "no whole tiles"},
    {"8 rows and keys, forward", wrong_not_tiles, NULL},
    {"the maximum beside LSE", wrong_both, "beside LSE"},
    {"the maximum and the sum", wrong_not_both, NULL},
    {"a stride between values per head", wrong_per_head, "do not lie side by side"},
    {"the gradient of a tensor, dQ in any order", wrong_bias, "beside sums in any order"},
    {"the gradient of a tensor, dQ in order", wrong_not_bias, NULL},
};

TEST(graphs_that_cudnn_would_get_wrong) { wrong_check(wrong_forms, sizeof wrong_forms / sizeof *wrong_forms); }

T_MAIN
