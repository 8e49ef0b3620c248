/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses problems that cuDNN cannot compute or computes wrongly, as far as this can be seen without making a graph.
 * Each row of a table refuses certain cuDNN versions, devices, passes, dtypes and features, with a reason
 * (tests/engine/cudnn/test_cudnn_support.c has a case for every row). Other refusals depend on the program
 * (score/ops.c, score/leaves.c, mask.c) or come from cuDNN.
 */
#include "attention.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"

#include <stdio.h>

enum { SM_80 = FXA__SM_80, SM_90 = FXA__SM_90, SM_100 = FXA__SM_100, SM_120 = FXA__SM_120, SM_OLD = FXA__SM_OLD };
enum { SM_ALL = FXA__SM_ALL };
enum { FORWARD = 1 << FXA_FORWARD, BACKWARD = 1 << FXA_BACKWARD, BOTH = FORWARD | BACKWARD };
/* HALVES: f16 and bf16; BYTES: e4m3 and e5m2; OTHERS: all other dtypes */
enum { HALVES = 1, OTHERS = 2, BYTES = 4, DTYPES = 7 };

#define SUPPORT_LAST INT64_MAX
#define SUPPORT_FIRST 91400 /* oldest version that was tested */
/* maximum extent of O and dO in backward, in elements: on a device, results were wrong from element offset 2^31 on
 * (row 128, if rows are 2^24 elements apart) */
#define SUPPORT_REACH ((int64_t)1 << 31)
#define SUPPORT_BOUNDS (FXA_PADDING | FXA_VARLEN | FXA_PAGED)
#define SUPPORT_BYTE_FLAGS                                                                                             \
    (SUPPORT_BOUNDS | FXA_SCALARS_IN_MEMORY | FXA_DETERMINISTIC | FXA_READ_DLSE | FXA_GRAD_SINKS | FXA_ACCUMULATE_DQ | \
     FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV)

/* ---- Conditions on problems, for the table support_rows ---------------------------------------------------------- */

static bool support_is_unaligned(const fxa_problem *p) { return p->alignment < 16; }
bool fxa__dnn_is_empty(const fxa_problem *p) {
    const bool packed = p->flags & FXA_VARLEN, paged = p->flags & FXA_PAGED;
    return p->b < 1 || p->hq < 1 || p->sq < 1 || p->sk < 1 || p->d_qk < 1 || p->d_v < 1 ||
           (packed && (p->total_q < 1 || (!paged && p->total_k < 1))) || (paged && p->n_pages < 1);
}
static bool support_is_one_row(const fxa_problem *p) { return p->sq == 1; }
static bool support_is_one_pair(const fxa_problem *p) { return p->sq == 1 && p->sk == 1; }
/* Returns true for a single query row with a mask. On a device, dQ of a single row without keys was NaN; with two or
 * more rows, dQ of a row without keys was 0, which is right. */
static bool support_is_masked_row(const fxa_problem *p) {
    int32_t mask = p->program ? fxa__program_output(p->program, FXA__OUT_MASK) : -1;
    if (mask < 0 || p->sq != 1) return false;
    const fxa__node *n = &p->program->nodes[mask];
    return n->op != FXA_OP_CONST || !n->imm;
}
/* Returns true if b * hq heads of the longer sequence and the larger head dim have more than 2^30 tiles of 64 x 64
 * elements, or if b hq sq sk exceeds an int64. cuDNN counts tiles in 32 bits, and aborts the process if the count
 * overflows to 0. */
static bool support_is_beyond(const fxa_problem *p) {
    enum { TILE = 64, MOST = 1 << 30 };
    int64_t longer = p->sq > p->sk ? p->sq : p->sk, wider = p->d_qk > p->d_v ? p->d_qk : p->d_v, tiles, pairs;
    int64_t tile = (longer + TILE - 1) / TILE * ((wider + TILE - 1) / TILE);
    bool fits = fxa__mul_i64(p->b, p->hq, &pairs) && fxa__mul_i64(pairs, tile, &tiles) && tiles <= MOST;
    return !fits || !fxa__mul_i64(pairs, p->sq, &pairs) || !fxa__mul_i64(pairs, p->sk, &pairs);
}
/* Returns true if o extends beyond 2^31 elements: where cuDNN computes row sums of dO * O, its element offsets have
 * 32 bits and a sign. */
