/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameterized programs of the cuDNN engine (score/parameterize.c), on the stand-ins: programs that differ in
 * constants only are compiled once and found on disk and in plan bytes, and each runs with its own constants; graphs
 * equal those with constants in place. The expected results come from the same program with params.
 */
#include "cudnn_fixture.h"
#include "plan/plan.h"
#include "plan/host_copies.h"
#include "support/conformance/conf_case.h"

#include <dirent.h>
#include <pthread.h>

#define CONSTANTS_TAIL "\nmask = k <= q + 3"

/* Returns the soft cap of cudnn_fixture.h with a constant cap. */
static fxa_program *constants_cap(fxa_context *ctx, double cap) {
    char text[200];
    fxa_program *program = NULL;
    fxa_error err;
    snprintf(text, sizeof text, "score = %.17g * tanh(score / %.17g)" CONSTANTS_TAIL, cap, cap);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    return program;
}

/* Returns constant number i; none is 1, 2 or 0.5, which stay constants. */
static double constants_value(int i) { return 0.51 + 0.00123 * i; }

static void constants_call(const attn_data *x, fxa_pass pass, const fxa_program *program, attn_call *call) {
    attn_call_make(x, pass, call);
    call->p.engine = "cudnn", call->p.device = FXA_CUDA, call->p.param_grads = 0;
    call->args.dparams = NULL, call->args.n_dparams = 0;
    call->p.flags &= ~(uint32_t)FXA_READ_DLSE, call->args.slot[FXA_SLOT_DLSE] = NULL;
    if (program) call->p.program = program, call->args.params = NULL, call->args.n_params = 0;
}

static void constants_run(fxa_context *ctx, const attn_data *x, fxa_pass pass, const fxa_program *program) {
    attn_call call;
    fxa_error err;
    constants_call(x, pass, program, &call);
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
}

/* Compares the results of a cap as param with those of a constant cap in ctx: the bits must be equal. */
static void constants_compare(fxa_context *ctx, fxa_context *other, attn_data *x, fxa_pass pass, double cap,
                              attn_kept *want) {
    fxa_program *program = constants_cap(ctx, cap);
    x->params[0] = cap;
    if (pass == FXA_BACKWARD) constants_run(other, x, FXA_FORWARD, NULL);
    constants_run(other, x, pass, NULL);
    attn_keep(x, pass, want);
    if (pass == FXA_BACKWARD) constants_run(ctx, x, FXA_FORWARD, program);
    constants_run(ctx, x, pass, program);
    const char *differs = attn_other_bits(x, pass, want);
    if (differs) T_FAIL("cap %.17g, pass %d: %s\n", cap, (int)pass, differs);
    fxa_program_destroy(program);
}

TEST(a_thousand_caps_are_one_build) {
    NEEDS_STANDIN;
    fxa_context *ctx = t_context(), *other = t_context();
    attn_kept want[2] = {{{NULL}}, {{NULL}}}, first = {{NULL}};
    fxa_cache_stats stats;
    attn_data x;
    if (!data_make(&x, ctx)) return;
    for (int i = 0; i < t_scaled(1000) && !t_failures; i++)
        constants_compare(ctx, other, &x, i % 20 ? FXA_FORWARD : FXA_BACKWARD, constants_value(i), &want[i % 20 == 0]);
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 2);       /* a pass each */
    for (int i = 0; i < 2; i++) { /* different caps give different results */
        t_program *program = constants_cap(ctx, constants_value(999 * i));
        constants_run(ctx, &x, FXA_FORWARD, program);
        T_CHECK(!attn_other_bits(&x, FXA_FORWARD, &first) == !i);
    }
    for (int i = 0; i < 2; i++) attn_drop(&want[i]);
    attn_drop(&first);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    fxa_context_destroy(other);
    standin_check_end();
}

/* ---- The same graphs --------------------------------------------------------------------------------------------- */

#define CONSTANTS_GALLERY FXA_SOURCE_DIR "/examples/programs"
enum { CONSTANTS_LENGTH = 128, CONSTANTS_RANDOM = 400, CONSTANTS_MODES = 512 };

static fxa__problem *constants_problem(fxa_context *ctx, const fxa_program *program, fxa_pass pass, uint32_t flags) {
    fxa_problem p = problem_of(&spec, pass);
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa__problem *out = NULL;
    fxa_error err;
    memset(captures, 0, sizeof captures);
    p.sq = p.sk = CONSTANTS_LENGTH, p.flags |= flags, p.program = program;
    p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    for (size_t i = 0; i < p.n_captures; i++)
        for (int j = 0; j < FXA_MAX_RANK; j++) captures[i].size[j] = CONSTANTS_LENGTH;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &out, &err));
    return out;
}

