/* SPDX-License-Identifier: Apache-2.0
 *
 * An attention problem as a graph of cuDNN operations, as plain data: between the problem and cuDNN's descriptors, so
 * that it can be made, checked and evaluated where there is no cuDNN. Made by attention/forward.c and
 * attention/backward.c with the score program from score/leaves.c and its mask from attention/mask.c; held against the
 * rules of graph/graph_checks.c; turned into descriptors by descriptors.c.
 *
 * Everything has four axes: [B,H,Sq,Sk] of scores. A tensor's number is its unique id in cuDNN less 1. Building goes on
 * after a failure: the first is remembered, and everything after it gives tensor 0.
 */
#ifndef FXA_ENGINE_CUDNN_GRAPH_H
#define FXA_ENGINE_CUDNN_GRAPH_H

#include "../api.h"

/* Where the content of a tensor comes from. */
typedef enum fxa__dnn_source {
    FXA__DNN_VIRTUAL, /* an operation: it has no memory */
    FXA__DNN_SLOT,    /* memory: slot `index` of the run; where that may be NULL, and `fill` or `cleared` is set, else
                         the workspace */
    FXA__DNN_TENSOR,  /* captured tensor `index` */
    FXA__DNN_SCRATCH, /* the workspace, at byte `offset` */
    FXA__DNN_VALUE,   /* by value: `value`, a float, or a whole number where the type is INT32 */
    FXA__DNN_NODE,    /* by value: value + times * what node `index` of the program is in a run, which reads neither
                         coordinates nor tensors */
    FXA__DNN_SCALE,   /* by value: the scale of the run; with `times` 1 or -1 that times or over node `index` */
    FXA__DNN_DTENSOR, /* the gradient of captured tensor `index` */
    FXA__DNN_OWN_TENSOR, /* as TENSOR and NODE, of the caller's backward program */
    FXA__DNN_OWN_NODE
} fxa__dnn_source;

/* The largest int that is divided: quotients are those of floats, and were seen wrong at 16 million, and right here. */
enum { FXA__DNN_DIVIDED = 1 << 22 };

/* What of an int by value a graph has, for quotients rounded down of what is not negative (score/ops.c). */
typedef enum fxa__dnn_part {
    FXA__DNN_WHOLE,
    FXA__DNN_DIVISOR,  /* its magnitude, no more than FXA__DNN_DIVIDED + 1; 1 of 0 */
    FXA__DNN_ROUNDS,   /* of negative ones DIVISOR - 1, else 0 */
    FXA__DNN_SIGN,     /* 1, 0 or -1 */
    FXA__DNN_MAGNITUDE /* in 32 bits; 1 of 0 */
} fxa__dnn_part;

typedef struct fxa__dnn_tensor {
    int64_t dim[4], stride[4];
    uint8_t type;   /* CUDNN_DATA_ */
    uint8_t source; /* fxa__dnn_source */
    bool score;     /* depends on the score */
    bool read;      /* of scratch: the program reads it */
    bool number;    /* by value: finite and not 0 in any run (score/parameterize.c) */
    bool bound;     /* of a mask: within 2^30 of 0, beyond which nothing changes and sums with it wrap around */
    int8_t times;
    uint8_t part; /* fxa__dnn_part */
    int32_t index;
    int64_t offset;
    double value;
    bool spread;    /* by value, but in the workspace, as often as there are heads: written by a run */
    int32_t fill;   /* of workspace: 32-bit words with this value, where it is not 0; a run writes them first */
    bool cleared;   /* a run writes 0 there first */
    int32_t ragged; /* 1 + the tensor that says where each batch entry begins, in elements; 0: stride[0] does */
} fxa__dnn_tensor;

typedef enum fxa__dnn_kind {
    FXA__DNN_POINTWISE,
    FXA__DNN_MATMUL,
    FXA__DNN_REDUCTION,
    FXA__DNN_RESHAPE,
    FXA__DNN_PAGED /* y is x by pages: b is the table, t the lengths */
} fxa__dnn_kind;

enum { FXA__DNN_BOUND = 128 }; /* tensors and values of a graph that a run gives a pointer, at most */

struct fxa__dnn_step;

