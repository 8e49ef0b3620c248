/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the command `check`. Each part appends findings; commands/check.c reports them.
 *
 *   check_prepare      runs the reference in f64 on data rounded to the dtype and bounds the error of an engine
 *   check_rows         reports rows of the reference that are NaN or attend to no key
 *   check_engine       compares the engine with the reference, and two of its runs bit by bit
 *   check_pairs        compares d score of single pairs with finite differences and with the user's backward
 *   check_derivative   compares gradients of entire runs with finite differences
 *
 * No tolerance is a chosen constant: each is an error bound of docs/numerics.md or the estimated error of a finite
 * difference. With_grad makes the derivative of a program differ from finite differences by intention, so for programs
 * with with_grad only engine and reference are compared.
 */
#ifndef FXA_CLI_CHECK_H
#define FXA_CLI_CHECK_H

#include "explain/index_report.h"
#include "input/sample_problem.h"

typedef enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED, CHECK_WARNED } check_verdict;

typedef struct check_finding {
    const char *check; /* "rows", "engine", "derivative", "bprop", "determinism" */
    const char *what;  /* "dQ", "d score", ... */
    check_verdict verdict;
    double error, tolerance; /* error and tolerance of the element with the largest error / tolerance; 0, 0 = none */
    const char *where;       /* position of the element with the largest ratio, "b 0, h 1, q 3, k 2"; "" = none */
    const char *note;        /* further text; "" = none */
    const struct fd_tally *tally; /* comparison with finite differences; NULL = none */
    bool silent; /* true = elements were compared, but every tolerance was too wide to detect an error */
} check_finding;

#define CHECK_MAX_FINDINGS 1024
#define CHECK_MAX_PAIRS 268435456.0 /* maximum number of pairs, whose check takes half an hour */

/* Bounds of the difference between an engine's arrays and the reference's, element by element (check/bound.c). */
typedef struct check_bound {
    fxa_dtype arithmetic; /* compute type of the engine: FXA_F32 or FXA_F64 */
    double *error[TRIAL_MAX_ARRAYS], *size[TRIAL_MAX_ARRAYS], *noise[TRIAL_MAX_ARRAYS];
    bool *unsure
        [TRIAL_MAX_ARRAYS]; /* rounding decides a jump in the element: the bound holds if the engine decides as ref
                               does */
    bool all_unsure
        [TRIAL_MAX_ARRAYS]; /* [array] true = rounding decides which element of the tensor receives a gradient */
    int64_t terms[TRIAL_MAX_ARRAYS]; /* [array] number of terms summed in one element */
} check_bound;

/* Additional errors of one array if the engine multiplies in 16 bits; all 0 = the engine does not. */
typedef struct bound_products {
    double unit;  /* unit roundoff of P and dS as operands of products */
    double heads; /* unit roundoff of the sum over query heads that share a KV head */
    double least; /* absolute bound of the error of subnormal P and dS */
} bound_products;

/* First pair whose new score is NaN or +inf: its inputs and its score. */
typedef struct check_culprit {
    bool found;
    double in[FXA_INPUT_COUNT], value;
} check_culprit;

typedef struct check_state {
    cli_job *job;
    cli_job *wide;                         /* the job with its float tensors in f64 */
    fxa_program *run_program, *derivative; /* programs of `wide`: score program with built-in masks, derivative */
    trial_data data;                       /* random data, rounded to the job's dtype */
    trial *ref;                            /* run of `wide` in f64, forward and backward, with the user's backward */
    double *lse;                           /* LSE of the reference after forward */
    index_report outside;
    check_culprit culprit;
    bool has_with_grad; /* the program has with_grad, a stated derivative that finite differences do not give */
    cli_random random;
    int64_t samples;
    check_finding *findings;
    size_t n;
    bool failed, warned;
    const char *engine;
} check_state;

/* Appends a finding. */
void check_add(check_state *s, check_finding finding);
/* Runs the reference forward. Returns an exit code. */
int check_prepare(cli *c, check_state *s);
/* Writes a finding about NaN rows and empty rows as finding 0. Called after all other parts of the check. */
void check_rows(cli *c, check_state *s);
/* Warns if dQ and dK of t are 0 everywhere, because comparing them then shows nothing. The backward pass of t must have
 * used the derived derivative. */
