/* SPDX-License-Identifier: Apache-2.0
 *
 * One item by packed panels. The keys of the item go by in blocks; what the mask leaves of none of its rows is not even
 * loaded. A block is packed once for all rows: K^T in panels of keys, V in panels of features. Then the rows go the
 * whole way a block at a time, while their scores stay in cache:
 *
 *     t = Q K^T [rows, columns]    only the panels that the mask leaves of these rows
 *     t = softmax                  a group of a few rows at a time, each with the columns that the mask leaves of it
 *     o = beta o + t V             the product summed apart first, so that errors do not grow with the length
 *
 * Sets that round want blocks of several groups, and have their Q rounded once for all keys, their weights as soon as
 * they are there. The weights of a group are 0 in columns of the block that it does not have.
 */
#include "cpu_forward.h"

#include "../../base/invariant.h"
#include "../../base/num.h"

#include <string.h>

enum {
    ATTEND_GROUPS = FXA__CPU_MAX_BLOCK / FXA__CPU_MAX_ROWS,
    ATTEND_PAIRS = 16 /* words of pairs, rounded up to */
};

/* A strip that goes through the softmax together. Scores are made from `column` on, where a product can begin; before
 * the strip's begin they do not count. None when column is its end. */
typedef struct attend_group {
    fxa__cpu_strip strip;
    int64_t column;
} attend_group;

/* Rows that share their products, and the columns that some of them has. */
typedef struct attend_part {
    int64_t row, n, column, begin, end;
    int count;
    attend_group group[ATTEND_GROUPS];
} attend_part;

/* Keys key..key+n as panels of x^T; straight from storage where that is a matrix of real, or of bf16 if that is
 * wanted. */
static void attend_pack_k(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa_problem *p = &it->g.p->p;
    bool stored = kernels->pack_t_stored && fxa__cpu_keys_are(&it->g, FXA_SLOT_K, FXA_BF16);
    if (stored || fxa__cpu_keys_are(&it->g, FXA_SLOT_K, kernels->real_dtype)) {
        const void *rows = fxa__cpu_key_place(&it->g, FXA_SLOT_K, key).data;
        (stored ? kernels->pack_t_stored : kernels->pack_t)(it->s.k_panels, rows, p->k.stride[2], n, p->d);
        return;
    }
    for (int64_t i = 0; i < n; i += kernels->nr) { /* a panel at a time */
        int64_t left = fxa__min_i64(kernels->nr, n - i);
        fxa__cpu_load_keys(&it->g, FXA_SLOT_K, key + i, left, it->s.x, p->d);
        kernels->pack_t(fxa__real_at(it, it->s.k_panels, i * p->d), it->s.x, p->d, left, p->d);
    }
}

/* V of the block. Infinities and NaN make the item dirty: it is then left as rows, not panels. Rows of real are packed
 * straight from storage without a look at them: the outputs will tell. */
static void attend_pack_v(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa_problem *p = &it->g.p->p;
    int64_t ldv = it->run->blocks.ldv;
    const void *v = fxa__cpu_key_place(&it->g, FXA_SLOT_V, key).data;
    it->v_rows = !it->dirty && fxa__cpu_keys_are_panels(&it->g, FXA_SLOT_V, key) ? v : NULL;
    if (it->v_rows) return;
    if (!it->dirty && fxa__cpu_keys_are(&it->g, FXA_SLOT_V, kernels->real_dtype)) {
        kernels->pack_n(it->s.v_panels, v, p->v.stride[2], n, p->dv);
        return;
    }
    if (!it->dirty && kernels->pack_n_stored && fxa__cpu_keys_are(&it->g, FXA_SLOT_V, FXA_BF16) &&
        kernels->pack_n_stored(it->s.v_panels, v, p->v.stride[2], n, p->dv))
        return;
    if (!fxa__cpu_load_keys(&it->g, FXA_SLOT_V, key, n, it->s.x, ldv)) it->dirty = true;
    if (!it->dirty) kernels->pack_n(it->s.v_panels, it->s.x, ldv, n, p->dv);
}

/* o = beta o + t V where a number may be infinite or NaN: weights of 0 and outputs of weight 0 count for nothing. */
static void attend_careful(fxa__cpu_item *it, const attend_group *g) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t dv = it->g.p->p.dv;
    for (int64_t i = 0; i < g->strip.rows; i++) {
        void *o = fxa__real_at(it, it->s.o, (g->strip.row + i) * blocks->ldo);
        double beta = fxa__real_get(it->s.beta, kernels->real_size, i);
        if (beta == 0)
            memset(o, 0, (size_t)blocks->ldo * kernels->real_size);
        else if (beta != 1)
            kernels->row_scale(o, dv, beta);
        fxa__cpu_stored v = {.data = fxa__real_at(it, it->s.x, g->column * blocks->ldv),
                             .dtype = kernels->real_dtype,
                             .ld = blocks->ldv,
                             .n = g->strip.end - g->column,
                             .d = dv};
        kernels->sums(o, blocks->ldo, fxa__real_at(it, it->s.t, i * blocks->ldt), blocks->ldt, 1, &v);
    }
}

