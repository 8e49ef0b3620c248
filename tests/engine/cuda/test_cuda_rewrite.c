/* SPDX-License-Identifier: Apache-2.0
 *
 * Rewriting of programs for the cuda engine, in f64: the rewritten program has the problem's values, derivatives and
 * gradients, infinities and NaN included, for any params; the bounds that it states for values and derivatives hold for
 * any scores and tensors.
 */
#include "cuda_pass_fixture.h"
#include "engine/cuda/cuda.h"
#include "lower/lower_fixture.h"

enum { REWRITE_PROGRAMS = 1500, REWRITE_ROUNDS = 12 };

typedef struct rewrite_case {
    fxa_program *p, *d;
    bool plain;
    fxa__cuda_program cuda;
} rewrite_case;

static bool rewrite_make(rig *r, const char *text, unsigned flags, rewrite_case *c) {
    fxa_program *given = text ? rig_parse(r, text) : rig_program(r, flags | GEN_NO_STORED);
    fxa_error err = {.status = FXA_OK};
    *c = (rewrite_case){.p = NULL};
    if (!given) return false;
    c->p = pass_masks(r->host, given);
    if (fxa_program_derivative(c->p, &c->d, &err) != FXA_OK) return false;
    c->plain = t_int(&r->rng, 0, 1) &&
               fxa__cuda_has_finite_factors(r->host, c->p, c->d, NULL); /* as codegen/assumptions.c decides */
    fxa__cuda_config config = {.program = c->p,
                               .derivative = c->d,
                               .grad_params = UINT64_MAX,
                               .grad_tensors = UINT64_MAX,
                               .assumed.dense = -1,
                               .assumed.operands_fit = true,
                               .assumed.finite_factors = c->plain};
    fxa_status status = fxa__cuda_program_make(r->host, &config, &c->cuda, &err);
    c->plain = c->cuda.assumed.finite_factors;
    return status == FXA_OK;
}

static void rewrite_end(rewrite_case *c) {
    fxa__cuda_program_free(&c->cuda);
    fxa_program_destroy(c->d);
    fxa_program_destroy(c->p);
}

/* Returns a number that is exact in f32 and whose products stay in range, or a special value. */
static double rewrite_number(rig *r) {
    static const double odd[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 2, 0.5};
    return t_int(&r->rng, 0, 2) ? t_real(&r->rng, -3, 3) : odd[t_int(&r->rng, 0, 8)];
}

static void rewrite_data(rig *r, const fxa_program *p) {
    rig_fill(r, p);
    for (int32_t i = 0; i < p->n_params; i++)
        if (p->params[i].type == FXA_FLOAT) r->params[i] = rewrite_number(r);
    for (int32_t t = 0; t < p->n_tensors; t++) {
        uint32_t dtype = (uint32_t)r->views[t].dtype;
        for (int64_t i = 0; fxa__dtype_is_float((fxa_dtype)dtype) && i < RIG_CELLS; i++)
            if (t_int(&r->rng, 0, 3) == 0) fxa__store_f64(r->cells[t], dtype, i, rewrite_number(r));
    }
}

static void rewrite_params(const rig *r, const rewrite_case *c, double scale, double *out) {
    for (int32_t i = 0; i < c->cuda.program->n_params; i++) {
        const fxa__cuda_param *from = &c->cuda.params[i];
        out[i] = from->source == FXA__CUDA_SCALE ? scale : from->source >= 0 ? r->params[from->source] : from->value;
    }
}

/* Compares two values. Sums and products in another order may differ by rounding, or entirely if they cancel; so values
 * are compared for NaN and infinity, and as numbers only for tame programs. */
static void rewrite_compare(const char *what, double got, double want, bool tame, const rewrite_case *c) {
    bool same = isnan(got) == isnan(want) && (isinf(got) || isinf(want) ? isnan(want) || got == want : true);
    if (tame && isfinite(want)) same = same && fabs(got - want) <= 1e-6 * (1 + fabs(want));
    if (same) return;
    T_FAIL("%s: %.17g, not %.17g%s\n", what, got, want, c->plain ? ", plain" : "");
    rig_show(c->p);
}

