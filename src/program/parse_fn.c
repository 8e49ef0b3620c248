/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions defined in the text: fn f(x, y) = expression. A call parses the tokens of the function's body again with
 * the parameters bound to the arguments; finished programs contain no functions.
 *
 * Scoping is lexical: the names of a body are resolved at its definition, and a call restores those bindings while it
 * parses the body. The body therefore cannot use the caller's parameters and loop variables or later lets, and can call
 * only functions defined before: there is no recursion. The body is also parsed at its definition, without values and
 * types (p->checking), so that errors which do not depend on the arguments are reported there, even without a call.
 */
#include "parse.h"

#include <string.h>

/* ---- Definitions ------------------------------------------------------------------------------------------------- */

static fxa_value fn_fail_memory(fxa__parser *p) {
    return fxa__parse_fail(p, p->at, p->at, FXA_E_MEMORY, "out of memory for the functions of a program");
}

/* Appends the binding of a name to a symbol. Returns false if memory ran out. */
static bool fn_bind(fxa__parser *p, uint32_t name, fxa__symbol symbol) {
    if (!fxa__grow(p->lex.host, &p->bindings, &p->bindings_capacity, p->n_bindings + 1, sizeof *p->bindings)) {
        (void)fn_fail_memory(p);
        return false;
    }
    p->bindings[p->n_bindings++] = (fxa__binding){name, symbol};
    return true;
}

/* Returns true if `name` is a parameter of f. */
static bool fn_is_parameter(const fxa__parser *p, const fxa__function *f, uint32_t name) {
    for (size_t i = 0; i < f->n_parameters; i++)
        if (p->bindings[f->first + i].name == name) return true;
    return false;
}

/* Parses one parameter of a definition. Returns false after a failure. */
static bool fn_parameter(fxa__parser *p, fxa__function *f) {
    const fxa__token *t = fxa__parse_token(p);
    if (t->kind != TOK_NAME) {
        (void)fxa__parse_fail_unexpected(p, "the name of a parameter");
        return false;
    }
    const fxa__symbol *s = &p->symbols[t->name];
    if (fxa__parse_is_word(s) || (s->kind >= SYM_PARAM && s->kind < SYM_LET))
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "'%.*s' is %s and cannot name a parameter",
                              PARSE_NAME(p, p->at), fxa__parse_kind_name(s));
    else if (fn_is_parameter(p, f, t->name))
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "'%.*s' names two parameters of '%.*s'",
                              PARSE_NAME(p, p->at), PARSE_NAME(p, f->token));
    else if (f->n_parameters >= PARSE_MAX_PARAMETERS)
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_LIMIT, "a function has at most %d parameters",
                              PARSE_MAX_PARAMETERS);
    else if (t[1].kind == TOK_COLON)
        (void)fxa__parse_fail(p, p->at + 1, p->at + 1, FXA_E_PROGRAM,
                              "parameters have no types of their own: they have those of the arguments");
    if (p->err.status != FXA_OK || !fn_bind(p, t->name, (fxa__symbol){SYM_ARGUMENT, 0, 0, false, PARSE_ANY}))
        return false;
    f->n_parameters++;
    fxa__parse_next(p);
    return true;
}

/* Parses the parameters of a definition. Returns false after a failure. */
static bool fn_parameters(fxa__parser *p, fxa__function *f) {
    size_t open = p->at;
    if (!fxa__parse_expect(p, TOK_LPAREN, "'(' and the parameters, as in fn f(x, y) = x * y")) return false;
    while (!fxa__parse_is(p, TOK_RPAREN) || f->n_parameters > 0) {
        if (!fn_parameter(p, f)) return false;
        if (!fxa__parse_is(p, TOK_COMMA)) break;
        fxa__parse_next(p);
    }
    return fxa__parse_close(p, TOK_RPAREN, open);
}

/* Records the current symbol of every name in the function's body that is no reserved word, loop variables included.
 * Returns false if memory ran out. */
static bool fn_capture(fxa__parser *p, fxa__function *f) {
    bool good = true;
    for (size_t i = f->body; i < f->end && good; i++) {
        const fxa__token *t = &p->lex.tokens[i];
        if (t->kind != TOK_NAME) continue;
        fxa__symbol *s = &p->symbols[t->name];
        if (s->bound || fxa__parse_is_word(s) || fn_is_parameter(p, f, t->name)) continue;
        good = fn_bind(p, t->name, *s);
        s->bound = true;
    }
    f->n_bindings = p->n_bindings - f->first;
    for (size_t i = f->first; i < p->n_bindings; i++) p->symbols[p->bindings[i].name].bound = false;
    return good;
}

/* Exchanges the symbols of bindings [first, first + n) with the current symbols of their names; a second call undoes
 * the exchange. */
static void fn_swap(fxa__parser *p, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) {
        fxa__symbol *s = &p->symbols[p->bindings[i].name], before = *s;
        *s = p->bindings[i].symbol;
        p->bindings[i].symbol = before;
    }
}

/* Parses the body of a definition without building anything and sets f->body and f->end. Returns -1 after a failure. */
static fxa_value fn_check(fxa__parser *p, fxa__function *f) {
    fn_swap(p, f->first, f->n_parameters);
    p->checking = true;
    f->body = p->at;
    fxa_value v = fxa__parse_last_expr(p);
    f->end = p->at;
    p->checking = false;
    fn_swap(p, f->first, f->n_parameters);
    return v;
}

