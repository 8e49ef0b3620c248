/* SPDX-License-Identifier: Apache-2.0
 *
 * A mock device: engine "mock" of device FXA_CUDA, which is the reference engine with protected memory. Each block is
 * PROT_NONE except while an operation that received it is performed, so any access by the host faults. Blocks are not
 * adjacent.
 *
 * There are ordinals 0 and 1, which refuse each other's pointers. Copies and runs are only queued, per stream; `wait`
 * performs them in order. This detects results that are used too early, and host buffers or arguments that are freed
 * too early. `wait` reports a failure and drops the rest of the stream.
 *
 * Every call that can fail is counted, and call number mock.fail_at fails. A test has its own registry (own_engines.h)
 * with mock_engine in it; copies of mock_engine with other names and hooks are further engines. The mock counts as
 * mistakes: a call in a forked child, freeing memory that the queue needs, a run on an instance of a target, releasing
 * code on a thread that is marked as a finalizer.
 */
#ifndef FXA_TESTS_MOCK_DEVICE_H
#define FXA_TESTS_MOCK_DEVICE_H

#include "engine/engine.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { MOCK_ORDINALS = 2 };

/* Calls that are counted and can fail. MOCK_PERFORM is an operation of the queue, whose failure `wait` reports. */
typedef enum mock_hook {
    MOCK_OPEN,
    MOCK_ANALYZE,
    MOCK_QUERY,
    MOCK_COMPILE,
    MOCK_LOAD,
    MOCK_CHECK,
    MOCK_RUN,
    MOCK_ALLOC,
    MOCK_COPY_TO,
    MOCK_COPY_FROM,
    MOCK_WAIT,
    MOCK_PERFORM,
    MOCK_HOOKS
} mock_hook;

typedef struct mock_state {
    /* Members that the test sets: */
    size_t fail_at;                         /* number of the call that fails, counted as in `calls`; 0 = none */
    fxa_status fail_status;                 /* status of the failing call; 0 = E_ENGINE */
    mock_hook fail_hook;                    /* output: the kind of the call that failed */
    atomic_int driver;                      /* driver version in the identity, which `open` reads */
    fxa_status open_status, compile_status; /* results of open and compile; FXA_OK = success */
    bool not_deterministic;
    size_t more_workspace;    /* bytes of workspace beyond those that ref needs */
    bool recording;           /* true: runs are captured into a CUDA graph, which keeps their code */
    void (*performing)(void); /* called when a queued run is performed */
    void (*opening)(void);    /* called by `open`, so that a test can delay it */
    void (*compiling)(void);  /* called by `compile`, so that a test can delay it */
    /* Members that the mock sets: */
    atomic_size_t calls, failures, mistakes;
    atomic_size_t count[MOCK_HOOKS];
    atomic_size_t opened, closed, released;
    atomic_size_t blocks, codes, analyses, queued; /* at present */
    void *kept; /* object that the graph of the last captured run keeps, and its destructor */
    void (*drop)(void *what);
} mock_state;

extern mock_state mock;
extern const fxa__engine mock_engine;
extern _Thread_local bool mock_in_finalizer;

/* Resets all options and counts. Objects of the mock that still exist count as a mistake. */
void mock_reset(void);
/* Makes the k-th call from now on fail (1 = the next call); k = 0: none fails. */
void mock_arm(size_t k, fxa_status status);

/* Copy tensors to and from device memory, for tests that place tensors themselves: mock_place allocates `size` bytes
 * with `content` (NULL = junk), of which `first` bytes are before a multiple of the page size. These calls are not
 * counted and do not fail. */
void *mock_place(int32_t ordinal, const void *content, size_t size, size_t first);
void mock_fetch(void *to, const void *device, size_t size);
void mock_unplace(void *device);
/* Performs the queues of all streams of a device ordinal. */
fxa_status mock_sync(int32_t ordinal, fxa_error *err);

#endif
