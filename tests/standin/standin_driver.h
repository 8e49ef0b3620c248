/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the files of the driver stand-in: standin_cuda.c (devices, memory, streams) and
 * standin_launch.c (modules and launches).
 */
#ifndef FXA_TESTS_STANDIN_DRIVER_H
#define FXA_TESTS_STANDIN_DRIVER_H

#include "standin.h"

enum { STANDIN_INVALID = 1, STANDIN_MEMORY = 2, STANDIN_LOST = 719, STANDIN_UNKNOWN = 999 };
#define STANDIN(name) __attribute__((visibility("default"))) int name

extern __attribute__((visibility("default"))) standin_state standin_cuda;

/* standin_fails counts a call that can fail and returns a nonzero status if this call should fail. standin_enter does
 * the same and also requires a context. */
int standin_fails(void);
int standin_enter(void);

/* Marks all device memory as written, after a kernel that does not report its writes. */
void standin_know_all(void);
/* Makes all device memory inaccessible (hidden) for a kernel that starts early, or accessible again. */
void standin_hide(bool hidden);
/* Checks a launch after its end: its error message `wrong` (NULL = none), the address of a fault outside of device
 * memory, writes to padding. If there was any, returns false with a message. */
bool standin_look(const char *wrong, const void *fault);

#endif
