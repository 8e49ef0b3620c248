/* SPDX-License-Identifier: Apache-2.0
 *
 * Generates program.cuh, the text of a score program, from a problem. The interface that the text implements is
 * described in kernels/common/score.cuh. codegen/generate.c runs the passes, each in a file of its own.
 *
 *   rewritten program   score = (product of Q and K) * scale. Constants are params, so the text does not depend on
 *                       them; divisions by uniform values are products; constant factors of a product are one factor;
 *                       dscore is 1, so outputs of the derivative are derivatives of the new score.
 *   unit                uniform factor of the entire new score, computed from params
 *   diagonal            the largest subexpression that depends on b, h and q - k alone: tabulated before the run
 *   operands            i32 or f32 values per key or per query: loads at [k], [b, k], [h, k], [b, h, k]; likewise for q
 *   dense               elements [.., q, k] of a tensor in the storage type
 *   sums                gradients with one element per head or per run; other gradients are added by scatter()
 *   exact               tensors whose gradients are summed in FxaExact (common/exact_sum.cuh)
 *
 * Programs that differ only in constants have the same text. The text holds for the sizes of captured tensors and the
 * factors that it was generated for, which are part of the code key through the text.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H
#define FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H

#include "../../../lower/depend.h"
#include "../../../problem/problem.h"
#include "../kernels/common/args.h"
#include "../kernels/common/traits.h"

enum {
    FXA__CUDA_SUMS = FXA_CUDA_SUMS,
    FXA__CUDA_HOST_VALUES = 8,
    FXA__CUDA_LENGTH = 1 << 28 /* upper bound of lengths, heads and batch entries; bounds of ints rely on it */
};

/* Where a param of the rewritten program gets its value in a run. */
typedef struct fxa__cuda_param {
    int32_t source; /* index of a param of the problem's program, or a value of the enum below */
    double value;   /* FXA__CUDA_CONSTANT: the value */
} fxa__cuda_param;
enum {
    FXA__CUDA_CONSTANT = -1,
    FXA__CUDA_SCALE = -2,
    FXA__CUDA_BPROP = -3 /* source <= FXA__CUDA_BPROP: param FXA__CUDA_BPROP - source of the caller's backward */
};

/* Where a tensor of the rewritten program is in a run. */
typedef struct fxa__cuda_origin {
    enum {
        FXA__CUDA_FROM_CALLER, /* captured tensor `index` of the problem's program */
        FXA__CUDA_FROM_SLOT,   /* int32 array in slot `index` of the run: coordinates and offsets */
        FXA__CUDA_FROM_BPROP   /* captured tensor `index` of the caller's backward program */
    } kind;
    int32_t index;
} fxa__cuda_origin;

/* Returns true if FXA_SCALARS_IN_MEMORY puts the param into device memory: scale and params of the score program. */
static inline bool fxa__cuda_in_memory(const fxa__cuda_param *p) {
    return p->source >= 0 || p->source == FXA__CUDA_SCALE;
}

/* What the text assumes of a problem (codegen/assumptions.c). Part of the code key. */
typedef struct fxa__cuda_assumptions {
    int32_t dense;       /* captured tensor of the problem's program that TMA can copy; -1 = none */
    bool operands_fit;   /* loads may become operands: tensors have an element per batch entry, head and position */
    bool finite_factors; /* scale and params that are factors or divisors of floats are finite and not 0, and the
                            factor of the entire score is > 0, so it is part of the unit */
} fxa__cuda_assumptions;

/* A score program without a problem, for tests: what passes 1 to 6 of codegen/generate.c make of a problem. */
typedef struct fxa__cuda_config {
    fxa_program *program;    /* SCORE program whose mask does not read the score */
    fxa_program *derivative; /* derivative of `program`; NULL = forward */
    fxa_program *bprop;      /* the caller's backward instead of it, with names of its own; NULL = none */
    uint64_t grad_params;    /* bit i set = the gradient of param i is requested */
    uint64_t grad_tensors;   /* bit i set = the gradient of captured tensor i is requested */
    bool sizes_fit;          /* captured tensors are as large as the text assumes; false = indices are guarded */
    bool deterministic;      /* gradients of captured tensors have to have the same bits in every run */
    bool scalars_in_memory;  /* scale and params are in device memory (FxaScalars); excludes finite_factors */
    fxa__cuda_assumptions assumed;
} fxa__cuda_config;

/* What pairs read besides the score. Nodes are indices into `program`; -1 = none. */
typedef struct fxa__cuda_operands {
    int32_t diagonal, dense; /* nodes that pairs read as pair.diagonal and pair.dense */
    int32_t q, k;            /* loads that pairs read as row and key operand */
    struct fxa__cuda_range {
        int32_t tensor, axis;
    } ranges[FXA_CUDA_RANGES]; /* [n_ranges] tensors whose ranges tile_class() reads */
    int32_t n_ranges;
    uint32_t mask_inputs, diagonal_inputs;       /* bits of fxa_input that the mask, the diagonal depend on */
    bool mask_is_constant, diagonal_is_constant; /* they read no tensor and no param of the caller */
} fxa__cuda_operands;

