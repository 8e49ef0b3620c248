/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of bf16 pairs, for the sets "avx512-bf16" and "amx": real is float as in "avx512", whose loading, rows and
 * tapes they use; only packing, products and decode's scores are theirs (kernels/avx512.c has the tables).
 *
 * A pair holds rows 2k and 2k + 1 of a column of B, or columns 2k and 2k + 1 of a row of A, as bf16 in one 32-bit word,
 * the even one below; an odd end is filled with zero. Panels of B are [ceil(k/2)][FXA__BF16_NR] words, in the memory of
 * float panels, of which they use the first half. A product rounds A itself, block by block, or takes rows of pairs.
 *
 * Rounding is to nearest even; subnormal floats count as zero, in and out, whatever the mode of the thread. A product
 * of two bf16 numbers is exact in f32; sums are f32, the two products of a pair first rounded apart or not as the
 * processor does it.
 */
#ifndef FXA_ENGINE_CPU_KERNELS_BF16_H
#define FXA_ENGINE_CPU_KERNELS_BF16_H

#include "../cpu.h"

#if defined(__x86_64__)

#define FXA__BF16_NR 32
#define FXA__BF16_MR 12
#define FXA__AMX_MR 16    /* rows of a tile */
#define FXA__AMX_WORDS 16 /* of a row of a tile */

/* As the functions of fxa__cpu_kernels. */
void fxa__bf16_pack_t(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_pack_n(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_pack_t_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
bool fxa__bf16_pack_n_stored(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
void fxa__bf16_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b,
                    int64_t panel, void *c, int64_t ldc, const void *beta);
/* q holds numbers of bf16, and x is stored so. */
void fxa__bf16_dots(void *out, int64_t ldo, const void *q, int64_t ldq, int64_t rows, const fxa__cpu_stored_rows *x);
void fxa__amx_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, int64_t panel,
                   void *c, int64_t ldc, const void *beta);
void fxa__bf16_round(void *pairs, int64_t step, int64_t m, int64_t k, const void *a, int64_t rs, int64_t cs);
void fxa__bf16_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                          void *c, int64_t ldc, const void *beta);
void fxa__bf16_add_transposed(void *out, int64_t ld_out, const void *x, int64_t ld, int64_t m, int64_t n);
void fxa__amx_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                         void *c, int64_t ldc, const void *beta);

/* Whether the operating system lets this process use AMX tiles; asks for it on the way. */
bool fxa__amx_permit(void);
/* Around the products of a worker: sets the shapes of its thread's tiles, and gives them back. */
void fxa__amx_enter(void);
void fxa__amx_leave(void);

#endif
#endif
