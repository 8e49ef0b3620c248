/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn::fwd and fxattn::bwd, operators of PyTorch in plain C. python/fxattn/torch/operators.py calls
 * fxa_torch_register once, and adds fake and autograd implementations. The kernels here run without Python, for calls
 * from Python, from compiled graphs and from exported programs.
 *
 * On a failure libtorch throws a C++ exception through the frames of this file (built with -fexceptions). Before that,
 * the call has released everything it owns, and no lock is held.
 */
#include "slot_words.h"
#include "torch_call.h"
#include "torch_state.h"

#include <stdio.h>
#include <string.h>

static void results_release(void **results, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (results[i]) {
            fxa__torch.aoti_torch_delete_tensor_object(results[i]);
            results[i] = NULL;
        }
    }
}

/* Creates a dense result of rows, such as LSE. If the result is not requested, it is an empty tensor, or with
 * only_wanted none. */
static fxa_status row_new(fxa__torch_call *call, bool wanted, fxa_dtype dtype, fxa__torch_tensor *out) {
    if (!wanted && call->only_wanted) {
        return FXA_OK;
    }
    const int64_t *q = call->q.size;
    int64_t size[3] = {q[0], q[1], q[2]}, none = 0, one = 1;
    int64_t s = size[2] ? size[2] : 1, h = size[1] ? size[1] : 1;
    int64_t stride[3] = {h * s, s, 1};
    return wanted ? fxa__torch_result_new(call, &call->q, dtype, 3, size, stride, out)
                  : fxa__torch_result_new(call, &call->q, dtype, 1, &none, &one, out);
}

fxa_status fxa__torch_call_forward(fxa__torch_call *call, void *results[3]) {
    fxa__torch_problem p;
    fxa__torch_tensor made[3];
    fxa_context *ctx = NULL;
    int64_t stride[4];
    memset(made, 0, sizeof made);
    fxa_status status = fxa__torch_context(&ctx, &call->err);
    if (status) {
        return status;
    }
    status = fxa__torch_problem_begin(&p, call, ctx);
    if (!status) {
        const int64_t *q = call->q.size;
        int64_t size[4] = {q[0], q[1], q[2], call->v.size[3]};
        fxa__torch_strides_like(&call->q, size, stride);
        fxa_dtype dtype = fxa__torch_result_dtype(call, call->q.dtype);
        status = fxa__torch_result_new(call, &call->q, dtype, 4, size, stride, &made[0]);
    }
    bool lse = p.problem.flags & FXA_RETURN_LSE, max = p.problem.flags & FXA_RETURN_ROW_MAX;
    fxa_dtype rows = call->q.dtype == FXA_F64 ? FXA_F64 : FXA_F32;
    status = status ? status : row_new(call, lse, FXA_F64, &made[1]);
    status = status ? status : row_new(call, max, rows, &made[2]);
    if (!status) {
        fxa__torch_operand_set(&p.problem.o, &made[0]);
        p.args.slot[FXA_SLOT_O] = made[0].data;
        if (lse) {
            fxa__torch_operand_set(&p.problem.lse, &made[1]);
            p.args.slot[FXA_SLOT_LSE] = made[1].data;
        }
        if (max) {
            fxa__torch_operand_set(&p.problem.row_max, &made[2]);
            p.args.slot[FXA_SLOT_ROW_MAX] = made[2].data;
        }
        status = fxa__torch_problem_run(&p, call, ctx);
    }
    for (int i = 0; i < 3; i++) {
        results[i] = made[i].handle;
    }
    if (status) {
        results_release(results, 3);
    }
    fxa__torch_problem_end(&p);
    return status;
}

/* Creates the tensor of a gradient of q, k or v and sets it in problem and arguments. The *_begin functions below do so
 * for other gradients. */
static fxa_status operand_gradient_begin(fxa__torch_problem *p, fxa__torch_call *call, int64_t want,
                                         fxa__torch_tensor *out) {
    const fxa__torch_tensor *like = want == FXA__TORCH_DQ ? &call->q : want == FXA__TORCH_DK ? &call->k : &call->v;
    fxa_operand *const operand[] = {&p->problem.dq, &p->problem.dk, &p->problem.dv};
    int64_t stride[4];
    fxa__torch_strides_like(like, like->size, stride);
    fxa_dtype dtype = fxa__torch_result_dtype(call, like->dtype);
    fxa_status status = fxa__torch_result_new(call, like, dtype, 4, like->size, stride, out);
    if (!status) {
        fxa__torch_operand_set(operand[want], out);
        p->problem.flags |= (uint32_t)FXA_GRAD_Q << want;
        p->args.slot[FXA_SLOT_DQ + want] = out->data;
    }
    return status;
}

