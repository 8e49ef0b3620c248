/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for cuDNN that evaluates graphs: descriptors are stored as set, a plan owns a copy of its graph, and
 * execution computes one operation after the other in f64 (standin_eval.c). The stand-in allows tests without a GPU to
 * compare the lowering with the reference. What the real cuDNN accepts and computes is tested by
 * tests/engine/cudnn/test_cudnn_builds.py and tests/device. Calls that can fail are counted as in standin_cuda.c. Tests
 * find this library as libcudnn.so.9 in FXA_CUDNN_PATH.
 */
#include "standin_graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) standin_state standin_cudnn;

enum { STANDIN_BAD = 2000, STANDIN_NO = 3000, STANDIN_INTERNAL = 4000, STANDIN_ITEMS = 16, STANDIN_OWN_WORKSPACE = 96 };

typedef struct standin_item {
    int name, type;
    int64_t n;
    void *data;
} standin_item;

typedef struct standin_descriptor {
    int kind;
    bool final;
    int n_items;
    standin_item item[STANDIN_ITEMS];
    standin_graph *graph; /* graph of a graph, configuration or plan; NULL for other descriptors */
} standin_descriptor;

static _Thread_local char standin_text[200];

static int standin_say(int status, const char *text) {
    (void)snprintf(standin_text, sizeof standin_text, "%s", text);
    return status;
}

static int standin_fails(void) {
    if (atomic_fetch_add(&standin_cudnn.calls, 1) + 1 != standin_cudnn.fail_at) return 0;
    atomic_fetch_add(&standin_cudnn.failures, 1);
    return standin_say(STANDIN_INTERNAL, "the stand-in fails");
}

/* ---- Attributes -------------------------------------------------------------------------------------------------- */

static size_t standin_element(int type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
    }
}

static const standin_item *standin_get(const standin_descriptor *d, int name) {
    for (int i = 0; d && i < d->n_items; i++)
        if (d->item[i].name == name) return &d->item[i];
    return NULL;
}

static int64_t standin_int(const standin_descriptor *d, int name, int64_t missing) {
    const standin_item *item = standin_get(d, name);
    int32_t narrow;
    int64_t wide;
    if (!item) return missing;
    if (standin_element(item->type) == 1) return *(const unsigned char *)item->data;
    if (standin_element(item->type) == 8) return memcpy(&wide, item->data, 8), wide;
    return memcpy(&narrow, item->data, 4), narrow;
}

