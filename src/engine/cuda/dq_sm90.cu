/* SPDX-License-Identifier: Apache-2.0
 *
 * dQ alone on Hopper, by query tiles: the other half of a bit-stable backward, beside backward_sm90.cu with
 * FXA_SEPARATE_DQ. Two more products than the joint kernel (S and dP again), but no f32 sum in memory, no atomics, no
 * conversion afterwards, and it follows any list.
 *
 * Persistent as the forward, with the forward's lists at 128 x 64. Q and dO of a tile move to registers at once, so
 * their buffers take the next tile's; dQ leaves through a buffer of its own. Launch: min(tiles, multiprocessors) CTAs.
 */
#include "hopper.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "wgmma.cuh"

namespace {

constexpr int BM = 128, BN = 64, THREADS = 384;
constexpr int STAGES = PROG_DENSE ? 2 : 4;
constexpr int Q_BYTES = BM * FXA_D * 2, K_BYTES = BN * FXA_D * 2, DENSE_BYTES = PROG_DENSE ? BM * BN * 2 : 0;
static_assert(FXA_D == FXA_DV, "one head dimension");

struct Shared {
    u32 base;

    static constexpr int DO_AT = Q_BYTES, OUT_AT = 2 * Q_BYTES, K_AT = 3 * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES;
    static constexpr int DENSE_AT = V_AT + STAGES * K_BYTES, RINGS_AT = DENSE_AT + STAGES * DENSE_BYTES;
    static constexpr int SLOT_AT = RINGS_AT + Ring<1>::bytes + 2 * Ring<STAGES>::bytes, NUMBERS_AT = SLOT_AT + 32;
    static constexpr int BYTES = NUMBERS_AT + 4 * STAGES + 1024;

