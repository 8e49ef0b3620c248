/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of CUDA C++ that the kernels use, implemented on the GPU emulator (model.h). model_nvrtc.c includes this
 * file before every source.
 */
#ifndef FXA_TESTS_MODEL_CUDA_H
#define FXA_TESTS_MODEL_CUDA_H

#include "model.h"

extern model_machine *model; /* the emulator of this library; set when its module is loaded */

/* Functions of the C library that kernels call. Including its headers instead would add a fifth to the compile time. */
/* clang-format off */
extern "C" {
void *memcpy(void *, const void *, size_t) noexcept;
void *memset(void *, int, size_t) noexcept;
#define MODEL_MATH(name) \
    double name(double) noexcept; \
    float name##f(float) noexcept;
MODEL_MATH(exp) MODEL_MATH(exp2) MODEL_MATH(expm1) MODEL_MATH(log) MODEL_MATH(log2) MODEL_MATH(log1p)
MODEL_MATH(sqrt) MODEL_MATH(cbrt) MODEL_MATH(sin) MODEL_MATH(cos) MODEL_MATH(tan) MODEL_MATH(tanh) MODEL_MATH(atan)
MODEL_MATH(erf) MODEL_MATH(erfc) MODEL_MATH(floor) MODEL_MATH(ceil) MODEL_MATH(trunc) MODEL_MATH(rint) MODEL_MATH(fabs)
MODEL_MATH(round)
#undef MODEL_MATH
#define MODEL_MATH(name) \
    double name(double, double) noexcept; \
    float name##f(float, float) noexcept;
MODEL_MATH(pow) MODEL_MATH(fmod) MODEL_MATH(fmin) MODEL_MATH(fmax) MODEL_MATH(copysign) MODEL_MATH(nextafter)
MODEL_MATH(atan2)
#undef MODEL_MATH
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
float ldexpf(float, int) noexcept;
double ldexp(double, int) noexcept;
long lrintf(float) noexcept;
int abs(int) noexcept;
}
/* clang-format on */

#define __global__
#define __device__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) /* model_nvrtc.c reads it */
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static /* registered with the emulator by model_nvrtc.c; dynamic shared memory becomes a pointer */
#define threadIdx (model->thread)
#define blockIdx (model->block)
#define blockDim (model->block_dim)
#define gridDim (model->grid)

#include "model_known.h"

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

template <class To, class From> static inline To model_bits(From x) {
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

static inline float __double2float_rz(double x) {
    const float y = (float)x;
    return fabs((double)y) > fabs(x) ? nextafterf(y, 0.f) : y;
}

#define MODEL_ORDER(type)                                                                                              \
    static inline type min(type x, type y) { return y < x ? y : x; }                                                   \
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

template <class T> static inline T atomicAdd(T *to, T x) {
    const T before = *to;
    *to = before + x;
    return before;
}
static inline void __threadfence() {}

static inline uint32_t __cvta_generic_to_shared(const void *p) {
    const uint8_t *at = (const uint8_t *)p;
    if (at < model->shared || at > model->shared + model->shared_bytes) model->fail("%p is not shared memory", p);
    return MODEL_SHARED_BASE + (uint32_t)(at - model->shared);
}

/* Returns the host address of `bytes` bytes at a 32-bit shared address. Fails if they are misaligned or outside. */
static inline uint8_t *model_shared(uint32_t at, uint32_t bytes, uint32_t alignment) {
    const uint32_t from = at - MODEL_SHARED_BASE;
    if (from > model->shared_bytes || bytes > model->shared_bytes - from)
        model->fail("%u bytes of shared memory at %d, of %u", bytes, (int)from, model->shared_bytes);
    if (at % alignment) model->fail("shared memory at %u: not a multiple of %u", from, alignment);
    return model->shared + from;
}

template <class T> static inline T &model_at(uint32_t at) { return *(T *)model_shared(at, sizeof(T), sizeof(T)); }

/* Plain stores to shared memory are ordered before accesses by TMA and wgmma if the storing thread, or the thread that
 * starts the copy or product, has executed a fence. Only stores by 32-bit address are recorded, and for each chunk only
 * the last one. */
static inline void model_wrote(uint32_t at) {
    model->written[(at - MODEL_SHARED_BASE) / MODEL_CHUNK] = (uint64_t)model->now << 10 | (unsigned)model->number;
}

template <class T> static inline void model_put(uint32_t at, T x) {
    model_at<T>(at) = x;
    model_wrote(at);
}

static inline void model_fence() { model->fenced[model->number] = ++model->now; }

static inline void model_fenced(uint32_t at) {
    const uint64_t who = model->written[(at - MODEL_SHARED_BASE) / MODEL_CHUNK], when = who >> 10;
    if (who && model->fenced[who & 1023] <= when && model->fenced[model->number] <= when)
        model->fail("shared memory at %u, which thread %u wrote, without a fence before TMA or a product",
                    at - MODEL_SHARED_BASE, (unsigned)(who & 1023));
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static inline int model_lane() { return model->number & 31; }
static inline void __syncwarp(unsigned mask = ~0u) { model->meet(mask, 0, 0); }
static inline void __syncthreads() { model->barrier(0, 0, 1, 1); }

/* Operands of a lane in an exchange between lanes, and its result. */
template <class T> struct ModelLane {
    T x, y;
    int from;

    static void shuffle(void **slot, uint32_t mask) {
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1) {
                ModelLane *lane = (ModelLane *)slot[i];
                lane->y = mask >> lane->from & 1 ? ((ModelLane *)slot[lane->from])->x : lane->x;
            }
    }
};

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from) {
    ModelLane<T> lane = {x, x, from & 31};
    model->meet(mask, &lane, ModelLane<T>::shuffle);
    return lane.y;
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int with) {
    return __shfl_sync(mask, x, model_lane() ^ with);
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, int by) {
    const int lane = model_lane();
    return __shfl_sync(mask, x, lane + by < 32 ? lane + by : lane);
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, int by) {
    const int lane = model_lane();
    return __shfl_sync(mask, x, lane >= by ? lane - by : lane);
}

