/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding: few queries, keys split over CTAs. Pre-passes, a list with one row per entry (and KV head), fxa_decode; and
 * how the keys of an entry are cut into what a CTA has at a time (sm90/decode.cu).
 */
#include "call.h"

#include "../../../base/num.h"

enum {
    DECODE_PIECE = 8,  /* tiles at least, */
    DECODE_KEYS = 512, /* but so many keys where that makes no more than DECODE_FEW pieces */
    DECODE_FEW = 8,
    DECODE_ALONE = 16,  /* tiles, where each piece is an item */
    DECODE_PIECES = 64, /* of an entry: what sm90/decode_combine.cuh adds up */
    DECODE_TAIL = 6,    /* of items that are cut there are more than a sixth of the multiprocessors, */
    DECODE_EVEN = 5,    /* and less than three fifths */
    DECODE_RUN = 16,    /* pieces of an item: RUN_LEVELS there */
    DECODE_ROUNDS = 4,  /* of items, where these are of many lengths */
    DECODE_END = 128,   /* KB that a multiprocessor would read while an item ends */
    DECODE_SHARE = 640, /* KB that the device would read while a share more is added up */
    DECODE_CLUSTER = 8, /* CTAs at most, */
    DECODE_EACH = 2,    /* with so many pieces each; */
    DECODE_BUSY = 9,    /* twentieths of the multiprocessors read what memory gives, nearly; */
    DECODE_NEAR = 2,    /* clusters on half of the multiprocessors are there at once, those on more may not be */
    DECODE_FULL = 3,    /* a third of the multiprocessors reads what memory gives, */
    DECODE_IDLE = 20    /* but for a twentieth of what those that are idle had read */
};

typedef struct decode_cut {
    int64_t ctas, rows, pieces, piece; /* rows: (entry, KV head, row group)s; piece: KB */
    bool folds;                        /* a CTA can add pieces up (FOLDS in sm90/decode_shared.cuh) */
} decode_cut;

/* Pieces of the keys of one (entry, KV head), by its own shape alone: results do not depend on the batch. As many as
 * fill the device with one entry; where each of them ends an item, half as many, which read all there is. */
static int64_t decode_pieces(const decode_cut *c, int64_t rows, int64_t tiles, int64_t tile) {
    int64_t most = fxa__div_up(tiles, c->folds ? DECODE_PIECE : DECODE_ALONE), pieces = 1;
    if (c->folds) most = fxa__max_i64(most, fxa__min_i64(tiles * tile / DECODE_KEYS, DECODE_FEW));
    most = fxa__min_i64(fxa__min_i64(most, DECODE_PIECES), c->ctas / (c->folds ? 1 : 2) / rows);
    while (pieces * 2 <= most) pieces *= 2;
    return c->folds ? pieces : fxa__max_i64(most, 1);
}

/* Whether the last items are cut: those that do not fill a round of CTAs, where they are a good part of one. Where they
 * nearly fill it, the ends of the cut ones cost more than these even out; for few, smaller items of all are as good. */
static bool decode_has_tail(const decode_cut *c, int64_t items, int64_t run) {
    int64_t rest = items % c->ctas;
    return run > 1 && items > c->ctas && rest > c->ctas / DECODE_TAIL && rest < c->ctas / DECODE_EVEN * 3;
}

/* Time of a run with so many pieces in an item, in KB that memory gives. */
static int64_t decode_time(const decode_cut *c, int64_t run) {
    int64_t shares = fxa__div_up(c->pieces, run), items = c->rows * shares, rest = items % c->ctas;
    int64_t busy = items - rest, rounds = fxa__div_up(items, c->ctas);
    if (decode_has_tail(c, items, run)) busy = items, rest = 0, rounds++;
    if (rest) busy += fxa__max_i64(rest, c->ctas / DECODE_FULL) + (c->ctas - rest) / DECODE_IDLE;
    return busy * run * c->piece + rounds * c->ctas * DECODE_END + (shares > 1 ? shares * DECODE_SHARE : 0);
}

/* Pieces of an item. Entries of other lengths are balanced by many items. */
static int64_t decode_run(const decode_cut *c, bool spans) {
    int64_t best = 1, most = c->folds ? fxa__min_i64(c->pieces, DECODE_RUN) : 1;
    for (int64_t run = 2; run <= most; run *= 2) {
        if (spans && c->rows * (c->pieces / run) < DECODE_ROUNDS * c->ctas) break;
        if (decode_time(c, run) <= decode_time(c, best)) best = run;
    }
    return best;
}

