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

/* Bounds of q - k that a mask implies (mask/band.c). The mask is false for a (query, key) pair with coordinates q and
 * k unless, for i = 0 and for i = 1,
 *     qa - k <= left[i]  and  k - qa <= right[i],  where qa = q if i = 0, and qa = q + k_len - q_len if i = 1.
 * Coordinates and lengths must be in 0..2^30 - 1. INT64_MAX: no bound.
 */
typedef struct fxa__cpu_band {
    int64_t left[2], right[2];
    bool exact;     /* the mask is true for all (query, key) pairs within the bounds `left` and `right` */
    bool dark;      /* `left` and `right` imply all that range analysis finds about a tile; true if `exact` is true */
    uint32_t reads; /* bit i: the mask reads input i */
    int32_t nodes;  /* number of program nodes that the mask depends on */
} fxa__cpu_band;
/* Finds the bounds of q - k that the program's mask implies. Returns false if memory is exhausted. */
bool fxa__cpu_band_find(fxa__host *host, const fxa_program *program, fxa__cpu_band *out);

typedef struct fxa__cpu_code {
    fxa__host *host;
    const fxa__cpu_kernels *kernels;
    /* kernels for products that compute scores: those that forward uses. scores->nr equals kernels->nr */
    const fxa__cpu_kernels *scores;
    /* the problem's program, after all conditions that make the score -inf are moved from the score to the mask */
    fxa_program *program;
    fxa__tape *score;      /* tape of the program without its mask; NULL: the program changes no score */
    bool joined;           /* backward: `score` computes the derivative too (FXA__TAPE_JOINT) */
    fxa__tape *masked;     /* tape of the program with its mask, if the mask reads the score; else NULL */
    fxa__tape *mask;       /* tape of the mask alone; NULL: there is no mask, or the mask reads the score */
    fxa_program *by_score; /* backward: derivative of `program` by the score; NULL: unused */
    /* backward: tape of the gradients of captured tensors and params and, without a bprop, of the derivative;
     * NULL: these are not needed, or `score` computes them (`joined`) */
    fxa__tape *derivative;
    fxa__tape *bprop;          /* backward: tape of the user's backward program; NULL: none */
    fxa_properties properties; /* properties of `program` */
    fxa__cpu_band band;        /* bounds of q - k that the mask implies */
    /* range analysis may find more about tiles than `band` has, and allocates no memory (the mask has few nodes) */
    bool classify;
    int32_t width;   /* number of threads of the context's pool */
    char detail[64]; /* description of the plan: "avx512, 2 threads" */
} fxa__cpu_code;

/* Returns the factor by which Q is multiplied before the product with K. It is the score scale. It is 1, however, if
 * products round Q to bf16 and the scale is not 0 or a power of two: multiplying Q would change its rounding. */
static inline double fxa__cpu_q_factor(const fxa__cpu_kernels *kernels, double scale) {
    int exponent;
    return !kernels->rounds || scale == 0 || fabs(frexp(scale, &exponent)) == 0.5 ? scale : 1;
}
/* Returns the factor by which scores are multiplied after the product: 1 if Q has been multiplied by the score scale,
 * else the score scale. */
static inline double fxa__cpu_score_factor(const fxa__cpu_kernels *kernels, double scale) {
    return fxa__cpu_q_factor(kernels, scale) == scale ? 1 : scale;
}

/* Adds `parts` to the progress of a run, which may call the caller's fxa_progress_fn. That function requires the
 * processor state from before kernels->enter, so kernels->leave restores it for the call. */
static inline void fxa__cpu_progress_add(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, int64_t parts) {
    if (!bound->progress) return;
    if (kernels->leave) kernels->leave();
    fxa__progress_add(bound->progress, parts);
    if (kernels->enter) kernels->enter();
}

enum {
    FXA__CPU_ROW_BLOCK = 16,     /* maximum rows of a row block */
    FXA__CPU_PRODUCT_ROWS = 128, /* maximum rows of a matrix product */
    FXA__CPU_KEY_BLOCK = 512     /* maximum keys of a key block in forward */
};

/* Maximum number of stacked rows of a kv group for which forward, and backward when it recomputes scores, multiply with
 * keys as they are stored, without packing them. */
