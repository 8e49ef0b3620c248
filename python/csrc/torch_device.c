/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls with tensors on a CUDA device (torch_call.h): device and stream, the plan, and dense copies of tensors with
 * strides or alignment that no engine supports.
 *
 *     fxa__torch_device_begin -> problem and arguments -> fxa__torch_device_plan -> run
 *                    ^                                              |
 *                    '-- fxa__torch_call_make_dense <-- unsupported '
 *
 * Plans are requested with FXA_GRAPH_CAPTURE, whether or not the stream is being captured. So the warm-up run before a
 * capture makes the plan that the captured run uses, and nothing is compiled during the capture. A plan whose run was
 * captured is kept forever: the CUDA graph needs the plan's code, and its destruction is not reported here.
 *
 * Runs set FXA_SKIP_POINTER_CHECKS, because the checks are made here:
 * - Inputs are tensors of PyTorch, which reports their devices (checked in fxa__torch_device_begin; for extra and
 *   captured tensors in torch_problem.c) and their sizes (checked in torch_problem.c and torch_shim.c).
 * - Results and workspace are new allocations, so they overlap nothing.
 * - The problem's alignment is computed from the pointers.
 * - The plan supports capture, or the stream is not being captured.
 */
#include "torch_call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_ALIGN = 16, DEVICE_STEP = 8 }; /* DEVICE_ALIGN: bytes, of pointers; DEVICE_STEP: elements, of strides */

/* Hash table of the plans whose runs were captured, by address. */
static struct {
    pthread_mutex_t lock;
    fxa_plan **plan; /* [capacity] NULL: free */
    size_t n;
    size_t capacity; /* a power of two, at least 2 n */
} captured_plans = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool fxa__torch_is_on_host(const fxa__torch_tensor *t) { return t->device == fxa__torch.aoti_torch_device_type_cpu(); }

/* ---- Where ------------------------------------------------------------------------------------------------------- */

fxa_status fxa__torch_device_begin(fxa__torch_problem *p, fxa__torch_call *call) {
    const fxa__torch_tensor *given[] = {&call->k, &call->v, &call->out, &call->lse, &call->grads[0], &call->grads[1]};
    const char *const names[] = {"k", "v", "out", "lse", "the gradient of out", "the gradient of lse"};
    for (size_t i = 0; i < (call->backward ? 4 + call->n_grads : 2); i++) {
        if (given[i]->device != call->q.device || given[i]->index != call->q.index) {
            return fxa__torch_fail(call, FXA_E_BINDING, "%s is on another device than q", names[i]);
        }
    }
    if (fxa__torch_is_on_host(&call->q)) {
        return FXA_OK;
    }
    if (call->q.device != fxa__torch.aoti_torch_device_type_cuda()) {
        return fxa__torch_fail(call, FXA_E_UNSUPPORTED, "tensors are on a device that is neither the CPU nor CUDA");
    }
    p->problem.device = FXA_CUDA;
    p->problem.ordinal = call->q.index;
    if (fxa__torch_cuda_stream(call->q.index, &p->args.stream, &p->captured)) {
        return fxa__torch_fail(call, FXA_E_UNAVAILABLE, "this build of PyTorch says no current CUDA stream");
    }
    p->problem.flags |= FXA_GRAPH_CAPTURE;
    p->args.flags |= FXA_SKIP_POINTER_CHECKS;
    return FXA_OK;
}

bool fxa__torch_has_no_rows(const fxa__torch_problem *p, const fxa__torch_call *call) {
    return p->problem.device != FXA_HOST && call->q.size[0] * call->q.size[1] * call->q.size[2] == 0;
}

/* Sets the problem's alignment to 16 bytes if all pointers, including results, are multiples of 16; else to that of
 * elements, which PyTorch guarantees. */
