/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of tiles: against single tiles, and single tiles against every pair; maps, lengths, edges, sizes.
 */
#include "t.h"

#include "problem/tiles.h"
#include "support/fail_alloc.h"
#include "support/gen.h"

static fxa_context *tiles_ctx(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    return ctx;
}

static fxa_program *tiles_parse(fxa_context *ctx, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

static fxa_problem tiles_problem(const fxa_program *program, int64_t sq, int64_t sk) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.program = program;
    p.b = 2, p.hq = 4, p.sq = sq, p.sk = sk, p.d = 8;
    return p;
}

/* By evaluating every pair of a tile. */
static fxa_tile tiles_by_pairs(const fxa__problem *p, int64_t b, int64_t h, fxa__slice q, fxa__slice k) {
    bool seen[2] = {false, false};
    fxa_error err;
    fxa__bind bind = {0};
    fxa__seq seq = fxa__seq_get(p, &bind, b);
    for (int64_t i = q.first; i <= q.last; i++)
        for (int64_t j = k.first; j <= k.last; j++) {
            double in[FXA_INPUT_COUNT] = {0}, value;
            int mask = 0;
            in[FXA_INPUT_B] = fxa__coord(p, NULL, FXA_INPUT_B, b);
            in[FXA_INPUT_H] = fxa__coord(p, NULL, FXA_INPUT_H, h);
            in[FXA_INPUT_Q] = fxa__row_coord(p, &bind, &seq, i);
            in[FXA_INPUT_K] = fxa__coord(p, NULL, FXA_INPUT_K, j);
            in[FXA_INPUT_Q_LEN] = (double)(p->in.q_len ? p->in.q_len : p->in.sq);
            in[FXA_INPUT_K_LEN] = (double)(p->in.k_len ? p->in.k_len : p->in.sk);
            T_OK(fxa_program_eval(p->program, in, NULL, NULL, &value, &mask, &err));
            seen[mask] = true;
        }
    return seen[0] && seen[1] ? FXA_TILE_MIXED : seen[1] ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

/* Counts as the library does, tile by tile, and pair by pair. exact: the last two must agree. */
static void tiles_check(fxa_context *ctx, const fxa_problem *problem, int64_t tile_q, int64_t tile_k, bool exact) {
    fxa_error err;
    fxa_tile_counts got, by_tile = {0};
    fxa__problem *p = NULL;
    T_OK(fxa_tiles_count(ctx, problem, 1, 2, tile_q, tile_k, NULL, NULL, &got, &err));
    T_OK(fxa__problem_create(fxa__context_host(ctx), problem, &p, &err));
    T_REQUIRE(p != NULL);
    for (int64_t q = 0; q < problem->sq; q += tile_q)
        for (int64_t k = 0; k < problem->sk; k += tile_k) {
            fxa__slice rows = {q, q + tile_q < problem->sq ? q + tile_q - 1 : problem->sq - 1};
            fxa__slice keys = {k, k + tile_k < problem->sk ? k + tile_k - 1 : problem->sk - 1};
            fxa__tile_grid grid = {.p = p, .program = p->program, .b = 1, .h = 2, .tile_q = tile_q, .tile_k = tile_k};
            fxa_tile tile = fxa__tile_class(&grid, rows, keys), truth = tiles_by_pairs(p, 1, 2, rows, keys);
            if (exact ? tile != truth : tile != FXA_TILE_MIXED && tile != truth)
                T_FAIL("tile at %d, %d is %d, truly %d\n", (int)q, (int)k, tile, truth);
            if (tile_q * tile_k <= FXA__TILE_LOOK) tile = truth; /* a count looks at the pairs */
            by_tile.empty += tile == FXA_TILE_EMPTY;
            by_tile.mixed += tile == FXA_TILE_MIXED;
            by_tile.full += tile == FXA_TILE_FULL;
        }
    T_INT(got.empty, by_tile.empty);
    T_INT(got.mixed, by_tile.mixed);
    T_INT(got.full, by_tile.full);
    fxa__problem_release(p);
}

TEST(exact_masks) {
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
    fxa_context *ctx = tiles_ctx();
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        char text[128];
        snprintf(text, sizeof text, "mask = %s", masks[i]);
        fxa_program *program = tiles_parse(ctx, text);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, 67, 50);
        int before = t_failures;
        tiles_check(ctx, &p, 8, 8, true);
        tiles_check(ctx, &p, 16, 5, true);
        tiles_check(ctx, &p, 1, 1, true);
        tiles_check(ctx, &p, 100, 100, true);
        if (t_failures != before) printf("  %s\n", masks[i]);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

TEST(ready_masks) {
    fxa_context *ctx = tiles_ctx();
    fxa_problem p = tiles_problem(NULL, 40, 56);
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_CAUSAL;
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true);
    p.flags = FXA_WINDOW | FXA_CAUSAL;
    p.window_left = 12, p.window_right = -1;
    tiles_check(ctx, &p, 8, 8, true);
    p.q_len = 100, p.k_len = 90;
    p.flags |= FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true);
    fxa_context_destroy(ctx);
}

