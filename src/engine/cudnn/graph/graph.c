/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the graph of graph.h. This file does not depend on attention.
 */
#include "graph.h"

#include "../../../base/carve.h"
#include "../../../base/invariant.h"
#include "helper_steps.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fxa__dnn_graph_free(fxa__dnn_graph *g) {
    fxa__free(g->host, g->tensors, g->tensor_capacity * sizeof *g->tensors);
    fxa__free(g->host, g->ops, g->op_capacity * sizeof *g->ops);
    fxa__free(g->host, g->steps, g->step_capacity * sizeof *g->steps);
    g->tensors = NULL, g->ops = NULL, g->steps = NULL;
    g->n_steps = g->step_capacity = 0;
    g->n_tensors = g->tensor_capacity = g->n_ops = g->op_capacity = 0;
}

int32_t fxa__dnn_refuse(fxa__dnn_graph *g, const char *format, ...) {
    if (g->status != FXA_OK) return 0;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(g->reason, sizeof g->reason, format, list);
    va_end(list);
    g->status = FXA_E_UNSUPPORTED;
    return 0;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Returns the number of elements of a tensor. */
static int64_t graph_count(const fxa__dnn_tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

int32_t fxa__dnn_add(fxa__dnn_graph *g, const fxa__dnn_tensor *tensor) {
    if (g->status != FXA_OK) return 0;
    if (!fxa__grow(g->host, &g->tensors, &g->tensor_capacity, g->n_tensors + 1, sizeof *g->tensors)) {
        g->status = FXA_E_MEMORY;
        return 0;
    }
    /* ragged: 1 + index of the tensor with the offsets of batch entries, which must be in the graph already */
    FXA__ASSERT(tensor->ragged >= 0 && (size_t)tensor->ragged <= g->n_tensors);
    FXA__ASSERT(!tensor->ragged || g->tensors[tensor->ragged - 1].type == CUDNN_DATA_INT64);
    FXA__ASSERT(!fxa__dnn_is_by_value(tensor) || graph_count(tensor) == 1);
    g->tensors[g->n_tensors] = *tensor;
    return (int32_t)g->n_tensors++;
}

static void graph_pack(fxa__dnn_tensor *t, const int64_t dim[4]) {
    int64_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        t->dim[i] = dim[i];
        t->stride[i] = stride;
        stride *= dim[i];
    }
}

int32_t fxa__dnn_virtual(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type) {
    fxa__dnn_tensor t = {.type = type, .source = FXA__DNN_VIRTUAL};
    graph_pack(&t, dim);
    return fxa__dnn_add(g, &t);
}

int32_t fxa__dnn_like(fxa__dnn_graph *g, int32_t x, uint8_t type) {
    if (g->status != FXA_OK) return 0;
    int64_t dim[4];
    memcpy(dim, g->tensors[x].dim, sizeof dim);
    return fxa__dnn_virtual(g, dim, type);
}

/* Adds a scalar that is passed by value. Returns its tensor. */
static int32_t graph_value(fxa__dnn_graph *g, double value, uint8_t type) {
    const fxa__dnn_tensor t = {
        .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}, .type = type, .source = FXA__DNN_VALUE, .value = value};
    return fxa__dnn_add(g, &t);
}

int32_t fxa__dnn_float(fxa__dnn_graph *g, double value) { return graph_value(g, value, CUDNN_DATA_FLOAT); }
int32_t fxa__dnn_int(fxa__dnn_graph *g, int64_t value) { return graph_value(g, (double)value, CUDNN_DATA_INT32); }

int64_t fxa__dnn_size(uint8_t type) {
    if (type == CUDNN_DATA_FP8_E4M3 || type == CUDNN_DATA_FP8_E5M2) return 1;
    return type == CUDNN_DATA_INT64 ? 8 : type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32 ? 4 : 2;
}

