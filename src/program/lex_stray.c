/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages for characters that begin no token, with a suggestion what to write instead: mathematical signs, typographic
 * characters, quotes, and the '.' of modules and methods.
 */
#include "lex.h"

#include <stdio.h>
#include <string.h>

/* Returns advice, to be appended to a message, for a character that is often pasted from papers and editors; "" for
 * other characters. */
static const char *stray_advice(const char *text) {
    static const struct {
        const char *bytes, *advice;
    } known[] = {
        /* clang-format off */
        {"\xe2\x88\x92", "; write '-'"},  {"\xe2\x80\x93", "; write '-'"},  {"\xe2\x80\x94", "; write '-'"},
        {"\xe2\x89\xa4", "; write '<='"}, {"\xe2\x89\xa5", "; write '>='"}, {"\xe2\x89\xa0", "; write '!='"},
        {"\xc3\x97", "; write '*'"},      {"\xc2\xb7", "; write '*'"},      {"\xe2\x8b\x85", "; write '*'"},
        {"\xe2\x88\x97", "; write '*'"},  {"\xc3\xb7", "; write '/'"},      {"\xc2\xb2", "; write '** 2'"},
        {"\xc2\xb3", "; write '** 3'"},   {"\xe2\x88\x9a", "; write sqrt(x)"},
        {"\xe2\x88\xa7", "; write '&&'"}, {"\xe2\x88\xa8", "; write '||'"}, {"\xc2\xac", "; write '!'"},
        {"\xcf\x80", "; write 'pi'"},     {"\xe2\x88\x9e", "; write 'inf'"},
        {"\xc2\xa0", "; write a plain space"},
        {"\xe2\x80\x8b", ", which has no width; delete it"}, {"\xef\xbb\xbf", ", which has no width; delete it"},
        {"'-inf'", "; write -inf"},       {"\"-inf\"", "; write -inf"},     {"'inf'", "; write inf"},
        {"\"inf\"", "; write inf"},       {"'nan'", "; write nan"},         {"\"nan\"", "; write nan"},
        {"\"", "; the language has no strings"}, {"'", "; the language has no strings"},
        {"\\", "; a statement goes on over lines inside ( ) or after an operator"},
        {"{", "; group with ( )"}, {"}", "; group with ( )"}, {".", "; a number needs a digit beside its point"},
        {"$", "; names have letters, digits and '_'"}, {"@", "; names have letters, digits and '_'"},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(text, known[i].bytes, strlen(known[i].bytes)) == 0) return known[i].advice;
    return "";
}

const char *fxa__lex_alias(const char *name, size_t length) {
    static const char *const table[][2] = {
        {"q_idx", "q"},         {"kv_idx", "k"},
        {"k_idx", "k"},         {"kv", "k"},
        {"batch", "b"},         {"head", "h"},
        {"seq_q", "q_len"},     {"seq_k", "k_len"},
        {"kv_len", "k_len"},    {"ln", "log"},
        {"fabs", "abs"},        {"select", "where"},
        {"fmin", "min"},        {"fmax", "max"},
        {"minimum", "min"},     {"maximum", "max"},
        {"True", "true"},       {"False", "false"},
        {"power", "pow"},       {"clip", "clamp"},
        {"infinity", "inf"},    {"logistic", "sigmoid"},
        {"num_heads", "heads"}, {"n_heads", "heads"},
        {"nheads", "heads"},    {"arctan", "atan"},
        {"sgn", "sign"},        {"rint", "round"},
        {"graft", "with_grad"}, {"detach", "stop_gradient"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i][0]) == length && memcmp(table[i][0], name, length) == 0) return table[i][1];
    return NULL;
}

/* Returns the code point of the UTF-8 character of two to four bytes at `text` and sets *length to its bytes. If the
 * bytes are not valid UTF-8, returns 0 and sets *length to 1. */
