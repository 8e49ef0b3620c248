/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal interface of the parser, whose parts are:
 *
 *   parse.c          entry points, statements
 *   parse_declare.c  declarations of params and tensors
 *   parse_expr.c     operators
 *   parse_call.c     names, loads, calls, loops
 *   parse_fn.c       functions defined in the text
 *   parse_fail.c     errors and suggestions
 *
 * The parser is a recursive descent parser. It reads the tokens of lex.h from left to right and calls the builder
 * directly, without a syntax tree. The body of a loop is read again for each iteration, and the body of a function for
 * each call.
 *
 * Functions that return an fxa_value return -1 after a failure. The first failure is stored with its position; the
 * parser then only unwinds. FXA_MAX_NESTING bounds the recursion, PARSE_MAX_STEPS the number of tokens read again.
 */
#ifndef FXA_PROGRAM_PARSE_H
#define FXA_PROGRAM_PARSE_H

#include "lex.h"

/* Maximum number of tokens that loop iterations and calls read again. It bounds the work of nested loops. */
#define PARSE_MAX_STEPS 250000
#define PARSE_MAX_PARAMETERS 16 /* maximum number of a function's parameters */
/* the value of every expression while a function's body is only checked; the builder makes no value with this number */
#define PARSE_ANY INT32_MAX

typedef enum fxa__symbol_kind {
    SYM_NONE,
    SYM_WORD,     /* one of the words param, tensor, let, fn, grad */
    SYM_SCORE,    /* the name score; its current value is fxa__parser.score */
    SYM_MASK,     /* the name mask; its current value is fxa__parser.mask */
    SYM_DSCORE,   /* the name dscore; its current value is fxa__parser.dscore */
    SYM_INPUT,    /* value: fxa_input */
    SYM_CONSTANT, /* value: a character of "tfinp" (true, false, inf, nan, pi) */
    SYM_FUNCTION, /* value: fxa_op */
    SYM_LOOP,     /* value: the fxa_op that combines the iterations */
    SYM_PARAM,    /* value: fxa_value */
    SYM_TENSOR,   /* value: index of the tensor in the builder */
    SYM_FN,       /* value: index in fxa__parser.functions; PARSE_ANY = the function that is being defined */
    SYM_LET,      /* value: fxa_value */
    SYM_INDEX,    /* the variable of a loop; value: fxa_value */
    SYM_ARGUMENT, /* a parameter of a function; value: fxa_value */
    SYM_OFFER     /* a name of config->declarations before its first use; value: its index in that array */
} fxa__symbol_kind;

typedef struct fxa__symbol {
    uint8_t kind;
    uint8_t type; /* SYM_PARAM: fxa_type; SYM_TENSOR: fxa_dtype */
    uint8_t rank; /* SYM_TENSOR: rank */
    bool bound; /* true = parse_fn.c has already recorded the name among those that the current function's body uses */
    int32_t value;
} fxa__symbol;

/* The operator of a token. */
typedef struct fxa__operator {
    const char *text;
    uint8_t form, prec, op; /* prec FXA__PREC_ANY = the token is no operator */
    bool bools;             /* true = the operator takes only bools */
} fxa__operator;

/* A binary operator whose right operand is being parsed. */
typedef struct fxa__pending {
    uint8_t prec;     /* precedence of the operator */
    fxa_value left;   /* value of the left operand */
    size_t first, at; /* token indices of the first token of the left operand, and of the operator */
} fxa__pending;

/* A name and the symbol that it is bound to. */
typedef struct fxa__binding {
    uint32_t name;
    fxa__symbol symbol;
} fxa__binding;

typedef struct fxa__function {
    size_t token;        /* index of the token that names the function in its definition */
    size_t body, end;    /* tokens of the body: from index `body` to `end` - 1 */
    size_t first;        /* index of the function's first binding in fxa__parser.bindings */
    size_t n_parameters; /* number of parameters; the first bindings of the function are those of its parameters */
    size_t n_bindings;   /* number of all bindings: of the parameters, then of the names that the body uses */
} fxa__function;

