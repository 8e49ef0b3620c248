/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulation of AMX in memory, as far as bf16 products use AMX: eight tiles of 16 rows of 64 bytes, and TDPBF16PS in
 * AVX-512. The kernels of the instruction set amx thus run on processors without AMX.
 */
#ifndef FXA_TESTS_AMX_MODEL_H
#define FXA_TESTS_AMX_MODEL_H

#include "bf16_model.h"

#if defined(__x86_64__)

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static _Thread_local uint32_t amx_model_tile[8][16][16];

static inline void amx_model_zero(int t) { memset(amx_model_tile[t], 0, sizeof amx_model_tile[t]); }
static inline void amx_model_load(int t, const void *p, size_t bytes) {
    for (size_t i = 0; i < 16; i++) memcpy(amx_model_tile[t][i], (const char *)p + i * bytes, 64);
}
static inline void amx_model_store(int t, void *p, size_t bytes) {
    for (size_t i = 0; i < 16; i++) memcpy((char *)p + i * bytes, amx_model_tile[t][i], 64);
}

BF16_MODEL __m512 amx_model_add(__m512 x, __m512 y) {
    return bf16_model_fma(_mm512_castps_si512(x), _mm512_castps_si512(_mm512_set1_ps(1)), y);
}

/* Emulates TDPBF16PS: the products of even and of odd elements are summed separately, then both sums are added to tile
 * c. */
BF16_MODEL void amx_model_dot(int c, int a, int b) {
    for (int i = 0; i < 16; i++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int k = 0; k < 16; k++) {
            __m512i x = _mm512_set1_epi32((int)amx_model_tile[a][i][k]);
            __m512i y = _mm512_loadu_si512(amx_model_tile[b][k]);
            even = bf16_model_fma(bf16_model_even(x), bf16_model_even(y), even);
            odd = bf16_model_fma(bf16_model_odd(x), bf16_model_odd(y), odd);
        }
        __m512i sum = bf16_model_flush(_mm512_loadu_si512(amx_model_tile[c][i]));
        _mm512_storeu_ps(amx_model_tile[c][i], amx_model_add(amx_model_add(even, odd), _mm512_castsi512_ps(sum)));
    }
}

/* Macros that kernels/body/amx.inc requires. */
#define AMX_ZERO(t) amx_model_zero(t)
#define AMX_LOAD(t, p, bytes) amx_model_load(t, p, bytes)
#define AMX_STORE(t, p, bytes) amx_model_store(t, p, bytes)
#define AMX_DOT(c, a, b) amx_model_dot(c, a, b)

#endif
#endif
