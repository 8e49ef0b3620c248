/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical text of a program: declarations, a let for each node used more than once, outputs. The text depends only on
 * the node array, so equal programs have equal texts. Parsing the text builds the same nodes again: omitted conversions
 * are added by the builder, and operands are swapped only where the builder orders them.
 *
 * Deeply nested nodes get a let of their own, which bounds the recursion here and in the parser. Outputs are written in
 * an order in which no output reads a name that an earlier output has assigned.
 */
#include "decimal.h"
#include "print_lets.h"

#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct print_state {
    fxa__writer w;
    const fxa_program *p;
    fxa__print_mark *mark;          /* [nodes] */
    char prefix[FXA__PRINT_PREFIX]; /* prefix of the names of lets */
    size_t max_bytes;               /* printing stops after this many bytes; 0 = no limit */
} print_state;

static void print_text(print_state *s, const char *text) { fxa__write_bytes(&s->w, text, strlen(text)); }

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

static void print_constant(print_state *s, const fxa__node *x) {
    char text[FXA__DECIMAL_WRITE];
    if (x->type == FXA_BOOL)
        print_text(s, x->imm ? "true" : "false");
    else if (x->type == FXA_INT) {
        (void)snprintf(text, sizeof text, "%d", x->imm);
        print_text(s, text);
    } else if (isnan(x->f))
        print_text(s, "nan");
    else if (isinf(x->f))
        print_text(s, x->f < 0 ? "-inf" : "inf");
    else {
        fxa__decimal_write(x->f, text);
        print_text(s, text);
    }
}

