/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers of dropout: Philox4x32-10 on the coordinates (b, h, q, k), so that every engine, every split of the
 * work and the backward pass drop the same (query, key) pairs. Key: the 64-bit seed (low word first). Counter:
 * (k >> 2, q, h, b), the coordinates after index maps, as unsigned 32-bit ints. A pair is kept if word k & 3 of the
 * result is >= the threshold.
 */
#ifndef FXA_BASE_PHILOX_H
#define FXA_BASE_PHILOX_H

#include <stdbool.h>
#include <stdint.h>

static inline void fxa__philox(const uint32_t counter[4], uint64_t seed, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Returns the threshold of dropout probability p. Each (query, key) pair is dropped with probability
 * floor(p * 2^32) / 2^32. */
static inline uint32_t fxa__dropout_threshold(double p) { return (uint32_t)(p * 4294967296.0); }

static inline bool fxa__dropout_keep(uint64_t seed, uint32_t threshold, int32_t b, int32_t h, int32_t q, int32_t k) {
    uint32_t counter[4] = {(uint32_t)k >> 2, (uint32_t)q, (uint32_t)h, (uint32_t)b}, out[4];
    fxa__philox(counter, seed, out);
    return out[(uint32_t)k & 3u] >= threshold;
}

#endif