/* Gradients of params and captured tensors. */
typedef struct fxa__cuda_gradients {
    int32_t sums[FXA__CUDA_SUMS]; /* [switches.grad_sums] outputs whose terms partials() computes, in this order */
    bool deterministic;           /* gradients of captured tensors have the same bits in every run */
} fxa__cuda_gradients;

/* Values of f[] that the host computes for each run. Nodes are indices into `program`; -1 = none. */
typedef struct fxa__cuda_computed {
    int32_t value;                       /* node that value() computes */
    int32_t factor;                      /* node whose value, > 0, is part of the unit */
    int32_t node[FXA__CUDA_HOST_VALUES]; /* [n] float nodes that depend on params alone */
    int32_t n;
    int32_t at;      /* index of the first of them in f[] */
    int32_t unit_at; /* index in f[] of the unit, made of `factor`; -1 */
    /* Index in f[] of series_limit(), made of `softcap_factor`; -1. The FXA_CUDA_SOFTCAP_TERMS terms of
     * softcap_series() follow it, then exp_limit() and two values of softcap_exp(). */
    int32_t softcap_at;
    int32_t softcap;        /* node of the tanh that softcap() computes */
    int32_t softcap_factor; /* node of the factor of the score in it */
    int32_t gain;           /* forward: node of the factor of that tanh in the score, of any sign and size. Its value is
                               at unit_at then, and the unit behind it. */
} fxa__cuda_computed;

/* Bounds of values and sizes, for reports. */
typedef struct fxa__cuda_bounds {
    double value; /* |value()| <= bound in any run; INFINITY = unknown */
    /* Minimum size of each axis of a tensor that unguarded indices rely on; 0 = none. Below 0: the number of values of
     * input -1 - x (FXA_INPUT_B: batch entries, FXA_INPUT_H: heads). */
    int64_t min_size[FXA_CUDA_TENSORS][FXA_MAX_RANK];
} fxa__cuda_bounds;

/* The text, and what a run computes or passes for it. */
typedef struct fxa__cuda_program {
    fxa_program *program;                      /* rewritten; SCORE, or value and gradients in one program */
    fxa__cuda_origin source[FXA_CUDA_TENSORS]; /* [program->n_tensors] */
    fxa__cuda_param params[FXA_MAX_PARAMS];    /* of `program`; fxa__lower_emit_param gives their index in f[] or i[] */
    fxa__cuda_assumptions assumed;             /* read by host/support.c */
    struct FxaTraits switches;     /* FXA_SWITCHES of the text; the host clears softcap_series for FXA_FAST_MATH */
    fxa__cuda_operands operands;   /* read by host/workspace.c, host/arguments.c, host/launch.c */
    fxa__cuda_gradients gradients; /* read by host/captured_grads.c */
    fxa__cuda_computed computed;   /* read by codegen/host_values.c */
    fxa__cuda_bounds bounds;
    fxa__writer text;
} fxa__cuda_program;

/* Generates the text of a problem, once. Returns E_UNSUPPORTED if the program has more params or tensors than kernels
 * support, or axes of more than 2^31 - 1 elements. The caller frees *out in any case. */
fxa_status fxa__cuda_generate(const fxa__problem *p, fxa__cuda_program *out, fxa_error *err);
/* Generates the text of a config by the passes from 7 on. Also returns E_UNSUPPORTED if the mask reads the score. The
 * caller frees *out in any case. */
fxa_status fxa__cuda_program_make(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out,
                                  fxa_error *err);
void fxa__cuda_program_free(fxa__cuda_program *p);

/* Returns the index in the problem's program of a captured tensor of the rewritten program; -1 = a tensor that a pass
 * added, which has no gradient. */
static inline int32_t fxa__cuda_caller_tensor(const fxa__cuda_program *p, int32_t tensor) {
    return p->source[tensor].kind == FXA__CUDA_FROM_CALLER ? p->source[tensor].index : -1;
}

/* Returns how fxa_operands_pack reads elements of a dtype (FxaPackedOperand.kind); 0 = no operand has this dtype. */
int32_t fxa__cuda_operand_kind(fxa_dtype dtype);

/* codegen/host_values.c: writes f[] and i[] of a run. params: a value for each param of the rewritten program; those in
 * device memory are not read. */
void fxa__cuda_host_values(const fxa__cuda_program *p, const double *params, float *f, int *i);
/* Returns true if the host can compute a float node: params, constants and arithmetic. */
bool fxa__cuda_is_host_value(const fxa_program *p, int32_t node);

/* codegen/assumptions.c: returns true if no param of the caller is a factor or divisor of a float. derivative, own: may
 * be NULL. */
bool fxa__cuda_has_finite_factors(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                                  const fxa_program *own);
/* codegen/split_unit.c: returns true if the unit of the score is > 0 for the constants of the program and any scale
 * > 0. */
bool fxa__cuda_factor_is_positive(const fxa__cuda_program *program);
/* codegen/coordinates.c: returns true if the problem maps coordinates, so that they differ from local indices. */
bool fxa__cuda_has_mapped_coordinates(const fxa_problem *p);

#endif
