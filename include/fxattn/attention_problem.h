/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention problems: shapes, layouts, features and device of one pass, without data. Also queries about problems:
 * engines that support a problem, devices, tiles that a mask leaves empty. Part of <fxattn/fxattn.h>, which is the file
 * to include and lists the rules that hold for all functions.
 *
 * Sizes in comments: B batch entries, Hq query heads, Hkv key/value heads, Sq queries, Sk keys, D head dim of Q and K,
 * Dv head dim of V and O. Query head h reads key/value head h / (Hq / Hkv).
 */
#ifndef FXATTN_ATTENTION_PROBLEM_H
#define FXATTN_ATTENTION_PROBLEM_H

#include "common.h"
#include "score_program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tensors ---------------------------------------------------------------------------------------------------- */

/* What a problem computes: FORWARD computes O from Q, K and V; BACKWARD computes gradients from dO. */
typedef enum fxa_pass { FXA_FORWARD = 0, FXA_BACKWARD = 1, FXA_PASS_FORCE_INT32 = 0x7fffffff } fxa_pass;

/* Order of the dimensions in memory, outermost first: B batch, H heads, S positions, D head dim. LSE, the row maximum
 * and dLSE have no D.
 *
 *              Q, K, V, O       LSE         FXA_VARLEN (T = total_q or total_k)
 *     BHSD     [B, H, S, D]     [B, H, S]   [H, T, D]   [H, T]
 *     BSHD     [B, S, H, D]     [B, S, H]   [T, H, D]   [T, H]
 *     SBHD     [S, B, H, D]     [S, B, H]   [T, H, D]   [T, H]
 *     STRIDED  any: element (b, h, s, d) is at b*stride[0] + h*stride[1] + s*stride[2] + d*stride[3] */
typedef enum fxa_layout {
    FXA_LAYOUT_BHSD = 0,
    FXA_LAYOUT_BSHD = 1,
    FXA_LAYOUT_SBHD = 2,
    FXA_LAYOUT_STRIDED = 3, /* fxa_operand.stride is used */
    FXA_LAYOUT_FORCE_INT32 = 0x7fffffff
} fxa_layout;

/* Storage of Q, K, V, O, LSE or one of their gradients. */
typedef struct fxa_operand {
    uint32_t dtype;  /* fxa_dtype; 0 = the default dtype that fxa_problem states for this operand */
    uint32_t layout; /* fxa_layout */
    /* STRIDED: strides of (b, h, s, d) in elements; must be 0 for other layouts. Strides of inputs may be 0 (broadcast)
     * or negative; strides of outputs must give each element its own address. */
    int64_t stride[4];
} fxa_operand;

/* Storage of a captured tensor. The program declares the tensor's dtype and rank; fxa_args has its data pointer. */
typedef struct fxa_capture {
    int64_t size[FXA_MAX_RANK];        /* [rank] elements along each dimension */
    int64_t stride[FXA_MAX_RANK];      /* [rank] strides in elements, if `strided` is 1; else 0 */
    int64_t grad_stride[FXA_MAX_RANK]; /* [rank] strides of the gradient in elements, if grad_strided is 1; else 0 */
    uint32_t strided;                  /* 1 = stride is used; 0 = contiguous, row-major */
    uint32_t grad;                     /* backward: 1 = compute the gradient of this float tensor */
    uint32_t grad_dtype;               /* fxa_dtype of the gradient; 0 = the dtype of the tensor */
    uint32_t grad_strided;             /* 1 = grad_stride is used; 0 = contiguous, row-major */
    uint64_t reserved[2];              /* 0 */
} fxa_capture;

/* ---- Coordinates ------------------------------------------------------------------------------------------------ */

/* Index maps translate local indices of this problem into the coordinates that score program, built-in masks and
 * dropout read. A problem that is a part (shard, chunk, ring step) of a larger problem needs index maps:
 *
 *     local index i    0   1   2   3   4   5      SEGMENTS with {begin 0, base 0, step 1}
 *     coordinate q     0   1   2   9  10  11                and {begin 3, base 9, step 1}
 *
 * Memory is always addressed by local indices, which programs read as q_row and k_row. */
