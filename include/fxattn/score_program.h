/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs, the f of O = softmax( f( scale * Q K^T ; ... ) ) V: made from text, bytes or by the builder; printed,
 * hashed, differentiated, evaluated, and what is known of one without running it. Part of <fxattn/fxattn.h>, which is
 * the file to include and says the rules of all functions. The language is described in docs/program.md.
 */
#ifndef FXATTN_SCORE_PROGRAM_H
#define FXATTN_SCORE_PROGRAM_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Score programs -------------------------------------------------------------------------------------------- */

/* clang-format off */
#define FXA_MAX_RANK    5
#define FXA_MAX_PARAMS  64
#define FXA_MAX_TENSORS 64
#define FXA_MAX_NAME    63         /* bytes of a param, tensor or let name */
#define FXA_MAX_NODES   16384      /* distinct operations of a program that a user writes */
#define FXA_MAX_TEXT    (1u << 20) /* bytes of all texts of one parse together */
#define FXA_MAX_NESTING 256        /* an expression and parentheses, calls, conditionals inside one another */
#define FXA_MAX_LOOP    64         /* the count of sum, any, all */
/* clang-format on */

typedef enum fxa_program_kind {
    FXA_PROGRAM_SCORE = 0,      /* writes score and mask */
    FXA_PROGRAM_BPROP = 1,      /* a user's backward: reads dscore and score (as it came in), writes dscore */
    FXA_PROGRAM_DERIVATIVE = 2, /* what fxa_program_derivative makes: dscore, and `grad name += ...` statements */
    FXA_PROGRAM_KIND_FORCE_INT32 = 0x7fffffff
} fxa_program_kind;

/* What a program reads of a pair. Q and K are coordinates of meaning, moved by index maps, positions and BOTTOM_RIGHT;
 * Q_ROW and K_ROW are coordinates of storage: the index of the row and of the key in their sequence, from 0, which
 * nothing moves. Arrays that lie as the rows and keys lie are indexed by Q_ROW and K_ROW. */
#define FXA_INPUT_MAP(X)                                                                                               \
    X(SCORE, 0, "score") /* float, already scaled */                                                                   \
    X(B, 1, "b")                                                                                                       \
    X(H, 2, "h") /* the query head */                                                                                  \
    X(Q, 3, "q")                                                                                                       \
    X(K, 4, "k")                                                                                                       \
    X(Q_LEN, 5, "q_len")                                                                                               \
    X(K_LEN, 6, "k_len")                                                                                               \
    X(DSCORE, 7, "dscore") /* BPROP and DERIVATIVE only */                                                             \
    X(HEADS, 8, "heads")   /* the number of query heads */                                                             \
    X(Q_ROW, 9, "q_row")                                                                                               \
    X(K_ROW, 10, "k_row")

/* clang-format off */
typedef enum fxa_input {
#define FXA_INPUT_ENUM(name, value, text) FXA_INPUT_##name = value,
    FXA_INPUT_MAP(FXA_INPUT_ENUM)
#undef FXA_INPUT_ENUM
    FXA_INPUT_COUNT = 11,
    FXA_INPUT_FORCE_INT32 = 0x7fffffff
} fxa_input;
/* clang-format on */

/* Operations, with pinned codes: they are part of program bytes and hashes. docs/program.md describes each. An
 * operation means what its operand types say (ADD adds ints or floats). GT and GE become LT and LE when built; RELU,
 * SIGN, STOP_GRADIENT and SOFTPLUS what docs/program.md says. */