/* Counts the operations of each kind, and the values, of a graph. */
static void constants_count(const fxa__dnn_graph *g, int count[CONSTANTS_MODES]) {
    memset(count, 0, CONSTANTS_MODES * sizeof *count);
    for (size_t i = 0; i < g->n_ops; i++) count[g->ops[i].kind == FXA__DNN_POINTWISE ? g->ops[i].mode % 500 : 500]++;
    for (size_t i = 0; i < g->n_tensors; i++)
        count[501] += fxa__dnn_is_by_value(&g->tensors[i]) && fxa__dnn_is_used(g, (int32_t)i);
}

/* Returns the number of constants that became params, in the graphs that are supported. */
static int constants_both(fxa_context *ctx, const fxa_program *program, const char *name, fxa_pass pass,
                          uint32_t flags) {
    static const fxa__dnn_level levels[] = {{91901, 90}, {91400, 90}, {91901, 80}, {91901, 100}};
    static fxa__dnn_attention a;
    fxa__problem *p = constants_problem(ctx, program, pass, flags);
    int hidden = 0;
    for (size_t i = 0; p && i < sizeof levels / sizeof *levels; i++) {
        int count[2][CONSTANTS_MODES];
        fxa_error err[2];
        fxa_status status[2];
        for (int with_params = 0; with_params < 2; with_params++) {
            status[with_params] = fxa__dnn_attention_make_with(p, levels[i], with_params, &a, &err[with_params]);
            constants_count(&a.g, count[with_params]);
            if (status[with_params] == FXA_OK) hidden += a.numbers.n_hidden;
            fxa__dnn_attention_free(&a);
        }
        if (status[0] != status[1])
            T_FAIL("%s, pass %d: %s\n", name, (int)pass, err[status[1] != FXA_OK].text);
        else if (status[0] == FXA_OK && memcmp(count[0], count[1], sizeof count[0]) != 0)
            T_FAIL("%s, pass %d: another graph\n", name, (int)pass);
        else if (status[0] != FXA_OK)
            T_STR(err[0].text, err[1].text);
    }
    fxa__problem_release(p);
    return hidden;
}

/* Programs whose lowering depends on constants, and constants at their limits. */
static const char *const constants_texts[] = {
    "score = clamp(score * 0.3, -2.5, 2.5)",
    "score = max(score, -7.25) + min(0.3 * score, 11.0)",
    "score = score > 0.3 ? score * 1.7 : -30.0",
    "score = (score * 0.7) ** 3.0 + 2.0 ** (score * 0.2)",
    "score = sin(score * 0.31) * 6.28125 + cos(score + 0.15915494309189535)",
    "score = 3.1 * tanh(1.1 * tanh(2.3 * tanh(0.9 * tanh(score * 7.0))))",
    "score = 60000.0 * (50000.0 * (40000.0 * (30000.0 * (tanh(score) * (1.5 - tanh(score))))))",
    "score = 1e30 * tanh(score / 1e30) + 1e-30 * score + 1e-300 * tanh(score) + 1e300 * tanh(score)",
    "score = score + 0.125 * k\nmask = float(q) * 0.5 >= float(k) - 3.7",
    "param w : int\nscore = score * 0.3 + 0.7 * (k // (w + int(exp(1.25))))\nmask = k <= q + int(2.5 * sqrt(3.0))",
    "param a : float\nscore = (a * 2.5) * score + sqrt(a) * 0.3",
    "score = 3.5",
    "score = score / (3.5 + exp(score * 0.1)) - log(2.25 + score * score)",
};

static fxa_program *constants_file(fxa_context *ctx, const char *name) {
    static char text[1 << 16];
    fxa_program *program = NULL;
    fxa_error err;
    snprintf(text, sizeof text, CONSTANTS_GALLERY "/%s", name);
    FILE *f = fopen(text, "r");
    T_CHECK(f);
    size_t size = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    T_OK(fxa_program_parse(ctx, text, size, &program, &err));
    return program;
}

static int constants_is_program(const struct dirent *e) {
    const char *dot = strrchr(e->d_name, '.');
    return dot && strcmp(dot, ".fxa") == 0;
}

