/* SPDX-License-Identifier: Apache-2.0
 *
 * Independent attention for comparison with engines: dense f64 matrices, one (b, h) at a time, without code of the
 * library. Score functions are C functions ("twins" of program texts) with derivatives written by hand; dropout has its
 * own Philox. Inputs that have strides, offsets, pages and maps in the library are plain arrays here.
 */
#ifndef FXA_TESTS_ATTN_ORACLE_H
#define FXA_TESTS_ATTN_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

enum { ORACLE_PARAMS = 3, ORACLE_TENSORS = 2, ORACLE_LOADS = 3 };

typedef struct oracle_tensor {
    int rank;
    int64_t size[2];
    const double *data; /* dense elements; ints are stored as doubles */
} oracle_tensor;

/* Inputs of a score function at one pair. */
typedef struct oracle_pair {
    double score;
    int32_t b, h, q, k, q_len, k_len, heads, q_row, k_row;
    const double *param;
    const oracle_tensor *tensor;
} oracle_pair;

/* Results of a score function: new score, and derivatives by score, params and loaded elements. */
typedef struct oracle_value {
    double score, by_score;
    bool mask;
    double by_param[ORACLE_PARAMS];
    int n_loads;
    struct {
        int tensor;
        int64_t at;
        double by;
    } load[ORACLE_LOADS]; /* at: dense index of the loaded element; -1 = out of bounds */
} oracle_value;

typedef void (*oracle_fn)(const oracle_pair *in, oracle_value *out);

/* Returns element t[i] or t[i, j]: a negative index counts from the end, and an index that is still out of bounds reads
 * 0. Records the load in *out; the twin sets the derivative `by` of the load. */
double oracle_load(const oracle_pair *in, oracle_value *out, int tensor, int32_t i, int32_t j);

typedef struct oracle_twin {
    const char *name;
    const char *text; /* program text, in which %s stands for the dtype of tensor 0, any float dtype */
    int n_params, n_tensors;
    bool int_param;  /* true: param 0 is an int */
    bool int_tensor; /* true: tensor 0 is an i32 tensor */
    bool smooth;     /* true: differentiable everywhere in score, params and tensors */
    int rank[ORACLE_TENSORS];
    oracle_fn fn;
} oracle_twin;
extern const oracle_twin oracle_twins[];
extern const int oracle_twin_count;

typedef struct oracle {
    int64_t b, hq, hkv, sq, sk, d, dv;
    const int64_t *q_len, *k_len;             /* [B] number of rows and of keys of each batch entry */
    const int32_t *seen_q, *seen_k;           /* [B] lengths that score functions see */
    int32_t seen_heads;                       /* number of heads that score functions see; 0 = hq */
    const int32_t *at_b, *at_h, *at_q, *at_k; /* coordinates by local index; shift_q is added to coordinates of rows */
    const int32_t *shift_q;                   /* [B]; NULL = 0 */
    oracle_fn fn;
    double param[ORACLE_PARAMS];
    oracle_tensor tensor[ORACLE_TENSORS];
    bool causal, window, bottom_right; /* built-in masks */
    int64_t left, right;
    double scale;
    bool sink;
    const double *sink_score; /* [Hq] */
    bool dropout;
    double dropout_p;
    uint64_t seed;
    /* Shapes: q [B,Hq,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv], dout [B,Hq,Sq,Dv], dlse [B,Hq,Sq]. */
    const double *q, *k, *v, *dout, *dlse;
    double *o, *lse, *max;             /* results of forward; o and lse are inputs of backward */
    double *dq, *dk, *dv_grad, *dsink; /* results of backward */
    double dparam[ORACLE_PARAMS];
    double *dtensor[ORACLE_TENSORS];
} oracle;

/* Returns the coordinate q of local row q of batch entry b. */
int32_t oracle_row_at(const oracle *x, int64_t b, int64_t q);

void oracle_forward(oracle *x);
void oracle_backward(oracle *x);

/* Computes Philox4x32-10, directly from its definition. */
void oracle_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
