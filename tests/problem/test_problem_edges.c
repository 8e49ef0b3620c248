/* SPDX-License-Identifier: Apache-2.0
 *
 * Extreme inputs of problems, regions and merges: addresses and extents beyond 64 bits, a single gradient, slots
 * without a length, rows without attended keys.
 */
#include "problem_case.h"

#include "problem/problem_private.h"

#include <math.h>

TEST(regions_that_leave_64_bits) {
    static char here[16];
    const int64_t far = INT64_C(1000000000000000000);
    fxa__region plain = {.data = here, .element = 1, .rank = 1, .size = {4}, .stride = {1}}, r = plain;
    int64_t first, end, lo, hi;
    T_CHECK(fxa__region_addresses(&plain, &first, &end) && end - first == 4);
    r.size[0] = 2, r.stride[0] = INT64_MAX; /* the end, one past the last element, exceeds 63 bits */
    T_CHECK(!fxa__region_extent(&r, &lo, &hi));
    T_INT(fxa__region_overlap(&r, &plain), FXA__OVERLAP_UNKNOWN);
    T_INT(fxa__region_overlap(&plain, &r), FXA__OVERLAP_UNKNOWN);
    r.size[0] = 10, r.stride[0] = far; /* an extent of 9e18 bytes, from 2e18 on */
    T_CHECK(fxa__region_extent(&r, &lo, &hi) && hi == 9 * far + 1);
    if (sizeof(void *) < sizeof far) return; /* addresses below are of 64 bits */
    r.data = (void *)(uintptr_t)(2 * far);
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r.data = (void *)(uintptr_t)(UINT64_C(3) << 62);
    r.size[0] = 1;
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    T_INT(fxa__region_overlap(&plain, &r), FXA__OVERLAP_UNKNOWN);
}

TEST(every_flag_has_a_name_of_its_own) {
    T_STR(fxa_flag_name(FXA_BOTTOM_RIGHT), "bottom-right");
    T_STR(fxa_flag_name(FXA_SCALARS_IN_MEMORY), "scalars-in-memory");
    for (int i = 0; i < 32; i++) {
        const char *name = fxa_flag_name((uint32_t)1 << i);
        T_CHECK((name != NULL) == (i < FXA_FLAG_COUNT));
        for (int j = 0; name && j < i; j++) T_CHECK(strcmp(name, fxa_flag_name((uint32_t)1 << j)) != 0);
    }
    T_CHECK(!fxa_flag_name(0) && !fxa_flag_name(FXA_CAUSAL | FXA_WINDOW));
}

TEST(slots_without_a_length) {
    fxa_problem p = case_forward();
    T_INT(fxa__slot_length(&p, FXA_SLOT_Q), -1);
    T_INT(fxa__slot_length(&p, FXA_SLOT_DSINKS), -1);
    T_INT(fxa__slot_length(&p, FXA_SLOT_COUNT), -1);
    T_INT(fxa__slot_length(&p, FXA_SLOT_OFFSET_K), -1);
    p.map_k.has_offset = 1;
    T_INT(fxa__slot_length(&p, FXA_SLOT_OFFSET_K), 1);
}

/* Backward for one gradient only. */
TEST(one_gradient_is_enough) {
    for (int kind = 0; kind < 4; kind++) {
        fxa_capture captures[3];
        t_problem *made = NULL;
        fxa_problem p = case_captured(captures, true);
        p.flags = kind == 0 ? FXA_GRAD_K : 0;
        if (kind == 1) captures[0].grad = 1;
        if (kind == 2) p.param_grads = 1;
        fxa_status status = fxa__problem_create(case_host(), &p, &made, &err);
        T_INT(status, kind < 3 ? FXA_OK : FXA_E_PROBLEM);
    }
}

/* A window that is open on one side bounds only the other side. */
TEST(windows_of_one_side) {
    static const int64_t sides[][2] = {{-1, 3}, {3, -1}, {-1, INT32_MAX}, {INT32_MAX, -1}, {-1, -1}, {3, INT32_MAX}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        t_problem *made = NULL;
        fxa_problem p = case_forward();
        p.flags = FXA_WINDOW, p.window_left = sides[i][0], p.window_right = sides[i][1];
        T_OK(fxa__problem_create(case_host(), &p, &made, &err));
    }
}

