/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws a random attention problem in two forms, for the library and for the oracle (attn_case.h).
 */
#include "attn_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *case_own(attn_case *c, int64_t n, size_t element) {
    void *memory = calloc((size_t)n + 1, element);
    if (!memory || c->n_owned == (int)(sizeof c->owned / sizeof c->owned[0])) abort();
    return c->owned[c->n_owned++] = memory;
}

static bool case_has(const attn_case *c, uint32_t feature) { return (c->features & feature) != 0; }

uint64_t *attn_case_kind(attn_case *c, uint64_t *rng) { return c->kinds ? &c->kind : rng; }

/* ---- Sizes, lengths, offsets, pages ------------------------------------------------------------------------------ */

static attn_shape case_draw_shape(const attn_case *c, uint64_t *rng) {
    attn_shape s = {.b = attn_int(rng, 1, 3), .hkv = attn_int(rng, 1, 3), .window = 4};
    s.hq = s.hkv * (case_has(c, ATTN_GQA) ? attn_int(rng, 1, 3) : 1);
    s.sq = attn_int(rng, 1, 7);
    s.sk = attn_int(rng, 1, 9);
    s.d = attn_int(rng, 1, 6);
    s.dv = case_has(c, ATTN_DIMS) ? attn_int(rng, 1, 6) : s.d;
    return s;
}

static void case_set_sizes(attn_case *c, const attn_shape *s) {
    oracle *x = &c->x;
    fxa_problem *p = &c->data.problem;
    x->b = s->b, x->hq = s->hq, x->hkv = s->hkv, x->sq = s->sq, x->sk = s->sk, x->d = s->d, x->dv = s->dv;
    p->b = x->b, p->hq = x->hq, p->hkv = x->hkv, p->sq = x->sq, p->sk = x->sk, p->d_qk = x->d, p->d_v = x->dv;
}

/* Draws the lengths of sequences and writes them to `length` and to the slots that the library reads. */
static void case_draw_lengths(attn_case *c, bool keys, int64_t *length, uint64_t *rng) {
    int64_t longest = keys ? c->x.sk : c->x.sq;
    fxa_slot cu = keys ? FXA_SLOT_CU_K : FXA_SLOT_CU_Q, len = keys ? FXA_SLOT_K_LENGTHS : FXA_SLOT_Q_LENGTHS;
    bool padded = case_has(c, ATTN_PADDING) && (keys || attn_int(attn_case_kind(c, rng), 0, 1));
    if (padded) c->data.ints[len] = case_own(c, c->x.b, sizeof(int32_t));
    if (case_has(c, ATTN_VARLEN) && !(keys && case_has(c, ATTN_PAGED)))
        c->data.ints[cu] = case_own(c, c->x.b + 1, sizeof(int32_t));
    for (int64_t b = 0; b < c->x.b; b++) {
        length[b] = c->data.ints[len] || c->data.ints[cu] ? attn_int(rng, 0, longest) : longest;
        if (c->data.ints[len]) c->data.ints[len][b] = (int32_t)length[b];
        int64_t gap = c->data.ints[len] && c->data.ints[cu] ? attn_int(rng, 0, 1) * attn_int(rng, 0, longest) : 0;
        if (c->data.ints[cu]) c->data.ints[cu][b + 1] = c->data.ints[cu][b] + (int32_t)(length[b] + gap);
    }
    if (!c->data.ints[cu]) return;
    int64_t total = c->data.ints[cu][c->x.b] + attn_int(rng, 0, 2); /* rows after the last sequence */
    *(keys ? &c->data.problem.total_k : &c->data.problem.total_q) = total;
}

