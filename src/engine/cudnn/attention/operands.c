/* SPDX-License-Identifier: Apache-2.0
 *
 * Operands as tensors of a graph, and the helper kernels for operands that cuDNN does not support directly.
 *
 * If each batch entry has its own lengths, or operands are packed, every operand has an offset per batch entry, in
 * elements. A helper kernel writes these offsets and the lengths before cuDNN's kernel, which then reads no padding.
 * The same helper kernel fills the parts of results that cuDNN does not write: padding, query rows of batch entries
 * without keys, and keys of batch entries without query rows. LSE, dLSE and row maxima pass through contiguous tensors
 * in the workspace unless the caller's arrays have cuDNN's layout.
 */
#include "attention.h"

#include "../../../base/invariant.h"

#include <math.h>
#include <string.h>

int fxa__dnn_data_type(uint32_t dtype) {
    switch (dtype) {
    case FXA_F16: return CUDNN_DATA_HALF;
    case FXA_E4M3: return CUDNN_DATA_FP8_E4M3;
    case FXA_E5M2: return CUDNN_DATA_FP8_E5M2;
    case FXA_F32: return CUDNN_DATA_FLOAT;
    default: return CUDNN_DATA_BFLOAT16;
    }
}

typedef struct dnn_slot {
    const fxa_operand *operand;
    int64_t heads, rows, features;
    bool keys;
} dnn_slot;

static dnn_slot dnn_slot_of(const fxa_problem *p, fxa_slot slot) {
    switch (slot) {
    case FXA_SLOT_Q: return (dnn_slot){&p->q, p->hq, p->sq, p->d_qk, false};
    case FXA_SLOT_DQ: return (dnn_slot){&p->dq, p->hq, p->sq, p->d_qk, false};
    case FXA_SLOT_K: return (dnn_slot){&p->k, p->hkv, p->sk, p->d_qk, true};
    case FXA_SLOT_DK: return (dnn_slot){&p->dk, p->hkv, p->sk, p->d_qk, true};
    case FXA_SLOT_V: return (dnn_slot){&p->v, p->hkv, p->sk, p->d_v, true};
    case FXA_SLOT_DV: return (dnn_slot){&p->dv, p->hkv, p->sk, p->d_v, true};
    case FXA_SLOT_DO: return (dnn_slot){&p->dout, p->hq, p->sq, p->d_v, false};
    case FXA_SLOT_LSE: return (dnn_slot){&p->lse, p->hq, p->sq, 1, false};
    case FXA_SLOT_ROW_MAX: return (dnn_slot){&p->row_max, p->hq, p->sq, 1, false};
    case FXA_SLOT_DLSE: return (dnn_slot){&p->dlse, p->hq, p->sq, 1, false};
    default: return (dnn_slot){&p->o, p->hq, p->sq, p->d_v, false};
    }
}

static bool operands_is_row(fxa_slot slot) {
    return slot == FXA_SLOT_LSE || slot == FXA_SLOT_ROW_MAX || slot == FXA_SLOT_DLSE;
}

enum { BOUNDS_THREADS = 256 }; /* threads per CTA of the helper kernel fxa_gpu_batch_bounds */

_Static_assert(FXA_GPU_OPERANDS < 32, "FxaGpuBatchBounds.keys and dense have a bit for each operand");

/* ---- Lengths and offsets of batch entries ------------------------------------------------------------------------ */

/* Returns the step that writes the lengths and offsets of batch entries. */
static fxa__dnn_step *operands_step(fxa__dnn_attention *a) {
    FXA__ASSERT(a->g.status != FXA_OK || (a->own_lengths && a->bounds_step < a->g.n_steps));
    FXA__ASSERT(a->g.status != FXA_OK || a->g.steps[a->bounds_step].kernel == FXA__GPU_BATCH_BOUNDS);
    return a->g.status == FXA_OK ? &a->g.steps[a->bounds_step] : &a->discarded;
}

fxa__dnn_step *fxa__dnn_step_add(fxa__dnn_attention *a, fxa__gpu_kernel kernel, bool after, int64_t work) {
    return fxa__dnn_step_new(&a->g, kernel, after, work, &a->discarded);
}

