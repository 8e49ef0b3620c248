/* SPDX-License-Identifier: Apache-2.0
 *
 * What holds of attention as a whole, whatever the numbers: probabilities sum to one, parts of a sequence join to the
 * whole, a batch entry does not see its neighbours, odd shapes and empty ones run, and memory is left alone.
 */
#include "support/attn_case.h"
#include "t.h"

#include <sys/mman.h>
#include <unistd.h>

static const char *whole_engine; /* each test runs for every engine */

#define WHOLE(name)                                                                                                    \
    static void whole_##name(void);                                                                                    \
    TEST(name) {                                                                                                       \
        for (size_t e = 0; (whole_engine = fxa_engine_name(e)); e++) whole_##name();                                   \
    }                                                                                                                  \
    static void whole_##name(void)

/* A dense f64 problem [B,H,S,D] with all its arrays. */
typedef struct whole {
    fxa_context *ctx;
    fxa_program *program;
    fxa_problem p;
    fxa_args args;
    int64_t n_q, n_k, n_v, n_o, n_row;
    double *q, *k, *v, *dout, *dlse, *o, *lse, *dq, *dk, *dv;
    double *memory;
    double tensor[16], dtensor[16], param[2], dparam[2];
    fxa_capture capture;
    const void *tensors[1];
    void *dtensors[1];
} whole;

static const char whole_text[] = "param gain : float\nparam slope : float\ntensor bias : f64[1]\n"
                                 "score = gain * score - slope * abs(q - k) * 0.1 + bias[(q - k) % 16]\n"
                                 "mask = k <= q + 3";

static void whole_start(whole *w, int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d, int64_t dv) {
    fxa_error err;
    t_rng rng = {t_seed()};
    memset(w, 0, sizeof *w);
    T_OK(fxa_context_create(NULL, &w->ctx, &err));
    T_OK(fxa_program_parse(w->ctx, whole_text, SIZE_MAX, &w->program, &err));
    w->p = (fxa_problem)FXA_PROBLEM_INIT;
    w->p.b = b, w->p.hq = hq, w->p.hkv = hkv, w->p.sq = sq, w->p.sk = sk, w->p.d = d, w->p.dv = dv;
    w->p.q.dtype = FXA_F64;
    w->p.engine = whole_engine;
    w->n_q = b * hq * sq * d, w->n_k = b * hkv * sk * d, w->n_v = b * hkv * sk * dv, w->n_o = b * hq * sq * dv;
    w->n_row = b * hq * sq;
    double **const parts[] = {&w->q, &w->k, &w->v, &w->dout, &w->dlse, &w->o, &w->lse, &w->dq, &w->dk, &w->dv};
    const int64_t count[] = {w->n_q, w->n_k, w->n_v, w->n_o, w->n_row, w->n_o, w->n_row, w->n_q, w->n_k, w->n_v};
    int64_t total = 1;
    for (int i = 0; i < 10; i++) total += count[i];
    double *next = w->memory = malloc((size_t)total * sizeof(double));
    if (!next) abort();
    for (int64_t i = 0; i < total; i++) next[i] = t_real(&rng, -1, 1);
    for (int i = 0; i < 10; i++) *parts[i] = next, next += count[i];
    for (int i = 0; i < 16; i++) w->tensor[i] = t_real(&rng, -1, 1);
    w->param[0] = 0.75, w->param[1] = 0.5;
    w->capture.size[0] = 16;
}

static void whole_end(whole *w) {
    fxa_program_destroy(w->program);
    fxa_context_destroy(w->ctx);
    free(w->memory);
}

