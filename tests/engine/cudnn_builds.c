/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs given to the real cuDNN, for the device that the file FXA_TEST_PROFILE describes, where no GPU is. Programs of
 * the gallery and random ones, both passes: what the engine writes finds an engine of cuDNN, and the first of them, as
 * many as FXA_TEST_PLANS says, are compiled. Then masks that differ must be compiled to code that
 * differs: cuDNN takes some masks for others, or drops them, without a word. (Bounds are passed by value: masks that
 * differ in them alone have the same code.) FXA_TEST_PROGRAM, a text, is tried alone. Run by test_cudnn_builds.py.
 */
#include "engine/cudnn/cudnn.h"
#include "engine/cudnn/cudnn_build.h"
#include "engine/cudnn/cudnn_saved.h"
#include "gpu/gpu_profile.h"
#include "support/conf_case.h"
#include "t.h"

enum { BUILDS_JSON = 405, BUILDS_LENGTH = 512, BUILDS_MASKS = 10 };

typedef struct builds {
    fxa_context *ctx;
    fxa__cudnn_library library;
    void *profile;
    fxa__dnn_level level;
    int plans; /* to compile */
    int yes, no, compiled;
    int64_t workspace; /* of the last, cuDNN's own */
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
    fxa__gpu_profile described;
    fxa_status status = fxa_context_create(NULL, &b->ctx, &err);
    if (status == FXA_OK) status = fxa__gpu_profile_parse(profile, &described, &err);
    if (status == FXA_OK)
        status = fxa__cudnn_library_open(fxa__context_host(b->ctx), getenv("FXA_CUDNN_PATH"), &b->library, &err);
    if (status == FXA_OK) status = fxa__dnn_profile_text(&b->library.api, profile, &b->profile, &err);
    if (status != FXA_OK) printf("%s\n", err.text);
    b->level = (fxa__dnn_level){b->library.version, status == FXA_OK ? (int32_t)described.arch : 0};
    return status;
}

/* Lengths of whole tiles, or odd ones. Captured tensors reach as far as the longest coordinate. */
static fxa__problem *builds_problem(builds *b, const fxa_program *program, fxa_pass pass, bool odd) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa__problem *out = NULL;
    fxa_error err;
    memset(captures, 0, sizeof captures);
    p.b = 2, p.hq = 4, p.hkv = 2, p.sq = BUILDS_LENGTH - (odd ? 13 : 0), p.sk = BUILDS_LENGTH - (odd ? 27 : 0),
    p.d = 64;
    p.pass = (uint32_t)pass, p.q.dtype = FXA_BF16, p.device = FXA_CUDA, p.alignment = 16, p.program = program;
    p.flags = pass == FXA_FORWARD ? FXA_WANT_LSE : FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
    for (size_t i = 0; i < p.n_captures; i++)
        for (int j = 0; j < FXA_MAX_RANK; j++) captures[i].size[j] = BUILDS_LENGTH;
    T_OK(fxa__problem_create(fxa__context_host(b->ctx), &p, &out, &err));
    return out;
}

/* A plan's own text, whose cubins are the only long runs without a quote. */
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

/* A compiled plan as bytes and back: the same bytes again, and the same workspace. */
static void builds_saved(builds *b, void *plan, int64_t workspace) {
    fxa__host *host = fxa__context_host(b->ctx);
    fxa__writer w = {.host = host}, again = {.host = host};
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
        printf("  saved as %zu bytes, restored in %.1f ms\n", w.size, 1e3 * seconds);
    }
    fxa__writer_free(&w);
    fxa__writer_free(&again);
}

