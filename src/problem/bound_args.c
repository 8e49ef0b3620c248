/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the arguments of one run against the problem: whether pointers are set and aligned, whether counts and params
 * are right, and whether the workspace is large enough. Valid arguments are stored in an fxa__bound_args, which engines
 * read. The views of captured tensors are in memory of the calling function; no memory is allocated here. run_regions.c
 * checks that no output overlaps other memory; bound_args_values.c checks the values of lengths and page numbers.
 */
#include "index_check.h"
#include "scales.h"

#include "../base/dtype.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <string.h>

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* Returns true if the pointer `data` needs no check: it is not NULL, and the flag FXA_SKIP_POINTER_CHECKS is set. */
static bool args_are_unchecked(const fxa_args *args, const void *data) {
    return data && (args->flags & FXA_SKIP_POINTER_CHECKS);
}

/* Fails if the pointer of a region is NULL or not aligned, or if the region leaves the address space. `align`: the
 * alignment that the problem guarantees, 0 = none. The message for a NULL pointer names the flag that requires the
 * pointer; without a flag (NULL), the message has the text `why`. */
static fxa_status args_check_pointer(const char *kind, const char *name, const fxa__region *r, uint32_t align,
                                     const char *why, const char *flag, fxa_error *err) {
    int64_t first, end;
    if (fxa__region_is_empty(r)) return FXA_OK;
    if (!r->data)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is NULL; %s%s", kind, name, flag ? "asked for by " : why,
                         flag ? flag : "");
    size_t element = fxa__align_of((size_t)r->element);
    if ((uintptr_t)r->data % element)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p: its elements need a multiple of %zu bytes", kind, name,
                         r->data, element);
    if (align && (uintptr_t)r->data % align)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p: the problem's alignment promises a multiple of %u bytes",
                         kind, name, r->data, align);
    if (!fxa__region_addresses(r, &first, &end))
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p: its tensor leaves the address space", kind, name, r->data);
    return FXA_OK;
}

/* Returns the error for a slot that is set although the problem does not use it. */
static fxa_status args_fail_unused(fxa_slot slot, const char *verb, const char *lacks, const char *what,
                                   fxa_error *err) {
    return fxa__fail(err, FXA_E_BINDING, "slot %s is set, and this problem does not %s it: it lacks %s %s",
                     fxa_slot_name(slot), verb, lacks, what);
}

/* Checks the slots of operands. It is an error to set a slot of this pass without the flag that makes the pass use the
 * slot, because the data would be ignored without a message. Slots that only the other pass uses are ignored. */
static fxa_status args_check_operands(const fxa_problem *p, const fxa_args *args, fxa_error *err) {
    void *const *slot = args->slot;
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        fxa__role role = fxa__operand_role(p, info), by_flag = (fxa__role)info->role[p->pass];
        int64_t size[4];
        if (role == FXA__UNUSED && slot[info->slot] && by_flag != FXA__UNUSED)
            return args_fail_unused((fxa_slot)info->slot, by_flag == FXA__READ ? "read" : "write", "flag",
                                    info->flag_name, err);
        if (role == FXA__UNUSED || args_are_unchecked(args, slot[info->slot])) continue;
        fxa__operand_sizes(p, info->shape, size);
        FXA__ASSERT(fxa__operand_of(p, info)->layout == FXA_LAYOUT_STRIDED); /* problem_resolve.c has set all strides */
        fxa__region r = fxa__operand_region(fxa__operand_of(p, info), size, slot[info->slot]);
        FXA_TRY(args_check_pointer("slot", fxa_slot_name((fxa_slot)info->slot), &r, p->alignment, info->why,
                                   info->flag[p->pass] ? info->flag_name : NULL, err));
    }
    return FXA_OK;
}

/* [slot] Parts of two error messages about a slot:
 * - The slot is set, but the problem does not read it: "it lacks <lacks> <what>", such as "it lacks flag FXA_PADDING".
 * - The slot is NULL, but the problem reads it: `why`. */
