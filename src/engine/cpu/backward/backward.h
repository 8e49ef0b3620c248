/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass, and the declarations that its files share:
 *
 *   split.c           how the work is divided into tasks and chains, and the sizes of tiles and blocks
 *   workspace.c       memory of a run and of its workers
 *   run.c             the phases of a run; tasks, which store dQ, dK and dV
 *   tile.c            one key block and one row tile: five matrix products around the program
 *   score_row.c       one row of scores of a tile: the program, forward and backward
 *   captured_sums.c   delta, and gradients of sinks, params and captured tensors
 *
 * A task is one kv group and one key split (see cpu.h). It loops over its key blocks, and for each block over the row
 * tiles of the kv group: dK and dV of a block stay in the cache until they are complete, and each block adds to dQ
 * once. Keys are split only if there are few kv groups. Each key split then has its own dQ, and the dQs of the splits
 * are added in order.
 *
 * Tasks that add to the same sums are in one chain. A worker takes an entire chain and runs its tasks one after the
 * other. Tasks and chains depend on shapes, dtypes and the instruction set alone, so results do not depend on the
 * number of threads.
 */
#ifndef FXA_ENGINE_CPU_BACKWARD_BACKWARD_H
#define FXA_ENGINE_CPU_BACKWARD_BACKWARD_H

#include "../mask/sub_blocks.h"
#include "../product/product.h"

/* ---- split.c ----------------------------------------------------------------------------------------------------- */

/* Axes along which tasks are divided into chains (sequences of tasks that add to the same sums). Chains may run in
 * parallel. */
enum {
    FXA__CPU_CHAIN_BY_BATCH = 1,
    FXA__CPU_CHAIN_BY_HEAD = 2,
    FXA__CPU_CHAIN_BY_SPLIT = 4,
    FXA__CPU_CHAIN_BY_ALL = 7
};

enum {
    /* Maximum number of rows of a row tile; found by measurement. */
    FXA__CPU_BACKWARD_TILE_ROWS = 192,
    /* Number of rows of a matrix product, unless kernels->mr is larger. On Zen 3, scores and dP of 12 rows stay in the
     * L1 cache. */
    FXA__CPU_BACKWARD_PRODUCT_ROWS = 12
};

typedef struct fxa__cpu_backward_split {
    bool want_q, want_k, want_v; /* gradients dQ, dK, dV that the problem requests */
    bool want_sums;              /* gradients of captured tensors or params are requested */
    bool want_ds;                /* dS is needed: for dQ, dK, gradients of tensors or params, or the amax of dS */
    bool pool;          /* paged K and V: dK and dV are summed for the entire page pool before they are stored */
    bool keeps_scores;  /* the derivative reads the scaled scores in addition to the probabilities */
    int64_t entries;    /* b (the batch entries); 0 if no batch entry has work */
    int64_t groups;     /* number of kv groups: entries * hkv */
    int64_t rows;       /* maximum rows of a kv group: heads * sq */
    int64_t tiles;      /* maximum row tiles of a kv group */
    int64_t tile_rows;  /* maximum rows of a tile */
    int64_t block_keys; /* maximum keys of a block */
    int64_t key_splits; /* number of key splits of a kv group */
    int64_t split_keys; /* keys of a key split, a multiple of block_keys */
    int64_t tasks; /* number of tasks: key_splits * groups. Task index: (key split * b + batch entry) * hkv + KV head */
    int64_t chains; /* number of chains; the tasks of a chain add to the same sums, one after the other */
    /* FXA__CPU_CHAIN_BY_x: the chain of a task is the index that the task has along these axes, modulo `chains` */
    uint32_t chain_axes;
    /* bit t: all chains add to one sum of the gradient of captured tensor t, no two chains to the same element */
    uint64_t shared;
    /* bit t: each element of captured tensor t receives the gradient of at most one (row, key) pair (fxa__tape_sum) */
    uint64_t one_pair_per_element;
    int64_t ld_d, ld_v; /* row pitch in reals of matrices with d_qk and with d_v columns: a multiple of kernels->nr */
    /* row pitch of scores in reals; not a power of two, at which the elements of a column would share few cache sets */
    int64_t ld;
    int64_t ones;      /* length of fxa__cpu_backward_run.ones: maximum rows of a matrix product */
    int64_t pool_rows; /* rows of the page pool; 0 = dK and dV are not summed by page */
} fxa__cpu_backward_split;

