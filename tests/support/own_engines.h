/* SPDX-License-Identifier: Apache-2.0
 *
 * A test's own registry of engines. A test program that includes this file is linked without the library's registry.
 */
#ifndef FXA_TESTS_OWN_ENGINES_H
#define FXA_TESTS_OWN_ENGINES_H

#include "engine/engine.h"

#include <string.h>

#define OWN_ENGINES 72                              /* a context has one bit for each of the first 64 */
static const fxa__engine *own_engines[OWN_ENGINES]; /* set by the test, in order of preference; ends with NULL */

const fxa__engine *fxa__engine_at(size_t index) { return index < OWN_ENGINES ? own_engines[index] : NULL; }
const fxa__engine *fxa__engine_find(const char *name) {
    for (size_t i = 0; fxa__engine_at(i); i++)
        if (strcmp(own_engines[i]->name, name) == 0) return own_engines[i];
    return NULL;
}
const char *fxa_engine_name(size_t index) { return fxa__engine_at(index) ? own_engines[index]->name : NULL; }

#endif
