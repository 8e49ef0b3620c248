/* SPDX-License-Identifier: Apache-2.0
 *
 * Rewrites a program for the kernels; see codegen/codegen.h. Each result differs from the original by at most the
 * rounding of a factor: x / c becomes x * (1 / c), and (x * c) * d becomes x * (c * d), where c and d are uniform. This
 * is within the error bounds of quotients and products in docs/numerics.md.
 */
#include "codegen.h"

#include "../../../lower/copy_outputs.h"
#include "../../../lower/fuse.h"
#include "../../../lower/parameterize.h"
#include "../../../lower/zero.h"

#include "../kernels/common/args.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rewrite {
    const fxa_program *p; /* the parameterized program */
    fxa_builder *b;
    fxa__depend *sets;
    fxa_value *map;    /* [node of p] its value in b */
    fxa_value *factor; /* [node of p] map is base * factor; -1 = no product with a uniform factor */
    fxa_value *base;
    bool *wins;  /* [node of p] map is mulz(base, factor) */
    bool *signs; /* [node of p] a reader distinguishes 0 and -0 */
    int32_t tensor[FXA_MAX_TENSORS];
    fxa_value scale;
    bool plain; /* params that are factors are finite and not 0 */
} rewrite;

/* Returns true if neither pair, row nor key changes a node. */
static bool rewrite_stays(const rewrite *r, int32_t node) { return fxa__lower_rate(&r->sets[node]) <= FXA__RATE_HEAD; }

/* Returns true if n is a product or quotient: x * c, x / c. In mulz and divz an exact 0 of the first operand wins; this
 * operand is x, unless c is finite and not 0. */
static bool rewrite_is_product(const fxa__node *n) { return n->op == FXA_OP_MUL || n->op == FXA_OP_MULZ; }
static bool rewrite_is_quotient(const fxa__node *n) { return n->op == FXA_OP_DIV || n->op == FXA_OP_DIVZ; }
static bool rewrite_zero_wins(const fxa__node *n) { return n->op == FXA_OP_MULZ || n->op == FXA_OP_DIVZ; }

/* Returns true if a node is finite and not 0 in every run. Then it makes no difference which operand wins, except for
 * the sign of a 0. */
static bool rewrite_is_sure(const rewrite *r, int32_t node) {
    const fxa__node *n = &r->p->nodes[node];
    if (n->op == FXA_OP_CONST) return n->type == FXA_FLOAT && isfinite(n->f) && n->f != 0;
    return n->op == FXA_OP_PARAM && r->plain;
}

/* Returns which operand of a product (or the divisor of a quotient) is uniform while the other varies; -1 = none. */
static int rewrite_factor_at(const rewrite *r, const fxa__node *n) {
    if (n->type != FXA_FLOAT || !(rewrite_is_product(n) || rewrite_is_quotient(n))) return -1;
    for (int k = rewrite_is_quotient(n); k < 2; k++) {
        if (rewrite_zero_wins(n) && k == 0 && !rewrite_is_sure(r, n->arg[k])) continue;
        if (rewrite_stays(r, n->arg[k]) && !rewrite_stays(r, n->arg[1 - k])) return k;
    }
    return -1;
}

