/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that run before the main kernels of the cuda engine, recorded by cuda_run_fixture.h: mask operands and their
 * ranges, tile lists of any length. Also decoding, whose splits do not depend on the batch.
 */
#include "cuda_run_fixture.h"

/* One row per query head: the keys of the two KV heads are split in a way that does not depend on the batch. If there
 * are more splits than multiprocessors, a work item has several splits. */
TEST(decoding) {
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q + 4000");
    int64_t splits = 0;
    p.sq = 1, p.sk = 9000;
    for (p.b = 1; p.b < 20; p.b += 6) {
        bed x;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, 2);
        T_CHECK(watch_is(0, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES) && watch_is(1, FXA__CUDA_DECODE, 0));
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
}

typedef struct cut_case {
    int64_t b, hq, hkv, sk, d;
    int32_t cluster, splits, run, cut[2]; /* expected values; cut: index of the first half and quarter item */
} cut_case;

/* On 132 multiprocessors: few batch entries use clusters, many use work items from a counter, of which the last are
 * smaller if they are a large part of a round. */
TEST(items_by_batch_and_length) {
    static const cut_case cases[] = {
        {1, 64, 8, 511, 128, 0, 1, 1, {0, 0}},     {1, 64, 8, 896, 128, 0, 1, 1, {0, 0}},
        {1, 64, 8, 1024, 128, 2, 2, 1, {0, 0}},    {64, 64, 8, 1024, 128, 0, 2, 2, {0, 0}},
        {1, 64, 8, 2048, 128, 4, 4, 1, {0, 0}},    {1, 64, 8, 4096, 128, 8, 8, 1, {0, 0}},
        {1, 64, 8, 8192, 128, 8, 8, 1, {0, 0}},    {2, 64, 8, 8192, 128, 4, 8, 2, {0, 0}},
        {4, 64, 8, 8192, 128, 0, 8, 2, {0, 0}},    {20, 64, 8, 8192, 128, 0, 8, 8, {0, 28}},
        {32, 64, 8, 8192, 128, 0, 8, 8, {0, 0}},   {32, 64, 8, 8192, 64, 0, 8, 8, {0, 0}},
        {8, 32, 32, 8192, 128, 0, 4, 4, {0, 0}},   {8, 64, 8, 32768, 128, 0, 16, 8, {0, 0}},
        {1, 64, 8, 131072, 128, 8, 16, 2, {0, 0}}, {4, 64, 8, 131072, 128, 0, 16, 4, {0, 0}},
        {1, 8, 1, 131072, 128, 0, 64, 1, {0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cut_case *c = &cases[i];
        fxa_problem p = bed_problem(FXA_FORWARD, "");
        bed x;
        p.b = c->b, p.hq = c->hq, p.hkv = c->hkv, p.sq = 1, p.sk = c->sk, p.d_qk = p.d_v = c->d;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        const watched *main = &watch.launch[watch.launches - 1];
        const int32_t got[] = {x.code.choice.traits.cluster, main->a.splits, main->a.run, main->a.cut[0],
                               main->a.cut[1]};
        const int32_t want[] = {c->cluster, c->splits, c->run, c->cut[0], c->cut[1]};
        if (memcmp(got, want, sizeof got) != 0)
            T_FAIL("b=%d hkv=%d sk=%d d=%d: cluster %d, %d/%d, cut %d %d\n", (int)c->b, (int)c->hkv, (int)c->sk,
                   (int)c->d, got[0], got[1], got[2], got[3], got[4]);
        touch_check(&x);
        bed_close(&x);
    }
}

static void cut_check(const fxa_problem *p, int32_t processors, int *clusters, int *tails) {
    fxa_error err;
    bed x;
    T_REQUIRE(bed_open_on(&x, p, 90, -1, processors, &err));
    T_OK(bed_run(&x, &err));
    const watched *main = &watch.launch[watch.launches - 1];
    const struct FxaArgs *a = &main->a;
    int64_t rows = 8 * (int64_t)x.code.choice.traits.row_tiles, groups = (p->hq / p->hkv * p->sq + rows - 1) / rows;
    int64_t heads = p->b * p->hkv, items = 0, size = x.code.choice.traits.cluster;
    for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) {
        heads -= a->cut[i];
        *tails += a->cut[i] > 0;
        T_CHECK(a->cut[i] >= 0 && (!a->cut[i] || (a->run >> (i + 1) && a->splits % a->run == 0)));
        if (a->cut[i]) items += groups * a->cut[i] * (a->splits / (a->run >> (i + 1)));
    }
    items += groups * heads * ((a->splits + a->run - 1) / a->run);
    T_CHECK(watch_is(watch.launches - 1, FXA__CUDA_DECODE, 0) && heads >= 0 && a->run >= 1 && a->run <= 16);
    T_INT(a->tiles, items);
    T_CHECK(main->grid[1] == 1 && main->grid[2] == 1);
    T_INT(x.code.unit[FXA__CUDA_DECODE].shape.parts, size ? size : 1);
    if (size) {
        /* a cluster has all splits of a row block, one each, and the grid consists of entire clusters */
        T_INT(main->grid[0], items);
        T_INT(main->grid[0] % size, 0);
        T_INT(a->splits, size * a->run);
        T_CHECK((size == 2 || size == 4 || size == 8) && main->grid[0] <= processors / 2);
        (*clusters)++;
    } else {
        T_INT(main->grid[0], items < processors ? items : processors);
    }
    touch_check(&x);
    bed_close(&x);
}

/* For any shape and device, a grid of clusters is a multiple of the cluster's size, and covers all work items. */
TEST(grids_of_any_decoding) {
    static const int64_t keys[] = {256, 1000, 1024, 2100, 4096, 8192, 9001, 32768, 131072};
    static const int64_t kv_heads[] = {1, 2, 3, 8, 32};
    static const int32_t processors[] = {132, 114, 78, 16};
    static const int64_t batches[] = {1, 2, 3, 4, 5, 17, 20, 33, 64};
    int clusters = 0, tails = 0;
    fxa_problem p = bed_problem(FXA_FORWARD, "");
    for (int i = 0; i < 9 * 5 * 4 * 9; i++) {
        int n = i / 9 / 5 / 4;
        p.b = batches[n], p.hkv = kv_heads[i / 9 % 5], p.sk = keys[i % 9];
        p.hq = p.hkv * (i % 3 == 0   ? 1
                        : i % 3 == 1 ? 5
                                     : 8),
        p.sq = 1 + i % 2 * (i % 5), p.d_qk = p.d_v = i % 4 ? 128 : 64;
        p.flags = i % 7 == 3 ? p.flags | FXA_PADDING : p.flags & ~(uint32_t)FXA_PADDING;
        cut_check(&p, processors[i / 9 / 5 % 4], &clusters, &tails);
    }
    T_CHECK(clusters > 100 && tails > 20);
}

/* One tensor of the mask is read as packed 32-bit operands. Ranges of the others are tables, unless the tensor has more
 * elements than there are positions. */
TEST(ranges_of_thresholds) {
    for (int large = 0; large < 2; large++) {
        fxa_problem p = bed_problem(FXA_FORWARD, "tensor a : i32[2]\ntensor z : i64[3]\n"
                                                 "mask = k >= a[b, q] && k < z[h, 0, q - 1]");
        fxa_capture t[2] = {{.size = {2, 300}}, {.size = {8, large ? 9000 : 2, 300}}};
        bed x;
        p.captures = t, p.n_captures = 2;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, large ? 3 : 4);
        T_CHECK(watch_is(0, FXA__CUDA_TILE_LISTS, FXA__CUDA_PACK_OPERANDS));
        T_CHECK(large || watch_is(1, FXA__CUDA_TILE_LISTS, FXA__CUDA_RANGE_TABLE));
        if (!large) T_INT(watch.launch[1].grid[0], 8 * 2 * 5 / 8);
        const watched *list = &watch.launch[large ? 1 : 2];
        T_CHECK(list->function == FXA__CUDA_LIST_TILES && (list->a.ranges[0] != NULL) == !large && !list->a.ranges[1]);
        touch_check(&x);
        bed_close(&x);
    }
}