typedef enum fxa_map_kind {
    FXA_MAP_AFFINE = 0,   /* base + step * i */
    FXA_MAP_SEGMENTS = 1, /* coordinate = base + step * (i - begin) of the last segment whose begin is at most i */
    FXA_MAP_TABLE = 2,    /* coordinate = table[i], an int32 array given to the run as FXA_SLOT_MAP_x */
    FXA_MAP_FORCE_INT32 = 0x7fffffff
} fxa_map_kind;
#define FXA_MAX_SEGMENTS 16
typedef struct fxa_segment {
    int64_t begin; /* first local index of the segment; 0 in the first segment, then ascending */
    int64_t base;  /* coordinate of `begin` */
    int64_t step;  /* distance of consecutive coordinates; 0 = 1 */
} fxa_segment;
/* Index map of one coordinate. All zeroes = the identity. */
typedef struct fxa_index_map {
    uint32_t kind;                         /* fxa_map_kind */
    uint32_t has_offset;                   /* 1 = the run adds the int32 at FXA_SLOT_OFFSET_x to each coordinate */
    int64_t base;                          /* AFFINE: coordinate of local index 0 */
    int64_t step;                          /* AFFINE: distance of consecutive coordinates; 0 = 1 */
    uint32_t n_segments;                   /* SEGMENTS: 1 to FXA_MAX_SEGMENTS */
    uint32_t reserved;                     /* 0 */
    fxa_segment segment[FXA_MAX_SEGMENTS]; /* SEGMENTS: [n_segments] */
} fxa_index_map;

/* Coordinate q of row i of batch entry b (i counts from 0 in each sequence), by the flags of the problem:
 *
 *     FXA_Q_START                                              map_q(i) + OFFSET_Q + Q_START[b]
 *     FXA_BOTTOM_RIGHT, and neither FXA_CAUSAL nor FXA_WINDOW  map_q(i) + OFFSET_Q + k_len - q_len
 *     all others                                               map_q(i) + OFFSET_Q
 *
 * q_len and k_len are the inputs of these names of the score program; OFFSET_Q is 0 unless map_q.has_offset is set.
 * With suitable maps and offsets a row has the same q, and thus the same dropout, in a pass over the entire sequence,
 * in a pass over a chunk of the sequence, and in a decoding step. */

/* ---- Flags ------------------------------------------------------------------------------------------------------ */

