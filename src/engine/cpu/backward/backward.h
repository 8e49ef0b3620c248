/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the cpu engine, between its files:
 *
 *   workspace.c      how the work is cut, and the workspace
 *   tile.c           one block of keys against one tile of rows: five matrix products around the program
 *   score_row.c      one row of their scores: the program, there and back
 *   run.c            items, their dQ, dK, dV, and the jobs of a run
 *   captured_sums.c  delta, sinks, and the sums of captured tensors and params
 *
 * An item is one (b, KV head, chunk of the keys). It goes over its keys by blocks, and for each block over the stacked
 * rows of the group by tiles: dK and dV of a block stay in cache until they are whole, dQ is added to once per block.
 * Keys have several chunks only when there are few groups; then every chunk has a dQ of its own, and they are added up
 * in order.
 *
 * Items that add to the same sums are in one lane, and a lane's items run one after the other: lanes are what workers
 * take. How items are cut and which lane they are in depends on shapes alone, so results do not depend on the threads.
 */
#ifndef FXA_ENGINE_CPU_CPU_BACKWARD_H
#define FXA_ENGINE_CPU_CPU_BACKWARD_H

#include "../mask/sub_blocks.h"
#include "../product/product.h"

/* ---- How the work is cut (by shapes, dtypes and instruction set) ------------------------------------------------- */

enum { FXA__BACK_B = 1, FXA__BACK_H = 2, FXA__BACK_CHUNK = 4, FXA__BACK_ALL = 7 }; /* axes of an item */

typedef struct fxa__back_shares {
    bool want_q, want_k, want_v, want_sums; /* of captured tensors or params */
    bool want_ds;                           /* any of q, k, sums */
    bool pool;                              /* dK, dV are summed over the whole pool of pages first */
    bool keep_score;                        /* the way back needs the scaled scores beside the probabilities */
    int64_t entries;                        /* of the batch that have work: b, or 0 */
    int64_t groups;                         /* entries * hkv */
    int64_t rows;                           /* of a group, at most: heads * sq */
    int64_t tiles;                          /* of a group, at most */
    int64_t block;                          /* keys */
    int64_t tile;                           /* rows, at most */
    int64_t chunks, chunk;                  /* of a group; keys of each, a multiple of block */
    int64_t items; /* chunks * groups: item = (chunk * b + b) * hkv + hkv, those with the most rows first */
    int64_t lanes;
    uint32_t lane_axes; /* the lane of an item is its number along these axes, modulo lanes */
    uint64_t shared;    /* bit t: tensor t has one sum for all lanes, since lanes never meet in it */
    uint64_t once;      /* bit t: none, since no two pairs meet in it; see fxa__tape_sum */
    int64_t ld_d, ld_v; /* D and Dv, padded to whole panels */
    int64_t ld;         /* of a tile of scores; not a power of two, it is also read by columns */
    int64_t ones;       /* the most rows of a product */
    int64_t pool_rows;
} fxa__back_shares;

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

enum { FXA__BACK_SCORE, FXA__BACK_MASKED, FXA__BACK_DERIVATIVE, FXA__BACK_BPROP, FXA__BACK_TAPES };

/* One worker: its place in the loops and its memory. Matrices are of real. */
typedef struct fxa__back_worker {
    const struct fxa__back *job;
    fxa__cpu_group g;
    void *k;                  /* [block,ld_d], as loaded (also V while it is packed: wide enough for both) */
    fxa__cpu_b k_t, v_t, k_n; /* K^T (not where rows are few), V^T, K */
    void *dk, *dv;            /* [block,ld_d], [block,ld_v] */
    void *q, *dout;           /* [tile,ld_d], [tile,ld_v]: scaled Q; dO if it is not real already (also O for delta) */
    fxa__cpu_over over_k, over_v;        /* dS^T Q into dk, P^T dO into dv */
    void *s, *p, *ds;                    /* [tile,ld]; p is s unless scores are kept */
    void *dq;                            /* [rows,ld_d]: the worker's own, or that of a chunk */
    unsigned char *dq_has;               /* [tiles]: of a chunk; NULL: dq is the worker's own, and is whole */
    void *dk_pool, *dv_pool;             /* [pool_rows,ld_d], [pool_rows,ld_v] */
    void *column;                        /* [tile] */
    double *lse;                         /* [rows]: of the group */
    void *delta;                         /* [rows] */
    unsigned char *finite;               /* [tiles]: of the group */
    int32_t *h, *q_at, *k_at;            /* coordinates: [tile], [tile], [block] */
    int32_t *keep;                       /* [block + FXA__CPU_KEEP_ROOM]: dropout, of a row */
    fxa__tape_run tape[FXA__BACK_TAPES]; /* tape NULL: none */
    fxa__cpu_cut cut;                    /* what the mask leaves of a tile and the block */
    fxa__cpu_strip *strips;              /* of them */
    bool few;                            /* rows of the group: fxa__cpu_is_few */
    int64_t key, n_keys;                 /* the block */
    bool loaded, k_finite;               /* of it: K and V are packed; K holds only numbers */
    bool keys_run;                       /* its coordinates are consecutive */
} fxa__back_worker;

