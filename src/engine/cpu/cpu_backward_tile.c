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
#include "cpu_backward.h"

#include "../../base/invariant.h"
#include "../../base/num.h"

#include <string.h>

enum { TILE_GROUP = 24 }; /* columns that a product over rows takes at once, where strips differ */

typedef struct back_tile {
    int64_t number, first, n; /* rows of the group */
    const void *q, *dout;
    int64_t ld_q, ld_dout;
    int64_t count; /* of w->strips, in the order of rows, then columns; they begin at whole panels */
    bool cut;      /* strips differ */
    bool clear;    /* P and dS are 0 wherever no strip is; else only in groups of columns that a strip has some of */
    int64_t group; /* columns that a product over rows takes at once */
    unsigned finite;
} back_tile;

/* ---- Strips ----------------------------------------------------------------------------------------------------- */

/* False: the mask leaves nothing of the tile. */
static bool tile_cut_strips(fxa__back_worker *w, back_tile *t) {
    const fxa__cpu_kernels *kernels = w->job->code->kernels;
    fxa__cpu_cut *cut = &w->cut;
    int64_t most = fxa__max_i64(fxa__back_strip(kernels), kernels->rows), nr = kernels->nr;
    if (cut->mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    fxa__cpu_cut_tile(cut, t->number, t->first, t->n, w->h, w->q_at);
    if (!fxa__cpu_cut_block(cut, w->key, w->n_keys)) return false;
    t->cut = cut->tile == FXA_TILE_MIXED;
    t->count = 0;
    for (int64_t row = 0, rows; row < t->n; row += rows) {
        fxa__cpu_strip *s = &w->strips[t->count];
        rows = fxa__cpu_cut_rows(cut, row, fxa__min_i64(most, t->n - row));
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
    int64_t ld = job->cut.ld, d = job->p->p.d, at = s->row * ld + s->begin;
    const void *q = tile_at(job, t->q, s->row * t->ld_q);
    fxa__cpu_stored k;
    if (!w->few) {
        kernels->gemm(s->rows, s->end - s->begin, d, q, t->ld_q, 1, fxa__back_at(job, w->k_t, s->begin * d),
                      d * kernels->nr, fxa__back_at(job, w->s, at), ld, NULL);
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
    const fxa__back_cut *cut = &job->cut;
    int64_t dv = job->p->p.dv, n = s->end - s->begin, at = s->row * cut->ld + s->begin;
    tile_scores_s(w, t, s);
    if (cut->want_ds)
        kernels->gemm(s->rows, n, dv, tile_at(job, t->dout, s->row * t->ld_dout), t->ld_dout, 1,
                      fxa__back_at(job, w->v_t, s->begin * dv), dv * kernels->nr, fxa__back_at(job, w->ds, at), cut->ld,
                      NULL);
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
    double factor = fxa__cpu_score_factor(job->code->scores, job->bind->scale);
    for (int64_t row = 0; factor != 1 && n > 0 && row < s->rows; row++)
        kernels->row_scale(fxa__back_at(job, w->s, at + row * job->cut.ld), n, factor);
    for (int64_t row = s->row; row < s->row + s->rows; row++) tile_row(w, t, i, row);
}

/* ---- Products over rows: dV += (P r)^T dO, dK += dS^T Q --------------------------------------------------------- */

typedef struct back_product {
    void *weight;  /* [tile,ld] */
    const void *x; /* [tile,ld_x] */
    int64_t ld_x, d;
    void *panels;      /* of x; by transposes: pairs of x^T */
    void *out, *out_t; /* [block,ld_out]; by transposes: [d,ld] */
    int64_t ld_out;
    bool finite;
} back_product;

static void tile_product_careful(const fxa__back_worker *w, const back_tile *t, const back_product *x) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    fxa__cpu_stored rows = {.data = x->x, .dtype = fxa__back_real(job), .ld = x->ld_x, .n = t->n, .d = x->d};
    for (int64_t c = 0; c < w->n_keys; c++) {
        for (int64_t r = 0; r < t->n; r++)
            memcpy(fxa__back_at(job, w->column, r), fxa__back_at(job, x->weight, r * job->cut.ld + c),
                   kernels->real_size);
        kernels->sums(fxa__back_at(job, x->out, c * x->ld_out), x->ld_out, w->column, 0, 1, &rows);
    }
}

/* Columns begin..end over rows first..last. */
static void tile_product_part(const fxa__back_worker *w, const back_tile *t, const back_product *x, int64_t begin,
                              int64_t end, int64_t first, int64_t last) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    kernels->gemm(end - begin, x->d, last - first, fxa__back_at(job, x->weight, first * job->cut.ld + begin), 1,
                  job->cut.ld, fxa__back_at(job, x->panels, first * kernels->panel_row), t->n * kernels->nr,
                  fxa__back_at(job, x->out, begin * x->ld_out), x->ld_out, job->ones);
}

/* The same by transposes, out^T += x^T weight, for sets that make a panel of the weights faster than rows of their
 * transpose. Rows are taken by as many as a product does at once; past the last they are 0. */
static void tile_product_pairs(const fxa__back_worker *w, const back_tile *t, const back_product *x, int64_t begin,
                               int64_t end, int64_t first, int64_t last) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    int64_t depth = kernels->depth, nr = kernels->nr;
    first = first / depth * depth;
    last = fxa__min_i64(t->n, fxa__round_up(last, depth));
    int64_t pairs = fxa__div_up(last - first, 2), k = fxa__round_up(last - first, depth);
    kernels->pack_n(w->panel, fxa__back_at(job, x->weight, first * job->cut.ld + begin), job->cut.ld, last - first,
                    end - begin);
    memset((uint32_t *)w->panel + pairs * nr, 0, (size_t)((k / 2 - pairs) * nr) * sizeof(uint32_t));
    kernels->gemm_pairs(x->d, end - begin, k, (const uint32_t *)x->panels + first / 2, job->cut.ld_pairs, w->panel, 0,
                        fxa__back_at(job, x->out_t, begin), job->cut.ld, job->ones);
}

