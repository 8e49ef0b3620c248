/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of spilled bytes of compiled kernels, and kernels whose wgmma products the compiler may serialise, for
 * test_cuda_builds.c. Measured with NVRTC 13.0 and 13.4. Rows are keyed by family, kernel and prefix of the program's
 * name ("" = any).
 */
#ifndef FXA_TESTS_BUILT_BUDGETS_H
#define FXA_TESTS_BUILT_BUDGETS_H

#include "../all/cuda_families.h"
#include "engine/cuda/cuda.h"

static const struct built_budget {
    int family;
    const char *kernel, *program;
    int spills;
    bool serialised;
} built_budgets[] = {
    {FAMILY_SM90, "fxa_forward", "", 120, false},
    {FAMILY_SM90, "fxa_forward", "dense_bias", 320, false}, /* plain loads read tables for every pair */
    {FAMILY_SM90, "fxa_forward", "graph_distance", 480, false},
    {FAMILY_SM90, "fxa_forward", "low_rank_bias", 680, false},
    {FAMILY_SM90, "fxa_forward", "pair_bias", 328, false},
    {FAMILY_SM90, "fxa_forward", "contextual_bias", 480, false},
    {FAMILY_SM90, "fxa_forward", "rbf_kernel", 480, false},
    {FAMILY_SM90, "fxa_forward", "rotary_gain", 512, false},
    {FAMILY_SM90, "fxa_forward", "shifted_window", 672, false},
    {FAMILY_SM90, "fxa_backward", "", 416, false},
    {FAMILY_SM90, "fxa_grad_q", "", 112, false},
    {FAMILY_SM90, "fxa_grad_q", "low_rank_bias", 540, false},
    {FAMILY_SM90, "fxa_decode", "", 296, false},
    {FAMILY_SM90, "fxa_tile_lists", "", 8, false},
    {FAMILY_SM80, "fxa_forward", "", 272, false}, /* spills outside of the inner products */
    {FAMILY_SM80, "fxa_forward", "low_rank_bias", 512, false},
    {FAMILY_SM80, "fxa_forward", "rbf_kernel", 608, false},
    {FAMILY_SM80, "fxa_backward", "", 472, false},
    {FAMILY_SM80, "fxa_tile_lists", "", 8, false},
    {FAMILY_SM80, "fxa_pages_store", "", 4, false},
    {FAMILY_SIMT, "fxa_forward", "", 168, false},
    {FAMILY_SIMT, "fxa_backward", "", 100, false},
    {FAMILY_SIMT, "fxa_grad_q", "", 100, false},
    {FAMILY_SIMT, "fxa_tile_lists", "", 8, false},
    {FAMILY_SIMT, "fxa_pages_store", "", 4, false},
};

#endif
