/* SPDX-License-Identifier: Apache-2.0
 *
 * How a backward run is cut into blocks, tiles, chunks, items and lanes, and the workspace that follows from it. Size
 * and pointers come from one function, so they cannot disagree.
 *
 * The workspace grows with the sequence in these parts only: LSE and delta (two numbers per row); the dQ of a group, in
 * real, for each worker, or for each chunk of each group when there are several (at most BACK_PARTS_BYTES); for pages,
 * dK and dV of one KV head of the pool for each worker; and f64 sums of the captured tensors whose gradients are asked
 * for, but for those in which each pair has an element for itself.
 */
#include "backward.h"

#include "../../../base/carve.h"
#include "../../../base/invariant.h"
#include "../../../lower/grad_class.h"
#include "../../../problem/scales.h"
#include "../../../problem/work.h"

/* Bounds of memory and of what waits for a thread are guesses, not tuned: as much memory as a problem of that size has
 * anyway, as many units and lanes as large machines have threads. */
#define BACK_PARTS_BYTES ((int64_t)512 << 20) /* of dQ in chunks */
#define BACK_SUM_BYTES ((int64_t)64 << 20)    /* of sums that every lane has for itself */
enum {
    BACK_ITEMS = 32, /* keys get chunks while there are fewer items than this */
    BACK_CHUNKS = 8, /* at most. Zen 3, H 1, S 4096, D 64: 4 chunks cost one thread nothing that could be seen */
    BACK_LANES = 32, /* at most, where lanes cost memory */
    /* Keys of a block, at most, and bytes of one matrix [block,D]: D of 128 gets 384 keys in f32. The prototype had 192
     * keys, on Zen 3; twice that was chosen by a measurement of which no figures were kept. */
    BACK_KEYS = 384,
    BACK_BLOCK_BYTES = 196608,
};

static int64_t shares_mul(int64_t a, int64_t b) { /* saturates; the layout then finds that it does not fit */
    int64_t x;
    return fxa__mul_i64(a, b, &x) ? x : INT64_MAX / 4;
}

/* ---- Blocks, tiles, chunks ------------------------------------------------------------------------------------- */

static void shares_tiles(fxa__back_shares *c, const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    int64_t mr = kernels->mr, nr = kernels->nr, wide = fxa__max_i64(1, fxa__max_i64(p->d_qk, p->d_v));
    int64_t step = nr % mr == 0 ? nr : nr * 3;
    FXA__ASSERT(step % mr == 0); /* it is their lcm, for every set there is */
    int64_t block = BACK_BLOCK_BYTES / (wide * (int64_t)kernels->real_size);
    block = fxa__max_i64(step, fxa__min_i64(block, BACK_KEYS) / step * step);
    c->block = fxa__min_i64(block, fxa__round_up(fxa__max_i64(p->sk, 1), nr));
    c->rows = c->entries ? shares_mul(p->hq / fxa__max_i64(p->hkv, 1), p->sq) : 0;
    c->tile = fxa__max_i64(1, fxa__min_i64(FXA__BACK_TILE, c->rows));
    c->tiles = c->rows == 0 ? 0 : shares_mul(p->hq / fxa__max_i64(p->hkv, 1), fxa__div_up(p->sq, c->tile));
    c->ld_d = fxa__round_up(p->d_qk, nr);
    c->ld_v = fxa__round_up(p->d_v, nr);
    c->ld = c->block + 16;
    c->ones = fxa__max_i64(wide, fxa__max_i64(c->tile, c->block));
}

static void shares_chunks(fxa__back_shares *c, const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    int64_t blocks = fxa__div_up(fxa__max_i64(p->sk, 1), c->block);
    c->groups = shares_mul(c->entries, p->hkv);
    c->chunks = 1;
    if (c->groups > 0 && !c->pool) {
        c->chunks = fxa__min_i64(BACK_CHUNKS, fxa__div_up(BACK_ITEMS, c->groups));
        c->chunks = fxa__max_i64(1, fxa__min_i64(c->chunks, blocks / 2));
        int64_t part = shares_mul(shares_mul(c->rows, c->ld_d), shares_mul(c->groups, (int64_t)kernels->real_size));
        while (c->want_q && c->chunks > 1 && c->chunks > BACK_PARTS_BYTES / fxa__max_i64(part, 1)) c->chunks--;
    }
    int64_t per_chunk = fxa__div_up(blocks, c->chunks);
    c->chunks = fxa__div_up(blocks, per_chunk);
    c->chunk = per_chunk * c->block;
    c->items = shares_mul(c->chunks, c->groups);
}

