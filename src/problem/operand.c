/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of the operands of a problem: field, slot, shape, and the passes and flags with which an operand is read or
 * written. The validator, the argument check and the byte format iterate over this table. This file also has the names
 * of slots.
 */
#include "scales.h"

#include "../base/invariant.h"
#include "../base/num.h"

#include <string.h>

#define OPERAND(field, slot, shape, forward, flag, backward, back_flag, flag_name, why)                                \
    {                                                                                                                  \
#field, (uint16_t)offsetof(fxa_problem, field), FXA_SLOT_##slot, FXA__SHAPE_##shape,                           \
            {FXA__##forward, FXA__##backward }, {flag, back_flag }, flag_name, why                                     \
    }

static const fxa__operand_info operand_table[FXA__OPERAND_COUNT] = {
    OPERAND(q, Q, Q, READ, 0, READ, 0, NULL, "every run reads Q"),
    OPERAND(k, K, K, READ, 0, READ, 0, NULL, "every run reads K"),
    OPERAND(v, V, V, READ, 0, READ, 0, NULL, "every run reads V"),
    OPERAND(o, O, O, WRITTEN, 0, READ, 0, NULL, "forward writes O and backward reads it"),
    OPERAND(dout, DO, O, UNUSED, 0, READ, 0, NULL, "backward reads the gradient of O"),
    OPERAND(dq, DQ, Q, UNUSED, 0, WRITTEN, FXA_GRAD_Q, "FXA_GRAD_Q", NULL),
    OPERAND(dk, DK, K, UNUSED, 0, WRITTEN, FXA_GRAD_K, "FXA_GRAD_K", NULL),
    OPERAND(dv, DV, V, UNUSED, 0, WRITTEN, FXA_GRAD_V, "FXA_GRAD_V", NULL),
    OPERAND(lse, LSE, ROW, WRITTEN, FXA_RETURN_LSE, READ, 0, "FXA_RETURN_LSE",
            "backward reads the LSE that forward wrote"),
    OPERAND(row_max, ROW_MAX, ROW, WRITTEN, FXA_RETURN_ROW_MAX, UNUSED, 0, "FXA_RETURN_ROW_MAX", NULL),
    OPERAND(dlse, DLSE, ROW, UNUSED, 0, READ, FXA_READ_DLSE, "FXA_READ_DLSE", NULL),
    OPERAND(sinks, SINKS, SINK, READ, FXA_SINKS, READ, FXA_SINKS, "FXA_SINKS", NULL),
    OPERAND(dsinks, DSINKS, SINK, UNUSED, 0, WRITTEN, FXA_GRAD_SINKS, "FXA_GRAD_SINKS", NULL),
};

const fxa__operand_info *fxa__operand_info_get(size_t index) {
    FXA__ASSERT(index < FXA__OPERAND_COUNT);
    return &operand_table[index];
}

fxa__role fxa__operand_role(const fxa_problem *p, const fxa__operand_info *info) {
    uint32_t flag = info->flag[p->pass == FXA_BACKWARD];
    return flag == 0 || (p->flags & flag) ? (fxa__role)info->role[p->pass == FXA_BACKWARD] : FXA__UNUSED;
}

fxa_operand *fxa__operand_field(fxa_problem *p, const fxa__operand_info *info) {
    return (fxa_operand *)(void *)((char *)p + info->offset);
}

const fxa_operand *fxa__operand_of(const fxa_problem *p, const fxa__operand_info *info) {
    return (const fxa_operand *)(const void *)((const char *)p + info->offset);
}

uint32_t fxa__operand_sizes(const fxa_problem *p, uint32_t shape, int64_t size[4]) {
    bool key = shape == FXA__SHAPE_K || shape == FXA__SHAPE_V, packed = p->flags & FXA_VARLEN;
    bool paged = key && (p->flags & FXA_PAGED);
    size[0] = paged ? p->n_pages : packed ? 1 : p->b;
    size[1] = key ? p->hkv : p->hq;
    size[2] = paged ? p->page_size : packed ? (key ? p->total_k : p->total_q) : key ? p->sk : p->sq;
    size[3] = shape == FXA__SHAPE_Q || shape == FXA__SHAPE_K ? p->d_qk : p->d_v;
    if (shape == FXA__SHAPE_SINK) size[0] = size[2] = 1;
    if (shape == FXA__SHAPE_SINK || shape == FXA__SHAPE_ROW) size[3] = 1;
    return shape == FXA__SHAPE_SINK ? 2u : (shape == FXA__SHAPE_ROW ? 6u : 14u) | (!packed || paged);
}

fxa__region fxa__operand_region(const fxa_operand *t, const int64_t size[4], const void *data) {
    fxa__region r = {data, (int64_t)fxa_dtype_size((fxa_dtype)t->dtype), 4, {0}, {0}};
    for (int i = 0; i < 4; i++) r.size[i] = size[i], r.stride[i] = t->stride[i];
    return r;
}

/* Fills in the dense strides of a named layout. Returns false if a stride overflows. */
static bool operand_fill_strides(fxa_operand *t, const int64_t size[4], uint32_t axes) {
    /* axes of the layouts BHSD, BSHD and SBHD, innermost first */
    static const uint8_t order[3][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}, {3, 1, 0, 2}};
    int64_t step = 1;
    FXA__ASSERT(t->layout < sizeof order / sizeof *order);
    for (int n = 0; n < 4; n++) {
        uint32_t axis = order[t->layout][n];
        t->stride[axis] = axes >> axis & 1u ? step : 0;
        if (!fxa__mul_i64(step, size[axis], &step)) return false;
    }
    return true;
}

