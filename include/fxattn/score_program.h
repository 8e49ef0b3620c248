/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs: the function f of O = softmax( f( scale * Q K^T ; ... ) ) V. Programs are made from text, bytes or by
 * the builder; they can be printed, hashed, differentiated, evaluated, and described by properties that hold for all
 * inputs. Part of <fxattn/fxattn.h>, which is the file to include and lists the rules that hold for all functions.
 * docs/program.md describes the language.
 */
#ifndef FXATTN_SCORE_PROGRAM_H
#define FXATTN_SCORE_PROGRAM_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Score programs -------------------------------------------------------------------------------------------- */

/* Limits of a program. Parser and builder fail with E_LIMIT or E_PROGRAM if one is exceeded. */
/* clang-format off */
#define FXA_MAX_RANK    5          /* maximum number of dimensions of a captured tensor */
#define FXA_MAX_PARAMS  64         /* maximum number of params of a program */
#define FXA_MAX_TENSORS 64         /* maximum number of captured tensors of a program */
#define FXA_MAX_NAME    63         /* maximum bytes of the name of a param, a tensor, or a value that `let` names */
#define FXA_MAX_NODES   16384      /* maximum number of distinct operations of a program */
#define FXA_MAX_TEXT    (1u << 20) /* maximum bytes of all texts of one parse together */
#define FXA_MAX_NESTING 256        /* maximum depth of nested parentheses, calls and conditionals */
#define FXA_MAX_LOOP    64         /* maximum number of iterations of the loops sum(), any() and all() */
/* clang-format on */

typedef enum fxa_program_kind {
    FXA_PROGRAM_SCORE = 0, /* forward: computes a new score and a mask */
    /* user-written backward: computes the gradient of the raw score from dscore (the gradient of the new score), score
     * and coordinates */
    FXA_PROGRAM_BPROP = 1,
    /* result of fxa_program_derivative: computes the gradients with respect to score, params and tensors */
    FXA_PROGRAM_DERIVATIVE = 2,
    FXA_PROGRAM_KIND_FORCE_INT32 = 0x7fffffff
} fxa_program_kind;

/* Inputs that a program reads at one (query, key) pair.
 *
 * Q and K are logical coordinates: index maps, Q_START and BOTTOM_RIGHT shift them (attention_problem.h). Q_ROW and
 * K_ROW are storage indices: the position in the sequence of this problem, from 0, never shifted. Arrays with one
 * element per stored row or key are indexed by Q_ROW and K_ROW. */
#define FXA_INPUT_MAP(X)                                                                                               \
    X(SCORE, 0, "score")   /* float: scale * Q K^T */                                                                  \
    X(B, 1, "b")           /* batch entry */                                                                           \
    X(H, 2, "h")           /* query head */                                                                            \
    X(Q, 3, "q")           /* logical query position */                                                                \
    X(K, 4, "k")           /* logical key position */                                                                  \
    X(Q_LEN, 5, "q_len")   /* number of queries of the batch entry */                                                  \
    X(K_LEN, 6, "k_len")   /* number of keys of the batch entry */                                                     \
    X(DSCORE, 7, "dscore") /* float: d loss / d new score; BPROP and DERIVATIVE only */                                \
    X(HEADS, 8, "heads")   /* number of query heads */                                                                 \
    X(Q_ROW, 9, "q_row")   /* stored query index */                                                                    \
    X(K_ROW, 10, "k_row")  /* stored key index */

/* clang-format off */
typedef enum fxa_input {
#define FXA_INPUT_ENUM(name, value, text) FXA_INPUT_##name = value,
    FXA_INPUT_MAP(FXA_INPUT_ENUM)
#undef FXA_INPUT_ENUM
    FXA_INPUT_COUNT = 11,
    FXA_INPUT_FORCE_INT32 = 0x7fffffff
} fxa_input;
/* clang-format on */

/* Operations, which docs/program.md describes. Their codes never change, because program bytes and hashes contain them.
 * Operand types select the meaning: ADD adds ints or floats. Some operations are rewritten when a program is built and
 * never occur in a finished program: GT and GE (rewritten as LT and LE), RELU, SIGN, STOP_GRADIENT, SOFTPLUS. */
