/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of decode (few queries, split-KV), in order: the kernels that clear buffers, pack operands and write tables
 * (fxa__cuda_prepasses), the kernel that writes the tile list, and fxa_decode. The list has a row per batch entry if
 * the mask or the lengths depend on b, and per KV head if the mask depends on h; otherwise batch entries or heads share
 * rows. Also computes how the keys of a (b, KV head) are divided into splits, and how splits are grouped into work
 * items; a CTA computes one item at a time (sm90/decode.cu).
 */
#include "call.h"

#include "../../../base/num.h"

/* Limits and measured ratios by which the keys of a (b, KV head) are divided into splits, and splits are grouped into
 * work items, one per CTA at a time. */
enum {
    DECODE_MIN_TILES = 8,        /* minimum tiles of a split, for more than 8 splits (DECODE_MAX_SHORT) */
    DECODE_MIN_KEYS = 512,       /* minimum keys of a split, for at most 8 splits (DECODE_MAX_SHORT) */
    DECODE_MAX_SHORT = 8,        /* maximum number of splits that may have fewer than DECODE_MIN_TILES tiles */
    DECODE_MIN_TILES_ALONE = 16, /* minimum tiles of a split if each split is a work item */
    /* work items of the last round are made smaller if they occupy more than 1/6 (MIN) and less than 3/5 (MAX) of the
     * multiprocessors */
    DECODE_MIN_TAIL = 6,
    DECODE_MAX_TAIL = 5,
    DECODE_MIN_ROUNDS = 4,   /* minimum work items per multiprocessor if batch entries have different lengths */
    DECODE_END_KB = 128,     /* KB that a multiprocessor could read in the time that the end of a work item takes */
    DECODE_COMBINE_KB = 640, /* KB that the device could read in the time of combining one more work item */
    DECODE_MAX_CLUSTER = 8,  /* maximum CTAs of a cluster */
    DECODE_MAX_EACH = 2,     /* maximum splits of each CTA of a cluster */
    DECODE_MIN_BUSY = 9,     /* clusters use at least 9/20 of the multiprocessors: nearly the memory bandwidth */
    DECODE_MAX_RESIDENT = 2, /* clusters may use 1/2 of the multiprocessors, so that all are resident at once */
    DECODE_SATURATED = 3,    /* 1/3 of the multiprocessors saturates memory bandwidth, less the loss by DECODE_IDLE */
    DECODE_IDLE = 20         /* each idle multiprocessor costs 1/20 of what it could have read */
};

/* How the work of a decode is divided. */
typedef struct decode_cut {
    int64_t ctas;   /* multiprocessors */
    int64_t rows;   /* row groups (query rows that an item computes together) of all (b, KV head)s */
    int64_t pieces; /* splits of a row group's keys */
    int64_t piece;  /* KB of K and V of a split */
    bool folds;     /* true = a CTA can combine the splits of an item (KEEPS_SUMS in sm90/decode_shared.cuh) */
} decode_cut;

/* Returns the number of splits into which the keys of a (b, KV head) are divided. The number depends on the shape of
 * one batch entry alone, so results do not depend on the batch. The splits of all row groups of an entry are at most
 * as many as the multiprocessors; if each split is a work item, half as many, which saturates memory bandwidth.
 * rows: row groups of all KV heads of an entry; tiles: key tiles; tile: keys of a tile. */
static int64_t decode_pieces(const decode_cut *c, int64_t rows, int64_t tiles, int64_t tile) {
    int64_t max_splits = fxa__div_up(tiles, c->folds ? DECODE_MIN_TILES : DECODE_MIN_TILES_ALONE), pieces = 1;
    if (c->folds) max_splits = fxa__max_i64(max_splits, fxa__min_i64(tiles * tile / DECODE_MIN_KEYS, DECODE_MAX_SHORT));
    max_splits = fxa__min_i64(fxa__min_i64(max_splits, FXA_DECODE_MAX_SPLITS), c->ctas / (c->folds ? 1 : 2) / rows);
    while (pieces * 2 <= max_splits) pieces *= 2;
    return c->folds ? pieces : fxa__max_i64(max_splits, 1);
}

