/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks flags, programs, sizes and dtypes of a problem; problem_resolve.c checks strides. Each refusal states the
 * given value and the accepted values. Fields that the problem does not use are cleared first, so they cannot fail a
 * check and do not change the key. A request that would have no effect is refused.
 */
#include "scales.h"

#include "../base/dtype.h"
#include "../base/num.h"

#include <string.h>

#define CHECK_MAX_ALIGNMENT 4096u
#define CHECK_MAX_TARGET 65536u

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

static void default_dtypes(fxa_problem *p) {
    uint32_t q = p->q.dtype ? p->q.dtype : (uint32_t)FXA_F32,
             row = q == FXA_F64 ? (uint32_t)FXA_F64 : (uint32_t)FXA_F32;
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        fxa_operand *t = fxa__operand_field(p, info);
        if (fxa__operand_role(p, info) == FXA__UNUSED) *t = (fxa_operand){0, FXA_LAYOUT_STRIDED, {0}};
        if (!t->dtype)
            t->dtype = info->shape == FXA__SHAPE_ROW || info->shape == FXA__SHAPE_SINK ? row
                       : info->slot == FXA_SLOT_DK                                     ? p->k.dtype
                       : info->slot == FXA_SLOT_DV                                     ? p->v.dtype
                                                                                       : q;
    }
}

void fxa__problem_default(fxa_problem *p) {
    /* RETURN_LSE has no effect in a backward pass, which always reads the LSE */
    if (p->pass == FXA_BACKWARD) p->flags &= ~(uint32_t)FXA_RETURN_LSE;
    if (p->hkv == 0) p->hkv = p->hq;
    p->d_v = p->d_v == FXA_D_V_ZERO ? 0 : p->d_v == 0 ? p->d_qk : p->d_v;
    if (p->global_heads == p->hq) p->global_heads = 0;
    if (!(p->flags & FXA_VARLEN)) p->total_q = 0;
    if ((p->flags & (FXA_VARLEN | FXA_PAGED)) != FXA_VARLEN) p->total_k = 0;
    if (!(p->flags & FXA_PAGED)) p->page_size = 0, p->n_pages = 0;
    if (!(p->flags & FXA_WINDOW)) p->window_left = p->window_right = 0;
    if (p->dropout_p == 0) p->dropout_p = 0; /* -0 becomes 0 */
    default_dtypes(p);
}

const char *fxa_flag_name(uint32_t flag) {
    switch (flag) {
#define CHECK_FLAG(name, bit, text)                                                                                    \
    case 1u << bit: return text;
        FXA_FLAG_MAP(CHECK_FLAG)
    default: return NULL;
    }
}

const char *fxa_device_name(fxa_device device) {
    switch (device) {
#define CHECK_DEVICE(name, value, text)                                                                                \
    case FXA_##name: return text;
        FXA_DEVICE_MAP(CHECK_DEVICE)
    default: return NULL;
    }
}

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

typedef struct check_flag {
    uint32_t flag, needs; /* needs: at least one of these flags must be set too; 0 = none */
    int pass;             /* the only pass that accepts the flag; -1 = both */
    const char *name, *needs_name;
} check_flag;

static const check_flag check_flags_table[] = {
    {FXA_RETURN_ROW_MAX, 0, FXA_FORWARD, "FXA_RETURN_ROW_MAX", NULL},
    {FXA_ACCUMULATE_O, FXA_RETURN_LSE, FXA_FORWARD, "FXA_ACCUMULATE_O", "FXA_RETURN_LSE"},
    {FXA_READ_DLSE, 0, FXA_BACKWARD, "FXA_READ_DLSE", NULL},
    {FXA_GRAD_Q, 0, FXA_BACKWARD, "FXA_GRAD_Q", NULL},
    {FXA_GRAD_K, 0, FXA_BACKWARD, "FXA_GRAD_K", NULL},
    {FXA_GRAD_V, 0, FXA_BACKWARD, "FXA_GRAD_V", NULL},
    {FXA_GRAD_SINKS, FXA_SINKS, FXA_BACKWARD, "FXA_GRAD_SINKS", "FXA_SINKS"},
    {FXA_ACCUMULATE_DQ, FXA_GRAD_Q, FXA_BACKWARD, "FXA_ACCUMULATE_DQ", "FXA_GRAD_Q"},
    {FXA_ACCUMULATE_DK, FXA_GRAD_K, FXA_BACKWARD, "FXA_ACCUMULATE_DK", "FXA_GRAD_K"},
    {FXA_ACCUMULATE_DV, FXA_GRAD_V, FXA_BACKWARD, "FXA_ACCUMULATE_DV", "FXA_GRAD_V"},
    {FXA_ACCUMULATE_DSINKS, FXA_GRAD_SINKS, FXA_BACKWARD, "FXA_ACCUMULATE_DSINKS", "FXA_GRAD_SINKS"},
    {FXA_ACCUMULATE_DTENSORS, 0, FXA_BACKWARD, "FXA_ACCUMULATE_DTENSORS", NULL},
    {FXA_ACCUMULATE_DPARAMS, 0, FXA_BACKWARD, "FXA_ACCUMULATE_DPARAMS", NULL},
};

