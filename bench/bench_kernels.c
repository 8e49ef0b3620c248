/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of the cpu engine's kernels in isolation, for every instruction set of this machine: matrix products as a share
 * of peak (a loop of FMAs in registers, measured in the same run), row functions in cycles per element. Prints the best
 * of several short runs. bench_kernels [set] runs one instruction set.
 */
#include "../src/engine/cpu/cpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static double bench_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sets `seconds` to the seconds of one call: the best of several batches of about a millisecond. */
#define BENCH_BEST(seconds, call)                                                                                      \
    do {                                                                                                               \
        int bench_n = 1;                                                                                               \
        seconds = 1e9;                                                                                                 \
        for (int bench_i = 0; bench_i < 24; bench_i++) {                                                               \
            double bench_start = bench_clock();                                                                        \
            for (int bench_j = 0; bench_j < bench_n; bench_j++) {                                                      \
                call;                                                                                                  \
            }                                                                                                          \
            double bench_time = bench_clock() - bench_start;                                                           \
            if (bench_time < 1e-3)                                                                                     \
                bench_n *= 2, bench_i -= bench_n > (1 << 24) ? 0 : 1;                                                  \
            else if (bench_time / bench_n < seconds)                                                                   \
                seconds = bench_time / bench_n;                                                                        \
        }                                                                                                              \
    } while (0)

/* ---- Peak rates -------------------------------------------------------------------------------------------------- */

enum { BENCH_PEAK_STEPS = 4096, BENCH_CHAINS = 12 };
#if defined(__x86_64__)
__attribute__((target("avx2,fma"), noinline)) static void bench_peak_256(float *out) {
    __m256 sum[BENCH_CHAINS], x = _mm256_set1_ps(out[0]), y = _mm256_set1_ps(out[1]);
#pragma GCC unroll 12
    for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < BENCH_PEAK_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm256_fmadd_ps(x, y, sum[i]);
    }
#pragma GCC unroll 12
    for (int i = 1; i < BENCH_CHAINS; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    _mm256_storeu_ps(out, sum[0]);
}
__attribute__((target("avx512f"), noinline)) static void bench_peak_512(float *out) {
    __m512 sum[BENCH_CHAINS], x = _mm512_set1_ps(out[0]), y = _mm512_set1_ps(out[1]);
#pragma GCC unroll 12
    for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < BENCH_PEAK_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_fmadd_ps(x, y, sum[i]);
    }
#pragma GCC unroll 12
    for (int i = 1; i < BENCH_CHAINS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    _mm512_storeu_ps(out, sum[0]);
}
__attribute__((target("avx512f,avx512bf16"), noinline)) static void bench_peak_pairs(float *out) {
    __m512 sum[BENCH_CHAINS];
    __m512bh x = (__m512bh)_mm512_set1_ps(out[0]), y = (__m512bh)_mm512_set1_ps(out[1]);
#pragma GCC unroll 12
    for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < BENCH_PEAK_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], x, y);
    }
#pragma GCC unroll 12
    for (int i = 1; i < BENCH_CHAINS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    _mm512_storeu_ps(out, sum[0]);
}
__attribute__((target("amx-tile,amx-bf16"), noinline)) static void bench_peak_tiles(void) {
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int n = 0; n < BENCH_PEAK_STEPS; n++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}
#elif defined(__aarch64__)
__attribute__((noinline)) static void bench_peak_neon(float *out) {
    float32x4_t sum[BENCH_CHAINS], x = vdupq_n_f32(out[0]), y = vdupq_n_f32(out[1]);
#pragma GCC unroll 12
    for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = vdupq_n_f32((float)i);
    for (int n = 0; n < BENCH_PEAK_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < BENCH_CHAINS; i++) sum[i] = vfmaq_f32(sum[i], x, y);
    }
#pragma GCC unroll 12
    for (int i = 1; i < BENCH_CHAINS; i++) sum[0] = vaddq_f32(sum[0], sum[i]);
    vst1q_f32(out, sum[0]);
}
#endif

/* Returns the GFLOP/s of multiply-adds with the vector width and input type of an instruction set; 0 = unknown set. */
static double bench_peak(const char *isa) {
    float out[16] = {1, 1e-9f};
    double seconds = 0, lanes = 0;
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0) {
        lanes = 16;
        BENCH_BEST(seconds, bench_peak_512(out));
    } else if (strcmp(isa, "avx2") == 0) {
        lanes = 8;
        BENCH_BEST(seconds, bench_peak_256(out));
    } else if (strcmp(isa, "avx512-bf16") == 0) {
        lanes = 2 * 16;
        BENCH_BEST(seconds, bench_peak_pairs(out));
    } else if (strcmp(isa, "amx") == 0) {
        lanes = 4.0 * 16 * 16 * 32 / (int)BENCH_CHAINS;
        BENCH_BEST(seconds, bench_peak_tiles());
    }
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0) {
        lanes = 4;
        BENCH_BEST(seconds, bench_peak_neon(out));
    }
