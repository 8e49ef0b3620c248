/* SPDX-License-Identifier: Apache-2.0
 *
 * Helper kernels (gpu/launch.h) that a run launches before and after cuDNN's kernel. They compute lengths and offsets
 * of batch entries, convert tensors whose dtype or layout cuDNN does not support, add results to existing values, and
 * finish LSE and row maxima. Steps are stored as data next to the graph; each pointer in a step's arguments has a
 * description (fxa__dnn_ref) of the address that a run sets.
 */
#ifndef FXA_ENGINE_CUDNN_STEPS_H
#define FXA_ENGINE_CUDNN_STEPS_H

#include "../../../gpu/launch.h"
#include "graph.h"

enum { FXA__DNN_REFS = 32 };

/* The address to which a run sets the pointer at byte `at` of a step's arguments. */
typedef struct fxa__dnn_ref {
    uint16_t at;    /* offset in fxa__dnn_step.args, in bytes */
    uint8_t source; /* fxa__dnn_source: SLOT, TENSOR, OWN_TENSOR, DTENSOR or SCRATCH */
    /* true: the pointer is the member `data` of an FxaGpuArray, and the run also copies the strides of slot `index` to
     * this array */
    bool strided;
    int32_t index;  /* index of the slot or tensor that `source` names */
    int64_t offset; /* bytes that are added to the address */
} fxa__dnn_ref;

/* A launch of a helper kernel before or after cuDNN's kernel. */
typedef struct fxa__dnn_step {
    uint8_t kernel; /* fxa__gpu_kernel */
    bool after;     /* true: launched after cuDNN's kernel, else before it */
    bool optional;  /* true: a run skips this launch if the address of ref[0] is NULL */
    uint8_t n_refs; /* number of elements of `ref` */
    int64_t work;   /* argument `work` of fxa__gpu_launch: number of elements, rows or heads, depending on the kernel */
    fxa__dnn_ref ref[FXA__DNN_REFS];
    fxa__gpu_args args;
} fxa__dnn_step;

/* Adds a launch of a helper kernel. Returns the step, whose address is valid until the next one is added. If the graph
 * has failed, returns `discarded`, whose contents are never used. */
fxa__dnn_step *fxa__dnn_step_new(fxa__dnn_graph *g, fxa__gpu_kernel kernel, bool after, int64_t work,
                                 fxa__dnn_step *discarded);
/* Makes each run set `field`, a pointer in the step's arguments, to the address of slot or tensor `index` of `source`
 * (fxa__dnn_ref) plus `offset` bytes. */
void fxa__dnn_step_point(fxa__dnn_step *step, const void *field, uint8_t source, int32_t index, int64_t offset);
/* Makes each run set `field`, a pointer in the step's arguments, to the address of a tensor of the graph, which must
 * have memory. */
void fxa__dnn_step_data(fxa__dnn_step *step, const void *field, const fxa__dnn_graph *g, int32_t tensor);
/* Sets the strides and the type of *array to those of a tensor of the graph, and makes each run set array->data to the
 * tensor's address. */
void fxa__dnn_step_tensor(fxa__dnn_step *step, FxaGpuArray *array, const fxa__dnn_graph *g, int32_t tensor);

#endif
