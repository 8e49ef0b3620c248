/* SPDX-License-Identifier: Apache-2.0
 *
 * State of one run, shared by the files of host/: buffers of the workspace (host/workspace.c), arguments of the kernels
 * (host/arguments.c, host/tensor_maps.c) and launches (host/launch.c, host/forward.c, host/backward.c, host/decode.c).
 * All of it is on the stack of fxa__cuda_run, which allocates nothing.
 */
#ifndef FXA_ENGINE_CUDA_HOST_CALL_H
#define FXA_ENGINE_CUDA_HOST_CALL_H

#include "../../../base/carve.h"
#include "../cuda.h"

/* A tile list: for each query tile (or key tile), the tiles that the mask does not exclude (struct FxaTileList). */
typedef struct fxa__cuda_tile_list {
    int32_t *items;          /* [batch, heads, cut.rows, pitch]; NULL = there is no list, all tiles are computed */
    int32_t *counts;         /* [batch, heads, cut.rows, 2] {partial tiles, all tiles} of a row of `items` */
    struct FxaListShape cut; /* size and number of the tiles */
    int32_t heads, batch;    /* heads and batch entries with rows of their own; 1 = all share rows */
    int32_t pitch;           /* ints of a row of `items` */
    bool is_written;         /* the list was written when the plan was created (host/plan_tables.c), no run writes it */
} fxa__cuda_tile_list;

/* A captured tensor that depends on the row alone or the key alone, packed: a 32-bit word per position, and {minimum,
 * maximum} of every 64 positions (struct FxaOperand). */
typedef struct fxa__cuda_packed_operand {
    int32_t *data, *ranges; /* [batch, heads, pitch] words; [batch, heads, pitch / 64, 2] {minimum, maximum} */
    int64_t pitch;          /* words of a row of `data`, including padding */
    int64_t length;         /* positions of a row: queries or keys */
    int32_t heads, batch;   /* heads and batch entries with rows of their own; 1 = all share rows */
    int32_t node;           /* node that loads the tensor; -1 = nothing is packed */
} fxa__cuda_packed_operand;

/* Diagonal rows: tables of values that depend on b, h and q - k alone (struct FxaDiagonal). */
typedef struct fxa__cuda_diagonal_rows {
    float *data;          /* [batch, heads, pitch] */
    int64_t pitch;        /* floats of a row */
    int32_t heads, batch; /* heads and batch entries with rows of their own; 1 = all share rows */
    int32_t zero;         /* index of q - k = 0 in a row */
    bool is_written;      /* the rows were written when the plan was created (host/plan_tables.c), no run writes them */
} fxa__cuda_diagonal_rows;

/* Partial sums of the gradients of captured tensors and params. */
typedef struct fxa__cuda_captured_sums {
    float *sums;             /* [b, h, sum_rows, n_sums] partial sums, one row per warp */
    int64_t sum_rows;        /* warps that write to `sums`, per (b, h) */
    double *totals;          /* [b, h, n_sums] `sums` added over the warps */
    struct FxaExact *params; /* [n_sums] exact sums of `totals` over b and h, of gradients of params */
    void *parts;             /* [b, h, part_rows, part_size] sums along diagonals: f32, or FxaExact if exact */
    int32_t tiles;           /* key tiles of a (b, h) */
    int32_t part_rows;       /* rows of `parts`: `tiles`, or 1 = all key tiles add to one row of sq + sk elements */
    int32_t part_size;       /* elements of a row of `parts` */
    bool one_row;            /* true = part_rows is 1, because there are many key tiles or the sums are exact */
    /* true = the gradient of the dense tensor is written to the caller's memory; `dense` is not used */
    bool direct;
    uint16_t *dense; /* [b, h, q, pitch] gradient of the dense tensor (captured, an element per pair), 16-bit */
    int64_t pitch;   /* elements of a row of `dense` */
    float *tensor[FXA_CUDA_TENSORS]; /* contiguous sums of each tensor's gradient, f32 or FxaExact; NULL = none */
    int64_t count[FXA_CUDA_TENSORS]; /* elements of tensor[i] */
} fxa__cuda_captured_sums;

