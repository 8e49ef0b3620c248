/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds graphs with the real cuDNN, without a GPU, for the device described in the file FXA_TEST_PROFILE: the gallery
 * and random programs, both passes. cuDNN must find an engine for each supported graph, and the first FXA_TEST_PLANS
 * graphs are compiled. Different masks must compile to different code, because cuDNN silently confuses or drops some
 * masks. (Bounds are passed by value, so masks that differ only in their bounds share code.) FXA_TEST_PROGRAM, a text,
 * is built alone; with FXA_TEST_BYTES graphs are e4m3. Run by test_cudnn_builds.py; FXA_TEST_SCALE=15 compiles the
 * entire gallery with its masks, without them and with their negations.
 */
#include "cudnn_builds_fixture.h"
#include "support/conformance/conf_case.h"

#include <dirent.h>

enum { BUILDS_MASKS = 10, BUILDS_RANDOM = 80, BUILDS_NEIGHBOURS = 4 };
enum { BUILDS_BYTE_MASKS = 5 }; /* number of masks that are tested for e4m3, from the first */

static void builds_both(builds *b, const fxa_program *program, const char *name, bool odd) {
    for (int pass = 0; pass < 2; pass++) builds_pass(b, program, name, (fxa_pass)pass, odd, NULL);
}

/* ---- The gallery ------------------------------------------------------------------------------------------------- */

#define BUILDS_GALLERY FXA_SOURCE_DIR "/examples/programs"

static int builds_is_program(const struct dirent *e) {
    const char *dot = strrchr(e->d_name, '.');
    return dot && strcmp(dot, ".fxa") == 0;
}

static fxa_program *builds_file(builds *b, const char *name) {
    char path[1024];
    fxa_error err;
    fxa_program *program = NULL;
    snprintf(path, sizeof path, BUILDS_GALLERY "/%s", name);
    char *text = builds_read(path);
    T_OK(fxa_program_parse(b->ctx, text, SIZE_MAX, &program, &err));
    free(text);
    return program;
}

/* Builds each program of the gallery with lengths of full tiles and odd lengths, then random programs. */
static void builds_programs(builds *b) {
    uint64_t rng = t_seed();
    struct dirent **files = NULL;
    int n = scandir(BUILDS_GALLERY, &files, builds_is_program, alphasort);
    T_CHECK(n > 50);
    for (int i = 0; i < 2 * n; i++) {
        t_program *program = builds_file(b, files[i / 2]->d_name);
        builds_both(b, program, files[i / 2]->d_name, i & 1);
    }
    int yes = b->yes;
    for (int i = 0; i < n; i++) free(files[i]);
    free(files);
    for (int i = 0; i < t_scaled(BUILDS_RANDOM); i++) {
        const char *name;
        conf_source source = (conf_source)attn_int(&rng, CONF_IDENTITY, CONF_WILD);
        t_program *program = conf_program(b->ctx, source, BUILDS_GALLERY, &rng, &name);
        if (program) builds_both(b, program, name, i & 1);
    }
    printf("cuDNN %lld, sm_%d: %d graphs of the gallery and %d others found an engine, %d were refused with a reason, "
           "%d compiled\n",
           (long long)b->level.version, (int)b->level.arch, yes, b->yes - yes, b->no, b->compiled);
    printf("  a question takes %.2f ms of the processor\n", 1e3 * (double)b->asked / CLOCKS_PER_SEC / (b->yes + 1e-9));
    T_CHECK(yes > 2 * n);
}

/* Builds programs that keep the score but state another derivative, with lengths of full tiles and odd lengths; none
 * may be refused. */
static void builds_grafts(builds *b) {
    static const char *const texts[] = {"score = with_grad(score, 0.0)", "score = with_grad(score, score * float(k))",
                                        "score = with_grad(score, tanh(score))\nmask = k <= q"};
    int yes = b->yes, n = (int)(sizeof texts / sizeof *texts);
    for (int i = 0; i < 2 * n; i++) {
        t_program *program = NULL;
        fxa_error err;
        T_OK(fxa_program_parse(b->ctx, texts[i / 2], SIZE_MAX, &program, &err));
        builds_both(b, program, texts[i / 2], i & 1);
    }
    T_INT(b->yes - yes, 4 * n);
}

/* Builds user-written backward programs that are not the derivative, with lengths of full tiles and odd lengths; none
 * may be refused. */
