/* SPDX-License-Identifier: Apache-2.0
 *
 * explain: shows every stage of compilation for a program and a shape, as text or as JSON. The program shown is the one
 * that runs, built-in masks included. explain_gather computes all results before any is printed.
 */
#include "explain/explain.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* Reads --section. The names are the words of its placeholder in opts.def. */
static int explain_sections(cli *c, uint32_t *out) {
    const char *list = cli_options[OPT_SECTION].value, *word;
    const char *names[SECTION_COUNT];
    size_t at = 0, n = 0;
    for (const char *s = list; n < SECTION_COUNT; s += strcspn(s, "|") + 1)
        names[n++] = cli_format(c, "%.*s", (int)strcspn(s, "|"), s);
    *out = opt_has(c, OPT_SECTION) ? 0 : (1u << SECTION_COUNT) - 1;
    while ((word = opt_next(c, OPT_SECTION, &at)) != NULL) {
        int i = 0;
        while (i < SECTION_COUNT && strcmp(word, names[i]) != 0) i++;
        if (i < SECTION_COUNT) {
            *out |= 1u << i;
            continue;
        }
        const char *near = cli_nearest(word, names, SECTION_COUNT);
        return cli_fail(c, CLI_BAD_INPUT, "--section %.64s: %s%s%saccepted are %s", word, near ? "did you mean " : "",
                        near ? near : "", near ? "? " : "", list);
    }
    return CLI_OK;
}

/* Returns the text of index `axis` in the first load of `name`, and its length; NULL if there is none. */
static const char *explain_index_text(const char *text, const char *name, int axis, size_t *length) {
    size_t n = strlen(name);
    *length = 0;
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        bool inside = at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (inside || at[n] != '[') continue;
        const char *begin = at + n + 1, *s = begin;
        for (int depth = 0; *s && *s != '\n' && (depth > 0 || *s != ']'); s++) {
            depth += (*s == '[' || *s == '(') - (*s == ']' || *s == ')');
            if (depth > 0 || *s != ',') continue;
            if (axis-- == 0) break;
            begin = s + 1;
        }
        begin += strspn(begin, " ");
        *length = (size_t)(s - begin);
        return begin;
    }
    return text;
}

/* Chooses sizes for tensors whose sizes are not given. An axis indexed by b, h, q or k gets the extent of that
 * coordinate; another axis gets 64 + sq + sk, at most 8192, which covers differences of coordinates. The report lists
 * the chosen sizes. */
static int explain_assume_sizes(cli *c, cli_job *job) {
    const int64_t extents[] = {job->problem.b, job->problem.hq, job->problem.sq, job->problem.sk};
    static const char axes[] = "bhqk";
    int64_t side = 64; /* size of axes with other indices */
    for (int i = 2; i < 4 && side < 8192; i++) side += extents[i] < 8192 ? extents[i] : 8192;
    if (side > 8192) side = 8192;
    for (int i = 0; i < 2; i++) {
        cli_binding *b = i ? &job->bprop_bind : &job->bind;
        const fxa_program *program = i ? job->bprop : job->program;
        const char *text = program ? program_text(c, program) : "";
        if (!text) return cli_exit_code(c->error.status);
        for (size_t t = 0; t < b->n_tensors; t++)
            for (int d = 0; !b->sized[t] && d < b->views[t].rank; d++) {
                size_t length;
                const char *index = explain_index_text(text, fxa_program_tensor(program, t).name, d, &length);
                const char *which = length == 1 ? strchr(axes, *index) : NULL;
                int64_t size = which ? extents[which - axes] : side;
                b->captures[t].size[d] = size > 0 ? size : 1;
            }
    }
    return CLI_OK;
}

