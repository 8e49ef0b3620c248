/* SPDX-License-Identifier: Apache-2.0
 *
 * Every size of a problem at 0, 1 and its maximum, in all pairs (support/fixtures/size_walk.h), on every engine of this
 * machine: each problem gets a reason or a plan, and a small problem is run, on tensors that have exactly its extents,
 * with the reference's results.
 */
#include "base/dtype.h"
#include "plan/plan.h"
#include "support/fixtures/any_call.h"
#include "support/fixtures/attn_data.h"
#include "support/fixtures/size_walk.h"

enum { SIZES_SMALL = 1 << 16 };

typedef struct sizes_seen {
    fxa_context *ctx;
    const char *engine;
    int refused, made, run;
} sizes_seen;

static bool sizes_run(const fxa_plan *plan, any_call *x, const char *what) {
    fxa_error err;
    if (!any_call_make(x, plan->problem, fxa_plan_workspace(plan), SIZES_SMALL, 11)) return false;
    fxa_status status = fxa_plan_run(plan, &x->args, &err);
    if (status != FXA_OK) T_FAIL("%s: %s\n", what, err.text);
    return true;
}

/* Compares results. About 5 pairs with values of 1, gradients included: 1e-12 is a thousand roundings. LSE of head dim
 * 512 is below 600. */
static void sizes_compare(const any_call *x, const any_call *want, const char *what) {
    for (size_t i = 1; i < x->n_blocks; i++) { /* block 0 is the workspace */
        const any_block *a = &x->block[i], *b = &want->block[i];
        if (!a->written || a->dtype != FXA_F64) continue;
        for (size_t j = 0; j < a->bytes / sizeof(double); j++) {
            double got = ((const double *)(const void *)a->first)[j],
                   should = ((const double *)(const void *)b->first)[j];
            if (got == should || fabs(got - should) <= 1e-10) continue;
            T_FAIL("%s: element %zu of block %zu is %.17g, not %.17g\n", what, j, i, got, should);
            return;
        }
    }
}

/* Returns true if the problem is valid and the engine supports it. */
static bool sizes_supported(const sizes_seen *seen, const fxa_problem *p) {
    fxa_support reports[16];
    fxa_error err;
    size_t count = 16;
    if (fxa_support_query(seen->ctx, p, reports, &count, &err) != FXA_OK) return false;
    for (size_t i = 0; i < count && i < 16; i++)
        if (strcmp(reports[i].engine, seen->engine) == 0) return reports[i].supported;
    return false;
}

static void sizes_visit(size_walk_case *c, void *user) {
    static any_call x, want;
    sizes_seen *seen = user;
    t_plan *plan = NULL, *ref = NULL;
    fxa_error err;
    c->p.engine = seen->engine, c->p.device = attn_device(seen->engine);
    bool supported = sizes_supported(seen, &c->p);
    fxa_status made = fxa_plan_create(seen->ctx, &c->p, &plan, &err);
    if (made != FXA_OK && made != FXA_E_PROBLEM && made != FXA_E_UNSUPPORTED) T_FAIL("%s: %s\n", c->what, err.text);
    if ((made == FXA_OK) != supported) T_FAIL("%s: %s\n", c->what, "another answer");
    seen->refused += made != FXA_OK, seen->made += made == FXA_OK;
    if (made != FXA_OK) T_CHECK(err.text[0]);
    if (plan && sizes_run(plan, &x, c->what)) {
        seen->run++;
        c->p.engine = "ref", c->p.device = FXA_HOST;
        T_OK(fxa_plan_create(seen->ctx, &c->p, &ref, &err));
        if (ref && sizes_run(ref, &want, c->what)) {
            sizes_compare(&x, &want, c->what);
            any_call_free(&want);
        }
        any_call_free(&x);
    }
}

TEST(every_size_at_its_ends) {
    for (size_t e = 0; engine_here(e); e++) {
        sizes_seen seen = {attn_context(2), engine_here(e), 0, 0, 0};
        T_REQUIRE(seen.ctx);
        size_walk(seen.ctx, 1, sizes_visit, &seen);
        if (seen.run < 1000)
            T_FAIL("%s: %d refused, %d plans, %d runs\n", seen.engine, seen.refused, seen.made, seen.run);
        fxa_context_destroy(seen.ctx);
    }
}

T_MAIN
