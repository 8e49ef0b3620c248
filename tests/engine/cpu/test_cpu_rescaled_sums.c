/* SPDX-License-Identifier: Apache-2.0
 *
 * V near the limit of its dtype in the cpu engine, compared with ref: sums of weights times V overflow before they are
 * divided by the sum of weights, although O does not. Tested in tiles and in decoding, with one and several chunks of
 * keys, and with other features in the same row: small elements, sinks, dropout, masks, non-finite values with weight
 * 0, accumulation into O. Also tests gradients, which are not quotients, as long as their sums do not overflow.
 */
#include "t.h"

#include "support/fixtures/attn_data.h"

#include <float.h>

/* Kinds of V: all at the maximum; signs that alternate by key, so that sums alternate; signs by half, so that sums
 * become large and return; random signs; and the last with elements of ordinary and of tiny values. */
typedef enum large_kind { LARGE_EQUAL, LARGE_TURNS, LARGE_HALVES, LARGE_DRAWN, LARGE_BESIDE, LARGE_KINDS } large_kind;
static const char *const large_kinds[] = {"equal", "turns", "halves", "drawn", "beside others"};

typedef struct large_case {
    const char *name, *text;
    int64_t sq, sk;
    uint32_t flags;
    double dropout_p, share; /* share: V is this share of the largest number of its dtype */
    uint32_t page_size;
    bool spoiled; /* keys 5, 14, 23, ... have a non-finite V */
} large_case;

static double large_end(fxa_dtype dtype) {
    /* a little less for f64, because the reference's sums are f64 too, and round */
    return dtype == FXA_BF16 ? 0x1.fep127 : dtype == FXA_F64 ? DBL_MAX * 0.999 : (double)FLT_MAX;
}

static double large_value(large_kind kind, double most, int64_t k, int64_t sk, int64_t d, double drawn) {
    switch (kind) {
    case LARGE_EQUAL: return most;
    case LARGE_TURNS: return k % 2 ? -most : most;
    case LARGE_HALVES: return k < sk / 2 ? most : -most;
    case LARGE_DRAWN: return drawn < 0 ? -most : most;
    default: return d % 4 == 1 ? drawn : d % 4 == 2 ? drawn * 0x1p-90 : drawn < 0 ? -most : most;
    }
}

static void large_fill(attn_data *x, const large_case *c, large_kind kind) {
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    attn_tensor *v = &x->t[FXA_SLOT_V];
    double most = large_end(v->dtype) * c->share;
    int64_t at[4];
    for (at[0] = 0; at[0] < v->n[0]; at[0]++)
        for (at[1] = 0; at[1] < v->n[1]; at[1]++)
            for (at[2] = 0; at[2] < v->n[2]; at[2]++)
                for (at[3] = 0; at[3] < v->n[3]; at[3]++) {
                    double y = large_value(kind, most, at[2], v->n[2], at[3], attn_tensor_get(v, at));
                    if (c->spoiled && at[2] % 9 == 5) y = odd[at[3] % 3];
                    attn_tensor_set(v, at, y);
                }
}

/* Returns the tolerance: 40 units, as in test_cpu_corners.c, and what sums over keys add (docs/numerics.md), times the
 * largest magnitude of the column. For bf16, weights may be rounded before they are multiplied, by half a unit, and O
 * is rounded by another half. */
static double large_allowed(const large_case *c, fxa_dtype dtype, large_kind kind, double most, int64_t d) {
    double keys = (double)c->sk, units = 40 + (kind == LARGE_EQUAL ? keys : 2 * sqrt(keys));
    bool small = kind == LARGE_BESIDE && (d % 4 == 1 || d % 4 == 2) && !(c->flags & FXA_ACCUMULATE_O);
    double size = !small ? most : d % 4 == 1 ? 1 : 0x1p-90;
    return size * (dtype == FXA_BF16 ? 0x1p-8 : units * (dtype == FXA_F64 ? 0x1p-53 : 0x1p-24));
}

/* Compares O of both engines. A value that f64 rounds to infinity in the dtype must be infinite. */
static void large_compare(const attn_data *x, attn_kept *want, const large_case *c, large_kind kind) {
    const attn_tensor *o = &x->t[FXA_SLOT_O];
    attn_tensor wanted = *o;
    double most = large_end(o->dtype) * c->share * (1 / (1 - c->dropout_p));
    int64_t at[4], count = 0;
    wanted.origin = want->memory[0] + (o->origin - o->memory);
    for (at[0] = 0; at[0] < o->n[0]; at[0]++)
        for (at[1] = 0; at[1] < o->n[1]; at[1]++)
            for (at[2] = 0; at[2] < o->n[2]; at[2]++)
                for (at[3] = 0; at[3] < o->n[3]; at[3]++) {
                    double is = attn_tensor_get(o, at), must = attn_tensor_get(&wanted, at);
                    double off = fabs(is * 0.5 - must * 0.5) * 2;
                    bool odd = must - must != 0;
                    if (odd ? is == must || (is != is && must != must)
                            : off <= large_allowed(c, o->dtype, kind, most, at[3]))
                        continue;
                    if (count++ == 0)
                        T_FAIL("%s, %s, V %s: O[%d,%d,%d,%d] is %.9g, not %.9g\n", c->name, fxa_dtype_name(o->dtype),
                               large_kinds[kind], (int)at[0], (int)at[1], (int)at[2], (int)at[3], is, must);
                }
}

