/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma of sm_90a: D[64 x N] += A[64 x 16] B[16 x N] in f32, A from shared memory or registers, B from shared memory,
 * 16-bit operands of the storage type. The overloads differ by N / 2, the number of accumulators of a thread.
 *
 * Accumulator i of thread t of the warpgroup is row (t / 32) * 16 + (t % 32) / 4 + 8 * (i / 2 % 2), column i / 4 * 8 +
 * t % 4 * 2 + i % 2: a thread has two rows, and neighbouring registers are neighbouring columns. See common/ptx.cuh.
 *
 *     accumulators of lane 0      columns 0 1    8 9     16 17  ...
 *                     row 0               0 1    4 5      8  9
 *                     row 8               2 3    6 7     10 11
 *
 * Several k-steps of 16 can be one inline-assembly statement, which saves a tenth of the compile time: each statement
 * has many operands.
 */
#ifndef FXA_CUDA_SM90_PTX_WGMMA_CUH
#define FXA_CUDA_SM90_PTX_WGMMA_CUH

#include "common/ptx.cuh"

#if FXA_F16
#define WGMMA_TYPES ".f32.f16.f16 "
#else
#define WGMMA_TYPES ".f32.bf16.bf16 "
#endif

/* Accumulators as operands of the assembler, sixteen at a time. */
#define WGMMA_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_R16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_R112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D0(d) \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_D16(d) \
    "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_D32(d) \
    "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
    "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_D48(d) \
    "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
    "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_D64(d) \
    "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
    "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WGMMA_D80(d) \
    "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
    "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WGMMA_D96(d) \
    "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
    "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), \
    "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WGMMA_D112(d) \
    "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), \
    "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), \
    "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define WGMMA_D32C(d) WGMMA_D0(d)
#define WGMMA_D64C(d) WGMMA_D0(d), WGMMA_D16(d)
#define WGMMA_D96C(d) WGMMA_D0(d), WGMMA_D16(d), WGMMA_D32(d)
#define WGMMA_D128C(d) WGMMA_D0(d), WGMMA_D16(d), WGMMA_D32(d), WGMMA_D48(d)
#define WGMMA_D192C(d) WGMMA_D128C(d), WGMMA_D64(d), WGMMA_D80(d)
#define WGMMA_D256C(d) WGMMA_D128C(d), WGMMA_D64(d), WGMMA_D80(d), WGMMA_D96(d), WGMMA_D112(d)
#define WGMMA_R32C WGMMA_R0
#define WGMMA_R64C WGMMA_R0 ", " WGMMA_R16
#define WGMMA_R96C WGMMA_R0 ", " WGMMA_R16 ", " WGMMA_R32
#define WGMMA_R128C WGMMA_R0 ", " WGMMA_R16 ", " WGMMA_R32 ", " WGMMA_R48
#define WGMMA_R192C WGMMA_R128C ", " WGMMA_R64 ", " WGMMA_R80
#define WGMMA_R256C WGMMA_R128C ", " WGMMA_R64 ", " WGMMA_R80 ", " WGMMA_R96 ", " WGMMA_R112

/* One wgmma instruction, d += A B; y is the descriptor of B. P = predicate: if false, the previous value of d is
 * ignored. LAST: the immediates that select transposition, for A and B or, if A is in registers, for B alone. */
#define WGMMA_OP(n, A, P, LAST) \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES "{" WGMMA_R##n##C "}, " A ", y, " P ", 1, 1, " LAST ";\n"
#define WGMMA_BEGIN(B, P) "{\n.reg .pred p;\n.reg .b64 x, y;\nsetp.ne.b32 p, " P ", 0;\nmov.b64 y, " B ";\n"
#define WGMMA_ASM(n, text, ...) \
    asm volatile(text "}" \
                 : WGMMA_D##n##C(d) \
                 : "l"(b), "r"(accumulate), "n"(transposed), "n"((transposed ? 2048 : 32) >> 4), __VA_ARGS__)

/* d = (accumulate ? d : 0) + A B over 1, 2 or 4 k-steps, A and B by descriptor. A is K-major, B is K-major (transposed
 * = 0) or N-major (1). The next k-step is 32 bytes further in a K-major operand (inside a block of 64 columns), 16 rows
 * further in an N-major one. */
#define WGMMA_SHARED_FIRST(n, B, P, T, A) \
    WGMMA_BEGIN(B, P) "mov.b64 x, " A ";\n" WGMMA_OP(n, "x", "p", "0, " T)
