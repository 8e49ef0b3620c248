/* SPDX-License-Identifier: Apache-2.0
 *
 * Derivatives of random programs, compared with forward-mode dual numbers in f64; and a derivative is an ordinary
 * program: printed, parsed, hashed. Covers R-08 (gradients without a hand-written backward) and R-81 (gradients of
 * captured tensors) for programs.
 *
 * Tolerance: forward and reverse mode add the same products, one per path from the seed to the score, in different
 * order. Program values are bit-equal in both. A local derivative has an error of at most 4 eps times the magnitude
 * stored next to it (derivatives such as 1 - r * r cancel, so the magnitude can exceed the derivative). With M the sum
 * over all paths of products of magnitudes, both results are within (5 * length + terms) * eps * M of the exact value,
 * which 8 * n * eps * M covers for n nodes. Results that underflow are off by 5e-324 times their later factors.
 */
#include "t.h"
#include "program/program.h"
#include "support/oracle/grads.h"

#include <float.h>

enum { DUAL_MAX_NODES = 512 };

/* ---- The oracle ------------------------------------------------------------------------------------------------- */

typedef struct dual {
    /* [node][operand] local derivative; magnitude for its error */
    double slope[DUAL_MAX_NODES][3], size[DUAL_MAX_NODES][3];
    double tangent[DUAL_MAX_NODES], reach[DUAL_MAX_NODES]; /* derivative by the seed; its M */
    double back[DUAL_MAX_NODES];                           /* the same magnitude, from the score down */
    fxa__val vals[DUAL_MAX_NODES];
} dual;

typedef struct dual_seed {
    uint8_t op; /* INPUT = the score, PARAM, LOAD */
    int32_t slot;
    int64_t element;
} dual_seed;

/* Computes the derivatives of one float operation from calculus, in a form independent of derive_rules.c where
 * possible. */
static void dual_slopes(const fxa__node *n, const fxa__val *vals, double v, double *p, double *size) {
    double a = n->n_args > 0 ? vals[n->arg[0]].f : 0, b = n->n_args > 1 ? vals[n->arg[1]].f : 0;
    double c = n->n_args > 2 ? vals[n->arg[2]].f : 0, e;
    p[0] = p[1] = p[2] = 0;
    switch (n->op) {
    case FXA_OP_ADD: p[0] = p[1] = 1; break;
    case FXA_OP_SUB: p[0] = 1, p[1] = -1; break;
    case FXA_OP_WITH_GRAD: p[1] = 1; break;
    case FXA_OP_MUL:
    case FXA_OP_MULZ: p[0] = b, p[1] = a; break;
    case FXA_OP_DIV:
    case FXA_OP_DIVZ: p[0] = 1 / b, p[1] = -v / b; break;
    case FXA_OP_MOD: p[0] = 1, p[1] = -floor(a / b); break;
    case FXA_OP_NEG: p[0] = -1; break;
    case FXA_OP_ABS: p[0] = a > 0 ? 1 : a < 0 ? -1 : 0; break;
    case FXA_OP_MIN: p[0] = a < b ? 1 : a == b ? 0.5 : 0, p[1] = b < a ? 1 : a == b ? 0.5 : 0; break;
    case FXA_OP_MAX: p[0] = a > b ? 1 : a == b ? 0.5 : 0, p[1] = b > a ? 1 : a == b ? 0.5 : 0; break;
    case FXA_OP_CLAMP:
        if (b <= a && a <= c)
            p[0] = 1;
        else if (a == a && b == b && (b > c || a > c))
            p[2] = 1;
        else if (a < b && b <= c)
            p[1] = 1;
        break;
    case FXA_OP_POW: p[0] = b == 0 ? 0 : b * pow(a, b - 1), p[1] = a == 0 && b >= 0 ? 0 : v * log(a); break;
    case FXA_OP_SQRT: p[0] = 0.5 / sqrt(a); break;
    case FXA_OP_RSQRT: p[0] = -0.5 / sqrt(a) / a; break;
    case FXA_OP_EXP: p[0] = exp(a); break;
    case FXA_OP_EXP2: p[0] = log(2) * exp2(a); break;
    case FXA_OP_LOG: p[0] = 1 / a; break;
    case FXA_OP_LOG2: p[0] = 1 / (log(2) * a); break;
    case FXA_OP_TANH: p[0] = 1 / (cosh(a) * cosh(a)); break;
    case FXA_OP_SIGMOID: e = exp(-fabs(a)), p[0] = e / ((1 + e) * (1 + e)); break;
    case FXA_OP_ERF: p[0] = 2 / sqrt(acos(-1)) * exp(-a * a); break;
    case FXA_OP_SIN: p[0] = cos(a); break;
    case FXA_OP_COS: p[0] = -sin(a); break;
    case FXA_OP_LOG1P: p[0] = 1 / (1 + a); break;
    case FXA_OP_ATAN: p[0] = 1 / (1 + a * a); break;
    case FXA_OP_TAN: p[0] = 1 / (cos(a) * cos(a)); break;
    case FXA_OP_SELECT: p[vals[n->arg[0]].i ? 1 : 2] = 1; break;
    default: break;
    }
    for (int i = 0; i < 3; i++) size[i] = fabs(p[i]);
    if (n->op == FXA_OP_TANH || (n->op == FXA_OP_SIGMOID && a > 0)) size[0] = p[0] == p[0] ? 1 : NAN;
}

