/* SPDX-License-Identifier: Apache-2.0
 *
 * Folds uniform factors, which are equal for all pairs (q, k) of a head: with uniform c and d, x / c becomes
 * x * (1 / c), and (x * c) * d becomes x * (c * d). The result differs from the original by at most the
 * rounding of a factor, which is within the error bounds of quotients and products in docs/numerics.md.
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../lower/copy_outputs.h"
#include "../../../lower/exact_zero.h"

#include <math.h>

typedef struct fold {
    const fxa_program *p; /* the joined program (codegen/join.c) */
    fxa_builder *b;       /* builder of the result */
    fxa__depend *sets;    /* [node of p] what the node depends on */
    fxa_value *map;       /* [node of p] the expression in b that replaces the node */
    fxa_value *factor;    /* [node of p] factor equal in a head, if map = base * factor; -1 = map is no such product */
    fxa_value *base;      /* [node of p] base, if map = base * factor; else -1 */
    bool *wins;           /* [node of p] true = map is mulz(base, factor): 0 if base is 0, whatever factor is */
    bool *signs;          /* [node of p] true = an operation that reads the node distinguishes 0 and -0 */
    int32_t tensor[FXA_MAX_TENSORS]; /* [tensor of p] index of the tensor in b */
    bool finite;                     /* true = params that are factors are finite and not 0 */
} fold;

/* Returns true if a node is equal for all pairs (q, k) of a head. */
static bool fold_is_uniform(const fold *r, int32_t node) { return fxa__lower_rate(&r->sets[node]) <= FXA__RATE_HEAD; }

static bool fold_is_product(const fxa__node *n) { return n->op == FXA_OP_MUL || n->op == FXA_OP_MULZ; }
static bool fold_is_quotient(const fxa__node *n) { return n->op == FXA_OP_DIV || n->op == FXA_OP_DIVZ; }

/* Returns true if n is a mulz or divz, a product or quotient that is 0 if the first operand is 0, whatever the second
 * operand is. */
static bool fold_zero_wins(const fxa__node *n) { return n->op == FXA_OP_MULZ || n->op == FXA_OP_DIVZ; }

/* Returns true if a node is finite and not 0 in every run. x * node, and mulz(x, node), which is 0 if x is 0, then
 * differ at most by the sign of a 0. */
static bool fold_is_finite(const fold *r, int32_t node) {
    const fxa__node *n = &r->p->nodes[node];
    if (n->op == FXA_OP_CONST) return n->type == FXA_FLOAT && isfinite(n->f) && n->f != 0;
    return n->op == FXA_OP_PARAM && r->finite;
}

/* Returns the index of the operand of a product or quotient that is uniform (equal for all pairs (q, k) of a head)
 * while the other operand is not; -1 = none. Of a quotient, only the divisor (index 1) is considered. Operand 0 of a
 * mulz, which makes the result 0 if it is 0, is considered only if it is finite and not 0. */
static int fold_factor_at(const fold *r, const fxa__node *n) {
    if (n->type != FXA_FLOAT || !(fold_is_product(n) || fold_is_quotient(n))) return -1;
    for (int k = fold_is_quotient(n); k < 2; k++) {
        if (fold_zero_wins(n) && k == 0 && !fold_is_finite(r, n->arg[k])) continue;
        if (fold_is_uniform(r, n->arg[k]) && !fold_is_uniform(r, n->arg[1 - k])) return k;
    }
    return -1;
}

static fxa_value fold_operation(const fold *r, const fxa__node *n) {
    fxa_value arg[FXA_MAX_RANK];
    for (int k = 0; k < n->n_args; k++) arg[k] = r->map[n->arg[k]];
    switch (n->op) {
    case FXA_OP_CONST:
        if (n->type == FXA_FLOAT) return fxa_builder_float(r->b, n->f);
        return n->type == FXA_INT ? fxa_builder_int(r->b, n->imm) : fxa_builder_bool(r->b, n->imm);
    case FXA_OP_INPUT: return fxa_builder_input(r->b, (fxa_input)n->imm);
    case FXA_OP_PARAM: return fxa_builder_param(r->b, r->p->params[n->imm].name, (fxa_type)n->type);
    case FXA_OP_LOAD: return fxa_builder_load(r->b, r->tensor[n->imm], arg, n->n_args);
    default: return fxa_builder_op(r->b, (fxa_op)n->op, arg, n->n_args);
    }
}

/* Rewrites node i, a mulz or divz whose result is 0 if its varying operand is 0, as mulz(base, factor): base is the
 * varying operand, factor is computed once per head. at: index of the operand that is equal in a head. */
