/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run costs, from what was measured on one H200: full problems of 4096 rows in TFLOP/s (docs/gpu.md; 96 columns
 * and more than 128 by PyTorch's cuDNN 9.19 on another day). Other devices have the share of its multiprocessors.
 */
#include "cudnn.h"

#include "../../problem/work.h"

enum { COST_OF_PROCESSORS = 132, COST_OF_CPU_US = 10 };

static const struct cost_of_columns {
    int64_t columns; /* up to so many */
    double tera[2];  /* forward, backward */
} cost_of_columns[] = {{64, {475, 431}}, {96, {470, 409}}, {128, {672, 544}}, {192, {600, 305}}, {256, {660, 374}}};

double fxa__dnn_cost(int64_t processors, const fxa__problem *p) {
    int64_t columns = p->in.d > p->in.dv ? p->in.d : p->in.dv;
    size_t i = 0;
    while (cost_of_columns[i].columns < columns && i + 1 < sizeof cost_of_columns / sizeof *cost_of_columns) i++;
    double rate = cost_of_columns[i].tera[p->in.pass] * 1e12 * (double)processors / COST_OF_PROCESSORS;
    return COST_OF_CPU_US * 1e-6 + fxa__problem_operations(p) / rate;
}