/* Bits of fxa_problem.flags.
 *
 * Built-in masks, combined with the mask of the program
 * CAUSAL: k <= q
 * WINDOW: q - window_left <= k <= q + window_right
 * BOTTOM_RIGHT: CAUSAL and WINDOW use q + k_len - q_len in place of q, which aligns the masks to the last row and the
 *     last key; the q that program and dropout read is unchanged. If neither CAUSAL nor WINDOW is set, k_len - q_len is
 *     added to the q that program and dropout read. q_len and k_len are the inputs of these names of the score program.
 *
 * Sequences
 * PADDING: batch entries have lengths, FXA_SLOT_Q_LENGTHS or FXA_SLOT_K_LENGTHS or both. Rows and keys past the length
 *     are not computed. With VARLEN: lengths within the packed sequences; elements past the length are neither read nor
 *     written.
 * VARLEN: packed sequences. FXA_SLOT_CU_Q and FXA_SLOT_CU_K hold B + 1 offsets each, total_q and total_k are the packed
 *     sizes, sq and sk the maximum lengths. Layouts: see fxa_layout. Batch strides are not used.
 * PAGED: K and V are pools of pages, [n_pages, Hkv, page_size, D] in place of [B, Hkv, Sk, D], in any layout.
 *     FXA_SLOT_PAGES, int32 [B, ceil(sk / page_size)], holds the page numbers of each batch entry. Lengths come from
 *     PADDING. With VARLEN, which allows chunked prefill and decoding in one call, only the rows are packed: CU_K and
 *     total_k are not used.
 * Q_START: FXA_SLOT_Q_START is added to q, for program, built-in masks and dropout. Excludes BOTTOM_RIGHT.
 *
 * Softmax
 * SINK_ZERO: adds exp(0) to every softmax denominator ("softmax off by one")
 * SINKS: adds exp(sinks[h]), FXA_SLOT_SINKS [Hq]. Excludes SINK_ZERO.
 * DROPOUT: probabilities are dropped with probability dropout_p; the seed is an argument of the run
 *
 * Results
 * RETURN_LSE: forward writes FXA_SLOT_LSE. Backward always reads LSE and O.
 * RETURN_ROW_MAX: forward writes FXA_SLOT_ROW_MAX, the maximum of each row's scores after the score program
 * READ_DLSE: backward reads FXA_SLOT_DLSE, the gradient of the loss with respect to LSE
 * GRAD_Q, GRAD_K, GRAD_V, GRAD_SINKS: backward writes FXA_SLOT_DQ, DK, DV, DSINKS
 * ACCUMULATE_O: forward merges its O and LSE into the O and LSE in memory, as fxa_merge does
 * Other ACCUMULATE flags: backward adds to the gradient in memory instead of overwriting the gradient
 *
 * Runs
 * BOUNDS_CHECK: a run in which an index is out of range for its captured tensor fails with E_BINDING before anything is
 *     written; the message names tensor, axis, index, size, row and key. Without this flag a load out of range reads 0.
 *     docs/program.md defines which loads count.
 *     The check costs nothing if sizes, masks and conditions prove that all indices are in range, little if the
 *     contents of index tensors prove the same, else as much as evaluating every (row, key) pair. Host only.
 * DETERMINISTIC: every run gives the same bits. Engines whose order of summation varies from run to run report the
 *     problem as unsupported.
 * GRAPH_CAPTURE: runs can be captured into CUDA graphs: a run neither waits for the device nor reads device memory on
 *     the host. Devices only.
 * SCALED: f8 operands have scales, one f32 each in the memory of the problem's device. The value of an input is its
 *     stored element times FXA_SLOT_DESCALE_x. An output is stored as result * FXA_SLOT_SCALE_x, and FXA_SLOT_AMAX_x
 *     receives max |result|. A NULL scale is 1, a NULL amax is not written. docs/numerics.md explains the scale of dS.
 * SCALARS_IN_MEMORY: runs read scale, seed and params from FXA_SLOT_SCALE, SEED and PARAMS in the memory of the
 *     problem's device instead of fxa_args, so that the device can compute them and graph replays can change them */
#define FXA_FLAG_MAP(X)                                                                                                \
    X(CAUSAL, 0, "causal")                                                                                             \
    X(WINDOW, 1, "window")                                                                                             \
    X(BOTTOM_RIGHT, 2, "bottom-right")                                                                                 \
    X(PADDING, 3, "padding")                                                                                           \
    X(VARLEN, 4, "packed")                                                                                             \
    X(PAGED, 5, "paged")                                                                                               \
    X(SINK_ZERO, 6, "sink-zero")                                                                                       \
    X(SINKS, 7, "sinks")                                                                                               \
    X(DROPOUT, 8, "dropout")                                                                                           \
    X(RETURN_LSE, 9, "lse")                                                                                            \
    X(RETURN_ROW_MAX, 10, "row-max")                                                                                   \
    X(READ_DLSE, 11, "dlse")                                                                                           \
    X(GRAD_Q, 12, "dq")                                                                                                \
    X(GRAD_K, 13, "dk")                                                                                                \
    X(GRAD_V, 14, "dv")                                                                                                \
    X(GRAD_SINKS, 15, "dsinks")                                                                                        \
    X(ACCUMULATE_O, 16, "accumulate-o")                                                                                \
    X(ACCUMULATE_DQ, 17, "accumulate-dq")                                                                              \
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
/* Returns the name of one flag as a static string: "bottom-right" for FXA_BOTTOM_RIGHT. NULL for other values. */
FXA_API const char *fxa_flag_name(uint32_t flag);

/* ---- Problems --------------------------------------------------------------------------------------------------- */

/* Devices whose memory a problem uses. Values never change. */
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
/* Returns the name of a device as a static string: "host" or "cuda". NULL for other values. */
FXA_API const char *fxa_device_name(fxa_device device);

#define FXA_MAX_D 512       /* maximum head dim */
enum { FXA_D_V_ZERO = -1 }; /* value of fxa_problem.d_v for head dim 0, because d_v = 0 means d_qk */

