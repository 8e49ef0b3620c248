/* SPDX-License-Identifier: Apache-2.0
 *
 * Out of memory at every allocation of every main flow: the k-th allocation fails, once alone and once with all later
 * ones. Each time the result is E_MEMORY (or correct, where memory was only for speed), nothing leaks, every freed size
 * was allocated, and the same context does the same job right afterwards.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/plan_bytes.h"
#include "support/fixtures/tiny.h"
#include "t.h"

/* Objects created before memory fails. Flows only read them, except for the data of the tiny problems. */
typedef struct oom_rig {
    fail_alloc memory;
    fxa_context *ctx;
    tiny forward, backward;
    fxa_program *derivative, *lifted;
    fxa_plan *plan;
    blob_bytes plan_bytes, program_bytes;
} oom_rig;

static bool oom_rig_start(oom_rig *r, fxa_error *err) {
    *r = (oom_rig){.memory = FAIL_ALLOC_INIT};
    r->ctx = fail_alloc_context(&r->memory);
    if (!r->ctx || tiny_forward(r->ctx, &r->forward, err) || tiny_backward(r->ctx, &r->backward, err)) return false;
    if (fxa_program_derivative(r->forward.program, &r->derivative, err)) return false;
    if (fxa_program_parse(r->ctx, "score = k <= q ? tanh(score) : -inf", SIZE_MAX, &r->lifted, err)) return false;
    if (fxa_plan_create(r->ctx, &r->backward.problem, &r->plan, err)) return false;
    if (fxa_plan_save(r->plan, r->plan_bytes.data, BLOB_CAPACITY, &r->plan_bytes.size, err)) return false;
    return !fxa_program_save(r->forward.program, r->program_bytes.data, BLOB_CAPACITY, &r->program_bytes.size, err);
}

static void oom_rig_end(oom_rig *r) {
    fxa_plan_destroy(r->plan);
    fxa_program_destroy(r->derivative);
    fxa_program_destroy(r->lifted);
    tiny_end(&r->backward);
    tiny_end(&r->forward);
    fxa_context_destroy(r->ctx);
    T_INT(r->memory.live_bytes, 0);
    T_INT(r->memory.mistakes, 0);
}

/* ---- Flows: each does one thing and takes back what it made ------------------------------------------------------ */

static fxa_status oom_context(oom_rig *r, fxa_error *err) {
    t_ctx *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = fail_alloc_fn;
    config.alloc_user = &r->memory;
    fxa_status status = fxa_context_create(&config, &ctx, err);
    return status;
}

static const char oom_text[] = "param c : float\nparam w : int\ntensor bias : f32[3]\ntensor doc : i64[1]\n"
                               "let d = float(q - k)\n"
                               "score = c * tanh((score + bias[h, q, k] * d) / c) + sum(i, 4, bias[h, i, k])\n"
                               "mask = doc[q] == doc[k] && any(i, 3, (q - k) % w == i)";

static fxa_status oom_parse(oom_rig *r, fxa_error *err) {
    t_program *program = NULL;
    fxa_status status = fxa_program_parse(r->ctx, oom_text, SIZE_MAX, &program, err);
    return status;
}

static fxa_status oom_parse_texts(oom_rig *r, fxa_error *err) {
    fxa_text texts[] = {{"one", "score = score * gain", SIZE_MAX}, {"two", "mask = k <= q + shift[b]", SIZE_MAX}};
    fxa_declaration declarations[] = {{.name = "gain", .type = FXA_FLOAT},
                                      {.name = "shift", .dtype = FXA_I32, .rank = 1}};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.texts = texts;
    config.n_texts = 2;
    config.declarations = declarations;
    config.n_declarations = 2;
    t_program *program = NULL;
    fxa_status status = fxa_program_parse_texts(r->ctx, &config, &program, err);
    return status;
}

/* A syntax error stays a syntax error or becomes E_MEMORY; never success, never a leak. */
static fxa_status oom_parse_mistake(oom_rig *r, fxa_error *err) {
    fxa_program *program = NULL;
    static const char text[] = "let a = q * 2\nscore = score + slopes[a, k]";
    fxa_status status = fxa_program_parse(r->ctx, text, SIZE_MAX, &program, err);
    return status == FXA_E_PROGRAM ? FXA_OK : status;
}

