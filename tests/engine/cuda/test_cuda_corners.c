/* SPDX-License-Identifier: Apache-2.0
 *
 * Rare programs in the host part of the cuda engine: many shared parts, mask operands that are not ints, backward
 * programs with their own tensors. Needs neither a device nor NVRTC.
 */
#include "../all/cuda_families.h"
#include "engine/cuda/cuda.h"
#include "problem/problem_private.h"
#include "support/fixtures/own_context.h"

#include <math.h>

static const fxa__cuda_self corner_hopper = {.arch = 90, .processors = 132};

static fxa_problem corner_problem(fxa_pass pass, const fxa_program *program) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.pass = (uint32_t)pass, p.b = 2, p.hq = 4, p.hkv = 2, p.sq = 300, p.sk = 500, p.d_qk = 64;
    p.q.dtype = FXA_BF16, p.alignment = 16, p.device = FXA_CUDA;
    p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE;
    p.program = (fxa_program *)(uintptr_t)program;
    return p;
}

/* Chooses the kernels of a problem; the text of its program ends with a zero byte. */
static bool corner_choose(const fxa_problem *given, fxa__cuda_choice *out, fxa__cuda_program *g) {
    fxa_error err = {.status = FXA_OK};
    fxa__problem *p = NULL;
    fxa_status status = fxa__problem_create(fxa__context_host(ctx), given, &p, &err);
    *g = (fxa__cuda_program){.program = NULL};
    if (status == FXA_OK) status = fxa__cuda_choose(&corner_hopper, p, out, g, &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    if (status == FXA_OK) fxa__write_bytes(&g->text, "", 1);
    if (p) fxa__problem_release(p);
    return status == FXA_OK;
}

static bool corner_has(const fxa__cuda_program *g, const char *part) {
    return strstr((const char *)g->text.data, part) != NULL;
}

/* Tensors of a backward program are checked like those of the score program, but have other sizes. */
TEST(indices_of_backward_programs_are_guarded) {
    static const char back[] = "tensor t : f32[2]\ndscore = dscore * t[q, 3]";
    t_program *own = NULL;
    fxa_capture t = {.size = {512, 2}};
    fxa__cuda_choice out;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
    T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
    fxa_problem p = corner_problem(FXA_BACKWARD, NULL);
    p.bprop = own, p.bprop_captures = &t, p.n_bprop_captures = 1;
    T_REQUIRE(corner_choose(&p, &out, &g));
    T_INT(g.program->n_tensors, 1);
    for (int d = 0; d < FXA_MAX_RANK; d++) T_INT(g.bounds.min_size[0][d], 0);
}

/* Backward tiles are small if Q or V is wide. */
TEST(tiles_of_wide_operands) {
    static const int64_t sizes[][3] = {{128, 128, 128}, {192, 128, 64}, {128, 192, 64}, {256, 256, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        fxa_problem p = corner_problem(FXA_BACKWARD, NULL);
        p.d_qk = sizes[i][0], p.d_v = sizes[i][1];
        T_REQUIRE(corner_choose(&p, &out, &g));
        T_INT(family_of(&out), FAMILY_SM90);
        T_INT(fxa__cuda_tile_shape(&out, FXA__CUDA_BACKWARD).launch.k_rows, sizes[i][2]);
    }
}

/* A param with a name that marks params of a backward program is an ordinary param if there is no backward program. */
TEST(params_may_have_any_name) {
    static const char text[] = "param zzzy_own_03 : float\nparam scale : float\nscore = score + zzzy_own_03 * scale";
    for (int pass = 0; pass < 2; pass++) {
        t_program *program = NULL;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        int own = 0;
        T_OK(own_parse(FXA_PROGRAM_SCORE, text, strlen(text), &program, &err));
        fxa_problem p = corner_problem((fxa_pass)pass, program);
        T_REQUIRE(corner_choose(&p, &out, &g));
        for (int32_t i = 0; i < g.program->n_params; i++) own += g.params[i].source >= 0;
        T_INT(own, 2);
    }
}

/* Gradients of captured tensors come from the derivative; the backward program affects only dQ and dK. */
TEST(gradients_beside_backward_programs) {
    static const char text[] = "tensor t : f32[1]\nscore = score + t[q - k + 500]", back[] = "dscore = 0.5 * dscore";
    for (int i = 0; i < 2; i++) {
        t_program *program = NULL, *own = NULL;
        fxa_capture t = {.size = {1000}, .grad = 1};
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        T_OK(own_parse(FXA_PROGRAM_SCORE, text, strlen(text), &program, &err));
        T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
        fxa_problem p = corner_problem(FXA_BACKWARD, program);
        p.captures = &t, p.n_captures = 1, p.bprop = i ? own : NULL;
        T_REQUIRE(corner_choose(&p, &out, &g));
        T_CHECK(g.operands.diagonal >= 0 && g.switches.grad_diagonal == !i && g.switches.grad_scatter == i);
    }
}

/* A derivative of 1 does not imply that gradients of captured tensors do not read the score; kernels provide the score
 * for them only next to a derivative. */
TEST(gradients_that_read_the_score) {
    static const struct {
        const char *text;
        bool reads;
    } rows[] = {{"tensor t : f32[1]\nscore = score + t[h] * with_grad(score, 0.0)", true},
                {"tensor t : f32[1]\nscore = score + (score > 0.1 ? t[h] : 0.0)", true},
                {"tensor t : f32[1]\nscore = score + t[int(score)]", true},
                {"tensor t : f32[1]\nscore = score + t[h]", false},
                {"tensor t : f32[1]\nscore = score + (q > k ? t[k] : 0.0)", false}};
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        t_program *program = NULL;
        fxa_capture t = {.size = {512}, .grad = i % 2 == 0};
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        T_OK(own_parse(FXA_PROGRAM_SCORE, rows[i / 2].text, SIZE_MAX, &program, &err));
        fxa_problem p = corner_problem(FXA_BACKWARD, program);
        p.captures = &t, p.n_captures = 1;
        T_REQUIRE(corner_choose(&p, &out, &g));
        if (g.switches.derivative != (rows[i / 2].reads && t.grad))
            T_FAIL("%s: %d\n", rows[i / 2].text, g.switches.derivative);
        T_CHECK(corner_has(&g, "#define PROG_DERIVATIVE 1") == g.switches.derivative);
    }
}

/* Floats with equal bits need not be equal: NaN is not. */
TEST(documents_of_floats_have_no_shorter_mask) {
    static const char *const texts[] = {"tensor d : f32[1]\nmask = d[q] == d[k] && k <= q",
                                        "tensor d : f16[2]\nmask = d[b, q] == d[b, k] && k <= q"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        t_program *program = NULL;
        fxa_capture t = {.size = {512, 512}};
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        T_OK(own_parse(FXA_PROGRAM_SCORE, texts[i], strlen(texts[i]), &program, &err));
        fxa_problem p = corner_problem(FXA_FORWARD, program);
        p.captures = &t, p.n_captures = 1;
        T_REQUIRE(corner_choose(&p, &out, &g));
        T_CHECK(corner_has(&g, "#define PROG_OPERANDS 1") && !corner_has(&g, "PROG_UNIFORM_OPERANDS"));
    }
}

static void corner_text(const char *text, const fxa_capture *t, const char *part, bool there) {
    t_program *program = NULL;
    fxa_error err;
    fxa__cuda_choice out;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, strlen(text), &program, &err));
    fxa_problem p = corner_problem(FXA_FORWARD, program);
    p.captures = t, p.n_captures = t ? 1 : 0;
    T_REQUIRE(corner_choose(&p, &out, &g));
    if (corner_has(&g, part) != there) T_FAIL("%s: %s\n", text, part);
}