static int explain_tiles(cli *c, const cli_job *job, explanation *e) {
    const char *text = opt_get(c, OPT_TILE);
    fxa_error err;
    e->tile[0] = e->tile[1] = 128;
    if (text && (read_int_list(text, e->tile, 2) != 2 || e->tile[0] < 1 || e->tile[1] < 1))
        return cli_fail(c, CLI_BAD_INPUT, "--tile %.64s: two numbers from 1 are expected, as in 128,128", text);
    int rc = opt_int(c, OPT_B, 0, job->problem.b > 0 ? job->problem.b - 1 : 0, &e->b);
    if (rc == CLI_OK) rc = opt_int(c, OPT_H, 0, job->problem.hq > 0 ? job->problem.hq - 1 : 0, &e->h);
    if (rc != CLI_OK) return rc;
    e->has_tiles = job->problem.b > 0 && job->problem.hq > 0;
    if (e->has_tiles &&
        fxa_tiles_count(c->ctx, &job->problem, e->b, e->h, e->tile[0], e->tile[1], binding_params(&job->bind),
                        binding_ranges(c, &job->bind), &e->tiles, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

/* Checks the indices of captured tensors if all values are given. Without Q and K, scores count as 0. */
static int explain_indices(cli *c, const cli_job *job, explanation *e) {
    fxa_args args = FXA_ARGS_INIT;
    if (!e->has_values || !job->bind.n_tensors) return CLI_OK;
    args.params = job->bind.params;
    args.n_params = job->bind.n_params;
    args.tensors = job->bind.data;
    args.n_tensors = job->bind.n_tensors;
    return index_report_find(c, &job->problem, &args, &e->outside);
}

/* Counts the tiles, of the size that the engine uses, of the batch entry and head of e. */
static int explain_own_tiles(cli *c, const cli_job *job, const explanation *e, const fxa_support *s,
                             fxa_tile_counts *out) {
    fxa_error err;
    if (!e->has_tiles || !s->supported || s->tile_q < 1 || s->tile_k < 1) return CLI_OK;
    if (fxa_tiles_count(c->ctx, &job->problem, e->b, e->h, s->tile_q, s->tile_k, binding_params(&job->bind),
                        binding_ranges(c, &job->bind), out, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

/* Returns the share of a dense pass that remains. The share is "at least" the number if some tiles were not classified,
 * "at most" the number if values are missing, because mixed tiles may then be empty, and "not known" if both hold. */
explain_share explain_share_of(const explanation *e, int pass, size_t engine) {
    const fxa_tile_counts *t = &e->tiles_of[pass][engine];
    bool open = t->mixed > 0 && !e->has_values;
    return (explain_share){.left = t->mixed + t->full,
                           .all = t->empty + t->mixed + t->full + t->unknown,
                           .bound = t->unknown ? (open ? "not known" : "at least")
                                    : open     ? "at most"
                                               : "exact"};
}

static int explain_engines(cli *c, cli_job *job, explanation *e) {
    fxa_error err;
    for (int pass = 0; pass < 2; pass++) {
        fxa_problem p = job_planned(job, (fxa_pass)pass);
        size_t count = 0;
        p.engine = NULL; /* NULL = query every engine */
        if (fxa_support_query(c->ctx, &p, NULL, &count, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
        e->support[pass] = cli_alloc_array(c, (int64_t)count, sizeof(fxa_support));
        if (fxa_support_query(c->ctx, &p, e->support[pass], &count, &err) != FXA_OK)
            return cli_fail_library(c, &err, NULL);
        e->n_support[pass] = count;
        e->tiles_of[pass] = cli_alloc_array(c, (int64_t)count, sizeof(fxa_tile_counts));
        for (size_t i = 0; i < count; i++) {
            int rc = explain_own_tiles(c, job, e, &e->support[pass][i], &e->tiles_of[pass][i]);
            if (rc != CLI_OK) return rc;
        }
    }
    return CLI_OK;
}

/* Queries engines that refuse the backward pass once more, without gradients of params and captured tensors. */
static int explain_qkv(cli *c, cli_job *job, explanation *e) {
    fxa_problem p = job_backward(job);
    size_t count = e->n_support[1];
    bool wanted = p.param_grads != 0, refused = false;
    fxa_error err;
    for (size_t i = 0; i < p.n_captures; i++) wanted = wanted || p.captures[i].grad;
    for (size_t i = 0; i < count; i++) refused = refused || !e->support[1][i].supported;
    if (!wanted || !refused) return CLI_OK;
    job->qkv = true;
    p = job_backward(job);
    job->qkv = false;
    p.engine = NULL;
    fxa_support *reports = cli_alloc_array(c, (int64_t)count, sizeof *reports);
    if (fxa_support_query(c->ctx, &p, reports, &count, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    bool other = false;
    for (size_t i = 0; i < count; i++) other = other || strcmp(reports[i].reason, e->support[1][i].reason) != 0;
    if (other) e->qkv = reports;
    return CLI_OK;
}

/* Returns a plan's dump in which the line of tile counts is replaced. The plan counts tiles of batch entry 0 and head 0
 * without values; the new line has the counts that the section `engines` of the report shows. */
static char *explain_tape_tiles(cli *c, const cli_job *job, const explanation *e, int pass, const char *engine,
                                char *text) {
    static const char begin[] = "tiles of b 0, h 0";
    char *line = strncmp(text, begin, sizeof begin - 1) == 0 ? text : strstr(text, cli_format(c, "\n%s", begin));
    size_t which = 0;
    while (which < e->n_support[pass] && strcmp(e->support[pass][which].engine, engine) != 0) which++;
    if (!line || which == e->n_support[pass] || explain_share_of(e, pass, which).all == 0) return text;
    line += *line == '\n';
    const fxa_tile_counts *t = &e->tiles_of[pass][which];
    bool is_open = line[sizeof begin - 1] == ',', tensors = false, params = binding_params(&job->bind) == NULL;
    for (size_t i = 0; i < job->bind.n_tensors; i++) tensors = tensors || !job->bind.data[i];
    const char *open = !is_open            ? ""
                       : params && tensors ? ", for any params and tensor values"
                       : params            ? ", for any params"
                       : tensors           ? ", for any tensor values"
                                           : "",
               *rest = line + strcspn(line, "\n");
    const char *unknown = t->unknown ? cli_format(c, ", %" PRIu64 " not classified", t->unknown) : "";
    return cli_format(c,
                      "%.*stiles of b %" PRId64 ", h %" PRId64 "%s: %" PRIu64 " skipped, %" PRIu64
                      " with the mask, %" PRIu64 " without%s%s",
                      (int)(line - text), text, e->b, e->h, open, t->empty, t->mixed, t->full, unknown, rest);
}

/* Dumps the plans of both passes. If there is no plan for a pass, stores the reason. */
static int explain_tape(cli *c, cli_job *job, explanation *e) {
    for (int pass = 0; pass < 2; pass++) {
        fxa_problem p = job_planned(job, (fxa_pass)pass);
        fxa_plan *plan = NULL;
        fxa_error err;
        size_t size = 0;
        fxa_status status = fxa_plan_create(c->ctx, &p, &plan, &err);
        if (status == FXA_E_UNSUPPORTED || status == FXA_E_UNAVAILABLE) {
            e->tape_engine[pass] = cli_format(c, "%s", err.text);
            continue;
        }
        if (status == FXA_OK) status = fxa_plan_dump(plan, NULL, 0, &size, &err);
        char *text = status == FXA_OK ? cli_alloc(c, size + 1) : NULL;
        if (text) status = fxa_plan_dump(plan, text, size + 1, &size, &err);
        if (status == FXA_OK) {
            const char *detail = fxa_plan_description(plan);
            e->tape[pass] = explain_tape_tiles(c, job, e, pass, fxa_plan_engine(plan), text);
            e->tape_engine[pass] =
                cli_format(c, "%s%s%s%s", fxa_plan_engine(plan), *detail ? " (" : "", detail, *detail ? ")" : "");
        }
        fxa_plan_destroy(plan);
        if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    }
    return CLI_OK;
}

/* Makes the dumps that the sections classes, conjuncts and fused show. */
static int explain_dumps(cli *c, explanation *e) {
    for (int what = 0; what < 3; what++) {
        fxa_error err;
        size_t size = 0;
        if (!explain_has_section(e, SECTION_CLASSES + what)) continue;
        if (fxa_program_dump(e->program, (fxa_dump_kind)what, NULL, 0, &size, &err) != FXA_OK)
            return cli_fail_library(c, &err, NULL);
        char *text = cli_alloc(c, size + 1);
        if (fxa_program_dump(e->program, (fxa_dump_kind)what, text, size + 1, &size, &err) != FXA_OK)
            return cli_fail_library(c, &err, NULL);
        e->dump[what] = text;
    }
    return CLI_OK;
}

/* Fails for an unreadable target or an engine of another device, whichever sections are printed. */
static int explain_check_device(cli *c, const cli_job *job) {
    size_t count = 0;
    fxa_error err;
    bool given = job->problem.target || job->problem.engine;
    if (given && fxa_support_query(c->ctx, &job->problem, NULL, &count, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

static int explain_gather(cli *c, cli_job *job, explanation *e) {
    fxa_error err;
    e->has_values = binding_params(&job->bind) != NULL;
    for (size_t i = 0; i < job->bind.n_tensors; i++) e->has_values = e->has_values && job->bind.data[i];
    int rc = explain_assume_sizes(c, job);
    if (rc == CLI_OK) rc = job_run_program(c, job, &e->program);
    if (rc == CLI_OK) rc = explain_check_device(c, job);
    if (rc != CLI_OK) return rc;
    if (fxa_program_derivative(e->program, &e->derivative, &err) != FXA_OK)
        return cli_fail_library(c, &err, "derivative");
    cli_own_program(c, e->derivative);
    fxa_program_properties(e->program, &e->properties);
    e->canonical = program_text(c, e->program);
    e->derivative_text = program_text(c, e->derivative);
    e->bprop_text = job->bprop ? program_text(c, job->bprop) : NULL;
    if (!e->canonical || !e->derivative_text || (job->bprop && !e->bprop_text)) return cli_exit_code(c->error.status);
    rc = explain_dumps(c, e);
    if (rc != CLI_OK) return rc;
    bool hints = explain_has_section(e, SECTION_HINTS), tape = explain_has_section(e, SECTION_TAPE),
         engines = explain_has_section(e, SECTION_ENGINES) || hints || tape;
    if (explain_has_section(e, SECTION_TILES) || engines) rc = explain_tiles(c, job, e);
    if (rc == CLI_OK && explain_has_section(e, SECTION_INDICES)) rc = explain_indices(c, job, e);
    if (rc == CLI_OK && engines) rc = explain_engines(c, job, e);
    if (rc == CLI_OK && engines) rc = explain_qkv(c, job, e);
    if (rc == CLI_OK && tape) rc = explain_tape(c, job, e);
    return rc == CLI_OK && hints ? explain_find_hints(c, job, e) : rc;
}

int cmd_explain(cli *c) {
    cli_job *job;
    explanation *e = cli_alloc(c, sizeof *e);
    int rc = explain_sections(c, &e->sections);
    if (rc == CLI_OK) rc = job_make(c, false, &job);
    if (rc == CLI_OK) rc = explain_gather(c, job, e);
    if (rc != CLI_OK) return rc;
    values_warn(c, job->program, &job->bind, job->problem.q.dtype == FXA_F64);
    if (c->json)
        explain_json(c, job, e);
    else
        explain_text(c, job, e);
    return CLI_OK;
}
