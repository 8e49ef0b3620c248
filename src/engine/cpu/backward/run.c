/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass: the jobs of a run, one after the other, each over work items that workers take.
 *
 *   before   LSE and delta of every row; sums of captured tensors cleared
 *   lanes    the items: dK and dV are stored by block, dQ at the end of an item when the keys have one chunk
 *   after    dQ of several chunks added up and stored, gradients of captured tensors and sinks
 *
 * See backward/backward.h for items and lanes. Small problems use one worker.
 */
#include "backward.h"
#include "../mask/bits.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"

#include <string.h>

#define BACK_SMALL 2e6 /* operations of a problem that one worker does alone; as FORWARD_SMALL_FLOPS */

static fxa__cpu_place back_absent_row(const fxa__back_worker *w, int64_t h, int64_t q) {
    const fxa_operand *t = &w->job->p->in.dq;
    int64_t at = fxa__row_offset(w->job->p, &w->g.seq, t, false, w->job->bound, w->g.b, h, q);
    char *data = (char *)w->job->bound->slot[FXA_SLOT_DQ] + at * (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    return (fxa__cpu_place){data, t->dtype, t->stride[3], w->job->p->in.d_qk, 0, 1};
}

static void back_store(const fxa__back *job, fxa_slot slot, fxa__cpu_place to, const void *row, double factor,
                       bool add) {
    fxa__cpu_store(job->code->kernels, job->bound, slot, &to, row, factor, add);
}

/* ---- dQ --------------------------------------------------------------------------------------------------------- */

/* Stores rows first..first+n of the group from their sums, scaled. */
static void back_store_dq(const fxa__back_worker *w, void *dq, int64_t first, int64_t n) {
    const fxa__back *job = w->job;
    int64_t ld = job->cut.ld_d;
    fxa__cpu_place to = {.count = 0};
    for (int64_t r = first; r < first + n; r++) {
        fxa__cpu_row_next(&w->g, FXA_SLOT_DQ, r, &to);
        back_store(job, FXA_SLOT_DQ, to, fxa__back_at(job, dq, r * ld), job->bound->scale,
                   job->p->in.flags & FXA_ACCUMULATE_DQ);
    }
}

/* Rows past the end of a padded sequence. */
static void back_store_dq_absent(const fxa__back_worker *w) {
    const fxa_problem *p = &w->job->p->in;
    if (p->flags & (FXA_ACCUMULATE_DQ | FXA_VARLEN) || w->g.seq.q_len == p->sq) return; /* no head has any */
    memset(w->q, 0, (size_t)p->d_qk * w->job->code->kernels->real_size);
    for (int64_t h = w->g.hkv * w->g.heads; h < (w->g.hkv + 1) * w->g.heads; h++)
        for (int64_t q = w->g.seq.q_len; q < p->sq; q++)
            back_store(w->job, FXA_SLOT_DQ, back_absent_row(w, h, q), w->q, 1, false);
}

static void *back_dq_part(const fxa__back *job, int64_t group, int64_t chunk) {
    return fxa__back_at(job, job->dq_parts, (chunk * job->cut.groups + group) * job->cut.rows * job->cut.ld_d);
}

static unsigned char *back_dq_has(const fxa__back *job, int64_t group, int64_t chunk) {
    return job->dq_has + (chunk * job->cut.groups + group) * job->cut.tiles;
}

/* ---- dK, dV of a block ------------------------------------------------------------------------------------------ */

static void back_add_page(const fxa__back_worker *w, void *pool, int64_t ld, const void *x, int64_t d) {
    const fxa__back *job = w->job;
    int64_t size = job->p->in.page_size, per_batch = fxa__div_up(job->p->in.sk, size);
    const int32_t *pages = (const int32_t *)job->bound->slot[FXA_SLOT_PAGES] + w->g.b * per_batch;
    for (int64_t i = 0; i < w->n_keys; i++) {
        int64_t k = w->key + i, row = pages[k / size] * size + k % size;
        job->code->kernels->store(fxa__back_at(job, pool, row * ld), fxa__back_real(job), 1,
                                  (const char *)x + i * ld * (int64_t)job->code->kernels->real_size, d, 1, true);
    }
}

static void back_store_keys(const fxa__back_worker *w, fxa_slot slot, void *x, int64_t ld, bool add) {
    fxa__cpu_place to = {.count = 0};
    for (int64_t i = 0; i < w->n_keys; i++) {
        fxa__cpu_key_next(&w->g, slot, w->key + i, &to);
        back_store(w->job, slot, to, fxa__back_at(w->job, x, i * ld), 1, add);
    }
}

static void back_store_block(const fxa__back_worker *w) {
    const fxa__back_shares *cut = &w->job->cut;
    const fxa__cpu_kernels *kernels = w->job->code->kernels;
    const fxa_problem *p = &w->job->p->in;
    if (cut->want_k) kernels->format->over_end(kernels, &w->over_k, w->n_keys);
    if (cut->want_v) kernels->format->over_end(kernels, &w->over_v, w->n_keys);
    double factor = fxa__cpu_score_factor(w->job->code->scores, w->job->bound->scale); /* Q had the rest of the scale */
    if (cut->want_k && factor != 1) kernels->row_scale(w->dk, w->n_keys * cut->ld_d, factor);
    if (cut->pool) {
        if (cut->want_k) back_add_page(w, w->dk_pool, cut->ld_d, w->dk, p->d_qk);
        if (cut->want_v) back_add_page(w, w->dv_pool, cut->ld_v, w->dv, p->d_v);
        return;
    }
    if (cut->want_k) back_store_keys(w, FXA_SLOT_DK, w->dk, cut->ld_d, p->flags & FXA_ACCUMULATE_DK);
    if (cut->want_v) back_store_keys(w, FXA_SLOT_DV, w->dv, cut->ld_v, p->flags & FXA_ACCUMULATE_DV);
}

static void back_clear_block(const fxa__back_worker *w, int64_t n) {
    const fxa__back_shares *cut = &w->job->cut;
    const fxa__cpu_kernels *kernels = w->job->code->kernels;
    size_t size = kernels->real_size;
    if (cut->want_k) memset(w->dk, 0, (size_t)(n * cut->ld_d) * size);
    if (cut->want_v) memset(w->dv, 0, (size_t)(n * cut->ld_v) * size);
    if (cut->want_k) kernels->format->over_clear(kernels, &w->over_k);
    if (cut->want_v) kernels->format->over_clear(kernels, &w->over_v);
}

/* Keys begin..end past the end of a padded sequence. */
static void back_store_absent(fxa__back_worker *w, int64_t begin, int64_t end) {
    const fxa__back_shares *cut = &w->job->cut;
    const fxa_problem *p = &w->job->p->in;
    if (cut->pool || (p->flags & FXA_VARLEN)) return;
    back_clear_block(w, 1);
    w->n_keys = 1;
    for (w->key = begin; w->key < end; w->key++) {
        if (cut->want_k && !(p->flags & FXA_ACCUMULATE_DK)) back_store_keys(w, FXA_SLOT_DK, w->dk, cut->ld_d, false);
        if (cut->want_v && !(p->flags & FXA_ACCUMULATE_DV)) back_store_keys(w, FXA_SLOT_DV, w->dv, cut->ld_v, false);
    }
}

/* ---- Items ------------------------------------------------------------------------------------------------------ */

static void back_enter(fxa__back_worker *w, int64_t group) {
    const fxa__back *job = w->job;
    fxa__cpu_group_enter(&w->g, group / job->p->in.hkv, group % job->p->in.hkv);
    w->lse = job->lse + group * job->cut.rows;
    w->delta = fxa__back_at(job, job->delta, group * job->cut.rows);
    w->finite = job->finite + group * job->cut.tiles;
    w->few = fxa__cpu_is_few(&job->p->in, w->g.rows);
}

static void back_block(fxa__back_worker *w, int64_t key, int64_t n) {
    w->key = key;
    w->n_keys = n;
    w->loaded = false;
    back_clear_block(w, n);
    for (int64_t tile = 0; tile < w->job->cut.tiles; tile++) fxa__back_tile(w, tile);
    back_store_block(w);
    fxa__cpu_progress_add(w->job->code->scores, w->job->bound, n);
}

static void back_item(fxa__back_worker *w, int64_t item) {
    const fxa__back *job = w->job;
    const fxa__back_shares *cut = &job->cut;
    int64_t group = item % cut->groups, chunk = item / cut->groups;
    back_enter(w, group);
    for (int i = 0; i < FXA__BACK_TAPES; i++)
        if (w->tape[i].tape)
            fxa__tape_batch(&w->tape[i], fxa__coord(job->p, job->bound, FXA_INPUT_B, w->g.b), w->g.seq.q_len_seen,
                            w->g.seq.k_len_seen, w->g.seq.heads_seen);
    if (cut->want_q && cut->chunks > 1) {
        w->dq = back_dq_part(job, group, chunk);
        w->dq_has = memset(back_dq_has(job, group, chunk), 0, (size_t)cut->tiles);
    } else if (cut->want_q) {
        memset(w->dq, 0, (size_t)(w->g.rows * cut->ld_d) * job->code->kernels->real_size);
    }
    int64_t begin = chunk * cut->chunk, last = fxa__min_i64(begin + cut->chunk, job->p->in.sk);
    int64_t end = fxa__min_i64(last, w->g.seq.k_len);
    for (int64_t key = begin; key < end; key += cut->block) back_block(w, key, fxa__min_i64(cut->block, end - key));
    back_store_absent(w, fxa__max_i64(begin, end), last);
    fxa__cpu_progress_add(job->code->scores, job->bound, last - fxa__max_i64(begin, end));
    if (cut->want_q && cut->chunks == 1) {
        back_store_dq(w, w->dq, 0, w->g.rows);
        back_store_dq_absent(w);
    }
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------ */

/* One gradient of a whole pool of pages, of one KV head. */
static void back_store_pool(const fxa__back *job, const fxa_operand *t, fxa_slot slot, int64_t hkv, void *pool,
                            int64_t ld, int64_t d, bool add) {
    int64_t size = job->p->in.page_size, bytes = (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    for (int64_t row = 0; row < job->cut.pool_rows; row++) {
        int64_t at = row / size * t->stride[0] + hkv * t->stride[1] + row % size * t->stride[2];
        fxa__cpu_place to = {(char *)job->bound->slot[slot] + at * bytes, t->dtype, t->stride[3], d, 0, 1};
        back_store(job, slot, to, fxa__back_at(job, pool, row * ld), 1, add);
    }
}

/* Pages may be shared between batch entries: one KV head after the other, its sums over all entries in their order. */
static void back_lane_paged(fxa__back_worker *w, int64_t lane) {
    const fxa__back *job = w->job;
    const fxa__back_shares *cut = &job->cut;
    const fxa_problem *p = &job->p->in;
    size_t size = job->code->kernels->real_size;
    for (int64_t hkv = lane; hkv < p->hkv; hkv += cut->lanes) {
        if (cut->want_k) memset(w->dk_pool, 0, (size_t)(cut->pool_rows * cut->ld_d) * size);
        if (cut->want_v) memset(w->dv_pool, 0, (size_t)(cut->pool_rows * cut->ld_v) * size);
        for (int64_t item = hkv; item < cut->items; item += p->hkv) back_item(w, item);
        if (cut->want_k)
            back_store_pool(job, &p->dk, FXA_SLOT_DK, hkv, w->dk_pool, cut->ld_d, p->d_qk,
                            p->flags & FXA_ACCUMULATE_DK);
        if (cut->want_v)
            back_store_pool(job, &p->dv, FXA_SLOT_DV, hkv, w->dv_pool, cut->ld_v, p->d_v, p->flags & FXA_ACCUMULATE_DV);
    }
}

static void back_lane(fxa__back_worker *w, int64_t lane) {
    const fxa__back *job = w->job;
    const fxa__back_shares *cut = &job->cut;
    if (cut->want_sums) {
        fxa__tape_run *derivative = &w->tape[job->code->joined ? FXA__BACK_SCORE : FXA__BACK_DERIVATIVE];
        derivative->sums = job->sums + lane * job->p->program->n_tensors;
        derivative->dparams = job->p->in.param_grads ? job->dparams + lane * job->p->program->n_params : NULL;
    }
    if (cut->pool)
        back_lane_paged(w, lane);
    else if (cut->lanes == cut->items)
        back_item(w, lane);
    else
        for (int64_t item = 0; item < cut->items; item++)
            if (fxa__back_lane_of(cut, &job->p->in, item) == lane) back_item(w, item);
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------- */

typedef void (*back_item_fn)(fxa__back_worker *w, int64_t item);

typedef struct back_job {
    const fxa__back *run;
    back_item_fn fn;
    int64_t items;
    atomic_llong next;
} back_job;

static void back_work(void *arg, int32_t worker) {
    back_job *job = arg;
    const fxa__cpu_kernels *kernels = job->run->code->scores; /* if some must be entered, these */
    if (kernels->enter) kernels->enter();
    for (int64_t item; (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->items;)
        job->fn(&job->run->workers[worker], item);
    if (kernels->leave) kernels->leave();
}

static void back_do(const fxa__back *run, int32_t width, back_item_fn fn, int64_t items) {
    back_job job = {.run = run, .fn = fn, .items = items};
    if (items > 0)
        fxa__pool_run(run->bound->pool, run->bound->parallel_user, (int32_t)fxa__min_i64(width, items), back_work,
                      &job);
}

static void back_before(fxa__back_worker *w, int64_t item) {
    const fxa__back *job = w->job;
    int64_t tiles = job->cut.groups * job->cut.tiles;
    if (item >= tiles) {
        fxa__back_sum_clear(job, item - tiles);
        return;
    }
    back_enter(w, item / job->cut.tiles);
    fxa__back_delta(w, item % job->cut.tiles);
}

/* Adds up the chunks that have something of a tile of rows, in order, and stores it. */
static void back_join(fxa__back_worker *w, int64_t group, int64_t tile) {
    const fxa__back *job = w->job;
    const fxa__back_shares *cut = &job->cut;
    int64_t first, n;
    back_enter(w, group);
    if (tile == 0) back_store_dq_absent(w);
    if (!fxa__back_tile_rows(w, tile, &first, &n)) return;
    void *sum = NULL;
    for (int64_t chunk = 0; chunk < cut->chunks; chunk++) {
        void *part = back_dq_part(job, group, chunk), *rows = fxa__back_at(job, part, first * cut->ld_d);
        if (!back_dq_has(job, group, chunk)[tile]) continue;
        if (sum)
            job->code->kernels->store(fxa__back_at(job, sum, first * cut->ld_d), fxa__back_real(job), 1, rows,
                                      n * cut->ld_d, 1, true);
        else
            sum = part;
    }
    if (!sum) {
        sum = back_dq_part(job, group, 0);
        memset(fxa__back_at(job, sum, first * cut->ld_d), 0, (size_t)(n * cut->ld_d) * job->code->kernels->real_size);
    }
    back_store_dq(w, sum, first, n);
}

static int64_t back_joins(const fxa__back *job) {
    return job->cut.want_q && job->cut.chunks > 1 ? job->cut.groups * job->cut.tiles : 0;
}

static void back_after(fxa__back_worker *w, int64_t item) {
    const fxa__back *job = w->job;
    int64_t joins = back_joins(job), pieces = fxa__back_sum_pieces(job);
    if (item < joins)
        back_join(w, item / job->cut.tiles, item % job->cut.tiles);
    else if (item < joins + pieces)
        fxa__back_sum_store(job, item - joins);
    else
        fxa__back_store_sink(job, item - joins - pieces);
}

void fxa__cpu_backward_least(const fxa__cpu_kernels *kernels, int32_t *rows, int32_t *keys) {
    *rows = (int32_t)fxa__back_strip_most(kernels);
    *keys = (int32_t)fxa__max_i64(fxa__cpu_bits_granule(kernels), kernels->nr); /* strips begin at whole panels */
}

bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes) {
    fxa__back run = {.code = code, .p = p, .cut = fxa__back_shares_make(code, p)};
    return fxa__back_layout(&run, c, bytes);
}

bool fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound) {
    fxa__back run = {.code = code, .p = p, .bound = bound, .cut = fxa__back_shares_make(code, p)};
    const fxa__back_shares *cut = &run.cut;
    const fxa_problem *in = &p->in;
    size_t bytes;
    if (!fxa__back_layout(&run, fxa__carver_make(bound->workspace), &bytes) || bytes > bound->workspace_size)
        return false;
    for (int64_t i = 0; i < cut->ones; i++) fxa__store_f64(run.ones, fxa__back_real(&run), i, 1);
    fxa__cpu_scan(code, bound, run.ranges);
    for (int64_t i = 0; cut->want_sums && i < cut->lanes * p->program->n_params; i++) run.dparams[i] = 0;
    double pairs = (double)cut->groups * (double)cut->rows * (double)in->sk;
    int32_t width = pairs * 10 * (double)in->d_qk < BACK_SMALL ? 1 : code->width;
    fxa__progress_begin(bound->progress, cut->entries, in->hkv, in->sk);
    back_do(&run, width, back_before, cut->groups * cut->tiles + fxa__back_sum_pieces(&run));
    back_do(&run, width, back_lane, cut->lanes);
    back_do(&run, width, back_after,
            back_joins(&run) + fxa__back_sum_pieces(&run) + (in->flags & FXA_GRAD_SINKS ? in->hq : 0));
    fxa__back_store_params(&run);
    return true;
}
