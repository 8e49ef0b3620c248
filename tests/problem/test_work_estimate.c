/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimated work of a pass (src/problem/work_estimate.h), compared with pairs counted one by one.
 */
#include "problem/work_estimate.h"
#include "support/fixtures/own_context.h"

static double work_of(const fxa_problem *p) {
    fxa__problem *made = NULL;
    fxa_error err;
    T_OK(fxa__problem_create(fxa__context_host(ctx), p, &made, &err));
    double x = made ? fxa__problem_operations(made) : -1;
    if (made) fxa__problem_release(made);
    return x;
}

TEST(bands_are_left_out) {
    static const struct {
        uint32_t flags;
        int64_t sq, sk, left, right;
    } cases[] = {{0, 300, 500, -1, -1},
                 {FXA_CAUSAL, 300, 300, -1, -1},
                 {FXA_CAUSAL, 200, 500, -1, -1},
                 {FXA_CAUSAL, 500, 200, -1, -1},
                 {FXA_CAUSAL | FXA_BOTTOM_RIGHT, 200, 500, -1, -1},
                 {FXA_WINDOW, 400, 400, 50, 20},
                 {FXA_WINDOW, 400, 300, 100, -1},
                 {FXA_CAUSAL | FXA_WINDOW, 400, 400, 63, 63}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        int64_t count = 0, left = cases[i].left, right = cases[i].right;
        p.b = 2, p.hq = 3, p.sq = cases[i].sq, p.sk = cases[i].sk, p.d_qk = 16, p.d_v = 24, p.flags = cases[i].flags;
        p.window_left = left, p.window_right = right;
        for (int64_t q = 0; q < p.sq; q++)
            for (int64_t k = 0; k < p.sk; k++) {
                int64_t at = q + (p.flags & FXA_BOTTOM_RIGHT ? p.sk - p.sq : 0);
                bool causal = !(p.flags & FXA_CAUSAL) || k <= at;
                bool window =
                    !(p.flags & FXA_WINDOW) || ((left < 0 || at - k <= left) && (right < 0 || k - at <= right));
                count += causal && window;
            }
        T_NEAR(work_of(&p), 2.0 * (16 + 24) * 6 * (double)count, 0.02 * 2 * 40 * 6 * (double)count);
        p.pass = FXA_BACKWARD, p.flags |= FXA_GRAD_Q;
        T_NEAR(work_of(&p), 2.0 * (3 * 16 + 2 * 24) * 6 * (double)count, 0.02 * 2 * 96 * 6 * (double)count);
    }
}

/* Masks of the program; rows shifted by flags, start positions or a map. */
TEST(bands_of_programs_whose_rows_are_elsewhere) {
    static const struct {
        uint32_t flags;
        int64_t sq, sk, base, shift;
        const char *text;
    } cases[] = {{FXA_BOTTOM_RIGHT, 200, 500, 0, 300, "mask = k <= q"},
                 {FXA_Q_START, 200, 500, 0, 300, "mask = k <= q"},
                 {FXA_Q_START, 1, 500, 0, 499, "mask = k <= q"},
                 {FXA_BOTTOM_RIGHT, 200, 500, 0, 300, "mask = k <= q && q - k < 64"},
                 {FXA_Q_START, 2, 500, 0, 498, "mask = k <= q && q - k < 64"},
                 {FXA_BOTTOM_RIGHT, 500, 200, 0, -300, "mask = k <= q"},
                 {0, 100, 500, 150, 150, "mask = k <= q && q - k < 200"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        t_program *program = NULL;
        int64_t count = 0, left = strstr(cases[i].text, "64") ? 64 : strstr(cases[i].text, "200") ? 200 : 1000;
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        p.program = program, p.flags = cases[i].flags, p.map_q.base = cases[i].base;
        p.b = 1, p.hq = 1, p.sq = cases[i].sq, p.sk = cases[i].sk, p.d_qk = 16, p.d_v = 16;
        for (int64_t q = cases[i].shift; q < cases[i].shift + p.sq; q++)
            for (int64_t k = 0; k < p.sk; k++) count += k <= q && q - k < left;
        T_NEAR(work_of(&p), 2.0 * 32 * (double)count, 0.02 * 2 * 32 * (double)count + 2 * 32);
    }
}

TEST(packed_sequences_share_their_rows) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = 4, p.hq = 2, p.sq = p.sk = 1000, p.d_qk = 8, p.flags = FXA_VARLEN, p.total_q = 400, p.total_k = 800;
    T_NEAR(work_of(&p), 2.0 * 16 * 4 * 2 * 100 * 200, 1);
}

/* A backward pass may have a single result: a gradient of the three inputs, or one that is a sum over all pairs. */
TEST(entries_of_each_single_result) {
    static const uint32_t flags[] = {FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V, 0, 0};
    static const char text[] = "param a : float\ntensor t : f32[1]\nscore = score * a + t[h]";
    t_program *program = NULL;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        fxa__problem *made = NULL;
        fxa_capture capture = {.size = {2}};
        p.b = 3, p.hq = p.hkv = 2, p.sq = p.sk = 5, p.d_qk = p.d_v = 4, p.pass = FXA_BACKWARD, p.program = program;
        p.captures = &capture, p.n_captures = 1;
        p.flags = flags[i], p.param_grads = i == 3, capture.grad = i == 4;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &made, &err));
        T_REQUIRE(made != NULL);
        T_INT(fxa__entries_with_work(made), 3);
        fxa__problem_release(made);
    }
}

T_MAIN