static void case_draw_pages(attn_case *c, const attn_shape *s, uint64_t *rng) {
    fxa_problem *p = &c->data.problem;
    p->page_size = (uint32_t)(s->page_size ? s->page_size : attn_int(rng, 1, 4));
    /* few pages, so that sequences share pages, or use one twice */
    p->n_pages = s->n_pages ? s->n_pages : attn_int(rng, 1, 8);
    int64_t n = c->x.b * ((c->x.sk + p->page_size - 1) / p->page_size);
    c->data.ints[FXA_SLOT_PAGES] = case_own(c, n, sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) c->data.ints[FXA_SLOT_PAGES][i] = (int32_t)attn_int(rng, 0, p->n_pages - 1);
}

static void case_draw_geometry(attn_case *c, const attn_shape *s, uint64_t *rng) {
    oracle *x = &c->x;
    int64_t *q_len = case_own(c, x->b, sizeof(int64_t)), *k_len = case_own(c, x->b, sizeof(int64_t));
    int32_t *seen_q = case_own(c, x->b, sizeof(int32_t)), *seen_k = case_own(c, x->b, sizeof(int32_t));
    case_draw_lengths(c, false, q_len, rng);
    case_draw_lengths(c, true, k_len, rng);
    if (case_has(c, ATTN_PAGED)) case_draw_pages(c, s, rng);
    uint64_t *kind = attn_case_kind(c, rng);
    if (case_has(c, ATTN_LENGTHS))
        c->data.problem.global_q_len = attn_int(kind, 0, 20), c->data.problem.global_k_len = attn_int(kind, 0, 20),
        c->data.problem.global_heads = attn_int(kind, 0, 20);
    x->seen_heads = (int32_t)c->data.problem.global_heads;
    for (int64_t b = 0; b < x->b; b++) {
        seen_q[b] = (int32_t)(c->data.problem.global_q_len ? c->data.problem.global_q_len : q_len[b]);
        seen_k[b] = (int32_t)(c->data.problem.global_k_len ? c->data.problem.global_k_len : k_len[b]);
    }
    x->q_len = q_len, x->k_len = k_len, x->seen_q = seen_q, x->seen_k = seen_k;
    c->data.problem.flags |= (case_has(c, ATTN_PADDING) ? FXA_PADDING : 0u) |
                             (case_has(c, ATTN_VARLEN) ? FXA_VARLEN : 0u) | (case_has(c, ATTN_PAGED) ? FXA_PAGED : 0u);
}

/* ---- Coordinate maps --------------------------------------------------------------------------------------------- */

static int32_t *case_draw_map(attn_case *c, fxa_index_map *map, int axis, int64_t n, uint64_t *rng) {
    int32_t *at = case_own(c, n, sizeof(int32_t)), dynamic = 0;
    for (int64_t i = 0; i < n; i++) at[i] = (int32_t)i;
    uint64_t *kind = attn_case_kind(c, rng);
    if (!case_has(c, ATTN_MAPS) || attn_int(kind, 0, 3) == 0) return at;
    map->kind = (uint32_t)attn_int(kind, 0, 2);
    map->has_offset = (uint32_t)attn_int(kind, 0, 1);
    if (map->has_offset) {
        c->data.ints[FXA_SLOT_OFFSET_B + axis] = case_own(c, 1, sizeof(int32_t));
        dynamic = c->data.ints[FXA_SLOT_OFFSET_B + axis][0] = (int32_t)attn_int(rng, -3, 12);
    }
    map->base = attn_int(kind, -2, 9);
    map->step = attn_int(kind, -2, 3);
    map->n_segments = map->kind == FXA_MAP_SEGMENTS ? 2 : 0;
    map->segment[0] = (fxa_segment){0, attn_int(kind, 0, 9), attn_int(kind, 0, 2)};
    map->segment[1] = (fxa_segment){attn_int(kind, 1, 4), attn_int(kind, 0, 20), attn_int(kind, -1, 2)};
    if (map->kind == FXA_MAP_TABLE) c->data.ints[FXA_SLOT_MAP_B + axis] = case_own(c, n, sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        const fxa_segment *s = &map->segment[i >= map->segment[1].begin];
        int64_t value = map->base + (map->step ? map->step : 1) * i;
        if (map->kind == FXA_MAP_SEGMENTS) value = s->base + (s->step ? s->step : 1) * (i - s->begin);
        if (map->kind == FXA_MAP_TABLE) value = c->data.ints[FXA_SLOT_MAP_B + axis][i] = (int32_t)attn_int(rng, -2, 30);
        at[i] = (int32_t)value + dynamic;
    }
    return at;
}

