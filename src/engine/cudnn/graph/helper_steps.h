/* SPDX-License-Identifier: Apache-2.0
 *
 * Helper kernels (gpu/launch.h) that a run launches before and after cuDNN's kernel, as data next to the graph,
 * with the meaning of each pointer in their arguments. They compute lengths and offsets of batch entries, convert
 * tensors whose dtype or layout cuDNN does not support, add results to existing values, and finish LSE and row maxima.
 */
#ifndef FXA_ENGINE_CUDNN_STEPS_H
#define FXA_ENGINE_CUDNN_STEPS_H

#include "../../../gpu/launch.h"
#include "graph.h"

enum { FXA__DNN_REFS = 32 };

/* What the pointer `at` bytes into the arguments is set to in a run. */
typedef struct fxa__dnn_ref {
    uint16_t at;
    uint8_t source; /* fxa__dnn_source: SLOT, TENSOR, OWN_TENSOR, DTENSOR or SCRATCH */
    /* true: the pointer is the data of an FxaGpuArray, whose strides are those of the slot in the run's problem */
    bool strided;
    int32_t index;
    int64_t offset; /* bytes added to the pointer */
} fxa__dnn_ref;

typedef struct fxa__dnn_step {
    uint8_t kernel; /* fxa__gpu_kernel */
    bool after;     /* true: launched after cuDNN's kernel, else before it */
    bool optional;  /* true: skipped in runs that pass NULL for the slot of the first pointer */
    uint8_t n_refs;
    int64_t work;
    fxa__dnn_ref ref[FXA__DNN_REFS];
    fxa__gpu_args args;
} fxa__dnn_step;

/* Adds a step and returns it, valid until the next step is added. If the graph has failed, returns `nobody`, which
 * the caller fills without effect. */
fxa__dnn_step *fxa__dnn_step_new(fxa__dnn_graph *g, fxa__gpu_kernel kernel, bool after, int64_t work,
                                 fxa__dnn_step *nobody);
/* Sets the meaning of `field`, a pointer inside the step's arguments. */
void fxa__dnn_step_point(fxa__dnn_step *step, const void *field, uint8_t source, int32_t index, int64_t offset);
/* Sets `field` to the data of a tensor of the graph that has memory. */
void fxa__dnn_step_data(fxa__dnn_step *step, const void *field, const fxa__dnn_graph *g, int32_t tensor);
/* Sets `array` to the memory, strides and type of a tensor of the graph. */
void fxa__dnn_step_tensor(fxa__dnn_step *step, FxaGpuArray *array, const fxa__dnn_graph *g, int32_t tensor);

#endif
