/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests in this folder: kernels written for the GPU emulator (model.h), compiled by its NVRTC and
 * launched on the stand-in for the driver. A correct kernel is correct in every order that the emulator draws; a kernel
 * that relies on an order is wrong in some; an error at which a device would hang or fault ends with a message.
 *
 * FXA_TEST_STANDIN is the folder of the stand-in driver and FXA_NVRTC_PATH that of the emulator's NVRTC. On a machine
 * with a GPU, FXA_TEST_MODEL=device runs the correct kernels with the real libraries, to compare the emulator with the
 * GPU.
 */
#ifndef FXA_TESTS_MODEL_FIXTURE_H
#define FXA_TESTS_MODEL_FIXTURE_H

#include "standin/standin.h"
#include "t.h"

#include "base/dtype.h"
#include "gpu/gpu.h"

#include <dlfcn.h>

enum { RIG_TIMES = 60, RIG_BYTES = 4 << 20, RIG_TEXT = 1 << 18, RIG_LOST = 719, RIG_HEADERS = 10 };
enum { RIG_KERNELS, RIG_MISTAKES, RIG_PRODUCTS, RIG_PRODUCTS_F16, RIG_FUNCTIONS, RIG_UNITS };

/* As FxaMap. */
typedef struct rig_map {
    _Alignas(64) uint64_t words[16];
} rig_map;

typedef struct rig_nvrtc {
    int (*version)(int *major, int *minor);
    const char *(*error_string)(int status);
    int (*create)(void **program, const char *source, const char *name, int n, const char *const *headers,
                  const char *const *names);
    int (*compile)(void *program, int n, const char *const *options);
    int (*cubin_size)(void *program, size_t *size);
    int (*cubin)(void *program, char *out);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *out);
    int (*destroy)(void **program);
} rig_nvrtc;

typedef struct rig_driver {
    int (*init)(unsigned flags);
    int (*device)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*load)(void **module, const void *image);
    int (*find)(void **function, void *module, const char *name);
    int (*set)(void *function, int attribute, int value);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra);
    int (*launch_with)(const fxa__gpu_launch_config *config, void *function, void **params, void **extra);
    int (*wait)(void);
    int (*alloc)(uintptr_t *out, size_t size);
    int (*free)(uintptr_t at);
    int (*to_device)(uintptr_t to, const void *from, size_t size, void *stream);
    int (*to_host)(void *to, uintptr_t from, size_t size, void *stream);
    int (*map)(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride_bytes,
               const uint32_t *box, const uint32_t *element_stride, int interleave, int swizzle, int promotion,
               int fill);
} rig_driver;

static rig_nvrtc rig_nv;
static rig_driver rig_cu;
static standin_state *rig_state; /* NULL: on a device */
static void *rig_module[RIG_UNITS];
static const char *rig_missing = "";

/* ---- Libraries, modules, memory ---------------------------------------------------------------------------------- */

static bool rig_on_device(void) {
    const char *text = getenv("FXA_TEST_MODEL");
    return text && strcmp(text, "device") == 0;
}

static void *rig_open(const char *folder, const char *file) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s%s%s", folder ? folder : "", folder ? "/" : "", file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Stores the functions `names` of a library in a table, in this order. Returns false if one is missing. */
static bool rig_bind(void *library, const char *const *names, int n, void *table) {
    for (int i = 0; i < n; i++) {
        void *f = dlsym(library, names[i]);
        if (!f) return false;
        memcpy((char *)table + (size_t)i * sizeof f, &f, sizeof f);
    }
    return true;
}

static bool rig_libraries(void) {
    static const char *const nvrtc[] = {"nvrtcVersion",           "nvrtcGetErrorString", "nvrtcCreateProgram",
                                        "nvrtcCompileProgram",    "nvrtcGetCUBINSize",   "nvrtcGetCUBIN",
                                        "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",  "nvrtcDestroyProgram"};
    static const char *const driver[] = {"cuInit",
                                         "cuDeviceGet",
                                         "cuDevicePrimaryCtxRetain",
                                         "cuCtxPushCurrent_v2",
                                         "cuModuleLoadData",
                                         "cuModuleGetFunction",
                                         "cuFuncSetAttribute",
                                         "cuLaunchKernel",
                                         "cuLaunchKernelEx",
                                         "cuCtxSynchronize",
                                         "cuMemAlloc_v2",
                                         "cuMemFree_v2",
                                         "cuMemcpyHtoDAsync_v2",
                                         "cuMemcpyDtoHAsync_v2",
                                         "cuTensorMapEncodeTiled"};
    const char *standin = getenv("FXA_TEST_STANDIN"), *folder = getenv("FXA_NVRTC_PATH");
    if (!rig_on_device() && (!standin || !folder)) return false;
    void *cuda = rig_open(rig_on_device() ? NULL : standin, "libcuda.so.1"), *rtc = rig_open(folder, "libnvrtc.so.13");
    if (!cuda || !rtc) return false;
    rig_state = dlsym(cuda, "standin_cuda");
    return rig_bind(rtc, nvrtc, (int)(sizeof nvrtc / sizeof *nvrtc), &rig_nv) &&
           rig_bind(cuda, driver, (int)(sizeof driver / sizeof *driver), &rig_cu);
}