static void case_draw_maps(attn_case *c, uint64_t *rng) {
    oracle *x = &c->x;
    x->at_b = case_draw_map(c, &c->data.problem.map_b, 0, x->b, rng);
    x->at_h = case_draw_map(c, &c->data.problem.map_h, 1, x->hq, rng);
    x->at_q = case_draw_map(c, &c->data.problem.map_q, 2, x->sq, rng);
    x->at_k = case_draw_map(c, &c->data.problem.map_k, 3, x->sk, rng);
}

/* Draws start positions of the rows, or bottom-right alignment unless a built-in mask uses it. Some positions are so
 * far away that coordinates wrap. */
static void case_draw_rows(attn_case *c, uint64_t *rng) {
    oracle *x = &c->x;
    bool aligned = !(c->data.problem.flags & (FXA_CAUSAL | FXA_WINDOW)) && attn_int(attn_case_kind(c, rng), 0, 1);
    int32_t *shift = case_own(c, x->b, sizeof(int32_t));
    for (int64_t b = 0; b < x->b; b++) {
        int64_t far = attn_int(rng, 0, 63) ? attn_int(rng, -6, x->sk + 6) : attn_int(rng, INT32_MIN, INT32_MAX);
        shift[b] = aligned ? x->seen_k[b] - x->seen_q[b] : (int32_t)far;
    }
    c->data.problem.flags &= ~(uint32_t)FXA_BOTTOM_RIGHT;
    c->data.problem.flags |= aligned ? FXA_BOTTOM_RIGHT : FXA_Q_START;
    x->bottom_right = false;
    if (!aligned) c->data.ints[FXA_SLOT_Q_START] = shift;
    x->shift_q = shift;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

bool attn_case_at(const attn_case *c, fxa_slot slot, int64_t b, int64_t s, int64_t at[4]) {
    bool keys = slot == FXA_SLOT_K || slot == FXA_SLOT_V || slot == FXA_SLOT_DK || slot == FXA_SLOT_DV;
    const int32_t *cu = c->data.ints[keys ? FXA_SLOT_CU_K : FXA_SLOT_CU_Q];
    at[0] = b, at[2] = s;
    if (cu) {
        at[0] = 0, at[2] = cu[b] + s;
        return s < (keys ? c->x.k_len : c->x.q_len)[b];
    }
    if (keys && case_has(c, ATTN_PAGED)) {
        int64_t size = c->data.problem.page_size, per_batch = (c->x.sk + size - 1) / size;
        at[0] = c->data.ints[FXA_SLOT_PAGES][b * per_batch + s / size], at[2] = s % size;
    }
    return true;
}

/* Returns the dtype that FXA_TEST_DTYPE names; `other` if the variable is not set. */
static fxa_dtype case_named_dtype(fxa_dtype other) {
    const char *name = getenv("FXA_TEST_DTYPE");
    if (!name || !*name) return other;
    for (int d = FXA_F64; d <= FXA_E5M2; d++)
        if (strcmp(name, fxa_dtype_name((fxa_dtype)d)) == 0) return (fxa_dtype)d;
    abort();
}

static fxa_dtype case_draw_float(attn_case *c, uint64_t *rng) {
    return case_has(c, ATTN_DTYPES) ? attn_draw_dtype(true, attn_case_kind(c, rng)) : case_named_dtype(FXA_F64);
}

static attn_style case_draw_style(attn_case *c, bool input, uint64_t *rng) {
    if (!case_has(c, ATTN_STRIDES)) return ATTN_BHSD;
    static const attn_style of_kinds[] = {ATTN_BHSD, ATTN_BSHD, ATTN_SBHD, ATTN_PITCHED, ATTN_PITCHED, ATTN_PITCHED};
    int64_t drawn = attn_int(attn_case_kind(c, rng), 0, c->kinds ? 23 : input ? ATTN_EXPANDED : ATTN_WILD);
    if (c->kinds)
        return drawn   ? of_kinds[drawn % 6]
               : input ? ATTN_EXPANDED
                       : ATTN_WILD; /* rarely, since most engines refuse
                                                                                   it */
    return (attn_style)drawn;
}

/* Makes the tensor, the operand description and the dense f64 array of one slot. */
static void case_make_operand(attn_case *c, fxa_slot slot, fxa_dtype dtype, bool input, uint64_t *rng) {
    const fxa_problem *p = &c->data.problem;
    fxa_problem dense = *p;
    int64_t n[4];
    dense.flags &= ~(uint32_t)(FXA_VARLEN | FXA_PAGED);
    attn_slot_sizes(&dense, slot, n);
    c->dense[slot] = case_own(c, n[0] * n[1] * n[2] * n[3], sizeof(double));
    attn_slot_sizes(p, slot, n);
    bool apart = case_has(c, ATTN_APART) && n[3] > 1;
    c->data.t[slot] = attn_tensor_make(n, dtype, apart ? ATTN_PITCHED : case_draw_style(c, input, rng), rng);
}

/* Fills the existing positions of an input with random values, leaves NaN elsewhere, and copies the stored values to
 * the dense array. */
static void case_fill_operand(attn_case *c, fxa_slot slot, uint64_t *rng) {
    bool keys = slot == FXA_SLOT_K || slot == FXA_SLOT_V;
    const int64_t *length = keys ? c->x.k_len : c->x.q_len;
    attn_tensor *t = &c->data.t[slot];
    int64_t longest = keys ? c->x.sk : c->x.sq, at[4];
    for (int pass = 0; pass < 2; pass++)
        for (int64_t b = 0; b < c->x.b; b++)
            for (int64_t s = 0; s < length[b] && attn_case_at(c, slot, b, s, at); s++)
                for (at[1] = 0; at[1] < t->n[1]; at[1]++)
                    for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                        int64_t i = ((b * t->n[1] + at[1]) * longest + s) * t->n[3] + at[3];
                        if (pass == 0)
                            attn_tensor_set(t, at, attn_real(rng, -2, 2));
                        else
                            c->dense[slot][i] = attn_tensor_get(t, at);
                    }
}