static uint32_t stray_character(const uint8_t *text, size_t *length) {
    size_t n = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    uint32_t c = text[0] & (0xffu >> (n + 1));
    *length = 1;
    if (text[0] < 0xc2 || text[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (text[i] & 0x3fu);
    }
    if (c < (n == 2 ? 0x80u : n == 3 ? 0x800u : 0x10000u) || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *length = n;
    return c;
}

/* Appends a TOK_BAD for value.method(...) at the '.'; the message suggests method(value, ...). owner: text of the
 * value. Returns false if memory ran out. */
static bool stray_member(fxa__lexer *lex, size_t at, const char *owner, int length) {
    static const char *const members[][2] = {
        {"shape", "a program does not see sizes of tensors; lengths are q_len and k_len, and heads"},
        {"size", "a program does not see sizes of tensors; lengths are q_len and k_len, and heads"},
        {"item", "t[...] is a number already; leave .item() out"},
        {"k", "values have no members; the product of Q and K is score"},
    };
    const char *name = lex->text + at + 1;
    size_t n = 0;
    while (fxa__lex_is_word(name[n])) n++;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (strlen(members[i][0]) == n && memcmp(members[i][0], name, n) == 0)
            return fxa__lex_bad(lex, at, 1 + n, FXA_E_PROGRAM, "%s", members[i][1]);
    const char *alias = fxa__lex_alias(name, n);
    int shown = alias ? (int)strlen(alias) : n > FXA_MAX_NAME ? FXA_MAX_NAME : (int)n;
    return fxa__lex_bad(lex, at, 1 + n, FXA_E_PROGRAM, "values have no members; write %.*s(%.*s%s)", shown,
                        alias ? alias : name, length, owner, name[n] == '(' && name[n + 1] != ')' ? ", ..." : "");
}

/* Appends a TOK_BAD for the '.' at `at`, which follows the name at `start`. For a module, as in np.exp, the message
 * suggests `exp`; for other names, as in x.exp(), it suggests `exp(x)`. Returns false if memory ran out. */
static bool stray_point(fxa__lexer *lex, size_t at, size_t start) {
    static const char *const modules[] = {"torch", "jnp", "np", "numpy", "math", "jax",
                                          "lax",   "F",   "tl", "nn",    "mx",   "tf"};
    const char *text = lex->text, *name = text + at + 1, *before = text + start;
    size_t n = 0, owner = at - start;
    while (fxa__lex_is_word(name[n])) n++;
    const char *alias = fxa__lex_alias(name, n);
    int shown = alias ? (int)strlen(alias) : n > FXA_MAX_NAME ? FXA_MAX_NAME : (int)n;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (strlen(modules[i]) == owner && memcmp(modules[i], before, owner) == 0)
            return fxa__lex_bad(lex, start, owner + 1 + n, FXA_E_PROGRAM,
                                "there are no modules; write %.*s instead of %.*s", shown, alias ? alias : name,
                                (int)(owner + 1 + (n > FXA_MAX_NAME ? FXA_MAX_NAME : n)), before);
    return stray_member(lex, at, before, (int)owner);
}

bool fxa__lex_stray(fxa__lexer *lex, size_t at) {
    char shown[16];
    size_t n = 1;
    const char *text = lex->text + at;
    uint8_t c = (uint8_t)*text;
    const fxa__token *last = lex->n_tokens ? &lex->tokens[lex->n_tokens - 1] : NULL;
    bool follows = last && last->kind == TOK_NAME && last->at + last->length == at;
    bool closes = last && (last->kind == TOK_RBRACKET || last->kind == TOK_RPAREN) && last->at + last->length == at;
    if (c == '.' && follows && fxa__lex_is_word(text[1])) return stray_point(lex, at, last->at);
    if (c == '.' && closes && fxa__lex_is_word(text[1])) return stray_member(lex, at, "x", 1);
    uint32_t wide = c >= 0x80 ? stray_character((const uint8_t *)text, &n) : 0;
    if (wide)
        (void)snprintf(shown, sizeof shown, "U+%04X", wide);
    else
        (void)snprintf(shown, sizeof shown, c > ' ' && c <= '~' ? "'%c'" : "\\x%02x", c);
    return fxa__lex_bad(lex, at, n, FXA_E_PROGRAM, "stray character %s%s", shown, stray_advice(text));
}
