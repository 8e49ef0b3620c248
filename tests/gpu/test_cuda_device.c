/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine on a GPU against the reference: random programs, shapes, strides, dtypes and features, both passes,
 * by the bounds of all engines (docs/numerics.md). Kernels take seconds to compile and nothing of lengths is in them,
 * so each program is run with several shapes. A case that hangs is ended by a watchdog, with its process; run_cuda.py
 * runs many processes side by side, and each family of kernels (FXA_CUDA_FAMILY) in turn. FXA_TEST_CASE=0x... replays
 * the program that a failure names, FXA_TEST_REASONS=1 prints what was refused and why.
 */
#include "base/dtype.h"
#include "support/conf_case.h"
#include "support/own_engines.h"
#include "t.h"

#include <unistd.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { CU_WRONG = 6 /* cases that are shown before a test ends */, CU_PAIRS = 80000, CU_SHAPES = 4, CU_SECONDS = 100 };

/* Why the engine does not run here; NULL: it does. */
static const char *cudev_missing(void) {
    static fxa_support report;
    fxa_context *ctx = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t count = 1;
    fxa_error err;
    const char *standin = getenv("FXA_TEST_STANDIN");
    if (standin && *standin) return "kernels of the cuda engine need a GPU";
    p.b = p.hq = 1, p.sq = p.sk = p.d = 64, p.q.dtype = FXA_F32, p.alignment = 16, p.device = FXA_CUDA;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
    fxa_context_destroy(ctx);
    return report.supported ? NULL : report.reason;
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Widths, which are compiled in. */
static void cudev_widths(attn_shape *s, bool both, uint64_t *rng) {
    static const int64_t widths[] = {64, 128, 96, 32, 192, 256};
    s->d = widths[attn_int(rng, 0, attn_int(rng, 0, 1) ? 1 : 5)];
    if (attn_int(rng, 0, 3) == 0) s->d = attn_int(rng, 1, s->d);
    s->dv = both && attn_int(rng, 0, 1) ? widths[attn_int(rng, 0, 5)] : s->d;
}

static int64_t cudev_length(uint64_t *rng) {
    static const int64_t edges[] = {64, 128, 192, 256, 384, 512};
    int64_t r = attn_int(rng, 0, 9);
    if (r < 3) return edges[attn_int(rng, 0, 5)] + attn_int(rng, -1, 1);
    return r < 5 ? attn_int(rng, 1, 40) : attn_int(rng, 1, 700);
}

/* Everything else: at most CU_PAIRS pairs, each of which the reference looks at several times. */
static void cudev_shape(attn_shape *s, uint64_t *rng) {
    s->b = attn_int(rng, 1, 3), s->hkv = attn_int(rng, 1, 3);
    s->hq = s->hkv * attn_int(rng, 1, 4);
    s->sq = attn_int(rng, 0, 7) ? cudev_length(rng) : attn_int(rng, 1, 4);
    s->sk = cudev_length(rng);
    while (s->b * s->hq * s->sq * s->sk > CU_PAIRS) {
        if (s->b > 1 && attn_int(rng, 0, 1))
            s->b--;
        else if (s->hkv > 1)
            s->hkv--, s->hq = s->hkv;
        else if (s->hq > 2)
            s->hq = 2;
        else if (s->sq > s->sk)
            s->sq = s->sq * 3 / 4;
        else
            s->sk = s->sk * 3 / 4;
    }
    s->page_size = attn_int(rng, 0, 1) ? 16 : attn_int(rng, 0, 1) ? 64 : attn_int(rng, 1, 40);
    s->n_pages = attn_int(rng, 1, s->b * (s->sk / s->page_size + 1) + 2);
    s->window = attn_int(rng, 0, 1) ? 40 : s->sk;
}

/* FXA_TEST_FEATURES has more of them by force, FXA_TEST_WITHOUT takes some away. */
static uint32_t cudev_features(uint64_t *rng) {
    const char *forced = getenv("FXA_TEST_FEATURES"), *without = getenv("FXA_TEST_WITHOUT");
    uint32_t plain = ATTN_GQA | ATTN_DIMS | ATTN_READY | ATTN_SOME_GRADS | ATTN_DLSE;
    uint32_t others = ATTN_PADDING | ATTN_VARLEN | ATTN_PAGED | ATTN_SINK_ZERO | ATTN_SINK | ATTN_DROPOUT |
                      ATTN_STRIDES | ATTN_CHUNKED | ATTN_MAPS | ATTN_ACC | ATTN_LENGTHS | ATTN_ROWS;
    uint32_t rare = ATTN_DTYPES | ATTN_MIXED;
    uint32_t features = plain & (uint32_t)attn_next(rng);
    if (attn_int(rng, 0, 1)) features |= others & (uint32_t)attn_next(rng) & (uint32_t)attn_next(rng);
    if (attn_int(rng, 0, 11) == 0) features |= rare & (uint32_t)attn_next(rng) & (uint32_t)attn_next(rng);
    features |= forced ? (uint32_t)strtoul(forced, NULL, 0) : 0;
    return features & ~(without ? (uint32_t)strtoul(without, NULL, 0) : 0);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

typedef struct cudev_tally {
    conf_tally all;
    int64_t refused[2], done[2]; /* by pass */
    int64_t cases;
} cudev_tally;

/* What of a case is left to be drawn for its program as a whole, because kernels are compiled for it. */
typedef struct cudev_kind {
    uint32_t features;
    bool aligned, gradients, deterministic, maximum, scalars;
} cudev_kind;

static cudev_kind cudev_kind_draw(uint64_t *rng) {
    cudev_kind k = {.features = cudev_features(rng)};
    k.aligned = attn_int(rng, 0, 3) > 0, k.gradients = attn_int(rng, 0, 1);
    k.deterministic = attn_int(rng, 0, 2) == 0, k.maximum = attn_int(rng, 0, 19) == 0;
    k.scalars = attn_int(rng, 0, 5) == 0;
    return k;
}

static bool cudev_is_at(const void *origin) { return (uintptr_t)origin % 16 == 0; }

/* Whether 16 bytes can be promised: where data has strides of its own, it begins anywhere. */
static bool cudev_is_aligned(const conf_case *c) {
    bool aligned = true;
    for (int i = 0; i < CONF_SLOTS; i++) aligned = aligned && cudev_is_at(c->slot[i].origin);
    for (size_t i = 0; i < c->n_tensors; i++)
        aligned = aligned && cudev_is_at(c->tensor[i].origin) && cudev_is_at(c->dtensor[i].origin);
    return aligned;
}

static void cudev_narrow(conf_case *c, const cudev_kind *k) {
    fxa_problem *p = &c->base.data.problem;
    if (k->scalars && !(p->flags & FXA_DROPOUT)) p->flags |= FXA_SCALARS_IN_MEMORY;
    if (!k->maximum) p->flags &= ~(uint32_t)FXA_WANT_MAX;
    p->alignment = k->aligned && cudev_is_aligned(c) ? 16 : 0;
    if (k->deterministic) c->base.data.backward_flags |= FXA_DETERMINISTIC;
    if (k->gradients) return;
    p->param_grads = 0;
    for (size_t i = 0; i < c->n_tensors; i++) c->captures[i].grad = 0;
    c->base.data.backward_flags &= ~(uint32_t)(FXA_ACC_TENSORS | FXA_ACC_PARAMS);
}

static bool cudev_pass(conf_case *c, fxa_pass pass, cudev_tally *tally) {
    alarm(CU_SECONDS); /* ends the process */
    bool ok = pass == FXA_FORWARD ? conf_check_forward(c, "cuda") : conf_check_backward(c, "cuda");
    alarm(0);
    tally->refused[pass] += c->refused;
    if (c->refused && getenv("FXA_TEST_REASONS")) printf("  refused: %s\n", c->why);
    tally->done[pass] += ok && !c->refused && !c->unsure;
    return ok;
}

/* Rows without finite statistics: 0 times NaN in a product of matrices, as docs/numerics.md says of such engines. */
static bool cudev_is_finite(const conf_case *c) {
    const conf_buffer *t = &c->slot[FXA_SLOT_LSE];
    int64_t at[FXA_MAX_RANK] = {0};
    do {
        double x = fxa__load_f64(t->memory, t->dtype, conf_place(t, at));
        if (isnan(x) || x == INFINITY) return false;
    } while (conf_next(t, at));
    return true;
}

/* With a LSE of f32 mostly: others are refused. */
static bool cudev_draw(conf_case *c, fxa_context *ctx, const cudev_kind *kind, const attn_shape *shape,
                       fxa_program *program, const char *name, cudev_tally *tally, uint64_t *rng) {
    for (int i = 0;; i++) {
        fxa_program_retain(program);
        bool ok = conf_draw(c, ctx, kind->features, shape, program, name, NULL, &tally->all, rng);
        if (!ok || i == 4 || c->base.data.t[FXA_SLOT_LSE].dtype == FXA_F32) return ok;
        conf_free(c);
    }
}

static bool cudev_one(fxa_context *ctx, const cudev_kind *kind, const attn_shape *shape, fxa_program *program,
                      const char *name, uint64_t start, cudev_tally *tally, uint64_t *rng) {
    static conf_case c;
    char what[400], text[4000] = "";
    bool ok = cudev_draw(&c, ctx, kind, shape, program, name, tally, rng);
    int64_t before = tally->done[0] + tally->done[1];
    fxa_pass pass = FXA_FORWARD;
    if (ok) cudev_narrow(&c, kind);
    ok = ok && cudev_pass(&c, pass, tally);
    if (ok && cudev_is_finite(&c)) pass = FXA_BACKWARD, ok = cudev_pass(&c, pass, tally);
    tally->cases += tally->done[0] + tally->done[1] > before;
    if (!ok) {
        conf_describe(&c, what, sizeof what);
        if (fxa_program_print(program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = 0;
        T_FAIL("0x%" PRIx64 " %s: %s\n    %s\n    align %u\n%s", start, pass ? "backward" : "forward", what, c.why,
               c.base.data.problem.alignment, text);
    }
    conf_free(&c);
    return ok;
}

static bool cudev_program(fxa_context *ctx, conf_source source, cudev_tally *tally, uint64_t *rng) {
    const char *name;
    uint64_t start = *rng;
    const cudev_kind kind = cudev_kind_draw(rng);
    fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", rng, &name);
    attn_shape shape = {0};
    bool ok = program != NULL;
    if (!program) T_FAIL("no program (%s, 0x%" PRIx64 ")\n", name, start);
    cudev_widths(&shape, kind.features & ATTN_DIMS, rng);
    for (int i = 0; i < CU_SHAPES && ok; i++) {
        cudev_shape(&shape, rng);
        ok = cudev_one(ctx, &kind, &shape, program, name, start, tally, rng);
    }
    fxa_program_destroy(program);
    return ok;
}

static void cudev_cases(conf_source source, int n, int least) {
    fxa_error err;
    fxa_context *ctx = NULL;
    cudev_tally tally = {0};
    uint64_t rng = t_seed() * 0x9E3779B97F4A7C15u ^ (uint64_t)source << 40;
    const char *replay = getenv("FXA_TEST_CASE"), *missing = cudev_missing();
    if (missing) T_SKIP(missing);
    if (replay && *replay) rng = strtoull(replay, NULL, 0), n = 1, least = 0;
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    T_OK(fxa_context_create(NULL, &ctx, &err));
    n = t_scaled(n);
    for (int i = 0, wrong = 0; i < n && wrong < CU_WRONG; i++) wrong += !cudev_program(ctx, source, &tally, &rng);
    printf("  %" PRId64 " cases: forward %" PRId64 " right, %" PRId64 " refused; backward %" PRId64 " right, %" PRId64
           " refused; %" PRId64 " unsure; worst %.2f of what is allowed\n",
           tally.cases, tally.done[0], tally.refused[0], tally.done[1], tally.refused[1], tally.all.unsure,
           fmax(tally.all.element[FXA_F32], fmax(tally.all.element[FXA_F16], tally.all.element[FXA_BF16])));
    if (n >= 20) T_CHECK(tally.done[0] * 100 >= (int64_t)least * n); /* of a handful, all may be refused */
    fxa_context_destroy(ctx);
}

/* ---- Dense tensors ----------------------------------------------------------------------------------------------- */

/* A tensor of pairs in storage type, with its gradient: direct, or summed over entries and heads. */
static void cudev_dense(fxa_context *ctx, const char *text, bool exact, cudev_tally *tally, uint64_t *rng) {
    static conf_case c;
    fxa_error err;
    fxa_program *program = NULL;
    attn_shape s = {0};
    cudev_widths(&s, false, rng);
    cudev_shape(&s, rng);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    T_REQUIRE(program);
    const cudev_kind kind = {.features = ATTN_GQA, .aligned = true, .gradients = true};
    bool ok = cudev_draw(&c, ctx, &kind, &s, program, "dense", tally, rng);
    int64_t pitch = exact ? (s.sk + 7) / 8 * 8 : s.sk + 3, n[4] = {s.b, s.hq, s.sq, pitch};
    if (strstr(text, "[3]")) n[0] = s.hq, n[1] = s.sq, n[2] = pitch;
    if (strstr(text, "[2]")) n[0] = s.sq, n[1] = pitch;
    if (ok) conf_resize(&c, 0, n, rng);
    if (ok) c.captures[0].grad_dtype = (uint32_t)c.dtensor[0].dtype;
    if (ok) cudev_narrow(&c, &kind);
    ok = ok && cudev_pass(&c, FXA_FORWARD, tally) && cudev_pass(&c, FXA_BACKWARD, tally);
    if (!ok) T_FAIL("%s: b %d hq %d sq %d sk %d: %s\n", text, (int)s.b, (int)s.hq, (int)s.sq, (int)s.sk, c.why);
    conf_free(&c);
    fxa_program_destroy(program);
}

TEST(dense_tensors) {
    static const char *const texts[] = {"tensor w : %s[4]\nscore = score + w[b, h, q, k]",
                                        "tensor w : %s[4]\nscore = score + w[b, h, q, k]\nmask = k <= q",
                                        "tensor w : %s[3]\nscore = score + w[h, q, k]\nmask = q - k < 99",
                                        "tensor w : %s[2]\nscore = score + w[q, k]",
                                        "tensor w : %s[2]\nscore = 9 * tanh((score + w[q, k]) / 9)"};
    fxa_context *ctx = NULL;
    fxa_error err;
    cudev_tally tally = {0};
    char text[200];
    uint64_t rng = t_seed() * 977;
    const char *missing = cudev_missing();
    if (missing) T_SKIP(missing);
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int exact = 0; exact < 2; exact++) {
            snprintf(text, sizeof text, texts[i], getenv("FXA_TEST_DTYPE"));
            cudev_dense(ctx, text, exact, &tally, &rng);
        }
    printf("  %d cases: forward %d right, %d refused; backward %d right, %d refused; %d unsure; worst 0.0 of all\n", 10,
           (int)tally.done[0], (int)tally.refused[0], (int)tally.done[1], (int)tally.refused[1], (int)tally.all.unsure);
    fxa_context_destroy(ctx);
}

TEST(no_program) { cudev_cases(CONF_IDENTITY, 20, 50); }
TEST(small_programs) { cudev_cases(CONF_TWIN, 60, 50); }
TEST(smooth_programs) { cudev_cases(CONF_SMOOTH, 50, 50); }
TEST(only_masks) { cudev_cases(CONF_MASK, 60, 50); }
TEST(programs_with_masks) { cudev_cases(CONF_BOTH, 50, 50); }
TEST(every_operation) { cudev_cases(CONF_WILD, 40, 0); }
TEST(gallery) { cudev_cases(CONF_GALLERY, 60, 50); }
TEST(sparse_masks) { cudev_cases(CONF_SPARSE, 60, 50); }

T_MAIN
