/* SPDX-License-Identifier: Apache-2.0
 *
 * Single passes of the cuda engine's codegen on programs without a problem.
 */
#ifndef FXA_TESTS_CUDA_PASS_FIXTURE_H
#define FXA_TESTS_CUDA_PASS_FIXTURE_H

#include "engine/cuda/codegen/passes.h"
#include "t.h"

/* Returns the score program whose mask does not read the score. Destroys p. */
__attribute__((unused)) static fxa_program *pass_masks(fxa__host *host, fxa_program *p) {
    cuda_work w = {.host = host, .config = {.program = p}};
    fxa_error err;
    T_OK(fxa__cuda_lift_score_masks(&w, &err));
    T_OK(fxa__cuda_move_mask_to_score(&w, &err));
    return w.config.program;
}

#endif
