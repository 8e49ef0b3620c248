/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with packed operands (product/product.h), in every format of this machine, through the functions that the
 * passes use. Values are small integers, so products are exact in every format; elements that a format must not read
 * are NaN, and memory around a result must not change.
 */
#include "t.h"

#include "base/num.h"
#include "engine/cpu/product/product.h"

#include <stdlib.h>

enum { MOST = 200 * 200 };
static _Alignas(64) double matrix_a[MOST], matrix_b[MOST], matrix_c[MOST], matrix_x[MOST], matrix_old[MOST];
static _Alignas(64) double packed[MOST], sums[MOST], room[MOST], ones[1024];

static double get(const fxa__cpu_kernels *k, const void *x, int64_t i) {
    return k->real_size == sizeof(float) ? (double)((const float *)x)[i] : ((const double *)x)[i];
}
static void put(const fxa__cpu_kernels *k, void *x, int64_t i, double value) {
    if (k->real_size == sizeof(float))
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}
static void fill(const fxa__cpu_kernels *k, t_rng *rng, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) put(k, x, i, (double)t_int(rng, -4, 4));
}
static void fill_nan(const fxa__cpu_kernels *k, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) put(k, x, i, NAN);
}

/* Calls `check` several times with every usable kernel set, those of bf16 pairs included. */
static void each_set(void (*check)(const fxa__cpu_kernels *k, t_rng *rng)) {
    t_rng rng = {t_seed()};
    for (size_t width = 0; width < 3; width++)
        for (size_t i = 0;; i++) {
            bool usable = false;
            const fxa__cpu_kernels *k = width == 2 ? fxa__cpu_set_bf16(i, &usable)
                                                   : fxa__cpu_set(i, width ? sizeof(double) : sizeof(float), &usable);
            if (!k) break;
            if (!usable) {
                printf("  skipped %s: this processor cannot run kernels for %s\n", k->isa, k->isa);
                continue;
            }
            if (k->enter) k->enter();
            for (int n = t_scaled(300); n > 0; n--) check(k, &rng);
            if (k->leave) k->leave();
        }
}

/* Expected C: in [rows,n], beta times the old C plus sums of A B; unchanged elsewhere, except the rest of a panel,
 * which may be anything. */
typedef struct expected {
    const void *a, *b, *beta; /* A(i, j) is at i * rs_a + j * cs_a, B(j, l) at j * rs_b + l * cs_b */
    int64_t rs_a, cs_a, rs_b, cs_b, rows, n, k, ldc;
} expected;

static void check_c(const fxa__cpu_kernels *k, const expected *e) {
    int64_t wide = fxa__round_up(e->n, k->nr), wrong = 0, outside = 0;
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t l = 0; l < e->n; l++) {
            double sum = e->beta ? get(k, e->beta, i) * get(k, matrix_old, i * e->ldc + l) : 0;
            for (int64_t j = 0; j < e->k; j++)
                sum += get(k, e->a, i * e->rs_a + j * e->cs_a) * get(k, e->b, j * e->rs_b + l * e->cs_b);
            wrong += get(k, matrix_c, i * e->ldc + l) != sum;
        }
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t l = i * e->ldc + wide; l < (i + 1) * e->ldc; l++)
            outside += get(k, matrix_c, l) != get(k, matrix_old, l);
    for (int64_t l = 0; l < e->ldc; l++)
        outside += get(k, matrix_c, e->rows * e->ldc + l) != get(k, matrix_old, e->rows * e->ldc + l);
    if (wrong || outside)
        T_FAIL("%s: %d wrong, %d changed outside of rows %d, n %d, k %d\n", k->isa, (int)wrong, (int)outside,
               (int)e->rows, (int)e->n, (int)e->k);
}

static const void *some_beta(const fxa__cpu_kernels *k, t_rng *rng, void *beta, int64_t rows) {
    fill(k, rng, beta, rows);
    return t_int(rng, 0, 1) ? beta : NULL;
}

static void start_c(const fxa__cpu_kernels *k, t_rng *rng, int64_t size) {
    fill(k, rng, matrix_c, size);
    memcpy(matrix_old, matrix_c, sizeof matrix_c);
}

/* C = A x^T of some columns, with A as rows of the compute type, as backward uses it with K and V. */
static void check_rows(const fxa__cpu_kernels *k, t_rng *rng) {
    int64_t rows = t_int(rng, 1, 40), d = t_int(rng, 1, 70), keys = t_int(rng, 1, 90), ld = d + t_int(rng, 0, 5);
    int64_t begin = t_int(rng, 0, (keys - 1) / k->nr_step) * k->nr_step, end = t_int(rng, begin + 1, keys);
    int64_t lda = d + t_int(rng, 0, 5), ldc = fxa__round_up(keys, k->nr) + 3;
    fxa__cpu_packed_b b = {.panels = packed};
    fill(k, rng, matrix_x, keys * ld);
    fill(k, rng, matrix_a, rows * lda);
    start_c(k, rng, (rows + 1) * ldc);
    T_REQUIRE(k->format->b_size(k, d, keys) <= MOST);
    k->format->b_pack_t(k, &b, matrix_x, ld, keys, d);
    fxa__cpu_product x = {.rows = rows, .a = matrix_a, .lda = lda, .b = &b, .k_end = d, .begin = begin, .end = end};
    x.c = matrix_c;
    x.ldc = ldc;
    x.beta = some_beta(k, rng, matrix_b, rows);
    k->format->product_rows(k, &x);
    const void *from = fxa__cpu_real_at(k, matrix_x, begin * ld);
    expected e = {matrix_a, from, x.beta, lda, 1, 1, ld, rows, end - begin, d, ldc};
    check_c(k, &e);
}

