/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine table of the reference engine. The engine interprets programs, so it supports every valid problem, and is
 * deterministic. The code of a backward pass is the derivative of the score program; a forward pass has no code.
 */
#include "ref.h"

#include "../../problem/scales.h"

typedef struct ref_code {
    fxa__host *host;
    fxa_program *derivative;
} ref_code;

/* Returns the derivative that `code`, the ref_code of a plan, contains; NULL for a forward pass, which has no code. */
static const fxa_program *ref_derivative_of(const void *code) {
    return code ? ((const ref_code *)code)->derivative : NULL;
}

static fxa_status ref_analyze(void *self, const fxa__problem *p, void **code, fxa_error *err) {
    (void)self;
    fxa_program *derivative = NULL;
    *code = NULL;
    if (p->in.pass == FXA_FORWARD) return fxa__ok(err);
    FXA_TRY(fxa_program_derivative(p->program, &derivative, err));
    ref_code *made = fxa__alloc(p->host, sizeof *made);
    if (!made) {
        fxa_program_destroy(derivative);
        return fxa__fail_memory(err, "the code of the reference engine");
    }
    *made = (ref_code){p->host, derivative};
    *code = made;
    return fxa__ok(err);
}

static fxa_status ref_compile(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    FXA_TRY(fxa__analysis_get(a, code, err));
    a->derived = NULL;
    *bytes = *code ? sizeof(ref_code) + ((const ref_code *)*code)->derivative->bytes : 0;
    return fxa__ok(err);
}

static void ref_release(void *self, void *code) {
    (void)self;
    ref_code *made = code;
    if (!made) return;
    fxa_program_destroy(made->derivative);
    fxa__free(made->host, made, sizeof *made);
}

static void ref_key(fxa__analysis *a, fxa__writer *w) { fxa__problem_write(a->problem, 0, w); }

static fxa_status ref_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    fxa__ref r;
    size_t bytes;
    void *derived = NULL;
    if (!code) FXA_TRY(fxa__analysis_get(a, &derived, err));
    const fxa_program *derivative = ref_derivative_of(code ? code : derived);
    report->supported = 1;
    report->deterministic = 1;
    report->workspace =
        fxa__ref_layout(a->problem, derivative, fxa__carver_make(NULL), &r, &bytes) ? bytes : UINT64_MAX;
    return FXA_OK;
}

static fxa_status ref_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                          fxa_error *err) {
    (void)self;
    size_t bytes;
    fxa__ref r = {.p = p, .bound = bound, .env = {.params = bound->params, .tensors = bound->tensors}};
    fxa__carver c = fxa__carver_make(bound->workspace);
    if (!fxa__ref_layout(p, ref_derivative_of(code), c, &r, &bytes) || bytes > bound->workspace_size)
        return fxa__fail(err, FXA_E_WORKSPACE, "the reference engine needs a workspace of %zu bytes, %zu were given",
                         bytes, bound->workspace_size);
    fxa__amax_clear(bound);
    if (p->in.pass == FXA_FORWARD)
        fxa__ref_forward(&r);
    else
        fxa__ref_backward(&r);
    return fxa__ok(err);
}

#if FXA_ASSERT
static void ref_zones(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    (void)self;
    fxa__ref r = {.p = p};
    size_t bytes;
    (void)fxa__ref_layout(p, ref_derivative_of(code), fxa__carver_after(workspace), &r, &bytes);
}
#endif

const fxa__engine fxa__engine_ref = {
    .name = "ref",
    .version = 3,
    .device = FXA_HOST,
    .analyze = ref_analyze,
    .analysis_free = ref_release,
    .query = ref_query,
    .key = ref_key,
    .compile = ref_compile,
    .release = ref_release,
    .run = ref_run,
    FXA__ZONES(ref_zones),
};