#endif
    (void)isa;
    (void)out;
    return lanes > 0 ? 2 * lanes * (BENCH_CHAINS * BENCH_PEAK_STEPS) / seconds * 1e-9 : 0;
}

/* Returns the clock rate in Hz, from a chain of additions that take one cycle each. */
__attribute__((noinline)) static uint64_t bench_chain(uint64_t x) {
#pragma GCC unroll 16
    for (int i = 0; i < 4096; i++) {
        x += 7;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}
static double bench_hertz(void) {
    double seconds;
    uint64_t x = 1;
    BENCH_BEST(seconds, x = bench_chain(x));
    return 4096 / seconds;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

enum { BENCH_REALS = 1 << 17 };
typedef struct bench_data {
    void *a, *b, *c;
} bench_data;

static void bench_fill(const fxa__cpu_kernels *k, void *p, double low, double high) {
    uint64_t state = 1;
    for (int i = 0; i < BENCH_REALS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double x = low + (high - low) * (double)(state >> 11) * 0x1p-53;
        if (k->real_size == sizeof(float))
            ((float *)p)[i] = (float)x;
        else
            ((double *)p)[i] = x;
    }
}

static void bench_rate(const char *label, double seconds, int64_t m, int64_t n, int64_t depth, double peak) {
    double rate = 2.0 * (double)(m * n * depth) / seconds * 1e-9;
    printf("  %s %3" PRId64 " x %3" PRId64 ", k %3" PRId64 "  %7.1f GFLOP/s", label, m, n, depth, rate);
    if (peak > 0) printf("  %5.1f %% of peak", 100 * rate / peak);
    printf("\n");
}

static void bench_gemm(const fxa__cpu_kernels *k, bench_data *data, double peak) {
    static const int sizes[] = {64, 128, 256};
    for (int i = 0; i < 3; i++) {
        int64_t depth = sizes[i], m = 2 * k->mr, n = 256;
        double seconds;
        BENCH_BEST(seconds, k->micro.gemm(m, n, depth, data->a, depth, 1, data->b, depth * k->nr, data->c, n, NULL));
        bench_rate("gemm  ", seconds, m, n, depth, peak);
    }
}

/* Measures the products of bf16 pairs by number of rows: scores, outputs, and dO^T P with the packing of its panel. */
static void bench_pairs(const fxa__cpu_kernels *k, bench_data *data, int64_t d, const float *ones, double peak) {
    enum { KEYS = 256, LD = 272, DEEP = 192, COLUMNS = 32 };
    double seconds;
    for (int64_t m = k->mr; m <= 8 * k->mr; m *= 2) {
        BENCH_BEST(seconds, k->pairs.gemm_pairs(m, KEYS, d, data->a, d / 2, data->b, d * k->nr, data->c, LD, NULL));
        bench_rate("pairs: Q K^T ", seconds, m, KEYS, d, peak);
        BENCH_BEST(seconds, k->pairs.gemm_pairs(m, d, KEYS, data->a, LD, data->b, KEYS * k->nr, data->c, d, ones));
        bench_rate("pairs: P V   ", seconds, m, d, KEYS, peak);
    }
    BENCH_BEST(seconds, k->micro.pack_n(data->b, data->c, LD, DEEP, COLUMNS);
               k->pairs.gemm_pairs(d, COLUMNS, DEEP, data->a, DEEP / 2, data->b, 0, data->c, LD, ones));
    bench_rate("pairs: dO^T P", seconds, d, COLUMNS, DEEP, peak);
}

/* Measures the products with the shapes of the engine: scores, outputs, and products over rows with A transposed. */
static void bench_products(const fxa__cpu_kernels *k, bench_data *data, double peak) {
    static const int sizes[] = {64, 128, 256};
    enum { LD = 400, ROWS = 384, KEYS = 256, DEEP = 96 };
    float ones[ROWS];
    double seconds;
    for (int i = 0; i < ROWS; i++) ones[i] = 1;
    k->micro.pack_n(data->b, data->a, 256, KEYS, 256);
    for (int i = 0; i < 3; i++) {
        int64_t d = sizes[i];
        for (int64_t m = k->mr; m <= ROWS; m += ROWS - k->mr) {
            BENCH_BEST(seconds, k->micro.gemm(m, KEYS, d, data->a, d + 16, 1, data->b, d * k->nr, data->c, KEYS, NULL));
            bench_rate("Q K^T ", seconds, m, KEYS, d, peak);
        }
        BENCH_BEST(seconds, k->micro.gemm(k->mr, d, KEYS, data->a, LD, 1, data->b, KEYS * k->nr, data->c, d, ones));
        bench_rate("P V   ", seconds, k->mr, d, KEYS, peak);
        BENCH_BEST(seconds, k->micro.gemm(ROWS, d, DEEP, data->a, 1, LD, data->b, DEEP * k->nr, data->c, d, ones));
        bench_rate("P^T dO", seconds, ROWS, d, DEEP, peak);
        bench_pairs(k, data, d, ones, peak);
    }
}

static void bench_line(const char *label, double seconds, double elements, double hertz) {
    printf("  %-22s  %7.3f cycles per element\n", label, seconds * hertz / elements);
}

/* Measures dropout of a row: the keep decisions for consecutive and for other keys, and their application to scores. */
static void bench_drop(const fxa__cpu_kernels *k, bench_data *data, double hertz) {
    enum { N = 256 };
    int32_t keys[N], keep[N + FXA__CPU_KEEP_CAPACITY];
    fxa__cpu_dropout_row row = {.seed = 1, .threshold = 1u << 28};
    double seconds;
    for (int i = 0; i < N; i++) keys[i] = i;
    BENCH_BEST(seconds, row.q++; (void)k->row_keep(keep, &row, keys, N, true));
    bench_line("row_keep 256", seconds, N, hertz);
    for (int i = 0; i < N; i++) keys[i] = 4 * i;
    BENCH_BEST(seconds, row.q++; (void)k->row_keep(keep, &row, keys, N, false));
    bench_line("row_keep 256, stride 4", seconds, N, hertz);
    BENCH_BEST(seconds, k->row_drop(data->a, keep, 1, N));
    bench_line("row_drop 256", seconds, N, hertz);
}

/* Measures row functions on twelve rows of 256, a block of scores, so that consecutive calls can overlap. */
static void bench_rows(const fxa__cpu_kernels *k, bench_data *data, double hertz) {
    enum { N = 256, ROWS = 12 };
    double seconds, sink = 0;
    int64_t row = N * (int64_t)k->real_size;
    char *a = data->a, *b = data->b, *c = data->c;
#define BENCH_ROWS(label, call)                                                                                        \
    BENCH_BEST(seconds, for (int64_t i = 0; i < ROWS * row; i += row) call);                                           \
    bench_line(label, seconds, ROWS *N, hertz)
    bench_fill(k, data->a, -8, 0);
    fxa__cpu_score_row part[ROWS];
    for (int i = 0; i < ROWS; i++) part[i] = (fxa__cpu_score_row){a + i * row, N, 2};
    BENCH_BEST(seconds, k->rows_exp(part, ROWS));
    bench_line("rows_exp 256", seconds, ROWS * N, hertz);
    BENCH_BEST(seconds, k->rows_max(part, ROWS));
    bench_line("rows_max 256", seconds, ROWS * N, hertz);
    BENCH_ROWS("row_scale 256", k->row_scale(a + i, N, 1));
    BENCH_ROWS("row_grad 256", k->row_grad(c + i, a + i, b + i, 0.5, N));
    BENCH_ROWS("row_dot 256", sink += k->row_dot(a + i, b + i, N));
#undef BENCH_ROWS
    BENCH_BEST(seconds, k->micro.pack_t(data->c, data->a, 64, 256, 64));
    bench_line("pack_t 256 x 64", seconds, 256 * 64, hertz);
    BENCH_BEST(seconds, k->micro.pack_n(data->c, data->a, 64, 256, 64));
    bench_line("pack_n 256 x 64", seconds, 256 * 64, hertz);
    if (sink == 12345) printf("\n");
}

/* Measures `rows` rows against 256 keys of 128 features, in cycles per stored element, independent of the number of
 * rows. */
static void bench_decode(const fxa__cpu_kernels *k, bench_data *data, uint32_t dtype, int64_t rows, double hertz) {
    enum { KEYS = 256, D = 128 };
    fxa__cpu_stored_rows x = {.data = data->b, .dtype = dtype, .ld = D, .n = KEYS, .d = D};
    const char *name = fxa_dtype_name((fxa_dtype)dtype);
    double seconds;
    char label[64];
    BENCH_BEST(seconds, k->dots(data->c, KEYS, data->a, D, rows, &x));
    (void)snprintf(label, sizeof label, "dots %d rows %s", (int)rows, name);
    bench_line(label, seconds, KEYS * D, hertz);
    BENCH_BEST(seconds, k->sums(data->c, D, data->a, KEYS, rows, &x));
    (void)snprintf(label, sizeof label, "sums %d rows %s", (int)rows, name);
    bench_line(label, seconds, KEYS * D, hertz);
}

static void bench_storage(const fxa__cpu_kernels *k, bench_data *data, double hertz) {
    static const uint32_t dtypes[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16};
    enum { N = 256, ROWS = 256, D = 128 };
    for (int i = 0; i < 4; i++) {
        double seconds;
        char label[64];
        if ((dtypes[i] == FXA_F64) != (k->real_size == 8)) continue;
        const char *dtype = fxa_dtype_name((fxa_dtype)dtypes[i]);
        bench_fill(k, data->a, -1, 1);
        k->store(data->b, dtypes[i], 1, data->a, ROWS * D, 1, false);
        BENCH_BEST(seconds, (void)k->load(data->c, data->b, dtypes[i], 1, N));
        (void)snprintf(label, sizeof label, "load 256 %s", dtype);
        bench_line(label, seconds, N, hertz);
        BENCH_BEST(seconds, k->store(data->c, dtypes[i], 1, data->a, N, 1, false));
        (void)snprintf(label, sizeof label, "store 256 %s", dtype);
        bench_line(label, seconds, N, hertz);
        for (int64_t rows = 1; rows <= 4; rows += 3) bench_decode(k, data, dtypes[i], rows, hertz);
    }
}

static void bench_set_bf16(const fxa__cpu_kernels *k, bench_data *data, double hertz) {
    double seconds;
    if (k->enter) k->enter();
    double peak = bench_peak(k->isa);
    printf("%s: %d x %d, peak %.1f GFLOP/s\n", k->isa, k->mr, k->nr, peak);
    bench_fill(k, data->a, -1, 1);
    bench_products(k, data, peak);
    if (k->leave) k->leave();
    BENCH_BEST(seconds, k->micro.pack_t(data->c, data->a, 64, 256, 64));
    bench_line("pack_t 256 x 64", seconds, 256 * 64, hertz);
    BENCH_BEST(seconds, k->micro.pack_n(data->c, data->a, 64, 256, 64));
    bench_line("pack_n 256 x 64", seconds, 256 * 64, hertz);
    k->store(data->b, FXA_BF16, 1, data->a, 256 * 128, 1, false);
    for (int64_t rows = 1; rows <= 4; rows += 3) bench_decode(k, data, FXA_BF16, rows, hertz);
}

int main(int argc, char **argv) {
    bench_data data;
    void **parts[] = {&data.a, &data.b, &data.c};
    for (int i = 0; i < 3; i++)
        if (posix_memalign(parts[i], 64, BENCH_REALS * sizeof(double)) != 0) return 1;
    const fxa__cpu_kernels *k;
    bool usable;
    double hertz = bench_hertz();
    printf("%.2f GHz\n", hertz * 1e-9);
    for (size_t i = 0; (k = fxa__cpu_set(i, sizeof(float), &usable)) != NULL; i++) {
        if (!usable || (argc > 1 && strcmp(argv[1], k->isa) != 0)) continue;
        for (size_t size = sizeof(float); size <= sizeof(double); size += sizeof(float)) {
            k = fxa__cpu_set(i, size, &usable);
            double peak = bench_peak(k->isa) * sizeof(float) / (double)size;
            printf("%s %s: %d x %d", k->isa, size == sizeof(float) ? "f32" : "f64", k->mr, k->nr);
            if (peak > 0) printf(", peak %.1f GFLOP/s", peak);
            printf("\n");
            bench_fill(k, data.a, -1, 1);
            bench_fill(k, data.b, -1, 1);
            bench_gemm(k, &data, peak);
            bench_rows(k, &data, hertz);
            bench_drop(k, &data, hertz);
            bench_storage(k, &data, hertz);
        }
    }
    for (size_t i = 0; (k = fxa__cpu_set_bf16(i, &usable)) != NULL; i++)
        if (usable && (argc < 2 || strcmp(argv[1], k->isa) == 0)) bench_set_bf16(k, &data, hertz);
    for (int i = 0; i < 3; i++) free(*parts[i]);
    return 0;
}
