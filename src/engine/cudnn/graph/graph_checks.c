/* SPDX-License-Identifier: Apache-2.0
 *
 * The last check of a graph before it is passed to cuDNN. Refuses operations that cuDNN accepts but computes wrongly,
 * or for which cuDNN aborts the process. The code that makes graphs adds no such operation; this check enforces that
 * for every problem, not only in tests. The functions checks_... that return a text check the operation l->op: the text
 * says what is wrong with the operation; NULL = nothing.
 */
#include "../attention/attention.h"

enum { RULES_MAX_OPS = 400 }; /* maximum number of operations of a graph */

typedef struct checks_look {
    fxa__dnn_graph *g;
    const fxa__dnn_op *op;
} checks_look;

static const fxa__dnn_tensor *checks_tensor(const checks_look *l, int32_t t) { return &l->g->tensors[t]; }

static bool checks_has_memory(const fxa__dnn_tensor *t) {
    return t->source != FXA__DNN_VIRTUAL && !fxa__dnn_is_by_value(t);
}

/* Returns true if an operation reads the tensor. */
static bool checks_is_used(const fxa__dnn_graph *g, int32_t t) {
    for (size_t i = 0; i < g->n_ops; i++) {
        const fxa__dnn_op *op = &g->ops[i];
        if (op->x == t || op->b == t || op->t == t) return true;
    }
    return false;
}

/* Returns the operation whose result is the tensor; NULL if there is none. */
static const fxa__dnn_op *checks_maker(const checks_look *l, int32_t t) {
    for (size_t i = 0; i < l->g->n_ops; i++)
        if (l->g->ops[i].y == t) return &l->g->ops[i];
    return NULL;
}

/* An operation whose result has no use makes gradients wrong. */
static const char *checks_unused(const checks_look *l) {
    bool kept = checks_tensor(l, l->op->y)->source != FXA__DNN_VIRTUAL || checks_is_used(l->g, l->op->y);
    return kept ? NULL : "has a result that nobody uses";
}

/* Returns true if the result of the operation has one value per row. Only such results, the statistics of a forward
 * pass, may be unused. */
static bool checks_is_row(const checks_look *l) { return checks_tensor(l, l->op->y)->dim[3] == 1; }

static const char *checks_first_operand(const checks_look *l) {
    const fxa__dnn_tensor *x = checks_tensor(l, l->op->x), *y = checks_tensor(l, l->op->y);
    bool scores = y->source == FXA__DNN_VIRTUAL && x->source != FXA__DNN_VIRTUAL && y->type != CUDNN_DATA_HALF;
    /* true: the product dO * O, which may have memory as its first operand */
    bool rows_product = l->op->mode == CUDNN_POINTWISE_MUL && x->source == FXA__DNN_SLOT;
    bool sink = x->dim[2] == 1 && y->dim[3] == 1;
    return scores && !rows_product && !sink ? "has memory as its first operand" : NULL;
}

static const char *checks_sum(const checks_look *l) {
    if (l->op->mode != CUDNN_POINTWISE_ADD && l->op->mode != CUDNN_POINTWISE_SUB) return NULL;
    bool wrong = checks_tensor(l, l->op->b)->score && !checks_tensor(l, l->op->x)->score && !checks_is_row(l);
    return wrong ? "adds the score to something, not something to the score" : NULL;
}

/* cuDNN ignores the head stride of a tensor with one value per head, and reads the values as contiguous. */
static const char *checks_per_head(const checks_look *l) {
    const fxa__dnn_tensor *b = l->op->b < 0 ? NULL : checks_tensor(l, l->op->b);
    bool wrong = b && b->source != FXA__DNN_VIRTUAL && fxa__dnn_is_per_head(b) && b->stride[1] != 1;
    return wrong ? "reads values per head that do not lie side by side" : NULL;
}

/* cuDNN compares ints wrongly by < and >, and by >= if the second operand is computed by the graph. Comparisons of type
 * BOOLEAN, in causal masks, windows and padding, are right. */
static const char *checks_order(const checks_look *l) {
    bool ints = l->op->precision == CUDNN_DATA_INT32;
    bool less = l->op->mode == CUDNN_POINTWISE_CMP_LT || l->op->mode == CUDNN_POINTWISE_CMP_GT;
    if (ints && less) return "compares ints by < or >";
    if (!ints || l->op->mode != CUDNN_POINTWISE_CMP_GE) return NULL;
    return checks_tensor(l, l->op->b)->source == FXA__DNN_VIRTUAL ? "compares two indices by >=" : NULL;
}

static const char *checks_cast(const checks_look *l) {
    bool cast = l->op->mode == CUDNN_POINTWISE_IDENTITY && checks_tensor(l, l->op->y)->source == FXA__DNN_VIRTUAL;
    return cast && checks_tensor(l, l->op->y)->type != CUDNN_DATA_FLOAT ? "casts to something else than a float" : NULL;
}

/* cuDNN computes wrong sums of f32 values over heads. Not refused are gradients of captured tensors, which are right,
 * and sums of products of 8-bit tensors, which have never been observed to be wrong. */
