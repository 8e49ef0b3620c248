/* SPDX-License-Identifier: Apache-2.0
 *
 * The mock device (support/mock/mock_device.h) behaves as its users require: accesses to device memory from the host
 * fault, pointers are distinguished, calls only queue work, and requested failures occur and are returned by a wait.
 */
#include "support/memory/guard.h"
#include "support/mock/mock_call.h"
#include "support/fixtures/own_engines.h"
#include "support/fixtures/plan_fixture.h"

#include <time.h>
#include <unistd.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&mock_engine, &fxa__engine_ref};

typedef struct device_rig {
    plan_rig r;
    fxa_plan *plan;
    mock_call call;
} device_rig;

/* Makes the tiny problem and places its tensors on a device. */
static bool device_start_flags(device_rig *d, int32_t ordinal, uint32_t flags) {
    fxa_error err;
    mock_reset();
    if (!plan_rig_start(&d->r)) return false;
    d->r.t.problem.device = FXA_CUDA, d->r.t.problem.ordinal = ordinal, d->r.t.problem.flags |= flags;
    d->plan = NULL;
    T_OK(fxa_plan_create(d->r.ctx, &d->r.t.problem, &d->plan, &err));
    if (!d->plan) return false;
    mock_call_place(&d->call, d->plan, &d->r.t.args, ordinal);
    return true;
}

static bool device_start(device_rig *d, int32_t ordinal) { return device_start_flags(d, ordinal, 0); }

static void device_end(device_rig *d) {
    mock_call_end(&d->call);
    fxa_plan_destroy(d->plan);
    plan_rig_end(&d->r);
    T_INT(mock.mistakes, 0);
    T_INT(mock.opened, mock.closed);
    T_INT(mock.codes, 0);
}

TEST(the_host_cannot_touch_it) { /* */
    static device_rig d;
    T_REQUIRE(device_start(&d, 0));
    char *q = d.call.args.slot[FXA_SLOT_Q], *workspace = d.call.args.workspace, here = 0;
    T_CHECK(!guard_child_dies(&here, false) && !guard_child_dies(&here, true));
    for (int round = 0; round < 2; round++) { /* before a run and after it */
        T_CHECK(guard_child_dies(q, false) && guard_child_dies(q, true));
        T_CHECK(guard_child_dies(workspace, false) && guard_child_dies(workspace, true));
        T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
        T_CHECK(guard_child_dies(q, false));
        T_OK(mock_sync(0, &err));
    }
    mock_call_fetch(&d.call);
    T_CHECK(tiny_error(&d.r.t) <= TINY_TOLERANCE);
    device_end(&d);
}

TEST(pointers_are_told_apart) {
    static device_rig d;
    T_REQUIRE(device_start(&d, 1));
    fxa_args args = d.call.args;
    args.slot[FXA_SLOT_K] = d.r.t.k;
    T_STATUS(fxa_plan_run(d.plan, &args, &err), FXA_E_BINDING);
    T_HAS(err.text, "slot K");
    T_HAS(err.text, "not in the memory of mock device 1");
    args.slot[FXA_SLOT_K] = mock_place(0, NULL, 4096, 0);
    T_STATUS(fxa_plan_run(d.plan, &args, &err), FXA_E_BINDING);
    T_HAS(err.text, "of mock device 0; the problem is on mock device 1");
    mock_unplace(args.slot[FXA_SLOT_K]);
    args.slot[FXA_SLOT_K] = mock_place(1, NULL, 8, 0);
    T_STATUS(fxa_plan_run(d.plan, &args, &err), FXA_E_BINDING);
    T_HAS(err.text, "leaves its block of 8 bytes");
    mock_unplace(args.slot[FXA_SLOT_K]);
    args = d.call.args;
    const void *tensors[1] = {d.r.t.slopes};
    args.tensors = tensors;
    T_STATUS(fxa_plan_run(d.plan, &args, &err), FXA_E_BINDING);
    T_HAS(err.text, "tensors slopes");
    static char workspace[1 << 16] __attribute__((aligned(64)));
    args = d.call.args, args.workspace = workspace;
    T_STATUS(fxa_plan_run(d.plan, &args, &err), FXA_E_BINDING);
    T_HAS(err.text, "workspace");
    T_INT(mock.count[MOCK_RUN], 0);
    device_end(&d);
}

