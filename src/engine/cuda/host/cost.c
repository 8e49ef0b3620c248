/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimates the time of a run from rates that were measured on one H200 (docs/cuda.md): TFLOP/s with 4,096 queries, and
 * for decode, bytes of K and V per second. On other devices, where nothing was measured, the rates are scaled by the
 * number of multiprocessors. Rates (host/recipes.c) were measured without a mask. Rates with soft caps were measured at
 * head dims 64 and 128; at other head dims they are scaled as at the nearer of these two. Ordered dQ (summed in a fixed
 * order) is as fast as unordered dQ; above head dim 128 both are computed by the same kernels.
 */
#include "recipes.h"

#include "../../../problem/work_estimate.h"

#include <math.h>

enum {
    COST_CLUSTER = 4, /* minimum CTAs of a decode cluster for COST_CLUSTER_US */
    COST_JOINT = 128  /* maximum head dim of the fused backward */
};
#define COST_PROCESSORS 132.0    /* multiprocessors of the H200 that was measured */
#define COST_ROWS 128.0          /* rows of a query tile */
#define COST_CPU_US 6.0          /* host time of a launch */
#define COST_DECODE_US 13.0      /* time of a decoding step without the time of reading K and V */
#define COST_CLUSTER_US 10.0     /* replaces COST_DECODE_US in clusters of COST_CLUSTER CTAs or more */
#define COST_DECODE_BYTES 4.5e12 /* bytes of K and V that decode reads per second */
/* TFLOP/s of a deterministic backward with a separate dQ kernel, divided by TFLOP/s of the fused backward: measured
 * with a causal mask at head dim 128. */
#define COST_APART 0.85

/* Returns the operations per second of the choice's attention kernel on the H200. */
static double cost_rate(const fxa__cuda_choice *choice, const fxa__problem *p) {
    const struct FxaTraits *t = &choice->traits;
    const fxa__cuda_rate *rate = choice->recipe->rates;
    int32_t columns = t->d > t->dv ? t->d : t->dv;
    FXA__ASSERT(columns <= 256); /* the last row of `rates` is for head dim 256 */
    while (rate->columns < columns) rate++;
    double tera = !fxa__problem_is_capped(p) ? rate->plain : t->fast_math ? rate->fast_softcap : rate->softcap;
    bool apart = t->separate_dq && columns <= COST_JOINT && (p->in.flags & FXA_DETERMINISTIC);
    return 1e12 * tera * (apart ? COST_APART : 1);
}

double fxa__cuda_cost(int32_t processors, const fxa__cuda_choice *choice, const fxa__problem *p) {
    double share = (double)processors / COST_PROCESSORS, rows = (double)p->in.sq;
    if (!choice->recipe->rates)
        return 1e-6 * (choice->traits.cluster >= COST_CLUSTER ? COST_CLUSTER_US : COST_DECODE_US) +
               fxa__problem_key_bytes(p) / (COST_DECODE_BYTES * share);
    double wasted = rows > 0 ? fmax(1, COST_ROWS / rows) : 1; /* a tile computes COST_ROWS rows, however few exist */
    return 1e-6 * COST_CPU_US + wasted * fxa__problem_operations(p) / (cost_rate(choice, p) * share);
}
