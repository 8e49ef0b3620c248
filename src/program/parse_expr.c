/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions: operators by precedence, conditionals, literals. Each operation is passed to the builder at once, which
 * types and folds it; a failure of the builder is reported at the operator.
 */
#include "parse.h"
#include "decimal.h"
#include "../base/num.h"

#include <stdio.h>

const fxa__operator *fxa__parse_operator(uint32_t token) {
    static const fxa__operator operators[TOK_COUNT] = {
#define OP(code, ID, text, form, prec, ...)                                                                            \
    TOK_OF_##form([TOK_##ID] = {text, FXA__##form, FXA__PREC_##prec, FXA_OP_##ID, false})
#define ALSO(ID, text, form, prec, op)                                                                                 \
    TOK_OF_##form([TOK_##ID] = {text, FXA__##form, FXA__PREC_##prec, FXA_OP_##op, true})
#include "ops.def"
    };
    return &operators[token];
}

/* Returns the precedence of a left-associative binary operator; FXA__PREC_ANY for other tokens. ** is excluded: it
 * binds tighter than a prefix operator, and expr_power parses it. */
static uint8_t expr_binary(uint32_t token) {
    const fxa__operator *o = fxa__parse_operator(token);
    return o->form == FXA__INFIX && o->prec < FXA__PREC_PREFIX ? o->prec : FXA__PREC_ANY;
}

/* Increases the nesting depth. Fails and returns false beyond FXA_MAX_NESTING. */
static bool expr_enter(fxa__parser *p) {
    if (p->nesting >= FXA_MAX_NESTING) {
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_LIMIT, "nested deeper than %d levels, the most that is accepted",
                              FXA_MAX_NESTING);
        return false;
    }
    p->nesting++;
    return true;
}

fxa_type fxa__parse_type(const fxa__parser *p, fxa_value v) { return p->checking ? 0 : fxa__builder_type(p->b, v); }

fxa_value fxa__parse_op(fxa__parser *p, fxa_op op, const fxa_value *args, size_t n, size_t first, size_t last) {
    if (p->err.status != FXA_OK) return -1;
    if (p->checking) return PARSE_ANY;
    fxa_value v = fxa_builder_op(p->b, op, args, n);
    return v < 0 ? fxa__parse_fail_builder(p, first, last) : v;
}

/* ---- Literals ---------------------------------------------------------------------------------------------------- */

/* Returns v; if v is negative, reports the builder's failure at a token. */
static fxa_value expr_value(fxa__parser *p, size_t token, fxa_value v) {
    return v < 0 ? fxa__parse_fail_builder(p, token, token) : v;
}

/* Parses a TOK_INT. */
static fxa_value expr_int(fxa__parser *p, bool minus) {
    size_t here = p->at;
    bool hex;
    uint64_t x = fxa__lex_int(&p->lex, fxa__parse_token(p), &hex);
    if (x > (hex ? UINT32_MAX : minus ? 2147483648u : 2147483647u))
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM,
                               hex ? "this int has more than 32 bits; 0xFFFFFFFF is the largest"
                                   : "this int is larger than 2147483647; with a point (3000000000.0) it is a float");
    fxa__parse_next(p);
    if (p->checking) return PARSE_ANY;
    return expr_value(p, here, fxa_builder_int(p->b, fxa__wrap32(minus ? -(int64_t)x : (int64_t)x)));
}

/* Parses a TOK_FLOAT. */
static fxa_value expr_float(fxa__parser *p, bool minus) {
    size_t here = p->at;
    double x;
    if (!fxa__decimal_read(p->lex.text + fxa__parse_token(p)->at, fxa__parse_token(p)->length, &x))
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM, "this number is too large for a float; write inf");
    fxa__parse_next(p);
    if (p->checking) return PARSE_ANY;
    return expr_value(p, here, fxa_builder_float(p->b, minus ? -x : x));
}

/* Parses a TOK_INT or TOK_FLOAT; minus: the number is negated. */
static fxa_value expr_number(fxa__parser *p, bool minus) {
    if (fxa__parse_is(p, TOK_INT)) return expr_int(p, minus);
    return expr_float(p, minus);
}