#define FXA_OP_MAP(X)                                                                                                  \
    X(CONST, 1)          /* constant */                                                                                \
    X(INPUT, 2)          /* fxa_input */                                                                               \
    X(PARAM, 3)          /* param */                                                                                   \
    X(LOAD, 4)           /* element of a tensor; 0 if an index is out of range */                                      \
    X(ADD, 10)           /* x + y */                                                                                   \
    X(SUB, 11)           /* x - y */                                                                                   \
    X(MUL, 12)           /* x * y */                                                                                   \
    X(DIV, 13)           /* x / y of floats */                                                                         \
    X(FLOORDIV, 14)      /* x // y, rounded down */                                                                    \
    X(MOD, 15)           /* x % y, with the sign of y */                                                               \
    X(NEG, 16)           /* -x */                                                                                      \
    X(ABS, 17)           /* abs(x) */                                                                                  \
    X(MIN, 18)           /* min(x, y) */                                                                               \
    X(MAX, 19)           /* max(x, y) */                                                                               \
    X(CLAMP, 20)         /* min(max(x, lo), hi) */                                                                     \
    X(POW, 21)           /* x ** y */                                                                                  \
    X(MULZ, 22)          /* x * y, but 0 where x is exactly 0; used by derivatives */                                  \
    X(DIVZ, 23)          /* x / y, but 0 where x is exactly 0 */                                                       \
    X(RELU, 24)          /* x <= 0 ? 0 : x */                                                                          \
    X(SIGN, 25)          /* -1, 0 or 1 */                                                                              \
    X(WITH_GRAD, 26)     /* value of x, gradient of y */                                                               \
    X(STOP_GRADIENT, 27) /* value of x, gradient 0 */                                                                  \
    X(SQRT, 30)          /* square root */                                                                             \
    X(RSQRT, 31)         /* 1 / square root */                                                                         \
    X(EXP, 32)           /* e ** x */                                                                                  \
    X(EXP2, 33)          /* 2 ** x */                                                                                  \
    X(LOG, 34)           /* natural logarithm */                                                                       \
    X(LOG2, 35)          /* logarithm to base 2 */                                                                     \
    X(TANH, 36)          /* hyperbolic tangent */                                                                      \
    X(SIGMOID, 37)       /* 1 / (1 + exp(-x)) */                                                                       \
    X(ERF, 38)           /* error function */                                                                          \
    X(SIN, 39)           /* sine */                                                                                    \
    X(COS, 40)           /* cosine */                                                                                  \
    X(TAN, 41)           /* tangent */                                                                                 \
    X(FLOOR, 42)         /* rounded down */                                                                            \
    X(CEIL, 43)          /* rounded up */                                                                              \
    X(ROUND, 44)         /* to the nearest integer, halves to even */                                                  \
    X(TRUNC, 45)         /* rounded towards 0 */                                                                       \
    X(LOG1P, 46)         /* log(1 + x) */                                                                              \
    X(ATAN, 47)          /* arc tangent */                                                                             \
    X(SOFTPLUS, 48)      /* log(1 + exp(x)) */                                                                         \
    X(AND, 50)           /* x & y; bools: x && y */                                                                    \
    X(OR, 51)            /* x | y; bools: x || y */                                                                    \
    X(XOR, 52)           /* x ^ y */                                                                                   \
    X(NOT, 53)           /* ~x; bools: !x */                                                                           \
    X(SHL, 54)           /* x << y; y modulo 32 */                                                                     \
    X(SHR, 55)           /* x >> y, arithmetic; y modulo 32 */                                                         \
    X(EQ, 60)            /* x == y */                                                                                  \
    X(NE, 61)            /* x != y */                                                                                  \
    X(LT, 62)            /* x < y */                                                                                   \
    X(LE, 63)            /* x <= y */                                                                                  \
    X(GT, 64)            /* x > y */                                                                                   \
    X(GE, 65)            /* x >= y */                                                                                  \
    X(SELECT, 70)        /* c ? x : y */                                                                               \
    X(FLOAT, 71)         /* float(x) */                                                                                \
    X(INT, 72)           /* int(x): towards 0, saturating; NaN gives 0 */

