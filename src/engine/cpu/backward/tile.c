/* SPDX-License-Identifier: Apache-2.0
 *
 * One key block and one row tile, in matrices of real:
 *
 *     S  = (scale Q) K^T,  dP = dO V^T                by sub-blocks of some rows, so that scores stay in the cache
 *     P  = exp(program(S) - LSE)                      exactly 0 where the pair is not attended, at most 1
 *     dS = P (r dP - delta) times the derivative of the program     r: dropout
 *     dV += (P r)^T dO,  dK += dS^T (scale Q),  dQ += dS K          dQ is scaled when it is complete
 *
 * S has the same bits as forward's scores, because the same kernels multiply the same numbers; as in forward, K is not
 * packed if there are few rows (fxa__cpu_is_decode). If products round to bf16, a scale that is not a power of two is
 * applied after the products, to S and to dK.
 *
 * If the mask excludes (query, key) pairs, each sub-block has its own columns. The transposed sums dV and dK are then
 * computed by column steps; each step reads only the rows of sub-blocks that contain any of its columns. A product in
 * which one factor has infinities or NaN skips zeroes of the other factor, so that 0 * inf counts as 0.
 */
#include "backward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

typedef struct tile_pass {
    /* rows first..first+n of the kv group, whose rows are the query rows of its heads, head after head */
    int64_t first, n;
    const void *q, *dout;  /* Q [n,ld_q] and dO [n,ld_dout] of the rows, as real */
    int64_t ld_q, ld_dout; /* row pitches of q and dout in reals */
    /* number of sub-blocks in w->sub_blocks, which are ordered by rows, then by columns; the first column of each is a
     * multiple of kernels->nr */
    int64_t count;
    bool is_masked; /* the mask excludes (row, key) pairs of the tile, so its sub-blocks have different columns */
    /* P and dS are 0 in columns of a row that are in no sub-block: true = in all such columns; false = only in those of
     * a group of column_step columns that a sub-block overlaps */
    bool clear;
    int64_t column_step;   /* number of columns of P and dS that are added to dV and dK at once */
    bool reads_other_rows; /* the sums dV and dK also read the rows of P and dS between the sub-blocks */
    bool q_is_finite, dout_is_finite;
} tile_pass;

/* ---- Sub-blocks -------------------------------------------------------------------------------------------------- */

/* Finds the sub-blocks of tile `number`. Returns false if the mask excludes the entire tile. */
static bool tile_sub_blocks_make(fxa__cpu_backward_worker *w, tile_pass *t, int64_t number) {
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    fxa__cpu_masked_tile *masked = &w->masked;
    int64_t most = fxa__cpu_backward_max_rows(kernels), nr = kernels->nr;
    if (masked->mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    fxa__cpu_masked_tile_set_rows(masked, number, t->first, t->n, w->h, w->q_at);
    if (!fxa__cpu_masked_tile_set_keys(masked, w->key, w->n_keys)) return false;
    t->is_masked = masked->tile == FXA_TILE_MIXED;
    t->count = 0;
    for (int64_t row = masked->row, rows; row < masked->row_end; row += rows) {
        fxa__cpu_sub_block *s = &w->sub_blocks[t->count];
        rows = fxa__cpu_masked_tile_choose_rows(masked, row, fxa__min_i64(most, masked->row_end - row));
        for (int64_t at = 0; fxa__cpu_sub_block_next(masked, row, rows, &at, s); t->count++, s++) {
            int64_t begin = s->begin + masked->key - w->key;
            s->end += masked->key - w->key;
            s->begin = begin / nr * nr;
            if (s->begin < begin) *(masked->banded ? &s->banded : &s->masked) = true;
            FXA__ASSERT(s->row + s->rows <= t->n && s->end <= w->n_keys);
        }
    }
    FXA__ASSERT(t->count <=
                fxa__cpu_sub_block_max_count(w->run->code, w->run->split.tile_rows, w->run->split.block_keys));
    return t->count > 0;
}

/* ---- Scores and dS ----------------------------------------------------------------------------------------------- */

/* Computes the scores s = Q K^T of a sub-block. */
static void tile_scores(fxa__cpu_backward_worker *w, const tile_pass *t, const fxa__cpu_sub_block *s) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->scores;
    int64_t ld = run->split.ld, at = s->row * ld + s->begin;
    const void *q = fxa__cpu_real_at(kernels, t->q, s->row * t->ld_q);
    fxa__cpu_stored_rows k;
    if (!w->is_decode) {
        fxa__cpu_product x = {.rows = s->rows, .a = q, .lda = t->ld_q, .b = &w->k_t, .k_end = run->p->in.d_qk};
        x.begin = s->begin;
        x.end = s->end;
        x.c = fxa__cpu_real_at(kernels, w->s, at);
        x.ldc = ld;
        kernels->format->product_rows(kernels, &x);
        return;
    }
    for (int64_t i = s->begin; i < s->end; i += k.n, at += k.n) {
        k = fxa__cpu_stored_keys(&w->g, FXA_SLOT_K, w->key + i, s->end - i);
        kernels->dots(fxa__cpu_real_at(kernels, w->s, at), ld, q, t->ld_q, s->rows, &k);
    }
}