struct ModelVote {
    int x;
    unsigned ballot;

    static void count(void **slot, uint32_t mask) {
        unsigned all = 0;
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1 && ((ModelVote *)slot[i])->x) all |= 1u << i;
        for (int i = 0; i < MODEL_WARP; i++)
            if (mask >> i & 1) ((ModelVote *)slot[i])->ballot = all;
    }
};

static inline unsigned __ballot_sync(unsigned mask, int x) {
    ModelVote vote = {x, 0};
    model->meet(mask, &vote, ModelVote::count);
    return vote.ballot;
}

static inline int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline int __all_sync(unsigned mask, int x) { return __ballot_sync(mask, !x) == 0; }

template <class T> static inline T __reduce_min_sync(unsigned mask, T x) {
    for (int i = 16; i; i >>= 1) x = min(x, __shfl_xor_sync(mask, x, i));
    return x;
}

template <class T> static inline T __reduce_max_sync(unsigned mask, T x) {
    for (int i = 16; i; i >>= 1) x = max(x, __shfl_xor_sync(mask, x, i));
    return x;
}

static inline int __syncthreads_or(int x) {
    static int any;
    if (model->number == 0) any = 0;
    __syncthreads();
    any |= x != 0;
    __syncthreads();
    const int all = any;
    __syncthreads();
    return all;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Strips const from the type of a kernel's argument, which is copied from the driver's array of arguments. */
template <class T> struct ModelArgument { typedef T type; };
template <class T> struct ModelArgument<const T> { typedef T type; };

template <class T> static inline T model_argument(const void *from) {
    T x;
    memcpy((void *)&x, from, sizeof x);
    return x;
}

template <size_t... I> struct ModelIndices {};
template <size_t n, size_t... I> struct ModelCount : ModelCount<n - 1, n - 1, I...> {};
template <size_t... I> struct ModelCount<0, I...> { typedef ModelIndices<I...> type; };

template <class... A, size_t... I>
static inline void model_apply(void (*kernel)(A...), void **params, ModelIndices<I...>) {
    kernel(model_argument<typename ModelArgument<A>::type>(params[I])...);
}

template <class... A> static inline void model_call(void (*kernel)(A...), void **params) {
    model_apply(kernel, params, typename ModelCount<sizeof...(A)>::type());
}

/* Handlers that the compiler calls in checked code (FXA_MODEL_CHECK) for a misaligned access or an index out of
 * bounds. */
extern "C" inline __attribute__((used)) void __ubsan_handle_type_mismatch_v1(void *, uintptr_t at) {
    model->fail("memory at %p, which is not aligned", (void *)at);
}

extern "C" inline __attribute__((used)) void __ubsan_handle_out_of_bounds(void *, uintptr_t index) {
    model->fail("element %lld of an array that has less", (long long)index);
}

/* Text that model_nvrtc.c appends to each kernel, and to the end of a source. */
#define MODEL_EXPORT extern "C" __attribute__((visibility("default")))
#define MODEL_KERNEL(name)                                                                                             \
    MODEL_EXPORT void model_run_##name(void **params) { model_call(name, params); }
#define MODEL_BOUND(name, threads, ...)                                                                                \
    MODEL_EXPORT int model_bound_##name() { return threads; }
#ifdef MODEL_CHECKED
#define MODEL_UNIT_CHECKED                                                                                             \
    MODEL_EXPORT void model_checked() {}
#else
#define MODEL_UNIT_CHECKED
#endif
#define MODEL_UNIT                                                                                                     \
    model_machine *model;                                                                                              \
    MODEL_UNIT_CHECKED                                                                                                 \
    MODEL_EXPORT size_t model_meet_machine(model_machine *machine) { return model = machine, sizeof *machine; }

#endif
