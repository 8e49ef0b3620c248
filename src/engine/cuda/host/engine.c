/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the cuda engine (fxa__engine): instances, analyses of problems, and code. cuda.h has a map of the
 * engine.
 */
#include "../cuda.h"

#include "../../../gpu/merge.h"
#include "../../../gpu/device_description.h"
#include "recipes.h"
#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Instances --------------------------------------------------------------------------------------------------- */

static fxa_status cu_read_family(fxa__cuda_self *s, fxa_error *err) {
    const char *name = getenv("FXA_CUDA_FAMILY");
    s->forced = NULL;
    if (!name || !*name) return FXA_OK;
    s->forced = fxa__cuda_recipe_family(name);
    if (s->forced) return FXA_OK;
    return fxa__fail(err, FXA_E_UNAVAILABLE, "FXA_CUDA_FAMILY is \"%.32s\"; accepted are sm80 and simt", name);
}

/* Initializes an instance for an architecture. NVRTC is opened when something is compiled. The version of NVRTC is
 * part of the compiled code, and not of `identity`. */
static fxa_status cu_open_kernels(fxa__cuda_self *s, int32_t arch, char identity[FXA__IDENTITY], fxa_error *err) {
    FXA_TRY(cu_read_family(s, err));
    if (!fxa__cuda_recipe_has_arch(arch))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "the kernels are for devices from sm_80 on, and this is sm_%d",
                         (int)arch);
    s->arch = arch;
    FXA_TRY(fxa__gpu_switch_read("FXA_FAST_MATH", &s->fast_math, err));
    FXA_TRY(fxa__gpu_switch_read("FXA_CUDA_LINES", &s->with_lines, err));
    (void)snprintf(identity, FXA__IDENTITY, "cuda kernels %s, sm_%d%s%s%s%s", fxa__cuda_sources_hash, (int)s->arch,
                   s->fast_math ? ", fast functions" : "", s->with_lines ? ", with lines" : "",
                   s->forced ? ", family " : "", s->forced ? s->forced : "");
    return fxa__cuda_compiler_init(s, getenv("FXA_NVRTC_PATH"), err);
}

/* Opens an instance for a device description: compiles code, runs nothing. */
static fxa_status cu_open_target(fxa__cuda_self *s, const char *target, char identity[FXA__IDENTITY], fxa_error *err) {
    fxa__gpu_description described;
    FXA_TRY(fxa__gpu_description_parse(target, &described, err));
    s->processors = (int32_t)described.processors;
    return cu_open_kernels(s, (int32_t)described.arch, identity, err);
}

static fxa_status cu_open_device(fxa__cuda_self *s, int32_t ordinal, char identity[FXA__IDENTITY], fxa_error *err) {
    FXA_TRY(fxa__gpu_open(&s->gpu, ordinal, err));
    s->on_device = true;
    s->processors = s->gpu.processors;
    fxa_status status = cu_open_kernels(s, s->gpu.arch, identity, err);
    if (status != FXA_OK) fxa__gpu_close(&s->gpu);
    return status;
}

static fxa_status cu_open(fxa__host *host, int32_t ordinal, const char *target, void **self,
                          char identity[FXA__IDENTITY], fxa_error *err) {
    fxa__cuda_self *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "an instance of the CUDA engine");
    s->host = host;
    fxa_status status = target ? cu_open_target(s, target, identity, err) : cu_open_device(s, ordinal, identity, err);
    if (status != FXA_OK) {
        fxa__free(host, s, sizeof *s);
        return status;
    }
    s->gpu.host = host;
    *self = s;
    return fxa__ok(err);
}

static void cu_close(fxa__host *host, void *self) {
    fxa__cuda_self *s = self;
    fxa__gpu_helpers_free(&s->gpu);
    fxa__cuda_counters_free(s);
    fxa__cuda_compiler_end(s);
    if (s->on_device) fxa__gpu_close(&s->gpu);
    fxa__free(host, s, sizeof *s);
}

/* ---- Support queries --------------------------------------------------------------------------------------------- */

/* Returns true if results do not depend on the order of atomics. Without FXA_DETERMINISTIC, the fused backward,
 * scattered gradients and sums along diagonals add in any order. */
static bool cu_is_deterministic(const fxa__problem *p, const fxa__cuda_choice *c, const fxa__cuda_program *g) {
    if (p->in.pass == FXA_FORWARD) return true;
    bool dq = !(p->in.flags & FXA_GRAD_Q) || c->dq != FXA__CUDA_DQ_ANY_ORDER;
    return dq && (g->gradients.deterministic || (!g->switches.grad_scatter && !g->switches.grad_diagonal));
}

/* Reports the shape of the tiles that kernels skip if the mask is false in all pairs of a tile. */
static void cu_tiles(const fxa__cuda_choice *c, const fxa__cuda_program *g, fxa_support *report) {
    struct FxaShape shape = c->recipe->main.shape(c->traits).launch;
    if (!g->switches.mask || c->recipe->main.unit == FXA__CUDA_DECODE) return;
    report->tile_q = shape.q_rows;
    report->tile_k = shape.k_rows;
}