static const struct args_table {
    const char *lacks, *what, *why;
} args_tables[FXA_SLOT_COUNT] = {
#define ARGS_MAP(slot, map)                                                                                            \
    [FXA_SLOT_MAP_##                                                                                                   \
        slot] = {"a " map, "of kind FXA_MAP_TABLE", "a FXA_MAP_TABLE map reads int32 coordinates from it"},            \
      [FXA_SLOT_OFFSET_##slot] = {"a " map, "with has_offset set", "a map with an offset reads one int32 from it"}
    [FXA_SLOT_Q_LENGTHS] = {"flag", "FXA_PADDING", ""},
    [FXA_SLOT_K_LENGTHS] = {"flag", "FXA_PADDING", ""},
    [FXA_SLOT_CU_Q] = {"flag", "FXA_VARLEN", "FXA_VARLEN reads int32 [B+1] offsets"},
    [FXA_SLOT_CU_K] = {"flag", "FXA_VARLEN", "FXA_VARLEN reads int32 [B+1] offsets"},
    [FXA_SLOT_PAGES] = {"flag", "FXA_PAGED", "FXA_PAGED reads int32 [B,ceil(sk/page_size)] page numbers"},
    [FXA_SLOT_Q_START] = {"flag", "FXA_Q_START", "FXA_Q_START reads int32 [B] positions"},
    [FXA_SLOT_SCALE] = {"flag", "FXA_SCALARS_IN_MEMORY", "FXA_SCALARS_IN_MEMORY reads one f64 from it"},
    [FXA_SLOT_SEED] = {"flag", "FXA_SCALARS_IN_MEMORY or FXA_DROPOUT", "FXA_SCALARS_IN_MEMORY reads one u64 from it"},
    [FXA_SLOT_PARAMS] = {"flag", "FXA_SCALARS_IN_MEMORY", "FXA_SCALARS_IN_MEMORY reads an f64 per param from it"},
    ARGS_MAP(B, "map_b"),
    ARGS_MAP(H, "map_h"),
    ARGS_MAP(Q, "map_q"),
    ARGS_MAP(K, "map_k"),
#undef ARGS_MAP
};

/* Returns an error for a scale slot that is set although the problem does not use it, unless the other pass uses the
 * slot. */
static fxa_status args_check_scale(const fxa_problem *p, fxa_slot slot, fxa_error *err) {
    const char *operand = fxa__scale_missing_operand(p, slot);
    if (fxa__scale_use_of(p, slot) == FXA__SCALE_IGNORED) return FXA_OK;
    if (!operand) return args_fail_unused(slot, "use", "flag", "FXA_SCALED", err);
    return args_fail_unused(slot, "use", operand, "of 8 bits", err);
}

/* Returns true if the problem reads any array that is not an operand: lengths, offsets, tables, scalars or scales. Most
 * problems read none; their unset slots are then skipped. */
static bool args_reads_tables(const fxa_problem *p) {
    const uint32_t flags = FXA_PADDING | FXA_VARLEN | FXA_PAGED | FXA_Q_START | FXA_SCALARS_IN_MEMORY | FXA_SCALED;
    const fxa_index_map *map[4] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    bool some = p->flags & flags;
    for (int i = 0; i < 4; i++) some = some || map[i]->kind == FXA_MAP_TABLE || map[i]->has_offset;
    return some;
}

static fxa_status args_check_tables(const fxa_problem *p, const fxa_args *args, fxa_error *err) {
    void *const *slot = args->slot;
    bool tables = args_reads_tables(p);
    for (int i = FXA_SLOT_Q_LENGTHS; i < FXA_SLOT_COUNT; i++) {
        if (!tables && !slot[i]) continue;
        const struct args_table *row = &args_tables[i];
        int64_t n = fxa__slot_length(p, (fxa_slot)i);
        bool scale = i > FXA_SLOT_PARAMS, optional = i == FXA_SLOT_Q_LENGTHS || i == FXA_SLOT_K_LENGTHS || scale;
        /* a problem with both VARLEN and PAGED does not use slot CU_K; setting the slot is no error */
        bool not_used = i == FXA_SLOT_CU_K && (p->flags & FXA_VARLEN);
        if (n < 0 && slot[i] && scale) FXA_TRY(args_check_scale(p, (fxa_slot)i, err));
        if (n < 0 && slot[i] && !scale && !not_used)
            return args_fail_unused((fxa_slot)i, "read", row->lacks, row->what, err);
        if (n < 0 || (optional && !slot[i]) || args_are_unchecked(args, slot[i])) continue;
        FXA__ASSERT(optional || row->why); /* args_tables has an entry for each required slot */
        fxa__region r = {slot[i], fxa__slot_element((fxa_slot)i), 1, {n}, {1}};
        FXA_TRY(args_check_pointer("slot", fxa_slot_name((fxa_slot)i), &r, 0, row->why, NULL, err));
    }
    if ((p->flags & FXA_PADDING) && p->b && !slot[FXA_SLOT_Q_LENGTHS] && !slot[FXA_SLOT_K_LENGTHS])
        return fxa__fail(
            err, FXA_E_BINDING,
            "slots Q_LENGTHS and K_LENGTHS are NULL; FXA_PADDING reads int32 [B] lengths from one or both");
    for (int i = FXA_SLOT_COUNT; i < FXA_SLOT_MAX; i++)
        if (slot[i])
            return fxa__fail(err, FXA_E_BINDING, "slot %d is set; this library has slots 0 to %d", i,
                             FXA_SLOT_COUNT - 1);
    return FXA_OK;
}

/* ---- Params ------------------------------------------------------------------------------------------------------ */

static fxa_status args_check_params(const char *name, const fxa_program *program, const double *params, size_t n,
                                    fxa_error *err) {
    size_t want = program ? fxa_program_param_count(program) : 0;
    if (n != want)
        return fxa__fail(err, FXA_E_BINDING, "n_%s is %zu: the program has %zu param%s", name, n, want,
                         fxa__plural(want));
    if (n && !params)
        return fxa__fail(err, FXA_E_BINDING, "%s is NULL: the program has %zu param%s", name, want, fxa__plural(want));
    size_t align = fxa__align_of(sizeof(double));
    if ((uintptr_t)params % align)
        return fxa__fail(err, FXA_E_BINDING, "%s is %p: doubles need a multiple of %zu bytes", name,
                         (const void *)params, align);
    for (size_t i = 0; i < n; i++) {
        fxa_param_info info = fxa_program_param(program, i);
        double x = params[i];
        if (info.type == FXA_INT && !(x >= INT32_MIN && x <= INT32_MAX && x == floor(x)))
            return fxa__fail(err, FXA_E_BINDING, "%s[%zu] (%s) is %.17g: an int param is a whole number of 32 bits",
                             name, i, info.name, x);
    }
    return FXA_OK;
}

static fxa_status args_check_dparams(const fxa_problem *p, const fxa_args *args, fxa_error *err) {
    size_t want = p->program ? fxa_program_param_count(p->program) : 0;
    if (!p->param_grads) return FXA_OK;
    if (args->n_dparams != want)
        return fxa__fail(err, FXA_E_BINDING, "n_dparams is %zu: the program has %zu param%s", args->n_dparams, want,
                         fxa__plural(want));
    if (!args->dparams)
        return fxa__fail(err, FXA_E_BINDING, "dparams is NULL; param_grads selects gradients of params");
    size_t align = fxa__align_of(sizeof(double));
    if ((uintptr_t)args->dparams % align)
        return fxa__fail(err, FXA_E_BINDING, "dparams is %p: doubles need a multiple of %zu bytes",
                         (void *)args->dparams, align);
    return FXA_OK;
}

/* ---- Captured tensors -------------------------------------------------------------------------------------------- */

typedef struct args_tensors {
    const char *name;
    const fxa_program *program;
    const fxa_capture *captures;
    size_t n;
    const void *const *data;
    size_t n_data;
} args_tensors;

static fxa_status args_check_tensors(const args_tensors *t, const fxa_args *args, uint32_t align, fxa_error *err) {
    const char *name = t->name;
    size_t n = t->n;
    if (t->n_data != n)
        return fxa__fail(err, FXA_E_BINDING, "n_%s is %zu: the program has %zu tensor%s", name, t->n_data, n,
                         fxa__plural(n));
    if (n && !t->data)
        return fxa__fail(err, FXA_E_BINDING, "%s is NULL: the program has %zu tensor%s", name, n, fxa__plural(n));
    for (size_t i = 0; i < n; i++) {
        if (args_are_unchecked(args, t->data[i])) continue;
        fxa_view v = fxa__capture_view(t->program, t->captures, i, t->data[i]);
        fxa__region r = fxa__view_region(&v);
        FXA_TRY(args_check_pointer(name, fxa_program_tensor(t->program, i).name, &r, align, "the program loads from it",
                                   NULL, err));
    }
    return FXA_OK;
}

/* Checks params and tensors of the user-written backward program. If the problem has no such program, n_bprop_params
 * and n_bprop_tensors must be 0. */
static fxa_status args_check_bprop(const fxa_problem *p, const fxa_args *args, fxa_error *err) {
    const size_t n[2] = {args->n_bprop_params, args->n_bprop_tensors};
    for (int i = 0; i < 2 && !p->bprop; i++)
        if (n[i])
            return fxa__fail(err, FXA_E_BINDING, "n_bprop_%s is %zu: the problem has no bprop",
                             i ? "tensors" : "params", n[i]);
    if (!p->bprop) return FXA_OK;
    FXA_TRY(args_check_params("bprop_params", p->bprop, args->bprop_params, args->n_bprop_params, err));
    return args_check_tensors(&(args_tensors){"bprop_tensors", p->bprop, p->bprop_captures, p->n_bprop_captures,
                                              args->bprop_tensors, args->n_bprop_tensors},
                              args, p->alignment, err);
}

/* Returns the address that receives the gradient of captured tensor i; NULL if the caller gave none. */
static const void *args_grad_pointer(const fxa_args *args, size_t i) {
    return i < args->n_dtensors && args->dtensors ? args->dtensors[i] : NULL;
}

static fxa_status args_check_grads(const fxa_problem *p, const fxa_args *args, fxa_error *err) {
    size_t requested = 0;
    for (size_t i = 0; i < p->n_captures; i++) requested += p->captures[i].grad;
    if (args->n_dtensors != p->n_captures && (requested || args->n_dtensors))
        return fxa__fail(err, FXA_E_BINDING, "n_dtensors is %zu: the program has %zu tensor%s", args->n_dtensors,
                         p->n_captures, fxa__plural(p->n_captures));
    for (size_t i = 0; i < p->n_captures; i++) {
        const char *name = fxa_program_tensor(p->program, i).name;
        const void *data = args_grad_pointer(args, i);
        if (data && !p->captures[i].grad)
            return fxa__fail(err, FXA_E_BINDING, "dtensors %s is set, and its capture does not ask for a gradient",
                             name);
        if (!p->captures[i].grad || args_are_unchecked(args, data)) continue;
        fxa_view v = fxa__capture_grad_view(p->program, p->captures, i, data);
        fxa__region r = fxa__view_region(&v);
        FXA_TRY(args_check_pointer("dtensors", name, &r, p->alignment, "its capture requests the gradient", NULL, err));
    }
    return FXA_OK;
}

/* ---- All arguments ----------------------------------------------------------------------------------------------- */

/* Sets *needed to `front` (bytes of the index check) + `engine` (bytes of the engine), and checks that the caller's
 * workspace has this size and is aligned. */
static fxa_status args_check_workspace(const fxa_args *args, size_t front, size_t engine, size_t *needed,
                                       fxa_error *err) {
    if (!fxa__add_size(front, engine, needed) || *needed > SIZE_MAX / 2)
        return fxa__fail(err, FXA_E_WORKSPACE, "%zu + %zu bytes of workspace are needed: more than %d bits count",
                         front, engine, (int)(8 * sizeof(size_t) - 1));
    if (*needed == 0) return FXA_OK;
    if (!args->workspace) return fxa__fail(err, FXA_E_WORKSPACE, "workspace is NULL: %zu bytes are needed", *needed);
    if (args->workspace_size < *needed)
        return fxa__fail(err, FXA_E_WORKSPACE, "workspace_size is %zu bytes: %zu are needed", args->workspace_size,
                         *needed);
    if ((uintptr_t)args->workspace % FXA_WORKSPACE_ALIGN)
        return fxa__fail(err, FXA_E_WORKSPACE, "workspace is %p: it needs a multiple of %d", args->workspace,
                         FXA_WORKSPACE_ALIGN);
    return FXA_OK;
}

/* If the problem has the flag SCALARS_IN_MEMORY, replaces the scalars in args by the values in the slots SCALE, SEED
 * and PARAMS. If the slots are on a device, which reads them during the run, args gets placeholders: scale NaN, seed 0,
 * no params. */
static void args_read_scalars(const fxa_problem *p, fxa_args *args, bool host) {
    if (!(p->flags & FXA_SCALARS_IN_MEMORY)) return;
    args->scale = host ? *(const double *)args->slot[FXA_SLOT_SCALE] : NAN;
    args->seed = host && (p->flags & FXA_DROPOUT) ? *(const uint64_t *)args->slot[FXA_SLOT_SEED] : 0;
    args->params = host ? args->slot[FXA_SLOT_PARAMS] : NULL;
    args->n_params = host && p->program ? fxa_program_param_count(p->program) : 0;
}

/* Checks the arguments that programs read: tables of index maps, params and captured tensors. Also checks lengths,
 * offsets and scalars. */
static fxa_status args_check_inputs(const fxa_problem *p, fxa_args *args, bool readable, fxa_error *err) {
    FXA_TRY(args_check_tables(p, args, err));
    args_read_scalars(p, args, readable);
    if (isinf(args->scale))
        return fxa__fail(err, FXA_E_BINDING, "scale is %g: accepted are finite numbers, or NAN for 1/sqrt(d)",
                         args->scale);
    if (readable || !(p->flags & FXA_SCALARS_IN_MEMORY))
        FXA_TRY(args_check_params("params", p->program, args->params, args->n_params, err));
    return args_check_tensors(
        &(args_tensors){"tensors", p->program, p->captures, p->n_captures, args->tensors, args->n_tensors}, args,
        p->alignment, err);
}

static fxa_status args_check_flags(const fxa_args *args, fxa_error *err) {
    if (!(args->flags & ~(uint32_t)FXA_SKIP_POINTER_CHECKS)) return FXA_OK;
    return fxa__fail(err, FXA_E_BINDING, "flags is %#x: accepted are 0 and FXA_SKIP_POINTER_CHECKS", args->flags);
}

static fxa_status args_check(const fxa_problem *p, fxa_args *args, bool readable, fxa_error *err) {
    FXA_TRY(args_check_flags(args, err));
    FXA_TRY(args_check_operands(p, args, err));
    FXA_TRY(args_check_inputs(p, args, readable, err));
    if (p->pass == FXA_BACKWARD) FXA_TRY(args_check_grads(p, args, err));
    FXA_TRY(args_check_dparams(p, args, err));
    return p->pass == FXA_BACKWARD ? args_check_bprop(p, args, err) : FXA_OK;
}

static void args_fill(const fxa_problem *p, const fxa_args *args, bool readable, fxa_view *views,
                      fxa__bound_args *out) {
    bool backward = p->pass == FXA_BACKWARD;
    size_t n = p->n_captures;
    FXA__ASSERT(2 * n + p->n_bprop_captures <= FXA__ARGS_VIEWS);
    fxa_view *grads = n ? views + n : NULL, *bprop = p->n_bprop_captures ? views + 2 * n : NULL;
    for (size_t i = 0; i < n; i++) views[i] = fxa__capture_view(p->program, p->captures, i, args->tensors[i]);
    for (size_t i = 0; backward && i < n; i++)
        grads[i] = fxa__capture_grad_view(p->program, p->captures, i, args_grad_pointer(args, i));
    for (size_t i = 0; i < p->n_bprop_captures; i++)
        bprop[i] = fxa__capture_view(p->bprop, p->bprop_captures, i, args->bprop_tensors[i]);
    memcpy(out->slot, args->slot, sizeof out->slot);
    fxa__scales_fill(p, readable, out);
    out->skip_pointer_checks = args->flags & FXA_SKIP_POINTER_CHECKS;
    out->scale = args->scale != args->scale ? 1 / sqrt((double)fxa__max_i64(p->d_qk, 1)) : args->scale;
    out->params = args->params;
    out->tensors = n ? views : NULL;
    out->dtensors = backward ? grads : NULL;
    out->dparams = p->param_grads ? args->dparams : NULL;
    out->bprop_params = p->bprop ? args->bprop_params : NULL;
    out->bprop_tensors = bprop;
    out->seed = args->seed;
    out->stream = args->stream;
    out->parallel_user = args->parallel_user;
    out->progress_fn = args->progress;
    out->progress_user = args->progress_user;
}

/* Replaces NULL pointers of empty operands and tensors by a valid address that is never dereferenced, because engines
 * add offsets to the pointers. Called for host memory only. */
static void args_replace_null(const fxa_problem *p, fxa_view *views, fxa__bound_args *out) {
    static const double never_read[1];
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        void **slot = &out->slot[info->slot];
        if (!*slot && fxa__operand_role(p, info) != FXA__UNUSED) *slot = (void *)(uintptr_t)never_read;
    }
    for (size_t i = 0; i < p->n_captures; i++)
        if (!views[i].data) views[i].data = never_read;
    for (size_t i = 2 * p->n_captures; i < 2 * p->n_captures + p->n_bprop_captures; i++)
        if (!views[i].data) views[i].data = never_read;
}