static bool support_reaches_far(const fxa_problem *p, const fxa_operand *o) {
    const bool packed = p->flags & FXA_VARLEN;
    const int64_t size[3] = {packed ? 1 : p->b, p->hq, packed ? p->total_q : p->sq};
    int64_t sum = p->d_v, part;
    for (int i = 0; i < 3; i++) {
        bool fits = size[i] < 1 || (fxa__mul_i64(size[i] - 1, o->stride[i], &part) && fxa__add_i64(sum, part, &sum));
        if (!fits) return true;
    }
    return sum > SUPPORT_REACH;
}
bool fxa__dnn_is_far(const fxa_problem *p) {
    return p->pass == FXA_BACKWARD && (support_reaches_far(p, &p->o) || support_reaches_far(p, &p->dout));
}
static bool support_has_many(const fxa_problem *p) { return p->b > UINT16_MAX || p->hq > UINT16_MAX; }
static bool support_has_params(const fxa_problem *p) { return p->param_grads != 0; }
static bool support_is_odd(const fxa_problem *p) { return p->d_qk % 8 || p->d_v % 8; }
static bool support_is_odd_16(const fxa_problem *p) { return p->d_qk % 16 || p->d_v % 16; }
static bool support_is_e5m2(const fxa_problem *p) { return p->q.dtype == FXA_E5M2; }
static bool support_has_wide_output(const fxa_problem *p) { return !fxa__dtype_is_byte_float(p->o.dtype); }
/* Returns true for d_v above 128 with d_qk up to 128: cuDNN chooses kernels by d_qk alone. */
static bool support_is_wider(const fxa_problem *p) { return p->d_qk <= 128 && p->d_v > 128; }
static bool support_has_bprop(const fxa_problem *p) { return p->bprop != NULL; }
static bool support_is_odd_rows(const fxa_problem *p) { return p->sq % 16 != 0; }
static bool support_has_wide_lse(const fxa_problem *p) {
    return (p->flags & FXA_RETURN_LSE) && p->lse.dtype == FXA_F64;
}
static bool support_is_above_128(const fxa_problem *p) { return p->d_qk > 128 || p->d_v > 128; }
/* Returns true for d_qk > 192 with d_v <= 128. On a device, 20 of 31 problems with such head dims had wrong results;
 * none of 217 problems with other head dims had. */
static bool support_is_deep(const fxa_problem *p) { return p->d_qk > 192 && p->d_v <= 128; }
static bool support_is_above_256(const fxa_problem *p) { return p->d_qk > 256 || p->d_v > 256; }
static bool support_has_bounds(const fxa_problem *p) { return (p->flags & SUPPORT_BOUNDS) != 0; }
static bool support_has_sinks(const fxa_problem *p) { return (p->flags & (FXA_SINKS | FXA_SINK_ZERO)) != 0; }
static bool support_has_byte_sinks(const fxa_problem *p) {
    return fxa__dtype_is_byte_float(p->sinks.dtype) || fxa__dtype_is_byte_float(p->dsinks.dtype);
}
static bool support_is_not_128(const fxa_problem *p) { return p->d_qk != 128 || p->d_v != 128; }
static bool support_has_wide_backward(const fxa_problem *p) {
    const fxa_operand *grads[3] = {&p->dq, &p->dk, &p->dv};
    static const uint32_t flags[3] = {FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V};
    bool wide = p->o.dtype != FXA_E4M3 || !fxa__dtype_is_byte_float(p->dout.dtype);
    for (int i = 0; i < 3; i++) wide = wide || ((p->flags & flags[i]) && !fxa__dtype_is_byte_float(grads[i]->dtype));
    return wide;
}
static bool support_has_grads(const fxa_problem *p) { return fxa__dnn_bias_of(p) >= 0; }
static bool support_has_tiles_left(const fxa_problem *p) { return support_has_grads(p) && (p->sq % 64 || p->sk % 128); }
static bool support_has_groups(const fxa_problem *p) { return support_has_grads(p) && p->hq != p->hkv; }
/* Returns true if more than one captured tensor has a gradient, or if that tensor or its gradient has another dtype
 * than Q. */
static bool support_has_wide_grads(const fxa_problem *p) {
    bool other = false;
    int n = 0;
    for (size_t i = 0; i < p->n_captures; i++) {
        if (!p->captures[i].grad) continue;
        other =
            other || p->captures[i].grad_dtype != p->q.dtype || fxa_program_tensor(p->program, i).dtype != p->q.dtype;
        n++;
    }
    return other || n > 1;
}
static bool support_is_fixed(const fxa_problem *p) { return (p->flags & FXA_DETERMINISTIC) != 0; }
static bool support_has_own_grads(const fxa_problem *p) { return support_has_grads(p) && p->bprop; }

