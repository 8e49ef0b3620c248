/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_program_dump: prints what the analyses of src/lower find for a program, as text. The printed program is the one
 * that engines run: conditions under which the score is -inf have become a part of the mask.
 */
#include "conjunct.h"
#include "depend.h"
#include "grad_class.h"
#include "fuse.h"

#include "../base/float_state.h"

/* limits of the report: maximum bytes of a printed expression, maximum lines of a printed list */
enum { REPORT_WIDTH = 72, REPORT_LINES = 64 };

static const char *const report_rate_texts[FXA__RATES] = {
    [FXA__RATE_RUN] = "per run",   [FXA__RATE_BATCH] = "per batch entry", [FXA__RATE_HEAD] = "per head",
    [FXA__RATE_ROW] = "per row",   [FXA__RATE_KEY] = "per key",           [FXA__RATE_HEAD_KEY] = "per head and key",
    [FXA__RATE_PAIR] = "per pair", [FXA__RATE_DIAGONAL] = "per diagonal",
};
static const char *const report_sum_texts[FXA__GRAD_KINDS] = {
    [FXA__GRAD_ONE] = "sum over all pairs",
    [FXA__GRAD_HEAD] = "sum over the pairs of a head or batch entry",
    [FXA__GRAD_ROW] = "sum over the pairs of a row",
    [FXA__GRAD_KEY] = "sum over the pairs of a key",
    [FXA__GRAD_DENSE] = "one element for each row and key",
    [FXA__GRAD_DIAGONAL] = "sum over the pairs of a diagonal",
    [FXA__GRAD_SCATTER] = "scattered sum, at indices that depend on data",
};

typedef struct report {
    fxa__writer w;
    const fxa_program *p, *d; /* the program and its derivative */
} report;

/* ---- Classes ----------------------------------------------------------------------------------------------------- */

/* Sets kept[i] if the value of node i has to be stored: node i is an output, or a node whose value
 * changes at another rate (fxa__rate) reads node i. */
static void report_mark_kept(const fxa_program *p, const fxa__depend *sets, uint8_t *kept) {
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int j = 0; j < p->nodes[i].n_args; j++) {
            int32_t arg = p->nodes[i].arg[j];
            if (fxa__lower_rate(&sets[arg]) != fxa__lower_rate(&sets[i])) kept[arg] = 1;
        }
    for (int32_t i = 0; i < p->n_outputs; i++) kept[p->outputs[i].value] = 1;
}

/* Returns true for constants, inputs and params, which are printed inside expressions, not on lines of their own. */
static bool report_is_leaf(const fxa__node *n) {
    return n->op == FXA_OP_CONST || n->op == FXA_OP_INPUT || n->op == FXA_OP_PARAM;
}

static void report_rates(report *r, const fxa__depend *sets, const uint8_t *kept) {
    int lines = 0, more = 0;
    for (int rate = FXA__RATE_RUN; rate < FXA__RATE_SCORE; rate++)
        for (int32_t i = 0; i < r->p->n_nodes; i++) {
            if (!kept[i] || report_is_leaf(&r->p->nodes[i]) || (int)fxa__lower_rate(&sets[i]) != rate) continue;
            if (lines++ >= REPORT_LINES) {
                more++;
                continue;
            }
            fxa__write_format(&r->w, "%-16s  ", report_rate_texts[rate]);
            fxa__program_print_value(r->p, i, REPORT_WIDTH, &r->w);
            fxa__write_format(&r->w, "\n");
        }
    if (more) fxa__write_format(&r->w, "... and %d more\n", more);
}

