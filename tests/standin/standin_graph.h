/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs of the cuDNN stand-in, and their evaluation.
 */
#ifndef FXA_TESTS_STANDIN_GRAPH_H
#define FXA_TESTS_STANDIN_GRAPH_H

#include "engine/cudnn/api.h"
#include "standin.h"

enum { STANDIN_TENSORS = 2048, STANDIN_OPS = 1024 };

typedef struct standin_tensor_info {
    int64_t id, dim[4], stride[4];
    int type;
    bool is_virtual, is_by_value;
    int32_t ragged; /* tensor with the offsets of batch entries; -1 = none */
} standin_tensor_info;

typedef struct standin_op {
    int kind, mode, precision, axis;
    int32_t x, b, t, y; /* tensors, -1 = none */
    int32_t length[3];  /* product: tensors with the lengths along m, n and k; -1 = none */
} standin_op;

typedef struct standin_graph {
    int32_t n_tensors, n_ops;
    standin_tensor_info tensor[STANDIN_TENSORS];
    standin_op op[STANDIN_OPS];
} standin_graph;

/* Returns 0, or a status and a text for a graph that cuDNN is known to refuse. */
int standin_graph_check(const standin_graph *g, char *text, size_t size);
int standin_graph_run(const standin_graph *g, int64_t n, const int64_t *ids, void *const *pointers, char *text,
                      size_t size);

/* Returns the size of a plan's text (standin_saved.c). Loading an invalid text returns NULL. */
int64_t standin_saved_size(const standin_graph *g);
void standin_saved_write(const standin_graph *g, char *out);
standin_graph *standin_saved_read(const char *text, int64_t n);

#endif
