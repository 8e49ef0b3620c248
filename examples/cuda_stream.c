/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention on an NVIDIA GPU: queries which engine supports the problem, creates a plan, runs it on the caller's stream
 * with device memory, captures the run into a CUDA graph and replays the graph. The result is compared with the host's.
 * Prints "skipped" if CMake found no CUDA toolkit or there is no GPU.
 */
#include <fxattn/fxattn.h>
#include <stdio.h>

#ifndef FXA_EXAMPLE_CUDA

int main(void) {
    printf("skipped: built without the CUDA toolkit\n");
    return 0;
}

#else

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, S = 512, D = 64, ELEMENTS = B * H * S * D };

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t cuda = (call);                                                                                     \
        if (cuda != cudaSuccess) {                                                                                     \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(cuda));                                              \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Prints each engine's support report. Returns 1 if an engine supports the problem. */
static int is_supported(fxa_context *ctx, const fxa_problem *problem, fxa_error *err) {
    fxa_support said[8];
    size_t count = 8;
    if (fxa_support_query(ctx, problem, said, &count, err)) return 0;
    int any = 0;
    for (size_t i = 0; i < count && i < 8; i++) {
        any = any || said[i].supported;
        if (said[i].supported)
            printf("%s: yes, about %.3g us a run\n", said[i].engine, 1e6 * said[i].seconds);
        else
            printf("%s: no: %s\n", said[i].engine, said[i].reason);
    }
    if (!any) printf("skipped: no engine takes it\n");
    return any;
}

/* Returns the largest difference of two bf16 arrays. */
static float worst(const uint16_t *x, const uint16_t *y) {
    float most = 0;
    for (int i = 0; i < ELEMENTS; i++) most = fmaxf(most, fabsf(from_bf16(x[i]) - from_bf16(y[i])));
    return most;
}

/* Runs twice: directly, and as a graph. x contains Q, K and V; `got` receives O. */
static int run_on_device(const fxa_plan *plan, const uint16_t *x, uint16_t *got, const double *cap, fxa_error *err) {
    size_t bytes = ELEMENTS * sizeof *x, room = fxa_plan_workspace(plan);
    char *device = NULL; /* Q, K, V, O, then the workspace */
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&device, 4 * bytes + room));
    CHECK(cudaMemcpyAsync(device, x, 3 * bytes, cudaMemcpyHostToDevice, stream));

    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = device, args.slot[FXA_SLOT_K] = device + bytes, args.slot[FXA_SLOT_V] = device + 2 * bytes;
    args.slot[FXA_SLOT_O] = device + 3 * bytes;
    args.params = cap, args.n_params = 1;
    args.workspace = device + 4 * bytes, args.workspace_size = room;
    args.stream = stream;
    if (fxa_plan_run(plan, &args, err)) return 1;

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (fxa_plan_run(plan, &args, err)) return 1;
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&replay, graph, 0));
    CHECK(cudaMemsetAsync(device + 3 * bytes, 0, bytes, stream));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(replay, stream));
    CHECK(cudaMemcpyAsync(got, device + 3 * bytes, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream)); /* returns errors of the device */

    CHECK(cudaGraphExecDestroy(replay));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(device));
    CHECK(cudaStreamDestroy(stream));
    return 0;
}

int main(void) {
    static uint16_t x[3 * ELEMENTS], want[ELEMENTS], got[ELEMENTS];
    const double cap = 20;
    fxa_error err = {.status = FXA_OK};
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    fxa_plan *plan = NULL;
    int code = 1;
    for (int i = 0; i < 3 * ELEMENTS; i++) x[i] = to_bf16((float)(rand() % 2001 - 1000) / 500);
    if (fxa_context_create(NULL, &ctx, &err)) goto failed;
    if (fxa_program_parse(ctx, "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q", SIZE_MAX, &program,
                          &err))
        goto failed;

    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = B, problem.hq = H, problem.sq = problem.sk = S, problem.d_qk = D;
    problem.q.dtype = FXA_BF16;
    fxa_args host = FXA_ARGS_INIT;
    host.slot[FXA_SLOT_Q] = x, host.slot[FXA_SLOT_K] = x + ELEMENTS, host.slot[FXA_SLOT_V] = x + 2 * ELEMENTS;
    host.slot[FXA_SLOT_O] = want, host.params = &cap, host.n_params = 1;
    if (fxa_attention(ctx, &problem, &host, &err)) goto failed;

    problem.device = FXA_CUDA;
    problem.alignment = 16;             /* guaranteed by cudaMalloc; fast kernels require it */
    problem.flags |= FXA_GRAPH_CAPTURE; /* allows capture of runs */
    code = 0;
    if (!is_supported(ctx, &problem, &err)) goto done;
    code = 1;
    if (fxa_plan_create(ctx, &problem, &plan, &err)) goto failed;
    printf("%s: %s, workspace %zu bytes\n", fxa_plan_engine(plan), fxa_plan_description(plan),
           fxa_plan_workspace(plan));
    if (run_on_device(plan, x, got, &cap, &err)) goto failed;
    printf("O of the replayed graph differs from the host's by %g at most\n", (double)worst(got, want));
    code = worst(got, want) > 1.0f / 64;
    goto done;
failed:
    fprintf(stderr, "%s: %s\n", fxa_status_name(err.status), err.text);
done:
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return code;
}

#endif