/* Shared memory cannot hold everything that a program may use at once: then dQ is computed by a separate kernel, or
 * another family is selected. */
TEST(much_for_shared_memory) {
    static const char bias[] = "tensor t : bf16[3]\nscore = score + t[h, q, k]";
    static const char words[] = "tensor t : bf16[3]\ntensor w : bool[1]\nscore = score + t[h, q, k]\nmask = w[k]";
    static const char far[] = "tensor t : bf16[3]\nscore = score + t[h, q, k] - 0.1 * float(abs(q - k) % 7)";
    static const struct {
        const char *text;
        fxa_pass pass;
        int64_t d;
        cuda_family family;
        bool apart;
    } rows[] = {{bias, FXA_BACKWARD, 128, FAMILY_SM90, false}, {words, FXA_BACKWARD, 64, FAMILY_SM90, false},
                {words, FXA_BACKWARD, 128, FAMILY_SM90, true}, {words, FXA_BACKWARD, 96, FAMILY_SM90, true},
                {words, FXA_FORWARD, 256, FAMILY_SM90, false}, {far, FXA_FORWARD, 192, FAMILY_SM90, false},
                {far, FXA_FORWARD, 256, FAMILY_SM80, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_program *program = NULL;
        fxa_capture t[2] = {{.size = {4, 300, 512}}, {.size = {512}}};
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        T_OK(own_parse(FXA_PROGRAM_SCORE, rows[i].text, SIZE_MAX, &program, &err));
        fxa_problem p = corner_problem(rows[i].pass, program);
        p.captures = t, p.n_captures = fxa_program_tensor_count(program), p.d_qk = rows[i].d;
        T_REQUIRE(corner_choose(&p, &out, &g));
        T_CHECK(g.operands.dense >= 0);
        if (family_of(&out) != rows[i].family || out.traits.separate_dq != rows[i].apart)
            T_FAIL("row %d: %s%s\n", (int)i, family_names[family_of(&out)], out.traits.separate_dq ? ", dQ apart" : "");
    }
}

/* Strides that a tensor map does not support: the elements are loaded by plain loads. */
TEST(pairs_that_lie_far_apart_are_loaded) {
    fxa_capture t = {.size = {4, 512, 512}, .strided = 1, .stride = {1 << 20, 512, 1}};
    corner_text("tensor w : bf16[3]\nscore = score + w[h, q, k]", &t, "PROG_DENSE", true);
    t.stride[0] = INT64_C(1) << 39;
    corner_text("tensor w : bf16[3]\nscore = score + w[h, q, k]", &t, "PROG_DENSE", false);
}

/* Kernels multiply scores of -inf with the unit of exp2: it is above 0 and finite for every finite scale. */
TEST(units_of_any_scale) {
    static const double scales[] = {1e-300, 1e-46, 1e-30, 0.125, 1e30, 1e300};
    fxa__cuda_choice out;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
    fxa_problem p = corner_problem(FXA_FORWARD, NULL);
    T_REQUIRE(corner_choose(&p, &out, &g));
    T_REQUIRE(out.finite_factors && g.computed.unit_at >= 0 && g.program->n_params == 1);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        float f[FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES] = {0};
        int ints[FXA_CUDA_SCALARS];
        fxa__cuda_host_values(&g, &scales[i], f, ints);
        T_CHECK(f[g.computed.unit_at] > 0 && isfinite(f[g.computed.unit_at]));
    }
}