    FXA_INLINE u32 q() const { return base; }
    FXA_INLINE u32 grad_o() const { return base + DO_AT; }
    FXA_INLINE u32 out() const { return base + OUT_AT; }
    FXA_INLINE u32 k(u32 step) const { return base + K_AT + (step % STAGES) * K_BYTES; }
    FXA_INLINE u32 v(u32 step) const { return base + V_AT + (step % STAGES) * K_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % STAGES) * DENSE_BYTES; }
    FXA_INLINE Ring<1> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> k_ring() const { return {q_ring().at + Ring<1>::bytes}; }
    FXA_INLINE Ring<STAGES> v_ring() const { return {k_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE u32 slot() const { return base + SLOT_AT; } /* {0 or -1, partial, total, m, h, b, q_len, k_len} */
    FXA_INLINE u32 number(u32 step) const { return base + NUMBERS_AT + 4 * (step % STAGES); }

    FXA_INLINE void init() const
    {
        q_ring().init(2);
        k_ring().init(2);
        v_ring().init(2);
        barrier_init_done();
    }
};

struct Producer {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    u32 step, turn;

    FXA_INLINE void load_q(const Work &w) const
    {
        const int words[8] = {0, w.row.partial, w.row.total, w.m, w.h, w.b, w.q_len, w.k_len};
        sh.q_ring().wait_empty(turn);
#pragma unroll
        for (int i = 0; i < 8; i++) store_shared(sh.slot() + 4 * i, words[i]);
        const u32 full = sh.q_ring().full(turn);
        barrier_expect(full, 2 * Q_BYTES);
        tma_load_tile<BM, FXA_D>(sh.q(), &maps.q, full, w.m * BM, w.h, w.b, CACHE_FIRST_OUT);
        tma_load_tile<BM, FXA_D>(sh.grad_o(), &maps.grad_o, full, w.m * BM, w.h, w.b, CACHE_FIRST_OUT);
    }

    FXA_INLINE void load_keys(const Work &w, int n) const
    {
        const u32 full = sh.k_ring().full(step);
        sh.k_ring().wait_empty(step);
        store_shared(sh.number(step), n);
        barrier_expect(full, K_BYTES + DENSE_BYTES);
        tma_load_tile<BN, FXA_D>(sh.k(step), &maps.k, full, n * BN, w.kv_h, w.b, CACHE_KEEP);
#if PROG_DENSE
        tma_load(sh.dense(step), &maps.dense, full, n * BN, w.m * BM, a.dense.h ? w.h : 0, a.dense.b ? w.b : 0,
                 CACHE_FIRST_OUT);
#endif
    }

    FXA_INLINE void load_values(const Work &w, int n) const
    {
        sh.v_ring().wait_empty(step);
        barrier_expect(sh.v_ring().full(step), K_BYTES);
        tma_load_tile<BN, FXA_D>(sh.v(step), &maps.v, sh.v_ring().full(step), n * BN, w.kv_h, w.b, CACHE_KEEP);
    }

    /* A tile that attends to nothing still loads Q, so that its zeros are written. */
    FXA_INLINE void run()
    {
        Work w;
        for (w.plan<BM, BN>(a, blockIdx.x); w.tile < a.tiles; turn++) {
            int ahead = w.row.first;
            const int total = w.row.total;
            if (!total) load_q(w);
            for (int j = 0; j < total; j++, step++) {
                const int n = ahead;
                if (j + 1 < total) ahead = w.row.tile(j + 1);
                load_keys(w, n);
                if (j == 0) load_q(w);
                load_values(w, n);
            }
            w.plan<BM, BN>(a, next_tile(a));
        }
        sh.q_ring().wait_empty(turn);
        store_shared(sh.slot(), -1);
        barrier_arrive(sh.q_ring().full(turn));
    }
};

struct Consumer {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    Program program;
    int group, warp, lane;
    bool leader;
    u32 step, turn;
    int q0, h, b, q_len, k_len;
    float unit, lse[2], delta[2], dq[FXA_D / 2];
    u32 q[FXA_D / 4], grad_o[FXA_D / 4];

    FXA_INLINE Consumer(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, int group_)
        : maps(maps_), a(a_), sh(sh_), group(group_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31),
          leader((threadIdx.x & 127) == 0), step(0), turn(0), unit(Program::unit(a_))
    {
    }

    FXA_INLINE int warp_row() const { return group * 64 + warp * 16; }

    FXA_INLINE void take(u32 (&to)[FXA_D / 4], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k++) {
            u32 r[4];
            load_matrix(swizzled<BM>(tile + warp_row() * 128, lane & 15, k * 2 + (lane >> 4)), r);
#pragma unroll
            for (int x = 0; x < 4; x++) to[4 * k + x] = r[x];
        }
    }

    /* x[64 x 64] = rows in registers times the rows of a tile */
    FXA_INLINE void issue_scores(float (&x)[BN / 2], const u32 (&rows)[FXA_D / 4], u32 tile) const
    {
        const u64 columns = k_major(tile);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k++) wgmma<0>(x, rows, k, columns + k_step<BN>(k), k > 0);
        wgmma_commit();
    }

