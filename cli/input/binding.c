/* SPDX-License-Identifier: Apache-2.0
 *
 * Arranges the values of the command line in the order of a program's tensors and params, as captures, views and
 * numbers. A value for a name that the program does not have is an error, unless the program's text mentions the name:
 * constant folding may have removed it.
 */
#include "input/job.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Reports an unknown name, and lists the existing names and the nearest one. size: true if the name was given with
 * --tensor-size. */
static int binding_unknown(cli *c, const char *what, bool size, const char *name, const char *const *names, size_t n) {
    cli_buf list = {0};
    for (size_t i = 0; i < n && list.size < 200; i++) buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    const char *near = cli_nearest(name, names, n);
    const char *option = size ? cli_format(c, "%s-size", what) : what;
    int rc =
        n == 0 ? cli_fail(c, CLI_BAD_INPUT, "--%s %.63s: the program has no %ss", option, name, what)
        : near ? cli_fail(c, CLI_BAD_INPUT, "--%s: the program has no '%.63s'; did you mean '%s'?", option, name, near)
               : cli_fail(c, CLI_BAD_INPUT, "--%s: the program has no '%.63s'; it has %s", option, name, list.data);
    buf_free(&list);
    return rc;
}

static int binding_params_set(cli *c, const cli_values *v, const cli_texts *s, const fxa_program *program,
                              cli_binding *out) {
    const char *names[FXA_MAX_PARAMS];
    for (size_t i = 0; i < out->n_params; i++) names[i] = fxa_program_param(program, i).name;
    for (size_t i = 0; i < v->n_params; i++) {
        const cli_param *p = &v->params[i];
        int32_t at = fxa_program_param_find(program, p->name);
        if (at < 0 && texts_mention(s, p->name)) continue;
        if (at < 0) return binding_unknown(c, "param", false, p->name, names, out->n_params);
        bool whole = p->value == floor(p->value) && fabs(p->value) <= 0x1p31 && p->value < 0x1p31;
        if (fxa_program_param(program, (size_t)at).type == FXA_INT && !whole)
            return cli_fail(c, CLI_BAD_INPUT,
                            "--param %.63s=%.17g: the param is an int; a whole number of 32 bits is expected", p->name,
                            p->value);
        out->params[at] = p->value;
        out->has_param[at] = true;
    }
    for (size_t i = 0; i < out->n_params; i++)
        if (!out->has_param[i] && fxa_program_param_default(program, i, &out->params[i]))
            out->has_param[i] = out->is_default[i] = true;
    return CLI_OK;
}

static int binding_tensor_set(cli *c, const cli_tensor *t, fxa_tensor_info info, size_t at, cli_binding *out) {
    const npy *a = &t->array;
    if (a->rank != info.rank || (t->dtype && t->dtype != info.dtype)) {
        const char *dtype = t->dtype ? cli_format(c, "%s of ", fxa_dtype_name(t->dtype)) : "", *name = info.name;
        bool bits = a->data && t->dtype == FXA_U8 && (info.dtype == FXA_E4M3 || info.dtype == FXA_E5M2);
        return cli_fail(c, CLI_BAD_INPUT, "--tensor%s %.63s: the program says %s of rank %d, given is %srank %d%s",
                        a->data ? "" : "-size", name, fxa_dtype_name(info.dtype), info.rank, dtype, a->rank,
                        bits ? cli_format(c, "; bytes that are %s are given as %.63s:%s=FILE",
                                          fxa_dtype_name(info.dtype), name, fxa_dtype_name(info.dtype))
                             : "");
    }
    fxa_view *view = &out->views[at];
    *view = (fxa_view){a->data, info.dtype, info.rank, {0}, {0}};
    for (int d = 0; d < info.rank; d++) {
        out->captures[at].size[d] = view->size[d] = a->size[d];
        out->captures[at].stride[d] = view->stride[d] = a->stride[d];
    }
    out->captures[at].strided = a->data != NULL;
    out->data[at] = a->data;
    out->sized[at] = true;
    return CLI_OK;
}

