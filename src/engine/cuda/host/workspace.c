/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of a run's workspace (fxa__cuda_buffers of host/call.h). Tile shapes come from kernels/common/tile_shape.h,
 * which kernels include too.
 */
#include "call.h"
#include "recipes.h"

#include "../../../program/interval_rules.h"

enum {
    /* maximum number of key tiles that each have their own row of FxaDiagonalGrad; more tiles share one row */
    LAYOUT_MAX_PARTS = 32,
    LAYOUT_MAX_ELEMENTS = 1 << 30 /* a captured tensor with more elements has no table of {minimum, maximum} */
};

/* Maximum ints of a row of a tile list: enough for 131,072 positions in tiles of 64. A longer row is stored as ranges
 * of adjacent tiles (FxaTileList), so the size of lists is linear in the number of positions, not of (q, k) pairs. */
enum { LAYOUT_MAX_PITCH = 2048 };

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

typedef struct layout {
    fxa__carver c;
    const fxa__cuda_self *self;
    const fxa__cuda_choice *choice;
    const fxa__cuda_program *g;
    const fxa_problem *p;
    fxa__cuda_buffers *out;
    bool packed;
} layout;

static bool layout_has(const layout *l, fxa__cuda_unit unit) { return l->choice->units >> unit & 1; }

/* Allocates n0 * n1 * n2 elements of `element` bytes from the arena of the workspace. */
static void *layout_take(layout *l, int64_t n0, int64_t n1, int64_t n2, size_t element) {
    int64_t n = -1;
    if (!fxa__mul_i64(n0, n1, &n)) n = -1;
    return fxa__carve_matrix(&l->c, n, n2, element);
}

static int64_t layout_query_tiles(const layout *l, int32_t rows) {
    if (l->packed) return (l->p->total_q / rows + l->p->b) * l->p->hq;
    return fxa__div_up(l->p->sq, rows) * l->p->hq * l->p->b;
}

/* Returns the tile shape of the kernel that works on query tiles: the dQ kernel in a backward, else the forward
 * kernel. */
static struct FxaTileShape layout_query_shape(const layout *l) {
    const fxa__cuda_recipe *r = l->choice->recipe;
    return (l->p->pass == FXA_BACKWARD ? &r->dq_kernel : &r->main)->shape(l->choice->traits);
}

static bool layout_by_queries(const layout *l) {
    return l->p->pass == FXA_FORWARD || l->choice->dq == FXA__CUDA_DQ_OWN_KERNEL;
}

/* Returns for how many batch entries a table (tile list or diagonal row) is written; 1 = all batch entries share it.
 * inputs: what the contents of the table depend on, as fxa_input bits. */
static int32_t layout_batch(const layout *l, uint32_t inputs) {
    uint32_t lengths = 1u << FXA_INPUT_Q_LEN | 1u << FXA_INPUT_K_LEN;
    bool own = (inputs & 1u << FXA_INPUT_B) || (l->choice->traits.varlen && inputs & lengths);
    return own ? (int32_t)l->p->b : 1;
}

/* Returns the number of heads of a table whose contents depend on `inputs` (fxa_input bits); 1 = all heads share it. */
static int32_t layout_heads(const layout *l, uint32_t inputs) {
    return inputs & 1u << FXA_INPUT_H ? (int32_t)l->p->hq : 1;
}

/* Sets the sizes of the array of a captured tensor with a value per query (side 0) or per key (side 1). node < 0: the
 * score program loads no such tensor, and the array contains zeros. */
static void layout_words_describe(layout *l, int side) {
    fxa__cuda_packed_operand *w = &l->out->operand[side];
    const fxa_program *program = l->g->program;
    uint32_t inputs = 0;
    w->node = side ? l->g->operands.k : l->g->operands.q;
    w->length = side ? l->p->sk : l->p->sq;
    w->pitch = fxa__round_up(w->length, FXA_PAD_ROWS) + FXA_PAD_ROWS;
    FXA__ASSERT(w->pitch % FXA_RANGE_ROWS == 0 && w->length >= 0);
    for (int d = 0; w->node >= 0 && d < program->nodes[w->node].n_args; d++)
        inputs |= fxa__node_input(&program->nodes[program->nodes[w->node].arg[d]]);
    w->batch = inputs & 1u << FXA_INPUT_B ? (int32_t)l->p->b : 1;
    w->heads = layout_heads(l, inputs);
}

