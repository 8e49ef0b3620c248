/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as a graph: the operations around the score program, one after the other as cuDNN's fused engines know
 * them, and what a problem must be for it. attention/support.c says no to all else; attention/forward.c and
 * attention/backward.c write the two passes; attention/mask.c writes masks.
 */
#ifndef FXA_ENGINE_CUDNN_ATTENTION_H
#define FXA_ENGINE_CUDNN_ATTENTION_H

#include "../../../lower/conjunct.h"
#include "../score/score.h"
#include "../graph/helper_steps.h"

/* What the library that is here can do. */
typedef struct fxa__dnn_level {
    int64_t version; /* of cuDNN: 91901 is 9.19.1 */
    int32_t arch;    /* 90: compute capability 9.0 */
} fxa__dnn_level;

/* Families of devices, of which each has kernels of its own. */
enum { FXA__SM_80 = 1, FXA__SM_90 = 2, FXA__SM_100 = 4, FXA__SM_120 = 8, FXA__SM_OLD = 16, FXA__SM_ALL = 31 };
static inline uint32_t fxa__dnn_family_of(int32_t arch) {
    return arch < 80    ? FXA__SM_OLD
           : arch < 90  ? FXA__SM_80
           : arch < 100 ? FXA__SM_90
           : arch < 120 ? FXA__SM_100
                        : FXA__SM_120;
}

enum { FXA__DNN_SCALES = FXA_SLOT_COUNT - FXA_SLOT_DESCALE_Q }; /* slots of scales and largest values */

/* A graph in the making, and what it is made from. */
typedef struct fxa__dnn_attention {
    fxa__dnn_graph g;
    const fxa__problem *p;
    fxa__dnn_level level;
    fxa__parameterized numbers; /* made of the problem's program by score/parameterize.c */
    fxa_program *program;       /* that of numbers: what runs */
    fxa__depend *depend;
    fxa__conjuncts mask; /* of `program` */
    fxa__dnn_score score;
    fxa__depend *own_depend;
    fxa__dnn_score own;    /* the caller's backward program, in place of the derivative; program NULL: there is none */
    bool spread;           /* numbers of the program are in memory (attention/fp8_scalars.c); */
    size_t first;          /* its first operation then */
    int32_t scale, scaled; /* of the run; scores as programs read them */
    int32_t len_q, len_k;  /* lengths for products; -1: none */
    bool banded;           /* a causal or window mask is there */
    bool spans;           /* entries have lengths of their own: len_q, len_k and more = k length - q length have them */
    int32_t more, joined; /* joined: LSE of this run, for what is there */
    size_t span_step;     /* which writes these */
    uint8_t offsets[FXA_SLOT_DV + 1]; /* 1 + the place of an operand among those of span_step; 0: none */
    size_t fill_step;                 /* 1 + that which fills results once cuDNN is done; 0: span_step does before */
    /* 1 + the tensor of each scale and largest value, then of the inverse of SCALE_DS; 0: not made yet */
    uint16_t scales[FXA__DNN_SCALES + 1];
    fxa__dnn_step nobody;
} fxa__dnn_attention;

/* Makes the graph of a problem. E_UNSUPPORTED with the reason. The caller frees it, whatever came out. */
fxa_status fxa__dnn_attention_make(const fxa__problem *p, fxa__dnn_level level, fxa__dnn_attention *a, fxa_error *err);
/* The same where constants stay what they are, unless it `lifts` them: for tests. */
fxa_status fxa__dnn_attention_make_with(const fxa__problem *p, fxa__dnn_level level, bool lifts, fxa__dnn_attention *a,
                                        fxa_error *err);
void fxa__dnn_attention_free(fxa__dnn_attention *a);

/* score/parameterize.c: the program that graphs are made of: masks lifted out of its score, in backward joined with its
 * derivative, and, where it `lifts` them, constants as params. The caller destroys out->program. */
fxa_status fxa__dnn_program_make(const fxa__problem *p, bool lifts, fxa__parameterized *out, fxa_error *err);
/* Writes the values of the hidden params of that program, by param. */
fxa_status fxa__dnn_numbers(const fxa__problem *p, double numbers[FXA__MAX_CONSTANTS], fxa_error *err);

/* attention/support.c: what can be said before a graph is made. False with the reason in g. */
bool fxa__dnn_supports(fxa__dnn_graph *g, const fxa__problem *p, fxa__dnn_level level);
/* The reason of a row of its table; NULL past the last. For tests, which have a case for each. */
const char *fxa__dnn_support_why(size_t row);

/* Whether O or dO reach further than cuDNN's backward counts; of packed rows, by how many there are in all. */
bool fxa__dnn_is_far(const fxa_problem *p);
/* Whether a tensor has no elements: of packed ones that too goes by how many rows there are in all. */
bool fxa__dnn_is_empty(const fxa_problem *p);

/* graph/graph_checks.c: refuses a graph that cuDNN would take and compute wrongly, whoever wrote it. */
void fxa__dnn_rules_check(fxa__dnn_graph *g, fxa__dnn_level level);

/* ---- attention/operands.c: operands ------------------------------------------------------------------------------ */

