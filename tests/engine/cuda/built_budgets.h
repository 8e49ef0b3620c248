/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of spilled bytes of compiled kernels, and kernels whose wgmma products the compiler may serialise, for
 * test_cuda_builds.c and for test_cuda_generated.py, which reads the rows of this file. The highest limit of all rows
 * that match a kernel holds. Measured with NVRTC 13.0 and 13.4. Rows are keyed by family, kernel and prefix of the
 * program's name ("" = any).
 */
#ifndef FXA_TESTS_BUILT_BUDGETS_H
#define FXA_TESTS_BUILT_BUDGETS_H

#include "../all/cuda_families.h"
#include "engine/cuda/cuda.h"

static const struct built_budget {
    int family;
    const char *kernel, *program;
    int spills;    /* [bytes] limit in plans */
    int spills_64; /* [bytes] limit at head dim 64, compiled without a plan by test_cuda_generated.py */
    bool serialised;
} built_budgets[] = {
    {FAMILY_SM90, "fxa_forward", "", 120, 120, false},
    {FAMILY_SM90, "fxa_forward", "dense_bias", 320, 320, false}, /* plain loads read tables for every pair */
    {FAMILY_SM90, "fxa_forward", "graph_distance", 480, 480, false},
    {FAMILY_SM90, "fxa_forward", "low_rank_bias", 680, 680, false},
    {FAMILY_SM90, "fxa_forward", "pair_bias", 328, 328, false},
    {FAMILY_SM90, "fxa_forward", "contextual_bias", 480, 0, false},
    {FAMILY_SM90, "fxa_forward", "rbf_kernel", 480, 480, false},
    {FAMILY_SM90, "fxa_forward", "rotary_gain", 512, 552, false},
    {FAMILY_SM90, "fxa_forward", "shifted_window", 672, 1128, false},
    {FAMILY_SM90, "fxa_backward", "", 416, 92, false},
    {FAMILY_SM90, "fxa_backward", "shifted_window", 0, 704, false},
    {FAMILY_SM90, "fxa_grad_q", "", 112, 0, false},
    {FAMILY_SM90, "fxa_grad_q", "low_rank_bias", 540, 0, false},
    {FAMILY_SM90, "fxa_decode", "", 296, 0, false},
    {FAMILY_SM90, "fxa_tile_lists", "", 8, 0, false},
    {FAMILY_SM80, "fxa_forward", "", 272, 40, false}, /* spills outside of the inner products */
    {FAMILY_SM80, "fxa_forward", "low_rank_bias", 512, 0, false},
    {FAMILY_SM80, "fxa_forward", "rbf_kernel", 608, 0, false},
    {FAMILY_SM80, "fxa_backward", "", 472, 0, false},
    {FAMILY_SM80, "fxa_backward", "dense_bias", 0, 8, false},
    {FAMILY_SM80, "fxa_tile_lists", "", 8, 0, false},
    {FAMILY_SM80, "fxa_convert_merge", "", 8, 0, false}, /* sm_120 and 121, dropout at mapped coordinates */
    {FAMILY_SM80, "fxa_pages_store", "", 4, 0, false},
    {FAMILY_SIMT, "fxa_forward", "", 168, 0, false},
    {FAMILY_SIMT, "fxa_backward", "", 100, 0, false},
    {FAMILY_SIMT, "fxa_grad_q", "", 100, 0, false},
    {FAMILY_SIMT, "fxa_tile_lists", "", 8, 0, false},
    {FAMILY_SIMT, "fxa_convert_merge", "", 8, 0, false},
    {FAMILY_SIMT, "fxa_pages_store", "", 4, 0, false},
};

#endif