/* clang-format off */
typedef enum fxa_op {
#define FXA_OP_ENUM(name, value) FXA_OP_##name = value,
    FXA_OP_MAP(FXA_OP_ENUM)
#undef FXA_OP_ENUM
    FXA_OP_COUNT = 73,
    FXA_OP_FORCE_INT32 = 0x7fffffff
} fxa_op;
/* clang-format on */

/* Syntax of one spelling of an operation in program text. An operation may have two spellings: x & y and, for bools,
 * x && y. */
typedef enum fxa_syntax_form {
    FXA_SYNTAX_INFIX = 1,  /* x + y */
    FXA_SYNTAX_PREFIX = 2, /* -x */
    FXA_SYNTAX_CALL = 3,   /* tanh(x) */
    FXA_SYNTAX_FORCE_INT32 = 0x7fffffff
} fxa_syntax_form;

/* Description of a spelling. All strings are static. */
typedef struct fxa_op_syntax_info {
    const char *text;     /* operator or function name: "+", "tanh" */
    fxa_op op;            /* operation that the spelling means */
    fxa_syntax_form form; /* where the operands are written */
    int32_t arity;        /* number of operands */
    int32_t level;        /* precedence of an operator, from 1, higher binds tighter; 0 for FXA_SYNTAX_CALL */
    const char *groups;   /* associativity of an operator: "left", "right", "do not chain"; "" for FXA_SYNTAX_CALL */
    const char *about;    /* meaning of the operation in one sentence */
} fxa_op_syntax_info;

/* Returns spelling number `index` of the language, for references and front ends; all zeroes past the last spelling. */
FXA_API fxa_op_syntax_info fxa_op_syntax(size_t index);
/* Returns the name of an input in program text, such as "q_len", as a static string; NULL for other values. */
FXA_API const char *fxa_input_name(fxa_input input);

/* ---- Parsing ---------------------------------------------------------------------------------------------------- */

/* One of the texts of a program. Texts are concatenated: later texts can use the names and results of earlier texts. */
typedef struct fxa_text {
    const char *name; /* file name or option for messages; may be NULL */
    const char *data; /* UTF-8 text */
    size_t size;      /* bytes of data; SIZE_MAX = NUL-terminated */
} fxa_text;

/* Meaning of a text. Expressions may extend over several lines. */
typedef enum fxa_text_kind {
    FXA_TEXT_STATEMENTS = 0, /* statements */
    FXA_TEXT_SCORE = 1,      /* an expression that becomes the score */
    FXA_TEXT_MASK = 2,       /* a bool expression; the mask becomes mask && expression */
    FXA_TEXT_DSCORE = 3,     /* an expression that becomes dscore */
    FXA_TEXT_KIND_FORCE_INT32 = 0x7fffffff
} fxa_text_kind;

/* A param or tensor that texts may use without declaring it. An unused declaration does not become part of the
 * program. */
typedef struct fxa_declaration {
    const char *name; /* NUL-terminated */
    fxa_type type;    /* type of a param; 0 = this is a tensor */
    fxa_dtype dtype;  /* storage type of a tensor; 0 = this is a param */
    int32_t rank;     /* number of dimensions of a tensor */
} fxa_declaration;

typedef struct fxa_parse_config {
    uint32_t struct_size;                /* sizeof(fxa_parse_config) */
    uint32_t kind;                       /* fxa_program_kind: SCORE, BPROP or DERIVATIVE */
    const fxa_text *texts;               /* [n_texts] texts, parsed in this order */
    size_t n_texts;                      /* number of texts; 0 = the identity */
    const fxa_declaration *declarations; /* [n_declarations] */
    size_t n_declarations;               /* number of declarations */
    const uint32_t *text_kinds;          /* [n_texts] fxa_text_kind of each text; NULL = all STATEMENTS */
} fxa_parse_config;
#define FXA_PARSE_CONFIG_INIT FXA_SIZED(fxa_parse_config)

/* Parses one text of statements as a SCORE program. size: bytes of the text, SIZE_MAX = NUL-terminated. The empty text
 * is the identity. Fails with E_PROGRAM or E_LIMIT and the position in the text. */
FXA_API FXA_CHECKED fxa_status fxa_program_parse(fxa_context *ctx, const char *text, size_t size, fxa_program **out,
                                                 fxa_error *err);
