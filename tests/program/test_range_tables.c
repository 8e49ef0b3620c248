/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of masks that read tables, compared with brute force: never wrong for any table, layout and index, and
 * exact where a tile covers few elements.
 */
#include "t.h"

#include "base/dtype.h"
#include "program/program.h"
#include "support/oracle/brute.h"

#include <math.h>
#include <stdlib.h>

typedef struct table_tally {
    int decided, decidable;
} table_tally;

static void table_check(table_tally *tally, const fxa_program *p, const fxa_tile_bounds *box,
                        const fxa_tensor_range *ranges, const fxa_view *views) {
    fxa_tile_class got = fxa_program_classify(p, box, NULL, ranges);
    fxa_tile_class truth = brute_class(p, box, NULL, views, brute_scores, 1);
    tally->decided += got != FXA_TILE_MIXED;
    tally->decidable += truth != FXA_TILE_MIXED;
    if (got == FXA_TILE_MIXED || got == truth) return;
    T_FAIL("%s, truly %s\n", brute_name(got), brute_name(truth));
    brute_show(p, box);
}

/* ---- Random tables ----------------------------------------------------------------------------------------------- */

enum { TABLE_BYTES = 1 << 16 };

/* Returns a view into the middle of `memory`: any order of axes, also with negative or zero strides. */
static fxa_view table_view(t_rng *rng, fxa_tensor_info info, unsigned char *memory) {
    static const int64_t most[] = {1, 60, 16, 8, 5, 3};
    fxa_view v = {.dtype = info.dtype, .rank = info.rank};
    int64_t step = 1, size = (int64_t)fxa_dtype_size(info.dtype);
    for (int i = info.rank - 1; i >= 0; i--) {
        v.size[i] = t_int(rng, t_int(rng, 0, 9) ? 1 : 0, most[info.rank]);
        v.stride[i] = t_int(rng, 0, 9) == 0 ? 0 : t_int(rng, 0, 3) == 0 ? -step : step;
        step *= v.size[i] ? v.size[i] : 1;
    }
    v.data = memory + TABLE_BYTES / 2 / size * size;
    return v;
}

/* Returns a value near the ends of 32 bits or 64 bits, or beyond 32 bits. */
static int64_t table_far(t_rng *rng) {
    static const int64_t far[] = {INT32_MAX,       (int64_t)INT32_MAX - 1, INT64_C(5000000000), INT64_C(-5000000000),
                                  INT32_MIN,       (int64_t)INT32_MIN - 1, INT64_MAX - 1,       INT64_MIN,
                                  INT64_C(1) << 32};
    return far[t_int(rng, 0, 8)];
}

/* Fills a table with few small numbers, so that comparisons are often decided; floats include special values. */
static void table_fill(t_rng *rng, uint32_t dtype, unsigned char *memory) {
    static const double odd[] = {0, -0.0, 1, 0x1p-149, -0x1p-140, INFINITY, -INFINITY, NAN, 1e300, 0.1};
    int64_t n = TABLE_BYTES / (int64_t)fxa_dtype_size((fxa_dtype)dtype), wide = t_int(rng, 1, 6);
    int64_t base = t_int(rng, 0, 2) ? 0 : t_int(rng, 0, 1) ? INT64_C(5000000000) : INT32_MAX - 2;
    bool is_float = dtype == FXA_F64 || dtype == FXA_F32 || dtype == FXA_F16 || dtype == FXA_BF16;
    for (int64_t i = 0; i < n; i++) {
        int64_t x = t_int(rng, 0, wide) + i / 97 % 3;
        if (is_float)
            fxa__store_f64(memory, dtype, i, t_int(rng, 0, 30) ? (double)x / 2 : odd[t_int(rng, 0, 9)]);
        else if (dtype == FXA_I64)
            ((int64_t *)(void *)memory)[i] = t_int(rng, 0, 60) ? base + x : table_far(rng) + x % 2;
        else if (dtype == FXA_I32)
            ((int32_t *)(void *)memory)[i] = (int32_t)x - 2;
        else if (dtype == FXA_I16)
            ((int16_t *)(void *)memory)[i] = (int16_t)(x - 2);
        else
            memory[i] = (uint8_t)(dtype == FXA_B8 ? x % 5 == 0 : x);
    }
}

