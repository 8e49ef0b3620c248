/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the results of the reference: if every row is NaN or attends to no key, all other comparisons show nothing.
 */
#include "check/bound.h"

#include <inttypes.h>
#include <math.h>

static const char *rows_culprit(cli *c, const check_culprit *x) {
    if (!x->found) return "";
    return cli_format(c, "; the new score is %s at b %.0f, h %.0f, q %.0f, k %.0f, score %.6g",
                      isnan(x->value) ? "NaN" : "inf", x->in[FXA_INPUT_B], x->in[FXA_INPUT_H], x->in[FXA_INPUT_Q],
                      x->in[FXA_INPUT_K], x->in[FXA_INPUT_SCORE]);
}

void check_rows(cli *c, check_state *s) {
    const double *lse = s->lse;
    int64_t rows = s->ref->arrays[BOUND_LSE].count, nan = 0, empty = 0;
    check_finding f = {"rows", "O", CHECK_PASSED, 0, 0, "", "", NULL, false};
    for (int64_t i = 0; i < rows; i++) {
        nan += isnan(lse[i]);
        empty += lse[i] == -INFINITY;
    }
    const char *why = rows_culprit(c, &s->culprit);
    if (rows && nan == rows) {
        f.verdict = CHECK_FAILED;
        f.note = cli_format(c, "O is NaN in all %" PRId64 " rows%s", rows, why);
    } else if (rows && empty == rows) {
        f.verdict = CHECK_FAILED;
        f.note =
            cli_format(c, "no row attends to a key: O is 0 in all %" PRId64 " rows and nothing was compared", rows);
    } else if (nan) {
        f.verdict = CHECK_WARNED;
        f.note = cli_format(c, "O is NaN in %" PRId64 " of %" PRId64 " rows%s", nan, rows, why);
    } else
        f.note = cli_format(c, "%" PRId64 " row%s%s", rows, plural(rows),
                            empty ? cli_format(c, ", %" PRId64 " attend to nothing", empty) : "");
    s->findings[0] = f; /* becomes finding 0, because it explains the other findings */
    s->failed = s->failed || f.verdict == CHECK_FAILED;
    s->warned = s->warned || f.verdict == CHECK_WARNED;
}

void check_reach(check_state *s, const trial *t) {
    const char *why = "the score does not reach the result: dQ and dK are 0 everywhere";
    fxa_properties properties;
    int64_t rows = 0;
    for (size_t a = BOUND_DQ; a <= BOUND_DK; a++)
        for (int64_t i = 0; i < t->arrays[a].count; i++)
            if (element_get(t->arrays[a].dtype, t->arrays[a].data, i) != 0) return;
    for (int64_t i = 0; i < t->arrays[BOUND_LSE].count; i++) rows += isfinite(s->lse[i]);
    if (rows == 0) return; /* no row attends to a key; check_rows reports that */
    fxa_program_properties(s->run_program, &properties);
    if (properties.score_depends >> FXA_INPUT_SCORE & 1)
        why = "the derivative of the new score by the score is 0: dQ and dK are 0 everywhere";
    check_add(s, (check_finding){"rows", "dQ, dK", CHECK_WARNED, 0, 0, "", why, NULL, false});
}

int check_indices(cli *c, check_state *s) {
    const fxa_problem p = s->job->bprop ? s->ref->problem[FXA_BACKWARD] : s->ref->problem[FXA_FORWARD];
    int rc = index_report_find(c, &p, &s->ref->args, &s->outside);
    for (size_t i = 0; rc == CLI_OK && i < s->outside.n; i++)
        check_add(s, (check_finding){"indices", "outside", CHECK_WARNED, 0, 0, "",
                                     index_report_text(c, s->wide, &s->outside.list[i]), NULL, false});
    return rc;
}
