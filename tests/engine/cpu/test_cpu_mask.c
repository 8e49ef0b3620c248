/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as formulas over rows of bits (bytecode/formula.c, bytecode/mask.c): random bools combined in every way,
 * compared with the evaluator pair by pair, in every instruction set of this machine. Rows repeat and advance, keys are
 * evenly spaced or not and reach the ends of int32, indices are out of bounds. Skipped work is counted, not timed.
 */
#include "t.h"

#include "support/fixtures/attn_case.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/gen.h"
#include "support/fixtures/tape_try.h"

#include "base/num.h"
#include "engine/cpu/bytecode/tape_code.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Row bytecode compared with the evaluator
 * --------------------------------------------------------------------- */

/* Draws rows that equal the preceding row, advance by a little, or all advance by the same amount, so that a range may
 * cross all columns. */
static void mask_draw_rows(tape_case *c, uint64_t *rng) {
    int64_t kind = attn_int(rng, 0, 3), stride = attn_int(rng, -100, 100);
    for (int64_t r = 1; r < c->rows && kind > 0; r++) {
        c->h[r] = c->h[r - 1] + (kind < 3 && attn_int(rng, 0, 4) == 0);
        c->q[r] = fxa__wrap32((int64_t)c->q[r - 1] + (kind == 1 ? 0 : kind == 2 ? attn_int(rng, 0, 2) : stride));
    }
}

/* Evaluates rows row..row+n of the mask, in memory of exactly that size, and compares them. */
static bool mask_check_rows(tape_case *c, fxa__tape_run *run, int64_t row, int64_t n) {
    int64_t words = (c->columns + 63) / 64;
    guard bits = guard_open((size_t)(n * words) * sizeof(uint64_t)), same = guard_open((size_t)n);
    uint64_t *got = (uint64_t *)(void *)bits.data;
    const uint8_t *repeats = same.data;
    bool ok = true;
    memset(got, 0xa5, (size_t)(n * words) * sizeof *got);
    fxa__tape_mask(run, row, n, got, words, same.data);
    for (int64_t r = 0; ok && r < n; r++) {
        if (repeats[r] && r == 0) {
            snprintf(c->why, sizeof c->why, "row %d is said to repeat the one before, which was not asked for",
                     (int)row);
            ok = false;
        }
        if (repeats[r] && ok) memcpy(got + r * words, got + (r - 1) * words, (size_t)words * sizeof *got);
        for (int64_t i = 0; ok && i < 64 * words; i++) {
            bool want = false, is = got[r * words + i / 64] >> (i % 64) & 1;
            if (i < c->columns) {
                tape_case_eval(c, row + r, i);
                want = c->vals[fxa__program_output(c->program, FXA__OUT_MASK)].i;
            }
            ok = is == want;
            if (!ok)
                snprintf(c->why, sizeof c->why, "%s f%d: row %d + %d (h %d, q %d), column %d of %d (k %d): %d",
                         c->kernels->isa, (int)c->kernels->real_size * 8, (int)row, (int)r, (int)c->h[row + r],
                         (int)c->q[row + r], (int)i, (int)c->columns, i < c->columns ? (int)c->k[i] : 0, (int)is);
        }
    }
    guard_close(&bits);
    guard_close(&same);
    return ok;
}

