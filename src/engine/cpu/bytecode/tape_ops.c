/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the opcode for an operation and its operands in the table of tape_ops.def, and the operations of a program that
 * the table lacks.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"

const fxa__tape_info fxa__tape_infos[FXA__TAPE_OPS] = {
#define TAPE(ID, op, d, a, b, c, expression) {#ID, op, #d[0], #a[0], #b[0], #c[0]},
#define TAPE_OWN(ID, op, d, a, b, c) {#ID, op, #d[0], #a[0], #b[0], #c[0]},
#include "tape_ops.def"
#undef TAPE
#undef TAPE_OWN
};

int32_t fxa__tape_find(uint32_t op, char d, const char *letters) {
    for (int32_t i = 0; i < FXA__TAPE_OPS; i++) {
        const fxa__tape_info *t = &fxa__tape_infos[i];
        if (t->op == (int)op && t->d == d && t->a == letters[0] && t->b == letters[1] && t->c == letters[2]) return i;
    }
    return -1;
}

/* Looks for the variant whose operands are all rows: if the table has it, lower.c can compile the operation for every
 * mixture of rows and scalars, by filling a row with a scalar. */
const fxa__node *fxa__tape_missing(const fxa_program *program) {
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const fxa__node *n = &program->nodes[i];
        char letters[4] = "___";
        bool leaf = n->op == FXA_OP_CONST || n->op == FXA_OP_PARAM || n->op == FXA_OP_INPUT || n->op == FXA_OP_LOAD;
        if (leaf || fxa__tape_is_through(program, n)) continue;
        FXA__ASSERT(n->n_args <= 3); /* only loads have more operands */
        for (int k = 0; k < n->n_args; k++) letters[k] = program->nodes[n->arg[k]].type == FXA_FLOAT ? 'F' : 'I';
        if (fxa__tape_find(fxa__tape_op_of(n), n->type == FXA_FLOAT ? 'F' : 'I', letters) < 0) return n;
    }
    return NULL;
}
