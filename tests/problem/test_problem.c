/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems: defaults, layouts, captures, maps, struct sizes, zero sizes. Refusals are in test_problem_refused.c.
 */
#include "problem_case.h"
#include "support/memory/fail_alloc.h"

static fxa__problem *problem_make(const fxa_problem *p) {
    fxa_error err;
    fxa__problem *made = NULL;
    T_OK(fxa__problem_create(case_host(), p, &made, &err));
    return made;
}

static void check_strides(const fxa_operand *t, int64_t b, int64_t h, int64_t s, int64_t d) {
    T_INT(t->layout, FXA_LAYOUT_STRIDED);
    T_INT(t->stride[0], b);
    T_INT(t->stride[1], h);
    T_INT(t->stride[2], s);
    T_INT(t->stride[3], d);
}

TEST(defaults) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = 2, p.hq = 4, p.sq = 5, p.sk = 6, p.d_qk = 8;
    p.engine = "ref";
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    T_INT(made->in.hkv, 4);
    T_INT(made->in.d_v, 8);
    T_INT(made->in.q.dtype, FXA_F32);
    T_INT(made->in.o.dtype, FXA_F32);
    T_INT(made->in.lse.dtype, FXA_F32);
    T_INT(made->in.struct_size, sizeof(fxa_problem));
    T_INT(made->in.map_q.step, 1);
    T_INT(made->in.map_b.base, 0);
    T_CHECK(made->in.engine == NULL && made->in.program == NULL && !made->f64);
    T_REQUIRE(made->program != NULL);
    T_INT(fxa_program_get_kind(made->program), FXA_PROGRAM_SCORE);
    check_strides(&made->in.q, 160, 40, 8, 1);
    check_strides(&made->in.k, 192, 48, 8, 1);
    check_strides(&made->in.o, 160, 40, 8, 1);
    check_strides(&made->in.dq, 0, 0, 0, 0);
}

TEST(dtypes_follow_q) {
    fxa_problem p = case_backward();
    p.flags |= FXA_SINKS | FXA_GRAD_SINKS | FXA_READ_DLSE;
    p.q.dtype = FXA_F64;
    p.dk.dtype = FXA_BF16;
    p.sinks.dtype = FXA_F16;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    T_CHECK(made->f64);
    T_INT(made->in.v.dtype, FXA_F64);
    T_INT(made->in.dout.dtype, FXA_F64);
    T_INT(made->in.dq.dtype, FXA_F64);
    T_INT(made->in.dk.dtype, FXA_BF16);
    T_INT(made->in.lse.dtype, FXA_F64);
    T_INT(made->in.dlse.dtype, FXA_F64);
    T_INT(made->in.sinks.dtype, FXA_F16);
    T_INT(made->in.dsinks.dtype, FXA_F64);
}

/* each tensor has its own layout. */
TEST(layouts) {
    fxa_problem p = case_forward();
    p.flags = FXA_RETURN_LSE | FXA_RETURN_ROW_MAX | FXA_SINKS;
    p.q.layout = FXA_LAYOUT_BSHD;
    p.k.layout = FXA_LAYOUT_SBHD;
    p.o = (fxa_operand){0, FXA_LAYOUT_STRIDED, {-60, 15, 3, -1}};
    p.lse.layout = FXA_LAYOUT_BSHD;
    p.row_max.layout = FXA_LAYOUT_SBHD;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    check_strides(&made->in.q, 160, 8, 32, 1);
    check_strides(&made->in.k, 16, 8, 32, 1);
    check_strides(&made->in.v, 36, 18, 3, 1);
    check_strides(&made->in.o, -60, 15, 3, -1);
    check_strides(&made->in.lse, 20, 1, 4, 0);
    check_strides(&made->in.row_max, 4, 1, 8, 0);
    check_strides(&made->in.sinks, 0, 1, 0, 0);
}

