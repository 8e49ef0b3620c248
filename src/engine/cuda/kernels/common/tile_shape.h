/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile shapes of the attention kernels: one function of FxaTraits per kernel. The kernel calls it at compile time; the
 * host calls it to lay out the workspace, tile lists and launches. The file is the common subset of C11 and C++17. Each
 * kernel lays out its shared memory in a file of its own (sm90/forward_shared.cuh and others) and asserts that its size
 * is launch.shared_bytes. args.h and traits.h are included before it: their paths differ between host and NVRTC.
 */
#ifndef FXA_CUDA_COMMON_TILE_SHAPE_H
#define FXA_CUDA_COMMON_TILE_SHAPE_H

#ifdef __cplusplus
#define FXA_SHAPE_FN constexpr static
#else
#define FXA_SHAPE_FN static inline
#endif

enum {
    FXA_PAD_ROWS = 128,         /* the backward's workspace pads batch entries to a multiple of this number of rows */
    FXA_DQ_SHARE_ROWS = 64,     /* rows of dQ per element of FxaArgs.first_share */
    FXA_DECODE_MAX_SPLITS = 64, /* maximum splits of the keys of a (b, KV head) in decode */
    FXA_DECODE_MAX_RUN = 16,    /* maximum splits of a decode work item: 2^RUN_LEVELS (decode_combine.cuh) */
    FXA_SHAPE_BARRIER = 16,     /* bytes of a pipeline stage's two barriers: Ring<1>::bytes */
    FXA_SHAPE_SLOT = 48,        /* bytes of a query tile's coordinates in shared memory: TileSlot::bytes */
    FXA_SHAPE_ALIGN = 1024,     /* bytes that align the base of dynamic shared memory */
    FXA_SHAPE_SPARE = 1536      /* bytes kept free for alignment and barriers when the host checks if a tile fits */
};

/* Tile sizes of an attention kernel, and the properties of the kernel that the host reads. A member that the kernel
 * does not use is 0. */
struct FxaTileShape {
    struct FxaShape launch; /* launch shape, which the module exports as KERNEL_shape */
    int fits;               /* 0 = no tile fits in shared memory: the kernel does not run the problem */
    int groups;             /* sm90: consumer warpgroups */
    /* sm90: pipeline stages. Forward and decode: of K and V; backward: of Q and dO; dQ kernel: of K */
    int stages;
    int v_stages;           /* dQ kernel of sm90: pipeline stages of V */
    int q_buffers;          /* forward of sm90: buffers of Q */
    int dq_columns;         /* backward of sm90: columns of dQ (head dim) that a warpgroup computes */
    int dq_writers;         /* backward: warps of a CTA that alternate in adding to dQ (FxaArgs.sent_all) */
    int query_parts;        /* number of 64-row parts of a tile that tile lists mark as skipped or full; 0 = no marks */
    int first_share_stores; /* backward: 1 = a query block's first partial dQ is stored, later ones are added to it */
    int signals_dq;         /* backward: 1 = a warp that has added all its dQ increments a counter of FxaArgs.sent */
    int folds;              /* decode: 1 = a work item can have several splits, which threads sum in registers */
};

/* Returns the elements of a tile's row of head dim d in shared memory: d rounded up to swizzled rows of 64 elements. */
FXA_SHAPE_FN int fxa_stored_columns(int d) { return (d + 63) / 64 * 64; }

/* Returns the bytes in shared memory of a tile with `rows` rows of head dim d, 16-bit elements. */
FXA_SHAPE_FN int fxa_tile_bytes(int rows, int d) { return rows * fxa_stored_columns(d) * 2; }

FXA_SHAPE_FN int fxa_is_small(struct FxaTraits t) { return t.d <= 64 && t.dv <= 64; }
FXA_SHAPE_FN int fxa_is_wide(struct FxaTraits t) { return t.d > 128 || t.dv > 128; }

/* ---- sm90 -------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of the forward's buffers in shared memory: Q (O replaces it), K, V, and the inputs of the score
 * program: tiles of the dense tensor, entries of the diagonal row, words of FxaOperands. */
