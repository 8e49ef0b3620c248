/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the function bodies of body/ to the kernels of an instruction set, for double and for float. Each file
 * of kernels/ names its instruction set and includes body/all.inc twice, first with REAL_IS_DOUBLE 1, then 0. In the
 * bodies `real` is double or float. A macro appends _f64 or _f32 to each name that is listed here, so that both
 * versions fit into one file; bodies append it to other names by KERN_NAME.
 *
 * The file of an instruction set defines:
 *   KERN_SCALAR, KERN_SSE2, KERN_AVX2, KERN_AVX512 or KERN_NEON
 *   VEC_BYTES            bytes of a vector; 0 = one real (scalar)
 *   GEMM_MR              rows that the matrix micro-kernel computes at once
 *   GEMM_VECS            columns that the matrix micro-kernel computes at once, in vectors
 */
#ifndef FXA_ENGINE_CPU_KERNELS_SET_H
#define FXA_ENGINE_CPU_KERNELS_SET_H

#include "../cpu.h"
#include "../../../base/dtype.h"
#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../base/philox.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define KERN_PASTE_(a, b) a##b
#define KERN_PASTE(a, b) KERN_PASTE_(a, b)
#define KERN_NAME(name) KERN_PASTE(name, KERN_SUFFIX)
#define KERN_INLINE static inline __attribute__((always_inline, unused))

/* Types */
#define vec KERN_NAME(vec)
#define vbits KERN_NAME(vbits)
#define vmask KERN_NAME(vmask)
#define ivec KERN_NAME(ivec)

/* Vectors: body/vectors.inc */
#define v_load KERN_NAME(v_load)
#define v_store KERN_NAME(v_store)
#define v_load_n KERN_NAME(v_load_n)
#define v_store_n KERN_NAME(v_store_n)
#define v_set KERN_NAME(v_set)
#define v_bits KERN_NAME(v_bits)
#define v_real KERN_NAME(v_real)
#define v_bits_set KERN_NAME(v_bits_set)
#define v_shift KERN_NAME(v_shift)
#define v_fma KERN_NAME(v_fma)
#define v_fnma KERN_NAME(v_fnma)
#define v_upper KERN_NAME(v_upper)
#define v_lower KERN_NAME(v_lower)
#define v_min KERN_NAME(v_min)
#define v_max KERN_NAME(v_max)
#define v_abs KERN_NAME(v_abs)
#define v_copysign KERN_NAME(v_copysign)
#define v_sqrt KERN_NAME(v_sqrt)
#define v_round KERN_NAME(v_round)
#define v_floor KERN_NAME(v_floor)
#define v_ceil KERN_NAME(v_ceil)
#define v_trunc KERN_NAME(v_trunc)
#define v_lt KERN_NAME(v_lt)
#define v_le KERN_NAME(v_le)
#define v_eq KERN_NAME(v_eq)
#define v_select KERN_NAME(v_select)
#define v_keep KERN_NAME(v_keep)
#define v_first KERN_NAME(v_first)
#define v_sum KERN_NAME(v_sum)
#define v_largest KERN_NAME(v_largest)
#define v_lanes KERN_NAME(v_lanes)
#define v_unlanes KERN_NAME(v_unlanes)
#define m_and KERN_NAME(m_and)
#define m_or KERN_NAME(m_or)
#define m_not KERN_NAME(m_not)
#define m_any KERN_NAME(m_any)
#define m_word KERN_NAME(m_word)
#define m_from_word KERN_NAME(m_from_word)
#define m_from_i KERN_NAME(m_from_i)
#define i_from_m KERN_NAME(i_from_m)
#define i_load KERN_NAME(i_load)
#define i_store KERN_NAME(i_store)
#define i_load_n KERN_NAME(i_load_n)
#define i_store_n KERN_NAME(i_store_n)
#define i_set KERN_NAME(i_set)
#define v_from_i KERN_NAME(v_from_i)
#define v_to_i KERN_NAME(v_to_i)

/* Functions: body/math.inc */
#define v_exp KERN_NAME(v_exp)
#define v_exp2 KERN_NAME(v_exp2)
#define v_log KERN_NAME(v_log)
#define v_log2 KERN_NAME(v_log2)
#define v_log1p KERN_NAME(v_log1p)
#define v_tanh KERN_NAME(v_tanh)
#define v_sigmoid KERN_NAME(v_sigmoid)
#define v_erf KERN_NAME(v_erf)
#define v_sin KERN_NAME(v_sin)
#define v_cos KERN_NAME(v_cos)
#define v_tan KERN_NAME(v_tan)
#define v_atan KERN_NAME(v_atan)
#define v_pow KERN_NAME(v_pow)
#define v_rsqrt KERN_NAME(v_rsqrt)

/* Initialiser of a fxa__cpu_kernels, for use after body/all.inc has been included for double and for float; lanes:
 * reals per vector. */
#define KERN_TABLE(isa_name, suffix, size, lanes)                                                                      \
    {                                                                                                                  \
        KERN_ROWS(isa_name, suffix, size, lanes), .mr = GEMM_MR, .nr = GEMM_VECS * (lanes),                            \
                                                  .nr_step = (GEMM_VECS == 2 ? 1 : GEMM_VECS) * (lanes),               \
                                                  .dots = kern_dots##suffix, .format = &fxa__cpu_format_real,          \
                                                  .micro = {.panel_row = GEMM_VECS * (lanes),                          \
                                                            .pack_t = kern_pack_t##suffix,                             \
                                                            .pack_n = kern_pack_n##suffix,                             \
                                                            .gemm = kern_gemm##suffix},                                \
                                                  .real = {                                                            \
                                                      .gemm_rows = kern_gemm_rows##suffix                              \
                                                  }                                                                    \
    }
/* Initialisers of the members of a fxa__cpu_kernels other than matrix products. */
#define KERN_ROWS(isa_name, suffix, size, lanes)                                                                       \
    .isa = isa_name, .real_size = (size), .real_dtype = (size) == sizeof(float) ? FXA_F32 : FXA_F64, .width = (lanes), \
    .load = kern_load##suffix, .store = kern_store##suffix, .load_ints = kern_load_ints##suffix,                       \
    .offsets = kern_offsets##suffix, .rows_max = kern_rows_max##suffix, .rows_exp = kern_rows_exp##suffix,             \
    .row_probability = kern_row_probability##suffix, .row_scale = kern_row_scale##suffix,                              \
    .row_grad = kern_row_grad##suffix, .row_dot = kern_row_dot##suffix, .rows_dot = kern_rows_dot##suffix,             \
    .row_keep = kern_row_keep, .row_signs = kern_row_signs##suffix, .row_mask = kern_row_mask##suffix,                 \
    .row_drop = kern_row_drop##suffix, .sums = kern_sums##suffix, .tape = tape_functions##suffix

#endif
