/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the arguments of a launch from the problem, as common/args.h documents them, for cuda_run_fixture.h, which
 * compares every launch of every run with them.
 */
#ifndef FXA_TESTS_CUDA_ARGS_FIXTURE_H
#define FXA_TESTS_CUDA_ARGS_FIXTURE_H

/* A run, as the checks see it. */
typedef struct args_case {
    const fxa__cuda_code *code;
    const fxa_problem *p;
    const fxa__bound_args *bound;
    const struct FxaArgs *a;
    fxa__cuda_unit unit; /* of the kernel */
    int function;
    bool packed, backward;
} args_case;

static int64_t args_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* Rows of an operand: {outer, heads, rows}. Pages that a backward pass has fetched are entries. */
static void args_rows(const args_case *c, fxa_slot slot, int64_t size[3]) {
    const fxa_problem *p = c->p;
    bool keys = slot == FXA_SLOT_K || slot == FXA_SLOT_V || slot == FXA_SLOT_DK || slot == FXA_SLOT_DV;
    bool pages = keys && p->flags & FXA_PAGED;
    size[1] = keys ? p->hkv : p->hq;
    if (pages && !c->backward)
        size[0] = p->n_pages, size[2] = p->page_size;
    else if (c->packed && !pages)
        size[0] = 1, size[2] = keys ? p->total_k : p->total_q;
    else
        size[0] = p->b, size[2] = keys ? p->sk : p->sq;
}

/* An operand is the caller's, with the caller's strides, or lies in the workspace, where rows start at multiples of 8
 * elements and entries of packed ones have no stride. */
static void args_check_operand(const args_case *c, fxa_slot slot, const struct FxaView *view) {
    int64_t d, size[3];
    const fxa_operand *o = fxa__row_operand(c->p, slot, &d);
    bool unwanted = c->backward && ((slot == FXA_SLOT_DK && !(c->p->flags & FXA_GRAD_K)) ||
                                    (slot == FXA_SLOT_DV && !(c->p->flags & FXA_GRAD_V)));
    bool here = unwanted || (c->code->choice.converts && fxa__cuda_is_converted(c->p, slot));
    args_rows(c, slot, size);
    if (here) {
        int64_t s = args_up(d, 8), h = size[2] * s;
        bool inside = (uintptr_t)view->data - (uintptr_t)c->bound->workspace <= c->bound->workspace_size;
        if (!inside || view->s != s || view->h != h || view->b != (size[0] > 1 ? size[1] * h : 0))
            T_FAIL("%s in the workspace: strides %lld, %lld, %lld\n", fxa_slot_name(slot), view->b, view->h, view->s);
    } else if (view->data != c->bound->slot[slot] || view->b != o->stride[0] || view->h != o->stride[1] ||
               view->s != o->stride[2])
        T_FAIL("%s of the caller: strides %lld, %lld, %lld\n", fxa_slot_name(slot), view->b, view->h, view->s);
}

static void args_check_operands(const args_case *c) {
    const struct FxaArgs *a = c->a;
    const struct {
        fxa_slot slot;
        const struct FxaView *view;
    } rows[] = {{FXA_SLOT_Q, &a->q},       {FXA_SLOT_K, &a->k},       {FXA_SLOT_V, &a->v},
                {FXA_SLOT_O, &a->o},       {FXA_SLOT_DO, &a->grad_o}, {FXA_SLOT_DQ, &a->grad_q},
                {FXA_SLOT_DK, &a->grad_k}, {FXA_SLOT_DV, &a->grad_v}};
    for (int i = 0; i < (c->backward ? 8 : 4); i++) args_check_operand(c, rows[i].slot, rows[i].view);
    for (int i = c->backward ? 8 : 4; i < 8; i++) T_CHECK(!rows[i].view->data);
}

