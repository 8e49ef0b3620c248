/* SPDX-License-Identifier: Apache-2.0
 *
 * Random score programs from a tape of bytes. Every choice is read from the tape (0 after its end): random tapes make
 * property tests, a fuzzer's bytes make structured fuzzing, and shorter or smaller tapes make simpler programs. Only
 * the public builder is used. One tape and flags always give the same program.
 *
 * Names have fixed types, so that programs of different tapes can use the same data:
 *   params   p_gain, p_cap : float; p_left, p_step : int
 *   tensors  see gen_tensors
 *
 * Without flags, programs use every operation, every type, conversions, tensors of all dtypes and ranks 0 to 5, special
 * constants (inf, nan, -0.0, INT_MIN), several loads of one tensor, and write score, mask, both or neither.
 */
#ifndef FXA_TESTS_GEN_H
#define FXA_TESTS_GEN_H

#include "fxattn/fxattn.h"

enum {
    /* Unchanged score, and a mask of and, or, not over comparisons of small affine int expressions in b h q k q_len
     * k_len (with +, -, *, // and % by constants), which interval analysis decides exactly. No params or tensors. */
    GEN_AFFINE_MASK = 1 << 0,
    /* Score only, of operations that are smooth and finite for all inputs and of moderate size: + - * neg tanh sigmoid
     * sin cos erf exp(-x*x) x/(1+y*y) sqrt(1+x*x) log(1+x*x), float params, loads of float tensors, and with_grad, so
     * that the derivative may differ from that of the values. */
    GEN_SMOOTH = 1 << 1,
    GEN_NO_TENSORS = 1 << 2,
    GEN_NO_PARAMS = 1 << 3,
    GEN_NO_SPECIAL = 1 << 4, /* no inf, nan, -0.0 or huge constants */
    GEN_BPROP = 1 << 5,      /* a BPROP program: reads dscore and score, writes dscore */
    GEN_NO_STORED = 1 << 6   /* q in place of q_row and k in place of k_row, as in text for devices */
};

/* Returns a program; NULL only if memory runs out or a limit is exceeded, which tapes below a few KiB do not reach. */
fxa_program *gen_program(fxa_context *ctx, const uint8_t *tape, size_t n, unsigned flags);

/* All tensors that generated programs may use; ends with a NULL name. */
extern const fxa_tensor_info gen_tensors[];

#endif
