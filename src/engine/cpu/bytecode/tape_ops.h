/* SPDX-License-Identifier: Apache-2.0
 *
 * Opcodes of row bytecode: the rows of tape_ops.def in their order, then operations on memory outside of rows, which
 * are written in C by hand.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H

#include "fxattn/fxattn.h"

/* Operations that programs do not have; their codes follow those of ops.def. */
enum {
    FXA__TAPE_NOT_BOOL = 128,
    FXA__TAPE_FILL,      /* a single value in every element */
    FXA__TAPE_COPY,      /* a row; nothing to do if source and target are the same */
    FXA__TAPE_REVERSE,   /* a row backwards, in place; n is any */
    FXA__TAPE_FMA,       /* a * b + c */
    FXA__TAPE_FMS,       /* a * b - c */
    FXA__TAPE_FNMA,      /* c - a * b */
    FXA__TAPE_TANH_MUL,  /* tanh(a * b) * c */
    FXA__TAPE_TANH_DIV,  /* tanh(a / b) * c */
    FXA__TAPE_SLOPE,     /* a == 0 ? 0 : a * (c - b * b) */
    FXA__TAPE_FLOAT_ADD, /* float(a + b), of ints */
    FXA__TAPE_FLOAT_SUB, /* float(a - b), of ints */
    FXA__TAPE_LINE_UP,   /* result's row + b * float(c + a), with ints a, c; the graph has that row as fourth operand */
    FXA__TAPE_LINE_DOWN, /* result's row + b * float(c - a), with ints a, c */
    FXA__TAPE_MASK_EQ,   /* a == b ? c : -inf, of ints a, b */
    FXA__TAPE_MASK_NE,
    FXA__TAPE_MASK_LT,
    FXA__TAPE_MASK_LE,
    FXA__TAPE_GUARD,    /* a == 0 ? 0 : b */
    FXA__TAPE_ADD_UP,   /* sum of b where a is not 0 */
    FXA__TAPE_ADD_EACH, /* adds each element of b where a is not 0 to a sum of its own */
    FXA__TAPE_WITHIN    /* graph only: sign * k + a compared with b; see FXA__TAPE_RANGE */
};
_Static_assert((int)FXA_OP_COUNT <= (int)FXA__TAPE_NOT_BOOL, "codes of programs and of tapes do not meet");
_Static_assert(FXA__TAPE_WITHIN <= UINT8_MAX, "fxa__tape_node.op holds every code");

typedef enum fxa__tape_opcode {
#define TAPE(ID, op, d, a, b, c, expression) FXA__TAPE_##ID,
#define TAPE_OWN(ID, op, d, a, b, c) FXA__TAPE_##ID,
#include "tape_ops.def"
#undef TAPE
#undef TAPE_OWN
    FXA__TAPE_OPS,                  /* number of operations of the table */
    FXA__TAPE_LOAD = FXA__TAPE_OPS, /* elements of a captured tensor */
    FXA__TAPE_RANGE,                /* -inf outside of the columns of a range */
    FXA__TAPE_SUM,                  /* `grad param += value` */
    FXA__TAPE_SCATTER               /* `grad tensor[...] += value` */
} fxa__tape_opcode;

typedef struct fxa__tape_info {
    const char *id;
    int op;
    char d, a, b, c; /* letters of tape_ops.def */
} fxa__tape_info;
extern const fxa__tape_info fxa__tape_infos[FXA__TAPE_OPS];

/* Rows are processed in whole steps of this many elements, at every width: the widest vector of the narrowest type. */
#define FXA__TAPE_STEP 16

#endif
