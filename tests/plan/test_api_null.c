/* SPDX-License-Identifier: Apache-2.0
 *
 * NULL arguments of every public function: E_ARGUMENT with a text (or a harmless result of functions that cannot fail),
 * and outputs set to NULL. fxa_error may be NULL everywhere.
 */
#include "support/fixtures/tiny.h"
#include "t.h"

#define NULL_STATUS(call) T_STATUS(call, FXA_E_ARGUMENT)

/* Calls with and without fxa_error; the status must be the same. */
#define NULL_BOTH(f, ...)                                                                                              \
    do {                                                                                                               \
        NULL_STATUS(f(__VA_ARGS__, &err));                                                                             \
        T_INT(f(__VA_ARGS__, NULL), FXA_E_ARGUMENT);                                                                   \
    } while (0)

TEST(destroy_and_retain_take_null) {
    fxa_context_destroy(NULL);
    fxa_program_destroy(NULL);
    fxa_program_retain(NULL);
    fxa_plan_destroy(NULL);
    fxa_plan_retain(NULL);
    fxa_builder_destroy(NULL);
    fxa_cache_clear(NULL);
    fxa_cache_limit(NULL, 1, 1);
}

TEST(values_that_are_none_have_harmless_answers) {
    T_STR(fxa_status_name((fxa_status)12345), "unknown status");
    T_STR(fxa_status_text((fxa_status)12345), "unknown status");
    T_STR(fxa_dtype_name((fxa_dtype)99), "none");
    T_INT(fxa_dtype_size((fxa_dtype)99), 0);
    T_INT(fxa_dtype_find(NULL), FXA_DTYPE_NONE);
    T_CHECK(!fxa_slot_name((fxa_slot)63));
    T_CHECK(!fxa_slot_name((fxa_slot)-1));
    char out[8] = "x";
    fxa_error none = {0};
    fxa_error_render(&none, NULL, NULL, 0, NULL, 0);
    fxa_error_render(&none, NULL, NULL, 0, out, sizeof out);
    T_INT(fxa_error_render(NULL, NULL, NULL, 0, out, sizeof out), 0);
}

CONTEXT_TEST(context) {
    NULL_BOTH(fxa_context_create, NULL, NULL);
    fxa_cache_stats stats;
    memset(&stats, 0xff, sizeof stats);
    fxa_cache_get_stats(NULL, &stats);
    T_INT(stats.max_plans, 0);
    fxa_cache_get_stats(ctx, NULL);
}

CONTEXT_TEST(programs) {
    fxa_program *program = NULL, *out = (fxa_program *)&err;
    T_OK(fxa_program_parse(ctx, "param a : float\nscore = a * score", SIZE_MAX, &program, &err));
    NULL_BOTH(fxa_program_parse, ctx, "", 0, NULL);
    NULL_BOTH(fxa_program_parse, NULL, "", 0, &out);
    T_CHECK(!out);
    NULL_BOTH(fxa_program_parse, ctx, NULL, 5, &out);
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    NULL_BOTH(fxa_program_parse_texts, ctx, NULL, &out);
    NULL_BOTH(fxa_program_parse_texts, NULL, &config, &out);
    NULL_BOTH(fxa_program_parse_texts, ctx, &config, NULL);
    config.n_texts = 1;
    NULL_BOTH(fxa_program_parse_texts, ctx, &config, &out);
    config.n_texts = 0, config.n_declarations = 1;
    NULL_BOTH(fxa_program_parse_texts, ctx, &config, &out);

    char text[8];
    size_t needed;
    NULL_BOTH(fxa_program_print, NULL, text, sizeof text, &needed);
    NULL_BOTH(fxa_program_print, program, NULL, 0, NULL);
    NULL_BOTH(fxa_program_save, NULL, text, sizeof text, &needed);
    NULL_BOTH(fxa_program_save, program, NULL, 0, NULL);
    NULL_BOTH(fxa_program_load, ctx, NULL, 5, &out);
    NULL_BOTH(fxa_program_load, NULL, text, sizeof text, &out);
    NULL_BOTH(fxa_program_load, ctx, text, sizeof text, NULL);
    NULL_BOTH(fxa_program_derivative, NULL, &out);
    NULL_BOTH(fxa_program_derivative, program, NULL);
    fxa_program_destroy(program);
}

