/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for avx512 (AVX-512 F, BW, DQ, VL), and the tables of avx512-bf16 and amx, which differ from avx512 in matrix
 * products only.
 */
#include "set.h"
#include "bf16.h"

#define KERN_AVX512 1
#define VEC_BYTES 64
#define GEMM_MR 12
#define GEMM_VECS 2

#define REAL_IS_DOUBLE 1
#include "body/all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "body/all.inc"

const fxa__cpu_kernels fxa__cpu_avx512[2] = {
    KERN_TABLE("avx512", _f32, sizeof(float), 16),
    KERN_TABLE("avx512", _f64, sizeof(double), 8),
};

/* Members that the tables of avx512-bf16 and amx share. */
#define PAIRS_TABLE(isa_name)                                                                                          \
    KERN_ROWS(isa_name, _f32, sizeof(float), 16), .nr = FXA__BF16_NR, .nr_step = FXA__BF16_NR, .rounds = true
#define PAIRS_MICRO .panel_row = FXA__BF16_NR / 2, .pack_t = fxa__bf16_pack_t, .pack_n = fxa__bf16_pack_n
#define PAIRS_PAIRS                                                                                                    \
    .pack_t_stored = fxa__bf16_pack_t_stored, .pack_n_stored = fxa__bf16_pack_n_stored, .round = fxa__bf16_round,      \
    .add_transposed = fxa__bf16_add_transposed

const fxa__cpu_kernels fxa__cpu_avx512_bf16[1] = {{
    PAIRS_TABLE("avx512-bf16"),
    .mr = FXA__BF16_MR,
    .rows = FXA__BF16_MR,
    .format = &fxa__cpu_format_pairs,
    .micro = {PAIRS_MICRO, .gemm = fxa__bf16_gemm},
    .pairs = {PAIRS_PAIRS, .depth = 2, .gemm_pairs = fxa__bf16_gemm_pairs},
    .dots = fxa__bf16_dots,
}};

const fxa__cpu_kernels fxa__cpu_amx[1] = {{
    PAIRS_TABLE("amx"),
    .mr = FXA__AMX_MR,
    .rows = 2 * FXA__AMX_MR,
    .format = &fxa__cpu_format_transposed,
    .micro = {PAIRS_MICRO, .gemm = fxa__amx_gemm},
    .pairs = {PAIRS_PAIRS, .depth = 2 * FXA__AMX_WORDS, .gemm_pairs = fxa__amx_gemm_pairs},
    .dots = kern_dots_f32, /* on processors with AMX, bf16 dot products are no faster than f32 ones */
    .enter = fxa__amx_enter,
    .leave = fxa__amx_leave,
}};
