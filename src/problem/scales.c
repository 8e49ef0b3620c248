/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of the scale slots of 8-bit operands; see scales.h. Each row belongs to an operand: an operand that the pass
 * reads has a descale, an operand that the pass writes has a scale and an amax. The scale and amax of dS (score
 * gradient times score scale), which is no operand, belong to dO: dO has the same dtype, and no pass writes it.
 */
#include "scales.h"

#include "../base/dtype.h"
#include "../base/invariant.h"

#include <string.h>

typedef struct scale_row {
    /* slot: slot of a descale, scale or amax. operand: slot of the operand to which that slot belongs. */
    uint8_t slot, operand;
    uint8_t use;  /* FXA__SCALE_READ for descales and scales, FXA__SCALE_WRITTEN for amax */
    uint8_t role; /* FXA__READ or FXA__WRITTEN: what the pass that uses `slot` does with the operand */
} scale_row;

static const scale_row scale_rows[] = {
    {FXA_SLOT_DESCALE_Q, FXA_SLOT_Q, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_DESCALE_K, FXA_SLOT_K, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_DESCALE_V, FXA_SLOT_V, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_DESCALE_O, FXA_SLOT_O, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_DESCALE_DO, FXA_SLOT_DO, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_SCALE_O, FXA_SLOT_O, FXA__SCALE_READ, FXA__WRITTEN},
    {FXA_SLOT_SCALE_DQ, FXA_SLOT_DQ, FXA__SCALE_READ, FXA__WRITTEN},
    {FXA_SLOT_SCALE_DK, FXA_SLOT_DK, FXA__SCALE_READ, FXA__WRITTEN},
    {FXA_SLOT_SCALE_DV, FXA_SLOT_DV, FXA__SCALE_READ, FXA__WRITTEN},
    {FXA_SLOT_AMAX_O, FXA_SLOT_O, FXA__SCALE_WRITTEN, FXA__WRITTEN},
    {FXA_SLOT_AMAX_DQ, FXA_SLOT_DQ, FXA__SCALE_WRITTEN, FXA__WRITTEN},
    {FXA_SLOT_AMAX_DK, FXA_SLOT_DK, FXA__SCALE_WRITTEN, FXA__WRITTEN},
    {FXA_SLOT_AMAX_DV, FXA_SLOT_DV, FXA__SCALE_WRITTEN, FXA__WRITTEN},
    {FXA_SLOT_SCALE_DS, FXA_SLOT_DO, FXA__SCALE_READ, FXA__READ},
    {FXA_SLOT_AMAX_DS, FXA_SLOT_DO, FXA__SCALE_WRITTEN, FXA__READ},
};
enum { SCALE_ROWS = sizeof scale_rows / sizeof *scale_rows };

/* Returns the operand to which a row of the table belongs. */
static const fxa__operand_info *scale_operand(const scale_row *row) {
    size_t i = 0;
    while (fxa__operand_info_get(i)->slot != row->operand) i++;
    return fxa__operand_info_get(i);
}

/* Returns the table row of a scale slot; NULL for other slots. */
static const scale_row *scale_find(fxa_slot slot) {
    for (size_t i = 0; i < SCALE_ROWS; i++)
        if (scale_rows[i].slot == slot) return &scale_rows[i];
    return NULL;
}

/* Returns true if the operand is stored as 8-bit floats. */
static bool scale_is_byte(const fxa_problem *p, const fxa__operand_info *info) {
    return fxa__dtype_is_byte_float(fxa__operand_of(p, info)->dtype);
}

/* Returns how the problem uses the scale slot of a table row. */
static fxa__scale_use scale_use(const fxa_problem *p, const scale_row *row) {
    const fxa__operand_info *info = scale_operand(row);
    if (!(p->flags & FXA_SCALED)) return FXA__SCALE_NONE;
    if (info->role[p->pass] != row->role) return FXA__SCALE_IGNORED;
    return fxa__operand_role(p, info) == row->role && scale_is_byte(p, info) ? (fxa__scale_use)row->use
                                                                             : FXA__SCALE_NONE;
}

fxa__scale_use fxa__scale_use_of(const fxa_problem *p, fxa_slot slot) {
    if (!(p->flags & FXA_SCALED)) return FXA__SCALE_NONE; /* fast path: called for every slot of every run */
    const scale_row *row = scale_find(slot);
    return row ? scale_use(p, row) : FXA__SCALE_NONE;
}

