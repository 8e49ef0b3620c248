/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_attention on a device with host memory: what is copied there and back, and what remains after failures. At every
 * failing call of the engine and every failing allocation nothing leaks, and no memory of the caller has changed. Bytes
 * between the elements of an output are never written, not even during the run.
 */
#include "support/mock/mock_device.h"
#include "support/fixtures/own_engines.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/tiny.h"
#include "t.h"

#include <sys/wait.h>
#include <unistd.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&mock_engine, &fxa__engine_ref};

static void mock_idle_check(void) {
    T_INT(mock.mistakes, 0);
    T_INT(mock.blocks, 0);
    T_INT(mock.queued, 0);
}

static void mock_closed_check(void) {
    mock_idle_check();
    T_INT(mock.codes, 0);
    T_INT(mock.opened, mock.closed);
}

/* ---- Packed tensors ---------------------------------------------------------------------------------------------- */

/* Q, K, V and their gradients interleaved in one tensor [B,S,6,H,D], with a foreign word after each row. */
enum { PACK_B = 2, PACK_S = 6, PACK_H = 2, PACK_D = 4, PACK_PART = PACK_H * PACK_D, PACK_ROW = 6 * PACK_PART + 1 };
enum { PACK_COUNT = PACK_B * PACK_S * PACK_ROW, PACK_O = PACK_B * PACK_S * PACK_PART };

typedef struct packed {
    double all[PACK_COUNT], o[PACK_O], dout[PACK_O], lse[PACK_B * PACK_H * PACK_S];
    fxa_problem p;
    fxa_args args;
} packed;

static fxa_operand packed_operand(int64_t row) {
    fxa_operand t = {.dtype = FXA_F64, .layout = FXA_LAYOUT_STRIDED};
    const int64_t stride[4] = {PACK_S * row, PACK_D, row, 1};
    memcpy(t.stride, stride, sizeof stride);
    return t;
}

static void packed_make(packed *x, fxa_pass pass) {
    static const fxa_slot parts[6] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    x->p = (fxa_problem)FXA_PROBLEM_INIT, x->args = (fxa_args)FXA_ARGS_INIT;
    x->p.pass = (uint32_t)pass, x->p.b = PACK_B, x->p.hq = PACK_H, x->p.sq = x->p.sk = PACK_S, x->p.d_qk = PACK_D;
    x->p.q = x->p.k = x->p.v = x->p.dq = x->p.dk = x->p.dv = packed_operand(PACK_ROW);
    x->p.o = x->p.dout = packed_operand(PACK_PART);
    x->p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_ACCUMULATE_DK : FXA_RETURN_LSE;
    for (int i = 0; i < (pass ? 6 : 3); i++) x->args.slot[parts[i]] = x->all + i * PACK_PART;
    x->args.slot[FXA_SLOT_O] = x->o, x->args.slot[FXA_SLOT_LSE] = x->lse;
    if (pass) x->args.slot[FXA_SLOT_DO] = x->dout;
}

static void packed_fill(packed *x) {
    for (int i = 0; i < PACK_COUNT; i++) x->all[i] = sin(0.7 * i);
    for (int i = 0; i < PACK_O; i++) x->o[i] = NAN, x->dout[i] = sin(1 + 0.3 * i);
}

static packed *packed_now;
static void packed_meanwhile(void) {
    for (int i = PACK_ROW - 1; i < PACK_COUNT; i += PACK_ROW) packed_now->all[i] = 77;
}

TEST(packed_tensors_and_their_gradients) {
    static packed want, got;
    fxa_context *ctx = t_context();
    mock_reset();
    packed_fill(&want), packed_fill(&got);
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        packed_make(&want, pass), packed_make(&got, pass);
        got.p.device = FXA_CUDA;
        T_OK(fxa_attention(ctx, &want.p, &want.args, &err));
        T_OK(fxa_attention(ctx, &got.p, &got.args, &err));
        T_CHECK(memcmp(want.o, got.o, sizeof want.o) == 0);
        T_CHECK(memcmp(want.lse, got.lse, sizeof want.lse) == 0);
        T_CHECK(memcmp(want.all, got.all, sizeof want.all) == 0);
    }
    mock_idle_check();
    fxa_context_destroy(ctx);
    mock_closed_check();
}

