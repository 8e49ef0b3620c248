/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes arguments for any problem (any_call.h).
 */
#include "any_call.h"

#include "attn_tensor.h"
#include "base/dtype.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* Allocates a tensor of exactly its extent. Returns the address of its origin; NULL if it is empty. Sets *fits to false
 * and returns NULL if the capacity is exhausted. */
static void *any_take(any_call *x, const fxa__region *r, uint32_t align, bool written, fxa_dtype dtype, bool *fits) {
    int64_t lo, hi;
    if (!fxa__region_extent(r, &lo, &hi) || hi - lo > (int64_t)x->room || x->n_blocks == ANY_BLOCKS) {
        *fits = false;
        return NULL;
    }
    if (align < 16) align = 16;
    size_t bytes = (size_t)(hi - lo), before = (align - (size_t)(-lo) % align) % align; /* the origin is at byte -lo */
    any_block *b = &x->block[x->n_blocks++];
    void *memory = NULL;
    if (posix_memalign(&memory, align, bytes + before + (bytes == 0)) != 0) {
        x->n_blocks--;
        *fits = false;
        return NULL;
    }
    x->room -= bytes;
    *b = (any_block){memory, (unsigned char *)memory + before, bytes, written, dtype};
    memset(b->first, 0xff, bytes);
    return bytes ? b->first - lo : NULL;
}

static void any_fill_floats(const any_block *b, uint64_t *rng) {
    int64_t n = (int64_t)(b->bytes / fxa_dtype_size(b->dtype));
    for (int64_t i = 0; i < n; i++) fxa__store_f64(b->first, b->dtype, i, attn_real(rng, -1, 1));
}

static void any_fill_ints(const any_block *b, uint64_t *rng) {
    int64_t n = (int64_t)(b->bytes / fxa_dtype_size(b->dtype));
    for (int64_t i = 0; i < n; i++) {
        int64_t value = attn_int(rng, -1, 4);
        switch (b->dtype) {
        case FXA_I64: ((int64_t *)(void *)b->first)[i] = value; break;
        case FXA_I32: ((int32_t *)(void *)b->first)[i] = (int32_t)value; break;
        case FXA_I16: ((int16_t *)(void *)b->first)[i] = (int16_t)value; break;
        default: b->first[i] = (unsigned char)(value & 1); break;
        }
    }
}

static void any_fill(const any_block *b, uint64_t *rng) {
    if (fxa__dtype_is_float(b->dtype))
        any_fill_floats(b, rng);
    else
        any_fill_ints(b, rng);
}

/* ---- Operands and tables ----------------------------------------------------------------------------------------- */

static bool any_operands(any_call *x, uint64_t *rng) {
    const fxa_problem *p = &x->problem->in;
    bool fits = true;
    for (size_t i = 0; i < FXA__OPERAND_COUNT && fits; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        const fxa_operand *t = fxa__operand_of(p, info);
        fxa__role role = fxa__operand_role(p, info);
        int64_t size[4];
        if (role == FXA__UNUSED) continue;
        fxa__operand_sizes(p, info->shape, size);
        fxa__region r = fxa__operand_region(t, size, NULL);
        x->args.slot[info->slot] = any_take(x, &r, p->alignment, role == FXA__WRITTEN, (fxa_dtype)t->dtype, &fits);
        if (fits) any_fill(&x->block[x->n_blocks - 1], rng); /* results get values too, because some runs add to them */
    }
    return fits;
}

static void any_offsets(int32_t *cu, int64_t b, int64_t longest, int64_t total, uint64_t *rng) {
    cu[0] = 0;
    for (int64_t i = 0; i < b; i++) {
        int64_t most = fxa__min_i64(longest, total - cu[i]);
        cu[i + 1] = cu[i] + (int32_t)(i + 1 < b ? attn_int(rng, 0, most) : most);
    }
}

/* Draws sequence lengths; each is at most the difference of its two offsets. */
static void any_lengths(int32_t *len, const int32_t *cu, int64_t b, int64_t longest, uint64_t *rng) {
    for (int64_t i = 0; i < b; i++)
        len[i] = (int32_t)attn_int(rng, 0, cu ? fxa__min_i64(longest, (int64_t)cu[i + 1] - cu[i]) : longest);
}

static void any_table_values(any_call *x, fxa_slot slot, void *data, int64_t n, uint64_t *rng) {
    const fxa_problem *p = &x->problem->in;
    int32_t *ints = data;
    if (slot == FXA_SLOT_CU_Q || slot == FXA_SLOT_CU_K) {
        bool keys = slot == FXA_SLOT_CU_K;
        any_offsets(ints, p->b, keys ? p->sk : p->sq, keys ? p->total_k : p->total_q, rng);
    } else if (slot == FXA_SLOT_SCALE) {
        *(double *)data = 0.5;
    } else if (slot == FXA_SLOT_SEED) {
        *(uint64_t *)data = 7;
    } else if (slot == FXA_SLOT_PARAMS) {
        for (int64_t i = 0; i < n; i++) ((double *)data)[i] = 2;
    } else if (slot > FXA_SLOT_PARAMS) {
        *(float *)data = 1;
    } else {
        int64_t most = slot == FXA_SLOT_PAGES ? p->n_pages - 1 : 9;
        for (int64_t i = 0; i < n; i++) ints[i] = (int32_t)attn_int(rng, 0, fxa__max_i64(most, 0));
    }
}

