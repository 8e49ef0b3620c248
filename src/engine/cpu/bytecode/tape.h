/* SPDX-License-Identifier: Apache-2.0
 *
 * A score program (or its derivative, or a user's bprop) as a tape: what is the same for a whole batch entry is
 * computed once for it, what depends on the row (h, q) once per row, what depends on the key, or on head and key, once
 * per block of keys (and head), and only the rest costs something per score. The per-score part runs one row at a time:
 * one tape operation after the other over the row's columns, registers of one row each, which stay in L1.
 *
 * Floats are `real`, ints are int32, bools int32 0 or 1, in rows padded to FXA__CPU_PAD bytes.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_H

#include "../cpu.h"

typedef struct fxa__tape fxa__tape;

enum {
    FXA__TAPE_MASK = 1,        /* SCORE programs: also the mask: masked scores become -inf */
    FXA__TAPE_GRADS = 2,       /* DERIVATIVE programs: also the `grad` statements */
    FXA__TAPE_NO_DSCORE = 4,   /* DERIVATIVE programs: only the `grad` statements (dscore comes from a bprop) */
    FXA__TAPE_MASK_ALONE = 16, /* SCORE programs: nothing but the mask, for fxa__tape_mask */
    FXA__TAPE_JOINT =
        32, /* JOINT programs: the score without its mask by fxa__tape_row, then by fxa__tape_row_back what a
                             DERIVATIVE has: what both need is computed once. Scores have the bits of their own tape */
    FXA__TAPE_PLAIN = 8 /* one operation after the other, for tests: nothing is joined or rounded once for twice */
};
fxa_status fxa__tape_create(fxa__host *host, const fxa_program *program, uint32_t flags,
                            const fxa__cpu_kernels *kernels, fxa__tape **out, fxa_error *err);
void fxa__tape_destroy(fxa__tape *tape);
/* The first node of a program that tapes have no operation for, NULL: none, fxa__tape_create can do it. */
const fxa__node *fxa__tape_missing(const fxa_program *program);
/* Its instructions as lines for people. program: what it was made of. */
void fxa__tape_print(const fxa__tape *tape, const fxa_program *program, fxa__writer *w);
size_t fxa__tape_bytes(const fxa__tape *tape);     /* what it costs the cache */
bool fxa__tape_is_identity(const fxa__tape *tape); /* scores or gradients stay as they are, nothing masked or summed */

/* Sums of gradients that a row adds to. sum NULL: not wanted; else its view has dense strides. once: no element gets
 * more than one number, and of each row they lie evenly; they are added to the view's own elements, and sum is NULL. */
typedef struct fxa__tape_sum {
    fxa_view view;
    double *sum;
    bool one_pair_per_element;
} fxa__tape_sum;

/* One worker's state. Laid out in scratch memory that the caller gives; nothing is allocated. */
typedef struct fxa__tape_run {
    const fxa__tape *tape;
    const double *params;
    const fxa_view *tensors;
    double *dparams;           /* FXA__TAPE_GRADS: one per param, added to; NULL: not wanted */
    const fxa__tape_sum *sums; /* FXA__TAPE_GRADS: one per tensor */
    void *scratch;             /* fxa__tape_scratch bytes, aligned to FXA__CPU_PAD */
    int64_t max_rows, max_columns;
    int64_t columns;
} fxa__tape_run;
/* Returns the state of a worker for a tape; NULL: a state that no function may be called with. */
static inline fxa__tape_run fxa__tape_run_make(const fxa__tape *tape, const double *params, const fxa_view *tensors,
                                               void *scratch, int64_t max_rows, int64_t max_columns) {
    return (fxa__tape_run){.tape = tape,
                           .params = params,
                           .tensors = tensors,
                           .scratch = scratch,
                           .max_rows = max_rows,
                           .max_columns = max_columns};
}

/* Bytes of scratch for tiles of at most max_rows rows and blocks of max_columns keys; false: overflow. */
bool fxa__tape_scratch(const fxa__tape *tape, int64_t max_rows, int64_t max_columns, size_t *bytes);
/* The same as a part of other memory; with no tape an empty one. */
void *fxa__tape_carve(fxa__carver *c, const fxa__tape *tape, int64_t max_rows, int64_t max_columns);

void fxa__tape_batch(fxa__tape_run *run, int32_t b, int32_t q_len, int32_t k_len, int32_t heads);
/* n rows with their coordinates h and q. Their q_row is first, first + 1, ... and begins again at 0 where it reaches
 * q_len: rows of several heads follow one another. */
void fxa__tape_rows(fxa__tape_run *run, int64_t n, const int32_t *h, const int32_t *q, int64_t first, int64_t q_len);
/* n keys with their coordinates k, and k_row first, first + 1, ... */
void fxa__tape_columns(fxa__tape_run *run, int64_t n, const int32_t *k, int64_t first);
/* Sends for what fxa__tape_row will read of large tensors for this row and these columns. */
void fxa__tape_prefetch(fxa__tape_run *run, int64_t row, int64_t first, int64_t n);
/* FXA__TAPE_MASK_ALONE: rows row..row+n of those given, `words` words each: bit c of a row is set where it attends to
 * column c of those given; those past the last column are 0. same [n] tells rows that have the bits of the row before
 * them, which some of the others may have too: they are not written. */
void fxa__tape_mask(fxa__tape_run *run, int64_t row, int64_t n, uint64_t *bits, int64_t words, uint8_t *same);
/* Operations that it takes for a pair where no row repeats the one before. */
int64_t fxa__tape_mask_cost(const fxa__tape *tape);
/* Row `row` of those given to fxa__tape_rows, columns first..first+n of those given to fxa__tape_columns; score, dscore
 * and out point at column `first` (alignment of real). SCORE: out gets the new scores (out may be score). DERIVATIVE
 * and BPROP: out gets the gradient by the scaled score, exactly 0 where dscore is exactly 0 (out may be dscore), and
 * grads are added to the sums. */
void fxa__tape_row(fxa__tape_run *run, int64_t row, int64_t first, int64_t n, const void *score, const void *dscore,
                   void *out);
/* FXA__TAPE_JOINT: the way back of the row that fxa__tape_row was called for last, with the same row, first and n and
 * the same score. dscore and out as for a DERIVATIVE. */
void fxa__tape_row_back(fxa__tape_run *run, int64_t n, const void *dscore, void *out);

#endif
