/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the choices of cuda_program.c and the text of cuda_text.c.
 */
#ifndef FXA_ENGINE_CUDA_TEXT_H
#define FXA_ENGINE_CUDA_TEXT_H

#include "cuda_program.h"

#include "../../lower/affine.h"
#include "../../lower/grad_class.h"

/* Who needs a node: bits of fxa__emit.used that are not those of outputs. */
enum { CUDA_VALUE = 1 << 5, CUDA_SLOPE = 1 << 6, CUDA_MASK = 1 << 7, CUDA_GRADS = 1 << 5 };

typedef struct cuda_work {
    fxa__host *host;
    fxa__cuda_program *c;
    fxa__linear *forms;
    fxa__depend *sets;
    uint8_t *need; /* by node: CUDA_VALUE, CUDA_SLOPE, CUDA_MASK */
    bool *wanted;  /* by output: a gradient that is wanted, and not always 0 */
} cuda_work;

/* Whether an output is a gradient that scatter() adds. */
bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output);
/* Writes c->text. False: out of memory. */
bool fxa__cuda_text_write(const cuda_work *w);

#endif
