/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cpu engine compiles, and the view of one work item that forward, decode and backward share.
 *
 * Rows are stacked: the query rows of all heads that share a KV head are the rows of one tall matrix,
 * row r = (head of the group) * q_len + q, so that grouped heads share packed keys and a decode step still has rows.
 */
#ifndef FXA_ENGINE_CPU_CODE_H
#define FXA_ENGINE_CPU_CODE_H

#include "cpu.h"
#include "bytecode/tape.h"

#include "../../problem/geometry.h"

#include <math.h>

/* What the mask says of q - k whatever else it reads (mask/band.c): it is false outside of
 *     qa - k <= left[i]  and  k - qa <= right[i],  qa = q for i = 0 and q + k_len - q_len for i = 1,
 * as long as coordinates and lengths are in 0..2^30 - 1. INT64_MAX: open. */
typedef struct fxa__cpu_band {
    int64_t left[2], right[2];
    bool exact;     /* and true inside */
    bool dark;      /* range analysis can say nothing of what else it reads, whatever the tile: so where it is exact */
    uint32_t reads; /* bit i: the mask reads input i */
    int32_t nodes;  /* of the program that it is made of */
} fxa__cpu_band;
bool fxa__cpu_band_find(fxa__host *host, const fxa_program *program, fxa__cpu_band *out); /* false: out of memory */

typedef struct fxa__cpu_code {
    fxa__host *host;
    const fxa__cpu_kernels *kernels;
    const fxa__cpu_kernels *scores; /* those whose products are scores: forward's, in backward too; their nr is that of
                                       `kernels` */
    fxa_program *program; /* what runs: the problem's, its masks lifted out of its score (fxa__program_extract_masks) */
    fxa__tape *score;     /* the program without its mask, for where that is true; NULL: identity */
    bool joined;          /* backward: `score` is the derivative too, FXA__TAPE_JOINT */
    fxa__tape *masked;    /* the program with its mask, where that reads the score; else NULL */
    fxa__tape *mask;      /* the mask alone, where there is one that does not read the score; else NULL */
    fxa_program *by_score;     /* backward: the derivative of program, where it is used */
    fxa__tape *derivative;     /* backward: by score (unless a bprop is given) and `grad` statements; NULL: identity */
    fxa__tape *bprop;          /* backward: the user's own */
    fxa_properties properties; /* of the composed program */
    fxa__cpu_band band;        /* of its mask */
    bool classify;             /* range analysis of the mask is worth asking, and allocates nothing */
    int32_t width;             /* threads of the context's pool */
    char detail[64];           /* "avx512, 2 threads" */
} fxa__cpu_code;

/* Factors of Q before its product with K and of the scores after it, which make the scale together. Where products
 * round Q, only a scale that changes no digit of it, a power of two, comes before. */
static inline double fxa__cpu_q_factor(const fxa__cpu_kernels *kernels, double scale) {
    int exponent;
    return !kernels->rounds || scale == 0 || fabs(frexp(scale, &exponent)) == 0.5 ? scale : 1;
}
static inline double fxa__cpu_score_factor(const fxa__cpu_kernels *kernels, double scale) {
    return fxa__cpu_q_factor(kernels, scale) == scale ? 1 : scale;
}

/* Between products the processor is the caller's: its fxa_progress_fn may use what `enter` sets up. */
static inline void fxa__cpu_progress_add(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, int64_t parts) {
    if (!bound->progress) return;
    if (kernels->leave) kernels->leave();
    fxa__progress_add(bound->progress, parts);
    if (kernels->enter) kernels->enter();
}

enum {
    FXA__CPU_ROW_BLOCK = 16,     /* rows of a row block, at most */
    FXA__CPU_PRODUCT_ROWS = 128, /* rows that share a product, at most */
    FXA__CPU_KEY_BLOCK = 512     /* keys of a block of forward, at most */
};

/* Stacked rows so few that forward multiplies them straight from storage; backward does for their scores. */
#define FXA__CPU_DECODE_ROWS 16
static inline bool fxa__cpu_is_decode(const fxa_problem *p, int64_t rows) {
    return rows <= FXA__CPU_DECODE_ROWS && p->k.stride[3] == 1 && p->v.stride[3] == 1;
}

/* What range analysis said of a box. Other heads, and other entries of a batch, mostly ask the same. */
typedef struct fxa__cpu_range_cache {
    fxa_tile_bounds box;
    uint32_t tile; /* UINT32_MAX: nothing yet */
} fxa__cpu_range_cache;

/* One (b, KV head) of a run. */
typedef struct fxa__cpu_kv_group {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    const fxa_tensor_range *ranges;    /* of the program's tensors, see fxa__cpu_tensors_scan; NULL: nothing known */
    fxa__cpu_range_cache *range_cache; /* the worker's own, by hash; */
    int64_t n_range_cache;             /* a power of 2, or 0 */
    int64_t b, hkv;
    fxa__seq seq;
    int64_t heads; /* query heads of the group */
    int64_t rows;  /* heads * seq.q_len */
} fxa__cpu_kv_group;

/* Moves to (b, hkv); code, p, bound and ranges are set by the caller. */
void fxa__cpu_kv_group_enter(fxa__cpu_kv_group *g, int64_t b, int64_t hkv);

/* How many answers of range analysis a worker should keep, and the beginning. */
int64_t fxa__cpu_range_cache_count(const fxa__cpu_code *code, const fxa__problem *p);
void fxa__cpu_range_cache_clear(fxa__cpu_kv_group *g, fxa__cpu_range_cache *range_cache);

