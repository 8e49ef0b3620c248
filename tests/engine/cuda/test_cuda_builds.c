/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of the CUDA engine with the real NVRTC, without a GPU, for the devices of examples/targets: programs of the
 * gallery, both passes, storage types, head dims and features, on architectures of all families. Compiled code has the
 * shapes that the engine expects (the engine checks them), and survives plan bytes. Spills and serialised products
 * (wgmma) that the compiler reports are compared with a list (built_budgets.h).
 *
 * The complete matrix has every program with every size, both passes, once each. Target and features rotate, so that
 * each target meets every program, every size and every feature. The matrix is walked in rounds of all programs.
 *
 *     default                  a few builds, seconds
 *     FXA_CUDA_MATRIX=full     all builds, two hours of one CPU; a number: this many, evenly spread
 *     FXA_TEST_TARGET=h200     one target only
 *     FXA_TEST_SHARD=3/14      every 14th build, starting with number 3, for parallel processes
 *     FXA_TEST_VERBOSE=1       a line for each build
 *
 * NVRTC is searched as the engine does, and in the folder of make deps-cudnn. Without NVRTC every test is skipped, by
 * name.
 */
#include "../all/cuda_families.h"
#include "built_budgets.h"
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "t.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#ifndef FXA_TEST_DEPS
#define FXA_TEST_DEPS ""
#endif

enum { BUILT_PROGRAMS = 128, BUILT_TEXT = 1 << 14, BUILT_SOME = 5, BUILT_SIZE = 512 };

static const char *const built_targets[] = {"h200", "a100", "l40s", "b200", "rtx_pro_6000"};
enum { BUILT_TARGETS = sizeof built_targets / sizeof *built_targets };

static const int64_t built_columns[][2] = {{128, 128}, {64, 64},  {96, 96},   {32, 32},   {192, 128}, {256, 256},
                                           {40, 72},   {128, 64}, {192, 192}, {64, 256},  {256, 32},  {1, 1},
                                           {32, 192},  {96, 160}, {256, 128}, {130, 256}, {192, 64},  {64, 32}};
enum { BUILT_COLUMNS = sizeof built_columns / sizeof *built_columns };

static const struct built_feature {
    uint32_t dtype, flags, alignment;
    bool grads, shared; /* gradients of captured tensors and params; query heads that share KV heads */
    bool wide, decode;  /* O and dK are f32; few queries */
    int64_t step;       /* step of query coordinates; 0 = 1 */
} built_features[] = {
    {FXA_BF16, 0, 16, false, false, false, false, 0},
    {FXA_F16, FXA_CAUSAL, 16, false, true, false, false, 0},
    {FXA_BF16, FXA_PADDING | FXA_CAUSAL | FXA_BOTTOM_RIGHT, 16, false, true, false, false, 0},
    {FXA_BF16, FXA_VARLEN | FXA_DROPOUT, 16, false, false, false, false, 0},
    {FXA_BF16, 0, 16, true, false, false, false, 0},
    {FXA_F32, FXA_SINKS | FXA_PADDING, 0, false, false, false, false, 0},
    {FXA_F16, FXA_DETERMINISTIC, 16, false, false, false, false, 0},
    {FXA_BF16, FXA_DROPOUT, 2, false, true, false, false, 0},
    {FXA_F32, FXA_CAUSAL, 16, true, false, false, false, 0},
    {FXA_F16, FXA_PAGED | FXA_PADDING, 16, false, true, false, false, 0},
    {FXA_BF16, 0, 16, false, false, true, false, 0},
    {FXA_BF16, FXA_DROPOUT, 16, false, false, false, false, 2},
    {FXA_F16, FXA_PADDING, 16, false, true, false, true, 0},
};
enum { BUILT_FEATURES = sizeof built_features / sizeof *built_features };

typedef struct built {
    fxa_context *ctx;
    char target[BUILT_TARGETS][4096];
    char name[BUILT_PROGRAMS][64];
    fxa_program *program[BUILT_PROGRAMS];
    int n_programs, compiled, refused;
    double slowest;
} built;

static size_t built_read(const char *path, char *out, size_t room) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(out, 1, room - 1, f) : 0;
    if (f) fclose(f);
    out[n] = '\0';
    return n;
}

static int built_order(const void *x, const void *y) { return strcmp(x, y); }