/* Problem and arguments of one pass, with whole_text or the identity. */
static void whole_make(whole *w, fxa_pass pass, bool with_program, fxa_problem *p, fxa_args *args) {
    double *const slot[] = {w->q, w->k, w->v, w->o, w->lse};
    double *const back[] = {w->dout, w->dlse, w->dq, w->dk, w->dv};
    *p = w->p;
    *args = (fxa_args)FXA_ARGS_INIT;
    p->pass = (uint32_t)pass;
    args->scale = 0.5;
    args->seed = w->args.seed;
    for (int i = 0; i < 5; i++) args->slot[FXA_SLOT_Q + i] = slot[i];
    if (with_program) {
        w->capture.grad = pass == FXA_BACKWARD;
        w->tensors[0] = w->tensor, w->dtensors[0] = w->dtensor;
        p->program = w->program, p->captures = &w->capture, p->n_captures = args->n_tensors = 1;
        args->params = w->param, args->n_params = 2, args->tensors = w->tensors;
    }
    if (pass == FXA_FORWARD) {
        p->flags |= FXA_WANT_LSE;
        return;
    }
    p->flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_LSE;
    for (int i = 0; i < 5; i++) args->slot[FXA_SLOT_DO + i] = back[i];
    if (with_program) {
        p->param_grads = 3;
        args->dparams = w->dparam, args->n_dparams = 2, args->dtensors = w->dtensors, args->n_dtensors = 1;
    }
}

static void whole_run(whole *w, fxa_pass pass, bool with_program) {
    fxa_error err;
    fxa_problem p;
    fxa_args args;
    whole_make(w, pass, with_program, &p, &args);
    T_OK(fxa_attention(w->ctx, &p, &args, &err));
}

static void whole_near(const char *name, const double *got, const double *want, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance) && !(got[i] == want[i])) {
            T_FAIL("%s[%" PRId64 "] is %.17g, not %.17g\n", name, i, got[i], want[i]);
            return;
        }
}

/* ---- Probabilities ----------------------------------------------------------------------------------------------- */

WHOLE(probabilities_sum_to_one) {
    whole w;
    whole_start(&w, 2, 4, 2, 9, 13, 5, 3);
    for (int64_t i = 0; i < w.n_v; i++) w.v[i] = 1;
    whole_run(&w, FXA_FORWARD, true);
    for (int64_t i = 0; i < w.n_o; i++) T_NEAR(w.o[i], 1, 13 * 0x1p-52);
    w.p.flags = FXA_SINK_ZERO;
    whole_run(&w, FXA_FORWARD, true);
    for (int64_t i = 0; i < w.n_o; i++) T_NEAR(w.o[i], 1 - exp(-w.lse[i / 3]), 16 * 0x1p-52);
    whole_end(&w);
}

WHOLE(score_shift_moves_lse_and_nothing_else) {
    whole w;
    whole_start(&w, 1, 2, 1, 7, 11, 4, 4);
    whole_run(&w, FXA_FORWARD, true);
    double o[56], lse[14];
    memcpy(o, w.o, sizeof o);
    memcpy(lse, w.lse, sizeof lse);
    for (int i = 0; i < 16; i++) w.tensor[i] += 32; /* bias[...] is added to every score */
    whole_run(&w, FXA_FORWARD, true);
    whole_near("O", w.o, o, w.n_o, 1e-13);
    for (int64_t i = 0; i < w.n_row; i++) T_NEAR(w.lse[i], lse[i] + 32, 1e-13);
    whole_end(&w);
}

WHOLE(dropout_keeps_its_share_and_the_mean) {
    whole w;
    const double p = 0.3;
    whole_start(&w, 2, 4, 4, 64, 128, 1, 1);
    w.p.flags = FXA_DROPOUT;
    w.p.dropout_p = p;
    w.args.seed = t_seed();
    for (int64_t i = 0; i < w.n_q; i++) w.q[i] = 0;
    for (int64_t i = 0; i < w.n_v; i++) w.v[i] = 1;
    whole_run(&w, FXA_FORWARD, false); /* all probabilities equal: O is kept / (128 (1 - p)) */
    double mean = 0, pairs = 2 * 4 * 64 * 128;
    for (int64_t i = 0; i < w.n_o; i++) mean += w.o[i] / (double)w.n_o;
    T_NEAR(mean, 1, 5 * sqrt(p / (1 - p) / pairs));                          /* five standard deviations */
    for (int64_t i = 0; i < w.n_row; i++) T_NEAR(w.lse[i], log(128), 1e-14); /* LSE knows nothing of dropout */
    double first[512];
    memcpy(first, w.o, sizeof first);
    w.args.seed++;
    whole_run(&w, FXA_FORWARD, false);
    int equal = 0;
    for (int64_t i = 0; i < w.n_o; i++) equal += w.o[i] == first[i];
    T_CHECK(equal < w.n_o / 2); /* another seed, other pairs: rows agree only in how many they keep, by chance */
    whole_end(&w);
}

