/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the key splits of decoding in the cuda engine, and the run times that both GPU engines estimate, with
 * tests/golden/cuda_splits.txt and tests/golden/gpu_costs.txt. After an intended change, FXA_TEST_UPDATE=1 writes the
 * texts.
 */
#include "cuda_families.h"
#include "engine/cuda/host/call.h"
#include "engine/cudnn/cudnn.h"
#include "plan/plan.h"
#include "support/fixtures/golden.h"
#include "support/fixtures/own_context.h"

/* ---- Splits ------------------------------------------------------------------------------------------------------ */

typedef struct split_case {
    int64_t b, hkv, sq, sk, d;
    int32_t processors;
    bool lengths; /* entries have lengths of their own */
} split_case;

/* Writes the pieces of the keys, the pieces of an item, the shortened items and the cluster of a problem. */
static void split_write(const split_case *c, fxa__writer *w) {
    const fxa__cuda_self self = {.arch = 90, .processors = c->processors};
    fxa_problem in = FXA_PROBLEM_INIT;
    fxa__problem *p = NULL;
    fxa__cuda_choice choice;
    fxa__cuda_program program = {.program = NULL};
    fxa__cuda_buffers at;
    fxa_error err;
    in.device = FXA_CUDA, in.alignment = 16, in.q.dtype = FXA_BF16, in.flags = c->lengths ? FXA_PADDING : 0;
    in.b = c->b, in.hkv = c->hkv, in.hq = 8 * c->hkv, in.sq = c->sq, in.sk = c->sk, in.d_qk = c->d;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &in, &p, &err));
    T_REQUIRE(p);
    T_OK(fxa__cuda_choose(&self, p, &choice, &program, &err));
    T_CHECK(choice.traits.row_tiles > 0);
    uint64_t bytes = fxa__cuda_buffers_make(&self, &choice, &program, p, fxa__carver_make(NULL), &at);
    fxa__write_format(w, "%lld,%lld,%lld,%lld,%lld of %d%s: %d pieces by %d, %d items, cut %d,%d,%d,%d, cluster %d, ",
                      (long long)c->b, (long long)c->hkv, (long long)c->sq, (long long)c->sk, (long long)c->d,
                      (int)c->processors, c->lengths ? " with lengths" : "", (int)at.splits, (int)at.item_splits,
                      (int)at.items, (int)at.cut[0], (int)at.cut[1], (int)at.cut[2], (int)at.cut[3],
                      (int)choice.traits.cluster);
    fxa__write_format(w, "%llu bytes, %.6g us\n", (unsigned long long)bytes, 1e6 * fxa__cuda_cost(132, &choice, p));
    fxa__cuda_program_free(&program);
    fxa__problem_release(p);
}

TEST(splits_are_those_of_the_text) {
    static const int64_t batch[] = {1, 2, 3, 7, 15, 16, 22, 33, 64, 100, 133, 154, 155, 209, 210, 211, 263, 264, 400};
    static const int64_t keys[] = {256, 511, 512, 1024, 2048, 4096, 4097, 9000, 16384, 40000, 131072};
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
    if (!FXA_ASSERT) T_SKIP("the text contains the red zones of workspaces, which this build does not have");
    fxa__write_format(&w, "b, hkv, sq, sk, d of multiprocessors\n");
    for (size_t b = 0; b < sizeof batch / sizeof *batch; b++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            split_case c = {batch[b], 1 + (int64_t)(b % 2), 1, keys[k], k % 2 ? 64 : 128, 132, (b + k) % 7 == 0};
            split_write(&c, &w);
            c.sq = 3 + (int64_t)(k % 3) * 4, c.processors = k % 2 ? 78 : 132;
            if (b % 3 == 0) split_write(&c, &w);
        }
    fxa__write_u8(&w, 0);
    golden_check(".", "cuda_splits", (const char *)w.data);
}

/* ---- Costs ------------------------------------------------------------------------------------------------------- */

typedef struct cost_case {
    const char *name, *text;
    uint32_t flags;
    fxa_pass pass;
    int64_t sq, sk;
    uint32_t dtype;
    int32_t forced;
    bool fast; /* hardware functions */
} cost_case;

