/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's floating-point state has no effect. Every public function that does arithmetic is called in each
 * rounding mode, with denormals flushed, with every exception trapped, with valid and invalid arguments, and returns
 * the same bytes as in the default state. Afterwards the state is the caller's, flags included.
 */
#include "support/memory/float_states.h"
#include "support/fixtures/isa.h"
#include "support/fixtures/tiny.h"

/* A program with everything that depends on the state: inexact numbers, folding that rounds, overflows, divides by
 * zero, is inexact, denormal or NaN, and operations that only eval computes. */
static const char state_text[] =
    "param c: float\nparam w: int\ntensor t: f32[1]\n"
    "let third = 1.0 / 3.0\nlet huge = 1e308 * 10.0\nlet tiny = 1e-300 * 1e-20\nlet none = 0.0 / 0.0\n"
    "let over = 1.0 / 0.0\nlet half = round(2.5) + floor(-0.5)\n"
    "score = score * 0.1 + third + tiny * 4.9406564584124654e-324 + half\n"
    "score = score + (q == 99 ? huge - huge + none + log(score * 0.0) : 0.0)\n"
    "score = score + exp(score) + tanh(c * score) + erf(score) + abs(score) ** 0.7 + score % 0.3 + sin(score * 1e5)\n"
    "score = score + sqrt(abs(score)) + t[h] / 3.0 + float(q) / 7.0 + 1.0 / over\n"
    "mask = k <= q + w && float(k) * 0.1 < 1e30\n";

/* Only eval evaluates pairs with q = 99: a NaN in every gradient would hide the other values. */
static fxa_context *state_ctx; /* created in the default state, with its program */
static fxa_program *state_program;
static float state_t[2] = {0.1f, -3.3f};
static const double state_params[2] = {0.3, 2};

static void call_parse(record *r) {
    static const char *const texts[] = {state_text,
                                        "score = 0.1",
                                        "score = 1.0 / 0.0",
                                        "score = round(2.5)",
                                        "score = 1e999",
                                        "score = 0.1 +",
                                        "score = 123456789012345678901234567890.125 * 2.2250738585072014e-308",
                                        "score = score + 1e-320"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fxa_program *program = NULL;
        fxa_error err = {.text = ""};
        record_status(r, fxa_program_parse(state_ctx, texts[i], SIZE_MAX, &program, &err), &err);
        if (program) record_program(r, program);
    }
}

static void call_build(record *r) {
    t_builder *b = NULL;
    fxa_program *program = NULL;
    fxa_error err = {.text = ""};
    record_status(r, fxa_builder_create(state_ctx, FXA_PROGRAM_SCORE, &b, &err), &err);
    static const double numbers[] = {0.1, 3, 1e308, 1e-308, 0, 4.9406564584124654e-324};
    static const uint64_t signalling = UINT64_C(0x7ff0000000000001);
    double number;
    fxa_value sum = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (size_t j = 0; j < sizeof numbers / sizeof *numbers; j++) {
            static const fxa_op ops[] = {FXA_OP_ADD, FXA_OP_MUL, FXA_OP_DIV, FXA_OP_MOD, FXA_OP_MIN};
            fxa_value x = fxa_builder_float(b, numbers[i]), y = fxa_builder_float(b, numbers[j]);
            for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
                sum = fxa_builder_op2(b, FXA_OP_ADD, sum, fxa_builder_op2(b, ops[k], x, y));
        }
    memcpy(&number, &signalling, sizeof number);
    sum = fxa_builder_op3(b, FXA_OP_CLAMP, sum, fxa_builder_float(b, number), fxa_builder_op1(b, FXA_OP_SQRT, sum));
    int32_t t = fxa_builder_tensor(b, "t", FXA_F32, 1);
    fxa_value index = fxa_builder_op1(b, FXA_OP_INT, fxa_builder_float(b, 0.7));
    sum = fxa_builder_op2(b, FXA_OP_ADD, sum, fxa_builder_load(b, t, &index, 1));
    fxa_builder_set_score(b, sum);
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_LT, fxa_builder_float(b, 0.1), fxa_builder_float(b, 0.2)));
    record_status(r, fxa_builder_finish(b, &program, &err), &err);
    if (program) record_program(r, program);
}

