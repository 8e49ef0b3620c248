/* SPDX-License-Identifier: Apache-2.0
 *
 * 16-bit numbers and matrices on the GPU emulator; layouts are compared with plain sums on the host. model_fixture.h
 * explains the environment variables.
 */
#include "model_fixture.h"

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static float check_floats[1 << 16];

static uint16_t narrow_of(double x, bool half) { return half ? fxa__f64_to_f16(x) : fxa__f64_to_bf16(x); }

static bool is_nan16(uint16_t x, bool half) { return half ? (x & 0x7fff) > 0x7c00 : (x & 0x7fff) > 0x7f80; }

/* Returns true if z <= x + y exactly: a double has not all bits of the sum, and `left` has the rest. */
static bool is_at_most_sum(float z, float x, float y) {
    const double sum = (double)x + (double)y, part = sum - (double)x;
    const double left = ((double)x - (sum - part)) + ((double)y - part);
    return (double)z < sum || ((double)z == sum && left >= 0);
}

static bool check_numbers(const rig_run *r) {
    const bool half = r->unit == RIG_PRODUCTS_F16;
    int bad = 0;
    for (int i = 0; i < r->n; i++) {
        const int32_t *got = r->out + 5 * i;
        const double wide = half ? fxa__f16_to_f64((uint16_t)i) : fxa__bf16_to_f64((uint16_t)i);
        const float x = check_floats[i], y = check_floats[(i + 1) % r->n];
        const uint16_t narrow = narrow_of((double)x, half), other = narrow_of(-(double)x, half);
        const uint16_t low = (uint16_t)got[1], high = (uint16_t)((uint32_t)got[1] >> 16), one = (uint16_t)got[2];
        const float down = rig_float(got[3]), most = rig_float(got[4]);
        const bool nan = wide != wide;
        bool ok = nan ? rig_float(got[0]) != rig_float(got[0]) : (double)rig_float(got[0]) == wide;
        ok = ok && (is_nan16(narrow, half) ? is_nan16(low, half) && is_nan16(high, half) && is_nan16(one, half)
                                           : low == narrow && high == other && one == narrow);
        ok = ok && got[2] >> 16 == !nan;
        if (fabsf(x + y) > 1e-30f && fabsf(x + y) < 1e30f)
            ok = ok && is_at_most_sum(down, x, y) && !is_at_most_sum(nextafterf(down, INFINITY), x, y);
        ok = ok && (i % 5 == 0 || x != x ? most != most : most == (x > 1.f ? x : 1.f));
        bad += !ok;
    }
    return bad == 0;
}

TEST(numbers_of_16_bits) {
    NEEDS_RIG;
    t_rng rng = {t_seed()};
    for (int i = 0; i < 1 << 16; i++) {
        const int how = i % 4;
        check_floats[i] = (float)t_real_scaled(&rng, -1, 1, how ? -30 : -100, how ? 18 : 60);
        if (how == 3) check_floats[i] = (float)fxa__f16_to_f64((uint16_t)(i / 4)) * (1 + 0x1p-11f); /* between two */
    }
    check_floats[0] = INFINITY, check_floats[1] = -INFINITY, check_floats[2] = NAN, check_floats[3] = -0.f;
    for (int half = 0; half < 2; half++) {
        rig_run r = rig_of(128, 0, 0, 1 << 16);
        r.unit = half ? RIG_PRODUCTS_F16 : RIG_PRODUCTS, r.in = check_floats, r.in_bytes = sizeof check_floats,
        r.out_bytes = 5 << 18;
        T_INT(rig_launch("fxa_numbers", &r), 0);
        T_CHECK(check_numbers(&r));
    }
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

static uint16_t word_of(const int32_t *words, int i) { return (uint16_t)((uint32_t)words[i / 2] >> 16 * (i % 2)); }

static bool check_matrices(const rig_run *r) {
    bool ok = true;
    const int32_t *in = r->in, *out = r->out;
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++)
            for (int half = 0; half < 2; half++) {
                const int i = lane * 8 + m * 2 + half, row = lane / 4, column = lane % 4 * 2 + half;
                ok = ok && word_of(out, i) == word_of(in, (m * 8 + row) * 8 + column);
                ok = ok && word_of(out + 128, i) == word_of(in, (m * 8 + column) * 8 + row);
            }
    for (int i = 0; i < 256; i++) {
        const int m = i / 64, row = i / 8 % 8, column = i % 8;
        ok = ok && word_of(out + 256, i) == word_of(in, i);
        ok = ok && word_of(out + 384, i) == word_of(in, m * 64 + column * 8 + row);
    }
    for (int i = 0; i < 64; i++) ok = ok && word_of(out + 512, i) == word_of(in, i % 8 * 8 + i / 8);
    return ok;
}

