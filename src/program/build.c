/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder, which makes every program, from text, calls or bytes. This file has the store of distinct nodes and the
 * outputs. declare.c has params and tensors, convert.c the types of operations, simplify.c the folding of operations,
 * and canon.c makes the finished program.
 *
 * The builder stores its first failure: later calls return -1 and fxa_builder_finish reports the failure, so callers
 * can chain calls without checks.
 */
#include "build.h"

#include "../base/float_state.h"
#include "../base/invariant.h"

#include <string.h>

/* ---- Creation, destruction and failures -------------------------------------------------------------------------- */

fxa_status fxa__builder_new(fxa__host *host, fxa_program_kind kind, fxa_builder **out, fxa_error *err) {
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "the place for the new builder is NULL");
    *out = NULL;
    if (!host) return fxa__fail(err, FXA_E_ARGUMENT, "a builder needs a context, not NULL");
    fxa_builder *b = fxa__alloc(host, sizeof *b);
    if (!b) return fxa__fail_memory(err, "a builder");
    b->host = fxa__host_retain(host);
    b->kind = kind;
    b->limit = kind == FXA_PROGRAM_DERIVATIVE ? FXA__MAX_DERIVED_NODES : FXA_MAX_NODES;
    b->score = b->mask = b->dscore = -1;
    *out = b;
    return fxa__ok(err);
}

fxa_status fxa_builder_create(fxa_context *ctx, fxa_program_kind kind, fxa_builder **out, fxa_error *err) {
    if (out) *out = NULL;
    if (out && ctx && (uint32_t)kind > FXA_PROGRAM_DERIVATIVE)
        return fxa__fail(err, FXA_E_ARGUMENT, "program kind %d is none: 0 (score), 1 (bprop), 2 (derivative) are",
                         (int)kind);
    return fxa__builder_new(ctx ? fxa__context_host(ctx) : NULL, kind, out, err);
}

void fxa_builder_destroy(fxa_builder *b) {
    if (!b) return;
    fxa__host *host = b->host;
    fxa__free(host, b->nodes, b->nodes_capacity * sizeof *b->nodes);
    fxa__free(host, b->digests, b->digests_capacity * sizeof *b->digests);
    fxa__free(host, b->table, b->table_size * sizeof *b->table);
    fxa__free(host, b->params, b->params_capacity * sizeof *b->params);
    fxa__free(host, b->tensors, b->tensors_capacity * sizeof *b->tensors);
    fxa__free(host, b->grads, b->grads_capacity * sizeof *b->grads);
    fxa__free(host, b, sizeof *b);
    fxa__host_release(host);
}

void fxa__builder_set_limit(fxa_builder *b, size_t max_nodes) { b->limit = max_nodes; }

bool fxa__builder_failed(const fxa_builder *b) { return b->err.status != FXA_OK; }

fxa_status fxa_builder_error(const fxa_builder *b, fxa_error *err) {
    if (!b) return fxa__fail(err, FXA_E_ARGUMENT, "builder is NULL");
    if (err) *err = b->err;
    return b->err.status;
}

const fxa_error *fxa__builder_error(const fxa_builder *b) { return &b->err; }

fxa_value fxa__builder_fail(fxa_builder *b, fxa_status status, const char *format, ...) {
    if (b->err.status != FXA_OK) return -1;
    va_list list;
    va_start(list, format);
    (void)fxa__vfail(&b->err, status, format, list);
    va_end(list);
    return -1;
}

fxa_value fxa__builder_fail_memory(fxa_builder *b) {
    if (b->err.status == FXA_OK) (void)fxa__fail_memory(&b->err, "a program");
    return -1;
}

bool fxa__builder_ready(fxa_builder *b) {
    if (!b || b->err.status != FXA_OK) return false;
    if (b->finished) (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "the builder was finished; create another one");
    return !b->finished;
}

/* ---- The store of nodes ------------------------------------------------------------------------------------------ */

bool fxa__builder_holds(fxa_builder *b, fxa_value x) {
    if (!fxa__builder_ready(b)) return false;
    if (x >= 0 && (size_t)x < b->n_nodes) return true;
    if (b->n_nodes == 0)
        (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "%d is not a value of this builder: it has none yet", (int)x);
    else
        (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "%d is not a value of this builder: it has 0 to %zu", (int)x,
                                b->n_nodes - 1);
    return false;
}

fxa_type fxa__builder_type(const fxa_builder *b, fxa_value x) {
    return x >= 0 && (size_t)x < b->n_nodes ? (fxa_type)b->nodes[x].type : (fxa_type)0;
}

fxa_type fxa_builder_type(const fxa_builder *b, fxa_value value) {
    return b ? fxa__builder_type(b, value) : (fxa_type)0;
}

