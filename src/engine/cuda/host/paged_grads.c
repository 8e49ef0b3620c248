/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages in the backward pass: K and V are gathered from the pages into the workspace, where each batch entry is
 * contiguous; dK and dV are added to the page pool afterwards (common/paged_grads.cu). The work besides copying is
 * linear in the size of the page table, however pages are shared.
 */
#include "call.h"

#include "../../../base/num.h"

enum { PAGES_MAX_BLOCKS = 4096 };

bool fxa__cuda_has_gathered_pages(const fxa_problem *p) { return (p->flags & FXA_PAGED) && p->pass == FXA_BACKWARD; }

static fxa_status pages_launch(fxa__cuda_call *c, int function, int64_t work, void **params) {
    return fxa__cuda_launch(c, FXA__CUDA_PAGED_GRADS, function,
                            (fxa__cuda_grid){fxa__min_i64(work, PAGES_MAX_BLOCKS), 1, 1}, FXA_HELPER_THREADS, params);
}

static int64_t pages_elements(const struct FxaConvert *s) { return s->size[0] * s->size[1] * s->size[2] * s->size[3]; }

fxa_status fxa__cuda_pages_gather(fxa__cuda_call *c, struct FxaConvert *s) {
    void *params[] = {&c->a, s};
    return pages_launch(c, FXA__CUDA_PAGES_GATHER, fxa__div_up(pages_elements(s), FXA_HELPER_THREADS), params);
}

fxa_status fxa__cuda_page_users_list(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    const fxa__cuda_page_users *u = &c->at.users;
    FXA__ASSERT(u->count && u->end && u->list && u->used && c->a.pages_b * p->b <= FXA__CUDA_LENGTH);
    int *count = u->count, *end = u->end, *list = u->list, *used = u->used, pages = (int)p->n_pages;
    int64_t places = fxa__div_up(p->b * c->a.pages_b, FXA_HELPER_THREADS);
    void *counting[] = {&c->a, &count}, *placing[] = {&count, &end, &used, &pages}, *listing[] = {&c->a, &end, &list};
    void *sorting[] = {&count, &end, &list, &pages};
    FXA_TRY(pages_launch(c, FXA__CUDA_PAGES_COUNT, places, counting));
    FXA_TRY(pages_launch(c, FXA__CUDA_PAGES_OFFSETS, fxa__div_up(pages, FXA_HELPER_THREADS), placing));
    FXA_TRY(pages_launch(c, FXA__CUDA_PAGES_LIST, places, listing));
    return pages_launch(c, FXA__CUDA_PAGES_SORT, pages, sorting);
}

/* Adds dK or dV of all batch entries to the pages. s: source, destination and sizes [b, h, s, d] of dK or dV; the
 * function replaces the size b by the number of pages, and the size s by the page size. */
fxa_status fxa__cuda_pages_scatter(fxa__cuda_call *c, struct FxaConvert *s) {
    const fxa__cuda_page_users *u = &c->at.users;
    int *count = u->count, *end = u->end, *list = u->list;
    void *params[] = {&c->a, s, &count, &end, &list};
    s->size[0] = c->p->in.n_pages;
    s->size[2] = c->p->in.page_size;
    return pages_launch(c, FXA__CUDA_PAGES_SCATTER, fxa__div_up(pages_elements(s), FXA_HELPER_THREADS), params);
}
