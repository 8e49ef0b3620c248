/* SPDX-License-Identifier: Apache-2.0
 *
 * A small substitute for the XLA runtime that calls a handler with buffers and attributes, as XLA does: a shared object
 * for device_calls.py and test_jax_device.py, which provide memory and problems. It counts operations that a handler
 * must not perform while a command buffer is recorded: allocations and requests for threads. As the thread pool of a
 * CPU client it offers each kind of behaviour: no threads, threads that run a task at once, late, after the end of the
 * call, and threads that refuse a task.
 */
#include "jax_abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOCK_MOST 32

typedef fxa__xla_error *mock_handler(fxa__xla_frame *frame);

typedef enum mock_threads { MOCK_NONE, MOCK_AT_ONCE, MOCK_LATE, MOCK_AFTER, MOCK_REFUSING } mock_threads;

typedef struct mock_buffer {
    int64_t role;
    int32_t dtype, rank;
    int64_t size[8];
    void *data;
} mock_buffer;

/* Properties of the runtime, set by the test. */
typedef struct mock_runtime {
    int32_t ordinal, old,
        streamless; /* old: the table of functions ends before the ordinals; streamless: no stream is available */
    void *stream;
    int64_t asked;   /* number of requests for memory or threads; must stay 0 */
    int64_t threads; /* a mock_threads */
    char text[600];
} mock_runtime;

static _Thread_local mock_runtime *mock_now;
static char mock_failure; /* errors point to this byte */

static fxa__xla_error *error_keep(fxa__xla_error_args *args) {
    snprintf(mock_now->text, sizeof mock_now->text, "%d %s", args->code, args->message);
    return (fxa__xla_error *)(void *)&mock_failure;
}

static void error_forget(fxa__xla_destroy_args *args) { (void)args; }

static fxa__xla_error *stream_give(fxa__xla_stream_args *args) {
    args->stream = mock_now->stream;
    return mock_now->streamless ? (fxa__xla_error *)(void *)&mock_failure : NULL;
}

static fxa__xla_error *ordinal_give(fxa__xla_ordinal_args *args) {
    args->ordinal = mock_now->ordinal;
    return NULL;
}

static fxa__xla_error *memory_refuse(fxa__xla_memory_args *args) {
    (void)args;
    mock_now->asked++;
    return (fxa__xla_error *)(void *)&mock_failure;
}

static fxa__xla_error *threads_count(fxa__xla_threads_args *args) {
    mock_now->asked += mock_now->threads == MOCK_NONE;
    *args->count = 3;
    return mock_now->threads == MOCK_NONE ? (fxa__xla_error *)(void *)&mock_failure : NULL;
}

/* Tasks that wait: of a pool whose threads are busy. */
static fxa__xla_schedule_args mock_waiting[64];
static int mock_waiting_count;

static void *task_run_late(void *data) {
    fxa__xla_schedule_args args = *(fxa__xla_schedule_args *)data;
    free(data);
    nanosleep(&(struct timespec){0, 300000}, NULL);
    args.task(args.data);
    return NULL;
}

/* Runs what is left; the number of it. */
__attribute__((visibility("default"))) int mock_drain(void);

int mock_drain(void) {
    int n = mock_waiting_count;
    for (int i = 0; i < n; i++) mock_waiting[i].task(mock_waiting[i].data);
    mock_waiting_count = 0;
    return n;
}

static fxa__xla_error *task_take(fxa__xla_schedule_args *args) {
    fxa__xla_schedule_args *own = mock_now->threads == MOCK_LATE ? malloc(sizeof *own) : NULL;
    pthread_t thread;
    bool taken = mock_now->threads != MOCK_REFUSING;
    if (mock_now->threads == MOCK_AT_ONCE) {
        args->task(args->data);
    } else if (mock_now->threads == MOCK_AFTER) {
        taken = mock_waiting_count < (int)(sizeof mock_waiting / sizeof *mock_waiting);
        if (taken) mock_waiting[mock_waiting_count++] = *args;
    } else if (mock_now->threads == MOCK_LATE) {
        if (own) *own = *args;
        taken = own && !pthread_create(&thread, NULL, task_run_late, own);
        if (taken) pthread_detach(thread);
    }
    return taken ? NULL : (fxa__xla_error *)(void *)&mock_failure;
}

static void buffers_fill(fxa__xla_buffers *out, const mock_buffer *given, int64_t n, fxa__xla_buffer *buffers,
                         void **values, int64_t *roles) {
    for (int64_t i = 0; i < n; i++) {
        buffers[i] = (fxa__xla_buffer){
            .struct_size = sizeof buffers[i], .dtype = given[i].dtype, .data = given[i].data, .rank = given[i].rank};
        buffers[i].size = (int64_t *)(uintptr_t)given[i].size;
        values[i] = &buffers[i];
        roles[i] = given[i].role;
    }
    *out = (fxa__xla_buffers){.struct_size = sizeof *out, .count = n, .values = values};
}

/* One call at a stage; 0, or 1 with what the handler said in runtime->text. */
__attribute__((visibility("default"))) int mock_call(mock_handler *handler, int32_t stage, const char *problem,
                                                     size_t size, const mock_buffer *operands, int64_t n_operands,
                                                     const mock_buffer *results, int64_t n_results,
                                                     mock_runtime *runtime);

int mock_call(mock_handler *handler, int32_t stage, const char *problem, size_t size, const mock_buffer *operands,
              int64_t n_operands, const mock_buffer *results, int64_t n_results, mock_runtime *runtime) {
    static const char *const words[] = {"operands", "problem", "results"};
    fxa__xla_buffer buffers[2][MOCK_MOST];
    void *values[2][MOCK_MOST];
    int64_t roles[2][MOCK_MOST];
    if (n_operands > MOCK_MOST || n_results > MOCK_MOST) return 2;
    fxa__xla_array numbers[2] = {{FXA__XLA_S64, (size_t)n_operands, roles[0]},
                                 {FXA__XLA_S64, (size_t)n_results, roles[1]}};
    fxa__xla_bytes bytes = {problem, size}, text[3], *names[3];
    for (int i = 0; i < 3; i++) text[i] = (fxa__xla_bytes){words[i], strlen(words[i])}, names[i] = &text[i];
    int32_t types[] = {FXA__XLA_ATTRIBUTE_ARRAY, FXA__XLA_ATTRIBUTE_STRING, FXA__XLA_ATTRIBUTE_ARRAY};
    void *attributes[] = {&numbers[0], &bytes, &numbers[1]};
    fxa__xla_api api = {.struct_size = runtime->old ? offsetof(fxa__xla_api, device_ordinal) : sizeof api,
                        .error_create = error_keep,
                        .error_destroy = error_forget,
                        .stream_get = stream_give,
                        .memory_allocate = memory_refuse,
                        .pool_threads = threads_count,
                        .pool_schedule = task_take,
                        .device_ordinal = ordinal_give};
    fxa__xla_frame frame = {
        .struct_size = sizeof frame, .api = &api, .context = (fxa__xla_context *)(void *)runtime, .stage = stage};
    frame.attributes = (fxa__xla_attributes){sizeof frame.attributes, NULL, 3, types, names, attributes};
    buffers_fill(&frame.operands, operands, n_operands, buffers[0], values[0], roles[0]);
    buffers_fill(&frame.results, results, n_results, buffers[1], values[1], roles[1]);
    mock_now = runtime;
    runtime->text[0] = 0;
    return handler(&frame) != NULL;
}
