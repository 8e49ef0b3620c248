/* SPDX-License-Identifier: Apache-2.0
 *
 * All memory regions of a run as an indexed list (run_regions.c), for the overlap check and for copies to and from a
 * device (plan/stage.c).
 */
#ifndef FXA_PROBLEM_RUN_REGIONS_H
#define FXA_PROBLEM_RUN_REGIONS_H

#include "problem_private.h"

/* Parts of the list, in this order. The last three have one entry per tensor. */
typedef enum fxa__run_region_part {
    FXA__PART_OPERAND, /* slots of operands */
    FXA__PART_TABLE,   /* the other slots */
    FXA__PART_OTHER,   /* 0 = workspace, 1 = params, 2 = dparams, 3 = bprop_params */
    FXA__PART_TENSOR,
    FXA__PART_DTENSOR,
    FXA__PART_BPROP
} fxa__run_region_part;

typedef struct fxa__run_region {
    const char *kind, *name; /* e.g. "slot" and "DQ", "dtensors" and "bias" */
    bool written;
    fxa__region region; /* data NULL = the run does not use it */
    fxa__run_region_part part;
    size_t index; /* index within the part; for slots, the slot */
} fxa__run_region;

#define FXA__RUN_TABLES (FXA_SLOT_COUNT - FXA_SLOT_Q_LENGTHS)
#define FXA__RUN_OTHERS 4
#define FXA__RUN_REGIONS (FXA__OPERAND_COUNT + FXA__RUN_TABLES + FXA__RUN_OTHERS + 3 * FXA_MAX_TENSORS)

typedef struct fxa__run_region_list {
    const fxa_problem *p;
    const fxa_args *args; /* already checked */
    size_t workspace_size;
} fxa__run_region_list;

/* Sets *out to entry i of the list. Returns false past its end. */
bool fxa__run_region_get(const fxa__run_region_list *l, size_t i, fxa__run_region *out);

#endif