static const char *checks_heads(const checks_look *l) {
    const fxa__dnn_tensor *x = checks_tensor(l, l->op->x), *y = checks_tensor(l, l->op->y);
    bool sums = l->op->kind == FXA__DNN_REDUCTION && l->op->mode == CUDNN_REDUCE_TENSOR_ADD;
    bool heads = sums && y->dim[1] < x->dim[1] && y->source != FXA__DNN_DTENSOR;
    const fxa__dnn_op *maker = heads ? checks_maker(l, l->op->x) : NULL;
    bool bytes = maker && fxa__dnn_size(checks_tensor(l, maker->x)->type) == 1;
    return heads && x->type == CUDNN_DATA_FLOAT && !bytes ? "sums heads of floats" : NULL;
}

/* cuDNN does not write the gradient of a captured tensor if the graph has a product (dQ) that cuDNN sums into an f32
 * tensor in the workspace by atomic additions. */
static const char *checks_bias(const checks_look *l) {
    if (l->op->kind != FXA__DNN_REDUCTION || checks_tensor(l, l->op->y)->source != FXA__DNN_DTENSOR) return NULL;
    for (size_t i = 0; i < l->g->n_ops; i++)
        if (l->g->ops[i].kind == FXA__DNN_MATMUL && checks_tensor(l, l->g->ops[i].y)->source == FXA__DNN_SCRATCH &&
            checks_tensor(l, l->g->ops[i].y)->type == CUDNN_DATA_FLOAT)
            return "is the gradient of a tensor beside sums in any order";
    return NULL;
}

static bool checks_is_band(const fxa__dnn_op *op, int16_t mode) {
    return op->kind == FXA__DNN_POINTWISE && op->mode == mode && op->precision == CUDNN_DATA_BOOLEAN;
}

/* cuDNN computes only one causal mask and one window per graph. */
static const char *checks_second_band(const checks_look *l) {
    static const int16_t modes[2] = {CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_CMP_GT};
    for (int i = 0; i < 2; i++) {
        if (!checks_is_band(l->op, modes[i])) continue;
        for (const fxa__dnn_op *other = l->g->ops; other < l->op; other++)
            if (checks_is_band(other, modes[i])) return "is the second of its kind of mask";
    }
    return NULL;
}

/* ---- Padding ----------------------------------------------------------------------------------------------------- */

static bool checks_is_length(const fxa__dnn_graph *g, int32_t t) {
    for (size_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == FXA__DNN_MATMUL && (g->ops[i].m == t || g->ops[i].n == t)) return true;
    return false;
}

/* cuDNN recognizes q < length && k < length as padding. It then masks by the lengths of the matmuls, not by the lengths
 * in these comparisons; if the matmuls have no lengths, cuDNN masks nothing. cuDNN supports no other combination of
 * BOOLEAN masks. */
static const char *checks_padding(const checks_look *l) {
    if (checks_is_band(l->op, CUDNN_POINTWISE_CMP_LT))
        return checks_is_length(l->g, l->op->b) ? NULL : "is padding by lengths that no product has";
    bool join = l->op->mode == CUDNN_POINTWISE_LOGICAL_AND || l->op->mode == CUDNN_POINTWISE_LOGICAL_OR;
    if (!join || l->op->precision != CUDNN_DATA_BOOLEAN) return NULL;
    const fxa__dnn_op *x = checks_maker(l, l->op->x), *b = checks_maker(l, l->op->b);
    bool padding = l->op->mode == CUDNN_POINTWISE_LOGICAL_AND && x && b && checks_is_band(x, CUDNN_POINTWISE_CMP_LT) &&
                   checks_is_band(b, CUDNN_POINTWISE_CMP_LT);
    return padding ? NULL : "joins masks that are cuDNN's own";
}

/* cuDNN has no plan for a window whose bound is in memory. */
static const char *checks_window(const checks_look *l) {
    const fxa__dnn_op *sum = checks_is_band(l->op, CUDNN_POINTWISE_CMP_GT) ? checks_maker(l, l->op->x) : NULL;
    bool memory = sum && sum->b >= 0 && checks_has_memory(checks_tensor(l, sum->b));
    return memory ? "is a window with a bound in memory" : NULL;
}

/* ---- Backward passes, which have a transposed tensor ------------------------------------------------------------- */

static bool checks_is_backward(const fxa__dnn_graph *g) {
    for (size_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == FXA__DNN_RESHAPE) return true;
    return false;
}

/* In a backward pass without lengths, cuDNN computes partial tiles wrongly: the rows and keys outside of the problem
 * have scores of 0, whose exponentials overflow. */
static const char *checks_tiles(const checks_look *l) {
    enum { ROWS = 64, KEYS = 128 };
    const fxa__dnn_tensor *y = checks_tensor(l, l->op->y);
    bool scores = l->op->kind == FXA__DNN_MATMUL && y->source == FXA__DNN_VIRTUAL && y->type == CUDNN_DATA_FLOAT;
    bool whole = y->dim[2] % ROWS == 0 && y->dim[3] % KEYS == 0;
    return scores && !whole && l->op->m < 0 && checks_is_backward(l->g) ? "has no whole tiles, and no lengths" : NULL;
}