/* Another thread may write the bytes between the elements. */
TEST(bytes_between_elements_are_not_written) {
    static packed x;
    fxa_context *ctx = t_context();
    mock_reset();
    packed_fill(&x);
    packed_make(&x, FXA_FORWARD);
    x.p.device = FXA_CUDA;
    T_OK(fxa_attention(ctx, &x.p, &x.args, &err));
    packed_make(&x, FXA_BACKWARD);
    x.p.device = FXA_CUDA;
    packed_now = &x;
    mock.performing = packed_meanwhile;
    T_OK(fxa_attention(ctx, &x.p, &x.args, &err));
    for (int i = PACK_ROW - 1; i < PACK_COUNT; i += PACK_ROW) T_SAME(x.all[i], 77);
    fxa_context_destroy(ctx);
    mock_closed_check();
}

static double *dparams_now;
static void dparams_meanwhile(void) { dparams_now[1] = 77; }

/* Elements for params without a requested gradient are not written. */
TEST(only_gradients_that_were_asked_for_come_back) {
    fxa_context *ctx = t_context();
    attn_data x;
    attn_call call;
    attn_spec s = {.b = 1, .hq = 1, .hkv = 1, .sq = 3, .sk = 4, .d = 2, .dtype = FXA_F64};
    s.text = "param one : float\nparam two : float\nparam three : float\nscore = one * score + two * q + three * k";
    mock_reset();
    T_OK(attn_data_make(&x, ctx, &s, t_seed(), &err));
    T_OK(attn_data_run(&x, ctx, "mock", FXA_FORWARD, &err));
    attn_call_make(&x, FXA_BACKWARD, &call);
    call.p.device = FXA_CUDA, call.p.param_grads = 5;
    dparams_now = call.args.dparams;
    for (int i = 0; i < 3; i++) dparams_now[i] = -1;
    mock.performing = dparams_meanwhile;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    T_SAME(dparams_now[1], 77);
    T_CHECK(dparams_now[0] != -1 && dparams_now[2] != -1);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    mock_closed_check();
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* All outputs of both passes of the tiny problem. */
typedef struct outputs {
    double o[TINY_Q_COUNT], lse[TINY_ROWS], dq[TINY_Q_COUNT], dk[TINY_KV_COUNT], dv[TINY_KV_COUNT], dcap[1];
    float dslopes[TINY_H];
} outputs;

static outputs outputs_of(const tiny *t) {
    outputs x;
    memset(&x, 0, sizeof x);
    memcpy(x.o, t->o, sizeof x.o), memcpy(x.lse, t->lse, sizeof x.lse);
    memcpy(x.dq, t->dq, sizeof x.dq), memcpy(x.dk, t->dk, sizeof x.dk), memcpy(x.dv, t->dv, sizeof x.dv);
    memcpy(x.dcap, t->dcap, sizeof x.dcap), memcpy(x.dslopes, t->dslopes, sizeof x.dslopes);
    return x;
}

static void outputs_put(const outputs *x, tiny *t) {
    memcpy(t->o, x->o, sizeof x->o), memcpy(t->lse, x->lse, sizeof x->lse);
    memcpy(t->dq, x->dq, sizeof x->dq), memcpy(t->dk, x->dk, sizeof x->dk), memcpy(t->dv, x->dv, sizeof x->dv);
    memcpy(t->dcap, x->dcap, sizeof x->dcap), memcpy(t->dslopes, x->dslopes, sizeof x->dslopes);
}

typedef struct fail_rig {
    fail_alloc memory;
    fxa_context *ctx;
    tiny t;
    outputs before, want;
} fail_rig;

/* Backward accumulates, so a partial call cannot simply be repeated. */
static bool fail_start(fail_rig *r, fxa_pass pass) {
    fxa_error err;
    *r = (fail_rig){.memory = FAIL_ALLOC_INIT};
    mock_reset();
    r->ctx = fail_alloc_context(&r->memory);
    if (!r->ctx) return false;
    fxa_status status = pass ? tiny_backward(r->ctx, &r->t, &err) : tiny_forward(r->ctx, &r->t, &err);
    if (status != FXA_OK) return false;
    if (pass)
        r->t.problem.flags |= FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DV | FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS;
    r->before = outputs_of(&r->t);
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    r->want = outputs_of(&r->t);
    r->t.problem.device = FXA_CUDA;
    return true;
}

static void fail_end(fail_rig *r) {
    tiny_end(&r->t);
    fxa_context_destroy(r->ctx);
    T_INT(r->memory.live_bytes, 0);
    T_INT(r->memory.mistakes, 0);
    mock_closed_check();
}

/* Makes one call that may fail, and one that must succeed. */
static fxa_status fail_step(fail_rig *r, size_t k, const char *what) {
    fxa_error err = {0};
    outputs_put(&r->before, &r->t);
    fxa_status status = fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err);
    outputs after = outputs_of(&r->t);
    const outputs *must = status == FXA_OK ? &r->want : &r->before;
    if (memcmp(&after, must, sizeof after) != 0)
        T_FAIL("%s %zu, %s: outputs are not as %s\n", what, k, err.text, status ? "before" : "they should be");
    if (status != FXA_OK && (err.status != status || !err.text[0])) T_FAIL("%s %zu: no text\n", what, k);
    mock_idle_check();
    return status;
}

