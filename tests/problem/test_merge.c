/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge: merging attention over two sets of keys equals attention over all of them.
 */
#include "problem_case.h"

#include "base/dtype.h"
#include "problem/merge_row.h"

#define MERGE_KEYS 12
#define MERGE_D 70 /* more features than one step merges */

static double scores[MERGE_KEYS], values[MERGE_KEYS][MERGE_D];

/* Computes one row of attention over keys from..to-1 in f64; returns the LSE. */
static double merge_attend(int from, int to, double *o) {
    double m = -INFINITY, sum = 0;
    for (int k = from; k < to; k++) m = fmax(m, scores[k]);
    for (int i = 0; i < MERGE_D; i++) o[i] = 0;
    if (m == -INFINITY) return -INFINITY;
    for (int k = from; k < to; k++) sum += exp(scores[k] - m);
    for (int k = from; k < to; k++)
        for (int i = 0; i < MERGE_D; i++) o[i] += exp(scores[k] - m) / sum * values[k][i];
    return m + log(sum);
}

static fxa_merge_args merge_args(fxa_dtype o, fxa_dtype lse) {
    fxa_merge_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.b = a.h = a.s = 1;
    a.d = MERGE_D;
    a.o_a.dtype = a.o_b.dtype = (uint32_t)o;
    a.lse_a.dtype = a.lse_b.dtype = (uint32_t)lse;
    return a;
}

TEST(split_keys_join_again) {
    t_rng rng = {t_seed()};
    for (int n = t_scaled(500); n > 0; n--) {
        double o_a[MERGE_D], o_b[MERGE_D], want[MERGE_D];
        for (int k = 0; k < MERGE_KEYS; k++) {
            scores[k] = t_int(&rng, 0, 4) ? t_real(&rng, -8, 8) : -INFINITY;
            for (int i = 0; i < MERGE_D; i++) values[k][i] = t_real(&rng, -1, 1);
        }
        int split = (int)t_int(&rng, 0, MERGE_KEYS);
        double lse_a = merge_attend(0, split, o_a), lse_b = merge_attend(split, MERGE_KEYS, o_b),
               lse = merge_attend(0, MERGE_KEYS, want);
        fxa_merge_args a = merge_args(FXA_F64, FXA_F64);
        a.o_a_data = o_a, a.o_b_data = o_b, a.lse_a_data = &lse_a, a.lse_b_data = &lse_b;
        T_OK(fxa_merge(&a, &err));
        /* Each exp has the error of its argument (|x| <= 16: 8 ulp) and its own; two sums of 12 terms. */
        T_NEAR(lse_a, lse, 64 * 0x1p-53);
        for (int i = 0; i < MERGE_D; i++) T_NEAR(o_a[i], want[i], 128 * 0x1p-53);
    }
}

