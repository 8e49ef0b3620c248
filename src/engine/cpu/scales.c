/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales of 8-bit operands (FXA_SCALED). Q and K are multiplied as they are stored; their descales become part of the
 * score scale, so decoding needs no changes. In forward, V too is multiplied as it is stored, and outputs are
 * multiplied by its descale. In backward, V, O and dO are multiplied by their descales when they are loaded. Sums of dQ
 * and dK are multiplied by the entire score scale, so dQ is divided by the descale of Q, and dK by that of K.
 */
#include "code.h"
#include "real.h"

#include "../../problem/scales.h"

fxa__bound_args fxa__cpu_bind_scaled(const fxa__bound_args *bound, fxa_pass pass) {
    fxa__bound_args b = *bound;
    double q = b.load[FXA_SLOT_Q], k = b.load[FXA_SLOT_K];
    fxa__amax_clear(bound);
    b.scale *= q * k;
    b.load[FXA_SLOT_Q] = b.load[FXA_SLOT_K] = 1;
    if (pass == FXA_FORWARD) {
        b.load[FXA_SLOT_O] = b.load[FXA_SLOT_V];
        b.load[FXA_SLOT_V] = 1;
    } else {
        b.load[FXA_SLOT_DQ] = 1 / q;
        b.load[FXA_SLOT_DK] = 1 / k;
    }
    return b;
}

/* Returns the largest absolute value of a row; NaN if the row has a NaN. */
static double scales_amax(const fxa__cpu_kernels *kernels, const void *row, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n && most == most; i++) {
        double x = fabs(fxa__cpu_real_get(kernels, row, i));
        if (!(x <= most)) most = x;
    }
    return most;
}

void fxa__cpu_store(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, fxa_slot slot,
                    const fxa__cpu_address *to, const void *row, double factor, bool add) {
    factor *= bound->load[slot];
    kernels->store(to->data, to->dtype, to->stride, row, to->n, factor * bound->store[slot], add);
    if (bound->amax[slot]) fxa__amax_add(bound->amax[slot], scales_amax(kernels, row, to->n) * fabs(factor));
}

void fxa__cpu_amax_ds(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, const void *ds, int64_t n) {
    if (!bound->amax[FXA_SLOT_DO]) return;
    double scale = bound->scale * bound->load[FXA_SLOT_DQ] * bound->load[FXA_SLOT_DK];
    fxa__amax_add(bound->amax[FXA_SLOT_DO], scales_amax(kernels, ds, n) * fabs(scale));
}