static const cost_case cost_cases[] = {
    {.name = "full", .sq = 4096, .sk = 4096},
    {.name = "full backward", .pass = FXA_BACKWARD, .sq = 4096, .sk = 4096},
    {.name = "causal", .flags = FXA_CAUSAL, .sq = 4096, .sk = 4096},
    {.name = "causal fixed", .flags = FXA_CAUSAL | FXA_DETERMINISTIC, .pass = FXA_BACKWARD, .sq = 4096, .sk = 4096},
    {.name = "fixed", .flags = FXA_DETERMINISTIC, .pass = FXA_BACKWARD, .sq = 4096, .sk = 4096},
    {.name = "cap", .text = "score = 20.0 * tanh(score / 20.0)", .sq = 4096, .sk = 4096},
    {.name = "cap backward", .text = "score = 20.0 * tanh(score / 20.0)", .pass = FXA_BACKWARD, .sq = 512, .sk = 4096},
    {.name = "cap fast", .text = "score = 20.0 * tanh(score / 20.0)", .sq = 4096, .sk = 4096, .fast = true},
    {.name = "uneven", .text = "mask = (q + k) % 3 == 0", .sq = 4096, .sk = 4096},
    {.name = "few rows", .sq = 127, .sk = 200},
    {.name = "one tile", .sq = 128, .sk = 200},
    {.name = "one row", .sq = 1, .sk = 9000},
    {.name = "one row of pages", .flags = FXA_PAGED | FXA_PADDING, .sq = 1, .sk = 9000},
    {.name = "two rows of pages", .flags = FXA_PAGED | FXA_PADDING, .sq = 2, .sk = 9000},
    {.name = "one row backward", .pass = FXA_BACKWARD, .sq = 1, .sk = 9000},
    {.name = "sm80", .sq = 4096, .sk = 4096, .forced = FAMILY_SM80},
    {.name = "simt", .sq = 4096, .sk = 4096, .dtype = FXA_F32},
};

static void cost_write(const cost_case *c, int64_t d, int64_t dv, fxa__writer *w) {
    const fxa__cuda_self self = {
        .arch = 90, .processors = 132, .forced = family_forced(c->forced ? c->forced : -1), .fast_math = c->fast};
    fxa_problem in = FXA_PROBLEM_INIT;
    fxa__problem *p = NULL;
    t_program *program = NULL;
    fxa__cuda_choice choice;
    fxa__cuda_program own = {.program = NULL};
    fxa_error err;
    if (c->text) T_OK(own_parse(FXA_PROGRAM_SCORE, c->text, SIZE_MAX, &program, &err));
    in.device = FXA_CUDA, in.alignment = 16, in.pass = (uint32_t)c->pass, in.flags = c->flags, in.program = program;
    if (c->pass == FXA_BACKWARD) in.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    in.q.dtype = c->dtype ? c->dtype : (uint32_t)FXA_BF16;
    in.b = 2, in.hq = 8, in.hkv = 2, in.sq = c->sq, in.sk = c->sk, in.d_qk = d, in.d_v = dv;
    if (c->flags & FXA_PAGED) in.page_size = 128, in.n_pages = 200;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &in, &p, &err));
    T_REQUIRE(p);
    T_OK(fxa__cuda_choose(&self, p, &choice, &own, &err));
    fxa__write_format(w, "%s, %lld and %lld: cuda %.6g us, of 66 multiprocessors %.6g us; cudnn %.6g us, %.6g us\n",
                      c->name, (long long)d, (long long)dv, 1e6 * fxa__cuda_cost(132, &choice, p),
                      1e6 * fxa__cuda_cost(66, &choice, p), 1e6 * fxa__dnn_cost(132, p), 1e6 * fxa__dnn_cost(66, p));
    fxa__cuda_program_free(&own);
    fxa__problem_release(p);
}

TEST(costs_are_those_of_the_text) {
    static const int64_t dims[][2] = {{32, 32}, {64, 64}, {72, 64}, {64, 96}, {128, 128}, {192, 128}, {128, 256}};
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
    for (size_t i = 0; i < sizeof cost_cases / sizeof *cost_cases; i++)
        for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) cost_write(&cost_cases[i], dims[k][0], dims[k][1], &w);
    fxa__write_u8(&w, 0);
    golden_check(".", "gpu_costs", (const char *)w.data);
}

T_MAIN
