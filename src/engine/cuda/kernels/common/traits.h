/* SPDX-License-Identifier: Apache-2.0
 *
 * Two lists of everything that kernels are compiled with, one line each. The lists make struct FxaTraits, the
 * compiler's options, the defaults of switches that a program's text leaves out, the constant TRAITS of the kernels and
 * the code key, so a new setting is a new line here. The file is C11 and CUDA.
 *
 *   FXA_SETTINGS  what the host chooses for a problem. Every kernel is compiled with -DMACRO=value for each of them.
 *   FXA_SWITCHES  what the text of the score program defines (common/program_interface.cuh describes them); the others
 *                 have their default.
 *
 * A line is X(member, macro, default, meaning). Values are ints. Without a host, scripts of tests take the default.
 */
#ifndef FXA_CUDA_COMMON_TRAITS_H
#define FXA_CUDA_COMMON_TRAITS_H

#define FXA_SETTINGS(X)                                                                                                \
    X(d, FXA_D, 0, "head dim of Q and K, a multiple of 32 up to 256; tensors may have less (a.d)")                     \
    X(dv, FXA_DV, FXA_D, "head dim of V and O; tensors may have less (a.dv)")                                          \
    X(f16, FXA_F16, 0, "1: Q, K, V and dO are f16; 0: bf16")                                                           \
    X(f32, FXA_F32, 0, "1: Q, K, V and dO are f32, whatever f16 is")                                                   \
    X(out_f32, FXA_OUT_F32, 0, "1: O and gradients are f32, whatever the operands are; not in sm90")                   \
    X(o_f32, FXA_O_F32, 0, "1: the backward reads O as f32, whatever the other operands are")                          \
    X(varlen, FXA_VARLEN, 0, "1: batch entries have lengths of their own or are packed; 0: they are not read")         \
    X(dropout, FXA_DROPOUT, 0, "1: weights are dropped; 2: by mapped coordinates")                                     \
    X(paged, FXA_PAGED, 0, "1: the forward kernels read K and V through a page table")                                 \
    X(aligned, FXA_ALIGNED, 1, "1: addresses and strides of all tensors are multiples of 16 bytes")                    \
    X(fast_math, FXA_FAST_MATH, 0, "1: the hardware's tanh")                                                           \
    X(separate_dq, FXA_SEPARATE_DQ, 0, "1: a kernel of its own computes dQ")                                           \
    X(ordered_dq, FXA_DQ_ORDERED, 0, "1: key tiles add to dQ in a fixed order")                                        \
    X(row_max, FXA_RETURN_ROW_MAX, 0, "1: the maximum of each row is written; not in sm90")                            \
    X(row_tiles, FXA_ROW_TILES, 1, "decode: tiles of 8 query rows per CTA, 1, 2 or 4")                                 \
    X(cluster, FXA_CLUSTER, 0, "decode: CTAs of a cluster, which share the keys of the same query rows; 0: none")      \
    X(shared_kb, FXA_SHARED_KB, 99, "KB of shared memory of a CTA on the devices that the kernel is for")

#define FXA_SWITCHES(X)                                                                                                \
    X(value, PROG_VALUE, 0, "value() changes the score")                                                               \
    X(derivative, PROG_DERIVATIVE, 0, "1: the derivative is not 1; 2: it may be infinite or NaN")                      \
    X(user_backward, PROG_USER_BACKWARD, 0, "user_backward() computes the gradient of the score")                      \
    X(mask, PROG_MASK, 0, "mask() can be false")                                                                       \
    X(bounded, PROG_BOUNDED, 0, "n: |value()| <= n; 0: no bound is known")                                             \
    X(diagonal, PROG_DIAGONAL, 0, "value() reads a row that depends on q - k")                                         \
    X(dense, PROG_DENSE, 0, "value() reads a tensor [b, h, q, k]")                                                     \
    X(operands, PROG_OPERANDS, 0, "row and key operands are read by 1: mask(), 2: value() too")                        \
    X(pack_operands, PROG_PACK_OPERANDS, 0, "operands are packed before a run")                                        \
    X(uniform_operands, PROG_UNIFORM_OPERANDS, 0, "uniform_mask() serves tiles whose operands are all equal")          \
    X(grad_diagonal, PROG_GRAD_DIAGONAL, 0, "dS is summed along diagonals")                                            \
    X(grad_dense, PROG_GRAD_DENSE, 0, "dS is the gradient of the dense tensor")                                        \
    X(grad_sums, PROG_GRAD_SUMS, 0, "n sums over all pairs of (b, h)")                                                 \
    X(grad_scatter, PROG_GRAD_SCATTER, 0, "scatter() adds the gradient of each pair to tensors")                       \
    X(grad_exact, PROG_GRAD_EXACT, 0, "bit i: the gradient of tensor i is summed in FxaExact")                         \
    X(out_of_line, PROG_OUT_OF_LINE, 0, "functions that are called: bits 1 value(), 2 mask(), 4 gradients")            \
    X(grad_diagonal_exact, PROG_GRAD_DIAGONAL_EXACT, 0, "sums along diagonals are FxaExact")                           \
    X(softcap, PROG_SOFTCAP, 0, "the program reads the score through softcap() alone")                                 \
    X(softcap_has_unit, PROG_SOFTCAP_HAS_UNIT, 0, "softcap() multiplies by softcap_unit()")                            \
    X(softcap_series, PROG_SOFTCAP_SERIES, 0, "softcap() has faster forms for small scores; not with fast_math")

#define FXA_TRAIT_MEMBER(member, macro, otherwise, meaning) int member;
struct FxaTraits {
    FXA_SETTINGS(FXA_TRAIT_MEMBER)
    FXA_SWITCHES(FXA_TRAIT_MEMBER)
};
#undef FXA_TRAIT_MEMBER

#endif