#define FXA__CPU_DECODE_ROWS 16
static inline bool fxa__cpu_is_decode(const fxa_problem *p, int64_t rows) {
    return rows <= FXA__CPU_DECODE_ROWS && p->k.stride[3] == 1 && p->v.stride[3] == 1;
}

/* An entry of the cache of range analysis: a box (an interval of values for each input of the mask), and the class of
 * the mask in that box. Tiles of other heads and batch entries often have the same box. */
typedef struct fxa__cpu_range_cache {
    fxa_tile_bounds box;
    uint32_t tile; /* class of the mask for all pairs in `box` (fxa_tile_class); UINT32_MAX = the entry is free */
} fxa__cpu_range_cache;

/* One (batch entry, KV head) of a run. */
typedef struct fxa__cpu_kv_group {
    const fxa__cpu_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    /* [n_tensors] bounds of the elements of int tensors that the mask reads; NULL: unknown */
    const fxa_tensor_range *ranges;
    /* [n_range_cache] the worker's cache of range analysis, indexed by a hash of fxa__cpu_range_cache.box */
    fxa__cpu_range_cache *range_cache;
    int64_t n_range_cache; /* capacity of the cache: a power of 2, or 0 */
    int64_t b, hkv;
    fxa__seq seq;
    int64_t heads; /* number of query heads of the kv group */
    int64_t rows;  /* number of stacked rows: heads * seq.q_len */
} fxa__cpu_kv_group;

/* Sets the kv group to (b, hkv). The caller has set code, p, bound and ranges. */
void fxa__cpu_kv_group_enter(fxa__cpu_kv_group *g, int64_t b, int64_t hkv);

/* Returns the number of entries that a worker's cache of range analysis should have. */
int64_t fxa__cpu_range_cache_count(const fxa__cpu_code *code, const fxa__problem *p);
/* Makes range_cache the cache of a kv group, and marks all entries of range_cache as free. */
void fxa__cpu_range_cache_clear(fxa__cpu_kv_group *g, fxa__cpu_range_cache *range_cache);

/* Computes ranges[n_tensors]: bounds of the elements of the captured int tensors that the mask may read. Bounds stay
 * unknown for other tensors, and for all tensors if the mask needs no range analysis (code->classify is false). */
void fxa__cpu_tensors_scan(const fxa__cpu_code *code, const fxa__bound_args *bound, fxa_tensor_range *ranges);

/* Return the query head of stacked row r, and the row's index in the sequence. */
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
/* Sets *at to the next row if that row is `next` bytes after this one. Otherwise returns false, with *at unchanged. */
static inline bool fxa__cpu_address_step(fxa__cpu_address *at) {
    if (at->count <= 1) return false;
    at->count--;
    at->data += at->next;
    return true;
}
/* Set *at to the address of row r or key k. Before the call, *at is the address of row r - 1 or key k - 1, or at->count
 * is 0. */
static inline void fxa__cpu_row_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t r, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_row_address(g, slot, r);
}
static inline void fxa__cpu_key_next(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t k, fxa__cpu_address *at) {
    if (!fxa__cpu_address_step(at)) *at = fxa__cpu_key_address(g, slot, k);
}

/* Returns the longest evenly spaced run of keys that starts at `key`, at most n keys. Their features must be
 * contiguous. */
fxa__cpu_stored_rows fxa__cpu_stored_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n);
/* Returns true if the keys of a slot have this dtype and contiguous features, and each key is stride[2] elements after
 * the previous one. Such keys can be packed without loading them. */
bool fxa__cpu_has_dense_keys(const fxa__cpu_kv_group *g, fxa_slot slot, uint32_t dtype);

/* Loads rows first..first+n of slot Q, O or DO, multiplied by `factor`, as real [n,ld]. Returns false if an element is
 * infinite or NaN: products must then skip zeroes of the other operand, so that 0 * inf counts as 0. */
bool fxa__cpu_load_rows(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, double factor, void *x,
                        int64_t ld);
/* Like fxa__cpu_load_rows, for keys first..first+n of slot K or V. */
bool fxa__cpu_load_keys(const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n, void *x, int64_t ld);

/* Returns a copy of *bound with the scales that this engine applies (scales.c): for an output O, DQ or DK, load[slot]
 * is a factor of the sums that are stored in it. Sets every amax to 0. */