static void fold_product_zero(fold *r, int32_t i, int at) {
    const fxa__node *n = &r->p->nodes[i];
    int32_t varying = n->arg[1 - at];
    fxa_value c = r->map[n->arg[at]];
    /* If the varying operand is itself mulz(base, factor), its factor is merged into the factor of node i, unless an
     * operation distinguishes 0 and -0, because merging may change the sign of a 0. */
    bool folds = r->wins[varying] && !r->signs[i];
    r->wins[i] = true;
    if (fold_is_quotient(n)) c = fxa_builder_op2(r->b, FXA_OP_DIV, fxa_builder_float(r->b, 1), c);
    r->base[i] = folds ? r->base[varying] : r->map[varying];
    r->factor[i] = folds ? fxa_builder_op2(r->b, FXA_OP_MULZ, r->factor[varying], c) : c;
    r->map[i] = fxa_builder_op2(r->b, FXA_OP_MULZ, r->base[i], r->factor[i]);
}

/* Rewrites node i, a product or quotient of a varying operand and an operand c (index `at`) that is equal in a head, as
 * varying * c or varying * (1 / c). If the varying operand is base * factor, the result is base * (factor * c); and
 * (base * c) / c is base, if c is finite and not 0. */
static void fold_product(fold *r, int32_t i, int at) {
    const fxa__node *n = &r->p->nodes[i];
    int32_t varying = n->arg[1 - at];
    fxa_value c = r->map[n->arg[at]];
    bool folds = r->factor[varying] >= 0 && !r->wins[varying], finite = fold_is_finite(r, n->arg[at]);
    r->base[i] = folds ? r->base[varying] : r->map[varying];
    if (folds && fold_is_quotient(n) && r->factor[varying] == c && finite) {
        r->map[i] = r->base[i];
        r->base[i] = -1;
        return;
    }
    if (fold_is_quotient(n)) c = fxa_builder_op2(r->b, FXA_OP_DIV, fxa_builder_float(r->b, 1), c);
    r->factor[i] = folds ? fxa_builder_op2(r->b, FXA_OP_MUL, r->factor[varying], c) : c;
    r->map[i] = fxa_builder_op2(r->b, FXA_OP_MUL, r->base[i], r->factor[i]);
}

/* If node i has the form (c * x) / c, where c is equal in a head and may be 0, infinite or NaN, returns the index of
 * the operand c of the product; else -1. Derivatives of soft caps have this form. The operations are mul and div, or
 * mulz and divz. divz returns 0 for -0, so with divz no operation that reads node i may distinguish 0 and -0. */
static int fold_cancels_at(const fold *r, int32_t i) {
    const fxa__node *n = &r->p->nodes[i];
    if (n->type != FXA_FLOAT || !fold_is_quotient(n) || !fold_is_uniform(r, n->arg[1])) return -1;
    if (fold_zero_wins(n) && r->signs[i]) return -1;
    const fxa__node *m = &r->p->nodes[n->arg[0]];
    if (!fold_is_product(m) || fold_zero_wins(m) != fold_zero_wins(n)) return -1;
    for (int k = 0; k < 2; k++)
        if (m->arg[k] == n->arg[1] && !fold_is_uniform(r, m->arg[1 - k])) return k;
    return -1;
}

/* Returns (c / c) * x for (c * x) / c. c / c is computed once per head, so no pair divides; it is 1, except where the
 * original expression is 0 or NaN for every x: there it is 0 or NaN too. */
static fxa_value fold_cancelled(const fold *r, const fxa__node *n, int at) {
    const fxa__node *m = &r->p->nodes[n->arg[0]];
    fxa_value arg[2] = {r->map[m->arg[0]], r->map[m->arg[1]]};
    arg[at] = fxa_builder_op2(r->b, (fxa_op)n->op, r->map[n->arg[1]], r->map[n->arg[1]]);
    return fxa_builder_op2(r->b, (fxa_op)m->op, arg[0], arg[1]);
}

static void fold_node(fold *r, int32_t i) {
    const fxa__node *n = &r->p->nodes[i];
    int at = fold_factor_at(r, n), cancelled;
    bool wins = at >= 0 && fold_zero_wins(n) && (!fold_is_finite(r, n->arg[at]) || (at == 1 && r->signs[i]));
    cancelled = at < 0 || wins ? fold_cancels_at(r, i) : -1;
    r->factor[i] = r->base[i] = -1;
    r->wins[i] = false;
    /* The value of with_grad is its first operand; the other operands only define its derivative, taken already. */
    if (n->op == FXA_OP_WITH_GRAD) {
        r->map[i] = r->map[n->arg[0]];
        r->factor[i] = r->factor[n->arg[0]], r->base[i] = r->base[n->arg[0]], r->wins[i] = r->wins[n->arg[0]];
        return;
    }
    if (cancelled >= 0) {
        r->map[i] = fold_cancelled(r, n, cancelled);
    } else if (wins) {
        fold_product_zero(r, i, at);
    } else if (at >= 0) {
        fold_product(r, i, at);
    } else {
        r->map[i] = fold_operation(r, n);
    }
}

