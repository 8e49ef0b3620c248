/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes a key block for a task of many rows, with packed operands. A block is packed once for all rows of the tile,
 * and Q once for all blocks. Keys that the mask excludes for all rows are not loaded. The rows of Q in one product are
 * the product rows, one row block or several. Three steps process them, while their scores are in the cache:
 *
 *     t = Q K^T [rows, columns]    only the panels of K^T to which some of these rows attend
 *     t = softmax                  one row block at a time, each with its own columns
 *     o = beta o + t V             the product is summed before it is added, so that errors do not grow with the length
 *
 * A sub-block is a run of columns (keys) to which the product rows attend. The scores of all sub-blocks are stored side
 * by side:
 *
 *                    column    begin                end
 *     key block    |    :........[#### first ########]......gap......[## second ##]   |
 *     t              [  :........#### first ########  |## second ##]
 *
 * In a single sub-block, a row block may have fewer columns than the sub-block; its weights in the other columns are 0.
 * If there are several sub-blocks, each row block has all columns of all sub-blocks.
 */
#include "../real.h"
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum {
    ATTEND_ROW_BLOCKS = FXA__CPU_PRODUCT_ROWS / FXA__CPU_ROW_BLOCK,
    /* one more than the sub-blocks of a key block: the last search, which finds none, gets its address */
    ATTEND_SUB_BLOCKS = FXA__CPU_KEY_BLOCK / (FXA__CPU_GRANULE + FXA__CPU_GAP) + 2
};

/* A row block, and the columns (keys) of the first sub-block to which the rows of the block attend. */
typedef struct attend_row_block {
    fxa__cpu_sub_block s; /* the rows and columns; s.begin == s.end if the rows attend to no column of the sub-block */
    int64_t column;       /* last column <= s.begin at which a product can start; the row block's scores start there */
} attend_row_block;

/* The rows of one product, and the sub-blocks of the key block to which these rows attend. */
typedef struct attend_rows {
    int64_t row, n;     /* first row, and number of rows */
    int64_t column;     /* column at which the scores of the first sub-block start */
    int64_t begin, end; /* columns begin..end of the first sub-block: the union of all row blocks' columns */
    int row_blocks, sub_blocks;
    bool is_first; /* no row has an output yet, so outputs are written without being read */
    attend_row_block row_block[ATTEND_ROW_BLOCKS];
    fxa__cpu_sub_block sub_block[ATTEND_SUB_BLOCKS];
} attend_rows;

/* Replaces the output of a row by beta * output + sum of t[i] * v[i], for n weights t and n rows v of V. */
typedef void (*attend_add)(fxa__cpu_forward_worker *w, int64_t row, const void *t, const void *v, int64_t n,
                           double beta);

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* Packs those panels of the key block's K^T in which at least one row attends to a key. */
static void attend_pack_k(fxa__cpu_forward_worker *w) {
    int64_t d = w->g.p->in.d_qk, nr = w->kernels->nr, n = w->masked.keys;
    for (int64_t at = 0, end; at < n; at = end) {
        bool has_pairs = fxa__cpu_masked_tile_has_pairs(&w->masked, at, nr);
        for (end = fxa__min_i64(at + nr, n);
             end < n && fxa__cpu_masked_tile_has_pairs(&w->masked, end, nr) == has_pairs;)
            end = fxa__min_i64(end + nr, n);
        fxa__cpu_packed_b run = {.panels = fxa__cpu_real_at(w->kernels, w->k.panels, at * d)};
        if (has_pairs)
            w->kernels->format->b_load_t(w->kernels, &w->g, FXA_SLOT_K, w->masked.key + at, end - at, &run, w->x);
    }
    w->k.rows = NULL;
    w->k.k = d;
}

/* Packs V of the key block. Returns false if V has infinities or NaN; then V is in w->x, as rows of real. */
static bool attend_pack_v(fxa__cpu_forward_worker *w) {
    return w->kernels->format->b_load(w->kernels, &w->g, FXA_SLOT_V, w->masked.key, w->masked.keys, &w->v, w->x,
                                      w->run->sizes.ldv);
}

static void attend_load_v(fxa__cpu_forward_worker *w) {
    (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, w->masked.key, w->masked.keys, w->x, w->run->sizes.ldv);
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

static bool attend_has_none(const fxa__cpu_forward_worker *w, int64_t row) { return w->state.m[row] == -INFINITY; }

/* Sets the outputs of rows that have attended to no key so far to 0. */
static void attend_clear(fxa__cpu_forward_worker *w, int64_t row, int64_t n) {
    int64_t ldo = w->run->sizes.ldo;
    for (int64_t i = row; i < row + n; i++)
        if (attend_has_none(w, i))
            memset(fxa__cpu_real_at(w->kernels, w->o, i * ldo), 0, (size_t)ldo * w->kernels->real_size);
}

/* Returns true if none of the rows has an output yet, and the outputs have no padding columns (d_v == ldo), which a
 * product need not write. */
static bool attend_is_first(const fxa__cpu_forward_worker *w, int64_t row, int64_t n) {
    int64_t i = row;
    if (w->g.p->in.d_v != w->run->sizes.ldo) return false;
    while (i < row + n && attend_has_none(w, i)) i++;
    return i == row + n;
}

/* Computes o = beta o + t V for a row where V may be infinite or NaN. t: weights; beta: factor by which the softmax
 * rescales the old output. Skips keys with weight 0. If beta is 0, the old output is set to 0 and not multiplied. */
static void attend_add_row(fxa__cpu_forward_worker *w, int64_t row, const void *t, const void *v, int64_t n,
                           double beta) {
    const fxa__cpu_kernels *kernels = w->kernels;
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    int64_t dv = w->g.p->in.d_v;
    void *o = fxa__cpu_real_at(kernels, w->o, row * sizes->ldo);
    if (beta == 0)
        memset(o, 0, (size_t)sizes->ldo * kernels->real_size);
    else if (beta != 1)
        kernels->row_scale(o, dv, beta);
    fxa__cpu_stored_rows rows = {.data = v, .dtype = kernels->real_dtype, .ld = sizes->ldv, .n = n, .d = dv};
    kernels->sums(o, sizes->ldo, t, sizes->ldt, 1, &rows);
}

/* Calls `add` with the weights of each row of a row block, once for each sub-block (run of columns). */
static void attend_add_rows(fxa__cpu_forward_worker *w, const attend_rows *rows, const attend_row_block *b,
                            attend_add add) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t ldv = w->run->sizes.ldv;
    for (int64_t i = 0; i < b->s.rows; i++) {
        int64_t row = b->s.row + i, n = b->s.end - b->column;
        void *t = fxa__cpu_real_at(kernels, w->t, i * w->run->sizes.ldt);
        add(w, row, t, fxa__cpu_real_at(kernels, w->x, b->column * ldv), n, fxa__cpu_real_get(kernels, w->beta, i));
        for (int j = 1; j < rows->sub_blocks; j++) {
            const fxa__cpu_sub_block *s = &rows->sub_block[j];
            t = fxa__cpu_real_at(kernels, t, n);
            n = s->end - s->begin;
            add(w, row, t, fxa__cpu_real_at(kernels, w->x, s->begin * ldv), n, 1);
        }
    }
}

/* Packs the weights of a row block as the left operand of the product with V, one run of columns after the other. */
static void attend_pack_weights(fxa__cpu_forward_worker *w, const attend_rows *rows, const attend_row_block *b) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t ldt = w->run->sizes.ldt, n = rows->end - rows->column;
    void *t = fxa__cpu_real_at(kernels, w->scores, (b->s.row - rows->row) * ldt);
    kernels->format->a_weights(kernels, t, ldt, b->s.rows, b->column - rows->column, b->s.end - rows->column, n);
    for (int j = 1; j < rows->sub_blocks; j++) {
        t = fxa__cpu_real_at(kernels, t, n);
        n = rows->sub_block[j].end - rows->sub_block[j].begin;
        kernels->format->a_weights(kernels, t, ldt, b->s.rows, 0, n, n);
    }
}

/* Computes the outputs o = beta o + t V from packed weights t and packed V, one sub-block (run of columns) after the
 * other. The weights in columns before rows->begin are 0 and are left out. */
static void attend_product(fxa__cpu_forward_worker *w, const attend_rows *rows) {
    const fxa__cpu_kernels *kernels = w->kernels;
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    fxa__cpu_product x = {.rows = rows->n, .b = &w->v, .end = w->g.p->in.d_v};
    x.beta = rows->is_first ? NULL : w->betas;
    x.a = w->scores;
    x.lda = sizes->ldt;
    x.a_first = rows->column;
    x.k_begin = rows->begin;
    x.k_end = rows->end;
    x.c = fxa__cpu_real_at(kernels, w->o, rows->row * sizes->ldo);
    x.ldc = sizes->ldo;
    kernels->format->product(kernels, &x);
    x.beta = w->betas;
    for (int64_t i = 0; rows->sub_blocks > 1 && i < rows->n; i++)
        fxa__cpu_real_set(kernels, w->betas, i, 1); /* the products of later sub-blocks are added without rescaling */
    for (int64_t j = 1, at = rows->end - rows->column; j < rows->sub_blocks; j++) {
        x.a = fxa__cpu_real_at(kernels, w->scores, at);
        x.a_first = x.k_begin = rows->sub_block[j].begin;
        x.k_end = rows->sub_block[j].end;
        at += x.k_end - x.k_begin;
        kernels->format->product(kernels, &x);
    }
}

/* ---- Scores and weights ------------------------------------------------------------------------------------------ */

/* Computes the scores t = Q K^T, one sub-block (run of columns) after the other. */
static void attend_scores(fxa__cpu_forward_worker *w, const attend_rows *rows) {
    const fxa__cpu_kernels *kernels = w->kernels;
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    fxa__cpu_product x = {.rows = rows->n, .b = &w->k, .k_end = w->k.k};
    x.a = fxa__cpu_real_at(kernels, w->q, rows->row * sizes->lda);
    x.lda = sizes->lda;
    x.begin = rows->column;
    x.end = rows->end;
    x.c = w->scores;
    x.ldc = sizes->ldt;
    kernels->format->product(kernels, &x);
    for (int j = 1; j < rows->sub_blocks; j++) {
        x.c = fxa__cpu_real_at(kernels, x.c, x.end - x.begin);
        x.begin = rows->sub_block[j].begin;
        x.end = rows->sub_block[j].end;
        kernels->format->product(kernels, &x);
    }
}

/* Replaces the scores of a row block by weights. If `add` is NULL, packs the weights for the product with V. Otherwise
 * calls `add` with the weights. */
static void attend_softmax(fxa__cpu_forward_worker *w, attend_rows *rows, const attend_row_block *b, attend_add add) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t ldt = w->run->sizes.ldt, at = b->s.row - rows->row, n = b->s.end - b->column;
    w->t = fxa__cpu_real_at(kernels, w->scores, at * ldt + b->column - rows->column);
    w->beta = fxa__cpu_real_at(kernels, w->betas, at);
    rows->sub_block[0] = b->s;
    for (int j = 1; j < rows->sub_blocks; j++) n += rows->sub_block[j].end - rows->sub_block[j].begin;
    if (n == 0) {
        for (int64_t i = 0; i < b->s.rows; i++) fxa__cpu_real_set(kernels, w->beta, i, 1);
    } else {
        double factor = fxa__cpu_score_factor(kernels, w->g.bound->scale);
        for (int64_t i = 0; factor != 1 && i < b->s.rows; i++)
            kernels->row_scale(fxa__cpu_real_at(kernels, w->t, i * ldt), n, factor);
        fxa__cpu_softmax(w, rows->sub_block, rows->sub_blocks, b->column);
        if (add) attend_add_rows(w, rows, b, add);
    }
    if (!add) attend_pack_weights(w, rows, b);
}

