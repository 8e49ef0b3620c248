/* SPDX-License-Identifier: Apache-2.0
 *
 * Hints of explain: rewrites that would run faster or be recognised by the properties.
 */
#include "explain/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define HINT_WORTH 0.75 /* a hint is given only if following it leaves at most this share of the work */

static void hint_add(cli *c, explanation *e, const char *format, ...) CLI_PRINTF(3, 4);

static void hint_add(cli *c, explanation *e, const char *format, ...) {
    va_list args;
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (e->n_hints < EXPLAIN_HINTS) e->hints[e->n_hints++] = cli_format(c, "%s", text);
}

static int hint_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Copies data to `to`, contiguous and with each row along the last axis sorted. Returns true if an element moved. */
static bool hint_sort_rows(cli *c, const fxa_view *from, fxa_view *to) {
    int64_t count = 1, last = from->size[from->rank - 1];
    bool moved = false;
    *to = *from;
    for (int d = from->rank - 1; d >= 0; d--) {
        to->stride[d] = count;
        count *= from->size[d];
    }
    void *data = cli_alloc_array(c, count, fxa_dtype_size(from->dtype));
    double *row = cli_alloc_array(c, last, sizeof *row);
    to->data = data;
    for (int64_t i = 0; i < count; i += last) {
        int64_t base = 0, rest = i / last;
        for (int d = from->rank - 2; d >= 0; d--) {
            base += rest % from->size[d] * from->stride[d];
            rest /= from->size[d];
        }
        for (int64_t k = 0; k < last; k++) {
            row[k] = element_get(from->dtype, from->data, base + k * from->stride[from->rank - 1]);
            moved = moved || (k && row[k] < row[k - 1]);
        }
        qsort(row, (size_t)last, sizeof *row, hint_compare);
        for (int64_t k = 0; k < last; k++) element_set(from->dtype, data, i + k, row[k]);
    }
    return moved;
}

/* Returns true if v is an int tensor with one value per position that is not sorted; *to then has the sorted data. */
static bool hint_is_unsorted(cli *c, const fxa_problem *p, const fxa_view *v, fxa_view *to) {
    if (!v->data || v->rank < 1 || dtype_is_float(v->dtype) || v->dtype == FXA_B8) return false;
    int64_t last = v->size[v->rank - 1];
    for (int d = 0; d < v->rank; d++)
        if (v->size[d] < 1) return false;
    return (last == p->sq || last == p->sk) && hint_sort_rows(c, v, to);
}

/* Hint for document ids in arbitrary order: tiles that are mixed would be empty if the ids were sorted. The tiles are
 * counted again with the tensors sorted. */
static int hint_unsorted(cli *c, const cli_job *job, explanation *e) {
    cli_binding *b = cli_alloc(c, sizeof *b);
    const fxa_problem *p = &job->problem;
    const fxa_support *s = e->n_support[0] ? &e->support[0][0] : NULL;
    fxa_tile_counts now, sorted;
    cli_buf names = {0};
    fxa_error err;
    *b = job->bind;
    if (!e->has_values || !e->has_tiles || !s || s->tile_q < 1 || s->tile_k < 1) return CLI_OK;
    for (size_t i = 0; i < b->n_tensors; i++) {
        fxa_view to;
        if (!hint_is_unsorted(c, p, &b->views[i], &to)) continue;
        b->views[i] = to;
        b->data[i] = to.data;
        buf_printf(&names, "%s%s", names.size ? ", " : "", fxa_program_tensor(job->program, i).name);
    }
    if (!names.size) return CLI_OK;
    now = e->tiles_of[0][0];
    const char *list = cli_format(c, "%s", names.data);
    buf_free(&names);
    if (fxa_tiles_count(c->ctx, p, e->b, e->h, s->tile_q, s->tile_k, binding_params(b), binding_ranges(c, b), &sorted,
                        &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    double all = (double)(now.empty + now.mixed + now.full + now.unknown), left = all - (double)now.empty;
    double would = all - (double)sorted.empty;
    if (would <= HINT_WORTH * left)
        hint_add(c, e,
                 "%.200s: not sorted by position; with rows and keys sorted by these values, %s%.3g %% of "
                 "the work of a dense pass would remain, instead of %s%.3g %% (engine %s)",
                 list, sorted.unknown ? "at most " : "", 100 * would / all, now.unknown ? "at most " : "",
                 100 * left / all, s->engine);
    return CLI_OK;
}

int explain_find_hints(cli *c, const cli_job *job, explanation *e) {
    if (e->properties.flags & FXA_PROPERTY_SCORE_MASKS)
        hint_add(
            c, e,
            "a condition sets the score to -inf, which engines treat as a mask; if the program has mask = ... instead, "
            "the section properties shows the mask too");
    if (values_large_negative_text(e->program))
        hint_add(c, e, "%s", values_large_negative_text(e->program));
    else if (e->properties.flags & FXA_PROPERTY_LARGE_NEGATIVE)
        hint_add(
            c, e,
            "a condition adds -inf to the score; no tile is skipped for it, because +inf plus -inf is NaN: if a mask "
            "is meant, write mask = ...");
    if (e->properties.flags & FXA_PROPERTY_QUOTIENT_EQUAL)
        hint_add(
            c, e,
            "== or != compares exact quotients of ints: q / 32 == k / 32 holds only where q == k; if blocks are meant, "
            "write q // 32 == k // 32");
    return hint_unsorted(c, job, e);
}
