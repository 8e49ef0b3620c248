/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of the engines of this build, in order of preference. Only this file names concrete engines: a new engine needs
 * a line here and a declaration in engine.h.
 */
#include "engine.h"

#include <string.h>

static const fxa__engine *const registry_engines[] = {
    &fxa__engine_cpu,
    &fxa__engine_ref,
    &fxa__engine_cudnn,
    &fxa__engine_cuda,
};

const fxa__engine *fxa__engine_at(size_t index) {
    return index < sizeof registry_engines / sizeof *registry_engines ? registry_engines[index] : NULL;
}

const fxa__engine *fxa__engine_find(const char *name) {
    for (size_t i = 0; fxa__engine_at(i); i++)
        if (strcmp(fxa__engine_at(i)->name, name) == 0) return fxa__engine_at(i);
    return NULL;
}

const char *fxa_engine_name(size_t index) {
    const fxa__engine *engine = fxa__engine_at(index);
    return engine ? engine->name : NULL;
}
