/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a run that the text reads from f[] and i[]: params, and floats that depend on params alone, which are
 * computed in f64 and rounded once. f[] and i[] are kernel arguments, so reading them takes no registers.
 */
#include "codegen.h"

#include "../../../base/num.h"
#include "../../../lower/emit.h"

#include <float.h>
#include <math.h>

_Static_assert(FXA__CUDA_HOST_VALUES + 2 + 1 + FXA_CUDA_SOFTCAP_TERMS + 3 == FXA_CUDA_HOST_VALUES,
               "f[] holds values of nodes, softcap_unit() and unit(), series_limit() and terms, and values of exp");

#define FILL_SERIES_RANGE 0.6 /* |x| below which tanh x is computed by the polynomial */
/* Upper bound of series_limit(), the |score| below which the soft cap tanh(score * factor) is a polynomial of the
 * score. If the factor is tiny, larger scores would be possible, but coefficients of the polynomial may round to 0. */
#define FILL_MAX_SERIES_LIMIT 4096.
/* Maximum c of a soft cap c * tanh(...) that softcap_exp() computes: its error, 2^-20 * c, is then at most 2^-14. */
#define FILL_MAX_CAP 64.
/* softcap_exp() divides once for four scores. The product of their four denominators is finite if |unit| (unit: factor
 * of the score that depends on params alone) and the exponents of exp2 are within these bounds. */
#define FILL_MIN_UNIT 0.125
#define FILL_MAX_EXPONENT 28.

/* Coefficients c of the polynomial tanh x = x (c[0] + c[1] x^2 + ...), with a relative error below 2^-23.7 for |x| <
 * 0.6. */
static const double fill_tanh[FXA_CUDA_SOFTCAP_TERMS] = {0.9999999268692358, -0.33332309972578855, 0.1331017362435341,
                                                         -0.05210147853455042, 0.015475425267545645};

/* maximum operations of a float that the host computes; a node that is read twice counts twice */
enum { FILL_MAX_OPERATIONS = 48 };

/* Returns true if a node is arithmetic of params and constants. *left: number of operations that the node may still
 * have. */
static bool fill_is_arithmetic(const fxa_program *p, int32_t node, int *left) {
    const fxa__node *n = &p->nodes[node];
    if (n->type != FXA_FLOAT || (*left)-- == 0) return false;
    switch (n->op) {
    case FXA_OP_CONST:
    case FXA_OP_PARAM: return true;
    case FXA_OP_NEG:
    case FXA_OP_ABS: return fill_is_arithmetic(p, n->arg[0], left);
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MUL:
    case FXA_OP_MULZ:
    case FXA_OP_DIVZ:
    case FXA_OP_DIV: return fill_is_arithmetic(p, n->arg[0], left) && fill_is_arithmetic(p, n->arg[1], left);
    default: return false;
    }
}

bool fxa__cuda_is_host_value(const fxa_program *p, int32_t node) {
    int left = FILL_MAX_OPERATIONS;
    return fill_is_arithmetic(p, node, &left);
}

/* Returns the value of a node for which fxa__cuda_is_host_value() is true. */
static double fill_value(const fxa_program *p, int32_t node, const double *params) {
    const fxa__node *n = &p->nodes[node];
    double x = n->n_args > 0 ? fill_value(p, n->arg[0], params) : 0;
    double y = n->n_args > 1 ? fill_value(p, n->arg[1], params) : 0;
    switch (n->op) {
    case FXA_OP_CONST: return n->f;
    case FXA_OP_PARAM: return params[n->imm];
    case FXA_OP_NEG: return -x;
    case FXA_OP_ABS: return fabs(x);
    case FXA_OP_ADD: return x + y;
    case FXA_OP_SUB: return x - y;
    case FXA_OP_MUL: return x * y;
    case FXA_OP_MULZ: return x == 0 ? 0 : x * y;
    case FXA_OP_DIVZ: return x == 0 ? 0 : x / y;
    default: return x / y;
    }
}

/* Returns an upper bound of the factor by which a node of value() scales an error of its tanh; INFINITY = unknown. */
static double fill_sensitivity(const fxa__cuda_program *c, int32_t node, const double *params, int *left) {
    const fxa_program *p = c->program;
    const fxa__node *n = &p->nodes[node];
    if (node == c->computed.softcap) return 1;
    if ((*left)-- <= 0) return INFINITY;
    double gain[FXA_MAX_RANK], sum = 0;
    for (int i = 0; i < n->n_args; i++) sum += gain[i] = fill_sensitivity(c, n->arg[i], params, left);
    if (sum == 0 || n->op == FXA_OP_ADD || n->op == FXA_OP_SUB || n->op == FXA_OP_NEG) return sum;
    for (int i = 0; n->op == FXA_OP_MUL && i < 2; i++)
        if (gain[i] == 0 && fxa__cuda_is_host_value(p, n->arg[i])) return sum * fabs(fill_value(p, n->arg[i], params));
    return INFINITY;
}

/* Sets the floats of softcap_exp(), the soft cap by exp2: f[0], the limit of |score|, and f[1] and f[2], constants.
 * Sets all of them to 0 if softcap_exp() must not be used. */
