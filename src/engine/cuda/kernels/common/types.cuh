/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels are compiled with, and short names of types. NVRTC compiles all of this without any header of the
 * toolkit.
 *
 * Compile-time settings, by -D: FXA_D and FXA_DV (head dimensions to compute with, multiples of 32 up to 256; FXA_DV =
 * FXA_D by default; tensors may have fewer columns, a.d and a.dv), FXA_F16 (1: f16, 0: bf16), FXA_FAST_MATH (1: the
 * hardware's approximations), FXA_DROPOUT (1: pairs are dropped, 2: at moved coordinates), FXA_VARLEN (1: entries have
 * lengths of their own or are packed; 0 ignores lens and starts), FXA_PAGED (1: K and V of the forward kernels lie in
 * pages).
 */
#ifndef FXA_CUDA_COMMON_TYPES_CUH
#define FXA_CUDA_COMMON_TYPES_CUH

#include "common/args.h"

#ifndef FXA_DV
#define FXA_DV FXA_D
#endif

#ifndef FXA_FAST_MATH
#define FXA_FAST_MATH 0
#endif

#ifndef FXA_DROPOUT
#define FXA_DROPOUT 0
#endif

#ifndef FXA_OUT_F32
#define FXA_OUT_F32 0 /* 1: O and gradients are f32, whatever the operands are; not on Hopper */
#endif
#ifndef FXA_O_F32
#define FXA_O_F32 0 /* 1: the backward reads an O of f32, whatever the other operands are */
#endif
#ifndef FXA_RETURN_ROW_MAX
#define FXA_RETURN_ROW_MAX 0 /* 1: the largest new score of rows is written; not on Hopper */
#endif
#ifndef FXA_VARLEN
#define FXA_VARLEN 0
#endif

#ifndef FXA_PAGED
#define FXA_PAGED 0
#endif

#ifndef FXA_COUNT_REDO
#define FXA_COUNT_REDO 0
#endif

static_assert(FXA_D % 32 == 0 && FXA_D > 0 && FXA_D <= 256, "head dimension of Q and K");
static_assert(FXA_DV % 32 == 0 && FXA_DV > 0 && FXA_DV <= 256, "head dimension of V");

#define FXA_INLINE __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(8) Int2 {
    int x, y;
};
struct alignas(8) Float2 {
    float x, y;
};
struct alignas(16) Float4 {
    float x, y, z, w;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
#define NEG_INF __int_as_float(0xff800000)
#define POS_INF __int_as_float(0x7f800000)

#endif
