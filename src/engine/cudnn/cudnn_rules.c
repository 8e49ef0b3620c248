/* SPDX-License-Identifier: Apache-2.0
 *
 * The last look at a graph before cuDNN gets it: forms that cuDNN takes without a word and computes wrongly, or that
 * end the process. The lowering writes none of them; this holds it to that, for every problem, and not in tests alone.
 */
#include "cudnn_attention.h"

enum { RULES_MAX_OPS = 400 }; /* what a graph may have at most */

typedef struct rules_look {
    fxa__dnn_graph *g;
    const fxa__dnn_op *op;
} rules_look;

static const fxa__dnn_tensor *rules_tensor(const rules_look *l, int32_t t) { return &l->g->tensors[t]; }

static bool rules_is_used(const fxa__dnn_graph *g, int32_t t) {
    for (size_t i = 0; i < g->n_ops; i++) {
        const fxa__dnn_op *op = &g->ops[i];
        if (op->x == t || op->b == t || op->t == t) return true;
    }
    return false;
}

/* An operation whose result nobody uses makes gradients wrong. */
static const char *rules_unused(const rules_look *l) {
    bool kept = rules_tensor(l, l->op->y)->source != FXA__DNN_VIRTUAL || rules_is_used(l->g, l->op->y);
    return kept ? NULL : "has a result that nobody uses";
}

/* The statistics of a forward pass are there even where they are not wanted: the one result that may be unused. */
static bool rules_is_row(const rules_look *l) { return rules_tensor(l, l->op->y)->dim[3] == 1; }

static const char *rules_first_operand(const rules_look *l) {
    const fxa__dnn_tensor *x = rules_tensor(l, l->op->x), *y = rules_tensor(l, l->op->y);
    bool scores = y->source == FXA__DNN_VIRTUAL && x->source != FXA__DNN_VIRTUAL && y->type != CUDNN_DATA_HALF;
    bool rows_product = l->op->mode == CUDNN_POINTWISE_MUL && x->source == FXA__DNN_SLOT; /* dO O, before the scores */
    bool sink = x->dim[2] == 1 && y->dim[3] == 1;
    return scores && !rows_product && !sink ? "has memory as its first operand" : NULL;
}

static const char *rules_sum(const rules_look *l) {
    if (l->op->mode != CUDNN_POINTWISE_ADD && l->op->mode != CUDNN_POINTWISE_SUB) return NULL;
    bool wrong = rules_tensor(l, l->op->b)->score && !rules_tensor(l, l->op->x)->score && !rules_is_row(l);
    return wrong ? "adds the score to something, not something to the score" : NULL;
}

/* Ints in order, outside of the spellings for causal, window and padding, which are of BOOLEAN. */
static const char *rules_order(const rules_look *l) {
    bool ints = l->op->precision == CUDNN_DATA_INT32;
    bool less = l->op->mode == CUDNN_POINTWISE_CMP_LT || l->op->mode == CUDNN_POINTWISE_CMP_GT;
    if (ints && less) return "compares ints by < or >";
    if (!ints || l->op->mode != CUDNN_POINTWISE_CMP_GE) return NULL;
    return rules_tensor(l, l->op->b)->source == FXA__DNN_VIRTUAL ? "compares two indices by >=" : NULL;
}

static const char *rules_cast(const rules_look *l) {
    bool cast = l->op->mode == CUDNN_POINTWISE_IDENTITY && rules_tensor(l, l->op->y)->source == FXA__DNN_VIRTUAL;
    return cast && rules_tensor(l, l->op->y)->type != CUDNN_DATA_FLOAT ? "casts to something else than a float" : NULL;
}

/* The sum of heads: those of floats are taken, and something else is summed. */
static const char *rules_heads(const rules_look *l) {
    const fxa__dnn_tensor *x = rules_tensor(l, l->op->x), *y = rules_tensor(l, l->op->y);
    bool heads = l->op->kind == FXA__DNN_REDUCTION && y->dim[1] < x->dim[1];
    return heads && x->type == CUDNN_DATA_FLOAT ? "sums heads of floats" : NULL;
}

static bool rules_is_band(const fxa__dnn_op *op, int16_t mode) {
    return op->kind == FXA__DNN_POINTWISE && op->mode == mode && op->precision == CUDNN_DATA_BOOLEAN;
}

/* Of causal masks and of windows cuDNN computes one each. */
static const char *rules_second_band(const rules_look *l) {
    static const int16_t modes[2] = {CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_CMP_GT};
    for (int i = 0; i < 2; i++) {
        if (!rules_is_band(l->op, modes[i])) continue;
        for (const fxa__dnn_op *other = l->g->ops; other < l->op; other++)
            if (rules_is_band(other, modes[i])) return "is the second of its kind of mask";
    }
    return NULL;
}

static const char *rules_look_at(const rules_look *l) {
    const char *why = rules_is_row(l) ? NULL : rules_unused(l);
    if (!why) why = rules_heads(l);
    if (l->op->kind != FXA__DNN_POINTWISE) return why;
    if (!why) why = rules_first_operand(l);
    if (!why) why = rules_sum(l);
    if (!why) why = rules_order(l);
    if (!why) why = rules_second_band(l);
    return why ? why : rules_cast(l);
}

void fxa__dnn_rules_check(fxa__dnn_graph *g) {
    if (g->status == FXA_OK && g->n_ops > RULES_MAX_OPS)
        (void)fxa__dnn_refuse(g, "the graph has %zu operations: cuDNN was tried with %d", g->n_ops, RULES_MAX_OPS);
    for (size_t i = 0; i < g->n_ops && g->status == FXA_OK; i++) {
        const rules_look look = {g, &g->ops[i]};
        const char *why = rules_look_at(&look);
        if (why) (void)fxa__dnn_refuse(g, "operation %zu of the graph (mode %d) %s", i, (int)g->ops[i].mode, why);
    }
}
