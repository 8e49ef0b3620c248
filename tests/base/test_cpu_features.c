/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU features from cpuid values: those of known processors, and a complete machine with single bits removed. A feature
 * reported although the operating system does not save its registers would end a program by SIGILL, or corrupt it.
 */
#include "base/cpu_features.h"
#include "t.h"

#if defined(__x86_64__)

/* "Genu", "ntel", "ineI": registers b, c, d */
static const fxa__cpuid_leaf intel = {0x20, 0x756e6547, 0x6c65746e, 0x49656e69};
static const fxa__cpuid_leaf amd = {0x10, 0x68747541, 0x444d4163, 0x69746e65};

enum { C1_FMA = 1 << 12, C1_OSXSAVE = 1 << 27, C1_AVX = 1 << 28, C1_F16C = 1 << 29 };
enum { B7_AVX2 = 1 << 5, B7_F = 1 << 16, B7_DQ = 1 << 17, B7_BW = 1 << 30 };
#define B7_VL 0x80000000u
enum { D7_AMX_BF16 = 1 << 22, D7_AMX_TILE = 1 << 24, A71_BF16 = 1 << 5 };
enum { XCR0_SSE = 2, XCR0_AVX = 4, XCR0_MASKS = 0x20, XCR0_ZMM_UPPER = 0x40, XCR0_ZMM_HIGH = 0x80 };
enum { XCR0_TILE_SHAPES = 1 << 17, XCR0_TILE_DATA = 1 << 18 };

/* Returns a machine with every feature and the signature of Sapphire Rapids (family 6, model 0x8f). */
static fxa__cpu_answers machine_with_all(void) {
    fxa__cpu_answers m = {.leaf0 = intel, .leaf1 = {.a = 0x000806f8}};
    m.leaf1.c = C1_FMA | C1_OSXSAVE | C1_AVX | C1_F16C;
    m.leaf7.b = B7_AVX2 | B7_F | B7_DQ | B7_BW | B7_VL;
    m.leaf7.d = D7_AMX_BF16 | D7_AMX_TILE;
    m.leaf7_1.a = A71_BF16;
    m.saved = XCR0_SSE | XCR0_AVX | XCR0_MASKS | XCR0_ZMM_UPPER | XCR0_ZMM_HIGH | XCR0_TILE_SHAPES | XCR0_TILE_DATA;
    return m;
}

enum {
    UP_TO_AVX2 = FXA__CPU_SSE2 | FXA__CPU_AVX2,
    UP_TO_AVX512 = UP_TO_AVX2 | FXA__CPU_AVX512,
    EVERYTHING = UP_TO_AVX512 | FXA__CPU_AVX512_BF16 | FXA__CPU_AMX_BF16
};

TEST(a_machine_with_all) {
    fxa__cpu_answers m = machine_with_all();
    fxa__cpu_features f = fxa__cpu_features_of(&m);
    T_INT(f.flags, EVERYTHING);
    T_INT(f.vendor, FXA__CPU_INTEL);
    T_INT(f.family, 6);
    T_INT(f.model, 0x8f);
}

TEST(a_machine_that_answers_nothing) {
    fxa__cpu_answers m = {.saved = 0};
    fxa__cpu_features f = fxa__cpu_features_of(&m);
    T_INT(f.flags, FXA__CPU_SSE2);
    T_INT(f.vendor, FXA__CPU_OTHER);
    T_INT(f.family, 0);
    T_INT(f.model, 0);
}

/* Clears one bit and checks the remaining features. */
static void check_without(uint32_t *word, fxa__cpu_answers *m, uint32_t bit, uint32_t expected) {
    uint32_t before = *word;
    T_CHECK(before & bit);
    *word &= ~bit;
    T_INT(fxa__cpu_features_of(m).flags, expected);
    *word = before;
}

TEST(every_bit_counts) {
    fxa__cpu_answers m = machine_with_all();
    uint32_t basic[] = {C1_FMA, C1_OSXSAVE, C1_AVX, C1_F16C}, wide[] = {B7_F, B7_DQ, B7_BW, B7_VL};
    for (int i = 0; i < 4; i++) check_without(&m.leaf1.c, &m, basic[i], FXA__CPU_SSE2);
    for (int i = 0; i < 4; i++) check_without(&m.leaf7.b, &m, wide[i], UP_TO_AVX2);
    check_without(&m.leaf7.b, &m, B7_AVX2, FXA__CPU_SSE2);
    check_without(&m.leaf7.d, &m, D7_AMX_TILE, EVERYTHING & ~FXA__CPU_AMX_BF16);
    check_without(&m.leaf7.d, &m, D7_AMX_BF16, EVERYTHING & ~FXA__CPU_AMX_BF16);
    check_without(&m.leaf7_1.a, &m, A71_BF16, EVERYTHING & ~FXA__CPU_AVX512_BF16);
}

