/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: problems of equal content get the same plan, each used property changes the plan, and runs check their
 * arguments.
 */
#include "support/fixtures/plan_fixture.h"

static void plan_key_of(plan_rig *r, const fxa_problem *problem, uint8_t key[16]) {
    fxa_error err;
    t_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, problem, &plan, &err));
    fxa_plan_key(plan, key);
}

RIG_TEST(create_run_and_look) {
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_REQUIRE(plan);
    T_CHECK(fxa_plan_engine(plan) != NULL);
    T_OK(tiny_run(plan, &r->t.args, &err));
    T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
    T_INT(plan_stats(r).runs, 1);
    fxa_plan_retain(plan);
    fxa_plan_destroy(plan);
    T_OK(tiny_run(plan, &r->t.args, &err)); /* one reference remains */
    T_INT(plan_stats(r).runs, 2);
    fxa_plan_destroy(plan);
    fxa_plan_destroy(NULL);
    fxa_plan_retain(NULL);
}

/* in steady state the counters show no queries and no builds. */
RIG_TEST(steady_state_probes_and_builds_nothing) {
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    fxa_cache_stats before = plan_stats(r);
    T_INT(before.misses, 1);
    T_INT(before.builds, 1);
    T_INT(before.queries - before.query_hits, 1);
    for (int step = 0; step < 10; step++) T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    fxa_cache_stats after = plan_stats(r);
    T_INT(after.builds, before.builds);
    T_INT(after.misses, before.misses);
    T_INT(after.queries - after.query_hits, before.queries - before.query_hits);
    T_INT(after.hits, before.hits + 10);
    T_INT(after.runs, before.runs + 10);
    T_INT(after.refusals + after.evictions, 0);
    T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
}

/* Code of ref and cpu, forward and backward, reports its size and stays cached after its plan is destroyed. */
TEST(code_of_every_engine_is_kept) {
    static const struct {
        const char *engine;
        fxa_pass pass;
        uint64_t least, most; /* bytes */
    } rows[] = {{"ref", FXA_FORWARD, 0, 0},
                {"ref", FXA_BACKWARD, 100, 65536},
                {"cpu", FXA_FORWARD, 100, 65536},
                {"cpu", FXA_BACKWARD, 100, 65536}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plan_rig r;
        T_REQUIRE(plan_rig_start(&r));
        r.t.problem.engine = rows[i].engine, r.t.problem.pass = (uint32_t)rows[i].pass;
        if (rows[i].pass == FXA_BACKWARD) r.t.problem.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
        for (int again = 0; again < 3; again++) {
            uint8_t key[16];
            r.t.problem.b = TINY_B + again; /* another plan, the same code */
            plan_key_of(&r, &r.t.problem, key);
        }
        fxa_cache_stats s = plan_stats(&r);
        T_INT(s.builds, 1);
        T_INT(s.misses, 1);
        T_INT(s.hits, 2);
        T_INT(s.plans, 1);
        T_INT(s.evictions, 0);
        if (s.bytes < rows[i].least || (rows[i].most && s.bytes > rows[i].most))
            T_FAIL("%s, pass %d: code of %" PRIu64 " bytes\n", rows[i].engine, (int)rows[i].pass, s.bytes);
        plan_rig_end(&r);
    }
}

/* if the engine's code serves every geometry, another batch, length, layout or scale is a cache hit. */
RIG_TEST(another_geometry_needs_no_build) {
    r->t.problem.engine = "ref";
    uint8_t first[16], key[16];
    plan_key_of(r, &r->t.problem, first);
    r->t.problem.b = 7;
    plan_key_of(r, &r->t.problem, key);
    T_CHECK(memcmp(first, key, 16) != 0); /* other plans, the same code */
    r->t.problem.sq = 11, r->t.problem.sk = 13;
    plan_key_of(r, &r->t.problem, key);
    r->t.problem.q.layout = FXA_LAYOUT_BSHD;
    plan_key_of(r, &r->t.problem, key);
    T_INT(plan_stats(r).builds, 1);
    T_INT(plan_stats(r).hits, 3);
    r->t.problem.q.dtype = FXA_F32; /* dtype is compiled in: a build */
    plan_key_of(r, &r->t.problem, key);
    T_INT(plan_stats(r).builds, 2);
    r->t.problem.q.layout = FXA_LAYOUT_BHSD, r->t.problem.q.dtype = FXA_F64;
    r->t.problem.b = TINY_B, r->t.problem.sq = r->t.problem.sk = TINY_S;
    r->t.args.scale = 1 / sqrt(TINY_D);
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_INT(plan_stats(r).builds, 2);
    T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
}