/* ---- Programs with shared subexpressions: a walk over all paths would not end
 * ------------------------------------- */

enum { CORNER_DEPTH = 300 };

/* Returns a mask in which each step uses the preceding step twice, each time with another condition. */
static fxa_program *corner_shared_mask(bool scored) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), mask = fxa_builder_op2(b, FXA_OP_LE, k, q);
    if (scored) mask = fxa_builder_op2(b, FXA_OP_LT, fxa_builder_float(b, 0), score);
    for (int i = 0; i < CORNER_DEPTH; i++) {
        fxa_value x = fxa_builder_op2(b, FXA_OP_NE, q, fxa_builder_int(b, 2 * i));
        fxa_value y = fxa_builder_op2(b, FXA_OP_NE, k, fxa_builder_int(b, 3 * i));
        mask = fxa_builder_op2(b, FXA_OP_AND, fxa_builder_op2(b, FXA_OP_AND, mask, x),
                               fxa_builder_op2(b, FXA_OP_AND, mask, y));
    }
    fxa_builder_set_score(b, score);
    fxa_builder_set_mask(b, mask);
    return own_finish(b);
}

/* Returns a program with powers of a param by repeated squaring. */
static fxa_program *corner_powers(void) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value x = fxa_builder_param(b, "x", FXA_FLOAT), y = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 0; i < CORNER_DEPTH; i++) {
        x = fxa_builder_op2(b, FXA_OP_MUL, x, x);
        y = fxa_builder_op2(b, FXA_OP_ADD, fxa_builder_op(b, FXA_OP_ABS, &y, 1), x);
    }
    fxa_builder_set_score(b, y);
    return own_finish(b);
}

TEST(shared_parts_are_walked_once) {
    for (int i = 0; i < 6; i++) {
        t_program *program = i / 2 == 2 ? corner_powers() : corner_shared_mask(i / 2);
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        fxa_problem p = corner_problem((fxa_pass)(i % 2), program);
        if (corner_choose(&p, &out, &g)) T_CHECK(g.switches.mask == (i < 4));
    }
}

/* The host computes only a few values per run, whatever the program is. */
TEST(powers_are_not_for_the_host) {
    t_program *program = corner_powers();
    int filled = 0, left = 0;
    for (int32_t i = 0; i < program->n_nodes; i++) {
        bool square = program->nodes[i].op == FXA_OP_MUL;
        filled += square && fxa__cuda_is_host_value(program, i);
        left += square && !fxa__cuda_is_host_value(program, i);
    }
    T_CHECK(filled > 2 && filled < 8 && left > CORNER_DEPTH - 8);
}

T_MAIN
