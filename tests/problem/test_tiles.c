/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile counts, compared with single tiles, and single tiles with every pair: maps, lengths, edges, sizes. Limits
 * are in test_tiles_limits.c.
 */
#include "support/fixtures/gen.h"
#include "tiles_case.h"

CONTEXT_TEST(exact_masks) {
    static const char *const masks[] = {
        "k <= q",
        "k <= q && q - k < 16",
        "true",
        "false",
        "k < 20",
        "q >= 20 || k < 5",
        "q // 8 == k // 8",
        "(q - k) % 4 == 0 && k <= q",
        "abs(q - k) <= 9",
        "b == 1 && h == 2 && k <= q",
        "h == 1",
        "k <= q + k_len - q_len",
        "k < 7 || q // 16 == k // 16",
        "q % 8 == 3",
        "k <= q || k < 13",
    };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        char text[128];
        snprintf(text, sizeof text, "mask = %s", masks[i]);
        t_program *program = tiles_parse(ctx, text);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, 67, 50);
        int before = t_failures;
        tiles_check(ctx, &p, 8, 8, true);
        tiles_check(ctx, &p, 16, 5, true);
        tiles_check(ctx, &p, 1, 1, true);
        tiles_check(ctx, &p, 100, 100, true);
        if (t_failures != before) printf("  %s\n", masks[i]);
    }
}

CONTEXT_TEST(ready_masks) {
    fxa_problem p = tiles_problem(NULL, 40, 56);
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_CAUSAL;
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_WINDOW | FXA_CAUSAL;
    p.window_left = 12, p.window_right = -1;
    tiles_check(ctx, &p, 8, 8, true);
    p.global_q_len = 100, p.global_k_len = 90;
    p.flags |= FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true);
}

CONTEXT_TEST(maps) {
    t_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 30 && h < 6 && b == 3");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 40, 40);
    p.map_b.base = 2, p.map_h.base = -1, p.map_h.step = 3;
    p.map_q.base = 40;
    tiles_check(ctx, &p, 8, 8, true); /* a shard at an offset */
    p.map_q = (fxa_index_map){.base = 60, .step = -1};
    tiles_check(ctx, &p, 8, 8, true); /* reversed */
    p.map_q = (fxa_index_map){.base = 3, .step = 2};
    tiles_check(ctx, &p, 8, 8, false); /* every second row: range analysis includes the rows between */
    /* Two pieces of a sequence, as ring attention distributes them; a tile may span both. */
    fxa_index_map two = {.kind = FXA_MAP_SEGMENTS, .n_segments = 3, .segment = {{0, 0, 1}, {20, 100, 1}, {33, 50, -1}}};
    p.map_q = p.map_k = two;
    tiles_check(ctx, &p, 8, 8, true);
    tiles_check(ctx, &p, 20, 20, true);
    tiles_check(ctx, &p, 40, 7, true);
    p.map_b.kind = FXA_MAP_TABLE;
    fxa_tile_counts c;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.full, 0); /* b is unknown */
    T_CHECK(c.empty > 0 && c.mixed > 0);
    p = tiles_problem(program, 40, 40);
    p.map_q.has_offset = 1;
    p.map_b.base = 3;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.mixed, 25); /* q is unknown */
    p.map_b.base = 0;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.empty, 25); /* for all q: b is not 3 */
}

CONTEXT_TEST(moved_rows) {
    t_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 30");
    T_REQUIRE(program != NULL);
    fxa_tile_counts c;
    fxa_problem p = tiles_problem(program, 40, 72);
    p.flags = FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true); /* counted along diagonals */
    tiles_check(ctx, &p, 16, 5, true);
    p.sq = 1;
    tiles_check(ctx, &p, 1, 8, true);
    p.sq = 40, p.global_q_len = 72, p.global_k_len = 50;
    tiles_check(ctx, &p, 8, 8, true); /* some rows precede the first key */
    p.global_q_len = p.global_k_len = 0, p.flags |= FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_CHECK(c.full == 0 && c.mixed > 0);
    p = tiles_problem(program, 40, 40);
    p.flags = FXA_Q_START;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.mixed, 25); /* q is unknown */
}

CONTEXT_TEST(lengths) {
    t_program *program = tiles_parse(ctx, "mask = k <= q && k < k_len");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 64, 64);
    fxa_tile_counts c;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 4 && c.full == 6);
    p.flags = FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 10 && c.full == 0); /* the lengths may cut any tile */
    p.flags = FXA_VARLEN;
    p.total_q = p.total_k = 100;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 10 && c.full == 0);
}

