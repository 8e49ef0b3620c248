/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans and runs: a plan is a problem compiled by one engine, a run executes a plan with data. Also merging of partial
 * results and the plan cache. Part of <fxattn/fxattn.h>, which is the file to include and lists the rules that hold for
 * all functions.
 */
#ifndef FXATTN_ATTENTION_PLAN_H
#define FXATTN_ATTENTION_PLAN_H

#include <math.h>

#include "attention_problem.h"
#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arguments of a run ----------------------------------------------------------------------------------------- */

/* Index of each pointer in fxa_args.slot. Values never change and stay below FXA_SLOT_MAX. All slots point to memory of
 * the problem's device. Sizes are named as in attention_problem.h; f: read by forward, b: read by backward,
 * F: written by forward, B: written by backward. Words in capitals in the last column, such as RETURN_LSE, are flags of
 * the problem without their prefix FXA_.
 *
 *     Q K V                f b    inputs
 *     O                    F b    output
 *     LSE                  F b    log-sum-exp of each row; F: RETURN_LSE; b: over all keys, not only those of a shard
 *     ROW_MAX              F      RETURN_ROW_MAX: maximum of each row's scores after the score program
 *     DO                     b    dO: gradient of the loss with respect to O
 *     DLSE                   b    READ_DLSE: gradient of the loss with respect to LSE
 *     DQ DK DV DSINKS        B    GRAD_Q, GRAD_K, GRAD_V, GRAD_SINKS: gradients
 *     SINKS                f b    SINKS: learned scores, [Hq]
 *     Q_LENGTHS K_LENGTHS  f b    PADDING: int32 [B], 0..sq and 0..sk; VARLEN: at most the length of the sequence
 *     CU_Q CU_K            f b    VARLEN: int32 [B + 1] offsets of the sequences, nondecreasing, 0..total
 *     PAGES                f b    PAGED: int32 [B, ceil(sk / page_size)]; entries past the last key are not read
 *     MAP_B ... MAP_K      f b    FXA_MAP_TABLE: int32 table, element i is the coordinate of index i
 *     OFFSET_B ... _K      f b    fxa_index_map.has_offset: one int32
 *     Q_START              f b    Q_START: int32 [B]; any value, sums wrap at 32 bits like ints of programs
 *     SCALE                f b    SCALARS_IN_MEMORY: one f64, finite, or NaN = 1 / sqrt(D)
 *     SEED                 f b    SCALARS_IN_MEMORY, DROPOUT: one uint64
 *     PARAMS               f b    SCALARS_IN_MEMORY: f64, one per param of the program
 *     DESCALE_x            f b    SCALED: f32 > 0, finite, of each f8 input; O and DO in backward only
 *     SCALE_x              f b    SCALED: f32 of each f8 output; O in forward, DQ, DK, DV in backward
 *     AMAX_x               F B    SCALED: f32 of each f8 output; NaN if the output has a NaN
 *     SCALE_DS               b    SCALED, f8 DO: f32 for dS, the gradient of scores, if the engine rounds dS to f8
 *     AMAX_DS                B    SCALED, f8 DO: f32, max |dS|
 *
 * An LSE in f64 keeps gradients accurate where a program has large derivatives (docs/numerics.md). On the host, a
 * length, offset or page number out of range makes the run fail with E_BINDING. Engines of other devices check neither
 * lengths, offsets and page numbers (docs/gpu.md describes the effect) nor PARAMS: int params are truncated and
 * clamped.
 */
