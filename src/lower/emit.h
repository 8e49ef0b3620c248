/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, emit: the nodes of a program as text in C or CUDA, for engines that compile code. What an operation means
 * is said once, in its row of ops.def: the text is that expression with the operands in it, over the functions of
 * program_ops.h. So in f64, compiled as C, it gives the bits of fxa__program_eval (tests/lower/test_emit.c).
 *
 * Each node has a level: how far outside of the loop over pairs it is computed. Nodes that inner levels or outputs need
 * are *kept*: declared by the caller (fxa__lower_emit_kept) where both levels see them. Others are constants of the
 * level's own statements. Constants and params have no statement; their text is the value.
 *
 * The text of a level may read, beside what outer levels have kept: `a` (arguments: f[], i[] and tensor[], whose
 * members are data, size[] and stride[]), and by their names the inputs of that level:
 *
 *   RUN   none    HEAD  b, h, q_len, k_len, heads    ROW  q    KEY  k    PAIR  score, dscore
 *
 * Elements of i64 are compared whole, unless the texts of both are given: then as the ints that those are.
 *
 * In f32 a sum with a product in it is one fused operation; that is decided by the node and its operands alone, so a
 * program's text has the same bits wherever it stands.
 */
#ifndef FXA_LOWER_EMIT_H
#define FXA_LOWER_EMIT_H

#include "depend.h"

typedef enum fxa__dialect { FXA__C_F64, FXA__C_F32, FXA__CUDA_F32, FXA__DIALECTS } fxa__dialect;

typedef enum fxa__emit_level {
    FXA__EMIT_RUN,  /* constants, params, tensors at fixed places */
    FXA__EMIT_HEAD, /* b, h, lengths */
    FXA__EMIT_ROW,  /* q, and what HEAD has */
    FXA__EMIT_KEY,  /* k, and what HEAD has */
    FXA__EMIT_PAIR, /* q and k, the score */
    FXA__EMIT_LEVELS
} fxa__emit_level;

typedef struct fxa__emit {
    fxa__host *host;
    const fxa_program *p;
    fxa__dialect dialect;
    const char *tanh; /* its name in the text; NULL: the dialect's. The caller's to change */
    /* By node: */
    uint8_t *level;     /* fxa__emit_level */
    uint8_t *used;      /* kinds of outputs that need it, by bits (fxa__out_kind); bits from 5 on are the caller's */
    uint8_t *kept;      /* 1 where inner levels or outputs read it; never of constants and params */
    const char **given; /* text that has its value, in place of its operation; NULL: none. The caller's to fill before
                           fxa__lower_emit_want, as what follows */
    uint8_t *plus;      /* 1 for ints that are known not to be negative, and for floats that are not to be fused */
    uint8_t *based;     /* 1 for loads whose place in the axes that no row or key changes is a base of its own: d<node>,
                           where elements begin, and n<node>, how many the first other axis has, 0 where that place is
                           outside; 2 where heads have it. CUDA only */
    uint8_t *sure;      /* of loads, by bits: indices that are inside for certain */
} fxa__emit;

/* Of a program of any kind, which lives as long, for its outputs of some kinds (bit i: fxa__out_kind i). It reads
 * neither q_row nor k_row: on devices q and k are the indices. False: out of memory. Close in either case. */
bool fxa__lower_emit_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, uint32_t kinds, fxa__emit *out);
void fxa__lower_emit_close(fxa__emit *e);
/* A node that pairs read, beside outputs: it and what it needs are used for `bits`. */
void fxa__lower_emit_want(fxa__emit *e, int32_t node, uint8_t bits);

/* Declarations of what a level keeps, one per line: "    real v12;". */
void fxa__lower_emit_kept(const fxa__emit *e, fxa__emit_level level, fxa__writer *w);
/* Statements of a level that outputs of these kinds need, one or two lines for a node. */
void fxa__lower_emit_nodes(const fxa__emit *e, fxa__emit_level level, uint32_t kinds, fxa__writer *w);
/* What these statements weigh for a pair, by WEIGHT of ops.def; those of rows and keys, which many pairs have in
 * common, count one in `pairs`. */
int32_t fxa__lower_emit_weight(const fxa__emit *e, uint32_t kinds, int32_t pairs);
/* Statements of the bases (2), for heads; their declarations come with those of FXA__EMIT_HEAD. */
void fxa__lower_emit_bases(const fxa__emit *e, fxa__writer *w);
/* Whether all indices of a load are inside for certain. */
bool fxa__lower_emit_is_sure(const fxa__emit *e, int32_t node);
/* Whether a load may have a base: some of its indices move with rows or keys, and not all are sure. */
bool fxa__lower_emit_takes_base(const fxa__emit *e, int32_t node);
/* A node's value where it is known: a name or a number, as an operand of anything. */
void fxa__lower_emit_value(const fxa__emit *e, int32_t node, fxa__writer *w);
/* What stands before a member of the arguments: "a->" or "a.". */
const char *fxa__lower_emit_args(fxa__dialect dialect);
/* The place of a param in f[] or i[]: those of a type are counted in the order of declaration. */
int32_t fxa__lower_emit_param(const fxa_program *p, int32_t param);

#endif