/* ---- Lanes ----------------------------------------------------------------------------------------------------- */

/* Different indices give different elements: coordinates count up from 0 or more. That none wraps has been checked. */
static bool shares_map_is_plain(const fxa_index_map *map) {
    return map->kind == FXA_MAP_AFFINE && !map->has_offset && map->base >= 0 && map->step > 0;
}

/* Axes along which items never meet in tensor t. */
static uint32_t shares_tensor_axes(const fxa__problem *p, const fxa_program *d, int32_t t) {
    const fxa_problem *in = &p->in;
    uint32_t separators = fxa__lower_grad_separators(d, t), axes = 0;
    const struct {
        fxa_input input;
        uint32_t axis;
        bool plain;
    } each[] = {{FXA_INPUT_B, FXA__BACK_B, shares_map_is_plain(&in->map_b)},
                {FXA_INPUT_H, FXA__BACK_H, shares_map_is_plain(&in->map_h)},
                {FXA_INPUT_K, FXA__BACK_CHUNK, shares_map_is_plain(&in->map_k)},
                {FXA_INPUT_K_ROW, FXA__BACK_CHUNK, true}};
    for (size_t e = 0; e < sizeof each / sizeof each[0]; e++)
        if (each[e].plain && separators >> each[e].input & 1) axes |= each[e].axis;
    return axes;
}

/* Rows may lie anywhere among the coordinates, also below 0, where an index counts from the end. */
static bool shares_moves_rows(const fxa_problem *p) {
    int64_t lo, hi;
    fxa__q_shift_range(p, &lo, &hi);
    return lo != 0 || hi != 0;
}

/* Returns true if rows have elements of their own by one of the inputs that index them. */
static bool shares_rows_own(const fxa_problem *p, uint32_t inputs) {
    if (p->sq <= 1 || inputs & 1u << FXA_INPUT_Q_ROW) return true;
    return inputs & 1u << FXA_INPUT_Q && shares_map_is_plain(&p->map_q) && !shares_moves_rows(p);
}

/* Returns true if each pair has an element of tensor t for itself, and those of a row lie evenly: by k alone. */
static bool shares_tensor_once(const fxa__problem *p, const fxa_program *d, int32_t t) {
    const fxa_problem *in = &p->in;
    uint32_t wanted = (in->b > 1 ? 1u << FXA_INPUT_B : 0u) | (in->hq > 1 ? 1u << FXA_INPUT_H : 0u);
    const uint32_t keys = 1u << FXA_INPUT_K | 1u << FXA_INPUT_K_ROW;
    uint32_t found;
    if (!shares_map_is_plain(&in->map_b) || !shares_map_is_plain(&in->map_h) || !shares_map_is_plain(&in->map_k))
        return false;
    if (!fxa__lower_grad_is_injective(d, t, &found) || (found & wanted) != wanted) return false;
    return (found & keys) == 1u << FXA_INPUT_K && shares_rows_own(in, found);
}

static int64_t shares_tensor_bytes(const fxa__problem *p, int32_t t) {
    int64_t n = sizeof(double);
    for (int32_t i = 0; i < p->program->tensors[t].rank; i++) n = shares_mul(n, p->in.captures[t].size[i]);
    return n;
}

static int64_t shares_lanes(const fxa__back_shares *c, const fxa_problem *p, uint32_t axes) {
    return shares_mul(shares_mul(axes & FXA__BACK_B ? p->b : 1, axes & FXA__BACK_H ? p->hkv : 1),
                      axes & FXA__BACK_CHUNK ? c->chunks : 1);
}

/* Small tensors are summed by every lane for itself. Large ones have one sum, and lanes only along axes on which
 * items do not meet in it; if there are none, as many sums as memory allows. */