static bool dual_is_seed(const fxa__node *n, const fxa__env *env, const fxa__val *vals, dual_seed seed) {
    if (n->op != seed.op || n->type != FXA_FLOAT) return false;
    if (n->op == FXA_OP_INPUT) return n->imm == FXA_INPUT_SCORE;
    if (n->imm != seed.slot) return false;
    if (n->op == FXA_OP_PARAM) return true;
    int32_t index[FXA_MAX_RANK];
    for (int i = 0; i < n->n_args; i++) index[i] = vals[n->arg[i]].i;
    return grads_element(&env->tensors[n->imm], index) == seed.element;
}

/* Computes values and derivatives of all nodes, and back[]: the effect of an error there on the score. */
static void dual_prepare(dual *d, const fxa_program *p, const fxa__env *env) {
    fxa__program_eval(p, env, d->vals);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        d->back[i] = 0;
        memset(d->slope[i], 0, sizeof d->slope[i]), memset(d->size[i], 0, sizeof d->size[i]);
        if (p->nodes[i].type == FXA_FLOAT) dual_slopes(&p->nodes[i], d->vals, d->vals[i].f, d->slope[i], d->size[i]);
    }
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    d->back[score] = 1;
    for (int32_t i = score; i >= 0; i--)
        for (int a = 0; a < p->nodes[i].n_args && a < 3; a++)
            if (d->back[i] != 0 && d->size[i][a] != 0) d->back[p->nodes[i].arg[a]] += d->back[i] * d->size[i][a];
}

/* Computes tangents and magnitudes for one seed. Returns false if a number is too large to compare. */
static bool dual_run(dual *d, const fxa_program *p, const fxa__env *env, dual_seed seed, double *worst) {
    double reach = 0, back = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        d->tangent[i] = d->reach[i] = dual_is_seed(n, env, d->vals, seed) ? 1 : 0;
        for (int a = 0; a < n->n_args && a < 3; a++) {
            if (d->size[i][a] == 0 || d->reach[n->arg[a]] == 0) continue;
            d->tangent[i] += d->slope[i][a] * d->tangent[n->arg[a]];
            d->reach[i] += d->size[i][a] * d->reach[n->arg[a]];
        }
        if (d->back[i] == 0) continue;
        if (!isfinite(d->reach[i]) || !isfinite(d->back[i])) return false;
        reach = fmax(reach, d->reach[i]), back = fmax(back, d->back[i]);
    }
    *worst = (1 + reach) * (1 + back) * DBL_TRUE_MIN;
    return *worst < 1e-10;
}

/* ---- Random programs -------------------------------------------------------------------------------------------- */

typedef struct pool {
    fxa_value at[64];
    int count;
} pool;

static void pool_add(pool *p, fxa_value x) {
    if (p->count < 64) p->at[p->count++] = x;
}
/* Prefers recent values, so that programs get deep. */
static fxa_value pool_pick(const pool *p, t_rng *r) {
    int64_t last = p->count - 1, near = last - (last < 5 ? last : 5);
    return p->at[t_int(r, t_int(r, 0, 2) ? near : 0, last)];
}

static const fxa_op tape_unary[] = {FXA_OP_NEG,  FXA_OP_ABS,   FXA_OP_SQRT,  FXA_OP_RSQRT, FXA_OP_EXP,
                                    FXA_OP_EXP2, FXA_OP_LOG,   FXA_OP_LOG2,  FXA_OP_TANH,  FXA_OP_SIGMOID,
                                    FXA_OP_ERF,  FXA_OP_SIN,   FXA_OP_COS,   FXA_OP_TAN,   FXA_OP_FLOOR,
                                    FXA_OP_CEIL, FXA_OP_ROUND, FXA_OP_TRUNC, FXA_OP_LOG1P, FXA_OP_ATAN};
