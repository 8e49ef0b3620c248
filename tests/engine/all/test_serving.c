/* SPDX-License-Identifier: Apache-2.0
 *
 * One program for an entire pass, for the first rows of a sequence, and for every step after them: rows that are
 * computed later, with start positions or aligned to the last key, equal those of one pass over the entire sequence;
 * also with dropout, and for gradients.
 */
#include "support/fixtures/attn_case.h"
#include "t.h"

enum { B = 2, H = 4, HKV = 2, S = 41, D = 8, GROUP = H / HKV };
static const double serve_tolerance = 1e-13; /* sums of at most 41 terms below 2, in another order */

/* Data of one sequence per batch entry, contiguous [B,H,S,D], in f64. Index 1 of results is for the entire pass. */
typedef struct serving {
    fxa_context *ctx;
    const char *engine;
    fxa_program *program;
    double q[B][H][S][D], k[B][HKV][S][D], v[B][HKV][S][D], dout[B][H][S][D];
    double o[2][B][H][S][D], lse[2][B][H][S];
    double dq[2][B][H][S][D], dk[2][B][HKV][S][D], dv[2][B][HKV][S][D];
} serving;
static serving the;

static fxa_operand serve_rows(int64_t heads) {
    return (fxa_operand){FXA_F64, FXA_LAYOUT_STRIDED, {heads * S * D, S * D, D, 1}};
}

/* Runs rows first..first+n-1 of every batch entry with keys 0..keys-1; `flags` select how q is determined. */
static void serve_run(fxa_pass pass, uint32_t flags, int64_t first, int64_t n, int64_t keys, const int32_t *positions,
                      int into) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    fxa_error err;
    double slope = 0.05;
    p.pass = (uint32_t)pass, p.flags = flags | FXA_DROPOUT | (pass ? 0u : (uint32_t)FXA_RETURN_LSE);
    if (pass) p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV;
    p.program = the.program, p.engine = the.engine, p.device = attn_device(the.engine), p.dropout_p = 0.3;
    p.b = B, p.hq = H, p.hkv = HKV, p.sq = n, p.sk = keys, p.d_qk = D;
    p.q = p.o = p.dout = p.dq = serve_rows(H);
    p.k = p.v = p.dk = p.dv = serve_rows(HKV);
    p.lse = (fxa_operand){0, FXA_LAYOUT_STRIDED, {H * S, S, 1, 0}};
    args.params = &slope, args.n_params = 1, args.seed = 77;
    double *const slots[] = {the.q[0][0][first],
                             the.k[0][0][0],
                             the.v[0][0][0],
                             the.o[into][0][0][first],
                             &the.lse[into][0][0][first],
                             NULL,
                             the.dout[0][0][first],
                             NULL,
                             the.dq[into][0][0][first],
                             the.dk[into][0][0][0],
                             the.dv[into][0][0][0]};
    for (int i = 0; i <= (pass ? FXA_SLOT_DV : FXA_SLOT_LSE); i++) args.slot[i] = slots[i];
    args.slot[FXA_SLOT_Q_START] = (void *)(uintptr_t)positions;
    T_OK(fxa_attention(the.ctx, &p, &args, &err));
}

static void serve_open(const char *engine, const char *text) {
    fxa_error err;
    uint64_t rng = t_seed();
    memset(&the, 0, sizeof the);
    the.engine = engine;
    T_OK(fxa_context_create(NULL, &the.ctx, &err));
    T_OK(fxa_program_parse(the.ctx, text, SIZE_MAX, &the.program, &err));
    double *const fill[] = {the.q[0][0][0], the.k[0][0][0], the.v[0][0][0], the.dout[0][0][0]};
    const size_t size[] = {sizeof the.q, sizeof the.k, sizeof the.v, sizeof the.dout};
    for (int i = 0; i < 4; i++)
        for (size_t j = 0; j < size[i] / sizeof(double); j++) fill[i][j] = attn_real(&rng, -1, 1);
    serve_run(FXA_FORWARD, 0, 0, S, S, NULL, 0);
    serve_run(FXA_BACKWARD, 0, 0, S, S, NULL, 0);
}

static void serve_close(void) {
    fxa_program_destroy(the.program);
    fxa_context_destroy(the.ctx);
}

static void serve_compare(const char *what, const double *got, const double *want, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        if (!(fabs(got[i] - want[i]) <= serve_tolerance)) {
            T_FAIL("%s, %s: element %zu is %.17g, in one pass %.17g\n", the.engine, what, i, got[i], want[i]);
            return;
        }
}

