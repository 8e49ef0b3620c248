/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as a graph: the operations around the score program, in the order that cuDNN's fused engines require, and
 * the conditions under which a problem is supported. support.c refuses all other problems; forward.c and backward.c add
 * the operations of the two passes, mask.c the masks.
 */
#ifndef FXA_ENGINE_CUDNN_ATTENTION_H
#define FXA_ENGINE_CUDNN_ATTENTION_H

#include "../../../lower/conjunct.h"
#include "../score/score.h"
#include "../graph/helper_steps.h"

/* The cuDNN version and the device, which determine what cuDNN supports. */
typedef struct fxa__dnn_level {
    int64_t version; /* version of cuDNN: 91901 = 9.19.1 */
    int32_t arch;    /* compute capability: 90 = 9.0 */
} fxa__dnn_level;

/* Families of devices. cuDNN has different kernels for each family. */
enum { FXA__SM_80 = 1, FXA__SM_90 = 2, FXA__SM_100 = 4, FXA__SM_120 = 8, FXA__SM_OLD = 16, FXA__SM_ALL = 31 };
static inline uint32_t fxa__dnn_family_of(int32_t arch) {
    return arch < 80    ? FXA__SM_OLD
           : arch < 90  ? FXA__SM_80
           : arch < 100 ? FXA__SM_90
           : arch < 120 ? FXA__SM_100
                        : FXA__SM_120;
}

enum { FXA__DNN_SCALES = FXA_SLOT_COUNT - FXA_SLOT_DESCALE_Q }; /* number of slots for scales and amax */

/* The graph of a problem while it is made, and the data that it is made from. */
typedef struct fxa__dnn_attention {
    fxa__dnn_graph g;
    const fxa__problem *p;
    fxa__dnn_level level;
    fxa__parameterized numbers; /* the problem's program with constants replaced by params (score/parameterize.c) */
    fxa_program *program;       /* the program that the graph computes: numbers.program */
    fxa__depend *depend;        /* [nodes of `program`] what each node depends on */
    fxa__conjuncts mask;        /* conditions of the mask of `program` */
    fxa__dnn_score score;       /* state of adding `program` to the graph */
    fxa__depend *own_depend;    /* [nodes of the user's backward program, bprop] what each node depends on */
    /* state of adding the user's bprop, which replaces the derivative; own.program NULL = no bprop */
    fxa__dnn_score own;
    bool has_scalars;      /* true: scalars of the program are stored in memory (fp8_scalars.c) */
    size_t first;          /* if `has_scalars`: index of the program's first operation in the graph */
    int32_t scale, scaled; /* tensors of the run's scale and of the scaled scores, which programs read */
    int32_t len_q, len_k;  /* tensors with the sequence lengths, for matmuls; -1 = none */
    bool banded;           /* true: the graph has a causal mask or a window */
    bool own_lengths;      /* true: each batch entry has its own lengths, in the tensors len_q and len_k */
    /* more: tensor of k length - q length of each batch entry
     * joined: tensor of this run's LSE, before it is merged with the existing LSE */
    int32_t more, joined;
    size_t bounds_step;               /* index of the helper step that writes the tensors of lengths and offsets */
    uint8_t offsets[FXA_SLOT_DV + 1]; /* [slot] 1 + index of the slot's operand in bounds_step; 0 = none */
    /* 1 + index of the step after cuDNN's kernel that fills the rows of results that cuDNN does not write; 0 =
     * bounds_step fills these rows before cuDNN's kernel */
    size_t fill_step;
    /* [scales and amax slots, then 1 / SCALE_DS] 1 + index of the scalar's tensor; 0 = not added yet */
    uint16_t scales[FXA__DNN_SCALES + 1];
    fxa__dnn_step discarded; /* receives the arguments of steps after the graph has failed */
} fxa__dnn_attention;

/* Makes the graph of a problem. Fails with E_UNSUPPORTED and the reason. The caller calls fxa__dnn_attention_free,
 * also after a failure. */
fxa_status fxa__dnn_attention_make(const fxa__problem *p, fxa__dnn_level level, fxa__dnn_attention *a, fxa_error *err);
/* For tests: like fxa__dnn_attention_make, but constants are replaced by params only if `parameterizes` is true. */
fxa_status fxa__dnn_attention_make_with(const fxa__problem *p, fxa__dnn_level level, bool parameterizes,
                                        fxa__dnn_attention *a, fxa_error *err);
void fxa__dnn_attention_free(fxa__dnn_attention *a);

/* Sets *out to the program from which the graph is made: masks are extracted from the score; in backward the program is
 * fused with the derivative; if `parameterizes`, constants are replaced by params, whose values a run passes. The
 * caller destroys out->program (score/parameterize.c). */