/* Computes dP = dO V^T of a sub-block into ds. */
static void tile_dp(fxa__cpu_backward_worker *w, const tile_pass *t, const fxa__cpu_sub_block *s) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    fxa__cpu_product x = {.rows = s->rows, .lda = t->ld_dout, .b = &w->v_t, .k_end = run->p->in.d_v};
    x.a = fxa__cpu_real_at(kernels, t->dout, s->row * t->ld_dout);
    x.begin = s->begin;
    x.end = s->end;
    x.c = fxa__cpu_real_at(kernels, w->ds, s->row * run->split.ld + s->begin);
    x.ldc = run->split.ld;
    kernels->format->product_rows(kernels, &x);
}

/* Sets P and dS of a row of sub-block i to 0 in those columns outside of begin..end that
 *   - the sums dV and dK may read, or
 *   - products have written past the end of the sub-block.
 * Must be called before the row's later sub-blocks are computed, because it may also clear their columns. */
static void tile_row_clear(const fxa__cpu_backward_worker *w, const tile_pass *t, int64_t i, int64_t row, int64_t begin,
                           int64_t end) {
    const fxa__cpu_sub_block *s = &w->sub_blocks[i];
    int64_t from = s->begin, to = w->n_keys;
    if (!t->clear) {
        from = from / t->column_step * t->column_step;
        to = fxa__min_i64(to, fxa__round_up(s->end, t->column_step));
        if (i > 0 && s[-1].row == s->row) from = fxa__max_i64(from, s[-1].end);
    }
    fxa__cpu_score_row_clear(w, row, from, begin);
    fxa__cpu_score_row_clear(w, row, end, to);
}

/* Computes P and dS of one row of sub-block i: in all columns of the sub-block or, if it is banded, in those that the
 * row attends to. */
static void tile_row(fxa__cpu_backward_worker *w, const tile_pass *t, int64_t i, int64_t row) {
    const fxa__cpu_sub_block *s = &w->sub_blocks[i];
    int64_t begin = s->begin, end = s->end;
    if (s->banded) {
        int64_t q = w->q_at[row] + w->masked.key - w->key;
        begin = fxa__min_i64(fxa__max_i64(q + w->masked.band_begin, begin), end);
        end = fxa__min_i64(fxa__max_i64(q + w->masked.band_end, begin), end);
    }
    if (w->lse[t->first + row] == -INFINITY) end = begin; /* the row attends to no key */
    if (begin < end) fxa__cpu_score_row_back(w, t->first, row, s->masked, begin, end);
    if (begin == end || t->is_masked) tile_row_clear(w, t, i, row, begin, end);
}

/* Computes P and dS of sub-block i. Before the scores are computed, prefetches the elements of captured tensors that
 * the program will read. */
static void tile_sub_block(fxa__cpu_backward_worker *w, const tile_pass *t, int64_t i) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_sub_block *s = &w->sub_blocks[i];
    const fxa__cpu_kernels *kernels = run->code->kernels;
    fxa__tape_run *program = &w->tape[s->masked && !w->masked.bits ? FXA__CPU_TAPE_MASKED : FXA__CPU_TAPE_SCORE];
    int64_t n = s->end - s->begin, at = s->row * run->split.ld + s->begin;
    double factor = fxa__cpu_score_factor(run->code->scores, run->bound->scale);
    for (int64_t row = s->row; program->tape && row < s->row + s->rows; row++)
        fxa__tape_prefetch(program, row, s->begin, n);
    tile_scores(w, t, s);
    if (run->split.want_ds) tile_dp(w, t, s);
    for (int64_t row = 0; factor != 1 && n > 0 && row < s->rows; row++)
        kernels->row_scale(fxa__cpu_real_at(kernels, w->s, at + row * run->split.ld), n, factor);
    for (int64_t row = s->row; row < s->row + s->rows; row++) tile_row(w, t, i, row);
}

