/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of the mock device's memory (mock_memory.h).
 */
#define _DEFAULT_SOURCE /* for MAP_ANONYMOUS */
#include "mock_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mock_blocks_mutex = PTHREAD_MUTEX_INITIALIZER;
static mock_block *mock_blocks;

static void mock_block_protect(const mock_block *b, int protection) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (mprotect(b->map + page, b->mapped - 2 * page, protection) != 0) abort();
}

mock_block *mock_block_make(int32_t ordinal, size_t size, size_t first) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (first + size + page - 1) / page * page;
    mock_block *b = size > SIZE_MAX / 2 ? NULL : calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (mock_block){.size = size, .ordinal = ordinal, .mapped = inside + 2 * page};
    b->map = mmap(NULL, b->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->data = b->map + page + first;
    mock_block_protect(b, PROT_READ | PROT_WRITE);
    memset(b->map + page, 0xff, inside);
    mock_block_protect(b, PROT_NONE);
    pthread_mutex_lock(&mock_blocks_mutex);
    b->next = mock_blocks;
    mock_blocks = b;
    pthread_mutex_unlock(&mock_blocks_mutex);
    return b;
}

bool mock_block_end(mock_block *block) {
    pthread_mutex_lock(&mock_blocks_mutex);
    bool closed = block->users == 0;
    mock_block **at = &mock_blocks;
    while (*at != block) at = &(*at)->next;
    *at = block->next;
    pthread_mutex_unlock(&mock_blocks_mutex);
    munmap(block->map, block->mapped);
    free(block);
    return closed;
}

mock_block *mock_block_find(const void *at) {
    uintptr_t address = (uintptr_t)at;
    pthread_mutex_lock(&mock_blocks_mutex);
    mock_block *b = mock_blocks;
    while (b && !(address >= (uintptr_t)b->data && address < (uintptr_t)b->data + b->size)) b = b->next;
    pthread_mutex_unlock(&mock_blocks_mutex);
    return b;
}

void mock_block_open(mock_block *block) {
    pthread_mutex_lock(&mock_blocks_mutex);
    if (block->users++ == 0) mock_block_protect(block, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&mock_blocks_mutex);
}

void mock_block_close(mock_block *block) {
    pthread_mutex_lock(&mock_blocks_mutex);
    if (--block->users == 0) mock_block_protect(block, PROT_NONE);
    pthread_mutex_unlock(&mock_blocks_mutex);
}
