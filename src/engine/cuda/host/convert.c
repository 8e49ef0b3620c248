/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions through the workspace, by the kernels of common/convert.cu. Converted are:
 *
 *   operands (Q, K, V, O, gradients) whose type is not the kernels' type, or whose head dim has a stride other than 1
 *   an LSE that is not f32, and sinks that are not f32 with stride 1
 *   results that TMA would store, but whose rows are not a multiple of 16 bytes
 *   results that are added to or merged with the caller's, which are rounded to the kernels' type first (the plan's
 *   description says so)
 */
#include "call.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../problem/geometry.h"

static const struct stage_row {
    uint8_t slot;
    bool keys;       /* the operand has a row per key, not per query */
    uint32_t wanted; /* flag of the problem that requests the operand; 0 = the operand is not optional */
    uint32_t added;  /* flag of the problem with which the result is added to the caller's; 0 = never */
} stage_rows[FXA__CUDA_COPIES] = {{FXA_SLOT_Q, false, 0, 0},
                                  {FXA_SLOT_K, true, 0, 0},
                                  {FXA_SLOT_V, true, 0, 0},
                                  {FXA_SLOT_O, false, 0, FXA_ACCUMULATE_O},
                                  {FXA_SLOT_DO, false, 0, 0},
                                  {FXA_SLOT_DQ, false, FXA_GRAD_Q, FXA_ACCUMULATE_DQ},
                                  {FXA_SLOT_DK, true, FXA_GRAD_K, FXA_ACCUMULATE_DK},
                                  {FXA_SLOT_DV, true, FXA_GRAD_V, FXA_ACCUMULATE_DV}};
enum { STAGE_O = 3, STAGE_DO = 4, STAGE_DQ = 5, STAGE_MAX_BLOCKS = 4096 };

_Static_assert((int)FXA_TYPE_F64 == FXA_F64 && (int)FXA_TYPE_F32 == FXA_F32 && (int)FXA_TYPE_F16 == FXA_F16 &&
                   (int)FXA_TYPE_BF16 == FXA_BF16 && (int)FXA_TYPE_E4M3 == FXA_E4M3 && (int)FXA_TYPE_E5M2 == FXA_E5M2,
               "kernels have other numbers of element types");

int fxa__cuda_copy_of_slot(fxa_slot slot) {
    for (int i = 0; i < FXA__CUDA_COPIES; i++)
        if (stage_rows[i].slot == slot) return i;
    return -1;
}

fxa_slot fxa__cuda_slot_of_copy(int spare) { return (fxa_slot)stage_rows[spare].slot; }

void fxa__cuda_operand_sizes(const fxa_problem *p, fxa_slot slot, int64_t size[4]) {
    int spare = fxa__cuda_copy_of_slot(slot);
    bool packed = p->flags & FXA_VARLEN, keys = spare >= 0 && stage_rows[spare].keys;
    bool fetched = keys && fxa__cuda_has_gathered_pages(p), paged = keys && (p->flags & FXA_PAGED) && !fetched;
    packed = packed && !fetched;
    (void)fxa__row_operand(p, slot, &size[3]);
    size[0] = paged ? p->n_pages : packed ? 1 : p->b;
    size[1] = keys ? p->hkv : p->hq;
    size[2] = paged ? p->page_size : packed ? (keys ? p->total_k : p->total_q) : keys ? p->sk : p->sq;
}

/* ---- Which operands are converted -------------------------------------------------------------------------------- */

/* Returns true if the pass reads or writes operand i of stage_rows. */
static bool stage_is_used(const fxa_problem *p, int i) {
    bool backward = p->pass == FXA_BACKWARD;
    if (i >= STAGE_DO && !backward) return false;
    return !stage_rows[i].wanted || (p->flags & stage_rows[i].wanted);
}

static bool stage_is_result(const fxa_problem *p, int i) {
    return i == STAGE_O ? p->pass == FXA_FORWARD : i >= STAGE_DQ;
}

fxa_dtype fxa__cuda_kernel_dtype(const fxa_problem *p, fxa_slot slot) {
    int i = fxa__cuda_copy_of_slot(slot);
    FXA__ASSERT(i >= 0);
    fxa_dtype type = fxa__cuda_input_dtype(p);
    if (stage_is_result(p, i)) return fxa__cuda_output_dtype(p);
    /* The preprocess of the backward reads O as f32 if O does not have the type of the other operands. */
    return i == STAGE_O && p->o.dtype != (uint32_t)type ? FXA_F32 : type;
}

/* Returns true if kernels would store a result by TMA, because its type, alignment and strides permit that, but its
 * rows are not a multiple of the 16 bytes that TMA stores at a time. */
static bool stage_ends_within(const fxa_problem *p, const fxa_operand *t, fxa_slot slot) {
    int64_t size[4];
    bool maps = p->alignment >= 16 && (t->dtype == FXA_F16 || t->dtype == FXA_BF16);
    fxa__cuda_operand_sizes(p, slot, size);
    for (int axis = 0; axis < 3; axis++) maps = maps && (size[axis] == 1 || t->stride[axis] % 8 == 0);
    return maps && size[3] % 8;
}

