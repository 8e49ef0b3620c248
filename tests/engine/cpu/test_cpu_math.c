/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's vector functions, in every instruction set of this machine, compared with libm of a wider type.
 * Errors in ulps of the exact result must be below the bounds of function_ulps.h, and the bounds less than one ulp
 * above the worst set. In f32 the default run tests every 40009th of all 2^32 operands; FXA_TEST_SCALE=40009 tests all,
 * on all processors.
 */
#define _DEFAULT_SOURCE 1 /* sysconf */

#include "t.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/bytecode/tape_ops.h"
#include "program/function_ulps.h"
#include "support/fixtures/set_tests.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

typedef double (*math_f64)(double);
typedef long double (*math_long)(long double);

static double math_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double math_rsqrt(double x) { return 1 / sqrt(x); }
static long double math_sigmoid_long(long double x) { return 1 / (1 + expl(-x)); }
static long double math_rsqrt_long(long double x) { return 1 / sqrtl(x); }

static const struct math_case {
    const char *label;
    uint32_t op; /* operation of programs */
    int tape;
    math_f64 f64;
    math_long wide;
    float worst_f32; /* operands with the largest error of the scalar set among all that were tested */
    double worst_f64;
} math_cases[] = {
    {"exp", FXA_OP_EXP, FXA__TAPE_EXP_F, exp, expl, 5.89666939f, -198.56776255516263},
    {"exp2", FXA_OP_EXP2, FXA__TAPE_EXP2_F, exp2, exp2l, -0.497715831f, 275.51594451253391},
    {"log", FXA_OP_LOG, FXA__TAPE_LOG_F, log, logl, 0.698802948f, 0.70588423803773681},
    {"log2", FXA_OP_LOG2, FXA__TAPE_LOG2_F, log2, log2l, 2.57192469f, 349.15625000880163},
    {"tanh", FXA_OP_TANH, FXA__TAPE_TANH_F, tanh, tanhl, -6.8192625f, 0.20293242214427942},
    {"sigmoid", FXA_OP_SIGMOID, FXA__TAPE_SIGMOID_F, math_sigmoid, math_sigmoid_long, -16.6445503f,
     -36.744042643406431},
    {"erf", FXA_OP_ERF, FXA__TAPE_ERF_F, erf, erfl, 3.14943671f, -0.22049284496612298},
    {"sin", FXA_OP_SIN, FXA__TAPE_SIN_F, sin, sinl, 19.636425f, 70425.145028173691},
    {"cos", FXA_OP_COS, FXA__TAPE_COS_F, cos, cosl, -182375.0f, -21550.006645478585},
    {"log1p", FXA_OP_LOG1P, FXA__TAPE_LOG1P_F, log1p, log1pl, 0.414212167f, 0.40143000805346229},
    {"atan", FXA_OP_ATAN, FXA__TAPE_ATAN_F, atan, atanl, 0.467602223f, 0.4516379932397111},
    {"tan", FXA_OP_TAN, FXA__TAPE_TAN_F, tan, tanl, -3.92618275f, 965698.87718383386},
    {"sqrt", FXA_OP_SQRT, FXA__TAPE_SQRT_F, sqrt, sqrtl, 1.06754754e-19f, DBL_MAX},
    {"rsqrt", FXA_OP_RSQRT, FXA__TAPE_RSQRT_F, math_rsqrt, math_rsqrt_long, 4.96107046e-32f, 2.258015076415355e+161},
};
enum { MATH_CASES = sizeof math_cases / sizeof math_cases[0], MATH_BLOCK = 1024 };