/* The analysis of a problem: the choice of kernels, and the generated text of the problem's program. */
typedef struct cu_derived {
    fxa__host *host;
    fxa__cuda_choice choice;
    fxa__cuda_program program;
} cu_derived;

static void cu_analysis_free(void *self, void *derived) {
    cu_derived *d = derived;
    (void)self;
    fxa__cuda_program_free(&d->program);
    fxa__free(d->host, d, sizeof *d);
}

static fxa_status cu_analyze(void *self, const fxa__problem *p, void **derived, fxa_error *err) {
    cu_derived *d = fxa__alloc(p->host, sizeof *d);
    if (!d) return fxa__fail_memory(err, "the program of a kernel");
    d->host = p->host;
    fxa_status status = fxa__cuda_choose(self, p, &d->choice, &d->program, err);
    *derived = status == FXA_OK ? d : NULL;
    if (status != FXA_OK) cu_analysis_free(self, d);
    return status;
}

/* Returns the analysis of the problem; NULL = the problem is refused or memory ran out, as *status says. */
static const cu_derived *cu_derived_of(fxa__analysis *a, fxa_status *status, fxa_error *err) {
    void *derived = NULL;
    *status = fxa__analysis_get(a, &derived, err);
    return derived;
}

static fxa_status cu_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const fxa__problem *p = a->problem;
    fxa_error why = {.status = FXA_OK};
    fxa_status status;
    const cu_derived *d = cu_derived_of(a, &status, &why);
    (void)code;
    if (d) {
        report->supported = 1;
        report->multiplies_zeros = p->in.pass == FXA_BACKWARD && (d->choice.recipe->is & FXA__CUDA_MATRIX_UNITS);
        report->deterministic = cu_is_deterministic(p, &d->choice, &d->program);
        report->workspace = fxa__cuda_workspace(a->self, &d->choice, &d->program, p);
        cu_tiles(&d->choice, &d->program, report);
    }
    return fxa__query_end(status, &why, report, err);
}

static double cu_cost(fxa__analysis *a) {
    const fxa__cuda_self *s = a->self;
    fxa_status status;
    const cu_derived *d = cu_derived_of(a, &status, NULL);
    return d ? fxa__cuda_cost(s->processors, &d->choice, a->problem) : -1;
}

static fxa_status cu_ready(void *self, fxa_error *err) { return fxa__cuda_compiler_find(self, err); }

/* Writes the code key: all that determines the compiled code, so that problems with equal keys share code. Writes the
 * entire problem if the engine refuses it. */
static void cu_key(fxa__analysis *a, fxa__writer *w) {
    fxa_status status;
    const cu_derived *d = cu_derived_of(a, &status, NULL);
    if (d) {
        const fxa__cuda_choice *c = &d->choice;
        const fxa__cuda_program *g = &d->program;
        const int32_t parts[] = {(int32_t)(c->recipe - fxa__cuda_recipes),
                                 c->arch,
                                 (int32_t)c->units,
                                 c->finite_factors,
                                 c->dense,
                                 c->operands_fit,
                                 c->converts,
                                 c->rounds_before_adding};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) fxa__write_u32(w, (uint32_t)parts[i]);
#define CU_KEY_TRAIT(member, macro, otherwise, meaning) fxa__write_u32(w, (uint32_t)c->traits.member);
        FXA_SETTINGS(CU_KEY_TRAIT)
        FXA_SWITCHES(CU_KEY_TRAIT)
#undef CU_KEY_TRAIT
        fxa__write_bytes(w, g->program->hash, sizeof g->program->hash);
        for (int32_t i = 0; i < g->program->n_params; i++) fxa__write_u32(w, (uint32_t)g->params[i].source);
        for (int32_t i = 0; i < g->program->n_tensors; i++)
            fxa__write_u32(w, (uint32_t)g->source[i].kind << 16 | (uint32_t)g->source[i].index);
        for (int32_t i = 0; i < g->switches.grad_sums; i++)
            fxa__write_u32(w, (uint32_t)g->gradients.sums[i]); /* indices of outputs, which the text does not contain */
        fxa__write_u64(w, g->text.size);
        fxa__write_bytes(w, g->text.data, g->text.size);
    } else {
        w->failed = w->failed || status == FXA_E_MEMORY;
        fxa__problem_write(a->problem, FXA__WITH_ALL, w);
    }
}

static fxa_status cu_constants(fxa__analysis *a, double constants[FXA__MAX_CONSTANTS], fxa_error *err) {
    fxa_status status;
    const cu_derived *d = cu_derived_of(a, &status, err);
    for (int32_t i = 0; d && i < d->program.program->n_params; i++) constants[i] = d->program.params[i].value;
    return status;
}

/* ---- Code -------------------------------------------------------------------------------------------------------- */