int values_bind(cli *c, const cli_values *v, const cli_texts *s, const fxa_program *program, cli_binding *out) {
    const char *names[FXA_MAX_TENSORS];
    out->n_params = fxa_program_param_count(program);
    out->n_tensors = fxa_program_tensor_count(program);
    int rc = binding_params_set(c, v, s, program, out);
    for (size_t i = 0; i < out->n_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(program, i);
        names[i] = info.name;
        out->views[i].dtype = info.dtype;
        out->views[i].rank = info.rank;
        out->sized[i] = info.rank == 0;
    }
    for (size_t i = 0; rc == CLI_OK && i < v->n_tensors; i++) {
        int32_t at = fxa_program_tensor_find(program, v->tensors[i].name);
        if (at < 0 && texts_mention(s, v->tensors[i].name)) continue;
        rc = at < 0 ? binding_unknown(c, "tensor", !v->tensors[i].array.data, v->tensors[i].name, names, out->n_tensors)
                    : binding_tensor_set(c, &v->tensors[i], fxa_program_tensor(program, (size_t)at), (size_t)at, out);
    }
    return rc;
}

int binding_require(cli *c, const cli_binding *b, const fxa_program *program, bool only_sizes, bool params) {
    bool own = fxa_program_get_kind(program) == FXA_PROGRAM_BPROP;
    const char *prefix = own ? "bprop-" : "";
    for (size_t i = 0; params && i < b->n_params; i++)
        if (!b->has_param[i])
            return cli_fail(c, CLI_BAD_INPUT, "param '%s' has no value; give --%sparam %s=VALUE",
                            fxa_program_param(program, i).name, prefix, fxa_program_param(program, i).name);
    for (size_t i = 0; i < b->n_tensors; i++) {
        fxa_tensor_info t = fxa_program_tensor(program, i);
        if (only_sizes && !b->sized[i])
            return cli_fail(c, CLI_BAD_INPUT, "tensor '%s' has no size; give --tensor-size %s=%.*s or --tensor %s=FILE",
                            t.name, t.name, 2 * t.rank - 1, "N,N,N,N,N", t.name);
        if (!only_sizes && !b->data[i])
            return cli_fail(c, CLI_BAD_INPUT, "tensor '%s' has no data; give --%stensor %s=FILE (%s of rank %d)",
                            t.name, prefix, t.name, fxa_dtype_name(t.dtype), t.rank);
    }
    return CLI_OK;
}

/* Fills a tensor: floats from -1 to 1, ints from 0 to 7, bools with equal chance. Small ints can serve as indices and
 * ids. */
static void binding_random_data(cli *c, cli_binding *b, size_t i, int64_t count, cli_random *random) {
    fxa_dtype dtype = b->views[i].dtype;
    void *data = cli_alloc_array(c, count, fxa_dtype_size(dtype));
    for (int64_t k = 0; k < count; k++) {
        double x = dtype_is_float(dtype) ? random_real(random, -1, 1)
                                         : (double)(random_bits(random) % (dtype == FXA_B8 ? 2 : 8));
        element_set(dtype, data, k, x);
    }
    b->data[i] = b->views[i].data = data;
}

void binding_fill(cli *c, cli_binding *b, const fxa_program *program, int64_t side, cli_random *random) {
    for (size_t i = 0; i < b->n_params; i++) {
        if (b->has_param[i]) continue;
        b->params[i] = fxa_program_param(program, i).type == FXA_INT ? (double)(1 + random_bits(random) % 8)
                                                                     : random_real(random, 0.5, 1.5);
        b->has_param[i] = true;
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        /* [rank] maximum size of each dimension, for about 2^20 elements */
        static const int64_t most[FXA_MAX_RANK + 1] = {1, 1 << 20, 1024, 101, 32, 16};
        int64_t count = 1;
        int rank = b->views[i].rank;
        for (int d = rank - 1; d >= 0; d--) {
            if (!b->sized[i]) b->views[i].size[d] = b->captures[i].size[d] = side < most[rank] ? side : most[rank];
            if (!b->data[i]) b->views[i].stride[d] = count;
            count *= b->views[i].size[d];
        }
        b->sized[i] = true;
        if (!b->data[i]) binding_random_data(c, b, i, count, random);
    }
}

fxa_tensor_range *binding_ranges(cli *c, const cli_binding *b) {
    if (!b->n_tensors) return NULL;
    fxa_tensor_range *ranges = cli_alloc_array(c, (int64_t)b->n_tensors, sizeof *ranges);
    for (size_t i = 0; i < b->n_tensors; i++)
        if (b->data[i]) ranges[i] = fxa_tensor_scan(&b->views[i]);
    return ranges;
}

const double *binding_params(const cli_binding *b) {
    for (size_t i = 0; i < b->n_params; i++)
        if (!b->has_param[i]) return NULL;
    return b->params;
}
