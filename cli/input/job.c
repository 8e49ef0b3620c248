/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a problem from the program, the values and the shape on the command line (input/job.h).
 */
#include "explain/explain.h"

#include <string.h>
#include <unistd.h>

static int job_read_engine(cli *c, fxa_problem *problem) {
    const char *name = opt_get(c, OPT_ENGINE), *names[64];
    size_t n = 0;
    cli_buf list = {0};
    if (!name) return CLI_OK;
    for (; n < 64 && fxa_engine_name(n); n++) {
        names[n] = fxa_engine_name(n);
        if (strcmp(name, names[n]) == 0) problem->engine = names[n];
        buf_printf(&list, "%s%s", n ? ", " : "", names[n]);
    }
    const char *near = cli_nearest(name, names, n);
    int rc = problem->engine ? CLI_OK
             : near          ? cli_fail(c, CLI_BAD_INPUT, "there is no engine '%.64s'; did you mean '%s'?", name, near)
                             : cli_fail(c, CLI_BAD_INPUT, "there is no engine '%.64s'; there are: %s", name,
                               list.size ? list.data : "none");
    buf_free(&list);
    return rc;
}

/* Reads built-in masks, sinks and dropout. */
static int job_read_flags(cli *c, fxa_problem *problem) {
    int64_t window[2];
    const char *text = opt_get(c, OPT_WINDOW);
    bool decode = opt_has(c, OPT_DECODE); /* with --decode, texts_collect makes the masks part of the text */
    if (opt_has(c, OPT_CAUSAL) && !decode) problem->flags |= FXA_CAUSAL;
    if (opt_has(c, OPT_BOTTOM_RIGHT) || decode) problem->flags |= FXA_BOTTOM_RIGHT;
    if (opt_has(c, OPT_SINK_ZERO)) problem->flags |= FXA_SINK_ZERO;
    if (opt_has(c, OPT_BOUNDS_CHECK)) problem->flags |= FXA_BOUNDS_CHECK;
    if (text) {
        if (read_int_list(text, window, 2) != 2)
            return cli_fail(c, CLI_BAD_INPUT,
                            "--window %.64s: two numbers are expected, as in 128,0; -1 does not limit a side", text);
        if (!decode) problem->flags |= FXA_WINDOW;
        problem->window_left = window[0];
        problem->window_right = window[1];
    }
    if (opt_has(c, OPT_DROPOUT_P)) problem->flags |= FXA_DROPOUT;
    return opt_double(c, OPT_DROPOUT_P, &problem->dropout_p);
}

/* Makes the score program or the backward program, and binds its values. */
static int job_make_one(cli *c, fxa_program_kind kind, cli_texts *s, cli_values *v, fxa_program **program,
                        cli_binding *b) {
    fxa_declaration declarations[FXA_MAX_PARAMS + FXA_MAX_TENSORS];
    int rc = texts_collect(c, kind, s);
    if (rc == CLI_OK) rc = values_collect(c, kind, v);
    if (rc == CLI_OK && kind == FXA_PROGRAM_BPROP && s->n == 0) {
        if (v->n_params || v->n_tensors)
            rc = cli_fail(c, CLI_BAD_INPUT, "--bprop-param and --bprop-tensor need --bprop or --dscore");
        return rc;
    }
    size_t n = values_declare(v, declarations);
    if (rc == CLI_OK) rc = texts_parse(c, s, kind, declarations, n, program);
    return rc == CLI_OK ? values_bind(c, v, s, *program, b) : rc;
}

int job_make_program(cli *c, cli_job **out) {
    cli_job *job = *out = cli_alloc(c, sizeof *job);
    job->problem = (fxa_problem)FXA_PROBLEM_INIT;
    int rc = job_make_one(c, FXA_PROGRAM_SCORE, &job->sources, &job->values, &job->program, &job->bind);
    if (rc == CLI_OK)
        rc = job_make_one(c, FXA_PROGRAM_BPROP, &job->bprop_sources, &job->bprop_values, &job->bprop, &job->bprop_bind);
    if (rc == CLI_OK) rc = job_read_flags(c, &job->problem);
    if (rc == CLI_OK) rc = job_read_engine(c, &job->problem);
    if (rc == CLI_OK) rc = job_read_device(c, &job->problem);
    if (rc == CLI_OK) rc = shape_read(c, "--shape", opt_get(c, OPT_SHAPE), &job->shape);
    const char *grads = opt_get(c, OPT_GRADS);
    job->qkv = grads && strcmp(grads, "qkv") == 0;
    if (rc == CLI_OK && grads && !job->qkv && strcmp(grads, "all") != 0)
        rc = cli_fail(c, CLI_BAD_INPUT, "--grads %.20s: accepted are all, qkv", grads);
    if (rc != CLI_OK) return rc;
    job->problem.program = job->program;
    job->problem.captures = job->bind.captures;
    job->problem.n_captures = job->bind.n_tensors;
    return CLI_OK;
}

