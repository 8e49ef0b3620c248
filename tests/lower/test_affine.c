/* SPDX-License-Identifier: Apache-2.0
 *
 * Affine forms of ints compared with values: congruent everywhere, equal where bounds exclude wrapping, and bounds
 * attained.
 */
#include "lower/lower_checks.h"

RIG_TEST(forms_are_congruent_to_values) {
    static const unsigned flags[] = {0, GEN_NO_SPECIAL, GEN_AFFINE_MASK};
    int without_rest = 0;
    for (int i = 0; i < t_scaled_up(1500) && !t_failures; i++) {
        t_program *p = rig_program(r, flags[i % 3]);
        T_REQUIRE(p);
        rig_fill(r, p);
        affine_program(r, p, &without_rest);
    }
    T_CHECK(without_rest > 10000);
}

/* Returns a box of a few values per axis; every point is evaluated. */
static fxa_tile_bounds affine_box(t_rng *rng) {
    fxa_tile_bounds box = {{0}, {0}};
    for (int i = FXA_INPUT_B; i < FXA_INPUT_COUNT; i++) {
        bool far = t_int(rng, 0, 3) == 0, wide = i == FXA_INPUT_Q || i == FXA_INPUT_K;
        int64_t lo = far ? t_int(rng, INT32_MIN, INT32_MAX - 4) : t_int(rng, -3, 40);
        box.lo[i] = (int32_t)lo;
        box.hi[i] = (int32_t)(lo + (wide ? t_int(rng, 0, 4) : 0));
    }
    return box;
}

static void affine_bounds(rig *r, const fxa_program *p, const fxa__linear *forms, int *proven) {
    fxa_tile_bounds box = affine_box(&r->rng);
    fxa__env env = rig_env(r, false);
    int64_t lo, hi;
    for (int32_t i = 0; i < p->n_nodes && !t_failures; i++) {
        if (p->nodes[i].type != FXA_INT || !fxa__linear_bounds(&forms[i], &box, &lo, &hi)) continue;
        int64_t least = INT64_MAX, most = INT64_MIN;
        for (int j = 0; j < FXA_INPUT_COUNT; j++) env.coord[j] = box.lo[j];
        for (int32_t q = box.lo[FXA_INPUT_Q]; q <= box.hi[FXA_INPUT_Q]; q++)
            for (int32_t k = box.lo[FXA_INPUT_K]; k <= box.hi[FXA_INPUT_K]; k++) {
                env.coord[FXA_INPUT_Q] = q, env.coord[FXA_INPUT_K] = k;
                fxa__val *vals = rig_eval(p, &env);
                T_REQUIRE(vals);
                if (vals[i].i < least) least = vals[i].i;
                if (vals[i].i > most) most = vals[i].i;
                free(vals);
            }
        ++*proven;
        if (least != lo || most != hi) {
            T_FAIL("node %d: %" PRId64 "..%" PRId64 ", not %" PRId64 "..%" PRId64 "\n", i, lo, hi, least, most);
            rig_show(p);
        }
    }
}

RIG_TEST(bounds_are_attained_and_wrap_nowhere) {
    int proven = 0;
    for (int i = 0; i < t_scaled_up(500) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 2 ? GEN_AFFINE_MASK : 0);
        T_REQUIRE(p);
        fxa__linear *forms = calloc((size_t)p->n_nodes, sizeof *forms);
        T_REQUIRE(forms);
        rig_fill(r, p);
        fxa__lower_affine(p, forms);
        for (int round = 0; round < 3; round++) affine_bounds(r, p, forms, &proven);
        free(forms);
    }
    T_CHECK(proven > 1000);
}

static const struct {
    const char *index;
    int along_key, along_row;
} affine_lines[] = {
    {"k", 1, 0},
    {"q", 0, 1},
    {"q - k", -1, 1},
    {"k + n", 1, 0},
    {"k + d[q]", 1, 0},
    {"d[k] - q", 0, -1},
    {"2 * k - k", 1, 0},
    {"~k", -1, 0},
    {"k + d[k]", 0, 0},
    {"2 * k", 0, 0},
    {"k // 2", 0, 0},
    {"k * n", 0, 0},
    {"k + q * n", 1, 0},
    {"(q << 1) - q", 0, 1},
    {"k + (n << 31)", 1, 0},
    {"(k << 3) - 7 * k", 1, 0},
    {"abs(k)", 0, 0},
};

RIG_TEST(lines_along_keys_and_rows) {
    for (size_t i = 0; i < sizeof affine_lines / sizeof *affine_lines; i++) {
        char text[200];
        fxa__linear forms[64];
        (void)snprintf(text, sizeof text, "param n : int\ntensor d : i32[1]\ntensor t : f32[1]\nscore = t[%s]",
                       affine_lines[i].index);
        t_program *p = rig_parse(r, text);
        T_REQUIRE(p && p->n_nodes <= 64);
        fxa__lower_affine(p, forms);
        const fxa__linear *f = &forms[p->nodes[fxa__program_output(p, FXA__OUT_SCORE)].arg[0]];
        if (fxa__lower_key_sign(f) != affine_lines[i].along_key || fxa__lower_row_sign(f) != affine_lines[i].along_row)
            T_FAIL("%s: %d along k, %d along q\n", affine_lines[i].index, fxa__lower_key_sign(f),
                   fxa__lower_row_sign(f));
    }
}

T_MAIN
