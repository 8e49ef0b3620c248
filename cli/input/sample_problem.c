/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes and runs problems with random data, for check and bench.
 */
#include "input/sample_problem.h"

#include <string.h>

void trial_data_make(cli *c, const fxa_problem *p, cli_random *random, trial_data *out) {
    const int64_t size[DATA_COUNT][4] = {{p->b, p->hq, p->sq, p->d_qk},
                                         {p->b, p->hkv, p->sk, p->d_qk},
                                         {p->b, p->hkv, p->sk, problem_dv(p)},
                                         {p->b, p->hq, p->sq, problem_dv(p)},
                                         {p->b, p->hq, p->sq, 1}};
    for (int i = 0; i < DATA_COUNT; i++) {
        int64_t count = 1;
        double all = sizeof(double);
        for (int d = 0; d < 4; d++) all *= (double)size[i][d];
        for (int d = 0; d < 4; d++)
            if (__builtin_mul_overflow(count, size[i][d], &count)) cli_out_of_memory(all);
        memcpy(out->size[i], size[i], sizeof size[i]);
        out->count[i] = count;
        out->value[i] = cli_alloc_array(c, count, sizeof(double));
        for (int64_t k = 0; k < count; k++) out->value[i][k] = random_real(random, -1.5, 1.5);
    }
}

fxa_dtype trial_row_dtype(fxa_dtype dtype) { return dtype == FXA_F64 ? FXA_F64 : FXA_F32; }

static void *trial_round(cli *c, const trial_data *data, int which, fxa_dtype dtype) {
    void *out = cli_alloc_array(c, data->count[which], fxa_dtype_size(dtype));
    for (int64_t i = 0; i < data->count[which]; i++) element_set(dtype, out, i, data->value[which][i]);
    return out;
}

static void *trial_add(cli *c, trial *t, const char *name, bool backward, fxa_dtype dtype, int rank,
                       const int64_t *size) {
    trial_array *a = &t->arrays[t->n_arrays++];
    *a = (trial_array){name, backward, dtype, rank, {0}, 1, NULL};
    for (int i = 0; i < rank; i++) {
        a->size[i] = size[i];
        a->count *= size[i];
    }
    return a->data = cli_alloc_array(c, a->count, fxa_dtype_size(dtype));
}

static void trial_add_values(cli *c, trial *t, cli_job *job) {
    for (size_t i = 0; i < job->bind.n_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(job->program, i);
        if (t->plan[FXA_BACKWARD] && job->grad_captures[i].grad)
            t->dtensors[i] =
                trial_add(c, t, cli_format(c, "d %s", info.name), true, info.dtype, info.rank, job->bind.views[i].size);
    }
    for (size_t i = 0; i < job->bind.n_params; i++) {
        if (!(t->problem[FXA_BACKWARD].param_grads >> i & 1)) continue;
        trial_array *a = &t->arrays[t->n_arrays++];
        *a = (trial_array){
            cli_format(c, "d %s", fxa_program_param(job->program, i).name), true, FXA_F64, 0, {0}, 1, &t->dparams[i]};
    }
    t->args.params = job->bind.params;
    t->args.n_params = t->args.n_dparams = job->bind.n_params;
    t->args.dparams = t->dparams;
    t->args.tensors = job->bind.data;
    t->args.n_tensors = t->args.n_dtensors = job->bind.n_tensors;
    t->args.dtensors = t->dtensors;
    t->args.bprop_params = job->bprop_bind.params;
    t->args.bprop_tensors = job->bprop_bind.data;
    bool own = t->problem[FXA_BACKWARD].bprop != NULL;
    t->args.n_bprop_params = own ? job->bprop_bind.n_params : 0;
    t->args.n_bprop_tensors = own ? job->bprop_bind.n_tensors : 0;
}

static void trial_add_arrays(cli *c, trial *t, cli_job *job, const trial_data *data, fxa_dtype dtype) {
    static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DO, FXA_SLOT_DLSE};
    static const fxa_slot gradients[] = {FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    static const char *const names[] = {"dQ", "dK", "dV"};
    fxa_dtype row = trial_row_dtype(dtype);
    for (int i = 0; i < DATA_COUNT; i++)
        t->args.slot[inputs[i]] = trial_round(c, data, i, i == DATA_DLSE ? row : dtype);
    t->args.slot[FXA_SLOT_O] = trial_add(c, t, "O", false, dtype, 4, data->size[DATA_DO]);
    bool backward = t->plan[FXA_BACKWARD] != NULL;
    if (backward) t->args.slot[FXA_SLOT_LSE] = trial_add(c, t, "LSE", false, FXA_F64, 3, data->size[DATA_DLSE]);
    for (int i = 0; backward && i < 3; i++)
        t->args.slot[gradients[i]] = trial_add(c, t, names[i], true, dtype, 4, data->size[i]);
    trial_add_values(c, t, job);
}

static int trial_make_plans(cli *c, trial *t, bool backward) {
    size_t workspace = 0;
    fxa_error err;
    for (int pass = 0; pass <= backward; pass++) {
        if (fxa_plan_create(c->ctx, &t->problem[pass], &t->plan[pass], &err) != FXA_OK)
            return cli_fail_library(c, &err, NULL);
        cli_own_plan(c, t->plan[pass]);
        size_t need = fxa_plan_workspace(t->plan[pass]);
        workspace = need > workspace ? need : workspace;
    }
    problem_workspace(c, &t->problem[FXA_FORWARD], workspace, &t->args);
    return CLI_OK;
}

int trial_make(cli *c, cli_job *job, const trial_data *data, fxa_dtype dtype, const char *engine, bool backward,
               bool with_bprop, trial **out) {
    trial *t = *out = cli_alloc(c, sizeof *t);
    t->args = (fxa_args)FXA_ARGS_INIT;
    int rc = opt_double(c, OPT_SCALE, &t->args.scale);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &t->args.seed);
    if (rc != CLI_OK) return rc;
    t->problem[FXA_FORWARD] = job->problem;
    t->problem[FXA_FORWARD].engine = engine;
    t->problem[FXA_FORWARD].q.dtype = (uint32_t)dtype;
    if (backward) {
        t->problem[FXA_FORWARD].flags |= FXA_RETURN_LSE;
        t->problem[FXA_FORWARD].lse.dtype = FXA_F64; /* f64 keeps LSE exact between the passes */
        fxa_problem *p = &t->problem[FXA_BACKWARD];
        *p = job_backward(job);
        p->engine = engine;
        p->q.dtype = (uint32_t)dtype;
        p->lse.dtype = FXA_F64;
        p->flags |= FXA_READ_DLSE;
        if (!with_bprop) {
            p->bprop = NULL;
            p->n_bprop_captures = 0;
        }
    }
    rc = trial_make_plans(c, t, backward);
    if (rc == CLI_OK) trial_add_arrays(c, t, job, data, dtype);
    return rc;
}

int trial_run(cli *c, trial *t, fxa_pass pass) {
    fxa_error err;
    t->args.progress = progress_hook();
    fxa_status status = problem_run(c, &t->problem[pass], t->plan[pass], &t->args, &err);
    return status == FXA_OK ? CLI_OK : cli_fail_library(c, &err, NULL);
}
