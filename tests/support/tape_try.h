/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of tapes share besides tape_case.h: a context, the sets of this machine, one program drawn and checked,
 * and shown where it is wrong.
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

/* The next set for reals of that size which this machine can run, from *i on; NULL: there is none. */
static inline const fxa__cpu_kernels *tape_set(size_t *i, size_t real_size) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    while ((k = fxa__cpu_set((*i)++, real_size, &usable)))
        if (usable) return k;
    return NULL;
}

/* The tape of a program against the evaluator, on data that is drawn; see tape_case.h for wild and tolerance. */
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
