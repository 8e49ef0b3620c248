/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses program text: entry points, reserved words, statements. Declarations are in parse_declare.c, expressions in
 * parse_expr.c. The texts of one parse form one program, in order; a statement cannot extend from one text into the
 * next.
 */
#include "parse.h"

#include "../base/float_state.h"
#include "../base/invariant.h"

#include <stddef.h>
#include <string.h>

void fxa__parse_next(fxa__parser *p) {
    if (!FXA__HOLDS(p->at + 1 < p->lex.n_tokens)) return;
    if (p->at >= p->farthest)
        p->farthest = p->at + 1;
    else if (++p->steps > PARSE_MAX_STEPS) {
        (void)fxa__parse_fail(p, p->at, p->at, FXA_E_LIMIT,
                              "loops and calls read more than %d tokens again, the most that is accepted",
                              PARSE_MAX_STEPS);
        p->at = p->lex.n_tokens - 2;
    }
    p->at++;
}

bool fxa__parse_expect(fxa__parser *p, uint32_t kind, const char *what) {
    bool found = fxa__parse_is(p, kind);
    if (found)
        fxa__parse_next(p);
    else
        (void)fxa__parse_fail_unexpected(p, what);
    return found;
}

/* Returns true if the current token ends a statement or begins another one. Inside brackets this shows that a bracket
 * was never closed, which is the mistake to report. */
static bool parse_ran_on(const fxa__parser *p) {
    const fxa__token *t = fxa__parse_token(p);
    if (t->kind == TOK_END || t->kind == TOK_LINE) return true;
    if (t->kind != TOK_NAME) return false;
    uint32_t kind = p->symbols[t->name].kind;
    bool output = kind == SYM_SCORE || kind == SYM_MASK || kind == SYM_DSCORE;
    return kind == SYM_WORD || (output && t[1].kind == TOK_ASSIGN);
}

bool fxa__parse_close(fxa__parser *p, uint32_t kind, size_t open) {
    bool round = kind == TOK_RPAREN, found = fxa__parse_is(p, kind);
    if (found)
        fxa__parse_next(p);
    else if (parse_ran_on(p))
        (void)fxa__parse_fail(p, open, open, FXA_E_PROGRAM, "this '%c' is never closed", round ? '(' : '[');
    else
        (void)fxa__parse_fail_expression(p, round ? "an operator, ',' or ')'" : "an operator, ',' or ']'");
    return found;
}

/* ---- Statements with an expression: let, assignments, grad ------------------------------------------------------- */

/* The end of the statement is checked before the expression's type, since a type error may be caused by what
 * follows. */
fxa_value fxa__parse_last_expr(fxa__parser *p) {
    fxa_value v = fxa__parse_expr(p);
    if (v < 0 || fxa__parse_is(p, TOK_LINE) || fxa__parse_is(p, TOK_END)) return v;
    if (fxa__parse_is(p, TOK_RPAREN) || fxa__parse_is(p, TOK_RBRACKET))
        return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "this '%c' closes nothing",
                               fxa__parse_is(p, TOK_RPAREN) ? ')' : ']');
    return fxa__parse_fail_expression(p, "an operator or the end of the statement");
}

/* Parses a let statement after the word let. */
static fxa_value parse_let(fxa__parser *p) {
    size_t name = fxa__parse_given_name(p, "the name of the let", SYM_LET);
    if (name == SIZE_MAX) return -1;
    if (fxa__parse_is_compound_assignment(p, p->at)) return fxa__parse_fail_compound_assignment(p, p->at, name, "let ");
    if (!fxa__parse_expect(p, TOK_ASSIGN, "'=' and the value of the let")) return -1;
    fxa_value v = fxa__parse_last_expr(p);
    if (v < 0) return -1;
    *fxa__parse_symbol(p, name) = (fxa__symbol){SYM_LET, 0, 0, false, v};
    return 0;
}

static const char *parse_output_name(uint32_t kind) {
    return kind == SYM_SCORE ? "score" : kind == SYM_MASK ? "mask" : "dscore";
}

