/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs plans: checks the arguments and calls the engine. fxa_plan_run allocates no memory and takes no lock.
 * fxa_attention makes or finds the plan and allocates the workspace; for a device, it also copies the data to the
 * device and back (host_copies.c).
 */
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/poison.h"
#include "../problem/index_check.h"
#include "host_copies.h"

fxa_status fxa__run_usable(const fxa_plan *plan, fxa_error *err) {
    FXA_TRY(fxa__instance_usable(plan->code->instance, err));
    if (plan->problem->in.target)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "the plan is for a target; save it, and load it on that device");
    return FXA_OK;
}

/* Checks before a run on a device that the device is present, and that the pointers belong to the device. The engine
 * checks the pointers, unless bound->skip_pointer_checks is set. */
static fxa_status run_check(const fxa_plan *plan, const fxa__bound_args *bound, fxa_error *err) {
    const fxa__instance *instance = plan->code->instance;
    FXA_TRY(fxa__run_usable(plan, err));
    bool checked = instance->engine->check && !bound->skip_pointer_checks;
    return checked ? instance->engine->check(instance->self, plan->problem, bound, err) : FXA_OK;
}

/* If the run is captured into a CUDA graph, makes the graph hold a reference to the code, so that the code outlives the
 * plan. */
static fxa_status run_retain_in_graph(const fxa_plan *plan, const fxa__bound_args *bound, fxa_error *err) {
    const fxa__instance *instance = plan->code->instance;
    bool retained = false;
    if (!(plan->problem->in.flags & FXA_GRAPH_CAPTURE) || !instance->engine->tie) return FXA_OK;
    fxa__code *code = fxa__code_retain(plan->code);
    fxa_status status = instance->engine->tie(instance->self, bound->stream, fxa__code_drop, code, &retained, err);
    if (!retained) fxa__code_release(code);
    return status;
}

/* In builds with asserts, fills a workspace in host memory with poison before a run; run_check_zones checks the red
 * zones of the workspace after the run. host_copies.c does the same for a workspace on a device. */
static void run_poison(const fxa_plan *plan, const fxa__bound_args *bound) {
    (void)plan, (void)bound;
#if FXA_ASSERT
    if (plan->code->instance->engine->device == FXA_HOST) fxa__poison_fill(bound->workspace, bound->workspace_size);
#endif
}

static void run_check_zones(const fxa_plan *plan, const fxa__bound_args *bound) {
    (void)plan, (void)bound;
#if FXA_ASSERT
    if (plan->code->instance->engine->device == FXA_HOST) fxa__plan_zones(plan, bound->workspace);
#endif
}

void fxa__plan_zones(const fxa_plan *plan, const void *workspace) {
    const fxa__instance *instance = plan->code->instance;
    if (workspace && instance->engine->zones)
        instance->engine->zones(instance->self, plan->code->code, plan->problem, workspace);
}

fxa_status fxa_plan_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!plan) return fxa__fail(err, FXA_E_ARGUMENT, "plan is NULL");
    if (!args) return fxa__fail(err, FXA_E_ARGUMENT, "args is NULL");
    const fxa__code *code = plan->code;
    const fxa__engine *engine = code->instance->engine;
    fxa_view views[FXA__ARGS_VIEWS];
    fxa__bound_args bound;
    FXA_TRY(fxa__bound_args_make(plan->problem, args, plan->engine_workspace, engine->device == FXA_HOST, views, &bound,
                                 err));
    if (engine->device != FXA_HOST) FXA_TRY(run_check(plan, &bound, err));
    if (bound.index_memory) FXA_TRY(fxa__index_refuse(plan->problem, &bound, bound.index_memory, err));
    fxa__progress progress = {.fn = bound.progress_fn, .user = bound.progress_user, .total = 1};
    FXA__ASSERT(bound.workspace_size == plan->engine_workspace);
    FXA__ASSERT(!engine->threads == !plan->pool);
    bound.pool = plan->pool;
    bound.constants = plan->constants;
    bound.progress = progress.fn ? &progress : NULL;
    atomic_fetch_add_explicit(&plan->host->runs, 1, memory_order_relaxed);
    FXA_TRY(run_retain_in_graph(plan, &bound, err));
    run_poison(plan, &bound);
    FXA_TRY(engine->run(code->instance->self, code->code, plan->problem, &bound, err));
    run_check_zones(plan, &bound);
    fxa__progress_end(bound.progress);
    return fxa__ok(err);
}

static fxa_status run_with_workspace(const fxa_plan *plan, fxa_args *args, fxa_error *err) {
    size_t size = plan->workspace;
    void *memory = fxa__alloc_aligned(plan->host, size, FXA_WORKSPACE_ALIGN);
    if (size > 0 && !memory) return fxa__fail(err, FXA_E_MEMORY, "out of memory: a workspace of %zu bytes", size);
    args->workspace = memory;
    args->workspace_size = size;
    fxa_status status = fxa_plan_run(plan, args, err);
    fxa__free_aligned(plan->host, memory, size, FXA_WORKSPACE_ALIGN);
    return status;
}

fxa_status fxa_attention(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!args) return fxa__fail(err, FXA_E_ARGUMENT, "args is NULL");
    fxa_args own = FXA_ARGS_INIT;
    FXA_TRY(fxa__struct_read(&own, sizeof own, FXA__ARGS_MIN, args, "fxa_args", err));
    fxa_plan *plan = NULL;
    FXA_TRY(fxa_plan_create(ctx, problem, &plan, err));
    bool host = plan->problem->in.device == FXA_HOST;
    fxa_status status = host ? run_with_workspace(plan, &own, err) : fxa__host_copies_run(plan, &own, err);
    fxa_plan_destroy(plan);
    return status;
}
