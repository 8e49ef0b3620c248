/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine on a GPU compared with the reference: kinds of problems in many shapes (cuda_kinds.h), both passes,
 * within the bounds of all engines (docs/numerics.md), with cpu and cudnn as further opinions. run_cuda.py runs many
 * processes of this test in parallel, with each family of kernels (FXA_CUDA_FAMILY) in turn, and counts the lines
 * that they print, one as soon as a case ends, so that the results of a killed process count too. A watchdog ends a
 * case that hangs, together with its process.
 *
 *   FXA_TEST_KINDS=from,count    kinds to test
 *   FXA_TEST_SHAPES              number of shapes of each kind
 *   FXA_TEST_CASE, FXA_TEST_SHAPE  replay a failure, which prints both
 *   FXA_TEST_SMALL=1             small shapes only
 *   FXA_TEST_OTHERS=cpu,cudnn    engines that give a further opinion
 *   FXA_TEST_SECONDS             seconds of the watchdog
 *   FXA_TEST_ENGINE=cpu          tests the cpu engine, without a GPU
 *   FXA_TEST_TARGET=FILE         also makes plans of cuda for a device description (examples/targets) by NVRTC
 *
 * Without a GPU, the tests check that the shapes of a kind share compiled code, and run the frame with the cpu
 * engine.
 */
#include "cuda_kinds.h"
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <time.h>
#include <unistd.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_cudnn,
                                                      &fxa__engine_ref};

enum { CU_WRONG = 6 /* wrong kinds after which a test ends */, CU_SHAPES = 12, CU_SECONDS = 45 };

static bool cudev_lost; /* true: a kernel failed in a way after which the device can run nothing more */

static double cudev_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int cudev_number(const char *variable, int otherwise) {
    return frame_is_set(variable) ? atoi(getenv(variable)) : otherwise;
}

/* ---- What a case has --------------------------------------------------------------------------------------------- */

static void cudev_tag(char *out, size_t room, bool has, const char *name) {
    size_t n = strlen(out);
    if (has) snprintf(out + n, room - n, "%s%s", n ? "," : "", name);
}

static void cudev_tag_flags(const conf_case *c, char *out, size_t room) {
    static const struct {
        uint32_t flag;
        const char *name;
    } forward[] = {{FXA_PADDING, "padded"},
                   {FXA_VARLEN, "packed"},
                   {FXA_PAGED, "paged"},
                   {FXA_SINKS, "sink"},
                   {FXA_SINK_ZERO, "sink-zero"},
                   {FXA_DROPOUT, "dropout"},
                   {FXA_CAUSAL, "causal"},
                   {FXA_WINDOW, "window"},
                   {FXA_Q_START, "positions"},
                   {FXA_BOTTOM_RIGHT, "bottom-right"},
                   {FXA_SCALARS_IN_MEMORY, "scalars-in-memory"},
                   {FXA_RETURN_ROW_MAX, "maximum"},
                   {FXA_ACCUMULATE_O, "joined"}},
      backward[] = {{FXA_READ_DLSE, "dLSE"},
                    {FXA_GRAD_SINKS, "dsink"},
                    {FXA_DETERMINISTIC, "deterministic"},
                    {FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV | FXA_ACCUMULATE_DSINKS, "added-to"},
                    {FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS, "added-to-captured"}};
    const fxa_problem *p = &c->base.data.problem;
    uint32_t grads = c->base.data.backward_flags, all = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    for (size_t i = 0; i < sizeof forward / sizeof *forward; i++)
        cudev_tag(out, room, p->flags & forward[i].flag, forward[i].name);
    for (size_t i = 0; i < sizeof backward / sizeof *backward; i++)
        cudev_tag(out, room, grads & backward[i].flag, backward[i].name);
    cudev_tag(out, room, (p->flags & FXA_PAGED) && (p->flags & FXA_VARLEN), "packed-and-paged");
    cudev_tag(out, room, (grads & all) != all, "some-gradients");
    cudev_tag(out, room, p->param_grads, "gradients-of-params");
    cudev_tag(out, room, p->global_q_len || p->global_k_len || p->global_heads, "lengths-seen");
}

