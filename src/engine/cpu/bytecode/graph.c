/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the graph of a tape from a program. The graph
 *   - has the program's nodes, each with its level: how often its value is computed (tape_code.h)
 *   - marks ints that are k or -k, where k is the key coordinate, plus a value that does not depend on k
 *   - finds loads whose index is such an int
 *   - lists the results (roots)
 * Nodes that do not come from the program are appended. Their level is lower than that of the nodes that read them, so
 * within a level operands precede readers.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../lower/affine.h"
#include "../../../lower/depend.h"
#include "../../../lower/exact_zero.h"

#include <math.h>
#include <string.h>

enum { GRAPH_MAX_CONJUNCTS = 64 };

int32_t fxa__tape_graph_add(fxa__tape_graph *g, const fxa__tape_node *node) {
    fxa__tape_node copy = *node; /* `node` may point into g->nodes, which may move when it grows */
    if (g->failed || g->n_nodes >= INT32_MAX - 1 ||
        !fxa__grow(g->host, &g->nodes, &g->nodes_capacity, g->n_nodes + 1, sizeof *g->nodes)) {
        g->failed = true;
        return -1;
    }
    g->nodes[g->n_nodes] = copy;
    return (int32_t)g->n_nodes++;
}

void fxa__tape_graph_root(fxa__tape_graph *g, uint32_t kind, int32_t slot, int32_t node, int32_t access) {
    if (g->failed || !fxa__grow(g->host, &g->roots, &g->roots_capacity, g->n_roots + 1, sizeof *g->roots)) {
        g->failed = true;
        return;
    }
    g->roots[g->n_roots++] = (fxa__tape_root){.kind = kind, .slot = slot, .node = node, .access = access};
}

enum {
    GRAPH_SCORE = 1 << FXA_INPUT_SCORE | 1 << FXA_INPUT_DSCORE,
    GRAPH_ROW = 1 << FXA_INPUT_H | FXA__OF_ROW,
    GRAPH_KEY = FXA__OF_KEY
};

/* Returns the level of a value that depends on `inputs`; never SHARED, which fxa__tape_graph_share sets later. */
static uint8_t graph_level(uint32_t inputs) {
    if (inputs & GRAPH_SCORE || (inputs & GRAPH_KEY && inputs & GRAPH_ROW)) return TAPE_FULL;
    return inputs & GRAPH_KEY ? TAPE_COLUMN : inputs & GRAPH_ROW ? TAPE_ROW : TAPE_UNIFORM;
}

static void graph_set_inputs(fxa__tape_node *n, uint32_t inputs) {
    n->inputs = (uint16_t)inputs;
    n->level = graph_level(inputs);
}

/* Adds an int operation of two nodes. Returns its index; -1 after a failure. */
static int32_t graph_binary(fxa__tape_graph *g, uint32_t op, int32_t a, int32_t b) {
    fxa__tape_node n = {.op = (uint8_t)op, .type = FXA_INT, .n_args = 2, .axis = -1, .arg = {a, b}};
    if (g->failed) return -1;
    graph_set_inputs(&n, (uint32_t)g->nodes[a].inputs | g->nodes[b].inputs);
    return fxa__tape_graph_add(g, &n);
}

/* Adds an int constant. Returns its index; -1 after a failure. */
static int32_t graph_int(fxa__tape_graph *g, int32_t value) {
    fxa__tape_node n = {.op = FXA_OP_CONST, .type = FXA_INT, .axis = -1, .imm = value};
    return fxa__tape_graph_add(g, &n);
}

/* ---- Ints of the form k + offset --------------------------------------------------------------------------------- */

/* Sets sign and offset of node i if its value is sign * k + offset, where k is the key coordinate and the offset does
 * not depend on k. The forms that have such a value: k, and -x, x + v, v + x, x - v and v - x, where x is a node with
 * sign and offset, and v does not depend on k. */
