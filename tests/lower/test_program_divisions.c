/* SPDX-License-Identifier: Apache-2.0
 *
 * Int quotients and remainders of emitted text (lower/program_ops.h), compared with 64-bit arithmetic: at the ends of
 * the range, near multiples of the divisor, and anywhere.
 */
#include "lower/program_ops.h"
#include "t.h"

static int64_t down(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static void division_check(int32_t a, int32_t b) {
    int64_t q = b ? down(a, b) : 0, r = b ? a - q * b : 0;
    int32_t wrapped = (int32_t)(uint32_t)(uint64_t)q;
    bool ok = fxa__floordiv32(a, b) == wrapped && fxa__floormod32(a, b) == r;
    if (a >= 0) ok = ok && fxa__plusdiv32(a, b) == wrapped && fxa__plusmod32(a, b) == r;
    if (!ok) T_FAIL("%d by %d\n", a, b);
}

TEST(divisions) {
    static const int32_t ends[] = {0,  1,     -1,     2,     -2,        3,          -3,       7,
                                   -7, 65535, -65536, 46341, INT32_MAX, -INT32_MAX, INT32_MIN};
    uint64_t draw = t_seed();
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (size_t j = 0; j < sizeof ends / sizeof *ends; j++) division_check(ends[i], ends[j]);
    for (int i = 0; i < 2000000; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        int32_t a = (int32_t)(uint32_t)(draw >> 32), b = (int32_t)(uint32_t)draw >> (draw >> 58 & 31u);
        uint32_t near = (uint32_t)(a / (b > 0 ? b : 1)) * (uint32_t)b;
        division_check(i % 3 ? a >> (draw >> 20 & 31u) : (int32_t)(near - (i % 2 != 0)), b);
    }
}

T_MAIN
