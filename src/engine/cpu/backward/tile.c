/* SPDX-License-Identifier: Apache-2.0
 *
 * One block of keys against one tile of rows, in matrices of real:
 *
 *     S  = (scale Q) K^T,  dP = dO V^T                by a few strips, so that scores stay in cache
 *     P  = exp(program(S) - LSE)                      exactly 0 where the pair is not attended, at most 1
 *     dS = P (r dP - delta) through the program       r: dropout
 *     dV += (P r)^T dO,  dK += dS^T (scale Q),  dQ += dS K    dQ is scaled when it is whole
 *
 * S has the very bits of forward's scores: the same kernels multiply the same numbers, straight from storage where
 * forward does. Where products round, a scale that is no power of two comes after them, for S and for dK.
 *
 * Where the mask cuts the tile each strip has its own columns, and the products over rows go by groups of columns with
 * only the strips that have any of them. A product in which one factor is not finite skips the zeroes of the other:
 * zero wins.
 */
#include "backward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

typedef struct back_tile {
    int64_t number, first, n; /* rows of the group */
    const void *q, *dout;
    int64_t ld_q, ld_dout;
    int64_t count; /* of w->strips, in the order of rows, then columns; they begin at whole panels */
    bool cut;      /* strips differ */
    bool clear;    /* P and dS are 0 wherever no strip is; else only in groups of columns that a strip has some of */
    int64_t group; /* columns that a product over rows takes at once */
    bool whole;    /* and it takes several rows at once, also such that no strip has */
    unsigned finite;
} back_tile;

/* ---- Strips ----------------------------------------------------------------------------------------------------- */

/* False: the mask leaves nothing of the tile. */
static bool tile_cut_strips(fxa__back_worker *w, back_tile *t) {
    const fxa__cpu_kernels *kernels = w->job->code->kernels;
    fxa__cpu_cut *cut = &w->cut;
    int64_t most = fxa__back_strip_most(kernels), nr = kernels->nr;
    if (cut->mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    fxa__cpu_cut_tile(cut, t->number, t->first, t->n, w->h, w->q_at);
    if (!fxa__cpu_cut_block(cut, w->key, w->n_keys)) return false;
    t->cut = cut->tile == FXA_TILE_MIXED;
    t->count = 0;
    for (int64_t row = cut->row, rows; row < cut->row_end; row += rows) {
        fxa__cpu_strip *s = &w->strips[t->count];
        rows = fxa__cpu_cut_rows(cut, row, fxa__min_i64(most, cut->row_end - row));
        for (int64_t at = 0; fxa__cpu_cut_next(cut, row, rows, &at, s); t->count++, s++) {
            int64_t begin = s->begin + cut->key - w->key;
            s->end += cut->key - w->key;
            s->begin = begin / nr * nr;
            if (s->begin < begin) *(cut->banded ? &s->banded : &s->masked) = true;
        }
    }
    return t->count > 0;
}

static const void *tile_at(const fxa__back *job, const void *x, int64_t i) {
    return (const char *)x + i * (int64_t)job->code->kernels->real_size;
}

/* s = Q K^T for the columns of a strip. */
static void tile_scores_s(fxa__back_worker *w, const back_tile *t, const fxa__cpu_strip *s) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->scores;
    int64_t ld = job->cut.ld, at = s->row * ld + s->begin;
    const void *q = tile_at(job, t->q, s->row * t->ld_q);
    fxa__cpu_stored k;
    if (!w->few) {
        fxa__cpu_product x = {.rows = s->rows, .a = q, .lda = t->ld_q, .b = &w->k_t, .k_end = job->p->in.d_qk};
        x.begin = s->begin;
        x.end = s->end;
        x.c = fxa__back_at(job, w->s, at);
        x.ldc = ld;
        kernels->format->product_rows(kernels, &x);
        return;
    }
    for (int64_t i = s->begin; i < s->end; i += k.n, at += k.n) {
        k = fxa__cpu_take_keys(&w->g, FXA_SLOT_K, w->key + i, s->end - i);
        kernels->dots(fxa__back_at(job, w->s, at), ld, q, t->ld_q, s->rows, &k);
    }
}

/* The same, and ds = dO V^T; what the program reads arrives meanwhile. */
static void tile_scores(fxa__back_worker *w, const back_tile *t, const fxa__cpu_strip *s) {
    const fxa__back *job = w->job;
    fxa__tape_run *program = &w->tape[s->masked && !w->cut.bits ? FXA__BACK_MASKED : FXA__BACK_SCORE];
    for (int64_t row = s->row; program->tape && row < s->row + s->rows; row++)
        fxa__tape_prefetch(program, row, s->begin, s->end - s->begin);
    const fxa__cpu_kernels *kernels = job->code->kernels;
    const fxa__back_shares *cut = &job->cut;
    tile_scores_s(w, t, s);
    if (!cut->want_ds) return;
    fxa__cpu_product x = {.rows = s->rows, .lda = t->ld_dout, .b = &w->v_t, .k_end = job->p->in.d_v};
    x.a = tile_at(job, t->dout, s->row * t->ld_dout);
    x.begin = s->begin;
    x.end = s->end;
    x.c = fxa__back_at(job, w->ds, s->row * cut->ld + s->begin);
    x.ldc = cut->ld;
    kernels->format->product_rows(kernels, &x);
}