static fxa_status sink_gradient_begin(fxa__torch_problem *p, fxa__torch_call *call, fxa__torch_tensor *out) {
    fxa_dtype dtype = (fxa_dtype)p->problem.sinks.dtype;
    int64_t one = 1;
    fxa_status status = fxa__torch_result_new(call, &call->q, dtype, 1, &p->problem.hq, &one, out);
    p->problem.dsinks.dtype = p->problem.sinks.dtype;
    p->problem.flags |= FXA_GRAD_SINKS;
    p->args.slot[FXA_SLOT_DSINKS] = out->data;
    return status;
}

/* Begins the gradient of `scalars`. Params in memory of q's device: the run writes it; else it is filled after the run.
 */
static fxa_status scalars_gradient_begin(fxa__torch_problem *p, fxa__torch_call *call, fxa__torch_tensor *out) {
    bool in_memory = p->problem.flags & FXA_SCALARS_IN_MEMORY;
    int64_t one = 1;
    fxa_status status = fxa__torch_result_new(call, &call->scalars, FXA_F64, 1, call->scalars.size, &one, out);
    for (size_t i = 0; i < p->args.n_params; i++) {
        bool real = fxa__torch.fxa_program_param(p->program, i).type == FXA_FLOAT;
        p->problem.param_grads |= (uint64_t)real << i;
    }
    status = status || !in_memory ? status : fxa__torch_result_clear(call, out); /* ints have no gradient */
    if (!in_memory && p->problem.device != FXA_HOST) {
        status = fxa__torch_fail(call, FXA_E_UNSUPPORTED,
                                 "a number on the host has no gradient in a call on CUDA; capture a tensor that is "
                                 "there instead");
    }
    p->args.dparams = in_memory ? out->data : p->dparams;
    p->args.n_dparams = p->args.n_params;
    return status;
}

static fxa_status capture_gradient_begin(fxa__torch_problem *p, fxa__torch_call *call, size_t at,
                                         fxa__torch_tensor *out) {
    const fxa__torch_tensor *t = &call->tensors[at];
    int64_t stride[FXA_MAX_RANK];
    for (int64_t i = t->rank - 1, next = 1; i >= 0; i--) {
        stride[i] = next;
        next *= t->size[i] ? t->size[i] : 1;
    }
    fxa_dtype dtype = fxa__torch_result_dtype(call, t->dtype);
    fxa_status status = fxa__torch_result_new(call, t, dtype, t->rank, t->size, stride, out);
    p->captures[at].grad = 1;
    p->captures[at].grad_dtype = (uint32_t)dtype;
    p->dtensors[at] = out->data;
    p->args.dtensors = p->dtensors;
    p->args.n_dtensors = p->problem.n_captures;
    return status;
}

/* Creates the tensor of one requested gradient. */
static fxa_status gradient_begin(fxa__torch_problem *p, fxa__torch_call *call, int64_t want, fxa__torch_tensor *out) {
    if (want >= FXA__TORCH_DQ && want <= FXA__TORCH_DV) {
        return operand_gradient_begin(p, call, want, out);
    }
    if (want == FXA__TORCH_DSINK && p->problem.flags & FXA_SINKS) {
        return sink_gradient_begin(p, call, out);
    }
    if (want == FXA__TORCH_DSCALARS && call->n_scalars) {
        return scalars_gradient_begin(p, call, out);
    }
    if (want < FXA__TORCH_DTENSORS || (uint64_t)(want - FXA__TORCH_DTENSORS) >= p->problem.n_captures) {
        return fxa__torch_fail(call, FXA_E_ARGUMENT, "gradient %lld is not one that the call has", (long long)want);
    }
    return capture_gradient_begin(p, call, (size_t)(want - FXA__TORCH_DTENSORS), out);
}