static bool mask_check(tape_case *c, fxa__host *host, bool plain, uint64_t *rng) {
    fxa__tape *tape = NULL;
    fxa_error err = {0};
    size_t bytes = 0;
    uint32_t flags = FXA__TAPE_MASK_ALONE | (plain ? FXA__TAPE_PLAIN : 0);
    T_OK(fxa__tape_create(host, c->program, flags, c->kernels, &tape, &err));
    T_CHECK(fxa__tape_scratch(tape, c->rows, c->columns, &bytes));
    guard scratch = guard_open(bytes);
    fxa__tape_run run = {.tape = tape, .params = c->params, .tensors = c->tensors, .scratch = scratch.data};
    run.max_rows = c->rows, run.max_columns = c->columns;
    fxa__tape_batch(&run, c->b, c->q_len, c->k_len, c->heads);
    fxa__tape_rows(&run, c->rows, c->h, c->q, c->first_row, c->head_rows);
    fxa__tape_columns(&run, c->columns, c->k, c->first_key);
    bool ok = mask_check_rows(c, &run, 0, c->rows);
    for (int i = 0; ok && i < 2; i++) { /* each call is independent of earlier calls */
        int64_t row = attn_int(rng, 0, c->rows - 1);
        ok = mask_check_rows(c, &run, row, attn_int(rng, 1, c->rows - row));
    }
    guard_close(&scratch);
    fxa__tape_destroy(tape);
    return ok;
}

static bool mask_try(fxa_context *ctx, fxa_program *p, bool wild, uint64_t *rng) {
    bool ok = true;
    for (size_t size = 4; ok && size <= 8; size += 4) {
        const fxa__cpu_kernels *k;
        for (size_t i = 0; ok && (k = tape_set(&i, size));) {
            tape_case c;
            tape_case_draw(&c, k, p, wild, rng);
            mask_draw_rows(&c, rng);
            /* fused operations round differently, so floats are not fused; ints are equal either way */
            ok = mask_check(&c, fxa__context_host(ctx), wild || (attn_next(rng) & 1), rng);
            if (!ok) T_FAIL("%s\n", c.why);
            tape_case_free(&c);
        }
    }
    return ok;
}

/* ---- Random masks ------------------------------------------------------------------------------------------------ */

static const char *const mask_head = "param w : int\n"
                                     "tensor doc : i32[1]\ntensor left : i16[1]\ntensor id : i64[1]\n"
                                     "tensor blk : bool[3]\ntensor keep : bool[2]\ntensor row : bool[1]\n";

static const char *const mask_atoms[] = {
    "abs(q - k) < 12",
    "abs(k - q + 3) <= w",
    "4 < abs(k - 20)",
    "w <= abs(q + k)",
    "abs(2147483647 - k - q) < 2147483000",
    "q == k",
    "k - q != 3",
    "k == w",
    "q - 7 <= k",
    "k + 5 > q - w",
    "-k < h - 20",
    "q < 64",
    "h < 3",
    "k < 9",
    "k % 5 == 2",
    "row[k]",
    "row[q]",
    "doc[q] == doc[k]",
    "id[q] == id[k]",
    "id[q // 4] != id[k // 4]",
    "id[q * k] == id[k - q]",
    "q < left[k]",
    "k < left[q // 4]",
    "blk[h, q // 4, k // 4]",
    "blk[h - 2, k // 16, q]",
    "keep[q, k]",
    "keep[k, q - k]",
    "(q ^ k) % 3 == 0",
    "q // 8 == k // 8",
    "b == 1",
    "k < k_len - 5",
    "float(q) < float(k) * 0.5",
    "true",
};

static void mask_write(char *text, size_t room, int depth, uint64_t *rng) {
    char part[3][700];
    int64_t kind = depth == 0 ? 9 : attn_int(rng, 0, 11);
    const char *atom = mask_atoms[attn_int(rng, 0, (int64_t)(sizeof mask_atoms / sizeof *mask_atoms) - 1)];
    for (int i = 0; i < 3 && kind < 9; i++) mask_write(part[i], sizeof part[i], depth - 1, rng);
    if (kind < 3)
        snprintf(text, room, "(%.300s || %.300s)", part[0], part[1]);
    else if (kind < 6)
        snprintf(text, room, "(%.300s && %.300s)", part[0], part[1]);
    else if (kind == 6)
        snprintf(text, room, "!(%.600s)", part[0]);
    else if (kind == 7)
        snprintf(text, room, "((%.300s) ^ (%.300s))", part[0], part[1]);
    else if (kind == 8)
        snprintf(text, room, "((%.200s) ? (%.200s) : (%.200s))", part[0], part[1], part[2]);
    else
        snprintf(text, room, "%s", atom);
}

