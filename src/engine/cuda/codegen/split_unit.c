/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits the new score into a product of two values, which functions of the generated text return: value(), and a
 * factor that depends on params alone, which unit() returns times log2(e). Kernels multiply unit() into the scale of
 * exp2, once per run. They rely on unit() > 0, so a factor that may be <= 0 stays in value().
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../program/range.h"

/* Bounds of the factor of the new score that depends on params alone, at scale 1. Within these bounds, unit() is in the
 * range of f32 for all usual scales. */
#define SPLIT_MIN_FACTOR 1e-18
#define SPLIT_MAX_FACTOR 1e18

bool fxa__cuda_is_run(const cuda_work *w, int32_t node) {
    return fxa__lower_rate(&w->inputs[node]) <= FXA__RATE_RUN && !w->inputs[node].tensors;
}

bool fxa__cuda_factor_is_positive(const fxa__cuda_program *program) {
    double params[FXA_MAX_PARAMS];
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    bool positive = false;
    if (program->computed.factor < 0) return true;
    for (int32_t i = 0; i < program->program->n_params; i++)
        params[i] = program->params[i].source == FXA__CUDA_CONSTANT ? program->params[i].value : 1;
    if (fxa__range_open(&r, &small, program->program, program->computed.factor, &box, params, NULL)) {
        fxa__real x = fxa__range_of(&r, program->computed.factor)->f;
        positive = !x.nan && x.lo >= SPLIT_MIN_FACTOR && x.hi <= SPLIT_MAX_FACTOR;
    }
    fxa__range_close(&r);
    return positive;
}

/* Chooses the nodes of two functions of the generated text: computed.value, which value() returns, and computed.factor,
 * which unit() returns times log2(e). If finite_factors is set and the new score is a product with one operand that
 * depends on params alone, computed.factor is this operand and computed.value the other one. Otherwise computed.value
 * is the new score and computed.factor is -1. */
static void split_score(cuda_work *w) {
    const fxa_program *p = w->c->program;
    fxa__cuda_computed *to = &w->c->computed;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE);
    const fxa__node *n = &p->nodes[score];
    to->value = score;
    to->factor = -1;
    for (int k = 0; w->config.assumed.finite_factors && n->op == FXA_OP_MUL && k < 2; k++) {
        if (!fxa__cuda_is_run(w, n->arg[k]) || fxa__cuda_is_run(w, n->arg[1 - k])) continue;
        to->value = n->arg[1 - k];
        to->factor = n->arg[k];
    }
}

/* Decides which of value(), derivative and mask() the generated text has. */
static void split_functions(cuda_work *w) {
    const fxa_program *p = w->c->program;
    struct FxaTraits *s = &w->c->switches;
    int32_t derivative = fxa__program_output(p, FXA__OUT_DSCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    s->value = !(fxa__node_input(&p->nodes[w->c->computed.value]) & 1u << FXA_INPUT_SCORE);
    s->user_backward = w->config.bprop != NULL;
    s->derivative = derivative >= 0 && !s->user_backward &&
                    (!fxa__cuda_is_number(p, derivative, 1) || fxa__cuda_gradients_read_score(w));
    s->mask = !(p->nodes[mask].op == FXA_OP_CONST && p->nodes[mask].imm);
}

fxa_status fxa__cuda_split_unit(cuda_work *w, fxa_error *err) {
    split_score(w);
    if (w->config.assumed.finite_factors && !fxa__cuda_factor_is_positive(w->c)) {
        w->config.assumed.finite_factors = false;
        FXA_TRY(fxa__cuda_fold_factors(w, err));
        split_score(w);
    }
    FXA__ASSERT(w->c->computed.factor < 0 || w->config.assumed.finite_factors);
    split_functions(w);
    return FXA_OK;
}
