/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer of the Hopper backward kernel: one lane of warp 0, which copies the K and V tile, and for every block of the
 * tile list Q, dO and the operands that the score program reads.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_PRODUCER_CUH
#define FXA_CUDA_SM90_BACKWARD_PRODUCER_CUH

#include "sm90/backward_shared.cuh"

namespace {

FXA_INLINE void load_keys(const FxaMaps &maps, const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at)
{
    const TmaRows rows(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    barrier_expect(sh.kv_full(), K_BYTES + V_BYTES);
    tma_load_tile<BK, FXA_D>(sh.k(), &maps.k, sh.kv_full(), rows, L2_EVICT_LAST);
    tma_load_tile<BK, FXA_DV>(sh.v(), &maps.v, sh.kv_full(), rows, L2_EVICT_LAST);
}

FXA_INLINE void load_block(const FxaMaps &maps, const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at,
                           int h, int entry, bool partial, u32 step)
{
    const int m = block_of(entry);
    /* operands (values of captured tensors per query or key) that only mask() reads are copied for partial tiles
     * only */
    const bool operands = PROG_OPERANDS == 2 || (PROG_OPERANDS && partial);
    const long long row = at.workspace_row(a, h) + m * BQ;
    const TmaRows rows(q_starts(a), at.q_first, m * BQ, h, at.b);
    const u32 full = sh.q_ring().full(step);
    sh.q_ring().wait_empty(step);
    put_word(sh.block_entry(step), entry);
    barrier_expect(full, Q_BYTES + BQ * 4 + DENSE_BYTES + (operands ? Q_OPERAND_BYTES + K_OPERAND_BYTES : 0));
    tma_load_tile<BQ, FXA_D>(sh.q(step), &maps.q, full, rows, L2_EVICT_LAST);
    bulk_load(sh.lse(step), a.lse2 + row, BQ * 4, full);
/* Operands per key (values of captured tensors) are copied with every query block, because they may differ between the
 * query heads of a KV group. */
#if PROG_OPERANDS
    const FxaOperand &v = a.q_vector, &w = a.k_vector;
    if (operands) bulk_load(sh.q_operands(step), v.data + at.b * v.b + h * v.h + m * BQ, Q_OPERAND_BYTES, full);
    if (operands) bulk_load(sh.k_operands(step), w.data + at.b * w.b + h * w.h + at.n * BK, K_OPERAND_BYTES, full);
#endif
#if PROG_DENSE
    for (int c = 0; c < BK; c += 64)
        tma_load(sh.dense(step) + c * BQ * 2, &maps.dense, full, at.n * BK + c, m * BQ, a.dense.h ? h : 0,
                 a.dense.b ? at.b : 0, L2_EVICT_FIRST);
#endif
    load_grad_o<BQ>(maps, a, sh, rows, row, step);
}

/* Prefetches into the L2 cache the first tiles of the CTA that probably runs next on this multiprocessor. Called where
 * key tiles may have few query blocks. CTAs start in the order of their indices, one per multiprocessor. */
FXA_INLINE void fetch_next(const FxaMaps &maps, const FxaArgs &a)
{
    const u32 next = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) + processors();
    const u32 head = next / gridDim.x, entry = head / gridDim.y;
    if (entry >= gridDim.z) return;
    const BackwardTile at(a, (int)(next - head * gridDim.x), (int)(head - entry * gridDim.y), (int)entry);
    if (at.outside(a)) return;
    const ListRow row = at.row(a, at.first_head(a));
    if (row.total == 0) return;
    const TmaRows keys(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    const TmaRows queries(q_starts(a), at.q_first, block_of(row.first) * BQ, at.first_head(a), at.b);
    for (int c = 0; c < FXA_D; c += 64) tma_fetch(&maps.k, c, keys.s, keys.h, keys.b);
    for (int c = 0; c < FXA_D; c += 64) tma_fetch(&maps.q, c, queries.s, queries.h, queries.b);
    for (int c = 0; c < FXA_DV; c += 64) tma_fetch(&maps.v, c, keys.s, keys.h, keys.b);
    for (int c = 0; c < FXA_DV; c += 64) tma_fetch(&maps.grad_o, c, queries.s, queries.h, queries.b);
}

FXA_INLINE void copy_all(const FxaMaps &maps, const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at)
{
    u32 step = 0;
    load_keys(maps, a, sh, at);
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        int ahead = row.first;
        for (int j = 0; j < row.total; j++, step++) {
            const int entry = ahead;
            if (j + 1 < row.total) ahead = row.tile(j + 1);
            load_block(maps, a, sh, at, h, entry, j < row.partial, step);
        }
    }
    if (PROG_MASK || FXA_VARLEN) fetch_next(maps, a);
}

} // namespace

#endif