/* ---- Rows of one product ----------------------------------------------------------------------------------------- */

/* Divides the rows of the first sub-block into row blocks. If it is the only sub-block, each row block gets only the
 * columns to which its rows attend. */
static void attend_divide(const fxa__cpu_forward_worker *w, attend_rows *rows) {
    const fxa__cpu_sub_block *first = &rows->sub_block[0];
    int64_t step = w->kernels->nr_step, keys = w->masked.keys;
    FXA__ASSERT(first->rows <= FXA__CPU_PRODUCT_ROWS);
    rows->row = first->row;
    rows->n = first->rows;
    rows->column = rows->begin = keys;
    rows->end = 0;
    rows->row_blocks = 0;
    for (int64_t i = 0; i < first->rows; i += FXA__CPU_ROW_BLOCK) {
        attend_row_block *b = &rows->row_block[rows->row_blocks++];
        int64_t n = fxa__min_i64(FXA__CPU_ROW_BLOCK, first->rows - i);
        b->s = *first;
        if (n < first->rows && rows->sub_blocks == 1)
            b->s = fxa__cpu_sub_block_within(&w->masked, first->row + i, n, first->begin, first->end);
        b->s.row = first->row + i;
        b->s.rows = n;
        if (b->s.begin == b->s.end) continue;
        b->column = b->s.begin / step * step;
        rows->column = fxa__min_i64(rows->column, b->column);
        rows->begin = fxa__min_i64(rows->begin, b->s.begin);
        rows->end = fxa__max_i64(rows->end, b->s.end);
    }
    /* a row block that attends to no column gets an empty range at rows->column, so that addresses computed from the
     * range are valid */
    for (int i = 0; i < rows->row_blocks; i++) {
        attend_row_block *b = &rows->row_block[i];
        if (b->s.begin == b->s.end) b->column = b->s.begin = b->s.end = rows->column;
    }
}

