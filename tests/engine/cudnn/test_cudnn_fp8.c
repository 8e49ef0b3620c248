/* SPDX-License-Identifier: Apache-2.0
 *
 * e4m3 Q, K and V in the cuDNN engine, on the stand-ins or a device: O, LSE and amax compared with ref, with and
 * without scales. Tolerance: P is rounded to e4m3, with an error of 2^-4 of its value, or of 2^-18 below 2^-14;
 * products are summed with 13 bits, as on Hopper; then O is rounded.
 */
#include "cudnn_fixture.h"

#include "base/dtype.h"

#include <math.h>

typedef struct fp8_kind {
    const char *text;
    uint32_t flags;
} fp8_kind;

static const fp8_kind fp8_kinds[] = {{NULL, 0},
                                     {"mask = k <= q", 0},
                                     {NULL, FXA_CAUSAL},
                                     {"mask = k <= q + 7", 0},
                                     {"mask = k + 5 <= q", 0}, /* rows that attend to no key */
                                     {"mask = q - k < 40", 0},
                                     {"mask = k <= q && q - k < 40", 0},
                                     {NULL, FXA_CAUSAL | FXA_BOTTOM_RIGHT},
                                     {"score = 20.0 * tanh(score / 20.0)", 0},
                                     {"score = 10.0 * tanh(score / 10.0)\nmask = k <= q && q - k < 40", 0},
                                     {"score = score + 0.05 * float(k - q)\nmask = k <= q", 0},
                                     {"score = score - 0.01 * float(h + 1) * float(abs(q - k))", 0},
                                     {"mask = (k / 16) == (q / 16) || k < 4", 0},
                                     {"mask = k % 3 != 1", 0},
                                     {"param a : float\nscore = score * a + 0.5", 0},
                                     {"tensor t : f32[1]\nscore = score + t[h]", 0},
                                     {"tensor t : f32[1]\nscore = score * t[q]", 0},
                                     {"tensor t : f32[1]\nscore = score + t[k]\nmask = k <= q", 0},
                                     {"tensor t : f32[2]\nscore = score + t[q, k]", 0},
                                     {"tensor t : bf16[1]\nscore = score * t[3] + t[2]", 0},
                                     {"score = 4.0 * sigmoid(score)", 0},
                                     {"score = exp(score * 0.1)", 0},
                                     {"score = abs(score)", 0},
                                     {"score = score * 0.125\nmask = k <= q", 0}};
enum { FP8_KINDS = sizeof fp8_kinds / sizeof *fp8_kinds };

typedef struct fp8_case {
    const char *text;
    int64_t hq, hkv, sq, sk, d, dv;
    fxa_dtype o;
    bool scaled;
    int some;  /* scales that are given: 0 = all, 1 = all but those of V and O, 2 = none */
    int64_t b; /* 0: 2 */
    uint32_t flags;
    int style; /* 1: BSHD, 2: SBHD */
    double reach;
    bool no_lse;
} fp8_case;

typedef struct fp8_data {
    attn_data x;
    double *want, *size;  /* O in f64, and the sum of P |V| */
    float scale[4], amax; /* scales of Q, K, V, O */
} fp8_data;

static const fxa_slot fp8_slots[4] = {FXA_SLOT_DESCALE_Q, FXA_SLOT_DESCALE_K, FXA_SLOT_DESCALE_V, FXA_SLOT_SCALE_O};

static bool fp8_given(const fp8_case *c, int i) { return c->scaled && (!c->some || (c->some == 1 && i < 2)); }
static double fp8_scale(const fp8_case *c, const fp8_data *f, int i) {
    return fp8_given(c, i) ? (double)f->scale[i] : 1;
}

/* Runs forward with an engine; the reference writes O in f64, without a scale of O. */
static fxa_status fp8_run(const fp8_case *c, fp8_data *f, fxa_context *ctx, double *wide, fxa_error *err) {
    attn_call call;
    attn_call_make(&f->x, FXA_FORWARD, &call);
    call.p.engine = wide ? "ref" : "cudnn", call.p.device = wide ? FXA_HOST : FXA_CUDA,
    call.p.alignment = wide ? 0 : 16;
    if (c->scaled) call.p.flags |= FXA_SCALED;
    if (c->no_lse && !wide) call.p.flags &= ~(uint32_t)FXA_RETURN_LSE, call.args.slot[FXA_SLOT_LSE] = NULL;
    for (int i = 0; i < (wide ? 3 : 4); i++)
        if (fp8_given(c, i) && (i < 3 || fxa__dtype_is_byte_float(c->o))) call.args.slot[fp8_slots[i]] = &f->scale[i];
    if (wide)
        call.p.o.dtype = FXA_F64, call.args.slot[FXA_SLOT_O] = wide;
    else if (c->scaled && fxa__dtype_is_byte_float(c->o))
        call.args.slot[FXA_SLOT_AMAX_O] = &f->amax;
    return fxa_attention(ctx, &call.p, &call.args, err);
}

