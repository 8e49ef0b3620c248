/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the units (source files of kernels) of a choice, with the generated text of a program (program.cuh), to
 * cubins. Units are independent and are compiled in parallel, on as many threads as a run may use. NVRTC receives the
 * headers and the text as named strings.
 */
#include "../cuda.h"

#include "../../../base/invariant.h"
#include "recipes.h"
#include "sources.h"

#include <stdio.h>
#include <string.h>

#define COMPILE_COUNT(member, macro, otherwise, meaning) +1
enum { COMPILE_SETTINGS = 0 FXA_SETTINGS(COMPILE_COUNT), COMPILE_OPTIONS = 4 + COMPILE_SETTINGS };
#undef COMPILE_COUNT
enum { COMPILE_OPTION = 48, COMPILE_KEPT = 64 };

/* Memory of all compile jobs: a job is the compilation of a unit (source file), and points into this struct and into
 * the code. */
typedef struct compile_jobs {
    char option[COMPILE_OPTIONS][COMPILE_OPTION];
    const char *options[COMPILE_OPTIONS];
    int n_options;
    const char **headers, **names;
    int n_headers;
    char file[FXA__CUDA_UNIT_COUNT][32];
    fxa__nvrtc_job jobs[FXA__CUDA_UNIT_COUNT];
    int n_jobs;
    fxa__cuda_unit unit[FXA__CUDA_UNIT_COUNT]; /* [n_jobs] unit that a job compiles */
} compile_jobs;

/* A compiled unit (source file) that does not include the text of a program, cached for all programs. */
struct fxa__cuda_shared_unit {
    struct fxa__cuda_shared_unit *next;
    int count; /* number of units from this one to the end of the list */
    fxa__cuda_unit unit;
    char option[COMPILE_OPTIONS][COMPILE_OPTION];
    size_t size;
    uint8_t cubin[];
};

/* ---- The compiler ------------------------------------------------------------------------------------------------ */

fxa_status fxa__cuda_compiler_init(fxa__cuda_self *self, const char *folder, fxa_error *err) {
    atomic_init(&self->shared_units, NULL);
    FXA_TRY(fxa__lock_init(&self->lock, err));
    if (!folder) return FXA_OK;
    self->nvrtc_folder = fxa__alloc(self->host, strlen(folder) + 1);
    if (self->nvrtc_folder) {
        memcpy(self->nvrtc_folder, folder, strlen(folder) + 1);
        return FXA_OK;
    }
    fxa__lock_destroy(&self->lock);
    return fxa__fail_memory(err, "the name of NVRTC's folder");
}

static void compile_free_kept(fxa__cuda_self *self) {
    for (fxa__cuda_shared_unit *k = atomic_exchange(&self->shared_units, NULL), *next; k; k = next) {
        next = k->next;
        fxa__free(self->host, k, sizeof *k + k->size);
    }
}

void fxa__cuda_compiler_end(fxa__cuda_self *self) {
    compile_free_kept(self);
    fxa__nvrtc_close(&self->nvrtc);
    if (self->nvrtc_folder) fxa__free(self->host, self->nvrtc_folder, strlen(self->nvrtc_folder) + 1);
    fxa__lock_destroy(&self->lock);
}

/* Searches for NVRTC and opens it. If memory runs out, the next call searches again. */
static void compile_look(fxa__cuda_self *self) {
    fxa_error *why = &self->no_compiler;
    fxa__ok(why);
    why->status = fxa__nvrtc_open(self->host, self->nvrtc_folder, &self->nvrtc, why);
    self->has_searched = why->status != FXA_E_MEMORY;
    if (why->status == FXA_OK && !fxa__nvrtc_arch(&self->nvrtc, self->arch)) {
        (void)fxa__fail(why, FXA_E_UNSUPPORTED, "NVRTC %d.%d makes no code for sm_%d", self->nvrtc.major,
                        self->nvrtc.minor, (int)self->arch);
        fxa__nvrtc_close(&self->nvrtc);
    }
}

