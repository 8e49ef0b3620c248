/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's mask queries compared with the mask pair by pair: class and columns of a tile (mask/classify.c),
 * bits of a tile shared by heads (mask/bits.c). Results do not depend on how precise a query is, so conformance tests
 * only detect wrong queries, not imprecise ones.
 */
#include "t.h"

#include "engine/cpu/mask/bits.h"
#include "plan/plan.h"
#include "problem/bound_args.h"

#include <stdlib.h>
#include <string.h>

typedef struct ask_case {
    const char *mask;
    bool (*attends)(int64_t q, int64_t k);
    int64_t step; /* rows and columns of tiles start and end at multiples of it; 1: the mask is a band */
} ask_case;

static bool ask_causal(int64_t q, int64_t k) { return k <= q; }
static bool ask_window(int64_t q, int64_t k) { return q - k < 8 && k <= q + 2; }
static bool ask_before(int64_t q, int64_t k) { return k + 3 < q; }
static bool ask_near(int64_t q, int64_t k) { return llabs(q - k) <= 5; }
static bool ask_point(int64_t q, int64_t k) { return q == k + 2; }
static bool ask_blocks(int64_t q, int64_t k) { return k / 8 <= q / 8; }
static bool ask_block(int64_t q, int64_t k) { return k / 8 == q / 8; }
static bool ask_corner(int64_t q, int64_t k) { return q < 16 || k >= 8; }
static bool ask_thirds(int64_t q, int64_t k) { return (q ^ k) % 3 == 0; }

static bool ask_far_thirds(int64_t q, int64_t k) { return (q ^ k) % 3 == 0 && k - q > 64 && k < 150; }

static const ask_case ask_cases[] = {
    {"k <= q", ask_causal, 1},          {"q - k < 8 && k <= q + 2", ask_window, 1},
    {"k + 3 < q", ask_before, 1},       {"abs(q - k) <= 5", ask_near, 1},
    {"q == k + 2", ask_point, 1},       {"k // 8 <= q // 8", ask_blocks, 8},
    {"k // 8 == q // 8", ask_block, 8}, {"q < 16 || k >= 8", ask_corner, 8},
};

enum {
    ASK_HEADS = 2,
    ASK_ROWS = 24,
    ASK_KEYS = 32,
    ASK_WIDE = 160 /* ASK_WIDE: keys whose mask bits need more than two 64-bit words */
};

typedef struct ask_rig {
    fxa_context *ctx;
    fxa_program *program;
    fxa_plan *plan;
    fxa__bound_args bound;
    fxa__cpu_kv_group g;
} ask_rig;

/* Opens a problem of two query heads that share a KV head, with the plan's code. */
static bool ask_open(ask_rig *rig, const char *mask) {
    char text[128];
    fxa_error err = {0};
    fxa_problem p = FXA_PROBLEM_INIT;
    *rig = (ask_rig){0};
    snprintf(text, sizeof text, "mask = %s", mask);
    if (fxa_context_create(NULL, &rig->ctx, &err) || fxa_program_parse(rig->ctx, text, SIZE_MAX, &rig->program, &err))
        return false;
    p.b = 1, p.hq = ASK_HEADS, p.hkv = 1, p.sq = ASK_ROWS, p.sk = ASK_WIDE, p.d_qk = p.d_v = 4;
    p.program = rig->program, p.engine = "cpu";
    if (fxa_plan_create(rig->ctx, &p, &rig->plan, &err)) return false;
    rig->g = (fxa__cpu_kv_group){.code = rig->plan->code->code, .p = rig->plan->problem, .bound = &rig->bound};
    fxa__cpu_kv_group_enter(&rig->g, 0, 0);
    return true;
}

static void ask_close(ask_rig *rig) {
    fxa_plan_destroy(rig->plan);
    fxa_program_destroy(rig->program);
    fxa_context_destroy(rig->ctx);
}

/* Returns the class of rows first..first+n and keys key..key+m by evaluating the mask, and writes the smallest range of
 * columns that contains all attended pairs. */
