/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue of the mock device (mock_queue.h), one list for all streams. A thread holds `mock_order` while it performs
 * operations, so that another thread waits for operations that were already removed from the list.
 */
#include "mock_queue.h"

#include "base/poison.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mock_queue_mutex = PTHREAD_MUTEX_INITIALIZER, mock_order = PTHREAD_MUTEX_INITIALIZER;
static mock_op *mock_queue;

void mock_code_leave(mock_code *code) {
    if (!code || atomic_fetch_sub(&code->refs, 1) != 1) return;
    fxa__host *host = code->host;
    fxa__engine_ref.release(NULL, code->inner);
    atomic_fetch_sub(&mock.codes, 1);
    fxa__free(host, code, sizeof *code);
}

/* ---- What a run touches ------------------------------------------------------------------------------------------ */

void mock_touch_start(mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound) {
    *t = (mock_touch){.args = FXA_ARGS_INIT};
    memcpy(t->args.slot, bound->slot, sizeof bound->slot);
    for (size_t i = 0; i < p->in.n_captures; i++) {
        t->tensors[i] = bound->tensors[i].data;
        t->dtensors[i] = bound->dtensors ? (void *)(uintptr_t)bound->dtensors[i].data : NULL;
    }
    for (size_t i = 0; i < p->in.n_bprop_captures; i++) t->bprop_tensors[i] = bound->bprop_tensors[i].data;
    t->args.dparams = bound->dparams;
    t->args.n_dparams = p->in.program ? fxa_program_param_count(p->in.program) : 0;
    t->args.workspace = bound->workspace;
}

