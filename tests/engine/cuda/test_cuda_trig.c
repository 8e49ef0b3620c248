/* SPDX-License-Identifier: Apache-2.0
 *
 * sin, cos and tan of the cuda engine (common/trig.cuh) on the host, compared with long double: within 2 and 4 ulp for
 * floats of every magnitude, odd and even symmetry, NaN for non-finite operands, signs of zeros.
 */
#include "engine/all/host_device.h"
#include "t.h"

#include <math.h>
#include <stdint.h>

static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fsub_rn(float x, float y) { return x - y; }

#include "engine/cuda/kernels/common/trig.cuh"

static void turns_check(const char *name, float x, float got, double want, double ulps) {
    int power;
    (void)frexp(want, &power);
    double unit = ldexp(1, power - 24 < -149 ? -149 : power - 24);
    if (!(fabs((double)got - want) <= ulps * unit))
        T_FAIL("%s(%a) is %a, not %a\n", name, (double)x, (double)got, want);
}

static void turns_check_all(float x) {
    long double s = sinl((long double)x), c = cosl((long double)x);
    turns_check("sin", x, score_sin(x), (double)s, 2);
    turns_check("cos", x, score_cos(x), (double)c, 2);
    turns_check("tan", x, score_tan(x), (double)(s / c), 4);
    T_CHECK(score_sin(-x) == -score_sin(x) && score_cos(-x) == score_cos(x) && score_tan(-x) == -score_tan(x));
}

TEST(floats_of_every_size) {
    t_rng r = {t_seed()};
    uint32_t step = (uint32_t)t_int(&r, 20000, 30000);
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += step) turns_check_all(__int_as_float((int)bits));
}

/* Multiples of pi / 2 and the adjacent floats, where the range reduction cancels most digits of x. */
TEST(near_quarters_of_a_turn) {
    t_rng r = {t_seed()};
    for (int i = 1; i < t_scaled(200000); i++) {
        double quarters = i < 100000 ? i : t_real_scaled(&r, 1, 2, 16, 52);
        float x = (float)(floor(quarters) * 1.5707963267948966);
        turns_check_all(x);
        turns_check_all(nextafterf(x, 0));
        turns_check_all(nextafterf(x, INFINITY));
    }
    turns_check_all(0x1.f2c96ap+119f * 16); /* any large ones */
    turns_check_all(0x1.fffffep+127f);
    turns_check_all(TRIG_MAX_REDUCED);
    turns_check_all(nextafterf(TRIG_MAX_REDUCED, INFINITY));
}

TEST(what_is_not_finite_and_zeros) {
    static const float none[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++)
        T_CHECK(isnan(score_sin(none[i])) && isnan(score_cos(none[i])) && isnan(score_tan(none[i])));
    T_CHECK(!signbit(score_sin(0.f)) && signbit(score_sin(-0.f)) && score_cos(-0.f) == 1);
    T_CHECK(!signbit(score_tan(0.f)) && signbit(score_tan(-0.f)));
}

T_MAIN
