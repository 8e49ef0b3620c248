/* SPDX-License-Identifier: Apache-2.0
 *
 * What a problem promises to the text of its program (fxa__cuda_config): which captured tensor can be read as pairs,
 * which as words, and that factors are numbers to reckon with. All of it is known when a plan is made, and in its key.
 */
#include "../cuda.h"

#include "../../../program/range.h"

enum { PROMISE_ALIGN = 8 };               /* elements of 16 bits in the 16 bytes that copies by TMA want */
#define PROMISE_STRIDE (INT64_C(1) << 39) /* of these elements: TMA has strides below 2^40 bytes */

/* A factor that leaves a scale of any kind room in f32. */
#define PROMISE_LEAST 1e-18
#define PROMISE_MOST 1e18

/* ---- Sizes of captured tensors ----------------------------------------------------------------------------------- */

/* The extent of a coordinate, 0 for what is none. */
static int64_t promise_extent(const fxa_problem *p, uint32_t input) {
    if (input == 1u << FXA_INPUT_B) return p->b;
    if (input == 1u << FXA_INPUT_H) return p->hq;
    if (input == 1u << FXA_INPUT_Q) return p->sq;
    return input == 1u << FXA_INPUT_K ? p->sk : 0;
}

/* How many of q and k a load is at, beside b and h; every index a coordinate that stays inside. -1: it is not so. */
static int promise_positions(const fxa_problem *p, const fxa_program *program, const fxa__node *load) {
    bool own = load->imm >= (int32_t)p->n_captures; /* of codegen/coordinates.c: as long as it has to be */
    uint32_t pair = 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    int positions = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        int64_t extent = promise_extent(p, input);
        if (extent == 0 || (!own && p->captures[load->imm].size[d] < extent)) return -1;
        positions += (input & pair) != 0;
    }
    return positions;
}

/* Loads at coordinates alone, one of them at least a position, whatever the sizes are. */
static bool promise_is_place(const fxa_problem *p, const fxa_program *program, const fxa__node *load) {
    uint32_t all = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        if (promise_extent(p, input) == 0) return false;
        all |= input;
    }
    return (all & (1u << FXA_INPUT_Q | 1u << FXA_INPUT_K)) != 0;
}

/* How many loads a tensor has: its gradient is one sum of pairs if that is one. */
static int promise_loads(const fxa_program *program, int32_t tensor) {
    int n = 0;
    for (int32_t i = 0; i < program->n_nodes; i++)
        n += program->nodes[i].op == FXA_OP_LOAD && program->nodes[i].imm == tensor;
    return n;
}

/* Rows that TMA can copy. */
static bool promise_is_dense(const fxa_problem *p, const fxa_program *program, int32_t tensor) {
    const fxa_capture *t = &p->captures[tensor];
    int32_t rank = program->tensors[tensor].rank;
    fxa_dtype dtype = fxa__cuda_input_dtype(p);
    if (program->tensors[tensor].dtype != dtype || dtype == FXA_F32 || p->alignment < 16 || rank < 2) return false;
    if (p->pass == FXA_BACKWARD && t->grad && promise_loads(program, tensor) != 1) return false;
    if (p->flags & FXA_VARLEN || t->stride[rank - 1] != 1) return false;
    for (int32_t d = 0; d + 1 < rank; d++)
        if (t->stride[d] < 1 || t->stride[d] % PROMISE_ALIGN || t->stride[d] >= PROMISE_STRIDE) return false;
    bool found = false;
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op != FXA_OP_LOAD || n->imm != tensor || !promise_is_place(p, program, n)) continue;
        if (promise_positions(p, program, n) != 2) return false;
        found = true;
    }
    return found;
}

int32_t fxa__cuda_dense_tensor(const fxa__problem *p, const fxa_program *program) {
    for (int32_t i = 0; i < (int32_t)p->in.n_captures; i++)
        if (promise_is_dense(&p->in, program, i)) return i;
    return -1;
}

bool fxa__cuda_operands_fit(const fxa__problem *p, const fxa_program *program) {
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op != FXA_OP_LOAD || !promise_is_place(&p->in, program, n)) continue;
        if (promise_positions(&p->in, program, n) < 0) return false;
    }
    return true;
}

uint64_t fxa__cuda_tensors_fit(const fxa__problem *p, const fxa__cuda_program *program) {
    uint64_t fits = UINT64_MAX;
    for (int32_t t = 0; t < program->program->n_tensors; t++) {
        bool sized =
            t <
            (int32_t)p->in.n_captures; /* of codegen/coordinates.c and codegen/user_backward.c: indices are guarded */
        bool fit = true;
        for (int d = 0; d < FXA_MAX_RANK && fit; d++) {
            int64_t least = program->min_size[t][d];
            if (least < 0) least = promise_extent(&p->in, 1u << (-1 - least));
            fit = least == 0 || (sized && p->in.captures[t].size[d] >= least);
        }
        if (!fit) fits &= ~(UINT64_C(1) << t);
    }
    return fits;
}

/* ---- Factors ----------------------------------------------------------------------------------------------------- */

static const uint8_t promise_factors[FXA_OP_COUNT] = {
    [FXA_OP_MUL] = 1, [FXA_OP_DIV] = 1, [FXA_OP_MULZ] = 1, [FXA_OP_DIVZ] = 1};

/* No param of the caller's is a factor or divisor: nobody looks at what it is in a run. */
static bool promise_has_no_factors(const fxa_program *p, fxa__depend *sets) {
    fxa__lower_depend(p, NULL, sets);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        for (int k = 0; promise_factors[n->op] && n->type == FXA_FLOAT && k < n->n_args; k++) {
            const fxa__depend *x = &sets[n->arg[k]];
            if (x->params && fxa__lower_rate(x) <= FXA__RATE_HEAD) return false;
        }
    }
    return true;
}

bool fxa__cuda_has_finite_factors(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                                  const fxa_program *own) {
    const fxa_program *const all[] = {program, derivative, own};
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        if (all[i] && (size_t)all[i]->n_nodes > n) n = (size_t)all[i]->n_nodes;
    if (program->n_params == 0 && (!own || own->n_params == 0)) return true;
    fxa__depend *sets = fxa__alloc_array(host, n, sizeof *sets);
    bool plain = sets != NULL;
    for (int i = 0; i < 3; i++) plain = plain && (!all[i] || promise_has_no_factors(all[i], sets));
    fxa__free(host, sets, n * sizeof *sets);
    return plain;
}

bool fxa__cuda_factor_is_positive(const fxa__cuda_program *program) {
    double params[FXA_MAX_PARAMS];
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    bool positive = false;
    if (program->factor < 0) return true;
    for (int32_t i = 0; i < program->program->n_params; i++)
        params[i] = program->params[i].source == FXA__CUDA_CONSTANT ? program->params[i].value : 1;
    if (fxa__range_open(&r, &small, program->program, program->factor, &box, params, NULL)) {
        fxa__real x = fxa__range_of(&r, program->factor)->f;
        positive = !x.nan && x.lo >= PROMISE_LEAST && x.hi <= PROMISE_MOST;
    }
    fxa__range_close(&r);
    return positive;
}
