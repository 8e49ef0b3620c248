/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a mask into conjuncts (conjunct.h). A walk from the mask down marks the nodes that must be true and those that
 * must be false. An `and` that must be true, an `or` that must be false and every `not` are split further. Every other
 * marked node becomes at most two parts. Each node is visited at most twice, so the time is linear in the program size.
 */
#include "conjunct.h"

#include "../base/invariant.h"
#include "../base/num.h"

enum { CONJUNCT_TRUE = 1, CONJUNCT_FALSE = 2, CONJUNCT_DEPTH = 12, CONJUNCT_SWAP_STEPS = 256 };
enum {
    CONJUNCT_Q = FXA__OF_ROW,
    CONJUNCT_K = FXA__OF_KEY,
    CONJUNCT_SCORE = 1 << FXA_INPUT_SCORE | 1 << FXA_INPUT_DSCORE
};
#define CONJUNCT_NARROW ((int64_t)1 << 30)

typedef struct conjunct_work {
    const fxa_program *p;
    const fxa__linear *forms;
    fxa_tile_bounds plain;
} conjunct_work;

/* ---- Sides of a comparison as sums (conjunct_sum) ---------------------------------------------------------------- */

/* A side of a comparison, or the difference of both sides, as a sum in 64-bit arithmetic without wrap-around:
 *     coef[0] * input 0 + coef[1] * input 1 + ... + c + times * (value of node `bound`) */
typedef struct conjunct_sum {
    int64_t coef[FXA_INPUT_COUNT], c;
    int32_t bound;          /* node that depends on neither q, k nor the score; -1 = none */
    int8_t times;           /* factor of the value of node `bound` in the sum: 1 or -1 */
    bool needs_small_bound; /* true = the sum is exact only if the value of `bound` is in [-2^30, 2^30] */
} conjunct_sum;

/* Adds times * node to a sum with two parts: *form has the affine terms, sum->bound is the only non-affine term.
 * Returns false if there is a second non-affine term, or one that depends on q, k or the score. The coefficients in
 * *form may wrap: they are correct modulo 2^32, so only the final form has to fit 32 bits. */
static bool conjunct_add(const conjunct_work *w, int32_t node, int32_t times, int depth, fxa__linear *form,
                         conjunct_sum *sum) {
    const fxa__node *n = &w->p->nodes[node];
    const fxa__linear *f = &w->forms[node];
    if (!f->nonaffine) {
        *form = fxa__linear_sum(form, 1, f, times);
        return true;
    }
    if (!(fxa__linear_reads(f) & (CONJUNCT_Q | CONJUNCT_K | CONJUNCT_SCORE))) {
        if (sum->bound >= 0) return false;
        sum->bound = node;
        sum->times = (int8_t)times;
        return true;
    }
    if (depth == CONJUNCT_DEPTH) return false;
    if (n->op == FXA_OP_NEG) return conjunct_add(w, n->arg[0], -times, depth + 1, form, sum);
    if (n->op != FXA_OP_ADD && n->op != FXA_OP_SUB) return false;
    return conjunct_add(w, n->arg[0], times, depth + 1, form, sum) &&
           conjunct_add(w, n->arg[1], n->op == FXA_OP_SUB ? -times : times, depth + 1, form, sum);
}

/* Writes times * node (times is 1 or -1) to *out. Returns false if the node cannot be written as such a sum, or if its
 * value may wrap in 32 bits. */
static bool conjunct_side(const conjunct_work *w, int32_t node, int32_t times, conjunct_sum *out) {
    fxa__linear form = {.c = 0};
    int64_t lo, hi;
    *out = (conjunct_sum){.bound = -1};
    if (!conjunct_add(w, node, times, 0, &form, out) || !fxa__linear_bounds(&form, &w->plain, &lo, &hi)) return false;
    if (out->bound >= 0 && (out->bound != node || times < 0)) {
        if (lo - CONJUNCT_NARROW < INT32_MIN || hi + CONJUNCT_NARROW > INT32_MAX) return false;
        out->needs_small_bound = true;
    }
    for (int i = 0; i < FXA_INPUT_COUNT; i++) out->coef[i] = form.coef[i];
    out->c = form.c;
    return true;
}

/* Writes the sum y - x - minus to *out. Returns false if both x and y have a node `bound`: a sum holds one only. */
static bool conjunct_difference(const conjunct_sum *x, const conjunct_sum *y, int64_t minus, conjunct_sum *out) {
    if (x->bound >= 0 && y->bound >= 0) return false;
    *out = y->bound >= 0 ? *y : *x;
    if (x->bound >= 0) out->times = (int8_t)-x->times;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) out->coef[i] = y->coef[i] - x->coef[i];
    out->c = y->c - x->c - minus;
    return true;
}

