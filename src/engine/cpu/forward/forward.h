/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass, and the declarations that its files share. A task is one row tile and one key split of a kv group
 * (see cpu.h). For each row it computes the maximum m of the scores, the sum l of exp(score - m) and the output o
 * before the division by l:
 *
 *   split.c           how a kv group is divided into tasks, and the sizes of tiles and blocks
 *   run.c             workspace, the run, and the order of the passes of a task
 *   attend.c          passes over the key blocks of a task with packed operands: Q K^T, softmax, P V
 *   decode.c          passes for a task of very few rows, with keys as they are stored
 *   softmax.c         scores to weights: program, maximum, exp, sums, dropout
 *   rescaled_sums.c   recomputes, in f64, rows whose sums of V overflow
 *   output.c          last step of a row: sink, division by l, LSE, storing; merges the results of key splits
 *
 * The division into tasks depends on the shape of one batch entry alone, so results depend neither on the number of
 * threads nor on the other batch entries.
 */
#ifndef FXA_ENGINE_CPU_FORWARD_FORWARD_H
#define FXA_ENGINE_CPU_FORWARD_FORWARD_H

#include "../mask/sub_blocks.h"
#include "../product/product.h"

_Static_assert(FXA__CPU_DECODE_ROWS <= FXA__CPU_ROW_BLOCK, "decoding passes all its rows to the softmax at once");
_Static_assert(FXA__CPU_PRODUCT_ROWS % FXA__CPU_ROW_BLOCK == 0, "product rows are whole row blocks");

/* Sizes of tiles and blocks, which depend on the problem and the kernels. Row pitches are in reals. */
typedef struct fxa__cpu_sizes {
    int64_t tile_rows; /* maximum rows of a row tile */
    int64_t rows;      /* maximum rows of Q in one matrix product */
    int64_t keys;      /* maximum keys of a key block */
    int64_t ldq;       /* row pitch of Q */
    int64_t ldo;       /* row pitch of outputs */
    int64_t ldt;       /* row pitch of scores */
    int64_t ldv;       /* row pitch of V loaded as reals, before packing */
    int64_t lda;       /* row pitch of packed Q, which replaces Q in memory; at most ldq */
} fxa__cpu_sizes;

/* Division of one kv group (a KV head of a batch entry, with all its query heads) into tasks. */
typedef struct fxa__cpu_forward_split {
    int64_t tiles;          /* row tiles of the kv group */
    int64_t tile_rows;      /* rows of a tile; the last tile of a head or of the group may have fewer */
    int64_t tiles_per_head; /* row tiles of one head; 0 = tiles contain rows of several heads */
    int64_t key_splits;     /* key splits of each tile */
    int64_t split_keys;     /* keys of a key split; the last split may have fewer */
    bool is_decode;         /* there are few rows, and decode.c computes them */
} fxa__cpu_forward_split;

/* Result of one key split for one row: m, l and unit. The output is in fxa__cpu_forward_run.results_o. */
typedef struct fxa__cpu_split_result {
    double m;    /* maximum of the scores; NaN: a score was NaN */
    double l;    /* sum of exp(score - m) */
    double unit; /* factor by which the split's output must be multiplied, as in fxa__cpu_softmax_state */
} fxa__cpu_split_result;

typedef struct fxa__cpu_forward_run {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__cpu_sizes sizes;
    int32_t workers;
    int64_t entries;                /* number of batch entries that are computed */
    int64_t tasks;                  /* maximum number of tasks of a kv group */
    int64_t result_rows;            /* maximum number of (key split, row) results of a kv group; 0 = no key splits */
    size_t worker_bytes;            /* bytes of one worker's memory */
    char *worker_memory;            /* [workers,worker_bytes] */
    fxa_tensor_range *ranges;       /* [n_tensors] minimum and maximum of int tensors that the mask reads */
    fxa__cpu_shared_mask_bits kept; /* mask bits, cached for all workers */
    fxa__cpu_split_result *results; /* [entries,Hkv,result_rows] m, l and unit of the key splits */
    char *results_o;                /* [entries,Hkv,result_rows,ldo] outputs of the key splits, as real */
    _Atomic int64_t next;           /* index of the next task that a worker takes */
} fxa__cpu_forward_run;

