/* SPDX-License-Identifier: Apache-2.0
 *
 * The cudnn engine's table of functions: instances, support queries and code (map: cudnn.h). Environment variables,
 * which are read when an instance is opened:
 *
 *     FXA_CUDNN_PATH       folder that is searched first for cuDNN and cuBLASLt
 *     FXA_CUDNN_UNTRIED=1  allows devices other than sm_90 in the automatic choice of an engine. There cuDNN has other
 *                          kernels, whose results have not been compared with the reference yet (make test-gpu)
 */
#include "cudnn.h"

#include "../../base/invariant.h"
#include "../../gpu/merge.h"
#include "../../gpu/device_description.h"
#include "descriptors.h"
#include "saved.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/* Creates a cuDNN handle, also while this thread or another one is capturing a stream, although cuDNN allocates device
 * memory for the handle. */
static fxa_status dnn_handle_make(const fxa__dnn_self *self, void **handle, fxa_error *err) {
    int before;
    FXA_TRY(fxa__gpu_capture_allow(&self->gpu, &before, err));
    int made = self->library.api.create(handle);
    fxa_status status = fxa__gpu_capture_restore(&self->gpu, before, err);
    if (made != CUDNN_STATUS_SUCCESS) return fxa__cudnn_fail(&self->library.api, made, "a handle is made", err);
    if (status != FXA_OK) (void)self->library.api.destroy(*handle);
    return status;
}

fxa_status fxa__dnn_handle_take(fxa__dnn_self *self, void *stream, void **handle, fxa_error *err) {
    *handle = NULL;
    for (int i = 0; i < FXA__DNN_HANDLES && !*handle; i++)
        if (atomic_load_explicit(&self->handles[i], memory_order_relaxed))
            *handle = atomic_exchange_explicit(&self->handles[i], NULL, memory_order_acquire);
    if (!*handle) FXA_TRY(dnn_handle_make(self, handle, err));
    int status = self->library.api.set_stream(*handle, stream);
    if (status == CUDNN_STATUS_SUCCESS) return FXA_OK;
    fxa__dnn_handle_give(self, *handle);
    return fxa__cudnn_fail(&self->library.api, status, "a handle gets its stream", err);
}

