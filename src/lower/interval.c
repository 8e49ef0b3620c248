/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the code that bounds a mask over a tile (interval.h). Variables in the generated text: v<node> is the value of
 * a node that is constant over the tile, s<node> the interval of a node that varies, w<node> the interval of an affine
 * form before it is clamped to 32 bits.
 */
#include "interval.h"

#include "affine.h"

#include "../base/dtype.h"
#include "../base/invariant.h"
#include "../base/num.h"

/* ---- Tables of the interval functions of interval_rules.h, by operation ------------------------------------------ */

#define INTERVAL_INT(ID, value) [FXA_OP_##ID] = "fxa__ints_" #ID,
#define INTERVAL_BOOL(ID, value) [FXA_OP_##ID] = "fxa__bools_" #ID,
#define INTERVAL_REAL(ID, value) [FXA_OP_##ID] = "fxa__reals_" #ID,
static const char *const interval_rules[4][FXA_OP_COUNT] = {
    [FXA_FLOAT] = {FXA__REAL_RULES(INTERVAL_REAL) FXA__REAL_COMPARES(INTERVAL_REAL)},
    [FXA_INT] = {FXA__INT_RULES(INTERVAL_INT)},
    [FXA_BOOL] = {FXA__BOOL_RULES(INTERVAL_BOOL)},
};

/* Bits of fxa__interval_text.order. INTERVAL_LOADS: the node depends on a load. INTERVAL_CONJUNCT: the node must be
 * true for the mask to be true, because it is the mask or an operand of a conjunction (`and`) that must be true. */
enum { INTERVAL_LOADS = 1, INTERVAL_CONJUNCT = 2 };

/* Returns true if the node varies over a tile, because the node depends on q or k. */
static bool interval_varies(const fxa__interval_text *v, int32_t node) { return v->emit.level[node] > FXA__EMIT_HEAD; }

/* Returns the type of a node's interval: fxa__real for floats, fxa__interval for ints and bools. */
static const char *interval_family(const fxa__interval_text *v, int32_t node) {
    return v->emit.p->nodes[node].type == FXA_FLOAT ? "real" : "interval";
}

/* ---- Affine forms ------------------------------------------------------------------------------------------------ */

/* Largest coefficient for which the sum of FXA_INPUT_COUNT terms cannot overflow 64 bits. */
enum { INTERVAL_MAX_COEF = 1 << 24 };

/* Returns true if the node is an int, is affine, and the bounds of its affine form can be computed in 64 bits. If these
 * bounds fit 32 bits, they also bound the value of the node. */
static bool interval_has_form(const fxa__interval_text *v, int32_t node) {
    const fxa__linear *f = &v->forms[node];
    if (v->emit.p->nodes[node].type != FXA_INT || f->nonaffine) return false;
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        if (f->coef[i] > INTERVAL_MAX_COEF || f->coef[i] < -INTERVAL_MAX_COEF) return false;
    return true;
}

/* Writes the lower bound, or with `largest` the upper bound, of an affine form over the tile q0..q1 x k0..k1. The text
 * is the form with q replaced by q0 or q1, and k by k0 or k1: the sign of the coefficient selects the end. */
static void interval_end(const fxa__linear *f, bool largest, fxa__writer *w) {
    fxa__write_format(w, "%lldLL", (long long)f->c);
    for (uint32_t i = 0; i < FXA_INPUT_COUNT; i++) {
        bool varies = i == FXA_INPUT_Q || i == FXA_INPUT_K;
        if (!f->coef[i]) continue;
        fxa__write_format(w, " + %lldLL * %s%s", (long long)f->coef[i], fxa__input_name(i),
                          !varies                       ? ""
                          : (f->coef[i] > 0) == largest ? "1"
                                                        : "0");
    }
}

/* Writes the interval of an affine form over a tile, computed in 64 bits. */
static void interval_ends(const fxa__linear *f, fxa__writer *w) {
    fxa__write_format(w, "fxa__interval_make(");
    interval_end(f, false, w);
    fxa__write_format(w, ", ");
    interval_end(f, true, w);
    fxa__write_format(w, ")");
}

