/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of the cuda engine, compared with the texts in tests/golden/cuda. A text has the kernels of a problem, the CUDA
 * text generated from its program, and each call of a run to the driver with all arguments. Other tests compute the
 * arguments that follow from the problem; this test also finds changes in the others. After an intended change,
 * FXA_TEST_UPDATE=1 writes the texts.
 */
#include "cuda_plan_cases.h"
#include "cuda_plan_text.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/golden.h"

/* Sets the pointers of int tables and scalars, and the scale. */
static void plan_bind(bed *x, const plan_case *c) {
    for (int i = FXA_SLOT_Q_LENGTHS; i < FXA_SLOT_COUNT; i++)
        x->bound.slot[i] = fxa__slot_length(&x->p->in, (fxa_slot)i) > 0 ? bed_place(i) : NULL;
    if (c->scale != 0) x->bound.scale = c->scale < -1e-200 ? c->scale : 0;
}

/* Writes the text of a case and a NUL. */
static void plan_case_write(const plan_case *c, fxa__writer *w) {
    static bed x;
    fxa_error err;
    plan_opened o;
    plan_open(c, &o);
    if (bed_open_on(&x, &o.p, c->arch ? c->arch : 90, c->forced ? c->forced : -1, c->processors ? c->processors : 132,
                    &err)) {
        plan_bind(&x, c);
        plan_write(&x, 9, w);
    } else {
        T_FAIL("%s: %s\n", c->name, err.text);
    }
    fxa__write_u8(w, 0);
    bed_close(&x);
    plan_close(&o);
}

TEST(plans_keep_their_texts) {
    if (!FXA_ASSERT) T_SKIP("the texts contain the red zones of workspaces, which this build does not have");
    for (size_t i = 0; i < sizeof plan_cases / sizeof *plan_cases; i++) {
        T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
        plan_case_write(&plan_cases[i], &w);
        golden_check("cuda", plan_cases[i].name, (const char *)w.data);
    }
}

/* Chooses the kernels of a problem with allocation k failing, 0: none. Returns the number of allocations. */
static size_t plan_fail_at(const fxa__cuda_self *self, const fxa__problem *p, fail_alloc *memory, size_t k) {
    fxa__cuda_choice choice;
    fxa__cuda_program program;
    fxa_error err;
    size_t before = memory->live_bytes, first = memory->calls;
    fail_alloc_arm(memory, k, false);
    fxa_status status = fxa__cuda_choose(self, p, &choice, &program, &err);
    T_CHECK(status == FXA_OK || (k && status == FXA_E_MEMORY)); /* without memory some texts are only slower */
    fail_alloc_arm(memory, 0, false);
    fxa__cuda_program_free(&program);
    T_INT(memory->live_bytes, before);
    return memory->calls - first;
}

TEST(choices_release_memory) {
    for (size_t i = 0; i < sizeof plan_cases / sizeof *plan_cases; i++) {
        const plan_case *c = &plan_cases[i];
        const fxa__cuda_self self = {
            .arch = c->arch ? c->arch : 90, .processors = 132, .forced = family_forced(c->forced - !c->forced)};
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context *counted = fail_alloc_context(&memory);
        fxa__problem *p = NULL;
        plan_opened o;
        plan_open(c, &o);
        T_OK(fxa__problem_create(fxa__context_host(counted), &o.p, &p, &err));
        size_t n = plan_fail_at(&self, p, &memory, 0), some = (size_t)t_scaled((int)n) + 1;
        for (size_t k = 1; k <= n && !t_failures; k += 1 + (n - 1) / some) (void)plan_fail_at(&self, p, &memory, k);
        if (t_failures) T_FAIL("%s\n", c->name);
        fxa__problem_release(p);
        plan_close(&o);
        fxa_context_destroy(counted);
        T_INT(memory.live_bytes, 0);
        T_INT(memory.mistakes, 0);
    }
}

T_MAIN
