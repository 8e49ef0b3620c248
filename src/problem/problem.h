/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem, checked once. fxa__problem_create is the only validator of the library: every front end and engine relies
 * on what it guarantees, and nothing after it looks at sizes, strides or dtypes with doubt.
 */
#ifndef FXA_PROBLEM_PROBLEM_H
#define FXA_PROBLEM_PROBLEM_H

#include "../program/program.h"

typedef struct fxa__problem {
    atomic_size_t refs;
    fxa__host *host;
    size_t bytes;
    fxa_problem in; /* resolved: struct_size ours; hkv, dv, dtypes filled; every operand STRIDED with explicit strides
                      (packed and paged as documented at the flags; rows use stride[0..2], sinks stride[1]; axes and
                      operands that the problem does not have: strides 0); fields it does not use cleared; captures
                      strided and grad_strided, pointing into this object, as target does; program and bprop retained
                      here (program as the user gave it, or NULL); maps with step never 0; engine NULL (it is the
                      plan's) */
    fxa_program *program; /* what runs: with ready masks appended, and with q for q_row (k for k_row) where the problem
                             does not move it; never NULL */
    fxa_program *bprop;   /* likewise what runs of in.bprop; NULL: the derivative does */
    bool f64;             /* q is f64: arithmetic and programs are in f64 */
    bool indices_inside;  /* FXA_BOUNDS_CHECK, and no index can leave its tensor: runs have nothing to check */
    uint8_t key[16]; /* content of everything but the engine's name and the target, which the identity of the engine
                             says */
} fxa__problem;

/* dv as a caller says it: of a resolved problem, to make another of it. */
static inline int64_t fxa__dv_given(const fxa_problem *resolved) {
    return resolved->d_v == 0 && resolved->d_qk > 0 ? FXA_D_V_ZERO : resolved->d_v;
}
fxa_status fxa__problem_create(fxa__host *host, const fxa_problem *problem, fxa__problem **out, fxa_error *err);
fxa__problem *fxa__problem_retain(fxa__problem *p);
void fxa__problem_release(fxa__problem *p);

/* What an engine may leave to the run, and out of the key of its code. */
enum {
    FXA__WITH_GEOMETRY = 1, /* b, sq, sk, total_q, total_k, n_pages, strides and capture sizes, map bases, q_len, k_len,
                               heads, and the flag STRICT_INDEX */
    FXA__WITH_HEADS = 2,    /* hq, hkv */
    FXA__WITH_WINDOW = 4,   /* window_left, window_right */
    FXA__WITH_DROPOUT = 8,  /* dropout_p, but not whether there is any */
    FXA__WITH_PLACE = 16,   /* device, ordinal, alignment, max_workspace, and the flags DETERMINISTIC and CAPTURE */
    FXA__WITH_ALL = 31
};

/* Canonical bytes of a problem (docs/plan-bytes.md) with those parts; with all, what the key hashes. */
void fxa__problem_write(const fxa__problem *p, uint32_t parts, fxa__writer *w);
/* Back, through fxa__problem_create: hostile bytes get a status. */
fxa_status fxa__problem_read(fxa__host *host, fxa__reader *r, fxa__problem **out, fxa_error *err);

#endif
