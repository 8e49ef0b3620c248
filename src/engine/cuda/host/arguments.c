/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of a run's kernels (struct FxaArgs), computed from the problem and its bound arguments, without
 * reading device memory or calling the driver.
 */
#include "call.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../base/philox.h"
#include "../../../lower/emit.h"
#include "../../../problem/geometry.h"

#include <math.h>
#include <string.h>

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Returns the view of an operand's copy in the workspace. size: b, h, s, d of the operand; b is 1 if sequences are
 * packed. */
static struct FxaView args_spare(const int64_t size[4], void *data) {
    int64_t pitch = fxa__round_up(size[3], 8);
    return (struct FxaView){data, size[0] > 1 ? size[1] * size[2] * pitch : 0, size[2] * pitch, pitch};
}

fxa__cuda_operand fxa__cuda_operand_given(const fxa__cuda_call *c, fxa_slot slot) {
    const fxa_problem *p = &c->p->in;
    fxa__cuda_operand t;
    int64_t d;
    const fxa_operand *o = fxa__row_operand(p, slot, &d);
    fxa__cuda_operand_sizes(p, slot, t.size);
    t.view = (struct FxaView){c->bound->slot[slot], o->stride[0], o->stride[1], o->stride[2]};
    return t;
}

/* Returns the operand that kernels use for a slot: the caller's, or its copy in the workspace. */
static fxa__cuda_operand args_operand(const fxa__cuda_call *c, fxa_slot slot) {
    fxa__cuda_operand t = fxa__cuda_operand_given(c, slot);
    int spare = fxa__cuda_copy_of_slot(slot);
    if (spare >= 0 && c->at.copy[spare]) t.view = args_spare(t.size, c->at.copy[spare]);
    return t;
}

/* ---- Arguments of the score program ------------------------------------------------------------------------------ */

/* Returns true if the scale is <= 0 although kernels require that the unit, the factor of the score that contains the
 * scale, is > 0. Kernels then negate products of Q and K (scale < 0) or set these products to 0 (scale 0). */
static bool args_is_turned(const fxa__cuda_call *c) { return c->code->choice.finite_factors && c->bound->scale <= 0; }

double fxa__cuda_unit_scale(const fxa__cuda_call *c) {
    if (!args_is_turned(c)) return c->bound->scale;
    return c->bound->scale == 0 ? 1 : -c->bound->scale;
}

/* Returns the value of param i of the rewritten program: a constant, a param of the caller, or the scale. */
static double args_param(const fxa__cuda_call *c, int32_t i) {
    const fxa__cuda_param *param = &c->code->program.params[i];
    if (param->source == FXA__CUDA_SCALE) return fxa__cuda_unit_scale(c);
    if (param->source == FXA__CUDA_CONSTANT) return c->bound->constants ? c->bound->constants[i] : param->value;
    return param->source >= 0 ? c->bound->params[param->source]
                              : c->bound->bprop_params[FXA__CUDA_BPROP - param->source];
}

static void args_scalars(fxa__cuda_call *c) {
    const fxa_program *program = c->code->program.program;
    bool memory = c->p->in.flags & FXA_SCALARS_IN_MEMORY;
    if (memory)
        c->a.scalars = (struct FxaScalars){c->bound->slot[FXA_SLOT_SCALE], c->bound->slot[FXA_SLOT_PARAMS],
                                           c->bound->slot[FXA_SLOT_SEED]};
    double params[FXA_MAX_PARAMS];
    for (int32_t i = 0; i < program->n_params; i++) {
        /* true = kernels read the param from device memory */
        bool read = memory && fxa__cuda_in_memory(&c->code->program.params[i]);
        params[i] = read ? 0 : args_param(c, i);
    }
    fxa__cuda_host_values(&c->code->program, params, c->a.f, c->a.i);
}

