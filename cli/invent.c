/* SPDX-License-Identifier: Apache-2.0
 *
 * What a command made up because the command line does not say it: values of params, data and sizes of tensors, sizes
 * of the problem. Every command that makes something up tells all of it, as text and as JSON. */
#include "invent.h"

#include <inttypes.h>

static void invent_add(cli_job *job, invention x) {
    if (job->n_invented < INVENT_MAX) job->invented[job->n_invented++] = x;
}

static void invent_note_sizes(cli_job *job) {
    const int64_t *v = job->shape.value;
    for (int i = 0; i < SHAPE_COUNT; i++) {
        bool follows = (i == SHAPE_HKV && v[i] == v[SHAPE_H]) || (i == SHAPE_DV && v[i] == v[SHAPE_D]);
        if (!job->shape.given[i] && i != SHAPE_S && !follows)
            invent_add(job, (invention){.kind = "size", .name = shape_keys[i], .value = (double)v[i]});
    }
}

void invent_note_binding(cli_job *job, const cli_binding *before, const cli_binding *now, const fxa_program *program) {
    for (size_t i = 0; i < now->n_params; i++)
        if (!before->has_param[i])
            invent_add(
                job, (invention){.kind = "param", .name = fxa_program_param(program, i).name, .value = now->params[i]});
    for (size_t i = 0; i < now->n_tensors; i++) {
        invention x = {.kind = "tensor", .name = fxa_program_tensor(program, i).name, .view = now->views[i]};
        x.sized = before->sized[i];
        if (!before->data[i]) invent_add(job, x);
    }
}

const char *invent_fill(cli *c, cli_job *job, cli_random *random) {
    const fxa_problem *p = &job->problem;
    int64_t side = 64; /* generous: every coordinate finds an element */
    const int64_t sizes[] = {p->b, p->hq, p->sq, p->sk};
    cli_binding *before = cli_alloc_array(c, 2, sizeof *before);
    cli_buf names = {0};
    for (int i = 0; i < 4; i++) side = sizes[i] > side ? sizes[i] : side;
    before[0] = job->bind;
    before[1] = job->bprop_bind;
    binding_fill(c, &job->bind, job->program, side, random);
    if (job->bprop) binding_fill(c, &job->bprop_bind, job->bprop, side, random);
    invent_note_binding(job, &before[0], &job->bind, job->program);
    if (job->bprop) invent_note_binding(job, &before[1], &job->bprop_bind, job->bprop);
    for (size_t i = 0; i < job->n_invented; i++)
        buf_printf(&names, "%s%s %s", i ? ", " : "", job->invented[i].kind, job->invented[i].name);
    invent_note_sizes(job);
    const char *text = cli_format(c, "%s", names.size ? names.data : "");
    buf_free(&names);
    return text;
}

static const char *invent_values_text(fxa_dtype dtype) {
    return dtype_is_float(dtype) ? "-1 to 1" : dtype == FXA_B8 ? "false or true" : "0 to 7";
}

const char *invent_text(cli *c, const cli_job *job) {
    cli_buf b = {0};
    for (size_t i = 0; i < job->n_invented; i++) {
        const invention *x = &job->invented[i];
        buf_text(&b, i ? "; " : "");
        if (x->view.dtype)
            buf_printf(&b, "tensor %s, %s%s%s at random, %s", x->name, fxa_dtype_name(x->view.dtype),
                       sizes_text(c, x->view.size, x->view.rank), x->sized ? "," : " and its size, values",
                       invent_values_text(x->view.dtype));
        else
            buf_printf(&b, "%s %s = %.6g", x->kind, x->name, x->value);
    }
    const char *text = cli_format(c, "%s", b.size ? b.data : "");
    buf_free(&b);
    return text;
}

void invent_json(json *j, const cli_job *job) {
    json_open(j, "invented", '[');
    for (size_t i = 0; i < job->n_invented; i++) {
        const invention *x = &job->invented[i];
        json_open(j, NULL, '{');
        json_string(j, "kind", x->kind);
        json_string(j, "name", x->name);
        if (x->view.dtype) {
            json_string(j, "dtype", fxa_dtype_name(x->view.dtype));
            json_open(j, "sizes", '[');
            for (int d = 0; d < x->view.rank; d++) json_int(j, NULL, x->view.size[d]);
            json_close(j, ']');
            json_bool(j, "sizes_given", x->sized);
            json_string(j, "values", invent_values_text(x->view.dtype));
        } else
            json_number(j, "value", x->value);
        json_close(j, '}');
    }
    json_close(j, ']');
}
