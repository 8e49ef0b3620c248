/* SPDX-License-Identifier: Apache-2.0
 *
 * Row offsets and program coordinates for batches, padding, packed sequences, pages and maps.
 */
#include "problem_case.h"

#include "problem/geometry.h"

static fxa__problem *geometry_make(const fxa_problem *p) {
    fxa_error err;
    fxa__problem *made = NULL;
    T_OK(fxa__problem_create(case_host(), p, &made, &err));
    return made;
}

TEST(plain_batches) {
    fxa_problem p = case_forward();
    p.flags = FXA_RETURN_LSE | FXA_PADDING;
    p.k.layout = FXA_LAYOUT_SBHD;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t len_k[2] = {4, 0};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_K_LENGTHS] = len_k;
    for (int64_t b = 0; b < 2; b++) {
        fxa__seq seq = fxa__seq_get(made, &bound, b);
        T_INT(seq.q_len, 5);
        T_INT(seq.k_len, len_k[b]);
        T_INT(seq.q_start, 0);
        T_INT(seq.q_len_seen, 5);
        T_INT(seq.k_len_seen, len_k[b]);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t s = 0; s < 5; s++) {
                T_INT(fxa__row_offset(made, &seq, &made->in.q, false, &bound, b, h, s), ((b * 4 + h) * 5 + s) * 8);
                T_INT(fxa__row_offset(made, &seq, &made->in.lse, false, &bound, b, h, s), (b * 4 + h) * 5 + s);
                T_INT(fxa__row_offset(made, &seq, &made->in.k, true, &bound, b, h, s), ((s * 2 + b) * 2 + h) * 8);
            }
    }
}

TEST(padding_of_queries) {
    fxa_problem p = case_forward();
    p.flags = FXA_PADDING;
    p.global_q_len = 100, p.global_k_len = 200;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t len_q[2] = {0, 3};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_Q_LENGTHS] = len_q;
    fxa__seq seq = fxa__seq_get(made, &bound, 1);
    T_INT(seq.q_len, 3);
    T_INT(seq.k_len, 6);
    T_INT(seq.q_len_seen, 100); /* a shard uses the global length */
    T_INT(seq.k_len_seen, 200);
}

TEST(packed_sequences) {
    fxa_problem p = case_forward();
    p.flags = FXA_VARLEN | FXA_RETURN_LSE;
    p.total_q = 9, p.total_k = 11;
    p.q.layout = FXA_LAYOUT_BSHD;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t cu_q[3] = {1, 5, 9}, cu_k[3] = {0, 6, 6};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_CU_Q] = cu_q;
    bound.slot[FXA_SLOT_CU_K] = cu_k;
    for (int64_t b = 0; b < 2; b++) {
        fxa__seq seq = fxa__seq_get(made, &bound, b);
        T_INT(seq.q_len, 4);
        T_INT(seq.k_len, b ? 0 : 6);
        T_INT(seq.q_start, cu_q[b]);
        T_INT(seq.k_start, cu_k[b]);
        T_INT(seq.k_len_seen, b ? 0 : 6);
        T_INT(fxa__row_offset(made, &seq, &made->in.q, false, &bound, b, 3, 2), ((cu_q[b] + 2) * 4 + 3) * 8);
        T_INT(fxa__row_offset(made, &seq, &made->in.lse, false, &bound, b, 3, 2), 3 * 9 + cu_q[b] + 2);
        T_INT(fxa__row_offset(made, &seq, &made->in.v, true, &bound, b, 1, 2), (1 * 11 + cu_k[b] + 2) * 3);
    }
}

TEST(pages) {
    fxa_problem p = case_backward();
    p.flags |= FXA_PAGED;
    p.page_size = 4, p.n_pages = 8, p.sk = 8;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t pages[2][2] = {{7, 0}, {3, 5}};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_PAGES] = pages;
    for (int64_t b = 0; b < 2; b++)
        for (int64_t s = 0; s < 8; s++) {
            fxa__seq seq = fxa__seq_get(made, &bound, b);
            int64_t page = pages[b][s / 4];
            T_INT(fxa__row_offset(made, &seq, &made->in.k, true, &bound, b, 1, s), ((page * 2 + 1) * 4 + s % 4) * 8);
            T_INT(fxa__row_offset(made, &seq, &made->in.dv, true, &bound, b, 1, s), ((page * 2 + 1) * 4 + s % 4) * 3);
            if (s < 5)
                T_INT(fxa__row_offset(made, &seq, &made->in.q, false, &bound, b, 1, s), ((b * 4 + 1) * 5 + s) * 8);
        }
}

