/* SPDX-License-Identifier: Apache-2.0
 *
 * Features of the processor that a program can use. A feature is reported only if the operating system also saves the
 * feature's registers.
 */
#ifndef FXA_BASE_CPU_FEATURES_H
#define FXA_BASE_CPU_FEATURES_H

#include <stdint.h>

enum {
    FXA__CPU_SSE2 = 1u << 0,
    FXA__CPU_AVX2 = 1u << 1,   /* AVX2 with FMA and F16C */
    FXA__CPU_AVX512 = 1u << 2, /* AVX-512 F, BW, DQ and VL */
    FXA__CPU_NEON = 1u << 3,
    FXA__CPU_AVX512_BF16 = 1u << 4,
    FXA__CPU_AMX_BF16 = 1u << 5 /* a process must first request AMX tiles (fxa__amx_permit) */
};

typedef enum fxa__cpu_vendor { FXA__CPU_OTHER, FXA__CPU_INTEL, FXA__CPU_AMD } fxa__cpu_vendor;

typedef struct fxa__cpu_features {
    uint32_t flags;
    fxa__cpu_vendor vendor;
    uint32_t family, model; /* x86: family and model number, extended bits included; other machines: 0 */
} fxa__cpu_features;

fxa__cpu_features fxa__cpu_features_get(void);

#if defined(__x86_64__)
/* Raw results of cpuid (zeroes for missing leaves) and of xgetbv. Tests pass the results of other machines to
 * fxa__cpu_features_of. */
typedef struct fxa__cpuid_leaf {
    uint32_t a, b, c, d;
} fxa__cpuid_leaf;

typedef struct fxa__cpu_answers {
    fxa__cpuid_leaf leaf0, leaf1, leaf7, leaf7_1;
    uint64_t saved; /* XCR0: register sets that the system saves; 0 = xgetbv is not available */
} fxa__cpu_answers;

fxa__cpu_features fxa__cpu_features_of(const fxa__cpu_answers *machine);
#endif

#endif
