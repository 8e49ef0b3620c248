/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that the command line does not give: params, data and sizes of tensors, sizes of the problem. Every command
 * that invents such values reports all of them, as text and as JSON.
 */
#include "input/invented_values.h"

#include <inttypes.h>

static void invented_add(cli_job *job, invented_value x) {
    if (job->n_invented < INVENTED_MAX) job->invented[job->n_invented++] = x;
}

/* Records the sizes that were not given. For a picture the head dim is not recorded, because the picture does not
 * depend on it. */
static void invented_note_sizes(cli_job *job, bool picture) {
    const int64_t *v = job->shape.value;
    for (int i = 0; i < SHAPE_COUNT; i++) {
        bool follows = (i == SHAPE_HKV && v[i] == v[SHAPE_H]) || (i == SHAPE_DV && v[i] == v[SHAPE_D]);
        follows = follows || (picture && (i == SHAPE_D || i == SHAPE_DV));
        if (!job->shape.given[i] && i != SHAPE_S && !follows)
            invented_add(job, (invented_value){.kind = "size", .name = shape_keys[i], .value = (double)v[i]});
    }
}

static void invented_note_binding(cli_job *job, const cli_binding *before, const cli_binding *now,
                                  const fxa_program *program, bool picture) {
    for (size_t i = 0; i < now->n_params; i++)
        if (!before->has_param[i])
            invented_add(
                job,
                (invented_value){.kind = "param", .name = fxa_program_param(program, i).name, .value = now->params[i]});
    for (size_t i = 0; i < now->n_tensors; i++) {
        invented_value x = {.kind = "tensor", .name = fxa_program_tensor(program, i).name, .view = now->views[i]};
        x.sized = before->sized[i];
        x.ids = picture && x.view.rank == 1 && !dtype_is_float(x.view.dtype) && x.view.dtype != FXA_B8;
        if (!before->data[i]) invented_add(job, x);
    }
}

/* Chooses values for a picture: a soft cap of 2, which visibly changes common scores; a quarter of the length for ints,
 * which are usually lengths. */
static void invented_picture(cli *c, cli_job *job) {
    const fxa_problem *p = &job->problem;
    cli_binding *b = &job->bind;
    fxa_properties properties;
    fxa_program_properties(job->program, &properties);
    for (size_t i = 0; i < b->n_params; i++) {
        if (b->has_param[i]) continue;
        bool whole = fxa_program_param(job->program, i).type == FXA_INT;
        b->params[i] = whole ? (double)(p->sk > 4 ? p->sk / 4 : 1) : properties.softcap_param == (int32_t)i ? 2 : 1;
        b->has_param[i] = true;
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        fxa_view *v = &b->views[i];
        bool ids = v->rank == 1 && !dtype_is_float(v->dtype) && v->dtype != FXA_B8;
        if (b->data[i] || !ids) continue;
        if (!b->sized[i]) v->size[0] = b->captures[i].size[0] = p->sq > p->sk ? p->sq : p->sk;
        v->stride[0] = 1;
        void *data = cli_alloc_array(c, v->size[0], fxa_dtype_size(v->dtype));
        for (int64_t k = 0; k < v->size[0]; k++) element_set(v->dtype, data, k, (double)(k * 4 / v->size[0]));
        b->data[i] = v->data = data;
    }
}

