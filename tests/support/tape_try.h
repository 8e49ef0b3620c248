/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of tests of row bytecode: a context, the kernel sets of this machine, and tape_try, which draws data for a
 * program, checks the bytecode, and prints a program that fails.
 */
#ifndef FXA_TESTS_TAPE_TRY_H
#define FXA_TESTS_TAPE_TRY_H

#include "t.h"

#include "tape_case.h"

static inline fxa_context *tape_ctx(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    return ctx;
}

/* Returns the next kernel set, from index *i on, that this machine can run and whose compute type has real_size bytes;
 * NULL = none. */
static inline const fxa__cpu_kernels *tape_set(size_t *i, size_t real_size) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    while ((k = fxa__cpu_set((*i)++, real_size, &usable)))
        if (usable) return k;
    return NULL;
}

/* Compares the bytecode of a program with the evaluator, on random data (tape_case.h explains wild and tolerance). */
static inline bool tape_try(fxa_context *ctx, const fxa__cpu_kernels *kernels, fxa_program *p, uint32_t flags,
                            bool wild, double tolerance, uint64_t *rng) {
    tape_case c;
    char text[4096];
    tape_case_draw(&c, kernels, p, wild, rng);
    c.tolerance = tolerance;
    bool ok = tape_case_check(&c, fxa__context_host(ctx), flags, rng);
    if (!ok && fxa_program_print(p, text, sizeof text, NULL, NULL) == FXA_OK) printf("%s\n", text);
    if (!ok) T_FAIL("%s\n", c.why);
    tape_case_free(&c);
    return ok;
}

#endif
