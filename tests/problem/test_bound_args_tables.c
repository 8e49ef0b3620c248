/* SPDX-License-Identifier: Apache-2.0
 *
 * Int32 arrays of a run (lengths, offsets, page numbers, maps, positions): refusals with their texts, and bound
 * arguments.
 */
#include "bound_args_fixture.h"

TEST(lengths) {
    const fxa_problem padded = with_flags(case_forward(), FXA_PADDING);
    fxa__bound_args bound;
    bench_open(&padded);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "slots Q_LENGTHS and K_LENGTHS are NULL; FXA_PADDING reads int32 [B] lengths from one or both");
    the.args.slot[FXA_SLOT_K_LENGTHS] = the.ints[0];
    the.ints[0][0] = 6;
    bind_ok();
    the.ints[0][1] = 7;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "K_LENGTHS[1] is 7: accepted are 0 to 6");
    T_OK(fxa__bound_args_make(the.p, &the.args, 0, false, the.views, &bound, &err)); /* device memory is not read */
    the.ints[0][1] = 0;
    the.args.slot[FXA_SLOT_Q_LENGTHS] = the.ints[1];
    the.ints[1][0] = -1;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "Q_LENGTHS[0] is -1: accepted are 0 to 5");
    bench_close();
}

TEST(offsets) {
    fxa_problem p = with_flags(case_forward(), FXA_VARLEN);
    fxa__bound_args bound;
    p.total_q = 9, p.total_k = 11;
    bench_open(&p);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot CU_Q is NULL; FXA_VARLEN reads int32 [B+1] offsets");
    int32_t *q = the.args.slot[FXA_SLOT_CU_Q] = the.ints[0], *k = the.args.slot[FXA_SLOT_CU_K] = the.ints[1];
    static const struct {
        int32_t q[3], k[3];
        const char *want;
    } cases[] = {
        {{0, 4, 9}, {5, 5, 11}, NULL},
        {{-1, 4, 9}, {0, 0, 0}, "CU_Q[0] is -1: accepted are 0 and more"},
        {{0, 4, 3}, {0, 0, 0}, "CU_Q[2] is 3, less than 4 before it: offsets never decrease"},
        {{0, 4, 10}, {0, 0, 0}, "CU_Q[1] to CU_Q[2] is a sequence of 6: the problem says 5 at most"},
        {{1, 5, 10}, {0, 0, 0}, "CU_Q[2] is 10: the packed tensors have 9 positions"},
        {{0, 0, 0}, {0, 6, 12}, "CU_K[2] is 12: the packed tensors have 11 positions"},
        {{0, 0, 0}, {INT32_MAX, INT32_MIN, 0}, "CU_K[1] is -2147483648, less than 2147483647 before it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(q, cases[i].q, sizeof cases[i].q);
        memcpy(k, cases[i].k, sizeof cases[i].k);
        T_STATUS(bind_now(&bound, &err), cases[i].want ? FXA_E_BINDING : FXA_OK);
        if (cases[i].want) T_HAS(err.text, cases[i].want);
    }
    bench_close();
}

TEST(page_numbers) { /* */
    fxa_problem p = with_flags(case_forward(), FXA_PAGED | FXA_PADDING);
    fxa__bound_args bound;
    p.page_size = 4, p.n_pages = 3, p.sk = 8; /* two pages each */
    bench_open(&p);
    the.args.slot[FXA_SLOT_K_LENGTHS] = the.ints[1];
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot PAGES is NULL; FXA_PAGED reads int32 [B,ceil(sk/page_size)] page numbers");
    int32_t *pages = the.args.slot[FXA_SLOT_PAGES] = the.ints[0];
    pages[0] = 2, pages[1] = -99, pages[2] = 0, pages[3] = 3; /* -99 is unused: 4 keys fill one page */
    the.ints[1][0] = 4, the.ints[1][1] = 4;
    bind_ok();
    the.ints[1][1] = 5;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "PAGES[1,1] is 3: accepted are 0 to 2");
    the.ints[1][0] = 6;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "PAGES[0,1] is -99: accepted are 0 to 2");
    the.ints[1][0] = 4, the.ints[1][1] = 4;
    the.args.slot[FXA_SLOT_O] = the.data[1] + 3 * 2 * 4 * 8 - 1; /* the last feature of the last page */
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot O is written and overlaps slot K in memory");
    the.args.slot[FXA_SLOT_O] = the.data[1] + 3 * 2 * 4 * 8;
    bind_ok();
    the.args.slot[FXA_SLOT_V] = NULL;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot V is NULL; every run reads V");
    bench_close();
}

