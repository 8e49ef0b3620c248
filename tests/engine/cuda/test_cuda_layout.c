/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile shapes of the cuda engine's kernels (kernels/common/tile_shape.h) for every pair of head dims, against tables.
 * test_cuda_run.c tests the layout of the workspace.
 */
#include "../all/cuda_families.h"
#include "t.h"

static const int32_t shape_dims[] = {32, 64, 96, 128, 192, 256};
enum { SHAPE_DIMS = sizeof shape_dims / sizeof *shape_dims };

/* Returns the columns of a row in shared memory, which has swizzled rows of 64 elements. */
static int32_t shape_columns(const fxa__cuda_choice *c) {
    return (c->traits.d + 63) / 64 * 64 + (c->traits.dv + 63) / 64 * 64;
}

static void shape_check(const fxa__cuda_choice *c, const struct FxaShape *s, int32_t threads, int32_t q_rows,
                        int32_t k_rows) {
    if (s->threads != threads || s->q_rows != q_rows || s->k_rows != k_rows)
        T_FAIL("sm_%d, head dims %d and %d: %d threads for %d x %d pairs, not %d for %d x %d\n", (int)c->arch,
               (int)c->traits.d, (int)c->traits.dv, s->threads, s->q_rows, s->k_rows, (int)threads, (int)q_rows,
               (int)k_rows);
}

/* Calls `check` for every pair of head dims. */
static void shape_for_all(int32_t arch, void (*check)(fxa__cuda_choice *c)) {
    for (int i = 0; i < SHAPE_DIMS * SHAPE_DIMS; i++) {
        fxa__cuda_choice c = {.arch = arch};
        c.traits.d = shape_dims[i / SHAPE_DIMS], c.traits.dv = shape_dims[i % SHAPE_DIMS];
        check(&c);
    }
}

/* Returns the tiles of a kernel with the shared memory that its recipe has. */
static struct FxaTileShape shape_of(fxa__cuda_choice *c, const char *recipe, fxa__cuda_unit unit) {
    c->recipe = family_recipe(recipe, c->arch);
    c->traits.shared_kb = c->recipe->shared_kb;
    return fxa__cuda_tile_shape(c, unit);
}

/* Tiles of the sm80 backward by the shared memory of a CTA: 163 KiB on sm_80 and sm_90, 227 KiB on sm_100, else
 * 99 KiB. */
static void shape_check_sm80(fxa__cuda_choice *c) {
    int32_t columns = shape_columns(c), kb = c->arch == 80 || c->arch == 90 ? 163 : c->arch == 100 ? 227 : 99;
    bool wide = c->traits.d > 128 || c->traits.dv > 128;
    int32_t keys = columns <= (kb == 99    ? 192
                               : kb == 163 ? 384
                                           : 512)
                       ? 128
                   : columns <= (kb == 99 ? 448 : 512) ? 64
                                                       : 32;
    int32_t queries = kb == 99 && columns > 320 ? 32 : 64;
    struct FxaShape back = shape_of(c, "backward_sm80", FXA__CUDA_BACKWARD).launch;
    shape_check(c, &back, 2 * keys, queries, keys);
    T_INT(c->traits.shared_kb, kb);
    T_INT(back.sum_rows, keys / 16);
    T_INT(back.parts, wide ? 2 : 1);
    T_CHECK(back.shared_bytes <= c->traits.shared_kb * 1024);
    struct FxaShape forward = shape_of(c, "forward_sm80", FXA__CUDA_FORWARD).launch;
    shape_check(c, &forward, 128, wide ? 64 : 128, 64);
    T_CHECK(forward.shared_bytes <= 99 * 1024);
    c->traits.dense = 1;
    forward = shape_of(c, "forward_sm80", FXA__CUDA_FORWARD).launch;
    shape_check(c, &forward, 128, 64, 64);
}

TEST(tiles_of_sm80) {
    static const int32_t arch[] = {80, 86, 89, 90, 100, 120};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) shape_for_all(arch[i], shape_check_sm80);
}

