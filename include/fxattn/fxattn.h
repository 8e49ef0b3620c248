/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn: fused attention with your own score function inside.
 *
 *     O = softmax( f( scale * Q K^T ; b, h, q, k, your tensors, your scalars ) ) V
 *
 * This is the whole public interface. It needs C11 (or C++), no other header of ours and none of anybody else.
 *
 * The flow:  program (what f is)  ->  problem (shapes, layouts, features)  ->  plan (compiled)  ->  run (pointers).
 *
 * Rules that hold for every function here:
 * - A call that can fail returns fxa_status and takes an optional fxa_error, owned by the caller, as its last argument.
 *   On failure no output is written and nothing is leaked; `*out` pointers are set to NULL.
 * - `_create`, `_parse`, `_load`, ... give the caller one reference; `_destroy` drops it, takes NULL, in any order.
 * - Programs and plans are immutable and may be shared between threads; a context locks itself; a builder belongs to
 *   one thread at a time.
 * - Everything passed in is borrowed for the duration of the call and copied when it is kept.
 * - The library never prints, exits, aborts, or touches global or thread-local state. The caller's floating point state
 *   (rounding, denormals, traps) changes no result and is as before when a call returns (docs/ownership.md).
 */
#ifndef FXATTN_FXATTN_H
#define FXATTN_FXATTN_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FXA_API __attribute__((visibility("default")))
#define FXA_CHECKED __attribute__((warn_unused_result))
#else
#define FXA_API
#define FXA_CHECKED
#endif

/* Structs that a caller fills begin with struct_size, set by their _INIT macro, and are only ever appended to. A
 * shorter one is an older caller's: what it lacks has its default. Of a longer one, a newer caller's, no byte past what
 * this library knows is read; a field that an older library must not ignore comes with a flag (or a value of a field
 * that is reserved here), and those it refuses. More than FXA_MAX_STRUCT bytes are a struct that was never filled:
 * E_STRUCT.
 * Structs without a size travel in arrays or are results. They never grow: what is new about them takes reserved room,
 * where they have some (zeroes; callers leave them so), or is a new struct with functions of its own. */
#define FXA_MAX_STRUCT 16384u

/* The _INIT macros: a struct of zeroes that knows its size. */
#ifdef __cplusplus
template <class Struct> inline Struct fxa_sized() {
    Struct s = Struct();
    s.struct_size = static_cast<uint32_t>(sizeof(Struct));
    return s;
}
#define FXA_SIZED(type) fxa_sized<type>()
#else
/* clang-format off */
#define FXA_SIZED(type) {.struct_size = sizeof(type)}
/* clang-format on */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
#define FXA_VERSION_MAJOR  0
#define FXA_VERSION_MINOR  1
#define FXA_VERSION_PATCH  0
/* clang-format on */
#define FXA_VERSION_STRING "0.1.0"

/* The version of the library at run time, as FXA_VERSION_STRING is at compile time. */
FXA_API const char *fxa_version(void);

/* ---- Status and errors ----------------------------------------------------------------------------------------- */

/* Values are pinned. 1xx: the caller's; 2xx: an honest no; 3xx: bytes; 4xx: resources; 5xx: engines. */
#define FXA_STATUS_MAP(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(E_ARGUMENT, 100, "an argument is missing or out of range")                                                       \
    X(E_STRUCT, 101, "a struct_size is not one this library knows")                                                    \
    X(E_PROGRAM, 110, "a score program is wrong: syntax, names or types")                                              \
    X(E_LIMIT, 111, "a limit of the library is exceeded")                                                              \
    X(E_PROBLEM, 120, "a problem description contradicts itself")                                                      \
    X(E_BINDING, 130, "a pointer, scalar or length given to a run is wrong")                                           \
    X(E_WORKSPACE, 131, "the workspace is too small or misaligned")                                                    \
    X(E_UNSUPPORTED, 200, "no engine that was asked can do this")                                                      \
    X(E_UNAVAILABLE, 201, "an engine or a library it needs is not present")                                            \
    X(E_BYTES, 300, "bytes are damaged or are not ours")                                                               \
    X(E_VERSION, 301, "bytes come from a version or device that does not fit")                                         \
    X(E_MEMORY, 400, "out of memory")                                                                                  \
    X(E_SYSTEM, 401, "the operating system refused a resource")                                                        \
    X(E_ENGINE, 500, "an engine failed while running")                                                                 \
    X(E_INTERNAL, 501, "a bug in fxattn: please report it")

/* clang-format off */
typedef enum fxa_status {
#define FXA_STATUS_ENUM(name, value, text) FXA_##name = value,
    FXA_STATUS_MAP(FXA_STATUS_ENUM)
#undef FXA_STATUS_ENUM
    FXA_STATUS_FORCE_INT32 = 0x7fffffff
} fxa_status;
/* clang-format on */

/* What was wrong, what was given, what would be accepted. Plain data: copy it, keep it, no lifetime attached. */
typedef struct fxa_error {
    fxa_status status;
    int32_t part;   /* which text of a parse, from 0 */
    int32_t line;   /* from 1; 0 when the error has no place in a text */
    int32_t column; /* in characters of UTF-8, from 1: bytes 0x80 to 0xbf continue one and do not count */
    int32_t length; /* how many of them to underline, at least 1 */
    char text[492]; /* always terminated */
} fxa_error;

/* The name ("FXA_E_PROGRAM") and the one-line meaning of a status; "unknown status" for a value that is none. */
FXA_API const char *fxa_status_name(fxa_status status);
FXA_API const char *fxa_status_text(fxa_status status);

