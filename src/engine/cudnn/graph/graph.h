/* SPDX-License-Identifier: Apache-2.0
 *
 * An attention problem as a graph of cuDNN operations, stored as plain data, so that the graph can be made, checked and
 * evaluated on machines without cuDNN. attention/attention.c makes the graph, score/ adds the score program,
 * graph_checks.c checks the result, and descriptors.c converts it to cuDNN's descriptors.
 *
 * Every tensor has four axes, [B,H,Sq,Sk] for scores. A tensor is identified by its index, which is its unique id in
 * cuDNN minus 1. The functions that build a graph may be called after a failure: the graph stores the first failure,
 * and every later call returns tensor 0.
 */
#ifndef FXA_ENGINE_CUDNN_GRAPH_H
#define FXA_ENGINE_CUDNN_GRAPH_H

#include "../api.h"

/* Sources of a tensor's elements. */
typedef enum fxa__dnn_source {
    FXA__DNN_VIRTUAL, /* result of an operation, without memory */
    /* memory that the caller passes in slot `index`; if the caller passes NULL and the tensor's `fill` or `cleared` is
     * set: workspace, from byte `offset` on */
    FXA__DNN_SLOT,
    FXA__DNN_TENSOR,  /* captured tensor `index` */
    FXA__DNN_SCRATCH, /* workspace, from byte `offset` on */
    FXA__DNN_VALUE,   /* passed by value: `value`, as a float, or as an integer if the type is INT32 */
    /* passed by value: `value` + `times` * x, where x is the value of program node `index`. That node reads neither
     * coordinates nor captured tensors. */
    FXA__DNN_NODE,
    /* passed by value: the run's scale, multiplied (`times` 1) or divided (`times` -1) by the value of program node
     * `index`; `times` 0: the scale alone */
    FXA__DNN_SCALE,
    FXA__DNN_DTENSOR,    /* gradient of captured tensor `index` */
    FXA__DNN_OWN_TENSOR, /* captured tensor `index` of the user's bprop */
    FXA__DNN_OWN_NODE    /* like FXA__DNN_NODE, but a node of the user's bprop */
} fxa__dnn_source;

/* Largest absolute value of a dividend in an int division. cuDNN divides ints in f32: quotients of dividends of 16
 * million were wrong on a device; quotients of dividends up to 2^22 are right. */
enum { FXA__DNN_DIVIDED = 1 << 22 };

/* Ints that the host derives from the divisor of an int floor division. The graph reads such an int instead of the
 * divisor (use_floor_by_value of score/ops.c). */
typedef enum fxa__dnn_part {
    FXA__DNN_WHOLE,    /* the divisor itself */
    FXA__DNN_DIVISOR,  /* min(MAGNITUDE, FXA__DNN_DIVIDED + 1) */
    FXA__DNN_ROUNDS,   /* DIVISOR - 1 if the divisor is negative, else 0 */
    FXA__DNN_SIGN,     /* sign of the divisor: 1, 0 or -1 */
    FXA__DNN_MAGNITUDE /* absolute value of the divisor, in 32 bits; 1 if the divisor is 0 */
} fxa__dnn_part;

typedef struct fxa__dnn_tensor {
    int64_t dim[4], stride[4];
    uint8_t type;   /* CUDNN_DATA_... */
    uint8_t source; /* fxa__dnn_source */
    bool score;     /* true: the elements depend on the score */
    bool read;      /* true: a tensor in the workspace that the score program reads */
    /* true: a scalar that is passed by value, and is finite and nonzero in every run (score/parameterize.c) */
    bool number;
    /* true: bound of a mask, which a run clamps to [-2^30, 2^30]; larger values would not change the mask, but sums
     * with them would wrap */
    bool bound;
    /* source FXA__DNN_NODE, FXA__DNN_OWN_NODE: factor of the value of node `index`
     * source FXA__DNN_SCALE: 1 = the scale is multiplied by the value of node `index`, -1 = divided, 0 = neither */
    int8_t times;
    uint8_t part;   /* fxa__dnn_part */
    int32_t index;  /* index of the slot, captured tensor or program node; see fxa__dnn_source */
    int64_t offset; /* start of the tensor: bytes in the workspace, or elements in a captured tensor */
    /* source FXA__DNN_VALUE: the scalar
     * source FXA__DNN_NODE, FXA__DNN_OWN_NODE: number that is added to `times` * the value of node `index` */
    double value;
    bool per_head; /* true: a scalar of which each run writes one copy per head to the workspace */
    /* tensor in the workspace: bits that a run writes to each 32-bit word before cuDNN starts; 0 = none */
    int32_t fill;
    bool cleared; /* true: a tensor in the workspace that a run sets to 0 before cuDNN starts */
    /* 1 + index of the tensor that contains the element offset of each batch entry; 0 = batch entries are stride[0]
     * apart */
    int32_t ragged;
} fxa__dnn_tensor;

typedef enum fxa__dnn_kind {
    FXA__DNN_POINTWISE,
    FXA__DNN_MATMUL,
    FXA__DNN_REDUCTION,
    FXA__DNN_RESHAPE,
    FXA__DNN_PAGED /* gathers x by pages into y: b is the page table, t has the lengths */
} fxa__dnn_kind;

enum { FXA__DNN_BOUND = 128 }; /* maximum number of tensors and scalars whose addresses a run passes */

struct fxa__dnn_step;