/* The heads of the last items: halves of these, or quarters, of two pieces at least where they have them. */
static void decode_tail(const decode_cut *c, int64_t groups, fxa__cuda_buffers *out) {
    int64_t row = groups * fxa__div_up(out->splits, out->item_splits),
            items = c->rows / groups * row; /* row: of a head */
    if (decode_has_tail(c, items, out->item_splits))
        out->cut[out->item_splits >> 1 > 2] = (int32_t)fxa__div_up(items % c->ctas, row);
}

/* Of a row group of each of so many heads. */
static int64_t decode_items(const fxa__cuda_buffers *at, int64_t heads) {
    int64_t items = 0;
    for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) {
        heads -= at->cut[i];
        if (at->cut[i]) items += at->cut[i] * (at->splits / (at->item_splits >> (i + 1)));
    }
    return items + heads * fxa__div_up(at->splits, at->item_splits);
}

static decode_cut decode_cut_make(const fxa__cuda_self *self, const fxa__cuda_choice *choice, const fxa_problem *p,
                                  const struct FxaShape *shape) {
    int64_t groups = fxa__div_up(p->hq / p->hkv * p->sq, shape->q_rows), tiles = fxa__div_up(p->sk, shape->k_rows);
    decode_cut c = {self->processors, p->b * p->hkv * groups, 1, 1, false};
    int64_t workers = (shape->threads - 32) / 128 * 128; /* whole warpgroups beside the warp that copies */
    c.folds = (int64_t)shape->q_rows * choice->dv / 4 <= workers;
    c.pieces = decode_pieces(&c, p->hkv * groups, tiles, shape->k_rows);
    c.piece = fxa__div_up(fxa__div_up(tiles, c.pieces) * shape->k_rows * (choice->d + choice->dv) * 2, 1024);
    return c;
}

/* Where one item for each of so many CTAs reads what memory gives or is a piece, they add shares up without it. */
int32_t fxa__cuda_decode_cluster(const fxa__cuda_self *self, const fxa__cuda_choice *choice, const fxa_problem *p) {
    const struct FxaShape shape = fxa__cuda_tile_shape(choice, NULL, FXA__CUDA_DECODE);
    const decode_cut c = decode_cut_make(self, choice, p, &shape);
    if (!c.folds) return 0;
    for (int64_t ctas = DECODE_CLUSTER; ctas > 1; ctas /= 2) {
        int64_t all = c.rows * ctas;
        bool enough = ctas == c.pieces || all * 20 >= c.ctas * DECODE_BUSY;
        bool some = ctas <= c.pieces && c.pieces / ctas <= DECODE_EACH;
        if (enough && some && all <= c.ctas / DECODE_NEAR) return (int32_t)ctas;
    }
    return 0;
}

void fxa__cuda_decode_split(const fxa__cuda_self *self, const fxa__cuda_choice *choice, const fxa_problem *p,
                            const struct FxaShape *shape, fxa__cuda_buffers *out) {
    int64_t groups = fxa__div_up(p->hq / p->hkv * p->sq, shape->q_rows);
    decode_cut c = decode_cut_make(self, choice, p, shape);
    out->splits = (int32_t)c.pieces;
    out->item_splits = (int32_t)(choice->cluster ? c.pieces / choice->cluster : decode_run(&c, choice->varlen));
    if (!choice->cluster) decode_tail(&c, groups, out);
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
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_K, box, &c->maps.k));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_V, box, &c->maps.v));
    FXA_TRY(fxa__cuda_prepasses(c, &c->at.queries));
    FXA_TRY(fxa__cuda_tile_list_write(c, &c->at.queries));
    fxa__cuda_args_tile_list(c, &c->at.queries);
    int64_t items = c->at.items, ctas = fxa__min_i64(items, c->self->processors);
    if (shape->parts > 1) ctas = items; /* of clusters, one item each */
    c->a.tiles = (int)items;
    decode_divisors(&c->a, shape->q_rows);
    return fxa__cuda_launch_main(c, FXA__CUDA_DECODE, 0, (fxa__cuda_grid){ctas, 1, 1});
}
