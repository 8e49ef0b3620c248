/* SPDX-License-Identifier: Apache-2.0
 *
 * Many lengths with few compilations, on the stand-ins: a batch [B,S,H,D] is passed as packed rows whose maximum length
 * the caller rounds up to one of a few sizes, without enlarging any tensor. Results follow the lengths, with the same
 * bits as for the exact maximum, and code is compiled once per size and pass. docs/gpu.md describes this use.
 */
#include "cudnn_fixture.h"

#include "base/dtype.h"

#include <math.h>

enum { LENGTHS_B = 2, LENGTHS_HQ = 4, LENGTHS_HK = 2, LENGTHS_D = 16, LENGTHS_MOST = 64, LENGTHS_STEP = 16 };
enum { LENGTHS_ALL = LENGTHS_B * LENGTHS_MOST * LENGTHS_HQ * LENGTHS_D, LENGTHS_BUFFERS = 9 };

/* Slots of the buffers: Q, K, V, O, LSE, dO, dQ, dK, dV. */
static const uint8_t lengths_slots[LENGTHS_BUFFERS] = {FXA_SLOT_Q,  FXA_SLOT_K,  FXA_SLOT_V,  FXA_SLOT_O, FXA_SLOT_LSE,
                                                       FXA_SLOT_DO, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};

typedef struct lengths_batch {
    int64_t s;
    int32_t cu[LENGTHS_B + 1];
    _Alignas(16) double memory[LENGTHS_BUFFERS][LENGTHS_ALL]; /* room for elements of any dtype */
} lengths_batch;

static void lengths_draw(lengths_batch *x, int64_t s, t_rng *rng) {
    x->s = s;
    for (int i = 0; i <= LENGTHS_B; i++) x->cu[i] = (int32_t)(i * s);
    for (int i = 0; i < LENGTHS_BUFFERS; i++)
        for (int j = 0; j < LENGTHS_ALL; j++) fxa__store_f64(x->memory[i], FXA_BF16, j, t_real(rng, -1, 1));
}

/* Returns the problem of a maximum length, exact or rounded up. wide: LSE is [H,T] in f64, else in cuDNN's layout. */
static fxa_problem lengths_problem(const lengths_batch *x, const fxa_program *program, fxa_pass pass, int64_t size,
                                   bool wide) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_operand *rows[] = {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i]->layout = FXA_LAYOUT_BSHD;
    p.b = LENGTHS_B, p.hq = LENGTHS_HQ, p.hkv = LENGTHS_HK, p.sq = p.sk = size, p.d_qk = LENGTHS_D;
    p.total_q = p.total_k = LENGTHS_B * x->s;
    p.q.dtype = FXA_BF16, p.program = program, p.pass = (uint32_t)pass, p.alignment = 16;
    p.lse.dtype = wide ? FXA_F64 : FXA_F32, p.lse.layout = wide ? FXA_LAYOUT_BHSD : FXA_LAYOUT_BSHD;
    p.flags = FXA_VARLEN | (pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE);
    return p;
}

static void lengths_run(fxa_context *ctx, lengths_batch *x, fxa_problem p, const char *engine) {
    fxa_args args = FXA_ARGS_INIT;
    fxa_error err;
    for (int i = 0; i < LENGTHS_BUFFERS; i++)
        if (p.pass == FXA_BACKWARD || i < 5) args.slot[lengths_slots[i]] = x->memory[i];
    args.slot[FXA_SLOT_CU_Q] = args.slot[FXA_SLOT_CU_K] = x->cu;
    p.engine = engine, p.device = strcmp(engine, "cudnn") == 0 ? FXA_CUDA : FXA_HOST;
    T_OK(fxa_attention(ctx, &p, &args, &err));
}

/* Compares the rows of results between 0 and the length, of one engine with those of another. */
static void lengths_compare(const lengths_batch *x, const lengths_batch *want, fxa_pass pass, bool wide, double most) {
    for (int i = pass ? 6 : 3; i < (pass ? 9 : 5); i++) {
        bool row = i == 4, keys = i > 6;
        int64_t n = LENGTHS_B * x->s * (keys ? LENGTHS_HK : LENGTHS_HQ) * (row ? 1 : LENGTHS_D);
        uint32_t dtype = !row ? FXA_BF16 : wide ? FXA_F64 : FXA_F32;
        double worst = 0;
        for (int64_t j = 0; j < n; j++)
            worst = fmax(worst, fabs(fxa__load_f64(x->memory[i], dtype, j) - fxa__load_f64(want->memory[i], dtype, j)));
        if (!(worst <= most)) T_FAIL("length %d, pass %d, result %d is off by %g\n", (int)x->s, (int)pass, i, worst);
    }
}

/* Tolerance: P has a rounding error of 2^-9, and so has dS, which is summed over up to 64 keys and two heads. */
#define LENGTHS_FAR 0.08

/* Runs one length forward and backward, rounded up and exact, and compares both with the reference. */
static void lengths_try(fxa_context *const ctx[3], const fxa_program *program, int64_t size, bool wide,
                        lengths_batch *x) {
    static lengths_batch want, same;
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        want = same = *x;
        lengths_run(ctx[1], &want, lengths_problem(x, program, pass, x->s, wide), "ref");
        lengths_run(ctx[2], &same, lengths_problem(x, program, pass, x->s, wide), "cudnn");
        lengths_run(ctx[0], x, lengths_problem(x, program, pass, size, wide), "cudnn");
        lengths_compare(x, &want, pass, wide, LENGTHS_FAR);
        lengths_compare(x, &same, pass, wide, 0);
    }
}

TEST(a_hundred_lengths_are_four_builds) {
    NEEDS_STANDIN;
    static const char text[] = "score = score - 0.05 * abs(q - k)\nmask = k <= q && q - k < k_len - 3";
    static lengths_batch x;
    t_rng rng = {t_seed()};
    for (int wide = 0; wide < 2; wide++) {
        fxa_context *const ctx[3] = {t_context(), t_context(), t_context()};
        fxa_program *program = NULL;
        fxa_cache_stats stats;
        bool seen[LENGTHS_MOST / LENGTHS_STEP] = {false};
        uint64_t sizes = 0;
        T_OK(fxa_program_parse(ctx[0], text, SIZE_MAX, &program, &err));
        for (int n = 0; n < t_scaled(50); n++) {
            int64_t s = t_int(&rng, 4, LENGTHS_MOST), size = (s + LENGTHS_STEP - 1) / LENGTHS_STEP * LENGTHS_STEP;
            lengths_draw(&x, s, &rng);
            sizes += !seen[size / LENGTHS_STEP - 1], seen[size / LENGTHS_STEP - 1] = true;
            lengths_try(ctx, program, size, wide, &x);
        }
        fxa_cache_get_stats(ctx[0], &stats);
        T_INT(stats.builds, 2 * sizes); /* a pass each */
        T_CHECK(sizes <= 4);
        fxa_program_destroy(program);
        for (int i = 0; i < 3; i++) fxa_context_destroy(ctx[i]);
        standin_check_end();
    }
}

T_MAIN