/* Packed document IDs are shared by queries and keys if these are equally many. If few rows of the tile list need the
 * IDs, they are written in the launch of the list, else in a launch before it. */
TEST(words_of_documents) {
    for (int i = 0; i < 4; i++) {
        int sk = i & 1 ? 500 : 300, many = i & 2;
        fxa_problem p = bed_problem(FXA_FORWARD, "tensor doc : i64[2]\nmask = doc[b, q] == doc[b, k]");
        fxa_capture t = {.size = {2, 500}};
        bed x;
        p.captures = &t, p.n_captures = 1, p.sk = sk;
        if (many) p.sq = 5000, t.size[1] = 5000, p.sk = sk == 300 ? 5000 : sk;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, !many ? 2 : sk == 300 ? 3 : 4);
        const watched *list = &watch.launch[watch.launches - 2];
        T_CHECK((!many || watch_is(0, FXA__CUDA_TILE_LISTS, FXA__CUDA_PACK_OPERANDS)) &&
                list->function == FXA__CUDA_LIST_TILES);
        T_CHECK(many ? list->threads == 256 : list->threads == 1024 && list->grid[0] == 1 && list->grid[2] == 2);
        T_INT(list->a.q_vector.data == list->a.k_vector.data, sk == 300);
        if (!many) T_INT(list->a.k_vector.ranges_b, sk == 300 ? 8 : 10);
        touch_check(&x);
        bed_close(&x);
    }
}

/* Tile lists for a million positions: 64 bytes for each position. */
TEST(long_lists) {
    for (int backward = 0; backward < 2; backward++) {
        fxa_problem p = bed_problem(backward ? FXA_BACKWARD : FXA_FORWARD, "mask = k <= q");
        bed x;
        p.sq = p.sk = 1 << 20, p.b = p.hq = p.hkv = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        const fxa__cuda_unit unit = backward ? FXA__CUDA_BACKWARD : FXA__CUDA_FORWARD;
        int at = 0;
        while (at < watch.launches && watch.launch[at].unit != unit) at++;
        T_INT(watch.launch[at].a.list.pitch, 2048);
        T_INT(watch.launch[0].cut.columns, backward ? 16384 : 8192);
        T_CHECK(x.workspace < (backward ? UINT64_C(700) << 20 : UINT64_C(80) << 20)); /* most of it: the sum of dQ */
        touch_check(&x);
        bed_close(&x);
    }
}

T_MAIN