/* A task of a kv group: rows first..first+n times keys key..key_end. */
typedef struct fxa__cpu_forward_task {
    int64_t first, n;
    int64_t key, key_end;
    int64_t tile;      /* index of the tile within its head, or within the kv group if tiles span several heads */
    int64_t key_split; /* index of the key split */
} fxa__cpu_forward_task;

/* State of the online softmax of the task's rows. */
typedef struct fxa__cpu_softmax_state {
    double *m; /* [tile_rows] maximum of the scores; -inf = the row has attended to no key yet */
    double *l; /* [tile_rows] sum of exp(score - m) */
    /* [tile_rows] factor by which o must be multiplied at the end: 1, except for rows that rescaled_sums.c has
     * recomputed */
    double *unit;
    uint8_t *nan; /* [tile_rows] 1 = a score was NaN */
} fxa__cpu_softmax_state;

/* One worker: its task and its memory. The elements of matrices are reals (float or double), and matrices are aligned
 * to FXA__CPU_PAD bytes. */
typedef struct fxa__cpu_forward_worker {
    const fxa__cpu_forward_run *run;
    const fxa__cpu_kernels *kernels;
    fxa__cpu_kv_group g;
    int64_t group;                /* index of the kv group g; -1 = none yet */
    fxa__cpu_forward_split split; /* division of the kv group g */
    fxa__cpu_forward_task task;
    fxa__cpu_softmax_state state;
    fxa__cpu_masked_tile masked; /* (q, k) pairs of the tile and key block that the mask allows */
    void *q, *o;                 /* [tile_rows,ldq] packed Q; [tile_rows,ldo] outputs */
    fxa__cpu_packed_b k, v;      /* packed K^T and V of the key block */
    void *x;                     /* rows loaded for packing: V [keys,ldv], or Q or K [nr,d] */
    void *scores;                /* [rows,ldt] scores, then weights, then packed weights */
    void *betas;                 /* [rows] rescale factors of the outputs */
    void *t, *beta;              /* parts of scores and betas that belong to the current row block */
    int32_t *h, *qc, *kc;        /* coordinates that programs read: h [tile_rows], q [tile_rows], k [keys] */
    int32_t *keep; /* [keys + FXA__CPU_KEEP_CAPACITY] dropout decisions of a row: -1 = kept, 0 = dropped */
    double *row;   /* [dv] f64 output of a row, computed or merged from key splits */
    double *old;   /* [dv] f64 copy of the stored output that `row` is merged with (FXA_ACCUMULATE_O) */
    /* [0] bytecode (tape) of the program without its mask, [1] with its mask; the member `tape` is NULL if the pass
     * does not use that bytecode */
    fxa__tape_run tape[2];
    bool keys_are_consecutive; /* key coordinates increase by 1 from key to key; valid with dropout only */
    bool v_is_unpacked;        /* V of some block holds infinities or NaN; from that block on V is not packed */
    bool may_overflow;         /* V has finite values so large that sums of them may overflow */
    int64_t rescaled;          /* rows rescaled..rescaled_end have f64 sums, in the memory of v.panels */
    int64_t rescaled_end;
} fxa__cpu_forward_worker;

/* ---- split.c ----------------------------------------------------------------------------------------------------- */

/* Returns the sizes for a problem; they depend on the kernels and the head dims. */
fxa__cpu_sizes fxa__cpu_forward_sizes(const fxa__cpu_code *code, const fxa_problem *p);
/* Returns the division of a kv group with q_len rows per head and k_len keys. run->p and run->sizes must be set. */
fxa__cpu_forward_split fxa__cpu_forward_split_make(const fxa__cpu_forward_run *run, int64_t q_len, int64_t k_len);
/* Sets run->tasks and run->result_rows to upper bounds for all lengths that a batch entry may have. */
void fxa__cpu_forward_bound(fxa__cpu_forward_run *run);

/* ---- run.c: passes over the keys of a task ----------------------------------------------------------------------- */

/* Processes the key block that w->masked describes. */
typedef void (*fxa__cpu_block_visit)(fxa__cpu_forward_worker *w);
/* Calls `visit` for each key block of the task to which some row of the task attends. */
void fxa__cpu_each_block(fxa__cpu_forward_worker *w, fxa__cpu_block_visit visit);
/* Sets m, l and nan of the task's rows to the state before the first key. */
void fxa__cpu_softmax_clear(fxa__cpu_forward_worker *w);

