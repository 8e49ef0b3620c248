/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of params and captured tensors: arguments of the backward kernels that sum them (common/args.h), and the
 * launches that store the sums afterwards. Gradients of tensors are first summed in contiguous arrays of the workspace
 * (common/captured_grads.cu), then stored in the caller's type and strides. The gradient of the dense tensor [b, h, q,
 * k] (an element per pair) is written by the backward kernel, in the type of Q, K and V.
 */
#include "call.h"
#include "recipes.h"

#include "../../../base/num.h"

enum { CAPTURED_MAX_BLOCKS = 1024 };

/* Returns the index of the dense tensor (captured, an element per pair (q, k)) in the problem's program. */
static int32_t captured_dense_tensor(const fxa__cuda_program *g) {
    FXA__ASSERT(g->operands.dense >= 0 && g->program->nodes[g->operands.dense].op == FXA_OP_LOAD);
    return fxa__cuda_caller_tensor(g, g->program->nodes[g->operands.dense].imm);
}

bool fxa__cuda_is_dense_grad_direct(const fxa__cuda_choice *choice, const fxa__cuda_program *g, const fxa_problem *p) {
    int32_t i = captured_dense_tensor(g);
    const fxa_capture *t = &p->captures[i];
    int64_t step = 1;
    if (g->program->nodes[g->operands.dense].n_args != 4 || t->grad_dtype != (uint32_t)choice->dtype || t->size[3] % 8)
        return false;
    for (int d = 3; d >= 0; d--) {
        if (t->grad_stride[d] != step) return false;
        step *= t->size[d];
    }
    return p->alignment >= 16 && !(p->flags & FXA_ACCUMULATE_DTENSORS);
}

/* Returns true if the backward kernel writes every element of v, the gradient of the dense tensor: the problem has no
 * mask and no lengths, the kernel stores entire tiles, and v has the size [b, h, q, k]. */
static bool captured_all_dense(const fxa__cuda_call *c, const fxa_view *v) {
    const fxa_problem *p = &c->p->in;
    const int64_t all[] = {p->b, p->hq, p->sq, p->sk};
    if (!(c->code->choice.recipe->is & FXA__CUDA_WHOLE_TILES) || c->code->program.switches.mask ||
        c->code->choice.traits.varlen)
        return false;
    for (int d = 0; d < 4; d++)
        if (v->size[d] != all[d]) return false;
    return true;
}

/* Clears the caller's gradient of the dense tensor if some tiles are skipped, hence not written. */
static fxa_status captured_clear_dense(fxa__cuda_call *c) {
    const fxa_view *v = &c->bound->dtensors[captured_dense_tensor(&c->code->program)];
    size_t words = 1;
    if (captured_all_dense(c, v)) return FXA_OK;
    for (int d = 0; d < v->rank; d++) words *= (size_t)v->size[d];
    FXA__ASSERT(words % 2 == 0);
    return fxa__cuda_clear(c, (void *)(uintptr_t)v->data, words / 2);
}

static struct FxaView captured_dense_view(const fxa__cuda_call *c) {
    const fxa__cuda_captured_sums *g = &c->at.captured;
    int64_t pairs = c->p->in.sq * g->pitch;
    if (!g->direct) return (struct FxaView){g->dense, c->p->in.hq * pairs, pairs, g->pitch};
    const fxa_view *v = &c->bound->dtensors[captured_dense_tensor(&c->code->program)];
    return (struct FxaView){(void *)(uintptr_t)v->data, v->stride[0], v->stride[1], v->stride[2]};
}

