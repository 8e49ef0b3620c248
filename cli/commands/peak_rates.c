/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the rates of multiply-adds and copies. A multiply-add loop keeps twelve vectors in registers: enough to fill
 * the pipelines of current cores, and few enough for sixteen registers.
 */
#include "commands/peak_rates.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PEAK_CHAINS 12
#define PEAK_STEPS 20000               /* multiply-add steps of a slice of about 0.1 ms */
#define PEAK_COPY ((int64_t)128 << 20) /* bytes that all threads together copy in a slice */
#define PEAK_SECONDS 0.03              /* seconds of each measurement of multiply-adds */
#define PEAK_COPYING 0.15

/* ---- Multiply-adds: one function per instruction set, which returns the number of operations of a slice ---------- */

/* acc = acc * x + y converges to y / (1 - x) = 1, without overflow or subnormals. */
#define PEAK_X 0.75f
#define PEAK_Y 0.25f

#define PEAK_LOOP(name, attributes, vector, lanes, set, step)                                                          \
    static attributes double name(void) {                                                                              \
        vector acc[PEAK_CHAINS], x = set(PEAK_X), y = set(PEAK_Y);                                                     \
        for (int i = 0; i < PEAK_CHAINS; i++) acc[i] = set((float)i);                                                  \
        for (int n = 0; n < PEAK_STEPS; n++) {                                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++) acc[i] = step(acc[i], x, y);                \
        }                                                                                                              \
        for (int i = 0; i < PEAK_CHAINS; i++) {                                                                        \
            volatile float kept; /* keeps the compiler from removing the loop */                                       \
            float first;                                                                                               \
            memcpy(&first, &acc[i], sizeof first);                                                                     \
            kept = first;                                                                                              \
            (void)kept;                                                                                                \
        }                                                                                                              \
        return 2.0 * (lanes)*PEAK_CHAINS * PEAK_STEPS;                                                                 \
    }

#if defined(__x86_64__)
#define STEP_SS(a, x, y) _mm_add_ss(_mm_mul_ss(a, x), y)
#define STEP_PS(a, x, y) _mm_add_ps(_mm_mul_ps(a, x), y)
PEAK_LOOP(peak_scalar, , __m128, 1, _mm_set1_ps, STEP_SS)
PEAK_LOOP(peak_sse2, , __m128, 4, _mm_set1_ps, STEP_PS)
PEAK_LOOP(peak_avx2, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps)
PEAK_LOOP(peak_avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps)
#else
#define SET_ONE(value) (value)
#define STEP_ONE(a, x, y) ((a) * (x) + (y))
PEAK_LOOP(peak_scalar, , float, 1, SET_ONE, STEP_ONE)
#endif
#if defined(__aarch64__)
#define STEP_NEON(a, x, y) vfmaq_f32(y, a, x)
PEAK_LOOP(peak_neon, , float32x4_t, 4, vdupq_n_f32, STEP_NEON)
#endif

typedef struct peak_set {
    const char *name;
    double (*slice)(void);
    bool usable;
} peak_set;

static int peak_sets(peak_set *out) {
    int n = 0;
    out[n++] = (peak_set){"scalar", peak_scalar, true};
#if defined(__x86_64__)
    __builtin_cpu_init();
    out[n++] = (peak_set){"sse2", peak_sse2, true};
    out[n++] = (peak_set){"avx2", peak_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
    out[n++] = (peak_set){"avx512", peak_avx512, __builtin_cpu_supports("avx512f") != 0};
#elif defined(__aarch64__)
    out[n++] = (peak_set){"neon", peak_neon, true};
#endif
    return n;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct peak_task {
    pthread_t thread;
    double (*slice)(void); /* runs a slice and returns its number of operations; NULL = copy */
    char *from, *to;
    size_t size;
    double seconds, rate;
} peak_task;

static double peak_run_slice(const peak_task *t) {
    if (t->slice) return t->slice();
    memcpy(t->to, t->from, t->size);
    volatile char kept = t->to[t->size / 2]; /* keeps the compiler from removing the copy */
    (void)kept;
    return 2.0 * (double)t->size;
}

static void *peak_thread(void *user) {
    peak_task *t = user;
    double begin = cli_seconds(), last = begin;
    t->rate = 0;
    do {
        double work = peak_run_slice(t), now = cli_seconds();
        if (now > last && work / (now - last) > t->rate) t->rate = work / (now - last);
        last = now;
    } while (last - begin < t->seconds);
    return NULL;
}

/* Returns the sum of the threads' rates. A thread that cannot be started counts as 0. */
static double peak_rate(peak_task *tasks, int32_t threads) {
    double sum = 0;
    for (int32_t i = 1; i < threads; i++)
        if (pthread_create(&tasks[i].thread, NULL, peak_thread, &tasks[i]) != 0) threads = i;
    peak_thread(&tasks[0]);
    for (int32_t i = 0; i < threads; i++) {
        if (i > 0) pthread_join(tasks[i].thread, NULL);
        sum += tasks[i].rate;
    }
    return sum;
}

double peak_flops(int32_t threads) {
    static peak_task tasks[FXA_MAX_THREADS];
    peak_set sets[8];
    int n = peak_sets(sets), chosen = 0;
    const char *forced = getenv("FXA_CPU");
    for (int i = 0; i < n; i++) {
        if (!sets[i].usable) continue;
        chosen = i;
        if (forced && strcmp(sets[i].name, forced) == 0) break;
    }
    for (int32_t i = 0; i < threads; i++) tasks[i] = (peak_task){.slice = sets[chosen].slice, .seconds = PEAK_SECONDS};
    return peak_rate(tasks, threads);
}

double peak_copy(cli *c, int32_t threads) {
    static peak_task tasks[FXA_MAX_THREADS];
    size_t size = (size_t)(PEAK_COPY / threads);
    char *memory = cli_alloc(c, 2 * size * (size_t)threads);
    for (int32_t i = 0; i < threads; i++) {
        char *own = memory + 2 * size * (size_t)i;
        memset(own, 1, 2 * size); /* maps the pages before the measurement */
        tasks[i] = (peak_task){.from = own, .to = own + size, .size = size, .seconds = PEAK_COPYING};
    }
    return peak_rate(tasks, threads);
}
