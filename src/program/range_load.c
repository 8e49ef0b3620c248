/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of loads: a superset of the elements that a load may read. Sources of the bounds, the most precise
 * first:
 *   - a nondecreasing tensor of rank 1 (document ids, offsets): its elements at the smallest and largest index
 *   - a tensor with a view (block tables, trees): every element in reach, if there are at most LOAD_FEW
 *   - the range that the caller has declared, and the range of the dtype
 * An index that may be out of bounds adds 0 to the values. Elements of i64 are saturated to 32 bits, except where two
 * loads are compared for equality. Floats are bounded only by elements that are read. fxa_tensor_scan determines range
 * and order of an int tensor in one pass.
 */
#include "range.h"

#include "../base/dtype.h"
#include "../base/num.h"

#include <math.h>
#include <string.h>

/* Returns the set of all values of an int or bool dtype, saturated to 32 bits. */
static fxa__set load_dtype_set(uint32_t dtype) {
    switch (dtype) {
    case FXA_I16: return fxa__set_of(INT16_MIN, INT16_MAX);
    case FXA_I8: return fxa__set_of(INT8_MIN, INT8_MAX);
    case FXA_U8: return fxa__set_of(0, UINT8_MAX);
    case FXA_B8: return fxa__set_of(0, 1);
    default: return fxa__set_of(INT32_MIN, INT32_MAX); /* i64 saturates */
    }
}

/* Returns true if a view can be read and has the dtype and rank that the program declares. */
static bool load_view_usable(const fxa_view *view, const fxa__decl *tensor) {
    if (view == NULL || view->dtype != tensor->dtype || view->rank != tensor->rank) return false;
    for (int i = 0; i < view->rank; i++)
        if (view->size[i] < 0 || view->size[i] > INT32_MAX) return false;
    for (int i = 0; i < view->rank; i++)
        if (view->size[i] == 0) return true;
    return view->data != NULL;
}

/* Adds the interval from element `first` to element `last` of a nondecreasing tensor; nothing if first > last. */
static void load_add_sorted(const fxa_view *view, int64_t first, int64_t last, fxa__set *set) {
    if (first > last) return;
    int32_t lo = fxa__load_i32(view->data, view->dtype, first * view->stride[0]);
    int32_t hi = fxa__load_i32(view->data, view->dtype, last * view->stride[0]);
    fxa__set_add(set, fxa__min_i64(lo, hi), fxa__max_i64(lo, hi));
}

/* Returns the values of a nondecreasing tensor at indices lo..hi; negative indices count from the end. */
static fxa__set load_sorted(const fxa_view *view, int64_t lo, int64_t hi) {
    int64_t n = view->size[0];
    fxa__set set = {0};
    load_add_sorted(view, fxa__max_i64(lo, 0), fxa__min_i64(hi, n - 1), &set);
    load_add_sorted(view, fxa__max_i64(lo, -n) + n, fxa__min_i64(hi, -1) + n, &set);
    if (lo < -n || hi >= n) fxa__set_add(&set, 0, 0);
    return set;
}

/* Iterates over the elements that the indices of a load can reach. */
typedef struct load_walk {
    const fxa_view *view;
    int64_t lo[FXA_MAX_RANK], hi[FXA_MAX_RANK]; /* range of each index, negative ones included */
    int64_t at[FXA_MAX_RANK];                   /* current index */
    bool more;                                  /* true = the walk has not ended */
} load_walk;

/* Maximum number of elements read for one load, enough for the keys of a tile. The limit bounds the time of an
 * analysis. */
enum { LOAD_FEW = 1024 };

/* Starts a walk and subtracts the number of its elements from r->work. Returns false if there are more elements than
 * LOAD_FEW or r->work. */
static bool load_walk_begin(fxa__range *r, const fxa__node *node, const fxa_view *view, load_walk *w) {
    int64_t count = 1;
    *w = (load_walk){.view = view, .more = true};
    for (int i = 0; i < node->n_args; i++) {
        const fxa__set *s = &fxa__range_of(r, node->arg[i])->i.set;
        w->lo[i] = w->at[i] = fxa__set_lo(s);
        w->hi[i] = fxa__set_hi(s);
        if (w->hi[i] - w->lo[i] >= LOAD_FEW) return false;
        count *= w->hi[i] - w->lo[i] + 1;
        if (count > LOAD_FEW || count > r->work) return false;
    }
    if (count > 1) r->work -= count;
    return true;
}

/* Returns the offset of the walk's current element and advances the walk. Sets *inside to false if the element is out
 * of bounds. */
static int64_t load_walk_next(load_walk *w, bool *inside) {
    int32_t index[FXA_MAX_RANK] = {0};
    int64_t offset = 0;
    for (int i = 0; i < w->view->rank; i++) index[i] = (int32_t)w->at[i];
    *inside = fxa__view_offset(w->view, index, &offset);
    int i = w->view->rank - 1;
    for (; i >= 0 && ++w->at[i] > w->hi[i]; i--) w->at[i] = w->lo[i];
    w->more = i >= 0;
    return offset;
}