/* Returns a tensor [B,1,1,1] of INT32 in the workspace. */
static int32_t operands_ints(fxa__dnn_attention *a) {
    const int64_t dim[4] = {a->p->in.b, 1, 1, 1};
    return fxa__dnn_scratch(&a->g, dim, CUDNN_DATA_INT32);
}

/* Adds a launch (step) of the helper kernel fxa_gpu_batch_bounds, which reads the caller's lengths. The operands of the
 * kernel and the results that it fills are set later. */
static fxa__dnn_step *operands_step_new(fxa__dnn_attention *a, bool after, int64_t work) {
    const fxa_problem *p = &a->p->in;
    static const uint8_t starts[2] = {FXA_SLOT_CU_Q, FXA_SLOT_CU_K}, lens[2] = {FXA_SLOT_Q_LENGTHS, FXA_SLOT_K_LENGTHS};
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_BATCH_BOUNDS, after, work);
    FxaGpuBatchBounds *s = &step->args.batch_bounds;
    s->batch = (int32_t)p->b, s->size[0] = p->sq, s->size[1] = p->sk;
    for (int keys = 0; keys < 2; keys++) {
        bool packed = (p->flags & FXA_VARLEN) && !(keys && (p->flags & FXA_PAGED));
        if (packed) fxa__dnn_step_point(step, &s->starts[keys], FXA__DNN_SLOT, starts[keys], 0);
        if (p->flags & FXA_PADDING) fxa__dnn_step_point(step, &s->lens[keys], FXA__DNN_SLOT, lens[keys], 0);
    }
    return step;
}

void fxa__dnn_batch_bounds_begin(fxa__dnn_attention *a) {
    const fxa_problem *p = &a->p->in;
    a->own_lengths = true;
    a->len_q = operands_ints(a), a->len_k = operands_ints(a), a->more = operands_ints(a);
    a->bounds_step = a->g.n_steps;
    fxa__dnn_step *step = operands_step_new(a, false, (p->b + 1) * (FXA_GPU_OPERANDS + 1));
    FxaGpuBatchBounds *s = &step->args.batch_bounds;
    fxa__dnn_step_data(step, &s->len[0], &a->g, a->len_q);
    fxa__dnn_step_data(step, &s->len[1], &a->g, a->len_k);
    fxa__dnn_step_data(step, &s->more, &a->g, a->more);
}

/* Returns a tensor of the offsets at which batch entries start in an operand, in elements. row, entry: strides of the
 * operand's rows and batch entries. `dense`: batch entries are `entry` elements apart even if the problem is packed. */
static int32_t operands_offsets(fxa__dnn_attention *a, int64_t row, int64_t entry, bool keys, bool dense) {
    const int64_t dim[4] = {a->p->in.b + 1, 1, 1, 1};
    int32_t t = fxa__dnn_scratch(&a->g, dim, CUDNN_DATA_INT64);
    fxa__dnn_step *step = operands_step(a);
    FxaGpuBatchBounds *s = &step->args.batch_bounds;
    int i = s->operands;
    if (i == FXA_GPU_OPERANDS) return fxa__dnn_refuse(&a->g, "more than %d operands are packed", FXA_GPU_OPERANDS);
    s->operands++;
    s->row[i] = row, s->entry[i] = entry;
    s->keys |= (keys ? 1 : 0) << i, s->dense |= (dense ? 1 : 0) << i;
    fxa__dnn_step_data(step, &s->offset[i], &a->g, t);
    return t;
}

/* ---- Operands as tensors of the graph ---------------------------------------------------------------------------- */

static bool operands_is_packed(const fxa_problem *p, bool keys) {
    return (p->flags & FXA_VARLEN) && !(keys && (p->flags & FXA_PAGED));
}

/* Adds tensor t to the graph and returns it. If batch entries have their own lengths, the tensor with the offsets at
 * which they start in t is added too. */
static int32_t operands_tensor(fxa__dnn_attention *a, fxa__dnn_tensor *t, bool keys) {
    bool packed = operands_is_packed(&a->p->in, keys);
    /* cuDNN does not read this stride, but requires a nonzero one */
    if (packed) t->stride[0] = t->dim[2] * t->stride[2];
    if (a->own_lengths) t->ragged = 1 + operands_offsets(a, t->stride[2], t->stride[0], keys, !packed);
    return fxa__dnn_add(&a->g, t);
}

