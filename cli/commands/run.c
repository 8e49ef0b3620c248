/* SPDX-License-Identifier: Apache-2.0
 *
 * run: reads .npy files and writes .npy files; forward, and backward if --dout is given. Output files appear when all
 * results are complete.
 */
#include "explain/explain.h"
#include "input/invented_values.h"
#include "run/run.h"

#include <inttypes.h>
#include <string.h>

typedef struct run_pass {
    const char *name, *engine;
    size_t workspace;
    double seconds;
} run_pass;

static int run_one(cli *c, run_state *r, const fxa_problem *problem, run_pass *pass) {
    fxa_plan *plan = NULL;
    fxa_error err;
    if (fxa_plan_create(c->ctx, problem, &plan, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_plan(c, plan);
    pass->engine = fxa_plan_engine(plan);
    pass->workspace = fxa_plan_workspace(plan);
    problem_workspace(c, problem, pass->workspace, &r->args);
    progress_begin(c, pass->name, 1);
    r->args.progress = progress_hook();
    double start = cli_seconds();
    fxa_status status = problem_run(c, problem, plan, &r->args, &err);
    pass->seconds = cli_seconds() - start;
    progress_end();
    return status == FXA_OK ? CLI_OK : cli_fail_library(c, &err, NULL);
}

static void run_bind_values(run_state *r) {
    cli_job *job = r->job;
    fxa_args *a = &r->args;
    a->params = job->bind.params;
    a->n_params = job->bind.n_params;
    a->tensors = job->bind.data;
    a->n_tensors = job->bind.n_tensors;
    a->dtensors = r->dtensors;
    a->n_dtensors = job->bind.n_tensors;
    a->dparams = r->dparams;
    a->n_dparams = job->bind.n_params;
    a->bprop_params = job->bprop_bind.params;
    a->n_bprop_params = job->bprop_bind.n_params;
    a->bprop_tensors = job->bprop_bind.data;
    a->n_bprop_tensors = job->bprop_bind.n_tensors;
}

/* Warns about indices outside their tensors, in the score program and, if there is a backward pass, in the program of
 * the backward pass. */
static int run_check_indices(cli *c, run_state *r) {
    int rc = index_report_find(c, r->backward ? &r->backward_problem : &r->forward_problem, &r->args, &r->outside);
    bool strict = r->forward_problem.flags & FXA_BOUNDS_CHECK; /* with BOUNDS_CHECK the run itself fails */
    for (size_t i = 0; rc == CLI_OK && !strict && i < r->outside.n; i++)
        cli_warn(c, "%s", index_report_text(c, r->job, &r->outside.list[i]));
    return rc;
}

static void run_report_json(cli *c, const run_state *r, const run_pass *passes) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_string(&j, "engine", passes[0].engine);
    json_string(&j, "device", problem_device_text(c, &r->forward_problem));
    problem_shape_json(&j, "shape", &r->forward_problem);
    json_string(&j, "dtype", fxa_dtype_name(r->q.dtype));
    for (int i = 0; i <= r->backward; i++) {
        json_open(&j, passes[i].name, '{');
        json_string(&j, "engine", passes[i].engine);
        json_uint(&j, "workspace", passes[i].workspace);
        json_number(&j, "seconds", passes[i].seconds);
        json_close(&j, '}');
    }
    invented_json_defaults(&j, r->job);
    json_open(&j, "files", '[');
    for (size_t i = 0; i < r->n_outputs; i++) {
        const run_output *o = &r->outputs[i];
        json_open(&j, NULL, '{');
        json_string(&j, "what", o->what);
        json_string(&j, "file", o->path);
        json_string(&j, "dtype", fxa_dtype_name(o->dtype));
        json_open(&j, "shape", '[');
        for (int d = 0; d < o->rank; d++) json_int(&j, NULL, o->size[d]);
        json_close(&j, ']');
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_int(&j, "rows", r->rows);
    json_int(&j, "rows_empty", r->empty_rows);
    index_report_json(&j, r->job, &r->outside);
    json_warnings(&j, c);
    json_close(&j, '}');
}

static void run_report(cli *c, const run_state *r, const run_pass *passes) {
    int width = 8;
    for (size_t i = 0; i < r->n_outputs; i++)
        if ((int)strlen(r->outputs[i].what) > width) width = (int)strlen(r->outputs[i].what);
    buf_printf(&c->out, "%s, %s%s\n", problem_shape_text(c, &r->forward_problem), fxa_dtype_name(r->q.dtype),
               problem_on_text(c, &r->forward_problem));
    const char *unsaid = invented_text(c, r->job);
    if (*unsaid) buf_printf(&c->out, "%s\n", unsaid);
    for (int i = 0; i <= r->backward; i++)
        buf_printf(&c->out, "%-*s  engine %s, workspace %zu bytes, %.3g s\n", width, passes[i].name, passes[i].engine,
                   passes[i].workspace, passes[i].seconds);
    for (size_t i = 0; i < r->n_outputs; i++)
        buf_printf(&c->out, "%-*s  %s  %s%s\n", width, r->outputs[i].what, r->outputs[i].path,
                   fxa_dtype_name(r->outputs[i].dtype), sizes_text(c, r->outputs[i].size, r->outputs[i].rank));
}

int cmd_run(cli *c) {
    run_state *r = cli_alloc(c, sizeof *r);
    run_pass passes[2] = {{"forward", "", 0, 0}, {"backward", "", 0, 0}};
    r->backward = opt_has(c, OPT_DOUT);
    int rc = job_make_program(c, &r->job);
    if (rc == CLI_OK) rc = binding_require(c, &r->job->bind, r->job->program, false, true);
    if (rc == CLI_OK && r->job->bprop) rc = binding_require(c, &r->job->bprop_bind, r->job->bprop, false, true);
    if (rc == CLI_OK) rc = run_read_inputs(c, r);
    if (rc == CLI_OK) rc = run_prepare_outputs(c, r);
    if (rc != CLI_OK) return rc;
    run_bind_values(r);
    job_warn_alignment(c, r->job, &r->forward_problem);
    if (values_large_negative_text(r->job->program)) cli_warn(c, "%s", values_large_negative_text(r->job->program));
    values_warn(c, r->job->program, &r->job->bind, r->q.dtype == FXA_F64);
    values_warn_scale(c, r->q.dtype == FXA_F64);
    if (r->job->bprop) values_warn(c, r->job->bprop, &r->job->bprop_bind, r->q.dtype == FXA_F64);
    rc = run_check_indices(c, r);
    if (rc == CLI_OK) rc = run_one(c, r, &r->forward_problem, &passes[0]);
    if (rc == CLI_OK && r->backward) rc = run_one(c, r, &r->backward_problem, &passes[1]);
    if (rc == CLI_OK) rc = run_write_outputs(c, r);
    if (rc != CLI_OK) return rc;
    run_count_rows(r);
    run_warn_rows(c, r);
    rc = run_warn_outputs(c, r);
    if (c->json)
        run_report_json(c, r, passes);
    else
        run_report(c, r, passes);
    return rc;
}