void job_set_shape(cli_job *job, const cli_shape *shape, bool small) {
    fxa_problem *p = &job->problem;
    const int64_t *v = job->shape.value;
    job->shape = *shape;
    shape_resolve(&job->shape, small);
    p->b = v[SHAPE_B];
    p->hq = v[SHAPE_H];
    p->hkv = v[SHAPE_HKV];
    p->sq = v[SHAPE_SQ];
    p->sk = v[SHAPE_SK];
    p->d_qk = v[SHAPE_D];
    p->d_v = v[SHAPE_DV] > 0 ? v[SHAPE_DV] : FXA_D_V_ZERO;
    if (p->flags & FXA_PAGED) p->n_pages = (int64_t)((uint64_t)p->b * (uint64_t)((p->sk - 1) / p->page_size + 1));
    if (!(p->flags & FXA_VARLEN)) return;
    /* if a product overflows, the library refuses its factors */
    p->total_q = (int64_t)((uint64_t)p->b * (uint64_t)p->sq);
    p->total_k = (int64_t)((uint64_t)p->b * (uint64_t)p->sk);
}

/* Reads the options that describe later runs of a plan: --assume, --page-size. */
static int job_read_assumptions(cli *c, fxa_problem *p) {
    static const struct {
        const char *name;
        uint32_t flag;
    } words[] = {{"sinks", FXA_SINKS}, {"q-start", FXA_Q_START}, {"scales", FXA_SCALED}};
    int64_t page = 0;
    size_t at = 0;
    for (const char *word; (word = opt_next(c, OPT_ASSUME, &at)) != NULL;) {
        size_t i = 0;
        while (i < 3 && strcmp(word, words[i].name) != 0) i++;
        if (i == 3) return cli_fail(c, CLI_BAD_INPUT, "--assume %.20s: accepted are sinks, q-start, scales", word);
        p->flags |= words[i].flag;
    }
    int rc = opt_int(c, OPT_PAGE_SIZE, 1, INT32_MAX, &page);
    if (rc != CLI_OK || !page) return rc;
    p->flags |= FXA_PAGED;
    p->page_size = (uint32_t)page;
    return CLI_OK;
}

