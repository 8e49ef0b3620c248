/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which problems the engine supports, and which kernels run them. fxa__cuda_choose searches the table of
 * unsupported problems, then checks types and captured tensors, then generates the program's text, on which the choice
 * of the kernel family depends.
 */
#include "call.h"
#include "recipes.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../problem/geometry.h"

#include <stdio.h>
#include <string.h>

#define FORWARD (1u << FXA_FORWARD)
#define BACKWARD (1u << FXA_BACKWARD)
#define BOTH (FORWARD | BACKWARD)
#define SUPPORT_SPANS (FXA_PADDING | FXA_VARLEN)
#define SUPPORT_ACCUMULATES (FXA_ACCUMULATE_O | FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV)

enum {
    CU_MAX_COLUMNS = 256,
    CU_MAX_GRID = 65535,
    CU_MAX_LENGTH = FXA__CUDA_LENGTH,
    CU_MAX_TILES = 1 << 28,
    CU_MIN_TILE = 128 /* rows of the smallest query tile of kernels that store flags in tile indices */
};

/* ---- Conditions under which a problem is not supported ----------------------------------------------------------- */

static bool cu_is_f64(const fxa_problem *p) { return p->q.dtype == FXA_F64; }
static bool cu_is_wide(const fxa_problem *p) { return p->d_qk > CU_MAX_COLUMNS || p->d_v > CU_MAX_COLUMNS; }
static bool cu_lacks_heads(const fxa_problem *p) { return p->hq < 1 || p->d_qk < 1 || p->d_v < 1; }
static bool cu_is_beyond(const fxa_problem *p) { return p->b > CU_MAX_GRID || p->hq > CU_MAX_GRID; }
static bool cu_is_long(const fxa_problem *p) {
    return p->sq > CU_MAX_LENGTH || p->sk > CU_MAX_LENGTH || p->total_q > CU_MAX_LENGTH || p->total_k > CU_MAX_LENGTH ||
           p->n_pages > CU_MAX_LENGTH || p->hq * p->b > CU_MAX_LENGTH;
}
/* Returns true if the problem has too many query tiles for kernels that store flags in the high bits of a tile's index
 * (sm90/forward_shared.cuh). A packed batch entry can have one tile more than its rows fill
 * (common/tile_scheduler.cuh). */
static bool cu_has_many_tiles(const fxa_problem *p) {
    int64_t packed = p->total_q / CU_MIN_TILE + p->b, tiles = p->b * fxa__div_up(p->sq, (int64_t)CU_MIN_TILE);
    return (p->flags & FXA_VARLEN ? packed : tiles) * p->hq > CU_MAX_TILES;
}
static bool cu_has_long_table(const fxa_problem *p) {
    return p->page_size > 0 && p->b * fxa__div_up(p->sk, (int64_t)p->page_size) > CU_MAX_LENGTH;
}

/* ---- The table of unsupported problems --------------------------------------------------------------------------- */

/* A row describes problems that the engine does not support. test_cuda_choice.c has a problem for each row;
 * docs/cuda.md has a table of supported problems. */
static const struct cu_row {
    uint32_t passes;
    uint32_t flags;                      /* only problems with one of these flags are unsupported; 0 = with any flags */
    bool (*holds)(const fxa_problem *p); /* returns true if the problem is unsupported; NULL = always true */
    const char *why;
} cu_rows[] = {
    {BOTH, 0, cu_is_f64, "f64: kernels compute in f32, and take all other types"},
    {BOTH, 0, cu_is_wide, "d_qk and d_v are to be at most 256"},
    {BOTH, 0, cu_lacks_heads, "hq, d_qk and d_v are to be at least 1"},
    {BOTH, 0, cu_is_beyond, "b and hq are to be at most 65535"},
    {BOTH, 0, cu_is_long, "lengths, pages and b times hq are to be at most 2^28"},
    {BOTH, 0, cu_has_many_tiles, "tiles of 128 queries of all heads are to be at most 2^28"},
    {BOTH, FXA_SCALED, NULL, "kernels have no scales of operands"},
    {BACKWARD, FXA_PAGED, cu_has_long_table, "the table of pages is to have at most 2^28 entries"},
};

const char *fxa__cuda_refusal(size_t row) { return row < sizeof cu_rows / sizeof *cu_rows ? cu_rows[row].why : NULL; }

