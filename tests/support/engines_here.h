/* SPDX-License-Identifier: Apache-2.0
 *
 * The engines that a suite runs for: not all that are registered are here (a driver, a library or a device may be
 * missing), and some take a small part of all problems and have suites of their own.
 */
#ifndef FXA_TESTS_ENGINES_HERE_H
#define FXA_TESTS_ENGINES_HERE_H

#include <stddef.h>

/* The i-th engine, in the order of the registry, that opens on this machine and takes problems of every kind: a pass
 * of f64 with one feature is the question, asked once. FXA_TEST_ENGINE names one to have alone, whatever it takes.
 * NULL past the last. */
const char *engine_here(size_t i);

#endif
