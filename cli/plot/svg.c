/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the picture as SVG: pairs on the left, tile classes to their right, curves below, axes and legends. Cells of
 * one colour form one path of horizontal runs, which keeps the file small. Colours of text and background follow the
 * reader's light or dark theme.
 */
#include "plot/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SVG_SIDE 384.0
#define SVG_LEFT 64.0
#define SVG_TOP 104.0
#define SVG_GAP 76.0
#define SVG_STEPS 8 /* levels of opacity, by the attended share of a cell */

static void svg_escape(cli_buf *out, const char *text) {
    for (; *text; text++) {
        unsigned char x = (unsigned char)*text;
        if (x == '&')
            buf_text(out, "&amp;");
        else if (x == '<')
            buf_text(out, "&lt;");
        else if (x == '>')
            buf_text(out, "&gt;");
        else if (x >= 32 && x < 127)
            buf_add(out, text, 1);
        else
            buf_text(out, "?");
    }
}

/* Returns one number for the look of a cell: its result, the level of its score, and its opacity; -1 = not drawn. */
static int svg_cell_look(const plot *p, int64_t i) {
    const plot_cell *cell = &p->cell[i];
    plot_fate fate = plot_cell_fate(cell);
    int level = 0, step;
    if (fate == PLOT_MASKED) return -1;
    if (fate == PLOT_ATTENDED) level = p->changes_score ? plot_level(p, cell->score) : PLOT_LEVELS / 2;
    step = (int)ceil(SVG_STEPS * (double)cell->share[fate] - 1e-6);
    if (fate == PLOT_NOT_A_NUMBER) step = SVG_STEPS; /* a single NaN is drawn with full opacity */
    return ((int)fate * PLOT_LEVELS + level) * SVG_STEPS + (step < 1 ? 0 : step - 1);
}

static void svg_cells_of(cli_buf *out, const plot *p, const int *looks, int look) {
    int step = look % SVG_STEPS + 1, level = look / SVG_STEPS % PLOT_LEVELS, fate = look / SVG_STEPS / PLOT_LEVELS;
    bool open = false;
    for (int64_t q = 0; q < p->q.cells; q++)
        for (int64_t k = 0; k < p->k.cells;) {
            int64_t start = k;
            while (k < p->k.cells && looks[q * p->k.cells + k] == look) k++;
            if (k == start) {
                k++;
                continue;
            }
            if (!open)
                buf_printf(out, "<path fill=\"#%06x\" fill-opacity=\"%.3g\" d=\"",
                           fate == PLOT_ATTENDED ? plot_colour(level) : plot_fate_colour[fate],
                           (double)step / SVG_STEPS);
            open = true;
            buf_printf(out, "M%" PRId64 " %" PRId64 "h%" PRId64 "v1h-%" PRId64 "z", start, q, k - start, k - start);
        }
    if (open) buf_text(out, "\"/>\n");
}

static void svg_cells(cli *c, cli_buf *out, const plot *p) {
    int64_t n = p->q.cells * p->k.cells;
    int *looks = cli_alloc_array(c, n, sizeof *looks);
    bool used[PLOT_FATES * PLOT_LEVELS * SVG_STEPS] = {false};
    for (int64_t i = 0; i < n; i++) {
        looks[i] = svg_cell_look(p, i);
        if (looks[i] >= 0) used[looks[i]] = true;
    }
    for (int look = 0; look < PLOT_FATES * PLOT_LEVELS * SVG_STEPS; look++)
        if (used[look]) svg_cells_of(out, p, looks, look);
}

static void svg_tiles(cli_buf *out, const plot *p) {
    static const char *const classes[] = {"e", "m", "f"};
    for (int class = FXA_TILE_EMPTY; class <= FXA_TILE_FULL; class ++) {
        bool open = false;
        for (int64_t i = 0; i < p->q.tiles * p->k.tiles; i++) {
            if (p->tile[i] != class) continue;
            if (!open) buf_printf(out, "<path class=\"%s\" d=\"", classes[class]);
            open = true;
            buf_printf(out, "M%" PRId64 ".04 %" PRId64 ".04h.92v.92h-.92z", i % p->k.tiles, i / p->k.tiles);
        }
        if (open) buf_text(out, "\"/>\n");
    }
}

/* Adds text broken at blanks into lines of at most `most` bytes. Returns the y coordinate below the text. */
static double svg_lines(cli_buf *out, const char *text, double y, size_t most) {
    while (*text) {
        size_t n = strlen(text), cut;
        if (n > most) {
            for (cut = most; cut > most / 2 && text[cut] != ' '; cut--) {}
            n = cut > most / 2 ? cut : most;
        }
        char line[256];
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), text);
        buf_printf(out, "<text class=\"s\" x=\"%.0f\" y=\"%.0f\">", SVG_LEFT, y);
        svg_escape(out, line);
        buf_text(out, "</text>\n");
        text += n;
        while (*text == ' ') text++;
        y += 17;
    }
    return y;
}

