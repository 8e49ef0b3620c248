/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges two partial results of attention over disjoint sets of keys, in f64. With m = max(lse_a, lse_b) and w =
 * exp(lse - m):
 *
 *       O = (w_a O_a + w_b O_b) / (w_a + w_b),    LSE = m + log(w_a + w_b).
 *
 * If a partial result has weight 0, its O is not read. The O of the other partial result is then unchanged, and a row
 * without attended pairs never becomes NaN.
 */
#include "merge_tensors.h"
#include "merge_row.h"

#include "../base/dtype.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <string.h>

#define MERGE_CHUNK 64 /* number of elements of a row of O that are merged at a time, in arrays on the stack */

void fxa__merge_row(double *o_a, double *lse_a, const double *o_b, double lse_b, int64_t d) {
    double m = fxa__fmax(*lse_a, lse_b);
    if (m == -INFINITY) {
        for (int64_t i = 0; i < d; i++) o_a[i] = 0;
        return;
    }
    double w_a = exp(*lse_a - m), w_b = exp(lse_b - m), sum = w_a + w_b;
    FXA__ASSERT(!(sum < 1)); /* the larger LSE has weight 1, unless the weight is NaN */
    if (w_b == 0 && w_a == w_a) return;
    bool skip_a = w_a == 0 && w_b == w_b; /* false if a weight is NaN: the formula then makes o_a NaN */
    for (int64_t i = 0; i < d; i++) o_a[i] = skip_a ? o_b[i] : (w_a * o_a[i] + w_b * o_b[i]) / sum;
    *lse_a = m + log(sum);
}

/* ---- Full tensors ------------------------------------------------------------------------------------------------ */

/* A tensor of a merge. */
typedef struct merge_side {
    const char *name; /* name in messages */
    fxa_operand *t;
    void *data;
    /* row: true = one element per row (LSE), false = one vector per row (O). written: true = output of the merge. */
    bool row, written;
} merge_side;

static fxa_status merge_check_side(const merge_side *side, const int64_t full[4], fxa__region *out, fxa_error *err) {
    int64_t size[4] = {full[0], full[1], full[2], side->row ? 1 : full[3]}, first, end;
    uint32_t dtype = side->t->dtype;
    char shown[24];
    if (side->row ? dtype != FXA_F32 && dtype != FXA_F64 : !fxa__dtype_is_float(dtype))
        return fxa__fail(err, FXA_E_PROBLEM, "%s.dtype is %s: accepted are %s", side->name,
                         fxa__dtype_show(dtype, shown), side->row ? "f64, f32" : "f64, f32, f16, bf16, e4m3, e5m2");
    FXA_TRY(fxa__operand_resolve(side->name, side->t, size, side->row ? 7 : 15, side->written, err));
    *out = fxa__operand_region(side->t, size, side->data);
    if (fxa__region_is_empty(out)) return FXA_OK;
    if (!side->data) return fxa__fail(err, FXA_E_BINDING, "%s_data is NULL", side->name);
    size_t align = fxa__align_of(fxa_dtype_size((fxa_dtype)dtype));
    if ((uintptr_t)side->data % align)
        return fxa__fail(err, FXA_E_BINDING, "%s_data is %p: %s needs a multiple of %zu", side->name, side->data,
                         fxa_dtype_name((fxa_dtype)dtype), align);
    if (!fxa__region_addresses(out, &first, &end))
        return fxa__fail(err, FXA_E_BINDING, "%s_data is %p: its tensor leaves the address space", side->name,
                         side->data);
    return FXA_OK;
}

static fxa_status merge_check(fxa_merge_args *a, fxa__region region[FXA__MERGE_TENSORS], fxa_error *err) {
    const int64_t size[4] = {a->b, a->h, a->s, a->d};
    const merge_side side[4] = {{"o_a", &a->o_a, a->o_a_data, false, true},
                                {"lse_a", &a->lse_a, a->lse_a_data, true, true},
                                {"o_b", &a->o_b, (void *)(uintptr_t)a->o_b_data, false, false},
                                {"lse_b", &a->lse_b, (void *)(uintptr_t)a->lse_b_data, true, false}};
    for (int i = 0; i < 4; i++)
        if (size[i] < 0)
            return fxa__fail(err, FXA_E_PROBLEM, "%c is %lld: accepted are 0 and more", "bhsd"[i], (long long)size[i]);
    for (int i = 0; i < 4; i++) FXA_TRY(merge_check_side(&side[i], size, &region[i], err));
    for (int i = 0; i < 2; i++)
        for (int j = i + 1; j < 4; j++) {
            fxa__overlap overlap = fxa__region_overlap(&region[i], &region[j]);
            if (overlap != FXA__DISJOINT)
                return fxa__fail(err, FXA_E_BINDING, "%s and %s %soverlap in memory%s", side[i].name, side[j].name,
                                 overlap == FXA__OVERLAP_UNKNOWN ? "may " : "", fxa__overlap_note(overlap));
        }
    return FXA_OK;
}

