/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance cases: draws params and captured tensors, and calls the library (conf_case.h).
 */
#include "conf_case.h"

#include "base/dtype.h"
#include "program/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *conf_alloc(size_t n, size_t element) {
    void *memory = calloc(n + 1, element);
    if (!memory) abort();
    return memory;
}

int64_t conf_places(const conf_buffer *t) { return (int64_t)(t->bytes / fxa_dtype_size(t->dtype)); }

int64_t conf_place(const conf_buffer *t, const int64_t *at) {
    int64_t place = (t->origin - t->memory) / (int64_t)fxa_dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) place += at[i] * t->stride[i];
    return place;
}

bool conf_next(const conf_buffer *t, int64_t *at) {
    for (int i = t->rank - 1; i >= 0; i--) {
        if (++at[i] < t->n[i]) return true;
        at[i] = 0;
    }
    return false;
}

static bool conf_is_empty(const conf_buffer *t) {
    for (int i = 0; i < t->rank; i++)
        if (t->n[i] == 0) return true;
    return false;
}

/* ---- Captured tensors and params --------------------------------------------------------------------------------- */

/* Makes a buffer. Its axes are in random order with gaps, some reversed, and inputs have some strides of 0; with
 * `plain` it is contiguous in row-major order. */
static void conf_make_buffer(conf_buffer *t, bool plain, bool input, uint64_t *rng) {
    int order[FXA_MAX_RANK] = {0};
    int64_t step = 1, first = 0, band = 16, size = (int64_t)fxa_dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) order[i] = t->rank - 1 - i;
    for (int i = t->rank - 1; i > 0 && !plain; i--) {
        int j = (int)attn_int(rng, 0, i), keep = order[i];
        order[i] = order[j], order[j] = keep;
    }
    for (int i = 0; i < t->rank; i++) {
        int64_t *stride = &t->stride[order[i]], n = t->n[order[i]];
        *stride = step;
        step = step * (n ? n : 1) + (plain ? 0 : attn_int(rng, 0, 1));
        if (plain) continue;
        if (attn_int(rng, 0, 3) == 0) first += (n ? n - 1 : 0) * *stride, *stride = -*stride;
        if (input && attn_int(rng, 0, 9) == 0) *stride = 0;
    }
    t->bytes = (size_t)((step + 2 * band) * size);
    t->memory = conf_alloc(t->bytes, 1);
    t->owned = true;
    memset(t->memory, 0xff, t->bytes);
    t->origin = t->memory + (band + first) * size;
}

static void conf_store(conf_buffer *t, int64_t place, double x) {
    int64_t at = place;
    switch (t->dtype) {
    case FXA_I64: ((int64_t *)(void *)t->memory)[at] = (int64_t)x; break; /* below 2^53 */
    case FXA_I32: ((int32_t *)(void *)t->memory)[at] = (int32_t)x; break;
    case FXA_I16: ((int16_t *)(void *)t->memory)[at] = (int16_t)x; break;
    case FXA_I8: ((int8_t *)(void *)t->memory)[at] = (int8_t)x; break;
    case FXA_U8:
    case FXA_B8: t->memory[at] = (uint8_t)x; break;
    default: fxa__store_f64(t->memory, t->dtype, at, x);
    }
}

/* Fills a captured tensor. Ints are small or nondecreasing (documents, lengths), i64 also beyond 32 bits; bools are
 * mostly true or mostly false; floats are in -1..1. */
static void conf_fill_capture(conf_buffer *t, uint64_t *rng) {
    int64_t at[FXA_MAX_RANK] = {0}, step = attn_int(rng, 0, 2), wide = attn_int(rng, 1, 12);
    double far =
        t->dtype == FXA_I64 && attn_int(rng, 0, 1) ? (double)attn_int(rng, INT32_MAX - 2, INT64_C(1) << 40) : 0;
    if (conf_is_empty(t)) return;
    int64_t n = 0;
    do {
        double x = attn_real(rng, -1, 1);
        if (t->dtype == FXA_B8)
            x = attn_int(rng, 0, 9) < (wide <= 4 ? wide : 7);
        else if (!fxa__dtype_is_float(t->dtype))
            x = step && t->rank == 1 ? (double)(n / (8 * step)) : (double)attn_int(rng, 0, wide);
        if (far != 0 && attn_int(rng, 0, 9)) x += far;
        conf_store(t, conf_place(t, at), x);
        n++;
    } while (conf_next(t, at));
}