/* Returns K or V copied from pages to contiguous rows in the workspace. cuDNN cannot read the pages themselves: NaN or
 * infinity in the unused end of the last page would get into the results. */
static int32_t operands_gather(fxa__dnn_attention *a, fxa_slot slot) {
    const fxa_problem *p = &a->p->in;
    int32_t t = fxa__dnn_dense(a, slot);
    fxa__dnn_step *step = fxa__dnn_step_copy(a, slot, t, false, FXA_GPU_COPY, 0);
    FxaGpuArray *from = &step->args.copy.from;
    from->page = (int32_t)p->page_size, from->of_entry = (int32_t)((p->sk + p->page_size - 1) / p->page_size);
    fxa__dnn_step_point(step, &from->pages, FXA__DNN_SLOT, FXA_SLOT_PAGES, 0);
    return t;
}

static void operands_turn(fxa__dnn_tensor *t) {
    int64_t dim = t->dim[2], stride = t->stride[2];
    t->dim[2] = t->dim[3], t->stride[2] = t->stride[3];
    t->dim[3] = dim, t->stride[3] = stride;
}

/* Records in a->offsets which operand of bounds_step has the offsets of this slot: the operand that was added last. */
static void operands_note(fxa__dnn_attention *a, fxa_slot slot) {
    if (a->own_lengths && slot <= FXA_SLOT_DV) a->offsets[slot] = (uint8_t)operands_step(a)->args.batch_bounds.operands;
}

bool fxa__dnn_has_equal_offsets(const fxa__dnn_attention *a, fxa_slot x, fxa_slot y) {
    const FxaGpuBatchBounds *s = &a->g.steps[a->bounds_step].args.batch_bounds;
    int i = a->offsets[x] - 1, j = a->offsets[y] - 1;
    FXA__ASSERT(i < s->operands && j < s->operands);
    if (i < 0 || j < 0 || (s->dense >> i & 1) != (s->dense >> j & 1)) return false;
    return s->dense >> i & 1 ? s->entry[i] == s->entry[j] : s->row[i] == s->row[j];
}

int32_t fxa__dnn_operand(fxa__dnn_attention *a, fxa_slot slot, bool turned) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    fxa__dnn_tensor t = {.dim = {p->b, s.heads, s.rows, s.features},
                         .type = (uint8_t)fxa__dnn_data_type(s.operand->dtype),
                         .source = FXA__DNN_SLOT,
                         .index = (int32_t)slot};
    memcpy(t.stride, s.operand->stride, sizeof t.stride);
    int32_t made = s.keys && (p->flags & FXA_PAGED) ? operands_gather(a, slot) : operands_tensor(a, &t, s.keys);
    operands_note(a, slot);
    if (turned && a->g.status == FXA_OK) operands_turn(&a->g.tensors[made]);
    return made;
}

int32_t fxa__dnn_dense(fxa__dnn_attention *a, fxa_slot slot) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    const int64_t dim[4] = {p->b, s.heads, s.rows, s.features};
    bool row = operands_is_row(slot);
    int32_t t = fxa__dnn_scratch(&a->g, dim, row ? CUDNN_DATA_FLOAT : (uint8_t)fxa__dnn_data_type(p->q.dtype));
    if (row || !a->own_lengths || a->g.status != FXA_OK) return t;
    fxa__dnn_tensor *made = &a->g.tensors[t];
    int32_t offsets = operands_offsets(a, made->stride[2], made->stride[0], s.keys, true);
    if (a->g.status == FXA_OK) a->g.tensors[t].ragged = 1 + offsets;
    operands_note(a, slot);
    return t;
}

/* ---- Steps that copy and fill rows ------------------------------------------------------------------------------- */

void fxa__dnn_step_rows(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuRows *rows, fxa_slot slot) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    rows->size[0] = p->b, rows->size[1] = s.heads, rows->size[2] = s.rows, rows->size[3] = s.features;
    if (!a->own_lengths) return;
    fxa__dnn_step_data(step, &rows->len, &a->g, s.keys ? a->len_k : a->len_q);
    fxa__dnn_step_data(step, &rows->other, &a->g, s.keys ? a->len_q : a->len_k);
}