/* Reads the gallery, sorted by name. */
static bool built_start(built *b) {
    static char text[BUILT_TEXT];
    char path[512];
    fxa_error err;
    memset(b, 0, sizeof *b);
    T_OK(fxa_context_create(NULL, &b->ctx, &err));
    for (int i = 0; i < BUILT_TARGETS; i++) {
        (void)snprintf(path, sizeof path, "%s/examples/targets/%s.json", FXA_SOURCE_DIR, built_targets[i]);
        if (!built_read(path, b->target[i], sizeof b->target[i])) return false;
    }
    DIR *folder = opendir(FXA_SOURCE_DIR "/examples/programs");
    for (struct dirent *e; folder && (e = readdir(folder)) && b->n_programs < BUILT_PROGRAMS;)
        if (strstr(e->d_name, ".fxa") && strlen(e->d_name) < sizeof b->name[0])
            strcpy(b->name[b->n_programs++], e->d_name);
    if (folder) closedir(folder);
    qsort(b->name, (size_t)b->n_programs, sizeof b->name[0], built_order);
    for (int i = 0; i < b->n_programs; i++) {
        (void)snprintf(path, sizeof path, "%s/examples/programs/%s", FXA_SOURCE_DIR, b->name[i]);
        (void)built_read(path, text, sizeof text);
        T_OK(fxa_program_parse(b->ctx, text, strlen(text), &b->program[i], &err));
    }
    return b->n_programs > 10;
}

static void built_end(built *b) {
    for (int i = 0; i < b->n_programs; i++) fxa_program_destroy(b->program[i]);
    fxa_context_destroy(b->ctx);
}

/* Returns a problem whose captured tensors are as large as the longest coordinate. */
static fxa_problem built_problem(const fxa_program *program, const struct built_feature *f, const int64_t columns[2],
                                 fxa_pass pass, fxa_capture captures[FXA_MAX_TENSORS]) {
    fxa_problem p = FXA_PROBLEM_INIT;
    memset(captures, 0, FXA_MAX_TENSORS * sizeof *captures);
    p.b = 2, p.hq = 4, p.hkv = f->shared ? 2 : 4, p.sq = BUILT_SIZE - 16, p.sk = BUILT_SIZE;
    p.d_qk = columns[0], p.d_v = columns[1], p.pass = (uint32_t)pass, p.flags = f->flags;
    p.total_q = 2 * p.sq, p.total_k = 2 * p.sk, p.n_pages = 32, p.page_size = f->flags & FXA_PAGED ? 64 : 0;
    p.q.dtype = f->dtype, p.alignment = f->alignment, p.device = FXA_CUDA, p.engine = "cuda", p.program = program;
    p.dropout_p = f->flags & FXA_DROPOUT ? 0.25 : 0;
    if (!(f->flags & FXA_VARLEN)) p.total_q = p.total_k = 0;
    if (!(f->flags & FXA_PAGED)) p.n_pages = 0;
    if (f->decode && pass == FXA_FORWARD) p.sq = 3, p.sk = 8 * BUILT_SIZE;
    if (f->wide && pass == FXA_FORWARD) p.o.dtype = FXA_F32, p.flags |= FXA_RETURN_ROW_MAX;
    if (f->wide && pass == FXA_BACKWARD) p.dk.dtype = FXA_F32;
    if (f->step) p.map_q.kind = FXA_MAP_AFFINE, p.map_q.base = 5, p.map_q.step = f->step;
    p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    for (size_t i = 0; i < p.n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(program, i);
        bool is_float = t.dtype == FXA_F32 || t.dtype == FXA_F16 || t.dtype == FXA_BF16;
        for (int j = 0; j < FXA_MAX_RANK; j++) captures[i].size[j] = t.rank < 4 ? BUILT_SIZE : 8;
        captures[i].grad = pass == FXA_BACKWARD && f->grads && is_float;
    }
    if (pass == FXA_BACKWARD) {
        p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
        for (size_t i = 0; f->grads && i < fxa_program_param_count(program); i++)
            if (fxa_program_param(program, i).type == FXA_FLOAT) p.param_grads |= (uint64_t)1 << i;
    }
    return p;
}

