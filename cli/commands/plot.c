/* SPDX-License-Identifier: Apache-2.0
 *
 * plot: samples mask and score function of the program that runs, classifies tiles, and draws a picture of both.
 */
#include "explain/explain.h"
#include "input/invented_values.h"
#include "io/json.h"
#include "explain/mask_pairs.h"
#include "plot/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLOT_MIN_PAIRS 4    /* minimum number of pairs evaluated in a cell, if not all are */
#define PLOT_TILE_LOOK 1024 /* maximum number of pairs of a tile that fxa_tiles_count evaluates pair by pair */
#define PLOT_TILE_PAIRS 64  /* cost of classifying a larger tile, in pairs */
#define PLOT_WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789." /* names, numbers */

int plot_level(const plot *p, double score) {
    if (!(p->hi > p->lo) || isnan(score)) return PLOT_LEVELS / 2;
    double x = (score - p->lo) / (p->hi - p->lo) * PLOT_LEVELS;
    return x < 0 ? 0 : x >= PLOT_LEVELS ? PLOT_LEVELS - 1 : (int)x;
}

uint32_t plot_colour(int level) {
    static const uint8_t anchors[5][3] = {
        {58, 60, 150}, {38, 120, 165}, {40, 160, 130}, {120, 190, 80}, {240, 200, 50}};
    double x = 4.0 * level / (PLOT_LEVELS - 1);
    int at = x >= 4 ? 3 : (int)x;
    uint32_t colour = 0;
    for (int i = 0; i < 3; i++) {
        double v = anchors[at][i] + (x - at) * ((double)anchors[at + 1][i] - anchors[at][i]);
        colour = colour << 8 | (uint32_t)(v + 0.5);
    }
    return colour;
}

static const char *plot_ordinal(cli *c, int64_t n) {
    int64_t last = n % 10, teen = n / 10 % 10;
    return cli_format(c, "%" PRId64 "%s", n,
                      teen == 1   ? "th"
                      : last == 1 ? "st"
                      : last == 2 ? "nd"
                      : last == 3 ? "rd"
                                  : "th");
}

/* Returns a text that says which tiles are drawn. */
static const char *plot_tiles_sampling(cli *c, int64_t q_step, int64_t k_step) {
    if (q_step == 1 && k_step == 1) return "";
    if (k_step == 1) return cli_format(c, "every %s row is drawn", plot_ordinal(c, q_step));
    if (q_step == 1) return cli_format(c, "every %s column is drawn", plot_ordinal(c, k_step));
    if (q_step == k_step) return cli_format(c, "every %s row and column is drawn", plot_ordinal(c, q_step));
    return cli_format(c, "every %s row and every %s column is drawn", plot_ordinal(c, q_step), plot_ordinal(c, k_step));
}

/* Returns a text that says how many pairs a cell stands for; "" if it is one pair. */
static const char *plot_cells_sampling(cli *c, const plot *p) {
    if (p->q.step == 1 && p->k.step == 1) return "";
    const char *size = cli_format(c, "a cell is %" PRId64 " x %" PRId64 " pairs", p->q.step, p->k.step);
    return p->exact ? size : cli_format(c, "%s, %" PRId64 " of them drawn at random", size, p->samples);
}

/* If the share of a result is at least 6.3 / n, then 3 or more of n random pairs have this result with probability
 * 19/20. With fewer than 3 such pairs, only "under 6.3 / n" is known. */
const char *plot_share_text(cli *c, const plot *p, plot_fate fate) {
    bool exact = p->exact || (p->mask_exact && fate == PLOT_MASKED);
    double share = p->share[fate], n = (double)p->looked_at, seen = share * n, least = fmin(6.3 / n, 1);
    if (exact) return cli_format(c, "%.4g%%", 100 * share);
    if (seen < 3) return cli_format(c, "under %.2g%%", 100 * least);
    if (n - seen < 3) return cli_format(c, "over %.6g%%", 100 * (1 - least));
    return cli_format(c, "about %.4g%%", 100 * share);
}

static void plot_set_axis(plot_axis *a, int64_t size, int64_t most, int64_t tile, int64_t most_tiles) {
    int64_t tiles = (size + tile - 1) / tile;
    a->size = size;
    a->step = (size + most - 1) / most;
    a->cells = (size + a->step - 1) / a->step;
    a->tile = tile;
    a->tile_step = (tiles + most_tiles - 1) / most_tiles;
    a->tiles = (tiles + a->tile_step - 1) / a->tile_step;
}

/* Returns the text of a program in which q_row is replaced by q - shift. */
static const char *plot_text_by_q(cli *c, const char *text, int64_t shift) {
    cli_buf b = {0};
    for (const char *at = text; *at;) {
        size_t n = strspn(at, PLOT_WORD);
        if (n == 5 && memcmp(at, "q_row", n) == 0)
            buf_printf(&b, "(q - %" PRId64 ")", shift);
        else
            buf_printf(&b, "%.*s", (int)(n ? n : 1), at);
        at += n ? n : 1;
    }
    const char *made = cli_format(c, "%s", b.data ? b.data : "");
    buf_free(&b);
    return made;
}