static void cudev_tag_maps(const conf_case *c, char *out, size_t room) {
    static const char *const names[] = {"map-affine", "map-segments", "map-table"};
    const fxa_problem *p = &c->base.data.problem;
    const fxa_index_map *maps[] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    bool has[3] = {false}, dynamic = false;
    for (int i = 0; i < 4; i++) {
        bool moved = maps[i]->kind || maps[i]->base || maps[i]->step > 1 || maps[i]->step < 0;
        has[maps[i]->kind] = has[maps[i]->kind] || moved;
        dynamic = dynamic || maps[i]->has_offset;
    }
    for (int i = 0; i < 3; i++) cudev_tag(out, room, has[i], names[i]);
    cudev_tag(out, room, dynamic, "map-dynamic");
}

static void cudev_tag_tensors(const conf_case *c, const kinds_kind *k, char *out, size_t room) {
    bool wide = false, narrow = false, grads = false, strided = false;
    for (size_t i = 0; i < c->n_tensors; i++) {
        fxa_dtype dtype = c->tensor[i].dtype;
        wide = wide || dtype == FXA_I64;
        narrow = narrow || (fxa_dtype_size(dtype) < 4 && !(k->dense && i == 0));
        grads = grads || c->captures[i].grad;
        strided = strided || c->captures[i].strided;
    }
    cudev_tag(out, room, c->n_tensors, "captured"), cudev_tag(out, room, c->n_params, "params");
    cudev_tag(out, room, wide, "i64"), cudev_tag(out, room, narrow, "narrow-words");
    cudev_tag(out, room, grads, "gradients-of-captured"), cudev_tag(out, room, strided, "captured-strided");
    cudev_tag(out, room, k->bprop, "own-backward");
    cudev_tag(out, room, k->dense, "pair-tensor");
    cudev_tag(out, room, k->dense && grads, "pair-tensor-gradient");
}

