/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's kernels, in every instruction set of this machine, compared with simple loops in double: products,
 * rows and mask bits (storage and decoding are in test_cpu_storage.c), in random sizes with all remainders, with NaN
 * and infinities. Operands end at an inaccessible page, and memory around a result must not change. Missing instruction
 * sets are skipped by name.
 */
#include "t.h"
#include "base/dtype.h"
#include "support/oracle/reals.h"
#include "support/fixtures/set_tests.h"

#include <float.h>

/* ---- Products -------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* Tests one product with x [n,d] or its transpose, packed or read in place, with A by rows or by columns, with or
 * without beta. Sometimes the product starts and ends inside the first panel, at column `skip`. Elements of C between
 * its end and the end of the last panel may have any value. */
static void check_gemm(const fxa__cpu_kernels *k, t_rng *rng) {
    bool transposed = t_int(rng, 0, 1), by_columns = t_int(rng, 0, 1), scaled = t_int(rng, 0, 1);
    int64_t skip = k->nr_step < k->nr && t_int(rng, 0, 3) == 0 ? k->nr_step : 0;
    int64_t m = t_int(rng, 1, 3 * k->mr + 1), depth = t_int(rng, 0, 40);
    int64_t n = t_int(rng, skip + 1, skip ? k->nr : 3 * k->nr);
    bool as_it_lies = !transposed && !skip && t_int(rng, 0, 2) == 0;
    if (as_it_lies) n = round_up(n, k->nr);
    int64_t x_rows = transposed ? n : depth, x_columns = transposed ? depth : n, ld = x_columns + t_int(rng, 0, 3);
    int64_t wide = round_up(n, k->nr), ldc = wide + t_int(rng, 0, 3), lda = (by_columns ? m : depth) + t_int(rng, 0, 3);
    guard x = reals_open(k, rng, x_rows ? (x_rows - 1) * ld + x_columns : 0), b = reals_open(k, rng, wide * depth);
    int64_t a_size = by_columns ? (depth ? (depth - 1) * lda + m : 0) : (m - 1) * lda + depth;
    guard a = reals_open(k, rng, a_size), beta = reals_open(k, rng, m), c = reals_open(k, rng, (m - 1) * ldc + wide);
    guard old = guard_open(c.size);
    memcpy(old.data, c.data, c.size);
    int64_t rs = by_columns ? 1 : lda, cs = by_columns ? lda : 1;
    (transposed ? k->micro.pack_t : k->micro.pack_n)(b.data, x.data, ld, x_rows, x_columns);
    size_t skipped = (size_t)skip * k->real_size;
    if (as_it_lies)
        k->real.gemm_rows(m, n, depth, a.data, rs, cs, x.data, ld, c.data, ldc, scaled ? beta.data : NULL);
    else
        k->micro.gemm(m, n - skip, depth, a.data, rs, cs, (char *)b.data + (depth ? skipped : 0), depth * k->nr,
                      (char *)c.data + skipped, ldc, scaled ? beta.data : NULL);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < (i + 1 < m ? ldc : wide); j++) {
            double sum = 0, size = 0, before = real_at(k, old.data, i * ldc + j);
            if (j >= wide || j < skip) T_SAME(real_at(k, c.data, i * ldc + j), before);
            if (j >= wide || j < skip || (j >= n && real_at(k, c.data, i * ldc + j) == before)) continue;
            for (int64_t l = 0; l < depth && j < n; l++) {
                double p =
                    real_at(k, a.data, i * rs + l * cs) * real_at(k, x.data, transposed ? j * ld + l : l * ld + j);
                sum += p;
                size += fabs(p);
            }
            double part = scaled ? real_at(k, beta.data, i) * before : 0;
            T_NEAR(real_at(k, c.data, i * ldc + j), part + sum,
                   ((double)depth + 2) * real_unit(k) * (size + fabs(part)));
        }
    guard *all[] = {&x, &b, &a, &beta, &c, &old};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guard_close(all[i]);
}

static void check_products(const fxa__cpu_kernels *k) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(150); i++) check_gemm(k, &rng);
}

