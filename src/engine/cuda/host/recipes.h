/* SPDX-License-Identifier: Apache-2.0
 *
 * The recipe table: a row for each attention kernel and range of architectures. A problem runs the kernel of the first
 * row for its pass and device that does not refuse the problem. Everything that differs between architectures and
 * families is in a row; no other file of host/ and codegen/ tests an architecture or a family (tools/lint.py checks
 * that).
 *
 * A second table has the units: source files of kernels, each compiled separately.
 */
#ifndef FXA_ENGINE_CUDA_HOST_RECIPES_H
#define FXA_ENGINE_CUDA_HOST_RECIPES_H

#include "call.h"

/* What a recipe reads to decide if its kernel runs a problem, and with which settings. */
typedef struct fxa__cuda_case {
    const fxa__cuda_self *self;
    const fxa_problem *p;
    const fxa__cuda_program *program;
    const fxa__cuda_choice *choice; /* input: types and captured tensors are set, the recipe is not */
    struct FxaTraits traits;        /* compile-time switches and settings; shared_kb is that of the recipe */
} fxa__cuda_case;

/* A kernel that works on tiles. */
typedef struct fxa__cuda_kernel {
    const char *source;                                    /* path below kernels/, without ".cu" */
    fxa__cuda_unit unit;                                   /* source file of the kernel */
    int32_t function;                                      /* index in fxa__cuda_module.function */
    struct FxaTileShape (*shape)(struct FxaTraits traits); /* a function of kernels/common/tile_shape.h */
} fxa__cuda_kernel;

/* TFLOP/s of an attention kernel for head dims up to `columns` (host/cost.c): without a soft cap (plain), with a soft
 * cap, and with a soft cap and FXA_FAST_MATH=1. */
typedef struct fxa__cuda_rate {
    int32_t columns;
    double plain, softcap, fast_softcap;
} fxa__cuda_rate;

/* Properties of a recipe, as bits. */
enum {
    FXA__CUDA_MATRIX_UNITS = 1 << 0,     /* (q, k) with P = 0 are multiplied too, so an infinite operand gives NaN */
    FXA__CUDA_WHOLE_TILES = 1 << 1,      /* gradients of tensors [b, h, q, k] are stored in entire tiles */
    FXA__CUDA_DIAGONAL_ROUNDED = 1 << 2, /* dS is rounded to the storage type before it is summed along diagonals */
    /* for dK, dS = P * derivative * (dP - delta) is rounded to 16 bits twice: after the first product and at the end */
    FXA__CUDA_DK_ROUNDED_TWICE = 1 << 3,
    FXA__CUDA_ANY_ALIGNMENT = 1 << 4, /* the kernel does not depend on the setting `aligned` of FxaTraits */
};

struct fxa__cuda_recipe {
    const char *name;   /* kernel and family; unique together with arch_first */
    const char *family; /* "sm90", "sm80", "simt": folder of the kernel; FXA_CUDA_FAMILY and reports name it */
    fxa_pass pass;
    int32_t arch_first, arch_last; /* first and last architecture of devices that run the kernel */
    const char *arch_suffix;       /* "a" = code for sm_NNa, which runs on no other architecture; "" = code for sm_NN */
    int32_t shared_kb;             /* FXA_SHARED_KB: KB of shared memory that a CTA may use on all of these devices */
    /* Returns NULL if the kernel runs the problem; else the reason against it, "" = a reason that is not reported. The
     * pointer is NULL if the kernel runs every problem. */
    const char *(*refuses)(const fxa__cuda_case *c);
    fxa__cuda_dq (*dq)(const fxa__cuda_case *c);                       /* returns how dQ is computed; NULL = forward */
    void (*settle)(const fxa__cuda_case *c, struct FxaTraits *traits); /* sets settings of this kernel; NULL = none */
    fxa__cuda_kernel main;                                             /* the forward, decode or backward kernel */
    fxa__cuda_kernel dq_kernel; /* computes dQ if dq() returns FXA__CUDA_DQ_OWN_KERNEL; source NULL = there is none */
    fxa_status (*launch)(fxa__cuda_call *call); /* launches all kernels of a run */
    /* rates in ascending order of `columns`, up to head dim 256; NULL = the time follows from the bytes of K and V
     * (decode) */
    const fxa__cuda_rate *rates;
    uint32_t is; /* properties: FXA__CUDA_MATRIX_UNITS and others */
};

/* The recipe table: fxa__cuda_recipe_count rows, in order of preference. */
extern const fxa__cuda_recipe fxa__cuda_recipes[];
extern const size_t fxa__cuda_recipe_count;

/* A unit: a source file of kernels, which are compiled together. */
typedef struct fxa__cuda_unit_row {
    const char *source;      /* path below kernels/, without ".cu"; NULL = the recipe's source */
    const char *function[6]; /* names of kernels, in the order of fxa__cuda_module.function */
    bool has_shape;          /* the cubin has the FxaShape of function[0] */
    bool has_program;        /* the source includes program.cuh; cubins of other sources are shared by programs */
} fxa__cuda_unit_row;

/* The table of units: row i describes the fxa__cuda_unit i. */
extern const fxa__cuda_unit_row fxa__cuda_units[];

/* Chooses the recipe of a problem: sets recipe, better, why_not, dq and traits of *out. Changes c->traits,
 * which must hold the settings of all families and the switches of the program. */
void fxa__cuda_recipe_choose(fxa__cuda_case *c, fxa__cuda_choice *out);
/* Returns true if a device of this architecture can run any recipe. */
bool fxa__cuda_recipe_has_arch(int32_t arch);
/* Returns the family with this name if its kernels run on every device, so that FXA_CUDA_FAMILY may name it; else
 * NULL. */
const char *fxa__cuda_recipe_family(const char *name);

#endif
