/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints explain as text.
 */
#include "explain/explain.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

const char *problem_shape_text(cli *c, const fxa_problem *p) {
    return cli_format(
        c, "b=%" PRId64 ",h=%" PRId64 ",hkv=%" PRId64 ",sq=%" PRId64 ",sk=%" PRId64 ",d=%" PRId64 ",d_v=%" PRId64, p->b,
        p->hq, p->hkv ? p->hkv : p->hq, p->sq, p->sk, p->d_qk, problem_dv(p));
}

void program_hash_text(const fxa_program *program, char out[33]) {
    uint8_t hash[16];
    fxa_program_hash(program, hash);
    hex_text(hash, sizeof hash, out);
}

static void explain_program(cli *c, const char *title, const char *text, const fxa_program *program) {
    char hash[33];
    cli_buf *out = &c->out;
    program_hash_text(program, hash);
    buf_printf(out, "%s   hash %s, %zu node%s\n", title, hash, fxa_program_node_count(program),
               plural((int64_t)fxa_program_node_count(program)));
    explain_layout(c, out, 2, text);
    /* the text has declarations only: the program changes no score */
    if (!strchr(text, '=')) buf_indented(out, 2, "# nothing changes: the identity");
}

static void explain_sources(cli_buf *out, const cli_texts *s) {
    if (s->n == 0) buf_text(out, "  # no text: the identity\n");
    for (size_t i = 0; i < s->n; i++) {
        if (s->list[i].kind != FXA_TEXT_STATEMENTS) {
            buf_printf(out, "  %s '", s->list[i].name);
            buf_add(out, s->list[i].text, s->list[i].size);
            buf_text(out, "'\n");
        } else {
            buf_printf(out, "  # %s\n", s->list[i].name);
            buf_indented(out, 2, s->list[i].text);
        }
    }
}

static void explain_values(cli *c, cli_buf *out, const fxa_program *program, const cli_binding *b) {
    for (size_t i = 0; i < b->n_params; i++) {
        fxa_param_info p = fxa_program_param(program, i);
        buf_printf(out, "  param  %-16s %-8s ", p.name, p.type == FXA_INT ? "int" : "float");
        if (b->has_param[i])
            buf_printf(out, "%.17g%s\n", b->params[i], b->is_default[i] ? " (default)" : "");
        else
            buf_text(out, "not given\n");
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        fxa_tensor_info t = fxa_program_tensor(program, i);
        buf_printf(out, "  tensor %-16s %s[%d]%*s ", t.name, fxa_dtype_name(t.dtype), t.rank,
                   (int)(5 - strlen(fxa_dtype_name(t.dtype))), "");
        if (!b->sized[i])
            buf_printf(out, "not given (%s is assumed)\n", sizes_text(c, b->captures[i].size, t.rank));
        else
            buf_printf(out, "%s%s\n", sizes_text(c, b->captures[i].size, t.rank), b->data[i] ? "" : ", no data");
    }
    if (b->n_params + b->n_tensors == 0) buf_text(out, "  none\n");
}

static void explain_depends(cli_buf *out, const char *what, uint32_t depends) {
    bool any = false;
    buf_printf(out, "  %s depends on ", what);
    for (unsigned i = 0; i < FXA_INPUT_COUNT; i++) {
        if (!(depends >> i & 1)) continue;
        buf_printf(out, "%s%s", any ? ", " : "", fxa_input_name((fxa_input)i));
        any = true;
    }
    buf_text(out, any ? "\n" : "nothing\n");
}

static void explain_properties_text(cli_buf *out, const fxa_program *program, const fxa_properties *f) {
    explain_depends(out, "score", f->score_depends);
    explain_depends(out, "mask ", f->mask_depends);
    const char *name;
    for (uint32_t flag = 1; (name = fxa_property_name(flag)) != NULL; flag <<= 1) {
        if (!(f->flags & flag)) continue;
        buf_printf(out, "  %s", name);
        if (flag == FXA_PROPERTY_SOFTCAP && f->softcap_param >= 0)
            buf_printf(out, " (param %s)", fxa_program_param(program, (size_t)f->softcap_param).name);
        else if (flag == FXA_PROPERTY_SOFTCAP && f->softcap != 0)
            buf_printf(out, " (%.17g)", f->softcap);
        if (flag == FXA_PROPERTY_WINDOW && f->window_left != INT32_MAX)
            buf_printf(out, ", q - k <= %d", f->window_left);
        if (flag == FXA_PROPERTY_WINDOW && f->window_right != INT32_MAX)
            buf_printf(out, ", k - q <= %d", f->window_right);
        buf_text(out, "\n");
    }
}