static char *rig_read(const char *folder, const char *name) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s/%s", FXA_SOURCE_DIR, folder, name);
    FILE *f = fopen(path, "r");
    char *text = f ? calloc(1, RIG_TEXT) : NULL;
    if (text && fread(text, 1, RIG_TEXT - 1, f) == RIG_TEXT - 1) text[0] = 0;
    if (f) (void)fclose(f);
    return text;
}

static bool rig_compile(const char *file, const char *half, void **module) {
    static const char *const names[RIG_HEADERS] = {
        "common/args.h", "common/traits.h",    "common/types.cuh",   "common/ptx.cuh",          "sm80/ptx.cuh",
        "sm90/ptx.cuh",  "sm90/ptx_wgmma.cuh", "common/swizzle.cuh", "common/softcap_tanh.cuh", "common/tile_shape.h"};
    const char *const options[] = {"--gpu-architecture=sm_90a", "-std=c++17", "-DFXA_D=64", "-DFXA_DV=64",
                                   "-DFXA_FAST_MATH=0",         half};
    char *headers[RIG_HEADERS], *source = rig_read("tests/model", file), *cubin = NULL;
    void *program = NULL;
    size_t size = 0;
    for (int i = 0; i < RIG_HEADERS; i++) headers[i] = rig_read("src/engine/cuda/kernels", names[i]);
    bool ok = source && rig_nv.create(&program, source, file, RIG_HEADERS, (const char *const *)headers, names) == 0;
    ok = ok && rig_nv.compile(program, (int)(sizeof options / sizeof *options), options) == 0 &&
         rig_nv.cubin_size(program, &size) == 0;
    if (program && !ok && rig_nv.log_size(program, &size) == 0 && (cubin = calloc(1, size + 1)) != NULL) {
        (void)rig_nv.log(program, cubin);
        printf("  %s: %.2000s\n", file, cubin);
    } else if (ok) {
        ok = (cubin = malloc(size)) != NULL && rig_nv.cubin(program, cubin) == 0 && rig_cu.load(module, cubin) == 0;
    }
    if (program) (void)rig_nv.destroy(&program);
    for (int i = 0; i < RIG_HEADERS; i++) free(headers[i]);
    free(source), free(cubin);
    return ok;
}

/* Returns the module of a source, which is compiled at its first use; NULL if that fails. */
static void *rig_unit(int unit) {
    static bool tried[RIG_UNITS];
    static const char *const files[RIG_UNITS] = {"model_kernels.cu", "model_mistakes.cu", "model_products.cu",
                                                 "model_products.cu", "model_functions.cu"};
    const bool mistakes = unit == RIG_MISTAKES;
    if (tried[unit]) return rig_module[unit];
    tried[unit] = true;
    if (mistakes) (void)setenv("FXA_MODEL_CHECK", "1", 1);
    if (!rig_compile(files[unit], unit == RIG_PRODUCTS_F16 ? "-DFXA_F16=1" : "-DFXA_F16=0", &rig_module[unit]))
        T_FAIL("kernels of unit %d do not compile\n", unit);
    if (mistakes) (void)unsetenv("FXA_MODEL_CHECK");
    return rig_module[unit];
}

/* Loads libraries and device once. Returns false if one is missing; rig_missing then has the reason. */
static bool rig_ready(void) {
    static bool tried, ready;
    int device = 0, major, minor;
    void *context = NULL;
    if (tried) return ready;
    tried = true;
    rig_missing = "the stand-ins for the driver and NVRTC are not there (FXA_TEST_STANDIN, FXA_NVRTC_PATH)";
    if (!rig_libraries()) return false;
    int status = rig_nv.version(&major, &minor);
    rig_missing = status ? rig_nv.error_string(status) : "the driver has no device";
    if (status || rig_cu.init(0) || rig_cu.device(&device, 0)) return false;
    if (rig_cu.retain(&context, device) || rig_cu.push(context)) return false;
    if (rig_state) rig_state->quiet = true;
    return ready = true;
}

#define NEEDS_RIG                                                                                                      \
    do {                                                                                                               \
        if (!rig_ready()) T_SKIP(rig_missing);                                                                         \
    } while (0)
#define NEEDS_MODEL                                                                                                    \
    do {                                                                                                               \
        NEEDS_RIG;                                                                                                     \
        if (!rig_state) T_SKIP("a device has no words for it");                                                        \
    } while (0)

/* A launch: its arguments, and the contents of `out` after it. */
typedef struct rig_run {
    int unit;
    unsigned grid[3], block[3], shared;
    int way, n;
    bool early;
    const void *in;
    size_t in_bytes, out_bytes;
    const void *before; /* initial contents of `out`; NULL: unwritten */
    const rig_map *map;
    int32_t *out;
} rig_run;

static rig_run rig_of(unsigned threads, unsigned shared, int way, int n) {
    return (rig_run){.grid = {1, 1, 1}, .block = {threads, 1, 1}, .shared = shared, .way = way, .n = n};
}