/* Columns begin..end over the rows of the strips that have any of them; by transposes, also over those between. */
static void tile_product_group(const fxa__back_worker *w, const back_tile *t, const back_product *x, int64_t begin,
                               int64_t end) {
    bool transposed = w->job->code->kernels->add_transposed != NULL;
    int64_t first = 0, last = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const fxa__cpu_strip *s = &w->strips[i];
        if (s->end <= begin || s->begin >= end) continue;
        if (s->row > last && !transposed && first < last) tile_product_part(w, t, x, begin, end, first, last);
        if (s->row > last && (!transposed || first == last)) first = s->row;
        last = s->row + s->rows;
    }
    if (first < last) (transposed ? tile_product_pairs : tile_product_part)(w, t, x, begin, end, first, last);
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
    fxa__cpu_stored k = {.data = w->k, .dtype = fxa__back_real(job), .ld = ld_d, .n = w->n_keys, .d = job->p->p.d};
    job->code->kernels->sums(fxa__back_at(job, w->dq, t->first * ld_d), ld_d, w->ds, job->cut.ld, t->n, &k);
}

static void tile_dq(const fxa__back_worker *w, const back_tile *t) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    const fxa__back_cut *cut = &job->cut;
    if (!w->k_finite) {
        tile_dq_careful(w, t);
        return;
    }
    fxa__cpu_strip all = {.rows = t->n, .end = w->n_keys};
    for (int64_t i = 0; i < (t->cut ? t->count : 1); i++) {
        const fxa__cpu_strip *s = t->cut ? &w->strips[i] : &all;
        kernels->gemm(s->rows, job->p->p.d, s->end - s->begin, fxa__back_at(job, w->ds, s->row * cut->ld + s->begin),
                      cut->ld, 1, fxa__back_at(job, w->k_n, s->begin * kernels->panel_row), w->n_keys * kernels->nr,
                      fxa__back_at(job, w->dq, (t->first + s->row) * cut->ld_d), cut->ld_d, job->ones);
    }
}

/* ---- The tile --------------------------------------------------------------------------------------------------- */