/* Takes all elements of the walk along the last axis if all are in bounds: sets *offset to the first element's offset,
 * advances the walk past the elements, and returns the number of elements. Otherwise takes no element and returns 0. */
static int64_t load_walk_run(load_walk *w, int64_t *offset) {
    int32_t index[FXA_MAX_RANK] = {0};
    int last = w->view->rank - 1;
    if (last < 0 || w->at[last] != w->lo[last] || w->hi[last] >= w->view->size[last] || w->lo[last] < 0) return 0;
    for (int i = 0; i <= last; i++) index[i] = (int32_t)w->at[i];
    if (!fxa__view_offset(w->view, index, offset)) return 0;
    w->at[last] = w->hi[last];
    bool inside;
    (void)load_walk_next(w, &inside);
    return w->hi[last] - w->lo[last] + 1;
}

/* Takes the next elements of the walk: either several, all in bounds, at offsets *at, *at + *step, ..., or one, for
 * which *inside is set to false if it is out of bounds. Returns the number of elements taken. */
static int64_t load_walk_some(load_walk *w, int64_t *at, int64_t *step, bool *inside) {
    int64_t n = load_walk_run(w, at);
    *step = n > 0 ? w->view->stride[w->view->rank - 1] : 0;
    *inside = n > 0;
    if (n > 0) return n;
    *at = load_walk_next(w, inside);
    return 1;
}

enum { LOAD_PIECE = 16 }; /* number of elements that one memcmp compares, each with the preceding one */

/* Returns the number of elements from offset `at` on, at most n, that each equal the preceding element, rounded down to
 * a multiple of LOAD_PIECE. The caller skips them: tables of document or block ids have long runs of equal elements. */
static int64_t load_repeats(const fxa_view *view, int64_t at, int64_t n) {
    int64_t size = (int64_t)fxa_dtype_size(view->dtype), i = 0;
    const char *x = (const char *)view->data + at * size;
    while (i + LOAD_PIECE <= n && memcmp(x + (i - 1) * size, x + i * size, (size_t)(LOAD_PIECE * size)) == 0)
        i += LOAD_PIECE;
    return i;
}

/* Sets *out to the set of elements that a load can reach. Returns false if there are more such elements than LOAD_FEW
 * or r->work. */
static bool load_elements(fxa__range *r, const fxa__node *node, const fxa_view *view, fxa__set *out) {
    load_walk w;
    int32_t before = 0;
    if (!load_walk_begin(r, node, view, &w)) return false;
    out->n = 0;
    while (w.more) {
        int64_t at, step;
        bool inside;
        int64_t n = load_walk_some(&w, &at, &step, &inside);
        for (int64_t i = 0; i < n; i++) {
            if (step == 1 && i % LOAD_PIECE == 1) i += load_repeats(view, at + i, n - i);
            if (i >= n) break;
            int32_t x = inside ? fxa__load_i32(view->data, view->dtype, at + i * step) : 0;
            if (out->n == 0 || x != before) fxa__set_add(out, x, x);
            before = x;
        }
    }
    return true;
}

/* Returns true if an index of the load has more than one value. */
static bool load_varies(const fxa__range *r, const fxa__node *node) {
    for (int i = 0; i < node->n_args; i++)
        if (!fxa__set_is_one(&fxa__range_of(r, node->arg[i])->i.set)) return true;
    return false;
}

/* Returns true if all indices of the load are in bounds. */
static bool load_inside(const fxa__range *r, const fxa__node *node, const fxa_view *view) {
    for (int i = 0; i < node->n_args; i++) {
        const fxa__set *s = &fxa__range_of(r, node->arg[i])->i.set;
        if (fxa__set_lo(s) < -view->size[i] || fxa__set_hi(s) >= view->size[i]) return false;
    }
    return true;
}

fxa__set fxa__range_load(fxa__range *r, int32_t at) {
    const fxa__node *node = &r->p->nodes[at];
    const fxa__decl *tensor = &r->p->tensors[node->imm];
    fxa__set set = load_dtype_set(tensor->dtype);
    if (r->tensors == NULL) return set;
    const fxa_tensor_range *known = &r->tensors[node->imm];
    bool usable = load_view_usable(known->view, tensor);
    if (usable && known->nondecreasing && tensor->rank == 1 && load_varies(r, node)) {
        const fxa__set *index = &fxa__range_of(r, node->arg[0])->i.set;
        return load_sorted(known->view, fxa__set_lo(index), fxa__set_hi(index));
    }
    if (usable && load_elements(r, node, known->view, &set)) return set;
    if (known->known && known->lo <= known->hi) {
        fxa__set given = fxa__set_of(known->lo, known->hi);
        set = fxa__set_intersection(&set, &given);
    }
    if (set.n == 0 || !usable || !load_inside(r, node, known->view)) fxa__set_add(&set, 0, 0);
    return set;
}

/* ---- 64-bit elements of i64 -------------------------------------------------------------------------------------- */