const char *invented_fill(cli *c, cli_job *job, cli_random *random, bool picture) {
    const fxa_problem *p = &job->problem;
    int64_t side = 64; /* at least 64, so that every coordinate has an element */
    const int64_t sizes[] = {p->b, p->hq, p->sq, p->sk};
    cli_binding *before = cli_alloc_array(c, 2, sizeof *before);
    cli_buf names = {0};
    for (int i = 0; i < 4; i++) side = sizes[i] > side ? sizes[i] : side;
    before[0] = job->bind;
    before[1] = job->bprop_bind;
    if (picture) invented_picture(c, job);
    binding_fill(c, &job->bind, job->program, side, random);
    if (job->bprop) binding_fill(c, &job->bprop_bind, job->bprop, side, random);
    invented_note_binding(job, &before[0], &job->bind, job->program, picture);
    if (job->bprop) invented_note_binding(job, &before[1], &job->bprop_bind, job->bprop, false);
    for (size_t i = 0; i < job->n_invented; i++)
        buf_printf(&names, "%s%s %s", i ? ", " : "", job->invented[i].kind, job->invented[i].name);
    invented_note_sizes(job, picture);
    const char *text = cli_format(c, "%s", names.size ? names.data : "");
    buf_free(&names);
    return text;
}

static const char *invented_values_text(const invented_value *x) {
    fxa_dtype dtype = x->view.dtype;
    return x->ids                  ? "0 to 3 in four equal parts"
           : dtype_is_float(dtype) ? "-1 to 1"
           : dtype == FXA_B8       ? "false or true"
                                   : "0 to 7";
}

/* Calls `say` for each param that has its default value. Returns the number of these params. */
static size_t invented_each_default(const cli_job *job, void (*say)(void *to, const char *name, double value),
                                    void *to) {
    const cli_binding *binds[] = {&job->bind, &job->bprop_bind};
    const fxa_program *programs[] = {job->program, job->bprop};
    size_t n = 0;
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; programs[p] && i < binds[p]->n_params; i++)
            if (binds[p]->is_default[i]) {
                say(to, fxa_program_param(programs[p], i).name, binds[p]->params[i]);
                n++;
            }
    return n;
}

static void invented_print_default(void *to, const char *name, double value) {
    cli_buf *b = to;
    buf_printf(b, "%s param %s = %.6g", b->size ? ";" : "default:", name, value);
}

const char *invented_text(cli *c, const cli_job *job) {
    cli_buf b = {0};
    size_t n = invented_each_default(job, invented_print_default, &b);
    if (job->n_invented) buf_printf(&b, "%sinvented: ", n ? "; " : "");
    for (size_t i = 0; i < job->n_invented; i++) {
        const invented_value *x = &job->invented[i];
        buf_text(&b, i ? "; " : "");
        if (x->view.dtype)
            buf_printf(&b, "tensor %s, %s%s%s %s%s", x->name, fxa_dtype_name(x->view.dtype),
                       sizes_text(c, x->view.size, x->view.rank), x->sized ? "," : " and its size, values",
                       x->ids ? "" : "at random, ", invented_values_text(x));
        else
            buf_printf(&b, "%s %s = %.6g", x->kind, x->name, x->value);
    }
    const char *text = cli_format(c, "%s", b.size ? b.data : "");
    buf_free(&b);
    return text;
}

static void invented_put_default(void *to, const char *name, double value) {
    json_open(to, NULL, '{');
    json_string(to, "name", name);
    json_number(to, "value", value);
    json_close(to, '}');
}

void invented_json_defaults(json *j, const cli_job *job) {
    json_open(j, "defaults", '[');
    (void)invented_each_default(job, invented_put_default, j);
    json_close(j, ']');
}

void invented_json(json *j, const cli_job *job) {
    invented_json_defaults(j, job);
    json_open(j, "invented", '[');
    for (size_t i = 0; i < job->n_invented; i++) {
        const invented_value *x = &job->invented[i];
        json_open(j, NULL, '{');
        json_string(j, "kind", x->kind);
        json_string(j, "name", x->name);
        if (x->view.dtype) {
            json_string(j, "dtype", fxa_dtype_name(x->view.dtype));
            json_open(j, "sizes", '[');
            for (int d = 0; d < x->view.rank; d++) json_int(j, NULL, x->view.size[d]);
            json_close(j, ']');
            json_bool(j, "sizes_given", x->sized);
            json_string(j, "values", invented_values_text(x));
        } else
            json_number(j, "value", x->value);
        json_close(j, '}');
    }
    json_close(j, ']');
}