static void fill_exp(const fxa__cuda_program *p, const double *params, double factor, double unit, float *f) {
    int left = FILL_MAX_OPERATIONS;
    double cap = fill_sensitivity(p, p->computed.value, params, &left), by = 2 * FXA__CUDA_LOG2E * factor;
    if (p->computed.factor >= 0) cap *= fabs(fill_value(p->program, p->computed.factor, params));
    bool takes = cap <= FILL_MAX_CAP && fabs(unit) >= FILL_MIN_UNIT && fabs(by) > FLT_MIN && fabs(by) < FLT_MAX;
    f[0] = takes ? (float)fmin(FILL_MAX_EXPONENT / fabs(by), FLT_MAX) : 0;
    f[1] = takes ? (float)by : 0;
    f[2] = takes ? (float)(-0.5 / unit) : 0;
}

/* For a new score = c * tanh(...): splits c * log2(e) into f[0] * f[1]. softcap() multiplies the tanh by f[0]; f[1] is
 * the unit, by which kernels multiply the score: 1, or 4 if c * log2(e) overflows f32 (kernels then recompute the row,
 * is_out_of_range() of sm90/forward_epilogue.cuh). Returns f[0] before rounding. */
static double fill_cap(const fxa__cuda_program *p, const double *params, float *f) {
    double cap = fill_value(p->program, p->computed.gain, params) * FXA__CUDA_LOG2E, unit = fabs(cap) > FLT_MAX ? 4 : 1;
    f[0] = (float)(cap / unit);
    f[1] = (float)unit;
    return cap / unit;
}

/* Writes the constants of softcap(): series_limit(), the coefficients of softcap_series(), exp_limit() and the
 * constants of softcap_exp(). If a coefficient is not finite, series_limit() is 0, so that kernels do not use the
 * polynomial. */
static void fill_softcap(const fxa__cuda_program *p, const double *params, float *f) {
    double factor = fill_value(p->program, p->computed.softcap_factor, params), power = factor,
           limit = FILL_SERIES_RANGE / fabs(factor), unit = 1;
    if (p->switches.softcap_has_unit)
        unit = FXA__CUDA_LOG2E * (p->computed.factor >= 0 ? fill_value(p->program, p->computed.factor, params) : 1);
    if (p->computed.gain >= 0) unit = fill_cap(p, params, f + p->computed.unit_at);
    fill_exp(p, params, factor, unit, f + p->computed.softcap_at + 1 + FXA_CUDA_SOFTCAP_TERMS);
    power *= unit;
    f[p->computed.softcap_at] = (float)(limit < FILL_MAX_SERIES_LIMIT ? limit : FILL_MAX_SERIES_LIMIT);
    for (int32_t k = 0; k < FXA_CUDA_SOFTCAP_TERMS; k++) {
        f[p->computed.softcap_at + 1 + k] = (float)(fill_tanh[k] * power);
        if (!isfinite(f[p->computed.softcap_at + 1 + k])) f[p->computed.softcap_at] = 0;
        power *= factor * factor;
    }
}

/* Returns x, the unit (uniform factor of the score), as a float. If x is > 0 and finite, the result is > 0 and finite
 * too: a unit of 0 or infinity would turn scores of -inf or 0 into NaN. */
static float fill_unit(double x) {
    float unit = (float)x;
    if (x > 0 && unit < FLT_MIN) return FLT_MIN;
    return x > 0 && isfinite(x) && unit > FLT_MAX ? FLT_MAX : unit;
}

void fxa__cuda_host_values(const fxa__cuda_program *p, const double *params, float *f, int *i) {
    const fxa_program *program = p->program;
    for (int32_t k = 0; k < program->n_params; k++) {
        int32_t at = fxa__lower_emit_param(program, k);
        if (program->params[k].type == FXA_FLOAT)
            f[at] = (float)params[k];
        else
            i[at] = fxa__toint(params[k]);
    }
    for (int32_t k = 0; k < p->computed.n; k++)
        f[p->computed.at + k] = (float)fill_value(program, p->computed.node[k], params);
    if (p->computed.unit_at >= 0 && p->computed.gain < 0)
        f[p->computed.unit_at] = fill_unit(fill_value(program, p->computed.factor, params) * FXA__CUDA_LOG2E);
    if (p->computed.softcap_at >= 0) fill_softcap(p, params, f);
}

int32_t fxa__cuda_operand_kind(fxa_dtype dtype) {
    static const int32_t kinds[] = {[FXA_F32] = FXA_WORD_SAME, [FXA_I32] = FXA_WORD_SAME, [FXA_I64] = FXA_WORD_I64,
                                    [FXA_I16] = FXA_WORD_I16,  [FXA_I8] = FXA_WORD_I8,    [FXA_U8] = FXA_WORD_U8,
                                    [FXA_B8] = FXA_WORD_BOOL,  [FXA_F16] = FXA_WORD_F16,  [FXA_BF16] = FXA_WORD_BF16};
    return (size_t)dtype < sizeof kinds / sizeof *kinds ? kinds[dtype] : FXA_WORD_NONE;
}
