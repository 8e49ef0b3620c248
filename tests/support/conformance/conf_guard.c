/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases between guard pages (conf_guard.h).
 */
#include "conf_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Allocates the case's next guarded buffer: `size` bytes next to an inaccessible page. */
static guard *guard_next(conf_guard *g, size_t size, size_t align) {
    if (g->count == CONF_GUARDS) abort();
    g->memory[g->count] = guard_make(size, align, g->at_end);
    return &g->memory[g->count++];
}

/* Finds the offsets of the first and last element from the origin. Returns false if the buffer has no element. */
static bool guard_extent(const conf_buffer *t, int64_t *lo, int64_t *hi) {
    *lo = *hi = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->n[i] == 0) return false;
        int64_t reach = (t->n[i] - 1) * t->stride[i];
        *(reach < 0 ? lo : hi) += reach;
    }
    return true;
}

/* Moves a buffer next to an inaccessible page. from: initial contents, in the layout of the buffer's memory. */
static void guard_move(conf_guard *g, conf_buffer *t, const unsigned char *from, bool lock) {
    int64_t lo, hi, size = (int64_t)fxa_dtype_size(t->dtype);
    bool some = guard_extent(t, &lo, &hi);
    size_t bytes = some ? (size_t)((hi - lo + 1) * size) : 0;
    guard *to = guard_next(g, bytes, (size_t)size);
    if (some) memcpy(to->data, from + (t->origin - t->memory) + lo * size, bytes);
    if (lock) guard_lock(to);
    t->memory = to->data, t->origin = to->data - lo * size, t->bytes = bytes;
}

static void guard_move_ints(conf_guard *g, void **slot, int64_t n) {
    if (!*slot) return;
    guard *to = guard_next(g, (size_t)n * sizeof(int32_t), sizeof(int32_t));
    memcpy(to->data, *slot, to->size);
    guard_lock(to);
    *slot = to->data;
}

static bool guard_is_output(conf_case *c, fxa_pass pass, const conf_buffer *t) {
    const conf_buffer *out;
    for (int i = 0; (out = conf_output(c, pass, i)); i++)
        if (out == t) return true;
    return false;
}

static void guard_move_all(conf_guard *g, fxa_pass pass) {
    conf_case *c = &g->c;
    for (int i = 0; i < CONF_SLOTS; i++) {
        conf_buffer *t = &c->slot[i];
        bool out = guard_is_output(c, pass, t);
        if (t->memory) guard_move(g, t, out ? t->before : t->memory, !out);
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        conf_buffer *t = &c->tensor[i], *dt = &c->dtensor[i];
        guard_move(g, t, t->memory, true);
        guard_move(g, dt, guard_is_output(c, pass, dt) ? dt->before : dt->memory, false);
    }
}

void conf_guard_make(conf_guard *g, conf_case *c, const char *engine, fxa_pass pass, bool at_end, size_t workspace) {
    const oracle *x = &c->base.x;
    const fxa_problem *p = &c->base.data.problem;
    memset(g, 0, sizeof *g);
    g->c = *c, g->at_end = at_end;
    guard_move_all(g, pass);
    conf_call_make(&g->c, engine, pass, false, &g->call);
    void **slot = g->call.args.slot;
    int64_t pages = p->page_size ? x->b * ((x->sk + p->page_size - 1) / p->page_size) : 0;
    const int64_t count[] = {x->b, x->b, x->b + 1, x->b + 1, pages, x->b, x->hq, x->sq, x->sk, 1, 1, 1, 1, x->b};
    for (int i = FXA_SLOT_Q_LENGTHS; i <= FXA_SLOT_Q_START; i++)
        guard_move_ints(g, &slot[i], count[i - FXA_SLOT_Q_LENGTHS]);
    g->call.args.workspace = guard_next(g, workspace, FXA_WORKSPACE_ALIGN)->data;
    g->call.args.workspace_size = workspace;
}

void conf_guard_free(conf_guard *g) {
    while (g->count > 0) guard_close(&g->memory[--g->count]);
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
    for (int i = 0; i < g->count; i++) {
        ptrdiff_t stray;
        if (!guard_stray(&g->memory[i], &stray)) continue;
        snprintf(original->why, sizeof original->why, "byte %td of a buffer of %zu was written", stray,
                 g->memory[i].size);
        return false;
    }
    return true;
}
