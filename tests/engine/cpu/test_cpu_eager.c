/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16 products are no less accurate than attention written out in bf16 ("eager"), where P and dS are stored as bf16
 * between two matrix products: the RMS error of every result relative to f64 is at most 1.1 times that of a computation
 * that rounds P, dS and the results and otherwise uses f64. A real eager computation also rounds scores and dP.
 */
#include "base/dtype.h"
#include "engine/cpu/cpu.h"
#include "t.h"

enum { EAGER_O, EAGER_DQ, EAGER_DK, EAGER_DV, EAGER_RESULTS };

/* One head: Q [S,D], K [S,D], V [S,D], dO [S,D]. */
typedef struct eager_case {
    int64_t s, d;
    bool causal;
    double scale;
    uint16_t *in[4]; /* Q, K, V, dO */
    double *x[4];    /* as f64 */
} eager_case;

/* Results in f64, or with P, dS and results rounded to bf16. Each computation uses its own O, also for delta. */
typedef struct eager_result {
    double *x[EAGER_RESULTS];
    double *lse;
} eager_result;

static double eager_round(double x) { return fxa__bf16_to_f64(fxa__f64_to_bf16(x)); }

static void *eager_alloc(int64_t n, size_t size) {
    void *p = calloc((size_t)n, size);
    if (!p) abort();
    return p;
}

static void eager_draw(eager_case *c, t_rng *rng) {
    int64_t n = c->s * c->d;
    c->scale = 1 / sqrt((double)c->d);
    for (int i = 0; i < 4; i++) {
        c->in[i] = eager_alloc(n, sizeof(uint16_t));
        c->x[i] = eager_alloc(n, sizeof(double));
        for (int64_t j = 0; j < n; j++) {
            c->in[i][j] = fxa__f64_to_bf16(t_real(rng, -2, 2));
            c->x[i][j] = fxa__bf16_to_f64(c->in[i][j]);
        }
    }
}
static void eager_free(eager_case *c) {
    for (int i = 0; i < 4; i++) free(c->in[i]), free(c->x[i]);
}
static void eager_result_make(const eager_case *c, eager_result *r) {
    for (int i = 0; i < EAGER_RESULTS; i++) r->x[i] = eager_alloc(c->s * c->d, sizeof(double));
    r->lse = eager_alloc(c->s, sizeof(double));
}
static void eager_result_free(eager_result *r) {
    for (int i = 0; i < EAGER_RESULTS; i++) free(r->x[i]);
    free(r->lse);
}

static double eager_dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}
static void eager_axpy(double *out, double weight, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] += weight * x[i];
}

/* Computes the probabilities p of row q. Returns their number. */
static int64_t eager_softmax(const eager_case *c, int64_t q, double *p, double *lse) {
    int64_t n = c->causal ? q + 1 : c->s;
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; k++) {
        p[k] = c->scale * eager_dot(c->x[0] + q * c->d, c->x[1] + k * c->d, c->d);
        top = fmax(top, p[k]);
    }
    for (int64_t k = 0; k < n; k++) sum += p[k] = exp(p[k] - top);
    for (int64_t k = 0; k < n; k++) p[k] /= sum;
    *lse = top + log(sum);
    return n;
}

/* Computes all results. delta, the sum of dO times O of a row, is computed from O rounded to bf16, as backward receives
 * it. */
static void eager_compute(const eager_case *c, bool rounds, eager_result *r) {
    double *p = eager_alloc(c->s, sizeof(double));
    for (int64_t q = 0; q < c->s; q++) {
        const double *dout = c->x[3] + q * c->d, *query = c->x[0] + q * c->d;
        double *o = r->x[EAGER_O] + q * c->d, delta = 0;
        int64_t n = eager_softmax(c, q, p, &r->lse[q]);
        for (int64_t k = 0; k < n; k++) eager_axpy(o, p[k], c->x[2] + k * c->d, c->d);
        for (int64_t i = 0; i < c->d; i++) delta += dout[i] * eager_round(o[i]), o[i] = rounds ? 0 : o[i];
        for (int64_t k = 0; k < n; k++) {
            const double *key = c->x[1] + k * c->d, *value = c->x[2] + k * c->d;
            double ds = p[k] * (eager_dot(dout, value, c->d) - delta), weight = rounds ? eager_round(p[k]) : p[k];
            if (rounds) ds = eager_round(ds), eager_axpy(o, weight, value, c->d);
            eager_axpy(r->x[EAGER_DV] + k * c->d, weight, dout, c->d);
            eager_axpy(r->x[EAGER_DQ] + q * c->d, c->scale * ds, key, c->d);
            eager_axpy(r->x[EAGER_DK] + k * c->d, c->scale * ds, query, c->d);
        }
    }
    for (int i = 0; rounds && i < EAGER_RESULTS; i++)
        for (int64_t j = 0; j < c->s * c->d; j++) r->x[i][j] = eager_round(r->x[i][j]);
    free(p);
}

