/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases for support queries, with one member for each property that cuDNN may refuse, and the query without cuDNN, for
 * given versions and devices.
 */
#ifndef FXA_TESTS_CUDNN_CASES_H
#define FXA_TESTS_CUDNN_CASES_H

#include "engine/cudnn/attention/attention.h"
#include "plan/plan.h"
#include "t.h"

typedef struct support_case {
    const char *says;
    int64_t version;
    int32_t arch;
    fxa_pass pass;
    uint32_t flags;
    int64_t sq, sk, d, dv, hq, b;
    uint32_t dtype, alignment, page_size, sink, o, lse, dout, dq;
    double dropout;
    bool taken; /* true: supported, as a neighbour of a refused case */
} support_case;

__attribute__((unused)) static fxa_problem support_problem(const support_case *c) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.pass = (uint32_t)c->pass, p.device = FXA_CUDA;
    p.flags = c->flags | (c->pass == FXA_BACKWARD ? (uint32_t)FXA_GRAD_Q : (uint32_t)FXA_RETURN_LSE);
    p.b = c->b ? c->b : 2, p.hq = c->hq ? c->hq : 2, p.hkv = c->hq ? 1 : 2;
    p.sq = c->sq < 0 ? 0 : c->sq ? c->sq : 64, p.sk = c->sk ? c->sk : 64;
    p.d_qk = c->d ? c->d : 64, p.d_v = c->dv, p.total_q = p.total_k = 100; /* of packed rows */
    p.q.dtype = c->dtype ? c->dtype : (uint32_t)FXA_BF16, p.alignment = c->alignment ? c->alignment : 16;
    p.page_size = c->page_size, p.n_pages = c->page_size ? 9 : 0, p.dropout_p = c->dropout;
    p.sinks.dtype = c->sink, p.o.dtype = c->o, p.lse.dtype = c->lse;
    p.dout.dtype = c->dout, p.dq.dtype = c->dq;
    return p;
}

enum { SUPPORT_REASON = sizeof((fxa__dnn_graph *)0)->reason };
__attribute__((unused)) static bool support_ask(fxa__host *host, const fxa_problem *p, fxa__dnn_level level,
                                                char reason[SUPPORT_REASON]) {
    fxa__problem *checked = NULL;
    fxa_error err;
    fxa__dnn_graph g = {.host = host, .status = FXA_OK};
    T_OK(fxa__problem_create(host, p, &checked, &err));
    bool yes = checked && fxa__dnn_supports(&g, checked, level);
    memcpy(reason, g.reason, SUPPORT_REASON);
    fxa__problem_release(checked);
    return yes;
}

#endif
