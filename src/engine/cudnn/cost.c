/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimates the seconds of a run from rates measured on one H200 in the same sessions as the rates of the cuda engine
 * (docs/cuda.md): TFLOP/s for problems with 4096 query rows, and for a decoding step (one query row) the bytes per
 * second at which K and V are read, paged (128 keys per page) or not. For other devices, rates are scaled by the number
 * of multiprocessors. With a soft cap only head dims 64 and 128 were measured, and the deterministic backward only at
 * head dim 128; the rates at other head dims are derived from those at 128.
 */
#include "cudnn.h"

#include "../../problem/work_estimate.h"

#include <math.h>

#define COST_OF_PROCESSORS 132.0
#define COST_OF_ROWS 128.0       /* query rows per tile in cuDNN's kernels */
#define COST_OF_CPU_US 10.0      /* microseconds of a launch */
#define COST_OF_ONE_US 14.0      /* microseconds of a decoding step (sq = 1), besides reading K and V */
#define COST_OF_ONE_BYTES 4.5e12 /* bytes per second at which a decoding step reads K and V */
#define COST_OF_ONE_PAGED 3.1e12 /* bytes per second at which a decoding step reads paged K and V */
/* Factor by which masks that are evaluated at every (q, k) pair, or captured tensors, change the rate of a problem. */
#define COST_OF_UNEVEN 0.55

static const struct cost_of_columns {
    int64_t columns;  /* largest head dim for which these rates hold */
    double tera[2];   /* [forward, backward] TFLOP/s without a soft cap */
    double capped[2]; /* [forward, backward] TFLOP/s with a soft cap */
    double fixed;     /* TFLOP/s of the deterministic backward */
} cost_of_columns[] = {
    {64, {475, 449}, {345, 395}, 395},  {96, {514, 430}, {408, 405}, 378},  {128, {669, 552}, {531, 520}, 486},
    {192, {663, 305}, {526, 287}, 268}, {256, {722, 383}, {573, 361}, 337},
};

static double cost_of_rate(const fxa__problem *p) {
    int64_t columns = p->in.d_qk > p->in.d_v ? p->in.d_qk : p->in.d_v;
    size_t i = 0;
    while (cost_of_columns[i].columns < columns && i + 1 < sizeof cost_of_columns / sizeof *cost_of_columns) i++;
    const struct cost_of_columns *row = &cost_of_columns[i];
    bool fixed = p->in.pass == FXA_BACKWARD && (p->in.flags & FXA_DETERMINISTIC);
    double rate = 1e12 * (fxa__problem_is_capped(p) ? row->capped : row->tera)[p->in.pass];
    if (fixed) rate *= row->fixed / row->tera[FXA_BACKWARD];
    return fxa__problem_is_uneven(p) ? COST_OF_UNEVEN * rate : rate;
}

double fxa__dnn_cost(int64_t processors, const fxa__problem *p) {
    double share = (double)processors / COST_OF_PROCESSORS, rows = (double)p->in.sq;
    if (p->in.sq == 1 && p->in.pass == FXA_FORWARD) {
        double bytes = p->in.flags & FXA_PAGED ? COST_OF_ONE_PAGED : COST_OF_ONE_BYTES;
        return 1e-6 * COST_OF_ONE_US + fxa__problem_key_bytes(p) / (bytes * share);
    }
    double wasted = rows > 0 ? fmax(1, COST_OF_ROWS / rows) : 1;
    return 1e-6 * COST_OF_CPU_US + wasted * fxa__problem_operations(p) / (cost_of_rate(p) * share);
}
