/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a builder, for the files that make programs: build.c (node store, leaves, outputs), declare.c (params
 * and tensors), convert.c (operand types), simplify.c (folding), canon.c (finish), program_hash.c (hashes), import.c.
 *
 * A builder holds a growing array of nodes, each equal to no other. A value is the index of its node. Every operation
 * passes convert -> simplify -> intern, and what intern stores no rule can simplify further: so a node is decided by
 * the structure below it alone, never by when or how it was built.
 */
#ifndef FXA_PROGRAM_BUILD_H
#define FXA_PROGRAM_BUILD_H

#include "program.h"

/* The structure below a node, by content: slots enter as names, operands as their hashes. */
typedef struct fxa__digest {
    uint8_t byte[16];
} fxa__digest;

struct fxa_builder {
    fxa__host *host;
    uint32_t kind;
    bool finished;
    fxa_error err; /* the first failure; status OK: none yet */
    size_t limit;  /* of n_nodes */

    size_t n_nodes, nodes_capacity, digests_capacity;
    fxa__node *nodes;
    fxa__digest *digests; /* one per node */
    int32_t *table;       /* open addressing by digest: node + 1, 0 is free; table_size is a power of two or 0 */
    size_t table_size;

    size_t n_params, n_tensors, params_capacity, tensors_capacity;
    fxa__decl *params; /* in order of declaration; the slot of a PARAM or LOAD node is the position here */
    fxa__decl *tensors;

    fxa_value score, mask, dscore; /* outputs; -1: not set */
    size_t n_grads, grads_capacity;
    fxa__output *grads; /* as given: DPARAM and DLOAD, targets may repeat */
};

/* True when b takes calls: neither failed nor finished (which fails it). NULL is not ready. */
bool fxa__builder_ready(fxa_builder *b);
fxa_value fxa__builder_fail_memory(fxa_builder *b); /* -1 */
/* True when b is ready and x is a value of it; otherwise fails b. */
bool fxa__builder_holds(fxa_builder *b, fxa_value x);

/* The node equal to *node, stored if it is new. Operands are valid, no rule of simplify applies. */
fxa_value fxa__builder_intern(fxa_builder *b, const fxa__node *node);
/* An int or bool constant. */
fxa_value fxa__builder_constant(fxa_builder *b, fxa_type type, int32_t value);

/* x as `type`, by a cast where it has another: bool -> int -> float, never back. */
fxa_value fxa__builder_convert(fxa_builder *b, fxa_value x, fxa_type type);
/* Index operands of tensor `slot`, converted into out[rank]; false (and failed) when their number or type is wrong. */
bool fxa__builder_index(fxa_builder *b, int32_t slot, const fxa_value *index, size_t n_index, int32_t *out);

/* An operation whose operands have the types that its signature asks for: folded, put in order, interned. */
fxa_value fxa__builder_simplify(fxa_builder *b, fxa__node node);

void fxa__digest_node(const fxa_builder *b, const fxa__node *node, fxa__digest *out);
/* Hash of a whole program: declarations in order of name, outputs in canonical order (with slots of the builder). */
void fxa__digest_program(const fxa_builder *b, const fxa__decl *params, const fxa__decl *tensors,
                         const fxa__output *outputs, size_t n_outputs, uint8_t hash[16]);

#endif
