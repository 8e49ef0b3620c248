/* SPDX-License-Identifier: Apache-2.0
 *
 * What the formats have in common: B [k,n] in panels of nr columns, each of k rows of panel_row reals, the first k * nr
 * reals of a panel's own; products of A as its rows lie with it; products over rows with A = W^T, X as B.
 */
#include "product.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

int64_t fxa__cpu_panels_size(const fxa__cpu_kernels *kernels, int64_t k, int64_t n) {
    return k * fxa__round_up(n, kernels->nr);
}

void fxa__cpu_panels_pack_t(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t n,
                            int64_t k) {
    b->rows = NULL;
    b->k = k;
    kernels->micro.pack_t(b->panels, x, ld, n, k);
}

void fxa__cpu_panels_pack(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t k,
                          int64_t n) {
    b->rows = NULL;
    b->k = k;
    kernels->micro.pack_n(b->panels, x, ld, k, n);
}

/* A panel at a time, from the first-level cache. */
void fxa__cpu_panels_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key,
                            int64_t n, fxa__cpu_b *b, void *room) {
    int64_t d = fxa__cpu_key_place(g, slot, key).n;
    fxa__cpu_b panel = *b;
    for (int64_t i = 0; i < n; i += kernels->nr) {
        int64_t left = fxa__min_i64(kernels->nr, n - i);
        (void)fxa__cpu_load_keys(g, slot, key + i, left, room, d);
        panel.panels = fxa__cpu_at(kernels, b->panels, i * d);
        fxa__cpu_panels_pack_t(kernels, &panel, room, d, left, d);
    }
    b->rows = NULL;
    b->k = d;
}

/* What begins inside a panel is a product of its own, up to its end. */
void fxa__cpu_panels_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x) {
    int64_t nr = kernels->nr, k = x->k_end - x->k_begin, panel = x->b->k * nr;
    const void *a = fxa__cpu_at(kernels, x->a, x->k_begin - x->a_first);
    FXA__ASSERT(!x->b->rows && 0 <= x->k_begin && x->k_end <= x->b->k && x->a_first <= x->k_begin);
    FXA__ASSERT(x->begin % kernels->nr_step == 0 && x->k_begin * kernels->micro.panel_row % nr == 0);
    for (int64_t at = x->begin, inside, to; at < x->end; at = to) {
        inside = at % nr;
        to = inside ? fxa__min_i64(x->end, at - inside + nr) : x->end;
        const void *b =
            fxa__cpu_at(kernels, x->b->panels, at / nr * panel + x->k_begin * kernels->micro.panel_row + inside);
        kernels->micro.gemm(x->rows, to - at, k, a, x->lda, 1, b, panel, fxa__cpu_at(kernels, x->c, at - x->begin),
                            x->ldc, x->beta);
    }
}

/* ---- Over rows --------------------------------------------------------------------------------------------------- */

/* Columns of W whose rows are looked for together where they differ: two micro-kernels of 12 rows of out, four of 6. An
 * untuned guess: fewer cut masks more closely, more let B be used by more rows. */
enum { PANELS_GROUP = 24 };

int64_t fxa__cpu_panels_over_sums_size(const fxa__cpu_kernels *kernels, int64_t columns, int64_t d) {
    (void)kernels, (void)columns, (void)d;
    return 0; /* out is what is added to */
}
int64_t fxa__cpu_panels_over_room_size(const fxa__cpu_kernels *kernels, int64_t most) {
    (void)kernels, (void)most;
    return 0;
}
int64_t fxa__cpu_panels_over_depth(const fxa__cpu_kernels *kernels) {
    return kernels->nr / kernels->micro.panel_row; /* 1, or the two of a pair */
}
int64_t fxa__cpu_panels_over_step(const fxa__cpu_kernels *kernels, bool differ, int64_t columns) {
    (void)kernels;
    return differ ? PANELS_GROUP : columns;
}
void fxa__cpu_panels_over_clear(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o) { (void)kernels, (void)o; }
void fxa__cpu_panels_over_end(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, int64_t columns) {
    (void)kernels, (void)o, (void)columns;
}

void fxa__cpu_panels_over_pack(const fxa__cpu_kernels *kernels, fxa__cpu_over *o, const void *x, int64_t ld,
                               int64_t n) {
    FXA__ASSERT(n <= o->most);
    o->rows = n;
    kernels->micro.pack_n(o->x, x, ld, n, o->d);
}

void fxa__cpu_panels_over_add(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, const void *w, int64_t ldw,
                              int64_t begin, int64_t end, int64_t first, int64_t last) {
    first -= first % fxa__cpu_panels_over_depth(kernels);
    int64_t row = first * kernels->micro.panel_row;
    FXA__ASSERT(0 <= first && row % kernels->nr == 0 && last <= o->rows && end <= o->columns);
    kernels->micro.gemm(end - begin, o->d, last - first, fxa__cpu_at(kernels, w, first * ldw + begin), 1, ldw,
                        fxa__cpu_at(kernels, o->x, row), o->rows * kernels->nr,
                        fxa__cpu_at(kernels, o->out, begin * o->ld_out), o->ld_out, o->ones);
}