/* Sets the inputs of the backward pass: dout, dlse, and out and lse of the forward pass. */
static fxa_status backward_inputs_set(fxa__torch_problem *p, fxa__torch_call *call) {
    const fxa__torch_tensor *dout = &call->grads[0], *dlse = &call->grads[1];
    if (call->n_grads < 1 || dout->rank != 4 || call->out.rank != 4 || call->lse.rank != 3) {
        return fxa__torch_fail(call, FXA_E_ARGUMENT,
                               "the backward pass needs out and dout of rank 4 and lse of rank 3");
    }
    for (int i = 0; i < 4; i++) {
        int64_t size = i < 3 ? call->q.size[i] : call->v.size[3];
        if (dout->size[i] != size || call->out.size[i] != size || (i < 3 && call->lse.size[i] != size) ||
            (i < 3 && call->n_grads > 1 && (dlse->rank != 3 || dlse->size[i] != size))) {
            return fxa__torch_fail(call, FXA_E_ARGUMENT,
                                   "out, lse or a gradient of them has another shape than its "
                                   "output");
        }
    }
    fxa__torch_operand_set(&p->problem.o, &call->out);
    fxa__torch_operand_set(&p->problem.lse, &call->lse);
    fxa__torch_operand_set(&p->problem.dout, dout);
    p->args.slot[FXA_SLOT_O] = call->out.data;
    p->args.slot[FXA_SLOT_LSE] = call->lse.data;
    p->args.slot[FXA_SLOT_DO] = dout->data;
    if (call->n_grads > 1) {
        p->problem.flags |= FXA_READ_DLSE;
        fxa__torch_operand_set(&p->problem.dlse, dlse);
        p->args.slot[FXA_SLOT_DLSE] = dlse->data;
    }
    return FXA_OK;
}

/* Copies the gradients of float params, in the order of the params, into the gradient of `scalars`. */
static void scalars_fill(const fxa__torch_problem *p, double *out, int64_t n) {
    int64_t next = 0;
    for (size_t i = 0; i < p->args.n_params && next < n; i++) {
        if (p->problem.param_grads >> i & 1) {
            out[next++] = p->dparams[i];
        }
    }
    memset(out + next, 0, (size_t)(n - next) * sizeof *out); /* params of a backward program have no gradient */
}

fxa_status fxa__torch_call_backward(fxa__torch_call *call, void *results[FXA__TORCH_MAX_WANT]) {
    fxa__torch_problem p;
    fxa__torch_tensor made[FXA__TORCH_MAX_WANT];
    fxa_context *ctx = NULL;
    memset(made, 0, sizeof made);
    fxa_status status = fxa__torch_context(&ctx, &call->err);
    if (status) {
        return status;
    }
    status = fxa__torch_problem_begin(&p, call, ctx);
    p.problem.flags &= ~(uint32_t)(FXA_RETURN_LSE | FXA_RETURN_ROW_MAX);
    status = status ? status : backward_inputs_set(&p, call);
    for (size_t i = 0; i < call->n_want && !status; i++) {
        status = gradient_begin(&p, call, call->want[i], &made[i]);
        for (size_t j = 0; j < i && !status; j++) { /* the run writes each gradient once */
            if (call->want[j] == call->want[i]) {
                status =
                    fxa__torch_fail(call, FXA_E_ARGUMENT, "gradient %lld is wanted twice", (long long)call->want[i]);
            }
        }
    }
    status = status ? status : fxa__torch_problem_run(&p, call, ctx);
    for (size_t i = 0; i < call->n_want; i++) {
        results[i] = made[i].handle;
        if (!status && fxa__torch_has_no_rows(&p, call)) {
            status = fxa__torch_result_clear(call, &made[i]);
        }
        if (!status && call->want[i] == FXA__TORCH_DSCALARS && !(p.problem.flags & FXA_SCALARS_IN_MEMORY)) {
            scalars_fill(&p, made[i].data, made[i].size[0]);
        }
    }
    if (status) {
        results_release(results, call->n_want);
    }
    fxa__torch_problem_end(&p);
    return status;
}

static void failure_raise(const fxa_error *err) {
    char text[640] = "fxattn: ";
    fxa__slot_words_put(text + strlen(text), sizeof text - strlen(text), err->text);
    fxa__torch.aoti_torch_check(false, "fxattn", __FILE__, (uint32_t)__LINE__, text);
}

static void forward_kernel(fxa__torch_value *stack, uint64_t n_in, uint64_t n_out) {
    fxa__torch_call call;
    void *results[3] = {NULL};
    (void)n_in;
    (void)n_out;
    fxa_status status = fxa__torch_call_begin(&call, stack, false);
    status = status ? status : fxa__torch_call_forward(&call, results);
    if (status == FXA_E_UNSUPPORTED && fxa__torch_call_make_dense(&call)) {
        status = fxa__torch_call_forward(&call, results);
    }
    fxa__torch_call_end(&call);
    if (status) {
        failure_raise(&call.err);
    }
    memcpy(stack, results, sizeof results);
}

