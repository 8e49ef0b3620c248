/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of entire attention passes that hold for every engine: WHOLE(name) { ... } is a test that runs for each engine.
 * A contiguous f64 problem [B,H,S,D] of attn_data, with its arrays by name.
 */
#ifndef FXA_TESTS_WHOLE_H
#define FXA_TESTS_WHOLE_H

#include "attn_data.h"
#include "t.h"

static const char *whole_engine; /* name of the engine for which the test runs now */

#define WHOLE(name)                                                                                                    \
    static void whole_##name(void);                                                                                    \
    TEST(name) {                                                                                                       \
        for (size_t e = 0; (whole_engine = engine_here(e)); e++) whole_##name();                                       \
    }                                                                                                                  \
    static void whole_##name(void)

typedef struct whole {
    fxa_context *ctx;
    attn_data x;
    fxa_problem *p; /* problem of x, without an engine name */
    int64_t n_q, n_k, n_v, n_o, n_row;
    double *q, *k, *v, *dout, *dlse, *o, *lse, *dq, *dk, *dv;
    double *tensor, *dtensor, *dparam; /* [16], [16], [2], if the program is whole_text */
} whole;

static const char whole_text[] = "param gain : float\nparam slope : float\ntensor bias : f64[1]\n"
                                 "score = gain * score - slope * abs(q - k) * 0.1 + bias[(q - k) % 16]\n"
                                 "mask = k <= q + 3";

/* Makes the problem with a program text such as whole_text; NULL = the identity. *w must not move afterwards. */
static void whole_start(whole *w, const char *text, int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk,
                        int64_t d, int64_t dv) {
    fxa_error err;
    attn_spec s = {.b = b, .hq = hq, .hkv = hkv, .sq = sq, .sk = sk, .d = d, .dv = dv, .dtype = FXA_F64, .text = text};
    s.tensor[0][0] = 16;
    memset(w, 0, sizeof *w);
    T_OK(fxa_context_create(NULL, &w->ctx, &err));
    T_OK(attn_data_make(&w->x, w->ctx, &s, t_seed(), &err));
    w->p = &w->x.problem;
    w->x.params[0] = 0.75, w->x.params[1] = w->x.scale = 0.5;
    double **const by_slot[] = {&w->q, &w->k, &w->v, &w->o, &w->lse, NULL, &w->dout, &w->dlse, &w->dq, &w->dk, &w->dv};
    for (int i = FXA_SLOT_Q; i <= FXA_SLOT_DV; i++)
        if (by_slot[i]) *by_slot[i] = attn_f64(&w->x.t[i]);
    w->n_q = b * hq * sq * d, w->n_k = b * hkv * sk * d, w->n_v = b * hkv * sk * dv, w->n_o = b * hq * sq * dv;
    w->n_row = b * hq * sq;
    if (!text) return;
    w->tensor = attn_f64(&w->x.tensor[0]), w->dtensor = attn_f64(&w->x.dtensor[0]), w->dparam = attn_f64(&w->x.dparam);
}

static void whole_end(whole *w) {
    attn_data_free(&w->x);
    fxa_context_destroy(w->ctx);
}

static void whole_run(whole *w, fxa_pass pass) {
    fxa_error err;
    T_OK(attn_data_run(&w->x, w->ctx, whole_engine, pass, &err));
}

/* Makes the arguments of a pass, for tests that change them before the run. */
__attribute__((unused)) static void whole_call(whole *w, fxa_pass pass, attn_call *call) {
    attn_call_make(&w->x, pass, call);
    call->p.engine = whole_engine, call->p.device = attn_device(whole_engine);
}

static void whole_near(const char *name, const double *got, const double *want, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance) && !(got[i] == want[i])) {
            T_FAIL("%s[%" PRId64 "] is %.17g, not %.17g\n", name, i, got[i], want[i]);
            return;
        }
}

#endif
