/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that depend on head and key but not on the row: they are computed once for the rows of a head, in any order of
 * rows and blocks, and belong to the right head and block.
 */
#include "t.h"

#include "engine/cpu/bytecode/tape_code.h"
#include "support/fixtures/tape_try.h"

static const struct {
    const char *text;
    int shared, full; /* number of instructions of each level, fused where possible; -1: any */
} shared_cases[] = {
    {"tensor v : f32[2]\nscore = score + v[h, k]", 1, 1},
    {"tensor u : f32[3]\ntensor v : f32[3]\nscore = score + u[h, q, 0] * v[h, k, 0] + u[h, q, 1] * v[h, k, 1]", 2, 2},
    {"tensor v : f32[2]\nscore = score * exp(v[h, k] * 0.3)", 3, 1},
    {"tensor s : f32[1]\nscore = score * tanh(s[h] * float(k % 7))", -1, 1},
    {"tensor s : f32[1]\nscore = score + s[h] * float(k)", 0, 1}, /* fused into the sum, as without sharing */
    {"tensor v : f32[2]\nmask = v[h, k] < 0.5", -1, -1},
    {"tensor n : i32[2]\nscore = score + float(n[h, k % 5])", -1, 1},
    {"tensor v : f32[2]\nscore = v[h, k]", 1, 1},
    {"tensor v : f32[2]\nscore = score + v[q, k]", 0, 2}, /* the pair's own */
    {"tensor v : f32[1]\nscore = score + v[k]", 0, 1},    /* a COLUMN value */
    /* the operand that needs the head computes no value */
    {"score = sin(with_grad(float(k), float(h)))", 0, 1},
    {"tensor u : f32[1]\ntensor v : f32[1]\nscore = score + tanh(with_grad(u[k], v[h]) * 0.5)", 0, 1},
    {"tensor v : f32[2]\nmask = with_grad(v[k % 3, k], float(h)) < 0.5", 0, -1},
    {"score = score + sin(with_grad(float(h) * float(k), float(q)))", -1, 1},
};

CONTEXT_TEST(which_values_are_shared) {
    size_t set = 0;
    const fxa__cpu_kernels *k = tape_set(&set, sizeof(float));
    for (size_t i = 0; i < sizeof shared_cases / sizeof *shared_cases; i++) {
        t_program *p = NULL;
        fxa__tape *tape = NULL;
        T_OK(fxa_program_parse(ctx, shared_cases[i].text, SIZE_MAX, &p, &err));
        T_OK(fxa__tape_create(fxa__context_host(ctx), p, FXA__TAPE_MASK, k, &tape, &err));
        T_REQUIRE(tape);
        int shared = (int)tape->level[TAPE_SHARED].n_ins, full = (int)tape->level[TAPE_FULL].n_ins;
        bool wrong = shared_cases[i].shared < 0 ? shared == 0 : shared != shared_cases[i].shared;
        if (wrong || (shared_cases[i].full >= 0 && full != shared_cases[i].full))
            T_FAIL("%s: %d shared, %d per row\n", shared_cases[i].text, shared, full);
        fxa__tape_destroy(tape);
    }
}

/* Rows of tape_case have random heads. Bytecode without fused operations is compared bit by bit, sums included; fused
 * bytecode within its bound. */
CONTEXT_TEST(shared_values_are_those_of_pairs) {
    uint64_t rng = t_seed();
    for (size_t i = 0; i < sizeof shared_cases / sizeof *shared_cases; i++)
        for (int round = 0; round < t_scaled_up(12); round++) {
            t_program *p = NULL, *d = NULL;
            const fxa__cpu_kernels *k;
            T_OK(fxa_program_parse(ctx, shared_cases[i].text, SIZE_MAX, &p, &err));
            if (round % 2) T_OK(fxa_program_derivative(p, &d, &err));
            bool joined = round % 4 >= 2;
            uint32_t flags = !d ? FXA__TAPE_MASK : joined ? 0u : (uint32_t)FXA__TAPE_GRADS;
            for (size_t set = 0; (k = tape_set(&set, round % 3 ? 4 : 8));) {
                static tape_case c;
                tape_case_draw(&c, k, d ? d : p, false, &rng);
                c.tolerance = joined ? 0x1p-10 : 0;
                if (!tape_case_check(&c, fxa__context_host(ctx), flags, &rng))
                    T_FAIL("%s: %s\n", shared_cases[i].text, c.why);
                tape_case_free(&c);
            }
        }
}

