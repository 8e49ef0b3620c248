/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces several nodes by one operation, if reals are f32: an intermediate value with one user then needs no
 * register. A product plus a value becomes a fused multiply-add, which rounds once instead of twice. Nodes that lose
 * their last user are dropped at the next count of uses.
 *
 * Which nodes are merged does not depend on the mask: scores have the same bits on a tape with the mask and on one
 * without it, so forward and backward may use different tapes for the same (query, key) pair. For the same reason, the
 * nodes of the score on a FXA__TAPE_JOINT tape, which also computes the derivative, are merged as on a tape of the
 * score alone. The exception is a tanh whose value the derivative reads: it becomes a node of its own again, which
 * changes no bit.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"

/* Returns argument k of n if it is a float node with this operation, at n's level, with no other user; else NULL. */
static const fxa__tape_node *peephole_inner(const fxa__tape_graph *g, const fxa__tape_node *n, int k, uint32_t op) {
    const fxa__tape_node *x = &g->nodes[n->arg[k]];
    return x->op == op && x->level == n->level && x->uses == 1 ? x : NULL;
}

static bool peephole_is_one(const fxa__tape_graph *g, int level, int32_t node) {
    return !fxa__tape_is_row(level, g->nodes[node].level);
}

/* Gives n the operation `op` with three operands: the two factors of `product`, and c. A factor that is a scalar
 * becomes the second operand. */
static void peephole_join(const fxa__tape_graph *g, fxa__tape_node *n, uint32_t op, const fxa__tape_node *product,
                          int32_t c) {
    bool swap = peephole_is_one(g, n->level, product->arg[0]);
    n->op = (uint8_t)op;
    n->n_args = 3;
    n->arg[0] = product->arg[swap];
    n->arg[1] = product->arg[!swap];
    n->arg[2] = c;
}

/* Replaces x * y + c, x * y - c and c - x * y by one operation. */
static void peephole_fma(const fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *a = peephole_inner(g, n, 0, FXA_OP_MUL), *b = peephole_inner(g, n, 1, FXA_OP_MUL);
    if (n->op == FXA_OP_ADD && a)
        peephole_join(g, n, FXA__TAPE_FMA, a, n->arg[1]);
    else if (n->op == FXA_OP_ADD && b)
        peephole_join(g, n, FXA__TAPE_FMA, b, n->arg[0]);
    else if (n->op == FXA_OP_SUB && a)
        peephole_join(g, n, FXA__TAPE_FMS, a, n->arg[1]);
    else if (n->op == FXA_OP_SUB && b)
        peephole_join(g, n, FXA__TAPE_FNMA, b, n->arg[0]);
}

/* Replaces x ** 2 by the product x * x, which is rounded once and takes a fraction of the time. */
static void peephole_square(const fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *y = &g->nodes[n->arg[1]];
    if (y->op != FXA_OP_CONST || y->f != 2) return;
    n->op = FXA_OP_MUL;
    n->arg[1] = n->arg[0];
}

/* Replaces tanh(x * y) and tanh(x / y), if y is a scalar, by TANH_MUL and TANH_DIV, which multiply the tanh by their
 * third operand: here 1. */
static void peephole_tanh(fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *mul = peephole_inner(g, n, 0, FXA_OP_MUL), *div = peephole_inner(g, n, 0, FXA_OP_DIV);
    const fxa__tape_node *inner = mul ? mul : div;
    if (!inner) return;
    bool swap = mul && peephole_is_one(g, n->level, mul->arg[0]);
    if (!peephole_is_one(g, n->level, inner->arg[!swap])) return;
    n->op = mul ? FXA__TAPE_TANH_MUL : FXA__TAPE_TANH_DIV;
    n->n_args = 3;
    n->arg[0] = inner->arg[swap];
    n->arg[1] = inner->arg[!swap];
    n->arg[2] = g->one;
}

/* Replaces z * t, if z is a scalar and t a TANH_MUL or TANH_DIV whose third operand (a factor of its result) is 1, by t
 * with the third operand z. */
