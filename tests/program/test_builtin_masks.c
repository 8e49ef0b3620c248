/* SPDX-License-Identifier: Apache-2.0
 *
 * Built-in masks, appended to a program: their meaning, their combination with other masks, and failures.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/own_context.h"

/* ---- Ready masks ------------------------------------------------------------------------------------------------- */

static bool canon_ready_expected(uint32_t flags, int64_t left, int64_t right, int q, int k, int q_len, int k_len) {
    int64_t qa = flags & FXA_BOTTOM_RIGHT ? q + k_len - q_len : q;
    if ((flags & FXA_CAUSAL) && k > qa) return false;
    if ((flags & FXA_WINDOW) && left >= 0 && qa - k > left) return false;
    return !((flags & FXA_WINDOW) && right >= 0 && k - qa > right);
}

TEST(ready_masks) {
    const int64_t bounds[] = {-1, 0, 2, INT32_MAX - 1, INT32_MAX, INT64_MAX, INT64_MIN};
    const int n_bounds = sizeof bounds / sizeof bounds[0];
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q);
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_NE, q, fxa_builder_int(b, 3)));
    t_program *own = own_finish(b);
    for (uint32_t flags = 0; flags < 8; flags++)
        for (int c = 0; c < 2 * n_bounds * n_bounds; c++) {
            int64_t left = bounds[c % n_bounds], right = bounds[c / n_bounds % n_bounds];
            fxa_program *base = c / n_bounds / n_bounds ? own : NULL, *p = NULL;
            T_OK(fxa__program_with_masks(fxa__context_host(ctx), base, flags, left, right, &p, &err));
            T_REQUIRE(p);
            for (int at = 0; at < 36; at++) {
                double in[FXA_INPUT_COUNT] = {0, 0, 0, at / 6, at % 6, 6, 4, 0};
                int mask = -1;
                T_OK(fxa_program_eval(p, in, NULL, NULL, NULL, &mask, &err));
                bool want = canon_ready_expected(flags, left, right, at / 6, at % 6, 6, 4) && !(base && at / 6 == 3);
                T_INT(mask, want);
            }
            fxa_program_destroy(p);
        }
}

TEST(ready_masks_compose) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_GE, q, k));
    fxa_program *causal = own_finish(b), *made = NULL, *twice = NULL, *wrong = NULL;
    fxa__host *host = fxa__context_host(ctx);
    T_OK(fxa__program_with_masks(host, NULL, FXA_CAUSAL, 0, 0, &made, &err));
    T_CHECK(own_equal(causal, made)); /* a flag is the same program as the text */
    T_OK(fxa__program_with_masks(host, causal, FXA_CAUSAL, 0, 0, &twice, &err));
    T_CHECK(own_equal(causal, twice));
    fxa_program *identity = own_finish(own_builder(FXA_PROGRAM_SCORE)), *open = NULL;
    T_OK(fxa__program_with_masks(host, NULL, FXA_WINDOW, INT32_MAX, -1, &open, &err));
    T_CHECK(own_equal(identity, open)); /* a bound that no difference reaches is none */
    fxa_program_destroy(identity);
    fxa_program_destroy(open);
    b = own_builder(FXA_PROGRAM_BPROP);
    t_program *bprop = own_finish(b);
    T_STATUS(fxa__program_with_masks(host, bprop, FXA_CAUSAL, 0, 0, &wrong, &err), FXA_E_PROBLEM);
    T_CHECK(wrong == NULL);
    fxa_program_destroy(causal);
    fxa_program_destroy(made);
    fxa_program_destroy(twice);
}

TEST(ready_masks_out_of_memory) {
    fail_alloc f = FAIL_ALLOC_INIT;
    t_ctx *failing = fail_alloc_context(&f);
    t_program *own = NULL;
    fxa_error parse_err;
    const char *text = "param w : float\ntensor t : f32[1]\nscore = (t[q] - w) * 0.1";
    T_REQUIRE(failing && own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &own, &parse_err) == FXA_OK);
    size_t before = f.live_bytes;
    bool done = false;
    for (size_t at = 1; !done && at < 100; at++) {
        fxa_program *p = NULL;
        fail_alloc_arm(&f, at, at % 2);
        fxa_status status = fxa__program_with_masks(fxa__context_host(failing), own, FXA_CAUSAL, 0, 0, &p, &err);
        done = status == FXA_OK;
        T_CHECK(done ? p != NULL : !p && status == FXA_E_MEMORY && strstr(err.text, "out of memory"));
        fail_alloc_arm(&f, 0, false);
        fxa_program_destroy(p);
        T_INT(f.live_bytes, before);
    }
    T_CHECK(done);
    T_INT(f.mistakes, 0);
}

/* A program at the limit of nodes still takes its masks. */
TEST(ready_masks_on_the_largest_program) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 2; i < FXA_MAX_NODES; i++) x = fxa_builder_op1(b, FXA_OP_TANH, x);
    fxa_builder_set_score(b, x);
    t_program *p = own_finish(b), *masked = NULL;
    T_REQUIRE(p);
    const uint32_t flags = FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT;
    T_OK(fxa__program_with_masks(fxa__context_host(ctx), p, flags, 5, 6, &masked, &err));
    T_CHECK(fxa_program_node_count(masked) > FXA_MAX_NODES);
}

T_MAIN
