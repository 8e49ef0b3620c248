/* SPDX-License-Identifier: Apache-2.0
 *
 * What most commands start with: a job, which is program, params and tensors, shape, and the problem made of these.
 */
#ifndef FXA_CLI_JOB_H
#define FXA_CLI_JOB_H

#include "cli.h"
#include "io/npy.h"

/* ---- Program texts (input/program_texts.c) ----------------------------------------------------------------------- */

#define CLI_MAX_TEXTS 64

typedef struct cli_text {
    const char *name; /* file name, or the option that has the text, "--score" */
    const char *text;
    size_t size;
    fxa_text_kind kind;
} cli_text;
typedef struct cli_texts {
    cli_text list[CLI_MAX_TEXTS];
    size_t n;
} cli_texts;

/* Collects the texts of kind SCORE (--program, --score, --mask) or of kind BPROP (--bprop, --dscore) in the order of
 * the command line. Returns an exit code. */
int texts_collect(cli *c, fxa_program_kind kind, cli_texts *out);
/* Parses the texts into one program, owned by c. On failure prints a message with the position in the text and returns
 * its exit code. */
int texts_parse(cli *c, const cli_texts *s, fxa_program_kind kind, const fxa_declaration *declarations, size_t n,
                fxa_program **out);
/* Returns true if a name occurs in one of the texts. */
bool texts_mention(const cli_texts *s, const char *name);

/* ---- Params and tensors (input/values.c) ------------------------------------------------------------------------- */

typedef struct cli_param {
    const char *name;
    fxa_type type; /* 0 = not given */
    double value;
} cli_param;
typedef struct cli_tensor {
    const char *name;
    fxa_dtype dtype; /* dtype of the data; 0 = only the sizes are given */
    npy array;       /* data and sizes; data NULL = only the sizes are given */
} cli_tensor;
typedef struct cli_values {
    cli_param params[FXA_MAX_PARAMS];
    size_t n_params;
    cli_tensor tensors[FXA_MAX_TENSORS];
    size_t n_tensors;
} cli_values;

int values_collect(cli *c, fxa_program_kind kind, cli_values *out);
/* Writes a declaration for each value, for texts that do not declare the name themselves. Returns the number of
 * declarations, at most FXA_MAX_PARAMS + FXA_MAX_TENSORS. */
size_t values_declare(const cli_values *v, fxa_declaration *out);
const cli_tensor *values_find_tensor(const cli_values *v, const char *name);

/* Warns about values with surprising effects (input/values_warn.c). f64: the arithmetic is in f64. */
struct cli_binding;
void values_warn(cli *c, const fxa_program *program, const struct cli_binding *b, bool f64);
void values_warn_scale(cli *c, bool f64); /* Warns about a --scale that the arithmetic changes. */
/* Returns the warning for a program with FXA_PROPERTY_FINITE_LARGE_NEGATIVE; NULL for other programs. */
const char *values_large_negative_text(const fxa_program *program);

/* Values of the command line in the order of a program's params and tensors. */
typedef struct cli_binding {
    size_t n_params, n_tensors;
    double params[FXA_MAX_PARAMS];
    bool has_param[FXA_MAX_PARAMS];
    bool is_default[FXA_MAX_PARAMS]; /* [param] true = the value is the program's default */
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa_view views[FXA_MAX_TENSORS]; /* [tensor] data and layout; data NULL = no data */
    const void *data[FXA_MAX_TENSORS];
    bool sized[FXA_MAX_TENSORS];
} cli_binding;

int values_bind(cli *c, const cli_values *v, const cli_texts *s, const fxa_program *program, cli_binding *out);
/* Fails unless every param has a value (only if `params`) and every tensor has data (with only_sizes: has sizes).
 * Returns an exit code. */
int binding_require(cli *c, const cli_binding *b, const fxa_program *program, bool only_sizes, bool params);
/* Fills missing sizes with `side`, missing data and params with random values. */
void binding_fill(cli *c, cli_binding *b, const fxa_program *program, int64_t side, cli_random *random);
/* Returns the value ranges of all tensors, known for int tensors with data; NULL if the program has no tensors. Owned
 * by c. */
fxa_tensor_range *binding_ranges(cli *c, const cli_binding *b);
/* Returns the values of the params; NULL unless all params have a value. */
const double *binding_params(const cli_binding *b);

/* ---- Job (input/job.c, input/shape_args.c) ----------------------------------------------------------------------- */

enum { SHAPE_B, SHAPE_H, SHAPE_HKV, SHAPE_S, SHAPE_SQ, SHAPE_SK, SHAPE_D, SHAPE_DV, SHAPE_COUNT };
extern const char *const shape_keys[SHAPE_COUNT];
typedef struct cli_shape {
    int64_t value[SHAPE_COUNT];
    bool given[SHAPE_COUNT];
} cli_shape;
/* Reads a shape such as "b=2,h=8,s=1024". text NULL: no size is given. name: option for messages. Returns an exit
 * code. */
