/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products A B of bf16 pairs, for the kernels "avx512-bf16" and "amx", in which real is float. Loading, row
 * operations and bytecode are those of "avx512". Packing, products and the scores of decoding are different (avx512.c
 * has the tables).
 *
 * A pair is two bf16 in one 32-bit word, the even one in the low half: rows 2k and 2k + 1 of a column of B, or columns
 * 2k and 2k + 1 of a row of A. If the number of rows of B is odd, the last pair is padded with zero. Panels of B are
 * [ceil(k/2)][FXA__BF16_NR] words and use the first half of the memory of a panel of floats. A product gets A as
 * floats, which it rounds block by block, or as rows of pairs.
 *
 * Rounding is to nearest even. Subnormal floats count as zero, as operands and as results, in every floating-point mode
 * of the thread. A product of two bf16 is exact in f32. Sums are f32; the processor determines whether the two products
 * of a pair are added to each other first.
 */
#ifndef FXA_ENGINE_CPU_KERNELS_BF16_H
#define FXA_ENGINE_CPU_KERNELS_BF16_H

#include "../cpu.h"

#if defined(__x86_64__)

#define FXA__BF16_NR 32
#define FXA__BF16_MR 12
#define FXA__AMX_MR 16    /* rows of an AMX tile */
#define FXA__AMX_WORDS 16 /* 32-bit words per row of an AMX tile */

/* Members of fxa__cpu_kernels; cpu.h has the contracts. */
void fxa__bf16_pack_t(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_pack_n(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_pack_t_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
bool fxa__bf16_pack_n_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b,
                    int64_t panel, void *c, int64_t ldc, const void *beta);
/* q must hold values that are exact in bf16; x must be stored as bf16. */
void fxa__bf16_dots(void *out, int64_t ldo, const void *q, int64_t ldq, int64_t rows, const fxa__cpu_stored_rows *x);
void fxa__amx_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, int64_t panel,
                   void *c, int64_t ldc, const void *beta);
void fxa__bf16_round(void *pairs, int64_t step, int64_t m, int64_t k, const void *a, int64_t rs, int64_t cs);
void fxa__bf16_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                          void *c, int64_t ldc, const void *beta);
void fxa__bf16_add_transposed(void *out, int64_t ld_out, const void *x, int64_t ld, int64_t m, int64_t n);
void fxa__amx_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                         void *c, int64_t ldc, const void *beta);

/* Requests permission to use AMX tiles from the operating system. Returns true if this process has it. */
bool fxa__amx_permit(void);
/* Set the shapes of the thread's tiles before the products of a worker; release the tiles after them. */
void fxa__amx_enter(void);
void fxa__amx_leave(void);

#endif
#endif