void fxa__dnn_handle_give(fxa__dnn_self *self, void *handle) {
    for (int i = 0; i < FXA__DNN_HANDLES; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&self->handles[i], &none, handle, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    (void)self->library.api.destroy(handle);
}

static void dnn_handles_end(fxa__dnn_self *s) {
    for (int i = 0; i < FXA__DNN_HANDLES; i++) {
        void *handle = atomic_exchange(&s->handles[i], NULL);
        if (handle) (void)s->library.api.destroy(handle);
    }
}

/* ---- Instances --------------------------------------------------------------------------------------------------- */

static void dnn_identity(const fxa__dnn_self *s, const char *name, int64_t driver, int64_t processors,
                         char identity[FXA__IDENTITY]) {
    (void)snprintf(identity, FXA__IDENTITY, "cudnn %lld.%lld.%lld, sm_%d, %lld processors, driver %lld, %.64s",
                   (long long)s->library.version / 10000, (long long)s->library.version / 100 % 100,
                   (long long)s->library.version % 100, (int)s->level.arch, (long long)processors, (long long)driver,
                   name);
}

/* Opens an instance that compiles for the device that the description `target` describes, and runs nothing. Fails with
 * cuDNN 9.27 and later, which require JSON keys that device descriptions do not have. */
static fxa_status dnn_open_target(fxa__dnn_self *s, const char *target, char identity[FXA__IDENTITY], fxa_error *err) {
    fxa__gpu_description described;
    FXA_TRY(fxa__gpu_description_parse(target, &described, err));
    FXA_TRY(fxa__cudnn_library_open(s->host, getenv("FXA_CUDNN_PATH"), &s->library, err));
    s->level = (fxa__dnn_level){s->library.version, (int32_t)described.arch};
    s->processors = described.processors;
    dnn_identity(s, described.name, described.driver, described.processors, identity);
    fxa_error why;
    if (fxa__dnn_profile_text(&s->library.api, target, &s->profile, &why) == FXA_OK) return FXA_OK;
    fxa__cudnn_library_close(&s->library);
    return fxa__fail(err, why.status, "cuDNN %lld.%lld.%lld does not read this target (9.14 to 9.26 do): %s",
                     (long long)s->library.version / 10000, (long long)s->library.version / 100 % 100,
                     (long long)s->library.version % 100, why.text);
}

static fxa_status dnn_open_handle(fxa__dnn_self *s, fxa_error *err) {
    void *handle;
    FXA_TRY(fxa__gpu_enter(&s->gpu, err));
    fxa_status status = fxa__dnn_handle_take(s, NULL, &handle, err);
    if (status == FXA_OK) {
        status = fxa__dnn_profile_handle(&s->library.api, handle, &s->profile, err);
        fxa__dnn_handle_give(s, handle);
    }
    if (status != FXA_OK) dnn_handles_end(s);
    fxa__gpu_leave(&s->gpu);
    return status;
}

enum { DNN_TRIED = 9 }; /* compute capability / 10 of the devices on which the engine has run */

static fxa_status dnn_check_tried(const fxa__dnn_self *s, fxa_error *err) {
    if (s->gpu.arch / 10 == DNN_TRIED || s->untried) return FXA_OK;
    return fxa__fail(
        err, FXA_E_UNAVAILABLE,
        "engine cudnn has been tried on sm_90 alone (here: cuDNN %lld, sm_%d); FXA_CUDNN_UNTRIED=1 uses it "
        "all the same",
        (long long)s->library.version, s->gpu.arch);
}

static fxa_status dnn_open_library(fxa__dnn_self *s, fxa_error *err) {
    FXA_TRY(fxa__cudnn_library_open(s->host, getenv("FXA_CUDNN_PATH"), &s->library, err));
    s->level = (fxa__dnn_level){s->library.version, s->gpu.arch};
    fxa_status status = dnn_check_tried(s, err);
    if (status == FXA_OK) status = dnn_open_handle(s, err);
    if (status != FXA_OK) fxa__cudnn_library_close(&s->library);
    return status;
}

static fxa_status dnn_open_device(fxa__dnn_self *s, int32_t ordinal, char identity[FXA__IDENTITY], fxa_error *err) {
    FXA_TRY(fxa__gpu_open(&s->gpu, ordinal, err));
    s->on_device = true;
    s->processors = s->gpu.processors;
    fxa_status status = dnn_open_library(s, err);
    if (status == FXA_OK)
        dnn_identity(s, s->gpu.name, s->gpu.driver_version, s->gpu.processors, identity);
    else
        fxa__gpu_close(&s->gpu);
    return status;
}

static fxa_status dnn_open(fxa__host *host, int32_t ordinal, const char *target, void **self,
                           char identity[FXA__IDENTITY], fxa_error *err) {
    fxa__dnn_self *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "an instance of the cuDNN engine");
    s->host = host;
    for (int i = 0; i < FXA__DNN_HANDLES; i++) atomic_init(&s->handles[i], NULL);
    fxa_status status = fxa__gpu_switch_read("FXA_CUDNN_UNTRIED", &s->untried, err);
    if (status == FXA_OK)
        status = target ? dnn_open_target(s, target, identity, err) : dnn_open_device(s, ordinal, identity, err);
    if (status != FXA_OK) {
        fxa__free(host, s, sizeof *s);
        return status;
    }
    s->gpu.host = host;
    *self = s;
    return fxa__ok(err);
}

static void dnn_close(fxa__host *host, void *self) {
    fxa__dnn_self *s = self;
    bool entered = s->on_device && fxa__gpu_enter(&s->gpu, NULL) == FXA_OK;
    (void)s->library.api.descriptor_destroy(s->profile);
    dnn_handles_end(s);
    if (entered) fxa__gpu_leave(&s->gpu);
    fxa__cudnn_library_close(&s->library);
    fxa__gpu_helpers_free(&s->gpu);
    if (s->on_device) fxa__gpu_close(&s->gpu);
    fxa__free(host, s, sizeof *s);
}

/* Makes the device's context current, which cuDNN requires in every call that may load code. */
static fxa_status dnn_enter(const fxa__dnn_self *s, fxa_error *err) {
    return s->on_device ? fxa__gpu_enter(&s->gpu, err) : FXA_OK;
}

static void dnn_leave(const fxa__dnn_self *s) {
    if (s->on_device) fxa__gpu_leave(&s->gpu);
}

/* ---- Support queries --------------------------------------------------------------------------------------------- */