/* Number of coordinate axes: b, h, q, k. */
enum { FXA__CUDA_AXES = 4 };

/* Number of operands (Q, K, V, O, dO, dQ, dK, dV) that may have a copy in the workspace. */
enum { FXA__CUDA_COPIES = 8 };

/* Batch entries that use a page, for the gradients of paged K and V (common/paged_grads.cu). */
typedef struct fxa__cuda_page_users {
    int32_t *count; /* [n_pages] users of each page; 0 before the first launch */
    int32_t *used;  /* [1] length of `list`; 0 before the first launch */
    int32_t *end;   /* [n_pages] index in `list` after the page's last user */
    int32_t *list;  /* entries of the page table, sorted by page */
} fxa__cuda_page_users;

/* Buffers of a run in its workspace. */
typedef struct fxa__cuda_buffers {
    void *zero;           /* [zero_words] 32-bit words that are 0 before the first launch */
    size_t zero_words;    /* 32-bit words at `zero` */
    size_t counter_words; /* words at the start of `zero` that are counters, which every run leaves at 0 */
    uint32_t *next_tile;  /* counter of the tile scheduler: the next tile or work item to compute */
    int32_t *recompute;   /* [query tiles] 1 + CTA that recomputes the tile, 0 = none; decode: flags of work items */
    float *no_sink;       /* [hq] zeros: sink scores for FXA_SINK_ZERO */
    fxa__cuda_packed_operand operand[2]; /* [0] row operand (a word per query), [1] key operand */
    fxa__cuda_diagonal_rows diagonal;
    int32_t *ranges[FXA_CUDA_RANGES]; /* tables of {minimum, maximum}; NULL = the captured tensor is too large */
    fxa__cuda_tile_list queries;      /* a row per query tile: forward, decode, dQ */
    fxa__cuda_tile_list keys;         /* a row per key tile: backward */
    float *lse, *lse2, *delta;        /* per row: LSE; LSE in base 2; delta = dO . O - dLSE */
    float *grad_q_sum;                /* f32 sum to which key tiles add dQ */
    int32_t *first_share;             /* per 64 rows of dQ: how much of the rows' sum is stored (FxaArgs.first_share) */
    /* FxaArgs.sent: [0] query blocks that the postprocess has taken; [1 ...] warps that have added all their dQ, per
     * (b, KV head) */
    uint32_t *reduced;
    float *sink, *grad_sink;      /* converted sinks and gradients of sinks; NULL = kernels use the caller's arrays */
    void *copy[FXA__CUDA_COPIES]; /* converted operands; dK or dV that kernels write and the caller did not request */
    float *partial, *partial_ml;  /* decode, [items]: O of a work item; {maximum, sum} of each of its rows */
    int *coordinates[FXA__CUDA_AXES];  /* mapped coordinates that dropout reads; NULL = dropout uses local indices */
    int32_t splits;                    /* decode: number of splits (parts of the keys) of a (b, KV head) */
    int32_t item_splits;               /* decode: number of splits of a work item */
    int32_t items;                     /* decode: number of work items */
    int32_t cut[FXA_CUDA_DECODE_CUTS]; /* decode: cut[i] (b, KV head)s have items of item_splits >> (i + 1) splits */
    fxa__cuda_captured_sums captured;
    fxa__cuda_page_users users;
    int32_t q_pad;    /* sq rounded up to a multiple of 128 */
    int32_t pad_rows; /* rows of a head in lse2, delta and grad_q_sum */
} fxa__cuda_buffers;

/* Lays out the buffers of a run in the memory of the arena `c`; an arena without memory only counts bytes. Returns the
 * bytes of all buffers; UINT64_MAX = the number does not fit in 64 bits. */
uint64_t fxa__cuda_buffers_make(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                                const fxa__cuda_program *program, const fxa__problem *p, fxa__carver c,
                                fxa__cuda_buffers *out);

