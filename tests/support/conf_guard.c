/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases between guard pages; see conf_guard.h.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "conf_guard.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* `size` bytes that touch the guard page, given back as the address of the first. NULL: none. */
static unsigned char *guard_alloc(conf_guard *g, size_t size, size_t align) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + align + page - 1) / page * page;
    unsigned char *base = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || g->n_maps == GUARD_MAPS) return NULL;
    g->map[g->n_maps].base = base, g->map[g->n_maps++].size = room + 2 * page;
    if (mprotect(base + page, room, PROT_READ | PROT_WRITE) != 0) return NULL;
    memset(base + page, 0xff, room);
    return base + page + (g->at_end ? (room - size) / align * align : 0);
}

static void guard_lock(conf_guard *g) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *base = g->map[g->n_maps - 1].base;
    (void)mprotect(base + page, g->map[g->n_maps - 1].size - 2 * page, PROT_READ);
}

/* First and last place of the elements relative to the origin; false: there are none. */
static bool guard_extent(const conf_buffer *t, int64_t *lo, int64_t *hi) {
    *lo = *hi = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->n[i] == 0) return false;
        int64_t reach = (t->n[i] - 1) * t->stride[i];
        *(reach < 0 ? lo : hi) += reach;
    }
    return true;
}

/* Moves a buffer; `from`: the bytes it starts with, laid out as its memory. */
static bool guard_move(conf_guard *g, conf_buffer *t, const unsigned char *from, bool lock) {
    int64_t lo, hi, size = (int64_t)fxa_dtype_size(t->dtype);
    bool some = guard_extent(t, &lo, &hi);
    size_t bytes = some ? (size_t)((hi - lo + 1) * size) : 0;
    unsigned char *to = guard_alloc(g, bytes, (size_t)size);
    if (!to) return false;
    if (some) memcpy(to, from + (t->origin - t->memory) + lo * size, bytes);
    if (lock) guard_lock(g);
    t->memory = to, t->origin = to - lo * size, t->bytes = bytes;
    return true;
}

static bool guard_move_ints(conf_guard *g, void **slot, int64_t n) {
    if (!*slot) return true;
    unsigned char *to = guard_alloc(g, (size_t)n * sizeof(int32_t), sizeof(int32_t));
    if (!to) return false;
    memcpy(to, *slot, (size_t)n * sizeof(int32_t));
    guard_lock(g);
    *slot = to;
    return true;
}

static bool guard_is_output(conf_case *c, fxa_pass pass, const conf_buffer *t) {
    const conf_buffer *out;
    for (int i = 0; (out = conf_output(c, pass, i)); i++)
        if (out == t) return true;
    return false;
}

static bool guard_move_all(conf_guard *g, fxa_pass pass) {
    conf_case *c = &g->c;
    for (int i = 0; i < CONF_SLOTS; i++) {
        conf_buffer *t = &c->slot[i];
        bool out = guard_is_output(c, pass, t);
        if (t->memory && !guard_move(g, t, out ? t->before : t->memory, !out)) return false;
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        conf_buffer *t = &c->tensor[i], *dt = &c->dtensor[i];
        if (!guard_move(g, t, t->memory, true)) return false;
        if (!guard_move(g, dt, guard_is_output(c, pass, dt) ? dt->before : dt->memory, false)) return false;
    }
    return true;
}

bool conf_guard_make(conf_guard *g, conf_case *c, const char *engine, fxa_pass pass, bool at_end, size_t workspace) {
    const oracle *x = &c->base.x;
    const fxa_problem *p = &c->base.problem;
    memset(g, 0, sizeof *g);
    g->c = *c, g->at_end = at_end;
    if (!guard_move_all(g, pass)) return false;
    conf_call_make(&g->c, engine, pass, false, &g->call);
    void **slot = g->call.args.slot;
    int64_t pages = p->page_size ? x->b * ((x->sk + p->page_size - 1) / p->page_size) : 0;
    const int64_t count[] = {x->b, x->b, x->b + 1, x->b + 1, pages, x->b, x->hq, x->sq, x->sk, 1, 1, 1, 1, x->b};
    for (int i = FXA_SLOT_LEN_Q; i < FXA_SLOT_COUNT; i++)
        if (!guard_move_ints(g, &slot[i], count[i - FXA_SLOT_LEN_Q])) return false;
    g->workspace = guard_alloc(g, workspace, FXA_WORKSPACE_ALIGN);
    if (!g->workspace) return false;
    g->workspace_size = workspace,
    g->slack = at_end ? (FXA_WORKSPACE_ALIGN - workspace % FXA_WORKSPACE_ALIGN) % FXA_WORKSPACE_ALIGN : 0;
    g->call.args.workspace = g->workspace, g->call.args.workspace_size = workspace;
    return true;
}

void conf_guard_free(conf_guard *g) {
    for (int i = 0; i < g->n_maps; i++) (void)munmap(g->map[i].base, g->map[i].size);
    g->n_maps = 0;
}

bool conf_guard_same(conf_guard *g, conf_case *original, fxa_pass pass) {
    conf_buffer *t, *want;
    for (int i = 0; (t = conf_output(&g->c, pass, i)) && (want = conf_output(original, pass, i)); i++) {
        int64_t at[FXA_MAX_RANK] = {0}, lo, hi, size = (int64_t)fxa_dtype_size(t->dtype);
        if (!guard_extent(t, &lo, &hi)) continue;
        do {
            if (memcmp(t->memory + conf_place(t, at) * size, want->memory + conf_place(want, at) * size,
                       (size_t)size) == 0)
                continue;
            snprintf(original->why, sizeof original->why, "%s[%lld,%lld,%lld,%lld] is another one between guard pages",
                     t->name, (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3]);
            return false;
        } while (conf_next(t, at));
    }
    for (size_t i = 0; i < g->slack; i++)
        if (g->workspace[g->workspace_size + i] != 0xff) {
            snprintf(original->why, sizeof original->why, "byte %zu behind the workspace was written", i);
            return false;
        }
    return true;
}
