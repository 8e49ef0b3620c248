/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates a mask before the scores: computes the mask of a row as bits, by the formula of formula.c. The formula's
 * leaves are ranges of columns, tests (one bool per row), and parts, which are bools that instructions compute.
 *
 * The instructions of a part start from a row of zeroes and set the elements to -inf where the part is false. Apart
 * from columns and batch entry, they read only ROW values (one per row). If the ROW values equal those of the previous
 * row, the part has the same bits and the instructions do not run. Many rows have equal bits in masks of blocks or
 * documents, or if the rows are the heads of one query. If all parts, ranges and tests equal those of the previous row,
 * no bits are computed: the row is reported as equal.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* Maximum number of rows that one call of mask_repeats finds to have equal bits. Ice Lake, S 4096, H 8, a mask of a
 * window or of blocks: 80.3 ms without these calls, 75.2 ms with 32 rows; other numbers are untested. */
enum { MASK_STRETCH = 32 };

/* ---- Leaves of the formula for a row: parts, tests, ranges ------------------------------------------------------- */

static const fxa__tape_place *mask_place(const fxa__tape_run *run, int32_t place) {
    return &run->tape->level[TAPE_FULL].places[place];
}

/* Returns the int operand at `place`: its value in row `row` if it is a ROW value (one per row), else the only one. */
static int32_t mask_int(const fxa__tape_run *run, int32_t place, int64_t row) {
    const fxa__tape_state *s = run->scratch;
    return ((const int32_t *)s->fixed[place])[mask_place(run, place)->space == TAPE_ROW ? row : 0];
}

/* Returns true if the operand at `place` is a ROW value (one per row) that differs between row `row` and the row
 * before. */
static bool mask_moves(const fxa__tape_run *run, int32_t place, int64_t row) {
    const fxa__tape_state *s = run->scratch;
    size_t size = mask_place(run, place)->real ? run->tape->kernels->real_size : sizeof(int32_t);
    const char *x = (const char *)s->fixed[place] + (size_t)row * size;
    return mask_place(run, place)->space == TAPE_ROW && memcmp(x, x - size, size) != 0;
}

/* Returns true if the bits of a part of the formula may differ between row `row` and the row before. */
static bool mask_part_moves(const fxa__tape_run *run, const fxa__tape_part *part, int64_t row) {
    bool moves = false;
    for (size_t i = part->watched; !moves && i < part->watched + part->n_watched; i++)
        moves = mask_moves(run, run->tape->watched[i], row);
    return moves;
}

/* Returns true if the offset and bound of each range change from this row to the next as much as from the row before to
 * this row. */
static bool mask_is_even(const fxa__tape_run *run, int64_t row) {
    const fxa__tape *t = run->tape;
    bool even = true;
    for (size_t i = 0; even && i < 2 * t->n_ranges; i++) {
        int32_t place = i % 2 ? t->ranges[i / 2].bound : t->ranges[i / 2].offset;
        int64_t x = mask_int(run, place, row);
        even = x - mask_int(run, place, row - 1) == mask_int(run, place, row + 1) - x;
    }
    return even;
}

static void mask_stretches(fxa__tape_run *run, int64_t n) {
    fxa__tape_state *s = run->scratch;
    for (int64_t row = n - 1; row >= 0; row--) {
        s->until[row] = row + 1;
        if (row + 1 == n || s->moved[row + 1]) continue;
        s->until[row] = row + 2 < n && mask_is_even(run, row + 1) ? s->until[row + 1] : row + 2;
    }
}

void fxa__tape_mask_rows(fxa__tape_run *run, int64_t n) {
    const fxa__tape *t = run->tape;
    fxa__tape_state *s = run->scratch;
    for (int64_t row = 0; row < n; row++) {
        bool moves = row == 0;
        for (size_t i = 0; !moves && i < t->n_watched; i++) moves = mask_moves(run, t->watched[i], row);
        for (size_t i = 0; !moves && i < t->n_tests; i++) moves = mask_moves(run, t->tests[i], row);
        s->moved[row] = moves;
    }
    s->ranges_move = false;
    for (size_t i = 0; i < t->n_ranges; i++)
        s->ranges_move = s->ranges_move || mask_place(run, t->ranges[i].offset)->space == TAPE_ROW ||
                         mask_place(run, t->ranges[i].bound)->space == TAPE_ROW;
    if (s->ranges_move) mask_stretches(run, n);
}

static void mask_run_part(fxa__tape_run *run, size_t part, int64_t row, int64_t words) {
    fxa__tape_state *s = run->scratch;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = 0, .n = run->columns};
    uint64_t *bits = s->bits + (int64_t)part * words;
    fxa__tape_set_places(&r, row, NULL, NULL, s->spare[0]);
    fxa__tape_run_part(&r, &run->tape->parts[part]);
    memset(bits, 0, (size_t)words * sizeof *bits);
    run->tape->kernels->row_signs(bits, s->spare[0], run->columns);
}

