/* SPDX-License-Identifier: Apache-2.0
 *
 * The leaves of a score program as tensors of a graph: coordinates, lengths, params and constants (score.h).
 * captured_loads.c handles loads of captured tensors.
 */
#include "score.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <math.h>
#include <string.h>

enum { SCORE_EXACT = 1 << 24 }; /* f32 represents all ints up to this value */

void fxa__dnn_score_start(fxa__dnn_score *s, int32_t score, int32_t dscore, int32_t base) {
    s->score = score, s->dscore = dscore, s->base = base;
    for (int32_t i = 0; i < s->program->n_nodes; i++) s->value[i] = i == s->folded ? score : -1;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) s->axis[i] = -1;
}

/* ---- Coordinates ------------------------------------------------------------------------------------------------- */

/* Returns the coordinate map of an axis. */
static const fxa_index_map *score_map(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_B   ? &p->map_b
           : axis == FXA_INPUT_H ? &p->map_h
           : axis == FXA_INPUT_Q ? &p->map_q
                                 : &p->map_k;
}

bool fxa__dnn_is_place(fxa_input input) {
    return (input >= FXA_INPUT_B && input <= FXA_INPUT_K) || input == FXA_INPUT_Q_ROW || input == FXA_INPUT_K_ROW;
}

int fxa__dnn_axis_index(fxa_input input) {
    if (input == FXA_INPUT_B || input == FXA_INPUT_H) return (int)input - (int)FXA_INPUT_B;
    return 1u << input & FXA__OF_ROW ? 2 : 3;
}

int64_t fxa__dnn_extent(const fxa_problem *p, fxa_input axis) {
    const int64_t extent[4] = {p->b, p->hq, p->sq, p->sk};
    return extent[fxa__dnn_axis_index(axis)];
}

int64_t fxa__dnn_length_of(const fxa__dnn_score *s, bool keys) {
    const fxa_problem *p = &s->p->in;
    int64_t said = keys ? p->global_k_len : p->global_q_len;
    return said ? said : s->own_lengths ? -1 : keys ? p->sk : p->sq;
}

/* Returns true if the row coordinate q is shifted by k_len - q_len. */
static bool score_is_aligned(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_Q && (p->flags & FXA_BOTTOM_RIGHT) && !(p->flags & (FXA_CAUSAL | FXA_WINDOW));
}

static void score_bounds_of_segments(const fxa_index_map *map, int64_t n, fxa__dnn_axis *out) {
    out->lo = INT64_MAX, out->hi = INT64_MIN;
    for (uint32_t i = 0; i < map->n_segments && map->segment[i].begin < n; i++) {
        const fxa_segment *g = &map->segment[i];
        int64_t next = i + 1 < map->n_segments && map->segment[i + 1].begin < n ? map->segment[i + 1].begin : n;
        int64_t first = g->base, last = g->base + g->step * (next - 1 - g->begin);
        out->lo = fxa__min_i64(out->lo, fxa__min_i64(first, last));
        out->hi = fxa__max_i64(out->hi, fxa__max_i64(first, last));
    }
}

fxa__dnn_axis fxa__dnn_axis_of(const fxa__dnn_score *s, fxa_input axis) {
    const fxa_problem *p = &s->p->in;
    const fxa_index_map *map = score_map(p, axis);
    int64_t n = fxa__dnn_extent(p, axis), q = fxa__dnn_length_of(s, false), k = fxa__dnn_length_of(s, true), more = 0;
    fxa__dnn_axis out = {false, 0, 1, INT32_MIN, INT32_MAX};
    if (axis == FXA_INPUT_Q_ROW || axis == FXA_INPUT_K_ROW) return (fxa__dnn_axis){true, 0, 1, 0, n > 0 ? n - 1 : 0};
    bool aligned = score_is_aligned(p, axis), moved = axis == FXA_INPUT_Q && (p->flags & FXA_Q_START);
    if (map->kind == FXA_MAP_TABLE || map->has_offset || moved) return out;
    if (aligned && (q < 0 || k < 0)) return out;
    if (aligned) more = k - q;
    if (map->kind == FXA_MAP_SEGMENTS) {
        score_bounds_of_segments(map, n, &out);
        out.lo += more, out.hi += more;
        return out;
    }
    out = (fxa__dnn_axis){true, map->base + more, map->step, map->base + more, map->base + more + map->step * (n - 1)};
    if (out.lo > out.hi) out.lo = out.hi, out.hi = out.base;
    return out;
}