/* the pointers to arrays are set here, because the struct may have moved */
bool mock_touch_get(const mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound, size_t i,
                    fxa__run_region *out) {
    fxa_args args = t->args;
    args.tensors = t->tensors, args.dtensors = (void *const *)t->dtensors, args.bprop_tensors = t->bprop_tensors;
    const fxa__run_region_list list = {&p->in, &args, bound->workspace_size};
    if (!fxa__run_region_get(&list, i, out)) return false;
    if (fxa__region_is_empty(&out->region)) out->region.data = NULL;
    return true;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void mock_op_end(mock_op *op) {
    mock_code_leave(op->code);
    if (op->p) fxa__problem_release(op->p);
    atomic_fetch_sub(&mock.queued, 1);
    free(op);
}

static void mock_op_copy_views(mock_op *op, const fxa__problem *p, const fxa__bound_args *bound) {
    size_t n = p->in.n_captures, n_bprop = p->in.n_bprop_captures;
    fxa_view *at = op->views;
    if (bound->tensors) op->bound.tensors = memcpy(at, bound->tensors, n * sizeof *at), at += n;
    if (bound->dtensors) op->bound.dtensors = memcpy(at, bound->dtensors, n * sizeof *at), at += n;
    if (bound->bprop_tensors) op->bound.bprop_tensors = memcpy(at, bound->bprop_tensors, n_bprop * sizeof *at);
}

mock_op *mock_op_of_run(mock_code *code, const fxa__problem *p, const fxa__bound_args *bound) {
    mock_op *op = calloc(1, sizeof *op);
    mock_touch touch;
    fxa__run_region t;
    if (!op) abort();
    size_t n = p->in.program ? fxa_program_param_count(p->in.program) : 0;
    size_t n_bprop = p->in.bprop ? fxa_program_param_count(p->in.bprop) : 0;
    op->stream = bound->stream, op->bound = *bound;
    op->code = code;
    atomic_fetch_add(&code->refs, 1);
    op->p = fxa__problem_retain((fxa__problem *)(uintptr_t)p);
    mock_op_copy_views(op, p, bound);
    if (bound->params && n) op->bound.params = memcpy(op->params, bound->params, n * sizeof(double));
    if (bound->bprop_params && n_bprop)
        op->bound.bprop_params = memcpy(op->bprop_params, bound->bprop_params, n_bprop * sizeof(double));
    mock_touch_start(&touch, p, bound);
    for (size_t i = 0; mock_touch_get(&touch, p, bound, i, &t); i++)
        if (t.region.data && !(t.part == FXA__PART_OTHER && (t.index & 1)))
            op->block[op->n_blocks++] = mock_block_find(t.region.data);
    return op;
}

/* Reads scalars in memory as fxattn.h specifies: ints are truncated and clamped; NaN selects the default scale. */
static void mock_op_read_scalars(mock_op *op) {
    const fxa_problem *in = &op->p->in;
    const double *params = op->bound.slot[FXA_SLOT_PARAMS];
    size_t n = in->program ? fxa_program_param_count(in->program) : 0;
    double scale = *(const double *)op->bound.slot[FXA_SLOT_SCALE];
    op->bound.scale = scale != scale ? 1 / sqrt((double)in->d_qk) : scale;
    if (in->flags & FXA_DROPOUT) op->bound.seed = *(const uint64_t *)op->bound.slot[FXA_SLOT_SEED];
    for (size_t i = 0; i < n; i++) {
        bool is_int = fxa_program_param(in->program, i).type == FXA_INT;
        op->params[i] = is_int ? trunc(fmax(INT32_MIN, fmin(INT32_MAX, params[i]))) : params[i];
    }
    op->bound.params = op->params;
}

static fxa_status mock_op_perform(mock_op *op, fxa_error *err) {
    fxa_status status = FXA_OK;
    for (size_t i = 0; i < op->n_blocks; i++) mock_block_open(op->block[i]);
    if (op->code) {
        if (mock.performing) mock.performing();
        if (op->p->in.flags & FXA_SCALARS_IN_MEMORY) mock_op_read_scalars(op);
        fxa__poison_fill(op->bound.workspace, op->bound.workspace_size); /* poison, as on the host */
        status = fxa__engine_ref.run(NULL, op->code->inner, op->p, &op->bound, err);
        if (status == FXA_OK && fxa__engine_ref.zones && op->bound.workspace)
            fxa__engine_ref.zones(NULL, op->code->inner, op->p, op->bound.workspace);
    } else {
        memcpy(op->to, op->from, op->size);
    }
    for (size_t i = 0; i < op->n_blocks; i++) mock_block_close(op->block[i]);
    return status;
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

void mock_queue_push(mock_op *op) {
    atomic_fetch_add(&mock.queued, 1);
    pthread_mutex_lock(&mock_queue_mutex);
    mock_op **at = &mock_queue;
    while (*at) at = &(*at)->next;
    *at = op;
    pthread_mutex_unlock(&mock_queue_mutex);
}

static mock_op *mock_queue_pop(int32_t ordinal, bool all, void *stream) {
    pthread_mutex_lock(&mock_queue_mutex);
    mock_op **at = &mock_queue;
    while (*at && ((*at)->ordinal != ordinal || (!all && (*at)->stream != stream))) at = &(*at)->next;
    mock_op *op = *at;
    if (op) *at = op->next;
    pthread_mutex_unlock(&mock_queue_mutex);
    return op;
}

bool mock_queue_needs(const mock_block *block) {
    bool found = false;
    pthread_mutex_lock(&mock_queue_mutex);
    for (const mock_op *op = mock_queue; op; op = op->next)
        for (size_t i = 0; i < op->n_blocks; i++) found = found || op->block[i] == block;
    pthread_mutex_unlock(&mock_queue_mutex);
    return found;
}

void mock_queue_drop(int32_t ordinal, bool all, void *stream) {
    for (mock_op *op; (op = mock_queue_pop(ordinal, all, stream));) mock_op_end(op);
}

fxa_status mock_queue_perform(int32_t ordinal, bool all, void *stream, fxa_error *err) {
    fxa_status status = FXA_OK;
    mock_op *op;
    pthread_mutex_lock(&mock_order);
    while (status == FXA_OK && (op = mock_queue_pop(ordinal, all, stream))) {
        status = mock_count_call(MOCK_PERFORM, err);
        if (status == FXA_OK) status = mock_op_perform(op, err);
        mock_op_end(op);
    }
    if (status != FXA_OK) mock_queue_drop(ordinal, all, stream);
    pthread_mutex_unlock(&mock_order);
    return status;
}
