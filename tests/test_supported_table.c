/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the table "What is supported" of README.md against the engines' support reports. Each row has several
 * problems, forward and backward, all of which an engine must support for a yes. FXA_TEST_UPDATE=1 rewrites the table.
 * cuda and cudnn report for an H200. cuda's report needs no device and no library; cudnn's needs cuDNN (make
 * deps-cudnn), and without it the column is kept as README.md has it. cudnn gets problems of bf16 where a row does not
 * choose the dtypes.
 */
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "support/fixtures/attn_data.h"
#include "t.h"

#define TABLE_README FXA_SOURCE_DIR "/README.md"
#define TABLE_H200 FXA_SOURCE_DIR "/examples/targets/h200.json"

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

/* Problem of a row and the data it points to. */
typedef struct table_case {
    fxa_context *ctx;
    fxa_problem p;
    fxa_program *program, *bprop;
    fxa_capture captures[1];
    bool backward;
} table_case;

static void table_program(table_case *c, const char *text) {
    fxa_error err;
    T_OK(fxa_program_parse(c->ctx, text, SIZE_MAX, &c->program, &err));
    c->p.program = c->program;
    c->p.captures = c->captures, c->p.n_captures = fxa_program_tensor_count(c->program);
}

/* Each function changes the default problem into the i-th of its row; returns false past the last. */