const char *fxa__scale_missing_operand(const fxa_problem *p, fxa_slot slot) {
    FXA__ASSERT(scale_find(slot)); /* `slot` must be a slot of scale_rows */
    return p->flags & FXA_SCALED ? fxa_slot_name((fxa_slot)scale_find(slot)->operand) : NULL;
}

fxa_status fxa__scales_check(const fxa_problem *p, fxa_error *err) {
    static const struct {
        uint32_t flag;
        const char *name;
        fxa_slot amax;
    } adds[] = {{FXA_ACCUMULATE_O, "FXA_ACCUMULATE_O", FXA_SLOT_AMAX_O},
                {FXA_ACCUMULATE_DQ, "FXA_ACCUMULATE_DQ", FXA_SLOT_AMAX_DQ},
                {FXA_ACCUMULATE_DK, "FXA_ACCUMULATE_DK", FXA_SLOT_AMAX_DK},
                {FXA_ACCUMULATE_DV, "FXA_ACCUMULATE_DV", FXA_SLOT_AMAX_DV}};
    bool some = false;
    if (!(p->flags & FXA_SCALED)) return FXA_OK;
    for (size_t i = 0; i < SCALE_ROWS; i++) some = some || scale_use(p, &scale_rows[i]) >= FXA__SCALE_READ;
    if (!some)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "flag FXA_SCALED is set, and no operand has 8 bits: only e4m3 and e5m2 have scales");
    for (size_t i = 0; i < sizeof adds / sizeof *adds; i++)
        if ((p->flags & adds[i].flag) && fxa__scale_use_of(p, adds[i].amax) == FXA__SCALE_WRITTEN)
            return fxa__fail(err, FXA_E_PROBLEM,
                             "flag %s adds to an operand of 8 bits, and FXA_SCALED scales it: what is there has no "
                             "scale of its own",
                             adds[i].name);
    return FXA_OK;
}

fxa_status fxa__scales_check_values(const fxa_problem *p, void *const *slot, fxa_error *err) {
    for (size_t i = 0; i < SCALE_ROWS; i++) {
        const float *x = slot[scale_rows[i].slot];
        if (!x || scale_use(p, &scale_rows[i]) != FXA__SCALE_READ) continue;
        if (!(*x > 0 && *x < INFINITY))
            return fxa__fail(err, FXA_E_BINDING, "%s is %g: accepted are finite numbers above 0",
                             fxa_slot_name((fxa_slot)scale_rows[i].slot), (double)*x);
    }
    return FXA_OK;
}

void fxa__scales_fill(const fxa_problem *p, bool readable, fxa__bound_args *bound) {
    for (size_t i = 0; i < FXA__SCALED_SLOTS; i++) bound->load[i] = bound->store[i] = 1;
    if (!readable || !(p->flags & FXA_SCALED)) return;
    for (size_t i = 0; i < SCALE_ROWS; i++) {
        const scale_row *row = &scale_rows[i];
        fxa__scale_use use = scale_use(p, row);
        float *x = bound->slot[row->slot];
        if (!x || use < FXA__SCALE_READ) continue;
        FXA__ASSERT(row->operand < FXA__SCALED_SLOTS);
        if (use == FXA__SCALE_WRITTEN)
            bound->amax[row->operand] = x;
        else
            (row->slot <= FXA_SLOT_DESCALE_DO ? bound->load : bound->store)[row->operand] = (double)*x;
    }
}

void fxa__amax_clear(const fxa__bound_args *bound) {
    for (size_t i = 0; i < FXA__SCALED_SLOTS; i++)
        if (bound->amax[i]) *bound->amax[i] = 0;
}

/* Compares non-negative floats by their bits as unsigned ints, which are in the order of the floats; NaN is largest. */
void fxa__amax_add(float *amax, double x) {
    typedef uint32_t __attribute__((may_alias)) word;
    float value = (float)x;
    uint32_t bits, old;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7fffffff;
    old = __atomic_load_n((word *)(void *)amax, __ATOMIC_RELAXED);
    while (bits > old &&
           !__atomic_compare_exchange_n((word *)(void *)amax, &old, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