/* The caller may reuse or free args, arrays, params and the plan as soon as the call has returned. */
TEST(runs_are_queued) {
    static device_rig d;
    T_REQUIRE(device_start(&d, 0));
    double cap[1] = {*d.r.t.cap};
    d.call.args.params = cap;
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_INT(mock.queued, 1);
    double o[TINY_Q_COUNT];
    mock_fetch(o, d.call.args.slot[FXA_SLOT_O], sizeof o);
    for (int i = 0; i < TINY_Q_COUNT; i++) T_SAME(o[i], 0);
    cap[0] = NAN;
    d.call.tensors[0] = NULL;
    memset(d.call.args.slot, 0, sizeof d.call.args.slot);
    fxa_plan_destroy(d.plan);
    d.plan = NULL;
    fxa_cache_clear(d.r.ctx); /* drops the code too, which the queue still needs */
    T_OK(mock_sync(0, &err));
    T_INT(mock.queued, 0);
    mock_call_fetch(&d.call);
    T_CHECK(tiny_error(&d.r.t) <= TINY_TOLERANCE);
    device_end(&d);
}

/* Thread function: drops the code as the destructor of a CUDA graph does. */
static void device_drop_kept(void) {
    mock_in_finalizer = true; /* marks the thread as one that must not call the device */
    mock.drop(mock.kept);
    mock_in_finalizer = false;
}

/* The CUDA graph of a captured run keeps its code alive after plan and cache are gone; the next cache clear releases
 * the code of a destroyed graph. */
TEST(graphs_keep_code) {
    static device_rig d;
    T_REQUIRE(device_start_flags(&d, 0, FXA_GRAPH_CAPTURE));
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err)); /* nothing is captured yet */
    T_CHECK(!mock.kept);
    mock.recording = true;
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_REQUIRE(mock.kept);
    T_OK(mock_sync(0, &err));
    fxa_plan_destroy(d.plan);
    d.plan = NULL;
    fxa_cache_clear(d.r.ctx);
    T_INT(mock.codes, 1);
    device_drop_kept();
    T_INT(mock.codes, 1);
    fxa_cache_clear(d.r.ctx);
    T_INT(mock.codes, 0);
    device_end(&d);
}

/* Without the flag, runs are not tied to a graph. */
TEST(graphs_keep_no_code_without_the_flag) {
    static device_rig d;
    T_REQUIRE(device_start(&d, 0));
    mock.recording = true;
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_CHECK(!mock.kept);
    mock.recording = false;
    T_OK(mock_sync(0, &err));
    device_end(&d);
}

static size_t device_live(device_rig *d) {
    fail_alloc *memory = &d->r.memory;
    pthread_mutex_lock(&memory->mutex);
    size_t live = memory->live_bytes;
    pthread_mutex_unlock(&memory->mutex);
    return live;
}

/* If a graph is destroyed after its context, a separate thread releases the code. */
TEST(graphs_keep_code_past_the_context) {
    static device_rig d;
    const struct timespec moment = {.tv_nsec = 1000000};
    T_REQUIRE(device_start_flags(&d, 0, FXA_GRAPH_CAPTURE));
    mock.recording = true;
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_REQUIRE(mock.kept);
    T_OK(mock_sync(0, &err));
    mock_call_end(&d.call);
    fxa_plan_destroy(d.plan);
    tiny_end(&d.r.t);
    fxa_context_destroy(d.r.ctx);
    T_INT(mock.codes, 1);
    T_CHECK(mock.opened > mock.closed);
    device_drop_kept();
    for (int i = 0; i < 10000 && device_live(&d); i++) (void)nanosleep(&moment, NULL);
    T_INT(device_live(&d), 0);
    T_INT(mock.codes, 0);
    T_INT(mock.opened, mock.closed);
    T_INT(mock.mistakes, 0);
}

TEST(failures_come_where_they_are_asked_for) {
    static device_rig d;
    T_REQUIRE(device_start(&d, 0));
    mock_arm(2, FXA_E_ENGINE); /* check, then run */
    T_STATUS(fxa_plan_run(d.plan, &d.call.args, &err), FXA_E_ENGINE);
    T_HAS(err.text, "fails at call 2, run");
    T_INT(mock.queued, 0);
    mock_arm(3, FXA_E_ENGINE);
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_STATUS(mock_sync(0, &err), FXA_E_ENGINE); /* only a wait reports the failure */
    T_HAS(err.text, "call 3, perform");
    T_INT(mock.failures, 1);
    mock_arm(0, FXA_OK);
    T_OK(fxa_plan_run(d.plan, &d.call.args, &err));
    T_OK(mock_sync(0, &err));
    device_end(&d);
}

T_MAIN