/* Returns a tensor in the workspace with the coordinates of an axis, which a helper kernel writes before cuDNN runs. */
static int32_t score_table(fxa__dnn_score *s, fxa_input input, int axis) {
    const fxa_problem *p = &s->p->in;
    const fxa_index_map *map = score_map(p, input);
    int64_t n = fxa__dnn_extent(p, input), q = fxa__dnn_length_of(s, false), k = fxa__dnn_length_of(s, true);
    bool aligned = score_is_aligned(p, input), moved = axis == 2 && (p->flags & FXA_Q_START);
    bool by_entry = moved || (aligned && (q < 0 || k < 0));
    if (aligned && (q < 0) != (k < 0))
        return fxa__dnn_refuse(s->g, "bottom-right: of q_len and k_len one is said, the other that of each entry");
    const int64_t room[4] = {by_entry ? p->b : 1, 1, 1, n};
    int32_t t = fxa__dnn_scratch(s->g, room, CUDNN_DATA_INT32);
    fxa__dnn_step *step = fxa__dnn_step_new(s->g, FXA__GPU_PLACES, false, room[0] * n, s->discarded);
    FxaGpuPlaces *w = &step->args.places;
    w->size = n, w->batch = room[0], w->base = map->base, w->step = map->step;
    w->add = aligned && !by_entry ? k - q : 0;
    w->segments = map->kind == FXA_MAP_SEGMENTS ? (int32_t)map->n_segments : 0;
    FXA__ASSERT(w->segments <= FXA_GPU_SEGMENTS);
    for (int i = 0; i < w->segments; i++)
        w->begin[i] = map->segment[i].begin, w->from[i] = map->segment[i].base, w->by[i] = map->segment[i].step;
    fxa__dnn_step_data(step, &w->out, s->g, t);
    if (map->kind == FXA_MAP_TABLE) fxa__dnn_step_point(step, &w->table, FXA__DNN_SLOT, FXA_SLOT_MAP_B + axis, 0);
    if (map->has_offset) fxa__dnn_step_point(step, &w->dynamic, FXA__DNN_SLOT, FXA_SLOT_OFFSET_B + axis, 0);
    if (moved) fxa__dnn_step_point(step, &w->shift, FXA__DNN_SLOT, FXA_SLOT_Q_START, 0);
    if (aligned && by_entry && s->g->status == FXA_OK) fxa__dnn_step_data(step, &w->more, s->g, s->length[2]);
    if (s->g->status != FXA_OK) return 0;
    fxa__dnn_tensor *made = &s->g->tensors[t];
    const int64_t dim[4] = {axis == 0 || by_entry ? p->b : 1, axis == 1 ? n : 1, axis == 1 || axis == 3 ? 1 : p->sq,
                            axis == 3 ? n : 1};
    for (int i = 0; i < 4; i++) made->dim[i] = dim[i], made->stride[i] = i == axis ? 1 : 0;
    if (by_entry) made->stride[0] = n;
    return t;
}

/* Returns the coordinates of an axis as a tensor in the workspace, which a helper kernel writes in each run. */
static int32_t score_from_table(fxa__dnn_score *s, fxa_input input, int axis) {
    if (s->table[axis] < 0) {
        int32_t t = score_table(s, input, axis);
        if (s->g->status != FXA_OK) return 0;
        fxa__dnn_expand(&s->p->in, &s->g->tensors[t]);
        s->g->tensors[t].read = true;
        s->table[axis] = t;
    }
    return fxa__dnn_as_virtual(s, s->table[axis]);
}

/* Returns the tensor of lengths `of`, [B,1,1,1], as [B,1,Sq,1] with stride 0 along rows. cuDNN would read [B,1,1,1]
 * wrongly. */