TEST(matrices_of_8_by_8) {
    NEEDS_RIG;
    int32_t in[128];
    for (int i = 0; i < 128; i++) in[i] = (2 * i + 1) | (2 * i + 2) << 16;
    rig_run r = rig_of(32, 1536, 0, 0);
    r.unit = RIG_PRODUCTS, r.in = in, r.in_bytes = sizeof in, r.out_bytes = 544 * 4;
    rig_right("fxa_matrices", &r, check_matrices);
}

static double product_left[64][64], product_right[256][64]; /* right: columns */

static void product_draw(uint16_t *in, int rows, int columns, int deep, bool half) {
    t_rng rng = {t_seed() + (uint64_t)columns};
    for (int i = 0; i < rows * deep + columns * deep; i++) {
        double x = (double)t_int(&rng, -8, 8) / 4; /* sums are exact */
        in[i] = narrow_of(x, half);
        if (i < rows * deep)
            product_left[i / deep][i % deep] = x;
        else
            product_right[i / deep - rows][i % deep] = x;
    }
}

static bool check_product(const rig_run *r, int rows, int columns, int deep, double from) {
    int bad = 0;
    for (int i = 0; i < rows * columns; i++) {
        double sum = from;
        for (int k = 0; k < deep; k++) sum += product_left[i / columns][k] * product_right[i % columns][k];
        bad += (double)rig_float(r->out[i]) != sum;
    }
    return bad == 0;
}

static bool check_mma(const rig_run *r) { return check_product(r, 16, 8, 16, 1); }
static bool check_wgmma(const rig_run *r) { return check_product(r, 64, r->n, 64, 0); }

TEST(a_product_of_a_warp) {
    NEEDS_RIG;
    for (int half = 0; half < 2; half++) {
        uint16_t in[24 * 16];
        product_draw(in, 16, 8, 16, half);
        rig_run r = rig_of(32, 0, 0, 0);
        r.unit = half ? RIG_PRODUCTS_F16 : RIG_PRODUCTS, r.in = in, r.in_bytes = sizeof in, r.out_bytes = 16 * 8 * 4;
        rig_right("fxa_mma", &r, check_mma);
    }
}

enum { WG_HELD = 1, WG_TRANSPOSED = 2, WG_EARLY = 4, WG_OVERWRITTEN = 8, WG_CHANGED = 16, WG_PART = 32 };

static rig_run product_run(int columns, int way, bool half, uint16_t *in) {
    rig_run r = rig_of(128, (unsigned)(64 + (columns + 63) / 64 * 64) * 128, way, columns);
    product_draw(in, 64, columns, 64, half);
    r.unit = half ? RIG_PRODUCTS_F16 : RIG_PRODUCTS, r.in = in, r.in_bytes = (size_t)(64 + columns) * 128,
    r.out_bytes = (size_t)columns * 256;
    return r;
}

TEST(products_of_a_group_of_warps) {
    static const int columns[] = {32, 64, 96, 128, 192, 256};
    static uint16_t in[(64 + 256) * 64];
    NEEDS_RIG;
    for (int i = 0; i < 6; i++)
        for (int way = 0; way < 4; way++)
            for (int half = 0; half < 2; half++) {
                if (!(way & WG_HELD) && columns[i] != 32 && columns[i] != 64 && columns[i] != 128) continue;
                rig_run r = product_run(columns[i], way, half, in);
                for (int k = 0; k < 5; k++) {
                    const char *words = rig_state ? rig_state->words : "";
                    if (rig_launch("fxa_wgmma", &r) || !check_wgmma(&r))
                        T_FAIL("%d columns, way %d, f16 %d: wrong %s\n", columns[i], way, half, words);
                }
            }
}

TEST(products_are_there_after_the_wait_and_read_until_then) {
    static const int mistakes[] = {WG_EARLY, WG_OVERWRITTEN, WG_HELD | WG_CHANGED, WG_PART};
    static uint16_t in[(64 + 256) * 64];
    NEEDS_MODEL;
    for (int i = 0; i < 4; i++) {
        rig_run r = product_run(64, mistakes[i] | WG_TRANSPOSED, false, in);
        rig_wrong("fxa_wgmma", &r, check_wgmma);
        bool any = false; /* correct if all jobs complete early: some runs are right, not all */
        for (int k = 0; k < RIG_TIMES && !any; k++) any = rig_launch("fxa_wgmma", &r) == 0 && check_wgmma(&r);
        if (!any) T_FAIL("mistake %d is wrong in every order\n", mistakes[i]);
    }
}

T_MAIN
