/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes code from cubins, which are compiled (host/compile.c) or read from bytes, and loads kernels if there is a
 * device. A unit is a source file below kernels/, compiled separately to a cubin. The tile shape of a kernel is a
 * constant in the cubin; a cubin whose constant differs from kernels/common/tile_shape.h is refused.
 */
#include "recipes.h"

#include <stdio.h>
#include <string.h>

enum { BUILD_FUNCTIONS = sizeof((fxa__cuda_module *)0)->function / sizeof(void *) };
_Static_assert(BUILD_FUNCTIONS == sizeof fxa__cuda_units[0].function / sizeof(char *), "a name for each function");
_Static_assert((int)FXA__CUDA_CAPTURED_PARAMS < BUILD_FUNCTIONS && (int)FXA__CUDA_PAGES_SCATTER < BUILD_FUNCTIONS,
               "indices of fxa__cuda_module.function");
_Static_assert(sizeof(struct FxaShape) == 8 * sizeof(int), "build_read_shape() reads eight ints");
enum { BUILD_SHARED_BYTES = 8 }; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */

/* ---- Contents of a cubin ----------------------------------------------------------------------------------------- */

/* Reads a FxaShape from a cubin: eight little-endian ints. Leaves *out unchanged if `size` is not that of eight
 * ints. */
static void build_read_shape(const uint8_t *data, size_t size, struct FxaShape *out) {
    fxa__reader r = {.data = data, .size = size};
    int *const fields[] = {&out->threads,    &out->shared_bytes, &out->q_rows,   &out->k_rows,
                           &out->store_rows, &out->persistent,   &out->sum_rows, &out->parts};
    if (size != sizeof *out) return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) *fields[i] = (int)(int32_t)fxa__read_u32(&r);
}

/* Returns an error if a cubin lacks the first kernel of its unit (source file), or if that kernel has another tile
 * shape than kernels/common/tile_shape.h. */
static fxa_status build_check(fxa__cuda_code *code, fxa__cuda_unit unit, fxa_error *err) {
    fxa__cuda_module *m = &code->unit[unit];
    const char *first = fxa__cuda_units[unit].function[0];
    char name[48];
    size_t bytes = 0;
    int length = snprintf(name, sizeof name, "%s_shape", first);
    FXA__ASSERT(length < (int)sizeof name && code->choice.units >> unit & 1u);
    const uint8_t *shape = fxa__cuda_cubin_find(m->cubin, m->size, name, &bytes);
    if (shape) build_read_shape(shape, bytes, &m->shape);
    if (!fxa__cuda_cubin_find(m->cubin, m->size, first, &bytes))
        return fxa__fail(err, FXA_E_VERSION, "a cubin has no %s", first);
    if (!fxa__cuda_units[unit].has_shape) return FXA_OK;
    struct FxaShape known = fxa__cuda_tile_shape(&code->choice, unit).launch;
    if (shape && memcmp(&m->shape, &known, sizeof known) == 0) return FXA_OK;
    return fxa__fail(err, FXA_E_VERSION,
                     "%s of a cubin needs %d threads, tiles of %d x %d and %d CTAs for them; this library expects "
                     "%d, %d x %d and %d",
                     first, m->shape.threads, m->shape.q_rows, m->shape.k_rows, m->shape.parts, known.threads,
                     known.q_rows, known.k_rows, known.parts);
}

/* ---- On a device ------------------------------------------------------------------------------------------------- */

/* Loads a kernel and sets its maximum shared memory, so that the first run, which may be captured into a CUDA graph,
 * loads nothing. Returns the driver's status. */
static int build_function(const fxa__gpu_driver *cu, fxa__cuda_module *m, const char *name, void **function) {
    int status = cu->module_function(function, m->module, name);
    if (status != FXA__CUDA_OK) return status;
    return cu->function_attribute(*function, BUILD_SHARED_BYTES, m->shape.shared_bytes);
}

static fxa_status build_load(const fxa__cuda_self *self, fxa__cuda_code *code, fxa__cuda_unit unit, fxa_error *err) {
    const fxa__gpu_driver *cu = &self->gpu.driver;
    fxa__cuda_module *m = &code->unit[unit];
    size_t bytes;
    FXA_TRY(fxa__gpu_status(&self->gpu, cu->module_load(&m->module, m->cubin), "cuModuleLoadData", err));
    for (int i = 0; i < BUILD_FUNCTIONS && fxa__cuda_units[unit].function[i]; i++) {
        const char *name = fxa__cuda_units[unit].function[i];
        if (!fxa__cuda_cubin_find(m->cubin, m->size, name, &bytes)) continue;
        int status = build_function(cu, m, name, &m->function[i]);
        FXA_TRY(fxa__gpu_status(&self->gpu, status, name, err));
    }
    return FXA_OK;
}

static fxa_status build_load_all(const fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err) {
    int before;
    FXA_TRY(fxa__gpu_enter(&self->gpu, err));
    fxa_status status = fxa__gpu_capture_allow(&self->gpu, &before, err);
    if (status == FXA_OK) {
        for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT && status == FXA_OK; unit++)
            if (code->unit[unit].cubin) status = build_load(self, code, (fxa__cuda_unit)unit, err);
        fxa_status restored = fxa__gpu_capture_restore(&self->gpu, before, status == FXA_OK ? err : NULL);
        if (status == FXA_OK) status = restored;
    }
    fxa__gpu_leave(&self->gpu);
    return status;
}

fxa_status fxa__cuda_code_make(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err) {
    bool there = false;
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) there = there || code->unit[unit].cubin;
    if (!there) FXA_TRY(fxa__cuda_compile(self, code, err));
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
        if (code->unit[unit].cubin) FXA_TRY(build_check(code, (fxa__cuda_unit)unit, err));
    return self->on_device ? build_load_all(self, code, err) : FXA_OK;
}

void fxa__cuda_code_release(const fxa__cuda_self *self, fxa__cuda_code *code) {
    bool entered = self->on_device && fxa__gpu_enter(&self->gpu, NULL) == FXA_OK;
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) {
        fxa__cuda_module *m = &code->unit[unit];
        if (entered && m->module) (void)self->gpu.driver.module_unload(m->module);
        fxa__free(code->host, m->cubin, m->size);
        *m = (fxa__cuda_module){.cubin = NULL};
    }
    if (entered) fxa__gpu_leave(&self->gpu);
}
