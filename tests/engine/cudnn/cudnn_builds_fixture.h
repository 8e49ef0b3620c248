/* SPDX-License-Identifier: Apache-2.0
 *
 * The real cuDNN without a GPU, and one graph for it; cudnn_builds.c builds many.
 */
#ifndef FXA_TESTS_CUDNN_BUILDS_FIXTURE_H
#define FXA_TESTS_CUDNN_BUILDS_FIXTURE_H

#include "engine/cudnn/cudnn.h"
#include "engine/cudnn/descriptors.h"
#include "engine/cudnn/saved.h"
#include "gpu/device_description.h"
#include "t.h"

enum { BUILDS_JSON = 405, BUILDS_LENGTH = 512 };

typedef struct builds {
    fxa_context *ctx;
    fxa__cudnn_library library;
    void *profile;
    fxa__dnn_level level;
    const fxa_program *own; /* user-written backward of the graphs built next; NULL = none */
    uint32_t dtype;         /* dtype of the graphs built next; 0 = bf16 */
    bool grads;             /* true: the graphs built next have the gradient of the first tensor, [..., q, k] */
    int plans;              /* number of plans to compile */
    int yes, no, compiled;
    int64_t workspace; /* cuDNN's workspace of the last plan */
    clock_t asked;     /* CPU time of queries that found an engine */
} builds;

static char *builds_read(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    if (!f || !text || !fread(text, 1, (1 << 16) - 1, f)) exit(2);
    fclose(f);
    return text;
}

static double builds_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static fxa_status builds_open(builds *b, const char *profile) {
    fxa_error err;
    fxa__gpu_description described;
    fxa_status status = fxa_context_create(NULL, &b->ctx, &err);
    if (status == FXA_OK) status = fxa__gpu_description_parse(profile, &described, &err);
    if (status == FXA_OK)
        status = fxa__cudnn_library_open(fxa__context_host(b->ctx), getenv("FXA_CUDNN_PATH"), &b->library, &err);
    if (status == FXA_OK) status = fxa__dnn_profile_text(&b->library.api, profile, &b->profile, &err);
    if (status != FXA_OK) printf("%s\n", err.text);
    b->level = (fxa__dnn_level){b->library.version, status == FXA_OK ? (int32_t)described.arch : 0};
    return status;
}

/* Makes a problem with lengths of full tiles, or odd ones. Captured tensors cover all coordinates. */
static fxa__problem *builds_problem(builds *b, const fxa_program *program, fxa_pass pass, bool odd) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_capture captures[FXA_MAX_TENSORS]; /* captures of the program and of bprop */
    fxa__problem *out = NULL;
    fxa_error err;
    memset(captures, 0, sizeof captures);
    p.b = 2, p.hq = 4, p.hkv = 2, p.sq = BUILDS_LENGTH - (odd ? 13 : 0), p.sk = BUILDS_LENGTH - (odd ? 27 : 0),
    p.d_qk = pass == FXA_BACKWARD && b->dtype ? 128 : 64;
    p.pass = (uint32_t)pass, p.q.dtype = b->dtype ? b->dtype : (uint32_t)FXA_BF16, p.device = FXA_CUDA,
    p.alignment = 16, p.program = program;
    p.flags =
        (pass == FXA_FORWARD ? FXA_RETURN_LSE : FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V) | (b->dtype ? FXA_SCALED : 0);
    p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
    if (pass == FXA_BACKWARD && b->own) {
        p.bprop = b->own, p.bprop_captures = captures;
        p.n_bprop_captures = fxa_program_tensor_count(b->own);
    }
    for (size_t i = 0; i < p.n_captures || i < p.n_bprop_captures; i++)
        for (int j = 0; j < FXA_MAX_RANK; j++) captures[i].size[j] = BUILDS_LENGTH;
    if (pass == FXA_BACKWARD && b->grads) {
        int32_t rank = fxa_program_tensor(program, 0).rank;
        p.hkv = p.hq, captures[0].grad = 1;
        captures[0].size[0] = rank == 2 ? p.sq : rank == 3 ? p.hq : p.b;
        if (rank == 4) captures[0].size[1] = p.hq;
    }
    T_OK(fxa__problem_create(fxa__context_host(b->ctx), &p, &out, &err));
    return out;
}