/* Fails each call except `open`: a failed open is cached by the context, which is tested elsewhere. */
static void fail_every_call(fxa_pass pass, fxa_status status) {
    size_t k = 1, reached[MOCK_HOOKS] = {0};
    for (bool more = true; more && k < 1000; k++) {
        static fail_rig r;
        T_REQUIRE(fail_start(&r, pass));
        mock_arm(k, status);
        fxa_status got = fail_step(&r, k, "call");
        more = mock.failures > 0;
        if (more) reached[mock.fail_hook]++;
        fxa_status said = mock.fail_hook == MOCK_OPEN && status != FXA_E_MEMORY ? FXA_E_UNSUPPORTED : status;
        if (got != (more ? said : FXA_OK)) T_FAIL("call %zu: %s\n", k, fxa_status_name(got));
        mock_arm(0, FXA_OK);
        if (said != FXA_E_UNSUPPORTED) T_INT(fail_step(&r, k, "after call"), FXA_OK);
        fail_end(&r);
    }
    static const mock_hook all[] = {MOCK_OPEN,  MOCK_QUERY,   MOCK_COMPILE,   MOCK_CHECK, MOCK_RUN,
                                    MOCK_ALLOC, MOCK_COPY_TO, MOCK_COPY_FROM, MOCK_WAIT,  MOCK_PERFORM};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!reached[all[i]]) T_FAIL("hook %d did not fail\n", (int)all[i]);
}

TEST(every_call_of_the_engine_fails) {
    fail_every_call(FXA_FORWARD, FXA_E_ENGINE);
    fail_every_call(FXA_BACKWARD, FXA_E_ENGINE);
    fail_every_call(FXA_BACKWARD, FXA_E_MEMORY);
}

static void fail_every_allocation(fxa_pass pass, bool persistent) {
    static fail_rig r;
    fxa_error err;
    T_REQUIRE(fail_start(&r, pass));
    T_OK(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err)); /* opens the device */
    fxa_cache_clear(r.ctx);
    size_t k = 1, live = r.memory.live_bytes;
    for (bool more = true; more && k < 1000; k++) {
        fail_alloc_arm(&r.memory, k, persistent);
        fxa_status got = fail_step(&r, k, "allocation");
        more = r.memory.failures > 0;
        fail_alloc_arm(&r.memory, 0, false);
        if (got != FXA_OK && got != FXA_E_MEMORY) T_FAIL("allocation %zu: %s\n", k, fxa_status_name(got));
        T_INT(fail_step(&r, k, "after allocation"), FXA_OK);
        fxa_cache_clear(r.ctx);
        if (r.memory.live_bytes != live) T_FAIL("allocation %zu: %zu bytes, not %zu\n", k, r.memory.live_bytes, live);
    }
    T_CHECK(k > 8);
    fail_end(&r);
}

TEST(every_allocation_fails) {
    for (int i = 0; i < 4; i++) fail_every_allocation(i & 1 ? FXA_BACKWARD : FXA_FORWARD, i & 2);
}

static void tell_end(void *user, uint64_t done, uint64_t total) {
    T_INT(done, total);
    T_INT(mock.queued, 0);
    ++*(int *)user;
}

TEST(the_end_is_told_once_all_is_back) {
    static fail_rig r;
    int told = 0;
    T_REQUIRE(fail_start(&r, FXA_FORWARD));
    r.t.args.progress = tell_end, r.t.args.progress_user = &told;
    T_INT(fail_step(&r, 0, "progress"), FXA_OK);
    T_INT(told, 1);
    mock_arm(1, FXA_OK);
    T_INT(fail_step(&r, 0, "counting"), FXA_E_ENGINE);
    mock_arm(0, FXA_OK);
    T_INT(fail_step(&r, 0, "counting"), FXA_OK);
    size_t calls = mock.calls;
    T_INT(told, 2);
    mock_arm(calls, FXA_OK); /* the last call copies results back */
    T_INT(fail_step(&r, 0, "the last call"), FXA_E_ENGINE);
    T_INT(told, 2);
    fail_end(&r);
}

