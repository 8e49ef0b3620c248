/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs of the cuda engine have before their main kernels, as cuda_run_rig.h sees it: words and ranges of what
 * masks read, tile lists of any length; and decoding, whose splits do not depend on the batch.
 */
#include "cuda_run_rig.h"

/* One row per query head: keys of the two KV heads in pieces that the batch does not change, several of which are an
 * item where there are more of them than multiprocessors. */
TEST(decoding) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q + 4000", &program);
    fxa_error err;
    int64_t splits = 0;
    p.sq = 1, p.sk = 9000;
    for (p.b = 1; p.b < 20; p.b += 6) {
        bed x;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, 2);
        T_CHECK(watch_is(0, FXA__CU_LISTS, FXA__CU_TILES) && watch_is(1, FXA__CU_DECODE, 0));
        const watched *main = &watch.launch[1];
        T_INT(watch.launch[0].cut.q_rows, 1);
        T_INT(watch.launch[0].cut.columns, 71);
        int64_t items = 2 * p.b * (main->a.splits / main->a.run);
        T_INT(main->a.tiles, items);
        T_INT(main->grid[0], items < 132 ? items : 132);
        T_INT(main->grid[1] * main->grid[2], 1);
        T_CHECK(splits == 0 || splits == main->a.splits);
        splits = main->a.splits;
        T_INT(splits, 8);
        T_INT(main->a.run, p.b < 13 ? 1 : p.b == 13 ? 2 : 4);
        touch_check(&x);
        bed_close(&x);
    }
    fxa_program_destroy(program);
}

/* Of the loads of a mask one is words; the ranges of others are tables, unless the tensor has more to read than there
 * are positions. */
TEST(ranges_of_thresholds) {
    for (int large = 0; large < 2; large++) {
        fxa_program *program;
        fxa_problem p = bed_problem(FXA_FORWARD,
                                    "tensor a : i32[2]\ntensor z : i64[3]\n"
                                    "mask = k >= a[b, q] && k < z[h, 0, q - 1]",
                                    &program);
        fxa_capture t[2] = {{.size = {2, 300}}, {.size = {8, large ? 9000 : 2, 300}}};
        fxa_error err;
        bed x;
        p.captures = t, p.n_captures = 2;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, large ? 3 : 4);
        T_CHECK(watch_is(0, FXA__CU_LISTS, FXA__CU_VECTOR));
        T_CHECK(large || watch_is(1, FXA__CU_LISTS, FXA__CU_RANGE));
        if (!large) T_INT(watch.launch[1].grid[0], 8 * 2 * 5 / 8);
        const watched *list = &watch.launch[large ? 1 : 2];
        T_CHECK(list->function == FXA__CU_TILES && (list->a.ranges[0] != NULL) == !large && !list->a.ranges[1]);
        touch_check(&x);
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

/* Words of documents are the same for queries and keys where those are as many: one launch. */
TEST(words_of_documents) {
    for (int sk = 300; sk <= 500; sk += 200) {
        fxa_program *program;
        fxa_problem p = bed_problem(FXA_FORWARD, "tensor doc : i64[2]\nmask = doc[b, q] == doc[b, k]", &program);
        fxa_capture t = {.size = {2, 500}};
        fxa_error err;
        bed x;
        p.captures = &t, p.n_captures = 1, p.sk = sk;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, sk == 300 ? 3 : 4);
        const watched *list = &watch.launch[watch.launches - 2];
        T_CHECK(watch_is(0, FXA__CU_LISTS, FXA__CU_VECTOR) && list->function == FXA__CU_TILES);
        T_INT(list->a.q_vector.data == list->a.k_vector.data, sk == 300);
        T_INT(list->a.k_vector.ranges_b, sk == 300 ? 8 : 10);
        touch_check(&x);
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

/* Lists of a million positions: 64 bytes for each. */
TEST(long_lists) {
    for (int backward = 0; backward < 2; backward++) {
        fxa_program *program;
        fxa_problem p = bed_problem(backward ? FXA_BACKWARD : FXA_FORWARD, "mask = k <= q", &program);
        fxa_error err;
        bed x;
        p.sq = p.sk = 1 << 20, p.b = p.hq = p.hkv = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        const fxa__cu_unit unit = backward ? FXA__CU_BACKWARD : FXA__CU_FORWARD;
        int at = 0;
        while (at < watch.launches && watch.launch[at].unit != unit) at++;
        T_INT(watch.launch[at].a.list.pitch, 2048);
        T_INT(watch.launch[0].cut.columns, backward ? 16384 : 8192);
        T_CHECK(x.workspace < (backward ? UINT64_C(700) << 20 : UINT64_C(80) << 20)); /* most of it the sum of dQ */
        touch_check(&x);
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

T_MAIN