static fxa_status dnn_probe_graph(const fxa__dnn_self *s, const fxa__dnn_attention *a, fxa_support *report,
                                  fxa_error *err) {
    int64_t own = 0;
    FXA_TRY(dnn_enter(s, err));
    fxa_status status = fxa__dnn_probe(&s->library.api, s->profile, &a->g, &own, err);
    dnn_leave(s);
    if (status == FXA_OK) report->workspace = fxa__dnn_workspace(a->g.scratch, own);
    return status;
}

static void dnn_analysis_free(void *self, void *derived) {
    const fxa__dnn_self *s = self;
    fxa__dnn_attention_free(derived);
    fxa__free(s->host, derived, sizeof(fxa__dnn_attention));
}

/* Makes the graph of the problem. */
static fxa_status dnn_analyze(void *self, const fxa__problem *p, void **derived, fxa_error *err) {
    const fxa__dnn_self *s = self;
    fxa__dnn_attention *a = fxa__alloc(s->host, sizeof *a);
    if (!a) return fxa__fail_memory(err, "a graph for cuDNN");
    fxa_status status = fxa__dnn_attention_make(p, s->level, a, err);
    *derived = status == FXA_OK ? a : NULL;
    if (status != FXA_OK) dnn_analysis_free(self, a);
    return status;
}

static fxa_status dnn_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const fxa__dnn_code *have = code;
    const fxa_problem *p = &a->problem->in;
    fxa_error why = {.status = FXA_OK};
    void *graph;
    report->supported = 1;
    report->multiplies_zeros = 1;
    report->deterministic = p->pass == FXA_FORWARD || (p->flags & FXA_DETERMINISTIC) || fxa__dnn_bias_of(p) >= 0;
    if (have) {
        report->workspace = fxa__dnn_workspace(have->scratch, have->own_workspace);
        return FXA_OK;
    }
    fxa_status status = fxa__analysis_get(a, &graph, &why);
    if (status == FXA_OK) status = dnn_probe_graph(a->self, graph, report, &why);
    return fxa__query_end(status, &why, report, err);
}

/* Returns INFINITY for a description of a device family on which the engine has not run: the automatic choice then uses
 * this engine only if no other engine supports the problem. */
static double dnn_cost(fxa__analysis *a) {
    const fxa__dnn_self *s = a->self;
    return s->level.arch / 10 == DNN_TRIED || s->untried ? fxa__dnn_cost(s->processors, a->problem) : INFINITY;
}

static void dnn_key(fxa__analysis *a, fxa__writer *w) { fxa__dnn_key(a->problem, w); }

static fxa_status dnn_constants(fxa__analysis *a, double constants[FXA__MAX_CONSTANTS], fxa_error *err) {
    return fxa__dnn_numbers(a->problem, constants, err);
}

/* ---- Code -------------------------------------------------------------------------------------------------------- */

/* Frees code. Waits for the device first, because work launched with the code may still be running. */
static void dnn_release(void *self, void *code) {
    fxa__dnn_self *s = self;
    fxa__dnn_code *c = code;
    if (s->on_device) fxa__gpu_wait_all(&s->gpu);
    bool entered = dnn_enter(s, NULL) == FXA_OK;
    if (c->plan) (void)s->library.api.descriptor_destroy(c->plan);
    if (entered) dnn_leave(s);
    fxa_program_destroy(c->program);
    fxa_program_destroy(c->own);
    fxa__free(c->host, c->steps, c->n_steps * sizeof *c->steps);
    fxa__free(c->host, c, sizeof *c);
}

static fxa_status dnn_steps(fxa__dnn_self *s, const fxa__dnn_graph *g, fxa__dnn_code *c, fxa_error *err) {
    if (!g->n_steps) return FXA_OK;
    c->steps = fxa__alloc_array(c->host, g->n_steps, sizeof *c->steps);
    if (!c->steps) return fxa__fail_memory(err, "steps of the cuDNN engine");
    c->n_steps = g->n_steps;
    memcpy(c->steps, g->steps, g->n_steps * sizeof *c->steps);
    return s->on_device ? fxa__gpu_helpers_load(&s->gpu, err) : FXA_OK;
}

/* Sets the members of *c from the graph of a. cuDNN's plan is loaded from the bytes `saved` or, if `saved` is NULL,
 * compiled from the graph. */
