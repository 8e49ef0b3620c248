/* SPDX-License-Identifier: Apache-2.0
 *
 * Generates the text of a problem's score program: sixteen passes in a fixed order, each in a file named by what it
 * does. codegen/passes.h has the contract of each pass and the state that they share.
 */
#include "passes.h"

#include "../../../base/invariant.h"

/* What passes produce: bits of cuda_work.done. */
enum {
    COORDINATES = 1 << 0,  /* the score program reads coordinates of the problem */
    MASK_LIFTED = 1 << 1,  /* the score program's score contains no mask */
    SCORE = 1 << 2,        /* the score program's mask does not read the score */
    BPROP = 1 << 3,        /* the caller's backward program, with names that the score program does not declare */
    DERIVATIVE = 1 << 4,   /* derivative of the score program; NULL in a forward */
    ASSUMPTIONS = 1 << 5,  /* what the text may assume of the problem */
    JOINED = 1 << 6,       /* score, mask and gradients in one program; where its params and tensors come from */
    PROGRAM = 1 << 7,      /* the final program; what its nodes depend on, and bounds of its ints */
    UNIT = 1 << 8,         /* nodes that value() and unit() return: the score, and its factor that depends on params */
    OPERANDS = 1 << 9,     /* what value() and mask() read for a pair (q, k) besides q, k and the score */
    BOUNDS = 1 << 10,      /* bounds of value(), of the derivative and of indices */
    GRADIENTS = 1 << 11,   /* how each requested gradient is summed */
    FAST_PATHS = 1 << 12,  /* conditions that uniform_mask() tests; tanh that softcap() computes */
    HOST_VALUES = 1 << 13, /* floats that the host computes for each run */
    FUNCTIONS = 1 << 14,   /* nodes that each function of the text needs; which functions are not inlined */
    TEXT = 1 << 15         /* the generated text */
};

static const struct generate_pass {
    fxa_status (*run)(cuda_work *w, fxa_error *err);
    uint32_t consumes, produces;
} generate_passes[] = {
    {fxa__cuda_substitute_coordinates, 0, COORDINATES},
    {fxa__cuda_lift_score_masks, COORDINATES, MASK_LIFTED},
    {fxa__cuda_move_mask_to_score, MASK_LIFTED, SCORE},
    {fxa__cuda_prepare_user_backward, COORDINATES, BPROP},
    {fxa__cuda_derive, SCORE, DERIVATIVE},
    {fxa__cuda_find_assumptions, SCORE | BPROP | DERIVATIVE, ASSUMPTIONS},
    {fxa__cuda_join_and_scale, SCORE | BPROP | DERIVATIVE, JOINED},
    {fxa__cuda_fold_factors, JOINED | ASSUMPTIONS, PROGRAM},
    {fxa__cuda_split_unit, PROGRAM, UNIT},
    {fxa__cuda_place_operands, UNIT | ASSUMPTIONS, OPERANDS},
    {fxa__cuda_bound_values, UNIT | OPERANDS, BOUNDS},
    {fxa__cuda_place_gradients, UNIT | OPERANDS, GRADIENTS},
    {fxa__cuda_choose_fast_paths, OPERANDS, FAST_PATHS},
    {fxa__cuda_choose_host_values, UNIT | BOUNDS | FAST_PATHS, HOST_VALUES},
    {fxa__cuda_choose_out_of_line, OPERANDS | BOUNDS | GRADIENTS | FAST_PATHS | HOST_VALUES, FUNCTIONS},
    {fxa__cuda_write_text, BOUNDS | GRADIENTS | HOST_VALUES | FUNCTIONS, TEXT},
};
enum { GENERATE_PASSES = sizeof generate_passes / sizeof *generate_passes, GENERATE_FROM_CONFIG = 6 };

/* Asserts that the switches of the text require and exclude each other as the macros in common/program_interface.cuh
 * do. */
