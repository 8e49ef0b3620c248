/* SPDX-License-Identifier: Apache-2.0
 *
 * Cells of a picture: what becomes of their pairs. Up to PLOT_BUDGET pairs are all evaluated, and everything is exact.
 * Beyond that, cells that range analysis shows to be masked or attended as a whole are so, of others some pairs are
 * drawn at random, and the masked share of the whole is counted exactly as far as pairs_count can. */
#include "pairs.h"
#include "plot.h"

#include <math.h>

#define PLOT_BUDGET (1 << 21)
#define PLOT_SAMPLES 32 /* pairs of a cell */

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
    uint64_t count[PLOT_FATES], all[PLOT_FATES]; /* of the cell, of the picture */
    double sum;
} plot_sampler;

static int plot_look(cli *c, plot_sampler *s, int64_t q, int64_t k) {
    double value;
    int mask;
    fxa_error err;
    s->in[FXA_INPUT_Q] = (double)(q + problem_row_shift(&s->job->problem));
    s->in[FXA_INPUT_K] = (double)k;
    if (fxa_program_eval(s->program, s->in, s->job->bind.params, s->job->bind.views, &value, &mask, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    plot_fate fate = !mask                               ? PLOT_MASKED
                     : value == -INFINITY                ? PLOT_MINUS_INF
                     : isnan(value) || value == INFINITY ? PLOT_NOT_A_NUMBER
                                                         : PLOT_ATTENDED;
    s->count[fate]++;
    if (fate == PLOT_ATTENDED) s->sum += value;
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
    for (int i = 0; !p->exact && rc == CLI_OK && i < PLOT_SAMPLES; i++) {
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

/* Shares of the whole: counted, or estimated from the cells; the mask alone may still be counted. */
static int plot_sum_up(cli *c, plot_sampler *s) {
    plot *p = s->p;
    uint64_t total = 0, attended;
    for (int f = 0; f < PLOT_FATES; f++) total += s->all[f];
    for (int f = 0; f < PLOT_FATES; f++) p->share[f] = (double)s->all[f] / (double)total;
    p->mask_exact = p->exact;
    if (p->exact) return CLI_OK;
    int rc = pairs_count_one(c, s->job, s->program, p->b, p->h, &attended, &p->mask_exact);
    if (rc != CLI_OK || !p->mask_exact) return rc;
    double open = (double)attended / ((double)p->q.size * (double)p->k.size), seen = 1 - p->share[PLOT_MASKED];
    for (int f = 0; f < PLOT_FATES; f++)
        p->share[f] = f == PLOT_MASKED ? 1 - open : seen > 0 ? p->share[f] * open / seen : 0;
    return CLI_OK;
}

int plot_sample(cli *c, const cli_job *job, const fxa_program *program, uint64_t seed, plot *p) {
    plot_sampler s = {.job = job, .program = program, .p = p, .random = {seed}};
    int rc = CLI_OK;
    p->cell = cli_alloc_array(c, p->q.cells * p->k.cells, sizeof *p->cell);
    p->exact = (double)p->q.size * (double)p->k.size <= PLOT_BUDGET;
    p->samples = PLOT_SAMPLES;
    p->lo = INFINITY;
    p->hi = -INFINITY;
    s.in[FXA_INPUT_SCORE] = p->at;
    s.in[FXA_INPUT_B] = (double)p->b;
    s.in[FXA_INPUT_H] = (double)p->h;
    s.in[FXA_INPUT_Q_LEN] = (double)p->q.size;
    s.in[FXA_INPUT_K_LEN] = (double)p->k.size;
    progress_begin("pairs", (uint64_t)(p->q.cells * p->k.cells));
    for (int64_t i = 0; rc == CLI_OK && i < p->q.cells * p->k.cells; i++) {
        int64_t lo[2] = {i / p->k.cells * p->q.step, i % p->k.cells * p->k.step}, hi[2];
        hi[0] = lo[0] + p->q.step < p->q.size ? lo[0] + p->q.step - 1 : p->q.size - 1;
        hi[1] = lo[1] + p->k.step < p->k.size ? lo[1] + p->k.step - 1 : p->k.size - 1;
        rc = plot_fill_cell(c, &s, lo, hi, &p->cell[i]);
        progress_step((uint64_t)i);
        if (isnan(p->cell[i].score)) continue;
        p->lo = fmin(p->lo, p->cell[i].score);
        p->hi = fmax(p->hi, p->cell[i].score);
    }
    progress_end();
    return rc == CLI_OK ? plot_sum_up(c, &s) : rc;
}