/* Passes the coordinates of the block's keys to the tape (compiled program) of a sub-block, unless its element of
 * `ready` is set. Prefetches the tensor elements that the tape will read; they arrive while scores are computed. */
static void attend_prefetch(fxa__cpu_forward_worker *w, bool ready[2], const fxa__cpu_sub_block *s) {
    fxa__tape_run *tape = fxa__cpu_softmax_tape(w, s);
    bool *is_ready = &ready[tape != w->tape];
    if (s->begin == s->end) return;
    if (!*is_ready) fxa__cpu_softmax_keys(w, tape);
    *is_ready = true;
    for (int64_t row = s->row; tape->tape && row < s->row + s->rows; row++)
        fxa__tape_prefetch(tape, row, s->begin, s->end - s->begin);
}

/* Computes scores, weights and outputs of the rows of one product. */
static void attend_rows_run(fxa__cpu_forward_worker *w, bool ready[2], attend_rows *rows, attend_add add) {
    attend_divide(w, rows);
    if (rows->column >= rows->end) return;
    for (int i = 0; i < rows->row_blocks; i++) attend_prefetch(w, ready, &rows->row_block[i].s);
    for (int j = 1; j < rows->sub_blocks; j++) attend_prefetch(w, ready, &rows->sub_block[j]);
    attend_scores(w, rows);
    rows->is_first = attend_is_first(w, rows->row, rows->n);
    if (!rows->is_first && add != fxa__cpu_rescaled_add) attend_clear(w, rows->row, rows->n);
    for (int i = 0; i < rows->row_blocks; i++) attend_softmax(w, rows, &rows->row_block[i], add);
    if (!add) attend_product(w, rows);
}

