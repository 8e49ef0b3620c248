/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems with data (attn_data.h).
 */
#include "attn_data.h"

#include "base/dtype.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

fxa_operand *attn_operand(fxa_problem *p, fxa_slot slot) {
    fxa_operand *const by_slot[ATTN_SLOTS] = {&p->q,    &p->k,  &p->v,  &p->o,  &p->lse,   &p->row_max, &p->dout,
                                              &p->dlse, &p->dq, &p->dk, &p->dv, &p->sinks, &p->dsinks};
    return by_slot[slot];
}

fxa_problem attn_spec_problem(const attn_spec *s) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = s->b, p.hq = s->hq, p.hkv = s->hkv, p.sq = s->sq, p.sk = s->sk, p.d_qk = s->d, p.d_v = s->dv;
    p.flags = s->flags | (s->page_size ? FXA_PAGED : 0u) | (s->dropout_p > 0 ? FXA_DROPOUT : 0u);
    p.window_left = s->window_left, p.window_right = s->window_right;
    p.dropout_p = s->dropout_p;
    p.page_size = s->page_size, p.n_pages = s->n_pages;
    if (p.page_size && !p.n_pages) p.n_pages = s->b * ((s->sk + s->page_size - 1) / s->page_size) / 2 + 1;
    for (int i = 0; i < ATTN_SLOTS; i++) {
        fxa_operand *operand = attn_operand(&p, (fxa_slot)i);
        operand->dtype = (uint32_t)s->slot_dtype[i];
        if (s->strided >> i & 1) operand->layout = FXA_LAYOUT_STRIDED;
        if (s->strided >> i & 1) memcpy(operand->stride, s->stride[i], sizeof operand->stride);
    }
    if (!p.q.dtype) p.q.dtype = (uint32_t)s->dtype;
    return p;
}

void attn_slot_sizes(const fxa_problem *p, fxa_slot slot, int64_t n[4]) {
    bool keys = slot == FXA_SLOT_K || slot == FXA_SLOT_V || slot == FXA_SLOT_DK || slot == FXA_SLOT_DV;
    bool row = slot == FXA_SLOT_LSE || slot == FXA_SLOT_ROW_MAX || slot == FXA_SLOT_DLSE;
    bool wide = slot == FXA_SLOT_V || slot == FXA_SLOT_DV || slot == FXA_SLOT_O || slot == FXA_SLOT_DO;
    bool packed = (p->flags & FXA_VARLEN) && !(keys && (p->flags & FXA_PAGED));
    n[0] = packed ? 1 : p->b;
    n[1] = keys && p->hkv ? p->hkv : p->hq;
    n[2] = keys ? (packed ? p->total_k : p->sk) : packed ? p->total_q : p->sq;
    n[3] = row ? 1 : wide && p->d_v ? p->d_v : p->d_qk;
    if (keys && (p->flags & FXA_PAGED)) n[0] = p->n_pages, n[2] = p->page_size;
    if (slot == FXA_SLOT_SINKS || slot == FXA_SLOT_DSINKS) n[0] = n[2] = n[3] = 1;
}