fxa_status fxa__bound_args_make(const fxa__problem *problem, const fxa_args *args, size_t engine_workspace,
                                bool readable, fxa_view *views, fxa__bound_args *out, fxa_error *err) {
    const fxa_problem *p = &problem->in;
    size_t front = fxa__index_workspace(problem), needed;
    fxa_args a = FXA_ARGS_INIT;
    memset(out, 0, sizeof *out);
    FXA_TRY(fxa__struct_read(&a, sizeof a, FXA__ARGS_MIN, args, "fxa_args", err));
    FXA_TRY(args_check(p, &a, readable, err));
    FXA_TRY(args_check_workspace(&a, front, engine_workspace, &needed, err));
    if (!(a.flags & FXA_SKIP_POINTER_CHECKS)) FXA_TRY(fxa__args_check_overlap(p, &a, needed, err));
    if (readable) FXA_TRY(fxa__args_check_values(p, a.slot, err));
    args_fill(p, &a, readable, views, out);
    if (readable) args_replace_null(p, views, out);
    out->index_memory = front ? a.workspace : NULL;
    out->workspace = engine_workspace ? (char *)a.workspace + front : NULL;
    out->workspace_size = engine_workspace;
    return fxa__ok(err);
}

/* Params and tensors of the user-written backward program are not checked in a forward pass, because only a backward
 * pass reads them. */
fxa_status fxa__bound_args_make_inputs(const fxa__problem *problem, const fxa_args *args, fxa_view *views,
                                       fxa__bound_args *out, fxa_error *err) {
    const fxa_problem *p = &problem->in;
    fxa_args a = FXA_ARGS_INIT;
    memset(out, 0, sizeof *out);
    FXA_TRY(fxa__struct_read(&a, sizeof a, FXA__ARGS_MIN, args, "fxa_args", err));
    FXA_TRY(args_check_inputs(p, &a, true, err));
    if (p->pass == FXA_BACKWARD) FXA_TRY(args_check_bprop(p, &a, err));
    FXA_TRY(fxa__args_check_values(p, a.slot, err));
    a.n_dtensors = 0;
    args_fill(p, &a, true, views, out);
    return FXA_OK;
}
