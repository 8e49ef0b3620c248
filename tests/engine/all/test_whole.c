/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of attention for any values: probabilities sum to one, merged parts of a sequence equal the entire
 * sequence, a batch entry is independent of its neighbours, and the layout of arrays does not matter.
 */
#include "support/fixtures/whole.h"

/* ---- Probabilities ----------------------------------------------------------------------------------------------- */

WHOLE(probabilities_sum_to_one) {
    whole w;
    whole_start(&w, whole_text, 2, 4, 2, 9, 13, 5, 3);
    for (int64_t i = 0; i < w.n_v; i++) w.v[i] = 1;
    whole_run(&w, FXA_FORWARD);
    for (int64_t i = 0; i < w.n_o; i++) T_NEAR(w.o[i], 1, 13 * 0x1p-52);
    w.p->flags |= FXA_SINK_ZERO;
    whole_run(&w, FXA_FORWARD);
    for (int64_t i = 0; i < w.n_o; i++) T_NEAR(w.o[i], 1 - exp(-w.lse[i / 3]), 16 * 0x1p-52);
    whole_end(&w);
}

WHOLE(score_shift_moves_lse_and_nothing_else) {
    whole w;
    whole_start(&w, whole_text, 1, 2, 1, 7, 11, 4, 4);
    whole_run(&w, FXA_FORWARD);
    double o[56], lse[14];
    memcpy(o, w.o, sizeof o);
    memcpy(lse, w.lse, sizeof lse);
    for (int i = 0; i < 16; i++) w.tensor[i] += 32; /* adds 32 to every score, by bias[...] */
    whole_run(&w, FXA_FORWARD);
    whole_near("O", w.o, o, w.n_o, 1e-13);
    for (int64_t i = 0; i < w.n_row; i++) T_NEAR(w.lse[i], lse[i] + 32, 1e-13);
    whole_end(&w);
}

WHOLE(dropout_keeps_its_share_and_the_mean) {
    whole w;
    const double p = 0.3;
    whole_start(&w, NULL, 2, 4, 4, 64, 128, 1, 1);
    w.p->flags |= FXA_DROPOUT;
    w.p->dropout_p = p;
    w.x.seed = t_seed();
    for (int64_t i = 0; i < w.n_q; i++) w.q[i] = 0;
    for (int64_t i = 0; i < w.n_v; i++) w.v[i] = 1;
    whole_run(&w, FXA_FORWARD); /* all probabilities are equal, so O is the number of kept keys / (128 (1 - p)) */
    double mean = 0, pairs = 2 * 4 * 64 * 128;
    for (int64_t i = 0; i < w.n_o; i++) mean += w.o[i] / (double)w.n_o;
    T_NEAR(mean, 1, 5 * sqrt(p / (1 - p) / pairs));                          /* five standard deviations */
    for (int64_t i = 0; i < w.n_row; i++) T_NEAR(w.lse[i], log(128), 1e-14); /* LSE does not depend on dropout */
    double first[512];
    memcpy(first, w.o, sizeof first);
    w.x.seed++;
    whole_run(&w, FXA_FORWARD);
    int equal = 0;
    for (int64_t i = 0; i < w.n_o; i++) equal += w.o[i] == first[i];
    T_CHECK(equal < w.n_o / 2); /* another seed drops other pairs; rows agree only if they keep equally many */
    whole_end(&w);
}

/* ---- Few keys in the last tile (R-99) ---------------------------------------------------------------------------- */

/* Checks that results are finite, and that each column of dV sums to that of dO over the rows with keys: the weights of
 * a row sum to 1. */
