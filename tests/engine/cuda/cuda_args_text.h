/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the arguments of kernels of the cuda engine as text, for cuda_plan_text.h. Pointers are written as the name of
 * a slot or tensor, or as an offset in the workspace (bed_bind of cuda_run_fixture.h).
 */
#ifndef FXA_TESTS_CUDA_ARGS_TEXT_H
#define FXA_TESTS_CUDA_ARGS_TEXT_H

#include "cuda_run_fixture.h"

/* The plan whose run is recorded, and the text. */
static struct {
    const bed *x;
    fxa__writer *w;
    struct FxaArgs last; /* arguments of the preceding launch */
    bool new_line;       /* true: the next argument starts a line */
    int digits;          /* significant digits of floats */
    int kept;            /* number of allocations on the device that are not released */
} plan_text;

#define PLAN_COUNTERS ((uintptr_t)1 << 45) /* counters of the instance */
#define PLAN_KEPT ((uintptr_t)1 << 46)     /* tables of the plan, 2^32 bytes each */
#define PLAN_WRITE(...) fxa__write_format(plan_text.w, __VA_ARGS__)

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Writes the name of the memory that a pointer of bed_bind points to. */
static void plan_pointer(const void *pointer) {
    uintptr_t at = (uintptr_t)pointer, offset = at & ((UINT64_C(1) << 36) - 1);
    int place = (int)(at >> 36) - 1;
    const fxa_program *program = plan_text.x->code.program.program;
    if (!pointer)
        PLAN_WRITE(" none");
    else if (place < 0)
        PLAN_WRITE(" no workspace"); /* tables of a plan are written without one */
    else if (at >= PLAN_KEPT)
        PLAN_WRITE(" table %d", (int)((at - PLAN_KEPT) >> 32)), offset &= UINT32_MAX;
    else if (at >= PLAN_COUNTERS)
        PLAN_WRITE(" counters");
    else if (at >= WATCH_WORKSPACE)
        PLAN_WRITE(" workspace");
    else if (at >= WATCH_PARAMS && place < 64)
        PLAN_WRITE(" gradient of params");
    else if (place < FXA_SLOT_COUNT)
        PLAN_WRITE(" %s", fxa_slot_name((fxa_slot)place));
    else if (place < 140)
        PLAN_WRITE(" %s", fxa_slot_name((fxa_slot)(place - 100)));
    else if (place < 180)
        PLAN_WRITE(" %s%s", place < 160 ? "" : "gradient of ", program->tensors[(place - 140) % 20].name);
    else
        PLAN_WRITE(" tensor %d of bprop", place - 180);
    if (offset) PLAN_WRITE("+%llu", (unsigned long long)offset);
}

static void plan_ints(const char *name, const int *n, int count) {
    int last = count;
    while (last > 0 && n[last - 1] == 0) last--;
    PLAN_WRITE(" %s", name);
    for (int i = 0; i < last; i++) PLAN_WRITE("%c%d", i ? ',' : ' ', n[i]);
}

static void plan_longs(const char *name, const long long *n, int count) {
    int last = count;
    while (last > 1 && n[last - 1] == 0) last--;
    PLAN_WRITE(" %s", name);
    for (int i = 0; i < last; i++) PLAN_WRITE("%c%lld", i ? ',' : ' ', n[i]);
}

static void plan_view(const struct FxaView *v) {
    plan_pointer(v->data);
    if (v->data) PLAN_WRITE(" %lld,%lld,%lld", v->b, v->h, v->s);
}

static void plan_capture(const struct FxaCapture *t) {
    plan_pointer(t->data);
    plan_ints("size", t->size, t->rank);
    plan_longs("stride", t->stride, t->rank);
}

static void plan_words(const struct FxaPackedOperand *x) {
    if (!x->to) return;
    PLAN_WRITE("\n    words of");
    plan_pointer(x->from);
    PLAN_WRITE(" %lld,%lld,%lld kind %d to", x->b, x->h, x->s, x->kind);
    plan_pointer(x->to);
    PLAN_WRITE(" ranges");
    plan_pointer(x->ranges);
    PLAN_WRITE(" pitch %lld length %d", x->pitch, x->length);
}

static void plan_array(const char *name, const struct FxaConvertArray *array) {
    PLAN_WRITE(" %s %s", name, fxa_dtype_name((fxa_dtype)array->type));
    plan_pointer(array->data);
    plan_longs("by", array->stride, 4);
}

static void plan_stage(const struct FxaConvert *s) {
    PLAN_WRITE("\n    copy");
    plan_array("to", &s->to), plan_array("from", &s->from), plan_longs("size", s->size, 4);
    PLAN_WRITE(" side %d add %d", s->side, s->add);
}