/* Writes sizes and strides of a buffer to a problem's fxa_capture. */
static void conf_describe_capture(const conf_buffer *t, bool plain, fxa_capture *capture) {
    memcpy(capture->size, t->n, sizeof t->n);
    memset(capture->stride, 0, sizeof capture->stride);
    if (!plain) memcpy(capture->stride, t->stride, sizeof t->stride);
    capture->strided = !plain;
}

static void conf_draw_tensor(conf_case *c, size_t i, bool plain, bool dtypes, uint64_t *rng) {
    fxa_tensor_info info = fxa_program_tensor(c->program, i);
    conf_buffer *t = &c->tensor[i], *dt = &c->dtensor[i];
    fxa_capture *capture = &c->captures[i];
    int64_t longest = c->base.x.sk > c->base.x.sq ? c->base.x.sk : c->base.x.sq;
    static const int64_t most[] = {0, 320, 48, 12, 6, 4};
    uint64_t *kind = attn_case_kind(&c->base, rng);
    t->name = "tensor", t->dtype = info.dtype, t->rank = info.rank;
    for (int j = 0; j < t->rank; j++) {
        int64_t fits = longest + 4 < most[t->rank] ? longest + 4 : most[t->rank];
        t->n[j] = attn_int(kind, 0, 3) ? fits : attn_int(rng, 1, most[t->rank]);
    }
    *dt = *t;
    dt->name = "dtensor", dt->dtype = dtypes ? attn_draw_dtype(true, kind) : info.dtype;
    if (!fxa__dtype_is_float(dt->dtype)) dt->dtype = FXA_F32; /* never used, but must be a float */
    bool plain_t = plain || attn_int(kind, 0, 1), plain_dt = plain || attn_int(kind, 0, 1);
    conf_make_buffer(t, plain_t, true, rng);
    conf_make_buffer(dt, plain_dt, false, rng);
    conf_fill_capture(t, rng);
    conf_describe_capture(t, plain_t, capture);
    if (!plain_dt) memcpy(capture->grad_stride, dt->stride, sizeof dt->stride);
    capture->grad_strided = !plain_dt;
    capture->grad = fxa__dtype_is_float(info.dtype);
    capture->grad_dtype = (uint32_t)dt->dtype;
}

void conf_resize(conf_case *c, size_t i, const int64_t *n, uint64_t *rng) {
    conf_buffer *both[2] = {&c->tensor[i], &c->dtensor[i]};
    for (int j = 0; j < 2; j++) {
        free(both[j]->memory);
        memcpy(both[j]->n, n, (size_t)both[j]->rank * sizeof *n);
        conf_make_buffer(both[j], true, j == 0, rng);
    }
    conf_fill_capture(&c->tensor[i], rng);
    conf_describe_capture(&c->tensor[i], true, &c->captures[i]);
    memset(c->captures[i].grad_stride, 0, sizeof c->captures[i].grad_stride);
    c->captures[i].grad_strided = 0;
}

/* Draws params and captured tensors of the user-written backward program, with sizes as large as the coordinates. */
static void conf_draw_own(conf_case *c, uint64_t *rng) {
    int64_t longest = c->base.x.sk > c->base.x.sq ? c->base.x.sk : c->base.x.sq;
    c->n_own_params = c->bprop ? fxa_program_param_count(c->bprop) : 0;
    c->n_own_tensors = c->bprop ? fxa_program_tensor_count(c->bprop) : 0;
    if (c->n_own_params > CONF_PARAMS || c->n_own_tensors > CONF_TENSORS) abort();
    for (size_t i = 0; i < c->n_own_params; i++) c->own_params[i] = attn_real(rng, 0.5, 2);
    for (size_t i = 0; i < c->n_own_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(c->bprop, i);
        conf_buffer *t = &c->own_tensor[i];
        t->name = "tensor of bprop", t->dtype = info.dtype, t->rank = info.rank;
        for (int j = 0; j < t->rank; j++) t->n[j] = longest + 4;
        conf_make_buffer(t, true, true, rng);
        conf_fill_capture(t, rng);
        conf_describe_capture(t, true, &c->own_captures[i]);
    }
}