static int32_t score_by_entry(fxa__dnn_score *s, int32_t of) {
    if (s->g->status != FXA_OK) return 0;
    fxa__dnn_tensor t = s->g->tensors[of];
    FXA__ASSERT(s->own_lengths && t.dim[0] == s->p->in.b && t.dim[2] == 1); /* `of` is [B,1,1,1], with lengths */
    t.dim[2] = s->p->in.sq, t.stride[0] = 1, t.stride[1] = 1, t.stride[2] = 0, t.stride[3] = 1;
    t.read = true;
    return fxa__dnn_add(s->g, &t);
}

int32_t fxa__dnn_more(fxa__dnn_score *s) {
    int64_t q = fxa__dnn_length_of(s, false), k = fxa__dnn_length_of(s, true);
    if (q >= 0 && k >= 0) return fxa__dnn_int(s->g, k - q);
    if (q < 0 && k < 0) return score_by_entry(s, s->length[2]);
    int32_t one = fxa__dnn_as_virtual(s, score_by_entry(s, s->length[q < 0 ? 0 : 1]));
    if (q >= 0) return fxa__dnn_int2(s->g, CUDNN_POINTWISE_SUB, one, fxa__dnn_int(s->g, q));
    int32_t keys = fxa__dnn_int(s->g, k);
    return fxa__dnn_int2(s->g, CUDNN_POINTWISE_ADD, fxa__dnn_int2(s->g, CUDNN_POINTWISE_NEG, one, -1), keys);
}

int32_t fxa__dnn_score_input(fxa__dnn_score *s, fxa_input input) {
    if (input == FXA_INPUT_Q_LEN || input == FXA_INPUT_K_LEN)
        return score_by_entry(s, s->length[input == FXA_INPUT_K_LEN]);
    int axis = fxa__dnn_axis_index(input);
    if (s->axis[input] >= 0) return s->axis[input];
    const fxa__dnn_axis c = fxa__dnn_axis_of(s, input);
    s->indexed = s->indexed || axis >= 2 || (axis == 1 && !c.known);
    if (!c.known) return s->axis[input] = score_from_table(s, input, axis);
    if (c.lo < -SCORE_EXACT || c.hi > SCORE_EXACT)
        return fxa__dnn_refuse(s->g, "%s goes from %lld to %lld: this engine counts to 2^24", fxa_input_name(input),
                               (long long)c.lo, (long long)c.hi);
    int32_t t = fxa__dnn_index(s->g, s->base, axis, CUDNN_DATA_INT32);
    if (c.step != 1) t = fxa__dnn_int2(s->g, CUDNN_POINTWISE_MUL, t, fxa__dnn_int(s->g, c.step));
    if (c.base) t = fxa__dnn_int2(s->g, CUDNN_POINTWISE_ADD, t, fxa__dnn_int(s->g, c.base));
    return s->axis[input] = t;
}

bool fxa__dnn_range(const fxa__dnn_score *s, int32_t node, int64_t *lo, int64_t *hi) {
    const fxa_problem *p = &s->p->in;
    fxa_tile_bounds box = {{0}, {0}};
    uint64_t steps = 0;
    const int64_t length[3] = {fxa__dnn_length_of(s, false), fxa__dnn_length_of(s, true),
                               p->global_heads ? p->global_heads : p->hq};
    const int64_t most[3] = {p->sq, p->sk, 0};
    const fxa_input run[3] = {FXA_INPUT_Q_LEN, FXA_INPUT_K_LEN, FXA_INPUT_HEADS};
    for (int i = 0; i < 3; i++) {
        box.lo[run[i]] = length[i] < 0 ? 0 : fxa__sat32(length[i]);
        box.hi[run[i]] = length[i] < 0 ? fxa__sat32(most[i]) : fxa__sat32(length[i]);
    }
    for (fxa_input axis = FXA_INPUT_B; axis < FXA_INPUT_COUNT; axis++) {
        if (!fxa__dnn_is_place(axis)) continue;
        const fxa__dnn_axis c = fxa__dnn_axis_of(s, axis);
        box.lo[axis] = fxa__sat32(c.lo), box.hi[axis] = fxa__sat32(c.hi);
    }
    return fxa__program_int_range(s->program, node, &box, NULL, NULL, lo, hi, &steps);
}

/* ---- Params, constants and the scale ----------------------------------------------------------------------------- */

bool fxa__dnn_score_is_number(const fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    return n->op == FXA_OP_PARAM && s->numbers && s->numbers->from[n->imm] < 0;
}