/* Appends the names of the case's features, by which run_cuda.py counts cases. */
static void cudev_tags(const conf_case *c, const kinds_kind *k, int values, char *out, size_t room) {
    const oracle *x = &c->base.x;
    const attn_shape s = {.hq = x->hq, .hkv = x->hkv, .sq = x->sq, .sk = x->sk};
    char name[32];
    bool styles[ATTN_GIVEN + 1] = {false};
    out[0] = 0;
    snprintf(name, sizeof name, "theme:%s", k->theme->name);
    for (char *at = name; *at; at++) *at = *at == ' ' ? '-' : *at;
    cudev_tag(out, room, true, name);
    snprintf(name, sizeof name, "d:%d", (int)k->width);
    cudev_tag(out, room, true, name);
    cudev_tag_flags(c, out, room), cudev_tag_maps(c, out, room), cudev_tag_tensors(c, k, out, room);
    for (int i = FXA_SLOT_Q; i <= FXA_SLOT_DV; i++) styles[c->base.data.t[i].style] = true;
    cudev_tag(out, room, styles[ATTN_BSHD] || styles[ATTN_SBHD], "layouts"),
        cudev_tag(out, room, styles[ATTN_PITCHED], "pitched");
    bool mixed = false, other = false;
    for (int i = FXA_SLOT_K; i <= FXA_SLOT_DV; i++) {
        bool row = i == FXA_SLOT_LSE || i == FXA_SLOT_ROW_MAX || i == FXA_SLOT_DLSE;
        bool apart = !row && c->slot[i].dtype != c->slot[FXA_SLOT_Q].dtype;
        mixed = mixed || (apart && i <= FXA_SLOT_V), other = other || (apart && i > FXA_SLOT_V);
    }
    cudev_tag(out, room, mixed, "mixed-types"), cudev_tag(out, room, other, "other-results");
    cudev_tag(out, room, c->slot[FXA_SLOT_LSE].dtype == FXA_F64, "lse-f64");
    cudev_tag(out, room, styles[ATTN_WILD] || styles[ATTN_EXPANDED], "wild-strides");
    cudev_tag(out, room, x->hq != x->hkv, "gqa"), cudev_tag(out, room, x->d != x->dv, "d!=dv");
    cudev_tag(out, room, x->d % 8 || x->dv % 8, "odd-columns"), cudev_tag(out, room, x->d < 8, "d<8");
    cudev_tag(out, room, (x->sq | x->sk) & 1, "odd-lengths"), cudev_tag(out, room, x->sq == 1, "one-row");
    cudev_tag(out, room, x->sk == 1, "one-key");
    cudev_tag(out, room, x->sk > 256 && x->sq > 128, "many-tiles"), cudev_tag(out, room, kinds_is_decode(&s), "decode");
    cudev_tag(out, room, c->base.data.problem.alignment == 0, "unaligned");
    cudev_tag(out, room, values == KINDS_SMALL, "values-small"),
        cudev_tag(out, room, values == KINDS_LARGE, "values-large");
    cudev_tag(out, room, values == KINDS_NAN, "values-nan");
    cudev_tag(out, room, values == KINDS_RISING && x->sk > 128, "values-rising");
    cudev_tag(out, room, values == KINDS_TURNED, "scale<0"), cudev_tag(out, room, values == KINDS_ZERO, "scale=0");
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* Returns the device description in the file FXA_TEST_TARGET; NULL if there is none. */
static const char *cudev_target(void) {
    static char text[4096];
    FILE *f = !text[0] && frame_is_set("FXA_TEST_TARGET") ? fopen(getenv("FXA_TEST_TARGET"), "r") : NULL;
    if (f && fread(text, 1, sizeof text - 1, f) == 0) text[0] = 0;
    if (f) (void)fclose(f);
    return text[0] ? text : NULL;
}

/* Returns the seconds that plans of both passes take to create, which is mostly compilation. With a target the plans
 * are those of the cuda engine. */
static double cudev_made(conf_case *c, const char *engine) {
    double began = cudev_now();
    const char *target = cudev_target();
    for (int pass = 0; pass < 2; pass++) {
        conf_call x;
        fxa_plan *plan = NULL;
        fxa_error err;
        conf_call_make(c, target ? "cuda" : engine, (fxa_pass)pass, false, &x);
        x.p.target = target;
        fxa_status status = fxa_plan_create(c->base.ctx, &x.p, &plan, &err);
        if (status == FXA_OK) fxa_plan_destroy(plan);
        if (status != FXA_OK && status != FXA_E_UNSUPPORTED) T_FAIL("%s\n", err.text);
    }
    return cudev_now() - began;
}

/* Returns false if two backward runs differ in a bit although the engine reports the problem as deterministic. Sets
 * *promised to true if the engine reports that. */
static bool cudev_repeats(conf_case *c, const char *engine, bool *promised) {
    conf_call x;
    fxa_support report;
    size_t count = 1, n = 0;
    uint64_t sum[2];
    conf_buffer *t;
    conf_call_make(c, engine, FXA_BACKWARD, false, &x);
    *promised = (x.p.flags & FXA_DETERMINISTIC) && strcmp(engine, fxa_engine_name(0)) == 0 &&
                fxa_support_query(c->base.ctx, &x.p, &report, &count, NULL) == FXA_OK && report.deterministic;
    for (int run = 0; run < 2 && *promised; run++) {
        conf_restore_outputs(c, FXA_BACKWARD);
        if (!conf_run(c, engine, FXA_BACKWARD)) return false;
        sum[run] = 1469598103934665603u;
        for (int i = 0; (t = conf_output(c, FXA_BACKWARD, i)); i++)
            for (n = 0; n < t->bytes; n++) sum[run] = (sum[run] ^ t->memory[n]) * 1099511628211u;
        for (n = 0; n < sizeof c->dparams; n++)
            sum[run] = (sum[run] ^ ((unsigned char *)c->dparams)[n]) * 1099511628211u;
    }
    if (!*promised || sum[0] == sum[1]) return true;
    snprintf(c->why, sizeof c->why, "two runs have different bits, and the engine says that it is deterministic");
    return false;
}

static void cudev_line(const conf_frame *f, const kinds_kind *k, int i, const char *tags, double made, double checked) {
    static const char *const states[] = {"-", "right", "refused", "unsure", "WRONG"};
    char family[2][8] = {"-", "-"};
    for (int pass = 0; pass < 2; pass++)
        if (sscanf(f->detail[pass], "kernels %4[a-z0-9]", family[pass]) != 1) family[pass][0] = '-';
    printf("case 0x%" PRIx64 ".%d %s/%s on %s/%s", k->start, i, states[f->state[0]], states[f->state[1]], family[0],
           family[1]);
    for (int j = 0; j < FRAME_OTHERS; j++)
        if (f->other[j]) printf(" %s %s/%s", f->other[j], states[f->said[j][0]], states[f->said[j][1]]);
    printf(" made %.2f checked %.2f worst %.2f %s %s\n", made, checked,
           fmax(f->all.element[FXA_F32], fmax(f->all.element[FXA_F16], f->all.element[FXA_BF16])), k->name, tags);
    (void)fflush(stdout);
}

static bool cudev_one(fxa_context *ctx, const kinds_kind *k, int i, conf_frame *f) {
    static conf_case c;
    char what[400], text[4000] = "", tags[900] = "";
    alarm(f->seconds);
    int values = kinds_case(&c, ctx, k, i, &f->all);
    bool ok = values >= 0, promised = false;
    printf("making 0x%" PRIx64 ".%d\n", k->start, i); /* without a "running" line after it, the compiler did not end */
    (void)fflush(stdout);
    double made = ok ? cudev_made(&c, f->engine) : 0, began = cudev_now();
    printf("running 0x%" PRIx64 ".%d\n", k->start, i);
    (void)fflush(stdout);
    alarm(f->seconds);
    if (values >= KINDS_TURNED) f->others &= 1u; /* cudnn refuses such a scale at the run */
    f->forward_alone = values == KINDS_NAN;      /* in kernels 0 * NaN is NaN: docs/numerics.md */
    ok = ok && frame_passes(f, &c);
    alarm(f->seconds);
    if (ok && f->state[1] == FRAME_RIGHT) ok = cudev_repeats(&c, f->engine, &promised);
    if (ok || values >= 0) cudev_tags(&c, k, values, tags, sizeof tags);
    cudev_tag(tags, sizeof tags, promised, "bits-again");
    cudev_line(f, k, i, tags, made, cudev_now() - began);
    if (!ok) {
        cudev_lost = strstr(c.why, "FXA_E_ENGINE") != NULL;
        conf_describe(&c, what, sizeof what);
        if (fxa_program_print(k->program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = 0;
        T_FAIL("FXA_TEST_CASE=0x%" PRIx64 " FXA_TEST_SHAPE=%d%s FXA_TEST_DTYPE=%s FXA_CUDA_FAMILY=%s %s: %s, align %u\n"
               "    %s\n    %s | %s\n%s\n",
               k->start, i, frame_is_set("FXA_TEST_SMALL") ? " FXA_TEST_SMALL=1" : "", getenv("FXA_TEST_DTYPE"),
               frame_is_set("FXA_CUDA_FAMILY") ? getenv("FXA_CUDA_FAMILY") : "",
               f->state[1] == FRAME_NOT_RUN ? "forward" : "backward", what, c.base.data.problem.alignment, c.why,
               f->detail[0], f->detail[1], text);
    }
    (void)fflush(stdout);
    alarm(0);
    conf_free(&c);
    return ok;
}

/* Tests the shapes of a kind. Returns false after the first wrong case, because the other shapes would probably be
 * wrong too. */
static bool cudev_kind(fxa_context *ctx, int number, int shapes, conf_frame *f) {
    kinds_kind k = kinds_draw(ctx, t_seed(), number);
    char text[8000];
    bool ok = k.program != NULL;
    int only = cudev_number("FXA_TEST_SHAPE", -1);
    if (!ok) T_FAIL("no program (%s, 0x%" PRIx64 ")\n", k.name, k.start);
    printf("kind 0x%" PRIx64 "\n", k.start);
    if (ok && frame_is_set("FXA_TEST_CASE") && fxa_program_print(k.program, text, sizeof text, NULL, NULL) == FXA_OK)
        printf("%s\n", text);
    (void)fflush(stdout);
    for (int i = only < 0 ? 0 : only; i < (only < 0 ? shapes : only + 1) && ok; i++) {
        f->others =
            (i % 2 == 0 ? 1u : 0) | (i % 6 == 0 ? 2u : 0); /* cpu often; cudnn rarely: it makes a plan for each shape */
        ok = cudev_one(ctx, &k, i, f);
    }
    fxa_program_destroy(k.program), fxa_program_destroy(k.bprop);
    return ok;
}

static void cudev_kinds(conf_frame *f, int count, int shapes) {
    t_ctx *ctx = t_context();
    const char *which = getenv("FXA_TEST_KINDS");
    int from = 0, wrong = 0;
    if (which) sscanf(which, "%d,%d", &from, &count);
    if (frame_is_set("FXA_TEST_CASE")) count = 1;
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (int i = 0; i < count && wrong < CU_WRONG && !cudev_lost; i++)
        wrong += !cudev_kind(ctx, from + i, cudev_number("FXA_TEST_SHAPES", shapes), f);
    frame_print(f);
}

TEST(kinds) {
    const char *engine = getenv("FXA_TEST_ENGINE"), *others = getenv("FXA_TEST_OTHERS");
    conf_frame f = {.engine = engine ? engine : "cuda",
                    .seconds = (unsigned)cudev_number("FXA_TEST_SECONDS", CU_SECONDS)};
    const char *missing = engine ? NULL : frame_missing(FXA_F32);
    if (missing) T_SKIP(missing);
    if (!others || strstr(others, "cpu")) f.other[0] = "cpu";
    if (!others || strstr(others, "cudnn")) f.other[1] = "cudnn";
    cudev_kinds(&f, 4, 4);
}

/* ---- Without a GPU ----------------------------------------------------------------------------------------------- */

/* Returns a hash of the key of the code that a pass is compiled to on sm_90; 0 if the engine refuses the pass. */
static uint64_t cudev_code(conf_case *c, fxa_pass pass) {
    fxa__cuda_self self = {.arch = 90, .processors = 132};
    fxa__problem *p = NULL;
    fxa_support report = {.supported = 0};
    fxa_error err;
    conf_call x;
    uint64_t hash = 1469598103934665603u;
    conf_call_make(c, "cuda", pass, false, &x);
    T_OK(fxa__problem_create(fxa__context_host(c->base.ctx), &x.p, &p, &err));
    if (!p) return 0;
    fxa__writer w = {.host = fxa__context_host(c->base.ctx)};
    fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &self, .problem = p};
    T_OK(fxa__engine_cuda.query(&a, NULL, &report, &err));
    if (report.supported) fxa__engine_cuda.key(&a, &w);
    fxa__analysis_end(&a);
    for (size_t i = 0; i < w.size; i++) hash = (hash ^ w.data[i]) * 1099511628211u;
    fxa__writer_free(&w);
    fxa__problem_release(p);
    return report.supported ? hash : 0;
}

/* Checks that the shapes of a kind share so few codes that most compile nothing, and that the engine supports most
 * shapes. */
CONTEXT_TEST(shapes_of_a_kind_share_their_code) {
    static conf_case c;
    conf_tally tally = {0};
    const int kinds = t_scaled_down(KINDS_THEMES * 3);
    int codes = 0, taken[2] = {0}, most = 0;
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (int number = 0; number < kinds; number++) {
        kinds_kind k = kinds_draw(ctx, t_seed(), number);
        uint64_t seen[2 * CU_SHAPES];
        int n = 0;
        T_REQUIRE(k.program);
        for (int i = 0; i < CU_SHAPES; i++) {
            T_CHECK(kinds_case(&c, ctx, &k, i, &tally) >= 0);
            for (int pass = 0; pass < 2; pass++) {
                uint64_t code = cudev_code(&c, (fxa_pass)pass);
                bool old = code == 0;
                for (int j = 0; j < n; j++) old = old || seen[j] == code;
                if (!old) seen[n++] = code;
                taken[pass] += code != 0;
            }
            conf_free(&c);
        }
        if (frame_is_set("FXA_TEST_REASONS"))
            printf("%d %s %s: %d codes, features %x also %x\n", number, k.theme->name, k.name, n, k.features, k.also);
        codes += n, most = n > most ? n : most;
        fxa_program_destroy(k.program), fxa_program_destroy(k.bprop);
    }
    printf("  %d kinds of %d shapes: forward taken %d, backward %d; %d codes, at most %d of a kind\n", kinds, CU_SHAPES,
           taken[0], taken[1], codes, most);
    T_CHECK(codes <= 3 * kinds && most <= 8);
    T_CHECK(taken[0] * 10 >= kinds * CU_SHAPES * 9 && taken[1] * 10 >= kinds * CU_SHAPES * 6);
}

/* Tests the frame itself: the cpu engine supports all cases and is right. */
TEST(by_the_cpu_engine) {
    conf_frame f = {.engine = "cpu", .other = {"cpu"}};
    cudev_kinds(&f, t_scaled_down(KINDS_THEMES), 1);
    T_CHECK(f.refused[0] + f.refused[1] == 0);
}

T_MAIN
