/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine as an engine, on stand-ins for the driver and for cuDNN (tests/standin): when it opens and when not,
 * what it refuses and how it says so, every call of driver and library failing in turn, memory, threads. Whether its
 * graphs are right is for test_cudnn_lowering.c; devices and streams are in test_cudnn_places.c, bytes of plans in
 * test_cudnn_saved.c.
 */
#include "cudnn_rig.h"
#include "standin/standin_profile.h"
#include "support/fail_alloc.h"

#include <pthread.h>

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* With a GPU or without: a plan, or the reason that the query has. */
TEST(on_whatever_this_machine_has) {
    fxa_context *ctx = context_new();
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    fxa_support said = answer_of(ctx, &p);
    fxa_plan *plan = NULL;
    fxa_error err;
    T_CHECK(said.supported ? !said.reason[0] : said.reason[0] != 0);
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), said.supported ? FXA_OK : FXA_E_UNSUPPORTED);
    if (!said.supported) T_HAS(err.text, said.reason);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
}

TEST(reasons_not_to_open) {
    NEEDS_STANDIN;
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    fxa_context *ctx = context_new();
    p.ordinal = 2;
    T_HAS(answer_of(ctx, &p).reason, "ordinal is 2: the CUDA driver has 2 devices");
    fxa_context_destroy(ctx);
    p.ordinal = 0;
    standin[0]->family = 8;
    for (int asked = 0; asked < 2; asked++) { /* nobody has run it there */
        if (asked) setenv("FXA_CUDNN_UNTRIED", "1", 1);
        ctx = context_new();
        fxa_support said = answer_of(ctx, &p);
        T_INT(said.supported, asked);
        if (!asked) T_HAS(said.reason, "tried on sm_90 alone (here: cuDNN 91901, sm_80); FXA_CUDNN_UNTRIED=1");
        fxa_context_destroy(ctx);
    }
    unsetenv("FXA_CUDNN_UNTRIED");
    standin[0]->family = 0;
    standin[0]->devices_gone = true;
    ctx = context_new();
    T_HAS(answer_of(ctx, &p).reason, "the CUDA driver has 0 devices");
    fxa_context_destroy(ctx);
    standin[0]->devices_gone = false;
    standin_check_end();
}

TEST(plans_for_a_device_that_is_not_here) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_error err;
    fxa_plan *plan = NULL;
    fxa_problem p = problem_of(&spec, FXA_BACKWARD);
    p.target = profile;
    T_CHECK(answer_of(ctx, &p).supported);
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    T_HAS(fxa_plan_detail(plan), "cuDNN 9.19.1, sm_90, products");
    fxa_plan_destroy(plan);
    char other[sizeof profile];
    memcpy(other, profile, sizeof other);
    memcpy(strstr(other, "900"), "800", 3); /* plans for a family that nobody has run it on say so */
    p.target = other;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    T_HAS(fxa_plan_detail(plan), "sm_80 (there with FXA_CUDNN_UNTRIED=1 alone), products");
    fxa_plan_destroy(plan);
    p.target = "{}";
    T_CHECK(!answer_of(ctx, &p).supported);
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* ---- What it refuses --------------------------------------------------------------------------------------------- */