/* Parses several texts into one program of config->kind. err->part is the index of the text with the error. */
FXA_API FXA_CHECKED fxa_status fxa_program_parse_texts(fxa_context *ctx, const fxa_parse_config *config,
                                                       fxa_program **out, fxa_error *err);

/* Adds a reference. NULL is accepted. */
FXA_API void fxa_program_retain(fxa_program *program);
/* Drops a reference; dropping the last reference frees the program. NULL is accepted. */
FXA_API void fxa_program_destroy(fxa_program *program);

/* ---- Text, bytes, hash ------------------------------------------------------------------------------------------ */

/* Writes the canonical text, the one spelling that equal programs share. Parsing the canonical text gives a program
 * with the same hash and the same canonical text. With out NULL the call only sets *needed. */
FXA_API FXA_CHECKED fxa_status fxa_program_print(const fxa_program *program, char *out, size_t capacity, size_t *needed,
                                                 fxa_error *err);

/* Texts that show how engines compile a SCORE program, for people to read. The wording may change in any version. */
typedef enum fxa_dump_kind {
    FXA_DUMP_CLASSES = 0,   /* values computed once per row, key, head or batch entry; how gradients are summed */
    FXA_DUMP_CONJUNCTS = 1, /* the mask as a list of conditions that must all hold, each with its kind */
    FXA_DUMP_FUSED = 2,     /* score, mask, derivative and gradients as one program */
    FXA_DUMP_FORCE_INT32 = 0x7fffffff
} fxa_dump_kind;
/* Writes the text that fxa_dump_kind `kind` names, for a SCORE program. With out NULL the call only sets *needed. Fails
 * with E_ARGUMENT for BPROP and DERIVATIVE programs. */
FXA_API FXA_CHECKED fxa_status fxa_program_dump(const fxa_program *program, fxa_dump_kind kind, char *out,
                                                size_t capacity, size_t *needed, fxa_error *err);

/* Writes the 128-bit hash of the canonical program: equal for equal programs in every process and on every machine.
 * A NULL program has the hash 0. */
FXA_API void fxa_program_hash(const fxa_program *program, uint8_t hash[16]);

/* Writes the program as bytes, defaults of params included. With out NULL the call only sets *needed. */
FXA_API FXA_CHECKED fxa_status fxa_program_save(const fxa_program *program, void *out, size_t capacity, size_t *needed,
                                                fxa_error *err);
/* Makes a program from bytes of fxa_program_save. The bytes may come from an untrusted source: types, limits and hash
 * are verified. Fails with E_BYTES for damaged bytes, E_VERSION for bytes of another version. */
FXA_API FXA_CHECKED fxa_status fxa_program_load(fxa_context *ctx, const void *bytes, size_t size, fxa_program **out,
                                                fxa_error *err);

/* ---- Contents --------------------------------------------------------------------------------------------------- */

/* Returns the kind of a program. */
FXA_API fxa_program_kind fxa_program_get_kind(const fxa_program *program);
/* Returns the number of distinct operations, constants, inputs, params and loads of a program; 0 for NULL. */
FXA_API size_t fxa_program_node_count(const fxa_program *program);

/* Params and tensors are numbered in the bytewise order of their names, independent of the order of declaration. Names
 * live as long as the program. */
typedef struct fxa_param_info {
    const char *name; /* name of the param; NULL past the last param */
    fxa_type type;    /* FXA_FLOAT or FXA_INT */
} fxa_param_info;
typedef struct fxa_tensor_info {
    const char *name; /* name of the tensor; NULL past the last tensor */
    fxa_dtype dtype;  /* storage type */
    int32_t rank;     /* 0 to FXA_MAX_RANK */
} fxa_tensor_info;
/* Returns the number of params; 0 for NULL. */
FXA_API size_t fxa_program_param_count(const fxa_program *program);
/* Returns the number of tensors; 0 for NULL. */
FXA_API size_t fxa_program_tensor_count(const fxa_program *program);
/* Returns param number `index`; all zeroes past the last param. */
FXA_API fxa_param_info fxa_program_param(const fxa_program *program, size_t index);
/* Returns tensor number `index`; all zeroes past the last tensor. */
FXA_API fxa_tensor_info fxa_program_tensor(const fxa_program *program, size_t index);
/* Returns the number of the param with this name; -1 if there is none. */
FXA_API int32_t fxa_program_param_find(const fxa_program *program, const char *name);
/* Returns the number of the tensor with this name; -1 if there is none. */
FXA_API int32_t fxa_program_tensor_find(const fxa_program *program, const char *name);
/* Returns 1 and writes *value if the param has a default (`param cap : float = 20`); else returns 0 and writes nothing.
 * Front ends use the default if their user gives no value; fxa_args.params must have all values. Text and bytes of a
 * program contain the defaults; hash, problems and plans do not depend on the defaults. value may be NULL. */
