/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of a score program, for engines with cheaper code for special cases and for `fxattn explain`.
 *
 * Properties of the score are found by comparing its nodes with patterns. Bounds that the mask puts on q - k and on
 * lengths come from range analysis over all q and k: every bound that follows from the mask counts, however the mask is
 * written (k <= q, k < q + 1, !(q - k < 0), abs(q - k) <= 8 && ..., the same bound in both operands of an or).
 *
 * The analysis assumes that ints do not wrap: properties hold for coordinates and lengths from 0 to 2^30 - 1 and for
 * int tensors with elements in [-2^30, 2^30).
 */
#include "linear.h"

#include "../base/float_state.h"

#include <math.h>

enum { PROPERTIES_SMALL = 4096 }; /* programs with at most this many nodes are analysed without an allocation */

typedef struct properties {
    const fxa_program *p;
    const uint16_t *depends; /* [nodes] bit i = the node depends on fxa_input i */
    fxa_properties *out;
} properties;

/* ---- The score --------------------------------------------------------------------------------------------------- */

/* Returns true if a float node is the score, the only float input. */
static bool properties_is_score(const properties *f, int32_t node) { return f->p->nodes[node].op == FXA_OP_INPUT; }
static bool properties_reads_score(const properties *f, int32_t node) {
    return (f->depends[node] >> FXA_INPUT_SCORE & 1u) != 0;
}

/* Returns true if the node is score + a - b + ..., where only one operand of each sum depends on the score. */
static bool properties_is_sum(const properties *f, int32_t node) {
    while (!properties_is_score(f, node)) {
        const fxa__node *n = &f->p->nodes[node];
        if (n->op != FXA_OP_ADD && n->op != FXA_OP_SUB) return false;
        bool first = properties_reads_score(f, n->arg[0]), second = properties_reads_score(f, n->arg[1]);
        if (first == second || (second && n->op == FXA_OP_SUB)) return false;
        node = n->arg[second];
    }
    return true;
}

/* Returns true if the node is the float constant x. */
static bool properties_is_const(const properties *f, int32_t node, double x) {
    const fxa__node *n = &f->p->nodes[node];
    return n->op == FXA_OP_CONST && n->f == x;
}

/* Returns true and sets *x if the node is x / cap or x * (1 / cap). For a constant cap, the factor 1 / cap may be one
 * constant. */
static bool properties_is_divided(const properties *f, int32_t node, int32_t cap, int32_t *x) {
    const fxa__node *n = &f->p->nodes[node], *c = &f->p->nodes[cap];
    if (n->op == FXA_OP_DIV && n->arg[1] == cap) {
        *x = n->arg[0];
        return true;
    }
    for (int i = 0; n->op == FXA_OP_MUL && i < 2; i++) {
        const fxa__node *part = &f->p->nodes[n->arg[i]];
        bool inverse = part->op == FXA_OP_DIV && part->arg[1] == cap && properties_is_const(f, part->arg[0], 1);
        *x = n->arg[1 - i];
        if (inverse || (c->op == FXA_OP_CONST && properties_is_const(f, n->arg[i], 1 / c->f))) return true;
    }
    return false;
}

/* Detects the soft cap cap * tanh(x / cap); tanh(x) alone has cap 1. */
static void properties_softcap(const properties *f, int32_t node) {
    const fxa__node *n = &f->p->nodes[node];
    if (n->op == FXA_OP_TANH && properties_is_sum(f, n->arg[0])) {
        f->out->flags |= FXA_PROPERTY_SOFTCAP;
        f->out->softcap = 1;
    }
    for (int i = 0; n->op == FXA_OP_MUL && i < 2; i++) {
        const fxa__node *cap = &f->p->nodes[n->arg[i]], *tanh_node = &f->p->nodes[n->arg[1 - i]];
        int32_t x;
        bool is_const = cap->op == FXA_OP_CONST && isfinite(cap->f) && cap->f > 0;
        if (tanh_node->op != FXA_OP_TANH || (!is_const && cap->op != FXA_OP_PARAM)) continue;
        if (!properties_is_divided(f, tanh_node->arg[0], n->arg[i], &x) || !properties_is_sum(f, x)) continue;
        f->out->flags |= FXA_PROPERTY_SOFTCAP;
        if (is_const)
            f->out->softcap = cap->f;
        else
            f->out->softcap_param = cap->imm;
        return;
    }
}