/* Returns true for a constant that is printed with a minus sign. */
static bool print_is_negative(const fxa__node *x) {
    if (x->op != FXA_OP_CONST) return false;
    return x->type == FXA_INT ? x->imm < 0 : x->type == FXA_FLOAT && !isnan(x->f) && signbit(x->f);
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* Returns true if node n, of type `type`, is a cast that can be omitted. */
static bool print_can_drop(const print_state *s, int32_t n, uint32_t type) {
    FXA__ASSERT(s->p->nodes[n].type == type); /* the builder has converted every operand */
    return s->mark[n].let < 0 && fxa__print_is_cast(s->p, n);
}

/* Removes from the operands arg[first..n) those casts that the builder inserts again when the text is parsed. If
 * `common`, the builder converts all operands to the widest type among them, so one operand must keep its cast. */
static void print_drop_casts(const print_state *s, int32_t *arg, int first, int n, uint32_t type, bool common) {
    bool kept = !common;
    for (int i = first; i < n; i++) kept = kept || !print_can_drop(s, arg[i], type);
    for (int i = first; i < n; i++) {
        if (!print_can_drop(s, arg[i], type)) continue;
        if (kept) arg[i] = s->p->nodes[arg[i]].arg[0];
        kept = true;
    }
}

/* Returns the rank by which commutative operands are ordered in text: inputs first, constants last. */
static int print_rank(const print_state *s, int32_t n) {
    while (fxa__print_is_cast(s->p, n)) n = s->p->nodes[n].arg[0];
    const fxa__node *x = &s->p->nodes[n];
    switch (x->op) {
    case FXA_OP_INPUT: return x->imm;
    case FXA_OP_PARAM: return 100;
    case FXA_OP_LOAD: return 110 + (x->n_args && fxa__print_is_leaf(s->p, n) ? print_rank(s, x->arg[0]) : 0);
    case FXA_OP_CONST: return 1000;
    default: return 500;
    }
}

/* Returns true if operand y of the node is written before operand x: y has the lower print_rank, or only y is the same
 * operation as the node. So a + b + x needs no parentheses for y = a + b. */
static bool print_swaps(const print_state *s, const fxa__node *node, int32_t x, int32_t y) {
    const fxa__op_info *info = fxa__op_info_get(node->op);
    bool compare = info->sig == FXA__SIG_CMP;
    if (!compare && !(info->flags & FXA__OP_COMM)) return false;
    bool x_same = s->mark[x].let < 0 && s->p->nodes[x].op == node->op;
    bool y_same = s->mark[y].let < 0 && s->p->nodes[y].op == node->op;
    if (!compare && info->form == FXA__INFIX && x_same != y_same) return y_same;
    int a = print_rank(s, x), b = print_rank(s, y);
    /* A constant factor comes first: 2 * x. The builder folds products of two constants, so x is no constant. */
    if (node->op == FXA_OP_MUL && b == 1000) return true;
    return b < a;
}

/* Sets arg[] to the operands of a node in the order of the text, without casts that can be omitted. Returns the text of
 * its operator. */
static const char *print_operands(const print_state *s, const fxa__node *x, int32_t arg[FXA_MAX_RANK]) {
    const fxa__op_info *info = fxa__op_info_get(x->op);
    memcpy(arg, x->arg, sizeof x->arg);
    if (x->n_args == 0) return info->text;
    uint32_t type = s->p->nodes[arg[x->n_args - 1]].type;
    bool swapped = x->n_args == 2 && print_swaps(s, x, arg[0], arg[1]);
    if (swapped) {
        arg[0] = x->arg[1];
        arg[1] = x->arg[0];
    }
    switch (info->sig) {
    case FXA__SIG_REAL: print_drop_casts(s, arg, 0, x->n_args, FXA_FLOAT, false); break;
    case FXA__SIG_SHIFT: print_drop_casts(s, arg, 0, x->n_args, FXA_INT, false); break;
    case FXA__SIG_ARITH:
    case FXA__SIG_CMP: print_drop_casts(s, arg, 0, x->n_args, type, type == FXA_FLOAT); break;
    case FXA__SIG_BITS: print_drop_casts(s, arg, 0, x->n_args, type, true); break;
    case FXA__SIG_CHOICE: print_drop_casts(s, arg, 1, x->n_args, type, true); break;
    default: break;
    }
    if (swapped && x->op == FXA_OP_LT) return fxa__op_info_get(FXA_OP_GT)->text;
    if (swapped && x->op == FXA_OP_LE) return fxa__op_info_get(FXA_OP_GE)->text;
    return fxa__op_spelling(x->op, x->type == FXA_BOOL).text;
}

/* ---- Expressions ------------------------------------------------------------------------------------------------- */

/* Returns the precedence of the expression of a node. */
static int print_precedence(const fxa__node *x) {
    if (print_is_negative(x)) return FXA__PREC_PREFIX;
    return fxa__op_spelling(x->op, x->type == FXA_BOOL).prec;
}

static void print_value(print_state *s, int32_t n, int min_prec);

static void print_list(print_state *s, const int32_t *value, int n) {
    for (int i = 0; i < n; i++) {
        if (i) print_text(s, ", ");
        print_value(s, value[i], FXA__PREC_ANY);
    }
}

/* Prints an infix operator with parentheses around operands that the parser would group otherwise. */
static void print_infix(print_state *s, const fxa__node *x, const char *text, const int32_t *arg) {
    int own = print_precedence(x), left = own, right = own + 1;
    if (x->op == FXA_OP_POW) {
        left = FXA__PREC_ATOM;
        right = FXA__PREC_PREFIX;
    } else if (own == FXA__PREC_COMPARE) {
        left = own + 1;
    }
    print_value(s, arg[0], left);
    print_text(s, " ");
    print_text(s, text);
    print_text(s, " ");
    print_value(s, arg[1], right);
}

/* Prints the expression of a node, even if it has a let. */
static void print_node(print_state *s, int32_t n) {
    const fxa__node *x = &s->p->nodes[n];
    int32_t arg[FXA_MAX_RANK];
    const char *text = print_operands(s, x, arg);
    switch (x->op) {
    case FXA_OP_CONST: print_constant(s, x); return;
    case FXA_OP_INPUT: print_text(s, fxa__input_name((uint32_t)x->imm)); return;
    case FXA_OP_PARAM: print_text(s, s->p->params[x->imm].name); return;
    case FXA_OP_LOAD:
        print_text(s, s->p->tensors[x->imm].name);
        print_text(s, "[");
        print_list(s, arg, x->n_args);
        print_text(s, "]");
        return;
    default: break;
    }
    switch (fxa__op_info_get(x->op)->form) {
    case FXA__INFIX: print_infix(s, x, text, arg); return;
    case FXA__PREFIX:
        print_text(s, text);
        print_value(s, arg[0], FXA__PREC_PREFIX);
        return;
    default:
        print_text(s, text);
        print_text(s, "(");
        print_list(s, arg, x->n_args);
        print_text(s, ")");
    }
}

static void print_let_name(print_state *s, int32_t let) {
    char text[FXA_MAX_NAME + 16];
    (void)snprintf(text, sizeof text, "%s%d", s->prefix, let);
    print_text(s, text);
}

/* Prints a node as an operand, in parentheses if its precedence is below min_prec. */
static void print_value(print_state *s, int32_t n, int min_prec) {
    if (s->max_bytes && s->w.size > s->max_bytes) return;
    if (s->mark[n].let >= 0) {
        print_let_name(s, s->mark[n].let);
        return;
    }
    bool wrap = print_precedence(&s->p->nodes[n]) < min_prec;
    if (wrap) print_text(s, "(");
    print_node(s, n);
    if (wrap) print_text(s, ")");
}

/* ---- Statements -------------------------------------------------------------------------------------------------- */

static void print_declarations(print_state *s) {
    const fxa_program *p = s->p;
    char text[FXA_MAX_NAME + 48];
    for (int32_t i = 0; i < p->n_params; i++) {
        const fxa__decl *d = &p->params[i];
        fxa__node value = {.op = FXA_OP_CONST, .type = d->type, .imm = fxa__toint(d->value), .f = d->value};
        (void)snprintf(text, sizeof text, "param %s : %s%s", d->name, fxa__type_name(d->type),
                       d->has_value ? " = " : "");
        print_text(s, text);
        if (d->has_value) print_constant(s, &value);
        print_text(s, "\n");
    }
    for (int32_t i = 0; i < p->n_tensors; i++) {
        const fxa__decl *t = &p->tensors[i];
        const char *dtype = fxa_dtype_name((fxa_dtype)t->dtype);
        (void)snprintf(text, sizeof text, "tensor %s : %s[%d]\n", t->name, dtype, t->rank);
        print_text(s, text);
    }
}

/* Returns true if an output has its default value, so that it need not be assigned. */
static bool print_is_default(const print_state *s, const fxa__output *o) {
    const fxa__node *x = &s->p->nodes[o->value];
    switch (o->kind) {
    case FXA__OUT_SCORE: return x->op == FXA_OP_INPUT; /* score is the only float input of a score program */
    case FXA__OUT_MASK: return x->op == FXA_OP_CONST && x->imm == 1;
    case FXA__OUT_DSCORE: return x->op == FXA_OP_INPUT && x->imm == FXA_INPUT_DSCORE;
    default: return false;
    }
}

static void print_output(print_state *s, const fxa__output *o) {
    static const char *const begin[] = {"score = ", "mask = ", "dscore = ", "grad ", "grad "};
    if (print_is_default(s, o)) return;
    print_text(s, begin[o->kind]);
    if (o->kind == FXA__OUT_DPARAM) print_text(s, s->p->params[o->slot].name);
    if (o->kind == FXA__OUT_DLOAD) {
        print_text(s, s->p->tensors[o->slot].name);
        print_text(s, "[");
        print_list(s, o->index, o->n_index);
        print_text(s, "]");
    }
    if (o->kind >= FXA__OUT_DPARAM) print_text(s, " += ");
    print_value(s, o->value, FXA__PREC_ANY);
    print_text(s, "\n");
}

/* Prints the outputs in an order in which no line reads a name that an earlier line has assigned:
 *     SCORE       score, mask; but mask, score if the mask reads the input score
 *     DERIVATIVE  gradients, dscore
 *     FUSED       mask, gradients, dscore, score */
static void print_outputs(print_state *s) {
    const fxa_program *p = s->p;
    int32_t dscore = p->kind == FXA__PROGRAM_FUSED ? 2 : -1;
    bool first_last = p->kind != FXA_PROGRAM_SCORE || s->mark[p->outputs[1].value].reads_score;
    if (!first_last) print_output(s, &p->outputs[0]);
    for (int32_t i = 1; i < p->n_outputs; i++)
        if (i != dscore) print_output(s, &p->outputs[i]);
    if (dscore >= 0) print_output(s, &p->outputs[dscore]);
    if (first_last) print_output(s, &p->outputs[0]);
}

static void print_program(print_state *s) {
    fxa__print_mark_nodes(s->p, s->mark);
    fxa__print_choose_prefix(s->p, s->prefix);
    print_declarations(s);
    for (int32_t n = 0; n < s->p->n_nodes; n++) {
        if (s->mark[n].let < 0) continue;
        print_text(s, "let ");
        print_let_name(s, s->mark[n].let);
        print_text(s, " = ");
        print_node(s, n);
        print_text(s, "\n");
    }
    print_outputs(s);
}

fxa_status fxa_program_print(const fxa_program *program, char *out, size_t capacity, size_t *needed, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!program || (!out && !needed))
        return fxa__fail(err, FXA_E_ARGUMENT, program ? "both out and needed are NULL" : "program is NULL");
    print_state s = {.w = {.host = program->host}, .p = program};
    size_t n_nodes = (size_t)program->n_nodes, size = 0;
    fxa_status status;
    s.mark = fxa__alloc_array(program->host, n_nodes, sizeof *s.mark);
    if (s.mark) {
        print_program(&s);
        fxa__write_u8(&s.w, 0);
    }
    if (!s.mark || s.w.failed) {
        status = fxa__fail_memory(err, "the text of a program");
    } else {
        status = fxa__bytes_out(s.w.data, s.w.size, out, capacity, &size, err);
        if (needed) *needed = size - 1;
    }
    fxa__writer_free(&s.w);
    fxa__free(program->host, s.mark, n_nodes * sizeof *s.mark);
    return status;
}

/* Prints without lets, so shared nodes are written at every use; max_bytes limits the text. */
void fxa__program_print_value(const fxa_program *p, int32_t node, size_t max_bytes, fxa__writer *w) {
    print_state s = {.w = {.host = p->host}, .p = p, .max_bytes = max_bytes};
    size_t n = (size_t)p->n_nodes;
    s.mark = fxa__alloc_array(p->host, n, sizeof *s.mark);
    for (size_t i = 0; s.mark && i < n; i++) s.mark[i].let = -1;
    if (s.mark) print_value(&s, node, FXA__PREC_ANY);
    w->failed = w->failed || !s.mark || s.w.failed;
    if (!w->failed) fxa__write_bytes(w, s.w.data, s.w.size < max_bytes ? s.w.size : max_bytes);
    if (!w->failed && s.w.size > max_bytes) fxa__write_bytes(w, "...", 3);
    fxa__writer_free(&s.w);
    fxa__free(p->host, s.mark, n * sizeof *s.mark);
}
