/* SPDX-License-Identifier: Apache-2.0
 *
 * Workspaces on the host (torch_state.h). Allocating a workspace, whose pages the system has to clear, would dominate a
 * small call. So every thread caches its last workspace, up to SPACE_KEPT_MAX.
 *
 * Invariant: a cached workspace is used by one run at a time, on its thread; a nested run allocates its own. Other
 * threads access it only as helpers of that run.
 */
#include "torch_state.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define SPACE_KEPT_MAX ((size_t)4 << 20) /* bytes; larger workspaces cost little compared with their runs */
#define SPACE_STEP ((size_t)64 << 10)

typedef struct space_kept {
    void *data;
    size_t size;
    bool taken;
} space_kept;

static _Thread_local space_kept space_own;
static pthread_key_t space_key;
static pthread_once_t space_once = PTHREAD_ONCE_INIT;
static bool space_key_made;

/* Frees a thread's workspace when the thread ends. Destructors that run later in the thread may take a new one. */
static void space_drop(void *data) {
    space_own = (space_kept){NULL, 0, false};
    free(data);
}

static void space_key_make(void) { space_key_made = pthread_key_create(&space_key, space_drop) == 0; }

static void *space_new(size_t size) {
    void *data = NULL;
    return posix_memalign(&data, FXA_WORKSPACE_ALIGN, size) ? NULL : data;
}

/* Grows this thread's cached workspace to `size` bytes. Returns false if that fails or if the thread's destructor,
 * which frees the workspace, cannot be registered. */
static bool space_grow(size_t size) {
    pthread_once(&space_once, space_key_make);
    size = (size + SPACE_STEP - 1) / SPACE_STEP * SPACE_STEP;
    void *data = space_key_made ? space_new(size) : NULL;
    if (!data || pthread_setspecific(space_key, data)) {
        free(data);
        return false;
    }
    free(space_own.data);
    space_own.data = data;
    space_own.size = size;
    return true;
}

void *fxa__torch_space_take(size_t size) {
    if (space_own.taken || size > SPACE_KEPT_MAX || (size > space_own.size && !space_grow(size))) {
        return space_new(size);
    }
    space_own.taken = true;
    return space_own.data;
}

void fxa__torch_space_give(void *space) {
    if (space && space == space_own.data) {
        space_own.taken = false;
    } else {
        free(space);
    }
}