int shape_read(cli *c, const char *name, const char *text, cli_shape *out);
/* Sets missing sizes to b=1,h=1,s=128,d=64, or with `small` to the smaller defaults of `check`. */
void shape_resolve(cli_shape *shape, bool small);

/* A value that the command line leaves open and that a command invented (input/invented_values.h). */
typedef struct invented_value {
    const char *kind, *name; /* "param", "tensor", "size" */
    double value;            /* value of a param or size */
    fxa_view view;           /* a tensor; dtype 0 = a param or size */
    bool sized;              /* true = sizes of the tensor were given */
    bool ids;                /* true = values of the tensor ascend like document ids */
} invented_value;
#define INVENTED_MAX (2 * (FXA_MAX_PARAMS + FXA_MAX_TENSORS) + SHAPE_COUNT)

typedef struct cli_job {
    cli_texts sources, bprop_sources;
    cli_values values, bprop_values;
    fxa_program *program, *bprop; /* score program and user-written backward; bprop NULL = the derived derivative */
    cli_binding bind, bprop_bind;
    cli_shape shape;
    fxa_capture grad_captures[FXA_MAX_TENSORS]; /* captures of job_backward */
    bool qkv;                                   /* true = --grads qkv: no gradients of params and captured tensors */
    invented_value invented[INVENTED_MAX];
    size_t n_invented;
    fxa_problem problem; /* problem of the forward pass; its pointers point into this struct */
} cli_job;

/* Makes a job with program, values, flags and engine, without sizes. Returns an exit code. */
int job_make_program(cli *c, cli_job **out);
/* Makes a job like job_make_program, and sets the shape and dtype of the command line. small: default shape of
 * `check`. */
int job_make(cli *c, bool small, cli_job **out);
/* Sets *layout to the fxa_layout of --layout; leaves it unchanged without that option. Returns an exit code. */
int job_read_layout(cli *c, int *layout);
/* Sets the sizes of the job's problem, with defaults for missing ones. */
void job_set_shape(cli_job *job, const cli_shape *shape, bool small);
/* Makes the program that runs, with built-in masks; owned by c. Returns an exit code. */
int job_run_program(cli *c, const cli_job *job, fxa_program **out);
/* Returns the canonical text of a program, owned by c; NULL after a message. */
const char *program_text(cli *c, const fxa_program *program);
/* Returns the problem of a backward pass: with all gradients, or with job->qkv those of Q, K and V only. */
fxa_problem job_backward(cli_job *job);
/* Returns the problem for which a plan is made: for backward that of job_backward, for forward one with LSE. */
fxa_problem job_planned(cli_job *job, fxa_pass pass);
/* Returns the number that is added to q for the lengths of the shape if rows align to the last key (--decode, or
 * --bottom-right without a built-in mask); else 0. */
int64_t problem_row_shift(const fxa_problem *p);
/* Returns the head dim of V and O. */
static inline int64_t problem_dv(const fxa_problem *p) {
    return p->d_v == FXA_D_V_ZERO ? 0 : p->d_v == 0 ? p->d_qk : p->d_v;
}
/* Returns the number of query heads per KV head; 1 if there are no heads. */
static inline int64_t problem_group(const fxa_problem *p) { return p->hkv > 0 ? p->hq / p->hkv : 1; }
/* Warns if built-in masks are aligned to the last key while q in the program is not. problem: the job's problem with
 * sizes. */
void job_warn_alignment(cli *c, const cli_job *job, const fxa_problem *problem);
/* Fails if sq or sk exceeds the range of a program's ints. For commands that loop over pairs. */
int job_require_small(cli *c, const cli_job *job);
/* Fails if random data, in f64 and in the dtype, exceeds the machine's memory. */
int job_require_memory(cli *c, const cli_job *job);
double problem_pairs(const fxa_problem *p); /* Returns the number of pairs of all batch entries and heads. */

/* ---- Devices (run/device.c) -------------------------------------------------------------------------------------- */

/* Reads --device and --target into the problem. Returns an exit code. */
int job_read_device(cli *c, fxa_problem *problem);
/* Returns the name of the problem's device, "host" or "cuda:0"; owned by c. */
const char *problem_device_text(cli *c, const fxa_problem *p);
/* Returns the problem moved to the host, for checks that read only host data. */
fxa_problem problem_on_host(const fxa_problem *p);
/* Returns ", on cuda:0" for a message, or "" for a problem on the host. */
const char *problem_on_text(cli *c, const fxa_problem *p);
/* Allocates the workspace of a run on the host. On a device, fxa_attention allocates the workspace. */
void problem_workspace(cli *c, const fxa_problem *p, size_t size, fxa_args *args);
/* Runs a plan of p on host data; on a device, with fxa_attention. */
fxa_status problem_run(cli *c, const fxa_problem *p, const fxa_plan *plan, const fxa_args *args, fxa_error *err);

#endif