fxa_status fxa__dnn_program_make(const fxa__problem *p, bool parameterizes, fxa__parameterized *out, fxa_error *err);
/* Writes the values of the constants that parameterize.c replaced by params, in the order of these params. */
fxa_status fxa__dnn_numbers(const fxa__problem *p, double numbers[FXA__MAX_CONSTANTS], fxa_error *err);

/* Returns false, with the reason in g, if the engine refuses the problem without making a graph (support.c). */
bool fxa__dnn_supports(fxa__dnn_graph *g, const fxa__problem *p, fxa__dnn_level level);
/* For tests: returns the reason for a refusal in row `row` of the table support_rows of support.c; NULL past the last
 * row. */
const char *fxa__dnn_support_why(size_t row);

/* Returns true if O or dO has elements beyond the signed 32-bit offsets of cuDNN's backward. For packed rows, the
 * result depends on the total number of rows. */
bool fxa__dnn_is_far(const fxa_problem *p);
/* Returns true if a tensor has no elements. For packed rows, the result depends on the total number of rows. */
bool fxa__dnn_is_empty(const fxa_problem *p);

/* Refuses a graph that cuDNN would accept but compute wrongly (graph/graph_checks.c). */
void fxa__dnn_rules_check(fxa__dnn_graph *g, fxa__dnn_level level);

/* ---- attention/operands.c: operands ------------------------------------------------------------------------------ */

int fxa__dnn_data_type(uint32_t dtype); /* returns the CUDNN_DATA_ type of f32, f16, bf16, e4m3 or e5m2 */
/* Adds the step that writes the lengths and offsets of batch entries. Called before any operand is added, because
 * operands add their offsets to this step. */
void fxa__dnn_batch_bounds_begin(fxa__dnn_attention *a);
/* Returns the rows of a slot as a tensor [B,H,S,D], or [B,H,D,S] if `turned`. */
int32_t fxa__dnn_operand(fxa__dnn_attention *a, fxa_slot slot, bool turned);
/* Returns a contiguous tensor in the workspace with the sizes of the slot. Slots with one value per row are f32. */
int32_t fxa__dnn_dense(fxa__dnn_attention *a, fxa_slot slot);
/* Returns the tensor to which cuDNN writes a result [B,H,S,D]: the slot itself, or a tensor in the workspace if the
 * result is not wanted or is added to existing values. */
int32_t fxa__dnn_output(fxa__dnn_attention *a, fxa_slot slot, bool wanted, bool adds);
/* Returns true if each batch entry starts at the same element offset in slot x and in slot y. */
bool fxa__dnn_has_equal_offsets(const fxa__dnn_attention *a, fxa_slot x, fxa_slot y);
/* fxa__dnn_row_is_direct returns true if cuDNN can read or write LSE or dLSE in the caller's layout. If it returns
 * true, fxa__dnn_row returns the slot as a tensor. */
bool fxa__dnn_row_is_direct(const fxa_problem *p, fxa_slot slot);
int32_t fxa__dnn_row(fxa__dnn_attention *a, fxa_slot slot);
/* Returns the strides of LSE, row maxima or dLSE of a run's problem. */
const int64_t *fxa__dnn_row_strides(const fxa_problem *p, fxa_slot slot);
/* Writes the cache key of code: the entire problem without
 *   - the device
 *   - the constants that are params (score/parameterize.c)
 *   - the total number of packed rows, and the strides that follow from it.
 * Problems that differ only in these three parts run the same code. */
void fxa__dnn_key(const fxa__problem *p, fxa__writer *w);

fxa__dnn_step *fxa__dnn_step_add(fxa__dnn_attention *a, fxa__gpu_kernel kernel, bool after, int64_t work);
/* Set *rows or *array, which must be in the step's arguments:
 *   fxa__dnn_step_rows   sets *rows to the sizes and lengths of the slot
 *   fxa__dnn_step_slot   sets *array to the strides and type of the slot, and array->data to its address in each run */
void fxa__dnn_step_rows(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuRows *rows, fxa_slot slot);
void fxa__dnn_step_slot(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuArray *array, fxa_slot slot);
/* Makes each run set the rows of a result that cuDNN does not write to `value`. */
void fxa__dnn_fill(fxa__dnn_attention *a, fxa_slot slot, double value);
/* Adds a step that copies between a slot and a tensor in the workspace: from the slot before cuDNN's kernel or, if
 * `after`, to the slot after cuDNN's kernel. */
fxa__dnn_step *fxa__dnn_step_copy(fxa__dnn_attention *a, fxa_slot slot, int32_t dense, bool after, int mode,
                                  double fill);

