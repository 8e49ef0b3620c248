/* SPDX-License-Identifier: Apache-2.0
 *
 * Short names of types. NVRTC compiles the kernels without any header of the toolkit. common/traits.h lists the
 * settings that they are compiled with.
 */
#ifndef FXA_CUDA_COMMON_TYPES_CUH
#define FXA_CUDA_COMMON_TYPES_CUH

#include "common/args.h"
#include "common/traits.h"

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
