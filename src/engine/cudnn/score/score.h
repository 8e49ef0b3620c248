/* SPDX-License-Identifier: Apache-2.0
 *
 * A score program inside a graph: its nodes as pointwise operations on [B,H,Sq,Sk], in the spellings that cuDNN
 * computes as they are meant. Which those are was found out on a device, where graphs outside of them are accepted and
 * wrong:
 *
 * - the first operand of an operation has no memory; of a sum it is the one that depends on the score;
 * - what depends on neither coordinates nor tensors is no operation: it is computed by the host and passed by value;
 * - bools are ints, 0 and 1; ints are compared by <= and == alone, so that nothing looks like a padding mask;
 * - ints that leave 2^24, casts to int, remainders of negative numbers and powers are not what they seem: refused.
 */
#ifndef FXA_ENGINE_CUDNN_SCORE_H
#define FXA_ENGINE_CUDNN_SCORE_H

#include "../../../lower/depend.h"
#include "../../../lower/parameterize.h"
#include "../graph/helper_steps.h"

/* Nodes of a program that this engine looks at: a run evaluates what it passes by value on the stack. */
#define FXA__DNN_MAX_NODES 1024

/* The value of a score program, at one place of a graph. */
typedef struct fxa__dnn_score {
    fxa__dnn_graph *g;
    const fxa__problem *p;
    const fxa_program *program;
    const fxa__depend *depend;         /* of its nodes */
    const fxa_capture *captures;       /* of its tensors */
    const fxa__parameterized *numbers; /* whose program it is; NULL: constants are in place */
    bool own;                          /* it is the caller's backward program: its params are always by value */
    int32_t score, dscore;             /* the inputs of that name; dscore -1: there is none */
    int32_t folded; /* the node that `score` is in place of the score (score/common_factors.c); -1: none */
    int32_t base;   /* coordinates are those of the places of this tensor */
    int32_t value[FXA__DNN_MAX_NODES]; /* tensors; -1: not made yet */
    int32_t load[FXA__DNN_MAX_NODES];  /* the same of loads, which stay what they are wherever the program is */
    int32_t same[FXA__DNN_MAX_NODES];  /* the node that it is taken for (score/common_factors.c); -1: itself */
    int32_t axis[FXA_INPUT_COUNT];     /* coordinates, made, by input; -1: not yet */
    bool needed[FXA__DNN_MAX_NODES];
    bool indexed;      /* set: something reads q or k as a number */
    bool keys_dense;   /* keys of captured tensors are to lie one after the other */
    bool spans;        /* entries have lengths of their own: */
    int32_t length[3]; /* of rows and keys, and the difference: [B,1,1,1] */
    int32_t table[4];  /* coordinates of an axis that are no index plus a constant, in memory; -1: not made yet */
    int32_t param[FXA_MAX_PARAMS]; /* scalars in memory; -1: not made yet */
    fxa__dnn_step *nobody;
} fxa__dnn_score;

/* The inputs and the place of what is made next. */
void fxa__dnn_score_start(fxa__dnn_score *s, int32_t score, int32_t dscore, int32_t base);
/* The tensor of a node; bools as INT32. It may have memory, or be by value. */
int32_t fxa__dnn_score_node(fxa__dnn_score *s, int32_t node);
/* Constants by value that graphs are made without: so far from 0 in either direction, whatever they are. */
#define FXA__DNN_NUMBER_LEAST 0x1p-64
#define FXA__DNN_NUMBER_MOST 65536.0
/* Whether a node is a param that was such a constant. */
bool fxa__dnn_score_is_number(const fxa__dnn_score *s, int32_t node);
/* Whether a node is the same for all pairs of a run, and known to the host: it is passed by value. */
bool fxa__dnn_score_is_by_value(const fxa__dnn_score *s, int32_t node);
/* A coordinate: an input that is a place, or a length. */
int32_t fxa__dnn_score_input(fxa__dnn_score *s, fxa_input input);
/* The same content without memory, of the size of scores. */
int32_t fxa__dnn_as_virtual(fxa__dnn_score *s, int32_t tensor);

/* What programs see as a coordinate: base + step times the place, or only the run knows. */
typedef struct fxa__dnn_axis {
    bool known;
    int64_t base, step; /* where it is known */
    int64_t lo, hi;     /* in any case */
} fxa__dnn_axis;
/* Returns true for B, H, Q, K, Q_ROW and K_ROW: inputs that follow from a place in the scores, which the functions
 * below take. */
bool fxa__dnn_is_place(fxa_input input);
fxa__dnn_axis fxa__dnn_axis_of(const fxa__dnn_score *s, fxa_input axis);
/* The axis of such an input, and how many places it has. */
int fxa__dnn_axis_index(fxa_input input);
int64_t fxa__dnn_extent(const fxa_problem *p, fxa_input axis);
/* The length of rows or keys as the program reads it, the same for all entries; -1: each has its own. */
int64_t fxa__dnn_length_of(const fxa__dnn_score *s, bool keys);
/* k_len - q_len as ints: by value, or with memory. */
int32_t fxa__dnn_more(fxa__dnn_score *s);
/* The scale of the run: by value, or in memory. */
int32_t fxa__dnn_scale(fxa__dnn_score *s);
/* What Q K^T is multiplied with to be `folded`, the scale times or over a number of the program; or the score. */
int32_t fxa__dnn_scale_folded(fxa__dnn_score *s);
/* The bounds of an int, over all coordinates of the problem; false: not known. */
bool fxa__dnn_range(const fxa__dnn_score *s, int32_t node, int64_t *lo, int64_t *hi);

/* score/common_factors.c: factors that the derivative multiplies by and divides by are left out; */
void fxa__dnn_reuse_cancel(fxa__dnn_score *s);
/* the node of the score times or over a number of the run that one tanh alone reads, as in soft caps, or -1: it is made
 * of Q K^T at once; */
int32_t fxa__dnn_reuse_fold(fxa__dnn_score *s);
/* and nodes of `to` that are what nodes of `from` are, made at the same place, have their tensors. */
void fxa__dnn_reuse_made(const fxa__dnn_score *from, fxa__dnn_score *to);

/* score/captured_loads.c: what a load reads; and the row axis written out with a stride of 0, where cuDNN reads the
 * tensor wrongly without it. */
int32_t fxa__dnn_load(fxa__dnn_score *s, const fxa__node *load);
void fxa__dnn_expand(const fxa_problem *p, fxa__dnn_tensor *t);

/* score/zero_products.c: x * y or x / y (mode) of the node that y is the tensor of, but 0 where x is. */
int32_t fxa__dnn_zero_wins(fxa__dnn_score *s, int32_t node, int mode, int32_t x, int32_t y);

/* score/ops.c: the tensor of an operation whose operands are made. */
int32_t fxa__dnn_lower_op(fxa__dnn_score *s, int32_t node);

#endif