static void svg_style(cli_buf *out, const plot *p, double width, double height) {
    buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n<title>",
        width, height, width, height);
    svg_escape(out, p->title);
    buf_text(out,
             "</title>\n<style>\n"
             "text{font:13px sans-serif;fill:#333}.t{font-size:16px;font-weight:bold}.s{fill:#777}\n"
             ".p{fill:#fff}.r{text-anchor:end}.c{text-anchor:middle}.b{fill:none;stroke:#999}.g{fill:#f2f2f2}\n"
             ".e{fill:#e3e3e3}.m{fill:#e8a33d}.f{fill:#2f86a6}.l{fill:none;stroke:#bbb;stroke-dasharray:2 3}\n"
             ".y{fill:none;stroke-width:2.2;stroke-linejoin:round}.d{fill:none;stroke-width:1.3;stroke-dasharray:5 3}\n"
             ".a{stroke:#2f86a6}.h{stroke:#e8a33d}.z{stroke:#8a5fb0}\n"
             "@media(prefers-color-scheme:dark){.p{fill:#16181c}text{fill:#ddd}.s{fill:#999}.b{stroke:#666}\n"
             ".g{fill:#22252b}.e{fill:#33373f}.l{stroke:#555}}\n"
             "</style>\n");
    buf_printf(out, "<rect class=\"p\" width=\"%.0f\" height=\"%.0f\"/>\n<text class=\"t\" x=\"%.0f\" y=\"28\">", width,
               height, SVG_LEFT);
    svg_escape(out, p->title);
    buf_text(out, "</text>\n");
}

/* Adds frame and axes of a panel at x, and opens a group that scales its cells to w by h. */
static void svg_panel(cli_buf *out, const plot *p, double x, double w, double h, const char *title) {
    buf_printf(out, "<rect class=\"b\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x, SVG_TOP, w, h);
    buf_printf(out, "<text class=\"c\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + w / 2, SVG_TOP - 8, title);
    buf_printf(out,
               "<text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%" PRId64
               "</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%" PRId64 "</text>\n",
               x - 6, SVG_TOP + 10, p->first_q, x - 6, SVG_TOP + h, p->first_q + p->q.size - 1);
    buf_printf(out, "<text class=\"r\" x=\"%.1f\" y=\"%.1f\">q</text>\n", x - 6, SVG_TOP + h / 2);
    buf_printf(out,
               "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">0</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%" PRId64
               "</text>\n",
               x, SVG_TOP + h + 16, x + w, SVG_TOP + h + 16, p->k.size - 1);
    buf_printf(out, "<text class=\"c\" x=\"%.1f\" y=\"%.1f\">k</text>\n", x + w / 2, SVG_TOP + h + 16);
}

static void svg_swatch(cli_buf *out, uint32_t colour, const char *text, double x, double y) {
    if (colour)
        buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\" fill=\"#%06x\"/>", x, y, colour);
    else
        buf_printf(out, "<rect class=\"g\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\"/>", x, y);
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 20, y + 11, text);
}

/* Adds the legend of results and colours. Returns the y coordinate below the legend. */
static double svg_pair_legend(cli *c, cli_buf *out, const plot *p, double x, double y) {
    static const char *const words[] = {"masked", "-inf by the score", "NaN or inf: the row is NaN", "attended"};
    static const plot_fate order[] = {PLOT_ATTENDED, PLOT_MASKED, PLOT_MINUS_INF, PLOT_NOT_A_NUMBER};
    for (int i = 0; i < PLOT_FATES; i++) {
        plot_fate f = order[i];
        if (p->share[f] == 0 && f != PLOT_ATTENDED) continue;
        svg_swatch(out, f == PLOT_ATTENDED ? plot_colour(PLOT_LEVELS / 2) : plot_fate_colour[f],
                   cli_format(c, "%s: %s", words[f], plot_share_text(c, p, f)), x, y);
        y += 18;
    }
    if (!p->changes_score || p->lo > p->hi) return y;
    y += 6;
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\">new score of a raw score of %.6g</text>\n", x, y + 11, p->at);
    for (int i = 0; i < PLOT_LEVELS && p->hi > p->lo; i++)
        buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12.5\" height=\"12\" fill=\"#%06x\"/>", x + 12 * i, y + 18,
                   plot_colour(i));
    if (p->hi > p->lo)
        buf_printf(out,
                   "\n<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%.4g</text><text class=\"r s\" x=\"%.1f\" "
                   "y=\"%.1f\">%.4g</text>\n",
                   x, y + 44, p->lo, x + 12 * PLOT_LEVELS, y + 44, p->hi);
    else
        svg_swatch(out, plot_colour(PLOT_LEVELS / 2), cli_format(c, "%.4g everywhere", p->lo), x, y + 18);
    return y + 50;
}