TEST(registers_that_the_system_does_not_save) {
    static const struct {
        uint64_t bit;
        uint32_t expected;
    } cases[] = {
        {XCR0_SSE, FXA__CPU_SSE2},
        {XCR0_AVX, FXA__CPU_SSE2},
        {XCR0_MASKS, UP_TO_AVX2},
        {XCR0_ZMM_UPPER, UP_TO_AVX2},
        {XCR0_ZMM_HIGH, UP_TO_AVX2},
        {XCR0_TILE_SHAPES, EVERYTHING & ~FXA__CPU_AMX_BF16},
        {XCR0_TILE_DATA, EVERYTHING & ~FXA__CPU_AMX_BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa__cpu_answers m = machine_with_all();
        m.saved &= ~cases[i].bit;
        T_INT(fxa__cpu_features_of(&m).flags, cases[i].expected);
    }
}

/* EAX of leaf 1 for known processors, with the family and model that vendors publish. */
TEST(family_and_model) {
    static const struct {
        uint32_t name[3], signature;
        fxa__cpu_vendor vendor;
        uint32_t family, model;
    } cases[] = {
        {{0x756e6547, 0x6c65746e, 0x49656e69}, 0x00050654, FXA__CPU_INTEL, 6, 0x55}, /* Skylake-SP */
        {{0x756e6547, 0x6c65746e, 0x49656e69}, 0x000306c3, FXA__CPU_INTEL, 6, 0x3c}, /* Haswell */
        {{0x756e6547, 0x6c65746e, 0x49656e69}, 0x00000f4a, FXA__CPU_INTEL, 15, 4},   /* Pentium 4 */
        {{0x756e6547, 0x6c65746e, 0x49656e69}, 0x00000543, FXA__CPU_INTEL, 5, 4},    /* Pentium MMX */
        {{0x68747541, 0x444d4163, 0x69746e65}, 0x00a60f12, FXA__CPU_AMD, 25, 0x61},  /* Zen 4 */
        {{0x68747541, 0x444d4163, 0x69746e65}, 0x00830f10, FXA__CPU_AMD, 23, 0x31},  /* Zen 2 */
        {{0x746e6543, 0x736c7561, 0x48727561}, 0x000006fe, FXA__CPU_OTHER, 6, 15},   /* CentaurHauls */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa__cpu_answers m = {.leaf1 = {.a = cases[i].signature}};
        m.leaf0 = (fxa__cpuid_leaf){.b = cases[i].name[0], .c = cases[i].name[1], .d = cases[i].name[2]};
        fxa__cpu_features f = fxa__cpu_features_of(&m);
        T_INT(f.vendor, cases[i].vendor);
        T_INT(f.family, cases[i].family);
        T_INT(f.model, cases[i].model);
    }
}

TEST(wide_vectors_of_another_vendor) { /* Zen 4: AVX-512 with bf16, no AMX */
    fxa__cpu_answers m = machine_with_all();
    m.leaf0 = amd;
    m.leaf1.a = 0x00a60f12;
    m.leaf7.d = 0;
    m.saved &= ~(uint64_t)(XCR0_TILE_SHAPES | XCR0_TILE_DATA);
    fxa__cpu_features f = fxa__cpu_features_of(&m);
    T_INT(f.vendor, FXA__CPU_AMD);
    T_INT(f.flags, UP_TO_AVX512 | FXA__CPU_AVX512_BF16);
}

/* Compares with the compiler's own cpu checks, which exclude registers that the system does not save. */
TEST(this_machine_as_the_compiler_sees_it) {
    uint32_t flags = fxa__cpu_features_get().flags;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    T_INT((flags & FXA__CPU_AVX2) != 0, avx2);
    T_INT((flags & FXA__CPU_AVX512) != 0, avx512);
}

#else

TEST(this_machine_has_what_its_architecture_guarantees) {
#if defined(__aarch64__)
    T_INT(fxa__cpu_features_get().flags, FXA__CPU_NEON);
#else
    T_INT(fxa__cpu_features_get().flags, 0);
#endif
}

#endif

T_MAIN
