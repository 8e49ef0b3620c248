/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a graph as text (`fxattn explain --section tape`): a line for each operation, how cuDNN implements each mask,
 * and the helper kernels before and after cuDNN's kernel. The graph is made again from the problem.
 */
#include "cudnn.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

typedef struct listing {
    const fxa__dnn_graph *g;
    /* program: the score program of the problem; own: the user's bprop, NULL = none */
    const fxa_program *program, *own;
    const fxa__parameterized *numbers;
    fxa__writer *w;
} listing;

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* Writes the scale and, if the scale is multiplied or divided by a scalar of the program, that scalar. */
static void listing_scale(const listing *l, const fxa__dnn_tensor *t) {
    fxa__write_format(l->w, "scale");
    if (!t->times) return;
    const fxa__node *n = &l->program->nodes[t->index];
    const bool param = n->op == FXA_OP_PARAM, known = param && l->numbers && l->numbers->from[n->imm] < 0;
    fxa__write_format(l->w, t->times < 0 ? " / " : " * ");
    if (known || n->op == FXA_OP_CONST)
        fxa__write_format(l->w, "%.9g", known ? l->numbers->value[n->imm] : n->f);
    else
        fxa__write_format(l->w, "%s", param ? l->program->params[n->imm].name : "value");
}

/* Writes a scalar that the host computes in each run; a param is written by its name. */
static void listing_by_value(const listing *l, const fxa__dnn_tensor *t) {
    const fxa_program *program = t->source == FXA__DNN_OWN_NODE ? l->own : l->program;
    bool node = t->source == FXA__DNN_NODE || t->source == FXA__DNN_OWN_NODE;
    const fxa__node *n = node && t->index >= 0 ? &program->nodes[t->index] : NULL;
    if (t->number) {
        fxa__write_format(l->w, "%.9g", l->numbers->value[n->imm]);
    } else if (t->source == FXA__DNN_SCALE) {
        listing_scale(l, t);
    } else if (!n) {
        fxa__write_format(l->w, t->type == CUDNN_DATA_INT32 ? "%.10g" : "%.9g", t->value);
    } else {
        static const char *const parts[] = {[FXA__DNN_WHOLE] = "",
                                            [FXA__DNN_DIVISOR] = "size of ",
                                            [FXA__DNN_ROUNDS] = "rounding by ",
                                            [FXA__DNN_SIGN] = "sign of ",
                                            [FXA__DNN_MAGNITUDE] = "size of "};
        const char *name = n->op == FXA_OP_PARAM ? program->params[n->imm].name : "value";
        fxa__write_format(l->w, "%s%s%s", parts[t->part], t->times < 0 ? "-" : "", name);
        if (t->value != 0) fxa__write_format(l->w, "%+.9g", t->value);
    }
}

