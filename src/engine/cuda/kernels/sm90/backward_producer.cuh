/* SPDX-License-Identifier: Apache-2.0
 *
 * The warps beside the consumers of the Hopper backward kernel: copies, dQ on its way out, sums along diagonals.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_PRODUCER_CUH
#define FXA_CUDA_SM90_BACKWARD_PRODUCER_CUH

#include "sm90/backward_shared.cuh"
#include "common/diagonal_sum.cuh"

namespace {

/* ---- Warp 0: copies --------------------------------------------------------------------------------------------- */

FXA_INLINE void load_keys(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Place &at)
{
    const Rows rows(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    barrier_expect(sh.kv_full(), K_BYTES + V_BYTES);
    tma_load_tile<BK, FXA_D>(sh.k(), &maps.k, sh.kv_full(), rows, CACHE_KEEP);
    tma_load_tile<BK, FXA_DV>(sh.v(), &maps.v, sh.kv_full(), rows, CACHE_KEEP);
}

FXA_INLINE void load_block(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Place &at, int h, int item,
                           bool partial, u32 step)
{
    const int m = block_of(item);
    const bool words = PROG_OPERANDS == 2 || (PROG_OPERANDS && partial); /* else nobody reads them */
    const long long row = at.workspace_row(a, h) + m * BQ;
    const Rows rows(q_starts(a), at.q_first, m * BQ, h, at.b);
    const u32 full = sh.q_ring().full(step);
    sh.q_ring().wait_empty(step);
    put_word(sh.number(step), item);
    barrier_expect(full, Q_BYTES + BQ * 4 + DENSE_BYTES + (words ? QWORD_BYTES + KWORD_BYTES : 0));
    tma_load_tile<BQ, FXA_D>(sh.q(step), &maps.q, full, rows, CACHE_KEEP);
    bulk_load(sh.lse(step), a.lse2 + row, BQ * 4, full);
#if PROG_OPERANDS /* keys' words come with every block, because they may differ between the heads of a group */
    const FxaOperand &v = a.q_vector, &w = a.k_vector;
    if (words) bulk_load(sh.q_words(step), v.data + at.b * v.b + h * v.h + m * BQ, QWORD_BYTES, full);
    if (words) bulk_load(sh.k_words(step), w.data + at.b * w.b + h * w.h + at.n * BK, KWORD_BYTES, full);
#endif
#if PROG_DENSE
    for (int c = 0; c < BK; c += 64)
        tma_load(sh.dense(step) + c * BQ * 2, &maps.dense, full, at.n * BK + c, m * BQ, a.dense.h ? h : 0,
                 a.dense.b ? at.b : 0, CACHE_FIRST_OUT);
#endif
    load_grad_o<BQ>(maps, a, sh, rows, row, step);
}

/* Where tiles are short: into the L2 cache what the CTA asks for at first that comes when this one is done. CTAs begin
 * in the order of their numbers, one on each multiprocessor. */
FXA_INLINE void fetch_next(const FxaMaps &maps, const FxaArgs &a)
{
    const u32 next = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) + processors();
    const u32 head = next / gridDim.x, entry = head / gridDim.y;
    if (entry >= gridDim.z) return;
    const Place at(a, (int)(next - head * gridDim.x), (int)(head - entry * gridDim.y), (int)entry);
    if (at.outside(a)) return;
    const ListRow row = at.row(a, at.first_head(a));
    if (row.total == 0) return;
    const Rows keys(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    const Rows queries(q_starts(a), at.q_first, block_of(row.first) * BQ, at.first_head(a), at.b);
    for (int c = 0; c < FXA_D; c += 64) tma_fetch(&maps.k, c, keys.s, keys.h, keys.b);
    for (int c = 0; c < FXA_D; c += 64) tma_fetch(&maps.q, c, queries.s, queries.h, queries.b);
    for (int c = 0; c < FXA_DV; c += 64) tma_fetch(&maps.v, c, keys.s, keys.h, keys.b);
    for (int c = 0; c < FXA_DV; c += 64) tma_fetch(&maps.grad_o, c, queries.s, queries.h, queries.b);
}

FXA_INLINE void copy_all(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Place &at)
{
    u32 step = 0;
    load_keys(maps, a, sh, at);
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        int ahead = row.first;
        for (int j = 0; j < row.total; j++, step++) {
            const int item = ahead;
            if (j + 1 < row.total) ahead = row.tile(j + 1);
            load_block(maps, a, sh, at, h, item, j < row.partial, step);
        }
    }
    if (PROG_MASK || FXA_VARLEN) fetch_next(maps, a);
}

/* ---- Warp 1: dQ ------------------------------------------------------------------------------------------------- */

/*
 * The first share of dQ of a block of queries is stored, so that nobody has to set the sum to 0 before: who comes first
 * claims that in FxaArgs.first_share, when its share is there, and the others wait until it has arrived. One lane does
 * all of it.
 */
