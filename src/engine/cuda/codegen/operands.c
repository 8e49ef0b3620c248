/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides what value() and mask() read for a pair (q, k) besides the score, q and k:
 * - diagonal row: a table over q - k
 * - dense tensor: a captured tensor with an element per pair (q, k)
 * - row operand and key operand: captured values per query and per key
 * - ints that are computed from an int per tile (codegen/tile_values.c)
 */
#include "passes.h"

#include "../../../base/invariant.h"

/* Marks in w->need the nodes that value, derivative and mask of a pair need. */
static void operands_mark(cuda_work *w) {
    const fxa_program *p = w->c->program;
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK), derivative = fxa__program_output(p, FXA__OUT_DSCORE);
    if (w->c->switches.value) w->need[w->c->computed.value] |= CUDA_VALUE;
    if (derivative >= 0) w->need[derivative] |= CUDA_DERIVATIVE;
    w->need[mask] |= CUDA_MASK;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--)
        for (int k = 0; w->need[i] && k < p->nodes[i].n_args; k++) w->need[p->nodes[i].arg[k]] |= w->need[i];
}

/* ---- The diagonal row -------------------------------------------------------------------------------------------- */

enum { OPERANDS_MAX_OPERATIONS = 3 };

/* Subtracts from *left the operations that compute a node for one pair (q, k). Returns false if there are more than
 * *left, or if the node is not arithmetic of q - k and of values that are equal in a head. */
static bool operands_count_down(const cuda_work *w, int32_t node, int *left) {
    const fxa__node *n = &w->c->program->nodes[node];
    if (fxa__lower_rate(&w->inputs[node]) <= FXA__RATE_HEAD) return true;
    if ((*left)-- == 0) return false;
    switch (n->op) {
    case FXA_OP_FLOAT: return w->tiles[node].kind == CUDA_TILE_FLOAT;
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MUL: return operands_count_down(w, n->arg[0], left) && operands_count_down(w, n->arg[1], left);
    case FXA_OP_NEG:
    case FXA_OP_ABS: return operands_count_down(w, n->arg[0], left);
    default: return false;
    }
}

/* Returns true if a kernel computes a node, which depends on b, h and q - k alone, faster than it loads the node from
 * the diagonal row, the table over q - k. */
static bool operands_is_cheap(const cuda_work *w, int32_t node) {
    int left = OPERANDS_MAX_OPERATIONS;
    return operands_count_down(w, node, &left);
}

/* Returns true if a node depends on b, h and q - k alone. */
static bool operands_is_diagonal(const cuda_work *w, int32_t node) {
    return fxa__lower_rate(&w->inputs[node]) == FXA__RATE_DIAGONAL;
}

/* Chooses the float that the diagonal row, a table over q - k, contains: a node that depends on b, h and q - k alone,
 * and that value() returns, or that value() or the derivative combines with other values. Of several, the last. */
static void operands_find_diagonal(cuda_work *w) {
    const fxa_program *p = w->c->program;
    w->c->operands.diagonal = -1;
    if (w->c->switches.value && operands_is_diagonal(w, w->c->computed.value))
        w->c->operands.diagonal = w->c->computed.value;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!(w->need[i] & (CUDA_VALUE | CUDA_DERIVATIVE)) || operands_is_diagonal(w, i)) continue;
        for (int k = 0; k < p->nodes[i].n_args; k++) {
            int32_t x = p->nodes[i].arg[k];
            if (p->nodes[x].type == FXA_FLOAT && operands_is_diagonal(w, x) && x > w->c->operands.diagonal)
                w->c->operands.diagonal = x;
        }
    }
    /* The forward has the diagonal row (table over q - k) in shared memory. The backward would load the
     * row from global memory, so it computes the node instead, with the same bits, if this is cheaper. */
    if (w->backward && w->c->operands.diagonal >= 0 && operands_is_cheap(w, w->c->operands.diagonal)) {
        w->rounded = w->c->operands.diagonal;
        w->c->operands.diagonal = -1;
    }
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

/* Returns how many indices of a load are q or k, if every index is b, h, q or k and they are in this order; else 0.
 * Sets *last to the fxa_input bit of the last index. */
static int operands_positions(const fxa_program *p, const fxa__node *load, uint32_t *last) {
    uint32_t seen = 0, heads = 1u << FXA_INPUT_B | 1u << FXA_INPUT_H, pair = 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    int positions = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&p->nodes[load->arg[d]]);
        if (!(input & (heads | pair)) || (input <= seen && d > 0))
            return 0; /* an index is no coordinate, or is not in the order b, h, q, k */
        positions += (input & pair) != 0;
        seen |= input;
        *last = input;
    }
    return positions;
}

