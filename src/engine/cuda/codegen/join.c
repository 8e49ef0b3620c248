/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins the score program and its derivative, or the caller's backward program, into one program. In the joined program
 * dscore is 1, so that outputs are derivatives of the new score; constants are params, as many as kernels take; and the
 * score is the product of Q and K times the scale, a param. Records where a run finds each param and tensor.
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../lower/copy_outputs.h"
#include "../../../lower/fuse.h"
#include "../../../lower/parameterize.h"

#include <string.h>

fxa_status fxa__cuda_derive(cuda_work *w, fxa_error *err) {
    return w->backward ? fxa_program_derivative(w->config.program, &w->config.derivative, err) : FXA_OK;
}

/* Sets *out to a copy of p with one input replaced:
 * - scale = NULL: dscore by 1, so that outputs are derivatives of the new score
 * - else: the score, which is the product of Q and K, by the score times the param named `scale`
 * bprop: the caller's backward program, whose output dscore replaces that of p, and whose input dscore is not
 * replaced; NULL = none. */
static fxa_status join_substitute(fxa__host *host, const fxa_program *p, const char *scale, const fxa_program *bprop,
                                  fxa_program **out, fxa_error *err) {
    size_t n = (size_t)(bprop && bprop->n_nodes > p->n_nodes ? bprop->n_nodes : p->n_nodes);
    uint32_t kinds = bprop ? ~(1u << FXA__OUT_DSCORE) : UINT32_MAX;
    fxa_input input = scale ? FXA_INPUT_SCORE : FXA_INPUT_DSCORE;
    fxa_builder *b = NULL;
    fxa_value *given = fxa__alloc_array(host, 2 * n, sizeof *given);
    fxa_status status = given ? fxa__builder_new(host, (fxa_program_kind)p->kind, &b, err)
                              : fxa__fail_memory(err, "a program for CUDA kernels");
    if (status == FXA_OK) {
        fxa__builder_set_limit(b, 4 * FXA__MAX_DERIVED_NODES);
        fxa_value by = scale ? fxa_builder_input(b, input) : fxa_builder_float(b, 1);
        if (scale) by = fxa_builder_op2(b, FXA_OP_MUL, by, fxa_builder_param(b, scale, FXA_FLOAT));
        for (int32_t i = 0; i < p->n_nodes; i++) given[i] = fxa__node_input(&p->nodes[i]) == 1u << input ? by : -1;
        if (fxa__builder_import_with(b, p, given, given + n)) fxa__lower_copy_outputs(b, p, given + n, kinds);
        if (bprop && fxa__builder_import(b, bprop, given))
            fxa_builder_set_dscore(b, given[fxa__program_output(bprop, FXA__OUT_DSCORE)]);
        status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(host, given, 2 * n * sizeof *given);
    return status;
}

static int32_t join_count(const fxa_program *p, uint8_t type) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_params; i++) n += p->params[i].type == type;
    return n;
}

/* Turns constants into params, as many as kernels take besides the scale; further constants stay in the text. Constants
 * of the score come first, so forward and backward turn the same constants into params, and compute sums in the same
 * order. */
static fxa_status join_parameterize(fxa__host *host, fxa_program *p, fxa__parameterized *out, fxa_error *err) {
    int32_t floats = join_count(p, FXA_FLOAT), ints = join_count(p, FXA_INT);
    if (floats >= FXA_CUDA_SCALARS || ints > FXA_CUDA_SCALARS)
        return fxa__fail(err, FXA_E_UNSUPPORTED,
                         "the program has %d float and %d int params; CUDA kernels take %d and %d", (int)floats,
                         (int)ints, FXA_CUDA_SCALARS - 1, FXA_CUDA_SCALARS);
    return fxa__lower_parameterize_at_most(host, p, FXA_CUDA_SCALARS - 1 - floats, out, err);
}

/* Records the source of each param and tensor of the joined program. Finds params and tensors by name, because programs
 * sort them by name. */
static void join_sources(cuda_work *w, const fxa__parameterized *lifted, const char *scale) {
    for (int32_t i = 0; i < w->joined->n_params; i++) {
        const char *name = w->joined->params[i].name;
        int32_t at = fxa_program_param_find(lifted->program, name);
        FXA__ASSERT(at >= 0 || strcmp(name, scale) == 0);
        if (strcmp(name, scale) == 0)
            w->c->params[i] = (fxa__cuda_param){FXA__CUDA_SCALE, 0};
        else if (lifted->from[at] < 0)
            w->c->params[i] = (fxa__cuda_param){FXA__CUDA_CONSTANT, lifted->value[at]};
        else
            w->c->params[i] = (fxa__cuda_param){fxa__cuda_param_source(w, name), 0};
        /* fxa__cuda_param_source() found the name: for an unknown name it returns -1, which is FXA__CUDA_CONSTANT. */
        FXA__ASSERT(w->c->params[i].source != FXA__CUDA_CONSTANT || lifted->from[at] < 0);
    }
    for (int32_t i = 0; i < w->joined->n_tensors; i++) {
        w->c->source[i] = fxa__cuda_tensor_source(w, w->joined->tensors[i].name);
        FXA__ASSERT(w->c->source[i].index >= 0);
    }
}

/* Sets *out to one program with the outputs of forward and backward; if the text is of a forward, to config.program
 * with one more reference. The caller destroys *out in both cases. */
static fxa_status join_passes(const cuda_work *w, fxa_program **out, fxa_error *err) {
    fxa_program *fused = NULL;
    if (!w->backward) {
        fxa_program_retain(w->config.program);
        *out = w->config.program;
        return FXA_OK;
    }
    FXA_TRY(fxa__lower_fuse(w->host, w->config.program, w->config.derivative, true, &fused, err));
    fxa_status status = join_substitute(w->host, fused, NULL, w->config.bprop, out, err);
    fxa_program_destroy(fused);
    return status;
}

fxa_status fxa__cuda_join_and_scale(cuda_work *w, fxa_error *err) {
    fxa_program *all = NULL;
    fxa__parameterized lifted = {.program = NULL};
    char scale[CUDA_NAME];
    FXA_TRY(join_passes(w, &all, err));
    fxa_status status = FXA_OK;
    if (all->n_tensors > FXA_CUDA_TENSORS)
        status = fxa__fail(err, FXA_E_UNSUPPORTED, "the program captures %d tensors; CUDA kernels take %d",
                           (int)all->n_tensors, FXA_CUDA_TENSORS);
    if (status == FXA_OK) status = join_parameterize(w->host, all, &lifted, err);
    if (status == FXA_OK) {
        fxa__cuda_unused_name(lifted.program, "scale", scale);
        status = join_substitute(w->host, lifted.program, scale, NULL, &w->joined, err);
    }
    FXA__ASSERT(status != FXA_OK || join_count(w->joined, FXA_FLOAT) <= FXA_CUDA_SCALARS);
    if (status == FXA_OK) join_sources(w, &lifted, scale);
    fxa_program_destroy(lifted.program);
    fxa_program_destroy(all);
    return status;
}
