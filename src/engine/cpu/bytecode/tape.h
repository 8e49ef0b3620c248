/* SPDX-License-Identifier: Apache-2.0
 *
 * Row bytecode: compiles a score program, its derivative, or a user's bprop to a tape of row operations. Each value is
 * computed as rarely as possible: once per batch entry, once per row (h, q), once per key of a key block, once per head
 * and key, or once per (row, key) pair. The operations per (row, key) pair run one row at a time: one operation after
 * the other over the columns of the row. The registers of these operations hold one row each and stay in the L1 cache.
 *
 * Elements of registers: floats are `real`, ints are int32, bools are int32 0 or 1. Rows are padded to FXA__CPU_PAD
 * bytes.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_H

#include "../cpu.h"

typedef struct fxa__tape fxa__tape;

/* Flags of a tape (a compiled program). JOINT: for a program with a score and its derivative (lower/fuse.h),
 * fxa__tape_row computes the score without its mask, with the same bits as a tape of the score alone;
 * fxa__tape_row_back then computes the derivative. Values that both need are computed once. */
enum {
    /* SCORE programs: with the mask; scores of (query, key) pairs that are not attended become -inf */
    FXA__TAPE_MASK = 1,
    /* DERIVATIVE programs: adds the values of `grad` statements to gradients of params and captured tensors */
    FXA__TAPE_GRADS = 2,
    /* DERIVATIVE programs: only computes `grad` statements; the user's bprop computes dscore */
    FXA__TAPE_NO_DSCORE = 4,
    FXA__TAPE_PLAIN = 8,       /* for tests: without the merged operations of peephole.c */
    FXA__TAPE_MASK_ALONE = 16, /* SCORE programs: computes only the mask, for fxa__tape_mask */
    FXA__TAPE_JOINT = 32       /* programs with a score and its derivative (lower/fuse.h) */
};
fxa_status fxa__tape_create(fxa__host *host, const fxa_program *program, uint32_t flags,
                            const fxa__cpu_kernels *kernels, fxa__tape **out, fxa_error *err);
void fxa__tape_destroy(fxa__tape *tape);
/* Returns the first node of a program whose operation has no opcode in the bytecode; NULL: fxa__tape_create can compile
 * the program. */
const fxa__node *fxa__tape_missing(const fxa_program *program);
/* Prints the instructions as lines of text. program: the program that the tape was created from. */
void fxa__tape_print(const fxa__tape *tape, const fxa_program *program, fxa__writer *w);
/* Returns the bytes that the plan cache counts for a tape. */
size_t fxa__tape_bytes(const fxa__tape *tape);
/* Returns true if the tape changes neither scores nor gradients, masks nothing and sums nothing. */
bool fxa__tape_is_identity(const fxa__tape *tape);

/* Where the gradient of a captured tensor is summed.
 *
 *   sum                    f64 sums, one for each element; the view has dense strides. NULL: see below
 *   one_pair_per_element   each element receives the gradient of at most one (row, key) pair, and the elements that one
 *                          row accesses are evenly spaced: gradients are added to the elements of the view themselves,
 *                          and `sum` is NULL
 *
 * If `sum` is NULL and one_pair_per_element false, the gradient is not requested. */
typedef struct fxa__tape_sum {
    fxa_view view;
    double *sum;
    bool one_pair_per_element;
} fxa__tape_sum;

/* State of a tape that one worker runs, in scratch memory of the caller. Nothing is allocated during a run. */
typedef struct fxa__tape_run {
    const fxa__tape *tape;
    const double *params;
    const fxa_view *tensors;
    double *dparams;               /* [params] FXA__TAPE_GRADS: sums of gradients of params; NULL: not requested */
    const fxa__tape_sum *sums;     /* [tensors] FXA__TAPE_GRADS: sums of gradients of tensors */
    void *scratch;                 /* fxa__tape_scratch bytes, aligned to FXA__CPU_PAD */
    int64_t max_rows, max_columns; /* maximum number of rows of a tile and of keys of a block */
    int64_t columns;               /* number of keys of the current block */
} fxa__tape_run;
/* Returns the state for a tape. If tape is NULL, no other function may be called with the state. */
static inline fxa__tape_run fxa__tape_run_make(const fxa__tape *tape, const double *params, const fxa_view *tensors,
                                               void *scratch, int64_t max_rows, int64_t max_columns) {
    return (fxa__tape_run){.tape = tape,
                           .params = params,
                           .tensors = tensors,
                           .scratch = scratch,
                           .max_rows = max_rows,
                           .max_columns = max_columns};
}

/* Computes the bytes of scratch memory for tiles of at most max_rows rows and blocks of max_columns keys. Returns false
 * on overflow. */
bool fxa__tape_scratch(const fxa__tape *tape, int64_t max_rows, int64_t max_columns, size_t *bytes);
/* Allocates the scratch memory. If tape is NULL, allocates 0 bytes. */
void *fxa__tape_carve(fxa__carver *c, const fxa__tape *tape, int64_t max_rows, int64_t max_columns);

void fxa__tape_batch(fxa__tape_run *run, int32_t b, int32_t q_len, int32_t k_len, int32_t heads);
/* Sets n rows with coordinates h and q. Their indices in the sequence (input q_row) are first, first + 1, ... and
 * continue at 0 after q_len - 1, because rows of several heads follow one another. */
void fxa__tape_rows(fxa__tape_run *run, int64_t n, const int32_t *h, const int32_t *q, int64_t first, int64_t q_len);
/* Sets n keys with coordinates k. Their indices in the sequence (input k_row) are first, first + 1, ... */
void fxa__tape_columns(fxa__tape_run *run, int64_t n, const int32_t *k, int64_t first);
/* Prefetches the elements of large tensors that fxa__tape_row will read for this row and these columns. */
void fxa__tape_prefetch(fxa__tape_run *run, int64_t row, int64_t first, int64_t n);
/* For FXA__TAPE_MASK_ALONE: computes the mask of rows row..row+n of those set by fxa__tape_rows, in `words` words per
 * row. Bit c of a row is 1 if the row attends to column c; bits past the last column are 0. same [n]: 1 = the row has
 * the bits of the previous row, and its words are not written. same may be 0 for such rows too. */
void fxa__tape_mask(fxa__tape_run *run, int64_t row, int64_t n, uint64_t *bits, int64_t words, uint8_t *same);
/* Returns the number of operations per (row, key) pair that evaluate the mask if no row reuses the bits of the previous
 * row. */
int64_t fxa__tape_mask_cost(const fxa__tape *tape);
/* Runs row `row` of those set by fxa__tape_rows, in columns first..first+n of those set by fxa__tape_columns. score,
 * dscore and out point at column `first` and are aligned for real. SCORE programs: computes the new scores; out may be
 * score. DERIVATIVE and BPROP programs: computes the gradient by the scaled score, exactly 0 where dscore is exactly 0,
 * and adds to the gradients of params and captured tensors (run->dparams, run->sums); out may be dscore. */
void fxa__tape_row(fxa__tape_run *run, int64_t row, int64_t first, int64_t n, const void *score, const void *dscore,
                   void *out);
/* For FXA__TAPE_JOINT: runs the derivative for the row, columns and scores of the last fxa__tape_row. dscore and out
 * are as in fxa__tape_row of a DERIVATIVE program. */
void fxa__tape_row_back(fxa__tape_run *run, int64_t n, const void *dscore, void *out);

#endif
