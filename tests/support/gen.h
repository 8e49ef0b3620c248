/* SPDX-License-Identifier: Apache-2.0
 *
 * Random score programs from a tape of bytes. Every choice is read from the tape (zeroes after its end), so a random
 * tape makes a property test, a fuzzer's bytes make structured fuzzing, and a shorter or lower tape a simpler program.
 * Only the public builder is used. The same tape and flags give the same program in every run.
 *
 * Names have fixed types, so that programs of different tapes can be bound to the same data:
 *   params   p_gain, p_cap : float; p_left, p_step : int
 *   tensors  see gen_tensors
 * Without flags a program uses every operation, every type, conversions, tensors of all dtypes and ranks 0 to 5,
 * special constants (inf, nan, -0.0, INT_MIN), several loads of one tensor, and writes score, mask, both or none.
 */
#ifndef FXA_TESTS_GEN_H
#define FXA_TESTS_GEN_H

#include "fxattn/fxattn.h"

enum {
    /* Score unchanged; the mask is made of and, or, not over comparisons of small affine int expressions of b h q k
     * q_len k_len (with +, -, *, // and % by constants): range analysis decides it exactly. No params or tensors. */
    GEN_AFFINE_MASK = 1 << 0,
    /* Score only, of operations that are smooth and finite on all of R and keep to moderate sizes: + - * neg tanh
     * sigmoid sin cos erf exp(-x*x) x/(1+y*y) sqrt(1+x*x) log(1+x*x), float params and loads of float tensors; and of
     * with_grads, so that a derivative need not be that of the values. */
    GEN_SMOOTH = 1 << 1,
    GEN_NO_TENSORS = 1 << 2,
    GEN_NO_PARAMS = 1 << 3,
    GEN_NO_SPECIAL = 1 << 4, /* no inf, nan, -0.0 or huge constants */
    GEN_BPROP = 1 << 5,      /* a BPROP program: reads dscore and score, writes dscore */
    GEN_NO_STORED = 1 << 6   /* q for q_row and k for k_row: what text for devices is made of */
};

/* NULL only when memory ran out or a limit was hit (which a tape below a few KiB does not reach). */
fxa_program *gen_program(fxa_context *ctx, const uint8_t *tape, size_t n, unsigned flags);

/* Every tensor a generated program may use; ends with a row whose name is NULL. */
extern const fxa_tensor_info gen_tensors[];

#endif
