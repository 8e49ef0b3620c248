/* SPDX-License-Identifier: Apache-2.0
 *
 * Random score programs from a tape of bytes. Every choice is read from the tape (0 after its end): random tapes make
 * property tests, a fuzzer's bytes make structured fuzzing, and shorter or smaller tapes make simpler programs.
 * Programs are made by the public builder only. One tape and flags always give the same program.
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
    /* The score is unchanged. The mask joins comparisons by and, or, not; they compare small affine int expressions in
     * b h q k q_len k_len (with +, -, *, // and % by constants), which range analysis decides exactly. No params or
     * tensors. */
    GEN_AFFINE_MASK = 1 << 0,
    /* A score only, of operations that are smooth and finite for all inputs and of moderate size: + - * neg tanh
     * sigmoid sin cos erf exp(-x*x) x/(1+y*y) sqrt(1+x*x) log(1+x*x), float params, loads of float tensors. Also
     * with_grad, so the derivative may differ from that of the values. */
    GEN_SMOOTH = 1 << 1,
    GEN_NO_TENSORS = 1 << 2,
    GEN_NO_PARAMS = 1 << 3,
    GEN_NO_SPECIAL = 1 << 4, /* no constants inf, nan, -0.0 or huge ones */
    GEN_BPROP = 1 << 5,      /* makes a BPROP program, which reads dscore and score and writes dscore */
    GEN_NO_STORED = 1 << 6   /* reads q instead of q_row and k instead of k_row, as emitted text for devices must */
};

/* Returns a program. Returns NULL only if memory runs out or a limit is exceeded, which needs a tape of several KiB. */
fxa_program *gen_program(fxa_context *ctx, const uint8_t *tape, size_t n, unsigned flags);

/* All tensors that generated programs may use; ends with a NULL name. */
extern const fxa_tensor_info gen_tensors[];

#endif
