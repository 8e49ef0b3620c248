/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn: fused attention with your own score function inside.
 *
 *     O = softmax( f( scale * Q K^T ; b, h, q, k, your tensors, your scalars ) ) V
 *
 * This is the file to include, and the whole public interface with the two that it includes: common.h (status, errors,
 * context, storage types) and score_program.h (programs and their builder). Here: problems, tiles, plans and runs. It
 * needs C11 (or C++) and headers of the C library alone.
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

#include "common.h"
#include "score_program.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    int64_t stride[4]; /* batch, head, position, feature; in elements. Packed and paged: see flags. With STRIDED alone:
                          any that is not 0 beside another layout is refused, since it would not be used */
} fxa_operand;

/* A captured tensor: sizes and strides; dtype and rank are the program's. Data is bound at run time. */
typedef struct fxa_capture {
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK];      /* in elements, with strided 1; else it is dense row-major, and these are 0 */
    int64_t grad_stride[FXA_MAX_RANK]; /* the same with grad_strided 1 */
    uint32_t strided;
    uint32_t grad;       /* backward: not 0 asks for the gradient of this (float) tensor */
    uint32_t grad_dtype; /* 0: the tensor's */
    uint32_t grad_strided;
    uint64_t reserved[2]; /* 0 */
} fxa_capture;

/* Where local index i lies in the whole: the program (and dropout) sees the mapped value as q (b, h, k), and i as q_row
 * (k_row), memory is read by i. */
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
    uint32_t has_offset; /* not 0: an int32 read at run time from FXA_SLOT_OFFSET_x is added */
    int64_t base, step;
    uint32_t n_segments;
    uint32_t reserved; /* 0 */
    fxa_segment segment[FXA_MAX_SEGMENTS];
} fxa_index_map;

/* fxa_problem.flags. Some need more words than fit behind them:
 * WINDOW: ready mask: q - window_left <= k <= q + window_right; below 0 or 2^31 - 1: open there
 * BOTTOM_RIGHT: CAUSAL and WINDOW align to the last row and key: in them, and there alone, q is q + k_len - q_len. With
 *     neither of them the program's own q is, and dropout's: decoding without positions.
 * PADDING: per-batch lengths, FXA_SLOT_Q_LENGTHS and/or FXA_SLOT_K_LENGTHS. With VARLEN: how many rows or keys of its
 *     room a sequence has; gaps are nobody's.
 * VARLEN: packed sequences: FXA_SLOT_CU_Q, CU_K give B+1 offsets each. sq, sk are the longest lengths, total_q,
 *     total_k the packed ones; batch strides are not used; packed layouts mean: BHSD [H,T,D], BSHD and SBHD [T,H,D];
 *     of LSE, the row maximum and dLSE [H,T] and [T,H].
 *     With PAGED only rows are packed, and CU_K, total_k are not used.
 * PAGED: K and V in pages: [n_pages,Hkv,page_size,D] (batch stride = page stride, layouts mean the same with B =
 *     n_pages, S = page_size); FXA_SLOT_PAGES is int32 [B,ceil(sk/page_size)]. Lengths by PADDING. With VARLEN: chunks
 *     of prompts and decoding steps in one call.
 * SINKS: as SINK_ZERO, with a learned score per query head: FXA_SLOT_SINKS [Hq]
 * RETURN_ROW_MAX: forward: also FXA_SLOT_ROW_MAX, the row maximum of the new scores
 * ACCUMULATE_O: forward: merge into the O and LSE already there (as fxa_merge does)
 * Q_START: where the rows of each batch entry begin: FXA_SLOT_Q_START is added to q, for the program, ready masks and
 *     dropout. Not with BOTTOM_RIGHT, which says the same.
 * BOUNDS_CHECK: a run in which an index leaves its captured tensor is an error (E_BINDING with tensor, axis, index,
 *     size and pair) and writes nothing; without it such a load reads 0. Which loads count: docs/program.md. Looked at
 *     before the run, on the host: free where sizes, masks and conditions prove it for all runs, cheap where the
 *     tensors' contents do, else as long as evaluating the pairs one by one. Host engines only.
 * DETERMINISTIC: the same bits in every run, or no plan: an engine whose sums have no fixed order refuses.
 * GRAPH_CAPTURE: runs are recorded into a graph of the device and replayed: they neither wait for the device nor read
 *     its memory on the host. Refused for problems on the host.
 * SCALED: operands of 8 bits have scales, each one f32 where the tensors lie: what is read is the element times
 *     FXA_SLOT_DESCALE_x, what is written the result times FXA_SLOT_SCALE_x, and FXA_SLOT_AMAX_x gets the largest
 *     absolute value of the result before that. Each of these slots may be NULL: 1, or not written. DS is dS times the
 *     scale of scores, which no one stores: docs/numerics.md says what becomes of its scale.
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
    X(SINKS, 7, "sinks")                                                                                               \
    X(DROPOUT, 8, "dropout") /* dropout of probabilities by dropout_p, seed at run time */                             \
    X(RETURN_LSE, 9, "lse")  /* forward: also FXA_SLOT_LSE. Backward always reads LSE and O */                         \
    X(RETURN_ROW_MAX, 10, "row-max")                                                                                   \
    X(READ_DLSE, 11, "dlse") /* backward: FXA_SLOT_DLSE is read */                                                     \
    X(GRAD_Q, 12, "dq")      /* backward: which gradients are wanted */                                                \
    X(GRAD_K, 13, "dk")                                                                                                \
    X(GRAD_V, 14, "dv")                                                                                                \
    X(GRAD_SINKS, 15, "dsinks")                                                                                        \
    X(ACCUMULATE_O, 16, "accumulate-o")                                                                                \
    X(ACCUMULATE_DQ, 17, "accumulate-dq") /* backward: add to what is there instead of overwriting it */               \
    X(ACCUMULATE_DK, 18, "accumulate-dk")                                                                              \
    X(ACCUMULATE_DV, 19, "accumulate-dv")                                                                              \
    X(ACCUMULATE_DSINKS, 20, "accumulate-dsinks")                                                                      \
    X(ACCUMULATE_DTENSORS, 21, "accumulate-dtensors")                                                                  \
    X(ACCUMULATE_DPARAMS, 22, "accumulate-dparams")                                                                    \
    X(Q_START, 23, "q-start")                                                                                          \
    X(BOUNDS_CHECK, 24, "bounds-check")                                                                                \
    X(DETERMINISTIC, 25, "deterministic")                                                                              \
    X(GRAPH_CAPTURE, 26, "graph-capture")                                                                              \
    X(SCALARS_IN_MEMORY, 27, "scalars-in-memory")                                                                      \
    X(SCALED, 28, "scaled")

