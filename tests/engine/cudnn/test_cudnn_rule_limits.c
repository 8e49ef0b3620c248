/* SPDX-License-Identifier: Apache-2.0
 *
 * The final check of a graph before cuDNN (graph/graph_checks.c) on both sides of each condition. Needs no cuDNN.
 */
#include "cudnn_rules_fixture.h"

static int32_t wrong_bool(wrong_graph *w, int mode, int32_t x, int32_t b) {
    return fxa__dnn_op2(&w->g, mode, x, b, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
}

static int32_t wrong_select(wrong_graph *w, int32_t s, int32_t m) {
    return fxa__dnn_select(&w->g, s, fxa__dnn_float(&w->g, -INFINITY), m);
}

/* Adds the mask q < rows && k < keys, and before it a product with lengths m and n; -1: the product has none. */
static int32_t wrong_lengths_of(wrong_graph *w, int rows, int keys, int m, int n) {
    const int32_t length[2] = {fxa__dnn_length(&w->g, 1, 5), fxa__dnn_length(&w->g, 1, 6)};
    int32_t s = fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT), m < 0 ? -1 : length[m],
                                n < 0 ? -1 : length[n], -1);
    int32_t q = fxa__dnn_index(&w->g, s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(&w->g, s, 3, CUDNN_DATA_INT32);
    int32_t row = wrong_bool(w, CUDNN_POINTWISE_CMP_LT, q, length[rows]);
    int32_t key = wrong_bool(w, CUDNN_POINTWISE_CMP_LT, k, length[keys]);
    return wrong_select(w, s, wrong_bool(w, CUDNN_POINTWISE_LOGICAL_AND, row, key));
}

static int32_t wrong_two_lengths(wrong_graph *w) { return wrong_lengths_of(w, 0, 1, 0, 1); }
static int32_t wrong_row_length(wrong_graph *w) { return wrong_lengths_of(w, 0, 0, 0, -1); }
static int32_t wrong_key_length(wrong_graph *w) { return wrong_lengths_of(w, 1, 1, -1, 1); }
static int32_t wrong_other_row_length(wrong_graph *w) { return wrong_lengths_of(w, 0, 1, 1, 1); }
static int32_t wrong_other_key_length(wrong_graph *w) { return wrong_lengths_of(w, 0, 1, 0, 0); }

/* Joins two comparisons of type BOOLEAN after a product with lengths. */
static int32_t wrong_joined(wrong_graph *w, int left, int right, int mode) {
    int32_t length = fxa__dnn_length(&w->g, 1, 5);
    int32_t s = fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT), length, length, -1);
    int32_t q = fxa__dnn_index(&w->g, s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(&w->g, s, 3, CUDNN_DATA_INT32);
    int32_t x = wrong_bool(w, left, q, left == CUDNN_POINTWISE_CMP_LT ? length : k);
    int32_t b = wrong_bool(w, right, k, right == CUDNN_POINTWISE_CMP_LT ? length : q);
    return wrong_select(w, s, wrong_bool(w, mode, x, b));
}

static int32_t wrong_left(wrong_graph *w) {
    return wrong_joined(w, CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_CMP_LT, CUDNN_POINTWISE_LOGICAL_AND);
}
static int32_t wrong_right(wrong_graph *w) {
    return wrong_joined(w, CUDNN_POINTWISE_CMP_LT, CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_LOGICAL_AND);
}
static int32_t wrong_or(wrong_graph *w) {
    return wrong_joined(w, CUDNN_POINTWISE_CMP_LT, CUDNN_POINTWISE_CMP_LT, CUDNN_POINTWISE_LOGICAL_OR);
}
static int32_t wrong_and_memory(wrong_graph *w) {
    int32_t length = fxa__dnn_length(&w->g, 1, 5), memory = fxa__dnn_scratch(&w->g, wrong_dim, CUDNN_DATA_INT32);
    int32_t s = fxa__dnn_matmul(&w->g, w->s, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT), length, length, -1);
    int32_t q = fxa__dnn_index(&w->g, s, 2, CUDNN_DATA_INT32);
    int32_t x = wrong_bool(w, CUDNN_POINTWISE_CMP_LT, q, length);
    return wrong_select(w, s, wrong_bool(w, CUDNN_POINTWISE_LOGICAL_AND, x, memory));
}
static int32_t wrong_and_ints(wrong_graph *w) {
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_INT32);
    int32_t x = fxa__dnn_int2(&w->g, CUDNN_POINTWISE_CMP_LE, q, k);
    int32_t b = fxa__dnn_int2(&w->g, CUDNN_POINTWISE_CMP_EQ, q, k);
    return wrong_select(w, w->s, fxa__dnn_int2(&w->g, CUDNN_POINTWISE_LOGICAL_AND, x, b));
}

