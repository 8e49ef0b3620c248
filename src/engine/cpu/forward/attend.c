/* SPDX-License-Identifier: Apache-2.0
 *
 * One item by packed panels. The keys of the item go by in blocks; what the mask leaves of none of its rows is not even
 * loaded. A block is packed once for all rows, and Q once for all blocks. Then the rows go the whole way a block at a
 * time, while their scores stay in cache:
 *
 *     t = Q K^T [rows, columns]    only the panels that the mask leaves of these rows
 *     t = softmax                  a group of a few rows at a time, each with the columns that the mask leaves of it
 *     o = beta o + t V             the product summed apart first, so that errors do not grow with the length
 *
 * Where products want many rows a block is several groups. The weights of a group are 0 in columns of the block that it
 * does not have.
 */
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum {
    ATTEND_GROUPS = FXA__CPU_MAX_BLOCK / FXA__CPU_MAX_ROWS,
    ATTEND_STRIPS = FXA__CPU_MAX_KEYS / (FXA__CPU_GRANULE + FXA__CPU_GAP) + 2 /* and one that is not there */
};

/* Rows that go through the softmax together, with what they have of the first strip. Its scores are made from `column`
 * on, where a product can begin; before the strip's begin they do not count. None when column is its end. */
typedef struct attend_group {
    fxa__cpu_strip strip;
    int64_t column;
} attend_group;

/* Rows that share their products, and their strips, whose scores lie side by side. Of the first strip some group has
 * columns begin..end, made from `column` on; of the others all groups have all. */
typedef struct attend_part {
    int64_t row, n, column, begin, end;
    int count, strips;
    bool first; /* no row has an output yet: what lies there is not looked at */
    attend_group group[ATTEND_GROUPS];
    fxa__cpu_strip strip[ATTEND_STRIPS];
} attend_part;

/* K^T of the cut's block: the panels in which some row has a pair. */
static void attend_pack_k(fxa__cpu_item *it) {
    int64_t d = it->g.p->in.d_qk, nr = it->kernels->nr, n = it->cut.keys;
    for (int64_t at = 0, end; at < n; at = end) {
        bool needed = fxa__cpu_cut_needs(&it->cut, at, nr);
        for (end = fxa__min_i64(at + nr, n); end < n && fxa__cpu_cut_needs(&it->cut, end, nr) == needed;)
            end = fxa__min_i64(end + nr, n);
        fxa__cpu_b run = {.panels = fxa__real_at(it, it->s.k.panels, at * d)};
        if (needed)
            it->kernels->format->b_load_t(it->kernels, &it->g, FXA_SLOT_K, it->cut.key + at, end - at, &run, it->s.x);
    }
    it->s.k.rows = NULL;
    it->s.k.k = d;
}

/* K^T and V of keys key..key+n. Infinities and NaN of V make the item dirty: it is then left as rows of real. */
static void attend_pack(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_format *format = it->kernels->format;
    int64_t ldv = it->run->blocks.ldv;
    attend_pack_k(it);
    if (it->dirty)
        (void)fxa__cpu_load_keys(&it->g, FXA_SLOT_V, key, n, it->s.x, ldv);
    else
        it->dirty = !format->b_load(it->kernels, &it->g, FXA_SLOT_V, key, n, &it->s.v, it->s.x, ldv);
}

/* o = beta o + t V for one row and n keys from `column` of the block on, where a number may be infinite or NaN: weights
 * of 0 and outputs of weight 0 count for nothing. */
static void attend_careful_row(fxa__cpu_item *it, int64_t row, const void *t, int64_t column, int64_t n, double beta) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t dv = it->g.p->in.d_v;
    void *o = fxa__real_at(it, it->s.o, row * blocks->ldo), *x = fxa__real_at(it, it->s.x, column * blocks->ldv);
    if (it->large_end > 0) {
        fxa__cpu_large_add(it, row, t, x, n, beta);
        return;
    }
    if (beta == 0)
        memset(o, 0, (size_t)blocks->ldo * kernels->real_size);
    else if (beta != 1)
        kernels->row_scale(o, dv, beta);
    fxa__cpu_stored v = {.data = x, .dtype = kernels->real_dtype, .ld = blocks->ldv, .n = n, .d = dv};
    kernels->sums(o, blocks->ldo, t, blocks->ldt, 1, &v);
}

/* The same of a group. */
static void attend_careful(fxa__cpu_item *it, const attend_part *part, const attend_group *g) {
    for (int64_t i = 0; i < g->strip.rows; i++) {
        int64_t row = g->strip.row + i, n = g->strip.end - g->column;
        void *t = fxa__real_at(it, it->s.t, i * it->run->blocks.ldt);
        attend_careful_row(it, row, t, g->column, n, fxa__real_get(it->s.beta, it->kernels->real_size, i));
        for (int j = 1; j < part->strips; j++) {
            t = fxa__real_at(it, t, n);
            n = part->strip[j].end - part->strip[j].begin;
            attend_careful_row(it, row, t, part->strip[j].begin, n, 1);
        }
    }
}

