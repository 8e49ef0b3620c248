/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture as SVG: scores with the mask on the left, tile classes on the right, axes and legend. Cells of one colour
 * are one path of horizontal runs, which keeps the file small; colours of text and ground follow the reader's light or
 * dark. */
#include "plot.h"

#include <inttypes.h>
#include <stdio.h>

#define SVG_SIDE 384.0
#define SVG_LEFT 64.0
#define SVG_TOP  84.0
#define SVG_GAP  72.0

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

/* Level of a cell, or -1 where nothing is attended. */
static int svg_level(const plot *p, int64_t i) {
    return !p->mask[i] ? -1 : p->changes_score ? plot_level(p, p->score[i]) : PLOT_LEVELS / 2;
}

static void svg_cells(cli_buf *out, const plot *p, int level) {
    bool open = false;
    for (int64_t q = 0; q < p->q.cells; q++)
        for (int64_t k = 0; k < p->k.cells;) {
            int64_t start = k;
            while (k < p->k.cells && svg_level(p, q * p->k.cells + k) == level) k++;
            if (k == start) {
                k++;
                continue;
            }
            if (!open) buf_printf(out, "<path fill=\"#%06x\" d=\"", plot_colour(level));
            open = true;
            buf_printf(out, "M%" PRId64 " %" PRId64 "h%" PRId64 "v1h-%" PRId64 "z", start, q, k - start, k - start);
        }
    if (open) buf_text(out, "\"/>\n");
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

static void svg_head(cli_buf *out, const plot *p, double width, double height) {
    buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n<title>",
        width, height, width, height);
    svg_escape(out, p->title);
    buf_text(
        out,
        "</title>\n<style>\n"
        "svg{background:#fff}text{font:13px sans-serif;fill:#333}.t{font-size:16px;font-weight:bold}.s{fill:#777}\n"
        ".r{text-anchor:end}.c{text-anchor:middle}.b{fill:none;stroke:#999}.g{fill:#f2f2f2}\n"
        ".e{fill:#e3e3e3}.m{fill:#e8a33d}.f{fill:#2f86a6}\n"
        "@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#ddd}.s{fill:#999}.b{stroke:#666}\n"
        ".g{fill:#22252b}.e{fill:#33373f}}\n"
        "</style>\n");
    buf_printf(out, "<text class=\"t\" x=\"%.0f\" y=\"28\">", SVG_LEFT);
    svg_escape(out, p->title);
    buf_printf(out,
               "</text>\n<text class=\"s\" x=\"%.0f\" y=\"48\">b %" PRId64 ", h %" PRId64 ", %" PRId64 " rows, %" PRId64
               " keys%s%s%s%s</text>\n",
               SVG_LEFT, p->b, p->h, p->q.size, p->k.size, *p->sampled ? "; " : "", p->sampled,
               *p->invented ? "; invented: " : "", p->invented);
}

