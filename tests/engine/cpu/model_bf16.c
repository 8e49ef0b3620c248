/* SPDX-License-Identifier: Apache-2.0
 *
 * The bf16 products of the cpu engine on emulated instructions. Linked into a test before the library, this file
 * replaces kernels/avx512_bf16.c and kernels/avx512_bf16_decode.c, which it includes. model_amx.c reports the feature.
 * Compiled for AVX-512 without BF16, so that an instruction without emulation is a compile error.
 */
#if defined(__x86_64__)

#if defined(__AVX512BF16__)
#error "the model is for AVX-512 without AVX512_BF16"
#endif

#include "support/mock/bf16_model.h"

#define _mm512_dpbf16_ps(sum, x, y) bf16_model_dot(sum, (__m512i)(x), (__m512i)(y))
#define _mm512_cvtne2ps_pbh(high, low) ((__m512bh)bf16_model_round_two(high, low))

#include "engine/cpu/kernels/avx512_bf16.c"
#include "engine/cpu/kernels/avx512_bf16_decode.c"

#endif
