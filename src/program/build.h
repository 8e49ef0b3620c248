/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder's internals, shared by build.c (node store, leaves, outputs), declare.c (params and tensors), convert.c
 * (operand types), simplify.c (folding), canon.c (finish), program_hash.c (hashes) and import.c.
 *
 * A builder holds a growing array of distinct nodes. A value is the index of its node. Every operation passes
 *
 *     convert -> simplify -> intern
 *
 * and a node that intern stores cannot be simplified further. So a node depends only on the structure below it, not on
 * the order of the calls that built it.
 */
#ifndef FXA_PROGRAM_BUILD_H
#define FXA_PROGRAM_BUILD_H

#include "program.h"

/* Hash of the expression below a node. Params and tensors enter by name, operands by their digests. */
typedef struct fxa__digest {
    uint8_t byte[16];
} fxa__digest;

struct fxa_builder {
    fxa__host *host;
    uint32_t kind;
    bool finished;
    fxa_error err; /* the first failure; status FXA_OK = none */
    size_t limit;  /* maximum of n_nodes */

    size_t n_nodes, nodes_capacity, digests_capacity;
    fxa__node *nodes;
    fxa__digest *digests; /* one per node */
    int32_t *table;       /* [table_size] hash table by digest, open addressing: node + 1; 0 = free */
    size_t table_size;    /* a power of two, or 0 */

    size_t n_params, n_tensors, params_capacity, tensors_capacity;
    fxa__decl *params;  /* [n_params] in order of declaration; node.imm of a PARAM is the index here */
    fxa__decl *tensors; /* [n_tensors] in order of declaration; node.imm of a LOAD is the index here */

    fxa_value score, mask, dscore; /* outputs; -1 = not set */
    size_t n_grads, grads_capacity;
    fxa__output *grads; /* DPARAM and DLOAD in order of the calls; targets may repeat */
};

/* Returns true if b accepts calls: it is not NULL, has not failed and is not finished. Fails a finished builder. */
bool fxa__builder_ready(fxa_builder *b);
fxa_value fxa__builder_fail_memory(fxa_builder *b); /* records FXA_E_MEMORY; returns -1 */
/* Returns true if b is ready and x is one of its values; fails b if x is not. */
bool fxa__builder_holds(fxa_builder *b, fxa_value x);

/* Returns the value of the node equal to *node, which is stored if it is new; -1 on failure. Its operands must be valid
 * and no rule of simplify.c may apply to it. */
fxa_value fxa__builder_intern(fxa_builder *b, const fxa__node *node);
/* Returns an int or bool constant; -1 on failure. */
fxa_value fxa__builder_constant(fxa_builder *b, fxa_type type, int32_t value);

/* Returns x cast to `type`, or x itself if it has that type. Casts only widen: bool -> int -> float. */
fxa_value fxa__builder_convert(fxa_builder *b, fxa_value x, fxa_type type);
/* Converts the indices of a load of tensor `slot` to ints, out[rank]. Returns false and fails b if their number or type
 * is wrong. */
bool fxa__builder_index(fxa_builder *b, int32_t slot, const fxa_value *index, size_t n_index, int32_t *out);

/* Returns the value of an operation: folded, with operands in canonical order, interned. The operands must have the
 * types of the operation's signature. */
fxa_value fxa__builder_simplify(fxa_builder *b, fxa__node node);

/* Computes the digest of a node whose operands are in b. */
void fxa__digest_node(const fxa_builder *b, const fxa__node *node, fxa__digest *out);
/* Computes the hash of a program. params and tensors must be sorted by name; outputs must be in canonical order and
 * have slots of the builder. */
void fxa__digest_program(const fxa_builder *b, const fxa__decl *params, const fxa__decl *tensors,
                         const fxa__output *outputs, size_t n_outputs, uint8_t hash[16]);

#endif