/* Computes the columns of each range in a row. Returns false if the columns of all ranges are equal to those of the
 * row before. */
static bool mask_move_ranges(fxa__tape_run *run, int64_t row) {
    const fxa__tape *t = run->tape;
    fxa__tape_state *s = run->scratch;
    bool changed = false;
    for (size_t i = 0; i < t->n_ranges; i++) {
        const fxa__tape_range *range = &t->ranges[i];
        int32_t offset = mask_int(run, range->offset, row), bound = mask_int(run, range->bound, row);
        fxa__tape_ends ends, before = s->ends[i];
        if (!fxa__tape_range_columns(s, range, offset, bound, 0, run->columns, &ends.begin, &ends.end)) ends.begin = -1;
        changed = changed || ends.begin < 0 || ends.begin != before.begin || ends.end != before.end;
        s->ends[i] = ends;
    }
    return changed;
}

/* Returns the number of rows after `row`, before `end`, that are known to have the mask bits of row `row`. Before row
 * s->until[row], the offset and bound of each range of columns change by the same amount from row to row, so the
 * range's begin and end are monotonic in the row. If both are equal in `row` and in a later row, they are equal in all
 * rows between. */
static int64_t mask_repeats(const fxa__tape_run *run, int64_t row, int64_t end) {
    const fxa__tape *t = run->tape;
    const fxa__tape_state *s = run->scratch;
    int64_t last = fxa__min_i64(fxa__min_i64(s->until[row], end), row + 1 + MASK_STRETCH) - 1;
    for (size_t i = 0; last > row && i < t->n_ranges; i++) {
        const fxa__tape_range *range = &t->ranges[i];
        fxa__tape_ends ends[2];
        bool same = true;
        for (int k = 0; same && k < 2; k++) {
            int64_t at = k ? last : row;
            same = fxa__tape_range_ends(s, range, mask_int(run, range->offset, at), mask_int(run, range->bound, at), 0,
                                        run->columns, &ends[k].begin, &ends[k].end);
        }
        if (!same || ends[0].begin != ends[1].begin || ends[0].end != ends[1].end) return 0;
    }
    return last - row;
}

/* Computes the parts and ranges of the formula for a row. Returns false if all parts, ranges and tests are equal to
 * those of the row before. `kept`: the parts and ranges in memory are those of the row before. */
static bool mask_leaves(fxa__tape_run *run, int64_t row, int64_t words, bool kept) {
    const fxa__tape *t = run->tape;
    const fxa__tape_state *s = run->scratch;
    bool moved = !kept || s->moved[row];
    for (size_t i = 0; moved && i < t->n_parts; i++)
        if (!kept || mask_part_moves(run, &t->parts[i], row)) mask_run_part(run, i, row, words);
    return mask_move_ranges(run, row) || moved;
}

/* ---- The formula ------------------------------------------------------------------------------------------------- */

/* Returns a word whose first n bits are set: 0 for n <= 0, all ones for n >= 64. */
static uint64_t mask_low(int64_t n) { return n >= 64 ? UINT64_MAX : n <= 0 ? 0 : ((uint64_t)1 << n) - 1; }

/* Computes the bits of a range column by column, for keys that are not evenly spaced or values that wrap around. */
static void mask_range_each(fxa__tape_run *run, const fxa__tape_range *range, int64_t row, uint64_t *bits,
                            int64_t words) {
    fxa__tape_state *s = run->scratch;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = 0, .n = run->columns};
    void *out = s->spare[0];
    fxa__tape_set_places(&r, row, NULL, NULL, NULL);
    memset(out, 0, (size_t)r.n * run->tape->kernels->real_size);
    memset(bits, 0, (size_t)words * sizeof *bits);
    fxa__tape_apply_range(&r, range, out);
    run->tape->kernels->row_signs(bits, out, r.n);
}

/* Returns the bits of a leaf of the formula (a part, test or range): the stored bits of a part, or `room`, in which the
 * bits of a test or range are computed. */
static const uint64_t *mask_leaf(fxa__tape_run *run, const fxa__tape_term *term, int64_t row, uint64_t *room,
                                 int64_t words) {
    const fxa__tape_state *s = run->scratch;
    if (term->kind == TAPE_BITS_PART) return s->bits + term->leaf * words;
    if (term->kind == TAPE_BITS_TEST) {
        memset(room, mask_int(run, run->tape->tests[term->leaf], row) ? 255 : 0, (size_t)words * sizeof *room);
        return room;
    }
    fxa__tape_ends ends = s->ends[term->leaf];
    if (ends.begin < 0)
        mask_range_each(run, &run->tape->ranges[term->leaf], row, room, words);
    else
        for (int64_t i = 0; i < words; i++) room[i] = mask_low(ends.end - 64 * i) & ~mask_low(ends.begin - 64 * i);
    return room;
}