static void call_program(record *r) {
    static unsigned char bytes[1 << 15];
    size_t n = 0;
    fxa_program *program = NULL;
    fxa_error err = {.text = ""};
    fxa_properties properties;
    memset(&properties, 0, sizeof properties);
    fxa_program_properties(state_program, &properties);
    record_bytes(r, &properties, sizeof properties);
    record_status(r, fxa_program_derivative(state_program, &program, &err), &err);
    record_program(r, program);
    record_status(r, fxa_program_save(state_program, bytes, sizeof bytes, &n, &err), &err);
    record_status(r, fxa_program_load(state_ctx, bytes, n, &program, &err), &err);
    record_program(r, program);
    bytes[n / 2] ^= 0x40;
    record_status(r, fxa_program_load(state_ctx, bytes, n, &program, &err), &err);
    fxa_program_destroy(program);
    record_status(r, fxa_program_print(state_program, (char *)bytes, 10, &n, &err), &err);
}

static void call_eval(record *r) {
    static const double scores[] = {0, 1, -1, 0.3, 1e10, 1e308, -1e308, INFINITY, NAN, 4.9406564584124654e-324, 2.5};
    const fxa_view view = {state_t, FXA_F32, 1, {2}, {1}};
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        double in[FXA_INPUT_COUNT] = {0}, value = 0;
        int mask = 0;
        fxa_error err = {.text = ""};
        in[FXA_INPUT_SCORE] = scores[i], in[FXA_INPUT_Q] = i % 2 ? 99 : 3, in[FXA_INPUT_K] = 1;
        record_status(r, fxa_program_eval(state_program, in, state_params, &view, &value, &mask, &err), &err);
        record_bytes(r, &value, sizeof value);
        record_bytes(r, &mask, sizeof mask);
        in[FXA_INPUT_Q] = 0.3;
        record_status(r, fxa_program_eval(state_program, in, state_params, &view, &value, &mask, &err), &err);
    }
}

static void call_tiles(record *r) {
    static const char *const texts[] = {"mask = float(q) * 0.1 < 3.3", "mask = exp(float(k)) / 0.0 > 1.0",
                                        "mask = sqrt(float(q - k)) <= 2.0", "mask = k % 3 == q // 7"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        t_program *program = NULL;
        fxa_error err = {.text = ""};
        fxa_problem p = FXA_PROBLEM_INIT;
        fxa_tile_counts counts;
        memset(&counts, 0, sizeof counts);
        record_status(r, fxa_program_parse(state_ctx, texts[i], SIZE_MAX, &program, &err), &err);
        for (int32_t at = 0; at < 64; at += 8) {
            fxa_tile_bounds box = {{0}, {0}};
            box.lo[FXA_INPUT_Q] = at, box.hi[FXA_INPUT_Q] = at + 7, box.hi[FXA_INPUT_K] = at + 3;
            fxa_tile_class tile = fxa_program_classify(program, &box, NULL, NULL);
            record_bytes(r, &tile, sizeof tile);
        }
        p.b = p.hq = 1, p.sq = p.sk = 100, p.d_qk = 4;
        p.program = program;
        record_status(r, fxa_tiles_count(state_ctx, &p, 0, 0, 8, 8, NULL, NULL, &counts, &err), &err);
        record_bytes(r, &counts, sizeof counts);
    }
}

