/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel sets that multiply in bf16: products of rows and of decoding, special values, no access outside of operands.
 * Panels and the selection of sets are in test_cpu_panels16.c. Runs twice: with the processor's instructions if it has
 * them, and emulated.
 */
#include "k16_fixture.h"
#include "support/memory/guard.h"

#if defined(__x86_64__)

static float k16_a[K16_FLOATS], k16_c[K16_FLOATS], k16_old[K16_FLOATS];
static uint32_t k16_pairs[K16_FLOATS];

static void k16_gemm(const fxa__cpu_kernels *k, int64_t m, int64_t n, int64_t depth, const float *a, int64_t rs,
                     int64_t cs, const void *b, int64_t panel, float *c, int64_t ldc, const float *beta) {
    if (k->enter) k->enter();
    k->micro.gemm(m, n, depth, a, rs, cs, b, panel, c, ldc, beta);
    if (k->leave) k->leave();
}

static void k16_gemm_pairs(const fxa__cpu_kernels *k, int64_t m, int64_t n, int64_t depth, const uint32_t *a,
                           int64_t step, const void *b, int64_t panel, float *c, int64_t ldc, const float *beta) {
    if (k->enter) k->enter();
    k->pairs.gemm_pairs(m, n, depth, a, step, b, panel, c, ldc, beta);
    if (k->leave) k->leave();
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

typedef struct k16_case {
    int64_t m, n, k, rs, cs, ldc, skip; /* skip: number of rows of the panels before k starts */
    bool beta;
} k16_case;

static k16_case k16_draw(t_rng *rng, int64_t nr) {
    static const int64_t rows[] = {1, 5, 11, 12, 13, 16, 17, 24, 31, 32, 33, 47, 48, 49, 60, 64, 96};
    k16_case c = {.m = rows[t_int(rng, 0, 16)], .n = t_int(rng, 1, 140), .k = t_int(rng, 1, 70)};
    c.beta = t_int(rng, 0, 1);
    if (t_int(rng, 0, 9) == 0) c.k = t_int(rng, 120, 600);
    if (t_int(rng, 0, 2) == 0) c.k = c.k / 32 * 32 + 32;
    c.skip = t_int(rng, 0, 1) ? 2 * t_int(rng, 0, 20) : 0;
    int64_t layout = t_int(rng, 0, 4);
    c.rs = layout < 2 ? c.k + t_int(rng, 0, 5) : layout < 4 ? 1 : 2;
    c.cs = layout < 2 ? 1 : layout < 4 ? c.m + t_int(rng, 0, 5) : 2 * c.m + 1;
    c.ldc = (c.n + nr - 1) / nr * nr + t_int(rng, 0, 3);
    return c;
}

/* Checks a product. Products of bf16 are exact in f32; each of the k + 2 additions may err by a unit of a partial
 * sum. */
static void k16_check_product(const fxa__cpu_kernels *kernels, const k16_case *c, const float *beta) {
    int64_t wide = (c->n + kernels->nr - 1) / kernels->nr * kernels->nr, outside = 0;
    double worst = 0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < wide; j++) {
            double sum = beta ? (double)beta[i] * (double)k16_old[i * c->ldc + j] : 0, size = fabs(sum);
            for (int64_t l = 0; j < c->n && l < c->k; l++) {
                double term = k16_round(k16_a[i * c->rs + l * c->cs]) * k16_round(k16_x[(c->skip + l) * c->n + j]);
                sum += term, size += fabs(term);
            }
            double off = fabs((double)k16_c[i * c->ldc + j] - sum) / (0x1p-24 * (double)(c->k + 2) * size + 0x1p-140);
            worst = off > worst || off != off ? off : worst;
        }
    for (int64_t i = 0; i < K16_FLOATS; i++)
        if (i / c->ldc >= c->m || i % c->ldc >= wide) outside += memcmp(&k16_c[i], &k16_old[i], sizeof(float)) != 0;
    if (!(worst <= 1) || outside)
        T_FAIL("%s, m %" PRId64 ", n %" PRId64 ", k %" PRId64 " from %" PRId64 ", strides %" PRId64 " %" PRId64 "%s:"
               " off by %g of what is allowed, %" PRId64 " written outside\n",
               kernels->isa, c->m, c->n, c->k, c->skip, c->rs, c->cs, beta ? ", beta" : "", worst, outside);
}