/* ---- Transposed sums: dV += (P r)^T dO, dK += dS^T Q ------------------------------------------------------------- */

typedef struct tile_product {
    void *weight;                       /* [tile_rows,ld] P or dS; row i belongs to row i of x */
    const void *x;                      /* [n,ld_x] dO or Q */
    int64_t ld_x;                       /* row pitch of x in reals */
    const fxa__cpu_transposed_sum *sum; /* the sum that weight^T x is added to; sum->x is the packed x */
    bool x_is_finite;
} tile_product;

/* Adds weight^T x to the sum, one column of `weight` after the other; skips rows of x whose weight is 0. */
static void tile_product_skip_zeroes(const fxa__cpu_backward_worker *w, const tile_pass *t, const tile_product *x) {
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    const fxa__cpu_transposed_sum *sum = x->sum;
    fxa__cpu_stored_rows rows = {.data = x->x, .dtype = kernels->real_dtype, .ld = x->ld_x, .n = t->n, .d = sum->d};
    for (int64_t c = 0; c < w->n_keys; c++) {
        for (int64_t r = 0; r < t->n; r++)
            memcpy(fxa__cpu_real_at(kernels, w->column, r),
                   fxa__cpu_real_at(kernels, x->weight, r * w->run->split.ld + c), kernels->real_size);
        kernels->sums(fxa__cpu_real_at(kernels, sum->out, c * sum->ld_out), sum->ld_out, w->column, 0, 1, &rows);
    }
}

/* Adds weight^T x to the sum for columns begin..end of `weight`. Reads the rows of the sub-blocks that contain any of
 * these columns and, if t->reads_other_rows, the rows between these sub-blocks. */
static void tile_product_columns(const fxa__cpu_backward_worker *w, const tile_pass *t, const tile_product *x,
                                 int64_t begin, int64_t end) {
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    int64_t first = 0, last = 0, ld = w->run->split.ld;
    for (int64_t i = 0; i < t->count; i++) {
        const fxa__cpu_sub_block *s = &w->sub_blocks[i];
        if (s->end <= begin || s->begin >= end) continue;
        bool is_separate = s->row > last && (!t->reads_other_rows || first == last);
        if (is_separate && first < last)
            kernels->format->sum_add(kernels, x->sum, x->weight, ld, begin, end, first, last);
        if (is_separate) first = s->row;
        last = s->row + s->rows;
    }
    if (first < last) kernels->format->sum_add(kernels, x->sum, x->weight, ld, begin, end, first, last);
}

static void tile_product_add(const fxa__cpu_backward_worker *w, const tile_pass *t, const tile_product *x) {
    if (!x->x_is_finite) {
        tile_product_skip_zeroes(w, t, x);
        return;
    }
    for (int64_t begin = 0; begin < w->n_keys; begin += t->column_step)
        tile_product_columns(w, t, x, begin, fxa__min_i64(begin + t->column_step, w->n_keys));
}

/* ---- dQ += dS K -------------------------------------------------------------------------------------------------- */

static void tile_dq_skip_zeroes(const fxa__cpu_backward_worker *w, const tile_pass *t) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    int64_t ld_d = run->split.ld_d;
    fxa__cpu_stored_rows k = {
        .data = w->k, .dtype = kernels->real_dtype, .ld = ld_d, .n = w->n_keys, .d = run->p->in.d_qk};
    kernels->sums(fxa__cpu_real_at(kernels, w->dq, t->first * ld_d), ld_d, w->ds, run->split.ld, t->n, &k);
}

