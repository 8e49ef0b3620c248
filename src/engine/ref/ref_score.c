/* SPDX-License-Identifier: Apache-2.0
 *
 * The score of one pair of a query row and a key, in f64:
 *
 *     s  = scale * sum_d Q[q,d] K[k,d]
 *     s' = program(s; b, h, q, k, q_row, k_row, lengths, heads, params, tensors), -inf where its mask is false
 */
#include "ref.h"

#include "../../base/dtype.h"
#include "../../base/philox.h"

double fxa__ref_dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

void fxa__ref_axpy(double *y, double a, const double *x, int64_t n) {
    if (a == 0) return; /* the sum skips 0 * inf and 0 * NaN */
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

void fxa__ref_enter_head(fxa__ref *r, int64_t h) {
    r->env.coord[FXA_INPUT_H] = fxa__coord(r->p, r->bound, FXA_INPUT_H, h);
}

void fxa__ref_enter_row(fxa__ref *r, int64_t h, int64_t q) {
    r->env.coord[FXA_INPUT_Q] = fxa__row_coord(r->p, r->bound, &r->seq, q);
    r->env.coord[FXA_INPUT_Q_ROW] = (int32_t)q;
    fxa__ref_load(r, FXA_SLOT_Q, h, q, r->q);
}

double fxa__ref_score(fxa__ref *r, int64_t k) {
    const fxa_program *program = r->p->program;
    r->env.coord[FXA_INPUT_K] = fxa__coord(r->p, r->bound, FXA_INPUT_K, k);
    r->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
    r->env.score = r->bound->scale * fxa__ref_dot(r->q, r->k + k * r->p->in.d_qk, r->p->in.d_qk);
    fxa__program_eval(program, &r->env, r->vals);
    bool attended = r->vals[fxa__program_output(program, FXA__OUT_MASK)].i != 0;
    return attended ? r->vals[fxa__program_output(program, FXA__OUT_SCORE)].f : -INFINITY;
}

double fxa__ref_dropout(const fxa__ref *r) {
    if (!(r->p->in.flags & FXA_DROPOUT)) return 1;
    double p = r->p->in.dropout_p;
    const int32_t *at = r->env.coord;
    bool keep = fxa__dropout_keep(r->bound->seed, fxa__dropout_threshold(p), at[FXA_INPUT_B], at[FXA_INPUT_H],
                                  at[FXA_INPUT_Q], at[FXA_INPUT_K]);
    return keep ? 1 / (1 - p) : 0;
}

double fxa__ref_sink(const fxa__ref *r, int64_t h) {
    const fxa_problem *p = &r->p->in;
    if (p->flags & FXA_SINKS)
        return fxa__load_f64(r->bound->slot[FXA_SLOT_SINKS], p->sinks.dtype, h * p->sinks.stride[1]);
    return p->flags & FXA_SINK_ZERO ? 0 : -INFINITY;
}