static void call_merge(record *r) {
    float o[2][6] = {{0.1f, 1e-40f, 3e38f, 1, 2, 3}, {0.7f, 1e-41f, 3e38f, 4, 5, 6}};
    float lse[2][2] = {{0.3f, 200}, {1, -200}};
    fxa_error err = {.text = ""};
    fxa_merge_args m = FXA_MERGE_ARGS_INIT;
    m.b = m.h = 1, m.s = 2, m.d = 3;
    m.o_a.dtype = m.o_b.dtype = m.lse_a.dtype = m.lse_b.dtype = FXA_F32;
    m.o_a_data = o[0], m.o_b_data = o[1], m.lse_a_data = lse[0], m.lse_b_data = lse[1];
    record_status(r, fxa_merge(&m, &err), &err);
    record_bytes(r, o[0], sizeof o[0]);
    record_bytes(r, lse[0], sizeof lse[0]);
    m.d = -1;
    record_status(r, fxa_merge(&m, &err), &err);
}

/* ---- Plans and runs ---------------------------------------------------------------------------------------------- */

enum { RUN_S = 24, RUN_D = 8, RUN_H = 2, RUN_N = RUN_S * RUN_D * RUN_H };
typedef struct run_data {
    float in[3][RUN_N], out[4][RUN_N], lse[RUN_S * RUN_H], dt[2];
    double dparams[2];
} run_data;
static run_data run_start; /* inputs, filled in the default floating-point state */

static fxa_problem run_problem(const char *engine, const fxa_capture *capture, bool backward) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = 1, p.hq = RUN_H, p.sq = p.sk = RUN_S, p.d_qk = RUN_D;
    p.program = state_program;
    p.captures = capture, p.n_captures = 1;
    p.engine = engine;
    p.flags = FXA_DROPOUT | (backward ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE);
    p.dropout_p = 0.1;
    p.pass = backward ? FXA_BACKWARD : FXA_FORWARD;
    p.param_grads = backward ? 1 : 0;
    return p;
}

static void run_pass(record *r, fxa_context *ctx, const char *engine, run_data *d, bool backward) {
    const void *tensors[1] = {state_t};
    void *dtensors[1] = {d->dt};
    fxa_capture capture = {.size = {2}, .grad = backward};
    fxa_problem p = run_problem(engine, &capture, backward);
    fxa_args a = FXA_ARGS_INIT;
    fxa_error err = {.text = ""};
    for (int i = 0; i < 3; i++) a.slot[FXA_SLOT_Q + i] = d->in[i];
    a.slot[FXA_SLOT_O] = d->out[0], a.slot[FXA_SLOT_LSE] = d->lse;
    a.params = state_params, a.n_params = 2, a.tensors = tensors, a.n_tensors = 1;
    if (backward) {
        a.slot[FXA_SLOT_DO] = d->in[0];
        for (int i = 0; i < 3; i++) a.slot[FXA_SLOT_DQ + i] = d->out[1 + i];
        a.dtensors = dtensors, a.n_dtensors = 1, a.dparams = d->dparams, a.n_dparams = 2;
    }
    record_status(r, fxa_attention(ctx, &p, &a, &err), &err);
    record_bytes(r, d->out, sizeof d->out);
    record_bytes(r, d->lse, sizeof d->lse);
    record_bytes(r, d->dt, sizeof d->dt);
    record_bytes(r, d->dparams, sizeof d->dparams);
    a.scale = INFINITY;
    record_status(r, fxa_attention(ctx, &p, &a, &err), &err);
}

static void run_passes(record *r, fxa_context *ctx, const char *engine) {
    static run_data d;
    memcpy(&d, &run_start, sizeof d);
    run_pass(r, ctx, engine, &d, false);
    run_pass(r, ctx, engine, &d, true);
}

static void call_ref(record *r) { run_passes(r, state_ctx, "ref"); }
static void call_cpu(record *r) { run_passes(r, state_ctx, "cpu"); }
static void call_cpu_threads(record *r) { /* the pool's threads start here, in this state */
    fxa_context_config c = FXA_CONTEXT_CONFIG_INIT;
    t_ctx *ctx = NULL;
    fxa_error err = {.text = ""};
    c.threads = 3;
    record_status(r, fxa_context_create(&c, &ctx, &err), &err);
    run_passes(r, ctx, "cpu");
}