#define FXA_SLOT_MAP(X)                                                                                                \
    X(Q, 0)                                                                                                            \
    X(K, 1)                                                                                                            \
    X(V, 2)                                                                                                            \
    X(O, 3)                                                                                                            \
    X(LSE, 4)                                                                                                          \
    X(ROW_MAX, 5)                                                                                                      \
    X(DO, 6)                                                                                                           \
    X(DLSE, 7)                                                                                                         \
    X(DQ, 8)                                                                                                           \
    X(DK, 9)                                                                                                           \
    X(DV, 10)                                                                                                          \
    X(SINKS, 11)                                                                                                       \
    X(DSINKS, 12)                                                                                                      \
    X(Q_LENGTHS, 13)                                                                                                   \
    X(K_LENGTHS, 14)                                                                                                   \
    X(CU_Q, 15)                                                                                                        \
    X(CU_K, 16)                                                                                                        \
    X(PAGES, 17)                                                                                                       \
    X(MAP_B, 18)                                                                                                       \
    X(MAP_H, 19)                                                                                                       \
    X(MAP_Q, 20)                                                                                                       \
    X(MAP_K, 21)                                                                                                       \
    X(OFFSET_B, 22)                                                                                                    \
    X(OFFSET_H, 23)                                                                                                    \
    X(OFFSET_Q, 24)                                                                                                    \
    X(OFFSET_K, 25)                                                                                                    \
    X(Q_START, 26)                                                                                                     \
    X(SCALE, 27)                                                                                                       \
    X(SEED, 28)                                                                                                        \
    X(PARAMS, 29)                                                                                                      \
    X(DESCALE_Q, 30)                                                                                                   \
    X(DESCALE_K, 31)                                                                                                   \
    X(DESCALE_V, 32)                                                                                                   \
    X(DESCALE_O, 33)                                                                                                   \
    X(DESCALE_DO, 34)                                                                                                  \
    X(SCALE_O, 35)                                                                                                     \
    X(SCALE_DQ, 36)                                                                                                    \
    X(SCALE_DK, 37)                                                                                                    \
    X(SCALE_DV, 38)                                                                                                    \
    X(AMAX_O, 39)                                                                                                      \
    X(AMAX_DQ, 40)                                                                                                     \
    X(AMAX_DK, 41)                                                                                                     \
    X(AMAX_DV, 42)                                                                                                     \
    X(SCALE_DS, 43)                                                                                                    \
    X(AMAX_DS, 44)

/* clang-format off */
typedef enum fxa_slot {
#define FXA_SLOT_ENUM(name, value) FXA_SLOT_##name = value,
    FXA_SLOT_MAP(FXA_SLOT_ENUM)
#undef FXA_SLOT_ENUM
    FXA_SLOT_COUNT = 45,
    FXA_SLOT_MAX = 64
} fxa_slot;
/* clang-format on */
/* Returns the name of a slot, such as "LSE", as a static string; NULL for other values. */
FXA_API const char *fxa_slot_name(fxa_slot slot);

/* Reports the progress of a run: `done` of `total` parts are finished. Parts have similar sizes; parts that a mask
 * skips count too. `total` is the same in all calls of a run; the last call, after every output is written, has
 * done == total. The threads of the run call the function concurrently and out of order, in the default floating point
 * state. The run waits for each call, so the function should return quickly. */
typedef void (*fxa_progress_fn)(void *user, uint64_t done, uint64_t total);

/* Bits of fxa_args.flags.
 * SKIP_POINTER_CHECKS: skips the checks of pointers, which on a device cost a driver call per pointer. The caller then
 *     guarantees:
 *     - Every pointer that is not NULL points to memory of the problem's device that is large enough and aligned as the
 *       problem states.
 *     - No output overlaps other memory of the run.
 *     - The stream belongs to that device, and is captured into a CUDA graph only with FXA_GRAPH_CAPTURE.
 *     These checks remain: a required pointer is NULL; n_params and the other n_ members; values of params; the size of
 *     the workspace; on the host also lengths and offsets. */
enum { FXA_SKIP_POINTER_CHECKS = 1 << 0 };

/* Data of a run. Start from FXA_ARGS_INIT. One fxa_args can serve forward and backward: each pass ignores the slots
 * that only the other pass uses. A slot that the problem does not use, because a flag or an index map is not set, must
 * be NULL, else the run fails with E_BINDING. */
