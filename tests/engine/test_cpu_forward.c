/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's forward pass on shapes that cross its blocks: every instruction set against the reference engine,
 * the same bits for any number of threads, any run and any batch around, special rows, and not one byte read or written
 * outside of the given buffers. Features and dtypes in all combinations are the conformance test's.
 */
#include "t.h"

#include "engine/cpu/cpu.h"
#include "support/guard.h"

/* ---- A problem of dense f32 or f64 tensors [B,H,S,D] with random data ------------------------------------------ */

typedef struct fwd {
    fxa_problem p;
    const char *text; /* NULL: no program */
    void *q, *k, *v;
    void *o[2], *lse[2], *max[2]; /* of two runs */
} fwd;

static size_t fwd_real(const fwd *f) { return f->p.q.dtype == FXA_F64 ? sizeof(double) : sizeof(float); }
static int64_t fwd_rows(const fwd *f) { return f->p.b * f->p.hq * f->p.sq; }
static int64_t fwd_keys(const fwd *f) { return f->p.b * (f->p.hkv ? f->p.hkv : f->p.hq) * f->p.sk; }

static double fwd_get(const fwd *f, const void *x, int64_t i) {
    return f->p.q.dtype == FXA_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static void fwd_set(const fwd *f, void *x, int64_t i, double value) {
    if (f->p.q.dtype == FXA_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

static void *fwd_random(const fwd *f, int64_t n, t_rng *rng) {
    void *x = malloc((size_t)n * fwd_real(f) + 1);
    for (int64_t i = 0; i < n; i++) fwd_set(f, x, i, t_real(rng, -2, 2));
    return x;
}

static fwd fwd_make(const char *text, int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d,
                    uint32_t flags) {
    fwd f = {.p = FXA_PROBLEM_INIT, .text = text};
    f.p.b = b, f.p.hq = hq, f.p.hkv = hkv, f.p.sq = sq, f.p.sk = sk, f.p.d = d;
    f.p.flags = flags | FXA_WANT_LSE | FXA_WANT_MAX;
    f.p.window_left = 70, f.p.window_right = 3; /* with FXA_WINDOW */
    return f;
}

static void fwd_fill(fwd *f, uint64_t salt) {
    t_rng rng = {t_seed() + salt};
    f->q = fwd_random(f, fwd_rows(f) * f->p.d, &rng);
    f->k = fwd_random(f, fwd_keys(f) * f->p.d, &rng);
    f->v = fwd_random(f, fwd_keys(f) * f->p.d, &rng);
    for (int i = 0; i < 2; i++) {
        f->o[i] = fwd_random(f, fwd_rows(f) * f->p.d, &rng);
        f->lse[i] = fwd_random(f, fwd_rows(f), &rng);
        f->max[i] = fwd_random(f, fwd_rows(f), &rng);
    }
}

static void fwd_free(fwd *f) {
    free(f->q), free(f->k), free(f->v);
    for (int i = 0; i < 2; i++) free(f->o[i]), free(f->lse[i]), free(f->max[i]);
}

static fxa_args fwd_args(const fwd *f, int to) {
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = f->q, args.slot[FXA_SLOT_K] = f->k, args.slot[FXA_SLOT_V] = f->v;
    args.slot[FXA_SLOT_O] = f->o[to], args.slot[FXA_SLOT_LSE] = f->lse[to], args.slot[FXA_SLOT_MAX_ROW] = f->max[to];
    args.seed = 42;
    return args;
}

/* One run into outputs number `to`. */
static bool fwd_run(fwd *f, const char *engine, uint32_t threads, int to) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = threads;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    fxa_error err;
    fxa_args args = fwd_args(f, to);
    fxa_status status = fxa_context_create(&config, &ctx, &err);
    if (status == FXA_OK && f->text) status = fxa_program_parse(ctx, f->text, SIZE_MAX, &program, &err);
    f->p.program = program, f->p.engine = engine;
    if (status == FXA_OK) status = fxa_attention(ctx, &f->p, &args, &err);
    if (status != FXA_OK) T_FAIL("%s: %s\n", engine, err.text);
    f->p.program = NULL;
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return status == FXA_OK;
}

static bool fwd_same_bits(const fwd *f) {
    size_t rows = (size_t)fwd_rows(f) * fwd_real(f);
    return memcmp(f->o[0], f->o[1], rows * (size_t)f->p.d) == 0 && memcmp(f->lse[0], f->lse[1], rows) == 0 &&
           memcmp(f->max[0], f->max[1], rows) == 0;
}

/* ---- Against the reference ------------------------------------------------------------------------------------- */

static bool fwd_agree_special(double got, double want) {
    if (want != want) return got != got;
    return fabs(want) < INFINITY ? fabs(got) < INFINITY : got == want;
}

/* Relative root mean square of the outputs, and the largest error of an LSE over its size; special values must agree
 * exactly. Bounds: 2e-6 in f32, by the running error of sums in blocks; the size of a score costs |s| 2^-24 beside. */
static void fwd_compare(const fwd *f, const char *what) {
    double off = 0, all = 0, size = 0, unit = f->p.q.dtype == FXA_F64 ? 0x1p-53 : 0x1p-24, lse = 0;
    int64_t n = fwd_rows(f), bad = 0;
    for (int64_t i = 0; i < n * f->p.d; i++) {
        double got = fwd_get(f, f->o[1], i), want = fwd_get(f, f->o[0], i);
        bad += !fwd_agree_special(got, want);
        if (!(fabs(want) < INFINITY)) continue;
        off += (got - want) * (got - want), all += want * want;
    }
    for (int64_t i = 0; i < n; i++) {
        double got = fwd_get(f, f->lse[1], i), want = fwd_get(f, f->lse[0], i), top = fwd_get(f, f->max[0], i);
        bad += !fwd_agree_special(got, want) + !fwd_agree_special(fwd_get(f, f->max[1], i), top);
        if (!(fabs(want) < INFINITY)) continue;
        lse = fmax(lse, fabs(got - want)), size = fmax(size, fabs(want));
        if (top > -INFINITY) size = fmax(size, fabs(top)); /* else it has only a sink */
    }
    double allowed = (32 + 2 * size) * unit; /* 32 units: 1.9e-6 in f32 */
    if (bad) T_FAIL("%s: %" PRId64 " special values differ\n", what, bad);
    if (!(sqrt(off) <= allowed * sqrt(all))) T_FAIL("%s: rel RMS %.3g, allowed %.3g\n", what, sqrt(off / all), allowed);
    if (!(lse <= allowed * fmax(1, size)))
        T_FAIL("%s: LSE off by %.3g, allowed %.3g\n", what, lse, allowed * fmax(1, size));
}

static const char *const fwd_texts[] = {
    NULL,
    "score = 20 * tanh(score / 20)",
    "score = score - float(abs(q - k)) * exp2(-float(h + 1))",
    "mask = q // 64 == k // 64 || k < 3",
    "mask = (q + k) % 3 != 0 && q % 5 != 1",
};
enum { FWD_TEXTS = sizeof fwd_texts / sizeof *fwd_texts };

/* Sizes around the edges of vectors, panels, row blocks, key blocks and tiles. */
static void fwd_against_ref(fxa_dtype dtype, const char *isa) {
    static const int64_t sq[] = {1, 7, 13, 100, 401, 33}, sk[] = {1, 17, 300, 257, 530, 1100};
    static const int64_t d[] = {1, 3, 16, 40, 64, 100};
    static const uint32_t flags[] = {0, FXA_CAUSAL, FXA_WINDOW, FXA_CAUSAL | FXA_BOTTOM_RIGHT, FXA_SINK_ZERO, 0};
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(24); i++) {
        const char *text = fwd_texts[t_int(&rng, 0, FWD_TEXTS - 1)];
        int64_t hkv = t_int(&rng, 1, 2), n = sq[t_int(&rng, 0, 5)];
        fwd f = fwd_make(text, 1, hkv * t_int(&rng, 1, 2), hkv, n, sk[t_int(&rng, 0, 5)], d[t_int(&rng, 0, 5)],
                         flags[t_int(&rng, 0, 5)]);
        char what[200];
        snprintf(what, sizeof what, "%s %s hq %d sq %d sk %d d %d flags %x \"%s\"", isa, fxa_dtype_name(dtype),
                 (int)f.p.hq, (int)f.p.sq, (int)f.p.sk, (int)f.p.d, (unsigned)f.p.flags, text ? text : "");
        f.p.q.dtype = (uint32_t)dtype;
        fwd_fill(&f, (uint64_t)i);
        if (fwd_run(&f, "ref", 1, 0) && fwd_run(&f, "cpu", 1, 1)) fwd_compare(&f, what);
        fwd_free(&f);
    }
}

/* Calls fn once with FXA_CPU set to each set that this machine has; the others are skipped by name. */
static void fwd_each_set(void (*fn)(const char *isa)) {
    const fxa__cpu_kernels *set;
    bool usable;
    for (size_t i = 0; (set = fxa__cpu_set(i, sizeof(float), &usable)) != NULL; i++) {
        if (!usable) printf("  skipped %s: this machine does not have it\n", set->isa);
        if (!usable) continue;
        setenv("FXA_CPU", set->isa, 1);
        fn(set->isa);
    }
    unsetenv("FXA_CPU");
}

static void fwd_sets_f32(const char *isa) { fwd_against_ref(FXA_F32, isa); }
static void fwd_sets_f64(const char *isa) { fwd_against_ref(FXA_F64, isa); }
TEST(every_set_agrees_with_the_reference_in_f32) { fwd_each_set(fwd_sets_f32); }
TEST(every_set_agrees_with_the_reference_in_f64) { fwd_each_set(fwd_sets_f64); }

TEST(a_set_that_is_none_is_refused_by_name) {
    fxa_context *ctx = NULL;
    fxa_error err;
    fxa_support reports[4];
    size_t n = 4;
    fwd f = fwd_make(NULL, 1, 1, 1, 4, 4, 4, 0);
    setenv("FXA_CPU", "mmx", 1);
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_support_query(ctx, &f.p, reports, &n, &err));
    T_STR(reports[0].engine, "cpu");
    T_INT(reports[0].supported, 0);
    T_HAS(reports[0].reason, "FXA_CPU=mmx");
    fxa_plan *plan = NULL; /* no other engine takes over in silence */
    f.p.engine = NULL;
    T_STATUS(fxa_plan_create(ctx, &f.p, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "FXA_CPU=mmx");
    fxa_context_destroy(ctx);
    unsetenv("FXA_CPU");
}

/* ---- The same bits --------------------------------------------------------------------------------------------- */

/* Tiles of several rows, stacked heads, chunks of keys for a tile and for decoding; dropout. */
static fwd fwd_bits_case(int i) {
    fwd f = i == 0   ? fwd_make(NULL, 2, 4, 4, 300, 300, 24, FXA_CAUSAL)
            : i == 1 ? fwd_make("score = score * 0.5\nmask = q // 64 == k // 64", 1, 6, 2, 50, 400, 16, FXA_DROPOUT)
            : i == 2 ? fwd_make(NULL, 1, 2, 1, 40, 9000, 16, FXA_SINK_ZERO)
                     : fwd_make("score = score + float(k % 7)", 2, 4, 1, 1, 9000, 32, 0);
    if (f.p.flags & FXA_DROPOUT) f.p.dropout_p = 0.3;
    fwd_fill(&f, (uint64_t)i);
    return f;
}

TEST(threads_do_not_change_a_bit) {
    static const uint32_t threads[] = {2, 3, 7};
    for (int i = 0; i < 4; i++) {
        fwd f = fwd_bits_case(i);
        bool ran = fwd_run(&f, "cpu", 1, 0);
        for (int j = 0; ran && j < 3; j++) {
            memset(f.o[1], 0xee, (size_t)(fwd_rows(&f) * f.p.d) * fwd_real(&f));
            if (fwd_run(&f, "cpu", threads[j], 1) && !fwd_same_bits(&f))
                T_FAIL("case %d: %u threads give other bits than 1\n", i, (unsigned)threads[j]);
        }
        fwd_free(&f);
    }
}

TEST(chunks_of_keys_join_to_the_whole) {
    for (int i = 2; i < 4; i++) {
        fwd f = fwd_bits_case(i);
        if (fwd_run(&f, "ref", 1, 0) && fwd_run(&f, "cpu", 3, 1)) fwd_compare(&f, i == 2 ? "tile" : "decode");
        fwd_free(&f);
    }
}

TEST(a_hundred_runs_give_the_same_bits) {
    fwd f = fwd_make("score = 5 * tanh(score / 5)", 1, 4, 2, 130, 300, 16, FXA_CAUSAL);
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    fxa_error err;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = 3;
    fwd_fill(&f, 5);
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_OK(fxa_program_parse(ctx, f.text, SIZE_MAX, &program, &err));
    f.p.program = program, f.p.engine = "cpu";
    for (int i = 0; i < t_scaled(100); i++) {
        fxa_args args = fwd_args(&f, i > 0);
        T_OK(fxa_attention(ctx, &f.p, &args, &err));
        if (i > 0 && !fwd_same_bits(&f)) T_FAIL("run %d gives other bits\n", i);
    }
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    fwd_free(&f);
}

/* A batch entry gives the same bits alone and among others. */
TEST(the_batch_around_does_not_matter) {
    for (int i = 0; i < 2; i++) {
        fwd f = i ? fwd_make(NULL, 3, 4, 2, 2, 5000, 16, 0) : fwd_make(NULL, 3, 4, 2, 210, 300, 16, FXA_CAUSAL);
        fwd_fill(&f, 9);
        if (!fwd_run(&f, "cpu", 2, 0)) return;
        fwd one = f;
        int64_t rows = f.p.hq * f.p.sq, keys = f.p.hkv * f.p.sk, b = 1, d = f.p.d;
        one.p.b = 1;
        one.q = (float *)f.q + b * rows * d, one.k = (float *)f.k + b * keys * d, one.v = (float *)f.v + b * keys * d;
        if (fwd_run(&one, "cpu", 2, 1))
            T_INT(memcmp(f.o[1], (float *)f.o[0] + b * rows * d, (size_t)(rows * d) * sizeof(float)), 0);
        fwd_free(&f);
    }
}

/* V is multiplied as it lies, or packed where its rows are not aligned: the same bits, with NaN behind a mask too. */
TEST(where_v_lies_does_not_matter) {
    for (int i = 0; i < 4; i++) {
        fwd f = fwd_make(i & 2 ? "mask = k != 77" : NULL, 1, 2, 1, 100, 300, 64, FXA_CAUSAL);
        fwd_fill(&f, 11);
        size_t n = (size_t)(f.p.hkv * f.p.sk * f.p.d);
        float *room = aligned_alloc(64, (n + 16) / 16 * 64 + 64), *aligned = room;
        fwd other = f;
        if (i & 2) ((float *)f.v)[77 * f.p.d + 5] = i & 1 ? NAN : INFINITY;
        memcpy(aligned, f.v, n * sizeof(float));
        other.v = aligned;
        if (fwd_run(&other, "cpu", 1, 0)) {
            memmove(room + 1, aligned, n * sizeof(float));
            other.v = room + 1;
            if (fwd_run(&other, "cpu", 1, 1) && !fwd_same_bits(&other)) T_FAIL("case %d: other bits\n", i);
            other.v = f.v;
            if (fwd_run(&other, "ref", 1, 1)) fwd_compare(&other, "V as it lies");
        }
        free(room);
        fwd_free(&f);
    }
}

/* ---- Special rows ----------------------------------------------------------------------------------------------- */

static void fwd_special(fwd *f, const char *what) {
    if (fwd_run(f, "ref", 1, 0) && fwd_run(f, "cpu", 2, 1)) fwd_compare(f, what);
    fwd_free(f);
}

TEST(rows_without_keys_and_large_finite_masks) {
    for (int64_t sq = 1; sq <= 120; sq += 119) { /* both ways to do an item */
        fwd f = fwd_make("mask = q % 3 != 0 && k > 290", 1, 2, 2, sq, 300, 8, 0);
        fwd_fill(&f, 1);
        fwd_special(&f, "masked rows");
        f = fwd_make("score = q % 2 == 0 ? -1e30 : score", 1, 2, 2, sq, 300, 8, 0);
        fwd_fill(&f, 2);
        fwd_special(&f, "-1e30");
        f = fwd_make("score = k < 260 ? -inf : score", 1, 2, 2, sq, 300, 8, FXA_SINK_ZERO);
        fwd_fill(&f, 3);
        fwd_special(&f, "-inf first");
    }
}

/* NaN and infinities stay in the rows that they belong to; where a key is not attended they are nowhere. */
TEST(nan_and_infinity_stay_where_they_belong) {
    for (int64_t sq = 6; sq <= 126; sq += 120) {
        fwd f = fwd_make("mask = k != 17 && (k != 18 || q % 4 == 1)", 1, 2, 2, sq, 300, 8, 0);
        fwd_fill(&f, 4);
        fwd_set(&f, f.q, 3 * 8 + 2, NAN);  /* row 3 */
        fwd_set(&f, f.k, 17 * 8 + 1, NAN); /* a key that no row attends to */
        fwd_set(&f, f.v, 17 * 8 + 1, INFINITY);
        fwd_set(&f, f.v, 18 * 8 + 4, INFINITY); /* one that some rows do */
        fwd_special(&f, "NaN in Q, masked keys");
        f = fwd_make("score = q == 2 && k == 280 ? inf : q == 4 && k == 5 ? nan : score", 1, 1, 1, sq, 300, 8, 0);
        fwd_fill(&f, 5);
        fwd_special(&f, "scores of inf and NaN");
    }
}

/* ---- Nothing outside of the buffers ----------------------------------------------------------------------------- */

/* Runs a plan with every buffer, the workspace too, against a forbidden page; odd sizes, all dtypes. A wrong access
 * ends the test with a signal. */
static void fwd_run_guarded(fxa_dtype dtype, int64_t sq, int64_t sk, int64_t d, bool at_end) {
    fwd f = fwd_make(NULL, 1, 2, 1, sq, sk, d, FXA_CAUSAL | FXA_BOTTOM_RIGHT);
    fxa_context *ctx = NULL;
    fxa_plan *plan = NULL;
    fxa_error err;
    size_t e = fxa_dtype_size(dtype), row = dtype == FXA_F64 ? 8 : 4, nq = (size_t)(2 * sq * d), nk = (size_t)(sk * d);
    f.p.q.dtype = (uint32_t)dtype, f.p.engine = "cpu";
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_plan_create(ctx, &f.p, &plan, &err));
    size_t workspace = fxa_plan_workspace(plan), rows = (size_t)(2 * sq) * row;
    guard g[7] = {guard_make(nq * e, e, at_end),
                  guard_make(nk * e, e, at_end),
                  guard_make(nk * e, e, at_end),
                  guard_make(nq * e, e, at_end),
                  guard_make(rows, row, at_end),
                  guard_make(rows, row, at_end),
                  guard_make(workspace, FXA_WORKSPACE_ALIGN, at_end)};
    fxa_args args = FXA_ARGS_INIT;
    for (int i = 0; i < 3; i++) memset(g[i].data, 0, g[i].size);
    for (int i = 0; i < 6; i++) args.slot[FXA_SLOT_Q + i] = g[i].data;
    args.workspace = g[6].data, args.workspace_size = workspace;
    T_OK(fxa_plan_run(plan, &args, &err));
    for (int i = 0; i < 7; i++) guard_close(&g[i]);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
}

static void fwd_guards(const char *isa) {
    static const int64_t shape[][3] = {{1, 1, 1}, {3, 5, 7}, {19, 33, 17}, {130, 259, 33}, {2, 2100, 9}};
    (void)isa;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int dtype = FXA_F64; dtype <= FXA_BF16; dtype++)
            for (int at_end = 0; at_end < 2; at_end++)
                fwd_run_guarded((fxa_dtype)dtype, shape[i][0], shape[i][1], shape[i][2], at_end);
}
TEST(nothing_outside_the_buffers_is_touched) { fwd_each_set(fwd_guards); }

T_MAIN
