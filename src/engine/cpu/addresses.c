/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses and coordinates of rows and keys, and functions that load rows and keys as matrices of `real` (the type
 * that the kernels compute in). Only this file handles layouts, dtypes, pages, packed sequences and index maps; forward
 * and backward read matrices of real.
 */
#include "code.h"

#include "../../base/invariant.h"
#include "../../base/num.h"
#include "../../base/philox.h"

#include <string.h>

void fxa__cpu_kv_group_enter(fxa__cpu_kv_group *g, int64_t b, int64_t hkv) {
    g->b = b;
    g->hkv = hkv;
    g->seq = fxa__seq_get(g->p, g->bound, b);
    g->heads = g->p->in.hq / g->p->in.hkv;
    g->rows = g->heads * g->seq.q_len;
}

/* ---- Rows in memory ---------------------------------------------------------------------------------------------- */

static fxa__cpu_address address_of(const fxa__cpu_kv_group *g, fxa_slot slot, bool is_key, int64_t h, int64_t s) {
    int64_t d, left = (is_key ? g->seq.k_len : g->seq.q_len) - s, page = g->p->in.page_size;
    const fxa_operand *t = fxa__row_operand(&g->p->in, slot, &d);
    int64_t at = fxa__row_offset(g->p, &g->seq, t, is_key, g->bound, g->b, h, s);
    int64_t size = (int64_t)fxa_dtype_size((fxa_dtype)t->dtype);
    if (is_key && (g->p->in.flags & FXA_PAGED)) left = fxa__min_i64(left, page - s % page);
    return (fxa__cpu_address){(char *)g->bound->slot[slot] + at * size,
                              t->dtype,
                              t->stride[3],
                              d,
                              t->stride[2] * size,
                              fxa__max_i64(left, 1)};
}

fxa__cpu_address fxa__cpu_row_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r) {
    return address_of(g, slot, false, fxa__cpu_row_head(g, r), fxa__cpu_row_q(g, r));
}

fxa__cpu_address fxa__cpu_key_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k) {
    return address_of(g, slot, true, g->hkv, k);
}

fxa__cpu_stored_rows fxa__cpu_stored_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n) {
    fxa__cpu_address at = fxa__cpu_key_address(g, slot, key);
    int64_t ld = at.next / (int64_t)fxa_dtype_size((fxa_dtype)at.dtype);
    return (fxa__cpu_stored_rows){
        .data = at.data, .dtype = at.dtype, .ld = ld, .n = fxa__min_i64(n, at.count), .d = at.n};
}

/* Loads n evenly spaced rows, the first at address `at`, into x [n,ld]. Contiguous rows are loaded as one long row.
 * Returns false if an element is infinite or NaN. */
static bool address_load_even(const fxa__cpu_kernels *kernels, fxa__cpu_address at, int64_t n, void *x, int64_t ld) {
    char *row = x;
    bool finite = true;
    if (at.stride == 1 && ld == at.n && at.next == at.n * (int64_t)fxa_dtype_size((fxa_dtype)at.dtype))
        return kernels->load(x, at.data, at.dtype, 1, n * at.n);
    for (int64_t i = 0; i < n; i++, row += ld * (int64_t)kernels->real_size, at.data += at.next)
        finite &= kernels->load(row, at.data, at.dtype, at.stride, at.n);
    return finite;
}

/* Loads n rows of a slot as reals, from row `first` of the batch entry on, into x [n][ld]. Returns false if a value is
 * NaN or infinite. */
static bool address_load(const fxa__cpu_kv_group *g, fxa_slot slot, bool is_key, int64_t first, int64_t n, void *x,
                         int64_t ld) {
    int64_t size = (int64_t)g->code->kernels->real_size;
    bool finite = true;
    for (int64_t i = 0, count; i < n; i += count) {
        fxa__cpu_address at =
            is_key ? fxa__cpu_key_address(g, slot, first + i) : fxa__cpu_row_address(g, slot, first + i);
        count = fxa__min_i64(at.count, n - i);
        finite &= address_load_even(g->code->kernels, at, count, (char *)x + i * ld * size, ld);
    }
    return finite;
}