/* LSE, its gradient and the row maximum: the caller's, or packed by heads in the workspace. */
static void args_check_rows(const args_case *c) {
    const fxa_problem *p = c->p;
    const struct FxaArgs *a = c->a;
    bool own = (!c->backward && !(p->flags & FXA_RETURN_LSE)) ||
               (c->code->choice.converts && fxa__cuda_is_converted(p, FXA_SLOT_LSE));
    int64_t rows = c->packed ? p->total_q : p->sq, entry = c->packed ? 0 : p->hq * p->sq;
    bool maximum = p->flags & FXA_RETURN_ROW_MAX, dlse = p->flags & FXA_READ_DLSE;
    T_CHECK(own || a->lse == c->bound->slot[FXA_SLOT_LSE]);
    T_INT(a->lse_b, own ? entry : p->lse.stride[0]);
    T_INT(a->lse_h, own ? rows : p->lse.stride[1]);
    T_INT(a->lse_s, own ? 1 : p->lse.stride[2]);
    T_CHECK((const void *)a->grad_lse == (dlse ? c->bound->slot[FXA_SLOT_DLSE] : NULL));
    T_INT(a->grad_lse_b, dlse ? p->dlse.stride[0] : 0);
    T_INT(a->grad_lse_h, dlse ? p->dlse.stride[1] : 0);
    T_INT(a->grad_lse_s, dlse ? p->dlse.stride[2] : 0);
    T_CHECK(a->row_max == (maximum ? c->bound->slot[FXA_SLOT_ROW_MAX] : NULL));
    T_INT(a->max_b, maximum ? p->row_max.stride[0] : 0);
    T_INT(a->max_h, maximum ? p->row_max.stride[1] : 0);
    T_INT(a->max_s, maximum ? p->row_max.stride[2] : 0);
}

/* Lengths, offsets and pages: those of the problem, and nothing else. */
static void args_check_tables(const args_case *c) {
    const fxa_problem *p = c->p;
    const struct FxaArgs *a = c->a;
    void *const *slot = c->bound->slot;
    bool paged = p->flags & FXA_PAGED;
    T_CHECK((const void *)a->q_lens == slot[FXA_SLOT_Q_LENGTHS] && (const void *)a->k_lens == slot[FXA_SLOT_K_LENGTHS]);
    T_CHECK((const void *)a->q_starts == slot[FXA_SLOT_CU_Q]);
    T_CHECK((const void *)a->k_starts == (paged ? NULL : slot[FXA_SLOT_CU_K]));
    T_CHECK((const void *)a->pages == (paged ? slot[FXA_SLOT_PAGES] : NULL));
    T_INT(a->pages_b, paged ? (p->sk + p->page_size - 1) / p->page_size : 0);
    T_INT(a->page_size, paged ? p->page_size : 0);
    T_INT(a->n_pages, paged ? p->n_pages : 0);
}

/* ---- Of the program ---------------------------------------------------------------------------------------------- */

/* Returns the inputs that a node reads, as bits of fxa_input. */
static uint32_t args_inputs(const fxa_program *p, int32_t node) {
    const fxa__node *n = &p->nodes[node];
    uint32_t bits = n->op == FXA_OP_INPUT ? 1u << n->imm : 0;
    for (int i = 0; i < n->n_args; i++) bits |= args_inputs(p, n->arg[i]);
    return bits;
}

static bool args_reads(uint32_t inputs, fxa_input input) { return inputs >> input & 1; }

static bool args_differ_by_entry(const args_case *c, uint32_t inputs) {
    bool lengths = args_reads(inputs, FXA_INPUT_Q_LEN) || args_reads(inputs, FXA_INPUT_K_LEN);
    return args_reads(inputs, FXA_INPUT_B) || (lengths && c->code->choice.traits.varlen);
}

/* Numbers of the text: constants, the caller's params, the scale, above 0 where it goes into the unit. */
static void args_check_numbers(const args_case *c) {
    const fxa__cuda_program *g = &c->code->program;
    bool memory = c->p->flags & FXA_SCALARS_IN_MEMORY;
    double scale = c->bound->scale;
    if (c->code->choice.finite_factors) scale = scale == 0 ? 1 : fabs(scale);
    for (int32_t i = 0, at[2] = {0, 0}; i < g->program->n_params; i++) {
        int32_t from = g->params[i].source;
        double x = from == FXA__CUDA_SCALE      ? scale
                   : from >= 0                  ? c->bound->params[from]
                   : from == FXA__CUDA_CONSTANT ? (c->bound->constants ? c->bound->constants[i] : g->params[i].value)
                                                : c->bound->bprop_params[FXA__CUDA_BPROP - from];
        if (memory && (from >= 0 || from == FXA__CUDA_SCALE)) x = 0; /* kernels read it from memory */
        if (g->program->params[i].type == FXA_FLOAT)
            T_NEAR(c->a->f[at[0]++], (float)x, 0);
        else
            T_INT(c->a->i[at[1]++], (int)x);
    }
    T_CHECK((const void *)c->a->scalars.scale == (memory ? c->bound->slot[FXA_SLOT_SCALE] : NULL));
    T_CHECK((const void *)c->a->scalars.params == (memory ? c->bound->slot[FXA_SLOT_PARAMS] : NULL));
    T_CHECK((const void *)c->a->scalars.seed == (memory ? c->bound->slot[FXA_SLOT_SEED] : NULL));
    bool finish =
        c->unit == FXA__CUDA_PREPOST && c->function == FXA__CUDA_POSTPROCESS; /* products are turned already */
    T_NEAR(c->a->scale, finish && c->a->turned ? (float)scale : (float)c->bound->scale, 0);
    T_NEAR(c->a->scale_log2, (float)(scale * 1.4426950408889634074), 0);
    bool below = c->code->choice.finite_factors && c->bound->scale <= 0;
    T_INT(c->a->turned, !below ? 0 : c->bound->scale == 0 ? 2 : 1);
}

