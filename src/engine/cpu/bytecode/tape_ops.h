/* SPDX-License-Identifier: Apache-2.0
 *
 * Opcodes of row bytecode: first the entries of tape_ops.def in their order, then the operations that run.c implements:
 * loads, masking by ranges of columns, and sums of gradients.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_OPS_H

#include "fxattn/fxattn.h"

/* Operations that the program language lacks. Their numbers are larger than those of fxa_op. */
enum {
    FXA__TAPE_NOT_BOOL = 128,
    FXA__TAPE_FILL,      /* sets every element of a row to a scalar */
    FXA__TAPE_COPY,      /* copies a row; does nothing if source and target are the same */
    FXA__TAPE_REVERSE,   /* reverses a row in place; its length need not be a multiple of FXA__TAPE_STEP */
    FXA__TAPE_FMA,       /* a * b + c */
    FXA__TAPE_FMS,       /* a * b - c */
    FXA__TAPE_FNMA,      /* c - a * b */
    FXA__TAPE_TANH_MUL,  /* tanh(a * b) * c */
    FXA__TAPE_TANH_DIV,  /* tanh(a / b) * c */
    FXA__TAPE_SLOPE,     /* a == 0 ? 0 : a * (c - b * b) */
    FXA__TAPE_FLOAT_ADD, /* float(a + b), with ints a, b */
    FXA__TAPE_FLOAT_SUB, /* float(a - b), with ints a, b */
    /* d + b * float(c + a), with ints a, c; the result overwrites the row d, which is arg[3] of the graph node */
    FXA__TAPE_LINE_UP,
    FXA__TAPE_LINE_DOWN, /* d + b * float(c - a), with ints a, c; the result overwrites the row d */
    FXA__TAPE_MASK_EQ,   /* a == b ? c : -inf, with ints a, b */
    FXA__TAPE_MASK_NE,
    FXA__TAPE_MASK_LT,
    FXA__TAPE_MASK_LE,
    FXA__TAPE_GUARD,    /* a == 0 ? 0 : b */
    FXA__TAPE_ADD_UP,   /* adds to a double the sum of b[i] over all i with a[i] != 0 */
    FXA__TAPE_ADD_EACH, /* for each i with a[i] != 0: adds b[i] to element i of evenly spaced doubles */
    /* only in the graph: compares sign * k + a with b, where k is the key coordinate; lowered to a FXA__TAPE_RANGE */
    FXA__TAPE_WITHIN
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
    FXA__TAPE_LOAD = FXA__TAPE_OPS, /* loads elements of a captured tensor */
    FXA__TAPE_RANGE,                /* sets a row to -inf outside of the columns of a range */
    FXA__TAPE_SUM,                  /* adds to the gradient of a param: `grad param += value` */
    FXA__TAPE_SCATTER               /* adds to the gradient of a tensor: `grad tensor[...] += value` */
} fxa__tape_opcode;

typedef struct fxa__tape_info {
    const char *id;
    int op;
    char d, a, b, c; /* formats of the result and of the operands: F, f, I, i, D or _, as in tape_ops.def */
} fxa__tape_info;
extern const fxa__tape_info fxa__tape_infos[FXA__TAPE_OPS];

/* Rows are processed in entire steps of this many elements by every instruction set: the number of floats in the widest
 * vector. */
#define FXA__TAPE_STEP 16

#endif
