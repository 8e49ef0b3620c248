/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward without matrix instructions (simt/tiles.cuh): O and LSE of query tiles, for f32 and for every problem that no
 * other kernel supports.
 *
 * Grid: (query tiles, heads, batch); packed: (q_total / 64 + batch, heads, 1). A CTA of 256 threads has 64 query rows
 * of a head; thread (y, x) of 16 x 16 has rows 4 y + i, keys x + 16 j and columns 64 block + 4 x + c of O.
 * Mainloop: online softmax with the maximum updated in every step; operands pass through shared memory (struct
 * Scratch).
 * Epilogue: O and LSE from registers.
 */
#include "common/tile_scheduler.cuh"
#include "simt/tiles.cuh"

namespace {

constexpr int BLOCKS = DV_STORED / 64;
constexpr float BIAS = 24.f; /* subtracted from exponents of weights, so that no sum P V overflows, however large V */

/* Returns the maximum of x over the 16 threads of a row; row_total() returns the sum. */
FXA_INLINE float row_maximum(float x)
{
#pragma unroll
    for (int i = 1; i < 16; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

FXA_INLINE float row_total(float x)
{
#pragma unroll
    for (int i = 1; i < 16; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

struct SimtForward {
    const FxaArgs &a;
    const QueryTile<SIDE> &at;
    Scratch &memory;
    Program program;
    OperandLoads loads;
    int kv_h, y, x;
    float unit, top[4], sum[4], o[BLOCKS][4][4];

    FXA_INLINE SimtForward(const FxaArgs &a_, const QueryTile<SIDE> &at_, Scratch &memory_)
        : a(a_), at(at_), memory(memory_), loads(a_, at_.b, at_.h, at_.q.length, at_.k.length), kv_h(at_.h / a_.group),
          y(threadIdx.x >> 4), x(threadIdx.x & 15), unit(Program::unit(a_))
    {
        program.head(a, at.b, at.h, at.q.length, at.k.length);
        clear_sums(o);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            top[i] = NEG_INF;
            sum[i] = 0.f;
        }
    }

    FXA_INLINE OperandRows keys(const FxaView &t, int n, int columns) const
    {
        return OperandRows{a, t, true, at.b, kv_h, at.k.first, n * SIDE, at.k.length - n * SIDE, columns};
    }

    FXA_INLINE void softmax(float (&s)[4][4], u32 attended, u32 kept)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float largest = top[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (!(attended >> (4 * i + j) & 1)) s[i][j] = NEG_INF;
                largest = fmaxf(largest, s[i][j]);
            }
            largest = row_maximum(largest);
            const float shift = finite_or_zero(largest), rescale = exp2_fast((top[i] - shift) * unit);
            sum[i] *= rescale;
            top[i] = largest;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float p = exp2_fast((s[i][j] - shift) * unit - BIAS);
                sum[i] += p;
                s[i][j] = keeps(kept, 4 * i + j) ? p : 0.f;
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                /* O may be infinite, and 0 times infinity is NaN */
                for (int c = 0; c < 4; c++) o[b][i][c] = rescale == 0.f ? 0.f : o[b][i][c] * rescale;
        }
    }

    FXA_INLINE void key_step(int n, bool masked)
    {
        float s[4][4], slope[4][4];
        const int q0 = at.m * SIDE + 4 * y, k0 = n * SIDE + x;
        const OperandRows rows = {a, a.q, false, at.b, at.h, at.q.first, at.m * SIDE, at.q.length - at.m * SIDE, a.d};
        multiply<FXA_D>(s, memory, rows, keys(a.k, n, a.d));
        negate_products(a, s);
        HeldBlock values;
        values.fetch(keys(a.v, n, a.dv), 0);
        const u32 attended = score_tile(program, a, loads, s, slope, q0, k0, masked);
        softmax(s, attended, kept_of_tile(a, at.b, at.h, q0, k0));
        put_weights<false>(memory.weights[0], s);
        accumulate(o, memory, memory.weights[0], keys(a.v, n, a.dv), values);
    }

    FXA_INLINE void store() const
    {
        const int limit = q_starts(a) ? at.q.length : a.q_len;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int q = at.m * SIDE + 4 * y + i;
            const float total = row_total(sum[i]);
            const SoftmaxEpilogue end(a, at.h, finite_or_zero(top[i]), unit, BIAS, total);
            if (q >= limit) continue;
            store_sums(o, i, q < at.q.length ? end.factor : 0.f, a.o, at.b, at.h, at.q.first + q, a.dv);
#if FXA_RETURN_ROW_MAX
            if (x == 0)
                a.row_max[at.b * a.max_b + at.h * a.max_h + (at.q.first + q) * a.max_s] =
                    q < at.q.length ? row_maximum_of(top[i], total, unit) : NEG_INF;
#endif
            if (x == 0)
                a.lse[at.b * a.lse_b + at.h * a.lse_h + (at.q.first + q) * a.lse_s] =
                    q < at.q.length ? end.lse : NEG_INF;
        }
    }

    FXA_INLINE void run()
    {
        const int q_len = at.q.length, k_len = at.k.length;
        const ListRow row(a, at.b, at.h, at.m, (k_len + SIDE - 1) / SIDE, (at.m + 1) * SIDE > q_len, k_len % SIDE != 0);
#pragma unroll 1
        for (int j = 0; j < row.total; j++) key_step(row.tile(j), j < row.partial);
        store();
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_forward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS <= 2 ? 2 : 1)
    fxa_forward(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(16) u8 memory[];
    launch_begin();
    const QueryTile<SIDE> at(a);
    if (!at.outside(a)) SimtForward(a, at, *(Scratch *)memory).run();
}