fxa_status fxa__cuda_compiler_find(fxa__cuda_self *self, fxa_error *err) {
    fxa__lock_take(&self->lock);
    if (!self->has_searched) compile_look(self);
    fxa_error why = self->no_compiler;
    fxa__lock_give(&self->lock);
    if (why.status == FXA_OK) return FXA_OK;
    return fxa__fail(err, why.status == FXA_E_MEMORY ? FXA_E_MEMORY : FXA_E_UNSUPPORTED, "%s", why.text);
}

/* ---- Options and sources ----------------------------------------------------------------------------------------- */

static void compile_define(compile_jobs *r, const char *name, int32_t value) {
    FXA__ASSERT(r->n_options < COMPILE_OPTIONS);
    int length = snprintf(r->option[r->n_options], COMPILE_OPTION, "-D%s=%d", name, (int)value);
    FXA__ASSERT(length < COMPILE_OPTION);
    r->options[r->n_options] = r->option[r->n_options];
    r->n_options++;
}

/* Writes the compiler's options. lines: true = line numbers in the code. */
static void compile_options(const fxa__cuda_choice *c, int32_t arch, bool lines, compile_jobs *r) {
    (void)snprintf(r->option[0], COMPILE_OPTION, "--gpu-architecture=sm_%d%s", (int)arch, c->recipe->arch_suffix);
    r->options[0] = r->option[0];
    r->options[1] = "--std=c++17";
    r->options[2] = "-default-device";
    r->options[3] = "-lineinfo";
    r->n_options = lines ? 4 : 3;
#define COMPILE_SETTING(member, macro, otherwise, meaning) compile_define(r, #macro, c->traits.member);
    FXA_SETTINGS(COMPILE_SETTING)
#undef COMPILE_SETTING
}

static bool compile_is_header(const char *name) {
    size_t n = strlen(name);
    return n < 3 || strcmp(name + n - 3, ".cu") != 0;
}

static void compile_headers(compile_jobs *r, const char *program) {
    for (size_t i = 0; i < fxa__cuda_source_count; i++) {
        if (!compile_is_header(fxa__cuda_sources[i].name)) continue;
        r->names[r->n_headers] = fxa__cuda_sources[i].name;
        r->headers[r->n_headers++] = fxa__cuda_sources[i].text;
    }
    r->names[r->n_headers] = "program.cuh";
    r->headers[r->n_headers++] = program;
}

static const char *compile_source(const char *file) {
    for (size_t i = 0; i < fxa__cuda_source_count; i++)
        if (strcmp(fxa__cuda_sources[i].name, file) == 0) return fxa__cuda_sources[i].text;
    return NULL;
}

/* ---- Units that programs share ----------------------------------------------------------------------------------- */

static const fxa__cuda_shared_unit *compile_find_kept(const fxa__cuda_self *self, const compile_jobs *r,
                                                      fxa__cuda_unit unit) {
    const fxa__cuda_shared_unit *k = atomic_load_explicit(&self->shared_units, memory_order_acquire);
    while (k && (k->unit != unit || memcmp(k->option, r->option, sizeof k->option) != 0)) k = k->next;
    return k;
}

/* Copies the shared cubin of a unit (source file) into the code, if it was compiled with these options. *there: true =
 * copied. */
static fxa_status compile_copy_kept(const fxa__cuda_self *self, const compile_jobs *r, fxa__cuda_unit unit,
                                    fxa__cuda_code *code, bool *there, fxa_error *err) {
    const fxa__cuda_shared_unit *kept = fxa__cuda_units[unit].has_program ? NULL : compile_find_kept(self, r, unit);
    *there = kept != NULL;
    if (!kept) return FXA_OK;
    fxa__cuda_module *m = &code->unit[unit];
    m->cubin = fxa__alloc(code->host, kept->size);
    if (!m->cubin) return fxa__fail_memory(err, "compiled kernels");
    memcpy(m->cubin, kept->cubin, kept->size);
    m->size = kept->size;
    return FXA_OK;
}

/* Adds a compiled unit (source file) to self->shared_units, unless memory runs out or the list has COMPILE_KEPT units.
 * Threads that compile the same unit at the same time may each add it. */
