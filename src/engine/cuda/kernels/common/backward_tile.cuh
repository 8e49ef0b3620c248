/* SPDX-License-Identifier: Apache-2.0
 *
 * Key tile of a CTA of the backward kernels: one KV head, for every query head of its group in turn.
 *
 * Grid: (key tiles, KV heads, batch); packed: (k_total / keys of a tile + batch, KV heads, 1), and tiles past the end
 * of their batch entry do nothing. The first dimension is multiplied by `parts` of FxaShape.
 */
#ifndef FXA_CUDA_COMMON_BACKWARD_TILE_CUH
#define FXA_CUDA_COMMON_BACKWARD_TILE_CUH

#include "common/varlen.cuh"

static_assert(!FXA_PAGED, "the backward reads K and V of pages from the workspace");
static_assert(!FXA_RETURN_ROW_MAX, "the forward writes the row maximum");

template <int keys, int queries> struct KeyTile {
    int n, kv_h, b, q_first, q_len, k_first, k_len;

    FXA_INLINE KeyTile(const FxaArgs &a, int parts = 1) : KeyTile(a, blockIdx.x / parts, blockIdx.y, blockIdx.z) {}
    FXA_INLINE KeyTile(const FxaArgs &a, int n_, int kv_h_, int b_) : n(n_), kv_h(kv_h_), b(b_)
    {
        if (k_starts(a)) {
            b = tile_entry(k_starts(a), a.batch, keys, a.k_total, n);
            n -= first_tile(k_starts(a), b, keys, a.k_total);
        }
        const Sequence q = q_sequence(a, b), k = k_sequence(a, b);
        q_first = q.first;
        q_len = q.length;
        k_first = k.first;
        k_len = k.length;
    }
    FXA_INLINE bool outside(const FxaArgs &a) const { return k_starts(a) && (n < 0 || n * keys >= k_len); }
    FXA_INLINE int first_head(const FxaArgs &a) const { return kv_h * a.group; }
    FXA_INLINE ListRow row(const FxaArgs &a, int h) const
    {
        return ListRow(a, b, h, n, (q_len + queries - 1) / queries, (n + 1) * keys > k_len, q_len % queries != 0);
    }
    /* Returns the number of query blocks in the tile list of this key tile, over all query heads of the KV group. */
    FXA_INLINE int blocks(const FxaArgs &a) const
    {
        int all = 0;
        for (int g = 0; g < a.group; g++) all += row(a, first_head(a) + g).total;
        return all;
    }
    FXA_INLINE long long workspace_row(const FxaArgs &a, int h) const { return padded_row(a, b, h); }
};

#endif
