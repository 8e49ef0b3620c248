/* SPDX-License-Identifier: Apache-2.0
 *
 * Error messages of the parser: each has a position and names what was expected; for common mistakes the message
 * suggests what to write instead.
 */
#include "parse.h"

#include <stdio.h>
#include <string.h>

/* Appends "; in f, called at line 3" to the error text, if the text has room. The error's position is inside the body
 * of f, while the cause may be in the call. */
static void fail_add_caller(fxa__parser *p, const fxa__caller *c) {
    const fxa__token *t = &p->lex.tokens[c->token];
    size_t used = strlen(p->err.text);
    char *end = p->err.text + used, text[FXA_MAX_NAME + 120];
    fxa_error at;
    fxa__lex_place(&p->lex, t->at, (size_t)t->at + t->length, &at);
    const char *name = p->config->texts[at.part].name;
    int n = snprintf(text, sizeof text, "; in %.*s, called at line %d", (int)t->length, p->lex.text + t->at, at.line);
    if (at.part != p->err.part && name)
        n += snprintf(text + n, sizeof text - (size_t)n, " of %.40s", name);
    else if (at.part != p->err.part)
        n += snprintf(text + n, sizeof text - (size_t)n, " of text %d", at.part + 1);
    if (used + (size_t)n < sizeof p->err.text) memcpy(end, text, (size_t)n + 1);
}

fxa_value fxa__parse_fail(fxa__parser *p, size_t first, size_t last, fxa_status status, const char *format, ...) {
    const fxa__token *from = &p->lex.tokens[first], *to = &p->lex.tokens[last];
    if (p->err.status != FXA_OK) return -1;
    if (from->kind == TOK_BAD) { /* the lexer's message is more specific than `format` */
        p->err = p->lex.bad;
        return -1;
    }
    va_list list;
    va_start(list, format);
    (void)fxa__vfail(&p->err, status, format, list);
    va_end(list);
    fxa__lex_place(&p->lex, from->at, (size_t)to->at + to->length, &p->err);
    for (const fxa__caller *c = p->caller; c; c = c->outer) fail_add_caller(p, c);
    return -1;
}

fxa_value fxa__parse_fail_builder(fxa__parser *p, size_t first, size_t last) {
    const fxa_error *e = fxa__builder_error(p->b);
    return fxa__parse_fail(p, first, last, e->status, "%s", e->text);
}

fxa_value fxa__parse_fail_bool(fxa__parser *p, size_t first, size_t last, const char *construct, fxa_type given) {
    return fxa__parse_fail(p, first, last, FXA_E_PROGRAM, "%s needs a bool, this is %s %s; compare it, as in x != 0",
                           construct, given == FXA_INT ? "an" : "a", fxa__type_name(given));
}

#define FAIL_BRACKETS "indices stand in one pair of [ ], as in t[h, q]"
#define FAIL_SCALED "the score comes scaled; what else needs it declares it: param d : float"

/* Words of other languages, and what the language of score programs has in their place. */
static const struct {
    const char *word, *advice;
} fail_words[] = {
    {"and", "write && for 'and'"},
    {"or", "write || for 'or'"},
    {"not", "write ! for 'not'"},
    {"xor", "write ^ for 'xor'"},
    {"is", "write == to compare"},
    {"if", "write c ? a : b, or where(c, a, b)"},
    {"else", "write c ? a : b, or where(c, a, b)"},
    {"elif", "write c ? a : d ? b : e"},
    {"for", "loops are sum(i, 4, ...), any and all"},
    {"while", "loops are sum(i, 4, ...), any and all"},
    {"in", "loops are sum(i, 4, ...), any and all"},
    {"return", "a result is assigned: score = ... or mask = ..."},
    {"def", "write fn f(x) = ..."},
    {"lambda", "write fn f(x) = ..."},
    {"function", "write fn f(x) = ..."},
    {"func", "write fn f(x) = ..."},
    {"var", "write let x = ..."},
    {"const", "write let x = ..."},
    {"auto", "write let x = ..."},
    {"float", "write let x = ..., or param x : float"},
    {"int", "write let x = ..., or param x : int"},
    {"double", "the types are float and int"},
    {"import", "all functions are there, without modules"},
    {"None", "there is no such value; a mask that is not assigned lets everything through"},
    {"softmax", "the softmax comes after the program"},
    {"masked_fill", "what a pair is left out by is assigned to mask"},
    {"gelu", "write 0.5 * x * (1 + erf(x / sqrt(2.0)))"},
    {"silu", "write x * sigmoid(x)"},
    {"swish", "write x * sigmoid(x)"},
    {"square", "write x ** 2"},
    {"mod", "write x % y"},
    {"fmod", "write x - y * trunc(x / y), or x % y, which has the sign of y"},
    {"remainder", "write x % y"},
    {"logsigmoid", "write -softplus(-x)"},
    {"log_sigmoid", "write -softplus(-x)"},
    {"expm1", "write exp(x) - 1"},
    {"log10", "write log2(x) / log2(10.0)"},
    {"sinh", "write (exp(x) - exp(-x)) / 2"},
    {"cosh", "write (exp(x) + exp(-x)) / 2"},
    {"asin", "write atan(x / sqrt(1 - x * x))"},
    {"acos", "write pi / 2 - atan(x / sqrt(1 - x * x))"},
    {"atan2", "write atan(y / x), and add or subtract pi where x < 0"},
    {"d", FAIL_SCALED},
    {"d_k", FAIL_SCALED},
    {"dk", FAIL_SCALED},
    {"d_head", FAIL_SCALED},
    {"head_dim", FAIL_SCALED},
    {"dim", FAIL_SCALED},
    {"scale", FAIL_SCALED},
    {"sm_scale", FAIL_SCALED},
};

