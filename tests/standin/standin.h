/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between tests and the stand-ins of tests/standin: each stand-in library exports one standin_state under the
 * library's name. A test loads the library as the engine does, so test and engine use the same state.
 */
#ifndef FXA_TESTS_STANDIN_H
#define FXA_TESTS_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct standin_state {
    /* Members that the test sets: */
    size_t fail_at; /* number of the call that fails, from 1; 0 = none */
    bool devices_gone;
    bool quiet;                /* true: errors of kernels on the GPU emulator are not printed */
    bool no_engine;            /* true: cuDNN finds no engine that supports a graph */
    int64_t tried;             /* number of cuDNN engines that were tried */
    int arch;                  /* architecture of the devices, 89 = sm_89; 0 = sm_90 */
    void *recorded;            /* stream that is being captured; NULL = none */
    uintptr_t pinned, managed; /* addresses of host memory that the driver accepts; managed memory is on device 1 */
    /* Members that the stand-in sets: */
    atomic_size_t calls, failures;
    atomic_size_t mistakes; /* number of errors of the caller, such as a call without a context or a double free */
    atomic_size_t held;     /* number of live objects: contexts and memory, or descriptors and handles */
    bool context_lost;      /* true: entering a context failed, so its objects cannot be freed */
    atomic_size_t runs;
    atomic_size_t waits; /* waits for a context */
    atomic_int entered;  /* number of contexts that threads have entered and not left */
    size_t loads[2];     /* numbers of the first and of the last call that loaded a module or kernel; 0 = none */
    char words[512];     /* error message of the last kernel on the emulator, or of the check of memory around it */
} standin_state;

#endif
