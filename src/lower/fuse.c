/* SPDX-License-Identifier: Apache-2.0
 *
 * Imports two programs into one builder (fuse.h). The builder stores equal nodes once, so common subexpressions are
 * shared without a search. Importing a node of a finished program does not change the node, so no bit of a result
 * changes.
 */
#include "fuse.h"

#include "copy_outputs.h"

#include "../base/invariant.h"

enum {
    FUSE_FORWARD = 1 << FXA__OUT_SCORE | 1 << FXA__OUT_MASK,
    FUSE_GRADS = 1 << FXA__OUT_DPARAM | 1 << FXA__OUT_DLOAD,
    FUSE_DSCORE = 1 << FXA__OUT_DSCORE
};

fxa_status fxa__lower_fuse(fxa__host *host, const fxa_program *program, const fxa_program *derivative, bool with_dscore,
                           fxa_program **out, fxa_error *err) {
    size_t n = (size_t)(program->n_nodes > derivative->n_nodes ? program->n_nodes : derivative->n_nodes);
    fxa_value *map = fxa__alloc_array(host, n, sizeof *map);
    fxa_builder *b = NULL;
    *out = NULL;
    fxa_status status =
        map ? fxa__builder_new(host, FXA__PROGRAM_FUSED, &b, err) : fxa__fail_memory(err, "a fused program");
    if (status != FXA_OK) goto done;
    /* each of the two programs may have up to FXA__MAX_DERIVED_NODES nodes */
    fxa__builder_set_limit(b, 2 * FXA__MAX_DERIVED_NODES);
    if (fxa__builder_import(b, program, map)) fxa__lower_copy_outputs(b, program, map, FUSE_FORWARD);
    if (fxa__builder_import(b, derivative, map))
        fxa__lower_copy_outputs(b, derivative, map, FUSE_GRADS | (with_dscore ? FUSE_DSCORE : 0));
    status = fxa_builder_finish(b, out, err);
    FXA__ASSERT(status != FXA_OK || ((*out)->n_params == program->n_params && (*out)->n_tensors == program->n_tensors));
done:
    fxa_builder_destroy(b);
    fxa__free(host, map, n * sizeof *map);
    return status;
}

/* Sets `bit` in marks[i] of every node i that an output of `kinds` depends on. */
static void fuse_mark(const fxa_program *p, uint32_t kinds, uint8_t bit, uint8_t *marks) {
    for (int32_t i = 0; i < p->n_outputs; i++)
        if (kinds >> p->outputs[i].kind & 1u) marks[p->outputs[i].value] |= bit;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--)
        for (int j = 0; marks[i] & bit && j < p->nodes[i].n_args; j++) marks[p->nodes[i].arg[j]] |= bit;
}

bool fxa__lower_fused_shares_function(fxa__host *host, const fxa_program *fused) {
    enum {
        VALUE = 1,    /* the score output depends on the node */
        BACKWARD = 2, /* the output dscore or a gradient depends on the node */
        SCORE = 4     /* the node depends on the input `score` */
    };
    uint8_t *marks = fxa__alloc(host, (size_t)fused->n_nodes);
    bool shares = false;
    if (!marks) return false;
    fuse_mark(fused, 1u << FXA__OUT_SCORE, VALUE, marks);
    fuse_mark(fused, FUSE_GRADS | FUSE_DSCORE, BACKWARD, marks);
    for (int32_t i = 0; i < fused->n_nodes; i++) {
        const fxa__node *n = &fused->nodes[i];
        bool input = n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE;
        for (int j = 0; j < n->n_args; j++) input = input || marks[n->arg[j]] & SCORE;
        if (input) marks[i] |= SCORE;
        shares = shares || (marks[i] == (VALUE | BACKWARD | SCORE) &&
                            fxa__op_info_get(n->op)->exact != FXA__EXACT_ALWAYS && n->op != FXA_OP_INPUT);
    }
    fxa__free(host, marks, (size_t)fused->n_nodes);
    return shares;
}