fxa__cpu_backward_split fxa__cpu_backward_split_make(const fxa__cpu_code *code, const fxa__problem *p);
/* Returns the index of the chain that a task is in; the tasks of a chain add to the same sums. */
int64_t fxa__cpu_backward_chain_of(const fxa__cpu_backward_split *split, const fxa_problem *p, int64_t task);
/* Returns a * b; INT64_MAX / 4, which exceeds every workspace, if the product is too large. */
int64_t fxa__cpu_backward_size_mul(int64_t a, int64_t b);

/* Return the smallest and the largest number of rows of one matrix product. The smallest is not below the rows of the
 * micro-kernel; with the largest, the kernels' products are fastest. */
static inline int64_t fxa__cpu_backward_min_rows(const fxa__cpu_kernels *kernels) {
    return kernels->mr > FXA__CPU_BACKWARD_PRODUCT_ROWS ? kernels->mr : FXA__CPU_BACKWARD_PRODUCT_ROWS;
}
static inline int64_t fxa__cpu_backward_max_rows(const fxa__cpu_kernels *kernels) {
    int64_t rows = fxa__cpu_backward_min_rows(kernels);
    return kernels->rows > rows ? kernels->rows : rows;
}

/* ---- workspace.c ------------------------------------------------------------------------------------------------- */

/* Tapes (compiled programs) of a worker: the score program without and with its mask, its derivative, the user's
 * bprop. */
enum { FXA__CPU_TAPE_SCORE, FXA__CPU_TAPE_MASKED, FXA__CPU_TAPE_DERIVATIVE, FXA__CPU_TAPE_BPROP, FXA__CPU_TAPES };

/* One worker: its task and its memory. Matrices have elements of type real. */
typedef struct fxa__cpu_backward_worker {
    const struct fxa__cpu_backward_run *run;
    fxa__cpu_kv_group g;
    bool is_decode;              /* fxa__cpu_is_decode for the kv group: there are few rows */
    int64_t key, n_keys;         /* the key block: first key, number of keys */
    bool is_loaded;              /* K and V of the key block are packed */
    bool k_is_finite;            /* K of the key block has neither infinities nor NaN */
    bool keys_are_consecutive;   /* coordinates of the block's keys increase by 1 from key to key */
    fxa__cpu_masked_tile masked; /* sub-blocks of the tile and key block in which a row attends to a key */
    fxa__cpu_sub_block *sub_blocks;
    void *k;                        /* [block_keys,max(ld_d,ld_v)] K, or V while it is packed */
    fxa__cpu_packed_b k_t;          /* packed K^T; unused if is_decode */
    fxa__cpu_packed_b v_t, k_n;     /* packed V^T; packed K */
    void *dk, *dv;                  /* dK [block_keys,ld_d] and dV [block_keys,ld_v] of the key block */
    fxa__cpu_transposed_sum dk_sum; /* sum of dS^T Q, written to dk */
    fxa__cpu_transposed_sum dv_sum; /* sum of P^T dO, written to dv */
    void *q;                        /* [tile_rows,max(ld_d,ld_v)] scaled Q, or O while delta is computed */
    void *dout;                     /* [tile_rows,ld_v] dO, if it is not stored as real */
    void *s, *p, *ds;               /* [tile_rows,ld] scores, probabilities and dS; p is s unless split.keeps_scores */
    void *dq;                       /* [rows,ld_d] dQ of the worker, or of the task's key split */
    /* [tiles] 1 = the task's key split has written the tile's dQ. NULL if keys are not split: the task then sets dQ of
     * all tiles to 0 first. */
    unsigned char *dq_has;
    void *dk_pool, *dv_pool;  /* [pool_rows,ld_d] and [pool_rows,ld_v] dK and dV of the page pool for one KV head */
    void *column;             /* [tile_rows] one column of P or dS */
    double *lse;              /* [rows] LSE of the kv group */
    void *delta;              /* [rows] delta of the kv group, see fxa__cpu_backward_run.delta */
    unsigned char *finite;    /* [tiles] flags FXA__CPU_Q_IS_FINITE, FXA__CPU_DO_IS_FINITE of the kv group */
    int32_t *h, *q_at, *k_at; /* coordinates that programs read: h [tile_rows], q [tile_rows], k [block_keys] */
    int32_t *keep; /* [block_keys + FXA__CPU_KEEP_CAPACITY] dropout decisions of a row: -1 = kept, 0 = dropped */
    fxa__tape_run tape[FXA__CPU_TAPES]; /* indexed by FXA__CPU_TAPE_x; .tape is NULL if the run does not use it */
} fxa__cpu_backward_worker;

