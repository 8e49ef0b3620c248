/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass: how the work is cut, how the workspace is laid out, and the run. See forward/forward.h.
 *
 * Block sizes keep things where they belong: the scores of a few rows in the first-level cache, the packed keys and
 * values of a block in the second. The rows of a tile only pass by, so they may be many.
 */
#include "../mask/bits.h"
#include "forward.h"

#include "../../../base/carve.h"
#include "../../../base/invariant.h"
#include "../../../problem/work.h"

#include <string.h>

enum {
    /* Rows of a block, about, where the set does not say. Zen 3, f32, D 64: 12 rows x 256 keys and 24 x 128 were best,
     * 24 x 256, whose scores leave no room in the first-level cache, was 5 to 10 % slower. */
    FORWARD_ROWS = 12,
    /* Of K^T, and as many of V. One core of Zen 4, f32, S 2048, D 64, twice what it was before: full
     * 85.6 -> 86.8 % of the peak, causal 83.0 -> 84.3, dense bias 73.2 -> 77.9. */
    FORWARD_PANEL_BYTES = 1 << 18,
    /* Of Q, and as many of the output; rows of a tile. 384 rows were best of the prototype on Zen 3; twice that was
     * chosen later, with larger panels, by a measurement of which no figures were kept. */
    FORWARD_TILE_BYTES = 3 << 17,
    FORWARD_MAX_TILE = 768,
    /* Items that a batch entry should have at least, and the keys that make a chunk worth its while. Untuned guesses:
     * as many items as large machines have threads, and chunks whose join costs little. */
    FORWARD_DECODE_ITEMS = 64,
    FORWARD_DECODE_KEYS = 1024,
    FORWARD_TILE_ITEMS = 8,
    FORWARD_TILE_KEYS = 2048
};
/* Below it is not worth waking a thread: that takes 25 to 35 us on two cores of Zen 3, as 2.5 to 3.5 million operations
 * do on one. */
#define FORWARD_SMALL_FLOPS 2e6

/* ---- The cut ----------------------------------------------------------------------------------------------------- */

static int64_t forward_clamp(int64_t x, int64_t lo, int64_t hi) { return fxa__max_i64(lo, fxa__min_i64(x, hi)); }

/* Masks that range analysis alone cuts leave less of smaller blocks, and sets that take many rows at once have as many
 * scores in hand with fewer keys. */
static int64_t forward_keys(const fxa__cpu_code *code, int64_t widest) {
    bool cut = code->classify && !code->mask;
    int64_t shorter = code->kernels->rows > FXA__CPU_MAX_ROWS || cut ? 2 : 1, nr = code->kernels->nr;
    int64_t bytes = (int64_t)code->kernels->real_size * widest * shorter;
    return forward_clamp(FORWARD_PANEL_BYTES / bytes / nr * nr, nr, FXA__CPU_MAX_KEYS / shorter);
}

/* Of a block, and so of a strip. */
static int64_t forward_rows(const fxa__cpu_kernels *kernels) {
    return kernels->rows ? kernels->rows : fxa__round_up(FORWARD_ROWS, kernels->mr);
}

void fxa__cpu_forward_least(const fxa__cpu_kernels *kernels, const fxa_problem *p, int32_t *rows, int32_t *keys) {
    bool few = fxa__cpu_is_few(p, p->hq / fxa__max_i64(p->hkv, 1) * p->sq);
    *rows = (int32_t)(few ? fxa__max_i64(p->sq, 1) : forward_rows(kernels));
    *keys = (int32_t)fxa__cpu_bits_granule(kernels);
}

fxa__cpu_blocks fxa__cpu_forward_blocks(const fxa__cpu_code *code, const fxa_problem *p) {
    const fxa__cpu_kernels *kernels = code->kernels;
    int64_t size = (int64_t)kernels->real_size, widest = fxa__max_i64(1, fxa__max_i64(p->d_qk, p->d_v)),
            lanes = FXA__CPU_PAD / size;
    int64_t rows = forward_rows(kernels), nr = kernels->nr;
    fxa__cpu_blocks b = {.rows = rows};
    b.keys = forward_keys(code, widest);
    b.tile_rows = forward_clamp(FORWARD_TILE_BYTES / (size * widest) / rows * rows, 4 * rows, FORWARD_MAX_TILE);
    b.ldq = fxa__round_up(p->d_qk, lanes);
    b.ldo = fxa__round_up(p->d_v, fxa__max_i64(nr, lanes));
    b.ldt = fxa__round_up(b.keys, nr) + lanes; /* odd in cache lines */
    b.ldv = p->d_v;
    b.lda = kernels->format->a_ld(kernels, p->d_qk);
    FXA__ASSERT(b.lda <= b.ldq);
    return b;
}

