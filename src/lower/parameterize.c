/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns constants into params; see parameterize.h. Programs that differ only in constants must become the same program,
 * so the order of the new params must not depend on the values of the constants. The order of nodes depends on these
 * values, because the builder sorts the operands of commutative operations by hashes of the nodes, and the hash of a
 * constant includes its value. Constants are therefore numbered by a separate walk from the outputs down, which visits
 * the operands of a commutative operation in the order of their shape hashes. The shape hash of a node ignores the
 * values of constants that can become params. If two operands have the same shape hash, either order gives the same
 * program, unless another node uses one of the two operands too. Then programs that differ only in constants may be
 * compiled twice.
 */
#include "parameterize.h"

#include "../base/invariant.h"

#include "copy_outputs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct param_work {
    const fxa_program *p;
    uint8_t *kept;   /* [nodes] 1 = the constant stays a constant */
    uint64_t *shape; /* [nodes] hash of the node's expression without the values of replaceable constants */
    int32_t *number; /* [nodes] index among the new params, for a constant that becomes a param; -1 = none */
    uint8_t *done;   /* [nodes] 1 = param_walk has finished the node */
    int32_t *stack;  /* [nodes] stack of param_walk */
    int32_t n_new, capacity;
} param_work;

/* Returns true for constants that stay constants because code is smaller with them, and for NaN and infinities. */
static bool param_is_simple(double x) {
    static const double simple[] = {0, 1, 2, 0.5, -1, -2};
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (x == simple[i]) return true;
    return !isfinite(x);
}

/* Returns true if the node is a constant that can become a param. */
static bool param_can_replace(const param_work *w, int32_t node) {
    const fxa__node *n = &w->p->nodes[node];
    return n->op == FXA_OP_CONST && n->type == FXA_FLOAT && !w->kept[node];
}

/* Sets w->kept[i] of the constants that stay constants: simple ones, exponents of pow and the nodes whose byte in
 * kept[n_nodes] (NULL = none) is 1. */
