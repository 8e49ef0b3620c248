/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled code of the cpu engine, and the functions that forward, decode and backward share: kv groups, addresses,
 * loading, classification of tiles by the mask.
 *
 * The rows of a kv group are stacked: the query rows of all heads that share a KV head are the rows of one tall matrix,
 * row r = (head of the group) * q_len + q. So the heads share packed keys, and a decode step with one position has
 * several rows.
 */
#ifndef FXA_ENGINE_CPU_CODE_H
#define FXA_ENGINE_CPU_CODE_H

#include "cpu.h"
#include "bytecode/tape.h"

#include "../../problem/geometry.h"

#include <math.h>

/* Bounds of q - k that a mask implies (mask/band.c). The mask is false unless
 *     qa - k <= left[i]  and  k - qa <= right[i],  qa = q for i = 0 and q + k_len - q_len for i = 1,
 * if coordinates and lengths are in 0..2^30 - 1. INT64_MAX: no bound.
 */
typedef struct fxa__cpu_band {
    int64_t left[2], right[2];
    bool exact;     /* the mask is true wherever the bounds hold */
    bool dark;      /* range analysis cannot improve on the bounds for any tile; true whenever `exact` is true */
    uint32_t reads; /* bit i: the mask reads input i */
    int32_t nodes;  /* number of program nodes that the mask depends on */
} fxa__cpu_band;
/* Finds the band of the program's mask. Returns false if memory is exhausted. */
bool fxa__cpu_band_find(fxa__host *host, const fxa_program *program, fxa__cpu_band *out);

typedef struct fxa__cpu_code {
    fxa__host *host;
    const fxa__cpu_kernels *kernels;
    /* for products that compute scores: the kernels that forward uses; their nr equals that of `kernels` */
    const fxa__cpu_kernels *scores;
    /* the problem's program; conditions under which its score is -inf have been moved to its mask */
    fxa_program *program;
    fxa__tape *score;      /* tape of the program without its mask; NULL: the program changes no score */
    bool joined;           /* backward: `score` is a FXA__TAPE_JOINT, which includes the derivative */
    fxa__tape *masked;     /* tape of the program with its mask, if the mask reads the score; else NULL */
    fxa__tape *mask;       /* tape of the mask alone; NULL: there is no mask, or the mask reads the score */
    fxa_program *by_score; /* backward: derivative of `program` by the score; NULL: unused */
    /* backward: tape of the derivative (unless there is a bprop) and of the gradients of captured tensors and params;
     * NULL: no such tape is needed */
    fxa__tape *derivative;
    fxa__tape *bprop;          /* backward: tape of the user's backward program; NULL: none */
    fxa_properties properties; /* properties of `program` */
    fxa__cpu_band band;        /* bounds of q - k that the mask implies */
    bool classify;             /* range analysis of the mask is useful and allocates no memory */
    int32_t width;             /* threads of the context's pool */
    char detail[64];           /* description of the plan: "avx512, 2 threads" */
} fxa__cpu_code;

/* Return the factor of Q before the product with K, and the factor of the scores after it. The product of both is the
 * score scale. If products round Q to bf16, only a power of two, which changes no digit, is applied to Q. */
static inline double fxa__cpu_q_factor(const fxa__cpu_kernels *kernels, double scale) {
    int exponent;
    return !kernels->rounds || scale == 0 || fabs(frexp(scale, &exponent)) == 0.5 ? scale : 1;
}
static inline double fxa__cpu_score_factor(const fxa__cpu_kernels *kernels, double scale) {
    return fxa__cpu_q_factor(kernels, scale) == scale ? 1 : scale;
}

/* Adds `parts` to the progress of a run. Restores the caller's processor state meanwhile: kernels->enter has changed
 * that state, and the caller's fxa_progress_fn requires it. */
static inline void fxa__cpu_progress_add(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, int64_t parts) {
    if (!bound->progress) return;
    if (kernels->leave) kernels->leave();
    fxa__progress_add(bound->progress, parts);
    if (kernels->enter) kernels->enter();
}