static void peephole_scale_tanh(fxa__tape_graph *g, fxa__tape_node *n) {
    for (int k = 0; k < 2; k++) {
        const fxa__tape_node *mul = peephole_inner(g, n, k, FXA__TAPE_TANH_MUL);
        const fxa__tape_node *tanh = mul ? mul : peephole_inner(g, n, k, FXA__TAPE_TANH_DIV);
        int32_t scale = n->arg[!k];
        if (!tanh || tanh->arg[2] != g->one || !peephole_is_one(g, n->level, scale)) continue;
        n->op = tanh->op;
        n->n_args = 3;
        n->arg[0] = tanh->arg[0];
        n->arg[1] = tanh->arg[1];
        n->arg[2] = scale;
        return;
    }
}

/* Replaces mulz(x, c - y * y), which is x * (c - y * y) but 0 where x is 0, by SLOPE, if x is a row and c a scalar.
 * Derivatives of tanh and sigmoid have this form. */
static void peephole_slope(const fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *fnma = peephole_inner(g, n, 1, FXA__TAPE_FNMA);
    if (!fnma || fnma->arg[0] != fnma->arg[1] || !peephole_is_one(g, n->level, fnma->arg[2])) return;
    if (peephole_is_one(g, n->level, n->arg[0])) return;
    n->op = FXA__TAPE_SLOPE;
    n->n_args = 3;
    n->arg[1] = fnma->arg[0];
    n->arg[2] = fnma->arg[2];
}

/* Replaces float(a + b) and float(a - b) of ints by one operation. If the int is offset + k or offset - k, where k is
 * the key coordinate, the operands become the offset and k. */
static void peephole_float(const fxa__tape_graph *g, fxa__tape_node *n) {
    const fxa__tape_node *x = &g->nodes[n->arg[0]];
    bool down = x->sign ? x->sign < 0 : x->op == FXA_OP_SUB;
    if (x->op != FXA_OP_ADD && x->op != FXA_OP_SUB) return;
    /* x is an int, because programs have neither float() of a float nor sums of bools */
    FXA__ASSERT(x->type == FXA_INT && x->level == n->level);
    if (!x->sign && x->uses != 1) return;
    n->op = down ? FXA__TAPE_FLOAT_SUB : FXA__TAPE_FLOAT_ADD;
    n->n_args = 2;
    n->arg[0] = x->sign ? x->offset : x->arg[0];
    n->arg[1] = x->sign ? g->key : x->arg[1];
}

/* Replaces z + y * float(v + k), and the variants with minus, by LINE_UP or LINE_DOWN, if y and v are scalars and z is
 * a row; k is the key coordinate. */
static void peephole_line(fxa__tape_graph *g, int32_t i) {
    const fxa__tape_node *n = &g->nodes[i];
    bool minus = n->op == FXA__TAPE_FNMA;
    if (n->op != FXA__TAPE_FMA && !minus) return;
    const fxa__tape_node *up = peephole_inner(g, n, 0, FXA__TAPE_FLOAT_ADD),
                         *down = peephole_inner(g, n, 0, FXA__TAPE_FLOAT_SUB);
    const fxa__tape_node *line = up ? up : down;
    if (!line || line->arg[1] != g->key || !peephole_is_one(g, n->level, line->arg[0])) return;
    if (!peephole_is_one(g, n->level, n->arg[1]) || peephole_is_one(g, n->level, n->arg[2])) return;
    int32_t args[4] = {g->key, n->arg[1], line->arg[0], n->arg[2]};
    uint8_t op = up ? FXA__TAPE_LINE_UP : FXA__TAPE_LINE_DOWN;
    if (minus) {
        fxa__tape_node negated = {.op = FXA_OP_NEG, .type = FXA_FLOAT, .n_args = 1, .axis = -1, .arg = {args[1]}};
        negated.level = g->nodes[args[1]].level;
        negated.inputs = g->nodes[args[1]].inputs;
        args[1] = fxa__tape_graph_add(g, &negated);
    }
    if (g->failed) return;
    g->nodes[i].op = op;
    g->nodes[i].n_args = 4;
    for (int k = 0; k < 4; k++) g->nodes[i].arg[k] = args[k];
}

/* Replaces a conjunct of the mask that compares ints by one operation MASK_x, which compares them and sets scores to
 * -inf where the comparison is false. */