fxa__node fxa__builder_node(const fxa_builder *b, fxa_value x) {
    FXA__ASSERT(x >= 0 && (size_t)x < b->n_nodes);
    return b->nodes[x];
}

/* Returns the index in b->table of the entry with this digest, or of a free entry if no node has this digest. */
static size_t build_slot(const fxa_builder *b, const fxa__digest *digest) {
    uint64_t start;
    memcpy(&start, digest->byte, sizeof start); /* the byte order changes only positions in the table */
    size_t at = (size_t)start & (b->table_size - 1);
    while (b->table[at] && memcmp(&b->digests[b->table[at] - 1], digest, sizeof *digest) != 0)
        at = (at + 1) & (b->table_size - 1);
    return at;
}

/* Grows the arrays and the hash table for one more node; the table is at most half full. Returns false if memory ran
 * out. */
static bool build_reserve(fxa_builder *b) {
    if (!fxa__grow(b->host, &b->nodes, &b->nodes_capacity, b->n_nodes + 1, sizeof *b->nodes) ||
        !fxa__grow(b->host, &b->digests, &b->digests_capacity, b->n_nodes + 1, sizeof *b->digests))
        return false;
    if ((b->n_nodes + 1) * 2 <= b->table_size) return true;
    size_t old_size = b->table_size, new_size = old_size ? old_size * 2 : 64;
    int32_t *old = b->table, *table = fxa__alloc_array(b->host, new_size, sizeof *table);
    if (!table) return false;
    b->table = table;
    b->table_size = new_size;
    for (size_t i = 0; i < b->n_nodes; i++) table[build_slot(b, &b->digests[i])] = (int32_t)i + 1;
    fxa__free(b->host, old, old_size * sizeof *old);
    return true;
}

fxa_value fxa__builder_intern(fxa_builder *b, const fxa__node *node) {
    for (int i = 0; i < node->n_args; i++) FXA__ASSERT(0 <= node->arg[i] && (size_t)node->arg[i] < b->n_nodes);
    if (!build_reserve(b)) return fxa__builder_fail_memory(b);
    fxa__digest digest;
    fxa__digest_node(b, node, &digest);
    size_t at = build_slot(b, &digest);
    if (b->table[at]) return b->table[at] - 1;
    if (b->n_nodes >= b->limit)
        return fxa__builder_fail(b, FXA_E_LIMIT, "the program has more than %zu distinct operations, the most accepted",
                                 b->limit);
    b->nodes[b->n_nodes] = *node;
    b->digests[b->n_nodes] = digest;
    b->table[at] = (int32_t)++b->n_nodes;
    return b->table[at] - 1;
}

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

fxa_value fxa__builder_constant(fxa_builder *b, fxa_type type, int32_t value) {
    fxa__node node = {.op = FXA_OP_CONST, .type = (uint8_t)type, .imm = value};
    return fxa__builder_intern(b, &node);
}

fxa_value fxa_builder_float(fxa_builder *b, double value) {
    if (!fxa__builder_ready(b)) return -1;
    fxa__node node = {.op = FXA_OP_CONST, .type = FXA_FLOAT, .f = value};
    const uint64_t inf_bits = UINT64_C(0x7ff0000000000000), nan_bits = UINT64_C(0x7ff8000000000000);
    uint64_t bits;
    memcpy(&bits, &node.f, sizeof bits);                /* a floating-point test for NaN could trap */
    if ((bits & INT64_MAX) > inf_bits) bits = nan_bits; /* all NaNs become equal nodes */
    memcpy(&node.f, &bits, sizeof bits);
    return fxa__builder_intern(b, &node);
}

fxa_value fxa_builder_int(fxa_builder *b, int32_t value) {
    return fxa__builder_ready(b) ? fxa__builder_constant(b, FXA_INT, value) : -1;
}

fxa_value fxa_builder_bool(fxa_builder *b, int value) {
    return fxa__builder_ready(b) ? fxa__builder_constant(b, FXA_BOOL, value != 0) : -1;
}

fxa_value fxa_builder_input(fxa_builder *b, fxa_input input) {
    if (!fxa__builder_ready(b)) return -1;
    if ((uint32_t)input >= FXA_INPUT_COUNT)
        return fxa__builder_fail(b, FXA_E_ARGUMENT, "input %d is none: 0 (score) to %d (%s) are", (int)input,
                                 FXA_INPUT_COUNT - 1, fxa__input_name(FXA_INPUT_COUNT - 1));
    if (input == FXA_INPUT_DSCORE && b->kind == FXA_PROGRAM_SCORE)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'dscore' is an input of backward programs, not of a score program");
    fxa__node node = {.op = FXA_OP_INPUT, .type = (uint8_t)fxa__input_type(input), .imm = (int32_t)input};
    return fxa__builder_intern(b, &node);
}

