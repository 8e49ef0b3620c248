/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass, inside. Rows of a (b, KV head) are cut into tiles, and the keys into chunks where there are too few
 * tiles to go around; a work item is one tile and one chunk. It keeps, for each row, the running maximum m of its
 * scores, the sum l of exp(s - m), and the unnormalised output:
 *
 *   run.c            the cut into items, workspace, the run
 *   attend.c         an item by packed panels: Q K^T, softmax, P V for a few rows at a time
 *   decode.c         an item of very few rows: straight from storage
 *   softmax.c        scores to weights: program, maximum, exp, sums, dropout
 *   rescaled_sums.c  rows whose sums of V leave the range of real, once more
 *   output.c         a row's end: sink, 1 / l, LSE, merging, storing; joining the chunks of a row
 *
 * Everything that decides the cut is the shape of one batch entry, so neither the number of threads nor the rest of the
 * batch changes a bit.
 */
#ifndef FXA_ENGINE_CPU_CPU_FORWARD_H
#define FXA_ENGINE_CPU_CPU_FORWARD_H

#include "../mask/sub_blocks.h"
#include "../product/product.h"

#define FXA__CPU_MAX_ROWS 16   /* that go through the softmax together: a group */
#define FXA__CPU_MAX_BLOCK 128 /* rows that go through a product together, at most: groups that share it */
#define FXA__CPU_MAX_KEYS 512  /* of a block, at most */
_Static_assert(FXA__CPU_FEW_ROWS <= FXA__CPU_MAX_ROWS, "decoding gives all its rows to the softmax at once");
_Static_assert(FXA__CPU_MAX_BLOCK % FXA__CPU_MAX_ROWS == 0, "a block has whole groups");

/* Sizes of blocks; functions of the problem and the kernels alone. */
typedef struct fxa__cpu_blocks {
    int64_t tile_rows;          /* at most, of an item */
    int64_t rows;               /* that go through Q K^T and P V together */
    int64_t keys;               /* of a block: packed once for all rows of a tile */
    int64_t ldq, ldo, ldt, ldv; /* in reals: of Q rows, of outputs, of scores, of V rows */
    int64_t lda;                /* of rows of Q packed, which take the place of the others; not more than ldq */
} fxa__cpu_blocks;

/* How one (b, KV head) is cut. */
typedef struct fxa__cpu_shares {
    int64_t tiles,
        tile_rows;    /* tiles of that many rows; per head (tiles of the heads one after the other) or stacked */
    int64_t per_head; /* tiles of one head; 0: stacked */
    int64_t chunks, chunk_keys;
    bool decode;
} fxa__cpu_shares;

/* What a chunk leaves of a row when there are several. */
typedef struct fxa__cpu_partial {
    double m, l, unit; /* m NaN: a score was NaN */
} fxa__cpu_partial;

/* One worker's memory, all parts aligned to FXA__CPU_PAD. */
typedef struct fxa__cpu_scratch {
    void *q, *o;     /* [tile_rows,ldq], [tile_rows,ldo] */
    fxa__cpu_b k, v; /* K^T and V of a block */
    void *x;         /* [keys,ldv] or [nr,d]: rows as loaded */
    void *scores;    /* [rows,ldt]: scores, then weights, then these packed */
    void *betas;     /* [rows]: what the outputs so far are multiplied with */
    void *t, *beta;  /* of the group in hand: inside scores and betas */
    double *m, *l;   /* [tile_rows] */
    double *
        unit; /* [tile_rows]: what o is to be multiplied with; 1 but of rows that forward/rescaled_sums.c has settled */
    uint8_t *nan;         /* [tile_rows]: a score was NaN */
    int32_t *h, *qc, *kc; /* coordinates of rows and keys */
    int32_t *keep;        /* [keys + FXA__CPU_KEEP_ROOM]: dropout, of a row */
    fxa__cpu_seen *seen;  /* fxa__cpu_seen_count of them */
    double *row, *old;    /* [dv] */
    void *tape[2];        /* of the program without and with its mask */
} fxa__cpu_scratch;

typedef struct fxa__cpu_forward_run {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa__cpu_blocks blocks;
    int32_t workers;
    int64_t entries; /* fxa__entries_with_work: B of what follows */
    int64_t items;   /* of a (b, KV head), at most */
    int64_t slots;   /* partial rows of a (b, KV head), at most */
    size_t scratch_bytes;
    char *scratch; /* workers * scratch_bytes */
    fxa_tensor_range *ranges;
    fxa__cpu_kept kept;        /* bits of masks */
    fxa__cpu_partial *partial; /* [B,Hkv,slots] */
    char *partial_o;           /* [B,Hkv,slots,ldo] */
    _Atomic int64_t next;      /* item */
} fxa__cpu_forward_run;