enum {
    FXA__CPU_ROW_BLOCK = 16,     /* maximum rows of a row block */
    FXA__CPU_PRODUCT_ROWS = 128, /* maximum rows of a product */
    FXA__CPU_KEY_BLOCK = 512     /* maximum keys of a key block in forward */
};

/* Maximum number of stacked rows for which forward multiplies with keys as they are stored. Backward then computes its
 * scores in the same way. */
#define FXA__CPU_DECODE_ROWS 16
static inline bool fxa__cpu_is_decode(const fxa_problem *p, int64_t rows) {
    return rows <= FXA__CPU_DECODE_ROWS && p->k.stride[3] == 1 && p->v.stride[3] == 1;
}

/* An entry of the cache of range analysis: the class of the mask in a box of coordinates (an interval for each input).
 * Other heads and batch entries often have the same box. */
typedef struct fxa__cpu_range_cache {
    fxa_tile_bounds box;
    uint32_t tile; /* fxa_tile_class of the box; UINT32_MAX = the entry is free */
} fxa__cpu_range_cache;

/* One (batch entry, KV head) of a run. */
typedef struct fxa__cpu_kv_group {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    const fxa_tensor_range *ranges; /* [n_tensors] bounds of captured ints, see fxa__cpu_tensors_scan; NULL: unknown */
    /* [n_range_cache] the worker's cache of range analysis, indexed by a hash of the coordinates */
    fxa__cpu_range_cache *range_cache;
    int64_t n_range_cache; /* capacity of the cache: a power of 2, or 0 */
    int64_t b, hkv;
    fxa__seq seq;
    int64_t heads; /* number of query heads of the kv group */
    int64_t rows;  /* number of stacked rows: heads * seq.q_len */
} fxa__cpu_kv_group;

/* Sets the kv group to (b, hkv). The caller has set code, p, bound and ranges. */
void fxa__cpu_kv_group_enter(fxa__cpu_kv_group *g, int64_t b, int64_t hkv);

/* Return the number of entries that a worker's cache of range analysis should have; set the cache of a kv group and
 * mark all its entries as free. */
int64_t fxa__cpu_range_cache_count(const fxa__cpu_code *code, const fxa__problem *p);
void fxa__cpu_range_cache_clear(fxa__cpu_kv_group *g, fxa__cpu_range_cache *range_cache);

/* Computes the bounds of the captured int tensors that range analysis of the mask can use. ranges: [n_tensors]. */
void fxa__cpu_tensors_scan(const fxa__cpu_code *code, const fxa__bound_args *bound, fxa_tensor_range *ranges);

/* Return the query head of stacked row r, and its index in the sequence. */
static inline int64_t fxa__cpu_row_head(const fxa__cpu_kv_group *g, int64_t r) {
    return g->hkv * g->heads + r / g->seq.q_len;
}
static inline int64_t fxa__cpu_row_q(const fxa__cpu_kv_group *g, int64_t r) { return r % g->seq.q_len; }

/* Address of one row of an operand. Operands are indexed by stacked row (Q, O, DO, DQ, LSE, ROW_MAX, DLSE) or by key
 * (K, V, DK, DV). */
typedef struct fxa__cpu_address {
    char *data; /* address of feature 0 */
    uint32_t dtype;
    int64_t stride; /* elements from one feature to the next */
    int64_t n;      /* number of features */
    int64_t next;   /* bytes from this row to the next */
    int64_t count;  /* number of rows, this one included, that are `next` bytes apart; at least 1 */
} fxa__cpu_address;
fxa__cpu_address fxa__cpu_row_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r);
fxa__cpu_address fxa__cpu_key_address(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k);
/* Sets *at to the next row. Returns false if that row is not `next` bytes after this one. */
static inline bool fxa__cpu_address_step(fxa__cpu_address *at) {
    if (at->count <= 1) return false;
    at->count--;
    at->data += at->next;
    return true;
}
/* Set *at to row r or key k. *at is the address of the row or key before it, or has count 0. */
static inline void fxa__cpu_row_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_row_address(g, slot, r);
}
static inline void fxa__cpu_key_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_key_address(g, slot, k);
}

