/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of the cuda engine that random problems (test_cuda_device) rarely cover, compared with the reference within
 * the same bounds: captured tensors and params of every gradient class, in each kernel family, and with
 * FXA_DETERMINISTIC the same bits in many runs. FXA_TEST_DTYPE=f32 has only the family simt. Most of the time is
 * compilation: FXA_CUDA_FAMILY selects one family (any: the best), FXA_TEST_ROW one row of the tables, for parallel
 * processes. Skipped without the engine; FXA_TEST_ENGINE=cpu tests the rows with the cpu engine.
 */
#include "base/dtype.h"
#include "support/conformance/conf_case.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <unistd.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { GRADS_RUNS = 6, GRADS_SECONDS = 60, GRADS_SHAPES = 2, GRADS_KEYS = 4, GRADS_COLUMNS = 5, GRADS_SM80 = 1 };

static const char *grads_engine(void) {
    const char *name = getenv("FXA_TEST_ENGINE");
    return name && *name ? name : "cuda";
}

/* Returns the reason why the engine cannot run on this machine; NULL = it can. */
static const char *grads_missing(void) {
    static fxa_support report;
    t_ctx *ctx = t_context();
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t count = 1;
    fxa_error err;
    const char *standin = getenv("FXA_TEST_STANDIN");
    if (strcmp(grads_engine(), "cuda") != 0) return NULL;
    if (standin && *standin) return "kernels of the cuda engine need a GPU";
    p.b = p.hq = 1, p.sq = p.sk = p.d_qk = 64, p.q.dtype = FXA_F32, p.alignment = 16, p.device = FXA_CUDA;
    T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
    return report.supported ? NULL : report.reason;
}

typedef struct grads_row {
    const char *text;
    uint32_t features, flags; /* features of attn_case.h, and flags of the backward pass */
    int64_t size[6];          /* sizes of the first tensor, then number of keys and head dims; 0 = as drawn */
} grads_row;

static attn_shape grads_shape(const grads_row *row, int i) {
    attn_shape s = {.b = 2, .hkv = 2, .hq = i ? 2 : 4, .sq = i ? 130 : 70, .sk = row->size[GRADS_KEYS]};
    if (!s.sk) s.sk = i ? 97 : 190;
    s.d = s.dv = row->size[GRADS_COLUMNS] ? row->size[GRADS_COLUMNS] : 64, s.page_size = i ? 16 : 24,
    s.n_pages = i ? 9 : 7, s.window = s.sk;
    return s;
}

/* Repeats the backward pass and returns true if it gives the same bytes again. */
static bool grads_again(conf_case *c) {
    static unsigned char first[1 << 22];
    size_t used = 0;
    for (int run = 0; run < GRADS_RUNS; run++, used = 0) {
        conf_buffer *t;
        conf_restore_outputs(c, FXA_BACKWARD);
        if (!conf_run(c, grads_engine(), FXA_BACKWARD) || c->refused) return false;
        for (int i = 0; (t = conf_output(c, FXA_BACKWARD, i)); used += t->bytes, i++) {
            if (used + t->bytes + sizeof c->dparams > sizeof first) abort();
            if (run == 0) memcpy(first + used, t->memory, t->bytes);
            if (memcmp(first + used, t->memory, t->bytes)) {
                snprintf(c->why, sizeof c->why, "run %d has other bits of %s", run, t->name);
                return false;
            }
        }
        if (run == 0) memcpy(first + used, c->dparams, sizeof c->dparams);
        if (memcmp(first + used, c->dparams, sizeof c->dparams)) {
            snprintf(c->why, sizeof c->why, "run %d has other bits of params", run);
            return false;
        }
    }
    return true;
}