static bool stage_row_is_needed(const fxa_problem *p, int i) {
    int64_t d;
    const fxa_operand *t = fxa__row_operand(p, (fxa_slot)stage_rows[i].slot, &d);
    bool result = stage_is_result(p, i);
    if (!stage_is_used(p, i)) return false;
    if (stage_rows[i].keys && fxa__cuda_has_gathered_pages(p)) return true;
    return t->dtype != (uint32_t)fxa__cuda_kernel_dtype(p, (fxa_slot)stage_rows[i].slot) ||
           (t->stride[3] != 1 && d > 1) ||
           (result && ((p->flags & stage_rows[i].added) || stage_ends_within(p, t, (fxa_slot)stage_rows[i].slot)));
}

/* Returns true if sinks or their gradients are not f32 with stride 1, so that they must be converted. */
static bool stage_is_apart(const fxa_operand *t) { return t->dtype != FXA_F32 || t->stride[1] != 1; }

bool fxa__cuda_is_converted(const fxa_problem *p, fxa_slot slot) {
    uint32_t flags = p->flags;
    bool backward = p->pass == FXA_BACKWARD;
    switch (slot) {
    case FXA_SLOT_SINKS: return (flags & FXA_SINKS) && stage_is_apart(&p->sinks);
    case FXA_SLOT_DSINKS:
        return backward && (flags & FXA_GRAD_SINKS) && (stage_is_apart(&p->dsinks) || (flags & FXA_ACCUMULATE_DSINKS));
    case FXA_SLOT_LSE:
        if (backward) return p->lse.dtype != FXA_F32;
        return (flags & FXA_RETURN_LSE) && (p->lse.dtype != FXA_F32 || (flags & FXA_ACCUMULATE_O));
    default: return fxa__cuda_copy_of_slot(slot) >= 0 && stage_row_is_needed(p, fxa__cuda_copy_of_slot(slot));
    }
}

