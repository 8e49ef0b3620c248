/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates a problem from the caller's struct: reads the struct, fills in defaults, checks, copies and resolves it,
 * composes the program that runs (with built-in masks) and computes the key. A problem never changes after
 * fxa__problem_create, so threads share it without locks. One allocation contains the object and the copies of captures
 * and target.
 */
#include "geometry.h"
#include "index_check.h"
#include "problem_private.h"

#include "../base/blake2s.h"
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <string.h>

/* Minimum struct_size: a caller's struct must contain all members before total_q, such as b, sq and d_qk. Later members
 * that the struct lacks are read as 0, which means none, default or off. */
#define PROBLEM_MIN_SIZE offsetof(fxa_problem, total_q)

/* Retains and returns a program, which may be NULL. */
static fxa_program *problem_keep_program(const fxa_program *program) {
    fxa_program *p = (fxa_program *)(uintptr_t)program; /* only the reference count changes */
    if (p) fxa_program_retain(p);
    return p;
}

/* Copies a struct whose defaults are filled in and whose fields are checked; strides and maps are not yet resolved. */
static fxa_status problem_copy(fxa__host *host, const fxa_problem *from, fxa__problem **out, fxa_error *err) {
    /* The caller has checked that n and n_bprop are at most FXA_MAX_TENSORS, so `bytes` cannot overflow. */
    size_t n = from->n_captures, n_bprop = from->n_bprop_captures;
    size_t target = from->target ? strlen(from->target) + 1 : 0;
    size_t bytes = sizeof(fxa__problem) + (n + n_bprop) * sizeof(fxa_capture) + target;
    fxa__problem *p = fxa__alloc(host, bytes);
    if (!p) return fxa__fail_memory(err, "a problem");
    fxa_capture *captures = (fxa_capture *)(void *)(p + 1);
    atomic_init(&p->refs, 1);
    p->host = fxa__host_retain(host);
    p->bytes = bytes;
    p->in = *from;
    p->in.engine = NULL;
    p->in.program = problem_keep_program(from->program);
    p->in.bprop = problem_keep_program(from->bprop);
    p->in.captures = n ? captures : NULL;
    p->in.bprop_captures = n_bprop ? captures + n : NULL;
    if (n) memcpy(captures, from->captures, n * sizeof *captures);
    if (n_bprop) memcpy(captures + n, from->bprop_captures, n_bprop * sizeof *captures);
    if (target) p->in.target = memcpy(captures + n + n_bprop, from->target, target);
    FXA__ASSERT((char *)(captures + n + n_bprop) + target == (char *)p + bytes);
    p->f64 = from->q.dtype == FXA_F64;
    *out = p;
    return FXA_OK;
}

/* Replaces the input q_row by q, and k_row by k, in the score program and the backward program, where the two inputs
 * always have the same value in this problem. */
static fxa_status problem_drop_row_inputs(fxa__problem *p, fxa_error *err) {
    fxa_program *masked = p->program;
    uint32_t identity = fxa__identity_inputs(&p->in);
    fxa_status status = fxa__program_without_storage_inputs(p->host, masked, identity, &p->program, err);
    fxa_program_destroy(masked);
    if (status != FXA_OK) return status;
    return fxa__program_without_storage_inputs(p->host, (fxa_program *)(uintptr_t)p->in.bprop, identity, &p->bprop,
                                               err);
}

/* Composes the programs that engines lower. Fails with E_INTERNAL if a built-in mask adds params or tensors, because
 * runs have values only for the params and tensors of the user's program. */
static fxa_status problem_compose(fxa__problem *p, fxa_error *err) {
    const fxa_problem *in = &p->in;
    FXA_TRY(
        fxa__program_with_masks(p->host, in->program, in->flags, in->window_left, in->window_right, &p->program, err));
    FXA_TRY(problem_drop_row_inputs(p, err));
    size_t params = in->program ? fxa_program_param_count(in->program) : 0;
    if (fxa_program_tensor_count(p->program) != in->n_captures || fxa_program_param_count(p->program) != params)
        return fxa__fail(err, FXA_E_INTERNAL, "ready masks changed the declarations of a program");
    return FXA_OK;
}

static fxa_status problem_hash(fxa__problem *p, fxa_error *err) {
    fxa__writer w = {.host = p->host};
    fxa__problem_write(p, FXA__WITH_ALL, &w);
    fxa_status status = w.failed ? fxa__fail_memory(err, "the key of a problem") : FXA_OK;
    if (status == FXA_OK) fxa__blake2s_128(w.data, w.size, p->key);
    fxa__writer_free(&w);
    return status;
}

fxa_status fxa__problem_create(fxa__host *host, const fxa_problem *problem, fxa__problem **out, fxa_error *err) {
    fxa_problem in = FXA_PROBLEM_INIT;
    fxa__problem *p = NULL;
    *out = NULL;
    FXA_TRY(fxa__struct_read(&in, sizeof in, PROBLEM_MIN_SIZE, problem, "fxa_problem", err));
    fxa__problem_default(&in);
    FXA_TRY(fxa__problem_check(&in, err));
    FXA_TRY(problem_copy(host, &in, &p, err));
    fxa_capture *captures = (fxa_capture *)(void *)(p + 1);
    fxa_status status = fxa__problem_resolve(&p->in, captures, captures + p->in.n_captures, err);
    if (status == FXA_OK) status = problem_compose(p, err);
    if (status == FXA_OK && (p->in.flags & FXA_BOUNDS_CHECK) && !p->in.bprop)
        status = fxa__index_prove(host, &p->in, p->program, &p->indices_proven, err);
    if (status == FXA_OK) status = problem_hash(p, err);
    if (status == FXA_OK)
        *out = p;
    else
        fxa__problem_release(p);
    return status == FXA_OK ? fxa__ok(err) : status;
}

fxa__problem *fxa__problem_retain(fxa__problem *p) {
    if (p) atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void fxa__problem_release(fxa__problem *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    FXA__ASSERT(atomic_load(&p->refs) == 0); /* no reference was released twice */
    fxa__host *host = p->host;
    fxa_program_destroy((fxa_program *)(uintptr_t)p->in.program);
    fxa_program_destroy((fxa_program *)(uintptr_t)p->in.bprop);
    fxa_program_destroy(p->program);
    fxa_program_destroy(p->bprop);
    fxa__free(host, p, p->bytes);
    fxa__host_release(host);
}

fxa_status fxa_problem_program(fxa_context *ctx, const fxa_problem *problem, fxa_program **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    fxa__problem *p;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    *out = problem_keep_program(p->program);
    fxa__problem_release(p);
    return FXA_OK;
}