FXA_API int fxa_program_param_default(const fxa_program *program, size_t index, double *value);

/* Makes the DERIVATIVE program of a SCORE program: gradients with respect to the score, each float param, and each
 * element of a float tensor that the program loads. *out has the params and tensors of `program` in the same order. */
FXA_API FXA_CHECKED fxa_status fxa_program_derivative(const fxa_program *program, fxa_program **out, fxa_error *err);

/* ---- Properties ------------------------------------------------------------------------------------------------- */

/* Properties of a SCORE program that are proven without running the program. A "conjunct" is a condition that holds
 * wherever the mask is true, in whatever way the mask is written.
 *
 * IDENTITY: the score is unchanged and the mask is true
 * PURE_MASK: the score is unchanged
 * NO_MASK: the mask is true
 * ADDITIVE: score + x, where x does not depend on the score
 * SOFTCAP: c * tanh(x / c), where x is the score, or the score plus a bias
 * CAUSAL: conjunct k <= q
 * CAUSAL_BOTTOM_RIGHT: conjunct k <= q + (k_len - q_len)
 * WINDOW: conjuncts bound q - k by constants
 * PADDING: conjunct k < k_len, or k < t[b] for an int tensor t
 * SCORE_MASKS: the score is c ? x : -inf with a condition c that does not read the score. Condition c is treated as
 *     part of the mask, so tiles in which c is false everywhere are skipped.
 * LARGE_NEGATIVE: the score is x + (c ? y : z), where z is -inf or a constant <= -10000, or the score is c ? x : z,
 *     where z is a constant <= -10000. Condition c resembles a mask, but tiles are not skipped, because x may be NaN or
 *     +inf, or z may apply to all keys of a row.
 * FINITE_LARGE_NEGATIVE: LARGE_NEGATIVE with a finite z: a row in which z applies to all keys attends to all keys
 * QUOTIENT_EQUAL: == or != compares x / y of ints. The quotient is exact: q / 32 == k / 32 is true only where q == k.
 *     Blocks of 32 are compared by q // 32 == k // 32. */
#define FXA_PROPERTY_MAP(X)                                                                                            \
    X(IDENTITY, 0, "identity")                                                                                         \
    X(PURE_MASK, 1, "pure mask")                                                                                       \
    X(NO_MASK, 2, "no mask")                                                                                           \
    X(ADDITIVE, 3, "additive bias")                                                                                    \
    X(SOFTCAP, 4, "soft cap")                                                                                          \
    X(CAUSAL, 5, "causal")                                                                                             \
    X(CAUSAL_BOTTOM_RIGHT, 6, "causal bottom-right")                                                                   \
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
/* Returns the name of one property as a static string: "pure mask" for FXA_PROPERTY_PURE_MASK. NULL for other
 * values. */
FXA_API const char *fxa_property_name(uint32_t property);

/* Properties of the mask hold if coordinates and lengths are from 0 to 2^30 - 1, so that their sums do not wrap. */
typedef struct fxa_properties {
    uint32_t flags;         /* FXA_PROPERTY_x */
    uint32_t score_depends; /* bit i = the new score depends on fxa_input i */
    uint32_t mask_depends;  /* bit i = the mask depends on fxa_input i */
    /* SOFTCAP, c * tanh(x / c): number of the param that is c; -1 = c is a constant, or no SOFTCAP */
    int32_t softcap_param;
    double softcap;       /* SOFTCAP, c * tanh(x / c): c if c is a constant, else 0 */
    int32_t window_left;  /* WINDOW: q - k <= window_left; INT32_MAX = unbounded */
    int32_t window_right; /* WINDOW: k - q <= window_right; INT32_MAX = unbounded */
    uint64_t reserved[4]; /* 0 */
} fxa_properties;
/* Writes the properties of a SCORE program. */
FXA_API void fxa_program_properties(const fxa_program *program, fxa_properties *out);

