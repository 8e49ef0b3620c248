/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run costs, from what was measured on one H200 (docs/cuda.md, figures): problems of 4096 rows in TFLOP/s, and
 * decoding in bytes of K and V. On other devices it is the number of multiprocessors that is reckoned with, and nothing
 * was measured. What is not in the table goes by the row of its columns. Measured are full problems, and at 64 and 128
 * columns soft caps, which at others are full ones times what these were of full ones at the nearer of the two. A
 * bit-stable backward by turns was as fast as one in any order, and above 128 columns it is the same one.
 */
#include "../cuda.h"

#include "../../../problem/work.h"

#include <math.h>

enum {
    COST_CLUSTER = 4, /* CTAs at least */
    COST_JOINT = 128  /* columns */
};
#define COST_PROCESSORS 132.0
#define COST_ROWS 128.0          /* of a tile */
#define COST_CPU_US 6.0          /* of a launch */
#define COST_DECODE_US 13.0      /* of a step of decoding beside what it reads */
#define COST_CLUSTER_US 10.0     /* of a step of decoding by clusters of COST_CLUSTER CTAs */
#define COST_DECODE_BYTES 4.5e12 /* a second */
#define COST_APART 0.85          /* of the rate has a bit-stable backward with a kernel for dQ: causal, 128 columns */

static const struct cost_row {
    fxa__cuda_family family;
    int32_t columns;  /* up to so many */
    double tera[2];   /* forward, backward */
    double capped[2]; /* with a soft cap */
    double fast[2];   /* of that with FXA_FAST_MATH=1 */
} cost_rows[] = {
    {FXA__CUDA_SM90, 32, {342, 376}, {211, 271}, {227, 288}},
    {FXA__CUDA_SM90, 64, {596, 559}, {365, 404}, {396, 431}},
    {FXA__CUDA_SM90, 96, {679, 541}, {513, 505}, {529, 493}},
    {FXA__CUDA_SM90, 128, {786, 584}, {581, 551}, {606, 530}},
    {FXA__CUDA_SM90, 192, {780, 491}, {584, 453}, {602, 442}},
    {FXA__CUDA_SM90, 256, {801, 519}, {598, 480}, {617, 468}},
    {FXA__CUDA_SM80, 256, {301, 213}, {196, 165}, {224, 199}},
    {FXA__CUDA_SIMT, 256, {23, 16}, {20, 14}, {20, 14}},
};

static double cost_rate(const fxa__cuda_choice *choice, const fxa__problem *p) {
    int32_t columns = choice->d > choice->dv ? choice->d : choice->dv;
    size_t i = 0;
    while (cost_rows[i].family != choice->family || cost_rows[i].columns < columns) i++;
    const struct cost_row *row = &cost_rows[i];
    const double *tera = !fxa__problem_is_capped(p) ? row->tera : choice->fast_math ? row->fast : row->capped;
    bool apart = choice->separate_dq && columns <= COST_JOINT && (p->in.flags & FXA_DETERMINISTIC);
    return 1e12 * tera[p->in.pass] * (apart ? COST_APART : 1);
}

double fxa__cuda_cost(int32_t processors, const fxa__cuda_choice *choice, const fxa__problem *p) {
    double share = (double)processors / COST_PROCESSORS, rows = (double)p->in.sq;
    if (choice->units >> FXA__CUDA_DECODE & 1)
        return 1e-6 * (choice->cluster >= COST_CLUSTER ? COST_CLUSTER_US : COST_DECODE_US) +
               fxa__problem_key_bytes(p) / (COST_DECODE_BYTES * share);
    double wasted = rows > 0 ? fmax(1, COST_ROWS / rows) : 1; /* a tile has so many, also where few are there */
    return 1e-6 * COST_CPU_US + wasted * fxa__problem_operations(p) / (cost_rate(choice, p) * share);
}