/* ---- Operands and results in memory ------------------------------------------------------------------------------ */

/* Refuses an operand in memory in these cases:
 *   type          bool, byte or another type for which cuDNN aborts the process; the product dO * O may have any type
 *   one row       forward: the score program reads one value per head, for more than 128 keys
 *   several rows  one value per batch entry, unless it is a length; backward: also one value per key
 * In the last two cases cuDNN reads the operand wrongly. */
static const char *checks_memory_of(const checks_look *l, int32_t t) {
    const fxa__dnn_tensor *x = t >= 0 ? checks_tensor(l, t) : NULL, *y = checks_tensor(l, l->op->y);
    if (!x || !checks_has_memory(x)) return NULL;
    bool known = x->type == CUDNN_DATA_FLOAT || x->type == CUDNN_DATA_HALF || x->type == CUDNN_DATA_BFLOAT16 ||
                 x->type == CUDNN_DATA_INT32;
    bool rows = l->op->mode == CUDNN_POINTWISE_MUL && checks_tensor(l, l->op->x)->source == FXA__DNN_SLOT; /* dO * O */
    if (!known && !rows) return "reads memory of a type that ends the process";
    bool own = fxa__dnn_is_captured(x) || x->read;
    if (own && y->dim[2] == 1 && x->dim[1] > 1 && x->dim[3] == 1 && y->dim[3] > 128 && !checks_is_backward(l->g))
        return "reads one value per head for one row";
    if (y->dim[2] < 2 || x->dim[2] > 1 || checks_is_band(l->op, CUDNN_POINTWISE_CMP_LT)) return NULL;
    if (x->dim[3] > 1) return checks_is_backward(l->g) ? "reads one value per key in a backward pass" : NULL;
    return x->dim[0] > 1 ? "reads one value per batch entry" : NULL;
}

static const char *checks_memory(const checks_look *l) {
    const char *why = checks_memory_of(l, l->op->b);
    return why ? why : checks_memory_of(l, l->op->t);
}

/* cuDNN never writes the row maximum to memory if LSE is computed too. */
static const char *checks_maximum(const checks_look *l) {
    bool most = l->op->kind == FXA__DNN_REDUCTION && l->op->mode == CUDNN_REDUCE_TENSOR_MAX;
    if (!most || checks_tensor(l, l->op->y)->source == FXA__DNN_VIRTUAL) return NULL;
    for (size_t i = 0; i < l->g->n_ops; i++) {
        const fxa__dnn_op *op = &l->g->ops[i];
        bool row = op->kind == FXA__DNN_POINTWISE && l->g->tensors[op->y].dim[3] == 1;
        if (row && op->mode == CUDNN_POINTWISE_LOG) return "writes the maximum of rows beside LSE";
    }
    return NULL;
}

static const char *checks_look_at(const checks_look *l) {
    const char *why = checks_is_row(l) ? NULL : checks_unused(l);
    if (!why) why = checks_heads(l);
    if (!why) why = checks_bias(l);
    if (!why) why = checks_maximum(l);
    if (!why) why = checks_tiles(l);
    if (l->op->kind != FXA__DNN_POINTWISE) return why;
    if (!why) why = checks_memory(l);
    if (!why) why = checks_padding(l);
    if (!why) why = checks_window(l);
    if (!why) why = checks_first_operand(l);
    if (!why) why = checks_sum(l);
    if (!why) why = checks_per_head(l);
    if (!why) why = checks_order(l);
    if (!why) why = checks_second_band(l);
    return why ? why : checks_cast(l);
}

/* Refuses graphs with more than `most` tensors and scalars whose addresses a run passes to cuDNN: cuDNN 9.14 failed a
 * run with 100 of them, because it did not find one of the addresses. */
static void checks_count_bound(fxa__dnn_graph *g, size_t most) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_tensors && g->status == FXA_OK; i++)
        n += g->tensors[i].source != FXA__DNN_VIRTUAL && fxa__dnn_is_used(g, (int32_t)i);
    if (n > most)
        (void)fxa__dnn_refuse(g, "the graph has %zu tensors and values for a run: this engine takes %zu", n, most);
}

void fxa__dnn_rules_check(fxa__dnn_graph *g, fxa__dnn_level level) {
    enum { RULES_OLD_BOUND = 64 };
    if (g->status == FXA_OK && g->n_ops > RULES_MAX_OPS)
        (void)fxa__dnn_refuse(g, "the graph has %zu operations: cuDNN was tried with %d", g->n_ops, RULES_MAX_OPS);
    checks_count_bound(g, level.version < 91900 ? RULES_OLD_BOUND : FXA__DNN_BOUND);
    for (size_t i = 0; i < g->n_ops && g->status == FXA_OK; i++) {
        const checks_look look = {g, &g->ops[i]};
        const char *why = checks_look_at(&look);
        if (why) (void)fxa__dnn_refuse(g, "operation %zu of the graph (mode %d) %s", i, (int)g->ops[i].mode, why);
    }
}
