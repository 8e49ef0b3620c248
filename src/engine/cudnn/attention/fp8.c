/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of both passes that differ for 8-bit Q, K and V. In forward, scores are multiplied by the descales of Q and
 * K. P is multiplied by a fixed scale before it is rounded to 8 bits; the product with V is divided by that scale,
 * multiplied by V's descale, and then by the scale of O. In backward, P is scaled in the same way; dS is multiplied by
 * the caller's scale and rounded to the dtype of dO; results are f32 until they are multiplied by their scale. The amax
 * values are reductions that cuDNN's engines require even if they are not requested.
 *
 * Scales are in memory. A scale that the problem lacks, or that a run does not pass, is a 1 in the workspace, which the
 * run writes. A helper kernel computes the inverse of SCALE_DS. Each scale is one tensor, even if several operations
 * use it.
 */
#include "attention.h"

#include "../../../base/dtype.h"
#include "../../../base/invariant.h"
#include "../../../problem/scales.h"

#include <string.h>

/* Scale of P before P is rounded to e4m3. P is at most 1, whether divided by its row's sum or not, so 256 P stays below
 * 448, the maximum of e4m3; values of P from 2^-14 on become normal e4m3 numbers, with all 3 fraction bits. */
#define FP8_SCALE_P 256.0f

static const int64_t fp8_one[4] = {1, 1, 1, 1};

bool fxa__dnn_is_fp8(const fxa_problem *p) { return fxa__dtype_is_byte_float(p->q.dtype); }

/* Returns the bits of a float. */
static int32_t fp8_bits(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Returns a new scalar in the workspace with value x. */
static int32_t fp8_value(fxa__dnn_attention *a, float x) {
    int32_t t = fxa__dnn_scratch(&a->g, fp8_one, CUDNN_DATA_FLOAT);
    if (a->g.status == FXA_OK) a->g.tensors[t].fill = fp8_bits(x);
    return t;
}

/* Returns true if the slot is an amax, which runs write; false if it is a scale. */
static bool fp8_is_written(fxa_slot slot) {
    return (slot >= FXA_SLOT_AMAX_O && slot <= FXA_SLOT_AMAX_DV) || slot == FXA_SLOT_AMAX_DS;
}

/* Returns the tensor of a scale or amax: the slot's memory if the run passes it, else a scalar in the workspace. */
static int32_t fp8_slot(fxa__dnn_attention *a, fxa_slot slot) {
    bool written = fp8_is_written(slot);
    FXA__ASSERT(slot >= FXA_SLOT_DESCALE_Q && slot - FXA_SLOT_DESCALE_Q < FXA__DNN_SCALES);
    uint16_t *made = &a->scales[slot - FXA_SLOT_DESCALE_Q];
    if (*made) return *made - 1;
    int32_t t = written ? fxa__dnn_scratch(&a->g, fp8_one, CUDNN_DATA_FLOAT) : fp8_value(a, 1);
    if (a->g.status != FXA_OK) return t;
    *made = (uint16_t)(t + 1);
    a->g.tensors[t].cleared = written;
    if (fxa__scale_use_of(&a->p->in, slot) >= FXA__SCALE_READ)
        a->g.tensors[t].source = FXA__DNN_SLOT, a->g.tensors[t].index = (int32_t)slot;
    return t;
}

/* Returns the tensor x * scale. */
static int32_t fp8_times(fxa__dnn_attention *a, int32_t x, int32_t scale) {
    return fxa__dnn_float2(&a->g, CUDNN_POINTWISE_MUL, x, scale);
}

int32_t fxa__dnn_fp8_scores(fxa__dnn_attention *a, int32_t s) {
    if (a->has_scalars) return fxa__dnn_fp8_scores_descale(a, s);
    s = fp8_times(a, s, fp8_slot(a, FXA_SLOT_DESCALE_Q));
    return fp8_times(a, s, fp8_slot(a, FXA_SLOT_DESCALE_K));
}

void fxa__dnn_fp8_output(fxa__dnn_attention *a, int32_t e, int32_t sum, int32_t v, int32_t o) {
    fxa__dnn_graph *g = &a->g;
    const fxa_problem *p = &a->p->in;
    const int64_t dim[4] = {p->b, p->hq, p->sq, p->d_v};
    int32_t weights = fxa__dnn_float2(g, CUDNN_POINTWISE_DIV, e, sum);
    (void)fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_AMAX, weights, fxa__dnn_scratch(g, fp8_one, CUDNN_DATA_FLOAT));
    int32_t rounded = fxa__dnn_like(g, weights, (uint8_t)fxa__dnn_data_type(p->v.dtype));
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, weights, fp8_value(a, FP8_SCALE_P), rounded, CUDNN_DATA_FLOAT);
    int32_t x = fxa__dnn_matmul(g, rounded, v, fxa__dnn_virtual(g, dim, CUDNN_DATA_FLOAT), a->len_q, -1, a->len_k);
    x = fp8_times(a, x, fp8_value(a, 1 / FP8_SCALE_P));
    x = fp8_times(a, x, fp8_slot(a, FXA_SLOT_DESCALE_V));
    (void)fxa__dnn_reduce(g, CUDNN_REDUCE_TENSOR_AMAX, x, fp8_slot(a, FXA_SLOT_AMAX_O));
    (void)fxa__dnn_op2_into(g, CUDNN_POINTWISE_MUL, x, fp8_slot(a, FXA_SLOT_SCALE_O), o, CUDNN_DATA_FLOAT);
}

static bool fp8_is_pairs(const fxa__dnn_graph *g, int32_t t) {
    return t >= 0 && g->tensors[t].score && g->tensors[t].dim[3] > 1;
}