static void graph_find_affine(fxa__tape_graph *g, int32_t i, const fxa__linear *form) {
    fxa__tape_node n = g->nodes[i];
    if (n.type != FXA_INT || !fxa__lower_key_sign(form)) return;
    int32_t zero = n.op == FXA_OP_INPUT ? graph_int(g, 0) : -1;
    if (g->failed) return;
    if (zero >= 0) {
        g->key = i;
        n.sign = 1;
        n.offset = zero;
    } else if (n.op == FXA_OP_NEG && g->nodes[n.arg[0]].sign) {
        fxa__tape_node negated = {.op = FXA_OP_NEG, .type = FXA_INT, .n_args = 1, .axis = -1};
        negated.arg[0] = g->nodes[n.arg[0]].offset;
        graph_set_inputs(&negated, g->nodes[negated.arg[0]].inputs);
        n.sign = (int8_t)-g->nodes[n.arg[0]].sign;
        n.offset = fxa__tape_graph_add(g, &negated);
    } else if (n.op == FXA_OP_ADD || n.op == FXA_OP_SUB) {
        const fxa__tape_node a = g->nodes[n.arg[0]], b = g->nodes[n.arg[1]];
        if (a.sign && !fxa__tape_has_keys(b.level)) {
            n.sign = a.sign;
            n.offset = graph_binary(g, n.op, a.offset, n.arg[1]);
        } else if (b.sign && !fxa__tape_has_keys(a.level)) {
            n.sign = n.op == FXA_OP_SUB ? (int8_t)-b.sign : b.sign;
            n.offset = graph_binary(g, n.op, n.arg[0], b.offset);
        }
    }
    if (!g->failed) g->nodes[i] = n;
}

static bool graph_is_row(const fxa__tape_graph *g, int32_t node) { return fxa__tape_has_keys(g->nodes[node].level); }

/* An index of a load as clamp(line, lo, hi) + shift. Only `line` depends on k, the key coordinate. */
typedef struct graph_index {
    int32_t line, lo, hi, shift; /* nodes; shift -1 = none */
    bool bounded;
} graph_index;

/* Moves added and subtracted values that do not depend on k, the key coordinate, from x->line to x->shift. */
static void graph_take_shift(fxa__tape_graph *g, graph_index *x) {
    while (!g->failed && !g->nodes[x->line].sign) {
        const fxa__tape_node n = g->nodes[x->line];
        bool add = n.op == FXA_OP_ADD, left = add && !graph_is_row(g, n.arg[0]);
        if ((!add && n.op != FXA_OP_SUB) || (!left && graph_is_row(g, n.arg[1]))) return;
        int32_t by = n.arg[!left];
        int32_t before = x->shift >= 0 ? x->shift : graph_int(g, 0);
        x->shift = graph_binary(g, n.op, before, by);
        x->line = n.arg[left];
    }
}

/* Moves a clamp, min or max whose bounds do not depend on k, the key coordinate, from x->line to x->lo and x->hi. */
static void graph_take_bounds(fxa__tape_graph *g, graph_index *x) {
    const fxa__tape_node n = g->nodes[x->line];
    if (n.op == FXA_OP_CLAMP && !graph_is_row(g, n.arg[1]) && !graph_is_row(g, n.arg[2])) {
        *x = (graph_index){.line = n.arg[0], .lo = n.arg[1], .hi = n.arg[2], .shift = x->shift, .bounded = true};
    } else if ((n.op == FXA_OP_MIN || n.op == FXA_OP_MAX) && graph_is_row(g, n.arg[0]) != graph_is_row(g, n.arg[1])) {
        bool left = graph_is_row(g, n.arg[1]); /* the bound is the left operand */
        int32_t open = graph_int(g, n.op == FXA_OP_MIN ? INT32_MIN : INT32_MAX), bound = n.arg[!left];
        x->line = n.arg[left];
        x->lo = n.op == FXA_OP_MIN ? open : bound;
        x->hi = n.op == FXA_OP_MIN ? bound : open;
        x->bounded = true;
    }
}

/* Sets the axis of a load if exactly one index depends on the key coordinate k, and that index is sign * k plus a
 * value, perhaps clamped. Evenly spaced keys then load evenly spaced elements, except where the index is clamped. */