/* ---- The table of refusals --------------------------------------------------------------------------------------- */

typedef struct support_row {
    int64_t from, until;                 /* cuDNN versions from <= version < until */
    uint32_t families, passes, dtypes;   /* bit masks: device families, passes and dtypes that this row refuses */
    uint32_t flags;                      /* refuses only problems with one of these flags; 0 = any problem */
    bool (*holds)(const fxa_problem *p); /* refuses only problems for which this returns true; NULL: any problem */
    const char *why;                     /* the reason of the refusal, a part of the error message */
} support_row;

static const support_row support_rows[] = {
    {0, SUPPORT_FIRST, SM_ALL, BOTH, DTYPES, 0, NULL, "this engine is for cuDNN 9.14 and newer"},
    {0, SUPPORT_LAST, SM_OLD, BOTH, DTYPES, 0, NULL, "this engine is for devices from sm_80 on"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, OTHERS, 0, NULL, "cuDNN has fused attention for f16 and bf16, and for e4m3"},
    {0, SUPPORT_LAST, SM_80 | SM_100 | SM_120, BOTH, BYTES, 0, NULL, "floats of 8 bits were tried on sm_90 alone"},
    {0, 91900, SM_ALL, BOTH, BYTES, 0, NULL, "floats of 8 bits were tried with cuDNN 9.19 alone"},
    {92000, SUPPORT_LAST, SM_ALL, BOTH, BYTES, 0, NULL, "floats of 8 bits were tried with cuDNN 9.19, no newer"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, BYTES, 0, support_is_e5m2, "of 8 bits Q, K and V are to be e4m3"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, BYTES, 0, support_is_odd_16, "of 8 bits d_qk and d_v are to be multiples of 16"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, BYTES, 0, support_is_one_row, "of 8 bits cuDNN has no pass of one row"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, BYTES, 0, support_has_wide_output,
     "from Q, K and V of 8 bits O is to be e4m3 or e5m2"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, BYTES, 0, support_is_wider,
     "of 8 bits cuDNN touches memory outside where d_v is above 128 and d_qk is not"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, BYTES, 0, support_has_wide_lse, "of 8 bits LSE is to be f32"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, BYTES,
     SUPPORT_BOUNDS | FXA_SCALARS_IN_MEMORY | FXA_SINKS | FXA_SINK_ZERO | FXA_RETURN_ROW_MAX | FXA_ACCUMULATE_O, NULL,
     "it was not tried beside floats of 8 bits"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, 0, support_is_not_128,
     "of 8 bits cuDNN's backward has d_qk and d_v of 128"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, 0, support_is_odd_rows,
     "of 8 bits cuDNN's backward leaves out part of dQ where sq is no multiple of 16"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, 0, support_has_bprop,
     "of 8 bits the largest dS was seen wrong beside backward programs of the caller's"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, 0, support_has_wide_backward,
     "of 8 bits O is to be e4m3, and dO and gradients e4m3 or e5m2"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, SUPPORT_BYTE_FLAGS, NULL, "it was not tried beside gradients of 8 bits"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, BYTES, 0, support_has_grads,
     "gradients of captured tensors were not tried beside those of 8 bits"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, 0, support_is_unaligned,
     "cuDNN requires pointers that are multiples of 16"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, 0, fxa__dnn_is_empty,
     "b, hq, sq, sk, d_qk, d_v or, packed, total_q or total_k is 0: cuDNN takes nothing that is empty"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, 0, support_is_beyond,
     "b, hq, sq, sk are to cuDNN more tiles or pairs than it counts"},
    {0, SUPPORT_LAST, SM_90, BOTH, DTYPES, 0, support_is_above_256, "d_qk and d_v are to be at most 256"},
    {0, SUPPORT_LAST, SM_80 | SM_100 | SM_120, BOTH, DTYPES, 0, support_is_above_128,
     "d_qk and d_v are to be at most 128"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, 0, support_is_odd, "d_qk and d_v are to be multiples of 8"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, fxa__dnn_is_far,
     "cuDNN's backward counts elements of O and dO in 32 bits, and these reach further"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_many, "b and hq are to be at most 65535 in backward"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_is_one_pair,
     "sq and sk are 1: cuDNN has no such backward pass"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_is_masked_row,
     "sq is 1: cuDNN's gradients are wrong where a mask leaves one row nothing"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, FXA_DROPOUT, NULL,
     "cuDNN draws the pairs to drop in its own way, alike for several rows"},
    {0, 91801, SM_80, BOTH, DTYPES, SUPPORT_BOUNDS, NULL, "offsets of entries need cuDNN 9.18.1 below sm_90"},
    {0, SUPPORT_LAST, SM_100 | SM_120, BOTH, DTYPES, SUPPORT_BOUNDS, NULL,
     "lengths of entries were not tried on such a device"},
    {0, SUPPORT_LAST, SM_80, BACKWARD, DTYPES, SUPPORT_BOUNDS, NULL, "lengths of entries were not tried below sm_90"},
    {0, 91900, SM_90, BACKWARD, DTYPES, SUPPORT_BOUNDS, support_is_above_128,
     "before cuDNN 9.19 gradients beside lengths of entries are wrong beyond element 128 of the head dim"},
    {91900, SUPPORT_LAST, SM_90, BACKWARD, DTYPES, SUPPORT_BOUNDS, support_is_deep,
     "gradients beside lengths of entries are wrong where d_qk is above 192 and d_v is not above 128"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, FXA_PAGED, NULL, "cuDNN has no gradients of pages"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, DTYPES, FXA_SINKS | FXA_SINK_ZERO, support_is_one_row,
     "cuDNN has no sink for one row"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, DTYPES, FXA_SINKS | FXA_SINK_ZERO, support_has_bounds,
     "cuDNN has none beside lengths of entries"},
    {0, SUPPORT_LAST, SM_ALL, BOTH, DTYPES, FXA_SINKS, support_has_byte_sinks, "sinks are to have 16 bits or more"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, DTYPES, FXA_RETURN_ROW_MAX, support_has_sinks,
     "beside a sink cuDNN does not write the row maximum"},
    {0, SUPPORT_LAST, SM_ALL, FORWARD, DTYPES, FXA_RETURN_ROW_MAX, support_has_bounds,
     "beside lengths of entries cuDNN does not write the row maximum"},
    {0, SUPPORT_LAST, SM_80 | SM_120, BACKWARD, DTYPES, FXA_READ_DLSE, NULL,
     "on such a device cuDNN's backward takes two values per row, LSE and the sums of dO O"},
    {0, SUPPORT_LAST, SM_100, BACKWARD, DTYPES, FXA_READ_DLSE, support_is_fixed,
     "on such a device cuDNN has it beside sums in any order alone, without FXA_DETERMINISTIC"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_params,
     "gradients of params: cuDNN sums over pairs in 16 bits alone"},
    {0, SUPPORT_LAST, SM_80 | SM_100 | SM_120, BACKWARD, DTYPES, 0, support_has_grads,
     "gradients of captured tensors were tried on sm_90 alone"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_wide_grads,
     "gradients of captured tensors: cuDNN has that of one t[q, k], of the dtype of Q"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_tiles_left,
     "gradients of captured tensors: sq is to be a multiple of 64, and sk of 128"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_groups,
     "gradients of captured tensors were not tried with heads that share keys"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, 0, support_has_own_grads,
     "gradients of captured tensors were not tried beside bprop"},
    {0, SUPPORT_LAST, SM_ALL, BACKWARD, DTYPES, SUPPORT_BOUNDS | FXA_READ_DLSE | FXA_ACCUMULATE_DTENSORS,
     support_has_grads, "gradients of captured tensors were not tried beside it"},
};

