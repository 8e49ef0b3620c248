/* SPDX-License-Identifier: Apache-2.0
 *
 * Serialization of programs. All numbers are little-endian; a string is a u32 length and its bytes, not terminated.
 *
 *   4 bytes   "FXAP"
 *   u32       format version: 2 if a param has a default, else 1
 *   u32       kind: 0 score, 1 bprop, 2 derivative
 *   u32       number of params; each, in order of name:   string name, u8 type (1 float, 2 int); in format 2 also
 *             u8 1 and the f64 of its default, or u8 0
 *   u32       number of tensors; each, in order of name:  string name, u8 dtype (fxa_dtype), u8 rank
 *   u32       number of nodes; each:  u8 op (fxa_op), u8 type (1 float, 2 int, 3 bool), then by op
 *                 CONST    8 bytes IEEE binary64 if float, else u32 two's complement
 *                 INPUT    u32 fxa_input
 *                 PARAM    u32 position among the params
 *                 LOAD     u32 position among the tensors, then rank operands
 *                 others   as many operands as the operation has
 *             an operand is the u32 number of an earlier node
 *   u32       number of outputs; each:
 *                 u32 kind (0 score, 1 mask, 2 dscore, 3 grad of a param, 4 grad of a tensor)
 *                 kinds 3 and 4: u32 position of the param or tensor
 *                 kind 4: as many operands as the tensor has axes, the indices of the element
 *                 u32 node of the value
 *   16 bytes  the hash of the program
 *   8 bytes   in format 2: the first 8 bytes of the BLAKE2s-128 of everything above, since the hash excludes defaults
 *
 * Every program has exactly one byte form. The reader does not trust its input: every node passes through the builder,
 * which checks types, arity and limits; then the hash must agree, and writing the rebuilt program must give the same
 * bytes. Unused, unfolded, unsorted and repeated nodes are therefore refused, like damaged bytes.
 */
#include "program.h"

#include "../base/blake2s.h"
#include "../base/float_state.h"

#include <string.h>

static const char pbytes_magic[4] = {'F', 'X', 'A', 'P'};
enum { PBYTES_PLAIN = 1, PBYTES_DEFAULTS = 2 }; /* format versions */
enum { PBYTES_SUM = 8 };                        /* bytes of the checksum of format 2 */

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void pbytes_write_node(const fxa__node *n, fxa__writer *w) {
    fxa__write_u8(w, n->op);
    fxa__write_u8(w, n->type);
    if (n->op == FXA_OP_CONST && n->type == FXA_FLOAT)
        fxa__write_f64(w, n->f);
    else if (fxa__op_info_get(n->op)->sig == FXA__SIG_LEAF)
        fxa__write_u32(w, (uint32_t)n->imm);
    for (int i = 0; i < n->n_args; i++) fxa__write_u32(w, (uint32_t)n->arg[i]);
}

static void pbytes_write_output(const fxa__output *o, fxa__writer *w) {
    fxa__write_u32(w, o->kind);
    if (o->kind >= FXA__OUT_DPARAM) fxa__write_u32(w, (uint32_t)o->slot);
    for (int i = 0; i < o->n_index; i++) fxa__write_u32(w, (uint32_t)o->index[i]);
    fxa__write_u32(w, (uint32_t)o->value);
}

fxa_status fxa__program_write(const fxa_program *p, bool defaults, fxa__writer *w) {
    bool any = false;
    size_t start = w->size;
    for (int32_t i = 0; i < p->n_params; i++) any = any || (defaults && p->params[i].has_value);
    fxa__write_bytes(w, pbytes_magic, sizeof pbytes_magic);
    fxa__write_u32(w, any ? PBYTES_DEFAULTS : PBYTES_PLAIN);
    fxa__write_u32(w, p->kind);
    fxa__write_u32(w, (uint32_t)p->n_params);
    for (int32_t i = 0; i < p->n_params; i++) {
        fxa__write_string(w, p->params[i].name);
        fxa__write_u8(w, p->params[i].type);
        if (any) fxa__write_u8(w, p->params[i].has_value);
        if (any && p->params[i].has_value) fxa__write_f64(w, p->params[i].value);
    }
    fxa__write_u32(w, (uint32_t)p->n_tensors);
    for (int32_t i = 0; i < p->n_tensors; i++) {
        fxa__write_string(w, p->tensors[i].name);
        fxa__write_u8(w, p->tensors[i].dtype);
        fxa__write_u8(w, p->tensors[i].rank);
    }
    fxa__write_u32(w, (uint32_t)p->n_nodes);
    for (int32_t i = 0; i < p->n_nodes; i++) pbytes_write_node(&p->nodes[i], w);
    fxa__write_u32(w, (uint32_t)p->n_outputs);
    for (int32_t i = 0; i < p->n_outputs; i++) pbytes_write_output(&p->outputs[i], w);
    fxa__write_bytes(w, p->hash, sizeof p->hash);
    if (any && !w->failed) {
        uint8_t sum[16];
        fxa__blake2s_128(w->data + start, w->size - start, sum);
        fxa__write_bytes(w, sum, PBYTES_SUM);
    }
    return w->failed ? FXA_E_MEMORY : FXA_OK;
}

