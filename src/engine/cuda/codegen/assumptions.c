/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds what the generated text may assume of a problem:
 * - which captured tensor, with an element per pair (q, k), TMA can copy in tiles; the text reads it as pair.dense
 * - whether captured values per query and per key (row and key operands) may be packed into arrays of 32-bit words
 * - whether params that are factors are finite and not 0
 * All of these are decided when a plan is created. Compiled code is valid only for these decisions, so the key by which
 * it is looked up contains them.
 */
#include "../cuda.h"
#include "passes.h"

#include "../../../base/invariant.h"

enum { ASSUME_ALIGN = 8 }; /* alignment of TMA copies: 16 bytes, in 16-bit elements */

/* ---- Sizes of captured tensors ----------------------------------------------------------------------------------- */

/* Returns the number of values of a coordinate (b, h, q, k), given as its fxa_input bit; 0 = the bit is that of another
 * input. */
static int64_t assume_extent(const fxa_problem *p, uint32_t input) {
    if (input == 1u << FXA_INPUT_B) return p->b;
    if (input == 1u << FXA_INPUT_H) return p->hq;
    if (input == 1u << FXA_INPUT_Q) return p->sq;
    return input == 1u << FXA_INPUT_K ? p->sk : 0;
}

/* Returns how many indices of a load are q or k, if every index is b, h, q or k and always inside the tensor; else
 * -1. */
static int assume_positions(const cuda_work *w, const fxa__node *load) {
    const fxa_problem *p = &w->problem->in;
    const fxa_program *program = w->config.program;
    fxa__cuda_origin from = fxa__cuda_tensor_source(w, program->tensors[load->imm].name);
    bool sized = from.kind == FXA__CUDA_FROM_CALLER; /* other tensors are tables that are as long as their axis */
    uint32_t pair = 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    int positions = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        int64_t extent = assume_extent(p, input);
        if (extent == 0 || (sized && p->captures[from.index].size[d] < extent)) return -1;
        positions += (input & pair) != 0;
    }
    return positions;
}

/* Returns true if all indices of a load are b, h, q or k, and at least one of them is q or k; ignores the tensor's
 * size. */
static bool assume_has_position(const fxa_problem *p, const fxa_program *program, const fxa__node *load) {
    uint32_t all = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&program->nodes[load->arg[d]]);
        if (assume_extent(p, input) == 0) return false;
        all |= input;
    }
    return (all & (1u << FXA_INPUT_Q | 1u << FXA_INPUT_K)) != 0;
}

/* Returns the number of loads of a tensor. With one load, the tensor's gradient has one term per pair (q, k). */
static int assume_loads(const fxa_program *program, int32_t tensor) {
    int n = 0;
    for (int32_t i = 0; i < program->n_nodes; i++)
        n += program->nodes[i].op == FXA_OP_LOAD && program->nodes[i].imm == tensor;
    return n;
}

/* Returns true if TMA can copy tiles of a tensor, and every load with indices b, h, q, k that reads it by q or k reads
 * it by both. capture: index of the tensor among the problem's captured tensors. */
static bool assume_is_dense(const cuda_work *w, int32_t tensor, int32_t capture) {
    const fxa_problem *p = &w->problem->in;
    const fxa_program *program = w->config.program;
    const fxa_capture *t = &p->captures[capture];
    int32_t rank = program->tensors[tensor].rank;
    fxa_dtype dtype = fxa__cuda_input_dtype(p);
    if (program->tensors[tensor].dtype != dtype || dtype == FXA_F32 || p->alignment < 16 || rank < 2) return false;
    if (p->pass == FXA_BACKWARD && t->grad && assume_loads(program, tensor) != 1) return false;
    if (p->flags & FXA_VARLEN || t->stride[rank - 1] != 1) return false;
    for (int32_t d = 0; d + 1 < rank; d++)
        if (t->stride[d] < 1 || t->stride[d] % ASSUME_ALIGN || t->stride[d] >= FXA__CUDA_MAX_STRIDE) return false;
    bool found = false;
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op != FXA_OP_LOAD || n->imm != tensor || !assume_has_position(p, program, n)) continue;
        if (assume_positions(w, n) != 2) return false;
        found = true;
    }
    return found;
}

