/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs for the final check of the cudnn engine, for test_cudnn_rules.c and test_cudnn_rule_limits.c.
 */
#ifndef FXA_TESTS_CUDNN_RULES_FIXTURE_H
#define FXA_TESTS_CUDNN_RULES_FIXTURE_H

#include "engine/cudnn/attention/attention.h"
#include "t.h"

/* A graph under construction: scores, their indices, and the tensor that is stored at the end. */
typedef struct wrong_graph {
    fxa__dnn_graph g;
    int32_t s, q, k;
} wrong_graph;

static const int64_t wrong_dim[4] = {1, 2, 8, 8};

static int32_t wrong_memory(wrong_graph *w) { return fxa__dnn_scratch(&w->g, wrong_dim, CUDNN_DATA_FLOAT); }

static int32_t wrong_index(wrong_graph *w) {
    int32_t k = fxa__dnn_index(&w->g, w->s, 3, CUDNN_DATA_INT32);
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_IDENTITY, k, -1);
}

/* Adds an addition to the scores, with memory of size `dim` as the second operand. */
static int32_t wrong_reads(wrong_graph *w, const int64_t dim[4], uint8_t type) {
    return fxa__dnn_float2(&w->g, CUDNN_POINTWISE_ADD, w->s, fxa__dnn_scratch(&w->g, dim, type));
}

typedef struct wrong_form {
    const char *name;
    int32_t (*write)(wrong_graph *w); /* returns the tensor to store */
    const char *says;                 /* part of the reason; NULL: the graph is right */
} wrong_form;

static int64_t wrong_version; /* of cuDNN */

/* Checks the graphs of all forms. */
static void wrong_check(const wrong_form *forms, size_t n) {
    fxa__host *host = NULL;
    fxa_error err;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    for (size_t i = 0; i < n; i++) {
        const wrong_form *form = &forms[i];
        wrong_graph w = {.g = {.host = host, .status = FXA_OK}};
        wrong_version = 91901;
        w.s = fxa__dnn_virtual(&w.g, wrong_dim, CUDNN_DATA_FLOAT);
        w.g.tensors[w.s].score = true;
        int32_t x = form->write(&w);
        (void)fxa__dnn_op2_into(&w.g, CUDNN_POINTWISE_EXP, x, -1, wrong_memory(&w), CUDNN_DATA_FLOAT);
        T_INT(w.g.status, FXA_OK);
        fxa__dnn_rules_check(&w.g, (fxa__dnn_level){wrong_version, 90});
        if ((w.g.status != FXA_OK) != (form->says != NULL)) T_FAIL("%s: %s\n", form->name, w.g.reason);
        if (form->says) T_HAS(w.g.reason, form->says);
        fxa__dnn_graph_free(&w.g);
    }
    fxa__host_release(host);
}

#endif
