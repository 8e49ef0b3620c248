/* SPDX-License-Identifier: Apache-2.0
 *
 * From cubins, compiled (host/compile.c) or read from bytes, to code, and with a device to loaded kernels. A unit is
 * one source file below kernels/, compiled separately. The tile shape that a kernel needs is a constant of its cubin;
 * it is compared with kernels/common/tile_shape.h, and a cubin with another shape is refused.
 */
#include "../cuda.h"

#include <stdio.h>
#include <string.h>

enum { BUILD_SHARED_BYTES = 8 }; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */

/* ---- Units ------------------------------------------------------------------------------------------------------- */

static const struct build_unit {
    const char *file[3];     /* by family; NULL = the family has no such unit */
    const char *function[6]; /* names in the order of fxa__cuda_module.function */
} build_units[FXA__CUDA_UNIT_COUNT] = {
    [FXA__CUDA_FORWARD] = {{"sm90/forward", "sm80/forward", "simt/forward"}, {"fxa_forward"}},
    [FXA__CUDA_BACKWARD] = {{"sm90/backward", "sm80/backward", "simt/backward"}, {"fxa_backward", "fxa_grad_q"}},
    [FXA__CUDA_DQ] = {{"sm90/dq", NULL, NULL}, {"fxa_grad_q"}},
    [FXA__CUDA_PREPOST] = {{"common/backward_prepost", "common/backward_prepost", "common/backward_prepost"},
                           {"fxa_backward_prepare", "fxa_grad_q_finish", "fxa_sums_reduce", "fxa_grad_sink"}},
    [FXA__CUDA_TILE_LISTS] = {{"common/tile_lists", "common/tile_lists", "common/tile_lists"},
                              {"fxa_operands_pack", "fxa_tile_lists", "fxa_range_table"}},
    [FXA__CUDA_DIAGONAL_TABLE] = {{"common/diagonal_table", "common/diagonal_table", "common/diagonal_table"},
                                  {"fxa_diagonal_fill", "fxa_diagonal_reduce"}},
    [FXA__CUDA_DECODE] = {{"sm90/decode", NULL, NULL}, {"fxa_decode"}},
    [FXA__CUDA_CAPTURED_GRADS] = {{"common/captured_grads", "common/captured_grads", "common/captured_grads"},
                                  {"fxa_captured_totals", "fxa_captured_sums", "fxa_captured_diagonal",
                                   "fxa_captured_store", "fxa_captured_dense", "fxa_captured_params"}},
    [FXA__CUDA_CONVERT] = {{"common/convert", "common/convert", "common/convert"},
                           {"fxa_convert_copy", "fxa_convert_merge", "fxa_coordinates_write"}},
    [FXA__CUDA_PAGED_GRADS] = {{"common/paged_grads", "common/paged_grads", "common/paged_grads"},
                               {"fxa_pages_gather", "fxa_pages_count", "fxa_pages_offsets", "fxa_pages_list",
                                "fxa_pages_sort", "fxa_pages_scatter"}},
};

const char *fxa__cuda_unit_source(const fxa__cuda_choice *choice, fxa__cuda_unit unit) {
    bool wide = choice->traits.d > 128 || choice->traits.dv > 128;
    if (unit == FXA__CUDA_BACKWARD && choice->family == FXA__CUDA_SM90 && wide) return "sm90/backward_wide";
    return build_units[unit].file[choice->family];
}

const char *fxa__cuda_family_name(fxa__cuda_family family) {
    static const char *const names[] = {"sm90", "sm80", "simt"};
    return names[family];
}

/* ---- What is in it ----------------------------------------------------------------------------------------------- */

/* Reads a FxaShape from a cubin: eight little-endian ints. Leaves `out` unchanged if `size` is not theirs. */
static void build_read_shape(const uint8_t *data, size_t size, struct FxaShape *out) {
    fxa__reader r = {.data = data, .size = size};
    int *const fields[] = {&out->threads,    &out->shared_bytes, &out->q_rows,   &out->k_rows,
                           &out->store_rows, &out->persistent,   &out->sum_rows, &out->parts};
    if (size != sizeof *out) return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) *fields[i] = (int)(int32_t)fxa__read_u32(&r);
}

/* Checks that a cubin has the first kernel of its unit, with the expected shape if launches depend on it. */
static fxa_status build_check(fxa__cuda_code *code, fxa__cuda_unit unit, fxa_error *err) {
    fxa__cuda_module *m = &code->unit[unit];
    const char *first = build_units[unit].function[0];
    char name[48];
    size_t bytes = 0;
    (void)snprintf(name, sizeof name, "%s_shape", first);
    const uint8_t *shape = fxa__cuda_cubin_find(m->cubin, m->size, name, &bytes);
    if (shape) build_read_shape(shape, bytes, &m->shape);
    if (!fxa__cuda_cubin_find(m->cubin, m->size, first, &bytes))
        return fxa__fail(err, FXA_E_VERSION, "a cubin has no %s", first);
    const unsigned shapeless = 1u << FXA__CUDA_TILE_LISTS | 1u << FXA__CUDA_DIAGONAL_TABLE |
                               1u << FXA__CUDA_CAPTURED_GRADS | 1u << FXA__CUDA_CONVERT | 1u << FXA__CUDA_PAGED_GRADS;
    if (shapeless >> unit & 1u) return FXA_OK;
    struct FxaShape known = fxa__cuda_tile_shape(&code->choice, unit).launch;
    if (shape && memcmp(&m->shape, &known, sizeof known) == 0) return FXA_OK;
    return fxa__fail(err, FXA_E_VERSION,
                     "%s of a cubin needs %d threads, tiles of %d x %d and %d CTAs for them; this library expects "
                     "%d, %d x %d and %d",
                     first, m->shape.threads, m->shape.q_rows, m->shape.k_rows, m->shape.parts, known.threads,
                     known.q_rows, known.k_rows, known.parts);
}

/* ---- On a device ------------------------------------------------------------------------------------------------- */

/* Loads a kernel and sets its shared memory, so that the first run, which may be captured into a graph, loads
 * nothing. */
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
    for (int i = 0; i < 6 && build_units[unit].function[i]; i++) {
        const char *name = build_units[unit].function[i];
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
