/* SPDX-License-Identifier: Apache-2.0
 *
 * Int operations on intervals: what is left to say of a result when forms do not help. Operands are intervals of 32-bit
 * ints; a result that could wrap is any int.
 */
#include "range.h"

#include "../base/num.h"

static fxa__set span_any(void) { return fxa__set_of(INT32_MIN, INT32_MAX); }

static fxa__set span_clip(int64_t lo, int64_t hi) { /* as 32 bits, if it is */
    return lo < INT32_MIN || hi > INT32_MAX ? span_any() : fxa__set_of(lo, hi);
}

static fxa__set span_product(fxa__span a, fxa__span b) {
    int64_t x[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi}, lo = x[0], hi = x[0];
    for (int i = 1; i < 4; i++) lo = fxa__min_i64(lo, x[i]), hi = fxa__max_i64(hi, x[i]);
    return span_clip(lo, hi);
}

/* All bits up to the highest of x >= 0. */
static int64_t span_bits(int64_t x) {
    int64_t m = 0;
    while (m < x) m = 2 * m + 1;
    return m;
}

static fxa__set span_logic(uint32_t op, fxa__span a, fxa__span b) {
    if (op == FXA_OP_AND) {
        if (a.lo >= 0 && b.lo >= 0) return fxa__set_of(0, fxa__min_i64(a.hi, b.hi));
        if (a.lo >= 0 || b.lo >= 0) return fxa__set_of(0, a.lo >= 0 ? a.hi : b.hi);
        return span_any();
    }
    if (a.lo < 0 || b.lo < 0) return span_any();
    return fxa__set_of(op == FXA_OP_OR ? fxa__max_i64(a.lo, b.lo) : 0, span_bits(a.hi | b.hi));
}

/* By a divisor that may be anything, 0 too: a quotient is no larger than its dividend, a remainder smaller than its
 * divisor and of its sign. */
static fxa__set span_quotient(fxa__span a, fxa__span b) {
    int64_t size = fxa__max_i64(a.hi, -a.lo);
    return a.lo >= 0 && b.lo >= 0 ? fxa__set_of(0, a.hi) : span_clip(-size, size);
}

static fxa__set span_remainder(fxa__span a, fxa__span b) {
    int64_t lo = b.lo < 0 ? b.lo + 1 : 0, hi = b.hi > 0 ? b.hi - 1 : 0;
    return fxa__set_of(lo, a.lo >= 0 && b.lo >= 0 ? fxa__min_i64(a.hi, hi) : hi);
}

fxa__set fxa__span_op(uint32_t op, fxa__span a, fxa__span b) {
    switch (op) {
    case FXA_OP_ADD: return span_clip(a.lo + b.lo, a.hi + b.hi);
    case FXA_OP_SUB: return span_clip(a.lo - b.hi, a.hi - b.lo);
    case FXA_OP_MUL: return span_product(a, b);
    case FXA_OP_MIN: return fxa__set_of(fxa__min_i64(a.lo, b.lo), fxa__min_i64(a.hi, b.hi));
    case FXA_OP_MAX: return fxa__set_of(fxa__max_i64(a.lo, b.lo), fxa__max_i64(a.hi, b.hi));
    case FXA_OP_FLOORDIV: return span_quotient(a, b);
    case FXA_OP_MOD: return span_remainder(a, b);
    case FXA_OP_AND:
    case FXA_OP_OR:
    case FXA_OP_XOR: return span_logic(op, a, b);
    case FXA_OP_SHR: return fxa__set_of(fxa__min_i64(a.lo, 0), fxa__max_i64(a.hi, -1));
    default: return span_any();
    }
}