/* ---- Evaluation ------------------------------------------------------------------------------------------------- */

/* A captured tensor in memory: element [i, j, ...] is at data + i * stride[0] + j * stride[1] + ..., in elements. */
typedef struct fxa_view {
    const void *data;             /* element with all indices 0; may be NULL if the tensor is empty */
    fxa_dtype dtype;              /* storage type; must equal the dtype that the program declares */
    int32_t rank;                 /* number of dimensions; must equal the rank that the program declares */
    int64_t size[FXA_MAX_RANK];   /* [rank] elements along each dimension */
    int64_t stride[FXA_MAX_RANK]; /* [rank] strides in elements; may be zero or negative */
} fxa_view;

/* Evaluates a program at one (query, key) pair in f64. This function defines the meaning of programs.
 *
 *     kind of program     *value       *mask
 *     SCORE               new score    0 or 1
 *     BPROP, DERIVATIVE   dscore       1
 *
 * in: inputs by fxa_input; SCORE and DSCORE are floats, the others must be integers of 32 bits.
 * params, tensors: by number, one element per param and tensor of the program; NULL only if the program has none.
 * value and mask may be NULL. Fails with E_BINDING for a wrong input, param or tensor. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                const double *params, const fxa_view *tensors, double *value, int *mask,
                                                fxa_error *err);

/* Results of a program at one (query, key) pair:
 *
 *     kind of program   results
 *     SCORE             SCORE, MASK
 *     BPROP             DSCORE
 *     DERIVATIVE        DSCORE, then any number of DPARAM and DTENSOR */
typedef enum fxa_result_kind {
    FXA_RESULT_SCORE = 0,   /* new score */
    FXA_RESULT_MASK = 1,    /* 0 or 1 */
    FXA_RESULT_DSCORE = 2,  /* gradient with respect to the score */
    FXA_RESULT_DPARAM = 3,  /* contribution to the gradient of a param */
    FXA_RESULT_DTENSOR = 4, /* contribution to the gradient of an element of a tensor */
    FXA_RESULT_FORCE_INT32 = 0x7fffffff
} fxa_result_kind;
typedef struct fxa_bounded_result {
    uint32_t kind; /* fxa_result_kind */
    int32_t slot;  /* DPARAM: number of the param; DTENSOR: number of the tensor; else 0 */
    /* DTENSOR: offset of the tensor's element from fxa_view.data, in elements; -1 = index out of range, no gradient */
    int64_t offset;
    double value; /* result in f64 */
    /* Bound of the absolute error. INFINITY = rounding decides the result, because nearly equal floats are compared or
     * the result may overflow. */
    double error;
} fxa_bounded_result;

/* Evaluates a program like fxa_program_eval, and bounds the error that each result has when an engine computes it in
 * `arithmetic`, FXA_F32 or FXA_F64. The method is first-order running error analysis (docs/numerics.md).
 * error: bounds of the errors of in[SCORE] and in[DSCORE]; other elements are not read. NULL = both are exact.
 * Writes at most *count results and sets *count to their total number. `terms` may be NULL if *count is 0. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval_bounds(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                       const double error[FXA_INPUT_COUNT], fxa_dtype arithmetic,
                                                       const double *params, const fxa_view *tensors,
                                                       fxa_bounded_result *terms, size_t *count, fxa_error *err);

/* ---- Builder: one call per operation ---------------------------------------------------------------------------- */

/* A builder makes a program without text; every program that text can express can be built. A builder stores its first
 * error: later calls do nothing and return a negative value, and fxa_builder_finish returns the error. Callers
 * therefore need not check single values.
 *
 *     fxa_value s = fxa_builder_input(b, FXA_INPUT_SCORE), cap = fxa_builder_param(b, "cap", FXA_FLOAT);
 *     fxa_value t = fxa_builder_op1(b, FXA_OP_TANH, fxa_builder_op2(b, FXA_OP_DIV, s, cap));
 *     fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_MUL, cap, t));
 *     status = fxa_builder_finish(b, &program, &err); */
