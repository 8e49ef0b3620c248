/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, emit: writes the nodes of a program as C or CUDA text, for engines that compile code. Each operation is
 * defined once, in its row of ops.def: the generated text is the expression of that row with the operands filled in,
 * and calls the functions of program_ops.h. Compiled as C in f64, the generated text gives the bits of
 * fxa__program_eval (tests/lower/test_emit.c).
 *
 * Each node has a level: the loop in which it is computed. A node that an inner level or an output reads is *hoisted*:
 * the caller declares the node's variable (fxa__lower_emit_hoisted) outside the loops of both the node and its readers.
 * The variable of any other node is a local constant in the text of the node's level. Constants and params have no
 * variable; their text is the value.
 *
 * The text of a level reads the hoisted variables of outer levels and the members of the argument struct `a`: f[], i[]
 * and tensor[], whose elements have data, size[] and stride[]. It also reads, by name, the inputs of its own level and
 * of the levels outside it:
 *
 *   RUN   none
 *   HEAD  b, h, q_len, k_len, heads
 *   ROW   q
 *   KEY   k
 *   PAIR  score, dscore
 *
 * Equality of two i64 loads compares all 64 bits. If the caller replaces both loads by texts (fxa__emit.given), the
 * 32-bit ints of the texts are compared.
 *
 * In f32, a sum with a product as operand is one fused multiply-add. Whether a product is fused depends only on the
 * node and its operands, so a program's text has the same bits wherever it is placed.
 */
#ifndef FXA_LOWER_EMIT_H
#define FXA_LOWER_EMIT_H

#include "depend.h"

typedef enum fxa__dialect { FXA__C_F64, FXA__C_F32, FXA__CUDA_F32, FXA__DIALECTS } fxa__dialect;

typedef enum fxa__emit_level {
    FXA__EMIT_RUN,  /* once per run: depends on params and tensor elements at constant indices only */
    FXA__EMIT_HEAD, /* once per head: depends on b, h or lengths, on neither q nor k */
    FXA__EMIT_ROW,  /* once per row: depends on q, not on k */
    FXA__EMIT_KEY,  /* once per key: depends on k, not on q */
    FXA__EMIT_PAIR, /* once per pair: depends on both q and k, or on the score */
    FXA__EMIT_LEVELS
} fxa__emit_level;

typedef struct fxa__emit {
    fxa__host *host;
    const fxa_program *p;
    fxa__dialect dialect;
    const char *tanh; /* name of tanh in the generated text, set by the caller; NULL = that of the dialect */
    /* Arrays with one element per node: */
    uint8_t *level; /* fxa__emit_level */
    /* bit i = outputs of fxa__out_kind i need the node. Bits of kinds that were not passed to fxa__lower_emit_open are
     * free for the caller's use. */
    uint8_t *used;
    uint8_t *hoisted; /* 1 = an inner level or an output reads the node; 0 for constants and params */
    /* Arrays with one element per node, initially zero; the caller sets them before fxa__lower_emit_require: */
    const char **given;   /* text that replaces the expression of the node's operation; NULL = none */
    uint8_t *nonnegative; /* 1 = the node is an int and never negative */
    uint8_t *unfused;     /* 1 = a float product that must not be fused into a sum */
    /* for loads, where the base address per head (emit_load.c) is computed: 0 = nowhere, the load has none; 1 = outside
     * this text; 2 = in this text */
    uint8_t *base;
    uint8_t *in_bounds; /* loads: bit d = index d is proven in bounds */
} fxa__emit;

/* Prepares the text of program p for the outputs of `kinds` (bit i: outputs of fxa__out_kind i). p may be a program of
 * any fxa_program_kind, and must outlive *out. p must not read q_row or k_row, because the text has no variables for
 * them: the caller first replaces them by q and k, which in compiled code are the indices of row and key. Returns false
 * if memory ran out. The caller closes *out in either case. */
bool fxa__lower_emit_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, uint32_t kinds, fxa__emit *out);
void fxa__lower_emit_close(fxa__emit *e);
/* Marks a node and all nodes that it depends on as needed by `bits` (bits of fxa__emit.used), and hoists the node if it
 * is of another level than PAIR, so that statements of level PAIR can read it. */
void fxa__lower_emit_require(fxa__emit *e, int32_t node, uint8_t bits);

/* Writes the declarations of the hoisted variables of a level, one per line: "    real v12;". */
void fxa__lower_emit_hoisted(const fxa__emit *e, fxa__emit_level level, fxa__writer *w);
/* Writes the statements of a level that the outputs of `kinds` need. */
void fxa__lower_emit_nodes(const fxa__emit *e, fxa__emit_level level, uint32_t kinds, fxa__writer *w);
/* Returns the estimated compile time of the statements that the outputs of `kinds` need, per pair of a row and a key:
 * the sum of the weights of operations in ops.def. A statement of level PAIR counts fully. A statement of level ROW or
 * KEY counts 1 / pairs, because code for `pairs` pairs shares it. Statements of levels RUN and HEAD do not count. */
int32_t fxa__lower_emit_weight(const fxa__emit *e, uint32_t kinds, int32_t pairs);
/* Writes the statements of level HEAD that compute base addresses: one per load whose fxa__emit.base is 2.
 * fxa__lower_emit_hoisted of level HEAD declares the variables of these addresses. */
void fxa__lower_emit_bases(const fxa__emit *e, fxa__writer *w);
/* Returns true if the load's address can be split into a base address per head and an offset that is bounds-checked per
 * load (emit_load.c): some index varies with the row or key, and not all indices are proven in bounds. */
bool fxa__lower_emit_can_use_base(const fxa__emit *e, int32_t node);
/* Writes the value of a node as an operand: a variable, a literal or a param. If the node has a statement, the
 * statement must have been written before. */
void fxa__lower_emit_value(const fxa__emit *e, int32_t node, fxa__writer *w);
/* Returns how the text accesses members of the argument struct `a`: "a->" or "a.". */
const char *fxa__lower_emit_args(fxa__dialect dialect);
/* Returns the index of a param in the argument array of its type, a.f[] or a.i[]: the number of params of this type
 * that are declared before it. */
int32_t fxa__lower_emit_param(const fxa_program *p, int32_t param);

#endif
