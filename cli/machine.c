/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures multiply-adds and copies. A multiply-add loop keeps twelve vectors in registers: enough to fill the
 * pipelines of every core we know, and few enough for sixteen registers. */
#include "machine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define MACHINE_CHAINS 12
#define MACHINE_STEPS 20000               /* of a slice: a tenth of a millisecond */
#define MACHINE_COPY ((int64_t)128 << 20) /* bytes that all threads together copy in a slice */
#define MACHINE_SECONDS 0.03              /* of measuring, each time */
#define MACHINE_COPYING 0.15

/* ---- Multiply-adds, one function per instruction set: the number of operations of a slice ---------------------- */

/* acc = acc * x + y tends to y / (1 - x) = 1: neither overflow nor denormals. */
#define MACHINE_X 0.75f
#define MACHINE_Y 0.25f

#define MACHINE_LOOP(name, attributes, vector, lanes, set, step)                                                       \
    static attributes double name(void) {                                                                              \
        vector acc[MACHINE_CHAINS], x = set(MACHINE_X), y = set(MACHINE_Y);                                            \
        for (int i = 0; i < MACHINE_CHAINS; i++) acc[i] = set((float)i);                                               \
        for (int n = 0; n < MACHINE_STEPS; n++) {                                                                      \
            _Pragma("GCC unroll 12") for (int i = 0; i < MACHINE_CHAINS; i++) acc[i] = step(acc[i], x, y);             \
        }                                                                                                              \
        for (int i = 0; i < MACHINE_CHAINS; i++) {                                                                     \
            volatile float kept; /* so that the loop is not left out */                                                \
            float first;                                                                                               \
            memcpy(&first, &acc[i], sizeof first);                                                                     \
            kept = first;                                                                                              \
            (void)kept;                                                                                                \
        }                                                                                                              \
        return 2.0 * (lanes)*MACHINE_CHAINS * MACHINE_STEPS;                                                           \
    }

#if defined(__x86_64__)
#define STEP_SS(a, x, y) _mm_add_ss(_mm_mul_ss(a, x), y)
#define STEP_PS(a, x, y) _mm_add_ps(_mm_mul_ps(a, x), y)
MACHINE_LOOP(machine_scalar, , __m128, 1, _mm_set1_ps, STEP_SS)
MACHINE_LOOP(machine_sse2, , __m128, 4, _mm_set1_ps, STEP_PS)
MACHINE_LOOP(machine_avx2, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps)
MACHINE_LOOP(machine_avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps)
#else
#define SET_ONE(value) (value)
#define STEP_ONE(a, x, y) ((a) * (x) + (y))
MACHINE_LOOP(machine_scalar, , float, 1, SET_ONE, STEP_ONE)
#endif
#if defined(__aarch64__)
#define STEP_NEON(a, x, y) vfmaq_f32(y, a, x)
MACHINE_LOOP(machine_neon, , float32x4_t, 4, vdupq_n_f32, STEP_NEON)
#endif

typedef struct machine_set {
    const char *name;
    double (*slice)(void);
    bool usable;
} machine_set;

static int machine_sets(machine_set *out) {
    int n = 0;
    out[n++] = (machine_set){"scalar", machine_scalar, true};
#if defined(__x86_64__)
    __builtin_cpu_init();
    out[n++] = (machine_set){"sse2", machine_sse2, true};
    out[n++] = (machine_set){"avx2", machine_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
    out[n++] = (machine_set){"avx512", machine_avx512, __builtin_cpu_supports("avx512f") != 0};
#elif defined(__aarch64__)
    out[n++] = (machine_set){"neon", machine_neon, true};
#endif
    return n;
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

typedef struct machine_task {
    pthread_t thread;
    double (*slice)(void); /* NULL: copy */
    char *from, *to;
    size_t size;
    double seconds, rate;
} machine_task;

static double machine_slice(const machine_task *t) {
    if (t->slice) return t->slice();
    memcpy(t->to, t->from, t->size);
    volatile char kept = t->to[t->size / 2]; /* so that the copy is not left out */
    (void)kept;
    return 2.0 * (double)t->size;
}

static void *machine_thread(void *user) {
    machine_task *t = user;
    double begin = cli_seconds(), last = begin;
    t->rate = 0;
    do {
        double work = machine_slice(t), now = cli_seconds();
        if (now > last && work / (now - last) > t->rate) t->rate = work / (now - last);
        last = now;
    } while (last - begin < t->seconds);
    return NULL;
}

/* Threads that cannot be started add nothing. */
static double machine_rate(machine_task *tasks, int32_t threads) {
    double sum = 0;
    for (int32_t i = 1; i < threads; i++)
        if (pthread_create(&tasks[i].thread, NULL, machine_thread, &tasks[i]) != 0) threads = i;
    machine_thread(&tasks[0]);
    for (int32_t i = 0; i < threads; i++) {
        if (i > 0) pthread_join(tasks[i].thread, NULL);
        sum += tasks[i].rate;
    }
    return sum;
}

double machine_flops(int32_t threads) {
    static machine_task tasks[FXA_MAX_THREADS];
    machine_set sets[8];
    int n = machine_sets(sets), chosen = 0;
    const char *forced = getenv("FXA_CPU");
    for (int i = 0; i < n; i++) {
        if (!sets[i].usable) continue;
        chosen = i;
        if (forced && strcmp(sets[i].name, forced) == 0) break;
    }
    for (int32_t i = 0; i < threads; i++)
        tasks[i] = (machine_task){.slice = sets[chosen].slice, .seconds = MACHINE_SECONDS};
    return machine_rate(tasks, threads);
}

double machine_copy(cli *c, int32_t threads) {
    static machine_task tasks[FXA_MAX_THREADS];
    size_t size = (size_t)(MACHINE_COPY / threads);
    char *memory = cli_alloc(c, 2 * size * (size_t)threads);
    for (int32_t i = 0; i < threads; i++) {
        char *own = memory + 2 * size * (size_t)i;
        memset(own, 1, 2 * size); /* its pages exist before the clock runs */
        tasks[i] = (machine_task){.from = own, .to = own + size, .size = size, .seconds = MACHINE_COPYING};
    }
    return machine_rate(tasks, threads);
}