/* Returns the longest evenly spaced run of keys that starts at `key`, at most n keys. Their features must be
 * contiguous. */
fxa__cpu_stored_rows fxa__cpu_stored_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n);
/* Returns true if the keys of a slot are rows of `dtype` with contiguous features, stride[2] elements apart. Such keys
 * can be packed without loading them. */
bool fxa__cpu_has_dense_keys(const fxa__cpu_kv_group *g, fxa_slot slot, uint32_t dtype);

/* Load rows first..first+n of slot Q, O or DO, multiplied by `factor`, or keys of K or V, as real [n,ld]. Return false
 * if an element is infinite or NaN: products must then skip zeroes of the other factor, so that 0 * inf counts as 0. */
bool fxa__cpu_load_rows(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x,
                        int64_t ld);
bool fxa__cpu_load_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld);

/* Returns the bound arguments with the scales as this engine applies them: for an output, load[slot] is the factor by
 * which its sums are multiplied. */
fxa__bound_args fxa__cpu_bind_scaled(const fxa__bound_args *bound, fxa_pass pass);
/* Stores a row of sums, multiplied by `factor` and by the slot's load and store scales; with `add`, adds it to the
 * stored row. If the slot's amax is requested, updates it with the values before the store scale. */
void fxa__cpu_store(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, fxa_slot slot,
                    const fxa__cpu_address *to, const void *row, double factor, bool add);
/* If the amax of dS is requested, updates it with n gradients by scaled scores, multiplied by the score scale without
 * descales. */
void fxa__cpu_amax_ds(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, const void *ds, int64_t n);

/* Load the coordinates that programs read for n rows or keys. fxa__cpu_key_coords returns true if each coordinate is
 * the previous one plus 1, modulo 2^32. */
void fxa__cpu_row_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q);
bool fxa__cpu_key_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *k);

/* Passes the batch entry of a kv group to a tape (fxa__tape_batch). */
void fxa__cpu_tape_batch(const fxa__cpu_kv_group *g, fxa__tape_run *run);
/* Passes rows first..first+n of a kv group, with coordinates h and q, to a tape (fxa__tape_rows). */
void fxa__cpu_tape_rows(const fxa__cpu_kv_group *g, fxa__tape_run *run, int64_t first, int64_t n, const int32_t *h,
                        const int32_t *q);
/* Returns the seed, threshold and coordinates that determine the dropout decisions of a row. */
fxa__cpu_dropout_row fxa__cpu_dropout_row_make(const fxa__cpu_kv_group *g, int32_t h, int32_t q);

/* Returns the class of the mask (empty, full or mixed) in rows first..first+n and keys key..key+m. No pair outside of
 * columns *begin..*end, relative to `key`, is attended. Cheap if the mask bounds q - k by constants; else uses range
 * analysis. */
fxa_tile_class fxa__cpu_mask_classify(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m,
                                      int64_t *begin, int64_t *end);

/* Computes the columns of rows whose mask is a band: a row with coordinate q attends exactly to columns q + *begin .. q
 * + *end (exclusive) of keys key..key+m. Both ends may be outside of 0..m. Returns false if the mask is not a band. */
bool fxa__cpu_band_columns(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                           int64_t *end);

/* Set *rows and *keys to the size of the smallest sub-block that a pass omits if its mask is false. Exceptions: with
 * mask bits, a pass may omit fewer rows; short gaps between sub-blocks are computed (mask/sub_blocks.c). */
void fxa__cpu_forward_min_sub_block(const fxa__cpu_kernels *kernels, const fxa_problem *p, int32_t *rows,
                                    int32_t *keys);
void fxa__cpu_backward_min_sub_block(const fxa__cpu_kernels *kernels, int32_t *rows, int32_t *keys);

/* fxa__cpu_x_workspace computes the exact bytes of a run with all its workers, and returns false on overflow.
 * fxa__cpu_x runs a pass. It returns false, and does nothing, if the bound workspace is too small, which the plan
 * prevents. */
bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);
bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);

#endif
