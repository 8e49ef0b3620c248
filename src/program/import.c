/* SPDX-License-Identifier: Apache-2.0
 *
 * A finished program inside a new one: its nodes are built again. This is how derivatives, ready masks, lifted masks
 * and what src/lower makes of programs start.
 */
#include "build.h"

static fxa_value import_node(fxa_builder *b, const fxa_program *p, const fxa__node *n, const int32_t *tensor,
                             const fxa_value *map) {
    fxa_value arg[FXA_MAX_RANK];
    for (int i = 0; i < n->n_args; i++) arg[i] = map[n->arg[i]];
    switch (n->op) {
    case FXA_OP_CONST:
        return n->type == FXA_FLOAT ? fxa_builder_float(b, n->f) : fxa__builder_constant(b, (fxa_type)n->type, n->imm);
    case FXA_OP_INPUT: return fxa_builder_input(b, (fxa_input)n->imm);
    case FXA_OP_PARAM: return fxa_builder_param(b, p->params[n->imm].name, (fxa_type)n->type);
    case FXA_OP_LOAD: return fxa_builder_load(b, tensor[n->imm], arg, n->n_args);
    default: return fxa_builder_op(b, (fxa_op)n->op, arg, n->n_args);
    }
}

bool fxa__builder_import(fxa_builder *b, const fxa_program *p, fxa_value *map) {
    return fxa__builder_import_with(b, p, NULL, map);
}

bool fxa__builder_import_with(fxa_builder *b, const fxa_program *p, const fxa_value *given, fxa_value *map) {
    int32_t tensor[FXA_MAX_TENSORS];
    for (int32_t i = 0; i < p->n_params; i++) {
        const fxa__decl *d = &p->params[i];
        (void)fxa_builder_param(b, d->name, (fxa_type)d->type);
        if (d->has_value) fxa_builder_set_default(b, d->name, d->value);
    }
    for (int32_t i = 0; i < p->n_tensors; i++) {
        const fxa__decl *t = &p->tensors[i];
        tensor[i] = fxa_builder_tensor(b, t->name, (fxa_dtype)t->dtype, t->rank);
    }
    for (int32_t i = 0; i < p->n_nodes && !fxa__builder_failed(b); i++)
        map[i] = given && given[i] >= 0 ? given[i] : import_node(b, p, &p->nodes[i], tensor, map);
    return !fxa__builder_failed(b);
}
