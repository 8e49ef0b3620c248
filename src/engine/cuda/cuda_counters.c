/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of kernels, which begin at 0 and are left at 0 (docs/cuda-kernels.md, "A run"): next_tile, redo. In the
 * caller's workspace, which may hold anything, they would have to be set before every run, by a call of the driver that
 * takes as long as a launch. So an instance has some of its own, and a workspace gets a part of them for good when it
 * is first seen: runs on one workspace do not overlap (docs/gpu.md), so those on one part do not either, recorded ones
 * included. Workspaces past the room there is, and runs with more counters than a part has, have theirs in the
 * workspace and set them.
 */
#include "cuda_run.h"

#define COUNTERS_STREAM ((void *)2) /* the thread's own: the default one would wait for streams that are recorded */

static fxa_status counters_clear(const fxa__gpu *gpu, void *memory, fxa_error *err) {
    size_t words = (size_t)FXA__CU_PARTS * FXA__CU_PART_WORDS;
    int status = gpu->driver.fill((uintptr_t)memory, 0, words, COUNTERS_STREAM);
    FXA_TRY(fxa__gpu_status(gpu, status, "cuMemsetD32Async", err));
    return fxa__gpu_status(gpu, gpu->driver.stream_wait(COUNTERS_STREAM), "cuStreamSynchronize", err);
}

static fxa_status counters_make(const fxa__gpu *gpu, void **out, fxa_error *err) {
    *out = NULL;
    FXA_TRY(fxa__gpu_alloc(gpu, sizeof(uint32_t) * FXA__CU_PARTS * FXA__CU_PART_WORDS, out, err));
    fxa_status status = counters_clear(gpu, *out, err);
    if (status != FXA_OK) fxa__gpu_give(gpu, *out);
    return status;
}

fxa_status fxa__cu_counters_load(fxa__cu_self *self, fxa_error *err) {
    void *none = NULL, *mine;
    int before;
    if (atomic_load(&self->counters)) return FXA_OK;
    FXA_TRY(fxa__gpu_enter(&self->gpu, err));
    fxa_status status = fxa__gpu_recording_allow(&self->gpu, &before, err);
    if (status == FXA_OK) {
        status = counters_make(&self->gpu, &mine, err);
        bool made = status == FXA_OK;
        fxa_status restored = fxa__gpu_recording_restore(&self->gpu, before, made ? err : NULL);
        bool mine_first = made && restored == FXA_OK && atomic_compare_exchange_strong(&self->counters, &none, mine);
        if (made && !mine_first) fxa__gpu_give(&self->gpu, mine);
        if (made) status = restored;
    }
    fxa__gpu_leave(&self->gpu);
    return status;
}

void fxa__cu_counters_free(fxa__cu_self *self) {
    void *memory = atomic_exchange(&self->counters, NULL);
    if (memory) fxa__gpu_give(&self->gpu, memory);
}

enum { COUNTERS_TRIES = 8 };

/* NULL: there is none for it. */
static char *counters_part(fxa__cu_self *self, uintptr_t workspace) {
    char *memory = atomic_load_explicit(&self->counters, memory_order_acquire);
    size_t first = (size_t)((workspace >> 6) * UINT64_C(0x9e3779b97f4a7c15) >> 40);
    for (size_t i = 0; memory && i < COUNTERS_TRIES; i++) {
        size_t at = (first + i) % FXA__CU_PARTS;
        uintptr_t owner = atomic_load_explicit(&self->owner[at], memory_order_relaxed);
        if (!owner && atomic_compare_exchange_strong(&self->owner[at], &owner, workspace)) owner = workspace;
        if (owner == workspace) return memory + at * FXA__CU_PART_WORDS * sizeof(uint32_t);
    }
    return NULL;
}

void fxa__cu_counters_place(fxa__cu_call *c) {
    fxa__cu_layout *at = &c->at;
    char *from = at->zero;
    if (!at->counter_words || at->counter_words != at->zero_words || at->counter_words > FXA__CU_PART_WORDS) return;
    char *part = counters_part((fxa__cu_self *)(uintptr_t)c->self, (uintptr_t)c->bind->workspace);
    if (!part) return;
    if (at->next_tile) at->next_tile = (uint32_t *)(void *)(part + ((char *)at->next_tile - from));
    if (at->redo) at->redo = (int32_t *)(void *)(part + ((char *)at->redo - from));
    at->zero_words = 0;
}