TEST(packed_and_paged_layouts) {
    fxa_problem p = case_forward();
    p.flags = FXA_VARLEN | FXA_RETURN_LSE;
    p.total_q = 9, p.total_k = 11;
    p.k.layout = FXA_LAYOUT_BSHD;
    p.v.layout = FXA_LAYOUT_SBHD;
    p.o = (fxa_operand){0, FXA_LAYOUT_STRIDED, {77, 3, 12, 1}};
    fxa__problem *made = problem_make(&p);
    T_REQUIRE(made);
    check_strides(&made->in.q, 0, 72, 8, 1);
    check_strides(&made->in.k, 0, 8, 16, 1);
    check_strides(&made->in.v, 0, 3, 6, 1);
    check_strides(&made->in.o, 0, 3, 12, 1);
    check_strides(&made->in.lse, 0, 9, 1, 0);
    fxa__problem_release(made);

    p = case_backward();
    p.flags |= FXA_PAGED;
    p.page_size = 4, p.n_pages = 7;
    p.v.layout = FXA_LAYOUT_BSHD;
    made = problem_make(&p);
    T_REQUIRE(made);
    check_strides(&made->in.q, 160, 40, 8, 1);
    check_strides(&made->in.k, 64, 32, 8, 1);
    check_strides(&made->in.v, 24, 3, 6, 1);
    check_strides(&made->in.dv, 24, 12, 3, 1);
    fxa__problem_release(made);
}

TEST(captures_are_resolved_copies) {
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, true);
    captures[0].grad = 7;
    captures[0].grad_dtype = FXA_F64;
    captures[1].strided = 1, captures[1].stride[0] = -2, captures[1].stride[3] = 99;
    p.bprop = case_bprop();
    fxa_capture extra = {{5}, {0}, {0}, 0, 0, 0, 0, {0}};
    p.bprop_captures = &extra, p.n_bprop_captures = 1;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    memset(captures, 0xff, sizeof captures);
    const fxa_capture *c = made->in.captures;
    T_INT(c[0].stride[0], 5);
    T_INT(c[0].stride[1], 1);
    T_INT(c[0].grad, 1);
    T_INT(c[0].grad_stride[0], 5);
    T_INT(c[0].grad_dtype, FXA_F64);
    T_INT(c[1].stride[0], -2);
    T_INT(c[1].stride[3], 0);
    T_INT(c[1].grad_dtype, 0);
    T_INT(c[2].strided, 1);
    T_INT(made->in.bprop_captures[0].stride[0], 1);
    T_CHECK(made->in.program == case_score() && made->in.bprop == case_bprop());
}

TEST(captures_of_full_rank) {
    t_program *program = case_parse(FXA_PROGRAM_SCORE, "tensor t : f32[5]\nscore = score + t[b, h, q, k, 0]");
    fxa_capture c = {{2, 3, 4, 5, 6}, {0}, {0}, 0, 1, 0, 0, {0}};
    fxa_problem p = case_backward();
    p.program = program, p.captures = &c, p.n_captures = 1;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    const int64_t dense[5] = {360, 120, 30, 6, 1};
    for (int i = 0; i < 5; i++) {
        T_INT(made->in.captures[0].stride[i], dense[i]);
        T_INT(made->in.captures[0].grad_stride[i], dense[i]);
    }
    T_INT(made->in.captures[0].grad, 1);
}

/* Returns a value near an end of the 32-bit range, or near 0. */
static int64_t end_random(t_rng *rng) {
    static const int64_t ends[] = {0, INT32_MAX, INT32_MIN, 1 << 30, -(1 << 30)};
    return ends[t_int(rng, 0, 4)] + t_int(rng, -6, 6);
}

/* Returns a side of a window: -1, 0, or at most `hi`. */
static int64_t side_random(t_rng *rng, int64_t hi) {
    int64_t kind = t_int(rng, -1, 1);
    return kind * (kind > 0 ? t_int(rng, 0, hi) : 1);
}

/* Evaluates the built-in masks in arithmetic that does not wrap. */
static bool end_keeps(const fxa_problem *p, int64_t q, int64_t k) {
    if (p->flags & FXA_BOTTOM_RIGHT)
        q += (p->global_k_len ? p->global_k_len : p->sk) - (p->global_q_len ? p->global_q_len : p->sq);
    if ((p->flags & FXA_CAUSAL) && k > q) return false;
    if (!(p->flags & FXA_WINDOW)) return true;
    bool left = p->window_left < 0 || p->window_left >= INT32_MAX || q - k <= p->window_left;
    return left && (p->window_right < 0 || p->window_right >= INT32_MAX || k - q <= p->window_right);
}

