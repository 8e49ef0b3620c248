/* SPDX-License-Identifier: Apache-2.0
 *
 * What pairs ask of a program: at every pair of a thread, or, where it is much work (PROG_APART of common/score.cuh),
 * by a call. A thread has 16 to 64 pairs, and a kernel two or three loops over them, all unrolled: three sines of
 * CUDA's library were 60,000 instructions and a minute of compiling, called they are 6,600 and three seconds. Operands
 * go by value: what is referred to would lie in local memory, but values the compiler passes in registers of its
 * choice, for three to eight instructions a call. Then what pairs of a row or a key have in common is computed for each
 * of them. A program that keeps much for its heads is referred to all the same: thirty-two values at every call were
 * 41,000 instructions and 15 seconds, in local memory they are 7,600 and four.
 */
#ifndef FXA_CUDA_ASKED_CUH
#define FXA_CUDA_ASKED_CUH

#define FXA_APART static __device__ __noinline__
#if PROG_APART & 1
#define FXA_ASK_VALUE FXA_APART
#else
#define FXA_ASK_VALUE FXA_INLINE
#endif
#if PROG_APART & 2
#define FXA_ASK_MASK FXA_APART
#else
#define FXA_ASK_MASK FXA_INLINE
#endif
#if PROG_APART & 4
#define FXA_ASK_GRADS FXA_APART
#else
#define FXA_ASK_GRADS FXA_INLINE
#endif

template <bool APART, class T> struct Handed {
    typedef const T &type;
};
template <class T> struct Handed<true, T> {
    typedef T type;
};
constexpr bool SMALL_PROGRAM = sizeof(Program) <= 64; /* sixteen values */
typedef Handed<(PROG_APART & 1) != 0 && SMALL_PROGRAM, Program>::type ValueProgram;
typedef Handed<(PROG_APART & 1) != 0, Pair>::type ValuePair;
typedef Handed<(PROG_APART & 2) != 0 && SMALL_PROGRAM, Program>::type MaskProgram;
typedef Handed<(PROG_APART & 2) != 0, Pair>::type MaskPair;
typedef Handed<(PROG_APART & 4) != 0 && SMALL_PROGRAM, Program>::type GradsProgram;
typedef Handed<(PROG_APART & 4) != 0, Pair>::type GradsPair;

#if PROG_VALUE
FXA_ASK_VALUE float asked_value(ValueProgram program, const FxaArgs &a, float s, ValuePair pair)
{
    return program.value(a, s, pair);
}
#endif

#if PROG_SLOPE
struct Sloped {
    float value, slope;
};

FXA_ASK_VALUE Sloped asked_slope(ValueProgram program, const FxaArgs &a, float s, ValuePair pair)
{
    Sloped both;
    both.value = program.value(a, s, pair, both.slope);
    return both;
}
#endif

#if PROG_MASK
FXA_ASK_MASK bool asked_mask(MaskProgram program, const FxaArgs &a, MaskPair pair)
{
    return program.mask(a, pair);
}
#endif

#if PROG_SAME
FXA_ASK_MASK bool asked_mask_same(MaskProgram program, const FxaArgs &a, MaskPair pair)
{
    return program.mask_same(a, pair);
}
#endif

#if PROG_OWN
FXA_ASK_GRADS float asked_own(GradsProgram program, const FxaArgs &a, float s, GradsPair pair, float ds)
{
    return program.own(a, s, pair, ds);
}
#endif

#if PROG_GRAD_SUMS
struct Partials {
    float of[PROG_GRAD_SUMS];
};

FXA_ASK_GRADS Partials asked_partials(GradsProgram program, const FxaArgs &a, float s, GradsPair pair)
{
    Partials g;
    program.partials(a, s, pair, g.of);
    return g;
}
#endif

#if PROG_GRAD_SCATTER
FXA_ASK_GRADS void asked_scatter(GradsProgram program, const FxaArgs &a, int b, int h, float s, GradsPair pair,
                                 float ds)
{
    program.scatter(a, b, h, s, pair, ds);
}
#endif

#endif
