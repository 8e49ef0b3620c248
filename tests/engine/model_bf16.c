/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of bf16 pairs of the cpu engine on a model of their instructions: linked into a test before the library,
 * this takes the place of isa_avx512bf16.c and isa_avx512bf16_decode.c, which it includes. model_amx.c says that the
 * processor has them. Compiled for AVX-512 alone, so that an instruction without a model is an error.
 */
#if defined(__x86_64__)

#if defined(__AVX512BF16__)
#error "the model is for AVX-512 without AVX512_BF16"
#endif

#include "support/bf16_model.h"

#define _mm512_dpbf16_ps(sum, x, y) bf16_model_dot(sum, (__m512i)(x), (__m512i)(y))
#define _mm512_cvtne2ps_pbh(high, low) ((__m512bh)bf16_model_round_two(high, low))

#include "engine/cpu/isa_avx512bf16.c"
#include "engine/cpu/isa_avx512bf16_decode.c"

#endif
