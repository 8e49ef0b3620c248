/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run does around cuDNN's kernel, as data beside the graph: helper kernels (gpu/gpu_launch.h) before and after
 * it, with what their pointers stand for. Lengths and offsets of entries, tensors in another type or layout than cuDNN
 * takes, sums with what is there, statistics.
 */
#ifndef FXA_ENGINE_CUDNN_STEPS_H
#define FXA_ENGINE_CUDNN_STEPS_H

#include "../../../gpu/gpu_launch.h"
#include "graph.h"

enum { FXA__DNN_REFS = 32 };

/* A pointer of the arguments, `at` bytes into them, and what it is in a run. */
typedef struct fxa__dnn_ref {
    uint16_t at;
    uint8_t source; /* fxa__dnn_source: of a slot, a captured tensor or its gradient, or the workspace */
    bool strided;   /* it is the data of a FxaGpuArray with the strides that the slot has in the run's problem */
    int32_t index;
    int64_t offset; /* in bytes */
} fxa__dnn_ref;

typedef struct fxa__dnn_step {
    uint8_t kernel; /* fxa__gpu_kernel */
    bool after;     /* cuDNN's kernel; else before it */
    bool optional;  /* left out where a run does not give the slot of the first pointer */
    uint8_t n_refs;
    int64_t work;
    fxa__dnn_ref ref[FXA__DNN_REFS];
    fxa__gpu_args args;
} fxa__dnn_step;

/* The next step of a run; once the graph has failed, `nobody`, which is written to like the others. Valid until the
 * next. */
fxa__dnn_step *fxa__dnn_step_new(fxa__dnn_graph *g, fxa__gpu_kernel kernel, bool after, int64_t work,
                                 fxa__dnn_step *nobody);
/* `field`, a pointer inside the arguments of the step, is this in a run. */
void fxa__dnn_step_point(fxa__dnn_step *step, const void *field, uint8_t source, int32_t index, int64_t offset);
/* The same for the data of a tensor of the graph that has memory. */
void fxa__dnn_step_data(fxa__dnn_step *step, const void *field, const fxa__dnn_graph *g, int32_t tensor);
/* An array that is a tensor of the graph. */
void fxa__dnn_step_tensor(fxa__dnn_step *step, FxaGpuArray *array, const fxa__dnn_graph *g, int32_t tensor);

#endif
