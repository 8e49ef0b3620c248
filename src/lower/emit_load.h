/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions shared by emit.c, emit_levels.c, emit_load.c (text of loads) and emit_weight.c (compile-time cost).
 */
#ifndef FXA_LOWER_EMIT_LOAD_H
#define FXA_LOWER_EMIT_LOAD_H

#include "emit.h"

/* Writes the statements that compute a load's address: its offset o<node>, and i<node>, which is 1 if the load is in
 * bounds. i<node> is left out if all indices are proven in bounds. */
void fxa__emit_address(const fxa__emit *e, int32_t node, fxa__writer *w);
/* Writes the expression that reads the element at the address of fxa__emit_address; the expression is 0 out of bounds.
 * get: suffix of the function fxa__get_ or fxa__take_ of program_ops.h, the name of a dtype or "whole". */
void fxa__emit_element(const fxa__emit *e, int32_t node, const char *get, fxa__writer *w);

/* Returns true if a node has a statement and a variable v<node>; false if it is written in place. */
bool fxa__emit_has_statement(const fxa__emit *e, int32_t node);
/* Returns true if n is a power that is written as a product. */
bool fxa__emit_is_small_power(const fxa__emit *e, const fxa__node *n);
/* Returns which operand (0 or 1) of a float sum or difference is a product that is fused into it; -1 if none. Products
 * computed at another level are not fused. */
int fxa__emit_product(const fxa__emit *e, int32_t node);

#endif
