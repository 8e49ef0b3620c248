/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward computes the scores of forward again, to the bit (docs/numerics.md). Shown from outside, for every
 * instruction set: a program turns the last digits of a score into a new score between 0 and 4, so that one other bit
 * anywhere changes a probability by more than a tenth. With V the identity, O is forward's matrix of probabilities;
 * with dO the identity, dV is backward's, transposed; the two must agree.
 */
#include "base/dtype.h"
#include "support/isa.h"
#include "t.h"

/* Rows and keys of one KV head are at most D of V. */
typedef struct same_spec {
    const char *what;
    fxa_dtype dtype, dout; /* dout 0: as dtype */
    int64_t hq, hkv, sq, sk, d;
    uint32_t flags;
    double scale; /* 0: the default */
    bool shares;  /* the mask reads a product that the score adds */
    bool strided; /* features of K are not dense */
    uint32_t page_size;
} same_spec;

typedef struct same_case {
    same_spec s;
    fxa_problem p;
    fxa_args args;
    int64_t dv, n[FXA_SLOT_COUNT];
    int32_t pages[64];
} same_case;

static fxa_dtype same_dtype(const same_case *c, int slot) {
    if (slot == FXA_SLOT_LSE) return c->s.dtype == FXA_F64 ? FXA_F64 : FXA_F32;
    return slot == FXA_SLOT_DO && c->s.dout ? c->s.dout : c->s.dtype;
}

static void same_make(same_case *c, const same_spec *s, t_rng *rng) {
    int64_t heads = s->hq / s->hkv, wide = s->strided ? 2 : 1;
    *c = (same_case){.s = *s, .p = FXA_PROBLEM_INIT, .args = FXA_ARGS_INIT};
    c->dv = heads * s->sq > s->sk ? heads * s->sq : s->sk;
    c->p.b = 1, c->p.hq = s->hq, c->p.hkv = s->hkv, c->p.sq = s->sq, c->p.sk = s->sk, c->p.d = s->d, c->p.dv = c->dv;
    c->p.q.dtype = (uint32_t)s->dtype, c->p.dout.dtype = (uint32_t)s->dout, c->p.engine = "cpu";
    c->p.flags = s->flags;
    if (s->strided) c->p.k = (fxa_operand){0, FXA_LAYOUT_STRIDED, {0, s->sk * s->d * 2, s->d * 2, 2}};
    if (s->page_size) {
        c->p.flags |= FXA_PAGED;
        c->p.page_size = s->page_size, c->p.n_pages = (s->sk + s->page_size - 1) / s->page_size;
        for (int i = 0; i < 64; i++) c->pages[i] = (int32_t)(c->p.n_pages - 1 - i); /* back to front */
        c->args.slot[FXA_SLOT_PAGES] = c->pages;
    }
    int64_t keys = s->page_size ? c->p.n_pages * s->page_size : s->sk;
    c->n[FXA_SLOT_Q] = s->hq * s->sq * s->d, c->n[FXA_SLOT_K] = s->hkv * keys * s->d * wide;
    c->n[FXA_SLOT_V] = c->n[FXA_SLOT_DV] = s->hkv * keys * c->dv;
    c->n[FXA_SLOT_O] = c->n[FXA_SLOT_DO] = s->hq * s->sq * c->dv, c->n[FXA_SLOT_LSE] = s->hq * s->sq;
    for (int slot = 0; slot < FXA_SLOT_COUNT; slot++) {
        if (!c->n[slot]) continue;
        c->args.slot[slot] = calloc((size_t)c->n[slot], sizeof(double));
        if (!c->args.slot[slot]) abort();
        for (int64_t i = 0; i < c->n[slot] && (slot == FXA_SLOT_Q || slot == FXA_SLOT_K); i++)
            fxa__store_f64(c->args.slot[slot], (uint32_t)s->dtype, i, t_real(rng, -2, 2));
    }
    if (s->scale != 0) c->args.scale = s->scale;
}

static void same_free(same_case *c) {
    c->args.slot[FXA_SLOT_PAGES] = NULL;
    for (int slot = 0; slot < FXA_SLOT_COUNT; slot++) free(c->args.slot[slot]);
}

