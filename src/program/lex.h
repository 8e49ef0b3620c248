/* SPDX-License-Identifier: Apache-2.0
 *
 * Program text as tokens. All texts of a parse are copied into one buffer and cut into one array of tokens, because a
 * loop's body is parsed once per round. Names are numbered as they are met, so the parser looks them up by number.
 *
 * The first thing that is no token becomes a TOK_BAD, which keeps its message, and ends the array: so the parser
 * reports whatever mistake comes first in the text.
 */
#ifndef FXA_PROGRAM_LEX_H
#define FXA_PROGRAM_LEX_H

#include "program.h"

/* What a row of ops.def adds to an enum or table of tokens: operators have tokens, the rest are names. */
#define TOK_OF_INFIX(...) __VA_ARGS__,
#define TOK_OF_PREFIX(...) __VA_ARGS__,
#define TOK_OF_CALL(...)
#define TOK_OF_SPECIAL(...)

typedef enum fxa__token_kind {
    TOK_END,  /* of one text */
    TOK_LINE, /* the end of a statement: a newline that counts, or ; */
    TOK_BAD,
    /* clang-format off */
    TOK_NAME, TOK_INT, TOK_FLOAT,
    TOK_RPAREN, TOK_RBRACKET,
    /* After any of these a newline does not count. */
    TOK_LPAREN, TOK_LBRACKET, TOK_COMMA, TOK_QUESTION, TOK_COLON, TOK_ASSIGN, TOK_ADD_ASSIGN,
    /* Operators: TOK_ADD and so on. What is spelled as an earlier row is that row's token: '-' is always TOK_SUB. */
#define OP(code, ID, text, form, ...) TOK_OF_##form(TOK_##ID)
#define ALSO(ID, text, form, ...) TOK_OF_##form(TOK_##ID)
#include "ops.def"
    /* clang-format on */
    TOK_COUNT
} fxa__token_kind;

typedef struct fxa__token {
    uint32_t at, length; /* in bytes, in the joined text */
    uint32_t name;       /* TOK_NAME: its number */
    uint32_t kind;
} fxa__token;

typedef struct fxa__name {
    const char *text; /* not terminated */
    size_t length;    /* 1 to FXA_MAX_NAME */
} fxa__name;

typedef struct fxa__lexer {
    fxa__host *host;
    char *text; /* the texts one after another, each followed by a newline */
    size_t size, text_capacity;
    size_t *part_end; /* one past the newline of each text */
    size_t n_parts, parts_capacity;
    fxa__token *tokens; /* each text ends with a TOK_END */
    size_t n_tokens, tokens_capacity;
    fxa__name *names;
    size_t n_names, names_capacity;
    uint32_t *table; /* open addressing: name + 1, 0 is free */
    size_t table_size;
    fxa_error bad; /* of the TOK_BAD, with its place */
} fxa__lexer;

/* Copies the texts; E_LIMIT when they are longer than FXA_MAX_TEXT together. Close also after a failure. */
fxa_status fxa__lex_open(fxa__lexer *lex, fxa__host *host, const fxa_text *texts, size_t n_texts, fxa_error *err);
void fxa__lex_close(fxa__lexer *lex);
/* Letters, digits and '_', no digit first, 1 to FXA_MAX_NAME of them. */
bool fxa__lex_is_name(const char *text);
bool fxa__lex_is_word(char c); /* of a name, or of a number */
/* Number of a name, which is kept by pointer; -1 when memory runs out. */
int64_t fxa__lex_name(fxa__lexer *lex, const char *text, size_t length);
/* Returns the fxa_text_kind of a text; kinds: NULL where all are statements. */
static inline uint32_t fxa__lex_text_kind(const uint32_t *kinds, size_t text) {
    return kinds ? kinds[text] : FXA_TEXT_STATEMENTS;
}
/* Makes the tokens. Newlines count in statements only. Fails only if memory runs out. */
fxa_status fxa__lex_run(fxa__lexer *lex, const uint32_t *kinds, fxa_error *err);

/* Puts part, line, column and length of bytes [at, end) into err, in characters; length stays on the first line. */
void fxa__lex_place(const fxa__lexer *lex, size_t at, size_t end, fxa_error *err);
/* The message of a TOK_BAD, which is pushed for bytes [at, at + length). False for want of memory, as below. */
bool fxa__lex_bad(fxa__lexer *lex, size_t at, size_t length, fxa_status status, const char *format, ...)
    FXA__PRINTF(5, 6);
/* Pushes a TOK_BAD for a byte that begins no token, with what to write instead (lex_stray.c). */
bool fxa__lex_stray(fxa__lexer *lex, size_t at);
/* Our name for what other systems call so; NULL: none. */
const char *fxa__lex_alias(const char *name, size_t length);
/* Value of a TOK_INT; one past 32 bits gives UINT32_MAX + 1. */
uint64_t fxa__lex_int(const fxa__lexer *lex, const fxa__token *token, bool *hex);

#endif