static fxa_value rewrite_operation(const rewrite *r, const fxa__node *n) {
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

/* Rewrites a product or quotient in which a 0 wins over a uniform operand of any value: the pair tests x, and the
 * uniform operand is tested once per head. */
static void rewrite_product_zero(rewrite *r, int32_t i, int at) {
    const fxa__node *n = &r->p->nodes[i];
    int32_t moving = n->arg[1 - at];
    fxa_value c = r->map[n->arg[at]];
    bool had = r->wins[moving] && !r->signs[i]; /* a product that is -0 becomes 0 when multiplied again */
    r->wins[i] = true;
    if (rewrite_is_quotient(n)) c = fxa_builder_op2(r->b, FXA_OP_DIV, fxa_builder_float(r->b, 1), c);
    r->base[i] = had ? r->base[moving] : r->map[moving];
    r->factor[i] = had ? fxa_builder_op2(r->b, FXA_OP_MULZ, r->factor[moving], c) : c;
    r->map[i] = fxa_builder_op2(r->b, FXA_OP_MULZ, r->base[i], r->factor[i]);
}

/* Rewrites other products: the factor of the varying operand joins the uniform one. A factor that is divided by again
 * cancels if it is finite and not 0. */
static void rewrite_product(rewrite *r, int32_t i, int at) {
    const fxa__node *n = &r->p->nodes[i];
    int32_t moving = n->arg[1 - at];
    fxa_value c = r->map[n->arg[at]];
    bool had = r->factor[moving] >= 0 && !r->wins[moving], sure = rewrite_is_sure(r, n->arg[at]);
    r->base[i] = had ? r->base[moving] : r->map[moving];
    if (had && rewrite_is_quotient(n) && r->factor[moving] == c && sure) {
        r->map[i] = r->base[i];
        r->base[i] = -1;
        return;
    }
    if (rewrite_is_quotient(n)) c = fxa_builder_op2(r->b, FXA_OP_DIV, fxa_builder_float(r->b, 1), c);
    r->factor[i] = had ? fxa_builder_op2(r->b, FXA_OP_MUL, r->factor[moving], c) : c;
    r->map[i] = fxa_builder_op2(r->b, FXA_OP_MUL, r->base[i], r->factor[i]);
}

/* Returns which operand of the product in (c * x) / c is c, for any c; -1 = no such quotient. Derivatives of soft caps
 * have this form. An exact 0 wins in both operations or in neither; divz turns a product of -0 into 0. */
static int rewrite_cancels_at(const rewrite *r, int32_t i) {
    const fxa__node *n = &r->p->nodes[i];
    if (n->type != FXA_FLOAT || !rewrite_is_quotient(n) || !rewrite_stays(r, n->arg[1])) return -1;
    if (rewrite_zero_wins(n) && r->signs[i]) return -1;
    const fxa__node *m = &r->p->nodes[n->arg[0]];
    if (!rewrite_is_product(m) || rewrite_zero_wins(m) != rewrite_zero_wins(n)) return -1;
    for (int k = 0; k < 2; k++)
        if (m->arg[k] == n->arg[1] && !rewrite_stays(r, m->arg[1 - k])) return k;
    return -1;
}

/* Returns (c / c) * x. The quotient is 1, or it is 0 or NaN where the entire expression is, and no pair divides. */
static fxa_value rewrite_cancelled(const rewrite *r, const fxa__node *n, int at) {
    const fxa__node *m = &r->p->nodes[n->arg[0]];
    fxa_value arg[2] = {r->map[m->arg[0]], r->map[m->arg[1]]};
    arg[at] = fxa_builder_op2(r->b, (fxa_op)n->op, r->map[n->arg[1]], r->map[n->arg[1]]);
    return fxa_builder_op2(r->b, (fxa_op)m->op, arg[0], arg[1]);
}

static void rewrite_node(rewrite *r, int32_t i) {
    const fxa__node *n = &r->p->nodes[i];
    int at = rewrite_factor_at(r, n), cancelled;
    bool wins = at >= 0 && rewrite_zero_wins(n) && (!rewrite_is_sure(r, n->arg[at]) || (at == 1 && r->signs[i]));
    cancelled = at < 0 || wins ? rewrite_cancels_at(r, i) : -1;
    r->factor[i] = r->base[i] = -1;
    r->wins[i] = false;
    if (n->op == FXA_OP_WITH_GRAD) { /* its value: derivatives were taken before */
        r->map[i] = r->map[n->arg[0]];
        r->factor[i] = r->factor[n->arg[0]], r->base[i] = r->base[n->arg[0]], r->wins[i] = r->wins[n->arg[0]];
        return;
    }
    if (n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE) {
        r->base[i] = fxa_builder_input(r->b, FXA_INPUT_SCORE);
        r->factor[i] = r->scale;
        r->map[i] = fxa_builder_op2(r->b, FXA_OP_MUL, r->base[i], r->scale);
    } else if (cancelled >= 0) {
        r->map[i] = rewrite_cancelled(r, n, cancelled);
    } else if (wins) {
        rewrite_product_zero(r, i, at);
    } else if (at >= 0) {
        rewrite_product(r, i, at);
    } else {
        r->map[i] = rewrite_operation(r, n);
    }
}

/* Writes a name for the scale that the program does not use. */
static void rewrite_name(const fxa_program *p, char name[32]) {
    (void)snprintf(name, 32, "scale");
    for (int i = 0; fxa_program_param_find(p, name) >= 0 || fxa_program_tensor_find(p, name) >= 0; i++)
        (void)snprintf(name, 32, "scale_%d", i);
}

static void rewrite_declare(rewrite *r, const char *scale) {
    for (int32_t i = 0; i < r->p->n_params; i++)
        (void)fxa_builder_param(r->b, r->p->params[i].name, (fxa_type)r->p->params[i].type);
    for (int32_t i = 0; i < r->p->n_tensors; i++) {
        const fxa__decl *t = &r->p->tensors[i];
        r->tensor[i] = fxa_builder_tensor(r->b, t->name, (fxa_dtype)t->dtype, t->rank);
    }
    r->scale = fxa_builder_param(r->b, scale, FXA_FLOAT);
}

static fxa_status rewrite_build(fxa__host *host, rewrite *r, const char *scale, fxa_program **out, fxa_error *err) {
    FXA_TRY(fxa__builder_new(host, (fxa_program_kind)r->p->kind, &r->b, err));
    fxa__builder_set_limit(r->b, 4 * FXA__MAX_DERIVED_NODES);
    rewrite_declare(r, scale);
    fxa__lower_depend(r->p, NULL, r->sets);
    fxa__lower_zero_signs(r->p, r->signs);
    for (int32_t i = 0; i < r->p->n_nodes && !fxa__builder_failed(r->b); i++) rewrite_node(r, i);
    if (!fxa__builder_failed(r->b)) fxa__lower_copy_outputs(r->b, r->p, r->map, UINT32_MAX);
    fxa_status status = fxa_builder_finish(r->b, out, err);
    fxa_builder_destroy(r->b);
    return status;
}

/* Sets the source of each param of the result, by name, because params are sorted by name. Without a user backward, a
 * name that looks like one of its params is an ordinary name. */
static void rewrite_sources(const fxa__parameterized *lifted, const fxa__cuda_config *config, const char *scale,
                            fxa__cuda_program *out) {
    for (int32_t i = 0; i < out->program->n_params; i++) {
        const char *name = out->program->params[i].name;
        int32_t at = fxa_program_param_find(lifted->program, name),
                own = config->bprop ? fxa__cuda_bprop_param(name) : -1;
        if (strcmp(name, scale) == 0)
            out->params[i] = (fxa__cuda_param){FXA__CUDA_SCALE, 0};
        else if (lifted->from[at] < 0)
            out->params[i] = (fxa__cuda_param){lifted->from[at], lifted->value[at]};
        else
            out->params[i] = (fxa__cuda_param){
                own >= 0 ? FXA__CUDA_BPROP - own : (int32_t)fxa_program_param_find(config->program, name), 0};
    }
}

/* Returns the program with dscore = 1, so that its outputs are derivatives of the new score. A user backward keeps its
 * dscore. */
static fxa_status rewrite_slopes(fxa__host *host, const fxa_program *p, const fxa_program *own, fxa_program **out,
                                 fxa_error *err) {
    size_t n = (size_t)(own && own->n_nodes > p->n_nodes ? own->n_nodes : p->n_nodes);
    uint32_t kinds = own ? ~(1u << FXA__OUT_DSCORE) : UINT32_MAX;
    fxa_builder *b = NULL;
    fxa_value *given = fxa__alloc_array(host, 2 * n, sizeof *given);
    fxa_status status = given ? fxa__builder_new(host, (fxa_program_kind)p->kind, &b, err)
                              : fxa__fail_memory(err, "a program for CUDA kernels");
    if (status == FXA_OK) {
        fxa__builder_set_limit(b, 4 * FXA__MAX_DERIVED_NODES);
        fxa_value one = fxa_builder_float(b, 1);
        for (int32_t i = 0; i < p->n_nodes; i++)
            given[i] = fxa__node_input(&p->nodes[i]) == 1u << FXA_INPUT_DSCORE ? one : -1;
        if (fxa__builder_import_with(b, p, given, given + n)) fxa__lower_copy_outputs(b, p, given + n, kinds);
        if (own && fxa__builder_import(b, own, given))
            fxa_builder_set_dscore(b, given[fxa__program_output(own, FXA__OUT_DSCORE)]);
        status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(host, given, 2 * n * sizeof *given);
    return status;
}

static fxa_status rewrite_lifted(fxa__host *host, const fxa__parameterized *lifted, const fxa__cuda_config *config,
                                 fxa__cuda_program *out, fxa_error *err) {
    size_t n = (size_t)lifted->program->n_nodes;
    rewrite r = {.p = lifted->program, .plain = config->finite_factors};
    char scale[32];
    fxa_status status;
    r.sets = fxa__alloc_array(host, n, sizeof *r.sets);
    r.map = fxa__alloc_array(host, 3 * n, sizeof *r.map);
    r.factor = r.map ? r.map + n : NULL;
    r.base = r.map ? r.map + 2 * n : NULL;
    r.wins = fxa__alloc(host, 2 * n);
    r.signs = r.wins ? r.wins + n : NULL;
    rewrite_name(lifted->program, scale);
    if (!r.sets || !r.map || !r.wins)
        status = fxa__fail_memory(err, "a program for CUDA kernels");
    else
        status = rewrite_build(host, &r, scale, &out->program, err);
    if (status == FXA_OK) rewrite_sources(lifted, config, scale, out);
    fxa__free(host, r.sets, n * sizeof *r.sets);
    fxa__free(host, r.map, 3 * n * sizeof *r.map);
    fxa__free(host, r.wins, 2 * n);
    return status;
}

static int32_t rewrite_count(const fxa_program *p, uint8_t type) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_params; i++) n += p->params[i].type == type;
    return n;
}