static bool any_tables(any_call *x, uint64_t *rng) {
    const fxa_problem *p = &x->problem->in;
    bool fits = true;
    for (int slot = FXA_SLOT_Q_LENGTHS; slot < FXA_SLOT_COUNT && fits; slot++) {
        int64_t n = fxa__slot_length(p, (fxa_slot)slot);
        if (n < 0) continue;
        fxa__region r = {NULL, fxa__slot_element((fxa_slot)slot), 1, {n}, {1}};
        void *data = any_take(x, &r, 0, false, FXA_I32, &fits);
        x->args.slot[slot] = data;
        if (data && slot > FXA_SLOT_K_LENGTHS) any_table_values(x, (fxa_slot)slot, data, n, rng);
    }
    if (!fits) return false;
    void **slot = x->args.slot; /* lengths are drawn last, because they depend on the offsets */
    if (slot[FXA_SLOT_Q_LENGTHS]) any_lengths(slot[FXA_SLOT_Q_LENGTHS], slot[FXA_SLOT_CU_Q], p->b, p->sq, rng);
    int64_t keys = p->flags & FXA_PAGED && p->n_pages == 0 ? 0 : p->sk;
    if (slot[FXA_SLOT_K_LENGTHS]) any_lengths(slot[FXA_SLOT_K_LENGTHS], slot[FXA_SLOT_CU_K], p->b, keys, rng);
    return true;
}

/* ---- What programs read ------------------------------------------------------------------------------------------ */

static bool any_tensors(any_call *x, const fxa_program *program, const fxa_capture *captures, size_t n,
                        const void **data, uint64_t *rng) {
    bool fits = true;
    for (size_t i = 0; i < n && fits; i++) {
        fxa_view v = fxa__capture_view(program, captures, i, NULL);
        fxa__region r = fxa__view_region(&v);
        data[i] = any_take(x, &r, x->problem->in.alignment, false, v.dtype, &fits);
        if (fits) any_fill(&x->block[x->n_blocks - 1], rng);
    }
    return fits;
}

static bool any_gradients(any_call *x, uint64_t *rng) {
    const fxa_problem *p = &x->problem->in;
    bool fits = true;
    for (size_t i = 0; i < p->n_captures && fits; i++) {
        if (!p->captures[i].grad) continue;
        fxa_view v = fxa__capture_grad_view(p->program, p->captures, i, NULL);
        fxa__region r = fxa__view_region(&v);
        x->dtensors[i] = any_take(x, &r, p->alignment, true, v.dtype, &fits);
        if (fits) any_fill(&x->block[x->n_blocks - 1], rng);
    }
    return fits;
}

static bool any_programs(any_call *x, uint64_t *rng) {
    const fxa_problem *p = &x->problem->in;
    fxa_args *a = &x->args;
    for (int i = 0; i < FXA_MAX_PARAMS; i++) x->params[i] = x->bprop_params[i] = 2;
    a->params = x->params, a->n_params = p->program ? fxa_program_param_count(p->program) : 0;
    a->tensors = x->tensors, a->n_tensors = p->n_captures;
    if (!any_tensors(x, p->program, p->captures, p->n_captures, x->tensors, rng)) return false;
    if (p->pass == FXA_FORWARD) return true;
    a->dtensors = x->dtensors, a->n_dtensors = p->n_captures;
    a->dparams = x->dparams, a->n_dparams = a->n_params;
    a->bprop_params = x->bprop_params, a->n_bprop_params = p->bprop ? fxa_program_param_count(p->bprop) : 0;
    a->bprop_tensors = x->bprop_tensors, a->n_bprop_tensors = p->n_bprop_captures;
    return any_tensors(x, p->bprop, p->bprop_captures, p->n_bprop_captures, x->bprop_tensors, rng) &&
           any_gradients(x, rng);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Returns an estimate of the work: pairs times head dim and program nodes; -1 if it exceeds 63 bits. */
static int64_t any_work(const fxa__problem *problem) {
    const fxa_problem *p = &problem->in;
    const int64_t heads = fxa__max_i64(fxa__max_i64(p->hq, p->hkv), 1);
    const int64_t factor[5] = {fxa__max_i64(p->b, 1), heads, fxa__max_i64(p->sq, 1), fxa__max_i64(p->sk, 1),
                               p->d_qk + p->d_v + (int64_t)fxa_program_node_count(problem->program) + 1};
    int64_t work = 1;
    for (int i = 0; i < 5; i++)
        if (!fxa__mul_i64(work, factor[i], &work)) return -1;
    return work;
}

bool any_call_make(any_call *x, const fxa__problem *p, size_t workspace, size_t most, uint64_t seed) {
    uint64_t rng = seed;
    int64_t work = any_work(p);
    memset(x, 0, sizeof *x);
    x->args = (fxa_args)FXA_ARGS_INIT;
    x->problem = p, x->room = most;
    if (work < 0 || work > 64 * (int64_t)most || workspace > most) return false;
    fxa__region r = {NULL, 1, 1, {(int64_t)workspace}, {1}};
    bool fits = true;
    x->args.seed = 7, x->args.workspace_size = workspace;
    x->args.workspace = any_take(x, &r, FXA_WORKSPACE_ALIGN, true, FXA_U8, &fits);
    if (fits && any_operands(x, &rng) && any_tables(x, &rng) && any_programs(x, &rng)) return true;
    any_call_free(x);
    return false;
}

void any_call_free(any_call *x) {
    for (size_t i = 0; i < x->n_blocks; i++) free(x->block[i].memory);
    x->n_blocks = 0;
}
