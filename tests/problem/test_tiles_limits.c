/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile counts at their limits: huge problems, bounded work, failing memory.
 */
#include "support/memory/fail_alloc.h"
#include "tiles_case.h"

/* The longest sequences, 2^31 - 1 tokens, counted by arithmetic: a diagonal of n tiles, and a mask without coordinates.
 * */
CONTEXT_TEST(huge) {
    fxa_tile_counts c;
    fxa_problem p = tiles_problem(NULL, INT32_MAX, INT32_MAX);
    p.flags = FXA_CAUSAL;
    const int64_t tile = 1 << 19, n = 1 << 12;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, tile, tile, NULL, NULL, &c, &err));
    T_INT(c.mixed, n);
    T_INT(c.empty, n * (n - 1) / 2);
    T_INT(c.full, n * (n - 1) / 2);
    t_program *program = tiles_parse(ctx, "mask = score > 0 && h == 1 && k < 7");
    T_REQUIRE(program != NULL);
    p.program = program;
    p.flags = 0;
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 1, 1, NULL, NULL, &c, &err));
    T_CHECK(c.empty == (uint64_t)INT32_MAX * INT32_MAX && c.mixed == 0 && c.full == 0);
    T_OK(fxa_tiles_count(ctx, &p, 0, 1, 1, 1, NULL, NULL, &c, &err));
    T_CHECK(c.empty == (uint64_t)INT32_MAX * (INT32_MAX - 7) && c.mixed == (uint64_t)INT32_MAX * 7 && c.full == 0);
}

static void check_out_of_memory(const char *text) {
    fail_alloc alloc = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&alloc);
    T_REQUIRE(ctx != NULL);
    fxa_program *program = tiles_parse(ctx, text);
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

/* Fails every allocation in turn: correct counts or E_MEMORY, nothing written, nothing leaked. The analysis of the
 * second mask needs more memory than it has on the stack. */
TEST(out_of_memory) {
    static char text[4096] = "mask = q - k < 40";
    check_out_of_memory(text);
    for (int i = 0; i < 100; i++) snprintf(text + strlen(text), 40, " && q - k != %d", -3 * i);
    check_out_of_memory(text);
}

/* Pairs are counted one by one as long as the budget suffices for all of them. */
CONTEXT_TEST(the_last_pairs_of_a_budget) {
    t_program *program = tiles_parse(ctx, "mask = (q * k) % 7 == 3");
    fxa_problem problem = tiles_problem(program, 8, 8);
    fxa__problem *p = NULL;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &problem, &p, &err));
    for (int64_t spare = -1; spare <= 1; spare++) {
        fxa__tile_bruteforce pairs = {.vals = NULL};
        int64_t budget = 64 + spare;
        fxa__tile_grid grid = {.p = p, .program = p->program, .tile_q = 1, .tile_k = 1, .budget = &budget};
        fxa_tile_counts c = {0};
        grid.pairs = &pairs;
        T_OK(fxa__tile_bruteforce_open(&grid, &pairs, &err));
        T_INT(fxa__tile_bruteforce_count(&grid, (fxa__slice){0, 7}, (fxa__slice){0, 7}, 1, &c), spare >= 0);
        T_INT(budget, spare < 0 ? 63 : spare);
        T_INT(c.full + c.empty, spare < 0 ? 0 : 64);
        fxa__tile_bruteforce_close(&grid, &pairs);
    }
    fxa__problem_release(p);
}

/* Masks with borders everywhere: counting stops, at the same tile in every call, and reports how many are unknown. */
CONTEXT_TEST(work_is_bounded) { /* */
    static const struct {
        const char *text;
        int64_t size, tile;
    } cases[] = {
        {"mask = (q * k) % 7 == 3", 1 << 20, 128},           /* 2^26 tiles, all mixed */
        {"mask = (q - k) % 7 == 3", 1 << 30, 1},             /* 2^31 diagonals */
        {"mask = (q * k) % 7 == 3 && k <= q", INT32_MAX, 1}, /* 2^62 tiles */
        {"mask = (k * k) % 1000003 == 3", INT32_MAX, 1},     /* all rows are equal: 2^31 tiles of the first row */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!t_some((int)i)) continue;
        t_program *program = tiles_parse(ctx, cases[i].text);
        T_REQUIRE(program != NULL);
        fxa_problem p = tiles_problem(program, cases[i].size, cases[i].size);
        fxa_tile_counts c = {0};
        T_OK(fxa_tiles_count(ctx, &p, 0, 0, cases[i].tile, cases[i].tile, NULL, NULL, &c, &err));
        uint64_t side = (uint64_t)((cases[i].size + cases[i].tile - 1) / cases[i].tile);
        T_CHECK(c.empty + c.mixed + c.full + c.unknown == side * side);
        if (c.unknown == 0 || c.unknown == side * side)
            T_FAIL("%s: %" PRIu64 " of %" PRIu64 " tiles unknown\n", cases[i].text, c.unknown, side * side);
    }
    t_program *program = tiles_parse(ctx, "mask = (q * k) % 7 == 3");
    fxa_problem p = tiles_problem(program, 4096, 4096);
    fxa_tile_counts c = {0};
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 64, 64, NULL, NULL, &c, &err)); /* a smaller problem is counted completely */
    T_CHECK(c.unknown == 0 && c.empty + c.mixed + c.full == 64 * 64);
}

/* Elements that range analysis reads from a table count as work: 2^20 tiles of 256 elements exceed the limit. */
CONTEXT_TEST(elements_of_tables_count) {
    static int8_t table[64 * 64];
    t_rng rng = {t_seed()};
    for (size_t i = 0; i < sizeof table; i++) table[i] = (int8_t)t_int(&rng, 0, 1);
    t_program *program = tiles_parse(ctx, "tensor t : i8[2]\nmask = t[q % 64, k % 64] > 0");
    T_REQUIRE(program != NULL);
    fxa_problem p = tiles_problem(program, 1 << 14, 1 << 14);
    fxa_capture capture = {.size = {64, 64}};
    p.captures = &capture;
    p.n_captures = 1;
    fxa_view view = {table, FXA_I8, 2, {64, 64}, {64, 1}};
    fxa_tensor_range range = {.view = &view};
    fxa_tile_counts c = {0};
    T_OK(fxa_tiles_count(ctx, &p, 0, 0, 16, 16, NULL, &range, &c, &err));
    T_CHECK(c.unknown > 0 && c.empty + c.mixed + c.full + c.unknown == 1 << 20);
}

T_MAIN
