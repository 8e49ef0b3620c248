/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces src/engine/cuda/kernels/common/ptx.cuh: the same functions on the GPU emulator (model.h). Functions that a
 * device approximates are exact, except logarithms, which have an error as large as the device's may be.
 */
#ifndef FXA_CUDA_COMMON_PTX_CUH
#define FXA_CUDA_COMMON_PTX_CUH

#include "common/types.cuh"

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static inline float model_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.f, x) : x; }

FXA_INLINE float exp2_fast(float x) { return model_flushed(exp2f(model_flushed(x))); }
FXA_INLINE float tanh_fast(float x) { return tanhf(x); }
FXA_INLINE float reciprocal_fast(float x) { return model_flushed(1.f / model_flushed(x)); }
FXA_INLINE float reciprocal_free(float x) { return reciprocal_fast(x); }
FXA_INLINE float max_or_nan(float x, float y) { return x != x ? x : y != y ? y : fmaxf(x, y); }

/* lg2.approx: error up to 2^-22 for x between 1/2 and 2, else up to 2^-22 of the result. */
FXA_INLINE float log2_fast(float x) {
    const float y = log2f(model_flushed(x)), most = 0x1p-22f * fmaxf(1.f, fabsf(y));
    return x == 1.f || !(fabsf(y) < POS_INF) ? y : __float_as_int(x) >> 3 & 1 ? y + most : y - most;
}

FXA_INLINE float add_down(float x, float y) {
    const double sum = (double)x + (double)y, part = sum - (double)x; /* the part of y that `sum` contains */
    const double left = ((double)x - (sum - part)) + ((double)y - part);
    const float z = (float)sum;
    return (double)z > sum || ((double)z == sum && left < 0) ? nextafterf(z, NEG_INF) : z;
}

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

FXA_INLINE float from_half(u16 word) {
    const u32 size = (u32)(word & 0x7fff) << 13, sign = (u32)(word & 0x8000) << 16;
    const u32 bits = __float_as_uint(__uint_as_float(size) * 0x1p112f);
    return __uint_as_float((size < 0x7c00u << 13 ? bits : size + (224u << 23)) | sign);
}

