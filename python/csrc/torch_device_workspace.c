/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache of small workspaces on CUDA devices (torch_call.h). Allocating a workspace from PyTorch and freeing it takes a
 * fifth of the host time of a small call. So a few workspaces are cached, each for the stream it was allocated for.
 *
 * Invariants:
 * - A workspace is used by one run at a time: it is out of the table until the run's work is enqueued on the stream.
 *   The next run that acquires the workspace enqueues its work on the same stream, after the first run; so threads may
 *   share a stream.
 * - A workspace is a tensor that PyTorch allocated while that stream was current. When the tensor is freed, the
 *   allocator reuses its memory for later work of that stream. If a stream is destroyed and its handle is reused, the
 *   handle means the same stream to this table as to the allocator.
 * - Runs on a stream that is being captured use no cached workspaces: their memory belongs to the graph. Nor do runs on
 *   CU_STREAM_PER_THREAD, a handle that means a different stream in each thread.
 */
#include "torch_call.h"
#include "torch_state.h"

#include <pthread.h>
#include <string.h>

#define DEVICE_MAX_CACHED ((size_t)256 << 10) /* bytes; larger workspaces cost little compared with their runs */
#define DEVICE_SIZE_STEP ((size_t)4 << 10)
enum { MAX_WORKSPACES = 16, STREAM_PER_THREAD = 2 }; /* STREAM_PER_THREAD: CU_STREAM_PER_THREAD */

static struct {
    pthread_mutex_t lock;
    fxa__torch_workspace entry[MAX_WORKSPACES];
    size_t n, next; /* number of entries; index of the next one to replace */
} workspaces = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void workspace_delete(fxa__torch_workspace *workspace) {
    if (workspace->handle) {
        fxa__torch.aoti_torch_delete_tensor_object(workspace->handle);
    }
    workspace->handle = NULL;
}

/* Removes the workspace at an index from the table and returns it. The lock is held. */
static fxa__torch_workspace workspace_remove(size_t at) {
    fxa__torch_workspace found = workspaces.entry[at];
    workspaces.entry[at] = workspaces.entry[--workspaces.n];
    workspaces.entry[workspaces.n] = (fxa__torch_workspace){0};
    return found;
}

/* Removes a workspace of this device and stream from the table and returns it; its handle is NULL if there is none. */
static fxa__torch_workspace workspace_find(int32_t index, const void *stream) {
    fxa__torch_workspace found = {0};
    pthread_mutex_lock(&workspaces.lock);
    for (size_t i = 0; i < workspaces.n && !found.handle; i++) {
        if (workspaces.entry[i].stream == stream && workspaces.entry[i].index == index) {
            found = workspace_remove(i);
        }
    }
    pthread_mutex_unlock(&workspaces.lock);
    return found;
}

fxa_status fxa__torch_device_workspace_acquire(fxa__torch_problem *p, fxa__torch_call *call, size_t size) {
    bool cached = !p->captured && size <= DEVICE_MAX_CACHED && (uintptr_t)p->args.stream != STREAM_PER_THREAD;
    fxa__torch_tensor made;
    if (cached) {
        p->workspace = workspace_find(call->q.index, p->args.stream);
        if (p->workspace.handle && p->workspace.size >= size) {
            return FXA_OK;
        }
        workspace_delete(&p->workspace);
        size = (size + DEVICE_SIZE_STEP - 1) / DEVICE_SIZE_STEP * DEVICE_SIZE_STEP;
    }
    int64_t bytes = (int64_t)size, stride = 1;
    fxa_status status = fxa__torch_tensor_new(call, &call->q, FXA_U8, 1, &bytes, &stride, &made);
    p->workspace = (fxa__torch_workspace){made.handle, made.data, cached ? size : 0, p->args.stream, call->q.index};
    return status;
}

void fxa__torch_device_workspace_release(fxa__torch_workspace *workspace) {
    fxa__torch_workspace out = *workspace;
    if (workspace->handle && workspace->size) {
        pthread_mutex_lock(&workspaces.lock);
        size_t at = workspaces.n < MAX_WORKSPACES ? workspaces.n++ : workspaces.next++ % MAX_WORKSPACES;
        out = workspaces.entry[at]; /* its handle is NULL if the slot was free */
        workspaces.entry[at] = *workspace;
        pthread_mutex_unlock(&workspaces.lock);
    }
    workspace->handle = NULL;
    workspace_delete(&out);
}

void fxa__torch_device_workspaces_clear(void) {
    fxa__torch_workspace out;
    do {
        pthread_mutex_lock(&workspaces.lock);
        out = workspaces.n ? workspace_remove(0) : (fxa__torch_workspace){0};
        pthread_mutex_unlock(&workspaces.lock);
        workspace_delete(&out);
    } while (out.data);
}

void fxa__torch_device_workspaces_forget(void) {
    pthread_mutex_init(&workspaces.lock, NULL);
    memset(workspaces.entry, 0, sizeof workspaces.entry);
    workspaces.n = workspaces.next = 0;
}
