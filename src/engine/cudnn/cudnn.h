/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine: attention with score programs inside, on cuDNN's backend interface. From a problem to a run:
 *
 *   problem
 *      |   attention/   support.c: refusals with their reasons
 *      |                attention.c: the steps below; forward.c, backward.c: the operations of each pass
 *      |                operands.c, mask.c, bias_gradient.c, fp8.c, fp8_scalars.c: parts of both passes
 *      |   score/       parameterize.c: the program, with its constants as params; leaves.c, captured_loads.c, ops.c:
 *      |                its nodes as operations; zero_products.c, common_factors.c: operations that are not needed
 *      v
 *   graph as data       graph/graph.h; helper_steps.c: kernels of src/gpu before and after; graph_checks.c: last check
 *      v
 *   cuDNN's plan        descriptors.c (api.h and library.c: cuDNN as a table of functions); saved.c: plans as bytes
 *      v
 *   run.c               pointers and scalars for cuDNN
 *
 * engine.c is the engine's table, with instances on a device or for a device description (gpu/gpu_description.h);
 * cost.c estimates the seconds of a run; listing.c writes a graph as text.
 *
 * cuDNN computes the graph in f32. P and dS are rounded to the dtype of Q where they enter a product. A weight of
 * exactly 0 times a V that is not finite is NaN, as on all matrix hardware.
 */
#ifndef FXA_ENGINE_CUDNN_CUDNN_H
#define FXA_ENGINE_CUDNN_CUDNN_H

#include "../gpu_engine.h"
#include "attention/attention.h"

enum {
    FXA__DNN_HANDLES = 32 /* kept for runs to come; more exist while more run at the same time */
};

typedef struct fxa__dnn_self {
    fxa__gpu gpu; /* first: see gpu/gpu_memory.c */
    fxa__host *host;
    fxa__cudnn_library library;
    void *profile; /* a descriptor */
    fxa__dnn_level level;
    bool untried;   /* what has not been run on a device is asked for */
    bool on_device; /* else of a target: nothing runs */
    int64_t processors;
    _Atomic(void *) handles[FXA__DNN_HANDLES]; /* idle ones */
} fxa__dnn_self;

/* A tensor that a run gives a pointer, as in the graph. */
typedef struct fxa__dnn_bound {
    int64_t id;
    fxa__dnn_tensor tensor;
    int64_t words; /* to fill, of 32 bits */
} fxa__dnn_bound;

typedef struct fxa__dnn_code {
    fxa__host *host;
    fxa_program *program;         /* for what runs pass by value */
    int32_t from[FXA_MAX_PARAMS]; /* by param of program: that of the caller; -1: it is a number of the plan */
    fxa_program *own;             /* the same of the caller's backward program; NULL: there is none */
    fxa__dnn_level level;         /* that it was made for */
    void *plan;
    int64_t own_workspace; /* of cuDNN, behind the scratch of the graph */
    int64_t scratch;
    size_t n_bound;
    fxa__dnn_bound bound[FXA__DNN_BOUND];
    fxa__dnn_step *steps;
    size_t n_steps;
    char detail[160];
} fxa__dnn_code;

/* Bytes of a workspace: it is aligned to 256 inside. UINT64_MAX: more than there are. */
uint64_t fxa__dnn_workspace(int64_t scratch, int64_t own);
/* What a run has to give pointers to. False: there are too many. */
bool fxa__dnn_bound_find(const fxa__dnn_graph *g, fxa__dnn_code *code);

/* Seconds of a run, about. (cost.c) */
double fxa__dnn_cost(int64_t processors, const fxa__problem *p);

/* The graph as lines for people. */
void fxa__dnn_dump(const void *code, const fxa__problem *p, fxa__writer *w);

/* A handle that nobody else has, on that stream; given back after use. */
fxa_status fxa__dnn_handle_take(fxa__dnn_self *self, void *stream, void **handle, fxa_error *err);
void fxa__dnn_handle_give(fxa__dnn_self *self, void *handle);

/* engine->zones. */
void fxa__dnn_zones(void *self, const void *code, const fxa__problem *p, const void *workspace);
fxa_status fxa__dnn_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                        fxa_error *err);

#endif
