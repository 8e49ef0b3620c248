/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing and matrix products with AVX512_BF16: vdpbf16ps adds the two products of a bf16 pair to an f32 sum in each of
 * 16 lanes. The micro-kernel computes 12 x 32 elements of C as body/gemm.inc does, with bf16 pairs instead of floats.
 * bf16.h describes the formats.
 *
 * A is given as rows of bf16 pairs, or as floats. Floats are first rounded to pairs in a buffer on the stack:
 * [12][pairs] for a row-major A, [pairs][48] for any other A, so that A is not transposed. If k is large, A and B are
 * divided into pieces along k, whose products are added to C.
 */
#include "bf16.h"

#include "../../../base/num.h"

#include <immintrin.h>
#include <string.h>

enum {
    BF16_NR = FXA__BF16_NR,
    BF16_MR = FXA__BF16_MR,
    BF16_K = 512, /* maximum columns of A that are rounded together, for a row-major A */
    /* words from one rounded row of A to the next: an odd number of cache lines, so that rows use all cache sets */
    BF16_STEP = BF16_K / 2 + 16,
    BF16_ROWS = 48, /* maximum rows of A that are rounded together, for a column-major A */
    BF16_ROWS_K = 128
};
#define BF16_INLINE static inline __attribute__((always_inline))

BF16_INLINE __mmask16 bf16_first(int64_t n) { return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1); }

/* Rounds 32 floats of a row to 16 bf16 pairs. Floats from x[n] on count as 0. */
BF16_INLINE __m512i bf16_pairs(const float *x, int64_t n) {
    if (n >= 32) return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    __m512 low = _mm512_maskz_loadu_ps(bf16_first(n), x);
    __m512 high = n > 16 ? _mm512_maskz_loadu_ps(bf16_first(n - 16), x + 16) : _mm512_setzero_ps();
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Rounds lane i of both vectors to bf16 pair i. */
BF16_INLINE __m512i bf16_zip(__m512 even, __m512 odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* Transposes 16 x 16 words: row i of the result is column i. */
BF16_INLINE void bf16_transpose(__m512i x[16]) {
    __m512i y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) { /* transposes 2 x 2 words within each 128-bit lane */
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        /* transposes 4 x 4 words: 128-bit lane l of x[i + j] becomes column 4 l + j of rows i..i+3 */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88), b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88);
        __m512i d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
        y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
        y[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[i] = y[i];
}

void fxa__bf16_add_transposed(void *out, int64_t ld_out, const void *x, int64_t ld, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i += 16)
        for (int64_t j = 0; j < n; j += 16) {
            const float *from = (const float *)x + i * ld + j;
            float *to = (float *)out + j * ld_out + i;
            __mmask16 rows = bf16_first(m - i), columns = bf16_first(n - j);
            __m512i y[16];
            for (int64_t l = 0; l < 16; l++)
                y[l] = _mm512_maskz_loadu_epi32(i + l < m ? columns : 0, i + l < m ? from + l * ld : from);
            bf16_transpose(y);
            for (int64_t l = 0; l < 16 && j + l < n; l++) {
                __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, to + l * ld_out), _mm512_castsi512_ps(y[l]));
                _mm512_mask_storeu_ps(to + l * ld_out, rows, sum);
            }
        }
}

/* ---- Panels of B ------------------------------------------------------------------------------------------------- */

/* Returns 32 elements of a row, of which n exist, as 16 bf16 pairs. The row has floats, which are rounded, or bf16
 * (`stored`). */
BF16_INLINE __m512i bf16_row(const void *x, int64_t at, int64_t n, const bool stored) {
    if (!stored) return bf16_pairs((const float *)x + at, n);
    const uint16_t *from = (const uint16_t *)x + at;
    return n >= 32 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1u), from);
}

