/* SPDX-License-Identifier: Apache-2.0
 *
 * masks from a table, a tree and a permutation, which leave at most a quarter of the tiles, take less processor
 * time than attention without a mask. The mask is evaluated for the pairs of a few tiles only, or this would fail:
 * evaluating a mask for all pairs takes about as long as the two products.
 */
#include "support/fixtures/attn_data.h"
#include "t.h"

#include <time.h>

enum { SPARSE_S = 1024, SPARSE_RUNS = 5 };

typedef struct sparse_mask {
    const char *name, *text;
    int64_t tensor[2][2];                   /* sizes of the captured tensors */
    void (*fill)(attn_data *x, t_rng *rng); /* sets the elements of the captured tensors */
} sparse_mask;

/* Keeps one of eight blocks of 64 x 64, and the diagonal. */
static void sparse_fill_table(attn_data *x, t_rng *rng) {
    const int64_t n = SPARSE_S / 64;
    for (int64_t i = 0; i < n * n; i++) attn_set(&x->tensor[0], i, i % (n + 1) == 0 || t_int(rng, 0, 7) == 0);
}

/* Numbers the nodes of a tree as a walk enters them: 8 children of the root with 128 descendants each, of which each 16
 * in a row are one branch. A node attends to itself and its ancestors. */
static void sparse_fill_tree(attn_data *x, t_rng *rng) {
    (void)rng;
    for (int64_t i = 0; i < SPARSE_S; i++) {
        int64_t end = i % 128 == 0 ? i + 128 : i % 16 == 0 ? i + 16 : i / 16 * 16 + 16;
        attn_set(&x->tensor[0], i, (double)i);
        attn_set(&x->tensor[1], i, (double)end);
    }
}

/* Eight documents of 128 tokens, whose numbers are a permutation. */
static void sparse_fill_documents(attn_data *x, t_rng *rng) {
    double number[SPARSE_S / 128];
    for (int i = 0; i < SPARSE_S / 128; i++) {
        int64_t j = t_int(rng, 0, i);
        number[i] = number[j];
        number[j] = 3 * i + 1;
    }
    for (int64_t i = 0; i < SPARSE_S; i++) attn_set(&x->tensor[0], i, number[i / 128]);
}

static const sparse_mask sparse_masks[] = {
    {"table",
     "tensor t : bool[2]\nmask = t[q // 64, k // 64]",
     {{SPARSE_S / 64, SPARSE_S / 64}, {0}},
     sparse_fill_table},
    {"tree",
     "tensor enter : i32[1]\ntensor leave : i32[1]\nmask = enter[k] <= enter[q] && enter[q] < leave[k]",
     {{SPARSE_S}, {SPARSE_S}},
     sparse_fill_tree},
    {"permutation", "tensor d : i32[1]\nmask = d[q] == d[k]", {{SPARSE_S}, {0}}, sparse_fill_documents},
};

static void sparse_make(attn_data *x, fxa_context *ctx, const sparse_mask *mask) {
    fxa_error err;
    attn_spec s = {.b = 1, .hq = 1, .sq = SPARSE_S, .sk = SPARSE_S, .d = 64, .dtype = FXA_F32};
    t_rng rng = {t_seed()};
    if (mask) s.text = mask->text;
    for (int i = 0; mask && i < 2; i++) memcpy(s.tensor[i], mask->tensor[i], sizeof mask->tensor[i]);
    s.flags = FXA_RETURN_LSE;
    T_OK(attn_data_make(x, ctx, &s, t_seed(), &err));
    if (mask) mask->fill(x, &rng);
}

/* Returns the processor time of a pass, in seconds. The context has one thread. */
static double sparse_time(attn_data *x, fxa_context *ctx, fxa_pass pass) {
    fxa_error err;
    clock_t start = clock();
    T_OK(attn_data_run(x, ctx, "cpu", pass, &err));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static void sparse_check(const sparse_mask *mask, fxa_context *ctx) {
    attn_owned dense = {0}, sparse = {0};
    double best[2][2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}}; /* [pass][sparse] */
    sparse_make(&dense, ctx, NULL);
    sparse_make(&sparse, ctx, mask);
    for (int i = 0; i < SPARSE_RUNS; i++)
        for (int pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            best[pass][0] = fmin(best[pass][0], sparse_time(&dense, ctx, (fxa_pass)pass));
            best[pass][1] = fmin(best[pass][1], sparse_time(&sparse, ctx, (fxa_pass)pass));
        }
    for (int pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++)
        if (!(best[pass][1] < best[pass][0]))
            T_FAIL("%s, pass %d: %.2g s, without a mask %.2g s\n", mask->name, pass, best[pass][1], best[pass][0]);
}

TEST(masks_of_any_origin_take_less_time_than_no_mask) {
    t_ctx *ctx = attn_context(1);
    T_REQUIRE(ctx);
    for (size_t i = 0; i < sizeof sparse_masks / sizeof *sparse_masks; i++) sparse_check(&sparse_masks[i], ctx);
}

/* Analysis of ranges finds the empty tiles of the same masks. */
TEST(empty_tiles_of_masks_of_any_origin_are_known) {
    enum { TILE = 64, ALL = (SPARSE_S / TILE) * (SPARSE_S / TILE) };
    t_ctx *ctx = attn_context(1);
    T_REQUIRE(ctx);
    for (size_t i = 0; i < sizeof sparse_masks / sizeof *sparse_masks; i++) {
        attn_owned x = {0};
        attn_call call;
        fxa_tile_counts counts;
        fxa_view views[ATTN_TENSORS];
        fxa_tensor_range ranges[ATTN_TENSORS];
        sparse_make(&x, ctx, &sparse_masks[i]);
        attn_call_make(&x, FXA_FORWARD, &call);
        for (size_t j = 0; j < x.n_tensors; j++) {
            views[j] = (fxa_view){.data = call.tensors[j],
                                  .dtype = fxa_program_tensor(x.program, j).dtype,
                                  .rank = fxa_program_tensor(x.program, j).rank};
            memcpy(views[j].size, x.captures[j].size, sizeof views[j].size);
            for (int32_t d = views[j].rank - 1, step = 1; d >= 0; step *= (int32_t)views[j].size[d--])
                views[j].stride[d] = step;
            ranges[j] = fxa_tensor_scan(&views[j]);
        }
        T_OK(fxa_tiles_count(ctx, &call.p, 0, 0, TILE, TILE, NULL, ranges, &counts, &err));
        if (counts.empty < ALL * 3 / 4 || counts.unknown)
            T_FAIL("%s: %d of %d tiles are known to be empty\n", sparse_masks[i].name, (int)counts.empty, ALL);
    }
}

T_MAIN