static void generate_check_switches(const cuda_work *w) {
    const struct FxaTraits *s = &w->c->switches;
    bool of_value = s->value || s->derivative || s->user_backward, added = s->grad_sums || s->grad_scatter;
    FXA__ASSERT(w->backward || !(s->derivative || s->user_backward || added || s->grad_diagonal || s->grad_dense));
    FXA__ASSERT(!s->derivative || !(s->user_backward || s->grad_diagonal || s->grad_dense));
    FXA__ASSERT(!s->user_backward || (!s->grad_diagonal && !s->softcap));
    FXA__ASSERT(!s->bounded || s->value);
    FXA__ASSERT(!s->softcap || (s->value && !w->config.scalars_in_memory));
    FXA__ASSERT(!s->softcap_has_unit || (s->softcap && !w->backward));
    FXA__ASSERT(!(s->diagonal || s->dense) || of_value);
    FXA__ASSERT(!s->uniform_operands || (s->mask && s->operands));
    FXA__ASSERT(!s->operands || s->pack_operands);
    FXA__ASSERT((!s->grad_diagonal || s->diagonal) && (!s->grad_dense || s->dense));
    FXA__ASSERT(!s->grad_diagonal_exact || s->grad_diagonal);
    FXA__ASSERT(!s->grad_exact || added || s->grad_diagonal);
    FXA__ASSERT(!(s->out_of_line & 1) || s->value || s->derivative);
    FXA__ASSERT(!(s->out_of_line & 2) || s->mask);
    FXA__ASSERT(!(s->out_of_line & 4) || added || s->user_backward);
}

static fxa_status generate_run(cuda_work *w, int first, fxa_error *err) {
    for (int i = 0; i < first; i++) w->done |= generate_passes[i].produces;
    for (int i = first; i < GENERATE_PASSES; i++) {
        const struct generate_pass *pass = &generate_passes[i];
        FXA__ASSERT((w->done & pass->consumes) == pass->consumes && !(w->done & pass->produces));
        FXA_TRY(pass->run(w, err));
        w->done |= pass->produces;
    }
    generate_check_switches(w);
    w->c->assumed = w->config.assumed;
    return FXA_OK;
}

static void generate_free(cuda_work *w) {
    fxa__cuda_analyses_free(w);
    fxa_program_destroy(w->joined);
    fxa_program_destroy(w->config.program);
    fxa_program_destroy(w->config.derivative);
    fxa_program_destroy(w->config.bprop);
    if (!w->emit.pairs.p) return;
    fxa__lower_emit_close(&w->emit.pairs);
    fxa__lower_emit_close(&w->emit.gradients);
    fxa__lower_emit_close(&w->emit.tile);
    fxa__lower_emit_close(&w->emit.mask64);
}

/* Initializes the result *out, and returns the initial state of the passes. */
static cuda_work generate_start(fxa__host *host, fxa__cuda_program *out) {
    *out = (fxa__cuda_program){.text = {.host = host}};
    return (cuda_work){.host = host, .c = out, .rounded = -1, .n_conjuncts = -1};
}

fxa_status fxa__cuda_generate(const fxa__problem *p, fxa__cuda_program *out, fxa_error *err) {
    cuda_work w = generate_start(p->host, out);
    w.problem = p;
    w.backward = p->in.pass == FXA_BACKWARD;
    w.config.scalars_in_memory = p->in.flags & FXA_SCALARS_IN_MEMORY;
    if (w.backward) {
        w.config.deterministic = p->in.flags & FXA_DETERMINISTIC;
        w.config.grad_params = p->in.param_grads;
        w.config.grad_tensors = fxa__cuda_tensor_grads(&p->in);
    }
    fxa__cuda_added_names_make(&w);
    fxa_status status = generate_run(&w, 0, err);
    generate_free(&w);
    return status;
}

fxa_status fxa__cuda_program_make(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out,
                                  fxa_error *err) {
    cuda_work w = generate_start(host, out);
    w.config = *config;
    w.backward = config->derivative != NULL;
    if (config->program) fxa_program_retain(config->program);
    if (config->derivative) fxa_program_retain(config->derivative);
    if (config->bprop) fxa_program_retain(config->bprop);
    fxa_status status = generate_run(&w, GENERATE_FROM_CONFIG, err);
    generate_free(&w);
    return status;
}

void fxa__cuda_program_free(fxa__cuda_program *p) {
    fxa_program_destroy(p->program);
    fxa__writer_free(&p->text);
    *p = (fxa__cuda_program){.program = NULL};
}