static void shares_sums(fxa__back_shares *c, const fxa__problem *p, const fxa_program *d) {
    int64_t all = 0, small = 0;
    uint32_t axes = c->lane_axes;
    for (int32_t t = 0; t < p->program->n_tensors; t++) {
        if (p->in.captures[t].grad && shares_tensor_once(p, d, t)) {
            c->once |= UINT64_C(1) << t;
            continue;
        }
        int64_t bytes = p->in.captures[t].grad ? shares_tensor_bytes(p, t) : 0;
        all = fxa__min_i64(INT64_MAX / 4, all + bytes);
        if (small + bytes <= BACK_SUM_BYTES / BACK_LANES) {
            small += bytes;
            continue;
        }
        c->shared |= UINT64_C(1) << t;
        axes &= shares_tensor_axes(p, d, t);
    }
    if (c->shared && shares_lanes(c, &p->in, axes) == 1 && !c->pool) {
        c->shared = 0;
        c->lanes = fxa__max_i64(1, fxa__min_i64(BACK_LANES, BACK_SUM_BYTES / fxa__max_i64(all, 1)));
        c->lanes = fxa__max_i64(1, fxa__min_i64(c->lanes, c->items));
        return;
    }
    c->lane_axes = axes;
    c->lanes = fxa__max_i64(1, fxa__min_i64(BACK_LANES, shares_lanes(c, &p->in, axes)));
}

fxa__back_shares fxa__back_shares_make(const fxa__cpu_code *code, const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    fxa__back_shares c = {
        .want_q = in->flags & FXA_GRAD_Q && in->d_qk > 0,
        .want_k = in->flags & FXA_GRAD_K && in->d_qk > 0,
        .want_v = in->flags & FXA_GRAD_V && in->d_v > 0,
        .entries = fxa__entries_with_work(p),
    };
    c.want_sums = in->param_grads != 0;
    for (int32_t t = 0; t < p->program->n_tensors; t++) c.want_sums = c.want_sums || in->captures[t].grad;
    c.want_ds = c.want_q || c.want_k || c.want_sums || fxa__scale_use_of(in, FXA_SLOT_AMAX_DS) == FXA__SCALE_WRITTEN;
    c.pool = (in->flags & FXA_PAGED) && (c.want_k || c.want_v);
    c.pool_rows = c.pool ? shares_mul(in->n_pages, in->page_size) : 0;
    c.keep_score = c.want_ds && (code->joined || code->derivative || code->bprop);
    shares_tiles(&c, code->kernels, in);
    shares_chunks(&c, code->kernels, in);
    c.lane_axes = c.pool ? FXA__BACK_H : FXA__BACK_ALL;
    c.lanes = c.pool ? fxa__max_i64(1, in->hkv) : c.items;
    if (c.want_sums) shares_sums(&c, p, code->by_score);
    return c;
}

int64_t fxa__back_lane_of(const fxa__back_shares *cut, const fxa_problem *p, int64_t item) {
    int64_t group = item % cut->groups, number = 0;
    if (cut->lane_axes & FXA__BACK_CHUNK) number = item / cut->groups;
    if (cut->lane_axes & FXA__BACK_B) number = number * p->b + group / p->hkv;
    if (cut->lane_axes & FXA__BACK_H) number = number * p->hkv + group % p->hkv;
    return number % cut->lanes;
}

/* ---- Workspace ------------------------------------------------------------------------------------------------- */

/* [rows,columns] of real; NULL when not wanted. */
static void *shares_carve_matrix(fxa__carver *c, const fxa__back *job, bool wanted, int64_t rows, int64_t columns) {
    return wanted ? fxa__carve_matrix(c, rows, columns, job->code->kernels->real_size) : NULL;
}

static void shares_carve_tape(fxa__carver *c, const fxa__back *job, const fxa__tape *tape, fxa__tape_run *run) {
    if (!tape) return;
    void *scratch = fxa__tape_carve(c, tape, job->cut.tile, job->cut.block);
    if (!c->base) return;
    *run = (fxa__tape_run){.tape = tape,
                           .params = job->bound->params,
                           .tensors = job->bound->tensors,
                           .scratch = scratch,
                           .max_rows = job->cut.tile,
                           .max_columns = job->cut.block};
}

