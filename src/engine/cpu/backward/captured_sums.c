/* SPDX-License-Identifier: Apache-2.0
 *
 * What backward does outside of the tiles: delta of every row before them, and after them the gradients of sinks,
 * params and captured tensors. Those are summed in f64: by each lane for itself, or in one sum where lanes never
 * meet; the sums of the lanes are added in the order of the lanes. Where each pair has an element for itself there is
 * nothing to sum: the gradient is cleared, and the tiles add to it.
 */
#include "backward.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"
#include "../../../problem/merge.h"

#include <float.h>
#include <string.h>

enum { GRADS_PIECE = 16384 }; /* elements of a sum that are one work item: 128 KiB of f64; an untuned guess */

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

/* Of row r, which follows the one that *at is at. */
static double grads_row_value(const fxa__cpu_group *g, fxa_slot slot, int64_t r, fxa__cpu_place *at) {
    fxa__cpu_row_next(g, slot, r, at);
    return fxa__load_f64(at->data, at->dtype, 0);
}

/* True when all numbers of a row, times a factor, are finite; false also when their squares add up to infinity: that
 * only costs time. */
static bool grads_is_finite(const fxa__back *job, const void *row, int64_t n, double factor) {
    double x = job->code->kernels->row_dot(row, row, n) * factor * factor;
    return fabs(x) <= (job->p->f64 ? DBL_MAX : FLT_MAX);
}

/* delta = sum_d dO[d] O[d] - dLSE. The sum is made as those of dP are: where one key has all of a row's weight, O is
 * its V, and dP - delta is exactly 0, however steep the program is there. */
void fxa__back_delta(fxa__back_worker *w, int64_t tile) {
    const fxa__back *job = w->job;
    const fxa_problem *p = &job->p->in;
    int64_t first, n, ld_o = job->cut.ld_v, ld_dout = job->cut.ld_v, ld_q = job->cut.ld_d;
    int64_t size = (int64_t)job->code->kernels->real_size;
    bool q_finite = true, dout_finite = true;
    fxa__cpu_place lse = {.count = 0}, dlse = {.count = 0};
    if (!fxa__back_tile_rows(w, tile, &first, &n)) return;
    const char *o = fxa__back_rows(w, FXA_SLOT_O, first, n, w->q, &ld_o);
    const char *dout = fxa__back_rows(w, FXA_SLOT_DO, first, n, w->dout, &ld_dout);
    job->code->kernels->rows_dot(fxa__back_at(job, w->delta, first), dout, ld_dout, o, ld_o, n, p->d_v);
    for (int64_t i = 0; i < n; i++, dout += ld_dout * size) {
        double sum = fxa__back_get(job, w->delta, first + i);
        if (p->flags & FXA_READ_DLSE) sum -= grads_row_value(&w->g, FXA_SLOT_DLSE, first + i, &dlse);
        fxa__store_f64(w->delta, fxa__back_real(job), first + i, sum);
        w->lse[first + i] = grads_row_value(&w->g, FXA_SLOT_LSE, first + i, &lse);
        dout_finite = dout_finite && grads_is_finite(job, dout, p->d_v, 1);
    }
    const char *q = fxa__back_rows(w, FXA_SLOT_Q, first, n, w->q, &ld_q);
    double factor = fxa__cpu_q_factor(job->code->scores, job->bound->scale);
    for (int64_t i = 0; i < n && q_finite; i++, q += ld_q * size) q_finite = grads_is_finite(job, q, p->d_qk, factor);
    w->finite[tile] = (unsigned char)((q_finite ? FXA__BACK_Q_FINITE : 0) | (dout_finite ? FXA__BACK_DO_FINITE : 0));
}

/* dsink[h] += exp(z - LSE) (dLSE - delta) over the rows of head h in all batch entries. */
void fxa__back_store_sink(const fxa__back *job, int64_t h) {
    const fxa_problem *p = &job->p->in;
    void *data = job->bound->slot[FXA_SLOT_DSINKS];
    int64_t heads = p->hq / fxa__max_i64(p->hkv, 1), at = h * p->dsinks.stride[1];
    double sink = fxa__load_f64(job->bound->slot[FXA_SLOT_SINKS], p->sinks.dtype, h * p->sinks.stride[1]);
    double sum = p->flags & FXA_ACCUMULATE_DSINKS ? fxa__load_f64(data, p->dsinks.dtype, at) : 0;
    for (int64_t b = 0; sink != -INFINITY && b < job->cut.entries; b++) {
        int64_t q_len = fxa__seq_get(job->p, job->bound, b).q_len;
        int64_t row = (b * p->hkv + h / heads) * job->cut.rows + h % heads * q_len;
        for (int64_t r = row; r < row + q_len; r++) {
            double lse = job->lse[r], probability = lse == -INFINITY ? 0 : fxa__probability(sink, lse);
            if (probability != 0) sum -= probability * fxa__back_get(job, job->delta, r);
        }
    }
    fxa__store_f64(data, p->dsinks.dtype, at, sum);
}

/* ---- Captured tensors and params ------------------------------------------------------------------------------- */

static int64_t grads_elements(const fxa_view *view) {
    int64_t n = 1;
    for (int32_t i = 0; i < view->rank; i++) n *= view->size[i];
    return n;
}