/* Returns the advice for a token of other languages, to be appended to a message; NULL if there is none. */
static const char *fail_advice(const fxa__parser *p, const fxa__token *t) {
    uint32_t before = t > p->lex.tokens ? t[-1].kind : TOK_END;
    if (t->kind == TOK_FLOORDIV || (t->kind == TOK_DIV && t[1].kind == TOK_MUL) ||
        (t->kind == TOK_MUL && before == TOK_DIV))
        return "a comment begins with #";
    if (t->kind == TOK_LBRACKET && before == TOK_RBRACKET) return FAIL_BRACKETS;
    if (t->kind == TOK_COLON && (before == TOK_LBRACKET || before == TOK_COMMA))
        return "there are no slices; an index is one int";
    if (t->kind == TOK_COLON && t[1].kind == TOK_ASSIGN) return "write = to assign";
    if (t->kind == TOK_ASSIGN) return "write == to compare";
    if (fxa__parse_operator(t->kind)->form == FXA__PREFIX) return "it goes before its operand";
    if (t->kind != TOK_NAME) return NULL;
    for (size_t i = 0; i < sizeof fail_words / sizeof *fail_words; i++)
        if (strlen(fail_words[i].word) == t->length && memcmp(p->lex.text + t->at, fail_words[i].word, t->length) == 0)
            return fail_words[i].advice;
    return NULL;
}

bool fxa__parse_is_compound_assignment(const fxa__parser *p, size_t at) {
    const fxa__token *t = &p->lex.tokens[at];
    const fxa__operator *o = fxa__parse_operator(t->kind);
    if (t->kind == TOK_ADD_ASSIGN) return true;
    return o->prec != FXA__PREC_ANY && o->prec != FXA__PREC_COMPARE && o->form == FXA__INFIX &&
           t[1].kind == TOK_ASSIGN && t->at + t->length == t[1].at;
}

/* Returns true if x = x o (...) is valid for an x of type `type`. mask: true if x is the mask, so that the result must
 * be a bool. */
static bool fail_takes(const fxa__operator *o, fxa_type type, bool mask) {
    const uint8_t sig = fxa__op_info_get(o->op)->sig;
    if (o->bools) return type == FXA_BOOL;
    if (mask) return sig == FXA__SIG_BITS;
    return type != FXA_FLOAT || (sig != FXA__SIG_BITS && sig != FXA__SIG_SHIFT);
}

fxa_value fxa__parse_fail_compound_assignment(fxa__parser *p, size_t at, size_t name, const char *let) {
    const fxa__token *t = &p->lex.tokens[at];
    const bool sum = t->kind == TOK_ADD_ASSIGN;
    const int n = sum ? 1 : (int)t->length;
    const size_t last = sum ? at : at + 1;
    const char *text = p->lex.text + t->at;
    const fxa__symbol *s = fxa__parse_symbol(p, name);
    if (*let && s->kind != SYM_LET)
        return fxa__parse_fail(p, at, last, FXA_E_PROGRAM,
                               "there is no '%.*s=', and '%.*s' is no let yet; write let %.*s = ...", n, text,
                               PARSE_NAME(p, name), PARSE_NAME(p, name));
    fxa_type type = *let ? fxa__builder_type(p->b, s->value) : s->kind == SYM_MASK ? FXA_BOOL : FXA_FLOAT;
    if (!fail_takes(fxa__parse_operator(sum ? TOK_ADD : t->kind), type, s->kind == SYM_MASK))
        return fxa__parse_fail(p, at, last, FXA_E_PROGRAM,
                               "there is no '%.*s=', and '%.*s' does not go with %.*s, %s %s; write %s%.*s = ...", n,
                               text, n, text, PARSE_NAME(p, name), type == FXA_INT ? "an" : "a", fxa__type_name(type),
                               let, PARSE_NAME(p, name));
    return fxa__parse_fail(p, at, last, FXA_E_PROGRAM, "there is no '%.*s='; write %s%.*s = %.*s %.*s (...)", n, text,
                           let, PARSE_NAME(p, name), PARSE_NAME(p, name), n, text);
}

