/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints explain as JSON.
 */
#include "explain/explain.h"

#include <string.h>

static void explain_json_program(json *j, const char *key, const char *text, const fxa_program *program) {
    char hash[33];
    program_hash_text(program, hash);
    json_open(j, key, '{');
    json_string(j, "text", text);
    json_string(j, "hash", hash);
    json_uint(j, "nodes", fxa_program_node_count(program));
    json_close(j, '}');
}

static void explain_json_values(json *j, const fxa_program *program, const cli_binding *b) {
    json_open(j, "params", '[');
    for (size_t i = 0; i < b->n_params; i++) {
        fxa_param_info p = fxa_program_param(program, i);
        json_open(j, NULL, '{');
        json_string(j, "name", p.name);
        json_string(j, "type", p.type == FXA_INT ? "int" : "float");
        if (b->has_param[i]) json_number(j, "value", b->params[i]);
        if (b->is_default[i]) json_bool(j, "default", true);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_open(j, "tensors", '[');
    for (size_t i = 0; i < b->n_tensors; i++) {
        fxa_tensor_info t = fxa_program_tensor(program, i);
        json_open(j, NULL, '{');
        json_string(j, "name", t.name);
        json_string(j, "dtype", fxa_dtype_name(t.dtype));
        json_int(j, "rank", t.rank);
        json_open(j, "sizes", '[');
        for (int d = 0; d < t.rank; d++) json_int(j, NULL, b->captures[i].size[d]);
        json_close(j, ']');
        json_bool(j, "given", b->sized[i]);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void explain_json_depends(json *j, const char *key, uint32_t depends) {
    json_open(j, key, '[');
    for (unsigned i = 0; i < FXA_INPUT_COUNT; i++)
        if (depends >> i & 1) json_string(j, NULL, fxa_input_name((fxa_input)i));
    json_close(j, ']');
}

static void explain_json_properties(json *j, const fxa_program *program, const fxa_properties *f) {
    json_open(j, "properties", '{');
    explain_json_depends(j, "score_depends", f->score_depends);
    explain_json_depends(j, "mask_depends", f->mask_depends);
    json_open(j, "flags", '[');
    const char *name;
    for (uint32_t flag = 1; (name = fxa_property_name(flag)) != NULL; flag <<= 1)
        if (f->flags & flag) json_string(j, NULL, name);
    json_close(j, ']');
    if (f->flags & FXA_PROPERTY_SOFTCAP) {
        if (f->softcap_param >= 0)
            json_string(j, "softcap_param", fxa_program_param(program, (size_t)f->softcap_param).name);
        else
            json_number(j, "softcap", f->softcap);
    }
    if (f->flags & FXA_PROPERTY_WINDOW) {
        if (f->window_left != INT32_MAX) json_int(j, "window_left", f->window_left);
        if (f->window_right != INT32_MAX) json_int(j, "window_right", f->window_right);
    }
    json_close(j, '}');
}

void problem_shape_json(json *j, const char *key, const fxa_problem *p) {
    json_open(j, key, '{');
    json_int(j, "b", p->b);
    json_int(j, "h", p->hq);
    json_int(j, "hkv", p->hkv ? p->hkv : p->hq);
    json_int(j, "sq", p->sq);
    json_int(j, "sk", p->sk);
    json_int(j, "d", p->d_qk);
    json_int(j, "d_v", problem_dv(p));
    json_close(j, '}');
}

void tile_counts_json(json *j, int64_t tile_q, int64_t tile_k, const fxa_tile_counts *t) {
    json_int(j, "tile_q", tile_q);
    json_int(j, "tile_k", tile_k);
    json_uint(j, "empty", t->empty);
    json_uint(j, "mixed", t->mixed);
    json_uint(j, "full", t->full);
    json_uint(j, "unknown", t->unknown);
}

/* Writes the counts of the engine's own tiles; writes null if the engine skips no tiles or there is nothing to
 * count. */
static void explain_json_own(json *j, const explanation *e, int pass, size_t engine) {
    const fxa_support *s = &e->support[pass][engine];
    explain_share share = explain_share_of(e, pass, engine);
    if (share.all == 0) {
        json_null(j, "tiles");
        return;
    }
    json_open(j, "tiles", '{');
    tile_counts_json(j, s->tile_q, s->tile_k, &e->tiles_of[pass][engine]);
    json_number(j, "work_left", (double)share.left / (double)share.all);
    json_string(j, "work_left_is", share.bound);
    json_close(j, '}');
}

static void explain_json_engines(json *j, const explanation *e) {
    static const char *const passes[] = {"forward", "backward"};
    json_open(j, "engines", '[');
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < e->n_support[pass]; i++) {
            const fxa_support *s = &e->support[pass][i];
            json_open(j, NULL, '{');
            json_string(j, "engine", s->engine);
            json_string(j, "pass", passes[pass]);
            json_bool(j, "supported", s->supported);
            json_bool(j, "deterministic", s->deterministic);
            json_bool(j, "multiplies_zeros", s->multiplies_zeros);
            json_uint(j, "workspace", s->workspace);
            if (s->seconds > 0)
                json_number(j, "seconds", s->seconds);
            else
                json_null(j, "seconds");
            json_string(j, "reason", s->reason);
            if (pass && e->qkv) {
                json_open(j, "grads_qkv", '{');
                json_bool(j, "supported", e->qkv[i].supported);
                json_bool(j, "deterministic", e->qkv[i].deterministic);
                json_uint(j, "workspace", e->qkv[i].workspace);
                json_string(j, "reason", e->qkv[i].reason);
                json_close(j, '}');
            }
            explain_json_own(j, e, pass, i);
            json_close(j, '}');
        }
    json_close(j, ']');
}

static void explain_json_sources(json *j, const cli_texts *s) {
    json_open(j, "program", '[');
    for (size_t i = 0; i < s->n; i++) {
        json_open(j, NULL, '{');
        json_string(j, "name", s->list[i].name);
        json_string(j, "text", s->list[i].text);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void explain_json_bprop(json *j, const cli_job *job, const explanation *e) {
    json_open(j, "bprop", '{');
    explain_json_program(j, "canonical", e->bprop_text, job->bprop);
    explain_json_values(j, job->bprop, &job->bprop_bind);
    json_close(j, '}');
}

static void explain_json_tiles(json *j, const explanation *e) {
    json_open(j, "tiles", '{');
    json_int(j, "b", e->b);
    json_int(j, "h", e->h);
    tile_counts_json(j, e->tile[0], e->tile[1], &e->tiles);
    json_close(j, '}');
}

static void explain_json_problem(json *j, cli *c, const fxa_problem *p) {
    problem_shape_json(j, "shape", p);
    json_int(j, "first_q", problem_row_shift(p));
    json_string(j, "dtype", fxa_dtype_name((fxa_dtype)p->q.dtype));
    json_string(j, "device", problem_device_text(c, p));
}

static void explain_json_lines(json *j, cli *c, const char *key, const char *text) {
    json_open(j, key, '[');
    for (size_t n; *text; text += n + 1) {
        n = strcspn(text, "\n");
        json_string(j, NULL, cli_format(c, "%.*s", (int)n, text));
    }
    json_close(j, ']');
}

/* Writes the dumps of both passes. Without a plan, the reason takes the place of the engine, and there are no lines. */
static void explain_json_tape(json *j, cli *c, const explanation *e) {
    static const char *const passes[] = {"forward", "backward"};
    json_open(j, "tape", '{');
    for (int pass = 0; pass < 2; pass++) {
        json_open(j, passes[pass], '{');
        json_string(j, e->tape[pass] ? "engine" : "reason", e->tape_engine[pass]);
        if (e->tape[pass])
            explain_json_lines(j, c, "lines", e->tape[pass]);
        else
            json_null(j, "lines");
        json_close(j, '}');
    }
    json_close(j, '}');
}

void explain_json(cli *c, const cli_job *job, const explanation *e) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    if (explain_has_section(e, SECTION_PROGRAM)) explain_json_sources(&j, &job->sources);
    if (explain_has_section(e, SECTION_CANONICAL)) explain_json_program(&j, "canonical", e->canonical, e->program);
    if (explain_has_section(e, SECTION_DERIVATIVE))
        explain_json_program(&j, "derivative", e->derivative_text, e->derivative);
    if (explain_has_section(e, SECTION_VALUES)) explain_json_values(&j, job->program, &job->bind);
    if (explain_has_section(e, SECTION_BACKWARD) && job->bprop) explain_json_bprop(&j, job, e);
    if (explain_has_section(e, SECTION_PROPERTIES)) explain_json_properties(&j, e->program, &e->properties);
    if (explain_has_section(e, SECTION_CLASSES)) explain_json_lines(&j, c, "classes", e->dump[FXA_DUMP_CLASSES]);
    if (explain_has_section(e, SECTION_CONJUNCTS)) explain_json_lines(&j, c, "conjuncts", e->dump[FXA_DUMP_CONJUNCTS]);
    if (explain_has_section(e, SECTION_FUSED)) json_string(&j, "fused", e->dump[FXA_DUMP_FUSED]);
    if (explain_has_section(e, SECTION_PROBLEM)) explain_json_problem(&j, c, &job->problem);
    if (explain_has_section(e, SECTION_TILES) && e->has_tiles) explain_json_tiles(&j, e);
    if (explain_has_section(e, SECTION_INDICES)) {
        if (e->has_values)
            index_report_json(&j, job, &e->outside);
        else
            json_null(&j, "indices_outside");
    }
    if (explain_has_section(e, SECTION_ENGINES)) explain_json_engines(&j, e);
    if (explain_has_section(e, SECTION_TAPE)) explain_json_tape(&j, c, e);
    if (explain_has_section(e, SECTION_HINTS)) {
        json_open(&j, "hints", '[');
        for (size_t i = 0; i < e->n_hints; i++) json_string(&j, NULL, e->hints[i]);
        json_close(&j, ']');
    }
    json_warnings(&j, c);
    json_close(&j, '}');
}