/* clang-format off */
enum {
#define FXA_FLAG_ENUM(name, bit, text) FXA_##name = 1 << bit,
    FXA_FLAG_MAP(FXA_FLAG_ENUM)
#undef FXA_FLAG_ENUM
    FXA_FLAG_COUNT = 29
};
/* clang-format on */
/* "bottom-right" of FXA_BOTTOM_RIGHT; NULL for a value that is not one flag. */
FXA_API const char *fxa_flag_name(uint32_t flag);

/* The q of row i of batch entry b, from 0 in its own sequence: map_q(i) + OFFSET_Q + Q_START[b] or, aligned by
 * BOTTOM_RIGHT alone, map_q(i) + OFFSET_Q + k_len - q_len, lengths as the program reads them. So one program serves a
 * whole pass, the first chunk of a sequence and every later step: a row has the same q, and the same dropout, in all
 * of them. */

#define FXA_MAX_D 512 /* features of a row */
enum { FXA_D_V_ZERO = -1 };

/* Start from FXA_PROBLEM_INIT; fields are only ever appended. All zeroes means: none, default, off. */
typedef struct fxa_problem {
    uint32_t struct_size;
    uint32_t pass; /* fxa_pass */
    uint32_t flags;
    uint32_t page_size; /* PAGED; ignored without it */

    const fxa_program *program; /* NULL: the identity */
    const fxa_program *bprop;   /* backward: a BPROP program to use instead of the derived d/dscore; NULL: derived */

    int64_t b, hq, hkv;       /* hkv 0: hq. hq must be a multiple of hkv */
    int64_t sq, sk;           /* zero is legal of all sizes: empty outputs, or rows that attend to nothing */
    int64_t d_qk, d_v;        /* 0 to FXA_MAX_D; d_v 0: d_qk, FXA_D_V_ZERO: none. With d_qk 0 all products are 0 */
    int64_t total_q, total_k; /* VARLEN; ignored without it */
    int64_t n_pages;          /* PAGED; ignored without it */

    fxa_operand q, k, v;    /* q.dtype 0: f32; k, v dtype 0: q's. f64 all three (arithmetic is in f64 then), or any
                                    of f32, f16, bf16, e4m3, e5m2 each (in f32) */
    fxa_operand o, dout;    /* dtype 0: q's */
    fxa_operand dq, dk, dv; /* dtype 0: that of q, k, v */
    fxa_operand lse, row_max, dlse; /* [B,Hq,Sq]; dtype 0 (nothing else, but lse may be f64): f64 when q is, else f32 */
    fxa_operand sinks, dsinks;      /* [Hq]: stride[1] when STRIDED, else dense. dtype 0: as lse; any float dtype */

    const fxa_capture *captures; /* one per tensor of program, in its order */
    size_t n_captures;
    const fxa_capture *bprop_captures; /* one per tensor of bprop (no gradients) */
    size_t n_bprop_captures;
    uint64_t param_grads; /* backward: bit i asks for the gradient of (float) param i of program */

    int64_t window_left, window_right; /* WINDOW; ignored without it */
    double dropout_p;                  /* 0 <= p < 1; without DROPOUT only 0, else E_PROBLEM */

    fxa_index_map map_b, map_h, map_q, map_k;
    int64_t global_q_len,
        global_k_len; /* what the program reads as q_len, k_len; 0: the real (per-batch) lengths. For shards */

    const char *engine;   /* NULL: automatic (or the environment's FXA_ENGINE); else its name */
    int64_t global_heads; /* what the program reads as heads; 0: hq. For shards */

    uint32_t device;    /* fxa_device: where all that a run points to lies. Only engines of that device are asked */
    int32_t ordinal;    /* which of them, from 0; on the host 0 */
    const char *target; /* a plan for a device that is not here, by its profile (a text); such a plan can be saved, and
                               runs where it is loaded. NULL: the device itself. Not on the host */
    uint32_t alignment; /* a promise of every pointer to a tensor: a multiple of this, a power of two up to 4096;
                               0: of its elements' size alone. Say 16 for a GPU: without it cudnn refuses,
                               and cuda has kernels that take several times as long */
    uint32_t reserved;  /* 0 */
    uint64_t max_workspace; /* what a run may need at most, else an engine refuses; 0: anything */
} fxa_problem;
#define FXA_PROBLEM_INIT FXA_SIZED(fxa_problem)