static void properties_of_score(const properties *f, int32_t score) {
    f->out->flags |= fxa__program_large_negative(f->p, score, f->depends);
    if (fxa__program_masked_branch(f->p, score) && !properties_reads_score(f, f->p->nodes[score].arg[0]))
        f->out->flags |= FXA_PROPERTY_SCORE_MASKS;
    if (properties_is_score(f, score))
        f->out->flags |= FXA_PROPERTY_PURE_MASK;
    else if (properties_is_sum(f, score))
        f->out->flags |= FXA_PROPERTY_ADDITIVE;
    else
        properties_softcap(f, score);
}

/* ---- The mask ---------------------------------------------------------------------------------------------------- */

/* A linear form: the coefficients of all inputs and of at most one load. */
typedef struct properties_row {
    int64_t coef[FXA_INPUT_COUNT];
    int32_t load; /* index of the load node; -1 = none */
    int64_t load_coef;
} properties_row;

/* Converts an affine form of range analysis to *out, the coefficients of the inputs and of at most one load. Returns
 * false if the form has other terms. */
static bool properties_read_row(const fxa__range *r, const fxa__affine *form, properties_row *out) {
    *out = (properties_row){.load = -1};
    for (int i = 0; i < form->n; i++) {
        const fxa__atom *a = &r->atoms[form->atom[i]];
        if (a->kind == FXA__ATOM_INPUT)
            out->coef[a->id] = form->coef[i];
        else if (a->kind == FXA__ATOM_NODE && r->p->nodes[a->id].op == FXA_OP_LOAD && out->load < 0) {
            out->load = a->id;
            out->load_coef = form->coef[i];
        } else
            return false;
    }
    return true;
}

/* Returns true if the coefficients of the linear form *row are `sign` times the given coefficients of q, k, q_len,
 * k_len and the load, and all other coefficients are 0. */
static bool properties_row_is(const properties_row *row, int64_t sign, int q, int k, int q_len, int k_len, int load) {
    return row->coef[FXA_INPUT_B] == 0 && row->coef[FXA_INPUT_H] == 0 && row->coef[FXA_INPUT_HEADS] == 0 &&
           row->coef[FXA_INPUT_Q_ROW] == 0 && row->coef[FXA_INPUT_K_ROW] == 0 && row->coef[FXA_INPUT_Q] == sign * q &&
           row->coef[FXA_INPUT_K] == sign * k && row->coef[FXA_INPUT_Q_LEN] == sign * q_len &&
           row->coef[FXA_INPUT_K_LEN] == sign * k_len && row->load_coef == sign * load;
}

/* Returns true if a load is t[b], a length per batch entry. */
static bool properties_is_length(const fxa_program *p, int32_t load) {
    const fxa__node *n = &p->nodes[load];
    if (n->n_args != 1) return false;
    const fxa__node *index = &p->nodes[n->arg[0]];
    return index->op == FXA_OP_INPUT && index->imm == FXA_INPUT_B;
}

/* Records the properties of a mask that restricts v = sign * (linear form of `row`) to x.lo..x.hi. all: range of v
 * without the mask; an end of x that equals the same end of `all` is no restriction.
 * CAUSAL is exactly k <= q. Any other bound on q - k is WINDOW: k < q has window_right -1, and k <= q with a left bound
 * is both CAUSAL and WINDOW. */
static void properties_of_bound(const fxa__range *r, const properties_row *row, int64_t sign, fxa__interval x,
                                fxa__interval all, fxa_properties *out) {
    bool low = x.lo > all.lo, high = x.hi < all.hi;
    if (properties_row_is(row, sign, 1, -1, 0, 0, 0)) {
        if (low) out->window_right = (int32_t)-x.lo;
        if (high) out->window_left = (int32_t)x.hi;
        if (low && x.lo == 0) out->flags |= FXA_PROPERTY_CAUSAL;
        if (high || (low && x.lo != 0)) out->flags |= FXA_PROPERTY_WINDOW;
    }
    if (low && x.lo == 0 && properties_row_is(row, sign, 1, -1, -1, 1, 0))
        out->flags |= FXA_PROPERTY_CAUSAL_BOTTOM_RIGHT;
    if (!high || x.hi != -1) return;
    if (properties_row_is(row, sign, 0, 1, 0, -1, 0)) out->flags |= FXA_PROPERTY_PADDING;
    if (properties_row_is(row, sign, 0, 1, 0, 0, -1) && properties_is_length(r->p, row->load))
        out->flags |= FXA_PROPERTY_PADDING;
}

