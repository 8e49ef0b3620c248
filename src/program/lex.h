/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits program text into tokens. All texts of a parse are copied into one buffer and split into one array of tokens,
 * so that the parser can go back to the body of a loop for every iteration. Names are numbered in order of appearance,
 * and the parser looks up a name by its number.
 *
 * The first invalid token becomes a TOK_BAD, whose message is stored, and ends the array. The parser therefore reports
 * the mistake that comes first in the text, whether lexical or grammatical.
 */
#ifndef FXA_PROGRAM_LEX_H
#define FXA_PROGRAM_LEX_H

#include "program.h"

/* TOK_OF_x(...) expands to its argument for rows of ops.def that define an operator token (INFIX and PREFIX), to
 * nothing for other rows. Names of functions are TOK_NAME. */
#define TOK_OF_INFIX(...) __VA_ARGS__,
#define TOK_OF_PREFIX(...) __VA_ARGS__,
#define TOK_OF_CALL(...)
#define TOK_OF_SPECIAL(...)

typedef enum fxa__token_kind {
    TOK_END,  /* end of a text */
    TOK_LINE, /* end of a statement: a newline or ';' */
    TOK_BAD,  /* invalid token */
    /* clang-format off */
    TOK_NAME, TOK_INT, TOK_FLOAT,
    TOK_RPAREN, TOK_RBRACKET,
    /* A newline after any token kind from TOK_LPAREN on, operators included, does not end the statement. */
    TOK_LPAREN, TOK_LBRACKET, TOK_COMMA, TOK_QUESTION, TOK_COLON, TOK_ASSIGN, TOK_ADD_ASSIGN,
    /* Operators, such as TOK_ADD. If two rows of ops.def have the same spelling, the token is that of the first row:
     * '-' is TOK_SUB. */
#define OP(code, ID, text, form, ...) TOK_OF_##form(TOK_##ID)
#define ALSO(ID, text, form, ...) TOK_OF_##form(TOK_##ID)
#include "ops.def"
    /* clang-format on */
    TOK_COUNT
} fxa__token_kind;

typedef struct fxa__token {
    uint32_t at, length; /* offset and length in fxa__lexer.text in bytes */
    uint32_t name;       /* TOK_NAME: index in fxa__lexer.names */
    uint32_t kind;       /* fxa__token_kind */
} fxa__token;

typedef struct fxa__name {
    const char *text; /* not null-terminated */
    size_t length;    /* 1 to FXA_MAX_NAME */
} fxa__name;

typedef struct fxa__lexer {
    fxa__host *host;
    char *text; /* all source texts concatenated, each followed by a newline */
    size_t size, text_capacity;
    size_t *part_end; /* [n_parts] offset in `text` of the end of each source text, newline included */
    size_t n_parts, parts_capacity;
    fxa__token *tokens; /* [n_tokens] tokens; those of each text end with a TOK_END */
    size_t n_tokens, tokens_capacity;
    fxa__name *names; /* [n_names] each name once, at the index that is the number of the name */
    size_t n_names, names_capacity;
    uint32_t *table; /* [table_size] hash table of names, open addressing: index in `names` + 1; 0 = free */
    size_t table_size;
    fxa_error bad; /* message and position of the TOK_BAD */
} fxa__lexer;

/* Copies the texts. Fails with FXA_E_LIMIT if the texts together are longer than FXA_MAX_TEXT. The caller must call
 * fxa__lex_close, also after a failure. */
fxa_status fxa__lex_open(fxa__lexer *lex, fxa__host *host, const fxa_text *texts, size_t n_texts, fxa_error *err);
void fxa__lex_close(fxa__lexer *lex);
/* Returns true if text is a valid name: 1 to FXA_MAX_NAME letters, digits and '_', no digit first. */
bool fxa__lex_is_name(const char *text);
/* Returns true for letters, digits and '_'. */
bool fxa__lex_is_word(char c);
/* Returns the index of a name in lex->names; -1 if memory ran out. A new name is added. `text` must outlive the
 * lexer. */
int64_t fxa__lex_name(fxa__lexer *lex, const char *text, size_t length);
/* Returns the fxa_text_kind of text number `text`. kinds NULL = all texts are FXA_TEXT_STATEMENTS. */
static inline uint32_t fxa__lex_text_kind(const uint32_t *kinds, size_t text) {
    return kinds ? kinds[text] : FXA_TEXT_STATEMENTS;
}
/* Splits the texts into tokens. Newlines end statements only in texts of kind FXA_TEXT_STATEMENTS. Fails only if memory
 * runs out; an invalid token becomes a TOK_BAD. */
fxa_status fxa__lex_run(fxa__lexer *lex, const uint32_t *kinds, fxa_error *err);

/* Sets part, line, column and length of err to the position of the bytes [at, end). column and length count characters;
 * length counts the first line only. */
void fxa__lex_place(const fxa__lexer *lex, size_t at, size_t end, fxa_error *err);
/* Appends a TOK_BAD for the bytes [at, at + length) and stores its status and message. Returns false if memory ran
 * out. */
bool fxa__lex_bad(fxa__lexer *lex, size_t at, size_t length, fxa_status status, const char *format, ...)
    FXA__PRINTF(5, 6);
/* Appends a TOK_BAD for a byte that begins no token; its message suggests what to write instead (lex_stray.c). Returns
 * false if memory ran out. */
bool fxa__lex_stray(fxa__lexer *lex, size_t at);
/* Returns the name in this language for a name that other libraries use, such as "k" for "kv_idx"; NULL if there is
 * none. */
const char *fxa__lex_alias(const char *name, size_t length);
/* Returns the value of a TOK_INT; UINT32_MAX + 1 if the value exceeds 32 bits. Sets *hex to true if the number is
 * hexadecimal, else false. */
uint64_t fxa__lex_int(const fxa__lexer *lex, const fxa__token *token, bool *hex);

#endif