static double built_now(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Saves a plan and loads it by the instance of the target: saving again gives the same bytes, and loading takes less
 * than a tenth of the time of compiling. */
static void built_save(built *b, const fxa_plan *plan, double seconds, const char *label) {
    fxa__host *host = fxa__context_host(b->ctx);
    const fxa__instance *instance = plan->code->instance;
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host}, again = {.host = host};
    void *code = NULL;
    size_t bytes = 0;
    fxa_error err;
    instance->engine->save(instance->self, plan->code->code, &w);
    fxa__reader r = {.data = w.data, .size = w.size};
    double start = built_now();
    fxa__analysis a = fxa__analysis_of(instance, plan->problem);
    T_OK(instance->engine->load(&a, &r, &code, &bytes, &err));
    fxa__analysis_end(&a);
    start = built_now() - start;
    T_CHECK(fxa__reader_done(&r));
    if (code) instance->engine->save(instance->self, code, &again);
    if (!code || w.size != again.size || memcmp(w.data, again.data, w.size) != 0)
        T_FAIL("%s: other bytes after loading\n", label);
    if (start > 0.02 + 0.1 * seconds) T_FAIL("%s: loaded in %.3f s, compiled in %.3f s\n", label, start, seconds);
    if (code) instance->engine->release(instance->self, code);
    fxa__writer_free(&again);
}

/* ---- Messages of the compiler
 * ------------------------------------------------------------------------------------- */

enum { BUILT_LOG = 1 << 18, BUILT_SAID = 16 };

static struct {
    pthread_mutex_t lock;
    fxa__nvrtc_api api; /* the real one */
    struct {
        char kernel[32];
        int spills;
        bool serialised;
    } said[BUILT_SAID]; /* messages of the compiler about the current plan */
    int n;
} built_compiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns the index in `said` of the quoted kernel name after `before` in a line; -1 = none. */
static int built_said_of(const char *line, const char *before) {
    const char *name = strstr(line, before);
    if (!name) return -1;
    name += strlen(before);
    int i = 0, length = (int)strcspn(name, "'");
    while (i < built_compiler.n && ((int)strlen(built_compiler.said[i].kernel) != length ||
                                    strncmp(built_compiler.said[i].kernel, name, (size_t)length) != 0))
        i++;
    if (i == BUILT_SAID) return -1;
    if (i == built_compiler.n) {
        built_compiler.n++;
        (void)snprintf(built_compiler.said[i].kernel, sizeof built_compiler.said[i].kernel, "%.*s", length, name);
    }
    return i;
}

/* Reads the compiler's log: a line with the name of each kernel, then a line with its spills; serialised products have
 * a line too. */
static void built_read_log(char *log) {
    int now = -1;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        int next = built_said_of(line, "Compiling entry function '"), slow = built_said_of(line, "in function '");
        const char *spills = strstr(line, " bytes spill stores");
        if (next >= 0) now = next;
        while (spills && spills > line && spills[-1] >= '0' && spills[-1] <= '9') spills--;
        if (spills && now >= 0) built_compiler.said[now].spills += atoi(spills);
        if (slow >= 0 && strstr(line, "(C75")) built_compiler.said[slow].serialised = true;
    }
}

/* Compiles with the real NVRTC and reads the last part of its log. */
static int built_compile(void *program, int n, const char *const *options) {
    const char *more[32];
    size_t size = 0;
    for (int i = 0; i < n; i++) more[i] = options[i];
    more[n] = "--ptxas-options=-v";
    int status = built_compiler.api.compile(program, n + 1, more);
    char *log = malloc(BUILT_LOG);
    bool fits = log && built_compiler.api.log_size(program, &size) == 0 && size && size < BUILT_LOG;
    (void)pthread_mutex_lock(&built_compiler.lock);
    if (fits && built_compiler.api.log(program, log) == 0) built_read_log(log);
    (void)pthread_mutex_unlock(&built_compiler.lock);
    free(log);
    return status;
}

/* Makes the engine call built_compile. Returns NULL, or the reason why NVRTC is missing. */
static const char *built_listen(const built *b) {
    static fxa_error err;
    for (int i = 0; i < BUILT_TARGETS; i++) {
        fxa__instance *instance;
        T_OK(fxa__instance_get(fxa__context_host(b->ctx), &fxa__engine_cuda, 0, b->target[i], &instance, &err));
        fxa__cuda_self *self = instance->self;
        if (!self || fxa__cuda_compiler_find(self, &err) != FXA_OK) return err.text;
        built_compiler.api = self->nvrtc.api;
        self->nvrtc.api.compile = built_compile;
    }
    return NULL;
}