/* Returns true if both sides of a comparison are affine and share q or k, so that the bounds of their difference are
 * tighter than the difference of their bounds. */
static bool interval_has_difference(const fxa__interval_text *v, const fxa__node *n) {
    if (n->n_args != 2 || n->type != FXA_BOOL || v->emit.p->nodes[n->arg[0]].type != FXA_INT) return false;
    const fxa__linear *x = &v->forms[n->arg[0]], *y = &v->forms[n->arg[1]];
    for (int k = 0; k < 2; k++)
        if (!interval_has_form(v, n->arg[k]) || !interval_varies(v, n->arg[k])) return false;
    return (x->coef[FXA_INPUT_Q] && y->coef[FXA_INPUT_Q]) || (x->coef[FXA_INPUT_K] && y->coef[FXA_INPUT_K]);
}

/* Writes a comparison of two affine ints x and y as a comparison of their difference: x < y becomes x - y < 0, with the
 * constants moved to the right side. This holds only if neither x nor y wraps, so the text is
 * "<neither x nor y wraps> ? <comparison of the difference> : ", and interval_operation writes what follows. */
static void interval_difference(const fxa__interval_text *v, const fxa__node *n, fxa__writer *w) {
    const fxa__linear *x = &v->forms[n->arg[0]], *y = &v->forms[n->arg[1]];
    fxa__linear difference = fxa__linear_sum(x, 1, y, -1);
    long long c = (long long)y->c - x->c;
    difference.c = 0;
    fxa__write_format(w, "fxa__interval_fits(w%d) && fxa__interval_fits(w%d) ? %s(", (int)n->arg[0], (int)n->arg[1],
                      interval_rules[FXA_INT][n->op]);
    interval_ends(&difference, w);
    fxa__write_format(w, ", fxa__interval_make(%lldLL, %lldLL)) : ", c, c);
}

/* ---- Operands and operations ------------------------------------------------------------------------------------- */

/* Writes a node as an operand of type fxa__interval or fxa__real: its variable, or its constant value as an
 * interval. */
static void interval_operand(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    bool real = v->emit.p->nodes[node].type == FXA_FLOAT;
    if (interval_varies(v, node)) {
        fxa__write_format(w, "s%d", (int)node);
        return;
    }
    fxa__write_format(w, real ? "fxa__real_point((double)" : "fxa__interval_make(");
    for (int k = 0; k < (real ? 1 : 2); k++) {
        if (k) fxa__write_format(w, ", ");
        fxa__lower_emit_value(&v->emit, node, w);
    }
    fxa__write_format(w, ")");
}

/* Writes a call of `name` with the first `count` operands of n; the last operand is repeated if n has fewer. */
static void interval_call(const fxa__interval_text *v, const fxa__node *n, const char *name, int count,
                          fxa__writer *w) {
    fxa__write_format(w, "%s(", name);
    for (int k = 0; k < count; k++) {
        if (k) fxa__write_format(w, ", ");
        interval_operand(v, n->arg[k < fxa__node_operands(n) ? k : fxa__node_operands(n) - 1], w);
    }
    fxa__write_format(w, ")");
}

static void interval_clamp(const fxa__interval_text *v, const fxa__node *n, fxa__writer *w) {
    const char *const *rules = interval_rules[n->type];
    fxa__write_format(w, "%s(", rules[FXA_OP_MIN]);
    interval_call(v, n, rules[FXA_OP_MAX], 2, w);
    fxa__write_format(w, ", ");
    interval_operand(v, n->arg[2], w);
    fxa__write_format(w, ")");
}

/* Writes == or != of two i64 loads, compared in all 64 bits. */
static void interval_wide(const fxa__interval_text *v, const fxa__node *n, fxa__writer *w) {
    fxa__write_format(w, n->op == FXA_OP_NE ? "fxa__bools_NOT(fxa__interval_whole(" : "fxa__interval_whole(");
    interval_call(v, n, interval_rules[FXA_INT][FXA_OP_EQ], 2, w);
    fxa__write_format(w, ", ");
    interval_operand(v, n->arg[0], w);
    fxa__write_format(w, n->op == FXA_OP_NE ? "), fxa__interval_any())" : ")");
}