static void fold_declare(fold *r) {
    for (int32_t i = 0; i < r->p->n_params; i++)
        (void)fxa_builder_param(r->b, r->p->params[i].name, (fxa_type)r->p->params[i].type);
    for (int32_t i = 0; i < r->p->n_tensors; i++) {
        const fxa__decl *t = &r->p->tensors[i];
        r->tensor[i] = fxa_builder_tensor(r->b, t->name, (fxa_dtype)t->dtype, t->rank);
    }
}

static fxa_status fold_build(fxa__host *host, fold *r, fxa_program **out, fxa_error *err) {
    FXA_TRY(fxa__builder_new(host, (fxa_program_kind)r->p->kind, &r->b, err));
    fxa__builder_set_limit(r->b, 4 * FXA__MAX_DERIVED_NODES);
    fold_declare(r);
    fxa__lower_depend(r->p, NULL, r->sets);
    fxa__lower_zero_signs(r->p, r->signs);
    for (int32_t i = 0; i < r->p->n_nodes && !fxa__builder_failed(r->b); i++) fold_node(r, i);
    if (!fxa__builder_failed(r->b)) fxa__lower_copy_outputs(r->b, r->p, r->map, UINT32_MAX);
    fxa_status status = fxa_builder_finish(r->b, out, err);
    fxa_builder_destroy(r->b);
    return status;
}

static fxa_status fold_program(const cuda_work *w, fxa_program **out, fxa_error *err) {
    size_t n = (size_t)w->joined->n_nodes;
    fold r = {.p = w->joined, .finite = w->config.assumed.finite_factors};
    fxa_status status;
    r.sets = fxa__alloc_array(w->host, n, sizeof *r.sets);
    r.map = fxa__alloc_array(w->host, 3 * n, sizeof *r.map);
    r.factor = r.map ? r.map + n : NULL;
    r.base = r.map ? r.map + 2 * n : NULL;
    r.wins = fxa__alloc(w->host, 2 * n);
    r.signs = r.wins ? r.wins + n : NULL;
    if (!r.sets || !r.map || !r.wins)
        status = fxa__fail_memory(err, "a program for CUDA kernels");
    else
        status = fold_build(w->host, &r, out, err);
    fxa__free(w->host, r.sets, n * sizeof *r.sets);
    fxa__free(w->host, r.map, 3 * n * sizeof *r.map);
    fxa__free(w->host, r.wins, 2 * n);
    return status;
}

/* ---- Dependence and bounds of nodes ------------------------------------------------------------------------------ */

/* Allocates the arrays of later passes. Finds what each node of the final program depends on, and bounds of ints. */
static fxa_status fold_analyze(cuda_work *w, fxa_error *err) {
    const fxa_program *p = w->c->program;
    size_t n = (size_t)p->n_nodes;
    w->affine = fxa__alloc_array(w->host, n, sizeof *w->affine);
    w->inputs = fxa__alloc_array(w->host, n, sizeof *w->inputs);
    w->bounds = fxa__alloc_array(w->host, n, sizeof *w->bounds);
    w->need = fxa__alloc(w->host, n);
    w->tiles = fxa__alloc_array(w->host, n, sizeof *w->tiles);
    w->in_bounds = fxa__alloc(w->host, n);
    w->wanted = fxa__alloc(w->host, (size_t)p->n_outputs);
    if (!w->affine || !w->inputs || !w->bounds || !w->need || !w->tiles || !w->in_bounds || !w->wanted)
        return fxa__fail_memory(err, "the text of a program for CUDA kernels");
    fxa__lower_affine(p, w->affine);
    fxa__lower_depend(p, w->affine, w->inputs);
    fxa__cuda_int_bounds(p, w->bounds);
    return FXA_OK;
}

void fxa__cuda_analyses_free(cuda_work *w) {
    size_t n = w->c->program ? (size_t)w->c->program->n_nodes : 0;
    fxa__free(w->host, w->affine, n * sizeof *w->affine);
    fxa__free(w->host, w->inputs, n * sizeof *w->inputs);
    fxa__free(w->host, w->bounds, n * sizeof *w->bounds);
    fxa__free(w->host, w->need, n);
    fxa__free(w->host, w->tiles, n * sizeof *w->tiles);
    fxa__free(w->host, w->in_bounds, n);
    fxa__free(w->host, w->wanted, n ? (size_t)w->c->program->n_outputs : 0);
    w->affine = NULL, w->inputs = NULL, w->bounds = NULL, w->need = NULL, w->tiles = NULL, w->in_bounds = NULL;
    w->wanted = NULL;
}

fxa_status fxa__cuda_fold_factors(cuda_work *w, fxa_error *err) {
    fxa__cuda_analyses_free(w);
    fxa_program_destroy(w->c->program);
    w->c->program = NULL;
    FXA_TRY(fold_program(w, &w->c->program, err));
    FXA__ASSERT(w->c->program->n_params == w->joined->n_params && w->c->program->n_tensors == w->joined->n_tensors);
    FXA__ASSERT(w->c->program->n_outputs == w->joined->n_outputs);
    return fold_analyze(w, err);
}