static bool table_gradients(table_case *c, int i) {
    table_program(c, "param g : float\ntensor t : f32[1]\nscore = g * score + t[h]");
    c->captures[0] = (fxa_capture){.size = {4}, .grad = c->backward};
    c->p.param_grads = c->backward;
    return i < 1;
}
static fxa_dtype table_float(int i) {
    static const fxa_dtype all[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2};
    return all[i % 6];
}
static bool table_storage(table_case *c, int i) {
    c->p.q.dtype = (uint32_t)table_float(i);
    return i < 6;
}
static bool table_mixed(table_case *c, int i) { /* another dtype for each of Q, K, V, dO, dQ, ... */
    if (i >= 125) return false;
    c->p.q.dtype = (uint32_t)table_float(1 + i % 5);
    c->p.k.dtype = (uint32_t)table_float(1 + i / 5 % 5);
    c->p.v.dtype = (uint32_t)table_float(1 + i / 25);
    c->p.o.dtype = c->p.dk.dtype = (uint32_t)table_float(i % 6);
    c->p.dout.dtype = c->p.dq.dtype = (uint32_t)table_float(i / 6);
    return true;
}
static bool table_scaled(table_case *c, int i) { /* as in FP8 training: e4m3, gradients e5m2 */
    c->p.q.dtype = FXA_E4M3;
    c->p.dout.dtype = c->p.dq.dtype = c->p.dk.dtype = c->p.dv.dtype = i ? FXA_E5M2 : FXA_E4M3;
    c->p.flags |= FXA_SCALED;
    return i < 2;
}
static bool table_captured(table_case *c, int i) {
    static const char *const loads[] = {"t[]", "t[h]", "t[h, q]", "t[b, h, q]", "t[b, h, q, k]", "t[0, b, h, q, k]"};
    char text[100];
    if (i >= 72) return false;
    fxa_dtype dtype = (fxa_dtype)(FXA_F64 + i / 6);
    bool real = dtype <= FXA_BF16 || dtype >= FXA_E4M3;
    snprintf(text, sizeof text, "tensor t : %s[%d]\nscore = score + %s", fxa_dtype_name(dtype), i % 6, loads[i % 6]);
    table_program(c, text);
    c->captures[0] = (fxa_capture){.size = {2, 2, 2, 2, 2}, .grad = c->backward && real};
    for (int axis = i % 6; axis < FXA_MAX_RANK; axis++) c->captures[0].size[axis] = 0;
    return true;
}
static bool table_layouts(table_case *c, int i) {
    fxa_operand *const all[] = {&c->p.q, &c->p.k, &c->p.v, &c->p.o, &c->p.dout, &c->p.dq, &c->p.dk, &c->p.dv};
    for (int t = 0; t < 8; t++)
        *all[t] = i == FXA_LAYOUT_STRIDED ? (fxa_operand){FXA_F32, (uint32_t)i, {7, 100003, 1009 + t, 101}}
                                          : (fxa_operand){FXA_F32, (uint32_t)i, {0}};
    return i <= FXA_LAYOUT_STRIDED;
}
static bool table_shapes(table_case *c, int i) {
    static const int64_t shapes[][6] = {{7, 1, 1, 1000, 1, 512}, {6, 2, 129, 3, 512, 1}, {9, 3, 5, 5, 80, 96}};
    if (i >= 3) return false;
    const int64_t *s = shapes[i];
    c->p.hq = s[0], c->p.hkv = s[1], c->p.sq = s[2], c->p.sk = s[3], c->p.d_qk = s[4], c->p.d_v = s[5];
    return true;
}
static bool table_lengths(table_case *c, int i) {
    static const uint32_t flags[] = {FXA_PADDING, FXA_VARLEN, FXA_PAGED, FXA_PAGED | FXA_PADDING,
                                     FXA_VARLEN | FXA_PADDING};
    if (i >= 5) return false;
    c->p.flags |= flags[i];
    if (flags[i] & FXA_VARLEN) c->p.total_q = c->p.total_k = 10;
    if (flags[i] & FXA_PAGED) c->p.page_size = 4, c->p.n_pages = 9;
    return true;
}
static bool table_chunks(table_case *c, int i) {
    static const uint32_t flags[] = {0, FXA_PADDING, FXA_PADDING | FXA_Q_START, FXA_PADDING | FXA_BOTTOM_RIGHT};
    if (i >= 4) return false;
    c->p.flags |= flags[i] | FXA_VARLEN | FXA_PAGED;
    c->p.total_q = 10, c->p.page_size = 4, c->p.n_pages = 9;
    table_program(c, "score = score - 0.1 * (q - k)\nmask = k <= q");
    return true;
}
static bool table_masks(table_case *c, int i) {
    static const uint32_t flags[] = {FXA_CAUSAL, FXA_CAUSAL | FXA_BOTTOM_RIGHT, FXA_WINDOW, 0};
    if (i >= 4) return false;
    c->p.flags |= flags[i];
    if (flags[i] & FXA_WINDOW) c->p.window_left = 3, c->p.window_right = -1;
    if (!flags[i]) table_program(c, "mask = (q * 3 + k) % 5 != b + h");
    return true;
}
static bool table_sinks(table_case *c, int i) {
    c->p.flags |= i == 0 ? FXA_SINK_ZERO : c->backward ? FXA_SINKS | FXA_GRAD_SINKS : FXA_SINKS;
    return i < 2;
}
static bool table_dropout(table_case *c, int i) {
    c->p.flags |= FXA_DROPOUT;
    c->p.dropout_p = 0.25;
    return i < 1;
}
static bool table_statistics(table_case *c, int i) {
    c->p.flags |= c->backward ? FXA_READ_DLSE : FXA_RETURN_LSE | FXA_RETURN_ROW_MAX;
    return i < 1;
}
static bool table_maps(table_case *c, int i) {
    fxa_index_map *const maps[] = {&c->p.map_b, &c->p.map_h, &c->p.map_q, &c->p.map_k};
    const fxa_index_map kinds[] = {{.base = 3, .step = 2},
                                   {.kind = FXA_MAP_SEGMENTS, .n_segments = 2, .segment = {{0, 5, 1}, {2, 9, 1}}},
                                   {.kind = FXA_MAP_TABLE},
                                   {.has_offset = 1}};
    if (i >= 16) return false;
    *maps[i % 4] = kinds[i / 4];
    return true;
}
static bool table_strict(table_case *c, int i) {
    table_program(c, "tensor t : f32[1]\nscore = score + t[h]");
    c->captures[0] = (fxa_capture){.size = {4}};
    c->p.flags |= FXA_BOUNDS_CHECK;
    return i < 1;
}
static bool table_bprop(table_case *c, int i) {
    fxa_error err;
    fxa_text text = {NULL, "dscore = 2.0 * dscore", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
    if (!c->backward || i >= 1) return false;
    T_OK(fxa_program_parse_texts(c->ctx, &config, &c->bprop, &err));
    c->p.bprop = c->bprop;
    return true;
}

/* The problems of two rows in one. */
static bool table_all_lengths(table_case *c, int i) { return i < 5 ? table_lengths(c, i) : table_chunks(c, i - 5); }
static bool table_extras(table_case *c, int i) {
    return i < 2 ? table_sinks(c, i) : i < 3 ? table_dropout(c, 0) : table_statistics(c, i - 3);
}
static bool table_maps_and_bprop(table_case *c, int i) { return i < 16 ? table_maps(c, i) : table_bprop(c, i - 16); }

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Rows, with notes that follow the verdict of each engine. */
static const struct table_row {
    const char *label;
    bool (*change)(table_case *c, int i);
    const char *cpu, *ref, *cuda, *cudnn;
} table_list[] = {
    {"forward, backward, gradients of captured tensors and params", table_gradients, "", "", "", ""},
    {"storage f64, f32, f16, bf16, e4m3, e5m2", table_storage, "", ", computed in f64", ": no f64", ": f16, bf16"},
    {"scales of e4m3 and e5m2 operands, largest values of results", table_scaled, "", "", "", ""},
    {"Q, K, V, O and gradients of different dtypes", table_mixed, "", "", "", ""},
    {"captured tensors of every dtype and bool, rank 0 to 5", table_captured, "", "", "", ""},
    {"any strides of any tensor, BHSD, BSHD, SBHD", table_layouts, "", "", "", ""},
    {"GQA and MQA, D_qk != D_v, D from 1 to 512, any lengths", table_shapes, "", "", ": D up to 256", ": D up to 256"},
    {"lengths for each batch entry, packed rows, paged KV, start positions", table_all_lengths, "", "", "", ""},
    {"causal, bottom-right, window, any mask of a program", table_masks, "", "", "", ""},
    {"sinks, dropout, LSE and row maxima, their gradients", table_extras, "", "", "", ""},
    {"context parallelism, user-written backward program", table_maps_and_bprop, "", "", "", ""},
    {"an index outside its tensor is an error, on request", table_strict, "", "", "", ""},
};
enum { TABLE_ROWS = sizeof table_list / sizeof table_list[0] };

/* Columns and the engines' names in them. */
enum { TABLE_CPU, TABLE_REF, TABLE_CUDA, TABLE_CUDNN, TABLE_COLUMNS };
static const char *const table_columns[TABLE_COLUMNS] = {"cpu", "ref", "cuda", "cudnn"};

typedef struct table_votes {
    int asked, supported[TABLE_COLUMNS], deterministic[TABLE_COLUMNS];
} table_votes;

static void table_vote(table_votes *votes, int column, const fxa_support *report) {
    votes->supported[column] += report->supported;
    votes->deterministic[column] += report->deterministic;
}

static void table_ask_host(const table_case *c, table_votes *votes) {
    fxa_error err;
    fxa_support reports[8] = {{0}};
    size_t count = sizeof reports / sizeof *reports;
    T_OK(fxa_support_query(c->ctx, &c->p, reports, &count, &err));
    for (size_t i = 0; i < count; i++)
        for (int column = TABLE_CPU; column <= TABLE_REF; column++)
            if (strcmp(reports[i].engine, table_columns[column]) == 0) table_vote(votes, column, &reports[i]);
}

static fxa_support table_h200(const table_case *c) {
    fxa__cuda_self h200 = {.arch = 90, .processors = 132};
    fxa__problem *p = NULL;
    fxa_support report = {.supported = 0};
    fxa_error err;
    if (fxa__problem_create(fxa__context_host(c->ctx), &c->p, &p, &err) != FXA_OK) return report;
    fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &h200, .problem = p};
    T_OK(fxa__engine_cuda.query(&a, NULL, &report, &err));
    fxa__analysis_end(&a);
    fxa__problem_release(p);
    return report;
}

