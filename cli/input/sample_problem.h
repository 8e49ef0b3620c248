/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem with random data, ready to run forward and backward. `check` compares trials, `bench` times them. All
 * arrays are contiguous [B,H,S,D]. Random data is drawn once in f64 (trial_data), and each trial rounds the data to its
 * dtype.
 */
#ifndef FXA_CLI_TRIAL_H
#define FXA_CLI_TRIAL_H

#include "input/job.h"

enum { DATA_Q, DATA_K, DATA_V, DATA_DO, DATA_DLSE, DATA_COUNT };

typedef struct trial_data {
    int64_t size[DATA_COUNT][4]; /* [B,H,S,D]; D is 1 for dLSE */
    int64_t count[DATA_COUNT];
    double *value[DATA_COUNT];
} trial_data;

void trial_data_make(cli *c, const fxa_problem *p, cli_random *random, trial_data *out);

fxa_dtype trial_row_dtype(fxa_dtype dtype); /* Returns the dtype of LSE and dLSE if Q has `dtype`. */

/* A result of a run. */
typedef struct trial_array {
    const char *name; /* "O", "LSE", "dQ", "dslopes" */
    bool backward;
    fxa_dtype dtype;
    int rank;
    int64_t size[FXA_MAX_RANK], count;
    void *data;
} trial_array;

#define TRIAL_MAX_ARRAYS (8 + FXA_MAX_TENSORS + FXA_MAX_PARAMS)

typedef struct trial {
    fxa_problem problem[2]; /* by fxa_pass */
    fxa_plan *plan[2];      /* [fxa_pass]; [FXA_BACKWARD] is NULL if only forward runs */
    void *dtensors[FXA_MAX_TENSORS];
    double dparams[FXA_MAX_PARAMS];
    fxa_args args;
    trial_array arrays[TRIAL_MAX_ARRAYS];
    size_t n_arrays;
} trial;

/* Makes plans and memory for the job's problem in `dtype` on `engine` (NULL = automatic). Without backward, forward
 * computes O only. If with_bprop is false, the user-written backward is not used. All values of the job must be bound.
 * Returns an exit code. */
int trial_make(cli *c, cli_job *job, const trial_data *data, fxa_dtype dtype, const char *engine, bool backward,
               bool with_bprop, trial **out);
int trial_run(cli *c, trial *t, fxa_pass pass);

#endif