/* Processes the key block. add: adds rows of V to the output of a row; NULL: a product with packed V does so. */
static void attend_block(fxa__cpu_forward_worker *w, attend_add add) {
    bool ready[2] = {false, false};
    attend_rows rows;
    for (int64_t row = w->masked.row, n; row < w->masked.row_end; row += n) {
        n = fxa__cpu_masked_tile_choose_rows(&w->masked, row,
                                             fxa__min_i64(w->run->sizes.rows, w->masked.row_end - row));
        rows.sub_blocks = 0;
        for (int64_t at = 0; fxa__cpu_sub_block_next(&w->masked, row, n, &at, &rows.sub_block[rows.sub_blocks]);)
            rows.sub_blocks++;
        FXA__ASSERT(rows.sub_blocks < ATTEND_SUB_BLOCKS);
        if (rows.sub_blocks > 0) attend_rows_run(w, ready, &rows, add);
    }
    w->t = w->scores;
    w->beta = w->betas;
}

/* ---- Functions of forward.h -------------------------------------------------------------------------------------- */

void fxa__cpu_attend_block(fxa__cpu_forward_worker *w) {
    attend_pack_k(w);
    if (w->v_is_unpacked)
        attend_load_v(w);
    else
        w->v_is_unpacked = !attend_pack_v(w);
    attend_block(w, w->v_is_unpacked ? attend_add_row : NULL);
}

void fxa__cpu_attend_block_unpacked(fxa__cpu_forward_worker *w) {
    attend_pack_k(w);
    attend_load_v(w);
    attend_block(w, attend_add_row);
}

void fxa__cpu_attend_block_rescaled(fxa__cpu_forward_worker *w) {
    attend_pack_k(w);
    attend_load_v(w);
    attend_block(w, fxa__cpu_rescaled_add);
}

void fxa__cpu_attend_start(fxa__cpu_forward_worker *w) {
    double factor = fxa__cpu_q_factor(w->kernels, w->g.bound->scale);
    FXA__ASSERT(w->task.n <= w->run->sizes.tile_rows);
    w->kernels->format->a_load(w->kernels, &w->g, FXA_SLOT_Q, w->task.first, w->task.n, factor, w->q, w->run->sizes.lda,
                               w->x);
}

void fxa__cpu_attend_finish(fxa__cpu_forward_worker *w) { attend_clear(w, 0, w->task.n); }
