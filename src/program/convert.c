/* SPDX-License-Identifier: Apache-2.0
 *
 * Types of operations: which operands an operation accepts, how they are converted, and the type of the result. ops.def
 * names the rule (signature) of each operation. Conversions only widen (bool -> int -> float) and are cast nodes.
 * simplify.c simplifies every node that is built here.
 */
#include "build.h"

#include "../base/float_state.h"
#include "../base/invariant.h"

_Static_assert(FXA_FLOAT < FXA_INT && FXA_INT < FXA_BOOL, "the wider type has the smaller number");

/* Returns the widest of the types of x[n] and `narrowest`. */
static fxa_type convert_common(const fxa_builder *b, const fxa_value *x, size_t n, fxa_type narrowest) {
    fxa_type type = narrowest;
    for (size_t i = 0; i < n; i++)
        if (fxa__builder_type(b, x[i]) < type) type = fxa__builder_type(b, x[i]);
    return type;
}

fxa_value fxa__builder_convert(fxa_builder *b, fxa_value x, fxa_type type) {
    FXA__ASSERT(x >= 0);
    if (fxa__builder_type(b, x) == type) return x;
    uint8_t op = type == FXA_FLOAT ? FXA_OP_FLOAT : FXA_OP_INT;
    fxa__node cast = {.op = op, .type = (uint8_t)type, .n_args = 1, .arg = {x}};
    return fxa__builder_simplify(b, cast);
}

static bool convert_is_quotient(const fxa_builder *b, fxa_value x) { return b->nodes[x].op == FXA_OP_DIV; }

/* Sets the error of b to a message like "'&' takes ints or bools, not float and int" and returns -1. */
static fxa_value convert_refuse(fxa_builder *b, const fxa__op_info *op, const char *accepted, const fxa_value *x) {
    const char *first = fxa__type_name(fxa__builder_type(b, x[0]));
    if (op->arity == 1) return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' takes %s, not %s", op->text, accepted, first);
    const char *advice = op == fxa__op_info_get(FXA_OP_XOR) ? "; powers are written x ** y" /* ^ in other languages */
                         : convert_is_quotient(b, x[0]) || convert_is_quotient(b, x[1])
                             ? "; x / y is a float, x // y the quotient of ints"
                             : "";
    return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' takes %s, not %s and %s%s", op->text, accepted, first,
                             fxa__type_name(fxa__builder_type(b, x[1])), advice);
}

/* Converts the operands x[arity] in place to the types of the operation's signature. Returns the type of the result; 0
 * if b failed. */
static fxa_type convert_operands(fxa_builder *b, const fxa__op_info *op, fxa_value *x) {
    size_t n = op->arity, first = 0;
    fxa_type to = 0, result = 0;
    switch ((fxa__sig)op->sig) {
    case FXA__SIG_ARITH: result = to = convert_common(b, x, n, FXA_INT); break;
    case FXA__SIG_REAL: result = to = FXA_FLOAT; break;
    case FXA__SIG_CMP:
        to = convert_common(b, x, n, FXA_INT);
        result = FXA_BOOL;
        break;
    case FXA__SIG_BITS:
    case FXA__SIG_SHIFT:
        result = to = convert_common(b, x, n, op->sig == FXA__SIG_SHIFT ? FXA_INT : FXA_BOOL);
        if (to == FXA_FLOAT) {
            (void)convert_refuse(b, op, op->sig == FXA__SIG_SHIFT ? "ints" : "ints or bools", x);
            return 0;
        }
        break;
    case FXA__SIG_CHOICE:
        if (fxa__builder_type(b, x[0]) != FXA_BOOL) {
            (void)fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' needs a bool condition, not %s (write x != 0)", op->text,
                                    fxa__type_name(fxa__builder_type(b, x[0])));
            return 0;
        }
        first = 1;
        result = to = convert_common(b, x + 1, n - 1, FXA_BOOL);
        break;
    case FXA__SIG_TOF: return FXA_FLOAT;
    default: return FXA_INT; /* FXA__SIG_TOI, as in int(x); fxa_builder_op has refused FXA__SIG_LEAF */
    }
    for (size_t i = first; i < n; i++) x[i] = fxa__builder_convert(b, x[i], to);
    return fxa__builder_failed(b) ? 0 : result;
}

fxa_value fxa_builder_op(fxa_builder *b, fxa_op op, const fxa_value *args, size_t n_args) {
    FXA__FLOAT_SCOPE;
    if (!b || fxa__builder_failed(b)) return -1;
    const fxa__op_info *info = fxa__op_info_get(op);
    if (!info->id || info->sig == FXA__SIG_LEAF)
        return fxa__builder_fail(b, FXA_E_ARGUMENT, "%d is no operation on values; %s", (int)op,
                                 info->id ? "leaves have calls of their own" : "fxa_op lists them");
    if (n_args != info->arity || !args)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' takes %d operand%s, got %zu", info->text, info->arity,
                                 info->arity == 1 ? "" : "s", args ? n_args : 0);
    fxa__node node = {.op = (uint8_t)op, .n_args = info->arity};
    for (size_t i = 0; i < n_args; i++) {
        if (!fxa__builder_holds(b, args[i])) return -1;
        node.arg[i] = args[i];
    }
    node.type = (uint8_t)convert_operands(b, info, node.arg);
    return node.type ? fxa__builder_simplify(b, node) : -1;
}

fxa_value fxa_builder_op1(fxa_builder *b, fxa_op op, fxa_value x) { return fxa_builder_op(b, op, &x, 1); }

fxa_value fxa_builder_op2(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y) {
    return fxa_builder_op(b, op, (const fxa_value[]){x, y}, 2);
}

fxa_value fxa_builder_op3(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y, fxa_value z) {
    return fxa_builder_op(b, op, (const fxa_value[]){x, y, z}, 3);
}
