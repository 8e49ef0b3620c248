/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the command `run`: inputs (run/inputs.c), problems and pointers, outputs (run/outputs.c).
 */
#ifndef FXA_CLI_RUN_H
#define FXA_CLI_RUN_H

#include "explain/index_report.h"

enum { AXIS_BATCH, AXIS_HEAD, AXIS_POSITION, AXIS_HEAD_DIM, AXIS_COUNT };

typedef struct run_output {
    const char *what; /* option and name of the tensor or param, for messages */
    const char *path;
    int handle;
    fxa_dtype dtype;
    int rank;
    int64_t size[NPY_MAX_RANK];
    void *data;
} run_output;

typedef struct run_state {
    cli_job *job;
    int axis[2]
            [AXIS_COUNT]; /* position of each axis in files: [0] of rows, [1] of keys; -1 = absent (packed: no batch) */
    int rank[2];          /* rank of files, [0] of Q and O, [1] of K and V */
    bool packed, paged, backward;
    npy q, k, v, dout;
    fxa_dtype row_dtype; /* dtype of the row maximum and of dLSE; LSE is f64 */
    fxa_problem forward_problem, backward_problem;
    fxa_capture captures[FXA_MAX_TENSORS]; /* captures of the backward problem, with the requested gradients */
    fxa_args args;
    void *dtensors[FXA_MAX_TENSORS];
    double dparams[FXA_MAX_PARAMS];
    index_report outside;
    int64_t rows, empty_rows; /* number of rows of all heads; empty_rows attend to no key */
    run_output *outputs;
    size_t n_outputs;
} run_state;

/* Reads all inputs; sets sizes, operands and flags of forward_problem, and the input slots of args. Returns an exit
 * code. */
int run_read_inputs(cli *c, run_state *r);
/* Allocates the results, completes both problems, and lists the output files. Returns an exit code. */
int run_prepare_outputs(cli *c, run_state *r);
int run_write_outputs(cli *c, run_state *r);
/* Counts the rows that attend to no key, by their row maximum. */
void run_count_rows(run_state *r);
void run_warn_rows(cli *c, const run_state *r);
/* Warns about NaN in the outputs. Returns CLI_CHECK_FAILED if an output is NaN everywhere. */
int run_warn_outputs(cli *c, const run_state *r);
/* Writes the sizes of Q or O in the axis order of the files. */
void run_file_sizes(const run_state *r, int64_t batch, int64_t head, int64_t position, int64_t feature, int64_t *size);
/* Returns the operand that describes a file's array; keys: its rows are keys. */
fxa_operand run_operand(const run_state *r, bool keys, fxa_dtype dtype, const int64_t *stride);

#endif