/* A packed [k,n]. */
static void shares_carve_b(fxa__carver *c, const fxa__cpu_kernels *kernels, bool wanted, int64_t k, int64_t n,
                           fxa__cpu_b *b) {
    if (wanted) b->panels = fxa__carve(c, kernels->format->b_size(kernels, k, n), kernels->real_size);
}

/* The product over rows whose sum is out [block,ld_out], of d features. */
static void shares_carve_over(fxa__carver *c, const fxa__back *job, bool wanted, int64_t d, void *out, int64_t ld_out,
                              fxa__cpu_over *o) {
    const fxa__cpu_kernels *kernels = job->code->kernels;
    const fxa__cpu_format *format = kernels->format;
    if (!wanted) return;
    *o = (fxa__cpu_over){.most = job->cut.tile, .d = d, .columns = job->cut.block, .out = out, .ld_out = ld_out};
    o->x = fxa__carve(c, format->over_x_size(kernels, o->most, d), kernels->real_size);
    o->sums = fxa__carve(c, format->over_sums_size(kernels, o->columns, d), kernels->real_size);
    o->room = fxa__carve(c, format->over_room_size(kernels, o->most), kernels->real_size);
    o->ones = job->ones;
}

static void shares_carve_worker(fxa__carver *c, const fxa__back *job, fxa__back_worker *w) {
    const fxa__back_shares *cut = &job->cut;
    int64_t wide = fxa__max_i64(cut->ld_d, cut->ld_v);
    w->job = job;
    w->k = shares_carve_matrix(c, job, true, cut->block, wide);
    shares_carve_b(c, job->code->scores, true, job->p->in.d_qk, cut->block, &w->k_t);
    shares_carve_b(c, job->code->kernels, cut->want_ds, job->p->in.d_v, cut->block, &w->v_t);
    shares_carve_b(c, job->code->kernels, cut->want_q, cut->block, job->p->in.d_qk, &w->k_n);
    w->dk = shares_carve_matrix(c, job, cut->want_k, cut->block, cut->ld_d);
    w->dv = shares_carve_matrix(c, job, cut->want_v, cut->block, cut->ld_v);
    w->q = shares_carve_matrix(c, job, true, cut->tile, wide);
    w->dout = shares_carve_matrix(c, job, true, cut->tile, cut->ld_v);
    shares_carve_over(c, job, cut->want_k, job->p->in.d_qk, w->dk, cut->ld_d, &w->over_k);
    shares_carve_over(c, job, cut->want_v, job->p->in.d_v, w->dv, cut->ld_v, &w->over_v);
    w->s = shares_carve_matrix(c, job, true, cut->tile, cut->ld);
    w->p = cut->keep_score ? shares_carve_matrix(c, job, true, cut->tile, cut->ld) : w->s;
    w->ds = shares_carve_matrix(c, job, cut->want_ds, cut->tile, cut->ld);
    w->dq = shares_carve_matrix(c, job, cut->want_q && cut->chunks == 1, cut->rows, cut->ld_d);
    w->dk_pool = shares_carve_matrix(c, job, cut->pool && cut->want_k, cut->pool_rows, cut->ld_d);
    w->dv_pool = shares_carve_matrix(c, job, cut->pool && cut->want_v, cut->pool_rows, cut->ld_v);
    w->column = shares_carve_matrix(c, job, true, 1, cut->tile);
    w->h = fxa__carve(c, cut->tile, sizeof(int32_t));
    w->q_at = fxa__carve(c, cut->tile, sizeof(int32_t));
    w->k_at = fxa__carve(c, cut->block, sizeof(int32_t));
    w->keep = fxa__carve(c, cut->block + FXA__CPU_KEEP_ROOM, sizeof(int32_t));
    fxa__cpu_seen *seen = fxa__carve(c, fxa__cpu_seen_count(job->code, job->p), sizeof *seen);
    fxa__cpu_cut_carve(c, job->code, cut->tile, cut->block, &w->cut);
    w->strips = fxa__carve(c, fxa__cpu_cut_strips(job->code, cut->tile, cut->block), sizeof *w->strips);
    const fxa__tape *tapes[FXA__BACK_TAPES] = {job->code->score, job->code->masked, job->code->derivative,
                                               job->code->bprop};
    for (int i = 0; i < FXA__BACK_TAPES; i++) shares_carve_tape(c, job, tapes[i], &w->tape[i]);
    if (!c->base) return;
    w->g = (fxa__cpu_group){.code = job->code, .p = job->p, .bound = job->bound, .ranges = job->ranges};
    fxa__cpu_seen_clear(&w->g, seen);
    w->tape[FXA__BACK_BPROP].params = job->bound->bprop_params;
    w->tape[FXA__BACK_BPROP].tensors = job->bound->bprop_tensors;
}

