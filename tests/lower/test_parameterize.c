/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameterized programs: results keep their bits, and programs that differ in constants only become equal.
 */
#include "lower/lower_checks.h"

RIG_TEST(results_keep_their_bits) {
    int hidden = 0;
    for (int i = 0; i < t_scaled_up(3000) && !t_failures; i++) {
        static const unsigned flags[] = {GEN_SMOOTH, 0, GEN_NO_SPECIAL, GEN_BPROP};
        t_program *p = rig_program(r, flags[i % 4]), *d = NULL, *joint = NULL;
        fxa__parameterized lifted;
        T_REQUIRE(p);
        if (i % 4 != 3) T_OK(fxa_program_derivative(p, &d, &err));
        if (i % 8 < 3) T_OK(fxa__lower_fuse(r->host, p, d, true, &joint, &err));
        const fxa_program *w = joint ? joint : d ? d : p;
        rig_fill(r, w);
        T_OK(fxa__lower_parameterize(r->host, w, &lifted, &err));
        T_INT(lifted.program->kind, w->kind);
        T_INT(lifted.program->n_params, w->n_params + lifted.n_hidden);
        hidden += lifted.n_hidden;
        for (int round = 0; round < 8; round++) lift_check(r, w, &lifted);
        fxa_program_destroy(lifted.program);
    }
    T_CHECK(hidden > 300);
}

/* %g is a constant; all of them give one program with this many hidden params. */
static const struct {
    const char *text;
    int numbers, hidden;
} lift_texts[] = {
    {"score = score / %g", 1, 1},
    {"score = %g * tanh(score * %g)", 2, 2},
    {"score = tanh(score * %g) + sin(score + %g) * %g", 3, 3},
    {"score = max(%g * exp(score), score * %g - float(q) * %g)", 3, 3},
    {"tensor t : f32[1]\nparam c00 : float\nscore = c00 * t[int(float(k) * %g)] + %g", 2, 2},
    {"param t : float\ntensor c00 : f32[1]\nscore = t * c00[int(float(k) * %g)] + %g", 2, 2},
    {"score = score * %g\nmask = float(q - k) < %g", 2, 2},
    {"score = %g * score * score ** 3.0 + 2.0 * abs(score)", 1, 1},
};

RIG_TEST(programs_that_differ_in_numbers_are_one) {
    for (size_t i = 0; i < sizeof lift_texts / sizeof *lift_texts; i++) {
        uint8_t first[16] = {0};
        for (int round = 0; round < 100; round++) {
            char text[300];
            double x[3];
            fxa__parameterized lifted;
            for (int k = 0; k < 3; k++) x[k] = t_real(&r->rng, 3.5, 9);
            (void)snprintf(text, sizeof text, lift_texts[i].text, x[0], x[1], x[2]);
            t_program *p = rig_parse(r, text);
            T_REQUIRE(p);
            T_OK(fxa__lower_parameterize(r->host, p, &lifted, &err));
            T_INT(lifted.n_hidden, lift_texts[i].hidden);
            if (round == 0) memcpy(first, lifted.program->hash, sizeof first);
            if (memcmp(first, lifted.program->hash, sizeof first) != 0) {
                T_FAIL("%s: another program\n", text);
                rig_show(lifted.program);
                round = 100;
            }
            rig_fill(r, p);
            lift_check(r, p, &lifted);
            fxa_program_destroy(lifted.program);
        }
    }
}

static const struct {
    const char *score;
    int hidden;
} lift_kept[] = {
    {"0 * score", 0},
    {"2 * score", 0},
    {"-score / 2", 0},
    {"score * 0.5", 0},
    {"score - 1", 0},
    {"score ** 1.7", 0},
    {"score * 0.7", 1},
    {"score > 0 ? score : -inf", 0},
    {"score * 0.7 + 0.7 * k", 1},
    {"score ** 1.7 * 1.7", 0},
    {"-0.5 * score", 1},
    {"score * 1e-40", 1},
};

RIG_TEST(simple_numbers_and_exponents_stay) {
    for (size_t i = 0; i < sizeof lift_kept / sizeof *lift_kept; i++) {
        char text[100];
        fxa__parameterized lifted;
        (void)snprintf(text, sizeof text, "score = %s", lift_kept[i].score);
        t_program *p = rig_parse(r, text);
        T_REQUIRE(p);
        T_OK(fxa__lower_parameterize(r->host, p, &lifted, &err));
        if (lifted.n_hidden != lift_kept[i].hidden)
            T_FAIL("%s: %d hidden params, not %d\n", text, lifted.n_hidden, lift_kept[i].hidden);
        fxa_program_destroy(lifted.program);
    }
}

/* More constants than params; names in use; names of every length in use. */
RIG_TEST(limits) {
    static char text[20000];
    for (int names = 0; names < 2; names++) {
        size_t at = 0;
        for (int i = 0; names && i < 61; i++) {
            char name[64] = "";
            memset(name, '_', (size_t)i);
            (void)snprintf(name + i, sizeof name - (size_t)i, "c00");
            at += (size_t)snprintf(text + at, sizeof text - at, "param %s : float\n", name);
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "score = score");
        for (int i = 0; i < 90; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, " + sin(score * %d.25)", i + 3);
        fxa__parameterized lifted;
        t_program *p = rig_parse(r, text);
        T_REQUIRE(p);
        T_OK(fxa__lower_parameterize(r->host, p, &lifted, &err));
        T_INT(lifted.n_hidden, names ? 0 : FXA_MAX_PARAMS);
        rig_fill(r, p);
        for (int round = 0; round < 10; round++) lift_check(r, p, &lifted);
        fxa_program_destroy(lifted.program);
    }
}

T_MAIN