static void conf_draw_params(conf_case *c, bool some, uint64_t *rng) {
    uint64_t *kind = attn_case_kind(&c->base, rng);
    c->base.data.problem.param_grads = 0;
    for (size_t i = 0; i < c->n_params; i++) {
        bool whole = fxa_program_param(c->program, i).type == FXA_INT;
        c->params[i] = whole ? (double)attn_int(rng, 0, attn_int(rng, 0, 1) ? 8 : 60) : attn_real(rng, 0.5, 2);
        if (!whole && !(some && attn_int(kind, 0, 1))) c->base.data.problem.param_grads |= UINT64_C(1) << i;
    }
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static const char *const conf_slot_names[CONF_SLOTS] = {"Q",    "K",  "V",  "O",  "LSE",  "MAX",  "dO",
                                                        "dLSE", "dQ", "dK", "dV", "sink", "dsink"};

static void conf_take_slots(conf_case *c) {
    for (int i = 0; i < CONF_SLOTS; i++) {
        const attn_tensor *from = &c->base.data.t[i];
        conf_buffer *t = &c->slot[i];
        t->name = conf_slot_names[i], t->dtype = from->dtype, t->rank = 4;
        memcpy(t->n, from->n, sizeof from->n);
        memcpy(t->stride, from->stride, sizeof from->stride);
        t->memory = from->memory, t->origin = from->origin, t->bytes = from->bytes;
    }
}

bool conf_draw(conf_case *c, fxa_context *ctx, uint32_t features, const attn_shape *shape, fxa_program *program,
               const char *name, fxa_program *bprop, conf_tally *tally, uint64_t *rng) {
    memset(c, 0, sizeof *c);
    c->program = program, c->name = name, c->bprop = bprop, c->tally = tally;
    features &= ~(uint32_t)(ATTN_PROGRAM | ATTN_SMOOTH);
    if (!attn_case_draw_shape(&c->base, ctx, NULL, features, shape, rng)) return false;
    if (attn_int(rng, 0, 3)) c->base.x.scale /= sqrt((double)c->base.x.d);
    conf_take_slots(c);
    c->n_params = fxa_program_param_count(program), c->n_tensors = fxa_program_tensor_count(program);
    if (c->n_params > CONF_PARAMS || c->n_tensors > CONF_TENSORS) abort();
    conf_draw_params(c, features & ATTN_SOME_GRADS, rng);
    uint64_t *kind = attn_case_kind(&c->base, rng);
    bool any = false;
    for (size_t i = 0; i < c->n_tensors; i++) {
        conf_draw_tensor(c, i, !(features & ATTN_STRIDES), features & ATTN_DTYPES, rng);
        if ((features & ATTN_SOME_GRADS) && attn_int(kind, 0, 1)) c->captures[i].grad = 0;
        any = any || c->captures[i].grad;
    }
    conf_draw_own(c, rng);
    uint32_t *flags = &c->base.data.backward_flags;
    *flags &= ~(uint32_t)(FXA_ACCUMULATE_DPARAMS | FXA_ACCUMULATE_DTENSORS);
    if ((features & ATTN_ACC) && c->base.data.problem.param_grads && attn_int(kind, 0, 1))
        *flags |= FXA_ACCUMULATE_DPARAMS;
    if ((features & ATTN_ACC) && any && attn_int(kind, 0, 1)) *flags |= FXA_ACCUMULATE_DTENSORS;
    return true;
}

static void conf_buffer_free(conf_buffer *t) {
    if (t->owned) free(t->memory);
    free(t->before), free(t->want_memory), free(t->want_before);
    free(t->error), free(t->size), free(t->noise), free(t->spared);
}

void conf_free(conf_case *c) {
    for (int i = 0; i < CONF_SLOTS; i++) conf_buffer_free(&c->slot[i]);
    for (int i = 0; i < CONF_TENSORS; i++)
        conf_buffer_free(&c->tensor[i]), conf_buffer_free(&c->dtensor[i]), conf_buffer_free(&c->own_tensor[i]);
    fxa_program_destroy(c->program);
    fxa_program_destroy(c->bprop);
    attn_case_free(&c->base);
}

void conf_describe(const conf_case *c, char *out, size_t capacity) {
    const oracle *x = &c->base.x;
    snprintf(out, capacity,
             "%s b=%lld hq=%lld hkv=%lld sq=%lld sk=%lld d=%lld dv=%lld %s features 0x%x flags 0x%x|0x%x", c->name,
             (long long)x->b, (long long)x->hq, (long long)x->hkv, (long long)x->sq, (long long)x->sk, (long long)x->d,
             (long long)x->dv, fxa_dtype_name(c->slot[FXA_SLOT_Q].dtype), c->base.features, c->base.data.problem.flags,
             c->base.data.backward_flags);
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

conf_buffer *conf_output(conf_case *c, fxa_pass pass, int i) {
    static const struct {
        fxa_slot slot;
        uint32_t flag;
    } grads[] = {{FXA_SLOT_DQ, FXA_GRAD_Q},
                 {FXA_SLOT_DK, FXA_GRAD_K},
                 {FXA_SLOT_DV, FXA_GRAD_V},
                 {FXA_SLOT_DSINKS, FXA_GRAD_SINKS}};
    static const fxa_slot forward[] = {FXA_SLOT_O, FXA_SLOT_LSE, FXA_SLOT_ROW_MAX};
    int outputs =
        /* forward has a row maximum as third output unless a test excludes it */
        c->base.data.problem.flags & FXA_RETURN_ROW_MAX ? 3 : 2;
    if (pass == FXA_FORWARD) return i < outputs ? &c->slot[forward[i]] : NULL;
    for (int j = 0; j < 4; j++)
        if ((c->base.data.backward_flags & grads[j].flag) && i-- == 0) return &c->slot[grads[j].slot];
    for (size_t j = 0; j < c->n_tensors; j++)
        if (c->captures[j].grad && i-- == 0) return &c->dtensor[j];
    return NULL;
}

void conf_clear_bounds(conf_case *c, fxa_pass pass) {
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++)
        for (int64_t j = 0; j < conf_places(t); j++) t->error[j] = t->size[j] = t->noise[j] = 0, t->spared[j] = NAN;
}

void conf_fill_outputs(conf_case *c, fxa_pass pass) {
    uint64_t rng = c->base.x.seed + 7 + (uint64_t)pass;
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++) {
        int64_t at[FXA_MAX_RANK] = {0}, n = conf_places(t);
        bool row = t == &c->slot[FXA_SLOT_LSE] || t == &c->slot[FXA_SLOT_ROW_MAX];
        memset(t->memory, 0xff, t->bytes);
        do { /* an empty tensor has no element */
            if (!conf_is_empty(t)) conf_store(t, conf_place(t, at), attn_real(&rng, -2, 2));
        } while (conf_next(t, at));
        t->want_dtype = row ? t->dtype : FXA_F64;
        if (!t->before) {
            t->before = conf_alloc(t->bytes, 1);
            t->want_memory = conf_alloc((size_t)n, 8), t->want_before = conf_alloc((size_t)n, 8);
            t->error = conf_alloc((size_t)n, sizeof(double)), t->size = conf_alloc((size_t)n, sizeof(double));
            t->noise = conf_alloc((size_t)n, sizeof(double)), t->spared = conf_alloc((size_t)n, sizeof(double));
        }
        memcpy(t->before, t->memory, t->bytes);
        for (int64_t j = 0; j < n; j++)
            fxa__store_f64(t->want_before, t->want_dtype, j, fxa__load_f64(t->memory, t->dtype, j));
        memcpy(t->want_memory, t->want_before, (size_t)n * fxa_dtype_size(t->want_dtype));
    }
    conf_clear_bounds(c, pass);
    for (size_t i = 0; i < c->n_params; i++) c->old_dparams[i] = attn_real(&rng, -2, 2);
    memcpy(c->dparams, c->old_dparams, sizeof c->dparams);
    memcpy(c->want_dparams, c->old_dparams, sizeof c->dparams);
}