TEST(products_are_those_of_rounded_factors) {
    t_rng rng = {t_seed()};
    float beta[128];
    k16_fill(k16_a, K16_FLOATS, &rng);
    k16_fill(k16_x, K16_FLOATS, &rng);
    K16_EACH(k) {
        for (int n = t_scaled(150); n > 0; n--) {
            k16_case c = k16_draw(&rng, k.nr);
            int64_t rows = c.skip + c.k + t_int(&rng, 0, 3);
            for (int64_t i = 0; i < 128; i++) beta[i] = t_int(&rng, 0, 1) ? 1 : (float)t_real(&rng, 0, 1);
            k16_canaries(k16_panels); /* unpacked elements are NaN */
            k.micro.pack_n(k16_panels, k16_x, c.n, rows, c.n);
            k16_canaries(k16_c);
            int64_t wide = (c.n + k.nr - 1) / k.nr * k.nr;
            for (int64_t i = 0; c.beta && i < c.m; i++) k16_fill(k16_c + i * c.ldc, wide, &rng);
            memcpy(k16_old, k16_c, sizeof k16_c);
            const uint32_t *b = k16_panels + c.skip * k.micro.panel_row;
            k16_gemm(&k, c.m, c.n, c.k, k16_a, c.rs, c.cs, b, rows * k.nr, k16_c, c.ldc, c.beta ? beta : NULL);
            k16_check_product(&k, &c, c.beta ? beta : NULL);
        }
    }
}

/* Rows of pairs as panels hold them, with zeroes up to whole vectors; a row-major A may be rounded in place. */
static void k16_check_pairs(const fxa__cpu_kernels *k, const k16_case *c, int64_t step, int64_t shift) {
    int64_t filled = (c->k + 31) / 32 * 16, wrong = 0, outside = 0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < filled; j++) {
            const float *x = k16_a + i * c->rs + 2 * j * c->cs;
            uint32_t low = 2 * j < c->k ? k16_bits(x[0]) : 0, high = 2 * j + 1 < c->k ? k16_bits(x[c->cs]) : 0;
            wrong += k16_pairs[i * step + j] != (high << 16 | low);
        }
    for (int64_t i = 0; shift < 0 && i < K16_FLOATS; i++)
        if (i / step >= c->m || i % step >= filled) outside += k16_pairs[i] != K16_CANARY;
    if (wrong || outside)
        T_FAIL("%s, m %" PRId64 ", k %" PRId64 ", strides %" PRId64 " %" PRId64 ", step %" PRId64 ", in place %" PRId64
               ": %" PRId64 " words wrong, %" PRId64 " written outside\n",
               k->isa, c->m, c->k, c->rs, c->cs, step, shift, wrong, outside);
}

TEST(rounding_and_product_may_be_apart) {
    t_rng rng = {t_seed() + 2};
    float beta[128];
    k16_fill(k16_a, K16_FLOATS, &rng);
    k16_fill(k16_x, K16_FLOATS, &rng);
    K16_EACH(k) {
        for (int n = t_scaled(150); n > 0; n--) {
            k16_case c = k16_draw(&rng, k.nr);
            int64_t rows = c.skip + c.k + t_int(&rng, 0, 3), wide = (c.n + k.nr - 1) / k.nr * k.nr;
            int64_t step = (c.k + 31) / 32 * 16 + 16 * t_int(&rng, 0, 3), shift = -1;
            const void *from = k16_a;
            k16_canaries(k16_pairs);
            if (c.cs == 1 && t_int(&rng, 0, 1)) { /* in place, at an offset of some 32-bit words */
                shift = 16 * t_int(&rng, 0, 2);
                step = (c.k + 31) / 32 * 32 + shift;
                for (int64_t i = 0; i < c.m; i++)
                    memcpy(k16_pairs + i * step + shift, k16_a + i * c.rs, (size_t)c.k * sizeof(float));
                from = k16_pairs + shift;
            }
            k.pairs.round(k16_pairs, step, c.m, c.k, from, shift < 0 ? c.rs : step, c.cs);
            k16_check_pairs(&k, &c, step, shift);
            for (int64_t i = 0; i < 128; i++) beta[i] = t_int(&rng, 0, 1) ? 1 : (float)t_real(&rng, 0, 1);
            k16_canaries(k16_panels);
            k.micro.pack_n(k16_panels, k16_x, c.n, rows, c.n);
            k16_canaries(k16_c);
            for (int64_t i = 0; c.beta && i < c.m; i++) k16_fill(k16_c + i * c.ldc, wide, &rng);
            memcpy(k16_old, k16_c, sizeof k16_c);
            const uint32_t *b = k16_panels + c.skip * k.micro.panel_row;
            k16_gemm_pairs(&k, c.m, c.n, c.k, k16_pairs, step, b, rows * k.nr, k16_c, c.ldc, c.beta ? beta : NULL);
            k16_check_product(&k, &c, c.beta ? beta : NULL);
        }
    }
}