TEST(maps) {
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 30 && h < 6 && b == 3");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 40, 40);
    p.map_b.base = 2, p.map_h.base = -1, p.map_h.step = 3;
    p.map_q.base = 40;
    tiles_check(ctx, &p, 8, 8, true); /* a shard further along */
    p.map_q = (fxa_index_map){.base = 60, .step = -1};
    tiles_check(ctx, &p, 8, 8, true); /* backwards */
    p.map_q = (fxa_index_map){.base = 3, .step = 2};
    tiles_check(ctx, &p, 8, 8, false); /* every second row: the interval between is taken as there */
    /* Two pieces of a sequence, as ring attention deals them out; tiles may hold both. */
    fxa_index_map two = {.kind = FXA_MAP_SEGMENTS, .n_segments = 3, .segment = {{0, 0, 1}, {20, 100, 1}, {33, 50, -1}}};
    p.map_q = p.map_k = two;
    tiles_check(ctx, &p, 8, 8, true);
    tiles_check(ctx, &p, 20, 20, true);
    tiles_check(ctx, &p, 40, 7, true);
    p.map_b.kind = FXA_MAP_TABLE;
    fxa_tile_counts c;
    fxa_error err;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.full, 0); /* b may be anything */
    T_CHECK(c.empty > 0 && c.mixed > 0);
    p = tiles_problem(program, 40, 40);
    p.map_q.dynamic = 1;
    p.map_b.base = 3;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.mixed, 25); /* q may be anything */
    p.map_b.base = 0;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.empty, 25); /* whatever q is, b is not 3 */
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(moved_rows) {
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 30");
    T_REQUIRE(program != NULL);
    fxa_tile_counts c;
    fxa_error err;
    fxa_problem p = tiles_problem(program, 40, 72);
    p.flags = FXA_BOTTOM_RIGHT;
    tiles_check(ctx, &p, 8, 8, true); /* along diagonals */
    tiles_check(ctx, &p, 16, 5, true);
    p.sq = 1;
    tiles_check(ctx, &p, 1, 8, true);
    p.sq = 40, p.q_len = 72, p.k_len = 50;
    tiles_check(ctx, &p, 8, 8, true); /* some rows lie before the first key */
    p.q_len = p.k_len = 0, p.flags |= FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_CHECK(c.full == 0 && c.mixed > 0);
    p = tiles_problem(program, 40, 40);
    p.flags = FXA_POSITIONS;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err));
    T_INT(c.mixed, 25); /* q may be anything */
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(lengths) {
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "mask = k <= q && k < k_len");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 64, 64);
    fxa_tile_counts c;
    fxa_error err;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 4 && c.full == 6);
    p.flags = FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 10 && c.full == 0); /* the lengths may cut any tile */
    p.flags = FXA_VARLEN;
    p.total_q = p.total_k = 100;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, NULL, &c, &err));
    T_CHECK(c.empty == 6 && c.mixed == 10 && c.full == 0);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(sizes) {
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "mask = k <= q && q - k < 1000");
    T_REQUIRE(program != NULL);
    fxa_tile_counts c;
    fxa_error err;
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
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* The longest sequences: counts by arithmetic. A diagonal of n tiles, 2^31 - 1 tokens; and a mask of no coordinate. */
TEST(huge) {
    fxa_context *ctx = tiles_ctx();
    fxa_tile_counts c;
    fxa_error err;
    fxa_problem p = tiles_problem(NULL, INT32_MAX, INT32_MAX);
    p.flags = FXA_CAUSAL;
    const int64_t tile = 1 << 19, n = 1 << 12;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    T_INT(c.mixed, n);
    T_INT(c.empty, n * (n - 1) / 2);
    T_INT(c.full, n * (n - 1) / 2);
    fxa_program *program = tiles_parse(ctx, "mask = score > 0 && h == 1 && k < 7");
    T_REQUIRE(program != NULL);
    p.program = program;
    p.flags = 0;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 1, 1, NULL, NULL, &c, &err));
    T_CHECK(c.empty == (uint64_t)INT32_MAX * INT32_MAX && c.mixed == 0 && c.full == 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 1, 1, 1, NULL, NULL, &c, &err));
    T_CHECK(c.empty == (uint64_t)INT32_MAX * (INT32_MAX - 7) && c.mixed == (uint64_t)INT32_MAX * 7 && c.full == 0);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(documents) {
    enum { N = 512 };
    static int32_t doc[N];
    for (int i = 0; i < N; i++) doc[i] = i / 100;
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] == doc[k]");
    T_REQUIRE(program != NULL);
    fxa_view view = {.data = doc, .dtype = FXA_I32, .rank = 1, .size = {N}, .stride = {1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N}};
    fxa_problem p = tiles_problem(program, N, N);
    p.captures = &capture;
    p.n_captures = 1;
    fxa_tile_counts c, want = {0};
    fxa_error err;
    for (int q = 0; q < N; q += 32)
        for (int k = 0; k < N; k += 32) {
            bool apart = doc[q + 31] < doc[k] || doc[k + 31] < doc[q],
                 same = doc[q] == doc[k + 31] && doc[k] == doc[q + 31];
            want.empty += apart, want.full += same, want.mixed += !apart && !same;
        }
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 32, 32, NULL, &known, &c, &err));
    T_CHECK(c.empty == want.empty && c.mixed == want.mixed && c.full == want.full && want.full > 0 && want.mixed > 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 32, 32, NULL, NULL, &c, &err));
    T_INT(c.mixed, N / 32 * (N / 32)); /* nothing known of the tensor */
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* A mask that the score says counts as one that is said. */
TEST(masks_in_the_score) {
    static const char *const texts[] = {"mask = k <= q && k % 3 != 0", "score = k <= q && k % 3 != 0 ? score : -inf",
                                        "score = k > q || k % 3 == 0 ? -inf : score",
                                        "score = k % 3 != 0 ? score : -inf\nmask = k <= q"};
    fxa_context *ctx = tiles_ctx();
    fxa_error err;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fxa_program *program = tiles_parse(ctx, texts[i]);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, 60, 60);
        fxa_tile_counts c = {0};
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, 12, 16, NULL, NULL, &c, &err));
        T_CHECK(c.empty == 7 && c.mixed == 13 && c.full == 0 && c.unknown == 0);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