/* Writes what a message calls a token: the text of the token, or words such as "the end of the line". */
static void fail_describe(const fxa__parser *p, const fxa__token *t, char *out, size_t size) {
    const char *text = p->lex.text + t->at;
    int n = t->length > 40 ? 40 : (int)t->length;
    if (t->kind == TOK_END)
        (void)snprintf(out, size, "the end of the text");
    else if (t->kind == TOK_LINE)
        (void)snprintf(out, size, "the end of the %s", *text == ';' ? "statement" : "line");
    else
        (void)snprintf(out, size, "'%.*s'%s", n, text, t->length > 40 ? "..." : "");
}

fxa_value fxa__parse_fail_unexpected(fxa__parser *p, const char *wanted) {
    char found[64];
    const fxa__token *t = fxa__parse_token(p);
    const char *advice = fail_advice(p, t);
    fail_describe(p, t, found, sizeof found);
    return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "expected %s, found %s%s%s", wanted, found,
                           advice ? "; " : "", advice ? advice : "");
}

fxa_value fxa__parse_fail_expression(fxa__parser *p, const char *wanted) {
    /* If the current token is '=', the operator before the '=' may have been read already. */
    size_t at = fxa__parse_is(p, TOK_ASSIGN) && p->at > 0 ? p->at - 1 : p->at;
    const fxa__token *t = &p->lex.tokens[at];
    if (!fxa__parse_is_compound_assignment(p, at)) return fxa__parse_fail_unexpected(p, wanted);
    int n = t->kind == TOK_ADD_ASSIGN ? 1 : (int)t->length;
    return fxa__parse_fail(p, at, p->at, FXA_E_PROGRAM,
                           "there is no '%.*s=', and an expression assigns nothing; %s%.*s y", n, p->lex.text + t->at,
                           "write x ", n, p->lex.text + t->at);
}

/* Returns the dtype of a tensor, or the type of a param, that corresponds to a type name of other languages; NULL if
 * there is none. */
static const char *fail_common_type(const char *name, bool tensor) {
    static const char *const table[][3] = {
        /* columns: name in other languages, dtype of a tensor, type of a param */
        {"float", "f32", NULL},        {"float32", "f32", "float"}, {"double", "f64", NULL},
        {"float64", "f64", "float"},   {"half", "f16", "float"},    {"float16", "f16", "float"},
        {"bfloat16", "bf16", "float"}, {"int", "i32", NULL},        {"int32", "i32", "int"},
        {"long", "i64", "int"},        {"int64", "i64", "int"},     {"short", "i16", "int"},
        {"int16", "i16", "int"},       {"int8", "i8", "int"},       {"uint8", "u8", "int"},
        {"boolean", "bool", NULL},     {"f64", NULL, "float"},      {"f32", NULL, "float"},
        {"f16", NULL, "float"},        {"bf16", NULL, "float"},     {"i64", NULL, "int"},
        {"i32", NULL, "int"},          {"i16", NULL, "int"},        {"i8", NULL, "int"},
        {"u8", NULL, "int"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i][0], name) == 0) return table[i][tensor ? 1 : 2];
    return NULL;
}

fxa_value fxa__parse_fail_type(fxa__parser *p, const char *wanted, bool tensor) {
    char text[FXA_MAX_NAME + 1] = "";
    if (fxa__parse_is(p, TOK_NAME)) (void)fxa__parse_text(p, p->at, text);
    const char *common = fail_common_type(text, tensor);
    if (!common) return fxa__parse_fail_unexpected(p, wanted);
    return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "expected %s, found '%s'; write %s", wanted, text, common);
}

/* ---- The nearest name -------------------------------------------------------------------------------------------- */

/* Returns the edit distance from a to b (insert, delete, replace, swap of neighbours); limit + 1 if the distance
 * exceeds `limit`. */
static size_t fail_distance(const fxa__name *a, const fxa__name *b, size_t limit) {
    uint8_t rows[3][FXA_MAX_NAME + 1];
    size_t gap = a->length > b->length ? a->length - b->length : b->length - a->length;
    if (gap > limit) return limit + 1;
    for (size_t j = 0; j <= b->length; j++) rows[0][j] = (uint8_t)j;
    for (size_t i = 1; i <= a->length; i++) {
        uint8_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3], best = row[0] = (uint8_t)i;
        for (size_t j = 1; j <= b->length; j++) {
            unsigned d = above[j - 1] + (a->text[i - 1] != b->text[j - 1] ? 1u : 0u);
            if (above[j] + 1u < d) d = above[j] + 1u;
            if (row[j - 1] + 1u < d) d = row[j - 1] + 1u;
            bool swap = i > 1 && j > 1 && a->text[i - 1] == b->text[j - 2] && a->text[i - 2] == b->text[j - 1];
            if (swap && above2[j - 2] + 1u < d) d = above2[j - 2] + 1u;
            row[j] = (uint8_t)d;
            if (d < best) best = (uint8_t)d;
        }
        if (best > limit) return limit + 1;
    }
    return rows[a->length % 3][b->length];
}

