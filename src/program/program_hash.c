/* SPDX-License-Identifier: Apache-2.0
 *
 * Content hashes: BLAKE2s-128 over little-endian bytes, so that the hash of a program is equal in every process and on
 * every machine. A node's digest covers the structure below it and no array index, so the digest does not depend on the
 * order of construction or declaration. Digests order commutative operands and identify equal nodes; the digests of the
 * outputs form the hash of the program.
 */
#include "build.h"

#include "../base/blake2s.h"

#include <string.h>

static void digest_u32(fxa__blake2s *s, uint32_t x) {
    uint8_t byte[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    fxa__blake2s_add(s, byte, sizeof byte);
}

static void digest_f64(fxa__blake2s *s, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    digest_u32(s, (uint32_t)bits);
    digest_u32(s, (uint32_t)(bits >> 32));
}

static void digest_decl(fxa__blake2s *s, const fxa__decl *d) {
    uint8_t byte[3] = {d->type, d->dtype, d->rank};
    uint32_t length = (uint32_t)strlen(d->name);
    digest_u32(s, length);
    fxa__blake2s_add(s, d->name, length);
    fxa__blake2s_add(s, byte, sizeof byte);
}

void fxa__digest_node(const fxa_builder *b, const fxa__node *node, fxa__digest *out) {
    fxa__blake2s s;
    fxa__blake2s_start(&s, sizeof out->byte);
    uint8_t head[2] = {node->op, node->type};
    fxa__blake2s_add(&s, head, sizeof head);
    if (node->op == FXA_OP_PARAM)
        digest_decl(&s, &b->params[node->imm]);
    else if (node->op == FXA_OP_LOAD)
        digest_decl(&s, &b->tensors[node->imm]);
    else if (node->op == FXA_OP_CONST && node->type == FXA_FLOAT)
        digest_f64(&s, node->f);
    else if (node->op == FXA_OP_CONST || node->op == FXA_OP_INPUT)
        digest_u32(&s, (uint32_t)node->imm);
    for (int i = 0; i < node->n_args; i++) fxa__blake2s_add(&s, b->digests[node->arg[i]].byte, sizeof out->byte);
    fxa__blake2s_end(&s, out->byte);
}

static void digest_output(fxa__blake2s *s, const fxa_builder *b, const fxa__output *o) {
    digest_u32(s, o->kind);
    if (o->kind == FXA__OUT_DPARAM) digest_decl(s, &b->params[o->slot]);
    if (o->kind == FXA__OUT_DLOAD) digest_decl(s, &b->tensors[o->slot]);
    for (int i = 0; i < o->n_index; i++) fxa__blake2s_add(s, b->digests[o->index[i]].byte, sizeof b->digests->byte);
    fxa__blake2s_add(s, b->digests[o->value].byte, sizeof b->digests->byte);
}

void fxa__digest_program(const fxa_builder *b, const fxa__decl *params, const fxa__decl *tensors,
                         const fxa__output *outputs, size_t n_outputs, uint8_t hash[16]) {
    static const char tag[] = "fxattn program 1";
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    fxa__blake2s_add(&s, tag, sizeof tag);
    digest_u32(&s, b->kind);
    digest_u32(&s, (uint32_t)b->n_params);
    digest_u32(&s, (uint32_t)b->n_tensors);
    for (size_t i = 0; i < b->n_params; i++) digest_decl(&s, &params[i]);
    for (size_t i = 0; i < b->n_tensors; i++) digest_decl(&s, &tensors[i]);
    digest_u32(&s, (uint32_t)n_outputs);
    for (size_t i = 0; i < n_outputs; i++) digest_output(&s, b, &outputs[i]);
    fxa__blake2s_end(&s, hash);
}
