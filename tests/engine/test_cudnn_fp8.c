/* SPDX-License-Identifier: Apache-2.0
 *
 * Q, K and V of e4m3 in the cuDNN engine, on the stand-ins, and on a device where there is one: O, LSE and the largest
 * value against the reference, with scales and without. What is allowed: P is rounded to e4m3, by 2^-4 of itself, or
 * below 2^-14 by 2^-18; products are added up with 13 bits, which is what Hopper's e4m3 has; then O is rounded.
 */
#include "cudnn_rig.h"

#include "base/dtype.h"

#include <math.h>

enum { FP8_PROGRAMS = 9 };
static const char *const fp8_programs[FP8_PROGRAMS] = {
    NULL,
    "score = 20.0 * tanh(score / 20.0)",
    "mask = k <= q",
    "score = score + 0.05 * float(k - q)\nmask = k <= q",
    "score = 10.0 * tanh(score / 10.0)\nmask = k <= q && q - k < 40",
    "mask = (k / 16) == (q / 16) || k < 4",
    "param a : float\nscore = score * a + 0.5",
    "tensor t : f32[1]\nscore = score + t[h]",
    "score = 4.0 * sigmoid(score)",
};

typedef struct fp8_case {
    const char *text;
    int64_t hq, hkv, sq, sk, d, dv;
    fxa_dtype o;
    bool scaled, some; /* some: scales of V and O are not given */
} fp8_case;

typedef struct fp8_data {
    attn_data x;
    double *want, *size;  /* O in f64, and sum P abs V */
    float scale[4], amax; /* of Q, K, V, O */
} fp8_data;

static const fxa_slot fp8_slots[4] = {FXA_SLOT_DESCALE_Q, FXA_SLOT_DESCALE_K, FXA_SLOT_DESCALE_V, FXA_SLOT_SCALE_O};

static bool fp8_given(const fp8_case *c, int i) { return c->scaled && !(c->some && i >= 2); }
static double fp8_scale(const fp8_case *c, const fp8_data *f, int i) {
    return fp8_given(c, i) ? (double)f->scale[i] : 1;
}

/* Forward by an engine; the reference writes O in f64, without a scale of its own. */
static fxa_status fp8_run(const fp8_case *c, fp8_data *f, fxa_context *ctx, double *wide, fxa_error *err) {
    attn_call call;
    attn_call_make(&f->x, FXA_FORWARD, &call);
    call.p.engine = wide ? "ref" : "cudnn", call.p.device = wide ? FXA_HOST : FXA_CUDA,
    call.p.alignment = wide ? 0 : 16;
    if (c->scaled) call.p.flags |= FXA_SCALED;
    for (int i = 0; i < (wide ? 3 : 4); i++)
        if (fp8_given(c, i) && (i < 3 || fxa__dtype_is_byte_float(c->o))) call.args.slot[fp8_slots[i]] = &f->scale[i];
    if (wide)
        call.p.o.dtype = FXA_F64, call.args.slot[FXA_SLOT_O] = wide;
    else if (c->scaled && fxa__dtype_is_byte_float(c->o))
        call.args.slot[FXA_SLOT_AMAX_O] = &f->amax;
    return fxa_attention(ctx, &call.p, &call.args, err);
}