static void interval_cast(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    const fxa__node *n = &v->emit.p->nodes[node];
    bool same = (n->type == FXA_FLOAT) == (v->emit.p->nodes[n->arg[0]].type == FXA_FLOAT);
    const char *cast = n->type == FXA_FLOAT ? "fxa__real_of_interval" : "fxa__interval_of_real";
    if (same) /* int(bool) has the interval of its operand, because false is 0 and true is 1 */
        interval_operand(v, n->arg[0], w);
    else
        interval_call(v, n, cast, 1, w);
}

/* Writes the expression of a node's interval: the rule of the node's operation, called with the intervals of the
 * operands. Writes the unbounded interval if the operation has no rule. */
static void interval_operation(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    const fxa__node *n = &v->emit.p->nodes[node];
    const char *rule = interval_rules[v->emit.p->nodes[n->arg[0]].type][n->op];
    if (n->op == FXA_OP_CLAMP)
        interval_clamp(v, n, w);
    else if (n->op == FXA_OP_SELECT)
        interval_call(v, n, n->type == FXA_FLOAT ? "fxa__real_select" : "fxa__interval_select", 3, w);
    else if (n->op == FXA_OP_FLOAT || n->op == FXA_OP_INT)
        interval_cast(v, node, w);
    else if (fxa__node_compares_wide(v->emit.p, n))
        interval_wide(v, n, w);
    else if (rule)
        interval_call(v, n, rule, 2, w);
    else
        fxa__write_format(w, "fxa__%s_any()", interval_family(v, node));
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

/* Returns the only axis of a load whose index varies over the tile; -1 if there is none or more than one. */
static int interval_axis(const fxa__interval_text *v, const fxa__node *load) {
    int axis = -1;
    for (int d = 0; d < load->n_args; d++) {
        if (!interval_varies(v, load->arg[d])) continue;
        if (axis >= 0) return -1;
        axis = d;
    }
    return axis;
}

/* Returns the index in v->tables of the {min, max} table for a load of ints or bools; adds the table if it is new.
 * Returns -1 if the node can have no table or v->tables is full. */
static int8_t interval_find_table(fxa__interval_text *v, const fxa__node *n) {
    int axis = n->op == FXA_OP_LOAD && n->type != FXA_FLOAT ? interval_axis(v, n) : -1;
    if (axis < 0) return -1;
    for (int32_t i = 0; i < v->n_tables; i++)
        if (v->tables[i].tensor == n->imm && v->tables[i].axis == axis) return (int8_t)i;
    if (v->n_tables == FXA__INTERVAL_TABLES) return -1;
    v->tables[v->n_tables] = (fxa__interval_table){n->imm, axis};
    return (int8_t)v->n_tables++;
}

/* Writes two variables of a load that has a {min, max} table: r<node>, the row of the table that the load reads, and
 * i<node>, 1 if the indices of all axes except the table's axis are in bounds, else 0. */
static void interval_row(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    const fxa__node *n = &v->emit.p->nodes[node];
    FXA__ASSERT(v->table[node] >= 0 && v->table[node] < v->n_tables && v->tables[v->table[node]].tensor == n->imm);
    fxa__write_format(w, "    long long r%d = 0;\n    const int i%d = 1", (int)node, (int)node);
    for (int d = 0; d < n->n_args; d++) {
        if (d == v->tables[v->table[node]].axis) continue;
        fxa__write_format(w, " & fxa__at_row(%stensor[%d].size[%d], ", fxa__lower_emit_args(v->emit.dialect),
                          (int)n->imm, d);
        fxa__lower_emit_value(&v->emit, n->arg[d], w);
        fxa__write_format(w, ", &r%d)", (int)node);
    }
    fxa__write_format(w, ";\n");
}

static void interval_load(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    const fxa__node *n = &v->emit.p->nodes[node];
    const fxa__interval_table *t = &v->tables[v->table[node]];
    if (n->type == FXA_BOOL) fxa__write_format(w, "fxa__interval_truth(");
    fxa__write_format(w, "i%d ? load_range(a, %d, r%d, %stensor[%d].size[%d], ", (int)node, v->table[node], (int)node,
                      fxa__lower_emit_args(v->emit.dialect), (int)t->tensor, (int)t->axis);
    interval_operand(v, n->arg[t->axis], w);
    fxa__write_format(w, ") : fxa__interval_make(0, 0)%s", n->type == FXA_BOOL ? ")" : "");
}

/* ---- The body of the generated function -------------------------------------------------------------------------- */

static void interval_leaf(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    if (v->emit.given[node])
        fxa__write_format(w, "%s", v->emit.given[node]);
    else if (v->table[node] >= 0)
        interval_load(v, node, w);
    else if (v->emit.p->nodes[node].type == FXA_BOOL)
        fxa__write_format(w, "fxa__interval_make(0, 1)");
    else
        /* unbounded: the node is the score, or a load without a {min, max} table */
        fxa__write_format(w, "fxa__%s_any()", interval_family(v, node));
}

static void interval_statement(const fxa__interval_text *v, int32_t node, fxa__writer *w) {
    const fxa__node *n = &v->emit.p->nodes[node];
    bool form = interval_has_form(v, node);
    if (v->table[node] >= 0 && !v->emit.given[node]) interval_row(v, node, w);
    if (form) {
        fxa__write_format(w, "    const fxa__interval w%d = ", (int)node);
        interval_ends(&v->forms[node], w);
        fxa__write_format(w, ";\n");
    }
    fxa__write_format(w, "    const fxa__%s s%d = ", interval_family(v, node), (int)node);
    if (form) {
        fxa__write_format(w, "fxa__interval_clip(w%d.lo, w%d.hi)", (int)node, (int)node);
    } else if (fxa__op_info_get(n->op)->sig == FXA__SIG_LEAF) {
        interval_leaf(v, node, w);
    } else {
        if (interval_has_difference(v, n)) interval_difference(v, n, w);
        interval_operation(v, node, w);
    }
    fxa__write_format(w, ";\n");
}

static bool interval_is_and(const fxa__node *n) { return n->op == FXA_OP_AND && n->type == FXA_BOOL; }

/* Writes early returns: the tile is empty if an operand of the mask's conjunction is false everywhere. */
static void interval_return_empty(const fxa__interval_text *v, fxa__writer *w) {
    for (int32_t i = 0; i <= v->mask; i++)
        if (v->order[i] == INTERVAL_CONJUNCT && interval_varies(v, i) && !interval_is_and(&v->emit.p->nodes[i]))
            fxa__write_format(w, "    if (!s%d.hi) return TILE_EMPTY;\n", (int)i);
}

/* Statements of nodes that do not depend on a load come first: a tile that these statements decide reads no {min, max}
 * table of a tensor. */
void fxa__lower_interval_text(const fxa__interval_text *v, fxa__writer *w) {
    uint32_t kind = 1u << FXA__OUT_MASK;
    fxa__lower_emit_nodes(&v->emit, FXA__EMIT_RUN, kind, w);
    fxa__lower_emit_nodes(&v->emit, FXA__EMIT_HEAD, kind, w);
    for (int loads = 0; loads <= INTERVAL_LOADS; loads++) {
        for (int32_t i = 0; i <= v->mask; i++)
            if (interval_varies(v, i) && (v->emit.used[i] & kind) && (v->order[i] & INTERVAL_LOADS) == loads)
                interval_statement(v, i, w);
        if (!loads && (v->order[v->mask] & INTERVAL_LOADS)) interval_return_empty(v, w);
    }
    fxa__write_format(w, "    const fxa__interval all = ");
    interval_operand(v, v->mask, w);
    fxa__write_format(w, ";\n    return all.lo ? TILE_FULL : all.hi ? TILE_PARTIAL : TILE_EMPTY;\n");
}

/* Marks as used every node that varies over a tile and that the mask depends on. Each of these nodes has a statement in
 * the generated text, even a product that emit.c would fuse into a sum. */
static void interval_mark(fxa__interval_text *v) {
    for (int32_t i = v->mask; i >= 0; i--) {
        const fxa__node *n = &v->emit.p->nodes[i];
        for (int j = 0; v->emit.used[i] && interval_varies(v, i) && j < fxa__node_operands(n); j++)
            if (interval_varies(v, n->arg[j])) v->emit.used[n->arg[j]] |= v->emit.used[i];
    }
}

/* Fills v->order with the bits INTERVAL_LOADS and INTERVAL_CONJUNCT of every node. */
static void interval_order(fxa__interval_text *v) {
    const fxa_program *p = v->emit.p;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        v->order[i] = p->nodes[i].op == FXA_OP_LOAD ? INTERVAL_LOADS : 0;
        for (int k = 0; k < p->nodes[i].n_args; k++) v->order[i] |= v->order[p->nodes[i].arg[k]];
    }
    v->order[v->mask] |= INTERVAL_CONJUNCT;
    for (int32_t i = v->mask; i >= 0; i--)
        for (int k = 0; (v->order[i] & INTERVAL_CONJUNCT) && interval_is_and(&p->nodes[i]) && k < 2; k++)
            v->order[p->nodes[i].arg[k]] |= INTERVAL_CONJUNCT;
}

