/* SPDX-License-Identifier: Apache-2.0
 *
 * What most commands begin with: a program from the command line, its params and tensors, a shape, and the problem they
 * make together.
 */
#ifndef FXA_CLI_JOB_H
#define FXA_CLI_JOB_H

#include "cli.h"
#include "npy.h"

/* ---- Program texts (sources.c) --------------------------------------------------------------------------------- */

#define CLI_MAX_SOURCES 64

typedef struct cli_source {
    const char *name; /* file, or "--score" */
    const char *text;
    size_t size;
    fxa_text_kind kind;
} cli_source;
typedef struct cli_sources {
    cli_source list[CLI_MAX_SOURCES];
    size_t n;
} cli_sources;

/* All --program, --score, --mask (kind SCORE) or --bprop, --dscore (kind BPROP) in the order of the command line. */
int sources_collect(cli *c, fxa_program_kind kind, cli_sources *out);
/* The program they make together; owned by c. */
int sources_parse(cli *c, const cli_sources *s, fxa_program_kind kind, const fxa_declaration *declarations, size_t n,
                  fxa_program **out);
/* Whether a name stands in one of the texts. */
bool sources_mention(const cli_sources *s, const char *name);

/* ---- Params and tensors (values.c) ----------------------------------------------------------------------------- */

typedef struct cli_param {
    const char *name;
    fxa_type type; /* 0: not said */
    double value;
} cli_param;
typedef struct cli_tensor {
    const char *name;
    fxa_dtype dtype; /* 0: only sizes are known, and no dtype was said */
    npy array;       /* data NULL: only sizes */
} cli_tensor;
typedef struct cli_values {
    cli_param params[FXA_MAX_PARAMS];
    size_t n_params;
    cli_tensor tensors[FXA_MAX_TENSORS];
    size_t n_tensors;
} cli_values;

int values_collect(cli *c, fxa_program_kind kind, cli_values *out);
/* What texts may use without declaring it; at most FXA_MAX_PARAMS + FXA_MAX_TENSORS. */
size_t values_declare(const cli_values *v, fxa_declaration *out);
const cli_tensor *values_find_tensor(const cli_values *v, const char *name);

/* Warns of what will surprise in given values (values_warn.c); f64: arithmetic is in f64. */
struct cli_binding;
void values_warn(cli *c, const fxa_program *program, const struct cli_binding *b, bool f64);
void values_warn_scale(cli *c, bool f64); /* the same of --scale */
/* What to say of a program with FXA_PROPERTY_FINITE_LARGE_NEGATIVE; NULL: it has not. */
const char *values_finite_penalty(const fxa_program *program);

/* Values in the order of a program. */
typedef struct cli_binding {
    size_t n_params, n_tensors;
    double params[FXA_MAX_PARAMS];
    bool has_param[FXA_MAX_PARAMS];
    bool is_default[FXA_MAX_PARAMS]; /* has the value that the program says */
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa_view views[FXA_MAX_TENSORS]; /* data NULL: none yet */
    const void *data[FXA_MAX_TENSORS];
    bool sized[FXA_MAX_TENSORS];
} cli_binding;

int values_bind(cli *c, const cli_values *v, const cli_sources *s, const fxa_program *program, cli_binding *out);
/* An error unless every param has a value and every tensor data (sizes, when only_sizes). */
int binding_require(cli *c, const cli_binding *b, const fxa_program *program, bool only_sizes, bool params);
/* Gives what is missing: sizes of `side` along every axis, data and params at random. */
void binding_fill(cli *c, cli_binding *b, const fxa_program *program, int64_t side, cli_random *random);
/* Value ranges of the int tensors that have data; NULL when the program has no tensors. */
fxa_tensor_range *binding_ranges(cli *c, const cli_binding *b);
/* The params when all are known, else NULL. */
const double *binding_params(const cli_binding *b);

/* ---- Job (job.c, shape_args.c) --------------------------------------------------------------------------------- */

enum { SHAPE_B, SHAPE_H, SHAPE_HKV, SHAPE_S, SHAPE_SQ, SHAPE_SK, SHAPE_D, SHAPE_DV, SHAPE_COUNT };
extern const char *const shape_keys[SHAPE_COUNT];
typedef struct cli_shape {
    int64_t value[SHAPE_COUNT];
    bool given[SHAPE_COUNT];
} cli_shape;
/* "b=2,h=8,s=1024"; NULL: nothing is given. name: what messages begin with. */
int shape_read(cli *c, const char *name, const char *text, cli_shape *out);
/* Fills in what is not given; defaults: b=1,h=1,s=128,d=64, or those of a check. */
void shape_resolve(cli_shape *shape, bool small);