void check_reach(check_state *s, const trial *t);
/* Warns about indices outside their tensors. Returns an exit code. */
int check_indices(cli *c, check_state *s);
/* Compares the engine with the reference, and two runs of the engine with each other. Returns an exit code. */
int check_engine(cli *c, check_state *s);
/* Compares gradients of entire runs with finite differences. Returns an exit code. */
int check_derivative(cli *c, check_state *s);
/* Compares d score of single pairs with finite differences and with the user-written backward. Returns an exit code. */
int check_pairs(cli *c, check_state *s);
/* Adds a finding "not compared" for a derivative of a program with with_grad. */
void check_add_with_grad(check_state *s, const char *what);
/* Returns the position of an element, "b 0, h 1, row 3, feature 2"; owned by c. */
const char *check_place(cli *c, const trial_array *a, int64_t index);

/* Makes a copy of the job in which float tensors are f64, contiguous and writable (check/widen.c). */
int check_widen(cli *c, const cli_job *job, cli_job **out);

/* bound_forward and bound_backward compute the bounds of the arrays of t, a trial of s->wide in f64 after its forward
 * or backward run. The slots O and LSE of t hold what backward reads. with_bprop: backward used the user-written
 * backward program. */
int bound_forward(cli *c, check_state *s, const trial *t, fxa_dtype arithmetic, check_bound *out);
int bound_backward(cli *c, check_state *s, const trial *t, bool with_bprop, check_bound *out);
/* Returns true if the bound may not hold for the element, because rounding may decide a jump in it. */
bool bound_is_unsure(const check_bound *b, size_t array, int64_t index);
double bound_allowed(const check_bound *b, size_t array, int64_t index, bound_products product);
/* Returns true if comparing the element is conclusive. The comparison is inconclusive if the allowed error is as large
 * as the terms of the element, because 0 or a value of the wrong sign would then pass. */
bool bound_tells(const check_bound *b, size_t array, int64_t index, bound_products product);

/* ---- Finite differences that estimate their own error (check/finite_difference.c) -------------------------------- */

typedef enum fd_verdict {
    FD_AGREES,
    FD_DIFFERS,
    FD_KINK,       /* left and right differences do not converge to one value, or every step crosses a jump */
    FD_NOT_FINITE, /* the function is not finite near the point */
    FD_ROUNDING,   /* rounding decides a jump at the point itself */
    FD_UNKNOWN,    /* no step gives a difference with a small enough error */
    FD_VERDICTS
} fd_verdict;

/* Differences f(x + up) - f(x) and f(x) - f(x - down), where up and down are close to h, and a bound (noise) of the
 * rounding error of each difference. */
typedef struct fd_step {
    double up, down, rise_up, rise_down, noise;
    bool jump; /* true = there may be a jump within the steps, so the differences approximate no derivative */
} fd_step;
typedef int (*fd_fn)(cli *c, void *user, double h, fd_step *out);

typedef struct fd_result {
    fd_verdict verdict;
    double error, tolerance; /* |difference - claimed derivative|, and the tolerance */
} fd_result;

/* Compares a claimed derivative, whose error is claimed_error, with finite differences whose steps halve from h. scale:
 * typical size of derivatives of f; estimates with a larger error are ignored. Returns an exit code. */
int fd_compare(cli *c, fd_fn f, void *user, double h, double claimed, double claimed_error, double scale,
               fd_result *out);

/* Counts of many comparisons, and the comparison with the largest error / tolerance. */
typedef struct fd_tally {
    int64_t count[FD_VERDICTS];
    int64_t at;
    double error, tolerance;
} fd_tally;
int64_t fd_compared(const fd_tally *t); /* Returns the number of comparisons with the verdict agrees or differs. */
/* Reasons why a point was not compared, by verdict: {text, JSON key}; NULL = the verdict is a comparison. */
extern const char *const fd_left_out[FD_VERDICTS][2];
/* Adds a comparison. Returns true if it has the largest error / tolerance so far. */
bool fd_count(fd_tally *t, const fd_result *r, int64_t index);
const fd_tally *fd_keep(cli *c, const fd_tally *t); /* Returns a copy of t, owned by c. */
/* Returns "24 points, 2 left out: not finite" for unit "point"; owned by c. */
const char *fd_note(cli *c, const fd_tally *t, const char *unit);
check_verdict fd_verdict_of(const fd_tally *t);

#endif