/* Tiles of whole heads stacked, or, for long ones, inside each head, where masks leave less of a tile. */
static void forward_cut_rows(const fxa__cpu_blocks *blocks, int64_t heads, int64_t q_len, fxa__cpu_shares *cut) {
    bool per_head = 2 * q_len > blocks->tile_rows;
    int64_t rows = per_head ? q_len : heads * q_len, tiles = fxa__div_up(rows, blocks->tile_rows);
    cut->tile_rows = tiles ? fxa__round_up(fxa__div_up(rows, tiles), blocks->rows) : 0;
    cut->per_head = per_head ? tiles : 0;
    cut->tiles = per_head ? heads * tiles : tiles;
}

fxa__cpu_shares fxa__cpu_shares_make(const fxa__cpu_forward_run *run, int64_t q_len, int64_t k_len) {
    const fxa_problem *p = &run->p->in;
    int64_t hkv = fxa__max_i64(p->hkv, 1), heads = p->hq / hkv, rows = heads * q_len;
    fxa__cpu_shares cut = {.decode = fxa__cpu_is_few(p, rows)};
    if (cut.decode)
        cut.tiles = rows > 0, cut.tile_rows = rows;
    else
        forward_cut_rows(&run->blocks, heads, q_len, &cut);
    int64_t wanted = (cut.decode ? FORWARD_DECODE_ITEMS : FORWARD_TILE_ITEMS) / (hkv * fxa__max_i64(cut.tiles, 1));
    int64_t least = cut.decode ? FORWARD_DECODE_KEYS : FORWARD_TILE_KEYS;
    cut.chunks = forward_clamp(wanted, 1, fxa__max_i64(1, k_len / least));
    cut.chunk_keys = fxa__round_up(fxa__div_up(k_len, cut.chunks), run->blocks.keys);
    return cut;
}

