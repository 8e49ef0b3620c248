/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache of small workspaces ("pieces") on CUDA devices (torch_call.h). Allocating a workspace from PyTorch and freeing
 * it takes a fifth of the host time of a small call. So a few are cached, each for the stream it was allocated for.
 *
 * Invariants:
 * - A piece is used by one run at a time: it is out of the table until the run's work is enqueued on the stream. The
 *   next run that takes the piece enqueues its work on the same stream, after the first; so threads may share a stream.
 * - A piece is a tensor that PyTorch allocated while that stream was current. When it is freed, the allocator reuses
 *   its memory for later work of that stream. If a stream is destroyed and its handle reused, the handle means the same
 *   stream to this table as to the allocator.
 * - Runs on a stream that is being captured use no pieces: their memory belongs to the graph. Nor do runs on
 *   CU_STREAM_PER_THREAD, a handle that means a different stream in each thread.
 */
#include "torch_call.h"
#include "torch_state.h"

#include <pthread.h>
#include <string.h>

#define PIECE_MAX ((size_t)256 << 10) /* bytes; larger workspaces cost little compared with their runs */
#define PIECE_STEP ((size_t)4 << 10)
enum { PIECES_KEPT = 16, STREAM_PER_THREAD = 2 }; /* STREAM_PER_THREAD: CU_STREAM_PER_THREAD */

static struct {
    pthread_mutex_t lock;
    fxa__torch_piece piece[PIECES_KEPT];
    size_t n, next; /* number of pieces; index of the next one to replace */
} pieces = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void piece_delete(fxa__torch_piece *piece) {
    if (piece->handle) {
        fxa__torch.aoti_torch_delete_tensor_object(piece->handle);
    }
    piece->handle = NULL;
}

/* Removes the piece at an index from the table and returns it. The lock is held. */
static fxa__torch_piece piece_pull(size_t at) {
    fxa__torch_piece found = pieces.piece[at];
    pieces.piece[at] = pieces.piece[--pieces.n];
    pieces.piece[pieces.n] = (fxa__torch_piece){0};
    return found;
}

/* Removes a piece of this device and stream from the table and returns it; its handle is NULL if there is none. */
static fxa__torch_piece piece_find(int32_t index, const void *stream) {
    fxa__torch_piece found = {0};
    pthread_mutex_lock(&pieces.lock);
    for (size_t i = 0; i < pieces.n && !found.handle; i++) {
        if (pieces.piece[i].stream == stream && pieces.piece[i].index == index) {
            found = piece_pull(i);
        }
    }
    pthread_mutex_unlock(&pieces.lock);
    return found;
}

fxa_status fxa__torch_piece_take(fxa__torch_problem *p, fxa__torch_call *call, size_t size) {
    bool kept = !p->recorded && size <= PIECE_MAX && (uintptr_t)p->args.stream != STREAM_PER_THREAD;
    fxa__torch_tensor made;
    if (kept) {
        p->piece = piece_find(call->q.index, p->args.stream);
        if (p->piece.handle && p->piece.size >= size) {
            return FXA_OK;
        }
        piece_delete(&p->piece);
        size = (size + PIECE_STEP - 1) / PIECE_STEP * PIECE_STEP;
    }
    int64_t bytes = (int64_t)size, stride = 1;
    fxa_status status = fxa__torch_tensor_new(call, &call->q, FXA_U8, 1, &bytes, &stride, &made);
    p->piece = (fxa__torch_piece){made.handle, made.data, kept ? size : 0, p->args.stream, call->q.index};
    return status;
}

void fxa__torch_piece_give(fxa__torch_piece *piece) {
    fxa__torch_piece out = *piece;
    if (piece->handle && piece->size) {
        pthread_mutex_lock(&pieces.lock);
        size_t at = pieces.n < PIECES_KEPT ? pieces.n++ : pieces.next++ % PIECES_KEPT;
        out = pieces.piece[at]; /* its handle is NULL if the slot was free */
        pieces.piece[at] = *piece;
        pthread_mutex_unlock(&pieces.lock);
    }
    piece->handle = NULL;
    piece_delete(&out);
}

void fxa__torch_pieces_clear(void) {
    fxa__torch_piece out;
    do {
        pthread_mutex_lock(&pieces.lock);
        out = pieces.n ? piece_pull(0) : (fxa__torch_piece){0};
        pthread_mutex_unlock(&pieces.lock);
        piece_delete(&out);
    } while (out.data);
}

void fxa__torch_pieces_forget(void) {
    pthread_mutex_init(&pieces.lock, NULL);
    memset(pieces.piece, 0, sizeof pieces.piece);
    pieces.n = pieces.next = 0;
}