static void compile_keep(fxa__cuda_self *self, const compile_jobs *r, fxa__cuda_unit unit, const fxa__cuda_module *m) {
    fxa__cuda_shared_unit *first = atomic_load_explicit(&self->shared_units, memory_order_acquire);
    if (fxa__cuda_units[unit].has_program || (first && first->count >= COMPILE_KEPT)) return;
    fxa__cuda_shared_unit *k = fxa__alloc(self->host, sizeof *k + m->size);
    if (!k) return;
    k->unit = unit;
    memcpy(k->option, r->option, sizeof k->option);
    k->size = m->size;
    memcpy(k->cubin, m->cubin, m->size);
    do {
        k->next = first;
        k->count = first ? first->count + 1 : 1;
    } while (!atomic_compare_exchange_weak(&self->shared_units, &first, k));
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

static void compile_add(compile_jobs *r, const fxa__cuda_choice *choice, fxa__cuda_unit unit) {
    char *name = r->file[r->n_jobs];
    int length = snprintf(name, sizeof r->file[0], "%s.cu", fxa__cuda_unit_source(choice, unit));
    const char *source = compile_source(name);
    FXA__ASSERT(source && length < (int)sizeof r->file[0] && r->n_jobs < FXA__CUDA_UNIT_COUNT);
    r->unit[r->n_jobs] = unit;
    r->jobs[r->n_jobs++] =
        (fxa__nvrtc_job){source, name, r->headers, r->names, r->n_headers, r->options, r->n_options, .cubin = NULL};
}

/* Compiles all units (source files) of the choice whose cubins are not shared. Uses one thread if the caller runs plans
 * on threads of its own. */
static fxa_status compile_all(fxa__cuda_self *self, fxa__cuda_code *code, compile_jobs *r, const char *program,
                              fxa_error *err) {
    compile_headers(r, program);
    compile_options(&code->choice, code->maker.arch, self->with_lines, r);
    for (int i = 0; i < FXA__CUDA_UNIT_COUNT; i++) {
        fxa__cuda_unit unit = (fxa__cuda_unit)i;
        bool there = true;
        if (code->choice.units >> i & 1u) FXA_TRY(compile_copy_kept(self, r, unit, code, &there, err));
        if (!there) compile_add(r, &code->choice, unit);
    }
    int32_t width = code->host->parallel ? 1 : code->host->width;
    FXA_TRY(fxa__nvrtc_compile(&self->nvrtc, code->host, r->jobs, r->n_jobs, width, err));
    for (int i = 0; i < r->n_jobs; i++) {
        fxa__cuda_module *m = &code->unit[r->unit[i]];
        m->cubin = r->jobs[i].cubin;
        m->size = r->jobs[i].size;
        compile_keep(self, r, r->unit[i], m);
    }
    return FXA_OK;
}

/* Writes program.cuh: the generated text, and defaults of the switches that the text does not define. */
static void compile_write_program(const fxa__cuda_program *program, fxa__writer *w) {
    fxa__write_bytes(w, program->text.data, program->text.size);
#define COMPILE_DEFAULT(member, macro, otherwise, meaning)                                                             \
    fxa__write_format(w, "#ifndef %s\n#define %s %s\n#endif\n", #macro, #macro, #otherwise);
    FXA_SWITCHES(COMPILE_DEFAULT)
#undef COMPILE_DEFAULT
    fxa__write_bytes(w, "", 1);
}

fxa_status fxa__cuda_compile(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err) {
    FXA_TRY(fxa__cuda_compiler_find(self, err));
    const fxa__nvrtc *nvrtc = &self->nvrtc;
    code->maker = (struct fxa__cuda_compiled_by){nvrtc->major, nvrtc->minor, fxa__nvrtc_arch(nvrtc, self->arch)};
    size_t n_sources = fxa__cuda_source_count + 1;
    compile_jobs *r = fxa__alloc(code->host, sizeof *r);
    const char **names = fxa__alloc_array(code->host, 2 * n_sources, sizeof *names);
    fxa__writer program = {.host = code->host};
    compile_write_program(&code->program, &program);
    fxa_status status = FXA_OK;
    if (r && names && !program.failed) {
        r->names = names;
        r->headers = names + n_sources;
        status = compile_all(self, code, r, (const char *)program.data, err);
    } else {
        status = fxa__fail_memory(err, "the sources of kernels");
    }
    fxa__writer_free(&program);
    fxa__free(code->host, names, 2 * n_sources * sizeof *names);
    fxa__free(code->host, r, sizeof *r);
    return status;
}