/* Captured tensors of the caller, those of its backward program, then arrays of coordinates. */
static void args_check_tensors(const args_case *c) {
    const fxa_program *program = c->code->program.program;
    const int64_t axes[] = {c->p->b, c->p->hq, c->p->sq, c->p->sk};
    for (int32_t i = 0; i < program->n_tensors; i++) {
        const struct FxaCapture *t = &c->a->tensor[i];
        int32_t caller = fxa_program_tensor_find(c->p->program, program->tensors[i].name);
        int32_t slot = c->code->program.source[i].index;
        bool map = slot >= FXA_SLOT_MAP_B && slot <= FXA_SLOT_MAP_K;
        bool own = c->code->program.source[i].kind == FXA__CUDA_FROM_BPROP;
        const fxa_view *v = caller >= 0 ? &c->bound->tensors[caller] : own ? &c->bound->bprop_tensors[slot] : NULL;
        T_CHECK(t->data == (v ? v->data : c->bound->slot[slot]));
        T_INT(t->rank, v ? v->rank : 1);
        for (int d = 0; d < t->rank; d++) {
            int64_t size = v ? v->size[d] : map ? axes[slot - FXA_SLOT_MAP_B] : slot == FXA_SLOT_Q_START ? c->p->b : 1;
            T_INT(t->size[d], size < INT32_MAX ? size : INT32_MAX);
            T_INT(t->stride[d], v ? v->stride[d] : 1);
        }
    }
}

/* The tensor that tiles are copied from: strides of b and h where its load has them, of q, and 1. */
static void args_check_dense(const args_case *c) {
    const fxa__cuda_program *g = &c->code->program;
    long long stride[FXA_INPUT_COUNT] = {0};
    const fxa__node *load = g->operands.dense >= 0 ? &g->program->nodes[g->operands.dense] : NULL;
    for (int d = 0; load && d < load->n_args; d++)
        stride[g->program->nodes[load->arg[d]].imm] = c->a->tensor[load->imm].stride[d];
    T_CHECK(c->a->dense.data == (load ? c->a->tensor[load->imm].data : NULL));
    T_INT(c->a->dense.b, stride[FXA_INPUT_B]);
    T_INT(c->a->dense.h, stride[FXA_INPUT_H]);
    T_INT(c->a->dense.s, stride[FXA_INPUT_Q]);
}

/* Words of queries or keys: rows for each head and entry by which the load differs. */
static void args_check_words(const args_case *c, int32_t node, int64_t length, const struct FxaOperand *v) {
    uint32_t inputs = node >= 0 ? args_inputs(c->code->program.program, node) : 0;
    int64_t pitch = args_up(length, 128) + 128, heads = args_reads(inputs, FXA_INPUT_H) ? c->p->hq : 1;
    if (!c->code->program.switches.pack_operands) {
        T_CHECK(!v->data && !v->ranges && !v->b && !v->h && !v->ranges_b && !v->ranges_h);
        return;
    }
    T_INT(v->b, args_reads(inputs, FXA_INPUT_B) && c->p->b > 1 ? heads * pitch : 0);
    T_INT(v->h, heads > 1 ? pitch : 0);
    T_INT(v->ranges_b, v->b / 64);
    T_INT(v->ranges_h, v->h / 64);
}

/* Numbers of distances: a row for each head and entry by which they differ. */
static void args_check_diagonal(const args_case *c) {
    const fxa__cuda_program *g = &c->code->program;
    const struct FxaDiagonal *row = &c->a->diagonal;
    uint32_t inputs = g->operands.diagonal >= 0 ? args_inputs(g->program, g->operands.diagonal) : 0;
    int64_t zero = args_up(c->p->sk, 128) + 127, pitch = args_up(zero + args_up(c->p->sq, 192) + 256, 4);
    int64_t heads = args_reads(inputs, FXA_INPUT_H) ? c->p->hq : 1;
    T_INT(row->data != NULL, g->operands.diagonal >= 0);
    T_INT(row->zero, g->operands.diagonal >= 0 ? zero : 0);
    T_INT(row->b, args_differ_by_entry(c, inputs) && c->p->b > 1 ? heads * pitch : 0);
    T_INT(row->h, heads > 1 ? pitch : 0);
}

