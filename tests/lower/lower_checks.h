/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of the analyses of src/lower compared with values of the program: one check per analysis, for tests of random
 * programs (this folder) and of each operation (tests/test_ops_lowered.c).
 */
#ifndef FXA_TESTS_LOWER_CHECKS_H
#define FXA_TESTS_LOWER_CHECKS_H

#include "lower_fixture.h"

#include "lower/affine.h"
#include "lower/conjunct.h"
#include "lower/depend.h"
#include "lower/grad_class.h"
#include "lower/fuse.h"
#include "lower/parameterize.h"
#include "lower/exact_zero.h"

/* ---- affine ------------------------------------------------------------------------------------------------------ */

__attribute__((unused)) static uint32_t affine_value(const fxa__linear *f, const fxa__env *env) {
    uint32_t sum = (uint32_t)f->c;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) sum += (uint32_t)f->coef[i] * (uint32_t)env->coord[i];
    return sum;
}

/* The non-affine part keeps its value when inputs change that it does not depend on. */
__attribute__((unused)) static void affine_rest(rig *r, const fxa_program *p, const fxa__linear *forms,
                                                const fxa__env *env, const fxa__val *vals) {
    fxa__env other = rig_env(r, true), moved = *env;
    int input = (int)t_int(&r->rng, FXA_INPUT_B, FXA_INPUT_COUNT - 1);
    moved.coord[input] = other.coord[input];
    fxa__val *now = rig_eval(p, &moved);
    for (int32_t i = 0; now && i < p->n_nodes; i++) {
        const fxa__linear *f = &forms[i];
        if (p->nodes[i].type != FXA_INT || !f->nonaffine || (f->nonaffine >> input & 1)) continue;
        uint32_t before = (uint32_t)vals[i].i - affine_value(f, env);
        uint32_t after = (uint32_t)now[i].i - affine_value(f, &moved);
        if (before == after) continue;
        T_FAIL("node %d: its rest changes with %s\n", i, fxa__input_name((uint32_t)input));
        rig_show(p);
        break;
    }
    free(now);
}

__attribute__((unused)) static void affine_program(rig *r, const fxa_program *p, int *without_rest) {
    fxa__linear *forms = calloc((size_t)p->n_nodes, sizeof *forms);
    T_REQUIRE(forms);
    fxa__lower_affine(p, forms);
    for (int round = 0; round < 20 && !t_failures; round++) {
        fxa__env env = rig_env(r, true);
        fxa__val *vals = rig_eval(p, &env);
        for (int32_t i = 0; vals && i < p->n_nodes; i++) {
            if (p->nodes[i].type != FXA_INT || forms[i].nonaffine) continue;
            ++*without_rest;
            if (affine_value(&forms[i], &env) == (uint32_t)vals[i].i) continue;
            T_FAIL("node %d is %d, its form %d\n", i, vals[i].i, (int32_t)affine_value(&forms[i], &env));
            rig_show(p);
            break;
        }
        if (vals) affine_rest(r, p, forms, &env, vals);
        free(vals);
    }
    free(forms);
}

/* ---- depend ------------------------------------------------------------------------------------------------------ */

typedef struct depend_work {
    rig *r;
    const fxa_program *p;
    fxa__linear *forms;
    fxa__depend *sets;
} depend_work;

/* Checks that every node whose dependences exclude the changed input keeps its value. */
__attribute__((unused)) static void depend_compare(const depend_work *w, const fxa__val *x, const fxa__val *y,
                                                   uint32_t inputs, uint64_t params, uint64_t tensors,
                                                   const char *what) {
    for (int32_t i = 0; i < w->p->n_nodes; i++) {
        const fxa__depend *d = &w->sets[i];
        if ((d->inputs & inputs) || (d->params & params) || (d->tensors & tensors)) continue;
        if (rig_same(w->p->nodes[i].type, x[i], y[i])) continue;
        T_FAIL("node %d changes with %s, which is not in its set\n", i, what);
        rig_show(w->p);
        return;
    }
}