static void table_ask_cuda(table_case *c, table_votes *votes) {
    c->p.engine = "cuda", c->p.device = FXA_CUDA, c->p.alignment = 16;
    const fxa_support report = table_h200(c);
    table_vote(votes, TABLE_CUDA, &report);
    c->p.flags |= FXA_DETERMINISTIC;
    const fxa_support fixed = table_h200(c);
    T_CHECK(fixed.supported == report.supported && fixed.deterministic == fixed.supported); /* as the table claims */
}

/* Returns the description of an H200, read once. */
static const char *table_target(void) {
    static char text[1 << 13];
    if (text[0]) return text;
    FILE *f = fopen(TABLE_H200, "rb");
    size_t length = f ? fread(text, 1, sizeof text - 1, f) : 0;
    T_CHECK(length > 0 && length < sizeof text - 1);
    if (f) fclose(f);
    return text;
}

/* Returns cudnn's report for an H200. `chosen`: the problem's dtypes are kept; else those of f32 become bf16. */
static fxa_support table_cudnn(table_case *c, bool chosen) {
    fxa_operand *const all[] = {&c->p.q, &c->p.k, &c->p.v, &c->p.o, &c->p.dout, &c->p.dq, &c->p.dk, &c->p.dv};
    for (int t = 0; !chosen && t < 8; t++)
        if (t == 0 || all[t]->dtype == FXA_F32) all[t]->dtype = FXA_BF16;
    c->p.engine = "cudnn", c->p.device = FXA_CUDA, c->p.alignment = 16, c->p.target = table_target();
    fxa_error err;
    fxa_support reports[8] = {{0}}, none = {0};
    size_t count = sizeof reports / sizeof *reports;
    const fxa_status status = fxa_support_query(c->ctx, &c->p, reports, &count, &err);
    T_CHECK(status == FXA_OK || status == FXA_E_PROBLEM); /* a flag that no device has */
    if (status != FXA_OK) return none;
    for (size_t i = 0; i < count; i++)
        if (strcmp(reports[i].engine, "cudnn") == 0) return reports[i];
    return none;
}

