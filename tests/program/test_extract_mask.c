/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks in a score, as selects of -inf: which are found, and that the program's values do not change.
 */
#include "t.h"
#include "program/program.h"

#include <math.h>

typedef struct lift_case {
    const char *from, *to; /* to NULL = nothing to move */
} lift_case;

static const lift_case lift_cases[] = {
    {"score = k <= q ? score : -inf", "mask = k <= q"},
    {"score = k > q ? -inf : score * 2", "score = score * 2\nmask = !(k > q)"},
    {"score = k <= q ? (q - k < 9 ? score : -inf) : -inf", "mask = k <= q && q - k < 9"},
    {"score = k <= q ? (q % 3 == 0 ? -inf : score) : -inf\nmask = k != 5", "mask = k != 5 && k <= q && !(q % 3 == 0)"},
    {"tensor t : f32[1]\nscore = t[k] > 0 ? score + t[q] : -inf",
     "tensor t : f32[1]\nscore = score + t[q]\nmask = t[k] > 0"},
    {"score = k <= q ? 1.0 : -inf", "score = 1.0\nmask = k <= q"},
    {"score = -inf", "mask = false"},
    {"score = false ? score : -inf\nmask = k != 5", "mask = false"},
    {"score = score > 0 ? score : -inf", NULL},
    {"score = k <= q ? score : -1e30", NULL},
    {"score = k <= q ? score : inf", NULL},
    {"score = (k <= q ? score : -inf) * 2", NULL},
    {"score = k <= q ? score : 2 * score\nmask = k != 5", NULL},
    {"mask = k <= q", NULL},
    {"", NULL},
};

static fxa_program *lift_parse(fxa_context *ctx, const char *text) {
    fxa_error err;
    fxa_program *p = NULL;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    return p;
}

CONTEXT_TEST(selects_of_minus_inf_become_masks) {
    for (size_t i = 0; i < sizeof lift_cases / sizeof *lift_cases; i++) {
        fxa_program *from = lift_parse(ctx, lift_cases[i].from), *lifted = NULL, *to = NULL;
        T_OK(fxa__program_extract_masks(fxa__context_host(ctx), from, &lifted, &err));
        if (lift_cases[i].to) {
            to = lift_parse(ctx, lift_cases[i].to);
            if (memcmp(lifted->hash, to->hash, sizeof to->hash) != 0)
                T_FAIL("%s: another program\n", lift_cases[i].from);
        } else if (lifted != from)
            T_FAIL("%s: nothing was to be lifted\n", lift_cases[i].from);
        T_CHECK(lifted->n_tensors == from->n_tensors);
        fxa_program_destroy(from);
        fxa_program_destroy(lifted);
        fxa_program_destroy(to);
    }
}

/* Returns the new score of a pair, -inf if the mask excludes it. */
static double lift_eval(const fxa_program *p, const fxa__env *env) {
    fxa__val vals[64];
    fxa__program_eval(p, env, vals);
    return vals[fxa__program_output(p, FXA__OUT_MASK)].i ? vals[fxa__program_output(p, FXA__OUT_SCORE)].f : -INFINITY;
}

CONTEXT_TEST(pairs_keep_their_scores) {
    static const char text[] = "tensor t : f32[1]\n"
                               "score = t[k] > 0 ? (q % 3 == k % 2 ? -inf : score * t[q]) : -inf\nmask = k != 5";
    static const float t[] = {1, NAN, -1, INFINITY, 0.5f, 2, -INFINITY, 3};
    fxa_view view = {.data = t, .dtype = FXA_F32, .rank = 1, .size = {8}, .stride = {1}};
    static const double scores[] = {0, -0.0, 1.5, INFINITY, -INFINITY, NAN};
    t_program *from = lift_parse(ctx, text), *lifted = NULL;
    T_OK(fxa__program_extract_masks(fxa__context_host(ctx), from, &lifted, &err));
    T_CHECK(lifted != from);
    for (int32_t q = 0; q < 9; q++)
        for (int32_t k = 0; k < 9; k++)
            for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
                fxa__env env = {.score = scores[i], .tensors = &view};
                env.coord[FXA_INPUT_Q] = q, env.coord[FXA_INPUT_K] = k;
                double x = lift_eval(from, &env), y = lift_eval(lifted, &env);
                if (x != y && (x == x || y == y)) T_FAIL("q %d, k %d, score %g: %g, not %g\n", q, k, scores[i], y, x);
            }
}

T_MAIN
