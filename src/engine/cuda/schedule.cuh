/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of query tiles in persistent kernels. Tiles are taken from a counter, so that CTAs with short tiles take
 * more of them. Their order keeps the heads that run at the same time within the L2 cache: `section` heads at a time,
 * in it tile by tile over all heads, the last tile of a head first where the mask makes that one the longest.
 */
#ifndef FXA_CUDA_SCHEDULE_CUH
#define FXA_CUDA_SCHEDULE_CUH

#include "device.cuh"

/* A query tile: where it is and what it visits. */
struct Work {
    int tile; /* >= a.tiles: none, and the rest means nothing */
    int m, h, b, kv_h, q_len, k_len;
    ListRow row;

    template <int q_rows, int k_rows> FXA_INLINE void plan(const FxaArgs &a, int tile_)
    {
        tile = tile_;
        if (tile >= a.tiles) return;
        const int per = a.section * a.q_tiles, s = tile / per, r = tile - s * per;
        const int heads = min(a.section, a.heads * a.batch - s * a.section);
        const int i = r / heads, bh = s * a.section + (r - i * heads);
        m = a.reverse ? a.q_tiles - 1 - i : i;
        b = bh / a.heads;
        h = bh - b * a.heads;
        kv_h = h / a.group;
        q_len = q_length(a, b);
        k_len = k_length(a, b);
        row = ListRow(a, b, h, m, (k_len + k_rows - 1) / k_rows, (m + 1) * q_rows > q_len, k_len % k_rows != 0);
    }
};

/* Takes a tile. The launch takes as many as it has; the last one taken sets the counter back. */
FXA_INLINE int next_tile(const FxaArgs &a)
{
    const u32 order = atomicAdd(a.next_tile, 1u);
    if (order == (u32)a.tiles - 1) *(volatile unsigned *)a.next_tile = 0u;
    return (int)(gridDim.x + order);
}

#endif