TEST(rows_that_attend_to_nothing) {
    const double inf = INFINITY, cases[][3] = {/* lse_a, lse_b, merged */
                                               {-inf, -inf, -inf}, {-inf, 2, 2},     {2, -inf, 2},     {NAN, 1, NAN},
                                               {1, NAN, NAN},      {NAN, -inf, NAN}, {-inf, NAN, NAN}, {inf, 1, NAN},
                                               {1, inf, NAN},      {-5000, 3, 3},    {3, -5000, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double o_a[2] = {0.1, -7}, o_b[2] = {0.3, NAN};
        double lse = cases[i][0], from_a[2] = {0.1, -7};
        fxa__merge_row(o_a, &lse, o_b, cases[i][1], 2);
        T_SAME(lse, cases[i][2]);
        for (int k = 0; k < 2; k++) {
            double side = cases[i][0] > cases[i][1] ? from_a[k] : o_b[k];
            T_SAME(o_a[k], lse != lse ? NAN : lse == -inf ? 0 : side);
        }
    }
}

/* A side without keys changes no bit of the other side, in any dtype, and a side with weight 0 is not read. */
TEST(one_side_comes_through_bit_for_bit) {
    const fxa_dtype dtypes[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16};
    t_rng rng = {t_seed()};
    for (int t = 0; t < 4; t++)
        for (int side = 0; side < 2; side++) {
            uint64_t a_bits[MERGE_D], b_bits[MERGE_D], keep[MERGE_D];
            float lse_a = side ? -INFINITY : 0.7f, lse_b = side ? 0.7f : -INFINITY;
            for (int i = 0; i < MERGE_D; i++) {
                fxa__store_f64(a_bits, dtypes[t], i, side ? 0 : t_real(&rng, -3, 3));
                fxa__store_f64(b_bits, dtypes[t], i, side ? t_real(&rng, -3, 3) : NAN);
            }
            size_t bytes = MERGE_D * fxa_dtype_size(dtypes[t]);
            memcpy(keep, side ? b_bits : a_bits, bytes);
            fxa_merge_args a = merge_args(dtypes[t], FXA_F32);
            a.o_a_data = a_bits, a.o_b_data = b_bits, a.lse_a_data = &lse_a, a.lse_b_data = &lse_b;
            T_OK(fxa_merge(&a, &err));
            T_CHECK(memcmp(a_bits, keep, bytes) == 0);
            T_SAME(lse_a, 0.7f);
        }
}

/* every operand by its own strides and dtype. */
TEST(layouts_and_dtypes) {
    enum { B = 2, H = 3, S = 4, D = 5 };
    double o_a[B * H * S * D];
    float o_b[S * B * H * D], lse_a[B * S * H];
    double lse_b[B * H * S];
    for (int i = 0; i < B * H * S * D; i++) o_a[i] = i, o_b[i] = (float)(1000 + i);
    for (int i = 0; i < B * H * S; i++) lse_a[i] = 0, lse_b[i] = 0;
    fxa_merge_args a = merge_args(FXA_F64, FXA_F32);
    a.b = B, a.h = H, a.s = S, a.d = D;
    a.o_a = (fxa_operand){FXA_F64, FXA_LAYOUT_STRIDED, {H * S * D, S * D, -D, 1}};
    a.o_b = (fxa_operand){FXA_F32, FXA_LAYOUT_SBHD, {0}};
    a.lse_a.layout = FXA_LAYOUT_BSHD;
    a.lse_b.dtype = FXA_F64;
    a.o_a_data = o_a + (S - 1) * D, a.o_b_data = o_b, a.lse_a_data = lse_a, a.lse_b_data = lse_b;
    T_OK(fxa_merge(&a, &err));
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int s = 0; s < S; s++) {
                T_SAME(lse_a[(b * S + s) * H + h], (float)log(2));
                for (int i = 0; i < D; i++) {
                    int at = ((b * H + h) * S + (S - 1 - s)) * D + i, other = ((s * B + b) * H + h) * D + i;
                    T_SAME(o_a[at], (at + 1000.0 + other) / 2);
                }
            }
}

TEST(empty_merges) {
    for (int i = 0; i < 4; i++) {
        float lse_a = 0, lse_b = 0;
        fxa_merge_args a = merge_args(FXA_F32, FXA_F32);
        a.lse_a_data = &lse_a, a.lse_b_data = &lse_b;
        *(int64_t *[]){&a.b, &a.h, &a.s, &a.d}[i] = 0;
        T_OK(fxa_merge(&a, &err));
        T_SAME(lse_a, i == 3 ? (float)log(2) : 0); /* the LSE is merged even without features */
    }
}

#define MERGE_REFUSED(status, words, change)                                                                           \
    do {                                                                                                               \
        float x[4 * MERGE_D], la[2] = {0}, lb[2] = {0};                                                                \
        memset(x, 0, sizeof x);                                                                                        \
        fxa_merge_args a = merge_args(FXA_F32, FXA_F32);                                                               \
        a.o_a_data = x, a.o_b_data = x + MERGE_D, a.lse_a_data = la, a.lse_b_data = lb;                                \
        change;                                                                                                        \
        T_STATUS(fxa_merge(&a, &err), status);                                                                         \
        T_HAS(err.text, words);                                                                                        \
    } while (0)

