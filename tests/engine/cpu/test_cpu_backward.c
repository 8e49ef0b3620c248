/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the cpu engine at shapes around its blocks, tiles, strips and chunks, in every instruction set
 * of this machine, compared with ref, with every buffer at an inaccessible page; and non-finite values in masked pairs.
 * Features, programs and dtypes in general are tested in test_conformance.c, bits and finite differences in
 * test_cpu_backward_bits.c.
 *
 * Tolerance in f32: a relative RMS error of 2e-6 for each gradient. Its sums err by about 2^-24 sqrt(terms) of their
 * size, and scores of magnitude 8 by 8 * 2^-24, an error that P inherits. f64: the same with 2^-53, 4e-15. The gradient
 * of a param is one number, a sum in which thousands of terms nearly cancel, so ten times that is allowed.
 */
#include "support/fixtures/attn_data.h"
#include "support/fixtures/isa.h"
#include "t.h"

/* Compares the outputs with `want`: NaN must be NaN and infinities equal; the root mean square of the other differences
 * must be within `tolerance`, relative to the output. */
static void back_compare(attn_data *x, const attn_kept *want, double tolerance, const char *what) {
    attn_tensor *t;
    for (int i = 0; (t = attn_output(x, FXA_BACKWARD, i)); i++) {
        attn_off off = attn_tensor_off(t, want->memory[i]);
        double allowed = tolerance * (t == &x->dparam ? 10 : 1);
        if (t == &x->dtensor[0]) allowed = fmax(tolerance, 0x1p-24); /* it is f32 */
        if (off.odd) T_FAIL("%s: %" PRId64 " of %s are not finite, or should not be\n", what, off.odd, t->name);
        if (!(off.rms <= allowed))
            T_FAIL("%s: %s is off by %.3g of its size, allowed %.3g\n", what, t->name, off.rms, allowed);
    }
}

typedef void (*spoil_fn)(attn_data *x);

static void check_spec(fxa_context *ctx, const attn_spec *s, const char *what, spoil_fn spoil, uint64_t seed) {
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_owned x = {0};
    fxa_error err = {0};
    fxa_status made = attn_data_make(&x, ctx, s, seed, &err);
    if (made != FXA_OK) T_FAIL("%s: %s\n", what, err.text);
    if (made != FXA_OK) return;
    T_OK(attn_data_run(&x, ctx, "ref", FXA_FORWARD, &err));
    if (spoil) spoil(&x);
    T_OK(attn_data_run(&x, ctx, "ref", FXA_BACKWARD, &err));
    attn_keep(&x, FXA_BACKWARD, &want);
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
    back_compare(&x, &want, s->dtype == FXA_F64 ? 4e-15 : 2e-6, what);
}

static const char cap_text[] =
    "param cap : float\ntensor slopes : f32[1]\n"
    "score = cap * tanh((score + 0.01 * slopes[h] * float(q - k)) / cap)\nmask = q >= k - 40";
static const char dense_text[] = "tensor bias : f32[3]\nscore = score + bias[h, q, k]";
static const char mixed_text[] = "tensor bias : f32[1]\nscore = score + bias[(7 * q + 3 * k + h) % 300000]";
static const char hole_text[] = "mask = q >= k && k % 5 != 3";

/* Shapes around the edges of blocks of up to 384 keys, tiles of 192 rows, strips of 12 rows, and panels of 4 to 32
 * columns. */
