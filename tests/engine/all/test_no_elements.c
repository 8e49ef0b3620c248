/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems and merges without an element to write, whose batch and heads have the maximum sizes: they end at once on
 * every engine, with tensors that are NULL, whatever flags they have. A loop over batch entries would take years.
 */
#include "support/fixtures/attn_data.h"
#include "t.h"

#include <time.h>

enum { NOTHING_HEADS = 1 << 20, NOTHING_MOST = INT32_MAX };
/* Upper bound of the CPU time of one call: far above what sanitizers cost, far below a loop over the entries. */
static const double NOTHING_SECONDS = 20;

/* Returns the CPU time of the process, which does not depend on the load of the machine. */
static double nothing_seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct nothing_case {
    const char *what;
    int64_t b, hq, hkv, sq, sk, d, dv; /* dv: FXA_D_V_ZERO stands for 0 */
    uint32_t forward, backward;        /* flags of each pass; 0: the pass has elements to write and is not tested */
    int64_t n_pages, page_size;
} nothing_case;

enum {
    NOTHING_ROWS = FXA_RETURN_LSE | FXA_RETURN_ROW_MAX,
    NOTHING_GRADS = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V,
    NOTHING_SINKS = FXA_SINKS | FXA_GRAD_SINKS
};

static const nothing_case nothing_cases[] = {
    {"no features", NOTHING_MOST, NOTHING_HEADS, 1, 3, 5, 0, FXA_D_V_ZERO, FXA_DROPOUT, NOTHING_GRADS, 0, 0},
    {"no features, more rows", NOTHING_MOST, NOTHING_MOST, NOTHING_MOST, NOTHING_MOST, NOTHING_MOST, 0, FXA_D_V_ZERO,
     FXA_CAUSAL, 0, 0, 0},
    {"no features, many rows", NOTHING_MOST, NOTHING_HEADS, 1, 256, 256, 0, FXA_D_V_ZERO, FXA_SINK_ZERO,
     FXA_GRAD_V | FXA_SINK_ZERO, 0, 0},
    {"no features of V", NOTHING_MOST, NOTHING_HEADS, 1, 4, 4, 3, FXA_D_V_ZERO, FXA_SINK_ZERO,
     FXA_GRAD_V | FXA_SINK_ZERO, 0, 0},
    {"no sequences", NOTHING_MOST, NOTHING_HEADS, NOTHING_HEADS, 0, 0, 4, 3, NOTHING_ROWS, NOTHING_GRADS, 0, 0},
    {"no rows", NOTHING_MOST, NOTHING_HEADS, 1, 0, 7, 0, FXA_D_V_ZERO, NOTHING_ROWS | FXA_CAUSAL,
     NOTHING_GRADS | FXA_CAUSAL, 0, 0},
    {"no rows, long keys", NOTHING_MOST, NOTHING_MOST, NOTHING_MOST, 0, NOTHING_MOST, 0, FXA_D_V_ZERO,
     NOTHING_ROWS | FXA_WINDOW, NOTHING_GRADS | FXA_WINDOW, 0, 0},
    {"no rows, heads that share keys", 2, NOTHING_MOST, 1, 0, 7, 4, 3, NOTHING_ROWS, NOTHING_GRADS, 0, 0},
    {"no keys", NOTHING_MOST, NOTHING_HEADS, 1, 7, 0, 0, FXA_D_V_ZERO, FXA_BOTTOM_RIGHT, NOTHING_GRADS, 0, 0},
    {"an empty batch", 0, NOTHING_MOST, NOTHING_MOST, 7, 5, 4, 3, NOTHING_ROWS, NOTHING_GRADS, 0, 0},
    {"no heads", NOTHING_MOST, 0, 0, 7, 5, 4, 3, NOTHING_ROWS, NOTHING_GRADS, 0, 0},
    {"pages without keys", NOTHING_MOST, NOTHING_HEADS, 1, 0, 0, 4, 3, NOTHING_ROWS | FXA_PAGED, 0, 0, 16},
    {"pages without features", NOTHING_MOST, NOTHING_HEADS, 1, 0, 0, 0, FXA_D_V_ZERO, NOTHING_ROWS | FXA_PAGED,
     NOTHING_GRADS | FXA_PAGED, NOTHING_MOST, NOTHING_MOST},
};
enum { NOTHING_CASES = sizeof nothing_cases / sizeof *nothing_cases };