/* Runs one row and one key of head dim `d`, with `stride` along every axis of one element and of empty tensors. */
static void edges_run_strides(fxa_context *ctx, int64_t d, int64_t stride) {
    float q[2] = {1, 2}, k[2] = {3, 4}, v[2] = {5, 6}, o[2] = {0}, bias = 2;
    const void *tensors[1] = {&bias};
    fxa_capture capture = {.size = {1, 1}, .stride = {stride, stride}, .strided = 1};
    fxa_operand free_strides = {.layout = FXA_LAYOUT_STRIDED, .stride = {stride, stride, stride, d ? 1 : stride}};
    fxa_program *program = NULL;
    fxa_plan *plan = NULL;
    fxa_error err;
    fxa_args args = FXA_ARGS_INIT;
    fxa_problem p = FXA_PROBLEM_INIT, made = FXA_PROBLEM_INIT;
    T_OK(fxa_program_parse(ctx, "tensor bias : f32[2]\nscore = score + bias[q, 2 * k]", SIZE_MAX, &program, &err));
    p.b = p.hq = p.sq = p.sk = 1, p.d_qk = d, p.d_v = 2;
    p.program = program, p.captures = &capture, p.n_captures = 1;
    p.q = p.k = free_strides;
    p.v = p.o = (fxa_operand){.layout = FXA_LAYOUT_STRIDED, .stride = {stride, stride, stride, 1}};
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k, args.slot[FXA_SLOT_V] = v, args.slot[FXA_SLOT_O] = o;
    args.tensors = tensors, args.n_tensors = 1;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    T_CHECK(o[0] == 5 && o[1] == 6);
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    fxa_plan_problem(plan, &made);
    for (int i = 0; i < 3; i++) T_CHECK(made.q.stride[i] == 0 && made.o.stride[i] == 0);
    T_CHECK(made.captures[0].stride[0] == 0 && made.captures[0].stride[1] == 0);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
}

CONTEXT_TEST(strides_without_addresses_are_free) {
    static const int64_t strides[] = {INT64_MIN, -(INT64_MAX / 4), INT64_MAX / 2 + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        for (int64_t d = 0; d <= 2; d += 2) edges_run_strides(ctx, d, strides[i]);
    (void)err;
}

/* No attended keys on both sides, on one, on the other. */
TEST(rows_without_pairs_are_merged) {
    float o[2][6] = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}},
          lse[2][3] = {{-INFINITY, 0, -INFINITY}, {-INFINITY, -INFINITY, 0}};
    fxa_merge_args m = FXA_MERGE_ARGS_INIT;
    for (int i = 0; i < 2; i++) o[i][0] = o[i][1] = 0; /* contents of O after a run */
    m.b = m.h = 1, m.s = 3, m.d = 2;
    m.o_a.dtype = m.o_b.dtype = m.lse_a.dtype = m.lse_b.dtype = FXA_F32;
    m.o_a_data = o[0], m.o_b_data = o[1], m.lse_a_data = lse[0], m.lse_b_data = lse[1];
    T_OK(fxa_merge(&m, &err));
    T_CHECK(o[0][0] == 0 && o[0][1] == 0 && lse[0][0] == -INFINITY);
    T_CHECK(o[0][2] == 3 && o[0][3] == 4 && lse[0][1] == 0);
    T_CHECK(o[0][4] == 11 && o[0][5] == 12 && lse[0][2] == 0);
}

/* Device fields at their limits, on the host and on a device. */
TEST(devices_at_their_ends) {
    static char target[65538];
    fxa_merge_args m = FXA_MERGE_ARGS_INIT;
    m.device = FXA_CUDA;
    T_STATUS(fxa_merge(&m, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "fxa_merge_args.ctx is NULL: on device cuda its engines merge");
    memset(target, 'x', sizeof target - 1);
    for (int more = 0; more < 2; more++) {
        t_problem *made = NULL;
        fxa_problem p = case_forward();
        p.device = FXA_CUDA, p.target = target + 1 - more;
        fxa_status status = fxa__problem_create(case_host(), &p, &made, &err);
        T_INT(status, more ? FXA_E_PROBLEM : FXA_OK);
        if (more) T_HAS(err.text, "target has 65537 characters: accepted are 65536 at most");
    }
}

T_MAIN