typedef struct fxa__cpu_backward_run {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__cpu_backward_split split;
    /* [n_tensors] bounds of the elements of captured int tensors, for range analysis of the mask */
    fxa_tensor_range *ranges;
    fxa__cpu_shared_mask_bits kept; /* mask bits, cached for all workers */
    void *ones;                     /* [ones] reals of value 1 */
    double *lse;                    /* [groups,rows] LSE */
    void *delta;                    /* [groups,rows] sum over d of dO[d] O[d], minus dLSE */
    unsigned char *finite;          /* [groups,tiles] flags FXA__CPU_Q_IS_FINITE, FXA__CPU_DO_IS_FINITE */
    /* [tasks,rows,ld_d] dQ of each key split, valid for tiles whose dq_has is 1. NULL if keys are not split. */
    void *dq_parts;
    unsigned char *dq_has; /* [tasks,tiles] 1 = the key split has written the tile's dQ */
    fxa__tape_sum *sums;   /* [chains,n_tensors] sums of gradients of captured tensors */
    double *dparams;       /* [chains,n_params] sums of gradients of params */
    fxa__cpu_backward_worker *workers;
} fxa__cpu_backward_run;

/* Computes the exact bytes of the workspace. If the carver c has memory (c.base is not NULL), also sets all pointers
 * of the run and of the run's workers. Returns false on overflow. */
bool fxa__cpu_backward_carve(fxa__cpu_backward_run *run, fxa__carver c, size_t *bytes);

/* ---- tile.c ------------------------------------------------------------------------------------------------------ */

enum { FXA__CPU_Q_IS_FINITE = 1, FXA__CPU_DO_IS_FINITE = 2 };

/* Adds the contributions of row tile `tile` and the worker's key block to dK, dV, dQ, and the sums of gradients of
 * captured tensors and params. */
void fxa__cpu_backward_tile(fxa__cpu_backward_worker *w, int64_t tile);
/* Computes the rows of row tile `tile` of the kv group: first..first+n. Returns false past the last tile. */
bool fxa__cpu_backward_tile_rows(const fxa__cpu_backward_worker *w, int64_t tile, int64_t *first, int64_t *n);
/* Returns n rows of Q, O or dO as a matrix of real (the type that the kernels compute in), and sets *ld to its row
 * pitch. Rows that are stored like this are returned in place; others are loaded into `room`, whose pitch *ld the
 * caller has set. */
const void *fxa__cpu_backward_rows_load(const fxa__cpu_backward_worker *w, fxa_slot slot, int64_t first, int64_t n,
                                        void *room, int64_t *ld);

/* ---- score_row.c ------------------------------------------------------------------------------------------------- */

/* Computes P r and dS in row `row` of the tile that starts at row `first` of the kv group, and in columns begin..end of
 * the key block; r is the dropout factor. On entry, s has the scores, and ds has dP; on return, p has P r, and ds has
 * dS. masked: false = the mask is true in all these columns. May overwrite columns past `end`, up to the next multiple
 * of FXA__TAPE_STEP. */
void fxa__cpu_score_row_back(fxa__cpu_backward_worker *w, int64_t first, int64_t row, bool masked, int64_t begin,
                             int64_t end);
/* Sets P and dS of columns begin..end of a row to 0. */
void fxa__cpu_score_row_clear(const fxa__cpu_backward_worker *w, int64_t row, int64_t begin, int64_t end);

/* ---- captured_sums.c: work before and after the tasks ------------------------------------------------------------ */

/* Computes LSE and delta of the rows of a tile of the worker's kv group, and the tile's `finite` flags. */
void fxa__cpu_backward_delta(fxa__cpu_backward_worker *w, int64_t tile);
/* Returns the number of work items of captured_sum_clear and captured_sum_store. Each is a range of elements of one
 * sum. */
int64_t fxa__cpu_captured_sum_pieces(const fxa__cpu_backward_run *run);
void fxa__cpu_captured_sum_clear(const fxa__cpu_backward_run *run, int64_t piece);
/* Adds the sums of all chains for one piece (range of elements) of a tensor, in the order of the chains, and stores the
 * total. */
void fxa__cpu_captured_sum_store(const fxa__cpu_backward_run *run, int64_t piece);
void fxa__cpu_param_sums_store(const fxa__cpu_backward_run *run);
/* Stores the gradient of the sink of head h. */
void fxa__cpu_sink_store(const fxa__cpu_backward_run *run, int64_t h);

#endif
