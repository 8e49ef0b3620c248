/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the picture in a terminal, two rows of cells per line. Fully attended cells are half blocks, partially attended
 * ones are shades. With colour the cells show their score; without colour, a second picture shows the scores.
 */
#include "plot/plot.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define TERM_CURVE_ROWS 12
#define TERM_CURVE_COLUMNS 64

/* Returns the cell at a row and column; NULL below the last row. */
static const plot_cell *term_cell(const plot *p, int64_t row, int64_t column) {
    return row < p->q.cells ? &p->cell[row * p->k.cells + column] : NULL;
}

static uint32_t term_rgb(const plot *p, const plot_cell *cell) {
    plot_fate fate = plot_cell_fate(cell);
    if (fate != PLOT_ATTENDED) return plot_fate_colour[fate];
    return plot_colour(p->changes_score ? plot_level(p, cell->score) : PLOT_LEVELS / 2);
}

static void term_colour(cli_buf *out, int plane, uint32_t rgb) {
    buf_printf(out, "\033[%d;2;%u;%u;%um", plane, rgb >> 16, rgb >> 8 & 255, rgb & 255);
}

/* Returns the character of a cell: ' ' masked, # attended, + partially, - minus inf, ! NaN. */
static char term_mark(const plot_cell *cell) {
    plot_fate fate = cell ? plot_cell_fate(cell) : PLOT_MASKED;
    if (fate == PLOT_ATTENDED) return cell->share[PLOT_ATTENDED] == 1 ? '#' : '+';
    return fate == PLOT_MASKED ? ' ' : fate == PLOT_MINUS_INF ? '-' : '!';
}

static const char *term_shade(const plot_cell *top, const plot_cell *bottom) {
    double share = top->share[PLOT_ATTENDED];
    if (bottom) share = (share + bottom->share[PLOT_ATTENDED]) / 2;
    return share < 1.0 / 3 ? "░" : share < 2.0 / 3 ? "▒" : "▓";
}

static void term_pair(cli_buf *out, const plot *p, int64_t row, int64_t column, bool colour) {
    const plot_cell *top = term_cell(p, row, column), *bottom = term_cell(p, row + 1, column);
    char a = term_mark(top), b = term_mark(bottom);
    bool has_a = a != ' ', has_b = b != ' ';
    const char *text = "";
    if (!has_a && !has_b)
        text = " ";
    else if (!colour && (a == '!' || b == '!'))
        text = "!";
    else if (a == '+' || b == '+')
        text = term_shade(top, bottom);
    else if (!colour && (a == '-' || b == '-') && a != '#' && b != '#')
        text = "-";
    else if (!colour)
        text = a == '#' && b == '#' ? "█" : a == '#' ? "▀" : "▄";
    else
        text = has_a ? "▀" : "▄";
    if (!colour || (!has_a && !has_b)) {
        buf_text(out, text);
        return;
    }
    term_colour(out, 38, term_rgb(p, has_a ? top : bottom));
    if (has_a && has_b && strcmp(text, "▀") == 0) term_colour(out, 48, term_rgb(p, bottom));
    buf_printf(out, "%s\033[0m", text);
}

static void term_rule(cli_buf *out, const char *left, const char *right, int64_t width) {
    buf_printf(out, "%10s%s", "", left);
    for (int64_t i = 0; i < width; i++) buf_text(out, "─");
    buf_printf(out, "%s\n", right);
}

static void term_mask(cli_buf *out, const plot *p, bool colour) {
    buf_printf(out, "%8sq\\k 0 to %" PRId64 "\n", "", p->k.size - 1);
    term_rule(out, "┌", "┐", p->k.cells);
    for (int64_t row = 0; row < p->q.cells; row += 2) {
        if (row % 8 == 0)
            buf_printf(out, "%9" PRId64 " │", row * p->q.step + p->first_q);
        else
            buf_printf(out, "%10s│", "");
        for (int64_t k = 0; k < p->k.cells; k++) term_pair(out, p, row, k, colour);
        buf_text(out, "│\n");
    }
    term_rule(out, "└", "┘", p->k.cells);
}

/* Draws the mean score as shades, two rows per line, for terminals without colour. */
static void term_score(cli_buf *out, const plot *p) {
    static const char *const shades[] = {"·", "░", "▒", "▓", "█"};
    buf_printf(out, "%10s new score of a raw score of %.6g\n", "", p->at);
    term_rule(out, "┌", "┐", p->k.cells);
    for (int64_t row = 0; row < p->q.cells; row += 2) {
        buf_printf(out, "%10s│", "");
        for (int64_t k = 0; k < p->k.cells; k++) {
            const plot_cell *cell = term_cell(p, row, k);
            plot_fate fate = plot_cell_fate(cell);
            buf_text(out, fate == PLOT_ATTENDED       ? shades[plot_level(p, cell->score) * 5 / PLOT_LEVELS]
                          : fate == PLOT_NOT_A_NUMBER ? "!"
                          : fate == PLOT_MINUS_INF    ? "-"
                                                      : " ");
        }
        buf_text(out, "│\n");
    }
    term_rule(out, "└", "┘", p->k.cells);
}