static void backward_kernel(fxa__torch_value *stack, uint64_t n_in, uint64_t n_out) {
    fxa__torch_call call;
    void *results[FXA__TORCH_MAX_WANT] = {NULL}, *list = NULL;
    (void)n_in;
    (void)n_out;
    fxa_status status = fxa__torch_call_begin(&call, stack, true);
    status = status ? status : fxa__torch_call_backward(&call, results);
    if (status == FXA_E_UNSUPPORTED && fxa__torch_call_make_dense(&call)) {
        status = fxa__torch_call_backward(&call, results);
    }
    if (!status && fxa__torch.torch_new_list_reserve_size(call.n_want, &list)) {
        status = fxa__torch_fail(&call, FXA_E_MEMORY, "PyTorch gave no memory for the list of gradients");
        results_release(results, call.n_want);
    }
    for (size_t i = 0; i < call.n_want && !status; i++) {
        fxa__torch_value value;
        memcpy(&value, &results[i], sizeof value);
        results[i] = NULL; /* owned by the list from here on */
        if (fxa__torch.torch_list_push_back(list, value)) {
            status = fxa__torch_fail(&call, FXA_E_MEMORY, "PyTorch gave no memory for the list of gradients");
            results_release(results, call.n_want);
            fxa__torch.torch_delete_list(list);
        }
    }
    fxa__torch_call_end(&call);
    if (status) {
        failure_raise(&call.err);
    }
    memcpy(stack, &list, sizeof list);
}

/* ---- What Python calls ------------------------------------------------------------------------------------------ */

FXA_API int fxa_torch_register(const char *folder, const char *library, const char *forward_schema,
                               const char *backward_schema, char *text, size_t capacity);
FXA_API int fxa_torch_cache_stats(fxa_cache_stats *out);
FXA_API int fxa_torch_cache_clear(void);
FXA_API void fxa_torch_workspaces_clear(void);

/* Defines both operators and their kernels for CPU and CUDA. Returns 0, or -1 with a message in `text`; then nothing is
 * registered. libtorch's objects that hold the registrations are never released. */
int fxa_torch_register(const char *folder, const char *library, const char *forward_schema, const char *backward_schema,
                       char *text, size_t capacity) {
    static const char *const keys[] = {"CPU", "CUDA"};
    void *definitions = NULL;
    if (fxa__torch_resolve(folder, library, text, capacity)) {
        return -1;
    }
    fxa__torch_state_begin();
    int32_t failed = fxa__torch.aoti_torch_library_init_fragment("fxattn", __FILE__, __LINE__, &definitions);
    failed = failed ? failed : fxa__torch.aoti_torch_library_def(definitions, forward_schema);
    failed = failed ? failed : fxa__torch.aoti_torch_library_def(definitions, backward_schema);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !failed; i++) {
        void *kernels = NULL;
        failed = fxa__torch.aoti_torch_library_init_impl("fxattn", keys[i], __FILE__, __LINE__, &kernels);
        failed = failed ? failed : fxa__torch.aoti_torch_library_impl(kernels, "fwd", forward_kernel);
        failed = failed ? failed : fxa__torch.aoti_torch_library_impl(kernels, "bwd", backward_kernel);
    }
    if (failed) {
        snprintf(text, capacity, "PyTorch did not take the operators fxattn::fwd and fxattn::bwd");
    }
    return failed ? -1 : 0;
}

/* Reads the cache counters of the operators' context. Returns 0, or -1 if there is no context. */
int fxa_torch_cache_stats(fxa_cache_stats *out) {
    fxa_context *ctx = NULL;
    fxa_error err;
    if (fxa__torch_context(&ctx, &err)) {
        return -1;
    }
    fxa__torch.fxa_cache_get_stats(ctx, out);
    return 0;
}

int fxa_torch_cache_clear(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    if (fxa__torch_context(&ctx, &err)) {
        return -1;
    }
    fxa__torch_plans_clear();
    fxa__torch.fxa_cache_clear(ctx);
    fxa__torch_device_workspaces_clear();
    return 0;
}

/* Releases the cached device workspaces, but no plans. */
void fxa_torch_workspaces_clear(void) { fxa__torch_device_workspaces_clear(); }
