/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates the results of `run`, sets their operands in both problems, and writes their files.
 */
#include "explain/mask_pairs.h"
#include "run/run.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Adds a file to the list of files to write. */
static void run_add_output(run_state *r, const char *what, const char *path, fxa_dtype dtype, int rank,
                           const int64_t *size, void *data) {
    run_output *o = &r->outputs[r->n_outputs++];
    *o = (run_output){what, path, -1, dtype, rank, {0}, data};
    memcpy(o->size, size, (size_t)rank * sizeof *size);
}

/* Allocates an array in the axis order of the files and adds it as an output. Returns the operand that describes it. */
static fxa_operand run_add_array(cli *c, run_state *r, cli_option_id id, fxa_dtype dtype, const int64_t *size,
                                 fxa_slot slot) {
    bool keys = slot == FXA_SLOT_DK || slot == FXA_SLOT_DV;
    int rank = r->rank[keys];
    int64_t stride[AXIS_COUNT], step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= size[i];
    }
    void *data = r->args.slot[slot] = cli_alloc_array(c, step, fxa_dtype_size(dtype));
    if (opt_has(c, id)) run_add_output(r, cli_options[id].name, opt_get(c, id), dtype, rank, size, data);
    return run_operand(r, keys, dtype, stride);
}

/* Writes the sizes of LSE and row maximum, [B,H,Sq] or packed [H,T]. Returns the rank. */
static int run_row_sizes(const run_state *r, int64_t *size) {
    const fxa_problem *p = &r->forward_problem;
    int rank = 0;
    if (!r->packed) size[rank++] = p->b;
    size[rank++] = p->hq;
    size[rank++] = r->packed ? p->total_q : p->sq;
    return rank;
}

static void run_add_rows(cli *c, run_state *r, cli_option_id id, fxa_slot slot, fxa_dtype dtype) {
    int64_t size[3], count = 1;
    int rank = run_row_sizes(r, size);
    for (int i = 0; i < rank; i++) count *= size[i];
    void *data = r->args.slot[slot] = cli_alloc_array(c, count, fxa_dtype_size(dtype));
    if (opt_has(c, id)) run_add_output(r, cli_options[id].name, opt_get(c, id), dtype, rank, size, data);
}

/* Returns true if a row may attend to no key. If no row can, the row maximum is not requested from the engine. */
static bool run_may_have_empty_rows(cli *c, const run_state *r) {
    const fxa_problem *p = &r->forward_problem;
    fxa_properties properties;
    fxa_program_properties(r->job->program, &properties);
    return p->flags & (FXA_CAUSAL | FXA_WINDOW | FXA_PADDING | FXA_VARLEN) ||
           !(properties.flags & FXA_PROPERTY_NO_MASK) || p->sk == 0 || r->job->bind.n_tensors ||
           pair_may_select(c, r->job->program);
}

static int run_prepare_forward(cli *c, run_state *r) {
    fxa_problem *p = &r->forward_problem;
    int64_t size[AXIS_COUNT];
    run_file_sizes(r, p->b, p->hq, r->packed ? p->total_q : p->sq, problem_dv(p), size);
    if (r->backward)
        for (int i = 0; i < r->rank[0]; i++)
            if (r->dout.size[i] != size[i])
                return cli_fail(c, CLI_BAD_INPUT, "--dout: %.200s holds %s; the output is %s", r->dout.path,
                                npy_describe(c, &r->dout), sizes_text(c, size, r->rank[0]));
    p->o = run_add_array(c, r, OPT_OUT, r->q.dtype, size, FXA_SLOT_O);
    if (opt_has(c, OPT_LSE) || r->backward) {
        p->flags |= FXA_RETURN_LSE;
        p->lse.dtype = FXA_F64; /* f64 keeps LSE exact, because backward reads it */
        run_add_rows(c, r, OPT_LSE, FXA_SLOT_LSE, FXA_F64);
    }
    if (opt_has(c, OPT_ROW_MAX) || run_may_have_empty_rows(c, r)) {
        p->flags |= FXA_RETURN_ROW_MAX;
        run_add_rows(c, r, OPT_ROW_MAX, FXA_SLOT_ROW_MAX, r->row_dtype);
    }
    return CLI_OK;
}