/* Adds dS K to dQ of the tile. */
static void tile_dq(const fxa__cpu_backward_worker *w, const tile_pass *t) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    const fxa__cpu_backward_split *split = &run->split;
    fxa__cpu_sub_block all = {.rows = t->n, .end = w->n_keys};
    if (!w->k_is_finite) {
        tile_dq_skip_zeroes(w, t);
        return;
    }
    for (int64_t i = 0; i < (t->is_masked ? t->count : 1); i++) {
        const fxa__cpu_sub_block *s = t->is_masked ? &w->sub_blocks[i] : &all;
        fxa__cpu_product x = {
            .rows = s->rows, .lda = split->ld, .b = &w->k_n, .end = run->p->in.d_qk, .beta = run->ones};
        x.a = fxa__cpu_real_at(kernels, w->ds, s->row * split->ld + s->begin);
        x.a_first = x.k_begin = s->begin;
        x.k_end = s->end;
        x.c = fxa__cpu_real_at(kernels, w->dq, (t->first + s->row) * split->ld_d);
        x.ldc = split->ld_d;
        kernels->format->product_rows(kernels, &x);
    }
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* Loads and packs K and V of the key block. Called by the first tile that needs them. */
static void tile_load_keys(fxa__cpu_backward_worker *w) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels, *scores = run->code->scores;
    const fxa__cpu_backward_split *split = &run->split;
    int64_t d = run->p->in.d_qk, dv = run->p->in.d_v;
    if (split->want_ds) {
        (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, w->key, w->n_keys, w->k, split->ld_v);
        kernels->format->b_pack_t(kernels, &w->v_t, w->k, split->ld_v, w->n_keys, dv);
    }
    w->k_is_finite = fxa__cpu_load_keys(&w->g, FXA_SLOT_K, w->key, w->n_keys, w->k, split->ld_d);
    if (split->want_q) kernels->format->b_pack(kernels, &w->k_n, w->k, split->ld_d, w->n_keys, d);
    if (!w->is_decode) scores->format->b_pack_t(scores, &w->k_t, w->k, split->ld_d, w->n_keys, d);
    w->keys_are_consecutive = fxa__cpu_key_coords(&w->g, w->key, w->n_keys, w->k_at);
    for (int i = 0; i < FXA__CPU_TAPES; i++)
        if (w->tape[i].tape) fxa__tape_columns(&w->tape[i], w->n_keys, w->k_at, w->key);
    w->is_loaded = true;
}

/* Returns true if n rows of Q, O or dO are stored as a matrix of type `real` (the type that the kernels compute in), so
 * that no copy is needed. Sets *ld to the row pitch of that matrix. */
static bool tile_rows_are_real(const fxa__cpu_backward_worker *w, fxa_slot slot, int64_t first, int64_t n,
                               int64_t *ld) {
    const fxa_problem *p = &w->run->p->in;
    const fxa_operand *x = slot == FXA_SLOT_Q ? &p->q : slot == FXA_SLOT_O ? &p->o : &p->dout;
    bool one_head = first / w->g.seq.q_len == (first + n - 1) / w->g.seq.q_len;
    if (!one_head || x->dtype != w->run->code->kernels->real_dtype || x->stride[3] != 1) return false;
    *ld = x->stride[2];
    return true;
}

const void *fxa__cpu_backward_rows_load(const fxa__cpu_backward_worker *w, fxa_slot slot, int64_t first, int64_t n,
                                        void *room, int64_t *ld) {
    if (tile_rows_are_real(w, slot, first, n, ld)) return fxa__cpu_row_address(&w->g, slot, first).data;
    (void)fxa__cpu_load_rows(&w->g, slot, first, n, 1, room, *ld);
    return room;
}

/* Passes the tile's rows and their coordinates to the compiled programs (tapes). */
static void tile_tape_rows(fxa__cpu_backward_worker *w, const tile_pass *t) {
    bool needs_coords = w->masked.banded || (w->run->p->in.flags & FXA_DROPOUT);
    for (int i = 0; i < FXA__CPU_TAPES; i++) needs_coords = needs_coords || w->tape[i].tape;
    if (needs_coords && !w->masked.mask.tape) fxa__cpu_row_coords(&w->g, t->first, t->n, w->h, w->q_at);
    for (int i = 0; i < FXA__CPU_TAPES; i++)
        if (w->tape[i].tape) fxa__cpu_tape_rows(&w->g, &w->tape[i], t->first, t->n, w->h, w->q_at);
}

/* Loads the rows of Q and dO and packs them for the sums dK and dV. Q is multiplied by fxa__cpu_q_factor. */
static void tile_load_rows(fxa__cpu_backward_worker *w, tile_pass *t) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    double factor = fxa__cpu_q_factor(run->code->scores, run->bound->scale);
    t->ld_q = run->split.ld_d;
    t->ld_dout = run->split.ld_v;
    t->q = w->q;
    if (factor == 1)
        t->q = fxa__cpu_backward_rows_load(w, FXA_SLOT_Q, t->first, t->n, w->q, &t->ld_q);
    else
        (void)fxa__cpu_load_rows(&w->g, FXA_SLOT_Q, t->first, t->n, factor, w->q, t->ld_q);
    t->dout = fxa__cpu_backward_rows_load(w, FXA_SLOT_DO, t->first, t->n, w->dout, &t->ld_dout);
    if (run->split.want_k) kernels->format->sum_pack(kernels, &w->dk_sum, t->q, t->ld_q, t->n);
    if (run->split.want_v) kernels->format->sum_pack(kernels, &w->dv_sum, t->dout, t->ld_dout, t->n);
    tile_tape_rows(w, t);
}

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