static int zones_checked;
static void zones_count(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    (void)self, (void)code, (void)p;
    T_CHECK(workspace != NULL);
    zones_checked++;
}

/* In builds with asserts, the workspace comes back from the device after each run, and its red zones are checked. */
TEST(zones_of_the_device_are_checked) {
    static fail_rig r;
    static fxa__engine zoned;
    zoned = mock_engine, zoned.zones = zones_count;
    own_engines[0] = &zoned;
    zones_checked = 0;
    T_REQUIRE(fail_start(&r, FXA_FORWARD));
    for (int i = 1; i <= 2; i++) {
        T_INT(fail_step(&r, 0, "zones"), FXA_OK);
        T_INT(zones_checked, FXA_ASSERT ? i : 0);
    }
    fail_end(&r);
    own_engines[0] = &mock_engine;
}

/* ---- Instances that cannot run ----------------------------------------------------------------------------------- */

TEST(a_plan_for_a_target_touches_no_device) {
    static fail_rig r;
    T_REQUIRE(fail_start(&r, FXA_FORWARD));
    r.t.problem.target = "mock 0";
    outputs_put(&r.before, &r.t);
    T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "for a target");
    T_INT(mock.count[MOCK_ALLOC], 0);
    r.t.problem.target = "abacus";
    T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "target is \"abacus\"");
    fail_end(&r);
}

/* fxa_attention waits for the device, which stream capture forbids. */
TEST(runs_that_are_recorded_are_not_copied) {
    static fail_rig r;
    T_REQUIRE(fail_start(&r, FXA_FORWARD));
    r.t.problem.flags |= FXA_GRAPH_CAPTURE;
    T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "FXA_GRAPH_CAPTURE");
    T_HAS(err.text, "fxa_plan_run");
    T_INT(mock.count[MOCK_ALLOC], 0);
    fail_end(&r);
}

/* Runs in the child; the exit status names the failed step. */
static int fork_child(fail_rig *r, fxa_plan *plan) {
    fxa_error err;
    size_t calls = mock.calls, count = 2;
    fxa_support reports[2];
    const char *reason = "devices do not survive a fork";
    if (fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err) != FXA_E_UNSUPPORTED) return 1;
    if (!strstr(err.text, reason)) return 2;
    if (fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err) != FXA_OK) return 3;
    if (reports[0].supported || !strstr(reports[0].reason, reason)) return 4;
    static double page[4096] __attribute__((aligned(4096)));
    fxa_args args = r->t.args;
    args.workspace = page, args.workspace_size = sizeof page;
    if (fxa_plan_run(plan, &args, &err) != FXA_E_UNAVAILABLE || !strstr(err.text, reason)) return 5;
    fxa_plan_destroy(plan);
    fxa_cache_clear(r->ctx);
    if (mock.calls != calls || mock.mistakes || mock.released) return 6;
    fxa_problem host = r->t.problem;
    host.device = FXA_HOST;
    if (fxa_attention(r->ctx, &host, &r->t.args, &err) != FXA_OK) return 7;
    fxa_context *fresh = NULL; /* opens the device again */
    if (fxa_context_create(NULL, &fresh, &err) != FXA_OK) return 8;
    if (fxa_attention(fresh, &r->t.problem, &r->t.args, &err) != FXA_OK) return 9;
    fxa_context_destroy(fresh);
    tiny_end(&r->t);
    fxa_context_destroy(r->ctx);
    return mock.mistakes ? 10 : 0;
}

TEST(a_forked_child_gets_the_reason) {
    static fail_rig r;
    fxa_plan *plan = NULL;
    int status = -1;
    T_REQUIRE(fail_start(&r, FXA_FORWARD));
    T_OK(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err));
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(fork_child(&r, plan));
    T_CHECK(child > 0 && waitpid(child, &status, 0) == child);
    T_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    T_INT(fail_step(&r, 0, "parent"), FXA_OK);
    fxa_plan_destroy(plan);
    fail_end(&r);
}

T_MAIN
