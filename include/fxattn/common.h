/* SPDX-License-Identifier: Apache-2.0
 *
 * Base of the interface: rules for structs, version, status and errors, context, storage types. Part of
 * <fxattn/fxattn.h>, which is the file to include and lists the rules that hold for all functions.
 */
#ifndef FXATTN_COMMON_H
#define FXATTN_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* FXA_API marks exported functions. The build of the static library defines FXA_API as nothing, which hides them.
 * FXA_CHECKED makes the compiler warn about an ignored result. */
#if defined(__GNUC__)
#ifndef FXA_API
#define FXA_API __attribute__((visibility("default")))
#endif
#define FXA_CHECKED __attribute__((warn_unused_result))
#else
#define FXA_API
#define FXA_CHECKED
#endif

/* Rules for structs
 *
 * Structs that a caller fills start with struct_size, which their _INIT macro sets. New versions only append fields.
 * - A shorter struct comes from a caller built with an older header: the missing fields have their defaults.
 * - A longer struct comes from a caller built with a newer header: bytes past the fields of this library are not read.
 *   A new field that must not be ignored comes with a new flag, or a new value of a reserved field. An older library
 *   refuses unknown flags and values.
 * - A struct_size above FXA_MAX_STRUCT means that the struct was not initialised: E_STRUCT.
 * Structs without struct_size are results or elements of arrays, and their size never changes: new fields replace
 * reserved fields, which are 0 in results and which callers leave 0. */
#define FXA_MAX_STRUCT 16384u

/* Initialiser used by the _INIT macros: all zeroes, struct_size = sizeof(type). */
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

/* Returns the version of the loaded library as a static string. FXA_VERSION_STRING is the version of the header. */
FXA_API const char *fxa_version(void);

/* ---- Status and errors ----------------------------------------------------------------------------------------- */

/* Status codes. Their values never change.
 *
 *     1xx  mistakes in the arguments of a call
 *     2xx  valid problems that cannot be run here
 *     3xx  saved programs, problems and plans that cannot be loaded
 *     4xx  memory, threads, files
 *     5xx  failures of an engine or of fxattn itself */
#define FXA_STATUS_MAP(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(E_ARGUMENT, 100, "an argument is missing or out of range")                                                       \
    X(E_STRUCT, 101, "a struct_size is not one of this library")                                                       \
    X(E_PROGRAM, 110, "a score program is wrong: syntax, names or types")                                              \
    X(E_LIMIT, 111, "a limit of the library is exceeded")                                                              \
    X(E_PROBLEM, 120, "a problem description contradicts itself")                                                      \
    X(E_BINDING, 130, "a pointer, scalar or length given to a run is wrong")                                           \
    X(E_WORKSPACE, 131, "the workspace is too small or misaligned")                                                    \
    X(E_UNSUPPORTED, 200, "no engine supports this, or the chosen one does not")                                       \
    X(E_UNAVAILABLE, 201, "an engine or a library it needs is not present")                                            \
    X(E_BYTES, 300, "bytes are damaged or were not written by fxattn")                                                 \
    X(E_VERSION, 301, "bytes were written for another version or device")                                              \
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

/* Description of a failure: what is wrong, the value that was given, and what would be accepted. The struct has no
 * pointers and can be copied. A successful call sets all members to 0. */
typedef struct fxa_error {
    fxa_status status; /* status that the failed call returned */
    int32_t part;      /* index of the text with the error, if several were parsed together; else 0 */
    int32_t line;      /* line of the error in the parsed text, from 1; 0 = no position in a text */
    int32_t column;    /* column of the first wrong character, from 1, in Unicode code points */
    int32_t length;    /* number of wrong code points from `column`, at least 1; 0 = no position */
    char text[492];    /* message in one line, NUL-terminated; a longer message is cut and ends in "..." */
} fxa_error;

/* Returns the name of a status, such as "FXA_E_PROGRAM", as a static string; "unknown status" for other values. */
FXA_API const char *fxa_status_name(fxa_status status);
/* Returns the meaning of a status in one line, as a static string; "unknown status" for other values. */
FXA_API const char *fxa_status_text(fxa_status status);

/* Writes an error as compilers do: "name:line:column: error: text", then the source line and a marker below it:
 *
 *     f.fxa:2:9: error: unknown name 'cup'; did you mean 'cap'?
 *       score = cup * tanh(score / cap)
 *               ^^^
 *
 * source: the parsed text of `size` bytes; size SIZE_MAX = NUL-terminated. NULL: the first line alone is written.
 * Returns the length of the whole output without its NUL, like snprintf. At most `capacity` bytes are written to `out`,
 * always NUL-terminated if capacity > 0; `out` may be NULL if capacity is 0. */
FXA_API size_t fxa_error_render(const fxa_error *err, const char *name, const char *source, size_t size, char *out,
                                size_t capacity);

/* ---- Context --------------------------------------------------------------------------------------------------- */

typedef struct fxa_context fxa_context; /* allocator, threads and plan cache */
typedef struct fxa_program fxa_program; /* score program (score_program.h) */
typedef struct fxa_plan fxa_plan;       /* compiled problem (attention_plan.h) */

