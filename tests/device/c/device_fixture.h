/* SPDX-License-Identifier: Apache-2.0
 *
 * Start of tests of GPU engines: checks for a device and makes a problem for the engine. ctest runs the cudnn tests on
 * the stand-in libraries (tests/standin).
 */
#ifndef FXA_TESTS_DEVICE_FIXTURE_H
#define FXA_TESTS_DEVICE_FIXTURE_H

#include "engine/cudnn/cudnn.h"
#include "support/fixtures/attn_data.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <unistd.h>

#ifdef DEVICE_CUDA /* compiles the same tests for the cuda engine */
#define DEVICE_ENGINE fxa__engine_cuda
#else
#define DEVICE_ENGINE fxa__engine_cudnn
#endif
static const fxa__engine *own_engines[OWN_ENGINES] = {&DEVICE_ENGINE, &fxa__engine_cpu, &fxa__engine_ref};

enum { DEVICE_SECONDS = 120 }; /* seconds for a run with its compilation, after which the process ends */

static bool device_is_standin(void) {
    const char *folder = getenv("FXA_TEST_STANDIN");
    return folder && *folder;
}

/* Returns a problem with two query heads per KV head, several tiles, rows without keys, a param and a mask. On the slow
 * stand-in the problem is small. */
static attn_spec device_spec(void) {
    bool small = device_is_standin();
    attn_spec s = {.dtype = FXA_BF16, .flags = FXA_RETURN_LSE};
    s.b = small ? 1 : 2, s.hkv = s.b, s.hq = 2 * s.hkv;
    s.sq = small ? 20 : 130, s.sk = small ? 30 : 190, s.d = small ? 16 : 64;
    s.text = "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q - 3";
    return s;
}

/* Returns the reason why no engine can run on a device of this machine; NULL = an engine can. */
static const char *device_missing(void) {
    static char why[sizeof((fxa_support *)0)->reason];
    fxa_context *ctx = t_context();
    const attn_spec s = device_spec();
    fxa_problem p = attn_spec_problem(&s);
    fxa_support report = {0};
    size_t count = 1;
    fxa_error err;
    p.device = FXA_CUDA, p.alignment = 16;
    T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
    fxa_context_destroy(ctx);
    memcpy(why, report.reason, sizeof why);
    return report.supported ? NULL : why;
}

#define NEEDS_DEVICE                                                                                                   \
    do {                                                                                                               \
        const char *needs_why = device_missing();                                                                      \
        if (needs_why) T_SKIP(needs_why);                                                                              \
    } while (0)

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static bool device_data_make(attn_data *x, fxa_context *ctx, const attn_spec *s) {
    fxa_error err;
    T_OK(attn_data_make(x, ctx, s, 77, &err));
    x->problem.alignment = 16, x->problem.param_grads = 0;
    x->backward_flags &= ~(uint32_t)FXA_READ_DLSE;
    x->backward_flags |= FXA_DETERMINISTIC;
    return err.status == FXA_OK;
}

/* Makes the call of a pass for the engine of the tests. */
static void device_call_make(const attn_data *x, fxa_pass pass, attn_call *call) {
    attn_call_make(x, pass, call);
    call->p.engine = DEVICE_ENGINE.name, call->p.device = FXA_CUDA;
    call->args.dparams = NULL, call->args.n_dparams = 0;
}

/* Runs a pass by fxa_attention, which copies to the device and back. */
__attribute__((unused)) static fxa_status device_data_run(attn_data *x, fxa_context *ctx, fxa_pass pass,
                                                          fxa_error *err) {
    attn_call call;
    device_call_make(x, pass, &call);
    alarm(DEVICE_SECONDS);
    fxa_status status = fxa_attention(ctx, &call.p, &call.args, err);
    alarm(0);
    return status;
}

#endif