/* Key tiles of the sm90 forward by pairs of head dims, 2 for 128 keys and 1 for 64, and whether 64 keys fit. Computed
 * from fits() of sm90/forward_shared.cuh. */
TEST(tiles_of_the_sm90_forward) {
    static const struct {
        bool dense, diagonal, vector, dropout;
        const char *keys;
    } rows[] = {
        {false, false, false, false, "222211222211222211222211222211221111"},
        {false, false, false, true, "222211222211222211222211222211221111"},
        {true, false, false, false, "222211222211222211222211111111111111"},
        {false, true, false, false, "222211222211222211222211222211111111"},
        {false, false, true, false, "222211222211222211222211222211111111"},
        {true, true, false, false, "222211222211221111221111111111111111"},
        {true, false, true, false, "222211222211221111221111111111111111"},
        {false, true, true, false, "222211222211222211222211222211111111"},
        {true, true, true, false, "222211222211221111221111111111111111"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < SHAPE_DIMS * SHAPE_DIMS; k++) {
            fxa__cuda_choice c = {.arch = 90};
            c.traits = (struct FxaTraits){.dropout = rows[i].dropout, .dense = rows[i].dense};
            c.traits.diagonal = rows[i].diagonal, c.traits.operands = rows[i].vector;
            c.traits.d = shape_dims[k / SHAPE_DIMS], c.traits.dv = shape_dims[k % SHAPE_DIMS];
            bool small = c.traits.d <= 64 && c.traits.dv <= 64, both = rows[i].dense && rows[i].diagonal;
            int32_t groups = small && !rows[i].dense && !rows[i].dropout ? 3 : 2;
            struct FxaTileShape t = shape_of(&c, "forward_sm90", FXA__CUDA_FORWARD);
            struct FxaShape s = t.launch;
            shape_check(&c, &s, 128 * (groups + 1), 64 * groups, rows[i].keys[k] == '2' ? 128 : 64);
            T_INT(s.store_rows, 16);
            T_INT(s.persistent, 1);
            T_INT(s.parts, 1);
            T_INT(t.query_parts, groups == 3 ? 3 : 0);
            T_INT(t.fits, !(both && c.traits.d == 256 && c.traits.dv == 256));
        }
    }
}

/* Query tiles of the sm90 backward: 128 rows for head dims up to 64 without slopes, dense tensors, captured gradients
 * and dropout. The kernel for head dims above 128 has tiles of 64 x 64. */
static void shape_check_sm90(fxa__cuda_choice *c) {
    bool wide = c->traits.d > 128 || c->traits.dv > 128, small = c->traits.d <= 64 && c->traits.dv <= 64;
    int32_t columns = shape_columns(c);
    const char *name = wide ? "backward_wide_sm90" : "backward_sm90";
    c->traits.shared_kb = 227;
    const struct FxaTraits bare = c->traits;
    for (int i = 0; i < 7; i++) {
        struct FxaTraits *t = &c->traits;
        int *const members[] = {&t->derivative, &t->dense,        &t->grad_diagonal,
                                &t->grad_sums,  &t->grad_scatter, &t->dropout};
        *t = bare;
        if (i) *members[i - 1] = 1;
        struct FxaShape s = shape_of(c, name, FXA__CUDA_BACKWARD).launch;
        shape_check(c, &s, 384, small && i == 0 ? 128 : 64, wide ? 64 : 128);
        T_INT(s.store_rows, 16);
        T_INT(s.sum_rows, wide ? 0 : 8);
        T_INT(s.parts, 1);
    }
    for (int i = 0; !wide && i < 4; i++) { /* of a dense tensor and words */
        struct FxaTraits t = bare;
        t.dense = i % 2, t.operands = t.pack_operands = i / 2;
        bool fits = i % 2 == 0 || columns < 256 || i == 1;
        T_INT(fxa_fused_dq_fits(t), fits);
        t.separate_dq = !fits;
        T_CHECK(fxa_backward_sm90(t).launch.shared_bytes <= 227 * 1024);
    }
    c->traits = bare;
    struct FxaShape s = shape_of(c, name, FXA__CUDA_DQ).launch;
    shape_check(c, &s, 384, 128, 64);
    T_INT(s.store_rows, 16);
    T_INT(s.persistent, 1);
}