static void merge_one(const fxa_merge_args *a, int64_t b, int64_t h, int64_t s) {
    double o_a[MERGE_CHUNK] = {0}, o_b[MERGE_CHUNK] = {0};
    int64_t at[4];
    const fxa_operand *t[4] = {&a->o_a, &a->o_b, &a->lse_a, &a->lse_b};
    for (int i = 0; i < 4; i++) at[i] = b * t[i]->stride[0] + h * t[i]->stride[1] + s * t[i]->stride[2];
    const double lse_a = fxa__load_f64(a->lse_a_data, a->lse_a.dtype, at[2]);
    const double lse_b = fxa__load_f64(a->lse_b_data, a->lse_b.dtype, at[3]);
    double lse = lse_a;
    if (lse_b == -INFINITY && lse_a > -INFINITY) return;
    fxa__merge_row(o_a, &lse, o_b, lse_b, 0);
    fxa__store_f64(a->lse_a_data, a->lse_a.dtype, at[2], lse);
    for (int64_t from = 0; from < a->d; from += MERGE_CHUNK) {
        int64_t n = fxa__min_i64(MERGE_CHUNK, a->d - from);
        for (int64_t i = 0; i < n; i++) {
            o_a[i] = fxa__load_f64(a->o_a_data, a->o_a.dtype, at[0] + (from + i) * a->o_a.stride[3]);
            o_b[i] = fxa__load_f64(a->o_b_data, a->o_b.dtype, at[1] + (from + i) * a->o_b.stride[3]);
        }
        lse = lse_a;
        fxa__merge_row(o_a, &lse, o_b, lse_b, n);
        for (int64_t i = 0; i < n; i++)
            fxa__store_f64(a->o_a_data, a->o_a.dtype, at[0] + (from + i) * a->o_a.stride[3], o_a[i]);
    }
}

static fxa_status merge_check_place(const fxa_merge_args *a, fxa_error *err) {
    if (!fxa_device_name((fxa_device)a->device))
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_merge_args.device is %u: accepted are %u (host) and %u (cuda)",
                         a->device, FXA_HOST, FXA_CUDA);
    if (a->ordinal < 0 || (a->device == FXA_HOST && a->ordinal))
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_merge_args.ordinal is %d: accepted %s", (int)a->ordinal,
                         a->device == FXA_HOST ? "on device host is 0" : "are 0 and more");
    if (a->device != FXA_HOST && !a->ctx)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_merge_args.ctx is NULL: on device %s its engines merge",
                         fxa_device_name((fxa_device)a->device));
    return FXA_OK;
}

fxa_status fxa__merge_args_read(const fxa_merge_args *args, fxa_merge_args *out, fxa__region region[FXA__MERGE_TENSORS],
                                fxa_error *err) {
    memset(out, 0, sizeof *out);
    FXA_TRY(fxa__struct_read(out, sizeof *out, offsetof(fxa_merge_args, ctx), args, "fxa_merge_args", err));
    if (out->reserved)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_merge_args.reserved is %u: accepted is 0", out->reserved);
    FXA_TRY(merge_check_place(out, err));
    return merge_check(out, region, err);
}

/* The loop over b, which may be huge, is skipped if h or s is 0, because the tensors then have no elements. */
void fxa__merge_tensors(const fxa_merge_args *a) {
    bool rows = a->h > 0 && a->s > 0;
    for (int64_t b = 0; rows && b < a->b; b++)
        for (int64_t h = 0; h < a->h; h++)
            for (int64_t s = 0; s < a->s; s++) merge_one(a, b, h, s);
}