FXA_SHAPE_FN int fxa_forward_sm90_buffers(struct FxaTraits t, struct FxaTileShape s, int keys, int q_buffers) {
    int rows = s.launch.q_rows, q_bytes = fxa_tile_bytes(rows, t.d > t.dv ? t.d : t.dv);
    int bytes = q_buffers * q_bytes + s.stages * (fxa_tile_bytes(keys, t.d) + fxa_tile_bytes(keys, t.dv));
    if (t.dense) bytes += 2 * rows * keys * 2;
    if (t.diagonal) bytes += 2 * s.stages * (rows + keys) * 4;
    if (t.operands) bytes += (2 * s.stages * keys + q_buffers * rows) * 4;
    return bytes;
}

FXA_SHAPE_FN int fxa_forward_sm90_fits(struct FxaTraits t, struct FxaTileShape s, int keys, int q_buffers) {
    return fxa_forward_sm90_buffers(t, s, keys, q_buffers) + FXA_SHAPE_SPARE <= t.shared_kb * 1024;
}

/* Returns the tiles of the forward of sm90. Above head dim 128 of V, the accumulators of O and of scores with 128 keys
 * do not fit in registers together. */
FXA_SHAPE_FN struct FxaTileShape fxa_forward_sm90(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    s.groups = fxa_is_small(t) && !t.dense && !t.dropout ? 3 : 2;
    s.stages = fxa_is_small(t) ? 3 : 2;
    s.launch.threads = 128 * (s.groups + 1);
    s.launch.q_rows = 64 * s.groups;
    s.launch.k_rows = t.dv <= 128 && fxa_forward_sm90_fits(t, s, 128, 1) ? 128 : 64;
    s.launch.store_rows = 16;
    s.launch.persistent = 1;
    s.launch.parts = 1;
    s.fits = fxa_forward_sm90_fits(t, s, s.launch.k_rows, 1);
    s.q_buffers = fxa_forward_sm90_fits(t, s, s.launch.k_rows, 2) ? 2 : 1;
    s.query_parts = s.groups == 3 ? 3 : 0;
    s.launch.shared_bytes = fxa_forward_sm90_buffers(t, s, s.launch.k_rows, s.q_buffers) +
                            FXA_SHAPE_BARRIER * (s.q_buffers + 2 * s.stages + 2) + FXA_SHAPE_SLOT * s.q_buffers +
                            8 * s.stages + 16 + FXA_SHAPE_ALIGN;
    return s;
}

/* Returns the tiles of the backward of sm90 up to head dim 128. Blocks of 128 queries fit in registers and shared
 * memory only if head dims are at most 64 and there is no dropout, no dense tensor, no PROG_DERIVATIVE and no gradient
 * of a captured tensor. */
FXA_SHAPE_FN struct FxaTileShape fxa_backward_sm90(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    int plain = !t.derivative && !t.dense && !t.grad_diagonal && !t.grad_sums && !t.grad_scatter;
    int rows = fxa_is_small(t) && plain && !t.dropout ? 128 : 64, keys = 128, fused = !t.separate_dq;
    int ds = fused || t.grad_dense || t.grad_diagonal;
    s.stages = 2;
    s.groups = 2;
    s.dq_columns = rows == 128 ? t.d : t.d > 64 ? 64 : 32;
    s.dq_writers = t.ordered_dq ? 2 : 1;
    s.launch.threads = 384;
    s.launch.q_rows = rows;
    s.launch.k_rows = keys;
    s.launch.store_rows = 16;
    s.launch.sum_rows = 8;
    s.launch.parts = 1;
    s.fits = 1;
    s.query_parts = t.mask && fused && !fxa_is_small(t) ? 2 : 0;
    s.first_share_stores = fused && (t.mask || t.varlen) && !t.grad_dense;
    /* At head dim 64 or less with varlen or FxaOperands, CTAs may have little work: counting in FxaArgs.sent is 2 to
     * 4 % slower there. */
    s.signals_dq = fused && !(fxa_is_small(t) && (t.varlen || t.pack_operands));
    s.launch.shared_bytes = fxa_tile_bytes(keys, t.d) + fxa_tile_bytes(keys, t.dv) +
                            2 * (fxa_tile_bytes(rows, t.d) + fxa_tile_bytes(rows, t.dv)) +
                            (ds ? 2 * rows * keys * 2 : 0) + (fused ? 2 * 64 * s.dq_columns * 4 : 0) +
                            (t.dense ? 2 * rows * keys * 2 : 0) + 2 * 2 * rows * 4 +
                            (t.operands ? 2 * (rows + keys) * 4 : 0) + FXA_SHAPE_BARRIER * (1 + 3 * s.stages) +
                            4 * s.stages + 8 + FXA_SHAPE_ALIGN;
    return s;
}

