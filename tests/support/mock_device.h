/* SPDX-License-Identifier: Apache-2.0
 *
 * A device that is none: an engine "mock" of device FXA_CUDA which is the reference engine behind memory that nobody
 * can touch but itself. Each block of that memory is PROT_NONE but while an operation that was given it is performed,
 * so that a read or write of it by the host is a fault at once. Blocks do not touch each other.
 *
 * There are ordinals 0 and 1; a pointer of one is refused by the other. Copies and runs only go into a queue per
 * stream; `wait` performs them, in order, so that who uses a result earlier, or gives a host buffer or an argument
 * away, is found out. What fails there is said by `wait`, and the rest of the stream is lost.
 *
 * Every call that can fail counts, and the one with the number mock.fail_at does. A test has a registry of its own
 * (own_engines.h) with mock_engine in it; copies of mock_engine with other names and hooks are other engines.
 * What should never happen counts as a mistake: a call in a forked child, memory given back while the queue needs it,
 * a run on an instance that is a target's, code released by a thread that says it is a finalizer.
 */
#ifndef FXA_TESTS_MOCK_DEVICE_H
#define FXA_TESTS_MOCK_DEVICE_H

#include "engine/engine.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { MOCK_ORDINALS = 2 };

/* The calls that count, and can fail. PERFORM: an operation of the queue, so that `wait` says it. */
typedef enum mock_hook {
    MOCK_OPEN,
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
    /* by the test */
    size_t fail_at;                         /* counted as calls is; 0: none */
    fxa_status fail_status;                 /* E_ENGINE when 0 */
    mock_hook fail_hook;                    /* set: what it was that failed */
    atomic_int driver;                      /* part of the identity, read by open */
    fxa_status open_status, compile_status; /* not OK: what open and compile always say */
    bool not_deterministic;
    bool code_in_query;       /* query hands over the code that it made to answer */
    size_t more_workspace;    /* than ref needs */
    bool recording;           /* runs are recorded into a graph, which keeps what it is given */
    void (*performing)(void); /* called when a run is performed */
    void (*opening)(void);    /* called by open, to be slow */
    void (*compiling)(void);  /* called by compile, to be slow */
    /* by the mock */
    atomic_size_t calls, failures, mistakes;
    atomic_size_t count[MOCK_HOOKS];
    atomic_size_t opened, closed, released;
    atomic_size_t blocks, codes, queued; /* now */
    void *kept;                          /* what the graph of the last recorded run keeps, and how it is dropped */
    void (*drop)(void *what);
} mock_state;

extern mock_state mock;
extern const fxa__engine mock_engine;
extern _Thread_local bool mock_in_finalizer;

/* All options and counts as at first. Nothing may be left of what was before: that counts as a mistake. */
void mock_reset(void);
/* From now on the k-th call fails (1: the next one); 0: none. */
void mock_arm(size_t k, fxa_status status);

/* Memory of a device for a test that places its tensors itself: a block of `size` bytes with that content (NULL: junk)
 * and back. `first` bytes of it lie before a multiple of a page. These do not count and do not fail. */
void *mock_place(int32_t ordinal, const void *content, size_t size, size_t first);
void mock_fetch(void *to, const void *device, size_t size);
void mock_unplace(void *device);
/* Performs what is queued on all streams of the ordinal. */
fxa_status mock_sync(int32_t ordinal, fxa_error *err);

#endif