static int32_t wrong_difference(wrong_graph *w) {
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_SUB, wrong_index(w), w->s);
}
static int32_t wrong_product_of_index(wrong_graph *w) {
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, wrong_index(w), w->s);
}
static int32_t wrong_more(wrong_graph *w) {
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_INT32), k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_INT32);
    return wrong_select(w, w->s, fxa__dnn_int2(&w->g, CUDNN_POINTWISE_CMP_GT, q, k));
}
static int32_t wrong_at_least(wrong_graph *w) {
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_INT32);
    return wrong_select(w, w->s, fxa__dnn_int2(&w->g, CUDNN_POINTWISE_CMP_GE, q, fxa__dnn_int(&w->g, 3)));
}
static int32_t wrong_bound_by_value(wrong_graph *w) {
    int32_t q = fxa__dnn_index(&w->g, w->s, 2, CUDNN_DATA_FLOAT), k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_FLOAT);
    k = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, k, fxa__dnn_float(&w->g, 3));
    return wrong_select(w, w->s, wrong_bool(w, CUDNN_POINTWISE_CMP_GT, k, q));
}
static int32_t wrong_heads_of_halves(wrong_graph *w) {
    const int64_t one[4] = {1, 1, 8, 8};
    int32_t x = fxa__dnn_virtual(&w->g, wrong_dim, CUDNN_DATA_HALF);
    (void)fxa__dnn_op2_into(&w->g, CUDNN_POINTWISE_NEG, w->s, -1, x, CUDNN_DATA_FLOAT);
    int32_t sum = fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_ADD, x, fxa__dnn_virtual(&w->g, one, CUDNN_DATA_FLOAT));
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, sum, fxa__dnn_float(&w->g, 1));
}
static int32_t wrong_maximum_of_heads(wrong_graph *w) {
    const int64_t one[4] = {1, 1, 8, 8};
    int32_t most =
        fxa__dnn_reduce(&w->g, CUDNN_REDUCE_TENSOR_MAX, w->s, fxa__dnn_virtual(&w->g, one, CUDNN_DATA_FLOAT));
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, most, fxa__dnn_float(&w->g, 1));
}

/* Adds scores of other sizes, in a backward pass or with lengths, and stores them. */
static int32_t wrong_sizes(wrong_graph *w, int64_t rows, int64_t keys, bool lengths, uint8_t type) {
    const int64_t dim[4] = {1, 2, rows, keys}, left[4] = {1, 2, rows, 8}, right[4] = {1, 2, 8, keys};
    int32_t a = fxa__dnn_virtual(&w->g, left, type), b = fxa__dnn_virtual(&w->g, right, type);
    int32_t length = lengths ? fxa__dnn_length(&w->g, 1, 5) : -1, y = fxa__dnn_virtual(&w->g, dim, type);
    int32_t s = fxa__dnn_matmul(&w->g, a, b, y, length, length, -1);
    (void)fxa__dnn_op2_into(&w->g, CUDNN_POINTWISE_EXP, s, -1, fxa__dnn_scratch(&w->g, dim, CUDNN_DATA_FLOAT),
                            CUDNN_DATA_FLOAT);
    return fxa__dnn_reshape(&w->g, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT));
}
static int32_t wrong_whole(wrong_graph *w) { return wrong_sizes(w, 64, 128, false, CUDNN_DATA_FLOAT); }
static int32_t wrong_rows_left(wrong_graph *w) { return wrong_sizes(w, 65, 128, false, CUDNN_DATA_FLOAT); }
static int32_t wrong_keys_left(wrong_graph *w) { return wrong_sizes(w, 64, 129, false, CUDNN_DATA_FLOAT); }
static int32_t wrong_left_by_lengths(wrong_graph *w) { return wrong_sizes(w, 65, 129, true, CUDNN_DATA_FLOAT); }
static int32_t wrong_left_of_halves(wrong_graph *w) { return wrong_sizes(w, 65, 129, false, CUDNN_DATA_HALF); }