/* ---- Context parallelism (R-11) ---------------------------------------------------------------------------------- */

/* One shard of w: queries cut[0..1) against keys cut[2..3), views of the whole arrays with global coordinates. */
static void whole_shard(whole *w, fxa_pass pass, uint32_t flags, const int64_t cut[4], double *o, double *lse) {
    fxa_error err;
    fxa_problem p;
    fxa_args args;
    int64_t q0 = cut[0], k0 = cut[2], sq = w->p.sq, sk = w->p.sk, d = w->p.d, dv = w->p.dv;
    whole_make(w, pass, true, &p, &args);
    p.sq = cut[1] - q0, p.sk = cut[3] - k0;
    p.map_q.base = q0, p.map_k.base = k0;
    p.q_len = sq, p.k_len = sk;
    p.flags |= flags;
    const fxa_operand wide_q = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p.hq * sq * d, sq * d, d, 1}};
    const fxa_operand wide_o = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p.hq * sq * dv, sq * dv, dv, 1}};
    const fxa_operand wide_k = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p.hkv * sk * d, sk * d, d, 1}};
    const fxa_operand wide_v = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p.hkv * sk * dv, sk * dv, dv, 1}};
    const fxa_operand row = {FXA_F64, FXA_LAYOUT_STRIDED, {w->p.hq * sq, sq, 1, 0}};
    p.q = p.dq = wide_q, p.o = p.dout = wide_o, p.k = p.dk = wide_k, p.v = p.dv_grad = wide_v, p.lse = p.dlse = row;
    args.slot[FXA_SLOT_Q] = w->q + q0 * d;
    args.slot[FXA_SLOT_K] = w->k + k0 * d, args.slot[FXA_SLOT_V] = w->v + k0 * dv;
    args.slot[FXA_SLOT_O] = o + q0 * dv, args.slot[FXA_SLOT_LSE] = lse + q0;
    if (pass == FXA_BACKWARD) {
        args.slot[FXA_SLOT_DO] = w->dout + q0 * dv, args.slot[FXA_SLOT_DLSE] = w->dlse + q0;
        args.slot[FXA_SLOT_DQ] = w->dq + q0 * d;
        args.slot[FXA_SLOT_DK] = w->dk + k0 * d, args.slot[FXA_SLOT_DV] = w->dv + k0 * dv;
    }
    T_OK(fxa_attention(w->ctx, &p, &args, &err));
}

static void whole_merge(const whole *w, double *o_a, double *lse_a, const double *o_b, const double *lse_b) {
    fxa_error err;
    fxa_merge_args m = {.struct_size = sizeof m, .b = w->p.b, .h = w->p.hq, .s = w->p.sq, .d = w->p.dv};
    m.o_a.dtype = m.o_b.dtype = m.lse_a.dtype = m.lse_b.dtype = FXA_F64;
    m.o_a_data = o_a, m.lse_a_data = lse_a, m.o_b_data = o_b, m.lse_b_data = lse_b;
    T_OK(fxa_merge(&m, &err));
}

WHOLE(keys_split_in_two_and_merged_are_the_whole) {
    for (int64_t at = 0; at <= 11; at += 11 / 2) {
        whole w;
        whole_start(&w, 2, 4, 2, 7, 11, 3, 2);
        w.p.flags = FXA_DROPOUT, w.p.dropout_p = 0.25, w.args.seed = t_seed();
        double o[2][112], lse[2][56];
        const int64_t left[4] = {0, 7, 0, at}, right[4] = {0, 7, at, 11};
        whole_run(&w, FXA_FORWARD, true);
        whole_shard(&w, FXA_FORWARD, 0, left, o[0], lse[0]);
        whole_shard(&w, FXA_FORWARD, 0, right, o[1], lse[1]);
        whole_merge(&w, o[0], lse[0], o[1], lse[1]);
        whole_near("merged O", o[0], w.o, w.n_o, 1e-14);
        whole_near("merged LSE", lse[0], w.lse, w.n_row, 1e-14);
        whole_shard(&w, FXA_FORWARD, 0, left, o[0], lse[0]);
        whole_shard(&w, FXA_FORWARD, FXA_ACC_OUT, right, o[0], lse[0]); /* the same while running */
        whole_near("accumulated O", o[0], w.o, w.n_o, 1e-14);
        whole_near("accumulated LSE", lse[0], w.lse, w.n_row, 1e-14);
        whole_end(&w);
    }
}