/* ---- Conversion of a sum >= 0 to a part of the mask -------------------------------------------------------------- */

/* Divides the inequality `s >= 0` by the coefficient of k if this coefficient divides all coefficients. The quotient of
 * the constant s->c is rounded down: 2 * k <= 2 * q + 1 becomes k <= q. */
static void conjunct_divide(conjunct_sum *s) {
    int64_t by = s->coef[FXA_INPUT_K] < 0 ? -s->coef[FXA_INPUT_K] : s->coef[FXA_INPUT_K];
    if (by < 2 || s->bound >= 0) return;
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        if (s->coef[i] % by != 0) return;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) s->coef[i] /= by;
    s->c = fxa__floordiv64(s->c, by);
}

/* Returns true if the coefficients of q, k, q_len and k_len have the given values and all other coefficients are 0. */
static bool conjunct_coefs_are(const conjunct_sum *s, int64_t q, int64_t k, int64_t q_len, int64_t k_len) {
    return s->coef[FXA_INPUT_Q] == q && s->coef[FXA_INPUT_K] == k && s->coef[FXA_INPUT_Q_LEN] == q_len &&
           s->coef[FXA_INPUT_K_LEN] == k_len && s->coef[FXA_INPUT_B] == 0 && s->coef[FXA_INPUT_H] == 0 &&
           s->coef[FXA_INPUT_HEADS] == 0 && s->coef[FXA_INPUT_Q_ROW] == 0 && s->coef[FXA_INPUT_K_ROW] == 0;
}

/* Converts the inequality s >= 0 to a part. Returns false if the inequality is none of CAUSAL, WINDOW and LENGTH. */
static bool conjunct_not_negative(conjunct_sum *s, fxa__part *out) {
    static const struct {
        int64_t q, k, q_len, k_len;
        fxa__part_kind kind;
        bool aligned, of_length;
    } rows[] = {
        {1, -1, 0, 0, FXA__PART_CAUSAL, false, false}, {1, -1, -1, 1, FXA__PART_CAUSAL, true, false},
        {-1, 1, 0, 0, FXA__PART_WINDOW, false, false}, {-1, 1, 1, -1, FXA__PART_WINDOW, true, false},
        {0, -1, 0, 0, FXA__PART_LENGTH, false, false}, {0, -1, 0, 1, FXA__PART_LENGTH, false, true},
    };
    conjunct_divide(s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!conjunct_coefs_are(s, rows[i].q, rows[i].k, rows[i].q_len, rows[i].k_len)) continue;
        out->kind = (uint8_t)rows[i].kind;
        out->aligned = rows[i].aligned;
        out->of_length = rows[i].of_length;
        out->c = s->c;
        out->bound = s->bound;
        out->times_bound = s->times;
        out->needs_small_bound = s->needs_small_bound;
        return true;
    }
    return false;
}

/* Converts the inequality times * x <= y - minus (times is 1 or -1) to a part. Returns false if the inequality is none
 * of CAUSAL, WINDOW and LENGTH. */
static bool conjunct_below(const conjunct_work *w, int32_t x, int32_t times, int32_t y, int64_t minus, fxa__part *out) {
    conjunct_sum left, right, difference;
    return conjunct_side(w, x, times, &left) && conjunct_side(w, y, 1, &right) &&
           conjunct_difference(&left, &right, minus, &difference) && conjunct_not_negative(&difference, out);
}

/* ---- Equality of a row value and a key value --------------------------------------------------------------------- */

/* Returns true if replacing q by k in node x gives node y. Returns false also if the test takes more than *steps
 * comparisons of nodes, or if x reads q_row (q == k does not imply q_row == k_row). Equal subexpressions are one node,
 * so subexpressions without q are compared by node number. Nodes of equal operation and imm have equally many
 * operands. */
static bool conjunct_swapped(const conjunct_work *w, int32_t x, int32_t y, int *steps) {
    const fxa__node *a = &w->p->nodes[x], *b = &w->p->nodes[y];
    if (!(fxa__linear_reads(&w->forms[x]) & CONJUNCT_Q)) return x == y;
    if (a->op == FXA_OP_INPUT) return a->imm == FXA_INPUT_Q && b->op == FXA_OP_INPUT && b->imm == FXA_INPUT_K;
    if (a->op != b->op || a->type != b->type || a->imm != b->imm || --*steps < 0) return false;
    for (int i = 0; i < a->n_args; i++)
        if (!conjunct_swapped(w, a->arg[i], b->arg[i], steps)) return false;
    return true;
}

