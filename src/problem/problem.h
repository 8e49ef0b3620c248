/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem, checked once. fxa__problem_create is the only validator of the library: every front end and engine relies
 * on what it guarantees, and nothing after it looks at sizes, strides or dtypes with doubt.
 */
#ifndef FXA_PROBLEM_PROBLEM_H
#define FXA_PROBLEM_PROBLEM_H

#include "../program/program.h"

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

#endif
