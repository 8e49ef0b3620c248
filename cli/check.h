/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `check`: each appends findings, the command writes them down.
 *
 *   check_prepare      the reference in f64 on data rounded to the dtype, and how far an engine may be from it
 *   check_rows         what the reference says at all: rows that are NaN, rows that attend to nothing
 *   check_engine       the engine against the reference, and bit by bit against itself
 *   check_pairs        d score of single pairs: finite differences, and the user's backward
 *   check_derivative   gradients of whole runs against finite differences
 *
 * Of a program with with_grad the derivative is what it says, not what differences are: the engine against the
 * reference is all that is compared of it.
 *
 * No tolerance is chosen: each is a bound of docs/numerics.md, or the error that a finite difference says of itself.
 */
#ifndef FXA_CLI_CHECK_H
#define FXA_CLI_CHECK_H

#include "indices.h"
#include "trial.h"

typedef enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED, CHECK_WARNED } check_verdict;

typedef struct check_finding {
    const char *check; /* "rows", "engine", "derivative", "bprop", "determinism" */
    const char *what;  /* "dQ", "d score", ... */
    check_verdict verdict;
    double error, tolerance; /* of the element that is worst relative to its own tolerance; 0, 0: nothing to say */
    const char *where;       /* "b 0, h 1, q 3, k 2" of it; "" when there is none */
    const char *note;        /* "" or what else there is to say */
    const struct slope_tally *tally; /* of a comparison with slopes; else NULL */
    bool silent;                     /* things were to be compared, and no comparison told anything */
} check_finding;

#define CHECK_MAX_FINDINGS 1024
#define CHECK_MOST_PAIRS 268435456.0 /* that are checked: half an hour */

/* How far from the reference's arrays a result may be, element by element; see check_bound.c. */
typedef struct check_bound {
    fxa_dtype arithmetic; /* FXA_F32 or FXA_F64 */
    double *error[TRIAL_MAX_ARRAYS], *size[TRIAL_MAX_ARRAYS], *noise[TRIAL_MAX_ARRAYS];
    bool *unsure[TRIAL_MAX_ARRAYS];    /* rounding decides a jump in it: the bound holds if it decides as in ref */
    bool all_unsure[TRIAL_MAX_ARRAYS]; /* which element of a tensor a gradient goes to is decided so */
    int64_t terms[TRIAL_MAX_ARRAYS];   /* how many are summed up in an element */
} check_bound;

/* What an engine rounds on its way besides f32, beside one array; all 0: nothing. */
typedef struct bound_products {
    double unit;  /* of P and dS as they are multiplied */
    double heads; /* of what single heads add to keys that they share */
    double least; /* what the smallest P and dS may lose, in all */
} bound_products;

/* The first pair whose new score is NaN or +inf. */
typedef struct check_culprit {
    bool found;
    double in[FXA_INPUT_COUNT], value;
} check_culprit;

typedef struct check_state {
    cli_job *job;
    cli_job *wide;                   /* the job with float tensors in f64 */
    fxa_program *whole, *derivative; /* of wide, with ready masks */
    trial_data data;                 /* rounded to the job's dtype */
    trial *ref;                      /* of wide, in f64, with the user's backward; forward and backward were run */
    double *lse;                     /* of the reference, as forward gave it */
    indices outside;
    check_culprit culprit;
    bool has_with_grad; /* the program states a derivative, which differences of its values do not have */
    cli_random random;
    int64_t samples;
    check_finding *findings;
    size_t n;
    bool failed, warned;
    const char *engine;
} check_state;

void check_add(check_state *s, check_finding finding);
int check_prepare(cli *c, check_state *s);
void check_rows(cli *c, check_state *s); /* last, and fills the first finding */
/* A warning when dQ and dK of t, whose backward was run with the derived derivative, are 0 everywhere. */
void check_reach(check_state *s, const trial *t);
int check_indices(cli *c, check_state *s); /* those outside their tensors are a warning */
int check_engine(cli *c, check_state *s);
int check_derivative(cli *c, check_state *s);
int check_pairs(cli *c, check_state *s);
void check_add_grafted(check_state *s, const char *what); /* of a derivative that is not held against differences */
const char *check_place(cli *c, const trial_array *a, int64_t index); /* "b 0, h 1, row 3, feature 2" */

/* A copy of the job in which float tensors are f64, dense and writable (check_widen.c). */
int check_widen(cli *c, const cli_job *job, cli_job **out);

/* Bounds for the arrays of t, a trial of wide in f64 whose forward (backward) was run; O and LSE as backward read them
 * are in its slots. with_bprop: the user's backward was used. */
int bound_forward(cli *c, check_state *s, const trial *t, fxa_dtype arithmetic, check_bound *out);
int bound_backward(cli *c, check_state *s, const trial *t, bool with_bprop, check_bound *out);
/* What one element may be off by before it is rounded to its dtype, where it is not unsure; product: unit of 16-bit
 * products, or 0. */
bool bound_is_unsure(const check_bound *b, size_t array, int64_t index);
double bound_allowed(const check_bound *b, size_t array, int64_t index, bound_products product);
/* False where as much is allowed as the magnitudes of an element's terms come to: 0 and wrong signs would do. */
bool bound_tells(const check_bound *b, size_t array, int64_t index, bound_products product);

/* ---- Finite differences with an error of their own (slope.c) --------------------------------------------------- */

typedef enum slope_verdict {
    SLOPE_AGREES,
    SLOPE_DIFFERS,
    SLOPE_KINK,       /* differences to the left and to the right do not come together, or every step holds a jump */
    SLOPE_NOT_FINITE, /* of the function */
    SLOPE_ROUNDING,   /* rounding decides a jump at the very point */
    SLOPE_UNKNOWN,    /* no step gives a difference that can be trusted */
    SLOPE_VERDICTS
} slope_verdict;

/* f(x + up) - f(x) and f(x) - f(x - down) for steps near h, and a bound of the rounding in either. */
typedef struct slope_step {
    double up, down, rise_up, rise_down, noise;
    bool jump; /* there may be a jump between them: these differences tell nothing of a slope */
} slope_step;
typedef int (*slope_fn)(cli *c, void *user, double h, slope_step *out);

typedef struct slope_result {
    slope_verdict verdict;
    double error, tolerance; /* |difference - claimed|, and what was allowed */
} slope_result;

/* Compares a claimed slope, good to claimed_error, with differences whose steps halve from h. scale: how large slopes
 * are here; what is not even known to that tells nothing. */
int slope_compare(cli *c, slope_fn f, void *user, double h, double claimed, double claimed_error, double scale,
                  slope_result *out);

/* Counts of many comparisons, and the worst of them. */
typedef struct slope_tally {
    int64_t count[SLOPE_VERDICTS];
    int64_t at;
    double error, tolerance;
} slope_tally;
int64_t slope_compared(const slope_tally *t); /* those that agree or differ */
/* Why points were left out, by verdict: for a text, and as a key of JSON; NULL: they were not. */
extern const char *const slope_left_out[SLOPE_VERDICTS][2];
/* True when this one is now the worst. */
bool slope_count(slope_tally *t, const slope_result *r, int64_t index);
const slope_tally *slope_keep(cli *c, const slope_tally *t); /* a copy that lasts */
/* "24 points, 2 left out: not finite"; unit: "point". */
const char *slope_note(cli *c, const slope_tally *t, const char *unit);
check_verdict slope_verdict_of(const slope_tally *t);

#endif