/* Combines x with y, or with y and z, by an operation of the formula. Stores the result in x. */
static void mask_join(int kind, uint64_t *restrict x, const uint64_t *restrict y, const uint64_t *restrict z,
                      int64_t words) {
    switch (kind) {
    case TAPE_BITS_AND:
        for (int64_t i = 0; i < words; i++) x[i] &= y[i];
        break;
    case TAPE_BITS_OR:
        for (int64_t i = 0; i < words; i++) x[i] |= y[i];
        break;
    case TAPE_BITS_XOR:
        for (int64_t i = 0; i < words; i++) x[i] ^= y[i];
        break;
    case TAPE_BITS_NOT:
        for (int64_t i = 0; i < words; i++) x[i] = ~x[i];
        break;
    default:
        for (int64_t i = 0; i < words; i++) x[i] = (x[i] & y[i]) | (~x[i] & z[i]);
    }
}

/* Computes x |= the bits of a test or of a contiguous range, without touching the words of x that do not change.
 * Returns false, with x unchanged, for all other terms. */
static bool mask_or_leaf(const fxa__tape_run *run, const fxa__tape_term *term, int64_t row, uint64_t *x,
                         int64_t words) {
    const fxa__tape_state *s = run->scratch;
    if (term->kind == TAPE_BITS_TEST) {
        if (mask_int(run, run->tape->tests[term->leaf], row)) memset(x, 255, (size_t)words * sizeof *x);
        return true;
    }
    if (term->kind != TAPE_BITS_RANGE || s->ends[term->leaf].begin < 0) return false;
    fxa__tape_ends ends = s->ends[term->leaf];
    for (int64_t i = ends.begin / 64; 64 * i < ends.end; i++)
        x[i] |= mask_low(ends.end - 64 * i) & ~mask_low(ends.begin - 64 * i);
    return true;
}

/* Returns the number of operands of a term of the formula. */
static int mask_takes(int kind) {
    return kind <= TAPE_BITS_PART ? 0 : kind == TAPE_BITS_NOT ? 1 : kind == TAPE_BITS_SELECT ? 3 : 2;
}

/* Evaluates the formula for a row. Returns the bits of the mask, [words]. */
static const uint64_t *mask_formula(fxa__tape_run *run, int64_t row, int64_t words) {
    const fxa__tape *t = run->tape;
    const fxa__tape_state *s = run->scratch;
    uint64_t *stack = s->bits + (int64_t)t->n_parts * words;
    int64_t depth = 0;
    for (size_t i = 0; i < t->n_terms; i++) {
        const fxa__tape_term *term = &t->terms[i];
        int takes = mask_takes(term->kind), next = i + 1 < t->n_terms && takes == 0 ? t->terms[i + 1].kind : -1;
        FXA__ASSERT(depth >= takes && depth - takes < TAPE_FORMULA_ROWS);
        depth -= takes;
        uint64_t *x = stack + depth * words;
        if (takes > 0) {
            mask_join(term->kind, x, x + words, x + 2 * words, words);
            /* the next operation combines these bits with the top of the stack, so they are not pushed */
        } else if (depth > 0 && mask_takes(next) == 2) {
            uint64_t *to = x - words;
            if (next != TAPE_BITS_OR || !mask_or_leaf(run, term, row, to, words))
                mask_join(next, to, mask_leaf(run, term, row, x, words), x, words);
            i++;
            continue;
        } else {
            const uint64_t *leaf = mask_leaf(run, term, row, x, words);
            for (int64_t w = 0; leaf != x && w < words; w++) x[w] = leaf[w];
        }
        depth++;
    }
    FXA__ASSERT(depth == 1);
    return stack;
}

void fxa__tape_mask(fxa__tape_run *run, int64_t row, int64_t n, uint64_t *bits, int64_t words, uint8_t *same) {
    FXA__ASSERT(fxa__div_up(run->columns, 64) <= words && words <= fxa__div_up(run->max_columns, 64));
    const fxa__tape_state *s = run->scratch;
    int64_t ask = s->ranges_move ? row + 1 : row + n,
            repeats = row; /* end of the rows whose bits are known to equal those of the row before */
    for (int64_t i = row; i < row + n; i++, bits += words) {
        if (i == ask) {
            repeats = i + mask_repeats(run, i - 1, row + n);
            ask = repeats > i ? repeats : i + MASK_STRETCH;
        }
        bool stays = i > row && !s->moved[i] && !s->ranges_move;
        *same = stays || i < repeats || !mask_leaves(run, i, words, i > row);
        if (*same++) continue;
        const uint64_t *from = mask_formula(run, i, words);
        for (int64_t w = 0; w < words; w++) bits[w] = from[w] & mask_low(run->columns - 64 * w);
    }
}

int64_t fxa__tape_mask_cost(const fxa__tape *tape) { return (int64_t)tape->level[TAPE_FULL].n_ins; }
