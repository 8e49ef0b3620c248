/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that an engine needs for a problem: the workspace of long sequences, for every engine. bench/bench_plan.c
 * measures the time of plans.
 */
#include "support/conformance/conf_case.h"
#include "t.h"

/* Queries the workspace of every host engine for s rows and keys. */
static size_t cost_reports(fxa_context *ctx, const fxa_program *program, fxa_pass pass, int64_t s,
                           fxa_support reports[8]) {
    fxa_error err;
    fxa_capture captures[CONF_TENSORS] = {0};
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t count = 8;
    p.pass = (uint32_t)pass, p.flags = pass == FXA_FORWARD ? FXA_RETURN_LSE : FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    p.program = program, p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    p.b = 1, p.hq = 2, p.sq = p.sk = s, p.d_qk = 16;
    if (p.n_captures > CONF_TENSORS) T_FAIL("%zu tensors\n", p.n_captures);
    for (size_t i = 0; i < p.n_captures && i < CONF_TENSORS; i++) {
        fxa_tensor_info info = fxa_program_tensor(program, i);
        for (int32_t j = 0; j < info.rank; j++) captures[i].size[j] = 20;
        captures[i].grad = pass == FXA_BACKWARD && info.dtype <= FXA_BF16;
    }
    T_OK(fxa_support_query(ctx, &p, reports, &count, &err));
    return count;
}

/* For no program does an engine store something for each pair: twice the sequence needs at most twice the workspace.
 * Runs allocate nothing else (test_conformance_memory.c). */
CONTEXT_TEST(workspace_grows_with_the_sequence_not_with_its_pairs) {
    enum { S = 1 << 15 };
    uint64_t rng = t_seed();
    for (int i = 0; i < t_scaled(200); i++) {
        fxa_support at_s[8], at_2s[8];
        const char *name;
        conf_source source = i % 2 ? CONF_GALLERY : (conf_source)attn_int(&rng, CONF_IDENTITY, CONF_GALLERY);
        t_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", &rng, &name);
        T_REQUIRE(program);
        for (int pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            size_t n = cost_reports(ctx, program, (fxa_pass)pass, S, at_s);
            T_INT(cost_reports(ctx, program, (fxa_pass)pass, 2 * S, at_2s), n);
            for (size_t e = 0; e < n; e++) {
                if (attn_device(at_s[e].engine) != FXA_HOST) continue;
                if (!at_s[e].supported || !at_2s[e].supported) T_FAIL("%s: %s\n", at_s[e].engine, at_s[e].reason);
                if (at_2s[e].workspace > 2 * at_s[e].workspace)
                    T_FAIL("%s, %s, pass %d: %" PRIu64 " bytes, of twice the sequence %" PRIu64 "\n", at_s[e].engine,
                           name, pass, at_s[e].workspace, at_2s[e].workspace);
            }
        }
    }
}

T_MAIN
