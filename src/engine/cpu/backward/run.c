/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of a backward run, one after the other. A phase is a number of work items, which the workers take.
 *
 *   prepare   LSE and delta of every row; sums of captured tensors are set to 0
 *   chains    all tasks: dK and dV are stored per key block, and dQ at the end of a task if keys are not split
 *   finish    dQs of several key splits are added and stored; gradients of captured tensors and sinks are stored
 *
 * backward.h explains tasks and chains. Small problems use one worker.
 */
#include "backward.h"

#include "../../../base/dtype.h"
#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* number of floating-point operations up to which one worker computes the problem; equal to FORWARD_SMALL_FLOPS */
#define BACKWARD_SMALL_FLOPS 2e6

static void backward_store(const fxa__cpu_backward_run *run, fxa_slot slot, fxa__cpu_address to, const void *row,
                           double factor, bool add) {
    fxa__cpu_store(run->code->kernels, run->bound, slot, &to, row, factor, add);
}

/* ---- dQ ---------------------------------------------------------------------------------------------------------- */

/* Stores dQ of rows first..first+n of the kv group, multiplied by the score scale. dq: sums over keys. */
static void backward_store_dq(const fxa__cpu_backward_worker *w, void *dq, int64_t first, int64_t n) {
    const fxa__cpu_backward_run *run = w->run;
    fxa__cpu_address to = {.count = 0};
    for (int64_t r = first; r < first + n; r++) {
        fxa__cpu_row_next(&w->g, FXA_SLOT_DQ, r, &to);
        backward_store(run, FXA_SLOT_DQ, to, fxa__cpu_real_at(run->code->kernels, dq, r * run->split.ld_d),
                       run->bound->scale, run->p->in.flags & FXA_ACCUMULATE_DQ);
    }
}

/* Returns the address of row q of dQ of head h. q may be past the end of the sequence. */
static fxa__cpu_address backward_absent_row(const fxa__cpu_backward_worker *w, int64_t h, int64_t q) {
    const fxa_operand *t = &w->run->p->in.dq;
    int64_t at = fxa__row_offset(w->run->p, &w->g.seq, t, false, w->run->bound, w->g.b, h, q);
    char *data = (char *)w->run->bound->slot[FXA_SLOT_DQ] + at * (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    return (fxa__cpu_address){data, t->dtype, t->stride[3], w->run->p->in.d_qk, 0, 1};
}

/* Stores zeroes as dQ of rows past the end of a padded sequence. */
static void backward_store_dq_absent(const fxa__cpu_backward_worker *w) {
    const fxa_problem *p = &w->run->p->in;
    if (p->flags & (FXA_ACCUMULATE_DQ | FXA_VARLEN) || w->g.seq.q_len == p->sq) return;
    memset(w->q, 0, (size_t)p->d_qk * w->run->code->kernels->real_size);
    for (int64_t h = w->g.hkv * w->g.heads; h < (w->g.hkv + 1) * w->g.heads; h++)
        for (int64_t q = w->g.seq.q_len; q < p->sq; q++)
            backward_store(w->run, FXA_SLOT_DQ, backward_absent_row(w, h, q), w->q, 1, false);
}

/* Returns dQ [rows,ld_d] of a key split of a kv group. */
static void *backward_dq_part(const fxa__cpu_backward_run *run, int64_t group, int64_t key_split) {
    const fxa__cpu_backward_split *split = &run->split;
    int64_t task = key_split * split->groups + group;
    FXA__ASSERT(run->dq_parts && task < split->tasks);
    return fxa__cpu_real_at(run->code->kernels, run->dq_parts, task * split->rows * split->ld_d);
}

static unsigned char *backward_dq_has(const fxa__cpu_backward_run *run, int64_t group, int64_t key_split) {
    return run->dq_has + (key_split * run->split.groups + group) * run->split.tiles;
}

/* ---- dK, dV of a block ------------------------------------------------------------------------------------------- */

/* Adds x [n_keys,ld], the rows of the key block, to their pages in `pool` [pool_rows,ld]. */
static void backward_add_page(const fxa__cpu_backward_worker *w, void *pool, int64_t ld, const void *x, int64_t d) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    int64_t size = run->p->in.page_size, per_batch = fxa__div_up(run->p->in.sk, size);
    const int32_t *pages = (const int32_t *)run->bound->slot[FXA_SLOT_PAGES] + w->g.b * per_batch;
    for (int64_t i = 0; i < w->n_keys; i++) {
        int64_t k = w->key + i, row = pages[k / size] * size + k % size;
        FXA__ASSERT(0 <= row && row < run->split.pool_rows);
        kernels->store(fxa__cpu_real_at(kernels, pool, row * ld), kernels->real_dtype, 1,
                       fxa__cpu_real_at(kernels, x, i * ld), d, 1, true);
    }
}