static void case_draw_operands(attn_case *c, uint64_t *rng) {
    oracle *x = &c->x;
    fxa_problem *p = &c->data.problem;
    fxa_dtype main = case_named_dtype(case_draw_float(c, rng)), row = main == FXA_F64 ? FXA_F64 : FXA_F32;
    static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DO, FXA_SLOT_DLSE};
    for (int i = 0; i < 5; i++) {
        fxa_dtype dtype = inputs[i] == FXA_SLOT_DLSE ? row : inputs[i] == FXA_SLOT_DO ? case_draw_float(c, rng) : main;
        bool apart = (i == 1 || i == 2) && main != FXA_F64 && case_has(c, ATTN_MIXED);
        if (apart) dtype = attn_draw_dtype(false, attn_case_kind(c, rng));
        case_make_operand(c, inputs[i], dtype, true, rng);
        case_fill_operand(c, inputs[i], rng);
    }
    static const fxa_slot outputs[] = {FXA_SLOT_O, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    for (int i = 0; i < 4; i++) case_make_operand(c, outputs[i], case_draw_float(c, rng), false, rng);
    case_make_operand(c, FXA_SLOT_LSE, attn_int(attn_case_kind(c, rng), 0, 2) ? row : FXA_F64, false, rng);
    case_make_operand(c, FXA_SLOT_ROW_MAX, row, false, rng);
    for (fxa_slot i = FXA_SLOT_Q; i <= FXA_SLOT_DV; i++) *attn_operand(p, i) = attn_tensor_operand(&c->data.t[i]);
    x->q = c->dense[FXA_SLOT_Q], x->k = c->dense[FXA_SLOT_K], x->v = c->dense[FXA_SLOT_V];
    x->dout = c->dense[FXA_SLOT_DO], x->dlse = case_has(c, ATTN_DLSE) ? c->dense[FXA_SLOT_DLSE] : NULL;
    x->o = c->dense[FXA_SLOT_O], x->lse = c->dense[FXA_SLOT_LSE], x->max = c->dense[FXA_SLOT_ROW_MAX];
    x->dq = c->dense[FXA_SLOT_DQ], x->dk = c->dense[FXA_SLOT_DK], x->dv_grad = c->dense[FXA_SLOT_DV];
}