/* Makes the problem that rows change: a forward or a backward without a program. */
static table_case table_case_create(bool backward) {
    fxa_error err;
    table_case c = {.p = FXA_PROBLEM_INIT, .backward = backward};
    T_OK(fxa_context_create(NULL, &c.ctx, &err));
    c.p.b = 2, c.p.hq = 4, c.p.hkv = 2, c.p.sq = c.p.sk = 6, c.p.d_qk = 8;
    c.p.pass = backward ? FXA_BACKWARD : FXA_FORWARD;
    c.p.flags = backward ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : 0;
    return c;
}
static void table_case_destroy(table_case *c) {
    fxa_program_destroy(c->program);
    fxa_program_destroy(c->bprop);
    fxa_context_destroy(c->ctx);
}

/* Returns true if cuDNN is installed: then cudnn takes the problem that rows change. */
static bool table_has_cudnn(void) {
    table_case c = table_case_create(false);
    const fxa_support report = table_cudnn(&c, false);
    if (!report.supported) printf("cudnn's column is not compared: %s\n", report.reason);
    table_case_destroy(&c);
    return report.supported;
}

/* Queries all engines about the i-th problem of a row; returns false past the last. */
static bool table_ask(const struct table_row *row, bool backward, int i, bool has_cudnn, table_votes *votes) {
    table_case c = table_case_create(backward);
    const bool there = row->change(&c, i);
    if (there) {
        votes->asked++;
        table_ask_host(&c, votes);
        table_ask_cuda(&c, votes);
        c.p.flags &= ~(uint32_t)FXA_DETERMINISTIC;
        const bool chosen = row->change == table_storage || row->change == table_mixed || row->change == table_scaled;
        const fxa_support report = has_cudnn ? table_cudnn(&c, chosen) : (fxa_support){0};
        table_vote(votes, TABLE_CUDNN, &report);
    }
    table_case_destroy(&c);
    return there;
}

static const char *table_verdict(int yes, int asked) { return yes == asked ? "yes" : yes ? "some" : "no"; }

static const char *table_note(const struct table_row *row, int column) {
    const char *const notes[TABLE_COLUMNS] = {row->cpu, row->ref, row->cuda, row->cudnn};
    return notes[column];
}