static void properties_of_mask(const properties *f, int32_t mask) {
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds all = fxa__box_default();
    fxa_tensor_range tensors[FXA_MAX_TENSORS];
    for (int i = 0; i < f->p->n_tensors; i++)
        tensors[i] = (fxa_tensor_range){.known = 1, .lo = -FXA__MAX_COORDINATE - 1, .hi = FXA__MAX_COORDINATE};
    if (fxa__range_open(&r, &small, f->p, mask, &all, NULL, tensors)) {
        for (int32_t i = fxa__range_of(&r, mask)->t.yes, first = i; i >= 0; i = r.bounds[i].next) {
            const fxa__bound *bound = &r.bounds[i];
            const fxa__row *form = &r.rows[bound->row];
            properties_row row;
            int32_t seen = first;
            while (r.bounds[seen].row != bound->row) seen = r.bounds[seen].next;
            if (seen != i || !properties_read_row(&r, &form->form, &row)) continue;
            fxa__interval x = {fxa__set_lo(&bound->set), fxa__set_hi(&bound->set)};
            fxa__interval range = {fxa__set_lo(&form->set), fxa__set_hi(&form->set)};
            properties_of_bound(&r, &row, 1, x, range, f->out);
            properties_of_bound(&r, &row, -1, (fxa__interval){-x.hi, -x.lo}, (fxa__interval){-range.hi, -range.lo},
                                f->out);
        }
    }
    fxa__range_close(&r);
}

/* Returns true if the node is the float quotient x / y of two ints, where y may be a constant with an integer value. */
static bool properties_is_int_quotient(const fxa_program *p, int32_t node) {
    const fxa__node *n = &p->nodes[node];
    if (n->op != FXA_OP_DIV) return false;
    for (int i = 0; i < 2; i++) {
        const fxa__node *x = &p->nodes[n->arg[i]];
        bool is_integer = i == 1 && x->op == FXA_OP_CONST && x->f == rint(x->f);
        if (x->op != FXA_OP_FLOAT && !is_integer) return false;
    }
    return true;
}

/* Returns true if an == or != compares a float quotient of ints, so that rounding may decide the result. */
static bool properties_has_equal_quotient(const fxa_program *p) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (n->op != FXA_OP_EQ && n->op != FXA_OP_NE) continue;
        if (properties_is_int_quotient(p, n->arg[0]) || properties_is_int_quotient(p, n->arg[1])) return true;
    }
    return false;
}

const char *fxa_property_name(uint32_t property) {
    switch (property) {
#define PROPERTIES_NAME(name, bit, text)                                                                               \
    case 1u << bit: return text;
        FXA_PROPERTY_MAP(PROPERTIES_NAME)
    default: return NULL;
    }
}

void fxa_program_properties(const fxa_program *program, fxa_properties *out) {
    FXA__FLOAT_SCOPE;
    if (out == NULL) return;
    *out = (fxa_properties){.softcap_param = -1, .window_left = INT32_MAX, .window_right = INT32_MAX};
    if (program == NULL || program->kind != FXA_PROGRAM_SCORE) return;
    int32_t score = fxa__program_output(program, FXA__OUT_SCORE), mask = fxa__program_output(program, FXA__OUT_MASK);
    uint16_t small[PROPERTIES_SMALL], *depends = small;
    size_t n = (size_t)program->n_nodes;
    if (n > PROPERTIES_SMALL) depends = fxa__alloc_array(program->host, n, sizeof *depends);
    if (depends == NULL) { /* out of memory: report every dependency and no property */
        out->score_depends = out->mask_depends = ((1u << FXA_INPUT_COUNT) - 1) & ~(1u << FXA_INPUT_DSCORE);
        return;
    }
    fxa__program_inputs(program, depends);
    properties f = {program, depends, out};
    out->score_depends = depends[score];
    out->mask_depends = depends[mask];
    properties_of_score(&f, score);
    if (program->nodes[mask].op == FXA_OP_CONST && program->nodes[mask].imm != 0)
        out->flags |= FXA_PROPERTY_NO_MASK;
    else
        properties_of_mask(&f, mask);
    if (properties_has_equal_quotient(program)) out->flags |= FXA_PROPERTY_QUOTIENT_EQUAL;
    uint32_t identity = FXA_PROPERTY_PURE_MASK | FXA_PROPERTY_NO_MASK;
    if ((out->flags & identity) == identity) out->flags |= FXA_PROPERTY_IDENTITY;
    if (depends != small) fxa__free(program->host, depends, n * sizeof *depends);
}