/* Returns true for operations with which cuDNN's 8-bit forward kernels fail to compile, although cuDNN offers them.
 * Backward supports all operations. */
static bool fp8_lacks(const fxa__dnn_graph *g, const fxa__dnn_op *op) {
    static const int16_t modes[] = {CUDNN_POINTWISE_SIN,   CUDNN_POINTWISE_COS,       CUDNN_POINTWISE_TAN,
                                    CUDNN_POINTWISE_FLOOR, CUDNN_POINTWISE_CEIL,      CUDNN_POINTWISE_MIN,
                                    CUDNN_POINTWISE_MAX,   CUDNN_POINTWISE_RECIPROCAL};
    if (op->kind != FXA__DNN_POINTWISE || !fp8_is_pairs(g, op->y)) return false;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (op->mode == modes[i]) return true;
    return fp8_is_pairs(g, op->b) || fp8_is_pairs(g, op->t) || g->tensors[op->y].type == CUDNN_DATA_INT32;
}

void fxa__dnn_fp8_check(fxa__dnn_attention *a) {
    for (size_t i = 0; i < a->g.n_ops && a->g.status == FXA_OK; i++)
        if (fp8_lacks(&a->g, &a->g.ops[i]))
            (void)fxa__dnn_refuse(&a->g,
                                  "of 8 bits cuDNN's forward compiles no program that uses the score twice, compares "
                                  "or divides by it, nor sin, cos, tan, floor, ceil, min, max of it");
}

/* ---- The backward pass ------------------------------------------------------------------------------------------- */

/* Returns a tensor in the workspace with 1 / SCALE_DS. */
static int32_t fp8_inverse(fxa__dnn_attention *a) {
    uint16_t *made = &a->scales[FXA__DNN_SCALES];
    if (*made) return *made - 1;
    bool given = fxa__scale_use_of(&a->p->in, FXA_SLOT_SCALE_DS) == FXA__SCALE_READ;
    int32_t t = given ? fxa__dnn_scratch(&a->g, fp8_one, CUDNN_DATA_FLOAT) : fp8_value(a, 1);
    if (a->g.status != FXA_OK) return t;
    *made = (uint16_t)(t + 1);
    if (!given) return t;
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_INVERSE, false, 1);
    fxa__dnn_step_point(step, &step->args.inverse.from, FXA__DNN_SLOT, FXA_SLOT_SCALE_DS, 0);
    fxa__dnn_step_data(step, &step->args.inverse.to, &a->g, t);
    return t;
}

int32_t fxa__dnn_fp8_sums(fxa__dnn_attention *a, int32_t sums) {
    sums = fp8_times(a, sums, fp8_slot(a, FXA_SLOT_DESCALE_DO));
    return fp8_times(a, sums, fp8_slot(a, FXA_SLOT_DESCALE_O));
}

int32_t fxa__dnn_fp8_weights(fxa__dnn_attention *a, int32_t weights) {
    int32_t y = fxa__dnn_like(&a->g, weights, (uint8_t)fxa__dnn_data_type(a->p->in.q.dtype));
    return fxa__dnn_op2_into(&a->g, CUDNN_POINTWISE_MUL, weights, fp8_value(a, FP8_SCALE_P), y, CUDNN_DATA_FLOAT);
}

int32_t fxa__dnn_fp8_dp(fxa__dnn_attention *a, int32_t dp) {
    dp = fp8_times(a, dp, fp8_slot(a, FXA_SLOT_DESCALE_DO));
    return fp8_times(a, dp, fp8_slot(a, FXA_SLOT_DESCALE_V));
}

int32_t fxa__dnn_fp8_ds(fxa__dnn_attention *a, int32_t ds) {
    (void)fxa__dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_AMAX, ds, fp8_slot(a, FXA_SLOT_AMAX_DS));
    int32_t y = fxa__dnn_like(&a->g, ds, (uint8_t)fxa__dnn_data_type(a->p->in.dout.dtype));
    return fxa__dnn_op2_into(&a->g, CUDNN_POINTWISE_MUL, ds, fp8_slot(a, FXA_SLOT_SCALE_DS), y, CUDNN_DATA_FLOAT);
}

void fxa__dnn_fp8_result(fxa__dnn_attention *a, fxa_slot slot, int32_t x, int32_t out) {
    static const struct {
        uint8_t slot, descale, scale, amax;
    } rows[] = {{FXA_SLOT_DQ, FXA_SLOT_DESCALE_K, FXA_SLOT_SCALE_DQ, FXA_SLOT_AMAX_DQ},
                {FXA_SLOT_DK, FXA_SLOT_DESCALE_Q, FXA_SLOT_SCALE_DK, FXA_SLOT_AMAX_DK},
                {FXA_SLOT_DV, FXA_SLOT_DESCALE_DO, FXA_SLOT_SCALE_DV, FXA_SLOT_AMAX_DV}};
    size_t i = 0;
    while (rows[i].slot != slot) i++;
    FXA__ASSERT(i < sizeof rows / sizeof *rows);
    x = fp8_times(a, x, slot == FXA_SLOT_DV ? fp8_value(a, 1 / FP8_SCALE_P) : fp8_inverse(a));
    x = fp8_times(a, x, fp8_slot(a, (fxa_slot)rows[i].descale));
    (void)fxa__dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_AMAX, x, fp8_slot(a, (fxa_slot)rows[i].amax));
    (void)fxa__dnn_op2_into(&a->g, CUDNN_POINTWISE_MUL, x, fp8_slot(a, (fxa_slot)rows[i].scale), out, CUDNN_DATA_FLOAT);
}