static void call_plan(record *r) {
    static unsigned char bytes[1 << 16];
    uint8_t key[16];
    fxa_capture capture = {.size = {2}};
    fxa_problem p = run_problem(NULL, &capture, false);
    fxa_plan *plan = NULL, *again = NULL;
    fxa_program *program = NULL;
    fxa_support reports[8];
    size_t count = 8, n = 0;
    fxa_error err = {.text = ""};
    memset(reports, 0, sizeof reports);
    record_status(r, fxa_support_query(state_ctx, &p, reports, &count, &err), &err);
    record_bytes(r, reports, sizeof reports);
    record_status(r, fxa_plan_create(state_ctx, &p, &plan, &err), &err);
    fxa_plan_key(plan, key);
    record_bytes(r, key, sizeof key);
    record_status(r, fxa_plan_save(plan, bytes, sizeof bytes, &n, &err), &err);
    record_bytes(r, bytes, n);
    record_status(r, fxa_plan_load(state_ctx, bytes, n, &again, &err), &err);
    fxa_plan_destroy(again);
    record_status(r, fxa_plan_load(state_ctx, bytes, n - 1, &again, &err), &err);
    p.flags |= FXA_CAUSAL;
    record_status(r, fxa_problem_program(state_ctx, &p, &program, &err), &err);
    record_program(r, program);
    p.dropout_p = 1.1; /* appears in a message */
    record_status(r, fxa_plan_create(state_ctx, &p, &again, &err), &err);
    fxa_plan_destroy(again);
    fxa_plan_destroy(plan);
}

/* Computes an out-of-bounds index from floats. */
static void call_index(record *r) {
    const void *tensors[1] = {state_t};
    fxa_capture capture = {.size = {2}};
    fxa_problem p = run_problem(NULL, &capture, false);
    fxa_args a = FXA_ARGS_INIT;
    t_program *program = NULL;
    fxa_bounds_report reports[4];
    size_t count = 4;
    fxa_error err = {.text = ""};
    memset(reports, 0, sizeof reports);
    record_status(r,
                  fxa_program_parse(state_ctx, "tensor t: f32[1]\nscore = score + t[int(exp(score) / 0.3 * float(q))]",
                                    SIZE_MAX, &program, &err),
                  &err);
    p.program = program;
    for (int i = 0; i < 2; i++) a.slot[FXA_SLOT_Q + i] = run_start.in[i];
    a.tensors = tensors, a.n_tensors = 1;
    record_status(r, fxa_bounds_check(state_ctx, &p, &a, reports, &count, &err), &err);
    record_bytes(r, &count, sizeof count);
    record_bytes(r, reports, sizeof reports);
}

/* A parallel loop of the caller, whose threads have any state. */
static void state_parallel(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    void (*set)(void) = *(void (**)(void))user;
    fenv_t before;
    (void)fegetenv(&before);
    for (int32_t i = n - 1; i >= 0; i--) {
        set();
        state inside = state_get();
        task(arg, i);
        state after = state_get();
        if (memcmp(&inside, &after, sizeof inside) != 0) T_FAIL("a task left another state than it found\n");
        (void)fesetenv(&before);
    }
}

static const struct {
    const char *name;
    void (*call)(record *r);
} calls[] = {
    {"parse", call_parse}, {"builder", call_build},       {"program", call_program}, {"eval", call_eval},
    {"tiles", call_tiles}, {"merge", call_merge},         {"plan", call_plan},       {"ref", call_ref},
    {"cpu", call_cpu},     {"threads", call_cpu_threads}, {"index", call_index},
};

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static bool state_open(void) {
    fxa_error err;
    t_rng rng = {t_seed()};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < RUN_N; j++)
            run_start.in[i][j] = (float)(t_int(&rng, 0, 9) ? t_real(&rng, -2, 2) : t_real(&rng, -1e-39, 1e-39));
    T_OK(fxa_context_create(NULL, &state_ctx, &err));
    T_OK(fxa_program_parse(state_ctx, state_text, SIZE_MAX, &state_program, &err));
    static record plain;
    plain.size = 0;
    if (state_program) run_passes(&plain, state_ctx, "ref");
    float o;
    memcpy(&o, plain.byte + sizeof(fxa_status), sizeof o);
    T_CHECK(isfinite(o) && o != 0);
    return state_program != NULL;
}

