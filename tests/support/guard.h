/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between two pages that cannot be touched: a read or write past that end of it which touches a page is a fault
 * at once. What alignment leaves up to the pages is filled, and checked in the end.
 */
#ifndef FXA_TESTS_GUARD_H
#define FXA_TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

enum { GUARD_FILL = 0xff }; /* NaN in every float type */

typedef struct guard {
    unsigned char *data; /* `size` bytes, filled at first; NULL: there is none */
    size_t size;
    unsigned char *map; /* from the first page to the end of the last */
    size_t mapped;
} guard;

/* `size` bytes that end at the page behind them (up to the alignment), or begin at the page before them. */
guard guard_make(size_t size, size_t align, bool at_end);
/* The same, or no data where there is no memory for it. */
guard guard_try(size_t size, size_t align, bool at_end);
/* From now on it cannot be touched; guard_again makes it what guard_try would, where as many pages are wanted: false,
 * they are not. So pages are kept that the system would be slow to give. */
bool guard_shut(const guard *g);
bool guard_again(guard *g, size_t size, size_t align, bool at_end);
/* The usual case: ends at the page, to the byte. */
guard guard_open(size_t size);
/* From now on it can only be read. */
void guard_lock(const guard *g);
/* From now on it cannot be touched, or can be again. */
void guard_hide(const guard *g, bool hidden);
/* The first byte around the data that was written, relative to it; false: none was. */
bool guard_stray(const guard *g, ptrdiff_t *at);
/* As if nobody had written around the data. */
void guard_mend(const guard *g);
/* Whether a child that reads or writes this byte dies of it. */
bool guard_child_dies(volatile void *byte, bool write_it);
/* Stops the process if a byte around the data was written. */
void guard_close(guard *g);
/* Without a look at what is around the data. */
void guard_drop(guard *g);

#endif
