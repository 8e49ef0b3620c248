/* SPDX-License-Identifier: Apache-2.0
 *
 * Order-independent sums of the cuda engine's captured gradients (common/exact_sum.cuh), on the host: the same bits in
 * any order, and exact; compared with integers where integers suffice, and with cancelling large numbers.
 */
#include "exact_fixture.h"
#include "t.h"

#include <math.h>

static void exact_shuffle(t_rng *r, float *x, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)t_int(r, 0, i);
        float y = x[i];
        x[i] = x[j], x[j] = y;
    }
}

static struct FxaExact exact_of(const float *x, int n) {
    struct FxaExact sum = {{0}, 0, 0};
    for (int i = 0; i < n; i++) exact_add(&sum, x[i]);
    return sum;
}

/* Returns any finite float: subnormal or large, of both signs. */
static float exact_any(t_rng *r) {
    u32 bits = (u32)t_int(r, 0, UINT32_MAX);
    if ((bits >> 23 & 255) == 255) bits &= ~(1u << 23);
    return __int_as_float((int)bits);
}

TEST(order_makes_no_difference) {
    t_rng r = {t_seed()};
    float x[200];
    for (int round = 0; round < t_scaled(300); round++) {
        int n = (int)t_int(&r, 1, 200), narrow = (int)t_int(&r, 0, 1);
        for (int i = 0; i < n; i++) x[i] = narrow ? (float)t_real(&r, -1, 1) : exact_any(&r);
        struct FxaExact first = exact_of(x, n), pair[2] = {first, first};
        exact_shuffle(&r, x, n);
        pair[1] = exact_of(x, n);
        T_CHECK(memcmp(&first, &pair[1], sizeof first) == 0);
        for (int i = 0; i < n; i++) exact_add(&pair[1], -x[i]); /* the sum must be 0 again */
        for (int i = 0; i < FXA_CUDA_EXACT; i++) T_CHECK(pair[1].word[i] == 0);
    }
}

/* Many multiples of 2^-20 below 2^20, whose sum is exact in 64-bit integers. */
TEST(the_sum_of_whole_numbers) {
    t_rng r = {t_seed()};
    for (int round = 0; round < t_scaled(100); round++) {
        struct FxaExact sum = {{0}, 0, 0}, wide = sum;
        int64_t whole = 0;
        for (int i = 0; i < 1000; i++) {
            int64_t m = t_int(&r, -(1 << 23), 1 << 23) * (INT64_C(1) << t_int(&r, 0, 16));
            whole += m;
            exact_add(&sum, (float)m * 0x1p-20f);
            exact_add_double(&wide, (double)m * 0x1p-20);
        }
        T_CHECK(exact_value(&sum) == (double)whole * 0x1p-20);
        T_CHECK(memcmp(&sum, &wide, sizeof sum) == 0);
    }
}

TEST(a_small_rest_of_large_numbers) {
    static const float x[] = {0x1p127f, 0x1p-149f, 3e38f, -1.5f, -0x1p127f, 0x1p-126f, -3e38f, 1.5f};
    struct FxaExact sum = exact_of(x, 8);
    T_CHECK(exact_value(&sum) == 0x1p-149 + 0x1p-126);
    for (int i = 0; i < 100; i++) exact_add(&sum, 3.4e38f); /* past the floats */
    T_CHECK(fabs(exact_value(&sum) / (100 * (double)3.4e38f) - 1) < 0x1p-51);
    for (int i = 0; i < 200; i++) exact_add(&sum, -3.4e38f);
    T_CHECK(fabs(exact_value(&sum) / (-100 * (double)3.4e38f) - 1) < 0x1p-51);
}

TEST(doubles) {
    t_rng r = {t_seed()};
    for (int round = 0; round < t_scaled(2000); round++) {
        double x = t_real_scaled(&r, -1, 1, -90, 160);
        struct FxaExact sum = {{0}, 0, 0};
        exact_add_double(&sum, x);
        T_CHECK(exact_value(&sum) == x);
    }
    struct FxaExact sum = {{0}, 0, 0};
    exact_add_double(&sum, 0x1.8p-149); /* cut */
    T_CHECK(exact_value(&sum) == 0x1p-149);
    exact_add_double(&sum, -0x1p-150);
    exact_add_double(&sum, 1e-320);
    T_CHECK(exact_value(&sum) == 0x1p-149);
    exact_add_double(&sum, -1e300); /* beyond the range of the sum */
    T_CHECK(exact_value(&sum) == -INFINITY);
}

TEST(what_is_not_finite) {
    struct FxaExact sum = {{0}, 0, 0}, other = sum;
    exact_add(&sum, 1);
    exact_add(&sum, INFINITY);
    exact_add(&sum, -2);
    T_CHECK(exact_value(&sum) == INFINITY);
    exact_add(&sum, -INFINITY);
    T_CHECK(isnan(exact_value(&sum)));
    exact_add_double(&other, (double)NAN);
    exact_add(&other, INFINITY);
    T_CHECK(isnan(exact_value(&other)));
}

T_MAIN