static int run_read_dlse(cli *c, run_state *r) {
    int64_t size[3];
    int rank = run_row_sizes(r, size);
    npy a;
    if (!opt_has(c, OPT_DLSE)) return CLI_OK;
    int rc = npy_read(c, opt_get(c, OPT_DLSE), &a);
    if (rc != CLI_OK) return rc;
    if (!dtype_is_float(a.dtype) || a.rank != rank || memcmp(a.size, size, (size_t)rank * sizeof *size) != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--dlse: %.200s holds %s; floats of shape %s are expected", a.path,
                        npy_describe(c, &a), sizes_text(c, size, rank));
    r->backward_problem.flags |= FXA_READ_DLSE;
    r->args.slot[FXA_SLOT_DLSE] = npy_as_float(c, &a, r->row_dtype);
    return CLI_OK;
}

/* Splits "name:dtype": cuts the dtype off `name` and writes it to *out, FXA_DTYPE_NONE if there is none. */
static int run_dtensor_dtype(cli *c, char *name, fxa_dtype *out) {
    char *type = strchr(name, ':');
    *out = FXA_DTYPE_NONE;
    if (!type) return CLI_OK;
    *type++ = 0;
    *out = fxa_dtype_find(type);
    if (dtype_is_float(*out)) return CLI_OK;
    return cli_fail(c, CLI_BAD_INPUT, "--dtensor %.63s:%.20s: a gradient is f64, f32, f16, bf16, e4m3 or e5m2", name,
                    type);
}

/* Handles --dtensor name[:dtype]=file: adds the gradient of the program's tensor as an output, or zeroes if folding has
 * removed the tensor. */
static int run_add_dtensor(cli *c, run_state *r, const char *text) {
    const char *path = strchr(text, '=');
    if (!path) return cli_fail(c, CLI_BAD_INPUT, "--dtensor %.100s: NAME=FILE is expected", text);
    char *name = cli_format(c, "%.*s", (int)(path - text), text);
    fxa_dtype dtype;
    int rc = run_dtensor_dtype(c, name, &dtype);
    if (rc != CLI_OK) return rc;
    const cli_tensor *t = values_find_tensor(&r->job->values, name);
    int32_t at = fxa_program_tensor_find(r->job->program, name);
    if (!t) return cli_fail(c, CLI_BAD_INPUT, "--dtensor %.63s: there is no --tensor of that name", name);
    if (!dtype_is_float(t->dtype))
        return cli_fail(c, CLI_BAD_INPUT, "--dtensor %.63s: the tensor is %s; only floats have a gradient", name,
                        fxa_dtype_name(t->dtype));
    if (at >= 0 && r->captures[at].grad) return cli_fail(c, CLI_BAD_INPUT, "--dtensor %.63s is given twice", name);
    if (!dtype) dtype = t->dtype;
    void *data = cli_alloc_array(c, t->array.count, fxa_dtype_size(dtype));
    if (at >= 0) {
        r->captures[at].grad = 1;
        r->captures[at].grad_dtype = (uint32_t)dtype;
        r->dtensors[at] = data;
    }
    run_add_output(r, cli_format(c, "dtensor %s", name), path + 1, dtype, t->array.rank, t->array.size, data);
    return CLI_OK;
}

