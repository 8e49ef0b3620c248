/* SPDX-License-Identifier: Apache-2.0
 *
 * The last look at a graph before cuDNN gets it (cudnn_rules.c), at forms that the lowering does not write: each is
 * one that a device took without a word and computed wrongly. Needs no cuDNN.
 */
#include "engine/cudnn/cudnn_attention.h"
#include "t.h"

/* A graph in the making: scores, their indices, and what is stored in the end. */
typedef struct wrong_graph {
    fxa__dnn_graph g;
    int32_t s, q, k;
} wrong_graph;

static const int64_t wrong_dim[4] = {1, 2, 8, 8};

static int32_t wrong_mask(wrong_graph *w, int32_t s, int mode, uint8_t type) {
    int32_t q = fxa__dnn_index(&w->g, s, 2, type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_FLOAT : type);
    int32_t k = fxa__dnn_index(&w->g, s, 3, type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_FLOAT : type);
    int32_t m = fxa__dnn_op2(&w->g, mode, mode == CUDNN_POINTWISE_CMP_GT ? k : q,
                             mode == CUDNN_POINTWISE_CMP_GT ? q : k, type, type);
    return fxa__dnn_select(&w->g, s, fxa__dnn_float(&w->g, -INFINITY), m);
}

static int32_t wrong_memory(wrong_graph *w) { return fxa__dnn_scratch(&w->g, wrong_dim, CUDNN_DATA_FLOAT); }

static int32_t wrong_index(wrong_graph *w) {
    int32_t k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_INT32);
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_IDENTITY, k, -1);
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

static const struct wrong_form {
    const char *name;
    int32_t (*write)(wrong_graph *w);
    const char *says; /* NULL: it is right */
} wrong_forms[] = {
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
};

TEST(graphs_that_cudnn_would_get_wrong) {
    fxa__host *host = NULL;
    fxa_error err;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    for (size_t i = 0; i < sizeof wrong_forms / sizeof *wrong_forms; i++) {
        const struct wrong_form *form = &wrong_forms[i];
        wrong_graph w = {.g = {.host = host, .status = FXA_OK}};
        w.s = fxa__dnn_virtual(&w.g, wrong_dim, CUDNN_DATA_FLOAT);
        w.g.tensors[w.s].score = true;
        int32_t x = form->write(&w);
        (void)fxa__dnn_op2_into(&w.g, CUDNN_POINTWISE_EXP, x, -1, wrong_memory(&w), CUDNN_DATA_FLOAT);
        T_INT(w.g.status, FXA_OK);
        fxa__dnn_rules_check(&w.g);
        if ((w.g.status != FXA_OK) != (form->says != NULL)) T_FAIL("%s: %s\n", form->name, w.g.reason);
        if (form->says) T_HAS(w.g.reason, form->says);
        fxa__dnn_graph_free(&w.g);
    }
    fxa__host_release(host);
}

T_MAIN
