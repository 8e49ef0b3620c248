/* SPDX-License-Identifier: Apache-2.0
 *
 * Every program of examples/programs: parsed, printed and parsed again, saved and loaded, differentiated, and run
 * forward and backward on the reference engine. Each gradient (dQ, dK, dV, captured tensors, params) is compared with
 * finite differences of L = sum(dO * O) + sum(dLSE * LSE) in f64. Covers for realistic
 * programs.
 *
 * The differences are central, D(h), at steps h, 2h, 4h with h = 2^-10 (values are multiples of it, so f32 tensors
 * represent every point exactly), extrapolated: R(h) = (4 D(h) - D(2h)) / 3 has error c h^4, and R(2h) 16 times that,
 * so their distance bounds the error for a smooth L; rounding adds eps |L| / h. If R(h) and R(2h) differ too much, L is
 * too curved or has a kink or jump within 4h; then h = 2^-14 and 2^-17 are tried, and finally another element is drawn,
 * which may happen for at most one draw in fifty.
 */
#include "t.h"
#include "base/dtype.h"

#include <dirent.h>
#include <float.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 7, SK = 9, D = 5, DV = 3, SIDE = 20, MAX_TENSORS = 4, MAX_PARAMS = 4, SAMPLES = 8 };
static const double steps[] = {0x1p-10, 0x1p-14, 0x1p-17};

/* ---- Files ------------------------------------------------------------------------------------------------------ */

typedef struct gallery {
    char names[256][64];
    int count;
} gallery;

static int gallery_order(const void *a, const void *b) { return strcmp(a, b); }

static gallery gallery_list(void) {
    gallery g = {.count = 0};
    DIR *dir = opendir(FXA_SOURCE_DIR "/examples/programs");
    if (!dir) return g;
    for (struct dirent *e = readdir(dir); e && g.count < 256; e = readdir(dir)) {
        size_t n = strlen(e->d_name);
        if (n > 4 && n < 64 && strcmp(e->d_name + n - 4, ".fxa") == 0) memcpy(g.names[g.count++], e->d_name, n + 1);
    }
    closedir(dir);
    qsort(g.names, (size_t)g.count, sizeof g.names[0], gallery_order);
    return g;
}