TEST(refusals_name_what_is_wrong) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    p.flags |= FXA_DROPOUT, p.dropout_p = 0.25;
    T_HAS(answer_of(ctx, &p).reason, "dropout");
    p = problem_of(&spec, FXA_FORWARD), p.q.layout = FXA_LAYOUT_STRIDED;
    p.q.stride[0] = p.q.stride[1] = 0, p.q.stride[2] = 16, p.q.stride[3] = 1;
    T_HAS(answer_of(ctx, &p).reason, "strides of Q are 0, 0, 16, 1");
    p = problem_of(&spec, FXA_FORWARD), p.k.dtype = FXA_F16;
    T_HAS(answer_of(ctx, &p).reason, "K is f16 and Q bf16");
    p = problem_of(&spec, FXA_FORWARD), p.lse.layout = FXA_LAYOUT_BSHD;
    T_CHECK(answer_of(ctx, &p).supported);
    p = problem_of(&spec, FXA_FORWARD), p.map_q.kind = FXA_MAP_TABLE;
    T_CHECK(answer_of(ctx, &p).supported); /* without a program nothing counts */
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* One text each: what of the program cannot be, and the words that say so. */
TEST(programs_that_are_refused_and_what_to_write_instead) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    static const struct {
        const char *text, *says;
        int64_t size[2];
    } cases[] = {{"score = trunc(score)", "TRUNC", {0}},
                 {"score = round(score)", "ROUND", {0}},
                 {"score = log1p(score)", "LOG1P", {0}},
                 {"score = score ** 1.5", "exponents 2, 3, 4", {0}},
                 {"score = score + float(int(score))", "INT", {0}},
                 {"score = score % 2.0", "MOD", {0}},
                 {"score = score + (k - q) % 3", "(%): of ints cuDNN divides what is known to lie between 0", {0}},
                 {"mask = (q * 524289) // 7 < k", "between 0 and 2^22", {0}}, /* 9 rows: beyond */
                 {"mask = q // (k + 1) == 2", "(//): of ints cuDNN divides by positive constants", {0}},
                 {"mask = (q < 5 ? q : q - 5) < k", "(where): cuDNN selects between floats; write float(x)", {0}},
                 {"score = score * 2.0 ** h", "2 ** x as exp2(x)", {0}},
                 {"mask = (q ^ k) < 3", "XOR", {0}},
                 {"mask = (q << 1) < k", "SHL", {0}},
                 {"mask = q >> 3 == k >> 3", "(>>): cuDNN has no shifts; of x >> 3 write x // 8", {0}},
                 {"score = 1.0 + 0.5 * q", "does not depend on the score", {0}},
                 {"tensor t : f32[1]\nscore = score + t[q - k]", "index 0 of t is computed (operation SUB)", {9}},
                 {"tensor t : f32[1]\nscore = score + t[k - q]", "; gather t into a tensor of these before", {9}},
                 {"tensor t : f32[1]\nscore = score + t[7]", "axis 0 of t has 4 elements, and is read at 7", {4}},
                 {"tensor t : i32[1]\nscore = score + t[q]", "2^24; clamp them, or take a tensor of i16 or f32", {9}},
                 {"param w : int\nmask = k <= q + w", "wrap", {0}},
                 {"tensor x : i64[1]\ntensor y : i64[1]\nmask = x[q] == y[k]",
                  "i64 tensors: cuDNN compares ints of 32 bits; take i32",
                  {12, 12}},
                 /* and what the reasons tell to write instead is taken */
                 {"score = score + (k - q + 300) % 3", NULL, {0}},
                 {"mask = q // 8 == k // 8", NULL, {0}},
                 {"mask = (q < 5 ? float(q) : float(q - 5)) < k", NULL, {0}},
                 {"score = score * exp2(h)", NULL, {0}},
                 {"tensor t : i32[1]\nscore = score + clamp(t[q], 0, 999)", NULL, {16}},
                 {"tensor t : i16[1]\nscore = score + t[q]", NULL, {16}},
                 {"tensor x : i32[1]\ntensor y : i32[1]\nmask = x[q] == y[k]", NULL, {16, 16}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        fxa_program *program = NULL;
        fxa_capture captures[2];
        fxa_error err;
        memset(captures, 0, sizeof captures);
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        captures[0].size[0] = cases[i].size[0], captures[1].size[0] = cases[i].size[1];
        p.program = program, p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
        fxa_support said = answer_of(ctx, &p);
        const char *says = cases[i].says ? cases[i].says : "";
        if (said.supported != !cases[i].says || !strstr(said.reason, says))
            T_FAIL("%s: %s, without \"%s\"\n", cases[i].text, said.supported ? "yes" : said.reason, says);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

/* Beside its own two, a backward pass takes two uses of tensors with a value per row. */
TEST(values_per_row_in_backward) {
    NEEDS_STANDIN;
    static const char *const texts[4] = {"tensor t : f32[2]\nscore = score + t[q, 0] + t[q, 1]",
                                         "tensor t : f32[2]\nscore = score + t[q, 0] + t[q, 1] + t[q, 2]",
                                         "tensor t : f64[2]\nscore = score + t[q, 0] + t[q, 1]", /* these are copied */
                                         "tensor t : f64[2]\nscore = score + t[q, 0] + t[q, 1] + t[q, 2]"};
    fxa_context *ctx = context_new();
    for (int i = 0; i < 8; i++) {
        fxa_pass pass = (fxa_pass)(i & 1);
        fxa_problem p = problem_of(&spec, pass);
        fxa_capture capture = {.size = {9, 3}};
        fxa_program *program = NULL;
        fxa_error err;
        T_OK(fxa_program_parse(ctx, texts[i / 2], SIZE_MAX, &program, &err));
        p.program = program, p.captures = &capture, p.n_captures = 1;
        fxa_support said = answer_of(ctx, &p);
        T_INT(said.supported, !(pass == FXA_BACKWARD && (i / 2 & 1)));
        if (!said.supported)
            T_HAS(said.reason, "values of rows or entries (t[q], t[b], positions, coordinate maps) are used 3 times: "
                               "on sm_90 cuDNN's backward of bf16 takes 2");
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* Every operation of the language, on the score and on ints: lowered, or refused by its name. */
TEST(every_operation_is_lowered_or_named) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    int lowered = 0, named = 0;
    for (size_t i = 0; fxa_spelling(i).text; i++) {
        for (int ints = 0; ints < 2; ints++) {
            fxa_spelling_info info = fxa_spelling(i);
            fxa_builder *b = NULL;
            fxa_program *program = NULL;
            fxa_error err;
            T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
            fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), q = fxa_builder_input(b, FXA_INPUT_Q);
            fxa_value args[3] = {ints ? q : score, fxa_builder_input(b, FXA_INPUT_K), fxa_builder_int(b, 3)};
            if (info.op == FXA_OP_SELECT) args[0] = fxa_builder_op2(b, FXA_OP_LT, score, fxa_builder_float(b, 1));
            fxa_value x = fxa_builder_op(b, info.op, args, (size_t)info.arity);
            fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_ADD, score, x));
            if (fxa_builder_finish(b, &program, &err) == FXA_OK) {
                fxa_problem p = problem_of(&spec, FXA_FORWARD);
                p.program = program;
                fxa_support said = answer_of(ctx, &p);
                if (!said.supported) T_HAS(said.reason, "operation ");
                lowered += said.supported, named += !said.supported;
            }
            fxa_program_destroy(program);
            fxa_builder_destroy(b);
        }
    }
    T_CHECK(lowered > 40 && named > 10);
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* What explain shows of a plan: operations, params and tensors by their names, and what cuDNN makes of masks. */
TEST(graphs_for_people) {
    NEEDS_STANDIN;
    static const struct {
        const char *text, *says[4];
        uint32_t flags;
    } cases[] = {{"param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q && q - k < 5",
                  {"matmul(Q, K)", "tanh_fwd(", ", cap)", "# causal: tiles outside are left out"},
                  0},
                 {"tensor doc : i32[1]\ntensor bias : f64[1]\nscore = score + bias[k]\nmask = doc[q] == doc[k]",
                  {", doc)", "# a mask that is evaluated at every pair", "before cuDNN's kernel: copy", "O = matmul("},
                  0},
                 {"param w : int\nmask = q - k < w", {", w)", "# window: ", "index k", "LSE = add("}, 0},
                 {"score = score + 0.5 * k",
                  {"before cuDNN's kernel: spans", "# lengths: ", ", 0.5)", "# lengths: "},
                  FXA_PADDING}};
    fxa_context *ctx = context_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        fxa_capture captures[2] = {{.size = {12}}, {.size = {12}}};
        fxa_program *program = NULL;
        fxa_plan *plan = NULL;
        fxa_error err;
        char text[4000] = "";
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        p.program = program, p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
        p.flags |= cases[i].flags;
        T_OK(fxa_plan_create(ctx, &p, &plan, &err));
        if (plan) T_OK(fxa_plan_listing(plan, text, sizeof text, NULL, &err));
        for (int j = 0; j < 4; j++) T_HAS(text, cases[i].says[j]);
        fxa_plan_destroy(plan);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
    standin_check_end();
}

TEST(no_engine_of_cudnn) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    standin[1]->no_engine = true, standin[1]->tried = 2;
    T_STR(answer_of(ctx, &p).reason,
          "none of 2 engines of cuDNN takes this graph of 10 operations; the first says: the "
          "stand-in has no engine");
    fxa_context_destroy(ctx);
    ctx = context_new(); /* answers are kept */
    standin[1]->tried = 0;
    T_STR(answer_of(ctx, &p).reason, "cuDNN knows no engine for this graph of 10 operations");
    standin[1]->no_engine = false;
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Each call of the driver, then of cuDNN, fails once: an error with words, nothing written, nothing left behind. */
static void fail_each(int which, fxa_pass pass) {
    size_t k = 1, failed = 0;
    for (;; k++) {
        fxa_context *ctx = context_new();
        fxa_error err;
        attn_data x;
        if (!data_make(&x, ctx)) return;
        standin_arm(which, k);
        memset(&err, 0, sizeof err);
        fxa_status status = data_run(&x, ctx, pass, &err);
        bool fired = standin[which]->failures > 0;
        standin_arm(which, 0);
        failed += fired;
        if (status != FXA_OK) {
            T_CHECK(err.status == status && err.text[0]);
            const unsigned char *o = (const unsigned char *)attn_output(&x, pass, 0)->origin;
            T_CHECK(o[0] == 0xff && o[1] == 0xff); /* NaN, as before */
        }
        if (!fired && status != FXA_OK) T_FAIL("%s\n", err.text);
        if (fired && status == FXA_OK && k < 3) T_FAIL("call %zu failed, and nobody noticed\n", k);
        attn_data_free(&x);
        fxa_context_destroy(ctx);
        standin_check_end();
        if (!fired) break;
    }
    T_CHECK(failed > 20);
}

TEST(every_call_of_the_driver_fails) {
    NEEDS_STANDIN;
    fail_each(0, FXA_FORWARD);
    fail_each(0, FXA_BACKWARD);
}

TEST(every_call_of_cudnn_fails) {
    NEEDS_STANDIN;
    fail_each(1, FXA_FORWARD);
    fail_each(1, FXA_BACKWARD);
}

/* Every allocation of the library fails once. */
TEST(every_allocation_fails) {
    NEEDS_STANDIN;
    for (size_t k = 1; k < 5000; k++) {
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&memory);
        fxa_error err;
        fxa_plan *plan = NULL;
        fxa_problem p = problem_of(&spec, FXA_BACKWARD);
        fxa_program *program = NULL;
        T_OK(fxa_program_parse(ctx, spec.text, SIZE_MAX, &program, &err));
        p.program = program;
        fail_alloc_arm(&memory, k, false);
        memset(&err, 0, sizeof err);
        fxa_status status = fxa_plan_create(ctx, &p, &plan, &err);
        bool fired = memory.failures > 0;
        fail_alloc_arm(&memory, 0, false);
        if (fired) T_CHECK(status == FXA_E_MEMORY || status == FXA_OK);
        if (!fired) T_INT(status, FXA_OK);
        fxa_plan_destroy(plan);
        fxa_program_destroy(program);
        fxa_context_destroy(ctx);
        T_INT(memory.blocks, 0);
        standin_check_end();
        if (!fired) break;
    }
}

