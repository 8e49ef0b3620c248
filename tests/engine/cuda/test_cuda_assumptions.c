/* SPDX-License-Identifier: Apache-2.0
 *
 * Assumptions that the cuda engine's generated text may make about sizes, indices and factors; user-written backward
 * programs; masks that read the score.
 */
#include "cuda_choice_fixture.h"

/* ---- Promises ---------------------------------------------------------------------------------------------------- */

/* Checks if the scale may be part of the unit of exp2 (plain), if loads are packed operands (words), and which tensor
 * is loaded together with tiles (dense). */
TEST(promises_to_the_text) {
    static const struct {
        const char *text;
        int64_t last; /* size of the last axis of the first tensor */
        bool plain, words;
        int32_t dense;
    } cases[] = {
        {"score = score", 0, true, true, -1},
        {"score = 2.5 * score", 0, true, true, -1},
        {"score = -2.5 * score", 0, false, true, -1},
        {"score = score * -1", 0, false, true, -1},
        {"param x : float\nscore = score + x", 0, true, true, -1},
        {"param x : float\nscore = score * x", 0, false, true, -1},
        {"param x : float\nscore = x * tanh(score / x)", 0, false, true, -1},
        {"param x : float\nscore = score / exp(x)", 0, false, true, -1},
        {"param w : int\nmask = q - k < w", 0, true, true, -1},
        {"tensor t : i32[1]\nmask = t[q] == t[k]", 512, true, true, -1},
        {"tensor t : i32[1]\nmask = t[q] == t[k]", 400, true, false, -1},
        {"tensor t : i32[1]\nmask = t[q + 1] == 0", 8, true, true, -1},
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 512, true, true, 0},
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 500, true, true, -1}, /* rows of 1000 bytes */
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 496, true, false, -1},
        {"tensor t : f16[2]\nscore = score + t[q, k]", 512, true, true, -1},
        {"tensor t : bf16[2]\nscore = score + t[k, q]", 512, true, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, FXA_FORWARD, cases[i].text);
        if (c.p.n_captures) c.captures[0].size[fxa_program_tensor(c.program, 0).rank - 1] = cases[i].last;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        if (out.finite_factors != cases[i].plain || out.operands_fit != cases[i].words || out.dense != cases[i].dense)
            T_FAIL("%s, %lld: plain %d, words %d, dense %d\n", cases[i].text, (long long)cases[i].last,
                   out.finite_factors, out.operands_fit, (int)out.dense);
        if (cases[i].plain) T_CHECK(g.computed.factor < 0 || fxa__cuda_factor_is_positive(&g));
        if (strstr(cases[i].text, "t[k, q]"))
            T_CHECK(g.operands.dense < 0); /* the axes are not in the order of tiles */
    }
}

/* Code that is generated again for other sizes must not assume sizes that were not checked. */
TEST(indices_are_guarded_where_tensors_are_small) {
    static const char *const texts[] = {"tensor t : f32[1]\nscore = score + t[h]",
                                        "tensor t : f32[1]\nscore = -2.5 * (score * t[h])",
                                        "tensor t : f32[1]\nscore = 2.5 * (tanh(score) * t[h] / t[h])",
                                        "tensor t : f32[1]\nscore = -2.5 * (tanh(score) * t[h] / t[h])"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int64_t size = 1; size <= 4; size += 3) {
            choice_case c;
            fxa__cuda_choice out;
            T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
            choice_start(&c, FXA_FORWARD, texts[i]);
            c.captures[0].size[0] = size;
            T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
            if (size < 4 && g.bounds.min_size[0][0]) T_FAIL("%s: t has to have one for each head\n", texts[i]);
            fxa__write_bytes(&g.text, "", 1);
            T_CHECK(strstr((const char *)g.text.data, "a.tensor[0]")); /* 0 / 0 is no 1 */
        }
}

/* A user-written backward program next to the score program: params and tensors of the same name are separate. */
TEST(backward_programs_of_the_caller) {
    static const char text[] = "param x : float\ntensor t : f32[1]\nscore = x * tanh(score / x) + t[k]";
    static const char back[] = "param x : float\ntensor t : f32[1]\ndscore = x * dscore * t[k] + 0.5 * dscore";
    choice_case c;
    fxa__cuda_choice out;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
    t_program *own = NULL;
    fxa_capture t = {.size = {512}};
    T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
    choice_start(&c, FXA_BACKWARD, text);
    c.p.bprop = own, c.p.bprop_captures = &t, c.p.n_bprop_captures = 1;
    c.p.map_q.kind = FXA_MAP_TABLE; /* which nothing reads */
    T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
    T_INT(family_of(&out), FAMILY_SM80);
    T_CHECK(g.switches.user_backward && !g.switches.derivative && !out.finite_factors && g.program->n_tensors == 2);
    T_CHECK(g.source[0].kind == FXA__CUDA_FROM_CALLER && g.source[0].index == 0);
    T_CHECK(g.source[1].kind == FXA__CUDA_FROM_BPROP && g.source[1].index == 0);
    int from[2] = {0, 0};
    for (int32_t i = 0; i < g.program->n_params; i++)
        from[0] += g.params[i].source == 0, from[1] += g.params[i].source == FXA__CUDA_BPROP;
    T_CHECK(from[0] == 1 && from[1] == 1);
}

/* Tensors of a backward program have no sizes in the score program, so their indices are checked, whichever axis is
 * known. */
TEST(indices_of_backward_programs_are_guarded) {
    static const char *const texts[] = {"score = 2.0 * tanh(score)", "tensor t : f32[2]\nscore = score + t[k, h]"};
    static const char back[] = "tensor t : f32[2]\ndscore = dscore * t[k, h]";
    t_program *own = NULL;
    T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        fxa_capture t = {.size = {512, 1}};
        choice_start(&c, FXA_BACKWARD, texts[i]);
        c.p.bprop = own, c.p.bprop_captures = &t, c.p.n_bprop_captures = 1;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(g.program->n_tensors, (int)i + 1);
        T_INT(g.bounds.min_size[i][0], 0);
        T_INT(g.bounds.min_size[i][1], 0);
    }
}

/* Conditions on the score become a part of the new score; tiles are classified by the other conditions. */
TEST(masks_may_read_the_score) {
    static const char *const texts[] = {"mask = score > 0", "mask = k <= q && score > 0",
                                        "score = tanh(score)\nmask = (score > 0 && k <= q) && q - k < 9"};
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, texts[i / 2]);
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_CHECK(g.switches.value && g.switches.mask == (i > 1) && !(g.operands.mask_inputs & 1u << FXA_INPUT_SCORE));
        T_INT(family_of(&out), FAMILY_SM90);
    }
}

T_MAIN