/* Description of one pass. Start from FXA_PROBLEM_INIT, then set b, hq, sq, sk, d_qk and every member that differs from
 * its default. A member whose comment begins with a flag is ignored without that flag, unless the comment says
 * otherwise. */
typedef struct fxa_problem {
    uint32_t struct_size; /* sizeof(fxa_problem) */
    uint32_t pass;        /* fxa_pass */
    uint32_t flags;       /* FXA_CAUSAL, ... */
    uint32_t page_size;   /* PAGED: number of keys of a page */

    const fxa_program *program; /* SCORE program; NULL = the identity, plain softmax attention */
    /* backward: BPROP program that computes the gradient of the score; NULL = the derivative of `program` */
    const fxa_program *bprop;

    /* number of batch entries. All sizes may be 0: outputs are then empty, or rows attend to nothing */
    int64_t b;
    int64_t hq;      /* number of query heads, a multiple of hkv */
    int64_t hkv;     /* number of key/value heads; 0 = hq */
    int64_t sq;      /* number of queries of a batch entry; VARLEN, PADDING: the maximum */
    int64_t sk;      /* number of keys of a batch entry; VARLEN, PADDING, PAGED: the maximum */
    int64_t d_qk;    /* head dim of Q and K, at most FXA_MAX_D; 0 = all scores are 0 */
    int64_t d_v;     /* head dim of V and O, at most FXA_MAX_D; 0 = d_qk; FXA_D_V_ZERO = head dim 0 */
    int64_t total_q; /* VARLEN: number of rows of the packed Q */
    int64_t total_k; /* VARLEN: number of rows of the packed K and V */
    int64_t n_pages; /* PAGED: number of pages of the pool */

    /* The dtypes of q, k and v are either all f64, with arithmetic in f64, or each one of f32, f16, bf16, e4m3 and
     * e5m2, with arithmetic in f32. */
    fxa_operand q;    /* queries [B, Hq, Sq, D]; default dtype f32 */
    fxa_operand k;    /* keys [B, Hkv, Sk, D]; default dtype as q */
    fxa_operand v;    /* values [B, Hkv, Sk, Dv]; default dtype as q */
    fxa_operand o;    /* output [B, Hq, Sq, Dv]; default dtype as q */
    fxa_operand dout; /* dO, gradient of O [B, Hq, Sq, Dv]; default dtype as q */
    fxa_operand dq;   /* gradient of Q [B, Hq, Sq, D]; default dtype as q */
    fxa_operand dk;   /* gradient of K [B, Hkv, Sk, D]; default dtype as k */
    fxa_operand dv;   /* gradient of V [B, Hkv, Sk, Dv]; default dtype as v */
    /* log-sum-exp of rows [B, Hq, Sq]; default dtype f64 if q is f64, else f32; may be f64 in any case */
    fxa_operand lse;
    fxa_operand row_max; /* maxima of rows of scores after the program [B, Hq, Sq]; dtype f64 if q is f64, else f32 */
    fxa_operand dlse;    /* gradient of LSE [B, Hq, Sq]; dtype f64 if q is f64, else f32 */
    /* learned sinks [Hq]; contiguous, or with layout STRIDED and stride[1] as the stride from head to head; default
     * dtype f64 if q is f64, else f32 */
    fxa_operand sinks;
    fxa_operand dsinks; /* gradient of sinks [Hq]; layout and default dtype as for sinks */

    const fxa_capture *captures;       /* [n_captures] storage of each tensor of program, by tensor number */
    size_t n_captures;                 /* number of tensors of program */
    const fxa_capture *bprop_captures; /* [n_bprop_captures] storage of each tensor of bprop; grad must be 0 */
    size_t n_bprop_captures;           /* number of tensors of bprop */
    uint64_t param_grads;              /* backward: bit i = compute the gradient of float param i of program */

    int64_t window_left;  /* WINDOW: number of attended keys before q; -1 or 2^31 - 1 = unbounded */
    int64_t window_right; /* WINDOW: number of attended keys after q; -1 or 2^31 - 1 = unbounded */
    double dropout_p;     /* DROPOUT: probability, 0 <= p < 1. Without the flag dropout_p must be 0, else E_PROBLEM */

    fxa_index_map map_b; /* index map of batch entries */
    fxa_index_map map_h; /* index map of query heads */
    fxa_index_map map_q; /* index map of rows */
    fxa_index_map map_k; /* index map of keys */
    /* value of program input q_len, if the problem is a shard of a larger one; 0 = queries of the batch entry */
    int64_t global_q_len;
    /* value of program input k_len, if the problem is a shard of a larger one; 0 = keys of the batch entry */
    int64_t global_k_len;

    const char *engine;   /* name of the engine; NULL = environment variable FXA_ENGINE, else chosen automatically */
    int64_t global_heads; /* value of program input `heads`, if the problem is a shard of a larger one; 0 = hq */

    /* fxa_device that all pointers of a run refer to; only engines of this device are considered */
    uint32_t device;
    int32_t ordinal; /* number of the device, from 0; 0 on the host */
    /* Text of fxa_device_description for a device that need not be present. A plan for that device can be saved on this
     * machine, and loaded and run on a machine with such a device. NULL = device `ordinal` of this machine. Must be
     * NULL for the host. */
    const char *target;
    /* Every tensor pointer is a multiple of this power of two, at most 4096; 0 = of the element size only. Use 16 on
     * GPUs: with less, the cudnn engine refuses the problem and the cuda engine uses slower kernels. */
    uint32_t alignment;
    uint32_t reserved;      /* 0 */
    uint64_t max_workspace; /* maximum workspace of a run in bytes, engines that need more are not used; 0 = any */
} fxa_problem;
#define FXA_PROBLEM_INIT FXA_SIZED(fxa_problem)