/* Looks once at the int tensors that range analysis of the mask can use: ranges has one entry per tensor. */
void fxa__cpu_tensors_scan(const fxa__cpu_code *code, const fxa__bound_args *bound, fxa_tensor_range *ranges);

/* Local head and position of stacked row r. */
static inline int64_t fxa__cpu_row_head(const fxa__cpu_kv_group *g, int64_t r) {
    return g->hkv * g->heads + r / g->seq.q_len;
}
static inline int64_t fxa__cpu_row_q(const fxa__cpu_kv_group *g, int64_t r) { return r % g->seq.q_len; }

/* Where one row of an operand lies: Q, O, DO, DQ, LSE, ROW_MAX, DLSE by stacked row, K, V, DK, DV by key. */
typedef struct fxa__cpu_address {
    char *data; /* feature 0 */
    uint32_t dtype;
    int64_t stride, n; /* elements from one feature to the next; features */
    int64_t next;      /* bytes from this row to the one after it */
    int64_t count;     /* rows, from this one on, that are each `next` bytes after the one before; at least 1 */
} fxa__cpu_address;
fxa__cpu_address fxa__cpu_row_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r);
fxa__cpu_address fxa__cpu_key_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k);
/* One further, if that lies like this one. */
static inline bool fxa__cpu_address_step(fxa__cpu_address *at) {
    if (at->count <= 1) return false;
    at->count--;
    at->data += at->next;
    return true;
}
/* Moves *at to row r or key k, from the one before or, when at->count is 0, from anywhere. */
static inline void fxa__cpu_row_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_row_address(g, slot, r);
}
static inline void fxa__cpu_key_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_key_address(g, slot, k);
}

/* Keys from `key` on, at most n, that lie evenly; their features are dense. */
fxa__cpu_stored_rows fxa__cpu_stored_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n);
/* Keys of a slot are rows of `dtype`, features dense, stride[2] elements apart: what packs that needs no loading. */
bool fxa__cpu_has_dense_keys(const fxa__cpu_kv_group *g, fxa_slot slot, uint32_t dtype);

/* Rows first..first+n of a [.,.,.,D] operand (slot Q, O, DO) or keys of (K, V), as real [n,ld] times factor. False when
 * an element is not finite: then zeroes in the other factor must be skipped, not multiplied ("zero wins"). */
bool fxa__cpu_load_rows(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x,
                        int64_t ld);
bool fxa__cpu_load_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld);

/* The scales of a run as this engine multiplies them in: `load` of a slot that is written is what its sums have to be
 * multiplied with. */
fxa__bound_args fxa__cpu_bind_scaled(const fxa__bound_args *bound, fxa_pass pass);
/* A row of sums times factor and what the slot's sums have to be multiplied with, and its scale, to where it goes; and
 * the largest of it before the scale, if that is asked for. */
void fxa__cpu_store(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, fxa_slot slot,
                    const fxa__cpu_address *to, const void *row, double factor, bool add);
/* The largest of gradients by scaled scores, times the scale without descales, if that is asked for. */
void fxa__cpu_amax_ds(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, const void *ds, int64_t n);

/* Load the coordinates that programs see of n rows or keys. fxa__cpu_key_coords returns true if each is the one before
 * plus 1, modulo 2^32. */
void fxa__cpu_row_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q);
bool fxa__cpu_key_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *k);

/* Passes the group's batch entry to a tape. */
void fxa__cpu_tape_batch(const fxa__cpu_kv_group *g, fxa__tape_run *run);
/* Passes rows first..first+n of the group, with coordinates h and q, to a tape. */
void fxa__cpu_tape_rows(const fxa__cpu_kv_group *g, fxa__tape_run *run, int64_t first, int64_t n, const int32_t *h,
                        const int32_t *q);
/* Returns what dropout decides the pairs of a row by, for a row with coordinates h and q. */
fxa__cpu_dropout_row fxa__cpu_dropout_row_make(const fxa__cpu_kv_group *g, int32_t h, int32_t q);

/* What the mask leaves of rows first..first+n and keys key..key+m: its class, and the columns begin..end (relative to
 * key) outside of which no pair is attended. Cheap when the mask bounds q - k by constants, else by range
 * analysis. */
fxa_tile_class fxa__cpu_mask_classify(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m,
                                      int64_t *begin, int64_t *end);

/* Where the mask is nothing but a band: a row of these whose coordinate is q attends to columns q + *begin up to, not
 * including, q + *end of these keys, and to no others; both may lie outside of 0..m. False: the mask must be asked. */
bool fxa__cpu_band_columns(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                           int64_t *end);

/* Rows and keys of the strips that a pass leaves out where its mask is false, in the main: bits may cut rows closer,
 * and a short gap between two strips is not worth leaving out (mask/sub_blocks.c). */
void fxa__cpu_forward_min_sub_block(const fxa__cpu_kernels *kernels, const fxa_problem *p, int32_t *rows,
                                    int32_t *keys);
void fxa__cpu_backward_min_sub_block(const fxa__cpu_kernels *kernels, int32_t *rows, int32_t *keys);

/* The passes; false, and nothing done: the bound arguments' workspace does not hold the run, which its plan sees to.
 * Workspace: exact bytes for one run, all workers together; false on overflow. */
bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);
bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);

#endif
