/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits program text into tokens: numbers, names, operators, and newlines that end statements. White space and
 * comments are skipped. lex_stray.c reports characters that begin no token.
 */
#include "lex.h"
#include "decimal.h"
#include "../base/utf8.h"

#include <string.h>

fxa_status fxa__lex_open(fxa__lexer *lex, fxa__host *host, const fxa_text *texts, size_t n_texts, fxa_error *err) {
    size_t total = 0;
    lex->host = host;
    for (size_t i = 0; i < n_texts; i++) {
        const fxa_text *t = &texts[i];
        if (!t->data && t->size != 0) return fxa__fail(err, FXA_E_ARGUMENT, "text %zu has no data", i);
        size_t size = t->size == SIZE_MAX ? strlen(t->data) : t->size;
        if (size > FXA_MAX_TEXT - total) {
            (void)fxa__fail(err, FXA_E_LIMIT, "the program text is longer than %u bytes, the most that is accepted",
                            FXA_MAX_TEXT);
            if (err) {
                err->part = (int32_t)i;
                err->line = err->column = err->length = 1;
            }
            return FXA_E_LIMIT;
        }
        total += size;
        if (!fxa__grow(host, &lex->text, &lex->text_capacity, lex->size + size + 1, 1) ||
            !fxa__grow(host, &lex->part_end, &lex->parts_capacity, i + 1, sizeof *lex->part_end))
            return fxa__fail_memory(err, "a copy of the program text");
        if (size) memcpy(lex->text + lex->size, t->data, size);
        lex->size += size;
        lex->text[lex->size++] = '\n';
        lex->part_end[lex->n_parts++] = lex->size;
    }
    return FXA_OK;
}

void fxa__lex_close(fxa__lexer *lex) {
    fxa__free(lex->host, lex->text, lex->text_capacity);
    fxa__free(lex->host, lex->part_end, lex->parts_capacity * sizeof *lex->part_end);
    fxa__free(lex->host, lex->tokens, lex->tokens_capacity * sizeof *lex->tokens);
    fxa__free(lex->host, lex->names, lex->names_capacity * sizeof *lex->names);
    fxa__free(lex->host, lex->table, lex->table_size * sizeof *lex->table);
}

