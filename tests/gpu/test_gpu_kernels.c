/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions of the helper kernels (src/gpu/helper_kernels.cu), on the stand-in driver or a device: every 8-bit and
 * 16-bit float converted to f32 equals the library's value, and so do floats converted to 16 bits.
 */
#include "base/dtype.h"
#include "gpu/launch.h"
#include "standin/standin_fixture.h"

#include <math.h>
#include <string.h>

enum { KERNELS_MOST = 1 << 16 };

/* A device with its kernels and memory. */
typedef struct kernels_rig {
    fxa__gpu gpu;
    fxa__gpu_module module;
    void *from, *to;
} kernels_rig;

static const char *kernels_open(kernels_rig *r) {
    static fxa_error err;
    if (fxa__gpu_open(&r->gpu, 0, &err) != FXA_OK) return err.text;
    T_OK(fxa__gpu_module_open(&r->gpu, &r->module, &err));
    T_OK(fxa__gpu_alloc(&r->gpu, KERNELS_MOST * 4, &r->from, &err));
    T_OK(fxa__gpu_alloc(&r->gpu, KERNELS_MOST * 4, &r->to, &err));
    return NULL;
}

static void kernels_close(kernels_rig *r) {
    fxa__gpu_give(&r->gpu, r->from);
    fxa__gpu_give(&r->gpu, r->to);
    fxa__gpu_module_close(&r->gpu, &r->module);
    fxa__gpu_close(&r->gpu);
    if (standin_ready()) standin_check_end();
}

/* Copies n elements to the device and back, converted from dtype `in` to dtype `out`. */
static void kernels_copy(kernels_rig *r, fxa_dtype in, const void *from, fxa_dtype out, void *to, int64_t n) {
    fxa__gpu_args args;
    fxa_error err;
    memset(&args, 0, sizeof args);
    FxaGpuCopy *c = &args.copy;
    c->rows.size[0] = c->rows.size[1] = c->rows.size[2] = 1, c->rows.size[3] = n;
    c->from.data = r->from, c->from.type = (int32_t)in, c->from.stride[3] = 1;
    c->to.data = r->to, c->to.type = (int32_t)out, c->to.stride[3] = 1;
    T_OK(fxa__gpu_memory.copy_to(&r->gpu, r->from, from, (size_t)n * fxa_dtype_size(in), NULL, &err));
    T_OK(fxa__gpu_enter(&r->gpu, &err));
    T_OK(fxa__gpu_launch(&r->gpu, &r->module, FXA__GPU_COPY, &args, n, NULL, &err));
    fxa__gpu_leave(&r->gpu);
    T_OK(fxa__gpu_memory.copy_from(&r->gpu, to, r->to, (size_t)n * fxa_dtype_size(out), NULL, &err));
}

static bool kernels_same(double got, double want) { return got == want || (got != got && want != want); }

TEST(every_small_number_is_read) {
    static const fxa_dtype dtypes[] = {FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2};
    static uint16_t bits[KERNELS_MOST];
    static unsigned char bytes[256];
    static float got[KERNELS_MOST];
    kernels_rig r;
    const char *missing = kernels_open(&r);
    if (missing) T_SKIP(missing);
    for (int i = 0; i < KERNELS_MOST; i++) bits[i] = (uint16_t)i;
    for (int i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    for (int d = 0; d < 4; d++) {
        bool small = fxa_dtype_size(dtypes[d]) == 1;
        const void *from = small ? (const void *)bytes : bits;
        int64_t n = small ? 256 : KERNELS_MOST;
        kernels_copy(&r, dtypes[d], from, FXA_F32, got, n);
        for (int64_t i = 0; i < n; i++) {
            double want = fxa__load_f64(from, dtypes[d], i);
            if (!kernels_same(got[i], want))
                T_FAIL("%s 0x%x is %g\n", fxa_dtype_name(dtypes[d]), (int)i, (double)got[i]);
        }
    }
    kernels_close(&r);
}

/* Tests floats near every f16 and bf16: the value, its neighbours, and midpoints, which round to even. */
TEST(what_is_written_is_rounded_to_nearest) {
    static const fxa_dtype dtypes[] = {FXA_F16, FXA_BF16};
    static float from[KERNELS_MOST];
    static uint16_t got[KERNELS_MOST];
    kernels_rig r;
    const char *missing = kernels_open(&r);
    if (missing) T_SKIP(missing);
    for (int d = 0; d < 2; d++)
        for (int way = 0; way < 4; way++) {
            for (int i = 0; i < KERNELS_MOST; i++) {
                uint16_t two[2] = {(uint16_t)i, (uint16_t)(i + 1)};
                float x = (float)fxa__load_f64(two, dtypes[d], 0), next = (float)fxa__load_f64(two, dtypes[d], 1);
                from[i] = way == 0   ? x
                          : way == 1 ? nextafterf(x, INFINITY)
                          : way == 2 ? nextafterf(x, -INFINITY)
                                     : x / 2 + next / 2;
            }
            kernels_copy(&r, FXA_F32, from, dtypes[d], got, KERNELS_MOST);
            for (int i = 0; i < KERNELS_MOST; i++) {
                uint16_t want;
                fxa__store_f64(&want, dtypes[d], 0, (double)from[i]);
                bool none = from[i] != from[i] && kernels_same(fxa__load_f64(got, dtypes[d], i), (double)NAN);
                if (got[i] != want && !none)
                    T_FAIL("%s of %a is 0x%x, not 0x%x\n", fxa_dtype_name(dtypes[d]), (double)from[i], got[i], want);
            }
        }
    kernels_close(&r);
}

TEST(inverses_are_those_of_floats) {
    static const float from[] = {1, 3, 0.1f, 448, 1e-30f, 3e38f};
    kernels_rig r;
    const char *missing = kernels_open(&r);
    if (missing) T_SKIP(missing);
    for (int i = 0; i < 7; i++) { /* the last copy is empty */
        fxa__gpu_args args = {.inverse = {i < 6 ? r.from : NULL, r.to}};
        float got = 0;
        T_OK(fxa__gpu_memory.copy_to(&r.gpu, r.from, &from[i < 6 ? i : 1], sizeof *from, NULL, &err));
        T_OK(fxa__gpu_enter(&r.gpu, &err));
        T_OK(fxa__gpu_launch(&r.gpu, &r.module, FXA__GPU_INVERSE, &args, 1, NULL, &err));
        fxa__gpu_leave(&r.gpu);
        T_OK(fxa__gpu_memory.copy_from(&r.gpu, &got, r.to, sizeof got, NULL, &err));
        T_SAME((double)got, i < 6 ? (double)(1 / from[i]) : 1.0);
    }
    kernels_close(&r);
}

T_MAIN
