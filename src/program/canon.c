/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_builder_finish: makes the canonical program from a builder's nodes, in one allocation.
 *
 *   outputs   are sorted; missing outputs get their defaults, gradients of one target are summed, zero gradients are
 *             dropped
 *   slots     params and tensors are sorted by name
 *   numbers   are assigned in postorder from the outputs: operands come before users, and nodes that no output uses
 *             are dropped
 *
 * Every order depends on contents only (names, digests), so equal programs get equal arrays and equal hashes.
 */
#include "build.h"

#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <stdlib.h>
#include <string.h>

/* State of one call of fxa_builder_finish. */
typedef struct canon {
    fxa_builder *b;
    /* [n_outputs]; their members slot, value and index are indices in the builder, not in the finished program */
    fxa__output *outputs;
    size_t n_outputs, outputs_capacity;
    fxa__decl params[FXA_MAX_PARAMS], tensors[FXA_MAX_TENSORS]; /* sorted by name */
    /* [index of a param or tensor in the builder] its index in the program */
    int32_t param_slot[FXA_MAX_PARAMS], tensor_slot[FXA_MAX_TENSORS];
    int32_t *number; /* [node of the builder] index of the node in the program; -1 = no output depends on it */
    int32_t *stack;  /* nodes on the path from an output to the current node of the postorder walk */
    int32_t n_numbered;
} canon;

/* ---- Order of params and tensors --------------------------------------------------------------------------------- */

static int canon_decl_order(const void *a, const void *b) {
    return strcmp(((const fxa__decl *)a)->name, ((const fxa__decl *)b)->name);
}

static void canon_sort_slots(const fxa__decl *from, size_t n, fxa__decl *sorted, int32_t *slot) {
    if (n == 0) return;
    memcpy(sorted, from, n * sizeof *from);
    qsort(sorted, n, sizeof *sorted, canon_decl_order);
    for (size_t i = 0; i < n; i++) {
        const fxa__decl *at = bsearch(&from[i], sorted, n, sizeof *sorted, canon_decl_order);
        slot[i] = (int32_t)(at - sorted);
    }
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

/* Appends an output. Returns false if its value is negative (an error) or memory ran out. */
static bool canon_output(canon *c, const fxa__output *output) {
    fxa_builder *b = c->b;
    if (output->value < 0) return false;
    if (!fxa__grow(b->host, &c->outputs, &c->outputs_capacity, c->n_outputs + 1, sizeof *c->outputs)) {
        (void)fxa__builder_fail_memory(b);
        return false;
    }
    c->outputs[c->n_outputs++] = *output;
    return true;
}

/* Compares the targets of two gradients by kind (param or tensor), by name of the param or tensor, and by the indices
 * of a tensor element; returns 0 if the targets are equal. */
static int canon_target_order(const canon *c, const fxa__output *x, const fxa__output *y) {
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    const int32_t *slot = x->kind == FXA__OUT_DPARAM ? c->param_slot : c->tensor_slot;
    if (x->slot != y->slot) return slot[x->slot] < slot[y->slot] ? -1 : 1;
    for (int i = 0; i < x->n_index; i++)
        if (x->index[i] != y->index[i])
            return memcmp(&c->b->digests[x->index[i]], &c->b->digests[y->index[i]], sizeof(fxa__digest));
    return 0;
}

/* Compares two gradients by target, then by the digest of their value, so that the sum of one target's gradients does
 * not depend on the order of the calls. */
static int canon_grad_order(const canon *c, const fxa__output *x, const fxa__output *y) {
    int order = canon_target_order(c, x, y);
    return order ? order : memcmp(&c->b->digests[x->value], &c->b->digests[y->value], sizeof(fxa__digest));
}

/* Sift-down step of a heap sort of gradients. qsort cannot be used, because it does not pass `c` to the comparison. */
static void canon_sink(const canon *c, fxa__output *g, size_t at, size_t n) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && canon_grad_order(c, &g[child], &g[child + 1]) < 0) child++;
        if (canon_grad_order(c, &g[at], &g[child]) >= 0) return;
        fxa__output swap = g[at];
        g[at] = g[child];
        g[child] = swap;
    }
}

static void canon_sort_grads(const canon *c, fxa__output *g, size_t n) {
    for (size_t i = n / 2; i-- > 0;) canon_sink(c, g, i, n);
    for (size_t end = n; end-- > 1;) {
        fxa__output swap = g[0];
        g[0] = g[end];
        g[end] = swap;
        canon_sink(c, g, 0, end);
    }
}