/* Makes the program that a problem runs: problem->program with the built-in masks of the flags added. Where the problem
 * makes inputs q_row and q equal, q_row is replaced by q; likewise k_row by k. */
FXA_API FXA_CHECKED fxa_status fxa_problem_program(fxa_context *ctx, const fxa_problem *problem, fxa_program **out,
                                                   fxa_error *err);

/* ---- Engines and devices ---------------------------------------------------------------------------------------- */

/* Result of a support query: whether one engine can run a problem, and how. */
typedef struct fxa_support {
    const char *engine;    /* name; a static string */
    int32_t supported;     /* 1 = this engine can run the problem */
    int32_t deterministic; /* 1 = every run gives the same bits */
    uint64_t workspace;    /* bytes of workspace of a run */
    char reason[240];      /* why the engine does not support the problem, with names and values; "" if it does */
    int32_t tile_q; /* number of rows of a tile; tiles whose mask is all false are skipped; 0 = none are, or unknown */
    int32_t tile_k; /* number of keys of a tile; 0 = no tiles are skipped, or unknown (cudnn) */
    /* 1 = weights of exactly 0 are multiplied by V (backward: K, Q, dO), so NaN and infinity in V reach the results;
     * 0 = elements with weight 0 are ignored (docs/numerics.md) */
    int32_t multiplies_zeros;
    int32_t reserved_int; /* 0 */
    /* Estimated duration of a run, from measurements on one device (docs/cuda.md). The estimate decides which engine is
     * chosen. 0 = no estimate. */
    double seconds;
    uint64_t reserved[2]; /* 0 */
} fxa_support;

/* Queries all engines of this build, also if problem->engine names one. Engines for a device other than problem->device
 * report the problem as unsupported. Writes at most *count reports in order of preference and sets *count to the number
 * of engines; `reports` may be NULL if *count is 0. Cheap: results are cached in the context. An engine whose compiler
 * is missing supports only problems whose compiled code is in the plan cache or in cache_dir.
 * Fails with E_ARGUMENT for an unknown problem->engine, E_PROBLEM for a contradiction or for a target that is not a
 * text of fxa_device_description. */
FXA_API FXA_CHECKED fxa_status fxa_support_query(fxa_context *ctx, const fxa_problem *problem, fxa_support *reports,
                                                 size_t *count, fxa_error *err);

/* Returns the name of engine number `index` of this build, in order of preference; NULL past the end. The string is
 * static. */
FXA_API const char *fxa_engine_name(size_t index);
/* Returns the fxa_device of engine number `index`; -1 past the end. */
FXA_API int32_t fxa_engine_device(size_t index);

