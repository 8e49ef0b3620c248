/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder's internals, shared by build.c (node store, constants, inputs, outputs), declare.c (params and tensors),
 * convert.c (operand types), simplify.c (folding), canon.c (finish), program_hash.c (hashes) and import.c.
 *
 * A builder has a growing array of distinct nodes. A value is the index of its node. Every operation passes through
 *
 *     convert -> simplify -> intern
 *
 * and a node that intern stores cannot be simplified further. A node therefore depends only on its expression, not on
 * the order of the calls that built it.
 */
#ifndef FXA_PROGRAM_BUILD_H
#define FXA_PROGRAM_BUILD_H

#include "program.h"

/* Hash of the expression that a node computes. Params and tensors are hashed by name, operands by their digests. */
typedef struct fxa__digest {
    uint8_t byte[16];
} fxa__digest;

struct fxa_builder {
    fxa__host *host;
    uint32_t kind; /* fxa_program_kind */
    bool finished;
    fxa_error err; /* first failure of a call; status FXA_OK = no failure */
    size_t limit;  /* maximum of n_nodes */

    size_t n_nodes, nodes_capacity, digests_capacity;
    fxa__node *nodes;
    fxa__digest *digests; /* [n_nodes] digest of each node */
    /* [table_size] hash table of nodes by digest, with open addressing; entry = index of a node + 1, or 0 if free */
    int32_t *table;
    size_t table_size; /* a power of two; 0 = no table is allocated yet */

    size_t n_params, n_tensors, params_capacity, tensors_capacity;
    fxa__decl *params;  /* [n_params] in order of declaration; fxa__node.imm of a PARAM is an index of this array */
    fxa__decl *tensors; /* [n_tensors] in order of declaration; fxa__node.imm of a LOAD is an index of this array */

    fxa_value score, mask, dscore; /* values of the outputs; -1 = not set */
    size_t n_grads, grads_capacity;
    /* [n_grads] gradients of params and tensor elements, in order of the calls; two may have the same target */
    fxa__output *grads;
};

/* Returns true if b accepts calls: b is not NULL, has not failed and is not finished. Sets the error of a finished
 * builder. */
bool fxa__builder_ready(fxa_builder *b);
fxa_value fxa__builder_fail_memory(fxa_builder *b); /* sets the error of b to FXA_E_MEMORY and returns -1 */
/* Returns true if b is ready and x is one of its values; sets the error of b if x is not. */
bool fxa__builder_holds(fxa_builder *b, fxa_value x);

/* Returns the value of a node, and stores the node if no equal node exists; -1 on failure. The operands of the node
 * must be values of b, and no rule of simplify.c may apply to the node. */
fxa_value fxa__builder_intern(fxa_builder *b, const fxa__node *node);
/* Returns an int or bool constant; -1 on failure. */
fxa_value fxa__builder_constant(fxa_builder *b, fxa_type type, int32_t value);

/* Returns x cast to `type`, or x itself if it has that type. Casts only widen: bool -> int -> float. */
fxa_value fxa__builder_convert(fxa_builder *b, fxa_value x, fxa_type type);
/* Converts the indices of a load of tensor number `slot` to ints, out[rank]. If the number or the type of the indices
 * is wrong, sets the error of b and returns false. */
bool fxa__builder_index(fxa_builder *b, int32_t slot, const fxa_value *index, size_t n_index, int32_t *out);

/* Folds an operation if possible, else brings its operands into canonical order and interns it. Returns the value; -1
 * on failure. The operands must have the types of the operation's signature. */
fxa_value fxa__builder_simplify(fxa_builder *b, fxa__node node);

/* Computes the digest of a node whose operands are values of b. */
void fxa__digest_node(const fxa_builder *b, const fxa__node *node, fxa__digest *out);
/* Computes the hash of a program. params and tensors must be sorted by name, outputs must be in canonical order. The
 * values, params and tensors in `outputs` are indices in the arrays of the builder b. */
void fxa__digest_program(const fxa_builder *b, const fxa__decl *params, const fxa__decl *tensors,
                         const fxa__output *outputs, size_t n_outputs, uint8_t hash[16]);

#endif