WHOLE(gradients_of_four_shards_with_the_global_lse_are_those_of_the_whole) {
    whole w, s;
    whole_start(&w, 2, 4, 2, 7, 11, 3, 2);
    whole_start(&s, 2, 4, 2, 7, 11, 3, 2);
    w.p.flags = s.p.flags = FXA_DROPOUT, w.p.dropout_p = s.p.dropout_p = 0.25, w.args.seed = s.args.seed = t_seed();
    whole_run(&w, FXA_FORWARD, true);
    whole_run(&w, FXA_BACKWARD, true);
    memset(s.dq, 0, (size_t)s.n_q * sizeof(double));
    memset(s.dk, 0, (size_t)s.n_k * sizeof(double));
    memset(s.dv, 0, (size_t)s.n_v * sizeof(double));
    const uint32_t acc = FXA_ACC_Q | FXA_ACC_K | FXA_ACC_V | FXA_ACC_TENSORS | FXA_ACC_PARAMS;
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

WHOLE(queries_split_in_balanced_segments_are_the_rows_of_the_whole) { /* shard i holds chunks i and 3 - i of 4 */
    enum { CHUNK = 3, S = 4 * CHUNK, D = 3 };
    whole w;
    whole_start(&w, 1, 1, 1, S, S, D, D);
    whole_run(&w, FXA_FORWARD, true);
    for (int64_t i = 0; i < 2; i++) {
        fxa_error err;
        fxa_problem p;
        fxa_args args;
        double q[2 * CHUNK * D], o[2 * CHUNK * D], lse[2 * CHUNK];
        const int64_t chunk[2] = {i, 3 - i};
        whole_make(&w, FXA_FORWARD, true, &p, &args);
        p.sq = 2 * CHUNK, p.q_len = p.k_len = S;
        p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 2;
        for (int64_t j = 0; j < 2; j++) {
            p.map_q.segment[j] = (fxa_segment){j * CHUNK, chunk[j] * CHUNK, 1};
            memcpy(q + j * CHUNK * D, w.q + chunk[j] * CHUNK * D, CHUNK * D * sizeof(double));
        }
        args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_O] = o, args.slot[FXA_SLOT_LSE] = lse;
        T_OK(fxa_attention(w.ctx, &p, &args, &err));
        for (int64_t j = 0; j < 2; j++) {
            T_CHECK(memcmp(o + j * CHUNK * D, w.o + chunk[j] * CHUNK * D, CHUNK * D * sizeof(double)) == 0);
            T_CHECK(memcmp(lse + j * CHUNK, w.lse + chunk[j] * CHUNK, CHUNK * sizeof(double)) == 0);
        }
    }
    whole_end(&w);
}

/* ---- Layout and neighbours --------------------------------------------------------------------------------------- */