typedef struct fxa_args {
    uint32_t struct_size;     /* sizeof(fxa_args) */
    uint32_t flags;           /* FXA_SKIP_POINTER_CHECKS or 0 */
    void *slot[FXA_SLOT_MAX]; /* data pointers, indexed by fxa_slot; inputs are not written */
    double scale;             /* factor of Q K^T; NaN = 1 / sqrt(D), or 1 if D is 0 */
    /* [n_params] values of the program's params, in host memory; values of int params must be integers of 32 bits */
    const double *params;
    size_t n_params;            /* number of params of the program */
    const void *const *tensors; /* [n_tensors] data of each captured tensor of the program */
    size_t n_tensors;           /* number of tensors of the program */
    void *const *dtensors;      /* [n_dtensors] backward: gradients of tensors; NULL where fxa_capture.grad is 0 */
    size_t n_dtensors;          /* number of tensors of the program */
    /* [n_dparams] backward: gradients of params, in memory of the problem's device; dparams[i] is written only if bit i
     * of fxa_problem.param_grads is set */
    double *dparams;
    size_t n_dparams;                 /* number of params of the program */
    const double *bprop_params;       /* [n_bprop_params] backward: values of the params of fxa_problem.bprop */
    size_t n_bprop_params;            /* number of params of fxa_problem.bprop */
    const void *const *bprop_tensors; /* [n_bprop_tensors] backward: data of each tensor of fxa_problem.bprop */
    size_t n_bprop_tensors;           /* number of tensors of fxa_problem.bprop */
    uint64_t seed;                    /* seed of dropout */
    /* Scratch memory of the problem's device, aligned to FXA_WORKSPACE_ALIGN, for one run at a time; NULL if
     * fxa_plan_workspace is 0 */
    void *workspace;
    size_t workspace_size; /* size of workspace in bytes, at least fxa_plan_workspace */
    void *stream;          /* devices: CUstream or cudaStream_t on which the run starts; NULL = default */
    /* Function called on the host after each tile of rows and keys or after each row, on devices once at the end of the
     * run; NULL = none. */
    fxa_progress_fn progress;
    void *progress_user; /* first argument of progress */
    /* first argument of fxa_context_config.parallel in this run; NULL = fxa_context_config.parallel_user */
    void *parallel_user;
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

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

/* Returns the plan of a problem, from the cache or compiled. Fails with E_PROBLEM for a contradiction in the problem.
 * Fails with E_UNSUPPORTED if no engine supports the problem, or if the engine that problem->engine names does not; the
 * message has the reasons. */
FXA_API FXA_CHECKED fxa_status fxa_plan_create(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out,
                                               fxa_error *err);
/* Adds a reference. NULL is accepted. */
FXA_API void fxa_plan_retain(fxa_plan *plan);
/* Drops a reference; dropping the last reference frees the plan. NULL is accepted. */
FXA_API void fxa_plan_destroy(fxa_plan *plan);

/* Returns the name of the plan's engine. A static string. */
FXA_API const char *fxa_plan_engine(const fxa_plan *plan);
/* Returns how the engine runs the plan, such as "avx512, 2 threads"; "" if there is nothing to report. The string lives
 * as long as the plan. */
FXA_API const char *fxa_plan_description(const fxa_plan *plan);
/* Writes the score program as the engine compiled it, as readable text: the cpu engine writes its bytecode, which
 * computes one row of scores at a time; engines without such a text write "". The text may change in any version. With
 * out NULL the call only sets *needed. */
FXA_API FXA_CHECKED fxa_status fxa_plan_dump(const fxa_plan *plan, char *out, size_t capacity, size_t *needed,
                                             fxa_error *err);
/* Returns the bytes of workspace that a run needs; may be 0. */
FXA_API size_t fxa_plan_workspace(const fxa_plan *plan);
/* Returns 1 if every run gives the same bits, else 0. */
FXA_API int fxa_plan_is_deterministic(const fxa_plan *plan);
/* Writes the 128-bit key of problem and engine. Plans with equal keys run the same computation. */
FXA_API void fxa_plan_key(const fxa_plan *plan, uint8_t key[16]);
/* Writes the problem with all defaults resolved and strides explicit. Pointers in *out refer to memory of the plan.
 * At most out->struct_size bytes are written, so *out should start from FXA_PROBLEM_INIT; struct_size 0 = all bytes of
 * this library's struct. */
FXA_API void fxa_plan_problem(const fxa_plan *plan, fxa_problem *out);

/* Checks the arguments, then runs; outputs are untouched if a check fails. Allocates nothing and does not wait for
 * other runs: any number of threads may run one plan, each with its own workspace. On a device the call starts the work
 * on args->stream and returns; tensors and workspace are in use until the stream has completed the work.
 * Fails with E_ARGUMENT, E_BINDING (pointers, params, lengths), E_WORKSPACE or E_ENGINE. */
FXA_API FXA_CHECKED fxa_status fxa_plan_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

/* Creates a plan and runs it, in one call. The plan comes from the cache if possible. The call allocates its own
 * workspace and ignores args->workspace. For a problem on a device, all pointers are nevertheless host memory: the data
 * is copied to the device and back, and the call waits for the results. */
FXA_API FXA_CHECKED fxa_status fxa_attention(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                                             fxa_error *err);

/* ---- Bounds of captured tensors --------------------------------------------------------------------------------- */

/* Indices out of range for one axis of a captured tensor. */
typedef struct fxa_bounds_report {
    int32_t tensor; /* number of the tensor in its program */
    int32_t bprop;  /* 1 = a tensor of fxa_problem.bprop, 0 = a tensor of fxa_problem.program */
    int32_t axis;   /* dimension of the tensor */
    int32_t exact;  /* 1 = all (row, key) pairs were evaluated; 0 = `pairs` is estimated from a random sample */
    int64_t size;   /* elements along the axis */
    int32_t lo;     /* smallest index out of range */
    int32_t hi;     /* largest index out of range */
    uint64_t pairs; /* number of (row, key) pairs whose result uses an element out of range */
    uint64_t of;    /* number of (row, key) pairs of the problem, in all batch entries and query heads */
    /* One of the pairs that `pairs` counts, as four indices from 0 into the tensors of this problem. */
    int64_t b; /* batch entry */
    int64_t h; /* query head */
    int64_t q; /* row */
    int64_t k; /* key */
} fxa_bounds_report;

/* Finds the indices out of range with which a run with `args` would fail under FXA_BOUNDS_CHECK. Host only. args must
 * have params, tensors, and the slots with int32 data: lengths, offsets, pages, maps and Q_START. If Q or K is NULL,
 * all scores are taken as 0. Writes at most *count reports, ordered by tensor and axis, and sets *count to the number
 * of all reports. Takes at most a few seconds: if the number of (row, key) pairs times the number of operations of the
 * program is at most about 30 million, all pairs are evaluated, else a random sample of pairs. No plan is run. */
FXA_API FXA_CHECKED fxa_status fxa_bounds_check(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                                                fxa_bounds_report *reports, size_t *count, fxa_error *err);

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

/* Writes a plan as bytes (docs/plan-bytes.md), with compiled code if its engine saves code. With out NULL the call only
 * sets *needed. */
FXA_API FXA_CHECKED fxa_status fxa_plan_save(const fxa_plan *plan, void *out, size_t capacity, size_t *needed,
                                             fxa_error *err);
/* Makes a plan from bytes that fxa_plan_save wrote with the same engine, engine version, and instruction set or device.
 * All bytes are verified except compiled code of devices, so load plans of devices only from a trusted source. Fails
 * with E_BYTES for damaged bytes, E_VERSION for bytes that do not fit this library or machine. */
FXA_API FXA_CHECKED fxa_status fxa_plan_load(fxa_context *ctx, const void *bytes, size_t size, fxa_plan **out,
                                             fxa_error *err);
/* Flags of fxa_plan_load_flags.
 * REBUILD: compiles the problem for this machine if the bytes were saved for a different one. Results may then differ
 *     in the last bits, and the plan has a different key. */
enum { FXA_LOAD_REBUILD = 1 << 0 };
/* Like fxa_plan_load, with flags: FXA_LOAD_REBUILD or 0. */
FXA_API FXA_CHECKED fxa_status fxa_plan_load_flags(fxa_context *ctx, const void *bytes, size_t size, uint32_t flags,
                                                   fxa_plan **out, fxa_error *err);

/* Writes a problem as bytes, with its programs and captures but without `target`. A machine learning compiler can store
 * the bytes in its output and create the plan from them. With out NULL the call only sets *needed. */
FXA_API FXA_CHECKED fxa_status fxa_problem_save(fxa_context *ctx, const fxa_problem *problem, void *out,
                                                size_t capacity, size_t *needed, fxa_error *err);
/* Returns the plan, from the cache or compiled, of a problem that fxa_problem_save wrote. ordinal: number of the
 * device; -1 = the number in the saved problem. The bytes may come from an untrusted source: fails with E_BYTES for
 * damaged bytes, E_VERSION for bytes of another version. */
FXA_API FXA_CHECKED fxa_status fxa_plan_create_from_problem(fxa_context *ctx, const void *bytes, size_t size,
                                                            int32_t ordinal, fxa_plan **out, fxa_error *err);

/* ---- Merging partial results ------------------------------------------------------------------------------------ */

/* Operands of fxa_merge: partial results a and b of the same queries over disjoint sets of keys. */
typedef struct fxa_merge_args {
    uint32_t struct_size;   /* sizeof(fxa_merge_args) */
    uint32_t reserved;      /* 0 */
    int64_t b;              /* batch entries */
    int64_t h;              /* heads */
    int64_t s;              /* queries */
    int64_t d;              /* head dim of O */
    fxa_operand o_a;        /* [b, h, s, d], dtype required */
    fxa_operand o_b;        /* [b, h, s, d], dtype required */
    fxa_operand lse_a;      /* [b, h, s], f32 or f64 */
    fxa_operand lse_b;      /* [b, h, s], f32 or f64 */
    void *o_a_data;         /* O of result a; overwritten by the merged O */
    void *lse_a_data;       /* LSE of result a; overwritten by the merged LSE */
    const void *o_b_data;   /* O of b */
    const void *lse_b_data; /* LSE of b */
    fxa_context *ctx;       /* devices: context whose engines merge; NULL on the host */
    uint32_t device;        /* fxa_device whose memory holds the data of O and LSE of a and b */
    int32_t ordinal;        /* number of the device, from 0; 0 on the host */
    void *stream;           /* devices: CUstream or cudaStream_t on which the merge starts */
} fxa_merge_args;
#define FXA_MERGE_ARGS_INIT FXA_SIZED(fxa_merge_args)
/* Merges partial results a and b, with weights exp(LSE_a) and exp(LSE_b), and overwrites a. A row that attends to
 * nothing (LSE -inf) has weight 0; for a row that attends to nothing in both a and b, the result is O = 0 and LSE =
 * -inf. On a device the call starts the merge on args->stream and returns. If no engine of the device has a merge
 * kernel, the data is merged on the host and the call waits. */
FXA_API FXA_CHECKED fxa_status fxa_merge(const fxa_merge_args *args, fxa_error *err);

/* ---- Plan cache ------------------------------------------------------------------------------------------------- */

/* Counters of a context, from its creation on, and the size of its plan cache. */
typedef struct fxa_cache_stats {
    uint64_t hits;        /* number of requested plans that were in the cache */
    uint64_t misses;      /* number of requested plans that were not in the cache */
    uint64_t builds;      /* number of plans compiled */
    uint64_t refusals;    /* number of requested plans that no queried engine could make */
    uint64_t evictions;   /* number of plans evicted from the cache */
    uint64_t runs;        /* number of runs of all plans of the context */
    uint64_t queries;     /* number of support checks, each of one engine and one problem */
    uint64_t query_hits;  /* number of support checks whose result was cached in the context */
    uint64_t plans;       /* number of plans that are in the cache now */
    uint64_t bytes;       /* size in bytes of the plans that are in the cache now */
    uint64_t max_plans;   /* capacity of the cache in plans */
    uint64_t max_bytes;   /* capacity of the cache in bytes */
    uint64_t disk_hits;   /* number of times that compiled code was loaded from a file in cache_dir */
    uint64_t disk_misses; /* number of times that compiled code was not found in cache_dir */
    uint64_t disk_writes; /* number of files with compiled code written to cache_dir */
    uint64_t reserved[1]; /* 0 */
} fxa_cache_stats;
/* Writes the counters of a context; all 0 for NULL. */
FXA_API void fxa_cache_get_stats(fxa_context *ctx, fxa_cache_stats *out);
/* Sets the capacity of the plan cache and evicts plans above it at once; 0 disables the cache. Plans in use stay
 * valid. */
FXA_API void fxa_cache_limit(fxa_context *ctx, uint64_t max_plans, uint64_t max_bytes);
/* Empties the plan cache in memory; files in cache_dir stay. Plans in use stay valid. */
FXA_API void fxa_cache_clear(fxa_context *ctx);

#ifdef __cplusplus
}
#endif
#endif
