/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares row bytecode and workspaces of the cpu engine with the golden files tests/golden/cpu_bytecode.txt and
 * cpu_workspaces.txt: the bytecode of the gallery's programs and of masks with much logic, and the workspace of
 * problems of many shapes in each instruction set. FXA_TEST_UPDATE=1 writes the files anew; lines of instruction sets
 * that this machine lacks are kept.
 */
#include "program/program.h"
#include "support/fixtures/isa.h"
#include "t.h"

#include <dirent.h>

/* ---- Golden files ------------------------------------------------------------------------------------------------ */

static char golden_file[1 << 20], golden_now[1 << 20];

static void golden_read(const char *name, char path[512]) {
    snprintf(path, 512, "%s/tests/golden/%s", FXA_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(golden_file, 1, sizeof golden_file - 1, f) : 0;
    if (f) (void)fclose(f);
    golden_file[n] = '\0';
    golden_now[0] = '\0';
}

static void golden_add(const char *text) {
    size_t used = strlen(golden_now);
    if (used + strlen(text) >= sizeof golden_now) abort();
    memcpy(golden_now + used, text, strlen(text) + 1);
}

static void golden_compare(const char *path) {
    FILE *f = getenv("FXA_TEST_UPDATE") ? fopen(path, "wb") : NULL;
    if (f) T_CHECK(fputs(golden_now, f) >= 0 && fclose(f) == 0);
    if (f || strcmp(golden_now, golden_file) == 0) return;
    const char *line = golden_now;
    for (const char *a = golden_now, *b = golden_file; *a && *a == *b; a++, b++)
        if (*a == '\n') line = a + 1;
    T_FAIL("%s differs from \"%.*s\"; if this is meant, run FXA_TEST_UPDATE=1 build/tests/test_cpu_golden\n", path,
           (int)strcspn(line, "\n"), line);
}

/* ---- Bytecode ---------------------------------------------------------------------------------------------------- */

static const char *const golden_masks[] = {
    "mask = k <= q && (q - k < 64 || k < 4) && !(q % 7 == k % 7)",
    "tensor t : i32[1]\nmask = (t[q] == t[k] || k < 3) && (k <= q || t[k] == 0) && q - k < 9",
    "tensor t : bool[1]\ntensor u : i32[2]\nmask = t[k] ^ (u[h, k] < q) ^ (q > k ? t[q] : !t[q])",
    "param n : int\nmask = q // n == k // n || (q < 4 && k < 4) || abs(q - k) <= n",
    "mask = -(q - k) + 3 > 0 && -(-k) < q * 2 && 3 - (k - 5) < q + k",
    "mask = score > 0.5 && k <= q || h == 1 && k < q_len",
    ("tensor t : f32[3]\nlet x = t[b, h, k]\nscore = score * x + x * x - (x + 1) * (score + x)\n"
     "mask = x > 0.0 && k <= q"),
    "score = score * score * score - 2.0 * score + 0.5 * (q - k) * (q - k) + float(k) * 0.25",
    "tensor t : f32[2]\nscore = score + t[q - k + 8, h] + t[(q + k) % 5, 1] - t[-k - 1, 0]",
};

static int golden_by_name(const void *a, const void *b) { return strcmp(a, b); }

/* Reads the names of the gallery's programs, sorted. Returns their number. */
static int golden_gallery(char names[][64], int most) {
    DIR *dir = opendir(FXA_SOURCE_DIR "/examples/programs");
    int n = 0;
    for (const struct dirent *d; dir && n < most && (d = readdir(dir)) != NULL;)
        if (strlen(d->d_name) < 64 && strstr(d->d_name, ".fxa")) strcpy(names[n++], d->d_name);
    if (dir) (void)closedir(dir);
    qsort(names, (size_t)n, sizeof *names, golden_by_name);
    return n;
}

/* Returns a mask with more logic than one formula of bits takes. */
static const char *golden_long_mask(void) {
    static char text[4096] = "mask = k <= q";
    for (int i = 2; i < 34; i++)
        snprintf(text + strlen(text), 80, " && !(k %% %d == %d %s !(q < k * %d))", i, i / 2, i % 2 ? "||" : "^", i);
    return text;
}

/* Adds the bytecode of a plan of the program, in backward with all gradients. */
static void golden_dump(fxa_context *ctx, fxa_program *program, fxa_pass pass) {
    static char text[1 << 16];
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_capture captures[FXA_MAX_TENSORS];
    t_plan *plan = NULL;
    fxa_error err;
    size_t needed = 0;
    memset(captures, 0, sizeof captures);
    p.program = program, p.engine = "cpu", p.pass = (uint32_t)pass, p.q.dtype = FXA_F32;
    p.b = 2, p.hq = 4, p.sq = p.sk = 16, p.d_qk = 4;
    p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    if (pass == FXA_BACKWARD) p.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    for (size_t i = 0; i < p.n_captures; i++) {
        for (int d = 0; d < FXA_MAX_RANK; d++) captures[i].size[d] = 16;
        captures[i].grad = pass == FXA_BACKWARD && program->tensors[i].type == FXA_FLOAT;
    }
    for (size_t i = 0; i < fxa_program_param_count(program) && pass == FXA_BACKWARD; i++)
        if (program->params[i].type == FXA_FLOAT) p.param_grads |= UINT64_C(1) << i;
    *text = '\0';
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    T_OK(fxa_plan_dump(plan, text, sizeof text, &needed, &err));
    golden_add(pass == FXA_BACKWARD ? "-- backward\n" : "-- forward\n");
    golden_add(text);
}

static void golden_program(fxa_context *ctx, const char *name, const char *text) {
    t_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    if (!p) return;
    golden_add("==== ");
    golden_add(name);
    golden_add("\n");
    golden_dump(ctx, p, FXA_FORWARD);
    golden_dump(ctx, p, FXA_BACKWARD);
}

TEST(bytecode_is_that_of_the_golden_file) {
    static char names[128][64], text[1 << 14], path[512];
    char kept[64], golden[512];
    snprintf(kept, sizeof kept, "%s", getenv("FXA_CPU") ? getenv("FXA_CPU") : "");
    setenv("FXA_CPU", "scalar", 1);
    fxa_context *ctx = t_context();
    golden_read("cpu_bytecode.txt", golden);
    for (size_t i = 0; i < sizeof golden_masks / sizeof *golden_masks; i++)
        golden_program(ctx, golden_masks[i], golden_masks[i]);
    golden_program(ctx, "a long mask", golden_long_mask());
    for (int i = 0, n = golden_gallery(names, 128); i < n; i++) {
        snprintf(path, sizeof path, "%s/examples/programs/%.63s", FXA_SOURCE_DIR, names[i]);
        FILE *f = fopen(path, "rb");
        size_t size = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f) (void)fclose(f);
        text[size] = '\0';
        golden_program(ctx, names[i], text);
    }
    golden_compare(golden);
    fxa_context_destroy(ctx);
    if (*kept)
        setenv("FXA_CPU", kept, 1);
    else
        unsetenv("FXA_CPU");
}

