/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of int and bool tensors: what the caller said of the tensor, what its dtype allows, and, where elements may be
 * read, single elements and the two ends of a nondecreasing stretch (documents, lengths, offsets). An index that may
 * lie outside adds 0 to the values. fxa_tensor_scan looks at a tensor once to find all this out.
 */
#include "range.h"

#include "../base/dtype.h"
#include "../base/num.h"

static fxa__set load_dtype_set(uint32_t dtype) {
    switch (dtype) {
    case FXA_I16: return fxa__set_of(INT16_MIN, INT16_MAX);
    case FXA_I8: return fxa__set_of(INT8_MIN, INT8_MAX);
    case FXA_U8: return fxa__set_of(0, UINT8_MAX);
    case FXA_B8: return fxa__set_of(0, 1);
    default: return fxa__set_of(INT32_MIN, INT32_MAX); /* i64 saturates */
    }
}

/* A view that can be read, and is of the tensor that the program declares. */
static bool load_view_usable(const fxa_view *view, const fxa__decl *tensor) {
    if (view == NULL || view->dtype != tensor->dtype || view->rank != tensor->rank) return false;
    for (int i = 0; i < view->rank; i++)
        if (view->size[i] < 0 || view->size[i] > INT32_MAX) return false;
    for (int i = 0; i < view->rank; i++)
        if (view->size[i] == 0) return true;
    return view->data != NULL;
}

/* Elements first..last of a nondecreasing tensor, part of a stretch that begins at `first`; may be empty. */
static void load_add_sorted(const fxa_view *view, int64_t first, int64_t last, fxa__set *set) {
    if (first > last) return;
    int32_t lo = fxa__load_i32(view->data, view->dtype, first * view->stride[0]);
    int32_t hi = fxa__load_i32(view->data, view->dtype, last * view->stride[0]);
    fxa__set_add(set, fxa__min_i64(lo, hi), fxa__max_i64(lo, hi));
}

static fxa__set load_sorted(const fxa_view *view, int64_t lo, int64_t hi) {
    int64_t n = view->size[0];
    fxa__set set = {0};
    load_add_sorted(view, fxa__max_i64(lo, 0), fxa__min_i64(hi, n - 1), &set);
    load_add_sorted(view, fxa__max_i64(lo, -n) + n, fxa__min_i64(hi, -1) + n, &set);
    if (lo < -n || hi >= n) fxa__set_add(&set, 0, 0);
    return set;
}

/* All indices have one value: the element itself. */
static bool load_element(const fxa__range *r, const fxa__node *node, const fxa_view *view, fxa__set *out) {
    int32_t index[FXA_MAX_RANK] = {0};
    int64_t offset;
    for (int i = 0; i < node->n_args; i++) {
        const fxa__set *s = &fxa__range_of(r, node->arg[i])->i.set;
        if (!fxa__set_is_one(s)) return false;
        index[i] = (int32_t)fxa__set_lo(s);
    }
    int32_t x = fxa__view_offset(view, index, &offset) ? fxa__load_i32(view->data, view->dtype, offset) : 0;
    *out = fxa__set_of(x, x);
    return true;
}

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
    if (usable && load_element(r, node, known->view, &set)) return set;
    if (usable && known->nondecreasing && tensor->rank == 1) {
        const fxa__set *index = &fxa__range_of(r, node->arg[0])->i.set;
        return load_sorted(known->view, fxa__set_lo(index), fxa__set_hi(index));
    }
    if (known->known && known->lo <= known->hi) {
        fxa__set given = fxa__set_of(known->lo, known->hi);
        set = fxa__set_meet(&set, &given);
    }
    if (set.n == 0 || !usable || !load_inside(r, node, known->view)) fxa__set_add(&set, 0, 0);
    return set;
}

fxa_tensor_range fxa_tensor_scan(const fxa_view *view) {
    fxa_tensor_range out = {.view = view};
    if (view == NULL || view->rank != 1 || view->size[0] < 0 || (view->size[0] > 0 && view->data == NULL)) return out;
    fxa_type type = fxa__dtype_type(view->dtype);
    if (type != FXA_INT && type != FXA_BOOL) return out;
    out.known = out.nondecreasing = 1;
    int32_t before = 0;
    for (int64_t i = 0; i < view->size[0]; i++) {
        int32_t x = fxa__load_i32(view->data, view->dtype, i * view->stride[0]);
        if (i == 0 || x < out.lo) out.lo = x;
        if (i == 0 || x > out.hi) out.hi = x;
        if (i > 0 && x < before) out.nondecreasing = 0;
        before = x;
    }
    return out;
}
