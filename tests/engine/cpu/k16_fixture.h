/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of kernel sets that multiply in bf16: the sets, their rounding, and memory with canaries.
 */
#ifndef FXA_TESTS_K16_FIXTURE_H
#define FXA_TESTS_K16_FIXTURE_H

#include "base/dtype.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/kernels/bf16.h"
#include "t.h"

#if defined(__x86_64__) /* no other processor has such a kernel set */

/* Writes kernel set i to *out; micro.gemm is NULL if this machine cannot run the set. Returns false past the last
 * set. */
static inline bool k16_set(size_t i, fxa__cpu_kernels *out) {
    bool usable;
    const fxa__cpu_kernels *k = fxa__cpu_set_bf16(i, &usable);
    if (!k) return false;
    *out = *k;
    if (!usable) out->micro.gemm = NULL;
    return true;
}
#define K16_EACH(k)                                                                                                    \
    fxa__cpu_kernels k;                                                                                                \
    for (size_t k##_i = 0; k16_set(k##_i, &k); k##_i++)                                                                \
        if (!k.micro.gemm)                                                                                             \
            printf("  skipped %s: this processor cannot run kernels for %s\n", k.isa, k.isa);                          \
        else

/* Rounds to bf16 as the processor does: subnormal floats become 0. */
static inline uint16_t k16_bits(float x) {
    return fxa__f64_to_bf16(fabsf(x) < 0x1p-126f ? copysign(0, (double)x) : (double)x);
}
static inline double k16_round(float x) { return fxa__bf16_to_f64(k16_bits(x)); }

enum { K16_FLOATS = 1 << 17, K16_CANARY = 0x7fc12345 };
static float k16_x[K16_FLOATS];
static uint32_t k16_panels[K16_FLOATS];

static inline void k16_fill(float *x, int64_t n, t_rng *rng) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)t_real(rng, -2, 2);
}
static inline void k16_canaries(void *x) {
    for (int64_t i = 0; i < K16_FLOATS; i++) ((uint32_t *)x)[i] = K16_CANARY;
}

#endif

#endif