static bool large_run(attn_data *x, const char *engine, fxa_pass pass) {
    fxa_error err;
    t_ctx *ctx = attn_context(2);
    fxa_status status = attn_data_run(x, ctx, engine, pass, &err);
    if (status != FXA_OK) T_FAIL("%s: %s\n", engine, err.text);
    return status == FXA_OK;
}

static bool large_make(attn_data *x, const large_case *c, fxa_dtype dtype, large_kind kind) {
    attn_spec s = {.b = 1, .hq = 2, .hkv = 1, .sq = c->sq, .sk = c->sk, .d = 16, .dv = 32, .text = c->text};
    fxa_error err;
    fxa_context *ctx = attn_context(1);
    s.dtype = dtype, s.flags = c->flags | FXA_RETURN_LSE, s.dropout_p = c->dropout_p, s.page_size = c->page_size;
    fxa_status status = attn_data_make(x, ctx, &s, t_seed(), &err);
    if (status != FXA_OK) T_FAIL("%s: %s\n", c->name, err.text);
    fxa_context_destroy(ctx);
    if (status != FXA_OK) return false;
    large_fill(x, c, kind);
    return true;
}

/* Fills O and LSE with an existing result of the same size, for rows that are merged with it. */
static void large_before(attn_data *x, const large_case *c) {
    attn_tensor *o = &x->t[FXA_SLOT_O], *lse = &x->t[FXA_SLOT_LSE];
    if (!(c->flags & FXA_ACCUMULATE_O)) return;
    for (int64_t i = 0; i < attn_tensor_places(o); i++)
        attn_set(o, i, (double)(i % 3 - 1) * large_end(o->dtype) * 0.25);
    for (int64_t i = 0; i < attn_tensor_places(lse); i++) attn_set(lse, i, (double)(i % 5));
}

static void large_check(const large_case *c, fxa_dtype dtype, large_kind kind) {
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_owned x = {0};
    if (!large_make(&x, c, dtype, kind)) return;
    large_before(&x, c);
    if (large_run(&x, "ref", FXA_FORWARD)) {
        attn_keep(&x, FXA_FORWARD, &want);
        large_before(&x, c);
        if (large_run(&x, "cpu", FXA_FORWARD)) large_compare(&x, &want, c, kind);
    }
}

static int large_count; /* over all lists */

static void large_all(const large_case *c) {
    static const fxa_dtype dtypes[] = {FXA_BF16, FXA_F32, FXA_F64};
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < LARGE_KINDS; kind++)
            if (t_some(large_count++)) large_check(c, dtypes[i], (large_kind)kind);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

TEST(tiles) { large_all(&(large_case){.name = "tiles", .sq = 40, .sk = 700, .share = 1}); }
TEST(tiles_of_more_rows_than_are_computed_again_at_once) {
    large_all(&(large_case){.name = "many rows", .sq = 800, .sk = 130, .share = 1});
}
TEST(tiles_of_several_chunks) { large_all(&(large_case){.name = "chunks", .sq = 20, .sk = 6000, .share = 1}); }
TEST(decoding) { large_all(&(large_case){.name = "decoding", .sq = 1, .sk = 700, .share = 1}); }
TEST(decoding_by_chunks) { large_all(&(large_case){.name = "decoding by chunks", .sq = 1, .sk = 6000, .share = 1}); }

TEST(masks) {
    large_all(&(large_case){.name = "causal", .text = "mask = k <= 5 * q", .sq = 90, .sk = 500, .share = 1});
    large_all(&(large_case){.name = "bits", .text = "mask = (k * 7 + q) % 3 == 0", .sq = 60, .sk = 600, .share = 1});
    large_all(&(large_case){.name = "decoding, bits", .text = "mask = k % 3 == 0", .sq = 1, .sk = 3000, .share = 1});
}

/* As in the reference, a weight of 0 contributes nothing, whatever V contains. */
TEST(beside_what_is_not_finite) {
    static const char text[] = "mask = k % 9 != 5", penalty[] = "score = k % 9 == 5 ? -1e6 : score";
    large_all(&(large_case){.name = "masked", .text = text, .sq = 40, .sk = 700, .share = 1, .spoiled = true});
    large_all(&(large_case){.name = "decoding", .text = text, .sq = 1, .sk = 3000, .share = 1, .spoiled = true});
    large_all(&(large_case){.name = "penalty", .text = penalty, .sq = 40, .sk = 700, .share = 1, .spoiled = true});
    large_all(&(large_case){.name = "penalty", .text = penalty, .sq = 1, .sk = 3000, .share = 1, .spoiled = true});
}

