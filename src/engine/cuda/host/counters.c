/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of kernels (next_tile and recompute of fxa__cuda_buffers), which must be 0 before a run and which every run
 * leaves at 0 (docs/cuda-kernels.md, "A run"). The caller's workspace has arbitrary contents, so counters there must be
 * cleared before every run, by a driver call that takes as long as a launch. Therefore an instance has counters in its
 * own device memory, and each workspace gets a part of them permanently when it is first used. Runs on one workspace,
 * captured or not, do not overlap (docs/gpu.md); hence runs on one part do not overlap. Counters in the workspace are
 * used, and cleared by each run, if no part is left for a workspace or a run has more counters than a part.
 */
#include "call.h"

typedef struct counters_work {
    const fxa__gpu *gpu;
    void *memory;
} counters_work;

static fxa_status counters_begin(void *user, void *stream, fxa_error *err) {
    counters_work *w = user;
    size_t words = (size_t)FXA__CUDA_COUNTER_PARTS * FXA__CUDA_COUNTER_WORDS;
    FXA_TRY(fxa__gpu_alloc(w->gpu, sizeof(uint32_t) * words, &w->memory, err));
    int status = w->gpu->driver.fill((uintptr_t)w->memory, 0, words, stream);
    return fxa__gpu_status(w->gpu, status, "cuMemsetD32Async", err);
}

fxa_status fxa__cuda_counters_load(fxa__cuda_self *self, fxa_error *err) {
    counters_work w = {&self->gpu, NULL};
    void *none = NULL;
    if (atomic_load(&self->counters)) return FXA_OK;
    fxa_status status = fxa__gpu_run_on_own_stream(&self->gpu, counters_begin, &w, err);
    if (status == FXA_OK && atomic_compare_exchange_strong(&self->counters, &none, w.memory)) return FXA_OK;
    if (w.memory) fxa__gpu_give(&self->gpu, w.memory);
    return status;
}

void fxa__cuda_counters_free(fxa__cuda_self *self) {
    void *memory = atomic_exchange(&self->counters, NULL);
    if (memory) fxa__gpu_give(&self->gpu, memory);
}

/* Number of parts of the counters among which the part of a workspace is searched for. */
enum { COUNTERS_TRIES = 8 };

/* Returns the part of the instance's counters that belongs to a workspace. A workspace without a part gets a free one;
 * NULL = none of the COUNTERS_TRIES parts is free. */
static char *counters_part(fxa__cuda_self *self, uintptr_t workspace) {
    char *memory = atomic_load_explicit(&self->counters, memory_order_acquire);
    size_t first = (size_t)((workspace >> 6) * UINT64_C(0x9e3779b97f4a7c15) >> 40);
    for (size_t i = 0; memory && i < COUNTERS_TRIES; i++) {
        size_t at = (first + i) % FXA__CUDA_COUNTER_PARTS;
        uintptr_t owner = atomic_load_explicit(&self->counter_owner[at], memory_order_relaxed);
        if (!owner && atomic_compare_exchange_strong(&self->counter_owner[at], &owner, workspace)) owner = workspace;
        if (owner == workspace) return memory + at * FXA__CUDA_COUNTER_WORDS * sizeof(uint32_t);
    }
    return NULL;
}

void fxa__cuda_counters_use(fxa__cuda_call *c) {
    fxa__cuda_buffers *at = &c->at;
    char *from = at->zero;
    if (!at->counter_words || at->counter_words != at->zero_words || at->counter_words > FXA__CUDA_COUNTER_WORDS)
        return;
    char *part = counters_part((fxa__cuda_self *)(uintptr_t)c->self, (uintptr_t)c->bound->workspace);
    if (!part) return;
    FXA__ASSERT(!at->next_tile || (char *)at->next_tile - from < (ptrdiff_t)(sizeof(uint32_t) * at->counter_words));
    if (at->next_tile) at->next_tile = (uint32_t *)(void *)(part + ((char *)at->next_tile - from));
    if (at->recompute && (char *)at->recompute - from < (ptrdiff_t)(sizeof(uint32_t) * at->counter_words))
        at->recompute = (int32_t *)(void *)(part + ((char *)at->recompute - from));
    at->zero_words = 0;
}
