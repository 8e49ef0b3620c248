/* SPDX-License-Identifier: Apache-2.0
 *
 * Between emit.c, emit_load.c, which has the text of loads, and emit_weight.c.
 */
#ifndef FXA_LOWER_EMIT_LOAD_H
#define FXA_LOWER_EMIT_LOAD_H

#include "emit.h"

/* Statements that say where a load's element is: its offset, o<node>, and whether it is inside, i<node>. */
void fxa__emit_place(const fxa__emit *e, int32_t node, fxa__writer *w);
/* The element there; get: how its dtype is read. */
void fxa__emit_element(const fxa__emit *e, int32_t node, const char *get, fxa__writer *w);

/* Whether a node is a value of its own in the text; whether a power is written as a product. */
bool fxa__emit_has_statement(const fxa__emit *e, int32_t node);
bool fxa__emit_is_small_power(const fxa__emit *e, const fxa__node *n);

#endif
