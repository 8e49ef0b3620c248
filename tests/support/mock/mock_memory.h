/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the mock device (mock_device.h): blocks between inaccessible pages. A block itself is inaccessible unless
 * opened. Thread-safe.
 */
#ifndef FXA_TESTS_MOCK_MEMORY_H
#define FXA_TESTS_MOCK_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mock_block {
    char *data; /* [size] */
    size_t size;
    int32_t ordinal;
    int users; /* number of calls of mock_block_open without a close */
    char *map;
    size_t mapped;
    struct mock_block *next;
} mock_block;

/* Returns a block that starts `first` bytes after a page boundary; NULL if memory runs out. */
mock_block *mock_block_make(int32_t ordinal, size_t size, size_t first);
/* Frees a block. Returns false, and frees nothing, if it is open. */
bool mock_block_end(mock_block *block);
/* Returns the block that contains an address; NULL for host memory. */
mock_block *mock_block_find(const void *at);
void mock_block_open(mock_block *block);
void mock_block_close(mock_block *block);

#endif
