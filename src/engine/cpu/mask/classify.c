/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies a tile of rows and keys by the mask (empty, full or mixed), and finds the columns with attended pairs.
 * Uses the band that bounds q - k if the mask has one, else range analysis.
 */
#include "../code.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../program/range.h"

#include <string.h>

/* Indices first..last (inclusive) of one axis, and the interval lo..hi of their coordinates. */
typedef struct axis_range {
    int64_t first, last, lo, hi;
    bool line; /* coordinates are lo, lo + 1, ... in the order of the indices */
} axis_range;

/* Returns the coordinate map of an axis: H, Q or K. */
static const fxa_index_map *classify_map(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_H ? &p->map_h : axis == FXA_INPUT_Q ? &p->map_q : &p->map_k;
}

static axis_range classify_range_of(const fxa__cpu_kv_group *g, fxa_input axis, int64_t first, int64_t last) {
    const fxa_index_map *map = classify_map(&g->p->in, axis);
    axis_range r = {first, last, INT32_MAX, INT32_MIN, false};
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
    if (r.lo < INT32_MIN || r.hi > INT32_MAX)
        r = (axis_range){first, last, INT32_MIN, INT32_MAX, false}; /* coordinates wrap */
    return r;
}

/* ---- Classification ---------------------------------------------------------------------------------------------- */

void fxa__cpu_tensors_scan(const fxa__cpu_code *code, const fxa__bound_args *bound, fxa_tensor_range *ranges) {
    const fxa_program *program = code->program;
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    for (int32_t t = 0; t < program->n_tensors; t++) ranges[t] = (fxa_tensor_range){.view = &bound->tensors[t]};
    for (int32_t i = 0; i < mask && code->classify; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op == FXA_OP_LOAD && n->type != FXA_FLOAT && !ranges[n->imm].known)
            ranges[n->imm] = fxa_tensor_scan(&bound->tensors[n->imm]);
    }
}

static bool classify_is_plain(int64_t lo, int64_t hi) { return lo >= 0 && hi < (int64_t)1 << 30; }

/* Returns true if the bounds of q - k (g->code->band) are usable here: key coordinates are consecutive, and all
 * coordinates and lengths are >= 0 and < 2^30. */
static bool classify_has_band(const fxa__cpu_kv_group *g, const axis_range *q, const axis_range *k) {
    return k->line && classify_is_plain(k->lo, k->hi) && classify_is_plain(q->lo, q->hi) &&
           classify_is_plain(g->seq.q_len_seen, g->seq.q_len_seen) &&
           classify_is_plain(g->seq.k_len_seen, g->seq.k_len_seen);
}

/* Computes the interval of key coordinates that the band allows for at least one row of *q, or, if `every`, for every
 * row. */