typedef struct fxa__dnn_op {
    uint8_t kind;      /* fxa__dnn_kind */
    uint8_t precision; /* CUDNN_DATA_... */
    uint8_t axis;      /* axis of GEN_INDEX */
    int16_t mode;      /* CUDNN_POINTWISE_... or CUDNN_REDUCE_TENSOR_... */
    int32_t x, b, t;   /* operand tensors, -1 = none; a matmul multiplies x by b */
    int32_t y;         /* result tensor */
    int32_t m, n, k;   /* matmul: tensors with the lengths of each batch entry; -1 = none */
} fxa__dnn_op;

typedef struct fxa__dnn_graph {
    fxa__host *host;
    fxa__dnn_tensor *tensors;
    fxa__dnn_op *ops;
    size_t n_tensors, tensor_capacity, n_ops, op_capacity;
    int64_t scratch;             /* bytes of the workspace that tensors of the graph occupy */
    struct fxa__dnn_step *steps; /* [n_steps] helper kernels (helper_steps.h) */
    size_t n_steps, step_capacity;
    fxa_status status;
    char reason[sizeof((fxa_error *)0)->text]; /* why the graph failed with E_UNSUPPORTED */
} fxa__dnn_graph;

void fxa__dnn_graph_free(fxa__dnn_graph *g);
/* Sets the graph's failure to E_UNSUPPORTED with this reason, unless the graph has failed already. Returns 0. */
int32_t fxa__dnn_refuse(fxa__dnn_graph *g, const char *format, ...) FXA__PRINTF(2, 3);

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

int32_t fxa__dnn_add(fxa__dnn_graph *g, const fxa__dnn_tensor *tensor);
/* Return a new contiguous virtual tensor: fxa__dnn_like with the sizes of x, fxa__dnn_virtual with the sizes `dim`. */
int32_t fxa__dnn_like(fxa__dnn_graph *g, int32_t x, uint8_t type);
int32_t fxa__dnn_virtual(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type);
int32_t fxa__dnn_float(fxa__dnn_graph *g, double value);
int32_t fxa__dnn_int(fxa__dnn_graph *g, int64_t value);
int64_t fxa__dnn_size(uint8_t type);   /* returns the bytes of an element */
enum { FXA__DNN_SCRATCH_ALIGN = 256 }; /* alignment of tensors in the workspace, in bytes */
/* Returns a new contiguous tensor in the workspace. A red zone follows the tensor (base/carve.h). */
int32_t fxa__dnn_scratch(fxa__dnn_graph *g, const int64_t dim[4], uint8_t type);
/* Returns a tensor [B,1,1,1] of INT32 in the workspace. Each run sets all elements to `length`. */
int32_t fxa__dnn_length(fxa__dnn_graph *g, int64_t b, int64_t length);

static inline bool fxa__dnn_is_by_value(const fxa__dnn_tensor *t) {
    return !t->per_head && (t->source == FXA__DNN_VALUE || t->source == FXA__DNN_NODE ||
                            t->source == FXA__DNN_OWN_NODE || t->source == FXA__DNN_SCALE);
}
static inline bool fxa__dnn_is_captured(const fxa__dnn_tensor *t) {
    return t->source == FXA__DNN_TENSOR || t->source == FXA__DNN_OWN_TENSOR;
}

/* Returns true if an operation uses the tensor as operand, result or length, or as ragged offsets of such a tensor. */
bool fxa__dnn_is_used(const fxa__dnn_graph *g, int32_t tensor);
/* Returns true for a tensor [1,H,1,1] with H > 1. */
static inline bool fxa__dnn_is_per_head(const fxa__dnn_tensor *t) {
    return t->dim[0] == 1 && t->dim[1] > 1 && t->dim[2] == 1 && t->dim[3] == 1;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Adds a pointwise operation on x and b (-1 = no second operand). The types of x and b must fit the precision. Returns
 * the result, a virtual tensor of type `type`; its size along each axis is the larger one of x and b. */
int32_t fxa__dnn_op2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, uint8_t type, uint8_t precision);
/* Like fxa__dnn_op2, with the given result tensor y. */
int32_t fxa__dnn_op2_into(fxa__dnn_graph *g, int mode, int32_t x, int32_t b, int32_t y, uint8_t precision);
/* Like fxa__dnn_op2, with f32 operands and result. */
int32_t fxa__dnn_float2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b);
/* Like fxa__dnn_op2, with INT32 operands and result; a bool is an int, 0 or 1. */
int32_t fxa__dnn_int2(fxa__dnn_graph *g, int mode, int32_t x, int32_t b);
/* Returns t ? x : b. */
int32_t fxa__dnn_select(fxa__dnn_graph *g, int32_t x, int32_t b, int32_t t);
/* Returns a tensor with the sizes of `of`, whose elements are their own index along `axis`. `precision` must be FLOAT
 * if cuDNN is to recognize the index as part of a causal mask or window. */
int32_t fxa__dnn_index(fxa__dnn_graph *g, int32_t of, int axis, uint8_t precision);
int32_t fxa__dnn_reduce(fxa__dnn_graph *g, int mode, int32_t x, int32_t y);
int32_t fxa__dnn_matmul(fxa__dnn_graph *g, int32_t a, int32_t b, int32_t c, int32_t m, int32_t n, int32_t k);
int32_t fxa__dnn_reshape(fxa__dnn_graph *g, int32_t x, int32_t y);
int32_t fxa__dnn_load_pages(fxa__dnn_graph *g, int32_t pages, int32_t table, int32_t lengths, int32_t y);

#endif
