/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward recomputes the scores of forward bit by bit (docs/numerics.md). Shown from outside, for every instruction
 * set: a program maps the last digits of a score to a new score between 0 and 4, so that one different bit changes a
 * probability by more than a tenth. With V the identity, O is forward's matrix of probabilities; with dO the identity,
 * dV is backward's matrix, transposed; both must agree.
 */
#include "support/fixtures/attn_data.h"
#include "support/fixtures/isa.h"
#include "t.h"

/* A case. The rows and keys of one KV head are at most D of V. */
typedef struct same_spec {
    const char *what;
    fxa_dtype dtype, dout; /* dout 0: as dtype */
    int64_t hq, hkv, sq, sk, d;
    uint32_t flags;
    double scale; /* 0: the default */
    bool shares;  /* the mask reads a product that is also added to the score */
    bool strided; /* the elements of a row of K are not contiguous */
    uint32_t page_size;
} same_spec;

static attn_spec same_problem(const same_spec *s, const char *text) {
    int64_t rows = s->hq / s->hkv * s->sq;
    attn_spec a = {.b = 1, .hq = s->hq, .hkv = s->hkv, .sq = s->sq, .sk = s->sk, .d = s->d, .reach = 2, .text = text};
    a.dv = rows > s->sk ? rows : s->sk;
    a.dtype = s->dtype, a.slot_dtype[FXA_SLOT_DO] = s->dout, a.flags = s->flags;
    a.page_size = s->page_size;
    if (s->page_size) a.n_pages = (s->sk + s->page_size - 1) / s->page_size;
    if (s->strided) {
        const int64_t stride[4] = {0, s->sk * s->d * 2, s->d * 2, 2};
        memcpy(a.stride[FXA_SLOT_K], stride, sizeof stride);
        a.strided = 1u << FXA_SLOT_K;
    }
    return a;
}

/* Returns the row of key k of KV head h in V and dV. */
static int64_t same_key(const attn_data *x, int64_t h, int64_t k) {
    int64_t size = x->problem.page_size;
    if (!size) return h * x->problem.sk + k;
    return (x->ints[FXA_SLOT_PAGES][k / size] * x->problem.hkv + h) * size + k % size;
}

/* Sets V and dO to the identity, and pages in reverse order. */
static void same_set(attn_data *x) {
    const fxa_problem *p = &x->problem;
    int64_t rows = p->hq / p->hkv * p->sq;
    attn_tensor *v = &x->t[FXA_SLOT_V], *dout = &x->t[FXA_SLOT_DO];
    for (int64_t i = 0; i < p->n_pages; i++) x->ints[FXA_SLOT_PAGES][i] = (int32_t)(p->n_pages - 1 - i);
    for (int64_t i = 0; i < attn_tensor_places(v); i++) attn_set(v, i, 0);
    for (int64_t i = 0; i < attn_tensor_places(dout); i++) attn_set(dout, i, 0);
    for (int64_t h = 0; h < p->hkv; h++) {
        for (int64_t k = 0; k < p->sk; k++) attn_set(v, same_key(x, h, k) * p->d_v + k, 1);
        for (int64_t r = 0; r < rows; r++) attn_set(dout, (h * rows + r) * p->d_v + r, 1);
    }
}

/* Returns the number of probabilities that differ by more than rounding explains. */
static int64_t same_differences(const attn_data *x, const same_spec *s, double *worst) {
    const fxa_problem *p = &x->problem;
    int64_t rows = p->hq / p->hkv * p->sq, count = 0;
    double allowed = s->dtype == FXA_BF16 || s->dout == FXA_BF16 ? 0.02 : s->dtype == FXA_F16 ? 2e-3 : 2e-5;
    for (int64_t h = 0; h < p->hkv; h++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < p->sk; k++) {
                double forward = attn_get(&x->t[FXA_SLOT_O], (h * rows + r) * p->d_v + k);
                double backward = attn_get(&x->t[FXA_SLOT_DV], same_key(x, h, k) * p->d_v + r);
                double off = fabs(backward - forward) / (fabs(forward) + 1e-6);
                *worst = fmax(*worst, off);
                count += !(off <= allowed);
            }
    return count;
}