/* Sets *out to the job's problem with `program`, the program that runs. If the program reads q_row, which only a
 * program with shifted rows does, q_row is replaced by q - shift: each tile is classified as a shard of the problem,
 * and a shard would count q_row from 0 at its first row. */
static int plot_tile_problem(cli *c, const cli_job *job, const fxa_program *program, fxa_problem *out) {
    fxa_properties properties;
    fxa_program *by_q;
    fxa_error err;
    *out = job->problem;
    out->program = program;
    fxa_program_properties(program, &properties);
    if (!((properties.mask_depends | properties.score_depends) >> FXA_INPUT_Q_ROW & 1)) return CLI_OK;
    const char *text = program_text(c, program);
    if (!text) return CLI_BAD_INPUT;
    text = plot_text_by_q(c, text, problem_row_shift(out));
    if (fxa_program_parse(c->ctx, text, strlen(text), &by_q, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, by_q);
    out->program = by_q;
    return CLI_OK;
}

/* Classifies the tile at row q and key k, by making it the only tile of a shard of the problem. */
static int plot_tile_class(cli *c, const cli_job *job, const fxa_problem *whole, const fxa_tensor_range *ranges,
                           const plot *p, int64_t q, int64_t k, uint8_t *out) {
    fxa_problem shard = *whole;
    fxa_tile_counts one;
    fxa_error err;
    shard.global_q_len = shard.sq;
    shard.global_k_len = shard.sk;
    shard.map_q.base += q;
    shard.map_k.base += k;
    shard.sq = p->q.tile < p->q.size - q ? p->q.tile : p->q.size - q;
    shard.sk = p->k.tile < p->k.size - k ? p->k.tile : p->k.size - k;
    if (fxa_tiles_count(c->ctx, &shard, p->b, p->h, p->q.tile, p->k.tile, binding_params(&job->bind), ranges, &one,
                        &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    *out = (uint8_t)(one.empty ? FXA_TILE_EMPTY : one.full ? FXA_TILE_FULL : FXA_TILE_MIXED);
    return CLI_OK;
}

static int plot_tiles(cli *c, const cli_job *job, const fxa_program *program, plot *p) {
    const fxa_tensor_range *ranges = binding_ranges(c, &job->bind);
    fxa_problem whole;
    fxa_error err;
    int rc = plot_tile_problem(c, job, program, &whole);
    if (rc != CLI_OK) return rc;
    p->tile = cli_alloc_array(c, p->q.tiles * p->k.tiles, 1);
    for (int64_t i = 0; i < p->q.tiles * p->k.tiles; i++) {
        int64_t q = i / p->k.tiles * p->q.tile_step * p->q.tile, k = i % p->k.tiles * p->k.tile_step * p->k.tile;
        rc = plot_tile_class(c, job, &whole, ranges, p, q, k, &p->tile[i]);
        if (rc != CLI_OK) return rc;
    }
    if (fxa_tiles_count(c->ctx, &whole, p->b, p->h, p->q.tile, p->k.tile, binding_params(&job->bind), ranges,
                        &p->counts, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    bool unknown = p->counts.mixed && p->q.tile > PLOT_TILE_LOOK / p->k.tile;
    p->mixed = unknown ? "mixed or not known" : "mixed";
    return CLI_OK;
}

/* Returns a tile size for a clear picture: a sixteenth of the shape, a power of two up to 128. */
static int64_t plot_default_tile(int64_t size) {
    int64_t tile = 1;
    while (tile < 128 && tile * 16 < size) tile *= 2;
    return tile;
}

/* Returns the number of cells or tiles on a side, reduced from `most` until their total work is within PLOT_WORK. */
static int64_t plot_max_cells(int64_t most, int64_t rows, int64_t keys, int64_t work) {
    while (most > 8 && (most < rows ? most : rows) * (most < keys ? most : keys) > PLOT_WORK / work) most--;
    return most;
}

/* Lays out cells and tiles, fewer than requested for large programs. */
static void plot_set_layout(cli *c, const cli_job *job, const fxa_program *program, const int64_t *tile, int64_t most,
                            plot *p) {
    const fxa_problem *problem = &job->problem;
    int64_t pair = plot_pair_work(program), asked = most,
            looks = tile[0] <= PLOT_TILE_LOOK / tile[1] ? tile[0] * tile[1] : 0,
            most_tiles = plot_max_cells(most / 2, (problem->sq - 1) / tile[0] + 1, (problem->sk - 1) / tile[1] + 1,
                                        pair * (looks + PLOT_TILE_PAIRS));
    p->exact = plot_is_exact(program, problem->sq, problem->sk);
    if (!p->exact) most = plot_max_cells(most, problem->sq, problem->sk, PLOT_MIN_PAIRS * pair);
    if (most < asked && opt_has(c, OPT_RESOLUTION))
        cli_warn(c, "--resolution %" PRId64 ": %" PRId64 " of a side are drawn, as the program has %zu nodes", asked,
                 most, fxa_program_node_count(program));
    plot_set_axis(&p->q, problem->sq, most, tile[0], most_tiles);
    plot_set_axis(&p->k, problem->sk, most, tile[1], most_tiles);
}

static int plot_read_options(cli *c, const cli_job *job, const fxa_program *program, plot *p) {
    const fxa_problem *problem = &job->problem;
    const char *text = opt_get(c, OPT_TILE);
    int64_t tile[2] = {plot_default_tile(problem->sq), plot_default_tile(problem->sk)},
            most = opt_has(c, OPT_SVG) ? 128 : 64;
    p->at = 1;
    if (problem->b < 1 || problem->hq < 1 || problem->sq < 1 || problem->sk < 1)
        return cli_fail(c, CLI_BAD_INPUT, "--shape: there is nothing to draw; b, h, sq and sk must be at least 1");
    if (text && (read_int_list(text, tile, 2) != 2 || tile[0] < 1 || tile[1] < 1))
        return cli_fail(c, CLI_BAD_INPUT, "--tile %.64s: two numbers from 1 are expected, as in 128,128", text);
    int rc = opt_int(c, OPT_B, 0, problem->b - 1, &p->b);
    if (rc == CLI_OK) rc = opt_int(c, OPT_H, 0, problem->hq - 1, &p->h);
    if (rc == CLI_OK) rc = opt_int(c, OPT_RESOLUTION, 8, 512, &most);
    if (rc == CLI_OK) rc = opt_double(c, OPT_RAW_SCORE, &p->at);
    if (rc != CLI_OK) return rc;
    plot_set_layout(c, job, program, tile, most, p);
    return CLI_OK;
}

/* Returns the title, "score = ...; mask = ...; file.fxa; causal". The folder of a file is left out. */
static const char *plot_title(cli *c, const cli_job *job) {
    cli_buf b = {0};
    for (size_t i = 0; i < job->sources.n; i++) {
        const cli_text *s = &job->sources.list[i];
        const char *slash = strrchr(s->name, '/'), *file = slash ? slash + 1 : s->name;
        if (s->kind != FXA_TEXT_STATEMENTS)
            buf_printf(&b, "; %s = %s", s->name + 2, s->text);
        else
            buf_printf(&b, "; %s", file);
    }
    if (job->problem.flags & FXA_CAUSAL) buf_text(&b, "; causal");
    if (job->problem.flags & FXA_WINDOW)
        buf_printf(&b, "; window %" PRId64 ",%" PRId64, job->problem.window_left, job->problem.window_right);
    if (job->problem.flags & FXA_BOTTOM_RIGHT)
        buf_printf(&b, "%s%s", b.size ? ", " : "; ", opt_has(c, OPT_DECODE) ? "decode" : "bottom-right");
    for (size_t i = 0; i < b.size; i++)
        if ((unsigned char)b.data[i] < 32) b.data[i] = ' ';
    const char *title = cli_format(c, "%.80s%s", b.size ? b.data + 2 : "identity", b.size > 82 ? "..." : "");
    buf_free(&b);
    return title;
}

static void plot_words(cli *c, const cli_job *job, const fxa_program *program, plot *p) {
    fxa_properties properties;
    fxa_program_properties(program, &properties);
    p->changes_score = !(properties.flags & (FXA_PROPERTY_IDENTITY | FXA_PROPERTY_PURE_MASK));
    p->sampled = plot_cells_sampling(c, p);
    p->tiles_sampled = plot_tiles_sampling(c, p->q.tile_step, p->k.tile_step);
    p->title = plot_title(c, job);
}

static void plot_json_shares(json *j, const plot *p) {
    static const char *const names[] = {"masked", "minus_inf", "nan", "attended"};
    json_bool(j, "exact", p->exact);
    json_bool(j, "masked_exact", p->mask_exact);
    json_open(j, "share", '{');
    for (int f = 0; f < PLOT_FATES; f++) json_number(j, names[f], p->share[f]);
    json_close(j, '}');
}

/* Writes the mask as rows of text (1 = attended, 0 = not, + = in part), then the shares and the mean scores. */
static void plot_json_cells(json *j, const plot *p) {
    json_open(j, "mask", '[');
    for (int64_t i = 0; i < p->q.cells; i++) {
        char row[513] = {0};
        for (int64_t k = 0; k < p->k.cells; k++) {
            double open = 1 - p->cell[i * p->k.cells + k].share[PLOT_MASKED];
            row[k] = open == 0 ? '0' : open == 1 ? '1' : '+';
        }
        json_string(j, NULL, row);
    }
    json_close(j, ']');
    for (int what = 0; what < 2; what++) {
        json_open(j, what ? "score" : "attended", '[');
        for (int64_t i = 0; i < p->q.cells; i++) {
            json_open(j, NULL, '[');
            for (int64_t k = 0; k < p->k.cells; k++) {
                const plot_cell *cell = &p->cell[i * p->k.cells + k];
                json_number(j, NULL, what ? cell->score : (double)cell->share[PLOT_ATTENDED]);
            }
            json_close(j, ']');
        }
        json_close(j, ']');
    }
}

static void plot_json_curves(json *j, const plot *p) {
    json_open(j, "curves", '[');
    for (int i = 0; i < p->curves; i++) {
        const plot_curve *curve = &p->curve[i];
        json_open(j, NULL, '{');
        json_int(j, "q", curve->q + p->first_q);
        json_int(j, "k", curve->k);
        json_number(j, "from", -p->reach);
        json_number(j, "to", p->reach);
        json_open(j, "score", '[');
        for (int x = 0; x < PLOT_POINTS; x++) json_number(j, NULL, curve->value[x]);
        json_close(j, ']');
        json_open(j, "slope", '[');
        for (int x = 0; x < PLOT_POINTS; x++) json_number(j, NULL, curve->slope[x]);
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void plot_json(cli *c, const cli_job *job, const plot *p) {
    static const char *const classes[] = {"empty", "mixed", "full"};
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_int(&j, "b", p->b);
    json_int(&j, "h", p->h);
    json_number(&j, "at", p->at);
    json_int(&j, "first_q", p->first_q);
    json_int(&j, "q_step", p->q.step);
    json_int(&j, "k_step", p->k.step);
    json_string(&j, "sampled", p->sampled);
    json_string(&j, "random", p->random);
    invented_json(&j, job);
    plot_json_shares(&j, p);
    json_number(&j, "lowest_score", p->lo <= p->hi ? p->lo : (double)NAN);
    json_number(&j, "highest_score", p->lo <= p->hi ? p->hi : (double)NAN);
    plot_json_cells(&j, p);
    plot_json_curves(&j, p);
    json_open(&j, "tiles", '{');
    tile_counts_json(&j, p->q.tile, p->k.tile, &p->counts);
    json_int(&j, "q_step", p->q.tile_step);
    json_int(&j, "k_step", p->k.tile_step);
    json_open(&j, "classes", '[');
    for (int64_t i = 0; i < p->q.tiles; i++) {
        json_open(&j, NULL, '[');
        for (int64_t k = 0; k < p->k.tiles; k++) json_string(&j, NULL, classes[p->tile[i * p->k.tiles + k]]);
        json_close(&j, ']');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    if (opt_has(c, OPT_SVG)) json_string(&j, "svg", opt_get(c, OPT_SVG));
    json_warnings(&j, c);
    json_close(&j, '}');
}

static int plot_write_svg(cli *c, const plot *p, const char *path) {
    cli_buf svg = {0};
    int handle = cli_output_open(c, path);
    if (handle < 0) return CLI_BAD_INPUT;
    plot_svg(c, &svg, p);
    int rc = cli_output_write(c, handle, svg.data, svg.size);
    if (rc == CLI_OK && !c->json) buf_printf(&c->out, "%s: %zu bytes\n", path, svg.size);
    buf_free(&svg);
    return rc;
}

int cmd_plot(cli *c) {
    cli_job *job;
    cli_random random = {0};
    fxa_program *program;
    plot *p = cli_alloc(c, sizeof *p);
    const char *svg = opt_get(c, OPT_SVG);
    int rc = job_make(c, false, &job);
    if (rc == CLI_OK) rc = job_require_small(c, job);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &random.state);
    if (rc == CLI_OK) rc = job_run_program(c, job, &program);
    if (rc == CLI_OK) rc = plot_read_options(c, job, program, p);
    if (rc != CLI_OK) return rc;
    p->random = invented_fill(c, job, &random, true);
    p->invented = invented_text(c, job);
    rc = plot_sample(c, job, program, random.state, p);
    if (rc == CLI_OK) rc = plot_make_curves(c, job, program, p);
    plot_words(c, job, program, p);
    if (rc == CLI_OK) rc = plot_tiles(c, job, program, p);
    if (rc == CLI_OK && svg) rc = plot_write_svg(c, p, svg);
    if (rc != CLI_OK) return rc;
    if (c->json)
        plot_json(c, job, p);
    else if (!svg)
        plot_term(c, p, isatty(STDOUT_FILENO) && !getenv("NO_COLOR"));
    return CLI_OK;
}
