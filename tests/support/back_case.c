/* SPDX-License-Identifier: Apache-2.0
 *
 * See back_case.h.
 */
#include "back_case.h"
#include "attn_case.h"

#include <stdlib.h>
#include <string.h>

static const fxa_slot back_out_slots[] = {FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
static const fxa_slot back_in_slots[] = {FXA_SLOT_Q, FXA_SLOT_K,   FXA_SLOT_V,   FXA_SLOT_DO,
                                         FXA_SLOT_O, FXA_SLOT_LSE, FXA_SLOT_DLSE}; /* in the order of BACK_Q, ... */

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

double back_get(fxa_dtype t, const void *x, int64_t i) {
    return t == FXA_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

void back_set(fxa_dtype t, void *x, int64_t i, double v) {
    if (t == FXA_F64)
        ((double *)x)[i] = v;
    else
        ((float *)x)[i] = (float)v;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void back_sizes(back_case *x) {
    const back_spec *s = &x->s;
    int64_t pages = s->page_size ? s->b * ((s->sk + s->page_size - 1) / s->page_size) : 0, keys = s->b * s->sk;
    if (pages) x->p.n_pages = pages / 2 + 1, keys = x->p.n_pages * s->page_size;
    x->n[FXA_SLOT_Q] = x->n[FXA_SLOT_DQ] = s->b * s->hq * s->sq * s->d;
    x->n[FXA_SLOT_O] = s->b * s->hq * s->sq * s->dv;
    x->n[FXA_SLOT_DO] = s->expanded ? s->dv : x->n[FXA_SLOT_O];
    x->n[FXA_SLOT_LSE] = x->n[FXA_SLOT_DLSE] = s->b * s->hq * s->sq;
    x->n[FXA_SLOT_K] = x->n[FXA_SLOT_DK] = keys * s->hkv * s->d;
    x->n[FXA_SLOT_V] = x->n[FXA_SLOT_DV] = keys * s->hkv * s->dv;
    x->n[FXA_SLOT_PAGES] = pages;
}

static void back_make_tensor(back_case *x, uint64_t *rng) {
    int64_t n = 1;
    for (int i = 0; i < FXA_MAX_RANK && x->s.tensor[i]; i++) n *= x->s.tensor[i];
    x->tensor = guard_make((size_t)n * sizeof(float), sizeof(float), !x->s.front);
    x->out[BACK_TENSOR] = guard_make((size_t)n * sizeof(float), sizeof(float), !x->s.front);
    memcpy(x->capture.size, x->s.tensor, sizeof x->s.tensor);
    x->capture.grad = 1;
    for (int64_t i = 0; i < n; i++) back_set(FXA_F32, x->tensor.data, i, attn_real(rng, -1, 1));
    x->p.captures = &x->capture;
    x->p.n_captures = 1;
}

static void back_make_slots(back_case *x, uint64_t *rng) {
    size_t element = fxa_dtype_size(x->s.dtype);
    back_sizes(x);
    for (int i = 0; i < BACK_INS; i++) {
        int64_t n = x->n[back_in_slots[i]];
        x->in[i] = guard_make((size_t)n * element, element, !x->s.front);
        for (int64_t j = 0; j < n; j++) back_set(x->s.dtype, x->in[i].data, j, attn_real(rng, -1, 1));
    }
    for (int i = 0; i < 3; i++) x->out[i] = guard_make((size_t)x->n[back_out_slots[i]] * element, element, !x->s.front);
    x->out[BACK_PARAM] = guard_make(sizeof(double), sizeof(double), !x->s.front);
    x->pages = guard_make((size_t)x->n[FXA_SLOT_PAGES] * sizeof(int32_t), sizeof(int32_t), !x->s.front);
    for (int64_t i = 0; i < x->n[FXA_SLOT_PAGES]; i++)
        ((int32_t *)(void *)x->pages.data)[i] = (int32_t)attn_int(rng, 0, x->p.n_pages - 1);
    if (x->s.tensor[0]) back_make_tensor(x, rng);
}

back_case *back_make(fxa_context *ctx, const back_spec *s, uint64_t seed, fxa_error *err) {
    back_case *x = calloc(1, sizeof *x);
    if (!x) abort();
    x->s = *s;
    x->param = 1.25;
    x->p = (fxa_problem)FXA_PROBLEM_INIT;
    x->p.b = s->b, x->p.hq = s->hq, x->p.hkv = s->hkv, x->p.sq = s->sq, x->p.sk = s->sk, x->p.d = s->d, x->p.dv = s->dv;
    x->p.q.dtype = (uint32_t)s->dtype;
    x->p.page_size = s->page_size;
    x->p.dropout_p = s->dropout_p;
    x->p.flags = s->flags | (s->page_size ? FXA_PAGED : 0u) | (s->dropout_p > 0 ? FXA_DROPOUT : 0u);
    if (s->expanded) x->p.dout = (fxa_operand){0, FXA_LAYOUT_STRIDED, {0, 0, 0, 1}};
    back_make_slots(x, &seed);
    if (s->text && fxa_program_parse(ctx, s->text, SIZE_MAX, &x->program, err) != FXA_OK) {
        back_free(x);
        return NULL;
    }
    x->p.program = x->program;
    return x;
}

void back_free(back_case *x) {
    if (!x) return;
    fxa_program_destroy(x->program);
    for (int i = 0; i < BACK_INS; i++) guard_close(&x->in[i]);
    for (int i = 0; i < BACK_OUTS; i++) guard_close(&x->out[i]);
    guard_close(&x->tensor);
    guard_close(&x->pages);
    guard_close(&x->workspace);
    free(x);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static fxa_status back_run_plan(back_case *x, const fxa_plan *plan, fxa_args *args, fxa_error *err) {
    guard_close(&x->workspace);
    x->workspace = guard_make(fxa_plan_workspace(plan), FXA_WORKSPACE_ALIGN, !x->s.front);
    args->workspace = x->workspace.data;
    args->workspace_size = x->workspace.size;
    return fxa_plan_run(plan, args, err);
}

fxa_status back_run(fxa_context *ctx, back_case *x, const char *engine, fxa_pass pass, fxa_error *err) {
    fxa_plan *plan = NULL;
    fxa_problem p = x->p;
    fxa_args args = FXA_ARGS_INIT;
    fxa_capture capture = x->capture;
    const void *tensors[1] = {x->tensor.data};
    void *dtensors[1] = {x->out[BACK_TENSOR].data};
    bool backward = pass == FXA_BACKWARD;
    p.engine = engine;
    p.pass = (uint32_t)pass;
    p.flags |= backward ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_LSE : FXA_WANT_LSE;
    args.n_params = x->program ? fxa_program_param_count(x->program) : 0;
    args.params = &x->param;
    args.tensors = tensors;
    args.n_tensors = p.n_captures;
    args.seed = 7;
    if (p.n_captures) p.captures = &capture;
    if (!backward) capture.grad = 0;
    for (int i = 0; i < BACK_INS; i++) args.slot[back_in_slots[i]] = x->in[i].data;
    if (x->s.page_size) args.slot[FXA_SLOT_PAGES] = x->pages.data;
    if (backward) {
        p.param_grads = args.n_params;
        args.dparams = (double *)(void *)x->out[BACK_PARAM].data;
        args.n_dparams = args.n_params;
        args.dtensors = dtensors;
        args.n_dtensors = p.n_captures;
        for (int i = 0; i < 3; i++) args.slot[back_out_slots[i]] = x->out[i].data;
    }
    fxa_status status = fxa_plan_create(ctx, &p, &plan, err);
    if (status == FXA_OK) status = back_run_plan(x, plan, &args, err);
    fxa_plan_destroy(plan);
    return status;
}

fxa_dtype back_dtype(const back_case *x, int out) {
    return out == BACK_TENSOR ? FXA_F32 : out == BACK_PARAM ? FXA_F64 : x->s.dtype;
}

bool back_wrote(const back_case *x, int out) {
    if (out == BACK_TENSOR) return x->s.tensor[0] != 0;
    return out != BACK_PARAM || (x->program && fxa_program_param_count(x->program));
}

void back_keep(const back_case *x, unsigned char *kept[BACK_OUTS]) {
    for (int i = 0; i < BACK_OUTS; i++) {
        kept[i] = NULL;
        if (!x->out[i].data) continue;
        kept[i] = malloc(x->out[i].size + 1);
        if (!kept[i]) abort();
        memcpy(kept[i], x->out[i].data, x->out[i].size);
        memset(x->out[i].data, 0xff, x->out[i].size);
    }
}

void back_drop(unsigned char *kept[BACK_OUTS]) {
    for (int i = 0; i < BACK_OUTS; i++) free(kept[i]);
}