/* Tables of bits that no range says anything of: small tiles are looked at, when the data is there and all that the run
 * decides is known; large ones, and those without data, stay mixed. */
TEST(tables_are_looked_at) {
    enum { N = 64 };
    static uint8_t keep[N * N];
    for (int q = 0; q < N; q++)
        for (int k = 0; k < N; k++) keep[q * N + k] = (q * 5 + k * 3) % 64 == 0;
    fxa_context *ctx = tiles_ctx();
    fxa_program *program = tiles_parse(ctx, "tensor keep : bool[2]\nparam n : int\nmask = keep[q * n % 64, k]");
    T_REQUIRE(program != NULL);
    fxa_view view = {.data = keep, .dtype = FXA_B8, .rank = 2, .size = {N, N}, .stride = {N, 1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N, N}};
    fxa_problem p = tiles_problem(program, N, N);
    p.captures = &capture;
    p.n_captures = 1;
    double n = 7, wrong = NAN;
    fxa_tile_counts c, want = {0};
    fxa_error err;
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
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &wrong, &known, &c, &err)); /* no int: nothing is evaluated */
    T_INT(c.empty + c.full, 0);
    p.flags = FXA_PADDING;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 4, 4, &n, &known, &c, &err));
    T_INT(c.full, 0);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* Tiles of one pair count what a mask leaves: a table without blocks of a million pairs, said as mask and by the score,
 * is counted to its end, and so is one that all rows share. */