/* Upper bounds over all lengths that a batch entry may have: of its items for one KV head, and of partial rows. */
static void forward_bound(fxa__cpu_forward_run *run) {
    const fxa_problem *p = &run->p->in;
    int64_t hkv = fxa__max_i64(p->hkv, 1), rows = p->hq / hkv * p->sq, few = fxa__min_i64(rows, FXA__CPU_FEW_ROWS);
    int64_t tiles = fxa__cpu_shares_make(run, p->sq, 0).tiles;
    int64_t decode = forward_clamp(FORWARD_DECODE_ITEMS / hkv, 1, fxa__max_i64(1, p->sk / FORWARD_DECODE_KEYS));
    int64_t tile = forward_clamp(FORWARD_TILE_ITEMS / hkv, 1, fxa__max_i64(1, p->sk / FORWARD_TILE_KEYS));
    run->items = fxa__max_i64(fxa__max_i64(tiles, 1), fxa__max_i64(decode, FORWARD_TILE_ITEMS / hkv));
    run->slots = decode > 1 && fxa__cpu_is_few(p, few) ? decode * few : 0;
    if (tile > 1)
        run->slots = fxa__max_i64(run->slots, fxa__min_i64(FORWARD_TILE_ITEMS / hkv * run->blocks.tile_rows,
                                                           fxa__min_i64(rows, INT32_MAX) * tile));
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* One worker's scratch. */
static void forward_carve_scratch(fxa__carver *c, const fxa__cpu_forward_run *run, fxa__cpu_scratch *s,
                                  fxa__cpu_cut *cut) {
    const fxa__cpu_kernels *kernels = run->code->kernels;
    const fxa__cpu_blocks *b = &run->blocks;
    const fxa_problem *p = &run->p->in;
    size_t real = kernels->real_size;
    int64_t rows = b->tile_rows;
    s->q = fxa__carve_matrix(c, rows, b->ldq, real);
    s->o = fxa__carve_matrix(c, rows, b->ldo, real);
    s->k.panels = fxa__carve(c, kernels->format->b_size(kernels, p->d_qk, b->keys), real);
    s->v.panels = fxa__carve(c, kernels->format->b_size(kernels, b->keys, p->d_v), real);
    s->x = fxa__carve(c, fxa__max_i64(b->keys * b->ldv, kernels->nr * p->d_qk), real);
    s->t = s->scores = fxa__carve_matrix(c, fxa__max_i64(b->rows, FXA__CPU_MAX_ROWS), b->ldt, real);
    s->beta = s->betas = fxa__carve(c, fxa__max_i64(b->rows, FXA__CPU_MAX_ROWS), real);
    s->m = fxa__carve(c, rows, sizeof(double));
    s->l = fxa__carve(c, rows, sizeof(double));
    s->unit = fxa__carve(c, rows, sizeof(double));
    s->nan = fxa__carve(c, rows, 1);
    s->h = fxa__carve(c, rows, sizeof(int32_t));
    s->qc = fxa__carve(c, rows, sizeof(int32_t));
    s->kc = fxa__carve(c, b->keys, sizeof(int32_t));
    s->keep = fxa__carve(c, b->keys + FXA__CPU_KEEP_ROOM, sizeof(int32_t));
    s->row = fxa__carve(c, p->d_v, sizeof(double));
    s->old = fxa__carve(c, p->d_v, sizeof(double));
    s->seen = fxa__carve(c, fxa__cpu_seen_count(run->code, run->p), sizeof *s->seen);
    fxa__cpu_cut_carve(c, run->code, rows, b->keys, cut);
    const fxa__tape *tapes[2] = {run->code->score, run->code->masked};
    for (int i = 0; i < 2; i++) s->tape[i] = fxa__tape_carve(c, tapes[i], rows, b->keys);
}

/* Everything of a run that does not depend on its pointers; with a base also where its parts lie. */
static bool forward_layout(fxa__cpu_forward_run *run, fxa__carver all, size_t *bytes) {
    const fxa_problem *p = &run->p->in;
    fxa__carver own = fxa__carver_make(NULL);
    fxa__cpu_scratch s;
    fxa__cpu_cut cut;
    run->entries = fxa__entries_with_work(run->p);
    int64_t groups = run->entries * p->hkv, items = 0;
    run->blocks = fxa__cpu_forward_blocks(run->code, p);
    forward_bound(run);
    forward_carve_scratch(&own, run, &s, &cut);
    run->scratch_bytes = own.used;
    double flops =
        2.0 * (double)run->entries * (double)p->hq * (double)p->sq * (double)p->sk * (double)(p->d_qk + p->d_v);
    if (!fxa__mul_i64(groups, run->items, &items)) return false;
    run->workers = flops < FORWARD_SMALL_FLOPS ? 1 : (int32_t)forward_clamp(items, 1, run->code->width);
    run->ranges = fxa__carve(&all, run->p->program->n_tensors, sizeof *run->ranges);
    int64_t slots = 0;
    if (!fxa__mul_i64(groups, run->slots, &slots)) return false;
    fxa__cpu_kept_carve(&all, run->code, run->p, run->blocks.tile_rows, run->blocks.keys, &run->kept);
    run->partial = fxa__carve(&all, slots, sizeof *run->partial);
    run->partial_o = fxa__carve_matrix(&all, slots, run->blocks.ldo, run->code->kernels->real_size);
    for (int32_t i = 0; all.after && i < run->workers; i++) {
        fxa__carver one = fxa__carver_within(&all);
        one.after += (size_t)i * run->scratch_bytes;
        forward_carve_scratch(&one, run, &s, &cut);
    }
    run->scratch = fxa__carve(&all, run->workers, run->scratch_bytes);
    *bytes = all.used;
    return !own.failed && !all.failed;
}

bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes) {
    fxa__cpu_forward_run run = {.code = code, .p = p};
    return forward_layout(&run, c, bytes);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static fxa__cpu_item forward_worker(const fxa__cpu_forward_run *run, int32_t worker) {
    fxa__cpu_item it = {.run = run, .kernels = run->code->kernels};
    fxa__carver c = fxa__carver_make(run->scratch + (size_t)worker * run->scratch_bytes);
    it.g = (fxa__cpu_group){.code = run->code, .p = run->p, .bound = run->bound, .ranges = run->ranges};
    forward_carve_scratch(&c, run, &it.s, &it.cut);
    fxa__cpu_seen_clear(&it.g, it.s.seen);
    return it;
}

static void forward_enter(fxa__cpu_item *it, int64_t group) {
    int64_t hkv = it->g.p->in.hkv;
    fxa__cpu_group_enter(&it->g, group / hkv, group % hkv);
    it->shares = fxa__cpu_shares_make(it->run, it->g.seq.q_len, it->g.seq.k_len);
    it->b = fxa__coord(it->g.p, it->g.bound, FXA_INPUT_B, it->g.b);
}

/* Rows and keys of item i of the group; false when it has none. The last tiles come first: causal masks leave them the
 * most work. */
static bool forward_select(fxa__cpu_item *it, int64_t i) {
    const fxa__cpu_shares *cut = &it->shares;
    if (i >= cut->tiles * cut->chunks) return false;
    int64_t tile = cut->tiles - 1 - i / cut->chunks, end = it->g.rows;
    it->tile = cut->per_head ? tile % cut->per_head : tile;
    it->chunk = i % cut->chunks;
    it->key = fxa__min_i64(it->chunk * cut->chunk_keys, it->g.seq.k_len);
    it->key_end = fxa__min_i64(it->key + cut->chunk_keys, it->g.seq.k_len);
    it->first = tile * cut->tile_rows;
    if (cut->per_head) {
        int64_t head = tile / cut->per_head * it->g.seq.q_len;
        it->first = head + tile % cut->per_head * cut->tile_rows;
        end = head + it->g.seq.q_len;
    }
    it->n = fxa__min_i64(cut->tile_rows, end - it->first);
    return it->n > 0;
}

void fxa__cpu_item_clear(fxa__cpu_item *it) {
    for (int64_t i = 0; i < it->n; i++) {
        it->s.m[i] = -INFINITY;
        it->s.l[i] = 0;
        it->s.nan[i] = 0;
    }
    it->dirty = false;
}

static void forward_item(fxa__cpu_item *it, int64_t group) {
    fxa__cpu_item_clear(it);
    it->leaves = false;
    for (int64_t i = 0; i < it->n; i++) it->s.unit[i] = 1;
    fxa__cpu_softmax_rows(it);
    fxa__cpu_cut_tile(&it->cut, it->tile, it->first, it->n, it->s.h, it->s.qc);
    if (it->shares.decode)
        fxa__cpu_decode(it);
    else
        fxa__cpu_attend(it);
    fxa__cpu_output(it, group);
}

static void forward_task(void *arg, int32_t worker) {
    fxa__cpu_forward_run *run = arg;
    fxa__cpu_item it = forward_worker(run, worker);
    fxa__cpu_cut_start(&it.cut, &it.g, &run->kept, run->blocks.tile_rows, run->blocks.keys);
    int64_t total = run->entries * run->p->in.hkv * run->items;
    if (it.kernels->enter) it.kernels->enter();
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < total;) {
        int64_t group = i / run->items, number = i % run->items;
        forward_enter(&it, group);
        if (number == 0 && !(run->p->in.flags & FXA_VARLEN)) fxa__cpu_output_absent(&it);
        if (forward_select(&it, number)) forward_item(&it, group);
        fxa__cpu_progress_add(it.kernels, run->bound, 1);
    }
    if (it.kernels->leave) it.kernels->leave();
}

static void forward_join_task(void *arg, int32_t worker) {
    fxa__cpu_forward_run *run = arg;
    fxa__cpu_item it = forward_worker(run, worker);
    int64_t total = run->entries * run->p->in.hkv;
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < total;) {
        forward_enter(&it, i);
        if (it.shares.chunks > 1) fxa__cpu_join(&it, i);
    }
}

bool fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound) {
    fxa__cpu_forward_run run = {.code = code, .p = p, .bound = bound};
    size_t bytes;
    if (!forward_layout(&run, fxa__carver_make(bound->workspace), &bytes) || bytes > bound->workspace_size)
        return false;
    fxa__cpu_scan(code, bound, run.ranges);
    atomic_init(&run.next, 0);
    fxa__progress_begin(bound->progress, run.entries, p->in.hkv, run.items);
    fxa__pool_run(bound->pool, bound->parallel_user, run.workers, forward_task, &run);
    if (run.slots == 0) return true;
    atomic_store(&run.next, 0);
    fxa__pool_run(bound->pool, bound->parallel_user, run.workers, forward_join_task, &run);
    return true;
}
