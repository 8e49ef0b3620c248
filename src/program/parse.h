/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of the parser: parse.c (statements, entry points), parse_expr.c (operators), parse_call.c (names, loads,
 * calls, loops), parse_fn.c (functions of the text's own), parse_fail.c (errors and suggestions). It reads the tokens
 * of lex.h once, left to right (bodies again for each round of a loop and each call), and calls the builder; there is
 * no tree in between.
 *
 * A function that gives a value gives a negative one after a failure. The first failure is kept with its place; the
 * parser then only unwinds. Recursion is bounded by FXA_MAX_NESTING, work by PARSE_MAX_STEPS.
 */
#ifndef FXA_PROGRAM_PARSE_H
#define FXA_PROGRAM_PARSE_H

#include "lex.h"

/* Tokens read again in later rounds of loops and in calls: a few bytes of nested loops can ask for endless work. */
#define PARSE_MAX_STEPS 250000
#define PARSE_MAX_PARAMETERS 16 /* of a function */
#define PARSE_ANY INT32_MAX     /* stands for every value while a body is only checked; no builder gives it */

typedef enum fxa__symbol_kind {
    SYM_NONE,
    SYM_WORD,  /* param, tensor, let, fn, grad */
    SYM_SCORE, /* score, mask, dscore: their current values are in the parser */
    SYM_MASK,
    SYM_DSCORE,
    SYM_INPUT,    /* value: fxa_input */
    SYM_CONSTANT, /* value: a character of "tfinp" (true, false, inf, nan, pi) */
    SYM_FUNCTION, /* value: fxa_op */
    SYM_LOOP,     /* value: the operation that joins the rounds */
    SYM_PARAM,    /* value: fxa_value */
    SYM_TENSOR,   /* value: the builder's handle */
    SYM_FN,       /* value: which of the functions; PARSE_ANY: the one being defined */
    SYM_LET,      /* value: fxa_value */
    SYM_INDEX,    /* a loop's own name; value: fxa_value */
    SYM_ARGUMENT, /* a parameter of a function; value: fxa_value */
    SYM_OFFER     /* not declared yet; value: which of config->declarations */
} fxa__symbol_kind;

typedef struct fxa__symbol {
    uint8_t kind;
    uint8_t type; /* SYM_PARAM: fxa_type; SYM_TENSOR: fxa_dtype */
    uint8_t rank; /* SYM_TENSOR */
    bool bound;   /* only while the names of a body are collected */
    int32_t value;
} fxa__symbol;

/* What a token is as an operator. */
typedef struct fxa__operator {
    const char *text;
    uint8_t form, prec, op; /* prec FXA__PREC_ANY: it is none */
    bool bools;             /* takes bools only */
} fxa__operator;

/* A binary operator whose right operand is still being read. */
typedef struct fxa__pending {
    uint8_t prec;
    fxa_value left;
    size_t first, at; /* tokens: where the left operand begins, the operator */
} fxa__pending;

/* A name with what it stands for. */
typedef struct fxa__binding {
    uint32_t name;
    fxa__symbol symbol;
} fxa__binding;

typedef struct fxa__function {
    size_t token;                           /* its name where it is defined */
    size_t body, end;                       /* tokens */
    size_t first, n_parameters, n_bindings; /* among the bindings: parameters, then names of the body as defined */
} fxa__function;

/* A call under way. */
typedef struct fxa__caller {
    const struct fxa__caller *outer;
    size_t token;
} fxa__caller;

typedef struct fxa__parser {
    fxa__lexer lex;
    fxa_builder *b;
    const fxa_parse_config *config;
    fxa__symbol *symbols; /* by number of the name */
    size_t symbols_capacity;
    size_t at;       /* the token looked at */
    size_t farthest; /* the first token not read yet */
    size_t steps;    /* tokens before it that were read again */
    int nesting;
    fxa__pending *pending; /* of all expressions being read, the outer ones first */
    size_t n_pending, pending_capacity;
    fxa__function *functions;
    size_t n_functions, functions_capacity;
    fxa__binding *bindings; /* of all functions, then those that calls under way have put aside */
    size_t n_bindings, bindings_capacity;
    const fxa__caller *caller;     /* the innermost; NULL: none */
    bool checking;                 /* a body at its definition: nothing is built, values are PARSE_ANY */
    fxa_value score, mask, dscore; /* current; -1: neither read nor assigned yet */
    fxa_error err;                 /* the first failure; status OK: none */
} fxa__parser;

/* A word of the language, which no name of a text can be. */
static inline bool fxa__parse_is_word(const fxa__symbol *s) {
    if (s->kind == SYM_FUNCTION) return fxa__op_reserves((uint32_t)s->value);
    return s->kind != SYM_NONE && s->kind < SYM_PARAM;
}

/* Returns what a name stands for, for messages: "a word of the language", "a param already". */
const char *fxa__parse_kind_name(const fxa__symbol *s);

/* ---- Tokens ---- */
static inline const fxa__token *fxa__parse_token(const fxa__parser *p) { return &p->lex.tokens[p->at]; }
static inline bool fxa__parse_is(const fxa__parser *p, uint32_t kind) { return fxa__parse_token(p)->kind == kind; }
/* Goes past the token looked at, which is not the last. After too much work in loops and calls that is a failure, and
 * the last token is looked at from then on: nothing that is still open can be closed there, so all that reads on fails,
 * too. A call goes back to where it was made, so it looks for the failure itself. */
void fxa__parse_next(fxa__parser *p);
/* Goes past a token of this kind, or fails with "expected <what>". */
bool fxa__parse_expect(fxa__parser *p, uint32_t kind, const char *what);
/* Goes past the bracket that closes the one at token `open`, or fails. */
bool fxa__parse_close(fxa__parser *p, uint32_t kind, size_t open);

/* ---- Failures (parse_fail.c); all give -1 ---- */
/* At tokens first to last. */
fxa_value fxa__parse_fail(fxa__parser *p, size_t first, size_t last, fxa_status status, const char *format, ...)
    FXA__PRINTF(5, 6);
/* The builder's own text, with this place. */
fxa_value fxa__parse_fail_builder(fxa__parser *p, size_t first, size_t last);
/* Whether tokens from `at` on are an assignment of other languages that joins what is there: +=, -= and their like. */
bool fxa__parse_is_joining(const fxa__parser *p, size_t at);
/* Such an assignment at token `at` to the name at another; let: "let ", or nothing. */
fxa_value fxa__parse_fail_joining(fxa__parser *p, size_t at, size_t name, const char *let);
/* The token looked at is not what the grammar wants there; in an expression, where it may be a part of such one. */
fxa_value fxa__parse_fail_unexpected(fxa__parser *p, const char *wanted);
fxa_value fxa__parse_fail_expression(fxa__parser *p, const char *wanted);
/* The same where a type is wanted, with ours for one of another language. */
fxa_value fxa__parse_fail_type(fxa__parser *p, const char *wanted, bool tensor);
fxa_value fxa__parse_fail_output(fxa__parser *p); /* at a name that is assigned and is no output */
/* A name that nothing has, at the token looked at; with the nearest that something has. */
fxa_value fxa__parse_fail_unknown(fxa__parser *p);
/* Tokens first to last should be a bool. */
fxa_value fxa__parse_fail_bool(fxa__parser *p, size_t first, size_t last, const char *who, fxa_type given);

/* ---- Statements (parse.c) ---- */
/* The name that a param, tensor, let or fn statement gives; SIZE_MAX after a failure. */
size_t fxa__parse_given_name(fxa__parser *p, const char *what, fxa__symbol_kind kind);
/* The expression that ends a statement. */
fxa_value fxa__parse_last_expr(fxa__parser *p);

/* ---- Expressions (parse_expr.c) ---- */
fxa_value fxa__parse_expr(fxa__parser *p);
/* Type of a value; 0 while checking, when nothing has one. */
fxa_type fxa__parse_type(const fxa__parser *p, fxa_value v);
/* True for what is surely no bool. */
static inline bool fxa__parse_not_bool(fxa_type type) { return type && type != FXA_BOOL; }
const fxa__operator *fxa__parse_operator(uint32_t token);
/* One operation; its failure is placed at tokens first to last. */
fxa_value fxa__parse_op(fxa__parser *p, fxa_op op, const fxa_value *args, size_t n, size_t first, size_t last);
/* One level deeper; false: too deep. */
bool fxa__parse_enter(fxa__parser *p);
static inline void fxa__parse_leave(fxa__parser *p) { p->nesting--; }

/* ---- Functions (parse_fn.c) ---- */
/* What follows the word fn; 0, or -1 after a failure. */
fxa_value fxa__parse_fn(fxa__parser *p);
/* The (x, y) after the name of a function at token `name`. */
fxa_value fxa__parse_call_fn(fxa__parser *p, size_t name);

/* ---- Names and what follows them (parse_call.c) ---- */
fxa_value fxa__parse_name(fxa__parser *p);
/* The [i, j] after a tensor's name at token `name`: index gets `rank` ints. */
bool fxa__parse_index(fxa__parser *p, size_t name, int32_t rank, fxa_value index[FXA_MAX_RANK]);
/* Declares an offered name on its first use; others are left alone. */
bool fxa__parse_adopt(fxa__parser *p, size_t name);
fxa__symbol *fxa__parse_symbol(fxa__parser *p, size_t token);
/* A name token as the two arguments of "%.*s": what recursive functions use, to keep their frames small. */
#define PARSE_NAME(p, token) (int)(p)->lex.tokens[token].length, (p)->lex.text + (p)->lex.tokens[token].at
/* Terminated copy of a name token. */
const char *fxa__parse_text(const fxa__parser *p, size_t token, char out[FXA_MAX_NAME + 1]);

#endif
