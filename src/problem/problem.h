/* SPDX-License-Identifier: Apache-2.0
 *
 * A validated problem. fxa__problem_create is the only validator of the library: front ends and engines rely on its
 * checks and do not validate sizes, strides or dtypes again.
 */
#ifndef FXA_PROBLEM_PROBLEM_H
#define FXA_PROBLEM_PROBLEM_H

#include "../program/program.h"

typedef struct fxa__problem {
    atomic_size_t refs;
    fxa__host *host;
    size_t bytes;
    /* A copy of the caller's struct, with these changes:
     * - struct_size is the size of fxa_problem in this library.
     * - Default values of hkv, d_v and dtypes are filled in. Fields that the problem does not use are cleared.
     * - Every operand has the layout STRIDED and explicit strides; strides of unused operands and absent axes are 0.
     *   LSE, dLSE and row maximum use stride[0..2], sinks stride[1].
     * - The step of an index map is never 0. Every capture has explicit strides, and so has the gradient of a capture.
     * - captures and target point into this object. program and bprop, if not NULL, are retained.
     * - engine is NULL, because the plan stores the engine. */
    fxa_problem in;
    /* The program that engines lower, never NULL: in.program with built-in masks appended. q_row is replaced by q, and
     * k_row by k, where the two always have the same value in this problem. */
    fxa_program *program;
    /* The user-written backward program, with q_row and k_row replaced as in `program`. NULL = gradients come from the
     * derivative of `program`. */
    fxa_program *bprop;
    bool f64;            /* true if q is f64: arithmetic and programs run in f64 */
    bool indices_proven; /* true if FXA_BOUNDS_CHECK is set and every index is proven in bounds: runs check no index */
    /* Hash of all fields except `engine` and `target`. A plan key adds the name and the identity of the engine. */
    uint8_t key[16];
} fxa__problem;

/* Returns the d_v with which a caller creates the same problem: FXA_D_V_ZERO for 0, because a caller's 0 means d_qk. */
static inline int64_t fxa__d_v_given(const fxa_problem *resolved) {
    return resolved->d_v == 0 && resolved->d_qk > 0 ? FXA_D_V_ZERO : resolved->d_v;
}
/* Checks, copies and resolves the caller's struct. *out has one reference, or is NULL on failure. The caller's struct
 * and arrays may be freed afterwards. */
fxa_status fxa__problem_create(fxa__host *host, const fxa_problem *problem, fxa__problem **out, fxa_error *err);
/* Adds a reference and returns p, which may be NULL. */
fxa__problem *fxa__problem_retain(fxa__problem *p);
/* Drops a reference; dropping the last reference frees p. p may be NULL. */
void fxa__problem_release(fxa__problem *p);

/* Parts of a problem that compiled code may read at run time. An engine whose code reads a part at run time omits this
 * part from the key of the code, so that problems which differ only in that part share code. */
enum {
    /* sizes and strides: b, sq, sk, total_q, total_k, n_pages, strides and capture sizes, map bases, global_q_len,
     * global_k_len, global_heads, and the flag BOUNDS_CHECK */
    FXA__WITH_GEOMETRY = 1,
    FXA__WITH_HEADS = 2,   /* hq, hkv */
    FXA__WITH_WINDOW = 4,  /* window_left, window_right */
    FXA__WITH_DROPOUT = 8, /* the rate dropout_p; the flag DROPOUT belongs to no part */
    /* place of the data: device, ordinal, alignment, max_workspace, flags DETERMINISTIC and GRAPH_CAPTURE */
    FXA__WITH_PLACE = 16,
    FXA__WITH_ALL = 31
};

/* Writes the canonical bytes of a problem (docs/plan-bytes.md). `parts` are FXA__WITH_x bits; fields of other parts are
 * omitted. p->key is the hash of the bytes with FXA__WITH_ALL. Sets w->failed if memory runs out. */
void fxa__problem_write(const fxa__problem *p, uint32_t parts, fxa__writer *w);
/* Reads the bytes that fxa__problem_write wrote with FXA__WITH_ALL, and creates the problem. The bytes may come from an
 * untrusted source: fails with E_BYTES or E_VERSION for malformed bytes. */
fxa_status fxa__problem_read(fxa__host *host, fxa__reader *r, fxa__problem **out, fxa_error *err);

#endif