/* Tests one shape of a row of the table. Returns 1 if correct, 0 if refused or not comparable. */
static int grads_one(fxa_context *ctx, const grads_row *row, int shape, uint64_t *rng) {
    static conf_case c;
    static conf_tally tally;
    char what[400];
    fxa_error err;
    fxa_program *program = NULL;
    attn_shape s = grads_shape(row, shape);
    T_OK(fxa_program_parse(ctx, row->text, SIZE_MAX, &program, &err));
    if (!program) return 0;
    bool ok = conf_draw(&c, ctx, row->features, &s, program, "program", NULL, &tally, rng), forward = ok;
    fxa_problem *p = &c.base.data.problem;
    if (ok && row->size[0]) conf_resize(&c, 0, row->size, rng);
    p->alignment = row->features & ATTN_STRIDES ? 0 : 16;
    p->flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    c.base.data.backward_flags |= row->flags;
    alarm(GRADS_SECONDS); /* after this time the process ends */
    ok = ok && conf_check_forward(&c, grads_engine());
    forward = ok && !c.refused;
    ok = ok && conf_check_backward(&c, grads_engine());
    bool right = ok && forward && !c.refused && !c.unsure;
    if (ok && c.refused) printf("  refused: %s\n", c.why);
    if (right && (row->flags & FXA_DETERMINISTIC)) ok = grads_again(&c);
    alarm(0);
    conf_describe(&c, what, sizeof what);
    if (!ok) T_FAIL("%s\n    %s\n    %s\n", row->text, what, c.why);
    conf_free(&c);
    return ok && right;
}

/* Tests rows with every family that the device supports; f32 has one family. sm80 refuses ordered sums, which simt then
 * computes and which are tested too. */
static void grads_rows(const grads_row *rows, size_t n, size_t least) {
    static const char *const families[] = {"", "sm80", "simt"};
    const char *only = getenv("FXA_CUDA_FAMILY"), *row = getenv("FXA_TEST_ROW");
    char chosen[8] = "";
    if (only) snprintf(chosen, sizeof chosen, "%s", only);
    if (chosen[0]) setenv("FXA_CUDA_FAMILY", "", 1);
    const char *missing = grads_missing();
    uint64_t rng = t_seed() * 0x9E3779B97F4A7C15u;
    if (missing) T_SKIP(missing);
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    bool narrow = strcmp(getenv("FXA_TEST_DTYPE"), "f32") != 0;
    for (int f = 0; f < (narrow ? 3 : 1); f++) {
        if (chosen[0] && strcmp(chosen, f ? families[f] : "any") != 0) continue;
        t_ctx *ctx = NULL;
        fxa_error err;
        size_t right = 0, run = 0;
        setenv("FXA_CUDA_FAMILY", families[f], 1);
        T_OK(fxa_context_create(NULL, &ctx, &err));
        for (size_t i = 0; i < n; i++) {
            if ((row && (size_t)atoi(row) != i) || (f == GRADS_SM80 && (rows[i].flags & FXA_DETERMINISTIC))) continue;
            for (int shape = 0; shape < GRADS_SHAPES; shape++, run++)
                right += (size_t)grads_one(ctx, &rows[i], shape, &rng);
        }
        printf("  %s: %zu of %zu right\n", f ? families[f] : "any", right, run);
        T_CHECK(right >= (row ? run / GRADS_SHAPES : least * run / (GRADS_SHAPES * n)));
    }
    setenv("FXA_CUDA_FAMILY", chosen, 1);
}

#define GRADS_ROWS(rows, least) grads_rows(rows, sizeof(rows) / sizeof *(rows), least)

static const char grads_scatter[] = "tensor t : f32[1]\ntensor ids : i32[1]\nparam a : float\n"
                                    "score = score + t[ids[k] + q % 3] + a * float(k % 5)\nmask = k <= q + 40";
static const char grads_scatter_all[] = "tensor t : f32[1]\ntensor ids : i32[1]\nscore = score + t[ids[k] + q % 3]";
static const char grads_slope[] = "tensor t : bf16[2]\nparam cap : float\n"
                                  "score = cap * tanh(score * t[h, (q * k) % 7] / cap) + t[h, 0]";
