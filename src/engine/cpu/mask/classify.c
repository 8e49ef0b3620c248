/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions about the mask: what is left of some rows and some keys, by the band that bounds q - k or by range
 * analysis. mask/sub_blocks.c asks them.
 */
#include "../code.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../program/range.h"

#include <string.h>

/* Indices first..last of one axis (inclusive), and the coordinates of them: all in lo..hi. */
typedef struct ask_range {
    int64_t first, last, lo, hi;
    bool line; /* coordinates are lo, lo + 1, ... in the order of the indices */
} ask_range;

static const fxa_index_map *ask_map(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_H ? &p->map_h : axis == FXA_INPUT_Q ? &p->map_q : &p->map_k;
}

static ask_range ask_range_of(const fxa__cpu_group *g, fxa_input axis, int64_t first, int64_t last) {
    const fxa_index_map *map = ask_map(&g->p->in, axis);
    ask_range r = {first, last, INT32_MAX, INT32_MIN, false};
    if (map->kind != FXA_MAP_AFFINE) {
        for (int64_t i = first; i <= last; i++) {
            int32_t x =
                axis == FXA_INPUT_Q ? fxa__row_coord(g->p, g->bound, &g->seq, i) : fxa__coord(g->p, g->bound, axis, i);
            r.lo = fxa__min_i64(r.lo, x);
            r.hi = fxa__max_i64(r.hi, x);
        }
        return r;
    }
    const int32_t *dynamic = g->bound->slot[FXA_SLOT_OFFSET_B + (int)(axis - FXA_INPUT_B)];
    int64_t base = map->base + (map->has_offset ? *dynamic : 0) + (axis == FXA_INPUT_Q ? g->seq.q_shift : 0);
    int64_t x = base + map->step * first, y = base + map->step * last;
    r.lo = fxa__min_i64(x, y);
    r.hi = fxa__max_i64(x, y);
    r.line = map->step == 1;
    if (r.lo < INT32_MIN || r.hi > INT32_MAX) r = (ask_range){first, last, INT32_MIN, INT32_MAX, false}; /* it wraps */
    return r;
}

/* ---- What the mask leaves ---------------------------------------------------------------------------------------- */

void fxa__cpu_scan(const fxa__cpu_code *code, const fxa__bound_args *bound, fxa_tensor_range *ranges) {
    const fxa_program *program = code->program;
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    for (int32_t t = 0; t < program->n_tensors; t++) ranges[t] = (fxa_tensor_range){.view = &bound->tensors[t]};
    for (int32_t i = 0; i < mask && code->classify; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op == FXA_OP_LOAD && n->type != FXA_FLOAT && !ranges[n->imm].known)
            ranges[n->imm] = fxa_tensor_scan(&bound->tensors[n->imm]);
    }
}

static bool ask_is_plain(int64_t lo, int64_t hi) { return lo >= 0 && hi < (int64_t)1 << 30; }

/* Whether the band may be used: keys one by one, and all numbers in the range that it is true for. */
static bool ask_has_band(const fxa__cpu_group *g, const ask_range *q, const ask_range *k) {
    return k->line && ask_is_plain(k->lo, k->hi) && ask_is_plain(q->lo, q->hi) &&
           ask_is_plain(g->seq.q_len_seen, g->seq.q_len_seen) && ask_is_plain(g->seq.k_len_seen, g->seq.k_len_seen);
}

/* The key coordinates that the band leaves to some row of *q, or to every row. */
static void ask_band(const fxa__cpu_group *g, const ask_range *q, bool every, int64_t *lo, int64_t *hi) {
    const fxa__cpu_band *band = &g->code->band;
    int64_t shift[2] = {0, (int64_t)g->seq.k_len_seen - g->seq.q_len_seen};
    *lo = INT64_MIN;
    *hi = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        int64_t first = q->lo + shift[i], last = q->hi + shift[i];
        if (band->left[i] != INT64_MAX) *lo = fxa__max_i64(*lo, (every ? last : first) - band->left[i]);
        if (band->right[i] != INT64_MAX) *hi = fxa__min_i64(*hi, (every ? first : last) + band->right[i]);
    }
}

/* Cuts *k to the columns that the band leaves to rows *q. True when that is all there is to say: nothing is left, or
 * the mask is the band. */
static bool ask_cut(const fxa__cpu_group *g, const ask_range *q, ask_range *k, fxa_tile_class *tile) {
    int64_t lo, hi, base = k->lo - k->first;
    if (!ask_has_band(g, q, k)) return false;
    ask_band(g, q, true, &lo, &hi);
    bool whole = k->lo >= lo && k->hi <= hi;
    ask_band(g, q, false, &lo, &hi);
    k->lo = fxa__max_i64(k->lo, lo);
    k->hi = fxa__min_i64(k->hi, hi);
    k->first = k->lo - base;
    k->last = k->hi - base;
    *tile = k->lo > k->hi ? FXA_TILE_EMPTY : whole ? FXA_TILE_FULL : FXA_TILE_MIXED;
    return g->code->band.exact || *tile == FXA_TILE_EMPTY;
}

static void ask_set(const fxa__cpu_group *g, fxa_tile_bounds *box, fxa_input input, int64_t lo, int64_t hi) {
    if (!(g->code->band.reads >> input & 1)) return;
    box->lo[input] = (int32_t)lo;
    box->hi[input] = (int32_t)hi;
}