/* Writes the description of a device as text: the properties that compiled code depends on. Problems on machines
 * without the device use the text as fxa_problem.target. The device is not opened. With out NULL the call only sets
 * *needed.
 * Fails with E_UNAVAILABLE if there is no driver or no such device, E_UNSUPPORTED if this build has no engine whose
 * devices have descriptions. */
FXA_API FXA_CHECKED fxa_status fxa_device_description(fxa_context *ctx, fxa_device device, int32_t ordinal, char *out,
                                                      size_t capacity, size_t *needed, fxa_error *err);

/* ---- Tiles ------------------------------------------------------------------------------------------------------ */

/* Class of a tile of (row, key) pairs: whether the mask is false or true for all of the tile's pairs. */
typedef enum fxa_tile_class {
    FXA_TILE_EMPTY = 0, /* the mask is false everywhere: the tile is skipped */
    FXA_TILE_MIXED = 1, /* neither EMPTY nor FULL is proven */
    FXA_TILE_FULL = 2,  /* the mask is true everywhere */
    FXA_TILE_FORCE_INT32 = 0x7fffffff
} fxa_tile_class;

/* Bounds of the elements of a captured int tensor, for the analysis of masks that read the tensor. */
typedef struct fxa_tensor_range {
    int32_t known;         /* 1 = all elements are in lo..hi, after i64 elements are saturated to 32 bits */
    int32_t nondecreasing; /* 1 = rank 1, and no element is less than the one before it */
    int32_t lo;            /* smallest element */
    int32_t hi;            /* largest element */
    const fxa_view *view;  /* the tensor, whose elements may be read; NULL = not available */
} fxa_tensor_range;

/* Smallest and largest value that each program input has among the (row, key) pairs of a tile. */
typedef struct fxa_tile_bounds {
    int32_t lo[FXA_INPUT_COUNT]; /* smallest value of each fxa_input; elements SCORE and DSCORE are ignored */
    int32_t hi[FXA_INPUT_COUNT]; /* largest value of each fxa_input; elements SCORE and DSCORE are ignored */
} fxa_tile_bounds;
/* Returns the class of the tile by interval analysis of the mask. EMPTY and FULL are proven; MIXED includes tiles for
 * which the analysis is too weak. params, tensors: one element per param and tensor of the program; NULL = unknown
 * values. */
FXA_API fxa_tile_class fxa_program_classify(const fxa_program *program, const fxa_tile_bounds *box,
                                            const double *params, const fxa_tensor_range *tensors);

/* Reads an int or bool tensor of rank 1 and returns its range and order; `known` is 0 for other tensors. The result has
 * a pointer to *view. */
FXA_API fxa_tensor_range fxa_tensor_scan(const fxa_view *view);

typedef struct fxa_tile_counts {
    uint64_t empty;   /* number of tiles where the mask is false for all (row, key) pairs */
    uint64_t mixed;   /* number of tiles that are proven neither empty nor full */
    uint64_t full;    /* number of tiles where the mask is true for all (row, key) pairs */
    uint64_t unknown; /* number of tiles that were not classified; 0 = the other counts are complete */
} fxa_tile_counts;

/* Counts the tiles of tile_q rows and tile_k keys of head h of batch entry b (local indices). A partial tile at an edge
 * counts as one tile. Where the program sets the score to -inf under a condition that does not read the score, the pair
 * counts as masked.
 *
 * A MIXED tile of at most 1,024 (row, key) pairs is evaluated pair by pair, if params and the `view` of all tensors are
 * given, the mask does not read the score, and all lengths and coordinates are known without the arguments of a run.
 *
 * The time grows with the number of tiles at boundaries between empty and full areas, not with the number of all tiles.
 * A count stops after a fixed amount of work, a few seconds at most; the remaining tiles are `unknown`. Memory is
 * constant. */
FXA_API FXA_CHECKED fxa_status fxa_tiles_count(fxa_context *ctx, const fxa_problem *problem, int64_t b, int64_t h,
                                               int64_t tile_q, int64_t tile_k, const double *params,
                                               const fxa_tensor_range *tensors, fxa_tile_counts *out, fxa_error *err);

#ifdef __cplusplus
}
#endif
#endif
