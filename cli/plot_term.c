/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture in a terminal: two rows of cells in one line of half blocks. With colour a cell shows its score; without,
 * the mask is drawn in blocks and the score function in shades beside the legend. */
#include "plot.h"

#include <inttypes.h>

static int64_t term_cell(const plot *p, int64_t row, int64_t column) { /* its index, or -1 where nothing is attended */
    int64_t i = row * p->k.cells + column;
    return row < p->q.cells && p->mask[i] ? i : -1;
}

static void term_colour(cli_buf *out, int plane, const plot *p, int64_t cell) {
    uint32_t rgb = plot_colour(p->changes_score ? plot_level(p, p->score[cell]) : PLOT_LEVELS / 2);
    buf_printf(out, "\033[%d;2;%u;%u;%um", plane, rgb >> 16, rgb >> 8 & 255, rgb & 255);
}

static void term_pair(cli_buf *out, const plot *p, int64_t row, int64_t column, bool colour) {
    int64_t top = term_cell(p, row, column), bottom = term_cell(p, row + 1, column);
    const char *block = top >= 0 && bottom >= 0 ? (colour ? "▀" : "█") : top >= 0 ? "▀" : bottom >= 0 ? "▄" : " ";
    if (colour && (top >= 0 || bottom >= 0)) {
        term_colour(out, 38, p, top >= 0 ? top : bottom);
        if (top >= 0 && bottom >= 0) term_colour(out, 48, p, bottom);
        buf_printf(out, "%s\033[0m", block);
    } else
        buf_text(out, block);
}

static void term_rule(cli_buf *out, const char *left, const char *right, int64_t width) {
    buf_printf(out, "%10s%s", "", left);
    for (int64_t i = 0; i < width; i++) buf_text(out, "─");
    buf_printf(out, "%s\n", right);
}

static void term_mask(cli_buf *out, const plot *p, bool colour) {
    buf_printf(out, "%10s k 0 to %" PRId64 "\n", "", p->k.size - 1);
    term_rule(out, "┌", "┐", p->k.cells);
    for (int64_t row = 0; row < p->q.cells; row += 2) {
        if (row % 8 == 0)
            buf_printf(out, "%9" PRId64 " │", row * p->q.step);
        else
            buf_printf(out, "%10s│", "");
        for (int64_t k = 0; k < p->k.cells; k++) term_pair(out, p, row, k, colour);
        buf_text(out, "│\n");
    }
    term_rule(out, "└", "┘", p->k.cells);
}

/* Shades, one line for two rows, for terminals without colour. */
static void term_score(cli_buf *out, const plot *p) {
    static const char *const shades[] = {"·", "░", "▒", "▓", "█"};
    buf_printf(out, "%10s new score of a raw score of %.6g\n", "", p->at);
    term_rule(out, "┌", "┐", p->k.cells);
    for (int64_t row = 0; row < p->q.cells; row += 2) {
        buf_printf(out, "%10s│", "");
        for (int64_t k = 0; k < p->k.cells; k++) {
            int64_t cell = term_cell(p, row, k);
            buf_text(out, cell < 0 ? " " : shades[plot_level(p, p->score[cell]) * 5 / PLOT_LEVELS]);
        }
        buf_text(out, "│\n");
    }
    term_rule(out, "└", "┘", p->k.cells);
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
    buf_printf(out, "%10s %s· %" PRIu64 " empty, ▒ %" PRIu64 " mixed, █ %" PRIu64 " full\n", "",
               p->counts.unknown ? "at least " : "", p->counts.empty, p->counts.mixed, p->counts.full);
}

static void term_legend(cli_buf *out, const plot *p, bool colour) {
    buf_printf(out, "%10s %.4g%% of the cells attended", "",
               100.0 * (double)p->attended / (double)(p->q.cells * p->k.cells));
    if (*p->sampled) buf_printf(out, "; %s", p->sampled);
    buf_text(out, "\n");
    if (*p->invented) buf_printf(out, "%10s invented: %s\n", "", p->invented);
    if (!p->changes_score || p->lo > p->hi) return;
    buf_printf(out, "%10s new score of a raw score of %.6g: %.6g ", "", p->at, p->lo);
    for (int i = 0; colour && i < PLOT_LEVELS; i++) {
        uint32_t rgb = plot_colour(i);
        buf_printf(out, "\033[38;2;%u;%u;%um█\033[0m", rgb >> 16, rgb >> 8 & 255, rgb & 255);
    }
    buf_printf(out, "%s%.6g\n", colour ? " " : "· ░ ▒ ▓ █ ", p->hi);
}

void plot_term(cli *c, const plot *p, bool colour) {
    cli_buf *out = &c->out;
    buf_printf(out, "%10s %s, b %" PRId64 ", h %" PRId64 "\n", "", p->title, p->b, p->h);
    term_mask(out, p, colour);
    if (p->changes_score && !colour) term_score(out, p);
    term_legend(out, p, colour);
    term_tiles(out, p, colour);
}