static int64_t grads_pieces(const fxa__tape_sum *sum) {
    return sum->sum || sum->once ? fxa__div_up(grads_elements(&sum->view), GRADS_PIECE) : 0;
}

int64_t fxa__back_sum_pieces(const fxa__back *job) {
    int64_t n = 0;
    for (int32_t t = 0; job->cut.want_sums && t < job->p->program->n_tensors; t++) n += grads_pieces(&job->sums[t]);
    return n;
}

/* The tensor of a piece, and its elements *begin to *end in dense order. */
static int32_t grads_piece(const fxa__back *job, int64_t piece, int64_t *begin, int64_t *end) {
    int32_t t = 0;
    while (piece >= grads_pieces(&job->sums[t])) piece -= grads_pieces(&job->sums[t++]);
    *begin = piece * GRADS_PIECE;
    *end = fxa__min_i64(*begin + GRADS_PIECE, grads_elements(&job->sums[t].view));
    return t;
}

/* How many sums a tensor has, one after the other by lane. */
static int64_t grads_lanes(const fxa__back *job, int32_t t) { return job->cut.shared >> t & 1 ? 1 : job->cut.lanes; }

static double *grads_sum(const fxa__back *job, int64_t lane, int32_t t) {
    return job->sums[lane * job->p->program->n_tensors + t].sum;
}

/* Of elements i..end, in dense row-major order, of a shape, how many from i on lie along the last axis of the view; *at
 * gets the offset of the first. */
static int64_t grads_run(const fxa_view *view, int64_t i, int64_t end, int64_t *at) {
    int64_t last = view->rank > 0 ? view->size[view->rank - 1] : 1, n = fxa__min_i64(end - i, last - i % last);
    *at = 0;
    for (int32_t axis = view->rank - 1; axis >= 0; axis--) {
        *at += i % view->size[axis] * view->stride[axis];
        i /= view->size[axis];
    }
    return n;
}

static int64_t grads_stride(const fxa_view *view) { return view->rank > 0 ? view->stride[view->rank - 1] : 1; }

static void grads_clear_view(const fxa_view *view, int64_t begin, int64_t end) {
    char *data = (char *)(uintptr_t)view->data; /* views are const; this one is an output */
    int64_t size = (int64_t)fxa_dtype_size(view->dtype), stride = grads_stride(view), at;
    for (int64_t i = begin, n; i < end; i += n) {
        n = grads_run(view, i, end, &at);
        for (int64_t j = 0; j < (stride == 1 ? 1 : n); j++)
            memset(data + (at + j * stride) * size, 0, (size_t)((stride == 1 ? n : 1) * size));
    }
}

void fxa__back_sum_clear(const fxa__back *job, int64_t piece) {
    int64_t begin, end;
    int32_t t = grads_piece(job, piece, &begin, &end);
    if (job->cut.once >> t & 1) {
        if (!(job->p->in.flags & FXA_ACCUMULATE_DTENSORS)) grads_clear_view(&job->sums[t].view, begin, end);
        return;
    }
    for (int64_t lane = 0; lane < grads_lanes(job, t); lane++)
        for (int64_t i = begin; i < end; i++) grads_sum(job, lane, t)[i] = 0;
}

/* n sums to elements from `at` on, `stride` apart. */
static void grads_store_run(void *data, uint32_t dtype, int64_t at, int64_t stride, const double *sum, int64_t n,
                            bool add) {
    if (dtype == FXA_F32 && stride == 1) {
        float *x = (float *)data + at;
        for (int64_t i = 0; i < n; i++) x[i] = (float)((add ? (double)x[i] : 0) + sum[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++, at += stride)
        fxa__store_f64(data, dtype, at, (add ? fxa__load_f64(data, dtype, at) : 0) + sum[i]);
}

void fxa__back_sum_store(const fxa__back *job, int64_t piece) {
    int64_t begin, end, at;
    int32_t t = grads_piece(job, piece, &begin, &end);
    const fxa_view *to = &job->bound->dtensors[t];
    double *sum = grads_sum(job, 0, t);
    if (job->cut.once >> t & 1) return; /* it is there already */
    for (int64_t lane = 1; lane < grads_lanes(job, t); lane++)
        for (int64_t i = begin; i < end; i++) sum[i] += grads_sum(job, lane, t)[i];
    for (int64_t i = begin, n; i < end; i += n) {
        n = grads_run(to, i, end, &at);
        grads_store_run((void *)(uintptr_t)to->data, (uint32_t)to->dtype, at, grads_stride(to), sum + i, n,
                        job->p->in.flags & FXA_ACCUMULATE_DTENSORS);
    }
}

void fxa__back_store_params(const fxa__back *job) {
    const fxa_problem *p = &job->p->in;
    int32_t n = job->p->program->n_params;
    for (int32_t i = 0; i < n; i++) {
        if (!(p->param_grads >> i & 1)) continue;
        double sum = 0;
        for (int64_t lane = 0; lane < job->cut.lanes; lane++) sum += job->dparams[lane * n + i];
        job->bound->dparams[i] = (p->flags & FXA_ACCUMULATE_DPARAMS ? job->bound->dparams[i] : 0) + sum;
    }
}
