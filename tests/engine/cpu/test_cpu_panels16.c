/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel sets that multiply in bf16: contents of panels, packed from floats and from storage, and the problems for
 * which the sets are selected. Runs twice, like test_cpu_kernels16.c, which tests the products.
 */
#include "k16_fixture.h"

#if defined(__x86_64__)

/* ---- Panels ------------------------------------------------------------------------------------------------------ */

/* Returns the 32-bit word (pair, column) of the matrix B [k,n], whose element (i, j) is at x[i * rs + j * cs]. */
static uint32_t k16_word(const float *x, int64_t rs, int64_t cs, int64_t k, int64_t n, int64_t pair, int64_t j) {
    uint32_t low = j < n ? k16_bits(x[2 * pair * rs + j * cs]) : 0;
    uint32_t high = j < n && 2 * pair + 1 < k ? k16_bits(x[(2 * pair + 1) * rs + j * cs]) : 0;
    return high << 16 | low;
}

static void k16_check_panels(const fxa__cpu_kernels *kernels, const char *what, const float *x, int64_t rs, int64_t cs,
                             int64_t k, int64_t n) {
    int64_t nr = kernels->nr, count = (n + nr - 1) / nr, wrong = 0, outside = 0;
    for (int64_t p = 0; p < count; p++)
        for (int64_t i = 0; i < k * nr; i++) {
            uint32_t word = k16_panels[p * k * nr + i];
            if (i / nr < (k + 1) / 2)
                wrong += word != k16_word(x, rs, cs, k, n, i / nr, p * nr + i % nr);
            else
                outside += word != K16_CANARY;
        }
    for (int64_t i = count * k * nr; i < K16_FLOATS; i++) outside += k16_panels[i] != K16_CANARY;
    if (wrong || outside)
        T_FAIL("%s %s, k %" PRId64 ", n %" PRId64 ": %" PRId64 " words wrong, %" PRId64 " written outside\n",
               kernels->isa, what, k, n, wrong, outside);
}

TEST(panels_hold_pairs_and_zeroes) {
    static const int64_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 100, 129};
    enum { N = sizeof sizes / sizeof sizes[0] };
    t_rng rng = {t_seed()};
    k16_fill(k16_x, K16_FLOATS, &rng);
    k16_x[3] = NAN, k16_x[5] = INFINITY, k16_x[7] = 0x1p-130f, k16_x[9] = -0.0f, k16_x[11] = 1 + 0x1p-8f;
    K16_EACH(k) {
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                int64_t n = sizes[i], d = sizes[j], ld = d + (i + j) % 3;
                k16_canaries(k16_panels);
                k.micro.pack_t(k16_panels, k16_x, ld, n, d);
                k16_check_panels(&k, "pack_t", k16_x, 1, ld, d, n);
                k16_canaries(k16_panels);
                k.micro.pack_n(k16_panels, k16_x, ld, n, d);
                k16_check_panels(&k, "pack_n", k16_x, ld, 1, n, d);
            }
    }
}

TEST(panels_straight_from_storage_are_the_same) {
    static uint16_t stored[130 * 140];
    t_rng rng = {t_seed()};
    for (int i = 0; i < 130 * 140; i++) {
        stored[i] = fxa__f64_to_bf16(t_real(&rng, -2, 2));
        k16_x[i] = (float)fxa__bf16_to_f64(stored[i]);
    }
    K16_EACH(k) {
        for (int n = t_scaled(200); n > 0; n--) {
            int64_t rows = t_int(&rng, 1, 130), d = t_int(&rng, 1, 135), ld = d + t_int(&rng, 0, 5);
            k16_canaries(k16_panels);
            k.pairs.pack_t_stored(k16_panels, stored, ld, rows, d);
            k16_check_panels(&k, "pack_t_stored", k16_x, 1, ld, d, rows);
            k16_canaries(k16_panels);
            T_CHECK(k.pairs.pack_n_stored(k16_panels, stored, ld, rows, d));
            k16_check_panels(&k, "pack_n_stored", k16_x, ld, 1, rows, d);
            int64_t at = t_int(&rng, 0, rows - 1) * ld + t_int(&rng, 0, d - 1);
            uint16_t kept = stored[at];
            stored[at] = (uint16_t)(0x7f80 + t_int(&rng, 0, 1) * 0x8000 + t_int(&rng, 0, 1) * t_int(&rng, 1, 127));
            T_CHECK(!k.pairs.pack_n_stored(k16_panels, stored, ld, rows, d)); /* inf or NaN */
            stored[at] = 0xff7f;                                              /* the largest number */
            T_CHECK(k.pairs.pack_n_stored(k16_panels, stored, ld, rows, d));
            stored[at] = kept;
            if (ld > d) { /* values between rows have no effect */
                kept = stored[d];
                stored[d] = 0x7fc0;
                T_CHECK(k.pairs.pack_n_stored(k16_panels, stored, ld, rows, d));
                stored[d] = kept;
            }
        }
    }
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

static const char *k16_chosen(const char *forced, size_t real_size, uint32_t dtype) {
    static char reason[200];
    if (forced)
        (void)setenv("FXA_CPU", forced, 1);
    else
        (void)unsetenv("FXA_CPU");
    const fxa__cpu_kernels *k = fxa__cpu_select(real_size, dtype, reason, sizeof reason);
    (void)unsetenv("FXA_CPU");
    return k ? k->isa : reason;
}

TEST(sets_that_round_are_for_bf16_alone) {
    bool usable;
    for (size_t i = 0; fxa__cpu_set_bf16(i, &usable); i++) {
        const char *name = fxa__cpu_set_bf16(i, &usable)->isa;
        if (!usable) {
            T_HAS(k16_chosen(name, sizeof(float), FXA_BF16), "lacks");
            continue;
        }
        T_STR(k16_chosen(name, sizeof(float), FXA_BF16), name);
        T_STR(k16_chosen(name, sizeof(float), FXA_F32), "avx512");
        T_STR(k16_chosen(name, sizeof(float), FXA_F16), "avx512");
        T_STR(k16_chosen(name, sizeof(double), FXA_F64), "avx512");
        T_STR(k16_chosen("avx512", sizeof(float), FXA_BF16), "avx512");
    }
    T_STR(k16_chosen("scalar", sizeof(float), FXA_BF16), "scalar");
    T_HAS(k16_chosen("avx1024", sizeof(float), FXA_BF16), "avx512-bf16, amx");
    for (uint32_t dtype = FXA_F64; dtype <= FXA_BF16; dtype++) {
        const char *first = k16_chosen(NULL, dtype == FXA_F64 ? 8 : 4, dtype);
        if (dtype != FXA_BF16) T_CHECK(strcmp(first, "amx") != 0 && strcmp(first, "avx512-bf16") != 0);
        T_STR(k16_chosen(NULL, dtype == FXA_F64 ? 8 : 4, dtype), first); /* every call selects the same set */
    }
    printf("  bf16 problems use %s\n", k16_chosen(NULL, sizeof(float), FXA_BF16));
}

#else
TEST(sets_that_round) { T_SKIP("this processor has none"); }
#endif

T_MAIN
