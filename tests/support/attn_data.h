/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixture of every test that is about an attention problem, in layers, each made of the one before:
 *
 *   attn_spec   a problem as one writes it down; attn_spec_problem describes it to the library, without data
 *   attn_data   the same with a tensor for each slot, programs, params and captured tensors, for both passes
 *   attn_case   data whose every property is drawn, and what an oracle says of it (attn_case.h)
 *   conf_case   a case with any program, and how far an engine may be from the reference (conf_case.h)
 *
 *   attn_data_make -> (change values, or the problem) -> attn_data_run, per pass and engine -> attn_output, attn_keep
 *                  -> attn_data_free
 *
 * Tests about descriptions alone stop at the first layer, tests about plans take the one problem of tiny.h.
 */
#ifndef FXA_TESTS_ATTN_DATA_H
#define FXA_TESTS_ATTN_DATA_H

#include "engines_here.h"
#include "attn_tensor.h"

enum { ATTN_TENSORS = 2, ATTN_PARAMS = 3, ATTN_SLOTS = FXA_SLOT_DSINKS + 1 };
enum { ATTN_OUTPUTS = 4 + ATTN_TENSORS + 1 }; /* at most, of a pass */

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

typedef struct attn_spec {
    int64_t b, hq, hkv, sq, sk, d, dv; /* hkv, dv: 0 as in a problem */
    fxa_dtype dtype;                   /* of Q and all that follows it; none: left to the library, f32 */
    fxa_dtype slot_dtype[ATTN_SLOTS];  /* where it is another */
    uint32_t flags;                    /* of both passes, and what forward wants */
    int64_t window_left, window_right;
    double dropout_p;
    uint32_t page_size; /* not 0: paged; the pages of tables are drawn, and shared */
    int64_t n_pages;    /* 0: half of those that tables have, and one */
    const char *text, *bprop_text;
    int64_t tensor[ATTN_TENSORS][FXA_MAX_RANK], bprop_tensor[ATTN_TENSORS][FXA_MAX_RANK]; /* sizes, by slot */
    int64_t stride[ATTN_SLOTS][4]; /* of slots whose bit is set in */
    uint32_t strided;
    attn_around around;
    double reach; /* random elements are in -reach..reach; 0: 1 */
} attn_spec;

/* Forward of the spec without programs and captures. */
fxa_problem attn_spec_problem(const attn_spec *s);
/* The operand of a slot up to DSINKS. */
fxa_operand *attn_operand(fxa_problem *p, fxa_slot slot);
/* Sizes of the tensor in that slot, as the problem is: [B,H,S,D], packed, or pages. */
void attn_slot_sizes(const fxa_problem *p, fxa_slot slot, int64_t n[4]);

/* ---- Data -------------------------------------------------------------------------------------------------------- */

typedef struct attn_data {
    fxa_program *program, *bprop; /* owned; NULL: none */
    fxa_problem problem;          /* of forward; captures are set by calls */
    uint32_t backward_flags;      /* for those of forward alone */
    attn_tensor t[ATTN_SLOTS];
    int32_t *ints[FXA_SLOT_COUNT]; /* lengths, offsets, pages, maps by slot; borrowed */
    attn_tensor pages;             /* of the spec's table */
    size_t n_params, n_tensors, n_bprop_params, n_bprop_tensors;
    fxa_capture captures[ATTN_TENSORS], bprop_captures[ATTN_TENSORS]; /* with gradients, of all that are floats */
    attn_tensor tensor[ATTN_TENSORS], dtensor[ATTN_TENSORS], bprop_tensor[ATTN_TENSORS];
    double params[ATTN_PARAMS], bprop_params[ATTN_PARAMS];
    attn_tensor dparam; /* f64, one for each param */
    double scale;       /* NaN: the default */
    uint64_t seed;      /* of dropout */
    attn_around around;
    double reach;
} attn_data;

/* A context of so many threads; NULL: there is none. */
fxa_context *attn_context(uint32_t threads);

/* Inputs are drawn, outputs are NaN; params are 1.25. Backward asks for every gradient. On an error there is nothing to
 * free. */
fxa_status attn_data_make(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t seed, fxa_error *err);
void attn_data_free(attn_data *x);
/* Other programs for the same data, with captured tensors of those sizes (see attn_spec). */
fxa_status attn_data_program(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t *rng, fxa_error *err);

/* Problem and arguments of a pass; the arrays that they point to lie in here, or in the data. */
typedef struct attn_call {
    fxa_problem p;
    fxa_args args;
    fxa_capture captures[ATTN_TENSORS];
    const void *tensors[ATTN_TENSORS], *bprop_tensors[ATTN_TENSORS];
    void *dtensors[ATTN_TENSORS];
} attn_call;
void attn_call_make(const attn_data *x, fxa_pass pass, attn_call *call);
/* The call by a plan of its own, with a workspace against a page that cannot be touched. */
fxa_status attn_call_run(fxa_context *ctx, const attn_call *call, bool workspace_at_end, fxa_error *err);
/* In whose memory an engine computes: fxa_attention takes tensors of the host there and back. */
uint32_t attn_device(const char *engine);
/* Both: by fxa_attention where bytes are around the data, else by attn_call_run. engine NULL: any. */
fxa_status attn_data_run(attn_data *x, fxa_context *ctx, const char *engine, fxa_pass pass, fxa_error *err);

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* What a pass writes, by position; NULL past the end. */
attn_tensor *attn_output(attn_data *x, fxa_pass pass, int i);

/* Copies of the outputs of a pass. */
typedef struct attn_kept {
    unsigned char *memory[ATTN_OUTPUTS];
} attn_kept;
/* Takes them and wipes the outputs; the first time into a kept of zeroes. */
void attn_keep(attn_data *x, fxa_pass pass, attn_kept *kept);
void attn_drop(attn_kept *kept);
/* Name of the first output with other bits than those kept, and all of it is wiped; NULL: none. Where nothing is kept
 * yet, this is. */
const char *attn_other_bits(attn_data *x, fxa_pass pass, attn_kept *kept);

/* How far a tensor is from `want`, memory of the same shape. Infinities must be the same, and NaN be NaN. */
typedef struct attn_off {
    double rms;   /* root mean square of the differences over that of what is wanted, where both are finite */
    double worst; /* the largest difference */
    double size;  /* the largest finite number that is wanted */
    int64_t odd;  /* elements that are not finite, or should not be */
} attn_off;
attn_off attn_tensor_off(const attn_tensor *got, const unsigned char *want);

#endif
