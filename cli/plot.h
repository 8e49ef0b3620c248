/* SPDX-License-Identifier: Apache-2.0
 *
 * A picture of a program over (q, k) for one b, h: cells of pairs (plot_sample.c), classes of tiles, and the curve of
 * the new score over the raw one (plot_curve.c). Made once (cmd_plot.c), drawn in the terminal (plot_term.c), as SVG
 * (plot_svg.c) or as JSON.
 */
#ifndef FXA_CLI_PLOT_H
#define FXA_CLI_PLOT_H

#include "job.h"

#define PLOT_LEVELS 16
#define PLOT_CURVES 3
#define PLOT_POINTS 161

typedef struct plot_axis {
    int64_t size;  /* rows or keys of the problem */
    int64_t step;  /* of a cell */
    int64_t cells; /* the last may be narrower */
    int64_t tile;  /* rows or keys of a tile */
    int64_t tile_step;
    int64_t tiles; /* how many tiles are drawn */
} plot_axis;

/* Work that each part of a picture may do, in nodes of the program evaluated: half a second or so. */
#define PLOT_WORK ((int64_t)1 << 26)
/* That of one pair; the constant is what a call costs. */
static inline int64_t plot_pair_work(const fxa_program *program) {
    return (int64_t)fxa_program_node_count(program) + 8;
}

/* What becomes of a pair. NOT_A_NUMBER: NaN or +inf, which makes NaN of its row. */
typedef enum plot_fate { PLOT_MASKED, PLOT_MINUS_INF, PLOT_NOT_A_NUMBER, PLOT_ATTENDED, PLOT_FATES } plot_fate;

typedef struct plot_cell {
    float share[PLOT_FATES]; /* of its pairs; they add up to 1 */
    double score;            /* mean new score of its attended pairs; NaN: there is none */
} plot_cell;

/* New scores over raw scores from -reach to reach, of one pair; -inf where it is masked, NaN where it is no number. */
typedef struct plot_curve {
    int64_t q, k;
    double value[PLOT_POINTS], slope[PLOT_POINTS];
} plot_curve;

typedef struct plot {
    int64_t b, h;
    double at; /* the raw score */
    plot_axis q, k;
    plot_cell *cell;          /* [q.cells, k.cells] */
    double share[PLOT_FATES]; /* of all pairs */
    bool exact;               /* every pair was looked at; else share[MASKED] is exact if mask_exact */
    bool mask_exact;
    int64_t samples;        /* pairs of each cell, where not exact */
    uint64_t looked_at;     /* pairs in all */
    int64_t first_q;        /* q of row 0 */
    uint8_t *tile;          /* [q.tiles, k.tiles], fxa_tile_class */
    fxa_tile_counts counts; /* of all tiles */
    bool changes_score;     /* the program does something to the score */
    double lo, hi;          /* scores of the attended pairs that were looked at; lo > hi: there is none */
    plot_curve curve[PLOT_CURVES];
    int curves;         /* 0: the new score is no function of the raw one that is worth a curve */
    bool curve_by_pair; /* another pair has another curve */
    double reach, curve_lo, curve_hi;
    const char *sampled; /* "each cell shows ...", or "" */
    const char *tiles_sampled;
    const char *mixed;    /* what mixed tiles are: beyond PLOT_TILE_LOOK pairs range analysis alone decides */
    const char *random;   /* names of values that were drawn at random, or "" */
    const char *invented; /* all that the command line does not say, or "" */
    const char *title;
} plot;

/* Whether every pair of so many rows and keys can be looked at. */
bool plot_is_exact(const fxa_program *program, int64_t rows, int64_t keys);
/* p->exact is set. */
int plot_sample(cli *c, const cli_job *job, const fxa_program *program, uint64_t seed, plot *p);
int plot_make_curves(cli *c, const cli_job *job, const fxa_program *program, plot *p);

/* 0 to PLOT_LEVELS - 1 for a score between lo and hi. */
int plot_level(const plot *p, double score);
/* Colour of a level, 0xRRGGBB: dark blue through green to yellow, readable on light and dark. */
uint32_t plot_colour(int level);
extern const uint32_t plot_fate_colour[PLOT_FATES];
/* What a cell is drawn as: NaN wherever there is one, else the fate that most of its pairs share, attended first. */
plot_fate plot_cell_fate(const plot_cell *cell);
/* "37.5%"; of a share that is not exact "about 37.5%", or "under 0.01%" where next to none was seen. */
const char *plot_share_text(cli *c, const plot *p, plot_fate fate);
void plot_term(cli *c, const plot *p, bool colour);
void plot_svg(cli *c, cli_buf *out, const plot *p);

#endif