/* Returns true if the work items of the last, incomplete round are made smaller (a round: one item per multiprocessor).
 * Smaller items improve the balance, but additional items cost time: too much if that round is nearly full. Returns
 * false with a single round, where all items could as well have fewer splits. run: splits of an item. */
static bool decode_has_tail(const decode_cut *c, int64_t items, int64_t run) {
    int64_t rest = items % c->ctas;
    return run > 1 && items > c->ctas && rest > c->ctas / DECODE_MIN_TAIL && rest < c->ctas / DECODE_MAX_TAIL * 3;
}

/* Returns the time of a decode with `run` splits (parts of the keys) per work item, as the KB that memory delivers in
 * that time. */
static int64_t decode_time(const decode_cut *c, int64_t run) {
    int64_t shares = fxa__div_up(c->pieces, run), items = c->rows * shares, rest = items % c->ctas;
    int64_t busy = items - rest, rounds = fxa__div_up(items, c->ctas);
    if (decode_has_tail(c, items, run)) busy = items, rest = 0, rounds++;
    if (rest) busy += fxa__max_i64(rest, c->ctas / DECODE_SATURATED) + (c->ctas - rest) / DECODE_IDLE;
    return busy * run * c->piece + rounds * c->ctas * DECODE_END_KB + (shares > 1 ? shares * DECODE_COMBINE_KB : 0);
}

/* Returns the number of splits (parts of the keys) per work item with the least time. spans: true = batch entries have
 * different lengths, which need many items for balance. */
static int64_t decode_run(const decode_cut *c, bool spans) {
    int64_t best = 1, max_run = c->folds ? fxa__min_i64(c->pieces, FXA_DECODE_MAX_RUN) : 1;
    for (int64_t run = 2; run <= max_run; run *= 2) {
        if (spans && c->rows * (c->pieces / run) < DECODE_MIN_ROUNDS * c->ctas) break;
        if (decode_time(c, run) <= decode_time(c, best)) best = run;
    }
    return best;
}

/* Sets out->cut: how many of the last (b, KV head)s have smaller items. A smaller item has a quarter of the splits of
 * other items, or half of them if a quarter is less than two splits. */
static void decode_tail(const decode_cut *c, int64_t groups, fxa__cuda_buffers *out) {
    int64_t row = groups * fxa__div_up(out->splits, out->item_splits); /* items of a (b, KV head) */
    int64_t items = c->rows / groups * row;
    if (decode_has_tail(c, items, out->item_splits))
        out->cut[out->item_splits >> 1 > 2] = (int32_t)fxa__div_up(items % c->ctas, row);
}

/* Returns the number of work items of `heads` (b, KV head)s with one row group (set of query rows) each. */
static int64_t decode_items(const fxa__cuda_buffers *at, int64_t heads) {
    int64_t items = 0;
    for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) {
        heads -= at->cut[i];
        if (at->cut[i]) items += at->cut[i] * (at->splits / (at->item_splits >> (i + 1)));
    }
    return items + heads * fxa__div_up(at->splits, at->item_splits);
}

/* Returns how the work of a decode is divided. A row group is as many query rows of a KV head as a tile has. */
static decode_cut decode_cut_make(const fxa__cuda_self *self, const struct FxaTraits *t, const fxa_problem *p,
                                  const struct FxaTileShape *shape) {
    int64_t groups = fxa__div_up(p->hq / p->hkv * p->sq, shape->launch.q_rows),
            tiles = fxa__div_up(p->sk, shape->launch.k_rows);
    decode_cut c = {self->processors, p->b * p->hkv * groups, 1, 1, false};
    c.folds = shape->folds;
    c.pieces = decode_pieces(&c, p->hkv * groups, tiles, shape->launch.k_rows);
    c.piece = fxa__div_up(fxa__div_up(tiles, c.pieces) * shape->launch.k_rows * (t->d + t->dv) * 2, 1024);
    return c;
}

