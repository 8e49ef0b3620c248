/* SPDX-License-Identifier: Apache-2.0
 *
 * Mask bits of a tile and a key block, for sub_blocks.c. The data structures are in sub_blocks.h.
 */
#ifndef FXA_ENGINE_CPU_MASK_BITS_H
#define FXA_ENGINE_CPU_MASK_BITS_H

#include "sub_blocks.h"

/* Returns the columns of a granule: a power of two that divides 64. A key block has at most 64 granules. */
int64_t fxa__cpu_granule(const fxa__cpu_kernels *kernels);
/* Returns the bits of the worker's tile and key block: shared ones, or computed now. They are valid until the next
 * call. */
const fxa__cpu_mask_bits *fxa__cpu_mask_bits_get(fxa__cpu_masked_tile *masked);

#endif
