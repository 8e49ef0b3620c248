/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of the mock device (mock_device.h): blocks between pages that fault, closed but while somebody has opened
 * them. Safe to use from many threads.
 */
#ifndef FXA_TESTS_MOCK_MEMORY_H
#define FXA_TESTS_MOCK_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mock_block {
    char *data; /* of `size` bytes */
    size_t size;
    int32_t ordinal;
    int users; /* who have opened it */
    char *map;
    size_t mapped;
    struct mock_block *next;
} mock_block;

/* `first` bytes past a page. NULL: the system has no memory. */
mock_block *mock_block_make(int32_t ordinal, size_t size, size_t first);
/* False: it is open. */
bool mock_block_end(mock_block *block);
/* The block that the byte at an address lies in, or NULL; then it is memory of the host. */
mock_block *mock_block_find(const void *at);
void mock_block_open(mock_block *block);
void mock_block_close(mock_block *block);

#endif