fxa_status fxa_program_save(const fxa_program *program, void *out, size_t capacity, size_t *needed, fxa_error *err) {
    if (!program) return fxa__fail(err, FXA_E_ARGUMENT, "the program is NULL");
    fxa__writer w = {.host = program->host};
    fxa_status status = fxa__program_write(program, true, &w);
    status = status == FXA_OK ? fxa__bytes_out(w.data, w.size, out, capacity, needed, err)
                              : fxa__fail_memory(err, "the bytes of a program");
    fxa__writer_free(&w);
    return status;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* State of the reader. params[i] and tensors[i] have number i in the bytes and in the builder. */
typedef struct pbytes_in {
    fxa__reader *r;
    fxa__host *host;
    fxa_builder *b;
    uint32_t version, n_params, n_tensors, n_nodes;
    fxa__decl params[FXA_MAX_PARAMS], tensors[FXA_MAX_TENSORS];
    fxa_value *map; /* [node] value in b */
    size_t map_capacity;
} pbytes_in;

/* Fails the builder with FXA_E_BYTES; returns -1. */
static int32_t pbytes_bad(pbytes_in *in, const char *what) { return fxa__builder_fail(in->b, FXA_E_BYTES, "%s", what); }

/* Reads the declaration of a param. Returns false after a failure of the builder. */
static bool pbytes_read_param(pbytes_in *in, fxa__decl *d) {
    fxa__read_string(in->r, d->name, sizeof d->name);
    d->type = fxa__read_u8(in->r);
    d->has_value = in->version == PBYTES_DEFAULTS && fxa__read_u8(in->r) != 0;
    if (d->has_value) d->value = fxa__read_f64(in->r);
    if (in->r->failed) return true; /* no failure of the builder; the caller checks r->failed */
    if (fxa_builder_param(in->b, d->name, (fxa_type)d->type) < 0) return false;
    if (d->has_value) fxa_builder_set_default(in->b, d->name, d->value);
    return !fxa__builder_failed(in->b);
}

/* Reads all declarations. Returns false after a failure. */
static bool pbytes_read_declarations(pbytes_in *in) {
    in->n_params = fxa__read_u32(in->r);
    if (in->n_params > FXA_MAX_PARAMS) return pbytes_bad(in, "more params than a program can have") >= 0;
    for (uint32_t i = 0; i < in->n_params && !in->r->failed; i++)
        if (!pbytes_read_param(in, &in->params[i])) return false;
    in->n_tensors = fxa__read_u32(in->r);
    if (in->n_tensors > FXA_MAX_TENSORS) return pbytes_bad(in, "more tensors than a program can have") >= 0;
    for (uint32_t i = 0; i < in->n_tensors; i++) {
        fxa__decl *d = &in->tensors[i];
        fxa__read_string(in->r, d->name, sizeof d->name);
        d->dtype = fxa__read_u8(in->r);
        d->rank = fxa__read_u8(in->r);
        if (in->r->failed) break;
        int32_t slot = fxa_builder_tensor(in->b, d->name, (fxa_dtype)d->dtype, d->rank);
        if (slot < 0) return false;
        if (slot != (int32_t)i) return pbytes_bad(in, "a tensor is declared twice") >= 0;
    }
    return !in->r->failed;
}

/* Reads an operand, one of the first n nodes. Returns the operand's value in the builder; -1 after a failure. */
static fxa_value pbytes_read_operand(pbytes_in *in, uint32_t n) {
    uint32_t at = fxa__read_u32(in->r);
    if (in->r->failed) return -1;
    if (at >= n) return pbytes_bad(in, "an operand is not an earlier node");
    return in->map[at];
}

/* Reads the index of one of n params or tensors. Returns the index; -1 after a failure. */
static int32_t pbytes_read_slot(pbytes_in *in, uint32_t n) {
    uint32_t at = fxa__read_u32(in->r);
    if (in->r->failed) return -1;
    if (at >= n) return pbytes_bad(in, "a param or tensor that is not declared");
    return (int32_t)at;
}

/* Reads a constant of type `type`. Returns the constant's value in the builder; -1 after a failure. */
static fxa_value pbytes_read_const(pbytes_in *in, uint32_t type) {
    double f = type == FXA_FLOAT ? fxa__read_f64(in->r) : 0;
    uint32_t bits = type == FXA_FLOAT ? 0 : fxa__read_u32(in->r);
    int32_t i;
    memcpy(&i, &bits, sizeof i);
    switch (type) {
    case FXA_FLOAT: return fxa_builder_float(in->b, f);
    case FXA_INT: return fxa_builder_int(in->b, i);
    case FXA_BOOL: return fxa_builder_bool(in->b, i);
    default: return pbytes_bad(in, "a constant of no type");
    }
}

/* Reads node `number`. Returns the node's value in the builder; -1 after a failure. */
static fxa_value pbytes_read_node(pbytes_in *in, uint32_t number) {
    uint32_t op = fxa__read_u8(in->r), type = fxa__read_u8(in->r), arity = fxa__op_info_get(op)->arity;
    fxa_value arg[FXA_MAX_RANK], value = -1;
    int32_t slot = 0;
    if (in->r->failed) return -1;
    if (op == FXA_OP_LOAD) {
        slot = pbytes_read_slot(in, in->n_tensors);
        if (slot < 0) return -1;
        arity = in->tensors[slot].rank;
    }
    for (uint32_t i = 0; i < arity; i++)
        if ((arg[i] = pbytes_read_operand(in, number)) < 0) return -1;
    switch (op) {
    case FXA_OP_CONST: value = pbytes_read_const(in, type); break;
    case FXA_OP_INPUT: value = fxa_builder_input(in->b, (fxa_input)fxa__read_u32(in->r)); break;
    case FXA_OP_PARAM:
        slot = pbytes_read_slot(in, in->n_params);
        if (slot >= 0) value = fxa_builder_param(in->b, in->params[slot].name, (fxa_type)in->params[slot].type);
        break;
    case FXA_OP_LOAD: value = fxa_builder_load(in->b, slot, arg, arity); break;
    default: value = fxa_builder_op(in->b, (fxa_op)op, arg, arity);
    }
    if (in->r->failed || value < 0) return -1;
    bool same_type = fxa__builder_type(in->b, value) == (fxa_type)type;
    return same_type ? value : pbytes_bad(in, "a node has another type than it says");
}

/* Reads all nodes. Returns false after a failure. */
static bool pbytes_read_nodes(pbytes_in *in) {
    in->n_nodes = fxa__read_u32(in->r);
    for (uint32_t i = 0; i < in->n_nodes; i++) {
        if (!fxa__grow(in->host, &in->map, &in->map_capacity, (size_t)i + 1, sizeof *in->map)) {
            (void)fxa__builder_fail(in->b, FXA_E_MEMORY, "out of memory while reading a program");
            return false;
        }
        if ((in->map[i] = pbytes_read_node(in, i)) < 0) return false;
    }
    return !in->r->failed;
}

/* Reads one output. Returns false after a failure. */
static bool pbytes_read_output(pbytes_in *in) {
    uint32_t kind = fxa__read_u32(in->r);
    fxa_value index[FXA_MAX_RANK];
    int32_t slot = 0, rank = 0;
    if (kind == FXA__OUT_DPARAM) slot = pbytes_read_slot(in, in->n_params);
    if (kind == FXA__OUT_DLOAD) slot = pbytes_read_slot(in, in->n_tensors);
    if (slot < 0) return false;
    if (kind == FXA__OUT_DLOAD) rank = in->tensors[slot].rank;
    for (int32_t i = 0; i < rank; i++)
        if ((index[i] = pbytes_read_operand(in, in->n_nodes)) < 0) return false;
    fxa_value value = pbytes_read_operand(in, in->n_nodes);
    if (value < 0) return false;
    switch (kind) {
    case FXA__OUT_SCORE: fxa_builder_set_score(in->b, value); break;
    case FXA__OUT_MASK: fxa_builder_set_mask(in->b, value); break;
    case FXA__OUT_DSCORE: fxa_builder_set_dscore(in->b, value); break;
    case FXA__OUT_DPARAM: fxa__builder_grad_param(in->b, in->params[slot].name, value); break;
    case FXA__OUT_DLOAD: fxa__builder_grad_load(in->b, in->tensors[slot].name, index, (size_t)rank, value); break;
    default: (void)pbytes_bad(in, "an output of no kind");
    }
    return !fxa__builder_failed(in->b);
}

static bool pbytes_read_outputs(pbytes_in *in) {
    uint32_t n = fxa__read_u32(in->r);
    for (uint32_t i = 0; i < n; i++)
        if (!pbytes_read_output(in)) return false;
    return !in->r->failed;
}

/* Checks that p has this hash and that writing p gives the bytes [start, r->at). */
static fxa_status pbytes_compare(fxa__host *host, const fxa_program *p, const uint8_t *hash, const fxa__reader *r,
                                 size_t start, fxa_error *err) {
    fxa__writer w = {.host = host};
    fxa_status status = fxa__program_write(p, true, &w);
    if (status != FXA_OK) {
        status = fxa__fail_memory(err, "the bytes of a program");
    } else if (memcmp(p->hash, hash, sizeof p->hash) != 0) {
        status = fxa__fail(err, FXA_E_BYTES, "program bytes are damaged: the hash is not that of the program");
    } else if (w.size != r->at - start || memcmp(w.data, r->data + start, w.size) != 0) {
        status = fxa__fail(err, FXA_E_BYTES, "program bytes are not in canonical form");
    }
    fxa__writer_free(&w);
    return status;
}

/* Reads everything after the header. A failure of the builder is reported as damaged bytes, unless memory ran out. */
static fxa_status pbytes_read_body(pbytes_in *in, size_t start, fxa_program **out, fxa_error *err) {
    fxa__builder_set_limit(in->b, FXA__MAX_DERIVED_NODES); /* a program with built-in masks may exceed FXA_MAX_NODES */
    bool good = pbytes_read_declarations(in) && pbytes_read_nodes(in) && pbytes_read_outputs(in);
    const uint8_t *hash = good ? fxa__read_bytes(in->r, 16) : NULL;
    if (hash && in->version == PBYTES_DEFAULTS) (void)fxa__read_bytes(in->r, PBYTES_SUM);
    if (in->r->failed) (void)pbytes_bad(in, "they end too early"); /* has no effect if the builder has failed before */
    fxa_program *p = NULL;
    fxa_error inner;
    fxa_status status = fxa_builder_finish(in->b, &p, &inner);
    if (status == FXA_E_MEMORY) return fxa__fail_memory(err, "a program from bytes");
    if (status != FXA_OK) return fxa__fail(err, FXA_E_BYTES, "program bytes are damaged: %s", inner.text);
    status = pbytes_compare(in->host, p, hash, in->r, start, err);
    if (status == FXA_OK)
        *out = p;
    else
        fxa_program_destroy(p);
    return status;
}

fxa_status fxa__program_read(fxa__host *host, fxa__reader *r, fxa_program **out, fxa_error *err) {
    *out = NULL;
    size_t start = r->at;
    const uint8_t *magic = fxa__read_bytes(r, sizeof pbytes_magic);
    if (!magic || memcmp(magic, pbytes_magic, sizeof pbytes_magic) != 0)
        return fxa__fail(err, FXA_E_BYTES, "these are not the bytes of a program: they do not begin with \"FXAP\"");
    uint32_t version = fxa__read_u32(r), kind = fxa__read_u32(r);
    if (r->failed) return fxa__fail(err, FXA_E_BYTES, "program bytes are damaged: they end too early");
    if (version != PBYTES_PLAIN && version != PBYTES_DEFAULTS)
        return fxa__fail(err, FXA_E_VERSION, "program bytes have format version %u, this library reads %d and %d",
                         version, PBYTES_PLAIN, PBYTES_DEFAULTS);
    if (kind > FXA_PROGRAM_DERIVATIVE)
        return fxa__fail(err, FXA_E_BYTES, "program bytes are damaged: kind %u is none", kind);
    pbytes_in *in = fxa__alloc(host, sizeof *in);
    if (!in) return fxa__fail_memory(err, "a program from bytes");
    in->r = r;
    in->host = host;
    in->version = version;
    fxa_status status = fxa__builder_new(host, (fxa_program_kind)kind, &in->b, err);
    if (status == FXA_OK) status = pbytes_read_body(in, start, out, err);
    fxa_builder_destroy(in->b);
    fxa__free(host, in->map, in->map_capacity * sizeof *in->map);
    fxa__free(host, in, sizeof *in);
    return status;
}

fxa_status fxa_program_load(fxa_context *ctx, const void *bytes, size_t size, fxa_program **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (out) *out = NULL;
    if (!ctx || !bytes || !out)
        return fxa__fail(err, FXA_E_ARGUMENT, "%s NULL",
                         !ctx    ? "the context is"
                         : bytes ? "the place of the program is"
                                 : "the bytes are");
    fxa__reader r = {.data = bytes, .size = size};
    fxa_program *p = NULL;
    fxa_status status = fxa__program_read(fxa__context_host(ctx), &r, &p, err);
    if (status == FXA_OK && !fxa__reader_done(&r)) {
        status = fxa__fail(err, FXA_E_BYTES, "%zu bytes follow the program", r.size - r.at);
        fxa_program_destroy(p);
        p = NULL;
    }
    *out = p;
    return status == FXA_OK ? fxa__ok(err) : status;
}
