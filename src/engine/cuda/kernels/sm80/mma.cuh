/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles and operands of products by mma.sync, on sm_80 and newer. Tiles in shared memory are swizzled as in
 * common/swizzle.cuh.
 */
#ifndef FXA_CUDA_SM80_MMA_CUH
#define FXA_CUDA_SM80_MMA_CUH

#include "sm80/ptx.cuh"
#include "common/varlen.cuh"

/* Copies eight neighbouring elements of a row to shared memory. The first `valid` exist; the others become 0. Unaligned
 * rows (FXA_ALIGNED=0) are copied through registers. */
FXA_INLINE void copy_chunk(u32 to, const u16 *from, int valid)
{
#if FXA_ALIGNED
    copy_async(to, from, valid * 2);
#else
    u32 x[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < valid) x[i / 2] |= (u32)from[i] << (16 * (i % 2));
    store_shared_words(to, x[0], x[1], x[2], x[3]);
#endif
}

/* Source of a tile in global memory: the rows of a tensor from row s on. */
struct TileRows {
    const FxaView &t;
    const u16 *first;

    FXA_INLINE TileRows(const FxaView &t_, int b, int h, int s)
        : t(t_), first((const u16 *)t_.data + b * t_.b + h * t_.h + (long long)s * t_.s)
    {
    }
    FXA_INLINE const u16 *row(int i) const { return first + i * t.s; }
};

/* Source of a key tile in global memory, where K and V may be paged. s: first row of the sequence; tile: first key of
 * the tile */
struct KeyRows : TileRows {
    const FxaArgs &a;
    int b, h, tile;

    FXA_INLINE KeyRows(const FxaArgs &a_, const FxaView &t_, int b_, int h_, int s, int tile_)
        : TileRows(t_, b_, h_, s + tile_), a(a_), b(b_), h(h_), tile(tile_)
    {
    }
    FXA_INLINE const u16 *row(int i) const
    {
        if (!FXA_PAGED) return TileRows::row(i);
        const KeyAddress at(a, b, 0, tile + i);
        return (const u16 *)t.data + at.b * t.b + h * t.h + (long long)at.s * t.s;
    }
};

/* Copies a tile of `rows` rows and fxa_stored_columns(columns) columns from rows of d elements, by `threads` threads;
 * rows from `limit` on and columns from d on become 0. All rows of a block of 64 columns are copied before the next
 * block, so that every thread copies the same chunk (8 columns) of each row. */
template <int rows, int columns, int threads, class Source>
FXA_INLINE void copy_tile(u32 to, const Source &from, int limit, int d, int thread)
{
    constexpr int STEP = threads / 8;
    static_assert(rows % STEP == 0 && STEP % 8 == 0, "whole steps");
    const int row = thread / 8, chunk = thread % 8;
    const u16 *nowhere = (const u16 *)from.t.data; /* an address for copies of 0 bytes */
    const u32 first = swizzled<rows>(to, row, chunk);
#pragma unroll
    for (int c = 0; c < columns; c += 64) {
        const int valid = min(max(d - c - chunk * 8, 0), 8);
#pragma unroll
        for (int i = 0; i < rows / STEP; i++) {
            const bool inside = row + i * STEP < limit && valid;
            copy_chunk(first + c * rows * 2 + i * STEP * 128,
                       inside ? from.row(row + i * STEP) + c + chunk * 8 : nowhere, inside ? valid : 0);
        }
    }
}

/* Stores elements c and c + 1 of a row of d elements; an element past the row is not stored. */
FXA_INLINE void store_pair(u16 *row, int c, int d, u32 pair)
{
    if (FXA_ALIGNED && c + 1 < d) {
        *(u32 *)(row + c) = pair;
    } else {
        if (c < d) row[c] = (u16)pair;
        if (c + 1 < d) row[c + 1] = (u16)(pair >> 16);
    }
}

/* Stores two neighbouring results of a row, as f32 with FXA_OUT_F32, otherwise as 16-bit elements. */
FXA_INLINE void store_results(const FxaView &t, int b, int h, long long s, int c, int d, float x, float y)
{
    const long long row = b * t.b + h * t.h + s * t.s;
#if FXA_OUT_F32
    float *to = (float *)t.data + row;
    if (c < d) to[c] = x;
    if (c + 1 < d) to[c + 1] = y;
#else
    store_pair((u16 *)t.data + row, c, d, pack16(x, y));
#endif
}

FXA_INLINE u32 load_pair(const u16 *row, int c, int d)
{
    if (FXA_ALIGNED && c + 1 < d) return *(const u32 *)(row + c);
    return (c < d ? row[c] : 0u) | (c + 1 < d ? (u32)row[c + 1] << 16 : 0u);
}

FXA_INLINE u16 *rows_of(const FxaView &t, int b, int h, long long s)
{
    return (u16 *)t.data + b * t.b + h * t.h + s * t.s;
}

/* Loads the A operand of mma.sync for k-step k (columns 16 k to 16 k + 15): 16 rows of a tile from `row` on. */
template <int rows> FXA_INLINE void operand_a(u32 (&r)[4], u32 tile, int row, int k, int lane)
{
    load_matrix(swizzled<rows>(tile, row + (lane & 15), k * 2 + (lane >> 4)), r);
}

/* Loads B operands of mma.sync for k-step k. The 16 rows of the tile from `row` on are 16 columns of the product: r[0]
 * and r[1] are the operand of the first eight columns, r[2] and r[3] of the other eight. */
template <int rows> FXA_INLINE void operand_b(u32 (&r)[4], u32 tile, int row, int k, int lane)
{
    load_matrix(swizzled<rows>(tile, row + ((lane >> 4) << 3) + (lane & 7), k * 2 + ((lane >> 3) & 1)), r);
}

/* Loads B operands of mma.sync from a tile whose rows are the inner dimension of the product: rows 16 k to 16 k + 15,
 * 16 columns from 8 * chunk on. */
template <int rows> FXA_INLINE void operand_b_transposed(u32 (&r)[4], u32 tile, int k, int chunk, int lane)
{
    load_matrix_transposed(swizzled<rows>(tile, k * 16 + (lane & 15), chunk + (lane >> 4)), r);
}

#endif
