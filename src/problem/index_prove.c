/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that no load whose element the result needs has an out-of-bounds index in any run of a problem, for any
 * contents of the tensors. The proof builds a program whose mask is true where an index of such a load is out of
 * bounds. Range analysis must then prove that this mask is always false. The new program contains the mask and the
 * conditions of the problem's program, so the load of `t[q - k]` with `mask = q >= k && q - k < n` is proven to be in
 * bounds.
 */
#include "geometry.h"
#include "index_check.h"
#include "tiles.h"

#include "../base/invariant.h"

/* `b` builds a program from `program`, the problem's program. The arrays node and miss have one value of the new
 * program per node of `program`:
 * - node: the value of the node itself.
 * - miss: a bool that is true if the node depends on an out-of-bounds load; PROVE_NEVER = always false. */
typedef struct prove_values {
    fxa_builder *b;
    const fxa_program *program;
    const fxa_capture *captures;
    fxa_value *node, *miss;
} prove_values;

#define PROVE_NEVER ((fxa_value)-1)

/* Returns the value x || y in the program that v->b builds. */
static fxa_value prove_either(prove_values *v, fxa_value x, fxa_value y) {
    if (x == PROVE_NEVER || y == PROVE_NEVER) return x == PROVE_NEVER ? y : x;
    return fxa_builder_op2(v->b, FXA_OP_OR, x, y);
}

/* Returns the value x && y in the program that v->b builds. */
static fxa_value prove_both(prove_values *v, fxa_value x, fxa_value y) {
    if (x == PROVE_NEVER || y == PROVE_NEVER) return PROVE_NEVER;
    return fxa_builder_op2(v->b, FXA_OP_AND, x, y);
}

/* Returns a bool, in the program that v->b builds, that is true if an index of the load n is out of bounds. */
static fxa_value prove_load(prove_values *v, const fxa__node *n) {
    fxa_value outside = PROVE_NEVER;
    for (int d = 0; d < n->n_args; d++) {
        int64_t size = v->captures[n->imm].size[d];
        fxa_value at = v->node[n->arg[d]];
        if (size > INT32_MAX) continue;
        fxa_value low = fxa_builder_op2(v->b, FXA_OP_LT, at, fxa_builder_int(v->b, (int32_t)-size));
        fxa_value high = fxa_builder_op2(v->b, FXA_OP_GE, at, fxa_builder_int(v->b, (int32_t)size));
        outside = prove_either(v, outside, fxa_builder_op2(v->b, FXA_OP_OR, low, high));
    }
    return outside;
}

/* Handles the other operand of a node `operand && decider` or, if is_or, `operand || decider`. Returns a bool, in the
 * program that v->b builds, that is true where the operand depends on an out-of-bounds load (`miss`) and the value of
 * `decider` does not decide the result alone. Returns `miss` itself if `decider` may depend on such a load too. */
static fxa_value prove_unless(prove_values *v, bool is_or, fxa_value miss, int32_t decider) {
    fxa_value x = v->node[decider];
    if (miss == PROVE_NEVER || v->miss[decider] != PROVE_NEVER) return miss;
    return prove_both(v, miss, is_or ? fxa_builder_op1(v->b, FXA_OP_NOT, x) : x);
}

/* Returns a bool, in the program that v->b builds, that is true if node n depends on an out-of-bounds load. */
static fxa_value prove_node(prove_values *v, const fxa__node *n) {
    fxa_value found = PROVE_NEVER;
    if (n->op == FXA_OP_SELECT) {
        fxa_value c = v->node[n->arg[0]];
        found = prove_either(v, v->miss[n->arg[0]], prove_both(v, v->miss[n->arg[1]], c));
        if (v->miss[n->arg[2]] != PROVE_NEVER)
            found = prove_either(v, found, prove_both(v, v->miss[n->arg[2]], fxa_builder_op1(v->b, FXA_OP_NOT, c)));
        return found;
    }
    if (n->type == FXA_BOOL && (n->op == FXA_OP_AND || n->op == FXA_OP_OR)) {
        fxa_value x = prove_unless(v, n->op == FXA_OP_OR, v->miss[n->arg[0]], n->arg[1]);
        return prove_either(v, x, prove_unless(v, n->op == FXA_OP_OR, v->miss[n->arg[1]], n->arg[0]));
    }
    if (n->op == FXA_OP_LOAD) found = prove_load(v, n);
    for (int a = 0; a < n->n_args; a++) found = prove_either(v, found, v->miss[n->arg[a]]);
    return found;
}

