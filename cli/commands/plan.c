/* SPDX-License-Identifier: Apache-2.0
 *
 * plan save|show|load FILE: saves a compiled plan as bytes, shows its contents (also of plans for another machine), or
 * checks that it loads on this machine. plan precompile FILE: compiles all shapes of a list into the folder of
 * FXA_CACHE_DIR.
 */
#include "explain/explain.h"
#include "plan/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_MAX_FILE ((size_t)256 << 20)

/* Fails if options describe a problem, because operations that read a plan would ignore these options. */
static int plan_takes_no_problem(cli *c, const char *action) {
    for (size_t i = 0; i < c->n_given; i++)
        if (strcmp(cli_options[c->given[i].id].group, "Output") != 0 && c->given[i].id != OPT_THREADS &&
            c->given[i].id != OPT_REBUILD)
            return cli_fail(c, CLI_BAD_INPUT, "'plan %s' has no option --%s: the file has all", action,
                            cli_options[c->given[i].id].name);
    return CLI_OK;
}

/* Replaces the flag that the library's message advises to set by the option of this command. */
static int plan_load_fail(cli *c, fxa_error *err, const char *path) {
    static const char flag[] = "FXA_LOAD_REBUILD";
    const char *at = strstr(err->text, flag);
    if (at) {
        const char *text = cli_format(c, "%.*s--rebuild%s", (int)(at - err->text), err->text, at + sizeof flag - 1);
        (void)snprintf(err->text, sizeof err->text, "%s", text);
    }
    return cli_fail_library(c, err, path);
}

static int plan_read_file(cli *c, const char *path, bool show, fxa_plan **out, size_t *size) {
    char *bytes;
    fxa_error err;
    plan_file f;
    *out = NULL;
    int rc = plan_takes_no_problem(c, show ? "show" : "load");
    if (rc == CLI_OK) rc = cli_read_file(c, path, "a plan", PLAN_MAX_FILE, &bytes, size);
    if (rc != CLI_OK) return rc;
    uint32_t flags = opt_has(c, OPT_REBUILD) ? (uint32_t)FXA_LOAD_REBUILD : 0;
    fxa_status status = fxa_plan_load_flags(c->ctx, bytes, *size, flags, out, &err);
    if (show && (status == FXA_E_UNAVAILABLE || status == FXA_E_VERSION) && plan_file_read(c, bytes, *size, &f))
        return plan_show_file(c, path, &f, *size, &err);
    if (status != FXA_OK) return plan_load_fail(c, &err, path);
    cli_own_plan(c, *out);
    return CLI_OK;
}

static void plan_head_json(json *j, cli *c, const char *path, size_t size, const fxa_plan *plan) {
    uint8_t key[16];
    char text[33];
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan_key(plan, key);
    fxa_plan_problem(plan, &p);
    hex_text(key, 16, text);
    json_string(j, "file", path);
    json_uint(j, "bytes", size);
    json_string(j, "engine", fxa_plan_engine(plan));
    json_string(j, "key", text);
    json_string(j, "pass", p.pass ? "backward" : "forward");
    json_uint(j, "workspace", fxa_plan_workspace(plan));
    json_bool(j, "deterministic", fxa_plan_is_deterministic(plan));
    problem_shape_json(j, "shape", &p);
    json_string(j, "dtype", fxa_dtype_name((fxa_dtype)p.q.dtype));
    json_string(j, "device", problem_device_text(c, &p));
}

static void plan_head(cli *c, const char *path, size_t size, const fxa_plan *plan) {
    uint8_t key[16];
    char text[33];
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan_key(plan, key);
    fxa_plan_problem(plan, &p);
    hex_text(key, 16, text);
    if (c->json) {
        json j = json_begin(&c->out);
        json_open(&j, NULL, '{');
        plan_head_json(&j, c, path, size, plan);
        json_close(&j, '}');
        return;
    }
    buf_printf(&c->out, "%s: %zu bytes, key %s\nengine %s, %s, workspace %zu bytes, %sdeterministic\n%s, %s%s\n", path,
               size, text, fxa_plan_engine(plan), p.pass ? "backward" : "forward", fxa_plan_workspace(plan),
               fxa_plan_is_deterministic(plan) ? "" : "not ", problem_shape_text(c, &p),
               fxa_dtype_name((fxa_dtype)p.q.dtype), problem_on_text(c, &p));
}

static void plan_complete_json(cli *c, const char *path, size_t size, const fxa_plan *plan, const char *program,
                               const char *bprop) {
    fxa_problem p = FXA_PROBLEM_INIT;
    json j = json_begin(&c->out);
    fxa_plan_problem(plan, &p);
    json_open(&j, NULL, '{');
    plan_head_json(&j, c, path, size, plan);
    plan_show_json(&j, &p, program, bprop);
    json_close(&j, '}');
}