/* State of one run. */
typedef struct fxa__cuda_call {
    const fxa__cuda_self *self;
    const fxa__cuda_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa_error *err;
    /* true = the stream's last work is a kernel of this run, and the next kernel may start before that kernel ends */
    bool follows_kernel;
    bool packing_due; /* true = the launch that writes the next tile list also packs row and key operands */
    fxa__cuda_buffers at;
    fxa_view tensors[FXA_CUDA_TENSORS]; /* [program->n_tensors] tensors of the program (fxa__cuda_program.source) */
    _Alignas(128) struct FxaMaps maps;  /* tensor maps; the driver requires alignment 64 */
    struct FxaArgs a;
} fxa__cuda_call;

/* Q, K, V, O or a gradient of them, as kernels and tensor maps read it. */
typedef struct fxa__cuda_operand {
    struct FxaView view;
    int64_t size[4]; /* b, h, s, d */
} fxa__cuda_operand;

/* A grid of CTAs. */
typedef struct fxa__cuda_grid {
    int64_t x, y, z;
} fxa__cuda_grid;

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* host/plan_tables.c: replaces tile lists and diagonal rows in the workspace by those written with the plan. */
void fxa__cuda_plan_tables_use(fxa__cuda_call *c);
/* host/counters.c: replaces the workspace's counters by a part of the instance's counters, if the workspace has a part
 * or a part is free. */
void fxa__cuda_counters_use(fxa__cuda_call *c);

/* ---- host/arguments.c -------------------------------------------------------------------------------------------- */

/* Sets all members of c->a except the tile list and members that only some launches set. */
void fxa__cuda_args_make(fxa__cuda_call *c);
/* Returns the scale that the unit (the uniform factor of the score) contains: the run's scale; with finite_factors its
 * absolute value, or 1 if the scale is 0. */
double fxa__cuda_unit_scale(const fxa__cuda_call *c);
/* Returns the caller's operand of a slot. */
fxa__cuda_operand fxa__cuda_operand_given(const fxa__cuda_call *c, fxa_slot slot);
/* Returns the operand that kernels use for a slot: the caller's, or its copy in the workspace. */
fxa__cuda_operand fxa__cuda_operand_of(const fxa__cuda_call *c, fxa_slot slot);
/* Sets c->a.list; all tiles are computed if list->items is NULL. */
void fxa__cuda_args_tile_list(fxa__cuda_call *c, const fxa__cuda_tile_list *list);
/* Returns the constants by which kernels divide by `by`; by 1 if `by` is 0. */
struct FxaDivisor fxa__cuda_divisor(int64_t by);
/* Sets the number of query tiles of q_rows rows, and the order in which they are computed. */
void fxa__cuda_args_query_order(fxa__cuda_call *c, int32_t q_rows);
/* For dQ summed in a fixed order: sets for how many (b, KV head)s the key tiles run at the same time, so that Q, dO and
 * the sums of dQ of these heads stay in the L2 cache. */
void fxa__cuda_args_dq_order(fxa__cuda_call *c);

/* ---- host/tensor_maps.c ------------------------------------------------------------------------------------------ */

/* Encodes the tensor map of a slot, with boxes of `rows` rows. Returns E_ENGINE if the driver refuses it. */
fxa_status fxa__cuda_tensor_map(fxa__cuda_call *c, fxa_slot slot, int32_t rows, struct FxaMap *out);
/* Encodes the tensor map of `view` [b, h, q, k]. whole: false = batch entries or heads share elements if their stride
 * is 0. */
fxa_status fxa__cuda_tensor_map_dense(fxa__cuda_call *c, const struct FxaView *view, bool whole, int32_t rows,
                                      struct FxaMap *out);

/* ---- host/launch.c ----------------------------------------------------------------------------------------------- */

/* Launches kernel `function` of a compiled source file. threads: threads of a CTA without dynamic shared memory; 0 =
 * threads and shared memory of the file's tile shape. */
fxa_status fxa__cuda_launch(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid, int32_t threads,
                            void **params);
/* Launches an attention kernel: its params are c->a, and c->maps if the family has tensor maps. */
fxa_status fxa__cuda_launch_main(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid);
/* Launches an attention kernel whose work is query tiles: forward or dQ. */
fxa_status fxa__cuda_launch_query_tiles(fxa__cuda_call *c, fxa__cuda_unit unit, int function);
/* Sets `words` 32-bit words at `at` to 0, before later launches of the stream. */
fxa_status fxa__cuda_clear(fxa__cuda_call *c, void *at, size_t words);
/* Launches the kernels before the attention kernels: clears buffers, packs row and key operands, writes tables of
 * ranges and diagonal rows. first: the tile list that is written next; if possible, the launch that writes it also
 * packs the operands (c->packing_due). NULL = none. */