static int32_t wrong_halves(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_HALF); }
static int32_t wrong_bfloats(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_BFLOAT16); }
static int32_t wrong_ints(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_INT32); }
static int32_t wrong_wide_ints(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_INT64); }
static int32_t wrong_e4m3(wrong_graph *w) { return wrong_reads(w, wrong_dim, CUDNN_DATA_FP8_E4M3); }
static int32_t wrong_all_entries(wrong_graph *w) {
    const int64_t dim[4] = {1, 1, 1, 1};
    return wrong_reads(w, dim, CUDNN_DATA_FLOAT);
}
static int32_t wrong_entry_rows(wrong_graph *w) {
    const int64_t dim[4] = {2, 1, 8, 1};
    return wrong_reads(w, dim, CUDNN_DATA_FLOAT);
}

/* Adds captured memory of `heads` heads to one row of `keys` keys. */
static int32_t wrong_one_row(wrong_graph *w, int64_t heads, int64_t keys, bool captured, bool backward) {
    const int64_t dim[4] = {1, 2, 1, keys}, own[4] = {1, heads, 1, 1};
    int32_t s = fxa__dnn_virtual(&w->g, dim, CUDNN_DATA_FLOAT), t = fxa__dnn_scratch(&w->g, own, CUDNN_DATA_FLOAT);
    w->g.tensors[s].score = true, w->g.tensors[t].read = captured;
    s = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, s, t);
    (void)fxa__dnn_op2_into(&w->g, CUDNN_POINTWISE_EXP, s, -1, fxa__dnn_scratch(&w->g, dim, CUDNN_DATA_FLOAT),
                            CUDNN_DATA_FLOAT);
    return backward ? fxa__dnn_reshape(&w->g, w->s, fxa__dnn_like(&w->g, w->s, CUDNN_DATA_FLOAT)) : w->s;
}
static int32_t wrong_heads_of_a_row(wrong_graph *w) { return wrong_one_row(w, 2, 129, true, false); }
static int32_t wrong_heads_of_128(wrong_graph *w) { return wrong_one_row(w, 2, 128, true, false); }
static int32_t wrong_head_of_a_row(wrong_graph *w) { return wrong_one_row(w, 1, 129, true, false); }
static int32_t wrong_own_heads(wrong_graph *w) { return wrong_one_row(w, 2, 129, false, false); }
static int32_t wrong_heads_back(wrong_graph *w) { return wrong_one_row(w, 2, 129, true, true); }

/* Adds values until the graph, with the two results that it stores, has n tensors and values for a run. */
static int32_t wrong_values(wrong_graph *w, int n) {
    int32_t x = w->s;
    for (int i = 2; i < n; i++) x = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, x, fxa__dnn_float(&w->g, i));
    (void)fxa__dnn_op2_into(&w->g, CUDNN_POINTWISE_EXP, x, -1, wrong_memory(w), CUDNN_DATA_FLOAT);
    return w->s;
}
static int32_t wrong_65_values(wrong_graph *w) { return wrong_version = 91900, wrong_values(w, 65); }
static int32_t wrong_64_values_of_old(wrong_graph *w) { return wrong_version = 91899, wrong_values(w, 64); }
static int32_t wrong_65_values_of_old(wrong_graph *w) { return wrong_version = 91899, wrong_values(w, 65); }
static int32_t wrong_most_values(wrong_graph *w) { return wrong_values(w, FXA__DNN_BOUND); }
static int32_t wrong_too_many_values(wrong_graph *w) { return wrong_values(w, FXA__DNN_BOUND + 1); }

