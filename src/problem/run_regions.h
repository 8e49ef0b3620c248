/* SPDX-License-Identifier: Apache-2.0
 *
 * All memory regions of a run as an indexed list (run_regions.c), for the overlap check and for copies to and from a
 * device (plan/host_copies.c).
 */
#ifndef FXA_PROBLEM_RUN_REGIONS_H
#define FXA_PROBLEM_RUN_REGIONS_H

#include "problem_private.h"

/* Parts of the list of all memory regions of a run, in this order. TENSOR, DTENSOR and BPROP have one region per
 * captured tensor. */
typedef enum fxa__run_region_part {
    FXA__PART_OPERAND, /* slots of operands */
    FXA__PART_TABLE,   /* slots from Q_LENGTHS on: lengths, tables, scalars, scales */
    FXA__PART_OTHER,   /* four regions: workspace, params, dparams, bprop_params */
    FXA__PART_TENSOR,
    FXA__PART_DTENSOR,
    FXA__PART_BPROP
} fxa__run_region_part;

typedef struct fxa__run_region {
    const char *kind, *name; /* for messages, such as "slot" and "DQ", or "dtensors" and "bias" */
    bool written;
    fxa__region region; /* region.data NULL = the run does not use this region */
    fxa__run_region_part part;
    size_t index; /* parts OPERAND and TABLE: the fxa_slot; other parts: number of the region in the part, from 0 */
} fxa__run_region;

#define FXA__RUN_TABLES (FXA_SLOT_COUNT - FXA_SLOT_Q_LENGTHS)
#define FXA__RUN_OTHERS 4
#define FXA__RUN_REGIONS (FXA__OPERAND_COUNT + FXA__RUN_TABLES + FXA__RUN_OTHERS + 3 * FXA_MAX_TENSORS)

typedef struct fxa__run_region_list {
    const fxa_problem *p;
    const fxa_args *args; /* already checked */
    size_t workspace_size;
} fxa__run_region_list;

/* Sets *out to region i of the list. Returns false past the end of the list. */
bool fxa__run_region_get(const fxa__run_region_list *l, size_t i, fxa__run_region *out);

#endif
