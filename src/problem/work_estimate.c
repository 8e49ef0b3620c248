/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimated work of a pass: see work_estimate.h.
 */
#include "work_estimate.h"

#include "geometry.h"
#include "scales.h"

#include <math.h>

/* Returns true if the pass has a result to compute for each row: O, LSE, row maximum, dQ or dsinks. */
static bool work_writes_rows(const fxa_problem *in) {
    if (in->pass == FXA_FORWARD) return in->d_v > 0 || in->flags & (FXA_RETURN_LSE | FXA_RETURN_ROW_MAX);
    return (in->flags & FXA_GRAD_Q && in->d_qk > 0) || in->flags & FXA_GRAD_SINKS;
}

/* Returns true if the pass has a result that combines all pairs of a row and a key: gradients of captured tensors or
 * params, or the maximum absolute value of dS. */
static bool work_sums_pairs(const fxa_problem *in) {
    bool sums = in->param_grads != 0;
    for (size_t i = 0; i < in->n_captures; i++) sums = sums || in->captures[i].grad;
    return in->pass == FXA_BACKWARD && (sums || fxa__scale_use_of(in, FXA_SLOT_AMAX_DS) == FXA__SCALE_WRITTEN);
}

int64_t fxa__entries_with_work(const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    bool packed = in->flags & FXA_VARLEN, packed_keys = packed && !(in->flags & FXA_PAGED);
    bool rows = in->hq > 0 && in->sq > 0 && (!packed || in->total_q > 0),
         keys = in->hkv > 0 && in->sk > 0 && (!packed_keys || in->total_k > 0);
    bool writes_keys = (in->flags & FXA_GRAD_K && in->d_qk > 0) || (in->flags & FXA_GRAD_V && in->d_v > 0);
    bool work = (rows && work_writes_rows(in)) || (keys && writes_keys) || (rows && keys && work_sums_pairs(in));
    return work ? in->b : 0;
}

/* Returns the sum of max(t - i, 0) over rows i in 0..n-1, approximated by an integral over i. */
static double work_corner(double t, double n) {
    if (!(t > 0)) return 0;
    return t <= n ? 0.5 * t * t : n * (t - 0.5 * n);
}

/* Returns the sum of min(max(t - i, 0), most) over rows i in 0..n-1, approximated by an integral over i. */
static double work_cut(double t, double n, double most) { return work_corner(t, n) - work_corner(t - most, n); }

/* Returns the coordinate q of row 0 minus the coordinate k of key 0. Start positions (Q_START) are known only at run
 * time: the last row is assumed to be at the last key, as in decoding and chunked prefill. */
static double work_shift(const fxa_problem *in, double sq, double sk) {
    bool moved = in->map_q.kind == FXA_MAP_AFFINE && in->map_k.kind == FXA_MAP_AFFINE;
    double base = moved ? (double)in->map_q.base - (double)in->map_k.base : 0;
    if (in->flags & FXA_Q_START) return base + fmax(sk - sq, 0);
    if (!fxa__rows_are_aligned(in)) return base;
    return base + (in->global_k_len ? (double)in->global_k_len : sk) -
           (in->global_q_len ? (double)in->global_q_len : sq);
}

/* Returns the estimated number of pairs that the causal and window bounds of the mask keep. */
static double work_pairs(const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    bool packed = in->flags & FXA_VARLEN;
    double b = (double)in->b, sq = packed && b > 0 ? (double)in->total_q / b : (double)in->sq;
    double sk = packed && b > 0 && !(in->flags & FXA_PAGED) ? (double)in->total_k / b : (double)in->sk;
    double shift = work_shift(in, sq, sk);
    fxa_properties properties;
    fxa_program_properties(p->program, &properties);
    double right =
        shift + (properties.flags & FXA_PROPERTY_CAUSAL_BOTTOM_RIGHT ? fmax(sk - sq, 0) : properties.window_right);
    double left_out = work_cut(sk - right, sq, sk) + work_cut(sq - (properties.window_left - shift), sk, sq);
    return b * (double)in->hq * fmax(sq * sk - left_out, fmin(sq, sk));
}

/* Forward has two matrix products: Q K^T with head dim d_qk, and P V with d_v. Backward has five: three with d_qk, two
 * with d_v. */
double fxa__problem_operations(const fxa__problem *p) {
    double d = (double)p->in.d_qk, dv = (double)p->in.d_v,
           columns = p->in.pass == FXA_FORWARD ? d + dv : 3 * d + 2 * dv;
    return 2 * columns * work_pairs(p);
}

double fxa__problem_key_bytes(const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    bool packed = (in->flags & FXA_VARLEN) && !(in->flags & FXA_PAGED);
    double keys = packed ? (double)in->total_k : (double)in->b * (double)in->sk;
    double row = (double)(in->d_qk * (int64_t)fxa_dtype_size((fxa_dtype)in->k.dtype)) +
                 (double)(in->d_v * (int64_t)fxa_dtype_size((fxa_dtype)in->v.dtype));
    return keys * (double)in->hkv * row;
}

bool fxa__problem_is_capped(const fxa__problem *p) {
    fxa_properties properties;
    fxa_program_properties(p->program, &properties);
    return properties.flags & FXA_PROPERTY_SOFTCAP;
}

bool fxa__problem_is_uneven(const fxa__problem *p) {
    const uint32_t bands =
        FXA_PROPERTY_NO_MASK | FXA_PROPERTY_CAUSAL | FXA_PROPERTY_CAUSAL_BOTTOM_RIGHT | FXA_PROPERTY_WINDOW;
    fxa_properties properties;
    fxa_program_properties(p->program, &properties);
    bool own = properties.mask_depends & (1u << FXA_INPUT_B | 1u << FXA_INPUT_H);
    return p->in.n_captures > 0 || own || !(properties.flags & (bands | FXA_PROPERTY_PADDING));
}
