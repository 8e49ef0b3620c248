/* SPDX-License-Identifier: Apache-2.0
 *
 * What program text may assume of a problem (fxa__cuda_config): which captured tensor pairs can read as pair.dense,
 * whether loads can become operands, and whether factors are finite and not 0. All of it is known when a plan is
 * created and is part of its key.
 */
#include "../cuda.h"

#include "../../../program/range.h"

enum { PROMISE_ALIGN = 8 };               /* 16-bit elements in the 16 bytes to which TMA copies are aligned */
#define PROMISE_STRIDE (INT64_C(1) << 39) /* in 16-bit elements: TMA strides are below 2^40 bytes */

/* The smallest factor that leaves f32 range for any scale. */
#define PROMISE_LEAST 1e-18
#define PROMISE_MOST 1e18

/* ---- Sizes of captured tensors ----------------------------------------------------------------------------------- */

/* Returns the number of values of a coordinate; 0 = the input is no coordinate. */
static int64_t promise_extent(const fxa_problem *p, uint32_t input) {
    if (input == 1u << FXA_INPUT_B) return p->b;
    if (input == 1u << FXA_INPUT_H) return p->hq;
    if (input == 1u << FXA_INPUT_Q) return p->sq;
    return input == 1u << FXA_INPUT_K ? p->sk : 0;
}

/* Returns how many of q and k are indices of a load, besides b and h, if every index is a coordinate inside the tensor;
 * -1 = an index is not. */
static int promise_positions(const fxa_problem *p, const fxa_program *program, const fxa__node *load) {
    bool own = load->imm >= (int32_t)p->n_captures; /* added by codegen/coordinates.c, as large as it must be */
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

/* Returns true if all indices of a load are coordinates, at least one of them a position, for any size. */
static bool promise_is_place(const fxa_problem *p, const fxa_program *program, const fxa__node *load) {
    uint32_t all = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        if (promise_extent(p, input) == 0) return false;
        all |= input;
    }
    return (all & (1u << FXA_INPUT_Q | 1u << FXA_INPUT_K)) != 0;
}

/* Returns the number of loads of a tensor. With one load its gradient is one sum over pairs. */
static int promise_loads(const fxa_program *program, int32_t tensor) {
    int n = 0;
    for (int32_t i = 0; i < program->n_nodes; i++)
        n += program->nodes[i].op == FXA_OP_LOAD && program->nodes[i].imm == tensor;
    return n;
}

/* Returns true if TMA can copy the rows of a tensor. */
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
        /* indices of tensors that codegen/coordinates.c and codegen/user_backward.c added are guarded */
        bool sized = t < (int32_t)p->in.n_captures;
        bool fit = true;
        for (int d = 0; d < FXA_MAX_RANK && fit; d++) {
            int64_t least = program->bounds.min_size[t][d];
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

/* Returns true if no param of the caller is a factor or divisor, so no run has to check its value. */
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
    if (program->computed.factor < 0) return true;
    for (int32_t i = 0; i < program->program->n_params; i++)
        params[i] = program->params[i].source == FXA__CUDA_CONSTANT ? program->params[i].value : 1;
    if (fxa__range_open(&r, &small, program->program, program->computed.factor, &box, params, NULL)) {
        fxa__real x = fxa__range_of(&r, program->computed.factor)->f;
        positive = !x.nan && x.lo >= PROMISE_LEAST && x.hi <= PROMISE_MOST;
    }
    fxa__range_close(&r);
    return positive;
}