static fxa_view args_slot_view(const fxa__cuda_call *c, int32_t slot) {
    const fxa_problem *p = &c->p->in;
    const int64_t n[] = {p->b, p->hq, p->sq, p->sk};
    fxa_view v = {.data = c->bound->slot[slot], .dtype = FXA_I32, .rank = 1, .size = {1}, .stride = {1}};
    if (slot >= FXA_SLOT_MAP_B && slot <= FXA_SLOT_MAP_K) v.size[0] = n[slot - FXA_SLOT_MAP_B];
    if (slot == FXA_SLOT_Q_START) v.size[0] = p->b;
    return v;
}

static void args_captures(fxa__cuda_call *c) {
    const fxa_program *program = c->code->program.program;
    for (int32_t i = 0; i < program->n_tensors; i++) {
        fxa__cuda_origin from = c->code->program.source[i];
        FXA__ASSERT(from.index >= 0 && i < FXA_CUDA_TENSORS);
        c->tensors[i] = from.kind == FXA__CUDA_FROM_CALLER  ? c->bound->tensors[from.index]
                        : from.kind == FXA__CUDA_FROM_BPROP ? c->bound->bprop_tensors[from.index]
                                                            : args_slot_view(c, from.index);
        const fxa_view *v = &c->tensors[i];
        struct FxaCapture *t = &c->a.tensor[i];
        FXA__ASSERT(!v->data || v->rank == program->tensors[i].rank);
        t->data = v->data;
        t->rank = v->rank;
        for (int d = 0; d < v->rank; d++) {
            t->stride[d] = v->stride[d];
            t->size[d] = (int)fxa__min_i64(v->size[d], INT32_MAX);
        }
    }
}

/* Sets the view of the dense tensor (captured, an element per pair (q, k)). Axes of the tensor: b, h, both or neither,
 * then q and k. */
static void args_dense(fxa__cuda_call *c) {
    const fxa__cuda_program *g = &c->code->program;
    if (g->operands.dense < 0) return;
    const fxa__node *load = &g->program->nodes[g->operands.dense];
    const fxa_view *v = &c->tensors[load->imm];
    FXA__ASSERT(load->op == FXA_OP_LOAD && load->n_args >= 2 && (!v->data || v->stride[load->n_args - 1] == 1));
    c->a.dense.data = (void *)(uintptr_t)v->data;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&g->program->nodes[load->arg[d]]);
        if (input == 1u << FXA_INPUT_B) c->a.dense.b = v->stride[d];
        if (input == 1u << FXA_INPUT_H) c->a.dense.h = v->stride[d];
        if (input == 1u << FXA_INPUT_Q) c->a.dense.s = v->stride[d];
    }
}

static void args_words(const fxa__cuda_packed_operand *w, struct FxaOperand *to) {
    to->data = w->data;
    to->ranges = w->ranges;
    to->b = w->batch > 1 ? w->heads * w->pitch : 0;
    to->h = w->heads > 1 ? w->pitch : 0;
    FXA__ASSERT(w->pitch % FXA_RANGE_ROWS == 0);
    to->ranges_b = to->b / FXA_RANGE_ROWS;
    to->ranges_h = to->h / FXA_RANGE_ROWS;
}

static void args_program(fxa__cuda_call *c) {
    const fxa__cuda_diagonal_rows *r = &c->at.diagonal;
    args_scalars(c);
    args_captures(c);
    args_dense(c);
    if (c->code->program.switches.pack_operands) {
        args_words(&c->at.operand[0], &c->a.q_vector);
        args_words(&c->at.operand[1], &c->a.k_vector);
    }
    for (int i = 0; i < FXA_CUDA_RANGES; i++) c->a.ranges[i] = c->at.ranges[i];
    if (!r->pitch) return;
    c->a.diagonal =
        (struct FxaDiagonal){r->data, r->batch > 1 ? r->heads * r->pitch : 0, r->heads > 1 ? r->pitch : 0, r->zero};
}

/* ---- All arguments ----------------------------------------------------------------------------------------------- */

