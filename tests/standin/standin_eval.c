/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates a graph in f64: each tensor becomes a dense array of [dim], and operations run in order. Where cuDNN's
 * fused engines differ from the single operations, the evaluation follows the fused engines: a row whose scores are all
 * -inf has weights 0 and statistics -inf; rows beyond the lengths of products are neither read nor written if batch
 * entries have offsets; with lengths, the two constants of a bottom-right mask are those of each batch entry.
 */
#include "standin_graph.h"

#include "base/dtype.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct standin_eval {
    const standin_graph *g;
    double *value[STANDIN_TENSORS];
    void *pointer[STANDIN_TENSORS];
    bool reduced[STANDIN_TENSORS];   /* [tensor] true: maximum, sum or statistics of a row */
    int32_t length[STANDIN_TENSORS]; /* [tensor] tensor with the lengths of its rows; -1 = none */
    int32_t rows, keys;              /* tensors with the numbers of rows and keys of the scores; -1 = none */
} standin_eval;

static int64_t eval_count(const standin_tensor_info *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

static fxa_dtype eval_dtype(int type) {
    switch (type) {
    case CUDNN_DATA_HALF: return FXA_F16;
    case CUDNN_DATA_BFLOAT16: return FXA_BF16;
    case CUDNN_DATA_FP8_E4M3: return FXA_E4M3;
    case CUDNN_DATA_FP8_E5M2: return FXA_E5M2;
    default: return FXA_F32;
    }
}

/* Converts element index i of a tensor to coordinates. */
static void eval_place(const int64_t dim[4], int64_t i, int64_t at[4]) {
    for (int a = 3; a >= 0; a--) at[a] = i % dim[a], i /= dim[a];
}

/* Returns the index of the element at coordinates `at`: axes of size 1 are broadcast, and groups of heads share a
 * head. */
static int64_t eval_element(const standin_tensor_info *t, const int64_t at[4], const int64_t dim[4]) {
    int64_t place = 0;
    for (int a = 0; a < 4; a++) {
        int64_t i = t->dim[a] == dim[a] ? at[a] : t->dim[a] == 1 ? 0 : at[a] / (dim[a] / t->dim[a]);
        place = place * t->dim[a] + i;
    }
    return place;
}

static double *eval_new(standin_eval *e, int32_t t) {
    e->value[t] = calloc((size_t)eval_count(&e->g->tensor[t]), sizeof(double));
    if (!e->value[t]) abort();
    return e->value[t];
}

/* ---- Lengths ----------------------------------------------------------------------------------------------------- */

/* Returns the axis whose index is the row: the last axis for K, which is transposed. */
static int eval_row_axis(const standin_tensor_info *t) { return t->stride[3] != 1 ? 3 : 2; }

static void eval_share_length(standin_eval *e, int32_t t, int32_t length) {
    if (t >= 0 && length >= 0 && e->length[t] < 0) e->length[t] = length;
}

/* Finds the length tensors: products have the lengths of their operands, and tensors with the same rows share
 * lengths. */
static void eval_find_lengths(standin_eval *e) {
    for (int32_t i = 0; i < e->g->n_tensors; i++) e->length[i] = -1;
    e->rows = e->keys = -1;
    for (int32_t i = 0; i < e->g->n_ops; i++) {
        const standin_op *op = &e->g->op[i];
        if (op->kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
        const standin_tensor_info *b = &e->g->tensor[op->b];
        if (e->rows < 0) e->rows = op->length[0], e->keys = op->length[1];
        eval_share_length(e, op->x, op->length[0]);
        eval_share_length(e, op->b, op->length[eval_row_axis(b) == 3 ? 1 : 2]);
        eval_share_length(e, op->y, op->length[0]);
    }
    for (int again = 0; again < 3; again++)
        for (int32_t i = 0; i < e->g->n_ops; i++) {
            const standin_op *op = &e->g->op[i];
            if (op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
            const int32_t all[3] = {op->x, op->b, op->y};
            for (int j = 0; j < 9; j++) {
                int32_t from = all[j / 3], to = all[j % 3];
                if (from >= 0 && to >= 0 && e->g->tensor[from].dim[2] == e->g->tensor[to].dim[2] &&
                    op->kind != CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
                    eval_share_length(e, to, e->length[from]);
            }
        }
}

static int64_t eval_int(const standin_eval *e, int32_t t, int64_t i) {
    int64_t wide;
    int32_t narrow;
    if (e->g->tensor[t].type == CUDNN_DATA_INT64) return memcpy(&wide, (char *)e->pointer[t] + 8 * i, 8), wide;
    return memcpy(&narrow, (char *)e->pointer[t] + 4 * i, 4), narrow;
}

/* Returns true if the element at `at` is in the tensor's memory, and sets *place to its offset. */
static bool eval_find_place(const standin_eval *e, int32_t i, const int64_t at[4], int64_t *place) {
    const standin_tensor_info *t = &e->g->tensor[i];
    *place = t->ragged >= 0 ? eval_int(e, t->ragged, at[0]) : at[0] * t->stride[0];
    for (int a = 1; a < 4; a++) *place += at[a] * t->stride[a];
    return t->ragged < 0 || e->length[i] < 0 || at[eval_row_axis(t)] < eval_int(e, e->length[i], at[0]);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void eval_load(standin_eval *e, int32_t i) {
    const standin_tensor_info *t = &e->g->tensor[i];
    double *to = eval_new(e, i);
    for (int64_t n = 0; n < eval_count(t); n++) {
        int64_t at[4], place;
        eval_place(t->dim, n, at);
        if (!eval_find_place(e, i, at, &place)) continue;
        if (t->type == CUDNN_DATA_INT32 || t->type == CUDNN_DATA_INT64)
            to[n] = (double)eval_int(e, i, place);
        else
            to[n] = fxa__load_f64(e->pointer[i], eval_dtype(t->type), place);
    }
}

static void eval_store(const standin_eval *e, int32_t i) {
    const standin_tensor_info *t = &e->g->tensor[i];
    for (int64_t n = 0; n < eval_count(t); n++) {
        int64_t at[4], place;
        eval_place(t->dim, n, at);
        if (eval_find_place(e, i, at, &place))
            fxa__store_f64(e->pointer[i], eval_dtype(t->type), place, e->value[i][n]);
    }
}

/* Reads keys through the page table; keys beyond the length are 0. */
static void eval_pages(standin_eval *e, const standin_op *op) {
    const standin_tensor_info *x = &e->g->tensor[op->x], *y = &e->g->tensor[op->y], *table = &e->g->tensor[op->b];
    int row = eval_row_axis(y);
    double *to = eval_new(e, op->y);
    for (int64_t n = 0; n < eval_count(y); n++) {
        int64_t at[4];
        eval_place(y->dim, n, at);
        int64_t s = at[row], d = at[5 - row];
        if (s >= eval_int(e, op->t, at[0])) continue;
        int64_t page = eval_int(e, op->b, at[0] * table->dim[2] + s / x->dim[2]);
        to[n] = e->value[op->x][((page * x->dim[1] + at[1]) * x->dim[2] + s % x->dim[2]) * x->dim[3] + d];
    }
}

/* ---- Pointwise --------------------------------------------------------------------------------------------------- */

static double eval_arithmetic(int mode, double x, double b) {
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_MOD: return fmod(x, b);
    case CUDNN_POINTWISE_MIN: return fmin(x, b); /* ignores a NaN operand, as cuDNN does */
    case CUDNN_POINTWISE_MAX: return fmax(x, b);
    case CUDNN_POINTWISE_POW: return x > 0 ? pow(x, b) : NAN;
    case CUDNN_POINTWISE_ATAN2: return atan2(x, b);
    case CUDNN_POINTWISE_CMP_EQ: return x == b;
    case CUDNN_POINTWISE_CMP_NEQ: return x != b;
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_CMP_LT: return x < b;
    case CUDNN_POINTWISE_CMP_LE: return x <= b;
    case CUDNN_POINTWISE_LOGICAL_AND: return x != 0 && b != 0;
    case CUDNN_POINTWISE_LOGICAL_OR: return x != 0 || b != 0;
    default: abort();
    }
}

static double eval_function(int mode, double x) {
    switch (mode) {
    case CUDNN_POINTWISE_SQRT: return sqrt(x);
    case CUDNN_POINTWISE_ABS: return fabs(x);
    case CUDNN_POINTWISE_CEIL: return ceil(x);
    case CUDNN_POINTWISE_COS: return cos(x);
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_FLOOR: return floor(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_NEG: return -x;
    case CUDNN_POINTWISE_RSQRT: return 1 / sqrt(x);
    case CUDNN_POINTWISE_SIN: return sin(x);
    case CUDNN_POINTWISE_TAN: return tan(x);
    case CUDNN_POINTWISE_ERF: return erf(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_RECIPROCAL: return 1 / x;
    case CUDNN_POINTWISE_TANH_FWD: return tanh(x);
    case CUDNN_POINTWISE_SIGMOID_FWD: return 1 / (1 + exp(-x));
    case CUDNN_POINTWISE_LOGICAL_NOT: return x == 0;
    default: abort();
    }
}

/* Combines x with the maximum, sum or statistics b of its row; an empty row stays empty. */
static double eval_against_row(int mode, double x, double b) {
    if (mode == CUDNN_POINTWISE_SUB && isinf(b) && b < 0) return isnan(x) ? x : -INFINITY;
    if (mode == CUDNN_POINTWISE_DIV && b == 0) return 0;
    return eval_arithmetic(mode, x, b);
}

static bool eval_is_row_index(const standin_eval *e, int32_t t) {
    for (int32_t i = 0; i < e->g->n_ops; i++)
        if (e->g->op[i].y == t) return e->g->op[i].mode == CUDNN_POINTWISE_GEN_INDEX && e->g->op[i].axis == 2;
    return false;
}

/* Returns the length tensor that replaces an operation's constant in a bottom-right mask: the number of keys for an ADD
 * to the row index, the number of rows for a SUB from that sum. */
static int32_t eval_stands_for(const standin_eval *e, const standin_op *op) {
    const standin_op *all = e->g->op;
    if (e->rows < 0 || op->b < 0 || !e->g->tensor[op->b].is_by_value || op->precision != CUDNN_DATA_INT32) return -1;
    for (int32_t i = 0; i < e->g->n_ops; i++) {
        bool sub = all[i].mode == CUDNN_POINTWISE_SUB && all[i].b >= 0 && e->g->tensor[all[i].b].is_by_value;
        if (op->mode == CUDNN_POINTWISE_ADD && sub && all[i].x == op->y && eval_is_row_index(e, op->x)) return e->keys;
        bool add = all[i].mode == CUDNN_POINTWISE_ADD && all[i].y == op->x;
        if (op->mode == CUDNN_POINTWISE_SUB && add && eval_is_row_index(e, all[i].x)) return e->rows;
    }
    return -1;
}

static void eval_pointwise(standin_eval *e, const standin_op *op) {
    const standin_tensor_info *y = &e->g->tensor[op->y];
    double *to = eval_new(e, op->y);
    bool ints = op->precision == CUDNN_DATA_INT32;
    int32_t stands = eval_stands_for(e, op);
    for (int64_t n = 0; n < eval_count(y); n++) {
        int64_t at[4];
        eval_place(y->dim, n, at);
        double x = e->value[op->x][eval_element(&e->g->tensor[op->x], at, y->dim)];
        double b = op->b < 0 ? 0 : e->value[op->b][eval_element(&e->g->tensor[op->b], at, y->dim)];
        if (stands >= 0) b = (double)eval_int(e, stands, at[0]);
        if (op->mode == CUDNN_POINTWISE_GEN_INDEX)
            to[n] = (double)at[op->axis];
        else if (op->mode == CUDNN_POINTWISE_BINARY_SELECT)
            to[n] = e->value[op->t][eval_element(&e->g->tensor[op->t], at, y->dim)] != 0 ? x : b;
        else if (op->b < 0)
            to[n] = eval_function(op->mode, x);
        else
            to[n] = e->reduced[op->b] ? eval_against_row(op->mode, x, b) : eval_arithmetic(op->mode, x, b);
        if (ints && op->mode == CUDNN_POINTWISE_DIV) to[n] = trunc(to[n]);
        if (ints) to[n] = fxa__wrap32((int64_t)to[n]);
    }
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

static void eval_reduce(standin_eval *e, const standin_op *op) {
    const standin_tensor_info *x = &e->g->tensor[op->x], *y = &e->g->tensor[op->y];
    bool most = op->mode == CUDNN_REDUCE_TENSOR_MAX;
    double *to = eval_new(e, op->y);
    for (int64_t n = 0; most && n < eval_count(y); n++) to[n] = -INFINITY;
    for (int64_t n = 0; n < eval_count(x); n++) {
        int64_t at[4];
        eval_place(x->dim, n, at);
        double *sum = &to[eval_element(y, at, x->dim)];
        double value = e->value[op->x][n];
        if (op->mode == CUDNN_REDUCE_TENSOR_AMAX)
            *sum = fmax(*sum, fabs(value));
        else
            *sum = most ? fmax(*sum, value) : *sum + value;
    }
    e->reduced[op->y] = y->dim[3] == 1 && op->mode != CUDNN_REDUCE_TENSOR_AMAX;
}

static void eval_matmul(standin_eval *e, const standin_op *op) {
    const standin_tensor_info *a = &e->g->tensor[op->x], *b = &e->g->tensor[op->b], *c = &e->g->tensor[op->y];
    double *to = eval_new(e, op->y);
    for (int64_t n = 0; n < eval_count(c); n++) {
        int64_t at[4];
        double sum = 0;
        eval_place(c->dim, n, at);
        const double *row = e->value[op->x] + ((at[0] * a->dim[1] + at[1]) * a->dim[2] + at[2]) * a->dim[3];
        int64_t head = at[1] / (c->dim[1] / b->dim[1]);
        const double *column = e->value[op->b] + (at[0] * b->dim[1] + head) * b->dim[2] * b->dim[3] + at[3];
        for (int64_t k = 0; k < a->dim[3]; k++) sum += row[k] * column[k * b->dim[3]];
        to[n] = sum;
    }
}

/* Swaps the last two axes. */
static void eval_reshape(standin_eval *e, const standin_op *op) {
    const standin_tensor_info *x = &e->g->tensor[op->x], *y = &e->g->tensor[op->y];
    double *to = eval_new(e, op->y);
    for (int64_t n = 0; n < eval_count(y); n++) {
        int64_t at[4];
        eval_place(y->dim, n, at);
        to[n] = e->value[op->x][((at[0] * x->dim[1] + at[1]) * x->dim[2] + at[3]) * x->dim[3] + at[2]];
    }
}

/* Returns true if y is x with the last two axes exchanged, in sizes and strides. */
static bool eval_is_transposed(const standin_tensor_info *x, const standin_tensor_info *y) {
    static const int from[4] = {0, 1, 3, 2};
    for (int a = 0; a < 4; a++)
        if (y->dim[a] != x->dim[from[a]] || y->stride[a] != x->stride[from[a]]) return false;
    return true;
}

/* Returns true if the elements fill their memory without gaps, in any order of the axes. Strides of axes of size 1 do
 * not count. */
static bool eval_is_dense(const standin_tensor_info *t) {
    int64_t stride = 1;
    bool done[4] = {false};
    for (int n = 0; n < 4; n++)
        for (int a = 0; a < 4; a++) {
            if (done[a] || (t->dim[a] > 1 && t->stride[a] != stride)) continue;
            stride *= t->dim[a];
            done[a] = true;
        }
    return done[0] && done[1] && done[2] && done[3];
}

/* Returns true if t is -1 (none) or a tensor with one int per batch entry, as lengths of products must be. */
static bool eval_is_length(const standin_graph *g, int32_t t, int64_t batch) {
    if (t < 0) return true;
    const standin_tensor_info *x = &g->tensor[t];
    return x->type == CUDNN_DATA_INT32 && x->dim[0] == batch && x->dim[1] * x->dim[2] * x->dim[3] == 1;
}

int standin_graph_check(const standin_graph *g, char *text, size_t size) {
    for (int32_t i = 0; i < g->n_ops; i++) {
        const standin_op *op = &g->op[i];
        const standin_tensor_info *x = &g->tensor[op->x], *y = &g->tensor[op->y];
        bool reshapes = op->kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
        if (reshapes && !eval_is_transposed(x, y))
            return (void)snprintf(text, size, "operation %d is no turn", (int)i), CUDNN_STATUS_NOT_SUPPORTED;
        if (!reshapes && y->is_virtual && !eval_is_dense(y))
            return (void)snprintf(text, size, "the result of operation %d has gaps", (int)i),
                   CUDNN_STATUS_NOT_SUPPORTED;
        if (op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && x->dim[3] != g->tensor[op->b].dim[2])
            return (void)snprintf(text, size, "operation %d does not fit", (int)i), 2000;
        for (int j = 0; j < 3 && op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR; j++)
            if (!eval_is_length(g, op->length[j], y->dim[0]))
                return (void)snprintf(text, size, "operation %d has lengths that are none", (int)i), 2000;
    }
    return 0;
}

/* Sets the tensors' pointers. Each tensor in memory needs a pointer, and each pointer must belong to a tensor that an
 * operation uses. */
static int eval_bind(standin_eval *e, int64_t n, const int64_t *ids, void *const *pointers) {
    int64_t bound = 0;
    for (int32_t i = 0; i < e->g->n_tensors; i++) {
        if (e->g->tensor[i].is_virtual) continue;
        for (int64_t j = 0; j < n; j++)
            if (ids[j] == e->g->tensor[i].id) e->pointer[i] = pointers[j];
        if (!e->pointer[i]) return 2002;
        bound++;
    }
    return bound == n ? 0 : 2002;
}

/* Rounds the elements of a 16-bit or 8-bit tensor, also of one without memory: P, dS, dK and dV of single heads. */
static void eval_round(standin_eval *e, int32_t i) {
    const standin_tensor_info *t = &e->g->tensor[i];
    uint16_t bits = 0;
    if (eval_dtype(t->type) == FXA_F32) return;
    for (int64_t n = 0; n < eval_count(t); n++) {
        fxa__store_f64(&bits, eval_dtype(t->type), 0, e->value[i][n]);
        e->value[i][n] = fxa__load_f64(&bits, eval_dtype(t->type), 0);
    }
}

static bool eval_is_written(const standin_graph *g, int32_t t) {
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->op[i].y == t) return true;
    return false;
}

int standin_graph_run(const standin_graph *g, int64_t n, const int64_t *ids, void *const *pointers, char *text,
                      size_t size) {
    standin_eval *e = calloc(1, sizeof *e);
    if (!e) abort();
    e->g = g;
    int status = eval_bind(e, n, ids, pointers);
    if (status) (void)snprintf(text, size, "a tensor has no pointer, or a pointer no tensor");
    if (!status) eval_find_lengths(e);
    for (int32_t i = 0; !status && i < g->n_tensors; i++) {
        const standin_tensor_info *t = &g->tensor[i];
        if (!t->is_virtual && !eval_is_written(g, i)) eval_load(e, i);
        bool statistics = !t->is_virtual && !t->is_by_value && t->type == CUDNN_DATA_FLOAT && t->dim[3] == 1;
        e->reduced[i] = statistics && (t->dim[1] * t->dim[2] == t->stride[0] || t->ragged >= 0);
    }
    for (int32_t i = 0; !status && i < g->n_ops; i++) {
        const standin_op *op = &g->op[i];
        if (op->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) eval_pointwise(e, op);
        if (op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) eval_matmul(e, op);
        if (op->kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) eval_reduce(e, op);
        if (op->kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) eval_reshape(e, op);
        if (op->kind == CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR) eval_pages(e, op);
        eval_round(e, op->y);
        if (!g->tensor[op->y].is_virtual) eval_store(e, op->y);
    }
    for (int32_t i = 0; i < g->n_tensors; i++) free(e->value[i]);
    free(e);
    return status;
}
