/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests say to the stand-ins of tests/standin and read from them: each library exports one of these, under its
 * name. A test loads the library as the engine does, and so has the same one.
 */
#ifndef FXA_TESTS_STANDIN_H
#define FXA_TESTS_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct standin_state {
    /* by the test */
    size_t fail_at; /* the call of that number, from 1, fails; 0: none */
    bool devices_gone;
    bool quiet;                /* what is wrong with a kernel of the model is not printed */
    bool no_engine;            /* cuDNN finds none that takes a graph, */
    int64_t tried;             /* of as many that it knows */
    int arch;                  /* of the devices, 89 = sm_89; 0: sm_90 */
    void *recorded;            /* a stream that is being recorded; NULL: none */
    uintptr_t pinned, managed; /* memory of the host that the driver knows; that of the second is at device 1 */
    /* by the stand-in */
    atomic_size_t calls, failures;
    atomic_size_t mistakes; /* what should never happen: a call without a context, memory given back twice */
    atomic_size_t held;     /* now: contexts and memory; descriptors and handles */
    bool context_lost;      /* it could not be entered: what is in it stays there */
    atomic_size_t runs;
    atomic_size_t waits; /* for all of a context */
    atomic_int entered;  /* contexts that threads have entered and not left */
    size_t loads[2];     /* first and last call that loaded a module or a kernel of one, by number; 0: none */
    char words[512];     /* what was wrong with the last kernel of the model, and with memory around it */
} standin_state;

#endif