/* Compares the messages about a plan with the list of exceptions. */
static void built_judge(const char *program, const char *label, const fxa_plan *plan) {
    const fxa__cuda_choice *c = &((const fxa__cuda_code *)plan->code->code)->choice;
    for (int i = 0; i < built_compiler.n; i++) {
        const char *kernel = built_compiler.said[i].kernel;
        int spills = built_compiler.said[i].spills, allowed = 0;
        bool serialised = built_compiler.said[i].serialised;
        for (size_t j = 0; j < sizeof built_budgets / sizeof *built_budgets; j++) {
            const struct built_budget *x = &built_budgets[j];
            if (x->family != (int)family_of(c) || strcmp(x->kernel, kernel) != 0) continue;
            if (strncmp(x->program, program, strlen(x->program)) != 0) continue;
            if (x->spills > allowed) allowed = x->spills;
            if (x->serialised) serialised = false;
        }
        if (getenv("FXA_TEST_VERBOSE") && (spills || built_compiler.said[i].serialised))
            printf("NOTE %s %s %s d %d: spills %d%s\n", family_names[family_of(c)], kernel, program, (int)c->traits.d,
                   spills, built_compiler.said[i].serialised ? ", serialised" : "");
        if (spills > allowed) T_FAIL("%s: %s spills %d bytes, %d are listed\n", label, kernel, spills, allowed);
        if (serialised) T_FAIL("%s: products of %s are serialised\n", label, kernel);
    }
}

static void built_one(built *b, int program, int columns, int feature, int target, fxa_pass pass) {
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa_plan *plan = NULL;
    fxa_error err = {.status = FXA_OK};
    char label[200];
    fxa_problem p =
        built_problem(b->program[program], &built_features[feature], built_columns[columns], pass, captures);
    p.target = b->target[target];
    (void)snprintf(label, sizeof label, "%s, %s, %s, d_qk %lld, d_v %lld, features %d", b->name[program],
                   built_targets[target], pass == FXA_FORWARD ? "forward" : "backward", (long long)p.d_qk,
                   (long long)p.d_v, feature);
    memset(built_compiler.said, 0, sizeof built_compiler.said);
    built_compiler.n = 0;
    double start = built_now();
    fxa_status status = fxa_plan_create(b->ctx, &p, &plan, &err);
    start = built_now() - start;
    if (getenv("FXA_TEST_VERBOSE"))
        printf("%s: %.2f s, %s\n", label, start, plan ? fxa_plan_description(plan) : err.text);
    if (status == FXA_E_UNSUPPORTED)
        b->refused++;
    else if (status != FXA_OK)
        T_FAIL("%s: %s\n", label, err.text);
    else if (++b->compiled % 8 == 1)
        built_save(b, plan, start, label);
    if (plan) built_judge(b->name[program], label, plan);
    if (start > b->slowest) b->slowest = start;
    (void)fflush(stdout);
    fxa_plan_destroy(plan);
    fxa_cache_clear(b->ctx);
}

/* A program that uses many features is compiled first, then all programs in turn. */
TEST(programs_compile_for_every_device) {
    static built b;
    struct stat st;
    const char *matrix = getenv("FXA_CUDA_MATRIX"), *only = getenv("FXA_TEST_TARGET"),
               *fetched = FXA_TEST_DEPS "/nvidia/cu13/lib";
    if (!getenv("FXA_NVRTC_PATH") && stat(fetched, &st) == 0) setenv("FXA_NVRTC_PATH", fetched, 1);
    T_REQUIRE(built_start(&b));
    const char *missing = built_listen(&b);
    if (missing) {
        built_end(&b);
        T_SKIP(missing);
    }
    int all = b.n_programs * BUILT_COLUMNS * 2;
    bool full = matrix && strcmp(matrix, "full") == 0;
    int wanted = full ? all : matrix && atoi(matrix) > 0 ? atoi(matrix) : BUILT_SOME;
    int shard = 0, shards = 1;
    if (getenv("FXA_TEST_SHARD")) T_INT(sscanf(getenv("FXA_TEST_SHARD"), "%d/%d", &shard, &shards), 2);
    uint64_t draw = t_seed();
    for (int i = 0; i < wanted && i < all;) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        int place = full ? i : (int)((draw >> 33) % (uint64_t)all), program = place / 2 % b.n_programs;
        int columns = (7 * program + place / 2 / b.n_programs) % BUILT_COLUMNS;
        int target = (program + 3 * columns + place % 2) % BUILT_TARGETS,
            feature = (program + columns) % BUILT_FEATURES;
        if (!full && target != i % BUILT_TARGETS) continue; /* a few programs are compiled for all targets */
        fxa_pass pass = place % 2 ? FXA_BACKWARD : FXA_FORWARD;
        if (i % shards == shard && (!only || strcmp(only, built_targets[target]) == 0))
            built_one(&b, program, columns, feature, target, pass);
        i++;
    }
    printf("%d plans compiled, %d refused, the slowest in %.1f s\n", b.compiled, b.refused, b.slowest);
    T_CHECK(b.compiled > 0);
    built_end(&b);
}

T_MAIN