bool fxa__cuda_has_conversions(const fxa_problem *p) {
    bool any = fxa__cuda_is_converted(p, FXA_SLOT_SINKS) || fxa__cuda_is_converted(p, FXA_SLOT_DSINKS) ||
               fxa__cuda_is_converted(p, FXA_SLOT_LSE);
    for (int i = 0; i < FXA__CUDA_COPIES; i++) any = any || stage_row_is_needed(p, i);
    return any;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static fxa_status stage_launch(fxa__cuda_call *c, int function, struct FxaConvert *s, struct FxaConvert *lse,
                               int64_t work) {
    void *params[] = {&c->a, s, lse};
    if (work == 0) return FXA_OK;
    return fxa__cuda_launch(c, FXA__CUDA_CONVERT, function,
                            (fxa__cuda_grid){fxa__min_i64(work, STAGE_MAX_BLOCKS), 1, 1}, FXA_HELPER_THREADS, params);
}

static fxa_status stage_copy(fxa__cuda_call *c, struct FxaConvert *s) {
    int64_t n = s->size[0] * s->size[1] * s->size[2] * s->size[3];
    return stage_launch(c, FXA__CUDA_CONVERT_COPY, s, NULL, fxa__div_up(n, FXA_HELPER_THREADS));
}

static struct FxaConvertArray stage_array(const struct FxaView *v, int64_t last, uint32_t type) {
    return (struct FxaConvertArray){v->data, {v->b, v->h, v->s, last}, (int)type};
}

/* For results of packed sequences (varlen), sets the axes b and s that the conversion loops over: batch entries, and
 * rows of the longest sequence. Rows of no batch entry are not written. side: FXA_CONVERT_ALL = does nothing. */
static void stage_sizes(const fxa_problem *p, int side, struct FxaConvert *s) {
    if (!(p->flags & FXA_VARLEN) || side == FXA_CONVERT_ALL) return;
    s->size[0] = p->b;
    s->size[2] = side == FXA_CONVERT_KEYS ? p->sk : p->sq;
}

/* Returns the conversion of operand i between the caller's memory and its copy in the workspace. */
static struct FxaConvert stage_operand(const fxa__cuda_call *c, int i) {
    const fxa_problem *p = &c->p->in;
    fxa_slot slot = (fxa_slot)stage_rows[i].slot;
    int64_t d;
    const fxa_operand *t = fxa__row_operand(p, slot, &d);
    fxa__cuda_operand given = fxa__cuda_operand_given(c, slot);
    bool result = stage_is_result(p, i), paged = stage_rows[i].keys && (p->flags & FXA_PAGED);
    uint32_t type = (uint32_t)fxa__cuda_kernel_dtype(p, slot);
    FXA__ASSERT(c->at.copy[i] && given.size[3] == d);
    struct FxaConvertArray theirs = stage_array(&given.view, t->stride[3], t->dtype);
    struct FxaConvertArray ours = stage_array(&c->operand[slot].view, 1, type);
    int rows = stage_rows[i].keys ? FXA_CONVERT_KEYS : FXA_CONVERT_QUERIES;
    struct FxaConvert s = {result ? theirs : ours, result ? ours : theirs, {0}, FXA_CONVERT_ALL, 0};
    for (int axis = 0; axis < 4; axis++) s.size[axis] = given.size[axis];
    if (result && !paged) s.side = rows;
    s.add = result && (p->flags & stage_rows[i].added);
    stage_sizes(p, s.side, &s);
    return s;
}

static struct FxaConvert stage_lse(const fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    bool forward = p->pass == FXA_FORWARD;
    int64_t size[4];
    struct FxaConvertArray ours = {c->a.lse, {c->a.lse_b, c->a.lse_h, c->a.lse_s, 0}, FXA_F32};
    struct FxaConvertArray theirs = {
        c->bound->slot[FXA_SLOT_LSE], {p->lse.stride[0], p->lse.stride[1], p->lse.stride[2], 0}, (int)p->lse.dtype};
    struct FxaConvert s = {forward ? theirs : ours, forward ? ours : theirs, {0}, FXA_CONVERT_ALL, 0};
    fxa__cuda_operand_sizes(p, FXA_SLOT_LSE, size);
    for (int axis = 0; axis < 4; axis++) s.size[axis] = size[axis];
    if (forward) s.side = FXA_CONVERT_QUERIES;
    stage_sizes(p, s.side, &s);
    return s;
}

/* Describes an array with one element per head to the conversion kernels. */
static struct FxaConvertArray stage_heads(void *data, int64_t stride, uint32_t type) {
    return (struct FxaConvertArray){data, {0, stride, 0, 0}, (int)type};
}

fxa_status fxa__cuda_convert_inputs(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    FXA__ASSERT(c->code->choice.converts);
    for (int i = 0; i < FXA__CUDA_COPIES; i++) {
        if (stage_is_result(p, i) || !stage_row_is_needed(p, i)) continue;
        struct FxaConvert s = stage_operand(c, i);
        bool fetched = stage_rows[i].keys && fxa__cuda_has_gathered_pages(p);
        FXA_TRY(fetched ? fxa__cuda_pages_gather(c, &s) : stage_copy(c, &s));
    }
    if (p->pass == FXA_BACKWARD && fxa__cuda_is_converted(p, FXA_SLOT_LSE)) {
        struct FxaConvert s = stage_lse(c);
        FXA_TRY(stage_copy(c, &s));
    }
    if (!fxa__cuda_is_converted(p, FXA_SLOT_SINKS)) return FXA_OK;
    struct FxaConvert s = {stage_heads(c->at.sink, 1, FXA_F32),
                           stage_heads(c->bound->slot[FXA_SLOT_SINKS], p->sinks.stride[1], p->sinks.dtype),
                           {1, p->hq, 1, 1},
                           FXA_CONVERT_ALL,
                           0};
    return stage_copy(c, &s);
}

/* Converts O and LSE to the caller's memory, or merges both with the caller's O and LSE. */
static fxa_status stage_forward(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    struct FxaConvert lse = stage_lse(c), o;
    bool has_copy = stage_row_is_needed(p, STAGE_O);
    if (has_copy) o = stage_operand(c, STAGE_O);
    FXA__ASSERT(has_copy || !(p->flags & FXA_ACCUMULATE_O));
    if (p->flags & FXA_ACCUMULATE_O)
        return stage_launch(c, FXA__CUDA_CONVERT_MERGE, &o, &lse, o.size[0] * o.size[1] * o.size[2]);
    if (fxa__cuda_is_converted(p, FXA_SLOT_LSE)) FXA_TRY(stage_copy(c, &lse));
    return has_copy ? stage_copy(c, &o) : FXA_OK;
}

fxa_status fxa__cuda_convert_results(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    FXA__ASSERT(c->code->choice.converts);
    if (p->pass == FXA_FORWARD) return stage_forward(c);
    bool fetched = fxa__cuda_has_gathered_pages(p);
    if (fetched && (p->flags & (FXA_GRAD_K | FXA_GRAD_V))) FXA_TRY(fxa__cuda_page_users_list(c));
    for (int i = STAGE_DQ; i < FXA__CUDA_COPIES; i++) {
        if (!stage_row_is_needed(p, i)) continue;
        struct FxaConvert s = stage_operand(c, i);
        FXA_TRY(fetched && stage_rows[i].keys ? fxa__cuda_pages_scatter(c, &s) : stage_copy(c, &s));
    }
    if (!fxa__cuda_is_converted(p, FXA_SLOT_DSINKS)) return FXA_OK;
    struct FxaConvert s = {stage_heads(c->bound->slot[FXA_SLOT_DSINKS], p->dsinks.stride[1], p->dsinks.dtype),
                           stage_heads(c->at.grad_sink, 1, FXA_F32),
                           {1, p->hq, 1, 1},
                           FXA_CONVERT_ALL,
                           (p->flags & FXA_ACCUMULATE_DSINKS) != 0};
    return stage_copy(c, &s);
}