static fxa_tile_class ask_brute(const ask_case *c, int64_t first, int64_t n, int64_t key, int64_t m, int64_t *begin,
                                int64_t *end) {
    int64_t count = 0;
    *begin = m, *end = 0;
    for (int64_t r = first; r < first + n; r++)
        for (int64_t k = 0; k < m; k++) {
            if (!c->attends(r % ASK_ROWS, key + k)) continue;
            if (k < *begin) *begin = k;
            if (k >= *end) *end = k + 1;
            count++;
        }
    return count == 0 ? FXA_TILE_EMPTY : count == n * m ? FXA_TILE_FULL : FXA_TILE_MIXED;
}

static void ask_check(const ask_rig *rig, const ask_case *c, int64_t first, int64_t n, int64_t key, int64_t m) {
    int64_t begin, end, want_begin, want_end;
    fxa_tile_class got = fxa__cpu_mask_classify(&rig->g, first, n, key, m, &begin, &end);
    fxa_tile_class want = ask_brute(c, first, n, key, m, &want_begin, &want_end);
    bool same = got == want;
    if (want != FXA_TILE_EMPTY) same = same && begin <= want_begin && end >= want_end;
    if (want != FXA_TILE_EMPTY && c->step == 1) same = same && begin == want_begin && end == want_end;
    if (!same)
        T_FAIL("%s, rows %d + %d, keys %d + %d: class %d, columns %d..%d, not %d, %d..%d\n", c->mask, (int)first,
               (int)n, (int)key, (int)m, got, (int)begin, (int)end, want, (int)want_begin, (int)want_end);
}

/* Queries every tile of a head whose sides are multiples of the step; twice, since results are cached. */
TEST(tiles_have_the_class_and_the_columns_of_their_pairs) {
    for (size_t i = 0; i < sizeof ask_cases / sizeof *ask_cases; i++) {
        const ask_case *c = &ask_cases[i];
        int64_t step = c->step;
        ask_rig rig;
        T_REQUIRE(ask_open(&rig, c->mask));
        fxa__cpu_range_cache seen[1024];
        T_CHECK(fxa__cpu_range_cache_count(rig.g.code, rig.g.p) <= 1024);
        for (int kept = 0; kept < 2; kept++) {
            if (kept) fxa__cpu_range_cache_clear(&rig.g, seen);
            for (int64_t first = 0; first < ASK_ROWS; first += step)
                for (int64_t n = step; first + n <= ASK_ROWS; n += step)
                    for (int64_t key = 0; key < ASK_KEYS; key += step)
                        for (int64_t m = step; key + m <= ASK_KEYS; m += step)
                            ask_check(&rig, c, ASK_ROWS * kept + first, n, key, m);
            ask_check(&rig, c, 0, ASK_HEADS * ASK_ROWS, 0, ASK_KEYS);
        }
        ask_close(&rig);
    }
}

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct ask_bits {
    ask_rig rig;
    fxa__cpu_shared_mask_bits kept;
    fxa__cpu_masked_tile cut[2];
    int32_t h[ASK_HEADS][ASK_ROWS], q[ASK_ROWS];
    void *memory;
} ask_bits;

static void ask_carve(ask_bits *a, fxa__carver *c) {
    fxa__cpu_shared_mask_bits_carve(c, a->rig.g.code, a->rig.g.p, ASK_ROWS, ASK_WIDE, &a->kept);
    for (int i = 0; i < 2; i++) fxa__cpu_masked_tile_carve(c, a->rig.g.code, ASK_ROWS, ASK_WIDE, &a->cut[i]);
}