WHOLE(a_row_does_not_depend_on_what_else_is_in_the_batch) { /* R-95, bit by bit */
    enum { B = 3, N = 5 * 4, M = 9 * 4 };
    whole all, one;
    whole_start(&all, B, 1, 1, 5, 9, 4, 4);
    whole_run(&all, FXA_FORWARD, true);
    whole_run(&all, FXA_BACKWARD, true);
    for (int64_t b = 0; b < B; b++) {
        whole_start(&one, 1, 1, 1, 5, 9, 4, 4);
        memcpy(one.q, all.q + b * N, N * sizeof(double));
        memcpy(one.k, all.k + b * M, M * sizeof(double));
        memcpy(one.v, all.v + b * M, M * sizeof(double));
        memcpy(one.dout, all.dout + b * N, N * sizeof(double));
        memcpy(one.tensor, all.tensor, sizeof one.tensor);
        memcpy(one.dlse, all.dlse + b * 5, 5 * sizeof(double));
        whole_run(&one, FXA_FORWARD, true);
        whole_run(&one, FXA_BACKWARD, true);
        T_CHECK(memcmp(one.o, all.o + b * N, N * sizeof(double)) == 0);
        T_CHECK(memcmp(one.lse, all.lse + b * 5, 5 * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dq, all.dq + b * N, N * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dk, all.dk + b * M, M * sizeof(double)) == 0);
        T_CHECK(memcmp(one.dv, all.dv + b * M, M * sizeof(double)) == 0);
        whole_end(&one);
    }
    whole_end(&all);
}

WHOLE(expanded_gradient_of_the_output_works) { /* out.sum().backward() gives one element, strides 0 */
    whole dense, expanded;
    double one = 1;
    fxa_error err;
    fxa_problem p;
    fxa_args args;
    whole_start(&dense, 2, 2, 1, 5, 6, 3, 4);
    whole_start(&expanded, 2, 2, 1, 5, 6, 3, 4);
    for (int64_t i = 0; i < dense.n_o; i++) dense.dout[i] = 1;
    whole_run(&dense, FXA_FORWARD, true);
    whole_run(&dense, FXA_BACKWARD, true);
    whole_run(&expanded, FXA_FORWARD, true);
    whole_make(&expanded, FXA_BACKWARD, true, &p, &args);
    p.dout.layout = FXA_LAYOUT_STRIDED; /* strides 0 */
    args.slot[FXA_SLOT_DO] = &one;
    T_OK(fxa_attention(expanded.ctx, &p, &args, &err));
    T_CHECK(memcmp(dense.dq, expanded.dq, (size_t)dense.n_q * sizeof(double)) == 0);
    T_CHECK(memcmp(dense.dk, expanded.dk, (size_t)dense.n_k * sizeof(double)) == 0);
    T_CHECK(memcmp(dense.dv, expanded.dv, (size_t)dense.n_v * sizeof(double)) == 0);
    whole_end(&dense);
    whole_end(&expanded);
}

