/* SPDX-License-Identifier: Apache-2.0
 *
 * 64-bit elements compared by their 32-bit words: outputs of the lowered program, evaluated with loads of halves, equal
 * the program's; no comparison of 64-bit elements remains; other programs are unchanged.
 */
#include "lower_fixture.h"

#include "lower/i64_halves.h"

/* Returns the value of a load of one word: that half of the element in memory. */
static fxa__val words_load_value(const fxa__node *n, const fxa__env *env, const fxa__val *vals) {
    const fxa_view *view = &env->tensors[n->imm];
    int32_t index[FXA_MAX_RANK];
    int64_t at;
    fxa__val y = {.f = 0};
    for (int i = 0; i < n->n_args; i++) index[i] = vals[n->arg[i]].i;
    if (fxa__view_offset(view, index, &at))
        memcpy(&y.i, (const char *)view->data + at * 8 + (n->half - 1) * 4, sizeof y.i);
    return y;
}

/* Evaluates leaves and ordinary loads as a program of that node only. */
static fxa__val words_node_value(const fxa_program *p, int32_t i, const fxa__env *env, const fxa__val *vals) {
    const fxa__node *n = &p->nodes[i];
    fxa__val x[FXA_MAX_RANK], y = {.f = 0};
    int32_t index[FXA_MAX_RANK];
    int64_t at;
    for (int k = 0; k < n->n_args; k++) x[k] = vals[n->arg[k]];
    for (int k = 0; k < n->n_args; k++) index[k] = x[k].i;
    switch (n->op) {
    case FXA_OP_CONST:
        if (n->type == FXA_FLOAT) return (fxa__val){.f = n->f};
        y.i = n->imm;
        return y;
    case FXA_OP_PARAM:
        if (n->type == FXA_FLOAT) return (fxa__val){.f = env->params[n->imm]};
        y.i = (int32_t)env->params[n->imm];
        return y;
    case FXA_OP_INPUT:
        if (n->type == FXA_FLOAT) return (fxa__val){.f = n->imm == FXA_INPUT_SCORE ? env->score : env->dscore};
        y.i = env->coord[n->imm];
        return y;
    case FXA_OP_LOAD: {
        const fxa_view *view = &env->tensors[n->imm];
        if (!fxa__view_offset(view, index, &at)) return y;
        if (n->type == FXA_FLOAT)
            y.f = fxa__load_f64(view->data, view->dtype, at);
        else
            y.i = fxa__load_i32(view->data, view->dtype, at);
        return y;
    }
    default: return fxa__op_eval(n->op, n->type, p->nodes[n->arg[n->op == FXA_OP_SELECT]].type, x);
    }
}

static void words_check(rig *r, const fxa_program *p, const fxa_program *lowered, int rounds) {
    fxa__val *vals = calloc((size_t)lowered->n_nodes, sizeof *vals);
    T_REQUIRE(vals);
    rig_fill(r, p);
    for (int round = 0; round < rounds && !t_failures; round++) {
        fxa__env env = rig_env(r, true);
        fxa__val *want = rig_eval(p, &env);
        T_REQUIRE(want);
        for (int32_t i = 0; i < lowered->n_nodes; i++)
            vals[i] = lowered->nodes[i].half ? words_load_value(&lowered->nodes[i], &env, vals)
                                             : words_node_value(lowered, i, &env, vals);
        for (int32_t i = 0; i < p->n_outputs; i++) {
            int32_t x = p->outputs[i].value, y = lowered->outputs[i].value;
            if (!rig_same(p->nodes[x].type, want[x], vals[y])) T_FAIL("output %d\n", i);
            for (int k = 0; k < p->outputs[i].n_index; k++)
                T_INT(vals[lowered->outputs[i].index[k]].i, want[p->outputs[i].index[k]].i);
        }
        free(want);
    }
    if (t_failures) rig_show(p);
    free(vals);
}

/* Checks the form: operands first, declarations unchanged, words of i64 only. */
static void words_check_form(const fxa_program *p, const fxa_program *lowered) {
    T_CHECK(lowered->params == p->params && lowered->tensors == p->tensors && lowered->kind == p->kind);
    T_INT(lowered->n_outputs, p->n_outputs);
    for (int32_t i = 0; i < lowered->n_nodes; i++) {
        const fxa__node *n = &lowered->nodes[i];
        for (int k = 0; k < n->n_args; k++) T_CHECK(n->arg[k] < i);
        if (n->half) T_CHECK(n->op == FXA_OP_LOAD && p->tensors[n->imm].dtype == FXA_I64 && n->half <= 2);
        if (fxa__node_compares_wide(lowered, n))
            T_CHECK(lowered->nodes[n->arg[0]].half > 0 &&
                    lowered->nodes[n->arg[0]].half == lowered->nodes[n->arg[1]].half);
    }
}

RIG_TEST(lowered_programs_mean_the_same) {
    int lowered = 0;
    for (int i = 0; i < t_scaled_up(1500) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 2 ? GEN_NO_SPECIAL : 0), *d = NULL;
        T_REQUIRE(p);
        if (i % 3 == 0) T_OK(fxa_program_derivative(p, &d, &err));
        fxa__i64_halves words;
        T_CHECK(fxa__lower_i64_halves(r->host, d ? d : p, &words));
        if (words.program != (d ? d : p)) {
            lowered++;
            words_check_form(d ? d : p, words.program);
            words_check(r, d ? d : p, words.program, 20);
        }
        fxa__lower_i64_halves_free(r->host, &words);
    }
    T_CHECK(lowered >= 20);
}

/* A load that is compared twice has its words once; other loads are unchanged. */
RIG_TEST(words_are_made_once) {
    static const struct {
        const char *text;
        int words;
    } rows[] = {
        {"tensor t : i64[1]\nmask = t[q] == t[k]", 4},
        {"tensor t : i64[1]\nmask = t[q] == t[k] || t[q] != t[h]", 6},
        {"tensor t : i64[1]\nmask = t[q] == t[k] && t[t[q]] != t[k]", 6},
        {"tensor t : i64[1]\nmask = t[q] <= t[k] || t[q] == 3 || t[q] - t[k] == 0", 0},
        {"tensor t : i64[1]\ntensor u : i32[1]\nmask = t[q] == u[k] && u[q] == u[k]", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_program *p = rig_parse(r, rows[i].text);
        fxa__i64_halves words;
        int n = 0;
        T_REQUIRE(p);
        T_CHECK(fxa__lower_i64_halves(r->host, p, &words));
        for (int32_t k = 0; k < words.program->n_nodes; k++) n += words.program->nodes[k].half != 0;
        T_INT(n, rows[i].words);
        T_CHECK((words.program == p) == (rows[i].words == 0));
        fxa__lower_i64_halves_free(r->host, &words);
    }
}

T_MAIN