/* Packs half a panel: 16 rows of x become columns. Rows from `rows` on count as 0. */
BF16_INLINE void bf16_pack_half(uint32_t *out, const void *x, int64_t at, int64_t ld, int64_t rows, int64_t d,
                                const bool stored) {
    for (int64_t j = 0; j < d; j += 32) {
        __m512i y[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            y[i] = i < rows ? bf16_row(x, at + i * ld + j, d - j, stored) : _mm512_setzero_si512();
        bf16_transpose(y);
        int64_t pairs = fxa__div_up(d - j, 2);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (i < pairs) _mm512_storeu_si512(out + (j / 2 + i) * BF16_NR, y[i]);
    }
}

BF16_INLINE void bf16_pack_t(uint32_t *panels, const void *x, int64_t ld, int64_t n, int64_t d, const bool stored) {
    for (int64_t p = 0; p < n; p += BF16_NR)
        for (int64_t half = 0; half < 2; half++)
            bf16_pack_half(panels + p * d + 16 * half, x, (p + 16 * half) * ld, ld, n - p - 16 * half, d, stored);
}

void fxa__bf16_pack_t(void *panels, const void *x, int64_t ld, int64_t n, int64_t d) {
    bf16_pack_t(panels, x, ld, n, d, false);
}
void fxa__bf16_pack_t_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d) {
    bf16_pack_t(panels, x, ld, n, d, true);
}

void fxa__bf16_pack_n(void *panels, const void *x, int64_t ld, int64_t n, int64_t d) {
    for (int64_t p = 0; p < d; p += BF16_NR) {
        uint32_t *out = (uint32_t *)panels + p * n;
        const float *rows = (const float *)x + p;
        __mmask16 low = bf16_first(d - p), high = bf16_first(d - p - 16);
        for (int64_t i = 0; i < n; i += 2, out += BF16_NR, rows += 2 * ld) {
            __mmask16 odd = i + 1 < n ? 0xffff : 0;
            __m512 x0 = _mm512_maskz_loadu_ps(low, rows), y0 = _mm512_maskz_loadu_ps(low & odd, rows + ld);
            __m512 x1 = _mm512_maskz_loadu_ps(high, rows + 16), y1 = _mm512_maskz_loadu_ps(high & odd, rows + ld + 16);
            _mm512_storeu_si512(out, bf16_zip(x0, y0));
            _mm512_storeu_si512(out + 16, bf16_zip(x1, y1));
        }
    }
}

bool fxa__bf16_pack_n_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16)), size = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_setzero_si512();
    for (int64_t p = 0; p < d; p += BF16_NR) {
        uint32_t *out = (uint32_t *)panels + p * n;
        const uint16_t *rows = (const uint16_t *)x + p;
        __mmask32 columns = d - p >= 32 ? ~(__mmask32)0 : (__mmask32)((1u << (d - p)) - 1u);
        for (int64_t i = 0; i < n; i += 2, out += BF16_NR, rows += 2 * ld) {
            __m512i even = _mm512_maskz_loadu_epi16(columns, rows);
            __m512i odd = _mm512_maskz_loadu_epi16(i + 1 < n ? columns : 0, rows + ld);
            largest = _mm512_max_epu16(largest, _mm512_and_si512(even, size));
            largest = _mm512_max_epu16(largest, _mm512_and_si512(odd, size));
            _mm512_storeu_si512(out, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(even, high, odd));
        }
    }
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0;
}

/* ---- Blocks of A ------------------------------------------------------------------------------------------------- */

/* Returns a column of A with up to 16 rows. */
BF16_INLINE __m512 bf16_column(const float *a, int64_t rs, int64_t rows) {
    if (rs == 1) return rows >= 16 ? _mm512_loadu_ps(a) : _mm512_maskz_loadu_ps(bf16_first(rows), a);
    float lanes[16] = {0};
    for (int64_t i = 0; i < rows && i < 16; i++) lanes[i] = a[i * rs];
    return _mm512_loadu_ps(lanes);
}