static void graph_find_axis(fxa__tape_graph *g, fxa__tape_node *load) {
    int axis = -1, rank = load->n_args;
    load->axis = -1;
    for (int i = 0; i < rank; i++) {
        if (!graph_is_row(g, load->arg[i])) continue;
        if (axis >= 0) return;
        axis = i;
    }
    if (axis < 0) return;
    graph_index x = {.line = load->arg[axis], .shift = -1};
    graph_take_shift(g, &x);
    if (!g->failed && !g->nodes[x.line].sign) graph_take_bounds(g, &x);
    if (g->failed || !g->nodes[x.line].sign) return;
    load->axis = (int8_t)axis;
    load->axis_sign = g->nodes[x.line].sign;
    load->arg[axis] = g->nodes[x.line].offset;
    if (!x.bounded) return;
    load->arg[rank] = x.lo;
    load->arg[rank + 1] = x.hi;
    load->arg[rank + 2] = x.shift >= 0 ? x.shift : graph_int(g, 0);
    load->n_args = (uint8_t)(rank + 3);
}

/* ---- Import ------------------------------------------------------------------------------------------------------ */

/* Returns the node that stands for program node i: with_grad, and int() of an int or bool, are replaced by their first
 * operand. */
static int32_t graph_same(const fxa_program *p, int32_t i) {
    while (fxa__tape_is_through(p, &p->nodes[i])) i = p->nodes[i].arg[0];
    return i;
}

/* Properties of the program's nodes, all [n_nodes]. */
typedef struct graph_known {
    fxa__linear *forms; /* int nodes as affine forms of the inputs */
    fxa__depend *sets;  /* inputs that a node depends on */
    bool *zero;         /* the node is 0 wherever dscore is 0 */
} graph_known;

/* Makes node i of the graph from node i of the program. */
static void graph_import(fxa__tape_graph *g, int32_t i, const graph_known *known) {
    const fxa__node *from = &g->program->nodes[i];
    fxa__tape_node *n = &g->nodes[i];
    *n = (fxa__tape_node){.op = fxa__tape_op_of(from), .type = from->type, .n_args = from->n_args, .axis = -1};
    n->imm = from->imm;
    n->f = from->f;
    n->word = from->half;
    n->zero = known->zero[i];
    graph_set_inputs(n, known->sets[i].inputs);
    for (int k = 0; k < n->n_args; k++) {
        FXA__ASSERT(from->arg[k] < i);
        n->arg[k] = graph_same(g->program, from->arg[k]);
    }
    if (n->op != FXA_OP_LOAD) {
        graph_find_affine(g, i, &known->forms[i]);
        return;
    }
    fxa__tape_node load = *n;
    graph_find_axis(g, &load);
    if (!g->failed) g->nodes[i] = load;
}

/* Makes a node of the graph from each node of the program. */
static void graph_import_all(fxa__tape_graph *g) {
    const fxa_program *p = g->program;
    size_t n = (size_t)p->n_nodes;
    graph_known known = {.forms = fxa__alloc_array(g->host, n, sizeof *known.forms)};
    known.sets = fxa__alloc_array(g->host, n, sizeof *known.sets);
    known.zero = fxa__alloc_array(g->host, n, sizeof *known.zero);
    g->failed = g->failed || !known.forms || !known.sets || !known.zero;
    if (!g->failed) {
        fxa__lower_affine(p, known.forms);
        fxa__lower_depend(p, NULL, known.sets);
        fxa__lower_exact_zero(p, known.zero);
    }
    for (int32_t i = 0; i < p->n_nodes && !g->failed; i++) graph_import(g, i, &known);
    fxa__free(g->host, known.forms, n * sizeof *known.forms);
    fxa__free(g->host, known.sets, n * sizeof *known.sets);
    fxa__free(g->host, known.zero, n * sizeof *known.zero);
}

/* ---- Roots ------------------------------------------------------------------------------------------------------- */

/* Returns the node of the form sign * k + offset, where k is the key coordinate: `node` itself, or its operand if
 * `node` is an absolute value; NULL if there is none. Sets *absolute to true for an absolute value. */
static const fxa__tape_node *graph_line(const fxa__tape_graph *g, int32_t node, bool *absolute) {
    const fxa__tape_node *n = &g->nodes[node];
    *absolute = n->op == FXA_OP_ABS && n->type == FXA_INT;
    if (*absolute) n = &g->nodes[n->arg[0]];
    return n->sign ? n : NULL;
}

