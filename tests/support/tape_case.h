/* SPDX-License-Identifier: Apache-2.0
 *
 * Row bytecode of the cpu engine on random data: a program, params and captured tensors (next to inaccessible pages), a
 * tile of rows and a block of keys; and the evaluation of the same program pair by pair. The evaluator rounds every
 * operation to the compute type, as bytecode without fused operations does, so results are equal bit by bit. The
 * evaluator calls the kernels for exp, tanh and similar functions, whose errors other tests bound.
 */
#ifndef FXA_TESTS_TAPE_CASE_H
#define FXA_TESTS_TAPE_CASE_H

#include "engine/cpu/bytecode/tape.h"
#include "fail_alloc.h"
#include "guard.h"

#include <stdbool.h>

enum { TAPE_CASE_ROWS = 5, TAPE_CASE_COLUMNS = 144 };

typedef struct tape_case {
    const fxa__cpu_kernels *kernels;
    fxa_program *program; /* borrowed */
    double params[FXA_MAX_PARAMS], dparams[FXA_MAX_PARAMS], want_dparams[FXA_MAX_PARAMS], sum_dparams[FXA_MAX_PARAMS];
    fxa_view tensors[FXA_MAX_TENSORS];
    guard memory[FXA_MAX_TENSORS];
    fxa__tape_sum sums[FXA_MAX_TENSORS];
    double *want[FXA_MAX_TENSORS], *size[FXA_MAX_TENSORS]; /* [tensor] expected sums, and sums of absolute values */
    int64_t rows, columns;
    int32_t first_row, head_rows, first_key; /* first q_row, rows of a head, first k_row */
    int32_t b, q_len, k_len, heads, h[TAPE_CASE_ROWS], q[TAPE_CASE_ROWS], k[TAPE_CASE_COLUMNS];
    /* Scores and their gradients, rounded to the compute type. */
    double score[TAPE_CASE_ROWS][TAPE_CASE_COLUMNS], dscore[TAPE_CASE_ROWS][TAPE_CASE_COLUMNS];
    /* 0 = no fused operations, so bits must be equal; else the error of fused operations, relative to 1 + |value|. */
    double tolerance;
    fxa__val *vals;
    char why[300];
} tape_case;

/* Draws params, tensors, coordinates and scores for a program. wild: scores and elements include inf, NaN and huge
 * numbers. */
void tape_case_draw(tape_case *c, const fxa__cpu_kernels *kernels, fxa_program *program, bool wild, uint64_t *rng);
void tape_case_free(tape_case *c);

/* Evaluates one pair; c->vals receives the values of all nodes. */
void tape_case_eval(tape_case *c, int64_t row, int64_t column);

/* Compiles the program to bytecode with these flags, runs the bytecode in pieces of rows between guard pages, and
 * compares the results with the evaluator. Returns false, with the reason in c->why, at the first difference. */
bool tape_case_check(tape_case *c, fxa__host *host, uint32_t flags, uint64_t *rng);

/* Compiles with each allocation failing in turn. Returns the number of allocations; 0 if a failure did not end in
 * E_MEMORY with all memory freed. f: the allocator of ctx. */
size_t tape_allocations(fail_alloc *f, fxa_context *ctx, const fxa_program *program, uint32_t flags,
                        const fxa__cpu_kernels *kernels);

/* Returns the opcode of an operation by the letters of its operands ("F", "FF_"); -1 = none. */
int tape_case_opcode(uint32_t op, char d, const char *letters);

#endif