/* ---- Workspaces -------------------------------------------------------------------------------------------------- */

static const struct golden_shape {
    int64_t b, hq, hkv, sq, sk, d, dv;
    uint32_t flags;
    fxa_dtype dtype;
    uint32_t page_size;
    const char *text;
    int64_t size[3]; /* sizes of the captured tensor */
} golden_shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, FXA_F32, 0, NULL, {0}},
    {2, 4, 4, 100, 100, 64, 64, FXA_CAUSAL, FXA_F32, 0, NULL, {0}},
    {1, 8, 2, 1, 5000, 128, 128, 0, FXA_BF16, 0, NULL, {0}},
    {1, 8, 1, 3, 777, 64, 32, 0, FXA_F16, 0, NULL, {0}},
    {1, 1, 1, 4096, 4096, 64, 64, FXA_CAUSAL, FXA_BF16, 0, NULL, {0}},
    {1, 2, 1, 333, 9000, 40, 200, 0, FXA_F32, 0, NULL, {0}},
    {3, 6, 3, 50, 1300, 256, 16, FXA_PADDING, FXA_F64, 0, NULL, {0}},
    {4, 4, 2, 64, 512, 64, 64, FXA_DROPOUT, FXA_F32, 0, NULL, {0}},
    {2, 4, 2, 17, 600, 64, 64, FXA_PAGED, FXA_F32, 16, NULL, {0}},
    {2, 2, 2, 300, 300, 32, 32, 0, FXA_F32, 0, "mask = (q * k) % 7 < 3 && k <= q", {0}},
    {2, 2, 2, 300, 2000, 32, 32, 0, FXA_BF16, 0, "tensor t : i32[1]\nmask = t[q % 99] == t[k % 99]", {99}},
    {2, 2, 2, 300, 2000, 32, 32, 0, FXA_F32, 0, "tensor t : f32[3]\nscore = score + t[h, q, k]", {2, 300, 2000}},
    {2, 2, 2, 300, 700, 32, 32, 0, FXA_F32, 0, "tensor t : f32[1]\nscore = score + t[q - k + 699]", {999}},
    {2, 2, 2, 900, 900, 32, 32, 0, FXA_F32, 0, "tensor t : f32[2]\nscore = score * t[q, k % 7]", {900, 7}},
    {2,
     2,
     1,
     900,
     900,
     32,
     32,
     0,
     FXA_F32,
     0,
     "tensor t : f32[3]\nscore = score * t[b, h, q % 2 + k // 2]",
     {2, 2, 300000}},
    {2, 3, 1, 70, 4000, 16, 16, 0, FXA_F32, 0, "param c : float\nscore = c * tanh(score / c)", {0}},
};

