/* SPDX-License-Identifier: Apache-2.0
 *
 * A resolved problem as bytes. The key of a problem is a hash of these bytes, and plan bytes contain them.
 * Little-endian, fixed widths, no padding, in the order below. A letter marks a part (FXA__WITH_x of problem.h) that
 * engines may leave out of the key of their code: [g]eometry, [h]eads, [w]indow, [d]ropout, [p]lace.
 *
 *       u32  format, 1 to 3
 *       u32  1 with all parts, else twice the bits of the parts
 *       u32  pass, u32 flags, u32 page_size
 *       i64  hq, hkv [h]; i64 d_qk, d_v (FXA_D_V_ZERO: none)
 *       i64  b, sq, sk, total_q, total_k, n_pages, q_len, k_len; from format 2 on i64 heads                  [g]
 *       u32  device, i32 ordinal, u32 alignment, u64 max_workspace; in format 3 only                         [p]
 *       i64  window_left, window_right [w]; f64 dropout_p [d]; u64 param_grads
 *       13 operands, in the order q k v o dout dq dk dv lse max dlse sink dsink:
 *            u32 dtype; i64 stride[4] [g]
 *       4 maps, in the order b h q k:
 *            u32 kind, u32 has_offset, u32 n_segments, i64 step; i64 base [g]
 *            n_segments times: i64 step; i64 begin, i64 base [g]
 *       u32  1 if a program follows, else 0; the user's program (program_bytes.c)
 *       u32  1 if a bprop follows, else 0; the bprop
 *       u32  number of captures (the program's tensors), then for each:
 *            u32 grad, u32 grad_dtype; i64 size[5], stride[5], grad_stride[5] [g]
 *       u32  number of bprop captures, then for each the same fields
 *       u32  only without geometry and if a program reads q_row or k_row: bits of the inputs that equal q or k
 *
 * The reader does not trust the bytes: fxa__problem_create checks the fields like those of a caller, and writing the
 * problem must reproduce the bytes. Each problem therefore has exactly one encoding.
 */
#include "geometry.h"
#include "problem_private.h"

#include "../base/blake2s.h"
#include "../base/invariant.h"

#include <string.h>

/* Format versions; each version adds fields to the previous version. A problem is written in the oldest version that
 * has all its fields. */
enum { PROBLEM_PLAIN = 1, PROBLEM_HEADS = 2, PROBLEM_PLACED = 3 };

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_list(fxa__writer *w, const int64_t *list, size_t n) {
    for (size_t i = 0; i < n; i++) fxa__write_i64(w, list[i]);
}

static void write_map(fxa__writer *w, const fxa_index_map *map, bool geometry) {
    fxa__write_u32(w, map->kind);
    fxa__write_u32(w, map->has_offset);
    fxa__write_u32(w, map->n_segments);
    fxa__write_i64(w, map->step);
    if (geometry) fxa__write_i64(w, map->base);
    for (uint32_t i = 0; i < map->n_segments; i++) {
        fxa__write_i64(w, map->segment[i].step);
        if (!geometry) continue;
        fxa__write_i64(w, map->segment[i].begin);
        fxa__write_i64(w, map->segment[i].base);
    }
}

static void write_program(fxa__writer *w, const fxa_program *program) {
    fxa__write_u32(w, program != NULL);
    if (program && fxa__program_write(program, false, w) != FXA_OK) w->failed = true;
}

static void write_captures(fxa__writer *w, const fxa_capture *captures, size_t n, bool geometry) {
    fxa__write_u32(w, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        fxa__write_u32(w, captures[i].grad);
        fxa__write_u32(w, captures[i].grad_dtype);
        if (!geometry) continue;
        write_list(w, captures[i].size, FXA_MAX_RANK);
        write_list(w, captures[i].stride, FXA_MAX_RANK);
        write_list(w, captures[i].grad_stride, FXA_MAX_RANK);
    }
}

/* Writes which of the program inputs q_row and k_row equal q and k; compiled code depends on this. Only for bytes
 * without geometry: in bytes with geometry, the index maps determine which of these inputs are equal. */
static void write_identity_inputs(fxa__writer *w, const fxa_problem *p, bool geometry) {
    uint32_t stored = fxa__program_storage_inputs(p->program) | fxa__program_storage_inputs(p->bprop);
    if (!geometry && stored) fxa__write_u32(w, stored & fxa__identity_inputs(p));
}

/* Returns the oldest format version that can represent the given parts of the problem. */
static uint32_t write_format(const fxa_problem *p, uint32_t parts) {
    bool placed = p->device || p->ordinal || p->alignment || p->max_workspace;
    if ((parts & FXA__WITH_PLACE) && placed) return PROBLEM_PLACED;
    return (parts & FXA__WITH_GEOMETRY) && p->global_heads ? PROBLEM_HEADS : PROBLEM_PLAIN;
}

