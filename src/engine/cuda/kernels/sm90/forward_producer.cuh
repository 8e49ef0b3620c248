/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer of the Hopper forward kernel: one lane that reads the rows of the tile list and copies Q, K, V and what the
 * score program reads per tile: dense tensor, diagonal row (values by q - k), captured values per query or key. The
 * producer waits only for empty buffers and, after the last tile, for the consumers.
 */
#ifndef FXA_CUDA_SM90_FORWARD_PRODUCER_CUH
#define FXA_CUDA_SM90_FORWARD_PRODUCER_CUH

#include "sm90/forward_shared.cuh"

namespace {

/* Removes the FXA_CUDA_SKIP bits of key tiles that a warpgroup may not skip:
 *     the first tile, which initializes the row maxima, row sums and O, and any tile in a recompute pass
 *     the last masked tile before an unmasked step, if the program bounds its scores (BOUNDED)
 *     a tile after STAGES - 1 skipped tiles: the warpgroup holds the V buffer of the last tile that it has not skipped
 *     until the product P V, and the producer needs this buffer to load another tile */
struct SkipBits {
    int recent = 0; /* FXA_CUDA_SKIP bits of the last tile and, shifted right by 3, of the tile before it */

    /* Returns the index of a key tile with the FXA_CUDA_SKIP and FXA_CUDA_FULL bits for the consumers. entry: index and
     * bits in the tile list; may: true = a skip is allowed */
    FXA_INLINE int index(int entry, bool partial, bool may)
    {
        constexpr int ALL = 7 * FXA_CUDA_SKIP;
        if (!SKIPS_TILES) return partial ? entry : entry | FULL_TILE;
        const int now = may ? entry & ALL & ~(recent & recent << 3) : 0;
        recent = now | (recent >> 3 & ALL >> 3);
        return partial ? (entry & ~ALL) | now : entry | FULL_TILE;
    }
};

struct ForwardProducer {
    const FxaMaps &maps;
    const FxaArgs &a;
    ForwardShared sh;
    u32 step, q_step;

    FXA_INLINE void load_q(const WorkTile &w, int recompute, int masked, int total, bool operands) const
    {
        const u32 full = sh.q_ring().full(q_step);
        sh.q_ring().wait_empty(q_step);
        sh.slot(q_step).put(w.tile | recompute, w, masked, total);
        barrier_expect(full, Q_BYTES + (operands ? Q_OPERAND_BYTES : 0));
        tma_load_tile<BM, FXA_D>(sh.q(q_step), &maps.q, full, TmaRows(q_starts(a), w.q_first, w.m * BM, w.h, w.b),
                                 L2_EVICT_FIRST);
#if PROG_OPERANDS
        const FxaOperand &v = a.q_vector;
        if (operands)
            bulk_load(sh.q_operands(q_step), v.data + w.b * v.b + w.h * v.h + w.m * BM, Q_OPERAND_BYTES, full);
#endif
    }

    /* Returns the number of key tiles that run as masked steps: the partial ones, and always the first one. Unless the
     * program bounds its scores (BOUNDED), the first full tile after the partial ones is included, so that the maximum
     * is fixed after a full tile: partial tiles may have few attended (q, k) pairs. In a recompute pass all tiles run
     * as masked steps. A masked step branches around mask() in full tiles, which have FULL_TILE set. */
    static FXA_INLINE int masked_tiles(int partial, int total, int recompute)
    {
        if (recompute) return total;
        return BOUNDED || partial == 0 ? max(partial, 1) : min(partial + 1, total);
    }

    /* Returns true if the tile's operands (values of captured tensors per query or key) are copied. Operands that only
     * mask() reads are copied for partial tiles only. */
    static FXA_INLINE bool needs_operands(bool partial)
    {
        return PROG_OPERANDS == 2 || (PROG_OPERANDS && partial);
    }

    FXA_INLINE void load_k(const WorkTile &w, int n, int index, bool partial) const
    {
        const bool operands = needs_operands(partial);
        const u32 full = sh.k_ring().full(step);
        sh.k_ring().wait_empty(step);
        put_word(sh.tile_index(step), index);
        barrier_expect(full, K_BYTES + DIAGONAL_BYTES + (operands ? K_OPERAND_BYTES : 0));
        tma_load_keys<BN, FXA_D>(sh.k(step), &maps.k, full, a, w.k_first, n * BN, w.kv_h, w.b, L2_EVICT_LAST);
#if PROG_DIAGONAL
        const FxaDiagonal &d = a.diagonal;
        const int first = w.m * BM - n * BN + d.zero - (BN - 1); /* a multiple of 4 */
        bulk_load(sh.diagonal(step), d.data + w.b * d.b + w.h * d.h + first, DIAGONAL_BYTES, full);
#endif
#if PROG_OPERANDS
        const FxaOperand &v = a.k_vector;
        if (operands) bulk_load(sh.k_operands(step), v.data + w.b * v.b + w.h * v.h + n * BN, K_OPERAND_BYTES, full);
#endif
    }

