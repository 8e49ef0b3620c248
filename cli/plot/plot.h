/* SPDX-License-Identifier: Apache-2.0
 *
 * Picture of a program over (q, k) for one batch entry and head: cells of pairs (plot/sample.c), classes of tiles, and
 * curves of the new score over the raw score (plot/curve.c). commands/plot.c computes the picture; plot/term.c draws it
 * in a terminal, plot/svg.c as SVG.
 */
#ifndef FXA_CLI_PLOT_H
#define FXA_CLI_PLOT_H

#include "input/job.h"

#define PLOT_LEVELS 16
#define PLOT_CURVES 3
#define PLOT_POINTS 161

typedef struct plot_axis {
    int64_t size;  /* number of rows or keys of the problem */
    int64_t step;  /* number of rows or keys of a cell */
    int64_t cells; /* number of cells; the last may be narrower */
    int64_t tile;  /* number of rows or keys of a tile */
    int64_t tile_step;
    int64_t tiles; /* number of tiles drawn */
} plot_axis;

/* Maximum work of each part of a picture, in evaluated program nodes: about half a second. */
#define PLOT_WORK ((int64_t)1 << 26)
/* Returns the work of one pair in nodes: the nodes of the program, and 8 for the call. */
static inline int64_t plot_pair_work(const fxa_program *program) {
    return (int64_t)fxa_program_node_count(program) + 8;
}

/* Kinds of results of a pair. NOT_A_NUMBER: NaN or +inf, which makes the row of O NaN. */
typedef enum plot_fate { PLOT_MASKED, PLOT_MINUS_INF, PLOT_NOT_A_NUMBER, PLOT_ATTENDED, PLOT_FATES } plot_fate;

typedef struct plot_cell {
    float share[PLOT_FATES]; /* shares of each result among the cell's pairs; their sum is 1 */
    double score;            /* mean new score of the attended pairs; NaN = no attended pair */
} plot_cell;

/* New scores of one pair for raw scores from -reach to reach; -inf if the pair is masked. */
typedef struct plot_curve {
    int64_t q, k;
    double value[PLOT_POINTS], slope[PLOT_POINTS];
} plot_curve;

typedef struct plot {
    int64_t b, h;
    double at; /* raw score for which the cells are evaluated */
    plot_axis q, k;
    plot_cell *cell;          /* [q.cells, k.cells] */
    double share[PLOT_FATES]; /* shares of each result among all pairs */
    bool exact; /* true = all pairs were evaluated; false = only share[PLOT_MASKED] is exact, and only if mask_exact */
    bool mask_exact;
    int64_t samples;        /* number of pairs evaluated per cell, if not exact */
    uint64_t looked_at;     /* number of pairs evaluated in total */
    int64_t first_q;        /* coordinate q of row 0 */
    uint8_t *tile;          /* [q.tiles, k.tiles], fxa_tile_class */
    fxa_tile_counts counts; /* all tiles */
    bool changes_score;     /* the program changes the score of some pair */
    double lo, hi;          /* range of the new scores of evaluated, attended pairs; lo > hi = none */
    plot_curve curve[PLOT_CURVES];
    int curves;         /* number of curves; 0 = no curve, or only straight lines of slope 1 */
    bool curve_by_pair; /* true = the curves of pairs differ */
    double reach, curve_lo, curve_hi;
    const char *sampled; /* text "each cell shows ...", or "" */
    const char *tiles_sampled;
    const char *mixed;    /* text that explains mixed tiles: above PLOT_TILE_LOOK pairs, range analysis alone decides */
    const char *random;   /* names of values that are random, or "" */
    const char *invented; /* values that the command line leaves open, or "" */
    const char *title;
} plot;

/* Returns true if all pairs of that many rows and keys can be evaluated within PLOT_WORK. */
bool plot_is_exact(const fxa_program *program, int64_t rows, int64_t keys);
/* Evaluates the pairs of the cells; p->exact is set by the caller. Returns an exit code. */
int plot_sample(cli *c, const cli_job *job, const fxa_program *program, uint64_t seed, plot *p);
int plot_make_curves(cli *c, const cli_job *job, const fxa_program *program, plot *p);

/* Returns 0 to PLOT_LEVELS - 1 for a score between lo and hi. */
int plot_level(const plot *p, double score);
/* Returns the colour of a level as 0xRRGGBB, dark blue through green to yellow, readable on light and dark. */
uint32_t plot_colour(int level);
extern const uint32_t plot_fate_colour[PLOT_FATES];
/* Returns the result that a cell is drawn as: the first of NOT_A_NUMBER, ATTENDED and MINUS_INF that one of its pairs
 * has; else MASKED. */
plot_fate plot_cell_fate(const plot_cell *cell);
/* Returns a share as text, "37.5%"; for sampled shares "about 37.5%", or "under 0.01%" if almost no sampled pair has
 * the result. Owned by c. */
const char *plot_share_text(cli *c, const plot *p, plot_fate fate);
void plot_term(cli *c, const plot *p, bool colour);
void plot_svg(cli *c, cli_buf *out, const plot *p);

#endif