/* Bounds of masks that are params: all of 32 bits, though what is added to them has as many. */
TEST(bounds_of_any_size) {
    NEEDS_STANDIN;
    static const char *const texts[] = {"param w : int\nmask = k - q <= w", "param w : int\nmask = q - k < w",
                                        "param w : int\nmask = k - q <= -w", "param w : int\nmask = k < w",
                                        "param w : int\nmask = k - q <= w || k < 2"};
    static const double bounds[] = {INT32_MAX, INT32_MIN, INT32_MIN + 1, 1 << 24, -(1 << 24), 5, 0, -5};
    fxa_context *ctx = context_new();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t j = 0; j < sizeof bounds / sizeof *bounds; j++) {
            attn_spec s = spec;
            attn_data x;
            attn_kept want = {{NULL}};
            fxa_error err;
            s.text = texts[i], s.sq = 12;
            T_OK(attn_data_make(&x, ctx, &s, 5, &err));
            x.problem.alignment = 16, x.params[0] = bounds[j];
            T_OK(attn_data_run(&x, ctx, "ref", FXA_FORWARD, &err));
            attn_keep(&x, FXA_FORWARD, &want);
            memset(&err, 0, sizeof err);
            fxa_status status = data_run(&x, ctx, FXA_FORWARD, &err);
            if (status != FXA_OK) T_FAIL("%s, w = %g: %s\n", texts[i], bounds[j], err.text);
            const attn_off off = attn_tensor_off(attn_output(&x, FXA_FORWARD, 0), want.memory[0]);
            if (status == FXA_OK && (off.odd || off.worst > 0.02)) /* P is rounded to 2^-9 of itself */
                T_FAIL("%s, w = %g: off by %g, %d odd\n", texts[i], bounds[j], off.worst, (int)off.odd);
            attn_data_free(&x);
            attn_drop(&want);
        }
    fxa_context_destroy(ctx);
    standin_check_end();
}