#define CHECK_ALL_FLAGS ((1u << FXA_FLAG_COUNT) - 1u)

static fxa_status check_flags(const fxa_problem *p, fxa_error *err) {
    uint32_t flags = p->flags;
    if (p->pass > FXA_BACKWARD)
        return fxa__fail(err, FXA_E_PROBLEM, "pass is %u: accepted are 0 (forward) and 1 (backward)", p->pass);
    if (flags & ~CHECK_ALL_FLAGS)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "flags holds 0x%x, which this library does not know: accepted bits are 0x%x",
                         flags & ~CHECK_ALL_FLAGS, CHECK_ALL_FLAGS);
    for (size_t i = 0; i < sizeof check_flags_table / sizeof *check_flags_table; i++) {
        const check_flag *row = &check_flags_table[i];
        if (!(flags & row->flag)) continue;
        if (row->pass >= 0 && (uint32_t)row->pass != p->pass)
            return fxa__fail(err, FXA_E_PROBLEM, "flag %s belongs to %s, and pass is %s", row->name,
                             row->pass == FXA_FORWARD ? "forward" : "backward", p->pass ? "backward" : "forward");
        if (row->needs && !(flags & row->needs))
            return fxa__fail(err, FXA_E_PROBLEM, "flag %s needs %s", row->name, row->needs_name);
    }
    if ((flags & FXA_SINKS) && (flags & FXA_SINK_ZERO))
        return fxa__fail(err, FXA_E_PROBLEM,
                         "flags FXA_SINKS and FXA_SINK_ZERO are both set: a softmax has one sink at most");
    if ((flags & FXA_Q_START) && (flags & FXA_BOTTOM_RIGHT))
        return fxa__fail(err, FXA_E_PROBLEM,
                         "flags FXA_Q_START and FXA_BOTTOM_RIGHT are both set: both say where rows lie among the keys");
    return FXA_OK;
}

/* ---- Sizes and features ------------------------------------------------------------------------------------------ */

typedef struct check_size {
    const char *name;
    int64_t value, lo, hi; /* the size, and its limits, inclusive */
    const char *why;       /* reason for hi */
} check_size;

static fxa_status check_size_list(const check_size *list, size_t n, fxa_error *err) {
    for (size_t i = 0; i < n; i++)
        if (list[i].value < list[i].lo || list[i].value > list[i].hi)
            return fxa__fail(err, FXA_E_PROBLEM, "%s is %lld: accepted are %lld to %lld%s", list[i].name,
                             (long long)list[i].value, (long long)list[i].lo, (long long)list[i].hi, list[i].why);
    return FXA_OK;
}

static fxa_status check_sizes(const fxa_problem *p, fxa_error *err) {
    static const char *const coordinate = " (program coordinates are 32 bit)", *const offset = " (offsets are 32 bit)",
                             *const side = " (-1 does not limit the window)";
    const int64_t most = INT32_MAX;
    const check_size list[] = {
        {"b", p->b, 0, most, coordinate},
        {"hq", p->hq, 0, most, coordinate},
        {"hkv", p->hkv, 0, most, coordinate},
        {"sq", p->sq, 0, most, coordinate},
        {"sk", p->sk, 0, most, coordinate},
        {"d_qk", p->d_qk, 0, FXA_MAX_D, ""},
        {"d_v", p->d_v, 0, FXA_MAX_D, " (0: as d_qk), and -1 for none"},
        {"total_q", p->total_q, 0, most, offset},
        {"total_k", p->total_k, 0, most, offset},
        {"page_size", p->page_size, p->flags & FXA_PAGED ? 1 : 0, most, ""},
        {"n_pages", p->n_pages, 0, most, " (page numbers are 32 bit)"},
        {"global_q_len", p->global_q_len, 0, most, coordinate},
        {"global_k_len", p->global_k_len, 0, most, coordinate},
        {"global_heads", p->global_heads, 0, most, coordinate},
        {"window_left", p->window_left, -1, most, side},
        {"window_right", p->window_right, -1, most, side},
    };
    FXA_TRY(check_size_list(list, sizeof list / sizeof *list, err));
    if (p->hkv && p->hq % p->hkv)
        return fxa__fail(err, FXA_E_PROBLEM, "hq is %lld and hkv is %lld: hq must be a multiple of hkv",
                         (long long)p->hq, (long long)p->hkv);
    if (!(p->flags & FXA_DROPOUT) && p->dropout_p != 0)
        return fxa__fail(err, FXA_E_PROBLEM, "dropout_p is %g without flag FXA_DROPOUT", p->dropout_p);
    if (!(p->dropout_p >= 0 && p->dropout_p < 1))
        return fxa__fail(err, FXA_E_PROBLEM, "dropout_p is %g: accepted are 0 <= p < 1", p->dropout_p);
    return FXA_OK;
}

