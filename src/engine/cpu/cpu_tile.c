/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows and keys of a work item: where they lie, what they hold as real numbers, which coordinates the program sees of
 * them, and which columns the mask leaves. All that knows of layouts, dtypes, pages, packed sequences and maps is here;
 * the passes see matrices of real.
 */
#include "cpu_code.h"

#include "../../base/invariant.h"
#include "../../base/num.h"
#include "../../program/range.h"

#include <string.h>

void fxa__cpu_group_enter(fxa__cpu_group *g, int64_t b, int64_t hkv) {
    g->b = b;
    g->hkv = hkv;
    g->seq = fxa__seq_get(g->p, g->bind, b);
    g->heads = g->p->p.hq / g->p->p.hkv;
    g->rows = g->heads * g->seq.q_len;
}

/* ---- Rows in memory ---------------------------------------------------------------------------------------------- */

static fxa__cpu_place tile_place(const fxa__cpu_group *g, fxa_slot slot, bool is_key, int64_t h, int64_t s) {
    int64_t d, left = (is_key ? g->seq.k_len : g->seq.q_len) - s, page = g->p->p.page_size;
    const fxa_operand *t = fxa__row_operand(&g->p->p, slot, &d);
    int64_t at = fxa__row_offset(g->p, &g->seq, t, is_key, g->bind, g->b, h, s);
    int64_t size = (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    if (is_key && (g->p->p.flags & FXA_PAGED)) left = fxa__min_i64(left, page - s % page);
    return (fxa__cpu_place){(char *)g->bind->slot[slot] + at * size, t->dtype, t->stride[3], d,
                            t->stride[2] * size, fxa__max_i64(left, 1)};
}

fxa__cpu_place fxa__cpu_row_place(const fxa__cpu_group *g, fxa_slot slot, int64_t r) {
    return tile_place(g, slot, false, fxa__cpu_row_head(g, r), fxa__cpu_row_q(g, r));
}

fxa__cpu_place fxa__cpu_key_place(const fxa__cpu_group *g, fxa_slot slot, int64_t k) {
    return tile_place(g, slot, true, g->hkv, k);
}

fxa__cpu_stored fxa__cpu_take_keys(const fxa__cpu_group *g, fxa_slot slot, int64_t key, int64_t n) {
    fxa__cpu_place at = fxa__cpu_key_place(g, slot, key);
    int64_t ld = at.next / (int64_t)fxa_dtype_size((fxa_dtype)at.dtype);
    return (fxa__cpu_stored){.data = at.data, .dtype = at.dtype, .ld = ld, .n = fxa__min_i64(n, at.count), .d = at.n};
}

/* n rows from `at` on, which lie evenly; dense ones are one long row. */
static bool tile_load_even(const fxa__cpu_kernels *kernels, fxa__cpu_place at, int64_t n, void *x, int64_t ld) {
    char *row = x;
    bool finite = true;
    if (at.stride == 1 && ld == at.n && at.next == at.n * (int64_t)fxa_dtype_size((fxa_dtype)at.dtype))
        return kernels->load(x, at.data, at.dtype, 1, n * at.n);
    for (int64_t i = 0; i < n; i++, row += ld * (int64_t)kernels->real_size, at.data += at.next)
        finite &= kernels->load(row, at.data, at.dtype, at.stride, at.n);
    return finite;
}

static bool tile_load(const fxa__cpu_group *g, fxa_slot slot, bool is_key, int64_t first, int64_t n, void *x,
                      int64_t ld) {
    int64_t size = (int64_t)g->code->kernels->real_size;
    bool finite = true;
    for (int64_t i = 0, count; i < n; i += count) {
        fxa__cpu_place at = is_key ? fxa__cpu_key_place(g, slot, first + i) : fxa__cpu_row_place(g, slot, first + i);
        count = fxa__min_i64(at.count, n - i);
        finite &= tile_load_even(g->code->kernels, at, count, (char *)x + i * ld * size, ld);
    }
    return finite;
}

bool fxa__cpu_load_rows(const fxa__cpu_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x,
                        int64_t ld) {
    const fxa__cpu_kernels *kernels = g->code->kernels;
    bool finite = tile_load(g, slot, false, first, n, x, ld);
    int64_t d;
    (void)fxa__row_operand(&g->p->p, slot, &d);
    for (int64_t i = 0; factor != 1 && i < (d == ld ? 1 : n); i++)
        kernels->row_scale((char *)x + i * ld * (int64_t)kernels->real_size, d == ld ? n * d : d, factor);
    return finite;
}

bool fxa__cpu_load_keys(const fxa__cpu_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld) {
    return tile_load(g, slot, true, first, n, x, ld);
}

bool fxa__cpu_keys_are(const fxa__cpu_group *g, fxa_slot slot, uint32_t dtype) {
    int64_t d;
    const fxa_operand *t = fxa__row_operand(&g->p->p, slot, &d);
    return t->dtype == dtype && t->stride[3] == 1 && !(g->p->p.flags & FXA_PAGED);
}

/* ---- Coordinates ------------------------------------------------------------------------------------------------- */

void fxa__cpu_row_coords(const fxa__cpu_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q) {
    int64_t head = n > 0 ? fxa__cpu_row_head(g, first) : 0, at = n > 0 ? fxa__cpu_row_q(g, first) : 0;
    for (int64_t i = 0; i < n; i++, at++) {
        if (at == g->seq.q_len) head++, at = 0;
        h[i] = i > 0 && at > 0 ? h[i - 1] : fxa__coord(g->p, g->bind, FXA_INPUT_H, head);
        q[i] = fxa__row_coord(g->p, g->bind, &g->seq, at);
    }
}

bool fxa__cpu_key_coords(const fxa__cpu_group *g, int64_t first, int64_t n, int32_t *k) {
    bool run = true;
    for (int64_t i = 0; i < n; i++) {
        k[i] = fxa__coord(g->p, g->bind, FXA_INPUT_K, first + i);
        run = run && (i == 0 || (uint32_t)k[i] == (uint32_t)k[i - 1] + 1u);
    }
    return run;
}

/* Indices first..last of one axis (inclusive), and the coordinates of them: all in lo..hi. */
typedef struct tile_range {
    int64_t first, last, lo, hi;
    bool line; /* coordinates are lo, lo + 1, ... in the order of the indices */
} tile_range;

static const fxa_index_map *tile_map(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_H ? &p->map_h : axis == FXA_INPUT_Q ? &p->map_q : &p->map_k;
}

static tile_range tile_range_of(const fxa__cpu_group *g, fxa_input axis, int64_t first, int64_t last) {
    const fxa_index_map *map = tile_map(&g->p->p, axis);
    tile_range r = {first, last, INT32_MAX, INT32_MIN, false};
    if (map->kind != FXA_MAP_AFFINE) {
        for (int64_t i = first; i <= last; i++) {
            int32_t x = axis == FXA_INPUT_Q ? fxa__row_coord(g->p, g->bind, &g->seq, i)
                                            : fxa__coord(g->p, g->bind, axis, i);
            r.lo = fxa__min_i64(r.lo, x);
            r.hi = fxa__max_i64(r.hi, x);
        }
        return r;
    }
    const int32_t *dynamic = g->bind->slot[FXA_SLOT_DYN_B + axis - FXA_INPUT_B];
    int64_t base = map->base + (map->dynamic ? *dynamic : 0) + (axis == FXA_INPUT_Q ? g->seq.q_shift : 0);
    int64_t x = base + map->step * first, y = base + map->step * last;
    r.lo = fxa__min_i64(x, y);
    r.hi = fxa__max_i64(x, y);
    r.line = map->step == 1;
    if (r.lo < INT32_MIN || r.hi > INT32_MAX) r = (tile_range){first, last, INT32_MIN, INT32_MAX, false}; /* it wraps */
    return r;
}

/* ---- What the mask leaves ---------------------------------------------------------------------------------------- */

void fxa__cpu_scan(const fxa__cpu_code *code, const fxa__bind *bind, fxa_tensor_range *ranges) {
    const fxa_program *program = code->program;
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    for (int32_t t = 0; t < program->n_tensors; t++) ranges[t] = (fxa_tensor_range){.view = &bind->tensors[t]};
    for (int32_t i = 0; i < mask && code->classify; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op == FXA_OP_LOAD && n->type != FXA_FLOAT && !ranges[n->imm].known)
            ranges[n->imm] = fxa_tensor_scan(&bind->tensors[n->imm]);
    }
}