static const fxa_op tape_binary[] = {FXA_OP_ADD,      FXA_OP_SUB, FXA_OP_MUL,  FXA_OP_DIV,
                                     FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_MIN,  FXA_OP_MAX,
                                     FXA_OP_MULZ,     FXA_OP_POW, FXA_OP_DIVZ, FXA_OP_WITH_GRAD};
static const fxa_op tape_ints[] = {FXA_OP_ADD, FXA_OP_SUB, FXA_OP_MUL, FXA_OP_FLOORDIV, FXA_OP_MOD,
                                   FXA_OP_MIN, FXA_OP_MAX, FXA_OP_AND, FXA_OP_XOR};
static const fxa_op tape_compare[] = {FXA_OP_LT, FXA_OP_LE, FXA_OP_GT, FXA_OP_GE, FXA_OP_EQ, FXA_OP_NE};
#define PICK(r, list) (list)[t_int(r, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)]

typedef struct tape {
    fxa_builder *b;
    pool floats, ints, bools;
    int32_t tensor[3];
} tape;

static fxa_value tape_unary_step(tape *t, t_rng *r) {
    fxa_op op = PICK(r, tape_unary);
    fxa_value x = pool_pick(&t->floats, r);
    /* Roots and logarithms mostly get positive operands, exponentials small ones. */
    if ((op == FXA_OP_SQRT || op == FXA_OP_RSQRT || op == FXA_OP_LOG || op == FXA_OP_LOG2) && t_int(r, 0, 3))
        x = fxa_builder_op1(t->b, FXA_OP_ABS, x);
    if ((op == FXA_OP_EXP || op == FXA_OP_EXP2) && t_int(r, 0, 3)) x = fxa_builder_op1(t->b, FXA_OP_SIN, x);
    return fxa_builder_op1(t->b, op, x);
}

static void tape_step(tape *t, t_rng *r) {
    fxa_builder *b = t->b;
    fxa_value f = pool_pick(&t->floats, r), g = pool_pick(&t->floats, r), i = pool_pick(&t->ints, r);
    fxa_value j = pool_pick(&t->ints, r), c = pool_pick(&t->bools, r), index[2] = {i, j};
    switch (t_int(r, 0, 15)) {
    case 0:
    case 1:
    case 2:
    case 3: pool_add(&t->floats, tape_unary_step(t, r)); break;
    case 4:
    case 5:
    case 6:
    case 7: pool_add(&t->floats, fxa_builder_op2(b, PICK(r, tape_binary), f, g)); break;
    case 8: pool_add(&t->floats, fxa_builder_op3(b, FXA_OP_CLAMP, f, g, pool_pick(&t->floats, r))); break;
    case 9: pool_add(&t->floats, fxa_builder_op3(b, FXA_OP_SELECT, c, f, g)); break;
    case 10: pool_add(&t->floats, fxa_builder_load(b, t->tensor[0], index, 1)); break;
    case 11: pool_add(&t->floats, fxa_builder_load(b, t->tensor[1], index, 2)); break;
    case 12: pool_add(&t->floats, fxa_builder_op2(b, PICK(r, tape_binary), f, i)); break;
    case 13: pool_add(&t->ints, fxa_builder_op2(b, PICK(r, tape_ints), i, j)); break;
    case 14:
        pool_add(&t->ints,
                 t_int(r, 0, 1) ? fxa_builder_load(b, t->tensor[2], index, 1) : fxa_builder_op1(b, FXA_OP_INT, f));
        break;
    default: pool_add(&t->bools, fxa_builder_op2(b, PICK(r, tape_compare), t_int(r, 0, 1) ? f : i, g)); break;
    }
}