static void report_grads(report *r, const fxa__depend *sets) {
    for (int32_t i = 0; i < r->d->n_outputs; i++) {
        const fxa__output *out = &r->d->outputs[i];
        if (out->kind != FXA__OUT_DPARAM && out->kind != FXA__OUT_DLOAD) continue;
        if (i > REPORT_LINES) {
            fxa__write_format(&r->w, "... and %d more gradients\n", r->d->n_outputs - i);
            return;
        }
        bool tensor = out->kind == FXA__OUT_DLOAD;
        fxa__write_format(&r->w, "grad %s%s", tensor ? r->d->tensors[out->slot].name : r->d->params[out->slot].name,
                          tensor ? "[" : "");
        for (int32_t j = 0; j < out->n_index; j++) {
            if (j) fxa__write_format(&r->w, ", ");
            fxa__program_print_value(r->d, out->index[j], REPORT_WIDTH, &r->w);
        }
        fxa__write_format(&r->w, "%s: %s\n", tensor ? "]" : "", report_sum_texts[fxa__lower_grad(r->d, i, sets).kind]);
    }
}

/* Returns the dependency sets of a program, sets[n_nodes], which the caller frees; NULL if memory ran out. */
static fxa__depend *report_sets(const fxa_program *p) {
    size_t n = (size_t)p->n_nodes;
    fxa__linear *forms = fxa__alloc_array(p->host, n, sizeof *forms);
    fxa__depend *sets = fxa__alloc_array(p->host, n, sizeof *sets);
    if (forms && sets) {
        fxa__lower_affine(p, forms);
        fxa__lower_depend(p, forms, sets);
    } else {
        fxa__free(p->host, sets, n * sizeof *sets);
        sets = NULL;
    }
    fxa__free(p->host, forms, n * sizeof *forms);
    return sets;
}

static void report_classes(report *r) {
    size_t n = (size_t)r->p->n_nodes, dn = (size_t)r->d->n_nodes;
    fxa__depend *sets = report_sets(r->p), *dsets = report_sets(r->d);
    uint8_t *kept = fxa__alloc(r->p->host, n);
    if (sets && dsets && kept) {
        report_mark_kept(r->p, sets, kept);
        report_rates(r, sets, kept);
        report_grads(r, dsets);
    } else {
        r->w.failed = true;
    }
    fxa__free(r->p->host, kept, n);
    fxa__free(r->p->host, sets, n * sizeof *sets);
    fxa__free(r->d->host, dsets, dn * sizeof *dsets);
}

/* ---- Conjuncts --------------------------------------------------------------------------------------------------- */

/* Prints a sum of three terms, as in "q + w - 1": the text `first`, the node part->bound with its sign (no node if
 * `part` is NULL), and c. */
static void report_sum(report *r, const char *first, int64_t c, const fxa__part *part) {
    bool empty = *first == 0;
    fxa__write_format(&r->w, "%s", first);
    if (part && part->bound >= 0) {
        fxa__write_format(&r->w, part->times_bound < 0 ? (empty ? "-" : " - ") : (empty ? "" : " + "));
        fxa__program_print_value(r->p, part->bound, REPORT_WIDTH, &r->w);
        empty = false;
    }
    if (empty)
        fxa__write_format(&r->w, "%lld", (long long)c);
    else if (c != 0)
        fxa__write_format(&r->w, " %c %lld", c < 0 ? '-' : '+', (long long)(c < 0 ? -c : c));
}

static void report_part(report *r, const fxa__part *part) {
    const char *q = part->aligned ? "q + k_len - q_len" : "q", *length = part->of_length ? "k_len" : "";
    fxa__write_format(&r->w, "%-9s ", fxa__lower_part_name((fxa__part_kind)part->kind));
    switch ((fxa__part_kind)part->kind) {
    case FXA__PART_CAUSAL:
        fxa__write_format(&r->w, "k <= ");
        report_sum(r, q, part->c, part);
        break;
    case FXA__PART_WINDOW:
        fxa__write_format(&r->w, "%s - k <= ", q);
        report_sum(r, "", part->c, part);
        break;
    case FXA__PART_PREFIX:
        fxa__write_format(&r->w, "k <= ");
        report_sum(r, q, part->prefix, NULL);
        fxa__write_format(&r->w, " || k <= ");
        report_sum(r, length, part->c, part);
        break;
    case FXA__PART_LENGTH:
        fxa__write_format(&r->w, "k <= ");
        report_sum(r, length, part->c, part);
        break;
    default:
        fxa__write_format(&r->w, part->negated ? "not " : "");
        fxa__program_print_value(r->p, part->node, REPORT_WIDTH, &r->w);
    }
    if (part->needs_small_bound) {
        fxa__write_format(&r->w, "   (if -2^30 <= ");
        fxa__program_print_value(r->p, part->bound, REPORT_WIDTH, &r->w);
        fxa__write_format(&r->w, " <= 2^30)");
    }
    fxa__write_format(&r->w, "\n");
}

