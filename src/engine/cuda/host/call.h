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

/* A tile list: for each query tile, the key tiles that the mask does not exclude, or for each key tile, the query tiles
 * (struct FxaTileList). */
typedef struct fxa__cuda_tile_list {
    int32_t *items;          /* [batch, heads, cut.rows, pitch]; NULL = there is no list, all tiles are computed */
    int32_t *counts;         /* [batch, heads, cut.rows, 2] numbers of {partial tiles, all tiles} in a row of `items` */
    struct FxaListShape cut; /* size and number of the tiles */
    int32_t heads, batch;    /* numbers of heads and of batch entries that have separate rows; 1 = all share rows */
    int32_t pitch;           /* ints of a row of `items` */
    bool is_written;         /* the list was written when the plan was created (host/plan_tables.c), no run writes it */
} fxa__cuda_tile_list;

/* A captured tensor with one value per query or one per key, packed: a 32-bit word for each query or key, and {minimum,
 * maximum} of every 64 words (struct FxaOperand). */
typedef struct fxa__cuda_packed_operand {
    int32_t *data, *ranges; /* data: [batch, heads, pitch]; ranges: [batch, heads, pitch / 64] {minimum, maximum} */
    int64_t pitch;          /* words of a row of `data`, including padding */
    int64_t length;         /* words of a row without padding: number of queries or of keys */
    int32_t heads, batch;   /* numbers of heads and of batch entries that have separate rows; 1 = all share rows */
    int32_t node;           /* node that loads the tensor; -1 = nothing is packed */
} fxa__cuda_packed_operand;

/* Diagonal rows: tables of values that depend on b, h and q - k alone (struct FxaDiagonal). */
typedef struct fxa__cuda_diagonal_rows {
    float *data;          /* [batch, heads, pitch] */
    int64_t pitch;        /* floats of a row */
    int32_t heads, batch; /* numbers of heads and of batch entries that have separate rows; 1 = all share rows */
    int32_t zero;         /* index of q - k = 0 in a row */
    bool is_written;      /* the rows were written when the plan was created (host/plan_tables.c), no run writes them */
} fxa__cuda_diagonal_rows;

/* Partial sums of the gradients of captured tensors and params. */
typedef struct fxa__cuda_captured_sums {
    float *sums;             /* [b, h, sum_rows, n_sums] partial sums: a row for each warp of each key tile */
    int64_t sum_rows;        /* rows of `sums` for a (b, h): warps of all key tiles */
    double *totals;          /* [b, h, n_sums] sum of the sum_rows rows of `sums` */
    struct FxaExact *params; /* [n_sums] gradients of params: exact sums of `totals` over b and h */
    void *parts;             /* [b, h, part_rows, part_size] sums of dS along diagonals: f32 or FxaExact */
    int32_t tiles;           /* key tiles of a (b, h) */
    int32_t part_rows;       /* rows of `parts`: `tiles`, or 1 = all key tiles add to one row of sq + sk elements */
    int32_t part_size;       /* elements of a row of `parts` */
    bool one_row;            /* true = all key tiles add to one row of `parts`: part_rows is 1 */
    /* true = the gradient of the dense tensor is written to the caller's memory; `dense` is not used */
    bool direct;
    uint16_t *dense; /* [b, h, q, pitch] gradient of the dense tensor (captured, an element per (q, k)), 16-bit */
    int64_t pitch;   /* elements of a row of `dense` */
    float *tensor[FXA_CUDA_TENSORS]; /* contiguous sums of each tensor's gradient, f32 or FxaExact; NULL = none */
    int64_t count[FXA_CUDA_TENSORS]; /* elements of tensor[i] */
} fxa__cuda_captured_sums;

/* Number of coordinate axes: b, h, q, k. */
enum { FXA__CUDA_AXES = 4 };

/* Number of operands (Q, K, V, O, dO, dQ, dK, dV) that may have a copy in the workspace. */
enum { FXA__CUDA_COPIES = 8 };