bool fxa__lower_interval_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, fxa__interval_text *out) {
    size_t n = (size_t)p->n_nodes;
    *out = (fxa__interval_text){.mask = fxa__program_output(p, FXA__OUT_MASK)};
    bool ok = fxa__lower_emit_open(host, p, dialect, 1u << FXA__OUT_MASK, &out->emit);
    out->forms = fxa__alloc_array(host, n, sizeof *out->forms);
    out->table = fxa__alloc(host, n);
    out->order = fxa__alloc(host, n);
    if (!ok || !out->forms || !out->table || !out->order) return false;
    fxa__lower_affine(p, out->forms);
    interval_mark(out);
    /* all variables of the text are local, because the text is one function */
    for (size_t i = 0; i < n; i++) out->emit.hoisted[i] = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        out->table[i] = interval_varies(out, i) && out->emit.used[i] ? interval_find_table(out, &p->nodes[i]) : -1;
    interval_order(out);
    return true;
}

void fxa__lower_interval_close(fxa__interval_text *v) {
    size_t n = (size_t)v->emit.p->n_nodes;
    fxa__free(v->emit.host, v->forms, n * sizeof *v->forms);
    fxa__free(v->emit.host, v->table, n);
    fxa__free(v->emit.host, v->order, n);
    fxa__lower_emit_close(&v->emit);
}

