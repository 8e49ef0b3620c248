/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of `run`: files read (run_inputs.c), problem and pointers made of them, files to write (run_outputs.c).
 */
#ifndef FXA_CLI_RUN_H
#define FXA_CLI_RUN_H

#include "indices.h"

enum { AXIS_BATCH, AXIS_HEAD, AXIS_POSITION, AXIS_FEATURE, AXIS_COUNT };

typedef struct run_output {
    const char *what; /* option, and the name for a tensor or param */
    const char *path;
    int handle;
    fxa_dtype dtype;
    int rank;
    int64_t size[NPY_MAX_RANK];
    void *data;
} run_output;

typedef struct run_state {
    cli_job *job;
    int axis[2][AXIS_COUNT]; /* where each axis of rows, and of keys, is in a file; -1: not there (packed: no batch) */
    int rank[2];             /* of Q and O; of K and V */
    bool packed, paged, backward;
    npy q, k, v, dout;
    fxa_dtype row_dtype; /* of the row maximum and dLSE; LSE is f64 */
    fxa_problem forward_problem, backward_problem;
    fxa_capture captures[FXA_MAX_TENSORS]; /* with gradients asked for */
    fxa_args args;
    void *dtensors[FXA_MAX_TENSORS];
    double dparams[FXA_MAX_PARAMS];
    indices outside;
    int64_t rows, empty_rows; /* of all heads; empty: attending to nothing */
    run_output *outputs;
    size_t n_outputs;
} run_state;

/* Everything that is read; fills forward_problem (sizes, operands, flags) and the input slots of args. */
int run_read_inputs(cli *c, run_state *r);
/* Allocates what is computed, completes both problems, lists the files asked for. */
int run_prepare_outputs(cli *c, run_state *r);
int run_write_outputs(cli *c, run_state *r);
/* Rows that attend to nothing, counted by their maxima, and told. */
void run_count_rows(run_state *r);
void run_warn_rows(cli *c, const run_state *r);
/* Warns of NaN in what was computed. CLI_CHECK_FAILED when an output holds nothing else. */
int run_warn_outputs(cli *c, const run_state *r);
/* Sizes of Q or O in the order of the file. */
void run_file_sizes(const run_state *r, int64_t batch, int64_t head, int64_t position, int64_t feature, int64_t *size);
/* How an array in the file's order, of rows or of keys, lies in memory. */
fxa_operand run_operand(const run_state *r, bool keys, fxa_dtype dtype, const int64_t *stride);

#endif
