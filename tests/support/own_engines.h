/* SPDX-License-Identifier: Apache-2.0
 *
 * A registry of a test's own: a program that includes this is linked without the library's, and has just the engines
 * that it puts here.
 */
#ifndef FXA_TESTS_OWN_ENGINES_H
#define FXA_TESTS_OWN_ENGINES_H

#include "engine/engine.h"

#include <string.h>

static const fxa__engine *own_engines[2]; /* by the test, in the order of preference */

const fxa__engine *fxa__engine_at(size_t index) { return index < 2 ? own_engines[index] : NULL; }
const fxa__engine *fxa__engine_find(const char *name) {
    for (size_t i = 0; i < 2; i++)
        if (strcmp(own_engines[i]->name, name) == 0) return own_engines[i];
    return NULL;
}
const char *fxa_engine_name(size_t index) { return index < 2 ? own_engines[index]->name : NULL; }

#endif