static void backward_store_keys(const fxa__cpu_backward_worker *w, fxa_slot slot, void *x, int64_t ld, bool add) {
    fxa__cpu_address to = {.count = 0};
    for (int64_t i = 0; i < w->n_keys; i++) {
        fxa__cpu_key_next(&w->g, slot, w->key + i, &to);
        backward_store(w->run, slot, to, fxa__cpu_real_at(w->run->code->kernels, x, i * ld), 1, add);
    }
}

/* Stores the sums dK and dV of the key block. With paged K and V, adds them to the sums of the block's pages. */
static void backward_store_block(const fxa__cpu_backward_worker *w) {
    const fxa__cpu_backward_split *split = &w->run->split;
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    const fxa_problem *p = &w->run->p->in;
    /* part of the score scale that was applied to the scores instead of Q: dK = dS^T Q lacks this factor */
    double factor = fxa__cpu_score_factor(w->run->code->scores, w->run->bound->scale);
    if (split->want_k) kernels->format->sum_end(kernels, &w->dk_sum, w->n_keys);
    if (split->want_v) kernels->format->sum_end(kernels, &w->dv_sum, w->n_keys);
    if (split->want_k && factor != 1) kernels->row_scale(w->dk, w->n_keys * split->ld_d, factor);
    if (split->pool) {
        if (split->want_k) backward_add_page(w, w->dk_pool, split->ld_d, w->dk, p->d_qk);
        if (split->want_v) backward_add_page(w, w->dv_pool, split->ld_v, w->dv, p->d_v);
        return;
    }
    if (split->want_k) backward_store_keys(w, FXA_SLOT_DK, w->dk, split->ld_d, p->flags & FXA_ACCUMULATE_DK);
    if (split->want_v) backward_store_keys(w, FXA_SLOT_DV, w->dv, split->ld_v, p->flags & FXA_ACCUMULATE_DV);
}

/* Sets dK and dV of n keys to 0. */
static void backward_clear_block(const fxa__cpu_backward_worker *w, int64_t n) {
    const fxa__cpu_backward_split *split = &w->run->split;
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    size_t size = kernels->real_size;
    if (split->want_k) memset(w->dk, 0, (size_t)(n * split->ld_d) * size);
    if (split->want_v) memset(w->dv, 0, (size_t)(n * split->ld_v) * size);
    if (split->want_k) fxa__cpu_transposed_sum_clear(kernels, &w->dk_sum);
    if (split->want_v) fxa__cpu_transposed_sum_clear(kernels, &w->dv_sum);
}

