/* SPDX-License-Identifier: Apache-2.0
 *
 * A run: where its workspace lies, the arguments of its kernels, launches on the caller's stream. It allocates nothing,
 * takes no lock and waits for nothing, so that it can be recorded into a graph.
 */
#include "call.h"

static fxa_status run_kernels(fxa__cu_call *c) {
    if (c->p->in.b == 0 && c->p->in.pass == FXA_FORWARD) return FXA_OK; /* packed rows are nobody's */
    if (c->p->in.pass == FXA_BACKWARD) return fxa__cu_backward(c);
    return c->code->choice.units >> FXA__CU_DECODE & 1 ? fxa__cu_decode(c) : fxa__cu_forward(c);
}

fxa_status fxa__cu_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                       fxa_error *err) {
    fxa__cu_call c = {.self = self, .code = code, .p = p, .bound = bound, .err = err};
    uint64_t bytes =
        fxa__cu_layout_make(c.self, &c.code->choice, &c.code->program, p, fxa__carver_make(bound->workspace), &c.at);
    if (bound->workspace_size < bytes)
        return fxa__fail(err, FXA_E_WORKSPACE, "the kernels need a workspace of %llu bytes, %zu were given",
                         (unsigned long long)bytes, bound->workspace_size);
    fxa__cu_tables_place(&c);
    fxa__cu_counters_place(&c);
    fxa__cu_args_make(&c);
    FXA_TRY(fxa__gpu_enter(&c.self->gpu, err));
    fxa_status status = fxa__cu_stage_in(&c);
    if (status == FXA_OK) status = fxa__cu_moved(&c);
    if (status == FXA_OK) status = run_kernels(&c);
    if (status == FXA_OK) status = fxa__cu_stage_out(&c);
    fxa__gpu_leave(&c.self->gpu);
    return status == FXA_OK ? fxa__ok(err) : status;
}

#if FXA_ASSERT
void fxa__cu_zones(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    const fxa__cu_code *c = code;
    fxa__cu_layout at;
    (void)fxa__cu_layout_make(self, &c->choice, &c->program, p, fxa__carver_after(workspace), &at);
}
#endif
