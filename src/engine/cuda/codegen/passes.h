/* SPDX-License-Identifier: Apache-2.0
 *
 * The passes of codegen/generate.c and the state that they share. Each pass is a function on cuda_work that reads what
 * earlier passes produced and writes its own result. If a pass fails, codegen/generate.c frees the state.
 */
#ifndef FXA_ENGINE_CUDA_CODEGEN_PASSES_H
#define FXA_ENGINE_CUDA_CODEGEN_PASSES_H

#include "codegen.h"

#include "../../../lower/affine.h"
#include "../../../lower/emit.h"
#include "../../../lower/grad_class.h"

/* Functions of the generated text that need a node: bits of cuda_work.need and of fxa__emit.used. */
enum {
    CUDA_TILE = 1 << 2,         /* tile(), which computes values once per tile */
    CUDA_UNIFORM_MASK = 1 << 3, /* uniform_mask() */
    CUDA_VALUE = 1 << 4,        /* value(); and unit(), diagonal(), sum_place(), which take no pair (q, k) */
    CUDA_DERIVATIVE = 1 << 5,   /* the derivative that value() also returns; user_backward() */
    CUDA_MASK = 1 << 6,         /* mask() */
    CUDA_GRADIENTS = 1 << 7     /* partials() and scatter() */
};
_Static_assert(CUDA_GRADIENTS <= UINT8_MAX, "fxa__emit.used and cuda_work.need are bytes");

/* Names of the tensors and params that passes add to the score program, which does not declare them. "" = not added. */
enum { CUDA_NAME = 40 };
typedef struct cuda_added {
    char slot[FXA_SLOT_COUNT][CUDA_NAME]; /* [fxa_slot] names of the int32 arrays that a run passes */
    /* names of tensors and params of the caller's backward program */
    char bprop_tensor[FXA_MAX_TENSORS][CUDA_NAME], bprop_param[FXA_MAX_PARAMS][CUDA_NAME];
} cuda_added;

/* Expressions by which the generated text reads params that are not in a.f[] and a.i[]. */
typedef struct cuda_param_names {
    struct {
        char member[16];                 /* name of the param's member of Program, for functions of a pair (q, k) */
        char call[32];                   /* expression of the param, for static functions: these have no Program */
    } scalar[FXA_MAX_PARAMS];            /* [param] params in device memory */
    char run[FXA__CUDA_HOST_VALUES][16]; /* expressions of the values that the host computes */
} cuda_param_names;

enum { CUDA_TILE_NONE, CUDA_TILE_SUM, CUDA_TILE_FLOAT, CUDA_TILE_DIFFERENCE, CUDA_TILE_EQUAL };
/* The expression by which functions of a pair (q, k) compute a node from t<node>, an int or float that tile() computes
 * once per tile. */
typedef struct cuda_tile {
    uint8_t kind;
    /* nodes from which tile() computes t<node>; right: -1 = none. By kind, t<node> is
     *   CUDA_TILE_SUM         left
     *   CUDA_TILE_FLOAT       (float)left
     *   CUDA_TILE_DIFFERENCE  left - right, saturated to 32 bits
     *   CUDA_TILE_EQUAL       left - right, modulo 2^32 */
    int32_t left;
    int32_t right;
    int32_t row;    /* node that the expression reads besides t<node>; -1 = none */
    char text[112]; /* the expression */
} cuda_tile;

/* Maximum number of conditions of a mask that is a conjunction. */
enum { CUDA_CONJUNCTS = 16 };

/* State of the passes. Arrays have an element per node of c->program unless stated otherwise. */
typedef struct cuda_work {
    fxa__host *host;
    const fxa__problem *problem; /* NULL = the text is generated from a config, in tests */
    fxa__cuda_config config;     /* what to generate; passes 1 to 6 set its programs and assumptions */
    cuda_added added;            /* names of the tensors and params that passes add */
    bool backward;               /* true = the text is of a backward pass */
    uint32_t done;               /* bits of the results that the passes have produced so far (codegen/generate.c) */

    fxa_program *joined;  /* pass 7: score, mask and gradients in one program, before factors are folded */
    fxa__cuda_program *c; /* the result */

    /* Pass 8: what is found about each node of the final program. */
    fxa__linear *affine;   /* the node as an affine form of inputs */
    fxa__depend *inputs;   /* inputs, params and tensors on which a node depends */
    fxa__interval *bounds; /* bounds of ints; other nodes are unbounded */
    uint8_t *need;         /* pass 10: functions that need the node, as bits CUDA_VALUE, CUDA_DERIVATIVE, CUDA_MASK */

    /* Pass 10. */
    cuda_tile *tiles; /* values that tile() computes */
    /* true = the row and key operand (captured values per query and key) are i64 elements saturated to 32 bits;
     * the mask nevertheless has the result of comparing all 64 bits */
    bool i64_operands;
    /* backward: float node that depends on b, h and q - k alone. The forward reads the node from the table over q - k
     * (diagonal()), where it is rounded to f32. The backward computes the node for each pair, and must not fuse it into
     * an fma, which would skip this rounding. -1 = none */
    int32_t rounded;

    uint8_t *in_bounds; /* pass 11, loads: bit d is set if index d is always inside the tensor */
    bool *wanted;       /* pass 12, [outputs]: true = the output is a requested gradient and not always 0 */
    int32_t conjuncts[CUDA_CONJUNCTS]; /* pass 13, [n_conjuncts]: conditions of uniform_mask() */
    int n_conjuncts;                   /* pass 13: -1 = no uniform_mask() */
    cuda_param_names names;            /* pass 14 */

    /* Pass 15: emitters of the text's functions, with the nodes that these functions need. */
    struct {
        fxa__emit pairs;     /* value(), mask(), user_backward(): may read all members of struct Pair */
        fxa__emit gradients; /* partials() and scatter(): read only q and k of struct Pair */
        fxa__emit tile;      /* tile(): values that are computed once per tile, for its first pair (q, k) */
        fxa__emit mask64;    /* mask_whole(), the mask that compares 64-bit elements */
    } emit;
} cuda_work;