/* other data of a captured tensor or another value of a param use the same plan; each call has its
 * own result. */
RIG_TEST(data_and_params_are_run_time_values) {
    double seen = 0;
    for (int i = 0; i < 6; i++) {
        *r->t.cap = 0.5 + i;
        r->t.slopes[0] = 0.125f * (float)i;
        T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
        T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
        T_CHECK(i == 0 || r->t.o[TINY_D] != seen); /* the value had an effect */
        seen = r->t.o[TINY_D];
    }
    T_INT(plan_stats(r).builds, 1);
}

/* Returns the error of O for score' = a * score + c * (q - k) without mask, computed directly on the tiny data. */
static double plan_linear_error(const tiny *t, const double *o, double a, double c) {
    double worst = 0;
    for (int row = 0; row < TINY_ROWS; row++) {
        double s[TINY_S], sum = 0, out[TINY_D] = {0};
        int b = row / (TINY_H * TINY_S), q = row % TINY_S;
        const double *k = t->k + b * TINY_S * TINY_D, *v = t->v + b * TINY_S * TINY_D;
        for (int j = 0; j < TINY_S; j++) {
            double dot = 0;
            for (int d = 0; d < TINY_D; d++) dot += t->q[row * TINY_D + d] * k[j * TINY_D + d];
            s[j] = exp(a * dot / sqrt(TINY_D) + c * (q - j));
            sum += s[j];
        }
        for (int j = 0; j < TINY_S; j++)
            for (int d = 0; d < TINY_D; d++) out[d] += s[j] / sum * v[j * TINY_D + d];
        for (int d = 0; d < TINY_D; d++) worst = fmax(worst, fabs(out[d] - o[row * TINY_D + d]));
    }
    return worst;
}

/* content decides, not addresses. Programs are created and freed in turn, so that addresses repeat. */
RIG_TEST(a_program_at_the_same_address_is_another) {
    static const struct {
        const char *text;
        double a, c;
    } cases[] = {
        {"score = 0.5 * score", 0.5, 0},
        {"score = 0.25 * score", 0.25, 0},
        {"score = score + float(q - k)", 1, 1},
        {"score = score - float(q - k)", 1, -1},
        {"", 1, 0},
    };
    r->t.args.n_params = r->t.args.n_tensors = 0;
    for (int i = 0; i < 5; i++) {
        t_program *program = NULL;
        T_OK(fxa_program_parse(r->ctx, cases[i].text, SIZE_MAX, &program, &err));
        r->t.problem.program = program;
        r->t.problem.n_captures = 0;
        T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
        T_NEAR(plan_linear_error(&r->t, r->t.o, cases[i].a, cases[i].c), 0, TINY_TOLERANCE);
    }
    T_INT(plan_stats(r).builds, 5);
}

/* different programs, and no program, never share a key; different text with the same content does. */
RIG_TEST(keys_are_content) {
    static const char *const texts[] = {"",
                                        "score = 2.0 * score",
                                        "score = 3.0 * score",
                                        "mask = k <= q",
                                        "mask = k < q",
                                        "param x : float\nscore = x * score"};
    enum { N = sizeof texts / sizeof *texts };
    r->t.problem.n_captures = 0;
    uint8_t key[N + 1][16];
    for (int i = 0; i < N; i++) {
        t_program *program = NULL;
        T_OK(fxa_program_parse(r->ctx, texts[i], SIZE_MAX, &program, &err));
        r->t.problem.program = program;
        plan_key_of(r, &r->t.problem, key[i]);
        for (int j = 0; j < i; j++) T_CHECK(memcmp(key[i], key[j], 16) != 0);
    }
    T_INT(plan_stats(r).builds, N);
    fxa_program *program = NULL;
    T_OK(fxa_program_parse(r->ctx, "let a = score # again\nscore = a*2.0", SIZE_MAX, &program, &err));
    r->t.problem.program = program;
    plan_key_of(r, &r->t.problem, key[N]);
    T_CHECK(memcmp(key[1], key[N], 16) == 0);
    fxa_program_destroy(program);
    T_INT(plan_stats(r).builds, N);
}