static const char third_text[] = "mask = q * k % 3 != 1"; /* the score stays as it is, for a backward that reads it */
static const char own_text[] = "dscore = dscore * 0.5 + dscore * tanh(score)";
static const char apart_text[] = "mask = q >= 120 && k >= 1400";
static const attn_spec shapes[] = {
    {.b = 1, .hq = 2, .hkv = 1, .sq = 193, .sk = 385, .d = 16, .dv = 16},
    {.b = 2, .hq = 3, .hkv = 3, .sq = 13, .sk = 31, .d = 33, .dv = 7},
    {.b = 1, .hq = 4, .hkv = 2, .sq = 50, .sk = 129, .d = 64, .dv = 40, .text = cap_text, .tensor = {{4}}},
    {.b = 1, .hq = 1, .hkv = 1, .sq = 200, .sk = 1600, .d = 8, .dv = 8, .text = cap_text, .tensor = {{1}}}, /* chunks */
    {.b = 1, .hq = 1, .sq = 240, .sk = 1600, .d = 8, .dv = 8, .text = apart_text}, /* tiles that skip chunks of keys */
    {.b = 2, .hq = 4, .hkv = 1, .sq = 5, .sk = 70, .d = 128, .dv = 128, .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT},
    {.b = 1, .hq = 2, .hkv = 2, .sq = 100, .sk = 100, .d = 512, .dv = 1, .text = hole_text},
    {.b = 1, .hq = 1, .hkv = 1, .sq = 400, .sk = 400, .d = 32, .dv = 32, .flags = FXA_CAUSAL | FXA_WINDOW},
    {.b = 3, .hq = 4, .hkv = 2, .sq = 20, .sk = 61, .d = 24, .dv = 24, .page_size = 16},
    {.b = 1,
     .hq = 2,
     .hkv = 2,
     .sq = 96,
     .sk = 192,
     .d = 64,
     .dv = 64,
     .strided = 1u << FXA_SLOT_DO,
     .stride[FXA_SLOT_DO][3] = 1},
    {.b = 1, .hq = 2, .hkv = 1, .sq = 30, .sk = 200, .d = 20, .dv = 12, .dropout_p = 0.4},
    {.b = 1, /* rows whose elements are not adjacent */
     .hq = 2,
     .hkv = 2,
     .sq = 60,
     .sk = 100,
     .d = 16,
     .dv = 16,
     .strided = 1u << FXA_SLOT_Q | 1u << FXA_SLOT_O | 1u << FXA_SLOT_DO,
     .stride[FXA_SLOT_Q] = {60 * 64, 60 * 32, 32, 2},
     .stride[FXA_SLOT_O] = {60 * 96, 60 * 48, 48, 3},
     .stride[FXA_SLOT_DO] = {60 * 64, 60 * 32, 32, 2}},
    {.b = 2, .hq = 2, .hkv = 2, .sq = 240, .sk = 1600, .d = 8, .dv = 8, .text = apart_text},
    {.b = 1, .hq = 2, .hkv = 1, .sq = 40, .sk = 150, .d = 16, .dv = 16, .text = third_text, .bprop_text = own_text},
    {.b = 1, .hq = 2, .hkv = 1, .sq = 40, .sk = 150, .d = 16, .dv = 16, .bprop_text = own_text},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_shapes(fxa_dtype dtype, const char *isa) {
    t_ctx *ctx = t_context();
    for (int i = 0; i < SHAPES; i++) {
        attn_spec s = shapes[i];
        char what[64];
        s.dtype = dtype, s.around = i & 1 ? ATTN_PAGE_BEFORE : ATTN_PAGE_BEHIND;
        if (s.sq * s.sk * s.b * s.hq > t_scaled(400000)) continue;
        snprintf(what, sizeof what, "shape %d, %s, %s", i, fxa_dtype_name(dtype), isa);
        check_spec(ctx, &s, what, NULL, t_seed() + (uint64_t)i);
    }
}

static void check_sets(const char *isa) {
    check_shapes(FXA_F32, isa);
    check_shapes(FXA_F64, isa);
}
TEST(every_instruction_set) { isa_each(check_sets); } /* */

/* One tensor has a sum that all threads share, because its loads are indexed by head and key; the other has a sum that
 * they cannot share. */
CONTEXT_TEST(large_captured_tensors) { /* */
    attn_spec dense = {
        .b = 1, .hq = 2, .hkv = 2, .sq = 150, .sk = 900, .d = 4, .dv = 4, .dtype = FXA_F64, .text = dense_text};
    attn_spec mixed = {
        .b = 2, .hq = 2, .hkv = 1, .sq = 60, .sk = 800, .d = 4, .dv = 4, .dtype = FXA_F64, .text = mixed_text};
    dense.tensor[0][0] = 2, dense.tensor[0][1] = 150, dense.tensor[0][2] = 900;
    mixed.tensor[0][0] = 300000;
    dense.around = mixed.around = ATTN_PAGE_BEHIND;
    check_spec(ctx, &dense, "dense bias", NULL, t_seed());
    check_spec(ctx, &mixed, "gathered bias", NULL, t_seed());
}

/* ---- Values that are not finite ---------------------------------------------------------------------------------- */

/* Makes K of key 299, to which only row 299 attends under the causal mask, and V of key 298, to which two rows attend,
 * non-finite. */
static void spoil_last_key(attn_data *x) {
    int64_t d = x->problem.d_qk, dv = x->problem.d_v;
    for (int64_t i = 0; i < d; i++) attn_set(&x->t[FXA_SLOT_K], 299 * d + i, i & 1 ? NAN : INFINITY);
    for (int64_t i = 0; i < dv; i++) attn_set(&x->t[FXA_SLOT_V], 298 * dv + i, NAN);
}
static void spoil_rows(attn_data *x) {
    int64_t d = x->problem.d_qk, dv = x->problem.d_v;
    for (int64_t i = 0; i < d; i++) attn_set(&x->t[FXA_SLOT_Q], 120 * d + i, INFINITY); /* row 120 */
    for (int64_t i = 0; i < dv; i++) attn_set(&x->t[FXA_SLOT_DO], 5 * dv + i, NAN);     /* row 5 */
    attn_set(&x->t[FXA_SLOT_LSE], 77, NAN);
    attn_set(&x->t[FXA_SLOT_LSE], 250, INFINITY);
}
/* Sets LSE of some rows to -inf, as if they attended to no key, and their other data to non-finite values, which must
 * have no effect. */
static void spoil_absent(attn_data *x) {
    int64_t d = x->problem.d_qk, dv = x->problem.d_v;
    for (int64_t r = 100; r < 130; r++) {
        attn_set(&x->t[FXA_SLOT_LSE], r, -INFINITY);
        attn_set(&x->t[FXA_SLOT_DLSE], r, NAN);
        for (int64_t i = 0; i < d; i++) attn_set(&x->t[FXA_SLOT_Q], r * d + i, NAN);
        for (int64_t i = 0; i < dv; i++) attn_set(&x->t[FXA_SLOT_DO], r * dv + i, INFINITY);
        for (int64_t i = 0; i < dv; i++) attn_set(&x->t[FXA_SLOT_O], r * dv + i, NAN);
    }
}

static void check_spoilt(spoil_fn spoil, const char *what) {
    t_ctx *ctx = t_context();
    for (int i = 0; i < 4; i++) {
        attn_spec s = {.b = 1, .hq = 1, .hkv = 1, .sq = 300, .sk = 300, .d = 10, .dv = 6, .flags = FXA_CAUSAL};
        s.dtype = i & 1 ? FXA_F64 : FXA_F32, s.dropout_p = i & 2 ? 0.3 : 0, s.around = ATTN_PAGE_BEHIND;
        check_spec(ctx, &s, what, spoil, t_seed() + (uint64_t)i);
    }
}
TEST(not_finite_in_keys_reaches_only_what_attends_them) { check_spoilt(spoil_last_key, "keys"); }
TEST(not_finite_in_rows_stays_with_what_they_attend) { check_spoilt(spoil_rows, "rows"); }
TEST(rows_that_attended_to_nothing_are_not_read) { check_spoilt(spoil_absent, "absent"); }

T_MAIN
