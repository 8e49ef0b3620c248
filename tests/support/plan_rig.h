/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiny problem in a context with a counting allocator: the fixture of most plan tests.
 */
#ifndef FXA_TESTS_PLAN_RIG_H
#define FXA_TESTS_PLAN_RIG_H

#include "fail_alloc.h"
#include "t.h"
#include "tiny.h"

typedef struct plan_rig {
    fail_alloc memory;
    fxa_context *ctx;
    tiny t;
} plan_rig;

/* Starts the rig. *r must not move afterwards. */
static bool plan_rig_start(plan_rig *r) {
    fxa_error err;
    *r = (plan_rig){.memory = FAIL_ALLOC_INIT};
    r->ctx = fail_alloc_context(&r->memory);
    if (!r->ctx) return false;
    fxa_status status = tiny_forward(r->ctx, &r->t, &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    return status == FXA_OK;
}

/* Ends the rig and asserts that all memory was freed. */
static void plan_rig_end(plan_rig *r) {
    tiny_end(&r->t);
    fxa_context_destroy(r->ctx);
    T_INT(r->memory.live_bytes, 0);
    T_INT(r->memory.mistakes, 0);
}

__attribute__((unused)) static fxa_cache_stats plan_stats(plan_rig *r) {
    fxa_cache_stats s;
    fxa_cache_get_stats(r->ctx, &s);
    return s;
}

#endif
