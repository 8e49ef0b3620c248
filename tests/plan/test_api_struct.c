/* SPDX-License-Identifier: Apache-2.0
 *
 * Struct sizes: a caller compiled with an older header has a shorter struct, one with a newer header a longer
 * one. Each struct is placed at the end of accessible memory, at its own end or that of the current struct, so a read
 * beyond it faults.
 */
#include "support/memory/guard.h"
#include "support/fixtures/tiny.h"
#include "t.h"

static fxa_context *struct_ctx;
static float struct_q[8] = {1, 2, 3, 4, 5, 6, 7, 8}, struct_k[8] = {1, 0, 0, 1}, struct_v[8] = {1, 2, 3, 4};
static float struct_o[8], struct_lse[4], struct_merge_o[2][8], struct_merge_lse[2][4];
static const fxa_text struct_text = {"t", "score = 2.0 * score", SIZE_MAX};

/* Returns a problem of 2 heads, 2 queries, 2 keys, 2 features without a program. */
static fxa_problem struct_problem(void) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = 1, p.hq = 2, p.hkv = 1, p.sq = 2, p.sk = 2, p.d_qk = 2, p.d_v = 2;
    return p;
}

/* ---- One filled struct and one call of each kind ----------------------------------------------------------------- */

static void fill_context(void *to) { *(fxa_context_config *)to = (fxa_context_config)FXA_CONTEXT_CONFIG_INIT; }
static fxa_status call_context(const void *from, fxa_error *err) {
    t_ctx *ctx = NULL;
    fxa_status status = fxa_context_create(from, &ctx, err);
    return status;
}

static void fill_parse(void *to) {
    fxa_parse_config *c = to;
    *c = (fxa_parse_config)FXA_PARSE_CONFIG_INIT;
    c->texts = &struct_text;
    c->n_texts = 1;
}
static fxa_status call_parse(const void *from, fxa_error *err) {
    t_program *program = NULL;
    fxa_status status = fxa_program_parse_texts(struct_ctx, from, &program, err);
    return status;
}

static void fill_problem(void *to) { *(fxa_problem *)to = struct_problem(); }
static fxa_status call_plan(const void *from, fxa_error *err) {
    t_plan *plan = NULL;
    fxa_status status = fxa_plan_create(struct_ctx, from, &plan, err);
    return status;
}
static fxa_status call_support(const void *from, fxa_error *err) {
    size_t count = 0;
    return fxa_support_query(struct_ctx, from, NULL, &count, err);
}
static fxa_status call_tiles(const void *from, fxa_error *err) {
    fxa_tile_counts counts;
    return fxa_tiles_count(struct_ctx, from, 0, 0, 16, 16, NULL, NULL, &counts, err);
}
static fxa_status call_problem_program(const void *from, fxa_error *err) {
    t_program *program = NULL;
    fxa_status status = fxa_problem_program(struct_ctx, from, &program, err);
    return status;
}

static void fill_args(void *to) {
    fxa_args *a = to;
    *a = (fxa_args)FXA_ARGS_INIT;
    a->slot[FXA_SLOT_Q] = struct_q;
    a->slot[FXA_SLOT_K] = struct_k;
    a->slot[FXA_SLOT_V] = struct_v;
    a->slot[FXA_SLOT_O] = struct_o;
}
static fxa_status call_attention(const void *from, fxa_error *err) {
    fxa_problem p = struct_problem();
    return fxa_attention(struct_ctx, &p, from, err);
}

static fxa_status call_index_problem(const void *from, fxa_error *err) {
    fxa_args a;
    size_t count = 0;
    fill_args(&a);
    return fxa_bounds_check(struct_ctx, from, &a, NULL, &count, err);
}
static fxa_status call_index_args(const void *from, fxa_error *err) {
    fxa_problem p = struct_problem();
    size_t count = 0;
    return fxa_bounds_check(struct_ctx, &p, from, NULL, &count, err);
}

static void fill_merge(void *to) {
    fxa_merge_args *m = to;
    *m = (fxa_merge_args)FXA_MERGE_ARGS_INIT;
    m->b = 1, m->h = 2, m->s = 2, m->d = 2;
    m->o_a.dtype = m->o_b.dtype = m->lse_a.dtype = m->lse_b.dtype = FXA_F32;
    m->o_a_data = struct_merge_o[0], m->o_b_data = struct_merge_o[1];
    m->lse_a_data = struct_merge_lse[0], m->lse_b_data = struct_merge_lse[1];
}
static fxa_status call_merge(const void *from, fxa_error *err) { return fxa_merge(from, err); }

