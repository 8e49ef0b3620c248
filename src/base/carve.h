/* SPDX-License-Identifier: Apache-2.0
 *
 * One piece of memory cut into parts. A layout is a function that takes its parts from a carver, one after the other:
 * with a base it gets their places, without one it is only counted what they need, so size and places cannot disagree.
 * Every part begins at a multiple of FXA__CARVE_ALIGN, if the base does.
 *
 * In builds with asserts (invariant.h) a red zone lies behind every part that is not empty, from its last byte on. The
 * memory is filled with poison before a run (plan/run.c), and after it the same layout is carved once more by
 * fxa__carver_after, which ends the process where a zone holds anything else: no sanitizer tells a write past a part
 * from one into the next.
 */
#ifndef FXA_BASE_CARVE_H
#define FXA_BASE_CARVE_H

#include "invariant.h"
#include "num.h"
#include "poison.h"

#define FXA__CARVE_ALIGN 64 /* bytes: a cache line, and the widest vector */
#if FXA_ASSERT
#define FXA__CARVE_ZONE 64 /* bytes, at least */
#else
#define FXA__CARVE_ZONE 0
#endif

typedef struct fxa__carver {
    char *base;        /* NULL: only count */
    const char *after; /* with asserts: memory after a run, whose zones are looked at; NULL: none is */
    size_t used;
    bool failed; /* some part, or all of them together, did not fit in a size_t: used means nothing */
} fxa__carver;

static inline fxa__carver fxa__carver_make(void *base) { return (fxa__carver){.base = base}; }

/* Only counts, and asserts that no part of this memory was written past its end since it was filled with poison. */
static inline fxa__carver fxa__carver_after(const void *memory) { return (fxa__carver){.after = memory}; }

/* Of the parts of a part: one that counts, or looks, where the next part of c will be. */
static inline fxa__carver fxa__carver_within(const fxa__carver *c) {
    return (fxa__carver){.after = c->after ? c->after + c->used : NULL};
}

/* The next n elements; NULL when only counting, or after a failure. A negative n is one: sizes that overflowed. */
static inline void *fxa__carve(fxa__carver *c, int64_t n, size_t element) {
    size_t size = 0, whole = 0, end = 0;
    c->failed = c->failed || n < 0 || __builtin_mul_overflow(n, element, &size) ||
                !fxa__add_size(size, (size ? FXA__CARVE_ZONE : 0) + FXA__CARVE_ALIGN - 1, &whole) ||
                !fxa__add_size(c->used, whole / FXA__CARVE_ALIGN * FXA__CARVE_ALIGN, &end);
    if (c->failed) return NULL;
    void *part = c->base ? c->base + c->used : NULL;
    FXA__ASSERT(!c->after || fxa__poison_holds(c->after, c->used + size, end)); /* else it was written past its end */
    c->used = end;
    return part;
}

/* The same for [rows,columns]. */
static inline void *fxa__carve_matrix(fxa__carver *c, int64_t rows, int64_t columns, size_t element) {
    int64_t n = 0;
    return fxa__carve(c, fxa__mul_i64(rows, columns, &n) ? n : -1, element);
}

#endif
