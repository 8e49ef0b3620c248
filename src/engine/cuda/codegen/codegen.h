/* SPDX-License-Identifier: Apache-2.0
 *
 * From a problem's score program to program.cuh, the one generated text of the CUDA kernels (common/score.cuh says what
 * it has to define). Two steps: codegen/rewrite.c makes the program that kernels compute, codegen/generate.c chooses
 * what of it goes where and writes the text.
 *
 *   rewritten   the score is the raw product of Q and K times a param, the scale; numbers are params (lower/lift), so
 *               that text does not depend on them; divisions by what no pair changes are products, and factors of one
 *               product are one; of the derivative dscore is 1, so its outputs are slopes
 *   unit        a factor of the whole score that nothing but params decide
 *   diagonal    the largest float that depends on b, h and q - k alone
 *   words       an i32 or f32 per key or per query: loads at [k], [b, k], [h, k], [b, h, k], and so of q
 *   dense       elements [.., q, k] of a tensor in the storage type
 *   sums        gradients with one element for all pairs of a head or of the run; others are added by scatter()
 *   exact       tensors whose gradients are added in any order to sums that have none (common/exact_sum.cuh)
 *
 * The text is the same for programs that differ in numbers alone; who runs it looks at the promises below.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H
#define FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H

#include "../../../lower/depend.h"
#include "../kernels/common/args.h"

enum {
    FXA__CUDA_SUMS = FXA_CUDA_SUMS,
    FXA__CUDA_HOST_VALUES = 8,
    FXA__CUDA_LENGTH = 1 << 28 /* lengths, heads and batch entries are at most that: texts count on it */
};

/* What a param of the rewritten program is given at a run. */
typedef struct fxa__cuda_param {
    int32_t from; /* the param of the problem's program, or: */
    double value; /* from = FXA__CUDA_CONSTANT: this */
} fxa__cuda_param;
enum {
    FXA__CUDA_CONSTANT = -1,
    FXA__CUDA_SCALE = -2,
    FXA__CUDA_BPROP = -3 /* and below: param FXA__CUDA_BPROP - x of bprop */
};

/* With FXA_SCALARS_IN_MEMORY: scale and params of the score program; those of bprop are the host's. */
static inline bool fxa__cuda_in_memory(const fxa__cuda_param *p) { return p->from >= 0 || p->from == FXA__CUDA_SCALE; }

typedef struct fxa__cuda_config {
    fxa_program *program;          /* a SCORE program with its masks lifted */
    const fxa_program *derivative; /* of it; NULL: no backward pass */
    const fxa_program
        *own; /* the caller's backward program in its place (codegen/user_backward.c); NULL: there is none */
    uint64_t grad_params, grad_tensors; /* whose gradients are wanted, by bits */
    int32_t dense;                      /* tensor that may be read as pair.dense: its strides and sizes are right; -1 */
    uint64_t fits; /* tensors, by bits, whose sizes the caller compares with `least` below; of others all indices that
                      are looked at by pairs are guarded */
    bool fixed;    /* gradients of captured tensors have the same bits in every run */
    bool scalars;  /* scale and params are where only the device can read them (FxaScalars): not `plain` then */
    bool words;    /* loads may be words: tensors have an element for each entry, head and position */
    bool plain; /* scale and params that are factors or divisors of floats are finite and not 0, and the factor of the
                   whole score is above 0: it may go into the unit */
} fxa__cuda_config;

typedef struct fxa__cuda_program {
    fxa_program *program;                   /* rewritten; kind SCORE, or JOINT with a derivative */
    fxa__cuda_param params[FXA_MAX_PARAMS]; /* of it; their places in f[] and i[]: fxa__lower_emit_param */
    int32_t value;                          /* node of value() */
    int32_t factor;                         /* node that the unit has in it, has to be > 0; -1: there is none */
    int32_t diagonal, dense;                /* nodes that pairs get so; -1 */
    int32_t q_word, k_word;                 /* loads; -1 */
    int32_t sums[FXA__CUDA_SUMS];           /* outputs of the program that partials() gives, in order */
    int32_t n_sums;
    double bound; /* |value()| is at most that, whatever is run; INFINITY: nobody knows */
    struct fxa__cuda_range {
        int32_t tensor, axis;
    } ranges[FXA_CUDA_RANGES]; /* tables that tile_class() reads, where it finds them */
    int32_t n_ranges;
    int32_t vector;                        /* who reads words: 0 nobody, 1 the mask, 2 the value too */
    uint32_t mask_inputs, diagonal_inputs; /* what they depend on, by bits of fxa_input */
    /* Floats of params alone, which the host computes: nodes, and their places in f[] from `run_at` on. */
    int32_t run[FXA__CUDA_HOST_VALUES];
    int32_t n_run, run_at;
    int32_t unit_at; /* index in f[] of the unit, made of `factor`; -1 */
    /* Index in f[] of series_limit(), made of `near`; -1. The FXA_CUDA_SOFTCAP_TERMS terms of softcap_series() follow
     * it, then exp_limit() and two values of softcap_exp(). */
    int32_t near_at;
    int32_t softcap, near; /* nodes: the tanh that softcap() computes, and the factor of the score in it; -1 */
    int32_t gain;          /* node: what the forward's score is that tanh times, of any sign and size; -1. `unit_at`
                                 is that then, and behind it the unit */
    bool folded;           /* softcap() gives the tanh times what `unit_at` is: the whole value */
    /* Of tensors in `fits`: how many elements an axis has at least, at every run; 0: any number. Below 0: as many as
     * input -1 - x has values (FXA_INPUT_B: batch entries, FXA_INPUT_H: heads). If one has fewer, the text is not for
     * it: make another without that bit. */
    int64_t least[FXA_MAX_TENSORS][FXA_MAX_RANK];
    uint32_t exact; /* tensors, by bits, whose gradients are collected in FxaExact: sums of heads, and with `fixed` all
                       to one element of which several pairs may add */
    bool fixed;     /* as the caller said */
    bool steep;     /* the slope may be infinite or NaN */
    bool mask_fixed, diagonal_fixed; /* they read no tensor and no param of the caller's: shapes and numbers decide */
    bool has_own;                    /* user_backward(): the gradient of the score is the caller's */
    bool has_value, has_slope, has_mask, has_scatter, grad_diagonal, grad_dense;
    fxa__writer text;
} fxa__cuda_program;

/* E_UNSUPPORTED: the program has more params or tensors than kernels take, or a mask that reads the score (see
 * codegen/score_masks.c). Free in either case. */
fxa_status fxa__cuda_program_make(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out,
                                  fxa_error *err);
void fxa__cuda_program_free(fxa__cuda_program *p);

/* How fxa_operands_pack reads elements of a dtype as words: its last argument. 0: it does not. */
int32_t fxa__cuda_operand_kind(fxa_dtype dtype);

/* codegen/user_backward.c: of names of params and tensors which of bprop's they are; -1: none. */
int32_t fxa__cuda_bprop_param(const char *name);
int32_t fxa__cuda_bprop_tensor(const char *name);

/* codegen/host_values.c: f[] and i[] of a run, from its params: one for each of the rewritten program. Those that
 * kernels read from memory may be anything. */
void fxa__cuda_host_values(const fxa__cuda_program *p, const double *params, float *f, int *i);
/* Whether the host can compute a float: params, numbers and arithmetic. */
bool fxa__cuda_is_host_value(const fxa_program *p, int32_t node);

/* codegen/rewrite.c: fills program and params. */
fxa_status fxa__cuda_rewrite(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out, fxa_error *err);

#endif