void fxa__dnn_step_slot(fxa__dnn_attention *a, fxa__dnn_step *step, FxaGpuArray *array, fxa_slot slot) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    memcpy(array->stride, s.operand->stride, sizeof array->stride);
    if (s.features == 1 && slot != FXA_SLOT_O) array->stride[3] = 0;
    array->type = (int32_t)s.operand->dtype;
    fxa__dnn_step_point(step, &array->data, FXA__DNN_SLOT, (int32_t)slot, 0);
    if (operands_is_row(slot) && step->n_refs) step->ref[step->n_refs - 1].strided = true;
    if (operands_is_packed(p, s.keys))
        fxa__dnn_step_point(step, &array->start, FXA__DNN_SLOT, s.keys ? FXA_SLOT_CU_K : FXA_SLOT_CU_Q, 0);
}

/* Returns the number of elements of a slot. */
static int64_t operands_work(const fxa_problem *p, const dnn_slot *s) {
    return p->b * s->heads * s->rows * s->features;
}

/* Returns true if results have padding, which a run fills. Packed results have none. */
static bool operands_fills_past(const fxa_problem *p) { return (p->flags & (FXA_PADDING | FXA_VARLEN)) == FXA_PADDING; }

/* Removes `field` from the list of pointers in the step's arguments that a run sets, if `field` is in the list. */
static void operands_drop(fxa__dnn_step *step, const void *field) {
    uint16_t at = (uint16_t)((const char *)field - (const char *)&step->args);
    for (int i = 0; i < step->n_refs; i++)
        if (step->ref[i].at == at) step->ref[i--] = step->ref[--step->n_refs];
}

fxa__dnn_step *fxa__dnn_step_copy(fxa__dnn_attention *a, fxa_slot slot, int32_t dense, bool after, int mode,
                                  double fill) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    fxa__dnn_step *step = fxa__dnn_step_add(a, FXA__GPU_COPY, after, operands_work(p, &s));
    FxaGpuCopy *c = &step->args.copy;
    fxa__dnn_step_rows(a, step, &c->rows, slot);
    c->mode = mode, c->fill = fill, c->past = !after || operands_fills_past(p);
    fxa__dnn_step_slot(a, step, after ? &c->to : &c->from, slot);
    fxa__dnn_step_tensor(step, after ? &c->from : &c->to, &a->g, dense);
    if (!after) c->rows.other = NULL, operands_drop(step, &c->rows.other);
    return step;
}

/* Returns the step that fills the rows of results that cuDNN does not write: the step that writes the lengths or,
 * before cuDNN 9.19, a separate step after cuDNN's kernel, because these versions write wrong sums over heads for batch
 * entries without rows. */
static fxa__dnn_step *operands_fill_step(fxa__dnn_attention *a) {
    if (a->level.version >= 91900) return operands_step(a);
    if (!a->fill_step) {
        (void)operands_step_new(a, true, 1);
        a->fill_step = a->g.n_steps;
    }
    FXA__ASSERT(a->g.status != FXA_OK || a->g.steps[a->fill_step - 1].after);
    return a->g.status == FXA_OK ? &a->g.steps[a->fill_step - 1] : &a->discarded;
}

void fxa__dnn_fill(fxa__dnn_attention *a, fxa_slot slot, double value) {
    const fxa_problem *p = &a->p->in;
    const dnn_slot s = dnn_slot_of(p, slot);
    fxa__dnn_step *step = operands_fill_step(a);
    FxaGpuBatchBounds *w = &step->args.batch_bounds;
    /* true only in a graph that has failed, because no pass has more than FXA_GPU_FILLS results */
    if (w->fills == FXA_GPU_FILLS) return;
    FxaGpuFill *f = &w->fill[w->fills++];
    f->heads = s.heads, f->rows = s.rows, f->features = s.features, f->value = value, f->keys = s.keys;
    w->past = operands_fills_past(p);
    fxa__dnn_step_slot(a, step, &f->to, slot);
    /* packed rows: few batch entries have rows that must be filled, so one CTA per batch entry suffices */
    int64_t work = p->b * (w->past ? s.heads * s.rows : BOUNDS_THREADS);
    if (step->work < work) step->work = work;
}

int32_t fxa__dnn_output(fxa__dnn_attention *a, fxa_slot slot, bool wanted, bool adds) {
    int32_t t = wanted && !adds ? fxa__dnn_operand(a, slot, false) : fxa__dnn_dense(a, slot);
    if (wanted && adds) (void)fxa__dnn_step_copy(a, slot, t, true, FXA_GPU_ADD, 0);
    if (wanted && !adds && a->own_lengths) fxa__dnn_fill(a, slot, 0);
    return t;
}