static void address_scale(const fxa__cpu_kernels *kernels, void *x, int64_t n, int64_t d, int64_t ld, double factor) {
    if (d == ld) d *= n, n = 1; /* contiguous rows are one long row */
    for (int64_t i = 0; i < n; i++) kernels->row_scale((char *)x + i * ld * (int64_t)kernels->real_size, d, factor);
}

/* Number of rows that are loaded and then scaled while they are in the L1 cache; untuned. */
enum { ADDRESS_SCALE_ROWS = 32 };

bool fxa__cpu_load_rows(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x,
                        int64_t ld) {
    const fxa__cpu_kernels *kernels = g->code->kernels;
    bool finite = true;
    int64_t d;
    (void)fxa__row_operand(&g->p->in, slot, &d);
    factor *= g->bound->load[slot];
    for (int64_t i = 0; i < n; i += ADDRESS_SCALE_ROWS) {
        int64_t count = fxa__min_i64(n - i, ADDRESS_SCALE_ROWS);
        void *row = (char *)x + i * ld * (int64_t)kernels->real_size;
        finite &= address_load(g, slot, false, first + i, count, row, ld);
        if (factor != 1) address_scale(kernels, row, count, d, ld, factor);
    }
    return finite;
}

bool fxa__cpu_load_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld) {
    bool finite = address_load(g, slot, true, first, n, x, ld);
    int64_t d;
    (void)fxa__row_operand(&g->p->in, slot, &d);
    if (g->bound->load[slot] != 1) address_scale(g->code->kernels, x, n, d, ld, g->bound->load[slot]);
    return finite;
}

bool fxa__cpu_has_dense_keys(const fxa__cpu_kv_group *g, fxa_slot slot, uint32_t dtype) {
    int64_t d;
    const fxa_operand *t = fxa__row_operand(&g->p->in, slot, &d);
    return t->dtype == dtype && t->stride[3] == 1 && !(g->p->in.flags & FXA_PAGED);
}

/* ---- Coordinates ------------------------------------------------------------------------------------------------- */

void fxa__cpu_row_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q) {
    FXA__ASSERT(n > 0); /* a row exists, so q_len is not 0 and the divisions below are valid */
    const fxa_index_map *map = &g->p->in.map_q;
    int64_t head = fxa__cpu_row_head(g, first), at = fxa__cpu_row_q(g, first);
    for (int64_t i = 0; i < n; i++, at++) {
        if (at == g->seq.q_len) head++, at = 0;
        bool next = i > 0 && at > 0;
        h[i] = next ? h[i - 1] : fxa__coord(g->p, g->bound, FXA_INPUT_H, head);
        q[i] = next && map->kind == FXA_MAP_AFFINE ? fxa__wrap32(q[i - 1] + map->step)
                                                   : fxa__row_coord(g->p, g->bound, &g->seq, at);
    }
}

bool fxa__cpu_key_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *k) {
    const fxa_index_map *map = &g->p->in.map_k;
    bool run = true;
    for (int64_t i = 0; i < n; i++) {
        k[i] = i > 0 && map->kind == FXA_MAP_AFFINE ? fxa__wrap32(k[i - 1] + map->step)
                                                    : fxa__coord(g->p, g->bound, FXA_INPUT_K, first + i);
        run = run && (i == 0 || (uint32_t)k[i] == (uint32_t)k[i - 1] + 1u);
    }
    return run;
}

/* ---- Dropout ----------------------------------------------------------------------------------------------------- */

fxa__cpu_dropout_row fxa__cpu_dropout_row_make(const fxa__cpu_kv_group *g, int32_t h, int32_t q) {
    return (fxa__cpu_dropout_row){.seed = g->bound->seed,
                                  .threshold = fxa__dropout_threshold(g->p->in.dropout_p),
                                  .b = fxa__coord(g->p, g->bound, FXA_INPUT_B, g->b),
                                  .h = h,
                                  .q = q};
}