static void explain_own(cli_buf *out, const explanation *e, int pass, size_t engine) {
    const fxa_support *s = &e->support[pass][engine];
    const fxa_tile_counts *t = &e->tiles_of[pass][engine];
    explain_share share = explain_share_of(e, pass, engine);
    bool exact = strcmp(share.bound, "exact") == 0;
    if (share.all == 0) return;
    buf_printf(out, "                     skips empty tiles of %d row%s x %d key%s: ", (int)s->tile_q,
               plural(s->tile_q), (int)s->tile_k, plural(s->tile_k));
    if (strcmp(share.bound, "not known") == 0)
        buf_text(out, "the remaining share of the work of a dense pass is not known");
    else
        buf_printf(out, "%s%s%.3g %% of the work of a dense pass remains", exact ? "" : share.bound, exact ? "" : " ",
                   100 * (double)share.left / (double)share.all);
    buf_printf(out, " (b %" PRId64 ", h %" PRId64 ": %" PRIu64 " empty, %" PRIu64 " mixed, %" PRIu64 " full", e->b,
               e->h, t->empty, t->mixed, t->full);
    if (t->unknown) buf_printf(out, ", %" PRIu64 " not classified", t->unknown);
    buf_text(out, ")\n");
}

static void explain_answer(cli_buf *out, const fxa_support *s) {
    if (s->supported)
        buf_printf(out, "yes, %sdeterministic, workspace %" PRIu64 " bytes", s->deterministic ? "" : "not ",
                   s->workspace);
    if (s->supported && s->seconds > 0) buf_printf(out, ", about %.3g ms a run", 1e3 * s->seconds);
    if (s->supported)
        buf_text(out, "\n");
    else
        buf_printf(out, "no: %s\n", s->reason);
}

/* Lists the assumed sizes of captured tensors, on which the support results of engines depend. */
static void explain_assumed(cli_buf *out, const cli_job *job) {
    const cli_binding *b = &job->bind;
    bool any = false;
    for (size_t i = 0; i < b->n_tensors; i++) {
        if (b->sized[i]) continue;
        buf_printf(out, "%s%s", any ? ", " : "  assumed sizes (--tensor-size sets others): ",
                   fxa_program_tensor(job->program, i).name);
        any = true;
    }
    if (any) buf_text(out, "\n");
}

/* Adds one line for each other device of this build, with the names of its engines. */
static void explain_elsewhere(cli_buf *out, const explanation *e, int32_t device) {
    const char *name;
    for (int32_t other = 0; (name = fxa_device_name((fxa_device)other)) != NULL; other++) {
        bool any = false;
        for (size_t i = 0; other != device && i < e->n_support[0]; i++) {
            if (fxa_engine_device(i) != other) continue;
            buf_printf(out, "%s%s", any ? ", " : "  ", e->support[0][i].engine);
            any = true;
        }
        if (any) buf_printf(out, ": for device %s (--device %s)\n", name, name);
    }
}

static void explain_support(cli_buf *out, const explanation *e, int32_t device) {
    static const char *const passes[] = {"forward", "backward"};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < e->n_support[pass]; i++) {
            const fxa_support *s = &e->support[pass][i];
            if (fxa_engine_device(i) != device) continue;
            buf_printf(out, "  %-8s  %-8s ", passes[pass], s->engine);
            explain_answer(out, s);
            if (pass && e->qkv && strcmp(e->qkv[i].reason, s->reason) != 0) {
                buf_text(out, "                     of Q, K and V alone (--grads qkv) ");
                explain_answer(out, &e->qkv[i]);
            }
            explain_own(out, e, pass, i);
        }
    explain_elsewhere(out, e, device);
}

static void explain_values_text(cli *c, const cli_job *job) {
    buf_text(&c->out, "values\n");
    explain_values(c, &c->out, job->program, &job->bind);
    if (!job->bprop) return;
    buf_text(&c->out, "values of the backward\n");
    explain_values(c, &c->out, job->bprop, &job->bprop_bind);
}

static void explain_problem_text(cli *c, const fxa_problem *p) {
    buf_printf(&c->out, "problem   %s, %s%s\n", problem_shape_text(c, p), fxa_dtype_name((fxa_dtype)p->q.dtype),
               problem_on_text(c, p));
    if (problem_row_shift(p))
        buf_printf(&c->out, "          rows align to the last key: row 0 has q = %" PRId64 "\n", problem_row_shift(p));
}