int32_t fxa__dnn_scratch(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type) {
    fxa__dnn_tensor t = {.type = type, .source = FXA__DNN_SCRATCH, .offset = g->scratch};
    int64_t bytes = fxa__dnn_size(type);
    bool fits = true;
    for (int i = 0; i < 4; i++) fits = fits && fxa__mul_i64(bytes, dim[i], &bytes);
    fits = fits && fxa__add_i64(bytes, FXA__DNN_SCRATCH_ALIGN + FXA__CARVE_ZONE, &bytes);
    bytes = fits ? bytes / FXA__DNN_SCRATCH_ALIGN * FXA__DNN_SCRATCH_ALIGN : 0;
    if (!fits || !fxa__add_i64(g->scratch, bytes, &g->scratch))
        return fxa__dnn_refuse(g, "the workspace would not fit in 63 bits");
    FXA__ASSERT(t.offset % FXA__DNN_SCRATCH_ALIGN == 0 && g->scratch - t.offset >= FXA__CARVE_ZONE);
    graph_pack(&t, dim);
    return fxa__dnn_add(g, &t);
}

int32_t fxa__dnn_length(fxa__dnn_graph *g, int64_t b, int64_t length) {
    const int64_t dim[4] = {b, 1, 1, 1};
    int32_t t = fxa__dnn_scratch(g, dim, CUDNN_DATA_INT32);
    if (g->status == FXA_OK) g->tensors[t].fill = (int32_t)length;
    return t;
}

static bool graph_has(const fxa__dnn_graph *g, int32_t t) {
    for (size_t i = 0; i < g->n_ops; i++) {
        const fxa__dnn_op *op = &g->ops[i];
        if (op->x == t || op->b == t || op->t == t || op->y == t || op->m == t || op->n == t || op->k == t) return true;
    }
    return false;
}

bool fxa__dnn_is_used(const fxa__dnn_graph *g, int32_t t) {
    if (graph_has(g, t)) return true;
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].ragged == t + 1 && graph_has(g, (int32_t)i)) return true;
    return false;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Returns true if x is the index of a tensor of the graph, or -1 (no tensor). */
static bool graph_is_tensor(const fxa__dnn_graph *g, int32_t x) { return x >= -1 && x < (int32_t)g->n_tensors; }

/* Adds an operation. Returns the tensor of its result. */
static int32_t graph_op(fxa__dnn_graph *g, const fxa__dnn_op *op) {
    if (g->status != FXA_OK) return 0;
    FXA__ASSERT(op->x >= 0 && op->y >= 0 && op->y != op->x && op->y != op->b && op->y != op->t);
    FXA__ASSERT(graph_is_tensor(g, op->x) && graph_is_tensor(g, op->b) && graph_is_tensor(g, op->t));
    FXA__ASSERT(graph_is_tensor(g, op->m) && graph_is_tensor(g, op->n) && graph_is_tensor(g, op->k));
    FXA__ASSERT(graph_is_tensor(g, op->y) && !fxa__dnn_is_by_value(&g->tensors[op->y]));
    if (!fxa__grow(g->host, &g->ops, &g->op_capacity, g->n_ops + 1, sizeof *g->ops)) {
        g->status = FXA_E_MEMORY;
        return 0;
    }
    g->ops[g->n_ops++] = *op;
    fxa__dnn_tensor *y = &g->tensors[op->y];
    const int32_t from[3] = {op->x, op->b, op->t};
    for (int i = 0; i < 3; i++) y->score = y->score || (from[i] >= 0 && g->tensors[from[i]].score);
    return op->y;
}

/* Returns an operation without lengths (m, n, k), which only a matmul may have. */
static fxa__dnn_op graph_op_of(fxa__dnn_kind kind, int mode, uint8_t precision, int32_t x, int32_t b, int32_t t,
                               int32_t y) {
    return (fxa__dnn_op){(uint8_t)kind, precision, 0, (int16_t)mode, x, b, t, y, -1, -1, -1};
}

int32_t fxa__dnn_op2_into(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, int32_t y, uint8_t precision) {
    const fxa__dnn_op op = graph_op_of(FXA__DNN_POINTWISE, mode, precision, x, b, -1, y);
    return graph_op(g, &op);
}

/* Returns a virtual tensor whose size along each axis is the larger one of the sizes of x and b. */
static int32_t graph_result(fxa__dnn_graph *g, int32_t x, int32_t b, uint8_t type) {
    int64_t dim[4];
    if (g->status != FXA_OK) return 0;
    for (int i = 0; i < 4; i++) {
        int64_t size = g->tensors[x].dim[i], other = b >= 0 ? g->tensors[b].dim[i] : 1;
        FXA__ASSERT(size == other || size == 1 || other == 1); /* cuDNN broadcasts only a size of 1 */
        dim[i] = size > other ? size : other;
    }
    return fxa__dnn_virtual(g, dim, type);
}

