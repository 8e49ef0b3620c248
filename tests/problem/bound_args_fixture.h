/* SPDX-License-Identifier: Apache-2.0
 *
 * Valid arguments of a run, for tests that change one of them. They check pointers and counts, not numbers, so every
 * tensor is an address within the test's own memory.
 */
#ifndef FXA_TESTS_BIND_BENCH_H
#define FXA_TESTS_BIND_BENCH_H

#include "problem_case.h"

/* Valid arguments and memory for every tensor of a case, far enough apart. */
typedef struct bench {
    fxa__problem *p;
    fxa_args args;
    _Alignas(64) float data[16][1024];
    _Alignas(64) unsigned char workspace[4096];
    int32_t ints[16][16];
    double params[2], dparams[2], bprop_params[1];
    const void *tensors[3], *bprop_tensors[1];
    void *dtensors[3];
    fxa_view views[FXA__ARGS_VIEWS];
} bench;

static bench the;

static void bench_open(const fxa_problem *p) {
    fxa_error err;
    memset(&the, 0, sizeof the);
    T_OK(fxa__problem_create(case_host(), p, &the.p, &err));
    the.args = (fxa_args)FXA_ARGS_INIT;
    for (int i = 0; i < 3; i++) the.args.slot[i] = the.data[i];
    the.args.slot[FXA_SLOT_O] = the.data[FXA_SLOT_O];
    if (p->pass == FXA_BACKWARD) {
        const fxa_slot more[] = {FXA_SLOT_LSE, FXA_SLOT_DO, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
        for (int i = 0; i < 5; i++) the.args.slot[more[i]] = the.data[more[i]];
    }
    the.args.workspace = the.workspace;
    the.args.workspace_size = sizeof the.workspace;
    the.params[0] = 0.5, the.params[1] = 3;
    for (int i = 0; i < 3; i++) the.tensors[i] = the.data[12 + i];
    if (p->program) {
        the.args.params = the.params, the.args.n_params = 2;
        the.args.tensors = the.tensors, the.args.n_tensors = 3;
    }
}

static void bench_close(void) { fxa__problem_release(the.p); }

static fxa_status bind_with(size_t workspace, fxa__bound_args *bound, fxa_error *err) {
    return fxa__bound_args_make(the.p, &the.args, workspace, true, the.views, bound, err);
}
static fxa_status bind_now(fxa__bound_args *bound, fxa_error *err) { return bind_with(0, bound, err); }

static void bind_ok(void) {
    fxa_error err;
    fxa__bound_args bound;
    T_OK(bind_now(&bound, &err));
}

/* Checks a refusal, which must leave the workspace unchanged. */
#define BIND_REFUSED(base, status, words, change)                                                                      \
    do {                                                                                                               \
        fxa_problem p = base;                                                                                          \
        fxa_args *a = &the.args;                                                                                       \
        fxa__bound_args bound;                                                                                         \
        bench_open(&p);                                                                                                \
        bind_ok();                                                                                                     \
        memset(the.workspace, 0xab, sizeof the.workspace);                                                             \
        change;                                                                                                        \
        (void)a;                                                                                                       \
        T_STATUS(bind_now(&bound, &err), status);                                                                      \
        T_HAS(err.text, words);                                                                                        \
        for (size_t i = 0; i < sizeof the.workspace; i++) T_CHECK(the.workspace[i] == 0xab);                           \
        bench_close();                                                                                                 \
    } while (0)

static fxa_problem with_flags(fxa_problem p, uint32_t flags) {
    p.flags |= flags;
    return p;
}

#endif
