/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer of the Hopper forward kernel: one lane that walks the lists of query tiles and copies Q, K, V and what
 * the program reads beside them. It only ever waits for empty buffers.
 */
#ifndef FXA_CUDA_SM90_FORWARD_PRODUCER_CUH
#define FXA_CUDA_SM90_FORWARD_PRODUCER_CUH

#include "sm90/forward_shared.cuh"

namespace {

/* Which warpgroups pass over a tile, as bits of its number. None over the first one, which sets up its rows; nor, where
 * the step after it is one without a mask, over the last with one; and over STAGES - 1 in a row at most: what is passed
 * over must have arrived, while V of the tile before, whose product is still to come, is held. */
struct Passing {
    int held = 0; /* of the last tile; below them of the one before it */

    /* The number that is told of a tile of the list. */
    FXA_INLINE int number(int item, bool partial, bool may)
    {
        constexpr int ALL = 7 * FXA_CUDA_SKIP;
        if (!PASSES) return partial ? item : item | WHOLE;
        const int now = may ? item & ALL & ~(held & held << 3) : 0;
        held = now | (held >> 3 & ALL >> 3);
        return partial ? (item & ~ALL) | now : item | WHOLE;
    }
};

struct Producer {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    u32 step, turn;

    FXA_INLINE void load_q(const Work &w, int safe, int masked, int total, bool words) const
    {
        const u32 full = sh.q_ring().full(turn);
        sh.q_ring().wait_empty(turn);
        sh.slot(turn).put(w.tile | safe, w, masked, total);
        barrier_expect(full, Q_BYTES + (words ? QWORD_BYTES : 0));
        tma_load_tile<BM, FXA_D>(sh.q(turn), &maps.q, full, Rows(q_starts(a), w.q_first, w.m * BM, w.h, w.b),
                                 CACHE_FIRST_OUT);
#if PROG_OPERANDS
        const FxaOperand &v = a.q_vector;
        if (words) bulk_load(sh.q_words(turn), v.data + w.b * v.b + w.h * v.h + w.m * BM, QWORD_BYTES, full);
#endif
    }

    /* How many tiles go through the step for masks. The first one always does; and where the maximum is a running one,
     * of which partial tiles may have said little, so does the one after them, on which it is not frozen yet; in a safe
     * visit every tile. Those that are not partial are WHOLE there, and lose nothing but a branch by it, for which one
     * instance of the step less is compiled. */
    static FXA_INLINE int masked_tiles(int partial, int total, int safe)
    {
        if (safe) return total;
        return BOUNDED || partial == 0 ? max(partial, 1) : min(partial + 1, total);
    }

    /* Words that only mask() reads are not copied where it is not asked. */
    static FXA_INLINE bool words_needed(bool partial) { return PROG_OPERANDS == 2 || (PROG_OPERANDS && partial); }

    FXA_INLINE void load_k(const Work &w, int n, int number, bool partial) const
    {
        const bool words = words_needed(partial);
        const u32 full = sh.k_ring().full(step);
        sh.k_ring().wait_empty(step);
        put_word(sh.number(step), number);
        barrier_expect(full, K_BYTES + STRIP_BYTES + (words ? KWORD_BYTES : 0));
        tma_load_keys<BN, FXA_D>(sh.k(step), &maps.k, full, a, w.k_first, n * BN, w.kv_h, w.b, CACHE_KEEP);
#if PROG_DIAGONAL
        const FxaDiagonal &d = a.diagonal;
        const int first = w.m * BM - n * BN + d.zero - (BN - 1); /* a multiple of 4 */
        bulk_load(sh.strip(step), d.data + w.b * d.b + w.h * d.h + first, STRIP_BYTES, full);
#endif
#if PROG_OPERANDS
        const FxaOperand &v = a.k_vector;
        if (words) bulk_load(sh.k_words(step), v.data + w.b * v.b + w.h * v.h + n * BN, KWORD_BYTES, full);
#endif
    }

