/* SPDX-License-Identifier: Apache-2.0
 *
 * Poison: what a workspace holds before a run in builds with asserts (invariant.h), so that a read of memory that
 * nothing has written shows in results: NaN as f64, f32, f16 and bf16, 2146533361 as an int, true as a bool. Bytes that
 * still hold it after a run were not written, which is how parts of a workspace are kept apart (carve.h).
 */
#ifndef FXA_BASE_POISON_H
#define FXA_BASE_POISON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FXA__POISON 0x7FF1 /* every two bytes, from the beginning of a workspace on */

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

/* Whether bytes begin..end of that memory hold poison. */
static inline bool fxa__poison_holds(const void *memory, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++)
        if (((const unsigned char *)memory)[i] != fxa__poison_byte(i)) return false;
    return true;
}

#endif