static void listing_tensor(const listing *l, int32_t i) {
    const fxa__dnn_tensor *t = &l->g->tensors[i];
    if (fxa__dnn_is_by_value(t) || t->per_head)
        listing_by_value(l, t);
    else if (t->source == FXA__DNN_SLOT)
        fxa__write_format(l->w, "%s", fxa_slot_name((fxa_slot)t->index));
    else if (fxa__dnn_is_captured(t))
        fxa__write_format(l->w, "%s", (t->source == FXA__DNN_TENSOR ? l->program : l->own)->tensors[t->index].name);
    else if (t->source == FXA__DNN_DTENSOR)
        fxa__write_format(l->w, "d%s", l->program->tensors[t->index].name);
    else
        /* name of the tensor: m<i> if it is in the workspace, t<i> if it is virtual */
        fxa__write_format(l->w, "%c%d", t->source == FXA__DNN_VIRTUAL ? 't' : 'm', (int)i);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Writes the lower-case name of a pointwise mode: "tanh_fwd" for CUDNN_POINTWISE_TANH_FWD. */
static void listing_mode(const listing *l, int mode) {
    static const char prefix[] = "POINTWISE_";
    static const struct listing_constant {
        const char *name;
        int value;
    } constants[] = {
#define LISTING_CONSTANT(name, value) {#name, value},
        FXA__CUDNN_CONSTANTS(LISTING_CONSTANT)
#undef LISTING_CONSTANT
    };
    char text[32] = "";
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        const char *name = constants[i].name;
        if (constants[i].value != mode || strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        name += sizeof prefix - 1;
        for (size_t j = 0; name[j] && j < sizeof text - 1; j++) text[j] = (char)tolower((unsigned char)name[j]);
    }
    fxa__write_format(l->w, "%s", text);
}

/* Returns the operation whose result is the tensor; NULL if there is none. */
static const fxa__dnn_op *listing_maker(const listing *l, int32_t tensor) {
    for (size_t i = 0; i < l->g->n_ops; i++)
        if (l->g->ops[i].y == tensor) return &l->g->ops[i];
    return NULL;
}

/* Writes how cuDNN implements a select between the score and -inf, as a comment at the end of the line. */
static void listing_mask(const listing *l, const fxa__dnn_op *op) {
    const fxa__dnn_tensor *fill = &l->g->tensors[op->b];
    const fxa__dnn_op *mask = listing_maker(l, op->t);
    if (!mask || fill->source != FXA__DNN_VALUE || fill->value != -INFINITY) return;
    bool known = mask->precision == CUDNN_DATA_BOOLEAN;
    const char *what = !known                                 ? "a mask that is evaluated at every pair"
                       : mask->mode == CUDNN_POINTWISE_CMP_GE ? "causal: tiles outside are left out"
                       : mask->mode == CUDNN_POINTWISE_CMP_GT ? "window: tiles outside are left out"
                                                              : "lengths: tiles outside are left out";
    fxa__write_format(l->w, "   # %s", what);
}

static void listing_pointwise(const listing *l, const fxa__dnn_op *op) {
    static const char axes[] = "bhqk";
    if (op->mode == CUDNN_POINTWISE_GEN_INDEX) {
        fxa__write_format(l->w, "index %c", axes[op->axis & 3]);
        return;
    }
    bool select = op->mode == CUDNN_POINTWISE_BINARY_SELECT;
    const int32_t operands[3] = {select ? op->t : op->x, select ? op->x : op->b, select ? op->b : -1};
    if (select)
        fxa__write_format(l->w, "select");
    else
        listing_mode(l, op->mode);
    for (int i = 0; i < 3 && operands[i] >= 0; i++) {
        fxa__write_format(l->w, i ? ", " : "(");
        listing_tensor(l, operands[i]);
    }
    fxa__write_format(l->w, ")");
    if (select) listing_mask(l, op);
}

static void listing_op(const listing *l, const fxa__dnn_op *op) {
    listing_tensor(l, op->y);
    fxa__write_format(l->w, " = ");
    if (op->kind == FXA__DNN_POINTWISE) {
        listing_pointwise(l, op);
    } else {
        static const char *const names[] = {[FXA__DNN_MATMUL] = "matmul",
                                            [FXA__DNN_REDUCTION] = "sum",
                                            [FXA__DNN_RESHAPE] = "turn",
                                            [FXA__DNN_PAGED] = "pages"};
        const bool reduces = op->kind == FXA__DNN_REDUCTION;
        const char *most = reduces && op->mode == CUDNN_REDUCE_TENSOR_MAX    ? "max"
                           : reduces && op->mode == CUDNN_REDUCE_TENSOR_AMAX ? "amax"
                                                                             : NULL;
        fxa__write_format(l->w, "%s(", most ? most : names[op->kind]);
        listing_tensor(l, op->x);
        if (op->b >= 0) fxa__write_format(l->w, ", ");
        if (op->b >= 0) listing_tensor(l, op->b);
        fxa__write_format(l->w, ")");
    }
    fxa__write_format(l->w, "\n");
}

/* ---- Helper kernels ---------------------------------------------------------------------------------------------- */

static void listing_steps(const listing *l, bool after) {
    static const char *const names[] = {
#define LISTING_KERNEL(name, text, type) #text,
        FXA__GPU_KERNELS(LISTING_KERNEL)
#undef LISTING_KERNEL
    };
    bool any = false;
    for (size_t i = 0; i < l->g->n_steps; i++) {
        const fxa__dnn_step *step = &l->g->steps[i];
        if (step->after != after) continue;
        if (!any) fxa__write_format(l->w, "%s cuDNN's kernel:", after ? "after" : "before");
        fxa__write_format(l->w, "%s %s", any ? "," : "", names[step->kernel]);
        any = true;
    }
    if (any) fxa__write_format(l->w, "\n");
}

void fxa__dnn_dump(const void *code, const fxa__problem *p, fxa__writer *w) {
    const fxa__dnn_code *c = code;
    fxa__dnn_attention *a = fxa__alloc(p->host, sizeof *a);
    w->failed = w->failed || !a;
    if (!a) return;
    if (fxa__dnn_attention_make(p, c->level, a, NULL) == FXA_OK) {
        const listing l = {&a->g, a->program, a->own.program, &a->numbers, w};
        listing_steps(&l, false);
        for (size_t i = 0; i < a->g.n_ops; i++) listing_op(&l, &a->g.ops[i]);
        listing_steps(&l, true);
    }
    fxa__dnn_attention_free(a);
    fxa__free(p->host, a, sizeof *a);
}