    FXA_INLINE void load_dense(const Work &w, int n) const
    {
        const u32 full = sh.dense_ring().full(step);
        sh.dense_ring().wait_empty(step);
        barrier_expect(full, DENSE_BYTES);
#pragma unroll
        for (int c = 0; c < BN; c += 64)
            tma_load(sh.dense(step) + c * BM * 2, &maps.dense, full, n * BN + c, w.m * BM, a.dense.h ? w.h : 0,
                     a.dense.b ? w.b : 0, CACHE_FIRST_OUT);
    }

    FXA_INLINE void load_v(const Work &w, int n) const
    {
        sh.v_ring().wait_empty(step);
        barrier_expect(sh.v_ring().full(step), V_BYTES);
        tma_load_keys<BN, FXA_DV>(sh.v(step), &maps.v, sh.v_ring().full(step), a, w.k_first, n * BN, w.kv_h, w.b,
                                  CACHE_KEEP);
    }

    /* All copies of one query tile; returns the next one, of a safe visit the same. Its number is asked for with the
     * first copies and its list row is read before the wait for the last V (after an only one), so that neither latency
     * is seen. In one place: planning takes most of the few registers that a producer has. */
    FXA_INLINE Work visit(const Work &w, int safe)
    {
        const int total = max(w.row.total, 1), partial = w.row.total ? w.row.partial : 1;
        int ahead = w.row.total ? w.row.first : 0; /* nothing is attended: one tile, which the mask empties */
        int next = w.tile;
        Work following;
        Passing passing;
        for (int j = 0; j < total; j++, step++) {
            const int n = ahead & FXA_CUDA_SKIP - 1;
            const int number = passing.number(
                ahead, j < partial, j > 0 && !safe && !(BOUNDED && j + 1 == partial && partial < total));
            if (j + 1 < total) ahead = w.row.tile(j + 1);
            load_k(w, n, number, j < partial);
            if (j == 0) load_q(w, safe, masked_tiles(partial, total, safe), total, words_needed(partial > 0));
            if (j == 0 && !safe) next = next_tile(a);
#if PROG_DENSE
            load_dense(w, n);
#endif
            if (total == 1) load_v(w, n);
            if (j + 1 == total) following.plan<BM, BN>(a, next);
            if (total > 1) load_v(w, n);
        }
        turn++;
        return following;
    }

    FXA_INLINE void wait_for_consumers() const
    {
#pragma unroll 1
        for (u32 i = turn > Q_BUFFERS ? turn - Q_BUFFERS : 0; i < turn; i++) sh.q_ring().wait_consumed(i);
    }

    /* The next flagged tile of this CTA from `from` on, once the consumers are done with all tiles; or a.tiles. */
    FXA_INLINE int find_redo(int from) const
    {
        wait_for_consumers();
        if (!load_shared(sh.flag())) return a.tiles;
#pragma unroll 1
        while (from < a.tiles && *(volatile int *)(a.redo + from) != (int)blockIdx.x + 1) from++;
        if (from < a.tiles) a.redo[from] = 0;
        return from;
    }

    static FXA_INLINE int next_mode(int mode)
    {
        return mode == SAFE ? SAFE | UP : mode == (SAFE | UP) ? SAFE | DOWN : 0;
    }

    /* All tiles that are this CTA's; then those that are flagged, each once, and twice more where V was not finite. In
     * one place: a second one that visits is a tenth of what a compiler has to do for a forward. */
    FXA_INLINE void visit_all()
    {
        int mode = 0, from = 0;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < a.tiles; tile = find_redo(from), from = tile + 1, mode = SAFE) {
            Work w;
            w.plan<BM, BN>(a, tile);
            store_shared(sh.found(), 0);
#pragma unroll 1
            while (w.tile < a.tiles) {
                w = visit(w, mode);
                if (!mode) continue;
                wait_for_consumers();
                mode = load_shared(sh.found()) ? next_mode(mode) : 0;
                if (!mode) break;
            }
        }
    }

    FXA_INLINE void run()
    {
        visit_all();
        sh.q_ring().wait_empty(turn);
        sh.slot(turn).put_end();
        barrier_arrive(sh.q_ring().full(turn));
    }
};

} // namespace

#endif
