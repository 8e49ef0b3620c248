/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the cudnn engine to cuDNN and the driver, compared with the texts in tests/golden/cudnn: the pointers,
 * scalars and helper kernels of a run for each problem of cudnn_graph_cases.h, and the descriptors of a few graphs with
 * all attributes. The graphs themselves are compared in test_cudnn_graphs.c. After an intended change,
 * FXA_TEST_UPDATE=1 writes the texts.
 */
#include "cudnn_calls_text.h"

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

T_MAIN