/* Weights of a group as operands, strip by strip. */
static void attend_weights(fxa__cpu_item *it, const attend_part *part, const attend_group *g) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t ldt = it->run->blocks.ldt, n = part->end - part->column;
    void *t = fxa__real_at(it, it->s.scores, (g->strip.row - part->row) * ldt);
    kernels->format->a_weights(kernels, t, ldt, g->strip.rows, g->column - part->column, g->strip.end - part->column,
                               n);
    for (int j = 1; j < part->strips; j++) {
        t = fxa__real_at(it, t, n);
        n = part->strip[j].end - part->strip[j].begin;
        kernels->format->a_weights(kernels, t, ldt, g->strip.rows, 0, n, n);
    }
}

/* Scores of a group become weights, and these an operand. */
static void attend_softmax(fxa__cpu_item *it, attend_part *part, const attend_group *g) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t ldt = it->run->blocks.ldt, at = g->strip.row - part->row, n = g->strip.end - g->column;
    it->s.t = fxa__real_at(it, it->s.scores, at * ldt + g->column - part->column);
    it->s.beta = fxa__real_at(it, it->s.betas, at);
    part->strip[0] = g->strip;
    for (int j = 1; j < part->strips; j++) n += part->strip[j].end - part->strip[j].begin;
    if (n == 0) {
        for (int64_t i = 0; i < g->strip.rows; i++) fxa__real_set(it->s.beta, kernels->real_size, i, 1);
    } else {
        double factor = fxa__cpu_score_factor(kernels, it->g.bound->scale);
        for (int64_t i = 0; factor != 1 && i < g->strip.rows; i++)
            kernels->row_scale(fxa__real_at(it, it->s.t, i * ldt), n, factor);
        fxa__cpu_softmax(it, part->strip, part->strips, g->column);
        if (it->dirty) attend_careful(it, part, g);
    }
    if (!it->dirty) attend_weights(it, part, g);
}

/* t = Q K^T, strip by strip */
static void attend_scores(fxa__cpu_item *it, const attend_part *part) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    fxa__cpu_product x = {.rows = part->n, .b = &it->s.k, .k_end = it->s.k.k};
    x.a = fxa__real_at(it, it->s.q, part->row * blocks->lda);
    x.lda = blocks->lda;
    x.begin = part->column;
    x.end = part->end;
    x.c = it->s.scores;
    x.ldc = blocks->ldt;
    it->kernels->format->product(it->kernels, &x);
    for (int j = 1; j < part->strips; j++) {
        x.c = fxa__real_at(it, x.c, x.end - x.begin);
        x.begin = part->strip[j].begin;
        x.end = part->strip[j].end;
        it->kernels->format->product(it->kernels, &x);
    }
}

static bool attend_has_none(const fxa__cpu_item *it, int64_t row) { return it->s.m[row] == -INFINITY; }

/* Outputs of rows that have none are 0; those of an earlier pass stay. */
static void attend_clear(fxa__cpu_item *it, int64_t row, int64_t n) {
    int64_t ldo = it->run->blocks.ldo;
    for (int64_t i = row; it->large_end == 0 && i < row + n; i++)
        if (attend_has_none(it, i)) memset(fxa__real_at(it, it->s.o, i * ldo), 0, (size_t)ldo * it->kernels->real_size);
}

/* None of these rows has an output, and a product will write all that lies there. */
static bool attend_is_first(const fxa__cpu_item *it, int64_t row, int64_t n) {
    int64_t i = row;
    if (it->g.p->in.d_v != it->run->blocks.ldo) return false;
    while (i < row + n && attend_has_none(it, i)) i++;
    return i == row + n;
}

/* o = beta o + t V, strip by strip; weights before part->begin are 0. */
static void attend_output(fxa__cpu_item *it, const attend_part *part) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    fxa__cpu_product x = {.rows = part->n, .b = &it->s.v, .end = it->g.p->in.d_v};
    x.beta = part->first ? NULL : it->s.betas;
    x.a = it->s.scores;
    x.lda = blocks->ldt;
    x.a_first = part->column;
    x.k_begin = part->begin;
    x.k_end = part->end;
    x.c = fxa__real_at(it, it->s.o, part->row * blocks->ldo);
    x.ldc = blocks->ldo;
    it->kernels->format->product(it->kernels, &x);
    x.beta = it->s.betas;
    for (int64_t i = 0; part->strips > 1 && i < part->n; i++)
        fxa__real_set(it->s.betas, it->kernels->real_size, i, 1); /* the others add to that */
    for (int64_t j = 1, at = part->end - part->column; j < part->strips; j++) {
        x.a = fxa__real_at(it, it->s.scores, at);
        x.a_first = x.k_begin = part->strip[j].begin;
        x.k_end = part->strip[j].end;
        at += x.k_end - x.k_begin;
        it->kernels->format->product(it->kernels, &x);
    }
}

