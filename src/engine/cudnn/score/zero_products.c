/* SPDX-License-Identifier: Apache-2.0
 *
 * Products and quotients for derivatives, in which 0 times an infinity or NaN is 0, so that a (q, k) pair with gradient
 * 0 contributes nothing. Chooses the operations with which cuDNN computes such a product fastest.
 */
#include "score.h"

#include "../../../base/invariant.h"

#include <math.h>

/* Returns an upper bound of the absolute value of a node that is not NaN; INFINITY if none is known. `depth`: levels of
 * operands to search. */
static double zero_bound(const fxa__dnn_score *s, int32_t node, int depth) {
    const fxa__node *n = &s->program->nodes[node];
    switch (n->op) {
    case FXA_OP_PARAM: return fxa__dnn_score_is_number(s, node) ? FXA__DNN_NUMBER_MAX : INFINITY;
    case FXA_OP_CONST: /* at least the bound of a param: the graph must be the same if the constant becomes a param */
        return n->type == FXA_FLOAT && isfinite(n->f) ? fmax(fabs(n->f), FXA__DNN_NUMBER_MAX) : INFINITY;
    case FXA_OP_TANH:
    case FXA_OP_SIGMOID:
    case FXA_OP_ERF: return 1 + 0x1p-8;
    case FXA_OP_NEG: return depth ? zero_bound(s, n->arg[0], depth - 1) : INFINITY;
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MUL: break;
    default: return INFINITY;
    }
    if (!depth || n->type != FXA_FLOAT) return INFINITY;
    double x = zero_bound(s, n->arg[0], depth - 1), y = zero_bound(s, n->arg[1], depth - 1);
    return n->op == FXA_OP_MUL ? x * y : x + y;
}

/* Returns true if 0 * y or 0 / y (mode) is certainly 0, because y is a scalar that is passed by value and finite in f32
 * and, as a divisor, is not 0. */
static bool zero_is_plain(const fxa__dnn_tensor *y, int mode) {
    float f = (float)y->value;
    return y->number || (y->source == FXA__DNN_VALUE && isfinite(f) && (mode == CUDNN_POINTWISE_MUL || f != 0));
}

/* A virtual y is replaced before the operation:
 *   - in a product with a bounded y, by min(y, 2^64). Only a NaN in y could prevent 0 * y = 0, and cuDNN's minimum
 *     drops NaN. Where x is not 0, no NaN is lost: a NaN in y comes from the score, so x is NaN too.
 *   - otherwise by 0 (product) or 1 (quotient) where x is 0.
 * If y is not virtual, a select sets the result to 0 where x is 0, unless zero_is_plain returns true. */
int32_t fxa__dnn_zero_wins(fxa__dnn_score *s, int32_t node, int mode, int32_t x, int32_t y) {
    static const double most = 0x1p64; /* 0 * most is 0 */
    enum { DEPTH = 6 };
    fxa__dnn_graph *g = s->g;
    x = fxa__dnn_as_virtual(s, x);
    if (g->status != FXA_OK) return 0;
    FXA__ASSERT(mode == CUDNN_POINTWISE_MUL || mode == CUDNN_POINTWISE_DIV);
    bool is_virtual = g->tensors[y].source == FXA__DNN_VIRTUAL;
    if (zero_is_plain(&g->tensors[y], mode)) return fxa__dnn_float2(g, mode, x, y);
    bool bounded = zero_bound(s, node, DEPTH) <= most;
    if (mode == CUDNN_POINTWISE_MUL && bounded && is_virtual)
        return fxa__dnn_float2(g, mode, x, fxa__dnn_float2(g, CUDNN_POINTWISE_MIN, y, fxa__dnn_float(g, most)));
    int32_t some =
        fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_NEQ, x, fxa__dnn_float(g, 0), CUDNN_DATA_INT32, CUDNN_DATA_FLOAT);
    if (g->status != FXA_OK) return 0;
    double instead = mode == CUDNN_POINTWISE_DIV ? 1 : 0;
    if (is_virtual) return fxa__dnn_float2(g, mode, x, fxa__dnn_select(g, y, fxa__dnn_float(g, instead), some));
    int32_t zero = fxa__dnn_float(g, 0);
    return fxa__dnn_select(g, fxa__dnn_float2(g, mode, x, y), zero, some);
}