/* Built-in masks at the ends of the coordinate range: a valid problem has no mask that wraps. */
TEST(ready_masks_do_not_wrap) {
    t_rng rng = {t_seed()};
    int taken = 0, refused = 0;
    for (int n = t_scaled(20000); n > 0; n--) {
        fxa_problem p = case_forward();
        t_problem *made = NULL;
        p.flags = (uint32_t)t_int(&rng, 1, 3) | (t_int(&rng, 0, 1) ? (uint32_t)FXA_BOTTOM_RIGHT : 0);
        p.window_left = side_random(&rng, INT32_MAX);
        p.window_right = t_int(&rng, 0, 9) ? side_random(&rng, 9) : INT32_MAX;
        p.map_q.base = end_random(&rng), p.map_k.base = end_random(&rng);
        p.map_q.step = t_int(&rng, -1, 2);
        if (t_int(&rng, 0, 1)) p.global_q_len = t_int(&rng, 0, 1) ? t_int(&rng, 1, 9) : INT32_MAX - t_int(&rng, 0, 9);
        if (t_int(&rng, 0, 1)) p.global_k_len = t_int(&rng, 0, 1) ? t_int(&rng, 1, 9) : INT32_MAX - t_int(&rng, 0, 9);
        fxa_status status = fxa__problem_create(case_host(), &p, &made, &err);
        T_CHECK(status == FXA_OK || (status == FXA_E_PROBLEM && strstr(err.text, "32 bit")));
        refused += status != FXA_OK && strstr(err.text, "FXA_") != NULL;
        taken += status == FXA_OK;
        if (!made) continue;
        double in[FXA_INPUT_COUNT] = {0}, value;
        in[FXA_INPUT_Q_LEN] = (double)(p.global_q_len ? p.global_q_len : p.sq);
        in[FXA_INPUT_K_LEN] = (double)(p.global_k_len ? p.global_k_len : p.sk);
        in[FXA_INPUT_HEADS] = (double)p.hq;
        for (int64_t i = 0; i < p.sq * p.sk; i++) {
            int64_t q = made->in.map_q.base + made->in.map_q.step * (i / p.sk), k = made->in.map_k.base + i % p.sk;
            int kept = -1;
            in[FXA_INPUT_Q] = (double)q, in[FXA_INPUT_K] = (double)k;
            T_OK(fxa_program_eval(made->program, in, NULL, NULL, &value, &kept, &err));
            T_INT(kept, end_keeps(&p, q, k));
        }
    }
    T_CHECK(taken > t_scaled(2000) && refused > t_scaled(1000));
}

/* Sequences with their own lengths are valid up to the maximum length. */
TEST(longest_sequences_are_aligned) {
    static const uint32_t flags[] = {0, FXA_PADDING, FXA_VARLEN};
    for (size_t i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            fxa_problem p = case_forward();
            p.b = 0, p.flags = FXA_BOTTOM_RIGHT | FXA_CAUSAL | FXA_WINDOW | flags[i];
            p.window_left = 7, p.window_right = 3;
            p.sq = j & 1 ? INT32_MAX : 1, p.sk = j & 2 ? INT32_MAX : 1;
            t_problem *made = problem_make(&p);
            T_CHECK(made != NULL);
        }
}

TEST(expanded_and_reversed_inputs) {
    fxa_problem p = case_backward();
    p.dout = (fxa_operand){0, FXA_LAYOUT_STRIDED, {0, 0, 0, 0}}; /* */
    p.k = (fxa_operand){0, FXA_LAYOUT_STRIDED, {0, -48, -8, -1}};
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    check_strides(&made->in.dout, 0, 0, 0, 0);
}