/* ---- Loads and outputs ------------------------------------------------------------------------------------------- */

fxa_value fxa_builder_load(fxa_builder *b, int32_t tensor, const fxa_value *index, size_t n_index) {
    FXA__FLOAT_SCOPE;
    if (!fxa__builder_ready(b)) return -1;
    if (tensor < 0 || (size_t)tensor >= b->n_tensors)
        return fxa__builder_fail(b, FXA_E_ARGUMENT, "%d is not a tensor of this builder: it has %zu", (int)tensor,
                                 b->n_tensors);
    fxa__node node = {.op = FXA_OP_LOAD, .type = b->tensors[tensor].type, .imm = tensor};
    if (!fxa__builder_index(b, tensor, index, n_index, node.arg)) return -1;
    node.n_args = (uint8_t)n_index;
    return fxa__builder_intern(b, &node);
}

/* Returns `value` converted to `type`, the type of an output: FXA_FLOAT, or FXA_BOOL for a mask. If `fits` is false
 * (the program kind has no such output) or the value cannot be converted, sets the error of b and returns -1. */
static fxa_value build_output(fxa_builder *b, const char *name, bool fits, fxa_type type, fxa_value value) {
    if (!fxa__builder_holds(b, value)) return -1;
    if (!fits)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' is no output of a %s program", name,
                                 b->kind == FXA_PROGRAM_SCORE ? "score" : "backward");
    fxa_type given = fxa__builder_type(b, value);
    if (type == FXA_BOOL && given != FXA_BOOL)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' needs a bool, not %s (write x != 0)", name,
                                 fxa__type_name(given));
    return fxa__builder_convert(b, value, type);
}

/* Returns true if the program has the outputs score and mask. */
static bool build_has_score(const fxa_builder *b) {
    return b->kind == FXA_PROGRAM_SCORE || b->kind == FXA__PROGRAM_FUSED;
}

void fxa_builder_set_score(fxa_builder *b, fxa_value value) {
    FXA__FLOAT_SCOPE;
    if (fxa__builder_ready(b)) b->score = build_output(b, "score", build_has_score(b), FXA_FLOAT, value);
}

void fxa_builder_set_mask(fxa_builder *b, fxa_value value) {
    FXA__FLOAT_SCOPE;
    if (fxa__builder_ready(b)) b->mask = build_output(b, "mask", build_has_score(b), FXA_BOOL, value);
}

void fxa_builder_set_dscore(fxa_builder *b, fxa_value value) {
    FXA__FLOAT_SCOPE;
    if (fxa__builder_ready(b)) b->dscore = build_output(b, "dscore", b->kind != FXA_PROGRAM_SCORE, FXA_FLOAT, value);
}

/* Returns the index of the float param or float tensor `name`, the target of a gradient. If there is no such param or
 * tensor, or the program kind has no gradients, sets the error of b and returns -1. */
static int32_t build_grad_target(fxa_builder *b, const char *name, bool tensor) {
    fxa__decl decl;
    bool is_tensor = false;
    if (!fxa__builder_ready(b)) return -1;
    int32_t slot = fxa__builder_find(b, name, &is_tensor, &decl);
    if (b->kind != FXA_PROGRAM_DERIVATIVE && b->kind != FXA__PROGRAM_FUSED)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'grad' belongs to derivative programs only");
    if (slot < 0 || is_tensor != tensor)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'grad %s': no %s has this name", name, tensor ? "tensor" : "param");
    if (decl.type != FXA_FLOAT)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'grad %s': only floats have a gradient, not %s", name,
                                 fxa__type_name(decl.type));
    return slot;
}

static void build_grad_add(fxa_builder *b, fxa__output grad, fxa_value value) {
    grad.value = build_output(b, "grad", true, FXA_FLOAT, value);
    if (grad.value < 0) return;
    if (!fxa__grow(b->host, &b->grads, &b->grads_capacity, b->n_grads + 1, sizeof *b->grads))
        (void)fxa__builder_fail_memory(b);
    else
        b->grads[b->n_grads++] = grad;
}

void fxa__builder_grad_param(fxa_builder *b, const char *name, fxa_value value) {
    fxa__output grad = {.kind = FXA__OUT_DPARAM, .slot = build_grad_target(b, name, false)};
    if (grad.slot >= 0) build_grad_add(b, grad, value);
}

void fxa__builder_grad_load(fxa_builder *b, const char *name, const fxa_value *index, size_t n_index, fxa_value value) {
    fxa__output grad = {.kind = FXA__OUT_DLOAD, .slot = build_grad_target(b, name, true), .n_index = (int32_t)n_index};
    if (grad.slot >= 0 && fxa__builder_index(b, grad.slot, index, n_index, grad.index)) build_grad_add(b, grad, value);
}