/* Params: float x, y, int n. Tensors: t f64[5], u f32[3,4], w i32[6]. */
static fxa_program *tape_program(fxa_context *ctx, t_rng *r) {
    fxa_error err;
    fxa_program *p = NULL;
    tape t = {0};
    if (fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &t.b, &err) != FXA_OK) return NULL;
    t.tensor[0] = fxa_builder_tensor(t.b, "t", FXA_F64, 1);
    t.tensor[1] = fxa_builder_tensor(t.b, "u", FXA_F32, 2);
    t.tensor[2] = fxa_builder_tensor(t.b, "w", FXA_I32, 1);
    pool_add(&t.floats, fxa_builder_float(t.b, t_real(r, -2, 2)));
    pool_add(&t.floats, fxa_builder_param(t.b, "x", FXA_FLOAT));
    pool_add(&t.floats, fxa_builder_param(t.b, "y", FXA_FLOAT));
    pool_add(&t.floats, fxa_builder_input(t.b, FXA_INPUT_SCORE));
    pool_add(&t.ints, fxa_builder_int(t.b, (int32_t)t_int(r, -2, 2)));
    pool_add(&t.ints, fxa_builder_param(t.b, "n", FXA_INT));
    for (int i = FXA_INPUT_B; i < FXA_INPUT_COUNT; i++)
        if (i != FXA_INPUT_DSCORE) pool_add(&t.ints, fxa_builder_input(t.b, (fxa_input)i));
    pool_add(&t.bools, fxa_builder_op2(t.b, FXA_OP_LT, t.ints.at[4], t.ints.at[5]));
    for (int64_t n = t_int(r, 1, 40); n > 0; n--) tape_step(&t, r);
    fxa_builder_set_score(t.b, t.floats.at[t.floats.count - 1]);
    fxa_builder_set_mask(t.b, pool_pick(&t.bools, r));
    if (fxa_builder_finish(t.b, &p, &err) != FXA_OK) T_FAIL("finish: %s\n", err.text);
    fxa_builder_destroy(t.b);
    return p;
}

typedef struct world { /* data for the env of such a program */
    double params[3], t[5];
    float u[12];
    int32_t w[6];
    fxa_view views[3];
    fxa__env env;
} world;

static void world_fill(world *w, t_rng *r) {
    memset(w, 0, sizeof *w);
    for (int i = 0; i < 5; i++) w->t[i] = t_real(r, -2, 2);
    for (int i = 0; i < 12; i++) w->u[i] = (float)t_real(r, -2, 2);
    for (int i = 0; i < 6; i++) w->w[i] = (int32_t)t_int(r, 0, 4);
    w->params[0] = (double)t_int(r, -3, 3), w->params[1] = t_real(r, -2, 2), w->params[2] = t_real(r, -2, 2);
    w->views[0] = (fxa_view){w->t, FXA_F64, 1, {5}, {1}};
    w->views[1] = (fxa_view){w->u, FXA_F32, 2, {3, 4}, {4, 1}};
    w->views[2] = (fxa_view){w->w, FXA_I32, 1, {6}, {1}};
    w->env = (fxa__env){.score = t_real(r, -3, 3), .dscore = 1, .params = w->params, .tensors = w->views};
    for (int i = FXA_INPUT_B; i < FXA_INPUT_COUNT; i++) w->env.coord[i] = (int32_t)t_int(r, 0, 5);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------ */

static double dual_got(const grads *g, dual_seed seed) {
    return seed.op == FXA_OP_INPUT   ? g->score
           : seed.op == FXA_OP_PARAM ? g->param[seed.slot]
                                     : g->tensor[seed.slot][seed.element];
}

/* Returns the number of seeds compared, of `tried`. */
static int dual_compare(dual *d, const fxa_program *p, const fxa_program *derivative, world *w, t_rng *r, int *tried) {
    dual_seed seeds[] = {{FXA_OP_INPUT, 0, 0},
                         {FXA_OP_PARAM, 1, 0},
                         {FXA_OP_PARAM, 2, 0},
                         {FXA_OP_LOAD, 0, t_int(r, 0, 4)},
                         {FXA_OP_LOAD, 1, t_int(r, 0, 11)}};
    int compared = 0;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    dual_prepare(d, p, &w->env);
    grads g = grads_eval(derivative, &w->env);
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        double tiny, got = dual_got(&g, seeds[i]);
        ++*tried;
        if (!dual_run(d, p, &w->env, seeds[i], &tiny)) continue;
        double tolerance = (double)derivative->n_nodes * (8 * DBL_EPSILON * d->reach[score] + tiny);
        T_NEAR(got, d->tangent[score], tolerance);
        compared++;
    }
    return compared;
}

