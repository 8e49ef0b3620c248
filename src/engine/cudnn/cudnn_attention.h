/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as a graph: the operations around the score program, one after the other as cuDNN's fused engines know
 * them, and what a problem must be for it. cudnn_support.c says no to all else; cudnn_forward.c and cudnn_backward.c
 * write the two passes; cudnn_mask.c writes masks.
 */
#ifndef FXA_ENGINE_CUDNN_ATTENTION_H
#define FXA_ENGINE_CUDNN_ATTENTION_H

#include "../../lower/conjunct.h"
#include "cudnn_score.h"

/* What the library that is here can do. */
typedef struct fxa__dnn_level {
    int64_t version; /* of cuDNN: 91901 is 9.19.1 */
    int32_t arch;    /* 90: compute capability 9.0 */
} fxa__dnn_level;

/* A graph in the making, and what it is made from. */
typedef struct fxa__dnn_attention {
    fxa__dnn_graph g;
    const fxa__problem *p;
    fxa__dnn_level level;
    fxa_program *lifted;  /* the problem's program, masks lifted out of its score */
    fxa_program *program; /* what runs: lifted, and in backward joined with its derivative */
    fxa__depend *depend;
    fxa__conjuncts mask; /* of lifted; nodes are those of `program` */
    fxa__dnn_score score;
    int32_t scaled;       /* scores as programs read them */
    int32_t len_q, len_k; /* lengths for products; -1: none */
    bool banded;          /* a causal or window mask is there */
} fxa__dnn_attention;

/* Makes the graph of a problem. E_UNSUPPORTED with the reason. The caller frees it, whatever came out. */
fxa_status fxa__dnn_attention_make(const fxa__problem *p, fxa__dnn_level level, fxa__dnn_attention *a, fxa_error *err);
void fxa__dnn_attention_free(fxa__dnn_attention *a);

/* cudnn_support.c: what can be said before a graph is made. False with the reason in g. */
bool fxa__dnn_supports(fxa__dnn_graph *g, const fxa__problem *p, fxa__dnn_level level);

/* cudnn_rules.c: refuses a graph that cuDNN would take and compute wrongly, whoever wrote it. */
void fxa__dnn_rules_check(fxa__dnn_graph *g);

/* Rows of a slot as a tensor: [B,H,S,D], or, `turned`, [B,H,D,S]. */
int32_t fxa__dnn_operand(fxa__dnn_graph *g, const fxa_problem *p, fxa_slot slot, bool turned);
int fxa__dnn_data_type(uint32_t dtype); /* of f16 and bf16 */

/* Whether gradients of heads are rounded to 16 bits before they are summed to those of a key head. */
static inline bool fxa__dnn_rounds_heads(const fxa_problem *p) { return p->pass == FXA_BACKWARD && p->hq != p->hkv; }

/* Selects of -inf: parts that are evaluated, then causal and window. */
int32_t fxa__dnn_mask_others(fxa__dnn_attention *a, int32_t s);
int32_t fxa__dnn_mask_bands(fxa__dnn_attention *a, int32_t s);

/* The new scores, without masks, from Q and K. */
int32_t fxa__dnn_scores(fxa__dnn_attention *a, int32_t q, int32_t k);
void fxa__dnn_forward(fxa__dnn_attention *a);
void fxa__dnn_backward(fxa__dnn_attention *a);

#endif