/* Panels contain the expected elements, zeroes included, and nothing else is written. */
static void check_panels(const fxa__cpu_kernels *k) {
    t_rng rng = {t_seed()};
    for (int round = 0; round < t_scaled(150); round++) {
        int64_t n = t_int(&rng, 1, 2 * k->nr + 3), d = t_int(&rng, 1, 2 * k->nr + 3), ld = d + t_int(&rng, 0, 5);
        guard x = reals_open(k, &rng, (n - 1) * ld + d),
              t = guard_open((size_t)(round_up(n, k->nr) * d) * k->real_size);
        guard p = guard_open((size_t)(round_up(d, k->nr) * n) * k->real_size);
        k->micro.pack_t(t.data, x.data, ld, n, d);
        k->micro.pack_n(p.data, x.data, ld, n, d);
        for (int64_t i = 0; i < round_up(n, k->nr); i++)
            for (int64_t j = 0; j < d; j++)
                T_SAME(real_at(k, t.data, i / k->nr * d * k->nr + j * k->nr + i % k->nr),
                       i < n ? real_at(k, x.data, i * ld + j) : 0);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < round_up(d, k->nr); j++)
                T_SAME(real_at(k, p.data, j / k->nr * n * k->nr + i * k->nr + j % k->nr),
                       j < d ? real_at(k, x.data, i * ld + j) : 0);
        guard_close(&x);
        guard_close(&t);
        guard_close(&p);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

static double row_max(const fxa__cpu_kernels *k, void *s, int64_t n) {
    fxa__cpu_score_row part = {s, n, 0};
    k->rows_max(&part, 1);
    return part.x;
}
static double row_exp(const fxa__cpu_kernels *k, void *s, int64_t n, double m) {
    fxa__cpu_score_row part = {s, n, m};
    k->rows_exp(&part, 1);
    return part.x;
}

static void check_softmax_row(const fxa__cpu_kernels *k, t_rng *rng, int64_t n) {
    guard s = reals_open(k, rng, n), e = guard_open(s.size);
    double top = -INFINITY, sum = 0, u = real_unit(k);
    for (int64_t i = 0; i < n; i++) {
        double x = t_int(rng, 0, 9) ? t_real(rng, -30, 5) : t_int(rng, 0, 2) ? -INFINITY : -1e30;
        real_put(k, s.data, i, x);
        top = fmax(top, real_at(k, s.data, i));
    }
    T_SAME(row_max(k, s.data, n), top);
    memcpy(e.data, s.data, s.size);
    if (top == -INFINITY) top = 0;
    double got = row_exp(k, e.data, n, top);
    for (int64_t i = 0; i < n; i++) {
        double x = real_at(k, s.data, i), want = exp(x - top), y = real_at(k, e.data, i);
        if (x - top < -1e20) T_SAME(y, 0.0);
        /* the difference and its product with log2(e) are rounded; the function itself has an error of up to 3 units */
        else
            T_NEAR(y, want, want * (2 * fabs(x - top) + 6) * u);
        sum += y;
    }
    T_NEAR(got, sum, (double)n * u * sum);
    guard_close(&s);
    guard_close(&e);
}

/* The reference has more digits than the compute type, so its own rounding is negligible. */
static void check_probability_row(const fxa__cpu_kernels *k, t_rng *rng, int64_t n) {
    guard s = reals_open(k, rng, n), p = guard_open(s.size);
    double lse = t_int(rng, 0, 1) ? t_real(rng, -9, 9) : t_real(rng, -1e6, 1e6), u = real_unit(k);
    for (int64_t i = 0; i < n; i++) real_put(k, s.data, i, t_int(rng, 0, 9) ? lse - t_real(rng, -1, 30) : -INFINITY);
    memcpy(p.data, s.data, s.size);
    k->row_probability(p.data, n, lse);
    for (int64_t i = 0; i < n; i++) {
        double x = real_at(k, s.data, i) - lse, want = x > 0 ? 1 : exp(x);
        T_NEAR(real_at(k, p.data, i), want, want * (3 * fabs(x) + 6) * u);
        T_CHECK(x < 0 || real_at(k, p.data, i) == 1);
        real_put(k, s.data, i, i % 2 ? NAN : 1e30);
    }
    k->row_probability(s.data, n, lse);
    for (int64_t i = 0; i < n; i++) T_SAME(real_at(k, s.data, i), i % 2 ? NAN : 1.0);
    guard_close(&s);
    guard_close(&p);
}

/* Dot products of rows equal those of gemm bit by bit. */
static void check_rows_dot(const fxa__cpu_kernels *k, t_rng *rng, int64_t n) {
    int64_t m = t_int(rng, 1, 40), ld = n + t_int(rng, 0, 3), nr = k->nr, panels = (m + nr - 1) / nr * nr;
    guard x = reals_open(k, rng, m * ld), y = reals_open(k, rng, m * ld), out = guard_open((size_t)m * k->real_size);
    char *panel = calloc((size_t)(panels * (n + 1)) + FXA__CPU_PAD, k->real_size);
    char *c = calloc((size_t)(m * panels) + FXA__CPU_PAD, k->real_size);
    if (!panel || !c) abort();
    k->rows_dot(out.data, x.data, ld, y.data, ld, m, n);
    k->micro.pack_t(panel, y.data, ld, m, n);
    k->micro.gemm(m, m, n, x.data, ld, 1, panel, n * nr, c, panels, NULL);
    for (int64_t i = 0; i < m; i++) T_SAME(real_at(k, out.data, i), real_at(k, c, i * panels + i));
    free(panel);
    free(c);
    guard *all[] = {&x, &y, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guard_close(all[i]);
}

static void check_other_rows(const fxa__cpu_kernels *k, t_rng *rng, int64_t n) {
    guard p = reals_open(k, rng, n), dp = reals_open(k, rng, n), ds = guard_open(p.size), x = guard_open(p.size);
    double delta = 0.375, u = real_unit(k), sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (t_int(rng, 0, 3) == 0) real_put(k, p.data, i, 0);
        double y = real_at(k, p.data, i) * real_at(k, dp.data, i);
        sum += y;
        size += fabs(y);
    }
    T_NEAR(k->row_dot(p.data, dp.data, n), sum, (double)n * u * size);
    memcpy(x.data, p.data, p.size);
    k->row_scale(x.data, n, 0.625);
    for (int64_t i = 0; i < n; i++) T_NEAR(real_at(k, x.data, i), 0.625 * real_at(k, p.data, i), u);
    if (n > 0) real_put(k, dp.data, 0, INFINITY), real_put(k, p.data, 0, 0);
    if (n > 1) real_put(k, dp.data, 1, NAN), real_put(k, p.data, 1, 0.5);
    k->row_grad(ds.data, p.data, dp.data, delta, n);
    for (int64_t i = 0; i < n; i++) {
        double w = real_at(k, p.data, i), want = w == 0 ? 0 : w * (real_at(k, dp.data, i) - delta);
        T_NEAR(real_at(k, ds.data, i), want, 4 * u);
    }
    guard *all[] = {&p, &dp, &ds, &x};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guard_close(all[i]);
}

static void check_rows(const fxa__cpu_kernels *k) {
    t_rng rng = {t_seed()};
    for (int64_t n = 0; n < 100; n++) {
        check_softmax_row(k, &rng, n);
        check_other_rows(k, &rng, n);
        check_probability_row(k, &rng, n);
        if (n > 0) check_rows_dot(k, &rng, n);
    }
}

/* A NaN anywhere is ignored by the maximum, propagated by exp, and affects no other lane. Overflow gives infinity. */
static void check_special_rows(const fxa__cpu_kernels *k) {
    enum { N = 37 };
    for (int64_t at = 0; at < N; at++) {
        guard s = guard_open(N * k->real_size);
        for (int64_t i = 0; i < N; i++) real_put(k, s.data, i, i == at ? NAN : -1);
        if (k->real_size == sizeof(float)) ((uint32_t *)(void *)s.data)[at] = 0xff812345u; /* a NaN with low bits set */
        T_SAME(row_max(k, s.data, N), -1);
        T_CHECK(isnan(row_exp(k, s.data, N, 0)));
        for (int64_t i = 0; i < N; i++) {
            if (i == at)
                T_CHECK(isnan(real_at(k, s.data, i)));
            else
                T_NEAR(real_at(k, s.data, i), exp(-1), 4 * real_unit(k));
            real_put(k, s.data, i, i == at ? INFINITY : i == (at + 1) % N ? 1e4 : -1e4);
        }
        T_SAME(row_max(k, s.data, N), INFINITY);
        T_SAME(row_exp(k, s.data, N, 0), INFINITY);
        for (int64_t i = 0; i < N; i++) T_SAME(real_at(k, s.data, i), i == at || i == (at + 1) % N ? INFINITY : 0.0);
        guard_close(&s);
    }
    T_SAME(row_max(k, NULL, 0), -INFINITY);
}

/* ---- One test for each set ------------------------------------------------------------------------------------- */

static void check_kernels(const fxa__cpu_kernels *k) {
    T_CHECK(k->nr % k->width == 0);
    void (*checks[])(const fxa__cpu_kernels *) = {check_products, check_panels, check_rows, check_special_rows};
    for (size_t j = 0; j < sizeof checks / sizeof checks[0]; j++) checks[j](k);
}
SET_TESTS(kernels_f32, sizeof(float), check_kernels)
SET_TESTS(kernels_f64, sizeof(double), check_kernels)

/* ---- Masks as bits ----------------------------------------------------------------------------------------------- */

/* Signs of a row as bits, and bits as a row, at every length and offset; elements past n do not change. */
static void bits_check(const fxa__cpu_kernels *k) {
    enum { N = 150, FIRST = 64 };
    t_rng rng = {t_seed()};
    for (int64_t n = 0; n <= N; n++) {
        double x[N + 1], y[N + 1];
        unsigned char row[(N + 1) * sizeof(double)];
        uint64_t words[(FIRST + N) / 64 + 1] = {0};
        for (int64_t i = 0; i <= N; i++) {
            x[i] = t_int(&rng, 0, 1) ? -INFINITY : 0;
            fxa__store_f64(row, k->real_dtype, i, x[i]);
        }
        k->row_signs(words, row, n);
        for (int64_t i = 0; i < (int64_t)sizeof words * 8; i++)
            T_CHECK((words[i / 64] >> (i % 64) & 1) == (i < n && x[i] == 0));
        for (int64_t first = 0; first <= FIRST; first += 16) {
            for (size_t i = 0; i < sizeof words / sizeof *words; i++) words[i] = t_next(&rng);
            for (int64_t i = 0; i <= N; i++) fxa__store_f64(row, k->real_dtype, i, y[i] = (double)i + 1);
            k->row_mask(row, words, first, n);
            for (int64_t i = 0; i <= N; i++) {
                bool kept = i >= n || (words[(first + i) / 64] >> ((first + i) % 64) & 1);
                T_CHECK(fxa__load_f64(row, k->real_dtype, i) == (kept ? y[i] : -INFINITY));
            }
        }
    }
}
SET_TESTS(bits_f32, 4, bits_check)
SET_TESTS(bits_f64, 8, bits_check)

/* FXA_CPU selects a kernel set by name; invalid names are reported. */
TEST(select_by_name) {
    char reason[256] = "";
    bool usable;
    const fxa__cpu_kernels *k;
    for (size_t i = 0; (k = fxa__cpu_set(i, sizeof(double), &usable)) != NULL; i++) {
        T_REQUIRE(setenv("FXA_CPU", k->isa, 1) == 0);
        const fxa__cpu_kernels *got = fxa__cpu_select(sizeof(double), FXA_F64, reason, sizeof reason);
        if (usable)
            T_CHECK(got == k);
        else
            T_CHECK(got == NULL && strstr(reason, k->isa));
    }
    T_REQUIRE(setenv("FXA_CPU", "avx1024", 1) == 0);
    T_CHECK(fxa__cpu_select(sizeof(float), FXA_F32, reason, sizeof reason) == NULL);
    T_HAS(reason, "avx1024");
    T_HAS(reason, "scalar");
    T_REQUIRE(unsetenv("FXA_CPU") == 0);
    k = fxa__cpu_select(sizeof(float), FXA_F32, reason, sizeof reason);
    T_REQUIRE(k != NULL);
    if (fxa__cpu_set(1, sizeof(float), &usable)) T_CHECK(strcmp(k->isa, "scalar") != 0); /* unless it is the only set */
    T_CHECK(fxa__cpu_select(sizeof(float), FXA_F32, reason, sizeof reason) == k);
}

T_MAIN
