/* SPDX-License-Identifier: Apache-2.0
 *
 * plan save|show|load FILE: a compiled plan as bytes. show tells everything that is inside, load that it can be used
 * here. */
#include "explain.h"

#include <inttypes.h>
#include <string.h>

#define PLAN_MAX_FILE ((size_t)256 << 20)

static int plan_read_file(cli *c, const char *path, fxa_plan **out, size_t *size) {
    char *bytes;
    fxa_error err;
    int rc = cli_read_file(c, path, "a plan", PLAN_MAX_FILE, &bytes, size);
    if (rc != CLI_OK) return rc;
    if (fxa_plan_load(c->ctx, bytes, *size, out, &err) != FXA_OK) return cli_fail_library(c, &err, path);
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

/* Operands that a pass uses, in the order of the struct; rows have three axes, sinks one. */
typedef struct plan_operand {
    const char *name;
    const fxa_operand *operand;
    int first, count;
    bool used;
} plan_operand;
#define PLAN_N_OPERANDS 13

static void plan_list_operands(const fxa_problem *p, plan_operand *out) {
    bool bwd = p->pass == FXA_BACKWARD;
    uint32_t f = p->flags;
    const plan_operand list[PLAN_N_OPERANDS] = {{"Q", &p->q, 0, 4, true},
                                                {"K", &p->k, 0, 4, true},
                                                {"V", &p->v, 0, 4, true},
                                                {"O", &p->o, 0, 4, true},
                                                {"LSE", &p->lse, 0, 3, bwd || (f & FXA_WANT_LSE)},
                                                {"max", &p->max, 0, 3, (f & FXA_WANT_MAX) != 0},
                                                {"dO", &p->dout, 0, 4, bwd},
                                                {"dLSE", &p->dlse, 0, 3, (f & FXA_GRAD_LSE) != 0},
                                                {"dQ", &p->dq, 0, 4, (f & FXA_GRAD_Q) != 0},
                                                {"dK", &p->dk, 0, 4, (f & FXA_GRAD_K) != 0},
                                                {"dV", &p->dv_grad, 0, 4, (f & FXA_GRAD_V) != 0},
                                                {"sink", &p->sink, 1, 1, (f & FXA_SINK) != 0},
                                                {"dsink", &p->dsink, 1, 1, (f & FXA_GRAD_SINK) != 0}};
    memcpy(out, list, sizeof list);
}

static void plan_show_json(cli *c, const char *path, size_t size, const fxa_plan *plan, const char *program,
                           const char *bprop) {
    fxa_problem p = FXA_PROBLEM_INIT;
    plan_operand operands[PLAN_N_OPERANDS];
    json j = json_begin(&c->out);
    fxa_plan_problem(plan, &p);
    plan_list_operands(&p, operands);
    json_open(&j, NULL, '{');
    plan_head_json(&j, c, path, size, plan);
    json_open(&j, "flags", '[');
    for (size_t i = 0; i < FXA_FLAG_COUNT; i++)
        if (p.flags >> i & 1) json_string(&j, NULL, fxa_flag_name(1u << i));
    json_close(&j, ']');
    json_string(&j, "program", program);
    if (bprop) json_string(&j, "bprop", bprop);
    json_open(&j, "operands", '{');
    for (int i = 0; i < PLAN_N_OPERANDS; i++) {
        if (!operands[i].used) continue;
        json_open(&j, operands[i].name, '{');
        json_string(&j, "dtype", fxa_dtype_name((fxa_dtype)operands[i].operand->dtype));
        json_open(&j, "strides", '[');
        for (int d = 0; d < operands[i].count; d++)
            json_int(&j, NULL, operands[i].operand->stride[operands[i].first + d]);
        json_close(&j, ']');
        json_close(&j, '}');
    }
    json_close(&j, '}');
    json_open(&j, "tensors", '[');
    for (size_t i = 0; i < p.n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(p.program, i);
        json_open(&j, NULL, '{');
        json_string(&j, "name", t.name);
        json_string(&j, "dtype", fxa_dtype_name(t.dtype));
        json_open(&j, "sizes", '[');
        for (int d = 0; d < t.rank; d++) json_int(&j, NULL, p.captures[i].size[d]);
        json_close(&j, ']');
        json_bool(&j, "gradient", p.captures[i].grad);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

static void plan_show_text(cli *c, const fxa_plan *plan, const char *program, const char *bprop) {
    fxa_problem p = FXA_PROBLEM_INIT;
    plan_operand operands[PLAN_N_OPERANDS];
    fxa_plan_problem(plan, &p);
    plan_list_operands(&p, operands);
    buf_text(&c->out, "flags");
    for (size_t i = 0; i < FXA_FLAG_COUNT; i++)
        if (p.flags >> i & 1) buf_printf(&c->out, " %s", fxa_flag_name(1u << i));
    buf_text(&c->out, p.flags ? "\n" : " none\n");
    if (p.flags & FXA_WINDOW) buf_printf(&c->out, "window %" PRId64 ",%" PRId64 "\n", p.window_left, p.window_right);
    if (p.flags & FXA_DROPOUT) buf_printf(&c->out, "dropout %.17g\n", p.dropout_p);
    buf_text(&c->out, "program\n");
    buf_indented(&c->out, 2, *program ? program : "# the identity");
    if (bprop) buf_text(&c->out, "backward of your own\n");
    if (bprop) buf_indented(&c->out, 2, bprop);
    buf_text(&c->out, "operands\n");
    for (int i = 0; i < PLAN_N_OPERANDS; i++)
        if (operands[i].used)
            buf_printf(&c->out, "  %-6s %-5s strides %s\n", operands[i].name,
                       fxa_dtype_name((fxa_dtype)operands[i].operand->dtype),
                       sizes_text(c, operands[i].operand->stride + operands[i].first, operands[i].count));
    for (size_t i = 0; i < p.n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(p.program, i);
        buf_printf(&c->out, "  tensor %s %s%s%s\n", t.name, fxa_dtype_name(t.dtype),
                   sizes_text(c, p.captures[i].size, t.rank), p.captures[i].grad ? ", gradient" : "");
    }
}

static int plan_show(cli *c, const char *path) {
    fxa_plan *plan;
    size_t size;
    fxa_problem p = FXA_PROBLEM_INIT;
    int rc = plan_read_file(c, path, &plan, &size);
    if (rc != CLI_OK) return rc;
    fxa_plan_problem(plan, &p);
    const char *program = p.program ? program_text(c, p.program) : "",
               *bprop = p.bprop ? program_text(c, p.bprop) : NULL;
    if (!program || (p.bprop && !bprop)) return cli_exit_code(c->error.status);
    if (c->json)
        plan_show_json(c, path, size, plan, program, bprop);
    else {
        plan_head(c, path, size, plan);
        plan_show_text(c, plan, program, bprop);
    }
    return CLI_OK;
}

static int plan_load(cli *c, const char *path) {
    fxa_plan *plan;
    size_t size;
    int rc = plan_read_file(c, path, &plan, &size);
    if (rc == CLI_OK) plan_head(c, path, size, plan);
    return rc;
}

static int plan_make(cli *c, fxa_plan **out) {
    const char *pass = opt_get(c, OPT_PASS);
    cli_job *job;
    fxa_error err;
    int rc = job_make(c, false, &job);
    if (rc == CLI_OK && pass && strcmp(pass, "fwd") != 0 && strcmp(pass, "bwd") != 0)
        rc = cli_fail(c, CLI_BAD_INPUT, "--pass %.20s: accepted are fwd, bwd", pass);
    if (rc == CLI_OK) rc = binding_require(c, &job->bind, job->program, true, false);
    if (rc == CLI_OK && job->bprop) rc = binding_require(c, &job->bprop_bind, job->bprop, true, false);
    if (rc != CLI_OK) return rc;
    fxa_problem p = pass && strcmp(pass, "bwd") == 0 ? job_backward(job) : job->problem;
    if (p.pass == FXA_FORWARD) p.flags |= FXA_WANT_LSE;
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

int cmd_plan(cli *c) {
    static const char *const actions[] = {"save", "show", "load"};
    const char *action = c->n_operands ? c->operands[0] : "", *path = c->operands[1];
    const char *near = cli_nearest(action, actions, 3);
    int which = 0;
    while (which < 3 && strcmp(action, actions[which]) != 0) which++;
    if (which == 3)
        return cli_fail(c, CLI_BAD_INPUT, "'plan' is followed by save, show or load and a file%s%s%s",
                        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    if (c->n_operands != 2) return cli_fail(c, CLI_BAD_INPUT, "'plan %s' takes one file", action);
    return which == 0 ? plan_save(c, path) : which == 1 ? plan_show(c, path) : plan_load(c, path);
}