static void plan_places(const struct FxaCoordinates *x) {
    PLAN_WRITE("\n    coordinates");
    plan_pointer(x->out);
    PLAN_WRITE(" table"), plan_pointer(x->table);
    PLAN_WRITE(" dynamic"), plan_pointer(x->dynamic);
    PLAN_WRITE(" shift"), plan_pointer(x->shift);
    PLAN_WRITE(" size %lld x %lld base %lld step %lld lengths %lld %lld aligned %d", x->size, x->entries, x->base,
               x->step, x->q_len, x->k_len, x->aligned);
    for (int i = 0; i < x->segments; i++) PLAN_WRITE(" [%lld: %lld by %lld]", x->begin[i], x->from[i], x->by[i]);
}

static void plan_gradient(const struct FxaGradTensor *g) {
    PLAN_WRITE("\n    gradient"), plan_pointer(g->data);
    plan_ints("size", g->size, g->rank), plan_longs("stride", g->stride, g->rank);
    PLAN_WRITE(" %s add %d", fxa_dtype_name((fxa_dtype)g->dtype), g->add);
}

static void plan_targets(const int32_t *to) {
    PLAN_WRITE("\n    sums to");
    for (int i = 0; i < plan_text.x->code.program.switches.grad_sums; i++)
        if (to[i] >= 0)
            PLAN_WRITE(" param %d", (int)to[i]);
        else
            PLAN_WRITE(" tensor %d", (int)to[FXA_CUDA_SUMS + i]);
}

/* ---- FxaArgs ----------------------------------------------------------------------------------------------------- */

/* Writes the name of an argument, at the start of a group on a new line. */
static void plan_name(const char *name) {
    PLAN_WRITE(plan_text.new_line ? "\n    %s" : ", %s", name);
    plan_text.new_line = false;
}

/* Write an argument if it differs from that of the preceding launch. */
#define PLAN_CHANGED(field) (memcmp(&a->field, &last->field, sizeof a->field) != 0)
#define PLAN_NAMED(field) (PLAN_CHANGED(field) && (plan_name(#field), true))
#define PLAN_INT(field)                                                                                                \
    if (PLAN_NAMED(field)) PLAN_WRITE(" %lld", (long long)a->field)
#define PLAN_POINTER(field)                                                                                            \
    if (PLAN_NAMED(field)) plan_pointer(a->field)
#define PLAN_FLOAT(field)                                                                                              \
    if (PLAN_NAMED(field)) PLAN_WRITE(" %.*g", plan_text.digits, (double)a->field)
#define PLAN_VIEW(field)                                                                                               \
    if (PLAN_NAMED(field)) plan_view(&a->field)
#define PLAN_DIVISOR(field)                                                                                            \
    if (PLAN_NAMED(field)) PLAN_WRITE(" %u >> %u", a->field.factor, a->field.shift)
#define PLAN_GROUP plan_text.new_line = true

static void plan_args_operands(const struct FxaArgs *a, const struct FxaArgs *last) {
    PLAN_GROUP;
    PLAN_VIEW(q);
    PLAN_VIEW(k);
    PLAN_VIEW(v);
    PLAN_VIEW(o);
    PLAN_GROUP;
    PLAN_VIEW(grad_o);
    PLAN_VIEW(grad_q);
    PLAN_VIEW(grad_k);
    PLAN_VIEW(grad_v);
    PLAN_GROUP;
    PLAN_VIEW(dense);
    PLAN_VIEW(grad_dense);
    PLAN_GROUP;
    PLAN_POINTER(lse);
    PLAN_INT(lse_b);
    PLAN_INT(lse_h);
    PLAN_INT(lse_s);
    PLAN_POINTER(grad_lse);
    PLAN_INT(grad_lse_b);
    PLAN_INT(grad_lse_h);
    PLAN_INT(grad_lse_s);
    PLAN_POINTER(row_max);
    PLAN_INT(max_b);
    PLAN_INT(max_h);
    PLAN_INT(max_s);
    PLAN_GROUP;
    PLAN_POINTER(q_lens);
    PLAN_POINTER(k_lens);
    PLAN_POINTER(q_starts);
    PLAN_POINTER(k_starts);
    PLAN_POINTER(pages);
    PLAN_INT(pages_b);
    PLAN_INT(page_size);
    PLAN_INT(n_pages);
    PLAN_POINTER(sink);
    PLAN_POINTER(grad_sink);
}

