/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the graph of a problem: support checks (support.c), the program with constants as params
 * (score/parameterize.c), its analyses, the operations of the pass (forward.c, backward.c), and the last check of the
 * graph (graph/graph_checks.c).
 */
#include "attention.h"

#include "../../../base/invariant.h"

#include <string.h>

static fxa_status attention_analyse_one(fxa__dnn_score *s, const fxa_program *program, fxa__depend **depend,
                                        fxa_error *err) {
    *depend = fxa__alloc_array(s->g->host, (size_t)program->n_nodes, sizeof **depend);
    if (!*depend) return fxa__fail_memory(err, "the graph of a program");
    FXA__ASSERT(program->n_nodes <= FXA__DNN_MAX_NODES); /* attention_is_small has checked it */
    fxa__lower_depend(program, NULL, *depend);
    for (int32_t i = 0; i < program->n_nodes; i++) {
        s->load[i] = -1;
        /* with_grad(x, y) has the value of x; the graph does not need y */
        s->same[i] = program->nodes[i].op == FXA_OP_WITH_GRAD ? program->nodes[i].arg[0] : -1;
    }
    s->program = program, s->depend = *depend;
    return FXA_OK;
}

static bool attention_is_small(fxa__dnn_attention *a, const fxa_program *program, const char *what) {
    if (program->n_nodes <= FXA__DNN_MAX_NODES) return true;
    (void)fxa__dnn_refuse(&a->g, "%s has %d nodes: this engine takes %d", what, (int)program->n_nodes,
                          FXA__DNN_MAX_NODES);
    return false;
}

static fxa_status attention_analyse(fxa__dnn_attention *a, fxa_error *err) {
    const fxa_program *own = a->p->in.pass == FXA_BACKWARD ? a->p->bprop : NULL;
    if (!attention_is_small(a, a->program, "the program, with its derivative,") ||
        (own && !attention_is_small(a, own, "bprop")))
        return FXA_OK;
    FXA_TRY(attention_analyse_one(&a->score, a->program, &a->depend, err));
    if (own) FXA_TRY(attention_analyse_one(&a->own, own, &a->own_depend, err));
    if (!own && a->p->in.pass == FXA_BACKWARD) fxa__dnn_reuse_cancel(&a->score);
    bool folds = !own && !fxa__dnn_is_fp8(&a->p->in) && !(a->p->in.flags & FXA_SCALARS_IN_MEMORY);
    if (folds) a->score.folded = fxa__dnn_reuse_fold(&a->score);
    return fxa__lower_conjuncts(a->g.host, a->program, &a->mask) ? FXA_OK
                                                                 : fxa__fail_memory(err, "the graph of a program");
}

/* Refuses one query row with more than 128 keys if a node or mask reads coordinates: for one row cuDNN uses a different
 * engine, which counts keys wrongly from key 128 on. */
static void attention_check_rows(fxa__dnn_attention *a) {
    bool counts = a->score.indexed || a->own.indexed || a->banded;
    if (a->p->in.sq == 1 && a->p->in.sk > 128 && counts)
        (void)fxa__dnn_refuse(&a->g,
                              "sq is 1 and sk %lld: for one row cuDNN counts keys wrongly past 128, for two rightly",
                              (long long)a->p->in.sk);
}

fxa_status fxa__dnn_attention_make(const fxa__problem *p, fxa__dnn_level level, fxa__dnn_attention *a, fxa_error *err) {
    return fxa__dnn_attention_make_with(p, level, true, a, err);
}

fxa_status fxa__dnn_attention_make_with(const fxa__problem *p, fxa__dnn_level level, bool parameterizes,
                                        fxa__dnn_attention *a, fxa_error *err) {
    memset(a, 0, sizeof *a);
    a->p = p;
    a->level = level;
    a->g.host = p->host;
    a->len_q = a->len_k = -1;
    a->score.g = &a->g, a->score.p = p, a->score.discarded = &a->discarded, a->score.folded = -1;
    for (int i = 0; i < 4; i++) a->score.table[i] = -1;
    for (int i = 0; i < FXA_MAX_PARAMS; i++) a->score.param[i] = -1;
    if (fxa__dnn_supports(&a->g, p, level)) {
        if (p->in.flags & (FXA_PADDING | FXA_VARLEN | FXA_PAGED)) fxa__dnn_batch_bounds_begin(a);
        a->score.own_lengths = a->own_lengths;
        /* on these devices cuDNN aborts the process if the keys of a captured tensor are not contiguous */
        a->score.keys_dense = fxa__dnn_family_of(level.arch) == FXA__SM_100;
        a->score.length[0] = a->len_q, a->score.length[1] = a->len_k, a->score.length[2] = a->more;
        a->own = a->score; /* a->own differs from a->score only in members that are set below */
        a->own.own = true, a->own.captures = p->in.bprop_captures;
        a->score.captures = p->in.captures;
        FXA_TRY(fxa__dnn_program_make(p, parameterizes, &a->numbers, err));
        a->program = a->numbers.program, a->score.numbers = &a->numbers;
        FXA_TRY(attention_analyse(a, err));
        if (a->g.status == FXA_OK) (p->in.pass == FXA_FORWARD ? fxa__dnn_forward : fxa__dnn_backward)(a);
        attention_check_rows(a);
        fxa__dnn_rules_check(&a->g, level);
    }
    if (a->g.status == FXA_E_MEMORY) return fxa__fail_memory(err, "a graph for cuDNN");
    return a->g.status == FXA_OK ? fxa__ok(err) : fxa__fail(err, a->g.status, "%s", a->g.reason);
}

void fxa__dnn_attention_free(fxa__dnn_attention *a) {
    fxa__dnn_graph_free(&a->g);
    if (a->own.program) fxa__free(a->g.host, a->own_depend, (size_t)a->own.program->n_nodes * sizeof *a->own_depend);
    if (a->program) {
        fxa__free(a->g.host, a->depend, (size_t)a->program->n_nodes * sizeof *a->depend);
        fxa__lower_conjuncts_free(a->g.host, &a->mask);
    }
    fxa_program_destroy(a->program);
    memset(a, 0, sizeof *a);
}
