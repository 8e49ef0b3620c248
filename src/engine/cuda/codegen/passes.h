/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the choices of codegen/generate.c and the text of codegen/write_program.c.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_PASSES_H
#define FXA_ENGINE_CUDA_CODEGEN_PASSES_H

#include "codegen.h"

#include "../../../lower/affine.h"
#include "../../../lower/emit.h"
#include "../../../lower/grad_class.h"

/* Who needs a node: bits of fxa__emit.used. No outputs are asked of it, so all of them are free. */
enum {
    CUDA_TILE = 1 << 3,
    CUDA_SAME = 1 << 4,
    CUDA_VALUE = 1 << 5,
    CUDA_SLOPE = 1 << 6,
    CUDA_MASK = 1 << 7,
    CUDA_GRADS = 1 << 5
};

/* What texts read params by, where kernels do not have them as a.f[] and a.i[]. */
typedef struct cuda_names {
    struct {
        char member[16], call[32];
    } scalar[FXA_MAX_PARAMS];            /* of params that are in memory: of Program, and on the spot */
    char run[FXA__CUDA_HOST_VALUES][16]; /* what the host computes */
} cuda_names;

typedef struct cuda_work {
    fxa__host *host;
    fxa__cuda_program *c;
    fxa__linear *forms;
    fxa__depend *sets;
    fxa__interval *spans;    /* by node: bounds of ints */
    uint8_t *need;           /* by node: CUDA_VALUE, CUDA_SLOPE, CUDA_MASK */
    uint8_t *sure;           /* of loads: indices that are inside for certain */
    bool *wanted;            /* by output: a gradient that is wanted, and not always 0 */
    bool backward;           /* the text is of a backward pass */
    bool wide;               /* words are i64 elements, cut to 32 bits, and the mask compares whole ones */
    bool scalars;            /* as the caller says */
    int32_t rounded;         /* a float that the forward has rounded, as a number on a diagonal: it is not fused; -1 */
    struct cuda_tile *tiles; /* by node */
    int32_t *given;          /* by node: the place in f[] that the host fills with it, or: */
    cuda_names names;
} cuda_work;

enum { CUDA_NOT_GIVEN = -1, CUDA_NEVER_GIVEN = -2 };

/* ---- codegen/tile_values.c --------------------------------------------------------------------------------------- */

enum { CUDA_TILE_NONE, CUDA_TILE_SUM, CUDA_TILE_FLOAT, CUDA_TILE_APART, CUDA_TILE_SAME };
typedef struct cuda_tile { /* of a node that pairs get from t<node>, a member that tile() computes */
    uint8_t kind;
    int32_t left, right; /* t is left, as a float left; of APART and SAME left - right, cut to 32 bits or modulo them */
    int32_t row;         /* a node that the text reads beside it; -1 */
    char text[112];
} cuda_tile;

/* Bounds of ints, by node, for coordinates and lengths up to FXA__CUDA_LENGTH; others are anything. */
void fxa__cuda_int_bounds(const fxa_program *p, fxa__interval *out);
void fxa__cuda_tile_values(const cuda_work *w, cuda_tile *out);

/* ---- codegen/fast_paths.c ---------------------------------------------------------------------------------------- */

enum { CUDA_CONJUNCTS = 16 };
/* What a mask asks beside the equality of the words of query and key, where it asks for that: nodes that must all hold,
 * and none of which reads words. -1: it does not. */
int fxa__cuda_document_mask(const cuda_work *w, int32_t conjuncts[CUDA_CONJUNCTS]);
/* The tanh of the score times a factor that nothing but params decides, where nothing else reads the score: its node,
 * or -1. */
int32_t fxa__cuda_softcap_find(const cuda_work *w, int32_t *factor);
/* Whether the slope may be infinite, or NaN where the value is not. */
bool fxa__cuda_is_derivative_infinite(const cuda_work *w, int32_t slope);
/* Whether a float on a diagonal is a few operations on numbers of heads and distances: cheaper than a load. */
bool fxa__cuda_is_cheap(const cuda_work *w, int32_t node);

/* ---- codegen/param_names.c --------------------------------------------------------------------------------------- */

void fxa__cuda_param_names_make(const cuda_work *w, cuda_names *out);
/* Gives a text these names, before anything is wanted of it. Every text that computes something of params has them, so
 * that all of them see the same bits. members: it is one of pairs, which have members; else static. */
void fxa__cuda_param_names_use(const cuda_work *w, fxa__emit *e, bool members);

/* ---- codegen/write_tile_functions.c ------------------------------------------------------------------------------ */

/* unit(), diagonal(), tile_class(). False: out of memory. */
bool fxa__cuda_tile_functions_write(const cuda_work *k);

/* ---- codegen/write_program.c ------------------------------------------------------------------------------------- */

/* Whether an output is a gradient that scatter() adds. */
bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output);
/* Writes c->text. False: out of memory. */
bool fxa__cuda_program_write(const cuda_work *w);

/* ---- codegen/write_gradients.c ----------------------------------------------------------------------------------- */

/* partials() and scatter(), of nodes that are marked with CUDA_GRADS. */
void fxa__cuda_gradients_write(const cuda_work *w, const fxa__emit *grads);
/* sum_place(), diagonal_place(). False: out of memory. */
bool fxa__cuda_target_indices_write(const cuda_work *w);

#endif