/* Returns the workspace of a shape and pass; SIZE_MAX with a failed check if there is no plan. */
static size_t golden_workspace(fxa_context *ctx, const struct golden_shape *s, int pass) {
    fxa_problem p = FXA_PROBLEM_INIT;
    t_program *program = NULL;
    fxa_capture capture = {.grad = (uint32_t)pass};
    t_plan *plan = NULL;
    fxa_error err;
    p.b = s->b, p.hq = s->hq, p.hkv = s->hkv, p.sq = s->sq, p.sk = s->sk, p.d_qk = s->d, p.d_v = s->dv;
    p.flags = s->flags | (pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : 0);
    p.q.dtype = s->dtype, p.pass = pass ? FXA_BACKWARD : FXA_FORWARD, p.engine = "cpu";
    p.page_size = s->page_size, p.n_pages = s->page_size ? 100 : 0;
    p.dropout_p = s->flags & FXA_DROPOUT ? 0.25 : 0;
    if (s->text) T_OK(fxa_program_parse(ctx, s->text, SIZE_MAX, &program, &err));
    p.program = program;
    memcpy(capture.size, s->size, sizeof s->size);
    if (s->size[0]) p.captures = &capture, p.n_captures = 1;
    capture.grad = pass && s->text && strstr(s->text, "f32[");
    if (pass && s->text && strstr(s->text, "param")) p.param_grads = 1;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    size_t size = plan ? fxa_plan_workspace(plan) : SIZE_MAX;
    return size;
}

static void golden_isa(const char *isa) {
    static const uint32_t widths[] = {1, 3, 64};
    char line[200];
    for (size_t w = 0; w < 3; w++) {
        fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
        t_ctx *ctx = NULL;
        fxa_error err;
        config.threads = widths[w];
        T_OK(fxa_context_create(&config, &ctx, &err));
        for (size_t i = 0; i < sizeof golden_shapes / sizeof *golden_shapes; i++) {
            snprintf(line, sizeof line, "%s, %u threads, shape %zu: %zu %zu\n", isa, (unsigned)widths[w], i,
                     golden_workspace(ctx, &golden_shapes[i], 0), golden_workspace(ctx, &golden_shapes[i], 1));
            golden_add(line);
        }
    }
}

TEST(workspaces_are_those_of_the_golden_file) {
    char path[512];
    if (!FXA_ASSERT || sizeof(void *) != 8) T_SKIP("the sizes are those of 64-bit builds with red zones");
    if (getenv("FXA_CPU")) T_SKIP("FXA_CPU selects one instruction set");
    golden_read("cpu_workspaces.txt", path);
    for (int i = 0; i < ISA_COUNT; i++) {
        static char why[2560];
        char start[32];
        setenv("FXA_CPU", isa_names[i], 1);
        snprintf(start, sizeof start, "%s, ", isa_names[i]);
        bool known = strstr(golden_file, start) || getenv("FXA_TEST_UPDATE");
        if (known && isa_is_usable(why, sizeof why)) {
            golden_isa(isa_names[i]);
            continue;
        }
        printf("  skipped set %s: %s\n", isa_names[i], known ? why : "the file was written on a machine without it");
        for (char *at = golden_file; *at; at += strcspn(at, "\n") + 1) {
            char line[200];
            snprintf(line, sizeof line, "%.*s\n", (int)strcspn(at, "\n"), at);
            if (strncmp(line, start, strlen(start)) == 0) golden_add(line);
        }
    }
    unsetenv("FXA_CPU");
    golden_compare(path);
}

T_MAIN
