/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference engine's table. It has no code to compile or save: it interprets the problem, so it runs everything
 * that the validator lets through, at any geometry, and always the same way.
 */
#include "ref.h"

static void ref_query(const fxa__problem *p, fxa_support *report) {
    (void)p;
    report->supported = 1;
    report->deterministic = 1;
    report->reason[0] = '\0';
}

static fxa_status ref_compile(fxa__host *host, const fxa__problem *p, void **code, size_t *bytes, fxa_error *err) {
    (void)host, (void)p;
    *code = NULL;
    *bytes = 0;
    return fxa__ok(err);
}

static void ref_release(fxa__host *host, void *code) { (void)host, (void)code; }

static bool ref_workspace(const void *code, const fxa__problem *p, size_t *bytes) {
    (void)code;
    fxa__ref r;
    return fxa__ref_layout(p, NULL, &r, bytes);
}

static fxa_status ref_run(const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    (void)code;
    size_t bytes;
    fxa__ref r = {.p = p, .bind = bind, .env = {.params = bind->params, .tensors = bind->tensors}};
    if (!fxa__ref_layout(p, bind->workspace, &r, &bytes) || bytes > bind->workspace_size)
        return fxa__fail(err, FXA_E_WORKSPACE, "the reference engine needs a workspace of %zu bytes, %zu were given",
                         bytes, bind->workspace_size);
    if (p->in.pass == FXA_FORWARD)
        fxa__ref_forward(&r);
    else
        fxa__ref_backward(&r);
    return fxa__ok(err);
}

const fxa__engine fxa__engine_ref = {
    .name = "ref",
    .version = 3,
    .dynamic_geometry = true,
    .device = false,
    .query = ref_query,
    .compile = ref_compile,
    .release = ref_release,
    .workspace = ref_workspace,
    .run = ref_run,
    .save = NULL,
    .load = NULL,
};
