/* SPDX-License-Identifier: Apache-2.0
 *
 * Features by cpuid on x86-64; other machines have what their architecture guarantees.
 */
#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>

/* Which register sets the operating system saves (XCR0). Only where cpuid tells that the instruction exists. */
static uint64_t features_saved(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static fxa__cpu_vendor features_vendor(uint32_t b, uint32_t c, uint32_t d) {
    char name[12];
    memcpy(name, &b, 4);
    memcpy(name + 4, &d, 4);
    memcpy(name + 8, &c, 4);
    if (memcmp(name, "GenuineIntel", 12) == 0) return FXA__CPU_INTEL;
    if (memcmp(name, "AuthenticAMD", 12) == 0) return FXA__CPU_AMD;
    return FXA__CPU_OTHER;
}

/* XCR0: SSE and AVX; with masks and all of ZMM; shapes and data of tiles. Then bits of cpuid leaf 7. */
enum { FEATURES_YMM = 0x6, FEATURES_ZMM = 0xe6, FEATURES_TILES = 0x60000 };
enum { FEATURES_AMX = 1 << 24 | 1 << 22, FEATURES_BF16 = 1 << 5 }; /* tiles and their bf16, EDX of 0; EAX of 1 */

fxa__cpu_features fxa__cpu_features_get(void) {
    fxa__cpu_features f = {.flags = FXA__CPU_SSE2};
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return f;
    f.vendor = features_vendor(b, c, d);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    f.family = a >> 8 & 15;
    f.model = a >> 4 & 15;
    if (f.family == 6 || f.family == 15) f.model += (a >> 16 & 15) << 4;
    if (f.family == 15) f.family += a >> 20 & 255;

    uint32_t basic = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((c & basic) != basic || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return f;
    uint64_t saved = features_saved();
    if ((saved & FEATURES_YMM) != FEATURES_YMM) return f;
    f.flags |= FXA__CPU_AVX2;
    uint32_t wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((b & wide) != wide || (saved & FEATURES_ZMM) != FEATURES_ZMM) return f;
    f.flags |= FXA__CPU_AVX512;
    if ((d & FEATURES_AMX) == FEATURES_AMX && (saved & FEATURES_TILES) == FEATURES_TILES) f.flags |= FXA__CPU_AMX_BF16;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & FEATURES_BF16)) f.flags |= FXA__CPU_AVX512_BF16;
    return f;
}

#elif defined(__aarch64__)

fxa__cpu_features fxa__cpu_features_get(void) {
    return (fxa__cpu_features){.flags = FXA__CPU_NEON};
}

#else

fxa__cpu_features fxa__cpu_features_get(void) {
    return (fxa__cpu_features){0};
}

#endif