/* Allocator of a context. One function does three things:
 *
 *     ptr NULL, old_size 0    allocates new_size bytes
 *     ptr, new_size 0         frees ptr, returns NULL
 *     ptr, both sizes         resizes, contents kept up to the smaller size
 *
 * Returns memory aligned to `align`, a power of two. Returns NULL if no memory is available; `ptr` is then still valid.
 * Any thread may call the allocator, in the default floating point state, which the allocator must leave unchanged. Of
 * this library's functions, an allocator may call only those that end in _destroy. */
typedef void *(*fxa_alloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size, size_t align);

/* A parallel loop that the caller provides, for applications with a thread pool of their own. Must call task(arg, i)
 * exactly once for each i of 0..n-1, and return after all calls have returned. The calls may run on any threads and in
 * any order, also one after the other.
 * user: fxa_args.parallel_user, or fxa_context_config.parallel_user if fxa_args.parallel_user is NULL.
 * fxa_plan_run calls this function on the thread that called fxa_plan_run, in the default floating point state;
 * concurrent runs call this function concurrently. A task needs 128 KB of stack and may run in any floating point
 * state. */
typedef void (*fxa_parallel_fn)(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#define FXA_MAX_THREADS 1024

typedef struct fxa_context_config {
    uint32_t struct_size;     /* sizeof(fxa_context_config) */
    uint32_t reserved;        /* 0 */
    fxa_alloc_fn alloc;       /* allocator; NULL = the C library's */
    void *alloc_user;         /* first argument of alloc */
    uint64_t cache_max_plans; /* capacity of the plan cache in plans; 0 = 256 */
    uint64_t cache_max_bytes; /* capacity of the plan cache in bytes; 0 = 256 MiB */
    /* Threads of one run, the calling thread included: 1 to FXA_MAX_THREADS; 1 = the library starts no thread;
     * 0 = environment variable FXA_THREADS, else the number of CPUs available to this process. Results do not depend on
     * the number of threads. */
    uint32_t threads;
    uint32_t reserved2;       /* 0 */
    fxa_parallel_fn parallel; /* loop that replaces the library's threads, called with n <= threads; NULL = none */
    void *parallel_user;      /* first argument of parallel, unless fxa_args.parallel_user is set */
    /* Folder for compiled code, shared by processes (docs/gpu.md); "" = none; NULL = environment variable
     * FXA_CACHE_DIR, else none. */
    const char *cache_dir;
    uint64_t cache_dir_max_bytes; /* capacity of cache_dir in bytes; 0 = 1 GiB */
} fxa_context_config;
#define FXA_CONTEXT_CONFIG_INIT FXA_SIZED(fxa_context_config)

/* Creates a context. config NULL = all defaults. The environment variables FXA_THREADS, FXA_ENGINE and FXA_CACHE_DIR
 * are read here and not again. Fails with E_ARGUMENT for a value out of range, E_MEMORY or E_SYSTEM. */
FXA_API FXA_CHECKED fxa_status fxa_context_create(const fxa_context_config *config, fxa_context **out, fxa_error *err);
/* Destroys a context, which no other thread may be using. Its programs and plans stay valid. NULL is accepted. */
FXA_API void fxa_context_destroy(fxa_context *ctx);
/* Returns the largest number of threads of one run: config.threads with its default resolved. */
FXA_API int32_t fxa_context_threads(const fxa_context *ctx);

/* ---- Values and storage types ---------------------------------------------------------------------------------- */

/* Types of values in score programs. */
typedef enum fxa_type { FXA_FLOAT = 1, FXA_INT = 2, FXA_BOOL = 3, FXA_TYPE_FORCE_INT32 = 0x7fffffff } fxa_type;

/* Storage types of tensors: name, value, text, bytes of an element, type of an element's value in score programs.
 *
 * E4M3 and E5M2 are floats of 8 bits. Results above their largest finite number are stored as that number
 * (docs/numerics.md).
 *
 *     E4M3  4 bits of exponent, 3 of fraction; no infinities; NaN is 0x7f and 0xff; largest number 448
 *     E5M2  5 bits of exponent, 2 of fraction; infinities and NaN as in IEEE 754; largest number 57344 */
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
    X(B8, 10, "bool", 1, BOOL)                                                                                         \
    X(E4M3, 11, "e4m3", 1, FLOAT)                                                                                      \
    X(E5M2, 12, "e5m2", 1, FLOAT)

/* clang-format off */
typedef enum fxa_dtype {
    FXA_DTYPE_NONE = 0,
#define FXA_DTYPE_ENUM(name, value, text, size, type) FXA_##name = value,
    FXA_DTYPE_MAP(FXA_DTYPE_ENUM)
#undef FXA_DTYPE_ENUM
    FXA_DTYPE_FORCE_INT32 = 0x7fffffff
} fxa_dtype;
/* clang-format on */

/* Returns the name of a dtype, such as "f32", as a static string; "none" for FXA_DTYPE_NONE and other values. */
FXA_API const char *fxa_dtype_name(fxa_dtype dtype);
/* Returns the size of an element in bytes; 0 for FXA_DTYPE_NONE and other values. */
FXA_API size_t fxa_dtype_size(fxa_dtype dtype);
/* Returns the dtype with this name, such as FXA_F32 for "f32"; FXA_DTYPE_NONE for other names and NULL. */
FXA_API fxa_dtype fxa_dtype_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