static void param_keep(param_work *w, const uint8_t *kept) {
    if (kept) memcpy(w->kept, kept, (size_t)w->p->n_nodes);
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        const fxa__node *n = &w->p->nodes[i];
        if (n->op == FXA_OP_CONST && n->type == FXA_FLOAT && param_is_simple(n->f)) w->kept[i] = 1;
        if (n->op == FXA_OP_POW) w->kept[n->arg[1]] = 1;
    }
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Returns `hash` combined with x. */
static uint64_t param_mix(uint64_t hash, uint64_t x) {
    hash = (hash ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

static bool param_is_commutative(const fxa__node *n) { return fxa__op_info_get(n->op)->flags & FXA__OP_COMM; }

/* Sets w->shape[i] to a hash of node i's expression without the values of the constants that can become params. */
static void param_shapes(param_work *w) {
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        const fxa__node *n = &w->p->nodes[i];
        uint64_t hash = param_mix(n->op, n->type), bits = 0;
        if (!param_can_replace(w, i)) memcpy(&bits, &n->f, sizeof bits);
        hash = param_mix(param_mix(hash, (uint32_t)n->imm), bits);
        bool turned = param_is_commutative(n) && w->shape[n->arg[0]] > w->shape[n->arg[1]];
        FXA__ASSERT(!turned || n->n_args == 2);
        for (int j = 0; j < n->n_args; j++) hash = param_mix(hash, w->shape[n->arg[turned ? 1 - j : j]]);
        w->shape[i] = hash;
    }
}

/* ---- The walk ---------------------------------------------------------------------------------------------------- */

/* Returns the first operand of n that param_walk has not finished; -1 if none. The operands of a commutative operation
 * are taken in the order of their shape hashes. */
static int32_t param_next(const param_work *w, const fxa__node *n) {
    bool turned = param_is_commutative(n) && w->shape[n->arg[0]] > w->shape[n->arg[1]];
    for (int j = 0; j < n->n_args; j++) {
        int32_t arg = n->arg[turned ? 1 - j : j];
        if (!w->done[arg]) return arg;
    }
    return -1;
}

/* Numbers the constants that become params in the expression of node `from`, in post-order. No node is on the stack
 * twice, so the stack never has more elements than the program has nodes. */
static void param_walk(param_work *w, int32_t from) {
    int32_t depth = 0;
    if (!w->done[from]) w->stack[depth++] = from;
    while (depth > 0) {
        int32_t node = w->stack[depth - 1], next = param_next(w, &w->p->nodes[node]);
        if (next >= 0) {
            FXA__ASSERT(next < node && depth < w->p->n_nodes);
            w->stack[depth++] = next;
            continue;
        }
        depth--;
        w->done[node] = 1;
        if (param_can_replace(w, node) && w->n_new < w->capacity) w->number[node] = w->n_new++;
    }
}

/* Sets w->number and w->n_new: numbers the constants that become params, by a walk from every output. */
static void param_number(param_work *w) {
    for (int32_t i = 0; i < w->p->n_nodes; i++) w->number[i] = -1;
    for (int32_t i = 0; i < w->p->n_outputs; i++) {
        const fxa__output *out = &w->p->outputs[i];
        for (int32_t j = 0; j < out->n_index; j++) param_walk(w, out->index[j]);
        param_walk(w, out->value);
    }
}

/* ---- The new program --------------------------------------------------------------------------------------------- */

enum { PARAM_UNDERSCORES = FXA_MAX_NAME - 3, PARAM_NAME = FXA_MAX_NAME + 1 };

/* Writes the name of the new param with index `number`: `underscores` underscores, then "c00", "c01", ... Returns true
 * if the program already declares a param or tensor of this name. */
static bool param_name(const fxa_program *p, int32_t number, int underscores, char name[PARAM_NAME]) {
    memset(name, '_', (size_t)underscores);
    (void)snprintf(name + underscores, (size_t)(PARAM_NAME - underscores), "c%02d", (int)number);
    return fxa_program_param_find(p, name) >= 0 || fxa_program_tensor_find(p, name) >= 0;
}

/* Returns the smallest number of underscores that gives names which the program does not declare; -1 if none does. */
static int param_underscores(const param_work *w) {
    char name[PARAM_NAME];
    for (int underscores = 0; underscores <= PARAM_UNDERSCORES; underscores++) {
        bool taken = false;
        for (int32_t i = 0; i < w->n_new && !taken; i++) taken = param_name(w->p, i, underscores, name);
        if (!taken) return underscores;
    }
    return -1;
}

/* Declares the new params. Sets given[i] to the param that replaces node i if node i is a constant that becomes a
 * param, and to -1 for other nodes. */
static void param_declare(const param_work *w, fxa_builder *b, int underscores, fxa_value *given) {
    char name[PARAM_NAME];
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        given[i] = -1;
        if (w->number[i] < 0) continue;
        (void)param_name(w->p, w->number[i], underscores, name);
        given[i] = fxa_builder_param(b, name, FXA_FLOAT);
    }
}

/* Writes what the new program's params are: out->from, out->value and out->n_hidden. */
static void param_slots(const param_work *w, int underscores, fxa__parameterized *out) {
    char name[PARAM_NAME];
    FXA__ASSERT(out->program->n_params == w->p->n_params + w->n_new);
    for (int32_t i = 0; i < out->program->n_params; i++)
        out->from[i] = fxa_program_param_find(w->p, out->program->params[i].name);
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        if (w->number[i] < 0) continue;
        (void)param_name(w->p, w->number[i], underscores, name);
        int32_t slot = fxa_program_param_find(out->program, name);
        FXA__ASSERT(slot >= 0 && out->from[slot] < 0);
        out->value[slot] = w->p->nodes[i].f;
    }
    out->n_hidden = w->n_new;
}