__attribute__((unused)) static void depend_inputs(const depend_work *w) {
    for (int input = 0; input < FXA_INPUT_COUNT; input++) {
        fxa__env env = rig_env(w->r, true), other = rig_env(w->r, true), moved = env;
        if (input == FXA_INPUT_SCORE)
            moved.score = other.score;
        else if (input == FXA_INPUT_DSCORE)
            moved.dscore = other.dscore;
        else
            moved.coord[input] = other.coord[input];
        fxa__val *x = rig_eval(w->p, &env), *y = rig_eval(w->p, &moved);
        if (x && y) depend_compare(w, x, y, 1u << input, 0, 0, fxa__input_name((uint32_t)input));
        free(x), free(y);
    }
}

__attribute__((unused)) static void depend_data(const depend_work *w) {
    fxa__env env = rig_env(w->r, true);
    for (int32_t i = 0; i < w->p->n_params + w->p->n_tensors; i++) {
        int32_t t = i - w->p->n_params;
        fxa__val *x = rig_eval(w->p, &env);
        if (t < 0)
            rig_fill_param(w->r, w->p, i);
        else
            rig_fill_tensor(w->r, t);
        fxa__val *y = rig_eval(w->p, &env);
        if (x && y)
            depend_compare(w, x, y, 0, t < 0 ? UINT64_C(1) << i : 0, t < 0 ? 0 : UINT64_C(1) << t,
                           t < 0 ? w->p->params[i].name : w->p->tensors[t].name);
        free(x), free(y);
    }
}

/* Checks that moving q and k together changes no diagonal node, whatever q_row and k_row are. */
__attribute__((unused)) static int depend_diagonals(const depend_work *w) {
    fxa__env env = rig_env(w->r, false), moved;
    int found = 0;
    if (t_int(&w->r->rng, 0, 3) == 0) env.coord[FXA_INPUT_Q] = (int32_t)t_int(&w->r->rng, 0, FXA__MAX_COORDINATE - 50);
    if (t_int(&w->r->rng, 0, 3) == 0) env.coord[FXA_INPUT_K] = (int32_t)t_int(&w->r->rng, 0, FXA__MAX_COORDINATE - 50);
    int32_t by = (int32_t)t_int(&w->r->rng, 1, 50);
    moved = env;
    moved.coord[FXA_INPUT_Q] += by, moved.coord[FXA_INPUT_K] += by;
    moved.coord[FXA_INPUT_Q_ROW] = (int32_t)t_int(&w->r->rng, 0, 9);
    moved.coord[FXA_INPUT_K_ROW] = (int32_t)t_int(&w->r->rng, 0, 9);
    fxa__val *x = rig_eval(w->p, &env), *y = rig_eval(w->p, &moved);
    for (int32_t i = 0; x && y && i < w->p->n_nodes; i++) {
        found += w->sets[i].diagonal;
        if (!w->sets[i].diagonal || rig_same(w->p->nodes[i].type, x[i], y[i])) continue;
        T_FAIL("node %d is no diagonal: q %d, k %d, moved by %d\n", i, env.coord[FXA_INPUT_Q], env.coord[FXA_INPUT_K],
               by);
        rig_show(w->p);
        break;
    }
    free(x), free(y);
    return found;
}

__attribute__((unused)) static bool depend_start(depend_work *w, rig *r, const fxa_program *p) {
    *w = (depend_work){.r = r, .p = p};
    w->forms = calloc((size_t)p->n_nodes, sizeof *w->forms);
    w->sets = calloc((size_t)p->n_nodes, sizeof *w->sets);
    if (!w->forms || !w->sets) return false;
    fxa__lower_affine(p, w->forms);
    fxa__lower_depend(p, w->forms, w->sets);
    return true;
}

__attribute__((unused)) static void depend_end(depend_work *w) { free(w->forms), free(w->sets); }

/* ---- zero -------------------------------------------------------------------------------------------------------- */