/* K and V of the block, once some tile needs them. */
static void tile_load_keys(fxa__back_worker *w) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    const fxa__back_cut *cut = &job->cut;
    int64_t d = job->p->p.d, dv = job->p->p.dv;
    if (cut->want_ds) {
        (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, w->key, w->n_keys, w->k, cut->ld_v);
        kernels->pack_t(w->v_t, w->k, cut->ld_v, w->n_keys, dv);
    }
    w->k_finite = fxa__cpu_load_keys(&w->g, FXA_SLOT_K, w->key, w->n_keys, w->k, cut->ld_d);
    if (cut->want_q) kernels->pack_n(w->k_n, w->k, cut->ld_d, w->n_keys, d);
    if (!w->few) job->code->scores->pack_t(w->k_t, w->k, cut->ld_d, w->n_keys, d);
    w->keys_run = fxa__cpu_key_coords(&w->g, w->key, w->n_keys, w->k_at);
    for (int i = 0; i < FXA__BACK_TAPES; i++)
        if (w->tape[i].tape) fxa__tape_columns(&w->tape[i], w->n_keys, w->k_at);
    w->loaded = true;
}

/* Whether n rows lie in memory as a matrix of real, *ld apart. */
static bool tile_rows_are_real(const fxa__back_worker *w, fxa_slot slot, int64_t first, int64_t n, int64_t *ld) {
    const fxa_problem *p = &w->job->p->p;
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

/* Rows of x for products over rows. */
static void tile_pack_rows(const fxa__back *job, void *to, const void *x, int64_t ld, int64_t n, int64_t d) {
    const fxa__cpu_kernels *kernels = job->code->kernels;
    if (kernels->add_transposed)
        kernels->round(to, job->cut.ld_pairs, d, n, x, 1, ld);
    else
        kernels->pack_n(to, x, ld, n, d);
}

static void tile_load_rows(fxa__back_worker *w, back_tile *t) {
    const fxa__back *job = w->job;
    const fxa_problem *p = &job->p->p;
    t->ld_q = job->cut.ld_d;
    t->ld_dout = job->cut.ld_v;
    t->q = w->q;
    double factor = fxa__cpu_q_factor(job->code->scores, job->bind->scale);
    if (factor == 1)
        t->q = fxa__back_rows(w, FXA_SLOT_Q, t->first, t->n, w->q, &t->ld_q);
    else
        (void)fxa__cpu_load_rows(&w->g, FXA_SLOT_Q, t->first, t->n, factor, w->q, t->ld_q);
    t->dout = fxa__back_rows(w, FXA_SLOT_DO, t->first, t->n, w->dout, &t->ld_dout);
    if (job->cut.want_k) tile_pack_rows(job, w->q_n, t->q, t->ld_q, t->n, p->d);
    if (job->cut.want_v) tile_pack_rows(job, w->dout_n, t->dout, t->ld_dout, t->n, p->dv);
    bool coords = w->cut.banded || (p->flags & FXA_DROPOUT);
    for (int i = 0; i < FXA__BACK_TAPES; i++) coords = coords || w->tape[i].tape;
    if (coords && !w->cut.mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    for (int i = 0; i < FXA__BACK_TAPES; i++)
        if (w->tape[i].tape) fxa__tape_rows(&w->tape[i], t->n, w->h, w->q_at);
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
    const fxa__back_cut *cut = &job->cut;
    const fxa_problem *p = &job->p->p;
    back_tile t = {.finite = w->finite[tile]};
    t.number = tile_number(w, tile);
    if (!fxa__back_tile_rows(w, tile, &t.first, &t.n) || !tile_cut_strips(w, &t)) return;
    bool dout_finite = t.finite & FXA__BACK_DO_FINITE, q_finite = t.finite & FXA__BACK_Q_FINITE;
    bool transposed = job->code->kernels->add_transposed != NULL;
    t.group = transposed ? job->code->kernels->nr : t.cut ? TILE_GROUP : w->n_keys;
    if (!w->loaded) tile_load_keys(w);
    tile_load_rows(w, &t);
    t.clear = t.cut && (transposed || !dout_finite || !q_finite || !w->k_finite);
    for (int64_t row = 0; t.clear && row < t.n; row++) fxa__back_row_clear(w, row, 0, w->n_keys);
    for (int64_t i = 0; i < t.count; i++) {
        tile_scores(w, &t, &w->strips[i]);
        tile_strip_rows(w, &t, i);
    }
    back_product dv = {w->p, t.dout, t.ld_dout, p->dv, w->dout_n, w->dv, w->dv_t, cut->ld_v, dout_finite};
    back_product dk = {w->ds, t.q, t.ld_q, p->d, w->q_n, w->dk, w->dk_t, cut->ld_d, q_finite};
    if (cut->want_v) tile_product(w, &t, &dv);
    if (cut->want_k) tile_product(w, &t, &dk);
    if (cut->want_q) tile_dq(w, &t);
}
