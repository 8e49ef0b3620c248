/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages in the backward pass: K and V are fetched from them into the workspace, where the kernels have every entry by
 * itself, and dK and dV go back to the whole pool; see common/paged_grads.cu. The work besides copies is linear in the
 * table of pages, whoever shares what.
 */
#include "call.h"

#include "../../../base/num.h"

enum { PAGES_THREADS = 256, PAGES_BLOCKS = 4096 };

bool fxa__cu_pages_are_fetched(const fxa_problem *p) { return (p->flags & FXA_PAGED) && p->pass == FXA_BACKWARD; }

static fxa_status pages_launch(fxa__cu_call *c, int function, int64_t work, void **params) {
    return fxa__cu_launch(c, FXA__CU_PAGES, function, (fxa__cu_grid){fxa__min_i64(work, PAGES_BLOCKS), 1, 1},
                          PAGES_THREADS, params);
}

static int64_t pages_elements(const struct FxaStage *s) { return s->size[0] * s->size[1] * s->size[2] * s->size[3]; }

fxa_status fxa__cu_pages_fetch(fxa__cu_call *c, struct FxaStage *s) {
    void *params[] = {&c->a, s};
    return pages_launch(c, FXA__CU_PAGES_FETCH, fxa__div_up(pages_elements(s), PAGES_THREADS), params);
}

fxa_status fxa__cu_pages_list(fxa__cu_call *c) {
    const fxa_problem *p = &c->p->in;
    const fxa__cu_users *u = &c->at.users;
    int *count = u->count, *end = u->end, *list = u->list, *used = u->used, pages = (int)p->n_pages;
    int64_t places = fxa__div_up(p->b * c->a.pages_b, PAGES_THREADS);
    void *counting[] = {&c->a, &count}, *room[] = {&count, &end, &used, &pages}, *listing[] = {&c->a, &end, &list};
    void *sorting[] = {&count, &end, &list, &pages};
    FXA_TRY(pages_launch(c, FXA__CU_PAGES_COUNT, places, counting));
    FXA_TRY(pages_launch(c, FXA__CU_PAGES_ROOM, fxa__div_up(pages, PAGES_THREADS), room));
    FXA_TRY(pages_launch(c, FXA__CU_PAGES_LIST, places, listing));
    return pages_launch(c, FXA__CU_PAGES_SORT, pages, sorting);
}

/* s: as for rows of entries; the pool is all of the caller's. */
fxa_status fxa__cu_pages_store(fxa__cu_call *c, struct FxaStage *s) {
    const fxa__cu_users *u = &c->at.users;
    int *count = u->count, *end = u->end, *list = u->list;
    void *params[] = {&c->a, s, &count, &end, &list};
    s->size[0] = c->p->in.n_pages;
    s->size[2] = c->p->in.page_size;
    return pages_launch(c, FXA__CU_PAGES_STORE, fxa__div_up(pages_elements(s), PAGES_THREADS), params);
}