static void builds_own(builds *b) {
    static const struct {
        const char *text, *own;
        bool sm_90; /* only on sm_90 does cuDNN have this backward pass */
    } cases[] = {
        {"score = tanh(score)\nmask = k <= q", "dscore = dscore", false},
        {"", "dscore = dscore * score", false},
        {"mask = k <= q", "dscore = clamp(dscore, -0.01, 0.01)", false},
        {"param cap : float\nscore = cap * tanh(score / cap)",
         "param cap : float\nlet t = tanh(score / cap)\ndscore = dscore * (1.0 - t * t)", false},
        {"score = score * 2.0", "tensor u : f32[1]\nparam a : float\ndscore = dscore * (a + u[h])", false},
        {"score = score * 2.0", "tensor u : bf16[2]\ndscore = dscore * u[q, k]", false},
        {"score = score * 2.0", "tensor u : f32[1]\ndscore = dscore * u[q]", true},
        {"mask = k <= q", "dscore = dscore + 0.01 * (k - q)", false},
        {"", "dscore = abs(score) < 0.5 ? dscore : 0.0", false},
        {"score = 8.0 * tanh(score / 8.0)", "let t = tanh(score / 8.0)\ndscore = dscore * (1.0 - t * t)", false},
        {"mask = k <= q", "dscore = 0.1 * score", false},
        {"", "dscore = 0.125", false},
    };
    int yes = b->yes, asked = 0;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        t_program *program = NULL, *own = NULL;
        fxa_error err;
        const fxa_text text = {"bprop", cases[i / 2].own, SIZE_MAX};
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
        if (cases[i / 2].sm_90 && b->level.arch / 10 != 9) continue;
        T_OK(fxa_program_parse(b->ctx, cases[i / 2].text, SIZE_MAX, &program, &err));
        T_OK(fxa_program_parse_texts(b->ctx, &config, &own, &err));
        b->own = own;
        builds_pass(b, program, cases[i / 2].own, FXA_BACKWARD, i & 1, NULL);
        b->own = NULL;
        asked++;
    }
    printf("%d of %d graphs with a backward program of the caller's found an engine\n", b->yes - yes, asked);
    T_INT(b->yes - yes, asked);
}

/* Builds gradients of a bias tensor. The code with the gradient must differ from the code without it. */
static void builds_bias(builds *b) {
    static const char *const texts[] = {"tensor t : bf16[2]\nscore = score + t[q, k]",
                                        "tensor t : bf16[3]\nscore = score + t[h, q, k]",
                                        "tensor t : bf16[4]\nscore = score + t[b, h, q, k]\nmask = k <= q"};
    int yes = b->yes;
    if (b->level.arch / 10 != 9) return; /* nowhere else tried */
    for (int i = 0; i < 3; i++) {
        t_program *program = NULL;
        fxa_error err;
        char *code[2] = {NULL, NULL};
        T_OK(fxa_program_parse(b->ctx, texts[i], SIZE_MAX, &program, &err));
        for (int grads = 0; grads < 2; grads++) {
            b->grads = grads;
            builds_pass(b, program, texts[i], FXA_BACKWARD, false, b->plans > 0 && i == 0 ? &code[grads] : NULL);
        }
        b->grads = false;
        if (b->plans > 0 && i == 0) T_CHECK(code[0] && code[1] && strcmp(code[0], code[1]) != 0);
        free(code[0]);
        free(code[1]);
    }
    printf("%d of 6 graphs with and without the gradient of a captured tensor found an engine\n", b->yes - yes);
    T_INT(b->yes - yes, 6);
}