void conf_restore_outputs(conf_case *c, fxa_pass pass) {
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++) memcpy(t->memory, t->before, t->bytes);
    memcpy(c->dparams, c->old_dparams, sizeof c->dparams);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

void conf_call_make(conf_case *c, const char *engine, fxa_pass pass, bool reference, conf_call *x) {
    attn_call call;
    attn_case_call(&c->base, pass, &call);
    x->p = call.p, x->args = call.args; /* every pointer copied from `call` is replaced below */
    x->p.device = attn_device(engine);
    x->p.engine = engine, x->p.program = c->program, x->p.captures = x->captures, x->p.n_captures = c->n_tensors;
    x->p.bprop = pass == FXA_BACKWARD ? c->bprop : NULL;
    if (x->p.bprop) {
        for (size_t i = 0; i < c->n_own_tensors; i++) x->own_tensors[i] = c->own_tensor[i].origin;
        x->p.bprop_captures = c->own_captures, x->p.n_bprop_captures = c->n_own_tensors;
        x->args.bprop_params = c->own_params, x->args.n_bprop_params = c->n_own_params;
        x->args.bprop_tensors = x->own_tensors, x->args.n_bprop_tensors = c->n_own_tensors;
    }
    for (int i = 0; i < CONF_SLOTS; i++)
        if (x->args.slot[i]) x->args.slot[i] = c->slot[i].origin;
    if (!(x->p.flags & FXA_RETURN_ROW_MAX)) x->args.slot[FXA_SLOT_ROW_MAX] = NULL;
    if (x->p.flags & FXA_SCALARS_IN_MEMORY)
        x->args.slot[FXA_SLOT_SCALE] = &c->base.x.scale, x->args.slot[FXA_SLOT_PARAMS] = c->params;
    memcpy(x->captures, c->captures, sizeof x->captures);
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (pass == FXA_FORWARD) x->captures[i].grad = 0;
        x->tensors[i] = c->tensor[i].origin;
        x->dtensors[i] = x->captures[i].grad ? c->dtensor[i].origin : NULL;
    }
    fxa_operand *const wide[CONF_SLOTS] = {[FXA_SLOT_O] = &x->p.o,
                                           [FXA_SLOT_DQ] = &x->p.dq,
                                           [FXA_SLOT_DK] = &x->p.dk,
                                           [FXA_SLOT_DV] = &x->p.dv,
                                           [FXA_SLOT_DSINKS] = &x->p.dsinks};
    conf_buffer *t;
    for (int i = 0; reference && (t = conf_output(c, pass, i)); i++) {
        int64_t size = (int64_t)fxa_dtype_size(t->dtype), to = (int64_t)fxa_dtype_size(t->want_dtype);
        unsigned char *origin = t->want_memory + (t->origin - t->memory) / size * to;
        int64_t slot = t - c->slot, tensor = t - c->dtensor;
        if (slot >= 0 && slot < CONF_SLOTS) {
            x->args.slot[slot] = origin;
            if (wide[slot]) wide[slot]->dtype = FXA_F64;
        } else {
            x->dtensors[tensor] = origin;
            x->captures[tensor].grad_dtype = FXA_F64;
        }
    }
    x->args.params = c->params, x->args.n_params = c->n_params;
    x->args.tensors = x->tensors, x->args.n_tensors = c->n_tensors;
    if (pass == FXA_FORWARD) return;
    x->args.dtensors = x->dtensors, x->args.n_dtensors = c->n_tensors;
    x->args.dparams = reference ? c->want_dparams : c->dparams, x->args.n_dparams = c->n_params;
}