/* Offsets give a sequence's start and capacity, lengths how many rows it uses. */
TEST(packed_with_gaps) {
    fxa_problem p = case_forward();
    p.flags = FXA_VARLEN | FXA_PADDING;
    p.total_q = 20, p.total_k = 30;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t cu_q[3] = {1, 6, 20}, cu_k[3] = {0, 6, 29}, len_q[2] = {4, 0}, len_k[2] = {2, 6};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_CU_Q] = cu_q;
    bound.slot[FXA_SLOT_CU_K] = cu_k;
    bound.slot[FXA_SLOT_K_LENGTHS] = len_k;
    T_INT(fxa__seq_get(made, &bound, 0).q_len, 5); /* without lengths the room is the length */
    bound.slot[FXA_SLOT_Q_LENGTHS] = len_q;
    for (int64_t b = 0; b < 2; b++) {
        fxa__seq seq = fxa__seq_get(made, &bound, b);
        T_INT(seq.q_len, len_q[b]);
        T_INT(seq.k_len, len_k[b]);
        T_INT(seq.q_len_seen, len_q[b]);
        T_INT(seq.k_len_seen, len_k[b]);
        T_INT(seq.q_start, cu_q[b]);
        T_INT(fxa__row_offset(made, &seq, &made->in.k, true, &bound, b, 1, 2), (1 * 30 + cu_k[b] + 2) * 8);
    }
}

/* Rows packed, keys in pages: CU_K is not looked at, lengths of keys are K_LENGTHS or all of sk. */
TEST(packed_rows_against_pages) {
    fxa_problem p = case_backward();
    p.flags |= FXA_VARLEN | FXA_PAGED | FXA_PADDING;
    p.total_q = 9, p.page_size = 4, p.n_pages = 8, p.sk = 8;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t pages[2][2] = {{7, 0}, {3, 5}}, cu_q[3] = {0, 1, 5}, len_k[2] = {8, 3};
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_PAGES] = pages;
    bound.slot[FXA_SLOT_CU_Q] = cu_q;
    bound.slot[FXA_SLOT_K_LENGTHS] = len_k;
    for (int64_t b = 0; b < 2; b++) {
        fxa__seq seq = fxa__seq_get(made, &bound, b);
        T_INT(seq.q_len, b ? 4 : 1);
        T_INT(seq.k_len, len_k[b]);
        T_INT(seq.k_start, 0);
        for (int64_t s = 0; s < seq.q_len; s++)
            T_INT(fxa__row_offset(made, &seq, &made->in.q, false, &bound, b, 1, s), (1 * 9 + cu_q[b] + s) * 8);
        for (int64_t s = 0; s < 8; s++)
            T_INT(fxa__row_offset(made, &seq, &made->in.dk, true, &bound, b, 1, s),
                  ((pages[b][s / 4] * 2 + 1) * 4 + s % 4) * 8);
    }
    bound.slot[FXA_SLOT_K_LENGTHS] = NULL;
    T_INT(fxa__seq_get(made, &bound, 1).k_len, 8);
}

