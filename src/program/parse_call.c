/* SPDX-License-Identifier: Apache-2.0
 *
 * Names in expressions, loads t[i, j], calls f(x, y), and the loops sum, any and all. A loop is unrolled: its body is
 * parsed once per iteration, with the loop variable bound to the number of the iteration.
 */
#include "parse.h"

#include <math.h>
#include <string.h>

fxa__symbol *fxa__parse_symbol(fxa__parser *p, size_t token) { return &p->symbols[p->lex.tokens[token].name]; }

const char *fxa__parse_text(const fxa__parser *p, size_t token, char out[FXA_MAX_NAME + 1]) {
    const fxa__name *n = &p->lex.names[p->lex.tokens[token].name];
    memcpy(out, n->text, n->length);
    out[n->length] = 0;
    return out;
}

bool fxa__parse_adopt(fxa__parser *p, size_t name) {
    fxa__symbol *s = fxa__parse_symbol(p, name);
    if (s->kind != SYM_OFFER || p->checking) return true; /* a function's body that is only checked declares nothing */
    const fxa_declaration *d = &p->config->declarations[s->value];
    if (d->dtype == FXA_DTYPE_NONE)
        *s = (fxa__symbol){SYM_PARAM, (uint8_t)d->type, 0, false, fxa_builder_param(p->b, d->name, d->type)};
    else
        *s = (fxa__symbol){SYM_TENSOR, (uint8_t)d->dtype, (uint8_t)d->rank, false,
                           fxa_builder_tensor(p->b, d->name, d->dtype, d->rank)};
    if (s->value < 0) (void)fxa__parse_fail_builder(p, name, name);
    return s->value >= 0;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

bool fxa__parse_index(fxa__parser *p, size_t name, int32_t rank, fxa_value index[FXA_MAX_RANK]) {
    size_t open = p->at;
    int32_t n = 0;
    fxa__parse_next(p);
    while (!fxa__parse_is(p, TOK_RBRACKET) || n > 0) {
        size_t first = p->at;
        fxa_value v = fxa__parse_expr(p);
        if (v < 0) return false;
        if (fxa__parse_type(p, v) == FXA_FLOAT) {
            bool divides = false;
            for (size_t i = first; i < p->at; i++) divides = divides || p->lex.tokens[i].kind == TOK_DIV;
            (void)fxa__parse_fail(p, first, p->at - 1, FXA_E_PROGRAM, "an index is an int, this is a float; write %s",
                                  divides ? "// for the quotient of ints, or int(...)" : "int(...)");
            return false;
        }
        if (n < rank) index[n] = v;
        n++;
        if (!fxa__parse_is(p, TOK_COMMA)) break;
        fxa__parse_next(p);
    }
    if (!fxa__parse_close(p, TOK_RBRACKET, open)) return false;
    if (n != rank)
        (void)fxa__parse_fail(
            p, name, p->at - 1, FXA_E_PROGRAM, "tensor '%.*s' has rank %d, so it takes %d %s; %d given%s",
            PARSE_NAME(p, name), rank, rank, rank == 1 ? "index" : "indices", n,
            fxa__parse_is(p, TOK_LBRACKET) ? "; indices stand in one pair of [ ], as in t[h, q]" : "");
    return n == rank;
}

/* Parses a load of the tensor at token `name`. */
static fxa_value call_load(fxa__parser *p, size_t name, const fxa__symbol *s) {
    fxa_value index[FXA_MAX_RANK];
    /* At a TOK_BAD, as in t.shape, this failure reports the lexer's message. */
    if (fxa__parse_is(p, TOK_BAD)) return fxa__parse_fail_unexpected(p, "'['");
    if (!fxa__parse_is(p, TOK_LBRACKET))
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%.*s' is a tensor of rank %d; read it as %.*s[%.*s]",
                               PARSE_NAME(p, name), s->rank, PARSE_NAME(p, name), s->rank ? 3 * s->rank - 2 : 0,
                               "i, j, k, l, m");
    if (!fxa__parse_index(p, name, s->rank, index)) return -1;
    if (p->checking) return PARSE_ANY;
    fxa_value v = fxa_builder_load(p->b, s->value, index, s->rank);
    return v < 0 ? fxa__parse_fail_builder(p, name, p->at - 1) : v;
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* Parses the arguments of the built-in function at token `name`. */
static fxa_value call_function(fxa__parser *p, size_t name) {
    size_t open = p->at, n = 0;
    fxa_op op = (fxa_op)fxa__parse_symbol(p, name)->value;
    size_t arity = fxa__op_info_get(op)->arity;
    bool folds = op == FXA_OP_MIN || op == FXA_OP_MAX; /* min and max take two or more arguments */
    fxa_value args[3] = {-1, -1, -1};
    fxa__parse_next(p);
    while (!fxa__parse_is(p, TOK_RPAREN) || n > 0) {
        size_t first = p->at;
        fxa_value v = fxa__parse_expr(p);
        if (v < 0) return -1;
        if (op == FXA_OP_SELECT && n == 0 && fxa__parse_not_bool(fxa__parse_type(p, v)))
            return fxa__parse_fail_bool(p, first, p->at - 1, "the condition of 'where'", fxa__parse_type(p, v));
        if (folds && n >= 2) {
            args[1] = v;
            if ((args[0] = fxa__parse_op(p, op, args, 2, name, name)) < 0) return -1;
        } else if (n < arity) {
            args[n] = v;
            if (folds && n == 1 && (args[0] = fxa__parse_op(p, op, args, 2, name, name)) < 0) return -1;
        }
        n++;
        if (!fxa__parse_is(p, TOK_COMMA)) break;
        fxa__parse_next(p);
    }
    if (!fxa__parse_close(p, TOK_RPAREN, open)) return -1;
    if (folds ? n < 2 : n != arity)
        return fxa__parse_fail(p, name, p->at - 1, FXA_E_PROGRAM, "'%.*s' takes %zu argument%s%s; %zu given",
                               PARSE_NAME(p, name), arity, arity == 1 ? "" : "s", folds ? " or more" : "", n);
    return folds ? args[0] : fxa__parse_op(p, op, args, n, name, name);
}

/* ---- Loops ------------------------------------------------------------------------------------------------------- */

/* Parses the count of a loop: after folding, a constant int from 0 to FXA_MAX_LOOP. Returns the count; -1 after a
 * failure. */
static int32_t call_count(fxa__parser *p) {
    size_t first = p->at;
    fxa_value v = fxa__parse_expr(p);
    if (v < 0) return -1;
    if (p->checking) return 1;
    fxa__node node = fxa__builder_node(p->b, v);
    if (node.op != FXA_OP_CONST || node.type != FXA_INT)
        return fxa__parse_fail(p, first, p->at - 1, FXA_E_PROGRAM,
                               "the count of a loop is a constant int; no float, input, param or tensor can be in it");
    if (node.imm < 0 || node.imm > FXA_MAX_LOOP)
        return fxa__parse_fail(p, first, p->at - 1, FXA_E_LIMIT, "the count of a loop is 0 to %d; %d given",
                               FXA_MAX_LOOP, node.imm);
    return node.imm;
}

/* Parses the body of a loop once and returns the value of the body. In a sum, a bool is converted to int; in the loops
 * `any` and `all`, a type other than bool is a failure. */
static fxa_value call_iteration(fxa__parser *p, size_t name, size_t body, bool sum) {
    fxa_value v = fxa__parse_expr(p);
    if (v < 0) return -1;
    fxa_type type = fxa__parse_type(p, v);
    if (!sum && fxa__parse_not_bool(type))
        return fxa__parse_fail_bool(p, body, p->at - 1, "the body of 'any' and 'all'", type);
    return sum && type == FXA_BOOL ? fxa__parse_op(p, FXA_OP_INT, &v, 1, name, name) : v;
}

/* Returns the value of the loop at token `name` if it has 0 iterations: 0 of the body's type for sum, false for any,
 * true for all. */
static fxa_value call_empty_loop(fxa__parser *p, size_t name, fxa_op op, fxa_value body) {
    fxa_value v;
    if (op != FXA_OP_ADD)
        v = fxa_builder_bool(p->b, op == FXA_OP_AND);
    else
        v = fxa__builder_type(p->b, body) == FXA_FLOAT ? fxa_builder_float(p->b, 0) : fxa_builder_int(p->b, 0);
    return v < 0 ? fxa__parse_fail_builder(p, name, name) : v;
}

/* Parses the body of a loop `count` times and returns the combined value. name: token with the name of the loop, such
 * as sum. own: symbol of the loop variable, set to the number of each iteration. */
static fxa_value call_iterations(fxa__parser *p, size_t name, fxa__symbol *own, int32_t count) {
    fxa_op op = (fxa_op)fxa__parse_symbol(p, name)->value;
    size_t body = p->at;
    fxa_value args[2] = {-1, -1};
    /* The body of a loop of 0 iterations is parsed once, to check it. */
    for (int32_t i = 0; i < count || i == 0; i++) {
        p->at = body;
        *own = (fxa__symbol){SYM_INDEX, FXA_INT, 0, false, p->checking ? PARSE_ANY : fxa_builder_int(p->b, i)};
        args[1] = call_iteration(p, name, body, op == FXA_OP_ADD);
        if (args[1] < 0) return -1;
        args[0] = i == 0 ? args[1] : fxa__parse_op(p, op, args, 2, name, name);
        if (args[0] < 0) return -1;
    }
    return count > 0 ? args[0] : call_empty_loop(p, name, op, args[0]);
}

/* Parses the loop at token `name`. */
static fxa_value call_loop(fxa__parser *p, size_t name) {
    size_t open = p->at;
    fxa__parse_next(p);
    size_t own_token = p->at;
    if (!fxa__parse_is(p, TOK_NAME)) return fxa__parse_fail_unexpected(p, "the loop's own name, as in sum(i, 4, ...)");
    fxa__symbol *own = fxa__parse_symbol(p, own_token), before = *own;
    if (fxa__parse_is_word(&before) || (before.kind >= SYM_PARAM && before.kind < SYM_LET))
        return fxa__parse_fail(p, own_token, own_token, FXA_E_PROGRAM, "'%.*s' is %s and cannot name a loop",
                               PARSE_NAME(p, own_token), fxa__parse_kind_name(&before));
    fxa__parse_next(p);
    if (!fxa__parse_expect(p, TOK_COMMA, "',' and the count of the loop")) return -1;
    int32_t count = call_count(p);
    if (count < 0 || !fxa__parse_expect(p, TOK_COMMA, "',' and the body of the loop")) return -1;
    fxa_value v = call_iterations(p, name, own, count);
    /* Restores the symbol that the loop variable has hidden. */
    *own = before;
    return v >= 0 && fxa__parse_close(p, TOK_RPAREN, open) ? v : -1;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Returns a named constant; `which` is a character of "tfinp", see SYM_CONSTANT. */
static fxa_value call_constant(fxa__parser *p, int32_t which) {
    switch (which) {
    case 't': return fxa_builder_bool(p->b, 1);
    case 'f': return fxa_builder_bool(p->b, 0);
    case 'i': return fxa_builder_float(p->b, INFINITY);
    case 'n': return fxa_builder_float(p->b, NAN);
    default: return fxa_builder_float(p->b, 3.14159265358979323846);
    }
}

/* Returns the current value of score, mask or dscore. */
static fxa_value call_current(fxa__parser *p, size_t name, fxa__symbol_kind kind) {
    bool forward = p->config->kind == FXA_PROGRAM_SCORE;
    if (kind == SYM_MASK && !forward)
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'mask' is of score programs, this writes dscore");
    if (kind == SYM_DSCORE && forward)
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'dscore' is of backward programs, this writes score");
    if (p->checking) return PARSE_ANY;
    fxa_value *current = kind == SYM_SCORE ? &p->score : kind == SYM_MASK ? &p->mask : &p->dscore;
    if (*current < 0 && kind == SYM_MASK)
        *current = fxa_builder_bool(p->b, 1);
    else if (*current < 0)
        *current = fxa_builder_input(p->b, kind == SYM_SCORE ? FXA_INPUT_SCORE : FXA_INPUT_DSCORE);
    return *current;
}

/* Returns the value of a name that is neither called nor indexed. */
static fxa_value call_variable(fxa__parser *p, size_t name, const fxa__symbol *s) {
    switch (s->kind) {
    case SYM_SCORE:
    case SYM_MASK:
    case SYM_DSCORE: return call_current(p, name, (fxa__symbol_kind)s->kind);
    case SYM_INPUT: return p->checking ? PARSE_ANY : fxa_builder_input(p->b, (fxa_input)s->value);
    case SYM_CONSTANT: return p->checking ? PARSE_ANY : call_constant(p, s->value);
    default: return s->value;
    }
}

/* Returns the kind of a symbol for messages. */
static const char *call_kind(uint32_t kind) {
    switch (kind) {
    case SYM_PARAM: return "a param";
    case SYM_LET: return "a let";
    case SYM_INDEX: return "the name of a loop";
    case SYM_ARGUMENT: return "a parameter";
    case SYM_CONSTANT: return "a constant";
    case SYM_TENSOR: return "a tensor";
    default: return "an input";
    }
}

/* Returns the symbol of a name. For a name of config->declarations that is not declared yet, returns the symbol that
 * its declaration would give, so that a function's body can be checked without declaring the name. */
static fxa__symbol call_symbol(fxa__parser *p, size_t name) {
    fxa__symbol s = *fxa__parse_symbol(p, name);
    if (s.kind != SYM_OFFER) return s;
    const fxa_declaration *d = &p->config->declarations[s.value];
    bool param = d->dtype == FXA_DTYPE_NONE;
    return (fxa__symbol){param ? SYM_PARAM : SYM_TENSOR, 0, param ? 0 : (uint8_t)d->rank, false, PARSE_ANY};
}

fxa_value fxa__parse_name(fxa__parser *p) {
    size_t name = p->at;
    if (!fxa__parse_adopt(p, name)) return -1;
    fxa__symbol s = call_symbol(p, name);
    if (s.kind == SYM_NONE) return fxa__parse_fail_unknown(p);
    if (s.kind == SYM_WORD)
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%.*s' begins a statement and has no value",
                               PARSE_NAME(p, name));
    fxa__parse_next(p);
    bool call = fxa__parse_is(p, TOK_LPAREN);
    if (s.kind == SYM_FUNCTION || s.kind == SYM_LOOP || s.kind == SYM_FN) {
        if (!call)
            return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%.*s' is a function; write %.*s(...)",
                                   PARSE_NAME(p, name), PARSE_NAME(p, name));
        if (s.kind == SYM_FN) return fxa__parse_call_fn(p, name);
        return s.kind == SYM_LOOP ? call_loop(p, name) : call_function(p, name);
    }
    if (call)
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%.*s' is %s and cannot be called", PARSE_NAME(p, name),
                               call_kind(s.kind));
    if (s.kind == SYM_TENSOR) return call_load(p, name, &s);
    if (fxa__parse_is(p, TOK_LBRACKET))
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%.*s' is %s; only a tensor has elements",
                               PARSE_NAME(p, name), call_kind(s.kind));
    fxa_value v = call_variable(p, name, &s);
    return v < 0 && p->err.status == FXA_OK ? fxa__parse_fail_builder(p, name, name) : v;
}