/* Adds operations until the graph has n. */
static int32_t wrong_operations(wrong_graph *w, int n) {
    int32_t x = w->s, one = fxa__dnn_float(&w->g, 1);
    for (int i = 1; i < n; i++) x = fxa__dnn_float2(&w->g, CUDNN_POINTWISE_MUL, x, one);
    return x;
}
static int32_t wrong_400(wrong_graph *w) { return wrong_operations(w, 400); }
static int32_t wrong_401(wrong_graph *w) { return wrong_operations(w, 401); }

static const wrong_form wrong_limits[] = {
    {"padding with two lengths", wrong_two_lengths, NULL},
    {"padding with a length of rows", wrong_row_length, NULL},
    {"padding with a length of keys", wrong_key_length, NULL},
    {"padding with another length of rows", wrong_other_row_length, "lengths that no product has"},
    {"padding with another length of keys", wrong_other_key_length, "lengths that no product has"},
    {"causal and padding", wrong_left, "joins masks"},
    {"padding and causal", wrong_right, "joins masks"},
    {"padding of rows or keys", wrong_or, "joins masks"},
    {"padding and memory", wrong_and_memory, "joins masks"},
    {"ints that are joined", wrong_and_ints, NULL},
    {"an index less the score", wrong_difference, "adds the score"},
    {"an index times the score", wrong_product_of_index, NULL},
    {"q > k", wrong_more, "< or >"},
    {"q >= 3", wrong_at_least, NULL},
    {"a window by a value", wrong_bound_by_value, NULL},
    {"heads of halves", wrong_heads_of_halves, NULL},
    {"the maximum of heads", wrong_maximum_of_heads, NULL},
    {"64 rows and 128 keys, backward", wrong_whole, NULL},
    {"65 rows, backward", wrong_rows_left, "no whole tiles"},
    {"129 keys, backward", wrong_keys_left, "no whole tiles"},
    {"65 rows and 129 keys with lengths", wrong_left_by_lengths, NULL},
    {"65 rows and 129 keys of halves", wrong_left_of_halves, NULL},
    {"a tensor of halves", wrong_halves, NULL},
    {"a tensor of bfloats", wrong_bfloats, NULL},
    {"a tensor of ints", wrong_ints, NULL},
    {"a tensor of i64", wrong_wide_ints, "ends the process"},
    {"a tensor of e4m3", wrong_e4m3, "ends the process"},
    {"one value", wrong_all_entries, NULL},
    {"one value per entry and row", wrong_entry_rows, NULL},
    {"one value per head for one row", wrong_heads_of_a_row, "one value per head for one row"},
    {"one value per head for one row of 128 keys", wrong_heads_of_128, NULL},
    {"one value for one row", wrong_head_of_a_row, NULL},
    {"one value per head of the engine's own for one row", wrong_own_heads, NULL},
    {"one value per head for one row, backward", wrong_heads_back, NULL},
    {"64 values before cuDNN 9.19", wrong_64_values_of_old, NULL},
    {"65 values before cuDNN 9.19", wrong_65_values_of_old, "65 tensors and values for a run: this engine takes 64"},
    {"65 values", wrong_65_values, NULL},
    {"the most values", wrong_most_values, NULL},
    {"too many values", wrong_too_many_values, "tensors and values for a run"},
    {"400 operations", wrong_400, NULL},
    {"401 operations", wrong_401, "the graph has 401 operations: cuDNN was tried with 400"},
};

TEST(graphs_on_both_sides_of_a_rule) { wrong_check(wrong_limits, sizeof wrong_limits / sizeof *wrong_limits); }

T_MAIN
