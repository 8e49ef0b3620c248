/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the cudnn engine to cuDNN and the driver, compared with the texts in tests/golden/cudnn: the pointers,
 * scalars and helper kernels of a run for each problem of cudnn_graph_cases.h, and the descriptors of a few graphs with
 * all attributes. The graphs themselves are compared in test_cudnn_graphs.c. After an intended change,
 * FXA_TEST_UPDATE=1 writes the texts.
 */
#include "cudnn_calls_text.h"
#include "support/fail_alloc.h"

/* The graphs whose descriptors are compared; together they have operations of every kind. */
static const char *const calls_described[] = {"row_maxima", "packed_backward", "pages", "masks", "bytes"};

static bool calls_is_described(const char *name) {
    for (size_t i = 0; i < sizeof calls_described / sizeof *calls_described; i++)
        if (strcmp(calls_described[i], name) == 0) return true;
    return false;
}

TEST(calls_keep_their_texts) {
    fxa_context *ctx = NULL;
    fxa_error err;
    if (!FXA_ASSERT) T_SKIP("the texts contain the red zones of workspaces, which this build does not have");
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t i = 0; i < sizeof graph_cases / sizeof *graph_cases; i++) {
        static fxa__dnn_self self;
        const graph_case *c = &graph_cases[i];
        graph_opened x = graph_open(ctx, c);
        fxa__writer w = {.host = fxa__context_host(ctx)};
        calls_start(&self, x.level, w.host);
        calls_write(&self, x.problem, calls_is_described(c->name), &w);
        fxa__write_u8(&w, 0);
        golden_check("cudnn", c->name, (const char *)w.data);
        fxa__writer_free(&w);
        graph_close(&x);
    }
    fxa_context_destroy(ctx);
}

/* Makes a plan with allocation k failing, 0: none, and releases it. Returns the number of allocations. */
static size_t calls_fail_at(fxa__dnn_self *self, const fxa__problem *p, fail_alloc *memory, size_t k) {
    fxa_error err = {.status = FXA_OK};
    void *code = NULL;
    size_t bytes = 0, before = memory->live_bytes, first = memory->calls;
    fxa__writer nothing = {.host = self->host};
    memset(&calls, 0, sizeof calls);
    calls.w = &nothing;
    fail_alloc_arm(memory, k, false);
    fxa_status status = fxa__engine_cudnn.load(self, p, NULL, &code, &bytes, &err);
    fail_alloc_arm(memory, 0, false);
    T_INT(status, k ? FXA_E_MEMORY : FXA_OK);
    T_INT(code != NULL, status == FXA_OK);
    if (code) fxa__engine_cudnn.release(self, code);
    T_INT(calls.held, 0);
    T_INT(memory->live_bytes, before);
    return memory->calls - first;
}

TEST(plans_release_memory_and_descriptors) {
    for (size_t i = 0; i < sizeof graph_cases / sizeof *graph_cases; i++) {
        static fxa__dnn_self self;
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&memory);
        graph_opened x = graph_open(ctx, &graph_cases[i]);
        calls_start(&self, x.level, fxa__context_host(ctx));
        size_t n = calls_fail_at(&self, x.problem, &memory, 0), some = (size_t)t_scaled((int)n) + 1;
        for (size_t k = 1; k <= n && !t_failures; k += 1 + (n - 1) / some)
            (void)calls_fail_at(&self, x.problem, &memory, k);
        if (t_failures) T_FAIL("%s\n", graph_cases[i].name);
        graph_close(&x);
        fxa_context_destroy(ctx);
        T_INT(memory.live_bytes, 0);
        T_INT(memory.mistakes, 0);
    }
}

T_MAIN
