/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile counts beyond the fast paths: masks that vary along diagonals, coordinates at the ends of the int range, maps
 * and tensors known only at run time. Compared with every pair where pairs are known.
 */
#include "problem_case.h"

static fxa_context *edge_context(void) {
    static fxa_context *ctx;
    if (!ctx && fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    return ctx;
}

static fxa_problem edge_problem(const fxa_program *program, int64_t sq, int64_t sk) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.program = program, p.b = 2, p.hq = 4, p.sq = sq, p.sk = sk, p.d_qk = 8;
    return p;
}

/* Affine maps, h 2 of b 1: full, mixed and empty tiles. Small tiles are counted exactly. */
static void edge_check(const char *mask, int64_t q_base, int64_t k_base, int64_t step, int64_t tile_q, int64_t tile_k) {
    t_program *program = case_parse(FXA_PROGRAM_SCORE, mask);
    T_REQUIRE(program != NULL);
    fxa_problem p = edge_problem(program, 37, 29);
    fxa_tile_counts got = {0}, want = {0};
    fxa_error err;
    p.map_q.base = q_base, p.map_k.base = k_base, p.map_q.step = p.map_k.step = step;
    T_OK(fxa_tiles_count(edge_context(), &p, 1, 2, tile_q, tile_k, NULL, NULL, &got, &err));
    for (int64_t q = 0; q < p.sq; q += tile_q)
        for (int64_t k = 0; k < p.sk; k += tile_k) {
            bool seen[2] = {false, false};
            for (int64_t i = q; i < q + tile_q && i < p.sq; i++)
                for (int64_t j = k; j < k + tile_k && j < p.sk; j++) {
                    double value, in[FXA_INPUT_COUNT] = {
                                      0, 1, 2, (double)(q_base + step * i), (double)(k_base + step * j), 37, 29, 0};
                    int left = 0;
                    T_OK(fxa_program_eval(program, in, NULL, NULL, &value, &left, &err));
                    seen[left] = true;
                }
            want.empty += !seen[1], want.full += !seen[0], want.mixed += seen[0] && seen[1];
        }
    if (got.empty != want.empty || got.full != want.full || got.mixed != want.mixed || got.unknown)
        T_FAIL("%s, bases %d and %d, step %d: %d %d %d, truly %d %d %d\n", mask, (int)q_base, (int)k_base, (int)step,
               (int)got.empty, (int)got.mixed, (int)got.full, (int)want.empty, (int)want.mixed, (int)want.full);
}

TEST(masks_on_and_off_the_diagonal) {
    static const char *const masks[] = {
        "mask = ~q + k < 3",
        "mask = -q + k <= 0 || -(q - k) == 4",
        "mask = (q << 1) - (k << 1) < 7",
        "mask = (q << (k % 2)) < 30",
        "mask = q + k * k < 40",
        "mask = k * k + q < 40",
        "mask = q * k < 9 || q - k == 3",
        "mask = h * q - h * k < 5",
        "mask = q * h - k * h < 3 && q < 9",
        "mask = float(q) < float(k) + 2.5",
        "mask = (q < k) == (k < 20)",
        "mask = int(q < k + 2) == 1",
        "mask = q < k + 2147483600",
        "mask = q + 2147483600 > k",
        "mask = q * 2147483647 <= k * 2147483647",
        "mask = abs(q - k) < 4 && (q - k) % 3 != 1",
        "mask = (q - k) // 2 * (q - k) < 50 && -abs(k - q) > -9",
        "mask = min(q, k + 3) == q",
        "mask = (q - k < 5 ? k < q + 1 : k == q) || b == 0",
        "mask = q_len - q > k_len - k",
    };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        edge_check(masks[i], 0, 0, 1, 4, 4);
        edge_check(masks[i], 5, -7, 1, 4, 4);
        edge_check(masks[i], 0, 3, 1, 3, 5);
        edge_check(masks[i], 60, 60, -1, 4, 4);
        edge_check(masks[i], 2147483600, 2147483590, 1, 4, 4);
        edge_check(masks[i], -2147483647, -2147483640, 1, 4, 4);
        edge_check(masks[i], 2147483600, -2147483640, 1, 4, 4); /* distances beyond 32 bits */
        edge_check(masks[i], -2147483640, 2147483600, 1, 4, 4);
        edge_check(masks[i], 0, 0, 1, 50, 6); /* one partial tile */
        edge_check(masks[i], 0, 0, 1, 6, 50);
    }
}

/* Run-time values count as unknown; each tile is still counted once. */
TEST(what_only_a_run_knows) {
    fxa_program *program = case_parse(FXA_PROGRAM_SCORE, "tensor t : i32[1]\nmask = k - h <= q + t[k] || b == 7");
    int32_t data[64] = {0};
    fxa_view view = {data, FXA_I32, 1, {64}, {1}};
    fxa_tensor_range known = fxa_tensor_scan(&view), bounded = {.known = 1, .lo = 0, .hi = 5};
    fxa_capture capture = {.size = {64}};
    T_REQUIRE(program != NULL);
    for (int kind = 0; kind < 8; kind++) {
        fxa_problem p = edge_problem(program, 32, 32);
        fxa_tile_counts c = {0};
        p.captures = &capture, p.n_captures = 1;
        fxa_index_map *const maps[] = {&p.map_b, &p.map_h, &p.map_q, &p.map_k};
        if (kind < 4) maps[kind]->has_offset = 1;
        if (kind == 6) p.flags = FXA_PADDING;
        if (kind == 7) p.flags = FXA_Q_START, p.map_q.base = -9;
        T_OK(fxa_tiles_count(edge_context(), &p, 1, 2, 4, 4, NULL, kind == 5 ? &bounded : &known, &c, &err));
        T_INT(c.empty + c.mixed + c.full + c.unknown, 64);
        if (kind == 4) T_CHECK(c.full > 20 && c.empty > 5); /* everything is known */
        if (kind == 2 || kind == 3 || kind == 7) T_INT(c.mixed, 64);
        if (kind == 6) T_CHECK(c.full == 0 && c.mixed > 20);
    }
    fxa_program_destroy(program);
    program = case_parse(FXA_PROGRAM_SCORE, "mask = k >= 0");
    fxa_problem p = edge_problem(program, 32, 32);
    fxa_tile_counts c = {0};
    p.flags = FXA_PADDING;
    T_OK(fxa_tiles_count(edge_context(), &p, 1, 2, 4, 4, NULL, NULL, &c, &err));
    T_INT(c.mixed, 64); /* a sequence may end in any tile, so none is full */
    T_STATUS(fxa_tiles_count(edge_context(), &p, -1, 2, 4, 4, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(edge_context(), &p, 1, -1, 4, 4, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(edge_context(), &p, 2, 2, 4, 4, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_tiles_count(edge_context(), &p, 1, 4, 4, 4, NULL, NULL, &c, &err), FXA_E_ARGUMENT);
    fxa_program_destroy(program);
}

T_MAIN