/* Stores zeroes as dK and dV of keys begin..end, which are past the end of a padded sequence. */
static void backward_store_absent(fxa__cpu_backward_worker *w, int64_t begin, int64_t end) {
    const fxa__cpu_backward_split *split = &w->run->split;
    const fxa_problem *p = &w->run->p->in;
    if (split->pool || (p->flags & FXA_VARLEN)) return;
    backward_clear_block(w, 1);
    w->n_keys = 1;
    for (w->key = begin; w->key < end; w->key++) {
        if (split->want_k && !(p->flags & FXA_ACCUMULATE_DK))
            backward_store_keys(w, FXA_SLOT_DK, w->dk, split->ld_d, false);
        if (split->want_v && !(p->flags & FXA_ACCUMULATE_DV))
            backward_store_keys(w, FXA_SLOT_DV, w->dv, split->ld_v, false);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void backward_enter(fxa__cpu_backward_worker *w, int64_t group) {
    const fxa__cpu_backward_run *run = w->run;
    FXA__ASSERT(group < run->split.groups);
    fxa__cpu_kv_group_enter(&w->g, group / run->p->in.hkv, group % run->p->in.hkv);
    w->lse = run->lse + group * run->split.rows;
    w->delta = fxa__cpu_real_at(run->code->kernels, run->delta, group * run->split.rows);
    w->finite = run->finite + group * run->split.tiles;
    w->is_decode = fxa__cpu_is_decode(&run->p->in, w->g.rows);
}

/* Computes dK and dV of keys key..key+n from all row tiles, and stores them. */
static void backward_block(fxa__cpu_backward_worker *w, int64_t key, int64_t n) {
    w->key = key;
    w->n_keys = n;
    w->is_loaded = false;
    backward_clear_block(w, n);
    for (int64_t tile = 0; tile < w->run->split.tiles; tile++) fxa__cpu_backward_tile(w, tile);
    backward_store_block(w);
    fxa__cpu_progress_add(w->run->code->scores, w->run->bound, n);
}

/* Runs a task: all key blocks of a key split of a KV group, each with the rows that attend to keys of the block. */
static void backward_task(fxa__cpu_backward_worker *w, int64_t task) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_backward_split *split = &run->split;
    int64_t group = task % split->groups, key_split = task / split->groups;
    backward_enter(w, group);
    for (int i = 0; i < FXA__CPU_TAPES; i++)
        if (w->tape[i].tape) fxa__cpu_tape_batch(&w->g, &w->tape[i]);
    if (split->want_q && split->key_splits > 1) {
        w->dq = backward_dq_part(run, group, key_split);
        w->dq_has = memset(backward_dq_has(run, group, key_split), 0, (size_t)split->tiles);
    } else if (split->want_q) {
        memset(w->dq, 0, (size_t)(w->g.rows * split->ld_d) * run->code->kernels->real_size);
    }
    int64_t begin = key_split * split->split_keys, last = fxa__min_i64(begin + split->split_keys, run->p->in.sk);
    int64_t end = fxa__min_i64(last, w->g.seq.k_len), step = split->block_keys;
    for (int64_t key = begin; key < end; key += step) backward_block(w, key, fxa__min_i64(step, end - key));
    backward_store_absent(w, fxa__max_i64(begin, end), last);
    fxa__cpu_progress_add(run->code->scores, run->bound, last - fxa__max_i64(begin, end));
    if (split->want_q && split->key_splits == 1) {
        backward_store_dq(w, w->dq, 0, w->g.rows);
        backward_store_dq_absent(w);
    }
}

/* ---- Chains ------------------------------------------------------------------------------------------------------ */

/* Stores dK or dV of the entire page pool for one KV head. */
static void backward_store_pool(const fxa__cpu_backward_run *run, const fxa_operand *t, fxa_slot slot, int64_t hkv,
                                void *pool, int64_t ld, int64_t d, bool add) {
    int64_t size = run->p->in.page_size, bytes = (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    for (int64_t row = 0; row < run->split.pool_rows; row++) {
        int64_t at = row / size * t->stride[0] + hkv * t->stride[1] + row % size * t->stride[2];
        fxa__cpu_address to = {(char *)run->bound->slot[slot] + at * bytes, t->dtype, t->stride[3], d, 0, 1};
        backward_store(run, slot, to, fxa__cpu_real_at(run->code->kernels, pool, row * ld), 1, add);
    }
}

/* Runs a chain of tasks with paged K and V. Batch entries may share pages, so the chain computes one KV head after the
 * other, and sums the gradients of a head over all batch entries in order. */
static void backward_chain_paged(fxa__cpu_backward_worker *w, int64_t chain) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_backward_split *split = &run->split;
    const fxa_problem *p = &run->p->in;
    size_t size = run->code->kernels->real_size;
    for (int64_t hkv = chain; hkv < p->hkv; hkv += split->chains) {
        if (split->want_k) memset(w->dk_pool, 0, (size_t)(split->pool_rows * split->ld_d) * size);
        if (split->want_v) memset(w->dv_pool, 0, (size_t)(split->pool_rows * split->ld_v) * size);
        for (int64_t task = hkv; task < split->tasks; task += p->hkv) backward_task(w, task);
        if (split->want_k)
            backward_store_pool(run, &p->dk, FXA_SLOT_DK, hkv, w->dk_pool, split->ld_d, p->d_qk,
                                p->flags & FXA_ACCUMULATE_DK);
        if (split->want_v)
            backward_store_pool(run, &p->dv, FXA_SLOT_DV, hkv, w->dv_pool, split->ld_v, p->d_v,
                                p->flags & FXA_ACCUMULATE_DV);
    }
}

/* Runs the tasks of a chain (a sequence of tasks that add to the same sums) one after the other, so that the sums are
 * added in a fixed order. */
static void backward_chain(fxa__cpu_backward_worker *w, int64_t chain) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_backward_split *split = &run->split;
    if (split->want_sums) {
        fxa__tape_run *derivative = &w->tape[run->code->joined ? FXA__CPU_TAPE_SCORE : FXA__CPU_TAPE_DERIVATIVE];
        derivative->sums = run->sums + chain * run->p->program->n_tensors;
        derivative->dparams = run->p->in.param_grads ? run->dparams + chain * run->p->program->n_params : NULL;
    }
    if (split->pool)
        backward_chain_paged(w, chain);
    else if (split->chains == split->tasks)
        backward_task(w, chain);
    else
        for (int64_t task = 0; task < split->tasks; task++)
            if (fxa__cpu_backward_chain_of(split, &run->p->in, task) == chain) backward_task(w, task);
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

typedef void (*backward_item)(fxa__cpu_backward_worker *w, int64_t item);

typedef struct backward_phase {
    const fxa__cpu_backward_run *run;
    backward_item item;
    int64_t items;
    atomic_llong next;
} backward_phase;

static void backward_work(void *arg, int32_t worker) {
    backward_phase *phase = arg;
    /* These calls of enter and leave serve code->kernels too: its enter and leave are NULL or the same functions. */
    const fxa__cpu_kernels *kernels = phase->run->code->scores;
    if (kernels->enter) kernels->enter();
    for (int64_t i; (i = atomic_fetch_add_explicit(&phase->next, 1, memory_order_relaxed)) < phase->items;)
        phase->item(&phase->run->workers[worker], i);
    if (kernels->leave) kernels->leave();
}

/* Runs all items of a phase and waits for them. */
static void backward_phase_run(const fxa__cpu_backward_run *run, int32_t width, backward_item item, int64_t items) {
    backward_phase phase = {.run = run, .item = item, .items = items};
    if (items > 0)
        fxa__pool_run(run->bound->pool, run->bound->parallel_user, (int32_t)fxa__min_i64(width, items), backward_work,
                      &phase);
}

/* Returns the number of work items of the phase that prepares sums. */
static int64_t backward_prepare_items(const fxa__cpu_backward_run *run) {
    return run->split.groups * run->split.tiles + fxa__cpu_captured_sum_pieces(run);
}

static void backward_prepare_item(fxa__cpu_backward_worker *w, int64_t item) {
    const fxa__cpu_backward_run *run = w->run;
    int64_t tiles = run->split.groups * run->split.tiles;
    if (item >= tiles) {
        fxa__cpu_captured_sum_clear(run, item - tiles);
        return;
    }
    backward_enter(w, item / run->split.tiles);
    fxa__cpu_backward_delta(w, item % run->split.tiles);
}

/* Adds dQ of the key splits that have written a tile, in order, and stores the sum. */
static void backward_merge_dq(fxa__cpu_backward_worker *w, int64_t group, int64_t tile) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_backward_split *split = &run->split;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    int64_t first, n;
    backward_enter(w, group);
    if (tile == 0) backward_store_dq_absent(w);
    if (!fxa__cpu_backward_tile_rows(w, tile, &first, &n)) return;
    int64_t at = first * split->ld_d, reals = n * split->ld_d;
    void *sum = NULL;
    for (int64_t i = 0; i < split->key_splits; i++) {
        void *part = backward_dq_part(run, group, i);
        if (!backward_dq_has(run, group, i)[tile]) continue;
        if (sum)
            kernels->store(fxa__cpu_real_at(kernels, sum, at), kernels->real_dtype, 1,
                           fxa__cpu_real_at(kernels, part, at), reals, 1, true);
        else
            sum = part;
    }
    if (!sum) {
        sum = backward_dq_part(run, group, 0);
        memset(fxa__cpu_real_at(kernels, sum, at), 0, (size_t)reals * kernels->real_size);
    }
    backward_store_dq(w, sum, first, n);
}