/* Returns true if x is the float constant 0 or -0. */
static bool canon_is_zero(const fxa_builder *b, fxa_value x) {
    return b->nodes[x].op == FXA_OP_CONST && b->nodes[x].f == 0;
}

/* Sorts the gradients, sums the gradients of each target, and appends the nonzero sums. Returns false if the builder
 * failed. */
static bool canon_grads(canon *c) {
    fxa_builder *b = c->b;
    canon_sort_grads(c, b->grads, b->n_grads);
    for (size_t i = 0, next; i < b->n_grads; i = next) {
        fxa__output sum = b->grads[i];
        for (next = i + 1; next < b->n_grads && canon_target_order(c, &sum, &b->grads[next]) == 0; next++) {
            if (canon_is_zero(b, sum.value))
                sum.value = b->grads[next].value;
            else if (!canon_is_zero(b, b->grads[next].value))
                sum.value = fxa_builder_op2(b, FXA_OP_ADD, sum.value, b->grads[next].value);
            if (sum.value < 0) return false;
        }
        if (!canon_is_zero(b, sum.value) && !canon_output(c, &sum)) return false;
    }
    return true;
}

/* Collects all outputs in canonical order. Returns false if the builder failed. */
static bool canon_outputs(canon *c) {
    fxa_builder *b = c->b;
    if (b->kind == FXA_PROGRAM_SCORE || b->kind == FXA__PROGRAM_FUSED) {
        fxa_value score = b->score >= 0 ? b->score : fxa_builder_input(b, FXA_INPUT_SCORE);
        fxa_value mask = b->mask >= 0 ? b->mask : fxa_builder_bool(b, 1);
        if (!canon_output(c, &(fxa__output){.kind = FXA__OUT_SCORE, .value = score}) ||
            !canon_output(c, &(fxa__output){.kind = FXA__OUT_MASK, .value = mask}))
            return false;
    }
    if (b->kind == FXA_PROGRAM_SCORE) return true;
    fxa_value dscore = b->dscore >= 0 ? b->dscore : fxa_builder_input(b, FXA_INPUT_DSCORE);
    return canon_output(c, &(fxa__output){.kind = FXA__OUT_DSCORE, .value = dscore}) && canon_grads(c);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Numbers x and all nodes that x depends on in postorder. A value stays on the stack until all its operands have
 * numbers. A value is on the stack at most once, because the index of an operand is less than that of its user. */
static void canon_number(canon *c, fxa_value x) {
    size_t depth = 0;
    if (c->number[x] < 0) c->stack[depth++] = x;
    while (depth > 0) {
        const fxa__node *n = &c->b->nodes[c->stack[depth - 1]];
        int i = 0;
        while (i < n->n_args && c->number[n->arg[i]] >= 0) i++;
        if (i < n->n_args)
            c->stack[depth++] = n->arg[i];
        else
            c->number[c->stack[--depth]] = c->n_numbered++;
    }
}

/* Assigns numbers (c->number) to the nodes that outputs depend on. Returns false if memory ran out. */
static bool canon_numbers(canon *c) {
    fxa_builder *b = c->b;
    c->number = fxa__alloc_array(b->host, b->n_nodes, sizeof *c->number);
    c->stack = fxa__alloc_array(b->host, b->n_nodes, sizeof *c->stack);
    if (!c->number || !c->stack) {
        (void)fxa__builder_fail_memory(b);
        return false;
    }
    for (size_t i = 0; i < b->n_nodes; i++) c->number[i] = -1;
    for (size_t i = 0; i < c->n_outputs; i++) {
        for (int k = 0; k < c->outputs[i].n_index; k++) canon_number(c, c->outputs[i].index[k]);
        canon_number(c, c->outputs[i].value);
    }
    return true;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static void canon_copy_nodes(const canon *c, fxa__node *nodes) {
    for (size_t i = 0; i < c->b->n_nodes; i++) {
        if (c->number[i] < 0) continue;
        fxa__node n = c->b->nodes[i];
        if (n.op == FXA_OP_PARAM) n.imm = c->param_slot[n.imm];
        if (n.op == FXA_OP_LOAD) n.imm = c->tensor_slot[n.imm];
        for (int k = 0; k < n.n_args; k++) {
            n.arg[k] = c->number[n.arg[k]];
            FXA__ASSERT(0 <= n.arg[k] && n.arg[k] < c->number[i]); /* operands come before users */
        }
        nodes[c->number[i]] = n;
    }
}

static void canon_copy_outputs(const canon *c, fxa__output *outputs) {
    for (size_t i = 0; i < c->n_outputs; i++) {
        fxa__output o = c->outputs[i];
        if (o.kind == FXA__OUT_DPARAM) o.slot = c->param_slot[o.slot];
        if (o.kind == FXA__OUT_DLOAD) o.slot = c->tensor_slot[o.slot];
        for (int k = 0; k < o.n_index; k++) o.index[k] = c->number[o.index[k]];
        o.value = c->number[o.value];
        outputs[i] = o;
    }
}

/* The allocation holds struct, nodes, params, tensors and outputs. In this order every array is aligned. */
_Static_assert(sizeof(fxa__node) % _Alignof(fxa__decl) == 0 && sizeof(fxa__decl) % _Alignof(fxa__output) == 0, "order");
/* Makes the program and returns it. If memory runs out, sets the error of the builder and returns NULL. */
static fxa_program *canon_program(const canon *c) {
    fxa_builder *b = c->b;
    size_t n = (size_t)c->n_numbered, head = (size_t)fxa__round_up(sizeof(fxa_program), 16);
    size_t nodes_at = head, params_at = nodes_at + n * sizeof(fxa__node);
    size_t tensors_at = params_at + b->n_params * sizeof(fxa__decl);
    size_t outputs_at = tensors_at + b->n_tensors * sizeof(fxa__decl);
    size_t bytes = outputs_at + c->n_outputs * sizeof(fxa__output);
    fxa_program *p = fxa__alloc(b->host, bytes);
    if (!p) {
        (void)fxa__builder_fail_memory(b);
        return NULL;
    }
    char *base = (char *)p;
    canon_copy_nodes(c, (fxa__node *)(void *)(base + nodes_at));
    canon_copy_outputs(c, (fxa__output *)(void *)(base + outputs_at));
    memcpy(base + params_at, c->params, b->n_params * sizeof(fxa__decl));
    memcpy(base + tensors_at, c->tensors, b->n_tensors * sizeof(fxa__decl));
    atomic_init(&p->refs, 1);
    p->host = fxa__host_retain(b->host);
    p->bytes = bytes;
    p->kind = b->kind;
    p->n_nodes = c->n_numbered;
    p->n_outputs = (int32_t)c->n_outputs;
    p->n_params = (int32_t)b->n_params;
    p->n_tensors = (int32_t)b->n_tensors;
    p->nodes = (const fxa__node *)(const void *)(base + nodes_at);
    p->outputs = (const fxa__output *)(const void *)(base + outputs_at);
    p->params = (const fxa__decl *)(const void *)(base + params_at);
    p->tensors = (const fxa__decl *)(const void *)(base + tensors_at);
    fxa__digest_program(b, c->params, c->tensors, c->outputs, c->n_outputs, p->hash);
    return p;
}

/* Makes the program of b. Returns NULL if b has failed. */
static fxa_program *canon_make(fxa_builder *b) {
    canon *c = fxa__alloc(b->host, sizeof *c);
    fxa_program *p = NULL;
    if (!c) {
        (void)fxa__builder_fail_memory(b);
        return NULL;
    }
    c->b = b;
    canon_sort_slots(b->params, b->n_params, c->params, c->param_slot);
    canon_sort_slots(b->tensors, b->n_tensors, c->tensors, c->tensor_slot);
    if (canon_outputs(c) && canon_numbers(c)) p = canon_program(c);
    fxa__free(b->host, c->outputs, c->outputs_capacity * sizeof *c->outputs);
    fxa__free(b->host, c->number, b->n_nodes * sizeof *c->number);
    fxa__free(b->host, c->stack, b->n_nodes * sizeof *c->stack);
    fxa__free(b->host, c, sizeof *c);
    return p;
}

fxa_status fxa_builder_finish(fxa_builder *b, fxa_program **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (out) *out = NULL;
    if (!b || !out) return fxa__fail(err, FXA_E_ARGUMENT, "%s is NULL", b ? "the place of the program" : "the builder");
    fxa_program *p = fxa__builder_ready(b) ? canon_make(b) : NULL;
    b->finished = true;
    if (!p) {
        if (err) *err = b->err;
        return b->err.status;
    }
    *out = p;
    return fxa__ok(err);
}