/* Returns true if the program's kind has the output `kind` (SYM_SCORE, SYM_MASK or SYM_DSCORE); else fails at token
 * `at`. */
static bool parse_can_assign(fxa__parser *p, uint32_t kind, size_t at) {
    bool forward = p->config->kind == FXA_PROGRAM_SCORE;
    if (forward != (kind == SYM_DSCORE)) return true;
    (void)fxa__parse_fail(p, at, at, FXA_E_PROGRAM, "%s cannot assign '%s'; %s",
                          forward ? "a score program" : "a backward program", parse_output_name(kind),
                          forward ? "it assigns score and mask" : "it assigns dscore");
    return false;
}

/* Assigns v, the expression that begins at token `first`, to score, mask or dscore. A failure to convert v to float is
 * reported at token `name`. Returns the stored value. */
static fxa_value parse_store(fxa__parser *p, uint32_t kind, size_t name, size_t first, fxa_value v) {
    fxa_type type = fxa__builder_type(p->b, v);
    if (kind == SYM_MASK && type != FXA_BOOL) return fxa__parse_fail_bool(p, first, p->at - 1, "mask", type);
    if (kind != SYM_MASK && type == FXA_BOOL)
        return fxa__parse_fail(p, first, p->at - 1, FXA_E_PROGRAM,
                               "%s needs a number, this is a bool; write %s, or float(...) for 0 and 1",
                               parse_output_name(kind), kind == SYM_SCORE ? "mask = ..." : "c ? a : b");
    if (kind != SYM_MASK) v = fxa__parse_op(p, FXA_OP_FLOAT, &v, 1, name, name);
    *(kind == SYM_SCORE ? &p->score : kind == SYM_MASK ? &p->mask : &p->dscore) = v;
    return v;
}

/* Parses score = ..., mask = ... or dscore = ... */
static fxa_value parse_assign(fxa__parser *p) {
    size_t name = p->at;
    uint32_t kind = fxa__parse_symbol(p, name)->kind;
    if (!parse_can_assign(p, kind, name)) return -1;
    fxa__parse_next(p);
    if (fxa__parse_is_compound_assignment(p, p->at)) return fxa__parse_fail_compound_assignment(p, p->at, name, "");
    if (fxa__parse_is(p, TOK_EQ))
        return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "'==' compares; write %s = ... to assign",
                               parse_output_name(kind));
    if (!fxa__parse_expect(p, TOK_ASSIGN, "'='")) return -1;
    size_t first = p->at;
    fxa_value v = fxa__parse_last_expr(p);
    return v < 0 ? -1 : parse_store(p, kind, name, first, v);
}

/* Parses grad name += value or grad name[i, j] += value, after the word grad. */
static fxa_value parse_grad(fxa__parser *p) {
    char text[FXA_MAX_NAME + 1];
    fxa_value index[FXA_MAX_RANK];
    size_t name = p->at;
    if (p->config->kind != FXA_PROGRAM_DERIVATIVE)
        return fxa__parse_fail(p, name - 1, name - 1, FXA_E_PROGRAM, "'grad' belongs to derivative programs only");
    if (!fxa__parse_is(p, TOK_NAME)) return fxa__parse_fail_unexpected(p, "the name of a param or tensor");
    if (!fxa__parse_adopt(p, name)) return -1;
    fxa__symbol s = *fxa__parse_symbol(p, name);
    if (s.kind == SYM_NONE) return fxa__parse_fail_unknown(p);
    if (s.kind != SYM_PARAM && s.kind != SYM_TENSOR)
        return fxa__parse_fail_unexpected(p, "the name of a param or tensor");
    fxa__parse_next(p);
    if (s.kind == SYM_TENSOR && !fxa__parse_is(p, TOK_LBRACKET))
        return fxa__parse_fail_unexpected(p, "'[' and the indices");
    if (s.kind == SYM_TENSOR && !fxa__parse_index(p, name, s.rank, index)) return -1;
    if (!fxa__parse_expect(p, TOK_ADD_ASSIGN, "'+='")) return -1;
    fxa_value v = fxa__parse_last_expr(p);
    if (v < 0) return -1;
    (void)fxa__parse_text(p, name, text);
    if (s.kind == SYM_PARAM)
        fxa__builder_grad_param(p->b, text, v);
    else
        fxa__builder_grad_load(p->b, text, index, s.rank, v);
    return fxa__builder_failed(p->b) ? fxa__parse_fail_builder(p, name, name) : 0;
}

