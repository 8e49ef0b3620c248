/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `check`: each appends findings, the command writes them down. */
#ifndef FXA_CLI_CHECK_H
#define FXA_CLI_CHECK_H

#include "trial.h"

typedef enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED } check_verdict;

typedef struct check_finding {
    const char *check; /* "engine", "derivative", "bprop", "determinism" */
    const char *what;  /* "dQ", "d score", ... */
    check_verdict verdict;
    double error, tolerance; /* worst error, relative to 1 + |value| unless noted */
    const char *where;       /* "b 0, h 1, q 3, k 2" of the worst; "" when there is none */
    const char *note;        /* "" or what else there is to say */
} check_finding;

#define CHECK_MAX_FINDINGS 1024

typedef struct check_state {
    cli_job *job;
    fxa_program *whole; /* with ready masks */
    trial_data data;
    cli_random random;
    int64_t samples;
    check_finding *findings;
    size_t n;
    bool failed;
    const char *engine;
} check_state;

void check_add(check_state *s, check_finding finding);
int check_engine(cli *c, check_state *s);     /* against ref, and bit by bit against itself */
int check_derivative(cli *c, check_state *s); /* gradients of a whole run against finite differences */
int check_pairs(cli *c, check_state *s);      /* d score of single pairs: finite differences, and the user's backward */
const char *check_place(cli *c, const trial_array *a, int64_t index); /* "b 0, h 1, row 3, feature 2" */

#endif