/* Builds the new program and fills *out. given[n_nodes] and map[n_nodes] are scratch space. */
static fxa_status param_make(fxa__host *host, const param_work *w, int underscores, fxa_value *given, fxa_value *map,
                             fxa__parameterized *out, fxa_error *err) {
    fxa_builder *b = NULL;
    FXA_TRY(fxa__builder_new(host, (fxa_program_kind)w->p->kind, &b, err));
    fxa__builder_set_limit(b, 2 * FXA__MAX_DERIVED_NODES); /* same maximum number of nodes as for fused programs */
    param_declare(w, b, underscores, given);
    if (fxa__builder_import_with(b, w->p, given, map)) fxa__lower_copy_outputs(b, w->p, map, UINT32_MAX);
    fxa_status status = fxa_builder_finish(b, &out->program, err);
    fxa_builder_destroy(b);
    if (status == FXA_OK) param_slots(w, underscores, out);
    return status;
}

/* Turns at most max_params constants into params. The nodes whose byte in kept[n_nodes] (NULL = none) is 1 stay
 * constants. */
static fxa_status param_program(fxa__host *host, const fxa_program *p, const uint8_t *kept, int32_t max_params,
                                fxa__parameterized *out, fxa_error *err) {
    size_t n = (size_t)p->n_nodes;
    param_work w = {.p = p, .capacity = FXA_MAX_PARAMS - p->n_params};
    if (w.capacity > max_params) w.capacity = max_params;
    fxa_value *given = fxa__alloc_array(host, n, sizeof *given), *map = fxa__alloc_array(host, n, sizeof *map);
    w.kept = fxa__alloc(host, n);
    w.done = fxa__alloc(host, n);
    w.shape = fxa__alloc_array(host, n, sizeof *w.shape);
    w.number = fxa__alloc_array(host, n, sizeof *w.number);
    w.stack = fxa__alloc_array(host, n, sizeof *w.stack);
    *out = (fxa__parameterized){.n_hidden = 0};
    fxa_status status = FXA_OK;
    if (!given || !map || !w.kept || !w.done || !w.shape || !w.number || !w.stack) {
        status = fxa__fail_memory(err, "the constants of a program");
        goto end;
    }
    param_keep(&w, kept);
    param_shapes(&w);
    param_number(&w);
    int underscores = param_underscores(&w);
    if (underscores < 0) {
        w.n_new = underscores = 0;
        for (size_t i = 0; i < n; i++) w.number[i] = -1;
    }
    status = param_make(host, &w, underscores, given, map, out, err);
end:
    fxa__free(host, given, n * sizeof *given);
    fxa__free(host, map, n * sizeof *map);
    fxa__free(host, w.kept, n);
    fxa__free(host, w.done, n);
    fxa__free(host, w.shape, n * sizeof *w.shape);
    fxa__free(host, w.number, n * sizeof *w.number);
    fxa__free(host, w.stack, n * sizeof *w.stack);
    return status;
}

fxa_status fxa__lower_parameterize(fxa__host *host, const fxa_program *p, fxa__parameterized *out, fxa_error *err) {
    return param_program(host, p, NULL, FXA_MAX_PARAMS, out, err);
}

fxa_status fxa__lower_parameterize_except(fxa__host *host, const fxa_program *p, const uint8_t *kept,
                                          fxa__parameterized *out, fxa_error *err) {
    return param_program(host, p, kept, FXA_MAX_PARAMS, out, err);
}

fxa_status fxa__lower_parameterize_at_most(fxa__host *host, const fxa_program *p, int32_t max_params,
                                           fxa__parameterized *out, fxa_error *err) {
    return param_program(host, p, NULL, max_params, out, err);
}

void fxa__lower_parameterized_values(const fxa__parameterized *program, const double *given, double *values) {
    for (int32_t i = 0; i < program->program->n_params; i++)
        values[i] = program->from[i] >= 0 ? given[program->from[i]] : program->value[i];
}