/* Row of key k of KV head h in V and dV. */
static int64_t same_key(const same_case *c, int64_t h, int64_t k) {
    int64_t size = c->s.page_size;
    return size ? (c->pages[k / size] * c->s.hkv + h) * size + k % size : h * c->s.sk + k;
}

/* V and dO the identity. */
static void same_set(same_case *c) {
    int64_t heads = c->s.hq / c->s.hkv;
    for (int64_t h = 0; h < c->s.hkv; h++) {
        for (int64_t k = 0; k < c->s.sk; k++)
            fxa__store_f64(c->args.slot[FXA_SLOT_V], (uint32_t)c->s.dtype, same_key(c, h, k) * c->dv + k, 1);
        for (int64_t r = 0; r < heads * c->s.sq; r++)
            fxa__store_f64(c->args.slot[FXA_SLOT_DO], (uint32_t)same_dtype(c, FXA_SLOT_DO),
                           (h * heads * c->s.sq + r) * c->dv + r, 1);
    }
}

/* Probabilities that are off by more than rounding can be. */
static int64_t same_differences(const same_case *c, double *worst) {
    int64_t rows = c->s.hq / c->s.hkv * c->s.sq, count = 0;
    double allowed = c->s.dtype == FXA_BF16 || c->s.dout == FXA_BF16 ? 0.02 : c->s.dtype == FXA_F16 ? 2e-3 : 2e-5;
    for (int64_t h = 0; h < c->s.hkv; h++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < c->s.sk; k++) {
                double forward =
                    fxa__load_f64(c->args.slot[FXA_SLOT_O], (uint32_t)c->s.dtype, (h * rows + r) * c->dv + k);
                double backward =
                    fxa__load_f64(c->args.slot[FXA_SLOT_DV], (uint32_t)c->s.dtype, same_key(c, h, k) * c->dv + r);
                double off = fabs(backward - forward) / (fabs(forward) + 1e-6);
                *worst = fmax(*worst, off);
                count += !(off <= allowed);
            }
    return count;
}

static void same_check(const char *isa, const same_spec *s, t_rng *rng) {
    same_case c;
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    char text[512];
    double worst = 0;
    /* Scores around 1 have digits down to 2^-23 or 2^-52. */
    (void)snprintf(text, sizeof text, "%s\nlet x = (score%s) * %s\nscore = 4.0 * (x - floor(x))\n%s",
                   s->shares ? "let y = float(q - k) * 0.037" : "", s->shares ? " + y" : "",
                   s->dtype == FXA_F64 ? "562949953421312.0" : "1048576.0", s->shares ? "mask = y > -1.5" : "");
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    same_make(&c, s, rng);
    same_set(&c);
    c.p.program = program;
    c.p.flags |= FXA_WANT_LSE;
    T_OK(fxa_attention(ctx, &c.p, &c.args, &err));
    c.p.pass = FXA_BACKWARD, c.p.flags = (c.p.flags & ~(uint32_t)FXA_WANT_LSE) | FXA_GRAD_V;
    T_OK(fxa_attention(ctx, &c.p, &c.args, &err));
    int64_t count = same_differences(&c, &worst);
    if (count) T_FAIL("%s, %s: %" PRId64 " probabilities differ, by up to %.3g\n", isa, s->what, count, worst);
    same_free(&c);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
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
    t_rng rng = {t_seed()};
    for (size_t i = 0; i < sizeof same_specs / sizeof same_specs[0]; i++)
        for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
            same_spec s = same_specs[i];
            char what[128];
            s.dtype = dtypes[t][0], s.dout = dtypes[t][1];
            (void)snprintf(what, sizeof what, "%s, %s%s%s", s.what, fxa_dtype_name(s.dtype), s.dout ? ", dO " : "",
                           s.dout ? fxa_dtype_name(s.dout) : "");
            s.what = what;
            same_check(isa, &s, &rng);
        }
}

TEST(backward_has_the_scores_of_forward) { isa_each(same_run); }

T_MAIN
