/* SPDX-License-Identifier: Apache-2.0
 *
 * The workspace of a backward run. One function computes its size and sets its pointers.
 *
 * These parts grow with the sequence length: LSE and delta (two numbers per row); dQ of a kv group as real, for each
 * worker, or for each key split of each group if keys are split (at most BACKWARD_PARTS_BYTES); for paged K and V, dK
 * and dV of the page pool of one KV head, for each worker; f64 sums of the captured tensors whose gradients are
 * requested, unless each (row, key) pair has its own element.
 */
#include "backward.h"

#include "../../../base/carve.h"
#include "../../../base/num.h"

/* Allocates a matrix [rows,columns] of real. Returns NULL if not `wanted`. */
static void *backward_carve_matrix(fxa__carver *c, const fxa__cpu_backward_run *run, bool wanted, int64_t rows,
                                   int64_t columns) {
    return wanted ? fxa__carve_matrix(c, rows, columns, run->code->kernels->real_size) : NULL;
}

static void backward_carve_tape(fxa__carver *c, const fxa__cpu_backward_run *run, const fxa__tape *tape,
                                fxa__tape_run *out) {
    const fxa__cpu_backward_split *split = &run->split;
    if (!tape) return;
    void *scratch = fxa__tape_carve(c, tape, split->tile_rows, split->block_keys);
    if (c->base)
        *out = fxa__tape_run_make(tape, run->bound->params, run->bound->tensors, scratch, split->tile_rows,
                                  split->block_keys);
}

/* Allocates the panels of a packed right operand B [k,n], if `wanted`. */
static void backward_carve_b(fxa__carver *c, const fxa__cpu_kernels *kernels, bool wanted, int64_t k, int64_t n,
                             fxa__cpu_packed_b *b) {
    if (wanted) b->panels = fxa__carve(c, kernels->format->b_size(kernels, k, n), kernels->real_size);
}

/* Allocates a transposed sum: out [block_keys,ld_out] += W^T X for several X [tile_rows,d]. If the sum is not `wanted`,
 * only sets its sizes. */
static void backward_carve_sum(fxa__carver *c, const fxa__cpu_backward_run *run, bool wanted, int64_t d, void *out,
                               int64_t ld_out, fxa__cpu_transposed_sum *sum) {
    const fxa__cpu_kernels *kernels = run->code->kernels;
    *sum = (fxa__cpu_transposed_sum){
        .capacity = run->split.tile_rows, .d = d, .columns = run->split.block_keys, .out = out, .ld_out = ld_out};
    kernels->format->sum_layout(kernels, sum);
    if (!wanted) return;
    sum->x = fxa__carve(c, sum->x_size, kernels->real_size);
    sum->sums = fxa__carve(c, sum->sums_size, kernels->real_size);
    sum->room = fxa__carve(c, sum->room_size, kernels->real_size);
    sum->ones = run->ones;
}

/* Allocates the arrays of a worker. */
static void backward_carve_worker(fxa__carver *c, const fxa__cpu_backward_run *run, fxa__cpu_backward_worker *w) {
    const fxa__cpu_backward_split *split = &run->split;
    int64_t d = run->p->in.d_qk, dv = run->p->in.d_v, rows = split->tile_rows, keys = split->block_keys;
    int64_t wide = fxa__max_i64(split->ld_d, split->ld_v);
    w->run = run;
    w->k = backward_carve_matrix(c, run, true, keys, wide);
    backward_carve_b(c, run->code->scores, true, d, keys, &w->k_t);
    backward_carve_b(c, run->code->kernels, split->want_ds, dv, keys, &w->v_t);
    backward_carve_b(c, run->code->kernels, split->want_q, keys, d, &w->k_n);
    w->dk = backward_carve_matrix(c, run, split->want_k, keys, split->ld_d);
    w->dv = backward_carve_matrix(c, run, split->want_v, keys, split->ld_v);
    w->q = backward_carve_matrix(c, run, true, rows, wide);
    w->dout = backward_carve_matrix(c, run, true, rows, split->ld_v);
    backward_carve_sum(c, run, split->want_k, d, w->dk, split->ld_d, &w->dk_sum);
    backward_carve_sum(c, run, split->want_v, dv, w->dv, split->ld_v, &w->dv_sum);
    w->s = backward_carve_matrix(c, run, true, rows, split->ld);
    w->p = split->keeps_scores ? backward_carve_matrix(c, run, true, rows, split->ld) : w->s;
    w->ds = backward_carve_matrix(c, run, split->want_ds, rows, split->ld);
    w->dq = backward_carve_matrix(c, run, split->want_q && split->key_splits == 1, split->rows, split->ld_d);
    w->dk_pool = backward_carve_matrix(c, run, split->pool && split->want_k, split->pool_rows, split->ld_d);
    w->dv_pool = backward_carve_matrix(c, run, split->pool && split->want_v, split->pool_rows, split->ld_v);
    w->column = backward_carve_matrix(c, run, true, 1, rows);
    w->h = fxa__carve(c, rows, sizeof(int32_t));
    w->q_at = fxa__carve(c, rows, sizeof(int32_t));
    w->k_at = fxa__carve(c, keys, sizeof(int32_t));
    w->keep = fxa__carve(c, keys + FXA__CPU_KEEP_CAPACITY, sizeof(int32_t));
    fxa__cpu_range_cache *cache = fxa__carve(c, fxa__cpu_range_cache_count(run->code, run->p), sizeof *cache);
    fxa__cpu_masked_tile_carve(c, run->code, rows, keys, &w->masked);
    w->sub_blocks = fxa__carve(c, fxa__cpu_sub_block_max_count(run->code, rows, keys), sizeof *w->sub_blocks);
    const fxa__tape *tapes[FXA__CPU_TAPES] = {run->code->score, run->code->masked, run->code->derivative,
                                              run->code->bprop};
    for (int i = 0; i < FXA__CPU_TAPES; i++) backward_carve_tape(c, run, tapes[i], &w->tape[i]);
    if (!c->base) return;
    w->g = (fxa__cpu_kv_group){.code = run->code, .p = run->p, .bound = run->bound, .ranges = run->ranges};
    fxa__cpu_range_cache_clear(&w->g, cache);
    w->tape[FXA__CPU_TAPE_BPROP].params = run->bound->bprop_params;
    w->tape[FXA__CPU_TAPE_BPROP].tensors = run->bound->bprop_tensors;
}