static fxa_status oom_builder(oom_rig *r, fxa_error *err) {
    t_builder *b = NULL;
    t_program *program = NULL;
    fxa_status status = fxa_builder_create(r->ctx, FXA_PROGRAM_SCORE, &b, err);
    if (status != FXA_OK) return status;
    fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), q = fxa_builder_input(b, FXA_INPUT_Q);
    fxa_value k = fxa_builder_input(b, FXA_INPUT_K), cap = fxa_builder_param(b, "cap", FXA_FLOAT);
    int32_t tensor = fxa_builder_tensor(b, "bias", FXA_F32, 2);
    fxa_value index[] = {q, k}, bias = fxa_builder_load(b, tensor, index, 2), x = score;
    for (int i = 1; i <= 20; i++) {
        fxa_value scaled = fxa_builder_op2(b, FXA_OP_MUL, bias, fxa_builder_float(b, 1.0 / i));
        x = fxa_builder_op2(b, FXA_OP_ADD, x, fxa_builder_op1(b, FXA_OP_TANH, scaled));
    }
    fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_MUL, cap, x));
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_GE, q, k));
    status = fxa_builder_finish(b, &program, err);
    return status;
}

static fxa_status oom_print(oom_rig *r, fxa_error *err) {
    char text[4096];
    return fxa_program_print(r->derivative, text, sizeof text, NULL, err);
}

static fxa_status oom_derivative(oom_rig *r, fxa_error *err) {
    t_program *derivative = NULL;
    fxa_status status = fxa_program_derivative(r->forward.program, &derivative, err);
    return status;
}

static fxa_status oom_program_save(oom_rig *r, fxa_error *err) {
    blob_bytes b;
    return fxa_program_save(r->derivative, b.data, BLOB_CAPACITY, &b.size, err);
}

static fxa_status oom_program_load(oom_rig *r, fxa_error *err) {
    t_program *program = NULL;
    fxa_status status = fxa_program_load(r->ctx, r->program_bytes.data, r->program_bytes.size, &program, err);
    return status;
}

static fxa_status oom_program_eval(oom_rig *r, fxa_error *err) {
    double in[FXA_INPUT_COUNT] = {0.5, 0, 1, 2, 3, 5, 5, 0}, value;
    fxa_view slopes = {r->forward.slopes, FXA_F32, 1, {TINY_H}, {1}};
    int mask;
    return fxa_program_eval(r->forward.program, in, r->forward.cap, &slopes, &value, &mask, err);
}

static fxa_status oom_program_terms(oom_rig *r, fxa_error *err) {
    double in[FXA_INPUT_COUNT] = {0.5, 0, 1, 2, 3, 5, 5, 0};
    fxa_view slopes = {r->forward.slopes, FXA_F32, 1, {TINY_H}, {1}};
    fxa_bounded_result terms[2];
    size_t count = 2;
    return fxa_program_eval_bounds(r->forward.program, in, NULL, FXA_F32, r->forward.cap, &slopes, terms, &count, err);
}

static fxa_status oom_bounds_check(oom_rig *r, fxa_error *err) {
    fxa_bounds_report report;
    size_t count = 1;
    fxa_status status = fxa_bounds_check(r->ctx, &r->forward.problem, &r->forward.args, &report, &count, err);
    if (status == FXA_OK) T_INT(count, 0);
    return status;
}

static fxa_status oom_problem_program(oom_rig *r, fxa_error *err) {
    fxa_problem p = r->forward.problem;
    t_program *program = NULL;
    p.flags |= FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT;
    p.window_left = 3;
    fxa_status status = fxa_problem_program(r->ctx, &p, &program, err);
    return status;
}

static fxa_status oom_support(oom_rig *r, fxa_error *err) {
    fxa_support reports[4];
    size_t count = 4;
    return fxa_support_query(r->ctx, &r->backward.problem, reports, &count, err);
}

static fxa_status oom_plan_of(oom_rig *r, const fxa_problem *problem, fxa_error *err) {
    t_plan *plan = NULL;
    fxa_status status = fxa_plan_create(r->ctx, problem, &plan, err);
    if ((status == FXA_OK) != (plan != NULL)) T_FAIL("status and plan disagree\n");
    return status;
}
static fxa_status oom_plan_forward(oom_rig *r, fxa_error *err) { return oom_plan_of(r, &r->forward.problem, err); }
static fxa_status oom_plan_backward(oom_rig *r, fxa_error *err) {
    fxa_problem p = r->backward.problem;
    p.flags |= FXA_WINDOW | FXA_PADDING;
    p.window_left = 2;
    p.map_q.base = 4;
    return oom_plan_of(r, &p, err);
}