static const char grads_bucket[] = "tensor t : f16[2]\nscore = score + t[h, min(abs(q - k) >> 1, 31)]\nmask = k <= q";
static const char grads_quotient[] = "tensor c : f32[2]\ntensor w : f32[1]\n" /* dc sums a row, dw a head */
                                     "score = score - ((0.01 * k - c[h, q]) / (w[h] * w[h] + 0.5)) ** 2";
static const char grads_distance[] = "tensor t : f32[1]\nscore = score + t[q - k + 100]";

TEST(same_bits_in_every_run) {
    static const grads_row rows[] = {
        {grads_scatter, ATTN_GQA, FXA_DETERMINISTIC, {0}},
        {grads_scatter, ATTN_GQA | ATTN_VARLEN, FXA_DETERMINISTIC, {0}},
        {grads_slope, ATTN_GQA, FXA_DETERMINISTIC, {4, 7}},
        {grads_bucket, ATTN_GQA, FXA_DETERMINISTIC, {4, 32}},
        {grads_bucket, ATTN_GQA | ATTN_PADDING, FXA_DETERMINISTIC | FXA_ACCUMULATE_DTENSORS, {4, 32}},
        {grads_distance, ATTN_GQA | ATTN_DROPOUT, FXA_DETERMINISTIC, {300}},
    };
    GRADS_ROWS(rows, 8);
}

/* Several key tiles that add to dQ in order: two, or three for small head dims, because the emulator is slow. */
TEST(dq_by_turns) {
    static const char cap[] = "param cap : float\nscore = cap * tanh(score / cap)";
    static const grads_row rows[] = {
        {"score = score * 0.5", ATTN_GQA, FXA_DETERMINISTIC, {0, 0, 0, 0, 129, 128}},
        {cap, ATTN_GQA, FXA_DETERMINISTIC, {0, 0, 0, 0, 129, 96}},
        {"score = score + 1.0", ATTN_GQA | ATTN_DROPOUT, FXA_DETERMINISTIC, {0, 0, 0, 0, 140, 64}},
        {"score = score - 1.0", ATTN_GQA | ATTN_ACC, FXA_DETERMINISTIC, {0, 0, 0, 0, 257, 64}},
        {cap, ATTN_GQA, FXA_DETERMINISTIC, {0, 0, 0, 0, 300, 32}},
        {grads_scatter_all, ATTN_GQA, FXA_DETERMINISTIC, {0, 0, 0, 0, 129, 64}},
    };
    GRADS_ROWS(rows, 8);
}

/* Queries without key tiles: unwritten parts of the dQ sum count as 0. */
TEST(queries_without_keys) {
    static const grads_row rows[] = {
        {"mask = (q >> 6) % 2 == 0", ATTN_GQA, 0, {0, 0, 0, 0, 300, 128}},
        {"mask = (q >> 6) % 2 == 1 && k <= q + 150", ATTN_GQA, 0, {0, 0, 0, 0, 300, 96}},
        {"mask = q >= 128", ATTN_GQA, 0, {0, 0, 0, 0, 300, 64}},
    };
    GRADS_ROWS(rows, 4);
}

/* A tensor with an element per pair, whose gradient is dS: the entire gradient is written, with 0 where the mask is
 * false. Also tested next to sums along diagonals. */
TEST(pairs_of_their_own) {
    static const char plain[] = "tensor t : bf16[4]\nscore = score + t[b, h, q, k]";
    static const char masked[] = "tensor t : bf16[4]\nscore = score + t[b, h, q, k]\nmask = k <= q + 20 && k >= q - 90";
    static const char both[] = "tensor t : bf16[4]\ntensor u : f32[1]\nscore = score + t[b, h, q, k] + u[q - k + 200]";
    static const grads_row rows[] = {
        {plain, ATTN_GQA, 0, {2, 4, 130, 192, 192, 128}},
        {masked, ATTN_GQA, 0, {2, 4, 130, 264, 264, 64}},
        {masked, ATTN_GQA, FXA_DETERMINISTIC, {2, 4, 130, 192, 192, 128}},
        {both, ATTN_GQA, 0, {2, 4, 130, 192, 192, 64}},
    };
    GRADS_ROWS(rows, 8);
}