static void whole_check_half_tile(attn_data *x, double tolerance) {
    static const fxa_slot outputs[] = {FXA_SLOT_O, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    const int64_t d = x->t[FXA_SLOT_DV].n[3], sq = x->problem.sq, sk = x->problem.sk;
    T_CHECK(d > 0);
    for (int i = 0; i < 4; i++) {
        const attn_tensor *t = &x->t[outputs[i]];
        for (int64_t j = 0; j < t->n[0] * t->n[1] * t->n[2] * t->n[3]; j++)
            if (!isfinite(attn_get(t, j))) T_FAIL("%s[%d] is not finite\n", fxa_slot_name(outputs[i]), (int)j);
    }
    for (int64_t j = 0; j < d; j++) {
        double got = 0, want = 0, size = 0;
        for (int64_t k = 0; k < sk; k++) got += attn_get(&x->t[FXA_SLOT_DV], k * d + j);
        for (int64_t q = 5; q < sq; q++) want += attn_get(&x->t[FXA_SLOT_DO], q * d + j);
        for (int64_t q = 5; q < sq; q++) size += fabs(attn_get(&x->t[FXA_SLOT_DO], q * d + j));
        if (!(fabs(got - want) <= tolerance * size)) T_FAIL("column %d of dV sums to %g, not %g\n", (int)j, got, want);
    }
    for (int64_t q = 0; q < 5; q++) T_CHECK(attn_get(&x->t[FXA_SLOT_LSE], q) == -INFINITY);
}

/* k_len % 128 is 64, scores and LSE are near -3000, and five rows have no keys. */
WHOLE(gradients_of_half_a_tile_of_keys_with_a_very_negative_lse_are_finite) {
    static const struct {
        fxa_dtype dtype;
        double tolerance;
    } kinds[] = {{FXA_F64, 1e-10}, {FXA_F32, 1e-3}, {FXA_BF16, 2e-2}, {FXA_F16, 2e-3}};
    for (int i = 0; i < 8; i++) {
        t_ctx *ctx = attn_context(2);
        attn_owned x = {0};
        const attn_spec s = {.b = 1,
                             .hq = 1,
                             .sq = 70,
                             .sk = i % 2 ? 192 : 64,
                             .d = 16,
                             .dtype = kinds[i / 2].dtype,
                             .flags = FXA_RETURN_LSE,
                             .text = "score = score - 3000.0\nmask = k <= q - 5"};
        T_OK(attn_data_make(&x, ctx, &s, t_seed(), &err));
        T_OK(attn_data_run(&x, ctx, whole_engine, FXA_FORWARD, &err));
        T_OK(attn_data_run(&x, ctx, whole_engine, FXA_BACKWARD, &err));
        whole_check_half_tile(&x, kinds[i / 2].tolerance);
    }
}

/* ---- Context parallelism (R-11) ---------------------------------------------------------------------------------- */

/* Runs one shard of w: queries cut[0..1) and keys cut[2..3), as views of the entire arrays with global coordinates. */
static void whole_shard(whole *w, fxa_pass pass, uint32_t flags, const int64_t cut[4], double *o, double *lse) {
    fxa_error err;
    attn_call call;
    int64_t q0 = cut[0], k0 = cut[2], sq = w->p->sq, sk = w->p->sk, d = w->p->d_qk, dv = w->p->d_v;
    whole_call(w, pass, &call);
    call.p.sq = cut[1] - q0, call.p.sk = cut[3] - k0;
    call.p.map_q.base = q0, call.p.map_k.base = k0;
    call.p.global_q_len = sq, call.p.global_k_len = sk;
    call.p.flags |= flags;
    const fxa_operand wide_q = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p->hq * sq * d, sq * d, d, 1}};
    const fxa_operand wide_o = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p->hq * sq * dv, sq * dv, dv, 1}};
    const fxa_operand wide_k = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p->hkv * sk * d, sk * d, d, 1}};
    const fxa_operand wide_v = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p->hkv * sk * dv, sk * dv, dv, 1}};
    const fxa_operand row = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p->hq * sq, sq, 1, 0}};
    call.p.q = call.p.dq = wide_q, call.p.o = call.p.dout = wide_o, call.p.k = call.p.dk = wide_k,
    call.p.v = call.p.dv = wide_v, call.p.lse = call.p.dlse = row;
    call.args.slot[FXA_SLOT_Q] = w->q + q0 * d;
    call.args.slot[FXA_SLOT_K] = w->k + k0 * d, call.args.slot[FXA_SLOT_V] = w->v + k0 * dv;
    call.args.slot[FXA_SLOT_O] = o + q0 * dv, call.args.slot[FXA_SLOT_LSE] = lse + q0;
    if (pass == FXA_BACKWARD) {
        call.args.slot[FXA_SLOT_DO] = w->dout + q0 * dv, call.args.slot[FXA_SLOT_DLSE] = w->dlse + q0;
        call.args.slot[FXA_SLOT_DQ] = w->dq + q0 * d;
        call.args.slot[FXA_SLOT_DK] = w->dk + k0 * d, call.args.slot[FXA_SLOT_DV] = w->dv + k0 * dv;
    }
    T_OK(fxa_attention(w->ctx, &call.p, &call.args, &err));
}

static void whole_merge(const whole *w, double *o_a, double *lse_a, const double *o_b, const double *lse_b) {
    fxa_error err;
    fxa_merge_args m = {.struct_size = sizeof m, .b = w->p->b, .h = w->p->hq, .s = w->p->sq, .d = w->p->d_v};
    m.o_a.dtype = m.o_b.dtype = m.lse_a.dtype = m.lse_b.dtype = FXA_F64;
    m.o_a_data = o_a, m.lse_a_data = lse_a, m.o_b_data = o_b, m.lse_b_data = lse_b;
    T_OK(fxa_merge(&m, &err));
}

