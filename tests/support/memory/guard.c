/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between inaccessible pages (guard.h).
 */
#define _DEFAULT_SOURCE /* for MAP_ANONYMOUS */
#include "guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t guard_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t guard_room(size_t size, size_t align) {
    return (size + align + guard_page() - 1) / guard_page() * guard_page();
}

static void guard_place(guard *g, size_t size, size_t align, bool at_end) {
    size_t room = g->mapped - 2 * guard_page();
    unsigned char *from = g->map + guard_page();
    memset(from, GUARD_FILL, room);
    g->size = size;
    g->data = from + (at_end ? (room - size) / align * align : 0);
}

guard guard_try(size_t size, size_t align, bool at_end) {
    size_t page = guard_page(), room = guard_room(size, align);
    guard g = {.mapped = room + 2 * page};
    g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED) return (guard){0};
    if (mprotect(g.map, page, PROT_NONE) || mprotect(g.map + page + room, page, PROT_NONE)) {
        (void)munmap(g.map, g.mapped);
        return (guard){0};
    }
    guard_place(&g, size, align, at_end);
    return g;
}

bool guard_again(guard *g, size_t size, size_t align, bool at_end) {
    size_t page = guard_page(), room = guard_room(size, align);
    if (!g->data || g->mapped != room + 2 * page) return false;
    if (mprotect(g->map + page, room, PROT_READ | PROT_WRITE)) return false;
    guard_place(g, size, align, at_end);
    return true;
}

bool guard_shut(const guard *g) { return mprotect(g->map, g->mapped, PROT_NONE) == 0; }

guard guard_make(size_t size, size_t align, bool at_end) {
    guard g = guard_try(size, align, at_end);
    if (!g.data) abort();
    return g;
}

guard guard_open(size_t size) { return guard_make(size, 1, true); }

void guard_lock(const guard *g) {
    size_t page = guard_page();
    if (mprotect(g->map + page, g->mapped - 2 * page, PROT_READ)) abort();
}

void guard_hide(const guard *g, bool hidden) {
    size_t page = guard_page();
    if (mprotect(g->map + page, g->mapped - 2 * page, hidden ? PROT_NONE : PROT_READ | PROT_WRITE)) abort();
}

bool guard_stray(const guard *g, ptrdiff_t *at) {
    size_t page = guard_page();
    const unsigned char *end = g->map + g->mapped - page;
    for (const unsigned char *p = g->map + page; p < end; p++) {
        if (p == g->data) p += g->size;
        if (p == end || *p == GUARD_FILL) continue;
        *at = p - g->data;
        return true;
    }
    return false;
}

void guard_mend(const guard *g) {
    size_t page = guard_page();
    unsigned char *begin = g->map + page, *end = g->map + g->mapped - page;
    memset(begin, GUARD_FILL, (size_t)(g->data - begin));
    memset(g->data + g->size, GUARD_FILL, (size_t)(end - g->data) - g->size);
}

void guard_close(guard *g) {
    ptrdiff_t at;
    if (!g->data) return;
    if (guard_stray(g, &at)) {
        fprintf(stderr, "byte %td of a buffer of %zu was written\n", at, g->size);
        abort();
    }
    guard_drop(g);
}

void guard_drop(guard *g) {
    if (g->data) (void)munmap(g->map, g->mapped);
    memset(g, 0, sizeof *g);
}

bool guard_child_dies(volatile void *at, bool write_it) {
    volatile unsigned char *byte = at;
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        if (write_it)
            *byte = 1;
        else
            (void)*byte;
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}