/* One run. */
typedef struct fxa__back {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__back_shares cut;
    fxa_tensor_range *ranges;
    fxa__cpu_kept kept;    /* bits of masks */
    void *ones;            /* [cut.ones] */
    double *lse;           /* [groups,rows] */
    void *delta;           /* [groups,rows]: less dLSE */
    unsigned char *finite; /* [groups,tiles]: FXA__BACK_Q_FINITE, FXA__BACK_DO_FINITE */
    void *dq_parts;        /* chunks > 1: [items,rows,ld_d], of which rows count that are in a tile of */
    unsigned char *dq_has; /* chunks > 1: [items,tiles]: some block of the chunk has added to it */
    fxa__tape_sum *sums;   /* [lanes,n_tensors] */
    double *dparams;       /* [lanes,n_params] */
    fxa__back_worker *workers;
} fxa__back;

fxa__back_shares fxa__back_shares_make(const fxa__cpu_code *code, const fxa__problem *p);
/* The lane that does an item. */
int64_t fxa__back_lane_of(const fxa__back_shares *cut, const fxa_problem *p, int64_t item);
/* Exact size of the workspace, and with a base every pointer of `job` and its workers. */
bool fxa__back_layout(fxa__back *job, fxa__carver c, size_t *bytes);

static inline void *fxa__back_at(const fxa__back *job, void *x, int64_t i) {
    return (char *)x + i * (int64_t)job->code->kernels->real_size;
}
static inline uint32_t fxa__back_real(const fxa__back *job) { return job->code->kernels->real_dtype; }
/* Element i of a row of real. */
static inline double fxa__back_get(const fxa__back *job, const void *x, int64_t i) {
    return job->p->f64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* ---- backward/tile.c --------------------------------------------------------------------------------------------- */

/* Rows of a tile, at most, and of a strip. The prototype on Zen 3 had tiles of 48 and strips of 12, whose scores and dP
 * stay in the first-level cache; taller tiles were chosen by a measurement of which no figures were kept. */
enum { FXA__BACK_TILE = 192, FXA__BACK_STRIP = 12 };
/* Of a strip with these kernels: not fewer than the micro-kernel has. */
static inline int64_t fxa__back_strip(const fxa__cpu_kernels *kernels) {
    return kernels->mr > FXA__BACK_STRIP ? kernels->mr : FXA__BACK_STRIP;
}
/* And its rows at most: sets whose products want many have them at once. */
static inline int64_t fxa__back_strip_most(const fxa__cpu_kernels *kernels) {
    return kernels->rows > fxa__back_strip(kernels) ? kernels->rows : fxa__back_strip(kernels);
}
enum { FXA__BACK_Q_FINITE = 1, FXA__BACK_DO_FINITE = 2 };

/* Adds what tile number `tile` of the group and the worker's block of keys give each other to dK, dV, dQ and sums. */
void fxa__back_tile(fxa__back_worker *w, int64_t tile);
/* Rows *first..*first+*n of tile number `tile` of a group; false past the last. */
bool fxa__back_tile_rows(const fxa__back_worker *w, int64_t tile, int64_t *first, int64_t *n);
/* Those of Q, O or dO as a matrix of real: where they lie, if that is one, else loaded into `room`, *ld apart. */
const void *fxa__back_rows(const fxa__back_worker *w, fxa_slot slot, int64_t first, int64_t n, void *room, int64_t *ld);

/* ---- backward/score_row.c ---------------------------------------------------------------------------------------- */

/* Row `row` of the tile that begins at row `first` of the group, columns begin..end of the block: scores in s become
 * P r in p, dP in ds becomes dS. masked: the program with its mask. Columns up to a whole step may be overwritten. */
void fxa__back_row(fxa__back_worker *w, int64_t first, int64_t row, bool masked, int64_t begin, int64_t end);
/* P and dS of columns begin..end of a row are 0. */
void fxa__back_row_clear(const fxa__back_worker *w, int64_t row, int64_t begin, int64_t end);

/* ---- backward/captured_sums.c: work items of the jobs before and after the lanes --------------------------------- */

/* LSE and delta of the rows of a tile of the worker's group, and what of it is finite. */
void fxa__back_delta(fxa__back_worker *w, int64_t tile);
/* The sums of captured tensors, in pieces. */
int64_t fxa__back_sum_pieces(const fxa__back *job);
void fxa__back_sum_clear(const fxa__back *job, int64_t piece);
void fxa__back_sum_store(const fxa__back *job, int64_t piece);
void fxa__back_store_params(const fxa__back *job);
void fxa__back_store_sink(const fxa__back *job, int64_t h);

#endif
