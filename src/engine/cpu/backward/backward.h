/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass, between its files:
 *
 *   split.c           how the work is divided into tasks and chains, and the sizes of tiles and blocks
 *   workspace.c       memory of a run and of its workers
 *   run.c             tasks, their dQ, dK and dV, and the phases of a run
 *   tile.c            one key block and one row tile: five matrix products around the program
 *   score_row.c       one row of their scores: the program, forward and backward
 *   captured_sums.c   delta, sinks, and the sums of captured tensors and params
 *
 * A task is one kv group and one key split (see cpu.h). It loops over its key blocks, and for each block over the row
 * tiles of the kv group: dK and dV of a block stay in the cache until they are complete, and dQ is added to once per
 * block. Keys are split only if there are few kv groups. Each key split then has a dQ of its own, and these are added
 * in order.
 *
 * Tasks that add to the same sums are in one chain, and the tasks of a chain run one after the other: workers take
 * chains. Tasks and chains depend on shapes, dtypes and the instruction set alone, so results do not depend on the
 * number of threads.
 */
#ifndef FXA_ENGINE_CPU_BACKWARD_BACKWARD_H
#define FXA_ENGINE_CPU_BACKWARD_BACKWARD_H

#include "../mask/sub_blocks.h"
#include "../product/product.h"

/* ---- split.c ----------------------------------------------------------------------------------------------------- */

/* Axes along which tasks are in different chains. */
enum {
    FXA__CPU_CHAIN_BY_BATCH = 1,
    FXA__CPU_CHAIN_BY_HEAD = 2,
    FXA__CPU_CHAIN_BY_SPLIT = 4,
    FXA__CPU_CHAIN_BY_ALL = 7
};

enum {
    /* Rows of a tile, at most. Chosen by a measurement without kept figures. */
    FXA__CPU_BACKWARD_TILE_ROWS = 192,
    /* Product rows. On Zen 3, scores and dP of 12 rows stay in the first-level cache. */
    FXA__CPU_BACKWARD_PRODUCT_ROWS = 12
};

typedef struct fxa__cpu_backward_split {
    bool want_q, want_k, want_v;   /* gradients that the problem requests */
    bool want_sums;                /* gradients of captured tensors or params are requested */
    bool want_ds;                  /* dS is needed: for dQ, dK, sums or its amax */
    bool pool;                     /* dK and dV are summed over the whole pool of pages first */
    bool keeps_scores;             /* the derivative needs the scaled scores besides the probabilities */
    int64_t entries;               /* batch entries with work: b, or 0 */
    int64_t groups;                /* entries * hkv */
    int64_t rows;                  /* rows of a kv group, at most: heads * sq */
    int64_t tiles;                 /* row tiles of a kv group, at most */
    int64_t tile_rows;             /* rows of a tile, at most */
    int64_t block_keys;            /* keys of a block, at most */
    int64_t key_splits;            /* key splits of a kv group */
    int64_t split_keys;            /* keys of a key split, a multiple of block_keys */
    int64_t tasks;                 /* key_splits * groups: task = (key split * b + b) * hkv + hkv */
    int64_t chains;                /* number of chains */
    uint32_t chain_axes;           /* the chain of a task is its number along these axes, modulo `chains` */
    uint64_t shared;               /* bit t: tensor t has one sum for all chains, because chains never add to the same
                                      element */
    uint64_t one_pair_per_element; /* bit t: no element of tensor t gets more than one number; see fxa__tape_sum */
    int64_t ld_d, ld_v;            /* pitches of D and Dv: padded to entire panels */
    int64_t ld;                    /* pitch of a tile of scores; no power of two, because it is also read by columns */
    int64_t ones;                  /* rows of a product, at most */
    int64_t pool_rows;             /* rows of the pool of pages; 0: no pool */
} fxa__cpu_backward_split;

