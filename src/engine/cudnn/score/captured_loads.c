/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of captured tensors as tensors of a graph. cuDNN reads the caller's memory directly where it does so correctly.
 * Otherwise a helper kernel first copies the elements to the workspace. The copy has another dtype (cuDNN aborts the
 * process on 8-bit elements), another layout, or elements of 0 past the end of an axis.
 */
#include "score.h"

#include "../../../base/invariant.h"

#include <string.h>

/* Returns the type of cuDNN for a dtype; -1 if cuDNN cannot read the dtype. */
static int load_data_type(fxa_dtype dtype) {
    switch (dtype) {
    case FXA_F32: return CUDNN_DATA_FLOAT;
    case FXA_F16: return CUDNN_DATA_HALF;
    case FXA_BF16: return CUDNN_DATA_BFLOAT16;
    case FXA_I32: return CUDNN_DATA_INT32;
    default: return -1;
    }
}

/* The part of a captured tensor that a load reads, as a tensor of the graph, and what a copy of this part needs. */
typedef struct load_source {
    fxa__dnn_tensor t;
    /* A copy reads the first limit[i] elements along axis i and writes 0 for the others. limit[i] 0: all elements are
     * read; -1: none is read. */
    int64_t limit[4];
    bool copied; /* true: a helper kernel copies the elements, because cuDNN cannot read them in place */
} load_source;

static bool load_constant(fxa__dnn_score *s, const fxa__node *load, int i, int64_t index, load_source *x) {
    const fxa_capture *c = &s->captures[load->imm];
    int64_t size = c->size[i], at = index < 0 ? index + size : index;
    if (at >= 0 && at < size) {
        x->t.offset += at * c->stride[i];
        return true;
    }
    (void)fxa__dnn_refuse(s->g, "axis %d of %s has %lld elements, and is read at %lld: cuDNN cannot read 0 there", i,
                          s->program->tensors[load->imm].name, (long long)size, (long long)index);
    return false;
}

/* Applies index i of a load to *x: a constant moves the start of the tensor; a coordinate sets size and stride of its
 * axis. Returns false if the index is refused. */
static bool load_index(fxa__dnn_score *s, const fxa__node *load, int i, load_source *x) {
    const fxa__node *n = &s->program->nodes[load->arg[i]];
    const fxa_capture *c = &s->captures[load->imm];
    const char *name = s->program->tensors[load->imm].name;
    if (n->op == FXA_OP_CONST) return load_constant(s, load, i, n->imm, x);
    if (n->op != FXA_OP_INPUT || !fxa__dnn_is_place((fxa_input)n->imm)) {
        (void)fxa__dnn_refuse(s->g,
                              "index %d of %s is computed (operation %s): cuDNN reads b, h, q, k, q_row, k_row or "
                              "constants alone; gather it into a tensor of these before",
                              i, name, fxa__op_info_get(n->op)->id);
        return false;
    }
    fxa_input input = (fxa_input)n->imm;
    int axis = fxa__dnn_axis_index(input);
    int64_t extent = fxa__dnn_extent(&s->p->in, input), size = c->size[i];
    const fxa__dnn_axis at = fxa__dnn_axis_of(s, input);
    if (!at.known || at.base < 0 || at.step < 1 || (x->limit[axis] && at.hi >= size)) {
        (void)fxa__dnn_refuse(s->g, "axis %d of %s is read at %s, which is no place plus a constant here", i, name,
                              fxa_input_name(input));
        return false;
    }
    if (at.hi >= size)
        x->copied = true, x->limit[axis] = at.base >= size ? -1 : (size - at.base + at.step - 1) / at.step;
    x->t.offset += at.base < size ? at.base * c->stride[i] : 0;
    x->t.stride[axis] = (x->t.dim[axis] > 1 ? x->t.stride[axis] : 0) + at.step * c->stride[i];
    x->t.dim[axis] = extent;
    return true;
}

/* Adds a row axis with stride 0 to tensors of which cuDNN would read wrong elements: tensors with one value per batch
 * entry, and in backward those with one value per key. */
void fxa__dnn_expand(const fxa_problem *p, fxa__dnn_tensor *t) {
    bool per_entry = t->dim[0] > 1 && t->dim[2] == 1 && t->dim[3] == 1;
    bool per_key = t->dim[2] == 1 && t->dim[3] > 1 && p->pass == FXA_BACKWARD;
    if (!per_entry && !per_key) return;
    t->dim[2] = p->sq, t->stride[2] = 0;
    if (!per_key) return;
    t->dim[0] = p->b, t->dim[1] = p->hq;
}