/* The program that a problem runs: its own with the ready masks of its flags appended, and with q for q_row and k for
 * k_row where the problem does not move these. */
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
    char reason[240];         /* why not, with names and values; empty when supported */
    int32_t tile_q, tile_k;   /* rows and keys of the pieces of work that are left out when the mask leaves nothing of
                               them; 0: masks save no work, or nobody knows which (cudnn) */
    int32_t multiplies_zeros; /* a weight of exactly 0 is multiplied by V (and K, Q, dO) all the same, so that NaN and
                                 infinities there reach results; 0: it contributes nothing (docs/numerics.md) */
    int32_t reserved_int;
    double seconds; /* of a run, about, by what was measured on one device (docs/cuda.md): what automatic choice
                       between engines goes by; 0: nobody knows */
    uint64_t reserved[2];
} fxa_support;

/* Fills at most *count reports, in order of preference, and sets *count to how many engines there are. All are asked,
 * also where problem.engine names one; a name that fxa_plan_create does not take is E_ARGUMENT here too, and a target
 * that no engine of its device understands E_PROBLEM. Where the compiler of an engine is missing, the answer is yes for
 * code that the cache or cache_dir holds, which a plan takes from there. */
FXA_API FXA_CHECKED fxa_status fxa_support_query(fxa_context *ctx, const fxa_problem *problem, fxa_support *reports,
                                                 size_t *count, fxa_error *err);

/* The engines of this build, by position; NULL past the end. And in whose memory each computes: a fxa_device, -1 past
 * the end. */
FXA_API const char *fxa_engine_name(size_t index);
FXA_API int32_t fxa_engine_device(size_t index);

/* What code for a device depends on, as a text: the `target` of problems that are planned where the device is not.
 * Nothing is opened there. Two calls, as in fxa_program_print. E_UNAVAILABLE with the reason: no driver, no such
 * device; E_UNSUPPORTED: no engine of this build has descriptions of that device. */
FXA_API FXA_CHECKED fxa_status fxa_device_description(fxa_context *ctx, fxa_device device, int32_t ordinal, char *out,
                                                      size_t capacity, size_t *needed, fxa_error *err);

/* ---- Tiles: what the mask leaves to do ------------------------------------------------------------------------- */

typedef enum fxa_tile_class {
    FXA_TILE_EMPTY = 0,
    FXA_TILE_MIXED = 1,
    FXA_TILE_FULL = 2,
    FXA_TILE_FORCE_INT32 = 0x7fffffff
} fxa_tile_class;