#define WGMMA_SHARED_NEXT(n, T, S) "add.s64 x, x, 2;\nadd.s64 y, y, " S ";\n" WGMMA_OP(n, "x", "1", "0, " T)
#define WGMMA_SHARED(n, B, P, T, S, A) \
    template <int transposed, int steps> FXA_INLINE void wgmma(float (&d)[n / 2], u64 a, u64 b, int accumulate) \
    { \
        if constexpr (steps == 1) \
            WGMMA_ASM(n, WGMMA_SHARED_FIRST(n, B, P, T, A), "l"(a)); \
        else if constexpr (steps == 2) \
            WGMMA_ASM(n, WGMMA_SHARED_FIRST(n, B, P, T, A) WGMMA_SHARED_NEXT(n, T, S), "l"(a)); \
        else \
            WGMMA_ASM(n, WGMMA_SHARED_FIRST(n, B, P, T, A) WGMMA_SHARED_NEXT(n, T, S) WGMMA_SHARED_NEXT(n, T, S) \
                      WGMMA_SHARED_NEXT(n, T, S), "l"(a)); \
    }
WGMMA_SHARED(32, "%16", "%17", "%18", "%19", "%20")
WGMMA_SHARED(64, "%32", "%33", "%34", "%35", "%36")
WGMMA_SHARED(128, "%64", "%65", "%66", "%67", "%68")

/* A from registers: a[4 * k] to a[4 * k + 3] are the words of k-step k, each of two neighbouring columns of a row. */
#define WGMMA_WORDS(k) "r"(a[4 * (k)]), "r"(a[4 * (k) + 1]), "r"(a[4 * (k) + 2]), "r"(a[4 * (k) + 3])
#define WGMMA_HELD_NEXT(n, T, S, A) "add.s64 y, y, " S ";\n" WGMMA_OP(n, A, "1", T)
#define WGMMA_REGISTERS(n, B, P, T, S, A0, A1, A2, A3) \
    template <int transposed, int steps, int words> \
    FXA_INLINE void wgmma(float (&d)[n / 2], const u32 (&a)[words], int k, u64 b, int accumulate = 1) \
    { \
        if constexpr (steps == 1) \
            WGMMA_ASM(n, WGMMA_BEGIN(B, P) WGMMA_OP(n, A0, "p", T), WGMMA_WORDS(k)); \
        else if constexpr (steps == 2) \
            WGMMA_ASM(n, WGMMA_BEGIN(B, P) WGMMA_OP(n, A0, "p", T) WGMMA_HELD_NEXT(n, T, S, A1), WGMMA_WORDS(k), \
                      WGMMA_WORDS(k + 1)); \
        else \
            WGMMA_ASM(n, WGMMA_BEGIN(B, P) WGMMA_OP(n, A0, "p", T) WGMMA_HELD_NEXT(n, T, S, A1) \
                      WGMMA_HELD_NEXT(n, T, S, A2) WGMMA_HELD_NEXT(n, T, S, A3), WGMMA_WORDS(k), WGMMA_WORDS(k + 1), \
                      WGMMA_WORDS(k + 2), WGMMA_WORDS(k + 3)); \
    }
WGMMA_REGISTERS(32, "%16", "%17", "%18", "%19", "{%20, %21, %22, %23}", "{%24, %25, %26, %27}",
                "{%28, %29, %30, %31}", "{%32, %33, %34, %35}")
WGMMA_REGISTERS(64, "%32", "%33", "%34", "%35", "{%36, %37, %38, %39}", "{%40, %41, %42, %43}",
                "{%44, %45, %46, %47}", "{%48, %49, %50, %51}")
WGMMA_REGISTERS(96, "%48", "%49", "%50", "%51", "{%52, %53, %54, %55}", "{%56, %57, %58, %59}",
                "{%60, %61, %62, %63}", "{%64, %65, %66, %67}")
WGMMA_REGISTERS(128, "%64", "%65", "%66", "%67", "{%68, %69, %70, %71}", "{%72, %73, %74, %75}",
                "{%76, %77, %78, %79}", "{%80, %81, %82, %83}")
WGMMA_REGISTERS(192, "%96", "%97", "%98", "%99", "{%100, %101, %102, %103}", "{%104, %105, %106, %107}",
                "{%108, %109, %110, %111}", "{%112, %113, %114, %115}")
WGMMA_REGISTERS(256, "%128", "%129", "%130", "%131", "{%132, %133, %134, %135}", "{%136, %137, %138, %139}",
                "{%140, %141, %142, %143}", "{%144, %145, %146, %147}")

FXA_INLINE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

FXA_INLINE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending> FXA_INLINE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Marks all elements of r as changed, because the compiler cannot see that a wgmma writes registers later. Called for
 * every array that a wgmma reads or writes: after the wait for the wgmma, and before the next wgmma if ordinary code
 * uses the array in between. */
template <int n> FXA_INLINE void settle(float (&r)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(r[i])::"memory");
}

template <int n> FXA_INLINE void settle(u32 (&r)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+r"(r[i])::"memory");
}

#endif
