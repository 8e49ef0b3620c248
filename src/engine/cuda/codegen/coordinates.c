/* SPDX-License-Identifier: Apache-2.0
 *
 * Substitutes coordinates. Kernels compute local indices b, h, q, k, by which Q and K are stored, and lengths of batch
 * entries. If the problem maps these to other coordinates (by index maps, or as a shard of a larger problem), this pass
 * replaces inputs of the program:
 * - b, h, q or k becomes base + step * (local index), or a load of a table, each plus an offset that a run may pass.
 * - q_row and k_row, the inputs for local indices, become the local q and k.
 * Tables and offsets become int tensors of the program. fxa__cuda_origin says where a run has the data of each tensor.
 */
#include "passes.h"

#include "../../../lower/copy_outputs.h"
#include "../../../problem/geometry.h"
#include "../../../program/build.h"

typedef struct coords {
    const cuda_added *added;
    const fxa_problem *p;
    fxa_builder *b;
} coords;

/* Returns true if an index map is not the identity. */
static bool coords_is_map(const fxa_index_map *m) {
    return m->kind != FXA_MAP_AFFINE || m->base != 0 || (m->step != 0 && m->step != 1) || m->has_offset;
}

/* Returns true if b, h, q or k of the score program differs from the local index. */
static bool coords_is_mapped(const fxa_problem *p) {
    bool maps =
        coords_is_map(&p->map_b) || coords_is_map(&p->map_h) || coords_is_map(&p->map_q) || coords_is_map(&p->map_k);
    return maps || fxa__rows_are_aligned(p) || (p->flags & FXA_Q_START);
}

/* Returns true if the score program reads local indices and lengths, so that nothing is substituted. */
static bool coords_are_local(const fxa_problem *p) {
    return !coords_is_mapped(p) && !p->global_q_len && !p->global_k_len &&
           (!p->global_heads || p->global_heads == p->hq);
}

bool fxa__cuda_has_mapped_coordinates(const fxa_problem *p) { return coords_is_mapped(p); }

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Returns the load of element `index` of the int32 array that a run passes as `slot`. */
static fxa_value coords_load(coords *c, fxa_slot slot, fxa_value index) {
    return fxa_builder_load(c->b, fxa_builder_tensor(c->b, c->added->slot[slot], FXA_I32, 1), &index, 1);
}

static fxa_value coords_int(coords *c, int64_t x) { return fxa_builder_int(c->b, (int32_t)(uint32_t)(uint64_t)x); }

static fxa_value coords_add(coords *c, fxa_value x, fxa_value y) { return fxa_builder_op2(c->b, FXA_OP_ADD, x, y); }

/* Returns base + step * (i - begin); a step of 0 counts as 1. */
static fxa_value coords_affine(coords *c, fxa_value i, int64_t begin, int64_t base, int64_t step) {
    fxa_value from = coords_add(c, i, coords_int(c, -begin));
    fxa_value add = coords_int(c, base);
    return coords_add(c, fxa_builder_op2(c->b, FXA_OP_MUL, from, coords_int(c, step ? step : 1)), add);
}

static fxa_value coords_map(coords *c, const fxa_index_map *m, int axis, fxa_value i) {
    fxa_value x = i;
    if (m->kind == FXA_MAP_TABLE)
        x = coords_load(c, (fxa_slot)(FXA_SLOT_MAP_B + axis), i);
    else if (m->kind == FXA_MAP_AFFINE)
        x = coords_affine(c, i, 0, m->base, m->step);
    else
        for (uint32_t s = 0; s < m->n_segments; s++) {
            const fxa_segment *g = &m->segment[s];
            fxa_value here = coords_affine(c, i, g->begin, g->base, g->step);
            fxa_value inside = fxa_builder_op2(c->b, FXA_OP_GE, i, coords_int(c, g->begin));
            x = s == 0 ? here : fxa_builder_op(c->b, FXA_OP_SELECT, (const fxa_value[]){inside, here, x}, 3);
        }
    if (m->has_offset) x = coords_add(c, x, coords_load(c, (fxa_slot)(FXA_SLOT_OFFSET_B + axis), coords_int(c, 0)));
    return x;
}