/* Puts NaN and infinities into params and float tensors. */
__attribute__((unused)) static void zero_spoil(rig *r, const fxa_program *p) {
    static const double odd[] = {INFINITY, -INFINITY, NAN, 0, 1e300};
    for (int32_t i = 0; i < p->n_params; i++)
        if (p->params[i].type == FXA_FLOAT && t_int(&r->rng, 0, 1)) r->params[i] = odd[t_int(&r->rng, 0, 4)];
    for (int32_t t = 0; t < p->n_tensors; t++)
        for (int64_t i = 0; p->tensors[t].type == FXA_FLOAT && i < RIG_CELLS; i++)
            if (t_int(&r->rng, 0, 2) == 0)
                fxa__store_f64(r->cells[t], (uint32_t)r->views[t].dtype, i, odd[t_int(&r->rng, 0, 3)]);
}

__attribute__((unused)) static void zero_program(rig *r, const fxa_program *p, const bool *zero) {
    for (int round = 0; round < 20 && !t_failures; round++) {
        fxa__env env = rig_env(r, true);
        rig_fill(r, p);
        if (round % 2) zero_spoil(r, p);
        env.dscore = round % 4 < 2 ? 0.0 : -0.0;
        fxa__val *vals = rig_eval(p, &env);
        for (int32_t i = 0; vals && i < p->n_nodes; i++) {
            if (!zero[i] || vals[i].f == 0) continue;
            T_FAIL("node %d is %g where dscore is 0\n", i, vals[i].f);
            rig_show(p);
            break;
        }
        free(vals);
    }
}

/* ---- grad_class -------------------------------------------------------------------------------------------------- */

typedef struct grad_work {
    rig *r;
    fxa_program *d; /* a derivative */
    fxa__linear *forms;
    fxa__depend *sets;
} grad_work;

