/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a tape: lays out the caller's scratch memory, then runs one level after the other. Rows are processed in entire
 * steps of FXA__TAPE_STEP elements. If the length of a caller's row is not a multiple of FXA__TAPE_STEP, the row is
 * first copied to a spare row; the elements of dscore past the end are 0 there, so that they add nothing to sums.
 */
#include "tape_code.h"

#include "../../../base/carve.h"
#include "../../../base/invariant.h"

#include <math.h>
#include <string.h>

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

static int64_t run_steps(int64_t n) { return fxa__round_up(n, FXA__TAPE_STEP); }

/* Computes the bytes of a row of n elements, with so much padding that FXA__TAPE_STEP elements may be accessed from any
 * element on. Returns false on overflow. */
static bool run_pitch(int64_t n, size_t real_size, size_t *pitch) {
    FXA__ASSERT(n >= 0);
    if (n > INT64_MAX / 64) return false;
    return !__builtin_mul_overflow(run_steps(n) + FXA__TAPE_STEP, real_size, pitch);
}

/* Computes the layout of the scratch memory. If the arena c has memory (a base address), also sets the pointers of s.
 * Returns false on overflow. */
static bool run_layout(const fxa__tape *t, int64_t max_rows, int64_t max_columns, fxa__carver *c, fxa__tape_state *s) {
    const int64_t n[TAPE_LEVELS] = {1, max_rows, max_columns, max_columns, max_columns};
    size_t places = 0;
    (void)fxa__carve(c, 1, sizeof *s); /* memory of *s itself, which is at the start */
    for (int i = 0; i < TAPE_LEVELS; i++) {
        if (t->level[i].n_places > places) places = t->level[i].n_places;
        if (!run_pitch(n[i], t->kernels->real_size, &s->pitch[i])) return false;
        s->base[i] = fxa__carve(c, t->level[i].n_regs, s->pitch[i]);
    }
    for (int i = 0; i < 3; i++) s->spare[i] = fxa__carve(c, 1, s->pitch[TAPE_FULL]);
    s->at = fxa__carve(c, (int64_t)places, sizeof(void *));
    s->fixed = fxa__carve(c, (int64_t)t->level[TAPE_FULL].n_places, sizeof(uintptr_t));
    s->k = fxa__carve(c, max_columns, sizeof(int32_t));
    int64_t rows = t->alone ? (int64_t)t->n_parts + TAPE_FORMULA_ROWS : 0;
    s->bits = fxa__carve_matrix(c, rows, fxa__div_up(max_columns, 64), sizeof *s->bits);
    s->ends = fxa__carve(c, (int64_t)(t->alone ? t->n_ranges : 0), sizeof *s->ends);
    s->moved = fxa__carve(c, t->alone ? max_rows : 0, 1);
    s->until = fxa__carve(c, t->alone ? max_rows : 0, sizeof *s->until);
    return !c->failed;
}

bool fxa__tape_scratch(const fxa__tape *tape, int64_t max_rows, int64_t max_columns, size_t *bytes) {
    fxa__carver c = fxa__carver_make(NULL);
    fxa__tape_state s;
    bool fits = run_layout(tape, max_rows, max_columns, &c, &s);
    *bytes = c.used;
    return fits;
}