fxa__cpu_backward_split fxa__cpu_backward_split_make(const fxa__cpu_code *code, const fxa__problem *p);
/* Returns the chain of a task. */
int64_t fxa__cpu_backward_chain_of(const fxa__cpu_backward_split *split, const fxa_problem *p, int64_t task);
/* Multiplies. If the product is too large, returns INT64_MAX / 4, for which the workspace has no room. */
int64_t fxa__cpu_backward_size_mul(int64_t a, int64_t b);

/* Return the smallest and the largest number of product rows: at least those of the micro-kernel, and as many as the
 * kernels' products are fastest with. */
static inline int64_t fxa__cpu_backward_min_rows(const fxa__cpu_kernels *kernels) {
    return kernels->mr > FXA__CPU_BACKWARD_PRODUCT_ROWS ? kernels->mr : FXA__CPU_BACKWARD_PRODUCT_ROWS;
}
static inline int64_t fxa__cpu_backward_max_rows(const fxa__cpu_kernels *kernels) {
    int64_t rows = fxa__cpu_backward_min_rows(kernels);
    return kernels->rows > rows ? kernels->rows : rows;
}

/* ---- workspace.c ------------------------------------------------------------------------------------------------- */

enum { FXA__CPU_TAPE_SCORE, FXA__CPU_TAPE_MASKED, FXA__CPU_TAPE_DERIVATIVE, FXA__CPU_TAPE_BPROP, FXA__CPU_TAPES };

/* One worker: its task and its memory. Matrices are of real. */
typedef struct fxa__cpu_backward_worker {
    const struct fxa__cpu_backward_run *run;
    fxa__cpu_kv_group g;
    bool is_decode;              /* fxa__cpu_is_decode of the kv group's rows */
    int64_t key, n_keys;         /* the key block */
    bool is_loaded;              /* K and V of the block are packed */
    bool k_is_finite;            /* K of the block has no infinities and NaN */
    bool keys_are_consecutive;   /* each key coordinate of the block is the one before plus 1 */
    fxa__cpu_masked_tile masked; /* what the mask leaves of a tile and the block */
    fxa__cpu_sub_block *sub_blocks;
    void *k;                        /* [block_keys,max(ld_d,ld_v)] K, or V while it is packed */
    fxa__cpu_packed_b k_t;          /* K^T, if the rows are not few */
    fxa__cpu_packed_b v_t, k_n;     /* V^T, K */
    void *dk, *dv;                  /* [block_keys,ld_d], [block_keys,ld_v] */
    fxa__cpu_transposed_sum dk_sum; /* dS^T Q into dk */
    fxa__cpu_transposed_sum dv_sum; /* P^T dO into dv */
    void *q;                        /* [tile_rows,max(ld_d,ld_v)] scaled Q, or O for delta */
    void *dout;                     /* [tile_rows,ld_v] dO, if it is not stored as real */
    void *s, *p, *ds;               /* [tile_rows,ld] scores, probabilities, dS; p is s unless keeps_scores */
    void *dq;                       /* [rows,ld_d] private to the worker, or of a key split */
    unsigned char *dq_has;          /* [tiles] 1 = this key split has written the tile's dQ. NULL: dq is private to the
                                      worker and always written */
    void *dk_pool, *dv_pool;        /* [pool_rows,ld_d], [pool_rows,ld_v] */
    void *column;                   /* [tile_rows] */
    double *lse;                    /* [rows] LSE of the kv group */
    void *delta;                    /* [rows] delta of the kv group */
    unsigned char *finite;          /* [tiles] FXA__CPU_Q_IS_FINITE, FXA__CPU_DO_IS_FINITE of the kv group */
    int32_t *h, *q_at, *k_at;       /* [tile_rows], [tile_rows], [block_keys] coordinates that programs see */
    int32_t *keep;                  /* [block_keys + FXA__CPU_KEEP_CAPACITY] dropout's decisions for a row */
    fxa__tape_run tape[FXA__CPU_TAPES]; /* member tape NULL: no such tape */
} fxa__cpu_backward_worker;