/* A mask within the score: the cpu engine moves it into the mask and differentiates the remaining score. */
static fxa_status oom_plan_lifted(oom_rig *r, fxa_error *err) {
    fxa_problem p = r->backward.problem;
    p.program = r->lifted, p.engine = "cpu";
    p.captures = NULL, p.n_captures = 0, p.param_grads = 0;
    return oom_plan_of(r, &p, err);
}

/* Packed sequences, maps, sinks, dropout and a user-written backward: created, saved, released. */
static fxa_status oom_plan_rich(oom_rig *r, fxa_error *err) {
    blob_bytes b;
    return blob_cases[BLOB_RICH_BACKWARD].make(r->ctx, &b, err);
}

static fxa_status oom_run(oom_rig *r, fxa_error *err) { return tiny_run(r->plan, &r->backward.args, err); }

static fxa_status oom_attention(oom_rig *r, fxa_error *err) {
    memset(r->forward.o, 0, TINY_Q_COUNT * sizeof(double));
    fxa_status status = fxa_attention(r->ctx, &r->forward.problem, &r->forward.args, err);
    if (status == FXA_OK)
        T_NEAR(tiny_error(&r->forward), 0, TINY_TOLERANCE);
    else
        for (int i = 0; i < TINY_Q_COUNT; i++) T_SAME(r->forward.o[i], 0); /* untouched */
    return status;
}

static fxa_status oom_attention_backward(oom_rig *r, fxa_error *err) {
    return fxa_attention(r->ctx, &r->backward.problem, &r->backward.args, err);
}

static fxa_status oom_plan_save(oom_rig *r, fxa_error *err) {
    blob_bytes b;
    fxa_status status = fxa_plan_save(r->plan, b.data, BLOB_CAPACITY, &b.size, err);
    if (status == FXA_OK) T_CHECK(b.size == r->plan_bytes.size && memcmp(b.data, r->plan_bytes.data, b.size) == 0);
    return status;
}

static fxa_status oom_plan_load(oom_rig *r, fxa_error *err) {
    t_plan *plan = NULL;
    fxa_status status = fxa_plan_load(r->ctx, r->plan_bytes.data, r->plan_bytes.size, &plan, err);
    return status;
}

/* Causal with a window of 100 over 1000 x 1000 in tiles of 16. The expected counts were found pair by pair. */
static fxa_status oom_tiles(oom_rig *r, fxa_error *err) {
    fxa_tile_counts counts = {0};
    fxa_problem p = r->forward.problem;
    p.sq = p.sk = 1000;
    p.flags |= FXA_WINDOW;
    p.window_left = 100;
    fxa_status status = fxa_tiles_count(r->ctx, &p, 0, 0, 16, 16, r->forward.cap, NULL, &counts, err);
    if (status == FXA_OK) {
        T_INT(counts.empty, 3493);
        T_INT(counts.mixed, 176);
        T_INT(counts.full, 300);
    }
    return status;
}

static fxa_status oom_merge(oom_rig *r, fxa_error *err) {
    double o[2][TINY_Q_COUNT] = {{0}}, lse[2][TINY_ROWS] = {{0}};
    (void)r;
    fxa_merge_args m = {.struct_size = sizeof m, .b = TINY_B, .h = TINY_H, .s = TINY_S, .d = TINY_D};
    m.o_a.dtype = m.o_b.dtype = m.lse_a.dtype = m.lse_b.dtype = FXA_F64;
    m.o_a_data = o[0], m.lse_a_data = lse[0];
    m.o_b_data = o[1], m.lse_b_data = lse[1];
    return fxa_merge(&m, err);
}

/* ---- Every allocation of every flow ------------------------------------------------------------------------------ */

typedef struct oom_flow {
    const char *name;
    fxa_status (*run)(oom_rig *r, fxa_error *err);
    enum { TAKES_NONE, TAKES_SOME, MAY_DO_WITHOUT } memory;
} oom_flow;