static const char *const table_masks[] = {
    "tensor t : bool[3]\nmask = t[h, q // 8, k // 8]",
    "tensor t : i8[2]\nmask = t[q // 4, k // 4] > 2 && k <= q",
    "tensor t : u8[2]\nmask = t[q, k] != 0",
    "tensor t : i32[1]\ntensor u : i16[1]\nmask = t[k] <= t[q] && t[q] < u[k]",
    "tensor t : i64[1]\nmask = t[q] == t[k]",
    "tensor t : i64[1]\ntensor u : i64[1]\nmask = t[q // 2] != u[k] || t[q] == t[q + 1]",
    "tensor t : i64[2]\nmask = (t[h, q] == t[h, k]) ^ (t[h, q] <= t[h, k])",
    "tensor t : i64[1]\nmask = t[q] == t[k] && t[k] - t[q] >= 0 && t[q] != t[0]",
    "tensor t : i32[1]\nmask = t[k - q] > 0 || t[-k] == 1",
    "tensor t : bool[2]\nmask = abs(q - k) < 3 || t[q // 8, k // 8] || q < 2",
    "tensor t : f32[2]\nmask = t[q // 8, k // 8] > 0.5",
    "tensor t : f16[1]\nmask = t[k] + 0.5 < t[q]",
    "tensor t : bf16[1]\nmask = t[k] != t[q]",
    "tensor t : f64[2]\nmask = !(t[h, k // 3] <= 1.0)",
    "tensor t : f32[1]\nmask = int(t[q] * 2.0) == k // 16",
    "tensor t : i32[0]\nmask = q + k < t[] * 8",
    "tensor t : i32[4]\nmask = t[b, h, q // 5, k // 5] == 1 ^ (q > k)",
    "tensor t : i32[1]\nmask = t[t[q]] == t[k // 2]",
};

CONTEXT_TEST(never_wrong) {
    static unsigned char memory[2][TABLE_BYTES];
    t_rng rng = {t_seed()};
    table_tally tally = {0, 0};
    for (int i = 0; i < t_scaled(3000) && t_failures < 10; i++) {
        t_program *p = NULL;
        fxa_view views[2];
        fxa_tensor_range ranges[2];
        T_OK(fxa_program_parse(ctx, table_masks[(size_t)i % (sizeof table_masks / sizeof *table_masks)], SIZE_MAX, &p,
                               &err));
        for (int32_t t = 0; t < p->n_tensors; t++) {
            fxa_tensor_info info = fxa_program_tensor(p, (size_t)t);
            table_fill(&rng, info.dtype, memory[t]);
            views[t] = table_view(&rng, info, memory[t]);
            ranges[t] = t_int(&rng, 0, 1) ? fxa_tensor_scan(&views[t]) : (fxa_tensor_range){.view = &views[t]};
        }
        for (int j = 0; j < 6; j++) {
            int32_t q = (int32_t)t_int(&rng, -20, 60), k = (int32_t)t_int(&rng, -20, 60);
            int32_t h = (int32_t)t_int(&rng, 0, 9), b = (int32_t)t_int(&rng, 0, 1);
            int64_t rows = t_int(&rng, 0, 20), keys = t_int(&rng, 0, 20);
            fxa_tile_bounds box = brute_box(b, h, q, q + rows, k, k + keys, 64, 64);
            table_check(&tally, p, &box, ranges, views);
        }
    }
    printf("  decided %d of %d\n", tally.decided, tally.decidable);
    T_CHECK(tally.decided > tally.decidable * 6 / 10);
}

/* ---- What must be found ------------------------------------------------------------------------------------------ */

/* Euler tour of a random tree: node i is entered at time i and left at out[i]. */
static void table_tour(t_rng *rng, int32_t *out, int32_t n) {
    int32_t *stack = malloc((size_t)n * sizeof *stack), depth = 0;
    if (!stack) abort();
    for (int32_t i = 0; i < n; i++) {
        while (depth > 1 && t_int(rng, 0, 99) < 48) out[stack[--depth]] = i;
        stack[depth++] = i;
    }
    while (depth > 0) out[stack[--depth]] = n;
    free(stack);
}

CONTEXT_TEST(trees_as_they_are) {
    enum { N = 512, TILE = 16 };
    static int32_t in[N], out[N];
    t_program *p = NULL;
    t_rng rng = {t_seed()};
    table_tally tally = {0, 0};
    table_tour(&rng, out, N);
    for (int32_t i = 0; i < N; i++) in[i] = i;
    fxa_view views[2] = {{.data = in, .dtype = FXA_I32, .rank = 1, .size = {N}, .stride = {1}},
                         {.data = out, .dtype = FXA_I32, .rank = 1, .size = {N}, .stride = {1}}};
    fxa_tensor_range ranges[2] = {fxa_tensor_scan(&views[0]), fxa_tensor_scan(&views[1])};
    static const char text[] = "tensor tin : i32[1]\ntensor tout : i32[1]\n"
                               "mask = tin[k] <= tin[q] && tin[q] < tout[k]";
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    for (int32_t q = 0; q < N; q += TILE)
        for (int32_t k = 0; k < N; k += TILE) {
            fxa_tile_bounds box = brute_box(0, 0, q, q + TILE - 1, k, k + TILE - 1, N, N);
            table_check(&tally, p, &box, ranges, views);
        }
    printf("  decided %d of %d\n", tally.decided, tally.decidable);
    T_CHECK(tally.decided >= tally.decidable * 95 / 100);
}

