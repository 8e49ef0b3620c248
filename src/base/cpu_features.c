/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads features with cpuid on x86-64. On other machines, reports the features that the architecture guarantees.
 */
#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>

static fxa__cpu_vendor features_vendor(uint32_t b, uint32_t c, uint32_t d) {
    char name[12];
    memcpy(name, &b, 4);
    memcpy(name + 4, &d, 4);
    memcpy(name + 8, &c, 4);
    if (memcmp(name, "GenuineIntel", 12) == 0) return FXA__CPU_INTEL;
    if (memcmp(name, "AuthenticAMD", 12) == 0) return FXA__CPU_AMD;
    return FXA__CPU_OTHER;
}

/* Bits of XCR0, which name the register sets that the system saves: SSE and AVX; all of AVX-512; configuration and data
 * of AMX tiles. */
enum { FEATURES_YMM = 0x6, FEATURES_ZMM = 0xe6, FEATURES_TILES = 0x60000 };
/* Bits of cpuid leaf 7: AMX tiles and AMX bf16 in EDX of subleaf 0; AVX-512 bf16 in EAX of subleaf 1. */
enum { FEATURES_AMX = 1 << 24 | 1 << 22, FEATURES_BF16 = 1 << 5 };

fxa__cpu_features fxa__cpu_features_of(const fxa__cpu_answers *m) {
    fxa__cpu_features f = {.flags = FXA__CPU_SSE2};
    f.vendor = features_vendor(m->leaf0.b, m->leaf0.c, m->leaf0.d);
    f.family = m->leaf1.a >> 8 & 15;
    f.model = m->leaf1.a >> 4 & 15;
    if (f.family == 6 || f.family == 15) f.model += (m->leaf1.a >> 16 & 15) << 4;
    if (f.family == 15) f.family += m->leaf1.a >> 20 & 255;

    uint32_t basic = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((m->leaf1.c & basic) != basic || !(m->leaf7.b & bit_AVX2)) return f;
    if ((m->saved & FEATURES_YMM) != FEATURES_YMM) return f;
    f.flags |= FXA__CPU_AVX2;
    uint32_t wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((m->leaf7.b & wide) != wide || (m->saved & FEATURES_ZMM) != FEATURES_ZMM) return f;
    f.flags |= FXA__CPU_AVX512;
    if ((m->leaf7.d & FEATURES_AMX) == FEATURES_AMX && (m->saved & FEATURES_TILES) == FEATURES_TILES)
        f.flags |= FXA__CPU_AMX_BF16;
    if (m->leaf7_1.a & FEATURES_BF16) f.flags |= FXA__CPU_AVX512_BF16;
    return f;
}

/* Returns the features of this machine. A cpuid leaf that the processor lacks counts as zeroes. The instruction xgetbv
 * is executed only if cpuid reports support for it. */
fxa__cpu_features fxa__cpu_features_get(void) {
    fxa__cpu_answers m = {.saved = 0};
    __get_cpuid(0, &m.leaf0.a, &m.leaf0.b, &m.leaf0.c, &m.leaf0.d);
    __get_cpuid(1, &m.leaf1.a, &m.leaf1.b, &m.leaf1.c, &m.leaf1.d);
    __get_cpuid_count(7, 0, &m.leaf7.a, &m.leaf7.b, &m.leaf7.c, &m.leaf7.d);
    __get_cpuid_count(7, 1, &m.leaf7_1.a, &m.leaf7_1.b, &m.leaf7_1.c, &m.leaf7_1.d);
    if (m.leaf1.c & bit_OSXSAVE) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        m.saved = (uint64_t)high << 32 | low;
    }
    return fxa__cpu_features_of(&m);
}

#elif defined(__aarch64__)

fxa__cpu_features fxa__cpu_features_get(void) { return (fxa__cpu_features){.flags = FXA__CPU_NEON}; }

#else

fxa__cpu_features fxa__cpu_features_get(void) { return (fxa__cpu_features){0}; }

#endif