static void plan_args_workspace(const struct FxaArgs *a, const struct FxaArgs *last) {
    PLAN_GROUP;
    PLAN_POINTER(lse2);
    PLAN_POINTER(delta);
    PLAN_POINTER(grad_q_sum);
    PLAN_POINTER(first_share);
    PLAN_POINTER(sent);
    PLAN_POINTER(next_tile);
    PLAN_POINTER(redo);
    PLAN_POINTER(partial);
    PLAN_POINTER(partial_ml);
    PLAN_POINTER(place_b);
    PLAN_POINTER(place_h);
    PLAN_POINTER(place_q);
    PLAN_POINTER(place_k);
    PLAN_GROUP;
    PLAN_POINTER(list.items);
    PLAN_POINTER(list.counts);
    PLAN_INT(list.pitch);
    PLAN_INT(list.b_rows);
    PLAN_INT(list.h_rows);
    PLAN_GROUP;
    PLAN_POINTER(diagonal.data);
    PLAN_INT(diagonal.b);
    PLAN_INT(diagonal.h);
    PLAN_INT(diagonal.zero);
    PLAN_POINTER(grad_diagonal.data);
    PLAN_INT(grad_diagonal.b);
    PLAN_INT(grad_diagonal.h);
    PLAN_INT(grad_diagonal.n);
    PLAN_INT(grad_diagonal.zero);
    PLAN_INT(grad_diagonal.zero_step);
    PLAN_INT(grad_diagonal.size);
    PLAN_POINTER(sums.data);
    PLAN_INT(sums.b);
    PLAN_INT(sums.h);
}

static void plan_args_program(const struct FxaArgs *a, const struct FxaArgs *last) {
    const struct FxaOperand *words[] = {&a->q_vector, &a->k_vector}, *before[] = {&last->q_vector, &last->k_vector};
    for (int i = 0; i < 2; i++) {
        if (memcmp(words[i], before[i], sizeof *words[i]) == 0) continue;
        PLAN_WRITE("\n    %c_vector", "qk"[i]), plan_pointer(words[i]->data);
        PLAN_WRITE(" %lld,%lld ranges", words[i]->b, words[i]->h), plan_pointer(words[i]->ranges);
        PLAN_WRITE(" %lld,%lld", words[i]->ranges_b, words[i]->ranges_h);
    }
    for (int i = 0; i < FXA_CUDA_TENSORS; i++) {
        if (PLAN_CHANGED(tensor[i])) PLAN_WRITE("\n    tensor[%d]", i), plan_capture(&a->tensor[i]);
        if (PLAN_CHANGED(grad_tensor[i])) PLAN_WRITE("\n    grad_tensor[%d]", i), plan_pointer(a->grad_tensor[i]);
    }
    for (int i = 0; i < FXA_CUDA_RANGES; i++)
        if (PLAN_CHANGED(ranges[i])) PLAN_WRITE("\n    ranges[%d]", i), plan_pointer(a->ranges[i]);
    if (PLAN_CHANGED(f)) PLAN_WRITE("\n    f");
    for (int i = 0; i < FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES; i++)
        if (PLAN_CHANGED(f[i])) PLAN_WRITE(" [%d] %.*g", i, plan_text.digits, (double)a->f[i]);
    if (PLAN_CHANGED(i)) PLAN_WRITE("\n    i");
    for (int n = 0; n < FXA_CUDA_SCALARS; n++)
        if (PLAN_CHANGED(i[n])) PLAN_WRITE(" [%d] %d", n, a->i[n]);
    PLAN_GROUP;
    PLAN_POINTER(scalars.scale);
    PLAN_POINTER(scalars.params);
    PLAN_POINTER(scalars.seed);
}

static void plan_args_sizes(const struct FxaArgs *a, const struct FxaArgs *last) {
    PLAN_GROUP;
    PLAN_INT(batch);
    PLAN_INT(heads);
    PLAN_INT(kv_heads);
    PLAN_INT(group);
    PLAN_INT(d);
    PLAN_INT(dv);
    PLAN_INT(q_len);
    PLAN_INT(k_len);
    PLAN_INT(q_pad);
    PLAN_INT(q_total);
    PLAN_INT(k_total);
    PLAN_INT(pad_rows);
    PLAN_GROUP;
    PLAN_INT(q_tiles);
    PLAN_INT(tiles);
    PLAN_INT(section);
    PLAN_INT(reverse);
    PLAN_INT(sent_all);
    PLAN_INT(splits);
    PLAN_INT(run);
    PLAN_GROUP;
    PLAN_DIVISOR(by_group);
    PLAN_DIVISOR(by_splits);
    PLAN_DIVISOR(by_shares);
    PLAN_DIVISOR(by_row_groups);
    PLAN_DIVISOR(by_kv_heads);
    PLAN_DIVISOR(by_order);
    PLAN_DIVISOR(by_section);
    PLAN_DIVISOR(by_last);
    PLAN_DIVISOR(by_heads);
    if (PLAN_NAMED(cut)) plan_ints("", a->cut, FXA_CUDA_DECODE_CUTS);
    PLAN_GROUP;
    PLAN_FLOAT(scale);
    PLAN_FLOAT(scale_log2);
    PLAN_INT(turned);
    PLAN_INT(seed[0]);
    PLAN_INT(seed[1]);
    PLAN_INT(drop_below);
    PLAN_FLOAT(keep_inverse);
}

static void plan_args(const struct FxaArgs *a) {
    plan_args_sizes(a, &plan_text.last);
    plan_args_operands(a, &plan_text.last);
    plan_args_program(a, &plan_text.last);
    plan_args_workspace(a, &plan_text.last);
    plan_text.last = *a;
}

#endif
