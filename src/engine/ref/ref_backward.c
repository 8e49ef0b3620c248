/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward pass, from the O and LSE of the forward pass. LSE is not recomputed, so it may cover a longer sequence than
 * this problem. For a pair of a row and a key, s is the scaled score, s' the new score (the program's result) and r the
 * dropout factor; z is the score of the row's sink:
 *
 *     P     = exp(s' - LSE), at most 1
 *     delta = sum_d dO[d] O[d]
 *     dV   += P r dO
 *     dP    = r sum_d dO[d] V[d]
 *     dS'   = P (dP - delta + dLSE)
 *     dS    = dS' * ds'/ds                     ref_gradient.c, which also sums captured tensors and params
 *     dQ   += dS scale K,  dK += dS scale Q    over the group of query heads that share K
 *     dz   += exp(z - LSE) (dLSE - delta)
 *
 * 0 * NaN and 0 * inf count as 0: a pair that is masked or has P = 0 contributes to no gradient, and a pair with dS' =
 * 0 contributes to dV only. A row with LSE = -inf has no attended key and no gradient.
 */
#include "ref.h"

#include "../../base/dtype.h"
#include "../../base/num.h"
#include "../../problem/merge_row.h"
#include "../../problem/scales.h"
#include "../../problem/work_estimate.h"

#include <string.h>

/* Adds the contributions of the pair (current row, key k) to all gradients. lse: LSE of the row; dlse_minus_delta: dLSE
 * - delta of the row. */
static void ref_pair_backward(fxa__ref *r, int64_t k, double lse, double dlse_minus_delta) {
    int64_t d = r->p->in.d_qk, dv = r->p->in.d_v, row = fxa__ref_key_row(r, k);
    double score = fxa__ref_score(r, k);
    double probability = score == -INFINITY ? 0 : fxa__probability(score, lse);
    if (probability == 0) return;

    double dropout = fxa__ref_dropout(r), dp = 0;
    if (dropout != 0) {
        fxa__ref_axpy(r->dv + row * dv, probability * dropout, r->dout, dv);
        dp = dropout * fxa__ref_dot(r->dout, r->v + k * dv, dv);
    }
    double dnew = probability * (dp + dlse_minus_delta);
    if (dnew == 0) return;

    double ds = fxa__ref_program_backward(r, dnew) * r->bound->scale;
    if (r->bound->amax[FXA_SLOT_DO]) fxa__amax_add(r->bound->amax[FXA_SLOT_DO], fabs(ds));
    fxa__ref_axpy(r->dq, ds, r->k + k * d, d);
    fxa__ref_axpy(r->dk + row * d, ds, r->q, d);
}

static void ref_row_backward(fxa__ref *r, int64_t h, int64_t q) {
    const fxa_problem *p = &r->p->in;
    double lse, dlse = 0;
    fxa__ref_load(r, FXA_SLOT_LSE, h, q, &lse);
    if (p->flags & FXA_READ_DLSE) fxa__ref_load(r, FXA_SLOT_DLSE, h, q, &dlse);
    memset(r->dq, 0, (size_t)p->d_qk * sizeof(double));
    if (lse != -INFINITY) {
        fxa__ref_enter_row(r, h, q);
        fxa__ref_load(r, FXA_SLOT_O, h, q, r->o);
        fxa__ref_load(r, FXA_SLOT_DO, h, q, r->dout);
        double dlse_minus_delta = dlse - fxa__ref_dot(r->dout, r->o, p->d_v);
        for (int64_t k = 0; k < r->seq.k_len; k++) ref_pair_backward(r, k, lse, dlse_minus_delta);
        double sink = fxa__ref_sink(r, h), sink_probability = sink == -INFINITY ? 0 : fxa__probability(sink, lse);
        if (p->flags & FXA_GRAD_SINKS && sink_probability != 0) r->dsink[h] += sink_probability * dlse_minus_delta;
    }
    if (p->flags & FXA_GRAD_Q) fxa__ref_store(r, FXA_SLOT_DQ, h, q, r->dq, p->flags & FXA_ACCUMULATE_DQ);
    fxa__progress_add(r->bound->progress, 1);
}

/* Stores 0 as dQ of a row past the end of a padded sequence. */
static void ref_row_zero(fxa__ref *r, int64_t h, int64_t q) {
    memset(r->dq, 0, (size_t)r->p->in.d_qk * sizeof(double));
    fxa__ref_store(r, FXA_SLOT_DQ, h, q, r->dq, false);
}

static void ref_head_backward(fxa__ref *r, int64_t h) {
    const fxa_problem *p = &r->p->in;
    bool clear_padding = (p->flags & FXA_GRAD_Q) && p->d_qk > 0 && !(p->flags & (FXA_ACCUMULATE_DQ | FXA_VARLEN));
    fxa__ref_enter_head(r, h);
    for (int64_t q = 0; q < r->seq.q_len; q++) ref_row_backward(r, h, q);
    for (int64_t q = r->seq.q_len; clear_padding && q < p->sq; q++) ref_row_zero(r, h, q);
    fxa__progress_add(r->bound->progress, p->sq - r->seq.q_len);
}

/* Sets the sums of dK and dV to 0. */
static void ref_clear_keys(fxa__ref *r) {
    size_t rows = (size_t)fxa__ref_key_rows(r->p);
    if (rows == 0) return;
    memset(r->dk, 0, rows * (size_t)r->p->in.d_qk * sizeof(double));
    memset(r->dv, 0, rows * (size_t)r->p->in.d_v * sizeof(double));
}

/* Stores dK and dV of the current batch entry. Keys past the end of a padded sequence get 0; packed rows outside every
 * sequence are not written. */
static void ref_store_keys(const fxa__ref *r, int64_t hkv) {
    const fxa_problem *p = &r->p->in;
    int64_t end_k = p->flags & (FXA_ACCUMULATE_DK | FXA_VARLEN) ? r->seq.k_len : p->sk;
    int64_t end_v = p->flags & (FXA_ACCUMULATE_DV | FXA_VARLEN) ? r->seq.k_len : p->sk;
    for (int64_t k = 0; (p->flags & FXA_GRAD_K) && p->d_qk > 0 && k < end_k; k++)
        fxa__ref_store(r, FXA_SLOT_DK, hkv, k, r->dk + k * p->d_qk, p->flags & FXA_ACCUMULATE_DK);
    for (int64_t k = 0; (p->flags & FXA_GRAD_V) && p->d_v > 0 && k < end_v; k++)
        fxa__ref_store(r, FXA_SLOT_DV, hkv, k, r->dv + k * p->d_v, p->flags & FXA_ACCUMULATE_DV);
}

/* Stores `sum` [n_pages,page_size,d], the sums of one KV head, into the gradient `t` of the entire page pool. */
static void ref_store_pool(const fxa__ref *r, const fxa_operand *t, fxa_slot slot, int64_t hkv, const double *sum,
                           int64_t d, bool add) {
    int64_t size = r->p->in.page_size;
    for (int64_t row = 0; d > 0 && row < r->p->in.n_pages * size; row++) {
        int64_t at = row / size * t->stride[0] + hkv * t->stride[1] + row % size * t->stride[2];
        for (int64_t i = 0; i < d; i++, at += t->stride[3])
            fxa__ref_store_one(r, slot, t->dtype, at, sum[row * d + i], add);
    }
}

/* Returns true if the problem is paged and requests dK or dV with at least one element. The gradients of a page pool
 * are stored even if the batch is empty. */
static bool ref_has_pool(const fxa_problem *p) {
    bool grads = (p->flags & FXA_GRAD_K && p->d_qk > 0) || (p->flags & FXA_GRAD_V && p->d_v > 0);
    return p->flags & FXA_PAGED && p->n_pages > 0 && grads;
}

/* Stores dK and dV of one KV head of a paged problem. */
static void ref_store_pages(const fxa__ref *r, int64_t hkv) {
    const fxa_problem *p = &r->p->in;
    if (p->flags & FXA_GRAD_K)
        ref_store_pool(r, &p->dk, FXA_SLOT_DK, hkv, r->dk, p->d_qk, p->flags & FXA_ACCUMULATE_DK);
    if (p->flags & FXA_GRAD_V) ref_store_pool(r, &p->dv, FXA_SLOT_DV, hkv, r->dv, p->d_v, p->flags & FXA_ACCUMULATE_DV);
}

static void ref_store_sinks(const fxa__ref *r) {
    const fxa_problem *p = &r->p->in;
    void *data = r->bound->slot[FXA_SLOT_DSINKS];
    if (!(p->flags & FXA_GRAD_SINKS)) return;
    for (int64_t h = 0; h < p->hq; h++) {
        int64_t at = h * p->dsinks.stride[1];
        double old = p->flags & FXA_ACCUMULATE_DSINKS ? fxa__load_f64(data, p->dsinks.dtype, at) : 0;
        fxa__store_f64(data, p->dsinks.dtype, at, old + r->dsink[h]);
    }
}

void fxa__ref_backward(fxa__ref *r) {
    const fxa_problem *p = &r->p->in;
    int64_t group = p->hq / fxa__max_i64(p->hkv, 1), entries = fxa__entries_with_work(r->p);
    bool paged = p->flags & FXA_PAGED;
    fxa__progress_begin(r->bound->progress, entries, p->hq, p->sq);
    if (p->flags & FXA_GRAD_SINKS) memset(r->dsink, 0, (size_t)p->hq * sizeof(double));
    fxa__ref_clear_sums(r);
    for (int64_t hkv = 0; (entries > 0 || ref_has_pool(p)) && hkv < p->hkv; hkv++) {
        ref_clear_keys(r);
        for (int64_t b = 0; b < entries; b++) {
            fxa__ref_enter_batch(r, b);
            fxa__ref_load_keys(r, hkv);
            for (int64_t h = hkv * group; p->sq > 0 && h < (hkv + 1) * group; h++) ref_head_backward(r, h);
            /* batch entries may share pages, so the sums of a page are stored after the last batch entry */
            if (paged) continue;
            ref_store_keys(r, hkv);
            ref_clear_keys(r);
        }
        if (paged) ref_store_pages(r, hkv);
    }
    ref_store_sinks(r);
    fxa__ref_store_sums(r);
}
