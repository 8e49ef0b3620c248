/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of dS along diagonals (pairs of equal q - k), by warps 2 and 3 of the Hopper backward kernel: the gradient of
 * the diagonal row (values that the score program reads by q - k).
 */
#ifndef FXA_CUDA_SM90_BACKWARD_DIAGONALS_CUH
#define FXA_CUDA_SM90_BACKWARD_DIAGONALS_CUH

#include "sm90/backward_shared.cuh"
#include "common/diagonal_sum.cuh"

namespace {

/*
 * Adds dS, in shared memory as [64 q][128 k], along its diagonals (pairs of equal q - k), by 64 lanes of two warps. In
 * step i of 0..31, lane u of 0..63 reads a square of 2 x 2 (q, k) pairs, with
 * w = (i - u + 63) & 63:
 *
 *                       key 2 w    key 2 w + 1
 *     row 2 i           D          D - 1            diagonals: D (sum `on`), D - 1 (`below`), D + 1 (`above`)
 *     row 2 i + 1       D + 1      D
 *
 * D = 2 (u - 63) in the steps i <= u, which add to the lane's sums `near`; D = 2 (u - 63) + 128 in the later steps,
 * which add to `far`. In the next block of 64 queries the D of every diagonal is 64 lower. So the `near` of a lane u <
 * 32 is complete after a block, and its `far` continues as the `near` of lane u + 32; the `near` of a lane u >= 32,
 * which has no `far`, continues as that of lane u - 32. Therefore the two warps exchange their ranges of u (0..31 and
 * 32..63) after each block.
 */
struct DiagonalSums {
    float below, on, above;
};

FXA_INLINE void add_diagonals(DiagonalSum *row, const FxaDiagonalGrad &g, int at, const DiagonalSums &d)
{
    if ((unsigned)(at - 1) < (unsigned)g.size) diagonal_add(row + at - 1, d.below);
    if ((unsigned)at < (unsigned)g.size) diagonal_add(row + at, d.on);
    if ((unsigned)(at + 1) < (unsigned)g.size) diagonal_add(row + at + 1, d.above);
}

FXA_INLINE void sum_block(u32 ds, int u, DiagonalSums &near, DiagonalSums &far)
{
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
        const u32 word = (u32)(i - u + 63) & 63;
        const u32 at = ds + (word >> 5) * (BQ * 128) + i * 256 + ((((word >> 2) ^ (2 * i)) & 7) << 4) + (word & 3) * 4;
        const u32 even = (u32)load_shared(at), odd = (u32)load_shared((at ^ 16) + 128);
        const float on = unpack_low(even) + unpack_high(odd), below = unpack_high(even), above = unpack_low(odd);
        if (i <= u) {
            near.on += on;
            near.below += below;
            near.above += above;
        } else {
            far.on += on;
            far.below += below;
            far.above += above;
        }
    }
}

FXA_INLINE void sum_diagonals(const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at, int warp, int lane)
{
    const FxaDiagonalGrad &g = a.grad_diagonal;
    u32 step = 0;
    bool first = warp == 2;
    for (int i = 0; i < a.group; i++) {
        const int h = at.first_head(a) + i;
        const ListRow row = at.row(a, h);
        DiagonalSum *out = diagonal_row(a, at.b, h, at.n);
        DiagonalSums near = {}, far = {};
        for (int j = 0; j < row.total; j++, step++) {
            const int m = block_of(row.tile(j)), u = lane + (first ? 0 : 32);
            sh.ds_ring().wait_full(step);
            sum_block(sh.ds(step), u, near, far);
            __syncwarp();
            if (lane == 0) barrier_arrive(sh.ds_ring().empty(step));
            const int d = m * BQ - at.n * BK + 2 * (u - 63) + g.zero + at.n * g.zero_step;
            const bool continues = j + 1 < row.total && block_of(row.tile(j + 1)) == m + 1;
            if (first) {
                add_diagonals(out, g, d, near);
                if (!continues) add_diagonals(out, g, d + 128, far);
                near = continues ? far : DiagonalSums{};
                far = DiagonalSums{};
            } else if (!continues) {
                add_diagonals(out, g, d, near);
                near = DiagonalSums{};
            }
            if (continues) first = !first;
        }
    }
}

} // namespace

#endif