/* ---- Passes, in order -------------------------------------------------------------------------------------------- */

/* Each pass returns FXA_OK, E_MEMORY, E_UNSUPPORTED with the reason, or an error of the program builder. */

/* codegen/coordinates.c. Consumes the problem's score program, index maps and lengths. Produces config.program, whose
 * b, h, q, k and lengths are those of the problem; tables and offsets of coordinates are additional int tensors. */
fxa_status fxa__cuda_substitute_coordinates(cuda_work *w, fxa_error *err);
/* codegen/score_masks.c. Turns `c ? x : -inf` in the score into a condition c of the mask. */
fxa_status fxa__cuda_lift_score_masks(cuda_work *w, fxa_error *err);
/* codegen/score_masks.c. Turns conditions of the mask that read the score back into `c ? x : -inf` in the score. */
fxa_status fxa__cuda_move_mask_to_score(cuda_work *w, fxa_error *err);
/* codegen/user_backward.c. Consumes the caller's backward program, if any. Produces config.bprop: that program with the
 * coordinates of the problem, its params and tensors renamed to names that the score program does not declare. */
fxa_status fxa__cuda_prepare_user_backward(cuda_work *w, fxa_error *err);
/* codegen/join.c. Produces config.derivative, the derivative of the score program; NULL in a forward. */
fxa_status fxa__cuda_derive(cuda_work *w, fxa_error *err);
/* codegen/assumptions.c. Produces config.assumed: what the text may assume of captured tensors and of params. */
fxa_status fxa__cuda_find_assumptions(cuda_work *w, fxa_error *err);
/* codegen/join.c. Consumes the score program, and its derivative or the caller's backward. Produces w->joined, one
 * program with the outputs of both, in which dscore = 1, constants are params, and score = (product of Q and K) *
 * scale; and c->params and c->source, where a run finds each param and tensor of w->joined. */
fxa_status fxa__cuda_join_and_scale(cuda_work *w, fxa_error *err);
/* codegen/fold_factors.c. Consumes w->joined. Produces c->program, in which values that are equal in a head are
 * factors, not divisors, and at most one factor of a product; and w->affine, w->inputs and w->bounds of its nodes. */
fxa_status fxa__cuda_fold_factors(cuda_work *w, fxa_error *err);
/* codegen/split_unit.c. Produces the nodes that value() and unit() (a factor of the entire score that depends on params
 * alone) return, and which of value, derivative and mask the text has. If the factor may be <= 0, clears
 * finite_factors and repeats the pass fxa__cuda_fold_factors(). */
fxa_status fxa__cuda_split_unit(cuda_work *w, fxa_error *err);
/* codegen/operands.c. Produces c->operands, what value() and mask() read for a pair (q, k) besides q, k and the score,
 * and w->tiles, the ints and floats of a pair that are computed from a value per tile. */
fxa_status fxa__cuda_place_operands(cuda_work *w, fxa_error *err);
/* codegen/bound_values.c. Produces the bound of value(), whether the derivative may be infinite, and which indices of
 * loads are always inside the captured tensor, so that they need no guard. */
fxa_status fxa__cuda_bound_values(cuda_work *w, fxa_error *err);
/* codegen/place_gradients.c. Produces how each requested gradient is summed. */
fxa_status fxa__cuda_place_gradients(cuda_work *w, fxa_error *err);
/* codegen/fast_paths.c. Produces the conditions of uniform_mask() and the tanh of softcap(). */
fxa_status fxa__cuda_choose_fast_paths(cuda_work *w, fxa_error *err);
/* codegen/choose_host_values.c. Produces the floats that the host computes because they depend on params alone, and
 * the index of each in f[]. */
fxa_status fxa__cuda_choose_host_values(cuda_work *w, fxa_error *err);
/* codegen/out_of_line.c. Produces the nodes that each function of the text needs, and which functions kernels call
 * instead of inlining them. */