/* Returns true if all nodes that depend only on params and constants are finite. Other programs are not compared. */
static bool rewrite_is_finite(const fxa_program *p, const fxa__val *vals) {
    static fxa__depend sets[1 << 16];
    bool finite = true;
    if (p->n_nodes > 1 << 16) return false;
    fxa__lower_depend(p, NULL, sets);
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].type == FXA_FLOAT && fxa__lower_rate(&sets[i]) <= FXA__RATE_RUN)
            finite = finite && isfinite(vals[i].f);
    return finite;
}

/* Returns the sum of all that a pair adds to the gradient of a param, or to any element of a tensor's gradient. */
static double rewrite_gradient(const fxa_program *p, const fxa__val *vals, uint32_t kind, const char *name) {
    double sum = 0;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        if (out->kind != kind || (kind != FXA__OUT_DPARAM && kind != FXA__OUT_DLOAD)) continue;
        const fxa__decl *of = kind == FXA__OUT_DPARAM ? &p->params[out->slot] : &p->tensors[out->slot];
        if (strcmp(of->name, name) == 0) sum += vals[out->value].f;
    }
    return sum;
}

static void rewrite_check_gradients(const rewrite_case *c, const fxa__val *got, const fxa__val *want, bool tame) {
    const fxa_program *p = c->cuda.program;
    for (int32_t i = 0; i < c->p->n_params + c->p->n_tensors; i++) {
        bool tensor = i >= c->p->n_params;
        const char *name = tensor ? c->p->tensors[i - c->p->n_params].name : c->p->params[i].name;
        uint32_t kind = tensor ? FXA__OUT_DLOAD : FXA__OUT_DPARAM;
        rewrite_compare(name, rewrite_gradient(p, got, kind, name), rewrite_gradient(c->d, want, kind, name), tame, c);
    }
}

static void rewrite_check(rig *r, const rewrite_case *c, bool tame) {
    double params[FXA_MAX_PARAMS], scale = t_int(&r->rng, 0, 1) ? 0.5 : 0.125;
    rewrite_data(r, c->p);
    rewrite_params(r, c, scale, params);
    fxa__env env = rig_env(r, false), own;
    env.score = t_int(&r->rng, 0, 3) ? t_real(&r->rng, -4, 4) : rewrite_number(r);
    env.dscore = 1;
    own = env, own.score = env.score / scale, own.params = params;
    fxa__val *x = rig_eval(c->p, &env), *d = rig_eval(c->d, &env), *y = rig_eval(c->cuda.program, &own);
    const fxa_program *p = c->cuda.program;
    rewrite_compare("score", y[fxa__program_output(p, FXA__OUT_SCORE)].f,
                    x[fxa__program_output(c->p, FXA__OUT_SCORE)].f, tame, c);
    if (isfinite(x[fxa__program_output(c->p, FXA__OUT_SCORE)].f)) { /* other pairs have no weight, or spoil the row */
        rewrite_compare("slope", y[fxa__program_output(p, FXA__OUT_DSCORE)].f,
                        d[fxa__program_output(c->d, FXA__OUT_DSCORE)].f, tame, c);
        rewrite_check_gradients(c, y, d, tame);
    }
    double value = y[c->cuda.computed.value].f;
    if (fabs(value) > c->cuda.bounds.value * 1.01) {
        T_FAIL("a value of %g is beyond the bound %g\n", value, c->cuda.bounds.value);
        rig_show(c->p);
    }
    double slope = y[fxa__program_output(p, FXA__OUT_DSCORE)].f;
    bool said = c->cuda.switches.derivative == 1 && !isnan(value);
    if (said && !isfinite(slope) && rewrite_is_finite(p, y)) {
        T_FAIL("a slope of %g beside a value of %g\n", slope, value);
        rig_show(c->p);
    }
    free(x), free(d), free(y);
}

/* Tests each text `times` times with other numbers, until the first failure. */
static void rewrite_texts(const char *const *texts, size_t n, int times) {
    rig *r = calloc(1, sizeof *r);
    T_REQUIRE(r && rig_start(r));
    for (size_t i = 0; i < n; i++)
        for (int j = 0, before = t_failures; j < times && t_failures == before; j++) {
            rewrite_case c;
            T_REQUIRE(rewrite_make(r, texts[i], 0, &c));
            rewrite_check(r, &c, false);
            rewrite_end(&c);
        }
    rig_end(r);
    free(r);
}