/* ---- Device and memory of the data ------------------------------------------------------------------------------- */

static fxa_status check_host(const fxa_problem *p, fxa_error *err) {
    if (p->ordinal != 0)
        return fxa__fail(err, FXA_E_PROBLEM, "ordinal is %d on device host: accepted is 0", (int)p->ordinal);
    if (p->target)
        return fxa__fail(err, FXA_E_PROBLEM, "target is set on device host: only plans for another device have one");
    if (p->flags & FXA_GRAPH_CAPTURE)
        return fxa__fail(err, FXA_E_PROBLEM, "flag FXA_GRAPH_CAPTURE is set on device host, which records no graphs");
    return FXA_OK;
}

static fxa_status check_place(const fxa_problem *p, fxa_error *err) {
    bool power = (p->alignment & (p->alignment - 1)) == 0 && p->alignment <= CHECK_MAX_ALIGNMENT;
    if (!fxa_device_name((fxa_device)p->device))
        return fxa__fail(err, FXA_E_PROBLEM, "device is %u: accepted are %u (host) and %u (cuda)", p->device,
                         (unsigned)FXA_HOST, (unsigned)FXA_CUDA);
    if (p->reserved) return fxa__fail(err, FXA_E_PROBLEM, "reserved is %u: accepted is 0", p->reserved);
    if (!power)
        return fxa__fail(err, FXA_E_PROBLEM, "alignment is %u: accepted are 0 and powers of two up to %u", p->alignment,
                         CHECK_MAX_ALIGNMENT);
    if (p->device == FXA_HOST) return check_host(p, err);
    if (p->ordinal < 0) return fxa__fail(err, FXA_E_PROBLEM, "ordinal is %d: accepted are 0 and more", (int)p->ordinal);
    if (p->target && strlen(p->target) > CHECK_MAX_TARGET)
        return fxa__fail(err, FXA_E_PROBLEM, "target has %zu characters: accepted are %u at most", strlen(p->target),
                         CHECK_MAX_TARGET);
    if (p->flags & FXA_BOUNDS_CHECK)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "flag FXA_BOUNDS_CHECK looks at captured tensors on the host, and device is %s",
                         fxa_device_name((fxa_device)p->device));
    return FXA_OK;
}

/* ---- Dtypes ------------------------------------------------------------------------------------------------------ */

static fxa_status check_dtypes(const fxa_problem *p, fxa_error *err) {
    char shown[24];
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        uint32_t dtype = fxa__operand_of(p, info)->dtype,
                 row = p->q.dtype == FXA_F64 ? (uint32_t)FXA_F64 : (uint32_t)FXA_F32;
        if (!fxa__dtype_is_float(dtype))
            return fxa__fail(err, FXA_E_PROBLEM, "%s.dtype is %s: accepted are f64, f32, f16, bf16, e4m3, e5m2",
                             info->name, fxa__dtype_show(dtype, shown));
        /* an LSE in f64 is allowed, for programs with large derivatives */
        bool wide = info->slot == FXA_SLOT_LSE && dtype == FXA_F64;
        if (info->shape == FXA__SHAPE_ROW && dtype != row && !wide)
            return fxa__fail(err, FXA_E_PROBLEM, "%s.dtype is %s and q.dtype is %s: accepted is %s%s", info->name,
                             fxa_dtype_name((fxa_dtype)dtype), fxa_dtype_name((fxa_dtype)p->q.dtype),
                             fxa_dtype_name((fxa_dtype)row),
                             info->slot == FXA_SLOT_LSE && row != FXA_F64 ? " or f64" : "");
    }
    int wide = (p->q.dtype == FXA_F64) + (p->k.dtype == FXA_F64) + (p->v.dtype == FXA_F64);
    if (wide != 0 && wide != 3)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "q, k, v have dtypes %s, %s, %s: arithmetic is in f64 when all three are f64, and in f32 when "
                         "none is",
                         fxa_dtype_name((fxa_dtype)p->q.dtype), fxa_dtype_name((fxa_dtype)p->k.dtype),
                         fxa_dtype_name((fxa_dtype)p->v.dtype));
    return FXA_OK;
}

/* ---- Programs and requested gradients ---------------------------------------------------------------------------- */

