/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine, or with DEVICE_CUDA the cuda engine, on a device: threads whose plans are evicted, runs captured
 * into a CUDA graph and replayed, memory freed right after the call, bit-equal results, and device memory after many
 * plans. test_cudnn_lowering.c and test_cuda_device.c compare results with the reference. `make test-gpu` runs these
 * tests on a device; ctest runs the cudnn part on the stand-in libraries.
 */
#include "device_driver.h"
#include "device_fixture.h"
#include "device_tensors.h"
#include "plan/host_copies.h"

#include <pthread.h>

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { CHURN_THREADS = 8, CHURN_PROBLEMS = 4, CHURN_ROUNDS = 3 };

typedef struct churn {
    fxa_context *ctx;
    attn_data x[CHURN_PROBLEMS];
    attn_kept *want; /* [problem][pass] expected results */
    int first;
    char why[400];
} churn;

static attn_spec churn_spec(int i) {
    static const char *const texts[CHURN_PROBLEMS] = {
        "mask = k <= q", "param cap : float\nscore = cap * tanh(score / cap)", "score = score - 0.125 * abs(q - k)",
        "mask = q - k < 17 && k <= q"};
    attn_spec s = device_spec();
    s.text = texts[i], s.sq += 8 * i, s.sk = s.sq;
    return s;
}

/* Thread function: in every run the plan is evicted or about to be, because the cache holds one plan, and every third
 * round clears the cache. */
static void *churn_run(void *arg) {
    churn *c = arg;
    fxa_error err;
    for (int round = 0; round < CHURN_ROUNDS && !c->why[0]; round++)
        for (int i = 0; i < 2 * CHURN_PROBLEMS && !c->why[0]; i++) {
            int which = (c->first + round + i / 2) % CHURN_PROBLEMS;
            fxa_pass pass = (fxa_pass)(i & 1);
            if (pass == FXA_FORWARD && (round + i) % 3 == 0) fxa_cache_clear(c->ctx);
            if (device_data_run(&c->x[which], c->ctx, pass, &err) != FXA_OK)
                (void)snprintf(c->why, sizeof c->why, "problem %d: %.300s", which, err.text);
            else if (pass == FXA_BACKWARD) {
                const char *other = attn_other_bits(&c->x[which], pass, &c->want[2 * which + 1]);
                if (!other) other = attn_other_bits(&c->x[which], FXA_FORWARD, &c->want[2 * which]);
                if (other) (void)snprintf(c->why, sizeof c->why, "problem %d: %s has other bits", which, other);
            }
        }
    return NULL;
}

TEST(eight_threads_whose_plans_come_and_go) {
    NEEDS_DEVICE;
    static churn churns[CHURN_THREADS];
    static attn_kept want[2 * CHURN_PROBLEMS];
    pthread_t threads[CHURN_THREADS];
    t_ctx *ctx = t_context();
    fxa_cache_stats stats;
    fxa_cache_limit(ctx, 1, UINT64_C(1) << 30);
    for (int t = 0; t < CHURN_THREADS; t++) {
        churns[t].ctx = ctx, churns[t].want = want, churns[t].first = t, churns[t].why[0] = '\0';
        for (int i = 0; i < CHURN_PROBLEMS; i++) {
            const attn_spec s = churn_spec(i);
            T_REQUIRE(device_data_make(&churns[t].x[i], ctx, &s));
            if (t > 0) continue;
            T_OK(device_data_run(&churns[0].x[i], ctx, FXA_FORWARD, &err));
            T_OK(device_data_run(&churns[0].x[i], ctx, FXA_BACKWARD, &err));
            attn_keep(&churns[0].x[i], FXA_BACKWARD, &want[2 * i + 1]);
            attn_keep(&churns[0].x[i], FXA_FORWARD, &want[2 * i]);
        }
    }
    for (int t = 0; t < CHURN_THREADS; t++) T_INT(pthread_create(&threads[t], NULL, churn_run, &churns[t]), 0);
    for (int t = 0; t < CHURN_THREADS; t++) {
        pthread_join(threads[t], NULL);
        if (churns[t].why[0]) T_FAIL("thread %d: %s\n", t, churns[t].why);
        for (int i = 0; i < CHURN_PROBLEMS; i++) attn_data_free(&churns[t].x[i]);
    }
    fxa_cache_get_stats(ctx, &stats);
    printf("  %d runs in %d threads, %" PRIu64 " plans compiled\n", 2 * CHURN_THREADS * CHURN_ROUNDS * CHURN_PROBLEMS,
           CHURN_THREADS, stats.builds);
    T_CHECK(stats.builds > 4 * CHURN_PROBLEMS); /* plans were evicted */
    for (int i = 0; i < 2 * CHURN_PROBLEMS; i++) attn_drop(&want[i]);
}

/* ---- Recording --------------------------------------------------------------------------------------------------- */

