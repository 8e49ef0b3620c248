/* SPDX-License-Identifier: Apache-2.0
 *
 * Classes of gradients against the elements that pairs really add to, of random programs; and of usual ones by name.
 */
#include "lower/lower_rig.h"

#include "lower/affine.h"
#include "lower/grad_class.h"

typedef struct grad_work {
    rig *r;
    fxa_program *d; /* a derivative */
    fxa__linear *forms;
    fxa__depend *sets;
} grad_work;

/* The derivative of p, which is destroyed. */
static bool grad_start(grad_work *w, rig *r, fxa_program *p) {
    fxa_error err;
    *w = (grad_work){.r = r};
    if (!p || fxa_program_derivative(p, &w->d, &err) != FXA_OK) return false;
    fxa_program_destroy(p);
    w->forms = calloc((size_t)w->d->n_nodes, sizeof *w->forms);
    w->sets = calloc((size_t)w->d->n_nodes, sizeof *w->sets);
    if (!w->forms || !w->sets) return false;
    fxa__lower_affine(w->d, w->forms);
    fxa__lower_depend(w->d, w->forms, w->sets);
    rig_fill(r, w->d);
    return true;
}

static void grad_end(grad_work *w) {
    fxa_program_destroy(w->d);
    free(w->forms), free(w->sets);
}

/* Whether two evaluations give two outputs the same element. */
static bool grad_meets(const fxa__output *x, const fxa__val *xs, const fxa__output *y, const fxa__val *ys) {
    for (int32_t j = 0; j < x->n_index; j++)
        if (xs[x->index[j]].i != ys[y->index[j]].i) return false;
    return true;
}

/* x and y differ in one input, or y is x moved along the diagonal (input is Q then, and moved is true). */
static void grad_one(const grad_work *w, int32_t o, int input, bool moved, const fxa__val *x, const fxa__val *y) {
    const fxa__output *out = &w->d->outputs[o];
    fxa__grad g = fxa__lower_grad(w->d, o, w->sets);
    bool meets = out->kind == FXA__OUT_DPARAM || grad_meets(out, x, out, y);
    bool wrong = moved ? g.kind == FXA__GRAD_DIAGONAL && !meets : !(g.index >> input & 1) && !meets;
    wrong = wrong || (!moved && (g.apart >> input & 1) && meets);
    if (!moved && !(g.value >> input & 1)) wrong = wrong || !rig_same(FXA_FLOAT, x[out->value], y[out->value]);
    if (!wrong) return;
    T_FAIL("output %d: not %s (%s)\n", o, fxa__lower_grad_name(g.kind), fxa__input_name((uint32_t)input));
    rig_show(w->d);
}

/* All statements of a tensor together. */
static void grad_tensor(const grad_work *w, int32_t t, int input, const fxa__val *x, const fxa__val *y) {
    uint32_t apart = fxa__lower_grad_apart(w->d, t), own;
    bool has_own = fxa__lower_grad_own(w->d, t, &own);
    for (int32_t i = 0; i < w->d->n_outputs; i++)
        for (int32_t j = 0; j < w->d->n_outputs; j++) {
            const fxa__output *a = &w->d->outputs[i], *b = &w->d->outputs[j];
            if (a->kind != FXA__OUT_DLOAD || a->slot != t || b->kind != FXA__OUT_DLOAD || b->slot != t) continue;
            T_CHECK(!has_own || i == j);
            if (!grad_meets(a, x, b, y)) continue;
            if ((apart >> input & 1) || (has_own && (own >> input & 1))) {
                T_FAIL("tensor %d: pairs that differ in %s meet\n", t, fxa__input_name((uint32_t)input));
                rig_show(w->d);
            }
        }
}

static void grad_check(const grad_work *w) {
    fxa__env env = rig_env(w->r, false), other = env;
    bool moved = t_int(&w->r->rng, 0, 3) == 0;
    int input = moved ? FXA_INPUT_Q : (int)t_int(&w->r->rng, 0, FXA_INPUT_COUNT - 1);
    int32_t by = (int32_t)t_int(&w->r->rng, 1, 5);
    if (input == FXA_INPUT_SCORE)
        other.score = rig_score(w->r);
    else if (input == FXA_INPUT_DSCORE)
        other.dscore = rig_score(w->r);
    else
        other.coord[input] += by;
    if (moved) other.coord[FXA_INPUT_K] += by;
    fxa__val *x = rig_eval(w->d, &env), *y = rig_eval(w->d, &other);
    T_REQUIRE(x && y);
    for (int32_t o = 1; o < w->d->n_outputs; o++) grad_one(w, o, input, moved, x, y);
    bool is_coord = input != FXA_INPUT_SCORE && input != FXA_INPUT_DSCORE && !moved;
    for (int32_t t = 0; is_coord && t < w->d->n_tensors; t++) grad_tensor(w, t, input, x, y);
    free(x), free(y);
}

TEST(classes_say_which_pairs_meet) {
    rig *r = calloc(1, sizeof *r);
    size_t seen[FXA__GRAD_KINDS] = {0};
    T_REQUIRE(r && rig_start(r));
    for (int i = 0; i < t_scaled_up(1500) && !t_failures; i++) {
        grad_work w;
        T_REQUIRE(grad_start(&w, r, rig_program(r, i % 2 ? GEN_SMOOTH : 0)));
        for (int32_t o = 1; o < w.d->n_outputs; o++) seen[fxa__lower_grad(w.d, o, w.sets).kind]++;
        for (int round = 0; round < 40 && !t_failures; round++) grad_check(&w);
        grad_end(&w);
    }
    for (int i = 0; i < FXA__GRAD_DIAGONAL; i++) /* the others are rare here; the table below has them */
        if (seen[i] < 5) T_FAIL("%s was seen %zu times\n", fxa__lower_grad_name((fxa__grad_kind)i), seen[i]);
    rig_end(r);
    free(r);
}

#define B_ (1u << FXA_INPUT_B)
#define H_ (1u << FXA_INPUT_H)
#define Q_ (1u << FXA_INPUT_Q)
#define K_ (1u << FXA_INPUT_K)
static const struct {
    const char *bias; /* score = score + this */
    const char *kind; /* of each statement */
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
    {"t[h, q] * x[h, k, 0]", "row key", 0, 0}, /* apart and own are those of t */
};

TEST(usual_gradients) {
    rig *r = calloc(1, sizeof *r);
    T_REQUIRE(r && rig_start(r));
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
        if (!two) T_INT(fxa__lower_grad_apart(w.d, t), grad_cases[i].apart);
        if (!two) T_INT(fxa__lower_grad_own(w.d, t, &own) ? own : 0, grad_cases[i].own);
        for (int round = 0; round < 100; round++) grad_check(&w);
        grad_end(&w);
    }
    rig_end(r);
    free(r);
}

T_MAIN