static fxa_status dnn_fill(fxa__dnn_self *s, const fxa__dnn_attention *a, fxa__reader *saved, fxa__dnn_code *c,
                           fxa_error *err) {
    c->scratch = a->g.scratch;
    c->level = s->level;
    c->program = a->program;
    fxa_program_retain(c->program);
    FXA__ASSERT(a->g.status == FXA_OK && c->program == a->numbers.program && a->g.scratch >= 0);
    memcpy(c->from, a->numbers.from, sizeof c->from);
    c->own = (fxa_program *)(uintptr_t)a->own.program;
    if (c->own) fxa_program_retain(c->own);
    if (!fxa__dnn_bound_find(&a->g, c))
        return fxa__fail(err, FXA_E_UNSUPPORTED, "the graph has more than %d tensors and values for a run",
                         FXA__DNN_BOUND);
    FXA_TRY(dnn_steps(s, &a->g, c, err));
    FXA_TRY(dnn_enter(s, err));
    const fxa__cudnn_api *api = &s->library.api;
    fxa_status status = saved ? fxa__dnn_saved_read(api, s->profile, saved, &c->plan, &c->own_workspace, err)
                              : fxa__dnn_compile(api, s->profile, &a->g, &c->plan, &c->own_workspace, err);
    dnn_leave(s);
    (void)snprintf(c->detail, sizeof c->detail, "cuDNN %lld.%lld.%lld, sm_%d%s, products of %s, %s%s%s%zu operations",
                   (long long)s->library.version / 10000, (long long)s->library.version / 100 % 100,
                   (long long)s->library.version % 100, (int)s->level.arch,
                   s->level.arch / 10 == DNN_TRIED ? "" : " (there with FXA_CUDNN_UNTRIED=1 alone)",
                   fxa_dtype_name((fxa_dtype)a->p->in.q.dtype),
                   fxa__dnn_rounds_heads(&a->p->in) ? "heads rounded, " : "",
                   fxa__dnn_bias_of(&a->p->in) >= 0 ? "pairs rounded, " : "",
                   fxa__dnn_rounds_sums(&a->p->in) ? "rounded before added, " : "", a->g.n_ops);
    return status;
}

static fxa_status dnn_load(fxa__analysis *a, fxa__reader *saved, void **code, size_t *bytes, fxa_error *err) {
    fxa__dnn_self *s = a->self;
    fxa__host *host = a->problem->host;
    void *graph;
    *code = NULL;
    FXA_TRY(fxa__analysis_get(a, &graph, err));
    fxa__dnn_code *c = fxa__alloc(host, sizeof *c);
    if (!c) return fxa__fail_memory(err, "code of the cuDNN engine");
    c->host = host;
    fxa_status status = dnn_fill(s, graph, saved, c, err);
    if (status != FXA_OK) {
        dnn_release(s, c);
        return status;
    }
    *bytes = sizeof *c + (128u << 10); /* estimate: cuDNN's text of a plan has 63 to 140 KB */
    *code = c;
    return fxa__ok(err);
}

static fxa_status dnn_compile(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    return dnn_load(a, NULL, code, bytes, err);
}

static void dnn_save(void *self, const void *code, fxa__writer *w) {
    const fxa__dnn_self *s = self;
    const fxa__dnn_code *c = code;
    if (dnn_enter(s, NULL) != FXA_OK) return;
    fxa__dnn_saved_write(&s->library.api, c->plan, s->host, w);
    dnn_leave(s);
}

static const char *dnn_description(const void *code, const fxa__problem *p) {
    (void)p;
    return ((const fxa__dnn_code *)code)->detail;
}

_Static_assert(offsetof(fxa__dnn_self, gpu) == 0, "fxa__gpu_memory and the like take an instance for its fxa__gpu");

const fxa__engine fxa__engine_cudnn = {
    .name = "cudnn",
    .version = 7,
    .device = FXA_CUDA,
    .open = dnn_open,
    .close = dnn_close,
    .describe = fxa__gpu_description_write,
    .analyze = dnn_analyze,
    .analysis_free = dnn_analysis_free,
    .query = dnn_query,
    .key = dnn_key,
    .constants = dnn_constants,
    .cost = dnn_cost,
    .compile = dnn_compile,
    .release = dnn_release,
    .check = fxa__gpu_engine_check,
    .tie = fxa__gpu_engine_tie,
    .run = fxa__dnn_run,
    FXA__ZONES(fxa__dnn_zones),
    .description = dnn_description,
    .dump = fxa__dnn_dump,
    .save = dnn_save,
    .load = dnn_load,
    .memory = &fxa__gpu_memory,
    .merge = fxa__gpu_merge,
};
