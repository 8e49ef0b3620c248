/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a job whose float tensors are f64 on the host: gradients are then not rounded, and steps of finite differences
 * are exact.
 */
#include "check/check.h"

#include <string.h>

/* Makes the program whose text declares every float tensor as f64. */
static int widen_program(cli *c, const fxa_program *program, fxa_program **out) {
    const char *text = program_text(c, program);
    static const char *const narrow[] = {"f32[", "bf16[", "f16[", "e4m3[", "e5m2["};
    cli_buf wide = {0};
    fxa_error err;
    if (!text) return cli_exit_code(c->error.status);
    while (*text) {
        size_t n = strcspn(text, "\n") + 1, cut = 0;
        const char *colon = strncmp(text, "tensor ", 7) == 0 ? memchr(text, ':', n) : NULL;
        if (!text[n - 1]) n--;
        for (size_t i = 0; colon && i < sizeof narrow / sizeof *narrow; i++)
            if (strncmp(colon + 2, narrow[i], strlen(narrow[i])) == 0) cut = strlen(narrow[i]);
        if (cut) {
            buf_add(&wide, text, (size_t)(colon + 2 - text));
            buf_text(&wide, "f64[");
            buf_add(&wide, colon + 2 + cut, n - (size_t)(colon + 2 + (ptrdiff_t)cut - text));
        } else
            buf_add(&wide, text, n);
        text += n;
    }
    fxa_status status = fxa_program_parse(c->ctx, wide.data ? wide.data : "", wide.size, out, &err);
    buf_free(&wide);
    if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, *out);
    return CLI_OK;
}

int check_widen(cli *c, const cli_job *job, cli_job **out) {
    cli_job *wide = *out = cli_alloc(c, sizeof *wide);
    *wide = *job;
    wide->problem = problem_on_host(&job->problem);
    int rc = widen_program(c, job->program, &wide->program);
    wide->problem.program = wide->program;
    wide->problem.captures = wide->bind.captures;
    for (size_t i = 0; rc == CLI_OK && i < wide->bind.n_tensors; i++) {
        fxa_view *view = &wide->bind.views[i];
        npy a = {.dtype = view->dtype, .rank = view->rank, .count = 1, .data = (void *)(uintptr_t)view->data};
        if (!dtype_is_float(view->dtype)) continue;
        for (int d = 0; d < a.rank; d++) {
            a.size[d] = view->size[d];
            a.stride[d] = view->stride[d];
            a.count *= a.size[d];
        }
        view->dtype = FXA_F64;
        view->data = wide->bind.data[i] = npy_as_float(c, &a, FXA_F64);
        wide->bind.captures[i].strided = 0; /* the copy is contiguous */
        memset(wide->bind.captures[i].stride, 0, sizeof wide->bind.captures[i].stride);
    }
    return rc;
}
