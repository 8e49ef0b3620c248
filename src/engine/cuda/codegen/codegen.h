/* SPDX-License-Identifier: Apache-2.0
 *
 * Generates program.cuh, the text of a score program, from a problem. The interface that the text implements is
 * described in kernels/common/program_interface.cuh. codegen/generate.c runs the passes, each in a file of its own.
 *
 *   rewritten program   the score program after these changes: the score is (product of Q and K) * scale; constants
 *                       are params, so that the text does not depend on constants; divisions by uniform values are
 *                       products; a product has at most one uniform factor; dscore is 1, so that outputs of the
 *                       derivative are derivatives of the new score
 *   unit                factor of the entire new score that depends on params alone, times log2(e)
 *   diagonal            a float that depends on b, h and q - k alone. Before the kernels run, it is tabulated in rows
 *                       over q - k (diagonal rows).
 *   operands            row operand: a captured value per query, loaded at [q], [b, q], [h, q] or [b, h, q]. Key
 *                       operand: the same per key, with k in place of q. Both are packed into 32-bit words.
 *   dense               elements [.., q, k] of a captured tensor of the type of Q, K and V, which TMA can copy
 *   sums                gradients with one element per head or per run; other gradients are added by scatter()
 *   exact               tensors whose gradients are summed in FxaExact, sums whose bits do not depend on the order of
 *                       additions (common/exact_sum.cuh)
 *
 * Programs that differ only in constants have the same text. The text omits guards of indices that the sizes of the
 * captured tensors make unnecessary, and may assume that factors are finite and not 0 (fxa__cuda_assumptions). Compiled
 * code is looked up by a key that contains the text.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H
#define FXA_ENGINE_CUDA_CODEGEN_CODEGEN_H

#include "../../../lower/depend.h"
#include "../../../problem/problem.h"
#include "../kernels/common/args.h"
#include "../kernels/common/traits.h"

enum {
    FXA__CUDA_HOST_VALUES = 8,
    FXA__CUDA_LENGTH = 1 << 28 /* upper bound of lengths, heads and batch entries, from which bounds of ints follow */
};

_Static_assert(FXA_CUDA_RANK == FXA_MAX_RANK, "kernels take tensors of every rank that programs declare");

/* Bound of strides that TMA supports, in 16-bit elements: they are below 2^40 bytes. */
#define FXA__CUDA_MAX_STRIDE (INT64_C(1) << 39)
#define FXA__CUDA_LOG2E 1.4426950408889634074

/* Where a param of the rewritten program gets its value in a run. */
typedef struct fxa__cuda_param {
    int32_t source; /* index of a param of the problem's program, or a value of the enum below */
    double value;   /* the value, if source is FXA__CUDA_CONSTANT */
} fxa__cuda_param;
enum {
    FXA__CUDA_CONSTANT = -1, /* a constant of the program: fxa__cuda_param.value */
    FXA__CUDA_SCALE = -2,    /* the softmax scale */
    FXA__CUDA_BPROP = -3     /* a source s <= -3 is param number FXA__CUDA_BPROP - s of the caller's backward */
};

/* Where a tensor of the rewritten program is in a run. */
typedef struct fxa__cuda_origin {
    enum {
        FXA__CUDA_FROM_CALLER, /* captured tensor `index` of the problem's program */
        FXA__CUDA_FROM_SLOT,   /* int32 array that a run passes as fxa_slot `index`: a coordinate map or an offset */
        FXA__CUDA_FROM_BPROP   /* captured tensor `index` of the caller's backward program */
    } kind;
    int32_t index;
} fxa__cuda_origin;

/* Returns the bits of the captured tensors whose gradients are requested. */
static inline uint64_t fxa__cuda_tensor_grads(const fxa_problem *p) {
    uint64_t bits = 0;
    for (size_t i = 0; i < p->n_captures; i++) bits |= (uint64_t)(p->captures[i].grad != 0) << i;
    return bits;
}

/* Returns true if FXA_SCALARS_IN_MEMORY puts the param in device memory: the scale or a param of the score program. */
static inline bool fxa__cuda_in_memory(const fxa__cuda_param *p) {
    return p->source >= 0 || p->source == FXA__CUDA_SCALE;
}