typedef struct struct_case {
    const char *name;
    size_t size, min; /* current size, and the smallest accepted one */
    void (*fill)(void *to);
    fxa_status (*call)(const void *from, fxa_error *err);
} struct_case;

static const struct_case struct_cases[] = {
    {"fxa_context_config", sizeof(fxa_context_config), offsetof(fxa_context_config, alloc), fill_context, call_context},
    {"fxa_parse_config", sizeof(fxa_parse_config), offsetof(fxa_parse_config, declarations), fill_parse, call_parse},
    {"fxa_problem", sizeof(fxa_problem), offsetof(fxa_problem, total_q), fill_problem, call_plan},
    {"fxa_problem", sizeof(fxa_problem), offsetof(fxa_problem, total_q), fill_problem, call_support},
    {"fxa_problem", sizeof(fxa_problem), offsetof(fxa_problem, total_q), fill_problem, call_tiles},
    {"fxa_problem", sizeof(fxa_problem), offsetof(fxa_problem, total_q), fill_problem, call_problem_program},
    {"fxa_args", sizeof(fxa_args), offsetof(fxa_args, params), fill_args, call_attention},
    {"fxa_merge_args", sizeof(fxa_merge_args), offsetof(fxa_merge_args, ctx), fill_merge, call_merge},
    {"fxa_problem", sizeof(fxa_problem), offsetof(fxa_problem, total_q), fill_problem, call_index_problem},
    {"fxa_args", sizeof(fxa_args), offsetof(fxa_args, params), fill_args, call_index_args},
};
enum { N_STRUCTS = sizeof struct_cases / sizeof *struct_cases };

/* Calls with a struct of struct_size `said` that ends, after at most `size` bytes, at an inaccessible page. */
static fxa_status struct_try(const struct_case *c, size_t size, uint32_t said, fxa_error *err) {
    _Alignas(16) unsigned char whole[4096] = {0};
    c->fill(whole);
    memcpy(whole, &said, sizeof said);
    guard g = guard_open(size);
    memcpy(g.data, whole, size);
    fxa_status status = c->call(g.data, err);
    guard_close(&g);
    return status;
}

/* ---- Older and newer --------------------------------------------------------------------------------------------- */

TEST(todays_older_and_newer_callers_work) {
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    for (int i = 0; i < N_STRUCTS; i++) {
        const struct_case *c = &struct_cases[i];
        for (size_t size = c->min; size <= c->size; size += 8) T_OK(struct_try(c, size, (uint32_t)size, &err));
        const size_t newer[] = {c->size + 8, c->size + 256, FXA_MAX_STRUCT};
        for (size_t j = 0; j < sizeof newer / sizeof *newer; j++)
            T_OK(struct_try(c, c->size, (uint32_t)newer[j], &err));
    }
    fxa_context_destroy(struct_ctx);
}

TEST(what_is_no_size_of_a_struct_is_refused) {
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    for (int i = 0; i < N_STRUCTS; i++) {
        const struct_case *c = &struct_cases[i];
        const size_t wrong[] = {0, 1, 4, c->min - 8, c->min - 1, c->size - 1, c->size - 4, c->size + 1, 60000};
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++) {
            if (wrong[j] >= c->min && wrong[j] % sizeof(void *) == 0) continue; /* 32-bit pointers */
            size_t size = wrong[j] < sizeof(uint32_t) ? sizeof(uint32_t) : wrong[j] < c->size ? wrong[j] : c->size;
            T_STATUS(struct_try(c, (size + 7) / 8 * 8, (uint32_t)wrong[j], &err), FXA_E_STRUCT);
            T_HAS(err.text, c->name);
        }
        T_STATUS(struct_try(c, c->size, FXA_MAX_STRUCT + 8, &err), FXA_E_STRUCT);
        T_STATUS(struct_try(c, c->size, UINT32_MAX, &err), FXA_E_STRUCT);
        T_HAS(err.text, "accepts at most 16384");
    }
    fxa_context_destroy(struct_ctx);
}