static int run_add_dparam(cli *c, run_state *r, const char *text) {
    const char *path = strchr(text, '=');
    static double zero;
    if (!path) return cli_fail(c, CLI_BAD_INPUT, "--dparam %.100s: NAME=FILE is expected", text);
    const char *name = cli_format(c, "%.*s", (int)(path - text), text);
    int32_t at = fxa_program_param_find(r->job->program, name);
    bool given = at >= 0; /* a param of the program has a value: run fails earlier otherwise */
    for (size_t i = 0; i < r->job->values.n_params; i++)
        given = given || strcmp(r->job->values.params[i].name, name) == 0;
    if (!given) return cli_fail(c, CLI_BAD_INPUT, "--dparam %.63s: there is no --param of that name", name);
    if (at >= 0 && fxa_program_param(r->job->program, (size_t)at).type != FXA_FLOAT)
        return cli_fail(c, CLI_BAD_INPUT, "--dparam %.63s: the param is an int; only floats have a gradient", name);
    if (at >= 0) r->backward_problem.param_grads |= (uint64_t)1 << at;
    run_add_output(r, cli_format(c, "dparam %s", name), path + 1, FXA_F64, 0, r->outputs->size,
                   at >= 0 ? &r->dparams[at] : &zero);
    return CLI_OK;
}

static int run_prepare_backward(cli *c, run_state *r) {
    fxa_problem *p = &r->backward_problem;
    size_t at = 0, before = r->n_outputs;
    const char *text;
    int rc = run_read_dlse(c, r);
    p->dout = run_operand(r, false, r->dout.dtype, r->dout.stride);
    r->args.slot[FXA_SLOT_DO] = r->dout.data;
    if (opt_has(c, OPT_DQ)) p->dq = run_add_array(c, r, OPT_DQ, r->q.dtype, r->q.size, FXA_SLOT_DQ);
    if (opt_has(c, OPT_DK)) p->dk = run_add_array(c, r, OPT_DK, r->k.dtype, r->k.size, FXA_SLOT_DK);
    if (opt_has(c, OPT_DV)) p->dv = run_add_array(c, r, OPT_DV, r->v.dtype, r->v.size, FXA_SLOT_DV);
    if (opt_has(c, OPT_DQ)) p->flags |= FXA_GRAD_Q;
    if (opt_has(c, OPT_DK)) p->flags |= FXA_GRAD_K;
    if (opt_has(c, OPT_DV)) p->flags |= FXA_GRAD_V;
    if (opt_has(c, OPT_DSINKS)) {
        fxa_dtype dtype = (fxa_dtype)p->dsinks.dtype;
        void *data = r->args.slot[FXA_SLOT_DSINKS] = cli_alloc_array(c, p->hq, fxa_dtype_size(dtype));
        p->flags |= FXA_GRAD_SINKS;
        run_add_output(r, "dsinks", opt_get(c, OPT_DSINKS), dtype, 1, &p->hq, data);
    }
    while (rc == CLI_OK && (text = opt_next(c, OPT_DTENSOR, &at))) rc = run_add_dtensor(c, r, text);
    at = 0;
    while (rc == CLI_OK && (text = opt_next(c, OPT_DPARAM, &at))) rc = run_add_dparam(c, r, text);
    if (rc == CLI_OK && r->n_outputs == before)
        rc = cli_fail(
            c, CLI_BAD_INPUT,
            "--dout selects the backward pass, but no gradient is given: --dq, --dk, --dv, --dsinks, --dtensor, "
            "--dparam");
    return rc;
}

int run_prepare_outputs(cli *c, run_state *r) {
    static const cli_option_id gradients[] = {OPT_DQ, OPT_DK, OPT_DV, OPT_DSINKS, OPT_DTENSOR, OPT_DPARAM, OPT_DLSE};
    for (size_t i = 0; !r->backward && i < sizeof gradients / sizeof gradients[0]; i++)
        if (opt_has(c, gradients[i]))
            return cli_fail(c, CLI_BAD_INPUT, "--%s needs --dout", cli_options[gradients[i]].name);
    r->outputs = cli_alloc_array(c, (int64_t)c->n_given + 8, sizeof *r->outputs);
    int rc = run_prepare_forward(c, r);
    if (rc != CLI_OK) return rc;
    r->backward_problem = r->forward_problem;
    r->backward_problem.pass = FXA_BACKWARD;
    r->backward_problem.flags &= ~(uint32_t)(FXA_RETURN_LSE | FXA_RETURN_ROW_MAX);
    memcpy(r->captures, r->job->bind.captures, sizeof r->captures);
    r->backward_problem.captures = r->captures;
    r->backward_problem.bprop = r->job->bprop;
    r->backward_problem.bprop_captures = r->job->bprop_bind.captures;
    r->backward_problem.n_bprop_captures = r->job->bprop_bind.n_tensors;
    if (r->backward) rc = run_prepare_backward(c, r);
    if (rc == CLI_OK && r->n_outputs == 0)
        rc = cli_fail(c, CLI_BAD_INPUT,
                      "nothing to write: give --out FILE, --lse FILE, --row-max FILE or --dout with gradients");
    for (size_t i = 0; rc == CLI_OK && i < r->n_outputs; i++) {
        r->outputs[i].handle = cli_output_open(c, r->outputs[i].path);
        if (r->outputs[i].handle < 0) rc = CLI_BAD_INPUT;
    }
    return rc;
}