void fxa__lex_place(const fxa__lexer *lex, size_t at, size_t end, fxa_error *err) {
    size_t part = 0, start = 0, line = 1, line_start;
    while (part + 1 < lex->n_parts && at >= lex->part_end[part]) start = lex->part_end[part++];
    line_start = start + fxa__utf8_mark(lex->text + start, lex->part_end[part] - start);
    for (size_t i = start; i < at; i++)
        if (lex->text[i] == '\n') {
            line++;
            line_start = i + 1;
        }
    size_t stop = at;
    while (stop < end && lex->text[stop] != '\n' && lex->text[stop] != '\r') stop++;
    err->part = (int32_t)part;
    err->line = (int32_t)line;
    size_t length = fxa__utf8_count(lex->text + at, stop - at);
    err->column = (int32_t)fxa__utf8_count(lex->text + line_start, at - line_start) + 1;
    err->length = length ? (int32_t)length : 1;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Returns a hash of a name (FNV-1a). */
static size_t lex_hash(const char *text, size_t length) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < length; i++) h = (h ^ (uint8_t)text[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

/* Returns the slot of the hash table for a name: the slot that has the name, or else a free slot. */
static size_t lex_slot(const fxa__lexer *lex, const char *text, size_t length) {
    size_t mask = lex->table_size - 1, slot = lex_hash(text, length) & mask;
    for (; lex->table[slot]; slot = (slot + 1) & mask) {
        const fxa__name *n = &lex->names[lex->table[slot] - 1];
        if (n->length == length && memcmp(n->text, text, length) == 0) break;
    }
    return slot;
}

/* Doubles the hash table. Returns false if memory ran out. */
static bool lex_rehash(fxa__lexer *lex) {
    size_t size = lex->table_size ? lex->table_size * 2 : 256;
    uint32_t *table = fxa__alloc_array(lex->host, size, sizeof *table);
    if (!table) return false;
    fxa__free(lex->host, lex->table, lex->table_size * sizeof *table);
    lex->table = table;
    lex->table_size = size;
    for (size_t i = 0; i < lex->n_names; i++)
        table[lex_slot(lex, lex->names[i].text, lex->names[i].length)] = (uint32_t)i + 1;
    return true;
}

int64_t fxa__lex_name(fxa__lexer *lex, const char *text, size_t length) {
    if (lex->n_names * 2 >= lex->table_size && !lex_rehash(lex)) return -1;
    size_t slot = lex_slot(lex, text, length);
    if (lex->table[slot]) return lex->table[slot] - 1;
    if (!fxa__grow(lex->host, &lex->names, &lex->names_capacity, lex->n_names + 1, sizeof *lex->names)) return -1;
    lex->names[lex->n_names] = (fxa__name){text, length};
    lex->table[slot] = (uint32_t)++lex->n_names;
    return lex->table[slot] - 1;
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

/* Appends a token. Returns false if memory ran out. */
static bool lex_push(fxa__lexer *lex, fxa__token_kind kind, size_t at, size_t length) {
    size_t need = lex->n_tokens + 1;
    if (!fxa__grow(lex->host, &lex->tokens, &lex->tokens_capacity, need, sizeof *lex->tokens)) return false;
    lex->tokens[lex->n_tokens++] = (fxa__token){(uint32_t)at, (uint32_t)length, 0, kind};
    return true;
}

bool fxa__lex_bad(fxa__lexer *lex, size_t at, size_t length, fxa_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)fxa__vfail(&lex->bad, status, format, list);
    va_end(list);
    fxa__lex_place(lex, at, at + length, &lex->bad);
    return lex_push(lex, TOK_BAD, at, length);
}

static bool lex_is_digit(char c) { return c >= '0' && c <= '9'; }
static bool lex_is_hex(char c) { return lex_is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool fxa__lex_is_word(char c) {
    return lex_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool fxa__lex_is_name(const char *text) {
    size_t n = 0;
    while (n <= FXA_MAX_NAME && fxa__lex_is_word(text[n])) n++;
    return n > 0 && n <= FXA_MAX_NAME && !text[n] && !lex_is_digit(*text);
}

/* Appends the token of the name that begins at `at`. Returns false if memory ran out. */
static bool lex_word(fxa__lexer *lex, size_t at) {
    size_t end = at;
    while (fxa__lex_is_word(lex->text[end])) end++;
    if (end - at > FXA_MAX_NAME)
        return fxa__lex_bad(lex, at, end - at, FXA_E_LIMIT, "this name has %zu bytes, at most %d are accepted",
                            end - at, FXA_MAX_NAME);
    int64_t name = fxa__lex_name(lex, lex->text + at, end - at);
    if (name < 0 || !lex_push(lex, TOK_NAME, at, end - at)) return false;
    lex->tokens[lex->n_tokens - 1].name = (uint32_t)name;
    return true;
}

/* Returns the length of the well-formed number at `at` and sets *kind to TOK_INT or TOK_FLOAT; 0 if the number is
 * malformed. The caller rejects a number that is followed by more word characters. */
static size_t lex_number_form(const char *text, size_t at, fxa__token_kind *kind) {
    size_t i = at;
    *kind = TOK_INT;
    if (text[i] == '0' && (text[i + 1] == 'x' || text[i + 1] == 'X')) {
        for (i += 2; lex_is_hex(text[i]); i++) {}
        return i - at > 2 ? i - at : 0;
    }
    while (lex_is_digit(text[i])) i++;
    if (text[i] == '.') {
        *kind = TOK_FLOAT;
        for (i++; lex_is_digit(text[i]); i++) {}
    }
    if (text[i] == 'e' || text[i] == 'E') {
        size_t e = i + 1 + (text[i + 1] == '+' || text[i + 1] == '-');
        *kind = TOK_FLOAT;
        if (!lex_is_digit(text[e])) return 0;
        for (i = e; lex_is_digit(text[i]); i++) {}
    }
    return i - at;
}

/* Appends the token of the number that begins at `at`. Returns false if memory ran out. */
static bool lex_number(fxa__lexer *lex, size_t at) {
    fxa__token_kind kind;
    size_t good = lex_number_form(lex->text, at, &kind), end = at + good;
    while (fxa__lex_is_word(lex->text[end]) || lex->text[end] == '.') end++;
    if (end - at > FXA__DECIMAL_READ)
        return fxa__lex_bad(lex, at, end - at, FXA_E_LIMIT, "this number has %zu characters, at most %d are accepted",
                            end - at, FXA__DECIMAL_READ);
    if (end - at == good + 1 && strchr("fFdDlLuUhH", lex->text[end - 1]))
        return fxa__lex_bad(lex, at, end - at, FXA_E_PROGRAM, "numbers have no suffix; write %.*s",
                            good > 40 ? 40 : (int)good, lex->text + at);
    if (end - at != good)
        return fxa__lex_bad(lex, at, end - at, FXA_E_PROGRAM,
                            "'%.*s' is not a number; numbers look like 12, 0x1F, 1.5, 1e-3",
                            end - at > 40 ? 40 : (int)(end - at), lex->text + at);
    return lex_push(lex, kind, at, good);
}

uint64_t fxa__lex_int(const fxa__lexer *lex, const fxa__token *token, bool *hex) {
    const char *text = lex->text + token->at, *end = text + token->length;
    uint64_t value = 0;
    *hex = token->length > 2 && (text[1] == 'x' || text[1] == 'X');
    for (text += *hex ? 2 : 0; text < end; text++) {
        unsigned digit = (unsigned)(lex_is_digit(*text) ? *text - '0' : (*text | 0x20) - 'a' + 10);
        value = value * (*hex ? 16 : 10) + digit;
        if (value > UINT32_MAX) return (uint64_t)UINT32_MAX + 1;
    }
    return value;
}

/* Appends the longest operator or bracket at `at`. If two rows of ops.def have the same spelling, the token is that of
 * the first row. Returns false if memory ran out. */
static bool lex_operator(fxa__lexer *lex, size_t at) {
    static const struct {
        const char *text;
        uint8_t kind;
    } table[] = {
        {"(", TOK_LPAREN},   {")", TOK_RPAREN}, {"[", TOK_LBRACKET}, {"]", TOK_RBRACKET}, {",", TOK_COMMA},
        {"?", TOK_QUESTION}, {":", TOK_COLON},  {";", TOK_LINE},     {"=", TOK_ASSIGN},   {"+=", TOK_ADD_ASSIGN},
#define OP(code, ID, text, form, ...) TOK_OF_##form({text, TOK_##ID})
#define ALSO(ID, text, form, ...) TOK_OF_##form({text, TOK_##ID})
#include "ops.def"
    };
    const char *t = lex->text + at; /* the text ends with a newline, so no spelling matches past its end */
    size_t length = 0, kind = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t n = strlen(table[i].text);
        if (n <= length || strncmp(t, table[i].text, n) != 0) continue;
        length = n;
        kind = table[i].kind;
    }
    return length ? lex_push(lex, (fxa__token_kind)kind, at, length) : fxa__lex_stray(lex, at);
}

/* Appends a TOK_LINE if the newline at `at` ends a statement: the newline is outside brackets (depth 0) and follows a
 * token of this text (index >= first) after which a statement can end. Returns false if memory ran out. */
static bool lex_newline(fxa__lexer *lex, size_t at, size_t first, size_t depth) {
    if (depth > 0 || lex->n_tokens == first) return true;
    uint32_t last = lex->tokens[lex->n_tokens - 1].kind;
    return last == TOK_LINE || last >= TOK_LPAREN || lex_push(lex, TOK_LINE, at, 1);
}

/* Appends the tokens of one text, up to its end or the first TOK_BAD. depth: number of open brackets at the start; 1
 * for an expression text, which is read as if it were in parentheses. Returns false if memory ran out. */
static bool lex_part(fxa__lexer *lex, size_t at, size_t end, size_t depth) {
    size_t first = lex->n_tokens;
    at += fxa__utf8_mark(lex->text + at, end - at);
    while (at < end) {
        char c = lex->text[at];
        bool done = true;
        size_t before = lex->n_tokens;
        if (c == '\n')
            done = lex_newline(lex, at, first, depth);
        else if (c == '#')
            at = (size_t)((char *)memchr(lex->text + at, '\n', end - at) - lex->text);
        else if (c == ' ' || c == '\t' || (c == '\r' && lex->text[at + 1] == '\n'))
            at++;
        else if (lex_is_digit(c) || (c == '.' && lex_is_digit(lex->text[at + 1])))
            done = lex_number(lex, at);
        else if (fxa__lex_is_word(c))
            done = lex_word(lex, at);
        else
            done = lex_operator(lex, at);
        if (!done) return false;
        if (lex->n_tokens == before) {
            at += c == '\n';
            continue;
        }
        const fxa__token *last = &lex->tokens[before];
        if (last->kind == TOK_BAD) return true;
        if (last->kind == TOK_LPAREN || last->kind == TOK_LBRACKET)
            depth++;
        else if ((last->kind == TOK_RPAREN || last->kind == TOK_RBRACKET) && depth > 0)
            depth--;
        at += last->length;
    }
    return lex_push(lex, TOK_END, end - 1, 1);
}

fxa_status fxa__lex_run(fxa__lexer *lex, const uint32_t *kinds, fxa_error *err) {
    size_t at = 0;
    for (size_t i = 0; i < lex->n_parts; i++) {
        size_t depth = fxa__lex_text_kind(kinds, i) != FXA_TEXT_STATEMENTS;
        if (!lex_part(lex, at, lex->part_end[i], depth)) return fxa__fail_memory(err, "the tokens of the program text");
        if (lex->tokens[lex->n_tokens - 1].kind == TOK_BAD) break;
        at = lex->part_end[i];
    }
    return FXA_OK;
}
