/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory offsets of rows and keys, and the coordinates that programs read, for engines on the host. No function here
 * can fail, because strides are already explicit and arguments already checked.
 */
#include "geometry.h"

#include "../base/invariant.h"
#include "../base/num.h"

const fxa_operand *fxa__row_operand(const fxa_problem *p, fxa_slot slot, int64_t *d) {
    *d = 1;
    switch (slot) {
    case FXA_SLOT_Q: *d = p->d_qk; return &p->q;
    case FXA_SLOT_K: *d = p->d_qk; return &p->k;
    case FXA_SLOT_V: *d = p->d_v; return &p->v;
    case FXA_SLOT_O: *d = p->d_v; return &p->o;
    case FXA_SLOT_DO: *d = p->d_v; return &p->dout;
    case FXA_SLOT_DQ: *d = p->d_qk; return &p->dq;
    case FXA_SLOT_DK: *d = p->d_qk; return &p->dk;
    case FXA_SLOT_DV: *d = p->d_v; return &p->dv;
    case FXA_SLOT_LSE: return &p->lse;
    case FXA_SLOT_DLSE: return &p->dlse;
    default: return &p->row_max; /* FXA_SLOT_ROW_MAX */
    }
}

bool fxa__rows_are_aligned(const fxa_problem *p) {
    return (p->flags & FXA_BOTTOM_RIGHT) && !(p->flags & (FXA_CAUSAL | FXA_WINDOW));
}

/* Sets *lo..*hi to the range, over all possible runs, of the input k_len of the program (if `is_key`) or of the input
 * q_len (otherwise). q_len is at least 1, because no program runs for a sequence without rows. */
static void seen_range(const fxa_problem *p, bool is_key, int64_t *lo, int64_t *hi) {
    int64_t fixed = is_key ? p->global_k_len : p->global_q_len, most = is_key ? p->sk : p->sq;
    bool ragged = p->flags & (FXA_PADDING | FXA_VARLEN);
    *lo = fixed ? fixed : ragged ? !is_key : most;
    *hi = fixed ? fixed : most;
}

void fxa__align_range(const fxa_problem *p, int64_t *lo, int64_t *hi) {
    int64_t q_lo, q_hi, k_lo, k_hi;
    *lo = *hi = 0;
    if (!(p->flags & FXA_BOTTOM_RIGHT)) return;
    seen_range(p, false, &q_lo, &q_hi);
    seen_range(p, true, &k_lo, &k_hi);
    *lo = k_lo - q_hi;
    *hi = k_hi - q_lo;
}

void fxa__q_shift_range(const fxa_problem *p, int64_t *lo, int64_t *hi) {
    *lo = *hi = 0;
    if (p->flags & FXA_Q_START) *lo = INT32_MIN, *hi = INT32_MAX;
    if (fxa__rows_are_aligned(p)) fxa__align_range(p, lo, hi);
}

bool fxa__map_is_identity(const fxa_index_map *map) {
    return map->kind == FXA_MAP_AFFINE && !map->has_offset && map->base == 0 && map->step == 1;
}

uint32_t fxa__identity_inputs(const fxa_problem *p) {
    int64_t lo, hi;
    fxa__q_shift_range(p, &lo, &hi);
    bool rows = fxa__map_is_identity(&p->map_q) && lo == 0 && hi == 0, keys = fxa__map_is_identity(&p->map_k);
    return (rows ? 1u << FXA_INPUT_Q_ROW : 0) | (keys ? 1u << FXA_INPUT_K_ROW : 0);
}