/* Appends the cell of cudnn that README.md has in the row that begins with `label`; returns its length. */
static size_t table_keep_cell(char *out, size_t room, const char *readme, const char *label) {
    char start[200];
    snprintf(start, sizeof start, "\n| %s |", label);
    const char *cell = strstr(readme, start);
    if (!cell) return 0;
    cell += strlen(start);
    for (int c = 0; c < TABLE_CUDNN; c++) cell += strcspn(cell, "|\n") + 1;
    return (size_t)snprintf(out, room, "%.*s|", (int)strcspn(cell, "|\n"), cell);
}

/* Appends the cells of one row; returns their length. */
static size_t table_cells(char *out, size_t room, const struct table_row *row, const int *yes, int asked) {
    size_t n = 0;
    for (int c = 0; c < TABLE_COLUMNS - 1; c++)
        n += (size_t)snprintf(out + n, room - n, " %s%s |", table_verdict(yes[c], asked), table_note(row, c));
    return n;
}

/* Writes the expected table. Without cuDNN its column is that of README.md. */
static void table_make(char *out, size_t room, const char *readme) {
    static const struct table_row fixed = {"the same bits in every run, for any number of threads",
                                           NULL,
                                           "",
                                           "",
                                           ": all with `FXA_DETERMINISTIC`",
                                           ": all with `FXA_DETERMINISTIC`"};
    const bool has_cudnn = table_has_cudnn();
    table_votes all = {0};
    size_t n = (size_t)snprintf(out, room, "| |");
    for (int c = 0; c < TABLE_COLUMNS; c++) n += (size_t)snprintf(out + n, room - n, " %s |", table_columns[c]);
    n += (size_t)snprintf(out + n, room - n, "\n|---|---|---|---|---|");
    for (int r = 0; r <= TABLE_ROWS; r++) {
        const struct table_row *row = r < TABLE_ROWS ? &table_list[r] : &fixed;
        table_votes votes = {0};
        for (int backward = 0; backward < 2 && row->change; backward++)
            for (int i = 0; table_ask(row, backward, i, has_cudnn, &votes); i++) {}
        n += (size_t)snprintf(out + n, room - n, "\n| %s |", row->label);
        n += table_cells(out + n, room - n, row, row->change ? votes.supported : all.deterministic,
                         row->change ? votes.asked : all.asked);
        const int yes = row->change ? votes.supported[TABLE_CUDNN] : all.deterministic[TABLE_CUDNN];
        if (!has_cudnn)
            n += table_keep_cell(out + n, room - n, readme, row->label);
        else
            n += (size_t)snprintf(out + n, room - n, " %s%s |",
                                  table_verdict(yes, row->change ? votes.asked : all.asked),
                                  table_note(row, TABLE_CUDNN));
        for (int c = 0; c < TABLE_COLUMNS; c++) all.deterministic[c] += votes.deterministic[c];
        all.asked += votes.asked;
    }
    snprintf(out + n, room - n, "\n\n");
}

TEST(readme_has_the_table) {
    static char readme[1 << 16], table[1 << 13];
    FILE *f = fopen(TABLE_README, "rb");
    T_REQUIRE(f);
    size_t length = fread(readme, 1, sizeof readme - 1, f);
    fclose(f);
    T_REQUIRE(length < sizeof readme - 1); /* all of it */
    char *begin = strstr(readme, "| | cpu | ref | cuda |");
    T_REQUIRE(begin);
    char *end = strstr(begin, "\n\n");
    T_REQUIRE(end);
    end += 2;
    table_make(table, sizeof table, readme);
    size_t size = (size_t)(end - begin);
    if (strlen(table) == size && memcmp(table, begin, size) == 0) return;
    if (!getenv("FXA_TEST_UPDATE"))
        T_FAIL("README.md does not say (FXA_TEST_UPDATE=1 makes it):\n%s", table);
    else if ((f = fopen(TABLE_README, "wb"))) {
        fprintf(f, "%.*s%s%s", (int)(begin - readme), readme, table, end);
        fclose(f);
    }
}

T_MAIN
