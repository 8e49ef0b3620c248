/* SPDX-License-Identifier: Apache-2.0
 *
 * 8-bit operands with scales (FXA_SCALED): the reference engine compared with itself on the same numbers in f64, whose
 * results are then scaled and rounded here; the cpu engine compared with these results within the bounds of its
 * arithmetic, and exactly with itself in f32 if all scales are powers of two; largest values; and refusals.
 */
#include "base/dtype.h"
#include "problem/scales.h"
#include "support/fixtures/attn_data.h"
#include "t.h"

#include <string.h>

/* ---- A problem twice --------------------------------------------------------------------------------------------- */

static const fxa_slot scales_inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_DO};
static const fxa_slot scales_outputs[] = {FXA_SLOT_O, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
static const fxa_slot scales_descale[] = {FXA_SLOT_DESCALE_Q, FXA_SLOT_DESCALE_K, FXA_SLOT_DESCALE_V,
                                          FXA_SLOT_DESCALE_O, FXA_SLOT_DESCALE_DO};
static const fxa_slot scales_scale[] = {FXA_SLOT_SCALE_O, FXA_SLOT_SCALE_DQ, FXA_SLOT_SCALE_DK, FXA_SLOT_SCALE_DV};
static const fxa_slot scales_amax[] = {FXA_SLOT_AMAX_O, FXA_SLOT_AMAX_DQ, FXA_SLOT_AMAX_DK, FXA_SLOT_AMAX_DV};

typedef struct scales_case {
    attn_data narrow, wide; /* the problem in 8 bits; the same values in f64 or f32 */
    bool powers;            /* scales are powers of two, so the cpu engine in f32 gives the same bits */
    float descale[5], scale[4], amax[4];
    float scale_ds, amax_ds;
    bool given[5]; /* descales: else 1 */
} scales_case;

static fxa_context *scales_context(void) {
    static fxa_context *ctx;
    if (!ctx) ctx = attn_context(2);
    return ctx;
}

static float scales_draw(uint64_t *rng, bool powers) {
    return powers ? ldexpf(1, (int)attn_int(rng, -3, 3)) : (float)exp2(attn_real(rng, -3, 3));
}

static void scales_open(scales_case *c, uint64_t *rng, bool powers, bool few) {
    static const char *const texts[] = {NULL, "score = 20.0 * tanh(score / 20.0)", "mask = k <= q + 3",
                                        "score = score + 0.1 * float(k - q)"};
    attn_spec s = {.b = 2, .hq = 4, .hkv = 2, .sq = few ? 1 : attn_int(rng, 5, 70), .sk = attn_int(rng, 9, 150)};
    s.d = attn_int(rng, 1, 5) * 8, s.dv = attn_int(rng, 1, 5) * 8;
    s.dtype = attn_int(rng, 0, 1) ? FXA_E4M3 : FXA_E5M2;
    s.slot_dtype[FXA_SLOT_V] = s.slot_dtype[FXA_SLOT_DV] = attn_int(rng, 0, 1) ? FXA_E4M3 : FXA_E5M2;
    s.flags = FXA_RETURN_LSE | (attn_int(rng, 0, 1) ? FXA_CAUSAL : 0u);
    s.text = texts[attn_int(rng, 0, 3)];
    s.reach = 4;
    fxa_error err;
    memset(c, 0, sizeof *c);
    uint64_t seed = *rng;
    c->powers = powers;
    T_OK(attn_data_make(&c->narrow, scales_context(), &s, seed, &err));
    s.dtype = s.slot_dtype[FXA_SLOT_V] = s.slot_dtype[FXA_SLOT_DV] = powers ? FXA_F32 : FXA_F64;
    T_OK(attn_data_make(&c->wide, scales_context(), &s, seed, &err));
    c->narrow.problem.flags |= FXA_SCALED;
    for (int i = 0; i < 5; i++) c->given[i] = attn_int(rng, 0, 4), c->descale[i] = scales_draw(rng, powers);
    for (int i = 0; i < 4; i++) c->scale[i] = scales_draw(rng, powers) * 16;
    c->scale_ds = scales_draw(rng, false);
}
static void scales_close(scales_case *c) { attn_data_free(&c->narrow), attn_data_free(&c->wide); }

/* Converts an 8-bit input to floats and multiplies it by its scale. */
static void scales_widen(scales_case *c, int input) {
    const attn_tensor *from = &c->narrow.t[scales_inputs[input]];
    attn_tensor *to = &c->wide.t[scales_inputs[input]];
    double factor = c->given[input] ? (double)c->descale[input] : 1;
    for (int64_t i = 0; i < attn_tensor_places(from); i++) attn_set(to, i, attn_get(from, i) * factor);
}

static void scales_run(scales_case *c, const char *engine, fxa_pass pass) {
    static const uint32_t grads[4] = {0, FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V};
    attn_call call;
    fxa_error err;
    attn_call_make(&c->narrow, pass, &call);
    for (int i = 0; i < 5; i++) call.args.slot[scales_descale[i]] = c->given[i] ? &c->descale[i] : NULL;
    for (int i = 0; i < 4; i++) {
        c->amax[i] = -5;
        if (i && !(c->narrow.backward_flags & grads[i])) continue;
        call.args.slot[scales_scale[i]] = &c->scale[i], call.args.slot[scales_amax[i]] = &c->amax[i];
    }
    call.args.slot[FXA_SLOT_SCALE_DS] = &c->scale_ds, call.args.slot[FXA_SLOT_AMAX_DS] = &c->amax_ds;
    c->amax_ds = -5;
    call.p.engine = engine;
    T_OK(fxa_attention(scales_context(), &call.p, &call.args, &err));
}

static void scales_run_wide(scales_case *c, fxa_pass pass) {
    fxa_error err;
    T_OK(attn_data_run(&c->wide, scales_context(), c->powers ? "cpu" : "ref", pass, &err));
}

/* Checks each element of output number i: it must be the rounding of a value within `share` of the largest result. */
static void scales_check(const scales_case *c, int i, double share) {
    const attn_tensor *got = &c->narrow.t[scales_outputs[i]], *want = &c->wide.t[scales_outputs[i]];
    double most = 0, scale = (double)c->scale[i];
    for (int64_t j = 0; j < attn_tensor_places(want); j++) most = fmax(most, fabs(attn_get(want, j)));
    for (int64_t j = 0; j < attn_tensor_places(want); j++) {
        double x = attn_get(want, j), off = share * most;
        double lo = attn_round(got->dtype, (x - off) * scale), hi = attn_round(got->dtype, (x + off) * scale);
        if (!(attn_get(got, j) >= lo && attn_get(got, j) <= hi))
            T_FAIL("slot %s, element %lld is %g, wanted is %g\n", fxa_slot_name(scales_outputs[i]), (long long)j,
                   attn_get(got, j), x * scale);
    }
    T_NEAR((double)c->amax[i], most, (share + 3 * 0x1p-24) * most); /* factor, product, float */
}

/* Returns the relative error of sums in f32: of d products for a score, whose magnitude is some tens, of sk terms for a
 * result, and a few roundings more. */
static double scales_share(const scales_case *c) {
    double d = (double)c->narrow.problem.d_qk, sk = (double)c->narrow.problem.sk;
    double score = 16 * d * (c->descale[0] * c->descale[1] > 1 ? (double)c->descale[0] * (double)c->descale[1] : 1);
    return 0x1p-24 * (2 * score * sqrt(d) + 4 * sk + 64);
}

/* Checks that the amax of dS equals the reference's for any requested gradients.
 * tests/engine/cudnn/test_cudnn_fp8_backward.c computes the amax from pairs. */
static void scales_check_ds(scales_case *c, const char *engine) {
    uint32_t flags = c->narrow.backward_flags;
    scales_run(c, "ref", FXA_BACKWARD);
    double want = (double)c->amax_ds;
    T_CHECK(want > 0);
    for (int i = 0; i < 3; i++) {
        static const uint32_t others[3] = {0, FXA_GRAD_Q | FXA_GRAD_K, FXA_GRAD_V};
        c->narrow.backward_flags = flags & ~others[i], c->scale_ds = ldexpf(1, 4 * i);
        scales_run(c, engine, FXA_BACKWARD);
        T_NEAR((double)c->amax_ds, want, scales_share(c) * want);
    }
    c->narrow.backward_flags = flags;
}

/* Runs backward from the O and LSE that forward of that engine has computed. */
static void scales_backward(scales_case *c, const char *engine, double share) {
    attn_tensor *lse = &c->narrow.t[FXA_SLOT_LSE];
    scales_run(c, engine, FXA_FORWARD);
    T_SAME((double)c->amax_ds, -5.0); /* unchanged: the amax of the other pass */
    scales_check_ds(c, engine);
    for (int i = 3; i < 5; i++) scales_widen(c, i);
    for (int64_t j = 0; j < attn_tensor_places(lse); j++) attn_set(&c->wide.t[FXA_SLOT_LSE], j, attn_get(lse, j));
    scales_run(c, engine, FXA_BACKWARD);
    scales_run_wide(c, FXA_BACKWARD);
    for (int i = 1; i < 4; i++) scales_check(c, i, share);
}

static void scales_try(const char *engine, uint64_t seed, bool powers) {
    bool ref = strcmp(engine, "ref") == 0;
    for (int n = 0; n < t_scaled(24); n++) {
        uint64_t rng = seed + (uint64_t)n * 977;
        scales_case c;
        scales_open(&c, &rng, powers, n % 6 == 5);
        double share = powers ? 0 : ref ? 1e-13 : scales_share(&c);
        for (int i = 0; i < 3; i++) scales_widen(&c, i);
        scales_run(&c, engine, FXA_FORWARD);
        scales_run_wide(&c, FXA_FORWARD);
        scales_check(&c, 0, share);
        scales_backward(&c, engine, share);
        scales_close(&c);
    }
}

TEST(ref_scales_as_the_same_numbers_in_f64_say) { scales_try("ref", t_seed(), false); }
TEST(cpu_scales_within_its_arithmetic) { scales_try("cpu", t_seed() + 1, false); }
TEST(cpu_scales_by_powers_of_two_exactly) { scales_try("cpu", t_seed() + 2, true); }

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void scales_refused(scales_case *c, fxa_pass pass, fxa_slot slot, uint32_t flags, const char *says) {
    attn_call call;
    fxa_error err;
    float one = 1;
    attn_call_make(&c->narrow, pass, &call);
    call.p.flags = (call.p.flags & ~(uint32_t)FXA_SCALED) | flags;
    call.args.slot[slot] = &one;
    T_CHECK(fxa_attention(scales_context(), &call.p, &call.args, &err) != FXA_OK);
    T_HAS(err.text, says);
}

TEST(scales_that_would_not_count_are_refused_by_name) {
    uint64_t rng = 5;
    scales_case c;
    scales_open(&c, &rng, true, false);
    scales_refused(&c, FXA_FORWARD, FXA_SLOT_DESCALE_Q, 0,
                   "slot DESCALE_Q is set, and this problem does not use it: it "
                   "lacks flag FXA_SCALED");
    c.narrow.problem.o.dtype = FXA_BF16;
    scales_refused(&c, FXA_FORWARD, FXA_SLOT_SCALE_O, FXA_SCALED, "it lacks O of 8 bits");
    scales_refused(&c, FXA_FORWARD, FXA_SLOT_AMAX_O, FXA_SCALED, "it lacks O of 8 bits");
    c.narrow.problem.o.dtype = FXA_E4M3;
    scales_refused(&c, FXA_FORWARD, FXA_SLOT_Q, FXA_SCALED | FXA_ACCUMULATE_O,
                   "flag FXA_ACCUMULATE_O adds to an operand of 8 bits");
    c.narrow.backward_flags |= FXA_ACCUMULATE_DK;
    scales_refused(&c, FXA_BACKWARD, FXA_SLOT_Q, FXA_SCALED, "flag FXA_ACCUMULATE_DK adds to an operand of 8 bits");
    c.wide.problem.flags |= FXA_SCALED; /* f32 */
    attn_call call;
    attn_call_make(&c.wide, FXA_FORWARD, &call);
    T_CHECK(fxa_attention(scales_context(), &call.p, &call.args, &err) == FXA_E_PROBLEM);
    T_HAS(err.text, "no operand has 8 bits");
    scales_close(&c);
}

/* dS is not stored: its scale has an effect only in engines that round dS, which ref and cpu do not. */
TEST(a_scale_of_ds_changes_nothing_here) {
    static const char *const engines[2] = {"ref", "cpu"};
    for (int n = 0; n < 2; n++) {
        uint64_t rng = 8;
        scales_case c;
        attn_kept kept = {{NULL}};
        scales_open(&c, &rng, false, false);
        scales_run(&c, engines[n], FXA_FORWARD);
        for (int i = 0; i < 2; i++) {
            c.scale_ds = i ? 1e-30f : 1e30f;
            scales_run(&c, engines[n], FXA_BACKWARD);
            T_CHECK(!attn_other_bits(&c.narrow, FXA_BACKWARD, &kept));
        }
        attn_drop(&kept);
        c.narrow.problem.dout.dtype = FXA_BF16;
        scales_refused(&c, FXA_BACKWARD, FXA_SLOT_SCALE_DS, FXA_SCALED, "it lacks DO of 8 bits");
        scales_refused(&c, FXA_BACKWARD, FXA_SLOT_AMAX_DS, FXA_SCALED, "it lacks DO of 8 bits");
        scales_close(&c);
    }
}

TEST(values_of_scales_are_above_0_and_finite) {
    static const float wrong[] = {0, -1, INFINITY, NAN};
    uint64_t rng = 6;
    for (int i = 0; i < 4; i++) {
        scales_case c;
        attn_call call;
        float x = wrong[i];
        scales_open(&c, &rng, true, false);
        attn_call_make(&c.narrow, FXA_FORWARD, &call);
        call.args.slot[FXA_SLOT_DESCALE_K] = &x;
        T_CHECK(fxa_attention(scales_context(), &call.p, &call.args, &err) == FXA_E_BINDING);
        T_HAS(err.text, "DESCALE_K is");
        scales_close(&c);
    }
}

TEST(a_largest_value_lies_apart_and_takes_nan) {
    float amax = 0;
    fxa__amax_add(&amax, 3), fxa__amax_add(&amax, 2);
    T_SAME((double)amax, 3.0);
    fxa__amax_add(&amax, NAN), fxa__amax_add(&amax, INFINITY);
    T_CHECK(isnan(amax));
    uint64_t rng = 7;
    scales_case c;
    attn_call call;
    scales_open(&c, &rng, true, false);
    attn_call_make(&c.narrow, FXA_FORWARD, &call);
    call.args.slot[FXA_SLOT_DESCALE_K] = call.args.slot[FXA_SLOT_AMAX_O] = &c.scale[0];
    T_CHECK(fxa_attention(scales_context(), &call.p, &call.args, &err) == FXA_E_BINDING);
    T_HAS(err.text, "slot AMAX_O is written and overlaps slot DESCALE_K");
    scales_close(&c);
}

T_MAIN