fxa_value fxa__parse_fail_output(fxa__parser *p) {
    static const char *const outputs[] = {"score", "mask"};
    char text[FXA_MAX_NAME + 1], lower[FXA_MAX_NAME + 1];
    size_t n = strlen(fxa__parse_text(p, p->at, text));
    for (size_t i = 0; i <= n; i++) lower[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 'a' - 'A') : text[i];
    for (size_t i = 0; i < 2 && n >= 3; i++) {
        fxa__name given = {lower, n}, output = {outputs[i], strlen(outputs[i])};
        if (fail_distance(&given, &output, 1) <= 1)
            return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM,
                                   "'%s' is no output; did you mean %s? Or write let %s = ...", text, outputs[i], text);
    }
    return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM, "'%s' is no output; write let %s = ...", text, text);
}

/* Returns the number of indices in the brackets that open at a token, at most FXA_MAX_RANK. */
static int fail_count_indices(const fxa__parser *p, size_t at) {
    int depth = 0, commas = 0;
    for (; at < p->lex.n_tokens; at++) {
        uint32_t kind = p->lex.tokens[at].kind;
        depth += (kind == TOK_LBRACKET || kind == TOK_LPAREN) - (kind == TOK_RBRACKET || kind == TOK_RPAREN);
        if (depth == 0 || kind == TOK_LINE || kind == TOK_END) break;
        commas += kind == TOK_COMMA && depth == 1;
    }
    return commas + 1 > FXA_MAX_RANK ? FXA_MAX_RANK : commas + 1;
}

/* Returns true if the name of symbol s may be suggested for an unknown name. indexed: '[' follows the unknown name, so
 * only names of tensors are suggested. */
static bool fail_may_be(const fxa__parser *p, const fxa__symbol *s, bool indexed) {
    if (s->kind == SYM_NONE || s->kind == SYM_WORD) return false;
    return !indexed || s->kind == SYM_TENSOR ||
           (s->kind == SYM_OFFER && p->config->declarations[s->value].dtype != FXA_DTYPE_NONE);
}

fxa_value fxa__parse_fail_unknown(fxa__parser *p) {
    size_t here = p->at;
    const fxa__token *t = fxa__parse_token(p);
    fxa__name n = p->lex.names[t->name], near = {NULL, 0};
    const char *advice = fail_advice(p, t), *alias = fxa__lex_alias(n.text, n.length);
    /* In "torch.where" fxa__parse_fail reports the lexer's message for the '.' instead, which explains the unknown name
     * too. */
    if (t[1].kind == TOK_BAD && t[1].at == t->at)
        return fxa__parse_fail(p, here + 1, here + 1, FXA_E_PROGRAM, "stray '.'");
    uint32_t after = p->lex.tokens[here + 1].kind;
    size_t best = n.length >= 6 ? 3 : n.length >= 2 ? 2 : 1;
    if (advice)
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM, "unknown name '%.*s'; %s", (int)n.length, n.text, advice);
    if (alias) near = (fxa__name){alias, strlen(alias)};
    /* The first name at the smallest edit distance is suggested; reserved words come before names of the program. */
    for (size_t i = 0; !alias && i < p->lex.n_names; i++) {
        if (!fail_may_be(p, &p->symbols[i], after == TOK_LBRACKET)) continue;
        size_t d = fail_distance(&n, &p->lex.names[i], best - 1);
        if (d < best) {
            best = d;
            near = p->lex.names[i];
        }
    }
    if (near.text)
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM, "unknown name '%.*s'; did you mean '%.*s'?", (int)n.length,
                               n.text, (int)near.length, near.text);
    if (after == TOK_LPAREN)
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM, "unknown function '%.*s'", (int)n.length, n.text);
    if (after == TOK_LBRACKET)
        return fxa__parse_fail(p, here, here, FXA_E_PROGRAM,
                               "unknown name '%.*s'; declare it, for example: tensor %.*s : f32[%d]", (int)n.length,
                               n.text, (int)n.length, n.text, fail_count_indices(p, here + 1));
    bool comment = t > p->lex.tokens && t[-1].kind == TOK_FLOORDIV;
    return fxa__parse_fail(p, here, here, FXA_E_PROGRAM,
                           "unknown name '%.*s'; %sdeclare it, for example: param %.*s : float", (int)n.length, n.text,
                           comment ? "a comment begins with #; " : "", (int)n.length, n.text);
}
