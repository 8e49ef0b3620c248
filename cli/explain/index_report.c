/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes results of fxa_bounds_check as text and as JSON.
 */
#include "explain/index_report.h"

#include <inttypes.h>

int index_report_find(cli *c, const fxa_problem *p, const fxa_args *args, index_report *out) {
    fxa_problem host = problem_on_host(p);
    fxa_error err;
    out->n = 0;
    if (fxa_bounds_check(c->ctx, &host, args, NULL, &out->n, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    out->list = cli_alloc_array(c, (int64_t)out->n, sizeof *out->list);
    if (out->n && fxa_bounds_check(c->ctx, &host, args, out->list, &out->n, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

static const char *index_report_tensor(const cli_job *job, const fxa_bounds_report *r) {
    return fxa_program_tensor(r->bprop ? job->bprop : job->program, (size_t)r->tensor).name;
}

const char *index_report_text(cli *c, const cli_job *job, const fxa_bounds_report *r) {
    const char *range =
        r->lo == r->hi ? cli_format(c, "index %d is", r->lo) : cli_format(c, "indices %d to %d are", r->lo, r->hi);
    const char *inside = r->size ? cli_format(c, "%" PRId64 " element%s: %" PRId64 " to %" PRId64, r->size,
                                              plural(r->size), -r->size, r->size - 1)
                                 : "it has no elements";
    return cli_format(c,
                      "tensor %s, axis %d: %s outside (%s) and read 0 in %s%" PRIu64 " of %" PRIu64
                      " pairs (%.3g %%), as at b %" PRId64 ", h %" PRId64 ", q %" PRId64 ", k %" PRId64,
                      index_report_tensor(job, r), r->axis, range, inside, r->exact ? "" : "about ", r->pairs, r->of,
                      100 * (double)r->pairs / (double)r->of, r->b, r->h, r->q, r->k);
}

void index_report_json(json *j, const cli_job *job, const index_report *x) {
    json_open(j, "indices_outside", '[');
    for (size_t i = 0; i < x->n; i++) {
        const fxa_bounds_report *r = &x->list[i];
        json_open(j, NULL, '{');
        json_string(j, "tensor", index_report_tensor(job, r));
        json_bool(j, "bprop", r->bprop);
        json_int(j, "axis", r->axis);
        json_int(j, "size", r->size);
        json_int(j, "lowest", r->lo);
        json_int(j, "highest", r->hi);
        json_uint(j, "pairs", r->pairs);
        json_uint(j, "of", r->of);
        json_bool(j, "exact", r->exact);
        json_open(j, "at", '{');
        json_int(j, "b", r->b);
        json_int(j, "h", r->h);
        json_int(j, "q", r->q);
        json_int(j, "k", r->k);
        json_close(j, '}');
        json_close(j, '}');
    }
    json_close(j, ']');
}