fxa__bound_args fxa__cpu_bind_scaled(const fxa__bound_args *bound, fxa_pass pass);
/* Stores a row of sums as a row of `slot`, multiplied by `factor`, bound->load[slot] and bound->store[slot]; with
 * `add`, adds the row to the stored row. If the slot's amax is requested, updates it with the values before they are
 * multiplied by bound->store[slot]. */
void fxa__cpu_store(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, fxa_slot slot,
                    const fxa__cpu_address *to, const void *row, double factor, bool add);
/* Updates the amax of dS, if requested, with ds[n] * scale: ds are gradients by the scaled scores, and `scale` is the
 * score scale without the descales of Q and K. */
void fxa__cpu_amax_ds(const fxa__cpu_kernels *kernels, const fxa__bound_args *bound, const void *ds, int64_t n);

/* Load the coordinates of n rows (h and q) or of n keys (k), as programs read them. fxa__cpu_key_coords returns true if
 * each k[i] is k[i - 1] + 1, modulo 2^32. */
void fxa__cpu_row_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *h, int32_t *q);
bool fxa__cpu_key_coords(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int32_t *k);

/* Passes the batch entry of a kv group to a tape (fxa__tape_batch). */
static inline void fxa__cpu_tape_batch(const fxa__cpu_kv_group *g, fxa__tape_run *run) {
    fxa__tape_batch(run, fxa__coord(g->p, g->bound, FXA_INPUT_B, g->b), g->seq.q_len_seen, g->seq.k_len_seen,
                    g->seq.heads_seen);
}
/* Passes rows first..first+n of a kv group, with coordinates h and q, to a tape (fxa__tape_rows). */
static inline void fxa__cpu_tape_rows(const fxa__cpu_kv_group *g, fxa__tape_run *run, int64_t first, int64_t n,
                                      const int32_t *h, const int32_t *q) {
    fxa__tape_rows(run, n, h, q, fxa__cpu_row_q(g, first), g->seq.q_len);
}
/* Returns the seed, threshold and coordinates that determine the dropout decisions of a row. */
fxa__cpu_dropout_row fxa__cpu_dropout_row_make(const fxa__cpu_kv_group *g, int32_t h, int32_t q);

/* Returns the class of the mask (empty, full or mixed) in rows first..first+n and keys key..key+m. Sets *begin and
 * *end: only keys key + *begin to key + *end - 1 are attended. Uses range analysis where bounds of q - k do not
 * determine the class. */
fxa_tile_class fxa__cpu_mask_classify(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m,
                                      int64_t *begin, int64_t *end);

/* Sets *begin and *end such that each row attends exactly to the columns q + *begin to q + *end - 1, where q is the
 * row's coordinate. Columns 0..m are keys key..key+m; the computed columns may be outside of 0..m. Returns false if the
 * mask consists of more than bounds of q - k (fxa__cpu_band.exact). */
bool fxa__cpu_band_columns(const fxa__cpu_kv_group *g, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                           int64_t *end);

/* Set *rows and *keys to the size of the smallest sub-block that forward or backward skips if the mask is false in all
 * of it. Exceptions: with mask bits, sub-blocks of fewer rows may be skipped; short gaps between attended sub-blocks
 * are not skipped (mask/sub_blocks.c). */
void fxa__cpu_forward_min_sub_block(const fxa__cpu_kernels *kernels, const fxa_problem *p, int32_t *rows,
                                    int32_t *keys);
void fxa__cpu_backward_min_sub_block(const fxa__cpu_kernels *kernels, int32_t *rows, int32_t *keys);

/* fxa__cpu_forward and fxa__cpu_backward run the forward or backward pass. If the bound workspace is too small, which
 * the plan rules out, they do nothing and return false. The functions _workspace compute the exact bytes of workspace
 * of a run with all its workers, and return false on overflow. */
bool fxa__cpu_forward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_forward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);
bool fxa__cpu_backward_workspace(const fxa__cpu_code *code, const fxa__problem *p, fxa__carver c, size_t *bytes);
bool fxa__cpu_backward(const fxa__cpu_code *code, const fxa__problem *p, const fxa__bound_args *bound);

#endif
