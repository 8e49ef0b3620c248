/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of the evaluator: programs with one value.
 */
#ifndef FXA_TESTS_EVAL_FIXTURE_H
#define FXA_TESTS_EVAL_FIXTURE_H

#include "t.h"

#include "program/program.h"

static inline fxa_context *eval_context(void) {
    static fxa_context *ctx;
    if (!ctx && fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    return ctx;
}

static inline fxa_builder *eval_builder(void) {
    fxa_builder *b = NULL;
    if (fxa_builder_create(eval_context(), FXA_PROGRAM_SCORE, &b, NULL) != FXA_OK) abort();
    return b;
}

/* Returns the program score = x; if x is a bool, mask = x too. */
static inline fxa_program *eval_finish(fxa_builder *b, fxa_value x) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa__builder_type(b, x) == FXA_BOOL) fxa_builder_set_mask(b, x);
    fxa_builder_set_score(b, x);
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    return p;
}

#endif
