/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks that bound q - k: the conjuncts of a mask that compare forms in q, k and the lengths. Causal masks and windows
 * are nothing else, whether they come from flags or from a text; their tiles then need no range analysis.
 *
 * Program ints wrap. A form counts only when none of its parts can leave 32 bits for coordinates and lengths in
 * 0..2^30 - 1; whoever uses a band makes sure that they are.
 */
#include "cpu_code.h"

#include "../../base/num.h"

enum { BAND_DEPTH = 8 }; /* of a form; deeper ones are not looked at */
#define BAND_MOST (((int64_t)1 << 30) - 1)

typedef struct band_form { /* c + the sum of coef[i] * input i */
    int64_t coef[FXA_INPUT_COUNT], c;
} band_form;

/* Coefs of a form that fits are -4 to 4, so those of a sum of two are small. */
static bool band_fits(const band_form *f) {
    int64_t lo = f->c, hi = f->c;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) *(f->coef[i] < 0 ? &lo : &hi) += f->coef[i] * BAND_MOST;
    return lo >= INT32_MIN && hi <= INT32_MAX;
}

static band_form band_sum(const band_form *a, const band_form *b, int64_t times) {
    band_form sum = {{0}, a->c + times * b->c};
    for (int i = 0; i < FXA_INPUT_COUNT; i++) sum.coef[i] = a->coef[i] + times * b->coef[i];
    return sum;
}

/* False: not such a form. Recursion ends at BAND_DEPTH. */
static bool band_read(const fxa_program *p, int32_t node, int depth, band_form *out) {
    const fxa__node *n = &p->nodes[node];
    band_form a = {{0}, 0}, b = {{0}, 0};
    if (depth > BAND_DEPTH || n->type != FXA_INT) return false;
    for (int i = 0; i < n->n_args && i < 2; i++)
        if (!band_read(p, n->arg[i], depth + 1, i == 0 ? &a : &b)) return false;
    switch (n->op) {
    case FXA_OP_CONST: a.c = n->imm; break;
    case FXA_OP_INPUT: a.coef[n->imm] = 1; break;
    case FXA_OP_ADD: a = band_sum(&a, &b, 1); break;
    case FXA_OP_SUB: a = band_sum(&a, &b, -1); break;
    case FXA_OP_NEG: a = band_sum(&b, &a, -1); break; /* b is 0 */
    default: return false;
    }
    *out = a;
    return band_fits(out);
}

/* Takes up the conjunct x <= y or x < y: y - x is sign * (qa - k) + c, not negative. */
static bool band_compare(const fxa_program *p, const fxa__node *n, fxa__cpu_band *band) {
    band_form x, y;
    if (n->op != FXA_OP_LE && n->op != FXA_OP_LT) return false;
    if (!band_read(p, n->arg[0], 0, &x) || !band_read(p, n->arg[1], 0, &y)) return false;
    band_form f = band_sum(&y, &x, -1);
    int64_t sign = f.coef[FXA_INPUT_Q], aligned = sign * f.coef[FXA_INPUT_K_LEN];
    bool is_band = (sign == 1 || sign == -1) && f.coef[FXA_INPUT_K] == -sign && (aligned == 0 || aligned == 1) &&
                   f.coef[FXA_INPUT_Q_LEN] == -f.coef[FXA_INPUT_K_LEN] && f.coef[FXA_INPUT_B] == 0 &&
                   f.coef[FXA_INPUT_H] == 0 && f.coef[FXA_INPUT_HEADS] == 0;
    if (!is_band) return false;
    int64_t *bound = sign == 1 ? &band->right[aligned] : &band->left[aligned];
    *bound = fxa__min_i64(*bound, f.c - (n->op == FXA_OP_LT));
    return true;
}

/* Of a node: it changes with row or key; it hangs on elements of matrices, or on captured floats, that do; it is a
 * conjunct of the mask; the mask needs it. */
enum { BAND_VARIES = 1, BAND_DARK = 2, BAND_CONJUNCT = 4, BAND_NEEDED = 8 };

static uint8_t band_mark(const fxa__node *n, const uint8_t *marks) {
    bool varies = n->op == FXA_OP_INPUT && (n->imm == FXA_INPUT_Q || n->imm == FXA_INPUT_K);
    bool either = n->type == FXA_BOOL && (n->op == FXA_OP_AND || n->op == FXA_OP_OR); /* one operand may decide */
    int dark = either ? -1 : 0;
    for (int i = 0; i < n->n_args; i++) {
        varies = varies || (marks[n->arg[i]] & BAND_VARIES);
        dark += (marks[n->arg[i]] & BAND_DARK) != 0;
    }
    if (n->op == FXA_OP_LOAD) dark = varies && (n->n_args != 1 || n->type == FXA_FLOAT);
    return (uint8_t)((varies ? BAND_VARIES : 0) | (dark > 0 ? BAND_DARK : 0));
}

static void band_conjuncts(const fxa_program *program, int32_t mask, uint8_t *marks, fxa__cpu_band *out) {
    marks[mask] |= BAND_CONJUNCT;
    for (int32_t i = mask; i >= 0; i--) {
        const fxa__node *n = &program->nodes[i];
        if (!(marks[i] & BAND_CONJUNCT)) continue;
        if (n->op == FXA_OP_AND) {
            marks[n->arg[0]] |= BAND_CONJUNCT;
            marks[n->arg[1]] |= BAND_CONJUNCT;
        } else if ((n->op != FXA_OP_CONST || n->imm == 0) && !band_compare(program, n, out)) {
            out->exact = false;
            out->dark = out->dark && (marks[i] & BAND_DARK);
        }
    }
}

/* What the mask is made of. */
static void band_needed(const fxa_program *program, int32_t mask, uint8_t *marks, fxa__cpu_band *out) {
    marks[mask] |= BAND_NEEDED;
    for (int32_t i = mask; i >= 0; i--) {
        const fxa__node *n = &program->nodes[i];
        if (!(marks[i] & BAND_NEEDED)) continue;
        out->nodes++;
        if (n->op == FXA_OP_INPUT) out->reads |= 1u << n->imm;
        for (int j = 0; j < n->n_args; j++) marks[n->arg[j]] |= BAND_NEEDED;
    }
}

bool fxa__cpu_band_find(fxa__host *host, const fxa_program *program, fxa__cpu_band *out) {
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    size_t size = (size_t)mask + 1;
    *out = (fxa__cpu_band){{INT64_MAX, INT64_MAX}, {INT64_MAX, INT64_MAX}, .exact = true, .dark = true};
    uint8_t *marks = fxa__alloc(host, size);
    if (!marks) return false;
    for (int32_t i = 0; i <= mask; i++) marks[i] = band_mark(&program->nodes[i], marks);
    band_conjuncts(program, mask, marks, out);
    band_needed(program, mask, marks, out);
    fxa__free(host, marks, size);
    return true;
}