/* ---- Features of the softmax ------------------------------------------------------------------------------------- */

static void case_draw_sinks(attn_case *c, uint64_t *rng) {
    oracle *x = &c->x;
    int64_t n[4] = {1, x->hq, 1, 1}, at[4] = {0, 0, 0, 0};
    c->dense[FXA_SLOT_SINKS] = case_own(c, x->hq, sizeof(double));
    c->dense[FXA_SLOT_DSINKS] = case_own(c, x->hq, sizeof(double));
    c->data.t[FXA_SLOT_SINKS] = attn_tensor_make(n, case_draw_float(c, rng), case_draw_style(c, true, rng), rng);
    c->data.t[FXA_SLOT_DSINKS] = attn_tensor_make(n, case_draw_float(c, rng), case_draw_style(c, false, rng), rng);
    for (; at[1] < x->hq; at[1]++) attn_tensor_set(&c->data.t[FXA_SLOT_SINKS], at, attn_real(rng, -2, 2));
    x->dsink = c->dense[FXA_SLOT_DSINKS];
    x->sink = case_has(c, ATTN_SINK | ATTN_SINK_ZERO);
    x->sink_score = c->dense[FXA_SLOT_SINKS];
    if (!case_has(c, ATTN_SINK)) c->data.problem.flags |= case_has(c, ATTN_SINK_ZERO) ? FXA_SINK_ZERO : 0u;
    if (!case_has(c, ATTN_SINK)) return;
    for (at[1] = 0; at[1] < x->hq; at[1]++)
        c->dense[FXA_SLOT_SINKS][at[1]] = attn_tensor_get(&c->data.t[FXA_SLOT_SINKS], at);
    c->data.problem.flags |= FXA_SINKS;
    c->data.problem.sinks = attn_tensor_operand(&c->data.t[FXA_SLOT_SINKS]);
    c->data.problem.dsinks = attn_tensor_operand(&c->data.t[FXA_SLOT_DSINKS]);
}

static void case_draw_softmax(attn_case *c, int64_t window, uint64_t *rng) {
    oracle *x = &c->x;
    fxa_problem *p = &c->data.problem;
    uint64_t *kind = attn_case_kind(c, rng);
    case_draw_sinks(c, rng);
    x->scale = attn_real(rng, 0.3, 1.2);
    x->seed = attn_next(rng);
    if (case_has(c, ATTN_DROPOUT)) {
        x->dropout = true;
        p->dropout_p = x->dropout_p = attn_real(rng, 0, 0.9);
        p->flags |= FXA_DROPOUT;
    }
    if (case_has(c, ATTN_READY)) {
        x->causal = attn_int(kind, 0, 1);
        x->window = attn_int(kind, 0, 1) || !x->causal;
        x->bottom_right = attn_int(kind, 0, 1);
        p->window_left = x->left = attn_int(kind, -1, window);
        p->window_right = x->right = attn_int(kind, -1, window);
        p->flags |= (x->causal ? FXA_CAUSAL : 0u) | (x->window ? FXA_WINDOW : 0u);
        p->flags |= x->bottom_right ? FXA_BOTTOM_RIGHT : 0u;
    }
}