static fxa_problem nothing_problem(const nothing_case *c, fxa_pass pass, const fxa_program *program,
                                   const fxa_capture *captures) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.pass = (uint32_t)pass, p.flags = pass ? c->backward : c->forward, p.dropout_p = p.flags & FXA_DROPOUT ? 0.5 : 0;
    p.b = c->b, p.hq = c->hq, p.hkv = c->hkv, p.sq = c->sq, p.sk = c->sk, p.d_qk = c->d, p.d_v = c->dv;
    p.n_pages = c->n_pages, p.page_size = (uint32_t)c->page_size, p.window_left = p.window_right = 3;
    p.program = program;
    p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
    return p;
}

/* Sets strides of 0: LSE and O of a backward pass have rows if sq is not 0. */
static void nothing_expand(fxa_problem *p) {
    fxa_operand *const inputs[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->lse};
    for (int i = 0; i < 6; i++) inputs[i]->layout = FXA_LAYOUT_STRIDED;
    if (!p->pass) p->o.layout = p->lse.layout = FXA_LAYOUT_BHSD;
}

static void nothing_run(fxa_context *ctx, const char *engine, const nothing_case *c, fxa_pass pass,
                        const fxa_program *program) {
    static double room[8], dk[64], dv[64], params[1] = {1}, dparams[1];
    fxa_capture captures[1] = {{.size = {4}, .grad = pass == FXA_BACKWARD}};
    fxa_problem p = nothing_problem(c, pass, program, captures);
    fxa_args a = FXA_ARGS_INIT;
    fxa_error err;
    float t[4] = {0}, dt[4] = {1, 1, 1, 1};
    const void *tensors[1] = {t};
    void *dtensors[1] = {dt};
    bool pairs = c->hq && c->sq && c->sk && c->b, sums = program && !pairs; /* gradients of pairs are work */
    if (!(pass ? c->backward : c->forward)) return;
    p.engine = engine, p.device = attn_device(engine);
    captures[0].grad = pass && sums, p.param_grads = pass && sums;
    nothing_expand(&p);
    for (int i = FXA_SLOT_Q; i <= FXA_SLOT_V; i++) a.slot[i] = room;
    if (pass) a.slot[FXA_SLOT_O] = a.slot[FXA_SLOT_LSE] = a.slot[FXA_SLOT_DO] = room;
    if (p.flags & FXA_GRAD_K) a.slot[FXA_SLOT_DK] = dk;
    if (p.flags & FXA_GRAD_V) a.slot[FXA_SLOT_DV] = dv;
    if (p.flags & FXA_PAGED) a.slot[FXA_SLOT_PAGES] = room;
    a.tensors = tensors, a.n_tensors = p.n_captures, a.params = params, a.n_params = program ? 1 : 0;
    if (captures[0].grad) a.dtensors = dtensors, a.n_dtensors = p.n_captures, a.dparams = dparams, a.n_dparams = 1;
    double start = nothing_seconds();
    fxa_status status = fxa_attention(ctx, &p, &a, &err);
    if (status != FXA_OK) T_FAIL("%s, %s of %s: %s\n", c->what, pass ? "backward" : "forward", engine, err.text);
    if (nothing_seconds() - start > NOTHING_SECONDS)
        T_FAIL("%s, %s of %s: too slow\n", c->what, pass ? "backward" : "forward", engine);
    for (int i = 0; i < 4 && captures[0].grad; i++) T_SAME(dt[i], 0);
}

TEST(nothing_to_write_takes_no_time) {
    t_ctx *ctx = attn_context(2);
    t_program *program = NULL;
    T_OK(fxa_program_parse(ctx,
                           "param c : float\ntensor t : f32[1]\nscore = c * score + t[q % 4]\n"
                           "mask = (b + h + q * k) % 3 < 2",
                           SIZE_MAX, &program, &err));
    for (size_t e = 0; engine_here(e); e++)
        for (int i = 0; i < NOTHING_CASES; i++)
            for (int pass = 0; pass < 2; pass++)
                for (int with = 0; with < 2; with++)
                    nothing_run(ctx, engine_here(e), &nothing_cases[i], (fxa_pass)pass, with ? program : NULL);
}

