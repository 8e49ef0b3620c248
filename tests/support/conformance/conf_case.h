/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance: one problem with any program, run by an engine and by the reference engine, and compared element by
 * element within the error bounds of the engine's arithmetic. Geometry, layouts and softmax features are those of an
 * attn_case; conf_draw draws program, params and captured tensors (any dtype, rank, stride).
 *
 *   conf_draw -> conf_check_forward -> conf_check_backward -> conf_free
 *
 * The reference stores gradients and O in f64, so expected values are not rounded to storage. conf_bound.c computes the
 * bound of each element as described in docs/numerics.md.
 */
#ifndef FXA_TESTS_CONF_CASE_H
#define FXA_TESTS_CONF_CASE_H

#include "support/fixtures/attn_case.h"

enum { CONF_TENSORS = 12, CONF_PARAMS = 8, CONF_SLOTS = FXA_SLOT_DSINKS + 1 };

/* A tensor of up to five axes with any strides. Arrays "by place" have one element for each element of `memory`. */
typedef struct conf_buffer {
    const char *name;
    fxa_dtype dtype;
    int rank;
    int64_t n[FXA_MAX_RANK], stride[FXA_MAX_RANK];
    unsigned char *memory, *origin; /* memory; address of the element with all indices 0 */
    size_t bytes;
    bool owned; /* true = memory belongs to this buffer */
    /* members that only outputs have */
    unsigned char *before; /* memory before a run */
    fxa_dtype want_dtype;
    unsigned char *want_memory; /* the reference's results in want_dtype, with the same strides */
    unsigned char *want_before;
    double *error; /* [place] propagated errors of scores and programs */
    double *size;  /* [place] sum of the magnitudes of terms */
    double *noise; /* [place] sum of squares of the terms that are rounded to 16 bits separately */
    /* [place] O only: expected result without the keys whose V is not finite and whose weight may be 0; NaN = no such
     * keys */
    double *spared;
    double least; /* maximum loss by small terms in f16, the same for all places; 0 = not computed yet */
} conf_buffer;

/* Largest errors seen, relative to the allowed errors, by dtype of Q. */
typedef struct conf_tally {
    int64_t cases, unsure, refused, elements;
    double element[FXA_E5M2 + 1], rms[FXA_E5M2 + 1];
    int64_t by_dtype[FXA_E5M2 + 1];
} conf_tally;

typedef struct conf_case {
    attn_case base;
    fxa_program *program; /* owned */
    fxa_program *bprop;   /* owned; NULL = none */
    const char *name;     /* name of the program */
    size_t n_params, n_tensors;
    double params[CONF_PARAMS], dparams[CONF_PARAMS], old_dparams[CONF_PARAMS], want_dparams[CONF_PARAMS];
    double error_dparams[CONF_PARAMS], size_dparams[CONF_PARAMS];
    fxa_capture captures[CONF_TENSORS];
    conf_buffer slot[CONF_SLOTS], tensor[CONF_TENSORS], dtensor[CONF_TENSORS];
    size_t n_own_params, n_own_tensors; /* number of params and tensors of bprop */
    double own_params[CONF_PARAMS];
    fxa_capture own_captures[CONF_TENSORS];
    conf_buffer own_tensor[CONF_TENSORS];
    double unit;         /* unit roundoff of the engine's arithmetic */
    double product_unit; /* unit roundoff of P and dS as operands of products; 0 = `unit` */
    double pair_unit;    /* unit roundoff of the gradients of pairs whose sums are gradients of tensors; 0 = exact */
    double head_unit;    /* unit roundoff of dK and dV of a single query head before heads are summed; 0 = exact */
    /* Returns the errors of the engine's functions; NULL = the errors of cpu. */
    double (*function)(uint32_t op, double x, double y);
    double least_weight; /* forward: weight, relative to its row, below which 0 is allowed */
    double least_mark;   /* weight below which 0 is allowed if V is not finite */
    bool rounds_twice;   /* true: for dK, P times the derivative is rounded before dS is */
    double steepest;     /* maximum factor of P in dS */
    bool rounds_sums;    /* true: results are rounded before they are added to old contents */
    bool unsure;         /* a comparison is closer than the arithmetic's error: the case is inconclusive */
    bool refused;        /* true: the engine refuses the problem, with the reason in `why` */
    void (*ran)(struct conf_case *c, fxa_pass pass); /* called after a run, before the comparison; NULL = none */
    conf_tally *tally;
    char detail[160]; /* description of the plan that the last check used */
    char why[800];
} conf_case;