/* Returns true at a minus and a number that are parsed as one constant, so that -2147483648 is an int. Returns false
 * for a number before **, because -2 ** 2 is -(2 ** 2). */
static bool expr_is_negative(const fxa__parser *p) {
    const fxa__token *t = fxa__parse_token(p);
    return t[0].kind == TOK_SUB && (t[1].kind == TOK_INT || t[1].kind == TOK_FLOAT) && t[2].kind != TOK_POW;
}

/* ---- Operands and prefixes --------------------------------------------------------------------------------------- */

/* Parses ( expression ). */
static fxa_value expr_parenthesis(fxa__parser *p) {
    size_t open = p->at;
    fxa__parse_next(p);
    fxa_value v = fxa__parse_expr(p);
    return v >= 0 && fxa__parse_close(p, TOK_RPAREN, open) ? v : -1;
}

/* Parses an operand without prefix operators. */
static fxa_value expr_primary(fxa__parser *p) {
    switch (fxa__parse_token(p)->kind) {
    case TOK_INT:
    case TOK_FLOAT: return expr_number(p, false);
    case TOK_NAME: return fxa__parse_name(p);
    case TOK_LPAREN: return expr_parenthesis(p);
    default: return fxa__parse_fail_expression(p, "a value");
    }
}

/* Fails because tokens first to last, an operand of o, must be a bool; returns -1. */
static fxa_value expr_fail_bool(fxa__parser *p, const fxa__operator *o, size_t first, size_t last, fxa_type given) {
    char name[8];
    (void)snprintf(name, sizeof name, "'%s'", o->text);
    return fxa__parse_fail_bool(p, first, last, name, given);
}

static fxa_value expr_prefix(fxa__parser *p);

/* Parses x ** y, which is right-associative; the exponent may have a prefix operator. */
static fxa_value expr_power(fxa__parser *p) {
    fxa_value args[2];
    if ((args[0] = expr_primary(p)) < 0 || !fxa__parse_is(p, TOK_POW)) return args[0];
    size_t here = p->at;
    if (!expr_enter(p)) return -1;
    fxa__parse_next(p);
    if ((args[1] = expr_prefix(p)) < 0) return -1;
    fxa__parse_leave(p);
    return fxa__parse_op(p, FXA_OP_POW, args, 2, here, here);
}

/* Parses an operand with its prefix operators. */
static fxa_value expr_prefix(fxa__parser *p) {
    size_t here = p->at;
    uint32_t kind = fxa__parse_token(p)->kind;
    const fxa__operator *prefix = fxa__parse_operator(kind == TOK_SUB ? TOK_NEG : kind);
    if (prefix->form != FXA__PREFIX && kind != TOK_ADD) return expr_power(p);
    if (expr_is_negative(p)) {
        fxa__parse_next(p);
        /* fxa__parse_next fails at the limit PARSE_MAX_STEPS; then no number is there. */
        return p->err.status == FXA_OK ? expr_number(p, true) : -1;
    }
    if (!expr_enter(p)) return -1;
    fxa__parse_next(p);
    size_t first = p->at;
    fxa_value x = expr_prefix(p);
    if (x < 0) return -1;
    fxa__parse_leave(p);
    fxa_type type = fxa__parse_type(p, x);
    if (prefix->bools && fxa__parse_not_bool(type)) return expr_fail_bool(p, prefix, first, p->at - 1, type);
    if (kind == TOK_ADD) return type == FXA_BOOL ? fxa__parse_op(p, FXA_OP_INT, &x, 1, here, here) : x;
    return fxa__parse_op(p, (fxa_op)prefix->op, &x, 1, here, here);
}

/* ---- Binary operators and conditionals --------------------------------------------------------------------------- */

/* Fails at a comparison whose left operand is a comparison: a chain like a < b < c, or a < b & c < d, where & (like |
 * and ^) binds tighter than comparisons, unlike in C. */