/* Packed sequences, all of which are empty, with many heads. */
TEST(packed_sequences_without_rows_take_no_time) {
    static const int32_t cu[5] = {0};
    t_ctx *ctx = attn_context(2);
    for (size_t e = 0; engine_here(e); e++)
        for (int pass = 0; pass < 2; pass++) {
            fxa_problem p = FXA_PROBLEM_INIT;
            fxa_args a = FXA_ARGS_INIT;
            p.pass = (uint32_t)pass, p.flags = FXA_VARLEN | (pass ? NOTHING_GRADS : NOTHING_ROWS);
            p.b = 4, p.hq = p.hkv = NOTHING_MOST, p.sq = p.sk = NOTHING_MOST, p.d_qk = 4;
            p.engine = engine_here(e), p.device = attn_device(p.engine);
            a.slot[FXA_SLOT_CU_Q] = a.slot[FXA_SLOT_CU_K] = (void *)(uintptr_t)cu;
            double start = nothing_seconds();
            T_OK(fxa_attention(ctx, &p, &a, &err));
            T_CHECK(nothing_seconds() - start < NOTHING_SECONDS);
        }
}

/* If no result needs a pair, the bounds check reads no index, and fxa_bounds_check counts none. */
TEST(indices_of_nothing_take_no_time) {
    t_ctx *ctx = attn_context(1);
    t_program *program = NULL;
    float t[4] = {0};
    double room[8] = {0};
    const void *tensors[1] = {t};
    T_OK(fxa_program_parse(ctx, "tensor t : f32[1]\nscore = score + t[b + h + q]", SIZE_MAX, &program, &err));
    for (int i = 0; i < NOTHING_CASES; i++) {
        const fxa_capture captures[1] = {{.size = {4}}};
        fxa_bounds_report reports[4];
        size_t count = 4;
        fxa_problem p = nothing_problem(&nothing_cases[i], FXA_FORWARD, program, captures);
        fxa_args a = FXA_ARGS_INIT;
        p.flags |= FXA_BOUNDS_CHECK;
        nothing_expand(&p);
        a.tensors = tensors, a.n_tensors = 1;
        for (int slot = FXA_SLOT_Q; slot <= FXA_SLOT_V; slot++) a.slot[slot] = room;
        double start = nothing_seconds();
        fxa_status status = fxa_attention(ctx, &p, &a, &err);
        if (status != FXA_OK) T_FAIL("%s: %s\n", nothing_cases[i].what, err.text);
        T_OK(fxa_bounds_check(ctx, &p, &a, reports, &count, &err));
        T_INT(count, 0);
        if (nothing_seconds() - start > NOTHING_SECONDS) T_FAIL("%s: too slow\n", nothing_cases[i].what);
    }
}

TEST(merges_without_rows_take_no_time) {
    static const int64_t sizes[][4] = {{NOTHING_MOST, NOTHING_HEADS, 0, 4},
                                       {INT64_MAX, INT64_MAX, 0, 512},
                                       {INT64_MAX, 0, INT64_MAX, INT64_MAX},
                                       {0, INT64_MAX, INT64_MAX, INT64_MAX},
                                       {NOTHING_MOST, NOTHING_HEADS, 0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fxa_merge_args a = FXA_MERGE_ARGS_INIT;
        a.b = sizes[i][0], a.h = sizes[i][1], a.s = sizes[i][2], a.d = sizes[i][3];
        fxa_operand *const sides[] = {&a.o_a, &a.o_b, &a.lse_a, &a.lse_b};
        for (int side = 0; side < 4; side++) sides[side]->dtype = FXA_F32, sides[side]->layout = FXA_LAYOUT_STRIDED;
        double start = nothing_seconds();
        T_OK(fxa_merge(&a, &err));
        T_CHECK(nothing_seconds() - start < NOTHING_SECONDS);
    }
}

T_MAIN