/* Allocates the sums of gradients of captured tensors for one chain (a sequence of tasks that add to the same sums). A
 * sum that all chains share is allocated with chain 0. */
static void backward_carve_chain_sums(fxa__carver *c, const fxa__cpu_backward_run *run, int64_t chain) {
    const fxa_program *program = run->p->program;
    for (int32_t t = 0; t < program->n_tensors; t++) {
        const fxa_capture *capture = &run->p->in.captures[t];
        bool shared = run->split.shared >> t & 1;
        fxa__tape_sum sum = {.view = {.rank = program->tensors[t].rank}};
        int64_t n = 1;
        for (int32_t i = sum.view.rank - 1; i >= 0; i--) {
            sum.view.size[i] = capture->size[i];
            sum.view.stride[i] = n;
            if (!fxa__mul_i64(n, capture->size[i], &n)) n = 0; /* n overflows only if another axis has size 0 */
        }
        if (run->split.one_pair_per_element >> t & 1)
            sum = (fxa__tape_sum){.view = c->base ? run->bound->dtensors[t] : sum.view, .one_pair_per_element = true};
        else if (capture->grad && (chain == 0 || !shared))
            sum.sum = fxa__carve(c, n, sizeof(double));
        else if (capture->grad && c->base)
            sum.sum = run->sums[t].sum;
        if (c->base) run->sums[chain * program->n_tensors + t] = sum;
    }
}

bool fxa__cpu_backward_carve(fxa__cpu_backward_run *run, fxa__carver c, size_t *bytes) {
    const fxa__cpu_backward_split *split = &run->split;
    bool has_dq_parts = split->want_q && split->key_splits > 1;
    int64_t chains = split->want_sums ? split->chains : 0;
    run->ranges = fxa__carve(&c, run->p->program->n_tensors, sizeof(fxa_tensor_range));
    fxa__cpu_shared_mask_bits_carve(&c, run->code, run->p, split->tile_rows, split->block_keys, &run->kept);
    run->ones = backward_carve_matrix(&c, run, true, 1, split->ones);
    run->lse = fxa__carve_matrix(&c, split->groups, split->rows, sizeof(double));
    run->delta = backward_carve_matrix(&c, run, true, split->groups, split->rows);
    run->finite = fxa__carve(&c, fxa__cpu_backward_size_mul(split->groups, split->tiles), 1);
    run->dq_parts = backward_carve_matrix(&c, run, has_dq_parts, fxa__cpu_backward_size_mul(split->tasks, split->rows),
                                          split->ld_d);
    run->dq_has = fxa__carve(&c, has_dq_parts ? fxa__cpu_backward_size_mul(split->tasks, split->tiles) : 0, 1);
    run->sums = fxa__carve(&c, chains * run->p->program->n_tensors, sizeof(fxa__tape_sum));
    run->dparams = fxa__carve(&c, chains * run->p->program->n_params, sizeof(double));
    for (int64_t chain = 0; chain < chains; chain++) backward_carve_chain_sums(&c, run, chain);
    run->workers = fxa__carve(&c, run->code->width, sizeof(fxa__cpu_backward_worker));
    for (int32_t i = 0; i < run->code->width; i++) {
        fxa__cpu_backward_worker w = {.run = NULL};
        backward_carve_worker(&c, run, &w);
        if (!c.base) continue;
        fxa__cpu_backward_worker *own = &run->workers[i];
        *own = w;
        fxa__cpu_masked_tile_start(&own->masked, &own->g, &run->kept, split->tile_rows, split->block_keys);
    }
    *bytes = c.used;
    return !c.failed;
}