/* Reads the storage of the planned problem: --layout, --varlen, --lse-dtype. */
static int job_read_storage(cli *c, fxa_problem *p) {
    const char *lengths = opt_get(c, OPT_VARLEN), *lse = opt_get(c, OPT_LSE_DTYPE);
    bool packed = lengths && strcmp(lengths, "packed") == 0;
    fxa_operand *operands[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    int layout = packed ? FXA_LAYOUT_BSHD : FXA_LAYOUT_BHSD;
    if (lengths && !packed && strcmp(lengths, "padded") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--varlen %.20s: accepted are padded, packed", lengths);
    if (lse && strcmp(lse, "f32") != 0 && strcmp(lse, "f64") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--lse-dtype %.20s: accepted are f32, f64", lse);
    int rc = job_read_layout(c, &layout);
    if (rc != CLI_OK) return rc;
    p->flags |= !lengths ? 0 : packed ? FXA_VARLEN : FXA_PADDING;
    p->lse.dtype = lse ? (uint32_t)fxa_dtype_find(lse) : 0;
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) operands[i]->layout = (uint32_t)layout;
    return CLI_OK;
}

int job_read_layout(cli *c, int *layout) {
    static const char *const names[] = {"bhsd", "bshd", "sbhd"};
    const char *text = opt_get(c, OPT_LAYOUT);
    int which = 0;
    while (text && which < 3 && strcmp(text, names[which]) != 0) which++;
    if (which == 3) return cli_fail(c, CLI_BAD_INPUT, "--layout %.20s: accepted are bhsd, bshd, sbhd", text);
    if (text) *layout = which;
    return CLI_OK;
}

int job_make(cli *c, bool small, cli_job **out) {
    int rc = job_make_program(c, out);
    if (rc != CLI_OK) return rc;
    cli_job *job = *out;
    fxa_problem *p = &job->problem;
    const char *dtype = opt_get(c, OPT_DTYPE);
    cli_shape given = job->shape;
    rc = job_read_storage(c, p);
    if (rc == CLI_OK) rc = job_read_assumptions(c, p);
    if (rc != CLI_OK) return rc;
    job_set_shape(job, &given, small);
    p->q.dtype = dtype ? (uint32_t)fxa_dtype_find(dtype) : (uint32_t)FXA_F32;
    if (!dtype_is_float((fxa_dtype)p->q.dtype))
        return cli_fail(c, CLI_BAD_INPUT, "--dtype %.20s: accepted are f64, f32, f16, bf16, e4m3, e5m2", dtype);
    job_warn_alignment(c, job, p);
    return CLI_OK;
}

int job_run_program(cli *c, const cli_job *job, fxa_program **out) {
    fxa_error err;
    if (fxa_problem_program(c->ctx, &job->problem, out, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, *out);
    return CLI_OK;
}

const char *program_text(cli *c, const fxa_program *program) {
    fxa_error err;
    size_t needed = 0;
    char *text = NULL;
    fxa_status status = fxa_program_print(program, NULL, 0, &needed, &err);
    if (status == FXA_OK)
        status = fxa_program_print(program, text = cli_alloc(c, needed + 1), needed + 1, &needed, &err);
    if (status == FXA_OK) return text;
    cli_fail_library(c, &err, NULL);
    return NULL;
}

fxa_problem job_backward(cli_job *job) {
    fxa_problem p = job->problem;
    p.pass = FXA_BACKWARD;
    p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    if ((p.flags & FXA_SINKS) && !job->qkv) p.flags |= FXA_GRAD_SINKS;
    for (size_t i = 0; i < job->bind.n_tensors; i++) {
        job->grad_captures[i] = job->bind.captures[i];
        job->grad_captures[i].grad = !job->qkv && dtype_is_float(job->bind.views[i].dtype);
    }
    for (size_t i = 0; i < job->bind.n_params && !job->qkv; i++)
        if (fxa_program_param(job->program, i).type == FXA_FLOAT) p.param_grads |= (uint64_t)1 << i;
    p.captures = job->grad_captures;
    p.bprop = job->bprop;
    p.bprop_captures = job->bprop_bind.captures;
    p.n_bprop_captures = job->bprop_bind.n_tensors;
    return p;
}

fxa_problem job_planned(cli_job *job, fxa_pass pass) {
    fxa_problem p = pass == FXA_BACKWARD ? job_backward(job) : job->problem;
    if (p.pass == FXA_FORWARD) p.flags |= FXA_RETURN_LSE;
    return p;
}

int64_t problem_row_shift(const fxa_problem *p) {
    bool aligned = (p->flags & FXA_BOTTOM_RIGHT) && !(p->flags & (FXA_CAUSAL | FXA_WINDOW));
    return aligned ? p->sk - p->sq : 0;
}

void job_warn_alignment(cli *c, const cli_job *job, const fxa_problem *p) {
    bool causal = p->flags & FXA_CAUSAL, window = p->flags & FXA_WINDOW;
    bool ragged = p->flags & (FXA_PADDING | FXA_VARLEN);
    fxa_properties properties;
    fxa_program_properties(job->program, &properties);
    if (!(p->flags & FXA_BOTTOM_RIGHT) || !(causal || window) || (p->sq == p->sk && !ragged)) return;
    if (!((properties.score_depends | properties.mask_depends) >> FXA_INPUT_Q & 1)) return;
    cli_warn(
        c,
        "--bottom-right aligns %s alone, and the program's q is still 0 in the first row; to align both, write the "
        "mask into the program, as --mask 'k <= q'",
        causal && window ? "--causal and --window"
        : causal         ? "--causal"
                         : "--window");
}

int job_require_small(cli *c, const cli_job *job) {
    if (job->problem.sq > INT32_MAX || job->problem.sk > INT32_MAX)
        return cli_fail(c, CLI_BAD_INPUT, "--shape: sq and sk are at most %d here", INT32_MAX);
    return CLI_OK;
}

double problem_pairs(const fxa_problem *p) { return (double)p->b * (double)p->hq * (double)p->sq * (double)p->sk; }

int job_require_memory(cli *c, const cli_job *job) {
    const fxa_problem *p = &job->problem;
    double rows = (double)p->b * (double)p->hq * (double)p->sq, keys = (double)p->b * (double)p->hkv * (double)p->sk;
    double elements = (rows + keys) * (double)(p->d_qk + problem_dv(p)) + rows;
    double bytes = elements * (double)(sizeof(double) + 2 * fxa_dtype_size((fxa_dtype)p->q.dtype));
    double has = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (has > 0 && bytes > has)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--shape %s: data and results are some %.3g GB, and this machine has %.3g GB of memory",
                        problem_shape_text(c, p), 1e-9 * bytes, 1e-9 * has);
    return CLI_OK;
}
