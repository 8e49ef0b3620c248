/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run costs, from what was measured on one H200 (docs/cuda-kernels.md, figures): full problems of 4096 rows in
 * TFLOP/s. On other devices it is the number of multiprocessors that is reckoned with, and nothing was measured.
 */
#include "cuda.h"

#include "../../problem/work.h"

enum { COST_PROCESSORS = 132, COST_CPU_US = 6 };

static const struct cost_row {
    fxa__cu_family family;
    int32_t columns; /* up to so many */
    double tera[2];  /* forward, backward */
} cost_rows[] = {
    {FXA__CU_SM90, 32, {342, 376}},  {FXA__CU_SM90, 64, {540, 515}},  {FXA__CU_SM90, 96, {606, 498}},
    {FXA__CU_SM90, 128, {710, 547}}, {FXA__CU_SM90, 192, {690, 445}}, {FXA__CU_SM90, 256, {710, 466}},
    {FXA__CU_SM80, 256, {301, 213}}, {FXA__CU_SIMT, 256, {23, 16}},
};

double fxa__cu_cost(int32_t processors, const fxa__cu_choice *choice, const fxa__problem *p) {
    int32_t columns = choice->d > choice->dv ? choice->d : choice->dv;
    size_t i = 0;
    while (cost_rows[i].family != choice->family || cost_rows[i].columns < columns) i++;
    double rate = cost_rows[i].tera[p->in.pass] * 1e12 * processors / COST_PROCESSORS;
    return COST_CPU_US * 1e-6 + fxa__problem_operations(p) / rate;
}