/* Sets the derivative of p, and destroys p. */
__attribute__((unused)) static bool grad_start(grad_work *w, rig *r, fxa_program *p) {
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

__attribute__((unused)) static void grad_end(grad_work *w) {
    fxa_program_destroy(w->d);
    free(w->forms), free(w->sets);
}

/* Returns true if two evaluations give two outputs the same target element. */
__attribute__((unused)) static bool grad_meets(const fxa__output *x, const fxa__val *xs, const fxa__output *y,
                                               const fxa__val *ys) {
    for (int32_t j = 0; j < x->n_index; j++)
        if (xs[x->index[j]].i != ys[y->index[j]].i) return false;
    return true;
}

/* Checks one output: x and y differ in one input, or y is x moved along the diagonal (input is Q, moved is true). */
__attribute__((unused)) static void grad_one(const grad_work *w, int32_t o, int input, bool moved, const fxa__val *x,
                                             const fxa__val *y) {
    const fxa__output *out = &w->d->outputs[o];
    fxa__grad g = fxa__lower_grad(w->d, o, w->sets);
    bool meets = out->kind == FXA__OUT_DPARAM || grad_meets(out, x, out, y);
    bool wrong = moved ? g.kind == FXA__GRAD_DIAGONAL && !meets : !(g.index >> input & 1) && !meets;
    wrong = wrong || (!moved && (g.separators >> input & 1) && meets);
    if (!moved && !(g.value >> input & 1)) wrong = wrong || !rig_same(FXA_FLOAT, x[out->value], y[out->value]);
    if (!wrong) return;
    T_FAIL("output %d: not %s (%s)\n", o, fxa__lower_grad_name(g.kind), fxa__input_name((uint32_t)input));
    rig_show(w->d);
}

/* Checks all gradient statements of a tensor together. */
__attribute__((unused)) static void grad_tensor(const grad_work *w, int32_t t, int input, const fxa__val *x,
                                                const fxa__val *y) {
    uint32_t separators = fxa__lower_grad_separators(w->d, t), own;
    bool has_own = fxa__lower_grad_is_injective(w->d, t, &own);
    for (int32_t i = 0; i < w->d->n_outputs; i++)
        for (int32_t j = 0; j < w->d->n_outputs; j++) {
            const fxa__output *a = &w->d->outputs[i], *b = &w->d->outputs[j];
            if (a->kind != FXA__OUT_DLOAD || a->slot != t || b->kind != FXA__OUT_DLOAD || b->slot != t) continue;
            T_CHECK(!has_own || i == j);
            if (!grad_meets(a, x, b, y)) continue;
            if ((separators >> input & 1) || (has_own && (own >> input & 1))) {
                T_FAIL("tensor %d: pairs that differ in %s meet\n", t, fxa__input_name((uint32_t)input));
                rig_show(w->d);
            }
        }
}

__attribute__((unused)) static void grad_check(const grad_work *w) {
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

/* ---- conjunct ---------------------------------------------------------------------------------------------------- */

__attribute__((unused)) static int64_t conjunct_limit(const fxa__part *part, const fxa__val *vals) {
    return part->c + (part->bound >= 0 ? (int64_t)part->times_bound * vals[part->bound].i : 0);
}

/* Returns the 64-bit element of an i64 load, 0 out of bounds. */
__attribute__((unused)) static int64_t conjunct_element(const fxa_program *p, int32_t load, const fxa__env *env,
                                                        const fxa__val *vals) {
    const fxa__node *n = &p->nodes[load];
    const fxa_view *view = &env->tensors[n->imm];
    int32_t index[FXA_MAX_RANK];
    int64_t at;
    T_CHECK(n->op == FXA_OP_LOAD && view->dtype == FXA_I64);
    for (int i = 0; i < n->n_args; i++) index[i] = vals[n->arg[i]].i;
    return fxa__view_offset(view, index, &at) ? ((const int64_t *)view->data)[at] : 0;
}

__attribute__((unused)) static bool conjunct_holds(const fxa_program *p, const fxa__part *part, const fxa__env *env,
                                                   const fxa__val *vals) {
    int64_t q = env->coord[FXA_INPUT_Q], k = env->coord[FXA_INPUT_K], limit = conjunct_limit(part, vals);
    int64_t length = limit + (part->of_length ? env->coord[FXA_INPUT_K_LEN] : 0);
    if (part->aligned) q += (int64_t)env->coord[FXA_INPUT_K_LEN] - env->coord[FXA_INPUT_Q_LEN];
    switch (part->kind) {
    case FXA__PART_CAUSAL: return k <= q + limit;
    case FXA__PART_WINDOW: return q - k <= limit;
    case FXA__PART_LENGTH: return k <= length;
    case FXA__PART_PREFIX: return k <= q + part->prefix || k <= length;
    case FXA__PART_EQUAL:
        if (!part->wide) return vals[part->row].i == vals[part->key].i;
        return conjunct_element(p, part->row, env, vals) == conjunct_element(p, part->key, env, vals);
    default: return (vals[part->node].i != 0) != part->negated;
    }
}

/* Returns true if the conjuncts are valid for this pair. */
__attribute__((unused)) static bool conjunct_speaks(const fxa__conjuncts *c, const fxa__val *vals) {
    for (size_t i = 0; i < c->n; i++) {
        const fxa__part *part = &c->parts[i];
        int64_t x = part->bound >= 0 ? vals[part->bound].i : 0;
        if (part->needs_small_bound && (x < -((int64_t)1 << 30) || x > (int64_t)1 << 30)) return false;
    }
    return true;
}

/* Returns small coordinates, or ones at the end of the valid range. */
__attribute__((unused)) static fxa__env conjunct_env(rig *r) {
    fxa__env env = rig_env(r, false);
    for (int i = FXA_INPUT_B; i < FXA_INPUT_COUNT; i++)
        if (t_int(&r->rng, 0, 7) == 0) env.coord[i] = (int32_t)(FXA__MAX_COORDINATE - t_int(&r->rng, 0, 9));
    return env;
}

/* Sets some int params to arbitrary values. */
__attribute__((unused)) static void conjunct_params(rig *r, const fxa_program *p) {
    static const double far[] = {INT32_MAX, INT32_MIN, 1 << 30, -(1 << 30), (1 << 30) - 3};
    for (int32_t i = 0; i < p->n_params; i++) {
        rig_fill_param(r, p, i);
        if (p->params[i].type == FXA_INT && t_int(&r->rng, 0, 3) == 0) r->params[i] = far[t_int(&r->rng, 0, 4)];
    }
}

__attribute__((unused)) static void conjunct_check(rig *r, const fxa_program *p, const fxa__conjuncts *c, int rounds) {
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
    rig_fill(r, p);
    for (int round = 0; round < rounds; round++) {
        fxa__env env = conjunct_env(r);
        if (round % 4 == 0) conjunct_params(r, p);
        fxa__val *vals = rig_eval(p, &env);
        bool all = true;
        T_REQUIRE(vals);
        for (size_t i = 0; i < c->n; i++) all = all && conjunct_holds(p, &c->parts[i], &env, vals);
        bool wrong = conjunct_speaks(c, vals) && all != (vals[mask].i != 0);
        free(vals);
        if (!wrong) continue;
        T_FAIL("q %d, k %d, q_len %d, k_len %d: the parts say %d\n", env.coord[FXA_INPUT_Q], env.coord[FXA_INPUT_K],
               env.coord[FXA_INPUT_Q_LEN], env.coord[FXA_INPUT_K_LEN], all);
        for (size_t i = 0; i < c->n; i++) printf("%s ", fxa__lower_part_name((fxa__part_kind)c->parts[i].kind));
        rig_show(p);
        return;
    }
}

/* ---- joint, lift ------------------------------------------------------------------------------------------------- */

/* Returns true for equal bits. max and min of two zeros return the first operand, whose order depends on hashes. */
__attribute__((unused)) static bool joint_bits(uint32_t type, fxa__val x, fxa__val y) {
    return rig_same(type, x, y) || (type == FXA_FLOAT && x.f == 0 && y.f == 0);
}

/* Compares output i of x with output j of y. */
__attribute__((unused)) static bool joint_same(const fxa_program *x, int32_t i, const fxa__val *xs,
                                               const fxa_program *y, int32_t j, const fxa__val *ys) {
    const fxa__output *a = &x->outputs[i], *b = &y->outputs[j];
    if (a->kind != b->kind || a->slot != b->slot || a->n_index != b->n_index) return false;
    for (int32_t k = 0; k < a->n_index; k++)
        if (xs[a->index[k]].i != ys[b->index[k]].i) return false;
    return joint_bits(x->nodes[a->value].type, xs[a->value], ys[b->value]);
}

__attribute__((unused)) static void joint_check(rig *r, const fxa_program *p, const fxa_program *d,
                                                const fxa_program *joint) {
    fxa__env env = rig_env(r, true);
    fxa__val *ps = rig_eval(p, &env), *ds = rig_eval(d, &env), *js = rig_eval(joint, &env);
    T_REQUIRE(ps && ds && js);
    T_INT(joint->n_outputs, p->n_outputs + d->n_outputs);
    for (int32_t i = 0; i < joint->n_outputs; i++) {
        bool forward = i < p->n_outputs;
        bool same = forward ? joint_same(joint, i, js, p, i, ps) : joint_same(joint, i, js, d, i - p->n_outputs, ds);
        if (same) continue;
        T_FAIL("output %d is another\n", i);
        rig_show(joint);
        break;
    }
    free(ps), free(ds), free(js);
}

__attribute__((unused)) static void lift_check(rig *r, const fxa_program *p, const fxa__parameterized *lifted) {
    double values[FXA_MAX_PARAMS];
    fxa__env env = rig_env(r, true), with = env;
    fxa__lower_parameterized_values(lifted, r->params, values);
    with.params = values;
    fxa__val *x = rig_eval(p, &env), *y = rig_eval(lifted->program, &with);
    T_REQUIRE(x && y);
    T_INT(lifted->program->n_outputs, p->n_outputs);
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *a = &p->outputs[i], *b = NULL;
        /* gradients of one tensor may be in another order, since it depends on hashes */
        for (int32_t j = 0; j < p->n_outputs && !b; j++) {
            const fxa__output *c = &lifted->program->outputs[j];
            int32_t slot = c->kind == FXA__OUT_DPARAM ? lifted->from[c->slot] : c->slot;
            bool same = c->kind == a->kind && (a->kind <= FXA__OUT_DSCORE || slot == a->slot) &&
                        joint_bits(p->nodes[a->value].type, x[a->value], y[c->value]);
            for (int32_t k = 0; same && k < a->n_index; k++) same = x[a->index[k]].i == y[c->index[k]].i;
            if (same) b = c;
        }
        if (b) continue;
        T_FAIL("output %d is another\n", i);
        rig_show(p);
        rig_show(lifted->program);
        break;
    }
    free(x), free(y);
}

#endif