const char *fxa__dnn_support_why(size_t row) {
    return row < sizeof support_rows / sizeof *support_rows ? support_rows[row].why : NULL;
}

/* Returns true if row r of support_rows refuses the problem for this cuDNN version and GPU. */
static bool support_row_says_no(const support_row *r, const fxa_problem *p, fxa__dnn_level level) {
    bool half = p->q.dtype == FXA_F16 || p->q.dtype == FXA_BF16;
    uint32_t dtype = half ? HALVES : fxa__dnn_is_fp8(p) ? BYTES : OTHERS;
    return level.version >= r->from && level.version < r->until && (r->families & fxa__dnn_family_of(level.arch)) &&
           (r->passes >> p->pass & 1u) && (r->dtypes & dtype) && (!r->flags || (p->flags & r->flags)) &&
           (!r->holds || r->holds(p));
}

/* Returns true if no row of support_rows refuses the problem; else fails the graph with the reason. */
static bool support_table_ok(fxa__dnn_graph *g, const fxa_problem *p, fxa__dnn_level level) {
    for (size_t i = 0; i < sizeof support_rows / sizeof *support_rows; i++) {
        const support_row *r = &support_rows[i];
        char what[64];
        if (!support_row_says_no(r, p, level)) continue;
        uint32_t flag = r->flags & p->flags;
        const char *name = flag ? fxa_flag_name(flag & (~flag + 1)) : NULL;
        if (name)
            (void)snprintf(what, sizeof what, "%s", name);
        else if (r->holds == support_is_unaligned)
            (void)snprintf(what, sizeof what, "alignment is %u", p->alignment);
        else
            (void)snprintf(what, sizeof what, "cuDNN %lld.%lld.%lld, sm_%d, %s, d_qk %lld, d_v %lld",
                           (long long)level.version / 10000, (long long)level.version / 100 % 100,
                           (long long)level.version % 100, (int)level.arch, fxa_dtype_name((fxa_dtype)p->q.dtype),
                           (long long)p->d_qk, (long long)p->d_v);
        (void)fxa__dnn_refuse(g, "%s: %s", what, r->why);
        return false;
    }
    return true;
}