/* An item being worked on. */
typedef struct fxa__cpu_item {
    const fxa__cpu_forward_run *run;
    const fxa__cpu_kernels *kernels;
    fxa__cpu_group g;
    fxa__cpu_shares shares;
    fxa__cpu_scratch s;
    fxa__cpu_cut cut;
    fxa__tape_run tape[2]; /* as scratch.tape; tape NULL: identity */
    int64_t first, n;      /* rows of the group */
    int64_t key, key_end;  /* keys */
    int64_t tile, chunk;   /* tile: of its head, or of the stacked rows */
    int32_t b;             /* coordinate */
    bool keys_run;         /* coordinates of the block's keys are consecutive; known where there is dropout */
    bool dirty;            /* an output may hold a number that is not finite */
    int64_t large;     /* rows large..large_end are summed by forward/rescaled_sums.c, and all other outputs stay; */
    int64_t large_end; /* 0: none */
    bool looking;      /* V alone is looked at: */
    bool leaves;       /* whether sums of what is finite of it may leave the range */
} fxa__cpu_item;

void fxa__cpu_item_clear(fxa__cpu_item *it); /* nothing attended yet; outputs are left as they are */
/* Block sizes of a pass, by the kernels and the widths of the heads. */
fxa__cpu_blocks fxa__cpu_forward_blocks(const fxa__cpu_code *code, const fxa_problem *p);
fxa__cpu_shares fxa__cpu_shares_make(const fxa__cpu_forward_run *run, int64_t q_len, int64_t k_len);

/* forward/softmax.c. Readies the item's tapes for its rows; the tape that a strip uses for the cut's block. */
void fxa__cpu_softmax_rows(fxa__cpu_item *it);
fxa__tape_run *fxa__cpu_softmax_tape(fxa__cpu_item *it, const fxa__cpu_strip *strip);
void fxa__cpu_softmax_keys(fxa__cpu_item *it, fxa__tape_run *tape);
/* Scores t [rows,ldt] of a strip, from `column` of the block on, and of the count - 1 after it, which have the same
 * rows (those of the first count) and lie side by side after it, become weights, 0 before its begin; m, l and beta
 * follow. Several only where there are bits. */
void fxa__cpu_softmax(fxa__cpu_item *it, const fxa__cpu_strip *strip, int count, int64_t column);

/* The two ways to do an item: m, l, nan and o of its rows over its keys. */
void fxa__cpu_attend(fxa__cpu_item *it);
void fxa__cpu_decode(fxa__cpu_item *it);

/* forward/rescaled_sums.c. The first row from `row` on whose scores are in order and whose output is not finite; n:
 * none. */
int64_t fxa__cpu_large_find(const fxa__cpu_item *it, int64_t row);
/* Sums of such rows from `row` on once more, where V can make them leave the range. `all` lets the item's keys go by:
 * `look` at V where it->looking; else softmax as ever, then `add` in place of products where it->large_end is not 0:
 * weights t of a row and n rows of V, ldv apart. */
void fxa__cpu_large_sum(fxa__cpu_item *it, int64_t row, void (*all)(fxa__cpu_item *it));
void fxa__cpu_large_look(fxa__cpu_item *it, int64_t key, int64_t n);
void fxa__cpu_large_add(fxa__cpu_item *it, int64_t row, const void *t, const void *v, int64_t n, double beta);
/* What is not finite of the output o of a row becomes what its sums / FXA__CPU_LARGE tell; the result is its unit. */
double fxa__cpu_large_settle(const fxa__cpu_item *it, void *o, const double *sums, double l);
#define FXA__CPU_LARGE 0x1p64 /* more than there are keys, whatever dropout makes of them */

/* forward/output.c. Stores the item's rows, or leaves them as partials; joins the partials of a (b, KV head); writes
 * the rows past the end of a padded sequence. */
void fxa__cpu_output(fxa__cpu_item *it, int64_t group);
void fxa__cpu_join(fxa__cpu_item *it, int64_t group);
void fxa__cpu_output_absent(fxa__cpu_item *it);

/* Elements of real of either width. */
static inline double fxa__real_get(const void *x, size_t real_size, int64_t i) {
    return real_size == sizeof(float) ? (double)((const float *)x)[i] : ((const double *)x)[i];
}
static inline void fxa__real_set(void *x, size_t real_size, int64_t i, double value) {
    if (real_size == sizeof(float))
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}
static inline void *fxa__real_at(const fxa__cpu_item *it, void *x, int64_t i) {
    return (char *)x + i * (int64_t)it->kernels->real_size;
}

#endif
