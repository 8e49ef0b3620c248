/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout if the coordinates (b, h, q, k) of a pair differ from its indices: because of index maps, of positions of
 * queries (FXA_Q_START), or because the last query is aligned to the last key. The coordinates decide if a pair is
 * dropped, so kernels read them from arrays of the workspace: one array each for b, h and k, and an array for q with a
 * row per batch entry. fxa_coordinates_write (common/convert.cu) writes the arrays before the attention kernels.
 */
#include "call.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../problem/geometry.h"

enum { MOVED_MAX_BLOCKS = 1024, MOVED_Q = 2 };

/* Returns the number of coordinates of an axis: 0 = b, 1 = h, 2 = q, 3 = k. */
int64_t fxa__cuda_coordinate_count(const fxa_problem *p, int axis) {
    const int64_t sizes[FXA__CUDA_AXES] = {p->b, p->hq, p->b * p->sq, p->sk};
    return sizes[axis];
}

/* Returns the arguments of fxa_coordinates_write for an axis: how coordinates follow from local indices. */
static struct FxaCoordinates moved_places(const fxa__cuda_call *c, int axis) {
    const fxa_problem *p = &c->p->in;
    const fxa_index_map *maps[FXA__CUDA_AXES] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k}, *m = maps[axis];
    struct FxaCoordinates x = {.out = c->at.coordinates[axis], .base = m->base, .step = m->step ? m->step : 1};
    x.entries = axis == MOVED_Q ? p->b : 1;
    x.size = axis == MOVED_Q ? p->sq : fxa__cuda_coordinate_count(p, axis);
    if (m->kind == FXA_MAP_TABLE) x.table = c->bound->slot[FXA_SLOT_MAP_B + axis];
    if (m->kind == FXA_MAP_SEGMENTS) x.segments = (int)m->n_segments;
    for (int i = 0; i < x.segments; i++) {
        x.begin[i] = m->segment[i].begin;
        x.from[i] = m->segment[i].base;
        x.by[i] = m->segment[i].step ? m->segment[i].step : 1;
    }
    if (m->has_offset) x.dynamic = c->bound->slot[FXA_SLOT_OFFSET_B + axis];
    if (axis != MOVED_Q) return x;
    if (p->flags & FXA_Q_START) x.shift = c->bound->slot[FXA_SLOT_Q_START];
    x.aligned = fxa__rows_are_aligned(p);
    x.q_len = p->global_q_len;
    x.k_len = p->global_k_len;
    return x;
}

fxa_status fxa__cuda_dropout_coordinates_write(fxa__cuda_call *c) {
    FXA__ASSERT(c->code->choice.traits.dropout == 2);
    for (int axis = 0; axis < FXA__CUDA_AXES; axis++) {
        struct FxaCoordinates x = moved_places(c, axis);
        void *params[] = {&c->a, &x};
        FXA__ASSERT(x.out && x.size * x.entries == fxa__cuda_coordinate_count(&c->p->in, axis));
        int64_t blocks = fxa__min_i64(fxa__div_up(x.size * x.entries, FXA_HELPER_THREADS), MOVED_MAX_BLOCKS);
        FXA_TRY(fxa__cuda_launch(c, FXA__CUDA_CONVERT, FXA__CUDA_WRITE_COORDINATES, (fxa__cuda_grid){blocks, 1, 1},
                                 FXA_HELPER_THREADS, params));
    }
    return FXA_OK;
}
