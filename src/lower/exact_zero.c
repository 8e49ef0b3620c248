/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the two analyses of zeros in exact_zero.h.
 */
#include "exact_zero.h"

#include <float.h>
#include <math.h>

/* Returns true for a constant that is finite in f64 and in f32, the types in which engines compute programs. */
static bool zero_is_finite(const fxa_program *p, int32_t node) {
    return p->nodes[node].op == FXA_OP_CONST && fabs(p->nodes[node].f) <= (double)FLT_MAX;
}

/* Returns true if the float node n is proven 0 wherever dscore is 0. zero[i] is true if node i, an operand of n, is
 * proven so. A product with a factor that may be infinite or NaN is not proven 0, except by mulz and divz. */
static bool zero_of(const fxa_program *p, const fxa__node *n, const bool *zero) {
    bool x = n->n_args > 0 && zero[n->arg[0]], y = n->n_args > 1 && zero[n->arg[1]];
    switch (n->op) {
    case FXA_OP_CONST: return n->f == 0;
    case FXA_OP_INPUT: return n->imm == FXA_INPUT_DSCORE;
    case FXA_OP_NEG:
    case FXA_OP_ABS:
    case FXA_OP_WITH_GRAD:
    case FXA_OP_MULZ:
    case FXA_OP_DIVZ: return x;
    case FXA_OP_MUL: return (x && y) || (x && zero_is_finite(p, n->arg[1])) || (y && zero_is_finite(p, n->arg[0]));
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MIN:
    case FXA_OP_MAX: return x && y;
    case FXA_OP_CLAMP: return x && y && zero[n->arg[2]];
    case FXA_OP_SELECT: return y && zero[n->arg[2]];
    default: return false;
    }
}

void fxa__lower_exact_zero(const fxa_program *p, bool *zero) {
    for (int32_t i = 0; i < p->n_nodes; i++) zero[i] = p->nodes[i].type == FXA_FLOAT && zero_of(p, &p->nodes[i], zero);
}

/* What the sign of a zero operand changes in a node's result: nothing (IGNORED), only the sign of a result that is zero
 * (PASSED_ON), or more (OBSERVED). */
typedef enum zero_sign_use { ZERO_IGNORED, ZERO_PASSED_ON, ZERO_OBSERVED } zero_sign_use;

/* Returns the effect that the sign of operand k has on node n when the operand is 0 or -0. */
static zero_sign_use zero_sign_use_of(const fxa__node *n, int k) {
    switch (n->op) {
    case FXA_OP_EQ:
    case FXA_OP_NE:
    case FXA_OP_LT:
    case FXA_OP_LE:
    case FXA_OP_INT:
    case FXA_OP_ABS:
    case FXA_OP_EXP:
    case FXA_OP_EXP2:
    case FXA_OP_LOG:
    case FXA_OP_LOG2:
    case FXA_OP_SIGMOID:
    case FXA_OP_COS: return ZERO_IGNORED;
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_NEG:
    case FXA_OP_MUL:
    case FXA_OP_MIN:
    case FXA_OP_MAX:
    case FXA_OP_CLAMP:
    case FXA_OP_WITH_GRAD:
    case FXA_OP_SELECT:
    case FXA_OP_SQRT:
    case FXA_OP_TANH:
    case FXA_OP_ERF:
    case FXA_OP_SIN:
    case FXA_OP_TAN:
    case FXA_OP_ATAN:
    case FXA_OP_LOG1P:
    case FXA_OP_FLOOR:
    case FXA_OP_CEIL:
    case FXA_OP_ROUND:
    case FXA_OP_TRUNC: return ZERO_PASSED_ON;
    case FXA_OP_DIV: return k == 0 ? ZERO_PASSED_ON : ZERO_OBSERVED;
    case FXA_OP_MULZ: return k == 0 ? ZERO_IGNORED : ZERO_PASSED_ON;
    case FXA_OP_DIVZ: return k == 0 ? ZERO_IGNORED : ZERO_OBSERVED;
    default: return ZERO_OBSERVED; /* powers, rsqrt, remainders */
    }
}

void fxa__lower_zero_signs(const fxa_program *p, bool *signs) {
    for (int32_t i = 0; i < p->n_nodes; i++) signs[i] = false;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--) {
        const fxa__node *n = &p->nodes[i];
        for (int k = 0; k < n->n_args; k++) {
            zero_sign_use use = zero_sign_use_of(n, k);
            if (use == ZERO_OBSERVED || (use == ZERO_PASSED_ON && signs[i])) signs[n->arg[k]] = true;
        }
    }
}