TEST(transposes_are_added_inside_alone) {
    t_rng rng = {t_seed() + 3};
    k16_fill(k16_x, K16_FLOATS, &rng);
    K16_EACH(k) {
        for (int n = t_scaled(100); n > 0; n--) {
            int64_t rows = t_int(&rng, 1, 140), columns = t_int(&rng, 1, 140), wrong = 0;
            int64_t ld = columns + t_int(&rng, 0, 20), ld_out = rows + t_int(&rng, 0, 20);
            k16_fill(k16_c, K16_FLOATS, &rng);
            memcpy(k16_old, k16_c, sizeof k16_c);
            k.pairs.add_transposed(k16_c, ld_out, k16_x, ld, rows, columns);
            for (int64_t i = 0; i < K16_FLOATS; i++) {
                bool inside = i / ld_out < columns && i % ld_out < rows;
                wrong += k16_c[i] != k16_old[i] + (inside ? k16_x[i % ld_out * ld + i / ld_out] : 0);
            }
            if (wrong) T_FAIL("%s, %" PRId64 " x %" PRId64 ": %" PRId64 " wrong\n", k.isa, rows, columns, wrong);
        }
    }
}

/* All m and n for one k: the remainders of every micro-kernel. */
TEST(products_of_all_small_sizes) {
    t_rng rng = {t_seed() + 1};
    k16_fill(k16_a, K16_FLOATS, &rng);
    k16_fill(k16_x, K16_FLOATS, &rng);
    K16_EACH(k) {
        for (int64_t m = 1; m <= 50; m++)
            for (int64_t depth = 1; depth <= 36; depth += depth < 4 ? 1 : 8) {
                k16_case c = {.m = m, .n = 33, .k = depth, .rs = m % 2 ? 1 : depth, .cs = m % 2 ? m : 1, .ldc = 64};
                k16_canaries(k16_panels);
                k.micro.pack_n(k16_panels, k16_x, c.n, c.k, c.n);
                k16_canaries(k16_c);
                memcpy(k16_old, k16_c, sizeof k16_c);
                k16_gemm(&k, c.m, c.n, c.k, k16_a, c.rs, c.cs, k16_panels, c.k * k.nr, k16_c, c.ldc, NULL);
                k16_check_product(&k, &c, NULL);
            }
    }
}

TEST(special_values_reach_their_row_and_column) {
    enum { M = 14, N = 40, K = 9, WIDE = 64 };
    K16_EACH(k) {
        for (int64_t i = 0; i < M * K; i++) k16_a[i] = 1;
        for (int64_t i = 0; i < K * N; i++) k16_x[i] = 1;
        k16_a[2 * K + 8] = NAN;
        k16_a[5 * K + 3] = INFINITY;
        k16_a[13 * K + 0] = 0x1p-127f; /* flushed */
        k16_x[4 * N + 39] = -INFINITY;
        k16_x[8 * N + 7] = 0x1p-133f; /* a subnormal bf16, which products read as 0 */
        k.micro.pack_n(k16_panels, k16_x, N, K, N);
        k16_gemm(&k, M, N, K, k16_a, K, 1, k16_panels, K * k.nr, k16_c, WIDE, NULL);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                double want = (i == 13 ? K - 1 : K) - (j == 7 ? 1 : 0);
                if (i == 5) want = INFINITY;
                if (j == 39) want = i == 5 ? NAN : -INFINITY;
                if (i == 2) want = NAN;
                T_SAME((double)k16_c[i * WIDE + j], want);
            }
        T_SAME((double)k16_c[N], 0); /* columns past n have products of zeroes */
    }
}