void *fxa__tape_carve(fxa__carver *c, const fxa__tape *tape, int64_t max_rows, int64_t max_columns) {
    fxa__carver own = fxa__carver_within(c);
    fxa__tape_state s;
    if (tape && !run_layout(tape, max_rows, max_columns, &own, &s)) c->failed = true;
    return fxa__carve(c, 1, own.used);
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

static void run_sum(const fxa__tape_at *r, const fxa__tape_ins *ins) {
    const fxa__tape_run *run = r->run;
    int op = ins->c ? FXA__TAPE_SUM_FF : FXA__TAPE_SUM_Ff;
    if (run->dparams)
        run->tape->kernels->tape[op](run_steps(r->n), &run->dparams[ins->aux], r->at[ins->b], r->at[ins->a], NULL);
}

/* Runs a LOAD. A result in a register of level FULL is read for this row only, so the elements may be read in the
 * tensor itself, without a copy. */
static void run_load(const fxa__tape_at *r, const fxa__tape_ins *ins) {
    const fxa__tape *t = r->run->tape;
    bool may_alias = r->level == TAPE_FULL && t->level[TAPE_FULL].places[ins->dst].space == TAPE_FULL;
    r->at[ins->dst] = fxa__tape_access_load(r, &t->accesses[ins->aux], r->at[ins->dst], may_alias);
}

static void run_special(const fxa__tape_at *r, const fxa__tape_ins *ins) {
    const fxa__tape *t = r->run->tape;
    switch (ins->op) {
    case FXA__TAPE_LOAD: run_load(r, ins); break;
    case FXA__TAPE_RANGE: fxa__tape_apply_range(r, &t->ranges[ins->aux], r->at[ins->dst]); break;
    case FXA__TAPE_SUM: run_sum(r, ins); break;
    default: fxa__tape_access_add(r, &t->accesses[ins->aux], r->at[ins->a], r->at[ins->b]);
    }
}

/* Runs instructions begin..end of a level. l->ins is NULL if the level has no instructions. */
static void run_instructions(const fxa__tape_at *r, const fxa__tape_level *l, size_t begin, size_t end) {
    const fxa__tape_fn *table = r->run->tape->kernels->tape;
    int64_t n = run_steps(r->n);
    for (size_t i = begin; i < end; i++) {
        const fxa__tape_ins *ins = &l->ins[i];
        if (ins->op < FXA__TAPE_OPS)
            table[ins->op](n, r->at[ins->dst], r->at[ins->a], r->at[ins->b], r->at[ins->c]);
        else
            run_special(r, ins);
    }
}

void fxa__tape_run_part(const fxa__tape_at *r, const fxa__tape_part *part) {
    run_instructions(r, &r->run->tape->level[TAPE_FULL], part->ins, part->ins + part->n_ins);
}

/* ---- Levels below FULL ------------------------------------------------------------------------------------------- */

/* Sets the addresses of a level's operands and results (places) and runs its instructions. row: the row whose ROW
 * values the SHARED level reads; 0 for other levels. */
static void run_level(fxa__tape_run *run, int level, int64_t row, int64_t n) {
    fxa__tape_state *s = run->scratch;
    const fxa__tape_level *l = &run->tape->level[level];
    for (size_t i = 0; i < l->n_places; i++) {
        const fxa__tape_place *p = &l->places[i];
        size_t size = p->real ? run->tape->kernels->real_size : sizeof(int32_t);
        s->at[i] = s->base[p->space] + (size_t)p->reg * s->pitch[p->space];
        if (p->space == TAPE_ROW) s->at[i] = (char *)s->at[i] + (size_t)row * size;
    }
    fxa__tape_at r = {.level = level, .run = run, .state = s, .at = s->at, .first = 0, .n = n};
    run_instructions(&r, l, 0, l->n_ins);
}

/* Returns the register of a leaf: an input, a param or a constant. */
static void *run_reg(const fxa__tape_state *s, const fxa__tape_leaf *leaf) {
    return s->base[leaf->level] + (size_t)leaf->reg * s->pitch[leaf->level];
}

/* Returns the heads [rows] of the rows if the tape has SHARED values (values per head and key); else NULL. */
static const int32_t *run_heads(const fxa__tape_run *run) {
    const fxa__tape *t = run->tape;
    for (size_t i = 0; t->level[TAPE_SHARED].n_ins > 0 && i < t->n_leaves; i++)
        if (t->leaves[i].op == FXA_OP_INPUT && t->leaves[i].imm == FXA_INPUT_H)
            return run_reg(run->scratch, &t->leaves[i]);
    return NULL;
}

/* Computes the SHARED values of a row's head (values per head and key), unless the registers hold these values for the
 * current key block. */
static void run_shared(fxa__tape_run *run, int64_t row) {
    fxa__tape_state *s = run->scratch;
    if (s->shared && s->head == s->heads[row]) return;
    run_level(run, TAPE_SHARED, row, run->columns);
    s->head = s->heads[row];
    s->shared = true;
}

/* Fills a register with a constant, a param or an input that is the same in an entire batch entry. */
static void run_fill_uniform(const fxa__tape_run *run, const fxa__tape_leaf *leaf, const int32_t *coord) {
    void *reg = run_reg(run->scratch, leaf);
    double f = leaf->op == FXA_OP_PARAM ? run->params[leaf->imm] : leaf->f;
    int32_t i = leaf->op == FXA_OP_PARAM ? fxa__toint(f) : leaf->op == FXA_OP_INPUT ? coord[leaf->imm] : leaf->imm;
    for (int k = 0; k < FXA__TAPE_STEP; k++) {
        if (leaf->type != FXA_FLOAT)
            ((int32_t *)reg)[k] = i;
        else if (run->tape->kernels->real_size == sizeof(float))
            ((float *)reg)[k] = (float)f;
        else
            ((double *)reg)[k] = f;
    }
}

/* Maximum bytes of a tensor that is assumed to stay in the L2 cache: a fraction of the smallest L2 of servers; untuned.
 * Rows of larger tensors are prefetched: with a dense bias of S 2048, one core of Zen 4 runs at 86 GFLOP/s with
 * prefetching and 79 without. */
enum { RUN_SMALL = 1 << 18 };

static bool run_is_far(const fxa__tape_run *run) {
    const fxa__tape_level *full = &run->tape->level[TAPE_FULL];
    for (size_t i = 0; i < full->n_ins; i++) {
        if (full->ins[i].op != FXA__TAPE_LOAD) continue;
        const fxa_view *view = &run->tensors[run->tape->accesses[full->ins[i].aux].tensor];
        int64_t bytes = (int64_t)fxa_dtype_size(view->dtype);
        for (int32_t d = 0; d < view->rank && bytes <= RUN_SMALL; d++) bytes *= fxa__min_i64(view->size[d], RUN_SMALL);
        if (bytes > RUN_SMALL) return true;
    }
    return false;
}

void fxa__tape_batch(fxa__tape_run *run, int32_t b, int32_t q_len, int32_t k_len, int32_t heads) {
    const fxa__tape *t = run->tape;
    const int32_t coord[FXA_INPUT_COUNT] = {
        [FXA_INPUT_B] = b, [FXA_INPUT_Q_LEN] = q_len, [FXA_INPUT_K_LEN] = k_len, [FXA_INPUT_HEADS] = heads};
    fxa__tape_state *s = run->scratch;
    fxa__carver c = fxa__carver_make(run->scratch);
    run_layout(t, run->max_rows, run->max_columns, &c, s);
    for (size_t i = 0; i < t->level[TAPE_FULL].n_places; i++) {
        const fxa__tape_place *p = &t->level[TAPE_FULL].places[i];
        s->fixed[i] =
            p->space < TAPE_LEVELS ? (uintptr_t)s->base[p->space] + (uintptr_t)p->reg * s->pitch[p->space] : 0;
    }
    for (size_t i = 0; i < t->n_leaves; i++)
        if (t->leaves[i].level == TAPE_UNIFORM) run_fill_uniform(run, &t->leaves[i], coord);
    s->far = run_is_far(run);
    s->heads = run_heads(run);
    /* SHARED values depend on the head, so the input h has a register */
    FXA__ASSERT(s->heads || t->level[TAPE_SHARED].n_ins == 0);
    s->shared = false;
    run_level(run, TAPE_UNIFORM, 0, 1);
}

/* Fills a register with first, first + 1, ..., and continues at 0 after size - 1. */
static void run_count(int32_t *reg, int64_t n, int64_t first, int64_t size) {
    for (int64_t i = 0, x = first; i < n; i++, x++) {
        if (x == size) x = 0;
        reg[i] = (int32_t)x;
    }
}

void fxa__tape_rows(fxa__tape_run *run, int64_t n, const int32_t *h, const int32_t *q, int64_t first, int64_t q_len) {
    const fxa__tape *t = run->tape;
    FXA__ASSERT(0 <= n && n <= run->max_rows);
    for (size_t i = 0; i < t->n_leaves; i++) {
        const fxa__tape_leaf *leaf = &t->leaves[i];
        if (leaf->level != TAPE_ROW) continue;
        if (leaf->imm == FXA_INPUT_Q_ROW)
            run_count(run_reg(run->scratch, leaf), n, first, q_len);
        else
            memcpy(run_reg(run->scratch, leaf), leaf->imm == FXA_INPUT_H ? h : q, (size_t)n * sizeof *h);
    }
    run_level(run, TAPE_ROW, 0, n);
    if (t->alone) fxa__tape_mask_rows(run, n);
}

/* Returns the difference of consecutive key coordinates if it is constant and positive, else 0. Returns 1 for a single
 * key. */
static int64_t run_key_step(int64_t n, const int32_t *k) {
    int64_t step = n > 1 ? (int64_t)k[1] - k[0] : 1;
    for (int64_t i = 1; i < n; i++)
        if ((int64_t)k[i] - k[i - 1] != step) return 0;
    return step > 0 ? step : 0;
}

void fxa__tape_columns(fxa__tape_run *run, int64_t n, const int32_t *k, int64_t first) {
    const fxa__tape *t = run->tape;
    fxa__tape_state *s = run->scratch;
    FXA__ASSERT(0 < n && n <= run->max_columns);
    run->columns = n;
    s->step = run_key_step(n, k);
    memcpy(s->k, k, (size_t)n * sizeof *k);
    for (size_t i = 0; i < t->n_leaves; i++) {
        const fxa__tape_leaf *leaf = &t->leaves[i];
        if (leaf->level != TAPE_COLUMN) continue;
        if (leaf->imm == FXA_INPUT_K_ROW)
            run_count(run_reg(s, leaf), n, first, INT64_MAX);
        else
            memcpy(run_reg(s, leaf), k, (size_t)n * sizeof *k);
    }
    run_level(run, TAPE_COLUMN, 0, n);
    s->shared = false;
}

/* ---- Rows of scores ---------------------------------------------------------------------------------------------- */

static void run_fill(void *out, size_t real_size, int64_t n, double x) {
    for (int64_t i = 0; i < n; i++) {
        if (real_size == sizeof(float))
            ((float *)out)[i] = (float)x;
        else
            ((double *)out)[i] = x;
    }
}

/* Copies a row whose length is not a multiple of FXA__TAPE_STEP to a spare row, and pads it with zeroes. Returns the
 * spare row; NULL if `row` is NULL. */
static const void *run_copy_row(const fxa__tape_at *r, int which, const void *row) {
    size_t size = r->run->tape->kernels->real_size, n = (size_t)r->n;
    char *spare = r->state->spare[which];
    if (!row) return NULL;
    memcpy(spare, row, n * size);
    memset(spare + n * size, 0, ((size_t)run_steps(r->n) - n) * size);
    return spare;
}

/* Sets the addresses of the operands and results (places) of level FULL: a value per row is that of row `row`; values
 * per key start at column r->first; score, dscore and out are the caller's rows. */
void fxa__tape_set_places(const fxa__tape_at *r, int64_t row, const void *score, const void *dscore, void *out) {
    const fxa__tape_level *level = &r->run->tape->level[TAPE_FULL];
    const fxa__tape_place *places = level->places;
    const uintptr_t *fixed = r->state->fixed;
    void **at = r->at;
    size_t size = r->run->tape->kernels->real_size, n = level->n_places;
    uintptr_t shift[TAPE_SPACES][2];
    shift[TAPE_UNIFORM][0] = shift[TAPE_UNIFORM][1] = shift[TAPE_FULL][0] = shift[TAPE_FULL][1] = 0;
    shift[TAPE_ROW][0] = (uintptr_t)row * sizeof(int32_t);
    shift[TAPE_ROW][1] = (uintptr_t)row * size;
    shift[TAPE_COLUMN][0] = shift[TAPE_SHARED][0] = (uintptr_t)r->first * sizeof(int32_t);
    shift[TAPE_COLUMN][1] = shift[TAPE_SHARED][1] = (uintptr_t)r->first * size;
    shift[TAPE_SCORE][1] = (uintptr_t)score;
    shift[TAPE_DSCORE][1] = (uintptr_t)dscore;
    shift[TAPE_OUT][1] = (uintptr_t)out;
    for (size_t i = 0; i < n; i++) at[i] = (void *)(fixed[i] + shift[places[i].space][places[i].real]);
}

void fxa__tape_prefetch(fxa__tape_run *run, int64_t row, int64_t first, int64_t n) {
    const fxa__tape_level *full = &run->tape->level[TAPE_FULL];
    fxa__tape_state *s = run->scratch;
    FXA__ASSERT(n > 0);
    if (!s->far) return;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = first, .n = n};
    fxa__tape_set_places(&r, row, NULL, NULL, NULL);
    for (size_t i = 0; i < full->n_ins; i++)
        if (full->ins[i].op == FXA__TAPE_LOAD) fxa__tape_access_prefetch(&r, &run->tape->accesses[full->ins[i].aux]);
}