/* Returns true if queries and keys read the same values (of document ids, for example), so that they can share an
 * array. */
static bool layout_words_are_same(const layout *l) {
    const fxa__cuda_packed_operand *q = &l->out->operand[0], *k = &l->out->operand[1];
    if (q->node < 0 || k->node < 0 || q->length != k->length) return false;
    const fxa__node *nodes = l->g->program->nodes, *x = &nodes[q->node], *y = &nodes[k->node];
    bool same = x->imm == y->imm && x->n_args == y->n_args;
    for (int d = 0; same && d + 1 < x->n_args; d++)
        same = fxa__node_input(&nodes[x->arg[d]]) == fxa__node_input(&nodes[y->arg[d]]);
    return same;
}

static void layout_words_take(layout *l, int side) {
    if (side == 1 && layout_words_are_same(l)) {
        l->out->operand[1] = l->out->operand[0];
        l->out->operand[1].node = -1; /* keys share the array of the queries: nothing is written for keys */
        return;
    }
    fxa__cuda_packed_operand *w = &l->out->operand[side];
    int64_t rows = (int64_t)w->batch * w->heads;
    w->data = layout_take(l, rows, w->pitch, 1, sizeof(int32_t));
    w->ranges = layout_take(l, rows, w->pitch / FXA_RANGE_ROWS, 2, sizeof(int32_t));
}

static void layout_list(layout *l, fxa__cuda_tile_list *list, struct FxaTileShape shape, bool by_key) {
    int64_t q = fxa__div_up(l->p->sq, shape.launch.q_rows), k = fxa__div_up(l->p->sk, shape.launch.k_rows);
    *list = (fxa__cuda_tile_list){.items = NULL};
    if (!l->g->switches.mask || l->p->sq == 0 || l->p->sk == 0) return;
    list->cut = (struct FxaListShape){
        shape.launch.q_rows, shape.launch.k_rows, (int32_t)(by_key ? k : q), (int32_t)(by_key ? q : k), by_key,
        shape.query_parts};
    list->batch = l->choice->traits.varlen ? (int32_t)l->p->b : layout_batch(l, l->g->operands.mask_inputs);
    list->heads = layout_heads(l, l->g->operands.mask_inputs);
    int64_t rows = (int64_t)list->batch * list->heads;
    FXA__ASSERT(!shape.query_parts || 64 * shape.query_parts == (by_key ? shape.launch.k_rows : shape.launch.q_rows));
    FXA__ASSERT(list->cut.columns > 0 && (!shape.query_parts || list->cut.columns < FXA_CUDA_SKIP));
    list->pitch = (int32_t)fxa__min_i64(list->cut.columns, LAYOUT_MAX_PITCH);
    list->items = layout_take(l, rows, list->cut.rows, list->pitch, sizeof(int32_t));
    list->counts = layout_take(l, rows, list->cut.rows, 2, sizeof(int32_t));
}

/* Returns the number of elements of a captured tensor; -1 = it exceeds int64. */
static int64_t layout_elements(const fxa_capture *t, int32_t rank) {
    int64_t n = 1;
    for (int32_t d = 0; d < rank; d++)
        if (!fxa__mul_i64(n, t->size[d], &n)) return -1;
    return n;
}

/* Allocates the tables of {minimum, maximum} of captured tensors (FxaArgs.ranges). A tensor with more than
 * b * hq * (sq + sk) elements has no table, because the table would take more time to write than it saves. Tensors of
 * codegen, which the caller does not know, have no table either. */
static void layout_ranges(layout *l) {
    int64_t max_elements = fxa__min_i64(l->p->b * l->p->hq * (l->p->sq + l->p->sk), LAYOUT_MAX_ELEMENTS);
    for (int32_t i = 0; i < l->g->operands.n_ranges; i++) {
        int32_t tensor = l->g->operands.ranges[i].tensor, capture = fxa__cuda_caller_tensor(l->g, tensor);
        if (capture < 0) continue;
        int64_t n = layout_elements(&l->p->captures[capture], l->g->program->tensors[tensor].rank);
        int64_t size = l->p->captures[capture].size[l->g->operands.ranges[i].axis];
        if (n > 0 && n <= max_elements)
            l->out->ranges[i] = layout_take(l, n / size, fxa__interval_n_blocks(size), 2, sizeof(int32_t));
    }
}

