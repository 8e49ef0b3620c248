/* SPDX-License-Identifier: Apache-2.0
 *
 * cp.async and mma.sync. The accumulators of a warp have the layout of wgmma: register x is row lane / 4 + 8 * (x / 2),
 * column lane % 4 * 2 + x % 2. See common/ptx.cuh.
 */
#ifndef FXA_CUDA_SM80_PTX_CUH
#define FXA_CUDA_SM80_PTX_CUH

#include "common/ptx.cuh"

/* Copies `bytes` bytes from global memory to 16 bytes of shared memory; the remaining bytes become 0. */
FXA_INLINE void copy_async(u32 to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

FXA_INLINE void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> FXA_INLINE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* d[16 x 8] += a[16 x 16] b[16 x 8] */
FXA_INLINE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#if FXA_F16
#define MMA_TYPES "f16.f16"
#else
#define MMA_TYPES "bf16.bf16"
#endif
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPES ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
