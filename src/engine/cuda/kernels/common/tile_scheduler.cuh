/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile scheduler of persistent kernels. CTAs take query tiles from a counter, so that CTAs with short tiles take more
 * of them. The order lets K and V of the heads that run at the same time stay in the L2 cache: a section is `section`
 * heads, whose tiles run in the order tile 0 of all heads, tile 1 of all heads, ...; with a.reverse (the mask makes the
 * last tile of a head the longest) the last tile comes first.
 *
 *     section 0: heads 0, 1, 2         section 1: heads 3, 4, 5         a.section = 3
 *     tile 0 of heads 0, 1, 2;         tile 0 of heads 3, 4, 5;         with a.reverse the last tile first
 *     tile 1 of heads 0, 1, 2; ...     tile 1 of heads 3, 4, 5; ...
 *
 * Packed sequences: a.tiles = q_tiles * heads with q_tiles = q_total / rows of a tile + batch. The starts determine the
 * batch entry of a tile (common/varlen.cuh); tiles past the end of their batch entry are skipped.
 */
#ifndef FXA_CUDA_COMMON_TILE_SCHEDULER_CUH
#define FXA_CUDA_COMMON_TILE_SCHEDULER_CUH

#include "common/varlen.cuh"

/* Returns n / by without a division. A division is 30 instructions, which are in no cache when a kernel starts: it
 * takes 2.4 us of a forward of short documents. */
FXA_INLINE int quotient(int n, const FxaDivisor &by)
{
    return (int)((u32)((u64)(2u * (u32)n) * by.factor >> 32) >> by.shift);
}

/* Takes the next tile from the counter and returns its index; >= a.tiles = none. A launch increments the counter
 * a.tiles times, modulo a.tiles, so it is 0 again after the launch. The wait for the counter is at the first use of the
 * result. */
FXA_INLINE int next_tile(const FxaArgs &a)
{
    return (int)(gridDim.x + count_around(a.next_tile, a.tiles - 1));
}

/* A query tile: coordinates, lengths and row of the tile list. */
struct WorkTile {
    int tile; /* index of the tile; if it is >= a.tiles, there is no tile, and the other members are undefined */
    int m, h, b, kv_h, q_first, q_len, k_first, k_len;
    ListRow row;

    /* Sets the members to the tile with index tile_. Returns false if it is past the end of its packed batch entry. */
    template <int q_rows, int k_rows> FXA_INLINE bool try_plan(const FxaArgs &a, int tile_)
    {
        tile = tile_;
        if (tile >= a.tiles) return true;
        const int s = quotient(tile, a.by_order), r = tile - s * (a.section * a.q_tiles);
        const int heads = min(a.section, a.heads * (q_starts(a) ? 1 : a.batch) - s * a.section);
        const FxaDivisor by = heads == a.section ? a.by_section : a.by_last;
        const int i = quotient(r, by), bh = s * a.section + (r - i * heads);
        m = a.reverse ? a.q_tiles - 1 - i : i;
        b = q_starts(a) ? tile_entry(q_starts(a), a.batch, q_rows, a.q_total, m) : quotient(bh, a.by_heads);
        h = q_starts(a) ? bh : bh - b * a.heads;
        if (q_starts(a)) m -= first_tile(q_starts(a), b, q_rows, a.q_total);
        kv_h = quotient(h, a.by_group);
        const Sequence q = q_sequence(a, b), k = k_sequence(a, b);
        q_first = q.first;
        q_len = q.length;
        k_first = k.first;
        k_len = k.length;
        if (q_starts(a) && (m < 0 || m * q_rows >= q_len)) return false;
        row = ListRow(a, b, h, m, (k_len + k_rows - 1) / k_rows, (m + 1) * q_rows > q_len, k_len % k_rows != 0);
        return true;
    }

    /* Sets the members to the tile with index tile_. If that tile is past the end of its packed batch entry, takes
     * further tiles from the counter until a tile is within its batch entry. */
    template <int q_rows, int k_rows> FXA_INLINE void plan(const FxaArgs &a, int tile_)
    {
        while (!try_plan<q_rows, k_rows>(a, tile_)) tile_ = next_tile(a);
    }
};

/* Message of a producer to its consumers about a query tile, in shared memory at `at`: nine words in the order of
 * put(). Tile -1 = there are no more tiles. A barrier orders stores and loads. */
struct TileSlot {
    u32 at;

    static constexpr int bytes = FXA_SHAPE_SLOT;
    static_assert(bytes >= 9 * 4 && bytes % 16 == 0, "nine words");

    FXA_INLINE void put(int tile, const WorkTile &w, int partial, int total) const
    {
        const int message[9] = {tile, partial, total, w.m, w.h, w.b, w.q_len, w.k_len, w.q_first};
#pragma unroll
        for (int i = 0; i < 9; i++) put_word(at + 4 * i, message[i]);
    }
    FXA_INLINE void put_end() const { put_word(at, -1); }
    FXA_INLINE int tile() const { return take_word(at); }
    FXA_INLINE int partial() const { return take_word(at + 4); }
    FXA_INLINE int total() const { return take_word(at + 8); }
    FXA_INLINE int m() const { return take_word(at + 12); }
};

/* Coordinates of the query tile on which a consumer works, in registers. */
struct TileCoordinates {
    int h, b, q_len, k_len, q_first;

    FXA_INLINE void read_coordinates(const TileSlot &slot)
    {
        h = take_word(slot.at + 16);
        b = take_word(slot.at + 20);
        q_len = take_word(slot.at + 24);
        k_len = take_word(slot.at + 28);
        q_first = take_word(slot.at + 32);
    }
};

/* Query tile of this CTA, in kernels with one CTA per tile. Grid: (query tiles, heads, batch), or for packed sequences
 * (q_total / rows + batch, heads, 1). */
template <int rows> struct QueryTile {
    int m, h, b;
    Sequence q, k;

    FXA_INLINE QueryTile(const FxaArgs &a)
        : m(a.reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x), h(blockIdx.y),
          b(q_starts(a) ? tile_entry(q_starts(a), a.batch, rows, a.q_total, m) : (int)blockIdx.z), q(q_sequence(a, b)),
          k(k_sequence(a, b))
    {
        if (q_starts(a)) m -= first_tile(q_starts(a), b, rows, a.q_total);
    }
    FXA_INLINE bool outside(const FxaArgs &a) const { return q_starts(a) && (m < 0 || m * rows >= q.length); }
};

#endif