static char *gallery_read(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/examples/programs/%s", FXA_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 65536);
    if (!f || !text) abort();
    size_t n = fread(text, 1, 65535, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static fxa_program *gallery_parse(fxa_context *ctx, const char *name) {
    fxa_error err = {0};
    fxa_program *p = NULL;
    char *text = gallery_read(name), shown[1200];
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK || !p) {
        fxa_error_render(&err, name, text, SIZE_MAX, shown, sizeof shown);
        T_FAIL("%s\n", shown);
    }
    free(text);
    return p;
}

/* ---- One run of one program ------------------------------------------------------------------------------------- */

/* Typical values of params by name; other params are 3 or 1.25. */
static const struct {
    const char *name;
    double value;
} gallery_values[] = {
    {"lowest", -0.6}, {"highest", 0.65}, {"half", 4}, {"heads", HQ}, {"sinks", 1},
};

typedef struct run {
    fxa_context *ctx;
    fxa_problem forward, backward;
    /* backward: requests the gradients of float tensors */
    fxa_capture captures[MAX_TENSORS], grad_captures[MAX_TENSORS];
    size_t n_tensors, n_params, elements[MAX_TENSORS];
    fxa_dtype dtype[MAX_TENSORS];
    void *tensors[MAX_TENSORS];
    double *dtensors[MAX_TENSORS], params[MAX_PARAMS], dparams[MAX_PARAMS];
    double q[B * HQ * SQ * D], k[B * HKV * SK * D], v[B * HKV * SK * DV], o[B * HQ * SQ * DV], lse[B * HQ * SQ];
    double dout[B * HQ * SQ * DV], dlse[B * HQ * SQ], dq[B * HQ * SQ * D], dk[B * HKV * SK * D], dv[B * HKV * SK * DV];
    double size; /* sum of the magnitudes of its terms */
} run;

static double run_grid(t_rng *r) { return (double)t_int(r, -1000, 1000) * steps[0]; }
static void run_fill(double *x, size_t n, t_rng *r) {
    for (size_t i = 0; i < n; i++) x[i] = run_grid(r);
}

/* Fills a tensor. Int tensors of rank 1 are non-decreasing (documents, lengths, windows: 2 2 3 3 ...), others are
 * small. */
static void run_fill_tensor(run *x, size_t i, int rank, t_rng *r) {
    for (size_t e = 0; e < x->elements[i]; e++) {
        int32_t small = rank == 1 ? 2 + (int32_t)e / 2 : (int32_t)t_int(r, 0, 3);
        switch (x->dtype[i]) {
        case FXA_I32: ((int32_t *)x->tensors[i])[e] = small; break;
        case FXA_U8: ((uint8_t *)x->tensors[i])[e] = (uint8_t)small; break;
        case FXA_B8: ((uint8_t *)x->tensors[i])[e] = t_int(r, 0, 9) < 7; break;
        default: fxa__store_f64(x->tensors[i], x->dtype[i], (int64_t)e, run_grid(r)); break;
        }
    }
}

static void run_start_tensors(run *x, const fxa_program *p, t_rng *r) {
    x->n_tensors = fxa_program_tensor_count(p);
    for (size_t i = 0; i < x->n_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(p, i);
        x->dtype[i] = info.dtype;
        x->elements[i] = 1;
        for (int32_t j = 0; j < info.rank; j++) x->elements[i] *= (size_t)(x->captures[i].size[j] = SIDE);
        x->tensors[i] = calloc(x->elements[i], fxa_dtype_size(info.dtype));
        if (!x->tensors[i]) abort();
        run_fill_tensor(x, i, info.rank, r);
        x->grad_captures[i] = x->captures[i];
        if (!fxa__dtype_is_float(info.dtype)) continue;
        x->grad_captures[i].grad = 1, x->grad_captures[i].grad_dtype = FXA_F64;
        if (!(x->dtensors[i] = calloc(x->elements[i], sizeof(double)))) abort();
    }
}

static void run_start_params(run *x, const fxa_program *p) {
    x->n_params = fxa_program_param_count(p);
    for (size_t i = 0; i < x->n_params; i++) {
        fxa_param_info info = fxa_program_param(p, i);
        x->params[i] = info.type == FXA_INT ? 3 : 1.25;
        for (size_t j = 0; j < sizeof gallery_values / sizeof *gallery_values; j++)
            if (strcmp(info.name, gallery_values[j].name) == 0) x->params[i] = gallery_values[j].value;
        if (info.type == FXA_FLOAT) x->backward.param_grads |= UINT64_C(1) << i;
    }
}

static run *run_start(fxa_context *ctx, const fxa_program *p, t_rng *r) {
    run *x = calloc(1, sizeof *x);
    if (!x) abort();
    x->ctx = ctx;
    run_start_params(x, p);
    run_start_tensors(x, p, r);
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = p, problem.captures = x->captures, problem.n_captures = x->n_tensors;
    problem.b = B, problem.hq = HQ, problem.hkv = HKV, problem.sq = SQ, problem.sk = SK, problem.d_qk = D,
    problem.d_v = DV;
    problem.q.dtype = FXA_F64, problem.engine = "ref";
    uint64_t param_grads = x->backward.param_grads;
    x->forward = x->backward = problem;
    x->forward.flags = FXA_RETURN_LSE;
    x->backward.pass = FXA_BACKWARD, x->backward.param_grads = param_grads, x->backward.captures = x->grad_captures;
    x->backward.flags = FXA_READ_DLSE | FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    run_fill(x->q, B * HQ * SQ * D, r), run_fill(x->k, B * HKV * SK * D, r), run_fill(x->v, B * HKV * SK * DV, r);
    run_fill(x->dout, B * HQ * SQ * DV, r), run_fill(x->dlse, B * HQ * SQ, r);
    return x;
}

static void run_end(run *x) {
    for (size_t i = 0; i < x->n_tensors; i++) free(x->tensors[i]), free(x->dtensors[i]);
    free(x);
}

static fxa_args run_args(run *x) {
    fxa_args a = FXA_ARGS_INIT;
    a.slot[FXA_SLOT_Q] = x->q, a.slot[FXA_SLOT_K] = x->k, a.slot[FXA_SLOT_V] = x->v;
    a.slot[FXA_SLOT_O] = x->o, a.slot[FXA_SLOT_LSE] = x->lse;
    a.params = x->params, a.n_params = x->n_params;
    a.tensors = (const void *const *)x->tensors, a.n_tensors = x->n_tensors;
    return a;
}

/* Returns L at the current data. A row without attended keys has LSE -inf, so its dLSE is 0. */
static double run_forward(run *x) {
    fxa_error err;
    fxa_args a = run_args(x);
    T_OK(fxa_attention(x->ctx, &x->forward, &a, &err));
    double sum = 0;
    x->size = 0;
    for (size_t i = 0; i < B * HQ * SQ * DV; i++) sum += x->dout[i] * x->o[i], x->size += fabs(x->dout[i] * x->o[i]);
    for (size_t i = 0; i < B * HQ * SQ; i++)
        if (x->dlse[i] != 0) sum += x->dlse[i] * x->lse[i], x->size += fabs(x->dlse[i] * x->lse[i]);
    return sum;
}

static void run_backward(run *x) {
    fxa_error err;
    run_forward(x);
    for (size_t i = 0; i < B * HQ * SQ; i++)
        if (x->lse[i] == -INFINITY) x->dlse[i] = 0;
    fxa_args a = run_args(x);
    a.slot[FXA_SLOT_DO] = x->dout, a.slot[FXA_SLOT_DLSE] = x->dlse;
    a.slot[FXA_SLOT_DQ] = x->dq, a.slot[FXA_SLOT_DK] = x->dk, a.slot[FXA_SLOT_DV] = x->dv;
    a.dtensors = (void *const *)x->dtensors, a.n_dtensors = x->n_tensors;
    a.dparams = x->dparams, a.n_dparams = x->n_params;
    T_OK(fxa_attention(x->ctx, &x->backward, &a, &err));
}

/* ---- Gradients against differences ------------------------------------------------------------------------------ */

typedef struct target { /* one input of the run and its gradient */
    const char *name;
    void *data;
    fxa_dtype dtype;
    const double *gradient;
    size_t elements;
} target;

typedef struct tally {
    int compared, drawn, kinks;
} tally;

static double target_slope(run *x, const target *t, int64_t e, double h) {
    double at = fxa__load_f64(t->data, t->dtype, e), low, high;
    fxa__store_f64(t->data, t->dtype, e, at + h);
    high = run_forward(x);
    fxa__store_f64(t->data, t->dtype, e, at - h);
    low = run_forward(x);
    fxa__store_f64(t->data, t->dtype, e, at);
    return (high - low) / (2 * h);
}

/* Compares one element. Returns false if there is a kink nearby. */
static bool target_compare_step(run *x, const target *t, int64_t e, double h, const char *program) {
    double d1 = target_slope(x, t, e, h), d2 = target_slope(x, t, e, 2 * h), d4 = target_slope(x, t, e, 4 * h);
    double fine = (4 * d1 - d2) / 3, coarse = (4 * d2 - d4) / 3, distance = fabs(fine - coarse);
    double got = t->gradient[e];
    if (!(distance <= 1e-7 * fmax(1, fabs(fine)))) return false;
    /* Each output is a sum of at most SK * D products and exponentials: its rounding stays below 64 eps. */
    double tolerance = distance + 64 * DBL_EPSILON * x->size / h;
    if (!(fabs(got - fine) <= tolerance))
        T_FAIL("%s: d%s[%" PRId64 "] is %.12g, differences give %.12g, allowed %.2g\n", program, t->name, e, got, fine,
               tolerance);
    return true;
}

static bool target_compare(run *x, const target *t, int64_t e, const char *program) {
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (target_compare_step(x, t, e, steps[i], program)) return true;
    return false;
}

/* Returns mostly elements with a gradient, and some random ones (whose gradient may have to be 0). */
static int64_t target_draw(const target *t, t_rng *r) {
    int64_t e = t_int(r, 0, (int64_t)t->elements - 1);
    if (t_int(r, 0, 3) == 0) return e;
    for (size_t i = 0; i < t->elements; i++, e = (e + 1) % (int64_t)t->elements)
        if (t->gradient[e] != 0) return e;
    return e;
}

/* Returns false if these data cannot test the target: no gradient reaches it, or kinks are everywhere. */
static bool target_check(run *x, const target *t, const char *program, t_rng *r, tally *sum) {
    int wanted = t->elements < SAMPLES ? (int)t->elements : SAMPLES, done = 0;
    int most = t->elements == 1 ? 1 : 4 * SAMPLES;
    size_t nonzero = 0;
    for (size_t i = 0; i < t->elements; i++) {
        nonzero += t->gradient[i] != 0;
        if (!isfinite(t->gradient[i])) T_FAIL("%s: d%s[%zu] is %g\n", program, t->name, i, t->gradient[i]);
    }
    for (int draws = 0; done < wanted && draws < most; draws++) {
        bool smooth = target_compare(x, t, target_draw(t, r), program);
        done += smooth, sum->compared += smooth, sum->drawn++, sum->kinks += !smooth;
    }
    return done > 0 && nonzero > 0;
}

static bool run_check(run *x, const fxa_program *p, const char *name, t_rng *r, tally *sum) {
    int before = t_failures;
    run_backward(x);
    if (t_failures != before) return false;
    target qkv[] = {{"Q", x->q, FXA_F64, x->dq, B * HQ * SQ * D},
                    {"K", x->k, FXA_F64, x->dk, B * HKV * SK * D},
                    {"V", x->v, FXA_F64, x->dv, B * HKV * SK * DV}};
    bool good = true;
    for (int i = 0; i < 3; i++) good &= target_check(x, &qkv[i], name, r, sum);
    for (size_t i = 0; i < x->n_tensors; i++) {
        target t = {fxa_program_tensor(p, i).name, x->tensors[i], x->dtype[i], x->dtensors[i], x->elements[i]};
        if (x->dtensors[i]) good &= target_check(x, &t, name, r, sum);
    }
    for (size_t i = 0; i < x->n_params; i++) {
        target t = {fxa_program_param(p, i).name, &x->params[i], FXA_F64, &x->dparams[i], 1};
        if (x->backward.param_grads >> i & 1) good &= target_check(x, &t, name, r, sum);
    }
    return good;
}

/* Compares every target with at least one of a few sets of data. */
static void gallery_check_gradients(fxa_context *ctx, const fxa_program *p, const char *name, t_rng *r, tally *sum) {
    T_REQUIRE(fxa_program_tensor_count(p) <= MAX_TENSORS && fxa_program_param_count(p) <= MAX_PARAMS);
    bool good = false;
    for (int attempt = 0; attempt < 4 && !good; attempt++) {
        run *x = run_start(ctx, p, r);
        good = run_check(x, p, name, r, sum);
        run_end(x);
    }
    if (!good) T_FAIL("%s: did not run, or some gradient is always 0 or at a kink\n", name);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------ */

TEST(gallery_is_there_and_says_what_it_is) {
    gallery g = gallery_list();
    T_CHECK(g.count >= 30);
    for (int i = 0; i < g.count; i++) {
        char *text = gallery_read(g.names[i]);
        if (strncmp(text, "# ", 2) != 0) T_FAIL("%s does not open with a comment\n", g.names[i]);
        free(text);
    }
}

static bool gallery_same(const fxa_program *a, const fxa_program *b) {
    uint8_t x[16], y[16];
    fxa_program_hash(a, x), fxa_program_hash(b, y);
    return memcmp(x, y, 16) == 0;
}

/* Checks the round trips through text and through bytes. */
static void gallery_round_trip(fxa_context *ctx, const fxa_program *p, const char *name) {
    fxa_error err;
    fxa_program *parsed = NULL, *loaded = NULL;
    size_t n_text = 0, n_bytes = 0;
    T_OK(fxa_program_print(p, NULL, 0, &n_text, &err));
    T_OK(fxa_program_save(p, NULL, 0, &n_bytes, &err));
    char *text = malloc(n_text + 1), *again = malloc(n_text + 1);
    void *bytes = malloc(n_bytes);
    if (!text || !again || !bytes) abort();
    T_OK(fxa_program_print(p, text, n_text + 1, NULL, &err));
    T_OK(fxa_program_save(p, bytes, n_bytes, NULL, &err));
    fxa_text part = {name, text, n_text};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = (uint32_t)fxa_program_get_kind(p), config.texts = &part, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &parsed, &err));
    T_OK(fxa_program_load(ctx, bytes, n_bytes, &loaded, &err));
    if (parsed && loaded) {
        if (!gallery_same(parsed, p)) T_FAIL("%s: another program after printing:\n%s\n", name, text);
        if (!gallery_same(loaded, p)) T_FAIL("%s: another program after saving\n", name);
        T_OK(fxa_program_print(parsed, again, n_text + 1, NULL, &err));
        T_STR(again, text);
    }
    fxa_program_destroy(parsed), fxa_program_destroy(loaded);
    free(text), free(again), free(bytes);
}