static void layout_diagonal(layout *l) {
    fxa__cuda_diagonal_rows *r = &l->out->diagonal;
    if (l->g->operands.diagonal < 0) return;
    r->zero = (int32_t)fxa__round_up(l->p->sk, FXA_DIAGONAL_KEYS) + FXA_DIAGONAL_KEYS - 1;
    r->pitch = fxa__round_up(r->zero + fxa__round_up(l->p->sq, FXA_DIAGONAL_QUERIES) + FXA_DIAGONAL_EXCESS, 4);
    FXA__ASSERT(r->zero % 4 == 3 && r->pitch % 4 == 0 && r->zero >= l->p->sk && r->pitch - r->zero > l->p->sq);
    r->heads = layout_heads(l, l->g->operands.diagonal_inputs);
    r->batch = layout_batch(l, l->g->operands.diagonal_inputs);
    r->data = layout_take(l, r->batch, r->heads, r->pitch, sizeof(float));
}

/* Allocates the buffers of decode: partial results, flags of work items (which are not cleared), and the tile list. */
static void layout_decode(layout *l) {
    struct FxaTileShape shape = fxa__cuda_tile_shape(l->choice, FXA__CUDA_DECODE);
    fxa__cuda_decode_split(l->self, &l->choice->traits, l->p, &shape, l->out);
    int64_t items = l->out->items, shared = l->out->item_splits < l->out->splits ? items : 0;
    for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) shared = l->out->cut[i] ? items : shared;
    l->out->recompute = layout_take(l, items, 3, 1, sizeof(uint32_t));
    l->out->partial = layout_take(l, shared, shape.launch.q_rows, l->choice->traits.dv, sizeof(float));
    l->out->partial_ml = layout_take(l, shared, shape.launch.q_rows, 2, sizeof(float));
    shape.launch.q_rows = (int32_t)l->p->sq;
    layout_list(l, &l->out->queries, shape, false);
}

/* Allocates the sums of gradients of captured tensors, which start at 0. */
static void layout_captured(layout *l) {
    fxa__cuda_captured_sums *g = &l->out->captured;
    struct FxaTileShape shape = fxa__cuda_tile_shape(l->choice, FXA__CUDA_BACKWARD);
    int64_t heads = l->p->b * l->p->hq;
    g->tiles = (int32_t)fxa__div_up(l->p->sk, shape.launch.k_rows);
    g->sum_rows = (int64_t)g->tiles * shape.launch.sum_rows;
    if (l->g->switches.grad_sums) g->sums = layout_take(l, heads, g->sum_rows, l->g->switches.grad_sums, sizeof(float));
    if (l->g->switches.grad_sums) g->totals = layout_take(l, heads, l->g->switches.grad_sums, 1, sizeof(double));
    if (l->g->switches.grad_sums) g->params = layout_take(l, l->g->switches.grad_sums, 1, 1, sizeof(struct FxaExact));
    FXA__ASSERT(!l->g->switches.grad_sums || shape.launch.sum_rows > 0);
    FXA__ASSERT(l->g->switches.grad_diagonal_exact == (l->g->gradients.deterministic && l->g->switches.grad_diagonal));
    g->one_row = l->g->gradients.deterministic || g->tiles > LAYOUT_MAX_PARTS;
    g->part_rows = g->one_row ? 1 : g->tiles;
    g->part_size = (int32_t)(g->one_row ? l->p->sq + l->p->sk : fxa__round_up(l->p->sq, FXA_PAD_ROWS) + FXA_PAD_ROWS);
    if (l->g->switches.grad_diagonal)
        g->parts = layout_take(l, heads, g->part_rows, g->part_size,
                               l->g->gradients.deterministic ? sizeof(struct FxaExact) : sizeof(float));
    g->pitch = fxa__round_up(l->p->sk, 8);
    int32_t dense = l->g->switches.grad_dense ? l->g->program->nodes[l->g->operands.dense].imm : -1;
    g->direct = dense >= 0 && fxa__cuda_is_dense_grad_direct(l->choice, l->g, l->p);
    if (dense >= 0 && !g->direct) g->dense = layout_take(l, heads, l->p->sq, g->pitch, sizeof(uint16_t));
    for (int32_t i = 0; i < l->g->program->n_tensors; i++) {
        int32_t capture = fxa__cuda_caller_tensor(l->g, i);
        if (capture < 0 || !l->p->captures[capture].grad || i == dense) continue;
        FXA__ASSERT(i < FXA_CUDA_TENSORS);
        g->count[i] = layout_elements(&l->p->captures[capture], l->g->program->tensors[i].rank);
        g->tensor[i] = layout_take(l, g->count[i], 1, 1,
                                   l->g->switches.grad_exact >> i & 1 ? sizeof(struct FxaExact) : sizeof(float));
    }
}