#define FXA_OP_MAP(X)                                                                                                  \
    X(CONST, 1)                                                                                                        \
    X(INPUT, 2)                                                                                                        \
    X(PARAM, 3)                                                                                                        \
    X(LOAD, 4)                                                                                                         \
    X(ADD, 10)                                                                                                         \
    X(SUB, 11)                                                                                                         \
    X(MUL, 12)                                                                                                         \
    X(DIV, 13)                                                                                                         \
    X(FLOORDIV, 14)                                                                                                    \
    X(MOD, 15)                                                                                                         \
    X(NEG, 16)                                                                                                         \
    X(ABS, 17)                                                                                                         \
    X(MIN, 18)                                                                                                         \
    X(MAX, 19)                                                                                                         \
    X(CLAMP, 20)                                                                                                       \
    X(POW, 21)                                                                                                         \
    X(MULZ, 22) /* x * y, but 0 where x is exactly 0: how "zero wins" is written in derivatives */                     \
    X(DIVZ, 23) /* x / y, but 0 where x is exactly 0 */                                                                \
    X(RELU, 24)                                                                                                        \
    X(SIGN, 25)                                                                                                        \
    X(WITH_GRAD, 26) /* x, whose gradient is that of y; x itself in programs that have no derivative */                \
    X(STOP_GRADIENT, 27)                                                                                               \
    X(SQRT, 30)                                                                                                        \
    X(RSQRT, 31)                                                                                                       \
    X(EXP, 32)                                                                                                         \
    X(EXP2, 33)                                                                                                        \
    X(LOG, 34)                                                                                                         \
    X(LOG2, 35)                                                                                                        \
    X(TANH, 36)                                                                                                        \
    X(SIGMOID, 37)                                                                                                     \
    X(ERF, 38)                                                                                                         \
    X(SIN, 39)                                                                                                         \
    X(COS, 40)                                                                                                         \
    X(TAN, 41)                                                                                                         \
    X(FLOOR, 42)                                                                                                       \
    X(CEIL, 43)                                                                                                        \
    X(ROUND, 44)                                                                                                       \
    X(TRUNC, 45)                                                                                                       \
    X(LOG1P, 46)                                                                                                       \
    X(ATAN, 47)                                                                                                        \
    X(SOFTPLUS, 48)                                                                                                    \
    X(AND, 50) /* of ints bit by bit, of bools logical; likewise OR, XOR, NOT */                                       \
    X(OR, 51)                                                                                                          \
    X(XOR, 52)                                                                                                         \
    X(NOT, 53)                                                                                                         \
    X(SHL, 54)                                                                                                         \
    X(SHR, 55)                                                                                                         \
    X(EQ, 60)                                                                                                          \
    X(NE, 61)                                                                                                          \
    X(LT, 62)                                                                                                          \
    X(LE, 63)                                                                                                          \
    X(GT, 64)                                                                                                          \
    X(GE, 65)                                                                                                          \
    X(SELECT, 70)                                                                                                      \
    X(FLOAT, 71)                                                                                                       \
    X(INT, 72)

/* clang-format off */
typedef enum fxa_op {
#define FXA_OP_ENUM(name, value) FXA_OP_##name = value,
    FXA_OP_MAP(FXA_OP_ENUM)
#undef FXA_OP_ENUM
    FXA_OP_COUNT = 73,
    FXA_OP_FORCE_INT32 = 0x7fffffff
} fxa_op;
/* clang-format on */

/* A way to write an operation in program text. An operation may have two: x & y and, of bools, x && y. */
typedef enum fxa_syntax_form {
    FXA_SYNTAX_INFIX = 1,  /* x + y */
    FXA_SYNTAX_PREFIX = 2, /* -x */
    FXA_SYNTAX_CALL = 3,   /* tanh(x) */
    FXA_SYNTAX_FORCE_INT32 = 0x7fffffff
} fxa_syntax_form;
typedef struct fxa_op_syntax_info {
    const char *text; /* "+", "tanh" */
    fxa_op op;
    fxa_syntax_form form;
    int32_t arity;
    int32_t level;      /* of an operator: the higher, the tighter it binds; from 1. 0 for CALL */
    const char *groups; /* "left", "right" or "do not chain"; "" for CALL */
    const char *about;  /* one sentence on the operation */
} fxa_op_syntax_info;
/* The operators and functions of the language, for references and front ends, by position; zeroes past the end. */
FXA_API fxa_op_syntax_info fxa_op_syntax(size_t index);
/* The name of an input in program text; NULL for a value that is none. */
FXA_API const char *fxa_input_name(fxa_input input);

/* One text of several: programs compose by concatenation. size SIZE_MAX: terminated by NUL. */
typedef struct fxa_text {
    const char *name; /* for messages; may be NULL */
    const char *data;
    size_t size;
} fxa_text;

/* What a text is: statements, or one expression, over as many lines as it has. */
typedef enum fxa_text_kind {
    FXA_TEXT_STATEMENTS = 0,
    FXA_TEXT_SCORE = 1,  /* the score becomes the expression */
    FXA_TEXT_MASK = 2,   /* the mask becomes mask && the expression */
    FXA_TEXT_DSCORE = 3, /* dscore becomes the expression */
    FXA_TEXT_KIND_FORCE_INT32 = 0x7fffffff
} fxa_text_kind;

/* A param or tensor that a text may use without declaring it (it is declared only when it is used). */
typedef struct fxa_declaration {
    const char *name;
    fxa_type type;   /* of a param; 0 for a tensor */
    fxa_dtype dtype; /* of a tensor; 0 for a param */
    int32_t rank;    /* of a tensor */
} fxa_declaration;

