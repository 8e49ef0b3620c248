/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiles of AMX in plain C, as far as bf16 products go: eight tiles of 16 rows of 64 bytes, and TDPBF16PS. Lets the
 * body of the amx set run, and be checked, where the processor has no tiles.
 */
#ifndef FXA_TESTS_AMX_MODEL_H
#define FXA_TESTS_AMX_MODEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static _Thread_local uint32_t amx_model_tile[8][16][16];

static inline float amx_model_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float amx_model_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline void amx_model_zero(int t) { memset(amx_model_tile[t], 0, sizeof amx_model_tile[t]); }
static inline void amx_model_load(int t, const void *p, size_t bytes) {
    for (size_t i = 0; i < 16; i++) memcpy(amx_model_tile[t][i], (const char *)p + i * bytes, 64);
}
static inline void amx_model_store(int t, void *p, size_t bytes) {
    for (size_t i = 0; i < 16; i++) memcpy((char *)p + i * bytes, amx_model_tile[t][i], 64);
}

/* The products of the even and of the odd halves are summed apart, then both go onto C; subnormals are flushed. */
static inline void amx_model_dot(int c, int a, int b) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float half[2] = {0, 0}, sum = amx_model_float(amx_model_tile[c][i][j]);
            for (int k = 0; k < 16; k++)
                for (int h = 0; h < 2; h++) {
                    uint32_t x = h ? amx_model_tile[a][i][k] & 0xffff0000u : amx_model_tile[a][i][k] << 16;
                    uint32_t y = h ? amx_model_tile[b][k][j] & 0xffff0000u : amx_model_tile[b][k][j] << 16;
                    float product = amx_model_flush(amx_model_float(x)) * amx_model_flush(amx_model_float(y));
                    half[h] = amx_model_flush(half[h] + product);
                }
            sum = amx_model_flush(sum + amx_model_flush(half[0] + half[1]));
            memcpy(&amx_model_tile[c][i][j], &sum, sizeof sum);
        }
}

/* For kern_amx.inc. */
#define AMX_ZERO(t) amx_model_zero(t)
#define AMX_LOAD(t, p, bytes) amx_model_load(t, p, bytes)
#define AMX_STORE(t, p, bytes) amx_model_store(t, p, bytes)
#define AMX_DOT(c, a, b) amx_model_dot(c, a, b)

#endif
