/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that can run on this machine (engines_here.h).
 */
#include "engines_here.h"

#include "attn_data.h"

#include <stdlib.h>

enum { HERE_MAX = 128 };

static const char *here_names[HERE_MAX];
static size_t here_count;
static bool here_asked;

static bool here_takes(fxa_context *ctx, const char *engine) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan *plan = NULL;
    p.b = p.hq = p.sq = p.sk = p.d_qk = 1, p.q.dtype = FXA_F64;
    p.engine = engine, p.device = attn_device(engine);
    bool takes = fxa_plan_create(ctx, &p, &plan, NULL) == FXA_OK;
    fxa_plan_destroy(plan);
    return takes;
}

static void here_ask(void) {
    fxa_context *ctx = NULL;
    if (fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    for (size_t i = 0; fxa_engine_name(i) && here_count < HERE_MAX; i++)
        if (here_takes(ctx, fxa_engine_name(i))) here_names[here_count++] = fxa_engine_name(i);
    fxa_context_destroy(ctx);
    here_asked = true;
}

const char *engine_here(size_t i) {
    const char *only = getenv("FXA_TEST_ENGINE");
    if (only && *only) return i == 0 ? only : NULL;
    if (!here_asked) here_ask();
    return i < here_count ? here_names[i] : NULL;
}
