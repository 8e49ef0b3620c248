/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a plan: lays out the workspace, sets the arguments and launches kernels on the caller's stream. Allocates
 * nothing, takes no lock and does not wait, so that a run can be captured into a CUDA graph.
 */
#include "call.h"
#include "recipes.h"

static fxa_status run_kernels(fxa__cuda_call *c) {
    if (c->p->in.b == 0 && c->p->in.pass == FXA_FORWARD) return FXA_OK; /* no batch entries: no row is written */
    return c->code->choice.recipe->launch(c);
}

fxa_status fxa__cuda_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                         fxa_error *err) {
    fxa__cuda_call c = {.self = self, .code = code, .p = p, .bound = bound, .err = err};
    uint64_t bytes =
        fxa__cuda_buffers_make(c.self, &c.code->choice, &c.code->program, p, fxa__carver_make(bound->workspace), &c.at);
    if (bound->workspace_size < bytes)
        return fxa__fail(err, FXA_E_WORKSPACE, "the kernels need a workspace of %llu bytes, %zu were given",
                         (unsigned long long)bytes, bound->workspace_size);
    fxa__cuda_plan_tables_use(&c);
    fxa__cuda_counters_use(&c);
    fxa__cuda_args_make(&c);
    FXA_TRY(fxa__gpu_enter(&c.self->gpu, err));
    bool converts = c.code->choice.converts, reads_coordinates = c.code->choice.traits.dropout == 2;
    fxa_status status = converts ? fxa__cuda_convert_inputs(&c) : FXA_OK;
    if (status == FXA_OK && reads_coordinates) status = fxa__cuda_dropout_coordinates_write(&c);
    if (status == FXA_OK) status = run_kernels(&c);
    if (status == FXA_OK && converts) status = fxa__cuda_convert_results(&c);
    fxa__gpu_leave(&c.self->gpu);
    FXA__ASSERT(status != FXA_OK || !c.packing_due); /* the launch that was to pack operands took place */
    return status == FXA_OK ? fxa__ok(err) : status;
}

#if FXA_ASSERT
void fxa__cuda_zones(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    const fxa__cuda_code *c = code;
    fxa__cuda_buffers at;
    (void)fxa__cuda_buffers_make(self, &c->choice, &c->program, p, fxa__carver_after(workspace), &at);
}
#endif
