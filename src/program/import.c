/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies a finished program into a builder, node by node. A copy is the first step of derivatives, of built-in masks,
 * of moving masks out of scores, and of the programs of src/lower.
 */
#include "build.h"

#include "../base/float_state.h"

/* Returns the copy of node n in b. tensor[] maps tensor indices of p to tensor indices of b, map[] maps nodes of p to
 * values of b. */
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

/* Imports p with `score` in place of its input score, and sets *new_score and *mask to the results of p; either pointer
 * may be NULL. Returns FXA_E_MEMORY if memory runs out; other failures set the error of b. */
static fxa_status import_score(fxa_builder *b, const fxa_program *p, fxa_value score, fxa_value *new_score,
                               fxa_value *mask) {
    fxa_value *map = fxa__alloc_array(b->host, 2 * (size_t)p->n_nodes, sizeof *map), *given = map + p->n_nodes;
    if (!map) return FXA_E_MEMORY;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        given[i] = n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE ? score : -1;
    }
    if (fxa__builder_import_with(b, p, given, map)) {
        if (new_score) *new_score = map[fxa__program_output(p, FXA__OUT_SCORE)];
        if (mask) *mask = map[fxa__program_output(p, FXA__OUT_MASK)];
    }
    fxa__free(b->host, map, 2 * (size_t)p->n_nodes * sizeof *map);
    return FXA_OK;
}

void fxa_builder_import(fxa_builder *b, const fxa_program *program, fxa_value score, fxa_value *new_score,
                        fxa_value *mask) {
    FXA__FLOAT_SCOPE;
    if (new_score) *new_score = -1;
    if (mask) *mask = -1;
    if (!fxa__builder_holds(b, score)) return;
    if (!program || fxa_program_get_kind(program) != FXA_PROGRAM_SCORE) {
        (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "%s: accepted is a SCORE program",
                                program ? "a program that is no score program is imported" : "program is NULL");
        return;
    }
    score = fxa__builder_convert(b, score, FXA_FLOAT);
    if (score >= 0 && import_score(b, program, score, new_score, mask) == FXA_E_MEMORY)
        (void)fxa__builder_fail_memory(b);
}