/* Returns the number of tiles of a head, and sets *rows to the rows of each tile. */
static int64_t tile_per_head(const fxa__cpu_backward_worker *w, int64_t *rows) {
    int64_t most = w->run->split.tile_rows, q_len = w->g.seq.q_len, tiles = fxa__div_up(q_len, most);
    int64_t even = fxa__round_up(fxa__div_up(q_len, tiles), fxa__cpu_backward_min_rows(w->run->code->kernels));
    *rows = fxa__min_i64(most, even);
    return fxa__div_up(q_len, *rows);
}

/* A head with more rows than a tile has its own tiles of about equal size, so that the tiles of all heads have the same
 * rows, in which the mask often excludes the same (query, key) pairs. */
bool fxa__cpu_backward_tile_rows(const fxa__cpu_backward_worker *w, int64_t tile, int64_t *first, int64_t *n) {
    int64_t rows = w->run->split.tile_rows, q_len = w->g.seq.q_len;
    if (w->g.rows == 0) return false;
    if (q_len < rows) {
        *first = tile * rows;
        *n = fxa__min_i64(rows, w->g.rows - *first);
        return *first < w->g.rows;
    }
    int64_t tiles = tile_per_head(w, &rows);
    *first = tile / tiles * q_len + tile % tiles * rows;
    *n = fxa__min_i64(rows, q_len - tile % tiles * rows);
    return *first < w->g.rows;
}

/* Returns the index of a tile within its head, or within the kv group if tiles span several heads. */
static int64_t tile_number(const fxa__cpu_backward_worker *w, int64_t tile) {
    return w->g.seq.q_len < w->run->split.tile_rows ? tile : tile % tile_per_head(w, &(int64_t){0});
}

/* Adds dS K to dQ of the tile. If keys are split, the first key block that does this for a tile sets dQ to 0 before. */
static void tile_dq_add(fxa__cpu_backward_worker *w, const tile_pass *t, int64_t tile) {
    const fxa__cpu_kernels *kernels = w->run->code->kernels;
    int64_t ld_d = w->run->split.ld_d;
    if (w->dq_has && !w->dq_has[tile]) {
        memset(fxa__cpu_real_at(kernels, w->dq, t->first * ld_d), 0, (size_t)(t->n * ld_d) * kernels->real_size);
        w->dq_has[tile] = 1;
    }
    tile_dq(w, t);
}

void fxa__cpu_backward_tile(fxa__cpu_backward_worker *w, int64_t tile) {
    const fxa__cpu_backward_split *split = &w->run->split;
    tile_pass t = {.q_is_finite = w->finite[tile] & FXA__CPU_Q_IS_FINITE,
                   .dout_is_finite = w->finite[tile] & FXA__CPU_DO_IS_FINITE};
    if (!fxa__cpu_backward_tile_rows(w, tile, &t.first, &t.n)) return;
    FXA__ASSERT(t.n > 0 && t.n <= split->tile_rows && tile < split->tiles);
    if (!tile_sub_blocks_make(w, &t, tile_number(w, tile))) return;
    t.reads_other_rows = w->dk_sum.depth > 1;
    t.column_step = t.is_masked ? w->dk_sum.masked_step : w->dk_sum.step;
    if (!w->is_loaded) tile_load_keys(w);
    tile_load_rows(w, &t);
    t.clear = t.is_masked && (t.reads_other_rows || !t.dout_is_finite || !t.q_is_finite || !w->k_is_finite);
    for (int64_t row = 0; t.clear && row < t.n; row++) fxa__cpu_score_row_clear(w, row, 0, w->n_keys);
    for (int64_t i = 0; i < t.count; i++) tile_sub_block(w, &t, i);
    tile_product dv = {w->p, t.dout, t.ld_dout, &w->dv_sum, t.dout_is_finite};
    tile_product dk = {w->ds, t.q, t.ld_q, &w->dk_sum, t.q_is_finite};
    if (split->want_v) tile_product_add(w, &t, &dv);
    if (split->want_k) tile_product_add(w, &t, &dk);
    if (split->want_q) tile_dq_add(w, &t, tile);
}