/* What the generated text assumes of a problem (codegen/assumptions.c). Part of the key of compiled code. */
typedef struct fxa__cuda_assumptions {
    int32_t dense; /* index of the captured tensor [.., q, k] that TMA can copy; -1 = none */
    /* true = no load with indices b, h, q, k is outside its tensor, so that captured values per query and per key may
     * be packed into 32-bit words (row and key operands) */
    bool operands_fit;
    /* true = the scale, and each param that is a factor or divisor of a float, is finite and not 0, and a factor of the
     * entire score that depends on params alone is > 0 */
    bool finite_factors;
} fxa__cuda_assumptions;

/* What passes 7 to 16 of codegen/generate.c read. fxa__cuda_generate() and passes 1 to 6 set it for a problem; tests
 * set it without a problem. */
typedef struct fxa__cuda_config {
    fxa_program *program;    /* program of kind SCORE whose mask does not read the score */
    fxa_program *derivative; /* derivative of `program`; NULL = the text is of a forward */
    fxa_program *bprop;      /* the caller's backward, used instead of `derivative`; NULL = none */
    uint64_t grad_params;    /* bit i set = the gradient of param i is requested */
    uint64_t grad_tensors;   /* bit i set = the gradient of captured tensor i is requested */
    bool sizes_fit;          /* captured tensors have at least the sizes bounds.min_size; false = guard all indices */
    bool deterministic;      /* gradients of captured tensors must have the same bits in every run */
    bool scalars_in_memory;  /* scale and params are in device memory (FxaScalars), so finite_factors is false */
    fxa__cuda_assumptions assumed;
} fxa__cuda_config;

/* What value() and mask() read for a pair (q, k) besides its score. Nodes are indices into fxa__cuda_program.program;
 * -1 = none. */
typedef struct fxa__cuda_operands {
    int32_t diagonal, dense; /* nodes whose values the generated code reads as pair.diagonal and pair.dense */
    /* load nodes whose values the generated code reads as pair.q_word (depends on q, not on k) and pair.k_word (depends
     * on k, not on q) */
    int32_t q, k;
    struct fxa__cuda_range {
        int32_t tensor, axis;
    } ranges[FXA_CUDA_RANGES]; /* [n_ranges] tensor and axis of which FxaArgs.ranges[] has minima and maxima */
    int32_t n_ranges;
    uint32_t mask_inputs, diagonal_inputs; /* bits of the fxa_inputs on which the mask, and `diagonal`, depend */
    bool mask_is_constant;                 /* the mask reads no tensor, no scale and no param of the caller */
    bool diagonal_is_constant;             /* the diagonal reads no tensor, no scale and no param of the caller */
} fxa__cuda_operands;

/* Gradients of params and captured tensors. */
typedef struct fxa__cuda_gradients {
    int32_t sums[FXA_CUDA_SUMS]; /* [switches.grad_sums] outputs whose terms partials() computes, in this order */
    bool deterministic;          /* gradients of captured tensors have the same bits in every run */
} fxa__cuda_gradients;

/* Values of FxaArgs.f[] that the host computes for each run. Nodes are indices into fxa__cuda_program.program; -1 =
 * none. */
typedef struct fxa__cuda_computed {
    int32_t value; /* node that value() returns */
    /* node of the factor > 0 for which new score = value() * factor; -1 = the factor is 1. unit() is
     * factor * log2(e). */
    int32_t factor;
    int32_t node[FXA__CUDA_HOST_VALUES]; /* [n] float nodes, dependent on params alone, that the text reads from f[] */
    int32_t n;
    int32_t at;      /* index of the value of node[0] in f[] */
    int32_t unit_at; /* index in f[] of the unit, `factor` * log2(e); -1 = not in f[] */
    /* Index in f[] of the constants of softcap(): series_limit(), FXA_CUDA_SOFTCAP_TERMS coefficients of
     * softcap_series(), exp_limit(), and two constants of softcap_exp(). -1 = no softcap() */
    int32_t softcap_at;
    int32_t softcap;        /* node tanh(score * softcap_factor) that softcap() computes; -1 = no softcap() */
    int32_t softcap_factor; /* node of the factor of the score in that tanh */
    /* forward: node of c in new score = c * tanh(score * softcap_factor), if c may be <= 0, infinite or NaN; -1 = none.
     * With such a c, f[unit_at] is softcap_unit() and f[unit_at + 1] is unit(). */
    int32_t gain;
} fxa__cuda_computed;