/* For each page, the entries of the page table that use the page: common/paged_grads.cu adds the gradients of these
 * entries. */
typedef struct fxa__cuda_page_users {
    int32_t *count; /* [n_pages] number of entries that use each page; 0 before the first launch */
    int32_t *used;  /* [1] length of `list`; 0 before the first launch */
    int32_t *end;   /* [n_pages] index in `list` after the last entry that uses the page */
    int32_t *list;  /* entries of the page table, grouped by page */
} fxa__cuda_page_users;

/* Buffers in the workspace of a run. */
typedef struct fxa__cuda_buffers {
    void *zero;           /* [zero_words] 32-bit words that are 0 before the first launch */
    size_t zero_words;    /* 32-bit words at `zero` */
    size_t counter_words; /* words at the start of `zero` that are counters, which every run leaves at 0 */
    uint32_t *next_tile;  /* counter of the tile scheduler: the next tile or work item to compute */
    /* forward, dQ: [query tiles] 1 + index of the CTA that recomputes the tile; 0 = none
     * decode: a flag for each stored work item, then a list of work items to recompute */
    int32_t *recompute;
    float *no_sink;                      /* [hq] zeros: sink scores for FXA_SINK_ZERO */
    fxa__cuda_packed_operand operand[2]; /* captured tensors: [0] with a value per query, [1] per key */
    fxa__cuda_diagonal_rows diagonal;
    int32_t *ranges[FXA_CUDA_RANGES]; /* {minimum, maximum} along an axis of a captured tensor; NULL = not computed */
    fxa__cuda_tile_list queries;      /* list for forward, decode and dQ: a row per query tile */
    fxa__cuda_tile_list keys;         /* list for the backward kernel: a row per key tile */
    float *lse, *lse2, *delta;        /* per row: LSE; LSE in base 2; delta = dO . O - dLSE */
    float *grad_q_sum;                /* f32 sum to which key tiles add dQ */
    int32_t *first_share;             /* per 64 rows of dQ: progress of their sum in grad_q_sum (FxaArgs.first_share) */
    /* passed as FxaArgs.sent:
     * [0] number of query blocks that the postprocess has taken
     * [1 + i] for (b, KV head) i: number of warps that have added all their dQ */
    uint32_t *reduced;
    float *sink, *grad_sink; /* converted sinks and gradients of sinks; NULL = kernels use the caller's arrays */
    /* operands in the workspace that kernels use instead of the caller's, or that the caller did not pass (a dK or dV
     * that is not requested); NULL = kernels use the caller's */
    void *copy[FXA__CUDA_COPIES];
    float *partial, *partial_ml;      /* decode, per work item: partial O; {maximum, sum} of each row of partial O */
    int *coordinates[FXA__CUDA_AXES]; /* mapped coordinates that dropout reads; NULL = dropout uses local indices */
    int32_t splits;                   /* decode: number of splits (parts of the keys) of a (b, KV head) */
    int32_t item_splits;              /* decode: number of splits (parts of the keys) of a work item */
    int32_t items;                    /* decode: number of work items */
    /* decode: cut[i] = number of (b, KV head)s whose work items have item_splits / 2^(i + 1) splits, not item_splits */
    int32_t cut[FXA_CUDA_DECODE_CUTS];
    fxa__cuda_captured_sums captured;
    fxa__cuda_page_users users;
    int32_t q_pad;    /* sq rounded up to a multiple of 128 */
    int32_t pad_rows; /* rows of a head in lse2, delta and grad_q_sum, including padding */
} fxa__cuda_buffers;

/* Lays out the buffers of a run in the memory of the arena `c`; an arena without memory only counts bytes. Returns the
 * bytes of all buffers; UINT64_MAX = the number does not fit in 64 bits. */
uint64_t fxa__cuda_buffers_make(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                                const fxa__cuda_program *program, const fxa__problem *p, fxa__carver c,
                                fxa__cuda_buffers *out);