static float math_float(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* Returns the distance between a result and the exact result, in ulps of the exact result in a type with `digits`
 * digits and smallest normal number `least`. Where subnormal numbers may count as 0, any result up to 2 * least is
 * right. */
static double math_ulps(double got, long double want, int digits, double least) {
    if (want != want) return got != got ? 0 : INFINITY;
    if (got == (double)want) return 0;
    long double largest = digits == FLT_MANT_DIG ? (long double)FLT_MAX : (long double)DBL_MAX;
    if (fabsl(want) < 2 * (long double)least) return fabs(got) <= 2 * least ? 0 : INFINITY;
    int exponent;
    (void)frexpl(fabsl(want) > largest ? largest : want, &exponent);
    long double unit = ldexpl(1, exponent - digits);
    if (isinf(got)) return fabsl(want) > largest - unit && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    if (isinf(want)) return INFINITY;
    return (double)(fabsl((long double)got - want) / unit);
}

/* ---- f32 ------------------------------------------------------------------------------------------------------- */

typedef struct math_worst {
    double ulps, x, got, want;
} math_worst;

static void math_note(math_worst *worst, double ulps, double x, double got, long double want) {
    if (!(ulps > worst->ulps)) return;
    *worst = (math_worst){ulps, x, got, (double)want};
}

/* math_ulps for f32 in doubles, which hold every number involved; faster, because there are many operands. */
static double math_ulps_f32(float got, double want) {
    uint64_t b;
    double size = fabs(want), unit;
    if (want != want) return got != got ? 0 : INFINITY;
    if ((double)got == want) return 0;
    if (size < 2 * (double)FLT_MIN) return fabsf(got) <= 2 * FLT_MIN ? 0 : INFINITY;
    if (size > FLT_MAX) size = FLT_MAX;
    memcpy(&b, &size, sizeof b);
    b = (b >> 52 << 52) - ((uint64_t)(FLT_MANT_DIG - 1) << 52);
    memcpy(&unit, &b, sizeof unit);
    if (isinf(got)) return fabs(want) > FLT_MAX - unit && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    return isinf(want) ? INFINITY : fabs((double)got - want) / unit;
}

/* A scan that threads share: parts of the operands, every stride-th of them. */
typedef struct math_scan {
    const fxa__cpu_kernels *k;
    const struct math_case *c;
    double allowed; /* maximum error in ulps */
    uint64_t stride;
    _Atomic uint64_t next;
    pthread_mutex_t lock;
    math_worst worst;
} math_scan;

/* Tests the n operands of x, which has room for a block. */
static void math_scan_block(const math_scan *s, int n, const float *x, math_worst *worst) {
    float y[MATH_BLOCK];
    s->k->tape[s->c->tape](n, y, x, NULL, NULL);
    for (int i = 0; i < n; i++) {
        double want = s->c->f64(x[i]), ulps = math_ulps_f32(y[i], want);
        if (ulps > s->allowed && fabsf(x[i]) < FLT_MIN) ulps = math_ulps_f32(y[i], s->c->f64(copysign(0, x[i])));
        math_note(worst, ulps, x[i], y[i], want);
    }
}

static void math_scan_piece(const math_scan *s, uint64_t from, uint64_t to, math_worst *worst) {
    float x[MATH_BLOCK];
    for (uint64_t b = from; b < to;) {
        int n = 0;
        for (; n < MATH_BLOCK && b < to; b += s->stride) x[n++] = math_float((uint32_t)b);
        math_scan_block(s, n, x, worst);
    }
}

static void *math_scan_thread(void *arg) {
    math_scan *s = arg;
    math_worst worst = {0};
    uint64_t piece = s->stride << 20;
    for (uint64_t from; (from = atomic_fetch_add(&s->next, piece)) < UINT64_C(1) << 32;)
        math_scan_piece(s, from, from + piece < UINT64_C(1) << 32 ? from + piece : UINT64_C(1) << 32, &worst);
    pthread_mutex_lock(&s->lock);
    if (worst.ulps > s->worst.ulps) s->worst = worst;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A scan of all operands uses all processors, a sample uses one. The first operand is the scalar set's worst. */
static math_worst math_scan_f32(const fxa__cpu_kernels *k, const struct math_case *c, uint64_t stride) {
    enum { MOST = 64 };
    math_scan s = {.k = k, .c = c, .stride = stride, .lock = PTHREAD_MUTEX_INITIALIZER};
    const float found[MATH_BLOCK] = {c->worst_f32};
    s.allowed = fxa__function_ulps(c->op, false);
    math_scan_block(&s, 1, found, &s.worst);
    pthread_t thread[MOST];
    long cpus = stride < 64 ? sysconf(_SC_NPROCESSORS_ONLN) : 1, started = 0;
    while (started < MOST && started < cpus - 1 && pthread_create(&thread[started], NULL, math_scan_thread, &s) == 0)
        started++;
    math_scan_thread(&s);
    while (started > 0) pthread_join(thread[--started], NULL);
    return s.worst;
}

/* Checks that the bound holds, and that the bound of the scalar set, which has the most roundings, is less than an ulp
 * above the largest error found. */
static void math_judge(const fxa__cpu_kernels *k, const char *label, bool f64, double bound, const math_worst *worst) {
    const char *type = f64 ? "f64" : "f32";
    if (getenv("FXA_TEST_SHOW")) printf("  %s %s %-8s %.3f at %.17g\n", k->isa, type, label, worst->ulps, worst->x);
    if (worst->ulps > bound)
        T_FAIL("%s %s %s(%.17g) is %.17g, not %.17g: %.2f ulps\n", k->isa, type, label, worst->x, worst->got,
               worst->want, worst->ulps);
    if (strcmp(k->isa, "scalar") == 0 && bound - worst->ulps >= 1)
        T_FAIL("%s %s: a bound of %g ulps, where %.3f are the most that was seen\n", type, label, bound, worst->ulps);
}

static uint64_t math_stride(void) {
    int parts = t_scaled(1 << 10); /* scale 1 tests 1024 parts of the default number */
    return parts >= (1 << 10) * 40009 ? 1 : (uint64_t)(40009.0 * (1 << 10) / parts);
}

static void math_check_f32(const fxa__cpu_kernels *k) {
    for (int i = 0; i < MATH_CASES; i++) {
        math_worst worst = math_scan_f32(k, &math_cases[i], math_stride());
        math_judge(k, math_cases[i].label, false, fxa__function_ulps(math_cases[i].op, false), &worst);
    }
}

/* ---- f64 ------------------------------------------------------------------------------------------------------- */

static const double math_special[] = {0.0,
                                      -0.0,
                                      1,
                                      -1,
                                      0.5,
                                      -0.5,
                                      INFINITY,
                                      -INFINITY,
                                      NAN,
                                      DBL_MIN,
                                      -DBL_MIN,
                                      DBL_MAX,
                                      -DBL_MAX,
                                      1e-300,
                                      -1e-300,
                                      1e300,
                                      -1e300,
                                      708.4,
                                      709.78,
                                      709.79,
                                      -708.3,
                                      -745,
                                      -746,
                                      1024,
                                      1023.9999,
                                      -1022,
                                      -1023,
                                      1e-17,
                                      -1e-17,
                                      6,
                                      5.9,
                                      -6.1,
                                      20,
                                      -20,
                                      3.141592653589793,
                                      1.5707963267948966,
                                      1048576,
                                      -1048577,
                                      1e10,
                                      0x1p52,
                                      -0x1p53,
                                      0x1.a827999fcef32p-2,
                                      -0x1.3504f333f9de6p+1,
                                      0x1.3504f333f9de7p+1,
                                      -0.9999999999999999,
                                      -1.0000000000000002,
                                      0x1p-53,
                                      -0.29289321881345254,
                                      0.41421356237309503,
                                      0.7071067811865475,
                                      0.7071067811865476,
                                      1.4142135623730951,
                                      0.9999999999999999,
                                      1.0000000000000002};

static double math_draw(t_rng *rng, int kind) {
    switch (kind % 4) {
    case 0: return t_real(rng, -2, 2);
    case 1: return t_real(rng, -50, 50);
    case 2: return t_real(rng, -750, 750);
    default: return t_real_scaled(rng, -1, 1, -1000, 1000);
    }
}

static void math_check_f64(const fxa__cpu_kernels *k) {
    static double x[MATH_BLOCK], y[MATH_BLOCK];
    enum { SPECIALS = sizeof math_special / sizeof math_special[0] };
    for (int i = 0; i < MATH_CASES; i++) {
        const struct math_case *c = &math_cases[i];
        t_rng rng = {t_seed()};
        math_worst worst = {0};
        for (int round = 0; round < t_scaled(40); round++) {
            for (int j = 0; j < MATH_BLOCK; j++)
                x[j] = round == 0 && j < SPECIALS ? math_special[j] : math_draw(&rng, j);
            if (round == 0) x[SPECIALS] = c->worst_f64;
            k->tape[c->tape](MATH_BLOCK, y, x, NULL, NULL);
            for (int j = 0; j < MATH_BLOCK; j++) {
                long double want = c->wide(x[j]);
                double ulps = math_ulps(y[j], want, DBL_MANT_DIG, DBL_MIN);
                math_note(&worst, ulps, x[j], y[j], want);
            }
        }
        math_judge(k, c->label, true, fxa__function_ulps(c->op, true), &worst);
    }
}

/* ---- Powers ---------------------------------------------------------------------------------------------------- */

static void math_check_pow(const fxa__cpu_kernels *k) {
    static const double special[] = {0.0,      -0.0,     1,         -1,       2,         -2,    3,    -3,
                                     0.5,      -0.5,     1.5,       INFINITY, -INFINITY, NAN,   1e9,  -1e9,
                                     16777215, 16777216, -16777215, 1e-30,    1e30,      0.999, 1.001};
    enum { N = sizeof special / sizeof special[0], PAIRS = (N * N + 15) / 16 * 16 };
    static float x[PAIRS + MATH_BLOCK], y[PAIRS + MATH_BLOCK], z[PAIRS + MATH_BLOCK];
    t_rng rng = {t_seed()};
    math_worst worst = {0};
    for (int round = 0; round < t_scaled(20); round++) {
        for (int i = 0; i < PAIRS + MATH_BLOCK; i++) {
            bool known = round == 0 && i < PAIRS;
            x[i] = (float)(known ? special[i / N % N] : exp(t_real(&rng, -20, 20)));
            y[i] = (float)(known ? special[i % N] : t_real(&rng, -6, 6));
        }
        k->tape[FXA__TAPE_POW_F_FF](PAIRS + MATH_BLOCK, z, x, y, NULL);
        for (int i = 0; i < PAIRS + MATH_BLOCK; i++) {
            double want = pow(x[i], y[i]), ulps = math_ulps(z[i], want, FLT_MANT_DIG, FLT_MIN);
            math_note(&worst, ulps, x[i], z[i], want);
            if (ulps > fxa__function_ulps(FXA_OP_POW, false))
                T_FAIL("%s pow(%.9g, %.9g) is %.9g, not %.9g\n", k->isa, x[i], y[i], z[i], want);
            if (z[i] == 0 && want == 0 && !signbit(z[i]) != !signbit(want))
                T_FAIL("%s pow(%g, %g): sign\n", k->isa, x[i], y[i]);
        }
    }
    math_judge(k, "pow", false, fxa__function_ulps(FXA_OP_POW, false), &worst);
}

static void math_check_pow_f64(const fxa__cpu_kernels *k) {
    static double x[MATH_BLOCK], y[MATH_BLOCK], z[MATH_BLOCK];
    t_rng rng = {t_seed()};
    math_worst worst = {0};
    for (int round = 0; round < t_scaled(20); round++) {
        for (int i = 0; i < MATH_BLOCK; i++) x[i] = exp(t_real(&rng, -20, 20)), y[i] = t_real(&rng, -30, 30);
        k->tape[FXA__TAPE_POW_F_FF](MATH_BLOCK, z, x, y, NULL);
        for (int i = 0; i < MATH_BLOCK; i++) {
            long double want = powl(x[i], y[i]);
            math_note(&worst, math_ulps(z[i], want, DBL_MANT_DIG, DBL_MIN), x[i], z[i], want);
        }
    }
    math_judge(k, "pow", true, fxa__function_ulps(FXA_OP_POW, true), &worst);
}

/* ---- One test for each set; sets that the machine lacks are skipped by name
 * --------------------------------------- */

SET_TESTS(math_f32, sizeof(float), math_check_f32)
SET_TESTS(math_f64, sizeof(double), math_check_f64)
SET_TESTS(math_pow, sizeof(float), math_check_pow)
SET_TESTS(math_pow_f64, sizeof(double), math_check_pow_f64)

T_MAIN