/* Returns a plan's JSON text without its cubins, which are the only long runs without a quote. */
static char *builds_code(builds *b, void *plan) {
    int64_t size = 0;
    if (b->library.api.get(plan, BUILDS_JSON, CUDNN_TYPE_CHAR, 0, &size, NULL) != 0) return NULL;
    char *text = calloc(1, (size_t)size + 1);
    if (!text || b->library.api.get(plan, BUILDS_JSON, CUDNN_TYPE_CHAR, size, &size, text) != 0) exit(2);
    char *cubin = strstr(text, "\"cubin\":\"");
    if (cubin) memmove(text, cubin, strlen(cubin) + 1);
    char *end = strchr(text + strlen("\"cubin\":\""), '"');
    if (end) *end = '\0';
    return text;
}

/* Saves and loads a compiled plan: the bytes and the workspace must be the same. */
static void builds_saved(builds *b, void *plan, int64_t workspace) {
    fxa__host *host = fxa__context_host(b->ctx);
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host}, again = {.host = host};
    fxa_error err;
    void *restored = NULL;
    int64_t own = -1;
    fxa__dnn_saved_write(&b->library.api, plan, host, &w);
    T_CHECK(!w.failed && w.size > 1000);
    fxa__reader r = {.data = w.data, .size = w.size};
    double start = builds_seconds();
    T_OK(fxa__dnn_saved_read(&b->library.api, b->profile, &r, &restored, &own, &err));
    double seconds = builds_seconds() - start;
    if (restored) {
        T_CHECK(fxa__reader_done(&r) && own == workspace);
        fxa__dnn_saved_write(&b->library.api, restored, host, &again);
        T_CHECK(again.size == w.size && memcmp(again.data, w.data, w.size) == 0);
        (void)b->library.api.descriptor_destroy(restored);
        if (b->compiled <= b->plans) printf("  saved as %zu bytes, restored in %.1f ms\n", w.size, 1e3 * seconds);
    }
    fxa__writer_free(&again);
}

/* Builds one pass. If `code` is not NULL, compiles the graph and writes its code there. */
static void builds_pass(builds *b, const fxa_program *program, const char *name, fxa_pass pass, bool odd, char **code) {
    static fxa__dnn_attention a;
    fxa_error err = {.status = FXA_OK};
    int64_t workspace = 0, again = 0;
    void *plan = NULL;
    fxa__problem *p = builds_problem(b, program, pass, odd);
    if (!p) return;
    fxa_status status = fxa__dnn_attention_make(p, b->level, &a, &err);
    bool ours = status == FXA_E_UNSUPPORTED; /* true: refused by the cudnn engine, not by cuDNN */
    clock_t start = clock();
    if (status == FXA_OK) status = fxa__dnn_probe(&b->library.api, b->profile, &a.g, &workspace, &err);
    if (status == FXA_OK) b->asked += clock() - start;
    if (status == FXA_OK && (code || b->compiled < b->plans)) {
        status = fxa__dnn_compile(&b->library.api, b->profile, &a.g, &plan, &again, &err);
        b->compiled++;
        T_CHECK(status != FXA_OK || again == workspace);
        if (status == FXA_OK) builds_saved(b, plan, again);
    }
    if (status != FXA_OK && !ours) {
        char text[2000] = "";
        if (program && fxa_program_print(program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = '\0';
        T_FAIL("%s, pass %d: %s\n%s\n", name, (int)pass, err.text, text);
    }
    b->yes += status == FXA_OK, b->no += ours;
    b->workspace = workspace;
    if (code && plan) *code = builds_code(b, plan);
    if (plan) (void)b->library.api.descriptor_destroy(plan);
    fxa__dnn_attention_free(&a);
    fxa__problem_release(p);
}

#endif
