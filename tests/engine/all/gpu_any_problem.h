/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems and programs for the GPU engines: any strides, dtypes, sizes of captured tensors, coordinates and
 * backward programs. For test_cuda_run_any.c and test_gpu_random_texts.c.
 */
#ifndef FXA_TESTS_GPU_ANY_PROBLEM_H
#define FXA_TESTS_GPU_ANY_PROBLEM_H

#include "engine/cuda/cuda_run_fixture.h"

#include "base/dtype.h"
#include "support/fixtures/gen.h"

typedef struct any_case {
    fxa_problem p;
    fxa_program *program, *own;
    fxa_capture captures[FXA_CUDA_TENSORS], own_captures[FXA_CUDA_TENSORS];
    int32_t forced;
} any_case;

static fxa_program *any_program(t_rng *r, unsigned flags) {
    uint8_t tape[160];
    for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)t_next(r);
    return gen_program(ctx, tape, (size_t)t_int(r, 8, sizeof tape), flags);
}

static bool any_in(t_rng *r, int64_t n) { return t_int(r, 1, n) == 1; }

/* Draws strides of b, h, s, d in any order, with gaps; inputs may have strides of 0 or below. */
static void any_strides(t_rng *r, const int64_t size[4], bool result, fxa_operand *t) {
    static const uint8_t orders[][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}, {2, 3, 1, 0}, {3, 2, 0, 1}};
    const uint8_t *order = orders[t_int(r, 0, 3)];
    int64_t step = any_in(r, 3) ? t_int(r, 1, 3) : 1, unit = any_in(r, 2) ? 8 : 1;
    t->layout = FXA_LAYOUT_STRIDED;
    for (int i = 0; i < 4; i++) {
        t->stride[order[i]] = step;
        step *= size[order[i]] > 0 ? size[order[i]] : 1;
        if (any_in(r, 3)) step += t_int(r, 1, 9);
        step = (step + unit - 1) / unit * unit;
    }
    if (result || !any_in(r, 4)) return;
    int axis = (int)t_int(r, 0, 3);
    t->stride[axis] = any_in(r, 2) ? 0 : -t->stride[axis];
}