enum { SHARED_HEADS = 3, SHARED_KEYS = 40, SHARED_BLOCK = 16, SHARED_ROWS = 4 };

/* Performs one step of a run: other rows, another block, another batch entry, or a row. */
static void shared_row(fxa__tape_run *run, const float *v, int32_t b, const int32_t *h, const int32_t *k, int64_t row) {
    float out[SHARED_BLOCK];
    fxa__tape_row(run, row, 0, SHARED_BLOCK, out, NULL, out);
    for (int i = 0; i < SHARED_BLOCK; i++) {
        float want = v[(b * SHARED_HEADS + h[row]) * SHARED_KEYS + k[i]];
        if (out[i] != want) {
            T_FAIL("b %d, h %d, k %d: %g, not %g\n", b, h[row], k[i], (double)out[i], (double)want);
            return;
        }
    }
}

CONTEXT_TEST(heads_rows_and_blocks_in_any_order) {
    static const char text[] = "tensor v : f32[3]\nscore = v[b, h, k]";
    static float v[2 * SHARED_HEADS * SHARED_KEYS];
    t_program *p = NULL;
    fxa__tape *tape = NULL;
    size_t set = 0, bytes = 0;
    t_rng rng = {t_seed()};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = (float)i;
    fxa_view view = {v, FXA_F32, 3, {2, SHARED_HEADS, SHARED_KEYS}, {SHARED_HEADS * SHARED_KEYS, SHARED_KEYS, 1}};
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    T_OK(fxa__tape_create(fxa__context_host(ctx), p, FXA__TAPE_MASK, tape_set(&set, 4), &tape, &err));
    T_REQUIRE(tape && fxa__tape_scratch(tape, SHARED_ROWS, SHARED_BLOCK, &bytes));
    void *scratch = aligned_alloc(FXA__CPU_PAD, (bytes + FXA__CPU_PAD - 1) / FXA__CPU_PAD * FXA__CPU_PAD);
    fxa__tape_run run = {.tape = tape, .tensors = &view, .scratch = scratch};
    run.max_rows = SHARED_ROWS, run.max_columns = SHARED_BLOCK;
    int32_t b = 0, h[SHARED_ROWS] = {0}, q[SHARED_ROWS] = {0}, k[SHARED_BLOCK];
    for (int step = 0; step < t_scaled_up(400) && !t_failures; step++) {
        int64_t what = step == 0 ? 0 : t_int(&rng, 0, 6);
        if (what == 0) {
            b = (int32_t)t_int(&rng, 0, 1);
            fxa__tape_batch(&run, b, 9, SHARED_KEYS, SHARED_HEADS);
        }
        if (what <= 1) {
            for (int i = 0; i < SHARED_ROWS; i++) h[i] = (int32_t)t_int(&rng, 0, SHARED_HEADS - 1);
            fxa__tape_rows(&run, SHARED_ROWS, h, q, 0, SHARED_ROWS);
        }
        if (what == 0 || what == 2) {
            int32_t from = (int32_t)t_int(&rng, 0, SHARED_KEYS - SHARED_BLOCK);
            for (int32_t i = 0; i < SHARED_BLOCK; i++) k[i] = from + i;
            fxa__tape_columns(&run, SHARED_BLOCK, k, 0);
        }
        shared_row(&run, v, b, h, k, t_int(&rng, 0, SHARED_ROWS - 1));
    }
    free(scratch);
    fxa__tape_destroy(tape);
}

T_MAIN