CONTEXT_TEST(program_queries) {
    t_program *program = NULL;
    static const char text[] = "param a : float\ntensor t : f32[1]\nscore = a * score + t[q]";
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    uint8_t hash[16];
    memset(hash, 7, sizeof hash);
    fxa_program_hash(NULL, hash);
    fxa_program_hash(program, NULL);
    T_INT(fxa_program_node_count(NULL), 0);
    T_INT(fxa_program_param_count(NULL), 0);
    T_INT(fxa_program_tensor_count(NULL), 0);
    T_INT(fxa_program_get_kind(NULL), 0);
    T_CHECK(!fxa_program_param(NULL, 0).name && !fxa_program_tensor(NULL, 0).name);
    T_CHECK(!fxa_program_param(program, 1).name && !fxa_program_tensor(program, SIZE_MAX).name);
    T_INT(fxa_program_param_find(NULL, "a"), -1);
    T_INT(fxa_program_param_find(program, NULL), -1);
    T_INT(fxa_program_tensor_find(NULL, "t"), -1);
    T_INT(fxa_program_tensor_find(program, NULL), -1);
    fxa_properties properties;
    fxa_program_properties(NULL, &properties);
    fxa_program_properties(program, NULL);
    double in[FXA_INPUT_COUNT] = {0}, a = 1, value;
    fxa_view view = {.data = &(float){1}, .dtype = FXA_F32, .rank = 1, .size = {1}, .stride = {1}};
    int mask;
    NULL_BOTH(fxa_program_eval, NULL, in, &a, &view, &value, &mask);
    NULL_BOTH(fxa_program_eval, program, NULL, &a, &view, &value, &mask);
    T_STATUS(fxa_program_eval(program, in, NULL, &view, &value, &mask, &err), FXA_E_BINDING);
    T_STATUS(fxa_program_eval(program, in, &a, NULL, &value, &mask, &err), FXA_E_BINDING);
    T_OK(fxa_program_eval(program, in, &a, &view, NULL, NULL, &err)); /* both are optional */
    fxa_bounded_result term;
    size_t count = 1;
    NULL_BOTH(fxa_program_eval_bounds, NULL, in, NULL, FXA_F64, &a, &view, &term, &count);
    NULL_BOTH(fxa_program_eval_bounds, program, NULL, NULL, FXA_F64, &a, &view, &term, &count);
    NULL_BOTH(fxa_program_eval_bounds, program, in, NULL, FXA_F64, &a, &view, &term, NULL);
    NULL_BOTH(fxa_program_eval_bounds, program, in, NULL, FXA_F64, &a, &view, NULL, &count);
    T_STATUS(fxa_program_eval_bounds(program, in, NULL, FXA_F64, NULL, &view, &term, &count, &err), FXA_E_BINDING);
}

CONTEXT_TEST(builder) {
    fxa_builder *b = (fxa_builder *)&err;
    fxa_program *program = NULL;
    NULL_BOTH(fxa_builder_create, NULL, FXA_PROGRAM_SCORE, &b);
    T_CHECK(!b);
    NULL_BOTH(fxa_builder_create, ctx, FXA_PROGRAM_SCORE, NULL);
    T_CHECK(fxa_builder_float(NULL, 1) < 0 && fxa_builder_int(NULL, 1) < 0 && fxa_builder_bool(NULL, 1) < 0);
    T_CHECK(fxa_builder_input(NULL, FXA_INPUT_Q) < 0 && fxa_builder_param(NULL, "a", FXA_FLOAT) < 0);
    T_CHECK(fxa_builder_tensor(NULL, "a", FXA_F32, 1) < 0 && fxa_builder_load(NULL, 0, NULL, 0) < 0);
    T_CHECK(fxa_builder_op(NULL, FXA_OP_ADD, NULL, 0) < 0 && fxa_builder_op1(NULL, FXA_OP_NEG, 0) < 0);
    T_CHECK(fxa_builder_op2(NULL, FXA_OP_ADD, 0, 0) < 0 && fxa_builder_op3(NULL, FXA_OP_SELECT, 0, 0, 0) < 0);
    fxa_builder_set_score(NULL, 0);
    fxa_builder_set_mask(NULL, 0);
    fxa_builder_set_dscore(NULL, 0);
    NULL_BOTH(fxa_builder_finish, NULL, &program);

    /* A NULL inside a builder is stored and reported by finish. */
    for (int i = 0; i < 4; i++) {
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        if (i == 0) T_CHECK(fxa_builder_param(b, NULL, FXA_FLOAT) < 0);
        if (i == 1) T_CHECK(fxa_builder_tensor(b, NULL, FXA_F32, 1) < 0);
        if (i == 2) T_CHECK(fxa_builder_op(b, FXA_OP_ADD, NULL, 2) < 0);
        if (i == 3) T_CHECK(fxa_builder_load(b, fxa_builder_tensor(b, "t", FXA_F32, 1), NULL, 1) < 0);
        T_CHECK(fxa_builder_finish(b, &program, &err) != FXA_OK && !program && err.text[0]);
        fxa_builder_destroy(b);
    }
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    NULL_BOTH(fxa_builder_finish, b, NULL);
    fxa_builder_destroy(b);
}