/* ---- LSE and row maxima ------------------------------------------------------------------------------------------ */

/* Returns true if o has f32 elements in the layout [B,H,Sq] or, packed, [rows of all batch entries,H], without gaps.
 * cuDNN accepts other layouts, but gradients are then wrong. */
static bool operands_lse_is_direct(const fxa_problem *p, const fxa_operand *o) {
    const int64_t *stride = o->stride;
    if (o->dtype != FXA_F32) return false;
    if (p->flags & FXA_VARLEN) return stride[1] == 1 && stride[2] == p->hq;
    return (p->b == 1 || stride[0] == p->hq * p->sq) && (p->hq == 1 || stride[1] == p->sq) &&
           (p->sq == 1 || stride[2] == 1);
}

/* Also returns false for LSE and dLSE with padding in a backward pass: padding may hold any values, so cuDNN gets a
 * copy. */
bool fxa__dnn_row_is_direct(const fxa_problem *p, fxa_slot slot) {
    bool past = p->pass == FXA_BACKWARD && operands_fills_past(p);
    return !past && operands_lse_is_direct(p, dnn_slot_of(p, slot).operand);
}

const int64_t *fxa__dnn_row_strides(const fxa_problem *p, fxa_slot slot) {
    return dnn_slot_of(p, slot).operand->stride;
}

void fxa__dnn_key(const fxa__problem *p, fxa__writer *w) {
    fxa_operand *rows[3];
    fxa__parameterized numbers;
    fxa__problem *q = fxa__alloc(w->host, sizeof *q);
    w->failed = w->failed || !q;
    if (!q) return;
    memcpy(q, p, sizeof *q);
    fxa_status status = fxa__dnn_program_make(p, true, &numbers, NULL);
    w->failed = w->failed || status == FXA_E_MEMORY;
    /* if fxa__dnn_program_make failed, the problem has no graph, and the key is made from the caller's program */
    if (status == FXA_OK) q->in.program = numbers.program;
    rows[0] = &q->in.lse, rows[1] = &q->in.row_max, rows[2] = &q->in.dlse;
    q->in.total_q = q->in.total_k = 0;
    for (int i = 0; i < 3 && (p->in.flags & FXA_VARLEN); i++)
        if (!operands_lse_is_direct(&p->in, rows[i])) rows[i]->stride[0] = rows[i]->stride[1] = rows[i]->stride[2] = 0;
    fxa__problem_write(q, FXA__WITH_ALL & ~(uint32_t)FXA__WITH_PLACE, w);
    fxa__write_u32(w, p->in.flags);
    fxa__write_u32(w, p->in.alignment);
    fxa__write_u32(w, (uint32_t)fxa__dnn_is_far(&p->in) | (uint32_t)fxa__dnn_is_empty(&p->in) << 1);
    fxa__write_u64(w, p->in.max_workspace);
    for (int32_t i = 0; status == FXA_OK && i < numbers.program->n_params; i++)
        fxa__write_u32(w, (uint32_t)numbers.from[i]);
    fxa_program_destroy(numbers.program);
    fxa__free(w->host, q, sizeof *q);
}

/* Returns the caller's array of the slot as a tensor. Must be called only if fxa__dnn_row_is_direct returns true. */
int32_t fxa__dnn_row(fxa__dnn_attention *a, fxa_slot slot) {
    const fxa_problem *p = &a->p->in;
    FXA__ASSERT(operands_is_row(slot) && fxa__dnn_row_is_direct(p, slot));
    fxa__dnn_tensor t = {.dim = {p->b, p->hq, p->sq, 1},
                         .stride = {p->hq * p->sq, p->sq, 1, 1},
                         .type = CUDNN_DATA_FLOAT,
                         .source = FXA__DNN_SLOT,
                         .index = (int32_t)slot};
    if (p->flags & FXA_VARLEN) {
        t.stride[1] = 1, t.stride[2] = p->hq;
        t.ragged = 1 + operands_offsets(a, p->hq, 0, false, false);
    }
    return fxa__dnn_add(&a->g, &t);
}
