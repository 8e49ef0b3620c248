/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine: attention with score programs inside, on cuDNN's backend interface. From a problem to a run:
 *
 *   problem
 *      |   attention/   support.c: refusals with their reasons
 *      |                attention.c: the steps below; forward.c, backward.c: the operations of each pass
 *      |                operands.c, mask.c, bias_gradient.c, fp8.c, fp8_scalars.c: parts of both passes
 *      |   score/       parameterize.c: the program, with its constants as params; leaves.c, captured_loads.c, ops.c:
 *      |                its nodes as operations; zero_products.c, common_factors.c: operations that can be left out
 *      v
 *   graph as data       graph/graph.h; helper_steps.c: kernels of src/gpu before and after; graph_checks.c: last check
 *      v
 *   cuDNN's plan        descriptors.c (api.h and library.c: cuDNN as a table of functions); saved.c: plans as bytes
 *      v
 *   run.c               pointers and scalars for cuDNN
 *
 * engine.c is the engine's table, with instances on a device or for a device description (gpu/device_description.h);
 * cost.c estimates the seconds of a run; listing.c writes a graph as text.
 *
 * cuDNN computes the graph in f32. P and dS are rounded to the dtype of Q where they enter a product. A weight of
 * exactly 0 times a V that is not finite is NaN, as on all matrix hardware.
 */
#ifndef FXA_ENGINE_CUDNN_CUDNN_H
#define FXA_ENGINE_CUDNN_CUDNN_H

#include "../gpu_pointers.h"
#include "attention/attention.h"

/* Capacity for idle handles. If more than 32 runs start at once, the handles beyond 32 are not cached. */
enum { FXA__DNN_HANDLES = 32 };

typedef struct fxa__dnn_self {
    fxa__gpu gpu; /* must be the first member: gpu/memory.c casts a pointer to the instance to a pointer to `gpu` */
    fxa__host *host;
    fxa__cudnn_library library;
    void *profile; /* cuDNN's descriptor of the device */
    fxa__dnn_level level;
    bool untried;   /* true: devices are allowed on which the engine has never run (FXA_CUDNN_UNTRIED=1) */
    bool on_device; /* false: the instance belongs to a device description and cannot run */
    int64_t processors;
    _Atomic(void *) handles[FXA__DNN_HANDLES]; /* idle handles; NULL = free entry */
} fxa__dnn_self;

/* A tensor of the graph whose address each run passes to cuDNN. */
typedef struct fxa__dnn_bound {
    int64_t id; /* unique id of the tensor in cuDNN's graph */
    fxa__dnn_tensor tensor;
    int64_t words; /* number of 32-bit words of the tensor that a run writes before cuDNN starts; 0 = none */
} fxa__dnn_bound;

typedef struct fxa__dnn_code {
    fxa__host *host;
    fxa_program *program; /* program from which a run computes the scalars that are passed by value */
    /* [params of `program`] index of the caller's param; -1 = the param replaces a constant of the program */
    int32_t from[FXA_MAX_PARAMS];
    fxa_program *own;      /* the caller's backward program; NULL = none */
    fxa__dnn_level level;  /* cuDNN version and GPU architecture for which `plan` was compiled */
    void *plan;            /* cuDNN's compiled plan */
    int64_t own_workspace; /* bytes of workspace that cuDNN needs, in addition to the scratch memory of the graph */
    int64_t scratch;       /* bytes of workspace that tensors of the graph occupy */
    size_t n_bound;
    fxa__dnn_bound bound[FXA__DNN_BOUND];
    fxa__dnn_step *steps; /* [n_steps] helper kernels before and after cuDNN's kernel */
    size_t n_steps;
    char detail[160];
} fxa__dnn_code;

/* Returns the bytes of a run's workspace: scratch + own, and 256 bytes for aligning its start. Returns UINT64_MAX if
 * the sum exceeds an int64. */
uint64_t fxa__dnn_workspace(int64_t scratch, int64_t own);
/* Sets code->bound to the tensors for which a run passes pointers. Returns false if there are more than
 * FXA__DNN_BOUND. */
bool fxa__dnn_bound_find(const fxa__dnn_graph *g, fxa__dnn_code *code);

/* Returns the estimated seconds of a run (cost.c). */
double fxa__dnn_cost(int64_t processors, const fxa__problem *p);

/* Writes the graph as text, one operation per line (listing.c). */
void fxa__dnn_dump(const void *code, const fxa__problem *p, fxa__writer *w);

/* fxa__dnn_handle_take sets *handle to a handle on `stream` that no other thread uses; fxa__dnn_handle_give releases
 * it. */
fxa_status fxa__dnn_handle_take(fxa__dnn_self *self, void *stream, void **handle, fxa_error *err);
void fxa__dnn_handle_give(fxa__dnn_self *self, void *handle);

/* Checks the red zones of a workspace after a run (engine->zones). */
void fxa__dnn_zones(void *self, const void *code, const fxa__problem *p, const void *workspace);
fxa_status fxa__dnn_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                        fxa_error *err);

#endif