/* Parses one statement, without the newline or ';' that ends it. */
static fxa_value parse_statement(fxa__parser *p) {
    char text[FXA_MAX_NAME + 1];
    const char *wanted = p->config->kind == FXA_PROGRAM_SCORE ? "a statement: param, tensor, let, fn, score = or mask ="
                                                              : "a statement: param, tensor, let, fn or dscore =";
    if (fxa__parse_token(p)->kind >= TOK_QUESTION)
        return fxa__parse_fail_unexpected(p, "a statement; to go on from the line above, end that with the operator");
    if (!fxa__parse_is(p, TOK_NAME)) return fxa__parse_fail_unexpected(p, wanted);
    fxa__symbol s = *fxa__parse_symbol(p, p->at);
    (void)fxa__parse_text(p, p->at, text);
    if (s.kind == SYM_SCORE || s.kind == SYM_MASK || s.kind == SYM_DSCORE) return parse_assign(p);
    if (s.kind == SYM_WORD) {
        fxa__parse_next(p);
        switch (s.value) {
        case 'p': return fxa__parse_param(p);
        case 't': return fxa__parse_tensor(p);
        case 'l': return parse_let(p);
        case 'f': return fxa__parse_fn(p);
        default: return parse_grad(p);
        }
    }
    bool joining = fxa__parse_is_compound_assignment(p, p->at + 1);
    if (p->lex.tokens[p->at + 1].kind != TOK_ASSIGN && !joining) return fxa__parse_fail_unexpected(p, wanted);
    if (joining && s.kind == SYM_LET) return fxa__parse_fail_compound_assignment(p, p->at + 1, p->at, "let ");
    if (s.kind == SYM_NONE || s.kind == SYM_LET || s.kind == SYM_OFFER) return fxa__parse_fail_output(p);
    return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "'%s' cannot be assigned; write let NAME = ...", text);
}

/* Parses a text of kind FXA_TEXT_SCORE, MASK or DSCORE: one expression. A mask is combined by && with the mask that
 * earlier texts have assigned. */
static fxa_value parse_expression_text(fxa__parser *p, uint32_t text_kind) {
    uint32_t kind = text_kind == FXA_TEXT_SCORE ? SYM_SCORE : text_kind == FXA_TEXT_MASK ? SYM_MASK : SYM_DSCORE;
    size_t first = p->at;
    fxa_value before = p->mask;
    if (!parse_can_assign(p, kind, first)) return -1;
    fxa_value v = fxa__parse_last_expr(p);
    if (v < 0) return -1;
    if (!fxa__parse_is(p, TOK_END)) return fxa__parse_fail_unexpected(p, "the end of the expression");
    v = parse_store(p, kind, first, first, v);
    if (v < 0 || kind != SYM_MASK || before < 0) return v;
    p->mask = fxa__parse_op(p, FXA_OP_AND, (fxa_value[]){before, v}, 2, first, first);
    return p->mask;
}

/* Parses all texts. */
static fxa_value parse_program(fxa__parser *p) {
    size_t text = 0;
    bool begins = true; /* true = the next token is the first of a text */
    while (p->at < p->lex.n_tokens) {
        uint32_t kind = begins ? fxa__lex_text_kind(p->config->text_kinds, text) : FXA_TEXT_STATEMENTS;
        begins = false;
        if (kind != FXA_TEXT_STATEMENTS) {
            if (parse_expression_text(p, kind) < 0) return -1;
        } else if (fxa__parse_is(p, TOK_END)) {
            p->at++;
            text++;
            begins = true;
        } else if (fxa__parse_is(p, TOK_LINE)) {
            fxa__parse_next(p);
        } else {
            if (parse_statement(p) < 0) return -1;
            if (!fxa__parse_is(p, TOK_LINE)) return fxa__parse_fail_unexpected(p, "the end of the statement");
        }
    }
    return 0;
}