/* Returns a bit mask: bit i is set if parameterize.c made param i from a constant. */
static uint64_t score_hidden(const fxa__dnn_score *s) {
    uint64_t hidden = 0;
    FXA__ASSERT(s->program->n_params <= 64);
    for (int32_t i = 0; s->numbers && i < s->program->n_params; i++)
        if (s->numbers->from[i] < 0) hidden |= UINT64_C(1) << i;
    return hidden;
}

bool fxa__dnn_score_is_by_value(const fxa__dnn_score *s, int32_t node) {
    const fxa__depend *d = &s->depend[node];
    /* bits of the inputs whose value is the same for all (q, k) pairs of a run */
    uint32_t same = 1u << FXA_INPUT_HEADS;
    if (fxa__dnn_length_of(s, false) >= 0) same |= 1u << FXA_INPUT_Q_LEN;
    if (fxa__dnn_length_of(s, true) >= 0) same |= 1u << FXA_INPUT_K_LEN;
    bool there = !(d->params & ~score_hidden(s)) || s->own || !(s->p->in.flags & FXA_SCALARS_IN_MEMORY);
    return !(d->inputs & ~same) && !d->tensors && there;
}

/* Returns a tensor of one element, f32 or INT32, to which a helper kernel copies an f64 from the caller's memory. */
static int32_t score_scalar(fxa__dnn_score *s, fxa_slot slot, int64_t offset, uint8_t type, double instead) {
    const int64_t one[4] = {1, 1, 1, 1};
    int32_t t = fxa__dnn_scratch(s->g, one, type);
    fxa__dnn_step *step = fxa__dnn_step_new(s->g, FXA__GPU_COPY, false, 1, s->discarded);
    FxaGpuCopy *c = &step->args.copy;
    for (int i = 0; i < 4; i++) c->rows.size[i] = 1;
    c->from.type = FXA_F64, c->has_instead = !isnan(instead), c->instead = instead;
    fxa__dnn_step_point(step, &c->from.data, FXA__DNN_SLOT, (int32_t)slot, offset);
    fxa__dnn_step_tensor(step, &c->to, s->g, t);
    return t;
}

int32_t fxa__dnn_scale(fxa__dnn_score *s) {
    const fxa__dnn_tensor t = {
        .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}, .type = CUDNN_DATA_FLOAT, .source = FXA__DNN_SCALE};
    if (!(s->p->in.flags & FXA_SCALARS_IN_MEMORY)) return fxa__dnn_add(s->g, &t);
    return score_scalar(s, FXA_SLOT_SCALE, 0, CUDNN_DATA_FLOAT, 1 / sqrt((double)s->p->in.d_qk));
}

int32_t fxa__dnn_qk_factor(fxa__dnn_score *s) {
    if (s->folded < 0) return fxa__dnn_scale(s);
    const fxa__node *n = &s->program->nodes[s->folded];
    const bool first = s->program->nodes[n->arg[0]].op == FXA_OP_INPUT;
    const fxa__dnn_tensor t = {.dim = {1, 1, 1, 1},
                               .stride = {1, 1, 1, 1},
                               .type = CUDNN_DATA_FLOAT,
                               .source = FXA__DNN_SCALE,
                               .times = n->op == FXA_OP_DIV ? -1 : 1,
                               .index = n->arg[first ? 1 : 0]};
    return fxa__dnn_add(s->g, &t);
}

/* Returns the tensor of a param in device memory. */
static int32_t score_param(fxa__dnn_score *s, const fxa__node *n) {
    uint8_t type = n->type == FXA_FLOAT ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32;
    int64_t slot = s->numbers ? s->numbers->from[n->imm] : n->imm; /* index among the caller's params */
    if (s->param[n->imm] < 0) s->param[n->imm] = score_scalar(s, FXA_SLOT_PARAMS, 8 * slot, type, NAN);
    return s->param[n->imm];
}

/* Returns the tensor of a node that the host computes and passes by value. */
static int32_t score_by_value(fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    if (n->op == FXA_OP_CONST) return n->type == FXA_FLOAT ? fxa__dnn_float(s->g, n->f) : fxa__dnn_int(s->g, n->imm);
    const fxa__dnn_tensor t = {.dim = {1, 1, 1, 1},
                               .stride = {1, 1, 1, 1},
                               .type = n->type == FXA_FLOAT ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32,
                               .source = s->own ? FXA__DNN_OWN_NODE : FXA__DNN_NODE,
                               .number = fxa__dnn_score_is_number(s, node),
                               .times = 1,
                               .index = node};
    return fxa__dnn_add(s->g, &t);
}

