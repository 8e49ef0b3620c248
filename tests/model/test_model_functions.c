/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of the functions of common/softcap_tanh.cuh, compared with f64: tanh by score_tanh, by score_softcap_series
 * near 0, and by score_softcap_four. On a GPU (FXA_TEST_MODEL=device, model_fixture.h) every f32 of both signs from
 * 2^-40 to 32 is an argument; on the GPU emulator, whose exp2 and reciprocal are those of the host, a sample.
 */
#include "model_fixture.h"

enum { FUNCTIONS_FIRST = 0x2B800000, FUNCTIONS_END = 0x42000000 }; /* bits of 2^-40 and of 32 */
enum { FUNCTIONS_NUMBERS = 8, FUNCTIONS_COUNT = 1 << 19, FUNCTIONS_SAMPLE = 1 << 16 };
static const double functions_log2e = 1.4426950408889634;

/* Coefficients, equal to those of fill_tanh of codegen/host_values.c. */
static const double functions_terms[] = {0.9999999268692358, -0.33332309972578855, 0.1331017362435341,
                                         -0.05210147853455042, 0.015475425267545645};

static float functions_in[FUNCTIONS_NUMBERS + FUNCTIONS_COUNT];

static bool functions_run(const char *kernel, int way, int n, rig_run *r) {
    *r = rig_of(256, 0, way, n);
    r->unit = RIG_FUNCTIONS, r->grid[0] = rig_state ? 4 : 1024;
    r->in = functions_in, r->in_bytes = (size_t)(FUNCTIONS_NUMBERS + n) * 4, r->out_bytes = (size_t)n * 4;
    int status = rig_launch(kernel, r);
    T_INT(status, 0);
    return status == 0;
}

static float functions_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the largest error of n results of tanh, in ulps of the exact value. */
static double functions_worst_ulps(const rig_run *r) {
    double worst = 0;
    for (int i = 0; i < r->n; i++) {
        double exact = tanh((double)functions_in[FUNCTIONS_NUMBERS + i]);
        double error = fabs((double)rig_float(r->out[i]) - exact) / ldexp(1, ilogb(exact) - 23);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

TEST(tanh_of_every_float) {
    NEEDS_RIG;
    const uint32_t step = rig_state ? 16411 : 1; /* a prime */
    for (int i = 0; i < 5; i++) functions_in[i] = (float)functions_terms[i];
    for (int way = 0; way < 2; way++) {
        double worst = 0;
        for (uint32_t sign = 0; sign < 2; sign++)
            for (uint32_t bits = FUNCTIONS_FIRST; bits < FUNCTIONS_END;) {
                rig_run r;
                int n = 0;
                for (; n < FUNCTIONS_COUNT && bits < FUNCTIONS_END; n++, bits += step)
                    functions_in[FUNCTIONS_NUMBERS + n] = functions_float(sign << 31 | bits);
                if (!functions_run("fxa_tanh", way, n, &r)) return;
                double here = functions_worst_ulps(&r);
                if (!(here <= worst)) worst = here;
            }
        printf("  tanh%s within %.2f ulp\n", way ? " with a series near 0" : "", worst);
        T_CHECK(worst <= 4);
    }
}

/* Draws groups of four scores with exponents up to the limit of 28: equal, opposite and unrelated scores, and small
 * ones beside large ones. */
static void functions_draw(t_rng *rng, double limit, int n) {
    float *s = functions_in + FUNCTIONS_NUMBERS;
    for (int i = 0; i < n; i += 4) {
        double x = limit * (2.0 * i / n - 1);
        s[i] = (float)x, s[i + 1] = (float)-x, s[i + 2] = (float)t_real(rng, -limit, limit);
        s[i + 3] = (float)(i % 8 ? x / 64 : i % 3 ? limit : -limit);
    }
}

/* The error of a soft cap, which a cap of 1 means the backward kernels take, is at most 2^-20 of the cap. */
TEST(tanh_of_four_scores_by_one_reciprocal) {
    NEEDS_RIG;
    static const double caps[] = {1, 0.0867, 0.5, 5, 20, 50, 64, -0.0867, -20, -64};
    const int n = rig_state ? FUNCTIONS_SAMPLE : FUNCTIONS_COUNT, rounds = rig_state ? 1 : 32;
    t_rng rng = {t_seed()};
    double worst = 0;
    for (int i = 0; i < 10 * rounds; i++) {
        const double cap = caps[i % 10], unit = cap == 1 ? 1 : cap * functions_log2e;
        const float factor = (float)(2 * functions_log2e * 0.0884 / fabs(cap)), u = (float)unit;
        functions_in[0] = factor, functions_in[1] = (float)(-0.5 / unit), functions_in[2] = u;
        functions_draw(&rng, 28 / (double)factor * (1 - 0x1p-20), n);
        rig_run r;
        if (!functions_run("fxa_tanh_four", 0, n, &r)) return;
        for (int j = 0; j < n; j++) {
            double x = (double)functions_in[FUNCTIONS_NUMBERS + j] * ((double)factor / (2 * functions_log2e));
            double error = fabs((double)rig_float(r.out[j]) / (double)u - tanh(x)) * 0x1p20;
            if (!(error <= worst)) worst = error;
        }
    }
    printf("  2^-20 times %.2f by four scores\n", worst);
    T_CHECK(worst <= 1);
}

T_MAIN