    FXA_INLINE void load_dense(const WorkTile &w, int n) const
    {
        const u32 full = sh.dense_ring().full(step);
        sh.dense_ring().wait_empty(step);
        barrier_expect(full, DENSE_BYTES);
#pragma unroll
        for (int c = 0; c < BN; c += 64)
            tma_load(sh.dense(step) + c * BM * 2, &maps.dense, full, n * BN + c, w.m * BM, a.dense.h ? w.h : 0,
                     a.dense.b ? w.b : 0, L2_EVICT_FIRST);
    }

    FXA_INLINE void load_v(const WorkTile &w, int n) const
    {
        sh.v_ring().wait_empty(step);
        barrier_expect(sh.v_ring().full(step), V_BYTES);
        tma_load_keys<BN, FXA_DV>(sh.v(step), &maps.v, sh.v_ring().full(step), a, w.k_first, n * BN, w.kv_h, w.b,
                                  L2_EVICT_LAST);
    }

    /* Copies Q of one query tile and all its key tiles. Returns the next query tile, or `w` in a recompute pass. Two
     * latencies are hidden: the tile counter is incremented with the first copies, and plan() reads the tile list for
     * the next query tile before the wait for the last V buffer, unless there is only one key tile. WorkTile::plan() is
     * called in one place only, because it takes most of the registers of a producer. */
    FXA_INLINE WorkTile load_tile(const WorkTile &w, int recompute)
    {
        const int total = max(w.row.total, 1), partial = w.row.total ? w.row.partial : 1;
        /* for a query tile without key tiles, key tile 0 is loaded, all of whose (q, k) pairs are masked */
        int ahead = w.row.total ? w.row.first : 0;
        int next = w.tile;
        WorkTile next_work;
        SkipBits skip_bits;
        for (int j = 0; j < total; j++, step++) {
            const int n = ahead & FXA_CUDA_SKIP - 1;
            const int index = skip_bits.index(ahead, j<partial, j> 0 && !recompute &&
                                                         !(BOUNDED && j + 1 == partial && partial < total));
            if (j + 1 < total) ahead = w.row.tile(j + 1);
            load_k(w, n, index, j < partial);
            if (j == 0)
                load_q(w, recompute, masked_tiles(partial, total, recompute), total, needs_operands(partial > 0));
            if (j == 0 && !recompute) next = next_tile(a);
#if PROG_DENSE
            load_dense(w, n);
#endif
            if (total == 1) load_v(w, n);
            if (j + 1 == total) next_work.plan<BM, BN>(a, next);
            if (total > 1) load_v(w, n);
        }
        q_step++;
        return next_work;
    }

    FXA_INLINE void wait_for_consumers() const
    {
#pragma unroll 1
        for (u32 i = q_step > Q_BUFFERS ? q_step - Q_BUFFERS : 0; i < q_step; i++) sh.q_ring().wait_consumed(i);
    }

    /* Returns the first query tile >= `from` that this CTA's consumers have flagged for recomputation, a.tiles = none.
     * Called after the consumers have finished all tiles. */
    FXA_INLINE int find_flagged(int from) const
    {
        wait_for_consumers();
        if (!load_shared(sh.recompute_flag())) return a.tiles;
#pragma unroll 1
        while (from < a.tiles && *(volatile int *)(a.redo + from) != (int)blockIdx.x + 1) from++;
        if (from < a.tiles) a.redo[from] = 0;
        return from;
    }

    static FXA_INLINE int next_mode(int mode)
    {
        return mode == RECOMPUTE                    ? RECOMPUTE | MARK_POS_INF
               : mode == (RECOMPUTE | MARK_POS_INF) ? RECOMPUTE | MARK_NEG_INF
                                                    : 0;
    }

    /* Loads all query tiles of this CTA, then the flagged ones once more, and twice more if V was not finite. All
     * passes share one call of load_tile(), because a second call would make a forward compile a tenth longer. */
    FXA_INLINE void load_all()
    {
        int mode = 0, from = 0;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < a.tiles; tile = find_flagged(from), from = tile + 1, mode = RECOMPUTE) {
            WorkTile w;
            w.plan<BM, BN>(a, tile);
            store_shared(sh.v_nonfinite(), 0);
#pragma unroll 1
            while (w.tile < a.tiles) {
                w = load_tile(w, mode);
                if (!mode) continue;
                wait_for_consumers();
                mode = load_shared(sh.v_nonfinite()) ? next_mode(mode) : 0;
                if (!mode) break;
            }
        }
    }

    FXA_INLINE void run()
    {
        load_all();
        sh.q_ring().wait_empty(q_step);
        sh.slot(q_step).put_end();
        barrier_arrive(sh.q_ring().full(q_step));
    }
};

} // namespace

#endif
