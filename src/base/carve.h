/* SPDX-License-Identifier: Apache-2.0
 *
 * One piece of memory cut into parts. A layout is a function that takes its parts from a carver, one after the other:
 * with a base it gets their places, without one it is only counted what they need, so size and places cannot disagree.
 * Every part begins at a multiple of FXA__CARVE_ALIGN, if the base does.
 */
#ifndef FXA_BASE_CARVE_H
#define FXA_BASE_CARVE_H

#include "num.h"

#define FXA__CARVE_ALIGN 64 /* bytes: a cache line, and the widest vector */

typedef struct fxa__carver {
    char *base; /* NULL: only count */
    size_t used;
    bool failed; /* some part, or all of them together, did not fit in a size_t: used means nothing */
} fxa__carver;

static inline fxa__carver fxa__carver_make(void *base) { return (fxa__carver){.base = base}; }

/* The next n elements; NULL when only counting, or after a failure. A negative n is one: sizes that overflowed. */
static inline void *fxa__carve(fxa__carver *c, int64_t n, size_t element) {
    size_t size = 0, end = 0;
    c->failed = c->failed || n < 0 || !fxa__mul_size((size_t)n, element, &size) ||
                !fxa__add_size(size, FXA__CARVE_ALIGN - 1, &size) ||
                !fxa__add_size(c->used, size / FXA__CARVE_ALIGN * FXA__CARVE_ALIGN, &end);
    if (c->failed) return NULL;
    void *part = c->base ? c->base + c->used : NULL;
    c->used = end;
    return part;
}

/* The same for [rows,columns]. */
static inline void *fxa__carve_matrix(fxa__carver *c, int64_t rows, int64_t columns, size_t element) {
    int64_t n = 0;
    return fxa__carve(c, fxa__mul_i64(rows, columns, &n) ? n : -1, element);
}

#endif