/* Allocates all buffers that must be 0 before the first launch, as one contiguous block, which includes the red zones
 * between buffers. */
static void layout_zeroes(layout *l) {
    fxa__cuda_buffers *out = l->out;
    const char *after = l->c.after;
    l->c.after = NULL;
    out->zero = l->c.base;
    if (layout_has(l, FXA__CUDA_DECODE)) {
        out->next_tile = layout_take(l, 1, 1, 1, sizeof(uint32_t));
    } else if (layout_by_queries(l)) {
        struct FxaTileShape shape = layout_query_shape(l);
        out->next_tile = layout_take(l, 1, 1, 1, sizeof(uint32_t));
        out->recompute = layout_take(l, shape.launch.persistent ? layout_query_tiles(l, shape.launch.q_rows) : 0, 1, 1,
                                     sizeof(int32_t));
    }
    if (l->choice->traits.ordered_dq) out->next_tile = layout_take(l, 1, 1, 1, sizeof(uint32_t));
    FXA__ASSERT(l->c.used % sizeof(uint32_t) == 0);
    out->counter_words = l->c.used / sizeof(uint32_t);
    if (l->p->flags & FXA_SINK_ZERO) out->no_sink = layout_take(l, l->p->hq, 1, 1, sizeof(float));
    for (int side = 0; l->g->switches.pack_operands && side < 2; side++) {
        layout_words_describe(l, side);
        if (out->operand[side].node < 0) layout_words_take(l, side);
    }
    if (l->p->pass == FXA_BACKWARD) layout_captured(l);
    if (fxa__cuda_has_gathered_pages(l->p)) {
        out->users.count = layout_take(l, l->p->n_pages, 1, 1, sizeof(int32_t));
        out->users.used = layout_take(l, 1, 1, 1, sizeof(int32_t));
    }
    out->zero_words = l->c.used / sizeof(uint32_t);
    FXA__ASSERT(out->counter_words <= out->zero_words);
    l->c.after = after;
}

/* Returns true if kernels use a converted copy of the operand `slot` in the workspace. Hot path: called for every slot
 * of every run; most problems convert nothing. */
static bool layout_is_staged(const layout *l, fxa_slot slot) {
    return l->choice->converts && fxa__cuda_is_converted(l->p, slot);
}

/* Allocates memory that kernels use instead of the caller's: for operands that are converted, for dK or dV if the
 * caller does not request it (nobody), and for the uses of pages. */
static void layout_spare(layout *l) {
    const fxa_problem *p = l->p;
    for (int i = 0; i < FXA__CUDA_COPIES; i++) {
        fxa_slot slot = fxa__cuda_slot_of_copy(i);
        bool nobody = p->pass == FXA_BACKWARD && ((slot == FXA_SLOT_DK && !(p->flags & FXA_GRAD_K)) ||
                                                  (slot == FXA_SLOT_DV && !(p->flags & FXA_GRAD_V)));
        int64_t size[4];
        if (!nobody && !layout_is_staged(l, slot)) continue;
        fxa__cuda_operand_sizes(p, slot, size);
        l->out->copy[i] = layout_take(l, size[0] * size[1], size[2], fxa__round_up(size[3], 8),
                                      fxa_dtype_size(fxa__cuda_kernel_dtype(p, slot)));
    }
    if (fxa__cuda_has_gathered_pages(p)) {
        l->out->users.end = layout_take(l, p->n_pages, 1, 1, sizeof(int32_t));
        l->out->users.list = layout_take(l, p->b, fxa__div_up(p->sk, p->page_size), 1, sizeof(int32_t));
    }
    if (layout_is_staged(l, FXA_SLOT_DSINKS)) l->out->grad_sink = layout_take(l, p->hq, 1, 1, sizeof(float));
}

