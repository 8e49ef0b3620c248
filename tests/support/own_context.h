/* SPDX-License-Identifier: Apache-2.0
 *
 * A context that lives as long as the test program, and programs made in it from text or by the builder.
 */
#ifndef FXA_TESTS_OWN_CONTEXT_H
#define FXA_TESTS_OWN_CONTEXT_H

#include "program/program.h"
#include "t.h"

static fxa_context *ctx;

__attribute__((constructor)) static void own_context_start(void) {
    if (fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
}
__attribute__((destructor)) static void own_context_stop(void) { fxa_context_destroy(ctx); }

__attribute__((unused)) static fxa_status own_parse(fxa_program_kind kind, const char *text, size_t size,
                                                    fxa_program **out, fxa_error *err) {
    fxa_text one = {NULL, text, size};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    c.kind = kind;
    c.texts = &one;
    c.n_texts = 1;
    return fxa_program_parse_texts(ctx, &c, out, err);
}

__attribute__((unused)) static fxa_builder *own_builder(fxa_program_kind kind) {
    fxa_builder *b = NULL;
    if (fxa_builder_create(ctx, kind, &b, NULL) != FXA_OK) abort();
    return b;
}

/* Finishes and destroys a builder, which must have no errors. Returns the program. */
__attribute__((unused)) static fxa_program *own_finish(fxa_builder *b) {
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    return p;
}

/* Returns a value of the given type that varies with the inputs. */
__attribute__((unused)) static fxa_value own_any(fxa_builder *b, fxa_type type) {
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    return type == FXA_FLOAT ? fxa_builder_input(b, FXA_INPUT_SCORE)
           : type == FXA_INT ? q
                             : fxa_builder_op2(b, FXA_OP_LT, q, k);
}

/* Returns true if two programs are equal in every node. */
__attribute__((unused)) static bool own_equal(const fxa_program *x, const fxa_program *y) {
    return x && y && memcmp(x->hash, y->hash, 16) == 0 && x->n_nodes == y->n_nodes &&
           memcmp(x->nodes, y->nodes, (size_t)x->n_nodes * sizeof *x->nodes) == 0 && x->n_outputs == y->n_outputs &&
           memcmp(x->outputs, y->outputs, (size_t)x->n_outputs * sizeof *x->outputs) == 0;
}

/* Asserts the canonical form of a program: operands before users, all nodes needed, no two equal, unused parts zero,
 * postorder. */
__attribute__((unused)) static void own_check_form(const fxa_program *p) {
    bool *used = calloc((size_t)p->n_nodes, sizeof *used);
    for (int32_t i = 0; i < p->n_outputs; i++) used[p->outputs[i].value] = true;
    for (int32_t i = 0; i < p->n_outputs; i++)
        for (int k = 0; k < p->outputs[i].n_index; k++) used[p->outputs[i].index[k]] = true;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--) {
        const fxa__node *n = &p->nodes[i];
        T_CHECK(used[i]);
        for (int k = 0; k < FXA_MAX_RANK; k++) {
            if (k < n->n_args)
                T_CHECK(n->arg[k] >= 0 && n->arg[k] < i);
            else
                T_INT(n->arg[k], 0);
            if (k < n->n_args) used[n->arg[k]] = true;
        }
        T_CHECK(n->op != FXA_OP_GT && n->op != FXA_OP_GE);
        for (int32_t j = 0; j < i; j++) T_CHECK(memcmp(n, &p->nodes[j], sizeof *n) != 0);
    }
    free(used);
}

#endif
