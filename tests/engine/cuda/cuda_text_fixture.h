/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles program.cuh as C++ for the host, with the CUDA functions that it calls defined here: many programs in one
 * shared object, each with a function for a pair and one for a tile. For test_cuda_program.c and test_cuda_masks.c.
 */
#ifndef FXA_TESTS_CUDA_TEXT_FIXTURE_H
#define FXA_TESTS_CUDA_TEXT_FIXTURE_H

#include "lower/emit_fixture.h"

#include "engine/cuda/cuda.h"

/* Value of a pair. out: new score times log2(e), derivative, mask, then the terms of the sums. */
typedef void (*meant_pair)(const struct FxaArgs *a, const int *at, const float *given, const int *words, float *out);
typedef int (*meant_tile)(const struct FxaArgs *a, const int *at);

static const char meant_head[] =
    "#include <cmath>\n#include <algorithm>\nusing std::max;\nusing std::min;\n"
    "#define FXA__OPS_F32\n#include \"lower/program_ops.h\"\n#include \"program/interval_rules.h\"\n"
    "#include \"engine/cuda/kernels/common/args.h\"\n"
    "#define FXA_INLINE inline\n"
    "static const float LOG2E = 1.4426950408889634f;\n"
    "static float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }\n"
    "static float __fadd_rn(float x, float y) { return x + y; }\n"
    "static float __fsub_rn(float x, float y) { return x - y; }\n"
    "static float __fmul_rn(float x, float y) { return x * y; }\n"
    "static float __int_as_float(int x) { return fxa__float_of((unsigned)x); }\n"
    "static float score_tanh(float x) { return tanhf(x); }\n"
    "static float score_softcap_series(float s, const float *c) {\n"
    "    float p = 0;\n    for (int i = FXA_CUDA_SOFTCAP_TERMS; i-- > 0;) p = fmaf(p, s * s, c[i]);\n    return s * "
    "p;\n}\n"
    "struct SoftcapExp { float factor, inverse, u; };\n"
    "#define FXA_FAST_MATH 0\n"
    "struct Int2 { int x, y; };\n"
    "static Int2 operand_range(const FxaOperand &v, int b, int h, int first, int last) {\n"
    "    const Int2 *r = (const Int2 *)v.ranges + b * v.ranges_b + h * v.ranges_h;\n"
    "    Int2 all = r[first >> 6];\n"
    "    for (int i = first >> 6; i <= last >> 6; i++) all = Int2{min(all.x, r[i].x), max(all.y, r[i].y)};\n"
    "    return all;\n}\n"
    "typedef unsigned u32;\ntypedef unsigned long long u64;\n"
    "static void atomicAdd(float *p, float x) { *p += x; }\n"
    "static u64 atomicAdd(u64 *p, u64 x) { u64 old = *p; *p += x; return old; }\n"
    "enum { KEY_LANES, QUERY_LANES, ALL_LANES };\n"
    "template <int> static bool sum_lanes(float &x) { return x != 0; }\n"
    "static int __float_as_int(float x) { union { float f; int i; } u = {x}; return u.i; }\n"
    "static long long __double_as_longlong(double x) { union { double f; long long i; } u = {x}; return u.i; }\n"
    "#define __ldg(p) (*(p))\n#define FXA_CUDA_COMMON_SWIZZLE_CUH\n"
    "#define __device__\n#define __noinline__\n"
    "#include \"engine/cuda/kernels/common/scalars.cuh\"\n#include \"engine/cuda/kernels/common/exact_sum.cuh\"\n"
    "#include \"engine/cuda/kernels/common/trig.cuh\"\n"
    "static int q_length(const FxaArgs &a, int) { return a.q_len; }\n"
    "static int k_length(const FxaArgs &a, int) { return a.k_len; }\n"
    "struct Pair { int q, k, q_off, k_off; float diagonal, dense; int q_word, k_word; };\n"
    "enum { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };\n"
    "struct ProgramBase {\n"
    "    static int tile_class(const FxaArgs &, int, int, int, int, int, int) { return TILE_FULL; }\n"
    "    void tile(const FxaArgs &, int, int) {}\n};\n";

