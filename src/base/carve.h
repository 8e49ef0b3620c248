/* SPDX-License-Identifier: Apache-2.0
 *
 * Divides one block of memory into parts. A layout is a function that requests its parts from a carver, one after the
 * other. A carver with a base returns the addresses of the parts; a carver without a base only adds up sizes. One
 * layout function therefore computes both size and addresses. If the base is a multiple of FXA__CARVE_ALIGN, so is the
 * address of every part.
 *
 *   | part 1 | pad or zone | part 2 | pad or zone | ...
 *   0                      multiple of 64
 *
 * In builds with asserts (invariant.h) a red zone directly follows every part that is not empty. The memory is filled
 * with poison before a run (plan/run.c). After the run the layout function is called once more, with a carver of
 * fxa__carver_after, which ends the process if a red zone was written. Sanitizers do not detect such writes, because
 * the block is one allocation.
 */
#ifndef FXA_BASE_CARVE_H
#define FXA_BASE_CARVE_H

#include "invariant.h"
#include "num.h"
#include "poison.h"

#define FXA__CARVE_ALIGN 64 /* alignment of parts in bytes: a cache line, and the widest vector */
#if FXA_ASSERT
#define FXA__CARVE_ZONE 64 /* minimum size of a red zone in bytes */
#else
#define FXA__CARVE_ZONE 0
#endif

typedef struct fxa__carver {
    char *base;        /* block of memory; NULL = only sizes are computed */
    const char *after; /* with asserts: memory of a finished run, whose red zones are verified; NULL = none */
    size_t used;
    bool failed; /* true = a size exceeded size_t; `used` is then meaningless */
} fxa__carver;

static inline fxa__carver fxa__carver_make(void *base) { return (fxa__carver){.base = base}; }

/* Returns a carver that adds up sizes and asserts that no red zone of `memory` was written. */
static inline fxa__carver fxa__carver_after(const void *memory) { return (fxa__carver){.after = memory}; }

/* Returns a carver for the sub-parts of the next part of c. The new carver adds up sizes, and verifies red zones if c
 * does. */
static inline fxa__carver fxa__carver_within(const fxa__carver *c) {
    return (fxa__carver){.after = c->after ? c->after + c->used : NULL};
}

/* Returns the next n elements; NULL if the carver has no memory (base is NULL) or has failed. The carver fails for a
 * negative n, which callers pass for a size that overflowed. */
static inline void *fxa__carve(fxa__carver *c, int64_t n, size_t element) {
    size_t size = 0, whole = 0, end = 0;
    c->failed = c->failed || n < 0 || __builtin_mul_overflow(n, element, &size) ||
                !fxa__add_size(size, (size ? FXA__CARVE_ZONE : 0) + FXA__CARVE_ALIGN - 1, &whole) ||
                !fxa__add_size(c->used, whole / FXA__CARVE_ALIGN * FXA__CARVE_ALIGN, &end);
    if (c->failed) return NULL;
    void *part = c->base ? c->base + c->used : NULL;
    /* fires if a run wrote past the end of the part */
    FXA__ASSERT(!c->after || fxa__poison_holds(c->after, c->used + size, end));
    c->used = end;
    return part;
}

/* Returns the next rows * columns elements, like fxa__carve. */
static inline void *fxa__carve_matrix(fxa__carver *c, int64_t rows, int64_t columns, size_t element) {
    int64_t n = 0;
    return fxa__carve(c, fxa__mul_i64(rows, columns, &n) ? n : -1, element);
}

#endif