/* Checks o = beta o + t V as forward calls it: some rows of t have weights in fewer columns than others. */
static void check_weights(const fxa__cpu_kernels *k, t_rng *rng) {
    int64_t step = k->nr_step, keys = t_int(rng, 1, 150), rows = t_int(rng, 1, 32), dv = t_int(rng, 1, 70);
    int64_t begin = t_int(rng, 0, keys - 1), end = t_int(rng, begin + 1, keys), column = begin / step * step;
    int64_t columns = end - column, ldt = fxa__round_up(keys, k->nr) + 32, ldo = fxa__round_up(dv, k->nr) + 3;
    int64_t half = rows / 2, later = t_int(rng, 0, (columns - 1) / step) * step; /* first column of the second half */
    fxa__cpu_packed_b b = {.panels = packed};
    fill(k, rng, matrix_x, keys * dv);
    k->format->b_pack(k, &b, matrix_x, dv, keys, dv);
    fill_nan(k, matrix_a, rows * ldt);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            bool none = j < (i < half ? 0 : later);
            double weight = column + j < begin || none ? 0 : (double)t_int(rng, -4, 4);
            put(k, matrix_b, i * columns + j, weight);
            if (!none) put(k, matrix_a, i * ldt + j, weight);
        }
    start_c(k, rng, (rows + 1) * ldo);
    k->format->a_weights(k, matrix_a, ldt, half, 0, columns, columns);
    k->format->a_weights(k, fxa__cpu_real_at(k, matrix_a, half * ldt), ldt, rows - half, later, columns, columns);
    fxa__cpu_product x = {.rows = rows, .a = matrix_a, .lda = ldt, .a_first = column, .b = &b, .end = dv};
    x.k_begin = begin;
    x.k_end = end;
    x.c = matrix_c;
    x.ldc = ldo;
    x.beta = some_beta(k, rng, room, rows);
    k->format->product(k, &x);
    expected e = {matrix_b, fxa__cpu_real_at(k, matrix_x, column * dv), x.beta, columns, 1, dv, 1, rows, dv, columns,
                  ldo};
    check_c(k, &e);
}

/* out += W^T X for two X one after the other, with some columns over some rows, as backward uses it for dK and dV. */
static void check_transposed_sum(const fxa__cpu_kernels *k, t_rng *rng) {
    int64_t most = t_int(rng, 1, 60), d = t_int(rng, 1, 50), columns = t_int(rng, 1, 90), ldw = columns + 16;
    fxa__cpu_transposed_sum o = {.capacity = most, .d = d, .columns = columns, .x = packed, .sums = sums, .room = room};
    o.out = matrix_c;
    o.ld_out = fxa__round_up(d, k->nr);
    o.ones = ones;
    k->format->sum_layout(k, &o);
    T_REQUIRE(o.x_size <= MOST && o.sums_size <= MOST && o.room_size <= MOST);
    for (int64_t i = 0; i < 1024; i++) put(k, ones, i, 1);
    start_c(k, rng, columns * o.ld_out);
    fxa__cpu_transposed_sum_clear(k, &o);
    for (int round = 0; round < 2; round++) {
        int64_t n = t_int(rng, 1, most), first = t_int(rng, 0, n - 1), last = t_int(rng, first + 1, n);
        int64_t step = t_int(rng, 0, 1) ? o.masked_step : o.step;
        fill(k, rng, matrix_x, n * d);
        fill(k, rng, matrix_a, n * ldw);
        for (int64_t i = 0; i < n * ldw; i++)
            if (i / ldw < first || i / ldw >= last) put(k, matrix_a, i, 0);
        k->format->sum_pack(k, &o, matrix_x, d, n);
        for (int64_t at = 0; at < columns; at += step)
            k->format->sum_add(k, &o, matrix_a, ldw, at, fxa__min_i64(at + step, columns), first, last);
        for (int64_t c = 0; c < columns; c++)
            for (int64_t j = 0; j < d; j++) {
                double sum = get(k, matrix_old, c * o.ld_out + j);
                for (int64_t r = first; r < last; r++)
                    sum += get(k, matrix_a, r * ldw + c) * get(k, matrix_x, r * d + j);
                put(k, matrix_old, c * o.ld_out + j, sum);
            }
    }
    k->format->sum_end(k, &o, columns);
    int wrong = 0;
    for (int64_t c = 0; c < columns; c++)
        for (int64_t j = c * o.ld_out; j < c * o.ld_out + d; j++) wrong += get(k, matrix_c, j) != get(k, matrix_old, j);
    if (wrong) T_FAIL("%s: %d wrong of most %d, d %d, columns %d\n", k->isa, wrong, (int)most, (int)d, (int)columns);
}

TEST(rows_of_real_with_some_columns) { each_set(check_rows); }
TEST(weights_with_some_rows) { each_set(check_weights); }
TEST(transposed_sums) { each_set(check_transposed_sum); }

T_MAIN
