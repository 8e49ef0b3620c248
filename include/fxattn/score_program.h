/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs: the function f of O = softmax( f( scale * Q K^T ; ... ) ) V. Made from text, bytes or by the builder;
 * printed, hashed, differentiated, evaluated, and described by properties that hold for all inputs. Part of
 * <fxattn/fxattn.h>, which is the file to include and lists the rules that hold for all functions. docs/program.md
 * describes the language.
 */
#ifndef FXATTN_SCORE_PROGRAM_H
#define FXATTN_SCORE_PROGRAM_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Score programs -------------------------------------------------------------------------------------------- */

/* Limits of a program. Parser and builder fail with E_LIMIT or E_PROGRAM beyond them. */
/* clang-format off */
#define FXA_MAX_RANK    5          /* dimensions of a captured tensor */
#define FXA_MAX_PARAMS  64         /* params of a program */
#define FXA_MAX_TENSORS 64         /* captured tensors of a program */
#define FXA_MAX_NAME    63         /* bytes of a param, tensor or let name */
#define FXA_MAX_NODES   16384      /* distinct operations of a program */
#define FXA_MAX_TEXT    (1u << 20) /* bytes of all texts of one parse together */
#define FXA_MAX_NESTING 256        /* depth of parentheses, calls and conditionals inside one another */
#define FXA_MAX_LOOP    64         /* iterations of sum, any, all */
/* clang-format on */