BF16_INLINE void bf16_round_16(uint32_t *out, int64_t step, int64_t rows, int64_t k, const float *a, int64_t rs,
                               int64_t cs) {
    for (; k > 1; k -= 2, a += 2 * cs, out += step)
        _mm512_storeu_si512(out, bf16_zip(bf16_column(a, rs, rows), bf16_column(a + cs, rs, rows)));
    if (k > 0) _mm512_storeu_si512(out, bf16_zip(bf16_column(a, rs, rows), _mm512_setzero_ps()));
}

/* Rounds A to bf16 pairs [k/2][step], where the rows of A become columns, 16 at a time. */
static void bf16_round_columns(uint32_t *out, int64_t step, int64_t m, int64_t k, const float *a, int64_t rs,
                               int64_t cs) {
    for (; m > 0; m -= 16, a += 16 * rs, out += 16) {
        if (rs == 1 && m >= 16)
            bf16_round_16(out, step, 16, k, a, 1, cs);
        else
            bf16_round_16(out, step, m, k, a, rs, cs);
    }
}

/* Rounds an A whose rows are not contiguous to rows of bf16 pairs [m][step]: rounds 16 x 32 elements by
 * bf16_round_columns, and transposes the pairs. */
static void bf16_transpose_rows(uint32_t *out, int64_t step, int64_t m, int64_t k, const float *a, int64_t rs,
                                int64_t cs) {
    for (int64_t i = 0; i < m; i += 16) {
        int64_t rows = m - i < 16 ? m - i : 16;
        for (int64_t j = 0; j < k; j += 32) {
            __m512i y[16];
            for (int64_t l = 0; l < 16; l++) y[l] = _mm512_setzero_si512();
            bf16_round_columns((uint32_t *)y, 16, rows, k - j < 32 ? k - j : 32, a + i * rs + j * cs, rs, cs);
            bf16_transpose(y);
            for (int64_t l = 0; l < rows; l++) _mm512_storeu_si512(out + (i + l) * step + j / 2, y[l]);
        }
    }
}

void fxa__bf16_round(void *pairs, int64_t step, int64_t m, int64_t k, const void *x, int64_t rs, int64_t cs) {
    uint32_t *out = pairs;
    const float *a = x;
    if (cs != 1) {
        bf16_transpose_rows(out, step, m, k, a, rs, cs);
        return;
    }
    for (int64_t i = 0; i < m; i++, out += step, a += rs)
        for (int64_t j = 0; j < k; j += 32) _mm512_storeu_si512(out + j / 2, bf16_pairs(a + j, k - j));
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

/* Computes a block of C = A B. Columns 2k and 2k + 1 of row i of A are a bf16 pair at a[i * row + k * pair]. Registers
 * have the addresses of rows 0, 3, 6 and 9 of A only, from which the other addresses follow. If `row` is a constant,
 * one register is enough. */
BF16_INLINE void bf16_block(const int rows, const int64_t row, const int64_t pair, int64_t pairs, const uint32_t *a,
                            const uint32_t *b, float *c, int64_t ldc, const float *beta) {
    const uint32_t *a3 = a + 3 * row, *a6 = a + 6 * row, *a9 = a + 9 * row;
    __m512 sum[BF16_MR][2];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (; pairs > 0; pairs--, b += BF16_NR, a += pair, a3 += pair, a6 += pair, a9 += pair) {
        __m512bh y0 = (__m512bh)_mm512_loadu_si512(b), y1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            const uint32_t *near = i < 3 ? a : i < 6 ? a3 : i < 9 ? a6 : a9;
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)near[i % 3 * row]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, y0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, y1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++, c += ldc)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            __m512 x = sum[i][j];
            if (beta) x = _mm512_fmadd_ps(_mm512_set1_ps(beta[i]), _mm512_loadu_ps(c + 16 * j), x);
            _mm512_storeu_ps(c + 16 * j, x);
        }
}

