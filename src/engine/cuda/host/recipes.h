/* SPDX-License-Identifier: Apache-2.0
 *
 * The recipe table: a row for each main kernel and range of architectures. The kernel of a problem is that of the first
 * row of its pass and device that does not refuse it. Everything that differs between architectures and families is in
 * a row; no other file of host/ and codegen/ tests an architecture or a family (tools/lint.py checks that).
 *
 * A second table has the other kernels: units, source files that are compiled separately.
 */
#ifndef FXA_ENGINE_CUDA_HOST_RECIPES_H
#define FXA_ENGINE_CUDA_HOST_RECIPES_H

#include "call.h"

/* What a recipe decides on. */
typedef struct fxa__cuda_case {
    const fxa__cuda_self *self;
    const fxa_problem *p;
    const fxa__cuda_program *program;
    const fxa__cuda_choice *choice; /* types and captured tensors; its recipe is not set */
    struct FxaTraits traits;        /* settings for all families, switches, and shared_kb of the row */
} fxa__cuda_case;

/* A kernel that works on tiles. */
typedef struct fxa__cuda_kernel {
    const char *source;                                    /* path below kernels/, without ".cu" */
    fxa__cuda_unit unit;                                   /* the unit that has it */
    int32_t function;                                      /* index in fxa__cuda_module.function */
    struct FxaTileShape (*shape)(struct FxaTraits traits); /* of kernels/common/tile_shape.h; the kernel calls it too */
} fxa__cuda_kernel;

/* Rate of a main kernel for head dims up to `columns`, in TFLOP/s (host/cost.c). */
typedef struct fxa__cuda_rate {
    int32_t columns;
    double plain, softcap, fast_softcap; /* fast: FXA_FAST_MATH=1 */
} fxa__cuda_rate;

/* Properties of a recipe, as bits. */
enum {
    FXA__CUDA_MATRIX_UNITS = 1 << 0,     /* zeros are multiplied: infinities in skipped pairs of a tile give NaN */
    FXA__CUDA_WHOLE_TILES = 1 << 1,      /* the dense gradient is stored in entire tiles */
    FXA__CUDA_DIAGONAL_ROUNDED = 1 << 2, /* dS is rounded to the storage type before it is summed along diagonals */
    FXA__CUDA_DK_ROUNDED_TWICE = 1 << 3,
    FXA__CUDA_ANY_ALIGNMENT = 1 << 4, /* the kernel does not depend on the setting `aligned` */
};

struct fxa__cuda_recipe {
    const char *name;   /* FAMILY and kernel, unique with arch_first */
    const char *family; /* "sm90", "sm80", "simt": folder of the kernel; FXA_CUDA_FAMILY and reports name it */
    fxa_pass pass;
    int32_t arch_first, arch_last; /* architectures of its devices */
    const char *arch_suffix;       /* "a" = the code runs on no other architecture than the one that it is for */
    int32_t shared_kb;             /* FXA_SHARED_KB: KB of shared memory that a CTA may use on all of these devices */
    /* Returns NULL if the kernel runs the problem; else why not, "" if that is no news for the caller. */
    const char *(*refuses)(const fxa__cuda_case *c);
    fxa__cuda_dq (*dq)(const fxa__cuda_case *c);                       /* NULL = forward */
    void (*settle)(const fxa__cuda_case *c, struct FxaTraits *traits); /* sets settings of this kernel; NULL = none */
    fxa__cuda_kernel main;
    fxa__cuda_kernel dq_kernel; /* computes dQ if dq() returns FXA__CUDA_DQ_OWN_KERNEL; source NULL = there is none */
    fxa_status (*launch)(fxa__cuda_call *call);
    const fxa__cuda_rate *rates; /* ascending head dims up to 256; NULL = the time depends on bytes (decode) */
    uint32_t is;                 /* properties */
};

/* Rows in order of preference, [fxa__cuda_recipe_count]. */
extern const fxa__cuda_recipe fxa__cuda_recipes[];
extern const size_t fxa__cuda_recipe_count;

/* A unit: its kernels share a source file and are compiled together. */
typedef struct fxa__cuda_unit_row {
    const char *source;      /* NULL = the source of the recipe */
    const char *function[6]; /* names in the order of fxa__cuda_module.function */
    bool has_shape;          /* the cubin has a FxaShape of the first function */
    bool has_program;        /* the source contains the text of the program; other units are shared by programs */
} fxa__cuda_unit_row;

/* [FXA__CUDA_UNIT_COUNT] */
extern const fxa__cuda_unit_row fxa__cuda_units[];

/* Chooses the recipe of a problem: sets recipe, better, why_not and dq of the choice, and its traits. *c has settings
 * for all families and switches in c->traits. */
void fxa__cuda_recipe_choose(fxa__cuda_case *c, fxa__cuda_choice *out);
/* Returns true if a device of this architecture can run any recipe. */
bool fxa__cuda_recipe_has_arch(int32_t arch);
/* Returns the family with this name if its kernels run on every device, so that FXA_CUDA_FAMILY may name it; else
 * NULL. */
const char *fxa__cuda_recipe_family(const char *name);

#endif