/* ---- Program, params, captured tensors --------------------------------------------------------------------------- */

static void case_draw_capture(attn_case *c, int i, fxa_dtype dtype, uint64_t *rng) {
    int rank = c->twin->rank[i];
    int64_t n[4] = {1, 1, rank > 1 ? attn_int(rng, 1, 9) : 1, rank > 0 ? attn_int(rng, 1, 12) : 1};
    int64_t at[4] = {0, 0, 0, 0};
    fxa_capture *capture = &c->data.captures[i];
    attn_tensor *t = &c->data.tensor[i], *dt = &c->data.dtensor[i];
    oracle_tensor *view = &c->x.tensor[i];
    *t = attn_tensor_make(n, dtype, case_draw_style(c, true, rng), rng);
    *dt = attn_tensor_make(n, case_draw_float(c, rng), case_draw_style(c, false, rng), rng);
    c->tensor[i] = case_own(c, n[2] * n[3], sizeof(double));
    c->x.dtensor[i] = case_own(c, n[2] * n[3], sizeof(double));
    for (int pass = 0; pass < 2; pass++)
        for (at[2] = 0; at[2] < n[2]; at[2]++)
            for (at[3] = 0; at[3] < n[3]; at[3]++) {
                double value = dtype == FXA_I32 ? (double)attn_int(rng, 0, 2) : attn_real(rng, -1, 1);
                if (pass == 0)
                    attn_tensor_set(t, at, value);
                else
                    c->tensor[i][at[2] * n[3] + at[3]] = attn_tensor_get(t, at);
            }
    view->rank = rank;
    view->data = c->tensor[i];
    for (int axis = 0; axis < rank; axis++) {
        int from = 4 - rank + axis;
        view->size[axis] = capture->size[axis] = n[from];
        capture->stride[axis] = t->style != ATTN_BHSD ? t->stride[from] : 0;
        capture->grad_stride[axis] = dt->style != ATTN_BHSD ? dt->stride[from] : 0;
    }
    capture->strided = t->style != ATTN_BHSD;
    capture->grad_strided = dt->style != ATTN_BHSD;
    capture->grad = dtype != FXA_I32;
    capture->grad_dtype = (uint32_t)dt->dtype;
}