WHOLE(keys_read_backwards_by_negative_strides_and_steps) {
    enum { SK = 9, D = 4 };
    whole w;
    fxa_error err;
    fxa_problem p;
    fxa_args args;
    whole_start(&w, 1, 1, 1, 5, SK, D, D);
    whole_run(&w, FXA_FORWARD, true);
    double o[20], lse[5];
    whole_make(&w, FXA_FORWARD, true, &p, &args);
    p.k = p.v = (fxa_operand){FXA_F64, FXA_LAYOUT_STRIDED, {0, 0, -D, 1}};
    p.map_k.base = SK - 1, p.map_k.step = -1;
    args.slot[FXA_SLOT_K] = w.k + (SK - 1) * D, args.slot[FXA_SLOT_V] = w.v + (SK - 1) * D;
    args.slot[FXA_SLOT_O] = o, args.slot[FXA_SLOT_LSE] = lse;
    T_OK(fxa_attention(w.ctx, &p, &args, &err));
    whole_near("O", o, w.o, w.n_o, 1e-15);
    whole_near("LSE", lse, w.lse, w.n_row, 1e-15);
    whole_end(&w);
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Forward and backward of a plain softmax against the oracle. */
static void whole_against_oracle(int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d, int64_t dv) {
    whole w, want;
    int64_t lengths[2][4];
    int32_t at[600], seen[2][4];
    whole_start(&w, b, hq, hkv, sq, sk, d, dv);
    whole_start(&want, b, hq, hkv, sq, sk, d, dv);
    for (int i = 0; i < 600; i++) at[i] = i;
    for (int i = 0; i < 4; i++)
        lengths[0][i] = sq, lengths[1][i] = sk, seen[0][i] = (int32_t)sq, seen[1][i] = (int32_t)sk;
    double *max = calloc((size_t)w.n_row + 1, sizeof(double)), sink[64] = {0};
    oracle x = {.b = b, .hq = hq, .hkv = hkv, .sq = sq, .sk = sk, .d = d, .dv = dv, .scale = 0.5};
    x.q_len = lengths[0], x.k_len = lengths[1], x.seen_q = seen[0], x.seen_k = seen[1];
    x.at_b = x.at_h = x.at_q = x.at_k = at;
    x.q = w.q, x.k = w.k, x.v = w.v, x.dout = w.dout, x.dlse = w.dlse, x.o = want.o, x.lse = want.lse, x.max = max;
    x.dq = want.dq, x.dk = want.dk, x.dv_grad = want.dv, x.dsink = sink;
    memset(want.dq, 0, (size_t)w.n_q * sizeof(double));
    memset(want.dk, 0, (size_t)w.n_k * sizeof(double));
    memset(want.dv, 0, (size_t)w.n_v * sizeof(double));
    oracle_forward(&x);
    oracle_backward(&x);
    whole_run(&w, FXA_FORWARD, false);
    whole_run(&w, FXA_BACKWARD, false);
    whole_near("O", w.o, want.o, w.n_o, 1e-12);
    whole_near("LSE", w.lse, want.lse, w.n_row, 1e-12);
    whole_near("dQ", w.dq, want.dq, w.n_q, 1e-12);
    whole_near("dK", w.dk, want.dk, w.n_k, 1e-12);
    whole_near("dV", w.dv, want.dv, w.n_v, 1e-12);
    free(max);
    whole_end(&w);
    whole_end(&want);
}

WHOLE(odd_shapes_run) { /* */
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1, 1, 1, 1},    {1, 1, 1, 1, 5, 512, 512}, {2, 7, 1, 3, 5, 3, 1},   {1, 6, 2, 1, 129, 15, 17},
        {1, 9, 3, 17, 1, 1, 512}, {3, 5, 5, 2, 3, 511, 13},  {1, 1, 1, 65, 67, 2, 2}, {1, 12, 4, 1, 1, 80, 96},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t *s = shapes[i];
        whole_against_oracle(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
    }
}

WHOLE(empty_problems_run) {                                                          /* */
    static const int64_t shapes[][3] = {{0, 3, 4}, {2, 0, 4}, {2, 3, 0}, {0, 0, 0}}; /* b, sq, sk */
    for (int i = 0; i < 4; i++) {
        whole w;
        whole_start(&w, shapes[i][0], 2, 1, shapes[i][1], shapes[i][2], 3, 2);
        whole_run(&w, FXA_FORWARD, true);
        whole_run(&w, FXA_BACKWARD, true);
        for (int64_t j = 0; j < w.n_o; j++) T_SAME(w.o[j], 0);
        for (int64_t j = 0; j < w.n_row; j++) T_SAME(w.lse[j], -INFINITY);
        for (int64_t j = 0; j < w.n_q; j++) T_SAME(w.dq[j], 0);
        for (int64_t j = 0; j < w.n_k; j++) T_SAME(w.dk[j], 0);
        for (int64_t j = 0; j < w.n_v; j++) T_SAME(w.dv[j], 0);
        for (int j = 0; j < 16; j++) T_SAME(w.dtensor[j], 0);
        T_SAME(w.dparam[0], 0);
        whole_end(&w);
    }
}

WHOLE(very_negative_lse_has_right_gradients) { /* 64 keys, a mask, scores near -10000 */
    whole w;
    whole_start(&w, 1, 1, 1, 5, 64, 3, 3);
    whole_run(&w, FXA_FORWARD, true);
    whole_run(&w, FXA_BACKWARD, true);
    double dq[15], dk[192];
    memcpy(dq, w.dq, sizeof dq);
    memcpy(dk, w.dk, sizeof dk);
    for (int i = 0; i < 16; i++) w.tensor[i] -= 10000;
    whole_run(&w, FXA_FORWARD, true);
    T_CHECK(w.lse[0] < -9000);
    whole_run(&w, FXA_BACKWARD, true);
    whole_near("dQ", w.dq, dq, 15, 1e-10); /* exp(s - LSE) of magnitude 10000 has 12 digits left */
    whole_near("dK", w.dk, dk, 192, 1e-10);
    whole_end(&w);
}

