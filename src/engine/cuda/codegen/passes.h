/* SPDX-License-Identifier: Apache-2.0
 *
 * State that the passes of codegen/ share: what codegen/generate.c decides and codegen/write_program.c writes.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_PASSES_H
#define FXA_ENGINE_CUDA_CODEGEN_PASSES_H

#include "codegen.h"

#include "../../../lower/affine.h"
#include "../../../lower/emit.h"
#include "../../../lower/grad_class.h"

/* Bits of fxa__emit.used: which function of the text needs a node. */
enum {
    CUDA_TILE = 1 << 3,
    CUDA_SAME = 1 << 4,
    CUDA_VALUE = 1 << 5,
    CUDA_SLOPE = 1 << 6,
    CUDA_MASK = 1 << 7,
    CUDA_GRADS = 1 << 5 /* in an fxa__emit of its own */
};

/* Expressions by which the text reads params, unless they are a.f[] and a.i[]. */
typedef struct cuda_names {
    struct {
        char member[16];                 /* member of Program */
        char call[32];                   /* expression in static functions */
    } scalar[FXA_MAX_PARAMS];            /* params in device memory */
    char run[FXA__CUDA_HOST_VALUES][16]; /* values that the host computes */
} cuda_names;

/* Work memory of the passes. Arrays have an element per node unless stated otherwise. */
typedef struct cuda_work {
    fxa__host *host;
    fxa__cuda_program *c;
    fxa__linear *affine;     /* affine forms */
    fxa__depend *inputs;     /* inputs that a node depends on */
    fxa__interval *bounds;   /* bounds of ints */
    uint8_t *need;           /* bits CUDA_VALUE, CUDA_SLOPE, CUDA_MASK */
    uint8_t *in_bounds;      /* of loads: bit d set = index d is inside the tensor */
    bool *wanted;            /* by output: a requested gradient that is not always 0 */
    bool backward;           /* the text is of a backward pass */
    bool i64_operands;       /* operands are i64 elements cut to 32 bits, and the mask compares all 64 */
    bool scalars_in_memory;  /* as in the config */
    int32_t rounded;         /* float that the forward has rounded, on a diagonal: never fused into an fma; -1 = none */
    struct cuda_tile *tiles; /* values that tile() computes */
    int32_t *host_value_at;  /* index in f[] of a node that the host computes, or a value of the enum below */
    cuda_names names;
} cuda_work;

enum { CUDA_NOT_GIVEN = -1, CUDA_NEVER_GIVEN = -2 };

/* ---- codegen/tile_values.c --------------------------------------------------------------------------------------- */

enum { CUDA_TILE_NONE, CUDA_TILE_SUM, CUDA_TILE_FLOAT, CUDA_TILE_APART, CUDA_TILE_SAME };
/* How pairs compute a node from t<node>, a member that tile() computes. */
typedef struct cuda_tile {
    uint8_t kind;
    int32_t left;  /* node: SUM: t is left; FLOAT: t is left as a float */
    int32_t right; /* node: APART, SAME: t is left - right, saturated to 32 bits or modulo 2^32 */
    int32_t row;   /* node that the text reads in addition; -1 = none */
    char text[112];
} cuda_tile;

/* Writes the bounds of ints, for coordinates and lengths up to FXA__CUDA_LENGTH. Other nodes are unbounded. */
void fxa__cuda_int_bounds(const fxa_program *p, fxa__interval *out);
/* Writes the tile-level value of each node. */
void fxa__cuda_tile_values(const cuda_work *w, cuda_tile *out);

/* ---- codegen/fast_paths.c ---------------------------------------------------------------------------------------- */

enum { CUDA_CONJUNCTS = 16 };
/* Writes the conditions of the mask besides the equality of row and key operand, none of which reads operands. Returns
 * their number; -1 = the mask has no such equality. */
int fxa__cuda_document_mask(const cuda_work *w, int32_t conjuncts[CUDA_CONJUNCTS]);
/* Returns the node tanh(score * factor), if factor depends on params alone and no other node reads the score, or -1.
 * Sets *factor. */
int32_t fxa__cuda_softcap_find(const cuda_work *w, int32_t *factor);
/* Returns true if the derivative may be infinite, or NaN where the value is not NaN. */
bool fxa__cuda_is_derivative_infinite(const cuda_work *w, int32_t slope);
/* Returns true if computing a node of q - k and heads costs less than loading it from the diagonal row. */
bool fxa__cuda_is_cheap(const cuda_work *w, int32_t node);

/* ---- codegen/param_names.c --------------------------------------------------------------------------------------- */

void fxa__cuda_param_names_make(const cuda_work *w, cuda_names *out);
/* Makes e read params by these names. Must precede every requirement on e. All functions use them, so they all read the
 * same bits. members: e is of functions of pairs, which can read members of Program. */
void fxa__cuda_param_names_use(const cuda_work *w, fxa__emit *e, bool members);

/* ---- codegen/write_tile_functions.c ------------------------------------------------------------------------------ */

/* Writes unit(), diagonal() and tile_class(). Returns false without memory. */
bool fxa__cuda_tile_functions_write(const cuda_work *k);

/* ---- codegen/write_program.c ------------------------------------------------------------------------------------- */

/* Returns true if an output is a gradient that scatter() adds. */
bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output);
/* Writes c->text. Returns false without memory. */
bool fxa__cuda_program_write(const cuda_work *w);

/* ---- codegen/write_gradients.c ----------------------------------------------------------------------------------- */

/* Writes partials() and scatter(), of nodes that `grads` marks with CUDA_GRADS. */
void fxa__cuda_gradients_write(const cuda_work *w, const fxa__emit *grads);
/* Writes sum_place() and diagonal_place(). Returns false without memory. */
bool fxa__cuda_target_indices_write(const cuda_work *w);

#endif
