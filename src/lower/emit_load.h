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
/* Writes the expression that reads the element at the address of fxa__emit_address; the value of the expression is 0
 * out of bounds. The text calls fxa__get_<get> or fxa__take_<get> of program_ops.h; `get` is the name of a dtype, or
 * "whole" for all 64 bits of an i64. */
void fxa__emit_element(const fxa__emit *e, int32_t node, const char *get, fxa__writer *w);

/* Returns true if a node has a statement and a variable v<node>; false if the node is written in place as an
 * operand. */
bool fxa__emit_has_statement(const fxa__emit *e, int32_t node);
/* Returns true if n is a power that is written as a product. */
bool fxa__emit_is_small_power(const fxa__emit *e, const fxa__node *n);
/* Returns the operand number, 0 or 1, of the product that is fused into a float sum or difference; -1 = none. Products
 * computed at another level than the sum are not fused. */
int fxa__emit_product(const fxa__emit *e, int32_t node);

#endif