/* Sets strides in which the heads of a row are adjacent. */
static void fp8_lay_out(const fp8_case *c, attn_spec *s) {
    static const fxa_slot slots[4] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O};
    for (int i = 0; i < 4; i++) {
        int64_t h = i == 1 || i == 2 ? c->hkv : c->hq, n = i == 1 || i == 2 ? c->sk : c->sq, d = i >= 2 ? c->dv : c->d;
        int64_t *stride = s->stride[slots[i]];
        stride[3] = 1, stride[1] = d, s->strided |= 1u << slots[i];
        if (c->style == 1)
            stride[2] = h * d, stride[0] = n * h * d;
        else
            stride[0] = h * d, stride[2] = s->b * h * d;
    }
}

static int64_t fp8_open(const fp8_case *c, fp8_data *f, fxa_context *ctx, uint64_t seed) {
    attn_spec s = {.b = c->b ? c->b : 2, .hq = c->hq, .hkv = c->hkv, .sq = c->sq, .sk = c->sk, .d = c->d, .dv = c->dv};
    fxa_error err;
    uint64_t rng = seed;
    s.dtype = FXA_E4M3, s.slot_dtype[FXA_SLOT_O] = c->o, s.flags = FXA_RETURN_LSE | c->flags, s.text = c->text;
    s.reach = c->reach > 0 ? c->reach : 3;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) s.tensor[i][j] = 8 + c->sq + c->sk;
    if (c->style) fp8_lay_out(c, &s);
    memset(f, 0, sizeof *f);
    T_OK(attn_data_make(&f->x, ctx, &s, seed, &err));
    for (int i = 0; i < 4; i++) f->scale[i] = (float)exp2(attn_real(&rng, -1.5, 1));
    f->scale[3] *= 32;
    int64_t n = attn_tensor_places(&f->x.t[FXA_SLOT_O]);
    f->want = calloc((size_t)n, sizeof(double)), f->size = calloc((size_t)n, sizeof(double));
    if (!f->want || !f->size) abort();
    return n;
}

static void fp8_close(fp8_data *f) {
    free(f->want), free(f->size);
    attn_data_free(&f->x);
}

/* Computes O and LSE with the reference, and O with |V| instead of V; V is restored. */
static void fp8_reference(const fp8_case *c, fp8_data *f, fxa_context *ctx, double *lse) {
    attn_tensor *v = &f->x.t[FXA_SLOT_V], *rows = &f->x.t[FXA_SLOT_LSE];
    int64_t n = attn_tensor_places(v);
    uint8_t *bits = malloc((size_t)n);
    fxa_error err;
    if (!bits) abort();
    memcpy(bits, v->origin, (size_t)n);
    T_OK(fp8_run(c, f, ctx, f->want, &err));
    for (int64_t i = 0; i < attn_tensor_places(rows); i++) lse[i] = attn_get(rows, i);
    for (int64_t i = 0; i < n; i++) v->origin[i] &= 0x7f;
    T_OK(fp8_run(c, f, ctx, f->size, &err));
    memcpy(v->origin, bits, (size_t)n);
    free(bits);
}

/* Returns the error bound of a score: a sum of d products with 13 bits, at most doubled by these programs. */
static double fp8_score_error(const fp8_case *c, const fp8_data *f) {
    double largest[2] = {0, 0}, scale = fp8_scale(c, f, 0) * fp8_scale(c, f, 1) / sqrt((double)c->d);
    static const fxa_slot slots[2] = {FXA_SLOT_Q, FXA_SLOT_K};
    for (int j = 0; j < 2; j++)
        for (int64_t i = 0; i < attn_tensor_places(&f->x.t[slots[j]]); i++)
            largest[j] = fmax(largest[j], fabs(attn_get(&f->x.t[slots[j]], i)));
    return 2 * 0x1p-13 * scale * (double)c->d * largest[0] * largest[1];
}