fxa_status fxa__cuda_prepasses(fxa__cuda_call *c, const fxa__cuda_tile_list *first);
/* Launches the kernel that writes the diagonal rows; nothing if they were written with the plan. */
fxa_status fxa__cuda_diagonal_write(fxa__cuda_call *c, const fxa__cuda_diagonal_rows *rows);
/* Launches the kernel that writes a tile list; nothing if there is no list, or if it was written with the plan. */
fxa_status fxa__cuda_tile_list_write(fxa__cuda_call *c, const fxa__cuda_tile_list *list);

/* ---- Launches of other units ------------------------------------------------------------------------------------- */

/* host/dropout_coordinates.c: returns the number of elements of fxa__cuda_buffers.coordinates[axis]. */
int64_t fxa__cuda_coordinate_count(const fxa_problem *p, int axis);
/* Launches the kernels that write fxa__cuda_buffers.coordinates. */
fxa_status fxa__cuda_dropout_coordinates_write(fxa__cuda_call *c);

/* host/convert.c: returns the index of a slot's copy in fxa__cuda_buffers.copy; -1 = the slot never has one. */
int fxa__cuda_copy_of_slot(fxa_slot slot);
/* Returns the slot of fxa__cuda_buffers.copy[copy]. */
fxa_slot fxa__cuda_slot_of_copy(int copy);
/* Writes the sizes b, h, s, d of a slot's operand. */
void fxa__cuda_operand_sizes(const fxa_problem *p, fxa_slot slot, int64_t size[4]);
/* Launch the conversions of inputs before the attention kernels, and of results after them. */
fxa_status fxa__cuda_convert_inputs(fxa__cuda_call *c);
fxa_status fxa__cuda_convert_results(fxa__cuda_call *c);

/* host/paged_grads.c: returns true if a backward pass gathers pages of K and V into the workspace. */
bool fxa__cuda_has_gathered_pages(const fxa_problem *p);
/* Gathers pages of K or V into the workspace. s: the conversion from the pages to the copy. */
fxa_status fxa__cuda_pages_gather(fxa__cuda_call *c, struct FxaConvert *s);
/* Lists the batch entries that use each page. */
fxa_status fxa__cuda_page_users_list(fxa__cuda_call *c);
/* Adds dK or dV of all batch entries to the caller's pages. s: the conversion from the copy to the pages. */
fxa_status fxa__cuda_pages_scatter(fxa__cuda_call *c, struct FxaConvert *s);

/* host/captured_grads.c: sets the arguments of the backward kernels for gradients of captured tensors and params. */
void fxa__cuda_captured_grads_args(fxa__cuda_call *c);
/* Returns true if the backward kernel writes the gradient of the dense tensor (captured, an element per pair) straight
 * to the caller's memory. */
bool fxa__cuda_is_dense_grad_direct(const fxa__cuda_choice *choice, const fxa__cuda_program *program,
                                    const fxa_problem *p);
/* Clears the caller's gradient of the dense tensor if the backward kernel writes straight to it but skips tiles. */
fxa_status fxa__cuda_captured_grads_begin(fxa__cuda_call *c);
/* Sums and stores the gradients of captured tensors and params, after the backward kernel. */
fxa_status fxa__cuda_captured_grads_store(fxa__cuda_call *c);

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Launch all kernels of a forward, backward or decode run. */
fxa_status fxa__cuda_forward(fxa__cuda_call *c);
fxa_status fxa__cuda_backward(fxa__cuda_call *c);
fxa_status fxa__cuda_decode(fxa__cuda_call *c);
/* host/decode.c: divides the work of decode into items, for tiles of `shape`: sets splits, item_splits, items and cut
 * of *out. */
void fxa__cuda_decode_split(const fxa__cuda_self *self, const struct FxaTraits *traits, const fxa_problem *p,
                            const struct FxaTileShape *shape, fxa__cuda_buffers *out);

#endif