typedef struct fxa__dnn_op {
    uint8_t kind;      /* fxa__dnn_kind */
    uint8_t precision; /* CUDNN_DATA_ */
    uint8_t axis;      /* of GEN_INDEX */
    int16_t mode;      /* CUDNN_POINTWISE_, CUDNN_REDUCE_TENSOR_ */
    int32_t x, b, t;   /* operands, -1: none; a product is x times b */
    int32_t y;         /* the result */
    int32_t m, n, k;   /* of a product: tensors of lengths per batch entry; -1: none */
} fxa__dnn_op;

typedef struct fxa__dnn_graph {
    fxa__host *host;
    fxa__dnn_tensor *tensors;
    fxa__dnn_op *ops;
    size_t n_tensors, tensor_capacity, n_ops, op_capacity;
    int64_t scratch;             /* bytes of the workspace that tensors of the graph have */
    struct fxa__dnn_step *steps; /* graph/helper_steps.h */
    size_t n_steps, step_capacity;
    fxa_status status;
    char reason[sizeof((fxa_error *)0)->text]; /* E_UNSUPPORTED: why */
} fxa__dnn_graph;

void fxa__dnn_graph_free(fxa__dnn_graph *g);
/* Remembers the reason, if it is the first failure. Returns 0, a tensor. */
int32_t fxa__dnn_refuse(fxa__dnn_graph *g, const char *format, ...) FXA__PRINTF(2, 3);

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

int32_t fxa__dnn_add(fxa__dnn_graph *g, const fxa__dnn_tensor *tensor);
/* Without memory: the sizes of x, packed. */
int32_t fxa__dnn_like(fxa__dnn_graph *g, int32_t x, uint8_t type);
int32_t fxa__dnn_virtual(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type);
int32_t fxa__dnn_float(fxa__dnn_graph *g, double value);
int32_t fxa__dnn_int(fxa__dnn_graph *g, int64_t value);
int64_t fxa__dnn_size(uint8_t type); /* bytes of an element */
/* Packed, in the workspace. */
enum { FXA__DNN_SCRATCH_ALIGN = 256 }; /* bytes: of each in the workspace, behind which a red zone is (base/carve.h) */
int32_t fxa__dnn_scratch(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type);
/* [B,1,1,1] of INT32, all of them `length`, written by a run. */
int32_t fxa__dnn_length(fxa__dnn_graph *g, int64_t b, int64_t length);

static inline bool fxa__dnn_is_by_value(const fxa__dnn_tensor *t) {
    return !t->spread && (t->source == FXA__DNN_VALUE || t->source == FXA__DNN_NODE || t->source == FXA__DNN_OWN_NODE ||
                          t->source == FXA__DNN_SCALE);
}
static inline bool fxa__dnn_is_captured(const fxa__dnn_tensor *t) {
    return t->source == FXA__DNN_TENSOR || t->source == FXA__DNN_OWN_TENSOR;
}

/* Whether an operation has it, for whatever. */
bool fxa__dnn_is_used(const fxa__dnn_graph *g, int32_t tensor);
/* [1,H,1,1], of several heads. */
static inline bool fxa__dnn_is_per_head(const fxa__dnn_tensor *t) {
    return t->dim[0] == 1 && t->dim[1] > 1 && t->dim[2] == 1 && t->dim[3] == 1;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* x and b have types that fit the precision. b -1: none. The result is virtual, of the larger of the two sizes, of
 * `type`. */
int32_t fxa__dnn_op2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, uint8_t type, uint8_t precision);
/* The same into y. */
int32_t fxa__dnn_op2_into(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, int32_t y, uint8_t precision);
/* In floats. */
int32_t fxa__dnn_float2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b);
/* In ints: INT32, or bools as 0 and 1. */
int32_t fxa__dnn_int2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b);
/* t ? x : b */
int32_t fxa__dnn_select(fxa__dnn_graph *g, int32_t x, int32_t b, int32_t t);
/* The index along an axis at each place of `of`. precision: FLOAT in what cuDNN knows as causal and window. */
int32_t fxa__dnn_index(fxa__dnn_graph *g, int32_t of, int axis, uint8_t precision);
int32_t fxa__dnn_reduce(fxa__dnn_graph *g, int mode, int32_t x, int32_t y);
int32_t fxa__dnn_matmul(fxa__dnn_graph *g, int32_t a, int32_t b, int32_t c, int32_t m, int32_t n, int32_t k);
int32_t fxa__dnn_reshape(fxa__dnn_graph *g, int32_t x, int32_t y);
int32_t fxa__dnn_load_pages(fxa__dnn_graph *g, int32_t pages, int32_t table, int32_t lengths, int32_t y);

#endif
