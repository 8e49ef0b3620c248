/* SPDX-License-Identifier: Apache-2.0
 *
 * Start of tests of the cuDNN engine on the stand-ins: a registry with cudnn and ref only, and a supported problem with
 * data.
 */
#ifndef FXA_TESTS_CUDNN_FIXTURE_H
#define FXA_TESTS_CUDNN_FIXTURE_H

#include "engine/cudnn/cudnn.h"
#include "standin/standin_fixture.h"
#include "support/fixtures/attn_data.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cudnn, &fxa__engine_ref};

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static const attn_spec spec = {.b = 2,
                               .hq = 4,
                               .hkv = 2,
                               .sq = 9,
                               .sk = 12,
                               .d = 16,
                               .dtype = FXA_BF16,
                               .flags = FXA_RETURN_LSE,
                               .text = "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q + 3"};

/* Returns a problem of the spec on device cuda, without data. */
__attribute__((unused)) static fxa_problem problem_of(const attn_spec *s, fxa_pass pass) {
    fxa_problem p = attn_spec_problem(s);
    p.device = FXA_CUDA, p.alignment = 16, p.pass = (uint32_t)pass;
    if (pass == FXA_BACKWARD) p.flags = (p.flags & ~(uint32_t)FXA_RETURN_LSE) | FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    return p;
}

/* Returns the engine's support report for a problem. */
__attribute__((unused)) static fxa_support answer_of(fxa_context *ctx, const fxa_problem *p) {
    fxa_support reports[2];
    size_t count = 2;
    fxa_error err;
    memset(reports, 0, sizeof reports);
    T_OK(fxa_support_query(ctx, p, reports, &count, &err));
    T_STR(reports[0].engine, "cudnn");
    return reports[0];
}

__attribute__((unused)) static bool data_make(attn_data *x, fxa_context *ctx) {
    fxa_error err;
    T_OK(attn_data_make(x, ctx, &spec, 77, &err));
    x->problem.alignment = 16;
    return err.status == FXA_OK;
}

__attribute__((unused)) static fxa_status data_run(attn_data *x, fxa_context *ctx, fxa_pass pass, fxa_error *err) {
    attn_call call;
    attn_call_make(x, pass, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.p.param_grads = 0;
    call.args.dparams = NULL, call.args.n_dparams = 0;
    call.p.flags &= ~(uint32_t)FXA_READ_DLSE, call.args.slot[FXA_SLOT_DLSE] = NULL;
    return fxa_attention(ctx, &call.p, &call.args, err);
}

/* Returns the reason why a problem with this dtype (0 = the spec's) cannot run on this machine; NULL = it can. */
__attribute__((unused)) static const char *cudnn_missing_of(uint32_t dtype) {
    static fxa_support report;
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    size_t count = 1;
    fxa_error err;
    if (standin_ready()) return NULL;
    t_ctx *ctx = t_context();
    if (dtype) p.q.dtype = dtype;
    T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
    return report.supported ? NULL : report.reason;
}

/* Returns the reason why no cuDNN problem can run on this machine; NULL = the stand-ins or a device (make test-gpu) can
 * run one. */
__attribute__((unused)) static const char *cudnn_missing(void) { return cudnn_missing_of(0); }

/* Returns the reason why 8-bit Q, K, V cannot run on this machine (older versions of cuDNN); NULL = they can. */
__attribute__((unused)) static const char *cudnn_bytes_missing(void) { return cudnn_missing_of(FXA_E4M3); }

#define NEEDS_CUDNN                                                                                                    \
    do {                                                                                                               \
        if (cudnn_missing()) T_SKIP(cudnn_missing());                                                                  \
    } while (0)

#endif
