/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs of the cuDNN engine, compared with the texts in tests/golden/graphs. cuDNN recognises spellings: of two graphs
 * with the same meaning it may compute one and refuse the other, or compute the other wrongly, which no evaluation on
 * the host shows. So a test compares every operation, size, stride, dtype and helper kernel. After an intended change
 * of the lowering, FXA_TEST_UPDATE=1 writes the texts; try the new graphs on cuDNN (make test-gpu).
 */
#include "cudnn_graph_cases.h"
#include "cudnn_graph_text.h"

/* Writes the text of a case's graph, with a NUL. */
static void graph_case_write(fxa_context *ctx, const graph_case *c, fxa__writer *w) {
    static fxa__dnn_attention a;
    static fxa__dnn_code code;
    fxa_error err;
    graph_opened x = graph_open(ctx, c);
    fxa__writer listing = {.host = fxa__context_host(ctx)};
    code.level = x.level;
    fxa_status status = x.problem ? fxa__dnn_attention_make(x.problem, code.level, &a, &err) : FXA_E_PROBLEM;
    if (status == FXA_OK) {
        fxa__dnn_dump(&code, x.problem, &listing);
        fxa__write_u8(&listing, 0);
        graph_write(&a, (const char *)listing.data, w);
    } else {
        T_FAIL("%s: %s\n", c->name, err.text);
    }
    fxa__write_u8(w, 0);
    fxa__dnn_attention_free(&a);
    fxa__writer_free(&listing);
    graph_close(&x);
}

CONTEXT_TEST(graphs_keep_their_spelling) {
    for (size_t i = 0; i < sizeof graph_cases / sizeof *graph_cases; i++) {
        const graph_case *c = &graph_cases[i];
        T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
        graph_case_write(ctx, c, &w);
        golden_check("graphs", c->name, (const char *)w.data);
    }
}

T_MAIN