void fxa__cuda_captured_grads_args(fxa__cuda_call *c) {
    const fxa__cuda_captured_sums *g = &c->at.captured;
    const fxa_problem *p = &c->p->in;
    const fxa__cuda_program *program = &c->code->program;
    const struct FxaShape *shape = &c->code->unit[FXA__CUDA_BACKWARD].shape;
    int64_t row = g->sum_rows * program->switches.grad_sums, part = (int64_t)g->part_rows * g->part_size;
    if (program->switches.grad_sums) c->a.sums = (struct FxaSums){g->sums, p->hq * row, row};
    if (program->switches.grad_diagonal && g->one_row)
        c->a.grad_diagonal =
            (struct FxaDiagonalGrad){g->parts, p->hq * g->part_size, g->part_size, 0, (int)p->sk - 1, 0, g->part_size};
    else if (program->switches.grad_diagonal)
        c->a.grad_diagonal = (struct FxaDiagonalGrad){g->parts,          p->hq * part,  part,        g->part_size,
                                                      shape->k_rows - 1, shape->k_rows, g->part_size};
    if (program->switches.grad_dense) c->a.grad_dense = captured_dense_view(c);
    for (int i = 0; i < FXA_CUDA_TENSORS; i++) c->a.grad_tensor[i] = g->tensor[i];
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static struct FxaSumTargets captured_find(const fxa__cuda_program *g) {
    struct FxaSumTargets to;
    for (int32_t i = 0; i < FXA_CUDA_SUMS; i++) to.param[i] = to.tensor[i] = -1;
    for (int32_t i = 0; i < g->switches.grad_sums; i++) {
        const fxa__output *out = &g->program->outputs[g->gradients.sums[i]];
        if (out->kind == FXA__OUT_DPARAM)
            to.param[i] = g->params[out->slot].source;
        else
            to.tensor[i] = out->slot;
        FXA__ASSERT(to.param[i] >= 0 ? to.param[i] < FXA_MAX_PARAMS
                                     : to.tensor[i] >= 0 && to.tensor[i] < FXA_CUDA_TENSORS);
    }
    return to;
}

/* Clears the gradients of params for which kernels have no sum, because these gradients are always 0. */
static fxa_status captured_no_sums(fxa__cuda_call *c, const struct FxaSumTargets *to) {
    uint64_t left = c->p->in.flags & FXA_ACCUMULATE_DPARAMS ? 0 : c->p->in.param_grads;
    for (int32_t i = 0; i < FXA_CUDA_SUMS; i++)
        if (to->param[i] >= 0) left &= ~(UINT64_C(1) << to->param[i]);
    for (int i = 0; i < FXA_MAX_PARAMS; i++)
        if (left >> i & 1) FXA_TRY(fxa__cuda_clear(c, c->bound->dparams + i, 2));
    return FXA_OK;
}

static fxa_status captured_sums(fxa__cuda_call *c) {
    const fxa__cuda_captured_sums *g = &c->at.captured;
    struct FxaSumTargets to = captured_find(&c->code->program);
    int n = c->code->program.switches.grad_sums, rows = (int)g->sum_rows,
        add = (c->p->in.flags & FXA_ACCUMULATE_DPARAMS) != 0;
    int64_t heads = c->p->in.b * c->p->in.hq;
    double *totals = g->totals, *params = c->bound->dparams;
    struct FxaExact *sums = g->params;
    bool any = false;
    for (int32_t i = 0; i < n; i++) any = any || to.param[i] >= 0;
    FXA_TRY(captured_no_sums(c, &to));
    if (!n) return FXA_OK;
    void *adding[] = {&c->a.sums, &totals, &rows, &n}, *placing[] = {&c->a, &totals, &sums, &to};
    void *ending[] = {&sums, &params, &to, &add};
    FXA_TRY(fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_TOTALS,
                             (fxa__cuda_grid){n, c->p->in.hq, c->p->in.b}, FXA_HELPER_THREADS, adding));
    FXA_TRY(fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_SUMS,
                             (fxa__cuda_grid){fxa__div_up(heads, FXA_HELPER_THREADS), n, 1}, FXA_HELPER_THREADS,
                             placing));
    if (!any) return FXA_OK;
    return fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_PARAMS, (fxa__cuda_grid){1, 1, 1},
                            FXA_GRAD_PARAM_THREADS, ending);
}

/* ---- Diagonals --------------------------------------------------------------------------------------------------- */

