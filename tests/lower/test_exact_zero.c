/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact zeros of backward programs compared with values: a node called zero is 0 wherever dscore is 0, despite NaN and
 * infinities elsewhere; derivatives are recognised as zero; the sign of a 0 is unspecified where it has no effect.
 */
#include "lower/lower_checks.h"

RIG_TEST(zero_nodes_are_zero_where_dscore_is) {
    int found = 0;
    for (int i = 0; i < t_scaled_up(800) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 3 == 0 ? GEN_BPROP : i % 3 == 1 ? GEN_SMOOTH : 0), *d = NULL;
        T_REQUIRE(p);
        if (p->kind == FXA_PROGRAM_SCORE) T_OK(fxa_program_derivative(p, &d, &err));
        const fxa_program *w = d ? d : p;
        bool *zero = calloc((size_t)w->n_nodes, sizeof *zero);
        T_REQUIRE(zero);
        fxa__lower_exact_zero(w, zero);
        zero_program(r, w, zero);
        for (int32_t k = 0; k < w->n_nodes; k++) found += zero[k];
        /* "Zero wins": every output of a derivative is such a node. */
        for (int32_t k = 0; d && k < d->n_outputs; k++)
            if (!zero[d->outputs[k].value]) {
                T_FAIL("output %d of a derivative is not known to keep 0\n", k);
                rig_show(d);
                break;
            }
        free(zero);
    }
    T_CHECK(found > 1000);
}

/* Evaluates all nodes after `from` from the values before it. Loads keep their values. */
static void zero_eval_behind(const fxa_program *p, int32_t from, fxa__val *vals) {
    for (int32_t i = from + 1; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        fxa__val x[3];
        if (n->n_args == 0 || n->op == FXA_OP_LOAD || n->op == FXA_OP_CONST) continue;
        for (int k = 0; k < n->n_args; k++) x[k] = vals[n->arg[k]];
        vals[i] = fxa__op_eval(n->op, n->type, p->nodes[n->arg[n->op == FXA_OP_SELECT]].type, x);
    }
}

/* Returns true if every output is the same number with the node set to 0 and to -0. */
static bool zero_has_no_sign(const fxa_program *p, int32_t node, fxa__val *vals, fxa__val *other) {
    vals[node].f = 0;
    zero_eval_behind(p, node, vals);
    memcpy(other, vals, (size_t)p->n_nodes * sizeof *vals);
    other[node].f = -0.0;
    zero_eval_behind(p, node, other);
    for (int32_t k = 0; k < p->n_outputs; k++) {
        int32_t out = p->outputs[k].value;
        bool is_float = p->nodes[out].type == FXA_FLOAT;
        if (is_float ? vals[out].f != other[out].f && !(isnan(vals[out].f) && isnan(other[out].f))
                     : vals[out].i != other[out].i)
            return false;
    }
    return true;
}

RIG_TEST(signs_of_zeroes_that_nobody_sees) {
    int unseen = 0, seen = 0;
    for (int i = 0; i < t_scaled_up(1500) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 3 == 0 ? GEN_BPROP : i % 3 == 1 ? GEN_SMOOTH : 0);
        T_REQUIRE(p);
        rig_fill(r, p);
        fxa__env env = rig_env(r, true);
        bool *signs = calloc((size_t)p->n_nodes, sizeof *signs);
        fxa__val *vals = rig_eval(p, &env), *kept = rig_eval(p, &env), *other = rig_eval(p, &env);
        T_REQUIRE(signs && vals && kept && other);
        fxa__lower_zero_signs(p, signs);
        for (int32_t k = 0; k < p->n_nodes && !t_failures; k++) {
            if (p->nodes[k].type != FXA_FLOAT) continue;
            memcpy(vals, kept, (size_t)p->n_nodes * sizeof *vals);
            bool same = zero_has_no_sign(p, k, vals, other);
            unseen += !signs[k], seen += !same;
            if (same || signs[k]) continue;
            T_FAIL("somebody sees the sign of node %d\n", (int)k);
            rig_show(p);
        }
        free(signs), free(vals), free(kept), free(other);
    }
    T_CHECK(unseen > 1000 && seen > 20);
}

static const struct {
    const char *text;
    bool zero;
} zero_bprops[] = {
    {"dscore = dscore", true},
    {"dscore = -dscore * 2.5", true},
    {"dscore = 0.0 * dscore", true},
    {"dscore = mulz(dscore, score)", true},
    {"dscore = divz(dscore, score)", true},
    {"dscore = dscore * dscore", true},
    {"dscore = score > 0 ? dscore : 0.0", true},
    {"dscore = max(dscore, abs(dscore))", true},
    {"dscore = clamp(dscore, 0, 0)", true},
    {"dscore = dscore * score", false}, /* 0 * inf */
    {"dscore = dscore * inf", false},
    {"dscore = 3e38 * dscore", true},
    {"dscore = dscore * -1e39", false}, /* infinite in f32 */
    {"dscore = dscore + 1", false},
    {"dscore = score > 0 ? dscore : 1.0", false},
    {"dscore = clamp(dscore, -1, 1)", false}, /* true, but no rule shows it */
    {"dscore = score", false},
};

RIG_TEST(bprops_that_keep_zero) {
    for (size_t i = 0; i < sizeof zero_bprops / sizeof *zero_bprops; i++) {
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        fxa_text text = {.data = zero_bprops[i].text, .size = strlen(zero_bprops[i].text)};
        t_program *p = NULL;
        bool zero[32];
        config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
        T_OK(fxa__program_parse(r->host, &config, &p, &err));
        T_REQUIRE(p && p->n_nodes <= 32);
        fxa__lower_exact_zero(p, zero);
        if (zero[fxa__program_output(p, FXA__OUT_DSCORE)] != zero_bprops[i].zero)
            T_FAIL("%s: %s\n", zero_bprops[i].text, zero_bprops[i].zero ? "not found" : "no zero");
    }
}

T_MAIN
