/* SPDX-License-Identifier: Apache-2.0
 *
 * The leaves of a score program as tensors of a graph: coordinates, values, loads; see cudnn_score.h.
 */
#include "cudnn_score.h"

#include "../../base/num.h"

#include <string.h>

/* What is the same for all pairs of a run, where there are no lengths of batch entries. */
#define SCORE_OF_RUN (1u << FXA_INPUT_Q_LEN | 1u << FXA_INPUT_K_LEN | 1u << FXA_INPUT_HEADS)

void fxa__dnn_score_start(fxa__dnn_score *s, int32_t score, int32_t dscore, int32_t base) {
    s->score = score, s->dscore = dscore, s->base = base;
    for (int32_t i = 0; i < s->program->n_nodes; i++) s->value[i] = -1;
    for (int i = 0; i < 4; i++) s->axis[i] = -1;
}

/* ---- Coordinates ------------------------------------------------------------------------------------------------- */

static const fxa_index_map *score_map(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_B   ? &p->map_b
           : axis == FXA_INPUT_H ? &p->map_h
           : axis == FXA_INPUT_Q ? &p->map_q
                                 : &p->map_k;
}

static int64_t score_extent(const fxa_problem *p, fxa_input axis) {
    return axis == FXA_INPUT_B ? p->b : axis == FXA_INPUT_H ? p->hq : axis == FXA_INPUT_Q ? p->sq : p->sk;
}

bool fxa__dnn_coordinate(fxa__dnn_graph *g, const fxa__problem *p, fxa_input axis, int64_t *shift) {
    const fxa_index_map *map = score_map(&p->in, axis);
    if (map->kind != FXA_MAP_AFFINE || map->dynamic || map->step != 1) {
        (void)fxa__dnn_refuse(g, "map_%s is no shift by a constant: cuDNN counts coordinates by itself",
                              fxa_input_name(axis));
        return false;
    }
    *shift = map->base;
    bool aligned = (p->in.flags & FXA_BOTTOM_RIGHT) && !(p->in.flags & (FXA_CAUSAL | FXA_WINDOW));
    if (axis == FXA_INPUT_Q && aligned)
        *shift += (p->in.k_len ? p->in.k_len : p->in.sk) - (p->in.q_len ? p->in.q_len : p->in.sq);
    int64_t last = score_extent(&p->in, axis) - 1 + *shift;
    if (*shift >= 0 && last < 1 << 24) return true;
    (void)fxa__dnn_refuse(g, "%s goes from %lld to %lld: this engine counts from 0 to 2^24", fxa_input_name(axis),
                          (long long)*shift, (long long)last);
    return false;
}

static int score_axis(fxa_input input) {
    return input == FXA_INPUT_B ? 0 : input == FXA_INPUT_H ? 1 : input == FXA_INPUT_Q ? 2 : 3;
}

int32_t fxa__dnn_score_input(fxa__dnn_score *s, fxa_input input) {
    int axis = score_axis(input);
    int64_t shift = 0;
    if (s->axis[axis] >= 0) return s->axis[axis];
    if (!fxa__dnn_coordinate(s->g, s->p, input, &shift)) return 0;
    int32_t t = fxa__dnn_index(s->g, s->base, axis, CUDNN_DATA_INT32);
    if (shift) t = fxa__dnn_int2(s->g, CUDNN_POINTWISE_ADD, t, fxa__dnn_int(s->g, shift));
    s->indexed = s->indexed || axis >= 2;
    s->axis[axis] = t;
    return t;
}