struct Share {
    static constexpr int CLAIMED = -1, THERE = 1;
    int *first;
    bool stores;

    /* Before the share is there. */
    FXA_INLINE void ask() { stores = FIRST_STORED && flag_now(first) != THERE; }
    FXA_INLINE void take()
    {
        if (!stores) return;
        int now;
        do
            now = flag_claim(first, CLAIMED);
        while (now == CLAIMED);
        stores = now == 0;
    }
    FXA_INLINE void send(float *to, u32 from, int bytes) const
    {
        if (stores)
            bulk_store(to, from, bytes);
        else
            bulk_add(to, from, bytes);
        bulk_commit();
    }
    FXA_INLINE void end() const
    {
        if (!stores) return;
        bulk_wait();
        if (BQ == 128) first[1] = THERE;
        flag_set(first, THERE);
    }
};

/* Buffers go back when they are read; that the first share is there is said when all of it has arrived. */
FXA_INLINE void send_dq(const FxaArgs &a, const Shared &sh, const Place &at)
{
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++) {
            const long long first = at.workspace_row(a, h) + (long long)block_of(row.tile(j)) * BQ;
            float *to = a.grad_q_sum + first * FXA_D;
            Share share = {a.first_share + first / 64, false};
            if (elected()) share.ask();
            __syncwarp();
#pragma unroll
            for (int x = 0; x < 2; x++) {
                named_sync(BAR_DQ_FULL + x, 160);
                if (DQ_SENT[x] && elected()) {
                    if (x == 0) share.take();
                    share.send(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_SENT[x]);
                }
            }
            if (elected()) bulk_wait_read<0>();
            __syncwarp();
            named_arrive(BAR_DQ_EMPTY, 160);
            named_arrive(BAR_DQ_EMPTY + 1, 160);
            if (elected()) share.end();
        }
    }
    if (elected()) {
        bulk_wait();
        say_sent(a, at);
    }
}

/* ---- Warps 2 and 3: sums of dS along diagonals ------------------------------------------------------------------ */

/*
 * dS lies in shared memory as [64 q][128 k]. Lane u of 0..63 (two warps) reads the 32-bit word (i - u + 63) & 63, two
 * keys, of rows 2i and 2i + 1 for i = 0..31: its four elements lie on the diagonals D - 1, D, D, D + 1 with D = 2 (u -
 * 63) while i <= u (set `near`), else D + 128 (set `far`). On to the next block of queries every D moves by 64, so the
 * warp with u = 0..31 is done with `near` and goes on with its `far` as `near` of u + 32, and the other warp's `near`
 * belongs to u - 32: the warps only change places.
 */
struct Diagonals {
    float below, on, above;
};

FXA_INLINE void add_diagonals(DiagonalSum *row, const FxaDiagonalGrad &g, int at, const Diagonals &d)
{
    if ((unsigned)(at - 1) < (unsigned)g.size) diagonal_add(row + at - 1, d.below);
    if ((unsigned)at < (unsigned)g.size) diagonal_add(row + at, d.on);
    if ((unsigned)(at + 1) < (unsigned)g.size) diagonal_add(row + at + 1, d.above);
}

FXA_INLINE void sum_block(u32 ds, int u, Diagonals &near, Diagonals &far)
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

FXA_INLINE void sum_diagonals(const FxaArgs &a, const Shared &sh, const Place &at, int warp, int lane)
{
    const FxaDiagonalGrad &g = a.grad_diagonal;
    u32 step = 0;
    bool first = warp == 2;
    for (int i = 0; i < a.group; i++) {
        const int h = at.first_head(a) + i;
        const ListRow row = at.row(a, h);
        DiagonalSum *out = diagonal_row(a, at.b, h, at.n);
        Diagonals near = {}, far = {};
        for (int j = 0; j < row.total; j++, step++) {
            const int m = block_of(row.tile(j)), u = lane + (first ? 0 : 32);
            sh.ds_ring().wait_full(step);
            sum_block(sh.ds(step), u, near, far);
            __syncwarp();
            if (lane == 0) barrier_arrive(sh.ds_ring().empty(step));
            const int d = m * BQ - at.n * BK + 2 * (u - 63) + g.zero + at.n * g.zero_step;
            const bool runs_on = j + 1 < row.total && block_of(row.tile(j + 1)) == m + 1;
            if (first) {
                add_diagonals(out, g, d, near);
                if (!runs_on) add_diagonals(out, g, d + 128, far);
                near = runs_on ? far : Diagonals{};
                far = Diagonals{};
            } else if (!runs_on) {
                add_diagonals(out, g, d, near);
                near = Diagonals{};
            }
            if (runs_on) first = !first;
        }
    }
}

} // namespace

#endif