/* Refuses nonzero strides in an operand with a named layout, which would otherwise be ignored without a message. */
static fxa_status operand_refuse_strides(const char *name, const fxa_operand *t, const int64_t size[4],
                                         fxa_error *err) {
    static const char *const layouts[] = {"BHSD", "BSHD", "SBHD"};
    char text[FXA__REGION_TEXT];
    if (!(t->stride[0] | t->stride[1] | t->stride[2] | t->stride[3])) return FXA_OK;
    fxa__region r = fxa__operand_region(t, size, NULL);
    fxa__region_text(&r, text);
    return fxa__fail(err, FXA_E_PROBLEM,
                     "%s.stride is set and %s.layout is %s, which has strides of its own: %s; accepted are strides "
                     "with layout FXA_LAYOUT_STRIDED, or none",
                     name, name, layouts[t->layout], text);
}

fxa_status fxa__operand_resolve(const char *name, fxa_operand *t, const int64_t size[4], uint32_t axes, bool written,
                                fxa_error *err) {
    char text[FXA__REGION_TEXT];
    int64_t lo, hi;
    if (t->layout > FXA_LAYOUT_STRIDED)
        return fxa__fail(err, FXA_E_PROBLEM, "%s.layout is %u: accepted are 0 to 3 (BHSD, BSHD, SBHD, STRIDED)", name,
                         t->layout);
    if (t->layout != FXA_LAYOUT_STRIDED) FXA_TRY(operand_refuse_strides(name, t, size, err));
    _Static_assert(FXA_LAYOUT_STRIDED == 3, "operand_fill_strides and the message above have the layouts 0 to 2");
    bool fits = t->layout == FXA_LAYOUT_STRIDED || operand_fill_strides(t, size, axes);
    t->layout = FXA_LAYOUT_STRIDED;
    for (int i = 0; i < 4; i++)
        if (!(axes >> i & 1u)) t->stride[i] = 0;
    fxa__region r = fxa__operand_region(t, size, NULL);
    if (!fits || !fxa__region_extent(&r, &lo, &hi)) {
        fxa__region_text(&r, text);
        return fxa__fail(err, FXA_E_PROBLEM, "%s is too large: %s do not fit in 64 bits", name, text);
    }
    if (written && !fxa__region_is_nested(&r)) {
        fxa__region_text(&r, text);
        return fxa__fail(err, FXA_E_PROBLEM,
                         "%s overlaps itself: %s; an output needs a place for each element, shown by strides that "
                         "nest",
                         name, text);
    }
    fxa__region_drop_strides(&r);
    for (int i = 0; i < 4; i++) t->stride[i] = r.stride[i];
    return FXA_OK;
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

const char *fxa_slot_name(fxa_slot slot) {
    switch (slot) {
#define SLOT_NAME(name, value)                                                                                         \
    case FXA_SLOT_##name: return #name;
        FXA_SLOT_MAP(SLOT_NAME)
    default: return NULL;
    }
}

int64_t fxa__slot_element(fxa_slot slot) { return slot >= FXA_SLOT_SCALE && slot <= FXA_SLOT_PARAMS ? 8 : 4; }

/* Returns the array length of slot SCALE, SEED or PARAMS; -1 if the problem does not use the slot. */
static int64_t slot_scalar_length(const fxa_problem *p, fxa_slot slot) {
    if (!(p->flags & FXA_SCALARS_IN_MEMORY)) return -1;
    if (slot == FXA_SLOT_SEED) return p->flags & FXA_DROPOUT ? 1 : -1;
    return slot == FXA_SLOT_SCALE ? 1 : p->program ? (int64_t)fxa_program_param_count(p->program) : 0;
}

/* Returns the array length of a slot of map_b, map_h, map_q or map_k: the length of the table, or 1 for an offset; -1
 * if the map does not use the slot. */
static int64_t slot_map_length(const fxa_problem *p, fxa_slot slot) {
    const fxa_index_map *map[4] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    const int64_t n[4] = {p->b, p->hq, p->sq, p->sk};
    if (slot >= FXA_SLOT_OFFSET_B) return map[slot - FXA_SLOT_OFFSET_B]->has_offset ? 1 : -1;
    return map[slot - FXA_SLOT_MAP_B]->kind == FXA_MAP_TABLE ? n[slot - FXA_SLOT_MAP_B] : -1;
}

/* The most frequent cases come first, because this function is called for every slot of every run. */
int64_t fxa__slot_length(const fxa_problem *p, fxa_slot slot) {
    if (slot > FXA_SLOT_PARAMS) return fxa__scale_use_of(p, slot) >= FXA__SCALE_READ ? 1 : -1;
    if (slot == FXA_SLOT_Q_LENGTHS || slot == FXA_SLOT_K_LENGTHS) return p->flags & FXA_PADDING ? p->b : -1;
    if (slot == FXA_SLOT_CU_Q) return p->flags & FXA_VARLEN ? p->b + 1 : -1;
    if (slot == FXA_SLOT_CU_K) return (p->flags & (FXA_VARLEN | FXA_PAGED)) == FXA_VARLEN ? p->b + 1 : -1;
    if (slot == FXA_SLOT_PAGES) return p->flags & FXA_PAGED ? p->b * fxa__div_up(p->sk, p->page_size) : -1;
    if (slot == FXA_SLOT_Q_START) return p->flags & FXA_Q_START ? p->b : -1;
    if (slot >= FXA_SLOT_SCALE && slot <= FXA_SLOT_PARAMS) return slot_scalar_length(p, slot);
    return slot >= FXA_SLOT_MAP_B && slot <= FXA_SLOT_OFFSET_K ? slot_map_length(p, slot) : -1;
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* Returns a view with the sizes of a capture and the given strides. */
static fxa_view capture_view(fxa_tensor_info info, const fxa_capture *c, const int64_t *stride, const void *data) {
    fxa_view v = {data, info.dtype, info.rank, {0}, {0}};
    memcpy(v.size, c->size, sizeof v.size);
    memcpy(v.stride, stride, sizeof v.stride);
    return v;
}

fxa_view fxa__capture_view(const fxa_program *program, const fxa_capture *captures, size_t index, const void *data) {
    return capture_view(fxa_program_tensor(program, index), &captures[index], captures[index].stride, data);
}

fxa_view fxa__capture_grad_view(const fxa_program *program, const fxa_capture *captures, size_t index,
                                const void *data) {
    fxa_view v = capture_view(fxa_program_tensor(program, index), &captures[index], captures[index].grad_stride, data);
    if (captures[index].grad) v.dtype = (fxa_dtype)captures[index].grad_dtype;
    return v;
}

fxa__region fxa__view_region(const fxa_view *v) {
    fxa__region r = {v->data, (int64_t)fxa_dtype_size(v->dtype), v->rank, {0}, {0}};
    memcpy(r.size, v->size, sizeof r.size);
    memcpy(r.stride, v->stride, sizeof r.stride);
    return r;
}