static void cu_free(const fxa__cuda_self *s, fxa__cuda_code *c) {
    fxa__cuda_plan_tables_free(s, c);
    fxa__cuda_code_release(s, c);
    fxa__cuda_program_free(&c->program);
    fxa__free(c->host, c, sizeof *c);
}

/* Waits for the device before the code is unloaded: launches may be pending. */
static void cu_release(void *self, void *code) {
    const fxa__cuda_self *s = self;
    if (s->on_device) fxa__gpu_wait_all(&s->gpu);
    cu_free(s, code);
}

static void cu_describe(fxa__cuda_code *c) {
    const fxa__cuda_choice *x = &c->choice;
    const struct FxaTraits *t = &x->traits;
    const uint32_t is = x->recipe->is;
    int length = snprintf(
        c->detail, sizeof c->detail, "kernels %s, NVRTC %d.%d, sm_%d%s, %s, columns %d and %d%s%s%s%s%s%s%s%s%s%s%s",
        x->recipe->family, (int)c->maker.major, (int)c->maker.minor, (int)c->maker.arch, x->recipe->arch_suffix,
        fxa_dtype_name(x->dtype), t->d, t->dv,
        t->separate_dq  ? ", dQ apart"
        : t->ordered_dq ? ", dQ by turns"
                        : "",
        x->units >> FXA__CUDA_DECODE & 1u ? ", keys split" : "", t->fast_math ? ", fast functions" : "",
        (t->grad_diagonal && is & FXA__CUDA_DIAGONAL_ROUNDED) || t->grad_dense ? ", pairs rounded" : "",
        is & FXA__CUDA_DK_ROUNDED_TWICE ? ", dK rounded twice" : "",
        x->rounds_before_adding ? ", rounded before added" : "",
        x->units >> FXA__CUDA_PAGED_GRADS & 1u && x->out_dtype != FXA_F32 ? ", entries and heads rounded" : "",
        x->better ? ", not " : "", x->better ? x->better : "", x->better ? ": " : "", x->better ? x->why_not : "");
    FXA__ASSERT(length < (int)sizeof c->detail);
}

/* Creates code, which takes over the analysis of the problem. saved: the cubins as bytes; NULL = cubins are
 * compiled. */
static fxa_status cu_load(fxa__analysis *a, fxa__reader *saved, void **code, size_t *bytes, fxa_error *err) {
    fxa__cuda_self *s = a->self;
    fxa__host *host = a->problem->host;
    fxa_status status;
    *code = NULL;
    if (!cu_derived_of(a, &status, err)) return status;
    fxa__cuda_code *c = fxa__alloc(host, sizeof *c);
    if (!c) return fxa__fail_memory(err, "code of the CUDA engine");
    cu_derived *derived = a->derived;
    c->host = host;
    c->processors = s->processors;
    c->choice = derived->choice;
    c->program = derived->program;
    a->derived = NULL;
    fxa__free(host, derived, sizeof *derived);
    if (s->on_device) status = fxa__cuda_counters_load(s, err);
    if (status == FXA_OK && saved) status = fxa__cuda_saved_read(saved, c, err);
    if (status == FXA_OK) status = fxa__cuda_code_make(s, c, err);
    if (status != FXA_OK) {
        /* not cu_release(), which waits: nothing was launched, and waiting would invalidate another thread's capture */
        cu_free(s, c);
        return status;
    }
    cu_describe(c);
    *bytes = sizeof *c + c->program.text.capacity;
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
        *bytes += 2 * c->unit[unit].size; /* a cubin is stored on the host and on the device */
    *code = c;
    return fxa__ok(err);
}

static fxa_status cu_compile(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    return cu_load(a, NULL, code, bytes, err);
}

static void cu_save(void *self, const void *code, fxa__writer *w) {
    (void)self;
    fxa__cuda_saved_write(code, w);
}

static const char *cu_description(const void *code, const fxa__problem *p) {
    (void)p;
    return ((const fxa__cuda_code *)code)->detail;
}

_Static_assert(offsetof(fxa__cuda_self, gpu) == 0, "fxa__gpu_memory and the like take an instance for its fxa__gpu");

const fxa__engine fxa__engine_cuda = {
    .name = "cuda",
    .version = 4,
    .device = FXA_CUDA,
    .open = cu_open,
    .close = cu_close,
    .describe = fxa__gpu_description_write,
    .analyze = cu_analyze,
    .analysis_free = cu_analysis_free,
    .query = cu_query,
    .ready = cu_ready,
    .key = cu_key,
    .constants = cu_constants,
    .prepare = fxa__cuda_plan_tables_make,
    .cost = cu_cost,
    .compile = cu_compile,
    .release = cu_release,
    .check = fxa__gpu_engine_check,
    .tie = fxa__gpu_engine_tie,
    .run = fxa__cuda_run,
    FXA__ZONES(fxa__cuda_zones),
    .description = cu_description,
    .dump = fxa__cuda_listing,
    .save = cu_save,
    .load = cu_load,
    .memory = &fxa__gpu_memory,
    .merge = fxa__gpu_merge,
};
