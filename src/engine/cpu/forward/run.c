/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass: its workspace, the passes of a task over its keys, and the run. Workers first take the tasks of all
 * kv groups (a KV head with its query heads), then merge the results of kv groups whose keys are split. One function
 * computes the size of the workspace and allocates it.
 */
#include "forward.h"

#include "../../../base/carve.h"
#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../problem/work_estimate.h"

/* Number of floating-point operations below which waking a thread costs more than it saves: on two cores of Zen 3 a
 * wake takes 25 to 35 us, in which one core computes 2.5 to 3.5 million operations. */
#define FORWARD_SMALL_FLOPS 2e6

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* Allocates one worker's memory. */
static void forward_carve_worker(fxa__carver *c, const fxa__cpu_forward_run *run, fxa__cpu_forward_worker *w) {
    const fxa__cpu_kernels *kernels = run->code->kernels;
    const fxa__cpu_sizes *sizes = &run->sizes;
    const fxa_problem *p = &run->p->in;
    size_t real = kernels->real_size;
    int64_t rows = sizes->tile_rows, product_rows = fxa__max_i64(sizes->rows, FXA__CPU_ROW_BLOCK);
    w->q = fxa__carve_matrix(c, rows, sizes->ldq, real);
    w->o = fxa__carve_matrix(c, rows, sizes->ldo, real);
    w->k.panels = fxa__carve(c, kernels->format->b_size(kernels, p->d_qk, sizes->keys), real);
    w->v.panels = fxa__carve(c, kernels->format->b_size(kernels, sizes->keys, p->d_v), real);
    w->x = fxa__carve(c, fxa__max_i64(sizes->keys * sizes->ldv, kernels->nr * p->d_qk), real);
    w->t = w->scores = fxa__carve_matrix(c, product_rows, sizes->ldt, real);
    w->beta = w->betas = fxa__carve(c, product_rows, real);
    w->state.m = fxa__carve(c, rows, sizeof(double));
    w->state.l = fxa__carve(c, rows, sizeof(double));
    w->state.unit = fxa__carve(c, rows, sizeof(double));
    w->state.nan = fxa__carve(c, rows, 1);
    w->h = fxa__carve(c, rows, sizeof(int32_t));
    w->qc = fxa__carve(c, rows, sizeof(int32_t));
    w->kc = fxa__carve(c, sizes->keys, sizeof(int32_t));
    w->keep = fxa__carve(c, sizes->keys + FXA__CPU_KEEP_CAPACITY, sizeof(int32_t));
    w->row = fxa__carve(c, p->d_v, sizeof(double));
    w->old = fxa__carve(c, p->d_v, sizeof(double));
    w->g.range_cache = fxa__carve(c, fxa__cpu_range_cache_count(run->code, run->p), sizeof *w->g.range_cache);
    fxa__cpu_masked_tile_carve(c, run->code, rows, sizes->keys, &w->masked);
    const fxa__tape *tapes[2] = {run->code->score, run->code->masked};
    for (int i = 0; i < 2; i++) w->tape[i].scratch = fxa__tape_carve(c, tapes[i], rows, sizes->keys);
}

/* Computes the sizes of a run, which do not depend on its pointers. If the arena `all` has memory (a base address),
 * also sets the pointers to the workspace. Returns false on overflow. */
static bool forward_carve(fxa__cpu_forward_run *run, fxa__carver all, size_t *bytes) {
    const fxa_problem *p = &run->p->in;
    fxa__carver own = fxa__carver_make(NULL);
    fxa__cpu_forward_worker w;
    run->entries = fxa__entries_with_work(run->p);
    int64_t groups = run->entries * p->hkv, tasks = 0, results = 0;
    run->sizes = fxa__cpu_forward_sizes(run->code, p);
    fxa__cpu_forward_bound(run);
    forward_carve_worker(&own, run, &w);
    run->worker_bytes = own.used;
    double flops =
        2.0 * (double)run->entries * (double)p->hq * (double)p->sq * (double)p->sk * (double)(p->d_qk + p->d_v);
    if (!fxa__mul_i64(groups, run->tasks, &tasks)) return false;
    run->workers = flops < FORWARD_SMALL_FLOPS ? 1 : (int32_t)fxa__max_i64(1, fxa__min_i64(tasks, run->code->width));
    run->ranges = fxa__carve(&all, run->p->program->n_tensors, sizeof *run->ranges);
    if (!fxa__mul_i64(groups, run->result_rows, &results)) return false;
    fxa__cpu_shared_mask_bits_carve(&all, run->code, run->p, run->sizes.tile_rows, run->sizes.keys, &run->kept);
    run->results = fxa__carve(&all, results, sizeof *run->results);
    run->results_o = fxa__carve_matrix(&all, results, run->sizes.ldo, run->code->kernels->real_size);
    for (int32_t i = 0; all.after && i < run->workers; i++) {
        fxa__carver one = fxa__carver_within(&all);
        one.after += (size_t)i * run->worker_bytes;
        forward_carve_worker(&one, run, &w);
    }
    run->worker_memory = fxa__carve(&all, run->workers, run->worker_bytes);
    *bytes = all.used;
    return !own.failed && !all.failed;
}

bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes) {
    fxa__cpu_forward_run run = {.code = code, .p = p};
    return forward_carve(&run, c, bytes);
}

/* ---- The passes of a task ---------------------------------------------------------------------------------------- */

void fxa__cpu_softmax_clear(fxa__cpu_forward_worker *w) {
    for (int64_t i = 0; i < w->task.n; i++) {
        w->state.m[i] = -INFINITY;
        w->state.l[i] = 0;
        w->state.nan[i] = 0;
    }
}

void fxa__cpu_each_block(fxa__cpu_forward_worker *w, fxa__cpu_block_visit visit) {
    const fxa__cpu_forward_task *task = &w->task;
    int64_t begin = 0, end = task->key_end - task->key, step = w->run->sizes.keys;
    if (!w->split.is_decode &&
        fxa__cpu_mask_classify(&w->g, task->first, task->n, task->key, end, &begin, &end) == FXA_TILE_EMPTY)
        return;
    for (int64_t key = task->key + begin, last = task->key + end; key < last; key += step)
        if (fxa__cpu_masked_tile_set_keys(&w->masked, key, fxa__min_i64(step, last - key))) visit(w);
}

/* Makes one pass over the keys of a task of many rows, which computes m, l and o. */
static void forward_attend(fxa__cpu_forward_worker *w, fxa__cpu_block_visit visit) {
    fxa__cpu_softmax_clear(w);
    fxa__cpu_each_block(w, visit);
    fxa__cpu_attend_finish(w);
}

/* Computes the worker's task with up to three passes over its keys:
 *
 *   1. with packed V, or V as stored for decoding
 *   2. with unpacked V, if an output is not finite: packed products give 0 * inf = NaN, but keys of weight 0 must
 *      not count
 *   3. with f64 sums, if an output is still not finite and V has finite values large enough to overflow
 */
