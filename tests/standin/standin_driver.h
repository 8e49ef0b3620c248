/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the files of the stand-in for the CUDA driver: standin_cuda.c (devices, memory, streams) and standin_launch.c
 * (modules and launches).
 */
#ifndef FXA_TESTS_STANDIN_DRIVER_H
#define FXA_TESTS_STANDIN_DRIVER_H

#include "standin.h"

enum { STANDIN_INVALID = 1, STANDIN_MEMORY = 2, STANDIN_LOST = 719, STANDIN_UNKNOWN = 999 };
#define STANDIN(name) __attribute__((visibility("default"))) int name

extern __attribute__((visibility("default"))) standin_state standin_cuda;

/* A call that can fail: counts, and is the one that does. standin_enter: of a context, where there has to be one. */
int standin_fails(void);
int standin_enter(void);

/* Of a kernel that does not tell what it writes: it may have written everything. */
void standin_know_all(void);
/* All memory of devices, from a kernel that begins too early for it. */
void standin_hide(bool hidden);
/* After a launch: what was wrong with it (NULL: nothing), where it touched memory that is not there, and whether nobody
 * wrote around memory. False, with words, where anything was. */
bool standin_look(const char *wrong, const void *fault);

#endif
