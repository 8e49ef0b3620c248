/* SPDX-License-Identifier: Apache-2.0
 *
 * What CUDA adds to C++, as far as the kernels use it, on the machine of model.h. Included before every unit.
 */
#ifndef FXA_TESTS_MODEL_CUDA_H
#define FXA_TESTS_MODEL_CUDA_H

#include "model.h"

#include <math.h>
#include <string.h>
#include <utility>

extern "C" {
extern model_machine *model;
}

#define __global__
#define __device__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static /* CTAs run one after the other; dynamic shared memory: model_nvrtc.c */
#define threadIdx (model->thread)
#define blockIdx (model->block)
#define blockDim (model->block_dim)
#define gridDim (model->grid)

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

template <class To, class From> static inline To model_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline float __int_as_float(int x) { return model_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return model_bits<float>(x); }
static inline int __float_as_int(float x) { return model_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return model_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return model_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return model_bits<long long>(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline int __float2int_rn(float x) { return (int)lrintf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

static inline float __double2float_rz(double x)
{
    const float y = (float)x;
    return fabs((double)y) > fabs(x) ? nextafterf(y, 0.f) : y;
}

#define MODEL_ORDER(type) \
    static inline type min(type x, type y) { return y < x ? y : x; } \
    static inline type max(type x, type y) { return x < y ? y : x; }
MODEL_ORDER(int)
MODEL_ORDER(unsigned)
MODEL_ORDER(long long)
MODEL_ORDER(unsigned long long)
#undef MODEL_ORDER
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

template <class T> static inline T __ldg(const T *from) { return *from; }

template <class T> static inline T atomicAdd(T *to, T x)
{
    const T before = *to;
    *to = before + x;
    return before;
}
static inline void __threadfence() {}

static inline uint32_t __cvta_generic_to_shared(const void *p)
{
    const uint8_t *at = (const uint8_t *)p;
    if (at < model->shared || at > model->shared + model->shared_bytes) model->fail("%p is not shared memory", p);
    return MODEL_SHARED_BASE + (uint32_t)(at - model->shared);
}

/* Where so many bytes at a 32-bit address are. */
static inline uint8_t *model_shared(uint32_t at, uint32_t bytes, uint32_t alignment)
{
    const uint32_t from = at - MODEL_SHARED_BASE;
    if (at < MODEL_SHARED_BASE || from > model->shared_bytes || bytes > model->shared_bytes - from)
        model->fail("%u bytes of shared memory at %u, of %u", bytes, from, model->shared_bytes);
    if (at % alignment) model->fail("shared memory at %u: not a multiple of %u", from, alignment);
    return model->shared + from;
}

template <class T> static inline T &model_at(uint32_t at) { return *(T *)model_shared(at, sizeof(T), sizeof(T)); }

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static inline void __syncwarp(unsigned mask = ~0u) { model->meet(mask, 0, 0); }
static inline void __syncthreads() { model->barrier(0, 0, 1, 1); }

/* What every lane brings to an exchange, and takes from it. */
template <class T> struct ModelLane {
    T x, y;
    int from;

    static void shuffle(void **slot, uint32_t mask)
    {
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1) {
                ModelLane *lane = (ModelLane *)slot[i];
                lane->y = mask >> lane->from & 1 ? ((ModelLane *)slot[lane->from])->x : lane->x;
            }
    }
};

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from)
{
    ModelLane<T> lane = {x, x, from & 31};
    model->meet(mask, &lane, ModelLane<T>::shuffle);
    return lane.y;
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int with)
{
    return __shfl_sync(mask, x, (int)(threadIdx.x & 31) ^ with);
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, int by)
{
    const int lane = threadIdx.x & 31;
    return __shfl_sync(mask, x, lane + by < 32 ? lane + by : lane);
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, int by)
{
    const int lane = threadIdx.x & 31;
    return __shfl_sync(mask, x, lane >= by ? lane - by : lane);
}

struct ModelVote {
    int x;
    unsigned ballot;

    static void count(void **slot, uint32_t mask)
    {
        unsigned all = 0;
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1 && ((ModelVote *)slot[i])->x) all |= 1u << i;
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1) ((ModelVote *)slot[i])->ballot = all;
    }
};

static inline unsigned __ballot_sync(unsigned mask, int x)
{
    ModelVote vote = {x, 0};
    model->meet(mask, &vote, ModelVote::count);
    return vote.ballot;
}

static inline int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline int __all_sync(unsigned mask, int x) { return __ballot_sync(mask, !x) == 0; }

template <class T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    for (int i = 16; i; i >>= 1) x = min(x, __shfl_xor_sync(mask, x, i));
    return x;
}

template <class T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    for (int i = 16; i; i >>= 1) x = max(x, __shfl_xor_sync(mask, x, i));
    return x;
}

static inline int __syncthreads_or(int x)
{
    static int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    any |= x != 0;
    __syncthreads();
    const int all = any;
    __syncthreads();
    return all;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* A kernel with its arguments where the driver gets them. */
template <class T> struct ModelArgument {
    typedef T type;
};
template <class T> struct ModelArgument<const T> {
    typedef T type;
};

template <class... A, size_t... I>
static inline void model_apply(void (*kernel)(A...), void **params, std::index_sequence<I...>)
{
    kernel(*(typename ModelArgument<A>::type *)params[I]...);
}

template <class... A> static inline void model_call(void (*kernel)(A...), void **params)
{
    model_apply(kernel, params, std::index_sequence_for<A...>());
}

#endif
