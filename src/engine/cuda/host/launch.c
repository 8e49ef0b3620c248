/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches that forward and backward use: any kernel of a compiled source file; the kernels before the attention
 * kernels, which clear buffers, pack captured tensors and write tables; tile lists; and attention kernels over query
 * tiles. docs/cuda-kernels.md ("A run") has the order of launches.
 */
#include "call.h"

#include "../../../base/num.h"

/* Maximum number of queries or keys for which one launch both packs operands and writes the tile list. */
enum { LAUNCH_MAX_PACKED = 4096 };

fxa_status fxa__cuda_launch(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid, int32_t threads,
                            void **params) {
    const fxa__cuda_module *m = &c->code->unit[unit];
    if (grid.x < 1 || grid.y < 1 || grid.z < 1) return FXA_OK; /* the problem is empty */
    int32_t shared = threads ? 0 : m->shape.shared_bytes;
    FXA__ASSERT(c->code->choice.units >> unit & 1u);
    FXA__ASSERT(grid.x <= INT32_MAX && grid.y <= UINT16_MAX && grid.z <= UINT16_MAX);
    FXA__ASSERT((threads ? threads : m->shape.threads) > 0 && (threads ? threads : m->shape.threads) <= 1024);
    if (!m->function[function]) /* possible only if the cubin was loaded from the bytes of a saved plan */
        return fxa__fail(c->err, FXA_E_ENGINE, "the plan's code lacks a kernel that its problem needs");
    fxa__gpu_dim dim = {(unsigned)grid.x, (unsigned)grid.y, (unsigned)grid.z};
    int status =
        fxa__gpu_start(&c->self->gpu, m->function[function], dim, (unsigned)(threads ? threads : m->shape.threads),
                       (unsigned)shared, c->follows_kernel, c->bound->stream, params);
    c->follows_kernel = true;
    return fxa__gpu_status(&c->self->gpu, status, "cuLaunchKernel", c->err);
}

fxa_status fxa__cuda_clear(fxa__cuda_call *c, void *at, size_t words) {
    if (!words) return FXA_OK;
    c->follows_kernel = false;
    int status = c->self->gpu.driver.fill((uintptr_t)at, 0, words, c->bound->stream);
    return fxa__gpu_status(&c->self->gpu, status, "cuMemsetD32Async", c->err);
}

fxa_status fxa__cuda_launch_main(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid) {
    bool maps = c->code->unit[unit].shape.store_rows;
    void *params[2] = {maps ? (void *)&c->maps : (void *)&c->a, &c->a};
    return fxa__cuda_launch(c, unit, function, grid, 0, params);
}

fxa_status fxa__cuda_launch_query_tiles(fxa__cuda_call *c, fxa__cuda_unit unit, int function) {
    const fxa_problem *p = &c->p->in;
    bool packed = p->flags & FXA_VARLEN;
    fxa__cuda_grid grid = {c->a.q_tiles, p->hq, packed ? 1 : p->b};
    if (c->code->unit[unit].shape.persistent)
        grid = (fxa__cuda_grid){fxa__min_i64(c->a.tiles, c->self->processors), 1, 1};
    return fxa__cuda_launch_main(c, unit, function, grid);
}

/* Returns how the kernel fxa_operands_pack packs a captured tensor with a value per query or per key: the data of the
 * tensor, and strides of b, h and q or k. */
static struct FxaPackedOperand launch_words_of(const fxa__cuda_call *c, const fxa__cuda_packed_operand *w) {
    const fxa_program *program = c->code->program.program;
    if (!c->code->program.switches.pack_operands || w->node < 0) return (struct FxaPackedOperand){.to = NULL};
    const fxa__node *load = &program->nodes[w->node];
    const fxa_view *v = &c->tensors[load->imm];
    int kind = fxa__cuda_operand_kind(v->dtype);
    FXA__ASSERT(load->op == FXA_OP_LOAD && kind != FXA_WORD_NONE && w->length <= w->pitch);
    struct FxaPackedOperand out = {v->data, 0, 0, 0, w->data, w->ranges, w->pitch, (int)w->length, kind};
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        *(input == 1u << FXA_INPUT_B ? &out.b : input == 1u << FXA_INPUT_H ? &out.h : &out.s) = v->stride[d];
    }
    return out;
}

