/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries of a finished program, and its reference count. For a NULL program or an index past the end, queries return
 * zeros.
 */
#include "program.h"

#include <string.h>

void fxa_program_retain(fxa_program *program) {
    if (program) atomic_fetch_add_explicit(&program->refs, 1, memory_order_relaxed);
}

void fxa_program_destroy(fxa_program *program) {
    if (!program || atomic_fetch_sub_explicit(&program->refs, 1, memory_order_acq_rel) != 1) return;
    fxa__host *host = program->host;
    fxa__free(host, program, program->bytes);
    fxa__host_release(host);
}

void fxa_program_hash(const fxa_program *program, uint8_t hash[16]) {
    if (!hash) return;
    if (program)
        memcpy(hash, program->hash, sizeof program->hash);
    else
        memset(hash, 0, sizeof program->hash);
}

fxa_program_kind fxa_program_get_kind(const fxa_program *program) {
    return program ? (fxa_program_kind)program->kind : FXA_PROGRAM_SCORE;
}

size_t fxa_program_node_count(const fxa_program *program) { return program ? (size_t)program->n_nodes : 0; }

size_t fxa_program_param_count(const fxa_program *program) { return program ? (size_t)program->n_params : 0; }

size_t fxa_program_tensor_count(const fxa_program *program) { return program ? (size_t)program->n_tensors : 0; }

fxa_param_info fxa_program_param(const fxa_program *program, size_t index) {
    if (index >= fxa_program_param_count(program)) return (fxa_param_info){0};
    const fxa__decl *d = &program->params[index];
    return (fxa_param_info){.name = d->name, .type = (fxa_type)d->type};
}

int fxa_program_param_default(const fxa_program *program, size_t index, double *value) {
    if (index >= fxa_program_param_count(program) || !program->params[index].has_value) return 0;
    if (value) *value = program->params[index].value;
    return 1;
}

fxa_tensor_info fxa_program_tensor(const fxa_program *program, size_t index) {
    if (index >= fxa_program_tensor_count(program)) return (fxa_tensor_info){0};
    const fxa__decl *d = &program->tensors[index];
    return (fxa_tensor_info){.name = d->name, .dtype = (fxa_dtype)d->dtype, .rank = d->rank};
}

static int32_t query_find(const fxa__decl *list, int32_t n, const char *name) {
    for (int32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return i;
    return -1;
}

int32_t fxa_program_param_find(const fxa_program *program, const char *name) {
    return program && name ? query_find(program->params, program->n_params, name) : -1;
}

int32_t fxa_program_tensor_find(const fxa_program *program, const char *name) {
    return program && name ? query_find(program->tensors, program->n_tensors, name) : -1;
}

int32_t fxa__program_output(const fxa_program *p, uint32_t kind) {
    for (int32_t i = 0; i < p->n_outputs; i++)
        if (p->outputs[i].kind == kind) return p->outputs[i].value;
    return -1;
}

_Static_assert(FXA_INPUT_COUNT <= 16, "a set of inputs has 16 bits");
void fxa__program_inputs(const fxa_program *p, uint16_t *sets) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        uint32_t bits = fxa__node_input(n);
        for (int j = 0; j < n->n_args; j++) bits |= sets[n->arg[j]];
        sets[i] = (uint16_t)bits;
    }
}