TEST(merge_refusals) {
    MERGE_REFUSED(FXA_E_STRUCT, "fxa_merge_args.struct_size is 8", a.struct_size = 8);
    MERGE_REFUSED(FXA_E_PROBLEM, "h is -1: accepted are 0 and more", a.h = -1);
    MERGE_REFUSED(FXA_E_PROBLEM, "o_a.dtype is none: accepted are f64, f32, f16, bf16, e4m3, e5m2", a.o_a.dtype = 0);
    MERGE_REFUSED(FXA_E_PROBLEM, "lse_b.dtype is f16: accepted are f64, f32", a.lse_b.dtype = FXA_F16);
    MERGE_REFUSED(FXA_E_PROBLEM, "o_b.layout is 9", a.o_b.layout = 9);
    MERGE_REFUSED(FXA_E_PROBLEM, "o_b.stride is set and o_b.layout is BHSD", a.o_b.stride[2] = 70);
    MERGE_REFUSED(FXA_E_PROBLEM, "o_a overlaps itself: sizes [1,1,1,70], strides [0,0,0,0]",
                  a.o_a.layout = FXA_LAYOUT_STRIDED);
    MERGE_REFUSED(FXA_E_PROBLEM, "lse_a overlaps itself", (a.s = 2, a.lse_a.layout = FXA_LAYOUT_STRIDED));
    MERGE_REFUSED(FXA_E_PROBLEM, "o_a is too large", a.b = a.h = a.s = INT64_C(1) << 40);
    MERGE_REFUSED(FXA_E_BINDING, "o_b_data is NULL", a.o_b_data = NULL);
    MERGE_REFUSED(FXA_E_BINDING, "f32 needs a multiple of 4", a.lse_a_data = (char *)la + 2);
    MERGE_REFUSED(FXA_E_BINDING, "o_a and o_b overlap in memory", a.o_b_data = x + MERGE_D - 1);
    MERGE_REFUSED(FXA_E_BINDING, "lse_a and lse_b overlap in memory", a.lse_b_data = la);
    MERGE_REFUSED(FXA_E_BINDING, "o_a_data is",
                  (a.s = 2, a.o_a = (fxa_operand){FXA_F32, FXA_LAYOUT_STRIDED, {0, 0, -(INT64_C(1) << 55), 1}}));
    MERGE_REFUSED(FXA_E_ARGUMENT, "fxa_merge_args.reserved is 1: accepted is 0", a.reserved = 1);
    T_STATUS(fxa_merge(NULL, &err), FXA_E_ARGUMENT);
}

/* Strides that interleave in millions of ways cannot be proven disjoint and are refused. No memory is written. */
TEST(merge_refuses_what_it_cannot_tell) {
    if (sizeof(void *) < 8) T_SKIP("these tensors need addresses of 64 bits");
    fxa_merge_args a = merge_args(FXA_F32, FXA_F32);
    float lse[2];
    a.b = 121, a.h = 103, a.s = 169, a.d = 74;
    a.o_a = (fxa_operand){FXA_F32, FXA_LAYOUT_STRIDED, {3462461184, 4202016, 4144, 8}};
    a.o_b = (fxa_operand){FXA_F32, FXA_LAYOUT_STRIDED, {9980791099, 10782056248, 12553594139, 4934013447}};
    a.o_a_data = (void *)(uintptr_t)(1 << 24);
    a.o_b_data = (char *)a.o_a_data + 750681725716;
    a.lse_a_data = &lse[0], a.lse_b_data = &lse[1];
    T_STATUS(fxa_merge(&a, &err), FXA_E_BINDING);
    T_HAS(err.text, "o_a and o_b may overlap in memory: their strides interleave in too many ways to tell");
}

T_MAIN