typedef struct fxa_parse_config {
    uint32_t struct_size;
    uint32_t kind; /* fxa_program_kind */
    const fxa_text *texts;
    size_t n_texts;
    const fxa_declaration *declarations;
    size_t n_declarations;
    const uint32_t *text_kinds; /* [n_texts] fxa_text_kind; NULL: all are statements */
} fxa_parse_config;
#define FXA_PARSE_CONFIG_INIT FXA_SIZED(fxa_parse_config)

/* Parses one score program. The empty text is the identity. Errors carry line, column and length. */
FXA_API FXA_CHECKED fxa_status fxa_program_parse(fxa_context *ctx, const char *text, size_t size, fxa_program **out,
                                                 fxa_error *err);
/* The general form: several texts in order, other kinds, implicit declarations. */
FXA_API FXA_CHECKED fxa_status fxa_program_parse_texts(fxa_context *ctx, const fxa_parse_config *config,
                                                       fxa_program **out, fxa_error *err);

FXA_API void fxa_program_retain(fxa_program *program);
FXA_API void fxa_program_destroy(fxa_program *program);

/* Canonical text. Two-call: writes at most `capacity` bytes with the terminator, *needed gets the length without it.
 * E_ARGUMENT when out is given and too small. Parsing the text gives a program of the same hash and the same text. */
FXA_API FXA_CHECKED fxa_status fxa_program_print(const fxa_program *program, char *out, size_t capacity, size_t *needed,
                                                 fxa_error *err);

/* What engines make of a score program, as lines for people; their wording may change with any version. */
typedef enum fxa_dump_kind {
    FXA_DUMP_CLASSES = 0,   /* what changes less often than the score, and how often; how gradients are summed */
    FXA_DUMP_CONJUNCTS = 1, /* the mask as parts that must all hold, and what kind each is of */
    FXA_DUMP_FUSED = 2,     /* value, mask, derivative and gradients as one program */
    FXA_DUMP_FORCE_INT32 = 0x7fffffff
} fxa_dump_kind;
/* Two-call, as fxa_program_print. E_ARGUMENT for a program of another kind. */
FXA_API FXA_CHECKED fxa_status fxa_program_dump(const fxa_program *program, fxa_dump_kind kind, char *out,
                                                size_t capacity, size_t *needed, fxa_error *err);

/* 128 bits of content: equal for equal canonical programs, in every process and on every machine. */
FXA_API void fxa_program_hash(const fxa_program *program, uint8_t hash[16]);

FXA_API fxa_program_kind fxa_program_get_kind(const fxa_program *program);
FXA_API size_t fxa_program_node_count(const fxa_program *program);

/* Params and tensors are numbered in the order of their names (bytewise), whatever the order of declaration. */
typedef struct fxa_param_info {
    const char *name; /* lives as long as the program */
    fxa_type type;
} fxa_param_info;
typedef struct fxa_tensor_info {
    const char *name;
    fxa_dtype dtype;
    int32_t rank;
} fxa_tensor_info;
FXA_API size_t fxa_program_param_count(const fxa_program *program);
FXA_API size_t fxa_program_tensor_count(const fxa_program *program);
FXA_API fxa_param_info fxa_program_param(const fxa_program *program, size_t index);    /* zeroes past the end */
FXA_API fxa_tensor_info fxa_program_tensor(const fxa_program *program, size_t index);  /* zeroes past the end */
FXA_API int32_t fxa_program_param_find(const fxa_program *program, const char *name);  /* -1: none */
FXA_API int32_t fxa_program_tensor_find(const fxa_program *program, const char *name); /* -1: none */
/* The default of a param (`param cap : float = 20`): 1 and *value, 0 and nothing written when it has none. It is a hint
 * for front ends, which fill it in where their user says nothing; a run is always given every value. Defaults are kept
 * by text and bytes of a program, but are no part of its hash, nor of problems and plans. */
FXA_API int fxa_program_param_default(const fxa_program *program, size_t index, double *value);

/* The derivative of a SCORE program: by score, by each float param, by each load of each float tensor. It has the
 * params and tensors of the program it came from, in the same order. */
FXA_API FXA_CHECKED fxa_status fxa_program_derivative(const fxa_program *program, fxa_program **out, fxa_error *err);

/* Bytes of a program, and back. The loader trusts nothing: types, limits and hash are checked again. Two-call save. */
FXA_API FXA_CHECKED fxa_status fxa_program_save(const fxa_program *program, void *out, size_t capacity, size_t *needed,
                                                fxa_error *err);
FXA_API FXA_CHECKED fxa_status fxa_program_load(fxa_context *ctx, const void *bytes, size_t size, fxa_program **out,
                                                fxa_error *err);