/* What may be assumed of a captured int tensor by its values. */
typedef struct fxa_tensor_range {
    int32_t known;         /* not 0: every element, of i64 limited to 32 bits, lies in lo..hi */
    int32_t nondecreasing; /* not 0: rank 1 and never decreasing; of i64 the whole elements */
    int32_t lo, hi;
    const fxa_view *view; /* optional: elements may be read */
} fxa_tensor_range;

/* For all pairs of the box (inclusive bounds of coordinate values): mask false everywhere (EMPTY), true everywhere
 * (FULL), or not known to be either (MIXED). Never wrong. params, tensors may be NULL: unknown. */
typedef struct fxa_tile_bounds {
    int32_t lo[FXA_INPUT_COUNT]; /* by fxa_input; SCORE and DSCORE are not read */
    int32_t hi[FXA_INPUT_COUNT];
} fxa_tile_bounds;
FXA_API fxa_tile_class fxa_program_classify(const fxa_program *program, const fxa_tile_bounds *box,
                                            const double *params, const fxa_tensor_range *tensors);

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
 * Q_LENGTHS, CU_Q, PAGES: on the host values out of range are E_BINDING, and entries of PAGES past the last key of a
 *     batch entry are not looked at. Engines of a device do not check them: docs/gpu.md says what becomes of wrong ones
 * PARAMS: SCALARS_IN_MEMORY: one f64 per param of program. Engines of a device do not check them: an int param that is
 *     no whole number of 32 bits is rounded towards zero and clamped */
#define FXA_SLOT_MAP(X)                                                                                                \
    X(Q, 0)                                                                                                            \
    X(K, 1)                                                                                                            \
    X(V, 2)                                                                                                            \
    X(O, 3) /* forward: written; backward: read */                                                                     \
    X(LSE, 4)                                                                                                          \
    X(ROW_MAX, 5)                                                                                                      \
    X(DO, 6)                                                                                                           \
    X(DLSE, 7)                                                                                                         \
    X(DQ, 8)                                                                                                           \
    X(DK, 9)                                                                                                           \
    X(DV, 10)                                                                                                          \
    X(SINKS, 11)                                                                                                       \
    X(DSINKS, 12)                                                                                                      \
    X(Q_LENGTHS, 13) /* int32 [B], 0 to sq (sk), and with CU_Q (CU_K) no more than there is between two offsets */     \
    X(K_LENGTHS, 14)                                                                                                   \
    X(CU_Q, 15) /* int32 [B+1] */                                                                                      \
    X(CU_K, 16)                                                                                                        \
    X(PAGES, 17)                                                                                                       \
    X(MAP_B, 18) /* int32 tables */                                                                                    \
    X(MAP_H, 19)                                                                                                       \
    X(MAP_Q, 20)                                                                                                       \
    X(MAP_K, 21)                                                                                                       \
    X(OFFSET_B, 22) /* one int32 each */                                                                               \
    X(OFFSET_H, 23)                                                                                                    \
    X(OFFSET_Q, 24)                                                                                                    \
    X(OFFSET_K, 25)                                                                                                    \
    X(Q_START, 26) /* int32 [B], any value; coordinates wrap at 32 bits as ints of programs do */                      \
    X(SCALE, 27)   /* SCALARS_IN_MEMORY: one f64, finite, or NAN for 1 / sqrt(d) */                                    \
    X(SEED, 28)    /* one u64, with DROPOUT */                                                                         \
    X(PARAMS, 29)                                                                                                      \
    X(DESCALE_Q, 30) /* SCALED: one f32 each, above 0 and finite; only of operands of 8 bits */                        \
    X(DESCALE_K, 31)                                                                                                   \
    X(DESCALE_V, 32)                                                                                                   \
    X(DESCALE_O, 33) /* backward */                                                                                    \
    X(DESCALE_DO, 34)                                                                                                  \
    X(SCALE_O, 35) /* forward */                                                                                       \
    X(SCALE_DQ, 36)                                                                                                    \
    X(SCALE_DK, 37)                                                                                                    \
    X(SCALE_DV, 38)                                                                                                    \
    X(AMAX_O, 39) /* written; NaN where a result is */                                                                 \
    X(AMAX_DQ, 40)                                                                                                     \
    X(AMAX_DK, 41)                                                                                                     \
    X(AMAX_DV, 42)                                                                                                     \
    X(SCALE_DS, 43) /* of gradients by scores, where an engine rounds them to 8 bits; with dO of 8 bits */             \
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
FXA_API const char *fxa_slot_name(fxa_slot slot); /* "Q", "LSE", ...; NULL for a value that is none */

