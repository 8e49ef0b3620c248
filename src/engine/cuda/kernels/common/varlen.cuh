/* SPDX-License-Identifier: Apache-2.0
 *
 * Lengths and positions of sequences: rows of a batch entry, their place in packed, paged and padded memory, and the
 * row of the tile list that a kernel reads. All values from device memory are clamped here, and only here.
 */
#ifndef FXA_CUDA_COMMON_VARLEN_CUH
#define FXA_CUDA_COMMON_VARLEN_CUH

#include "common/scalars.cuh"

/* Returns the lengths [batch] of queries, or NULL if all are q_len. Without FXA_VARLEN, returns the constant NULL,
 * because lengths cost the inner loops registers. */
FXA_INLINE const int *q_lens(const FxaArgs &a)
{
    return FXA_VARLEN ? a.q_lens : 0;
}

FXA_INLINE const int *k_lens(const FxaArgs &a)
{
    return FXA_VARLEN ? a.k_lens : 0;
}

FXA_INLINE const int *q_starts(const FxaArgs &a)
{
    return FXA_VARLEN ? a.q_starts : 0;
}

FXA_INLINE const int *k_starts(const FxaArgs &a)
{
    return FXA_VARLEN ? a.k_starts : 0;
}

/* Returns true if rows of other sequences, or undefined rows, may follow the last query in memory. */
FXA_INLINE bool has_rows_past_q_len(const FxaArgs &a)
{
    return q_lens(a) || q_starts(a);
}

/* Returns true if rows of other sequences, or undefined rows, may follow the last key in memory. */
FXA_INLINE bool has_rows_past_k_len(const FxaArgs &a)
{
    return FXA_PAGED || k_lens(a) || k_starts(a);
}

/*
 * Rows of a batch entry: its first row in the tensor and their number. A packed batch entry has the rows starts[b] to
 * starts[b + 1] - 1, or only the first lens[b] of these rows. Starts and lengths are unchecked device memory, so they
 * are clamped: no value makes a kernel access rows outside the tensor.
 */
struct Sequence {
    int first, length;

    FXA_INLINE Sequence(const int *starts, const int *lens, int b, int longest, int total) : first(0), length(longest)
    {
        if (starts) {
            first = min(max(starts[b], 0), total);
            length = min(min(max(starts[b + 1], first), total) - first, longest);
        }
        if (lens) length = min(max(lens[b], 0), length);
    }
};

FXA_INLINE Sequence q_sequence(const FxaArgs &a, int b)
{
    return Sequence(q_starts(a), q_lens(a), b, a.q_len, a.q_total);
}

FXA_INLINE Sequence k_sequence(const FxaArgs &a, int b)
{
    return Sequence(k_starts(a), k_lens(a), b, a.k_len, a.k_total);
}

FXA_INLINE int q_length(const FxaArgs &a, int b)
{
    return q_sequence(a, b).length;
}

FXA_INLINE int k_length(const FxaArgs &a, int b)
{
    return k_sequence(a, b).length;
}

/* Position in memory of key `row` of a batch entry: row s of batch entry b or, if K and V are paged, row s of page
 * b. */
struct KeyAddress {
    int b, s;

    FXA_INLINE KeyAddress(const FxaArgs &a, int b_, int first, int row) : b(k_starts(a) ? 0 : b_), s(first + row)
    {
#if FXA_PAGED
        const int i = min(row, a.k_len - 1) / a.page_size; /* keys past the last one are read from the last page */
        b = min(max(a.pages[b_ * a.pages_b + i], 0), a.n_pages - 1);
        s = row % a.page_size;
#endif
    }
};

/* Returns the index of the first tile of packed batch entry b. Tiles have `rows` rows and never span two entries;
 * starts[b] / rows + b leaves enough tiles for any lengths of the entries before b. */
FXA_INLINE int first_tile(const int *starts, int b, int rows, int total)
{
    return min(max(starts[b], 0), total) / rows + b;
}

/* Returns the packed batch entry of tile i. The tile may be past the end of that entry, and then has no rows. */
FXA_INLINE int tile_entry(const int *starts, int batch, int rows, int total, int i)
{
    int low = 0, high = batch - 1;
    while (low < high) {
        const int middle = (low + high + 1) >> 1;
        if (first_tile(starts, middle, rows, total) <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Returns the first row of (b, h) in the backward's workspace, in which each batch entry is padded to a multiple of 128
 * rows. */
FXA_INLINE long long padded_row(const FxaArgs &a, int b, int h)
{
    const int in_head = q_starts(a) ? first_tile(q_starts(a), b, 128, a.q_total) * 128 : b * a.q_pad;
    return (long long)h * a.pad_rows + in_head;
}

/* Returns the index in FxaArgs.sent of the counter of (b, KV head). */
FXA_INLINE long long sent_index(const FxaArgs &a, int b, int kv_h)
{
    return 1 + (k_starts(a) ? 0 : (long long)b * a.kv_heads) + kv_h;
}

/* One row of a tile list (FxaTileList): the tiles that tile `tile` of (b, h) visits: key tiles of a query tile, or
 * query tiles of a key tile. Without a list, these are the tiles 0 to all - 1, with two flags of the constructor:
 *     ragged_last   the last visited tile extends past the end of its sequence; it is partial and visited first
 *     ragged_row    tile `tile` extends past the end of its sequence; all visited tiles are partial */
struct ListRow {
    const int *items; /* NULL = no list */
    int partial, total, first;
    int listed, run; /* `items` has the tiles 0 to listed - 1 of the row; tile j >= listed has the index run + j */

    FXA_INLINE ListRow() {}
    FXA_INLINE ListRow(const FxaArgs &a, int b, int h, int tile, int all, bool ragged_row, bool ragged_last)
    {
        if (a.list.items) {
            const long long row = b * a.list.b_rows + h * a.list.h_rows + tile;
            items = a.list.items + row * a.list.pitch;
            first = items[0]; /* 0 in an empty row; loaded with the counts, to save a round trip to memory */
            const Int2 n = *(const Int2 *)(a.list.counts + 2 * row);
            partial = n.x;
            total = n.y;
            listed = total;
            if (total < 0) {
                total = ~total;
                listed = items[a.list.pitch - 2];
                run = items[a.list.pitch - 1];
                if (listed == 0) first = run;
            }
        } else {
            items = 0;
            partial = ragged_row ? all : ragged_last;
            total = all;
            first = partial == 1 ? all - 1 : 0;
        }
    }

    FXA_INLINE int tile(int j) const
    {
        if (items) return j < listed ? items[j] : run + j;
        return first ? (j ? j - 1 : first) : j;
    }
};

#endif