/* Runs both passes in chunks: the rows of a chunk attend to the keys up to their own, as in serving. */
static void serve_chunks(uint32_t flags, const int64_t *chunks) {
    memset(the.o[1], 0, sizeof the.o[1]);
    memset(the.dk[1], 0, sizeof the.dk[1]);
    memset(the.dv[1], 0, sizeof the.dv[1]);
    for (int64_t first = 0, i = 0; first < S; first += chunks[i], i++) {
        int32_t positions[B] = {(int32_t)first, (int32_t)first};
        const int32_t *given = flags & FXA_Q_START ? positions : NULL;
        serve_run(FXA_FORWARD, flags, first, chunks[i], first + chunks[i], given, 1);
        serve_run(FXA_BACKWARD, flags, first, chunks[i], first + chunks[i], given, 1);
    }
    serve_compare("O", the.o[1][0][0][0], the.o[0][0][0][0], sizeof the.o[0]);
    serve_compare("LSE", the.lse[1][0][0], the.lse[0][0][0], sizeof the.lse[0]);
    serve_compare("dQ", the.dq[1][0][0][0], the.dq[0][0][0][0], sizeof the.dq[0]);
    serve_compare("dK", the.dk[1][0][0][0], the.dk[0][0][0][0], sizeof the.dk[0]);
    serve_compare("dV", the.dv[1][0][0][0], the.dv[0][0][0][0], sizeof the.dv[0]);
}

/* Programs: a mask that is a band, a mask that needs range analysis, and a score that depends on q - k without a
 * mask. */
static const char *const serve_programs[] = {
    "param slope : float\nscore = score - slope * (q - k)\nmask = k <= q",
    "param slope : float\nscore = score * (1 + slope * sin(float(q * 7 + k)))\n"
    "mask = k <= q && (q - k < 9 || k % 5 == q % 3 || k == q)",
};

static void serve_flags(uint32_t flags) {
    static const int64_t chunks[][S] = {{S},
                                        {20, 20, 1},
                                        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                         1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                        {30, 3, 1, 1, 5, 1}};
    for (size_t e = 0; engine_here(e); e++)
        for (size_t i = 0; i < 2; i++) {
            serve_open(engine_here(e), serve_programs[i]);
            for (size_t j = 0; j < sizeof chunks / sizeof *chunks; j++) serve_chunks(flags, chunks[j]);
            serve_close();
        }
}

TEST(chunks_with_positions) { serve_flags(FXA_Q_START); }
TEST(chunks_aligned_to_the_last_key) { serve_flags(FXA_BOTTOM_RIGHT); }

/* Start positions also shift built-in masks. */
TEST(ready_masks_follow_positions) {
    for (size_t e = 0; engine_here(e); e++) {
        serve_open(engine_here(e), "param slope : float\nscore = score - slope * abs(q - k)");
        serve_run(FXA_FORWARD, FXA_CAUSAL, 0, S, S, NULL, 0);
        for (int32_t row = 0; row < S; row++) {
            const int32_t positions[B] = {row, row};
            serve_run(FXA_FORWARD, FXA_CAUSAL | FXA_Q_START, row, 1, S, positions, 1);
        }
        serve_compare("O", the.o[1][0][0][0], the.o[0][0][0][0], sizeof the.o[0]);
        serve_close();
    }
}

/* Each batch entry has its own start position: row 5 of the first and row 30 of the second sequence in one call. */
TEST(batch_entries_have_their_own_positions) { /* */
    for (size_t e = 0; engine_here(e); e++) {
        serve_open(engine_here(e), serve_programs[1]);
        const int32_t positions[B] = {5, 30};
        memcpy(the.q[1][0][5], the.q[1][0][30], sizeof the.q[1][0][5]);
        for (int h = 1; h < H; h++) memcpy(the.q[1][h][5], the.q[1][h][30], sizeof the.q[1][h][5]);
        serve_run(FXA_FORWARD, FXA_Q_START, 5, 1, S, positions, 1);
        for (int h = 0; h < H; h++) {
            serve_compare("the first", the.o[1][0][h][5], the.o[0][0][h][5], sizeof the.o[0][0][h][5]);
            serve_compare("the second", the.o[1][1][h][5], the.o[0][1][h][30], sizeof the.o[0][0][h][5]);
        }
        serve_close();
    }
}

/* Rows before all keys, and so far before them that q - k wraps. */
TEST(positions_below_zero) {
    for (size_t e = 0; engine_here(e); e++) {
        serve_open(engine_here(e), serve_programs[0]);
        const int32_t positions[B] = {-3, INT32_MIN};
        serve_run(FXA_FORWARD, FXA_Q_START, 0, 4, S, positions, 1);
        for (int i = 0; i < 4; i++) {
            T_CHECK(the.lse[1][0][0][i] == (i < 3 ? -INFINITY : the.lse[1][0][0][3]));
            T_CHECK(the.lse[1][1][0][i] == -INFINITY && the.o[1][1][0][i][0] == 0);
        }
        T_CHECK(the.lse[1][0][0][3] > -INFINITY);
        serve_close();
    }
}

T_MAIN