static const char *const meant_switches[] = {"VALUE",
                                             "DERIVATIVE",
                                             "MASK",
                                             "BOUNDED",
                                             "DIAGONAL",
                                             "DENSE",
                                             "OPERANDS",
                                             "SOFTCAP_SERIES",
                                             "GRAD_DIAGONAL",
                                             "GRAD_DENSE",
                                             "GRAD_SUMS",
                                             "GRAD_SCATTER",
                                             "UNIFORM_OPERANDS",
                                             "GRAD_EXACT",
                                             "GRAD_DIAGONAL_EXACT",
                                             "USER_BACKWARD",
                                             "SOFTCAP",
                                             "SOFTCAP_HAS_UNIT",
                                             "OUT_OF_LINE",
                                             "PACK_OPERANDS"};

/* Text of the functions for program number %d. at: for a pair b, h, q, k and the distances of q and k from the start of
 * their tile; for a tile b, h, q0, q1, k0, k1. */
static const char meant_calls[] =
    "extern \"C\" void pair%d(const FxaArgs *a, const int *at, const float *given, const int *words, float *out) {\n"
    "    Program p;\n    Pair x = {at[2], at[3], at[4], at[5], 0, given[0], words[0], words[1]};\n"
    "    float v = given[1], slope = 1;\n    p.head(*a, at[0], at[1], a->q_len, a->k_len);\n"
    "    p.tile(*a, at[2] - at[4], at[3] - at[5]);\n"
    "#if PROG_DIAGONAL\n    x.diagonal = Program::diagonal(*a, at[0], at[1], at[2] - at[3]);\n#endif\n"
    "#if PROG_SOFTCAP\n    v = p.softcap(*a, v);\n#endif\n"
    "#if PROG_SOFTCAP_SERIES\n    if (fabsf(given[1]) < p.series_limit(*a)) v = p.softcap_series(*a, "
    "given[1]);\n#endif\n"
    "#if PROG_SOFTCAP_SERIES\n    if (fabsf(given[1]) >= p.series_limit(*a) && fabsf(given[1]) < p.exp_limit(*a)) {\n"
    "        SoftcapExp c = p.softcap_exp(*a);\n"
    "        v = c.u + 1 / (c.inverse * (1 + exp2f(given[1] * c.factor)));\n    }\n#endif\n"
    "#if PROG_DERIVATIVE\n    v = p.value(*a, v, x, slope);\n#elif PROG_VALUE\n    v = p.value(*a, v, x);\n#endif\n"
    "#if PROG_USER_BACKWARD\n    slope = p.user_backward(*a, given[1], x, 0.75f);\n#endif\n"
    "    out[0] = v * Program::unit(*a), out[1] = slope, out[2] = 1;\n"
    "#if PROG_MASK\n    out[2] = p.mask(*a, x);\n#endif\n"
    "#if PROG_UNIFORM_OPERANDS\n    if (x.q_word == x.k_word && p.uniform_mask(*a, x) != p.mask(*a, x)) out[2] = "
    "-1;\n#endif\n"
    "#if PROG_GRAD_SUMS\n    float g[PROG_GRAD_SUMS];\n    p.partials(*a, given[1], x, g);\n"
    "    for (int i = 0; i < PROG_GRAD_SUMS; i++) out[3 + i] = g[i];\n#endif\n"
    "#if PROG_GRAD_SCATTER\n    p.scatter(*a, at[0], at[1], given[1], x, 1.f);\n#endif\n}\n";
static const char meant_class[] =
    "extern \"C\" int tile%d(const FxaArgs *a, const int *at) {\n"
    "    return Program::tile_class(*a, at[0], at[1], at[2], at[3], at[4], at[5]);\n}\n}\n";

static void meant_text(const fxa__cuda_program *p, int number, fxa__writer *w) {
    char text[2048];
    fxa__write_format(w, "namespace P%d {\n", number);
    fxa__write_bytes(w, p->text.data, p->text.size);
    (void)snprintf(text, sizeof text, meant_calls, number);
    fxa__write_bytes(w, text, strlen(text));
    fxa__write_format(w, meant_class, number);
    for (size_t i = 0; i < sizeof meant_switches / sizeof *meant_switches; i++)
        fxa__write_format(w, "#undef PROG_%s\n", meant_switches[i]);
}

/* Returns the value of a load in the rewritten program as a 32-bit word; 0 if there is no load. */
static int meant_word(const fxa_program *p, int32_t node, const fxa__val *vals) {
    float x = node >= 0 && p->nodes[node].type == FXA_FLOAT ? (float)vals[node].f : 0;
    int bits = node >= 0 ? vals[node].i : 0;
    if (node >= 0 && p->nodes[node].type == FXA_FLOAT) memcpy(&bits, &x, sizeof bits);
    return bits;
}

#endif
