/* SPDX-License-Identifier: Apache-2.0
 *
 * The derivative of a score program, by reverse-mode differentiation: one sweep over the nodes in reverse topological
 * order. The result is a program that computes the adjoints, with the nodes of the score program that the adjoints use:
 *
 *     dscore = ...                 gradient of the input score
 *     grad param += ...            gradient of each float param that the new score depends on
 *     grad tensor[index] += ...    gradient of each load of a float tensor that the new score depends on
 *
 * Invariants:
 *   - Adjoints are built only for nodes that depend on the score, a float param or a load of a float tensor.
 *   - If the adjoint of a node is exactly 0, the node adds 0 to the adjoints of its operands (see derive_rules.c).
 *   - The mask has no derivative.
 *   - Size and time are linear in the size of the program.
 */
#include "derive.h"

#include "../base/float_state.h"

typedef struct derive_state {
    const fxa_program *p;
    fxa_builder *b;
    fxa_value *value;   /* [n_nodes] value of b that computes each node of p */
    fxa_value *adjoint; /* [n_nodes] adjoint of each node: sum of the contributions so far; -1 = none */
    bool *wanted;       /* [n_nodes] true = the node depends on the score, a float param or a load of floats */
} derive_state;

/* Returns true for the score, float params and loads of float tensors, the nodes whose gradients are outputs. */
static bool derive_is_leaf(const fxa__node *n) {
    if (n->type != FXA_FLOAT) return false;
    /* An input of type float can only be the score. */
    return n->op == FXA_OP_PARAM || n->op == FXA_OP_LOAD || n->op == FXA_OP_INPUT;
}

static void derive_mark_wanted(derive_state *d) {
    for (int32_t i = 0; i < d->p->n_nodes; i++) {
        const fxa__node *n = &d->p->nodes[i];
        d->wanted[i] = derive_is_leaf(n);
        if (n->type != FXA_FLOAT || !fxa__derive_passes(n->op)) continue;
        for (int32_t a = n->op == FXA_OP_WITH_GRAD; a < n->n_args; a++) /* with_grad: only operand 1 has a gradient */
            d->wanted[i] = d->wanted[i] || d->wanted[n->arg[a]];
    }
}

/* Adds a contribution to the adjoint of a node. */
static void derive_add(derive_state *d, int32_t node, fxa_value contribution) {
    fxa_value *sum = &d->adjoint[node];
    *sum = *sum < 0 ? contribution : fxa_builder_op2(d->b, FXA_OP_ADD, *sum, contribution);
}

/* Propagates the adjoint of a node to its operands. */
static void derive_node(derive_state *d, int32_t node) {
    const fxa__node *n = &d->p->nodes[node];
    fxa__derive_step s = {.b = d->b, .adj = d->adjoint[node], .result = d->value[node]};
    for (int32_t a = 0; a < n->n_args; a++) {
        s.arg[a] = d->value[n->arg[a]];
        s.wanted[a] = d->wanted[n->arg[a]];
        s.out[a] = -1;
    }
    fxa__derive_rule(n->op, &s);
    for (int32_t a = 0; a < n->n_args; a++)
        if (s.out[a] >= 0) derive_add(d, n->arg[a], s.out[a]);
}

/* Adds the gradient of the score, a param or a load to the outputs of the derivative. The adjoint of the node is
 * complete, because the sweep has passed all users of the node. */
static void derive_emit(derive_state *d, int32_t node) {
    const fxa__node *n = &d->p->nodes[node];
    fxa_value adj = d->adjoint[node];
    if (n->op == FXA_OP_INPUT) {
        fxa_builder_set_dscore(d->b, adj);
    } else if (n->op == FXA_OP_PARAM) {
        fxa__builder_grad_param(d->b, d->p->params[n->imm].name, adj);
    } else {
        fxa_value index[FXA_MAX_RANK];
        for (int32_t a = 0; a < n->n_args; a++) index[a] = d->value[n->arg[a]];
        fxa__builder_grad_load(d->b, d->p->tensors[n->imm].name, index, n->n_args, adj);
    }
}

static void derive_sweep(derive_state *d) {
    int32_t score = fxa__program_output(d->p, FXA__OUT_SCORE);
    fxa_builder_set_dscore(d->b, fxa_builder_float(d->b, 0.0)); /* dscore is 0 if the program does not read the score */
    for (int32_t i = 0; i < d->p->n_nodes; i++) d->adjoint[i] = -1;
    if (d->wanted[score]) d->adjoint[score] = fxa_builder_input(d->b, FXA_INPUT_DSCORE);
    for (int32_t i = score; i >= 0; i--) {
        if (d->adjoint[i] < 0) continue;
        if (derive_is_leaf(&d->p->nodes[i]))
            derive_emit(d, i);
        else
            derive_node(d, i);
    }
}

fxa_status fxa_program_derivative(const fxa_program *program, fxa_program **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (out) *out = NULL;
    if (!program || !out)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_program_derivative: %s is NULL", program ? "out" : "program");
    if (program->kind != FXA_PROGRAM_SCORE)
        return fxa__fail(err, FXA_E_ARGUMENT, "only a score program has a derivative; this is a %s program",
                         program->kind == FXA_PROGRAM_BPROP ? "bprop" : "derivative");
    fxa__host *host = program->host;
    size_t n = (size_t)program->n_nodes;
    derive_state d = {.p = program};
    d.value = fxa__alloc_array(host, n, sizeof *d.value);
    d.adjoint = fxa__alloc_array(host, n, sizeof *d.adjoint);
    d.wanted = fxa__alloc_array(host, n, sizeof *d.wanted);
    fxa_status status = FXA_OK;
    if (!d.value || !d.adjoint || !d.wanted) {
        status = fxa__fail_memory(err, "a derivative");
        goto done;
    }
    status = fxa__builder_new(host, FXA_PROGRAM_DERIVATIVE, &d.b, err);
    if (status != FXA_OK) goto done;
    fxa__builder_set_limit(d.b, FXA__MAX_DERIVED_NODES);
    if (fxa__builder_import(d.b, program, d.value)) {
        derive_mark_wanted(&d);
        derive_sweep(&d);
    }
    status = fxa_builder_finish(d.b, out, err);
done:
    fxa_builder_destroy(d.b);
    fxa__free(host, d.value, n * sizeof *d.value);
    fxa__free(host, d.adjoint, n * sizeof *d.adjoint);
    fxa__free(host, d.wanted, n * sizeof *d.wanted);
    return status;
}