static bool tile_is_plain(int64_t lo, int64_t hi) { return lo >= 0 && hi < (int64_t)1 << 30; }

/* Whether the band may be used: keys one by one, and all numbers in the range that it is true for. */
static bool tile_has_band(const fxa__cpu_group *g, const tile_range *q, const tile_range *k) {
    return k->line && tile_is_plain(k->lo, k->hi) && tile_is_plain(q->lo, q->hi) &&
           tile_is_plain(g->seq.q_len_seen, g->seq.q_len_seen) && tile_is_plain(g->seq.k_len_seen, g->seq.k_len_seen);
}

/* The key coordinates that the band leaves to some row of *q, or to every row. */
static void tile_band(const fxa__cpu_group *g, const tile_range *q, bool every, int64_t *lo, int64_t *hi) {
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
static bool tile_cut(const fxa__cpu_group *g, const tile_range *q, tile_range *k, fxa_tile *tile) {
    int64_t lo, hi, base = k->lo - k->first;
    if (!tile_has_band(g, q, k)) return false;
    tile_band(g, q, true, &lo, &hi);
    bool whole = k->lo >= lo && k->hi <= hi;
    tile_band(g, q, false, &lo, &hi);
    k->lo = fxa__max_i64(k->lo, lo);
    k->hi = fxa__min_i64(k->hi, hi);
    k->first = k->lo - base;
    k->last = k->hi - base;
    *tile = k->lo > k->hi ? FXA_TILE_EMPTY : whole ? FXA_TILE_FULL : FXA_TILE_MIXED;
    return g->code->band.exact || *tile == FXA_TILE_EMPTY;
}

static void tile_set(const fxa__cpu_group *g, fxa_box *box, fxa_input input, int64_t lo, int64_t hi) {
    if (!(g->code->band.reads >> input & 1)) return;
    box->lo[input] = (int32_t)lo;
    box->hi[input] = (int32_t)hi;
}

int64_t fxa__cpu_seen_count(const fxa__cpu_code *code, const fxa__problem *p) {
    const double per_question = 2048; /* pairs, about: a strip and a panel or two; an untuned guess */
    double questions = (double)p->p.sq * (double)p->p.sk / per_question;
    int64_t n = 16;
    if (!code->classify || code->band.exact || p->p.b * p->p.hq <= 1) return 0;
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
static fxa_tile tile_ask(const fxa__cpu_group *g, const fxa_box *box) {
    uint32_t hash = 0;
    if (!g->n_seen) return fxa__program_classify(g->code->program, box, g->bind->params, g->ranges);
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        hash = ((hash ^ (uint32_t)box->lo[i]) * 0x85ebca6bu ^ (uint32_t)box->hi[i]) * 0xc2b2ae35u;
    fxa__cpu_seen *seen = &g->seen[(hash ^ hash >> 16) & (uint32_t)(g->n_seen - 1)];
    if (seen->tile == UINT32_MAX || memcmp(&seen->box, box, sizeof *box) != 0) {
        seen->box = *box;
        seen->tile = (uint32_t)fxa__program_classify(g->code->program, box, g->bind->params, g->ranges);
    }
    return (fxa_tile)seen->tile;
}

static fxa_tile tile_classify(const fxa__cpu_group *g, const tile_range *h, const tile_range *q, const tile_range *k) {
    fxa_box box = {{0}, {0}};
    int32_t b = fxa__coord(g->p, g->bind, FXA_INPUT_B, g->b);
    if (!g->code->classify) return FXA_TILE_MIXED;
    tile_set(g, &box, FXA_INPUT_B, b, b);
    tile_set(g, &box, FXA_INPUT_H, h->lo, h->hi);
    tile_set(g, &box, FXA_INPUT_Q, q->lo, q->hi);
    tile_set(g, &box, FXA_INPUT_K, k->lo, k->hi);
    tile_set(g, &box, FXA_INPUT_Q_LEN, g->seq.q_len_seen, g->seq.q_len_seen);
    tile_set(g, &box, FXA_INPUT_K_LEN, g->seq.k_len_seen, g->seq.k_len_seen);
    return tile_ask(g, &box);
}

static tile_range tile_rows(const fxa__cpu_group *g, int64_t first, int64_t n) {
    int64_t q_len = g->seq.q_len, last = first + n - 1;
    bool one_head = first / q_len == last / q_len;
    return tile_range_of(g, FXA_INPUT_Q, one_head ? first % q_len : 0, one_head ? last % q_len : q_len - 1);
}

fxa_tile fxa__cpu_columns(const fxa__cpu_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                          int64_t *end) {
    fxa_tile tile = FXA_TILE_FULL;
    *begin = 0;
    *end = m;
    if (n <= 0 || m <= 0) return FXA_TILE_EMPTY;
    if (g->code->facts.flags & FXA_FACT_NO_MASK) return FXA_TILE_FULL;
    tile_range q = tile_rows(g, first, n), k = tile_range_of(g, FXA_INPUT_K, key, key + m - 1);
    if (!tile_cut(g, &q, &k, &tile)) {
        int64_t h = g->hkv * g->heads, q_len = g->seq.q_len;
        tile_range heads = tile_range_of(g, FXA_INPUT_H, h + first / q_len, h + (first + n - 1) / q_len);
        tile = tile_classify(g, &heads, &q, &k);
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
    if (!g->code->band.exact || n <= 0 || m <= 0) return false;
    tile_range q = tile_rows(g, first, n), k = tile_range_of(g, FXA_INPUT_K, key, key + m - 1), origin = {.lo = 0};
    int64_t lo, hi;
    if (!tile_has_band(g, &q, &k)) return false;
    tile_band(g, &origin, false, &lo, &hi);
    *begin = fxa__max_i64(lo, -far) - k.lo;
    *end = fxa__min_i64(hi, far) + 1 - k.lo;
    return true;
}