/* Gradients with one element for all pairs, per batch entry or head, per row or key; also with out-of-bounds
 * indices. */
TEST(every_class) {
    static const grads_row rows[] = {
        {"tensor t : f32[0]\nparam a : float\nscore = score + a * t[] * float(k - q)", ATTN_GQA, 0, {0}},
        {"tensor t : f16[1]\nscore = score + t[b] * float(k % 3)", ATTN_GQA, 0, {2}},
        {"tensor t : bf16[2]\nscore = score * t[b, h % 2] + t[0, h]", ATTN_GQA, FXA_ACCUMULATE_DTENSORS, {2, 4}},
        {"tensor t : f32[2]\nscore = score + t[h, q]", ATTN_GQA | ATTN_STRIDES, 0, {0}},
        {"tensor t : f64[2]\nscore = score + t[b, k]", ATTN_GQA, 0, {0}},
        {"tensor t : f32[2]\nscore = score + t[q, k] + t[k, q]", ATTN_GQA, 0, {190, 190}},
        {grads_bucket, ATTN_GQA, 0, {4, 32}},
        {grads_scatter, ATTN_GQA | ATTN_STRIDES, 0, {0}},
        {"tensor t : f32[1]\nscore = score + t[q * k - 40]", ATTN_GQA, FXA_DETERMINISTIC, {11}},
        {grads_quotient, ATTN_GQA, 0, {0}},
    };
    GRADS_ROWS(rows, 12);
}

/* More sums over all pairs than sm80 kernels keep separate, also for head dims that are computed in two parts. */
TEST(many_sums) {
    static const char sums[] = "tensor t : f32[2]\nparam a : float\n"
                               "score = a * tanh(score * t[h, 0] / a) + "
                               "sum(i, 20, t[h, i] * float((q + 3 * k) % (i + 2))) * 0.05\nmask = k <= q + 40";
    static const grads_row rows[] = {
        {sums, ATTN_GQA, 0, {4, 20, 0, 0, 0, 128}},
        {sums, ATTN_GQA | ATTN_PADDING | ATTN_DROPOUT, FXA_ACCUMULATE_DTENSORS, {4, 20}},
        {sums, ATTN_GQA | ATTN_VARLEN, 0, {4, 20, 0, 0, 0, 256}},
    };
    GRADS_ROWS(rows, 4);
}

/* Pages of any size that batch entries share; packed rows, key lengths, accumulated gradients. */
TEST(pages) {
    static const grads_row rows[] = {
        {"mask = k <= q + 60", ATTN_GQA | ATTN_PAGED, FXA_DETERMINISTIC, {0}},
        {"mask = k <= q + 60", ATTN_GQA | ATTN_PAGED | ATTN_PADDING | ATTN_ACC, 0, {0}},
        {"param cap : float\nscore = cap * tanh(score / cap)", ATTN_PAGED | ATTN_VARLEN | ATTN_CHUNKED, 0, {0}},
        {grads_scatter, ATTN_PAGED | ATTN_PADDING | ATTN_STRIDES | ATTN_SOME_GRADS, FXA_DETERMINISTIC, {0}},
        {"mask = k % 3 != 0",
         ATTN_GQA | ATTN_PAGED | ATTN_PADDING | ATTN_VARLEN | ATTN_CHUNKED,
         FXA_DETERMINISTIC,
         {0}},
    };
    GRADS_ROWS(rows, 7);
}

/* Packed gradients that are accumulated: rows outside all sequences do not change. */
TEST(packed_and_added) {
    static const grads_row rows[] = {
        {"mask = k <= q",
         ATTN_GQA | ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING,
         FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV,
         {0}},
        {grads_scatter,
         ATTN_GQA | ATTN_VARLEN | ATTN_ACC,
         FXA_DETERMINISTIC | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DTENSORS,
         {0}},
    };
    GRADS_ROWS(rows, 2);
}

T_MAIN