/* Zeroes beside columns begin..end of a row of strip number i: what products may read there, and what made them wrote
 * past the end. Strips further on come later. */
static void tile_row_clear(const fxa__back_worker *w, const back_tile *t, int64_t i, int64_t row, int64_t begin,
                           int64_t end) {
    const fxa__cpu_strip *s = &w->strips[i];
    int64_t from = s->begin, to = w->n_keys;
    if (!t->clear) {
        from = from / t->group * t->group;
        to = fxa__min_i64(to, fxa__round_up(s->end, t->group));
        if (i > 0 && s[-1].row == s->row) from = fxa__max_i64(from, s[-1].end);
    }
    fxa__back_row_clear(w, row, from, begin);
    fxa__back_row_clear(w, row, end, to);
}

/* One row of strip number i: its columns, or those that the band leaves it. */
static void tile_row(fxa__back_worker *w, const back_tile *t, int64_t i, int64_t row) {
    const fxa__cpu_strip *s = &w->strips[i];
    int64_t begin = s->begin, end = s->end;
    if (s->banded) {
        int64_t q = w->q_at[row] + w->cut.key - w->key;
        begin = fxa__min_i64(fxa__max_i64(q + w->cut.band_begin, begin), end);
        end = fxa__min_i64(fxa__max_i64(q + w->cut.band_end, begin), end);
    }
    if (w->lse[t->first + row] == -INFINITY) end = begin; /* it attended to nothing */
    if (begin < end) fxa__back_row(w, t->first, row, s->masked, begin, end);
    if (begin == end || t->cut) tile_row_clear(w, t, i, row, begin, end);
}

/* Scores and dP of a strip become P and dS. */
static void tile_strip_rows(fxa__back_worker *w, const back_tile *t, int64_t i) {
    const fxa__back *job = w->job;
    const fxa__cpu_strip *s = &w->strips[i];
    const fxa__cpu_kernels *kernels = job->code->kernels;
    int64_t n = s->end - s->begin, at = s->row * job->cut.ld + s->begin;
    double factor = fxa__cpu_score_factor(job->code->scores, job->bound->scale);
    for (int64_t row = 0; factor != 1 && n > 0 && row < s->rows; row++)
        kernels->row_scale(fxa__back_at(job, w->s, at + row * job->cut.ld), n, factor);
    for (int64_t row = s->row; row < s->row + s->rows; row++) tile_row(w, t, i, row);
}

/* ---- Products over rows: dV += (P r)^T dO, dK += dS^T Q --------------------------------------------------------- */

typedef struct back_product {
    void *weight;  /* [tile,ld] */
    const void *x; /* [tile,ld_x] */
    int64_t ld_x;
    const fxa__cpu_over *over; /* of x, packed */
    bool finite;
} back_product;

static void tile_product_careful(const fxa__back_worker *w, const back_tile *t, const back_product *x) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    fxa__cpu_stored rows = {.data = x->x, .dtype = fxa__back_real(job), .ld = x->ld_x, .n = t->n, .d = x->over->d};
    for (int64_t c = 0; c < w->n_keys; c++) {
        for (int64_t r = 0; r < t->n; r++)
            memcpy(fxa__back_at(job, w->column, r), fxa__back_at(job, x->weight, r * job->cut.ld + c),
                   kernels->real_size);
        kernels->sums(fxa__back_at(job, x->over->out, c * x->over->ld_out), x->over->ld_out, w->column, 0, 1, &rows);
    }
}

/* Columns begin..end over the rows of the strips that have any of them; where rows are taken by many at once, also over
 * those between. */
static void tile_product_group(const fxa__back_worker *w, const back_tile *t, const back_product *x, int64_t begin,
                               int64_t end) {
    const fxa__cpu_kernels *kernels = w->job->code->kernels;
    int64_t first = 0, last = 0, ld = w->job->cut.ld;
    for (int64_t i = 0; i < t->count; i++) {
        const fxa__cpu_strip *s = &w->strips[i];
        if (s->end <= begin || s->begin >= end) continue;
        bool apart = s->row > last && (!t->whole || first == last);
        if (apart && first < last) kernels->format->over_add(kernels, x->over, x->weight, ld, begin, end, first, last);
        if (apart) first = s->row;
        last = s->row + s->rows;
    }
    if (first < last) kernels->format->over_add(kernels, x->over, x->weight, ld, begin, end, first, last);
}