/* Gradients of pairs, diagonals and heads: rows of warps, of key tiles or of all of them, of pairs. */
static void args_check_gradients(const args_case *c) {
    const fxa__cuda_program *g = &c->code->program;
    const struct FxaArgs *a = c->a;
    const struct FxaShape *shape = &c->code->unit[FXA__CUDA_BACKWARD].shape;
    int64_t tiles = c->backward ? (c->p->sk + shape->k_rows - 1) / shape->k_rows : 0, heads = c->p->hq;
    int64_t sums = g->switches.grad_sums * tiles * shape->sum_rows, size = args_up(c->p->sq, 128) + 128;
    bool one = g->gradients.deterministic || tiles > 32, row = g->switches.grad_diagonal,
         dense = g->switches.grad_dense;
    if (one) tiles = 1, size = c->p->sq + c->p->sk;
    T_INT(a->sums.b, heads * sums);
    T_INT(a->sums.h, sums);
    T_INT(a->grad_diagonal.b, row ? heads * tiles * size : 0);
    T_INT(a->grad_diagonal.h, row ? tiles * size : 0);
    T_INT(a->grad_diagonal.n, row && !one ? size : 0);
    T_INT(a->grad_diagonal.size, row ? size : 0);
    T_INT(a->grad_diagonal.zero, !row ? 0 : one ? c->p->sk - 1 : shape->k_rows - 1);
    T_INT(a->grad_diagonal.zero_step, row && !one ? shape->k_rows : 0);
    const fxa_view *to = dense ? &c->bound->dtensors[g->source[g->program->nodes[g->operands.dense].imm].index] : NULL;
    bool direct = to && to->data && a->grad_dense.data == to->data;
    int64_t pitch = args_up(c->p->sk, 8);
    T_INT(a->grad_dense.s, !dense ? 0 : direct ? to->stride[2] : pitch);
    T_INT(a->grad_dense.h, !dense ? 0 : direct ? to->stride[1] : c->p->sq * pitch);
    T_INT(a->grad_dense.b, !dense ? 0 : direct ? to->stride[0] : heads * c->p->sq * pitch);
}

/* ---- Of kernels that go by tiles --------------------------------------------------------------------------------- */

static bool args_divides(struct FxaDivisor by, int64_t n) {
    int64_t most = (INT64_C(1) << 31) - 1, last = most / n * n - 1,
            some[] = {0, n - 1, n, 7 * n - 1, 7 * n, last, most};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        if (some[i] < 0 || some[i] > most) continue;
        uint64_t product = 2 * (uint64_t)some[i] * by.factor; /* quotient() of common/tile_scheduler.cuh */
        if ((int64_t)((product >> 32) >> by.shift) != some[i] / n) return false;
    }
    return true;
}

/* The list of the tiles that a query tile or key tile visits. */
static void args_check_list(const args_case *c, int64_t rows, int64_t columns) {
    const fxa__cuda_program *g = &c->code->program;
    int32_t mask = fxa__program_output(g->program, FXA__OUT_MASK);
    uint32_t inputs = args_inputs(g->program, mask);
    bool listed = g->switches.mask && c->p->sq && c->p->sk, heads = args_reads(inputs, FXA_INPUT_H) && c->p->hq > 1;
    bool entries = (c->code->choice.traits.varlen || args_differ_by_entry(c, inputs)) && c->p->b > 1;
    int64_t many = args_reads(inputs, FXA_INPUT_H) ? c->p->hq : 1;
    T_INT(c->a->list.items != NULL, listed);
    T_INT(c->a->list.counts != NULL, listed);
    T_INT(c->a->list.pitch, !listed ? 0 : columns < 2048 ? columns : 2048);
    T_INT(c->a->list.h_rows, listed && heads ? rows : 0);
    T_INT(c->a->list.b_rows, listed && entries ? rows * many : 0);
}

/* Query tiles in the order of common/tile_scheduler.cuh: with a mask, as many heads together as stay in half of 32
 * MB. */
