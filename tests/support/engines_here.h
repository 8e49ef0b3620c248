/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that a suite runs for. Registered engines may lack a driver, a library or a device, and some support only a
 * small part of all problems and have suites of their own.
 */
#ifndef FXA_TESTS_ENGINES_HERE_H
#define FXA_TESTS_ENGINES_HERE_H

#include <stddef.h>

/* Returns engine number i, in the order of the registry, of those that open on this machine and support problems of
 * every kind; NULL past the last. A pass in f64 with one feature is the criterion, queried once. FXA_TEST_ENGINE
 * selects a single engine without this criterion. */
const char *engine_here(size_t i);

#endif