/* Infinities of V with a positive weight make O infinite, only in their columns and rows. */
TEST(beside_infinities_with_weight) {
    static const char text[] = "mask = k % 9 != 5 || q % 2 == 1";
    large_all(&(large_case){.name = "odd rows", .text = text, .sq = 41, .sk = 300, .share = 1, .spoiled = true});
    large_all(&(large_case){.name = "decoding", .text = text, .sq = 2, .sk = 300, .share = 1, .spoiled = true});
}

/* A chunk of keys with infinite V and a total weight of 1e-300: that weight divided by 2^64 underflows to 0. */
TEST(infinities_in_chunks_of_little_weight) {
    static const char text[] = "score = k < 3100 ? 0.0 : -690.0; mask = k % 9 != 5 || k >= 3100";
    static const fxa_dtype dtypes[] = {FXA_BF16, FXA_F32, FXA_F64};
    large_case c = {.name = "little weight", .text = text, .sq = 1, .sk = 6000, .share = 0x1p-100, .spoiled = true};
    for (int i = 0; i < 3; i++) large_check(&c, dtypes[i], LARGE_EQUAL);
    c.sq = 20;
    large_check(&c, FXA_F64, LARGE_EQUAL);
}

TEST(pages) {
    large_all(&(large_case){.name = "pages", .sq = 40, .sk = 700, .page_size = 16, .share = 1});
    large_all(&(large_case){.name = "pages, decoding", .sq = 1, .sk = 3000, .page_size = 16, .share = 1});
}

TEST(scores_that_rise) {
    static const char text[] = "score = score + 3 * float(k // 100)";
    large_all(&(large_case){.name = "rising", .text = text, .sq = 40, .sk = 700, .share = 1});
    large_all(&(large_case){.name = "rising, decoding", .text = text, .sq = 1, .sk = 3000, .share = 1});
}

TEST(sinks) {
    large_all(&(large_case){.name = "sink", .sq = 40, .sk = 700, .flags = FXA_SINKS, .share = 1});
    large_all(&(large_case){.name = "sink, decoding", .sq = 1, .sk = 3000, .flags = FXA_SINKS, .share = 1});
}

/* V is a third of the largest number, times the factor of dropout; with the largest number, results beyond it must be
 * infinite. (For f64, sums of the reference overflow too.) */
TEST(dropout) {
    large_case c = {.name = "dropout", .sq = 40, .sk = 700, .flags = FXA_DROPOUT, .dropout_p = 0.5, .share = 0.33};
    large_all(&c);
    c.sq = 1, c.sk = 3000;
    large_all(&c);
    c.sq = 40, c.sk = 30, c.share = 1, c.text = "mask = k <= q // 2";
    large_check(&c, FXA_F32, LARGE_DRAWN);
}

TEST(results_that_are_there) {
    large_all(&(large_case){.name = "joined", .sq = 40, .sk = 700, .flags = FXA_ACCUMULATE_O, .share = 0.25});
    large_all(&(large_case){.name = "joined", .sq = 1, .sk = 3000, .flags = FXA_ACCUMULATE_O, .share = 0.25});
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* dO is so small that dO V and its sums do not overflow. Tolerance as in test_cpu_backward.c, except where dP and delta
 * are equal and only their rounding errors remain. For bf16 only finiteness is tested. */
TEST(gradients_of_large_values) {
    static const fxa_dtype dtypes[] = {FXA_BF16, FXA_F32};
    large_case c = {.name = "gradients", .sq = 40, .sk = 300, .share = 1};
    for (int i = 0; i < 2 * LARGE_KINDS; i++) {
        T_ENDED(attn_drop) attn_kept want = {{NULL}};
        attn_owned x = {0};
        attn_tensor *t;
        if (!large_make(&x, &c, dtypes[i % 2], (large_kind)(i / 2))) return;
        for (int64_t j = 0; j < attn_tensor_places(&x.t[FXA_SLOT_DO]); j++)
            attn_set(&x.t[FXA_SLOT_DO], j, attn_get(&x.t[FXA_SLOT_DO], j) * 0x1p-10);
        bool ok = large_run(&x, "ref", FXA_FORWARD) && large_run(&x, "ref", FXA_BACKWARD);
        attn_keep(&x, FXA_BACKWARD, &want);
        ok = ok && large_run(&x, "cpu", FXA_BACKWARD);
        for (int j = 0; ok && (t = attn_output(&x, FXA_BACKWARD, j)); j++) {
            attn_off off = attn_tensor_off(t, want.memory[j]);
            bool exact = dtypes[i % 2] == FXA_F32 && i / 2 != LARGE_EQUAL;
            if (off.odd || (exact && !(off.rms <= 2e-6)))
                T_FAIL("V %s: %s is off by %.3g, %d odd\n", large_kinds[i / 2], t->name, off.rms, (int)off.odd);
        }
    }
}

T_MAIN