static standin_descriptor *standin_child(const standin_descriptor *d, int name) {
    const standin_item *item = standin_get(d, name);
    standin_descriptor *child = NULL;
    if (item) memcpy(&child, item->data, sizeof child);
    return child;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Returns the index in the graph of a descriptor's tensor, which is added if it is new; -1 = none. */
static int32_t standin_tensor(standin_graph *g, const standin_descriptor *d) {
    if (!d) return -1;
    int64_t id = standin_int(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    for (int32_t i = 0; i < g->n_tensors; i++)
        if (g->tensor[i].id == id) return i;
    if (g->n_tensors == STANDIN_TENSORS) abort();
    standin_tensor_info *t = &g->tensor[g->n_tensors];
    *t = (standin_tensor_info){.id = id, .type = (int)standin_int(d, CUDNN_ATTR_TENSOR_DATA_TYPE, -1)};
    memcpy(t->dim, standin_get(d, CUDNN_ATTR_TENSOR_DIMENSIONS)->data, sizeof t->dim);
    memcpy(t->stride, standin_get(d, CUDNN_ATTR_TENSOR_STRIDES)->data, sizeof t->stride);
    t->is_virtual = standin_int(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0);
    t->is_by_value = standin_int(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0);
    int32_t made = g->n_tensors++, offsets = standin_tensor(g, standin_child(d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC));
    g->tensor[made].ragged = offsets;
    return made;
}

static const struct standin_form {
    int kind, x, b, t, y, how;
} standin_forms[] = {
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     -1, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, -1, -1,
     CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, -1, -1,
     CUDNN_ATTR_OPERATION_RESHAPE_YDESC, -1},
    {CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC,
     CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC,
     CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, -1},
};

static int standin_operation(standin_graph *g, const standin_descriptor *d) {
    for (size_t i = 0; i < sizeof standin_forms / sizeof *standin_forms; i++) {
        const struct standin_form *f = &standin_forms[i];
        if (f->kind != d->kind) continue;
        const standin_descriptor *how = standin_child(d, f->how);
        if (g->n_ops == STANDIN_OPS) abort();
        standin_op *op = &g->op[g->n_ops++];
        *op = (standin_op){.kind = d->kind,
                           .x = standin_tensor(g, standin_child(d, f->x)),
                           .b = standin_tensor(g, standin_child(d, f->b)),
                           .t = standin_tensor(g, standin_child(d, f->t)),
                           .y = standin_tensor(g, standin_child(d, f->y))};
        static const int lengths[3] = {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
                                       CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
                                       CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC};
        for (int j = 0; j < 3; j++) op->length[j] = standin_tensor(g, standin_child(d, lengths[j]));
        bool reduces = d->kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
        op->mode = (int)standin_int(how, reduces ? CUDNN_ATTR_REDUCTION_OPERATOR : CUDNN_ATTR_POINTWISE_MODE, -1);
        op->precision = (int)standin_int(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
        op->axis = (int)standin_int(how, CUDNN_ATTR_POINTWISE_AXIS, 0);
        return op->x < 0 || op->y < 0 ? standin_say(STANDIN_BAD, "an operation lacks an operand") : 0;
    }
    return standin_say(STANDIN_BAD, "a graph of something that is no operation");
}

static int standin_finish_graph(standin_descriptor *d) {
    const standin_item *ops = standin_get(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    d->graph = calloc(1, sizeof *d->graph);
    if (!d->graph) abort();
    int status = ops ? 0 : standin_say(STANDIN_BAD, "a graph without operations");
    for (int64_t i = 0; !status && i < ops->n; i++) {
        standin_descriptor *op;
        memcpy(&op, (char *)ops->data + 8 * i, 8);
        status = op->final ? standin_operation(d->graph, op) : standin_say(STANDIN_BAD, "an operation is not final");
    }
    return status ? status : standin_graph_check(d->graph, standin_text, sizeof standin_text);
}

static standin_graph *standin_graph_copy(const standin_graph *g) {
    standin_graph *copy = malloc(sizeof *copy);
    if (!copy) abort();
    *copy = *g;
    return copy;
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

#define STANDIN(type, name) __attribute__((visibility("default"))) type name

STANDIN(size_t, cudnnGetVersion)(void);
STANDIN(size_t, cudnnGetVersion)(void) {
    const char *said = getenv("FXA_STANDIN_CUDNN"); /* version that the stand-in reports; engine choices depend on it */
    return said ? (size_t)strtoul(said, NULL, 10) : 91901;
}

STANDIN(const char *, cudnnGetErrorString)(int status);
STANDIN(const char *, cudnnGetErrorString)(int status) {
    return status == STANDIN_NO ? "STANDIN_NOT_SUPPORTED" : "STANDIN_ERROR";
}

STANDIN(void, cudnnGetLastErrorString)(char *text, size_t size);
STANDIN(void, cudnnGetLastErrorString)(char *text, size_t size) { (void)snprintf(text, size, "%s", standin_text); }

STANDIN(int, cudnnCreate)(void **handle);
STANDIN(int, cudnnCreate)(void **handle) {
    int status = standin_fails();
    if (status) return status;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*mode)(void) = driver ? (int (*)(void))dlsym(driver, "standin_cuda_mode") : NULL;
    if (!mode || mode() != 2)
        atomic_fetch_add(&standin_cudnn.mistakes, 1); /* allocates, which would invalidate a
                                                                               capture */
    if (driver) dlclose(driver);
    *handle = malloc(1);
    atomic_fetch_add(&standin_cudnn.held, 1);
    return 0;
}

STANDIN(int, cudnnDestroy)(void *handle);
STANDIN(int, cudnnDestroy)(void *handle) {
    free(handle);
    atomic_fetch_sub(&standin_cudnn.held, 1);
    return 0;
}

STANDIN(int, cudnnSetStream)(void *handle, void *stream);
STANDIN(int, cudnnSetStream)(void *handle, void *stream) {
    (void)stream;
    return handle ? standin_fails() : STANDIN_BAD;
}

STANDIN(int, cudnnBackendCreateDescriptor)(int kind, void **out);
STANDIN(int, cudnnBackendCreateDescriptor)(int kind, void **out) {
    int status = standin_fails();
    if (status) return status;
    standin_descriptor *d = calloc(1, sizeof *d);
    if (!d) abort();
    d->kind = kind;
    *out = d;
    atomic_fetch_add(&standin_cudnn.held, 1);
    return 0;
}

STANDIN(int, cudnnBackendDestroyDescriptor)(void *descriptor);
STANDIN(int, cudnnBackendDestroyDescriptor)(void *descriptor) {
    standin_descriptor *d = descriptor;
    for (int i = 0; i < d->n_items; i++) free(d->item[i].data);
    free(d->graph);
    free(d);
    atomic_fetch_sub(&standin_cudnn.held, 1);
    return 0;
}

STANDIN(int, cudnnBackendSetAttribute)(void *descriptor, int name, int type, int64_t n, const void *value);
STANDIN(int, cudnnBackendSetAttribute)(void *descriptor, int name, int type, int64_t n, const void *value) {
    standin_descriptor *d = descriptor;
    int status = standin_fails();
    if (status) return status;
    if (!d || d->final || n < 1 || !value || d->n_items == STANDIN_ITEMS) return standin_say(STANDIN_BAD, "set");
    standin_item *item = &d->item[d->n_items++];
    size_t bytes = (size_t)n * standin_element(type);
    *item = (standin_item){name, type, n, malloc(bytes)};
    if (!item->data) abort();
    memcpy(item->data, value, bytes);
    return 0;
}

STANDIN(int, cudnnBackendFinalize)(void *descriptor);
STANDIN(int, cudnnBackendFinalize)(void *descriptor) {
    standin_descriptor *d = descriptor;
    int status = standin_fails();
    if (!status && d->kind == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) status = standin_finish_graph(d);
    if (!status && d->kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const standin_descriptor *config = standin_child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        const standin_item *saved = standin_get(d, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
        if (config && config->graph) d->graph = standin_graph_copy(config->graph);
        if (saved && standin_child(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP))
            d->graph = standin_saved_read(saved->data, saved->n);
        if (!d->graph) status = standin_say(STANDIN_BAD, "a plan without a configuration, or of text that is none");
    }
    d->final = !status;
    return status;
}

STANDIN(int, cudnnBackendGetAttribute)(void *descriptor, int name, int type, int64_t capacity, int64_t *n, void *out);
STANDIN(int, cudnnBackendGetAttribute)(void *descriptor, int name, int type, int64_t capacity, int64_t *n, void *out) {
    const standin_descriptor *d = descriptor;
    int64_t workspace = STANDIN_OWN_WORKSPACE;
    int status = standin_fails();
    (void)type;
    if (status) return status;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION && d->graph) {
        int64_t size = standin_saved_size(d->graph);
        if (capacity && capacity < size) return standin_say(STANDIN_BAD, "get");
        *n = size;
        if (capacity) standin_saved_write(d->graph, out);
        return 0;
    }
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && capacity == 0 && d->final)
        return *n = standin_cudnn.no_engine ? standin_cudnn.tried : 1, 0;
    if (capacity != 1) return standin_say(STANDIN_BAD, "get");
    *n = 1;
    if (name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE || name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
        return memcpy(out, &workspace, sizeof workspace), 0;
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || !d->final) return standin_say(STANDIN_BAD, "get");
    const standin_descriptor *graph = standin_child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    standin_descriptor *config = *(standin_descriptor **)out;
    *n = standin_cudnn.no_engine ? 0 : 1;
    if (*n == 0)
        return standin_say(0, standin_cudnn.tried
                                  ? "{\"engineId\":7} Warning: 3000; Reason: the stand-in has no engine "
                                    "at: here; Reason: another at: there"
                                  : "");
    config->graph = standin_graph_copy(graph->graph);
    config->final = true;
    return 0;
}

STANDIN(int, cudnnBackendExecute)(void *handle, void *plan, void *pack);
STANDIN(int, cudnnBackendExecute)(void *handle, void *plan, void *pack) {
    const standin_descriptor *p = plan, *v = pack;
    int status = standin_fails();
    if (status) return status;
    const standin_item *ids = standin_get(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const standin_item *pointers = standin_get(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    char *workspace = (char *)standin_child(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!handle || !p->final || !v->final || !ids || !pointers || ids->n != pointers->n)
        return standin_say(STANDIN_BAD, "execute");
    memset(workspace, 0xee, STANDIN_OWN_WORKSPACE);
    atomic_fetch_add(&standin_cudnn.runs, 1);
    return standin_graph_run(p->graph, ids->n, ids->data, pointers->data, standin_text, sizeof standin_text);
}