WHOLE(offsets_beyond_32_bits) { /* two keys 2^31 + 3 elements apart, in a file that is a hole between them */
    const int64_t apart = ((int64_t)1 << 31) + 3;
    const size_t size = (size_t)(apart + 16) * sizeof(float);
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), (off_t)size) != 0) {
        if (file) fclose(file);
        T_SKIP("no room for a sparse file of 8 GiB");
    }
    float *far = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    fclose(file);
    if (far == MAP_FAILED) T_SKIP("8 GiB of addresses cannot be mapped");
    fxa_error err;
    fxa_context *ctx = NULL;
    float q[2] = {1, 0.5f}, v[4] = {1, 2, 3, 4}, o[2], near_o[2], near_k[4] = {0.25f, -1, 2, 0.75f};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    p.b = p.hq = p.sq = 1, p.sk = p.d = 2, p.engine = whole_engine;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_V] = v;
    args.slot[FXA_SLOT_K] = near_k, args.slot[FXA_SLOT_O] = near_o;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    memcpy(far, near_k, 2 * sizeof(float));
    memcpy(far + apart, near_k + 2, 2 * sizeof(float));
    p.k.layout = FXA_LAYOUT_STRIDED, p.k.stride[2] = apart, p.k.stride[3] = 1;
    args.slot[FXA_SLOT_K] = far, args.slot[FXA_SLOT_O] = o;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    T_CHECK(memcmp(o, near_o, sizeof o) == 0);
    munmap(far, size);
    fxa_context_destroy(ctx);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void *whole_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)old_size, (void)align;
    ++*(int *)user;
    if (new_size) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

/* With exactly the workspace a plan asks for, dirty: same results, nothing touched around it, nothing allocated. */
static void whole_in_exact_workspace(fxa_pass pass) {
    whole w;
    fxa_error err;
    fxa_problem p;
    fxa_args args;
    int calls = 0;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_plan *plan = NULL;
    config.alloc = whole_alloc, config.alloc_user = &calls;
    T_OK(fxa_context_create(&config, &ctx, &err));
    whole_start(&w, 2, 2, 1, 5, 7, 3, 4);
    whole_run(&w, FXA_FORWARD, true);
    if (pass == FXA_BACKWARD) whole_run(&w, FXA_BACKWARD, true);
    size_t out_size = (size_t)(pass ? w.n_k : w.n_o) * sizeof(double);
    double *out = pass ? w.dk : w.o, *want = malloc(out_size);
    memcpy(want, out, out_size);
    memset(out, 0, out_size);
    whole_make(&w, pass, true, &p, &args);
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    size_t size = fxa_plan_workspace(plan), align = FXA_WORKSPACE_ALIGN;
    unsigned char *memory = malloc(size + 3 * align), *start = memory + align;
    start += (align - (uintptr_t)start % align) % align;
    memset(memory, 0xff, size + 3 * align);
    args.workspace = start, args.workspace_size = size - 1;
    T_STATUS(fxa_plan_run(plan, &args, &err), FXA_E_WORKSPACE);
    args.workspace_size = size;
    calls = 0;
    T_OK(fxa_plan_run(plan, &args, &err));
    T_INT(calls, 0);
    T_CHECK(memcmp(out, want, out_size) == 0);
    for (unsigned char *c = memory; c < memory + size + 3 * align; c++)
        if ((c < start || c >= start + size) && *c != 0xff) T_FAIL("byte %td, outside the workspace\n", c - start);
    T_INT(fxa_plan_is_deterministic(plan), 1); /* backward too */
    T_STR(fxa_plan_engine(plan), whole_engine);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    free(memory);
    free(want);
    whole_end(&w);
}

WHOLE(forward_runs_in_exactly_its_workspace_and_allocates_nothing) { whole_in_exact_workspace(FXA_FORWARD); }
WHOLE(backward_runs_in_exactly_its_workspace_and_allocates_nothing) { whole_in_exact_workspace(FXA_BACKWARD); }

T_MAIN