/* Q, K, V, O or a gradient of them, as kernels and tensor maps read it. */
typedef struct fxa__cuda_operand {
    struct FxaView view;
    int64_t size[4]; /* b, h, s, d */
} fxa__cuda_operand;

/* State of one run. */
typedef struct fxa__cuda_call {
    const fxa__cuda_self *self;
    const fxa__cuda_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa_error *err;
    /* true = the stream's last work is a kernel of this run, and the next kernel may start before that kernel ends */
    bool follows_kernel;
    bool packing_due; /* true = the launch that writes the next tile list also packs at.operand */
    fxa__cuda_buffers at;
    /* [fxa_slot] Q, K, V, O and, in the backward pass, their gradients: the caller's operand, or its copy in the
     * workspace */
    fxa__cuda_operand operand[FXA_SLOT_DV + 1];
    fxa_view tensors[FXA_CUDA_TENSORS]; /* [program->n_tensors] tensors of the program (fxa__cuda_program.source) */
    _Alignas(128) struct FxaMaps maps;  /* tensor maps; the driver requires alignment 64 */
    struct FxaArgs a;
} fxa__cuda_call;

/* A grid of CTAs. */
typedef struct fxa__cuda_grid {
    int64_t x, y, z;
} fxa__cuda_grid;

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* host/plan_tables.c: replaces tile lists and diagonal rows in the workspace by those that were written when the
 * plan was created. */
void fxa__cuda_plan_tables_use(fxa__cuda_call *c);
/* host/counters.c: replaces the counters in the workspace by the part of self->counters that this workspace owns, or by
 * a free part, which the workspace then owns. If there is none, the counters stay in the workspace. */
void fxa__cuda_counters_use(fxa__cuda_call *c);

/* ---- host/arguments.c -------------------------------------------------------------------------------------------- */

/* Sets c->operand, and all members of c->a except the tile list and members that only some launches set. */
void fxa__cuda_args_make(fxa__cuda_call *c);
/* Returns the scale in unit(), the factor of the score by which kernels multiply: the run's scale. If finite_factors is
 * set, unit() must be > 0, so -scale replaces a scale < 0, and 1 replaces a scale of 0. */
double fxa__cuda_unit_scale(const fxa__cuda_call *c);
/* Returns the caller's operand of a slot. */
fxa__cuda_operand fxa__cuda_operand_given(const fxa__cuda_call *c, fxa_slot slot);
/* Sets c->a.list; all tiles are computed if list->items is NULL. */
void fxa__cuda_args_tile_list(fxa__cuda_call *c, const fxa__cuda_tile_list *list);
/* Returns the constants with which kernels divide a number by `by` (struct FxaDivisor); 0 counts as 1. */
struct FxaDivisor fxa__cuda_divisor(int64_t by);
/* Sets the number of query tiles of q_rows rows, and the order in which they are computed. */
void fxa__cuda_args_query_order(fxa__cuda_call *c, int32_t q_rows);
/* For dQ summed in a fixed order: sets for how many (b, KV head)s the key tiles run at the same time, so that Q, dO and
 * the sums of dQ of these heads stay in the L2 cache. */
void fxa__cuda_args_dq_order(fxa__cuda_call *c);

/* ---- host/tensor_maps.c ------------------------------------------------------------------------------------------ */

/* Encodes the tensor map of a slot, with boxes of `rows` rows. Returns E_ENGINE if the driver refuses it. */
fxa_status fxa__cuda_tensor_map(fxa__cuda_call *c, fxa_slot slot, int32_t rows, struct FxaMap *out);
/* Encodes the tensor map of `view` [b, h, q, k], with boxes of `rows` rows. whole: false = an axis b or h whose stride
 * is 0 has size 1 in the map. */
fxa_status fxa__cuda_tensor_map_dense(fxa__cuda_call *c, const struct FxaView *view, bool whole, int32_t rows,
                                      struct FxaMap *out);

/* ---- host/launch.c ----------------------------------------------------------------------------------------------- */