/* Converts the comparison `node` to a range of columns if it compares x = sign * k + offset, where k is the key
 * coordinate, with a bound that does not depend on k, or if it is an inequality of abs(x) and such a bound. If
 * *negated, the comparison is true outside of the range: b < abs(x) is the negation of abs(x) <= b. */
bool fxa__tape_graph_range(const fxa__tape_graph *g, int32_t node, fxa__tape_node *range, bool *negated) {
    const fxa__tape_node n = g->nodes[node];
    bool order = n.op == FXA_OP_LT || n.op == FXA_OP_LE, strict = n.op == FXA_OP_LT, absolute = false;
    *negated = n.op == FXA_OP_NE;
    if (!order && n.op != FXA_OP_EQ && n.op != FXA_OP_NE) return false;
    const fxa__tape_node *line = graph_line(g, n.arg[0], &absolute);
    bool second = !line;
    if (second) line = graph_line(g, n.arg[1], &absolute);
    int32_t bound = n.arg[!second];
    if (!line || fxa__tape_has_keys(g->nodes[bound].level) || (absolute && !order)) return false;
    if (absolute && second) *negated = true, strict = !strict;
    uint32_t side = !order ? TAPE_AT : absolute ? TAPE_ABS : second ? TAPE_ABOVE : TAPE_BELOW;
    *range = (fxa__tape_node){.op = FXA__TAPE_WITHIN, .type = FXA_BOOL, .level = TAPE_FULL, .n_args = 2, .axis = -1};
    range->arg[0] = line->offset;
    range->arg[1] = bound;
    range->axis_sign = line->sign;
    range->imm = (int32_t)(side << 1 | strict);
    return true;
}

static bool graph_add_range(fxa__tape_graph *g, int32_t node) {
    fxa__tape_node range;
    bool negated;
    if (!fxa__tape_graph_range(g, node, &range, &negated) || negated) return false;
    fxa__tape_graph_root(g, FXA__OUT_MASK, -1, -1, fxa__tape_graph_add(g, &range));
    return true;
}

/* Adds the conjuncts of the mask to the results (roots), except those that are always true. */
static void graph_add_mask(fxa__tape_graph *g, int32_t mask) {
    int32_t stack[GRAPH_MAX_CONJUNCTS], depth = 0;
    stack[depth++] = mask;
    while (depth > 0) {
        int32_t i = stack[--depth];
        fxa__tape_node n = g->nodes[i];
        if (n.op == FXA_OP_AND && depth + 2 <= GRAPH_MAX_CONJUNCTS) {
            stack[depth++] = n.arg[1];
            stack[depth++] = n.arg[0];
        } else if ((n.op != FXA_OP_CONST || n.imm == 0) && !graph_add_range(g, i)) {
            fxa__tape_graph_root(g, FXA__OUT_MASK, -1, i, -1);
        }
    }
}

static void graph_add_grad(fxa__tape_graph *g, const fxa__output *out) {
    if (out->kind == FXA__OUT_DPARAM) {
        fxa__tape_graph_root(g, out->kind, out->slot, graph_same(g->program, out->value), -1);
        return;
    }
    fxa__tape_node target = {.op = FXA_OP_LOAD, .type = FXA_FLOAT, .imm = out->slot, .n_args = (uint8_t)out->n_index};
    for (int i = 0; i < out->n_index; i++) {
        target.arg[i] = graph_same(g->program, out->index[i]);
        graph_set_inputs(&target, (uint32_t)target.inputs | g->nodes[target.arg[i]].inputs);
    }
    graph_find_axis(g, &target);
    fxa__tape_graph_root(g, out->kind, out->slot, graph_same(g->program, out->value), fxa__tape_graph_add(g, &target));
}

