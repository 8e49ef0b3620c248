/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem, checked once. fxa__problem_create is the only validator of the library: every front end and engine relies
 * on what it guarantees, and nothing after it looks at sizes, strides or dtypes with doubt.
 */
#ifndef FXA_PROBLEM_PROBLEM_H
#define FXA_PROBLEM_PROBLEM_H

#include "../program/program.h"

#include <math.h>

#define FXA__MAX_D 512 /* features of a row, at most: engines have room for so many on their stacks */

typedef struct fxa__problem {
    atomic_size_t refs;
    fxa__host *host;
    size_t bytes;
    fxa_problem in; /* resolved: struct_size ours; hkv, dv, dtypes filled; every operand STRIDED with explicit strides
                      (packed and paged as documented at the flags; rows use stride[0..2], sinks stride[1]; axes and
                      operands that the problem does not have: strides 0); fields it does not use cleared; captures
                      strided and grad_strided, pointing into this object; program and bprop retained here (program as
                      the user gave it, or NULL); maps with step never 0; engine NULL (it is the plan's) */
    fxa_program *program;    /* what runs: with ready masks appended; never NULL */
    fxa_program *derivative; /* of program; backward only, else NULL */
    bool f64;                /* q is f64: arithmetic and programs are in f64 */
    uint8_t key[16];         /* content of everything but the engine's name */
    uint8_t code_key[16];    /* the same without what an engine with dynamic geometry may leave to the run: b, sq, sk,
                                total_q, total_k, n_pages, strides and capture sizes, map bases, q_len, k_len; and
                                without the flag STRICT_INDEX */
} fxa__problem;

fxa_status fxa__problem_create(fxa__host *host, const fxa_problem *problem, fxa__problem **out, fxa_error *err);
fxa__problem *fxa__problem_retain(fxa__problem *p);
void fxa__problem_release(fxa__problem *p);

/* Canonical bytes of a problem (docs/plan-bytes.md): what the key hashes and what plan bytes hold. with_geometry false
 * leaves out what code_key leaves out. */
void fxa__problem_write(const fxa__problem *p, bool with_geometry, fxa__writer *w);
/* Back, through fxa__problem_create: hostile bytes get a status. */
fxa_status fxa__problem_read(fxa__host *host, fxa__reader *r, fxa__problem **out, fxa_error *err);

/* ---- The pointers of one run (bind.c) -------------------------------------------------------------------------- */

typedef struct fxa__bind {
    void *slot[FXA_SLOT_MAX];
    double scale;
    const double *params;
    const fxa_view *tensors;  /* with data */
    const fxa_view *dtensors; /* data NULL where no gradient is wanted */
    double *dparams;
    const double *bprop_params;
    const fxa_view *bprop_tensors;
    uint64_t seed;
    void *workspace; /* the engine's part */
    size_t workspace_size;
    void *stream;
    void *index_memory; /* STRICT_INDEX: of fxa__index_size */
    fxa__pool *pool; /* set by the run, for engines with threads */
} fxa__bind;

/* Bytes in front of the workspace that the views of a bind need (a multiple of FXA_WORKSPACE_ALIGN). */
size_t fxa__bind_size(const fxa__problem *p);
/* The smallest fxa_args a caller may have, an older one: it reaches the scale, enough for a run without program. */
#define FXA__ARGS_MIN offsetof(fxa_args, params)
/* Checks args against the problem (presence, alignment, overlap, counts, int params, workspace of bind_size +
 * engine_workspace bytes) and lays out views in the workspace. Host memory: also lengths, offsets and page numbers
 * are read and checked, unless `device` is true. Writes nothing but the workspace. */
fxa_status fxa__bind_make(const fxa__problem *p, const fxa_args *args, size_t engine_workspace, bool device,
                          fxa__bind *out, fxa_error *err);

/* What a program reads, without the operands: tables, params and tensors are checked and laid out in views[], of which
 * there is room for twice the captures and those of bprop. Slots of operands are as they are given, also NULL. */
fxa_status fxa__bind_make_inputs(const fxa__problem *p, const fxa_args *args, fxa_view *views, fxa__bind *out,
                                 fxa_error *err);

/* ---- Geometry shared by the engines that run on the host (geometry.c) ------------------------------------------ */

/* One batch entry: how long it is and where it starts. */
typedef struct fxa__seq {
    int64_t q_len, k_len;           /* rows and keys that exist */
    int64_t q_start, k_start;       /* VARLEN: offset of the first row in the packed tensors; else 0 */
    int32_t q_len_seen, k_len_seen; /* what the program reads as q_len, k_len */
    int64_t q_shift;                /* what POSITIONS, or BOTTOM_RIGHT without a ready mask, adds to q */
} fxa__seq;
fxa__seq fxa__seq_get(const fxa__problem *p, const fxa__bind *bind, int64_t b);

/* What k_len - q_len may be, before a run; 0..0 without BOTTOM_RIGHT. */
void fxa__align_range(const fxa_problem *p, int64_t *lo, int64_t *hi);
/* All that q_shift may be, before a run: 0..0 where nothing is added, all of 32 bits where only the run knows. */
void fxa__q_shift_range(const fxa_problem *p, int64_t *lo, int64_t *hi);

/* How the rows of a slot lie (Q K V O, gradients, LSE, row maximum), and how many features they have. */
const fxa_operand *fxa__row_operand(const fxa_problem *p, fxa_slot slot, int64_t *d);

/* Offset in elements of feature 0 of (b, head, position) in operand `t`, position local to the sequence b. */
int64_t fxa__row_offset(const fxa__problem *p, const fxa__seq *seq, const fxa_operand *t, bool is_key,
                        const fxa__bind *bind, int64_t b, int64_t h, int64_t s);

/* Coordinate of local index i: axis is FXA_INPUT_B, _H or _K; of row i the sequence it belongs to decides, too. Wrap to
 * 32 bits as program ints do. */
int32_t fxa__coord(const fxa__problem *p, const fxa__bind *bind, fxa_input axis, int64_t i);
int32_t fxa__row_coord(const fxa__problem *p, const fxa__bind *bind, const fxa__seq *seq, int64_t i);

/* What backward takes for the probability of a new score or a sink. An LSE that was rounded may lie below the largest
 * score; a probability is at most 1 all the same. NaN stays NaN. */
static inline double fxa__probability(double score, double lse) {
    double x = score - lse;
    return x > 0 ? 1 : exp(x);
}

/* ---- Joining partial rows (merge.c): what fxa_merge and FXA_ACC_OUT do to one row ------------------------------ */

/* (o_a, *lse_a) becomes the join of itself and (o_b, lse_b), d features each. Of a side whose weight is exactly 0 no
 * feature is read; both -inf: zeroes and -inf; a NaN LSE makes the row NaN. */
void fxa__merge_row(double *o_a, double *lse_a, const double *o_b, double lse_b, int64_t d);

#endif