TEST(nothing_to_sum_leaves_zero_or_beta) {
    float beta[3] = {1, 0.5f, 0};
    K16_EACH(k) {
        for (int i = 0; i < 3 * 32; i++) k16_c[i] = 4;
        k16_gemm(&k, 3, 32, 0, k16_a, 1, 1, k16_panels, 0, k16_c, 32, beta);
        T_SAME((double)k16_c[31], 4);
        T_SAME((double)k16_c[32], 2);
        T_SAME((double)k16_c[64], 0);
        k16_gemm(&k, 3, 32, 0, k16_a, 1, 1, k16_panels, 0, k16_c, 32, NULL);
        T_SAME((double)k16_c[0], 0);
        T_SAME((double)k16_c[95], 0);
    }
}

/* ---- Decode ------------------------------------------------------------------------------------------------------ */

/* Dot products of bf16 queries and keys equal those of gemm, and each row and key has the same bits alone and
 * together. */
TEST(dots_of_all_small_sizes) {
    static uint16_t stored[80 * 150];
    t_rng rng = {t_seed() + 2};
    for (int i = 0; i < 80 * 150; i++) stored[i] = fxa__f64_to_bf16(t_real(&rng, -2, 2));
    for (int i = 0; i < K16_FLOATS; i++) k16_a[i] = (float)k16_round((float)t_real(&rng, -2, 2));
    K16_EACH(k) {
        for (int n = t_scaled(300); n > 0; n--) {
            int64_t rows = t_int(&rng, 0, 9), d = t_int(&rng, 1, 140), ldq = d + t_int(&rng, 0, 3), outside = 0;
            fxa__cpu_stored_rows x = {.dtype = FXA_BF16, .n = t_int(&rng, 0, 80), .d = d};
            x.ld = d + t_int(&rng, 0, 9);
            guard keys = guard_open((size_t)(x.n ? (x.n - 1) * x.ld + d : 0) * sizeof *stored);
            memcpy(keys.data, stored, keys.size);
            x.data = keys.data;
            if (t_int(&rng, 0, 1)) x.next = stored, x.next_step = t_int(&rng, 0, 1) ? 2 * d : 1000;
            int64_t ldo = x.n + t_int(&rng, 0, 3);
            k16_canaries(k16_c);
            memcpy(k16_old, k16_c, sizeof k16_c);
            k.dots(k16_c, ldo, k16_a, ldq, rows, &x);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < x.n; i++) {
                    double sum = 0, size = 0;
                    float alone = 0;
                    fxa__cpu_stored_rows one = {
                        .data = keys.data + i * x.ld * 2, .dtype = FXA_BF16, .ld = x.ld, .n = 1, .d = d};
                    for (int64_t j = 0; j < d; j++) {
                        double term = (double)k16_a[r * ldq + j] * fxa__bf16_to_f64(stored[i * x.ld + j]);
                        sum += term, size += fabs(term);
                    }
                    k.dots(&alone, 1, k16_a + r * ldq, ldq, 1, &one);
                    T_NEAR((double)k16_c[r * ldo + i], sum, 0x1p-24 * (double)(d + 2) * size);
                    T_SAME((double)k16_c[r * ldo + i], (double)alone);
                }
            for (int64_t i = 0; i < K16_FLOATS; i++)
                if (i >= rows * ldo || i % (ldo ? ldo : 1) >= x.n)
                    outside += memcmp(&k16_c[i], &k16_old[i], sizeof(float)) != 0;
            T_INT(outside, 0);
            guard_close(&keys);
        }
    }
}

#else
TEST(sets_that_round) { T_SKIP("this processor has none"); }
#endif

T_MAIN
