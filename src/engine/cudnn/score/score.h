/* SPDX-License-Identifier: Apache-2.0
 *
 * A score program inside a graph: its nodes as pointwise operations on [B,H,Sq,Sk], in forms that cuDNN computes
 * correctly. The forms were determined by experiments on a device: cuDNN accepts graphs in other forms but computes
 * them wrongly.
 *
 * - The first operand of an operation is virtual (has no memory). The first operand of a sum is the one that depends
 *   on the score.
 * - The host computes values that depend on neither coordinates nor tensors, and runs pass them by value.
 * - Bools are ints, 0 and 1. Ints are not compared by < or >, which cuDNN could mistake for padding.
 * - Ints beyond 2^24, casts to int, remainders of negative numbers, and most powers are refused.
 */
#ifndef FXA_ENGINE_CUDNN_SCORE_H
#define FXA_ENGINE_CUDNN_SCORE_H

#include "../../../lower/depend.h"
#include "../../../lower/parameterize.h"
#include "../graph/helper_steps.h"

/* Maximum number of nodes of a program. A run stores the values of all nodes on the stack when it computes the scalars
 * that are passed by value. */
#define FXA__DNN_MAX_NODES 1024

/* A score program whose value is added to a graph. */
typedef struct fxa__dnn_score {
    fxa__dnn_graph *g;
    const fxa__problem *p;
    const fxa_program *program;
    const fxa__depend *depend;   /* [n_nodes] */
    const fxa_capture *captures; /* [n_tensors] */
    /* params of the program that replace constants, with the values of the constants; NULL = none */
    const fxa__parameterized *numbers;
    /* true: the program is the user's bprop, whose params are always passed by value */
    bool own;
    int32_t score, dscore; /* tensors of the inputs score and dscore; dscore -1 = none */
    /* -1: the tensor `score` contains the input score. Otherwise index of a node score * c or score / c: the tensor
     * `score` contains the value of this node. */
    int32_t folded;
    int32_t base; /* tensor with the sizes of the scores; coordinates are computed from the indices of its elements */
    int32_t value[FXA__DNN_MAX_NODES]; /* [n_nodes] tensor of each node; -1 = not added yet */
    /* [n_nodes] tensor of each load, which fxa__dnn_score_start does not reset; -1 = not added yet */
    int32_t load[FXA__DNN_MAX_NODES];
    /* [n_nodes] same[i]: earlier node whose tensor node i takes over (score/common_factors.c); -1 = none */
    int32_t same[FXA__DNN_MAX_NODES];
    int32_t axis[FXA_INPUT_COUNT];   /* [inputs] tensor of each coordinate; -1 = not added yet */
    bool needed[FXA__DNN_MAX_NODES]; /* [n_nodes] true: fxa__dnn_score_node must add the node */
    /* true: the graph has a node that reads a q or k coordinate, or an h coordinate that is not `known`
     * (fxa__dnn_axis) */
    bool indexed;
    bool keys_dense;  /* true: elements of captured tensors for neighbouring keys must be contiguous */
    bool own_lengths; /* true: each batch entry has its own lengths */
    /* three tensors [B,1,1,1], with q_len, k_len and k_len - q_len of each batch entry */
    int32_t length[3];
    /* [axes] tensor in the workspace to which a run writes the coordinates along the axis, if they are not `known`
     * (fxa__dnn_axis); -1 = none */
    int32_t table[4];
    int32_t param[FXA_MAX_PARAMS]; /* [params] tensor of each param in device memory; -1 = not added yet */
    fxa__dnn_step *discarded;      /* step that fxa__dnn_step_new returns if the graph has failed */
} fxa__dnn_score;

/* Sets the tensors of the inputs score and dscore, and `base`, from whose element indices coordinates are computed.
 * Forgets the tensors of all nodes. */
void fxa__dnn_score_start(fxa__dnn_score *s, int32_t score, int32_t dscore, int32_t base);
/* Returns the tensor of a node; adds the tensor to the graph if it does not exist yet. Bools are INT32. The tensor may
 * have memory, or may be a scalar that is passed by value. */
int32_t fxa__dnn_score_node(fxa__dnn_score *s, int32_t node);
/* Only constants whose absolute value is within these bounds become params. The operations of the graph do not depend
 * on the values of such constants. */