bool conf_reference(conf_case *c, fxa_pass pass) {
    conf_call x;
    fxa_error err;
    conf_call_make(c, "ref", pass, true, &x);
    if (fxa_attention(c->base.ctx, &x.p, &x.args, &err) == FXA_OK) return true;
    snprintf(c->why, sizeof c->why, "reference, %s: %.400s", pass ? "backward" : "forward", err.text);
    return false;
}

void conf_keep(conf_case *c) {
    static const fxa_slot slots[] = {FXA_SLOT_O, FXA_SLOT_LSE};
    for (int i = 0; i < 2; i++) {
        conf_buffer *t = &c->slot[slots[i]];
        int64_t n = conf_places(t);
        for (int64_t j = 0; j < n; j++)
            fxa__store_f64(t->memory, t->dtype, j, fxa__load_f64(t->want_memory, t->want_dtype, j));
    }
}

/* Runs a pass and checks that success or refusal agrees with the support query. Engines of lower preference are not
 * queried, because some engines compile in order to answer. */
bool conf_run(conf_case *c, const char *engine, fxa_pass pass) {
    conf_call x;
    fxa_error err;
    fxa_support reports[8];
    size_t at = 0, count;
    while (at < 7 && fxa_engine_name(at) && strcmp(fxa_engine_name(at), engine) != 0) at++;
    count = at + 1;
    conf_call_make(c, engine, pass, false, &x);
    if (fxa_support_query(c->base.ctx, &x.p, reports, &count, &err) != FXA_OK || count <= at) {
        snprintf(c->why, sizeof c->why, "query: %.400s", err.text);
        return false;
    }
    const fxa_support *said = strcmp(reports[at].engine, engine) == 0 ? &reports[at] : NULL;
    fxa_status status = fxa_attention(c->base.ctx, &x.p, &x.args, &err);
    c->refused = said && !said->supported;
    if (said && c->refused && status == FXA_E_UNSUPPORTED && said->reason[0] && strstr(err.text, said->reason)) {
        snprintf(c->why, sizeof c->why, "%s", said->reason);
        return true;
    }
    if (status == FXA_OK && said && said->supported) return true;
    snprintf(c->why, sizeof c->why, "%s: the query says %s, the run %s: %.300s", pass ? "backward" : "forward",
             !said             ? "nothing"
             : said->supported ? "yes"
                               : said->reason,
             fxa_status_name(status), err.text);
    return false;
}