static fxa_status check_program(const char *name, const fxa_program *program, fxa_program_kind kind,
                                const fxa_capture *captures, size_t n, const char *array, fxa_error *err) {
    static const char *const kinds[] = {"SCORE", "BPROP", "DERIVATIVE"};
    size_t want = program ? fxa_program_tensor_count(program) : 0;
    if (program && fxa_program_get_kind(program) != kind)
        return fxa__fail(err, FXA_E_PROBLEM, "%s is a %s program: accepted is a %s program", name,
                         kinds[fxa_program_get_kind(program)], kinds[kind]);
    if (n != want)
        return fxa__fail(err, FXA_E_PROBLEM, "n_%s is %zu and %s has %zu tensor%s: one for each is needed", array, n,
                         name, want, fxa__plural(want));
    if (n && !captures)
        return fxa__fail(err, FXA_E_PROBLEM, "%s is NULL and %s has %zu tensor%s", array, name, want,
                         fxa__plural(want));
    for (size_t i = 0; i < n; i++)
        if (captures[i].reserved[0] || captures[i].reserved[1])
            return fxa__fail(err, FXA_E_PROBLEM, "reserved of %s[%zu] is not 0: was it filled with zeroes?", array, i);
    return FXA_OK;
}

/* Checks the requested gradients of captured tensors and params: only floats have gradients. Sets *tensors to true if
 * the gradient of a tensor is requested. */
static fxa_status check_program_grads(const fxa_problem *p, bool *tensors, fxa_error *err) {
    char shown[24];
    size_t n_params = p->program ? fxa_program_param_count(p->program) : 0;
    *tensors = false;
    for (size_t i = 0; i < p->n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(p->program, i);
        const fxa_capture *c = &p->captures[i];
        if (!c->grad) continue;
        *tensors = true;
        if (!fxa__dtype_is_float(t.dtype))
            return fxa__fail(err, FXA_E_PROBLEM,
                             "the gradient of tensor %s is asked for, and it is %s: only float tensors have one",
                             t.name, fxa_dtype_name(t.dtype));
        if (c->grad_dtype && !fxa__dtype_is_float(c->grad_dtype))
            return fxa__fail(err, FXA_E_PROBLEM,
                             "grad_dtype of tensor %s is %s: accepted are f64, f32, f16, bf16, e4m3, e5m2", t.name,
                             fxa__dtype_show(c->grad_dtype, shown));
    }
    for (size_t i = 0; i < 64; i++) {
        if (!(p->param_grads >> i & 1u)) continue;
        if (i >= n_params)
            return fxa__fail(err, FXA_E_PROBLEM, "param_grads selects param %zu, and program has %zu param%s", i,
                             n_params, fxa__plural(n_params));
        if (fxa_program_param(p->program, i).type != FXA_FLOAT)
            return fxa__fail(err, FXA_E_PROBLEM,
                             "param_grads selects param %s, which is an int: only floats have a gradient",
                             fxa_program_param(p->program, i).name);
    }
    return FXA_OK;
}

static fxa_status check_grads(const fxa_problem *p, fxa_error *err) {
    const uint32_t operand_grads = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_SINKS;
    bool tensors;
    FXA_TRY(check_program_grads(p, &tensors, err));
    if (p->pass == FXA_FORWARD) {
        const char *what = p->bprop ? "bprop" : tensors ? "grad of a capture" : p->param_grads ? "param_grads" : NULL;
        return what ? fxa__fail(err, FXA_E_PROBLEM, "%s is set, and pass is forward: it belongs to backward", what)
                    : FXA_OK;
    }
    if ((p->flags & FXA_ACCUMULATE_DTENSORS) && !tensors)
        return fxa__fail(err, FXA_E_PROBLEM, "flag FXA_ACCUMULATE_DTENSORS needs a capture with grad set");
    if ((p->flags & FXA_ACCUMULATE_DPARAMS) && !p->param_grads)
        return fxa__fail(err, FXA_E_PROBLEM, "flag FXA_ACCUMULATE_DPARAMS needs a bit of param_grads");
    if (!(p->flags & operand_grads) && !tensors && !p->param_grads)
        return fxa__fail(
            err, FXA_E_PROBLEM,
            "pass is backward and no gradient is asked for: set FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V, FXA_GRAD_SINKS, "
            "grad of a capture or a bit of param_grads");
    return FXA_OK;
}

fxa_status fxa__problem_check(const fxa_problem *p, fxa_error *err) {
    FXA_TRY(check_flags(p, err));
    FXA_TRY(check_sizes(p, err));
    FXA_TRY(check_place(p, err));
    FXA_TRY(check_dtypes(p, err));
    FXA_TRY(fxa__scales_check(p, err));
    FXA_TRY(check_program("program", p->program, FXA_PROGRAM_SCORE, p->captures, p->n_captures, "captures", err));
    FXA_TRY(check_program("bprop", p->bprop, FXA_PROGRAM_BPROP, p->bprop_captures, p->n_bprop_captures,
                          "bprop_captures", err));
    return check_grads(p, err);
}
