/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a program is generated once: for a problem, whatever its factors and the sizes of its tensors are, and
 * for a plan, whichever functions of the engine the plan calls. The linker passes calls of the pass that writes the
 * text to this file (-Wl,--wrap). Plans are on stand-ins for the driver and NVRTC.
 */
#include "cuda_engine_fixture.h"

#include "engine/cuda/codegen/passes.h"

#if FXA_TEST_WRAPS
fxa_status __real_fxa__cuda_write_text(cuda_work *w, fxa_error *err);
fxa_status __wrap_fxa__cuda_write_text(cuda_work *w, fxa_error *err);

static int generations_texts; /* texts that were written */

fxa_status __wrap_fxa__cuda_write_text(cuda_work *w, fxa_error *err) {
    generations_texts++;
    return __real_fxa__cuda_write_text(w, err);
}

static int generations_take(void) {
    int n = generations_texts;
    generations_texts = 0;
    return n;
}

/* Factors that are not positive stay in value(), and indices of tensors that are smaller than b, hq or a constant are
 * guarded. */
TEST(problems_have_one_text) {
    NEEDS_BOX;
    static const char *const texts[] = {
        "score = score", "score = -2.5 * score", "tensor t : f32[1]\nscore = -2.5 * (tanh(score) * t[h] / t[h])",
        ("tensor t : f32[2]\ntensor u : f32[1]\ntensor v : f32[1]\n"
         "score = score * t[b, 40] + u[clamp(q, 0, 90)] * v[h]\nmask = score > u[9] && k <= q")};
    const fxa__cuda_self self = {.arch = 90, .processors = 132};
    for (size_t i = 0; i < 4 * sizeof texts / sizeof *texts; i++) {
        fxa_problem given = FXA_PROBLEM_INIT;
        fxa_capture captures[3] = {{.size = {0}}};
        fxa__problem *p = NULL;
        fxa__cuda_choice choice;
        fxa__cuda_program made;
        t_program *program = NULL;
        T_OK(fxa_program_parse(box_ctx, texts[i / 4], SIZE_MAX, &program, &err));
        for (int k = 0; k < 3; k++) captures[k].size[0] = captures[k].size[1] = i & 1 ? 1 : 512;
        given.pass = i & 2 ? FXA_BACKWARD : FXA_FORWARD, given.flags = i & 2 ? FXA_GRAD_Q : 0;
        given.b = 2, given.hq = given.hkv = 4, given.sq = given.sk = 300, given.d_qk = 64, given.q.dtype = FXA_BF16;
        given.alignment = 16, given.device = FXA_CUDA, given.program = program, given.captures = captures;
        given.n_captures = fxa_program_tensor_count(program);
        T_OK(fxa__problem_create(fxa__context_host(box_ctx), &given, &p, &err));
        T_OK(fxa__cuda_choose(&self, p, &choice, &made, &err));
        T_INT(generations_take(), 1);
        T_INT(choice.finite_factors, i / 4 != 1);
        for (int32_t t = 0; i & 1 && t < made.program->n_tensors; t++) T_CHECK(made.bounds.min_size[t][0] <= 1);
        fxa__cuda_program_free(&made);
        fxa__problem_release(p);
    }
}

TEST(plans_have_one_text) {
    NEEDS_BOX;
    static char target[4096], listing[1 << 16];
    static unsigned char bytes[1 << 18];
    for (int i = 0; i < 8; i++) {
        fxa_context *here = box_context(), *there = box_context();
        fxa_plan *plan = NULL, *again = NULL, *loaded = NULL;
        fxa_support report = {.engine = NULL};
        size_t n = 0, needed, count = 1;
        box b;
        T_OK(fxa_device_description(here, FXA_CUDA, 0, target, sizeof target, NULL, &err));
        box_start(&b, i & 1 ? FXA_BACKWARD : FXA_FORWARD, i & 2 ? target : NULL);
        if (i & 4) b.p.engine = NULL;
        (void)generations_take(); /* of box_start */
        T_OK(fxa_plan_create(here, &b.p, &plan, &err));
        T_INT(generations_take(), 1);
        T_OK(fxa_plan_dump(plan, listing, sizeof listing, &needed, &err));
        T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &n, &err));
        T_OK(fxa_plan_create(here, &b.p, &again, &err));
        T_INT(generations_take(), 0);
        if (!(i & 2)) T_OK(fxa_plan_load(there, bytes, n, &loaded, &err));
        T_INT(generations_take(), !(i & 2));
        T_OK(fxa_support_query(there, &b.p, &report, &count, &err));
        T_INT(generations_take(), (i & 2) != 0); /* the context has the report of a loaded plan */
        fxa_plan_destroy(loaded);
        fxa_plan_destroy(again);
        fxa_plan_destroy(plan);
        fxa_context_destroy(there);
        fxa_context_destroy(here);
        box_end(&b);
        box_check_end();
    }
}

#else
TEST(problems_have_one_text) { T_SKIP("the linker of this system cannot pass calls to a test"); }
#endif

T_MAIN
