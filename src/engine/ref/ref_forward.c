/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward pass, row by row. s' are the new scores of the row (results of the program, ref_score.c), z is the score of
 * the sink:
 *
 *     m   = max(s', z)                         over the attended keys, and the sink
 *     l   = sum_k exp(s'_k - m) + exp(z - m)
 *     LSE = m + log l
 *     P_k = exp(s'_k - m) / l
 *     O   = sum_k P_k r_k V_k                  r_k: dropout factor, 0 or 1 / (1 - p), not part of l and LSE
 *
 * If m = -inf, no key is attended: O = 0 and LSE = -inf. If an s' or z is NaN or +inf, O and LSE are NaN.
 */
#include "ref.h"

#include "../../base/num.h"
#include "../../problem/merge_row.h"
#include "../../problem/work_estimate.h"

/* Writes the new scores (results of the program) of the current row to r->s. Returns their maximum: -inf if no key is
 * attended, NaN if a score is NaN. */
static double ref_row_scores(fxa__ref *r) {
    double max = -INFINITY;
    for (int64_t k = 0; k < r->seq.k_len; k++) {
        r->s[k] = fxa__ref_score(r, k);
        max = fxa__fmax(max, r->s[k]);
    }
    return max;
}

/* Returns the sum l of the current row, given its maximum m and the sink's score z. The sum is compensated (Neumaier),
 * because a plain sum of a million equal terms can lose up to six decimal digits. */
static double ref_row_sum(const fxa__ref *r, double m, double z) {
    double l = exp(z - m), lost = 0;
    for (int64_t k = 0; k < r->seq.k_len; k++) {
        double p = exp(r->s[k] - m), sum = l + p;
        lost += l >= p ? (l - sum) + p : (p - sum) + l;
        l = sum;
    }
    return l + lost;
}

/* Computes r->o, the output of a row that attends to at least one key, from the row's maximum m and sum l. */
static void ref_row_output(fxa__ref *r, double m, double l) {
    int64_t dv = r->p->in.d_v;
    for (int64_t k = 0; k < r->seq.k_len; k++) {
        r->env.coord[FXA_INPUT_K] = fxa__coord(r->p, r->bound, FXA_INPUT_K, k);
        double probability = exp(r->s[k] - m) / l;
        fxa__ref_axpy(r->o, probability * fxa__ref_dropout(r), r->v + k * dv, dv);
    }
}

/* Stores the outputs of a row: O, and if requested LSE and row_max. O is r->o, merged with the stored row if
 * FXA_ACCUMULATE_O is set. */
static void ref_row_store(fxa__ref *r, int64_t h, int64_t q, double lse, double max) {
    const fxa_problem *p = &r->p->in;
    const double *o = r->o;
    if (p->flags & FXA_ACCUMULATE_O) {
        double lse_old;
        fxa__ref_load(r, FXA_SLOT_O, h, q, r->o_old);
        fxa__ref_load(r, FXA_SLOT_LSE, h, q, &lse_old);
        fxa__merge_row(r->o_old, &lse_old, r->o, lse, p->d_v);
        o = r->o_old;
        lse = lse_old;
    }
    fxa__ref_store(r, FXA_SLOT_O, h, q, o, false);
    if (p->flags & (FXA_RETURN_LSE | FXA_ACCUMULATE_O)) fxa__ref_store(r, FXA_SLOT_LSE, h, q, &lse, false);
    if (p->flags & FXA_RETURN_ROW_MAX) fxa__ref_store(r, FXA_SLOT_ROW_MAX, h, q, &max, false);
}

static void ref_row_forward(fxa__ref *r, int64_t h, int64_t q) {
    fxa__ref_enter_row(r, h, q);
    double max = ref_row_scores(r), sink = fxa__ref_sink(r, h), m = fxa__fmax(max, sink);
    double lse = m < INFINITY ? m : NAN;
    for (int64_t i = 0; i < r->p->in.d_v; i++) r->o[i] = lse == lse ? 0 : NAN;
    if (lse > -INFINITY) {
        double l = ref_row_sum(r, m, sink);
        lse = m + log(l);
        ref_row_output(r, m, l);
    }
    ref_row_store(r, h, q, lse, max);
    fxa__progress_add(r->bound->progress, 1);
}

/* Stores O = 0 and LSE = row_max = -inf for a row past the end of a padded sequence. */
static void ref_row_padding(fxa__ref *r, int64_t h, int64_t q) {
    for (int64_t i = 0; i < r->p->in.d_v; i++) r->o[i] = 0;
    ref_row_store(r, h, q, -INFINITY, -INFINITY);
}

void fxa__ref_forward(fxa__ref *r) {
    const fxa_problem *p = &r->p->in;
    int64_t group = p->hq / fxa__max_i64(p->hkv, 1), entries = fxa__entries_with_work(r->p);
    fxa__progress_begin(r->bound->progress, entries, p->hq, p->sq);
    for (int64_t b = 0; b < entries; b++) {
        fxa__ref_enter_batch(r, b);
        for (int64_t hkv = 0; hkv < p->hkv; hkv++) {
            fxa__ref_load_keys(r, hkv);
            for (int64_t h = hkv * group; h < (hkv + 1) * group; h++) {
                fxa__ref_enter_head(r, h);
                for (int64_t q = 0; q < r->seq.q_len; q++) ref_row_forward(r, h, q);
                fxa__progress_add(r->bound->progress, p->sq - r->seq.q_len);
                if (p->flags & FXA_VARLEN) continue; /* packed rows outside every sequence are not written */
                for (int64_t q = r->seq.q_len; q < p->sq; q++) ref_row_padding(r, h, q);
            }
        }
    }
}