/* Returns the problem's flags without flags that belong to omitted parts. */
static uint32_t write_flags(const fxa_problem *p, uint32_t parts) {
    uint32_t flags = p->flags;
    if (!(parts & FXA__WITH_GEOMETRY)) flags &= ~(uint32_t)FXA_BOUNDS_CHECK;
    if (!(parts & FXA__WITH_PLACE)) flags &= ~(uint32_t)(FXA_DETERMINISTIC | FXA_GRAPH_CAPTURE);
    return flags;
}

void fxa__problem_write(const fxa__problem *problem, uint32_t parts, fxa__writer *w) {
    const fxa_problem *p = &problem->in;
    uint32_t format = write_format(p, parts);
    bool geometry = parts & FXA__WITH_GEOMETRY;
    FXA__ASSERT(!(parts & ~(uint32_t)FXA__WITH_ALL)); /* an unused bit of `parts` would change the key */
    fxa__write_u32(w, format);
    fxa__write_u32(w, parts == FXA__WITH_ALL ? 1 : parts << 1);
    fxa__write_u32(w, p->pass);
    fxa__write_u32(w, write_flags(p, parts));
    fxa__write_u32(w, p->page_size);
    if (parts & FXA__WITH_HEADS) write_list(w, (const int64_t[]){p->hq, p->hkv}, 2);
    write_list(w, (const int64_t[]){p->d_qk, fxa__d_v_given(p)}, 2);
    if (geometry)
        write_list(
            w,
            (const int64_t[]){p->b, p->sq, p->sk, p->total_q, p->total_k, p->n_pages, p->global_q_len, p->global_k_len},
            8);
    if (geometry && format >= PROBLEM_HEADS) fxa__write_i64(w, p->global_heads);
    if (format >= PROBLEM_PLACED) {
        fxa__write_u32(w, p->device);
        fxa__write_u32(w, (uint32_t)p->ordinal);
        fxa__write_u32(w, p->alignment);
        fxa__write_u64(w, p->max_workspace);
    }
    if (parts & FXA__WITH_WINDOW) write_list(w, (const int64_t[]){p->window_left, p->window_right}, 2);
    if (parts & FXA__WITH_DROPOUT) fxa__write_f64(w, p->dropout_p);
    fxa__write_u64(w, p->param_grads);
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa_operand *t = fxa__operand_of(p, fxa__operand_info_get(i));
        fxa__write_u32(w, t->dtype);
        if (geometry) write_list(w, t->stride, 4);
    }
    write_map(w, &p->map_b, geometry);
    write_map(w, &p->map_h, geometry);
    write_map(w, &p->map_q, geometry);
    write_map(w, &p->map_k, geometry);
    write_program(w, p->program);
    write_program(w, p->bprop);
    write_captures(w, p->captures, p->n_captures, geometry);
    write_captures(w, p->bprop_captures, p->n_bprop_captures, geometry);
    write_identity_inputs(w, p, geometry);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

typedef struct read_problem { /* allocated, because it is too large for the stack */
    fxa_problem p;
    fxa_capture captures[FXA_MAX_TENSORS], bprop_captures[FXA_MAX_TENSORS];
} read_problem;

static void read_list(fxa__reader *r, int64_t *list, size_t n) {
    for (size_t i = 0; i < n; i++) list[i] = fxa__read_i64(r);
}

static void read_map(fxa__reader *r, fxa_index_map *map) {
    map->kind = fxa__read_u32(r);
    map->has_offset = fxa__read_u32(r);
    map->n_segments = fxa__read_u32(r);
    map->step = fxa__read_i64(r);
    map->base = fxa__read_i64(r);
    if (map->n_segments > FXA_MAX_SEGMENTS) r->failed = true;
    for (uint32_t i = 0; i < map->n_segments && !r->failed; i++) {
        map->segment[i].step = fxa__read_i64(r);
        map->segment[i].begin = fxa__read_i64(r);
        map->segment[i].base = fxa__read_i64(r);
    }
}