/* A call that is being parsed. */
typedef struct fxa__caller {
    const struct fxa__caller *outer; /* the call in whose arguments or body this call is; NULL = none */
    size_t token;                    /* index of the token that names the function */
} fxa__caller;

typedef struct fxa__parser {
    fxa__lexer lex;
    fxa_builder *b;
    const fxa_parse_config *config;
    fxa__symbol *symbols; /* [number of a name: index in lex.names] symbol of the name */
    size_t symbols_capacity;
    size_t at;             /* index of the current token */
    size_t farthest;       /* index of the first token that was never read */
    size_t steps;          /* number of tokens that were read again, in loop iterations and calls */
    int nesting;           /* depth of recursion */
    fxa__pending *pending; /* stack of the operators of all expressions being parsed, outermost first */
    size_t n_pending, pending_capacity;
    fxa__function *functions;
    size_t n_functions, functions_capacity;
    /* [n_bindings] first the bindings of all functions, then, for each call being parsed, the saved bindings of the
     * caller */
    fxa__binding *bindings;
    size_t n_bindings, bindings_capacity;
    const fxa__caller *caller; /* innermost call being parsed; NULL = none */
    /* true = a function's body is parsed only to check it at its definition: nothing is built, all values are
     * PARSE_ANY */
    bool checking;
    fxa_value score, mask, dscore; /* current values of the outputs; -1 = neither read nor assigned yet */
    fxa_error err;                 /* the first failure; status FXA_OK = none */
} fxa__parser;

/* Returns true if a symbol is a reserved word, which cannot be declared. */
static inline bool fxa__parse_is_word(const fxa__symbol *s) {
    if (s->kind == SYM_FUNCTION) return fxa__op_reserves((uint32_t)s->value);
    return s->kind != SYM_NONE && s->kind < SYM_PARAM;
}

/* Returns the kind of a symbol for messages: "a word of the language", "a param already". */
const char *fxa__parse_kind_name(const fxa__symbol *s);

/* ---- Tokens ---- */
static inline const fxa__token *fxa__parse_token(const fxa__parser *p) { return &p->lex.tokens[p->at]; }
static inline bool fxa__parse_is(const fxa__parser *p, uint32_t kind) { return fxa__parse_token(p)->kind == kind; }
/* Advances to the next token; the current token must not be the last. If PARSE_MAX_STEPS is exceeded, fails and moves
 * to the last token, so that all functions of the parser fail and return. fxa__parse_call_fn, which moves back to the
 * token after the call, must check for this failure. */
void fxa__parse_next(fxa__parser *p);
/* Advances past a token of this kind. If the current token is of another kind, fails with "expected <what>" and returns
 * false. */
bool fxa__parse_expect(fxa__parser *p, uint32_t kind, const char *what);
/* Advances past the bracket that closes the bracket at token `open`. Fails and returns false if the current token is no
 * such bracket. */
bool fxa__parse_close(fxa__parser *p, uint32_t kind, size_t open);

/* ---- Failures (parse_fail.c); every function that fails returns -1 ---- */
/* Records a failure at tokens first to last. */
fxa_value fxa__parse_fail(fxa__parser *p, size_t first, size_t last, fxa_status status, const char *format, ...)
    FXA__PRINTF(5, 6);
/* Records the builder's failure at tokens first to last. */
fxa_value fxa__parse_fail_builder(fxa__parser *p, size_t first, size_t last);
/* Returns true if the tokens from `at` on are a compound assignment of other languages: +=, -= and others. */
bool fxa__parse_is_compound_assignment(const fxa__parser *p, size_t at);
/* Fails for a compound assignment at token `at` to the name at token `name`, and suggests a plain assignment. let:
 * "let " for a let, "" for an output; the suggested text begins with it. */
fxa_value fxa__parse_fail_compound_assignment(fxa__parser *p, size_t at, size_t name, const char *let);
/* Fails with "expected <wanted>, found ..." at the current token. */
fxa_value fxa__parse_fail_unexpected(fxa__parser *p, const char *wanted);
/* Fails inside an expression with "expected <wanted>, found ..." at the current token. For compound assignments such as
 * += the message suggests an operator instead. */