#define FXA__DNN_NUMBER_MIN 0x1p-64
#define FXA__DNN_NUMBER_MAX 65536.0
/* Returns true if the node is a param that parameterize.c made from a constant. */
bool fxa__dnn_score_is_number(const fxa__dnn_score *s, int32_t node);
/* Returns true if a node has the same value at all (q, k) pairs of a run. The host computes such a value and passes
 * it. */
bool fxa__dnn_score_is_by_value(const fxa__dnn_score *s, int32_t node);
/* Returns the tensor of an input: a coordinate or a length. */
int32_t fxa__dnn_score_input(fxa__dnn_score *s, fxa_input input);
/* Returns `tensor` if it is virtual, otherwise a virtual tensor with the elements of `tensor`, broadcast to the sizes
 * of the scores. */
int32_t fxa__dnn_as_virtual(fxa__dnn_score *s, int32_t tensor);

/* A coordinate along one axis of the scores. If `known`, it is base + step * index of the element; otherwise a run
 * computes it. */
typedef struct fxa__dnn_axis {
    bool known;
    int64_t base, step; /* if known */
    int64_t lo, hi;     /* bounds of the coordinate, also if it is not `known` */
} fxa__dnn_axis;
/* Returns true for B, H, Q, K, Q_ROW and K_ROW, the inputs that are coordinates of an element of the scores. The
 * functions below require such an input. */
bool fxa__dnn_is_place(fxa_input input);
fxa__dnn_axis fxa__dnn_axis_of(const fxa__dnn_score *s, fxa_input axis);
/* For a coordinate input: fxa__dnn_axis_index returns its axis in the scores [B,H,Sq,Sk], and fxa__dnn_extent the size
 * of that axis. */
int fxa__dnn_axis_index(fxa_input input);
int64_t fxa__dnn_extent(const fxa_problem *p, fxa_input axis);
/* Returns the query length (if `keys`, the key length) that programs read; -1 if it differs between batch entries. */
int64_t fxa__dnn_length_of(const fxa__dnn_score *s, bool keys);
/* Returns the INT32 tensor of k_len - q_len, which has memory or is passed by value. */
int32_t fxa__dnn_more(fxa__dnn_score *s);
/* Returns the tensor of the run's scale, which has memory or is passed by value. */
int32_t fxa__dnn_scale(fxa__dnn_score *s);
/* Returns the factor by which Q K^T is multiplied: the scale or, if s->folded is a node score * c or score / c, the
 * scale multiplied or divided by c. */
int32_t fxa__dnn_qk_factor(fxa__dnn_score *s);
/* Sets [*lo, *hi] to bounds of an int over all coordinates of the problem. Returns false if they are not known. */
bool fxa__dnn_range(const fxa__dnn_score *s, int32_t node, int64_t *lo, int64_t *hi);

/* Removes factors that the derivative multiplies by and later divides by (common_factors.c). */
void fxa__dnn_reuse_cancel(fxa__dnn_score *s);
/* Returns the node score * c or score / c with a scalar c that only a tanh reads, as in soft caps; -1 if there is none.
 * The scale of Q K^T can then include c (common_factors.c). */
int32_t fxa__dnn_reuse_fold(fxa__dnn_score *s);
/* If a node of `to` and a node of `from` have equal operations and operand tensors, the node of `to` takes over the
 * tensor of the node of `from` (common_factors.c). */
void fxa__dnn_reuse_made(const fxa__dnn_score *from, fxa__dnn_score *to);

/* fxa__dnn_load returns the tensor of a load (captured_loads.c). fxa__dnn_expand adds a row axis with stride 0 to a
 * tensor that cuDNN would read wrongly without it. */
int32_t fxa__dnn_load(fxa__dnn_score *s, const fxa__node *load);
void fxa__dnn_expand(const fxa_problem *p, fxa__dnn_tensor *t);

/* Returns x * y or x / y (mode), but 0 where x is 0. `node`: node of y (zero_products.c). */
int32_t fxa__dnn_zero_wins(fxa__dnn_score *s, int32_t node, int mode, int32_t x, int32_t y);

/* Returns the tensor of an operation whose operands have been added (ops.c). */
int32_t fxa__dnn_lower_op(fxa__dnn_score *s, int32_t node);

#endif