bool fxa__dnn_range(const fxa__dnn_score *s, int32_t node, int64_t *lo, int64_t *hi) {
    const fxa_problem *p = &s->p->in;
    fxa_box box = {{0}, {0}};
    uint64_t steps = 0;
    const int64_t length[3] = {p->q_len ? p->q_len : p->sq, p->k_len ? p->k_len : p->sk, p->heads ? p->heads : p->hq};
    const fxa_input run[3] = {FXA_INPUT_Q_LEN, FXA_INPUT_K_LEN, FXA_INPUT_HEADS};
    for (int i = 0; i < 3; i++) box.lo[run[i]] = box.hi[run[i]] = fxa__sat32(length[i]);
    for (fxa_input axis = FXA_INPUT_B; axis <= FXA_INPUT_K; axis++) {
        fxa__dnn_graph unused = {.status = FXA_OK};
        int64_t shift = 0;
        if (!fxa__dnn_coordinate(&unused, s->p, axis, &shift)) return false;
        box.lo[axis] = (int32_t)shift, box.hi[axis] = (int32_t)(shift + score_extent(p, axis) - 1);
    }
    return fxa__program_int_range(s->program, node, &box, NULL, NULL, lo, hi, &steps);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

bool fxa__dnn_score_is_by_value(const fxa__dnn_score *s, int32_t node) {
    const fxa__depend *d = &s->depend[node];
    return !(d->inputs & ~SCORE_OF_RUN) && !d->tensors;
}

static int32_t score_by_value(fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    if (n->op == FXA_OP_CONST) return n->type == FXA_FLOAT ? fxa__dnn_float(s->g, n->f) : fxa__dnn_int(s->g, n->imm);
    const fxa__dnn_tensor t = {.dim = {1, 1, 1, 1},
                               .stride = {1, 1, 1, 1},
                               .type = n->type == FXA_FLOAT ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32,
                               .source = FXA__DNN_NODE,
                               .times = 1,
                               .index = node};
    return fxa__dnn_add(s->g, &t);
}

/* 0 times an index, and the content added to it: of floats -0, which leaves every bit of what is added. */
int32_t fxa__dnn_as_virtual(fxa__dnn_score *s, int32_t tensor) {
    if (s->g->status != FXA_OK || s->g->tensors[tensor].source == FXA__DNN_VIRTUAL) return tensor;
    bool ints = s->g->tensors[tensor].type == CUDNN_DATA_INT32;
    int32_t k = fxa__dnn_index(s->g, s->base, 3, CUDNN_DATA_INT32);
    if (ints) return fxa__dnn_int2(s->g, CUDNN_POINTWISE_ADD, fxa__dnn_int2(s->g, CUDNN_POINTWISE_SUB, k, k), tensor);
    int32_t zero = fxa__dnn_float2(s->g, CUDNN_POINTWISE_MUL, fxa__dnn_float2(s->g, CUDNN_POINTWISE_IDENTITY, k, -1),
                                   fxa__dnn_float(s->g, -0.0));
    return fxa__dnn_float2(s->g, CUDNN_POINTWISE_ADD, zero, tensor);
}

/* ---- Captured tensors -------------------------------------------------------------------------------------------- */

static int score_data_type(fxa_dtype dtype) {
    switch (dtype) {
    case FXA_F32: return CUDNN_DATA_FLOAT;
    case FXA_F16: return CUDNN_DATA_HALF;
    case FXA_BF16: return CUDNN_DATA_BFLOAT16;
    case FXA_I32: return CUDNN_DATA_INT32;
    default: return -1;
    }
}

/* One index of a load: a coordinate, whose axis it is, or a constant. */
static bool score_load_index(fxa__dnn_score *s, const fxa__node *load, int i, fxa__dnn_tensor *t) {
    const fxa__node *n = &s->program->nodes[load->arg[i]];
    const fxa_capture *c = &s->p->in.captures[load->imm];
    const char *name = s->program->tensors[load->imm].name;
    int64_t shift = 0, size = c->size[i];
    if (n->op == FXA_OP_CONST) {
        int64_t at = n->imm < 0 ? n->imm + size : n->imm;
        if (at >= 0 && at < size) t->offset += at * c->stride[i];
        if (at < 0 || at >= size)
            (void)fxa__dnn_refuse(s->g, "axis %d of %s has %lld elements, and is read at %d: cuDNN cannot read 0 there",
                                  i, name, (long long)size, (int)n->imm);
        return at >= 0 && at < size;
    }
    if (n->op != FXA_OP_INPUT || n->imm < FXA_INPUT_B || n->imm > FXA_INPUT_K) {
        (void)fxa__dnn_refuse(s->g,
                              "index %d of %s is computed (operation %s): cuDNN reads b, h, q, k or constants alone", i,
                              name, fxa__op_info_get(n->op)->id);
        return false;
    }
    fxa_input input = (fxa_input)n->imm;
    int axis = score_axis(input);
    if (!fxa__dnn_coordinate(s->g, s->p, input, &shift)) return false;
    if (shift || size < score_extent(&s->p->in, input)) {
        (void)fxa__dnn_refuse(s->g, "axis %d of %s has %lld elements, and %s goes from %lld to %lld", i, name,
                              (long long)size, fxa_input_name(input), (long long)shift,
                              (long long)(shift + score_extent(&s->p->in, input) - 1));
        return false;
    }
    t->stride[axis] = (t->dim[axis] > 1 ? t->stride[axis] : 0) + c->stride[i];
    t->dim[axis] = score_extent(&s->p->in, input);
    return true;
}

/* cuDNN reads wrong elements of what has one value per batch entry, and in backward of what has one per key: the row
 * axis is written out then, with stride 0. */
static void score_expand(const fxa_problem *p, fxa__dnn_tensor *t) {
    bool per_entry = t->dim[0] > 1 && t->dim[2] == 1 && t->dim[3] == 1;
    bool per_key = t->dim[2] == 1 && t->dim[3] > 1 && p->pass == FXA_BACKWARD;
    if (!per_entry && !per_key) return;
    t->dim[2] = p->sq, t->stride[2] = 0;
    if (!per_key) return;
    t->dim[0] = p->b, t->dim[1] = p->hq;
}

static int32_t score_load(fxa__dnn_score *s, const fxa__node *n) {
    const fxa__decl *decl = &s->program->tensors[n->imm];
    fxa__dnn_tensor t = {.dim = {1, 1, 1, 1}, .stride = {0, 0, 0, 0}, .source = FXA__DNN_TENSOR, .index = n->imm};
    int type = score_data_type((fxa_dtype)decl->dtype);
    if (type < 0)
        return fxa__dnn_refuse(s->g, "%s is %s: cuDNN reads captured tensors of f32, f16, bf16 and i32", decl->name,
                               fxa_dtype_name((fxa_dtype)decl->dtype));
    t.type = (uint8_t)type;
    for (int i = 0; i < n->n_args; i++)
        if (!score_load_index(s, n, i, &t)) return 0;
    for (int i = 0; i < 4; i++) {
        if (t.stride[i] < 0)
            return fxa__dnn_refuse(s->g, "%s has a stride of %lld: cuDNN reads forwards alone", decl->name,
                                   (long long)t.stride[i]);
    }
    score_expand(&s->p->in, &t);
    for (int i = 0; i < 4; i++)
        if (t.dim[i] == 1) t.stride[i] = 1;
    return fxa__dnn_add(s->g, &t);
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static int32_t score_leaf(fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    if (n->op == FXA_OP_LOAD) {
        if (s->load[node] < 0) s->load[node] = score_load(s, n);
        return s->load[node];
    }
    if (n->imm == FXA_INPUT_SCORE) return s->score;
    if (n->imm == FXA_INPUT_DSCORE) return s->dscore;
    return fxa__dnn_score_input(s, (fxa_input)n->imm);
}

/* Marks what `node` needs and is not there yet; operands come before their users. */
static void score_mark(fxa__dnn_score *s, int32_t node) {
    memset(s->needed, 0, sizeof s->needed);
    s->needed[node] = true;
    for (int32_t i = node; i >= 0; i--) {
        const fxa__node *n = &s->program->nodes[i];
        if (!s->needed[i] || s->value[i] >= 0 || fxa__dnn_score_is_by_value(s, i) || n->op == FXA_OP_LOAD) continue;
        for (int j = 0; j < n->n_args; j++) s->needed[n->arg[j]] = true;
    }
}

int32_t fxa__dnn_score_node(fxa__dnn_score *s, int32_t node) {
    score_mark(s, node);
    for (int32_t i = 0; i <= node && s->g->status == FXA_OK; i++) {
        const fxa__node *n = &s->program->nodes[i];
        if (!s->needed[i] || s->value[i] >= 0) continue;
        bool leaf = n->op == FXA_OP_LOAD || n->op == FXA_OP_INPUT;
        s->value[i] = fxa__dnn_score_is_by_value(s, i) ? score_by_value(s, i)
                      : leaf                           ? score_leaf(s, i)
                                                       : fxa__dnn_lower_op(s, i);
    }
    return s->g->status == FXA_OK ? s->value[node] : 0;
}