typedef enum fxa_program_kind {
    FXA_PROGRAM_SCORE = 0,      /* forward: computes a new score and a mask */
    FXA_PROGRAM_BPROP = 1,      /* user-written backward: computes dscore from dscore, score and coordinates */
    FXA_PROGRAM_DERIVATIVE = 2, /* made by fxa_program_derivative: dscore, and gradients of params and tensors */
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
    X(DSCORE, 7, "dscore") /* float: gradient by the new score; BPROP and DERIVATIVE only */                           \
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

/* Operations. Their codes never change, since program bytes and hashes contain them. docs/program.md describes each.
 * Operand types select the meaning: ADD adds ints or floats. Some operations are rewritten when a program is built and
 * never occur in a finished one: GT, GE (as LT, LE), RELU, SIGN, STOP_GRADIENT, SOFTPLUS. */
#define FXA_OP_MAP(X)                                                                                                  \
    X(CONST, 1)          /* constant */                                                                                \
    X(INPUT, 2)          /* fxa_input */                                                                               \
    X(PARAM, 3)          /* param */                                                                                   \
    X(LOAD, 4)           /* element of a tensor; 0 outside */                                                          \
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
    X(MULZ, 22)          /* x * y, but 0 where x is exactly 0; derivatives use it */                                   \
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

/* One spelling of an operation in program text. An operation may have two: x & y and, for bools, x && y. */
typedef enum fxa_syntax_form {
    FXA_SYNTAX_INFIX = 1,  /* x + y */
    FXA_SYNTAX_PREFIX = 2, /* -x */
    FXA_SYNTAX_CALL = 3,   /* tanh(x) */
    FXA_SYNTAX_FORCE_INT32 = 0x7fffffff
} fxa_syntax_form;

/* Description of a spelling. All strings are static. */
typedef struct fxa_op_syntax_info {
    const char *text;     /* "+", "tanh" */
    fxa_op op;            /* operation that it means */
    fxa_syntax_form form; /* where the operands are written */
    int32_t arity;        /* number of operands */
    int32_t level;        /* precedence of an operator, from 1, higher binds tighter; 0 = CALL */
    const char *groups;   /* associativity of an operator: "left", "right", "do not chain"; "" = CALL */
    const char *about;    /* meaning in one sentence */
} fxa_op_syntax_info;

/* Returns spelling number `index` of the language, for references and front ends; all zeroes past the last one. */
FXA_API fxa_op_syntax_info fxa_op_syntax(size_t index);
/* Returns the name of an input in program text, "q_len"; NULL for other values. A static string. */
FXA_API const char *fxa_input_name(fxa_input input);

/* ---- Parsing ---------------------------------------------------------------------------------------------------- */

/* One of the texts of a program. Texts are concatenated: later ones see the names and results of earlier ones. */
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

/* A param or tensor that texts may use without declaring it. Unused ones do not become part of the program. */
typedef struct fxa_declaration {
    const char *name; /* NUL-terminated */
    fxa_type type;    /* type of a param; 0 = a tensor */
    fxa_dtype dtype;  /* storage type of a tensor; 0 = a param */
    int32_t rank;     /* dimensions of a tensor */
} fxa_declaration;

typedef struct fxa_parse_config {
    uint32_t struct_size;                /* sizeof(fxa_parse_config) */
    uint32_t kind;                       /* fxa_program_kind: SCORE, BPROP or DERIVATIVE */
    const fxa_text *texts;               /* [n_texts] parsed in this order */
    size_t n_texts;                      /* 0 = the identity */
    const fxa_declaration *declarations; /* [n_declarations] */
    size_t n_declarations;               /* number of declarations */
    const uint32_t *text_kinds;          /* [n_texts] fxa_text_kind; NULL = all STATEMENTS */
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
/* Drops a reference; the last one frees the program. NULL is accepted. */
FXA_API void fxa_program_destroy(fxa_program *program);

/* ---- Text, bytes, hash ------------------------------------------------------------------------------------------ */

/* Writes the canonical text. Parsing it gives a program with the same hash and the same canonical text. Two-call. */
FXA_API FXA_CHECKED fxa_status fxa_program_print(const fxa_program *program, char *out, size_t capacity, size_t *needed,
                                                 fxa_error *err);

/* Views of a SCORE program as engines compile it, in lines for people. Their wording may change in any version. */
typedef enum fxa_dump_kind {
    FXA_DUMP_CLASSES = 0,   /* values that vary less often than the score, and how gradients are summed */
    FXA_DUMP_CONJUNCTS = 1, /* the mask as a list of conditions that must all hold, with the kind of each */
    FXA_DUMP_FUSED = 2,     /* score, mask, derivative and gradients as one program */
    FXA_DUMP_FORCE_INT32 = 0x7fffffff
} fxa_dump_kind;
/* Writes one of these views of a SCORE program. Two-call. Fails with E_ARGUMENT for BPROP and DERIVATIVE programs. */
FXA_API FXA_CHECKED fxa_status fxa_program_dump(const fxa_program *program, fxa_dump_kind kind, char *out,
                                                size_t capacity, size_t *needed, fxa_error *err);

/* Writes the 128-bit hash of the canonical program: equal for equal programs in every process and on every machine.
 * A NULL program has the hash 0. */
FXA_API void fxa_program_hash(const fxa_program *program, uint8_t hash[16]);

/* Writes the program as bytes, defaults of params included. Two-call. */
FXA_API FXA_CHECKED fxa_status fxa_program_save(const fxa_program *program, void *out, size_t capacity, size_t *needed,
                                                fxa_error *err);
/* Makes a program from bytes of fxa_program_save. The bytes may come from an untrusted source: types, limits and hash
 * are verified. Fails with E_BYTES for damaged bytes, E_VERSION for those of another version. */
FXA_API FXA_CHECKED fxa_status fxa_program_load(fxa_context *ctx, const void *bytes, size_t size, fxa_program **out,
                                                fxa_error *err);

/* ---- Contents --------------------------------------------------------------------------------------------------- */

/* Returns the kind of a program. */
FXA_API fxa_program_kind fxa_program_get_kind(const fxa_program *program);
/* Returns the number of distinct operations, constants, inputs, params and loads of a program; 0 for NULL. */
FXA_API size_t fxa_program_node_count(const fxa_program *program);

/* Params and tensors are numbered in the bytewise order of their names, whatever the order of declaration. Names live
 * as long as the program. */
typedef struct fxa_param_info {
    const char *name; /* NULL past the last param */
    fxa_type type;    /* FXA_FLOAT or FXA_INT */
} fxa_param_info;
typedef struct fxa_tensor_info {
    const char *name; /* NULL past the last tensor */
    fxa_dtype dtype;  /* storage type */
    int32_t rank;     /* 0 to FXA_MAX_RANK */
} fxa_tensor_info;
/* Returns the number of params; 0 for NULL. */
FXA_API size_t fxa_program_param_count(const fxa_program *program);
/* Returns the number of tensors; 0 for NULL. */
FXA_API size_t fxa_program_tensor_count(const fxa_program *program);
/* Returns param number `index`; all zeroes past the last one. */
FXA_API fxa_param_info fxa_program_param(const fxa_program *program, size_t index);
/* Returns tensor number `index`; all zeroes past the last one. */
FXA_API fxa_tensor_info fxa_program_tensor(const fxa_program *program, size_t index);
/* Returns the number of the param with this name; -1 if there is none. */
FXA_API int32_t fxa_program_param_find(const fxa_program *program, const char *name);
/* Returns the number of the tensor with this name; -1 if there is none. */
FXA_API int32_t fxa_program_tensor_find(const fxa_program *program, const char *name);
/* Returns 1 and writes *value if the param has a default (`param cap : float = 20`); else returns 0 and writes nothing.
 * Front ends use defaults for params that their user left out. A run needs all values regardless. Text and bytes of a
 * program contain its defaults; its hash, problems and plans do not depend on them. value may be NULL. */
FXA_API int fxa_program_param_default(const fxa_program *program, size_t index, double *value);

/* Makes the DERIVATIVE program of a SCORE program: gradients by the score, each float param, and each element of a
 * float tensor that the pair loads. It has the same params and tensors in the same order. */
FXA_API FXA_CHECKED fxa_status fxa_program_derivative(const fxa_program *program, fxa_program **out, fxa_error *err);

/* ---- Properties ------------------------------------------------------------------------------------------------- */

/* Properties of a SCORE program that are proven without running it. A "conjunct" is a condition that holds wherever the
 * mask is true, in whatever way the mask is written.
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
 * SCORE_MASKS: the score is c ? x : -inf with a condition c that does not read the score. It is treated as part of the
 *     mask, so tiles without any true c are skipped.
 * LARGE_NEGATIVE: the score is x + (c ? y : z), where z is -inf or a constant <= -10000, or it is c ? x : z with such a
 *     constant. It resembles a mask, but tiles are not skipped, because x may be NaN or +inf, or z may apply to all
 *     keys of a row.
 * FINITE_LARGE_NEGATIVE: LARGE_NEGATIVE with a finite z: a row in which z applies to all keys attends to all of them
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
/* Returns the text of one property, "pure mask" for FXA_PROPERTY_PURE_MASK; NULL for other values. Static. */
FXA_API const char *fxa_property_name(uint32_t property);

/* Properties of the mask hold for coordinates and lengths of 0 to 2^30 - 1, where sums of two do not wrap. */
typedef struct fxa_properties {
    uint32_t flags;         /* FXA_PROPERTY_x */
    uint32_t score_depends; /* bit i = the new score depends on fxa_input i */
    uint32_t mask_depends;  /* bit i = the mask depends on fxa_input i */
    int32_t softcap_param;  /* SOFTCAP: number of the param that is c; -1 = a constant, or no SOFTCAP */
    double softcap;         /* SOFTCAP: c if it is constant, else 0 */
    int32_t window_left;    /* WINDOW: q - k <= window_left; INT32_MAX = unbounded */
    int32_t window_right;   /* WINDOW: k - q <= window_right; INT32_MAX = unbounded */
    uint64_t reserved[4];   /* 0 */
} fxa_properties;
/* Writes the properties of a SCORE program. */
FXA_API void fxa_program_properties(const fxa_program *program, fxa_properties *out);

/* ---- Evaluation ------------------------------------------------------------------------------------------------- */

/* A captured tensor in memory: element [i, j, ...] is at data + i * stride[0] + j * stride[1] + ..., in elements. */
typedef struct fxa_view {
    const void *data;             /* element with all indices 0; may be NULL if the tensor is empty */
    fxa_dtype dtype;              /* storage type, that of the program's tensor */
    int32_t rank;                 /* dimensions, those of the program's tensor */
    int64_t size[FXA_MAX_RANK];   /* [rank] elements along each dimension */
    int64_t stride[FXA_MAX_RANK]; /* [rank] in elements; may be zero or negative */
} fxa_view;

/* Evaluates a program at one pair in f64. This defines the meaning of programs.
 *
 *     SCORE               *value = new score, *mask = 0 or 1
 *     BPROP, DERIVATIVE   *value = dscore,    *mask = 1
 *
 * in: inputs by fxa_input; SCORE and DSCORE are floats, the others must be integers of 32 bits.
 * params, tensors: one per param and tensor of the program, in its order; NULL only if it has none.
 * value and mask may be NULL. Fails with E_BINDING for a wrong input, param or tensor. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                const double *params, const fxa_view *tensors, double *value, int *mask,
                                                fxa_error *err);

/* Results of a program at one pair:
 *
 *     SCORE        SCORE, MASK
 *     BPROP        DSCORE
 *     DERIVATIVE   DSCORE, then any number of DPARAM and DTENSOR */
typedef enum fxa_result_kind {
    FXA_RESULT_SCORE = 0,   /* new score */
    FXA_RESULT_MASK = 1,    /* 0 or 1 */
    FXA_RESULT_DSCORE = 2,  /* gradient by the score */
    FXA_RESULT_DPARAM = 3,  /* contribution to the gradient of a param */
    FXA_RESULT_DTENSOR = 4, /* contribution to the gradient of an element of a tensor */
    FXA_RESULT_FORCE_INT32 = 0x7fffffff
} fxa_result_kind;
typedef struct fxa_bounded_result {
    uint32_t kind;  /* fxa_result_kind */
    int32_t slot;   /* DPARAM: number of the param; DTENSOR: number of the tensor; else 0 */
    int64_t offset; /* DTENSOR: offset of the element from the view's data, in elements; -1 = outside, adds nothing */
    double value;   /* result in f64 */
    double error;   /* bound of the absolute error; INFINITY = rounding decides the result: nearly equal floats
                       are compared, or the result may overflow */
} fxa_bounded_result;

/* Evaluates a program like fxa_program_eval and bounds the error of each result when an engine computes it in
 * `arithmetic`, FXA_F32 or FXA_F64: running error analysis of first order (docs/numerics.md).
 * error: bounds of the errors of in[SCORE] and in[DSCORE]; other elements are not read. NULL = both are exact.
 * Writes at most *count results and sets *count to their total number. `terms` may be NULL if *count is 0. */
FXA_API FXA_CHECKED fxa_status fxa_program_eval_bounds(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                       const double error[FXA_INPUT_COUNT], fxa_dtype arithmetic,
                                                       const double *params, const fxa_view *tensors,
                                                       fxa_bounded_result *terms, size_t *count, fxa_error *err);

/* ---- Builder: one call per operation ---------------------------------------------------------------------------- */

/* A builder makes a program without text. It can make every program that text can. A builder stores its first error;
 * all later calls then do nothing and return a negative value, and fxa_builder_finish returns the error. Callers
 * therefore need not check single values.
 *
 *     fxa_value s = fxa_builder_input(b, FXA_INPUT_SCORE), cap = fxa_builder_param(b, "cap", FXA_FLOAT);
 *     fxa_value t = fxa_builder_op1(b, FXA_OP_TANH, fxa_builder_op2(b, FXA_OP_DIV, s, cap));
 *     fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_MUL, cap, t));
 *     status = fxa_builder_finish(b, &program, &err); */
typedef struct fxa_builder fxa_builder;
typedef int32_t fxa_value; /* a value of one builder; negative = the builder has an error */

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
/* Returns an input. FXA_INPUT_SCORE is the score before the program. */
FXA_API fxa_value fxa_builder_input(fxa_builder *b, fxa_input input);
/* Returns the param of this name, which the first call declares. Later calls must give the same type. */
FXA_API fxa_value fxa_builder_param(fxa_builder *b, const char *name, fxa_type type);
/* Sets the default of a declared param, for an int an integer of 32 bits. Setting a different one is an error. */
FXA_API void fxa_builder_set_default(fxa_builder *b, const char *param, double value);
/* Returns a handle of the tensor of this name for fxa_builder_load; -1 = the builder has an error. The first call
 * declares the tensor, later ones must give the same dtype and rank. */
FXA_API int32_t fxa_builder_tensor(fxa_builder *b, const char *name, fxa_dtype dtype, int32_t rank);
/* Returns the element of a tensor at `n_index` int indices, which must be the tensor's rank. */
FXA_API fxa_value fxa_builder_load(fxa_builder *b, int32_t tensor, const fxa_value *index, size_t n_index);
/* Returns the result of an operation other than CONST, INPUT, PARAM and LOAD. Operands are converted as in text. */
FXA_API fxa_value fxa_builder_op(fxa_builder *b, fxa_op op, const fxa_value *args, size_t n_args);
/* Returns the result of an operation of one operand. */
FXA_API fxa_value fxa_builder_op1(fxa_builder *b, fxa_op op, fxa_value x);
/* Returns the result of an operation of two operands. */
FXA_API fxa_value fxa_builder_op2(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y);
/* Returns the result of an operation of three operands. */
FXA_API fxa_value fxa_builder_op3(fxa_builder *b, fxa_op op, fxa_value x, fxa_value y, fxa_value z);

/* Sets the new score of a SCORE program; without a call it is the input. */
FXA_API void fxa_builder_set_score(fxa_builder *b, fxa_value value);
/* Sets the mask of a SCORE program, a bool; without a call it is true. */
FXA_API void fxa_builder_set_mask(fxa_builder *b, fxa_value value);
/* Sets dscore of a BPROP or DERIVATIVE program; without a call it is the input. */
FXA_API void fxa_builder_set_dscore(fxa_builder *b, fxa_value value);

/* Returns the status of the first error so far and writes it to *err; FXA_OK if there is none. Tracers use it to report
 * an error at the line of user code that caused it. */
FXA_API fxa_status fxa_builder_error(const fxa_builder *b, fxa_error *err);
/* Returns the type of a value; 0 if it is not a value of this builder. */
FXA_API fxa_type fxa_builder_type(const fxa_builder *b, fxa_value value);
/* Adds the operations of a finished SCORE program, with `score` as its input. *new_score and *mask get its results and
 * may be NULL. Params and tensors with equal names become one, as in texts that are parsed together. */
FXA_API void fxa_builder_import(fxa_builder *b, const fxa_program *program, fxa_value score, fxa_value *new_score,
                                fxa_value *mask);

/* Makes the program, or returns the first error of the builder. Afterwards the builder can only be destroyed. */
FXA_API FXA_CHECKED fxa_status fxa_builder_finish(fxa_builder *b, fxa_program **out, fxa_error *err);

#ifdef __cplusplus
}
#endif
#endif