/* Chooses the nodes that load the dense tensor, the row operand and the key operand. */
static void operands_find_loads(cuda_work *w) {
    const fxa_program *p = w->c->program;
    w->c->operands.dense = w->c->operands.q = w->c->operands.k = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        uint32_t last = 0;
        if (n->op != FXA_OP_LOAD || !w->need[i]) continue;
        int positions = operands_positions(p, n, &last);
        uint8_t dtype = p->tensors[n->imm].dtype;
        bool dense = w->config.assumed.dense >= 0 && fxa__cuda_caller_tensor(w->c, n->imm) == w->config.assumed.dense;
        if (positions == 2 && dense && !(w->need[i] & CUDA_MASK)) w->c->operands.dense = i;
        if (positions != 1 || !w->config.assumed.operands_fit || w->c->source[n->imm].kind == FXA__CUDA_FROM_BPROP ||
            !fxa__cuda_operand_kind((fxa_dtype)dtype))
            continue;
        if (last == 1u << FXA_INPUT_Q && w->c->operands.q < 0) w->c->operands.q = i;
        if (last == 1u << FXA_INPUT_K && w->c->operands.k < 0) w->c->operands.k = i;
    }
}

static bool operands_is_operand(const cuda_work *w, int32_t node) {
    return node == w->c->operands.q || node == w->c->operands.k;
}

/* Decides whether i64 elements may be row and key operands, which are saturated to 32 bits. They may if every 64-bit
 * comparison that reads one of the two operands compares it with the other, and only for the mask. Otherwise, no i64
 * load is an operand: each pair (q, k) loads all 64 bits. */
static void operands_i64(cuda_work *w) {
    const fxa_program *p = w->c->program;
    bool ok = true;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (!w->need[i] || !fxa__node_compares_wide(p, n)) continue;
        int sides = operands_is_operand(w, n->arg[0]) + operands_is_operand(w, n->arg[1]);
        w->i64_operands = w->i64_operands || sides > 0;
        ok = ok && (sides == 0 || (sides == 2 && w->need[i] == CUDA_MASK && n->arg[0] != n->arg[1]));
    }
    if (ok) return;
    int32_t *const sides[] = {&w->c->operands.q, &w->c->operands.k};
    for (int i = 0; i < 2; i++)
        if (*sides[i] >= 0 && p->tensors[p->nodes[*sides[i]].imm].dtype == FXA_I64) *sides[i] = -1;
    w->i64_operands = false;
}

/* ---- The pass ---------------------------------------------------------------------------------------------------- */

/* Returns true if a node reads no tensor, not the scale, and no param of the caller. */
static bool operands_is_fixed(const cuda_work *w, int32_t node) {
    bool fixed = !w->inputs[node].tensors;
    for (int i = 0; i < w->c->program->n_params; i++)
        fixed = fixed && (!(w->inputs[node].params >> i & 1) || w->c->params[i].source == FXA__CUDA_CONSTANT);
    return fixed;
}

fxa_status fxa__cuda_place_operands(cuda_work *w, fxa_error *err) {
    fxa__cuda_operands *to = &w->c->operands;
    int32_t mask = fxa__program_output(w->c->program, FXA__OUT_MASK);
    if (w->inputs[mask].inputs & 1u << FXA_INPUT_SCORE)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "the mask reads the score, which CUDA kernels do not give it");
    operands_mark(w);
    fxa__cuda_tile_values(w, w->tiles);
    operands_find_diagonal(w);
    operands_find_loads(w);
    operands_i64(w);
    FXA__ASSERT(to->q < 0 || to->k < 0 || to->q != to->k);
    FXA__ASSERT(to->dense < 0 || to->dense != to->diagonal);
    FXA__ASSERT(to->diagonal < 0 || w->c->program->nodes[to->diagonal].type == FXA_FLOAT);
    w->c->switches.diagonal = to->diagonal >= 0;
    w->c->switches.dense = to->dense >= 0;
    to->mask_inputs = w->inputs[mask].inputs;
    to->mask_is_constant = operands_is_fixed(w, mask);
    if (to->diagonal < 0) return FXA_OK;
    to->diagonal_inputs = w->inputs[to->diagonal].inputs;
    to->diagonal_is_constant = operands_is_fixed(w, to->diagonal);
    return FXA_OK;
}
