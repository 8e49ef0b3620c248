/* SPDX-License-Identifier: Apache-2.0
 *
 * Host time of a run on a CUDA device: microseconds until fxa_plan_run returns, for each engine, with checked and with
 * unchecked pointers, in both passes of a few programs. Before these, the times of single driver calls. Prints the best
 * of many bursts. `bench_runs cuda 20` measures one engine with 20 bursts.
 *
 * Without a device the stand-ins for the driver and cuDNN can be loaded (LD_LIBRARY_PATH; NVRTC is the real one). Then
 * count instructions: valgrind --tool=callgrind --toggle-collect=fxa_plan_run bench_runs cuda 1.
 */
#include "fxattn/fxattn.h"
#include "../src/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS_BURST = 20, RUNS_BYTES = 2 * 4 * 512 * 128 * 4, RUNS_SLOTS = FXA_SLOT_DV + 1 };

static double runs_now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e6 * ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
}

typedef struct runs_rig {
    fxa_context *ctx;
    fxa__gpu gpu;
    char *memory; /* device memory: RUNS_BYTES for each slot, then the workspace */
    size_t workspace;
    void *stream;
    int bursts;
} runs_rig;

static const struct {
    const char *name, *text;
    uint32_t flags;
    int64_t sq;
} runs_cases[] = {
    {"full", NULL, 0, 512},
    {"causal", NULL, FXA_CAUSAL, 512},
    {"soft cap, causal", "score = 30 * tanh(score / 30)", FXA_CAUSAL, 512},
    {"ALiBi, causal", "score = score - exp2(-float(h + 1)) * float(q - k)", FXA_CAUSAL, 512},
    {"lengths", NULL, FXA_PADDING, 512},
    {"one row", NULL, 0, 1},
};

static fxa_problem runs_problem(size_t i, fxa_pass pass, const fxa_program *program, const char *engine) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.pass = (uint32_t)pass, p.program = program, p.engine = engine, p.device = FXA_CUDA, p.alignment = 16;
    p.b = 2, p.hq = 4, p.sq = runs_cases[i].sq, p.sk = 512, p.d_qk = 128, p.q.dtype = FXA_BF16;
    p.flags = runs_cases[i].flags | (pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE);
    return p;
}

/* Returns the microseconds of a run; a negative number if the run fails. */
static double runs_time(const runs_rig *rig, const fxa_plan *plan, const fxa_args *args) {
    double best = INFINITY;
    for (int i = 0; i < rig->bursts; i++) {
        double start = runs_now();
        for (int k = 0; k < RUNS_BURST; k++)
            if (fxa_plan_run(plan, args, NULL) != FXA_OK) return -1;
        best = fmin(best, (runs_now() - start) / (double)RUNS_BURST);
        if (fxa__gpu_memory.wait((void *)(uintptr_t)&rig->gpu, rig->stream, NULL) != FXA_OK) return -1;
    }
    return best;
}

static void runs_case(const runs_rig *rig, const char *engine, size_t i, fxa_pass pass) {
    fxa_program *program = NULL;
    fxa_plan *plan = NULL;
    fxa_error err;
    const char *text = runs_cases[i].text;
    if (text && fxa_program_parse(rig->ctx, text, SIZE_MAX, &program, &err) != FXA_OK) exit(1);
    fxa_problem p = runs_problem(i, pass, program, engine);
    fxa_args args = FXA_ARGS_INIT;
    printf("%-6s %-9s %-18s", engine, pass ? "backward" : "forward", runs_cases[i].name);
    if (fxa_plan_create(rig->ctx, &p, &plan, &err) != FXA_OK || fxa_plan_workspace(plan) > rig->workspace) {
        printf("%s\n", plan ? "needs more workspace than there is here" : err.text);
    } else {
        for (int slot = 0; slot < RUNS_SLOTS; slot++)
            if (slot != FXA_SLOT_ROW_MAX && slot != FXA_SLOT_DLSE && (pass || slot < FXA_SLOT_DO))
                args.slot[slot] = rig->memory + (size_t)slot * RUNS_BYTES;
        if (p.flags & FXA_PADDING) args.slot[FXA_SLOT_K_LENGTHS] = rig->memory + (size_t)FXA_SLOT_ROW_MAX * RUNS_BYTES;
        args.workspace = rig->memory + (size_t)RUNS_SLOTS * RUNS_BYTES, args.workspace_size = rig->workspace;
        args.stream = rig->stream;
        double checked = runs_time(rig, plan, &args);
        args.flags = FXA_SKIP_POINTER_CHECKS;
        printf("%6.2f us, unchecked pointers %6.2f\n", checked, runs_time(rig, plan, &args));
    }
    (void)fflush(stdout);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
}

/* ---- Calls of the driver ----------------------------------------------------------------------------------------- */

/* Empty kernels, whose arguments differ in size. Arguments of kernels of the cuda engine have 2,480 bytes, 3,760 with
 * tensor maps. */
static const struct {
    const char *name;
    unsigned shared;
} runs_kernels[] = {{"k8", 0}, {"k1024", 0}, {"k2480", 0}, {"k3760", 0}, {"k3760", 200 << 10}};
static const char runs_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                               ".visible .entry k8(.param .align 8 .b8 p[8]) { ret; }\n"
                               ".visible .entry k1024(.param .align 8 .b8 p[1024]) { ret; }\n"
                               ".visible .entry k2480(.param .align 8 .b8 p[2480]) { ret; }\n"
                               ".visible .entry k3760(.param .align 128 .b8 p[3760]) { ret; }\n";

