/* SPDX-License-Identifier: Apache-2.0
 *
 * Every size of a problem at 0, 1 and its maximum, in all pairs (support/fixtures/size_walk.h), for the engines of
 * devices: their support reports, and for supported problems kernels, costs and workspaces (cuda) or a graph (cudnn).
 * Devices, versions and numbers of multiprocessors are given, so neither driver nor library is needed.
 */
#include "engine/cuda/cuda.h"
#include "engine/cudnn/attention/attention.h"
#include "plan/plan.h"
#include "support/fixtures/size_walk.h"

typedef struct device_seen {
    fxa_context *ctx;
    uint32_t dtype;
    int asked, taken;
} device_seen;

/* Makes the problem typical for a device: aligned, 16-bit or f32. Returns NULL if the problem is invalid. */
static fxa__problem *device_problem(const device_seen *seen, size_walk_case *c) {
    fxa__problem *p = NULL;
    fxa_error err;
    c->p.device = FXA_CUDA, c->p.alignment = 16, c->p.q.dtype = seen->dtype;
    fxa_status status = fxa__problem_create(fxa__context_host(seen->ctx), &c->p, &p, &err);
    if (status != FXA_OK && (status != FXA_E_PROBLEM || !err.text[0])) T_FAIL("%s: %s\n", c->what, err.text);
    return p;
}

static void device_ask_cuda(size_walk_case *c, void *user) {
    static const fxa__cuda_self devices[] = {{.arch = 90, .processors = 132}, {.arch = 80, .processors = 108}};
    device_seen *seen = user;
    fxa__problem *p = device_problem(seen, c);
    for (size_t i = 0; p && i < sizeof devices / sizeof *devices; i++) {
        fxa__cuda_choice choice;
        fxa__cuda_program program;
        fxa_error err = {.status = FXA_OK};
        fxa_status status = fxa__cuda_choose(&devices[i], p, &choice, &program, &err);
        seen->asked++;
        if (status == FXA_OK) {
            seen->taken++;
            double cost = fxa__cuda_cost(devices[i].processors, &choice, p);
            uint64_t workspace = fxa__cuda_workspace(&devices[i], &choice, &program, p);
            T_CHECK(cost >= 0 && (workspace == UINT64_MAX || workspace < (uint64_t)1 << 62));
        } else if (status != FXA_E_UNSUPPORTED || !err.text[0]) {
            T_FAIL("%s: %s\n", c->what, err.text);
        }
        fxa__cuda_program_free(&program);
    }
    fxa__problem_release(p);
}

static void device_ask_cudnn(size_walk_case *c, void *user) {
    static fxa__dnn_attention a;
    device_seen *seen = user;
    c->p.d_qk = c->p.d_qk == 4 ? 16 : c->p.d_qk, c->p.d_v = c->p.d_v == 3 ? 8 : c->p.d_v;
    fxa__problem *p = device_problem(seen, c);
    fxa_error err = {.status = FXA_OK};
    if (!p) return;
    fxa_status status = fxa__dnn_attention_make(p, (fxa__dnn_level){91901, 90}, &a, &err);
    seen->asked++, seen->taken += status == FXA_OK;
    if (status != FXA_OK && (status != FXA_E_UNSUPPORTED || !err.text[0])) T_FAIL("%s: %s\n", c->what, err.text);
    fxa__dnn_attention_free(&a);
    fxa__problem_release(p);
}

static void device_walk(uint32_t dtype, int share, size_visit *visit) {
    device_seen seen = {NULL, dtype, 0, 0};
    fxa_error err;
    T_OK(fxa_context_create(NULL, &seen.ctx, &err));
    size_walk(seen.ctx, share, visit, &seen);
    if (seen.taken * 20 < seen.asked) T_FAIL("%d of %d are taken\n", seen.taken, seen.asked);
    fxa_context_destroy(seen.ctx);
}

TEST(cuda_at_the_ends_of_sizes) {
    device_walk(FXA_BF16, 2, device_ask_cuda);
    device_walk(FXA_F32, 5, device_ask_cuda);
}

TEST(cudnn_at_the_ends_of_sizes) { device_walk(FXA_BF16, 1, device_ask_cudnn); }

T_MAIN