typedef struct runner {
    fxa_context *ctx;
    attn_data x;
    attn_kept *want;
    bool ok;
} runner;

static void *runner_run(void *arg) {
    runner *r = arg;
    fxa_error err;
    r->ok = true;
    for (int i = 0; i < 10 && r->ok; i++)
        r->ok = data_run(&r->x, r->ctx, FXA_FORWARD, &err) == FXA_OK && !attn_other_bits(&r->x, FXA_FORWARD, r->want);
    return NULL;
}

/* cuDNN takes the largest score before it multiplies by the scale, unless something is in between. */
TEST(a_scale_that_is_not_above_0) {
    NEEDS_STANDIN;
    static const double scales[] = {0.5, 0, -1};
    fxa_context *ctx = context_new();
    for (int i = 0; i < 6; i++) {
        attn_spec s = spec;
        attn_data x;
        attn_call call;
        fxa_error err;
        s.text = i < 3 ? "mask = k <= q" : "score = tanh(score)\nmask = k <= q";
        T_OK(attn_data_make(&x, ctx, &s, 5, &err));
        x.problem.alignment = 16;
        attn_call_make(&x, FXA_FORWARD, &call);
        call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.args.scale = scales[i % 3];
        T_INT(fxa_attention(ctx, &call.p, &call.args, &err), i == 1 || i == 2 ? FXA_E_BINDING : FXA_OK);
        if (err.status != FXA_OK) T_HAS(err.text, "wants one above 0");
        attn_data_free(&x);
    }
    fxa_context_destroy(ctx);
    standin_check_end();
}

TEST(eight_threads_have_eight_handles) {
    NEEDS_STANDIN;
    enum { THREADS = 8 };
    fxa_context *ctx = context_new();
    fxa_error err;
    pthread_t threads[THREADS];
    static runner runners[THREADS];
    attn_kept want[THREADS];
    memset(want, 0, sizeof want);
    for (int i = 0; i < THREADS; i++) {
        runners[i].ctx = ctx, runners[i].want = &want[i];
        if (!data_make(&runners[i].x, ctx)) return;
        T_OK(data_run(&runners[i].x, ctx, FXA_FORWARD, &err));
        attn_keep(&runners[i].x, FXA_FORWARD, &want[i]);
    }
    for (int i = 0; i < THREADS; i++) T_INT(pthread_create(&threads[i], NULL, runner_run, &runners[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        T_CHECK(runners[i].ok);
        attn_data_free(&runners[i].x);
        attn_drop(&want[i]);
    }
    fxa_context_destroy(ctx);
    standin_check_end();
}

T_MAIN
