/* SPDX-License-Identifier: Apache-2.0
 *
 * A mask alone, before there are scores: rows of pairs as bits. Such a tape has 0 for a score, and its FULL level makes
 * -inf of that where a conjunct is false. What a row reads of its own, beside the columns and the batch entry, is in
 * places of ROW; where those hold the same as for the row before, so do all bits, and nothing is computed: blocks,
 * documents and heads repeat whole rows. Conjuncts that leave a range of columns are no part of that. They come last,
 * as the two ends of a row, because they differ from row to row and cost next to nothing.
 */
#include "tape_code.h"

#include "../../base/num.h"

#include <string.h>

/* ---- What a row is told apart by --------------------------------------------------------------------------------- */

static bool mask_watch_place(fxa__tape *t, int32_t place) {
    if (place < 0 || t->level[TAPE_FULL].places[place].space != TAPE_ROW) return true;
    for (size_t i = 0; i < t->n_watched; i++)
        if (t->watched[i] == place) return true;
    if (!fxa__grow(t->host, &t->watched, &t->watched_capacity, t->n_watched + 1, sizeof *t->watched)) return false;
    t->watched[t->n_watched++] = place;
    return true;
}

static bool mask_watch_access(fxa__tape *t, const fxa__tape_access *access) {
    bool ok = mask_watch_place(t, access->lo) && mask_watch_place(t, access->hi) && mask_watch_place(t, access->shift);
    for (int i = 0; i < access->rank; i++) ok = ok && mask_watch_place(t, access->index[i]);
    return ok;
}

bool fxa__tape_mask_watch(fxa__tape *t) {
    const fxa__tape_level *full = &t->level[TAPE_FULL];
    bool ok = true;
    for (size_t i = 0; ok && i < full->n_ins; i++) {
        const fxa__tape_ins *ins = &full->ins[i];
        if (ins->op == FXA__TAPE_LOAD) {
            ok = mask_watch_access(t, &t->accesses[ins->aux]);
            continue;
        }
        const fxa__tape_info *info = &fxa__tape_infos[ins->op];
        ok = (info->a == '_' || mask_watch_place(t, ins->a)) && (info->b == '_' || mask_watch_place(t, ins->b)) &&
             (info->c == '_' || mask_watch_place(t, ins->c));
    }
    for (size_t i = 0; ok && i < t->n_tests; i++) ok = mask_watch_place(t, t->tests[i]);
    return ok;
}

/* Rows row and row - 1 have the same bits, but for ranges. */
static bool mask_repeats(const fxa__tape_run *run, int64_t row) {
    const fxa__tape *t = run->tape;
    const fxa__tape_state *s = run->scratch;
    for (size_t i = 0; i < t->n_watched; i++) {
        const fxa__tape_place *p = &t->level[TAPE_FULL].places[t->watched[i]];
        size_t size = p->real ? t->kernels->real_size : sizeof(int32_t);
        const char *x = s->base[TAPE_ROW] + (size_t)p->reg * s->pitch[TAPE_ROW] + (size_t)row * size;
        if (memcmp(x, x - size, size) != 0) return false;
    }
    return true;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static uint64_t mask_low(int64_t n) { /* the first n bits, 0 <= n <= 64 */
    return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* Leaves columns begin..end. */
static void mask_keep(uint64_t *bits, int64_t words, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < words; i++) {
        int64_t from = fxa__max_i64(0, fxa__min_i64(begin - 64 * i, 64)), to = fxa__max_i64(0, end - 64 * i);
        bits[i] &= mask_low(fxa__min_i64(to, 64)) & ~mask_low(from);
    }
}

/* Keys that do not lie evenly, or numbers that wrap: column by column. */
static void mask_keep_each(const fxa__tape_at *r, const fxa__tape_range *range, uint64_t *bits, int64_t words) {
    uint64_t *here = (uint64_t *)(void *)r->state->spare[2];
    void *out = r->state->spare[0];
    memset(out, 0, (size_t)r->n * r->run->tape->kernels->real_size);
    memset(here, 0, (size_t)words * sizeof *here);
    fxa__tape_apply_range(r, range, out);
    r->run->tape->kernels->row_signs(here, out, r->n);
    for (int64_t i = 0; i < words; i++) bits[i] &= here[i];
}

static void mask_ranges(fxa__tape_run *run, int64_t row, uint64_t *bits, int64_t words) {
    const fxa__tape *t = run->tape;
    fxa__tape_state *s = run->scratch;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = 0, .n = run->columns};
    if (t->n_ranges == 0) return;
    fxa__tape_set_places(&r, row, NULL, NULL, NULL);
    for (size_t i = 0; i < t->n_ranges; i++) {
        int64_t begin, end;
        if (!fxa__tape_range_columns(&r, &t->ranges[i], &begin, &end))
            mask_keep_each(&r, &t->ranges[i], bits, words);
        else if (begin > 0 || end < r.n)
            mask_keep(bits, words, begin, end);
    }
}

void fxa__tape_mask(fxa__tape_run *run, int64_t row, int64_t n, uint64_t *bits, int64_t words) {
    const fxa__tape_state *s = run->scratch;
    uint64_t *rest = (uint64_t *)(void *)s->spare[1]; /* of the last row, without ranges; */
    bool kept = false;                                /* that it is there */
    for (int64_t i = row; i < row + n; i++, bits += words) {
        if (!kept || !mask_repeats(run, i)) {
            memset(rest, 0, (size_t)words * sizeof *rest);
            fxa__tape_row(run, i, 0, run->columns, NULL, NULL, s->spare[0]);
            run->tape->kernels->row_signs(rest, s->spare[0], run->columns);
        }
        memcpy(bits, rest, (size_t)words * sizeof *bits);
        mask_ranges(run, i, bits, words);
        kept = true;
    }
}
