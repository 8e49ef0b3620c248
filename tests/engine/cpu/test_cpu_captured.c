/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for captured tensors, in every instruction set of this machine: ints of every dtype, and element offsets,
 * compared with one element at a time. Operands end at an inaccessible page.
 */
#include "t.h"
#include "base/dtype.h"
#include "engine/cpu/cpu.h"
#include "support/memory/guard.h"

static void captured_each(void (*check)(const fxa__cpu_kernels *, t_rng *)) {
    t_rng rng = {t_seed()};
    for (size_t size = sizeof(float); size <= sizeof(double); size += sizeof(float)) {
        const fxa__cpu_kernels *k;
        bool usable = false;
        for (size_t i = 0; (k = fxa__cpu_set(i, size, &usable)); i++)
            for (int round = 0; usable && round < t_scaled(200); round++) check(k, &rng);
    }
}

/* Tests ints with random bits, so that i64 usually exceeds an int32, and bools have values besides 0 and 1. */
static void captured_ints(const fxa__cpu_kernels *k, t_rng *rng) {
    static const fxa_dtype dtypes[] = {FXA_I64, FXA_I32, FXA_I16, FXA_I8, FXA_U8, FXA_B8};
    fxa_dtype dtype = dtypes[t_int(rng, 0, 5)];
    int64_t n = t_int(rng, 0, 70), stride = t_int(rng, 0, 1) ? 1 : t_int(rng, -3, 3),
            size = (int64_t)fxa_dtype_size(dtype);
    int64_t span = n ? (n - 1) * (stride < 0 ? -stride : stride) + 1 : 0, first = stride < 0 && n ? span - 1 : 0;
    guard x = guard_open((size_t)(span * size)), out = guard_open((size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < span * size; i++) ((uint8_t *)x.data)[i] = (uint8_t)t_int(rng, 0, t_int(rng, 0, 1) * 255);
    k->load_ints((int32_t *)(void *)out.data, (const char *)x.data + first * size, dtype, stride, n);
    for (int64_t i = 0; i < n; i++)
        T_INT(((int32_t *)(void *)out.data)[i], fxa__load_i32(x.data, dtype, first + i * stride));
    guard_close(&x);
    guard_close(&out);
}
TEST(ints_of_every_dtype) { captured_each(captured_ints); }

static void captured_offsets(const fxa__cpu_kernels *k, t_rng *rng) {
    int64_t n = t_int(rng, 0, 70), size = t_int(rng, 0, 3) ? t_int(rng, 0, 40) : (int64_t)1 << t_int(rng, 31, 40);
    int64_t stride = t_int(rng, 0, 3) ? t_int(rng, -50, 50) : (int64_t)1 << t_int(rng, 10, 18);
    bool add = t_int(rng, 0, 1);
    guard index = guard_open((size_t)n * sizeof(int32_t)), offset = guard_open((size_t)n * sizeof(int64_t));
    guard old = guard_open(offset.size);
    for (int64_t i = 0; i < n; i++) {
        bool far = t_int(rng, 0, 9) == 0;
        ((int32_t *)(void *)index.data)[i] = (int32_t)(far ? t_int(rng, INT32_MIN, INT32_MAX) : t_int(rng, -45, 45));
        ((int64_t *)(void *)offset.data)[i] = t_int(rng, -1000, 1000);
    }
    if (n) memcpy(old.data, offset.data, offset.size);
    k->offsets((int64_t *)(void *)offset.data, add, (int32_t *)(void *)index.data, size, stride, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t x = ((int32_t *)(void *)index.data)[i], before = add ? ((int64_t *)(void *)old.data)[i] : 0;
        if (x < 0) x += size;
        T_INT(((int64_t *)(void *)offset.data)[i], before + (x >= 0 && x < size ? x * stride : FXA__TAPE_OUTSIDE));
    }
    guard_close(&index);
    guard_close(&offset);
    guard_close(&old);
}
TEST(offsets_along_an_axis) { captured_each(captured_offsets); }

T_MAIN
