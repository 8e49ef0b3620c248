/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's backward program (bprop) next to the score program. Both become one text, so its params and tensors get
 * names of their own, which sort behind those of the score program. A run finds them by these names (host/arguments.c).
 * Its coordinates are those of the problem.
 */
#include "../cuda.h"

#include <stdio.h>
#include <string.h>

static const char own_prefix[] = "zzzy_own_";

static fxa_value own_operation(fxa_builder *b, const fxa_program *p, const fxa__node *n, const fxa_value *map) {
    fxa_value arg[FXA_MAX_RANK];
    char name[32];
    for (int k = 0; k < n->n_args; k++) arg[k] = map[n->arg[k]];
    (void)snprintf(name, sizeof name, "%s%02d", own_prefix, (int)n->imm);
    switch (n->op) {
    case FXA_OP_CONST:
        if (n->type == FXA_FLOAT) return fxa_builder_float(b, n->f);
        return n->type == FXA_INT ? fxa_builder_int(b, n->imm) : fxa_builder_bool(b, n->imm);
    case FXA_OP_INPUT: return fxa_builder_input(b, (fxa_input)n->imm);
    case FXA_OP_PARAM: return fxa_builder_param(b, name, (fxa_type)n->type);
    case FXA_OP_LOAD: {
        const fxa__decl *t = &p->tensors[n->imm];
        (void)snprintf(name, sizeof name, "%st%02d", own_prefix, (int)n->imm);
        return fxa_builder_load(b, fxa_builder_tensor(b, name, (fxa_dtype)t->dtype, t->rank), arg, n->n_args);
    }
    default: return fxa_builder_op(b, (fxa_op)n->op, arg, n->n_args);
    }
}

static fxa_status own_rename(fxa__host *host, const fxa_program *p, fxa_program **out, fxa_error *err) {
    size_t n = (size_t)p->n_nodes;
    fxa_builder *b = NULL;
    fxa_value *map = fxa__alloc_array(host, n, sizeof *map);
    fxa_status status = map ? fxa__builder_new(host, FXA_PROGRAM_BPROP, &b, err)
                            : fxa__fail_memory(err, "a backward program of the caller's");
    if (status == FXA_OK) {
        fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
        for (int32_t i = 0; i < p->n_nodes && !fxa__builder_failed(b); i++)
            map[i] = own_operation(b, p, &p->nodes[i], map);
        if (!fxa__builder_failed(b)) fxa_builder_set_dscore(b, map[fxa__program_output(p, FXA__OUT_DSCORE)]);
        status = fxa_builder_finish(b, out, err);
        fxa_builder_destroy(b);
    }
    fxa__free(host, map, n * sizeof *map);
    return status;
}

/* Returns false if the score program has a name that equals one of these or sorts behind them. */
static bool own_is_free(const fxa_program *p) {
    for (int32_t i = 0; i < p->n_tensors; i++)
        if (strncmp(p->tensors[i].name, own_prefix, sizeof own_prefix - 1) >= 0) return false;
    for (int32_t i = 0; i < p->n_params; i++)
        if (strncmp(p->params[i].name, own_prefix, sizeof own_prefix - 1) == 0) return false;
    return true;
}

fxa_status fxa__cuda_user_backward_make(const fxa__problem *p, fxa_program **out, fxa_error *err) {
    fxa_program *renamed = NULL;
    *out = NULL;
    if (p->in.pass != FXA_BACKWARD || !p->in.bprop) return FXA_OK;
    if (!own_is_free(p->program))
        return fxa__fail(err, FXA_E_UNSUPPORTED, "beside bprop no param or tensor may be called %s or sort after it",
                         own_prefix);
    FXA_TRY(own_rename(p->host, p->bprop, &renamed, err));
    fxa_status status = fxa__cuda_coordinates_substitute(p, renamed, out, err);
    fxa_program_destroy(renamed);
    return status;
}

static int32_t own_number(const char *name, const char *format) {
    int number;
    if (strncmp(name, own_prefix, sizeof own_prefix - 1) != 0) return -1;
    return sscanf(name + sizeof own_prefix - 1, format, &number) == 1 ? number : -1;
}

int32_t fxa__cuda_bprop_param(const char *name) { return own_number(name, "%2d"); }
int32_t fxa__cuda_bprop_tensor(const char *name) { return own_number(name, "t%2d"); }