/* The weights of a group as pairs, in their place, and zeroes in the other columns of the part. */
static void attend_round(fxa__cpu_item *it, const attend_part *part, const attend_group *g) {
    int64_t ldt = it->run->blocks.ldt, step = 2 * ATTEND_PAIRS, n = g->strip.end - g->column;
    int64_t before = (g->column - part->column) / 2, after = before + fxa__div_up(n, step) * ATTEND_PAIRS;
    int64_t words = fxa__div_up(part->end - part->column, step) * ATTEND_PAIRS;
    uint32_t *pairs = (uint32_t *)it->s.scores + (g->strip.row - part->row) * ldt;
    if (n > 0) it->kernels->round(pairs + before, ldt, g->strip.rows, n, it->s.t, ldt, 1);
    for (int64_t i = 0; i < g->strip.rows; i++, pairs += ldt) {
        memset(pairs, 0, (size_t)before * sizeof *pairs);
        memset(pairs + after, 0, (size_t)(words - after) * sizeof *pairs);
    }
}

/* Scores of a group become weights. */
static void attend_softmax(fxa__cpu_item *it, const attend_part *part, const attend_group *g) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t ldt = it->run->blocks.ldt, at = g->strip.row - part->row, n = g->strip.end - g->column;
    it->s.t = fxa__real_at(it, it->s.scores, at * ldt + g->column - part->column);
    it->s.beta = fxa__real_at(it, it->s.betas, at);
    if (n == 0) {
        for (int64_t i = 0; i < g->strip.rows; i++) fxa__real_set(it->s.beta, kernels->real_size, i, 1);
    } else {
        double factor = fxa__cpu_score_factor(kernels, it->g.bind->scale);
        for (int64_t i = 0; factor != 1 && i < g->strip.rows; i++)
            kernels->row_scale(fxa__real_at(it, it->s.t, i * ldt), n, factor);
        fxa__cpu_softmax(it, &g->strip, g->column);
        if (it->dirty) attend_careful(it, g);
    }
    if (kernels->rounds && !it->dirty) attend_round(it, part, g);
}

/* t = Q K^T; what lies before a whole panel is a product of its own. */
static void attend_scores(fxa__cpu_item *it, const attend_part *part) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t d = it->g.p->p.d, nr = kernels->nr, ld = kernels->rounds ? blocks->ld_pairs : blocks->ldq;
    const void *q = fxa__real_at(it, it->s.q, part->row * ld);
    for (int64_t at = part->column, inside, to; at < part->end; at = to) {
        inside = at % nr;
        to = inside ? fxa__min_i64(part->end, at - inside + nr) : part->end;
        const void *k = fxa__real_at(it, it->s.k_panels, (at - inside) * d + inside);
        void *t = fxa__real_at(it, it->s.scores, at - part->column);
        if (kernels->rounds)
            kernels->gemm_pairs(part->n, to - at, d, q, ld, k, nr * d, t, blocks->ldt, NULL);
        else
            kernels->gemm(part->n, to - at, d, q, ld, 1, k, nr * d, t, blocks->ldt, NULL);
    }
}

/* o = beta o + t V over a block of n keys; weights before part->begin are 0. Rows of pairs are filled up with zeroes,
 * so there k may be rounded up. */
static void attend_output(fxa__cpu_item *it, const attend_part *part, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t dv = it->g.p->p.dv, from = kernels->rounds ? part->column : part->begin, k = part->end - from;
    const void *t = fxa__real_at(it, it->s.scores, from - part->column);
    const void *v = fxa__real_at(it, it->s.v_panels, from * kernels->panel_row);
    void *o = fxa__real_at(it, it->s.o, part->row * blocks->ldo);
    if (kernels->rounds) {
        k = fxa__min_i64(fxa__round_up(k, kernels->depth), n - from);
        kernels->gemm_pairs(part->n, dv, k, t, blocks->ldt, v, n * kernels->nr, o, blocks->ldo, it->s.betas);
    } else if (it->v_rows) {
        v = (const char *)it->v_rows + from * dv * (int64_t)kernels->real_size;
        kernels->gemm_rows(part->n, dv, k, t, blocks->ldt, 1, v, dv, o, blocks->ldo, it->s.betas);
    } else {
        kernels->gemm(part->n, dv, k, t, blocks->ldt, 1, v, n * kernels->nr, o, blocks->ldo, it->s.betas);
    }
}

