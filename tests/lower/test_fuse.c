/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused value-and-gradient programs: every output has the bits of its separate program, and shared nodes occur once.
 */
#include "lower/lower_checks.h"

RIG_TEST(outputs_are_those_of_separate_programs) {
    for (int i = 0; i < t_scaled(1500) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 3 == 0 ? GEN_SMOOTH : i % 3 == 1 ? GEN_NO_SPECIAL : 0), *d = NULL;
        t_program *joint = NULL;
        T_REQUIRE(p);
        T_OK(fxa_program_derivative(p, &d, &err));
        T_OK(fxa__lower_fuse(r->host, p, d, true, &joint, &err));
        T_CHECK(joint->n_nodes <= p->n_nodes + d->n_nodes);
        T_INT(joint->n_params, p->n_params);
        T_INT(joint->n_tensors, p->n_tensors);
        rig_fill(r, p);
        for (int round = 0; round < 10; round++) joint_check(r, p, d, joint);
    }
}

static int joint_count(const fxa_program *p, uint32_t op) {
    int n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) n += p->nodes[i].op == op;
    return n;
}

static const char joint_softcap[] = "param cap : float\ntensor slope : f32[1]\n"
                                    "score = cap * tanh((score + slope[h] * (q - k)) / cap)\nmask = k <= q";

RIG_TEST(a_soft_cap_has_one_tanh) {
    t_program *p = NULL, *d = NULL, *joint = NULL, *bprop = NULL;
    char text[1024];
    size_t n;
    T_REQUIRE((p = rig_parse(r, joint_softcap)) != NULL);
    T_OK(fxa_program_derivative(p, &d, &err));
    T_OK(fxa__lower_fuse(r->host, p, d, true, &joint, &err));
    T_INT(joint_count(joint, FXA_OP_TANH), 1);
    T_INT(joint->outputs[0].kind, FXA__OUT_SCORE);
    T_INT(joint->outputs[1].kind, FXA__OUT_MASK);
    T_INT(joint->outputs[2].kind, FXA__OUT_DSCORE);
    T_INT(joint->outputs[3].kind, FXA__OUT_DPARAM);
    T_INT(joint->outputs[4].kind, FXA__OUT_DLOAD);
    T_OK(fxa_program_print(joint, text, sizeof text, &n, &err));
    T_HAS(text, "tanh(");
    T_HAS(text, "grad cap += ");
    T_HAS(text, "\nscore = ");
    /* A bprop replaces the derivative by the score. */
    T_OK(fxa__lower_fuse(r->host, p, d, false, &bprop, &err));
    const fxa__node *dscore = &bprop->nodes[fxa__program_output(bprop, FXA__OUT_DSCORE)];
    T_CHECK(dscore->op == FXA_OP_INPUT && dscore->imm == FXA_INPUT_DSCORE);
    T_INT(bprop->n_outputs, joint->n_outputs);
    /* The program created again has the same hash, and is not a derivative. */
    t_program *again = NULL;
    T_OK(fxa__lower_fuse(r->host, p, d, true, &again, &err));
    T_CHECK(memcmp(again->hash, joint->hash, sizeof joint->hash) == 0);
    T_CHECK(memcmp(again->hash, d->hash, sizeof d->hash) != 0);
}

/* Users cannot create that kind. */
RIG_TEST(the_kind_is_the_library_s_own) {
    fxa_builder *b = NULL;
    T_STATUS(fxa_builder_create(r->ctx, FXA__PROGRAM_FUSED, &b, &err), FXA_E_ARGUMENT);
    T_CHECK(b == NULL);
    T_HAS(err.text, "program kind 3 is none");
}

T_MAIN