TEST(a_pool_without_pages_has_no_keys) {
    fxa_problem p = with_flags(case_forward(), FXA_PAGED | FXA_PADDING);
    fxa__bound_args bound;
    p.page_size = 4, p.n_pages = 0, p.sk = 8;
    bench_open(&p);
    the.args.slot[FXA_SLOT_PAGES] = the.ints[0];
    the.args.slot[FXA_SLOT_K_LENGTHS] = the.ints[1];
    the.args.slot[FXA_SLOT_K] = the.args.slot[FXA_SLOT_V] = NULL;
    the.ints[0][0] = 77, the.ints[1][0] = the.ints[1][1] = 0;
    bind_ok();
    the.ints[1][1] = 3;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "n_pages is 0, and batch entry 1 has 3 keys: accepted are 0");
    bench_close();
}

TEST(packed_with_gaps_are_bound) {
    fxa_problem p = with_flags(case_forward(), FXA_VARLEN | FXA_PADDING);
    fxa__bound_args bound;
    p.total_q = 12, p.total_k = 11;
    bench_open(&p);
    int32_t *q = the.args.slot[FXA_SLOT_CU_Q] = the.ints[0], *k = the.args.slot[FXA_SLOT_CU_K] = the.ints[1];
    int32_t *len = the.args.slot[FXA_SLOT_Q_LENGTHS] = the.ints[2];
    q[1] = 9, q[2] = 12, k[1] = 6, k[2] = 11; /* capacity 9 rows, at most 5 used */
    len[0] = 5, len[1] = 3;
    bind_ok();
    len[1] = 4;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "Q_LENGTHS[1] is 4: from CU_Q[1] to CU_Q[2] there are 3 places");
    len[1] = 0, len[0] = 6;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "Q_LENGTHS[0] is 6: accepted are 0 to 5");
    len[0] = 0, q[2] = 13;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "CU_Q[2] is 13: the packed tensors have 12 positions");
    q[2] = 12, k[1] = 7, k[2] = 7; /* keys have no lengths: their capacity is used */
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "CU_K[0] to CU_K[1] is a sequence of 7: the problem says 6 at most");
    bench_close();
}

TEST(packed_rows_against_pages_are_bound) {
    fxa_problem p = with_flags(case_forward(), FXA_VARLEN | FXA_PAGED | FXA_PADDING);
    fxa__bound_args bound;
    p.total_q = 9, p.page_size = 4, p.n_pages = 3;
    bench_open(&p);
    int32_t *pages = the.args.slot[FXA_SLOT_PAGES] = the.ints[0];
    the.args.slot[FXA_SLOT_CU_Q] = the.ints[1];
    int32_t *len = the.args.slot[FXA_SLOT_K_LENGTHS] = the.ints[2];
    len[0] = 6, len[1] = 4, pages[3] = 77; /* CU_K is not needed, and the last page is not reached */
    bind_ok();
    the.args.slot[FXA_SLOT_CU_K] = the.ints[3]; /* CU_K is not read even if given */
    the.ints[3][1] = -5;
    bind_ok();
    len[1] = 5;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "PAGES[1,1] is 77: accepted are 0 to 2");
    bench_close();
}

TEST(maps_and_sinks_are_bound) {
    fxa_problem p = with_flags(case_forward(), FXA_SINKS);
    fxa__bound_args bound;
    p.map_q.kind = FXA_MAP_TABLE;
    p.map_k.has_offset = 1;
    bench_open(&p);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot SINKS is NULL; asked for by FXA_SINKS");
    the.args.slot[FXA_SLOT_SINKS] = the.data[9];
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot MAP_Q is NULL; a FXA_MAP_TABLE map reads int32 coordinates from it");
    the.args.slot[FXA_SLOT_MAP_Q] = the.ints[0];
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot OFFSET_K is NULL; a map with an offset reads one int32 from it");
    the.args.slot[FXA_SLOT_OFFSET_K] = (char *)the.ints[1] + 1;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "its elements need a multiple of 4 bytes");
    the.args.slot[FXA_SLOT_OFFSET_K] = the.data[3] + 8;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot O is written and overlaps slot OFFSET_K in memory");
    the.args.slot[FXA_SLOT_OFFSET_K] = the.ints[1];
    bind_ok();
    bench_close();
}

TEST(positions_are_bound) {
    fxa_problem p = with_flags(case_forward(), FXA_Q_START);
    fxa__bound_args bound;
    bench_open(&p);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot Q_START is NULL; FXA_Q_START reads int32 [B] positions");
    the.args.slot[FXA_SLOT_Q_START] = (char *)the.ints[0] + 2;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "its elements need a multiple of 4 bytes");
    the.args.slot[FXA_SLOT_Q_START] = the.data[FXA_SLOT_O] + 4;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot O is written and overlaps slot Q_START in memory");
    the.args.slot[FXA_SLOT_Q_START] = the.ints[0];
    the.ints[0][0] = INT32_MIN, the.ints[0][1] = INT32_MAX; /* any value is valid */
    bind_ok();
    bench_close();
}

T_MAIN
