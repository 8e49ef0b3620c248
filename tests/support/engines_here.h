/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines for which a suite runs. A registered engine may lack a driver, a library or a device; another supports only a
 * small part of all problems and has suites of its own.
 */
#ifndef FXA_TESTS_ENGINES_HERE_H
#define FXA_TESTS_ENGINES_HERE_H

#include <stddef.h>

/* Returns engine number i, in the order of the registry, among those that open on this machine and support problems of
 * every kind; NULL past the last. The criterion, queried once, is a pass in f64 with one feature. FXA_TEST_ENGINE
 * selects a single engine without this criterion. */
const char *engine_here(size_t i);

#endif
