/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads params and captured tensors from the command line: name[:type]=value, name[:dtype]=file.npy.
 */
#include "input/job.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Splits "name:type=value" into three; the type may be missing. */
static int values_split(cli *c, cli_option_id id, const char *text, char **name, char **type, const char **value) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: %s is expected", cli_options[id].name, text,
                        cli_options[id].value);
    *name = cli_format(c, "%.*s", (int)(equals - text), text);
    *value = equals + 1;
    *type = strchr(*name, ':');
    if (*type) *(*type)++ = 0;
    return CLI_OK;
}

static int values_add_param(cli *c, cli_option_id id, const char *text, cli_values *out) {
    char *name, *type;
    const char *value;
    cli_param p = {NULL, 0, 0};
    int rc = values_split(c, id, text, &name, &type, &value);
    if (rc != CLI_OK) return rc;
    p.name = name;
    if (type && strcmp(type, "int") == 0)
        p.type = FXA_INT;
    else if (type && strcmp(type, "float") == 0)
        p.type = FXA_FLOAT;
    else if (type)
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: the type of a param is float or int", cli_options[id].name,
                        text);
    if (!read_double(value, &p.value))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: '%.64s' is not a number", cli_options[id].name, text, value);
    if (word_is_out_of_range(value, p.value))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: '%.64s' is beyond the range of f64; write %s if it is meant",
                        cli_options[id].name, text, value, p.value == 0 ? "0" : "inf");
    for (size_t i = 0; i < out->n_params; i++)
        if (strcmp(out->params[i].name, name) == 0)
            return cli_fail(c, CLI_BAD_INPUT, "--%s: %.63s is given twice", cli_options[id].name, name);
    if (out->n_params == FXA_MAX_PARAMS) return cli_fail(c, CLI_BAD_INPUT, "more than %d params", FXA_MAX_PARAMS);
    out->params[out->n_params++] = p;
    return CLI_OK;
}

static int values_add_tensor(cli *c, cli_option_id id, const char *text, cli_values *out) {
    char *name, *type;
    const char *value;
    cli_tensor *t = &out->tensors[out->n_tensors];
    int rc = values_split(c, id, text, &name, &type, &value);
    if (rc != CLI_OK) return rc;
    for (size_t i = 0; i < out->n_tensors; i++)
        if (strcmp(out->tensors[i].name, name) == 0)
            return cli_fail(c, CLI_BAD_INPUT, "--%s: %.63s is given twice", cli_options[id].name, name);
    if (out->n_tensors == FXA_MAX_TENSORS) return cli_fail(c, CLI_BAD_INPUT, "more than %d tensors", FXA_MAX_TENSORS);
    fxa_dtype dtype = type ? fxa_dtype_find(type) : FXA_DTYPE_NONE;
    if (type && !dtype)
        return cli_fail(
            c, CLI_BAD_INPUT,
            "--%s %.100s: there is no dtype '%.20s'; there are f64 f32 f16 bf16 e4m3 e5m2 i64 i32 i16 i8 u8 "
            "bool",
            cli_options[id].name, text, type);
    if (id == OPT_TENSOR_SIZE) {
        t->array.rank = read_int_list(value, t->array.size, FXA_MAX_RANK);
        for (int i = 0; i < t->array.rank; i++)
            if (t->array.size[i] < 0) t->array.rank = -1;
        if (t->array.rank < 0)
            return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: accepted are 0 to %d whole numbers from 0 on, as NAME=N,N",
                            cli_options[id].name, text, FXA_MAX_RANK);
    } else {
        rc = npy_read(c, value, &t->array);
        if (rc == CLI_OK) rc = npy_as_stored(c, &t->array, dtype);
        if (rc != CLI_OK) return rc;
        if (!t->array.dtype || (dtype && dtype != t->array.dtype))
            return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: the file holds %s; %s", cli_options[id].name, text,
                            npy_describe(c, &t->array),
                            dtype ? "that is another dtype"
                            : t->array.unsigned_bytes == 2
                                ? "uint16 is taken for bf16 alone, as NAME:bf16=FILE"
                                : "ints are accepted as int64, int32, int16, int8 and uint8");
        if (t->array.rank > FXA_MAX_RANK)
            return cli_fail(c, CLI_BAD_INPUT, "--%s %.100s: %d axes; at most %d", cli_options[id].name, text,
                            t->array.rank, FXA_MAX_RANK);
        dtype = t->array.dtype;
    }
    t->name = name;
    t->dtype = dtype;
    out->n_tensors++;
    return CLI_OK;
}

int values_collect(cli *c, fxa_program_kind kind, cli_values *out) {
    bool score = kind == FXA_PROGRAM_SCORE;
    for (size_t i = 0; i < c->n_given; i++) {
        const cli_given *g = &c->given[i];
        int rc = CLI_OK;
        if (g->id == (score ? OPT_PARAM : OPT_BPROP_PARAM)) rc = values_add_param(c, g->id, g->value, out);
        if (g->id == (score ? OPT_TENSOR : OPT_BPROP_TENSOR) || (score && g->id == OPT_TENSOR_SIZE))
            rc = values_add_tensor(c, g->id, g->value, out);
        if (rc != CLI_OK) return rc;
    }
    return CLI_OK;
}

size_t values_declare(const cli_values *v, fxa_declaration *out) {
    size_t n = 0;
    for (size_t i = 0; i < v->n_params; i++)
        out[n++] =
            (fxa_declaration){v->params[i].name, v->params[i].type ? v->params[i].type : FXA_FLOAT, FXA_DTYPE_NONE, 0};
    for (size_t i = 0; i < v->n_tensors; i++)
        if (v->tensors[i].dtype)
            out[n++] =
                (fxa_declaration){v->tensors[i].name, (fxa_type)0, v->tensors[i].dtype, v->tensors[i].array.rank};
    return n;
}

const cli_tensor *values_find_tensor(const cli_values *v, const char *name) {
    for (size_t i = 0; i < v->n_tensors; i++)
        if (strcmp(v->tensors[i].name, name) == 0) return &v->tensors[i];
    return NULL;
}
