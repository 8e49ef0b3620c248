/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the cpu engine where it is cut: shapes around its blocks, tiles, strips and chunks, in every
 * instruction set that this machine has, against the reference engine, with every buffer against a forbidden page;
 * numbers that are not finite in pairs that do not count. Features, programs and dtypes at large are in
 * test_conformance.c, bits and finite differences in test_cpu_backward_bits.c.
 *
 * Tolerance of f32: relative root mean square 2e-6 of each gradient: its sums err by some 2^-24 sqrt(terms) of their
 * size, and scores of magnitude 8 by 8 * 2^-24, which P takes over. f64: the same with 2^-53, 4e-15. The gradient of a
 * param is one number, a sum in which thousands of terms nearly cancel: ten times that.
 */
#include "support/back_case.h"

#include "engine/cpu/cpu.h"
#include "t.h"

/* NaN must be NaN and infinities the same; the rest within `tolerance`, as root mean square of the whole. */
static void back_compare(const back_case *x, unsigned char *want[BACK_OUTS], double tolerance, const char *what) {
    static const char *const names[BACK_OUTS] = {"dQ", "dK", "dV", "dtensor", "dparam"};
    for (int i = 0; i < BACK_OUTS; i++) {
        fxa_dtype t = back_dtype(x, i);
        double off = 0, size = 0, allowed = tolerance * (i == BACK_PARAM ? 10 : 1);
        if (i == BACK_TENSOR) allowed = fmax(tolerance, 0x1p-24); /* it is f32 */
        int64_t n = (int64_t)(x->out[i].size / fxa_dtype_size(t)), odd = 0;
        for (int64_t j = 0; back_wrote(x, i) && j < n; j++) {
            double a = back_get(t, x->out[i].data, j), b = back_get(t, want[i], j);
            if (isfinite(a) && isfinite(b))
                off += (a - b) * (a - b), size += b * b;
            else if (!(a == b || (a != a && b != b)))
                odd++;
        }
        if (odd) T_FAIL("%s: %s has %" PRId64 " elements that are not finite, or should not be\n", what, names[i], odd);
        if (!(sqrt(off) <= allowed * sqrt(size)))
            T_FAIL("%s: %s is off by %.3g of its size, allowed %.3g\n", what, names[i], sqrt(off / size), allowed);
    }
}

typedef void (*spoil_fn)(back_case *x);

static void check_spec(fxa_context *ctx, const back_spec *s, const char *what, spoil_fn spoil, uint64_t seed) {
    unsigned char *want[BACK_OUTS];
    fxa_error err = {0};
    back_case *x = back_make(ctx, s, seed, &err);
    if (!x) T_FAIL("%s: %s\n", what, err.text);
    if (!x) return;
    T_OK(back_run(ctx, x, "ref", FXA_FORWARD, &err));
    if (spoil) spoil(x);
    T_OK(back_run(ctx, x, "ref", FXA_BACKWARD, &err));
    back_keep(x, want);
    T_OK(back_run(ctx, x, "cpu", FXA_BACKWARD, &err));
    back_compare(x, want, s->dtype == FXA_F64 ? 4e-15 : 2e-6, what);
    back_drop(want);
    back_free(x);
}

static const char cap_text[] =
    "param cap : float\ntensor slopes : f32[1]\n"
    "score = cap * tanh((score + 0.01 * slopes[h] * float(q - k)) / cap)\nmask = q >= k - 40";
static const char dense_text[] = "tensor bias : f32[3]\nscore = score + bias[h, q, k]";
static const char mixed_text[] = "tensor bias : f32[1]\nscore = score + bias[(7 * q + 3 * k + h) % 300000]";
static const char hole_text[] = "mask = q >= k && k % 5 != 3";

/* Around blocks of 384 or fewer keys, tiles of 192 rows, strips of 12, panels of 4 to 32 columns. */
static const back_spec shapes[] = {
    {.b = 1, .hq = 2, .hkv = 1, .sq = 193, .sk = 385, .d = 16, .dv = 16},
    {.b = 2, .hq = 3, .hkv = 3, .sq = 13, .sk = 31, .d = 33, .dv = 7},
    {.b = 1, .hq = 4, .hkv = 2, .sq = 50, .sk = 129, .d = 64, .dv = 40, .text = cap_text, .tensor = {4}},
    {.b = 1, .hq = 1, .hkv = 1, .sq = 200, .sk = 1600, .d = 8, .dv = 8, .text = cap_text, .tensor = {1}}, /* chunks */
    {.b = 2, .hq = 4, .hkv = 1, .sq = 5, .sk = 70, .d = 128, .dv = 128, .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT},
    {.b = 1, .hq = 2, .hkv = 2, .sq = 100, .sk = 100, .d = 512, .dv = 1, .text = hole_text},
    {.b = 1, .hq = 1, .hkv = 1, .sq = 400, .sk = 400, .d = 32, .dv = 32, .flags = FXA_CAUSAL | FXA_WINDOW},
    {.b = 3, .hq = 4, .hkv = 2, .sq = 20, .sk = 61, .d = 24, .dv = 24, .page_size = 16},
    {.b = 1, .hq = 2, .hkv = 2, .sq = 96, .sk = 192, .d = 64, .dv = 64, .expanded = true},
    {.b = 1, .hq = 2, .hkv = 1, .sq = 30, .sk = 200, .d = 20, .dv = 12, .dropout_p = 0.4},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_shapes(fxa_dtype dtype, const char *isa) {
    fxa_error err;
    fxa_context *ctx = NULL;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < SHAPES; i++) {
        back_spec s = shapes[i];
        char what[64];
        s.dtype = dtype, s.front = i & 1;
        if (s.sq * s.sk * s.b * s.hq > t_scaled(400000)) continue;
        snprintf(what, sizeof what, "shape %d, %s, %s", i, fxa_dtype_name(dtype), isa);
        check_spec(ctx, &s, what, NULL, t_seed() + (uint64_t)i);
    }
    fxa_context_destroy(ctx);
}

