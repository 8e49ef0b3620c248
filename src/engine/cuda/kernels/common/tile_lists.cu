/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile lists, computed on the device for masks that read captured tensors or run-time lengths, so that the caller
 * neither builds nor stores a block mask.
 *
 *     fxa_operands_pack   packs row and key operands (values of captured tensors that depend on the row or the key
 *                         alone) into padded arrays, with {minimum, maximum} of every 64 positions.
 *                         Grid (pitch / 512 rounded up, heads, batch), one warp per 64 positions
 *     fxa_range_table     writes {minimum, maximum} of every 64 elements along one axis of a captured tensor: a table
 *                         of FxaArgs.ranges. Grid (blocks of 64 elements / 8 rounded up, 1, 1), one warp per block
 *     fxa_tile_lists      calls the program's tile_class() for every tile and writes the rows of an FxaTileList,
 *                         one warp per row. Grid (rows / 8 rounded up, heads, batch), with 1 instead of heads or
 *                         batch if the mask does not depend on h or b. If the kernel packs operands too, the grid
 *                         is (1, heads, batch) with TOGETHER threads
 *
 * For a very long sequence a list row may have a smaller capacity (pitch, at least 2) than there are tiles. If the
 * tiles of a row do not fit, the full tiles are stored as one range if they are contiguous, as with causal masks,
 * windows and documents, and the partial tiles fit. Otherwise one range is stored: from the row's first tile to its
 * last, all as partial tiles.
 */
#include "common/program_interface.cuh"

namespace {

constexpr int WARPS = FXA_LIST_WARPS;
static_assert(32 * WARPS == FXA_HELPER_THREADS, "a warp per row");
static_assert(FXA_RANGE_ROWS == 64, "a lane has two words of a range");
constexpr int TOGETHER = PROG_PACK_OPERANDS ? FXA_CUDA_LIST_THREADS(FXA_VARLEN) : 32 * WARPS;

FXA_INLINE int class_of(const FxaArgs &a, const FxaListShape &cut, int b, int h, int row, int column)
{
    const int q_len = q_length(a, b), k_len = k_length(a, b);
    const int q0 = (cut.by_key ? column : row) * cut.q_rows, k0 = (cut.by_key ? row : column) * cut.k_rows;
    if (column >= cut.columns || q0 >= q_len || k0 >= k_len) return TILE_EMPTY;
    const int q1 = min(q0 + cut.q_rows, q_len) - 1, k1 = min(k0 + cut.k_rows, k_len) - 1;
    const int found = Program::tile_class(a, b, h, q0, q1, k0, k1);
    const bool ragged = q0 + cut.q_rows > q_len || k0 + cut.k_rows > k_len;
    return found == TILE_FULL && ragged ? TILE_PARTIAL : found;
}

/* Returns the bits FXA_CUDA_SKIP << i and FXA_CUDA_FULL << i (FxaTileList) of each 64-row part i of a partial tile. A
 * part past the last query has both bits. */
FXA_INLINE int classes_of_parts(const FxaArgs &a, const FxaListShape &cut, int b, int h, int row, int column)
{
    const int q_len = q_length(a, b), k_len = k_length(a, b);
    int out = 0;
#pragma unroll 1
    for (int i = 0; i < cut.parts; i++) {
        const int q0 = cut.by_key ? column * cut.q_rows : row * cut.q_rows + i * 64;
        const int k0 = cut.by_key ? row * cut.k_rows + i * 64 : column * cut.k_rows;
        const int q1 = q0 + (cut.by_key ? cut.q_rows : 64) - 1, k1 = k0 + (cut.by_key ? 64 : cut.k_rows) - 1;
        const int found = q0 < q_len && k0 < k_len
                              ? Program::tile_class(a, b, h, q0, min(q1, q_len - 1), k0, min(k1, k_len - 1))
                              : TILE_EMPTY;
        if (found == TILE_EMPTY) out |= FXA_CUDA_SKIP << i;
        if (!cut.by_key && q0 >= q_len) out |= FXA_CUDA_FULL << i;
        if (found == TILE_FULL && k1 < k_len && (!cut.by_key || q1 < q_len)) out |= FXA_CUDA_FULL << i;
    }
    return out;
}

/* Number of tiles of one class (partial or full) in a row of the list, and indices of the first and the last. */
struct TileRange {
    int count = 0, first = 0x7fffffff, last = -1;