static fxa_value coords_length(coords *c, fxa_input which, int64_t given) {
    return given ? coords_int(c, given) : fxa_builder_input(c->b, which);
}

/* Returns the expression that replaces an input of the program; -1 = the input stays. */
static fxa_value coords_of(coords *c, fxa_input input) {
    const fxa_problem *p = c->p;
    const fxa_index_map *maps[] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    static const fxa_input axes[] = {FXA_INPUT_B, FXA_INPUT_H, FXA_INPUT_Q, FXA_INPUT_K};
    if (input == FXA_INPUT_Q_LEN && p->global_q_len) return coords_int(c, p->global_q_len);
    if (input == FXA_INPUT_K_LEN && p->global_k_len) return coords_int(c, p->global_k_len);
    if (input == FXA_INPUT_HEADS && p->global_heads) return coords_int(c, p->global_heads);
    if (input == FXA_INPUT_Q_ROW) return fxa_builder_input(c->b, FXA_INPUT_Q);
    if (input == FXA_INPUT_K_ROW) return fxa_builder_input(c->b, FXA_INPUT_K);
    for (int axis = 0; axis < 4; axis++) {
        if (input != axes[axis]) continue;
        fxa_value x = coords_map(c, maps[axis], axis, fxa_builder_input(c->b, input));
        if (input != FXA_INPUT_Q) return x;
        if (p->flags & FXA_Q_START)
            x = coords_add(c, x, coords_load(c, FXA_SLOT_Q_START, fxa_builder_input(c->b, FXA_INPUT_B)));
        if (fxa__rows_are_aligned(p)) {
            fxa_value k_len = coords_length(c, FXA_INPUT_K_LEN, p->global_k_len);
            fxa_value q_len = coords_length(c, FXA_INPUT_Q_LEN, p->global_q_len);
            x = coords_add(c, x, fxa_builder_op2(c->b, FXA_OP_SUB, k_len, q_len));
        }
        return x;
    }
    return -1;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* Returns the input whose bit is `bits`; -1 = `bits` is not one bit. */
static int32_t coords_single(uint32_t bits) {
    for (int32_t i = 0; i < FXA_INPUT_COUNT; i++)
        if (bits == 1u << i) return i;
    return -1;
}

static fxa_status coords_build(fxa__host *host, coords *c, const fxa_program *program, fxa_value *given,
                               fxa_program **out, fxa_error *err) {
    size_t n = (size_t)program->n_nodes;
    FXA_TRY(fxa__builder_new(host, (fxa_program_kind)program->kind, &c->b, err));
    fxa__builder_set_limit(c->b, 4 * FXA__MAX_DERIVED_NODES);
    for (size_t i = 0; i < n; i++) {
        int32_t input = coords_single(fxa__node_input(&program->nodes[i]));
        given[i] = input >= 0 ? coords_of(c, (fxa_input)input) : -1;
    }
    if (fxa__builder_import_with(c->b, program, given, given + n))
        fxa__lower_copy_outputs(c->b, program, given + n, UINT32_MAX);
    fxa_status status = fxa_builder_finish(c->b, out, err);
    fxa_builder_destroy(c->b);
    return status;
}

fxa_status fxa__cuda_coordinates_apply(cuda_work *w, fxa_program *program, fxa_program **out, fxa_error *err) {
    coords c = {.added = &w->added, .p = &w->problem->in};
    size_t n = (size_t)program->n_nodes;
    if (coords_are_local(c.p)) {
        fxa_program_retain(program);
        *out = program;
        return FXA_OK;
    }
    fxa_value *given = fxa__alloc_array(w->host, 2 * n, sizeof *given);
    if (!given) return fxa__fail_memory(err, "a program with coordinates of its own");
    fxa_status status = coords_build(w->host, &c, program, given, out, err);
    fxa__free(w->host, given, 2 * n * sizeof *given);
    return status;
}

fxa_status fxa__cuda_substitute_coordinates(cuda_work *w, fxa_error *err) {
    return fxa__cuda_coordinates_apply(w, w->problem->program, &w->config.program, err);
}