/* A sorted table is known from its ends, however many of its elements a tile reads. */
CONTEXT_TEST(long_documents_of_wide_ids) {
    enum { N = 5000 };
    static int64_t ids[N];
    t_program *p = NULL;
    for (int i = 0; i < N; i++) ids[i] = INT64_C(5000000000) + i / (N / 2);
    fxa_view view = {.data = ids, .dtype = FXA_I64, .rank = 1, .size = {N}, .stride = {1}};
    fxa_tensor_range range = fxa_tensor_scan(&view);
    T_OK(fxa_program_parse(ctx, "tensor t : i64[1]\nmask = t[q] == t[k]", SIZE_MAX, &p, &err));
    for (int part = 0; part < 3; part++) {
        int32_t k = part * (N / 4);
        fxa_tile_bounds box = brute_box(0, 0, 0, N / 2 - 1, k, k + N / 2 - 1, N, N);
        T_INT(fxa_program_classify(p, &box, NULL, &range), part == 0   ? FXA_TILE_FULL
                                                           : part == 1 ? FXA_TILE_MIXED
                                                                       : FXA_TILE_EMPTY);
    }
}

/* Documents with ids beyond 32 bits, sorted or not, are distinguished like others. */
CONTEXT_TEST(documents_of_wide_ids) {
    enum { N = 512, TILE = 16 };
    static int64_t ids[N];
    t_program *p = NULL;
    t_rng rng = {t_seed()};
    T_OK(fxa_program_parse(ctx, "tensor t : i64[1]\nmask = t[q] == t[k] && k <= q", SIZE_MAX, &p, &err));
    for (int order = 0; order < 2; order++) {
        table_tally tally = {0, 0};
        int64_t id = INT64_C(5000000000);
        for (int32_t i = 0; i < N; i++) {
            if (t_int(&rng, 0, 60) == 0) id = order ? (int64_t)t_next(&rng) : id + t_int(&rng, 1, INT32_MAX);
            ids[i] = id;
        }
        fxa_view view = {.data = ids, .dtype = FXA_I64, .rank = 1, .size = {N}, .stride = {1}};
        fxa_tensor_range range = fxa_tensor_scan(&view);
        T_INT(range.nondecreasing, !order);
        for (int32_t q = 0; q < N; q += TILE)
            for (int32_t k = 0; k < N; k += TILE) {
                fxa_tile_bounds box = brute_box(0, 0, q, q + TILE - 1, k, k + TILE - 1, N, N);
                table_check(&tally, p, &box, &range, &view);
            }
        printf("  decided %d of %d\n", tally.decided, tally.decidable);
        T_CHECK(tally.decided >= tally.decidable * 95 / 100);
    }
}

/* A tile of a block table is decided by its one element; a block of another size makes it at most mixed. */
CONTEXT_TEST(blocks_exactly) {
    static uint8_t blocks[8 * 8];
    t_program *p = NULL;
    t_rng rng = {t_seed()};
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = t_int(&rng, 0, 3) == 0;
    fxa_view view = {.data = blocks, .dtype = FXA_B8, .rank = 2, .size = {8, 8}, .stride = {8, 1}};
    fxa_tensor_range range = {.view = &view};
    T_OK(fxa_program_parse(ctx, "tensor t : bool[2]\nmask = t[q // 8, k // 8]", SIZE_MAX, &p, &err));
    for (int32_t q = 0; q < 64; q += 4)
        for (int32_t k = 0; k < 64; k += 8)
            for (int32_t n = 4; n <= 24; n += 4) {
                fxa_tile_bounds box = brute_box(0, 0, q, q + 3, k, k + n - 1, 64, 64);
                fxa_tile_class got = fxa_program_classify(p, &box, NULL, &range);
                if (got != brute_class(p, &box, NULL, &view, brute_scores, 1)) T_FAIL("q %d, k %d, %d keys\n", q, k, n);
            }
}

T_MAIN