fxa_value fxa__parse_fn(fxa__parser *p) {
    size_t name = fxa__parse_given_name(p, "the name of the function", SYM_FN);
    if (name == SIZE_MAX) return -1;
    fxa__function f = {.token = name, .first = p->n_bindings};
    /* With this symbol, a call of the function inside its own body fails. */
    *fxa__parse_symbol(p, name) = (fxa__symbol){SYM_FN, 0, 0, false, PARSE_ANY};
    if (!fn_parameters(p, &f)) return -1;
    if (!fxa__parse_expect(p, TOK_ASSIGN, "'=' and the expression that the function is")) return -1;
    if (fn_check(p, &f) < 0 || !fn_capture(p, &f)) return -1;
    if (!fxa__grow(p->lex.host, &p->functions, &p->functions_capacity, p->n_functions + 1, sizeof *p->functions))
        return fn_fail_memory(p);
    *fxa__parse_symbol(p, name) = (fxa__symbol){SYM_FN, 0, 0, false, (int32_t)p->n_functions};
    p->functions[p->n_functions++] = f;
    return 0;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Fails with a message like "'f' takes 2 arguments, f(x, y); 1 given"; returns -1. */
static fxa_value fn_fail_count(fxa__parser *p, size_t name, const fxa__function *f, size_t given) {
    char list[160] = "";
    size_t used = 0, i = 0;
    for (; i < f->n_parameters && used < sizeof list - FXA_MAX_NAME - 8; i++) {
        const fxa__name *n = &p->lex.names[p->bindings[f->first + i].name];
        if (i) list[used++] = ',', list[used++] = ' ';
        memcpy(list + used, n->text, n->length);
        used += n->length;
    }
    if (i < f->n_parameters) memcpy(list + used, ", ...", 5), used += 5;
    return fxa__parse_fail(p, name, p->at - 1, FXA_E_PROGRAM, "'%.*s' takes %zu argument%s, %.*s(%.*s); %zu given",
                           PARSE_NAME(p, name), f->n_parameters, f->n_parameters == 1 ? "" : "s", PARSE_NAME(p, name),
                           (int)used, list, given);
}

/* Parses the arguments of a call, each once, in the scope of the caller. Returns false after a failure. */
static bool fn_arguments(fxa__parser *p, size_t name, const fxa__function *f, fxa_value args[PARSE_MAX_PARAMETERS]) {
    size_t open = p->at, n = 0;
    fxa__parse_next(p);
    while (!fxa__parse_is(p, TOK_RPAREN) || n > 0) {
        fxa_value v = fxa__parse_expr(p);
        if (v < 0) return false;
        if (n < f->n_parameters) args[n] = v;
        n++;
        if (!fxa__parse_is(p, TOK_COMMA)) break;
        fxa__parse_next(p);
    }
    if (!fxa__parse_close(p, TOK_RPAREN, open)) return false;
    if (n != f->n_parameters) (void)fn_fail_count(p, name, f, n);
    return n == f->n_parameters;
}

/* Binds the names of f's body for a call and saves the caller's symbols at the end of the bindings. Returns false if
 * memory ran out. */
static bool fn_enter(fxa__parser *p, const fxa__function *f, const fxa_value *args) {
    size_t first = p->n_bindings;
    for (size_t i = 0; i < f->n_bindings; i++) {
        fxa__binding b = p->bindings[f->first + i];
        if (i < f->n_parameters) b.symbol = (fxa__symbol){SYM_ARGUMENT, 0, 0, false, args[i]};
        if (fn_bind(p, b.name, b.symbol)) continue;
        p->n_bindings = first;
        return false;
    }
    fn_swap(p, first, f->n_bindings);
    return true;
}

/* Restores the caller's symbols after a call. A name of config->declarations that the body of the called function has
 * used first (SYM_OFFER) stays declared. */
static void fn_leave(fxa__parser *p, const fxa__function *f) {
    size_t first = p->n_bindings - f->n_bindings;
    for (size_t i = f->n_parameters; i < f->n_bindings; i++) {
        fxa__binding *b = &p->bindings[first + i];
        const fxa__symbol *now = &p->symbols[b->name], *then = &p->bindings[f->first + i].symbol;
        /* a name that the called function's body has declared keeps its declaration */
        if (then->kind == SYM_OFFER && b->symbol.kind == SYM_OFFER) b->symbol = *now;
    }
    fn_swap(p, first, f->n_bindings);
    p->n_bindings = first;
}

fxa_value fxa__parse_call_fn(fxa__parser *p, size_t name) {
    fxa_value args[PARSE_MAX_PARAMETERS];
    int32_t which = fxa__parse_symbol(p, name)->value;
    if (which == PARSE_ANY)
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM,
                               "'%.*s' cannot call itself; loops are sum(i, n, ...), any and all", PARSE_NAME(p, name));
    fxa__function f = p->functions[which];
    if (!fn_arguments(p, name, &f, args)) return -1;
    if (p->checking) return PARSE_ANY;
    if (!fn_enter(p, &f, args)) return -1;
    fxa__caller here = {p->caller, name};
    size_t after = p->at;
    p->caller = &here;
    p->at = f.body;
    fxa_value v = fxa__parse_expr(p);
    p->at = after;
    p->caller = here.outer;
    fn_leave(p, &f);
    /* v may be a complete expression even if fxa__parse_next has failed, at the limit PARSE_MAX_STEPS. */
    return p->err.status == FXA_OK ? v : -1;
}