static fxa_status captured_diagonal(fxa__cuda_call *c) {
    const fxa__cuda_program *program = &c->code->program;
    const fxa_problem *p = &c->p->in;
    if (!program->switches.grad_diagonal) return FXA_OK;
    int tensor = program->program->nodes[program->operands.diagonal].imm;
    int tiles = c->at.captured.part_rows;
    int size = (int)(p->sq + p->sk - 1), zero = (int)p->sk - 1;
    void *params[] = {&c->a, &tensor, &tiles, &size, &zero};
    return fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_DIAGONAL,
                            (fxa__cuda_grid){fxa__div_up(size, FXA_GRAD_DIAGONAL_ROWS), p->hq, c->at.diagonal.batch},
                            FXA_GRAD_DIAGONAL_ROWS, params);
}

/* ---- To the caller ----------------------------------------------------------------------------------------------- */

/* Returns the caller's gradient of a captured tensor. i: index of the tensor in the problem's program. */
static struct FxaGradTensor captured_target(const fxa__cuda_call *c, int32_t i) {
    FXA__ASSERT(i >= 0 && i < c->p->program->n_tensors && c->p->in.captures[i].grad);
    const fxa_view *v = &c->bound->dtensors[i];
    struct FxaGradTensor to = {.data = (void *)(uintptr_t)v->data, .rank = v->rank, .dtype = (int)v->dtype};
    to.add = (c->p->in.flags & FXA_ACCUMULATE_DTENSORS) != 0;
    for (int d = 0; d < v->rank; d++) to.size[d] = (int)v->size[d], to.stride[d] = v->stride[d];
    return to;
}

static fxa__cuda_grid captured_grid(int64_t count) {
    return (fxa__cuda_grid){fxa__min_i64(fxa__div_up(count, FXA_HELPER_THREADS), CAPTURED_MAX_BLOCKS), 1, 1};
}

static fxa_status captured_store(fxa__cuda_call *c, int32_t i) {
    struct FxaGradTensor to = captured_target(c, fxa__cuda_caller_tensor(&c->code->program, i));
    const float *from = c->at.captured.tensor[i];
    long long count = c->at.captured.count[i];
    int exact = c->code->program.switches.grad_exact >> i & 1;
    void *params[] = {&from, &to, &count, &exact};
    if (!count) return FXA_OK;
    return fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_STORE, captured_grid(count),
                            FXA_HELPER_THREADS, params);
}

/* Stores the gradient of the dense tensor (captured, an element per pair (q, k)) in the caller's memory, from the
 * workspace. Axes of the tensor: b, h, both or neither, then q and k. */
static fxa_status captured_dense(fxa__cuda_call *c) {
    const fxa__cuda_program *g = &c->code->program;
    if (!g->switches.grad_dense || c->at.captured.direct) return FXA_OK;
    const fxa__node *load = &g->program->nodes[g->operands.dense];
    struct FxaGradTensor to = captured_target(c, captured_dense_tensor(g));
    long long count = 1;
    int by[2] = {0, 0};
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&g->program->nodes[load->arg[d]]);
        by[0] |= input == 1u << FXA_INPUT_B;
        by[1] |= input == 1u << FXA_INPUT_H;
        count *= to.size[d];
    }
    void *params[] = {&c->a, &to, &by[0], &by[1], &count};
    return fxa__cuda_launch(c, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_DENSE, captured_grid(count),
                            FXA_HELPER_THREADS, params);
}

fxa_status fxa__cuda_captured_grads_begin(fxa__cuda_call *c) {
    return c->code->program.switches.grad_dense && c->at.captured.direct ? captured_clear_dense(c) : FXA_OK;
}

fxa_status fxa__cuda_captured_grads_store(fxa__cuda_call *c) {
    FXA_TRY(captured_sums(c));
    FXA_TRY(captured_diagonal(c));
    FXA_TRY(captured_dense(c));
    for (int32_t i = 0; i < FXA_CUDA_TENSORS; i++)
        if (c->at.captured.tensor[i]) FXA_TRY(captured_store(c, i));
    return FXA_OK;
}