static void forward_task(fxa__cpu_forward_worker *w, int64_t group) {
    const fxa__cpu_forward_task *task = &w->task;
    w->v_is_unpacked = false;
    for (int64_t i = 0; i < task->n; i++) w->state.unit[i] = 1;
    fxa__cpu_softmax_rows(w);
    fxa__cpu_masked_tile_set_rows(&w->masked, task->tile, task->first, task->n, w->h, w->qc);
    if (w->split.is_decode) {
        fxa__cpu_softmax_clear(w);
        fxa__cpu_decode_start(w);
        fxa__cpu_each_block(w, fxa__cpu_decode_block);
    } else {
        fxa__cpu_attend_start(w);
        forward_attend(w, fxa__cpu_attend_block);
    }
    int64_t overflow = fxa__cpu_overflow_find(w, 0);
    if (overflow < task->n && !w->split.is_decode && !w->v_is_unpacked) {
        forward_attend(w, fxa__cpu_attend_block_unpacked);
        overflow = fxa__cpu_overflow_find(w, 0);
    }
    if (overflow < task->n) fxa__cpu_rescaled_sums(w, overflow);
    fxa__cpu_output(w, group);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static fxa__cpu_forward_worker forward_worker(const fxa__cpu_forward_run *run, int32_t worker) {
    fxa__cpu_forward_worker w = {.run = run, .kernels = run->code->kernels, .group = -1};
    fxa__carver c = fxa__carver_make(run->worker_memory + (size_t)worker * run->worker_bytes);
    w.g = (fxa__cpu_kv_group){.code = run->code, .p = run->p, .bound = run->bound, .ranges = run->ranges};
    forward_carve_worker(&c, run, &w);
    FXA__ASSERT(c.used == run->worker_bytes);
    fxa__cpu_range_cache_clear(&w.g, w.g.range_cache);
    return w;
}

/* Sets the worker's kv group and its division. Consecutive tasks of a worker often have the same kv group. */
static void forward_enter(fxa__cpu_forward_worker *w, int64_t group) {
    int64_t hkv = w->g.p->in.hkv;
    if (group == w->group) return;
    w->group = group;
    fxa__cpu_kv_group_enter(&w->g, group / hkv, group % hkv);
    w->split = fxa__cpu_forward_split_make(w->run, w->g.seq.q_len, w->g.seq.k_len);
    FXA__ASSERT(w->split.tiles * w->split.key_splits <= w->run->tasks);
}

/* Sets the worker's task to task i of the kv group. Returns false if there is no such task. The last tiles come first,
 * because they have the most attended pairs if the mask is causal. */
static bool forward_select(fxa__cpu_forward_worker *w, int64_t i) {
    const fxa__cpu_forward_split *split = &w->split;
    fxa__cpu_forward_task *task = &w->task;
    if (i >= split->tiles * split->key_splits) return false;
    int64_t tile = split->tiles - 1 - i / split->key_splits, end = w->g.rows;
    task->tile = split->tiles_per_head ? tile % split->tiles_per_head : tile;
    task->key_split = i % split->key_splits;
    task->key = fxa__min_i64(task->key_split * split->split_keys, w->g.seq.k_len);
    task->key_end = fxa__min_i64(task->key + split->split_keys, w->g.seq.k_len);
    task->first = tile * split->tile_rows;
    if (split->tiles_per_head) {
        int64_t head = tile / split->tiles_per_head * w->g.seq.q_len;
        task->first = head + task->tile * split->tile_rows;
        end = head + w->g.seq.q_len;
    }
    task->n = fxa__min_i64(split->tile_rows, end - task->first);
    return task->n > 0;
}

/* Body of a worker: runs tasks until none is left. */
static void forward_tasks(void *arg, int32_t worker) {
    fxa__cpu_forward_run *run = arg;
    fxa__cpu_forward_worker w = forward_worker(run, worker);
    fxa__cpu_masked_tile_start(&w.masked, &w.g, &run->kept, run->sizes.tile_rows, run->sizes.keys);
    int64_t total = run->entries * run->p->in.hkv * run->tasks;
    if (w.kernels->enter) w.kernels->enter();
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < total;) {
        int64_t group = i / run->tasks, number = i % run->tasks;
        forward_enter(&w, group);
        if (number == 0 && !(run->p->in.flags & FXA_VARLEN)) fxa__cpu_output_absent(&w);
        if (forward_select(&w, number)) forward_task(&w, group);
        fxa__cpu_progress_add(w.kernels, run->bound, 1);
    }
    if (w.kernels->leave) w.kernels->leave();
}

static void forward_merge_splits(void *arg, int32_t worker) {
    fxa__cpu_forward_run *run = arg;
    fxa__cpu_forward_worker w = forward_worker(run, worker);
    int64_t total = run->entries * run->p->in.hkv;
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < total;) {
        forward_enter(&w, i);
        if (w.split.key_splits > 1) fxa__cpu_output_merge_splits(&w, i);
    }
}

bool fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound) {
    fxa__cpu_forward_run run = {.code = code, .p = p, .bound = bound};
    size_t bytes;
    if (!forward_carve(&run, fxa__carver_make(bound->workspace), &bytes) || bytes > bound->workspace_size) return false;
    fxa__cpu_tensors_scan(code, bound, run.ranges);
    atomic_init(&run.next, 0);
    fxa__progress_begin(bound->progress, run.entries, p->in.hkv, run.tasks);
    fxa__pool_run(bound->pool, bound->parallel_user, run.workers, forward_tasks, &run);
    if (run.result_rows == 0) return true;
    atomic_store(&run.next, 0);
    fxa__pool_run(bound->pool, bound->parallel_user, run.workers, forward_merge_splits, &run);
    return true;
}