typedef struct fxa__cpu_backward_run {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__cpu_backward_split split;
    fxa_tensor_range *ranges;       /* [n_tensors] ranges of captured ints, for range analysis of the mask */
    fxa__cpu_shared_mask_bits kept; /* mask bits that workers share */
    void *ones;                     /* [ones] reals of value 1 */
    double *lse;                    /* [groups,rows] */
    void *delta;                    /* [groups,rows] sum dO O - dLSE */
    unsigned char *finite;          /* [groups,tiles] FXA__CPU_Q_IS_FINITE, FXA__CPU_DO_IS_FINITE */
    void *dq_parts;                 /* [tasks,rows,ld_d] dQ of each key split, if there are several; valid for tiles
                                       whose dq_has is 1 */
    unsigned char *dq_has;          /* [tasks,tiles] 1 = the key split has written the tile's dQ */
    fxa__tape_sum *sums;            /* [chains,n_tensors] */
    double *dparams;                /* [chains,n_params] */
    fxa__cpu_backward_worker *workers;
} fxa__cpu_backward_run;

/* Computes the exact size of the workspace. A carver with a base also sets all pointers of the run and its workers. */
bool fxa__cpu_backward_carve(fxa__cpu_backward_run *run, fxa__carver c, size_t *bytes);

/* ---- tile.c ------------------------------------------------------------------------------------------------------ */

enum { FXA__CPU_Q_IS_FINITE = 1, FXA__CPU_DO_IS_FINITE = 2 };

/* Adds what row tile `tile` of the kv group and the worker's key block contribute to dK, dV, dQ and captured sums. */
void fxa__cpu_backward_tile(fxa__cpu_backward_worker *w, int64_t tile);
/* Sets the rows first..first+n of row tile `tile` of the kv group. Returns false past the last tile. */
bool fxa__cpu_backward_tile_rows(const fxa__cpu_backward_worker *w, int64_t tile, int64_t *first, int64_t *n);
/* Returns rows of Q, O or dO as a matrix of real with pitch *ld: where they are stored, if they are such a matrix, else
 * loaded into `room`, whose pitch *ld must be set. */
const void *fxa__cpu_backward_rows_load(const fxa__cpu_backward_worker *w, fxa_slot slot, int64_t first, int64_t n,
                                        void *room, int64_t *ld);

/* ---- score_row.c ------------------------------------------------------------------------------------------------- */

/* Computes row `row` of the tile that starts at row `first` of the kv group, in columns begin..end of the key block:
 * p = P r from the scores s, and ds = dS from dP, with r the dropout factor. masked: the mask is not true everywhere.
 * Columns up to the end of a step of the tapes may be overwritten. */
void fxa__cpu_score_row_back(fxa__cpu_backward_worker *w, int64_t first, int64_t row, bool masked, int64_t begin,
                             int64_t end);
/* Sets P and dS of columns begin..end of a row to 0. */
void fxa__cpu_score_row_clear(const fxa__cpu_backward_worker *w, int64_t row, int64_t begin, int64_t end);

/* ---- captured_sums.c: work before and after the tasks ------------------------------------------------------------ */

/* Computes LSE, delta and finite of the rows of a tile of the worker's kv group. */
void fxa__cpu_backward_delta(fxa__cpu_backward_worker *w, int64_t tile);
/* Returns the number of pieces into which the sums of captured tensors are divided. */
int64_t fxa__cpu_captured_sum_pieces(const fxa__cpu_backward_run *run);
void fxa__cpu_captured_sum_clear(const fxa__cpu_backward_run *run, int64_t piece);
/* Adds the chains' sums of a piece in order and stores the total. */
void fxa__cpu_captured_sum_store(const fxa__cpu_backward_run *run, int64_t piece);
void fxa__cpu_param_sums_store(const fxa__cpu_backward_run *run);
/* Stores the gradient of the sink of head h. */
void fxa__cpu_sink_store(const fxa__cpu_backward_run *run, int64_t h);

#endif