/* If `tensor` has memory, returns tensor + 0 * key index, a virtual tensor with the sizes of the scores. The 0 that is
 * added to floats is -0, which changes no bit. */
int32_t fxa__dnn_as_virtual(fxa__dnn_score *s, int32_t tensor) {
    if (s->g->status != FXA_OK || s->g->tensors[tensor].source == FXA__DNN_VIRTUAL) return tensor;
    bool ints = s->g->tensors[tensor].type == CUDNN_DATA_INT32;
    int32_t k = fxa__dnn_index(s->g, s->base, 3, CUDNN_DATA_INT32);
    if (ints) return fxa__dnn_int2(s->g, CUDNN_POINTWISE_ADD, fxa__dnn_int2(s->g, CUDNN_POINTWISE_SUB, k, k), tensor);
    int32_t zero = fxa__dnn_float(s->g, -0.0);
    zero = fxa__dnn_float2(s->g, CUDNN_POINTWISE_MUL, fxa__dnn_float2(s->g, CUDNN_POINTWISE_IDENTITY, k, -1), zero);
    return fxa__dnn_float2(s->g, CUDNN_POINTWISE_ADD, zero, tensor);
}

/* ---- Nodes of the program ---------------------------------------------------------------------------------------- */

/* Returns the tensor of a node without operands, or of a load. */
static int32_t score_leaf(fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    if (n->op == FXA_OP_LOAD) {
        if (s->load[node] < 0) s->load[node] = fxa__dnn_load(s, n);
        return s->load[node];
    }
    if (n->op == FXA_OP_PARAM) return score_param(s, n);
    if (n->imm == FXA_INPUT_SCORE) return s->score;
    /* While s->dscore is -1, only the score and the mask are added to the graph, and neither reads dscore. */
    FXA__ASSERT(n->imm != FXA_INPUT_DSCORE || s->dscore >= 0);
    if (n->imm == FXA_INPUT_DSCORE) return s->dscore;
    return fxa__dnn_score_input(s, (fxa_input)n->imm);
}

/* Sets s->needed[] for all nodes that `node` depends on and that have no tensor yet. Operands have lower indices than
 * their users. */
static void score_mark_needed(fxa__dnn_score *s, int32_t node) {
    memset(s->needed, 0, sizeof s->needed);
    s->needed[node] = true;
    for (int32_t i = node; i >= 0; i--) {
        const fxa__node *n = &s->program->nodes[i];
        if (!s->needed[i] || s->value[i] >= 0 || fxa__dnn_score_is_by_value(s, i) || n->op == FXA_OP_LOAD) continue;
        if (s->same[i] >= 0) s->needed[s->same[i]] = true;
        for (int j = 0; j < n->n_args && s->same[i] < 0; j++) s->needed[n->arg[j]] = true;
    }
}

int32_t fxa__dnn_score_node(fxa__dnn_score *s, int32_t node) {
    FXA__ASSERT(node >= 0 && node < s->program->n_nodes && s->program->n_nodes <= FXA__DNN_MAX_NODES);
    score_mark_needed(s, node);
    for (int32_t i = 0; i <= node && s->g->status == FXA_OK; i++) {
        const fxa__node *n = &s->program->nodes[i];
        if (!s->needed[i] || s->value[i] >= 0) continue;
        FXA__ASSERT(s->same[i] < i); /* -1, or a node before i, whose tensor exists already */
        bool leaf = n->op == FXA_OP_LOAD || n->op == FXA_OP_INPUT || n->op == FXA_OP_PARAM;
        s->value[i] = fxa__dnn_score_is_by_value(s, i) ? score_by_value(s, i)
                      : s->same[i] >= 0                ? s->value[s->same[i]]
                      : leaf                           ? score_leaf(s, i)
                                                       : fxa__dnn_lower_op(s, i);
    }
    return s->g->status == FXA_OK ? s->value[node] : 0;
}