/* Groups of the part's rows, each with what is left of the first strip. Where there are more the bits alone tell. */
static void attend_cut(const fxa__cpu_item *it, attend_part *part) {
    const fxa__cpu_strip *strip = &part->strip[0];
    int64_t step = it->kernels->nr_step, keys = it->cut.keys;
    FXA__ASSERT(strip->rows <= FXA__CPU_MAX_BLOCK);
    part->row = strip->row;
    part->n = strip->rows;
    part->column = part->begin = keys;
    part->end = 0;
    part->count = 0;
    for (int64_t i = 0; i < strip->rows; i += FXA__CPU_MAX_ROWS) {
        attend_group *g = &part->group[part->count++];
        int64_t n = fxa__min_i64(FXA__CPU_MAX_ROWS, strip->rows - i);
        g->strip = *strip;
        if (n < strip->rows && part->strips == 1)
            g->strip = fxa__cpu_cut_within(&it->cut, strip->row + i, n, strip->begin, strip->end);
        g->strip.row = strip->row + i;
        g->strip.rows = n;
        if (g->strip.begin == g->strip.end) continue;
        g->column = g->strip.begin / step * step;
        part->column = fxa__min_i64(part->column, g->column);
        part->begin = fxa__min_i64(part->begin, g->strip.begin);
        part->end = fxa__max_i64(part->end, g->strip.end);
    }
    for (int i = 0; i < part->count; i++) { /* so that an empty one lies inside */
        attend_group *g = &part->group[i];
        if (g->strip.begin == g->strip.end) g->column = g->strip.begin = g->strip.end = part->column;
    }
}

/* The tape's view of the block, where a strip uses it; what it will read arrives while scores are computed. */
static void attend_ready(fxa__cpu_item *it, bool ready[2], const fxa__cpu_strip *s) {
    fxa__tape_run *tape = fxa__cpu_softmax_tape(it, s);
    bool *known = &ready[tape != it->tape];
    if (s->begin == s->end) return;
    if (!*known) fxa__cpu_softmax_keys(it, tape);
    *known = true;
    for (int64_t row = s->row; tape->tape && row < s->row + s->rows; row++)
        fxa__tape_prefetch(tape, row, s->begin, s->end - s->begin);
}

static void attend_strips(fxa__cpu_item *it, bool ready[2], attend_part *part) {
    attend_cut(it, part);
    if (part->column >= part->end) return;
    for (int i = 0; i < part->count; i++) attend_ready(it, ready, &part->group[i].strip);
    for (int j = 1; j < part->strips; j++) attend_ready(it, ready, &part->strip[j]);
    attend_scores(it, part);
    part->first = attend_is_first(it, part->row, part->n);
    if (!part->first) attend_clear(it, part->row, part->n);
    for (int i = 0; i < part->count; i++) attend_softmax(it, part, &part->group[i]);
    if (!it->dirty) attend_output(it, part);
}

/* Keys key..key+n. */
static void attend_block(fxa__cpu_item *it, int64_t key, int64_t n) {
    bool ready[2] = {false, false}; /* the tape without and with its mask knows the block */
    attend_part part;
    if (!fxa__cpu_cut_block(&it->cut, key, n)) return;
    if (it->looking) {
        fxa__cpu_large_look(it, it->cut.key, it->cut.keys);
        return;
    }
    attend_pack(it, it->cut.key, it->cut.keys);
    for (int64_t row = it->cut.row, rows; row < it->cut.row_end; row += rows) {
        rows = fxa__cpu_cut_rows(&it->cut, row, fxa__min_i64(it->run->blocks.rows, it->cut.row_end - row));
        part.strips = 0;
        for (int64_t at = 0; fxa__cpu_cut_next(&it->cut, row, rows, &at, &part.strip[part.strips]);) part.strips++;
        FXA__ASSERT(part.strips < ATTEND_STRIPS);
        if (part.strips > 0) attend_strips(it, ready, &part);
    }
    it->s.t = it->s.scores;
    it->s.beta = it->s.betas;
}

static void attend_all(fxa__cpu_item *it) {
    int64_t step = it->run->blocks.keys, begin, end;
    fxa_tile_class tile = fxa__cpu_columns(&it->g, it->first, it->n, it->key, it->key_end - it->key, &begin, &end);
    if (tile != FXA_TILE_EMPTY)
        for (int64_t key = it->key + begin, last = it->key + end; key < last; key += step)
            attend_block(it, key, fxa__min_i64(step, last - key));
    attend_clear(it, 0, it->n);
}

/* Outputs that are not finite: V is to blame. What has a weight of 0 may have been multiplied, if V was taken as it
 * lies; then sums may be too large. */
static void attend_again(fxa__cpu_item *it, int64_t row) {
    if (!it->dirty) {
        fxa__cpu_item_clear(it);
        it->dirty = true;
        attend_all(it);
        row = fxa__cpu_large_find(it, 0);
    }
    fxa__cpu_large_sum(it, row, attend_all);
}

void fxa__cpu_attend(fxa__cpu_item *it) {
    double factor = fxa__cpu_q_factor(it->kernels, it->g.bound->scale);
    it->kernels->format->a_load(it->kernels, &it->g, FXA_SLOT_Q, it->first, it->n, factor, it->s.q, it->run->blocks.lda,
                                it->s.x);
    attend_all(it);
    int64_t row = fxa__cpu_large_find(it, 0);
    if (row < it->n) attend_again(it, row);
}