static bool ask_bits_open(ask_bits *a, const char *mask) {
    memset(a, 0, sizeof *a);
    if (!ask_open(&a->rig, mask)) return false;
    fxa__carver count = fxa__carver_make(NULL);
    ask_carve(a, &count);
    a->memory = aligned_alloc(FXA__CARVE_ALIGN, count.used);
    if (!a->memory) return false;
    memset(a->memory, 0xff, count.used);
    fxa__carver all = fxa__carver_make(a->memory);
    ask_carve(a, &all);
    for (int64_t i = 0; i < ASK_ROWS; i++) a->q[i] = (int32_t)i, a->h[1][i] = 1;
    for (int i = 0; i < 2; i++) fxa__cpu_masked_tile_start(&a->cut[i], &a->rig.g, &a->kept, ASK_ROWS, ASK_WIDE);
    return true;
}

static void ask_bits_check(const fxa__cpu_masked_tile *c, bool (*attends)(int64_t q, int64_t k)) {
    T_REQUIRE(c->bits);
    for (int64_t r = 0; r < c->n; r++)
        for (int64_t k = 0; k < c->keys; k++) {
            bool is = fxa__cpu_masked_tile_bits(c, r)[k / 64] >> k % 64 & 1;
            if (is != attends(c->q[r], c->key + k)) T_FAIL("row %d, key %d: %d\n", (int)r, (int)(c->key + k), is);
        }
}

TEST(heads_share_the_bits_of_a_tile) {
    ask_bits a;
    T_REQUIRE(ask_bits_open(&a, "(q ^ k) % 3 == 0"));
    T_CHECK(a.kept.count > 0);
    for (int i = 0; i < 2; i++) {
        fxa__cpu_masked_tile_set_rows(&a.cut[i], 0, i * ASK_ROWS, ASK_ROWS, a.h[i], a.q);
        T_CHECK(fxa__cpu_masked_tile_set_keys(&a.cut[i], 0, ASK_WIDE));
        T_CHECK(a.cut[i].bits == &a.kept.entries[0].bits);
        ask_bits_check(&a.cut[i], ask_thirds);
    }
    free(a.memory);
    ask_close(&a.rig);
}

/* A slot of cached bits belongs to the first tile that used it. */
TEST(another_tile_has_bits_of_its_own) {
    ask_bits a;
    T_REQUIRE(ask_bits_open(&a, "(q ^ k) % 3 == 0"));
    for (int i = 0; i < 2; i++) {
        fxa__cpu_masked_tile_set_rows(&a.cut[i], 0, i, ASK_ROWS - i, a.h[0], a.q + i);
        T_CHECK(fxa__cpu_masked_tile_set_keys(&a.cut[i], 0, ASK_WIDE));
        T_CHECK(a.cut[i].bits == (i ? &a.cut[i].own : &a.kept.entries[0].bits));
        ask_bits_check(&a.cut[i], ask_thirds);
    }
    fxa__cpu_masked_tile_set_rows(&a.cut[1], 0, 0, ASK_ROWS, a.h[0],
                                  a.q); /* the slot is being filled by another worker */
    atomic_store(&a.kept.entries[0].state, 1);
    T_CHECK(fxa__cpu_masked_tile_set_keys(&a.cut[1], 0, ASK_WIDE));
    T_CHECK(a.cut[1].bits == &a.cut[1].own);
    ask_bits_check(&a.cut[1], ask_thirds);
    free(a.memory);
    ask_close(&a.rig);
}

/* The remaining columns start at a multiple of 64. */
TEST(bits_of_the_columns_that_are_left) {
    ask_bits a;
    T_REQUIRE(ask_bits_open(&a, "(q ^ k) % 3 == 0 && k - q > 64 && k < 150"));
    fxa__cpu_masked_tile_set_rows(&a.cut[0], 0, 0, ASK_ROWS, a.h[0], a.q);
    T_CHECK(fxa__cpu_masked_tile_set_keys(&a.cut[0], 0, ASK_WIDE));
    T_INT(a.cut[0].key, 64);
    T_CHECK(a.cut[0].keys >= 150 - 64 && a.cut[0].keys <= ASK_WIDE - 64);
    ask_bits_check(&a.cut[0], ask_far_thirds);
    free(a.memory);
    ask_close(&a.rig);
}

T_MAIN
