/* SPDX-License-Identifier: Apache-2.0
 *
 * What the processor and the operating system let a program use. A feature is reported only when the system also saves
 * the registers that it needs.
 */
#ifndef FXA_BASE_CPU_FEATURES_H
#define FXA_BASE_CPU_FEATURES_H

#include <stdint.h>

enum {
    FXA__CPU_SSE2 = 1u << 0,
    FXA__CPU_AVX2 = 1u << 1,   /* with FMA and F16C */
    FXA__CPU_AVX512 = 1u << 2, /* F, BW, DQ and VL */
    FXA__CPU_NEON = 1u << 3,
    FXA__CPU_AVX512_BF16 = 1u << 4,
    FXA__CPU_AMX_BF16 = 1u << 5 /* a process must still ask for the tiles, see fxa__amx_permit */
};

typedef enum fxa__cpu_vendor { FXA__CPU_OTHER, FXA__CPU_INTEL, FXA__CPU_AMD } fxa__cpu_vendor;

typedef struct fxa__cpu_features {
    uint32_t flags;
    fxa__cpu_vendor vendor;
    uint32_t family, model; /* x86: as the vendors count them, extensions added; 0 elsewhere */
} fxa__cpu_features;

fxa__cpu_features fxa__cpu_features_get(void);

#if defined(__x86_64__)
/* What a machine answers to cpuid (zeros where it has no such leaf) and to xgetbv, apart from what that means: so the
 * tests can ask for machines that they do not run on. */
typedef struct fxa__cpuid_leaf {
    uint32_t a, b, c, d;
} fxa__cpuid_leaf;

typedef struct fxa__cpu_answers {
    fxa__cpuid_leaf leaf0, leaf1, leaf7, leaf7_1;
    uint64_t saved; /* XCR0: register sets that the system saves; 0 without xgetbv */
} fxa__cpu_answers;

fxa__cpu_features fxa__cpu_features_of(const fxa__cpu_answers *machine);
#endif

#endif
