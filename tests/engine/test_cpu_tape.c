/* SPDX-License-Identifier: Apache-2.0
 *
 * Tapes of random programs, their derivatives and backward programs, on every instruction set of this machine, bit by bit
 * against an evaluator of one pair at a time.
 */
#include "t.h"

#include "support/attn_case.h"
#include "support/gen.h"
#include "support/tape_case.h"

static fxa_context *tape_ctx(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    return ctx;
}

/* Calls with each set that this machine can run. */
static const fxa__cpu_kernels *tape_set(size_t *i, size_t real_size) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    while ((k = fxa__cpu_set((*i)++, real_size, &usable)))
        if (usable) return k;
    return NULL;
}

static void tape_show(const fxa_program *p) {
    char text[4096];
    size_t needed;
    fxa_error err;
    if (fxa_program_print(p, text, sizeof text, &needed, &err) == FXA_OK) printf("%s\n", text);
}

static bool tape_try(fxa_context *ctx, const fxa__cpu_kernels *kernels, fxa_program *p, uint32_t flags, bool wild, uint64_t *rng) {
    tape_case c;
    tape_case_draw(&c, kernels, p, wild, rng);
    bool ok = tape_case_check(&c, fxa__context_host(ctx), flags, rng);
    if (!ok) {
        tape_show(p);
        T_FAIL("%s\n", c.why);
    }
    tape_case_free(&c);
    return ok;
}

/* Programs of every kind by the generator's flags, on every set. */
static void tape_random(unsigned gen_flags, bool derive, bool wild, int rounds) {
    fxa_context *ctx = tape_ctx();
    uint64_t rng = t_seed() + gen_flags * 977 + derive;
    bool ok = true;
    for (int round = 0; ok && round < t_scaled(rounds); round++) {
        uint8_t tape[160];
        for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)attn_next(&rng);
        fxa_program *p = gen_program(ctx, tape, (size_t)attn_int(&rng, 8, sizeof tape), gen_flags), *d = NULL;
        fxa_error err;
        T_REQUIRE(p);
        if (derive) T_OK(fxa_program_derivative(p, &d, &err));
        fxa_program *use = derive ? d : p;
        uint32_t flags = !derive ? (round % 4 ? FXA__TAPE_MASK : 0) : round % 4 ? FXA__TAPE_GRADS : FXA__TAPE_NO_DSCORE;
        for (int wide = 0; ok && wide < 2; wide++) {
            const fxa__cpu_kernels *k;
            for (size_t i = 0; ok && (k = tape_set(&i, wide ? 8 : 4));) ok = tape_try(ctx, k, use, flags, wild, &rng);
        }
        fxa_program_destroy(d);
        fxa_program_destroy(p);
    }
    fxa_context_destroy(ctx);
}

TEST(any_program_as_its_pairs) { tape_random(0, false, true, 150); }
TEST(any_program_without_special_constants) { tape_random(GEN_NO_SPECIAL, false, false, 100); }
TEST(affine_masks_as_ranges_of_columns) { tape_random(GEN_AFFINE_MASK, false, false, 150); }
TEST(backward_programs) { tape_random(GEN_BPROP, false, true, 80); }
TEST(derivatives_of_smooth_programs_with_sums) { tape_random(GEN_SMOOTH, true, false, 80); }
TEST(derivatives_of_any_program) { tape_random(GEN_NO_SPECIAL, true, true, 80); }

T_MAIN
