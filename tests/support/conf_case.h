/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance: one problem with any program, run by an engine and by the reference engine, compared element by element
 * within what the engine's arithmetic allows. Geometry, layouts and softmax features are those of an attn_case; the
 * program, its params and captured tensors (any dtype, rank, stride) are drawn here.
 *
 *   conf_draw -> conf_check_forward -> conf_check_backward -> conf_free
 *
 * The reference runs with its gradients and O in f64, so what is compared with is not rounded to storage. How far an
 * engine may be from it is derived by conf_bound.c, for each element, as docs/numerics.md says.
 */
#ifndef FXA_TESTS_CONF_CASE_H
#define FXA_TESTS_CONF_CASE_H

#include "attn_case.h"

enum { CONF_TENSORS = 12, CONF_PARAMS = 8, CONF_SLOTS = FXA_SLOT_DSINKS + 1 };

/* A tensor of up to five axes, any strides. Arrays "by place" have one entry per element of `memory`. */
typedef struct conf_buffer {
    const char *name;
    fxa_dtype dtype;
    int rank;
    int64_t n[FXA_MAX_RANK], stride[FXA_MAX_RANK];
    unsigned char *memory, *origin; /* origin: element (0, ...) */
    size_t bytes;
    bool owned; /* memory is this buffer's */
    /* of outputs */
    unsigned char *before; /* memory before a run */
    fxa_dtype want_dtype;
    unsigned char *want_memory; /* as the reference writes it, the same strides in want_dtype */
    unsigned char *want_before;
    double *error;  /* by place: what the errors of scores and programs come to */
    double *size;   /* by place: sum of the magnitudes that were added up */
    double *noise;  /* by place: sum of squares of what rounds to 16 bits, by itself, before it is added up */
    double *spared; /* by place, of O: without keys whose V is not finite and whose weight may count as 0; NaN: none */
    double least;   /* of all places: what f16 leaves of small terms; 0: not known yet */
} conf_buffer;

/* The worst of what was seen, in units of what is allowed, by dtype of Q. */
typedef struct conf_tally {
    int64_t cases, unsure, refused, elements;
    double element[FXA_E5M2 + 1], rms[FXA_E5M2 + 1];
    int64_t by_dtype[FXA_E5M2 + 1];
} conf_tally;

typedef struct conf_case {
    attn_case base;
    fxa_program *program; /* owned */
    fxa_program *bprop;   /* owned, or NULL */
    const char *name;     /* of the program */
    size_t n_params, n_tensors;
    double params[CONF_PARAMS], dparams[CONF_PARAMS], old_dparams[CONF_PARAMS], want_dparams[CONF_PARAMS];
    double error_dparams[CONF_PARAMS], size_dparams[CONF_PARAMS];
    fxa_capture captures[CONF_TENSORS];
    conf_buffer slot[CONF_SLOTS], tensor[CONF_TENSORS], dtensor[CONF_TENSORS];
    size_t n_own_params, n_own_tensors; /* of bprop */
    double own_params[CONF_PARAMS];
    fxa_capture own_captures[CONF_TENSORS];
    conf_buffer own_tensor[CONF_TENSORS];
    double unit;         /* of the arithmetic */
    double product_unit; /* of P and dS as they are multiplied: not 0 when the plan says that it multiplies bf16 */
    double pair_unit;    /* of gradients of pairs, which those of tensors are summed of: not 0 when the plan says so */
    double head_unit;    /* of dK and dV of single heads before they are summed: not 0 when the plan says so */
    double (*function)(uint32_t op, double x, double y); /* errors of the engine's functions; NULL: those of cpu */
    double least_weight;                                 /* of a row in forward: what is below may count as 0, */
    double least_mark;                                   /* and what is below that where V is not finite */
    bool rounds_twice;                                   /* dK: P times the slope before dS, when the plan says so */
    double steepest;                                     /* the largest that P is multiplied by in dS */
    bool rounds_sums; /* results round before they are added to what is there: when the plan says so */
    bool unsure;      /* a comparison is closer than the arithmetic can tell: nothing can be said of the case */
    bool refused;     /* the engine said that it does not support the problem; why has its reason */
    void (*ran)(struct conf_case *c, fxa_pass pass); /* called behind a run, before it is compared; NULL: nothing is */
    conf_tally *tally;
    char detail[160]; /* of the plan of the last check */
    char why[800];
} conf_case;