static fxa_status launch_words(fxa__cuda_call *c, const fxa__cuda_packed_operand *w) {
    struct FxaPackedOperand words = launch_words_of(c, w);
    void *params[] = {&words};
    if (!words.to) return FXA_OK;
    return fxa__cuda_launch(
        c, FXA__CUDA_TILE_LISTS, FXA__CUDA_PACK_OPERANDS,
        (fxa__cuda_grid){fxa__div_up(w->pitch, FXA_LIST_WARPS * FXA_RANGE_ROWS), w->heads, w->batch},
        FXA_HELPER_THREADS, params);
}

/* Returns true if one launch packs the operands (c->at.operand) and writes the tile list: list and operands have the
 * same heads and batch entries, and the operands are short enough for one CTA per (b, h). */
static bool launch_is_joined(const fxa__cuda_call *c, const fxa__cuda_tile_list *list) {
    bool any = false;
    if (!c->code->program.switches.pack_operands || !list || !list->items || list->is_written) return false;
    for (int side = 0; side < 2; side++) {
        const fxa__cuda_packed_operand *w = &c->at.operand[side];
        if (w->node < 0) continue;
        any = true;
        if (w->heads != list->heads || w->batch != list->batch || w->length > LAUNCH_MAX_PACKED) return false;
    }
    return any;
}

static fxa_status launch_range(fxa__cuda_call *c, int32_t i) {
    const struct fxa__cuda_range *r = &c->code->program.operands.ranges[i];
    struct FxaCapture *t = &c->a.tensor[r->tensor];
    int axis = r->axis, kind = fxa__cuda_operand_kind(c->tensors[r->tensor].dtype);
    void *to = c->at.ranges[i], *params[] = {t, &axis, &kind, &to};
    int64_t blocks = fxa__div_up(t->size[axis], FXA_RANGE_ROWS);
    for (int d = 0; d < t->rank; d++) blocks *= d == axis ? 1 : t->size[d];
    if (!to) return FXA_OK;
    FXA__ASSERT(axis < t->rank && kind != FXA_WORD_NONE);
    return fxa__cuda_launch(c, FXA__CUDA_TILE_LISTS, FXA__CUDA_RANGE_TABLE,
                            (fxa__cuda_grid){fxa__div_up(blocks, FXA_LIST_WARPS), 1, 1}, FXA_HELPER_THREADS, params);
}

fxa_status fxa__cuda_diagonal_write(fxa__cuda_call *c, const fxa__cuda_diagonal_rows *r) {
    float *to = r->data;
    long long pitch = r->pitch;
    int zero = r->zero;
    void *params[] = {&c->a, &to, &pitch, &zero};
    if (!r->pitch || r->is_written) return FXA_OK;
    return fxa__cuda_launch(c, FXA__CUDA_DIAGONAL_TABLE, FXA__CUDA_DIAGONAL_FILL,
                            (fxa__cuda_grid){fxa__div_up(pitch, FXA_HELPER_THREADS), r->heads, r->batch},
                            FXA_HELPER_THREADS, params);
}

fxa_status fxa__cuda_prepasses(fxa__cuda_call *c, const fxa__cuda_tile_list *first) {
    FXA_TRY(fxa__cuda_clear(c, c->at.zero, c->at.zero_words));
    FXA__ASSERT(!c->packing_due);
    c->packing_due = launch_is_joined(c, first);
    for (int side = 0; !c->packing_due && side < 2; side++) FXA_TRY(launch_words(c, &c->at.operand[side]));
    for (int32_t i = 0; i < c->code->program.operands.n_ranges; i++) FXA_TRY(launch_range(c, i));
    return fxa__cuda_diagonal_write(c, &c->at.diagonal);
}

fxa_status fxa__cuda_tile_list_write(fxa__cuda_call *c, const fxa__cuda_tile_list *list) {
    struct FxaListShape cut = list->cut;
    int32_t *items = list->items, *counts = list->counts;
    long long pitch = list->pitch;
    struct FxaPackedOperands words = {{{.to = NULL}}};
    void *params[] = {&c->a, &cut, &items, &counts, &pitch, &words};
    bool due = c->packing_due;
    if (!items || list->is_written) return FXA_OK;
    for (int side = 0; due && side < 2; side++) words.side[side] = launch_words_of(c, &c->at.operand[side]);
    c->packing_due = false;
    int64_t grid = due ? 1 : fxa__div_up(cut.rows, FXA_LIST_WARPS);
    return fxa__cuda_launch(c, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES,
                            (fxa__cuda_grid){grid, list->heads, list->batch},
                            due ? FXA_CUDA_LIST_THREADS(c->code->choice.traits.varlen) : FXA_HELPER_THREADS, params);
}