/* FXA_TEST_PROGRAM, a text, alone. */
static void builds_one(builds *b, const char *text) {
    fxa_error err;
    t_program *program = NULL;
    T_OK(fxa_program_parse(b->ctx, text, SIZE_MAX, &program, &err));
    if (getenv("FXA_TEST_BYTES")) b->dtype = FXA_E4M3;
    for (int i = 0; i < 4 && program; i++) {
        builds_pass(b, program, "FXA_TEST_PROGRAM", (fxa_pass)(i & 1), i & 2, NULL);
        printf("  %s%s: workspace of cuDNN %" PRId64 "\n", i & 1 ? "backward" : "forward", i & 2 ? ", odd lengths" : "",
               b->workspace);
    }
    printf("%d found an engine, %d were refused\n", b->yes, b->no);
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

/* Returns the code that cuDNN compiles for a program text; NULL if the graph is refused. */
static char *builds_text(builds *b, const char *text, fxa_pass pass) {
    t_program *program = NULL;
    fxa_error err;
    char *code = NULL;
    T_OK(fxa_program_parse(b->ctx, text, SIZE_MAX, &program, &err));
    builds_pass(b, program, text, pass, false, &code);
    return code;
}

static void builds_masks(builds *b, fxa_pass pass, int n) {
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
    for (int i = 0; i < n; i++) {
        code[i] = builds_text(b, masks[i], pass);
        T_CHECK(code[i]);
        for (int j = 0; j < i && code[i]; j++)
            if (code[j] && strcmp(code[i], code[j]) == 0)
                T_FAIL("pass %d: cuDNN makes the same code of \"%s\" and \"%s\"\n", (int)pass, masks[i], masks[j]);
    }
    printf("%d masks, each its own code\n", n);
    for (int i = 0; i < n; i++) free(code[i]);
}

/* Builds the gallery in e4m3 with scales, as far as the engine supports it, and the first masks. */
static void builds_bytes(builds *b) {
    struct dirent **files = NULL;
    int n = scandir(BUILDS_GALLERY, &files, builds_is_program, alphasort), yes = b->yes, no = b->no;
    b->dtype = FXA_E4M3;
    for (int i = 0; i < n; i++) {
        fxa_program *program = builds_file(b, files[i]->d_name);
        builds_both(b, program, files[i]->d_name, i & 1);
        fxa_program_destroy(program);
        free(files[i]);
    }
    free(files);
    printf("e4m3: %d graphs of the gallery found an engine, %d were refused with a reason\n", b->yes - yes, b->no - no);
    if (b->level.arch / 10 == 9) T_CHECK(b->yes - yes > n / 2); /* many backward passes are refused */
    for (int pass = 0; pass < 2 && b->level.arch / 10 == 9 && b->plans > 0; pass++)
        builds_masks(b, (fxa_pass)pass, BUILDS_BYTE_MASKS);
    b->dtype = 0;
}

/* Writes the text without its mask (`none`), or with the negated mask. Returns false if the text has no mask. */
static bool builds_other_mask(const char *text, bool none, char *out, size_t room) {
    const char *mask = strncmp(text, "mask = ", 7) == 0 ? text : strstr(text, "\nmask = ");
    if (!mask) return false;
    mask += *mask == '\n';
    const char *end = mask + strcspn(mask, "\n");
    if (none)
        snprintf(out, room, "%.*s%s", (int)(mask - text), text, end);
    else
        snprintf(out, room, "%.*smask = !(%.*s)%s", (int)(mask - text), text, (int)(end - mask - 7), mask + 7, end);
    return true;
}

/* Compares the code of a masked program of the gallery with that of the program without its mask and with the negated
 * mask. */
static bool builds_neighbours_of(builds *b, const char *name, fxa_pass pass) {
    char text[3][4000];
    char *code[3] = {NULL};
    fxa_program *program = builds_file(b, name);
    bool masked = program && fxa_program_print(program, text[0], sizeof text[0], NULL, NULL) == FXA_OK;
    for (int i = 1; i < 3; i++) masked = masked && builds_other_mask(text[0], i == 1, text[i], sizeof text[i]);
    fxa_program_destroy(program);
    if (masked) code[0] = builds_text(b, text[0], pass);
    for (int i = 1; i < 3 && code[0]; i++) {
        code[i] = builds_text(b, text[i], pass);
        for (int j = 0; j < i && code[i]; j++)
            if (code[j] && strcmp(code[i], code[j]) == 0)
                T_FAIL("pass %d: cuDNN makes the same code of\n%s\nand\n%s\n", (int)pass, text[i], text[j]);
    }
    bool compared = code[0] && (code[1] || code[2]);
    for (int i = 0; i < 3; i++) free(code[i]);
    return compared;
}

static void builds_neighbours(builds *b) {
    struct dirent **files = NULL;
    t_rng rng = {t_seed()};
    int n = scandir(BUILDS_GALLERY, &files, builds_is_program, alphasort), compared = 0,
        most = t_scaled(BUILDS_NEIGHBOURS);
    int64_t first = t_int(&rng, 0, n > 0 ? n - 1 : 0);
    for (int i = 0; i < 2 * n && compared < most; i++)
        compared += builds_neighbours_of(b, files[(first + i / 2) % n]->d_name, (fxa_pass)(i & 1));
    printf("%d masked graphs of the gallery are not what they are without their masks\n", compared);
    T_CHECK(compared > 0);
    for (int i = 0; i < n; i++) free(files[i]);
    free(files);
}

TEST(graphs_for_a_device) {
    const char *path = getenv("FXA_TEST_PROFILE"), *plans = getenv("FXA_TEST_PLANS");
    if (!path || !*path) T_SKIP("FXA_TEST_PROFILE names no profile of a device");
    builds b = {.plans = plans ? atoi(plans) : 0};
    char *profile = builds_read(path);
    T_REQUIRE(builds_open(&b, profile) == FXA_OK);
    T_CHECK(b.library.compiler); /* opened once, since cuDNN would load it for every query */
    const char *one = getenv("FXA_TEST_PROGRAM");
    bool some = (one && *one) || getenv("FXA_TEST_BYTES");
    if (one && *one)
        builds_one(&b, one);
    else if (some)
        builds_bytes(&b);
    else
        builds_programs(&b), builds_grafts(&b), builds_own(&b), builds_bias(&b), builds_bytes(&b);
    for (int pass = 0; pass < 2 && b.plans > 0 && !some; pass++) builds_masks(&b, (fxa_pass)pass, BUILDS_MASKS);
    if (b.plans > 0 && !some) builds_neighbours(&b);
    (void)b.library.api.descriptor_destroy(b.profile);
    fxa__cudnn_library_close(&b.library);
    fxa_context_destroy(b.ctx);
    free(profile);
}

T_MAIN