/* Returns true if gradients of query heads are rounded to 16 bits before they are summed to those of a KV head. */
static inline bool fxa__dnn_rounds_heads(const fxa_problem *p) {
    return p->pass == FXA_BACKWARD && p->hq != p->hkv && p->q.dtype != FXA_E4M3;
}

/* Returns true if results are rounded to 16 bits before they are added to, or merged with, existing values. */
static inline bool fxa__dnn_rounds_sums(const fxa_problem *p) {
    return (p->flags & (FXA_ACCUMULATE_O | FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV)) != 0;
}

/* Return the scores with -inf where a condition of the mask is false. Each function adds some of the conditions:
 *   fxa__dnn_mask_lengths   padding by lengths
 *   fxa__dnn_mask_others    conditions that are computed as pointwise operations
 *   fxa__dnn_mask_bands     causal masks and windows in cuDNN's own form */
int32_t fxa__dnn_mask_lengths(fxa__dnn_attention *a, int32_t s);
int32_t fxa__dnn_mask_others(fxa__dnn_attention *a, int32_t s);
int32_t fxa__dnn_mask_bands(fxa__dnn_attention *a, int32_t s);
/* Returns true if the mask consists only of causal masks and windows. */
bool fxa__dnn_mask_is_banded(fxa__dnn_attention *a);

/* Returns the new scores, computed from Q and K by the score program, without masks. */
int32_t fxa__dnn_scores(fxa__dnn_attention *a, int32_t q, int32_t k);
void fxa__dnn_forward(fxa__dnn_attention *a);
/* Scalars of the program in problems with 8-bit operands (fp8_scalars.c). fxa__dnn_fp8_has_scalars returns true if
 * scalars must be stored in memory. fxa__dnn_fp8_scores_descale returns the scores multiplied by the descales of Q and
 * K. fxa__dnn_fp8_scalars_move moves to memory the scalars that operation `first` of the graph and all later operations
 * read. fxa__dnn_fp8_derivative_move moves the scalars that operations of the derivative read, and refuses a derivative
 * that reads anything but dscore and scalars. */
bool fxa__dnn_fp8_has_scalars(fxa__dnn_attention *a);
int32_t fxa__dnn_fp8_scores_descale(fxa__dnn_attention *a, int32_t s);
void fxa__dnn_fp8_scalars_move(fxa__dnn_attention *a, size_t first);
void fxa__dnn_fp8_derivative_move(fxa__dnn_attention *a, size_t first, int32_t dscore);
/* fxa__dnn_is_fp8 returns true if Q has 8 bits. fxa__dnn_fp8_scores returns the scores, computed from the product s of
 * 8-bit Q and K. fxa__dnn_fp8_output adds the operations that compute O from the exponentials e and their row sums
 * (fp8.c). */
bool fxa__dnn_is_fp8(const fxa_problem *p);
int32_t fxa__dnn_fp8_scores(fxa__dnn_attention *a, int32_t s);
void fxa__dnn_fp8_output(fxa__dnn_attention *a, int32_t e, int32_t sum, int32_t v, int32_t o);
/* Refuses operations that the forward pass of 8 bits cannot compute. */
void fxa__dnn_fp8_check(fxa__dnn_attention *a);
/* Backward with 8-bit operands:
 *   fxa__dnn_fp8_sums      returns the row sums of dO O, multiplied by the descales
 *   fxa__dnn_fp8_weights   returns P, scaled and rounded to 8 bits for a matmul
 *   fxa__dnn_fp8_dp        returns dP, multiplied by the descales
 *   fxa__dnn_fp8_ds        returns dS, scaled and rounded to 8 bits for a matmul
 *   fxa__dnn_fp8_result    adds the operations that compute the result `slot` (dQ, dK or dV) from its f32 sums x */
int32_t fxa__dnn_fp8_sums(fxa__dnn_attention *a, int32_t sums);
int32_t fxa__dnn_fp8_weights(fxa__dnn_attention *a, int32_t weights);
int32_t fxa__dnn_fp8_dp(fxa__dnn_attention *a, int32_t dp);
int32_t fxa__dnn_fp8_ds(fxa__dnn_attention *a, int32_t ds);
void fxa__dnn_fp8_result(fxa__dnn_attention *a, fxa_slot slot, int32_t x, int32_t out);
void fxa__dnn_backward(fxa__dnn_attention *a);

/* fxa__dnn_bias_of returns the captured tensor whose gradient is requested; -1 = none. fxa__dnn_bias adds this gradient
 * to the graph, as a sum of dscore, the gradient of the new score at each (q, k) pair (bias_gradient.c). */
int32_t fxa__dnn_bias_of(const fxa_problem *p);
void fxa__dnn_bias(fxa__dnn_attention *a, int32_t dscore);

#endif
