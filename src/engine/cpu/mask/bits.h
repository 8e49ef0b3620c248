/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares the functions that give sub_blocks.c the mask bits of a tile and a key block. sub_blocks.h has the data
 * structures.
 */
#ifndef FXA_ENGINE_CPU_MASK_BITS_H
#define FXA_ENGINE_CPU_MASK_BITS_H

#include "sub_blocks.h"

/* Returns the number of columns of a granule (a group of columns at whose ends products may start or end): a power of
 * two that divides 64. A key block has at most 64 granules. */
int64_t fxa__cpu_granule(const fxa__cpu_kernels *kernels);
/* Returns the mask bits of the worker's tile and key block, from the shared cache or computed by this call. They are
 * valid until the next call. */
const fxa__cpu_mask_bits *fxa__cpu_mask_bits_get(fxa__cpu_masked_tile *masked);

#endif