CONTEXT_TEST(sizes) {
    t_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 1000");
    T_REQUIRE(program != NULL);
    fxa_tile_counts c;
    fxa_problem p = tiles_problem(program, 0, 10);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 0 && c.mixed == 0 && c.full == 0);
    p.sq = 10, p.sk = 0;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 0 && c.mixed == 0 && c.full == 0);
    p.sk = 1;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, INT64_MAX, INT64_MAX, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 0 && c.mixed == 0 && c.full == 1);
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 0, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 8, -1, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, &p, 2, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, &p, -1, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 4, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, NULL, 0, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(NULL, &p, 0, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, NULL, &err), FXA_E_ARGUMENT);
    T_INT(c.full, 1); /* nothing is written on failure */
    p.sq = -1;
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_PROBLEM);
    p.sq = (int64_t)INT32_MAX + 1;
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_PROBLEM);
    p.b = 0;
    p.sq = 8;
    T_STATUS(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
}

CONTEXT_TEST(documents) {
    enum { N = 512 };
    static int32_t doc[N];
    for (int i = 0; i < N; i++) doc[i] = i / 100;
    t_program *program = tiles_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] == doc[k]");
    T_REQUIRE(program != NULL);
    fxa_view view = {.data = doc, .dtype = FXA_I32, .rank = 1, .size = {N}, .stride = {1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N}};
    fxa_problem p = tiles_problem(program, N, N);
    p.captures = &capture;
    p.n_captures = 1;
    fxa_tile_counts c, want = {0};
    for (int q = 0; q < N; q += 32)
        for (int k = 0; k < N; k += 32) {
            bool apart = doc[q + 31] < doc[k] || doc[k + 31] < doc[q],
                 same = doc[q] == doc[k + 31] && doc[k] == doc[q + 31];
            want.empty += apart, want.full += same, want.mixed += !apart && !same;
        }
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 32, 32, NULL, &known, &c, &err));
    T_CHECK(c.empty == want.empty && c.mixed == want.mixed && c.full == want.full && want.full > 0 && want.mixed > 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 32, 32, NULL, NULL, &c, &err));
    T_INT(c.mixed, N / 32 * (N / 32)); /* the tensor's range is unknown */
}

/* A mask within the score counts like a mask. */
CONTEXT_TEST(masks_in_the_score) {
    static const char *const texts[] = {"mask = k <= q && k % 3 != 0", "score = k <= q && k % 3 != 0 ? score : -inf",
                                        "score = k > q || k % 3 == 0 ? -inf : score",
                                        "score = k % 3 != 0 ? score : -inf\nmask = k <= q"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        t_program *program = tiles_parse(ctx, texts[i]);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, 60, 60);
        fxa_tile_counts c = {0};
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, 12, 16, NULL, NULL, &c, &err));
        T_CHECK(c.empty == 7 && c.mixed == 13 && c.full == 0 && c.unknown == 0);
    }
}

/* Bit tables without known ranges: small tiles are evaluated pair by pair if the data are given and nothing depends on
 * the run. Large tiles, and those without data, stay mixed. */
CONTEXT_TEST(tables_are_looked_at) {
    enum { N = 64 };
    static uint8_t keep[N * N];
    for (int q = 0; q < N; q++)
        for (int k = 0; k < N; k++) keep[q * N + k] = (q * 5 + k * 3) % 64 == 0;
    t_program *program = tiles_parse(ctx, "tensor keep : bool[2]\nparam n : int\nmask = keep[q * n % 64, k]");
    T_REQUIRE(program != NULL);
    fxa_view view = {.data = keep, .dtype = FXA_B8, .rank = 2, .size = {N, N}, .stride = {N, 1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N, N}};
    fxa_problem p = tiles_problem(program, N, N);
    p.captures = &capture;
    p.n_captures = 1;
    double n = 7, wrong = NAN;
    fxa_tile_counts c, want = {0};
    for (int q = 0; q < N; q += 4)
        for (int k = 0; k < N; k += 4) {
            int set = 0;
            for (int i = 0; i < 16; i++) set += keep[(q + i / 4) * 7 % 64 * N + k + i % 4];
            want.empty += set == 0, want.full += set == 16, want.mixed += set > 0 && set < 16;
        }
    T_CHECK(want.empty > 0 && want.mixed > 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &n, &known, &c, &err));
    T_CHECK(c.empty == want.empty && c.mixed == want.mixed && c.full == want.full && c.unknown == 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &n, NULL, &c, &err));
    T_INT(c.mixed, N / 4 * (N / 4));
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, NULL, &known, &c, &err));
    T_INT(c.empty + c.full, 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &wrong, &known, &c, &err)); /* not an int: nothing is evaluated */
    T_INT(c.empty + c.full, 0);
    p.flags = FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &n, &known, &c, &err));
    T_INT(c.full, 0);
}

/* Tiles of 1 x 1 count pairs: an unstructured table of a million pairs is counted completely, as a mask and within the
 * score, and so is a table shared by all rows or by all keys. */