    FXA_INLINE void add(u32 lanes, int column)
    {
        if (!lanes) return;
        count += __popc(lanes);
        first = min(first, column + __ffs((int)lanes) - 1);
        last = column + 31 - __clz((int)lanes);
    }
    FXA_INLINE bool is_run() const { return last - first + 1 == count; }
};

/* Returns element `at` of a captured tensor as a 32-bit word. kind: FXA_WORD_SAME or another FXA_WORD */
FXA_INLINE int operand_of(const void *from, int kind, long long at)
{
    switch (kind) {
    case FXA_WORD_I64: {
        const long long x = ((const long long *)from)[at], smallest = -2147483648ll, largest = 2147483647ll;
        return (int)(x < smallest ? smallest : x > largest ? largest : x);
    }
    case FXA_WORD_I16: return ((const short *)from)[at];
    case FXA_WORD_I8: return ((const signed char *)from)[at];
    case FXA_WORD_U8: return ((const u8 *)from)[at];
    case FXA_WORD_BOOL: return ((const u8 *)from)[at] != 0;
    case FXA_WORD_F16: return __float_as_int(from_half(((const u16 *)from)[at]));
    case FXA_WORD_BF16: return ((const u16 *)from)[at] << 16;
    default: return ((const int *)from)[at];
    }
}

/* Stores block `block` of 64 words of an FxaOperand and the block's {minimum, maximum}, by one warp: x and y are the
 * block's words lane and lane + 32. */
FXA_INLINE void store_operands(const FxaPackedOperand &w, long long row, int block, int x, int y)
{
    const int lane = threadIdx.x % 32, i = block * 64 + lane;
    const bool one = i < w.length, other = i + 32 < w.length;
    const int smallest = min(one ? x : 0x7fffffff, other ? y : 0x7fffffff);
    const int largest = max(one ? x : -0x7fffffff - 1, other ? y : -0x7fffffff - 1);
    const Int2 range = {__reduce_min_sync(~0u, smallest), __reduce_max_sync(~0u, largest)};
    if (block * 64 >= w.pitch) return;
    w.to[row * w.pitch + i] = x;
    w.to[row * w.pitch + i + 32] = y;
    if (lane == 0) ((Int2 *)w.ranges)[row * (w.pitch / 64) + block] = range;
}

/* Writes the FxaOperand of (b, h) to row `row` of its array, by one warp: the blocks of 64 words with the indices
 * `first`, `first + step`, ... . To hide latency, the warp loads two blocks at once, and loads elements of 32 bits
 * without a branch between the loads. */
FXA_INLINE void pack_operands(const FxaPackedOperand &w, int b, int h, long long row, int first, int step)
{
    const long long from = b * w.b + h * w.h;
#pragma unroll 1
    for (; first * 64 < w.pitch; first += 2 * step) {
        int x[4], i[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            i[j] = (first + j / 2 * step) * 64 + j % 2 * 32 + (int)(threadIdx.x % 32);
            x[j] = 0;
        }
        if (w.kind == FXA_WORD_SAME && w.length > 0) {
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = ((const int *)w.from)[from + min(i[j], w.length - 1) * w.s];
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i[j] < w.length) x[j] = operand_of(w.from, w.kind, from + i[j] * w.s);
        }
        store_operands(w, row, first, i[0] < w.length ? x[0] : 0, i[1] < w.length ? x[1] : 0);
        store_operands(w, row, first + step, i[2] < w.length ? x[2] : 0, i[3] < w.length ? x[3] : 0);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(32 * WARPS) fxa_operands_pack(const __grid_constant__ FxaPackedOperand w)
{
    launch_next();
    const int h = blockIdx.y, b = blockIdx.z;
    pack_operands(w, b, h, (long long)b * gridDim.y + h, blockIdx.x * WARPS + threadIdx.x / 32, gridDim.x * WARPS);
    launch_wait();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    fxa_range_table(const __grid_constant__ FxaCapture t, int axis, int kind, Int2 *ranges)
{
    launch_next();
    const int blocks = (t.size[axis] + 63) / 64, lane = threadIdx.x % 32;
    const long long place = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    long long row = place / blocks, at = 0;
    const int first = (int)(place - row * blocks) * 64;
    for (int d = t.rank - 1; d >= 0; d--) {
        if (d == axis) continue;
        at += row % t.size[d] * t.stride[d];
        row /= t.size[d];
    }
    const int end = row ? first : min(first + 64, t.size[axis]); /* row > 0: this warp has no block */
    int smallest = 0x7fffffff, largest = -0x7fffffff - 1;
    for (int i = first + lane; i < end; i += 32) {
        const int x = operand_of(t.data, kind, at + i * t.stride[axis]);
        smallest = min(smallest, x);
        largest = max(largest, x);
    }
    smallest = __reduce_min_sync(~0u, smallest);
    largest = __reduce_max_sync(~0u, largest);
    if (lane == 0 && !row) ranges[place] = Int2{smallest, largest};
    launch_wait();
}

/* Writes a row of the tile list in two passes: the first pass counts the partial and full tiles, the second stores
 * their indices, partial tiles first. The classes of the first 1024 tiles are kept in registers between the passes,
 * because computing them takes most of the time. */
FXA_INLINE void write_row(const FxaArgs &a, const FxaListShape &cut, int *items, int *counts, long long pitch, int b,
                          int h, int row)
{
    const int lane = threadIdx.x % 32;
    const long long place = ((long long)b * gridDim.y + h) * cut.rows + row;
    int *to = items + place * pitch;
    TileRange partial_range, all;
    u64 classes = 0; /* TILE_EMPTY, TILE_PARTIAL or TILE_FULL of this lane's first 32 tiles, two bits each */
    for (int first = 0; first < cut.columns; first += 32) {
        const int found = class_of(a, cut, b, h, row, first + lane);
        if (first < 1024) classes |= (u64)found << first / 16;
        partial_range.add(__ballot_sync(~0u, found == TILE_PARTIAL), first);
        all.add(__ballot_sync(~0u, found == TILE_FULL), first);
    }
    const bool fits = partial_range.count + all.count <= pitch,
               runs = !fits && partial_range.count <= pitch - 2 && all.is_run();
    int next_partial = 0, next_full = partial_range.count;
    for (int first = 0; first < cut.columns && (fits || runs); first += 32) {
        const int found =
            first < 1024 ? (int)(classes >> first / 16 & 3) : class_of(a, cut, b, h, row, first + lane);
        const u32 before = (1u << lane) - 1;
        const u32 partial = __ballot_sync(~0u, found == TILE_PARTIAL), full = __ballot_sync(~0u, found == TILE_FULL);
        if (found == TILE_PARTIAL)
            to[next_partial + __popc(partial & before)] =
                (first + lane) | classes_of_parts(a, cut, b, h, row, first + lane);
        if (fits && found == TILE_FULL) to[next_full + __popc(full & before)] = first + lane;
        next_partial += __popc(partial);
        next_full += __popc(full);
    }
    if (lane) return;
    Int2 count = {partial_range.count, partial_range.count + all.count};
    if (!fits) {
        const int smallest = min(partial_range.first, all.first), largest = max(partial_range.last, all.last);
        if (!runs) count.x = count.y = largest - smallest + 1;
        count.y = ~count.y;
        to[pitch - 2] = runs ? partial_range.count : 0;
        to[pitch - 1] = runs ? all.first - partial_range.count : smallest;
    }
    /* to[0] is defined even if no index is stored, because kernels always load it together with the counts (ListRow) */
    if (!count.y || (!fits && !(runs && partial_range.count))) to[0] = 0;
    *(Int2 *)(counts + 2 * place) = count;
}

/* Writes the tile lists. If one CTA writes all rows of a (b, h), the CTA first writes the FxaOperands that the mask
 * reads, which saves a launch. The mask then reads them from global memory, as in other kernels. */
extern "C" __global__ void __launch_bounds__(TOGETHER, 1)
    fxa_tile_lists(const __grid_constant__ FxaArgs a, FxaListShape cut, int *items, int *counts, long long pitch,
                   const __grid_constant__ FxaPackedOperands packed)
{
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, h = blockIdx.y, b = blockIdx.z;
    launch_next();
#pragma unroll 1
    for (int i = 0; PROG_PACK_OPERANDS && i < 2; i++)
        if (packed.side[i].to) pack_operands(packed.side[i], b, h, (long long)b * gridDim.y + h, warp, warps);
    launch_wait();
    __syncthreads();
#pragma unroll 1
    for (int row = blockIdx.x * warps + warp; row < cut.rows; row += gridDim.x * warps)
        write_row(a, cut, items, counts, pitch, b, h, row);
}