static int plan_show(cli *c, const char *path) {
    fxa_plan *plan;
    size_t size;
    fxa_problem p = FXA_PROBLEM_INIT;
    int rc = plan_read_file(c, path, true, &plan, &size);
    if (rc != CLI_OK || !plan) return rc;
    fxa_plan_problem(plan, &p);
    const char *program = p.program ? program_text(c, p.program) : "",
               *bprop = p.bprop ? program_text(c, p.bprop) : NULL;
    if (!program || (p.bprop && !bprop)) return cli_exit_code(c->error.status);
    if (c->json)
        plan_complete_json(c, path, size, plan, program, bprop);
    else {
        plan_head(c, path, size, plan);
        plan_show_text(c, &p, program, bprop);
    }
    return CLI_OK;
}

static int plan_load(cli *c, const char *path) {
    fxa_plan *plan;
    size_t size;
    int rc = plan_read_file(c, path, false, &plan, &size);
    if (rc == CLI_OK) plan_head(c, path, size, plan);
    return rc;
}

/* Makes the job of the command line and checks that it has what its pass needs. */
static int plan_job(cli *c, cli_job **out) {
    const char *pass = opt_get(c, OPT_PASS);
    int rc = job_make(c, false, out);
    if (rc == CLI_OK && pass && strcmp(pass, "fwd") != 0 && strcmp(pass, "bwd") != 0)
        rc = cli_fail(c, CLI_BAD_INPUT, "--pass %.20s: accepted are fwd, bwd", pass);
    if (rc == CLI_OK) rc = binding_require(c, &(*out)->bind, (*out)->program, true, false);
    if (rc == CLI_OK && (*out)->bprop) rc = binding_require(c, &(*out)->bprop_bind, (*out)->bprop, true, false);
    return rc;
}