/* ---- softmax.c --------------------------------------------------------------------------------------------------- */

/* Loads the coordinates of the task's rows and passes them to the program's bytecode (tapes). */
void fxa__cpu_softmax_rows(fxa__cpu_forward_worker *w);
/* Returns the tape (bytecode) that computes the scores of a sub-block: with or without the mask. */
fxa__tape_run *fxa__cpu_softmax_tape(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s);
/* Loads the coordinates of the key block's keys and passes them to a tape (bytecode). */
void fxa__cpu_softmax_keys(fxa__cpu_forward_worker *w, fxa__tape_run *tape);
/* Replaces the scores w->t [rows,ldt] of `count` sub-blocks of the same rows by weights, and updates m, l and w->beta.
 * The scores of the first sub-block start at column `column` of the key block; weights in columns before s[0].begin
 * become 0. The scores of the other sub-blocks follow without gaps. count > 1 requires mask bits. */
void fxa__cpu_softmax(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int count, int64_t column);

/* ---- attend.c, decode.c: start and end of a task, and the key blocks of its passes ------------------------------- */

/* Loads and packs Q of the task's rows. */
void fxa__cpu_attend_start(fxa__cpu_forward_worker *w);
/* Sets the outputs of rows that attend to no key to 0. */
void fxa__cpu_attend_finish(fxa__cpu_forward_worker *w);
/* Adds the key block to m, l and o with packed V. If V of the block holds infinities or NaN, sets v_is_unpacked: this
 * block and all later ones are then processed as by fxa__cpu_attend_block_unpacked. */
void fxa__cpu_attend_block(fxa__cpu_forward_worker *w);
/* Adds the key block to m, l and o; V is read as rows, without packing. Skips keys whose weight is 0. */
void fxa__cpu_attend_block_unpacked(fxa__cpu_forward_worker *w);
/* Adds the key block to m and l, and to the f64 sums of rows rescaled..rescaled_end. */
void fxa__cpu_attend_block_rescaled(fxa__cpu_forward_worker *w);

void fxa__cpu_decode_start(fxa__cpu_forward_worker *w);
void fxa__cpu_decode_block(fxa__cpu_forward_worker *w);
void fxa__cpu_decode_block_rescaled(fxa__cpu_forward_worker *w);

/* ---- rescaled_sums.c --------------------------------------------------------------------------------------------- */

#define FXA__CPU_RESCALE 0x1p64 /* divisor of V in the f64 sums: more than the number of keys times dropout's factor */

/* Returns the first row >= `row` whose output is not finite although no score of the row is NaN or +inf; task.n if
 * there is none. */
int64_t fxa__cpu_overflow_find(const fxa__cpu_forward_worker *w, int64_t row);
/* Recomputes, in f64, the outputs of the rows >= `row` that fxa__cpu_overflow_find finds, if finite values of V can
 * have made these outputs overflow. */
void fxa__cpu_rescaled_sums(fxa__cpu_forward_worker *w, int64_t row);
/* Replaces the f64 sum of a row by beta * sum + sum_k t[k] v[k] / FXA__CPU_RESCALE. t: n weights; v: [n,ldv] rows of V,
 * as real. Does nothing for rows outside of rescaled..rescaled_end. */
void fxa__cpu_rescaled_add(fxa__cpu_forward_worker *w, int64_t row, const void *t, const void *v, int64_t n,
                           double beta);
/* Replaces the non-finite elements of the output o of a row by means computed from `sums`, the row's f64 sums. Returns
 * the factor of the row's output (fxa__cpu_softmax_state.unit). */
double fxa__cpu_rescaled_finish(const fxa__cpu_forward_worker *w, void *o, const double *sums, double l);

/* ---- output.c ---------------------------------------------------------------------------------------------------- */

/* Stores the outputs of the task's rows: as split results if keys are split. group: index of the kv group. */
void fxa__cpu_output(fxa__cpu_forward_worker *w, int64_t group);
/* Merges the split results of a kv group and stores its rows. */
void fxa__cpu_output_merge_splits(fxa__cpu_forward_worker *w, int64_t group);
/* Stores the results of query rows past the end of a padded sequence: O = 0, LSE = -inf, row maximum = -inf. */
void fxa__cpu_output_absent(fxa__cpu_forward_worker *w);

#endif