TEST(single_pairs) {
    enum { N = 1024 };
    static uint8_t keep[N * N];
    static const char *const texts[] = {"tensor keep : bool[2]\nmask = keep[q, k]",
                                        "tensor keep : bool[2]\nscore = keep[q, k] ? score : -inf",
                                        "tensor keep : bool[2]\nmask = keep[5, k]"};
    t_rng rng = {t_seed()};
    uint64_t set[2] = {0, 0};
    for (int i = 0; i < N * N; i++) set[0] += keep[i] = (uint8_t)t_int(&rng, 0, 1);
    for (int k = 0; k < N; k++) set[1] += keep[5 * N + k];
    fxa_context *ctx = tiles_ctx();
    fxa_view view = {.data = keep, .dtype = FXA_B8, .rank = 2, .size = {N, N}, .stride = {N, 1}};
    fxa_tensor_range known = fxa_tensor_scan(&view);
    fxa_capture capture = {.size = {N, N}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fxa_program *program = tiles_parse(ctx, texts[i]);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, N, N);
        fxa_tile_counts c;
        fxa_error err;
        p.captures = &capture, p.n_captures = 1;
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, 1, 1, NULL, &known, &c, &err));
        T_INT(c.unknown, 0);
        T_INT(c.mixed, 0);
        T_INT(c.full, i == 2 ? set[1] * N : set[0]);
        T_INT(c.empty, (uint64_t)N * N - c.full);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

/* A million tokens of masks that leave every tile to look at: one look for each diagonal. */
TEST(diagonals) {
    fxa_context *ctx = tiles_ctx();
    fxa_tile_counts c;
    fxa_error err;
    fxa_program *program = tiles_parse(ctx, "mask = (q - k) % 2 == 0 && score > 0 && k <= q && q - k < 1024");
    T_REQUIRE(program != NULL);
    const int64_t n = 1 << 20, tile = 16, side = n / tile;
    fxa_problem p = tiles_problem(program, n, n);
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    uint64_t want = 0;
    for (int64_t d = 0; d <= 1024 / tile; d++) want += (uint64_t)(side - d);
    T_CHECK(c.mixed == want && c.full == 0 && c.empty == (uint64_t)(side * side) - want);
    p.sq -= 100, p.sk += 3; /* cut tiles at both ends, and a shard */
    p.map_q.base = 512;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    T_INT(c.empty + c.mixed + c.full, (side - 6) * (side + 1));
    fxa_program_destroy(program);

    /* Order of ints that wrap does not move along: the slower way, the same counts as tile by tile. */
    program = tiles_parse(ctx, "mask = q + 2147483600 < k + 2147483600");
    T_REQUIRE(program != NULL);
    p = tiles_problem(program, 90, 70);
    tiles_check(ctx, &p, 8, 8, false);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* Memory that runs out anywhere: the right counts or E_MEMORY, nothing written, nothing leaked. */
TEST(out_of_memory) {
    fail_alloc alloc = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&alloc);
    T_REQUIRE(ctx != NULL);
    fxa_program *program = tiles_parse(ctx, "mask = q - k < 40");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 100, 100);
    p.flags = FXA_CAUSAL;
    fxa_error err;
    fxa_tile_counts want, c;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &want, &err));
    size_t blocks = alloc.blocks, failures;
    int refused = 0;
    for (size_t k = 1;; k++) {
        for (int persistent = 0; persistent < 2; persistent++) {
            c = (fxa_tile_counts){7, 7, 7, 7};
            fail_alloc_arm(&alloc, k, persistent != 0);
            failures = alloc.failures;
            fxa_status status = fxa_tiles_count(ctx, &p, 0, 0, 8, 8, NULL, NULL, &c, &err);
            failures = alloc.failures - failures;
            fail_alloc_arm(&alloc, 0, false);
            T_INT(alloc.blocks, blocks);
            refused += status == FXA_E_MEMORY;
            if (status == FXA_OK)
                T_CHECK(c.empty == want.empty && c.mixed == want.mixed && c.full == want.full);
            else
                T_CHECK(status == FXA_E_MEMORY && err.status == status && c.empty == 7 && c.mixed == 7 && c.full == 7);
        }
        if (failures == 0) break;
    }
    T_CHECK(refused > 4);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    T_INT(alloc.blocks, 0);
    T_INT(alloc.mistakes, 0);
}