/* ---- Setting up -------------------------------------------------------------------------------------------------- */

/* Binds a name to a symbol. Returns false if memory ran out. */
static bool parse_define(fxa__parser *p, const char *text, uint32_t kind, int32_t value) {
    int64_t name = fxa__lex_name(&p->lex, text, strlen(text));
    if (name < 0 || !fxa__grow(p->lex.host, &p->symbols, &p->symbols_capacity, (size_t)name + 1, sizeof *p->symbols))
        return false;
    p->symbols[name] = (fxa__symbol){.kind = (uint8_t)kind, .value = value};
    return true;
}

/* Binds reserved words and the names of inputs and functions to their symbols. Returns false if memory ran out. */
static bool parse_words(fxa__parser *p) {
    static const struct {
        const char *text;
        uint8_t kind, value;
    } words[] = {
#define SYM_OF_INFIX(...)
#define SYM_OF_PREFIX(...)
#define SYM_OF_CALL(...) __VA_ARGS__,
#define WORD(text, kind, value) {text, SYM_##kind, value},
#define ALSO(ID, text, form, prec, op) SYM_OF_##form({text, SYM_FUNCTION, FXA_OP_##op})
#include "ops.def"
    };
    bool good = true;
    for (int32_t i = 0; i < FXA_INPUT_COUNT; i++) {
        uint32_t kind = i == FXA_INPUT_SCORE ? SYM_SCORE : i == FXA_INPUT_DSCORE ? SYM_DSCORE : SYM_INPUT;
        good = good && parse_define(p, fxa__input_name((uint32_t)i), kind, i);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        good = good && parse_define(p, words[i].text, words[i].kind, words[i].value);
    for (int32_t op = 0; op < FXA_OP_COUNT; op++) {
        const fxa__op_info *info = fxa__op_info_get((uint32_t)op);
        if (info->id && info->form == FXA__CALL) good = good && parse_define(p, info->text, SYM_FUNCTION, op);
    }
    return good;
}

/* Binds each name in config->declarations to a SYM_OFFER. Fails if a declaration is invalid or has a reserved word as
 * its name. */
static fxa_status parse_offers(fxa__parser *p, fxa_error *err) {
    for (size_t i = 0; i < p->config->n_declarations; i++) {
        const fxa_declaration *d = &p->config->declarations[i];
        bool param = d->dtype == FXA_DTYPE_NONE;
        if (d->name && fxa__lex_is_name(d->name) && fxa__name_reserved(d->name))
            return fxa__fail(err, FXA_E_ARGUMENT,
                             "declaration %zu: '%s' is a word of the language and cannot name a %s", i, d->name,
                             param ? "param" : "tensor");
        if (!d->name || !fxa__lex_is_name(d->name))
            return fxa__fail(
                err, FXA_E_ARGUMENT,
                "declaration %zu: '%.63s' cannot name a %s: up to %d letters, digits and '_' can, no digit first", i,
                d->name ? d->name : "", param ? "param" : "tensor", FXA_MAX_NAME);
        if (param ? d->type != FXA_FLOAT && d->type != FXA_INT : d->rank < 0 || d->rank > FXA_MAX_RANK)
            return fxa__fail(err, FXA_E_ARGUMENT, "declaration %zu: '%s' needs %s", i, d->name,
                             param ? "type float or int, or a dtype" : "a rank of 0 to 5");
        if (!parse_define(p, d->name, SYM_OFFER, (int32_t)i)) return fxa__fail_memory(err, "the names of a program");
    }
    return FXA_OK;
}

/* Checks the arguments, splits the texts into tokens and creates the builder. */
static fxa_status parse_open(fxa__parser *p, fxa__host *host, fxa_error *err) {
    const fxa_parse_config *c = p->config;
    if (c->kind > FXA_PROGRAM_DERIVATIVE)
        return fxa__fail(err, FXA_E_ARGUMENT, "program kind %u is none; 0 to 2 are accepted", c->kind);
    if ((!c->texts && c->n_texts) || (!c->declarations && c->n_declarations) || c->n_declarations > INT32_MAX)
        return fxa__fail(err, FXA_E_ARGUMENT, "texts or declarations of a parse are NULL but counted");
    for (size_t i = 0; i < c->n_texts; i++)
        if (fxa__lex_text_kind(c->text_kinds, i) > FXA_TEXT_DSCORE)
            return fxa__fail(err, FXA_E_ARGUMENT, "text_kinds[%zu] is %u; 0 to 3 are accepted", i, c->text_kinds[i]);
    FXA_TRY(fxa__lex_open(&p->lex, host, c->texts, c->n_texts, err));
    if (!parse_words(p)) return fxa__fail_memory(err, "the words of the language");
    FXA_TRY(parse_offers(p, err));
    FXA_TRY(fxa__lex_run(&p->lex, c->text_kinds, err));
    if (!fxa__grow(host, &p->symbols, &p->symbols_capacity, p->lex.n_names, sizeof *p->symbols))
        return fxa__fail_memory(err, "the names of a program");
    return fxa__builder_new(host, (fxa_program_kind)c->kind, &p->b, err);
}

/* Sets the outputs that were assigned and makes the program. */
static fxa_status parse_finish(fxa__parser *p, fxa_program **out, fxa_error *err) {
    bool forward = p->config->kind == FXA_PROGRAM_SCORE;
    if (forward && p->score >= 0) fxa_builder_set_score(p->b, p->score);
    if (forward && p->mask >= 0) fxa_builder_set_mask(p->b, p->mask);
    if (!forward && p->dscore >= 0) fxa_builder_set_dscore(p->b, p->dscore);
    return fxa_builder_finish(p->b, out, err);
}

fxa_status fxa__program_parse(fxa__host *host, const fxa_parse_config *config, fxa_program **out, fxa_error *err) {
    fxa__parser p = {.config = config, .lex = {.host = host}, .score = -1, .mask = -1, .dscore = -1};
    *out = NULL;
    fxa_status status = parse_open(&p, host, err);
    if (status != FXA_OK) goto done;
    if (parse_program(&p) == 0) {
        status = parse_finish(&p, out, err);
    } else {
        status = p.err.status;
        if (err) *err = p.err;
    }
done:
    fxa_builder_destroy(p.b);
    fxa__free(host, p.symbols, p.symbols_capacity * sizeof *p.symbols);
    fxa__free(host, p.functions, p.functions_capacity * sizeof *p.functions);
    fxa__free(host, p.bindings, p.bindings_capacity * sizeof *p.bindings);
    fxa__free(host, p.pending, p.pending_capacity * sizeof *p.pending);
    fxa__lex_close(&p.lex);
    return status;
}

/* ---- Public functions -------------------------------------------------------------------------------------------- */

fxa_status fxa_program_parse_texts(fxa_context *ctx, const fxa_parse_config *config, fxa_program **out,
                                   fxa_error *err) {
    FXA__FLOAT_SCOPE;
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!ctx || !config) return fxa__fail(err, FXA_E_ARGUMENT, "%s is NULL", ctx ? "config" : "ctx");
    size_t min_size = offsetof(fxa_parse_config, declarations); /* size of the struct in its first version */
    FXA_TRY(fxa__struct_read(&c, sizeof c, min_size, config, "fxa_parse_config", err));
    return fxa__program_parse(fxa__context_host(ctx), &c, out, err);
}

fxa_status fxa_program_parse(fxa_context *ctx, const char *text, size_t size, fxa_program **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    fxa_text one = {NULL, text, size};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    c.texts = &one;
    c.n_texts = 1;
    return fxa_program_parse_texts(ctx, &c, out, err);
}
