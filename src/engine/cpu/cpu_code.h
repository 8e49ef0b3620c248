/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cpu engine compiles, and the view of one work item that forward, decode and backward share.
 *
 * Rows are stacked: the query rows of all heads that share a KV head are the rows of one tall matrix,
 * row r = (head of the group) * q_len + q, so that grouped heads share packed keys and a decode step still has rows.
 */
#ifndef FXA_ENGINE_CPU_CPU_CODE_H
#define FXA_ENGINE_CPU_CPU_CODE_H

#include "cpu.h"
#include "tape.h"

typedef struct fxa__cpu_code {
    fxa__host *host;
    const fxa__cpu_kernels *kernels;
    fxa__tape *score;      /* the program without its mask: for tiles where the mask is true everywhere; NULL: identity */
    fxa__tape *masked;     /* the program with its mask; NULL: identity and no mask */
    fxa__tape *derivative; /* backward: by score (unless a bprop is given) and `grad` statements; NULL: identity */
    fxa__tape *bprop;      /* backward: the user's own */
    fxa_facts facts;       /* of the composed program */
    int32_t width;         /* threads of the context's pool */
    char detail[64];       /* "avx512, 2 threads" */
} fxa__cpu_code;

/* One (b, KV head) of a run. */
typedef struct fxa__cpu_group {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bind *bind;
    int64_t b, hkv;
    fxa__seq seq;
    int64_t heads; /* query heads of the group */
    int64_t rows;  /* heads * seq.q_len */
} fxa__cpu_group;

void fxa__cpu_group_enter(fxa__cpu_group *g, int64_t b, int64_t hkv);

/* Local head and position of stacked row r. */
static inline int64_t fxa__cpu_row_head(const fxa__cpu_group *g, int64_t r) { return g->hkv * g->heads + r / g->seq.q_len; }
static inline int64_t fxa__cpu_row_q(const fxa__cpu_group *g, int64_t r) { return r % g->seq.q_len; }

/* Rows first..first+n of a [.,.,.,D] operand (slot Q, O, DO) or keys of (K, V), as real [n,ld] times factor. False when an
 * element is not finite: then zeroes in the other factor must be skipped, not multiplied ("zero wins"). */
bool fxa__cpu_load_rows(const fxa__cpu_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x, int64_t ld);
bool fxa__cpu_load_keys(const fxa__cpu_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld);

/* Coordinates that programs see. */
void fxa__cpu_row_coords(const fxa__cpu_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q);
void fxa__cpu_key_coords(const fxa__cpu_group *g, int64_t first, int64_t n, int32_t *k);

/* What the mask leaves of rows first..first+n and keys key..key+m: its class, and the columns begin..end (relative to key)
 * outside of which no pair is attended. Cheap when the mask bounds q - k by constants, by range analysis otherwise. */
fxa_tile fxa__cpu_columns(const fxa__cpu_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                          int64_t *end);

/* The passes. Workspace: exact bytes for one run, all workers together; false on overflow. */
bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, size_t *bytes);
void fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bind *bind);
bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, size_t *bytes);
void fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bind *bind);

#endif
