/* SPDX-License-Identifier: Apache-2.0
 *
 * Enumerates problems with every pair of sizes at 0, 1 and the maximum. size_walk calls a function for each problem, in
 * both passes, several forms (padded, packed, paged, mapped), and with programs that read each input. The library
 * refuses combinations that contradict each other.
 */
#ifndef FXA_TESTS_SIZE_WALK_H
#define FXA_TESTS_SIZE_WALK_H

#include "t.h"

#include "fxattn/fxattn.h"

#include <stddef.h>

typedef struct size_walk_case {
    fxa_problem p;
    fxa_capture captures[1];
    fxa_program *program[8];
    char what[256]; /* for messages */
} size_walk_case;

static const char *const size_texts[] = {
    NULL,
    "mask = b % 2 == (q + k) % 2",
    "mask = h % 3 != k % 3\nscore = score * 2.0",
    "mask = (q * k) % 3 < 2",
    "score = score + float(h) * 0.1 + float(heads)\nmask = k_len - q_len + q >= k - b",
    "tensor t : f64[2]\nscore = score + t[h, (q - k) % 5]\nmask = t[b, k] > -0.5",
};
enum { SIZE_TEXTS = sizeof size_texts / sizeof *size_texts };

typedef struct size_axis {
    const char *name;
    int kind; /* 0 = field of i64; 1 = page_size; 2 = of the captured tensor; 3 = `begin` of a second segment */
    size_t at;
    int64_t most;
    uint32_t needs; /* flag without which the size is not used */
} size_axis;