static void peephole_mask(fxa__tape_graph *g, fxa__tape_root *root) {
    if (root->kind != FXA__OUT_MASK || root->node < 0) return;
    fxa__tape_node n = g->nodes[root->node];
    if (n.level != TAPE_FULL || n.uses != 1 || n.n_args != 2 || g->nodes[n.arg[0]].type == FXA_FLOAT) return;
    switch (n.op) {
    case FXA_OP_EQ: n.op = FXA__TAPE_MASK_EQ; break;
    case FXA_OP_NE: n.op = FXA__TAPE_MASK_NE; break;
    case FXA_OP_LT: n.op = FXA__TAPE_MASK_LT; break;
    case FXA_OP_LE: n.op = FXA__TAPE_MASK_LE; break;
    default: return;
    }
    root->node = -1;
    root->access = fxa__tape_graph_add(g, &n);
}

static void peephole_node(fxa__tape_graph *g, fxa__tape_node *n) {
    switch (n->op) {
    case FXA_OP_ADD:
    case FXA_OP_SUB: peephole_fma(g, n); break;
    case FXA_OP_POW: peephole_square(g, n); break;
    case FXA_OP_TANH: peephole_tanh(g, n); break;
    case FXA_OP_MUL: peephole_scale_tanh(g, n); break;
    case FXA_OP_MULZ: peephole_slope(g, n); break;
    case FXA_OP_FLOAT: peephole_float(g, n); break;
    default: break;
    }
}

/* Merges each needed float node with its operands where one operation computes them all. rest: true = leaves the nodes
 * of the score as they are. */
static void peephole_nodes(fxa__tape_graph *g, bool rest) {
    for (int32_t i = 0; i < g->program->n_nodes && !g->failed; i++) {
        const fxa__tape_node *n = &g->nodes[i];
        if (!n->needed || n->type != FXA_FLOAT || (rest && n->value)) continue;
        peephole_node(g, &g->nodes[i]);
        peephole_line(g, i);
    }
}

/* Restores node i to its form in the program if a tanh whose value the derivative reads has been merged into it. */
static void peephole_part_tanh(fxa__tape_graph *g, int32_t i) {
    fxa__tape_node *n = &g->nodes[i];
    const fxa__node *was = &g->program->nodes[i];
    bool needed = was->op == FXA_OP_TANH && n->back;
    if (n->op != FXA__TAPE_TANH_MUL && n->op != FXA__TAPE_TANH_DIV) return;
    for (int k = 0; was->op == FXA_OP_MUL && k < 2; k++)
        needed = needed || (g->program->nodes[was->arg[k]].op == FXA_OP_TANH && g->nodes[was->arg[k]].back);
    if (!needed) return;
    n->op = was->op;
    n->n_args = was->n_args;
    /* float operands have the same index in program and graph */
    for (int k = 0; k < n->n_args; k++) n->arg[k] = was->arg[k];
}

/* Merges the nodes of the score of a FXA__TAPE_JOINT. Counts only those uses of a node that the score makes, so the
 * result is the same as on a tape of the score alone. */
static void peephole_value(fxa__tape_graph *g) {
    fxa__tape_graph_count(g, TAPE_ROOTS_ALL & ~(TAPE_ROOTS_SCORE | TAPE_ROOTS_MASK));
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].back = g->nodes[i].needed;
    fxa__tape_graph_value(g);
    peephole_nodes(g, false);
    for (int32_t i = 0; i < g->program->n_nodes && !g->failed; i++) peephole_part_tanh(g, i);
}

void fxa__tape_peephole(fxa__tape_graph *g) {
    fxa__tape_node one = {.op = FXA_OP_CONST, .type = FXA_FLOAT, .axis = -1, .f = 1};
    g->one = fxa__tape_graph_add(g, &one);
    if (g->joint && !g->failed) peephole_value(g);
    fxa__tape_graph_count(g, TAPE_ROOTS_ALL & ~TAPE_ROOTS_MASK);
    peephole_nodes(g, g->joint);
    if (!g->failed) fxa__tape_graph_count(g, TAPE_ROOTS_ALL);
    for (size_t i = 0; i < g->n_roots && !g->failed; i++) peephole_mask(g, &g->roots[i]);
    if (!g->failed) fxa__tape_graph_count(g, TAPE_ROOTS_ALL);
}