/* What is known of a SCORE program without running it. Bit i of a dependence is fxa_input i. More on some:
 * SOFTCAP: c * tanh(x / c), x = score or score + bias, outermost; softcap holds c if constant
 * WINDOW: conjuncts bound q - k by constants: window_left, window_right (INT32_MAX: open)
 * PADDING: a conjunct says k < k_len, or k < t[b] for an int tensor t
 * SCORE_MASKS: score = c ? x : -inf, c free of the score: a mask, and skipped as one
 * LARGE_NEGATIVE: x + (c ? y : -inf), where a NaN or +inf of x makes NaN, or a constant of at most -10000 for that
 *     -inf, also in c ? x : -1e9: much like a mask, and not skipped
 * FINITE_LARGE_NEGATIVE: a LARGE_NEGATIVE by a finite constant: a row that it covers whole attends to all of its keys
 * QUOTIENT_EQUAL: == or != compares x / y of ints, which is the exact quotient: q / 32 == k / 32 holds where q is k,
 *     q // 32 == k // 32 in blocks of 32 */
#define FXA_PROPERTY_MAP(X)                                                                                            \
    X(IDENTITY, 0, "identity")      /* score unchanged and mask true */                                                \
    X(PURE_MASK, 1, "pure mask")    /* score unchanged */                                                              \
    X(NO_MASK, 2, "no mask")        /* mask true */                                                                    \
    X(ADDITIVE, 3, "additive bias") /* score + something that does not read the score */                               \
    X(SOFTCAP, 4, "soft cap")                                                                                          \
    X(CAUSAL, 5, "causal")                           /* a conjunct of the mask says k <= q */                          \
    X(CAUSAL_BOTTOM_RIGHT, 6, "causal bottom-right") /* ... says k <= q + (k_len - q_len) */                           \
    X(WINDOW, 7, "window")                                                                                             \
    X(PADDING, 8, "padding")                                                                                           \
    X(SCORE_MASKS, 9, "mask in the score")                                                                             \
    X(LARGE_NEGATIVE, 10, "large negative mask")                                                                       \
    X(FINITE_LARGE_NEGATIVE, 11, "finite large negative mask")                                                         \
    X(QUOTIENT_EQUAL, 12, "equal quotients of ints")

/* clang-format off */
enum {
#define FXA_PROPERTY_ENUM(name, bit, text) FXA_PROPERTY_##name = 1 << bit,
    FXA_PROPERTY_MAP(FXA_PROPERTY_ENUM)
#undef FXA_PROPERTY_ENUM
    FXA_PROPERTY_COUNT = 13
};
/* clang-format on */
/* "pure mask" of FXA_PROPERTY_PURE_MASK; NULL for a value that is not one property. */
FXA_API const char *fxa_property_name(uint32_t property);
/* Facts about the mask hold for coordinates and lengths from 0 to 2^30 - 1, where no int of a sane mask wraps. */
typedef struct fxa_properties {
    uint32_t flags;
    uint32_t score_depends; /* inputs the new score depends on; 1 << FXA_INPUT_SCORE nearly always */
    uint32_t mask_depends;
    int32_t softcap_param; /* index of the param that is the cap, or -1 */
    double softcap;        /* the constant cap, or 0 */
    int32_t window_left;   /* q - k <= window_left */
    int32_t window_right;  /* k - q <= window_right */
    uint64_t reserved[4];
} fxa_properties;
FXA_API void fxa_program_properties(const fxa_program *program, fxa_properties *out);

/* A captured tensor as it lies in memory. Strides are in elements and may be zero or negative. */
typedef struct fxa_view {
    const void *data;
    fxa_dtype dtype;
    int32_t rank;
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK];
} fxa_view;

/* The meaning of a program: one pair, in f64. params and tensors in the order of the program (counts are the
 * program's). For a SCORE program: *value gets the new score, *mask 0 or 1. For the other kinds *value gets dscore and
 * *mask 1. in[FXA_INPUT_SCORE] and [DSCORE] are read as they are, the other inputs must be whole numbers of 32 bits. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                const double *params, const fxa_view *tensors, double *value, int *mask,
                                                fxa_error *err);

/* One result of a program at one pair, and how far an engine may be from it. */
typedef enum fxa_result_kind {
    FXA_RESULT_SCORE = 0,   /* SCORE programs have two: SCORE, MASK */
    FXA_RESULT_MASK = 1,    /* 0 or 1 */
    FXA_RESULT_DSCORE = 2,  /* the first of a BPROP or DERIVATIVE program; the latter has more: */
    FXA_RESULT_DPARAM = 3,  /* what the pair adds to the gradient of a param, */
    FXA_RESULT_DTENSOR = 4, /* and to that of an element of a tensor */
    FXA_RESULT_FORCE_INT32 = 0x7fffffff
} fxa_result_kind;
typedef struct fxa_bounded_result {
    uint32_t kind;
    int32_t slot;   /* DPARAM: which param; DTENSOR: which tensor */
    int64_t offset; /* DTENSOR: of the element, in elements from the data of its view; -1: outside, adds nothing */
    double value;
    double error; /* INFINITY: rounding decides (floats compared that are nearly equal, an overflow) */
} fxa_bounded_result;