/* The last coordinate of a map may be INT32_MAX. */
TEST(maps_reach_the_border) {
    fxa_problem p = case_forward();
    p.map_q.base = INT32_MAX - 4;
    p.map_k.base = INT32_MIN + 5, p.map_k.step = -1;
    p.map_h.kind = FXA_MAP_SEGMENTS, p.map_h.n_segments = 2, p.map_h.segment[1].begin = 1000;
    p.map_h.segment[1].base = INT64_MAX; /* starts past the last head: maps nothing */
    p.map_h.segment[15].base = 3;        /* past n_segments: not read */
    p.map_b.kind = FXA_MAP_SEGMENTS, p.map_b.n_segments = 3;
    p.map_b.segment[0].base = INT32_MAX; /* maps a single index */
    p.map_b.segment[1].begin = 1;
    p.map_b.segment[2].begin = 2;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made);
    T_INT(made->in.map_h.segment[0].step, 1);
    T_INT(made->in.map_h.segment[15].base, 0);
}

/* a caller compiled against an older header, and one against a newer one. */
TEST(older_and_newer_callers) {
    struct {
        fxa_problem p;
        unsigned char more[64];
    } newer;
    fxa_problem p = case_forward();
    fxa__problem *made, *want = problem_make(&p);
    T_REQUIRE(want);

    memset(&newer, 0, sizeof newer);
    newer.p = p;
    newer.p.struct_size = sizeof newer;
    T_OK(fxa__problem_create(case_host(), &newer.p, &made, &err));
    T_CHECK(made && memcmp(made->key, want->key, 16) == 0);
    fxa__problem_release(made);
    newer.more[63] = 1; /* unknown trailing field: ignored; a flag would mark one that must not be */
    T_OK(fxa__problem_create(case_host(), &newer.p, &made, &err));
    T_CHECK(made && memcmp(made->key, want->key, 16) == 0);
    fxa__problem_release(made);
    newer.p.flags |= 1u << 31;
    T_STATUS(fxa__problem_create(case_host(), &newer.p, &made, &err), FXA_E_PROBLEM);
    T_CHECK(made == NULL);

    /* Bytes after an older struct are not read: here they would be refused. */
    fxa_problem older;
    size_t small = offsetof(fxa_problem, total_q);
    memset(&older, 0xee, sizeof older);
    memcpy(&older, &p, small);
    older.struct_size = (uint32_t)small;
    T_OK(fxa__problem_create(case_host(), &older, &made, &err));
    T_CHECK(made && memcmp(made->key, want->key, 16) == 0);
    fxa__problem_release(made);
    older.struct_size = (uint32_t)small - 1;
    T_STATUS(fxa__problem_create(case_host(), &older, &made, &err), FXA_E_STRUCT);
    older.struct_size = 0;
    T_STATUS(fxa__problem_create(case_host(), &older, &made, &err), FXA_E_STRUCT);
    T_STATUS(fxa__problem_create(case_host(), NULL, &made, &err), FXA_E_ARGUMENT);
    fxa__problem_release(want);
}

/* a problem without work is valid. */
TEST(zero_sizes) {
    for (int i = 0; i < 8; i++) {
        fxa_problem p = i & 1 ? case_backward() : case_forward();
        if (i / 2 == 0) p.b = 0;
        if (i / 2 == 1) p.sq = 0;
        if (i / 2 == 2) p.sk = 0;
        if (i / 2 == 3) p.b = p.sq = p.sk = 0, p.flags |= FXA_PAGED, p.page_size = 16;
        t_problem *made = problem_make(&p);
        T_CHECK(made != NULL);
    }
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, true);
    captures[0].size[0] = 0;
    captures[0].grad = 1;
    fxa__problem *made = problem_make(&p);
    T_REQUIRE(made);
    T_INT(made->in.captures[0].stride[0], 5);
    fxa__problem_release(made);
}

/* Fields that a problem does not use are ignored and cleared. */
TEST(unused_fields_are_cleared) {
    fxa_problem p = case_forward();
    t_problem *want = problem_make(&p);
    p.dq.dtype = 99, p.dlse.layout = 99, p.lse.dtype = FXA_BF16;
    p.total_q = -5, p.n_pages = -5, p.page_size = 3, p.window_left = 7, p.dropout_p = -0.0;
    p.map_q.n_segments = 99, p.map_q.segment[3].base = 5;
    t_problem *made = problem_make(&p);
    T_REQUIRE(made && want);
    T_CHECK(memcmp(made->key, want->key, 16) == 0);
    T_INT(made->in.lse.dtype, FXA_F32);
}

