/* SPDX-License-Identifier: Apache-2.0
 *
 * A score program inside a graph: its nodes as pointwise operations on [B,H,Sq,Sk], in forms that cuDNN computes
 * correctly. The forms were found on a device, where cuDNN accepts other graphs and computes them wrongly:
 *
 * - The first operand of an operation has no memory; in a sum, it is the operand that depends on the score.
 * - A value that depends on neither coordinates nor tensors is no operation: the host computes it, and runs pass it by
 *   value.
 * - Bools are ints, 0 and 1. Ints are compared only by <= and ==, so that cuDNN recognizes no comparison as padding.
 * - Refused are ints beyond 2^24, casts to int, remainders of negative numbers, and powers.
 */
#ifndef FXA_ENGINE_CUDNN_SCORE_H
#define FXA_ENGINE_CUDNN_SCORE_H

#include "../../../lower/depend.h"
#include "../../../lower/parameterize.h"
#include "../graph/helper_steps.h"

/* Maximum number of nodes of a program. Each run evaluates the scalars that are passed by value on the stack. */
#define FXA__DNN_MAX_NODES 1024

/* A score program whose value is added to a graph. */
typedef struct fxa__dnn_score {
    fxa__dnn_graph *g;
    const fxa__problem *p;
    const fxa_program *program;
    const fxa__depend *depend;   /* [n_nodes] */
    const fxa_capture *captures; /* [n_tensors] */
    /* the program with its constants as params; NULL = constants are in the program */
    const fxa__parameterized *numbers;
    /* true: the caller's backward program, whose params are always passed by value */
    bool own;
    int32_t score, dscore; /* tensors of the inputs score and dscore; dscore -1 = none */
    /* node whose value the tensor `score` already is (score/common_factors.c); -1 = the input score itself */
    int32_t folded;
    int32_t base;                      /* tensor whose elements' coordinates are read */
    int32_t value[FXA__DNN_MAX_NODES]; /* [n_nodes] tensor of each node; -1 = not added yet */
    /* [n_nodes] tensor of each load, for all uses of the program; -1 = not added yet */
    int32_t load[FXA__DNN_MAX_NODES];
    /* [n_nodes] node that replaces this node (score/common_factors.c); -1 = itself */
    int32_t same[FXA__DNN_MAX_NODES];
    int32_t axis[FXA_INPUT_COUNT]; /* [inputs] tensor of each coordinate; -1 = not added yet */
    bool needed[FXA__DNN_MAX_NODES];
    bool indexed;    /* output; true: a node reads q or k as a number */
    bool keys_dense; /* true: the keys of captured tensors must be contiguous */
    bool spans;      /* true: batch entries have lengths of their own */
    /* tensors [B,1,1,1]: q length, k length, k length - q length */
    int32_t length[3];
    /* tensors with the coordinates of an axis that are not base + step * index; -1 = not added yet */
    int32_t table[4];
    int32_t param[FXA_MAX_PARAMS]; /* tensors of params in memory; -1 = not added yet */
    fxa__dnn_step *nobody;
} fxa__dnn_score;

/* Sets the inputs score and dscore, and the tensor whose elements' coordinates later nodes read. */
void fxa__dnn_score_start(fxa__dnn_score *s, int32_t score, int32_t dscore, int32_t base);
/* Returns the tensor of a node, which is added first if necessary; bools are INT32. The tensor may have memory or be
 * a scalar passed by value. */
int32_t fxa__dnn_score_node(fxa__dnn_score *s, int32_t node);
/* Bounds of the absolute value of a constant that becomes a param: the form of the graph does not depend on its
 * value. */
#define FXA__DNN_NUMBER_LEAST 0x1p-64
#define FXA__DNN_NUMBER_MOST 65536.0
/* Returns true if the node is a param that was such a constant. */
bool fxa__dnn_score_is_number(const fxa__dnn_score *s, int32_t node);
/* Returns true if a node has one value for all pairs of a run, which the host computes and passes by value. */
bool fxa__dnn_score_is_by_value(const fxa__dnn_score *s, int32_t node);
/* Returns the tensor of an input: a coordinate or a length. */
int32_t fxa__dnn_score_input(fxa__dnn_score *s, fxa_input input);
/* Returns a virtual tensor of the size of the scores with the same elements. */
int32_t fxa__dnn_as_virtual(fxa__dnn_score *s, int32_t tensor);

/* A coordinate as programs read it: base + step * index if `known`, else values that only a run has. */
typedef struct fxa__dnn_axis {
    bool known;
    int64_t base, step; /* if known */
    int64_t lo, hi;     /* bounds of the coordinate, in both cases */
} fxa__dnn_axis;
/* Returns true for B, H, Q, K, Q_ROW and K_ROW: inputs that follow from a place in the scores, which the functions
 * below take. */
bool fxa__dnn_is_place(fxa_input input);
fxa__dnn_axis fxa__dnn_axis_of(const fxa__dnn_score *s, fxa_input axis);
/* fxa__dnn_axis_index returns the axis of such an input, fxa__dnn_extent the size of the axis. */
int fxa__dnn_axis_index(fxa_input input);
int64_t fxa__dnn_extent(const fxa_problem *p, fxa_input axis);
/* Returns the length of rows or keys that the program reads if it is equal for all batch entries, else -1. */
int64_t fxa__dnn_length_of(const fxa__dnn_score *s, bool keys);
/* Returns the tensor of k_len - q_len in ints, by value or with memory. */
int32_t fxa__dnn_more(fxa__dnn_score *s);
/* Returns the tensor of the run's scale, by value or with memory. */
int32_t fxa__dnn_scale(fxa__dnn_score *s);
/* Returns the factor by which Q K^T is multiplied: the scale, multiplied or divided by a scalar of the program if a
 * node is folded (s->folded). */
int32_t fxa__dnn_scale_folded(fxa__dnn_score *s);
/* Sets [*lo, *hi] to bounds of an int over all coordinates of the problem. Returns false if they are not known. */
bool fxa__dnn_range(const fxa__dnn_score *s, int32_t node, int64_t *lo, int64_t *hi);

/* Removes factors by which the derivative both multiplies and divides (common_factors.c). */
void fxa__dnn_reuse_cancel(fxa__dnn_score *s);
/* Returns the node score * c or score / c whose only user is a tanh, as in soft caps, where c is a scalar of the
 * run; -1 if there is none. The factor that multiplies Q K^T then includes c (common_factors.c). */
int32_t fxa__dnn_reuse_fold(fxa__dnn_score *s);
/* Gives nodes of `to` that equal nodes of `from`, at the same place of the graph, the tensors of those
 * (common_factors.c). */
void fxa__dnn_reuse_made(const fxa__dnn_score *from, fxa__dnn_score *to);

/* fxa__dnn_load returns the tensor of a load (captured_loads.c). fxa__dnn_expand gives a tensor that cuDNN would
 * read wrongly a row axis with stride 0. */
int32_t fxa__dnn_load(fxa__dnn_score *s, const fxa__node *load);
void fxa__dnn_expand(const fxa_problem *p, fxa__dnn_tensor *t);

/* Returns x * y or x / y (mode), but 0 where x is 0. `node` is the node of y (zero_products.c). */
int32_t fxa__dnn_zero_wins(fxa__dnn_score *s, int32_t node, int mode, int32_t x, int32_t y);

/* Returns the tensor of an operation whose operands have been added (ops.c). */
int32_t fxa__dnn_lower_op(fxa__dnn_score *s, int32_t node);

#endif
