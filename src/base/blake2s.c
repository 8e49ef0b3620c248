/* SPDX-License-Identifier: Apache-2.0
 *
 * BLAKE2s as specified in RFC 7693, byte by byte, so that the result does not depend on the machine's byte order.
 */
#include "blake2s.h"

#include <string.h>

static const uint32_t blake_iv[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                     0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

static const uint8_t blake_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint32_t blake_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void blake_mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y) {
    v[a] += v[b] + x;
    v[d] = blake_rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = blake_rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = blake_rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = blake_rotate(v[b] ^ v[c], 7);
}

static void blake_compress(fxa__blake2s *s, int last) {
    uint32_t v[16], m[16];
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = s->block + 4 * i;
        m[i] = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        v[i] = i < 8 ? s->h[i] : blake_iv[i - 8];
    }
    v[12] ^= (uint32_t)s->count;
    v[13] ^= (uint32_t)(s->count >> 32);
    if (last) v[14] = ~v[14];
    for (int r = 0; r < 10; r++) {
        const uint8_t *o = blake_sigma[r];
        for (int i = 0; i < 4; i++) /* columns */
            blake_mix(v, i, i + 4, i + 8, i + 12, m[o[2 * i]], m[o[2 * i + 1]]);
        for (int i = 0; i < 4; i++) /* diagonals */
            blake_mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[o[8 + 2 * i]], m[o[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) s->h[i] ^= v[i] ^ v[i + 8];
}

void fxa__blake2s_start(fxa__blake2s *s, uint32_t out_size) {
    memset(s, 0, sizeof *s);
    memcpy(s->h, blake_iv, sizeof s->h);
    s->h[0] ^= 0x01010000u ^ out_size;
    s->out_size = out_size;
}

void fxa__blake2s_add(fxa__blake2s *s, const void *data, size_t size) {
    const uint8_t *p = data;
    while (size > 0) {
        /* a full block is compressed only when more bytes follow, because the last block has a flag */
        if (s->fill == 64) {
            s->count += 64;
            blake_compress(s, 0);
            s->fill = 0;
        }
        size_t n = 64 - s->fill < size ? 64 - s->fill : size;
        memcpy(s->block + s->fill, p, n);
        s->fill += (uint32_t)n;
        p += n;
        size -= n;
    }
}

void fxa__blake2s_end(fxa__blake2s *s, uint8_t *out) {
    s->count += s->fill;
    memset(s->block + s->fill, 0, 64 - s->fill);
    blake_compress(s, 1);
    for (uint32_t i = 0; i < s->out_size; i++) out[i] = (uint8_t)(s->h[i / 4] >> (8 * (i % 4)));
}

void fxa__blake2s_128(const void *data, size_t size, uint8_t out[16]) {
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    fxa__blake2s_add(&s, data, size);
    fxa__blake2s_end(&s, out);
}
