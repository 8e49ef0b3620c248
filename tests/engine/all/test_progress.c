/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_args.progress: progress reports of a run, for every engine, pass, layout and number of threads. All reports have
 * the same total; the completed amount only grows, and no part counts twice; the total is reported once, at the end.
 */
#include "support/memory/float_states.h" /* must precede headers of the C library */

#include "support/fixtures/attn_case.h"
#include "t.h"

#include <pthread.h>

/* Progress reports of a run, in any order, from any thread. */
typedef struct told {
    pthread_mutex_t lock;
    uint64_t calls, total, last;
    uint64_t parts; /* largest report below the total */
    uint64_t ends;  /* number of reports of the total */
    bool wrong;     /* true: a report with another total, above the total, or in another floating-point state */
} told;

static void told_hear(void *user, uint64_t done, uint64_t total) {
    told *t = user;
    bool plain = fegetround() == FE_TONEAREST;
#if defined(__x86_64__)
    plain = plain && (state_get().mxcsr & ~0x3fu) == 0x1f80u;
#endif
    pthread_mutex_lock(&t->lock);
    if (t->calls++ > 0 && total != t->total) t->wrong = true;
    if (!plain || done > total) t->wrong = true;
    t->total = total;
    t->last = done;
    if (done == total)
        t->ends++;
    else if (done > t->parts)
        t->parts = done;
    pthread_mutex_unlock(&t->lock);
}

static void told_check(const told *t, const char *what, uint64_t least) {
    bool ok = !t->wrong && t->ends == 1 && t->last == t->total && t->parts == t->total - 1 && t->calls >= least;
    if (!ok)
        T_FAIL("%s: %" PRIu64 " calls (at least %" PRIu64 "), %" PRIu64 " parts of %" PRIu64 ", last %" PRIu64
               ", %" PRIu64 " ends%s\n",
               what, t->calls, least, t->parts, t->total, t->last, t->ends, t->wrong ? ", wrong values" : "");
}

/* A caller's parallel loop that runs the parts in reverse order, one after the other. */
static void told_loop(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    (void)user;
    while (n-- > 0) task(arg, n);
}

static fxa_context *told_context(uint32_t threads, bool loop) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_error err;
    config.threads = threads;
    if (loop) config.parallel = told_loop;
    T_OK(fxa_context_create(&config, &ctx, &err));
    return ctx;
}

/* ---- Every kind of problem --------------------------------------------------------------------------------------- */

static void told_case(fxa_context *ctx, const char *engine, uint64_t *rng) {
    attn_case c;
    char what[500];
    if (!attn_case_draw(&c, ctx, engine, ATTN_ALL, rng)) {
        T_FAIL("%s\n", c.why);
        return;
    }
    attn_case_describe(&c, what, sizeof what);
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
        attn_call call;
        fxa_error err;
        attn_case_call(&c, pass, &call);
        call.args.progress = told_hear;
        call.args.progress_user = &t;
        fxa_status status = attn_call_run(ctx, &call, true, &err);
        if (status == FXA_E_UNSUPPORTED) continue;
        T_OK(status);
        told_check(&t, what, 1);
    }
    attn_case_free(&c);
}

TEST(any_problem_on_any_engine) {
    uint64_t rng = t_seed();
    for (int threads = 1; threads <= 3; threads += 2) {
        t_ctx *ctx = told_context((uint32_t)threads, false);
        for (size_t i = 0; engine_here(i); i++)
            for (int n = t_scaled(60); n > 0; n--) told_case(ctx, engine_here(i), &rng);
    }
}

/* ---- How finely -------------------------------------------------------------------------------------------------- */

static const attn_spec told_large = {.b = 2, .hq = 4, .hkv = 2, .sq = 700, .sk = 900, .d = 16};

/* Runs the large spec in a context, which must report at least `least` times. */
static void told_large_run(fxa_context *ctx, const char *engine, const attn_spec *spec, uint64_t least) {
    attn_owned x = {0};
    fxa_error err;
    T_OK(attn_data_make(&x, ctx, spec, 3, &err));
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
        attn_call call;
        attn_call_make(&x, pass, &call);
        call.p.engine = engine;
        call.args.progress = told_hear;
        call.args.progress_user = &t;
        T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
        told_check(&t, engine, least);
    }
}

TEST(large_runs_are_told_in_many_parts) {
    static const struct {
        uint32_t threads;
        bool loop;
    } contexts[] = {{1, false}, {4, false}, {4, true}};
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        t_ctx *ctx = told_context(contexts[i].threads, contexts[i].loop);
        told_large_run(ctx, "cpu", &told_large, 8);
    }
    attn_spec small = {.b = 2, .hq = 2, .sq = 9, .sk = 5, .d = 4};
    fxa_context *ctx = told_context(1, false);
    told_large_run(ctx, "ref", &small, 2 * 2 * 9 + 1);
    fxa_context_destroy(ctx);
}

/* ---- Edges ------------------------------------------------------------------------------------------------------- */

TEST(nothing_to_do_is_told_as_done) {
    static const int64_t sizes[][2] = {{0, 5}, {5, 0}, {0, 0}};
    t_ctx *ctx = told_context(1, false);
    for (size_t e = 0; engine_here(e); e++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            attn_spec spec = {.b = 1, .hq = 2, .sq = sizes[i][0], .sk = sizes[i][1], .d = 4, .dtype = FXA_F32};
            told_large_run(ctx, engine_here(e), &spec, 1);
        }
}

TEST(a_refused_run_and_an_older_caller_are_told_nothing) {
    static const attn_spec spec = {.b = 1, .hq = 1, .sq = 4, .sk = 4, .d = 4};
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    attn_owned x = {0};
    attn_call call;
    t_ctx *ctx = told_context(1, false);
    T_OK(attn_data_make(&x, ctx, &spec, 3, &err));
    attn_call_make(&x, FXA_FORWARD, &call);
    call.args.progress = told_hear;
    call.args.progress_user = &t;
    void *q = call.args.slot[FXA_SLOT_Q];
    call.args.slot[FXA_SLOT_Q] = NULL;
    T_STATUS(fxa_attention(ctx, &call.p, &call.args, &err), FXA_E_BINDING);
    T_INT(t.calls, 0);
    call.args.slot[FXA_SLOT_Q] = q;
    call.args.struct_size = offsetof(fxa_args, progress);
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    T_INT(t.calls, 0);
    call.args.struct_size = sizeof call.args;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    T_CHECK(t.calls > 0);
}

T_MAIN