/* Bounds that codegen/bound_values.c proves. */
typedef struct fxa__cuda_bounds {
    double value; /* upper bound of |value()| in any run; INFINITY = unknown */
    /* [tensor][axis] size that a captured tensor must have for the indices that the text does not guard; 0 = any.
     * -1 - FXA_INPUT_B stands for the number of batch entries, -1 - FXA_INPUT_H for that of heads. */
    int64_t min_size[FXA_CUDA_TENSORS][FXA_MAX_RANK];
} fxa__cuda_bounds;

/* The generated text, and what a run computes or passes for it. */
typedef struct fxa__cuda_program {
    fxa_program *program; /* rewritten program: a score program, or value and gradients in one program */
    fxa__cuda_origin source[FXA_CUDA_TENSORS]; /* [program->n_tensors] where the tensors of `program` are */
    /* sources of the params of `program`; fxa__lower_emit_param() returns the index of a param in f[] or i[] */
    fxa__cuda_param params[FXA_MAX_PARAMS];
    fxa__cuda_assumptions assumed; /* read by host/support.c */
    /* values of the PROG_... macros of the text; the host clears softcap_series for FXA_FAST_MATH */
    struct FxaTraits switches;
    fxa__cuda_operands operands;   /* read by host/workspace.c, host/arguments.c, host/launch.c */
    fxa__cuda_gradients gradients; /* read by host/captured_grads.c */
    fxa__cuda_computed computed;   /* read by codegen/host_values.c */
    fxa__cuda_bounds bounds;
    fxa__writer text; /* program.cuh */
} fxa__cuda_program;

/* Generates the text of a problem's score program. Returns E_UNSUPPORTED if the program has more params or tensors than
 * kernels support, or if a captured tensor has an axis of more than 2^31 - 1 elements. The caller frees *out in any
 * case. */
fxa_status fxa__cuda_generate(const fxa__problem *p, fxa__cuda_program *out, fxa_error *err);
/* Generates the text of a config, by pass 7 and the later passes of codegen/generate.c. Returns E_UNSUPPORTED if the
 * program has more params or tensors than kernels support, or if its mask reads the score. The caller frees *out in any
 * case. */
fxa_status fxa__cuda_program_make(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out,
                                  fxa_error *err);
/* Frees what *p owns, and zeroes it. */
void fxa__cuda_program_free(fxa__cuda_program *p);

/* Returns the index in the problem's program of a captured tensor of the rewritten program; -1 = a tensor that a pass
 * added, which has no gradient. */
static inline int32_t fxa__cuda_caller_tensor(const fxa__cuda_program *p, int32_t tensor) {
    return p->source[tensor].kind == FXA__CUDA_FROM_CALLER ? p->source[tensor].index : -1;
}

/* Returns how the kernel fxa_operands_pack reads elements of a dtype (FxaPackedOperand.kind); 0 = such tensors are not
 * packed. */
int32_t fxa__cuda_operand_kind(fxa_dtype dtype);

/* codegen/host_values.c: sets f[] and i[] of a run. params: a value for each param of the rewritten program; kernels do
 * not use f[] and i[] of params that are in device memory. */
void fxa__cuda_host_values(const fxa__cuda_program *p, const double *params, float *f, int *i);
/* Returns true if the host can compute a node: a float by arithmetic of params and constants. */
bool fxa__cuda_is_host_value(const fxa_program *p, int32_t node);

/* codegen/assumptions.c: returns true if no param of the caller is a factor or divisor of a float. derivative and own
 * (the caller's backward) may be NULL. */
bool fxa__cuda_has_finite_factors(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                                  const fxa_program *own);
/* codegen/split_unit.c: returns true if the unit (uniform factor of the score) is > 0 for the constants of the program
 * and any scale > 0. */
bool fxa__cuda_factor_is_positive(const fxa__cuda_program *program);
/* codegen/coordinates.c: returns true if the problem maps coordinates, so that they differ from local indices. */
bool fxa__cuda_has_mapped_coordinates(const fxa_problem *p);

#endif