fxa_status fxa__cuda_choose_out_of_line(cuda_work *w, fxa_error *err);
/* codegen/write_program.c. Writes c->text, and chooses c->operands.ranges, which tile_class() reads. */
fxa_status fxa__cuda_write_text(cuda_work *w, fxa_error *err);

/* ---- codegen/added_names.c --------------------------------------------------------------------------------------- */

/* Writes w->added, the names of tensors and params that passes add. Must precede the passes. */
void fxa__cuda_added_names_make(cuda_work *w);
/* Writes `base` to `name`, or if p declares a param or tensor of this name, `base` with a number. */
void fxa__cuda_unused_name(const fxa_program *p, const char *base, char name[CUDA_NAME]);
/* Returns where a run finds the tensor of this name. */
fxa__cuda_origin fxa__cuda_tensor_source(const cuda_work *w, const char *name);
/* Returns fxa__cuda_param.source of the param of this name, which is a param of the caller: neither a constant nor the
 * scale. */
int32_t fxa__cuda_param_source(const cuda_work *w, const char *name);

/* ---- codegen/write_program.c: text ------------------------------------------------------------------------------- */

/* Appends `text` to the generated text. */
void fxa__cuda_put(const cuda_work *w, const char *text);
/* Appends the declarations of q_len, k_len and heads, which static functions of (b, h) read. diagonal: true =
 * also declares q and k, set to the first query and key with q - k = d, the argument of the function. */
void fxa__cuda_lengths_write(const cuda_work *w, bool diagonal);
/* Appends the beginning of a function of struct Pair p: the statements that depend on q or k and that the functions in
 * `bits` (CUDA_VALUE, ...) need. */
void fxa__cuda_pair_write(const cuda_work *w, const fxa__emit *e, uint32_t bits);
/* Opens *e for a static function that returns nodes[n], and appends the statements up to max_level that compute these
 * nodes. The statements read no member of Program. Returns false if memory ran out. The caller closes *e in any
 * case. */
bool fxa__cuda_static_write(const cuda_work *w, const int32_t *nodes, int32_t n, fxa__emit_level max_level,
                            fxa__emit *e);

/* ---- Functions that passes share --------------------------------------------------------------------------------- */

/* codegen/coordinates.c: returns a program in *out whose coordinates and lengths are those of the problem. */
fxa_status fxa__cuda_coordinates_apply(cuda_work *w, fxa_program *program, fxa_program **out, fxa_error *err);

/* codegen/fold_factors.c: frees the arrays with an element per node of c->program. */
void fxa__cuda_analyses_free(cuda_work *w);

/* codegen/split_unit.c: returns true if a node depends on params and constants alone. */
bool fxa__cuda_is_run(const cuda_work *w, int32_t node);

/* codegen/tile_values.c: writes the bounds of int nodes, for coordinates and lengths up to FXA__CUDA_LENGTH, to out[n].
 * Other nodes are unbounded. */
void fxa__cuda_int_bounds(const fxa_program *p, fxa__interval *out);
/* Writes to out[n], for each node, the expression that computes it for a pair (q, k) from a value per tile. */
void fxa__cuda_tile_values(const cuda_work *w, cuda_tile *out);

/* codegen/place_gradients.c: returns true if a node is the float constant x. */
bool fxa__cuda_is_number(const fxa_program *p, int32_t node, double x);
/* Returns true if a requested gradient reads the score. */
bool fxa__cuda_gradients_read_score(const cuda_work *w);
/* Returns true if an output is a gradient that scatter() adds. */
bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output);

/* codegen/param_names.c: writes the expressions by which the text reads params and floats that the host computes. */
void fxa__cuda_param_names_make(const cuda_work *w, cuda_param_names *out);
/* Sets up e so that params are read by the names of w->names, hence with the same bits in all functions of the text.
 * Must precede fxa__lower_emit_require on e. members: true = functions may read members of Program, false = they are
 * static. */
void fxa__cuda_param_names_use(const cuda_work *w, fxa__emit *e, bool members);

/* codegen/out_of_line.c: returns true if only tile_class() reads the packed row and key operands: in a backward whose
 * operands are i64, the mask loads all 64 bits, and the sm90 kernel lacks registers to read the packed ones too. */
bool fxa__cuda_only_ranges_read_operands(const cuda_work *w);
/* Returns true if functions of a pair (q, k) compute a node from t<node>, a member that tile() computes. */
bool fxa__cuda_is_tiled(const cuda_work *w, int32_t node);

/* codegen/write_tile_functions.c: writes unit(), diagonal() and tile_class(). Returns false if memory ran out. */
bool fxa__cuda_tile_functions_write(const cuda_work *w);
/* codegen/write_gradients.c: writes partials() and scatter(). */
void fxa__cuda_gradients_write(const cuda_work *w);
/* Writes sum_place() and diagonal_place(). Returns false if memory ran out. */
bool fxa__cuda_target_indices_write(const cuda_work *w);

#endif
