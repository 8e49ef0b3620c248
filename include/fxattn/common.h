/* SPDX-License-Identifier: Apache-2.0
 *
 * What every other part of the interface stands on: the rules of structs, the version, status and errors, the context,
 * storage types. Part of <fxattn/fxattn.h>, which is the file to include and says the rules of all functions.
 */
#ifndef FXATTN_COMMON_H
#define FXATTN_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* The build of the static library defines FXA_API as nothing, so that its functions are hidden. */
#if defined(__GNUC__)
#ifndef FXA_API
#define FXA_API __attribute__((visibility("default")))
#endif
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
 * default floating point state, which it leaves so. Of this library it may call the _destroy functions alone. */
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
    const char *cache_dir;        /* a folder for compiled code of engines that save some, shared by processes; NULL:
                                     the environment's FXA_CACHE_DIR; "" or neither: none (docs/gpu.md) */
    uint64_t cache_dir_max_bytes; /* 0: 1 GiB */
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
    X(B8, 10, "bool", 1, BOOL)                                                                                         \
    X(E4M3, 11, "e4m3", 1, FLOAT)                                                                                      \
    X(E5M2, 12, "e5m2", 1, FLOAT)

/* E4M3 and E5M2 are the floats of 8 bits: 4 bits of exponent and 3 of fraction, without infinities (NaN is 0x7f and
 * 0xff, the largest number 448), and 5 and 2, as IEEE has it. Results that are too large for them become their largest
 * number (docs/numerics.md). */
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

#ifdef __cplusplus
}
#endif
#endif