/* Writes the comparison n as a part of kind EQUAL. Returns false unless one side reads q and not k, the other side k
 * and not q, and neither side the score. */
static bool conjunct_equal(const conjunct_work *w, const fxa__node *n, fxa__part *out) {
    uint32_t x = fxa__linear_reads(&w->forms[n->arg[0]]), y = fxa__linear_reads(&w->forms[n->arg[1]]);
    if ((x | y) & CONJUNCT_SCORE || (x & CONJUNCT_Q) == (y & CONJUNCT_Q) || (x & CONJUNCT_K) == (y & CONJUNCT_K) ||
        (x & CONJUNCT_Q && x & CONJUNCT_K) || (y & CONJUNCT_Q && y & CONJUNCT_K))
        return false;
    int steps = CONJUNCT_SWAP_STEPS;
    out->kind = FXA__PART_EQUAL;
    out->row = n->arg[x & CONJUNCT_Q ? 0 : 1];
    out->key = n->arg[x & CONJUNCT_Q ? 1 : 0];
    out->wide = fxa__node_compares_wide(w->p, n);
    out->same = conjunct_swapped(w, out->row, out->key, &steps);
    return true;
}

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

/* Writes a comparison, or with `negated` its negation, as parts of kind CAUSAL, WINDOW, LENGTH or EQUAL. Returns the
 * number of parts: 1, or 2 for |x| <= y and x == y as two inequalities, or 0 if these kinds cannot express it. */
static int conjunct_compare(const conjunct_work *w, const fxa__node *n, bool negated, fxa__part *out) {
    bool order = n->op == FXA_OP_LT || n->op == FXA_OP_LE;
    if (fxa__op_info_get(n->op)->sig != FXA__SIG_CMP || w->p->nodes[n->arg[0]].type != FXA_INT) return 0;
    if (order) {
        int32_t x = n->arg[negated], y = n->arg[!negated];
        int64_t minus = (n->op == FXA_OP_LT) != negated;
        const fxa__node *absolute = &w->p->nodes[x];
        if (conjunct_below(w, x, 1, y, minus, &out[0])) return 1;
        if (absolute->op != FXA_OP_ABS) return 0;
        bool both = conjunct_below(w, absolute->arg[0], 1, y, minus, &out[0]) &&
                    conjunct_below(w, absolute->arg[0], -1, y, minus, &out[1]);
        return both ? 2 : 0;
    }
    if ((n->op == FXA_OP_EQ) == negated) return 0;
    bool both = conjunct_below(w, n->arg[0], 1, n->arg[1], 0, &out[0]) &&
                conjunct_below(w, n->arg[1], 1, n->arg[0], 0, &out[1]);
    if (both) return 2;
    return conjunct_equal(w, n, &out[0]) ? 1 : 0;
}

/* Returns a part for `node` whose members bound, row and key are unset (-1). The caller sets the part's kind. */
static fxa__part conjunct_empty(int32_t node, bool negated) {
    return (fxa__part){.negated = negated, .node = node, .bound = -1, .row = -1, .key = -1};
}

/* Writes the condition n (if `negated`, its negation) as a PREFIX part. Returns false if the condition is not of the
 * form `k <= q + c || k <= length`, in either order. */
static bool conjunct_prefix(const conjunct_work *w, const fxa__node *n, bool negated, fxa__part *out) {
    if (n->op != (negated ? FXA_OP_AND : FXA_OP_OR)) return false;
    for (int i = 0; i < 2; i++) {
        fxa__part causal[2] = {conjunct_empty(0, false), conjunct_empty(0, false)}, length[2] = {causal[0], causal[1]};
        const fxa__node *first = &w->p->nodes[n->arg[i]], *second = &w->p->nodes[n->arg[1 - i]];
        if (conjunct_compare(w, first, negated, causal) != 1 || conjunct_compare(w, second, negated, length) != 1 ||
            causal[0].kind != FXA__PART_CAUSAL || causal[0].bound >= 0 || length[0].kind != FXA__PART_LENGTH)
            continue;
        int32_t node = out->node;
        *out = length[0];
        out->node = node;
        out->kind = FXA__PART_PREFIX;
        out->aligned = causal[0].aligned;
        out->prefix = causal[0].c;
        return true;
    }
    return false;
}