/* Computes the expected results for the present inputs, which may be changed during the run. */
static bool device_want(attn_data *x, fxa_context *ctx, fxa_pass pass, attn_kept *want) {
    fxa_error err;
    T_OK(device_data_run(x, ctx, pass, &err));
    if (err.status == FXA_OK) attn_keep(x, pass, want);
    return err.status == FXA_OK;
}

/* Replays the CUDA graph three times, then once with another Q. */
static void device_replay(const side *s, void *made, attn_data *x, fxa_context *ctx, fxa_pass pass, attn_kept *want) {
    for (int i = 0; i < 4; i++) {
        if (i == 3) {
            for (int64_t j = 0; j < attn_tensor_places(&x->t[FXA_SLOT_Q]); j++)
                attn_set(&x->t[FXA_SLOT_Q], j, -0.5 * attn_get(&x->t[FXA_SLOT_Q], j));
            side_put(s, x, FXA_SLOT_Q);
            if (!device_want(x, ctx, pass, want)) return;
        }
        side_poison(s, x, pass);
        T_INT(s->d->more.graph_launch(made, s->stream), 0);
        side_get(s, x, pass);
        const char *other = attn_other_bits(x, pass, want);
        if (other) T_FAIL("replay %d of %s: %s has other bits\n", i, pass ? "backward" : "forward", other);
    }
}

static void device_record(device *d, fxa_pass pass, bool first) {
    t_ctx *ctx = t_context(), *other = t_context();
    void *stream = NULL, *graph = NULL, *made = NULL;
    fxa_plan *plan = NULL;
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_data x;
    attn_call call;
    side s;
    fxa_error err;
    const attn_spec spec = device_spec();
    T_REQUIRE(device_data_make(&x, ctx, &spec));
    T_OK(device_data_run(&x, other, FXA_FORWARD, &err));
    T_REQUIRE(device_want(&x, other, pass, &want));
    T_INT(d->more.stream_create(&stream, 0), 0);
    device_call_make(&x, pass, &call);
    call.p.flags |= FXA_GRAPH_CAPTURE;
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    T_REQUIRE(plan && side_make(&s, d, stream, &x, &call, (size_t)fxa_plan_workspace(plan)));
    if (!first) T_OK(fxa_plan_run(plan, &call.args, &err));
    side_poison(&s, &x, pass);
    T_INT(d->gpu.driver.stream_wait(stream), 0);
    T_INT(d->more.record(stream, DEVICE_RECORD_THREAD), 0);
    T_OK(fxa_plan_run(plan, &call.args, &err));
    T_INT(d->more.record_end(stream, &graph), 0);
    T_REQUIRE(graph && err.status == FXA_OK);
    T_CHECK(side_is_poisoned(&s, &x, pass)); /* nothing ran during the capture */
    T_INT(d->more.graph_make(&made, graph, 0), 0);
    fxa_plan_destroy(plan);
    fxa_cache_clear(ctx); /* the CUDA graph keeps the code alive */
    if (made) device_replay(&s, made, &x, other, pass, &want);
    if (made) T_INT(d->more.made_destroy(made), 0);
    T_INT(d->more.graph_destroy(graph), 0);
    side_give(&s, -1);
    T_INT(d->gpu.driver.stream_wait(stream), 0);
    T_INT(d->more.stream_destroy(stream), 0);
    attn_data_free(&x);
}

/* Captures runs into CUDA graphs, also a plan's first run, and replays them. */
TEST(recorded_and_replayed) { /* */
    NEEDS_DEVICE;
    device d;
    T_REQUIRE(device_open(&d));
    if (!d.more.record) {
        device_close(&d);
        T_SKIP("it runs on a GPU only: the stand-in libraries cannot capture a CUDA graph");
    }
    for (int i = 0; i < 4; i++) device_record(&d, (fxa_pass)(i & 1), i > 1);
    device_close(&d);
}

/* ---- Memory freed right after the call --------------------------------------------------------------------------- */

/* Runs a pass and releases arguments, params, plan, code, inputs and workspace right after the call; other data takes
 * their place in stream order. */