/* A factor that is exactly 0 gives 0 also if it depends only on params, or on tensors indexed by head: a gate of 0, a
 * branch that is never selected. */
TEST(zeros_of_params_win) {
    static const char *const texts[] = {
        "param g : float\nscore = score + g * sqrt(abs(score))",
        "param g : float\nscore = score + mulz(g, log(score))",
        "param g : float\nparam f : float\nscore = score + mulz(mulz(g, sqrt(score)), f) * 2.5",
        "param mode : int\nscore = mode > 0 ? score : sqrt(score)",
        "param g : float\ntensor t : f32[1]\nscore = score + mulz(g, t[k] / score)",
        "param g : float\nscore = score + divz(score, g) * g",
        "score = score + divz(score, 0.0) * mulz(score, 0.0)",
        "param g : float\nscore = score + mulz(score, g) * g / g",
        "tensor w : f32[1]\nscore = score + divz(score, w[h]) * w[h]",
        "tensor w : f32[1]\nscore = score + mulz(score, w[h]) * w[h] / w[h]",
        "tensor w : f32[1]\nscore = score + mulz(w[h], sqrt(score)) + divz(w[h], score)",
        "tensor w : f32[1]\nscore = score - ((k - 2.5) / w[h]) ** 2",
        "tensor w : f32[1]\nparam g : float\nscore = score + divz(mulz(score, w[h]), g) + mulz(divz(score, g), w[h])",
        "tensor w : f32[2]\nscore = score + divz(divz(score, w[b, h]), w[h, b]) * mulz(score, w[h, h])",
    };
    rewrite_texts(texts, sizeof texts / sizeof *texts, 400);
}

/* mulz and divz give the same 0 whatever the sign of the other operand is; 1 / 0 and 1 / -0 would show the
 * difference. */
TEST(zeros_that_win_have_no_sign) {
    static const char *const texts[] = {
        "score = 1 / mulz(score, -1.0)",
        "score = 1 / mulz(score, 2.5)",
        "score = 1 / divz(score, -3.0)",
        "param g : float\nscore = 1 / divz(score * g, 7.5)",
        "param g : float\nscore = score + 1 / mulz(float(k - 2), g)",
        "tensor w : f32[1]\nscore = 2 / mulz(mulz(score, -1.0), w[h])",
        "score = rsqrt(divz(score, -2.0)) + mulz(score, -1.0) ** -3.0",
        "score = q > 1 ? 1 / (-abs(mulz(score, -2.0)) + divz(score, -2.0)) : 1 / tanh(mulz(score, -1.0))",
        "param g : float\nscore = 1 / divz(mulz(g, score), g)",
        "tensor w : f32[1]\nscore = score + 1 / divz(mulz(w[h], float(2 - k) * -1.5), w[h])",
        "param g : float\nscore = 1 / divz(mulz(score, g), g) + 1 / (mulz(2.5, score) / 2.5)",
        "param g : float\nscore = 1 / (divz(mulz(mulz(score, g), 3.5), g) * -1.0)",
        "param g : float\nscore = (1 / score) ** 3.0 + 1 / mulz(divz(mulz(-1.5, score), 1.5), g)",
    };
    rewrite_texts(texts, sizeof texts / sizeof *texts, 200);
}

RIG_TEST(rewritten_programs_are_the_same) {
    int made = 0;
    for (int i = 0; i < t_scaled(REWRITE_PROGRAMS) && !t_failures; i++) {
        rewrite_case c;
        bool tame = i % 2;
        if (rewrite_make(r, NULL, tame ? GEN_SMOOTH : GEN_NO_SPECIAL, &c)) {
            made++;
            for (int j = 0; j < REWRITE_ROUNDS && !t_failures; j++) rewrite_check(r, &c, tame);
        }
        rewrite_end(&c);
    }
    printf("  %d programs\n", made);
}

T_MAIN