/* Draws a case and takes ownership of program and bprop. Returns false, with the reason in c->why, if the case is
 * impossible. */
bool conf_draw(conf_case *c, fxa_context *ctx, uint32_t features, const attn_shape *shape, fxa_program *program,
               const char *name, fxa_program *bprop, conf_tally *tally, uint64_t *rng);
/* Replaces captured tensor i and its gradient by contiguous tensors of sizes n. */
void conf_resize(conf_case *c, size_t i, const int64_t *n, uint64_t *rng);
void conf_free(conf_case *c);
void conf_describe(const conf_case *c, char *out, size_t capacity);

/* Problem and arguments of a pass. Their pointers point into this struct. */
typedef struct conf_call {
    fxa_problem p;
    fxa_args args;
    fxa_capture captures[CONF_TENSORS];
    const void *tensors[CONF_TENSORS], *own_tensors[CONF_TENSORS];
    void *dtensors[CONF_TENSORS];
} conf_call;
void conf_call_make(conf_case *c, const char *engine, fxa_pass pass, bool reference, conf_call *x);

/* Returns output number i of a pass; NULL past the last. */
conf_buffer *conf_output(conf_case *c, fxa_pass pass, int i);
/* Fills the outputs of a pass with old contents: random elements, NaN between them. */
void conf_fill_outputs(conf_case *c, fxa_pass pass);
void conf_restore_outputs(conf_case *c, fxa_pass pass);
void conf_clear_bounds(conf_case *c, fxa_pass pass);
/* Runs the reference engine into want_memory. After forward, conf_keep stores the reference's O and LSE as inputs of
 * backward. */
bool conf_reference(conf_case *c, fxa_pass pass);
void conf_keep(conf_case *c);
bool conf_run(conf_case *c, const char *engine, fxa_pass pass);
bool conf_compare(conf_case *c, fxa_pass pass);

/* Returns the error bound of one of cuDNN's functions (conf_functions.c); negative = unknown. */
double conf_cudnn_function(uint32_t op, double x, double y);
/* conf_cuda_cap returns the error of tanh in the cuda engine's 16-bit Hopper kernels. These errors apply to programs
 * for which conf_is_cuda_cap is true: soft caps whose derivative by the tanh is at most 64. */
double conf_cuda_cap(uint32_t op, double x, double y);
bool conf_is_cuda_cap(const fxa_program *p, const double *params);

/* Compute error and size of every element of every output, and c->unsure (conf_bound.c, conf_bound_back.c). */
bool conf_bound_forward(conf_case *c);
bool conf_bound_backward(conf_case *c);

/* Run a pass, compute its bounds and compare. Return true also if the engine refuses the problem or the case is
 * inconclusive. */
bool conf_check_forward(conf_case *c, const char *engine);
bool conf_check_backward(conf_case *c, const char *engine);
/* Checks another engine in a pass that has been checked, without another run of the reference. */
bool conf_check_also(conf_case *c, const char *engine, fxa_pass pass);

int64_t conf_place(const conf_buffer *t, const int64_t *at); /* returns the index in memory of an element */
int64_t conf_places(const conf_buffer *t);
/* Advances `at` to the next element. After the last element, returns false with all of `at` 0. */
bool conf_next(const conf_buffer *t, int64_t *at);

/* ---- Programs (conf_program.c) ----------------------------------------------------------------------------------- */

typedef enum conf_source {
    CONF_IDENTITY,
    CONF_TWIN,    /* a twin of attn_oracle.h: a small realistic program */
    CONF_SMOOTH,  /* random program, smooth in score, params and tensors */
    CONF_MASK,    /* random mask over coordinates */
    CONF_BOTH,    /* a smooth program and a mask */
    CONF_WILD,    /* random program of any operations; often inconclusive */
    CONF_GALLERY, /* a file of `folder` */
    CONF_SPARSE,  /* mask with few attended pairs, or with holes */
    CONF_STEEP    /* program so steep that the last digit of a score changes probabilities */
} conf_source;
/* Makes a program; NULL if it is impossible. *name points to static memory: a literal or a file name. */
fxa_program *conf_program(fxa_context *ctx, conf_source source, const char *folder, uint64_t *rng, const char **name);
/* Makes a smooth user-written backward program. */
fxa_program *conf_bprop(fxa_context *ctx, uint64_t *rng);

#endif
