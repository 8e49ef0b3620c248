/* SPDX-License-Identifier: Apache-2.0
 *
 * Work of backward before and after the tiles. Before the tiles: delta of every row. After the tiles: gradients of
 * sinks, params and captured tensors, summed in f64. Each chain (tasks that run one after the other) has its own sum of
 * a gradient, or all chains share one sum if no two chains add to the same element. The sums of the chains are added in
 * the order of the chains. If each element of a tensor receives the gradient of at most one (row, key) pair, there is
 * no sum: the gradient is set to 0, and the tiles add to the gradient.
 */
#include "backward.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"
#include "../../../problem/merge_row.h"

#include <float.h>
#include <string.h>

enum { CAPTURED_PIECE = 16384 }; /* number of elements that one work item sums: 128 KiB of f64; untuned */

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

/* Returns LSE or dLSE of row r of the kv group. On entry, *at is the address of row r - 1, or all zeroes; on return,
 * the address of row r. */
static double captured_row_value(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r, fxa__cpu_address *at) {
    fxa__cpu_row_next(g, slot, r, at);
    return fxa__load_f64(at->data, at->dtype, 0);
}

/* Returns true if all elements of a row, multiplied by `factor`, are finite. May return false for large finite
 * elements, whose sum of squares overflows; the products are then slower but correct. */
static bool captured_is_finite(const fxa__cpu_backward_run *run, const void *row, int64_t n, double factor) {
    double x = run->code->kernels->row_dot(row, row, n) * factor * factor;
    return fabs(x) <= (run->p->f64 ? DBL_MAX : FLT_MAX);
}

/* Computes delta = sum_d dO[d] O[d] - dLSE in the order in which dP is summed. If one key has all the weight of a row,
 * then O is V of that key, and dP - delta is exactly 0, however large the program's derivative is. */
void fxa__cpu_backward_delta(fxa__cpu_backward_worker *w, int64_t tile) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa_problem *p = &run->p->in;
    int64_t first, n, ld_o = run->split.ld_v, ld_dout = run->split.ld_v, ld_q = run->split.ld_d;
    int64_t size = (int64_t)run->code->kernels->real_size;
    bool q_finite = true, dout_finite = true;
    fxa__cpu_address lse = {.count = 0}, dlse = {.count = 0};
    if (!fxa__cpu_backward_tile_rows(w, tile, &first, &n)) return;
    const char *o = fxa__cpu_backward_rows_load(w, FXA_SLOT_O, first, n, w->q, &ld_o);
    const char *dout = fxa__cpu_backward_rows_load(w, FXA_SLOT_DO, first, n, w->dout, &ld_dout);
    run->code->kernels->rows_dot(fxa__cpu_real_at(run->code->kernels, w->delta, first), dout, ld_dout, o, ld_o, n,
                                 p->d_v);
    for (int64_t i = 0; i < n; i++, dout += ld_dout * size) {
        double sum = fxa__cpu_real_get(run->code->kernels, w->delta, first + i);
        if (p->flags & FXA_READ_DLSE) sum -= captured_row_value(&w->g, FXA_SLOT_DLSE, first + i, &dlse);
        fxa__store_f64(w->delta, run->code->kernels->real_dtype, first + i, sum);
        w->lse[first + i] = captured_row_value(&w->g, FXA_SLOT_LSE, first + i, &lse);
        dout_finite = dout_finite && captured_is_finite(run, dout, p->d_v, 1);
    }
    const char *q = fxa__cpu_backward_rows_load(w, FXA_SLOT_Q, first, n, w->q, &ld_q);
    double factor = fxa__cpu_q_factor(run->code->scores, run->bound->scale);
    for (int64_t i = 0; i < n && q_finite; i++, q += ld_q * size)
        q_finite = captured_is_finite(run, q, p->d_qk, factor);
    w->finite[tile] =
        (unsigned char)((q_finite ? FXA__CPU_Q_IS_FINITE : 0) | (dout_finite ? FXA__CPU_DO_IS_FINITE : 0));
}