static void fp8_check(const fp8_case *c, fp8_data *f, const double *lse, int64_t n, int number) {
    const attn_tensor *o = &f->x.t[FXA_SLOT_O], *rows = &f->x.t[FXA_SLOT_LSE];
    double score = fp8_score_error(c, f), scale = fp8_scale(c, f, 3), most = 0, squares = 0, allowed = 0, worst = 0;
    bool byte = fxa__dtype_is_byte_float(c->o);
    double unit = c->o == FXA_E4M3 ? 0x1p-4 : c->o == FXA_E5M2 ? 0x1p-3 : 0x1p-24;
    double v = (c->reach > 0 ? c->reach : 3) * fp8_scale(c, f, 2);
    int bad = 0;
    if (!byte) scale = 1;
    for (int64_t i = 0; i < n; i++) {
        double want = f->want[i], size = f->size[i], got = attn_get(o, i);
        double off = (0x1p-4 + 2 * expm1(score) + 0x1p-12) * size + 0x1p-18 * (double)c->sk * v;
        double lo = attn_round(c->o, (want - off) * scale), hi = attn_round(c->o, (want + off) * scale);
        most = fmax(most, fabs(want));
        worst = fmax(worst, fabs(got / scale - want) / (off + unit * fabs(want)));
        squares += (got / scale - want) * (got / scale - want);
        allowed += pow((0x1p-4 / sqrt(3) + 2 * expm1(score)) * size + unit / sqrt(3) * fabs(want) + 0x1p-10 / scale, 2);
        if (!(got >= lo && got <= hi) && bad++ < 3)
            T_FAIL("case %d, O %lld is %g, wanted is %g, off by %g of %g\n", number, (long long)i, got / scale, want,
                   fabs(got / scale - want), off);
    }
    if (!(squares <= allowed))
        T_FAIL("case %d: off by %g of %g in the root mean square\n", number, sqrt(squares), sqrt(allowed));
    for (int64_t i = 0; i < attn_tensor_places(rows) && !c->no_lse; i++) {
        double got = attn_get(rows, i);
        if (!(got == lse[i] || fabs(got - lse[i]) <= score + 1e-5 * (1 + fabs(lse[i]))) && bad++ < 3)
            T_FAIL("case %d, LSE %lld is %g, wanted is %g\n", number, (long long)i, got, lse[i]);
    }
    if (c->scaled && byte && !(fabs((double)f->amax - most) <= (0x1p-4 + 2 * expm1(score)) * most + 0x1p-12))
        T_FAIL("case %d: the largest value is %g, wanted is %g\n", number, (double)f->amax, most);
    printf("  case %d: %s, %lldx%lldx%lldx%lld, O %s%s: worst %.2f, root mean square %.2f of what is allowed\n", number,
           c->text ? c->text : "identity", (long long)c->sq, (long long)c->sk, (long long)c->d, (long long)c->dv,
           fxa_dtype_name(c->o), c->scaled ? ", scaled" : "", worst, sqrt(squares / allowed));
}

/* Sets a tensor that the reference has written to NaN. */
static void fp8_wipe(attn_tensor *t) {
    for (int64_t i = 0; i < attn_tensor_places(t); i++) attn_set(t, i, NAN);
}

static void fp8_try(const fp8_case *c, fxa_context *ctx, int number) {
    fp8_data f;
    fxa_error err;
    int64_t n = fp8_open(c, &f, ctx, t_seed() + (uint64_t)number);
    double *lse = calloc((size_t)attn_tensor_places(&f.x.t[FXA_SLOT_LSE]), sizeof(double));
    if (!lse) abort();
    fp8_reference(c, &f, ctx, lse);
    fp8_wipe(&f.x.t[FXA_SLOT_LSE]);
    fxa_status status = fp8_run(c, &f, ctx, NULL, &err);
    if (status != FXA_OK) T_FAIL("case %d: %s\n", number, err.text);
    if (status == FXA_OK) fp8_check(c, &f, lse, n, number);
    free(lse);
    fp8_close(&f);
}

static int64_t fp8_pick(uint64_t *rng, const int64_t *list, size_t n) { return list[attn_int(rng, 0, (int64_t)n - 1)]; }
#define FP8_PICK(rng, list) fp8_pick(rng, list, sizeof list / sizeof *list)

static fp8_case fp8_draw(uint64_t *rng, const fp8_kind *kind, int64_t pairs) {
    static const int64_t sizes[] = {2,   3,   8,   16,  17,  31,  37,  63,  64,  65,  72,   96,   100, 127,
                                    128, 129, 200, 256, 300, 333, 511, 512, 640, 700, 1000, 1024, 2048};
    static const int64_t features[] = {16, 32, 48, 64, 64, 80, 96, 112, 128, 128, 128, 144, 160, 192, 208, 256, 256};
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {6, 2}, {8, 1}, {3, 3}};
    const int64_t *h = heads[attn_int(rng, 0, 5)];
    fp8_case c = {.text = kind->text, .flags = kind->flags, .hq = h[0], .hkv = h[1]};
    do {
        c.b = attn_int(rng, 1, 3), c.sq = FP8_PICK(rng, sizes);
        c.sk = attn_int(rng, 0, 19) ? FP8_PICK(rng, sizes) : 1;
    } while (c.b * c.hq * c.sq * c.sk > pairs);
    do {
        c.d = FP8_PICK(rng, features), c.dv = attn_int(rng, 0, 2) ? c.d : FP8_PICK(rng, features);
    } while (c.d <= 128 && c.dv > 128);
    c.o = attn_int(rng, 0, 1) ? FXA_E4M3 : FXA_E5M2, c.scaled = attn_int(rng, 0, 2) > 0;
    c.some = (int)attn_int(rng, -3, 2), c.some = c.some < 0 ? 0 : c.some;
    c.style = (int)attn_int(rng, 0, 2), c.reach = attn_int(rng, 0, 1) ? 3 : 1, c.no_lse = attn_int(rng, 0, 4) == 0;
    return c;
}