static void report_conjuncts(report *r) {
    fxa__conjuncts c;
    if (!fxa__lower_conjuncts(r->p->host, r->p, &c)) r->w.failed = true;
    for (size_t i = 0; i < c.n && i < REPORT_LINES; i++) report_part(r, &c.parts[i]);
    if (c.n > REPORT_LINES) fxa__write_format(&r->w, "... and %zu more\n", c.n - REPORT_LINES);
    fxa__lower_conjuncts_free(r->p->host, &c);
}

/* ---- The public call --------------------------------------------------------------------------------------------- */

/* Prints the fused program of score and derivative (fuse.h). */
static fxa_status report_fused(report *r, fxa_error *err) {
    fxa_program *fused = NULL;
    size_t size = 0;
    fxa_status status = fxa__lower_fuse(r->p->host, r->p, r->d, true, &fused, err);
    if (status == FXA_OK) status = fxa_program_print(fused, NULL, 0, &size, err);
    char *text = status == FXA_OK ? fxa__alloc(r->p->host, size + 1) : NULL;
    if (text) status = fxa_program_print(fused, text, size + 1, &size, err);
    if (text && status == FXA_OK) fxa__write_bytes(&r->w, text, size);
    r->w.failed = r->w.failed || (status == FXA_OK && !text);
    fxa__free(r->p->host, text, text ? size + 1 : 0);
    fxa_program_destroy(fused);
    return status;
}

static fxa_status report_check(const fxa_program *program, fxa_dump_kind what, const char *out, const size_t *needed,
                               fxa_error *err) {
    if (!program || (!out && !needed))
        return fxa__fail(err, FXA_E_ARGUMENT, program ? "both out and needed are NULL" : "program is NULL");
    if (program->kind != FXA_PROGRAM_SCORE)
        return fxa__fail(err, FXA_E_ARGUMENT, "only a score program is lowered as a whole; this is a %s program",
                         program->kind == FXA_PROGRAM_BPROP ? "bprop" : "derivative");
    if ((uint32_t)what > FXA_DUMP_FUSED)
        return fxa__fail(err, FXA_E_ARGUMENT, "dump kind %d is none: 0 (classes), 1 (conjuncts), 2 (fused) are",
                         (int)what);
    return FXA_OK;
}

fxa_status fxa_program_dump(const fxa_program *program, fxa_dump_kind what, char *out, size_t capacity, size_t *needed,
                            fxa_error *err) {
    FXA__FLOAT_SCOPE;
    FXA_TRY(report_check(program, what, out, needed, err));
    fxa_program *masked = NULL, *derivative = NULL;
    report r = {.w = {.host = program->host}};
    size_t size = 0;
    /* The cast drops const: fxa__program_extract_masks increases the reference count if it returns `program` itself. */
    fxa_status status = fxa__program_extract_masks(program->host, (fxa_program *)(uintptr_t)program, &masked, err);
    if (status == FXA_OK) status = fxa_program_derivative(program, &derivative, err);
    if (status != FXA_OK) goto done;
    r.p = masked, r.d = derivative;
    if (what == FXA_DUMP_CLASSES) report_classes(&r);
    if (what == FXA_DUMP_CONJUNCTS) report_conjuncts(&r);
    if (what == FXA_DUMP_FUSED) status = report_fused(&r, err);
    fxa__write_u8(&r.w, 0);
    if (status == FXA_OK && r.w.failed) status = fxa__fail_memory(err, "the lowering of a program");
    if (status != FXA_OK) goto done;
    status = fxa__bytes_out(r.w.data, r.w.size, out, capacity, &size, err);
    if (needed) *needed = size - 1;
done:
    fxa__writer_free(&r.w);
    fxa_program_destroy(derivative);
    fxa_program_destroy(masked);
    return status;
}