/* Returns the kind of part for a node that fits no cheaper kind: ROW, KEY or OTHER, by the inputs that it reads. */
static fxa__part_kind conjunct_by_reads(const conjunct_work *w, int32_t node) {
    uint32_t reads = fxa__linear_reads(&w->forms[node]);
    if (reads & CONJUNCT_SCORE) return FXA__PART_OTHER;
    if (!(reads & CONJUNCT_K)) return FXA__PART_ROW;
    return reads & CONJUNCT_Q ? FXA__PART_OTHER : FXA__PART_KEY;
}

/* Writes the parts of a condition that is no conjunction: `node` or, if `negated`, its negation. Returns the number of
 * parts: 0 if the condition is a constant and true, else 1 or 2. */
static int conjunct_leaf(const conjunct_work *w, int32_t node, bool negated, fxa__part out[2]) {
    const fxa__node *n = &w->p->nodes[node];
    if (n->op == FXA_OP_CONST && (n->imm != 0) != negated) return 0;
    out[0] = out[1] = conjunct_empty(node, negated);
    int count = conjunct_compare(w, n, negated, out);
    for (int i = 0; i < count; i++) out[i].negated = false;
    if (count > 0) return count;
    out[0] = conjunct_empty(node, negated);
    if (conjunct_prefix(w, n, negated, &out[0]))
        out[0].negated = false;
    else
        out[0].kind = (uint8_t)conjunct_by_reads(w, node);
    return 1;
}

/* ---- The mask ---------------------------------------------------------------------------------------------------- */

/* Marks the operands of n that must all be true (or false) for n to have the truth value `sense`. Returns false if n
 * has no such operands, so that n is not split. */
static bool conjunct_split(const fxa__node *n, uint8_t sense, uint8_t *marks) {
    uint8_t opposite = sense == CONJUNCT_TRUE ? CONJUNCT_FALSE : CONJUNCT_TRUE;
    if (n->op == FXA_OP_NOT) {
        marks[n->arg[0]] |= opposite;
        return true;
    }
    if (n->op != (sense == CONJUNCT_TRUE ? FXA_OP_AND : FXA_OP_OR)) return false;
    marks[n->arg[0]] |= sense;
    marks[n->arg[1]] |= sense;
    return true;
}

/* Collects the parts of node `mask`. marks[] must have mask + 1 elements, all zero. Returns false if memory ran out. */
static bool conjunct_find(fxa__host *host, const conjunct_work *w, int32_t mask, uint8_t *marks, fxa__conjuncts *out) {
    marks[mask] = CONJUNCT_TRUE;
    for (int32_t i = mask; i >= 0; i--)
        for (uint8_t sense = CONJUNCT_TRUE; sense <= CONJUNCT_FALSE; sense++) {
            fxa__part part[2];
            if (!(marks[i] & sense) || conjunct_split(&w->p->nodes[i], sense, marks)) continue;
            int count = conjunct_leaf(w, i, sense == CONJUNCT_FALSE, part);
            FXA__ASSERT(count >= 0 && count <= 2);
            if (!fxa__grow(host, &out->parts, &out->capacity, out->n + (size_t)count, sizeof *out->parts)) return false;
            for (int j = 0; j < count; j++) {
                out->exact = out->exact && part[j].kind != FXA__PART_OTHER;
                out->parts[out->n++] = part[j];
            }
        }
    return true;
}

bool fxa__lower_conjuncts(fxa__host *host, const fxa_program *p, fxa__conjuncts *out) {
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
    size_t n = (size_t)p->n_nodes, marked = (size_t)mask + 1;
    FXA__ASSERT(mask >= 0 && mask < p->n_nodes && p->nodes[mask].type == FXA_BOOL);
    fxa__linear *forms = fxa__alloc_array(host, n, sizeof *forms);
    uint8_t *marks = fxa__alloc(host, marked);
    *out = (fxa__conjuncts){.exact = true};
    bool ok = forms && marks;
    if (ok) {
        fxa__lower_affine(p, forms);
        conjunct_work w = {.p = p, .forms = forms, .plain = fxa__box_default()};
        ok = conjunct_find(host, &w, mask, marks, out);
    }
    fxa__free(host, forms, n * sizeof *forms);
    fxa__free(host, marks, marked);
    return ok;
}

void fxa__lower_conjuncts_free(fxa__host *host, fxa__conjuncts *c) {
    fxa__free(host, c->parts, c->capacity * sizeof *c->parts);
    *c = (fxa__conjuncts){.exact = false};
}

const char *fxa__lower_part_name(fxa__part_kind kind) {
    static const char *const names[FXA__PARTS] = {"causal", "window", "length", "prefix",
                                                  "equal",  "row",    "key",    "other"};
    return names[kind];
}