/* Adds exp(z - LSE) (dLSE - delta) to dsink[h] for each row of head h in all batch entries; z is the sink. */
void fxa__cpu_sink_store(const fxa__cpu_backward_run *run, int64_t h) {
    const fxa_problem *p = &run->p->in;
    void *data = run->bound->slot[FXA_SLOT_DSINKS];
    int64_t heads = p->hq / fxa__max_i64(p->hkv, 1), at = h * p->dsinks.stride[1];
    double sink = fxa__load_f64(run->bound->slot[FXA_SLOT_SINKS], p->sinks.dtype, h * p->sinks.stride[1]);
    double sum = p->flags & FXA_ACCUMULATE_DSINKS ? fxa__load_f64(data, p->dsinks.dtype, at) : 0;
    for (int64_t b = 0; sink != -INFINITY && b < run->split.entries; b++) {
        int64_t q_len = fxa__seq_get(run->p, run->bound, b).q_len;
        int64_t row = (b * p->hkv + h / heads) * run->split.rows + h % heads * q_len;
        for (int64_t r = row; r < row + q_len; r++) {
            double lse = run->lse[r], probability = lse == -INFINITY ? 0 : fxa__probability(sink, lse);
            if (probability != 0) sum -= probability * fxa__cpu_real_get(run->code->kernels, run->delta, r);
        }
    }
    fxa__store_f64(data, p->dsinks.dtype, at, sum);
}

/* ---- Captured tensors and params ------------------------------------------------------------------------------- */

/* Returns the number of elements of a captured tensor. */
static int64_t captured_elements(const fxa_view *view) {
    int64_t n = 1;
    for (int32_t i = 0; i < view->rank; i++) n *= view->size[i];
    return n;
}

/* Returns the number of pieces of the tensor's gradient, which workers process one at a time; 0 if the gradient is not
 * requested. */
static int64_t captured_pieces(const fxa__tape_sum *sum) {
    return sum->sum || sum->one_pair_per_element ? fxa__div_up(captured_elements(&sum->view), CAPTURED_PIECE) : 0;
}

int64_t fxa__cpu_captured_sum_pieces(const fxa__cpu_backward_run *run) {
    int64_t n = 0;
    for (int32_t t = 0; run->split.want_sums && t < run->p->program->n_tensors; t++)
        n += captured_pieces(&run->sums[t]);
    return n;
}

/* Returns the tensor of a piece, and sets *begin and *end to the piece's elements, as indices in row-major order. */
static int32_t captured_piece(const fxa__cpu_backward_run *run, int64_t piece, int64_t *begin, int64_t *end) {
    int32_t t = 0;
    while (piece >= captured_pieces(&run->sums[t])) piece -= captured_pieces(&run->sums[t++]);
    *begin = piece * CAPTURED_PIECE;
    *end = fxa__min_i64(*begin + CAPTURED_PIECE, captured_elements(&run->sums[t].view));
    return t;
}

/* Returns the number of sums of the gradient of tensor t: one for each chain of tasks, or 1 if the chains share one. */
static int64_t captured_chains(const fxa__cpu_backward_run *run, int32_t t) {
    return run->split.shared >> t & 1 ? 1 : run->split.chains;
}

/* Returns the f64 sums of tensor t in a chain (a sequence of tasks); NULL if the gradient of t is not summed in f64. */
static double *captured_sum(const fxa__cpu_backward_run *run, int64_t chain, int32_t t) {
    return run->sums[chain * run->p->program->n_tensors + t].sum;
}

/* Returns the number of elements from index i on, before `end`, that are in one row of the last axis. Indices are in
 * row-major order. Sets *at to the offset of element i. */
