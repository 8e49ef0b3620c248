/* SPDX-License-Identifier: Apache-2.0
 *
 * A run: where its workspace lies, the arguments of its kernels, launches on the caller's stream. It allocates nothing,
 * takes no lock and waits for nothing, so that it can be recorded into a graph.
 */
#include "cuda_run.h"

#include "../../problem/scales.h"

static fxa_status run_kernels(fxa__cu_call *c) {
    if (c->p->in.pass == FXA_BACKWARD) return fxa__cu_backward(c);
    return c->code->choice.units >> FXA__CU_DECODE & 1 ? fxa__cu_decode(c) : fxa__cu_forward(c);
}

fxa_status fxa__cu_run(void *self, const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    fxa__cu_call c = {.self = self, .code = code, .p = p, .bind = bind, .err = err};
    uint64_t bytes = fxa__cu_layout_make(c.self, &c.code->choice, &c.code->program, p, bind->workspace, &c.at);
    if (bind->workspace_size < bytes)
        return fxa__fail(err, FXA_E_WORKSPACE, "the kernels need a workspace of %llu bytes, %zu were given",
                         (unsigned long long)bytes, bind->workspace_size);
    if (c.code->choice.plain && !(bind->scale > 0))
        return fxa__fail(err, FXA_E_BINDING,
                         "scale is %g: kernels with the scale in their unit want one above 0; multiply in the program",
                         bind->scale);
    fxa__cu_args_make(&c);
    FXA_TRY(fxa__gpu_enter(&c.self->gpu, err));
    fxa_status status = fxa__cu_stage_in(&c);
    if (status == FXA_OK) status = run_kernels(&c);
    if (status == FXA_OK) status = fxa__cu_stage_out(&c);
    fxa__gpu_leave(&c.self->gpu);
    return status == FXA_OK ? fxa__ok(err) : status;
}

/* ---- Whose pointers they are ------------------------------------------------------------------------------------- */

static const struct where_slot {
    uint8_t slot;
    uint32_t flag[2]; /* by pass: looked at where it is set; 0: always; UINT32_MAX: never */
} where_slots[] = {
    {FXA_SLOT_Q, {0, 0}},
    {FXA_SLOT_K, {0, 0}},
    {FXA_SLOT_V, {0, 0}},
    {FXA_SLOT_O, {0, 0}},
    {FXA_SLOT_LSE, {FXA_WANT_LSE, 0}},
    {FXA_SLOT_DO, {UINT32_MAX, 0}},
    {FXA_SLOT_DLSE, {UINT32_MAX, FXA_GRAD_LSE}},
    {FXA_SLOT_DQ, {UINT32_MAX, FXA_GRAD_Q}},
    {FXA_SLOT_DK, {UINT32_MAX, FXA_GRAD_K}},
    {FXA_SLOT_DV, {UINT32_MAX, FXA_GRAD_V}},
    {FXA_SLOT_SINK, {FXA_SINK, FXA_SINK}},
    {FXA_SLOT_DSINK, {UINT32_MAX, FXA_GRAD_SINK}},
    {FXA_SLOT_LEN_Q, {FXA_PADDING, FXA_PADDING}},
    {FXA_SLOT_LEN_K, {FXA_PADDING, FXA_PADDING}},
    {FXA_SLOT_CU_Q, {FXA_VARLEN, FXA_VARLEN}},
    {FXA_SLOT_CU_K, {FXA_VARLEN, FXA_VARLEN}},
    {FXA_SLOT_PAGES, {FXA_PAGED, FXA_PAGED}},
    {FXA_SLOT_SCALE, {FXA_SCALARS_IN_MEMORY, FXA_SCALARS_IN_MEMORY}},
    {FXA_SLOT_SEED, {FXA_SCALARS_IN_MEMORY, FXA_SCALARS_IN_MEMORY}},
    {FXA_SLOT_PARAMS, {FXA_SCALARS_IN_MEMORY, FXA_SCALARS_IN_MEMORY}},
};

static fxa_status where_check(const fxa__cu_self *s, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    FXA_TRY(fxa__gpu_check_stream(&s->gpu, bind->stream, p->in.flags & FXA_CAPTURE, err));
    for (size_t i = 0; i < sizeof where_slots / sizeof *where_slots; i++) {
        uint32_t flag = where_slots[i].flag[p->in.pass];
        void *data = bind->slot[where_slots[i].slot];
        if (flag == UINT32_MAX || (flag && !(p->in.flags & flag)) || !data) continue;
        FXA_TRY(fxa__gpu_check(&s->gpu, "slot", fxa_slot_name((fxa_slot)where_slots[i].slot), data, err));
    }
    for (int i = FXA_SLOT_MAP_B; i <= FXA_SLOT_POS_Q; i++)
        if (bind->slot[i]) FXA_TRY(fxa__gpu_check(&s->gpu, "slot", fxa_slot_name((fxa_slot)i), bind->slot[i], err));
    for (size_t i = 0; i < p->in.n_captures; i++) {
        const char *name = p->program->tensors[i].name;
        if (bind->tensors[i].data) /* else it has no elements: problem/bind.c */
            FXA_TRY(fxa__gpu_check(&s->gpu, "tensor", name, bind->tensors[i].data, err));
        if (bind->dtensors && bind->dtensors[i].data)
            FXA_TRY(fxa__gpu_check(&s->gpu, "gradient of tensor", name, bind->dtensors[i].data, err));
    }
    if (bind->dparams) FXA_TRY(fxa__gpu_check(&s->gpu, "the", "gradients of params", bind->dparams, err));
    return bind->workspace ? fxa__gpu_check(&s->gpu, "the", "workspace", bind->workspace, err) : FXA_OK;
}

fxa_status fxa__cu_check(void *self, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    const fxa__cu_self *s = self;
    FXA_TRY(fxa__gpu_enter(&s->gpu, err));
    fxa_status status = where_check(s, p, bind, err);
    fxa__gpu_leave(&s->gpu);
    return status;
}