static void device_run_and_drop(device *d, fxa_context *ctx, attn_data *x, fxa_pass pass, attn_kept *want) {
    attn_call call;
    side s, after = {.d = d};
    fxa_plan *plan = NULL;
    fxa_error err;
    void *stream = NULL;
    double params[ATTN_PARAMS];
    T_INT(d->more.stream_create(&stream, 0), 0);
    device_call_make(x, pass, &call);
    memcpy(params, x->params, sizeof params);
    call.args.params = params;
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    T_REQUIRE(plan && side_make(&s, d, stream, x, &call, (size_t)fxa_plan_workspace(plan)));
    side_poison(&s, x, pass);
    T_OK(fxa_plan_run(plan, &call.args, &err));
    memset(params, 0xff, sizeof params);
    memset(&call, 0xff, sizeof call);
    static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DO};
    for (int i = 0; i < 4; i++) side_give(&s, (int)inputs[i]);
    for (int i = 0; i < 4; i++) { /* reuses the freed memory if the order of the stream allows it */
        after.bytes[i] = s.bytes[FXA_SLOT_Q];
        T_INT(d->more.alloc(&after.slot[i], after.bytes[i], stream), 0);
        T_INT(d->gpu.driver.fill(after.slot[i], 0xffffffffu, after.bytes[i] / 4, stream), 0);
    }
    fxa_plan_destroy(plan);
    fxa_cache_clear(ctx);
    side_get(&s, x, pass);
    const char *other = attn_other_bits(x, pass, want);
    if (other) T_FAIL("%s: %s has other bits\n", pass ? "backward" : "forward", other);
    after.stream = stream;
    side_give(&s, -1), side_give(&after, -1);
    T_INT(d->gpu.driver.stream_wait(stream), 0);
    T_INT(d->more.stream_destroy(stream), 0);
}

TEST(given_back_right_after_the_call) { /* */
    NEEDS_DEVICE;
    device d;
    T_REQUIRE(device_open(&d));
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        t_ctx *ctx = t_context();
        T_ENDED(attn_drop) attn_kept want = {{NULL}};
        attn_data x;
        const attn_spec spec = device_spec();
        T_REQUIRE(device_data_make(&x, ctx, &spec));
        T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err)); /* backward reads these */
        if (device_want(&x, ctx, pass, &want)) device_run_and_drop(&d, ctx, &x, pass, &want);
        attn_data_free(&x);
    }
    device_close(&d);
}

/* ---- The same bits ----------------------------------------------------------------------------------------------- */

enum { BITS_RUNS = 1000, BITS_RUNS_STANDIN = 3 };

CONTEXT_TEST(bits_of_many_runs) {
    NEEDS_DEVICE;
    attn_kept want[2] = {{{NULL}}};
    attn_owned x = {0};
    const attn_spec spec = device_spec();
    int runs = device_is_standin() ? BITS_RUNS_STANDIN : BITS_RUNS;
    T_REQUIRE(device_data_make(&x, ctx, &spec));
    for (int i = 0; i < runs; i++) {
        T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
        T_OK(device_data_run(&x, ctx, FXA_BACKWARD, &err));
        const char *other = attn_other_bits(&x, FXA_BACKWARD, &want[1]);
        if (!other) other = attn_other_bits(&x, FXA_FORWARD, &want[0]);
        if (other) T_FAIL("run %d: %s has other bits\n", i, other);
        if (other || err.status != FXA_OK) break;
    }
    for (int i = 0; i < 2; i++) attn_drop(&want[i]);
}

/* ---- Many plans -------------------------------------------------------------------------------------------------- */

enum { MANY_COMPILED = 100, MANY_LOADED = 100 };
#define MANY_SLACK (4u << 20) /* bytes; the driver allocates memory in pieces of 2 MiB */

static void many_make(fxa_context *ctx, int n, bool load) {
    static unsigned char bytes[4 << 20];
    size_t size = 0;
    fxa_error err;
    fxa_cache_limit(ctx, 1000, UINT64_C(1) << 40);
    for (int i = 0; i < n; i++) {
        attn_spec s = device_spec();
        attn_owned x = {0};
        attn_call call;
        fxa_plan *plan = NULL;
        s.sq += i;
        T_REQUIRE(device_data_make(&x, ctx, &s));
        device_call_make(&x, FXA_FORWARD, &call);
        T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
        T_REQUIRE(plan);
        T_OK(fxa__host_copies_run(plan, &call.args, &err));
        if (load && i == n - 1) T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
        fxa_plan_destroy(plan);
    }
    for (int i = 0; i < MANY_LOADED && size; i++) {
        t_plan *plan = NULL;
        fxa_cache_clear(ctx);
        T_OK(fxa_plan_load(ctx, bytes, size, &plan, &err));
    }
}

/* Compiles many plans and keeps all of them, then loads them one by one; destroying the context must free all
 * memory. */
TEST(memory_is_back_after_200_plans) {
    NEEDS_DEVICE;
    device d;
    size_t before = 0, most = 0, after = 0, total;
    T_REQUIRE(device_open(&d));
    fxa_context *ctx = t_context(); /* makes the one-time allocations of the libraries */
    many_make(ctx, 2, true);
    fxa_context_destroy(ctx);
    T_INT(d.more.memory(&before, &total), 0);
    ctx = t_context();
    many_make(ctx, MANY_COMPILED, true);
    T_INT(d.more.memory(&most, &total), 0);
    fxa_context_destroy(ctx);
    T_INT(d.more.memory(&after, &total), 0);
    printf("  %d plans compiled, %d loaded: %zu bytes of the device held, %lld after\n", MANY_COMPILED, MANY_LOADED,
           before - most, (long long)before - (long long)after);
    T_CHECK(after + MANY_SLACK >= before);
    device_close(&d);
}

T_MAIN