static void any_operands(t_rng *r, fxa_problem *p) {
    static const uint32_t types[] = {FXA_F32, FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2};
    fxa_operand *const all[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    bool backward = p->pass == FXA_BACKWARD, packed = p->flags & FXA_VARLEN, paged = p->flags & FXA_PAGED;
    p->q.dtype = any_in(r, 4) ? types[t_int(r, 0, 4)] : types[t_int(r, 1, 2)];
    for (int i = 1; i < 8; i++)
        if (any_in(r, 12)) all[i]->dtype = types[t_int(r, 0, 4)];
    if (any_in(r, 3)) p->lse.dtype = FXA_F64;
    for (int i = 0; i < 8; i++) {
        bool keys = i == 1 || i == 2 || i > 5, value = i == 2 || i == 3 || i == 4 || i == 7;
        int64_t size[4] = {keys && paged ? p->n_pages
                           : packed      ? 1
                                         : p->b,
                           keys ? p->hkv : p->hq, keys ? p->sk : p->sq, value ? p->d_v : p->d_qk};
        if (packed) size[2] = keys ? p->total_k : p->total_q;
        if (keys && paged) size[2] = p->page_size;
        if (any_in(r, 2)) all[i]->layout = (uint32_t)t_int(r, 0, 2);
        if (any_in(r, 5)) any_strides(r, size, i > 4 || (i == 3 && !backward), all[i]);
    }
    for (int i = 0; i < 2; i++) {
        fxa_operand *t = i ? &p->dsinks : &p->sinks;
        if (any_in(r, 2)) t->dtype = types[t_int(r, 0, 2)];
        if (any_in(r, 3)) t->layout = FXA_LAYOUT_STRIDED, t->stride[1] = t_int(r, 1, 3);
    }
}

static void any_map(t_rng *r, fxa_index_map *m) {
    m->kind = (uint32_t)t_int(r, 0, 2);
    m->has_offset = any_in(r, 2);
    if (m->kind == FXA_MAP_AFFINE) m->base = t_int(r, -9, 9), m->step = t_int(r, 0, 3);
    if (m->kind != FXA_MAP_SEGMENTS) return;
    m->n_segments = (uint32_t)t_int(r, 1, 3);
    for (uint32_t i = 0; i < m->n_segments; i++) m->segment[i] = (fxa_segment){i * 7, t_int(r, 0, 99), t_int(r, 0, 2)};
}

static void any_features(t_rng *r, fxa_problem *p) {
    static const uint32_t both[] = {FXA_PADDING, FXA_VARLEN,       FXA_PAGED,
                                    FXA_SINKS,   FXA_DROPOUT,      FXA_CAUSAL,
                                    FXA_WINDOW,  FXA_BOTTOM_RIGHT, FXA_SCALARS_IN_MEMORY};
    static const uint32_t back[] = {
        FXA_READ_DLSE,          FXA_GRAD_Q,       FXA_GRAD_K, FXA_GRAD_V, FXA_ACCUMULATE_DQ, FXA_ACCUMULATE_DTENSORS,
        FXA_ACCUMULATE_DPARAMS, FXA_DETERMINISTIC};
    p->flags = 0;
    for (int i = 0; i < 9; i++) p->flags |= any_in(r, 5) ? both[i] : 0;
    if (!(p->flags & (FXA_BOTTOM_RIGHT | FXA_SINKS)) && any_in(r, 5)) p->flags |= FXA_Q_START | FXA_SINK_ZERO;
    for (int i = 0; p->pass == FXA_BACKWARD && i < 8; i++) p->flags |= any_in(r, i > 0 && i < 4 ? 1 : 4) ? back[i] : 0;
    if (p->pass == FXA_BACKWARD && any_in(r, 3)) p->flags &= ~(back[t_int(r, 1, 3)] | FXA_ACCUMULATE_DQ);
    if (p->pass == FXA_BACKWARD && (p->flags & FXA_SINKS)) p->flags |= FXA_GRAD_SINKS;
    if (p->pass == FXA_FORWARD && any_in(r, 2)) p->flags |= FXA_RETURN_LSE | (any_in(r, 3) ? FXA_ACCUMULATE_O : 0);
    if (p->pass == FXA_FORWARD && any_in(r, 6)) p->flags |= FXA_RETURN_ROW_MAX;
    if (p->flags & FXA_WINDOW) p->window_left = t_int(r, -1, 99), p->window_right = t_int(r, -1, 99);
    if (p->flags & FXA_DROPOUT) p->dropout_p = 0.25;
    if (p->flags & FXA_PAGED) p->page_size = (uint32_t)(any_in(r, 2) ? 1 << t_int(r, 0, 8) : t_int(r, 1, 300));
    if (p->flags & FXA_PAGED) p->n_pages = t_int(r, 1, 40);
    if (p->flags & FXA_VARLEN) p->total_q = p->b * p->sq - (p->b ? t_int(r, 0, p->sq) : 0), p->total_k = p->b * p->sk;
}

static void any_sizes(t_rng *r, fxa_problem *p) {
    p->b = t_int(r, 1, 4), p->hkv = t_int(r, 1, 3), p->hq = p->hkv * t_int(r, 1, 5);
    p->sq = any_in(r, 3) ? t_int(r, 1, 9) : t_int(r, 1, 700);
    p->sk = any_in(r, 9) ? t_int(r, 1, 9000) : t_int(r, 1, 700);
    if (any_in(r, 15)) *(any_in(r, 2) ? &p->sk : any_in(r, 2) ? &p->sq : &p->b) = 0;
    p->d_qk = any_in(r, 2) ? 8 * t_int(r, 1, 32) : t_int(r, 1, 256);
    p->d_v = any_in(r, 2) ? p->d_qk : any_in(r, 2) ? 8 * t_int(r, 1, 32) : t_int(r, 1, 256);
    if (any_in(r, 5))
        p->global_q_len = t_int(r, 1, 99999), p->global_k_len = t_int(r, 1, 99999),
        p->global_heads = p->hq + t_int(r, 0, 9);
    p->alignment = any_in(r, 4) ? 0 : 16;
    fxa_index_map *const maps[] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    for (int i = 0; i < 4; i++)
        if (any_in(r, 12)) any_map(r, maps[i]);
}

static void any_captures(t_rng *r, const fxa_program *program, const fxa_problem *p, bool grads, fxa_capture *out) {
    const int64_t sides[] = {p->b, p->hq, p->sq, p->sk};
    for (int32_t i = 0; i < program->n_tensors; i++) {
        const fxa__decl *t = &program->tensors[i];
        int64_t step = 1;
        out[i].strided = any_in(r, 3);
        for (int d = t->rank - 1; d >= 0; d--) {
            out[i].size[d] = any_in(r, 9) ? t_int(r, 0, 3) : t->rank > 3 ? t_int(r, 1, 9) : sides[t_int(r, 0, 3)];
            if (any_in(r, 3) && t->rank < 3) out[i].size[d] = 1500;
            int64_t stride = any_in(r, 9) ? 0 : any_in(r, 9) ? -step : step;
            out[i].stride[d] = out[i].strided ? stride : 0;
            step *= out[i].size[d] > 0 ? out[i].size[d] : 1;
        }
        out[i].grad = grads && fxa__dtype_is_float(t->dtype) && any_in(r, 2);
        if (out[i].grad && any_in(r, 3)) out[i].grad_dtype = (uint32_t)t_int(r, FXA_F64, FXA_BF16);
    }
}

static void any_make(t_rng *r, any_case *c) {
    fxa_problem *p = &c->p;
    memset(c, 0, sizeof *c);
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = (uint32_t)t_int(r, 0, 1), p->device = FXA_CUDA;
    any_sizes(r, p);
    any_features(r, p);
    any_operands(r, p);
    c->program = any_program(r, any_in(r, 3) ? GEN_SMOOTH : any_in(r, 3) ? GEN_AFFINE_MASK : 0);
    if (any_in(r, 9)) {
        fxa_program_destroy(c->program);
        c->program = any_program(r, GEN_NO_TENSORS | GEN_SMOOTH | GEN_NO_PARAMS);
    }
    if (p->pass == FXA_BACKWARD && any_in(r, 6)) c->own = any_program(r, GEN_BPROP);
    p->program = c->program, p->bprop = c->own;
    any_captures(r, c->program, p, p->pass == FXA_BACKWARD, c->captures);
    p->captures = c->captures, p->n_captures = (size_t)c->program->n_tensors;
    if (c->own) any_captures(r, c->own, p, false, c->own_captures);
    p->bprop_captures = c->own_captures, p->n_bprop_captures = c->own ? (size_t)c->own->n_tensors : 0;
    for (int32_t i = 0; p->pass == FXA_BACKWARD && i < c->program->n_params; i++)
        if (c->program->params[i].type == FXA_FLOAT && any_in(r, 2)) p->param_grads |= UINT64_C(1) << i;
    c->forced = (int32_t)t_int(r, -1, 2);
}

/* Sets pointers for slots of int tables and scalars. */
static void any_slots(bed *x) {
    for (int i = FXA_SLOT_Q_LENGTHS; i < FXA_SLOT_COUNT; i++)
        x->bound.slot[i] = fxa__slot_length(&x->p->in, (fxa_slot)i) > 0 ? bed_place(100 + i) : NULL;
    if (x->p->in.flags & FXA_READ_DLSE) x->bound.slot[FXA_SLOT_DLSE] = bed_place(FXA_SLOT_DLSE);
}

/* Returns true if the problem is valid; invalid problems never reach the engine. */
static bool any_is_problem(const fxa_problem *p) {
    fxa__problem *made = NULL;
    fxa_error err;
    if (fxa__problem_create(fxa__context_host(ctx), p, &made, &err) != FXA_OK) return false;
    fxa__problem_release(made);
    return true;
}

#endif