static double svg_tile_legend(cli_buf *out, const plot *p, double x, double y) {
    const char *const classes[] = {"e", "m", "f"}, *const names[] = {"empty", p->mixed, "full"};
    const uint64_t counts[] = {p->counts.empty, p->counts.mixed, p->counts.full};
    for (int i = 0; i < 3; i++, y += 18)
        buf_printf(out,
                   "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\"/><text x=\"%.1f\" "
                   "y=\"%.1f\">%s: %s%" PRIu64 "</text>\n",
                   classes[i], x, y, x + 20, y + 11, names[i], p->counts.unknown ? "at least " : "", counts[i]);
    if (!*p->tiles_sampled) return y;
    buf_printf(out, "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y + 14, p->tiles_sampled);
    return y + 20;
}

/* ---- The curve --------------------------------------------------------------------------------------------------- */

/* Adds a line through the finite values among PLOT_POINTS values, scaled from lo..hi to the panel and clipped to it. */
static void svg_line(cli_buf *out, const char *class, const double *value, double lo, double hi, double x,
                     double side) {
    bool down = false;
    buf_printf(out, "<path class=\"%s\" d=\"", class);
    for (int i = 0; i < PLOT_POINTS; i++) {
        if (!(value[i] >= lo && value[i] <= hi)) {
            down = false;
            continue;
        }
        buf_printf(out, "%c%.1f %.1f", down ? 'L' : 'M', x + side * i / (PLOT_POINTS - 1),
                   SVG_TOP + side * (hi - value[i]) / (hi - lo));
        down = true;
    }
    buf_text(out, "\"/>\n");
}

/* Returns the factor, a power of ten, by which derivatives are enlarged in a panel with scores of up to hi. */
static double svg_slope_factor(const plot *p, double hi) {
    double most = 0, factor = 1;
    for (int i = 0; i < p->curves; i++)
        for (int k = 0; k < PLOT_POINTS; k++)
            if (isfinite(p->curve[i].slope[k])) most = fmax(most, fabs(p->curve[i].slope[k]));
    while (most > 0 && factor < 1e9 && most * factor * 10 <= 0.9 * hi) factor *= 10;
    return factor;
}

static void svg_slope(cli_buf *out, const char *class, const double *slope, double factor, double lo, double hi,
                      double x, double side) {
    double larger[PLOT_POINTS];
    for (int i = 0; i < PLOT_POINTS; i++) larger[i] = factor * slope[i];
    svg_line(out, class, larger, lo, hi, x, side);
}

/* Marks points whose new score is -inf along the lower edge of the panel. Returns true if there is any. */
static bool svg_mark_minus_inf(cli_buf *out, const char *class, const double *value, double lo, double hi, double x,
                               double side) {
    double edge[PLOT_POINTS];
    bool falls = false;
    for (int i = 0; i < PLOT_POINTS; i++) {
        edge[i] = value[i] == -INFINITY ? lo : (double)NAN;
        falls = falls || value[i] == -INFINITY;
    }
    if (falls) svg_line(out, class, edge, lo, hi, x, side);
    return falls;
}

static double svg_curves(cli *c, cli_buf *out, const plot *p, double x, double side) {
    static const char *const colours[PLOT_CURVES] = {"a", "h", "z"};
    double lo = fmin(p->curve_lo, -1e-9), hi = fmax(p->curve_hi, 1e-9), margin = 0.05 * (hi - lo), raw[PLOT_POINTS],
           zero[PLOT_POINTS] = {0};
    bool falls = false;
    lo -= margin;
    hi += margin;
    double factor = svg_slope_factor(p, fmin(hi, -lo));
    for (int i = 0; i < PLOT_POINTS; i++) raw[i] = p->reach * (2.0 * i / (PLOT_POINTS - 1) - 1);
    buf_printf(out, "<rect class=\"b\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x, SVG_TOP, side,
               side);
    buf_printf(out, "<text class=\"c\" x=\"%.1f\" y=\"%.1f\">new score over raw score</text>\n", x + side / 2,
               SVG_TOP - 8);
    buf_printf(out, "<path class=\"l\" d=\"M%.1f %.1fv%.1f\"/>\n", x + side / 2, SVG_TOP, side);
    svg_line(out, "l", zero, lo, hi, x, side);
    svg_line(out, "l", raw, lo, hi, x, side);
    for (int i = 0; i < p->curves; i++) {
        char class[8];
        snprintf(class, sizeof class, "y %s", colours[i]);
        svg_line(out, class, p->curve[i].value, lo, hi, x, side);
        falls = svg_mark_minus_inf(out, class, p->curve[i].value, lo, hi, x, side) || falls;
        snprintf(class, sizeof class, "d %s", colours[i]);
        svg_slope(out, class, p->curve[i].slope, factor, lo, hi, x, side);
    }
    buf_printf(
        out,
        "<text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%.3g</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%.3g</text>\n",
        x - 6, SVG_TOP + 10, hi, x - 6, SVG_TOP + side, lo);
    buf_printf(
        out,
        "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%.4g%s</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%.4g</text>\n",
        x, SVG_TOP + side + 16, -p->reach, falls ? "; on the lower edge: -inf" : "", x + side, SVG_TOP + side + 16,
        p->reach);
    double y = SVG_TOP + side + 32;
    for (int i = 0; i < p->curves; i++, y += 18)
        buf_printf(out, "<path class=\"y %s\" d=\"M%.1f %.1fh24\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n", colours[i],
                   x, y + 6, x + 30, y + 11,
                   !p->curve_by_pair
                       ? "new score"
                       : cli_format(c, "at q %" PRId64 ", k %" PRId64, p->curve[i].q + p->first_q, p->curve[i].k));
    buf_printf(out, "<path class=\"d %s\" d=\"M%.1f %.1fh24\"/><text x=\"%.1f\" y=\"%.1f\">its slope%s</text>\n",
               colours[0], x, y + 6, x + 30, y + 11, factor > 1 ? cli_format(c, " x %g", factor) : "");
    buf_printf(out, "<path class=\"l\" d=\"M%.1f %.1fh24\"/><text x=\"%.1f\" y=\"%.1f\">unchanged</text>\n", x + 150,
               y + 6, x + 180, y + 11);
    return y + 20;
}

/* Adds everything below the title to `out`. Returns the height of the page. */
static double svg_body(cli *c, cli_buf *out, const plot *p, double w, double h) {
    char tiles[96];
    double second = SVG_LEFT + w + SVG_GAP, below = SVG_TOP + h + 32, bottom, other;
    buf_printf(out, "<g transform=\"translate(%.1f %.1f) scale(%.6g %.6g)\" shape-rendering=\"crispEdges\">\n",
               SVG_LEFT, SVG_TOP, w * (double)p->k.step / (double)p->k.size, h * (double)p->q.step / (double)p->q.size);
    buf_printf(out, "<path class=\"g\" d=\"M0 0h%.6gv%.6gH0z\"/>\n", (double)p->k.size / (double)p->k.step,
               (double)p->q.size / (double)p->q.step);
    svg_cells(c, out, p);
    buf_text(out, "</g>\n");
    svg_panel(out, p, SVG_LEFT, w, h, p->changes_score ? "mask and score" : "mask");
    buf_printf(out, "<g transform=\"translate(%.1f %.1f) scale(%.6g %.6g)\">\n", second, SVG_TOP,
               w / (double)p->k.tiles, h / (double)p->q.tiles);
    svg_tiles(out, p);
    buf_text(out, "</g>\n");
    snprintf(tiles, sizeof tiles, "tiles of %" PRId64 " x %" PRId64, p->q.tile, p->k.tile);
    svg_panel(out, p, second, w, h, tiles);
    bottom = svg_pair_legend(c, out, p, SVG_LEFT, below);
    other = svg_tile_legend(out, p, second, below);
    return bottom > other ? bottom : other;
}

void plot_svg(cli *c, cli_buf *out, const plot *p) {
    double longest = (double)(p->q.size > p->k.size ? p->q.size : p->k.size);
    double w = fmax(160, SVG_SIDE * (double)p->k.size / longest), h = fmax(160, SVG_SIDE * (double)p->q.size / longest);
    double third = SVG_LEFT + 2 * (w + SVG_GAP), side = fmax(h, 240), bottom;
    double width = p->curves ? third + side + 40 : fmax(third - SVG_GAP + 40, 560);
    cli_buf body = {0};
    bottom = svg_body(c, &body, p, w, h);
    if (p->curves) bottom = fmax(bottom, svg_curves(c, &body, p, third, side));
    const char *about =
        cli_format(c, "b %" PRId64 ", h %" PRId64 ", %" PRId64 " row%s, %" PRId64 " key%s%s%s", p->b, p->h, p->q.size,
                   plural(p->q.size), p->k.size, plural(p->k.size), *p->sampled ? "; " : "", p->sampled);
    cli_buf foot = {0};
    if (*p->invented) bottom = svg_lines(&foot, p->invented, bottom + 22, (size_t)(width / 7.2));
    svg_style(out, p, width, bottom + 14);
    svg_lines(out, about, 50, (size_t)(width / 7.2));
    buf_add(out, body.data, body.size);
    if (foot.size) buf_add(out, foot.data, foot.size);
    buf_text(out, "</svg>\n");
    buf_free(&body);
    buf_free(&foot);
}