/* Takes the program (and bprop). False with why when the case is impossible. */
bool conf_draw(conf_case *c, fxa_context *ctx, uint32_t features, const attn_shape *shape, fxa_program *program,
               const char *name, fxa_program *bprop, conf_tally *tally, uint64_t *rng);
/* Captured tensor i, and its gradient, anew: dense, of these sizes. */
void conf_resize(conf_case *c, size_t i, const int64_t *n, uint64_t *rng);
void conf_free(conf_case *c);
void conf_describe(const conf_case *c, char *out, size_t capacity);

/* Problem and arguments of a pass; the arrays they point to live in `x`. */
typedef struct conf_call {
    fxa_problem p;
    fxa_args args;
    fxa_capture captures[CONF_TENSORS];
    const void *tensors[CONF_TENSORS], *own_tensors[CONF_TENSORS];
    void *dtensors[CONF_TENSORS];
} conf_call;
void conf_call_make(conf_case *c, const char *engine, fxa_pass pass, bool reference, conf_call *x);

/* Outputs of a pass, by position; NULL past the end. */
conf_buffer *conf_output(conf_case *c, fxa_pass pass, int i);
/* Old content into the outputs of a pass: random elements, NaN between them. */
void conf_fill_outputs(conf_case *c, fxa_pass pass);
void conf_restore_outputs(conf_case *c, fxa_pass pass);
void conf_clear_bounds(conf_case *c, fxa_pass pass);
/* Runs the reference into want; after forward its O and LSE are stored as the input of backward by conf_keep. */
bool conf_reference(conf_case *c, fxa_pass pass);
void conf_keep(conf_case *c);
bool conf_run(conf_case *c, const char *engine, fxa_pass pass);
bool conf_compare(conf_case *c, fxa_pass pass);

/* What cuDNN's functions may be off by (conf_functions.c); below 0: nothing is said. */
double conf_cudnn_function(uint32_t op, double x, double y);
/* The same of the cuda engine's tanh in kernels of 16 bits for Hopper, for programs that are a soft cap by which the
 * tanh counts 64 times at most. */
double conf_cuda_cap(uint32_t op, double x, double y);
bool conf_is_cuda_cap(const fxa_program *p, const double *params);

/* error and size of every output, unsure (conf_bound.c, conf_bound_back.c). */
bool conf_bound_forward(conf_case *c);
bool conf_bound_backward(conf_case *c);

/* All of it: true also when the engine refused, or nothing can be said. */
bool conf_check_forward(conf_case *c, const char *engine);
bool conf_check_backward(conf_case *c, const char *engine);
/* Another engine at a pass that was checked: the reference is not run again. */
bool conf_check_also(conf_case *c, const char *engine, fxa_pass pass);

int64_t conf_place(const conf_buffer *t, const int64_t *at); /* number of an element in memory */
int64_t conf_places(const conf_buffer *t);
/* Steps `at` through the elements; false after the last (then at is all 0 again). */
bool conf_next(const conf_buffer *t, int64_t *at);

/* ---- Programs (conf_program.c) ----------------------------------------------------------------------------------- */

typedef enum conf_source {
    CONF_IDENTITY,
    CONF_TWIN,    /* of attn_oracle.h: small programs as people write them */
    CONF_SMOOTH,  /* random, smooth in all floats */
    CONF_MASK,    /* random masks over coordinates */
    CONF_BOTH,    /* the two together */
    CONF_WILD,    /* random with every operation; often unsure */
    CONF_GALLERY, /* a file of `folder` */
    CONF_SPARSE,  /* masks that leave little or leave holes */
    CONF_STEEP    /* where a last digit of a score is another probability */
} conf_source;
/* NULL when it cannot be made. The name is static, or that of the file in a static buffer. */
fxa_program *conf_program(fxa_context *ctx, conf_source source, const char *folder, uint64_t *rng, const char **name);
/* A smooth backward program of a user's. */
fxa_program *conf_bprop(fxa_context *ctx, uint64_t *rng);

#endif
