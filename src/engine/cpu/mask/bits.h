/* SPDX-License-Identifier: Apache-2.0
 *
 * Between mask/sub_blocks.c and mask/bits.c; see mask/sub_blocks.h.
 */
#ifndef FXA_ENGINE_CPU_MASK_BITS_H
#define FXA_ENGINE_CPU_MASK_BITS_H

#include "sub_blocks.h"

/* Columns of a granule: a power of two that a word has whole ones of; the keys of a block are at most 64 of them. */
int64_t fxa__cpu_granule(const fxa__cpu_kernels *kernels);
/* The bits of the cut's tile and block, from where they are shared or computed now. */
const fxa__cpu_mask_bits *fxa__cpu_mask_bits_get(fxa__cpu_masked_tile *cut);

#endif