/* a plan owns what it needs of a program. */
RIG_TEST(a_plan_outlives_its_program) {
    t_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    tiny_end_program(&r->t);
    memset(r->t.capture, 0xff, sizeof *r->t.capture); /* captures were copied */
    T_OK(tiny_run(plan, &r->t.args, &err));
    T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
}

/* forward and backward are separate; a forward plan builds nothing of backward. */
RIG_TEST(forward_never_builds_backward) {
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_INT(plan_stats(r).builds, 1);
    tiny back;
    T_OK(tiny_backward(r->ctx, &back, &err)); /* includes the same forward: a hit */
    T_INT(plan_stats(r).builds, 1);
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &back.problem, &plan, &err));
    T_INT(plan_stats(r).builds, 2);
    T_OK(tiny_run(plan, &back.args, &err));
    T_CHECK(back.dq[TINY_D] != 0 && back.dk[0] != 0 && back.dv[0] != 0 && *back.dcap != 0 && back.dslopes[0] != 0);
    fxa_plan_destroy(plan);
    tiny_end(&back);
}

/* No run allocates memory. */
RIG_TEST(a_run_allocates_nothing) {
    tiny back;
    T_OK(tiny_backward(r->ctx, &back, &err));
    const tiny *cases[] = {&r->t, &back};
    for (int i = 0; i < 2; i++) {
        t_plan *plan = NULL;
        T_OK(fxa_plan_create(r->ctx, &cases[i]->problem, &plan, &err));
        size_t calls = r->memory.calls;
        T_OK(tiny_run(plan, &cases[i]->args, &err));
        T_INT(r->memory.calls, calls);
    }
    tiny_end(&back);
}

RIG_TEST(the_workspace_is_checked) {
    t_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    size_t size = fxa_plan_workspace(plan);
    T_REQUIRE(size > 0);
    char *memory = NULL;
    T_REQUIRE(posix_memalign((void **)&memory, FXA_WORKSPACE_ALIGN, size + FXA_WORKSPACE_ALIGN) == 0);
    r->t.args.workspace = memory;
    r->t.args.workspace_size = size - 1;
    T_STATUS(fxa_plan_run(plan, &r->t.args, &err), FXA_E_WORKSPACE);
    r->t.args.workspace = memory + 8;
    r->t.args.workspace_size = size;
    T_STATUS(fxa_plan_run(plan, &r->t.args, &err), FXA_E_WORKSPACE);
    r->t.args.workspace = NULL;
    T_STATUS(fxa_plan_run(plan, &r->t.args, &err), FXA_E_WORKSPACE);
    T_CHECK(r->t.o[0] == 0); /* untouched */
    T_INT(plan_stats(r).runs, 0);
    r->t.args.workspace = memory;
    T_OK(fxa_plan_run(plan, &r->t.args, &err));
    T_NEAR(tiny_error(&r->t), 0, TINY_TOLERANCE);
    free(memory);
}

/* The named engine runs, or an error lists the engines that exist. */
RIG_TEST(the_engine_can_be_named) {
    fxa_plan *plan = NULL;
    r->t.problem.engine = "ref";
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "ref");
    T_INT(fxa_plan_is_deterministic(plan), 1);
    fxa_plan_destroy(plan);
    r->t.problem.engine = "abacus";
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_ARGUMENT);
    T_CHECK(!plan);
    T_HAS(err.text, "problem.engine");
    T_HAS(err.text, "abacus");
    T_HAS(err.text, "ref");
}

/* Sets FXA_ENGINE when the context is created, for problems that name no engine. */
static void named_by_environment(const char *text, const char *field, const char *engine, const char *words) {
    plan_rig r;
    fxa_error err;
    fxa_plan *plan = NULL;
    setenv("FXA_ENGINE", text, 1);
    T_REQUIRE(plan_rig_start(&r));
    setenv("FXA_ENGINE", "too late", 1);
    r.t.problem.engine = field;
    T_STATUS(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err), words ? FXA_E_ARGUMENT : FXA_OK);
    if (words) T_HAS(err.text, words);
    if (engine) T_STR(fxa_plan_engine(plan), engine);
    fxa_plan_destroy(plan);
    unsetenv("FXA_ENGINE");
    plan_rig_end(&r);
}

TEST(the_environment_names_the_engine) {
    named_by_environment("slide rule", NULL, NULL, "the environment's FXA_ENGINE is \"slide rule\"");
    named_by_environment("slide rule", "ref", "ref", NULL); /* the field takes precedence */
    named_by_environment("ref", NULL, "ref", NULL);
    named_by_environment("", NULL, "cpu", NULL); /* empty counts as unset */
}