CONTEXT_TEST(problems_and_tiles) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = p.hq = p.sq = p.sk = p.d_qk = 1;
    fxa_program *program = (fxa_program *)&err;
    NULL_BOTH(fxa_problem_program, NULL, &p, &program);
    T_CHECK(!program);
    NULL_BOTH(fxa_problem_program, ctx, NULL, &program);
    NULL_BOTH(fxa_problem_program, ctx, &p, NULL);
    size_t count = 1;
    fxa_support report;
    NULL_BOTH(fxa_support_query, NULL, &p, &report, &count);
    NULL_BOTH(fxa_support_query, ctx, NULL, &report, &count);
    NULL_BOTH(fxa_support_query, ctx, &p, NULL, &count);
    NULL_BOTH(fxa_support_query, ctx, &p, &report, NULL);
    NULL_BOTH(fxa_device_description, NULL, FXA_CUDA, 0, NULL, 0, &count);
    NULL_BOTH(fxa_device_description, ctx, FXA_CUDA, 0, NULL, 0, NULL);

    fxa_tile_counts counts;
    NULL_BOTH(fxa_tiles_count, NULL, &p, 0, 0, 16, 16, NULL, NULL, &counts);
    NULL_BOTH(fxa_tiles_count, ctx, NULL, 0, 0, 16, 16, NULL, NULL, &counts);
    NULL_BOTH(fxa_tiles_count, ctx, &p, 0, 0, 16, 16, NULL, NULL, NULL);
    fxa_tile_bounds box = {{0}, {0}};
    T_OK(fxa_program_parse(ctx, "mask = q == k", SIZE_MAX, &program, &err));
    T_INT(fxa_program_classify(NULL, &box, NULL, NULL), FXA_TILE_FULL);     /* no program: the identity */
    T_INT(fxa_program_classify(program, NULL, NULL, NULL), FXA_TILE_MIXED); /* no box: unknown */
    T_INT(fxa_tensor_scan(NULL).known, 0);
    T_INT(fxa_tensor_scan(&(fxa_view){.dtype = FXA_I32, .rank = 1, .size = {3}}).known, 0); /* no data */
    fxa_program_destroy(program);

    p.captures = NULL, p.n_captures = 1; /* pointers inside a problem */
    T_CHECK(fxa_problem_program(ctx, &p, &program, &err) != FXA_OK && err.text[0]);
}

CONTEXT_TEST(plans) {
    tiny t;
    T_OK(tiny_forward(ctx, &t, &err));
    fxa_plan *plan = NULL, *out = (fxa_plan *)&err;
    T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
    NULL_BOTH(fxa_plan_create, NULL, &t.problem, &out);
    T_CHECK(!out);
    NULL_BOTH(fxa_plan_create, ctx, NULL, &out);
    NULL_BOTH(fxa_plan_create, ctx, &t.problem, NULL);
    NULL_BOTH(fxa_plan_run, NULL, &t.args);
    NULL_BOTH(fxa_plan_run, plan, NULL);
    NULL_BOTH(fxa_attention, NULL, &t.problem, &t.args);
    NULL_BOTH(fxa_attention, ctx, NULL, &t.args);
    NULL_BOTH(fxa_attention, ctx, &t.problem, NULL);
    char bytes[8];
    size_t needed;
    NULL_BOTH(fxa_plan_save, NULL, bytes, sizeof bytes, &needed);
    NULL_BOTH(fxa_plan_save, plan, NULL, 0, NULL);
    NULL_BOTH(fxa_plan_load, NULL, bytes, sizeof bytes, &out);
    NULL_BOTH(fxa_plan_load, ctx, NULL, 8, &out);
    NULL_BOTH(fxa_plan_load, ctx, bytes, sizeof bytes, NULL);
    NULL_STATUS(fxa_merge(NULL, &err));
    NULL_BOTH(fxa_problem_save, NULL, &t.problem, bytes, sizeof bytes, &needed);
    NULL_BOTH(fxa_problem_save, ctx, NULL, bytes, sizeof bytes, &needed);
    NULL_BOTH(fxa_problem_save, ctx, &t.problem, NULL, 0, NULL);
    NULL_BOTH(fxa_plan_create_from_problem, NULL, bytes, sizeof bytes, 0, &out);
    NULL_BOTH(fxa_plan_create_from_problem, ctx, NULL, 8, 0, &out);
    NULL_BOTH(fxa_plan_create_from_problem, ctx, bytes, sizeof bytes, 0, NULL);

    T_CHECK(!fxa_plan_engine(NULL));
    T_STR(fxa_plan_description(NULL), "");
    T_INT(fxa_context_threads(NULL), 0);
    T_INT(fxa_plan_workspace(NULL), 0);
    T_INT(fxa_plan_is_deterministic(NULL), 0);
    uint8_t key[16], zero[16] = {0};
    memset(key, 7, sizeof key);
    fxa_plan_key(NULL, key);
    T_CHECK(memcmp(key, zero, 16) == 0);
    fxa_plan_key(plan, NULL);
    fxa_plan_problem(NULL, &t.problem);
    fxa_plan_problem(plan, NULL);
    fxa_plan_destroy(plan);
    tiny_end(&t);
}

T_MAIN