/* Writes "name:line:column: error: text", the offending line and a caret below it into `out` (always terminated when
 * capacity > 0) and returns the length it needs without the terminator, as snprintf does. `source` is the text that was
 * parsed (may be NULL: then only the first line is written); size SIZE_MAX means terminated by NUL. */
FXA_API size_t fxa_error_render(const fxa_error *err, const char *name, const char *source, size_t size, char *out,
                                size_t capacity);

/* ---- Context --------------------------------------------------------------------------------------------------- */

typedef struct fxa_context fxa_context;
typedef struct fxa_program fxa_program;
typedef struct fxa_plan fxa_plan;

/* One function for all memory. ptr NULL, old_size 0: allocate; new_size 0: free (returns NULL); else resize. Returns
 * memory aligned to `align` (a power of two) or NULL, in which case `ptr` is untouched. Called from any thread, in the
 * default floating point state, which it leaves so. */
typedef void *(*fxa_alloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size, size_t align);

/* A parallel loop of the caller's: calls task(arg, i) once for each i in 0..n-1, on any threads, in any order, also one
 * after the other, and returns when all have returned. `user` is parallel_user. Called by fxa_plan_run in the thread
 * that runs, so perhaps by several at the same time, in the default floating point state. Its threads need 128 KB of
 * stack for a task, and may have any floating point state. */