/* Returns the number of tiles whose dQ is the sum of several key splits. */
static int64_t backward_merges(const fxa__cpu_backward_run *run) {
    return run->split.want_q && run->split.key_splits > 1 ? run->split.groups * run->split.tiles : 0;
}

/* Returns the number of work items of the phase that merges and stores sums. */
static int64_t backward_finish_items(const fxa__cpu_backward_run *run) {
    int64_t sinks = run->p->in.flags & FXA_GRAD_SINKS ? run->p->in.hq : 0;
    return backward_merges(run) + fxa__cpu_captured_sum_pieces(run) + sinks;
}

static void backward_finish_item(fxa__cpu_backward_worker *w, int64_t item) {
    const fxa__cpu_backward_run *run = w->run;
    int64_t merges = backward_merges(run), pieces = fxa__cpu_captured_sum_pieces(run);
    if (item < merges)
        backward_merge_dq(w, item / run->split.tiles, item % run->split.tiles);
    else if (item < merges + pieces)
        fxa__cpu_captured_sum_store(run, item - merges);
    else
        fxa__cpu_sink_store(run, item - merges - pieces);
}

bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes) {
    fxa__cpu_backward_run run = {.code = code, .p = p, .split = fxa__cpu_backward_split_make(code, p)};
    return fxa__cpu_backward_carve(&run, c, bytes);
}