/* The sums of one lane; those of a shared tensor are carved with the first. */
static void shares_carve_sums(fxa__carver *c, const fxa__back *job, int64_t lane) {
    const fxa_program *program = job->p->program;
    for (int32_t t = 0; t < program->n_tensors; t++) {
        const fxa_capture *capture = &job->p->in.captures[t];
        bool shared = job->cut.shared >> t & 1;
        fxa__tape_sum sum = {.view = {.rank = program->tensors[t].rank}};
        int64_t n = 1;
        for (int32_t i = sum.view.rank - 1; i >= 0; i--) {
            sum.view.size[i] = capture->size[i];
            sum.view.stride[i] = n;
            if (!fxa__mul_i64(n, capture->size[i], &n)) n = 0; /* only beside an axis without elements */
        }
        if (job->cut.once >> t & 1)
            sum = (fxa__tape_sum){.view = c->base ? job->bound->dtensors[t] : sum.view, .once = true};
        else if (capture->grad && (lane == 0 || !shared))
            sum.sum = fxa__carve(c, n, sizeof(double));
        else if (capture->grad && c->base)
            sum.sum = job->sums[t].sum;
        if (c->base) job->sums[lane * program->n_tensors + t] = sum;
    }
}

bool fxa__back_layout(fxa__back *job, fxa__carver c, size_t *bytes) {
    const fxa__back_shares *cut = &job->cut;
    job->ranges = fxa__carve(&c, job->p->program->n_tensors, sizeof(fxa_tensor_range));
    fxa__cpu_kept_carve(&c, job->code, job->p, cut->tile, cut->block, &job->kept);
    job->ones = shares_carve_matrix(&c, job, true, 1, cut->ones);
    job->lse = fxa__carve_matrix(&c, cut->groups, cut->rows, sizeof(double));
    job->delta = shares_carve_matrix(&c, job, true, cut->groups, cut->rows);
    job->finite = fxa__carve(&c, shares_mul(cut->groups, cut->tiles), 1);
    job->dq_parts =
        shares_carve_matrix(&c, job, cut->want_q && cut->chunks > 1, shares_mul(cut->items, cut->rows), cut->ld_d);
    job->dq_has = fxa__carve(&c, cut->want_q && cut->chunks > 1 ? shares_mul(cut->items, cut->tiles) : 0, 1);
    int64_t lanes = cut->want_sums ? cut->lanes : 0;
    job->sums = fxa__carve(&c, lanes * job->p->program->n_tensors, sizeof(fxa__tape_sum));
    job->dparams = fxa__carve(&c, lanes * job->p->program->n_params, sizeof(double));
    for (int64_t lane = 0; lane < lanes; lane++) shares_carve_sums(&c, job, lane);
    job->workers = fxa__carve(&c, job->code->width, sizeof(fxa__back_worker));
    for (int32_t i = 0; i < job->code->width; i++) {
        fxa__back_worker w = {.job = NULL};
        shares_carve_worker(&c, job, &w);
        if (!c.base) continue;
        fxa__back_worker *own = &job->workers[i];
        *own = w;
        fxa__cpu_cut_start(&own->cut, &own->g, &job->kept, cut->tile, cut->block);
    }
    *bytes = c.used;
    return !c.failed;
}
