/* SPDX-License-Identifier: Apache-2.0
 *
 * Random attention problems: an attn_data whose shapes, layouts, lengths, pages, maps and programs are drawn, and the
 * same problem for the oracle. A case runs through the public API. Results are compared element by element. Memory that
 * a run must not write is compared byte by byte, and memory that a run must not read holds NaN.
 */
#ifndef FXA_TESTS_ATTN_CASE_H
#define FXA_TESTS_ATTN_CASE_H

#include "attn_data.h"
#include "attn_oracle.h"

#include "fxattn/fxattn.h"

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

enum { /* features that a case may draw */
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
       ATTN_LENGTHS = 1 << 14, /* global_q_len, global_k_len */
       ATTN_PROGRAM = 1 << 15,
       ATTN_SOME_GRADS = 1 << 16, /* requests a random subset of the gradients */
       ATTN_SMOOTH = 1 << 17,     /* draws only twins without kinks */
       ATTN_ROWS = 1 << 18,       /* shifts q of each batch entry: start positions, or alignment to the last key */
       ATTN_CHUNKED = 1 << 19,    /* VARLEN goes with PADDING (gaps between sequences) and PAGED; otherwise it excludes
                                  both */
       ATTN_MIXED = 1 << 20,      /* with DTYPES: Q, K and V have different dtypes, unless one is f64 */
       ATTN_APART = 1 << 21       /* all operands of rows have style PITCHED; not in ATTN_ALL */
};
#define ATTN_ALL (((1u << 21) - 1) & ~(uint32_t)ATTN_SMOOTH)

typedef struct attn_case {
    fxa_context *ctx;
    const char *engine;
    uint32_t features;
    bool kinds;    /* true = properties that determine compiled code are drawn from `kind`, not from the case's seed */
    uint64_t kind; /* random state for properties that determine compiled code */
    const oracle_twin *twin;
    attn_data data;
    oracle x;
    double *dense[FXA_SLOT_COUNT]; /* the oracle's arrays by slot */
    double *tensor[ORACLE_TENSORS];
    void *owned[96];
    int n_owned;
    char why[400]; /* reason of the last failure */
} attn_case;

/* Sizes of a case, which replace small random sizes. */
typedef struct attn_shape {
    int64_t b, hq, hkv, sq, sk, d, dv;
    int64_t page_size, n_pages;
    int64_t window; /* maximum window */
    uint64_t kind;  /* not 0 = random state for the properties that determine compiled code, independent of sizes */
} attn_shape;

/* Returns the random state from which properties that determine compiled code are drawn. */
uint64_t *attn_case_kind(attn_case *c, uint64_t *rng);

/* Draws a case for an engine. Returns false, with c->why, if the library refuses to parse its program. */
bool attn_case_draw(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features, uint64_t *rng);
bool attn_case_draw_shape(attn_case *c, fxa_context *ctx, const char *engine, uint32_t features,
                          const attn_shape *shape, uint64_t *rng);
void attn_case_free(attn_case *c);
/* Writes the drawn properties as one line. */
void attn_case_describe(const attn_case *c, char *out, size_t capacity);

/* Writes to `at` the index, in memory, of position s of batch entry b of an operand. Returns false if position s does
 * not exist. */
bool attn_case_at(const attn_case *c, fxa_slot slot, int64_t b, int64_t s, int64_t at[4]);

/* Makes the problem and the arguments of a pass, with params, scale and seed of the oracle. */
void attn_case_call(const attn_case *c, fxa_pass pass, attn_call *call);
/* Runs one pass of the case. Returns false, with the reason in c->why, on failure. */
bool attn_case_run(attn_case *c, fxa_pass pass);

/* attn_case_check_forward and _backward run a pass and compare it with the oracle; backward reads the oracle's O and
 * LSE, rounded to storage. Both return false, with the reason in c->why, if results differ. */
bool attn_case_check_forward(attn_case *c);
bool attn_case_check_backward(attn_case *c);

#endif
