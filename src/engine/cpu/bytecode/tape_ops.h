/* SPDX-License-Identifier: Apache-2.0
 *
 * Opcodes of row bytecode: first the rows of tape_ops.def in their order, then operations on memory other than rows,
 * which are implemented in run.c.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H

#include "fxattn/fxattn.h"

/* Operations that the program language lacks. The codes of these operations follow the codes of ops.def. */
enum {
    FXA__TAPE_NOT_BOOL = 128,
    FXA__TAPE_FILL,      /* sets every element of a row to a single value */
    FXA__TAPE_COPY,      /* copies a row; does nothing if source and target are the same */
    FXA__TAPE_REVERSE,   /* reverses a row in place; n is arbitrary */
    FXA__TAPE_FMA,       /* a * b + c */
    FXA__TAPE_FMS,       /* a * b - c */
    FXA__TAPE_FNMA,      /* c - a * b */
    FXA__TAPE_TANH_MUL,  /* tanh(a * b) * c */
    FXA__TAPE_TANH_DIV,  /* tanh(a / b) * c */
    FXA__TAPE_SLOPE,     /* a == 0 ? 0 : a * (c - b * b) */
    FXA__TAPE_FLOAT_ADD, /* float(a + b), with ints a, b */
    FXA__TAPE_FLOAT_SUB, /* float(a - b), with ints a, b */
    /* d + b * float(c + a), with ints a, c; d is the result's row, and the fourth operand in the graph */
    FXA__TAPE_LINE_UP,
    FXA__TAPE_LINE_DOWN, /* d + b * float(c - a), with ints a, c; d as in LINE_UP */
    FXA__TAPE_MASK_EQ,   /* a == b ? c : -inf, with ints a, b */
    FXA__TAPE_MASK_NE,
    FXA__TAPE_MASK_LT,
    FXA__TAPE_MASK_LE,
    FXA__TAPE_GUARD,    /* a == 0 ? 0 : b */
    FXA__TAPE_ADD_UP,   /* sum of the elements of b at which a is not 0 */
    FXA__TAPE_ADD_EACH, /* adds each element of b at which a is not 0 to a sum of its own, one sum per element */
    FXA__TAPE_WITHIN    /* graph only: compares sign * k + a with b; becomes a FXA__TAPE_RANGE */
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
    FXA__TAPE_RANGE,                /* sets a row to -inf outside of the columns of a range */
    FXA__TAPE_SUM,                  /* adds to the gradient of a param: `grad param += value` */
    FXA__TAPE_SCATTER               /* adds to the gradient of a tensor: `grad tensor[...] += value` */
} fxa__tape_opcode;

typedef struct fxa__tape_info {
    const char *id;
    int op;
    char d, a, b, c; /* letters of tape_ops.def */
} fxa__tape_info;
extern const fxa__tape_info fxa__tape_infos[FXA__TAPE_OPS];

/* Rows are processed in entire steps of this many elements by every instruction set: the number of floats in the widest
 * vector. */
#define FXA__TAPE_STEP 16

#endif