/* Masks whose border is everywhere: counting ends, at the same place each time, and says what it has not looked at. */
TEST(work_is_bounded) {
    static const struct {
        const char *text;
        int64_t size, tile;
    } cases[] = {
        {"mask = (q * k) % 7 == 3", 1 << 20, 128},           /* 2^26 tiles, each of them mixed */
        {"mask = (q - k) % 7 == 3", 1 << 30, 1},             /* 2^31 diagonals */
        {"mask = (q * k) % 7 == 3 && k <= q", INT32_MAX, 1}, /* 2^62 tiles */
        {"mask = (k * k) % 1000003 == 3", INT32_MAX, 1},     /* all rows alike: 2^31 tiles of the first */
    };
    fxa_context *ctx = tiles_ctx();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_program *program = tiles_parse(ctx, cases[i].text);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, cases[i].size, cases[i].size);
        fxa_tile_counts c = {0};
        fxa_error err;
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, cases[i].tile, cases[i].tile, NULL, NULL, &c, &err));
        uint64_t side = (uint64_t)((cases[i].size + cases[i].tile - 1) / cases[i].tile);
        T_CHECK(c.empty + c.mixed + c.full + c.unknown == side * side);
        if (c.unknown == 0 || c.unknown == side * side)
            T_FAIL("%s: %" PRIu64 " of %" PRIu64 " tiles unknown\n", cases[i].text, c.unknown, side * side);
        fxa_program_destroy(program);
    }
    fxa_program *program = tiles_parse(ctx, "mask = (q * k) % 7 == 3");
    fxa_problem p = tiles_problem(program, 4096, 4096);
    fxa_tile_counts c = {0};
    fxa_error err;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 64, 64, NULL, NULL, &c, &err)); /* what fits is counted to its end */
    T_CHECK(c.unknown == 0 && c.empty + c.mixed + c.full == 64 * 64);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* Whole rectangles get the class that each of their tiles gets alone. */
TEST(random_programs) {
    fxa_context *ctx = tiles_ctx();
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(400) && t_failures < 5; i++) {
        uint8_t tape[80];
        for (size_t j = 0; j < sizeof tape; j++) tape[j] = (uint8_t)t_next(&rng);
        fxa_program *program = gen_program(ctx, tape, sizeof tape, GEN_AFFINE_MASK);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, t_int(&rng, 1, 40), t_int(&rng, 1, 40));
        if (t_int(&rng, 0, 1)) p.map_q.base = t_int(&rng, -50, 90);
        if (t_int(&rng, 0, 3) == 0)
            p.map_k = (fxa_index_map){
                .kind = FXA_MAP_SEGMENTS,
                .n_segments = 2,
                .segment = {{0, t_int(&rng, 0, 60), 1}, {t_int(&rng, 1, 30), t_int(&rng, 0, 99), t_int(&rng, -1, 1)}}};
        int64_t tile = t_int(&rng, 1, 9);
        tiles_check(ctx, &p, tile, t_int(&rng, 0, 1) ? tile : t_int(&rng, 1, 9), false);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

T_MAIN