static void args_sizes(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    struct FxaArgs *a = &c->a;
    bool packed = p->flags & FXA_VARLEN;
    a->batch = (int)p->b;
    a->heads = (int)p->hq;
    a->kv_heads = (int)p->hkv;
    a->group = (int)(p->hq / p->hkv);
    a->d = (int)p->d_qk;
    a->dv = (int)p->d_v;
    a->q_len = (int)p->sq;
    a->k_len = (int)p->sk;
    a->q_pad = c->at.q_pad;
    a->pad_rows = c->at.pad_rows;
    if (packed) a->q_total = (int)p->total_q;
    if (packed) a->k_total = (int)p->total_k;
    a->scale = (float)c->bound->scale;
    a->scale_log2 = (float)(fxa__cuda_unit_scale(c) * FXA__CUDA_LOG2E);
    a->turned = !args_is_turned(c) ? 0 : c->bound->scale == 0 ? 2 : 1;
    a->splits = c->at.splits;
    a->run = c->at.item_splits;
    for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) a->cut[i] = c->at.cut[i];
}

/* Sets lengths, offsets and pages. Slots that the problem does not use are NULL. */
static void args_tables(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    void *const *slot = c->bound->slot;
    c->a.q_lens = slot[FXA_SLOT_Q_LENGTHS];
    c->a.k_lens = slot[FXA_SLOT_K_LENGTHS];
    c->a.q_starts = slot[FXA_SLOT_CU_Q];
    c->a.k_starts = p->flags & FXA_PAGED ? NULL : slot[FXA_SLOT_CU_K];
    if (!(p->flags & FXA_PAGED)) return;
    c->a.pages = slot[FXA_SLOT_PAGES];
    c->a.page_size = (int)p->page_size;
    c->a.pages_b = fxa__div_up(p->sk, p->page_size);
    c->a.n_pages = (int)p->n_pages;
}

static void args_lse(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    bool packed = p->flags & FXA_VARLEN;
    struct FxaArgs *a = &c->a;
    a->lse = c->at.lse ? c->at.lse : c->bound->slot[FXA_SLOT_LSE];
    a->lse_b = c->at.lse ? (packed ? 0 : p->hq * p->sq) : p->lse.stride[0];
    a->lse_h = c->at.lse ? (packed ? p->total_q : p->sq) : p->lse.stride[1];
    a->lse_s = c->at.lse ? 1 : p->lse.stride[2];
    if (p->flags & FXA_RETURN_ROW_MAX) {
        a->row_max = c->bound->slot[FXA_SLOT_ROW_MAX];
        a->max_b = p->row_max.stride[0];
        a->max_h = p->row_max.stride[1];
        a->max_s = p->row_max.stride[2];
    }
    if (!(p->flags & FXA_READ_DLSE)) return;
    a->grad_lse = c->bound->slot[FXA_SLOT_DLSE];
    a->grad_lse_b = p->dlse.stride[0];
    a->grad_lse_h = p->dlse.stride[1];
    a->grad_lse_s = p->dlse.stride[2];
}

static void args_operands(fxa__cuda_call *c) {
    struct FxaArgs *a = &c->a;
    const struct args_row {
        fxa_slot slot;
        struct FxaView *to;
        bool backward;
    } rows[] = {{FXA_SLOT_Q, &a->q, false},      {FXA_SLOT_K, &a->k, false},      {FXA_SLOT_V, &a->v, false},
                {FXA_SLOT_O, &a->o, false},      {FXA_SLOT_DO, &a->grad_o, true}, {FXA_SLOT_DQ, &a->grad_q, true},
                {FXA_SLOT_DK, &a->grad_k, true}, {FXA_SLOT_DV, &a->grad_v, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].backward && c->p->in.pass != FXA_BACKWARD) continue;
        c->operand[rows[i].slot] = args_operand(c, rows[i].slot);
        *rows[i].to = c->operand[rows[i].slot].view;
    }
}