static int plan_make(cli *c, fxa_plan **out) {
    const char *pass = opt_get(c, OPT_PASS);
    cli_job *job;
    fxa_error err;
    int rc = plan_job(c, &job);
    if (rc != CLI_OK) return rc;
    fxa_problem p = job_planned(job, pass && strcmp(pass, "bwd") == 0 ? FXA_BACKWARD : FXA_FORWARD);
    if (fxa_plan_create(c->ctx, &p, out, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_plan(c, *out);
    return CLI_OK;
}

static int plan_save(cli *c, const char *path) {
    fxa_plan *plan;
    fxa_error err;
    size_t size = 0;
    void *bytes = NULL;
    int rc = plan_make(c, &plan);
    if (rc != CLI_OK) return rc;
    fxa_status status = fxa_plan_save(plan, NULL, 0, &size, &err);
    if (status == FXA_OK) status = fxa_plan_save(plan, bytes = cli_alloc(c, size), size, &size, &err);
    if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    int handle = cli_output_open(c, path);
    if (handle < 0) return CLI_BAD_INPUT;
    rc = cli_output_write(c, handle, bytes, size);
    if (rc == CLI_OK) plan_head(c, path, size, plan);
    return rc;
}

/* ---- plan precompile --------------------------------------------------------------------------------------------- */

#define PLAN_MAX_LIST ((size_t)1 << 20)

/* Numbers of shapes: all shapes, shapes that no engine supports, and shapes whose code was not written to the
 * folder. */
typedef struct plan_tally {
    int64_t plans, refused, unwritten;
} plan_tally;

/* Prints the lines of finished shapes at once: compiling takes long, and a later error does not undo the shapes. */
static void plan_precompile_print(cli *c) {
    if (c->json || !c->out.size) return;
    fwrite(c->out.data, 1, c->out.size, stdout); /* a failure is reported at the end of the command */
    fflush(stdout);
    c->out.size = 0;
}

/* Compiles one shape and pass, unless the folder has the code already. name: file and line, for messages. */
static int plan_precompile_one(cli *c, json *j, cli_job *job, const char *name, fxa_pass pass, plan_tally *tally) {
    fxa_problem p = job_planned(job, pass);
    fxa_plan *plan = NULL;
    fxa_cache_stats before, after;
    fxa_error err;
    double start = cli_seconds();
    fxa_cache_get_stats(c->ctx, &before);
    fxa_status status = fxa_plan_create(c->ctx, &p, &plan, &err);
    double seconds = cli_seconds() - start;
    fxa_cache_get_stats(c->ctx, &after);
    const char *engine = status == FXA_OK ? fxa_plan_engine(plan) : "", *what = "nothing to keep";
    fxa_plan_destroy(plan);
    if (status != FXA_OK && status != FXA_E_UNSUPPORTED) return cli_fail_library(c, &err, name);
    tally->plans++, tally->refused += status != FXA_OK;
    if (after.disk_hits > before.disk_hits) /* tested first: a preferred engine may have missed before this hit */
        what = "was there";
    else if (after.disk_writes > before.disk_writes)
        what = "compiled and written";
    else if (after.disk_misses > before.disk_misses)
        what = "not written", tally->unwritten += status == FXA_OK;
    else if (after.hits > before.hits)
        what = "has the code of a shape before";
    if (status != FXA_OK) what = err.text;
    if (c->json) {
        json_open(j, NULL, '{');
        problem_shape_json(j, "shape", &p);
        json_string(j, "pass", pass ? "backward" : "forward");
        json_string(j, "engine", engine);
        json_string(j, "result", what);
        json_number(j, "seconds", seconds);
        json_close(j, '}');
    } else
        buf_printf(&c->out, "%s, %s: %s%s%s, %.3g s\n", problem_shape_text(c, &p), pass ? "backward" : "forward",
                   engine, *engine ? ", " : "", what, seconds);
    plan_precompile_print(c);
    return CLI_OK;
}

static int plan_precompile_line(cli *c, json *j, cli_job *job, const char *name, const char *text, plan_tally *tally) {
    const char *pass = opt_get(c, OPT_PASS);
    cli_shape shape = {.value = {0}};
    int rc = shape_read(c, name, text, &shape);
    if (rc == CLI_OK) job_set_shape(job, &shape, false);
    for (int i = FXA_FORWARD; i <= FXA_BACKWARD && rc == CLI_OK; i++)
        if (!pass || strcmp(pass, i == FXA_FORWARD ? "fwd" : "bwd") == 0)
            rc = plan_precompile_one(c, j, job, name, (fxa_pass)i, tally);
    return rc;
}

/* Compiles a list: one shape on each line, as in --shape; # starts a comment. */
static int plan_precompile(cli *c, const char *path) {
    cli_job *job;
    char *text;
    size_t size;
    plan_tally tally = {.plans = 0};
    const char *folder = getenv("FXA_CACHE_DIR");
    if (opt_has(c, OPT_SHAPE)) return cli_fail(c, CLI_BAD_INPUT, "'plan precompile' has its shapes from %.300s", path);
    if (!folder || !*folder)
        return cli_fail(c, CLI_BAD_INPUT, "'plan precompile' needs FXA_CACHE_DIR: the folder to keep compiled code in");
    int rc = plan_job(c, &job);
    if (rc == CLI_OK) rc = cli_read_file(c, path, "a list of shapes", PLAN_MAX_LIST, &text, &size);
    if (rc != CLI_OK) return rc;
    if (strlen(text) < size) /* everything after a NUL byte would be ignored */
        return cli_fail(c, CLI_BAD_INPUT, "%.300s is no list of shapes: byte %zu of it is 0", path, strlen(text) + 1);
    json j = json_begin(&c->out);
    if (c->json) json_open(&j, NULL, '{'), json_open(&j, "plans", '[');
    int number = 0;
    for (char *next, *line = text; line && rc == CLI_OK; line = next) {
        const char *name = cli_format(c, "%.300s:%d", path, ++number);
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        line[strcspn(line, "#\r")] = '\0';
        size_t begin = strspn(line, " \t"), end = strlen(line);
        while (end > begin && strchr(" \t", line[end - 1])) line[--end] = '\0';
        if (line[begin]) rc = plan_precompile_line(c, &j, job, name, line + begin, &tally);
    }
    if (c->json) json_close(&j, ']');
    if (rc == CLI_OK && !tally.plans)
        rc = cli_fail(c, CLI_BAD_INPUT, "%.300s has no shape in it: a line is one, as s=1024,d=64", path);
    if (tally.unwritten)
        cli_warn(c,
                 "%" PRId64
                 " plan%s could not be kept in FXA_CACHE_DIR, %.300s: it must be a folder that can be written, "
                 "belongs to you or root, and that no other user can write to",
                 tally.unwritten, plural(tally.unwritten), folder);
    if (c->json) json_warnings(&j, c), json_close(&j, '}');
    if (rc != CLI_OK) return rc;
    return tally.refused || tally.unwritten ? CLI_CHECK_FAILED : CLI_OK;
}

int cmd_plan(cli *c) {
    static const struct {
        const char *name;
        int (*run)(cli *c, const char *path);
    } actions[] = {{"save", plan_save}, {"show", plan_show}, {"load", plan_load}, {"precompile", plan_precompile}};
    enum { ACTIONS = sizeof actions / sizeof *actions };
    const char *action = c->n_operands ? c->operands[0] : "", *names[ACTIONS];
    int which = 0;
    for (int i = 0; i < ACTIONS; i++) names[i] = actions[i].name;
    const char *near = cli_nearest(action, names, ACTIONS);
    while (which < ACTIONS && strcmp(action, names[which]) != 0) which++;
    if (which == ACTIONS)
        return cli_fail(c, CLI_BAD_INPUT, "'plan' is followed by save, show, load or precompile and a file%s%s%s",
                        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    if (c->n_operands != 2) return cli_fail(c, CLI_BAD_INPUT, "'plan %s' takes one file", action);
    if (opt_has(c, OPT_REBUILD) && actions[which].run != plan_load)
        return cli_fail(c, CLI_BAD_INPUT, "'plan %s' has no option --rebuild: it is of 'plan load'", action);
    return actions[which].run(c, c->operands[1]);
}
