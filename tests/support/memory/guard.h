/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between two inaccessible pages: an access beyond the data that reaches a page faults at once. Bytes that
 * alignment leaves between data and pages are filled, and verified at the end.
 *
 *   | page | filled | data (size bytes) | page |     at_end
 *   | page | data (size bytes) | filled | page |     at the start
 */
#ifndef FXA_TESTS_GUARD_H
#define FXA_TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

enum { GUARD_FILL = 0xff }; /* byte that is NaN in every float type when repeated */

typedef struct guard {
    unsigned char *data; /* [size] data, filled at first; NULL = none */
    size_t size;
    unsigned char *map; /* mapped memory, from the first page to the end of the last */
    size_t mapped;
} guard;

/* Returns `size` bytes that end at the page after them (up to the alignment), or start at the page before them. Aborts
 * if memory runs out. */
guard guard_make(size_t size, size_t align, bool at_end);
/* Like guard_make, but data is NULL if memory runs out. */
guard guard_try(size_t size, size_t align, bool at_end);
/* guard_shut makes all pages inaccessible; guard_again makes them accessible as guard_try would for a new size, which
 * is faster than mapping new pages. Both return false on failure, guard_again also if the new size needs another number
 * of pages. */
bool guard_shut(const guard *g);
bool guard_again(guard *g, size_t size, size_t align, bool at_end);
/* Returns `size` bytes that end exactly at the inaccessible page. */
guard guard_open(size_t size);
/* Makes the data read-only. */
void guard_lock(const guard *g);
/* Makes the data inaccessible (hidden), or accessible again. */
void guard_hide(const guard *g, bool hidden);
/* Finds the first byte around the data that was written; *at is its offset from the data. Returns false if there is
 * none. */
bool guard_stray(const guard *g, ptrdiff_t *at);
/* Fills the bytes around the data again, for the next guard_stray. */
void guard_mend(const guard *g);
/* Returns true if a child process that reads `byte`, or with write_it writes it, dies. */
bool guard_child_dies(volatile void *byte, bool write_it);
/* Frees the memory. Aborts if a byte around the data was written. */
void guard_close(guard *g);
/* Frees the memory without checking the bytes around the data. */
void guard_drop(guard *g);

#endif