/* Frame and axes of a panel at x; cells come scaled from their own units to w by h. */
static void svg_panel(cli_buf *out, const plot *p, double x, double w, double h, const char *title) {
    buf_printf(out, "<rect class=\"b\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x, SVG_TOP, w, h);
    buf_printf(out, "<text class=\"c\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + w / 2, SVG_TOP - 8, title);
    buf_printf(out,
               "<text class=\"r s\" x=\"%.1f\" y=\"%.1f\">0</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%" PRId64
               "</text>\n",
               x - 6, SVG_TOP + 10, x - 6, SVG_TOP + h, p->q.size - 1);
    buf_printf(out, "<text class=\"r\" x=\"%.1f\" y=\"%.1f\">q</text>\n", x - 6, SVG_TOP + h / 2);
    buf_printf(out,
               "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">0</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%" PRId64
               "</text>\n",
               x, SVG_TOP + h + 16, x + w, SVG_TOP + h + 16, p->k.size - 1);
    buf_printf(out, "<text class=\"c\" x=\"%.1f\" y=\"%.1f\">k</text>\n", x + w / 2, SVG_TOP + h + 16);
}

static void svg_score_legend(cli_buf *out, const plot *p, double x, double y) {
    if (!p->changes_score || p->lo > p->hi) {
        buf_printf(out,
                   "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\" fill=\"#%06x\"/><text x=\"%.1f\" "
                   "y=\"%.1f\">attended: %.4g%%</text>\n",
                   x, y, plot_colour(PLOT_LEVELS / 2), x + 20, y + 11,
                   100.0 * (double)p->attended / (double)(p->q.cells * p->k.cells));
        return;
    }
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\">new score of a raw score of %.6g</text>\n", x, y + 11, p->at);
    for (int i = 0; i < PLOT_LEVELS; i++)
        buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12.5\" height=\"12\" fill=\"#%06x\"/>", x + 12 * i, y + 20,
                   plot_colour(i));
    buf_printf(
        out,
        "\n<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%.6g</text><text class=\"r s\" x=\"%.1f\" y=\"%.1f\">%.6g</text>\n",
        x, y + 46, p->lo, x + 12 * PLOT_LEVELS, y + 46, p->hi);
}

static void svg_tile_legend(cli_buf *out, const plot *p, double x, double y) {
    static const char *const classes[] = {"e", "m", "f"}, *const names[] = {"empty", "mixed", "full"};
    const uint64_t counts[] = {p->counts.empty, p->counts.mixed, p->counts.full};
    for (int i = 0; i < 3; i++)
        buf_printf(out,
                   "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\"/><text x=\"%.1f\" "
                   "y=\"%.1f\">%s: %s%" PRIu64 "</text>\n",
                   classes[i], x, y + 18 * i, x + 20, y + 18 * i + 11, names[i],
                   p->counts.unknown ? "at least " : "", counts[i]);
    if (*p->tiles_sampled)
        buf_printf(out, "<text class=\"s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 120, y + 11, p->tiles_sampled);
}

void plot_svg(cli_buf *out, const plot *p) {
    double longest = (double)(p->q.size > p->k.size ? p->q.size : p->k.size);
    double w = SVG_SIDE * (double)p->k.size / longest, h = SVG_SIDE * (double)p->q.size / longest;
    char tiles[96];
    w = w < 96 ? 96 : w;
    h = h < 96 ? 96 : h;
    double second = SVG_LEFT + w + SVG_GAP, below = SVG_TOP + h + 32;
    double width = second + (w < 300 ? 300 : w) + 32;
    svg_head(out, p, width, below + 64);
    buf_printf(out, "<g transform=\"translate(%.1f %.1f) scale(%.6g %.6g)\" shape-rendering=\"crispEdges\">\n",
               SVG_LEFT, SVG_TOP, w / (double)p->k.cells, h / (double)p->q.cells);
    buf_printf(out, "<path class=\"g\" d=\"M0 0h%" PRId64 "v%" PRId64 "h-%" PRId64 "z\"/>\n", p->k.cells, p->q.cells,
               p->k.cells);
    for (int level = 0; level < PLOT_LEVELS; level++) svg_cells(out, p, level);
    buf_text(out, "</g>\n");
    svg_panel(out, p, SVG_LEFT, w, h, p->changes_score ? "mask and score" : "mask");
    buf_printf(out, "<g transform=\"translate(%.1f %.1f) scale(%.6g %.6g)\">\n", second, SVG_TOP,
               w / (double)p->k.tiles, h / (double)p->q.tiles);
    svg_tiles(out, p);
    buf_text(out, "</g>\n");
    snprintf(tiles, sizeof tiles, "tiles of %" PRId64 " x %" PRId64, p->q.tile, p->k.tile);
    svg_panel(out, p, second, w, h, tiles);
    svg_score_legend(out, p, SVG_LEFT, below);
    svg_tile_legend(out, p, second, below);
    buf_text(out, "</svg>\n");
}
