/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows belong to a batch entry, where they lie (packed, in pages, in the padded workspace), and which tiles a
 * kernel visits. Everything that comes from device memory is clamped here, and here alone.
 */
#ifndef FXA_CUDA_COMMON_VARLEN_CUH
#define FXA_CUDA_COMMON_VARLEN_CUH

#include "common/scalars.cuh"

/* Of a problem without them nothing is compiled: they cost the inner loops some registers. */
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

/* Whether rows that belong to no query or key of the entry may follow its last one. */
FXA_INLINE bool has_rows_past_q_len(const FxaArgs &a)
{
    return q_lens(a) || q_starts(a);
}

FXA_INLINE bool has_rows_past_k_len(const FxaArgs &a)
{
    return FXA_PAGED || k_lens(a) || k_starts(a);
}

/*
 * The rows of a batch entry: its first row in the tensor and how many. A packed entry has the rows starts[b] to
 * starts[b + 1] - 1, or as many of them as lens says. Values come from device memory that nobody has checked, so they
 * are clamped: whatever they are, no row outside the tensor is touched.
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

/* Where key `row` of an entry lies: row s of batch entry b of the tensors, which is a page where there are pages. */
struct KeyAddress {
    int b, s;

    FXA_INLINE KeyAddress(const FxaArgs &a, int b_, int first, int row) : b(k_starts(a) ? 0 : b_), s(first + row)
    {
#if FXA_PAGED
        const int i = min(row, a.k_len - 1) / a.page_size; /* past the last page there is nothing to ask for */
        b = min(max(a.pages[b_ * a.pages_b + i], 0), a.n_pages - 1);
        s = row % a.page_size;
#endif
    }
};

/* Packed entries are cut into tiles one after the other, each beginning with a tile of its own: entry b begins with
 * tile starts[b] / rows + b, which leaves room for all of its rows whatever the others' lengths are. */
FXA_INLINE int first_tile(const int *starts, int b, int rows, int total)
{
    return min(max(starts[b], 0), total) / rows + b;
}

/* The entry that tile i belongs to; i minus its first tile may still lie past its end. */
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

/* The first row of (b, h) in the padded workspace of the backward. */
FXA_INLINE long long padded_row(const FxaArgs &a, int b, int h)
{
    const int in_head = q_starts(a) ? first_tile(q_starts(a), b, 128, a.q_total) * 128 : b * a.q_pad;
    return (long long)h * a.pad_rows + in_head;
}

/* Where FxaArgs.sent counts what has been sent of (b, KV head). */
FXA_INLINE long long sent_index(const FxaArgs &a, int b, int kv_h)
{
    return 1 + (k_starts(a) ? 0 : (long long)b * a.kv_heads) + kv_h;
}

/* One row of a list. Without a list every one of `all` tiles is visited: the last one is partial where the visited side
 * is ragged, and all of them where the row itself reaches past its length. The ragged last one comes first. */
struct ListRow {
    const int *items; /* 0: no list */
    int partial, total, first;
    int listed, run; /* tile j >= listed is run + j */

    FXA_INLINE ListRow() {}
    FXA_INLINE ListRow(const FxaArgs &a, int b, int h, int tile, int all, bool ragged_row, bool ragged_last)
    {
        if (a.list.items) {
            const long long row = b * a.list.b_rows + h * a.list.h_rows + tile;
            items = a.list.items + row * a.list.pitch;
            first = items[0]; /* read beside the counts, not after them; 0 in an empty row */
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
