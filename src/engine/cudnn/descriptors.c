/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates descriptors (descriptors.h). A dnn_maker has a list of all descriptors of one graph, and the status of the
 * first failed call. After a failure the functions of a dnn_maker do nothing.
 */
#include "descriptors.h"

#include "../../base/invariant.h"

#include <stdio.h>
#include <string.h>

typedef struct dnn_maker {
    const fxa__cudnn_api *api;
    const fxa__dnn_graph *g;
    void **made; /* [n_made] all descriptors, in the order of their creation */
    size_t n_made, capacity;
    void **tensors, **ops; /* [tensors], [operations] of the graph: their descriptors, which are also in `made` */
    int status;            /* status of the first failed call of cuDNN */
    const char *doing;
    bool no_memory;
} dnn_maker;

static void maker_set(dnn_maker *m, void *d, int name, int type, int64_t n, const void *value) {
    if (m->status == CUDNN_STATUS_SUCCESS && !m->no_memory) m->status = m->api->set(d, name, type, n, value);
}

static void maker_set_int(dnn_maker *m, void *d, int name, int64_t value) {
    maker_set(m, d, name, CUDNN_TYPE_INT64, 1, &value);
}

static void maker_set_type(dnn_maker *m, void *d, int name, int value) {
    maker_set(m, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void maker_set_tensor(dnn_maker *m, void *d, int name, int32_t tensor) {
    FXA__ASSERT(tensor < (int32_t)m->g->n_tensors);
    FXA__ASSERT(tensor < 0 || m->tensors[tensor] || m->no_memory || m->status != CUDNN_STATUS_SUCCESS);
    if (tensor >= 0) maker_set(m, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &m->tensors[tensor]);
}

static void *maker_new(dnn_maker *m, int type) {
    void *d = NULL;
    if (m->status != CUDNN_STATUS_SUCCESS || m->no_memory) return NULL;
    if (!fxa__grow(m->g->host, &m->made, &m->capacity, m->n_made + 1, sizeof *m->made)) {
        m->no_memory = true;
        return NULL;
    }
    m->status = m->api->descriptor_create(type, &d);
    if (m->status == CUDNN_STATUS_SUCCESS) m->made[m->n_made++] = d;
    return d;
}

static void maker_finish(dnn_maker *m, void *d) {
    if (m->status == CUDNN_STATUS_SUCCESS && !m->no_memory) m->status = m->api->finalize(d);
}

static void maker_free(dnn_maker *m) {
    fxa__host *host = m->g->host;
    while (m->n_made > 0) (void)m->api->descriptor_destroy(m->made[--m->n_made]);
    fxa__free(host, m->made, m->capacity * sizeof *m->made);
    fxa__free(host, m->tensors, m->g->n_tensors * sizeof *m->tensors);
    fxa__free(host, m->ops, m->g->n_ops * sizeof *m->ops);
}

static fxa_status maker_status(const dnn_maker *m, fxa_error *err) {
    if (m->no_memory) return fxa__fail_memory(err, "descriptors for cuDNN");
    return m->status == CUDNN_STATUS_SUCCESS ? FXA_OK : fxa__cudnn_fail(m->api, m->status, m->doing, err);
}

/* ---- Descriptors of a graph -------------------------------------------------------------------------------------- */

/* Returns the alignment of a tensor's memory that the descriptor states, in bytes. */
static int64_t maker_alignment(const fxa__dnn_tensor *t) {
    /* true: the tensor starts inside the caller's array; only the start of an array is known to be aligned */
    bool inside = fxa__dnn_is_captured(t) && t->offset != 0;
    /* true: a scale or amax, to which the problem's alignment does not apply */
    bool scale = t->source == FXA__DNN_SLOT && (t->fill || t->cleared);
    return !inside && !scale ? 16 : fxa__dnn_size(t->type);
}

/* Creates the descriptor of tensor i after the descriptor of the tensor's ragged offsets, unless they exist already. */
static void maker_tensor(dnn_maker *m, int32_t i) {
    const fxa__dnn_tensor *t = &m->g->tensors[i];
    const bool yes = true;
    if (m->tensors[i]) return;
    /* a tensor of ragged offsets has no ragged offsets itself */
    FXA__ASSERT(!t->ragged || !m->g->tensors[t->ragged - 1].ragged);
    if (t->ragged) maker_tensor(m, t->ragged - 1);
    void *d = m->tensors[i] = maker_new(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    maker_set_type(m, d, CUDNN_ATTR_TENSOR_DATA_TYPE, t->type);
    maker_set(m, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dim);
    maker_set(m, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->stride);
    maker_set_int(m, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, (int64_t)i + 1);
    maker_set_int(m, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, maker_alignment(t));
    if (t->source == FXA__DNN_VIRTUAL) maker_set(m, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (fxa__dnn_is_by_value(t)) maker_set(m, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (t->ragged) maker_set_tensor(m, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, t->ragged - 1);
    maker_finish(m, d);
}

static void *maker_pointwise(dnn_maker *m, const fxa__dnn_op *op) {
    const float one = 1;
    int mode = op->mode;
    void *how = maker_new(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    maker_set(m, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    maker_set_type(m, how, CUDNN_ATTR_POINTWISE_MATH_PREC, op->precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) maker_set_int(m, how, CUDNN_ATTR_POINTWISE_AXIS, op->axis);
    maker_finish(m, how);
    void *d = maker_new(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    maker_set(m, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, op->x);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, op->b);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, op->t);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, op->y);
    maker_set(m, d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
    maker_set(m, d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
    return d;
}

static void *maker_matmul(dnn_maker *m, const fxa__dnn_op *op) {
    void *how = maker_new(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    maker_set_type(m, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    maker_finish(m, how);
    void *d = maker_new(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, op->x);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, op->b);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, op->y);
    maker_set(m, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, op->m);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, op->n);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, op->k);
    return d;
}

static void *maker_reduction(dnn_maker *m, const fxa__dnn_op *op) {
    int mode = op->mode;
    void *how = maker_new(m, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    maker_set_type(m, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    maker_set(m, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    maker_finish(m, how);
    void *d = maker_new(m, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    maker_set(m, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, op->x);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, op->y);
    return d;
}

static void *maker_reshape(dnn_maker *m, const fxa__dnn_op *op) {
    void *d = maker_new(m, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, op->x);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, op->y);
    return d;
}

static void *maker_pages(dnn_maker *m, const fxa__dnn_op *op) {
    void *d = maker_new(m, CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, op->x);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, op->b);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, op->t);
    maker_set_tensor(m, d, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, op->y);
    return d;
}

static void *(*const maker_ops[])(dnn_maker *m, const fxa__dnn_op *op) = {
    [FXA__DNN_POINTWISE] = maker_pointwise, [FXA__DNN_MATMUL] = maker_matmul, [FXA__DNN_REDUCTION] = maker_reduction,
    [FXA__DNN_RESHAPE] = maker_reshape,     [FXA__DNN_PAGED] = maker_pages,
};

/* Returns the descriptor of the operation graph; NULL if memory runs out. Tensors that no operation uses are left out,
 * because cuDNN would require addresses for them. */
static void *maker_graph(dnn_maker *m) {
    m->tensors = fxa__alloc_array(m->g->host, m->g->n_tensors, sizeof *m->tensors);
    m->ops = fxa__alloc_array(m->g->host, m->g->n_ops, sizeof *m->ops);
    m->no_memory = !m->tensors || !m->ops;
    if (m->no_memory) return NULL;
    m->doing = "its operations are described";
    for (size_t i = 0; i < m->g->n_tensors; i++)
        if (fxa__dnn_is_used(m->g, (int32_t)i)) maker_tensor(m, (int32_t)i);
    for (size_t i = 0; i < m->g->n_ops; i++) {
        FXA__ASSERT(m->g->ops[i].kind <= FXA__DNN_PAGED);
        m->ops[i] = maker_ops[m->g->ops[i].kind](m, &m->g->ops[i]);
        maker_finish(m, m->ops[i]);
    }
    void *graph = maker_new(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    maker_set(m, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)m->g->n_ops, m->ops);
    m->doing = m->status == CUDNN_STATUS_SUCCESS ? "the graph is put together" : m->doing;
    maker_finish(m, graph);
    return graph;
}

/* ---- Choice of an engine of cuDNN -------------------------------------------------------------------------------- */

/* Returns REASON from cuDNN's text about a refused graph, "...; Reason: REASON at: ...", which is cut before " at: ".
 * Returns the entire text if there is no "Reason: ". */
static char *config_reason(char *text) {
    static const char begin[] = "Reason: ", end[] = " at: ";
    char *reason = strstr(text, begin), *rest;
    if (!reason) return text;
    reason += sizeof begin - 1;
    rest = strstr(reason, end);
    if (rest) *rest = '\0';
    return reason;
}

/* Fails with E_UNSUPPORTED and a message that the heuristic found no engine, or that every engine refused the graph. */
static fxa_status config_refuse(const dnn_maker *m, void *heuristics, fxa_error *err) {
    char text[1200];
    int64_t tried = 0;
    fxa__cudnn_last(m->api, text, sizeof text);
    int status = m->api->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &tried, NULL);
    const char *reason = config_reason(text);
    if (status == CUDNN_STATUS_SUCCESS && tried < 1)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "cuDNN has no engine for this graph of %zu operations%s%s",
                         m->g->n_ops, *reason ? ": " : "", reason);
    return fxa__fail(err, FXA_E_UNSUPPORTED,
                     "none of %lld engines of cuDNN takes this graph of %zu operations; the first says: %s",
                     (long long)tried, m->g->n_ops, *reason ? reason : "nothing");
}

/* Sets *config to the best engine configuration for the graph. Fails with E_UNSUPPORTED if there is none. */
static fxa_status maker_config(dnn_maker *m, void *profile, void **config, fxa_error *err) {
    const int mode = CUDNN_HEUR_MODE_A;
    void *graph = maker_graph(m);
    int64_t count = 0;
    void *heuristics = maker_new(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    maker_set(m, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    maker_set(m, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    maker_set(m, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &profile);
    m->doing = m->status == CUDNN_STATUS_SUCCESS ? "it looks for an engine" : m->doing;
    maker_finish(m, heuristics);
    *config = maker_new(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    FXA_TRY(maker_status(m, err));
    m->status =
        m->api->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, config);
    FXA_TRY(maker_status(m, err));
    return count > 0 ? FXA_OK : config_refuse(m, heuristics, err);
}

fxa_status fxa__dnn_probe(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, int64_t *workspace,
                          fxa_error *err) {
    dnn_maker m = {.api = api, .g = g};
    void *config;
    int64_t count = 0;
    fxa_status status = maker_config(&m, profile, &config, err);
    if (status == FXA_OK) {
        m.doing = "it is asked for its workspace";
        m.status = api->get(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, workspace);
        status = maker_status(&m, err);
    }
    maker_free(&m);
    return status;
}

static fxa_status plan_finish(const fxa__cudnn_api *api, void *plan, const char *doing, int64_t *workspace,
                              fxa_error *err) {
    int64_t count = 0;
    int status = api->finalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, workspace);
    return status == CUDNN_STATUS_SUCCESS ? FXA_OK : fxa__cudnn_fail(api, status, doing, err);
}

fxa_status fxa__dnn_compile(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, void **plan,
                            int64_t *workspace, fxa_error *err) {
    dnn_maker m = {.api = api, .g = g};
    void *config, *made = NULL;
    fxa_status status = maker_config(&m, profile, &config, err);
    if (status == FXA_OK) {
        m.doing = "a plan is begun";
        m.status = api->descriptor_create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made);
        maker_set(&m, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
        status = maker_status(&m, err);
    }
    if (status == FXA_OK) status = plan_finish(api, made, "a plan is compiled", workspace, err);
    if (status != FXA_OK && made) (void)api->descriptor_destroy(made);
    maker_free(&m);
    *plan = status == FXA_OK ? made : NULL;
    return status;
}

/* ---- Descriptors of devices -------------------------------------------------------------------------------------- */

static fxa_status profile_make(const fxa__cudnn_api *api, int name, int type, int64_t n, const void *value, void **out,
                               fxa_error *err) {
    void *d = NULL;
    int status = api->descriptor_create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
    if (status == CUDNN_STATUS_SUCCESS) status = api->set(d, name, type, n, value);
    if (status == CUDNN_STATUS_SUCCESS) status = api->finalize(d);
    *out = status == CUDNN_STATUS_SUCCESS ? d : NULL;
    if (status == CUDNN_STATUS_SUCCESS) return FXA_OK;
    fxa_error why;
    (void)fxa__cudnn_fail(api, status, "the profile of a device is read", &why);
    if (d) (void)api->descriptor_destroy(d);
    return fxa__fail(err, FXA_E_UNAVAILABLE, "%s", why.text);
}

fxa_status fxa__dnn_profile_text(const fxa__cudnn_api *api, const char *text, void **profile, fxa_error *err) {
    return profile_make(api, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(text), text,
                        profile, err);
}

fxa_status fxa__dnn_profile_handle(const fxa__cudnn_api *api, void *handle, void **profile, fxa_error *err) {
    return profile_make(api, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, profile, err);
}

/* ---- Addresses of a run ------------------------------------------------------------------------------------------ */

fxa_status fxa__dnn_pack(const fxa__cudnn_api *api, int64_t n, const int64_t *ids, void *const *pointers,
                         void *workspace, void **pack, fxa_error *err) {
    void *d = NULL;
    int status = api->descriptor_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = api->finalize(d);
    *pack = d;
    if (status == CUDNN_STATUS_SUCCESS) return FXA_OK;
    fxa_status result = fxa__cudnn_fail(api, status, "the pointers of a run are told", err);
    if (d) (void)api->descriptor_destroy(d);
    *pack = NULL;
    return result;
}