static int64_t captured_run(const fxa_view *view, int64_t i, int64_t end, int64_t *at) {
    int64_t last = view->rank > 0 ? view->size[view->rank - 1] : 1, n = fxa__min_i64(end - i, last - i % last);
    *at = 0;
    for (int32_t axis = view->rank - 1; axis >= 0; axis--) {
        *at += i % view->size[axis] * view->stride[axis];
        i /= view->size[axis];
    }
    return n;
}

/* Returns the stride of the last axis, in elements; 1 for a scalar. */
static int64_t captured_stride(const fxa_view *view) { return view->rank > 0 ? view->stride[view->rank - 1] : 1; }

static void captured_clear_view(const fxa_view *view, int64_t begin, int64_t end) {
    char *data = (char *)(uintptr_t)view->data; /* views are const; this one is an output */
    int64_t size = (int64_t)fxa_dtype_size(view->dtype), stride = captured_stride(view), at;
    for (int64_t i = begin, n; i < end; i += n) {
        n = captured_run(view, i, end, &at);
        for (int64_t j = 0; j < (stride == 1 ? 1 : n); j++)
            memset(data + (at + j * stride) * size, 0, (size_t)((stride == 1 ? n : 1) * size));
    }
}

void fxa__cpu_captured_sum_clear(const fxa__cpu_backward_run *run, int64_t piece) {
    int64_t begin, end;
    int32_t t = captured_piece(run, piece, &begin, &end);
    if (run->split.one_pair_per_element >> t & 1) {
        if (!(run->p->in.flags & FXA_ACCUMULATE_DTENSORS)) captured_clear_view(&run->sums[t].view, begin, end);
        return;
    }
    for (int64_t chain = 0; chain < captured_chains(run, t); chain++)
        for (int64_t i = begin; i < end; i++) captured_sum(run, chain, t)[i] = 0;
}

/* Stores n sums to the elements at, at + stride, ...; if `add`, adds the sums to these elements. */
static void captured_store_run(void *data, uint32_t dtype, int64_t at, int64_t stride, const double *sum, int64_t n,
                               bool add) {
    if (dtype == FXA_F32 && stride == 1) {
        float *x = (float *)data + at;
        for (int64_t i = 0; i < n; i++) x[i] = (float)((add ? (double)x[i] : 0) + sum[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++, at += stride)
        fxa__store_f64(data, dtype, at, (add ? fxa__load_f64(data, dtype, at) : 0) + sum[i]);
}

void fxa__cpu_captured_sum_store(const fxa__cpu_backward_run *run, int64_t piece) {
    int64_t begin, end, at;
    int32_t t = captured_piece(run, piece, &begin, &end);
    const fxa_view *to = &run->bound->dtensors[t];
    double *sum = captured_sum(run, 0, t);
    if (run->split.one_pair_per_element >> t & 1) return; /* the tiles have stored this gradient */
    for (int64_t chain = 1; chain < captured_chains(run, t); chain++)
        for (int64_t i = begin; i < end; i++) sum[i] += captured_sum(run, chain, t)[i];
    for (int64_t i = begin, n; i < end; i += n) {
        n = captured_run(to, i, end, &at);
        captured_store_run((void *)(uintptr_t)to->data, (uint32_t)to->dtype, at, captured_stride(to), sum + i, n,
                           run->p->in.flags & FXA_ACCUMULATE_DTENSORS);
    }
}

void fxa__cpu_param_sums_store(const fxa__cpu_backward_run *run) {
    const fxa_problem *p = &run->p->in;
    int32_t n = run->p->program->n_params;
    for (int32_t i = 0; i < n; i++) {
        if (!(p->param_grads >> i & 1)) continue;
        double sum = 0;
        for (int64_t chain = 0; chain < run->split.chains; chain++) sum += run->dparams[chain * n + i];
        run->bound->dparams[i] = (p->flags & FXA_ACCUMULATE_DPARAMS ? run->bound->dparams[i] : 0) + sum;
    }
}
