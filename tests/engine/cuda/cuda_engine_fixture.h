/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine on stand-ins for the driver and NVRTC, with a problem for plans, for test_cuda_engine.c,
 * test_cuda_failures.c and test_cuda_cubins.c. FXA_TEST_STANDIN is the folder of the stand-ins, which count allocated
 * objects and can fail calls; every test ends with box_check_end.
 */
#ifndef FXA_TESTS_CUDA_ENGINE_FIXTURE_H
#define FXA_TESTS_CUDA_ENGINE_FIXTURE_H

#include "../all/cuda_families.h"
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "standin/standin_nvrtc.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <dlfcn.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda};

static standin_state *box_driver, *box_nvrtc;
static const char *box_options; /* options of the last compilation */
static fxa_context *box_ctx;    /* context of programs and of the stand-in's kernel shapes */

/* ---- Stand-ins --------------------------------------------------------------------------------------------------- */

static fxa__cuda_choice box_choice; /* kernels of the problem that is compiled now */
static fxa__cuda_program box_program;
static bool box_other_shapes;
static int32_t box_arch = 90; /* architecture of the stand-in's device */

static void box_shape(const char *source, int32_t shape[8]) {
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) {
        const char *file = fxa__cuda_unit_source(&box_choice, (fxa__cuda_unit)unit);
        if (!file || strncmp(source, file, strlen(file)) != 0 || source[strlen(file)] != '.') continue;
        struct FxaShape s = fxa__cuda_tile_shape(&box_choice, (fxa__cuda_unit)unit).launch;
        memcpy(shape, &s, sizeof s);
    }
    shape[2] += box_other_shapes ? 64 : 0;
}

static void *box_open(const char *file) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", getenv("FXA_TEST_STANDIN"), file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static bool box_ready(void) {
    if (!getenv("FXA_TEST_STANDIN")) return false;
    if (box_driver) return true;
    void *driver = box_open("libcuda.so.1"), *nvrtc = box_open("nvrtc/libnvrtc.so.13");
    if (!driver || !nvrtc) return false;
    box_driver = dlsym(driver, "standin_cuda"), box_nvrtc = dlsym(nvrtc, "standin_nvrtc");
    box_options = dlsym(nvrtc, "standin_nvrtc_options");
    standin_nvrtc_shape *shape = dlsym(nvrtc, "standin_nvrtc_shape_of");
    *shape = box_shape;
    return fxa_context_create(NULL, &box_ctx, NULL) == FXA_OK;
}

#define NEEDS_BOX                                                                                                      \
    do {                                                                                                               \
        if (!box_ready()) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");                             \
    } while (0)

__attribute__((unused)) static void box_arm(standin_state *s, size_t fail_at) {
    s->calls = s->failures = 0;
    s->fail_at = fail_at;
}

static void box_check_end(void) {
    T_INT(box_driver->entered, 0);
    if (!box_driver->context_lost) T_INT(box_driver->held, 0);
    box_driver->held = 0;
    box_driver->context_lost = false;
    T_INT(box_driver->mistakes, 0);
    T_INT(box_nvrtc->held, 0);
    box_nvrtc->held = 0;
}

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static const char box_text[] = "tensor ids : i32[1]\nscore = 3.5 * tanh(score / 3.5) - 0.25 * float(abs(q - k))\n"
                               "mask = ids[q] == ids[k]";

typedef struct box {
    fxa_problem p;
    fxa_capture captures[1];
    fxa_program *program;
} box;

/* Sets the kernel shapes that the stand-in compiler reports to those of this problem. */
static void box_start(box *b, fxa_pass pass, const char *target) {
    fxa_error err;
    fxa__problem *p = NULL;
    const fxa__cuda_self self = {.arch = box_arch, .processors = 132};
    memset(b, 0, sizeof *b);
    b->p = (fxa_problem)FXA_PROBLEM_INIT;
    T_OK(fxa_program_parse(box_ctx, box_text, strlen(box_text), &b->program, &err));
    b->captures[0].size[0] = 512;
    b->p.pass = (uint32_t)pass, b->p.b = 2, b->p.hq = 4, b->p.hkv = 2, b->p.sq = 300, b->p.sk = 500, b->p.d_qk = 64;
    b->p.q.dtype = FXA_BF16, b->p.alignment = 16, b->p.device = FXA_CUDA, b->p.program = b->program;
    b->p.captures = b->captures, b->p.n_captures = 1, b->p.engine = "cuda", b->p.target = target;
    b->p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_DETERMINISTIC : FXA_RETURN_LSE;
    T_OK(fxa__problem_create(fxa__context_host(box_ctx), &b->p, &p, &err));
    fxa__cuda_program_free(&box_program);
    T_OK(fxa__cuda_choose(&self, p, &box_choice, &box_program, &err));
    fxa__problem_release(p);
}

static void box_end(box *b) {
    fxa_program_destroy(b->program);
    fxa__cuda_program_free(&box_program);
}

static fxa_context *box_context(void) {
    fxa_context *ctx = t_context();
    return ctx;
}

#endif
