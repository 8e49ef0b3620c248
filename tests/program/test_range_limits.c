/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis at the limits of its forms: factors whose products exceed 64 bits, sums of too many terms, too many
 * terms and bounds. Giving up may leave a result undecided, never wrong. Every combination of the parts below is
 * compared with brute force.
 */
#include "t.h"

#include "program/range.h"
#include "support/oracle/brute.h"

static const char *const inner[] = {
    "q * 2147483647",
    "q * 2147483647 * 2147483647",
    "(q * -2147483648 - 1) * 2147483647 * 2147483647",
    "q * 65537 * 65537 * 65537 * 65537 + k",
    "(q // 3) * 2147483647 * 2147483647 + 5",
    "(q % 5 - k) * 1073741825 * 1073741825 * 3",
    "abs(q - k) * 2147483647 * 2147483647",
    "q // 2 + q // 3 + q // 5 + q // 7 + k // 2 + k // 3 + k // 5 + k // 7",
    "q // 2 - k // 3 + (q + k) % 5 + (q - k) % 7 + abs(q - k) + k + h",
    "((q + 2147483647) // 2 + 2147483647) // 3 * 2147483647",
    "(-2147483648 - q) * 2147483647",
    "(q // 2147483647) * 2147483647 + q % 2147483647",
};
static const char *const outer[] = {
    "(%s)",
    "(%s) %% 7",
    "(%s) %% -8",
    "(%s) // 7",
    "(%s) // -64",
    "abs(%s)",
    "(%s) & 7",
    "(%s) & -8",
    "(%s) >> 3",
    "((%s) << 5) - 1",
    "-(%s)",
    "min(%s, 9)",
    "max(%s, k)",
    "abs((%s) // 2147483647 * 2147483647)",
    "((%s) %% 2147483647 + q) // 2",
    "(((%s) // 2) %% 3 * 2147483647 + k) // 3",
    "(q < k ? %s : 2147483647)",
};
static const char *const ends[] = {
    "%s == 3", "%s < k", "%s != q * 2147483647", "%s <= (q - k) * 2147483647 * 2147483647", "(%s) * 3 >= -2147483648",
};
enum { N_INNER = 12, N_OUTER = 17, N_ENDS = 5 };

static const struct {
    int32_t q0, q1, k0, k1;
} limit_boxes[] = {
    {0, 7, 0, 7},
    {60, 64, 0, 5},
    {3, 3, 4, 4},
    {2147483640, 2147483647, 0, 3},
    {-2147483647 - 1, -2147483642, 2147483645, 2147483647},
    {715827882, 715827884, -9, -5},
};
enum { N_BOXES = 6 };

/* Returns the number of decided boxes. */
static int check_limits(fxa_context *ctx, const char *mask) {
    char text[1100];
    t_program *p = NULL;
    fxa_error err;
    int decided = 0;
    snprintf(text, sizeof text, "mask = %s", mask);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    for (int i = 0; i < N_BOXES && p; i++) {
        fxa_tile_bounds box =
            brute_box(1, 2, limit_boxes[i].q0, limit_boxes[i].q1, limit_boxes[i].k0, limit_boxes[i].k1, 9, 9);
        fxa_tile_class got = fxa_program_classify(p, &box, NULL, NULL);
        fxa_tile_class truth = brute_class(p, &box, NULL, NULL, brute_scores, 1);
        decided += got != FXA_TILE_MIXED;
        if (got == FXA_TILE_MIXED || got == truth) continue;
        T_FAIL("%s: %s, truly %s\n", mask, brute_name(got), brute_name(truth));
        brute_show(p, &box);
    }
    return decided;
}

CONTEXT_TEST(forms_that_do_not_fit_are_never_wrong) {
    char y[512], mask[768];
    int decided = 0;
    for (int n = 0; n < N_INNER * N_OUTER * N_ENDS; n++) {
        snprintf(y, sizeof y, outer[n / N_INNER % N_OUTER], inner[n % N_INNER]);
        snprintf(mask, sizeof mask, ends[n / N_INNER / N_OUTER], y);
        decided += check_limits(ctx, mask);
    }
    T_CHECK(decided > N_INNER * N_OUTER * N_ENDS); /* at least the single pairs */
}

