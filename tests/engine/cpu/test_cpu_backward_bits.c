/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the cpu engine: the same bits with any number of threads, in every run and with any contents of
 * the workspace; and its f64 gradients compared with finite differences of its own forward pass.
 */
#include "support/fixtures/attn_data.h"

#include "t.h"

static const char cap_text[] =
    "param cap : float\ntensor slopes : f32[1]\n"
    "score = cap * tanh((score + 0.01 * slopes[h] * float(q - k)) / cap)\nmask = q >= k - 40";
static const char dense_text[] = "tensor bias : f32[3]\nscore = score + bias[h, q, k]\nmask = k <= q + 300";
static const char table_text[] = "tensor bias : f32[1]\nscore = score + bias[abs(q - k)]";

/* Masks that heads and batch entries share, masks that differ by head or batch entry, and a mask that is part of the
 * score. */
static const char blocks_text[] = "tensor t : f32[2]\nmask = t[q // 16, k // 16] > 0.25";
static const char batches_text[] = "tensor t : f32[3]\nmask = t[b, q // 8, k // 24] > 0.5 && k <= q + 200";
static const char heads_text[] = "tensor t : f32[3]\nscore = t[h, q // 8, k // 8] > 0.5 ? 0.5 * score : -inf";

/* Cases: keys in chunks; many KV groups; partial sums shared by threads, private to a thread, and of pages. */
static const attn_spec cases[] = {
    {.b = 1, .hq = 2, .hkv = 1, .sq = 150, .sk = 1700, .d = 8, .dv = 8, .text = cap_text, .tensor = {{2}}},
    {.b = 3, .hq = 8, .hkv = 4, .sq = 40, .sk = 90, .d = 16, .dv = 8, .text = table_text, .tensor = {{100}}},
    {.b = 1, .hq = 2, .hkv = 2, .sq = 150, .sk = 900, .d = 8, .dv = 8, .text = dense_text, .tensor = {{2, 150, 900}}},
    {.b = 4, .hq = 4, .hkv = 2, .sq = 30, .sk = 100, .d = 32, .dv = 32, .page_size = 16, .dropout_p = 0.2},
    {.b = 1, .hq = 3, .hkv = 3, .sq = 500, .sk = 500, .d = 32, .dv = 32, .flags = FXA_CAUSAL},
    {.b = 3, .hq = 4, .hkv = 2, .sq = 300, .sk = 700, .d = 16, .dv = 16, .text = blocks_text, .tensor = {{20, 50}}},
    {.b = 3, .hq = 4, .hkv = 4, .sq = 200, .sk = 500, .d = 16, .dv = 8, .text = batches_text, .tensor = {{3, 25, 22}}},
    {.b = 2, .hq = 4, .hkv = 2, .sq = 250, .sk = 300, .d = 16, .dv = 16, .text = heads_text, .tensor = {{4, 32, 40}}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Runs backward of a case in a new context with that many threads, `runs` times: the bits must equal those in *kept. */
static void bits_run(const attn_spec *spec, uint32_t threads, int runs, attn_kept *kept, const char *what) {
    fxa_error err = {0};
    t_ctx *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    attn_spec s = *spec;
    attn_data x;
    const char *other;
    config.threads = threads, s.around = ATTN_PAGE_BEHIND;
    T_OK(fxa_context_create(&config, &ctx, &err));
    fxa_status made = attn_data_make(&x, ctx, &s, t_seed(), &err);
    if (made != FXA_OK) T_FAIL("%s\n", err.text);
    for (int run = 0; made == FXA_OK && run < runs; run++) {
        if (run == 0) T_OK(attn_data_run(&x, ctx, "cpu", FXA_FORWARD, &err));
        T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
        if ((other = attn_other_bits(&x, FXA_BACKWARD, kept)))
            T_FAIL("%s, %u threads, run %d: %s has other bits\n", what, threads, run, other);
    }
    if (made == FXA_OK) attn_data_free(&x);
}

TEST(any_number_of_threads) { /* */
    static const uint32_t threads[] = {1, 2, 3, 7};
    for (int i = 0; i < 2 * CASES; i++) {
        T_ENDED(attn_drop) attn_kept kept = {{NULL}};
        char what[64];
        attn_spec s = cases[i / 2];
        s.dtype = i & 1 ? FXA_F64 : FXA_F32;
        snprintf(what, sizeof what, "case %d, %s", i / 2, fxa_dtype_name(s.dtype));
        for (int t = 0; t < 4; t++) bits_run(&s, threads[t], 1, &kept, what);
    }
}

TEST(hundred_runs) {
    T_ENDED(attn_drop) attn_kept kept = {{NULL}};
    attn_spec s = {.b = 1, .hq = 2, .hkv = 1, .sq = 50, .sk = 800, .d = 8, .dv = 8, .dtype = FXA_F32};
    s.text = cap_text, s.tensor[0][0] = 2;
    bits_run(&s, 3, t_scaled(100), &kept, "softcap");
}

/* ---- Finite differences ------------------------------------------------------------------------------------------ */

static double grad_loss(fxa_context *ctx, attn_data *x) {
    fxa_error err;
    double loss = 0;
    T_OK(attn_data_run(x, ctx, "cpu", FXA_FORWARD, &err));
    const attn_tensor *o = &x->t[FXA_SLOT_O], *lse = &x->t[FXA_SLOT_LSE];
    for (int64_t i = 0; i < attn_tensor_places(o); i++) loss += attn_get(o, i) * attn_get(&x->t[FXA_SLOT_DO], i);
    for (int64_t i = 0; i < attn_tensor_places(lse); i++) loss += attn_get(lse, i) * attn_get(&x->t[FXA_SLOT_DLSE], i);
    return loss;
}

/* Sets element i of an input tensor t; t NULL: of the params. */
static void grad_set(attn_data *x, attn_tensor *t, int64_t i, double value) {
    if (t)
        attn_set(t, i, value);
    else
        x->params[i] = value;
}

/* Returns the central difference at h and 2 h, extrapolated: its error is c h^4 plus that of rounding, |L| 2^-52 /
 * h. */
static double grad_difference(fxa_context *ctx, attn_data *x, attn_tensor *t, int64_t i) {
    double h = 0x1p-10, at = t ? attn_get(t, i) : x->params[i], d[2];
    for (int k = 0; k < 2; k++) {
        double step = h * (k + 1), up, down;
        grad_set(x, t, i, at + step);
        up = grad_loss(ctx, x);
        grad_set(x, t, i, at - step);
        down = grad_loss(ctx, x);
        d[k] = (up - down) / (2 * step);
    }
    grad_set(x, t, i, at);
    return (4 * d[0] - d[1]) / 3;
}

/* Rounds all inputs to multiples of 2^-10, so that steps are exact in f32 too. */
static void grad_round(attn_data *x) {
    attn_tensor *const inputs[] = {&x->t[FXA_SLOT_Q],  &x->t[FXA_SLOT_K],    &x->t[FXA_SLOT_V],
                                   &x->t[FXA_SLOT_DO], &x->t[FXA_SLOT_DLSE], &x->tensor[0]};
    for (int i = 0; i < (x->n_tensors ? 6 : 5); i++)
        for (int64_t j = 0; j < attn_tensor_places(inputs[i]); j++)
            attn_set(inputs[i], j, floor(attn_get(inputs[i], j) * 1024) / 1024);
}

static void check_gradients(const attn_spec *spec, int samples) {
    static const fxa_slot input[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V};
    fxa_error err = {0};
    t_ctx *ctx = t_context();
    t_rng rng = {t_seed()};
    attn_spec s = *spec;
    attn_owned x = {0};
    attn_tensor *grad;
    int n = 0;
    s.around = ATTN_PAGE_BEHIND;
    T_REQUIRE(attn_data_make(&x, ctx, &s, t_seed(), &err) == FXA_OK);
    grad_round(&x);
    (void)grad_loss(ctx, &x);
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
    while (attn_output(&x, FXA_BACKWARD, n)) n++;
    for (int k = 0; k < samples; k++) {
        int out = k % n;
        grad = attn_output(&x, FXA_BACKWARD, out);
        attn_tensor *t = out < 3 ? &x.t[input[out]] : grad == &x.dparam ? NULL : &x.tensor[0];
        int64_t i = t_int(&rng, 0, attn_tensor_places(grad) - 1);
        double got = attn_get(grad, i), want = grad_difference(ctx, &x, t, i);
        T_NEAR(got, want, 1e-9 + (grad->dtype == FXA_F32 ? 0x1p-24 * fabs(got) : 0));
    }
}

TEST(gradients_by_differences) {
    attn_spec chunks = {
        .b = 1, .hq = 2, .hkv = 1, .sq = 30, .sk = 800, .d = 4, .dv = 4, .dtype = FXA_F64, .text = cap_text};
    attn_spec table = {
        .b = 2, .hq = 2, .hkv = 2, .sq = 100, .sk = 50, .d = 20, .dv = 4, .dtype = FXA_F64, .text = table_text};
    attn_spec dropout = {.b = 1,
                         .hq = 2,
                         .hkv = 1,
                         .sq = 20,
                         .sk = 45,
                         .d = 5,
                         .dv = 6,
                         .dtype = FXA_F64,
                         .flags = FXA_CAUSAL | FXA_SINK_ZERO};
    chunks.tensor[0][0] = 2, table.tensor[0][0] = 100, dropout.dropout_p = 0.25;
    check_gradients(&chunks, t_scaled(25));
    check_gradients(&table, t_scaled(25));
    check_gradients(&dropout, t_scaled(25));
}

T_MAIN