/* Returns the number of CTAs of a cluster, each of which computes one item; 0 = no clusters. The number is the largest
 * of 8, 4 and 2 with which either the clusters nearly saturate memory bandwidth or each item is a single split. A
 * cluster combines the results of the CTAs without the workspace. */
int32_t fxa__cuda_decode_cluster(const fxa__cuda_self *self, const struct FxaTraits *t, const fxa_problem *p,
                                 const struct FxaTileShape *shape) {
    const decode_cut c = decode_cut_make(self, t, p, shape);
    if (!c.folds) return 0;
    for (int64_t ctas = DECODE_MAX_CLUSTER; ctas > 1; ctas /= 2) {
        int64_t all = c.rows * ctas;
        bool enough = ctas == c.pieces || all * 20 >= c.ctas * DECODE_MIN_BUSY;
        bool some = ctas <= c.pieces && c.pieces / ctas <= DECODE_MAX_EACH;
        if (enough && some && all <= c.ctas / DECODE_MAX_RESIDENT) return (int32_t)ctas;
    }
    return 0;
}

void fxa__cuda_decode_split(const fxa__cuda_self *self, const struct FxaTraits *t, const fxa_problem *p,
                            const struct FxaTileShape *shape, fxa__cuda_buffers *out) {
    int64_t groups = fxa__div_up(p->hq / p->hkv * p->sq, shape->launch.q_rows);
    decode_cut c = decode_cut_make(self, t, p, shape);
    out->splits = (int32_t)c.pieces;
    out->item_splits = (int32_t)(t->cluster ? c.pieces / t->cluster : decode_run(&c, t->varlen));
    if (!t->cluster) decode_tail(&c, groups, out);
    FXA__ASSERT(out->splits >= 1 && out->splits <= FXA_DECODE_MAX_SPLITS);
    FXA__ASSERT((out->item_splits & (out->item_splits - 1)) == 0 && out->item_splits >= 1);
    FXA__ASSERT(out->item_splits <= (shape->folds ? FXA_DECODE_MAX_RUN : 1) && out->item_splits <= out->splits);
    FXA__ASSERT(!t->cluster || out->splits == t->cluster * out->item_splits);
    out->items = (int32_t)(groups * decode_items(out, p->b * p->hkv));
}

static void decode_divisors(struct FxaArgs *a, int32_t rows) {
    a->by_splits = fxa__cuda_divisor(a->splits);
    a->by_shares = fxa__cuda_divisor(fxa__div_up(a->splits, a->run));
    a->by_row_groups = fxa__cuda_divisor(fxa__div_up((int64_t)a->group * a->q_len, rows));
    a->by_kv_heads = fxa__cuda_divisor(a->kv_heads);
    a->by_group = fxa__cuda_divisor(a->group);
}

fxa_status fxa__cuda_decode(fxa__cuda_call *c) {
    const struct FxaShape *shape = &c->code->unit[FXA__CUDA_DECODE].shape;
    const fxa_problem *p = &c->p->in;
    int32_t box = shape->store_rows;
    if (p->flags & FXA_PAGED) box = (int32_t)fxa__min_i64(shape->k_rows, p->page_size);
    int64_t items = c->at.items, ctas = fxa__min_i64(items, c->self->processors);
    if (shape->parts > 1) ctas = items; /* a CTA of a cluster computes one work item */
    c->a.tiles = (int)items;
    decode_divisors(&c->a, shape->q_rows);
    fxa__cuda_args_tile_list(c, &c->at.queries);
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_K, box, &c->maps.k));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_V, box, &c->maps.v));
    FXA_TRY(fxa__cuda_prepasses(c, &c->at.queries));
    FXA_TRY(fxa__cuda_tile_list_write(c, &c->at.queries));
    return fxa__cuda_launch_main(c, FXA__CUDA_DECODE, 0, (fxa__cuda_grid){ctas, 1, 1});
}