TEST(maps) {
    fxa_problem p = case_forward();
    p.map_b.base = 10;
    p.map_h.kind = FXA_MAP_TABLE;
    p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 3;
    p.map_q.segment[0] = (fxa_segment){0, 100, 1};
    p.map_q.segment[1] = (fxa_segment){2, 50, -2};
    p.map_q.segment[2] = (fxa_segment){4, 7, 0};
    p.map_k.base = 3, p.map_k.step = 2, p.map_k.has_offset = 1;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    int32_t heads[4] = {9, -1, 5, INT32_MAX}, shift = 40;
    fxa__bound_args bound = {0};
    bound.slot[FXA_SLOT_MAP_H] = heads;
    bound.slot[FXA_SLOT_OFFSET_K] = &shift;
    const int32_t rows[5] = {100, 101, 50, 48, 7};
    fxa__seq seq = fxa__seq_get(made, &bound, 1);
    for (int64_t i = 0; i < 5; i++) T_INT(fxa__row_coord(made, &bound, &seq, i), rows[i]);
    for (int64_t i = 0; i < 4; i++) T_INT(fxa__coord(made, &bound, FXA_INPUT_H, i), heads[i]);
    for (int64_t i = 0; i < 2; i++) T_INT(fxa__coord(made, &bound, FXA_INPUT_B, i), 10 + i);
    for (int64_t i = 0; i < 6; i++) T_INT(fxa__coord(made, &bound, FXA_INPUT_K, i), 43 + 2 * i);
    shift = INT32_MAX; /* values known only at run time wrap as program ints do */
    T_INT(fxa__coord(made, &bound, FXA_INPUT_K, 0), INT32_MIN + 2);
}

/* Returns q of row i of batch entry b. */
static int32_t geometry_q(const fxa__problem *p, const fxa__bound_args *bound, int64_t b, int64_t i) {
    fxa__seq seq = fxa__seq_get(p, bound, b);
    return fxa__row_coord(p, bound, &seq, i);
}

TEST(positions_are_added_to_the_map) {
    fxa_problem p = case_forward();
    int32_t dynamic = 1000, positions[2] = {70, -9};
    fxa__bound_args bound = {0};
    p.flags = FXA_Q_START | FXA_CAUSAL;
    p.map_q.base = 3, p.map_q.step = 2, p.map_q.has_offset = 1;
    t_problem *made = geometry_make(&p);
    T_REQUIRE(made);
    bound.slot[FXA_SLOT_Q_START] = positions;
    bound.slot[FXA_SLOT_OFFSET_Q] = &dynamic;
    for (int64_t b = 0; b < 2; b++)
        for (int64_t i = 0; i < 5; i++) T_INT(geometry_q(made, &bound, b, i), 1003 + 2 * i + positions[b]);
    positions[0] = INT32_MAX; /* run-time values wrap as program ints do */
    T_INT(geometry_q(made, &bound, 0, 0), INT32_MIN + 1002);
}

/* BOTTOM_RIGHT puts the last row at the last key, by the lengths that the program reads. */
TEST(rows_align_to_the_last_key) {
    fxa_problem p = case_forward();
    int32_t len_q[2] = {1, 4}, len_k[2] = {6, 2};
    fxa__bound_args bound = {0};
    int64_t lo, hi;
    p.flags = FXA_BOTTOM_RIGHT;
    fxa__problem *made = geometry_make(&p);
    T_REQUIRE(made);
    for (int64_t i = 0; i < 5; i++) T_INT(geometry_q(made, &bound, 1, i), i + 1);
    fxa__q_shift_range(&made->in, &lo, &hi);
    T_CHECK(lo == 1 && hi == 1);
    fxa__problem_release(made);

    p.flags = FXA_BOTTOM_RIGHT | FXA_PADDING;
    made = geometry_make(&p);
    T_REQUIRE(made);
    bound.slot[FXA_SLOT_Q_LENGTHS] = len_q;
    bound.slot[FXA_SLOT_K_LENGTHS] = len_k;
    for (int64_t b = 0; b < 2; b++)
        for (int64_t i = 0; i < len_q[b]; i++) T_INT(geometry_q(made, &bound, b, i), i + len_k[b] - len_q[b]);
    fxa__q_shift_range(&made->in, &lo, &hi);
    T_CHECK(lo == -5 && hi == 5);
    fxa__problem_release(made);

    p.global_k_len = 100, p.global_q_len = 1; /* one row and part of 100 keys */
    made = geometry_make(&p);
    T_REQUIRE(made);
    T_INT(geometry_q(made, &bound, 0, 0), 99);
    fxa__problem_release(made);

    p.global_k_len = p.global_q_len = 0;
    p.flags |= FXA_CAUSAL; /* now only the built-in mask is aligned */
    made = geometry_make(&p);
    T_REQUIRE(made);
    T_INT(geometry_q(made, &bound, 0, 0), 0);
    fxa__q_shift_range(&made->in, &lo, &hi);
    T_CHECK(lo == 0 && hi == 0);
    fxa__problem_release(made);
}

T_MAIN
