/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of tests about attention problems, in layers that build on each other:
 *
 *   attn_spec   sizes and features of a problem; attn_spec_problem makes an fxa_problem of it, without data
 *   attn_data   a tensor for each slot, programs, params and captured tensors, for both passes
 *   attn_case   data with random properties, and the oracle's results for it (attn_case.h)
 *   conf_case   a case with any program, and error bounds of an engine (conf_case.h)
 *
 *   attn_data_make -> (change values, or the problem) -> attn_data_run, per pass and engine -> attn_output, attn_keep
 *                  -> attn_data_free
 *
 * Tests of descriptions use only the first layer; tests of plans use the single problem of tiny.h.
 */
#ifndef FXA_TESTS_ATTN_DATA_H
#define FXA_TESTS_ATTN_DATA_H

#include "engines_here.h"
#include "attn_tensor.h"

enum { ATTN_TENSORS = 2, ATTN_PARAMS = 3, ATTN_SLOTS = FXA_SLOT_DSINKS + 1 };
enum { ATTN_OUTPUTS = 4 + ATTN_TENSORS + 1 }; /* maximum outputs of a pass */

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

typedef struct attn_spec {
    int64_t b, hq, hkv, sq, sk, d, dv; /* hkv and dv: 0 means what 0 means in fxa_problem */
    fxa_dtype dtype;                   /* dtype of Q, and default of others; FXA_DTYPE_NONE = the library's default,
                                          f32 */
    fxa_dtype slot_dtype[ATTN_SLOTS];  /* [slot] dtype of the tensor; 0 = `dtype` */
    uint32_t flags;                    /* flags of both passes, and flags for results of forward */
    int64_t window_left, window_right;
    double dropout_p;
    uint32_t page_size; /* not 0 = paged; page tables are random, with shared pages */
    int64_t n_pages;    /* number of pages; 0 = half of the entries of the page table, plus one */
    const char *text, *bprop_text;
    /* [tensor][axis] sizes of captured tensors */
    int64_t tensor[ATTN_TENSORS][FXA_MAX_RANK], bprop_tensor[ATTN_TENSORS][FXA_MAX_RANK];
    int64_t stride[ATTN_SLOTS][4]; /* [slot] strides, used if the slot's bit in `strided` is set */
    uint32_t strided;
    attn_around around;
    double reach; /* random elements are in -reach..reach; 0 stands for 1 */
} attn_spec;

/* Returns the forward problem of the spec, without programs and captures. */
fxa_problem attn_spec_problem(const attn_spec *s);
/* Returns the operand in p of a slot up to DSINKS. */
fxa_operand *attn_operand(fxa_problem *p, fxa_slot slot);
/* Writes the sizes n of the tensor in a slot: [B,H,S,D], packed, or pages. */
void attn_slot_sizes(const fxa_problem *p, fxa_slot slot, int64_t n[4]);

/* ---- Data -------------------------------------------------------------------------------------------------------- */

typedef struct attn_data {
    fxa_program *program, *bprop; /* owned; NULL = none */
    fxa_problem problem;          /* forward problem; attn_call_make sets its captures */
    uint32_t backward_flags;      /* flags of the backward problem */
    attn_tensor t[ATTN_SLOTS];
    int32_t *ints[FXA_SLOT_COUNT]; /* [slot] lengths, offsets, pages, maps; not owned */
    attn_tensor pages;             /* page table */
    size_t n_params, n_tensors, n_bprop_params, n_bprop_tensors;
    fxa_capture captures[ATTN_TENSORS], bprop_captures[ATTN_TENSORS]; /* captures with gradients of all float tensors */
    attn_tensor tensor[ATTN_TENSORS], dtensor[ATTN_TENSORS], bprop_tensor[ATTN_TENSORS];
    double params[ATTN_PARAMS], bprop_params[ATTN_PARAMS];
    attn_tensor dparam; /* gradients of the params, f64 */
    double scale;       /* NaN = the default */
    uint64_t seed;      /* seed of dropout */
    attn_around around;
    double reach;
} attn_data;

/* Makes a context with `threads` threads; returns NULL on failure. */
fxa_context *attn_context(uint32_t threads);

/* Makes data: inputs are random, outputs NaN, params 1.25. Backward is to compute every gradient. On failure nothing
 * needs freeing. */
fxa_status attn_data_make(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t seed, fxa_error *err);
void attn_data_free(attn_data *x);
/* Replaces the programs for the same data, with captured tensors of the sizes in *s. */
fxa_status attn_data_program(attn_data *x, fxa_context *ctx, const attn_spec *s, uint64_t *rng, fxa_error *err);

/* Problem and arguments of a pass. Their pointers point into this struct or into the data. */
typedef struct attn_call {
    fxa_problem p;
    fxa_args args;
    fxa_capture captures[ATTN_TENSORS];
    const void *tensors[ATTN_TENSORS], *bprop_tensors[ATTN_TENSORS];
    void *dtensors[ATTN_TENSORS];
} attn_call;
void attn_call_make(const attn_data *x, fxa_pass pass, attn_call *call);
/* Makes a plan and runs the call; workspace_at_end puts the workspace against an inaccessible page. */
fxa_status attn_call_run(fxa_context *ctx, const attn_call *call, bool workspace_at_end, fxa_error *err);
/* Returns the device of an engine. fxa_attention copies host tensors to this device. */
uint32_t attn_device(const char *engine);
/* Runs a pass: with fxa_attention if the tensors are surrounded by bytes or the engine is one of a device, else with
 * attn_call_run. engine NULL: automatic. */
fxa_status attn_data_run(attn_data *x, fxa_context *ctx, const char *engine, fxa_pass pass, fxa_error *err);

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* Returns output number i of a pass; NULL past the last. */
attn_tensor *attn_output(attn_data *x, fxa_pass pass, int i);

/* Copies of the outputs of a pass. */
typedef struct attn_kept {
    unsigned char *memory[ATTN_OUTPUTS];
} attn_kept;
/* Copies the outputs and then wipes them in the data. *kept must be all zeroes before the first call. */
void attn_keep(attn_data *x, fxa_pass pass, attn_kept *kept);
void attn_drop(attn_kept *kept);
/* Wipes the outputs. Returns the name of the first output whose bits differ from the kept copy; NULL if none differs.
 * If *kept is empty, keeps the outputs instead. */
const char *attn_other_bits(attn_data *x, fxa_pass pass, attn_kept *kept);

/* Difference between a tensor and `want`, which has the same shape. Infinities must be equal, and NaN must be NaN. */
typedef struct attn_off {
    double rms;   /* root mean square of the differences, divided by that of `want`; over elements finite in both */
    double worst; /* largest difference */
    double size;  /* largest finite magnitude in `want` */
    int64_t odd;  /* number of elements that are finite in only one of both, or differ in their infinity */
} attn_off;
attn_off attn_tensor_off(const attn_tensor *got, const unsigned char *want);

#endif