#define SIZE_FIELD(name, most, needs)                                                                                  \
    { #name, 0, offsetof(fxa_problem, name), most, needs }
static const size_axis size_axes[] = {
    SIZE_FIELD(b, INT32_MAX, 0),
    SIZE_FIELD(hq, INT32_MAX, 0),
    SIZE_FIELD(hkv, INT32_MAX, 0),
    SIZE_FIELD(sq, INT32_MAX, 0),
    SIZE_FIELD(sk, INT32_MAX, 0),
    SIZE_FIELD(d_qk, FXA_MAX_D, 0),
    SIZE_FIELD(d_v, FXA_MAX_D, 0),
    SIZE_FIELD(global_q_len, INT32_MAX, 0),
    SIZE_FIELD(global_k_len, INT32_MAX, 0),
    SIZE_FIELD(global_heads, INT32_MAX, 0),
    SIZE_FIELD(total_q, INT32_MAX, FXA_VARLEN),
    SIZE_FIELD(total_k, INT32_MAX, FXA_VARLEN),
    SIZE_FIELD(n_pages, INT32_MAX, FXA_PAGED),
    SIZE_FIELD(window_left, INT32_MAX, FXA_WINDOW),
    SIZE_FIELD(window_right, INT32_MAX, FXA_WINDOW),
    {"page_size", 1, 0, INT32_MAX, FXA_PAGED},
    {"tensor size 0", 2, 0, INT64_MAX, 0},
    {"tensor size 1", 2, 1, INT64_MAX, 0},
    {"segment begin", 3, 0, INT64_MAX, 0},
};
enum { SIZE_AXES = sizeof size_axes / sizeof *size_axes };

/* Returns the value of a size at step 0 (0), 1 (1), 2 (maximum). d_v = 0 is expressed as FXA_D_V_ZERO. */
static int64_t size_value(const size_axis *axis, int step) {
    if (step == 0 && strcmp(axis->name, "d_v") == 0) return FXA_D_V_ZERO;
    return step == 0 ? 0 : step == 1 ? 1 : axis->most;
}

static void size_set(size_walk_case *c, const size_axis *axis, int64_t value) {
    if (axis->kind == 0) *(int64_t *)(void *)((char *)&c->p + axis->at) = value;
    if (axis->kind == 1) c->p.page_size = (uint32_t)value;
    if (axis->kind == 2) c->captures[0].size[axis->at] = value;
    if (axis->kind != 3) return;
    c->p.map_q.kind = FXA_MAP_SEGMENTS, c->p.map_q.n_segments = 2;
    c->p.map_q.segment[1] = (fxa_segment){value, 7, 1};
}

static const uint32_t size_forms[] = {0,
                                      FXA_PADDING | FXA_BOTTOM_RIGHT,
                                      FXA_VARLEN,
                                      FXA_PAGED | FXA_PADDING,
                                      FXA_WINDOW | FXA_SINK_ZERO,
                                      FXA_CAUSAL | FXA_DROPOUT};
enum { SIZE_FORMS = sizeof size_forms / sizeof *size_forms };

/* Initialises a problem with b 2, hq 4, hkv 2, sq 3, sk 5, d 4, dv 3, in f64. expanded: strides of inputs are 0, so
 * that memory sizes do not overflow if sizes are large. */
static void size_start(size_walk_case *c, uint32_t form, int text, fxa_pass pass, bool expanded) {
    fxa_problem *p = &c->p;
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    memset(c->captures, 0, sizeof c->captures);
    p->pass = (uint32_t)pass, p->b = 2, p->hq = 4, p->hkv = 2, p->sq = 3, p->sk = 5, p->d_qk = 4, p->d_v = 3;
    p->q.dtype = FXA_F64, p->page_size = 2, p->n_pages = 3, p->total_q = 5, p->total_k = 8;
    p->window_left = 2, p->window_right = 1, p->dropout_p = form & FXA_DROPOUT ? 0.25 : 0;
    p->flags = form | (pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_READ_DLSE : FXA_RETURN_LSE);
    p->program = c->program[text];
    if (p->program && fxa_program_tensor_count(p->program)) {
        c->captures[0].size[0] = 4, c->captures[0].size[1] = 5;
        c->captures[0].strided = expanded, c->captures[0].grad = pass && !expanded;
        p->captures = c->captures, p->n_captures = 1;
    }
    fxa_operand *const inputs[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
    for (size_t i = 0; expanded && i < sizeof inputs / sizeof *inputs; i++) inputs[i]->layout = FXA_LAYOUT_STRIDED;
    if (expanded && pass) p->o.layout = p->lse.layout = FXA_LAYOUT_STRIDED;
}

typedef void size_visit(size_walk_case *c, void *user);

static void size_pairs(size_walk_case *c, uint32_t form, int text, fxa_pass pass, size_visit *visit, void *user) {
    for (int a = 0; a < SIZE_AXES; a++)
        for (int b = a + 1; b < SIZE_AXES; b++) {
            const size_axis *x = &size_axes[a], *y = &size_axes[b];
            if ((x->needs & ~form) || (y->needs & ~form)) continue;
            if ((x->kind == 2 || y->kind == 2) && text + 1 < SIZE_TEXTS) continue;
            for (int steps = 0; steps < 9; steps++) {
                size_start(c, form, text, pass, steps % 3 == 2 || steps / 3 == 2);
                size_set(c, x, size_value(x, steps % 3));
                size_set(c, y, size_value(y, steps / 3));
                (void)snprintf(c->what, sizeof c->what, "%s, %s %" PRId64 ", %s %" PRId64 ", flags 0x%x, program %d",
                               pass ? "backward" : "forward", x->name, size_value(x, steps % 3), y->name,
                               size_value(y, steps / 3), form, text);
                visit(c, user);
            }
        }
}

/* Enumerates the problems. ctx: context of the programs. Of every `share` combinations of form and program, one is
 * used. */
static void size_walk(fxa_context *ctx, int share, size_visit *visit, void *user) {
    static size_walk_case c;
    fxa_error err;
    for (int i = 1; i < SIZE_TEXTS; i++) T_OK(fxa_program_parse(ctx, size_texts[i], SIZE_MAX, &c.program[i], &err));
    for (int pass = 0, n = 0; pass < 2; pass++)
        for (int form = 0; form < SIZE_FORMS; form++)
            for (int text = 0; text < SIZE_TEXTS; text++)
                if (n++ % share == 0) size_pairs(&c, size_forms[form], text, (fxa_pass)pass, visit, user);
    for (int i = 1; i < SIZE_TEXTS; i++) fxa_program_destroy(c.program[i]);
}

#endif
