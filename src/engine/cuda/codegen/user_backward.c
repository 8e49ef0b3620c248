/* SPDX-License-Identifier: Apache-2.0
 *
 * Prepares the caller's backward program (bprop). Backward program and score program become one text, so the params and
 * tensors of the backward program get names that the score program does not declare (codegen/added_names.c). Inputs q,
 * k, ... and lengths are replaced by the coordinates and lengths of the problem (codegen/coordinates.c).
 */
#include "passes.h"

static fxa_value bprop_operation(fxa_builder *b, const cuda_added *names, const fxa_program *p, const fxa__node *n,
                                 const fxa_value *map) {
    fxa_value arg[FXA_MAX_RANK];
    for (int k = 0; k < n->n_args; k++) arg[k] = map[n->arg[k]];
    switch (n->op) {
    case FXA_OP_CONST:
        if (n->type == FXA_FLOAT) return fxa_builder_float(b, n->f);
        return n->type == FXA_INT ? fxa_builder_int(b, n->imm) : fxa_builder_bool(b, n->imm);
    case FXA_OP_INPUT: return fxa_builder_input(b, (fxa_input)n->imm);
    case FXA_OP_PARAM: return fxa_builder_param(b, names->bprop_param[n->imm], (fxa_type)n->type);
    case FXA_OP_LOAD: {
        const fxa__decl *t = &p->tensors[n->imm];
        int32_t tensor = fxa_builder_tensor(b, names->bprop_tensor[n->imm], (fxa_dtype)t->dtype, t->rank);
        return fxa_builder_load(b, tensor, arg, n->n_args);
    }
    default: return fxa_builder_op(b, (fxa_op)n->op, arg, n->n_args);
    }
}

/* Sets *out to the backward program with names that the score program does not declare. */
static fxa_status bprop_rename(const cuda_work *w, fxa_program **out, fxa_error *err) {
    const fxa_program *p = w->problem->bprop;
    size_t n = (size_t)p->n_nodes;
    fxa_builder *b = NULL;
    fxa_value *map = fxa__alloc_array(w->host, n, sizeof *map);
    fxa_status status = map ? fxa__builder_new(w->host, FXA_PROGRAM_BPROP, &b, err)
                            : fxa__fail_memory(err, "a backward program of the caller's");
    if (status == FXA_OK) {
        fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
        for (int32_t i = 0; i < p->n_nodes && !fxa__builder_failed(b); i++)
            map[i] = bprop_operation(b, &w->added, p, &p->nodes[i], map);
        if (!fxa__builder_failed(b)) fxa_builder_set_dscore(b, map[fxa__program_output(p, FXA__OUT_DSCORE)]);
        status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(w->host, map, n * sizeof *map);
    return status;
}

fxa_status fxa__cuda_prepare_user_backward(cuda_work *w, fxa_error *err) {
    fxa_program *renamed = NULL;
    if (!w->backward || !w->problem->in.bprop) return FXA_OK;
    FXA_TRY(bprop_rename(w, &renamed, err));
    fxa_status status = fxa__cuda_coordinates_apply(w, renamed, &w->config.bprop, err);
    fxa_program_destroy(renamed);
    return status;
}