/* Adds the element x to the set w. */
static void load_wide_add(fxa__wide *w, int64_t x) {
    bool first = w->n == 0;
    for (int i = 0; i < w->n; i++)
        if (w->value[i] == x) return;
    if (first || x < w->lo) w->lo = x;
    if (first || x > w->hi) w->hi = x;
    if (w->n >= 0 && w->n < FXA__WIDE_VALUES)
        w->value[w->n++] = x;
    else
        w->n = -1;
}

/* Adds elements first..last of a nondecreasing tensor to w; nothing if first > last. */
static void load_wide_sorted(const fxa_view *view, int64_t first, int64_t last, fxa__wide *w) {
    if (first > last) return;
    int64_t lo = fxa__load_i64(view->data, first * view->stride[0]);
    int64_t hi = fxa__load_i64(view->data, last * view->stride[0]);
    load_wide_add(w, lo);
    load_wide_add(w, hi);
    if (lo != hi) w->n = -1;
}

/* Adds all elements that a load can reach to *out. Returns false if there are more elements than LOAD_FEW or
 * r->work. */
static bool load_wide_elements(fxa__range *r, const fxa__node *node, const fxa_view *view, fxa__wide *out) {
    load_walk w;
    if (!load_walk_begin(r, node, view, &w)) return false;
    while (w.more) {
        int64_t at, step;
        bool inside;
        int64_t n = load_walk_some(&w, &at, &step, &inside);
        for (int64_t i = 0; i < n; i++) load_wide_add(out, inside ? fxa__load_i64(view->data, at + i * step) : 0);
    }
    return true;
}

bool fxa__range_load_wide(fxa__range *r, int32_t at, fxa__wide *out) {
    const fxa__node *node = &r->p->nodes[at];
    const fxa_tensor_range *known = r->tensors ? &r->tensors[node->imm] : NULL;
    *out = (fxa__wide){.n = 0};
    if (known == NULL || !load_view_usable(known->view, &r->p->tensors[node->imm])) return false;
    if (!known->nondecreasing || node->n_args != 1 || !load_varies(r, node))
        return load_wide_elements(r, node, known->view, out);
    const fxa__set *index = &fxa__range_of(r, node->arg[0])->i.set;
    int64_t lo = fxa__set_lo(index), hi = fxa__set_hi(index), n = known->view->size[0];
    load_wide_sorted(known->view, fxa__max_i64(lo, 0), fxa__min_i64(hi, n - 1), out);
    load_wide_sorted(known->view, fxa__max_i64(lo, -n) + n, fxa__min_i64(hi, -1) + n, out);
    if (lo < -n || hi >= n) load_wide_add(out, 0);
    return true;
}

/* ---- Floats, and fxa_tensor_scan --------------------------------------------------------------------------------- */

/* Returns true if every engine reads x unchanged. Engines may load f64 as f32 and flush subnormal numbers to 0. */
static bool load_is_exact(uint32_t dtype, double x) { return dtype != FXA_F64 && (x == 0 || fabs(x) >= 0x1p-126); }

bool fxa__range_load_real(fxa__range *r, int32_t at, fxa__real *out, bool *exact) {
    const fxa__node *node = &r->p->nodes[at];
    const fxa_view *view = r->tensors ? r->tensors[node->imm].view : NULL;
    load_walk w;
    if (!load_view_usable(view, &r->p->tensors[node->imm]) || !load_walk_begin(r, node, view, &w)) return false;
    *out = (fxa__real){.lo = INFINITY, .hi = -INFINITY, .integral = true};
    *exact = true;
    while (w.more) {
        bool inside;
        int64_t offset = load_walk_next(&w, &inside);
        double x = inside ? fxa__load_f64(view->data, view->dtype, offset) : 0;
        if (x != x) out->nan = true;
        if (x < out->lo) out->lo = x;
        if (x > out->hi) out->hi = x;
        out->integral = out->integral && x == floor(x) && fabs(x) <= 0x1p24;
        *exact = *exact && load_is_exact(view->dtype, x);
    }
    return true;
}

fxa_tensor_range fxa_tensor_scan(const fxa_view *view) {
    fxa_tensor_range out = {.view = view};
    if (view == NULL || view->rank != 1 || view->size[0] < 0 || (view->size[0] > 0 && view->data == NULL)) return out;
    fxa_type type = fxa__dtype_type(view->dtype);
    if (type != FXA_INT && type != FXA_BOOL) return out;
    out.known = out.nondecreasing = 1;
    int64_t before = 0;
    for (int64_t i = 0; i < view->size[0]; i++) {
        int32_t x = fxa__load_i32(view->data, view->dtype, i * view->stride[0]);
        int64_t element = view->dtype == FXA_I64 ? fxa__load_i64(view->data, i * view->stride[0]) : x;
        if (i == 0 || x < out.lo) out.lo = x;
        if (i == 0 || x > out.hi) out.hi = x;
        if (i > 0 && element < before) out.nondecreasing = 0;
        before = element;
    }
    return out;
}