static void tile_product(const fxa__back_worker *w, const back_tile *t, const back_product *x) {
    if (!x->finite) {
        tile_product_careful(w, t, x);
        return;
    }
    for (int64_t begin = 0; begin < w->n_keys; begin += t->group)
        tile_product_group(w, t, x, begin, fxa__min_i64(begin + t->group, w->n_keys));
}

/* ---- dQ += dS K ------------------------------------------------------------------------------------------------- */

static void tile_dq_careful(const fxa__back_worker *w, const back_tile *t) {
    const fxa__back *job = w->job;
    int64_t ld_d = job->cut.ld_d;
    fxa__cpu_stored k = {.data = w->k, .dtype = fxa__back_real(job), .ld = ld_d, .n = w->n_keys, .d = job->p->in.d_qk};
    job->code->kernels->sums(fxa__back_at(job, w->dq, t->first * ld_d), ld_d, w->ds, job->cut.ld, t->n, &k);
}

static void tile_dq(const fxa__back_worker *w, const back_tile *t) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    const fxa__back_shares *cut = &job->cut;
    if (!w->k_finite) {
        tile_dq_careful(w, t);
        return;
    }
    fxa__cpu_strip all = {.rows = t->n, .end = w->n_keys};
    for (int64_t i = 0; i < (t->cut ? t->count : 1); i++) {
        const fxa__cpu_strip *s = t->cut ? &w->strips[i] : &all;
        fxa__cpu_product x = {.rows = s->rows, .lda = cut->ld, .b = &w->k_n, .end = job->p->in.d_qk, .beta = job->ones};
        x.a = fxa__back_at(job, w->ds, s->row * cut->ld + s->begin);
        x.a_first = x.k_begin = s->begin;
        x.k_end = s->end;
        x.c = fxa__back_at(job, w->dq, (t->first + s->row) * cut->ld_d);
        x.ldc = cut->ld_d;
        kernels->format->product_rows(kernels, &x);
    }
}

/* ---- The tile --------------------------------------------------------------------------------------------------- */

/* K and V of the block, once some tile needs them. */
static void tile_load_keys(fxa__back_worker *w) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels, *scores = job->code->scores;
    const fxa__back_shares *cut = &job->cut;
    int64_t d = job->p->in.d_qk, dv = job->p->in.d_v;
    if (cut->want_ds) {
        (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, w->key, w->n_keys, w->k, cut->ld_v);
        kernels->format->b_pack_t(kernels, &w->v_t, w->k, cut->ld_v, w->n_keys, dv);
    }
    w->k_finite = fxa__cpu_load_keys(&w->g, FXA_SLOT_K, w->key, w->n_keys, w->k, cut->ld_d);
    if (cut->want_q) kernels->format->b_pack(kernels, &w->k_n, w->k, cut->ld_d, w->n_keys, d);
    if (!w->few) scores->format->b_pack_t(scores, &w->k_t, w->k, cut->ld_d, w->n_keys, d);
    w->keys_run = fxa__cpu_key_coords(&w->g, w->key, w->n_keys, w->k_at);
    for (int i = 0; i < FXA__BACK_TAPES; i++)
        if (w->tape[i].tape) fxa__tape_columns(&w->tape[i], w->n_keys, w->k_at, w->key);
    w->loaded = true;
}

/* Whether n rows lie in memory as a matrix of real, *ld apart. */
static bool tile_rows_are_real(const fxa__back_worker *w, fxa_slot slot, int64_t first, int64_t n, int64_t *ld) {
    const fxa_problem *p = &w->job->p->in;
    const fxa_operand *x = slot == FXA_SLOT_Q ? &p->q : slot == FXA_SLOT_O ? &p->o : &p->dout;
    bool one_head = first / w->g.seq.q_len == (first + n - 1) / w->g.seq.q_len;
    if (!one_head || x->dtype != fxa__back_real(w->job) || x->stride[3] != 1) return false;
    *ld = x->stride[2];
    return true;
}

const void *fxa__back_rows(const fxa__back_worker *w, fxa_slot slot, int64_t first, int64_t n, void *room,
                           int64_t *ld) {
    if (tile_rows_are_real(w, slot, first, n, ld)) return fxa__cpu_row_place(&w->g, slot, first).data;
    (void)fxa__cpu_load_rows(&w->g, slot, first, n, 1, room, *ld);
    return room;
}