typedef void (*bf16_kernel)(int64_t, const uint32_t *, int64_t, const uint32_t *, float *, int64_t, const float *);
#define BF16_KERNEL(rows)                                                                                              \
    static __attribute__((noinline)) void bf16_rows_##rows(                                                            \
        int64_t pairs, const uint32_t *a, int64_t row, const uint32_t *b, float *c, int64_t ldc, const float *beta) {  \
        bf16_block(rows, row, 1, pairs, a, b, c, ldc, beta);                                                           \
    }                                                                                                                  \
    static __attribute__((noinline)) void bf16_columns_##rows(                                                         \
        int64_t pairs, const uint32_t *a, int64_t row, const uint32_t *b, float *c, int64_t ldc, const float *beta) {  \
        (void)row;                                                                                                     \
        bf16_block(rows, 1, BF16_ROWS, pairs, a, b, c, ldc, beta);                                                     \
    }
#define BF16_EACH(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
BF16_EACH(BF16_KERNEL)
#define BF16_ROWS_NAME(rows) bf16_rows_##rows,
#define BF16_COLUMNS_NAME(rows) bf16_columns_##rows,
static const bf16_kernel bf16_by_rows[] = {BF16_EACH(BF16_ROWS_NAME)};
static const bf16_kernel bf16_by_columns[] = {BF16_EACH(BF16_COLUMNS_NAME)};

/* Multiplies rounded rows of A, `row` words apart, by one panel after the other. A panel stays in the L1 cache for all
 * rows. */
static void bf16_panels(const bf16_kernel *kernels, int64_t row, int64_t m, int64_t n, int64_t k, const uint32_t *a,
                        const uint32_t *b, int64_t panel, float *c, int64_t ldc, const float *beta) {
    int64_t blocks = fxa__div_up(m, BF16_MR);
    for (int64_t j = 0; j < n; j += BF16_NR, b += panel)
        for (int64_t i = 0, left = blocks, rows; left > 0; left--, i += rows) {
            rows = fxa__div_up(m - i, left);
            kernels[rows - 1](fxa__div_up(k, 2), a + i * row, row, b, c + i * ldc + j, ldc, beta ? beta + i : NULL);
        }
}

void fxa__bf16_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                          void *c, int64_t ldc, const void *beta) {
    bf16_panels(bf16_by_rows, step, m, n, k, a, b, panel, c, ldc, beta);
}

static const float bf16_ones[BF16_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                           1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

void fxa__bf16_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b,
                    int64_t panel, void *c, int64_t ldc, const void *beta) {
    _Alignas(64) uint32_t x[BF16_MR * BF16_STEP];
    _Static_assert(sizeof x >= BF16_ROWS * BF16_ROWS_K / 2 * sizeof *x, "either layout fits");
    bool by_rows = cs == 1;
    int64_t group = by_rows ? BF16_MR : BF16_ROWS, piece = by_rows ? BF16_K : BF16_ROWS_K;
    int64_t groups = fxa__div_up(m, group);
    for (int64_t i = 0, rows; groups > 0; groups--, i += rows) {
        rows = fxa__div_up(m - i, groups);
        for (int64_t j = 0, count; j == 0 || j < k; j += count) {
            const float *from = (const float *)a + i * rs + j * cs, *factor = beta ? (const float *)beta + i : NULL;
            count = k - j < piece ? k - j : piece;
            if (by_rows)
                fxa__bf16_round(x, BF16_STEP, rows, count, from, rs, 1);
            else
                bf16_round_columns(x, BF16_ROWS, rows, count, from, rs, cs);
            const uint32_t *panels = (const uint32_t *)b + j / 2 * BF16_NR;
            bf16_panels(by_rows ? bf16_by_rows : bf16_by_columns, by_rows ? BF16_STEP : 1, rows, n, count, x, panels,
                        panel, (float *)c + i * ldc, ldc, j ? bf16_ones : factor);
            if (count == 0) break; /* k = 0: beta has been applied, nothing else remains */
        }
    }
}