FXA_INLINE u16 to_half(float x) {
    const u16 sign = (u16)(__float_as_uint(x) >> 16 & 0x8000);
    const float size = fabsf(x);
    if (x != x) return 0x7fff;
    if (size >= 65520.f) return (u16)(sign | 0x7c00);
    if (size < 0x1p-14f) return (u16)(sign | (u16)rintf(size * 0x1p24f));
    const u32 u = __float_as_uint(size);
    return (u16)(sign | ((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10));
}

FXA_INLINE u16 to_bfloat(float x) {
    const u32 u = __float_as_uint(x);
    return x != x ? 0x7fff : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float model_from16(u32 word) { return FXA_F16 ? from_half((u16)word) : __uint_as_float(word << 16); }
static inline u16 model_to16(float x) { return FXA_F16 ? to_half(x) : to_bfloat(x); }

FXA_INLINE u32 pack16(float low, float high) { return model_to16(low) | (u32)model_to16(high) << 16; }
FXA_INLINE float unpack_low(u32 x) { return model_from16(x & 0xffff); }
FXA_INLINE float unpack_high(u32 x) { return model_from16(x >> 16); }

FXA_INLINE u32 fma_pair(u32 x, u32 y, u32 z) {
    return pack16(fmaf(unpack_low(x), unpack_low(y), unpack_low(z)),
                  fmaf(unpack_high(x), unpack_high(y), unpack_high(z)));
}

/* Eight columns of a product. Sums are f32, in the order of k; NVIDIA does not document the order on a device. */
typedef float ModelRow __attribute__((vector_size(32)));

/* ---- Shared memory by 32-bit address ----------------------------------------------------------------------------- */

FXA_INLINE u32 shared_address(const void *p) { return __cvta_generic_to_shared(p); }
FXA_INLINE void store_shared(u32 at, int x) { model_put(at, x); }
FXA_INLINE int load_shared(u32 at) { return model_at<int>(at); }
FXA_INLINE void put_word(u32 at, int x) { model_put(at, x); }
FXA_INLINE int take_word(u32 at) { return model_at<int>(at); }
FXA_INLINE float load_shared_float(u32 at) { return model_at<float>(at); }
FXA_INLINE void store_shared_half(u32 at, u16 x) { model_put(at, x); }
FXA_INLINE u32 load_shared_half(u32 at) { return model_at<u16>(at); }
FXA_INLINE Float2 load_shared_float2(u32 at) { return model_at<Float2>(at); }
FXA_INLINE void store_shared_float4(u32 at, float x, float y, float z, float w) { model_put(at, Float4{x, y, z, w}); }
FXA_INLINE void store_shared_words(u32 at, u32 x, u32 y, u32 z, u32 w) { model_put(at, Word4{x, y, z, w}); }
FXA_INLINE Word4 load_shared_words(u32 at) { return model_at<Word4>(at); }

/* ---- Warps and memory -------------------------------------------------------------------------------------------- */

/* Operands of a lane for four 8x8 matrices, whose rows are at the addresses that lanes provide; lane l holds elements
 * of row l / 4. */
struct ModelMatrix {
    u32 at, r[4];

    template <bool transposed, bool store> static void move(void **slot, uint32_t mask) {
        if (mask != ~0u) model->fail("matrices of lanes %x", mask);
        for (int i = 0; i < 32; i++) {
            const ModelMatrix *row = (const ModelMatrix *)slot[i];
            u16 *line = (u16 *)model_shared(row->at, 16, 16);
            for (int c = 0; c < 8; c++) {
                const int lane = transposed ? c * 4 + i % 8 / 2 : i % 8 * 4 + c / 2;
                u16 *word = (u16 *)((ModelMatrix *)slot[lane])->r + i / 8 * 2 + (transposed ? i : c) % 2;
                if (store)
                    line[c] = *word;
                else
                    *word = line[c];
            }
            if (store) model_wrote(row->at);
        }
    }
};

template <bool transposed> static inline void model_load_matrix(u32 at, u32 (&r)[4]) {
    ModelMatrix mine = {at, {}};
    model->meet(~0u, &mine, ModelMatrix::move<transposed, false>);
    memcpy(r, mine.r, sizeof r);
}

FXA_INLINE void load_matrix(u32 at, u32 (&r)[4]) { model_load_matrix<false>(at, r); }
FXA_INLINE void load_matrix_transposed(u32 at, u32 (&r)[4]) { model_load_matrix<true>(at, r); }

FXA_INLINE u32 transpose8x8(u32 x) {
    const int lane = model_lane();
    u32 y = 0;
    for (int half = 0; half < 2; half++) {
        const u32 word = __shfl_sync(~0u, x, (lane % 4 * 2 + half) * 4 + lane / 8);
        y |= (word >> 16 * (lane / 4 % 2) & 0xffff) << 16 * half;
    }
    return y;
}

FXA_INLINE void add4(float *to, const float (&x)[4]) {
    for (int i = 0; i < 4; i++) to[i] += x[i];
}

MODEL_UNSEEN FXA_INLINE u64 load_flag(const u64 *at) { return *at; }
FXA_INLINE void prefetch_l2(const void *) {}
FXA_INLINE unsigned count_now(const unsigned *at) { return *at; }
FXA_INLINE u32 count_around(unsigned *at, u32 last) {
    const u32 x = *at;
    *at = x >= last ? 0 : x + 1;
    return x;
}
/* CTAs and launches run one after the other, so a count that is not reached now never will be. */
FXA_INLINE void count_pause() { model->fail("what is waited for has not been counted"); }
FXA_INLINE void fence_in_order() {}
FXA_INLINE void launch_next() { model->launched(0); }
FXA_INLINE void launch_wait() { model->launched(1); }
FXA_INLINE void keep_order() {}
FXA_INLINE void keep(u32 &) {}
FXA_INLINE void keep(u64 &) {}

#endif
