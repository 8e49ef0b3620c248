/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the values of lengths, offsets and page numbers in host memory before a run, because they determine which
 * memory an engine accesses. Each error message has the index of the wrong value.
 */
#include "scales.h"

#include "../base/num.h"

static fxa_status values_check_lengths(const char *name, const int32_t *len, int64_t b, int64_t most, fxa_error *err) {
    for (int64_t i = 0; len && i < b; i++)
        if (len[i] < 0 || len[i] > most)
            return fxa__fail(err, FXA_E_BINDING, "%s[%lld] is %d: accepted are 0 to %lld", name, (long long)i, len[i],
                             (long long)most);
    return FXA_OK;
}

/* Checks the offsets of packed sequences. If lengths are given too, a sequence may be shorter than the distance of its
 * two offsets, but not longer. */
static fxa_status values_check_offsets(const char *name, const int32_t *cu, const char *len_name, const int32_t *length,
                                       int64_t b, int64_t most, int64_t total, fxa_error *err) {
    if (cu[0] < 0) return fxa__fail(err, FXA_E_BINDING, "%s[0] is %d: accepted are 0 and more", name, cu[0]);
    for (int64_t i = 0; i < b; i++) {
        int64_t len = (int64_t)cu[i + 1] - cu[i];
        if (len < 0)
            return fxa__fail(err, FXA_E_BINDING, "%s[%lld] is %d, less than %d before it: offsets never decrease", name,
                             (long long)i + 1, cu[i + 1], cu[i]);
        if (length && length[i] > len)
            return fxa__fail(err, FXA_E_BINDING, "%s[%lld] is %d: from %s[%lld] to %s[%lld] there are %lld places",
                             len_name, (long long)i, length[i], name, (long long)i, name, (long long)i + 1,
                             (long long)len);
        if (!length && len > most)
            return fxa__fail(err, FXA_E_BINDING,
                             "%s[%lld] to %s[%lld] is a sequence of %lld: the problem says %lld at most", name,
                             (long long)i, name, (long long)i + 1, (long long)len, (long long)most);
    }
    if (cu[b] > total)
        return fxa__fail(err, FXA_E_BINDING, "%s[%lld] is %d: the packed tensors have %lld positions", name,
                         (long long)b, cu[b], (long long)total);
    return FXA_OK;
}

/* Checks the page numbers of pages that hold keys of a sequence. The other elements of the page table are not read. */
static fxa_status values_check_pages(const fxa_problem *p, void *const *slot, fxa_error *err) {
    const int32_t *pages = slot[FXA_SLOT_PAGES], *len_k = p->flags & FXA_PADDING ? slot[FXA_SLOT_K_LENGTHS] : NULL;
    int64_t page_size = p->page_size, per_batch = fxa__div_up(p->sk, page_size);
    for (int64_t b = 0; per_batch > 0 && b < p->b; b++) {
        int64_t used = fxa__div_up(len_k ? len_k[b] : p->sk, page_size);
        for (int64_t i = 0; i < used; i++) {
            int32_t page = pages[b * per_batch + i];
            if (p->n_pages == 0)
                return fxa__fail(err, FXA_E_BINDING, "n_pages is 0, and batch entry %lld has %lld keys: accepted are 0",
                                 (long long)b, (long long)(len_k ? len_k[b] : p->sk));
            if (page < 0 || page >= p->n_pages)
                return fxa__fail(err, FXA_E_BINDING, "PAGES[%lld,%lld] is %d: accepted are 0 to %lld", (long long)b,
                                 (long long)i, page, (long long)p->n_pages - 1);
        }
    }
    return FXA_OK;
}

fxa_status fxa__args_check_values(const fxa_problem *p, void *const *slot, fxa_error *err) {
    FXA_TRY(fxa__scales_check_values(p, slot, err));
    bool lengths = p->flags & FXA_PADDING;
    const int32_t *len_q = lengths ? slot[FXA_SLOT_Q_LENGTHS] : NULL,
                  *len_k = lengths ? slot[FXA_SLOT_K_LENGTHS] : NULL;
    FXA_TRY(values_check_lengths("Q_LENGTHS", len_q, p->b, p->sq, err));
    FXA_TRY(values_check_lengths("K_LENGTHS", len_k, p->b, p->sk, err));
    if (fxa__slot_length(p, FXA_SLOT_CU_Q) >= 0)
        FXA_TRY(values_check_offsets("CU_Q", slot[FXA_SLOT_CU_Q], "Q_LENGTHS", len_q, p->b, p->sq, p->total_q, err));
    if (fxa__slot_length(p, FXA_SLOT_CU_K) >= 0)
        FXA_TRY(values_check_offsets("CU_K", slot[FXA_SLOT_CU_K], "K_LENGTHS", len_k, p->b, p->sk, p->total_k, err));
    return p->flags & FXA_PAGED ? values_check_pages(p, slot, err) : FXA_OK;
}