static fxa_program *mask_parse(fxa_context *ctx, const char *mask) {
    char text[4096];
    fxa_program *p = NULL;
    fxa_error err;
    snprintf(text, sizeof text, "%smask = %s\n", mask_head, mask);
    return fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) == FXA_OK ? p : NULL;
}

CONTEXT_TEST(joined_bools_as_their_pairs) {
    uint64_t rng = t_seed() + 71;
    int parsed = 0, rounds = t_scaled(400);
    bool ok = true;
    for (int round = 0; ok && round < rounds; round++) {
        char mask[2048];
        mask_write(mask, sizeof mask, (int)attn_int(&rng, 0, 4), &rng);
        t_program *p = mask_parse(ctx, mask); /* a text that was truncated does not parse */
        if (!p) continue;
        parsed++;
        ok = mask_try(ctx, p, false, &rng);
        if (!ok) T_FAIL("mask = %s\n", mask);
    }
    T_CHECK(parsed * 2 > rounds);
}

CONTEXT_TEST(masks_of_any_program_as_their_pairs) {
    uint64_t rng = t_seed() + 72;
    bool ok = true;
    for (int round = 0; ok && round < t_scaled(200); round++) {
        uint8_t tape[160];
        for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)attn_next(&rng);
        unsigned flags = round % 2 ? GEN_AFFINE_MASK : 0;
        t_program *p = gen_program(ctx, tape, (size_t)attn_int(&rng, 8, sizeof tape), flags);
        T_REQUIRE(p);
        bool scored = false; /* true: the mask reads the score and runs together with it */
        int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
        uint8_t *reads = calloc((size_t)p->n_nodes + 1, 1);
        T_REQUIRE(reads);
        if (mask >= 0) reads[mask] = 1;
        for (int32_t i = mask; i >= 0; i--) {
            scored = scored || (reads[i] && p->nodes[i].op == FXA_OP_INPUT && p->nodes[i].imm == FXA_INPUT_SCORE);
            for (int j = 0; reads[i] && j < p->nodes[i].n_args; j++) reads[p->nodes[i].arg[j]] = 1;
        }
        free(reads);
        if (mask >= 0 && !scored) ok = mask_try(ctx, p, true, &rng);
    }
}

/* ---- Leaves of a formula ----------------------------------------------------------------------------------------- */

CONTEXT_TEST(formulas_have_the_leaves_that_they_should) {
    static const struct {
        const char *mask;
        size_t ranges, tests, parts;
    } each[] = {
        {"abs(q - k) < 128 || q < 64 || k < 64 || blk[h, q // 64, k // 64]", 2, 1, 1},
        {"k <= q && q < left[k]", 1, 0, 1},
        {"h < 4 ? k <= q : abs(q - k) < w", 2, 1, 0},
        {"!(q == k) ^ row[q]", 1, 1, 0},
        {"doc[q] == doc[k] || keep[q, k]", 0, 0, 2},
        /* one value of a pair used twice: both uses form one leaf */
        {"(q * k) % 3 == 0 || (q * k) % 5 == 1", 0, 0, 1},
        {"k <= q && ((q * k) % 3 == 0 || (q * k) % 5 == 1)", 1, 0, 1},
        /* ranges of columns need no bits of their own */
        {"q - k < 9 && k - q < 9 && doc[q] == doc[k]", 2, 0, 1},
    };
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        t_program *p = mask_parse(ctx, each[i].mask);
        fxa__tape *tape = NULL;
        size_t set = 0;
        T_REQUIRE(p);
        T_OK(fxa__tape_create(fxa__context_host(ctx), p, FXA__TAPE_MASK_ALONE, tape_set(&set, 4), &tape, &err));
        if (tape->n_ranges != each[i].ranges || tape->n_tests != each[i].tests || tape->n_parts != each[i].parts)
            T_FAIL("%s: %zu ranges, %zu tests, %zu parts\n", each[i].mask, tape->n_ranges, tape->n_tests,
                   tape->n_parts);
        fxa__tape_destroy(tape);
    }
}

