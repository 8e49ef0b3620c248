/* SPDX-License-Identifier: Apache-2.0
 *
 * Random attention problems, complete: an attn_data whose shapes, layouts, lengths, pages, maps and programs are drawn,
 * and the same thing in the oracle's terms. A case is run through the public API and compared element by element;
 * memory that a run must not touch is compared byte by byte, and what it must not read holds NaN.
 */
#ifndef FXA_TESTS_ATTN_CASE_H
#define FXA_TESTS_ATTN_CASE_H

#include "attn_data.h"
#include "attn_oracle.h"

#include "fxattn/fxattn.h"

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

enum { /* what a case may draw; without a bit that feature is plain */
       ATTN_GQA = 1 << 0,
       ATTN_DIMS = 1 << 1, /* d != dv */
       ATTN_PADDING = 1 << 2,
       ATTN_VARLEN = 1 << 3,
       ATTN_PAGED = 1 << 4,
       ATTN_SINK_ZERO = 1 << 5,
       ATTN_SINK = 1 << 6,
       ATTN_DROPOUT = 1 << 7,
       ATTN_MAPS = 1 << 8,
       ATTN_DTYPES = 1 << 9,
       ATTN_STRIDES = 1 << 10,
       ATTN_ACC = 1 << 11,
       ATTN_READY = 1 << 12,
       ATTN_DLSE = 1 << 13,
       ATTN_LENGTHS = 1 << 14, /* problem.q_len, k_len */
       ATTN_PROGRAM = 1 << 15,
       ATTN_SOME_GRADS = 1 << 16, /* not every gradient */
       ATTN_SMOOTH = 1 << 17,     /* only twins without kinks */
       ATTN_ROWS = 1 << 18,       /* q of each batch entry is moved: positions, or aligned to the last key */
       ATTN_CHUNKED = 1 << 19, /* VARLEN keeps PADDING, which makes gaps, and PAGED; without it those two are dropped */
       ATTN_MIXED = 1 << 20,   /* with DTYPES: each of Q, K, V has its own, unless one is f64 */
       ATTN_APART = 1 << 21    /* all operands of rows PITCHED; not in ALL */
};
#define ATTN_ALL (((1u << 21) - 1) & ~(uint32_t)ATTN_SMOOTH)

typedef struct attn_case {
    fxa_context *ctx;
    const char *engine;
    uint32_t features;
    bool kinds;    /* draws of what is compiled for come from */
    uint64_t kind; /* this, else from what all others come from */
    const oracle_twin *twin;
    attn_data data;
    oracle x;
    double *dense[FXA_SLOT_COUNT]; /* the oracle's arrays by slot */
    double *tensor[ORACLE_TENSORS];
    void *owned[96];
    int n_owned;
    char why[400]; /* of the last failure */
} attn_case;

/* Sizes of a case where they are not to be drawn as small ones. */
typedef struct attn_shape {
    int64_t b, hq, hkv, sq, sk, d, dv;
    int64_t page_size, n_pages;
    int64_t window; /* the widest */
    uint64_t kind;  /* not 0: what engines compile for is drawn from this, the same whatever the sizes */
} attn_shape;

/* Where draws come from that decide what is compiled. */
uint64_t *attn_case_kind(attn_case *c, uint64_t *rng);

/* Draws a case for an engine; false (with why) when the library refuses to parse its program. */
bool attn_case_draw(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features, uint64_t *rng);
bool attn_case_draw_shape(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features,
                          const attn_shape *shape, uint64_t *rng);
void attn_case_free(attn_case *c);
/* One line on what was drawn. */
void attn_case_describe(const attn_case *c, char *out, size_t capacity);

/* The live element of batch entry b, position s of an operand; false when there is none. */
bool attn_case_at(const attn_case *c, fxa_slot slot, int64_t b, int64_t s, int64_t at[4]);

/* A pass of the case, with the params, scale and seed of the oracle. */
void attn_case_call(const attn_case *c, fxa_pass pass, attn_call *call);
/* Runs one pass of the case as it stands; why on failure. */
bool attn_case_run(attn_case *c, fxa_pass pass);

/* Forward against the oracle; then backward, from the oracle's O and LSE as they round to storage. */
bool attn_case_check_forward(attn_case *c);
bool attn_case_check_backward(attn_case *c);

#endif