/* Returns the index of the first captured tensor that TMA can copy in tiles of queries and keys; -1 = none. */
static int32_t assume_dense_tensor(const cuda_work *w) {
    const fxa_program *program = w->config.program;
    for (int32_t i = 0; i < program->n_tensors; i++) {
        fxa__cuda_origin from = fxa__cuda_tensor_source(w, program->tensors[i].name);
        if (from.kind == FXA__CUDA_FROM_CALLER && assume_is_dense(w, i, from.index)) return from.index;
    }
    return -1;
}

/* Returns true if captured tensors that are indexed by q or k have an element for every batch entry, head and
 * position. */
static bool assume_operands_fit(const cuda_work *w) {
    const fxa_program *program = w->config.program;
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const fxa__node *n = &program->nodes[i];
        if (n->op != FXA_OP_LOAD || !assume_has_position(&w->problem->in, program, n)) continue;
        if (assume_positions(w, n) < 0) return false;
    }
    return true;
}

/* ---- Factors ----------------------------------------------------------------------------------------------------- */

/* 1 = operands of the operation are factors or divisors. */
static const uint8_t assume_factors[FXA_OP_COUNT] = {
    [FXA_OP_MUL] = 1, [FXA_OP_DIV] = 1, [FXA_OP_MULZ] = 1, [FXA_OP_DIVZ] = 1};

/* Returns true if no float of program p has a factor or divisor that depends on a param and is equal for all pairs of a
 * head. sets: a working array with an element per node. */
static bool assume_has_no_factors(const fxa_program *p, fxa__depend *sets) {
    fxa__lower_depend(p, NULL, sets);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        for (int k = 0; assume_factors[n->op] && n->type == FXA_FLOAT && k < n->n_args; k++) {
            const fxa__depend *x = &sets[n->arg[k]];
            if (x->params && fxa__lower_rate(x) <= FXA__RATE_HEAD) return false;
        }
    }
    return true;
}

bool fxa__cuda_has_finite_factors(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                                  const fxa_program *bprop) {
    const fxa_program *const all[] = {program, derivative, bprop};
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        if (all[i] && (size_t)all[i]->n_nodes > n) n = (size_t)all[i]->n_nodes;
    if (program->n_params == 0 && (!bprop || bprop->n_params == 0)) return true;
    fxa__depend *sets = fxa__alloc_array(host, n, sizeof *sets);
    bool plain = sets != NULL;
    for (int i = 0; i < 3; i++) plain = plain && (!all[i] || assume_has_no_factors(all[i], sets));
    fxa__free(host, sets, n * sizeof *sets);
    return plain;
}

/* ---- The pass ---------------------------------------------------------------------------------------------------- */

/* Returns E_UNSUPPORTED if an axis of a captured tensor has more than 2^31 - 1 elements, so that an int cannot index
 * it. */
static fxa_status assume_check_sizes(const fxa_capture *captures, size_t n, const fxa_program *program,
                                     fxa_error *err) {
    for (size_t i = 0; i < n; i++) {
        const fxa__decl *t = &program->tensors[i];
        for (int32_t d = 0; d < t->rank; d++)
            if (captures[i].size[d] > INT32_MAX)
                return fxa__fail(err, FXA_E_UNSUPPORTED,
                                 "tensor %s has %lld elements along axis %d; kernels count to "
                                 "2^31 - 1",
                                 t->name, (long long)captures[i].size[d], (int)d);
    }
    return FXA_OK;
}

fxa_status fxa__cuda_find_assumptions(cuda_work *w, fxa_error *err) {
    const fxa_problem *p = &w->problem->in;
    fxa__cuda_config *c = &w->config;
    FXA_TRY(assume_check_sizes(p->captures, p->n_captures, w->problem->program, err));
    if (c->bprop) FXA_TRY(assume_check_sizes(p->bprop_captures, p->n_bprop_captures, w->problem->bprop, err));
    c->assumed.dense = assume_dense_tensor(w);
    c->assumed.operands_fit = assume_operands_fit(w);
    FXA__ASSERT(c->assumed.dense < (int32_t)p->n_captures);
    c->assumed.finite_factors =
        !c->scalars_in_memory && fxa__cuda_has_finite_factors(w->host, c->program, c->derivative, c->bprop);
    return FXA_OK;
}