static void alignment_set(fxa__torch_problem *p) {
    uintptr_t all = 0;
    for (int slot = 0; slot < FXA_SLOT_Q_LENGTHS; slot++) {
        all |= (uintptr_t)p->args.slot[slot];
    }
    for (size_t i = 0; i < p->args.n_tensors; i++) {
        all |= (uintptr_t)p->tensors[i] | (uintptr_t)p->dtensors[i];
    }
    for (size_t i = 0; i < p->args.n_bprop_tensors; i++) {
        all |= (uintptr_t)p->bprop_tensors[i];
    }
    p->problem.alignment = all % DEVICE_ALIGN ? 0 : DEVICE_ALIGN;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Returns the slot of a plan in the hash table, or the free slot where it would be inserted. */
static size_t captured_slot(fxa_plan *const *table, size_t capacity, const fxa_plan *plan) {
    size_t at = (size_t)((uintptr_t)plan / 16 * 0x9e3779b97f4a7c15u >> 32) & (capacity - 1);
    while (table[at] && table[at] != plan) {
        at = (at + 1) & (capacity - 1);
    }
    return at;
}

/* Grows the hash table if necessary for one more plan. Returns false if out of memory. The lock is held. */
static bool captured_grow(void) {
    size_t capacity = captured_plans.capacity ? 2 * captured_plans.capacity : 64;
    if (2 * captured_plans.n < captured_plans.capacity) {
        return true;
    }
    fxa_plan **more = calloc(capacity, sizeof(fxa_plan *));
    for (size_t i = 0; more && i < captured_plans.capacity; i++) {
        if (captured_plans.plan[i]) {
            more[captured_slot(more, capacity, captured_plans.plan[i])] = captured_plans.plan[i];
        }
    }
    if (more) {
        free(captured_plans.plan);
        captured_plans.plan = more;
        captured_plans.capacity = capacity;
    }
    return more != NULL;
}

/* Adds a plan to the hash table, with a reference of the table. Returns an error if out of memory. */
static fxa_status captured_plan_add(fxa__torch_call *call, fxa_plan *plan) {
    pthread_mutex_lock(&captured_plans.lock);
    bool added = captured_grow();
    fxa_plan **slot =
        added ? &captured_plans.plan[captured_slot(captured_plans.plan, captured_plans.capacity, plan)] : NULL;
    if (added && !*slot) {
        fxa__torch.fxa_plan_retain(plan);
        *slot = plan;
        captured_plans.n++;
    }
    pthread_mutex_unlock(&captured_plans.lock);
    return added ? FXA_OK : fxa__torch_fail(call, FXA_E_MEMORY, "there is no memory to keep a plan that is recorded");
}

/* Appends a remedy to the message that no engine of the device supports the call. */
static void remedy_add(fxa__torch_call *call) {
    bool wide = call->q.dtype == FXA_F32 || call->q.dtype == FXA_F64;
    size_t used = strlen(call->err.text);
    snprintf(call->err.text + used, sizeof call->err.text - used, "%s",
             wide ? " (float16 and bfloat16 tensors are what GPU engines take: torch.autocast, .bfloat16(); on the CPU "
                    "this call runs as it is)"
                  : " (on the CPU this call runs as it is)");
}

fxa_status fxa__torch_device_plan(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx, fxa_plan **out) {
    alignment_set(p);
    fxa_status status = fxa__torch_plan_get(ctx, &p->problem, out, &call->err);
    if (status == FXA_E_UNSUPPORTED && !p->captured) { /* try engines that cannot be captured */
        fxa_error why;
        p->problem.flags &= ~(uint32_t)FXA_GRAPH_CAPTURE;
        fxa_status again = fxa__torch.fxa_plan_create(ctx, &p->problem, out, &why);
        status = again ? status : FXA_OK;
    }
    if (status == FXA_E_UNSUPPORTED) {
        remedy_add(call);
    }
    if (!status && p->captured) {
        status = captured_plan_add(call, *out);
    }
    return status;
}

/* ---- Tensors as engines take them -------------------------------------------------------------------------------- */

/* Returns true if the pointer is aligned and, for an operand, the last stride is 1 and the others are positive
 * multiples of DEVICE_STEP. */
static bool is_dense_and_aligned(const fxa__torch_tensor *t, bool operand) {
    bool fits = (uintptr_t)t->data % DEVICE_ALIGN == 0;
    for (int64_t i = 0; operand && fits && i < t->rank; i++) {
        bool last = i == t->rank - 1;
        fits = last ? t->stride[i] == 1 : t->stride[i] > 0 && t->stride[i] % DEVICE_STEP == 0;
    }
    return fits;
}

/* Replaces a tensor by a dense copy and releases its handle, which the call owns. */
static fxa_status tensor_copy(fxa__torch_call *call, fxa__torch_tensor *t, bool operand) {
    fxa__torch_tensor copy;
    int64_t stride[FXA_MAX_RANK];
    for (int64_t i = t->rank - 1, next = 1; i >= 0; i--) {
        stride[i] = next;
        next *= t->size[i] ? t->size[i] : 1;
    }
    if (operand) {
        fxa__torch_strides_like(t, t->size, stride);
    }
    fxa_status status = fxa__torch_tensor_new(call, t, t->dtype, t->rank, t->size, stride, &copy);
    if (!status && fxa__torch.aoti_torch_copy_(copy.handle, t->handle, 1)) {
        fxa__torch.aoti_torch_delete_tensor_object(copy.handle);
        status = fxa__torch_fail(call, FXA_E_ENGINE, "PyTorch could not copy a tensor");
    }
    if (!status) {
        fxa__torch.aoti_torch_delete_tensor_object(t->handle);
        *t = copy;
    }
    return status;
}

bool fxa__torch_call_make_dense(fxa__torch_call *call) {
    fxa__torch_tensor *operands[] = {&call->q, &call->k, &call->v, &call->out, &call->grads[0]};
    size_t n = call->backward ? 5 : 3;
    bool copied = false, failed = fxa__torch_is_on_host(&call->q) || (call->backward && call->n_grads < 1);
    for (size_t i = 0; i < n + call->n_tensors && !failed; i++) {
        bool operand = i < n;
        fxa__torch_tensor *t = operand ? operands[i] : &call->tensors[i - n];
        if (operand ? t->rank == 4 && !is_dense_and_aligned(t, true) : !is_dense_and_aligned(t, false)) {
            failed = tensor_copy(call, t, operand) != FXA_OK;
            copied = !failed;
        }
    }
    return copied && !failed;
}