typedef void (*fxa_parallel_fn)(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#define FXA_MAX_THREADS 1024

typedef struct fxa_context_config {
    uint32_t struct_size;
    uint32_t reserved;  /* 0 */
    fxa_alloc_fn alloc; /* NULL: the C library's */
    void *alloc_user;
    uint64_t cache_max_plans; /* 0: 256 */
    uint64_t cache_max_bytes; /* 0: 256 MiB */
    uint32_t threads;         /* of one run, the caller's counted; 0: the environment's FXA_THREADS, or as many as there
                                 are CPUs for this process; 1: the library starts none. Results do not depend on it */
    uint32_t reserved2;       /* 0 */
    fxa_parallel_fn parallel; /* given: the library starts no thread and splits a run by this, into at most `threads` */
    void *parallel_user;
} fxa_context_config;
#define FXA_CONTEXT_CONFIG_INIT FXA_SIZED(fxa_context_config)

/* config may be NULL. Programs and plans outlive their context. */
FXA_API FXA_CHECKED fxa_status fxa_context_create(const fxa_context_config *config, fxa_context **out, fxa_error *err);
FXA_API void fxa_context_destroy(fxa_context *ctx);
FXA_API int32_t fxa_context_threads(const fxa_context *ctx); /* of one run at most, as resolved */

/* ---- Values and storage types ---------------------------------------------------------------------------------- */

typedef enum fxa_type { FXA_FLOAT = 1, FXA_INT = 2, FXA_BOOL = 3, FXA_TYPE_FORCE_INT32 = 0x7fffffff } fxa_type;

#define FXA_DTYPE_MAP(X)                                                                                               \
    X(F64, 1, "f64", 8, FLOAT)                                                                                         \
    X(F32, 2, "f32", 4, FLOAT)                                                                                         \
    X(F16, 3, "f16", 2, FLOAT)                                                                                         \
    X(BF16, 4, "bf16", 2, FLOAT)                                                                                       \
    X(I64, 5, "i64", 8, INT)                                                                                           \
    X(I32, 6, "i32", 4, INT)                                                                                           \
    X(I16, 7, "i16", 2, INT)                                                                                           \
    X(I8, 8, "i8", 1, INT)                                                                                             \
    X(U8, 9, "u8", 1, INT)                                                                                             \
    X(B8, 10, "bool", 1, BOOL)

/* 11 and 12 are kept for the floats of 8 bits, e4m3 and e5m2, and slots 32 to 47 for the scales of such operands. */
/* clang-format off */
typedef enum fxa_dtype {
    FXA_DTYPE_NONE = 0,
#define FXA_DTYPE_ENUM(name, value, text, size, type) FXA_##name = value,
    FXA_DTYPE_MAP(FXA_DTYPE_ENUM)
#undef FXA_DTYPE_ENUM
    FXA_DTYPE_FORCE_INT32 = 0x7fffffff
} fxa_dtype;
/* clang-format on */

FXA_API const char *fxa_dtype_name(fxa_dtype dtype); /* "f32"; "none" for FXA_DTYPE_NONE and unknown values */
FXA_API size_t fxa_dtype_size(fxa_dtype dtype);      /* bytes; 0 for the same */
FXA_API fxa_dtype fxa_dtype_find(const char *name);  /* FXA_DTYPE_NONE when there is none */

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

/* What a program reads of a pair. */
#define FXA_INPUT_MAP(X)                                                                                               \
    X(SCORE, 0, "score") /* float, already scaled */                                                                   \
    X(B, 1, "b")                                                                                                       \
    X(H, 2, "h") /* the query head */                                                                                  \
    X(Q, 3, "q")                                                                                                       \
    X(K, 4, "k")                                                                                                       \
    X(Q_LEN, 5, "q_len")                                                                                               \
    X(K_LEN, 6, "k_len")                                                                                               \
    X(DSCORE, 7, "dscore") /* BPROP and DERIVATIVE only */                                                             \
    X(HEADS, 8, "heads")   /* the number of query heads */

/* clang-format off */
typedef enum fxa_input {
#define FXA_INPUT_ENUM(name, value, text) FXA_INPUT_##name = value,
    FXA_INPUT_MAP(FXA_INPUT_ENUM)
#undef FXA_INPUT_ENUM
    FXA_INPUT_COUNT = 9,
    FXA_INPUT_FORCE_INT32 = 0x7fffffff
} fxa_input;
/* clang-format on */

/* Operations, with pinned codes: they are part of program bytes and hashes. docs/program.md describes each. An
 * operation means what its operand types say (ADD adds ints or floats). GT and GE become LT and LE when built; RELU,
 * SIGN and SOFTPLUS what docs/program.md says. */
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
typedef enum fxa_form {
    FXA_FORM_INFIX = 1,  /* x + y */
    FXA_FORM_PREFIX = 2, /* -x */
    FXA_FORM_CALL = 3,   /* tanh(x) */
    FXA_FORM_FORCE_INT32 = 0x7fffffff
} fxa_form;
typedef struct fxa_spelling_info {
    const char *text; /* "+", "tanh" */
    fxa_op op;
    fxa_form form;
    int32_t arity;
    int32_t level;      /* of an operator: the higher, the tighter it binds; from 1. 0 for CALL */
    const char *groups; /* "left", "right" or "do not chain"; "" for CALL */
    const char *about;  /* one sentence on the operation */
} fxa_spelling_info;
/* The operators and functions of the language, for references and front ends, by position; zeroes past the end. */
FXA_API fxa_spelling_info fxa_spelling(size_t index);
/* The name of an input in program text; NULL for a value that is none. */
FXA_API const char *fxa_input_name(fxa_input input);

/* One text of several: programs compose by concatenation. size SIZE_MAX: terminated by NUL. */
typedef struct fxa_text {
    const char *name; /* for messages; may be NULL */
    const char *data;
    size_t size;
} fxa_text;

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
typedef enum fxa_lowering {
    FXA_LOWERING_CLASSES = 0,   /* what changes less often than the score, and how often; how gradients are summed */
    FXA_LOWERING_CONJUNCTS = 1, /* the mask as parts that must all hold, and what kind each is of */
    FXA_LOWERING_JOINT = 2,     /* value, mask, derivative and gradients as one program */
    FXA_LOWERING_FORCE_INT32 = 0x7fffffff
} fxa_lowering;
/* Two-call, as fxa_program_print. E_ARGUMENT for a program of another kind. */
FXA_API FXA_CHECKED fxa_status fxa_program_lowering(const fxa_program *program, fxa_lowering what, char *out,
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
 * PENALTY: x + (c ? y : -inf), where a NaN or +inf of x makes NaN, or a constant of at most -10000 for that -inf, also
 *     in c ? x : -1e9: much like a mask, and not skipped
 * FINITE_PENALTY: a PENALTY by a finite constant: a row that it covers whole attends to all of its keys */
#define FXA_FACT_MAP(X)                                                                                                \
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
    X(PENALTY, 10, "penalty")                                                                                          \
    X(FINITE_PENALTY, 11, "finite penalty")

/* clang-format off */
enum {
#define FXA_FACT_ENUM(name, bit, text) FXA_FACT_##name = 1 << bit,
    FXA_FACT_MAP(FXA_FACT_ENUM)
#undef FXA_FACT_ENUM
    FXA_FACT_COUNT = 12
};
/* clang-format on */
/* "pure mask" of FXA_FACT_PURE_MASK; NULL for a value that is not one fact. */
FXA_API const char *fxa_fact_name(uint32_t fact);
/* Facts about the mask hold for coordinates and lengths from 0 to 2^30 - 1, where no int of a sane mask wraps. */
typedef struct fxa_facts {
    uint32_t flags;
    uint32_t score_depends; /* inputs the new score depends on; 1 << FXA_INPUT_SCORE nearly always */
    uint32_t mask_depends;
    int32_t softcap_param; /* index of the param that is the cap, or -1 */
    double softcap;        /* the constant cap, or 0 */
    int32_t window_left;   /* q - k <= window_left */
    int32_t window_right;  /* k - q <= window_right */
    uint64_t reserved[4];
} fxa_facts;
FXA_API void fxa_program_facts(const fxa_program *program, fxa_facts *out);

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
typedef enum fxa_term_kind {
    FXA_TERM_SCORE = 0,   /* SCORE programs have two: SCORE, MASK */
    FXA_TERM_MASK = 1,    /* 0 or 1 */
    FXA_TERM_DSCORE = 2,  /* the first of a BPROP or DERIVATIVE program; the latter has more: */
    FXA_TERM_DPARAM = 3,  /* what the pair adds to the gradient of a param, */
    FXA_TERM_DTENSOR = 4, /* and to that of an element of a tensor */
    FXA_TERM_FORCE_INT32 = 0x7fffffff
} fxa_term_kind;
typedef struct fxa_term {
    uint32_t kind;
    int32_t slot;   /* DPARAM: which param; DTENSOR: which tensor */
    int64_t offset; /* DTENSOR: of the element, in elements from the data of its view; -1: outside, adds nothing */
    double value;
    double error; /* INFINITY: rounding decides (floats compared that are nearly equal, an overflow) */
} fxa_term;

/* fxa_program_eval with every result, each with a bound of the error of `arithmetic` (FXA_F32 or FXA_F64): a running
 * error analysis to first order, as docs/numerics.md has it. error[] are those of in[SCORE] and in[DSCORE] (the others
 * are not read); NULL: exact. Fills at most *count terms and sets *count to how many there are; terms may be NULL. */
FXA_API FXA_CHECKED fxa_status fxa_program_terms(const fxa_program *program, const double in[FXA_INPUT_COUNT],
                                                 const double error[FXA_INPUT_COUNT], fxa_dtype arithmetic,
                                                 const double *params, const fxa_view *tensors, fxa_term *terms,
                                                 size_t *count, fxa_error *err);

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

/* ---- Problems -------------------------------------------------------------------------------------------------- */

typedef enum fxa_pass { FXA_FORWARD = 0, FXA_BACKWARD = 1, FXA_PASS_FORCE_INT32 = 0x7fffffff } fxa_pass;

typedef enum fxa_layout {
    FXA_LAYOUT_BHSD = 0, /* packed, batch outermost */
    FXA_LAYOUT_BSHD = 1,
    FXA_LAYOUT_SBHD = 2,
    FXA_LAYOUT_STRIDED = 3, /* stride[] as given */
    FXA_LAYOUT_FORCE_INT32 = 0x7fffffff
} fxa_layout;

/* How one of Q K V O (and gradients) lies in memory: [B,H,S,D]; rows such as LSE: [B,H,S] (the same layouts less D).
 * Inputs may have zero strides (expanded) and negative ones; outputs must not overlap themselves. */
typedef struct fxa_operand {
    uint32_t dtype;    /* 0: the default said at each field */
    uint32_t layout;   /* fxa_layout */
    int64_t stride[4]; /* STRIDED only: batch, head, position, feature; in elements. Packed and paged: see flags */
} fxa_operand;

/* A captured tensor: sizes and strides; dtype and rank are the program's. Data is bound at run time. */
typedef struct fxa_capture {
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK];      /* in elements; used when strided is not 0, else dense row-major */
    int64_t grad_stride[FXA_MAX_RANK]; /* used when grad_strided is not 0 */
    uint32_t strided;
    uint32_t grad;       /* backward: not 0 asks for the gradient of this (float) tensor */
    uint32_t grad_dtype; /* 0: the tensor's */
    uint32_t grad_strided;
    uint64_t reserved[2]; /* 0 */
} fxa_capture;

/* Where local index i lies in the whole: the program (and dropout) sees the mapped value, memory is read by i. */
typedef enum fxa_map_kind {
    FXA_MAP_AFFINE = 0,   /* base + step * i; with base 0, step 0 (all zeroes) it is the identity: step 0 means 1 */
    FXA_MAP_SEGMENTS = 1, /* the last segment with begin <= i: base + step * (i - begin); step 0 means 1 here too */
    FXA_MAP_TABLE = 2,    /* table[i], int32, bound at run time (FXA_SLOT_MAP_x) */
    FXA_MAP_FORCE_INT32 = 0x7fffffff
} fxa_map_kind;
#define FXA_MAX_SEGMENTS 16
typedef struct fxa_segment {
    int64_t begin; /* local; the first is 0, ascending */
    int64_t base;
    int64_t step;
} fxa_segment;
typedef struct fxa_index_map {
    uint32_t kind;
    uint32_t dynamic; /* not 0: an int32 read at run time from FXA_SLOT_DYN_x is added */
    int64_t base, step;
    uint32_t n_segments;
    uint32_t reserved; /* 0 */
    fxa_segment segment[FXA_MAX_SEGMENTS];
} fxa_index_map;

/* fxa_problem.flags. Some need more words than fit behind them:
 * WINDOW: ready mask: q - window_left <= k <= q + window_right; below 0 or 2^31 - 1: open there
 * BOTTOM_RIGHT: CAUSAL and WINDOW align to the last row and key: in them, and there alone, q is q + k_len - q_len. With
 *     neither of them the program's own q is, and dropout's: decoding without positions.
 * PADDING: per-batch lengths, FXA_SLOT_LEN_Q and/or FXA_SLOT_LEN_K. With VARLEN: how many rows or keys of its room a
 *     sequence has; gaps are nobody's.
 * VARLEN: packed sequences: FXA_SLOT_CU_Q, CU_K give B+1 offsets each. sq, sk are the longest lengths, total_q,
 *     total_k the packed ones; batch strides are not used; packed layouts mean: BHSD [H,T,D], BSHD and SBHD [T,H,D];
 *     of LSE, the row maximum and dLSE [H,T] and [T,H].
 *     With PAGED only rows are packed, and CU_K, total_k are not used.
 * PAGED: K and V in pages: [n_pages,Hkv,page_size,D] (batch stride = page stride, layouts mean the same with B =
 *     n_pages, S = page_size); FXA_SLOT_PAGES is int32 [B,ceil(sk/page_size)]. Lengths by PADDING. With VARLEN: chunks
 *     of prompts and decoding steps in one call.
 * SINK: as SINK_ZERO, with a learned score per query head: FXA_SLOT_SINK [Hq]
 * WANT_MAX: forward: also FXA_SLOT_MAX_ROW, the row maximum of the new scores
 * ACC_OUT: forward: merge into the O and LSE already there (as fxa_merge does)
 * POSITIONS: where the rows of each batch entry begin: FXA_SLOT_POS_Q is added to q, for the program, ready masks and
 *     dropout. Not with BOTTOM_RIGHT, which says the same.
 * STRICT_INDEX: a run in which an index leaves its captured tensor is an error (E_BINDING with tensor, axis, index,
 *     size and pair) and writes nothing; without it such a load reads 0. Which loads count: docs/program.md. Looked at
 *     before the run, on the host: cheap where ranges prove it, else as long as evaluating the pairs one by one. Host
 *     engines only.
 * DETERMINISTIC: the same bits in every run, or no plan: an engine whose sums have no fixed order refuses.
 * CAPTURE: runs are recorded into a graph of the device and replayed: they neither wait for the device nor read its
 *     memory on the host. Refused for problems on the host.
 * SCALARS_IN_MEMORY: scale, seed and params are read by the run where the tensors lie (FXA_SLOT_SCALE, SEED, PARAMS),
 *     not from fxa_args: for scalars that a device computes, and for graphs that are replayed with others. */
#define FXA_FLAG_MAP(X)                                                                                                \
    X(CAUSAL, 0, "causal") /* ready mask: k <= q */                                                                    \
    X(WINDOW, 1, "window")                                                                                             \
    X(BOTTOM_RIGHT, 2, "bottom-right")                                                                                 \
    X(PADDING, 3, "padding")                                                                                           \
    X(VARLEN, 4, "packed")                                                                                             \
    X(PAGED, 5, "paged")                                                                                               \
    X(SINK_ZERO, 6, "sink-zero") /* softmax off by one: a key of score 0 and value 0 */                                \
    X(SINK, 7, "sink")                                                                                                 \
    X(DROPOUT, 8, "dropout") /* dropout of probabilities by dropout_p, seed at run time */                             \
    X(WANT_LSE, 9, "lse")    /* forward: also FXA_SLOT_LSE. Backward always reads LSE and O */                         \
    X(WANT_MAX, 10, "max")                                                                                             \
    X(GRAD_LSE, 11, "dlse") /* backward: FXA_SLOT_DLSE is read */                                                      \
    X(GRAD_Q, 12, "dq")     /* backward: which gradients are wanted */                                                 \
    X(GRAD_K, 13, "dk")                                                                                                \
    X(GRAD_V, 14, "dv")                                                                                                \
    X(GRAD_SINK, 15, "dsink")                                                                                          \
    X(ACC_OUT, 16, "accumulate-out")                                                                                   \
    X(ACC_Q, 17, "accumulate-dq") /* backward: add to what is there instead of overwriting it */                       \
    X(ACC_K, 18, "accumulate-dk")                                                                                      \
    X(ACC_V, 19, "accumulate-dv")                                                                                      \
    X(ACC_SINK, 20, "accumulate-dsink")                                                                                \
    X(ACC_TENSORS, 21, "accumulate-dtensors")                                                                          \
    X(ACC_PARAMS, 22, "accumulate-dparams")                                                                            \
    X(POSITIONS, 23, "positions")                                                                                      \
    X(STRICT_INDEX, 24, "strict-index")                                                                                \
    X(DETERMINISTIC, 25, "deterministic")                                                                              \
    X(CAPTURE, 26, "capture")                                                                                          \
    X(SCALARS_IN_MEMORY, 27, "scalars-in-memory")

/* clang-format off */
enum {
#define FXA_FLAG_ENUM(name, bit, text) FXA_##name = 1 << bit,
    FXA_FLAG_MAP(FXA_FLAG_ENUM)
#undef FXA_FLAG_ENUM
    FXA_FLAG_COUNT = 28
};
/* clang-format on */
/* "bottom-right" of FXA_BOTTOM_RIGHT; NULL for a value that is not one flag. */
FXA_API const char *fxa_flag_name(uint32_t flag);

/* The q of row i of batch entry b, from 0 in its own sequence: map_q(i) + DYN_Q + POS_Q[b] or, aligned by BOTTOM_RIGHT
 * alone, map_q(i) + DYN_Q + k_len - q_len, lengths as the program reads them. So one program serves a whole pass, the
 * first chunk of a sequence and every later step: a row has the same q, and the same dropout, in all of them. */

#define FXA_MAX_D 512 /* features of a row */

/* Start from FXA_PROBLEM_INIT; fields are only ever appended. All zeroes means: none, default, off. */
typedef struct fxa_problem {
    uint32_t struct_size;
    uint32_t pass; /* fxa_pass */
    uint32_t flags;
    uint32_t page_size; /* PAGED */

    const fxa_program *program; /* NULL: the identity */
    const fxa_program *bprop;   /* backward: a BPROP program to use instead of the derived d/dscore; NULL: derived */

    int64_t b, hq, hkv;       /* hkv 0: hq. hq must be a multiple of hkv */
    int64_t sq, sk;           /* zero is legal: empty outputs, or rows that attend to nothing */
    int64_t d, dv;            /* dv 0: d. 1 to FXA_MAX_D */
    int64_t total_q, total_k; /* VARLEN */
    int64_t n_pages;          /* PAGED */

    fxa_operand q, k, v;         /* q.dtype 0: f32; k, v dtype 0: q's. f64 all three (arithmetic is in f64 then), or any
                                    of f32, f16, bf16 each (in f32) */
    fxa_operand o, dout;         /* dtype 0: q's */
    fxa_operand dq, dk, dv_grad; /* dtype 0: that of q, k, v */
    fxa_operand lse, max, dlse;  /* [B,Hq,Sq]; dtype 0 (nothing else, but lse may be f64): f64 when q is, else f32 */
    fxa_operand sink, dsink;     /* [Hq]: stride[1] when STRIDED, else dense. dtype 0: as lse; any float dtype */

    const fxa_capture *captures; /* one per tensor of program, in its order */
    size_t n_captures;
    const fxa_capture *bprop_captures; /* one per tensor of bprop (no gradients) */
    size_t n_bprop_captures;
    uint64_t param_grads; /* backward: bit i asks for the gradient of (float) param i of program */

    int64_t window_left, window_right;
    double dropout_p; /* 0 <= p < 1 */

    fxa_index_map map_b, map_h, map_q, map_k;
    int64_t q_len, k_len; /* what the program reads as q_len, k_len; 0: the real (per-batch) lengths. For shards */

    const char *engine; /* NULL: automatic (or the environment's FXA_ENGINE); else its name */
    int64_t heads;      /* what the program reads as heads; 0: hq. For shards */

    uint32_t device;    /* fxa_device: where all that a run points to lies. Only engines of that device are asked */
    int32_t ordinal;    /* which of them, from 0; on the host 0 */
    const char *target; /* a plan for a device that is not here, by its profile (a text); such a plan can be saved, and
                               runs where it is loaded. NULL: the device itself. Not on the host */
    uint32_t alignment; /* a promise of every pointer to a tensor: a multiple of this, a power of two up to 4096;
                               0: of its elements' size alone. GPU engines want 16 */
    uint32_t reserved;  /* 0 */
    uint64_t max_workspace; /* what a run may need at most, else an engine refuses; 0: anything */
} fxa_problem;
#define FXA_PROBLEM_INIT FXA_SIZED(fxa_problem)

/* The program that a problem runs: its own with the ready masks of its flags appended. */
FXA_API FXA_CHECKED fxa_status fxa_problem_program(fxa_context *ctx, const fxa_problem *problem, fxa_program **out,
                                                   fxa_error *err);

/* Where memory is. Values are pinned. */
#define FXA_DEVICE_MAP(X)                                                                                              \
    X(HOST, 0, "host")                                                                                                 \
    X(CUDA, 1, "cuda")

/* clang-format off */
typedef enum fxa_device {
#define FXA_DEVICE_ENUM(name, value, text) FXA_##name = value,
    FXA_DEVICE_MAP(FXA_DEVICE_ENUM)
#undef FXA_DEVICE_ENUM
    FXA_DEVICE_FORCE_INT32 = 0x7fffffff
} fxa_device;
/* clang-format on */
FXA_API const char *fxa_device_name(fxa_device device); /* "host", "cuda"; NULL for a value that is none */

/* What one engine says of a problem. Cheap; answers, also refusals, are cached in the context. */
typedef struct fxa_support {
    const char *engine; /* a static name */
    int32_t supported;
    int32_t deterministic;
    uint64_t workspace;
    char reason[240];       /* why not, with names and values; empty when supported */
    int32_t tile_q, tile_k; /* rows and keys of the pieces of work that are left out when the mask leaves nothing of
                               them; 0: masks save no work */
    uint64_t reserved[4];
} fxa_support;

/* Fills at most *count reports, in order of preference, and sets *count to how many engines there are. */
FXA_API FXA_CHECKED fxa_status fxa_support_query(fxa_context *ctx, const fxa_problem *problem, fxa_support *reports,
                                                 size_t *count, fxa_error *err);

/* The engines of this build, by position; NULL past the end. */
FXA_API const char *fxa_engine_name(size_t index);

/* ---- Tiles: what the mask leaves to do ------------------------------------------------------------------------- */

typedef enum fxa_tile {
    FXA_TILE_EMPTY = 0,
    FXA_TILE_MIXED = 1,
    FXA_TILE_FULL = 2,
    FXA_TILE_FORCE_INT32 = 0x7fffffff
} fxa_tile;

/* What may be assumed of a captured int tensor by its values. */
typedef struct fxa_tensor_range {
    int32_t known;         /* not 0: every element, of i64 limited to 32 bits, lies in lo..hi */
    int32_t nondecreasing; /* not 0: rank 1 and never decreasing; of i64 the whole elements */
    int32_t lo, hi;
    const fxa_view *view; /* optional: elements may be read */
} fxa_tensor_range;

/* For all pairs of the box (inclusive bounds of coordinate values): mask false everywhere (EMPTY), true everywhere
 * (FULL), or not known to be either (MIXED). Never wrong. params, tensors may be NULL: unknown. */
typedef struct fxa_box {
    int32_t lo[FXA_INPUT_COUNT]; /* by fxa_input; SCORE and DSCORE are not read */
    int32_t hi[FXA_INPUT_COUNT];
} fxa_box;
FXA_API fxa_tile fxa_program_classify(const fxa_program *program, const fxa_box *box, const double *params,
                                      const fxa_tensor_range *tensors);

/* Looks at an int tensor of rank 1 once: range and order. Other tensors: nothing known. */
FXA_API fxa_tensor_range fxa_tensor_scan(const fxa_view *view);

typedef struct fxa_tile_counts {
    uint64_t empty, mixed, full;
    uint64_t unknown; /* not looked at; when this is not 0, the other three are "at least" */
} fxa_tile_counts;

/* Counts the tiles of tile_q x tile_k pairs of one (b, h), local indices, of a problem; edge tiles count as whole ones.
 * A score that is -inf by a condition free of the score is masked by it. A tile that range analysis leaves mixed, of
 * 1,024 pairs at most, is looked at pair by pair when params and the views of all tensors are given, and lengths and
 * coordinates are not left to the run.
 * Cost follows the border between classes, not the number of tiles, and is bounded: when a mask leaves too much mixed,
 * counting ends after a second or a few, always at the same tile, and the rest is `unknown`. Memory is constant. */
FXA_API FXA_CHECKED fxa_status fxa_tiles_count(fxa_context *ctx, const fxa_problem *problem, int64_t b, int64_t h,
                                               int64_t tile_q, int64_t tile_k, const double *params,
                                               const fxa_tensor_range *tensors, fxa_tile_counts *out, fxa_error *err);

/* ---- Plans ----------------------------------------------------------------------------------------------------- */

/* Where each pointer of a run goes. Values are pinned, at most FXA_SLOT_MAX ever. More on some:
 * LSE: forward: written; backward: read (of the whole, for a shard). In f64 less than 2^-53 of it is lost between the
 *     passes, which gradients of steep programs need: docs/numerics.md
 * PARAMS: SCALARS_IN_MEMORY: one f64 per param of program. Engines of a device do not check them: an int param that is
 *     no whole number of 32 bits is rounded towards zero and clamped */
#define FXA_SLOT_MAP(X)                                                                                                \
    X(Q, 0)                                                                                                            \
    X(K, 1)                                                                                                            \
    X(V, 2)                                                                                                            \
    X(O, 3) /* forward: written; backward: read */                                                                     \
    X(LSE, 4)                                                                                                          \
    X(MAX_ROW, 5)                                                                                                      \
    X(DO, 6)                                                                                                           \
    X(DLSE, 7)                                                                                                         \
    X(DQ, 8)                                                                                                           \
    X(DK, 9)                                                                                                           \
    X(DV, 10)                                                                                                          \
    X(SINK, 11)                                                                                                        \
    X(DSINK, 12)                                                                                                       \
    X(LEN_Q, 13) /* int32 [B], 0 to sq (sk), and with CU_Q (CU_K) no more than there is between two offsets */         \
    X(LEN_K, 14)                                                                                                       \
    X(CU_Q, 15) /* int32 [B+1] */                                                                                      \
    X(CU_K, 16)                                                                                                        \
    X(PAGES, 17)                                                                                                       \
    X(MAP_B, 18) /* int32 tables */                                                                                    \
    X(MAP_H, 19)                                                                                                       \
    X(MAP_Q, 20)                                                                                                       \
    X(MAP_K, 21)                                                                                                       \
    X(DYN_B, 22) /* one int32 each */                                                                                  \
    X(DYN_H, 23)                                                                                                       \
    X(DYN_Q, 24)                                                                                                       \
    X(DYN_K, 25)                                                                                                       \
    X(POS_Q, 26) /* int32 [B], any value; coordinates wrap at 32 bits as ints of programs do */                        \
    X(SCALE, 27) /* SCALARS_IN_MEMORY: one f64, finite, or NAN for 1 / sqrt(d) */                                      \
    X(SEED, 28)  /* one u64, with DROPOUT */                                                                           \
    X(PARAMS, 29)

/* clang-format off */
typedef enum fxa_slot {
#define FXA_SLOT_ENUM(name, value) FXA_SLOT_##name = value,
    FXA_SLOT_MAP(FXA_SLOT_ENUM)
#undef FXA_SLOT_ENUM
    FXA_SLOT_COUNT = 30,
    FXA_SLOT_MAX = 64
} fxa_slot;
/* clang-format on */
FXA_API const char *fxa_slot_name(fxa_slot slot); /* "Q", "LSE", ...; NULL for a value that is none */

/* How far a run is: `done` of `total` parts of much the same size, before masks take something away; total is the same
 * in all calls of a run, and its last call, when every output is written, says done == total. Called by the threads of
 * the run, perhaps by several at the same time and so out of order, in the default floating point state. It should
 * return soon. */
typedef void (*fxa_progress_fn)(void *user, uint64_t done, uint64_t total);

typedef struct fxa_args {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    void *slot[FXA_SLOT_MAX]; /* inputs are not written, whatever the type says. Slots that only the other pass uses are
                                 ignored, so that one set serves both; any other that is set and lacks the flag (or
                                 map) that uses it is E_BINDING */
    double scale;             /* of Q K^T; NAN: 1 / sqrt(d) */
    const double *params; /* one per param of program, in its order; an int param must be a whole number of 32 bits */
    size_t n_params;
    const void *const *tensors; /* one per tensor of program */
    size_t n_tensors;
    void *const *dtensors; /* backward: one per tensor; NULL where no gradient was asked for */
    size_t n_dtensors;
    double *dparams; /* backward: one per param; only those asked for are written. Lies where the slots lie */
    size_t n_dparams;
    const double *bprop_params; /* of bprop; a forward pass does not look at these four */
    size_t n_bprop_params;
    const void *const *bprop_tensors; /* one per tensor of bprop */
    size_t n_bprop_tensors;
    uint64_t seed;   /* dropout */
    void *workspace; /* fxa_plan_workspace bytes, aligned to FXA_WORKSPACE_ALIGN; NULL when that is 0 */
    size_t workspace_size;
    void *stream;             /* GPU engines: the caller's CUstream; others ignore it */
    fxa_progress_fn progress; /* NULL: none, and no cost. Engines that run on the host tell of tiles or rows, others of
                                 the end alone */
    void *progress_user;
    void *parallel_user; /* given to fxa_context_config.parallel in this run; NULL: the config's own */
} fxa_args;
#define FXA_WORKSPACE_ALIGN 64
#ifdef __cplusplus
inline fxa_args fxa_args_init() {
    fxa_args args = fxa_sized<fxa_args>();
    args.scale = NAN;
    return args;
}
#define FXA_ARGS_INIT fxa_args_init()
#else
/* clang-format off */
#define FXA_ARGS_INIT {.struct_size = sizeof(fxa_args), .scale = NAN}
/* clang-format on */
#endif

/* From the cache, or compiled. Fails with E_UNSUPPORTED and the reasons when no engine (or not the one named) can. */
FXA_API FXA_CHECKED fxa_status fxa_plan_create(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out,
                                               fxa_error *err);
FXA_API void fxa_plan_retain(fxa_plan *plan);
FXA_API void fxa_plan_destroy(fxa_plan *plan);

FXA_API const char *fxa_plan_engine(const fxa_plan *plan);
/* The engine's own words on how it runs the plan, for reports: "avx512, 2 threads"; "" when it has none. Lives as long
 * as the plan. */
FXA_API const char *fxa_plan_detail(const fxa_plan *plan);
FXA_API size_t fxa_plan_workspace(const fxa_plan *plan);
FXA_API int fxa_plan_is_deterministic(const fxa_plan *plan);
FXA_API void fxa_plan_key(const fxa_plan *plan, uint8_t key[16]); /* content of the problem and engine */
/* The problem as resolved: defaults filled in, strides explicit, pointers owned by the plan. out->struct_size says how
 * much of it may be written (start from FXA_PROBLEM_INIT; 0: all). */
FXA_API void fxa_plan_problem(const fxa_plan *plan, fxa_problem *out);

/* Checks the arguments, then runs. Allocates nothing and waits for no other run (waking the context's threads is the
 * only lock it takes, and it does not block on that); many threads may run one plan, each with its own
 * workspace. On an error outputs are untouched. */
FXA_API FXA_CHECKED fxa_status fxa_plan_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

/* The easy way: plan from the cache, workspace allocated for the call (args' own is ignored). For a problem on a device
 * all pointers are the host's nevertheless: tensors are copied there and back, and the call waits for it. */
FXA_API FXA_CHECKED fxa_status fxa_attention(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                                             fxa_error *err);

/* Indices outside one axis of a captured tensor: how often, and where first. */
typedef struct fxa_index_report {
    int32_t tensor; /* of program, or of bprop */
    int32_t bprop;  /* not 0: of bprop */
    int32_t axis;
    int32_t exact;      /* not 0: all pairs were accounted for; else `pairs` is an estimate from a random sample */
    int64_t size;       /* of the axis */
    int32_t lo, hi;     /* the smallest and the largest index seen that is outside */
    uint64_t pairs;     /* pairs whose result needs such a load */
    uint64_t of;        /* pairs that there are */
    int64_t b, h, q, k; /* one of them, local indices */
} fxa_index_report;

/* Which indices leave their tensors in a run of the problem: what FXA_STRICT_INDEX refuses. Of args the tables, params
 * and tensors must be there; without Q or K the score counts as 0. Fills at most *count reports, by tensor and axis,
 * and sets *count to how many there are. Work is bounded, to a second or two: all pairs are evaluated when pairs
 * times nodes of the program are some 67 million at most, else a sample is. */
FXA_API FXA_CHECKED fxa_status fxa_index_query(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                                               fxa_index_report *reports, size_t *count, fxa_error *err);

/* Bytes of a plan (docs/plan-bytes.md), and back; hostile bytes get E_BYTES or E_VERSION. Two-call save. */
FXA_API FXA_CHECKED fxa_status fxa_plan_save(const fxa_plan *plan, void *out, size_t capacity, size_t *needed,
                                             fxa_error *err);
FXA_API FXA_CHECKED fxa_status fxa_plan_load(fxa_context *ctx, const void *bytes, size_t size, fxa_plan **out,
                                             fxa_error *err);
/* fxa_plan_load takes a plan only if it is here what it was where it was saved: the same engine, of the same version
 * and for the same instruction set or device. REBUILD: else it is compiled again, for what is here; its results may
 * then differ in their last bits, and its key does. */
enum { FXA_LOAD_REBUILD = 1 << 0 };
FXA_API FXA_CHECKED fxa_status fxa_plan_load_flags(fxa_context *ctx, const void *bytes, size_t size, uint32_t flags,
                                                   fxa_plan **out, fxa_error *err);

/* A problem as bytes, program and captures included, for compilers that carry it to where it runs; and the plan of such
 * bytes, from the cache or compiled. ordinal: the device of the plan, -1 for the problem's own. Two-call save. A target
 * is not carried. Hostile bytes get E_BYTES or E_VERSION. */
FXA_API FXA_CHECKED fxa_status fxa_problem_save(fxa_context *ctx, const fxa_problem *problem, void *out,
                                                size_t capacity, size_t *needed, fxa_error *err);
FXA_API FXA_CHECKED fxa_status fxa_plan_create_bytes(fxa_context *ctx, const void *bytes, size_t size, int32_t ordinal,
                                                     fxa_plan **out, fxa_error *err);

/* ---- Merging partial results ----------------------------------------------------------------------------------- */

/* Joins (O_a, LSE_a) and (O_b, LSE_b), attention of the same queries over disjoint keys, into (O_a, LSE_a). [B,H,S,D]
 * and [B,H,S]. Rows that attend to nothing (LSE -inf) join without NaN. */
typedef struct fxa_merge_args {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    int64_t b, h, s, d;
    fxa_operand o_a, o_b, lse_a, lse_b; /* dtypes must be given (lse: f32 or f64) */
    void *o_a_data, *lse_a_data;
    const void *o_b_data, *lse_b_data;
    fxa_context *ctx; /* on another device than the host: whose engines do it, if they can (E_UNSUPPORTED) */
    uint32_t device;  /* fxa_device */
    int32_t ordinal;
    void *stream;
} fxa_merge_args;
#define FXA_MERGE_ARGS_INIT FXA_SIZED(fxa_merge_args)
FXA_API FXA_CHECKED fxa_status fxa_merge(const fxa_merge_args *args, fxa_error *err);

/* ---- Plan cache ------------------------------------------------------------------------------------------------ */

typedef struct fxa_cache_stats {
    uint64_t hits, misses, builds, refusals, evictions, runs; /* since the context was created */
    uint64_t queries, query_hits;                             /* support queries */
    uint64_t plans, bytes;                                    /* now */
    uint64_t max_plans, max_bytes;
    uint64_t reserved[4];
} fxa_cache_stats;
FXA_API void fxa_cache_get_stats(fxa_context *ctx, fxa_cache_stats *out);
/* Evicts at once; 0 keeps nothing. Plans that somebody holds live on. */
FXA_API void fxa_cache_limit(fxa_context *ctx, uint64_t max_plans, uint64_t max_bytes);
FXA_API void fxa_cache_clear(fxa_context *ctx);

#ifdef __cplusplus
}
#endif
#endif