static bool case_draw_program(attn_case *c, uint64_t *rng) {
    int choice = case_has(c, ATTN_PROGRAM) ? (int)attn_int(rng, 0, oracle_twin_count - 1) : 0;
    if (case_has(c, ATTN_SMOOTH) && !oracle_twins[choice].smooth) choice = 0;
    const oracle_twin *twin = c->twin = &oracle_twins[choice];
    fxa_dtype dtype = twin->int_tensor ? FXA_I32 : case_draw_float(c, rng);
    char text[512];
    const char *from = twin->text;
    size_t n = 0;
    for (; *from && n + 8 < sizeof text; from++) { /* replaces %s by the dtype and %% by a percent sign */
        if (strncmp(from, "%s", 2) == 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", fxa_dtype_name(dtype));
        else
            text[n++] = *from;
        if (*from == '%') from++;
    }
    text[n] = '\0';
    fxa_error err;
    if (fxa_program_parse(c->ctx, text, n, &c->data.program, &err) != FXA_OK) {
        snprintf(c->why, sizeof c->why, "%s does not parse: %.300s", twin->name, err.text);
        return false;
    }
    c->x.fn = twin->fn;
    for (int i = 0; i < ORACLE_PARAMS; i++) c->x.param[i] = attn_real(rng, 0.5, 2);
    if (twin->int_param) c->x.param[0] = (double)attn_int(rng, 0, 8);
    for (int i = 0; i < twin->n_tensors; i++) case_draw_capture(c, i, i == 0 ? dtype : FXA_F64, rng);
    c->data.n_params = (size_t)twin->n_params, c->data.n_tensors = (size_t)twin->n_tensors;
    const int64_t params[4] = {1, 1, 1, ORACLE_PARAMS};
    c->data.dparam = attn_tensor_place(params, FXA_F64, NULL, ATTN_BYTES);
    return true;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static void case_draw_flags(attn_case *c, uint64_t *rng) {
    uint32_t grads = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | (case_has(c, ATTN_SINK) ? FXA_GRAD_SINKS : 0u);
    c->data.problem.flags |= FXA_RETURN_LSE | FXA_RETURN_ROW_MAX;
    if (case_has(c, ATTN_ACC) && attn_int(rng, 0, 1)) c->data.problem.flags |= FXA_ACCUMULATE_O;
    if (case_has(c, ATTN_SOME_GRADS)) grads = (grads & (uint32_t)attn_next(rng)) | FXA_GRAD_Q;
    c->data.backward_flags = grads | (case_has(c, ATTN_DLSE) ? FXA_READ_DLSE : 0u);
    static const uint32_t pairs[][2] = {{FXA_GRAD_Q, FXA_ACCUMULATE_DQ},
                                        {FXA_GRAD_K, FXA_ACCUMULATE_DK},
                                        {FXA_GRAD_V, FXA_ACCUMULATE_DV},
                                        {FXA_GRAD_SINKS, FXA_ACCUMULATE_DSINKS}};
    for (int i = 0; case_has(c, ATTN_ACC) && i < 4; i++)
        if ((grads & pairs[i][0]) && attn_int(rng, 0, 1)) c->data.backward_flags |= pairs[i][1];
    bool tensors = false;
    if (c->twin->n_params && !c->twin->int_param) c->data.problem.param_grads = (1u << c->twin->n_params) - 1;
    if (case_has(c, ATTN_SOME_GRADS)) c->data.problem.param_grads &= attn_next(rng);
    for (int i = 0; i < ORACLE_TENSORS; i++) {
        if (case_has(c, ATTN_SOME_GRADS) && attn_int(rng, 0, 1)) c->data.captures[i].grad = 0;
        tensors = tensors || c->data.captures[i].grad;
    }
    if (case_has(c, ATTN_ACC) && c->data.problem.param_grads && attn_int(rng, 0, 1))
        c->data.backward_flags |= FXA_ACCUMULATE_DPARAMS;
    if (case_has(c, ATTN_ACC) && tensors && attn_int(rng, 0, 1)) c->data.backward_flags |= FXA_ACCUMULATE_DTENSORS;
}

bool attn_case_draw_shape(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features,
                          const attn_shape *shape, uint64_t *rng) {
    memset(c, 0, sizeof *c);
    c->ctx = ctx, c->engine = engine, c->features = features;
    c->kinds = shape && shape->kind, c->kind = shape ? shape->kind : 0;
    if (case_has(c, ATTN_VARLEN) && !case_has(c, ATTN_CHUNKED)) c->features &= ~(uint32_t)(ATTN_PADDING | ATTN_PAGED);
    if (case_has(c, ATTN_SINK)) c->features &= ~(uint32_t)ATTN_SINK_ZERO;
    c->data.problem = (fxa_problem)FXA_PROBLEM_INIT;
    attn_shape s = shape ? *shape : case_draw_shape(c, rng);
    case_set_sizes(c, &s);
    case_draw_geometry(c, &s, rng);
    case_draw_maps(c, rng);
    case_draw_operands(c, rng);
    case_draw_softmax(c, s.window, rng);
    if (case_has(c, ATTN_ROWS)) case_draw_rows(c, rng);
    if (!case_draw_program(c, rng)) return false;
    case_draw_flags(c, attn_case_kind(c, rng));
    return true;
}

bool attn_case_draw(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features, uint64_t *rng) {
    return attn_case_draw_shape(c, ctx, engine, features, NULL, rng);
}

void attn_case_free(attn_case *c) {
    attn_data_free(&c->data);
    for (int i = 0; i < c->n_owned; i++) free(c->owned[i]);
    memset(c, 0, sizeof *c);
}