static void layout_backward(layout *l) {
    fxa__cuda_buffers *out = l->out;
    int64_t rows = l->p->hq * (int64_t)out->pad_rows;
    struct FxaTileShape shape = fxa__cuda_tile_shape(l->choice, FXA__CUDA_BACKWARD);
    FXA__ASSERT(FXA_PAD_ROWS % shape.launch.q_rows == 0 && rows % FXA_DQ_SHARE_ROWS == 0);
    FXA__ASSERT(!shape.first_share_stores || shape.launch.q_rows % FXA_DQ_SHARE_ROWS == 0);
    bool joint = l->choice->dq == FXA__CUDA_DQ_ANY_ORDER || l->choice->dq == FXA__CUDA_DQ_ORDERED;
    out->lse2 = layout_take(l, rows, 1, 1, sizeof(float));
    out->delta = layout_take(l, rows, 1, 1, sizeof(float));
    if (joint) out->grad_q_sum = layout_take(l, rows, l->choice->traits.d, 1, sizeof(float));
    if (shape.first_share_stores || l->choice->traits.ordered_dq)
        out->first_share = layout_take(l, rows / FXA_DQ_SHARE_ROWS, 1, 1, sizeof(int32_t));
    int64_t entries = l->packed && !(l->p->flags & FXA_PAGED) ? 1 : l->p->b;
    FXA__ASSERT(joint || !(shape.first_share_stores || shape.signals_dq));
    if (shape.signals_dq) out->reduced = layout_take(l, 1 + entries * l->p->hkv, 1, 1, sizeof(uint32_t));
    layout_list(l, &out->keys, shape, true);
}

uint64_t fxa__cuda_buffers_make(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                                const fxa__cuda_program *program, const fxa__problem *p, fxa__carver c,
                                fxa__cuda_buffers *out) {
    layout l = {c, self, choice, program, &p->in, out, p->in.flags & FXA_VARLEN};
    *out = (fxa__cuda_buffers){.zero = NULL};
    int64_t pad = fxa__round_up(p->in.sq, FXA_PAD_ROWS);
    int64_t rows = l.packed ? (p->in.total_q / FXA_PAD_ROWS + p->in.b) * FXA_PAD_ROWS : pad * p->in.b;
    if (pad > INT32_MAX || rows > INT32_MAX) return UINT64_MAX;
    out->q_pad = (int32_t)pad;
    out->pad_rows = (int32_t)rows;
    layout_zeroes(&l);
    for (int side = 0; program->switches.pack_operands && side < 2; side++)
        if (out->operand[side].node >= 0) layout_words_take(&l, side);
    layout_diagonal(&l);
    layout_ranges(&l);
    if (layout_is_staged(&l, FXA_SLOT_SINKS)) out->sink = layout_take(&l, p->in.hq, 1, 1, sizeof(float));
    if (layout_has(&l, FXA__CUDA_DECODE))
        layout_decode(&l);
    else if (layout_by_queries(&l))
        layout_list(&l, &out->queries, layout_query_shape(&l), false);
    bool forward = p->in.pass == FXA_FORWARD;
    layout_spare(&l);
    for (int axis = 0; choice->traits.dropout == 2 && axis < FXA__CUDA_AXES; axis++)
        out->coordinates[axis] = layout_take(&l, fxa__cuda_coordinate_count(&p->in, axis), 1, 1, sizeof(int));
    if ((forward && !(p->in.flags & FXA_RETURN_LSE)) || layout_is_staged(&l, FXA_SLOT_LSE))
        out->lse = layout_take(&l, p->in.hq, l.packed ? p->in.total_q : p->in.b * p->in.sq, 1, sizeof(float));
    if (!forward) layout_backward(&l);
    return l.c.failed ? UINT64_MAX : (uint64_t)l.c.used;
}

uint64_t fxa__cuda_workspace(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                             const fxa__cuda_program *program, const fxa__problem *p) {
    fxa__cuda_buffers at;
    return fxa__cuda_buffers_make(self, choice, program, p, fxa__carver_make(NULL), &at);
}