TEST(every_instruction_set) { /* */
    bool usable;
    for (size_t i = 0; fxa__cpu_set(i, sizeof(float), &usable); i++) {
        const char *isa = fxa__cpu_set(i, sizeof(float), &usable)->isa;
        if (!usable) {
            printf("  skipped %s: not on this machine\n", isa);
            continue;
        }
        setenv("FXA_CPU", isa, 1);
        check_shapes(FXA_F32, isa);
        check_shapes(FXA_F64, isa);
    }
    unsetenv("FXA_CPU");
}

/* One sum that all lanes share, since loads are by head and key; one that they cannot share. */
TEST(large_captured_tensors) { /* */
    fxa_error err;
    fxa_context *ctx = NULL;
    back_spec dense = {
        .b = 1, .hq = 2, .hkv = 2, .sq = 150, .sk = 900, .d = 4, .dv = 4, .dtype = FXA_F64, .text = dense_text};
    back_spec mixed = {
        .b = 2, .hq = 2, .hkv = 1, .sq = 60, .sk = 800, .d = 4, .dv = 4, .dtype = FXA_F64, .text = mixed_text};
    dense.tensor[0] = 2, dense.tensor[1] = 150, dense.tensor[2] = 900;
    mixed.tensor[0] = 300000;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    check_spec(ctx, &dense, "dense bias", NULL, t_seed());
    check_spec(ctx, &mixed, "gathered bias", NULL, t_seed());
    fxa_context_destroy(ctx);
}

/* ---- What is not finite ---------------------------------------------------------------------------------------- */

/* Causal, so key 299 is seen by row 299 alone, key 298 by two rows: what is masked reaches nothing. */
static void spoil_last_key(back_case *x) {
    for (int64_t i = 0; i < x->s.d; i++)
        back_set(x->s.dtype, x->in[BACK_K].data, 299 * x->s.d + i, i & 1 ? NAN : INFINITY);
    for (int64_t i = 0; i < x->s.dv; i++) back_set(x->s.dtype, x->in[BACK_V].data, 298 * x->s.dv + i, NAN);
}
static void spoil_rows(back_case *x) {
    for (int64_t i = 0; i < x->s.d; i++)
        back_set(x->s.dtype, x->in[BACK_Q].data, 120 * x->s.d + i, INFINITY); /* row 120 of Q */
    for (int64_t i = 0; i < x->s.dv; i++)
        back_set(x->s.dtype, x->in[BACK_DO].data, 5 * x->s.dv + i, NAN); /* row 5 of dO */
    back_set(x->s.dtype, x->in[BACK_LSE].data, 77, NAN);                 /* LSE */
    back_set(x->s.dtype, x->in[BACK_LSE].data, 250, INFINITY);
}
/* Rows that attended to nothing: all of them but LSE may hold anything. */
static void spoil_absent(back_case *x) {
    for (int64_t r = 100; r < 130; r++) {
        back_set(x->s.dtype, x->in[BACK_LSE].data, r, -INFINITY);
        back_set(x->s.dtype, x->in[BACK_DLSE].data, r, NAN);
        for (int64_t i = 0; i < x->s.d; i++) back_set(x->s.dtype, x->in[BACK_Q].data, r * x->s.d + i, NAN);
        for (int64_t i = 0; i < x->s.dv; i++) back_set(x->s.dtype, x->in[BACK_DO].data, r * x->s.dv + i, INFINITY);
        for (int64_t i = 0; i < x->s.dv; i++) back_set(x->s.dtype, x->in[BACK_O].data, r * x->s.dv + i, NAN);
    }
}

static void check_spoilt(spoil_fn spoil, const char *what) {
    fxa_error err;
    fxa_context *ctx = NULL;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < 4; i++) {
        back_spec s = {.b = 1, .hq = 1, .hkv = 1, .sq = 300, .sk = 300, .d = 10, .dv = 6, .flags = FXA_CAUSAL};
        s.dtype = i & 1 ? FXA_F64 : FXA_F32, s.dropout_p = i & 2 ? 0.3 : 0;
        check_spec(ctx, &s, what, spoil, t_seed() + (uint64_t)i);
    }
    fxa_context_destroy(ctx);
}
TEST(not_finite_in_keys_reaches_only_what_attends_them) { check_spoilt(spoil_last_key, "keys"); }
TEST(not_finite_in_rows_stays_with_what_they_attend) { check_spoilt(spoil_rows, "rows"); }
TEST(rows_that_attended_to_nothing_are_not_read) { check_spoilt(spoil_absent, "absent"); }

T_MAIN
