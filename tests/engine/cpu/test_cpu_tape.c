/* SPDX-License-Identifier: Apache-2.0
 *
 * Row bytecode of random programs, their derivatives and backward programs, in every instruction set of this machine,
 * compared bit by bit with an evaluator of single pairs; and queries about the bytecode. Rare features are in
 * test_cpu_tape_cases.c.
 */
#include "support/fixtures/attn_case.h"
#include "support/fixtures/gen.h"
#include "support/fixtures/tape_try.h"

/* Tests programs of every kind by the generator's flags, on every kernel set. */
static void tape_random(unsigned gen_flags, bool derive, bool wild, int rounds) {
    t_ctx *ctx = t_context();
    uint64_t rng = t_seed() + gen_flags * 977 + derive;
    bool ok = true;
    for (int round = 0; ok && round < t_scaled(rounds); round++) {
        uint8_t tape[160];
        for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)attn_next(&rng);
        t_program *p = gen_program(ctx, tape, (size_t)attn_int(&rng, 8, sizeof tape), gen_flags), *d = NULL;
        fxa_error err;
        T_REQUIRE(p);
        if (derive) T_OK(fxa_program_derivative(p, &d, &err));
        fxa_program *use = derive ? d : p;
        uint32_t flags = FXA__TAPE_MASK;
        if (derive) flags = FXA__TAPE_GRADS;
        if (round % 4 == 0) flags = derive ? (uint32_t)FXA__TAPE_NO_DSCORE : 0u;
        for (int wide = 0; ok && wide < 2; wide++) {
            const fxa__cpu_kernels *k;
            for (size_t i = 0; ok && (k = tape_set(&i, wide ? 8 : 4));)
                ok = tape_try(ctx, k, use, flags, wild, 0, &rng);
        }
    }
}

TEST(any_program_as_its_pairs) { tape_random(0, false, true, 150); }
TEST(any_program_without_special_constants) { tape_random(GEN_NO_SPECIAL, false, false, 100); }
TEST(affine_masks_as_ranges_of_columns) { tape_random(GEN_AFFINE_MASK, false, false, 150); }
TEST(backward_programs) { tape_random(GEN_BPROP, false, true, 80); }
TEST(derivatives_of_smooth_programs_with_sums) { tape_random(GEN_SMOOTH, true, false, 80); }
TEST(derivatives_of_any_program) { tape_random(GEN_NO_SPECIAL, true, true, 80); }

/* ---- The object -------------------------------------------------------------------------------------------------- */

CONTEXT_TEST(identity_and_queries) {
    fxa__host *host = fxa__context_host(ctx);
    static const struct {
        const char *text;
        uint32_t flags;
        bool derive, identity;
    } cases[] = {
        {"score = score", FXA__TAPE_MASK, false, true},
        {"mask = true", FXA__TAPE_MASK, false, true},
        {"mask = k <= q", 0, false, true},
        {"mask = k <= q", FXA__TAPE_MASK, false, false},
        {"mask = false", FXA__TAPE_MASK, false, false},
        {"score = score * 2.0", 0, false, false},
        {"mask = k <= q", FXA__TAPE_GRADS, true, true},
        {"param a : float\nscore = score + a", 0, true, true},
        {"param a : float\nscore = score + a", FXA__TAPE_GRADS, true, false},
        {"param a : float\nscore = score + a", FXA__TAPE_GRADS | FXA__TAPE_NO_DSCORE, true, false},
        {"score = score * 2.0", FXA__TAPE_GRADS, true, false},
    };
    size_t s = 0, bytes = 0;
    const fxa__cpu_kernels *k = tape_set(&s, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t_program *p = NULL, *d = NULL;
        fxa__tape *tape = NULL;
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &p, &err));
        if (cases[i].derive) T_OK(fxa_program_derivative(p, &d, &err));
        T_OK(fxa__tape_create(host, d ? d : p, cases[i].flags, k, &tape, &err));
        T_REQUIRE(tape);
        T_INT(fxa__tape_is_identity(tape), cases[i].identity);
        T_CHECK(fxa__tape_bytes(tape) > 0);
        T_CHECK(fxa__tape_scratch(tape, 16, 256, &bytes) && bytes % FXA__CPU_PAD == 0);
        size_t bytes_of_tile = bytes;
        T_CHECK(!fxa__tape_scratch(tape, 16, INT64_MAX, &bytes) && !fxa__tape_scratch(tape, INT64_MAX / 8, 16, &bytes));
        fxa__carver carver = fxa__carver_make(NULL);
        (void)fxa__tape_carve(&carver, tape, 16, 256);
        T_CHECK(!carver.failed && carver.used >= bytes_of_tile && carver.used <= bytes_of_tile + FXA__CARVE_ALIGN);
        (void)fxa__tape_carve(&carver, tape, 16, INT64_MAX);
        T_CHECK(carver.failed);
        fxa__tape_destroy(tape);
    }
    fxa__tape_destroy(NULL);
}

/* Lists grow by half, so with programs of every length each allocation is the one that fails. */
TEST(out_of_memory_in_programs_of_every_length) {
    size_t s = 0;
    const fxa__cpu_kernels *k = tape_set(&s, 4);
    for (int n = 0; n < 48; n++) {
        fail_alloc f = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&f);
        fxa_program *p = NULL;
        char text[4096], *at = text;
        T_REQUIRE(ctx);
        at += sprintf(at, "tensor t : f32[2]\nparam c : float\n");
        at += sprintf(at,
                      "score = c * tanh(score / c) - t[h, 3] * float(k - q) + t[h, max(-k, h) + 3] + t[q // 2 - k, h]");
        for (int i = 0; i < n; i++) at += sprintf(at, " + t[%d, q]", i);
        at += sprintf(at, "\nmask = k <= q && k %% 3 != 1 && h < 3 && (q & 3) != (k & 3) || abs(k - 9) < q");
        T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
        T_CHECK(tape_allocations(&f, ctx, p, FXA__TAPE_MASK, k) > 3);
        T_CHECK(tape_allocations(&f, ctx, p, FXA__TAPE_MASK_ALONE, k) > 3);
        fxa_program_destroy(p);
        fxa_context_destroy(ctx);
        T_INT(f.mistakes, 0);
    }
}

TEST(out_of_memory_at_every_allocation) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    fxa_program *p = NULL;
    size_t s = 0;
    const fxa__cpu_kernels *k = tape_set(&s, 4);
    T_REQUIRE(ctx);
    T_OK(fxa_program_parse(
        ctx,
        "tensor t : f32[2]\nparam c : float\nscore = c * tanh(score / c) + t[h, clamp(q - k, -3, 3)]\n"
        "mask = k <= q && k % 3 != 1 && h < 3",
        SIZE_MAX, &p, &err));
    T_CHECK(tape_allocations(&f, ctx, p, FXA__TAPE_MASK, k) > 3);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(f.mistakes, 0);
}

T_MAIN