static const char *fp8_line(const char *text) {
    static char line[80];
    snprintf(line, sizeof line, "%s", text ? text : "");
    for (char *at = line; *at; at++)
        if (*at == '\n') *at = ';';
    return line;
}

/* Runs the cases first, first + by, ... below count, and prints a line with the verdict for each. */
static void fp8_many(int first, int by, int count, int64_t pairs) {
    t_ctx *ctx = t_context();
    for (int i = first; i < count; i += by) {
        uint64_t rng = t_seed() + 7919u * (uint64_t)i;
        fp8_case c = fp8_draw(&rng, &fp8_kinds[i % FP8_KINDS], pairs);
        int before = t_failures;
        fp8_try(&c, ctx, i);
        printf("%s %d b %d heads %d/%d %dx%d d %d/%d O %s%s some %d style %d flags %x%s: %s\n",
               t_failures == before ? "right" : "WRONG", i, (int)c.b, (int)c.hq, (int)c.hkv, (int)c.sq, (int)c.sk,
               (int)c.d, (int)c.dv, fxa_dtype_name(c.o), c.scaled ? " scaled" : "", c.some, c.style, c.flags,
               c.no_lse ? " no LSE" : "", fp8_line(c.text));
        fflush(stdout);
    }
}

TEST(forward_of_8_bits_is_that_of_the_reference) {
    if (cudnn_bytes_missing()) T_SKIP(cudnn_bytes_missing());
    fp8_many(0, 1, t_scaled(3 * FP8_KINDS), 20000);
    if (standin_ready()) standin_check_end();
}

/* FXA_TEST_SHARD=which/of divides the cases among parallel processes (device/python/run_cudnn.py). */
TEST(many_on_a_device) {
    int which = 0, of = 1;
    const char *shard = getenv("FXA_TEST_SHARD");
    if (standin_ready() && !shard) T_SKIP("it runs on a GPU only: with the stand-in libraries it would take long");
    if (cudnn_bytes_missing()) T_SKIP(cudnn_bytes_missing());
    if (shard && sscanf(shard, "%d/%d", &which, &of) != 2) T_SKIP("FXA_TEST_SHARD is no which/of");
    fp8_many(1000 + which, of, 1000 + t_scaled(10 * FP8_KINDS), 1 << 20);
}

/* Problems for which cuDNN lists kernels but does not compile them, or computes something else, are refused. */
TEST(what_cudnn_does_not_compile_or_gets_wrong_is_refused) { /* */
    static const struct {
        const char *text, *forward, *backward; /* NULL: taken */
    } cases[] = {
        {"score = 0.5 * score + 0.1 * float(k - q)", NULL, NULL},
        {"score = tanh(score)", NULL, "sums and products of the score"},
        {"score = score * (1.0 + 0.001 * float(k))", NULL, "is no number"},
        {"score = max(score, 0.0)", "forward compiles no program that uses the score twice", "sums and products"},
        {"score = sin(score)", "nor sin, cos, tan, floor", "sums and products"},
        {"score = score * tanh(score)", "uses the score twice", "sums and products"},
        {"score = score > 0.0 ? score : 0.25 * score", "compares or divides by it", "sums and products"},
        {"tensor t : f32[1]\nscore = score * t[3]", NULL, "is no number"},
        {"tensor t : f32[1]\nscore = score + t[h]", NULL, "as t[q, k] alone"},
        {"tensor t : f32[1]\nscore = score + t[q]", NULL, "as t[q, k] alone"}};
    NEEDS_STANDIN;
    fxa_context *ctx = t_context();
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, (fxa_pass)(i & 1));
        const char *says = i & 1 ? cases[i / 2].backward : cases[i / 2].forward;
        fxa_capture capture = {.size = {16}};
        t_program *program = NULL;
        T_OK(fxa_program_parse(ctx, cases[i / 2].text, SIZE_MAX, &program, &err));
        p.q.dtype = FXA_E4M3, p.d_qk = 128, p.sq = 16, p.program = program;
        p.captures = &capture, p.n_captures = fxa_program_tensor_count(program);
        fxa_support said = answer_of(ctx, &p);
        if (said.supported != !says) T_FAIL("%s: %s\n", cases[i / 2].text, said.reason);
        if (says) T_HAS(said.reason, says);
    }
    fxa_context_destroy(ctx);
    standin_check_end();
}

T_MAIN