WHOLE(keys_split_in_two_and_merged_are_the_whole) {
    for (int64_t at = 0; at <= 11; at += 11 / 2) {
        whole w;
        whole_start(&w, whole_text, 2, 4, 2, 7, 11, 3, 2);
        w.p->flags |= FXA_DROPOUT, w.p->dropout_p = 0.25, w.x.seed = t_seed();
        double o[2][112], lse[2][56];
        const int64_t left[4] = {0, 7, 0, at}, right[4] = {0, 7, at, 11};
        whole_run(&w, FXA_FORWARD);
        whole_shard(&w, FXA_FORWARD, 0, left, o[0], lse[0]);
        whole_shard(&w, FXA_FORWARD, 0, right, o[1], lse[1]);
        whole_merge(&w, o[0], lse[0], o[1], lse[1]);
        whole_near("merged O", o[0], w.o, w.n_o, 1e-14);
        whole_near("merged LSE", lse[0], w.lse, w.n_row, 1e-14);
        whole_shard(&w, FXA_FORWARD, 0, left, o[0], lse[0]);
        whole_shard(&w, FXA_FORWARD, FXA_ACCUMULATE_O, right, o[0], lse[0]); /* a run that merges */
        whole_near("accumulated O", o[0], w.o, w.n_o, 1e-14);
        whole_near("accumulated LSE", lse[0], w.lse, w.n_row, 1e-14);
        whole_end(&w);
    }
}

WHOLE(gradients_of_four_shards_with_the_global_lse_are_those_of_the_whole) {
    whole w, s;
    whole_start(&w, whole_text, 2, 4, 2, 7, 11, 3, 2);
    whole_start(&s, whole_text, 2, 4, 2, 7, 11, 3, 2);
    w.p->flags |= FXA_DROPOUT, s.p->flags |= FXA_DROPOUT, w.p->dropout_p = s.p->dropout_p = 0.25;
    w.x.seed = s.x.seed = t_seed();
    whole_run(&w, FXA_FORWARD);
    whole_run(&w, FXA_BACKWARD);
    memset(s.dtensor, 0, 16 * sizeof(double));
    memset(s.dparam, 0, 2 * sizeof(double));
    memset(s.dq, 0, (size_t)s.n_q * sizeof(double));
    memset(s.dk, 0, (size_t)s.n_k * sizeof(double));
    memset(s.dv, 0, (size_t)s.n_v * sizeof(double));
    const uint32_t acc =
        FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV | FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS;
    const int64_t q_cut[] = {0, 4, 7}, k_cut[] = {0, 6, 11};
    for (int i = 0; i < 4; i++) {
        const int64_t cut[4] = {q_cut[i / 2], q_cut[i / 2 + 1], k_cut[i % 2], k_cut[i % 2 + 1]};
        whole_shard(&s, FXA_BACKWARD, acc, cut, w.o, w.lse);
    }
    whole_near("dQ", s.dq, w.dq, w.n_q, 1e-13);
    whole_near("dK", s.dk, w.dk, w.n_k, 1e-13);
    whole_near("dV", s.dv, w.dv, w.n_v, 1e-13);
    whole_near("dtensor", s.dtensor, w.dtensor, 16, 1e-13);
    whole_near("dparam", s.dparam, w.dparam, 2, 1e-13);
    whole_end(&w);
    whole_end(&s);
}

WHOLE(queries_split_in_balanced_segments_are_the_rows_of_the_whole) { /* shard i has chunks i and 3 - i of 4 */
    enum { CHUNK = 3, S = 4 * CHUNK, D = 3 };
    whole w;
    whole_start(&w, whole_text, 1, 1, 1, S, S, D, D);
    whole_run(&w, FXA_FORWARD);
    for (int64_t i = 0; i < 2; i++) {
        attn_call call;
        double q[2 * CHUNK * D], o[2 * CHUNK * D], lse[2 * CHUNK];
        const int64_t chunk[2] = {i, 3 - i};
        whole_call(&w, FXA_FORWARD, &call);
        call.p.sq = 2 * CHUNK, call.p.global_q_len = call.p.global_k_len = S;
        call.p.map_q.kind = FXA_MAP_SEGMENTS, call.p.map_q.n_segments = 2;
        for (int64_t j = 0; j < 2; j++) {
            call.p.map_q.segment[j] = (fxa_segment){j * CHUNK, chunk[j] * CHUNK, 1};
            memcpy(q + j * CHUNK * D, w.q + chunk[j] * CHUNK * D, CHUNK * D * sizeof(double));
        }
        call.args.slot[FXA_SLOT_Q] = q, call.args.slot[FXA_SLOT_O] = o, call.args.slot[FXA_SLOT_LSE] = lse;
        T_OK(fxa_attention(w.ctx, &call.p, &call.args, &err));
        for (int64_t j = 0; j < 2; j++) {
            T_CHECK(memcmp(o + j * CHUNK * D, w.o + chunk[j] * CHUNK * D, CHUNK * D * sizeof(double)) == 0);
            T_CHECK(memcmp(lse + j * CHUNK, w.lse + chunk[j] * CHUNK, CHUNK * sizeof(double)) == 0);
        }
    }
    whole_end(&w);
}