void fxa__tape_row(fxa__tape_run *run, int64_t row, int64_t first, int64_t n, const void *score, const void *dscore,
                   void *out) {
    const fxa__tape *t = run->tape;
    fxa__tape_state *s = run->scratch;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = first, .n = n};
    size_t size = t->kernels->real_size;
    bool whole = n % FXA__TAPE_STEP == 0;
    FXA__ASSERT(0 <= row && row < run->max_rows && 0 <= first && 0 < n && first + n <= run->columns);
    if (!whole) {
        score = run_copy_row(&r, 0, score);
        dscore = run_copy_row(&r, 1, dscore);
    }
    if (s->heads) run_shared(run, row);
    s->first = first;
    fxa__tape_set_places(&r, row, score, dscore, whole ? out : s->spare[2]);
    for (size_t i = 0; i < t->n_tests; i++) {
        if (*(const int32_t *)s->at[t->tests[i]]) continue;
        run_fill(out, size, n, -INFINITY);
        return;
    }
    const fxa__tape_level *full = &t->level[TAPE_FULL];
    run_instructions(&r, full, 0, t->n_value ? t->n_value : full->n_ins);
    if (t->writes && !whole) memcpy(out, s->spare[2], (size_t)n * size);
}

/* Uses the addresses that fxa__tape_row has set: the result of a load may be in the tensor itself, not in its
 * register. */
void fxa__tape_row_back(fxa__tape_run *run, int64_t n, const void *dscore, void *out) {
    const fxa__tape *t = run->tape;
    const fxa__tape_level *full = &t->level[TAPE_FULL];
    fxa__tape_state *s = run->scratch;
    fxa__tape_at r = {.level = TAPE_FULL, .run = run, .state = s, .at = s->at, .first = s->first, .n = n};
    bool whole = n % FXA__TAPE_STEP == 0;
    if (!whole) dscore = run_copy_row(&r, 1, dscore);
    for (size_t i = 0; i < full->n_places; i++) {
        if (full->places[i].space == TAPE_DSCORE) s->at[i] = (void *)(uintptr_t)dscore;
        if (full->places[i].space == TAPE_OUT) s->at[i] = whole ? out : s->spare[2];
    }
    run_instructions(&r, full, t->n_value, full->n_ins);
    if (t->writes_back && !whole) memcpy(out, s->spare[2], (size_t)n * t->kernels->real_size);
}