static void explain_indices_text(cli *c, const cli_job *job, const explanation *e) {
    buf_text(&c->out, "indices\n");
    if (e->outside.n == 0)
        buf_text(&c->out, e->has_values ? "  all inside their tensors\n" : "  not checked: values are missing\n");
    for (size_t i = 0; i < e->outside.n; i++)
        buf_printf(&c->out, "  %s\n", index_report_text(c, job, &e->outside.list[i]));
}

static void explain_tiles_text(cli_buf *out, const explanation *e) {
    buf_printf(out,
               "tiles     %" PRId64 " x %" PRId64 " of b %" PRId64 ", h %" PRId64 ": %s%" PRIu64 " empty, %" PRIu64
               " mixed, %" PRIu64 " full\n"
               "          empty: no pair is attended; full: every pair is; mixed: neither is proven\n",
               e->tile[0], e->tile[1], e->b, e->h, e->tiles.unknown ? "at least " : "", e->tiles.empty, e->tiles.mixed,
               e->tiles.full);
    if (e->tiles.unknown)
        buf_printf(out, "          %" PRIu64 " not classified: so much of the mask is mixed that counting stopped\n",
                   e->tiles.unknown);
}

static void explain_dumps_text(cli *c, const explanation *e, int section) {
    static const char *const titles[] = {"classes   how often each value changes, and what each gradient sums",
                                         "conjuncts   conditions of the mask, which must all hold",
                                         "fused   score, mask, derivative and gradients as one program"};
    static const char *const nothing[] = {"no value except the score", "none: every pair is attended", ""};
    int what = section - SECTION_CLASSES;
    const char *text = e->dump[what];
    buf_printf(&c->out, "%s\n", titles[what]);
    if (section == SECTION_FUSED)
        explain_layout(c, &c->out, 2, text);
    else
        buf_indented(&c->out, 2, *text ? text : nothing[what]);
}

static void explain_tape_text(cli *c, const explanation *e) {
    static const char *const passes[] = {"forward", "backward"};
    for (int pass = 0; pass < 2; pass++) {
        buf_printf(&c->out, "tape of the %s pass   %s%s\n", passes[pass],
                   e->tape[pass] ? "the program's code, as compiled by " : "none: ", e->tape_engine[pass]);
        if (e->tape[pass]) buf_indented(&c->out, 2, *e->tape[pass] ? e->tape[pass] : "this engine prints no code");
    }
}

static void explain_section(cli *c, const cli_job *job, const explanation *e, int section) {
    cli_buf *out = &c->out;
    bool shown = section == SECTION_BACKWARD  ? job->bprop != NULL
                 : section == SECTION_TILES   ? e->has_tiles
                 : section == SECTION_INDICES ? job->bind.n_tensors > 0
                 : section == SECTION_HINTS   ? e->n_hints > 0
                                              : true;
    if (!shown || !explain_has_section(e, section)) return;
    if (out->size) buf_text(out, "\n");
    switch (section) {
    case SECTION_PROGRAM:
        buf_text(out, "program\n");
        explain_sources(out, &job->sources);
        break;
    case SECTION_CANONICAL: explain_program(c, "canonical", e->canonical, e->program); break;
    case SECTION_DERIVATIVE: explain_program(c, "derivative", e->derivative_text, e->derivative); break;
    case SECTION_BACKWARD: explain_program(c, "backward of your own, used instead", e->bprop_text, job->bprop); break;
    case SECTION_VALUES: explain_values_text(c, job); break;
    case SECTION_PROPERTIES:
        buf_text(out, "properties\n");
        explain_properties_text(out, e->program, &e->properties);
        break;
    case SECTION_CLASSES:
    case SECTION_CONJUNCTS:
    case SECTION_FUSED: explain_dumps_text(c, e, section); break;
    case SECTION_PROBLEM: explain_problem_text(c, &job->problem); break;
    case SECTION_TILES: explain_tiles_text(out, e); break;
    case SECTION_INDICES: explain_indices_text(c, job, e); break;
    case SECTION_ENGINES:
        buf_text(out, "engines\n");
        explain_support(out, e, (int32_t)job->problem.device);
        explain_assumed(out, job);
        break;
    case SECTION_TAPE: explain_tape_text(c, e); break;
    default:
        buf_text(out, "hints\n");
        for (size_t i = 0; i < e->n_hints; i++) {
            buf_text(out, "  ");
            buf_wrapped(out, 2, e->hints[i]);
        }
    }
}

void explain_text(cli *c, const cli_job *job, const explanation *e) {
    for (int i = 0; i < SECTION_COUNT; i++) explain_section(c, job, e, i);
}
