/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient classes compared with the elements that pairs of random programs add to; and common cases by name.
 */
#include "lower/lower_checks.h"

RIG_TEST(classes_say_which_pairs_meet) {
    size_t seen[FXA__GRAD_KINDS] = {0};
    for (int i = 0; i < t_scaled_up(1500) && !t_failures; i++) {
        grad_work w;
        T_REQUIRE(grad_start(&w, r, rig_program(r, i % 2 ? GEN_SMOOTH : 0)));
        for (int32_t o = 1; o < w.d->n_outputs; o++) seen[fxa__lower_grad(w.d, o, w.sets).kind]++;
        for (int round = 0; round < 40 && !t_failures; round++) grad_check(&w);
        grad_end(&w);
    }
    for (int i = 0; i < FXA__GRAD_DIAGONAL; i++) /* the other classes are rare here; the table below has them */
        if (seen[i] < 5) T_FAIL("%s was seen %zu times\n", fxa__lower_grad_name((fxa__grad_kind)i), seen[i]);
}

#define B_ (1u << FXA_INPUT_B)
#define H_ (1u << FXA_INPUT_H)
#define Q_ (1u << FXA_INPUT_Q)
#define K_ (1u << FXA_INPUT_K)
static const struct {
    const char *bias; /* score = score + this */
    const char *kind; /* per statement */
    uint32_t apart, own;
} grad_cases[] = {
    {"u[0] * p", "one one", 0, 0},
    {"u[n]", "one", 0, 0},
    {"u[h] * (q - k)", "head", H_, H_},
    {"t[b, h]", "head", B_ | H_, B_ | H_},
    {"t[h, q]", "row", H_ | Q_, H_ | Q_},
    {"u[d[q]]", "row", 0, 0},
    {"u[k]", "key", K_, K_},
    {"t[h, k]", "key", H_ | K_, H_ | K_},
    {"t[q, k]", "dense", Q_ | K_, Q_ | K_},
    {"x[h, q, k]", "dense", H_ | Q_ | K_, H_ | Q_ | K_},
    {"t[q, k] + t[k, q]", "dense dense", 0, 0},
    {"x[h, q, k] + x[h, k, q]", "dense dense", H_, 0},
    {"x[k, q, k]", "dense", Q_ | K_, 0},
    {"t[h, q - k + 9]", "diagonal", H_, 0},
    {"u[clamp(k - q, -4, 4) + 4]", "diagonal", 0, 0},
    {"t[b, d[q] - d[k]]", "scatter", B_, 0},
    {"u[q + k]", "scatter", 0, 0},
    {"u[int(score)]", "scatter", 0, 0},
    {"t[h, q] * x[h, k, 0]", "row key", 0, 0}, /* separate and own: of tensor t */
};

RIG_TEST(usual_gradients) {
    for (size_t i = 0; i < sizeof grad_cases / sizeof *grad_cases; i++) {
        char text[300], kinds[64] = "";
        grad_work w;
        uint32_t own;
        (void)snprintf(text, sizeof text,
                       "param p : float\nparam n : int\ntensor d : i32[1]\ntensor t : f32[2]\ntensor u : f32[1]\n"
                       "tensor x : f32[3]\nscore = score + %s",
                       grad_cases[i].bias);
        T_REQUIRE(grad_start(&w, r, rig_parse(r, text)));
        int32_t t = -1;
        for (int32_t o = 1; o < w.d->n_outputs; o++) {
            fxa__grad g = fxa__lower_grad(w.d, o, w.sets);
            if (*kinds) strcat(kinds, " ");
            strcat(kinds, fxa__lower_grad_name(g.kind));
            if (w.d->outputs[o].kind == FXA__OUT_DLOAD) t = w.d->outputs[o].slot;
        }
        if (strcmp(kinds, grad_cases[i].kind) != 0)
            T_FAIL("%s: %s, not %s\n", grad_cases[i].bias, kinds, grad_cases[i].kind);
        bool two = strcmp(grad_cases[i].kind, "row key") == 0;
        if (!two) T_INT(fxa__lower_grad_separators(w.d, t), grad_cases[i].apart);
        if (!two) T_INT(fxa__lower_grad_is_injective(w.d, t, &own) ? own : 0, grad_cases[i].own);
        for (int round = 0; round < 100; round++) grad_check(&w);
        grad_end(&w);
    }
}

T_MAIN