/* Something that the command line does not say and a command made up (invent.h). */
typedef struct invention {
    const char *kind, *name; /* "param", "tensor", "size" */
    double value;            /* of a param or size */
    fxa_view view;           /* of a tensor; dtype 0 otherwise */
    bool sized;              /* its sizes were given */
    bool ids;                /* its values ascend, as those of documents do */
} invention;
#define INVENT_MAX (2 * (FXA_MAX_PARAMS + FXA_MAX_TENSORS) + SHAPE_COUNT)

typedef struct cli_job {
    cli_sources sources, bprop_sources;
    cli_values values, bprop_values;
    fxa_program *program, *bprop; /* bprop NULL: derived */
    cli_binding bind, bprop_bind;
    cli_shape shape;
    fxa_capture grad_captures[FXA_MAX_TENSORS]; /* of job_backward */
    bool qkv;                                   /* of gradients those alone: --grads qkv */
    invention invented[INVENT_MAX];
    size_t n_invented;
    fxa_problem problem; /* points into this struct */
} cli_job;

/* Program, values, flags and engine; sizes are left to the caller. */
int job_make_program(cli *c, cli_job **out);
/* The same with the shape and dtype of the command line. */
int job_make(cli *c, bool small, cli_job **out);
/* --layout, as fxa_layout; left as it is where nothing is said. */
int job_read_layout(cli *c, int *layout);
/* Sizes of the job's problem, with defaults for what is not given. */
void job_set_shape(cli_job *job, const cli_shape *shape, bool small);
/* The program that runs: ready masks appended. Owned by c. */
int job_whole_program(cli *c, const cli_job *job, fxa_program **out);
const char *program_text(cli *c, const fxa_program *program); /* canonical; owned by c; NULL after a failure is said */
/* The problem of a backward pass that wants every gradient there is, or those of Q, K and V (job->qkv). */
fxa_problem job_backward(cli_job *job);
/* The problem of a pass as plans are made of it: job_backward, and a forward that gives the LSE it reads. */
fxa_problem job_planned(cli_job *job, fxa_pass pass);
/* What is added to q when rows align to the last key (--decode, --bottom-right without a ready mask), lengths as they
 * are in the shape. */
int64_t problem_row_shift(const fxa_problem *p);
/* Features of V and O: 0 where the problem says FXA_D_V_ZERO. */
static inline int64_t problem_dv(const fxa_problem *p) {
    return p->d_v == FXA_D_V_ZERO ? 0 : p->d_v == 0 ? p->d_qk : p->d_v;
}
/* Query heads per head of K; 1 where there are no heads. */
static inline int64_t problem_group(const fxa_problem *p) { return p->hkv > 0 ? p->hq / p->hkv : 1; }
/* Warns when the program's q is not where ready masks, which alone align to the last key, have it. problem: the job's,
 * with its sizes. */
void job_warn_alignment(cli *c, const cli_job *job, const fxa_problem *problem);
/* sq, sk within what program ints hold, for commands that walk over pairs. */
int job_require_small(cli *c, const cli_job *job);
/* Data of its own, in f64 and in the dtype, fits into the machine. */
int job_require_memory(cli *c, const cli_job *job);
double problem_pairs(const fxa_problem *p); /* of all batch entries and heads */

/* ---- Where it runs (place.c) ------------------------------------------------------------------------------------- */

int job_read_device(cli *c, fxa_problem *problem);             /* --device, --target */
const char *problem_device_text(cli *c, const fxa_problem *p); /* "host", "cuda:0" */
fxa_problem problem_on_host(const fxa_problem *p);             /* the same, for what is looked at there alone */
const char *problem_on_text(cli *c, const fxa_problem *p);     /* ", on cuda:0"; "" on the host */
/* Memory for runs, where it is the caller's to give. */
void problem_workspace(cli *c, const fxa_problem *p, size_t size, fxa_args *args);
/* Runs plan, which is of p, on data of the host. */
fxa_status problem_run(cli *c, const fxa_problem *p, const fxa_plan *plan, const fxa_args *args, fxa_error *err);

#endif