/* Makes constants params, as far as kernels have room besides the scale; others stay in the text. Constants of the
 * score come first, so both passes have the same ones, and sums in the same order. */
static fxa_status rewrite_lift(fxa__host *host, fxa_program *p, fxa__parameterized *out, fxa_error *err) {
    int32_t floats = rewrite_count(p, FXA_FLOAT), ints = rewrite_count(p, FXA_INT);
    if (floats >= FXA_CUDA_SCALARS || ints > FXA_CUDA_SCALARS)
        return fxa__fail(err, FXA_E_UNSUPPORTED,
                         "the program has %d float and %d int params; CUDA kernels take %d and %d", (int)floats,
                         (int)ints, FXA_CUDA_SCALARS - 1, FXA_CUDA_SCALARS);
    return fxa__lower_parameterize_at_most(host, p, FXA_CUDA_SCALARS - 1 - floats, out, err);
}

fxa_status fxa__cuda_rewrite(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out, fxa_error *err) {
    fxa_program *whole = config->program, *joint = NULL;
    fxa__parameterized lifted = {.program = NULL};
    fxa_status status = FXA_OK;
    if (config->derivative) status = fxa__lower_fuse(host, config->program, config->derivative, true, &joint, err);
    if (config->derivative && status == FXA_OK) status = rewrite_slopes(host, joint, config->bprop, &whole, err);
    if (!config->derivative) fxa_program_retain(whole);
    if (status == FXA_OK && whole->n_tensors > FXA_CUDA_TENSORS)
        status = fxa__fail(err, FXA_E_UNSUPPORTED, "the program captures %d tensors; CUDA kernels take %d",
                           (int)whole->n_tensors, FXA_CUDA_TENSORS);
    if (status == FXA_OK) status = rewrite_lift(host, whole, &lifted, err);
    if (status == FXA_OK) status = rewrite_lifted(host, &lifted, config, out, err);
    fxa_program_destroy(lifted.program);
    if (whole != config->program || !config->derivative) fxa_program_destroy(whole);
    fxa_program_destroy(joint);
    return status;
}