static void classify_band(const fxa__cpu_kv_group *g, const axis_range *q, bool every, int64_t *lo, int64_t *hi) {
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

/* Reduces *k to the columns that the band allows for rows *q. Returns true if the class *tile is final: no column is
 * left, or the mask is exactly the band. */
static bool classify_cut(const fxa__cpu_kv_group *g, const axis_range *q, axis_range *k, fxa_tile_class *tile) {
    int64_t lo, hi, base = k->lo - k->first;
    if (!classify_has_band(g, q, k)) return false;
    classify_band(g, q, true, &lo, &hi);
    bool whole = k->lo >= lo && k->hi <= hi;
    classify_band(g, q, false, &lo, &hi);
    k->lo = fxa__max_i64(k->lo, lo);
    k->hi = fxa__min_i64(k->hi, hi);
    k->first = k->lo - base;
    k->last = k->hi - base;
    *tile = k->lo > k->hi ? FXA_TILE_EMPTY : whole ? FXA_TILE_FULL : FXA_TILE_MIXED;
    return g->code->band.exact || *tile == FXA_TILE_EMPTY;
}

static void classify_set(const fxa__cpu_kv_group *g, fxa_tile_bounds *box, fxa_input input, int64_t lo, int64_t hi) {
    if (!(g->code->band.reads >> input & 1)) return;
    box->lo[input] = (int32_t)lo;
    box->hi[input] = (int32_t)hi;
}

int64_t fxa__cpu_range_cache_count(const fxa__cpu_code *code, const fxa__problem *p) {
    /* assumed number of (q, k) pairs that are classified at a time: about those of a sub-block; untuned */
    const double per_question = 2048;
    double questions = (double)p->in.sq * (double)p->in.sk / per_question;
    int64_t n = 16;
    if (!code->classify || p->in.b * p->in.hq <= 1) return 0;
    while (n < 1024 && (double)n < questions) n *= 2;
    return n;
}

void fxa__cpu_range_cache_clear(fxa__cpu_kv_group *g, fxa__cpu_range_cache *entry) {
    g->range_cache = entry;
    g->n_range_cache = fxa__cpu_range_cache_count(g->code, g->p);
    /* the count is a power of two, because the low bits of a hash are the index of a cache entry */
    FXA__ASSERT((g->n_range_cache & (g->n_range_cache - 1)) == 0);
    for (int64_t i = 0; i < g->n_range_cache; i++) entry[i].tile = UINT32_MAX;
}

/* Returns the class of the mask in a box of coordinates (an interval for each input), from the cache if possible.
 * Inputs that the mask does not read must be 0 in the box. */
static fxa_tile_class classify_box(const fxa__cpu_kv_group *g, const fxa_tile_bounds *box) {
    uint32_t hash = 0;
    if (!g->n_range_cache) return fxa__program_classify(g->code->program, box, g->bound->params, g->ranges, NULL);
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        hash = ((hash ^ (uint32_t)box->lo[i]) * 0x85ebca6bu ^ (uint32_t)box->hi[i]) * 0xc2b2ae35u;
    fxa__cpu_range_cache *entry = &g->range_cache[(hash ^ hash >> 16) & (uint32_t)(g->n_range_cache - 1)];
    if (entry->tile == UINT32_MAX || memcmp(&entry->box, box, sizeof *box) != 0) {
        entry->box = *box;
        entry->tile = (uint32_t)fxa__program_classify(g->code->program, box, g->bound->params, g->ranges, NULL);
    }
    return (fxa_tile_class)entry->tile;
}

/* Returns the class of the tile of these heads, rows and keys, by range analysis. */
static fxa_tile_class classify_classify(const fxa__cpu_kv_group *g, const axis_range *h, const axis_range *q,
                                        const axis_range *k) {
    fxa_tile_bounds box = {{0}, {0}};
    int32_t b = fxa__coord(g->p, g->bound, FXA_INPUT_B, g->b);
    if (!g->code->classify) return FXA_TILE_MIXED;
    classify_set(g, &box, FXA_INPUT_B, b, b);
    classify_set(g, &box, FXA_INPUT_H, h->lo, h->hi);
    classify_set(g, &box, FXA_INPUT_Q, q->lo, q->hi);
    classify_set(g, &box, FXA_INPUT_K, k->lo, k->hi);
    classify_set(g, &box, FXA_INPUT_Q_ROW, q->first, q->last);
    classify_set(g, &box, FXA_INPUT_K_ROW, k->first, k->last);
    classify_set(g, &box, FXA_INPUT_Q_LEN, g->seq.q_len_seen, g->seq.q_len_seen);
    classify_set(g, &box, FXA_INPUT_K_LEN, g->seq.k_len_seen, g->seq.k_len_seen);
    classify_set(g, &box, FXA_INPUT_HEADS, g->seq.heads_seen, g->seq.heads_seen);
    return classify_box(g, &box);
}

/* Returns the range of q coordinates of rows first to first + n - 1 of a KV group, in which the rows of all heads are
 * stacked. */
static axis_range classify_rows(const fxa__cpu_kv_group *g, int64_t first, int64_t n) {
    int64_t q_len = g->seq.q_len, last = first + n - 1;
    bool one_head = first / q_len == last / q_len;
    return classify_range_of(g, FXA_INPUT_Q, one_head ? first % q_len : 0, one_head ? last % q_len : q_len - 1);
}

fxa_tile_class fxa__cpu_mask_classify(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m,
                                      int64_t *begin, int64_t *end) {
    fxa_tile_class tile = FXA_TILE_FULL;
    *begin = 0;
    *end = m;
    FXA__ASSERT(n > 0);
    if (m <= 0) return FXA_TILE_EMPTY;
    if (g->code->properties.flags & FXA_PROPERTY_NO_MASK) return FXA_TILE_FULL;
    axis_range q = classify_rows(g, first, n), k = classify_range_of(g, FXA_INPUT_K, key, key + m - 1);
    if (!classify_cut(g, &q, &k, &tile)) {
        int64_t h = g->hkv * g->heads, q_len = g->seq.q_len;
        axis_range heads = classify_range_of(g, FXA_INPUT_H, h + first / q_len, h + (first + n - 1) / q_len);
        tile = classify_classify(g, &heads, &q, &k);
        if (tile == FXA_TILE_FULL && (k.first > key || k.last < key + m - 1)) tile = FXA_TILE_MIXED;
    }
    if (tile == FXA_TILE_EMPTY) return tile;
    *begin = k.first - key;
    *end = k.last + 1 - key;
    return tile;
}

bool fxa__cpu_band_columns(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                           int64_t *end) {
    const int64_t far = (int64_t)1 << 40; /* exceeds every coordinate; sums of a few such numbers do not overflow */
    FXA__ASSERT(n > 0 && m > 0);
    if (!g->code->band.exact) return false;
    axis_range q = classify_rows(g, first, n), k = classify_range_of(g, FXA_INPUT_K, key, key + m - 1),
               origin = {.lo = 0};
    int64_t lo, hi;
    if (!classify_has_band(g, &q, &k)) return false;
    classify_band(g, &origin, false, &lo, &hi);
    *begin = fxa__max_i64(lo, -far) - k.lo;
    *end = fxa__min_i64(hi, far) + 1 - k.lo;
    return true;
}