static void runs_launches(const runs_rig *rig) {
    static _Alignas(128) char args[4096];
    const fxa__gpu_driver *cu = &rig->gpu.driver;
    void *module = NULL, *function = NULL, *params[] = {args};
    if (cu->module_load(&module, runs_ptx) != FXA__CUDA_OK) return;
    for (size_t i = 0; i < sizeof runs_kernels / sizeof *runs_kernels; i++) {
        double best = INFINITY;
        int status = cu->module_function(&function, module, runs_kernels[i].name);
        if (status == FXA__CUDA_OK && runs_kernels[i].shared)
            status = cu->function_attribute(function, 8, (int)runs_kernels[i].shared);
        for (int n = 0; n < rig->bursts && status == FXA__CUDA_OK; n++) {
            double start = runs_now();
            for (int k = 0; k < RUNS_BURST && status == FXA__CUDA_OK; k++)
                status = cu->launch(function, 1, 1, 1, 128, 1, 1, runs_kernels[i].shared, rig->stream, params, NULL);
            best = fmin(best, (runs_now() - start) / (double)RUNS_BURST);
            (void)cu->stream_wait(rig->stream);
        }
        printf("driver launch, %-6s bytes of arguments, %6u shared %6.2f us (%d)\n", runs_kernels[i].name + 1,
               runs_kernels[i].shared, best, status);
    }
    (void)cu->module_unload(module);
}

enum { CALL_CONTEXT, CALL_POINTER, CALL_CAPTURING, CALL_MAP, CALL_FILL, CALLS };
static const char *const runs_calls[CALLS] = {"context push and pop", "pointer attributes", "stream capture status",
                                              "tensor map", "memory fill"};

static void runs_call(const runs_rig *rig, int call) {
    const fxa__gpu_driver *cu = &rig->gpu.driver;
    static _Alignas(128) char map[128];
    const uint64_t size[4] = {128, 512, 4, 2}, stride[3] = {256, 256 * 512, 256 * 512 * 4};
    const uint32_t box[4] = {64, 64, 1, 1}, ones[4] = {1, 1, 1, 1};
    int capturing;
    if (call == CALL_CONTEXT && fxa__gpu_enter(&rig->gpu, NULL) == FXA_OK) fxa__gpu_leave(&rig->gpu);
    if (call == CALL_POINTER) (void)fxa__gpu_check(&rig->gpu, "", "", rig->memory, NULL);
    if (call == CALL_CAPTURING) (void)cu->stream_capturing(rig->stream, &capturing);
    if (call == CALL_MAP && cu->tensor_map)
        (void)cu->tensor_map(map, 9, 4, (uintptr_t)rig->memory, size, stride, box, ones, 0, 3, 3, 0);
    if (call == CALL_FILL) (void)cu->fill((uintptr_t)rig->memory, 0, 64, rig->stream);
}

static void runs_driver(const runs_rig *rig) {
    if (fxa__gpu_enter(&rig->gpu, NULL) != FXA_OK) return;
    for (int call = 0; call < CALLS; call++) {
        double best = INFINITY;
        for (int i = 0; i < rig->bursts; i++) {
            double start = runs_now();
            for (int k = 0; k < RUNS_BURST; k++) runs_call(rig, call);
            best = fmin(best, (runs_now() - start) / (double)RUNS_BURST);
            (void)rig->gpu.driver.stream_wait(rig->stream);
        }
        printf("driver %-28s %6.2f us\n", runs_calls[call], best);
    }
    runs_launches(rig);
    fxa__gpu_leave(&rig->gpu);
}

int main(int argc, char **argv) {
    static const char *const engines[] = {"cuda", "cudnn"};
    runs_rig rig = {.bursts = argc > 2 ? atoi(argv[2]) : 200, .workspace = (size_t)64 << 20, .stream = (void *)2};
    fxa_error err;
    void *memory = NULL;
    fxa_status status = fxa__gpu_open(&rig.gpu, 0, &err);
    if (status == FXA_OK)
        status = fxa__gpu_alloc(&rig.gpu, (size_t)RUNS_SLOTS * RUNS_BYTES + rig.workspace, &memory, &err);
    if (status == FXA_OK) status = fxa_context_create(NULL, &rig.ctx, &err);
    if (status != FXA_OK) {
        printf("bench_runs: skipped, %s\n", err.text);
        return 0;
    }
    rig.memory = memory;
    if (argc <= 2) runs_driver(&rig);
    for (size_t e = 0; e < 2; e++)
        for (size_t i = 0; i < sizeof runs_cases / sizeof *runs_cases; i++)
            for (int pass = 0; pass < 2 && (argc < 2 || strcmp(argv[1], engines[e]) == 0); pass++)
                if (pass == 0 || runs_cases[i].sq > 1) runs_case(&rig, engines[e], i, (fxa_pass)pass);
    fxa_context_destroy(rig.ctx);
    fxa__gpu_give(&rig.gpu, memory);
    fxa__gpu_close(&rig.gpu);
    return 0;
}