bool fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound) {
    fxa__cpu_backward_run run = {.code = code, .p = p, .bound = bound, .split = fxa__cpu_backward_split_make(code, p)};
    const fxa__cpu_backward_split *split = &run.split;
    const fxa_problem *in = &p->in;
    size_t bytes;
    if (!fxa__cpu_backward_carve(&run, fxa__carver_make(bound->workspace), &bytes) || bytes > bound->workspace_size)
        return false;
    for (int64_t i = 0; i < split->ones; i++) fxa__cpu_real_set(code->kernels, run.ones, i, 1);
    fxa__cpu_tensors_scan(code, bound, run.ranges);
    for (int64_t i = 0; split->want_sums && i < split->chains * p->program->n_params; i++) run.dparams[i] = 0;
    double pairs = (double)split->groups * (double)split->rows * (double)in->sk;
    int32_t width = pairs * 10 * (double)in->d_qk < BACKWARD_SMALL_FLOPS ? 1 : code->width;
    fxa__progress_begin(bound->progress, split->entries, in->hkv, in->sk);
    backward_phase_run(&run, width, backward_prepare_item, backward_prepare_items(&run));
    backward_phase_run(&run, width, backward_chain, split->chains);
    backward_phase_run(&run, width, backward_finish_item, backward_finish_items(&run));
    fxa__cpu_param_sums_store(&run);
    return true;
}
