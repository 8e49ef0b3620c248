/* SPDX-License-Identifier: Apache-2.0
 *
 * Workspaces on the host (torch_state.h). Allocating a workspace, whose pages the system has to clear, would dominate a
 * small call. So every thread caches its last workspace, up to HOST_MAX_CACHED.
 *
 * Invariant: a cached workspace is used by one run at a time, on its thread; a nested run allocates its own. Other
 * threads access it only as helpers of that run.
 */
#include "torch_state.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define HOST_MAX_CACHED ((size_t)4 << 20) /* bytes; larger workspaces cost little compared with their runs */
#define HOST_SIZE_STEP ((size_t)64 << 10)

typedef struct host_workspace {
    void *data;
    size_t size;
    bool in_use;
} host_workspace;

static _Thread_local host_workspace host_own;
static pthread_key_t host_key;
static pthread_once_t host_once = PTHREAD_ONCE_INIT;
static bool host_has_key;

/* Frees a thread's workspace when the thread ends. Destructors that run later in the thread may take a new one. */
static void host_workspace_free(void *data) {
    host_own = (host_workspace){NULL, 0, false};
    free(data);
}

static void host_key_create(void) { host_has_key = pthread_key_create(&host_key, host_workspace_free) == 0; }

static void *host_workspace_new(size_t size) {
    void *data = NULL;
    return posix_memalign(&data, FXA_WORKSPACE_ALIGN, size) ? NULL : data;
}

/* Grows this thread's cached workspace to `size` bytes. Returns false if that fails or if the thread's destructor,
 * which frees the workspace, cannot be registered. */
static bool host_workspace_grow(size_t size) {
    pthread_once(&host_once, host_key_create);
    size = (size + HOST_SIZE_STEP - 1) / HOST_SIZE_STEP * HOST_SIZE_STEP;
    void *data = host_has_key ? host_workspace_new(size) : NULL;
    if (!data || pthread_setspecific(host_key, data)) {
        free(data);
        return false;
    }
    free(host_own.data);
    host_own.data = data;
    host_own.size = size;
    return true;
}

void *fxa__torch_host_workspace_acquire(size_t size) {
    if (host_own.in_use || size > HOST_MAX_CACHED || (size > host_own.size && !host_workspace_grow(size))) {
        return host_workspace_new(size);
    }
    host_own.in_use = true;
    return host_own.data;
}

void fxa__torch_host_workspace_release(void *space) {
    if (space && space == host_own.data) {
        host_own.in_use = false;
    } else {
        free(space);
    }
}