int64_t fxa__cpu_seen_count(const fxa__cpu_code *code, const fxa__problem *p) {
    const double per_question = 2048; /* pairs, about: a strip and a panel or two; an untuned guess */
    double questions = (double)p->in.sq * (double)p->in.sk / per_question;
    int64_t n = 16;
    if (!code->classify || p->in.b * p->in.hq <= 1) return 0;
    while (n < 1024 && (double)n < questions) n *= 2;
    return n;
}

void fxa__cpu_seen_clear(fxa__cpu_group *g, fxa__cpu_seen *seen) {
    g->seen = seen;
    g->n_seen = fxa__cpu_seen_count(g->code, g->p);
    FXA__ASSERT((g->n_seen & (g->n_seen - 1)) == 0); /* hashes are cut to it by their low bits */
    for (int64_t i = 0; i < g->n_seen; i++) seen[i].tile = UINT32_MAX;
}

/* Asks, or remembers. Inputs that the mask does not read are 0 in the box. */
static fxa_tile_class ask_box(const fxa__cpu_group *g, const fxa_tile_bounds *box) {
    uint32_t hash = 0;
    if (!g->n_seen) return fxa__program_classify(g->code->program, box, g->bound->params, g->ranges, NULL);
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        hash = ((hash ^ (uint32_t)box->lo[i]) * 0x85ebca6bu ^ (uint32_t)box->hi[i]) * 0xc2b2ae35u;
    fxa__cpu_seen *seen = &g->seen[(hash ^ hash >> 16) & (uint32_t)(g->n_seen - 1)];
    if (seen->tile == UINT32_MAX || memcmp(&seen->box, box, sizeof *box) != 0) {
        seen->box = *box;
        seen->tile = (uint32_t)fxa__program_classify(g->code->program, box, g->bound->params, g->ranges, NULL);
    }
    return (fxa_tile_class)seen->tile;
}

static fxa_tile_class ask_classify(const fxa__cpu_group *g, const ask_range *h, const ask_range *q,
                                   const ask_range *k) {
    fxa_tile_bounds box = {{0}, {0}};
    int32_t b = fxa__coord(g->p, g->bound, FXA_INPUT_B, g->b);
    if (!g->code->classify) return FXA_TILE_MIXED;
    ask_set(g, &box, FXA_INPUT_B, b, b);
    ask_set(g, &box, FXA_INPUT_H, h->lo, h->hi);
    ask_set(g, &box, FXA_INPUT_Q, q->lo, q->hi);
    ask_set(g, &box, FXA_INPUT_K, k->lo, k->hi);
    ask_set(g, &box, FXA_INPUT_Q_ROW, q->first, q->last);
    ask_set(g, &box, FXA_INPUT_K_ROW, k->first, k->last);
    ask_set(g, &box, FXA_INPUT_Q_LEN, g->seq.q_len_seen, g->seq.q_len_seen);
    ask_set(g, &box, FXA_INPUT_K_LEN, g->seq.k_len_seen, g->seq.k_len_seen);
    ask_set(g, &box, FXA_INPUT_HEADS, g->seq.heads_seen, g->seq.heads_seen);
    return ask_box(g, &box);
}

static ask_range ask_rows(const fxa__cpu_group *g, int64_t first, int64_t n) {
    int64_t q_len = g->seq.q_len, last = first + n - 1;
    bool one_head = first / q_len == last / q_len;
    return ask_range_of(g, FXA_INPUT_Q, one_head ? first % q_len : 0, one_head ? last % q_len : q_len - 1);
}

fxa_tile_class fxa__cpu_columns(const fxa__cpu_group *g, int64_t first, int64_t n, int64_t key, int64_t m,
                                int64_t *begin, int64_t *end) {
    fxa_tile_class tile = FXA_TILE_FULL;
    *begin = 0;
    *end = m;
    FXA__ASSERT(n > 0);
    if (m <= 0) return FXA_TILE_EMPTY;
    if (g->code->properties.flags & FXA_PROPERTY_NO_MASK) return FXA_TILE_FULL;
    ask_range q = ask_rows(g, first, n), k = ask_range_of(g, FXA_INPUT_K, key, key + m - 1);
    if (!ask_cut(g, &q, &k, &tile)) {
        int64_t h = g->hkv * g->heads, q_len = g->seq.q_len;
        ask_range heads = ask_range_of(g, FXA_INPUT_H, h + first / q_len, h + (first + n - 1) / q_len);
        tile = ask_classify(g, &heads, &q, &k);
        if (tile == FXA_TILE_FULL && (k.first > key || k.last < key + m - 1)) tile = FXA_TILE_MIXED;
    }
    if (tile == FXA_TILE_EMPTY) return tile;
    *begin = k.first - key;
    *end = k.last + 1 - key;
    return tile;
}

bool fxa__cpu_band_columns(const fxa__cpu_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                           int64_t *end) {
    const int64_t far = (int64_t)1 << 40; /* past every coordinate, and sums of a few do not overflow */
    FXA__ASSERT(n > 0 && m > 0);
    if (!g->code->band.exact) return false;
    ask_range q = ask_rows(g, first, n), k = ask_range_of(g, FXA_INPUT_K, key, key + m - 1), origin = {.lo = 0};
    int64_t lo, hi;
    if (!ask_has_band(g, &q, &k)) return false;
    ask_band(g, &origin, false, &lo, &hi);
    *begin = fxa__max_i64(lo, -far) - k.lo;
    *end = fxa__min_i64(hi, far) + 1 - k.lo;
    return true;
}