static int64_t fp8_open(const fp8_case *c, fp8_data *f, fxa_context *ctx, uint64_t seed) {
    attn_spec s = {.b = 2, .hq = c->hq, .hkv = c->hkv, .sq = c->sq, .sk = c->sk, .d = c->d, .dv = c->dv};
    fxa_error err;
    uint64_t rng = seed;
    s.dtype = FXA_E4M3, s.slot_dtype[FXA_SLOT_O] = c->o, s.flags = FXA_WANT_LSE, s.text = c->text, s.reach = 3;
    s.tensor[0][0] = c->hq;
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

/* The reference's O and LSE, and O of abs V; V is as before then. */
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

/* What a score may be off by: sums of d products with 13 bits, programs here do not make it more than twice that. */
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
    double unit = c->o == FXA_E4M3 ? 0x1p-4 : c->o == FXA_E5M2 ? 0x1p-3 : 0x1p-24, v = 3 * fp8_scale(c, f, 2);
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
    for (int64_t i = 0; i < attn_tensor_places(rows); i++) {
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

static void fp8_try(const fp8_case *c, fxa_context *ctx, int number) {
    fp8_data f;
    fxa_error err;
    int64_t n = fp8_open(c, &f, ctx, t_seed() + (uint64_t)number);
    double *lse = calloc((size_t)attn_tensor_places(&f.x.t[FXA_SLOT_LSE]), sizeof(double));
    if (!lse) abort();
    fp8_reference(c, &f, ctx, lse);
    fxa_status status = fp8_run(c, &f, ctx, NULL, &err);
    if (status != FXA_OK && !(c->o == FXA_F32 && strstr(err.text, "f32 from 9.19.1 on")))
        T_FAIL("case %d: %s\n", number, err.text);
    if (status == FXA_OK) fp8_check(c, &f, lse, n, number);
    free(lse);
    fp8_close(&f);
}

TEST(forward_of_8_bits_is_that_of_the_reference) {
    static const int64_t shapes[][6] = {{4, 4, 64, 128, 64, 64}, {4, 2, 37, 53, 32, 48}, {2, 1, 100, 70, 128, 64}};
    static const fxa_dtype outputs[] = {FXA_E4M3, FXA_F32, FXA_E5M2};
    if (cudnn_missing()) T_SKIP(cudnn_missing());
    setenv("FXA_CUDNN_UNTRIED", "1", 1);
    fxa_context *ctx = context_new();
    for (int i = 0; i < 3 * FP8_PROGRAMS; i++) {
        const int64_t *s = shapes[i % 3];
        fp8_case c = {fp8_programs[i / 3],      s[0],       s[1],      s[2], s[3], s[4], s[5],
                      outputs[(i + i / 3) % 3], i % 4 != 0, i % 5 == 2};
        fp8_try(&c, ctx, i);
    }
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

/* Where it takes no long time to evaluate a graph: several tiles of rows and keys. */
TEST(larger_ones_on_a_device) {
    static const int64_t shapes[][6] = {
        {4, 1, 512, 500, 256, 256}, {2, 2, 1024, 1024, 64, 64}, {4, 4, 300, 700, 128, 128}};
    if (standin_ready()) T_SKIP("the stand-ins would take long");
    if (cudnn_missing()) T_SKIP(cudnn_missing());
    setenv("FXA_CUDNN_UNTRIED", "1", 1);
    fxa_context *ctx = context_new();
    for (int i = 0; i < 3 * FP8_PROGRAMS; i += 2) {
        const int64_t *s = shapes[i % 3];
        fp8_case c = {fp8_programs[i / 3],        s[0],       s[1], s[2], s[3], s[4], s[5],
                      i % 4 ? FXA_E4M3 : FXA_F32, i % 4 != 0, false};
        fp8_try(&c, ctx, 100 + i);
    }
    fxa_context_destroy(ctx);
}

TEST(without_being_asked_for_8_bits_are_refused) {
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    NEEDS_STANDIN;
    unsetenv("FXA_CUDNN_UNTRIED");
    fxa_context *ctx = context_new();
    p.q.dtype = FXA_E4M3;
    T_HAS(answer_of(ctx, &p).reason, "8 bits have not been run on a device: FXA_CUDNN_UNTRIED=1");
    p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_Q, p.d = 128;
    T_HAS(answer_of(ctx, &p).reason, "8 bits have not been run on a device: FXA_CUDNN_UNTRIED=1");
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* cuDNN offers kernels for these, and does not compile them. */
TEST(what_cudnn_does_not_compile_is_refused) {
    static const struct {
        const char *text, *forward, *backward; /* NULL: taken */
    } cases[] = {{"score = tanh(score) + 0.1 * float(k - q)", NULL, NULL},
                 {"score = max(score, 0.0)", "forward compiles no program that uses the score twice", NULL},
                 {"score = sin(score)", "nor sin, cos, tan, floor", NULL},
                 {"score = score * tanh(score)", "uses the score twice", NULL},
                 {"score = score > 0.0 ? score : 0.25 * score", "compares or divides by it", NULL},
                 {"tensor t : f32[1]\nscore = score * t[q]", NULL, "cuDNN's backward of e4m3 takes 0"}};
    NEEDS_STANDIN;
    setenv("FXA_CUDNN_UNTRIED", "1", 1);
    fxa_context *ctx = context_new();
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, (fxa_pass)(i & 1));
        const char *says = i & 1 ? cases[i / 2].backward : cases[i / 2].forward;
        fxa_capture capture = {.size = {9}};
        fxa_program *program = NULL;
        fxa_error err;
        T_OK(fxa_program_parse(ctx, cases[i / 2].text, SIZE_MAX, &program, &err));
        p.q.dtype = FXA_E4M3, p.d = 128, p.program = program;
        p.captures = &capture, p.n_captures = fxa_program_tensor_count(program);
        fxa_support said = answer_of(ctx, &p);
        if (said.supported != !says) T_FAIL("%s: %s\n", cases[i / 2].text, said.reason);
        if (says) T_HAS(said.reason, says);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
    unsetenv("FXA_CUDNN_UNTRIED");
    standin_check_end();
}

T_MAIN