TEST(tiles_of_the_sm90_backward) { shape_for_all(90, shape_check_sm90); }

/* Kernels without tensor cores, and those that are the same in every family. */
static void shape_check_others(fxa__cuda_choice *c) {
    static const fxa__cuda_unit tiles[] = {FXA__CUDA_FORWARD, FXA__CUDA_BACKWARD},
                                none[] = {FXA__CUDA_TILE_LISTS, FXA__CUDA_CONVERT};
    for (int i = 0; i < 2; i++) {
        struct FxaShape s = shape_of(c, i ? "backward_simt" : "forward_simt", tiles[i]).launch;
        shape_check(c, &s, 256, 64, 64);
        T_INT(s.sum_rows, i ? 8 : 0);
        T_INT(s.parts, 1);
        s = shape_of(c, "forward_simt", none[i]).launch;
        shape_check(c, &s, 0, 0, 0);
    }
    struct FxaShape s = shape_of(c, "backward_simt", FXA__CUDA_PREPOST).launch;
    shape_check(c, &s, 256, c->traits.dv == 32 ? 64 : c->traits.dv == 64 ? 32 : c->traits.dv <= 128 ? 16 : 8, 0);
    T_INT(s.parts, 1);
    for (c->traits.row_tiles = 1; c->traits.row_tiles <= 4 && c->traits.d <= 128 && c->traits.d == c->traits.dv;
         c->traits.row_tiles *= 2)
        for (c->traits.cluster = 0; c->traits.cluster < 3; c->traits.cluster++) {
            s = shape_of(c, "decode_sm90", FXA__CUDA_DECODE).launch;
            shape_check(c, &s, 384, 8 * c->traits.row_tiles, 128);
            T_INT(s.store_rows, 32);
            T_INT(s.persistent, 1);
            T_INT(s.parts, c->traits.cluster ? c->traits.cluster : 1);
        }
}

TEST(tiles_of_other_kernels) { shape_for_all(90, shape_check_others); }

/* Every device from sm_80 on has, for both passes, rows of the recipe table that take any problem, and each row states
 * what launches need. */
TEST(every_architecture_has_kernels) {
    for (int32_t arch = 0; arch < 200; arch++) {
        bool any[2] = {false, false}, tensor_cores[2] = {false, false};
        for (size_t i = 0; i < fxa__cuda_recipe_count; i++) {
            const fxa__cuda_recipe *r = &fxa__cuda_recipes[i];
            if (arch < r->arch_first || arch > r->arch_last) continue;
            T_CHECK(r->main.source && r->main.shape && r->launch && r->shared_kb >= 99);
            T_INT(r->dq != NULL, r->pass == FXA_BACKWARD);
            any[r->pass] = any[r->pass] || (strcmp(r->family, "simt") == 0 && !r->refuses);
            tensor_cores[r->pass] = tensor_cores[r->pass] || strcmp(r->family, "simt") != 0;
        }
        T_CHECK(any[FXA_FORWARD] == (arch >= 80) && any[FXA_BACKWARD] == (arch >= 80));
        T_CHECK(tensor_cores[FXA_FORWARD] == (arch >= 80) && tensor_cores[FXA_BACKWARD] == (arch >= 80));
        T_INT(fxa__cuda_recipe_has_arch(arch), arch >= 80);
    }
    T_CHECK(!fxa__cuda_recipe_family("sm90") && fxa__cuda_recipe_family("sm80") && !fxa__cuda_recipe_family("sm"));
}

T_MAIN