/* `code`: where the cubin goes, of a plan that is compiled in any case; or NULL. */
static void builds_pass(builds *b, const fxa_program *program, const char *name, fxa_pass pass, bool odd, char **code) {
    static fxa__dnn_attention a;
    fxa_error err = {.status = FXA_OK};
    int64_t workspace = 0, again = 0;
    void *plan = NULL;
    fxa__problem *p = builds_problem(b, program, pass, odd);
    if (!p) return;
    fxa_status status = fxa__dnn_attention_make(p, b->level, &a, &err);
    bool ours = status == FXA_E_UNSUPPORTED; /* a no with our own reason */
    if (status == FXA_OK) status = fxa__dnn_probe(&b->library.api, b->profile, &a.g, &workspace, &err);
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

static void builds_programs(builds *b, const char *folder) {
    uint64_t rng = t_seed();
    for (int i = 0; i < t_scaled(240); i++) {
        const char *name;
        conf_source source = (conf_source)(i % 3 ? CONF_GALLERY : attn_int(&rng, CONF_IDENTITY, CONF_WILD));
        fxa_program *program = conf_program(b->ctx, source, folder, &rng, &name);
        if (!program) continue;
        for (int pass = 0; pass < 2; pass++) builds_pass(b, program, name, (fxa_pass)pass, i & 1, NULL);
        fxa_program_destroy(program);
    }
    printf("cuDNN %lld, sm_%d: %d graphs found an engine, %d were refused with a reason, %d compiled\n",
           (long long)b->level.version, (int)b->level.arch, b->yes, b->no, b->compiled);
    bool ends = b->level.arch >= 100 && b->level.arch < 120; /* the process: so nothing is tried */
    T_CHECK(ends ? b->yes == 0 : b->yes > t_scaled(240) / 3);
}

/* FXA_TEST_PROGRAM, a text, alone. */
static void builds_one(builds *b, const char *text) {
    fxa_error err;
    fxa_program *program = NULL;
    T_OK(fxa_program_parse(b->ctx, text, SIZE_MAX, &program, &err));
    for (int i = 0; i < 4 && program; i++) {
        builds_pass(b, program, "FXA_TEST_PROGRAM", (fxa_pass)(i & 1), i & 2, NULL);
        printf("  %s%s: workspace of cuDNN %" PRId64 "\n", i & 1 ? "backward" : "forward", i & 2 ? ", odd lengths" : "",
               b->workspace);
    }
    printf("%d found an engine, %d were refused\n", b->yes, b->no);
    fxa_program_destroy(program);
}

static void builds_masks(builds *b) {
    static const char *const masks[BUILDS_MASKS] = {"",
                                                    "mask = k <= q",
                                                    "mask = k < q",
                                                    "mask = q - k < 128",
                                                    "mask = k <= q && q - k < 128",
                                                    "mask = k < 100",
                                                    "mask = q < 100 && k < 100",
                                                    "mask = k <= q || k < 64",
                                                    "mask = q // 64 == k // 64",
                                                    "mask = k % 3 == 0"};
    char *code[BUILDS_MASKS] = {NULL};
    fxa_error err;
    for (int i = 0; i < BUILDS_MASKS; i++) {
        fxa_program *program = NULL;
        T_OK(fxa_program_parse(b->ctx, masks[i], SIZE_MAX, &program, &err));
        builds_pass(b, program, masks[i], FXA_FORWARD, false, &code[i]);
        T_CHECK(code[i]);
        for (int j = 0; j < i && code[i]; j++)
            if (code[j] && strcmp(code[i], code[j]) == 0)
                T_FAIL("cuDNN makes the same code of \"%s\" and \"%s\"\n", masks[i], masks[j]);
        fxa_program_destroy(program);
    }
    printf("%d masks, each its own code\n", BUILDS_MASKS);
    for (int i = 0; i < BUILDS_MASKS; i++) free(code[i]);
}

TEST(graphs_for_a_device) {
    const char *path = getenv("FXA_TEST_PROFILE"), *plans = getenv("FXA_TEST_PLANS");
    if (!path || !*path) T_SKIP("FXA_TEST_PROFILE names no profile of a device");
    builds b = {.plans = plans ? atoi(plans) : 0};
    char *profile = builds_read(path);
    T_REQUIRE(builds_open(&b, profile) == FXA_OK);
    const char *one = getenv("FXA_TEST_PROGRAM");
    if (one && *one)
        builds_one(&b, one);
    else
        builds_programs(&b, FXA_SOURCE_DIR "/examples/programs");
    if (b.plans > 0 && !(one && *one)) builds_masks(&b);
    (void)b.library.api.descriptor_destroy(b.profile);
    fxa__cudnn_library_close(&b.library);
    fxa_context_destroy(b.ctx);
    free(profile);
}

T_MAIN