int run_write_outputs(cli *c, run_state *r) {
    int rc = CLI_OK;
    for (size_t i = 0; rc == CLI_OK && i < r->n_outputs; i++) {
        const run_output *o = &r->outputs[i];
        rc = npy_write(c, o->handle, o->dtype, o->rank, o->size, o->data);
    }
    return rc;
}

void run_count_rows(run_state *r) {
    const fxa_problem *p = &r->forward_problem;
    const int32_t *cu = r->args.slot[FXA_SLOT_CU_Q], *lengths = r->args.slot[FXA_SLOT_Q_LENGTHS];
    const void *max = r->args.slot[FXA_SLOT_ROW_MAX];
    if (p->sq == 0 || (r->packed && p->total_q == 0)) return; /* without elements, b and hq in a file may be huge */
    for (int64_t i = 0; i < p->b * p->hq; i++) {
        int64_t b = i / p->hq, h = i % p->hq, first = r->packed ? h * p->total_q + cu[b] : i * p->sq;
        int64_t rows = lengths ? lengths[b] : r->packed ? cu[b + 1] - cu[b] : p->sq;
        r->rows += rows;
        for (int64_t k = 0; max && k < rows; k++)
            r->empty_rows += element_get(r->row_dtype, max, first + k) == -INFINITY;
    }
}

void run_warn_rows(cli *c, const run_state *r) {
    bool one = r->empty_rows == 1;
    if (r->empty_rows == 0) return;
    if (r->empty_rows == r->rows)
        cli_warn(c, "no row attends to a key: O is 0 in %s%" PRId64 " row%s", one ? "" : "all ", r->rows,
                 one ? "" : "s");
    else
        cli_warn(c, "%" PRId64 " of %" PRId64 " rows attend%s to no key: %s O is 0", r->empty_rows, r->rows,
                 one ? "s" : "", one ? "its" : "their");
}

/* Elements of rows that attend to no key are 0, or -inf in LSE, and are not counted. */
int run_warn_outputs(cli *c, const run_state *r) {
    int rc = CLI_OK;
    for (size_t i = 0; i < r->n_outputs; i++) {
        const run_output *o = &r->outputs[i];
        int64_t count = 1, nan = 0, said = 0, first = 0;
        for (int d = 0; d < o->rank; d++) count *= o->size[d];
        for (int64_t k = 0; k < count; k++) {
            double x = element_get(o->dtype, o->data, k);
            if (isnan(x) && !nan++) first = k;
            said += !isnan(x) && x != 0 && x != -INFINITY;
        }
        if (!nan) continue;
        /* every element but 0 and -inf is NaN, and NaN is the majority */
        bool everywhere = !said && 2 * nan > count;
        if (!everywhere)
            cli_warn(c, "%s is NaN in %" PRId64 " of %" PRId64 " elements, first at %s", o->what, nan, count,
                     place_text(c, o->size, o->rank, first));
        else
            cli_warn(c,
                     "%s is NaN everywhere (%" PRId64 " elements): the program gives NaN or inf, or the inputs hold it",
                     o->what, count);
        if (everywhere) rc = CLI_CHECK_FAILED;
    }
    return rc;
}
