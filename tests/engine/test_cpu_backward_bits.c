/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the cpu engine: the same bits with any number of threads and in every run, whatever lay in the
 * workspace; and its gradients in f64 against finite differences of its own forward pass.
 */
#include "support/back_case.h"

#include "t.h"

static const char cap_text[] =
    "param cap : float\ntensor slopes : f32[1]\n"
    "score = cap * tanh((score + 0.01 * slopes[h] * float(q - k)) / cap)\nmask = q >= k - 40";
static const char dense_text[] = "tensor bias : f32[3]\nscore = score + bias[h, q, k]\nmask = k <= q + 300";
static const char table_text[] = "tensor bias : f32[1]\nscore = score + bias[abs(q - k)]";

/* Masks that heads and batch entries share, those that differ by either, and one that the score holds. */
static const char blocks_text[] = "tensor t : f32[2]\nmask = t[q // 16, k // 16] > 0.25";
static const char batches_text[] = "tensor t : f32[3]\nmask = t[b, q // 8, k // 24] > 0.5 && k <= q + 200";
static const char heads_text[] = "tensor t : f32[3]\nscore = t[h, q // 8, k // 8] > 0.5 ? 0.5 * score : -inf";

/* Keys in chunks; many groups; sums shared by lanes, of each lane, of pages. */
static const back_spec cases[] = {
    {.b = 1, .hq = 2, .hkv = 1, .sq = 150, .sk = 1700, .d = 8, .dv = 8, .text = cap_text, .tensor = {2}},
    {.b = 3, .hq = 8, .hkv = 4, .sq = 40, .sk = 90, .d = 16, .dv = 8, .text = table_text, .tensor = {100}},
    {.b = 1, .hq = 2, .hkv = 2, .sq = 150, .sk = 900, .d = 8, .dv = 8, .text = dense_text, .tensor = {2, 150, 900}},
    {.b = 4, .hq = 4, .hkv = 2, .sq = 30, .sk = 100, .d = 32, .dv = 32, .page_size = 16, .dropout_p = 0.2},
    {.b = 1, .hq = 3, .hkv = 3, .sq = 500, .sk = 500, .d = 32, .dv = 32, .flags = FXA_CAUSAL},
    {.b = 3, .hq = 4, .hkv = 2, .sq = 300, .sk = 700, .d = 16, .dv = 16, .text = blocks_text, .tensor = {20, 50}},
    {.b = 3, .hq = 4, .hkv = 4, .sq = 200, .sk = 500, .d = 16, .dv = 8, .text = batches_text, .tensor = {3, 25, 22}},
    {.b = 2, .hq = 4, .hkv = 2, .sq = 250, .sk = 300, .d = 16, .dv = 16, .text = heads_text, .tensor = {4, 32, 40}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Runs backward of a case in a context of its own with that many threads; keeps the outputs. */
static void bits_run(const back_spec *s, uint32_t threads, int runs, unsigned char *kept[BACK_OUTS], const char *what) {
    fxa_error err = {0};
    fxa_context *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    unsigned char *now[BACK_OUTS];
    config.threads = threads;
    T_OK(fxa_context_create(&config, &ctx, &err));
    back_case *x = back_make(ctx, s, t_seed(), &err);
    if (!x) T_FAIL("%s\n", err.text);
    for (int run = 0; x && run < runs; run++) {
        if (run == 0) T_OK(back_run(ctx, x, "cpu", FXA_FORWARD, &err));
        T_OK(back_run(ctx, x, "cpu", FXA_BACKWARD, &err));
        back_keep(x, now);
        for (int i = 0; i < BACK_OUTS; i++) {
            if (back_wrote(x, i) && kept[i] && memcmp(kept[i], now[i], x->out[i].size) != 0)
                T_FAIL("%s, %u threads, run %d: output %d has other bits\n", what, threads, run, i);
            if (!kept[i]) kept[i] = now[i], now[i] = NULL;
        }
        back_drop(now);
    }
    back_free(x);
    fxa_context_destroy(ctx);
}

TEST(any_number_of_threads) { /* */
    static const uint32_t threads[] = {1, 2, 3, 7};
    for (int i = 0; i < 2 * CASES; i++) {
        unsigned char *kept[BACK_OUTS] = {NULL};
        char what[64];
        back_spec s = cases[i / 2];
        s.dtype = i & 1 ? FXA_F64 : FXA_F32;
        snprintf(what, sizeof what, "case %d, %s", i / 2, fxa_dtype_name(s.dtype));
        for (int t = 0; t < 4; t++) bits_run(&s, threads[t], 1, kept, what);
        back_drop(kept);
    }
}

TEST(hundred_runs) {
    unsigned char *kept[BACK_OUTS] = {NULL};
    back_spec s = {.b = 1, .hq = 2, .hkv = 1, .sq = 50, .sk = 800, .d = 8, .dv = 8, .dtype = FXA_F32};
    s.text = cap_text, s.tensor[0] = 2;
    bits_run(&s, 3, t_scaled(100), kept, "softcap");
    back_drop(kept);
}

/* ---- Finite differences ------------------------------------------------------------------------------------------ */

static double grad_loss(fxa_context *ctx, back_case *x) {
    fxa_error err;
    double loss = 0;
    T_OK(back_run(ctx, x, "cpu", FXA_FORWARD, &err));
    const double *o = (const double *)(void *)x->in[BACK_O].data, *dout = (const double *)(void *)x->in[BACK_DO].data;
    const double *lse = (const double *)(void *)x->in[BACK_LSE].data,
                 *dlse = (const double *)(void *)x->in[BACK_DLSE].data;
    for (int64_t i = 0; i < x->n[FXA_SLOT_O]; i++) loss += o[i] * dout[i];
    for (int64_t i = 0; i < x->n[FXA_SLOT_LSE]; i++) loss += lse[i] * dlse[i];
    return loss;
}

/* Central differences at h and 2 h, extrapolated: off by c h^4 and by rounding, |L| 2^-52 / h. */
static double grad_difference(fxa_context *ctx, back_case *x, fxa_dtype t, void *data, int64_t i) {
    double h = 0x1p-10, at = back_get(t, data, i), d[2];
    for (int k = 0; k < 2; k++) {
        double step = h * (k + 1), up, down;
        back_set(t, data, i, at + step);
        up = grad_loss(ctx, x);
        back_set(t, data, i, at - step);
        down = grad_loss(ctx, x);
        d[k] = (up - down) / (2 * step);
    }
    back_set(t, data, i, at);
    return (4 * d[0] - d[1]) / 3;
}

/* Values are multiples of 2^-10, so that steps are exact in f32 too. */
static void grad_round(back_case *x) {
    for (int i = 0; i < BACK_DLSE + 1; i++)
        for (int64_t j = 0; j < (int64_t)(x->in[i].size / sizeof(double)); j++) {
            double *v = (double *)(void *)x->in[i].data + j;
            *v = floor(*v * 1024) / 1024;
        }
    for (int64_t j = 0; j < (int64_t)(x->tensor.size / sizeof(float)); j++) {
        float *v = (float *)(void *)x->tensor.data + j;
        *v = floorf(*v * 1024) / 1024;
    }
}

static void check_gradients(const back_spec *s, int samples) {
    static const int input[] = {BACK_Q, BACK_K, BACK_V};
    fxa_error err = {0};
    fxa_context *ctx = NULL;
    t_rng rng = {t_seed()};
    T_OK(fxa_context_create(NULL, &ctx, &err));
    back_case *x = back_make(ctx, s, t_seed(), &err);
    T_REQUIRE(x != NULL);
    grad_round(x);
    (void)grad_loss(ctx, x);
    T_OK(back_run(ctx, x, "cpu", FXA_BACKWARD, &err));
    for (int k = 0; k < samples; k++) {
        int out = k % 5;
        if (!back_wrote(x, out)) continue;
        fxa_dtype t = out == BACK_TENSOR ? FXA_F32 : FXA_F64;
        void *data = out < 3 ? x->in[input[out]].data : out == BACK_TENSOR ? x->tensor.data : (void *)&x->param;
        int64_t i = t_int(&rng, 0, (int64_t)(x->out[out].size / fxa_dtype_size(t)) - 1);
        double got = back_get(back_dtype(x, out), x->out[out].data, i), want = grad_difference(ctx, x, t, data, i);
        T_NEAR(got, want, 1e-9 + (t == FXA_F32 ? 0x1p-24 * fabs(got) : 0));
    }
    back_free(x);
    fxa_context_destroy(ctx);
}

TEST(gradients_by_differences) {
    back_spec chunks = {
        .b = 1, .hq = 2, .hkv = 1, .sq = 30, .sk = 800, .d = 4, .dv = 4, .dtype = FXA_F64, .text = cap_text};
    back_spec table = {
        .b = 2, .hq = 2, .hkv = 2, .sq = 100, .sk = 50, .d = 20, .dv = 4, .dtype = FXA_F64, .text = table_text};
    back_spec dropout = {.b = 1,
                         .hq = 2,
                         .hkv = 1,
                         .sq = 20,
                         .sk = 45,
                         .d = 5,
                         .dv = 6,
                         .dtype = FXA_F64,
                         .flags = FXA_CAUSAL | FXA_SINK_ZERO};
    chunks.tensor[0] = 2, table.tensor[0] = 100, dropout.dropout_p = 0.25;
    check_gradients(&chunks, t_scaled(25));
    check_gradients(&table, t_scaled(25));
    check_gradients(&dropout, t_scaled(25));
}

T_MAIN
