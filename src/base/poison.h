/* SPDX-License-Identifier: Apache-2.0
 *
 * Poison: contents of a workspace before a run in builds with asserts (invariant.h). A run that reads memory before
 * writing it has wrong results: poison is NaN as f64, f32, f16 and bf16, 2146533361 as an int, and true as a bool. A
 * red zone (carve.h) that still holds poison after a run was not written.
 */
#ifndef FXA_BASE_POISON_H
#define FXA_BASE_POISON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FXA__POISON 0x7FF1 /* 16-bit pattern, repeated from the start of a workspace */

static inline unsigned char fxa__poison_byte(size_t at) {
    const union {
        uint16_t word;
        unsigned char byte[2];
    } poison = {FXA__POISON};
    return poison.byte[at % 2];
}

static inline void fxa__poison_fill(void *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)memory)[i] = fxa__poison_byte(i);
}

/* Returns true if bytes begin to end - 1 of the memory all hold poison. */
static inline bool fxa__poison_holds(const void *memory, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++)
        if (((const unsigned char *)memory)[i] != fxa__poison_byte(i)) return false;
    return true;
}

#endif
