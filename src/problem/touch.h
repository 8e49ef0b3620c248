/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything a run touches, as a list of regions by number (bind_overlap.c): for the check that outputs lie apart, and
 * for what has to go to a device and back (plan/stage.c).
 */
#ifndef FXA_PROBLEM_TOUCH_H
#define FXA_PROBLEM_TOUCH_H

#include "problem_private.h"

/* The list has these parts, in this order; the last three have as many entries as there are tensors. */
typedef enum fxa__touch {
    FXA__TOUCH_OPERAND, /* slots */
    FXA__TOUCH_TABLE,   /* slots past the operands */
    FXA__TOUCH_OTHER,   /* 0: workspace, 1: params, 2: dparams, 3: bprop_params */
    FXA__TOUCH_TENSOR,
    FXA__TOUCH_DTENSOR,
    FXA__TOUCH_BPROP
} fxa__touch;

typedef struct fxa__touched {
    const char *kind, *name; /* "slot" "DQ", "dtensors" "bias", ... */
    bool written;
    fxa__region region; /* no data: not touched */
    fxa__touch part;
    size_t index; /* in its part; of slots the slot */
} fxa__touched;

#define FXA__TOUCH_TABLES (FXA_SLOT_COUNT - FXA_SLOT_Q_LENGTHS)
#define FXA__TOUCH_OTHERS 4
#define FXA__TOUCH_MAX (FXA__OPERAND_COUNT + FXA__TOUCH_TABLES + FXA__TOUCH_OTHERS + 3 * FXA_MAX_TENSORS)

typedef struct fxa__touch_list {
    const fxa_problem *p;
    const fxa_args *args; /* checked */
    size_t workspace_size;
} fxa__touch_list;

/* Number `i` of the list; false past its end. */
bool fxa__touch_get(const fxa__touch_list *l, size_t i, fxa__touched *out);

#endif