CONTEXT_TEST(gallery_parses_prints_saves_and_derives) {
    gallery g = gallery_list();
    for (int i = 0; i < g.count; i++) {
        fxa_program *p = gallery_parse(ctx, g.names[i]), *derivative = NULL;
        if (!p) continue;
        gallery_round_trip(ctx, p, g.names[i]);
        T_OK(fxa_program_derivative(p, &derivative, &err));
        if (derivative) gallery_round_trip(ctx, derivative, g.names[i]);
        fxa_program_destroy(derivative), fxa_program_destroy(p);
    }
}

CONTEXT_TEST(gallery_programs_are_all_different) {
    gallery g = gallery_list();
    static fxa_program *all[256];
    for (int i = 0; i < g.count; i++) all[i] = gallery_parse(ctx, g.names[i]);
    for (int i = 0; i < g.count; i++)
        for (int j = 0; j < i; j++)
            if (all[i] && all[j] && gallery_same(all[i], all[j])) T_FAIL("%s is %s\n", g.names[i], g.names[j]);
    for (int i = 0; i < g.count; i++) fxa_program_destroy(all[i]);
}

CONTEXT_TEST(gallery_gradients_against_finite_differences) {
    gallery g = gallery_list();
    t_rng r = {t_seed()};
    tally sum = {0};
    int checked = 0;
    for (int i = 0; i < g.count; i++) {
        if (!t_some(i)) continue;
        checked++;
        t_program *p = gallery_parse(ctx, g.names[i]);
        if (p) gallery_check_gradients(ctx, p, g.names[i], &r, &sum);
    }
    T_CHECK(sum.compared >= 20 * checked);
    if (sum.kinks * 50 > sum.drawn) T_FAIL("%d of %d draws fell on kinks\n", sum.kinks, sum.drawn);
}

T_MAIN