void fxa__cuda_args_make(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    struct FxaArgs *a = &c->a;
    memset(a, 0, sizeof *a);
    args_sizes(c);
    args_operands(c);
    args_tables(c);
    args_lse(c);
    args_program(c);
    a->sink = p->flags & FXA_SINK_ZERO ? c->at.no_sink : p->flags & FXA_SINKS ? c->bound->slot[FXA_SLOT_SINKS] : NULL;
    if (c->at.sink) a->sink = c->at.sink;
    if (p->flags & FXA_GRAD_SINKS) a->grad_sink = c->at.grad_sink ? c->at.grad_sink : c->bound->slot[FXA_SLOT_DSINKS];
    a->next_tile = c->at.next_tile;
    a->redo = c->at.recompute;
    a->lse2 = c->at.lse2;
    a->delta = c->at.delta;
    a->grad_q_sum = c->at.grad_q_sum;
    a->first_share = c->at.first_share;
    a->sent = c->at.reduced;
    a->partial = c->at.partial;
    a->partial_ml = c->at.partial_ml;
    if (!(p->flags & FXA_DROPOUT)) return;
    a->seed[0] = (unsigned)c->bound->seed;
    a->seed[1] = (unsigned)(c->bound->seed >> 32);
    a->drop_below = fxa__dropout_threshold(p->dropout_p);
    a->place_b = c->at.coordinates[0];
    a->place_h = c->at.coordinates[1];
    a->place_q = c->at.coordinates[2];
    a->place_k = c->at.coordinates[3];
    a->keep_inverse = (float)(1 / (1 - p->dropout_p));
}

void fxa__cuda_args_tile_list(fxa__cuda_call *c, const fxa__cuda_tile_list *list) {
    int64_t rows = list->cut.rows;
    c->a.list = (struct FxaTileList){.items = list->items};
    if (!list->items) return;
    FXA__ASSERT(list->counts && rows > 0 && (list->pitch >= list->cut.columns || list->pitch >= 2));
    c->a.list.counts = list->counts;
    c->a.list.pitch = list->pitch;
    c->a.list.h_rows = list->heads > 1 ? rows : 0;
    c->a.list.b_rows = list->batch > 1 ? rows * list->heads : 0;
}

struct FxaDivisor fxa__cuda_divisor(int64_t by) {
    struct FxaDivisor d = {0, 0};
    if (by < 1) by = 1; /* an empty problem divides by 1 */
    while ((int64_t)1 << d.shift < by) d.shift++;
    FXA__ASSERT(by <= INT64_C(1) << 31 && (UINT64_C(1) << (31 + d.shift)) / (uint64_t)by < UINT32_MAX);
    d.factor = (unsigned)((UINT64_C(1) << (31 + d.shift)) / (uint64_t)by + 1);
    return d;
}

#define ARGS_L2_BYTES (32 << 20) /* bytes of operands that stay in the L2 cache of an H200 */

void fxa__cuda_args_query_order(fxa__cuda_call *c, int32_t q_rows) {
    const fxa_problem *p = &c->p->in;
    bool packed = p->flags & FXA_VARLEN, masked = c->code->program.switches.mask;
    int64_t batch = packed ? 1 : p->b, heads = batch * p->hq, keys = p->sk * (p->d_qk + p->d_v) * 2, section = 1;
    int64_t tiles = packed ? p->total_q / q_rows + p->b : fxa__div_up(p->sq, q_rows);
    while (masked && section < heads && 2 * section * keys <= ARGS_L2_BYTES) section *= 2;
    section = fxa__min_i64(section, heads);
    FXA__ASSERT(tiles * heads <= INT32_MAX);
    c->a.q_tiles = (int)tiles;
    c->a.tiles = (int)(tiles * heads);
    c->a.section = (int)section;
    c->a.reverse = masked;
    c->a.by_order = fxa__cuda_divisor(section * tiles);
    c->a.by_section = fxa__cuda_divisor(section);
    c->a.by_last = fxa__cuda_divisor(section ? heads % section : 0);
    c->a.by_heads = fxa__cuda_divisor(p->hq);
    c->a.by_group = fxa__cuda_divisor(c->a.group);
}

void fxa__cuda_args_dq_order(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    int64_t bytes = fxa__round_up(p->sq, 128) * (6 * p->d_qk + 2 * p->d_v), heads = p->b * p->hkv;
    c->a.section = (int)fxa__max_i64(1, fxa__min_i64(ARGS_L2_BYTES / bytes, heads));
}