/* Rows whose range advances by a constant form one stretch, which mask_repeats compares only at its ends; a jump ends a
 * stretch. */
CONTEXT_TEST(rows_that_move_evenly_are_one_stretch) {
    enum { ROWS = 9, JUMP = 5 };
    uint64_t rng = t_seed() + 75;
    t_program *p = mask_parse(ctx, "k <= q");
    size_t set = 0;
    T_REQUIRE(p);
    const fxa__cpu_kernels *kernels = tape_set(&set, 4);
    for (int uneven = 0; uneven < 2; uneven++) {
        tape_case c;
        fxa__tape *tape = NULL;
        size_t bytes = 0;
        int32_t h[ROWS] = {0}, q[ROWS];
        for (int r = 0; r < ROWS; r++) q[r] = r + (uneven && r >= JUMP);
        tape_case_draw(&c, kernels, p, false, &rng);
        T_OK(fxa__tape_create(fxa__context_host(ctx), p, FXA__TAPE_MASK_ALONE, kernels, &tape, &err));
        T_CHECK(fxa__tape_scratch(tape, ROWS, c.columns, &bytes));
        guard scratch = guard_open(bytes);
        fxa__tape_run run = {.tape = tape, .params = c.params, .tensors = c.tensors, .scratch = scratch.data};
        run.max_rows = ROWS, run.max_columns = c.columns;
        fxa__tape_batch(&run, c.b, c.q_len, c.k_len, c.heads);
        fxa__tape_rows(&run, ROWS, h, q, 0, ROWS);
        const fxa__tape_state *s = run.scratch;
        for (int r = 0; r < ROWS; r++) {
            int64_t want = !uneven || r >= JUMP - 1 ? ROWS : JUMP;
            if (r == JUMP - 1 && uneven) want = JUMP + 1;
            T_INT(s->until[r], want);
        }
        guard_close(&scratch);
        fxa__tape_destroy(tape);
        tape_case_free(&c);
    }
}

/* Long chains, deep nesting and more bools than a formula has capacity for: what exceeds the capacity becomes a single
 * leaf, and results stay right. */
CONTEXT_TEST(masks_that_a_formula_has_no_room_for) {
    static const char *const joins[] = {"%s || %s", "(%s && %s)", "(%s) ^ (%s)", "!(%s) || (%s)", "%s ? k < q : %s"};
    uint64_t rng = t_seed() + 73;
    for (int kind = 0; kind < 10; kind++) {
        char mask[3000] = "k <= q", next[3000], atom[64];
        bool right = kind >= 5;
        for (int i = 0; i < 40; i++) {
            snprintf(atom, sizeof atom, i % 4 == 0 ? "(q * %d + k) %% 7 == 1" : "q - k < %d", i - 20);
            snprintf(next, sizeof next, joins[kind % 5], right ? atom : mask, right ? mask : atom);
            if (strlen(next) > 2000) break;
            snprintf(mask, sizeof mask, "(%.2900s)", next);
        }
        t_program *p = mask_parse(ctx, mask);
        T_REQUIRE(p);
        if (!mask_try(ctx, p, false, &rng)) T_FAIL("mask = %s\n", mask);
    }
}

TEST(out_of_memory_at_every_allocation_of_a_formula) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    size_t set = 0;
    T_REQUIRE(ctx);
    fxa_program *p = mask_parse(ctx, "abs(q - k) < 9 || row[q] || doc[q] == doc[k] || blk[h, q // 4, k // 4]");
    T_REQUIRE(p);
    const fxa__cpu_kernels *kernels = tape_set(&set, 4);
    T_CHECK(tape_allocations(&f, ctx, p, FXA__TAPE_MASK_ALONE, kernels) > 3);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(f.mistakes, 0);
}

T_MAIN