/* Creating a plan from the resolved problem gives the same plan. */
RIG_TEST(the_resolved_problem_makes_the_same_plan) {
    r->t.problem.hkv = 0; /* two heads each */
    t_plan *plan = NULL, *twin = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    fxa_problem resolved = FXA_PROBLEM_INIT;
    fxa_plan_problem(plan, &resolved);
    T_INT(resolved.struct_size, sizeof resolved);
    T_INT(resolved.hkv, TINY_H);
    T_INT(resolved.d_v, TINY_D);
    T_INT(resolved.k.dtype, FXA_F64);
    T_INT(resolved.o.layout, FXA_LAYOUT_STRIDED);
    T_INT(resolved.q.stride[2], TINY_D);
    T_STR(resolved.engine, fxa_plan_engine(plan));
    T_OK(fxa_plan_create(r->ctx, &resolved, &twin, &err));
    uint8_t a[16], b[16];
    fxa_plan_key(plan, a);
    fxa_plan_key(twin, b);
    T_CHECK(memcmp(a, b, 16) == 0);
    T_INT(plan_stats(r).builds, 1);
    /* A smaller struct of an older caller is filled up to its end and no further. */
    fxa_problem older;
    memset(&older, 0x77, sizeof older);
    older.struct_size = offsetof(fxa_problem, program);
    fxa_plan_problem(plan, &older);
    T_INT(older.struct_size, offsetof(fxa_problem, program));
    T_INT(older.flags, FXA_RETURN_LSE);
    for (size_t i = older.struct_size; i < sizeof older; i++) T_CHECK(((unsigned char *)&older)[i] == 0x77);
}

/* empty problems return at once; pointers may be NULL. */
RIG_TEST(empty_problems_run) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.hq = 2, p.d_qk = 4;
    fxa_args args = FXA_ARGS_INIT;
    for (int i = 0; i < 2; i++) { /* no batch; no rows and no keys */
        p.b = i;
        p.sq = p.sk = i == 0 ? 3 : 0;
        T_OK(fxa_attention(r->ctx, &p, &args, &err));
    }
    /* Rows without keys have O = 0. */
    float o[8], q[8] = {1, 2, 3};
    memset(o, 0xff, sizeof o);
    p.b = 1, p.sq = 1, p.sk = 0;
    args.slot[FXA_SLOT_Q] = q;
    args.slot[FXA_SLOT_O] = o;
    T_OK(fxa_attention(r->ctx, &p, &args, &err));
    for (int i = 0; i < 8; i++) T_SAME(o[i], 0);
}

/* fxa_attention and fxa_plan_run give the same bits; fxa_attention does not write the workspace in args. */
RIG_TEST(the_easy_way_is_the_same) {
    double first[TINY_Q_COUNT];
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r->t.args, &err));
    fxa_plan_destroy(plan);
    memcpy(first, r->t.o, sizeof first);
    memset(r->t.o, 0xff, TINY_Q_COUNT * sizeof(double));
    char byte = 'x';
    r->t.args.workspace = &byte;
    r->t.args.workspace_size = 1;
    size_t live = r->memory.live_bytes;
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_CHECK(memcmp(first, r->t.o, sizeof first) == 0);
    T_INT(byte, 'x');
    T_INT(r->memory.live_bytes, live);
}

/* Every failure is reported, sets *out to NULL and leaks nothing. */
RIG_TEST(failures_leave_no_trace) {
    size_t live = r->memory.live_bytes;
    fxa_plan *plan = (fxa_plan *)r;
    r->t.problem.n_captures = 0;
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_PROBLEM);
    T_CHECK(!plan);
    r->t.problem.n_captures = 1;
    r->t.problem.d_qk = 100000;
    plan = (fxa_plan *)r;
    T_CHECK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err) != FXA_OK);
    T_CHECK(!plan);
    r->t.problem.d_qk = TINY_D;
    T_INT(r->memory.live_bytes, live);
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    r->t.args.slot[FXA_SLOT_K] = NULL;
    T_STATUS(tiny_run(plan, &r->t.args, &err), FXA_E_BINDING);
    T_HAS(err.text, "K");
    T_STATUS(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err), FXA_E_BINDING);
    T_INT(plan_stats(r).runs, 0);
    fxa_plan_destroy(plan);
}

T_MAIN