/* ---- Tables of {min, max} ---------------------------------------------------------------------------------------- */

/* Returns the number of rows of a {min, max} table: the product of the sizes of all axes but `axis`. */
static int64_t interval_rows(const fxa_view *view, int32_t axis) {
    int64_t rows = 1;
    for (int d = 0; d < view->rank; d++) rows *= d == axis ? 1 : view->size[d];
    return rows;
}

int64_t fxa__lower_interval_size(const fxa_view *view, int32_t axis) {
    return 2 * interval_rows(view, axis) * fxa__interval_n_blocks(view->size[axis]);
}

/* Writes one row of a {min, max} table: the smallest and largest element of each block of elements along `axis`. The
 * row's first element is at offset `at`. */
static void interval_fill_row(const fxa_view *view, int32_t axis, int64_t at, int32_t *pairs) {
    for (int64_t i = 0; i < view->size[axis]; i++) {
        int32_t x = fxa__load_i32(view->data, view->dtype, at + i * view->stride[axis]);
        int32_t *pair = pairs + 2 * (i / FXA__RULE_BLOCK);
        bool first = i % FXA__RULE_BLOCK == 0;
        if (first || x < pair[0]) pair[0] = x;
        if (first || x > pair[1]) pair[1] = x;
    }
}

void fxa__lower_interval_fill(const fxa_view *view, int32_t axis, int32_t *pairs) {
    int64_t rows = interval_rows(view, axis), pitch = 2 * fxa__interval_n_blocks(view->size[axis]);
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = 0, rest = row;
        for (int d = view->rank - 1; d >= 0; d--) {
            if (d == axis) continue;
            at += rest % view->size[d] * view->stride[d];
            rest /= view->size[d];
        }
        interval_fill_row(view, axis, at, pairs + row * pitch);
    }
}