CONTEXT_TEST(single_pairs) {
    enum { N = 1024 };
    static uint8_t keep[N * N];
    static const char *const texts[] = {
        "tensor keep : bool[2]\nmask = keep[q, k]", "tensor keep : bool[2]\nscore = keep[q, k] ? score : -inf",
        "tensor keep : bool[2]\nmask = keep[5, k]", "tensor keep : bool[2]\nmask = keep[q, 5]"};
    t_rng rng = {t_seed()};
    uint64_t set[4] = {0};
    for (int i = 0; i < N * N; i++) set[0] += keep[i] = (uint8_t)t_int(&rng, 0, 1);
    set[1] = set[0];
    for (int k = 0; k < N; k++) set[2] += keep[5 * N + k], set[3] += keep[N * k + 5];
    fxa_view view = {.data = keep, .dtype = FXA_B8, .rank = 2, .size = {N, N}, .stride = {N, 1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N, N}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        t_program *program = tiles_parse(ctx, texts[i]);
        T_REQUIRE(program != NULL);
        const int64_t sq = i == 2 ? INT32_MAX : N, sk = i == 3 ? INT32_MAX : N; /* equal rows, and equal columns */
        fxa_problem p = tiles_problem(program, sq, sk);
        fxa_tile_counts c;
        p.captures = &capture, p.n_captures = 1;
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, 1, 1, NULL, &known, &c, &err));
        T_INT(c.unknown, 0);
        T_INT(c.mixed, 0);
        T_INT(c.full, set[i] * (i < 2 ? 1 : INT32_MAX));
        T_INT(c.empty, (uint64_t)(sq * sk) - c.full);
    }
}

/* A million tokens with masks that make every tile mixed: one tile per diagonal is evaluated. */
CONTEXT_TEST(diagonals) {
    fxa_tile_counts c;
    fxa_program *program = tiles_parse(ctx, "mask = (q - k) % 2 == 0 && score > 0 && k <= q && q - k < 1024");
    T_REQUIRE(program != NULL);
    const int64_t n = 1 << 20, tile = 16, side = n / tile;
    fxa_problem p = tiles_problem(program, n, n);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    uint64_t want = 0;
    for (int64_t d = 0; d <= 1024 / tile; d++) want += (uint64_t)(side - d);
    T_CHECK(c.mixed == want && c.full == 0 && c.empty == (uint64_t)(side * side) - want);
    p.sq -= 100, p.sk += 3; /* partial tiles at both ends, and a shard */
    p.map_q.base = 512;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    T_INT(c.empty + c.mixed + c.full, (side - 6) * (side + 1));
    fxa_program_destroy(program);

    /* Comparisons of wrapping ints depend on more than q - k. The slower count gives the same result as tile by tile.
     * */
    program = tiles_parse(ctx, "mask = q + 2147483600 < k + 2147483600");
    T_REQUIRE(program != NULL);
    p = tiles_problem(program, 90, 70);
    tiles_check(ctx, &p, 8, 8, false);
    fxa_program_destroy(program);
}

/* Masks that are constant along diagonals only within the coordinates, or that only single pairs decide. */
CONTEXT_TEST(diagonals_that_end) {
    static const char *const texts[] = {
        "mask = q - k < 40 && k_row < 95",
        "mask = q - k < 40 && q_row < 95",
        "mask = q - k < 40 && k_row != 0",
        "mask = q - k < 40 && q_row != 0",
        "mask = q - k < 40 && k_row < 96",
        "mask = q - k < 40 && q_row < 96",
        "mask = (q - k) % 3 * ((q - k) % 3) == 2",
        "mask = (q - k) % 3 * ((q - k) % 3) != 2",
        "mask = (q - k) * (q - k) % 4 == 2 || q - k > 30",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int64_t tile = 1; tile <= 16; tile *= 4) {
            t_program *program = tiles_parse(ctx, texts[i]);
            T_REQUIRE(program != NULL);
            fxa_problem p = tiles_problem(program, 96, 96);
            tiles_check(ctx, &p, tile, tile, false);
        }
}

/* A rectangle gets the class that each of its tiles gets separately. */
CONTEXT_TEST(random_programs) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(400) && t_failures < 5; i++) {
        uint8_t tape[80];
        for (size_t j = 0; j < sizeof tape; j++) tape[j] = (uint8_t)t_next(&rng);
        t_program *program = gen_program(ctx, tape, sizeof tape, GEN_AFFINE_MASK);
        T_REQUIRE(program != NULL);
        int64_t sk = t_int(&rng, 1, 40);
        fxa_problem p = tiles_problem(program, t_int(&rng, 1, 40), sk);
        if (t_int(&rng, 0, 1)) p.map_q.base = t_int(&rng, -50, 90);
        if (t_int(&rng, 0, 3) == 0)
            p.map_k = (fxa_index_map){
                .kind = FXA_MAP_SEGMENTS,
                .n_segments = 2,
                .segment = {{0, t_int(&rng, 0, 60), 1}, {t_int(&rng, 1, 30), t_int(&rng, 0, 99), t_int(&rng, -1, 1)}}};
        int64_t tile = t_int(&rng, 1, 9);
        tiles_check(ctx, &p, tile, t_int(&rng, 0, 1) ? tile : t_int(&rng, 1, 9), false);
    }
}

T_MAIN