/* Sets the mask of the program that v->b builds: true where the result needs an element that is out of bounds. */
static void prove_fill(prove_values *v) {
    const fxa_program *p = v->program;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    for (int32_t i = 0; i < p->n_nodes; i++) v->miss[i] = prove_node(v, &p->nodes[i]);
    fxa_value miss = prove_either(v, v->miss[mask], prove_both(v, v->miss[score], v->node[mask]));
    fxa_builder_set_mask(v->b, miss == PROVE_NEVER ? fxa_builder_bool(v->b, 0) : miss);
}

/* ---- Coordinates of all pairs ------------------------------------------------------------------------------------ */

static void prove_axis(fxa_tile_bounds *box, fxa_input axis, const fxa_index_map *map, int64_t n) {
    box->lo[axis] = INT32_MIN;
    box->hi[axis] = INT32_MAX;
    if (fxa__map_is_dynamic(map) || map->kind == FXA_MAP_SEGMENTS) return;
    int64_t first = map->base, last = map->base + map->step * (n - 1);
    box->lo[axis] = (int32_t)(first < last ? first : last);
    box->hi[axis] = (int32_t)(first < last ? last : first);
}

static void prove_box(const fxa_problem *p, fxa_tile_bounds *box) {
    int64_t lo, hi;
    bool ragged = p->flags & (FXA_PADDING | FXA_VARLEN);
    const int64_t fixed[] = {p->global_q_len, p->global_k_len, p->global_heads}, all[] = {p->sq, p->sk, p->hq};
    const fxa_input lengths[] = {FXA_INPUT_Q_LEN, FXA_INPUT_K_LEN, FXA_INPUT_HEADS};
    *box = (fxa_tile_bounds){{0}, {0}};
    prove_axis(box, FXA_INPUT_B, &p->map_b, p->b);
    prove_axis(box, FXA_INPUT_H, &p->map_h, p->hq);
    prove_axis(box, FXA_INPUT_Q, &p->map_q, p->sq);
    prove_axis(box, FXA_INPUT_K, &p->map_k, p->sk);
    fxa__q_shift_range(p, &lo, &hi);
    lo += box->lo[FXA_INPUT_Q];
    hi += box->hi[FXA_INPUT_Q];
    bool fits = lo >= INT32_MIN && hi <= INT32_MAX; /* false: q may wrap to any 32-bit value */
    box->lo[FXA_INPUT_Q] = fits ? (int32_t)lo : INT32_MIN;
    box->hi[FXA_INPUT_Q] = fits ? (int32_t)hi : INT32_MAX;
    box->hi[FXA_INPUT_Q_ROW] = (int32_t)p->sq - 1;
    box->hi[FXA_INPUT_K_ROW] = (int32_t)p->sk - 1;
    for (int i = 0; i < 3; i++) {
        box->lo[lengths[i]] = (int32_t)(fixed[i] > 0 ? fixed[i] : ragged && i < 2 ? 0 : all[i]);
        box->hi[lengths[i]] = (int32_t)(fixed[i] > 0 ? fixed[i] : all[i]);
    }
}

fxa_status fxa__index_prove(fxa__host *host, const fxa_problem *p, const fxa_program *program, bool *proven,
                            fxa_error *err) {
    size_t n = (size_t)program->n_nodes;
    fxa_program *misses = NULL;
    prove_values v = {.program = program, .captures = p->captures};
    *proven = p->b == 0 || p->hq == 0 || p->sq == 0 || p->sk == 0;
    if (*proven) return FXA_OK;
    FXA_TRY(fxa__builder_new(host, FXA_PROGRAM_SCORE, &v.b, err));
    fxa__builder_set_limit(v.b, FXA__MAX_DERIVED_NODES);
    v.node = fxa__alloc_array(host, 2 * n, sizeof *v.node);
    fxa_status status = v.node ? FXA_OK : fxa__fail_memory(err, "a proof that indices are inside");
    if (status == FXA_OK) {
        v.miss = v.node + n;
        fxa_error too_large; /* this error is ignored: if the new program is too large, nothing is proven */
        if (fxa__builder_import(v.b, program, v.node)) prove_fill(&v);
        if (fxa_builder_finish(v.b, &misses, &too_large) == FXA_OK) {
            fxa_tile_bounds box;
            prove_box(p, &box);
            for (int i = 0; i < FXA_INPUT_COUNT; i++) FXA__ASSERT(box.lo[i] <= box.hi[i]);
            *proven = fxa__program_classify(misses, &box, NULL, NULL, NULL) == FXA_TILE_EMPTY;
        }
    }
    fxa_program_destroy(misses);
    fxa__free(host, v.node, 2 * n * sizeof *v.node);
    fxa_builder_destroy(v.b);
    return status;
}