static int constants_passes(fxa_context *ctx, fxa_program *program, const char *name, int i) {
    int hidden = 0;
    for (int pass = 0; pass < 2 && program; pass++)
        hidden += constants_both(ctx, program, name, (fxa_pass)pass, i % 3 ? 0 : FXA_SCALARS_IN_MEMORY);
    fxa_program_destroy(program);
    return hidden;
}

CONTEXT_TEST(graphs_are_those_with_constants) {
    static const conf_source sources[] = {CONF_TWIN, CONF_SMOOTH, CONF_BOTH, CONF_WILD, CONF_STEEP};
    enum { TEXTS = sizeof constants_texts / sizeof *constants_texts };
    uint64_t rng = t_seed();
    struct dirent **files = NULL;
    int hidden[3] = {0, 0, 0}, n_files = scandir(CONSTANTS_GALLERY, &files, constants_is_program, alphasort);
    T_CHECK(n_files > 50);
    for (int i = 0; i < n_files; i++) {
        hidden[0] += constants_passes(ctx, constants_file(ctx, files[i]->d_name), files[i]->d_name, i);
        free(files[i]);
    }
    free(files);
    for (int i = 0; i < 3 * TEXTS; i++) {
        fxa_program *program = NULL;
        T_OK(fxa_program_parse(ctx, constants_texts[i % TEXTS], SIZE_MAX, &program, &err));
        hidden[1] += constants_passes(ctx, program, constants_texts[i % TEXTS], i);
    }
    for (int i = 0; i < t_scaled(CONSTANTS_RANDOM); i++) {
        const char *name = "random";
        fxa_program *program = conf_program(ctx, sources[i % 5], CONSTANTS_GALLERY, &rng, &name);
        hidden[2] += constants_passes(ctx, program, name, i);
    }
    if (hidden[0] < 10 || hidden[1] < 200 || hidden[2] == 0)
        T_FAIL("%d, %d, %d numbers\n", hidden[0], hidden[1], hidden[2]);
}

/* ---- Beside params ----------------------------------------------------------------------------------------------- */

/* Names of params are sorted before and after those of hidden params; each param comes from the caller's slot, by value
 * and in memory. */
STANDIN_TEST(params_and_numbers) {
    static const char *const texts[] = {
        "param a : float\nparam z : float\nparam n : float\nscore = a * tanh(score / n) + z * score" CONSTANTS_TAIL,
        "param a : float\nparam z : float\nscore = a * tanh(score / 3.25) + z * score" CONSTANTS_TAIL,
        "param z : float\nscore = 0.75 * tanh(score / 3.25) + z * score" CONSTANTS_TAIL,
        "param a : float\nscore = a * tanh(score / 3.25) + 1.625 * score" CONSTANTS_TAIL,
    };
    static const double params[][3] = {{0.75, 3.25, 1.625}, {0.75, 1.625}, {1.625}, {0.75}}; /* sorted by name */
    attn_kept want[2] = {{{NULL}}, {{NULL}}};
    fxa_cache_stats stats;
    for (int i = 0; i < 8; i++) {
        attn_spec s = spec;
        attn_owned x = {0};
        attn_call call;
        double scale = 0.25;
        s.text = texts[i / 2];
        T_OK(attn_data_make(&x, ctx, &s, 77, &err));
        x.problem.alignment = 16, x.scale = scale;
        memcpy(x.params, params[i / 2], sizeof params[0]);
        for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            constants_call(&x, pass, NULL, &call);
            if (i % 2) {
                call.p.flags |= FXA_SCALARS_IN_MEMORY;
                call.args.slot[FXA_SLOT_PARAMS] = x.params, call.args.slot[FXA_SLOT_SCALE] = &scale;
                call.args.params = NULL, call.args.n_params = 0;
            }
            T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
        }
        for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            const char *differs = attn_other_bits(&x, pass, &want[pass]);
            if (differs) T_FAIL("case %d, pass %d: %s\n", i, (int)pass, differs);
        }
    }
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 16);
    for (int i = 0; i < 2; i++) attn_drop(&want[i]);
}

/* ---- Kept code --------------------------------------------------------------------------------------------------- */