int fxa__dnn_data_type(uint32_t dtype); /* of f32, f16, bf16, e4m3 and e5m2 */
/* Entries with lengths or offsets of their own: before any operand. */
void fxa__dnn_spans_begin(fxa__dnn_attention *a);
/* Rows of a slot as a tensor: [B,H,S,D], or, `turned`, [B,H,D,S]. */
int32_t fxa__dnn_operand(fxa__dnn_attention *a, fxa_slot slot, bool turned);
/* Memory of ours of the same size, dense; of rows in floats. */
int32_t fxa__dnn_dense(fxa__dnn_attention *a, fxa_slot slot);
/* A result of rows and features: the slot, or memory of ours where it is not wanted or to be added. */
int32_t fxa__dnn_output(fxa__dnn_attention *a, fxa_slot slot, bool wanted, bool adds);
/* Whether entries of both begin at the same elements. */
bool fxa__dnn_spans_alike(const fxa__dnn_attention *a, fxa_slot x, fxa_slot y);
/* LSE and dLSE as cuDNN takes them: whether they lie so, and the slot as a tensor then. */
bool fxa__dnn_row_is_direct(const fxa_problem *p, fxa_slot slot);
int32_t fxa__dnn_row(fxa__dnn_attention *a, fxa_slot slot);
/* The strides of LSE, maxima or dLSE, which a run says anew. */
const int64_t *fxa__dnn_row_strides(const fxa_problem *p, fxa_slot slot);
/* Writes what code depends on: the entire problem without the device, the constants that are params
 * (score/parameterize.c) and the total number of packed rows, which the strides of packed LSE and the like contain
 * too. So problems that differ only in these run the same code. */
void fxa__dnn_key(const fxa__problem *p, fxa__writer *w);

fxa__dnn_step *fxa__dnn_step_add(fxa__dnn_attention *a, fxa__gpu_kernel kernel, bool after, int64_t work);
/* Parts of arguments: the rows of a slot, and the slot itself. */
void fxa__dnn_step_rows(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuRows *rows, fxa_slot slot);
void fxa__dnn_step_slot(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuArray *array, fxa_slot slot);
void fxa__dnn_step_drop(fxa__dnn_step *step, const void *field); /* it points to nothing again */
/* What nobody writes of a result becomes this. */
void fxa__dnn_fill(fxa__dnn_attention *a, fxa_slot slot, double value);
/* Between a slot and memory of ours: before cuDNN's kernel from the slot, after it to the slot. */
fxa__dnn_step *fxa__dnn_step_copy(fxa__dnn_attention *a, fxa_slot slot, int32_t dense, bool after, int mode,
                                  double fill);

/* Whether gradients of heads are rounded to 16 bits before they are summed to those of a key head. */
static inline bool fxa__dnn_rounds_heads(const fxa_problem *p) {
    return p->pass == FXA_BACKWARD && p->hq != p->hkv && p->q.dtype != FXA_E4M3;
}

/* Whether results are rounded to 16 bits before they are added to, or joined with, what is there. */
static inline bool fxa__dnn_rounds_sums(const fxa_problem *p) {
    return (p->flags & (FXA_ACCUMULATE_O | FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV)) != 0;
}

/* Selects of -inf: lengths, where there are some; parts that are evaluated, then causal and window. */
int32_t fxa__dnn_mask_lengths(fxa__dnn_attention *a, int32_t s);
int32_t fxa__dnn_mask_others(fxa__dnn_attention *a, int32_t s);
int32_t fxa__dnn_mask_bands(fxa__dnn_attention *a, int32_t s);
/* Whether causal and window masks are all of the mask. */
bool fxa__dnn_mask_is_banded(fxa__dnn_attention *a);

/* The new scores, without masks, from Q and K. */
int32_t fxa__dnn_scores(fxa__dnn_attention *a, int32_t q, int32_t k);
void fxa__dnn_forward(fxa__dnn_attention *a);
/* attention/fp8_scalars.c: whether numbers of the program are to be in memory; scores that are multiplied with the
 * descales of Q and K then; and numbers of the operations from `first` on are put there. The same of those of the
 * derivative, which is refused where it is no number. */
bool fxa__dnn_spread_is_needed(fxa__dnn_attention *a);
int32_t fxa__dnn_spread_scores(fxa__dnn_attention *a, int32_t s);
void fxa__dnn_spread(fxa__dnn_attention *a, size_t first);
void fxa__dnn_spread_derivative(fxa__dnn_attention *a, size_t first, int32_t dscore);
/* attention/fp8.c: Q has 8 bits; scores of such products, and from exp and its sum to O. */
bool fxa__dnn_is_fp8(const fxa_problem *p);
int32_t fxa__dnn_fp8_scores(fxa__dnn_attention *a, int32_t s);
void fxa__dnn_fp8_output(fxa__dnn_attention *a, int32_t e, int32_t sum, int32_t v, int32_t o);
/* Refuses what the forward pass of 8 bits cannot hold. */
void fxa__dnn_fp8_check(fxa__dnn_attention *a);
/* Backward: the sums of dO O, P as it is multiplied, dP, dS as it is multiplied, and dQ, dK or dV from its sums. */
int32_t fxa__dnn_fp8_sums(fxa__dnn_attention *a, int32_t sums);
int32_t fxa__dnn_fp8_weights(fxa__dnn_attention *a, int32_t weights);
int32_t fxa__dnn_fp8_dp(fxa__dnn_attention *a, int32_t dp);
int32_t fxa__dnn_fp8_ds(fxa__dnn_attention *a, int32_t ds);
void fxa__dnn_fp8_result(fxa__dnn_attention *a, fxa_slot slot, int32_t x, int32_t out);
void fxa__dnn_backward(fxa__dnn_attention *a);

/* attention/bias_gradient.c: the captured tensor whose gradient is wanted, -1: none; and that gradient, from those
 * of pairs. */
int32_t fxa__dnn_bias_of(const fxa_problem *p);
void fxa__dnn_bias(fxa__dnn_attention *a, int32_t dscore);

#endif