int32_t fxa__dnn_op2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, uint8_t type, uint8_t precision) {
    return fxa__dnn_op2_into(g, mode, x, b, graph_result(g, x, b, type), precision);
}

int32_t fxa__dnn_float2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b) {
    return fxa__dnn_op2(g, mode, x, b, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT);
}

int32_t fxa__dnn_int2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b) {
    return fxa__dnn_op2(g, mode, x, b, CUDNN_DATA_INT32, CUDNN_DATA_INT32);
}

int32_t fxa__dnn_select(fxa__dnn_graph *g, int32_t x, int32_t b, int32_t t) {
    const int32_t y = graph_result(g, x, b, CUDNN_DATA_FLOAT);
    const fxa__dnn_op op = graph_op_of(FXA__DNN_POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, b, t, y);
    return graph_op(g, &op);
}

int32_t fxa__dnn_index(fxa__dnn_graph *g, int32_t of, int axis, uint8_t precision) {
    int32_t y = fxa__dnn_like(g, of, CUDNN_DATA_INT32);
    fxa__dnn_op op = graph_op_of(FXA__DNN_POINTWISE, CUDNN_POINTWISE_GEN_INDEX, precision, of, -1, -1, y);
    op.axis = (uint8_t)axis;
    y = graph_op(g, &op);
    /* an index does not depend on the score, only on the shape of the operand */
    if (g->status == FXA_OK) g->tensors[y].score = false;
    return y;
}

/* Returns true if along each axis the size of tensor x is a multiple of the size of tensor y. */
static bool graph_is_multiple(const fxa__dnn_graph *g, int32_t x, int32_t y) {
    bool multiple = true;
    for (int i = 0; i < 4; i++) multiple = multiple && g->tensors[x].dim[i] % g->tensors[y].dim[i] == 0;
    return multiple;
}

int32_t fxa__dnn_reduce(fxa__dnn_graph *g, int mode, int32_t x, int32_t y) {
    FXA__ASSERT(g->status != FXA_OK || graph_is_multiple(g, x, y));
    const fxa__dnn_op op = graph_op_of(FXA__DNN_REDUCTION, mode, CUDNN_DATA_FLOAT, x, -1, -1, y);
    return graph_op(g, &op);
}

/* Returns true if c has the sizes of the matrix product of a and b. b may have fewer heads (KV heads) than a. */
static bool graph_is_product(const fxa__dnn_tensor *a, const fxa__dnn_tensor *b, const fxa__dnn_tensor *c) {
    bool heads = a->dim[0] == b->dim[0] && a->dim[0] == c->dim[0] && a->dim[1] == c->dim[1];
    return heads && c->dim[1] % b->dim[1] == 0 && a->dim[3] == b->dim[2] && c->dim[2] == a->dim[2] &&
           c->dim[3] == b->dim[3];
}

int32_t fxa__dnn_matmul(fxa__dnn_graph *g, int32_t a, int32_t b, int32_t c, int32_t m, int32_t n, int32_t k) {
    FXA__ASSERT(g->status != FXA_OK || graph_is_product(&g->tensors[a], &g->tensors[b], &g->tensors[c]));
    fxa__dnn_op op = graph_op_of(FXA__DNN_MATMUL, 0, CUDNN_DATA_FLOAT, a, b, -1, c);
    op.m = m, op.n = n, op.k = k;
    return graph_op(g, &op);
}

int32_t fxa__dnn_reshape(fxa__dnn_graph *g, int32_t x, int32_t y) {
    FXA__ASSERT(g->status != FXA_OK || graph_count(&g->tensors[x]) == graph_count(&g->tensors[y]));
    const fxa__dnn_op op = graph_op_of(FXA__DNN_RESHAPE, 0, 0, x, -1, -1, y);
    return graph_op(g, &op);
}

int32_t fxa__dnn_load_pages(fxa__dnn_graph *g, int32_t pages, int32_t table, int32_t lengths, int32_t y) {
    const fxa__dnn_op op = graph_op_of(FXA__DNN_PAGED, 0, 0, pages, table, lengths, y);
    return graph_op(g, &op);
}