static void read_scalars(fxa__reader *r, uint32_t format, fxa_problem *p) {
    int64_t list[8];
    p->pass = fxa__read_u32(r);
    p->flags = fxa__read_u32(r);
    p->page_size = fxa__read_u32(r);
    read_list(r, list, 4);
    p->hq = list[0], p->hkv = list[1], p->d_qk = list[2], p->d_v = list[3];
    read_list(r, list, 8);
    p->b = list[0], p->sq = list[1], p->sk = list[2], p->total_q = list[3], p->total_k = list[4], p->n_pages = list[5];
    p->global_q_len = list[6], p->global_k_len = list[7];
    if (format >= PROBLEM_HEADS) p->global_heads = fxa__read_i64(r);
    if (format >= PROBLEM_PLACED) {
        p->device = fxa__read_u32(r);
        p->ordinal = (int32_t)fxa__read_u32(r);
        p->alignment = fxa__read_u32(r);
        p->max_workspace = fxa__read_u64(r);
    }
    read_list(r, list, 2);
    p->window_left = list[0], p->window_right = list[1];
    p->dropout_p = fxa__read_f64(r);
    p->param_grads = fxa__read_u64(r);
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        fxa_operand *t = fxa__operand_field(p, fxa__operand_info_get(i));
        t->layout = FXA_LAYOUT_STRIDED;
        t->dtype = fxa__read_u32(r);
        read_list(r, t->stride, 4);
    }
    read_map(r, &p->map_b);
    read_map(r, &p->map_h);
    read_map(r, &p->map_q);
    read_map(r, &p->map_k);
}

/* Reads an optional program; *out is NULL if the program is absent or the call fails. */
static fxa_status read_program(fxa__host *host, fxa__reader *r, fxa_program **out, fxa_error *err) {
    uint32_t present = fxa__read_u32(r);
    *out = NULL;
    if (present > 1) r->failed = true;
    return present == 1 ? fxa__program_read(host, r, out, err) : FXA_OK;
}

/* Reads up to FXA_MAX_TENSORS captures and returns their number; 0 on failure. */
static size_t read_captures(fxa__reader *r, fxa_capture *captures) {
    uint32_t n = fxa__read_u32(r);
    if (n > FXA_MAX_TENSORS) r->failed = true;
    for (uint32_t i = 0; i < n && !r->failed; i++) {
        captures[i].strided = captures[i].grad_strided = 1;
        captures[i].grad = fxa__read_u32(r);
        captures[i].grad_dtype = fxa__read_u32(r);
        read_list(r, captures[i].size, FXA_MAX_RANK);
        read_list(r, captures[i].stride, FXA_MAX_RANK);
        read_list(r, captures[i].grad_stride, FXA_MAX_RANK);
    }
    return r->failed ? 0 : n;
}

/* Creates the problem from the fields that were read. Fails unless writing the problem reproduces the bytes from
 * `start` on. */
static fxa_status read_finish(fxa__host *host, const fxa_problem *in, const fxa__reader *r, size_t start,
                              fxa__problem **out, fxa_error *err) {
    fxa_error inner;
    uint8_t key[16];
    if (r->failed) return fxa__fail(err, FXA_E_BYTES, "the bytes of a problem end early or hold impossible counts");
    fxa_status status = fxa__problem_create(host, in, out, &inner);
    if (status == FXA_E_PROBLEM)
        return fxa__fail(err, FXA_E_BYTES, "bytes of a problem that is refused: %s", inner.text);
    if (status != FXA_OK) return fxa__fail(err, status, "%s", inner.text);
    fxa__blake2s_128(r->data + start, r->at - start, key);
    if (memcmp(key, (*out)->key, sizeof key) == 0) return fxa__ok(err);
    fxa__problem_release(*out);
    *out = NULL;
    return fxa__fail(err, FXA_E_BYTES, "the bytes of a problem are not in canonical form");
}

fxa_status fxa__problem_read(fxa__host *host, fxa__reader *r, fxa__problem **out, fxa_error *err) {
    size_t start = r->at;
    fxa_program *program = NULL, *bprop = NULL;
    fxa_status status;
    *out = NULL;
    uint32_t format = fxa__read_u32(r), whole = fxa__read_u32(r);
    if (!r->failed && (format < PROBLEM_PLAIN || format > PROBLEM_PLACED))
        return fxa__fail(err, FXA_E_VERSION, "problem bytes have format %u: this library reads %d to %d", format,
                         PROBLEM_PLAIN, PROBLEM_PLACED);
    if (whole != 1) r->failed = true;
    read_problem *in = fxa__alloc(host, sizeof *in);
    if (!in) return fxa__fail_memory(err, "a problem read from bytes");
    in->p.struct_size = sizeof in->p;
    read_scalars(r, format, &in->p);
    status = read_program(host, r, &program, err);
    if (status != FXA_OK) goto done;
    status = read_program(host, r, &bprop, err);
    if (status != FXA_OK) goto done;
    in->p.program = program;
    in->p.bprop = bprop;
    in->p.captures = in->captures;
    in->p.n_captures = read_captures(r, in->captures);
    in->p.bprop_captures = in->bprop_captures;
    in->p.n_bprop_captures = read_captures(r, in->bprop_captures);
    status = read_finish(host, &in->p, r, start, out, err);
done:
    fxa_program_destroy(program);
    fxa_program_destroy(bprop);
    fxa__free(host, in, sizeof *in);
    return status;
}