/* Adds a result (root) for each output of the program that the tape computes. */
static void graph_add_roots(fxa__tape_graph *g, uint32_t flags) {
    for (int32_t i = 0; i < g->program->n_outputs && !g->failed; i++) {
        const fxa__output *out = &g->program->outputs[i];
        int32_t value = graph_same(g->program, out->value);
        switch (out->kind) {
        case FXA__OUT_SCORE:
            if (!(flags & FXA__TAPE_MASK_ALONE)) fxa__tape_graph_root(g, out->kind, -1, value, -1);
            break;
        case FXA__OUT_MASK:
            if (flags & FXA__TAPE_MASK_ALONE) fxa__tape_formula_make(g, value);
            if (flags & FXA__TAPE_MASK) graph_add_mask(g, value);
            break;
        case FXA__OUT_DSCORE:
            if (!(flags & FXA__TAPE_NO_DSCORE)) fxa__tape_graph_root(g, out->kind, -1, value, -1);
            break;
        default:
            if (flags & (FXA__TAPE_GRADS | FXA__TAPE_NO_DSCORE)) graph_add_grad(g, out);
        }
    }
}

bool fxa__tape_graph_make(fxa__tape_graph *g, fxa__host *host, const fxa_program *program, uint32_t flags) {
    *g = (fxa__tape_graph){.host = host, .program = program, .key = -1, .joint = flags & FXA__TAPE_JOINT};
    size_t n = (size_t)program->n_nodes;
    if (!fxa__grow(host, &g->nodes, &g->nodes_capacity, n, sizeof *g->nodes)) return false;
    g->n_nodes = n;
    graph_import_all(g);
    graph_add_roots(g, flags);
    return !g->failed;
}

void fxa__tape_graph_share(fxa__tape_graph *g) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        fxa__tape_node *n = &g->nodes[i];
        bool pair = n->inputs & (GRAPH_SCORE | FXA__OF_ROW);
        if (n->level == TAPE_FULL && !pair) n->level = TAPE_SHARED;
    }
}

void fxa__tape_graph_free(fxa__tape_graph *g) {
    fxa__free(g->host, g->nodes, g->nodes_capacity * sizeof *g->nodes);
    fxa__free(g->host, g->roots, g->roots_capacity * sizeof *g->roots);
}

/* ---- Uses -------------------------------------------------------------------------------------------------------- */

static void graph_need_args(fxa__tape_graph *g, const fxa__tape_node *n) {
    for (int k = 0; k < n->n_args; k++) g->nodes[n->arg[k]].needed = true;
}

static void graph_need_between(fxa__tape_graph *g, size_t begin, size_t end) {
    for (size_t i = end; i-- > begin;)
        if (g->nodes[i].needed) graph_need_args(g, &g->nodes[i]);
}

/* Propagates `needed` from nodes to their operands. Operands precede their readers, except that a node of the program
 * may read an appended node, which reads nodes of the program below level COLUMN (the same value for all keys). So
 * there are three passes: over the program's nodes, over the appended nodes, and over the program's nodes again. */
static void graph_need(fxa__tape_graph *g, uint32_t kinds) {
    size_t appended = (size_t)g->program->n_nodes;
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].needed = false;
    for (size_t i = 0; i < g->n_roots; i++) {
        if (!(kinds >> g->roots[i].kind & 1u)) continue;
        if (g->roots[i].node >= 0) g->nodes[g->roots[i].node].needed = true;
        if (g->roots[i].access >= 0) graph_need_args(g, &g->nodes[g->roots[i].access]);
    }
    graph_need_between(g, 0, appended);
    graph_need_between(g, appended, g->n_nodes);
    graph_need_between(g, 0, appended);
}

static void graph_use_args(fxa__tape_graph *g, const fxa__tape_node *n) {
    for (int k = 0; k < n->n_args; k++) g->nodes[n->arg[k]].uses++;
}

void fxa__tape_graph_count(fxa__tape_graph *g, uint32_t kinds) {
    graph_need(g, kinds);
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].uses = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].needed) graph_use_args(g, &g->nodes[i]);
    for (size_t i = 0; i < g->n_roots; i++) {
        if (!(kinds >> g->roots[i].kind & 1u)) continue;
        if (g->roots[i].node >= 0) g->nodes[g->roots[i].node].uses++;
        if (g->roots[i].access >= 0) graph_use_args(g, &g->nodes[g->roots[i].access]);
    }
}

void fxa__tape_graph_value(fxa__tape_graph *g) {
    fxa__tape_graph_count(g, TAPE_ROOTS_SCORE);
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].value = g->nodes[i].needed;
}
