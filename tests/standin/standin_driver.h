/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the driver stand-in: standin_cuda.c (devices, memory, streams) and standin_launch.c (modules
 * and launches).
 */
#ifndef FXA_TESTS_STANDIN_DRIVER_H
#define FXA_TESTS_STANDIN_DRIVER_H

#include "standin.h"

enum { STANDIN_INVALID = 1, STANDIN_MEMORY = 2, STANDIN_LOST = 719, STANDIN_UNKNOWN = 999 };
#define STANDIN(name) __attribute__((visibility("default"))) int name

extern __attribute__((visibility("default"))) standin_state standin_cuda;

/* Counts a call that can fail; nonzero if this one does. standin_enter also requires a context. */
int standin_fails(void);
int standin_enter(void);

/* After a kernel that does not report its writes: all memory counts as written. */
void standin_know_all(void);
/* Makes all device memory inaccessible, for a kernel that starts too early. */
void standin_hide(bool hidden);
/* Checks after a launch: its error (NULL = none), a fault outside of memory, writes to padding. Returns false with a
 * message if there was any. */
bool standin_look(const char *wrong, const void *fault);

#endif