CONTEXT_TEST(random_programs_against_dual_numbers) {
    t_rng r = {t_seed()};
    static dual d;
    int tried = 0, compared = 0, before = t_failures;
    for (int i = t_scaled(30000); i > 0 && t_failures < before + 5; i--) {
        t_program *p = tape_program(ctx, &r), *derivative = NULL;
        T_REQUIRE(p && p->n_nodes <= DUAL_MAX_NODES);
        T_OK(fxa_program_derivative(p, &derivative, &err));
        T_REQUIRE(derivative);
        for (int k = 0; k < 3; k++) {
            world w;
            world_fill(&w, &r);
            compared += dual_compare(&d, p, derivative, &w, &r, &tried);
        }
    }
    /* The others have a non-finite value on a relevant path; the table of special values covers those. */
    if (compared * 10 < tried * 7) T_FAIL("only %d of %d could be compared\n", compared, tried);
}

CONTEXT_TEST(same_declarations_in_the_same_order) {
    t_program *p = NULL, *derivative = NULL;
    const char *text = "param z : float\nparam a : int\n"
                       "tensor unused : f32[3]\ntensor bias : f32[1]\ntensor doc : i32[1]\n"
                       "score = score * z + bias[q]\nmask = doc[q] == a";
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    T_REQUIRE(p);
    T_OK(fxa_program_derivative(p, &derivative, &err));
    T_REQUIRE(derivative);
    T_INT(fxa_program_get_kind(derivative), FXA_PROGRAM_DERIVATIVE);
    T_INT(fxa_program_param_count(derivative), fxa_program_param_count(p));
    T_INT(fxa_program_tensor_count(derivative), fxa_program_tensor_count(p));
    for (size_t i = 0; i < fxa_program_param_count(p); i++) {
        T_STR(fxa_program_param(derivative, i).name, fxa_program_param(p, i).name);
        T_INT(fxa_program_param(derivative, i).type, fxa_program_param(p, i).type);
    }
    for (size_t i = 0; i < fxa_program_tensor_count(p); i++) {
        T_STR(fxa_program_tensor(derivative, i).name, fxa_program_tensor(p, i).name);
        T_INT(fxa_program_tensor(derivative, i).dtype, fxa_program_tensor(p, i).dtype);
        T_INT(fxa_program_tensor(derivative, i).rank, fxa_program_tensor(p, i).rank);
    }
}

static char *derive_print(const fxa_program *p) {
    fxa_error err;
    size_t need = 0;
    T_OK(fxa_program_print(p, NULL, 0, &need, &err));
    char *text = malloc(need + 1);
    if (!text) abort();
    T_OK(fxa_program_print(p, text, need + 1, NULL, &err));
    return text;
}

CONTEXT_TEST(derivative_prints_and_parses_back) {
    t_rng r = {t_seed() + 1};
    int before = t_failures;
    for (int i = t_scaled(500); i > 0 && t_failures < before + 5; i--) {
        fxa_program *p = tape_program(ctx, &r), *derivative = NULL, *again = NULL;
        uint8_t want[16], got[16] = {0};
        T_REQUIRE(p);
        T_OK(fxa_program_derivative(p, &derivative, &err));
        T_REQUIRE(derivative);
        char *text = derive_print(derivative);
        fxa_text part = {"derivative", text, SIZE_MAX};
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        config.kind = FXA_PROGRAM_DERIVATIVE, config.texts = &part, config.n_texts = 1;
        T_OK(fxa_program_parse_texts(ctx, &config, &again, &err));
        T_REQUIRE(again);
        fxa_program_hash(derivative, want), fxa_program_hash(again, got);
        if (memcmp(want, got, 16) != 0) T_FAIL("another hash after\n%s\n", text);
        char *text2 = derive_print(again);
        T_STR(text2, text);
        free(text), free(text2);
        fxa_program_destroy(again), fxa_program_destroy(derivative), fxa_program_destroy(p);
    }
}

CONTEXT_TEST(only_score_programs_have_one) {
    fxa_program *p = NULL, *derivative = NULL, *none = NULL, *bprop = NULL;
    T_OK(fxa_program_parse(ctx, "score = score * 2", SIZE_MAX, &p, &err));
    T_OK(fxa_program_derivative(p, &derivative, &err));
    T_STATUS(fxa_program_derivative(derivative, &none, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "derivative program");
    fxa_text part = {NULL, "dscore = dscore * 2", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &part, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &bprop, &err));
    none = p;
    T_STATUS(fxa_program_derivative(bprop, &none, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "bprop program");
    T_CHECK(none == NULL);
    T_STATUS(fxa_program_derivative(NULL, &none, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_derivative(p, NULL, &err), FXA_E_ARGUMENT);
    fxa_program_destroy(bprop), fxa_program_destroy(derivative), fxa_program_destroy(p);
}

T_MAIN
