/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the problem of a plan for `plan show`, as JSON and as text, for loaded plans and for plan bytes that cannot be
 * loaded.
 */
#include "explain/explain.h"
#include "plan/file.h"

#include <inttypes.h>
#include <string.h>

/* Operand of a pass, in the order of fxa_problem. axes: 4 for matrices; 3 for rows such as LSE; 1 for sinks. */
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
                                                {"LSE", &p->lse, 0, 3, bwd || (f & FXA_RETURN_LSE)},
                                                {"row_max", &p->row_max, 0, 3, (f & FXA_RETURN_ROW_MAX) != 0},
                                                {"dO", &p->dout, 0, 4, bwd},
                                                {"dLSE", &p->dlse, 0, 3, (f & FXA_READ_DLSE) != 0},
                                                {"dQ", &p->dq, 0, 4, (f & FXA_GRAD_Q) != 0},
                                                {"dK", &p->dk, 0, 4, (f & FXA_GRAD_K) != 0},
                                                {"dV", &p->dv, 0, 4, (f & FXA_GRAD_V) != 0},
                                                {"sinks", &p->sinks, 1, 1, (f & FXA_SINKS) != 0},
                                                {"dsinks", &p->dsinks, 1, 1, (f & FXA_GRAD_SINKS) != 0}};
    memcpy(out, list, sizeof list);
}

void plan_show_json(json *j, const fxa_problem *p, const char *program, const char *bprop) {
    plan_operand operands[PLAN_N_OPERANDS];
    plan_list_operands(p, operands);
    json_open(j, "flags", '[');
    for (size_t i = 0; i < FXA_FLAG_COUNT; i++)
        if (p->flags >> i & 1) json_string(j, NULL, fxa_flag_name(1u << i));
    json_close(j, ']');
    if (p->flags & FXA_PAGED) json_uint(j, "page_size", p->page_size);
    if (program) json_string(j, "program", program);
    if (bprop) json_string(j, "bprop", bprop);
    json_open(j, "operands", '{');
    for (int i = 0; i < PLAN_N_OPERANDS; i++) {
        if (!operands[i].used) continue;
        json_open(j, operands[i].name, '{');
        json_string(j, "dtype", fxa_dtype_name((fxa_dtype)operands[i].operand->dtype));
        json_open(j, "strides", '[');
        for (int d = 0; d < operands[i].count; d++)
            json_int(j, NULL, operands[i].operand->stride[operands[i].first + d]);
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, '}');
    json_open(j, "tensors", '[');
    for (size_t i = 0; i < p->n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(p->program, i);
        json_open(j, NULL, '{');
        json_string(j, "name", t.name);
        json_string(j, "dtype", fxa_dtype_name(t.dtype));
        json_open(j, "sizes", '[');
        for (int d = 0; d < t.rank; d++) json_int(j, NULL, p->captures[i].size[d]);
        json_close(j, ']');
        json_bool(j, "gradient", p->captures[i].grad);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_open(j, "params", '[');
    for (size_t i = 0; p->program && i < fxa_program_param_count(p->program); i++) {
        json_open(j, NULL, '{');
        json_string(j, "name", fxa_program_param(p->program, i).name);
        json_bool(j, "gradient", p->param_grads >> i & 1);
        json_close(j, '}');
    }
    json_close(j, ']');
}

void plan_show_text(cli *c, const fxa_problem *p, const char *program, const char *bprop) {
    plan_operand operands[PLAN_N_OPERANDS];
    plan_list_operands(p, operands);
    buf_text(&c->out, "flags");
    for (size_t i = 0; i < FXA_FLAG_COUNT; i++)
        if (p->flags >> i & 1) buf_printf(&c->out, " %s", fxa_flag_name(1u << i));
    buf_text(&c->out, p->flags ? "\n" : " none\n");
    if (p->flags & FXA_WINDOW) buf_printf(&c->out, "window %" PRId64 ",%" PRId64 "\n", p->window_left, p->window_right);
    if (p->flags & FXA_DROPOUT) buf_printf(&c->out, "dropout %.17g\n", p->dropout_p);
    if (p->flags & FXA_PAGED) buf_printf(&c->out, "pages of %" PRIu32 " keys\n", p->page_size);
    if (program) buf_text(&c->out, "program\n");
    if (program) buf_indented(&c->out, 2, *program ? program : "# the identity");
    if (bprop) buf_text(&c->out, "backward of your own\n");
    if (bprop) buf_indented(&c->out, 2, bprop);
    buf_text(&c->out, "operands\n");
    for (int i = 0; i < PLAN_N_OPERANDS; i++)
        if (operands[i].used)
            buf_printf(&c->out, "  %-6s %-5s strides %s\n", operands[i].name,
                       fxa_dtype_name((fxa_dtype)operands[i].operand->dtype),
                       sizes_text(c, operands[i].operand->stride + operands[i].first, operands[i].count));
    for (size_t i = 0; i < p->n_captures; i++) {
        fxa_tensor_info t = fxa_program_tensor(p->program, i);
        buf_printf(&c->out, "  tensor %s %s%s%s\n", t.name, fxa_dtype_name(t.dtype),
                   sizes_text(c, p->captures[i].size, t.rank), p->captures[i].grad ? ", gradient" : "");
    }
    for (size_t i = 0; p->program && i < fxa_program_param_count(p->program); i++)
        buf_printf(&c->out, "  param %s%s\n", fxa_program_param(p->program, i).name,
                   p->param_grads >> i & 1 ? ", gradient" : "");
}

/* Prints the contents of plan bytes that cannot be loaded on this machine. */
int plan_show_file(cli *c, const char *path, const plan_file *f, size_t size, const fxa_error *why) {
    const char *pass = f->problem.pass ? "backward" : "forward";
    const char *program = f->known && !f->program ? ""
                          : f->program            ? program_text(c, f->program)
                                                  : NULL,
               *bprop = f->bprop ? program_text(c, f->bprop) : NULL;
    char key[33];
    hex_text(f->key, sizeof f->key, key);
    if (c->json) {
        json j = json_begin(&c->out);
        json_open(&j, NULL, '{');
        json_string(&j, "file", path);
        json_uint(&j, "bytes", size);
        json_string(&j, "engine", f->engine);
        json_string(&j, "key", key);
        json_string(&j, "pass", pass);
        problem_shape_json(&j, "shape", &f->problem);
        if (f->known) json_string(&j, "dtype", fxa_dtype_name((fxa_dtype)f->problem.q.dtype));
        if (f->known) plan_show_json(&j, &f->problem, program, bprop);
        json_string(&j, "identity", f->identity);
        json_uint(&j, "code_bytes", f->code);
        json_string(&j, "library", f->library);
        json_string(&j, "not_here", why->text);
        json_close(&j, '}');
        return CLI_OK;
    }
    buf_printf(&c->out, "%s: %zu bytes, key %s\nengine %s, %s, %" PRIu64 " bytes of compiled code, by fxattn %s\n",
               path, size, key, f->engine, pass, f->code, f->library);
    buf_printf(&c->out, "%s%s%s\nmade for %s\ncannot be loaded here: %s\n", problem_shape_text(c, &f->problem),
               f->known ? ", " : "", f->known ? fxa_dtype_name((fxa_dtype)f->problem.q.dtype) : "", f->identity,
               why->text);
    if (f->known) plan_show_text(c, &f->problem, program, bprop);
    return CLI_OK;
}
