/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties that the cpu engine derives from a mask before a run: bounds of q - k, whether the bounds are the entire
 * mask, and whether range analysis of the rest is worthwhile. Only the bounds affect results; the other properties
 * affect the time.
 */
#include "t.h"
#include "engine/cpu/code.h"
#include "program/program.h"

#define OPEN INT64_MAX

static const struct band_case {
    const char *mask;
    int64_t left, right; /* bounds of q - k */
    bool exact, dark;
} band_cases[] = {
    {"k <= q", OPEN, 0, true, true},
    {"q - k < 8 && k <= q + 2", 7, 2, true, true},
    {"k + 3 < q", OPEN, -4, true, true},
    {"k <= q || k < 4", OPEN, OPEN, false, false},
    {"keep[q, k]", OPEN, OPEN, false, true},
    {"keep[q, k] && k <= q", OPEN, 0, false, true},
    {"keep[q, k] || k <= q", OPEN, OPEN, false, false},
    {"!keep[q, k] && number[b, q] < 3", OPEN, OPEN, false, true},
    {"keep[q, k] && doc[q] == doc[k]", OPEN, OPEN, false, false},
    {"doc[q] == doc[k] && k <= q", OPEN, 0, false, false},
    {"number[b, h] > k", OPEN, OPEN, false, false},
    {"weight[k] > 0.5 && k <= q", OPEN, 0, false, true},
    {"weight[h] > 0.5", OPEN, OPEN, false, false},
    {"q % 2 == k % 2 || number[q, k] == 1", OPEN, OPEN, false, false},
    {"2 * k <= q", OPEN, OPEN, false, false},
    {"-q <= -k", OPEN, 0, true, true},
    {"k <= q + q_len", OPEN, OPEN, false, false},
    {"k + b <= q", OPEN, OPEN, false, false},
    {"k + h <= q", OPEN, OPEN, false, false},
    {"k + heads <= q", OPEN, OPEN, false, false},
    {"q + q_len <= k + k_len", OPEN, OPEN, false, false}, /* shifted in the other direction */
    {"-k - k - 3 <= q", OPEN, OPEN, false, false},        /* may wrap around */
    {"k + k + k <= q", OPEN, OPEN, false, false},
    {"0 <= q - (1 - (2 - (3 - (4 - (5 - (6 - (7 - (8 - k))))))))", OPEN, 4, true, true},
    {"abs(q - k) <= 5", 5, 5, true, true},
    {"q == k + 2", 2, -2, true, true},
    {"!(k > q || keep[q, k])", OPEN, 0, false, true},
    {"q - k < number[b, h]", OPEN, OPEN, false, false}, /* a bound, but not a constant one */
};

CONTEXT_TEST(bounds_of_masks) {
    for (size_t i = 0; i < sizeof band_cases / sizeof *band_cases; i++) {
        const struct band_case *c = &band_cases[i];
        char text[256];
        t_program *p = NULL;
        fxa__cpu_band band;
        snprintf(
            text, sizeof text,
            "tensor keep : bool[2]\ntensor number : i32[2]\ntensor doc : i32[1]\ntensor weight : f32[1]\nmask = %s",
            c->mask);
        T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
        T_REQUIRE(fxa__cpu_band_find(fxa__context_host(ctx), p, &band));
        if (band.left[0] != c->left || band.right[0] != c->right || band.exact != c->exact || band.dark != c->dark)
            T_FAIL("%s: left %jd, right %jd, exact %d, dark %d\n", c->mask, (intmax_t)band.left[0],
                   (intmax_t)band.right[0], band.exact, band.dark);
    }
}

T_MAIN