fxa_value fxa__parse_fail_expression(fxa__parser *p, const char *wanted);
/* Fails with "expected <wanted>, found ..." at the current token, where a type is expected. For type names of other
 * languages the message suggests the type of a param or, if `tensor` is true, the dtype of a tensor. */
fxa_value fxa__parse_fail_type(fxa__parser *p, const char *wanted, bool tensor);
/* Fails at the current token, the target of an assignment, because that name is not an output. */
fxa_value fxa__parse_fail_output(fxa__parser *p);
/* Fails at the current token, an unknown name, and suggests the most similar known name. */
fxa_value fxa__parse_fail_unknown(fxa__parser *p);
/* Fails because the expression of tokens first to last must be a bool and has the type `given`. construct: name of what
 * needs the bool, such as "mask" or "'&&'". */
fxa_value fxa__parse_fail_bool(fxa__parser *p, size_t first, size_t last, const char *construct, fxa_type given);

/* ---- Statements (parse.c, parse_declare.c) ---- */
/* Parses the name that a param, tensor, let or fn statement declares. Returns its token; SIZE_MAX after a failure. */
size_t fxa__parse_given_name(fxa__parser *p, const char *what, fxa__symbol_kind kind);
/* These functions parse the rest of a statement after the word param or tensor, and return -1 after a failure. */
fxa_value fxa__parse_param(fxa__parser *p);
fxa_value fxa__parse_tensor(fxa__parser *p);
/* Parses an expression and checks that the statement ends after it. */
fxa_value fxa__parse_last_expr(fxa__parser *p);

/* ---- Expressions (parse_expr.c) ---- */
fxa_value fxa__parse_expr(fxa__parser *p);
/* Returns the type of a value; 0 while a function's body is only checked, because values have no type then. */
fxa_type fxa__parse_type(const fxa__parser *p, fxa_value v);
/* Returns true for a known type that is not bool. */
static inline bool fxa__parse_not_bool(fxa_type type) { return type && type != FXA_BOOL; }
/* Returns the operator of a token kind; its prec is FXA__PREC_ANY if the token is no operator. */
const fxa__operator *fxa__parse_operator(uint32_t token);
/* Builds an operation; a failure is reported at tokens first to last. */
fxa_value fxa__parse_op(fxa__parser *p, fxa_op op, const fxa_value *args, size_t n, size_t first, size_t last);
static inline void fxa__parse_leave(fxa__parser *p) { p->nesting--; }

/* ---- Functions (parse_fn.c) ---- */
/* Parses a function definition after the word fn; returns 0, or -1 after a failure. */
fxa_value fxa__parse_fn(fxa__parser *p);
/* Parses the arguments (x, y) of a call of the function at token `name`, then the function's body with these arguments.
 * Returns the value of the call. */
fxa_value fxa__parse_call_fn(fxa__parser *p, size_t name);

/* ---- Names, loads, calls and loops (parse_call.c) ---- */
/* Parses an operand that begins with a name: a variable, a load, a call or a loop. */
fxa_value fxa__parse_name(fxa__parser *p);
/* Parses the indices [i, j] after the name of a tensor, token `name`, into index[rank]. Returns false after a
 * failure. */
bool fxa__parse_index(fxa__parser *p, size_t name, int32_t rank, fxa_value index[FXA_MAX_RANK]);
/* Declares a name of config->declarations at its first use; does nothing for other names. Returns false after a
 * failure. */
bool fxa__parse_adopt(fxa__parser *p, size_t name);
/* Returns the symbol of a name token. */
fxa__symbol *fxa__parse_symbol(fxa__parser *p, size_t token);
/* Expands to the two arguments of "%.*s" for a name token. Recursive functions use it because it needs no buffer on the
 * stack. */
#define PARSE_NAME(p, token) (int)(p)->lex.tokens[token].length, (p)->lex.text + (p)->lex.tokens[token].at
/* Copies a name token to out, null-terminated; returns out. */
const char *fxa__parse_text(const fxa__parser *p, size_t token, char out[FXA_MAX_NAME + 1]);

#endif
