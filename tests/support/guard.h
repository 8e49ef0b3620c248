/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that ends at a page which cannot be touched: a read or write past its end is a fault at once. The includer
 * defines _DEFAULT_SOURCE first.
 */
#ifndef FXA_TESTS_GUARD_H
#define FXA_TESTS_GUARD_H

#include "t.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct guard {
    unsigned char *base, *data;
    size_t room, size;
} guard;

enum { GUARD_PAGE = 4096, GUARD_FILL = 0xa5 };

/* `size` bytes right before a page that cannot be touched; the bytes before them are known. */
static inline guard guard_open(size_t size) {
    guard g = {.size = size, .room = (size / GUARD_PAGE + 2) * GUARD_PAGE};
    g.base = mmap(NULL, g.room + GUARD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.base == MAP_FAILED || mprotect(g.base + g.room, GUARD_PAGE, PROT_NONE) != 0) abort();
    memset(g.base, GUARD_FILL, g.room);
    g.data = g.base + g.room - size;
    return g;
}
static inline void guard_close(guard *g) {
    for (unsigned char *p = g->base; p < g->data; p++)
        if (*p != GUARD_FILL) {
            T_FAIL("byte %td before a result was written\n", p - g->data);
            break;
        }
    (void)munmap(g->base, g->room + GUARD_PAGE);
}

#endif