static fxa_value expr_fail_chain(fxa__parser *p, const fxa__pending *o) {
    int depth = 0;
    for (size_t i = o->at + 1; i < p->at; i++) {
        uint32_t kind = p->lex.tokens[i].kind;
        depth += (kind == TOK_LPAREN || kind == TOK_LBRACKET) - (kind == TOK_RPAREN || kind == TOK_RBRACKET);
        if (depth > 0 || (kind != TOK_OR && kind != TOK_XOR && kind != TOK_AND)) continue;
        char c = kind == TOK_OR ? '|' : kind == TOK_XOR ? '^' : '&';
        const char *instead = kind == TOK_OR ? "|| or " : kind == TOK_XOR ? "" : "&& or ";
        return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM,
                               "'%c' binds tighter than comparisons; write %s(a < b) %c (c < d)", c, instead, c);
    }
    return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM,
                           "comparisons do not chain; for a < b < c write a < b && b < c");
}

/* Builds the operation of a pending operator. `right` is its right operand, which ends before the current token. */
static fxa_value expr_complete(fxa__parser *p, const fxa__pending *o, fxa_value right) {
    const fxa__operator *operator= fxa__parse_operator(p->lex.tokens[o->at].kind);
    fxa_value args[2] = {o->left, right};
    if (operator->bools) {
        fxa_type x = fxa__parse_type(p, args[0]), y = fxa__parse_type(p, args[1]);
        if (fxa__parse_not_bool(x)) return expr_fail_bool(p, operator, o->first, o->at - 1, x);
        if (fxa__parse_not_bool(y)) return expr_fail_bool(p, operator, o->at + 1, p->at - 1, y);
    }
    if (o->prec == FXA__PREC_COMPARE && expr_binary(fxa__parse_token(p)->kind) == FXA__PREC_COMPARE)
        return expr_fail_chain(p, o);
    return fxa__parse_op(p, (fxa_op) operator->op, args, 2, o->at, o->at);
}

/* Pushes a pending operator. Returns false if memory ran out. */
static bool expr_push(fxa__parser *p, fxa__pending o) {
    if (!fxa__grow(p->lex.host, &p->pending, &p->pending_capacity, p->n_pending + 1, sizeof *p->pending)) {
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_MEMORY, "out of memory for the operators of an expression");
        return false;
    }
    p->pending[p->n_pending++] = o;
    return true;
}

/* Parses operands and the binary operators between them by precedence, with an explicit operator stack instead of
 * recursion. */
static fxa_value expr_operators(fxa__parser *p) {
    size_t base = p->n_pending;
    for (;;) {
        size_t first = p->at;
        fxa_value v = expr_prefix(p);
        uint8_t prec = expr_binary(fxa__parse_token(p)->kind);
        /* Builds the pending operators that bind at least as tightly as the next token, innermost first; all of them at
         * the end of the expression. v is the right operand of the innermost, and each result is the right operand of
         * the next. */
        while (v >= 0 && p->n_pending > base && p->pending[p->n_pending - 1].prec >= prec) {
            const fxa__pending *o = &p->pending[--p->n_pending];
            first = o->first;
            v = expr_complete(p, o, v);
        }
        if (v < 0 || prec == FXA__PREC_ANY) return v;
        if (!expr_push(p, (fxa__pending){prec, v, first, p->at})) return -1;
        fxa__parse_next(p);
    }
}

fxa_value fxa__parse_expr(fxa__parser *p) {
    size_t first = p->at;
    fxa_value args[3];
    if (!expr_enter(p) || (args[0] = expr_operators(p)) < 0) return -1;
    if (fxa__parse_is(p, TOK_QUESTION)) {
        size_t here = p->at;
        fxa_type type = fxa__parse_type(p, args[0]);
        if (fxa__parse_not_bool(type)) return fxa__parse_fail_bool(p, first, here - 1, "the condition of '?'", type);
        fxa__parse_next(p);
        if ((args[1] = fxa__parse_expr(p)) < 0) return -1;
        if (!fxa__parse_expect(p, TOK_COLON, "':' and the value for when it is false")) return -1;
        if ((args[2] = fxa__parse_expr(p)) < 0) return -1;
        args[0] = fxa__parse_op(p, FXA_OP_SELECT, args, 3, here, here);
    }
    fxa__parse_leave(p);
    return args[0];
}