/* Code on disk that was compiled for another constant is found. */
TEST(code_on_disk_is_that_of_all_numbers) {
    NEEDS_STANDIN;
    char folder[] = "/tmp/fxa-constants-XXXXXX", command[300];
    T_REQUIRE(mkdtemp(folder));
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    for (int round = 0; round < 3; round++) {
        fxa_context *other = t_context();
        setenv("FXA_CACHE_DIR", folder, 1);
        fxa_context *ctx = t_context();
        unsetenv("FXA_CACHE_DIR");
        fxa_cache_stats stats;
        attn_data x;
        if (!data_make(&x, ctx)) return;
        constants_compare(ctx, other, &x, FXA_FORWARD, constants_value(100 * round), &want);
        fxa_cache_get_stats(ctx, &stats);
        T_INT(stats.disk_hits, round > 0);
        T_INT(stats.disk_writes, round == 0);
        attn_data_free(&x);
        fxa_context_destroy(ctx);
        fxa_context_destroy(other);
        standin_check_end();
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    T_INT(system(command), 0);
}

/* Two saved plans share their code, and each runs with its own constant. */
TEST(saved_plans_have_their_numbers) {
    NEEDS_STANDIN;
    enum { PLANS = 2, ROOM = 1 << 20 };
    static unsigned char bytes[PLANS][ROOM];
    size_t size[PLANS];
    attn_kept want[PLANS] = {{{NULL}}, {{NULL}}};
    fxa_context *ctx = t_context(), *other = t_context();
    fxa_plan *plan[PLANS] = {NULL, NULL};
    fxa_cache_stats stats;
    attn_data x;
    attn_call call;
    if (!data_make(&x, ctx)) return;
    for (int i = 0; i < PLANS; i++) {
        t_program *program = constants_cap(other, constants_value(300 * i));
        constants_call(&x, FXA_FORWARD, program, &call);
        T_OK(fxa_plan_create(other, &call.p, &plan[i], &err));
        T_OK(fxa_plan_save(plan[i], bytes[i], ROOM, &size[i], &err));
        T_OK(fxa__host_copies_run(plan[i], &call.args, &err));
        attn_keep(&x, FXA_FORWARD, &want[i]);
        fxa_plan_destroy(plan[i]);
        T_OK(fxa_plan_load(ctx, bytes[i], size[i], &plan[i], &err));
    }
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 1);
    for (int i = 0; i < 3 * PLANS; i++) {
        T_OK(fxa__host_copies_run(plan[i % PLANS], &call.args, &err));
        T_CHECK(!attn_other_bits(&x, FXA_FORWARD, &want[i % PLANS]));
    }
    for (int i = 0; i < PLANS; i++) {
        fxa_plan_destroy(plan[i]);
        attn_drop(&want[i]);
    }
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    fxa_context_destroy(other);
    standin_check_end();
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct constants_thread {
    fxa_plan *plan[2];
    attn_data x;
    attn_call call;
    attn_kept want[2];
    bool ok;
} constants_thread;

static void *constants_interleave(void *arg) {
    constants_thread *r = arg;
    fxa_error err;
    r->ok = true;
    for (int i = 0; i < 20 && r->ok; i++)
        r->ok = fxa__host_copies_run(r->plan[i % 2], &r->call.args, &err) == FXA_OK &&
                !attn_other_bits(&r->x, FXA_FORWARD, &r->want[i % 2]);
    return NULL;
}

TEST(two_numbers_in_eight_threads) {
    NEEDS_STANDIN;
    enum { THREADS = 8 };
    static constants_thread runners[THREADS];
    pthread_t threads[THREADS];
    fxa_context *ctx = t_context(), *other = t_context();
    fxa_cache_stats stats;
    for (int i = 0; i < THREADS; i++) {
        constants_thread *r = &runners[i];
        memset(r, 0, sizeof *r);
        if (!data_make(&r->x, ctx)) return;
        for (int j = 0; j < 2; j++) {
            double cap = constants_value(10 * i + 500 * j);
            t_program *program = constants_cap(ctx, cap);
            r->x.params[0] = cap;
            constants_run(other, &r->x, FXA_FORWARD, NULL);
            attn_keep(&r->x, FXA_FORWARD, &r->want[j]);
            constants_call(&r->x, FXA_FORWARD, program, &r->call);
            T_OK(fxa_plan_create(ctx, &r->call.p, &r->plan[j], &err));
        }
    }
    for (int i = 0; i < THREADS; i++) T_INT(pthread_create(&threads[i], NULL, constants_interleave, &runners[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        T_CHECK(runners[i].ok);
        for (int j = 0; j < 2; j++) {
            fxa_plan_destroy(runners[i].plan[j]);
            attn_drop(&runners[i].want[j]);
        }
        attn_data_free(&runners[i].x);
    }
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 1);
    fxa_context_destroy(ctx);
    fxa_context_destroy(other);
    standin_check_end();
}

T_MAIN
