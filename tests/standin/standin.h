/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between tests and the stand-ins of tests/standin: each library exports one such struct under its name. A
 * test loads the library as the engine does, so both use the same one.
 */
#ifndef FXA_TESTS_STANDIN_H
#define FXA_TESTS_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct standin_state {
    /* set by the test */
    size_t fail_at; /* number of the call that fails, from 1; 0 = none */
    bool devices_gone;
    bool quiet;                /* do not print errors of kernels on the emulator */
    bool no_engine;            /* cuDNN finds no engine that supports a graph */
    int64_t tried;             /* number of engines that were tried */
    int arch;                  /* architecture of the devices, 89 = sm_89; 0 = sm_90 */
    void *recorded;            /* stream being captured, NULL = none */
    uintptr_t pinned, managed; /* host memory known to the driver; managed memory is on device 1 */
    /* set by the stand-in */
    atomic_size_t calls, failures;
    atomic_size_t mistakes; /* errors of the caller: a call without a context, a double free */
    atomic_size_t held;     /* current contexts and memory; descriptors and handles */
    bool context_lost;      /* entering a context failed: its objects cannot be freed */
    atomic_size_t runs;
    atomic_size_t waits; /* waits for a context */
    atomic_int entered;  /* contexts that threads have entered and not left */
    size_t loads[2];     /* number of the first and last call that loaded a module or kernel; 0 = none */
    char words[512];     /* error of the last kernel on the emulator, or of memory around it */
} standin_state;

#endif
