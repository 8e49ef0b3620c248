/* SPDX-License-Identifier: Apache-2.0
 *
 * All memory regions of a run as an indexed list (bind_overlap.c), for the overlap check and for copies to and from a
 * device (plan/stage.c).
 */
#ifndef FXA_PROBLEM_TOUCH_H
#define FXA_PROBLEM_TOUCH_H

#include "problem_private.h"

/* Parts of the list, in this order. The last three have one entry per tensor. */
typedef enum fxa__touch {
    FXA__TOUCH_OPERAND, /* slots of operands */
    FXA__TOUCH_TABLE,   /* the other slots */
    FXA__TOUCH_OTHER,   /* 0 = workspace, 1 = params, 2 = dparams, 3 = bprop_params */
    FXA__TOUCH_TENSOR,
    FXA__TOUCH_DTENSOR,
    FXA__TOUCH_BPROP
} fxa__touch;

typedef struct fxa__touched {
    const char *kind, *name; /* e.g. "slot" and "DQ", "dtensors" and "bias" */
    bool written;
    fxa__region region; /* data NULL = the run does not use it */
    fxa__touch part;
    size_t index; /* index within the part; for slots, the slot */
} fxa__touched;

#define FXA__TOUCH_TABLES (FXA_SLOT_COUNT - FXA_SLOT_Q_LENGTHS)
#define FXA__TOUCH_OTHERS 4
#define FXA__TOUCH_MAX (FXA__OPERAND_COUNT + FXA__TOUCH_TABLES + FXA__TOUCH_OTHERS + 3 * FXA_MAX_TENSORS)

typedef struct fxa__touch_list {
    const fxa_problem *p;
    const fxa_args *args; /* already checked */
    size_t workspace_size;
} fxa__touch_list;

/* Sets *out to entry i of the list. Returns false past its end. */
bool fxa__touch_get(const fxa__touch_list *l, size_t i, fxa__touched *out);

#endif