static fxa_status cu_check_table(const fxa_problem *p, fxa_error *err) {
    for (size_t i = 0; i < sizeof cu_rows / sizeof *cu_rows; i++) {
        const struct cu_row *r = &cu_rows[i];
        bool no = (r->passes >> p->pass & 1u) && (!r->flags || (p->flags & r->flags)) && (!r->holds || r->holds(p));
        if (!no) continue;
        uint32_t flag = r->flags & p->flags;
        const char *name = flag ? fxa_flag_name(flag & (~flag + 1)) : NULL;
        if (name) return fxa__fail(err, FXA_E_UNSUPPORTED, "%s: %s", name, r->why);
        return fxa__fail(err, FXA_E_UNSUPPORTED, "b %lld, hq %lld, sq %lld, sk %lld, d_qk %lld, d_v %lld: %s",
                         (long long)p->b, (long long)p->hq, (long long)p->sq, (long long)p->sk, (long long)p->d_qk,
                         (long long)p->d_v, r->why);
    }
    return FXA_OK;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

enum { CU_OPERANDS = 8 };

typedef struct cu_operand {
    fxa_slot slot;
    bool result;
    const fxa_operand *operand;
    int64_t size[4]; /* [b, h, s, d] */
} cu_operand;

/* Writes those of Q, K, V, O, dO, dQ, dK, dV that the pass reads or writes. Returns their number. */
static size_t cu_operands(const fxa_problem *p, cu_operand out[CU_OPERANDS]) {
    bool backward = p->pass == FXA_BACKWARD;
    const struct {
        fxa_slot slot;
        bool used, result;
    } all[CU_OPERANDS] = {{FXA_SLOT_Q, true, false},
                          {FXA_SLOT_K, true, false},
                          {FXA_SLOT_V, true, false},
                          {FXA_SLOT_O, true, !backward},
                          {FXA_SLOT_DO, backward, false},
                          {FXA_SLOT_DQ, backward && (p->flags & FXA_GRAD_Q), true},
                          {FXA_SLOT_DK, backward && (p->flags & FXA_GRAD_K), true},
                          {FXA_SLOT_DV, backward && (p->flags & FXA_GRAD_V), true}};
    size_t n = 0;
    for (size_t i = 0; i < CU_OPERANDS; i++) {
        int64_t d;
        if (!all[i].used) continue;
        out[n] = (cu_operand){all[i].slot, all[i].result, fxa__row_operand(p, all[i].slot, &d), {0}};
        fxa__cuda_operand_sizes(p, all[i].slot, out[n++].size);
    }
    return n;
}

fxa_dtype fxa__cuda_input_dtype(const fxa_problem *p) {
    cu_operand operands[CU_OPERANDS];
    size_t n = cu_operands(p, operands);
    bool same = p->q.dtype == FXA_F16 || p->q.dtype == FXA_BF16;
    for (size_t i = 0; i < n; i++)
        same =
            same && (operands[i].slot == FXA_SLOT_O || operands[i].result || operands[i].operand->dtype == p->q.dtype);
    return same ? (fxa_dtype)p->q.dtype : FXA_F32;
}

fxa_dtype fxa__cuda_output_dtype(const fxa_problem *p) {
    cu_operand operands[CU_OPERANDS];
    size_t n = cu_operands(p, operands);
    fxa_dtype dtype = fxa__cuda_input_dtype(p);
    bool same = true;
    for (size_t i = 0; i < n; i++) same = same && (!operands[i].result || operands[i].operand->dtype == dtype);
    return same ? dtype : FXA_F32;
}

/* Returns true if Q, K, V, O and gradients are aligned to 16 bytes and have strides that TMA supports: multiples of 16
 * bytes, > 0. Strides of axes of size 1 and of converted operands are not checked. */
static bool cu_is_aligned(const fxa_problem *p) {
    cu_operand operands[CU_OPERANDS];
    size_t n = cu_operands(p, operands);
    bool aligned = p->alignment >= 16;
    for (size_t i = 0; i < n; i++)
        for (int axis = 0; axis < 3; axis++) {
            int64_t stride = operands[i].operand->stride[axis];
            bool any = operands[i].size[axis] == 1 || fxa__cuda_is_converted(p, operands[i].slot);
            aligned = aligned && (any || (stride > 0 && stride % 8 == 0 && stride < FXA__CUDA_MAX_STRIDE));
        }
    return aligned;
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

static int32_t cu_columns(int64_t d) {
    static const int32_t compiled[] = {32, 64, 96, 128, 192, 256};
    size_t i = 0;
    FXA__ASSERT(d >= 1 && d <= CU_MAX_COLUMNS);
    while (compiled[i] < d) i++;
    return compiled[i];
}

static uint32_t cu_units(const fxa_problem *p, const fxa__cuda_choice *c, const fxa__cuda_program *g) {
    uint32_t units = 0;
    units |= 1u << c->recipe->main.unit;
    if (c->dq == FXA__CUDA_DQ_OWN_KERNEL) units |= 1u << c->recipe->dq_kernel.unit;
    if (p->pass == FXA_BACKWARD) units |= 1u << FXA__CUDA_PREPOST;
    if (g->switches.mask || g->switches.pack_operands) units |= 1u << FXA__CUDA_TILE_LISTS;
    if (g->operands.diagonal >= 0) units |= 1u << FXA__CUDA_DIAGONAL_TABLE;
    if (fxa__cuda_has_conversions(p) || c->traits.dropout == 2) units |= 1u << FXA__CUDA_CONVERT;
    if (fxa__cuda_has_gathered_pages(p)) units |= 1u << FXA__CUDA_PAGED_GRADS;
    if (p->pass == FXA_BACKWARD && (p->param_grads || fxa__cuda_tensor_grads(p)))
        units |= 1u << FXA__CUDA_CAPTURED_GRADS;
    return units;
}

/* Copies the switches (FXA_SWITCHES) that the generated text defines. With fast math, the soft cap is computed by the
 * tanh instruction, and its faster forms (softcap_series) are off. */
static void cu_switches(const fxa__cuda_program *g, struct FxaTraits *t) {
#define CU_SWITCH(member, macro, otherwise, meaning) t->member = g->switches.member;
    FXA_SWITCHES(CU_SWITCH)
#undef CU_SWITCH
    if (t->fast_math) t->softcap_series = 0;
}

static void cu_fill(const fxa__cuda_self *s, const fxa_problem *p, fxa__cuda_choice *c, const fxa__cuda_program *g) {
    fxa__cuda_case of = {s, p, g, c, c->traits};
    cu_switches(g, &of.traits);
    fxa__cuda_recipe_choose(&of, c);
    c->units = cu_units(p, c, g);
    c->converts = fxa__cuda_has_conversions(p);
    c->rounds_before_adding = c->out_dtype != FXA_F32 && (p->flags & SUPPORT_ACCUMULATES);
}

/* Sets the settings (FXA_SETTINGS) with which kernels of all families are compiled. */
static void cu_settings(const fxa__cuda_self *self, const fxa_problem *p, fxa__cuda_choice *c) {
    struct FxaTraits *t = &c->traits;
    bool drops = p->flags & FXA_DROPOUT, small = c->dtype != FXA_F32;
    t->d = cu_columns(p->d_qk);
    t->dv = cu_columns(p->d_v);
    t->f16 = c->dtype == FXA_F16;
    t->f32 = c->dtype == FXA_F32;
    t->out_f32 = c->out_dtype != c->dtype;
    t->o_f32 = p->pass == FXA_BACKWARD && small && fxa__cuda_kernel_dtype(p, FXA_SLOT_O) == FXA_F32;
    t->varlen = (p->flags & SUPPORT_SPANS) != 0;
    t->dropout = !drops ? 0 : fxa__cuda_has_mapped_coordinates(p) ? 2 : 1;
    t->paged = (p->flags & FXA_PAGED) && !fxa__cuda_has_gathered_pages(p);
    t->aligned = cu_is_aligned(p);
    t->fast_math = self->fast_math;
    t->row_max = p->pass == FXA_FORWARD && (p->flags & FXA_RETURN_ROW_MAX);
}

fxa_status fxa__cuda_choose(const fxa__cuda_self *self, const fxa__problem *p, fxa__cuda_choice *out,
                            fxa__cuda_program *program, fxa_error *err) {
    const fxa_problem *in = &p->in;
    *program = (fxa__cuda_program){.program = NULL};
    *out = (fxa__cuda_choice){.arch = self->arch};
    FXA_TRY(cu_check_table(in, err));
    out->dtype = fxa__cuda_input_dtype(in);
    out->out_dtype = fxa__cuda_output_dtype(in);
    cu_settings(self, in, out);
    FXA_TRY(fxa__cuda_generate(p, program, err));
    out->dense = program->assumed.dense;
    out->operands_fit = program->assumed.operands_fit;
    out->finite_factors = program->assumed.finite_factors;
    cu_fill(self, in, out, program);
    return FXA_OK;
}