static void tile_load_rows(fxa__back_worker *w, back_tile *t) {
    const fxa__back *job = w->job;
    const fxa_problem *p = &job->p->in;
    t->ld_q = job->cut.ld_d;
    t->ld_dout = job->cut.ld_v;
    t->q = w->q;
    double factor = fxa__cpu_q_factor(job->code->scores, job->bound->scale);
    if (factor == 1)
        t->q = fxa__back_rows(w, FXA_SLOT_Q, t->first, t->n, w->q, &t->ld_q);
    else
        (void)fxa__cpu_load_rows(&w->g, FXA_SLOT_Q, t->first, t->n, factor, w->q, t->ld_q);
    t->dout = fxa__back_rows(w, FXA_SLOT_DO, t->first, t->n, w->dout, &t->ld_dout);
    const fxa__cpu_kernels *kernels = job->code->kernels;
    if (job->cut.want_k) kernels->format->over_pack(kernels, &w->over_k, t->q, t->ld_q, t->n);
    if (job->cut.want_v) kernels->format->over_pack(kernels, &w->over_v, t->dout, t->ld_dout, t->n);
    bool coords = w->cut.banded || (p->flags & FXA_DROPOUT);
    for (int i = 0; i < FXA__BACK_TAPES; i++) coords = coords || w->tape[i].tape;
    if (coords && !w->cut.mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    for (int i = 0; i < FXA__BACK_TAPES; i++)
        if (w->tape[i].tape)
            fxa__tape_rows(&w->tape[i], t->n, w->h, w->q_at, fxa__cpu_row_q(&w->g, t->first), w->g.seq.q_len);
}

/* Tiles of a head, and the height of each. */
static int64_t tile_per_head(const fxa__back_worker *w, int64_t *height) {
    int64_t most = w->job->cut.tile, q_len = w->g.seq.q_len, tiles = fxa__div_up(q_len, most);
    int64_t even = fxa__round_up(fxa__div_up(q_len, tiles), fxa__back_strip(w->job->code->kernels));
    *height = fxa__min_i64(most, even);
    return fxa__div_up(q_len, *height);
}

/* A head of many rows has tiles of its own, of about the same height, so that masks cut them alike. */
bool fxa__back_tile_rows(const fxa__back_worker *w, int64_t tile, int64_t *first, int64_t *n) {
    int64_t height = w->job->cut.tile, q_len = w->g.seq.q_len;
    if (w->g.rows == 0) return false;
    if (q_len < height) {
        *first = tile * height;
        *n = fxa__min_i64(height, w->g.rows - *first);
        return *first < w->g.rows;
    }
    int64_t tiles = tile_per_head(w, &height);
    *first = tile / tiles * q_len + tile % tiles * height;
    *n = fxa__min_i64(height, q_len - tile % tiles * height);
    return *first < w->g.rows;
}

/* The number of a tile among those of its head, or of the stacked rows. */
static int64_t tile_number(const fxa__back_worker *w, int64_t tile) {
    return w->g.seq.q_len < w->job->cut.tile ? tile : tile % tile_per_head(w, &(int64_t){0});
}

void fxa__back_tile(fxa__back_worker *w, int64_t tile) {
    const fxa__back *job = w->job;
    const fxa__back_shares *cut = &job->cut;
    back_tile t = {.finite = w->finite[tile]};
    t.number = tile_number(w, tile);
    if (!fxa__back_tile_rows(w, tile, &t.first, &t.n) || !tile_cut_strips(w, &t)) return;
    bool dout_finite = t.finite & FXA__BACK_DO_FINITE, q_finite = t.finite & FXA__BACK_Q_FINITE;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    t.whole = kernels->format->over_depth(kernels) > 1;
    t.group = kernels->format->over_step(kernels, t.cut, w->n_keys);
    if (!w->loaded) tile_load_keys(w);
    tile_load_rows(w, &t);
    t.clear = t.cut && (t.whole || !dout_finite || !q_finite || !w->k_finite);
    for (int64_t row = 0; t.clear && row < t.n; row++) fxa__back_row_clear(w, row, 0, w->n_keys);
    for (int64_t i = 0; i < t.count; i++) {
        tile_scores(w, &t, &w->strips[i]);
        tile_strip_rows(w, &t, i);
    }
    back_product dv = {w->p, t.dout, t.ld_dout, &w->over_v, dout_finite};
    back_product dk = {w->ds, t.q, t.ld_q, &w->over_k, q_finite};
    if (cut->want_v) tile_product(w, &t, &dv);
    if (cut->want_k) tile_product(w, &t, &dk);
    if (cut->want_q && w->dq_has && !w->dq_has[tile]) {
        memset(fxa__back_at(job, w->dq, t.first * cut->ld_d), 0, (size_t)(t.n * cut->ld_d) * kernels->real_size);
        w->dq_has[tile] = 1;
    }
    if (cut->want_q) tile_dq(w, &t);
}