/* Launches kernel `function` of a compiled source file. threads: number of threads of a CTA, which then has no dynamic
 * shared memory; 0 = threads and shared memory of the file's tile shape. */
fxa_status fxa__cuda_launch(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid, int32_t threads,
                            void **params);
/* Launches an attention kernel. The params of the kernel: c->maps if it uses TMA, then c->a. */
fxa_status fxa__cuda_launch_main(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid);
/* Launches an attention kernel whose work is query tiles: forward or dQ. */
fxa_status fxa__cuda_launch_query_tiles(fxa__cuda_call *c, fxa__cuda_unit unit, int function);
/* Adds to the run's stream an operation that sets `words` 32-bit words at `at` to 0. */
fxa_status fxa__cuda_clear(fxa__cuda_call *c, void *at, size_t words);
/* Launches the kernels before the attention kernels: they clear buffers, pack c->at.operand, and write c->at.ranges and
 * c->at.diagonal. first: the tile list that is written next; NULL = none. If possible, packing is left to the launch
 * that writes this list (c->packing_due). */
fxa_status fxa__cuda_prepasses(fxa__cuda_call *c, const fxa__cuda_tile_list *first);
/* Launches the kernel that writes the diagonal rows; nothing if they were written when the plan was created. */
fxa_status fxa__cuda_diagonal_write(fxa__cuda_call *c, const fxa__cuda_diagonal_rows *rows);
/* Launches the kernel that writes a tile list; nothing if list->items is NULL or the list was written when the plan was
 * created. */
fxa_status fxa__cuda_tile_list_write(fxa__cuda_call *c, const fxa__cuda_tile_list *list);

/* ---- Launches of other units ------------------------------------------------------------------------------------- */

/* host/dropout_coordinates.c: returns the number of elements of fxa__cuda_buffers.coordinates[axis]. */
int64_t fxa__cuda_coordinate_count(const fxa_problem *p, int axis);
/* Launches the kernels that write fxa__cuda_buffers.coordinates; traits.dropout must be 2. */
fxa_status fxa__cuda_dropout_coordinates_write(fxa__cuda_call *c);

/* host/convert.c: returns the index of a slot's copy in fxa__cuda_buffers.copy; -1 = the slot never has one. */
int fxa__cuda_copy_of_slot(fxa_slot slot);
/* Returns the slot of fxa__cuda_buffers.copy[copy]. */
fxa_slot fxa__cuda_slot_of_copy(int copy);
/* Writes the sizes b, h, s, d of a slot's operand. */
void fxa__cuda_operand_sizes(const fxa_problem *p, fxa_slot slot, int64_t size[4]);
/* Launch the conversions of inputs before the attention kernels, and of results after them; choice.converts must be
 * true. */
fxa_status fxa__cuda_convert_inputs(fxa__cuda_call *c);
fxa_status fxa__cuda_convert_results(fxa__cuda_call *c);

/* host/paged_grads.c: returns true if a backward pass gathers pages of K and V into the workspace. */
bool fxa__cuda_has_gathered_pages(const fxa_problem *p);
/* Gathers pages of K or V into the workspace. s: the conversion from the pages to the workspace. */
fxa_status fxa__cuda_pages_gather(fxa__cuda_call *c, struct FxaConvert *s);
/* Lists, for each page, the entries of the page table that use the page. */
fxa_status fxa__cuda_page_users_list(fxa__cuda_call *c);
/* Adds dK or dV of all batch entries to the caller's pages. s: the conversion from the workspace to the pages. */
fxa_status fxa__cuda_pages_scatter(fxa__cuda_call *c, struct FxaConvert *s);

/* host/captured_grads.c: sets the arguments of the backward kernels for gradients of captured tensors and params. */
void fxa__cuda_captured_grads_args(fxa__cuda_call *c);
/* Returns true if the backward kernel writes the gradient of the dense tensor (captured, an element per (q, k))
 * straight to the caller's memory. */
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