/* ---- Layout and neighbours --------------------------------------------------------------------------------------- */

WHOLE(a_row_does_not_depend_on_what_else_is_in_the_batch) { /* compared bit by bit */
    enum { B = 3, N = 5 * 4, M = 9 * 4 };
    whole all, one;
    whole_start(&all, whole_text, B, 1, 1, 5, 9, 4, 4);
    whole_run(&all, FXA_FORWARD);
    whole_run(&all, FXA_BACKWARD);
    for (int64_t b = 0; b < B; b++) {
        whole_start(&one, whole_text, 1, 1, 1, 5, 9, 4, 4);
        memcpy(one.q, all.q + b * N, N * sizeof(double));
        memcpy(one.k, all.k + b * M, M * sizeof(double));
        memcpy(one.v, all.v + b * M, M * sizeof(double));
        memcpy(one.dout, all.dout + b * N, N * sizeof(double));
        memcpy(one.tensor, all.tensor, 16 * sizeof(double));
        memcpy(one.dlse, all.dlse + b * 5, 5 * sizeof(double));
        whole_run(&one, FXA_FORWARD);
        whole_run(&one, FXA_BACKWARD);
        T_CHECK(memcmp(one.o, all.o + b * N, N * sizeof(double)) == 0);
        T_CHECK(memcmp(one.lse, all.lse + b * 5, 5 * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dq, all.dq + b * N, N * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dk, all.dk + b * M, M * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dv, all.dv + b * M, M * sizeof(double)) == 0);
        whole_end(&one);
    }
    whole_end(&all);
}

WHOLE(expanded_gradient_of_the_output_works) { /* out.sum().backward() passes one element with strides 0 as gradient */
    whole dense, expanded;
    double one = 1;
    attn_call call;
    whole_start(&dense, whole_text, 2, 2, 1, 5, 6, 3, 4);
    whole_start(&expanded, whole_text, 2, 2, 1, 5, 6, 3, 4);
    for (int64_t i = 0; i < dense.n_o; i++) dense.dout[i] = 1;
    whole_run(&dense, FXA_FORWARD);
    whole_run(&dense, FXA_BACKWARD);
    whole_run(&expanded, FXA_FORWARD);
    whole_call(&expanded, FXA_BACKWARD, &call);
    call.p.dout.layout = FXA_LAYOUT_STRIDED; /* strides 0 */
    call.args.slot[FXA_SLOT_DO] = &one;
    T_OK(fxa_attention(expanded.ctx, &call.p, &call.args, &err));
    T_CHECK(memcmp(dense.dq, expanded.dq, (size_t)dense.n_q * sizeof(double)) == 0);
    T_CHECK(memcmp(dense.dk, expanded.dk, (size_t)dense.n_k * sizeof(double)) == 0);
    T_CHECK(memcmp(dense.dv, expanded.dv, (size_t)dense.n_v * sizeof(double)) == 0);
    whole_end(&dense);
    whole_end(&expanded);
}

WHOLE(keys_read_backwards_by_negative_strides_and_steps) {
    enum { SK = 9, D = 4 };
    whole w;
    attn_call call;
    whole_start(&w, whole_text, 1, 1, 1, 5, SK, D, D);
    whole_run(&w, FXA_FORWARD);
    double o[20], lse[5];
    whole_call(&w, FXA_FORWARD, &call);
    call.p.k = call.p.v = (fxa_operand){FXA_F64, FXA_LAYOUT_STRIDED, {0, 0, -D, 1}};
    call.p.map_k.base = SK - 1, call.p.map_k.step = -1;
    call.args.slot[FXA_SLOT_K] = w.k + (SK - 1) * D, call.args.slot[FXA_SLOT_V] = w.v + (SK - 1) * D;
    call.args.slot[FXA_SLOT_O] = o, call.args.slot[FXA_SLOT_LSE] = lse;
    T_OK(fxa_attention(w.ctx, &call.p, &call.args, &err));
    whole_near("O", o, w.o, w.n_o, 1e-15);
    whole_near("LSE", lse, w.lse, w.n_row, 1e-15);
    whole_end(&w);
}

T_MAIN