static int rig_launch(const char *kernel, rig_run *r) {
    static int32_t result[RIG_BYTES / 4];
    static const rig_map none;
    uintptr_t in = 0, out = 0;
    void *function = NULL;
    rig_map map = r->map ? *r->map : none;
    void *params[] = {&map, &out, &in, &r->way, &r->n};
    r->out = result;
    if (!rig_unit(r->unit)) return RIG_LOST;
    int status = rig_cu.find(&function, rig_module[r->unit], kernel) | rig_cu.set(function, 8, (int)r->shared);
    if (r->in_bytes) status |= rig_cu.alloc(&in, r->in_bytes) | rig_cu.to_device(in, r->in, r->in_bytes, NULL);
    if (r->out_bytes) status |= rig_cu.alloc(&out, r->out_bytes);
    if (r->before) status |= rig_cu.to_device(out, r->before, r->out_bytes, NULL);
    if (status) T_FAIL("%s: the driver says %d before the launch\n", kernel, status);
    fxa__gpu_launch_attribute attribute = {.id = 6, .value = {.flag = 1}};
    fxa__gpu_launch_config config = {
        {r->grid[0], r->grid[1], r->grid[2]}, {r->block[0], r->block[1], r->block[2]}, r->shared, NULL, &attribute, 1};
    status = r->early ? rig_cu.launch_with(&config, function, params, NULL)
                      : rig_cu.launch(function, r->grid[0], r->grid[1], r->grid[2], r->block[0], r->block[1],
                                      r->block[2], r->shared, NULL, params, NULL);
    if (!status) status = rig_cu.wait();
    if (!status && r->out_bytes) status = rig_cu.to_host(result, out, r->out_bytes, NULL) | rig_cu.wait();
    if (in) (void)rig_cu.free(in);
    if (out) (void)rig_cu.free(out);
    return status;
}

/* Tests a correct kernel with many orders: every run must succeed and pass check. */
__attribute__((unused)) static void rig_right(const char *kernel, rig_run *r, bool (*check)(const rig_run *r)) {
    for (int i = 0; i < (rig_state ? RIG_TIMES : 2); i++) {
        int status = rig_launch(kernel, r);
        if (status) T_FAIL("%s, way %d: %d, %s\n", kernel, r->way, status, rig_state ? rig_state->words : "");
        if (!status && !check(r)) T_FAIL("%s, way %d, n %d: wrong in run %d\n", kernel, r->way, r->n, i);
        if (status) return;
    }
}

/* Tests a kernel that relies on an order: some runs must fail or not pass check. */
__attribute__((unused)) static void rig_wrong(const char *kernel, rig_run *r, bool (*check)(const rig_run *r)) {
    int wrong = 0;
    if (!rig_state) return;
    for (int i = 0; i < RIG_TIMES; i++) wrong += rig_launch(kernel, r) != 0 || !check(r);
    if (!wrong) T_FAIL("%s, way %d: right in every order\n", kernel, r->way);
}

/* Tests a kernel with an error: every run must end with a message that contains `words`. */
__attribute__((unused)) static void rig_words(const char *kernel, rig_run *r, const char *words) {
    for (int i = 0; i < 8; i++) {
        int status = rig_launch(kernel, r);
        if (status == RIG_LOST && strstr(rig_state->words, words)) continue;
        T_FAIL("%s, way %d: %d, \"%s\" without \"%s\"\n", kernel, r->way, status, rig_state->words, words);
        return;
    }
}

/* Returns the numbers 1, 2, 3, ..., which all differ. */
__attribute__((unused)) static const int32_t *rig_count(void) {
    static int32_t count[1 << 16];
    for (int i = 0; i < 1 << 16; i++) count[i] = i + 1;
    return count;
}

__attribute__((unused)) static float rig_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* A tensor [4][3][20][72] of 16-bit elements, declared with 70 columns, and boxes of 64 columns. */
enum { TMA_D = 70, TMA_PITCH = 72, TMA_S = 20, TMA_H = 3, TMA_B = 4, TMA_ALL = TMA_B * TMA_H * TMA_S * TMA_PITCH };
enum { TMA_BOX = 64, TMA_ROWS = 9, TMA_HEADS = 2, TMA_BYTES = TMA_BOX * TMA_ROWS * TMA_HEADS * 2 };

__attribute__((unused)) static uint16_t tma_tensor[TMA_ALL];

__attribute__((unused)) static bool tma_map(uintptr_t data, rig_map *map) {
    const uint64_t size[4] = {TMA_D, TMA_S, TMA_H, TMA_B};
    const uint64_t stride[3] = {TMA_PITCH * 2, TMA_S * TMA_PITCH * 2, TMA_H * TMA_S * TMA_PITCH * 2};
    const uint32_t box[4] = {TMA_BOX, TMA_ROWS, TMA_HEADS, 1}, one[4] = {1, 1, 1, 1};
    return rig_cu.map(map, 9, 4, data, size, stride, box, one, 0, 3, 0, 0) == 0;
}

#endif