/* Returns true if shared memory suffices for a backward of sm90 that computes dQ in the same kernel: K and V tiles of
 * 128 keys, the buffers of dQ, and two stages of Q and dO blocks of 64 queries, dS and dense tensor. They always fit
 * without a dense tensor. At head dim 128, a dense tensor leaves no space for FxaOperands. */
FXA_SHAPE_FN int fxa_fused_dq_fits(struct FxaTraits t) {
    int columns = fxa_stored_columns(t.d) + fxa_stored_columns(t.dv), pairs = 64 * 128 * 2;
    int bytes = (128 + 2 * 64) * columns * 2 + 4 * pairs + 2 * 64 * (t.d > 64 ? 64 : 32) * 4 + 2 * 2 * 64 * 4;
    if (t.pack_operands) bytes += 2 * (64 + 128) * 4;
    return !t.dense || bytes + FXA_SHAPE_SPARE <= t.shared_kb * 1024;
}

/* Returns the tiles of the backward of sm90 above head dim 128, which computes dK and dV. */
FXA_SHAPE_FN struct FxaTileShape fxa_backward_wide_sm90(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    int side = 64;
    s.stages = 2;
    s.groups = 2;
    s.launch.threads = 384;
    s.launch.q_rows = s.launch.k_rows = side;
    s.launch.store_rows = 16;
    s.launch.parts = 1;
    s.dq_writers = 1;
    s.fits = 1;
    s.launch.shared_bytes = (1 + s.stages) * (fxa_tile_bytes(side, t.d) + fxa_tile_bytes(side, t.dv)) +
                            s.stages * (side * side * 2 + (t.dropout ? 512 : 0)) + s.stages * 2 * side * 4 +
                            FXA_SHAPE_BARRIER * (1 + 3 * s.stages) + 8 * s.stages + FXA_SHAPE_ALIGN;
    return s;
}

/* Returns the tiles of the dQ kernel of sm90. Up to head dim 128, Q and dO of a tile are loaded to registers, and
 * shared memory has a buffer for dQ. */
FXA_SHAPE_FN struct FxaTileShape fxa_dq_sm90(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    int rows = 128, keys = 64, registers = !fxa_is_wide(t);
    int q = fxa_tile_bytes(rows, t.d), grad_o = fxa_tile_bytes(rows, t.dv);
    int k = fxa_tile_bytes(keys, t.d), v = fxa_tile_bytes(keys, t.dv);
    s.stages = !registers || t.dense ? 2 : 4;
    s.v_stages = q + grad_o + 2 * (k + v) <= 220 * 1024 ? s.stages : 1;
    s.groups = 2;
    s.launch.threads = 384;
    s.launch.q_rows = rows;
    s.launch.k_rows = keys;
    s.launch.store_rows = 16;
    s.launch.persistent = 1;
    s.launch.parts = 1;
    s.fits = 1;
    s.launch.shared_bytes = q + grad_o + (registers ? q : 0) + s.stages * k + s.v_stages * v +
                            (t.dense && registers ? s.stages * rows * keys * 2 : 0) +
                            FXA_SHAPE_BARRIER * (1 + s.stages + s.v_stages) + FXA_SHAPE_SLOT + 4 * s.stages +
                            FXA_SHAPE_ALIGN;
    return s;
}

/* Returns the tiles of the decode kernel of sm90. Each warp computes a part of the keys of a tile
 * (sm90/decode_shared.cuh). With eight consumer warps, three idle warps are launched too, whose registers the consumers
 * take. */
FXA_SHAPE_FN struct FxaTileShape fxa_decode_sm90(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    int rows = 8 * t.row_tiles, keys = t.d + t.dv > 256 ? 64 : 128, row_parts = t.row_tiles < 2 ? 1 : t.row_tiles / 2;
    int key_parts = keys == 128 && row_parts == 1 ? 8 : 4, warps = key_parts * row_parts, workers = 32 * warps;
    int stage = fxa_tile_bytes(keys, t.d) + fxa_tile_bytes(keys, t.dv);
    int fixed = key_parts * rows * (t.dv * 4 + 8) + 256 + FXA_SHAPE_ALIGN;
    int max_stages = (t.shared_kb * 1024 - fixed) / stage;
    s.stages = max_stages < 8 ? max_stages : 8;
    s.launch.threads = warps == 8 ? 384 : workers + 32;
    s.launch.q_rows = rows;
    s.launch.k_rows = keys;
    s.launch.store_rows = 32;
    s.launch.persistent = 1;
    s.launch.parts = t.cluster ? t.cluster : 1;
    s.fits = s.stages >= 1;
    s.folds = rows * t.dv / 4 <= workers;
    s.launch.shared_bytes = s.stages * stage + fixed;
    return s;
}