/* Returns the default dtype of an operand. */
static fxa_dtype data_dtype(const fxa_problem *p, fxa_slot slot) {
    fxa_problem copy = *p;
    bool narrow = slot == FXA_SLOT_LSE || slot == FXA_SLOT_ROW_MAX || slot == FXA_SLOT_DLSE || slot >= FXA_SLOT_SINKS;
    uint32_t own = attn_operand(&copy, slot)->dtype, q = p->q.dtype ? p->q.dtype : FXA_F32;
    return (fxa_dtype)(own ? own : !narrow ? q : q == FXA_F64 ? FXA_F64 : FXA_F32);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static void data_draw(attn_tensor *t, double reach, uint64_t *rng) {
    for (int64_t i = 0; i < attn_tensor_places(t); i++)
        attn_set(t, i, fxa__dtype_is_float(t->dtype) ? attn_real(rng, -reach, reach) : (double)attn_int(rng, 0, 2));
}

static void data_make_slots(attn_data *x, const attn_spec *s, uint64_t *rng) {
    const uint32_t inputs = 1u << FXA_SLOT_Q | 1u << FXA_SLOT_K | 1u << FXA_SLOT_V | 1u << FXA_SLOT_DO |
                            1u << FXA_SLOT_DLSE | 1u << FXA_SLOT_SINKS;
    for (int i = 0; i < ATTN_SLOTS; i++) {
        int64_t n[4];
        attn_slot_sizes(&x->problem, (fxa_slot)i, n);
        const int64_t *stride = s->strided >> i & 1 ? s->stride[i] : NULL;
        x->t[i] = attn_tensor_place(n, data_dtype(&x->problem, (fxa_slot)i), stride, x->around);
        x->t[i].name = fxa_slot_name((fxa_slot)i);
        if (inputs >> i & 1) data_draw(&x->t[i], x->reach, rng);
    }
    if (!s->page_size) return;
    int64_t n[4] = {1, 1, s->b, (s->sk + s->page_size - 1) / s->page_size};
    x->pages = attn_tensor_place(n, FXA_I32, NULL, x->around);
    for (int64_t i = 0; i < n[2] * n[3]; i++) attn_set(&x->pages, i, (double)attn_int(rng, 0, x->problem.n_pages - 1));
    x->ints[FXA_SLOT_PAGES] = (int32_t *)(void *)x->pages.origin;
}

/* Makes one captured tensor of a program, contiguous. */
static attn_tensor data_make_tensor(const attn_data *x, fxa_dtype dtype, const int64_t *size, int rank,
                                    fxa_capture *capture) {
    int64_t n[4] = {1, 1, 1, 1};
    memset(capture, 0, sizeof *capture);
    for (int i = 0; i < rank; i++) n[3] *= capture->size[i] = size[i];
    return attn_tensor_place(n, dtype, NULL, x->around);
}

static void data_make_tensors(attn_data *x, const attn_spec *s, uint64_t *rng) {
    for (size_t i = 0; i < x->n_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(x->program, i);
        bool real = fxa__dtype_is_float(info.dtype);
        x->dtensor[i] = data_make_tensor(x, real ? info.dtype : FXA_F32, s->tensor[i], info.rank, &x->captures[i]);
        x->tensor[i] = data_make_tensor(x, info.dtype, s->tensor[i], info.rank, &x->captures[i]);
        x->dtensor[i].name = "dtensor";
        x->captures[i].grad = real;
        data_draw(&x->tensor[i], 1, rng);
    }
    for (size_t i = 0; i < x->n_bprop_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(x->bprop, i);
        x->bprop_tensor[i] = data_make_tensor(x, info.dtype, s->bprop_tensor[i], info.rank, &x->bprop_captures[i]);
        data_draw(&x->bprop_tensor[i], 1, rng);
    }
}

static void data_free_programs(attn_data *x) {
    fxa_program_destroy(x->program);
    fxa_program_destroy(x->bprop);
    x->program = x->bprop = NULL;
    for (int i = 0; i < ATTN_TENSORS; i++) {
        attn_tensor_free(&x->tensor[i]);
        attn_tensor_free(&x->dtensor[i]);
        attn_tensor_free(&x->bprop_tensor[i]);
    }
    attn_tensor_free(&x->dparam);
}

fxa_status attn_data_program(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t *rng, fxa_error *err) {
    fxa_status status = FXA_OK;
    fxa_text part = {"bprop", s->bprop_text, SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &part, config.n_texts = 1;
    data_free_programs(x);
    if (s->text) status = fxa_program_parse(ctx, s->text, SIZE_MAX, &x->program, err);
    if (status == FXA_OK && s->bprop_text) status = fxa_program_parse_texts(ctx, &config, &x->bprop, err);
    if (status != FXA_OK) return status;
    x->n_params = x->program ? fxa_program_param_count(x->program) : 0;
    x->n_tensors = x->program ? fxa_program_tensor_count(x->program) : 0;
    x->n_bprop_params = x->bprop ? fxa_program_param_count(x->bprop) : 0;
    x->n_bprop_tensors = x->bprop ? fxa_program_tensor_count(x->bprop) : 0;
    if (x->n_params > ATTN_PARAMS || x->n_tensors > ATTN_TENSORS) abort();
    if (x->n_bprop_params > ATTN_PARAMS || x->n_bprop_tensors > ATTN_TENSORS) abort();
    data_make_tensors(x, s, rng);
    const int64_t n[4] = {1, 1, 1, (int64_t)x->n_params};
    x->dparam = attn_tensor_place(n, FXA_F64, NULL, x->around);
    x->dparam.name = "dparam";
    x->problem.param_grads = (UINT64_C(1) << x->n_params) - 1;
    return FXA_OK;
}

fxa_status attn_data_make(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t seed, fxa_error *err) {
    memset(x, 0, sizeof *x);
    x->problem = attn_spec_problem(s);
    x->problem.flags |= FXA_RETURN_LSE;
    x->backward_flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_READ_DLSE;
    if (s->flags & FXA_SINKS) x->backward_flags |= FXA_GRAD_SINKS;
    x->around = s->around;
    x->reach = s->reach > 0 ? s->reach : 1;
    x->scale = NAN, x->seed = 7;
    for (int i = 0; i < ATTN_PARAMS; i++) x->params[i] = x->bprop_params[i] = 1.25;
    data_make_slots(x, s, &seed);
    fxa_status status = attn_data_program(x, ctx, s, &seed, err);
    if (status != FXA_OK) attn_data_free(x);
    return status;
}

fxa_context *attn_context(uint32_t threads) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    config.threads = threads;
    return fxa_context_create(&config, &ctx, NULL) == FXA_OK ? ctx : NULL;
}

void attn_data_free(attn_data *x) {
    data_free_programs(x);
    for (int i = 0; i < ATTN_SLOTS; i++) attn_tensor_free(&x->t[i]);
    attn_tensor_free(&x->pages);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Table of outputs: slot, and the pass and flag that produce it. */
static const struct {
    fxa_slot slot;
    fxa_pass pass;
    uint32_t flag; /* 0 = always */
} data_outputs[] = {
    {FXA_SLOT_O, FXA_FORWARD, 0},
    {FXA_SLOT_LSE, FXA_FORWARD, FXA_RETURN_LSE},
    {FXA_SLOT_ROW_MAX, FXA_FORWARD, FXA_RETURN_ROW_MAX},
    {FXA_SLOT_DQ, FXA_BACKWARD, FXA_GRAD_Q},
    {FXA_SLOT_DK, FXA_BACKWARD, FXA_GRAD_K},
    {FXA_SLOT_DV, FXA_BACKWARD, FXA_GRAD_V},
    {FXA_SLOT_DSINKS, FXA_BACKWARD, FXA_GRAD_SINKS},
};
enum { DATA_OUTPUTS = sizeof data_outputs / sizeof data_outputs[0] };

static bool data_is_asked(const attn_data *x, fxa_pass pass, int output) {
    uint32_t flags = pass == FXA_FORWARD ? x->problem.flags : x->backward_flags, flag = data_outputs[output].flag;
    return data_outputs[output].pass == pass && (!flag || (flags & flag));
}

void attn_call_make(const attn_data *x, fxa_pass pass, attn_call *call) {
    const uint32_t forward_only = FXA_RETURN_LSE | FXA_RETURN_ROW_MAX | FXA_ACCUMULATE_O;
    fxa_problem *p = &call->p;
    fxa_args *args = &call->args;
    bool backward = pass == FXA_BACKWARD;
    *p = x->problem, *args = (fxa_args)FXA_ARGS_INIT;
    p->pass = (uint32_t)pass, p->program = x->program;
    p->captures = call->captures, p->n_captures = args->n_tensors = x->n_tensors;
    for (int i = 0; i < ATTN_SLOTS; i++) args->slot[i] = x->t[i].origin;
    for (int i = ATTN_SLOTS; i < FXA_SLOT_COUNT; i++) args->slot[i] = x->ints[i];
    for (int i = 0; i < DATA_OUTPUTS; i++) { /* slots that the problem does not use must be NULL */
        bool read = backward && data_outputs[i].slot <= FXA_SLOT_LSE;
        if (!read && !data_is_asked(x, pass, i)) args->slot[data_outputs[i].slot] = NULL;
    }
    if (!(x->problem.flags & FXA_SINKS)) args->slot[FXA_SLOT_SINKS] = NULL;
    if (!(x->backward_flags & FXA_READ_DLSE)) args->slot[FXA_SLOT_DLSE] = NULL;
    args->scale = x->scale, args->seed = x->seed;
    args->params = x->params, args->n_params = x->n_params, args->tensors = call->tensors;
    for (size_t i = 0; i < x->n_tensors; i++) {
        call->captures[i] = x->captures[i];
        if (!backward) call->captures[i].grad = 0;
        call->tensors[i] = x->tensor[i].origin;
        call->dtensors[i] = call->captures[i].grad ? x->dtensor[i].origin : NULL;
    }
    if (!backward) p->param_grads = 0;
    if (!backward) return;
    p->flags = (p->flags & ~forward_only) | x->backward_flags;
    args->dtensors = call->dtensors, args->n_dtensors = x->n_tensors;
    args->dparams = attn_f64(&x->dparam), args->n_dparams = x->n_params;
    if (!x->bprop) return;
    p->bprop = x->bprop, p->bprop_captures = x->bprop_captures, p->n_bprop_captures = x->n_bprop_tensors;
    args->bprop_params = x->bprop_params, args->n_bprop_params = x->n_bprop_params;
    args->bprop_tensors = call->bprop_tensors, args->n_bprop_tensors = x->n_bprop_tensors;
    for (size_t i = 0; i < x->n_bprop_tensors; i++) call->bprop_tensors[i] = x->bprop_tensor[i].origin;
}

fxa_status attn_call_run(fxa_context *ctx, const attn_call *call, bool workspace_at_end, fxa_error *err) {
    fxa_plan *plan = NULL;
    fxa_args args = call->args;
    guard workspace = {.data = NULL};
    fxa_status status = fxa_plan_create(ctx, &call->p, &plan, err);
    if (status == FXA_OK) {
        workspace = guard_make(fxa_plan_workspace(plan), FXA_WORKSPACE_ALIGN, workspace_at_end);
        args.workspace = workspace.data, args.workspace_size = workspace.size;
        status = fxa_plan_run(plan, &args, err);
    }
    guard_close(&workspace);
    fxa_plan_destroy(plan);
    return status;
}

uint32_t attn_device(const char *engine) {
    const fxa__engine *table = engine ? fxa__engine_find(engine) : NULL;
    return table ? table->device : FXA_HOST;
}

fxa_status attn_data_run(attn_data *x, fxa_context *ctx, const char *engine, fxa_pass pass, fxa_error *err) {
    attn_call call;
    attn_call_make(x, pass, &call);
    call.p.engine = engine, call.p.device = attn_device(engine);
    if (x->around == ATTN_BYTES || call.p.device != FXA_HOST) return fxa_attention(ctx, &call.p, &call.args, err);
    return attn_call_run(ctx, &call, x->around == ATTN_PAGE_BEHIND, err);
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

attn_tensor *attn_output(attn_data *x, fxa_pass pass, int i) {
    for (int j = 0; j < DATA_OUTPUTS; j++)
        if (data_is_asked(x, pass, j) && i-- == 0) return &x->t[data_outputs[j].slot];
    for (size_t j = 0; pass == FXA_BACKWARD && j < x->n_tensors; j++)
        if (x->captures[j].grad && i-- == 0) return &x->dtensor[j];
    return pass == FXA_BACKWARD && x->problem.param_grads && i == 0 ? &x->dparam : NULL;
}

void attn_keep(attn_data *x, fxa_pass pass, attn_kept *kept) {
    attn_tensor *t;
    for (int i = 0; (t = attn_output(x, pass, i)); i++) {
        if (!kept->memory[i]) kept->memory[i] = malloc(t->bytes + 1);
        if (!kept->memory[i]) abort();
        memcpy(kept->memory[i], t->memory, t->bytes);
        memset(t->memory, GUARD_FILL, t->bytes);
    }
}

void attn_drop(attn_kept *kept) {
    for (int i = 0; i < ATTN_OUTPUTS; i++) free(kept->memory[i]);
    memset(kept, 0, sizeof *kept);
}

const char *attn_other_bits(attn_data *x, fxa_pass pass, attn_kept *kept) {
    attn_tensor *t;
    const char *name = NULL;
    if (!kept->memory[0]) {
        attn_keep(x, pass, kept);
        return NULL;
    }
    for (int i = 0; (t = attn_output(x, pass, i)); i++) {
        if (memcmp(kept->memory[i], t->memory, t->bytes) != 0 && !name) name = t->name;
        memset(t->memory, GUARD_FILL, t->bytes);
    }
    return name;
}

attn_off attn_tensor_off(const attn_tensor *got, const unsigned char *want) {
    attn_off off = {0};
    double difference = 0, size = 0;
    int64_t begin = (got->origin - got->memory) / (int64_t)fxa_dtype_size(got->dtype);
    for (int64_t i = 0; i < attn_tensor_places(got); i++) {
        double a = attn_get(got, i), b = fxa__load_f64(want, got->dtype, begin + i);
        if (isfinite(a) && isfinite(b)) {
            difference += (a - b) * (a - b), size += b * b;
            off.worst = fmax(off.worst, fabs(a - b));
            off.size = fmax(off.size, fabs(b));
        } else {
            off.odd += !(a == b || (a != a && b != b));
        }
    }
    off.rms = difference > 0 ? sqrt(difference / size) : 0;
    return off;
}
