/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of a program's functions for pairs (q, k): inlined for every pair of a thread, or out of line if they are
 * expensive (PROG_OUT_OF_LINE of common/program_interface.cuh). A thread has 16 to 64 pairs, and a kernel has two or
 * three unrolled loops over them. Three sines of CUDA's library are 60,000 instructions and take a minute to compile
 * inlined, but 6,600 instructions and three seconds out of line.
 *
 * Arguments are passed by value: references would force them into local memory, while values are passed in registers,
 * at three to eight instructions per call. Out of line, values that depend on the row or the key alone are computed
 * again for each pair. A struct Program with many members is passed by reference nevertheless: with 32 members, a
 * kernel that passes it by value has 41,000 instructions and compiles in 15 seconds; by reference 7,600 and 4 seconds.
 */
#ifndef FXA_CUDA_COMMON_OUT_OF_LINE_CUH
#define FXA_CUDA_COMMON_OUT_OF_LINE_CUH

#include "common/program_interface.cuh"

#define FXA_NOINLINE static __device__ __noinline__
#if PROG_OUT_OF_LINE & 1
#define FXA_CALL_VALUE FXA_NOINLINE
#else
#define FXA_CALL_VALUE FXA_INLINE
#endif
#if PROG_OUT_OF_LINE & 2
#define FXA_CALL_MASK FXA_NOINLINE
#else
#define FXA_CALL_MASK FXA_INLINE
#endif
#if PROG_OUT_OF_LINE & 4
#define FXA_CALL_GRADS FXA_NOINLINE
#else
#define FXA_CALL_GRADS FXA_INLINE
#endif

template <bool BY_VALUE, class T> struct PassedAs {
    typedef const T &type;
};
template <class T> struct PassedAs<true, T> {
    typedef T type;
};
constexpr bool SMALL_PROGRAM = sizeof(Program) <= 64; /* 16 members of 32 bits */
typedef PassedAs<(PROG_OUT_OF_LINE & 1) != 0 && SMALL_PROGRAM, Program>::type ValueProgram;
typedef PassedAs<(PROG_OUT_OF_LINE & 1) != 0, Pair>::type ValuePair;
typedef PassedAs<(PROG_OUT_OF_LINE & 2) != 0 && SMALL_PROGRAM, Program>::type MaskProgram;
typedef PassedAs<(PROG_OUT_OF_LINE & 2) != 0, Pair>::type MaskPair;
typedef PassedAs<(PROG_OUT_OF_LINE & 4) != 0 && SMALL_PROGRAM, Program>::type GradsProgram;
typedef PassedAs<(PROG_OUT_OF_LINE & 4) != 0, Pair>::type GradsPair;

#if PROG_VALUE
FXA_CALL_VALUE float call_value(ValueProgram program, const FxaArgs &a, float s, ValuePair pair)
{
    return program.value(a, s, pair);
}
#endif

#if PROG_DERIVATIVE
struct ValueAndDerivative {
    float value, derivative;
};

FXA_CALL_VALUE ValueAndDerivative call_derivative(ValueProgram program, const FxaArgs &a, float s, ValuePair pair)
{
    ValueAndDerivative both;
    both.value = program.value(a, s, pair, both.derivative);
    return both;
}
#endif

#if PROG_MASK
FXA_CALL_MASK bool call_mask(MaskProgram program, const FxaArgs &a, MaskPair pair)
{
    return program.mask(a, pair);
}
#endif

#if PROG_UNIFORM_OPERANDS
FXA_CALL_MASK bool call_uniform_mask(MaskProgram program, const FxaArgs &a, MaskPair pair)
{
    return program.uniform_mask(a, pair);
}
#endif

#if PROG_USER_BACKWARD
FXA_CALL_GRADS float call_user_backward(GradsProgram program, const FxaArgs &a, float s, GradsPair pair, float ds)
{
    return program.user_backward(a, s, pair, ds);
}
#endif

#if PROG_GRAD_SUMS
struct Partials {
    float of[PROG_GRAD_SUMS];
};

FXA_CALL_GRADS Partials call_partials(GradsProgram program, const FxaArgs &a, float s, GradsPair pair)
{
    Partials g;
    program.partials(a, s, pair, g.of);
    return g;
}
#endif

#if PROG_GRAD_SCATTER
FXA_CALL_GRADS void call_scatter(GradsProgram program, const FxaArgs &a, int b, int h, float s, GradsPair pair,
                                 float ds)
{
    program.scatter(a, b, h, s, pair, ds);
}
#endif

#endif