TEST(backward_implies_lse) {
    fxa_problem p = case_backward();
    t_problem *without = problem_make(&p);
    p.flags |= FXA_RETURN_LSE;
    t_problem *with = problem_make(&p);
    T_REQUIRE(with && without);
    T_CHECK(memcmp(with->key, without->key, 16) == 0);
}

/* a problem owns its copy of a program. */
TEST(programs_are_owned) {
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, true);
    fxa_program *mine = case_parse(FXA_PROGRAM_SCORE, CASE_TEXT);
    p.program = mine;
    fxa__problem *made = problem_make(&p);
    T_REQUIRE(made);
    fxa_program_destroy(mine);
    T_INT(fxa_program_tensor_count(made->in.program), 3);
    T_INT(fxa_program_tensor_count(made->program), 3);
    T_INT(fxa_program_param_count(made->program), 2);
    T_CHECK(fxa__problem_retain(made) == made);
    fxa__problem_release(made);
    fxa__problem_release(made);
    T_CHECK(fxa__problem_retain(NULL) == NULL);
    fxa__problem_release(NULL);
}

CONTEXT_TEST(ready_masks_join_the_program) {
    fxa_problem p = case_forward();
    p.flags = FXA_CAUSAL;
    fxa_program *out = NULL, *want = case_parse(FXA_PROGRAM_SCORE, "mask = k <= q");
    T_OK(fxa_problem_program(ctx, &p, &out, &err));
    uint8_t got_hash[16] = {0}, want_hash[16] = {1};
    T_REQUIRE(out && want);
    fxa_program_hash(out, got_hash);
    fxa_program_hash(want, want_hash);
    T_CHECK(memcmp(got_hash, want_hash, 16) == 0);
    fxa_program_destroy(out);
    fxa_program_destroy(want);
    p.d_qk = FXA_MAX_D + 1;
    T_STATUS(fxa_problem_program(ctx, &p, &out, &err), FXA_E_PROBLEM);
    T_CHECK(out == NULL);
    T_STATUS(fxa_problem_program(NULL, &p, &out, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_problem_program(ctx, &p, NULL, &err), FXA_E_ARGUMENT);
}

/* Fails every allocation in turn: each gives an error and leaks nothing. */
TEST(out_of_memory_everywhere) {
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, true);
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa__host *host = NULL;
    bool done = false;
    captures[0].grad = 1;
    p.flags |= FXA_CAUSAL;
    T_OK(fxa__host_create(fail_alloc_fn, &f, &host, &err));
    T_REQUIRE(host);
    size_t before = f.live_bytes;
    for (size_t k = 1; !done && k < 10000; k++) {
        fxa__problem *made;
        fail_alloc_arm(&f, k, false);
        memset(&err, 0, sizeof err);
        fxa_status status = fxa__problem_create(host, &p, &made, &err);
        done = status == FXA_OK;
        if (done)
            T_CHECK(k > 4 && made->program);
        else
            T_CHECK(status == FXA_E_MEMORY && made == NULL && err.text[0]);
        fxa__problem_release(made);
        if (f.live_bytes != before) T_FAIL("allocation %zu: %zu bytes left\n", k, f.live_bytes - before);
    }
    T_CHECK(done);
    fxa__host_release(host);
    T_INT(f.live_bytes, 0);
    T_INT(f.mistakes, 0);
}

/* slots are named constants, defined once. */
TEST(slot_names) {
    T_STR(fxa_slot_name(FXA_SLOT_Q), "Q");
    T_STR(fxa_slot_name(FXA_SLOT_ROW_MAX), "ROW_MAX");
    T_STR(fxa_slot_name(FXA_SLOT_DSINKS), "DSINKS");
    T_STR(fxa_slot_name(FXA_SLOT_PAGES), "PAGES");
    T_STR(fxa_slot_name(FXA_SLOT_OFFSET_K), "OFFSET_K");
    T_CHECK(fxa_slot_name(FXA_SLOT_COUNT) == NULL && fxa_slot_name((fxa_slot)-1) == NULL);
}

T_MAIN
