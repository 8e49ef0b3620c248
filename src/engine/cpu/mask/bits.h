/* SPDX-License-Identifier: Apache-2.0
 *
 * Between mask/sub_blocks.c and mask/bits.c; see mask/sub_blocks.h.
 */
#ifndef FXA_ENGINE_CPU_CPU_BITS_H
#define FXA_ENGINE_CPU_CPU_BITS_H

#include "sub_blocks.h"

/* Columns of a granule: a power of two that a word has whole ones of; the keys of a block are at most 64 of them. */
int64_t fxa__cpu_bits_granule(const fxa__cpu_kernels *kernels);
/* The bits of the cut's tile and block, from where they are kept or computed now. */
const fxa__cpu_bits *fxa__cpu_bits_get(fxa__cpu_cut *cut);

#endif
