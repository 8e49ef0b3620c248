/* SPDX-License-Identifier: Apache-2.0
 *
 * Dependences of nodes compared with values: changing an input outside of the set changes no bit of the node.
 */
#include "lower/lower_checks.h"

enum { DEPEND_ROUNDS = 12 };

RIG_TEST(nothing_outside_of_its_set_changes_a_node) {
    static const unsigned flags[] = {0, GEN_NO_SPECIAL, GEN_SMOOTH, GEN_AFFINE_MASK, GEN_BPROP};
    int diagonals = 0;
    for (int i = 0; i < t_scaled_up(600) && !t_failures; i++) {
        t_program *p = rig_program(r, flags[i % 5]), *d = NULL;
        T_REQUIRE(p);
        if (p->kind == FXA_PROGRAM_SCORE && i % 2) T_OK(fxa_program_derivative(p, &d, &err));
        depend_work w;
        T_REQUIRE(depend_start(&w, r, d ? d : p));
        rig_fill(r, w.p);
        for (int round = 0; round < DEPEND_ROUNDS && !t_failures; round++) {
            depend_inputs(&w);
            depend_data(&w);
            diagonals += depend_diagonals(&w);
        }
        depend_end(&w);
    }
    T_CHECK(diagonals > 100);
}

/* Returns the inputs below a node; sets must not be larger. */
static void depend_gather(const fxa_program *p, int32_t node, fxa__depend *out) {
    const fxa__node *n = &p->nodes[node];
    if (n->op == FXA_OP_INPUT) out->inputs |= 1u << n->imm;
    if (n->op == FXA_OP_PARAM) out->params |= UINT64_C(1) << n->imm;
    if (n->op == FXA_OP_LOAD) out->tensors |= UINT64_C(1) << n->imm;
    for (int i = 0; i < fxa__node_operands(n); i++) depend_gather(p, n->arg[i], out);
}

RIG_TEST(sets_hold_what_a_node_is_made_of) {
    for (int i = 0; i < t_scaled(60); i++) {
        uint8_t tape[48];
        for (size_t k = 0; k < sizeof tape; k++) tape[k] = (uint8_t)t_next(&r->rng);
        t_program *p = gen_program(r->ctx, tape, sizeof tape, 0);
        depend_work w;
        T_REQUIRE(p && depend_start(&w, r, p));
        for (int32_t k = 0; k < p->n_nodes; k++) {
            fxa__depend d = {0};
            depend_gather(p, k, &d);
            if (d.inputs != w.sets[k].inputs || d.params != w.sets[k].params || d.tensors != w.sets[k].tensors)
                T_FAIL("node %d: another set\n", k);
        }
        depend_end(&w);
    }
}

static const struct {
    const char *score; /* score = score + this */
    fxa__rate rate;
} depend_rates[] = {
    {"2.5", FXA__RATE_CONST},
    {"p", FXA__RATE_RUN},
    {"t[0, 1]", FXA__RATE_RUN},
    {"t[0, n]", FXA__RATE_RUN},
    {"t[b, 0]", FXA__RATE_BATCH},
    {"float(k_len - q_len)", FXA__RATE_BATCH},
    {"float(heads)", FXA__RATE_BATCH},
    {"t[b, h]", FXA__RATE_HEAD},
    {"t[b, q]", FXA__RATE_ROW},
    {"t[h, q] * p", FXA__RATE_ROW},
    {"t[b, k]", FXA__RATE_KEY},
    {"t[h, k]", FXA__RATE_HEAD_KEY},
    {"t[h, q - k]", FXA__RATE_DIAGONAL},
    {"t[h, clamp(k - q, -9, 9) + 9]", FXA__RATE_DIAGONAL},
    {"p * abs(q - k)", FXA__RATE_DIAGONAL},
    {"t[0, (q + 5 - k) // 8]", FXA__RATE_DIAGONAL},
    {"(2 * q + 1 < 2 * k ? p : 0.5)", FXA__RATE_DIAGONAL},
    {"(q + n == k + n ? p : 0.5)", FXA__RATE_DIAGONAL},
    {"(q + n < k + n ? p : 0.5)", FXA__RATE_PAIR}, /* n may make one side wrap */
    {"with_grad(t[b, k], t[h, q])", FXA__RATE_KEY},
    {"with_grad(p, t[q, k])", FXA__RATE_RUN},
    {"(3 * q < 3 * k ? p : 0.5)", FXA__RATE_PAIR}, /* 3 * 2^30 wraps */
    {"t[q, k]", FXA__RATE_PAIR},
    {"t[h, q + k]", FXA__RATE_PAIR},
    {"t[h, q // 2 - k // 2]", FXA__RATE_PAIR},
    {"t[h, int(score)]", FXA__RATE_SCORE},
};

RIG_TEST(rates_of_usual_terms) {
    for (size_t i = 0; i < sizeof depend_rates / sizeof *depend_rates; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "param p : float\nparam n : int\ntensor t : f32[2]\nscore = score * (%s)",
                       depend_rates[i].score);
        t_program *p = rig_parse(r, text);
        depend_work w;
        T_REQUIRE(p && depend_start(&w, r, p));
        const fxa__node *product = &p->nodes[fxa__program_output(p, FXA__OUT_SCORE)];
        T_INT(product->op, FXA_OP_MUL);
        fxa__rate rate = fxa__lower_rate(&w.sets[product->arg[1]]);
        if (rate != depend_rates[i].rate)
            T_FAIL("%s: %s, not %s\n", depend_rates[i].score, fxa__lower_rate_name(rate),
                   fxa__lower_rate_name(depend_rates[i].rate));
        depend_end(&w);
    }
}

T_MAIN
