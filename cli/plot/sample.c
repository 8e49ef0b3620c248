/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates the pairs of cells. Up to PLOT_PAIRS pairs, within PLOT_WORK for the size of the program, all pairs are
 * evaluated and every number is exact. Otherwise random pairs of each cell are evaluated, and the masked share of the
 * picture is counted exactly if pair_count_one can.
 */
#include "explain/mask_pairs.h"
#include "plot/plot.h"

#include <math.h>

#define PLOT_PAIRS (1 << 21)
#define PLOT_SAMPLES 32 /* maximum number of pairs evaluated in a cell */

const uint32_t plot_fate_colour[PLOT_FATES] = {0, 0xb59fcb, 0xd7263d, 0};

plot_fate plot_cell_fate(const plot_cell *cell) {
    if (cell->share[PLOT_NOT_A_NUMBER] > 0) return PLOT_NOT_A_NUMBER;
    if (cell->share[PLOT_ATTENDED] > 0) return PLOT_ATTENDED;
    return cell->share[PLOT_MINUS_INF] > 0 ? PLOT_MINUS_INF : PLOT_MASKED;
}

typedef struct plot_sampler {
    const cli_job *job;
    const fxa_program *program;
    plot *p;
    double in[FXA_INPUT_COUNT];
    cli_random random;
    uint64_t count[PLOT_FATES], all[PLOT_FATES]; /* [fate] pairs with each result: of a cell, of the picture */
    double sum;
} plot_sampler;

static int plot_look(cli *c, plot_sampler *s, int64_t q, int64_t k) {
    double value;
    int mask;
    fxa_error err;
    s->in[FXA_INPUT_Q] = (double)(q + problem_row_shift(&s->job->problem));
    s->in[FXA_INPUT_K] = s->in[FXA_INPUT_K_ROW] = (double)k;
    s->in[FXA_INPUT_Q_ROW] = (double)q;
    if (fxa_program_eval(s->program, s->in, s->job->bind.params, s->job->bind.views, &value, &mask, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    plot_fate fate = !mask                               ? PLOT_MASKED
                     : value == -INFINITY                ? PLOT_MINUS_INF
                     : isnan(value) || value == INFINITY ? PLOT_NOT_A_NUMBER
                                                         : PLOT_ATTENDED;
    s->count[fate]++;
    s->p->looked_at++;
    if (fate != PLOT_ATTENDED) return CLI_OK;
    s->sum += value;
    s->p->lo = fmin(s->p->lo, value);
    s->p->hi = fmax(s->p->hi, value);
    return CLI_OK;
}

static int plot_fill_cell(cli *c, plot_sampler *s, const int64_t *lo, const int64_t *hi, plot_cell *cell) {
    const plot *p = s->p;
    int rc = CLI_OK;
    uint64_t total = 0;
    s->sum = 0;
    for (int f = 0; f < PLOT_FATES; f++) s->count[f] = 0;
    for (int64_t q = lo[0]; p->exact && q <= hi[0]; q++)
        for (int64_t k = lo[1]; rc == CLI_OK && k <= hi[1]; k++) rc = plot_look(c, s, q, k);
    for (int i = 0; !p->exact && rc == CLI_OK && i < p->samples; i++) {
        int64_t q = lo[0] + (int64_t)(random_bits(&s->random) % (uint64_t)(hi[0] - lo[0] + 1));
        int64_t k = lo[1] + (int64_t)(random_bits(&s->random) % (uint64_t)(hi[1] - lo[1] + 1));
        rc = plot_look(c, s, q, k);
    }
    for (int f = 0; f < PLOT_FATES; f++) total += s->count[f];
    for (int f = 0; f < PLOT_FATES; f++) {
        cell->share[f] = (float)((double)s->count[f] / (double)total);
        s->all[f] += s->count[f];
    }
    cell->score = s->count[PLOT_ATTENDED] ? s->sum / (double)s->count[PLOT_ATTENDED] : (double)NAN;
    return rc;
}

/* Computes the shares of the picture: counted if all pairs were evaluated, else estimated from the cells.
 * pair_count_one may count the masked share in either case. */
static int plot_sum_up(cli *c, plot_sampler *s) {
    plot *p = s->p;
    uint64_t total = 0, attended;
    for (int f = 0; f < PLOT_FATES; f++) total += s->all[f];
    for (int f = 0; f < PLOT_FATES; f++) p->share[f] = (double)s->all[f] / (double)total;
    p->mask_exact = p->exact;
    if (p->exact) return CLI_OK;
    if (pair_may_select(c, s->program)) return CLI_OK; /* pair_count_one would count scores of -inf as masked */
    int rc = pair_count_one(c, s->job, p->b, p->h, &attended, &p->mask_exact);
    if (rc != CLI_OK || !p->mask_exact) return rc;
    double open = (double)attended / ((double)p->q.size * (double)p->k.size), seen = 1 - p->share[PLOT_MASKED];
    for (int f = 0; f < PLOT_FATES; f++)
        p->share[f] = f == PLOT_MASKED ? 1 - open : seen > 0 ? p->share[f] * open / seen : 0;
    return CLI_OK;
}

bool plot_is_exact(const fxa_program *program, int64_t rows, int64_t keys) {
    double pairs = (double)rows * (double)keys;
    return pairs <= PLOT_PAIRS && pairs * (double)plot_pair_work(program) <= PLOT_WORK;
}

int plot_sample(cli *c, const cli_job *job, const fxa_program *program, uint64_t seed, plot *p) {
    plot_sampler s = {.job = job, .program = program, .p = p, .random = {seed}};
    int rc = CLI_OK;
    p->cell = cli_alloc_array(c, p->q.cells * p->k.cells, sizeof *p->cell);
    p->samples = PLOT_WORK / plot_pair_work(program) / (p->q.cells * p->k.cells);
    p->samples = p->samples < 1 ? 1 : p->samples > PLOT_SAMPLES ? PLOT_SAMPLES : p->samples;
    p->first_q = problem_row_shift(&job->problem);
    p->lo = INFINITY;
    p->hi = -INFINITY;
    s.in[FXA_INPUT_SCORE] = p->at;
    s.in[FXA_INPUT_B] = (double)p->b;
    s.in[FXA_INPUT_H] = (double)p->h;
    s.in[FXA_INPUT_Q_LEN] = (double)p->q.size;
    s.in[FXA_INPUT_K_LEN] = (double)p->k.size;
    s.in[FXA_INPUT_HEADS] = (double)job->problem.hq;
    progress_begin(c, "pairs", (uint64_t)(p->q.cells * p->k.cells));
    for (int64_t i = 0; rc == CLI_OK && i < p->q.cells * p->k.cells; i++) {
        int64_t lo[2] = {i / p->k.cells * p->q.step, i % p->k.cells * p->k.step}, hi[2];
        hi[0] = lo[0] + p->q.step < p->q.size ? lo[0] + p->q.step - 1 : p->q.size - 1;
        hi[1] = lo[1] + p->k.step < p->k.size ? lo[1] + p->k.step - 1 : p->k.size - 1;
        rc = plot_fill_cell(c, &s, lo, hi, &p->cell[i]);
        progress_step((uint64_t)i);
    }
    progress_end();
    return rc == CLI_OK ? plot_sum_up(c, &s) : rc;
}