/* A struct that ends inside a field: no function may follow the incomplete pointer. */
TEST(half_a_pointer_is_not_followed) {
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    fxa_problem p = struct_problem();
    p.engine = "ref", p.target = "a profile";
    for (uint32_t size = offsetof(fxa_problem, total_q) + 1; size < sizeof p; size++) {
        if (size % sizeof(void *) == 0) continue;
        p.struct_size = size;
        T_STATUS(call_plan(&p, &err), FXA_E_STRUCT);
        T_STATUS(call_support(&p, &err), FXA_E_STRUCT);
        T_HAS(err.text, sizeof(void *) == 8 ? "a multiple of 8" : "a multiple of 4");
    }
    fxa_context_destroy(struct_ctx);
}

/* fxa_plan_problem writes at most the caller's struct_size, and at most the struct. */
TEST(a_problem_is_written_as_far_as_its_struct_goes) {
    t_plan *plan = NULL;
    fxa_problem p = struct_problem();
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    T_OK(fxa_plan_create(struct_ctx, &p, &plan, &err));
    const uint32_t said[] = {8, 16, offsetof(fxa_problem, total_q), sizeof p, sizeof p + 8, 60000, UINT32_MAX & ~7u, 0};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        size_t size = said[i] && said[i] < sizeof p ? said[i] : sizeof p;
        guard g = guard_open(size);
        memcpy(g.data, &said[i], sizeof said[i]);
        fxa_plan_problem(plan, (fxa_problem *)(void *)g.data);
        uint32_t now;
        memcpy(&now, g.data, sizeof now);
        T_INT(now, size);
        guard_close(&g);
    }
    fxa_context_destroy(struct_ctx);
}

/* Fields that an older caller lacks have defaults: the scale, the engine, the cache's limits. */
TEST(missing_fields_are_defaults) {
    float whole[8];
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    const struct_case *args = &struct_cases[6];
    T_OK(struct_try(args, args->size, (uint32_t)args->size, &err));
    memcpy(whole, struct_o, sizeof whole);
    memset(struct_o, 0, sizeof struct_o);
    T_OK(struct_try(args, args->min, (uint32_t)args->min, &err));
    T_CHECK(memcmp(whole, struct_o, sizeof whole) == 0);
    T_CHECK(whole[0] != 0);

    fxa_context *ctx = NULL;
    fxa_cache_stats stats;
    fxa_context_config old = FXA_CONTEXT_CONFIG_INIT;
    old.struct_size = offsetof(fxa_context_config, cache_max_plans);
    old.cache_max_plans = 7;
    T_OK(fxa_context_create(&old, &ctx, &err));
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.max_plans, 256);
    fxa_context_destroy(ctx);
    fxa_context_destroy(struct_ctx);
}

/* The engine of a struct that ends with this field is chosen; one that ends in front of it names none. */
TEST(the_engine_is_a_field_of_the_struct) {
    const size_t at = offsetof(fxa_problem, engine);
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    for (int has = 0; has < 2; has++) {
        t_plan *plan = NULL;
        fxa_problem p = struct_problem();
        p.engine = "ref";
        p.struct_size = (uint32_t)(at + (has ? sizeof p.engine : 0));
        T_OK(fxa_plan_create(struct_ctx, &p, &plan, &err));
        T_STR(fxa_plan_engine(plan), has ? "ref" : "cpu");
    }
    fxa_context_destroy(struct_ctx);
}

/* A plan also runs with an older caller's arguments. */
TEST(a_plan_runs_with_older_args) {
    T_OK(fxa_context_create(NULL, &struct_ctx, &err));
    fxa_problem p = struct_problem();
    t_plan *plan = NULL;
    p.flags = FXA_RETURN_LSE;
    T_OK(fxa_plan_create(struct_ctx, &p, &plan, &err));
    fxa_args args = FXA_ARGS_INIT;
    fill_args(&args);
    args.slot[FXA_SLOT_LSE] = struct_lse;
    T_OK(tiny_run(plan, &args, &err));
    args.struct_size = offsetof(fxa_args, stream);
    T_OK(tiny_run(plan, &args, &err));
    args.struct_size = offsetof(fxa_args, scale);
    T_STATUS(tiny_run(plan, &args, &err), FXA_E_STRUCT);
    fxa_context_destroy(struct_ctx);
}

/* Sizes of public structs are part of the ABI. */
TEST(sizes_are_pinned) {
    T_INT(sizeof(fxa_error), 512);
    T_INT(sizeof(fxa_support) + sizeof(fxa_support) % 8, 304); /* on 32-bit x86 the size is a multiple of 4 only */
    T_INT(sizeof(fxa_cache_stats), 128);
    T_INT(sizeof(fxa_operand), 40);
    T_INT(FXA_SLOT_MAX, 64);
}

T_MAIN