/* ---- sm80 -------------------------------------------------------------------------------------------------------- */

/* Returns the tiles of the forward of sm80. A warp has 32 query rows, or 16 if registers do not hold 32. */
FXA_SHAPE_FN struct FxaTileShape fxa_forward_sm80(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    s.launch.threads = 128;
    s.launch.q_rows = !fxa_is_wide(t) && !t.dense ? 128 : 64;
    s.launch.k_rows = 64;
    s.launch.parts = 1;
    s.fits = 1;
    s.launch.shared_bytes = fxa_tile_bytes(s.launch.q_rows + s.launch.k_rows, t.d) +
                            fxa_tile_bytes(s.launch.k_rows, t.dv) + FXA_SHAPE_ALIGN;
    return s;
}

/* Returns the bytes of shared memory of the tiles of the backward of sm80: tiles of K and V have `keys` rows, tiles of
 * Q and dO `queries` rows, and a tile of dS has queries x keys elements. */
FXA_SHAPE_FN int fxa_backward_sm80_bytes(struct FxaTraits t, int keys, int queries) {
    return fxa_tile_bytes(keys + queries, t.d) + fxa_tile_bytes(keys + queries, t.dv) + fxa_tile_bytes(queries, keys) +
           FXA_SHAPE_ALIGN;
}

/* Returns the tiles of the backward of sm80. Where shared memory is small, tiles shrink: first the number of queries of
 * a block, so that as many warps as possible share K and V. Above head dim 128 two CTAs share a tile, each with half of
 * the head dim of dK, dV and dQ, because registers hold no more. */
FXA_SHAPE_FN struct FxaTileShape fxa_backward_sm80(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    int limit = t.shared_kb * 1024;
    int keys = fxa_backward_sm80_bytes(t, 128, 64) <= limit  ? 128
               : fxa_backward_sm80_bytes(t, 64, 32) <= limit ? 64
                                                             : 32;
    s.launch.threads = 2 * keys;
    s.launch.k_rows = keys;
    s.launch.q_rows = keys > 32 && fxa_backward_sm80_bytes(t, keys, 64) <= limit ? 64 : 32;
    s.launch.sum_rows = keys / 16;
    s.launch.parts = fxa_is_wide(t) ? 2 : 1;
    s.launch.shared_bytes = fxa_backward_sm80_bytes(t, keys, s.launch.q_rows);
    s.fits = s.launch.shared_bytes <= limit;
    s.dq_writers = 1;
    return s;
}

/* ---- SIMT kernels, and kernels that all families share ----------------------------------------------------------- */

/* Returns the tiles of the SIMT kernels, 64 queries x 64 keys. Shared memory holds one operand tile of 64 columns and
 * two tiles of weights. */
FXA_SHAPE_FN struct FxaTileShape fxa_forward_simt(struct FxaTraits t) {
    struct FxaTileShape s = {0};
    (void)t;
    s.launch.threads = 256;
    s.launch.q_rows = s.launch.k_rows = 64;
    s.launch.parts = 1;
    s.fits = 1;
    s.launch.shared_bytes = 4 * (2 * 64 * 36 + 2 * 64 * 68);
    return s;
}

FXA_SHAPE_FN struct FxaTileShape fxa_backward_simt(struct FxaTraits t) {
    struct FxaTileShape s = fxa_forward_simt(t);
    s.dq_writers = 1;
    s.launch.sum_rows = 8;
    return s;
}

/* Returns the tiles of the kernel before the backward (common/backward_prepost.cu): each row has 4, 8, 16 or 32
 * threads, depending on the head dim of V. */
FXA_SHAPE_FN struct FxaTileShape fxa_prepost(int dv) {
    struct FxaTileShape s = {0};
    int lanes = dv <= 32 ? 4 : dv <= 64 ? 8 : dv <= 128 ? 16 : 32;
    s.launch.threads = 256;
    s.launch.q_rows = 256 / lanes;
    s.launch.parts = 1;
    s.fits = 1;
    return s;
}

#endif
