/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores of decoding with AVX512_BF16: queries times keys as they are stored. Both are bf16, so products are exact; see
 * bf16.h. As in body/decode.inc, queries are processed in groups of 4, 2 and 1, and the next block of keys is
 * prefetched meanwhile. A group is multiplied by 4, 8 or 16 keys at once, which gives 16 sums. The queries of a group
 * are first copied to the stack as bf16 pairs.
 */
#include "bf16.h"

#include "../../../base/invariant.h"

#include <immintrin.h>
#include <string.h>

enum {
    DOTS16_SUMS = 16,            /* sums of a block, one for each (query, key) */
    DOTS16_WORDS = FXA_MAX_D / 2 /* maximum 32-bit words of a query */
};
#define DOTS16_INLINE static inline __attribute__((always_inline))

/* The keys that are multiplied by a group of queries, and the address of later keys to prefetch. */
typedef struct dots16_keys {
    const uint16_t *x;       /* [.., ld] bf16 rows of K */
    int64_t ld, d;           /* row pitch and head dim */
    uintptr_t next;          /* next address to prefetch */
    int64_t by_key, by_line; /* bytes by which `next` advances per key, and per step of 32 features */
} dots16_keys;

/* Returns a vector whose lane i is the sum of the lanes of x[i]. Each of four steps adds halves of vectors, so that two
 * vectors become one. */
DOTS16_INLINE __m512 dots16_fold(__m512 *x) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512 a = x[i / 4 * 8 + i % 4], b = x[i / 4 * 8 + i % 4 + 4];
        x[i / 4 * 8 + i % 4] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        x[i] = _mm512_shuffle_f32x4(x[i], x[i + 8], 0x88) + _mm512_shuffle_f32x4(x[i], x[i + 8], 0xdd);
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2)
        x[i] = _mm512_shuffle_ps(x[i], x[i + 1], 0x44) + _mm512_shuffle_ps(x[i], x[i + 1], 0xee);
    return _mm512_shuffle_ps(x[0], x[2], 0x88) + _mm512_shuffle_ps(x[0], x[2], 0xdd);
}

/* Adds the products of 32 features to the sums; if not `whole`, only of the features in the mask `there`. */
DOTS16_INLINE void dots16_step(const int rows, const int keys, __m512 *sum, const uint32_t *q, const uint16_t *x,
                               int64_t ld, const bool whole, __mmask32 there) {
#pragma GCC unroll 16
    for (int i = 0; i < keys; i++) {
        const uint16_t *key = x + i * ld;
        __m512bh y = (__m512bh)(whole ? _mm512_loadu_si512(key) : _mm512_maskz_loadu_epi16(there, key));
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512bh pairs = (__m512bh)_mm512_loadu_si512(q + r * DOTS16_WORDS);
            sum[r * keys + i] = _mm512_dpbf16_ps(sum[r * keys + i], pairs, y);
        }
    }
}

/* Computes dot products of `rows` queries q[r] and `keys` = DOTS16_SUMS / rows keys. Stores those of the first n keys
 * in out[r][0..n]. */
DOTS16_INLINE void dots16_block(const int rows, const int keys, float *out, int64_t ldo, int64_t n, const uint32_t *q,
                                const dots16_keys *k) {
    __m512 sum[DOTS16_SUMS];
    uintptr_t fetch = k->next;
    int64_t j = 0;
#pragma GCC unroll 16
    for (int i = 0; i < DOTS16_SUMS; i++) sum[i] = _mm512_setzero_ps();
    for (; j + 32 <= k->d; j += 32, fetch += (uintptr_t)k->by_line) {
#pragma GCC unroll 16
        for (int i = 0; i < keys; i++) __builtin_prefetch((const void *)(fetch + (uintptr_t)(i * k->by_key)), 0, 2);
        dots16_step(rows, keys, sum, q + j / 2, k->x + j, k->ld, true, 0);
    }
    if (j < k->d) dots16_step(rows, keys, sum, q + j / 2, k->x + j, k->ld, false, (1u << (k->d - j)) - 1u);
    float lanes[DOTS16_SUMS];
    _mm512_storeu_ps(lanes, dots16_fold(sum));
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) memcpy(out + r * ldo, lanes + r * keys, (size_t)n * sizeof(float));
}

/* Computes the scores of a group of queries, and prefetches later keys. These are divided into `parts` parts, one for
 * each group.
 * next: address of this group's part, of which it prefetches one block for every `parts` blocks that it computes
 * step: bytes from one key of the part to the next */
DOTS16_INLINE void dots16_group(const int rows, float *out, int64_t ldo, const float *q, int64_t ldq,
                                const fxa__cpu_stored_rows *x, uintptr_t next, int64_t step, int64_t parts) {
    _Alignas(64) uint32_t pairs[4 * DOTS16_WORDS];
    const int keys = DOTS16_SUMS / rows;
    int64_t i = 0, turn = 0;
    dots16_keys k = {x->data, x->ld, x->d, next, step, 64};
    /* contiguous keys are prefetched in the order of memory, one cache line after the other */
    if (step == x->d * 2) k.by_key = 64, k.by_line = keys * 64;
    fxa__bf16_round(pairs, DOTS16_WORDS, rows, x->d, q, ldq, 1);
    for (; i + keys <= x->n; i += keys, k.x += keys * k.ld) {
        dots16_block(rows, keys, out + i, ldo, keys, pairs, &k);
        if (++turn == parts) turn = 0, k.next += (uintptr_t)(keys * step);
    }
    k.ld = 0; /* the last keys, one at a time: with row pitch 0, a block is the same key several times */
    for (; i < x->n; i++, k.x += x->ld) dots16_block(rows, keys, out + i, ldo, 1, pairs, &k);
}

void fxa__bf16_dots(void *out, int64_t ldo, const void *q, int64_t ldq, int64_t rows, const fxa__cpu_stored_rows *x) {
    int64_t parts = rows ? rows / 4 + rows % 4 / 2 + rows % 2 : 1, step = x->next ? x->next_step : x->ld * 2;
    uintptr_t next = (uintptr_t)(x->next ? x->next : x->data), part = (uintptr_t)(x->n / parts * step);
    FXA__ASSERT(x->d <= 2 * DOTS16_WORDS);
    float *to = out;
    const float *from = q;
    for (; rows >= 4; rows -= 4, to += 4 * ldo, from += 4 * ldq, next += part)
        dots16_group(4, to, ldo, from, ldq, x, next, step, parts);
    for (; rows >= 2; rows -= 2, to += 2 * ldo, from += 2 * ldq, next += part)
        dots16_group(2, to, ldo, from, ldq, x, next, step, parts);
    if (rows) dots16_group(1, to, ldo, from, ldq, x, next, step, parts);
}