    /* S to P times the slope. */
    template <bool MASKED> FXA_INLINE void probabilities(float (&s)[BN / 2], int n)
    {
        constexpr bool WORDS = PROG_VECTOR == 2 || (PROG_VECTOR && MASKED);
        const int k0 = n * BN + (lane & 3) * 2;
        const float *row = a.diagonal.data + b * a.diagonal.b + h * a.diagonal.h + a.diagonal.zero + q0 - k0;
        const int *q_words = a.q_vector.data + b * a.q_vector.b + h * a.q_vector.h + q0;
        const int *k_words = a.k_vector.data + b * a.k_vector.b + h * a.k_vector.h + k0;
        const u32 dense = sh.dense(step) + (warp_row() + (lane >> 2)) * 128 + (lane & 3) * 4;
        const int q_word[2] = {WORDS ? __ldg(q_words) : 0, WORDS ? __ldg(q_words + 8) : 0};
        const int keys[2] = {q0 < q_len ? k_len - k0 : 0, q0 + 8 < q_len ? k_len - k0 : 0};
        if (PROG_VALUE || MASKED) program.tile(a, q0, k0);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 word = PROG_DENSE ? (u32)load_shared(dense + r * 1024 + ((j ^ (lane >> 2)) << 4)) : 0;
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const int c = j * 8 + x, i = j * 4 + r * 2 + x;
                    const Pair pair = {q0 + 8 * r, k0 + c, 8 * r, c, PROG_DIAGONAL ? __ldg(row + 8 * r - c) : 0.f,
                                       x ? unpack_high(word) : unpack_low(word), q_word[r],
                                       WORDS ? __ldg(k_words + c) : 0};
                    float slope;
                    float w = exp2_fast(__fmaf_rn(score_value(program, a, s[i], pair, slope), unit, -lse[r]));
                    if (MASKED && !(c < keys[r] && score_mask(program, a, pair))) w = 0.f;
                    s[i] = PROG_SLOPE ? w * slope : w;
                }
            }
    }

    template <bool MASKED> FXA_INLINE void visit()
    {
        float s[BN / 2], dp[BN / 2];
        u32 ds[BN / 4];
        sh.k_ring().wait_full(step);
        const int n = load_shared(sh.number(step));
        issue_scores(s, q, sh.k(step));
        sh.v_ring().wait_full(step);
        issue_scores(dp, grad_o, sh.v(step));
        wgmma_wait<1>();
        settle(s);
        probabilities<MASKED>(s, n);
        wgmma_wait<0>();
        settle(dp);
        if (leader) barrier_arrive(sh.v_ring().empty(step));
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            ds[i] = pack16(s[2 * i] * (dp[2 * i] - delta[i & 1]), s[2 * i + 1] * (dp[2 * i + 1] - delta[i & 1]));
        settle(ds);
        settle(dq);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BN / 16; k++) wgmma<1>(dq, ds, k, n_major<BN>(sh.k(step)) + n_step(k));
        wgmma_commit();
        wgmma_wait<0>();
        settle(dq);
        settle(ds);
        if (leader) barrier_arrive(sh.k_ring().empty(step));
        step++;
    }

    FXA_INLINE void begin(int m)
    {
        const long long row = ((long long)b * a.heads + h) * a.q_pad + m * BM + warp_row() + (lane >> 2);
        q0 = m * BM + warp_row() + (lane >> 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            lse[r] = a.lse2[row + 8 * r];
            delta[r] = a.delta[row + 8 * r];
        }
        take(q, sh.q());
        take(grad_o, sh.grad_o());
        named_sync(1 + group, 128);
        if (leader) barrier_arrive(sh.q_ring().empty(turn));
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dq[i] = 0.f;
        program.head(a, b, h, q_len, k_len);
    }

    FXA_INLINE void store(int m) const
    {
        const u32 rows = sh.out() + warp_row() * 128;
        const float scale = a.scale;
        if (lane == 0) bulk_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < FXA_D / 16; i++) {
            const float *x = dq + i * 8;
            store_matrix(swizzled<BM>(rows, lane & 15, i * 2 + (lane >> 4)), pack16(x[0] * scale, x[1] * scale),
                         pack16(x[2] * scale, x[3] * scale), pack16(x[4] * scale, x[5] * scale),
                         pack16(x[6] * scale, x[7] * scale));
        }
        async_fence();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int c = 0; c < FXA_D; c += 64)
                tma_store(&maps.grad_q, rows + c * BM * 2, c, m * BM + warp_row(), h, b);
            bulk_commit();
        }
    }

    FXA_INLINE void run()
    {
        for (;; turn++) {
            sh.q_ring().wait_full(turn);
            const u32 slot = sh.slot();
            if (load_shared(slot) < 0) break;
            const int partial = load_shared(slot + 4), total = load_shared(slot + 8), m = load_shared(slot + 12);
            h = load_shared(slot + 16);
            b = load_shared(slot + 20);
            q_len = load_shared(slot + 24);
            k_len = load_shared(slot + 28);
            begin(m);
            int j = 0;
#pragma unroll 1
            for (; j < partial; j++) visit<true>();
#pragma unroll 1
            for (; j < total; j++) visit<false>();
            store(m);
        }
        if (lane == 0) bulk_wait();
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_grad_q_shape = {THREADS, Shared::BYTES, BM, BN, 16, 1};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_grad_q(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) sh.init();
    __syncthreads();
    if (group == 0) {
        registers_down<PROG_DENSE ? 40 : 24>();
        if (__shfl_sync(~0u, (int)threadIdx.x >> 5, 0) == 0 && elected()) Producer{maps, a, sh, 0, 0}.run();
    } else {
        registers_up<PROG_DENSE ? 232 : 240>();
        Consumer(maps, a, sh, group - 1).run();
    }
}