/* Draws one curve; dots mark the line on which the new score equals the raw score. */
static void term_curve(cli_buf *out, const plot *p) {
    char canvas[TERM_CURVE_ROWS][TERM_CURVE_COLUMNS + 1];
    double lo = p->curve_lo, hi = p->curve_hi > p->curve_lo ? p->curve_hi : p->curve_lo + 1;
    bool falls = false;
    memset(canvas, ' ', sizeof canvas);
    for (int what = 0; what < 2; what++)
        for (int x = 0; x < TERM_CURVE_COLUMNS; x++) {
            int at = x * (PLOT_POINTS - 1) / (TERM_CURVE_COLUMNS - 1);
            double y = what ? p->curve[0].value[at] : p->reach * (2.0 * at / (PLOT_POINTS - 1) - 1);
            double row = (hi - y) / (hi - lo) * (TERM_CURVE_ROWS - 1);
            if (what && y == -INFINITY) canvas[TERM_CURVE_ROWS - 1][x] = '-', falls = true;
            if (row >= -0.5 && row <= TERM_CURVE_ROWS - 0.5) canvas[(int)floor(row + 0.5)][x] = what ? 'o' : '.';
        }
    buf_printf(out, "\n%10s new score (●) over raw score (·)", "");
    if (falls) buf_text(out, ", - where it is -inf");
    if (p->curve_by_pair) buf_printf(out, " at q %" PRId64 ", k %" PRId64, p->curve[0].q + p->first_q, p->curve[0].k);
    buf_text(out, "\n");
    for (int row = 0; row < TERM_CURVE_ROWS; row++) {
        if (row == 0 || row == TERM_CURVE_ROWS - 1)
            buf_printf(out, "%9.3g │", row ? lo : hi);
        else
            buf_printf(out, "%10s│", "");
        for (int x = 0; x < TERM_CURVE_COLUMNS; x++)
            buf_text(out, canvas[row][x] == 'o'   ? "●"
                          : canvas[row][x] == '.' ? "·"
                          : canvas[row][x] == '-' ? "-"
                                                  : " ");
        buf_text(out, "\n");
    }
    term_rule(out, "└", "", TERM_CURVE_COLUMNS);
    buf_printf(out, "%10s %-*.4g%.4g\n", "", TERM_CURVE_COLUMNS - 4, -p->reach, p->reach);
}

static void term_tiles(cli_buf *out, const plot *p, bool colour) {
    static const char *const marks[] = {"· ", "▒▒", "██"};
    static const char *const colours[] = {"\033[90m", "\033[33m", "\033[36m"};
    buf_printf(out, "\n%10s tiles of %" PRId64 " x %" PRId64 "%s%s\n", "", p->q.tile, p->k.tile,
               *p->tiles_sampled ? ", " : "", p->tiles_sampled);
    for (int64_t q = 0; q < p->q.tiles; q++) {
        buf_printf(out, "%11s", "");
        for (int64_t k = 0; k < p->k.tiles; k++) {
            int class = p->tile[q * p->k.tiles + k];
            if (colour)
                buf_printf(out, "%s%s\033[0m", colours[class], marks[class]);
            else
                buf_text(out, marks[class]);
        }
        buf_text(out, "\n");
    }
    buf_printf(out, "%10s %s· %" PRIu64 " empty, ▒ %" PRIu64 " %s, █ %" PRIu64 " full\n", "",
               p->counts.unknown ? "at least " : "", p->counts.empty, p->counts.mixed, p->mixed, p->counts.full);
}

static void term_legend(cli *c, const plot *p, bool colour) {
    cli_buf *out = &c->out;
    static const char *const words[] = {"masked", "-inf by the score (-)", "NaN or inf, so the row is NaN (!)"};
    buf_printf(out, "%10s %s of the pairs attended", "", plot_share_text(c, p, PLOT_ATTENDED));
    for (int f = 0; f < PLOT_ATTENDED; f++)
        if (p->share[f] > 0) buf_printf(out, ", %s %s", plot_share_text(c, p, (plot_fate)f), words[f]);
    if (*p->sampled) buf_printf(out, "; %s", p->sampled);
    buf_text(out, "\n");
    if (*p->invented) buf_printf(out, "%10s %s\n", "", p->invented);
    if (!p->changes_score || p->lo > p->hi) return;
    buf_printf(out, "%10s new score of a raw score of %.6g: %.6g ", "", p->at, p->lo);
    if (p->lo == p->hi) {
        buf_text(out, "everywhere\n");
        return;
    }
    for (int i = 0; colour && i < PLOT_LEVELS; i++) {
        term_colour(out, 38, plot_colour(i));
        buf_text(out, "█\033[0m");
    }
    buf_printf(out, "%s%.6g\n", colour ? " " : "· ░ ▒ ▓ █ ", p->hi);
}

void plot_term(cli *c, const plot *p, bool colour) {
    cli_buf *out = &c->out;
    buf_printf(out, "%10s %s, b %" PRId64 ", h %" PRId64 "\n", "", p->title, p->b, p->h);
    term_mask(out, p, colour);
    if (p->changes_score && !colour && p->hi > p->lo) term_score(out, p);
    term_legend(c, p, colour);
    if (p->curves) term_curve(out, p);
    term_tiles(out, p, colour);
}