static void args_check_order(const args_case *c, int32_t q_rows) {
    const struct FxaArgs *a = c->a;
    const fxa_problem *p = c->p;
    int64_t heads = (c->packed ? 1 : p->b) * p->hq, bytes = 2 * p->sk * (p->d_qk + p->d_v), section = 1;
    int64_t tiles = c->packed ? p->total_q / q_rows + p->b : (p->sq + q_rows - 1) / q_rows;
    if (c->code->program.switches.mask)
        while (section < heads && 2 * section * bytes <= 32 << 20) section *= 2;
    if (section > heads) section = heads;
    T_INT(a->q_tiles, tiles);
    T_INT(a->tiles, tiles * heads);
    T_INT(a->section, section);
    T_INT(a->reverse, c->code->program.switches.mask);
    T_CHECK(section < 1 || tiles < 1 || args_divides(a->by_order, section * tiles));
    T_CHECK(section < 1 || args_divides(a->by_section, section));
    T_CHECK(section < 1 || heads % section == 0 || args_divides(a->by_last, heads % section));
    T_CHECK(args_divides(a->by_heads, p->hq) && args_divides(a->by_group, p->hq / p->hkv));
}

static void args_check_decode(const args_case *c, int32_t rows) {
    const struct FxaArgs *a = c->a;
    int64_t group = c->p->hq / c->p->hkv;
    T_CHECK(a->splits > 0 && args_divides(a->by_splits, a->splits));
    T_CHECK(a->run > 0 && args_divides(a->by_shares, (a->splits + a->run - 1) / a->run));
    T_CHECK(args_divides(a->by_row_groups, (group * c->p->sq + rows - 1) / rows));
    T_CHECK(args_divides(a->by_kv_heads, c->p->hkv) && args_divides(a->by_group, group));
}

static void args_check_tiles(const args_case *c) {
    const struct FxaShape *shape = &c->code->unit[c->unit].shape;
    int64_t q = shape->q_rows ? (c->p->sq + shape->q_rows - 1) / shape->q_rows : 0;
    int64_t k = shape->k_rows ? (c->p->sk + shape->k_rows - 1) / shape->k_rows : 0;
    bool queries = c->unit == FXA__CUDA_FORWARD || c->unit == FXA__CUDA_DQ ||
                   (c->unit == FXA__CUDA_BACKWARD && c->function == FXA__CUDA_SIMT_DQ);
    if (queries) args_check_list(c, q, k);
    if (queries) args_check_order(c, shape->q_rows);
    if (c->unit == FXA__CUDA_BACKWARD && !queries) args_check_list(c, k, q);
    if (c->unit == FXA__CUDA_DECODE) args_check_list(c, 1, k);
    if (c->unit == FXA__CUDA_DECODE) args_check_decode(c, shape->q_rows);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static void args_check_sizes(const args_case *c) {
    const fxa_problem *p = c->p;
    const struct FxaArgs *a = c->a;
    int64_t pad = args_up(p->sq, 128), rows = c->packed ? (p->total_q / 128 + p->b) * 128 : pad * p->b;
    T_INT(a->batch, p->b);
    T_INT(a->heads, p->hq);
    T_INT(a->kv_heads, p->hkv);
    T_INT(a->group, p->hq / p->hkv);
    T_INT(a->d, p->d_qk);
    T_INT(a->dv, p->d_v);
    T_INT(a->q_len, p->sq);
    T_INT(a->k_len, p->sk);
    T_INT(a->q_pad, pad);
    T_INT(a->q_total, c->packed ? p->total_q : 0);
    T_INT(a->k_total, c->packed ? p->total_k : 0);
    T_INT(a->pad_rows,
          c->backward && p->b == 0 ? 0 : rows); /* without batch entries, no sequence owns the packed rows */
}

static void args_check_dropout(const args_case *c) {
    const struct FxaArgs *a = c->a;
    bool drops = c->p->flags & FXA_DROPOUT;
    T_INT(a->seed[0], drops ? (uint32_t)c->bound->seed : 0);
    T_INT(a->seed[1], drops ? (uint32_t)(c->bound->seed >> 32) : 0);
    T_INT(a->drop_below, drops ? (uint32_t)(c->p->dropout_p * 4294967296.0) : 0);
    T_NEAR(a->keep_inverse, drops ? (float)(1 / (1 - c->p->dropout_p)) : 0, 0);
    T_INT(a->place_q != NULL, c->code->choice.traits.dropout == 2);
}

static void args_check(const args_case *c) {
    args_check_sizes(c);
    args_check_operands(c);
    args_check_rows(c);
    args_check_tables(c);
    args_check_numbers(c);
    args_check_tensors(c);
    args_check_dense(c);
    args_check_words(c, c->code->program.operands.q, c->p->sq, &c->a->q_vector);
    args_check_words(c, c->code->program.operands.k, c->p->sk, &c->a->k_vector);
    args_check_diagonal(c);
    args_check_dropout(c);
    if (c->unit == FXA__CUDA_BACKWARD || c->unit == FXA__CUDA_CAPTURED_GRADS) args_check_gradients(c);
    args_check_tiles(c);
}

#endif