static void state_close(void) {
    fxa_program_destroy(state_program);
    fxa_context_destroy(state_ctx);
}

/* Compares `call` in each state with the default one. */
static void states_compare(const char *name, void (*call)(record *r)) {
    static record want, got;
    want.size = 0;
    fxa_cache_clear(state_ctx);
    state_reset();
    call(&want);
    for (int i = 0; i < N_STATES; i++) {
        fxa_cache_clear(state_ctx);
        state_reset();
        states[i].set();
        state before = state_get();
        got.size = 0;
        call(&got);
        state after = state_get();
        state_reset();
        if (memcmp(&before, &after, sizeof before) != 0)
            T_FAIL("%s left another state than %s\n", name, states[i].name);
        if (want.size != got.size || memcmp(want.byte, got.byte, want.size) != 0)
            T_FAIL("%s gives other bytes in state %s\n", name, states[i].name);
    }
}

TEST(no_state_reaches_a_result) { /* */
    T_REQUIRE(state_open());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) states_compare(calls[i].name, calls[i].call);
    state_close();
}

static void states_compare_cpu(const char *isa) { states_compare(isa, call_cpu); }

TEST(no_state_reaches_a_result_of_any_instruction_set) {
    T_REQUIRE(state_open());
    isa_each(states_compare_cpu);
    state_close();
}

TEST(no_state_of_a_callers_loop_reaches_a_result) {
    static record want, got;
    T_REQUIRE(state_open());
    want.size = 0;
    call_cpu(&want);
    for (int i = 0; i < N_STATES; i++) {
        void (*set)(void) = states[i].set;
        fxa_context_config c = FXA_CONTEXT_CONFIG_INIT;
        t_ctx *ctx = NULL;
        c.threads = 3, c.parallel = state_parallel, c.parallel_user = &set;
        T_OK(fxa_context_create(&c, &ctx, &err));
        got.size = 0;
        run_passes(&got, ctx, "cpu");
        if (want.size != got.size || memcmp(want.byte, got.byte, want.size) != 0)
            T_FAIL("a loop in state %s gives other bytes\n", states[i].name);
    }
    state_close();
}

/* Hooks are called in the default state, whatever the caller's. */
static const state *hook_state;
static int hook_calls;
static void *state_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)user, (void)old_size;
    state now = state_get();
    hook_calls++;
#if defined(__x86_64__)
    if (hook_state && ((now.mxcsr ^ hook_state->mxcsr) & ~0x3fu || now.x87[0] != hook_state->x87[0]))
        T_FAIL("an allocation in another state than the default\n");
#else
    (void)now;
#endif
    if (new_size == 0) return free(ptr), NULL;
    return align <= 16 ? realloc(ptr, new_size) : aligned_alloc(align, (new_size + align - 1) / align * align);
}

TEST(hooks_are_called_in_the_default_state) {
    fxa_context_config c = FXA_CONTEXT_CONFIG_INIT;
    t_ctx *ctx = NULL;
    t_program *program = NULL;
    c.alloc = state_alloc, c.threads = 1;
    T_OK(fxa_context_create(&c, &ctx, &err));
    state plain = state_get();
    hook_state = &plain;
    hook_calls = 0;
    state_all();
    fxa_status status = fxa_program_parse(ctx, state_text, SIZE_MAX, &program, NULL);
    state_reset();
    T_INT(status, FXA_OK);
    T_CHECK(hook_calls > 0);
    hook_state = NULL;
}

T_MAIN