static void same_check(const char *isa, const same_spec *s, uint64_t seed) {
    attn_owned x = {0};
    fxa_error err;
    t_ctx *ctx = t_context();
    char text[512];
    double worst = 0;
    /* Scores around 1 have digits down to 2^-23 (f32) or 2^-52 (f64). */
    (void)snprintf(text, sizeof text, "%s\nlet x = (score%s) * %s\nscore = 4.0 * (x - floor(x))\n%s",
                   s->shares ? "let y = float(q - k) * 0.037" : "", s->shares ? " + y" : "",
                   s->dtype == FXA_F64 ? "562949953421312.0" : "1048576.0", s->shares ? "mask = y > -1.5" : "");
    attn_spec spec = same_problem(s, text);
    T_REQUIRE(attn_data_make(&x, ctx, &spec, seed, &err) == FXA_OK);
    same_set(&x);
    if (s->scale != 0) x.scale = s->scale;
    x.backward_flags = FXA_GRAD_V;
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_FORWARD, &err));
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
    int64_t count = same_differences(&x, s, &worst);
    if (count) T_FAIL("%s, %s: %" PRId64 " probabilities differ, by up to %.3g\n", isa, s->what, count, worst);
}

static const same_spec same_specs[] = {
    {"rows", .hq = 1, .hkv = 1, .sq = 190, .sk = 200, .d = 40},
    {"a scale that is a power of two", .hq = 1, .hkv = 1, .sq = 60, .sk = 90, .d = 64},
    {"a scale of its own", .hq = 1, .hkv = 1, .sq = 60, .sk = 90, .d = 64, .scale = 0.3},
    {"causal", .hq = 2, .hkv = 2, .sq = 150, .sk = 170, .d = 33, .flags = FXA_CAUSAL},
    {"one row", .hq = 2, .hkv = 2, .sq = 1, .sk = 300, .d = 80},
    {"a group of heads, one row", .hq = 6, .hkv = 2, .sq = 1, .sk = 300, .d = 96},
    {"few rows", .hq = 3, .hkv = 1, .sq = 5, .sk = 130, .d = 37, .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT},
    {"few rows, strided keys", .hq = 1, .hkv = 1, .sq = 9, .sk = 130, .d = 48, .strided = true},
    {"a row too many to be few", .hq = 1, .hkv = 1, .sq = 17, .sk = 130, .d = 48},
    {"many keys", .hq = 1, .hkv = 1, .sq = 20, .sk = 512, .d = 256},
    {"a mask that shares with the score", .hq = 1, .hkv = 1, .sq = 150, .sk = 300, .d = 24, .shares = true},
    {"pages", .hq = 2, .hkv = 1, .sq = 40, .sk = 100, .d = 32, .page_size = 16},
    {"pages, few rows", .hq = 2, .hkv = 1, .sq = 2, .sk = 100, .d = 72, .page_size = 16},
};

static void same_run(const char *isa) {
    static const fxa_dtype dtypes[][2] = {{FXA_F32, 0},  {FXA_F64, 0},        {FXA_F16, 0},
                                          {FXA_BF16, 0}, {FXA_BF16, FXA_F32}, {FXA_F32, FXA_BF16}};
    static int cases;
    t_rng rng = {t_seed()};
    for (size_t i = 0; i < sizeof same_specs / sizeof same_specs[0]; i++)
        for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
            if (!t_some(cases++)) continue;
            same_spec s = same_specs[i];
            char what[128];
            s.dtype = dtypes[t][0], s.dout = dtypes[t][1];
            (void)snprintf(what, sizeof what, "%s, %s%s%s", s.what, fxa_dtype_name(s.dtype), s.dout ? ", dO " : "",
                           s.dout ? fxa_dtype_name(s.dout) : "");
            s.what = what;
            for (int n = t_scaled_up(1); n > 0; n--) same_check(isa, &s, t_next(&rng));
        }
}

TEST(backward_has_the_scores_of_forward) { isa_each(same_run); } /* */

T_MAIN