fxa__seq fxa__seq_get(const fxa__problem *p, const fxa__bound_args *bound, int64_t b) {
    const fxa_problem *in = &p->in;
    fxa__seq seq = {.q_len = in->sq, .k_len = in->sk};
    FXA__ASSERT(b >= 0 && b < in->b);
    if (in->flags & FXA_VARLEN) {
        const int32_t *cu_q = bound->slot[FXA_SLOT_CU_Q];
        seq.q_start = cu_q[b];
        seq.q_len = cu_q[b + 1] - seq.q_start;
    }
    if ((in->flags & FXA_VARLEN) && !(in->flags & FXA_PAGED)) {
        const int32_t *cu_k = bound->slot[FXA_SLOT_CU_K];
        seq.k_start = cu_k[b];
        seq.k_len = cu_k[b + 1] - seq.k_start;
    }
    if (in->flags & FXA_PADDING) {
        const int32_t *len_q = bound->slot[FXA_SLOT_Q_LENGTHS], *len_k = bound->slot[FXA_SLOT_K_LENGTHS];
        if (len_q) seq.q_len = len_q[b];
        if (len_k) seq.k_len = len_k[b];
    }
    seq.q_len_seen = (int32_t)(in->global_q_len ? in->global_q_len : seq.q_len);
    seq.k_len_seen = (int32_t)(in->global_k_len ? in->global_k_len : seq.k_len);
    seq.heads_seen = (int32_t)(in->global_heads ? in->global_heads : in->hq);
    /* values of lengths and offsets in host memory have been checked (bound_args_values.c) */
    FXA__ASSERT(seq.q_len >= 0 && seq.q_len <= in->sq && seq.k_len >= 0 && seq.k_len <= in->sk);
    if (in->flags & FXA_Q_START) seq.q_shift = ((const int32_t *)bound->slot[FXA_SLOT_Q_START])[b];
    if (fxa__rows_are_aligned(in)) seq.q_shift = (int64_t)seq.k_len_seen - seq.q_len_seen;
    return seq;
}

int64_t fxa__row_offset(const fxa__problem *p, const fxa__seq *seq, const fxa_operand *t, bool is_key,
                        const fxa__bound_args *bound, int64_t b, int64_t h, int64_t s) {
    const fxa_problem *in = &p->in;
    int64_t outer = b, position = s;
    /* packed tensors have no batch axis (stride[0] is 0): a sequence starts at a position on axis 2 */
    if (in->flags & FXA_VARLEN) position += is_key ? seq->k_start : seq->q_start;
    if (is_key && (in->flags & FXA_PAGED)) {
        const int32_t *pages = bound->slot[FXA_SLOT_PAGES];
        int64_t page_size = in->page_size, per_batch = fxa__div_up(in->sk, page_size);
        FXA__ASSERT(s >= 0 && s / page_size < per_batch);
        outer = pages[b * per_batch + s / page_size];
        FXA__ASSERT(outer >= 0 && outer < in->n_pages);
        position = s % page_size;
    }
    return outer * t->stride[0] + h * t->stride[1] + position * t->stride[2];
}

/* Returns the coordinate that a map of kind FXA_MAP_SEGMENTS assigns to position i of the tensor. */
static int64_t coord_segment(const fxa_index_map *map, int64_t i) {
    uint32_t at = map->n_segments - 1;
    while (at > 0 && map->segment[at].begin > i) at--;
    const fxa_segment *s = &map->segment[at];
    FXA__ASSERT(s->begin <= i && map->n_segments <= FXA_MAX_SEGMENTS);
    return s->base + s->step * (i - s->begin);
}

/* Returns the coordinate of position i along `axis` in 64 bits, before it is wrapped to 32 bits. */
static int64_t coord_wide(const fxa__problem *p, const fxa__bound_args *bound, fxa_input axis, int64_t i) {
    const fxa_index_map *maps[4] = {&p->in.map_b, &p->in.map_h, &p->in.map_q, &p->in.map_k};
    int at = (int)axis - FXA_INPUT_B;
    const fxa_index_map *map = maps[at];
    int64_t x = map->kind == FXA_MAP_TABLE      ? ((const int32_t *)bound->slot[FXA_SLOT_MAP_B + at])[i]
                : map->kind == FXA_MAP_SEGMENTS ? coord_segment(map, i)
                                                : map->base + map->step * i;
    if (map->has_offset) x += *(const int32_t *)bound->slot[FXA_SLOT_OFFSET_B + at];
    return x;
}

int32_t fxa__coord(const fxa__problem *p, const fxa__bound_args *bound, fxa_input axis, int64_t i) {
    return fxa__wrap32(coord_wide(p, bound, axis, i));
}

int32_t fxa__row_coord(const fxa__problem *p, const fxa__bound_args *bound, const fxa__seq *seq, int64_t i) {
    return fxa__wrap32(coord_wide(p, bound, FXA_INPUT_Q, i) + seq->q_shift);
}