/* ---- Dtypes and strides of operands ------------------------------------------------------------------------------ */

typedef struct support_operand {
    const char *name;
    const fxa_operand *operand;
    /* the operand is used in the passes of the bit mask `passes`, by problems with the flag `wanted` (0 = all) */
    uint32_t passes, wanted;
    bool keys;
    bool free; /* true: if Q, K and V have 8 bits, the dtype of this operand may differ from theirs */
} support_operand;

/* Returns true if cuDNN accepts dtype and strides of the operand; else fails the graph with the reason. */
static bool support_layout_ok(fxa__dnn_graph *g, const support_operand *o, uint32_t dtype, bool packed) {
    const int64_t *stride = o->operand->stride;
    /* true: the table support_rows has checked the operand's dtype already */
    bool free = o->free && fxa__dtype_is_byte_float(dtype);
    int64_t step = fxa__dtype_is_byte_float(o->operand->dtype) ? 16 : 8;
    if (o->operand->dtype != dtype && !free) {
        (void)fxa__dnn_refuse(g, "%s is %s and Q %s: cuDNN requires one dtype for all", o->name,
                              fxa_dtype_name((fxa_dtype)o->operand->dtype), fxa_dtype_name((fxa_dtype)dtype));
        return false;
    }
    bool ok = stride[3] == 1;
    for (int i = packed ? 1 : 0; i < 3; i++) ok = ok && stride[i] > 0 && stride[i] % step == 0;
    if (!ok)
        (void)fxa__dnn_refuse(g,
                              "strides of %s are %lld, %lld, %lld, %lld: cuDNN accepts 1 for the head dim, and "
                              "positive multiples of %lld for the others",
                              o->name, (long long)stride[0], (long long)stride[1], (long long)stride[2],
                              (long long)stride[3], (long long)step);
    return ok;
}

/* Returns true if cuDNN accepts all operands; else fails the graph with the reason. */
static bool support_operands_ok(fxa__dnn_graph *g, const fxa_problem *p) {
    const support_operand operands[] = {{"Q", &p->q, BOTH, 0, false, false},
                                        {"K", &p->k, BOTH, 0, true, false},
                                        {"V", &p->v, BOTH, 0, true, false},
                                        {"O", &p->o, BOTH, 0, false, true},
                                        {"dO", &p->dout, BACKWARD, 0, false, true},
                                        {"dQ", &p->dq, BACKWARD, FXA_GRAD_Q, false, true},
                                        {"dK", &p->dk, BACKWARD, FXA_GRAD_K, true, true},
                                        {"dV", &p->dv, BACKWARD, FXA_GRAD_V, true, true}};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        const support_operand *o = &operands[i];
        bool used = (o->passes >> p->pass & 1u) && (!o->wanted || (p->flags & o->wanted));
        bool packed = (p->flags & FXA_VARLEN) && !(o->keys && (p->flags & FXA_PAGED));
        if (used && !support_layout_ok(g, o, p->q.dtype, packed)) return false;
    }
    return true;
}

bool fxa__dnn_supports(fxa__dnn_graph *g, const fxa__problem *problem, fxa__dnn_level level) {
    const fxa_problem *p = &problem->in;
    return support_table_ok(g, p, level) && support_operands_ok(g, p);
}