typedef struct fxa_builder fxa_builder;
typedef int32_t fxa_value; /* number of a value in its builder; negative = the builder has an error */

/* Makes an empty builder for a program of this kind. */
FXA_API FXA_CHECKED fxa_status fxa_builder_create(fxa_context *ctx, fxa_program_kind kind, fxa_builder **out,
                                                  fxa_error *err);
/* Frees the builder; finished programs stay valid. NULL is accepted. */
FXA_API void fxa_builder_destroy(fxa_builder *b);

/* Returns a float constant. */
FXA_API fxa_value fxa_builder_float(fxa_builder *b, double value);
/* Returns an int constant. */
FXA_API fxa_value fxa_builder_int(fxa_builder *b, int32_t value);
/* Returns a bool constant: true if value is not 0. */
FXA_API fxa_value fxa_builder_bool(fxa_builder *b, int value);
/* Returns an input. FXA_INPUT_SCORE is the score that the program changes. */
FXA_API fxa_value fxa_builder_input(fxa_builder *b, fxa_input input);
/* Returns the param of this name. The first call declares the param; later calls must give the same type. */
FXA_API fxa_value fxa_builder_param(fxa_builder *b, const char *name, fxa_type type);
/* Sets the default of a declared param; the default of an int param must be an integer of 32 bits. A second call for
 * the same param with another default is an error. */
FXA_API void fxa_builder_set_default(fxa_builder *b, const char *param, double value);
/* Returns a handle of the tensor of this name for fxa_builder_load; -1 = the builder has an error. The first call
 * declares the tensor, later calls must give the same dtype and rank. */
FXA_API int32_t fxa_builder_tensor(fxa_builder *b, const char *name, fxa_dtype dtype, int32_t rank);
/* Returns the element of a tensor at `n_index` int indices; n_index must be the tensor's rank. */
FXA_API fxa_value fxa_builder_load(fxa_builder *b, int32_t tensor, const fxa_value *index, size_t n_index);
/* Returns the result of an operation other than CONST, INPUT, PARAM and LOAD. Operands are converted as in program
 * text. */
FXA_API fxa_value fxa_builder_op(fxa_builder *b, fxa_op op, const fxa_value *args, size_t n_args);
/* Returns the result of an operation of one operand. */
FXA_API fxa_value fxa_builder_op1(fxa_builder *b, fxa_op op, fxa_value x);
/* Returns the result of an operation of two operands. */
FXA_API fxa_value fxa_builder_op2(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y);
/* Returns the result of an operation of three operands. */
FXA_API fxa_value fxa_builder_op3(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y, fxa_value z);

/* Sets the new score of a SCORE program; without a call the new score is the input score. */
FXA_API void fxa_builder_set_score(fxa_builder *b, fxa_value value);
/* Sets the mask of a SCORE program, a bool; without a call the mask is true. */
FXA_API void fxa_builder_set_mask(fxa_builder *b, fxa_value value);
/* Sets the result dscore of a BPROP or DERIVATIVE program; without a call the result is the input dscore. */
FXA_API void fxa_builder_set_dscore(fxa_builder *b, fxa_value value);

/* Returns the status of the first error so far and writes the error to *err; FXA_OK if there is none. A tracer can call
 * fxa_builder_error after each operation, to report an error at the line of user code that caused the error. */
FXA_API fxa_status fxa_builder_error(const fxa_builder *b, fxa_error *err);
/* Returns the type of a value; 0 if `value` is not a value of this builder. */
FXA_API fxa_type fxa_builder_type(const fxa_builder *b, fxa_value value);
/* Adds the operations of a finished SCORE program, with `score` as its input score, and sets *new_score and *mask to
 * its results. new_score and mask may be NULL. Params and tensors with equal names become one, as in texts that are
 * parsed together. */
FXA_API void fxa_builder_import(fxa_builder *b, const fxa_program *program, fxa_value score, fxa_value *new_score,
                                fxa_value *mask);

/* Makes the program, or returns the first error of the builder. Afterwards the builder can only be destroyed. */
FXA_API FXA_CHECKED fxa_status fxa_builder_finish(fxa_builder *b, fxa_program **out, fxa_error *err);

#ifdef __cplusplus
}
#endif
#endif