/* Groups of a strip, each with what is left of it. */
static void attend_cut(const fxa__cpu_item *it, const fxa__cpu_strip *strip, attend_part *part) {
    int64_t step = it->kernels->nr_step, keys = it->cut.keys;
    FXA__ASSERT(strip->rows <= FXA__CPU_MAX_BLOCK);
    *part = (attend_part){.row = strip->row, .n = strip->rows, .column = keys, .begin = keys};
    for (int64_t i = 0; i < strip->rows; i += FXA__CPU_MAX_ROWS) {
        attend_group *g = &part->group[part->count++];
        int64_t n = fxa__min_i64(FXA__CPU_MAX_ROWS, strip->rows - i);
        g->strip = n == strip->rows ? *strip
                                    : fxa__cpu_cut_within(&it->cut, strip->row + i, n, strip->begin, strip->end);
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

/* The tapes' views of the block, where groups use them; what they will read arrives while scores are computed. */
static void attend_ready(fxa__cpu_item *it, bool ready[2], const attend_part *part) {
    for (int i = 0; i < part->count; i++) {
        const fxa__cpu_strip *s = &part->group[i].strip;
        fxa__tape_run *tape = fxa__cpu_softmax_tape(it, s);
        bool *known = &ready[tape != it->tape];
        if (s->begin == s->end) continue;
        if (!*known) fxa__cpu_softmax_keys(it, tape);
        *known = true;
        for (int64_t row = s->row; tape->tape && row < s->row + s->rows; row++)
            fxa__tape_prefetch(tape, row, s->begin, s->end - s->begin);
    }
}

static void attend_strip(fxa__cpu_item *it, bool ready[2], const fxa__cpu_strip *strip) {
    attend_part part;
    attend_cut(it, strip, &part);
    if (part.column >= part.end) return;
    attend_ready(it, ready, &part);
    attend_scores(it, &part);
    for (int i = 0; i < part.count; i++) attend_softmax(it, &part, &part.group[i]);
    if (!it->dirty) attend_output(it, &part, it->cut.keys);
}

/* Keys key..key+n. */
static void attend_block(fxa__cpu_item *it, int64_t key, int64_t n) {
    bool ready[2] = {false, false}; /* the tape without and with its mask knows the block */
    fxa__cpu_strip strip;
    if (!fxa__cpu_cut_block(&it->cut, key, n)) return;
    attend_pack_k(it, it->cut.key, it->cut.keys);
    attend_pack_v(it, it->cut.key, it->cut.keys);
    for (int64_t row = 0, rows; row < it->n; row += rows) {
        rows = fxa__cpu_cut_rows(&it->cut, row, fxa__min_i64(it->run->blocks.rows, it->n - row));
        for (int64_t at = 0; fxa__cpu_cut_next(&it->cut, row, rows, &at, &strip);) attend_strip(it, ready, &strip);
    }
    it->s.t = it->s.scores;
    it->s.beta = it->s.betas;
}

static void attend_all(fxa__cpu_item *it) {
    int64_t step = it->run->blocks.keys, begin, end;
    fxa_tile tile = fxa__cpu_columns(&it->g, it->first, it->n, it->key, it->key_end - it->key, &begin, &end);
    if (tile == FXA_TILE_EMPTY) return;
    for (int64_t key = it->key + begin, last = it->key + end; key < last; key += step)
        attend_block(it, key, fxa__min_i64(step, last - key));
}

/* False when a row whose scores are in order has an output that is not finite: V is to blame. Squares tell, of all rows
 * first; where they add up to infinity, or are none, the rows are looked at. */
static bool attend_is_finite(const fxa__cpu_item *it) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t ldo = it->run->blocks.ldo, dv = it->g.p->p.dv;
    double squares = kernels->row_dot(it->s.o, it->s.o, (it->n - 1) * ldo + dv);
    for (int64_t row = 0; squares - squares != 0 && row < it->n; row++) {
        bool in_order = !it->s.nan[row] && it->s.m[row] < INFINITY;
        const void *o = fxa__real_at(it, it->s.o, row * ldo);
        if (in_order && !kernels->load(it->s.x, o, kernels->real_dtype, 1, dv)) return false;
    }
    return true;
}

/* Q of the item, scaled where that is exact; by way of a panel's worth of rows where it becomes pairs. */
static void attend_load_q(fxa__cpu_item *it) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t d = it->g.p->p.d, step = kernels->rounds ? kernels->nr : it->n;
    double factor = fxa__cpu_q_factor(kernels, it->g.bind->scale);
    for (int64_t row = 0; row < it->n; row += step) {
        int64_t n = fxa__min_i64(step, it->n - row);
        void *x = kernels->rounds ? it->s.x : it->s.q;
        fxa__cpu_load_rows(&it->g, FXA_SLOT_Q, it->first + row, n, factor, x, kernels->rounds ? d : blocks->ldq);
        if (!kernels->rounds) return;
        uint32_t *pairs = (uint32_t *)it->s.q + row * blocks->ld_pairs;
        kernels->round(pairs, blocks->ld_pairs, n, d, x, d, 1);
    }
}

void fxa__cpu_attend(fxa__cpu_item *it) {
    attend_load_q(it);
    attend_all(it);
    if (it->dirty || attend_is_finite(it)) return;
    fxa__cpu_item_clear(it);
    it->dirty = true;
    attend_all(it);
}