/* More quotients and bounds than any table of the analysis holds. */
CONTEXT_TEST(tables_that_are_full_are_never_wrong) {
    enum { KINDS = 6, SIZE = 1000 };
    char mask[KINDS][SIZE], text[SIZE + 40];
    size_t n[KINDS] = {0};
    for (int i = 0; i < 36; i++) {
        const char *join[KINDS] = {"||", "&&", "^", "^", "-", "+"};
        for (int kind = 0; kind < KINDS && i > 0; kind++)
            n[kind] += (size_t)snprintf(mask[kind] + n[kind], SIZE - n[kind], "%s", join[kind]);
        n[0] += (size_t)snprintf(mask[0] + n[0], SIZE - n[0], "q//%d+k%%%d==%d", i + 2, i + 3, i);
        n[1] += (size_t)snprintf(mask[1] + n[1], SIZE - n[1], "(q-k)%%%d!=%d+k//%d", i + 2, i, i + 3);
        n[2] += (size_t)snprintf(mask[2] + n[2], SIZE - n[2], "(q-k<%d-k*%d+q)", i, i + 2);
        n[3] += (size_t)snprintf(mask[3] + n[3], SIZE - n[3], "(q-k<%d)", 3 * i - 40); /* bounds of one row */
        n[4] += (size_t)snprintf(mask[4] + n[4], SIZE - n[4], "(q-q%%%d)", i + 2);     /* one is a sum of the other */
        n[5] += (size_t)snprintf(mask[5] + n[5], SIZE - n[5], "(q-q//%d*%d)", i + 2, i + 2);
        for (int kind = 0; kind < KINDS && i > 2; kind++) {
            snprintf(text, sizeof text, kind < 4 ? "%.999s" : "(%.999s)%%7==3&&(5*q)%%64-q%%7<11&&k+q//3<q",
                     mask[kind]);
            (void)check_limits(ctx, text);
        }
    }
}

/* 2 * (q // 8) - 2 * (k // 8) + c, with c so close to 2^61 that a bound by q - k exceeds it: that bound is dropped, and
 * the sum of the two quotients' ranges remains. */
TEST(bounds_of_quotients_at_the_end_of_61_bits) {
    const fxa__set all = fxa__set_of(0, 15), quotient = fxa__set_of(0, 1);
    fxa__atom atoms[4] = {
        {.kind = FXA__ATOM_INPUT, .id = FXA_INPUT_Q, .set = all, .support = 1u << FXA_INPUT_Q, .dense = true},
        {.kind = FXA__ATOM_INPUT, .id = FXA_INPUT_K, .set = all, .support = 1u << FXA_INPUT_K, .dense = true},
        {.kind = FXA__ATOM_DIV, .d = 8, .set = quotient, .support = 1u << FXA_INPUT_Q, .dense = true},
        {.kind = FXA__ATOM_DIV, .d = 8, .set = quotient, .support = 1u << FXA_INPUT_K, .dense = true},
    };
    for (int i = 0; i < 2; i++) atoms[2 + i].form = (fxa__affine){.n = 1, .atom = {i}, .coef = {1}};
    fxa__range r = {.atoms = atoms, .n_atoms = 4};
    for (int end = 0; end < 2; end++) {
        fxa__affine f = {.c = end ? FXA__INF - 4 : 4 - FXA__INF, .n = 2, .atom = {2, 3}, .coef = {2, -2}};
        fxa__set set;
        bool dense;
        T_CHECK(fxa__affine_range(&r, &f, &set, &dense));
        T_CHECK(fxa__set_lo(&set) == f.c - 2 && fxa__set_hi(&set) == f.c + 2 && !dense);
        f.c = end ? FXA__INF - 2 : 2 - FXA__INF; /* here not even the sum fits */
        T_CHECK(!fxa__affine_range(&r, &f, &set, &dense));
    }
}

T_MAIN
