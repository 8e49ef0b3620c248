/* SPDX-License-Identifier: Apache-2.0
 *
 * A picture of a program over (q, k) for one b, h: cells sampled from the pairs, and classes of tiles. Made once
 * (cmd_plot.c), drawn in the terminal (plot_term.c), as SVG (plot_svg.c) or as JSON.
 */
#ifndef FXA_CLI_PLOT_H
#define FXA_CLI_PLOT_H

#include "job.h"

#define PLOT_LEVELS 16

typedef struct plot_axis {
    int64_t size;  /* rows or keys of the problem */
    int64_t step;  /* every step-th is drawn */
    int64_t cells; /* how many are drawn */
    int64_t tile;  /* rows or keys of a tile */
    int64_t tile_step;
    int64_t tiles; /* how many tiles are drawn */
} plot_axis;

typedef struct plot {
    int64_t b, h;
    double at; /* the raw score */
    plot_axis q, k;
    uint8_t *mask;          /* [q.cells, k.cells] */
    double *score;          /* the same; where mask is 0 it means nothing */
    uint8_t *tile;          /* [q.tiles, k.tiles], fxa_tile */
    fxa_tile_counts counts; /* of all tiles */
    bool changes_score;     /* the program does something to the score */
    double lo, hi;          /* finite scores of attended cells; lo > hi: there is none */
    int64_t attended;       /* cells */
    const char *sampled;    /* "every 64th row and column is drawn", or "" */
    const char *tiles_sampled;
    const char *random;   /* names of values that were drawn at random, or "" */
    const char *invented; /* all that was made up, or "" */
    const char *title;
} plot;

/* 0 to PLOT_LEVELS - 1 for a score between lo and hi. */
int plot_level(const plot *p, double score);
/* Colour of a level, 0xRRGGBB: dark blue through green to yellow, readable on light and dark. */
uint32_t plot_colour(int level);
void plot_term(cli *c, const plot *p, bool colour);
void plot_svg(cli_buf *out, const plot *p);

#endif