/* Runs the cpu engine; backward receives the exact O and LSE, rounded to their dtypes. */
static void eager_engine(const eager_case *c, const eager_result *exact, eager_result *out) {
    int64_t n = c->s * c->d;
    uint16_t *y[EAGER_RESULTS], *o = eager_alloc(n, sizeof *o);
    float *lse = eager_alloc(c->s, sizeof *lse);
    fxa_error err;
    t_ctx *ctx = t_context();
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    for (int i = 0; i < EAGER_RESULTS; i++) y[i] = eager_alloc(n, sizeof **y);
    for (int64_t i = 0; i < n; i++) o[i] = fxa__f64_to_bf16(exact->x[EAGER_O][i]);
    for (int64_t i = 0; i < c->s; i++) lse[i] = (float)exact->lse[i];
    p.b = p.hq = 1, p.sq = p.sk = c->s, p.d_qk = c->d, p.q.dtype = FXA_BF16, p.engine = "cpu";
    p.flags = c->causal ? FXA_CAUSAL : 0;
    for (int i = 0; i < 3; i++) args.slot[FXA_SLOT_Q + i] = c->in[i];
    args.slot[FXA_SLOT_O] = y[EAGER_O];
    T_OK(fxa_attention(ctx, &p, &args, &err));
    p.pass = FXA_BACKWARD, p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    args.slot[FXA_SLOT_O] = o, args.slot[FXA_SLOT_LSE] = lse, args.slot[FXA_SLOT_DO] = c->in[3];
    args.slot[FXA_SLOT_DQ] = y[EAGER_DQ], args.slot[FXA_SLOT_DK] = y[EAGER_DK], args.slot[FXA_SLOT_DV] = y[EAGER_DV];
    T_OK(fxa_attention(ctx, &p, &args, &err));
    for (int i = 0; i < EAGER_RESULTS; i++)
        for (int64_t j = 0; j < n; j++) out->x[i][j] = fxa__bf16_to_f64(y[i][j]);
    for (int i = 0; i < EAGER_RESULTS; i++) free(y[i]);
    free(o), free(lse);
}

static double eager_error(const double *x, const double *exact, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - exact[i]) * (x[i] - exact[i]);
    return sqrt(squares / (double)n);
}

static void eager_check(const char *set, int64_t s, int64_t d, bool causal) {
    static const char *const names[] = {"O", "dQ", "dK", "dV"};
    t_rng rng = {t_seed() + (uint64_t)(s * 1000 + d)};
    eager_case c = {.s = s, .d = d, .causal = causal};
    eager_result exact, eager, got;
    eager_draw(&c, &rng);
    eager_result_make(&c, &exact), eager_result_make(&c, &eager), eager_result_make(&c, &got);
    eager_compute(&c, false, &exact);
    eager_compute(&c, true, &eager);
    (void)setenv("FXA_CPU", set, 1);
    eager_engine(&c, &exact, &got);
    (void)unsetenv("FXA_CPU");
    for (int i = 0; i < EAGER_RESULTS; i++) {
        double ours = eager_error(got.x[i], exact.x[i], s * d), theirs = eager_error(eager.x[i], exact.x[i], s * d);
        if (!(ours <= 1.1 * theirs))
            T_FAIL("%s, S %" PRId64 ", D %" PRId64 "%s: %s is off by %.3g, eager by %.3g\n", set, s, d,
                   causal ? ", causal" : "", names[i], ours, theirs);
    }
    eager_result_free(&exact), eager_result_free(&eager), eager_result_free(&got);
    eager_free(&c);
}

TEST(bf16_products_are_no_worse_than_eager) {
    bool usable;
    const fxa__cpu_kernels *k;
    for (size_t i = 0; (k = fxa__cpu_set_bf16(i, &usable)) != NULL; i++) {
        if (!usable) {
            printf("  skipped %s: this processor cannot run kernels for %s\n", k->isa, k->isa);
            continue;
        }
        eager_check(k->isa, 200, 64, false);
        eager_check(k->isa, 333, 80, true); /* the scale 1 / sqrt(80) is no power of two */
        eager_check(k->isa, 257, 128, false);
        eager_check(k->isa, 64, 17, true);
    }
}

T_MAIN