static const oom_flow oom_flows[] = {
    {"context_create", oom_context, TAKES_SOME},
    {"program_parse", oom_parse, TAKES_SOME},
    {"program_parse_texts", oom_parse_texts, TAKES_SOME},
    {"program_parse, a mistake", oom_parse_mistake, TAKES_SOME},
    {"builder", oom_builder, TAKES_SOME},
    {"program_print", oom_print, TAKES_SOME},
    {"program_derivative", oom_derivative, TAKES_SOME},
    {"program_save", oom_program_save, TAKES_SOME},
    {"program_load", oom_program_load, TAKES_SOME},
    {"program_eval", oom_program_eval, TAKES_SOME},
    {"program_terms", oom_program_terms, TAKES_SOME},
    {"bounds_check", oom_bounds_check, TAKES_SOME},
    {"problem_program", oom_problem_program, TAKES_SOME},
    {"support_query", oom_support, MAY_DO_WITHOUT},
    {"plan_create forward", oom_plan_forward, MAY_DO_WITHOUT},
    {"plan_create backward", oom_plan_backward, MAY_DO_WITHOUT},
    {"plan_create of a lifted mask", oom_plan_lifted, MAY_DO_WITHOUT},
    {"plan_create and save, many features", oom_plan_rich, MAY_DO_WITHOUT},
    {"plan_run", oom_run, TAKES_NONE},
    {"attention forward", oom_attention, MAY_DO_WITHOUT},
    {"attention backward", oom_attention_backward, MAY_DO_WITHOUT},
    {"plan_save", oom_plan_save, TAKES_SOME},
    {"plan_load", oom_plan_load, MAY_DO_WITHOUT},
    {"tiles_count", oom_tiles, MAY_DO_WITHOUT},
    {"merge", oom_merge, TAKES_NONE},
};

/* Runs the flow with its k-th allocation failing; returns false if it has fewer. */
static bool oom_step(oom_rig *r, const oom_flow *flow, size_t k, bool persistent) {
    fxa_error err = {0};
    fxa_cache_clear(r->ctx); /* every step starts with an empty cache */
    size_t live = r->memory.live_bytes;
    fail_alloc_arm(&r->memory, k, persistent);
    fxa_status status = flow->run(r, &err);
    bool reached = r->memory.failures > 0;
    fail_alloc_arm(&r->memory, 0, false);

    bool may_succeed = !reached || flow->memory == MAY_DO_WITHOUT;
    if (status != FXA_E_MEMORY && !(status == FXA_OK && may_succeed))
        T_FAIL("%s, allocation %zu: %s (%s)\n", flow->name, k, fxa_status_name(status), err.text);
    if (status == FXA_E_MEMORY && (err.status != status || !err.text[0])) T_FAIL("%s, %zu: no text\n", flow->name, k);
    fxa_cache_clear(r->ctx);
    if (r->memory.live_bytes != live)
        T_FAIL("%s, allocation %zu: %zu bytes leaked\n", flow->name, k, r->memory.live_bytes - live);
    if (reached) T_OK(flow->run(r, &err));
    return reached;
}

static void oom_walk(bool persistent) {
    static oom_rig r;
    fxa_error err = {0};
    T_REQUIRE(oom_rig_start(&r, &err));
    for (size_t i = 0; i < sizeof oom_flows / sizeof *oom_flows; i++) {
        size_t k = 1;
        while (k < 100000 && oom_step(&r, &oom_flows[i], k, persistent)) k++;
        bool takes_some = oom_flows[i].memory != TAKES_NONE;
        if ((k > 1) != takes_some) T_FAIL("%s: %zu allocations\n", oom_flows[i].name, k - 1);
        if (getenv("FXA_TEST_VERBOSE")) printf("  %s: %zu allocations\n", oom_flows[i].name, k - 1);
    }
    oom_rig_end(&r);
}

TEST(each_allocation_fails_alone) { oom_walk(false); }
TEST(each_allocation_fails_and_all_after_it) { oom_walk(true); }

/* A hook that always fails: the first error leaks nothing either. */
TEST(no_memory_at_all) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = (fxa_context *)&memory;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = fail_alloc_fn;
    config.alloc_user = &memory;
    fail_alloc_arm(&memory, 1, true);
    T_STATUS(fxa_context_create(&config, &ctx, &err), FXA_E_MEMORY);
    T_CHECK(!ctx);
    T_INT(memory.blocks, 0);
}

T_MAIN