/* fxa_program_eval with every result, each with a bound of the error of `arithmetic` (FXA_F32 or FXA_F64): a running
 * error analysis to first order, as docs/numerics.md has it. error[] are those of in[SCORE] and in[DSCORE] (the others
 * are not read); NULL: exact. Fills at most *count terms and sets *count to how many there are; terms may be NULL. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval_bounds(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                       const double error[FXA_INPUT_COUNT], fxa_dtype arithmetic,
                                                       const double *params, const fxa_view *tensors,
                                                       fxa_bounded_result *terms, size_t *count, fxa_error *err);

/* ---- Builder: the same programs, one call per operation -------------------------------------------------------- */

typedef struct fxa_builder fxa_builder;
typedef int32_t fxa_value; /* a value inside one builder; negative: an error has happened, see fxa_builder_finish */

FXA_API FXA_CHECKED fxa_status fxa_builder_create(fxa_context *ctx, fxa_program_kind kind, fxa_builder **out,
                                                  fxa_error *err);
FXA_API void fxa_builder_destroy(fxa_builder *b);

/* The first mistake is remembered, everything after it gives a negative value, and finish reports it. */
FXA_API fxa_value fxa_builder_float(fxa_builder *b, double value);
FXA_API fxa_value fxa_builder_int(fxa_builder *b, int32_t value);
FXA_API fxa_value fxa_builder_bool(fxa_builder *b, int value);
FXA_API fxa_value fxa_builder_input(fxa_builder *b, fxa_input input); /* SCORE is the score as it came in */
FXA_API fxa_value fxa_builder_param(fxa_builder *b, const char *name, fxa_type type); /* declares, or finds again */
/* A default for a declared param; a whole number of 32 bits for an int. Another one than before is a mistake. */
FXA_API void fxa_builder_set_default(fxa_builder *b, const char *param, double value);
FXA_API int32_t fxa_builder_tensor(fxa_builder *b, const char *name, fxa_dtype dtype, int32_t rank); /* a handle */
FXA_API fxa_value fxa_builder_load(fxa_builder *b, int32_t tensor, const fxa_value *index, size_t n_index);
/* Any operation but CONST, INPUT, PARAM, LOAD; operands are converted as the text language does. */
FXA_API fxa_value fxa_builder_op(fxa_builder *b, fxa_op op, const fxa_value *args, size_t n_args);
FXA_API fxa_value fxa_builder_op1(fxa_builder *b, fxa_op op, fxa_value x);
FXA_API fxa_value fxa_builder_op2(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y);
FXA_API fxa_value fxa_builder_op3(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y, fxa_value z);

FXA_API void fxa_builder_set_score(fxa_builder *b, fxa_value value);  /* SCORE */
FXA_API void fxa_builder_set_mask(fxa_builder *b, fxa_value value);   /* SCORE */
FXA_API void fxa_builder_set_dscore(fxa_builder *b, fxa_value value); /* BPROP, DERIVATIVE */

/* The first mistake so far, FXA_OK when there is none: for tracers, which know their user's line now and not later. */
FXA_API fxa_status fxa_builder_error(const fxa_builder *b, fxa_error *err);
FXA_API fxa_type fxa_builder_type(const fxa_builder *b, fxa_value value); /* 0 for what is no value of the builder */
/* A finished SCORE program inside this one, with `score` for its score: *new_score and *mask (NULL: not wanted) get its
 * results. Params and tensors of a name are one, as in texts that are joined. */
FXA_API void fxa_builder_import(fxa_builder *b, const fxa_program *program, fxa_value score, fxa_value *new_score,
                                fxa_value *mask);

/* Makes the program; the builder is used up and only to be destroyed after it. */
FXA_API FXA_CHECKED fxa_status fxa_builder_finish(fxa_builder *b, fxa_program **out, fxa_error *err);

#ifdef __cplusplus
}
#endif
#endif