/* How far a run is: `done` of `total` parts of much the same size, before masks take something away; total is the same
 * in all calls of a run, and its last call, when every output is written, says done == total. Called by the threads of
 * the run, perhaps by several at the same time and so out of order, in the default floating point state. It should
 * return soon. */
typedef void (*fxa_progress_fn)(void *user, uint64_t done, uint64_t total);

/* fxa_args.flags.
 * SKIP_POINTER_CHECKS: the caller vouches for the pointers, as front ends can who have just made the tensors or looked
 *     at them: those that are not NULL are memory of the problem's device, as large as it says, aligned to their
 *     elements and as it promises; what is written overlaps nothing else; the stream is one of that device, and
 *     recorded only where the problem has CAPTURE. None of it is looked at again (on a device that is a question to the
 *     driver for each). Presence, counts, params, the workspace and, on the host, values of lengths and offsets are
 *     checked as ever. */
enum { FXA_SKIP_POINTER_CHECKS = 1 << 0 };

typedef struct fxa_args {
    uint32_t struct_size;
    uint32_t flags;           /* FXA_SKIP_POINTER_CHECKS, or 0 */
    void *slot[FXA_SLOT_MAX]; /* inputs are not written, whatever the type says. Slots that only the other pass uses are
                                 ignored, so that one set serves both; any other that is set and lacks the flag (or
                                 map) that uses it is E_BINDING */
    double scale;             /* of Q K^T; NAN: 1 / sqrt(d), with d 0 1 */
    const double *params; /* one per param of program, in its order; an int param must be a whole number of 32 bits. On
                             the host, whatever the device */
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
    void *workspace; /* fxa_plan_workspace bytes, aligned to FXA_WORKSPACE_ALIGN, where the slots lie; NULL when that is
                        0 */
    size_t workspace_size;
    void *stream;             /* GPU engines: the caller's CUstream (cudaStream_t), NULL: the default one; others ignore
                                 it. Runs begin there and return: docs/gpu.md */
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
FXA_API const char *fxa_plan_description(const fxa_plan *plan);
/* What the engine made of the score program, as lines for people: the tapes of cpu, "" of engines that have nothing to
 * show. Their wording may change with any version. Two-call, as fxa_program_print. */
FXA_API FXA_CHECKED fxa_status fxa_plan_dump(const fxa_plan *plan, char *out, size_t capacity, size_t *needed,
                                             fxa_error *err);
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
typedef struct fxa_bounds_report {
    int32_t tensor; /* of program, or of bprop */
    int32_t bprop;  /* not 0: of bprop */
    int32_t axis;
    int32_t exact;      /* not 0: all pairs were accounted for; else `pairs` is an estimate from a random sample */
    int64_t size;       /* of the axis */
    int32_t lo, hi;     /* the smallest and the largest index seen that is outside */
    uint64_t pairs;     /* pairs whose result needs such a load */
    uint64_t of;        /* pairs that there are */
    int64_t b, h, q, k; /* one of them, local indices */
} fxa_bounds_report;

/* Which indices leave their tensors in a run of the problem: what FXA_BOUNDS_CHECK refuses. Of args the tables, params
 * and tensors must be there; without Q or K the score counts as 0. Fills at most *count reports, by tensor and axis,
 * and sets *count to how many there are. Work is bounded, to a second or two: all pairs are evaluated when pairs
 * times nodes of the program are some 67 million at most, else a sample is. */
FXA_API FXA_CHECKED fxa_status fxa_bounds_check(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                                                fxa_bounds_report *reports, size_t *count, fxa_error *err);

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
FXA_API FXA_CHECKED fxa_status fxa_plan_create_from_problem(fxa_context *ctx, const void *bytes, size_t size,
                                                            int32_t ordinal, fxa_plan **out, fxa_error *err);

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
    fxa_context *ctx; /* on a device, where all the pointers then lie: whose engines do it. One without a kernel for it
                         takes what is joined to the host and back, and the call waits for that */
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
    uint64_t disk_hits, disk_misses, disk_writes; /* of cache_dir, where an engine could use it */
    uint64_t reserved[1];
} fxa_cache_stats;
FXA_API void fxa_cache_get_stats(fxa_context *ctx, fxa_cache_stats *out);
/* Evicts at once; 0 keeps nothing. Plans that somebody holds live on. */
FXA_API void fxa_cache_limit(fxa_context *ctx, uint64_t max_plans, uint64_t max_bytes);
FXA_API void fxa_cache_clear(fxa_context *ctx);

#ifdef __cplusplus
}
#endif
#endif