/* Returns a tensor in the workspace, of a dtype that cuDNN reads, to which a helper kernel copies the elements of x.
 * Elements outside of the captured tensor are 0. */
static int32_t load_copy(fxa__dnn_score *s, const fxa__decl *decl, const load_source *x) {
    uint8_t type = decl->type == FXA_FLOAT ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32;
    int32_t t = fxa__dnn_scratch(s->g, x->t.dim, type);
    int64_t work = x->t.dim[0] * x->t.dim[1] * x->t.dim[2] * x->t.dim[3];
    fxa__dnn_step *step = fxa__dnn_step_new(s->g, FXA__GPU_COPY, false, work, s->discarded);
    FxaGpuCopy *c = &step->args.copy;
    memcpy(c->rows.size, x->t.dim, sizeof c->rows.size);
    memcpy(c->from.stride, x->t.stride, sizeof c->from.stride);
    memcpy(c->limit, x->limit, sizeof c->limit);
    c->from.type = (int32_t)decl->dtype;
    int64_t bytes = (int64_t)fxa_dtype_size((fxa_dtype)decl->dtype);
    fxa__dnn_step_point(step, &c->from.data, x->t.source, x->t.index, x->t.offset * bytes);
    fxa__dnn_step_tensor(step, &c->to, s->g, t);
    return t;
}

/* In forward passes with one query row, repeats the value of each head for all keys. In such passes cuDNN reads
 * tensors [B,H,1,1] wrongly, and does not support tensors [1,H,1,1] together with many keys. */
static void load_write_out(const fxa__dnn_score *s, load_source *x) {
    const fxa_problem *p = &s->p->in;
    if (p->sq != 1 || p->pass != FXA_FORWARD || x->t.dim[1] == 1 || x->t.dim[3] > 1 || p->sk == 1) return;
    x->t.dim[3] = p->sk, x->t.stride[3] = 0, x->copied = true;
}

/* Returns the largest element offset in an array whose first element is at `offset`. */
static int64_t load_last(int64_t offset, const int64_t *dim, const int64_t *stride, int rank) {
    for (int i = 0; i < rank; i++) offset += stride[i] > 0 ? (dim[i] - 1) * stride[i] : 0;
    return offset;
}

int32_t fxa__dnn_load(fxa__dnn_score *s, const fxa__node *n) {
    const fxa__decl *decl = &s->program->tensors[n->imm];
    load_source x = {.t = {.dim = {1, 1, 1, 1},
                           .stride = {0, 0, 0, 0},
                           .source = s->own ? FXA__DNN_OWN_TENSOR : FXA__DNN_TENSOR,
                           .index = n->imm}};
    const fxa_capture *c = &s->captures[n->imm];
    int type = load_data_type((fxa_dtype)decl->dtype);
    FXA__ASSERT(n->imm < s->program->n_tensors && n->n_args == decl->rank);
    for (int i = 0; i < n->n_args; i++)
        if (!load_index(s, n, i, &x)) return 0;
    for (int i = 0; i < 4; i++) x.copied = x.copied || x.t.stride[i] < 0;
    if (fxa__dnn_is_per_head(&x.t)) x.copied = x.copied || x.t.stride[1] != 1;
    /* cuDNN reads two 16-bit elements at once, so the elements of neighbouring keys must be contiguous */
    bool narrow = type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
    x.copied = x.copied || ((narrow || s->keys_dense) && x.t.dim[3] > 1 && x.t.stride[3] != 1);
    load_write_out(s, &x);
    if (type < 0 || x.copied) {
        int32_t made = load_copy(s, decl, &x);
        if (s->g->status != FXA_OK) return 0;
        fxa__dnn_tensor *t = &s->g->tensors[made];
        for (int i = 0; i < 4; i++)
            if (t->dim[i] == 1) t->stride[i] = 0;
        fxa__dnn_expand(&s->p->in, t);
        t->read = true;
        return made;
    }
    x.t.type = (uint8_t)type;
    fxa__dnn_expand(&s->p->in, &x.t);
    FXA__ASSERT(load_last(x.t.offset, x.t.dim, x.t.stride, 4) <= load_last(0, c->size, c->stride, n->n_args));
    for (int i = 0; i < 4; i++)
        if (x.t.dim[i] == 1) x.t.stride[i] = 1;
    return fxa__dnn_add(s->g, &x.t);
}
