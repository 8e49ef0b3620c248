/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiny problem on the mock device, in a context that counts memory, with engines that a test configures: "first"
 * and "second" are mock devices, in that order; cpu and ref follow.
 */
#ifndef FXA_TESTS_SEAM_FIXTURE_H
#define FXA_TESTS_SEAM_FIXTURE_H

#include "plan/plan.h"
#include "support/mock/mock_device.h"
#include "support/fixtures/own_engines.h"
#include "support/fixtures/plan_fixture.h"

static fxa__engine seam_first, seam_second;
static const fxa__engine *own_engines[OWN_ENGINES] = {&seam_first, &seam_second, &fxa__engine_cpu, &fxa__engine_ref};

static bool seam_start(plan_rig *r) {
    mock_reset();
    seam_first = seam_second = mock_engine;
    seam_first.name = "first", seam_second.name = "second";
    if (!plan_rig_start(r)) return false;
    r->t.problem.device = FXA_CUDA;
    return true;
}

static void seam_end(plan_rig *r) {
    plan_rig_end(r);
    T_INT(mock.mistakes, 0);
    T_INT(mock.blocks, 0);
    T_INT(mock.codes, 0);
    T_INT(mock.analyses, 0);
    T_INT(mock.queued, 0);
    T_INT(mock.opened, mock.closed);
}

#define SEAM_TEST(name) T_WITH(name, plan_rig, seam_start(r), seam_end(r)) /* test with a started rig r */

/* Returns the name of the engine that makes the plan, "" if none does (err has the reason). */
__attribute__((unused)) static const char *seam_engine(plan_rig *r, fxa_error *err) {
    t_plan *plan = NULL;
    memset(err, 0, sizeof *err);
    const char *name = fxa_plan_create(r->ctx, &r->t.problem, &plan, err) == FXA_OK ? fxa_plan_engine(plan) : "";
    return name;
}

#endif
